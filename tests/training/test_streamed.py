"""Rows in files: blocks that stay in memory, prepared data, and memory limits that are too small or mean nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import dboost
from dboost.cli import UNUSABLE, main
from dboost.data.tables.reader import Reader
from dboost.rows.block_file import BlockFile
from dboost.rows.row_store import RowStore
from dboost.rows.shard_spec import ShardSpec
from dboost.session import memory, training_rows
from dboost.session.memory import parse_memory_limit
from dboost.tuning import tuned
from tests.helpers.examples import examples
from tests.helpers.fits import FEATURES, NUMERIC, cut, mixed_frame, saved
from tests.helpers.tune import Tune

LIMIT = "64MiB"


@pytest.fixture
def folder(tmp_path: Path, tune: Tune) -> Iterator[Path]:
    """Every limit is too small for the rows, blocks are short, and temporary files go here."""
    tune(resident_rows=0, block_rows=64)
    with dask.config.set({"temporary-directory": str(tmp_path / "temporary")}):
        yield tmp_path / "temporary"


def both(frame: Any, target: Any, **settings: Any) -> tuple[dboost.Booster, dboost.Booster]:
    """Return the model of rows in memory, and of rows in files."""
    settings = {"max_iter": 4, "random_state": 3, "progress": False} | settings
    return dboost.fit(frame, target, **settings), dboost.fit(frame, target, memory_limit=LIMIT, **settings)


@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(40, 400),
    at=st.lists(st.integers(0, 400), max_size=4),
    block=st.sampled_from([1, 16, 64, 1024]),
    n_threads=st.integers(1, 3),
)
def test_however_rows_are_divided(folder: Path, n: int, at: list[int], block: int, n_threads: int) -> None:
    frame = mixed_frame(n, seed=n)
    options = {"features": NUMERIC, "sample_weight": "w", "subsample": 0.7, "max_leaf_nodes": 6, "min_samples_leaf": 3}
    with tuned(block_rows=block):
        kept = dboost.fit(frame, "y", max_iter=2, **options)
        streamed = dboost.fit(cut(frame, at), "y", max_iter=2, n_threads=n_threads, memory_limit=LIMIT, **options)
    assert saved(kept) == saved(streamed)


@pytest.mark.parametrize("n_staying", [None, 1])
def test_blocks_that_stay(folder: Path, monkeypatch: pytest.MonkeyPatch, tune: Tune, n_staying: int | None) -> None:
    """Resident blocks, as many as the limit allows, are read once, before the first tree: here all, or one for each thread."""
    found: list[tuple[int, int]] = []

    def counted(store: RowStore, spec: ShardSpec, n_bytes: int, width: int, n_threads: int) -> int:
        assert width > 10  # nodes that are opened in one pass
        n = allowed(store, spec, n_bytes, width, n_threads)
        found.append((n_bytes, n * n_threads * sum(file.stride for file in store.files)))
        return n if n_staying is None else n_staying

    allowed = training_rows.blocks_that_stay
    tune(cached_file_bytes=0)
    monkeypatch.setattr(training_rows, "blocks_that_stay", counted)
    kept, streamed = both(mixed_frame(500), "late", sample_weight="w", subsample=0.6, n_threads=2)
    assert saved(kept) == saved(streamed)
    read = streamed.history["bytes_read"].to_numpy()
    assert (read == 0).all() if n_staying is None else (read > 0).all()
    ((most, taken),) = found
    assert 0.5 * most < taken < most < 0.75 * 64 * 2**20


def _count_codes(patch: pytest.MonkeyPatch, counted: list[int]) -> None:
    """Add the bytes of codes that fits read from now on to a list, and put their size in front."""
    read = BlockFile.read

    def noted(file: BlockFile, *arguments: Any, **options: Any) -> int:
        n_bytes = read(file, *arguments, **options)
        if file.path.name == "codes":
            counted[0] = file.stride * file.n_blocks
            counted.append(n_bytes)
        return n_bytes

    patch.setattr(BlockFile, "read", noted)


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize(("n_together", "most"), [(1, 12.0), (2, 8.0), (None, 4.0)])
def test_trees_of_an_iteration_share_passes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tune: Tune, n_together: int | None, most: float
) -> None:
    """Codes are read once for all trees that grow at the same time, as many as the limit allows."""
    rng, n_iterations, n_classes = np.random.default_rng(0), 3, 4
    X = rng.normal(size=(3000, 6))
    target = np.argmax(X[:, :n_classes] + np.sin(X[:, 2:]) + rng.gumbel(size=(3000, n_classes)), axis=1)
    allowed: list[int] = []
    if n_together is None:
        compute = memory.most_trees_per_pass

        def noted(*arguments: Any) -> int:
            allowed.append(compute(*arguments))
            return allowed[-1]

        monkeypatch.setattr(training_rows, "most_trees_per_pass", noted)
    else:
        tune(trees_per_pass=n_together)
    counted = [0]
    with monkeypatch.context() as patch:
        _count_codes(patch, counted)
        streamed = dboost.fit(X, target, loss="log_loss", max_iter=n_iterations, memory_limit="256MiB", n_threads=2)
    per_tree = sum(counted[1:]) / counted[0] / (n_iterations * n_classes)
    assert per_tree <= most
    assert n_together is not None or (allowed == [n_classes] and per_tree > 1.0)
    assert n_together != 1 or per_tree > 4.0
    assert saved(streamed) == saved(dboost.fit(X, target, loss="log_loss", max_iter=n_iterations))


@examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(60, 400),
    block=st.sampled_from([16, 64, 1024]),
    n_threads=st.integers(1, 3),
    n_together=st.integers(1, 4),
    n_staying=st.integers(0, 2),
    options=st.sampled_from([{}, {"subsample": 0.6}, {"sample_weight": "w"}, {"max_depth": 3, "max_leaf_nodes": None}]),
)
def test_however_trees_share_passes(
    folder: Path, n: int, block: int, n_threads: int, n_together: int, n_staying: int, options: dict[str, Any]
) -> None:
    frame = mixed_frame(n, seed=n)
    settings: dict[str, Any] = {"features": NUMERIC, "max_iter": 2, "max_leaf_nodes": 6, "min_samples_leaf": 3} | options
    with tuned(block_rows=block, trees_per_pass=n_together, cached_blocks=n_staying, cached_file_bytes=0):
        kept = dboost.fit(frame, "grade", **settings)
        streamed = dboost.fit(frame, "grade", n_threads=n_threads, memory_limit=LIMIT, **settings)
    assert saved(kept) == saved(streamed)


def test_small_tables_are_left_to_the_system(folder: Path) -> None:
    streamed = dboost.fit(mixed_frame(500), "late", features=NUMERIC, max_iter=2, memory_limit=LIMIT)
    assert (streamed.history["bytes_read"] > 0).all()


def test_a_limit_that_holds_the_rows_leaves_them_in_memory() -> None:
    booster = dboost.fit(mixed_frame(300), "y", features=NUMERIC, max_iter=2, memory_limit="1GiB")
    assert (booster.history["bytes_read"] == 0).all()


@pytest.mark.parametrize("streams", [True, False])
def test_prepared_data_stay_as_they_are(tmp_path: Path, folder: Path, streams: bool) -> None:
    frame = mixed_frame(400)
    place = tmp_path / "prepared"
    dboost.prepare(cut(frame, [150]), "late", place, features=FEATURES, sample_weight="w")
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    assert sorted(name.partition("-")[0] for name in before) == ["dataset.json", "part", "part", "sample"]
    whole = dboost.fit(frame, "late", features=FEATURES, sample_weight="w", max_iter=2, eval_set=frame[:100])
    again = dboost.fit(place, "late", max_iter=2, eval_set=frame[:100], **({"memory_limit": LIMIT} if streams else {}))
    assert saved(whole) == saved(again)
    assert {file.name: file.read_bytes() for file in place.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prepared", "temporary"]


def test_what_shaped_prepared_data_cannot_be_changed(tmp_path: Path) -> None:
    frame = mixed_frame(200)
    place = tmp_path / "prepared"
    dboost.prepare(frame, "y", place, features=NUMERIC, max_bins=32)
    dboost.fit(str(place), "y", features=NUMERIC, max_bins=32, max_iter=1)
    for change in ({"max_bins": 33}, {"features": NUMERIC[:2]}, {"sample_weight": "w"}, {"offset": "x"}):
        ((name, _),) = change.items()
        with pytest.raises(dboost.ParameterError, match=f"{name}=.* does not fit the data: .*prepared was prepared with"):
            dboost.fit(place, "y", **change)
    with pytest.raises(dboost.ParameterError, match="target='late' does not fit the data"):
        dboost.fit(place, "late")
    with pytest.raises(dboost.ParameterError, match="with a target of their own: leave yours out"):
        dboost.fit(place, np.zeros(200))
    with dboost.prepare(frame, "y", features=NUMERIC) as temporary:
        for call in (dboost.fit, dboost.cv):
            with pytest.raises(dboost.ParameterError, match=r"a temporary data set is|client belongs to"):
                call(temporary, client=object())


def test_prepare_overwrites_only_what_it_made(tmp_path: Path) -> None:
    frame = mixed_frame(200)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(dboost.DataError, match="mine is there already and holds no prepared data"):
        dboost.prepare(frame, "y", tmp_path / "mine", features=NUMERIC)
    with pytest.raises(dboost.DBoostError, match=r"cannot write .*absent/here"):
        dboost.prepare(frame, "y", tmp_path / "absent" / "here", features=NUMERIC)
    frame.loc[7, "x"] = np.inf
    with pytest.raises(dboost.DataError):
        dboost.prepare(frame, "y", tmp_path / "new", features=NUMERIC)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("limit", "n_bytes"), [("2GiB", 2**31), ("512 MB", 512 * 10**6), ("1.5g", 1_500_000_000), (4096, 4096), ("64kib", 2**16)]
)
def test_limits_are_sizes(limit: Any, n_bytes: int) -> None:
    assert parse_memory_limit(limit) == n_bytes


@pytest.mark.parametrize(
    "limit", ["", "two", "-1GiB", 0, -5, True, "1XB", float("nan"), float("inf"), [1], "1e3", 2**60, "9" * 30]
)
def test_what_is_no_size_is_refused(limit: Any) -> None:
    with pytest.raises(dboost.ParameterError, match="memory_limit="):
        dboost.fit(mixed_frame(50), "y", features=NUMERIC, memory_limit=limit)


def test_a_budget_that_is_too_small_says_what_it_would_take(folder: Path) -> None:
    frame = mixed_frame(500)
    with pytest.raises(dboost.ParameterError, match=r"memory_limit of 100 KiB is too small .*: it would take .* KiB"):
        dboost.fit(frame, "y", features=NUMERIC, memory_limit="100KiB")
    with pytest.raises(
        dboost.ParameterError, match="memory_limit of 100 bytes is too small for trees of 31 leaves over 4 feat"
    ):
        dboost.fit(cut(frame, [250]), "y", features=NUMERIC, memory_limit=100)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the numbers of rows are added that are read from now on."""
    n_read: list[int] = []
    translate = Reader._translate

    def count(self: Any, i: int, chunk: Any, private: bool) -> Any:
        n_read.append(chunk.n_rows)
        return translate(self, i, chunk, private)

    monkeypatch.setattr(Reader, "_translate", count)
    return n_read


