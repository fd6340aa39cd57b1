"""Trees: the compiled grower, the round-based grower and the naive one grow the same trees, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dboost.data.binning import Binning
from dboost.kernels.histograms import TILE_COLUMNS
from dboost.kernels.rows import STRIPE
from dboost.losses import SquaredError
from dboost.metrics.exact_sum import unit_for
from dboost.model.ensemble import Tree
from dboost.params import Parameters
from dboost.schema import Feature
from dboost.session import engines as in_process
from dboost.session.engines import FusedEngine
from dboost.shards.shard import Shard
from dboost.training.plan import Precision, growth_policy_of, precision_of
from dboost.trees.finished_tree import TreeSnapshot, leaf_values
from dboost.trees.grower import RoundHistograms
from dboost.trees.nodes import ANY_ORDER
from dboost.trees.tree_task import FeatureConstraints, GrownTree, Sample, TreeTask, split_params_of
from tests.helpers.naive.grower import NaiveGrower, leaves_of, to_tree
from tests.helpers.sharded_engine import ShardedEngine
from tests.helpers.tables import CodedTable, make_table, tables

TERMS = SquaredError().terms()


@pytest.fixture(autouse=True)
def several_threads_for_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables are left to one thread, were it not for this."""
    monkeypatch.setattr(in_process, "SMALL", 0)


