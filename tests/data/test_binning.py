"""Split points: few distinct values get a bin each, many get quantiles, and neither order nor partitions matter."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.data import open_table
from dboost.data.columns.binning import Binning, between, propose, propose_all, sample_rows
from dboost.data.columns.roles import kept_rows
from dboost.interop.export import nearest_float32
from dboost.rows.encode import encode_table, sampled
from dboost.rows.shard_spec import plan_layout
from dboost.tuning import Tuning, tuned
from tests.helpers.naive import bins as naive
from tests.helpers.tune import Tune

COUNTS = st.lists(st.integers(1, 50), min_size=1, max_size=60)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def bin_of(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.searchsorted(edges, values, side="left")


@given(values=st.lists(FINITE, min_size=1, max_size=50), extra=st.integers(0, 5))
def test_few_values_have_a_bin_each_with_borders_half_way(values: list[float], extra: int) -> None:
    column = np.array(values)
    distinct = np.unique(column)
    edges = propose(column, None, max(len(distinct) + extra, 2))
    assert len(edges) == len(distinct) - 1
    assert bin_of(distinct, edges).tolist() == list(range(len(distinct)))
    for lower, edge, upper in zip(distinct, edges, distinct[1:], strict=False):
        assert lower <= edge < upper
        margin = max(edge / 2 - lower / 2, 0.0), upper / 2 - edge / 2  # halves, which do not overflow
        assert min(margin) >= 0.2 * sum(margin) or upper - lower < 1e-322 or upper / 2 - lower / 2 < 4 * np.spacing(abs(edge))


def test_candidates_are_midpoints_or_half_a_step_beside_them() -> None:
    for values, expected in (
        ([0, 1, 2, 5, 9], [0.5, 1.5, 3.5, 7.5]),
        ([-3, -1, 4], [-2, 1.5]),  # the step is 2
        ([0.1, 0.2, 0.4, 0.7], [0.15, 0.35, 0.55]),
        ([1e6, 1e6 + 0.01, 1e6 + 0.05], [1e6 + 0.005, 1e6 + 0.035]),
        ([0, 1, 3.3], [0.5, 2.15]),  # no grid
        ([0, 1e-9, 1, 3], [5e-10, 0.5, 2]),
    ):
        np.testing.assert_allclose(between(np.array(values, np.float64)), expected, rtol=0, atol=1e-8)


def test_neighbours_without_a_number_between() -> None:
    for lower in (1.0, 0.0, -1.0, 1e300, -5e-324):
        upper = np.nextafter(lower, np.inf)
        assert between(np.array([lower, upper])).tolist() == [lower]
    largest = np.finfo(np.float64).max
    assert between(np.array([-largest, largest])).tolist() == [0.0]
    assert np.isfinite(between(np.array([largest / 2, largest]))).all()


@given(counts=st.lists(st.integers(1, 50), min_size=3, max_size=60), seed=st.integers(0, 2**32), data=st.data())
def test_proposals_of_many_values(counts: list[int], seed: int, data: st.DataObject) -> None:
    max_bins = data.draw(st.integers(2, len(counts) - 1))
    rng = np.random.default_rng(seed)
    distinct = np.sort(rng.normal(size=len(counts)))
    column = np.repeat(distinct, counts)
    edges = propose(column, None, max_bins)
    assert 1 <= len(edges) <= max_bins - 1
    assert (np.diff(edges) > 0).all()
    at = np.searchsorted(distinct, edges)
    lower, upper = distinct[at - 1], distinct[at]
    assert (at > 0).all(), "no candidate leaves nothing on a side"
    margin = np.minimum(edges - lower, upper - edges) / (upper - lower)
    assert (margin > 0.2).all(), "candidates are between values that occur, far from both"
    shuffled = rng.permutation(np.append(column, [np.nan] * data.draw(st.integers(0, 5))))
    assert np.array_equal(propose(shuffled, None, max_bins), edges), "neither order nor missing values matter"
    assert np.array_equal(propose(shuffled.astype(object).astype(np.float64), np.ones(len(shuffled)), max_bins), edges)
    once = np.repeat(distinct, 1)
    assert np.array_equal(propose(once, np.array(counts, np.float64), max_bins), edges), "weight n is n times the row"
    moved = propose(np.exp(column), None, max_bins)
    assert np.array_equal(bin_of(np.exp(column), moved), bin_of(column, edges)), "a monotone map moves borders along"


@given(counts=COUNTS, seed=st.integers(0, 2**32))
def test_bins_are_about_equally_heavy(counts: list[int], seed: int) -> None:
    """No bin of several values has much more than its fraction of the weight, whatever the heavy values."""
    rng = np.random.default_rng(seed)
    n_distinct, max_bins = 2000, 64
    heavy = np.ones(n_distinct, np.int64)
    heavy[rng.integers(n_distinct, size=min(len(counts), 25))] *= 1000
    column = np.repeat(rng.normal(size=n_distinct), heavy)
    edges = propose(column, None, max_bins)
    bins = bin_of(column, edges)
    weight = np.bincount(bins, minlength=len(edges) + 1)
    several = np.array([len(np.unique(column[bins == b])) > 1 for b in range(len(edges) + 1)])
    own = np.unique(column[np.isin(column, np.unique(column)[np.bincount(np.searchsorted(np.unique(column), column)) > 500])])
    assert not several[bin_of(own, edges)].any(), "a heavy value has a bin of its own"
    share = (heavy == 1).sum() / (max_bins - 2 * len(own))
    assert weight[several].max() <= 1.5 * share + 1
    assert len(edges) >= max_bins - 2 * len(own) - 1, "and the others share what is left"


@given(n=st.integers(3, 600), n_values=st.integers(2, 900), max_bins=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_weights_of_one_change_no_proposal(n: int, n_values: int, max_bins: int, seed: int) -> None:
    """Counts of rows have a shorter way to the quantiles than sums of weights."""
    values = np.random.default_rng(seed).integers(0, n_values, n).astype(np.float32)
    assert np.array_equal(propose(values, None, max_bins), propose(values, np.ones(n), max_bins))


@pytest.mark.parametrize("n", [255 * 20, 100_000])
def test_quantiles_are_the_inverted_distribution_function(n: int) -> None:
    column = np.random.default_rng(0).exponential(size=n)
    edges = propose(column, None, 255)
    expected = np.quantile(column, np.arange(1, 255) / 255, method="inverted_cdf")
    assert len(edges) == 254
    assert (np.abs(np.searchsorted(np.sort(column), edges) - np.searchsorted(np.sort(column), expected)) <= 1).all()
    assert np.bincount(bin_of(column, edges)).max() <= n // 255 + 2


@given(seed=st.integers(0, 2**32), spread=st.sampled_from([1e-6, 1.0, 15.0]))
def test_candidates_between_float32_numbers_are_compared_alike_in_float32(seed: int, spread: float) -> None:
    """XGBoost and ONNX compare a float32 row with the float32 nearest to the threshold."""
    rng = np.random.default_rng(seed)
    values = np.unique(np.exp(spread * rng.normal(size=60)).astype(np.float32)).astype(np.float64)
    edges = between(values)
    thresholds = nearest_float32(edges)
    for step in range(-2, 3):
        rows = thresholds.copy()
        for _ in range(abs(step)):
            rows = np.nextafter(rows, np.float32(np.copysign(np.inf, step)))
        np.testing.assert_array_equal(rows <= thresholds, rows.astype(np.float64) <= edges)


@pytest.mark.parametrize("max_bins", [3, 20])
@pytest.mark.parametrize("step", [1.0, 0.01, 2.0**-30, 1e300, 5e-324])
def test_candidates_of_many_values_are_not_on_their_grid(step: float, max_bins: int) -> None:
    """A row that is not in the sample may have any multiple of the step."""
    rng = np.random.default_rng(max_bins)
    multiples = np.flatnonzero(rng.random(200) < 0.4) - 100
    multiples = multiples[np.abs(multiples * step) < np.inf]
    edges = propose(multiples * step, None, max_bins)
    assert len(edges) == max_bins - 1
    if step == 5e-324:  # there is nothing between neighbors, and a candidate is the lower one
        assert np.isin(edges, np.arange(-100, 100) * step).all()
    else:
        np.testing.assert_allclose(np.abs(edges / step % 1.0 - 0.5), 0.0, atol=1e-9)


def test_candidates_between_huge_neighbors_and_numbers_without_a_step() -> None:
    largest = np.finfo(np.float64).max
    for values in (
        np.linspace(-1.0, 1.0, 50) * largest,
        np.append(np.arange(1.0, 50) * 5e-324, largest),
        1e308 * np.arange(-1, 1.8, 0.1),
    ):
        values = np.unique(values)
        edges = propose(values, None, 9)
        at = np.searchsorted(values, edges, side="right")
        assert len(edges) == 8
        assert np.isfinite(edges).all()
        assert (values[at - 1] <= edges).all()
        assert (edges < values[at]).all()


def numbers(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return a matrix of features with more distinct values than bins."""
    normal = rng.normal(size=(n, 4))
    if kind == "cents":
        return np.round(normal * 3, 2)
    if kind == "large":
        return normal * 1e12
    if kind == "small":
        return normal * 1e-20
    if kind == "skewed":
        return np.exp(4 * normal)
    if kind == "single":
        return normal.astype(np.float32)
    return normal


