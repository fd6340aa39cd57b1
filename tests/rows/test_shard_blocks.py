"""Training rows as blocks of a store: the same in memory and in files, and what no model shows: copies, reads and writes."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.losses import SquaredError
from dboost.losses.classification import LogLossTerms, SoftmaxTerms
from dboost.losses.projection import ProjectedTerms
from dboost.rows.block_file import FieldRef
from dboost.rows.row_sample import Sample
from dboost.rows.row_store import InFiles, RowStore
from dboost.rows.shard import RowIds, Shard, tiles_of
from dboost.rows.shard_spec import ShardSpec, plan_layout
from dboost.shards.shard_blocks import ShardBlocks, rows_in_memory
from tests.helpers.examples import examples
from tests.helpers.tables import make_table, spec_of

TERMS = SquaredError().terms()
N = 100
TABLE = make_table([5, 300, 2, 2, 255], N, missing=0.0)
SPEC = spec_of(TABLE.layout, weighted=True)
#: The same layout, with a categorical feature.
CATEGORIES = plan_layout(TABLE.layout.n_bins, np.array([True] + [False] * 4))
#: Global ids of the rows, in two runs.
IDS = RowIds(np.array([[1000, 30], [50, 70]]))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks")


def start() -> dict[str, np.ndarray]:
    """Return the fields of the rows before training."""
    rng, codes = np.random.default_rng(1), TABLE.stored()
    fields = {"narrow": codes.narrow, "wide": codes.wide, "target": rng.normal(size=N), "weight": rng.random(N) + 0.5}
    return {name: np.ascontiguousarray(array) for name, array in (fields | {"raw": rng.normal(size=(1, N))}).items()}


def kept() -> ShardBlocks:
    rows = rows_in_memory(start(), SPEC, IDS)
    rows.shard.fill_tiles(0, N)
    return rows


def stored(root: Path, block_rows: int, spec: ShardSpec = SPEC, fields: dict[str, np.ndarray] | None = None) -> RowStore:
    fields = start() if fields is None else fields
    store = RowStore(spec.groups(in_memory=False), [N], InFiles(block_rows, root))
    constant = spec.constant_state(fields["weight"], fields["raw"].shape)
    store.append(N, fields | constant | {"tiles": tiles_of(TABLE.stored(), TABLE.layout)})
    return store


def content(rows: ShardBlocks) -> dict[str, np.ndarray]:
    """Return codes, ids and the fields that memory and files have."""
    found: dict[str, list[np.ndarray]] = {}
    for shard in rows.walk(rows.store.names):
        for name in ("target", "weight", "raw", "gradient", "hessian", "leaf"):
            found.setdefault(name, []).append(shard.fields[name].astype(np.float64))
        found.setdefault("narrow", []).append(shard.codes.narrow.copy())
        found.setdefault("wide", []).append(shard.codes.wide.copy())
        found.setdefault("ids", []).append(shard.row_ids(0, shard.n_rows))
        drawn = shard.sampled_rows(Sample(7, 2**63))
        assert drawn is not None
        found.setdefault("drawn", []).append(shard.row_ids(0, shard.n_rows)[drawn])
    return {name: np.concatenate(parts, axis=-1) for name, parts in found.items()}


def test_arrays_in_memory_are_not_copied() -> None:
    fields = start()
    rows = rows_in_memory(fields, SPEC, IDS)
    for name, array in fields.items():
        assert np.shares_memory(rows.shard.fields[name], array)
    assert np.shares_memory(rows.shard.codes.narrow, fields["narrow"]) and rows.shard.bins is rows.shard.codes
    assert rows.shard.tiles.ctypes.data % 64 == 0


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        ([0.0, 1.0, 255.0], np.uint8), ([0.0, 256.0, 1.0], np.float32), ([-0.0, 1.0, 1.0], np.float32),
        ([0.5, -1.0, 2.0**100], np.float32), ([0.1, 0.0, 1.0], np.float64), ([2.0**200, 0.0, 1.0], np.float64),
    ],
)  # fmt: skip
def test_targets_in_memory_have_as_few_bytes_as_hold_them(target: list[float], dtype: type) -> None:
    """A loss whose leaf values are quantiles of residuals reads them as float64."""
    for compacts in (True, False):
        fields = start() | {"target": np.resize(target, N)}
        shard = rows_in_memory(fields, replace(SPEC, compacts_target=compacts), IDS).shard
        assert shard.fields["target"].dtype == (dtype if compacts else np.float64)
        assert shard.target().dtype == np.float64 and shard.target().tobytes() == fields["target"].tobytes()
        assert shard.target(slice(1, 3)).tobytes() == fields["target"][1:3].tobytes()


@examples(40)
@given(
    seed=st.integers(0, 2**32 - 1),
    fraction=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    block_rows=st.sampled_from([1, 16, 64, 128]),
    n_staying=st.integers(0, 2),
    n_threads=st.integers(1, 3),
)
def test_some_rows_are_those_of_memory(
    root: Path, seed: int, fraction: float, block_rows: int, n_staying: int, n_threads: int
) -> None:
    """Their current state is kept, also that of resident blocks, which files do not have."""
    values = np.full((1, 8), 0.25)
    chosen = np.random.default_rng(seed).random(2000) < fraction

    def stays(ids: np.ndarray) -> np.ndarray:
        return chosen[ids]

    whole = kept()
    whole.advance_rows(TERMS, values)
    expected = content(whole)
    subset = whole.subset(stays)
    is_kept = chosen[expected["ids"]]
    found = None if subset is None else content(subset)
    store, parts = stored(root, block_rows), []
    for thread in range(n_threads):
        share = ShardBlocks(store, SPEC, IDS, thread, n_threads, n_staying=n_staying)
        share.advance_rows(TERMS, values)
        some = share.subset(stays)
        if some is not None:
            parts.append(content(some))
            assert (some is share) == (some.n_rows == share.n_rows)
            some.close()
    assert (subset is whole) == is_kept.all() and (subset is None) == (not is_kept.any())
    for name, array in expected.items():
        wanted = array[chosen[array]] if name == "drawn" else array[..., is_kept]
        if found is not None:
            np.testing.assert_array_equal(found[name], wanted, name)
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts], axis=-1), wanted, name)
    assert (found is None) == (not parts)
    store.close()


@pytest.mark.parametrize(
    ("terms", "changes"),
    [
        (SquaredError().terms(), {"constant_hessian": True, "integer_weights": True}),
        (LogLossTerms(), {}),
        (LogLossTerms(counts_influence=True), {"integer_weights": True, "constant_hessian": True, "weights_as_hessian": True}),
        (LogLossTerms(counts_influence=True), {"weights_as_hessian": True}),
        (
            ProjectedTerms(SoftmaxTerms(), np.array([1, -1], "f4"), True),
            {"n_outputs": 2, "width": 2, "weights_as_hessian": True},
        ),
    ],
    ids=["counts", "weights", "counts as Hessians", "weights as Hessians", "along a direction"],
)
def test_statistics_of_gradients_are_those_of_memory(root: Path, terms: Any, changes: dict[str, Any]) -> None:
    """They include those of options: influences, noise of gradients."""
    spec = spec_of(CATEGORIES, weighted=True, **changes)
    fields = start() | {"target": np.arange(N) % 2.0, "weight": 1.0 + np.arange(N) // 8}
    fields["raw"] = np.resize(fields["raw"], (spec.n_outputs, N))
    if not spec.integer_weights:
        fields["weight"] += 0.3
    values, store = np.full((spec.n_outputs, 8), 0.25), stored(root, 16, spec, fields)
    found, expected = ShardBlocks(store, spec, IDS), rows_in_memory(fields, spec, IDS)
    for _ in range(2):
        of_files, of_memory = found.advance_rows(terms, values), expected.advance_rows(terms, values)
        assert of_files is not None and of_memory is not None and of_memory.noise is not None
        for name, value in vars(of_memory).items():
            np.testing.assert_array_equal(getattr(of_files, name), value, name)
    gradient, hessian, _ = expected.shard.split_arrays(0)
    squares, hessians = gradient.astype(float) ** 2, np.ones(N) if hessian is None else hessian.astype(float)
    times = fields["weight"] if spec.has_repeat_count else 1.0
    assert of_memory.noise[0].ratio == pytest.approx((squares * times).sum() / (hessians * times).sum(), rel=3e-4)  # 13 bits
    store.close()


@pytest.mark.parametrize("n_staying", [0, 2, 9])
def test_resident_blocks_are_read_once_and_written_when_unloaded(root: Path, n_staying: int) -> None:
    store = stored(root, 16)  # seven blocks
    rows = ShardBlocks(store, SPEC, IDS, n_staying=n_staying)
    n_resident, before, expected = min(n_staying, 7), store.files[2].bytes_written, kept()
    values = np.full((1, 8), 0.5)
    for k in range(3):
        n_read = rows.bytes_read
        rows.advance_rows(TERMS, values)
        expected.advance_rows(TERMS, values)
        streamed = (rows.bytes_read - n_read) - (sum(file.stride for file in store.files) * n_resident if k == 0 else 0)
        assert (streamed > 0) == (n_resident < 7) and streamed <= (7 - n_resident) * sum(file.stride for file in store.files)
    assert (store.files[2].bytes_written > before) == (n_resident < 7)
    rows.unload()
    other = ShardBlocks(store, SPEC, IDS)  # reads what is in the files
    np.testing.assert_equal(content(other), content(expected))
    rows.advance_rows(TERMS, values)
    expected.advance_rows(TERMS, values)
    np.testing.assert_equal(content(other), content(expected))
    store.close()


def test_a_thread_reads_ahead_into_two_buffers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, n_buffers, n_read = stored(root, 16), 0, 0
    arrived = threading.Condition()
    make, read = store.buffers, store.read

    def counted() -> list[np.ndarray]:
        nonlocal n_buffers
        n_buffers += 1
        return make()

    def noted(block: int, *arguments: object) -> int:
        nonlocal n_read
        n_bytes = read(block, *arguments)  # type: ignore[arg-type]
        with arrived:
            assert block == n_read % 7
            n_read += 1
            arrived.notify()
        return n_bytes

    monkeypatch.setattr(store, "buffers", counted)
    monkeypatch.setattr(store, "read", noted)
    rows = ShardBlocks(store, SPEC, IDS)
    reads: list[FieldRef] = ["target"]
    seen = [k for k, _ in enumerate(rows.walk(reads)) if _is_read(arrived, lambda k=k: n_read >= min(k + 2, 7))]
    assert (seen, n_buffers, n_read) == (list(range(7)), 2, 7)
    # A pass that is left early stops its thread.
    next(blocks := rows.walk(reads))
    blocks.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "dboost-read"]
    store.close()


def _is_read(arrived: threading.Condition, happened: object) -> bool:
    """Return whether the next block is read while this one is processed."""
    with arrived:
        return arrived.wait_for(happened, 10)  # type: ignore[arg-type]


def test_blocks_in_memory_start_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    (shard,) = kept().walk(["tiles"])
    assert isinstance(shard, Shard) and shard.n_rows == N
