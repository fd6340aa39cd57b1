"""Training rows: the same in memory and in files; copies, reads and writes; when memory is released."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.losses import SquaredError
from dboost.losses.classification import LogLossTerms, SoftmaxTerms
from dboost.losses.projection import ProjectedTerms
from dboost.losses.terms import KernelTerms
from dboost.params import Parameters
from dboost.rows.block_file import FieldRef
from dboost.rows.row_sample import Sample
from dboost.rows.row_store import InFiles, RowStore
from dboost.rows.shard import RowIds, Shard, tiles_of
from dboost.rows.shard_spec import ShardSpec, plan_layout
from dboost.rows.statistics import Statistic
from dboost.session.bites import BiteStore
from dboost.session.encoded_rows import EncodedStore, rows_in_memory
from dboost.session.training_rows import TrainingRows
from dboost.trees.tree_growth import Round
from dboost.trees.tree_rounds import GrowOrder, RoundSumsAndSplits, TreeRounds
from tests.helpers.examples import examples
from tests.helpers.growth import Problem
from tests.helpers.sharded_engine import training_rows
from tests.helpers.tables import make_table, spec_of

TERMS = SquaredError().pass_terms()
N = 100
#: Rows of the first partition.
N_KEPT = 40
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


def in_memory(n_threads: int = 1, is_kept: Callable[[np.ndarray], np.ndarray] | None = None) -> TrainingRows:
    return training_rows(rows_in_memory(start(), SPEC, IDS), n_threads, is_kept=is_kept)


def whole_shard(encoded: EncodedStore) -> Shard:
    shard = training_rows(encoded).shard
    assert shard is not None
    return shard


def stored(root: Path, block_rows: int, spec: ShardSpec = SPEC, fields: dict[str, np.ndarray] | None = None) -> RowStore:
    fields = start() if fields is None else fields
    store = RowStore(spec.field_groups(in_memory=False), [N], InFiles(block_rows, root))
    constant = spec.constant_state(fields["weight"], fields["raw"].shape)
    store.append(N, fields | constant | {"tiles": tiles_of(TABLE.stored(), TABLE.layout)})
    return store


def content(rows: TrainingRows) -> dict[str, np.ndarray]:
    """Return codes, ids and the fields that memory and files have."""
    parts: dict[str, list[np.ndarray]] = {}
    shards = (shard for k in range(rows.shares.n) for shard, *_ in rows.ranges(k, rows.store.names))
    for shard in shards if rows.shard is None else [rows.shard]:
        for name in ("target", "weight", "raw", "gradient", "hessian", "leaf"):
            parts.setdefault(name, []).append(shard.fields[name].astype(np.float64))
        parts.setdefault("narrow", []).append(shard.codes.narrow.copy())
        parts.setdefault("wide", []).append(shard.codes.wide.copy())
        parts.setdefault("ids", []).append(shard.row_ids(0, shard.n_rows))
        drawn = shard.sampled_rows(Sample(7, 2**63))
        assert drawn is not None
        parts.setdefault("drawn", []).append(shard.row_ids(0, shard.n_rows)[drawn])
    return {name: np.concatenate(arrays, axis=-1) for name, arrays in parts.items()}


def test_arrays_in_memory_are_not_copied() -> None:
    fields = start()
    shard = whole_shard(rows_in_memory(fields, SPEC, IDS))
    for name, array in fields.items():
        assert np.shares_memory(shard.fields[name], array)
    assert np.shares_memory(shard.codes.narrow, fields["narrow"]) and shard.tree_codes is shard.codes
    assert shard.tiles.ctypes.data % 64 == 0


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
        shard = whole_shard(rows_in_memory(fields, replace(SPEC, compacts_target=compacts), IDS))
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
    memory = in_memory(n_threads, chosen.__getitem__)
    files = training_rows(EncodedStore(stored(root, block_rows), SPEC, IDS), n_threads, n_staying, is_kept=chosen.__getitem__)
    memory.advance(0, values, TERMS)
    expected = content(memory)
    is_kept = chosen[expected["ids"]]
    for rows in (memory, files):
        rows.advance(0, values, TERMS)
        kept = rows.keep_only([0])
        assert (kept is rows) == is_kept.all() and (kept is None) == (not is_kept.any())
        if kept is not None:
            remaining = content(kept)
            for name, array in expected.items():
                wanted = array[chosen[array]] if name == "drawn" else array[..., is_kept]
                np.testing.assert_array_equal(remaining[name], wanted, name)
            kept.close()


@pytest.mark.parametrize(
    ("terms", "changes"),
    [
        (SquaredError().pass_terms(), {"constant_hessian": True, "integer_weights": True}),
        (KernelTerms(LogLossTerms()), {}),
        (
            KernelTerms(LogLossTerms(), counts_influence=True),
            {"integer_weights": True, "constant_hessian": True, "weights_as_hessian": True},
        ),
        (KernelTerms(LogLossTerms(), counts_influence=True), {"weights_as_hessian": True}),
        (
            ProjectedTerms(KernelTerms(SoftmaxTerms()), np.array([1, -1], "f4"), True),
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
    values = np.full((spec.n_outputs, 8), 0.25)
    files = training_rows(EncodedStore(stored(root, 16, spec, fields), spec, IDS))
    memory = training_rows(rows_in_memory(fields, spec, IDS))
    for number in range(2):
        of_files, of_memory = files.advance(number, values, terms), memory.advance(number, values, terms)
        assert of_memory.noise is not None
        for name, one, other in zip(of_memory._fields, of_files, of_memory, strict=True):
            np.testing.assert_array_equal(one, other, name)
    assert memory.shard is not None
    gradient, hessian, _ = memory.shard.split_arrays(0)
    squares, hessians = gradient.astype(float) ** 2, np.ones(N) if hessian is None else hessian.astype(float)
    times = fields["weight"] if spec.has_repeat_count else 1.0
    assert of_memory.noise[0].ratio == pytest.approx((squares * times).sum() / (hessians * times).sum(), rel=3e-4)  # 13 bits
    files.close()


def test_a_call_that_is_repeated_after_rows_were_dropped_has_the_statistics_of_the_others() -> None:
    rows = in_memory(is_kept=lambda row_ids: row_ids >= 1000)
    values = np.full((1, 8), 0.5)
    rows.advance(0, values, TERMS)
    kept = rows.keep_only([0])
    assert kept is not None
    before, stats = content(kept), kept.advance(0, values, TERMS)
    np.testing.assert_equal(content(kept), before)
    assert stats.max_gradient[0] == np.abs(before["gradient"]).max()


@pytest.mark.parametrize("n_staying", [0, 2, 9])
def test_resident_blocks_are_read_once_and_written_when_unloaded(root: Path, n_staying: int) -> None:
    encoded = EncodedStore(stored(root, 16), SPEC, IDS)  # seven blocks
    store, rows, expected = encoded.store, training_rows(encoded, n_staying=n_staying), in_memory()
    n_resident, before = min(n_staying, 7), store.files[2].bytes_written
    values = np.full((1, 8), 0.5)
    for k in range(3):
        n_read = rows.bytes_read
        rows.advance(k, values, TERMS)
        expected.advance(k, values, TERMS)
        streamed = (rows.bytes_read - n_read) - (sum(file.stride for file in store.files) * n_resident if k == 0 else 0)
        assert (streamed > 0) == (n_resident < 7) and streamed <= (7 - n_resident) * sum(file.stride for file in store.files)
    assert (store.files[2].bytes_written > before) == (n_resident < 7)
    rows.store.unload()
    other = training_rows(encoded)  # reads what is in the files
    np.testing.assert_equal(content(other), content(expected))
    rows.advance(3, values, TERMS)
    expected.advance(3, values, TERMS)
    np.testing.assert_equal(content(other), content(expected))
    rows.close()


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
    rows = training_rows(EncodedStore(store, SPEC, IDS))
    reads: list[FieldRef] = ["target"]
    seen = [k for k, _ in enumerate(rows.ranges(0, reads)) if _is_read(arrived, lambda k=k: n_read >= min(k + 2, 7))]
    assert (seen, n_buffers, n_read) == (list(range(7)), 2, 7)
    # A pass that is left early stops its thread.
    next(blocks := rows.ranges(0, reads))
    blocks.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "dboost-read"]
    rows.close()


def _is_read(arrived: threading.Condition, happened: object) -> bool:
    """Return whether the next block is read while this one is processed."""
    with arrived:
        return arrived.wait_for(happened, 10)  # type: ignore[arg-type]


# Growth.

#: So many rows outside a sample that they are assigned to leaves after a tree is grown.
GROWN = make_table([5, 30, 2, 2, 255], 14_000, missing=0.0)


@pytest.fixture
def two_threads() -> Iterator[TrainingRows]:
    rows = grown_by(2)
    yield rows
    rows.close()


def problem(iteration: int) -> Problem:
    """Return trees of a few of the rows, others in each iteration."""
    parameters = Parameters(max_leaf_nodes=8, min_samples_leaf=3)
    return Problem(GROWN, parameters, 2, with_hessian=True, sample=Sample.of(0.3, 7, iteration))


def grown_by(n_threads: int) -> TrainingRows:
    first = problem(1)
    n, codes = GROWN.n_rows, GROWN.stored()
    fields = {"narrow": codes.narrow, "wide": codes.wide, "target": np.zeros(n), "raw": np.zeros((1, n))}
    spec = spec_of(GROWN.layout, max_leaves=8, n_channels=first.precision.n_channels)
    rows = training_rows(rows_in_memory(fields, spec), n_threads, is_kept=lambda row_ids: row_ids < N_KEPT)
    assert rows.shard is not None and rows.shard.hessian is not None and first.hessian is not None
    rows.shard.gradient[:], rows.shard.hessian[:] = first.gradient, first.hessian
    return rows


leaves = Statistic(lambda shard, first, last: shard.leaf[0, first:last].copy())


def grow_whole(rows: TrainingRows, iteration: int) -> None:
    trees = rows.grower.whole_trees([problem(iteration).task])
    assert trees is not None and next(trees).n_leaves > 4


def grow_in_rounds(rows: TrainingRows, iteration: int) -> None:
    def begin_round(tasks: Sequence[Any], rounds: Mapping[int, Round]) -> Callable[[], RoundSumsAndSplits]:
        def run() -> RoundSumsAndSplits:
            if tasks:
                rows.grower.begin(tasks)
            return {output: rows.grower.sum_histograms(output, request) for output, (request, _) in rounds.items()}, None

        return run

    order = GrowOrder((problem(iteration).task,), GROWN.layout, np.ones(len(GROWN.layout.n_bins), bool), GROWN.n_rows, 4)
    TreeRounds().grow(begin_round, order)


def test_rows_outside_the_sample_are_assigned_before_rows_are_dropped(two_threads: TrainingRows) -> None:
    rows, other = two_threads, grown_by(1)
    for each in (rows, other):
        grow_whole(each, 1)
    expected = np.concatenate(other.statistic(leaves))
    assert rows.shard is not None and (rows.shard.leaf[0] != expected).any(), "they are assigned at once"
    kept = rows.keep_only([0])
    assert kept is not None and kept.shard is not None
    assert kept.shard.leaf[0].tolist() == expected[:N_KEPT].tolist()
    kept.close()


def test_a_tree_in_rounds_after_a_whole_one_is_the_last(two_threads: TrainingRows) -> None:
    other = grown_by(1)
    grow_whole(two_threads, 1)
    for each in (two_threads, other):
        grow_in_rounds(each, 2)
        each.advance(0, np.arange(8.0)[None], TERMS)
    assert two_threads.shard is not None and other.shard is not None
    assert len(np.unique(two_threads.shard.raw)) > 4
    assert two_threads.shard.raw.tobytes() == other.shard.raw.tobytes()


@pytest.mark.parametrize("memory_limit", [None, "4MiB"])
def test_the_rows_of_a_visit_are_released_before_the_next_ones_are_read(
    monkeypatch: pytest.MonkeyPatch, memory_limit: str | None
) -> None:
    arrays: list[weakref.ref[np.ndarray]] = []
    n_alive: list[int] = []
    select = BiteStore.select

    def noted(bites: BiteStore, *arguments: Any) -> EncodedStore | None:
        n_alive.append(sum(array() is not None for array in arrays))
        encoded = select(bites, *arguments)
        assert encoded is not None
        arrays.append(weakref.ref(encoded.store.load()["raw"]))
        return encoded

    monkeypatch.setattr(BiteStore, "select", noted)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 6))
    arcbites = dboost.ArcBites(n_bites=3, trees_per_visit=2, visits=2)
    gc.disable()  # a cycle of references would keep the rows until the next collection
    try:
        dboost.fit(X, X[:, 0] + rng.normal(size=len(X)), arcbites=arcbites, memory_limit=memory_limit, progress=False)
    finally:
        gc.enable()
    assert len(arrays) == 6
    assert n_alive == [0] * 6
