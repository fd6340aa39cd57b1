"""Codes that folds share: each fold has the rows, sums and samples that it would have alone."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.kernels.threads import Team
from dboost.losses import SquaredError
from dboost.metrics.metric import LossMagnitude
from dboost.rows import shared_codes
from dboost.rows.row_sample import Sample
from dboost.rows.row_store import RowStore
from dboost.rows.shard import BinnedColumns, RowIds, Shard, columns_among
from dboost.rows.shared_codes import SharedCodes
from dboost.session import evaluation_rows, table_rows
from dboost.session.encoded_rows import EncodedStore, rows_in_memory
from dboost.session.evaluation_rows import EvaluationRows, eval_fields
from dboost.session.row_samples import TEST, TRAIN, UNUSED, FoldRows, sharing_codes
from dboost.session.training_rows import TrainingRows
from dboost.training import fit
from dboost.trees.apply_trees import ConsecutiveCodes
from tests.helpers.examples import examples
from tests.helpers.growth import a_tree
from tests.helpers.sharded_engine import training_rows
from tests.helpers.tables import make_table, spec_of

TERMS = SquaredError().pass_terms()
N = 200
TABLE = make_table([5, 300, 2, 2, 255], N, missing=0.0)
SPEC = spec_of(TABLE.layout, weighted=True)
RNG = np.random.default_rng(3)
TARGET, WEIGHT, RAW = RNG.normal(size=N), RNG.random(N) + 0.5, RNG.normal(size=(1, N))


def codes_of(rows: np.ndarray | slice) -> BinnedColumns:
    codes = TABLE.stored()
    return codes._replace(narrow=codes.narrow[:, rows].copy(), wide=codes.wide[:, rows].copy())


def ids_of(n: int) -> RowIds:
    """Return global ids in two runs."""
    return RowIds(np.array([[1000, n // 3], [50, n - n // 3]]))


def fields_of(kept: np.ndarray) -> dict[str, np.ndarray]:
    return {"target": TARGET[kept], "weight": WEIGHT[kept], "raw": RAW[:, kept].copy()}


def alone(kept: np.ndarray, remains: Callable[[np.ndarray], np.ndarray]) -> TrainingRows:
    codes = codes_of(kept)
    fields = fields_of(kept) | {"narrow": codes.narrow, "wide": codes.wide}
    return training_rows(rows_in_memory(fields, SPEC, ids_of(len(kept))), is_kept=remains)


def sharing(shared: SharedCodes, fold: FoldRows, remains: Callable[[np.ndarray], np.ndarray]) -> TrainingRows:
    is_trained = fold.uses == TRAIN
    kept = np.flatnonzero(is_trained)
    of_parts = np.bincount(fold.parts[is_trained], minlength=int(fold.parts.max()) + 1) > 0
    segments = shared.segments(of_parts, ids_of(len(kept)))
    fields = dict(segments.in_order(fields_of(np.arange(N)).items())) | shared.fields
    return training_rows(rows_in_memory(fields, SPEC, segments=segments, shared=shared), is_kept=remains)


def shard_of(rows: TrainingRows) -> Shard:
    assert rows.shard is not None
    return rows.shard


def content(rows: TrainingRows) -> dict[str, np.ndarray]:
    """Return codes and fields of the rows that are trained on, and those of a sample, in the order of their ids."""
    shard = shard_of(rows)
    at = np.concatenate([np.arange(*of) for of in shard.ranges()])
    row_ids = rows.row_ids()
    by_id = at[np.argsort(row_ids)]
    found = {name: shard.fields[name][..., by_id] for name in ("target", "weight", "raw", "leaf", "gradient")}
    found |= {"narrow": shard.codes.narrow[:, by_id], "wide": shard.codes.wide[:, by_id], "tiles": shard.tiles[:, by_id]}
    drawn = shard.sampled_rows(Sample(7, 2**63))
    assert drawn is not None and (np.diff(drawn) > 0).all()
    id_of = np.full(shard.n_rows, -1)
    id_of[at] = row_ids
    return found | {"ids": np.sort(row_ids), "drawn": np.sort(id_of[drawn])}


def assert_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@examples(30)
@given(seed=st.integers(0, 1000), n_folds=st.integers(2, 6), n_shares=st.integers(1, 4))
def test_a_fold_that_shares_codes_has_the_rows_that_it_would_have_alone(seed: int, n_folds: int, n_shares: int) -> None:
    rng = np.random.default_rng(seed)
    number = rng.permutation(np.arange(N) % n_folds)
    left_out = rng.random(N) < rng.choice([0.0, 0.1])
    folds = sharing_codes([FoldRows(np.where(left_out, UNUSED, np.where(number == k, TEST, TRAIN))) for k in range(n_folds)])
    shared = SharedCodes(codes_of(slice(None)), folds[0].parts, SPEC, 1, 2)
    leaf = rng.integers(0, 8, N).astype(np.uint8)
    tiles = None
    for fold in folds:
        kept = np.flatnonzero(fold.uses == TRAIN)
        bound = int(np.median(ids_of(len(kept)).of(0, len(kept))))
        remains = partial(np.greater, bound)
        own, rows = alone(kept, remains), sharing(shared, fold, remains)
        assert tiles is None or tiles is rows.shard.tiles
        tiles = rows.shard.tiles
        assert (
            own.n_rows
            == rows.n_rows
            == sum(last - first for k in range(n_shares) for first, last in rows.shard.ranges(k, n_shares))
        )
        own.shard.leaf[0], order = leaf[kept], rows.shard.segments
        assert order is not None
        rows.shard.leaf[0] = dict(order.in_order([("leaf", leaf)]))["leaf"]
        values = rng.normal(size=(1, SPEC.max_leaves))
        one, other = own.advance(0, values, TERMS), rows.advance(0, values, TERMS)
        assert one is not None and other is not None
        assert (one.max_gradient, one.coarse_loss, one.fine_loss) == (other.max_gradient, other.coarse_loss, other.fine_loss)
        assert_equal(content(own), content(rows))
        own_part, part = own.keep_only([0]), rows.keep_only([0])
        assert own_part is not None and part is not None and part.shared is None and shard_of(part).segments is None
        assert_equal(content(own_part), content(part))
        assert part.row_ids().tolist() == own_part.row_ids().tolist()


@examples(50)
@given(st.data())
def test_folds_of_a_group_use_all_rows_of_a_part_alike(data: st.DataObject) -> None:
    n, rng = data.draw(st.integers(1, 60)), np.random.default_rng(data.draw(st.integers(0, 1000)))
    n_folds, repeats = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    folds = []
    for _ in range(repeats):
        number = rng.integers(0, n_folds, n)
        folds += [FoldRows(np.where(number == k, TEST, TRAIN)) for k in range(n_folds)]
    found = sharing_codes(folds)
    assert [fold.uses.tolist() for fold in found] == [fold.uses.tolist() for fold in folds]
    for fold in found:
        assert (len(fold.parts) == 0) == (fold.codes_id == "")
        for part in range(int(fold.parts.max()) + 1 if fold.codes_id else 0):
            assert len(np.unique(fold.uses[fold.parts == part])) == 1
    alike = {fold.codes_id: fold.parts for fold in found}
    assert all(fold.parts is alike[fold.codes_id] for fold in found if fold.codes_id)
    assert n_folds == 1 or len({fold.codes_id for fold in found[:n_folds]}) == 1


def test_repetitions_are_other_groups() -> None:
    numbers = [RNG.permutation(np.arange(N) % 4) for _ in range(3)]
    found = sharing_codes([FoldRows(np.where(number == k, TEST, TRAIN)) for number in numbers for k in range(4)])
    assert [len({fold.codes_id for fold in found[4 * k : 4 * k + 4]}) for k in range(3)] == [1, 1, 1]
    assert len({fold.codes_id for fold in found}) == 3
    assert all(int(fold.parts.max()) == 3 for fold in found)


def test_as_many_trees_grow_at_the_same_time_as_there_are_buffers() -> None:
    shared = SharedCodes(codes_of(slice(None)), np.zeros(N, np.uint8), SPEC, 2, 1)
    made, lock, used = [], threading.Lock(), [0, 0]
    full = threading.Barrier(2)

    def make() -> Any:
        made.append(object())
        return made[-1]

    def grow() -> None:
        for _ in range(3):
            with shared.buffers("shape", make):
                with lock:
                    used[0] += 1
                    used[1] = max(used)
                full.wait(20)  # two are needed
                with lock:
                    used[0] -= 1

    threads = [threading.Thread(target=grow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert used == [0, 2] and len(made) == 2


def test_trees_of_other_shapes_get_other_buffers() -> None:
    """A fold of few rows has smaller trees, whose buffers do not hold those of another fold. Free ones make room."""
    shared, alive = SharedCodes(codes_of(slice(None)), np.zeros(N, np.uint8), SPEC, 1, 1), weakref.WeakSet[Any]()

    class Buffers:
        def __init__(self, shape: int) -> None:
            self.shape = shape
            alive.add(self)

    for shape in (1, 1, 2, 1, 3, 3, 2):
        with shared.buffers(shape, lambda shape=shape: Buffers(shape)) as lent:
            assert lent.shape == shape and len(alive) == 1
        del lent


def test_the_folds_of_a_cross_validation_have_one_copy_of_the_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    kept: list[Any] = []
    targets: list[Any] = []

    class Counted(SharedCodes):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self.fields["tiles"].ctypes.data)

    def rows(*arguments: Any, **options: Any) -> EncodedStore:
        encoded = rows_in_memory(*arguments, **options)
        fields = encoded.store.load()
        kept.append(fields["tiles"].ctypes.data)
        targets.append(fields["target"].ctypes.data)
        return encoded

    held: list[bool] = []

    class CountedSet(EvaluationRows):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            held.append("narrow" in self.store.names)

    monkeypatch.setattr(table_rows, "SharedCodes", Counted)
    monkeypatch.setattr(table_rows, "rows_in_memory", rows)
    monkeypatch.setattr(evaluation_rows, "EvaluationRows", CountedSet)
    X = RNG.normal(size=(300, 3))
    found = dboost.cv(X, X[:, 0] > 0, folds=5, repeats=2, max_iter=3, progress=False)
    assert len(found.boosters) == 10
    assert len(made) == 2 and sorted(kept) == sorted(made * 5)
    assert held == [False] * 10, "rows that are held out have no codes of their own"
    assert len(set(targets)) == 2
    gc.collect()
    assert not shared_codes._in_use


@examples(30)
@given(seed=st.integers(0, 1000), n_folds=st.integers(2, 5))
def test_folds_share_values_that_do_not_depend_on_them(seed: int, n_folds: int) -> None:
    """A fold of other values has its own, and changes none of the others."""
    rng = np.random.default_rng(seed)
    number = rng.permutation(np.arange(N) % n_folds)
    folds = sharing_codes([FoldRows(np.where(number == k, TEST, TRAIN)) for k in range(n_folds)])
    shared = SharedCodes(codes_of(slice(None)), folds[0].parts, SPEC, 1, 1)
    other, found = int(rng.integers(n_folds + 2)), []
    for k, fold in enumerate(folds):
        kept = np.flatnonzero(fold.uses == TRAIN)
        of_parts = np.bincount(fold.parts[kept], minlength=n_folds) > 0
        segments = shared.segments(of_parts, ids_of(len(kept)))
        given_values = WEIGHT.copy()
        if k == other:
            given_values[rng.choice(kept)] *= -1
        own = dict(segments.in_order([("weight", given_values)]))["weight"]
        found.append((segments.positions(), own[segments.positions()], shared.values("weight", own, of_parts)))
    assert other < n_folds or len({id(values) for *_, values in found}) == 1
    for rows, expected, values in found:
        np.testing.assert_array_equal(values[rows], expected)
    assert shared.values("weight", own.astype(np.float32), of_parts).dtype == np.float32


def test_rows_that_are_held_out_have_the_scores_that_they_would_have_alone() -> None:
    """Also those that remain when another worker gets some of their partitions."""
    shared = SharedCodes(codes_of(slice(None)), (np.arange(N) % 4).astype(np.uint8), SPEC, 1, 1)
    positions = np.arange(1, N, 4)
    first = shared.first_of(positions)
    assert first == N // 4
    assert shared.first_of(np.arange(2, N, 2)) is None and shared.first_of(positions[1:]) == first + 1
    tree, found = a_tree(TABLE.layout.n_bins, np.zeros(5, bool), 9, 1), []
    tree.complete(RNG.normal(size=9), 0.1)
    for codes in (ConsecutiveCodes(columns_among(shared.fields, SPEC.layout), first), None):
        own = codes_of(positions)
        fields = {"target": TARGET[positions], "raw": RAW[:, positions].copy()}
        fields |= {"narrow": own.narrow, "wide": own.wide} if codes is None else {}
        store = RowStore(eval_fields(SPEC, False, has_codes=codes is None), [len(positions)], arrays=fields)
        size, owned = LossMagnitude.of(((1.0, 1.0),), 1.0, len(positions)), [(0, 20), (1, len(positions) - 20)]
        spec: Any = SimpleNamespace(shard_spec=SPEC, target=SimpleNamespace(loss=SquaredError()), unit=1.0)
        part = EvaluationRows(store, spec, size, Team(2), owned=owned, shared=codes)
        part.add([tree])
        before = part.store.load()["raw"].copy()
        part.keep_only([1])
        part.add([tree])
        found.append((before, part.store.load()["raw"]))
    for mine, others in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, others)
    assert found[0][1].shape == (1, len(positions) - 20)
    assert len(np.unique(found[0][0] - RAW[:, positions])) > 2


def test_at_most_as_many_folds_load_at_once_as_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, counts = threading.Lock(), [0, 0]
    plan_fit = fit.plan_fit

    def counted(*arguments: Any) -> Any:
        with lock:
            counts[0] += 1
            counts[1] = max(counts)
        plan = plan_fit(*arguments)
        with lock:
            counts[0] -= 1
        return plan

    monkeypatch.setattr(fit, "plan_fit", counted)
    X = RNG.normal(size=(300, 3))
    dboost.cv(X, X[:, 0], folds=6, max_iter=2, n_threads=2, progress=False)
    assert 1 <= counts[1] <= 2
