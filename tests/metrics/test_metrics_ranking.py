"""NDCG and MAP: their definition, ties, partitions, what is refused, and fits in one process and on a cluster."""

from __future__ import annotations

import math
from functools import reduce
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

import dboost
from dboost.losses import BaseLoss, LogLoss, Poisson, SquaredError
from dboost.losses.classification import SoftmaxLogLoss
from dboost.metrics.metric import LossMagnitude, MetricReduction, ScoredRows
from dboost.metrics.named import find_metrics
from tests.helpers.clusters import a_table

KS = st.sampled_from([1, 2, 3, 7, 50, 1000])
NAMES = ["ndcg", "map", "ndcg@1", "map@1", "ndcg@10", "map@10"]
SIZE = LossMagnitude(1.0, 1.0, 1.0, 1000)


def scored(
    target: Any, score: Any, *, loss: BaseLoss | None = None, weight: Any = None, rows: slice = slice(None)
) -> ScoredRows:
    loss = SquaredError() if loss is None else loss
    weight = None if weight is None else np.asarray(weight, float)[rows]
    return ScoredRows(np.asarray(target, float)[rows], np.asarray(score, float)[None, rows], weight, loss, SIZE)


def value(name: str, target: Any, score: Any, cuts: Any = (), **options: Any) -> float:
    (metric,) = find_metrics(name, options.get("loss", SquaredError()))
    borders = [0, *sorted(min(cut, len(target)) for cut in cuts), len(target)]
    parts = [metric.chunk(scored(target, score, rows=slice(a, b), **options)) for a, b in pairwise(borders)]
    return metric.finish(reduce(metric.merge, parts))


def naive_average_precision(target: np.ndarray, score: np.ndarray, k: int) -> float:
    """The mean over all orders of the tied rows; NaN if it is that of all orders."""
    found = []
    for order in permutations(range(len(target))):
        ranked = np.array(order)
        if (np.diff(score[ranked]) > 0).any():
            continue
        hits, total = 0, 0.0
        for position, row in enumerate(ranked[:k], 1):
            if target[row] > 0:
                hits += 1
                total += hits / position
        found.append(total / min(k, max(int((target > 0).sum()), 1)))
    return math.nan if len(set(target > 0)) == 1 else math.fsum(found) / len(found)


def naive_ndcg(target: np.ndarray, score: np.ndarray, k: int) -> float:
    """The mean over all orders of the tied rows; NaN if it is that of all orders."""

    def dcg(ranked: tuple[int, ...]) -> float:
        return math.fsum(target[row] / math.log2(position + 1) for position, row in enumerate(ranked[:k], 1))

    orders = list(permutations(range(len(target))))
    ideal = max(map(dcg, orders))
    kept = [dcg(order) for order in orders if not (np.diff(score[list(order)]) > 0).any()]
    return math.nan if len(set(target)) == 1 else math.fsum(kept) / len(kept) / ideal


@given(n=st.integers(1, 6), k=st.integers(1, 8), seed=st.integers(0, 2**32), distinct=st.integers(1, 8))
def test_the_mean_over_all_orders_of_tied_rows(n: int, k: int, seed: int, distinct: int) -> None:
    rng = np.random.default_rng(seed)
    target, score = rng.integers(0, 3, n).astype(float), rng.integers(0, distinct, n).astype(float)
    assert value(f"map@{k}", target, score) == pytest.approx(naive_average_precision(target, score, k), abs=1e-12, nan_ok=True)
    assert value(f"ndcg@{k}", target, score) == pytest.approx(naive_ndcg(target, score, k), abs=1e-12, nan_ok=True)
    assert value("map", target, score) == pytest.approx(naive_average_precision(target, score, n), abs=1e-12, nan_ok=True)
    assert value("ndcg", target, score) == pytest.approx(naive_ndcg(target, score, n), abs=1e-12, nan_ok=True)