class Problem:
    """A table with gradients and Hessians, and the parameters to grow a tree by."""

    def __init__(
        self,
        table: CodedTable,
        parameters: Parameters,
        seed: int,
        *,
        with_hessian: bool,
        levels: int = 0,
        times: np.ndarray | None = None,
        sample: Sample | None = None,
        constraints: FeatureConstraints | None = None,
        direction: np.ndarray | None = None,
        trimmed: float = 0.0,
    ) -> None:
        self.table, self.parameters = table, parameters
        rng = np.random.default_rng(seed)
        # Gradients that some of the features explain, and noise; few distinct ones make ties.
        signal = sum(np.sin(table.codes[f] * (f + 1)) for f in range(min(3, len(table.codes))))
        gradient = signal + rng.normal(size=table.n_rows)
        if levels:
            gradient = np.round(gradient * levels / 4)
        self.gradient = gradient.astype(np.float32)
        self.hessian = None
        if with_hessian:
            self.hessian = (rng.integers(1, 4, table.n_rows) if levels else rng.random(table.n_rows)).astype(np.float32)
        self.repeat_count = times
        # The second derivative of these rows is too small for them to take part.
        least = 0
        if trimmed and self.hessian is not None:
            least = int(np.sort(self.hessian)[int(trimmed * table.n_rows)].view(np.int32))
        self.rest = {"sample": sample, "constraints": constraints, "direction": direction, "least_influence": least}
        max_weight = 1 if times is None else int(times.max())
        self.precision = precision_of(parameters, not with_hessian, max_weight)
        self.policy = growth_policy_of(parameters, table.n_rows)
        edges = (
            None if c else np.arange(n - 1) + 0.5 for n, c in zip(table.layout.n_bins, table.layout.is_categorical, strict=True)
        )
        features = tuple(
            Feature(f"f{j}", tuple(range(int(n))) if c else None)
            for j, (n, c) in enumerate(zip(table.layout.n_bins, table.layout.is_categorical, strict=True))
        )
        self.binning = Binning(features, tuple(edges))
        self.task = self._task()

    def _task(self) -> TreeTask:
        """Return the task as the trainer would make it."""
        parameters, packing = self.parameters, self.precision.packing
        n = self.table.n_rows if self.repeat_count is None else int(self.repeat_count.sum())
        max_g = float(np.abs(self.gradient).max())
        scale_g, scale_h, unit_h = float(np.float32(packing.max_gradient / (max_g or 1.0))), 1.0, 1.0
        if self.hessian is not None:
            max_h = float(self.hessian.max())
            scale_h, unit_h = float(np.float32(packing.max_hessian / max_h)), unit_for(max_h, n)
        scales = np.array([scale_g, scale_h, unit_for(max_g, n), unit_h])
        limits = split_params_of(
            parameters,
            self.precision.count_channel,
            scales,
            parameters.max_delta_step,
            is_bounded=self.rest["direction"] is not None,
        )
        return TreeTask(limits, packing, self.policy, scales, np.ones(len(self.table.codes), np.uint8), **self.rest)

    @property
    def n_rows(self) -> int:
        return self.table.n_rows

    def finished(self, grown: GrownTree) -> Tree:
        gain_unit = 0.5 * self.task.scales[1] / self.task.scales[0] ** 2
        values = leaf_values(grown.leaf_sums, self.parameters, SquaredError())
        return TreeSnapshot.of(grown, values, float(gain_unit)).to_tree(self.binning, self.parameters, SquaredError())

    @property
    def shaped(self) -> dict[str, Any]:
        n_channels = self.precision.n_channels
        return {"times": self.repeat_count, "max_leaves": self.policy.max_leaves, "n_channels": n_channels}

    @contextmanager
    def in_process(self, n_threads: int) -> Iterator[FusedEngine]:
        shard = self.table.shard(
            self.gradient,
            self.hessian,
            times=self.repeat_count,
            max_leaves=self.policy.max_leaves,
            n_channels=self.precision.n_channels,
        )
        engine = FusedEngine(shard, TERMS, policy=self.policy, n_threads=n_threads)
        assert engine.team.n_threads == n_threads
        try:
            yield engine
        finally:
            engine.close()

    def whole(self, n_threads: int) -> tuple[Tree, np.ndarray]:
        """The tree by the compiled grower, and each row's leaf."""
        with self.in_process(n_threads) as engine:
            first = self.finished(engine.grow(self.task))
            again = self.finished(engine.grow(self.task))  # nothing is left over from the last tree
            assert_equal(again, first)
            return first, np.concatenate(engine.map_shards(_leaves)).astype(np.int64)

    def by_rounds(self, cuts: list[int], width: int) -> tuple[Tree, np.ndarray, int]:
        """Return the tree grown over several shards, each row's leaf, and the number of rounds."""
        borders = [0, *sorted(min(cut, self.n_rows) for cut in cuts), self.n_rows]
        shards = [
            self.table.shard(
                self.gradient,
                self.hessian,
                times=self.repeat_count,
                max_leaves=self.policy.max_leaves,
                n_channels=self.precision.n_channels,
                rows=slice(a, b),
            )
            for a, b in pairwise(borders)
        ]
        engine = ShardedEngine(shards, TERMS, width=width)
        tree = self.finished(engine.grow(self.task))
        n_requests = engine.n_requests
        assert_equal(self.finished(engine.grow(self.task)), tree)
        return tree, np.concatenate([shard.leaf for shard in shards]).astype(np.int64), n_requests

    def naive(self) -> tuple[Tree, np.ndarray]:
        grower = NaiveGrower(
            self.table,
            self.task,
            self.gradient.tolist(),
            None if self.hessian is None else self.hessian.tolist(),
            None if self.repeat_count is None else self.repeat_count.tolist(),
        )
        chosen = self.table.shard(self.gradient, self.hessian).sampled_rows(*self.task.row_subset)
        root = grower.grow(None if chosen is None else chosen.tolist())[0]
        leaf = np.full(self.n_rows, -1)
        for k, node in enumerate(leaves_of(root)):
            leaf[node.rows] = k
        for row in range(self.n_rows):
            if leaf[row] < 0:
                leaf[row] = leaves_of(root).index(grower.leaf_of(root, row))
        return to_tree(grower, self.binning, self.parameters), leaf


def _leaves(shard: Shard, first: int, last: int) -> np.ndarray:
    """Return the leaf of each row; called by `Engine.map_shards`."""
    return shard.leaf[first:last]


def assert_equal(found: Tree, expected: Tree) -> None:
    """Every array, to the last bit."""
    for field in fields(Tree):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "categories":
            plain = [[None if codes is None else codes.tolist() for codes in tree] for tree in (a, b)]
            assert plain[0] == plain[1], field.name
        else:
            assert a.dtype == b.dtype, field.name
            assert a.tobytes() == b.tobytes(), (field.name, a, b)


