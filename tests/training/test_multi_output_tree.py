"""Trees of several outputs: their structure and leaf values against naive twins, continued fits, what is refused."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import dboost
from dboost import Booster, ParameterError
from dboost.kernels.multi_output import BLOCK, TOGETHER, project_gradients, sum_outputs, sum_products
from dboost.losses.gradient_pass import GradientRows
from dboost.model.ensemble import Tree
from dboost.training.directions import Directions
from tests.helpers.fits import saved
from tests.helpers.naive import trees as naive_trees

ONE_TREE: dict[str, Any] = {"multi_strategy": "multi_output_tree", "loss": "log_loss"}


def table(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of four features with few values, some of them missing, and classes that depend on the features."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 12, (n, 4)) / 4.0
    scores = np.column_stack([X[:, 0] * X[:, 1], 2 * np.sin(3 * X[:, 2]), X[:, 3] > 1]) @ rng.normal(size=(3, n_classes))
    y = (scores - scores.mean(axis=0) + rng.gumbel(size=(n, n_classes))).argmax(axis=1)
    X[rng.random(X.shape) < 0.05] = np.nan
    return X, y


class Twin:
    """The derivatives of a model's rows before an iteration, in float64."""

    def __init__(self, model: Booster, X: np.ndarray, y: np.ndarray, w: np.ndarray, iteration: int) -> None:
        raw = np.array(naive_trees.raw_scores(model.ensemble, X.tolist(), iteration - 1))
        e = np.exp(raw - raw.max(axis=1, keepdims=True))
        self.p, self.w, self.n_classes = e / e.sum(axis=1, keepdims=True), w, raw.shape[1]
        self.gradient = (self.p - (y[:, None] == np.arange(self.n_classes))) * w[:, None]
        self.hessian = self.p * (1 - self.p) * w[:, None]
        drawn = Directions(self.n_classes, True, 0).drawn(iteration).astype(np.float64)
        along = self.gradient @ drawn
        self.direction = drawn
        if iteration % 2 == 0:
            c = (self.gradient * (along / w)[:, None]).sum(axis=0)
            self.direction = (c - c.mean()) * np.sqrt(self.n_classes) / np.linalg.norm(c - c.mean())
        c = self.direction
        self.g = self.gradient @ c
        self.h = w * (self.p @ c**2 - (self.p @ c) ** 2)

    def gain(self, rows: np.ndarray, goes_left: np.ndarray) -> float:
        sides = rows[goes_left], rows[~goes_left]
        if min(map(len, sides)) < 20 or min(self.h[side].sum() for side in sides) < 1.0:
            return -np.inf
        return sum(self._score(side) for side in sides) - self._score(rows)

    def _score(self, rows: np.ndarray) -> float:
        return 0.5 * self.g[rows].sum() ** 2 / (self.h[rows].sum() + 1.0)

    def best_gain(self, X: np.ndarray, rows: np.ndarray) -> float:
        found = -np.inf
        for values in X[rows].T:
            for cut in np.unique(values[~np.isnan(values)]):
                for missing_left in (False, True):
                    found = max(found, self.gain(rows, np.where(np.isnan(values), missing_left, values <= cut)))
            found = max(found, self.gain(rows, ~np.isnan(values)))
        return found


