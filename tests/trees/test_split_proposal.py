"""Split candidates: for the fit, for a tree, for a node, at every value; with the documented errors of rank."""

from __future__ import annotations

import math
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss

import dboost
from dboost.data.columns import binning
from dboost.errors import DataError, ParameterError
from dboost.kernels.bins import quantile_fine_bins
from dboost.rows.bin_proposal import FINE_BINS_PER_BIN, BinMerge, merge_into_bins
from dboost.rows.row_sample import RowSubset, Sample
from dboost.rows.shard import BinnedColumns
from dboost.rows.shard_spec import plan_layout
from dboost.rows.statistics import fine_bin_hessians
from tests.helpers.compiled import compiled
from tests.helpers.fits import FEATURES, mixed_frame, saved
from tests.helpers.tables import shard_of, spec_of
from tests.helpers.tune import Tune

FRAME = mixed_frame(1500)


@pytest.fixture(autouse=True)
def several_threads_for_small_tables(tune: Tune) -> None:
    tune(small_cells=0)


# The rule that merges fine bins into bins.


def naive_bins(mass: np.ndarray, most: int) -> np.ndarray:
    """Return the last fine bin of each bin, by the rule that proposes bins for a whole table."""
    used = np.flatnonzero(mass > 0)
    if not len(used):
        return np.array([len(mass) - 1])
    if len(used) <= most:
        return used
    ends = used[binning.quantile_positions(np.cumsum(mass[used]).astype(float), most)]
    return np.append(ends, used[-1])


masses = st.lists(
    st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 5000)), min_size=1, max_size=80
).map(lambda values: np.array(values, np.float64))  # fmt: skip


@given(masses, st.integers(2, 30))
def test_cells_are_joined_as_the_bins_of_a_table_are(mass: np.ndarray, most: int) -> None:
    last = np.full(most, -1)
    n = compiled(quantile_fine_bins)(mass, most, last)
    np.testing.assert_array_equal(last[:n], naive_bins(mass, most))


@given(masses, st.integers(2, 30))
def test_a_bin_has_its_share_and_at_most_its_last_cell_more(mass: np.ndarray, most: int) -> None:
    last = np.zeros(most, int)
    n = compiled(quantile_fine_bins)(mass, most, last)
    assert 1 <= n <= most
    first = 0
    for end in last[:n]:
        assert mass[first:end].sum() <= mass.sum() / most  # without its last fine bin
        first = end + 1
    assert not mass[first:].any()


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_tree_s_bins_follow_from_the_hessians_of_its_rows(sampled: bool, weighted: bool) -> None:
    rng = np.random.default_rng(5)
    n, n_cells = 3000, np.array([1000, 200, 12, 300])
    is_categorical = np.array([False, False, False, True])
    wide = np.stack([rng.integers(0, k + 1, n) for k in (1000, 300)]).astype(np.uint16)
    narrow = np.stack([rng.integers(0, k + 1, n) for k in (200, 12)]).astype(np.uint8)
    layout = plan_layout(n_cells, is_categorical)
    bins = plan_layout(np.array([40, 40, 12, 300]), is_categorical)
    weight = rng.integers(1, 4, n).astype(float) if weighted else None
    codes = BinnedColumns(narrow, wide, np.array([-1, 0, 1, -2]))
    shard = shard_of(
        codes, spec_of(layout, tree_layout=bins, weighted=weighted, integer_weights=weighted), np.zeros(n), weight,
        np.zeros((1, n)),
    )  # fmt: skip
    assert shard.hessian is not None
    shard.hessian[:] = rng.gamma(0.5, size=(1, n)).astype(np.float32)
    part = RowSubset(Sample(1, 2**63) if sampled else None, 0, 0)
    found = fine_bin_hessians.compute(shard, 0, 1100, part, 100.0) + fine_bin_hessians.compute(shard, 1100, n, part, 100.0)

    taken = np.arange(n) if not sampled else shard.sampled_rows(*part)
    assert taken is not None and (len(taken) < n) == sampled
    mass = np.maximum(np.rint(shard.hessian[0] * np.float32(100)), 1) * (1 if weight is None else weight)
    cells = BinMerge.propose(found, layout, bins)
    merge_into_bins(cells, shard, 0, 1500)
    merge_into_bins(cells, shard, 1500, n)
    for feature in range(4):
        here = np.bincount(codes.of(feature)[taken], mass[taken], n_cells[feature] + 1)
        if n_cells[feature] == bins.n_bins[feature]:
            np.testing.assert_array_equal(shard.tree_codes.of(feature), codes.of(feature))
            continue
        np.testing.assert_array_equal(found[layout.offset[feature] : layout.offset[feature + 1]], here)
        ends = naive_bins(here[:-1], 40)
        ends[-1] = n_cells[feature] - 1  # rows that are left out need a bin, too
        expected = np.searchsorted(ends, codes.of(feature))
        expected[codes.of(feature) == n_cells[feature]] = 40
        np.testing.assert_array_equal(shard.tree_codes.of(feature), expected)