PARAMETERS = st.builds(
    Parameters,
    max_leaf_nodes=st.sampled_from([None, 2, 3, 8, 31]),
    max_depth=st.sampled_from([None, None, 1, 3]),
    min_samples_leaf=st.sampled_from([1, 2, 5, 20]),
    min_hessian=st.sampled_from([0.0, 1.0, 5.0]),
    l2_regularization=st.sampled_from([0.0, 1.0, 10.0]),
    l1_regularization=st.sampled_from([0.0, 0.0, 2.0]),
    leaf_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    min_gain=st.sampled_from([0.0, 0.0, 0.25]),
    max_delta_step=st.sampled_from([None, None, 0.3]),
    growth=st.sampled_from(["best_first", "depth_wise"]),
    categorical_smoothing=st.sampled_from([0.0, 10.0]),
    categorical_l2=st.sampled_from([0.0, 10.0]),
    max_category_group=st.sampled_from([1, 32]),
    min_category_hessian=st.sampled_from([0.0, 1.0, 3.0]),
)
#: Numeric one-byte columns only, or all kinds of columns: each has a kernel of its own.
PLAIN = tables(wide=False, categorical=False)


@st.composite
def mixed_tables(draw: st.DrawFn) -> CodedTable:
    """At least one two-byte column and one categorical one."""
    n_bins = draw(st.lists(st.sampled_from([2, 3, 7, 15, 40, 255, 256, 300]), min_size=0, max_size=4))
    flags = draw(st.lists(st.booleans(), min_size=len(n_bins), max_size=len(n_bins)))
    n_bins += [300, draw(st.sampled_from([3, 12, 400]))]
    return make_table(n_bins, draw(st.integers(1, 300)), draw(st.integers(0, 2**32)), categorical=[*flags, False, True])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    table = draw(st.one_of(PLAIN, mixed_tables()))
    return Problem(
        table,
        draw(PARAMETERS),
        draw(st.integers(0, 2**32)),
        with_hessian=draw(st.booleans()),
        levels=draw(st.sampled_from([0, 0, 4, 16])),
    )


@given(problem=problems(), n_threads=st.integers(1, 3), data=st.data())
@settings(max_examples=150)
def test_three_ways_to_grow_are_one(problem: Problem, n_threads: int, data: st.DataObject) -> None:
    expected, leaf = problem.naive()
    tree, found = problem.whole(n_threads)
    assert_equal(tree, expected)
    assert found.tolist() == leaf.tolist()
    cuts = data.draw(st.lists(st.integers(0, problem.n_rows), max_size=4), label="cuts")
    tree, found, _ = problem.by_rounds(cuts, data.draw(st.integers(1, 100), label="width"))
    assert_equal(tree, expected)
    assert found.tolist() == leaf.tolist()


@given(
    table=PLAIN,
    parameters=PARAMETERS,
    seed=st.integers(0, 2**32),
    with_hessian=st.booleans(),
    max_weight=st.sampled_from([2, 3, 16]),
)
@settings(max_examples=40)
def test_rows_that_count_several_times(
    table: CodedTable, parameters: Parameters, seed: int, with_hessian: bool, max_weight: int
) -> None:
    times = np.random.default_rng(seed).integers(1, max_weight + 1, table.n_rows).astype(np.uint8)
    problem = Problem(table, parameters, seed, with_hessian=with_hessian, times=times)
    expected, leaf = problem.naive()
    for tree, found in (problem.whole(1), problem.whole(2), problem.by_rounds([50, 120], 4)[:2]):
        assert_equal(tree, expected)
        assert found.tolist() == leaf.tolist()


@given(
    table=st.one_of(PLAIN, mixed_tables()),
    parameters=PARAMETERS,
    seed=st.integers(0, 2**32),
    levels=st.sampled_from([0, 4]),
    trimmed=st.sampled_from([0.01, 0.1, 0.2, 0.5, 0.9]),
    weighed=st.booleans(),
)
@settings(max_examples=60)
def test_rows_of_little_influence_sit_out(
    table: CodedTable, parameters: Parameters, seed: int, levels: int, trimmed: float, weighed: bool
) -> None:
    times = np.random.default_rng(seed).integers(1, 4, table.n_rows).astype(np.uint8) if weighed else None
    problem = Problem(table, parameters, seed, with_hessian=True, levels=levels, times=times, trimmed=trimmed)
    expected, leaf = problem.naive()
    for tree, found in (problem.whole(1), problem.whole(3), problem.by_rounds([50, 120], 4)[:2]):
        assert_equal(tree, expected)
        assert found.tolist() == leaf.tolist()


