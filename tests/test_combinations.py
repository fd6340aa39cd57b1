"""Every combination of table, parameters and front end either fits and keeps the guarantees, or is rejected with one sentence.

`tests.helpers.combinations` draws the calls. The environment variable COMBINATIONS is the number of draws; a long run is

    COMBINATIONS=2000 pytest tests/test_combinations.py -m "" -s

The draw and the blob for `@reproduce_failure` that hypothesis prints repeat a failure.
"""

from __future__ import annotations

import os
import pickle
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from hypothesis import event, given, settings

import dboost
from dboost import Booster, DBoostError
from dboost.session import engines as fused_engine
from dboost.session.memory import Budget
from dboost.shards import shard_spec
from tests.helpers.clusters import threads_cluster
from tests.helpers.combinations import AGAIN, CATEGORICAL, EMPTY, Draw, draws
from tests.helpers.fits import cut, saved

#: The expected fraction of draws that fit, a lower bound.
SHARE = 0.8


class Killed(BaseException):
    """Stands for a killed process."""


@pytest.fixture(autouse=True)
def small_things(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use several threads for small tables, and short blocks in files."""
    monkeypatch.setattr(fused_engine, "SMALL", 0)
    monkeypatch.setattr(shard_spec, "BLOCK_ROWS", 32)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster(2, 1) as client:
        yield client


# How a draw is called.


def matrix(features: pd.DataFrame) -> np.ndarray:
    """Return a frame as an array: of floats, if it contains no text."""
    if all(pd.api.types.is_numeric_dtype(dtype) for dtype in features.dtypes):
        return features.to_numpy(np.float64, na_value=np.nan)
    return features.to_numpy(object)


def _fails(i: int) -> pd.DataFrame:
    """A function that reads partitions and fails."""
    raise KeyError("Brugge")


def as_front(draw: Draw, front: str, frame: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """Return data, target, weight and offset in the form that the front end expects."""
    if front in ("numpy", "dask array"):
        X = matrix(frame[draw.names])
        given = {"data": X, "target": frame.get("y"), "sample_weight": frame.get("w"), "offset": frame.get("o")}
        given = {name: np.asarray(value) if value is not None else None for name, value in given.items()}
        if front == "numpy":
            return given
        borders = np.diff([0, *sorted(draw.cuts), len(X)]) if max(draw.cuts, default=0) <= len(X) else [len(X)]
        chunks = tuple(int(size) for size in borders)
        wrapped = {
            name: da.from_array(value, chunks=(chunks,))
            for name, value in given.items()
            if value is not None and name != "data"
        }
        return given | wrapped | {"data": da.from_array(X, chunks=(chunks, X.shape[1]))}
    roles = {"target": "y", "sample_weight": "w" if draw.weight else None, "offset": "o" if draw.offset else None}
    if front in ("pandas", "polars", "arrow") and draw.apart and "y" in frame:
        roles = {name: None if column is None else frame[column] for name, column in roles.items()}
        frame = frame[draw.names]
    data: Any = frame
    if front == "polars":
        data = pl.from_pandas(frame)
    elif front == "arrow":
        data = pa.Table.from_pandas(frame, preserve_index=False)
        for name, kind in zip(draw.names, draw.columns, strict=True):
            if kind == "categories of floats" and name in frame:  # here missing values are a NaN among the categories
                codes = frame[name].cat.codes.to_numpy()
                values = pa.array([*frame[name].cat.categories, np.nan])
                column = pa.DictionaryArray.from_arrays(pa.array(codes % len(values), pa.int8()), values)
                data = data.set_column(data.column_names.index(name), name, column)
    elif front == "dask":
        data = cut(frame, draw.cuts)
        if draw.mistake == "the loading code fails":
            data = dd.from_map(_fails, range(2), meta=frame.iloc[:0])
    elif front == "parquet":
        data = folder / f"{len(list(folder.iterdir()))}.parquet"
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), data, row_group_size=50)
    return {"data": data, **roles}


def watched_by(draw: Draw, front: str) -> dict[str, Any]:
    """Return the evaluation sets, in the form that goes with the training data."""
    if draw.watched is None:
        return {}
    sets = {}
    for number in range(1 if draw.watched == "one" else 2):
        frame = draw.table(2 + number, 60)
        if draw.mistake == "evaluation set without a feature":
            frame = frame.drop(columns="c0")
        if draw.mistake == "evaluation set with text for numbers":
            frame = frame.assign(c0="text")
        apart = not draw.is_named or (front in ("pandas", "polars", "arrow") and draw.apart)
        if not apart:
            sets[f"set {number}"] = frame
            continue
        features = [name for name in draw.names if name in frame]
        X = frame[features] if draw.is_named else matrix(frame[features])
        sets[f"set {number}"] = (X, frame["y"], frame.get("w"), frame.get("o"))
    return {"eval_set": sets if draw.watched == "two" else sets["set 0"]}


def earlier_model(draw: Draw, folder: Path) -> Booster:
    """Return a model of other rows, to start from."""
    settings = replace(draw, mistake=None).keywords()
    other = ("arcbites", "early_stopping_rounds", "eval_metric", "memory_limit")
    kept = {name: value for name, value in settings.items() if name not in other}
    roles = as_front(draw, "pandas" if draw.is_named else "numpy", draw.table(1, max(draw.n_rows // 2, 10)), folder)
    return dboost.fit(**roles, **kept | {"max_iter": 2}, progress=False)


def call(draw: Draw, earlier: Booster | None, folder: Path, front: str | None = None, **more: Any) -> Booster:
    """Call `dboost.fit` as drawn, with some keywords changed."""
    front = front or draw.front
    frame = draw.table()
    frame = frame if draw.mistake is None else draw.spoiled(frame)
    keywords = {"progress": False} | draw.keywords()
    if draw.earlier == "refit_leaves":
        mistake = draw.mistake if isinstance(draw.mistake, dict) else {}
        keywords = {name: keywords[name] for name in ("n_threads", *mistake) if name in keywords}
        keywords |= {"start_from": earlier, "refit_leaves": True} | mistake
    else:
        keywords = watched_by(draw, front) | keywords
        if draw.earlier is not None:
            bins = "kept" if "kept" in draw.earlier else "new"
            keywords = {"start_from": earlier, "continue_bins": bins} | keywords
    keywords |= more
    if front == "prepared" and draw.earlier != "refit_leaves":  # evaluation frames have the columns of the prepared data set
        draw = replace(draw, apart=False)
    given = as_front(draw, "pandas" if front == "prepared" else front, frame, folder)
    if front != "prepared" or draw.earlier == "refit_leaves":
        return dboost.fit(**given, **keywords)
    shaping = ("features", "categorical_features", "max_bins", "start_from", "continue_bins")
    dboost.prepare(
        **given,
        path=folder / "prepared",
        **{name: keywords[name] for name in shaping if name in keywords},
        random_state=keywords.get("random_state", 0),
    )
    kept = {name: value for name, value in keywords.items() if name not in ("features", "categorical_features")}
    return dboost.fit(folder / "prepared", given["target"] if isinstance(given["target"], str) else None, **kept)


# Properties of every fitted model.


def plain(prediction: Any) -> np.ndarray:
    """Return predictions of any kind as an array."""
    found = prediction.compute() if hasattr(prediction, "compute") else prediction
    found = found.to_pandas() if isinstance(found, pa.Table | pa.ChunkedArray | pa.Array) else found
    return np.asarray(found.to_numpy() if hasattr(found, "to_numpy") else found)


def check_predictions(draw: Draw, booster: Booster, folder: Path) -> None:
    n_classes = 0 if booster.classes_ is None else len(booster.classes_)
    table, rng = draw.table(9, 70), np.random.default_rng(draw.seed)
    order = rng.permutation(len(table))
    turned = table.iloc[order].reset_index(drop=True)
    if draw.is_named:
        turned = turned[[*rng.permutation(draw.names)]].assign(more=1)
    front = "pandas" if draw.front == "prepared" else draw.front

    def data(frame: pd.DataFrame) -> Any:
        return as_front(replace(draw, apart=False), front, frame, folder)["data"]

    asked: list[Callable[[Any], Any]] = [lambda X: booster.predict(X), lambda X: booster.predict(X, raw_score=True)]
    shapes: list[tuple[int, ...]] = [(70,), (70, n_classes) if n_classes > 2 else (70,)]
    if n_classes:
        asked.append(booster.predict_proba)
        shapes.append((70, n_classes))
        costs = rng.random((n_classes, n_classes))
        asked.append(lambda X: booster.decide(X, costs))
        shapes.append((70,))
    for ask, shape in zip(asked, shapes, strict=True):
        found = plain(ask(data(table)))
        assert found.shape == shape
        if found.dtype.kind == "f":
            assert np.isfinite(found).all()
        np.testing.assert_array_equal(plain(ask(data(turned))), found[order])
    if n_classes:
        np.testing.assert_allclose(plain(booster.predict_proba(data(table))).sum(axis=1), 1.0)
        assert set(plain(booster.predict(data(table))).tolist()) <= set(booster.classes_.tolist())
    trained = plain(booster.predict(data(draw.table()), raw_score=True))
    assert np.isfinite(trained).all() and len(trained) == draw.n_rows


def check_kinds(draw: Draw, booster: Booster, folder: Path) -> None:
    """Text in place of numbers is rejected, and numbers in place of text."""
    kind = draw.columns[0]
    of_numbers = kind not in CATEGORICAL or kind in ("categories of numbers", "categories of floats")
    if not draw.is_named or kind in EMPTY or not draw.table()["c0"].notna().any():
        return
    front = "pandas" if draw.front == "prepared" else draw.front
    table = draw.table(9, 70)[draw.names].assign(c0="text" if of_numbers else 5)
    changed = replace(draw, columns=("text", *draw.columns[1:]), mistake=None)
    with pytest.raises(DBoostError) as caught:
        plain(booster.predict(as_front(changed, front, table, folder)["data"]))
    check_refusal(caught.value)
    assert "c0" in str(caught.value)


def check_stored(draw: Draw, booster: Booster, folder: Path) -> None:
    table = draw.table(9, 70)
    X = as_front(draw, "pandas" if draw.is_named else "numpy", table, folder)["data"]
    expected = plain(booster.predict(X, raw_score=True))
    for name in ("model.json", "model.dboost"):
        booster.save(folder / name)
        loaded = dboost.load(folder / name)
        assert loaded == booster
        np.testing.assert_array_equal(plain(loaded.predict(X, raw_score=True)), expected)
        np.testing.assert_array_equal(plain(loaded.predict(X)), plain(booster.predict(X)))
        before = (folder / name).read_bytes()
        loaded.save(folder / name)
        assert (folder / name).read_bytes() == before
    again = pickle.loads(pickle.dumps(booster))
    assert saved(again) == saved(booster)
    np.testing.assert_array_equal(plain(again.predict(X)), plain(booster.predict(X)))


def groups(draw: Draw) -> list[set[int]] | None:
    """Return the features that may occur on one path."""
    wanted, n = draw.options.get("interaction_cst"), len(draw.columns)
    if wanted is None:
        return None
    if wanted == "no_interactions":
        return [{j} for j in range(n)]
    if wanted == "pairwise":
        return [{i, j} for i in range(n) for j in range(n)]
    return [*map(set, wanted), set(range(n)) - {j for group in wanted for j in group}]


def check_trees(draw: Draw, booster: Booster, n_before: int) -> None:
    nodes = booster.to_frame()
    allowed = groups(draw)
    number = {name: j for j, name in enumerate(booster.feature_names_in_)}
    for _, tree in nodes[nodes["iteration"] > n_before].groupby(["iteration", "class"], dropna=False):
        leaves = tree[tree["feature"].isna()]
        assert np.isfinite(tree["value"].dropna()).all()
        most = draw.options.get("max_leaf_nodes", 31)
        assert most is None or len(leaves) <= most
        assert leaves["depth"].max() <= (draw.options.get("max_depth") or np.inf)
        if len(leaves) > 1:
            assert leaves["count"].min() >= draw.options.get("min_samples_leaf", 20)
        if allowed is not None:
            children = tree.set_index("node")
            paths = [(0, frozenset())]
            while paths:
                node, met = paths.pop()
                row = children.loc[node]
                if row["left"] < 0:
                    assert any(met <= group for group in allowed)
                else:
                    met |= {number[row["feature"]]}
                    paths += [(row["left"], met), (row["right"], met)]
    for name, sign in draw.options.get("monotonic_cst", {}).items():
        table = draw.table(9, 20)
        column = np.sort(np.concatenate([draw.table()[name].dropna().to_numpy(np.float64), [-1e308, 0.0, 1e308]]))
        grid = table.loc[np.repeat(table.index, len(column))].reset_index(drop=True)
        grid[name] = np.tile(column, len(table))
        X = grid[draw.names] if draw.is_named else matrix(grid[draw.names])
        curves = plain(booster.predict(X, raw_score=True, iteration_range=(n_before, booster.n_iter_)))
        assert (sign * np.diff(curves.reshape(len(table), -1), axis=1) >= 0).all()


def check_model(draw: Draw, booster: Booster, earlier: Booster | None, folder: Path) -> None:
    if draw.earlier == "refit_leaves":
        assert earlier is not None and booster.n_iter_ == earlier.n_iter_
    else:
        n_before = 0 if earlier is None else earlier.n_iter_
        grown = booster.n_iter_ - n_before
        assert 0 <= grown <= draw.options["max_iter"]
        if "early_stopping_rounds" not in draw.options and draw.arcbites is None:
            assert grown == draw.options["max_iter"]
        check_trees(draw, booster, n_before)
    check_predictions(draw, booster, folder)
    check_kinds(draw, booster, folder)
    check_stored(draw, booster, folder)


def check_refusal(error: DBoostError) -> None:
    """The message is one readable sentence."""
    text = str(error)
    assert 15 <= len(text) <= 400, text
    assert "\n" not in text and "Traceback" not in text, text
    assert not re.search(r"0x[0-9a-f]{6}|object at|<class|array\(|dtype=|Error\(", text), text
    assert len(text.split()) >= 3, text


# The same model from another way of calling.


@contextmanager
def rows_in_files() -> Iterator[None]:
    """Make every memory limit too small for the rows, also for those of evaluation sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "holds_rows", lambda *_: False)
        patch.setattr(Budget, "retained", 0)
        yield