ROUNDED = {
    "12 digits": lambda X: np.array([[float(f"{x:.11e}") for x in row] for row in X]),
    "float32": lambda X: X.astype(np.float32),
    "text": lambda X: np.array([[float(f"{x:.9g}") for x in row] for row in X]),
    "JSON": lambda X: np.array(json.loads(json.dumps(X.tolist()))),
    "other last bit": lambda X: np.nextafter(X, np.inf),
}


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"max_bins": 64}) for kind in ("normal", "cents", "large", "small", "skewed", "single")),
        *((kind, {"max_bins": 64, "split_proposal": of}) for kind in ("normal", "cents") for of in ("tree", "node")),
        ("cents", {"split_proposal": "exact"}),
        ("normal", {"max_bins": 64, "weighted": True}),
    ],
)
def test_rounded_features_have_the_same_predictions(kind: str, options: dict) -> None:
    rng = np.random.default_rng(5)
    n = 900
    X = numbers(kind, n, rng)
    y = np.argsort(np.argsort(X[:, 0])) / n + (X[:, 1] > X[:, 2])
    weight = rng.integers(0, 3, n).astype(np.float64) if "weighted" in options else None
    options = {name: value for name, value in options.items() if name != "weighted"}
    booster = dboost.fit(X, y, sample_weight=weight, max_iter=20, min_samples_leaf=5, **options)
    expected = booster.predict(X)
    for name, rounded in ROUNDED.items():
        np.testing.assert_array_equal(booster.predict(rounded(X)), expected, err_msg=name)
    if kind == "cents":  # and so have rows of values that no training row has
        other = numbers(kind, 3000, rng)
        np.testing.assert_array_equal(booster.predict(other.astype(np.float32)), booster.predict(other))