@pytest.mark.parametrize("trimmed", [0.02, 0.4, 0.9])
@pytest.mark.parametrize("n_columns", [3, 2 * TILE_COLUMNS + 1])
def test_rows_of_little_influence_sit_out_of_several_stripes(n_columns: int, trimmed: float) -> None:
    table = make_table([20] * n_columns, 2 * STRIPE + 500, 0)
    problem = Problem(table, Parameters(max_leaf_nodes=31), 1, with_hessian=True, trimmed=trimmed)
    expected, leaf, _ = problem.by_rounds([], 100)
    for n_threads in (1, 2, 3):
        tree, found = problem.whole(n_threads)
        assert_equal(tree, expected)
        assert np.array_equal(found, leaf)


#: Tables of several tiles: with four or more for two threads, threads share out tiles instead of rows.
MANY_COLUMNS = {
    "numeric": ([20, 40, 17] * 44, [False] * 132),
    "everything": ([20, 40, 17] * 44 + [3] * 20 + [300, 12, 400], [False] * 132 + [True] * 20 + [False, True, True]),
}


@pytest.mark.parametrize("kind", MANY_COLUMNS)
@pytest.mark.parametrize("with_hessian", [False, True], ids=["constant Hessian", "Hessian"])
def test_wide_tables(kind: str, with_hessian: bool) -> None:
    n_bins, categorical = MANY_COLUMNS[kind]
    table = make_table(n_bins, 400, 3, categorical=categorical)
    assert table.layout.n_tiled > 4 * TILE_COLUMNS
    problem = Problem(table, Parameters(max_leaf_nodes=12, min_samples_leaf=5), 4, with_hessian=with_hessian)
    expected, leaf = problem.naive()
    assert expected.n_leaves == 12
    for n_threads in (1, 2, 3):
        tree, found = problem.whole(n_threads)
        assert_equal(tree, expected)
        assert found.tolist() == leaf.tolist()
    assert_equal(problem.by_rounds([100, 100, 350], 5)[0], expected)