def by_another_way(draw: Draw, how: str, earlier: Booster | None, folder: Path) -> Booster | None:
    """Return the model of the other way; None if that way is not possible for the draw."""
    refits, binned = draw.earlier == "refit_leaves", draw.front == "prepared"
    is_global = draw.options.get("split_proposal", "global") == "global"
    if how == "threads":
        return call(draw, earlier, folder, n_threads=1 + draw.options.get("n_threads", 2) % 3)
    if how == "partitions" and not binned:
        return call(draw, earlier, folder, "dask" if draw.is_named else "dask array")
    if how == "roles" and draw.front in ("pandas", "polars", "arrow"):
        return call(replace(draw, apart=not draw.apart), earlier, folder)
    if how == "streamed" and is_global and not refits:
        with rows_in_files():
            return call(draw, earlier, folder, memory_limit="64MiB")
    if how == "prepared" and is_global and draw.is_named and not (refits or draw.arcbites):
        return call(draw, earlier, folder, "prepared")
    if how == "killed" and not refits:
        keeping: dict[str, Any] = {"checkpoint": folder / "run", "checkpoint_every": 1}

        def kill(now: dboost.Iteration) -> None:
            if now.iteration - n_before == 2:
                raise Killed

        n_before = 0 if earlier is None else earlier.n_iter_
        with suppress(Killed):
            call(draw, earlier, folder, callbacks=[kill], **keeping)
        return call(draw, earlier, folder, **keeping)
    return None