def test_thresholds_are_between_values_wherever_they_are_proposed(tmp_path: Path, tune: Tune) -> None:
    """From a sample, from prepared rows, from partitions, from a range of columns at a time: the same thresholds."""
    import dask.dataframe as dd

    rng = np.random.default_rng(2)
    data = pd.DataFrame(np.round(rng.normal(size=(3000, 3)) * 5, 2), columns=list("abc"))
    data["y"] = np.sin(data["a"]) + data["b"] * data["c"]
    tune(bin_sample_rows=1000)
    options: dict = {"max_iter": 20, "max_bins": 100}
    booster = dboost.fit(data, "y", **options)
    expected = booster.predict(data)
    assert not np.isin(booster.to_frame()["threshold"].dropna(), data[["a", "b", "c"]].to_numpy()).any()
    np.testing.assert_array_equal(booster.predict(data.astype(np.float32)), expected)
    assert dboost.fit(dd.from_pandas(data, npartitions=4), "y", **options) == booster
    dboost.prepare(data, "y", tmp_path / "data", max_bins=100)
    assert dboost.fit(tmp_path / "data", "y", **options) == booster
    tune(sampled_bytes=1)
    assert dboost.fit(data, "y", **options) == booster
    continued = dboost.fit(data, "y", start_from=booster, **options)
    np.testing.assert_array_equal(continued.predict(data.astype(np.float32)), continued.predict(data))


def test_nothing_to_cut() -> None:
    assert len(propose(np.full(10, np.nan), None, 255)) == 0
    assert len(propose(np.full(10, 3.5), None, 255)) == 0
    assert len(propose(np.empty(0), None, 255)) == 0


def test_signed_zeros_are_one_value() -> None:
    assert len(propose(np.array([0.0, -0.0, 0.0]), None, 255)) == 0
    a, b = (propose(np.array([*zeros, *np.arange(1.0, 300)]), None, 255) for zeros in ([0.0, -0.0], [-0.0, 0.0]))
    assert a.tobytes() == b.tobytes()