def _numbers(n: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(n, 6)), columns=[*"abcde", "y"])


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("limit", ["1 KiB", "64KiB", 20_000, "300KiB"])
def test_a_limit_far_too_small_is_refused_before_all_rows_are_read(limit: Any, tmp_path: Path, read: list[int]) -> None:
    """By the same sentence wherever the rows are, and it names a limit that suffices."""
    frame = _numbers(30_000)
    for k in range(3):
        frame[10_000 * k : 10_000 * (k + 1)].to_parquet(tmp_path / f"{k}.parquet")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    parquet = [str(tmp_path / f"{k}.parquet") for k in range(3)]
    X, y = frame[[*"abcde"]], frame["y"]
    options: dict[str, Any] = {"max_iter": 1, "memory_limit": limit, "n_threads": 1}
    sentence = r"memory_limit of .* is too small for trees of 31 leaves over 5 features: it would take (.*) with 1 thread$"
    named = set()
    for call in (
        lambda: dboost.fit(dd.from_pandas(frame, npartitions=3), "y", **options),
        lambda: dboost.fit(da.from_array(X.to_numpy(), chunks=(9000, 5)), da.from_array(y.to_numpy(), chunks=9000), **options),
        lambda: dboost.fit(parquet, "y", **options),
        lambda: dboost.fit(str(tmp_path / "*.csv"), "y", **options),
        lambda: dboost.fit(frame, "y", **options),
        lambda: dboost.DBoostRegressor(**options).fit(X, y),
    ):
        read.clear()
        with pytest.raises(dboost.ParameterError, match=sentence) as error:
            call()
        match = re.search(sentence, str(error.value))
        assert match is not None
        named.add(match[1])
        assert len(read) <= 1
        if parse_memory_limit(limit) < 2**10 + 1:
            assert not read
    for least in named:
        assert dboost.fit(parquet, "y", **options | {"memory_limit": least}).n_iter_ == 1