@given(n=st.integers(2, 400), k=KS, seed=st.integers(0, 2**32), ties=st.booleans(), scale=st.sampled_from([1e-300, 1.0, 1e9]))
def test_ndcg_is_scikit_learns(n: int, k: int, seed: int, ties: bool, scale: float) -> None:
    rng = np.random.default_rng(seed)
    score = np.round(rng.normal(size=n)) if ties else rng.normal(size=n)
    target = (rng.integers(0, 5, n) if seed % 2 else rng.gamma(1.0, size=n)) * scale
    target[0] = 7.0 * scale  # NDCG of equal targets is undefined here
    assert value(f"ndcg@{k}", target, score) == pytest.approx(ndcg_score([target], [score], k=k), abs=1e-12)
    assert value("ndcg", target, score) == pytest.approx(ndcg_score([target], [score]), abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@given(
    n=st.integers(1, 300),
    seed=st.integers(0, 2**32),
    distinct=st.sampled_from([1, 3, 20, 10**9]),
    cuts=st.lists(st.integers(0, 300), max_size=6),
)
def test_no_bit_depends_on_the_partitioning(name: str, n: int, seed: int, distinct: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    score = rng.integers(0, distinct, n) * 0.1
    target = np.where(rng.random(n) < 0.3, rng.gamma(1.0, size=n) * 10.0 ** rng.integers(-8, 8, n), 0.0)
    whole = pytest.approx(value(name, target, score), rel=0, abs=0, nan_ok=True)
    assert value(name, target, score, cuts) == whole
    order = rng.permutation(n)
    assert value(name, target[order], score[order], cuts) == whole
    halves = [scored(target, score, rows=slice(first, None, 2)) for first in (0, 1)]
    (metric,) = find_metrics(name, SquaredError())
    assert metric.finish(metric.merge(*map(metric.chunk, reversed(halves)))) == whole


def sizes(metric: MetricReduction, rows: ScoredRows) -> list[int]:
    statistic = metric.chunk(rows)
    return [len(statistic.by_score.key), len(statistic.by_target.key)]


def test_only_the_top_rows_are_sent() -> None:
    rng = np.random.default_rng(0)
    score, target = rng.normal(size=5000), np.round(rng.gamma(1.0, size=5000), 2)
    for name in ("ndcg@10", "map@10"):
        (metric,) = find_metrics(name, SquaredError())
        assert max(sizes(metric, scored(target, score))) <= 10
        merged = metric.merge(metric.chunk(scored(target, score)), metric.chunk(scored(target, score)))
        assert len(merged.by_score.key) <= 10
    (metric,) = find_metrics("ndcg@10", SquaredError())
    tied = sizes(metric, scored(target, np.zeros(5000)))
    assert tied[0] <= 20, "one prediction, with the sums of the tied targets by exponent"
    assert len(metric.chunk(scored(target, np.zeros(5000))).by_target.key) <= 10


def test_lightgbm_and_xgboost_agree_on_map() -> None:
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    rng = np.random.default_rng(3)
    X, y, score = rng.normal(size=(300, 3)), (rng.random(300) < 0.2).astype(int), rng.permutation(300).astype(float)
    options = {"objective": "rank_xendcg", "metric": "map", "eval_at": [5, 20], "verbose": -1, "num_threads": 1}
    train = lightgbm.Dataset(X, y, group=[300], init_score=score)
    history: dict[str, Any] = {}
    keep = [lightgbm.record_evaluation(history)]
    lightgbm.train(options | {"learning_rate": 1e-9}, train, 1, [train], ["eval"], callbacks=keep)  # ranks by the first score
    for k in (5, 20):
        assert value(f"map@{k}", y, score) == pytest.approx(history["eval"][f"map@{k}"][-1], abs=1e-6)
    data = xgboost.DMatrix(score[:, None], y, base_margin=score, group=[300])
    names = ["map@5", "map@20", "ndcg@5"]
    settings = {"eval_metric": names, "objective": "rank:ndcg", "ndcg_exp_gain": False, "nthread": 1}
    found = xgboost.Booster(settings, [data]).eval(data).split()[1:]
    for name, text in zip(names, found, strict=True):
        assert value(name, y, score) == pytest.approx(float(text.rpartition(":")[2]), abs=1e-5)


def test_weights_must_be_equal() -> None:
    target, score = [0, 1, 2, 0], [4, 3, 2, 1]
    assert value("ndcg@3", target, score, weight=[2, 2, 2, 2]) == value("ndcg@3", target, score)
    assert value("map", target, score, weight=[2, 2, 2, 0]) == value("map", target[:3], score[:3]), "weight 0 leaves a row out"
    for cuts in ([], [2]):
        with pytest.raises(dboost.ParameterError, match=r"eval_metric 'ndcg@3' ranks all rows .* between 1 and 2:"):
            value("ndcg@3", target, score, cuts, weight=[1, 1, 2, 2])


@pytest.mark.parametrize("name", NAMES)
def test_negative_targets_are_refused(name: str) -> None:
    with pytest.raises(dboost.DataError, match=rf"eval_metric '{name}': .* must not be negative, but one is -1"):
        value(name, [3, 2, -1, 0], [3, 2, 1, 0], [2])


@pytest.mark.parametrize("name", ["ndcg@0", "map@-1", "ndcg@", "map@1.5", "ndcg@k", "ndcg@10-", "map@²"])
def test_k_is_a_positive_integer(name: str) -> None:
    with pytest.raises(dboost.ParameterError, match="must be a positive integer, as in"):
        find_metrics(name, SquaredError())


def test_names() -> None:
    for loss in (SquaredError(), Poisson(), LogLoss()):
        for name in NAMES:
            (metric,) = find_metrics(name, loss)
            assert (metric.name, metric.spec, metric.greater_is_better) == (name, name, True)
        with pytest.raises(dboost.ParameterError, match="ndcg, map, ndcg@k, map@k, or give"):
            find_metrics("lambda@3", loss)
    with pytest.raises(dboost.ParameterError, match="'ndcg@3' does not go with"):
        find_metrics("ndcg@3", SoftmaxLogLoss(3))


OPTIONS: dict[str, Any] = {"max_leaf_nodes": 7, "progress": False, "early_stopping_rounds": 3, "max_iter": 40}


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("loss", ["squared_error", "poisson", "log_loss"])
def test_the_metric_of_the_best_iteration_is_that_of_the_predictions(loss: str) -> None:
    frame = a_table(900).drop(columns=["w", "t"])
    if loss == "log_loss":
        frame = frame.drop(columns="y").assign(target=lambda f: f.pop("z"))
    else:
        frame = frame.drop(columns="z").assign(target=lambda f: np.round(np.exp(f.pop("y").clip(-3, 3))))
    train, held = frame[:600], frame[600:]
    options = OPTIONS | {"loss": loss, "eval_metric": ["map@20", "ndcg", "map", "ndcg@20"]}
    here = dboost.fit(train, "target", eval_set={"held": held}, **options)
    best = here.history["held_ndcg@20"]
    assert here.best_iteration == best.idxmax() + 1
    assert len(best) < 40
    score = here.predict_proba(held).iloc[:, 1] if loss == "log_loss" else here.predict(held)
    truth = held["target"].astype("category").cat.codes if loss == "log_loss" else held["target"]
    assert best.max() == pytest.approx(ndcg_score([truth], [score], k=20), abs=1e-12)