# The sample.


def test_small_tables_are_their_own_sample() -> None:
    assert np.array_equal(sample_rows(Tuning.bin_sample_rows, 5), np.arange(Tuning.bin_sample_rows))
    assert np.array_equal(sample_rows(1, 0), [0])


@pytest.mark.parametrize("seed", [0, 1, 2**62])
def test_the_sample_is_a_function_of_seed_and_row_number(seed: int, tune: Tune) -> None:
    tune(bin_sample_rows=400)
    from tests.helpers.naive.rows import splitmix

    rows = sample_rows(2000, seed)
    threshold = int(400 / 2000 * 2.0**64)
    assert rows.tolist() == [row for row in range(2000) if splitmix(seed, row) < threshold]
    assert 300 < len(rows) < 500
    assert not np.array_equal(rows, sample_rows(2000, seed + 1))


def frame(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "single": rng.normal(size=n).astype(np.float32),
            "double": rng.normal(size=n),
            "whole": rng.integers(-1000, 1000, n),
            "gaps": np.where(rng.random(n) < 0.3, np.nan, rng.integers(5, size=n)),
            "kind": pd.Categorical(rng.choice(["a", "b", "c"], n)),
            "y": rng.normal(size=n),
        }
    )


@given(cuts=st.lists(st.integers(0, 500), max_size=6), seed=st.integers(0, 100), weighted=st.booleans())
def test_binning_and_codes_do_not_depend_on_partitions(cuts: list[int], seed: int, weighted: bool) -> None:
    """Half of the rows are sampled; two threads encode them; some rows have weight zero."""
    import dask.dataframe as dd

    data = frame(500)
    weight = None
    if weighted:
        data["w"] = np.random.default_rng(seed).integers(0, 3, 500).astype(np.float64)
        weight = "w"
    borders = [0, *sorted(cuts), 500]
    pieces = [data.iloc[a:b] for a, b in pairwise(borders)]
    cut = dd.from_map(lambda piece: piece, pieces, meta=data.iloc[:0])
    found = []
    for source in (data, cut):
        with tuned(bin_sample_rows=200), open_table(source, "y", sample_weight=weight) as table:
            kept = kept_rows(table.weight)
            rows = sample_rows(table.n_rows if kept is None else len(kept), seed)
            rows = rows if kept is None else kept[rows]
            samples = zip(*(columns for _, columns in sampled(table, rows, n_threads=2)), strict=True)
            columns = [np.concatenate(column) for column in samples] + [None]
            weights = None if table.weight is None else table.weight[rows]
            proposed = Binning(table.features, propose_all(columns, weights, 20, 2))
            layout = plan_layout(proposed.n_bins, proposed.is_categorical)
            codes = encode_table(table, proposed, layout, kept, 2)
            found.append((proposed, codes))
    (whole, whole_codes), (parts, parts_codes) = found
    for a, b in zip(whole.edges, parts.edges, strict=True):
        assert (a is None and b is None) or a.tobytes() == b.tobytes()
    assert np.array_equal(whole_codes.narrow, parts_codes.narrow)
    # The codes equal the naive codes of the rows with positive weight.
    rows = np.arange(500) if weight is None else np.flatnonzero(data["w"] > 0)
    for feature, column in enumerate(["single", "double", "whole", "gaps"]):
        edges = whole.edges[feature]
        expected = [naive.code(float(value), edges.tolist()) for value in data[column].to_numpy()[rows]]
        assert whole_codes.of(feature).tolist() == expected
    assert whole_codes.of(4).tolist() == [["a", "b", "c"].index(level) for level in data["kind"].to_numpy()[rows]]


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(40_000, 3), (500, 1000), (3, 40_000)])
def test_sampled_rows_of_a_matrix_are_turned_by_blocks(shape: tuple[int, int], order: str) -> None:
    rng = np.random.default_rng(0)
    matrix = np.asarray(rng.normal(size=shape), order=order)  # type: ignore[call-overload]
    rows = np.flatnonzero(rng.random(len(matrix)) < 0.9)
    table = open_table(matrix, np.zeros(len(matrix)))
    for n_threads in (1, 2):
        ((i, columns),) = sampled(table, rows[:-1], n_threads=n_threads)
        assert i == 0
        np.testing.assert_array_equal(columns, matrix[rows[:-1]].T)