# Whole fits.


def rows_of_nodes(tree: pd.DataFrame, X: np.ndarray) -> dict[int, np.ndarray]:
    """Return the rows that reach each node: bool[n_rows]."""
    reached = {0: np.ones(len(X), bool)}
    for node in tree.sort_values("node").itertuples():
        if node.left >= 0:
            x = X[:, int(node.feature[1:])]
            left = np.where(np.isnan(x), bool(node.missing_left), x <= node.threshold)
            reached[node.left], reached[node.right] = reached[node.node] & left, reached[node.node] & ~left
    return reached


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("proposal", ["tree", "node", "exact"])
def test_every_split_is_the_best_of_its_candidates(proposal: str) -> None:
    """Return the bins by a naive search of all nodes: least squares, so that masses are numbers of rows."""
    rng = np.random.default_rng(3)
    n, most = 1200, 8
    X = rng.normal(size=(n, 3))
    X[:, 1] = np.exp(2 * X[:, 1])
    X[:, 2] = np.round(X[:, 2] * 3)
    X[rng.random(X.shape) < 0.04] = np.nan
    y = np.nan_to_num(X[:, 0]) ** 2 + np.log1p(np.nan_to_num(X[:, 1])) + np.isnan(X[:, 2]) + rng.normal(size=n) / 5
    settings: dict[str, Any] = {} if proposal == "exact" else {"max_bins": most}
    booster = dboost.fit(
        X, y, split_proposal=proposal, max_iter=2, max_leaf_nodes=12, min_samples_leaf=1, min_hessian=0.0,
        l2_regularization=0.0, progress=False, **settings,
    )  # fmt: skip
    raw = np.full(n, y.mean())
    cells = FINE_BINS_PER_BIN * most if proposal == "node" else 65_535
    edges = [binning.propose(x, None, cells) for x in X.T]
    codes = np.stack([np.searchsorted(edge, x) for edge, x in zip(edges, X.T, strict=True)], axis=1)
    for iteration, tree in booster.to_frame().groupby("iteration"):
        residual = y - raw
        reached = rows_of_nodes(tree, X)
        for node in tree[tree.left >= 0].itertuples():
            rows, best, chosen = reached[node.node], -1.0, -1.0
            seen = rows if proposal == "node" else np.ones(n, bool)
            for j in range(3):
                there = ~np.isnan(X[:, j])
                mass = np.bincount(codes[seen & there, j], minlength=len(edges[j]) + 1)
                ends = np.flatnonzero(mass) if proposal == "exact" else naive_bins(mass, most)
                for end in ends:
                    for missing_left in (False, True):
                        left = rows & np.where(there, codes[:, j] <= end, missing_left)
                        right = rows & ~left
                        if not left.any() or not right.any():
                            continue
                        gain = residual[left].sum() ** 2 / left.sum() + residual[right].sum() ** 2 / right.sum()
                        gain -= residual[rows].sum() ** 2 / rows.sum()
                        best = max(best, gain)
                        threshold = edges[j][end] if end < len(edges[j]) else np.inf
                        if f"f{j}" == node.feature and threshold == node.threshold and missing_left == node.missing_left:
                            chosen = gain
            if chosen < 0:  # a default direction that nothing depends on may be stored either way
                assert not np.isnan(X[rows, int(node.feature[1:])]).any()
                left = rows & (X[:, int(node.feature[1:])] <= node.threshold)
                right = rows & ~left
                chosen = residual[left].sum() ** 2 / left.sum() + residual[right].sum() ** 2 / right.sum()
                chosen -= residual[rows].sum() ** 2 / rows.sum()
            assert chosen == pytest.approx(best, rel=2e-3), (iteration, node)
        raw = np.asarray(booster.predict(X, iteration_range=(0, int(iteration) + (booster.to_frame().iteration.min() == 0))))


