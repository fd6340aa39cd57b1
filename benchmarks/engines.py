"""The libraries, each behind the same function: a table and settings in; seconds and a predictor out.

A fit bins and trains, and times the two separately, since binning is done once and training for every tree. Settings mean the
same for all libraries, with two exceptions. scikit-learn has no minimum for the Hessian sum of a leaf, so for classes (where a
row's Hessian is at most 1/4) it gets a minimum of four rows instead. And Huber loss is not the same everywhere: LightGBM's δ is
a number, XGBoost has a smooth relative, scikit-learn has none; dboost computes δ anew in every iteration. No library stops
early.

With K > 2 classes the libraries use p (1 - p) times a constant of their own as second derivative: 1 (scikit-learn), K / (K - 1)
(LightGBM; dboost's steps have the factor instead), 2 (XGBoost). At one learning rate their steps would differ in length; so
learning rates, λ and the minimum of Hessians are multiplied by that constant: all take scikit-learn's steps.

With `watch`, a fit also records when each iteration ended, by the library's own callbacks (scikit-learn has none: there it is
when the last tree of an iteration was returned).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from benchmarks.workloads import Workload
from dboost._lazy_import import is_a

if TYPE_CHECKING:
    import pandas as pd

    Features = np.ndarray | pd.DataFrame


@dataclass(frozen=True)
class Settings:
    """Settings of learning, and the number of threads."""

    loss: str  # dboost's name
    n_classes: int = 2  # 0 for regression
    trees: int = 100
    growth: str = "best_first"
    max_leaves: int = 31
    max_depth: int | None = None
    threads: int = 2
    learning_rate: float = 0.1
    bins: int = 255
    min_rows: int = 1  # of a leaf; not available in XGBoost

    @property
    def by_classes(self) -> float:
        """Return K / (K - 1), the factor of steps with more than two classes."""
        return self.n_classes / (self.n_classes - 1) if self.n_classes > 2 else 1.0


def settings_of(workload: Workload, threads: int) -> Settings:
    return Settings(
        loss=workload.loss,
        n_classes=workload.n_classes,
        trees=workload.trees,
        growth=workload.growth,
        max_leaves=workload.max_leaves,
        max_depth=workload.max_depth,
        threads=threads,
        min_rows=workload.min_rows,
    )


@dataclass(frozen=True, eq=False)
class Fit:
    """A trained model: seconds for binning and for training, and a function from features to raw scores.

    Attributes
    ----------
    staged : callable
        From features and ascending numbers of iterations to the raw scores after that many.
    marks : list of float
        With `watch`: seconds from the call to the end of each iteration, including binning.
    """

    binning: float
    training: float
    raw_score: Callable[[Any], np.ndarray]
    staged: Callable[[Any, Sequence[int]], Iterator[np.ndarray]]
    marks: list[float] = field(default_factory=list)


class _Watch:
    """Records the end of iterations; as a callback it accepts the arguments of any library."""

    def __init__(self, watch: bool) -> None:
        self.marks: list[float] = []
        self.callbacks = [self.note] if watch else []
        self._start = time.perf_counter()

    def note(self, *_: object) -> None:
        self.marks.append(time.perf_counter() - self._start)


def fit_dboost(X: Features, y: np.ndarray, settings: Settings, watch: bool = False) -> Fit:
    import dboost

    watched = _Watch(watch)
    booster = dboost.fit(
        X,
        y,
        loss=settings.loss,
        learning_rate=settings.learning_rate * settings.by_classes,
        max_iter=settings.trees,
        max_leaf_nodes=settings.max_leaves,
        max_depth=settings.max_depth,
        min_samples_leaf=settings.min_rows,
        min_hessian=1.0,
        l2_regularization=1.0,
        growth=settings.growth,
        max_bins=settings.bins,
        n_threads=settings.threads,
        progress=False,
        callbacks=watched.callbacks,
    )
    seconds = booster.timings
    return Fit(
        seconds["load"] + seconds["bin"],
        seconds["train"],
        lambda X: booster.predict(X, raw_score=True),
        lambda X, after: (booster.predict(X, raw_score=True, iteration_range=(0, n)) for n in after),
        watched.marks,
    )


def load_kernels(X: Features, y: np.ndarray, settings: Settings) -> None:
    """Compile or load what dboost needs for a table: a cost that only the first fit of a process has."""
    import dboost

    dboost.fit(X, y, loss=settings.loss, max_iter=2, validation_fraction=0.1, n_threads=settings.threads, progress=False)


#: Names of the losses: LightGBM's objective, XGBoost's, scikit-learn's.
_NAMES = {
    "log_loss": ("binary", "binary:logistic", "log_loss"),
    "squared_error": ("regression", "reg:squarederror", "squared_error"),
    "absolute_error": ("regression_l1", "reg:absoluteerror", "absolute_error"),
    "huber": ("huber", "reg:pseudohubererror", None),
}


def can_fit(engine: str, loss: str) -> bool:
    """Return whether a library has a loss."""
    return engine != "sklearn" or _NAMES[loss][2] is not None


def fit_lightgbm(X: Features, y: np.ndarray, settings: Settings, watch: bool = False, **quantised: Any) -> Fit:
    import lightgbm

    objective: dict[str, Any] = {"objective": _NAMES[settings.loss][0]}
    if settings.n_classes > 2:
        objective = {"objective": "multiclass", "num_class": settings.n_classes}
    binning = {
        "max_bin": settings.bins,
        "min_data_in_bin": 1,
        "feature_pre_filter": False,
        "num_threads": settings.threads,
        "verbose": -1,
    }
    parameters = {
        **binning,
        **quantised,
        **objective,
        "learning_rate": settings.learning_rate * settings.by_classes,
        "num_leaves": settings.max_leaves,
        "max_depth": settings.max_depth or -1,
        "min_data_in_leaf": settings.min_rows,
        "min_sum_hessian_in_leaf": settings.by_classes,
        "lambda_l2": settings.by_classes,
        # Otherwise it tries both and keeps the faster one.
        "force_col_wise" if X.shape[1] > 200 else "force_row_wise": True,
    }
    watched = _Watch(watch)
    start = time.perf_counter()
    data = lightgbm.Dataset(X, label=y, params=binning).construct()
    binned = time.perf_counter()
    model = lightgbm.train(parameters, data, settings.trees, callbacks=watched.callbacks)
    done = time.perf_counter()

    def raw_score(X: Features, n: int | None = None) -> np.ndarray:
        return model.predict(X, raw_score=True, num_iteration=n, num_threads=settings.threads)

    return Fit(binned - start, done - binned, raw_score, lambda X, after: (raw_score(X, n) for n in after), watched.marks)


def fit_lightgbm_quantised(X: Features, y: np.ndarray, settings: Settings, watch: bool = False) -> Fit:
    return fit_lightgbm(X, y, settings, watch, use_quantized_grad=True, quant_train_renew_leaf=True)


def fit_xgboost(X: Features, y: np.ndarray, settings: Settings, watch: bool = False) -> Fit:
    import xgboost

    parameters = {
        "objective": _NAMES[settings.loss][1],
        "tree_method": "hist",
        "eta": settings.learning_rate,
        "max_bin": settings.bins,
        "min_child_weight": 1.0,
        "reg_lambda": 1.0,
        "nthread": settings.threads,
        "verbosity": 0,
    }
    if settings.n_classes > 2:
        parameters |= {"objective": "multi:softprob", "num_class": settings.n_classes}
        parameters |= {"eta": 2 * settings.learning_rate, "min_child_weight": 2.0, "reg_lambda": 2.0}
    if settings.growth == "best_first":
        parameters |= {"grow_policy": "lossguide", "max_leaves": settings.max_leaves, "max_depth": 0}
    else:
        parameters |= {"max_depth": settings.max_depth}
    categorical = is_a(X, "pandas", "DataFrame")
    watched = _Watch(watch)

    class Note(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            watched.note()
            return False

    start = time.perf_counter()
    data = xgboost.QuantileDMatrix(X, y, max_bin=settings.bins, nthread=settings.threads, enable_categorical=categorical)
    binned = time.perf_counter()
    model = xgboost.train(parameters, data, settings.trees, callbacks=[Note()] if watch else None)
    done = time.perf_counter()

    def raw_score(X: Features, n: int = 0) -> np.ndarray:
        return model.inplace_predict(X, iteration_range=(0, n), predict_type="margin")  # 0: all of them

    return Fit(binned - start, done - binned, raw_score, lambda X, after: (raw_score(X, n) for n in after), watched.marks)


def fit_sklearn(X: Features, y: np.ndarray, settings: Settings, watch: bool = False) -> Fit:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    kind = HistGradientBoostingClassifier if settings.n_classes else HistGradientBoostingRegressor
    model = kind(
        loss=_NAMES[settings.loss][2],
        learning_rate=settings.learning_rate,
        max_iter=settings.trees,
        max_leaf_nodes=settings.max_leaves,
        max_depth=settings.max_depth,
        max_bins=settings.bins,
        min_samples_leaf=max(settings.min_rows, 4 if settings.n_classes else 1),
        l2_regularization=1.0,
        early_stopping=False,
    )
    watched = _Watch(watch)
    with threadpool_limits(settings.threads, user_api="openmp"), _sklearn_binning_clock() as binning, _sklearn_trees(watched):
        start = time.perf_counter()
        model.fit(X, y)
        total = time.perf_counter() - start

    def raw_score(X: Features) -> np.ndarray:
        with threadpool_limits(settings.threads, user_api="openmp"):
            return model.decision_function(X) if settings.n_classes else model.predict(X)

    def staged(X: Features, after: Sequence[int]) -> Iterator[np.ndarray]:
        with threadpool_limits(settings.threads, user_api="openmp"):
            stages = model.staged_decision_function(X) if settings.n_classes else model.staged_predict(X)
            for before, n in zip([0, *after], after, strict=False):
                yield next(islice(stages, n - before - 1, None))

    marks = watched.marks[(n_outputs := settings.n_classes if settings.n_classes > 2 else 1) - 1 :: n_outputs]
    return Fit(binning[0], total - binning[0], raw_score, staged, marks)


@contextmanager
def _sklearn_trees(watched: _Watch) -> Iterator[None]:
    """Record when scikit-learn has grown a tree, if `watch` is set."""
    from sklearn.ensemble._hist_gradient_boosting.grower import TreeGrower

    if not watched.callbacks:
        yield
        return
    make = TreeGrower.make_predictor

    def noted(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        watched.note()
        return made

    with patch.object(TreeGrower, "make_predictor", noted):
        yield


@contextmanager
def _sklearn_binning_clock() -> Iterator[list[float]]:
    """Add up the seconds that scikit-learn spends in its bin mapper, which its estimators do not report."""
    from sklearn.ensemble._hist_gradient_boosting.binning import _BinMapper

    seconds = [0.0]
    originals = {name: getattr(_BinMapper, name) for name in ("fit", "transform")}

    def clocked(function: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[0] += time.perf_counter() - start

        return call

    try:
        for name, function in originals.items():
            setattr(_BinMapper, name, clocked(function))
        yield seconds
    finally:
        for name, function in originals.items():
            setattr(_BinMapper, name, function)


ENGINES: dict[str, Callable[..., Fit]] = {
    "dboost": fit_dboost,
    "lightgbm": fit_lightgbm,
    "lightgbm-quantised": fit_lightgbm_quantised,
    "xgboost": fit_xgboost,
    "sklearn": fit_sklearn,
}
USUAL = ("dboost", "lightgbm", "xgboost", "sklearn")