@pytest.mark.parametrize(
    "limits", [(1, 0.0), (20, 0.0), (20, 0.1)], ids=["two channels", "three channels", "three, never packed"]
)
@pytest.mark.parametrize("n_columns", [3, 130], ids=["narrow", "wide"])
def test_many_rows(n_columns: int, limits: tuple[int, float]) -> None:
    """More rows than packed buckets hold between flushes, and than a stripe has: threads against one shard and many."""
    n_rows = 150_000 if n_columns == 3 else 20_000
    table = make_table([20, 255, 4][:n_columns] if n_columns == 3 else [20] * n_columns, n_rows, missing=0.3)
    parameters = Parameters(max_leaf_nodes=20, min_samples_leaf=limits[0], l1_regularization=limits[1])
    problem = Problem(table, parameters, 0, with_hessian=True)
    expected, leaf = problem.whole(1)
    assert expected.n_leaves == 20
    for n_threads in (2, 3):
        tree, found = problem.whole(n_threads)
        assert_equal(tree, expected)
        assert np.array_equal(found, leaf)
    tree, found, _ = problem.by_rounds([1, 5000, n_rows // 2], 8)
    assert_equal(tree, expected)
    assert np.array_equal(found, leaf)
    root = 0 if expected.n_leaves == 1 else expected.count[0]
    assert root == n_rows
    assert expected.count[expected.feature < 0].sum() == n_rows
    assert np.array_equal(np.bincount(leaf), expected.count[expected.feature < 0])


@pytest.mark.parametrize("max_weight", [None, 3])
def test_histograms_with_counts_stay_packed_as_long_as_sums_fit(max_weight: int | None) -> None:
    """At the last row whose sums fit half a word all gradients and Hessians are as large as can be, and beyond it."""
    times = None if max_weight is None else np.full(300_000, max_weight, np.uint8)
    packing = precision_of(Parameters(min_samples_leaf=2), False, max_weight or 1).packing
    most = 64 * packing.rows
    assert 2**31 - 2**20 < most * packing.max_gradient * (max_weight or 1) < 2**31
    for n_rows in (most, most + 1):
        table = make_table([4, 9], n_rows, missing=0.1)
        problem = Problem(
            table,
            Parameters(max_leaf_nodes=4, min_samples_leaf=2),
            0,
            with_hessian=True,
            times=None if times is None else times[:n_rows],
        )
        problem.gradient[:] = 1.0
        problem.gradient[table.codes[0] == 0] = -1.0  # the root's sum may be as small as minus all, a child's as large
        problem.hessian = np.ones(n_rows, np.float32)
        problem.task = problem._task()
        with problem.in_process(2) as engine:
            tree = problem.finished(engine.grow(problem.task))
            assert (engine._packed_counts is None) == (n_rows > most)
        assert_equal(problem.by_rounds([n_rows // 3], 4)[0], tree)
        problem.gradient[:] = 1.0
        assert_equal(problem.by_rounds([], 4)[0], problem.whole(1)[0])


@pytest.mark.parametrize("with_hessian", [False, True])
def test_trees_without_limits_open_few_leaves_at_a_time(with_hessian: bool) -> None:
    """With no limit on leaves, the pool of 64 histograms is enough for any tree, chains too."""
    n_rows = 3000
    table = make_table([255, 255, 255], n_rows, 1, missing=0.0)
    parameters = Parameters(max_leaf_nodes=None, min_samples_leaf=1, min_hessian=0.0, l2_regularization=0.0)
    problem = Problem(table, parameters, 0, with_hessian=with_hessian)
    assert problem.policy.order == ANY_ORDER
    # Each cut of the first feature gains more than all that are left: a chain.
    chain = Problem(table, parameters, 0, with_hessian=with_hessian)
    chain.gradient = (1.03 ** table.codes[0]).astype(np.float32)
    for one in (problem, chain):
        tree, leaf = one.whole(2)
        assert tree.n_leaves > 200
        assert_equal(one.by_rounds([1000], 7)[0], tree)
        assert np.array_equal(np.bincount(leaf), tree.count[tree.feature < 0])
    assert chain.whole(1)[0].depth > 30


@given(problem=problems(), width=st.integers(2, 100))
@settings(max_examples=30)
def test_splitting_more_leaves_per_round_takes_fewer_rounds(problem: Problem, width: int) -> None:
    tree, _, few = problem.by_rounds([], width)
    _, _, many = problem.by_rounds([], 1)
    assert few <= many
    n_splits = tree.n_leaves - 1
    assert many <= n_splits + 2, "one by one: the root, each split, the end"


def test_questions_are_about_as_many_as_levels() -> None:
    table = make_table([255] * 4, 4000, 5)
    problem = Problem(table, Parameters(max_leaf_nodes=255, min_samples_leaf=1), 6, with_hessian=True)
    tree, _, n_requests = problem.by_rounds([1000, 2000], 64)
    assert tree.n_leaves == 255
    assert n_requests < 40


@given(problem=problems())
@settings(max_examples=40)
def test_leaves_keep_what_parameters_promise(problem: Problem) -> None:
    tree, leaf = problem.whole(1)
    parameters, leaves = problem.parameters, tree.feature < 0
    if tree.n_leaves > 1:
        assert tree.count[leaves].min() >= parameters.min_samples_leaf
        # Hessians are quantised: a sum is off by at most half a unit a row.
        slack = 0.0 if problem.hessian is None else 0.5 * problem.n_rows / problem.task.scales[1]
        assert tree.cover[leaves].min() >= parameters.min_hessian - slack - 1e-9
        assert tree.gain[~leaves].min() > parameters.min_gain * (1 - 1e-12)
    assert tree.n_leaves <= (parameters.max_leaf_nodes or 10**9)
    assert tree.depth <= (parameters.max_depth or 10**9)
    if parameters.max_delta_step is not None:
        assert np.abs(tree.value).max() <= parameters.learning_rate * parameters.max_delta_step
    for k in range(tree.n_leaves):
        rows = leaf == k
        g = problem.gradient[rows].astype(np.float64).sum()
        h = rows.sum() if problem.hessian is None else problem.hessian[rows].astype(np.float64).sum()
        assert tree.cover[leaves][k] == pytest.approx(h, rel=1e-9)
        t = np.sign(g) * max(abs(g) - parameters.l1_regularization, 0.0)
        step = -t / (h + parameters.l2_regularization)
        bound = parameters.max_delta_step or np.inf
        assert tree.value[leaves][k] == pytest.approx(0.1 * np.clip(step, -bound, bound), rel=1e-7, abs=1e-9)


def test_a_feature_that_is_not_allowed_is_not_used() -> None:
    table = make_table([10, 10, 300], 200, 2, categorical=[False, True, False])
    problem = Problem(table, Parameters(min_samples_leaf=2), 1, with_hessian=True)
    everything = set(problem.whole(1)[0].feature.tolist()) - {-1}
    assert everything == {0, 1, 2}
    for banned in range(3):
        problem.task.allowed[:] = 1
        problem.task.allowed[banned] = 0
        expected, _ = problem.naive()
        assert banned not in expected.feature
        for n_threads in (1, 2):
            assert_equal(problem.whole(n_threads)[0], expected)
        assert_equal(problem.by_rounds([50], 3)[0], expected)


@pytest.mark.parametrize("with_hessian", [False, True])
def test_nothing_to_split(with_hessian: bool) -> None:
    """One row, equal gradients, features of one bin: a tree of one leaf, whose value is the best constant."""
    for table in (make_table([5, 300], 1), make_table([1, 1], 50, missing=0.0)):
        problem = Problem(table, Parameters(), 0, with_hessian=with_hessian)
        for tree in (problem.whole(1)[0], problem.whole(2)[0], problem.by_rounds([0, 1], 4)[0]):
            assert tree.n_leaves == 1
            assert_equal(tree, problem.naive()[0])
    problem = Problem(make_table([5, 5], 100), Parameters(min_samples_leaf=1), 0, with_hessian=False)
    problem.gradient[:] = 1.0
    assert problem.whole(2)[0].n_leaves == 1


def test_more_leaves_than_a_byte_counts() -> None:
    table = make_table([255, 255], 3000, 1)
    problem = Problem(table, Parameters(max_leaf_nodes=400, min_samples_leaf=1), 1, with_hessian=False)
    tree, leaf = problem.whole(2)
    assert tree.n_leaves == 400
    assert leaf.max() == 399
    again, labels, _ = problem.by_rounds([1234], 16)
    assert_equal(again, tree)
    assert np.array_equal(labels, leaf)


def test_precision_is_chosen_by_what_is_looked_at() -> None:
    one, twenty = Parameters(min_samples_leaf=1), Parameters()
    assert precision_of(one, False).n_channels == precision_of(one, True).n_channels == 2
    assert precision_of(twenty, False).n_channels == 3
    constant: Precision = precision_of(twenty, True)
    assert (constant.n_channels, constant.count_channel) == (2, 1)


@pytest.mark.parametrize(
    "largest, narrow", [(2.0**31 - 1, True), (-(2.0**31) + 1, True), (2.0**31, False), (-(2.0**31), False)]
)
def test_answers_travel_in_half_the_bytes_where_they_fit_and_add_up(largest: int, narrow: bool) -> None:
    rng = np.random.default_rng(3)
    histograms = rng.integers(-1000, 1000, (3, 2, 40)).astype(float)
    histograms[2, 1, 39] = largest
    answer = RoundHistograms(histograms, np.array([[4, 5]]), np.array([[1.0, 2.0]]))
    sent = answer.compact()
    assert sent.histograms.dtype == (np.int32 if narrow else np.float64)
    assert np.array_equal(sent.histograms, histograms)
    other = RoundHistograms(np.ones((3, 2, 40), np.int32), np.array([[1, 1]]), np.array([[0.5, 0.0]]))
    total = RoundHistograms.total([sent, other])
    assert total.histograms.dtype == np.float64
    assert np.array_equal(total.histograms, histograms + 1)
    assert total.n_rows.tolist() == [[5, 6]] and total.leaf_sums is not None and total.leaf_sums.tolist() == [[1.5, 2.0]]