def attempt(draw: Draw, client: Client | None = None) -> str:
    """Try a call, check the result, and describe it."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.filterwarnings("error", module="dboost")
        warnings.filterwarnings("ignore", "no eval_set was given")
        warnings.filterwarnings("ignore", "the target holds .* different integers")
        warnings.simplefilter("ignore", dboost.DriftWarning)
        folder = Path(name)
        try:
            earlier = None if draw.earlier is None else earlier_model(draw, folder)
            booster = call(draw, earlier, folder)
        except KeyError:
            assert draw.mistake == "the loading code fails"
            if client is not None:
                with pytest.raises(DBoostError, match="could not be read: KeyError: 'Brugge'"):
                    call(draw, earlier, folder, client=client)
            return "an error of the loading code"
        except DBoostError as error:
            check_refusal(error)
            if client is not None and draw.front == "dask":
                with pytest.raises(DBoostError) as caught:
                    call(draw, earlier, folder, client=client)
                check_refusal(caught.value)
            return f"{type(error).__name__}: {_kind(str(error))}"
        assert draw.mistake is None, f"{draw.mistake!r} was not refused"
        check_model(draw, booster, earlier, folder)
        for how in draw.again:
            other = by_another_way(draw, how, earlier, folder)
            if other is not None:
                event(f"again: {how}")
                assert saved(other) == saved(booster), f"{how} gives another model"
        if client is not None and draw.front != "prepared":
            with rows_in_files():
                front = draw.front if not draw.is_named else "dask"
                other = call(draw, earlier, folder, front, client=client)
            assert saved(other) == saved(booster), "the cluster gives another model"
        return "fits"


def _kind(message: str) -> str:
    """Return a message without the details of the draw."""
    return re.sub(r"'[^']*'|/\S*|[\d.,]+(e[+-]?\d+)?", "…", message)[:70]


def examine(n_draws: int, client: Client | None = None, derandomize: bool = False) -> None:
    """Draw that many calls, print the results, and check that enough of them fit."""
    outcomes: Counter[str] = Counter()

    @settings(max_examples=n_draws, print_blob=True, derandomize=derandomize or settings().derandomize)
    @given(draws(again=AGAIN if client is None else ()))
    def one(draw: Draw) -> None:
        outcome = attempt(draw, client)
        outcomes[outcome] += 1
        event(outcome)

    try:
        one()
    finally:
        total = outcomes.total()
        print(f"\n{total} calls, of which {outcomes['fits']} fitted; refused:")
        for reason, count in outcomes.most_common():
            if reason != "fits":
                print(f"{count:6d}  {reason}")
    # Four standard deviations below the expected fraction are no accident.
    assert outcomes["fits"] >= (SHARE - 4 * (SHARE * (1 - SHARE) / total) ** 0.5) * total


def number(default: int) -> int:
    return int(os.environ.get("COMBINATIONS", default))


def test_calls_fit_or_are_refused() -> None:
    """Few calls, the same every time: most of them compile kernels of their own, which are found in the cache afterwards."""
    examine(6, derandomize=True)


@pytest.mark.slow
def test_many_calls_fit_or_are_refused() -> None:
    examine(number(60))


@pytest.mark.slow
def test_calls_on_a_cluster_fit_or_are_refused(client: Client) -> None:
    examine(max(number(100) // 10, 10), client)
