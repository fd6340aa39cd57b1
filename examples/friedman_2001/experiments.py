"""Experiments: each target has a training sample, one to select the number of trees, and one without noise for scoring.

All contenders of a target use the same rows. Trees have 11 leaves and the learning rate is 0.1, unless the experiment varies
them. ``criterion="gradient"`` without regularization is the paper's TreeBoost; ``criterion="newton"`` with the log loss of
K classes is LogitBoost with trees (section 6.4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import dboost
from examples.friedman_2001.targets import (
    N_FEATURES,
    LinearTarget,
    RandomTarget,
    as_strong_as,
    error,
    normal_noise,
    slash_noise,
)

#: The paper's TreeBoost: least-squares trees, limited only by their number of leaves.
TREEBOOST: dict[str, Any] = {
    "criterion": "gradient", "l2_regularization": 0.0, "min_hessian": 0.0, "min_samples_leaf": 1,
    "max_leaf_nodes": 11, "learning_rate": 0.1,
}  # fmt: skip
REGRESSION: dict[str, dict[str, Any]] = {
    "LS": {"loss": "squared_error"},
    "LAD": {"loss": "absolute_error"},
    "M": {"loss": "huber", "huber_alpha": 0.9},
}


@dataclass(frozen=True)
class Sizes:
    """Rows for training, for selecting the number of trees and for scoring; maximum iterations, and iterations without gain."""

    train: int = 5000
    test: int = 2500
    score: int = 5000
    iterations: int = 1500
    patience: int = 100


QUICK = Sizes(400, 200, 400, 30, 10)


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes
    ----------
    title, unit : str
        What is compared, and the error that is measured.
    run : callable
        Given a random generator and sizes, the errors of one target by contender.
    """

    title: str
    unit: str
    run: Callable[[np.random.Generator, Sizes], dict[str, float]]


def train(x: np.ndarray, y: np.ndarray, sizes: Sizes, metric: str | None = None, **settings: Any) -> dboost.Booster:
    """Fit a model with the number of trees that is best on the rows after the first `sizes.train`."""
    n = sizes.train
    return dboost.fit(
        x[:n], y[:n], eval_set=(x[n:], y[n:]), eval_metric=metric, n_threads=1, progress=False,
        early_stopping_rounds=sizes.patience, **(TREEBOOST | {"max_iter": sizes.iterations} | settings),
    )  # fmt: skip


def _sample(rng: np.random.Generator, target: Callable, noise: Callable | None, sizes: Sizes) -> tuple[np.ndarray, ...]:
    """Return features and targets for training and selection, then features and true values for scoring."""
    n = sizes.train + sizes.test
    x = rng.normal(size=(n + sizes.score, N_FEATURES))
    truth = target(x)
    y = truth[:n] if noise is None else truth[:n] + as_strong_as(truth[:n], noise(rng, n))
    return x[:n], y, x[n:], truth[n:]


def _regression(noise: Callable, contenders: dict[str, dict[str, Any]]) -> Callable:
    def run(rng: np.random.Generator, sizes: Sizes) -> dict[str, float]:
        x, y, new, truth = _sample(rng, RandomTarget.draw(rng), noise, sizes)
        return {
            name: error(truth, train(x, y, sizes, "mean_absolute_error", **settings).predict(new))
            for name, settings in contenders.items()
        }

    return run


def _classes(learning_rate_of_logitboost: float) -> Callable:
    """Five classes, by the quintiles of a target without noise: the best possible error is zero."""
    contenders = {
        "LK_TreeBoost": {"criterion": "gradient"},
        "LogitBoost": {"criterion": "newton", "learning_rate": learning_rate_of_logitboost},
    }

    def run(rng: np.random.Generator, sizes: Sizes) -> dict[str, float]:
        x, y, new, truth = _sample(rng, RandomTarget.draw(rng), None, sizes)
        cuts = np.quantile(np.concatenate((y, truth)), (0.2, 0.4, 0.6, 0.8))
        classes, truth = np.searchsorted(cuts, y), np.searchsorted(cuts, truth)
        return {
            name: float((train(x, classes, sizes, "accuracy", loss="log_loss", **settings).predict(new) != truth).mean())
            for name, settings in contenders.items()
        }

    return run


def _importance(rng: np.random.Generator, sizes: Sizes) -> dict[str, float]:
    x, y, *_ = _sample(rng, LinearTarget(), normal_noise, sizes)
    booster = train(x, y, sizes, "mean_absolute_error", loss="squared_error")
    found = booster.importance(kind="friedman")
    return {f"x{j + 1}": float(found[f"f{j}"]) for j in range(N_FEATURES)}


_ERROR = "absolute error over that of the best constant"
EXPERIMENTS: dict[str, Experiment] = {
    "normal": Experiment("Normal noise: LS, LAD and M", _ERROR, _regression(normal_noise, REGRESSION)),
    "slash": Experiment("Slash noise: LS, LAD and M", _ERROR, _regression(slash_noise, REGRESSION)),
    "leaves": Experiment(
        "LS with trees of 2 to 21 leaves",
        _ERROR,
        _regression(normal_noise, {str(j): {"loss": "squared_error", "max_leaf_nodes": j} for j in (2, 3, 6, 11, 21)}),
    ),
    "classes": Experiment("Five classes, shrinkage in LK_TreeBoost only", "share of wrong classes", _classes(1.0)),
    "classes-shrunk": Experiment("Five classes, both with shrinkage", "share of wrong classes", _classes(0.1)),
    "importance": Experiment("Relative importance for a linear target", "importance, largest = 100", _importance),
}