def nodes_of(tree: Tree, X: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each node, its rows, and which of them go left; none do in a leaf."""
    rows_of = {0: np.arange(len(X))}
    for node in range(tree.n_nodes):
        rows = rows_of[node]
        if tree.feature[node] < 0:
            yield node, rows, np.zeros(len(rows), bool)
            continue
        values = X[rows, tree.feature[node]]
        left = np.where(np.isnan(values), tree.missing_left[node], values <= tree.threshold[node])
        rows_of[tree.left[node]], rows_of[tree.right[node]] = rows[left], rows[~left]
        yield node, rows, left


@pytest.mark.parametrize(("n_classes", "weights"), [(3, None), (7, "whole"), (4, "fractions")])
def test_a_model_is_that_of_the_twin(n_classes: int, weights: str | None) -> None:
    """Splits have the largest gain along the direction, leaves the Newton steps of all outputs, gains are sums over outputs."""
    X, y = table(500, n_classes)
    w = np.ones(len(X))
    if weights is not None:
        rng = np.random.default_rng(1)
        w = rng.integers(1, 5, len(X)).astype(float) if weights == "whole" else rng.random(len(X)) + 1.0
    given = None if weights is None else w
    model = dboost.fit(X, y, sample_weight=given, max_iter=6, max_leaf_nodes=6, n_threads=1, **ONE_TREE)
    assert model.ensemble.width == n_classes and len(model.ensemble.trees) == 6
    for iteration, tree in enumerate(model.ensemble.trees, 1):
        twin = Twin(model, X, y, w, iteration)
        assert tree.n_leaves > 2
        for node, rows, left in nodes_of(tree, X):
            G, H = twin.gradient[rows].sum(axis=0), twin.hessian[rows].sum(axis=0)
            step = -0.1 * (n_classes - 1) / n_classes * G / (H + 1.0)
            np.testing.assert_allclose(tree.value[node], step, atol=2e-6)
            np.testing.assert_allclose(tree.cover[node], H.mean(), rtol=1e-4)
            assert tree.count[node] == len(rows)
            if tree.feature[node] < 0:
                continue
            gained = twin.gain(rows, left)
            assert gained >= twin.best_gain(X, rows) - 0.01 * abs(gained) - 1e-3
            score = [0.5 * (twin.gradient[some].sum(axis=0) ** 2 / (twin.hessian[some].sum(axis=0) + 1.0)).sum() for some in
                     (rows[left], rows[~left], rows)]  # fmt: skip
            np.testing.assert_allclose(tree.gain[node], score[0] + score[1] - score[2], rtol=1e-3, atol=1e-3)
    expected = naive_trees.raw_scores(model.ensemble, X[:50].tolist())
    np.testing.assert_allclose(model.predict(X[:50], raw_score=True), expected, rtol=1e-12)


class TwinOfTargets(Twin):
    """The same for squared errors of several targets."""

    def __init__(self, model: Booster, X: np.ndarray, Y: np.ndarray, w: np.ndarray, iteration: int) -> None:
        raw = np.array(naive_trees.raw_scores(model.ensemble, X.tolist(), iteration - 1))
        first = model.ensemble.baseline - Y
        scales = 1 / np.sqrt((w[:, None] * first**2).sum(axis=0))
        self.gradient, self.hessian = (raw - Y) * w[:, None], np.repeat(w[:, None], Y.shape[1], axis=1)
        c = scales * np.sign(Directions(Y.shape[1], False, 0).drawn(iteration))
        if iteration % 2 == 0:
            c = scales**2 * (self.gradient * (self.gradient @ c / w)[:, None]).sum(axis=0)
        self.g, self.h = self.gradient @ (c / np.linalg.norm(c)), w


@pytest.mark.parametrize("weights", [None, "whole", "fractions"])
def test_a_model_of_targets_is_that_of_the_twin(weights: str | None) -> None:
    rng = np.random.default_rng(8)
    X, _ = table(500, 3)
    Z = np.nan_to_num(X, nan=1.0)
    Y = np.column_stack([Z[:, 0] + Z[:, 1], 1e-3 * np.sin(Z[:, 2]), 500 * Z[:, 3] * Z[:, 0]]) + rng.normal(size=(500, 3)) * [
        1,
        1e-4,
        50,
    ]
    w = np.ones(500) if weights is None else rng.integers(1, 5, 500) * 1.0 if weights == "whole" else rng.random(500) + 1.0
    given = None if weights is None else w
    model = dboost.fit(X, Y, sample_weight=given, multi_strategy="multi_output_tree", max_iter=4, max_leaf_nodes=6, n_threads=1)
    assert model.ensemble.width == 3 and len(model.ensemble.trees) == 4
    used = set()
    for iteration, tree in enumerate(model.ensemble.trees, 1):
        twin = TwinOfTargets(model, X, Y, w, iteration)
        for node, rows, left in nodes_of(tree, X):
            step = -0.1 * twin.gradient[rows].sum(axis=0) / (w[rows].sum() + 1.0)
            np.testing.assert_allclose(tree.value[node] / Y.std(axis=0), step / Y.std(axis=0), atol=1e-5)
            np.testing.assert_allclose(tree.cover[node], w[rows].sum(), rtol=1e-6)
            if tree.feature[node] >= 0:
                used.add(int(tree.feature[node]))
                assert twin.gain(rows, left) >= twin.best_gain(X, rows) * 0.99
    assert used == {0, 1, 2, 3}


def quantile(numbers: np.ndarray, level: str) -> float:
    """The smallest number that at least this share does not exceed; if that is the exact share, the mean with the next one."""
    ordered, share = np.sort(numbers), Fraction(level) * len(numbers)
    rank = math.ceil(share)
    return float(ordered[rank - 1] if share < rank else (ordered[rank - 1] + ordered[rank]) / 2)


class TwinOfResiduals(Twin):
    """The same for losses of targets whose leaf values are no Newton steps. Rows of weight n are here n times."""

    def __init__(self, model: Booster, losses: list[str], X: np.ndarray, Y: np.ndarray, iteration: int) -> None:
        raw = np.array(naive_trees.raw_scores(model.ensemble, X.tolist(), iteration - 1))
        self.losses, self.residuals = losses, Y - raw
        self.deltas = [quantile(np.abs(of_target), "0.9") for of_target in self.residuals.T]
        first = self.gradients(Y - model.ensemble.baseline)
        self.gradient = self.gradients(self.residuals)
        scales = 1 / np.sqrt((first**2).sum(axis=0))
        c = scales * np.sign(Directions(len(losses), False, 0).drawn(iteration))
        if iteration % 2 == 0:
            c = scales**2 * (self.gradient * (self.gradient @ c)[:, None]).sum(axis=0)
        self.g, self.h = self.gradient @ (c / np.linalg.norm(c)), np.ones(len(Y))

    def gradients(self, residuals: np.ndarray) -> np.ndarray:
        deltas = [quantile(np.abs(of_target), "0.9") for of_target in residuals.T]
        bounds = [{"huber": delta, "absolute_error": 0.0}.get(loss) for loss, delta in zip(self.losses, deltas, strict=True)]
        of_outputs = zip(residuals.T, bounds, strict=True)
        return -np.column_stack(
            [np.sign(u) if bound == 0 else u if bound is None else u.clip(-bound, bound) for u, bound in of_outputs]
        )

    def value(self, output: int, rows: np.ndarray) -> float:
        u, loss = self.residuals[rows, output], self.losses[output]
        if loss == "squared_error":
            return u.sum() / (len(u) + 1.0)
        median = quantile(u, "0.5")
        return median + (loss == "huber") * (u - median).clip(-self.deltas[output], self.deltas[output]).mean()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "losses", [["huber"] * 3, ["huber", "absolute_error", "huber"], ["absolute_error", "squared_error", "huber"]]
)
def test_leaf_values_of_residuals_are_those_of_the_twin(losses: list[str], weighted: bool) -> None:
    """Each target has its own δ of Huber loss, in its own unit, and it changes with the iterations."""
    rng = np.random.default_rng(8)
    X, _ = table(400, 3)
    Z = np.nan_to_num(X, nan=1.0)
    Y = np.column_stack([Z[:, 0] + Z[:, 1], 10 * np.sin(Z[:, 2]), 50 * Z[:, 3] * Z[:, 0]])
    Y += rng.standard_t(2, size=(400, 3)) * [1.0, 5.0, 20.0]
    times = rng.integers(1, 4, len(X)) if weighted else np.ones(len(X), int)
    model = dboost.fit(
        X, Y, sample_weight=times if weighted else None, loss=losses, multi_strategy="multi_output_tree", max_iter=4,
        max_leaf_nodes=6, n_threads=1,
    )  # fmt: skip
    assert model.ensemble.width == 3 and len(model.ensemble.trees) == 4
    X, Y = np.repeat(X, times, axis=0), np.repeat(Y, times, axis=0)
    seen = set()
    for iteration, tree in enumerate(model.ensemble.trees, 1):
        twin = TwinOfResiduals(model, losses, X, Y, iteration)
        seen.add(twin.deltas[-1])
        for node, rows, left in nodes_of(tree, X):
            if tree.feature[node] < 0:
                steps = [0.1 * twin.value(k, rows) for k in range(3)]
                np.testing.assert_allclose(tree.value[node], steps, rtol=1e-6, atol=1e-9)
            elif not weighted:  # limits count rows, not weights
                assert twin.gain(rows, left) >= twin.best_gain(X, rows) * 0.99
    assert len(seen) == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_two_losses_share_a_tree() -> None:
    """Each pair of losses of single targets, and a sentence for those that are none."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    s = X[:, 0] + np.sin(2 * X[:, 1])
    targets = {
        "squared_error": s + rng.normal(size=400),
        "absolute_error": 3 * s,
        "quantile": s + rng.standard_t(2, 400),
        "huber": 10 * s + rng.standard_t(2, 400),
        "expectile": s + 1.0,
        "poisson": rng.poisson(np.exp(s)),
        "gamma": np.exp(s) * rng.gamma(2.0, size=400) + 1e-9,
        "tweedie": rng.poisson(np.exp(s)) * 1.5,
        "log_loss": s > 0.0,
        "exponential": s > 0.3,
    }
    levels = {"quantile": 0.8, "expectile": 0.7}
    for pair in itertools.combinations_with_replacement(targets, 2):
        Y, given = np.column_stack([targets[name] for name in pair]), {name: levels[name] for name in levels if name in pair}
        for strategy, width in (("multi_output_tree", 2), ("one_output_per_tree", 1)):
            model = dboost.fit(X, Y, loss=list(pair), multi_strategy=strategy, max_iter=15, min_samples_leaf=5, **given)
            losses = model.history["train_loss"]
            assert model.ensemble.width == width and losses.iloc[-1] < losses.iloc[0], pair
            assert np.isfinite(model.predict(X)).all(), pair
    for loss, message in (("normal", "has several outputs"), ("half_brier_score", "is for boosting='forest'")):
        with pytest.raises(ParameterError, match=message):
            dboost.fit(X, np.column_stack([s, s > 0]), loss=["huber", loss], multi_strategy="multi_output_tree")


def rows_of(gradient: np.ndarray, hessian: np.ndarray, y: np.ndarray, w: np.ndarray, times: np.ndarray) -> GradientRows:
    none = np.empty(0)
    return GradientRows(
        none, none, y.astype(np.float64), np.empty(0, np.float32), np.empty(0, np.uint8), w, times, gradient, hessian,
        gradient.view(np.int32), hessian.view(np.int32),
    )  # fmt: skip


@pytest.mark.parametrize("of_classes", [True, False])
@pytest.mark.parametrize("weighted", ["no", "multiplied", "counted"])
def test_projected_derivatives(of_classes: bool, weighted: str) -> None:
    """Both derivatives of the loss along a direction; for classes those of the log loss, also where a probability is near 1."""
    rng = np.random.default_rng(3)
    n, k = 2 * BLOCK + 77, 5
    raw = rng.normal(scale=4.0, size=(k, n))
    p = np.exp(raw - raw.max(axis=0)) / np.exp(raw - raw.max(axis=0)).sum(axis=0)
    y = rng.integers(k, size=n)
    w = rng.random(n) + 0.1 if weighted == "multiplied" else np.ones(n)
    gradient, hessian = p - (y == np.arange(k)[:, None]), p * (1 - p)
    if not of_classes:
        gradient = rng.normal(size=(k, n))
    gradient, hessian = (np.ascontiguousarray(of * w, np.float32) for of in (gradient, hessian))
    c = rng.normal(size=k).astype(np.float32)
    c -= c.mean() if of_classes else 0
    times = rng.integers(1, 9, n).astype(np.uint8) if weighted == "counted" else np.empty(0, np.uint8)
    weight = np.empty(0) if weighted == "no" else w if weighted == "multiplied" else times.astype(np.float64)
    rows = rows_of(gradient, hessian, y, weight, times)
    split, maxima = np.empty((2, n), np.float32), np.zeros(2, np.int32)
    for first, last in ((0, 500), (500, n)):
        project_gradients(
            rows, c, of_classes, first, last, np.empty((2, BLOCK), np.float32), (split[0], split[0].view(np.int32)),
            (split[1], split[1].view(np.int32)), maxima,
        )  # fmt: skip
    variance = w * (c**2 @ p - (c @ p) ** 2) if of_classes else c**2 @ hessian.astype(np.float64)
    np.testing.assert_allclose(split[0], c @ gradient.astype(np.float64), atol=3e-6)
    np.testing.assert_allclose(split[1], variance, atol=3e-6)
    np.testing.assert_array_equal(maxima.view(np.float32), np.abs(split).max(axis=1))

    sums = np.zeros(k)
    for first, last in ((0, 999), (999, n)):
        limits = np.repeat([[2.0**30], [np.inf]], k, axis=1)
        sum_products(gradient, split[0], weight, times, first, last, limits, np.empty(BLOCK), sums)
    counted = times.astype(float) if len(times) else 1 / w
    np.testing.assert_allclose(sums / 2.0**30, (gradient.astype(float) * split[0] * counted).sum(axis=1), rtol=1e-6, atol=1e-6)
    assert (sums == np.rint(sums)).all()

    leaf, drawn = rng.integers(4, size=n).astype(np.uint8), np.flatnonzero(rng.random(n) < 0.7)
    for some, chosen in ((drawn, drawn), (np.arange(n), np.empty(0, np.int64))):
        totals, n_rows = np.zeros((2, -(-k // TOGETHER), 4, TOGETHER)), np.zeros(4, np.int64)
        scratch, units_of = np.full((TOGETHER, BLOCK), np.nan), np.full((2, k), 2.0**30)
        for first, last in ((0, 800), (800, len(some))):
            sum_outputs(leaf, gradient, hessian, times, chosen, first, last, units_of, scratch, (totals, n_rows))
        counts = times[some].astype(float) if len(times) else np.ones(len(some))
        np.testing.assert_array_equal(n_rows, np.bincount(leaf[some], counts, minlength=4))
        for j in range(k):
            for of_kind, values in enumerate((gradient, hessian)):
                wanted = np.bincount(leaf[some], values[j, some].astype(float) * counts, minlength=4)
                found = totals[of_kind, j // TOGETHER, :, j % TOGETHER] / 2.0**30
                np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("n_classes", [3, 4, 20])
def test_directions(n_classes: int) -> None:
    of_classes, plain = Directions(n_classes, True, 5), Directions(n_classes, False, 5)
    seen = set()
    for iteration in range(1, 60):
        c, z = of_classes.drawn(iteration), plain.drawn(iteration)
        np.testing.assert_allclose([c.sum(), (c.astype(float) ** 2).sum()], [0, n_classes], atol=1e-5)
        np.testing.assert_allclose(np.abs(z), 1 / np.sqrt(n_classes), rtol=1e-6)
        seen.add(c.tobytes())
    assert len(seen) > 5 if n_classes == 3 else len(seen) > 13
    products = np.arange(n_classes) ** 2.0
    np.testing.assert_allclose(plain.refined(products), products / np.linalg.norm(products), rtol=1e-6)
    assert plain.refined(np.zeros(n_classes)) is None
    assert of_classes.refined(np.ones(n_classes)) is None, "a number that is added to all scores changes nothing"
    scales = np.arange(1.0, n_classes + 1)
    scaled = Directions(n_classes, False, 5, scales)
    np.testing.assert_allclose(np.abs(scaled.drawn(3)), scales / np.linalg.norm(scales), rtol=1e-6)
    np.testing.assert_allclose(scaled.refined(1 / scales), scales / np.linalg.norm(scales), rtol=1e-6)
    assert (Directions(n_classes, True, 6).drawn(1) != of_classes.drawn(1)).any() or n_classes < 20


def test_a_continued_model_keeps_its_strategy() -> None:
    X, y = table(500, 4)
    one, each = (dboost.fit(X, y, max_iter=2, **more) for more in (ONE_TREE, {"loss": "log_loss"}))
    longer = dboost.fit(X, y, start_from=one, max_iter=2)
    assert longer.ensemble.width == 4 and len(longer.ensemble.trees) == 4
    for model, given in ((one, "one_output_per_tree"), (each, "multi_output_tree")):
        with pytest.raises(ParameterError, match=f"multi_strategy='{given}': the model to continue was trained with"):
            dboost.fit(X, y, start_from=model, max_iter=2, multi_strategy=given)


@pytest.mark.parametrize("more", [{"step": "line_search"}, {"influence_trimming": 0.1}, {"monotonic_cst": [1, 0, 0, 0]}])
def test_what_is_refused(more: dict[str, Any]) -> None:
    X, y = table(100, 3)
    with pytest.raises(ParameterError, match=f"multi_strategy='multi_output_tree' needs {next(iter(more))}="):
        dboost.fit(X, y, **ONE_TREE, **more)


def test_models_of_one_output_are_the_same_with_either_strategy() -> None:
    X, y = table(300, 2)
    one, each = (dboost.fit(X, y, max_iter=4, **more) for more in (ONE_TREE, {"loss": "log_loss"}))
    assert one.ensemble.width == 1
    np.testing.assert_array_equal(one.predict_proba(X), each.predict_proba(X))


def test_the_default_is_not_in_the_model() -> None:
    X, y = table(200, 3)
    default, given = (
        dboost.fit(X, y, loss="log_loss", max_iter=2, **more) for more in ({}, {"multi_strategy": "one_output_per_tree"})
    )
    assert saved(default) == saved(given)
    assert b"multi_strategy" not in saved(default)


def test_trees_of_many_leaves_and_classes() -> None:
    """Leaves with numbers of more than a byte; more classes than a byte has values."""
    X, y = table(9000, 12)
    deep = dboost.fit(X + np.arange(len(X))[:, None] / 1e6, y, max_iter=2, max_leaf_nodes=600, min_samples_leaf=2,
                      min_hessian=0.0, **ONE_TREE)  # fmt: skip
    assert deep.ensemble.trees[0].n_leaves > 300
    many = dboost.fit(X, np.arange(len(X)) % 300, max_iter=3, **ONE_TREE)
    assert many.ensemble.width == 300
    np.testing.assert_allclose(many.predict_proba(X).sum(axis=1), 1.0)
    assert deep.history["train_loss"].iloc[-1] < deep.history["train_loss"].iloc[0]


def test_from_eight_trees_on_the_log_names_the_other_strategy(caplog: pytest.LogCaptureFixture) -> None:
    for n_classes in (7, 8):
        X, y = table(300, n_classes)
        y[:n_classes] = np.arange(n_classes)
        for more in (ONE_TREE, {"loss": "log_loss"}):
            caplog.clear()
            with caplog.at_level(logging.INFO, "dboost"):
                dboost.fit(X, y, max_iter=1, **more)
            assert ("multi_strategy='multi_output_tree' grows one" in caplog.text) == (n_classes == 8 and more is not ONE_TREE)
