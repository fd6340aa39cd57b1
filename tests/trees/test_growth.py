"""Trees: the compiled grower, the round-based grower and the naive one grow the same trees, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.cluster.transport.line import Message, packed
from dboost.cluster.transport.messages import SessionRef
from dboost.cluster.transport.round_sums import RoundSums
from dboost.kernels.histograms import TILE_COLUMNS, rows_in_32_bits
from dboost.kernels.rows import STRIPE
from dboost.params import Parameters
from dboost.rows.row_sample import Sample
from dboost.training.plan import Precision, precision_of
from dboost.trees import steady_roots
from dboost.trees.tree_growth import RoundHistograms
from dboost.trees.tree_task import ANY_ORDER, FeatureConstraints
from tests.helpers.examples import examples
from tests.helpers.growth import EVERY_KERNEL, PLAIN, Problem, assert_equal, tree_parameters
from tests.helpers.tables import CodedTable, make_table
from tests.helpers.tune import Tune


@pytest.fixture(autouse=True)
def several_threads_for_small_tables(tune: Tune) -> None:
    """Without this, small tables are processed by one thread."""
    tune(small_cells=0)


@st.composite
def mixed_tables(draw: st.DrawFn) -> CodedTable:
    """At least one two-byte column and one categorical one."""
    n_bins = draw(st.lists(st.sampled_from([2, 3, 7, 15, 40, 255, 256, 300]), min_size=0, max_size=4))
    flags = draw(st.lists(st.booleans(), min_size=len(n_bins), max_size=len(n_bins)))
    n_bins += [300, draw(st.sampled_from([3, 12, 400]))]
    return make_table(n_bins, draw(st.integers(1, 300)), draw(st.integers(0, 2**32)), categorical=[*flags, False, True])


@st.composite
def problems(draw: st.DrawFn, every_kernel: bool = False) -> Problem:
    is_plain = draw(st.booleans())
    table = draw(PLAIN if is_plain else mixed_tables())
    return Problem(
        table,
        draw(tree_parameters(every_kernel)),
        draw(st.integers(0, 2**32)),
        with_hessian=(not is_plain and not every_kernel) or draw(st.booleans()),
        levels=draw(st.sampled_from([0, 0, 4, 16])),
    )


@EVERY_KERNEL
@given(n_threads=st.integers(1, 3), data=st.data())
@examples(150)
def test_three_ways_to_grow_are_one(every_kernel: bool, n_threads: int, data: st.DataObject) -> None:
    problem = data.draw(problems(every_kernel))
    expected, leaf = problem.naive()
    tree, found = problem.whole(n_threads)
    assert_equal(tree, expected)
    assert found.tolist() == leaf.tolist()
    cuts = data.draw(st.lists(st.integers(0, problem.n_rows), max_size=4), label="cuts")
    width, in_flight = data.draw(st.integers(1, 100), label="width"), data.draw(st.integers(1, 3), label="rounds in flight")
    tree, found, _ = problem.by_rounds(cuts, width, in_flight)
    assert_equal(tree, expected)
    assert found.tolist() == leaf.tolist()


def repeated(data: st.DataObject, table: CodedTable, rng: np.random.Generator, every_kernel: bool) -> dict[str, Any]:
    most = data.draw(st.sampled_from([2, 3, 16]))
    times = rng.integers(1, most + 1, table.n_rows).astype(np.uint8)
    return {"times": times, "with_hessian": not every_kernel or data.draw(st.booleans())}


def trimmed(data: st.DataObject, table: CodedTable, rng: np.random.Generator, every_kernel: bool) -> dict[str, Any]:
    weighed = every_kernel and data.draw(st.booleans())
    return {
        "trimmed": data.draw(st.sampled_from([0.01, 0.1, 0.2, 0.5, 0.9])),
        "times": rng.integers(1, 4, table.n_rows).astype(np.uint8) if weighed else None,
        "levels": data.draw(st.sampled_from([0, 4])),
        "with_hessian": True,
    }


def sampled(data: st.DataObject, table: CodedTable, rng: np.random.Generator, every_kernel: bool) -> dict[str, Any]:
    share = data.draw(st.sampled_from([0.01, 0.3, 0.5, 0.9]))
    with_hessian = data.draw(st.booleans()) if every_kernel else True
    return {"sample": Sample.of(share, int(rng.integers(2**32)), 3), "with_hessian": with_hessian}


def constrained(data: st.DataObject, table: CodedTable, rng: np.random.Generator, every_kernel: bool) -> dict[str, Any]:
    n, share = len(table.codes), data.draw(st.sampled_from([0.1, 0.5, 1.0]))
    groups = data.draw(st.none() | st.lists(st.sets(st.integers(0, n - 1), min_size=1), min_size=1, max_size=5))
    constraints = FeatureConstraints.of(share, groups, n, int(rng.integers(2**32)))
    return {"constraints": constraints, "with_hessian": data.draw(st.booleans()) if every_kernel else True}


def directed(data: st.DataObject, table: CodedTable, rng: np.random.Generator, every_kernel: bool) -> dict[str, Any]:
    direction = rng.integers(-1, 2, len(table.codes)).astype(np.int8)
    return {"direction": direction, "with_hessian": data.draw(st.booleans()) if every_kernel else True}


#: What a tree may be grown with: keywords of `Problem`.
GROWN_WITH = {kind.__name__: kind for kind in (repeated, trimmed, sampled, constrained, directed)}


@EVERY_KERNEL
@pytest.mark.parametrize("kind", GROWN_WITH)
@given(seed=st.integers(0, 2**32), data=st.data())
@examples(40)
def test_whatever_trees_are_grown_with(every_kernel: bool, kind: str, seed: int, data: st.DataObject) -> None:
    """The naive grower knows neither constraints nor directions of features, which naive searches of one node do."""
    table = data.draw(st.one_of(PLAIN, mixed_tables()) if every_kernel and kind == "trimmed" else PLAIN)
    options = GROWN_WITH[kind](data, table, np.random.default_rng(seed), every_kernel)
    problem = Problem(table, data.draw(tree_parameters(every_kernel)), seed, **options)
    expected, leaf = problem.whole(1) if kind in ("constrained", "directed") else problem.naive()
    for tree, found in (
        problem.whole(1),
        problem.whole(2),
        problem.by_rounds([50, 120], 4)[:2],
        problem.by_rounds([9], 30)[:2],
    ):
        assert_equal(tree, expected)
        assert found.tolist() == leaf.tolist()


@pytest.mark.parametrize("trimmed", [0.02, 0.4, 0.9])
@pytest.mark.parametrize("n_columns", [3, pytest.param(2 * TILE_COLUMNS + 1, marks=pytest.mark.slow)])
def test_rows_of_little_influence_sit_out_of_several_stripes(n_columns: int, trimmed: float) -> None:
    table = make_table([20] * n_columns, 2 * STRIPE + 500, 0)
    problem = Problem(table, Parameters(max_leaf_nodes=31), 1, with_hessian=True, trimmed=trimmed)
    expected, leaf, _ = problem.by_rounds([], 100)
    for n_threads in (1, 2, 3):
        tree, found = problem.whole(n_threads)
        assert_equal(tree, expected)
        assert np.array_equal(found, leaf)


#: Tables of several tiles: with four or more for two threads, threads divide the tiles instead of the rows.
MANY_COLUMNS = {
    "numeric": ([20, 40, 17] * 44, [False] * 132),
    "everything": ([20, 40, 17] * 44 + [3] * 20 + [300, 12, 400], [False] * 132 + [True] * 20 + [False, True, True]),
}


@pytest.mark.fast_cells(1)
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


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize(
    "limits", [(1, 0.0), (20, 0.0), (20, 0.1)], ids=["two channels", "three channels", "three, never packed"]
)
@pytest.mark.parametrize("n_columns", [3, 130], ids=["narrow", "wide"])
def test_many_rows(n_columns: int, limits: tuple[int, float]) -> None:
    """More rows than packed buckets hold between flushes, and than a stripe has: threads against one shard and several."""
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


@pytest.mark.parametrize(
    ("least", "max_weight"),
    [(1, None), pytest.param(2, None, marks=pytest.mark.slow), pytest.param(2, 3, marks=pytest.mark.slow)],
)
def test_histograms_stay_packed_as_long_as_sums_fit(least: int, max_weight: int | None) -> None:
    """All gradients and Hessians have their maximum: of the most rows whose sums fit half a word, and of two rows more."""
    weight = max_weight or 1
    packing = precision_of(Parameters(min_samples_leaf=least), False, weight).packing
    most = 2 * ((2**31 - 1) // (packing.max_gradient * weight))
    assert 2**32 - 2**20 < most * packing.max_hessian * weight < 2**32
    for n_rows in (most, most + 2):
        table = make_table([4, 9], n_rows, missing=0.1)
        times = None if max_weight is None else np.full(n_rows, max_weight, np.uint8)
        parameters = Parameters(max_leaf_nodes=4, min_samples_leaf=least)
        problem = Problem(table, parameters, 0, with_hessian=True, times=times)
        problem.gradient[:] = 1.0
        problem.gradient[np.argsort(table.codes[0])[: n_rows // 2]] = -1.0  # a child has as good as all of one sign
        problem.hessian = np.ones(n_rows, np.float32)
        problem.task = problem._task()
        with problem.in_process(2) as engine:
            tree = problem.finished(next(engine.grow([problem.task])))
            assert (engine.grower._buffers.packed is None) == (n_rows > most)
        assert_equal(problem.by_rounds([n_rows // 3], 4)[0], tree)


#: Parameters, whether rows have weights, and how often the root histogram is made anew, per output.
STEADY = {
    "median": ({}, None, 1),
    "categories": ({"categorical_features": [0, 6]}, None, 1),
    "many columns": ({}, None, 1),
    "counts": ({"min_samples_leaf": 5}, None, 1),
    "quantile of large steps": ({"loss": "quantile", "quantile": 0.9, "learning_rate": 1.0}, None, 1),
    "three quantiles": ({"loss": "quantile", "quantile": [0.1, 0.5, 0.9], "max_iter": 4}, None, 3),
    "integer weights": ({"min_samples_leaf": 3}, "whole", 1),
    "weights": ({"l1_regularization": 0.1}, "fractions", 1),
    "samples": ({"subsample": 0.5}, None, 0),
    "a limit, which counts no bytes for it": ({"memory_limit": "1GiB"}, None, 0),
    "huber": ({"loss": "huber"}, None, 0),
}


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("case", STEADY)
def test_root_histograms_that_follow_from_those_of_the_tree_before(
    case: str, n_threads: int, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    """Columns of two values share a byte; of the categories of a case, those of one feature have two-byte codes."""
    options, weights, n_made = STEADY[case]
    rng = np.random.default_rng(0)
    n = 3000
    X = rng.normal(size=(n, 7))
    X[rng.random(X.shape) < 0.1] = np.nan
    X[:, :3], X[:, 6] = rng.integers(2, size=(n, 3)), rng.integers(400, size=n)
    y = np.nan_to_num(X[:, :6]).sum(axis=1) + X[:, 6] % 3 + rng.standard_t(2, n)
    if case == "many columns":  # threads divide the tiles
        X = np.concatenate([X[:, 3:6] + k for k in range(3, 50)], axis=1)
    weight = {None: None, "whole": rng.integers(1, 4, n), "fractions": rng.random(n) + 0.1}[weights]
    calls: list[bool] = []
    add = steady_roots.add_changes
    monkeypatch.setattr(steady_roots, "add_changes", lambda *arguments: calls.append(bool(arguments[5])) or add(*arguments))
    settings: dict[str, Any] = {"loss": "absolute_error", "max_iter": 6, "n_threads": n_threads} | options
    models = []
    for least in (0, 1 << 40):
        tune(steady_values=least)
        models.append(dboost.fit(X, y, sample_weight=weight, progress=False, **settings))
    assert models[0].sha256 == models[1].sha256
    assert sum(calls) == n_made * n_threads
    assert len(calls) == n_made * settings["max_iter"] * n_threads


@pytest.mark.slow
@pytest.mark.parametrize("with_hessian", [pytest.param(False, marks=pytest.mark.slow), True])
def test_trees_without_limits_open_few_leaves_at_a_time(with_hessian: bool) -> None:
    """Without a limit on leaves, the pool of 64 histograms suffices for any tree, chains too."""
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
@examples(30)
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


@pytest.mark.parametrize("with_hessian", [pytest.param(False, marks=pytest.mark.slow), True])
def test_nothing_to_split(with_hessian: bool) -> None:
    """One row, equal gradients, features of one bin: a tree of one leaf, whose value is the best constant."""
    for table in (make_table([5, 300], 1, categorical=[True, False]), make_table([1, 1], 50, missing=0.0)):
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
    sent = answer.compact(np.empty(1000, np.int32))
    assert sent.histograms.dtype == (np.int32 if narrow else np.float64)
    assert np.array_equal(sent.histograms, histograms)
    other = RoundHistograms(np.ones((3, 2, 40), np.int32), np.array([[1, 1]]), np.array([[0.5, 0.0]]))
    sums = RoundSums()
    for part in (sent, other):
        content, buffers = packed(({1: part}, 5, 0.0))
        sums.add(SessionRef("tcp://a", "one"), Message(1, 0, memoryview(content), buffers))
    found = sums.trees[1]
    assert np.array_equal(found.histograms, histograms + 1)
    assert found.n_rows.tolist() == [[5, 6]] and found.leaf_sums.tolist() == [[1.5, 2.0]]


@given(data=st.data(), n=st.integers(0, 70))
@examples(50)
def test_sums_of_answers_are_exact(data: st.DataObject, n: int) -> None:
    """In 32 bits as long as they fit, in the memory of the first answer; in float64 from then on."""
    number = st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from([-(2**31), -(2**30), -1, 0, 1, 2**30, 2**31 - 1]))
    parts = [np.array(data.draw(st.lists(number, min_size=n, max_size=n)), np.int32).reshape(1, 1, n) for _ in range(4)]
    expected = [part.tolist() for part in parts]
    exact, fits = np.zeros((1, 1, n), np.int64), True
    answer = RoundHistograms(parts[0], np.zeros((0, 2), np.int64))
    for k, part in enumerate(parts):
        exact = exact + part
        fits = fits and bool((abs(exact * 2 + 1) < 2**32).all())
        if k:
            answer = answer.merge(RoundHistograms(part, answer.n_rows))
            assert part.tolist() == expected[k]
        assert answer.histograms.dtype == (np.int32 if fits else np.float64)
        assert answer.histograms.tolist() == exact.tolist()
        assert not fits or np.shares_memory(answer.histograms, parts[0]) or n == 0


@pytest.mark.parametrize("with_hessian", [False, True], ids=["constant Hessian", "Hessian"])
@pytest.mark.parametrize("max_weight", [1, 3])
def test_sums_of_few_enough_rows_fit_32_bits(with_hessian: bool, max_weight: int) -> None:
    for least in (1, 20):
        packing = precision_of(Parameters(min_samples_leaf=least), not with_hessian, max_weight).packing
        n_rows = rows_in_32_bits(packing)
        assert n_rows * max_weight * max(packing.max_gradient, packing.max_hessian) < 2**31
        assert 2 * n_rows * max_weight * packing.max_gradient > 2**30