@pytest.mark.parametrize("proposal", ["tree", "node", "exact"])
def test_with_few_distinct_values_all_proposals_are_one(proposal: str) -> None:
    frame = FRAME.assign(x=FRAME.x.round(1), size=FRAME["size"].round(1))
    for target in ("y", "late", "grade"):
        plain, other = (
            dboost.fit(frame, target, features=FEATURES, max_iter=5, split_proposal=which, progress=False)
            for which in ("global", proposal)
        )
        pd.testing.assert_frame_equal(other.to_frame(), plain.to_frame())


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize(
    ("subsample", "proposal"),
    [(1.0, "tree"), (1.0, "node"), (1.0, "exact"), (0.5, "tree")]
    + [pytest.param(0.5, proposal, marks=pytest.mark.slow) for proposal in ("node", "exact")],
)
def test_what_was_trained_is_what_is_predicted(proposal: str, subsample: float) -> None:
    """Thresholds of finished trees divide the rows as their bins did, also rows that were left out and evaluation rows."""
    train, test = FRAME[:1000], FRAME[1000:]
    settings: dict[str, Any] = {"features": FEATURES, "subsample": subsample, "split_proposal": proposal, "max_iter": 20}
    booster = dboost.fit(train, "late", eval_set=test, progress=False, **settings)
    last = booster.history.iloc[-1]
    assert last.train_loss == pytest.approx(log_loss(train.late, booster.predict_proba(train)))
    assert last.eval_log_loss == pytest.approx(log_loss(test.late, booster.predict_proba(test)))


def test_a_model_with_very_many_cells_keeps_its_file_small() -> None:
    booster = dboost.fit(FRAME, "y", features=FEATURES, max_iter=2, split_proposal="tree", progress=False)
    assert len(saved(booster)) < 20_000
    curve = booster.partial_dependence(["x"])
    assert len(curve) > 2  # then the grid comes from the trees


# Errors.


def test_too_many_distinct_values_for_an_exact_search(client: Client) -> None:
    n = binning.MAX_FINE_BINS + 1
    frame = pd.DataFrame({"few": np.arange(n) % 7, "many": np.arange(n) / 3, "y": np.arange(n) % 5})
    for data, where in ((frame, None), (dd.from_pandas(frame, npartitions=3, sort=False), client)):
        with pytest.raises(DataError, match=r"'many' has more than 65,535 distinct values.*'node'"):
            dboost.fit(data, "y", loss="squared_error", split_proposal="exact", max_iter=1, client=where)
    frame = frame[1:]
    booster = dboost.fit(frame, "y", loss="squared_error", split_proposal="exact", max_iter=1, max_leaf_nodes=3, progress=False)
    assert booster.n_iter_ == 1


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ParameterError, match="max_bins=16 has no effect with split_proposal='exact'"):
        dboost.fit(FRAME, "y", features=FEATURES, split_proposal="exact", max_bins=16)


# Samples.


def rank_error(n_rows: int, confidence: float = 0.95) -> float:
    """The bound of Dvoretzky, Kiefer, Wolfowitz and Massart, see `rows.bin_proposal`."""
    return math.sqrt(math.log(2.0 / (1.0 - confidence)) / (2.0 * n_rows))


def test_the_rank_error_of_a_sample_is_what_is_promised(tune: Tune) -> None:
    n, n_sample = 30_000, 1000
    tune(bin_sample_rows=n_sample)
    values = np.sort(np.random.default_rng(0).lognormal(size=n))
    bound = rank_error(n_sample)
    assert bound == pytest.approx(1.36 / np.sqrt(n_sample), rel=2e-3)
    errors = []
    for seed in range(200):
        rows = binning.sample_rows(n, seed)
        edges = binning.propose(values[rows], None, 50)
        ranks = np.searchsorted(values, edges, side="right") / n
        # The k-th edge is the smallest sampled value with k / 50 of the sample below or at it: one row of slack.
        errors.append(np.abs(ranks - np.arange(1, 50) / 50).max() - 1 / len(rows))
    assert np.mean(np.array(errors) <= bound) >= 0.9
    # Not far better, or the bound would be useless.
    assert np.quantile(errors, 0.95) > 0.6 * bound


def test_a_memory_limit_is_not_promised_for_bins_that_change() -> None:
    with pytest.raises(ParameterError, match="split_proposal='tree' cannot keep a memory_limit"):
        dboost.fit(FRAME, "y", features=FEATURES, split_proposal="tree", memory_limit="2GiB")