def test_a_limit_far_too_small_for_folds_or_for_reading_is_refused_before_rows_are_read(
    tmp_path: Path, read: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = str(tmp_path / "rows.parquet")
    _numbers(30_000).to_parquet(rows)
    folds = (
        r"memory_limit of 10 KiB is too small for trees of 31 leaves over 5 features: it would take (.*) "
        "with 1 thread in each of 3 fits at the same time"
    )
    reading = "memory_limit of 10 KiB is too small to read and bin 5 features: it would take (.*)"
    limit: dict[str, Any] = {"n_threads": 3, "memory_limit": "10KiB"}
    with pytest.raises(dboost.ParameterError, match=folds + "$") as error:
        dboost.cv(rows, "y", folds=3, max_iter=1, **limit)
    of_folds = re.search(folds, str(error.value))
    with pytest.raises(dboost.ParameterError, match=reading + "$") as error:
        dboost.prepare(rows, "y", tmp_path / "data", **limit)
    of_reading = re.search(reading, str(error.value))
    assert of_folds is not None and of_reading is not None and not (tmp_path / "data").exists()
    command = [rows, "--target", "y", "--memory-limit", "10KiB", "--set", "n_threads=3"]
    prepare = ["prepare", *command, "--output", str(tmp_path / "data")]
    for arguments, told in (["cv", *command, "--folds", "3"], folds), (prepare, reading):
        assert main(arguments) == UNUSABLE
        assert re.search("--" + told.replace("_", "-", 1), capsys.readouterr().err)
    assert not read
    with dboost.prepare(rows, "y", tmp_path / "data", memory_limit=of_reading[1]) as data:
        assert data.n_rows == 30_000
        with pytest.raises(dboost.ParameterError, match=folds + "$") as error:
            dboost.cv(data, folds=3, max_iter=1, **limit)
        assert of_folds[0] == str(error.value)
    assert len(dboost.cv(rows, "y", folds=3, max_iter=1, **limit | {"memory_limit": of_folds[1]}).boosters) == 3


def test_few_values_need_little_memory() -> None:
    """A limit is refused only if it is certainly too small: columns of two values make small histograms."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 2, (20_000, 30)).astype(float)).rename(columns=str)
    frame["y"] = frame["0"] + frame["1"]
    options: dict[str, Any] = {"max_iter": 2, "n_threads": 1}
    booster = dboost.fit(dd.from_pandas(frame, npartitions=2), "y", memory_limit="900KiB", **options)
    assert booster.sha256 == dboost.fit(frame, "y", **options).sha256
