"""How an estimator watches its training: class weights, validation rows, scores, and when to stop.

All of this depends on how many rows there are, of each class; so it is decided when they are counted (see
`training.validation_split`). Which rows are held out follows from their numbers: no rows are copied to be split off, and on a
cluster they stay where they are.

A scikit-learn scorer as a metric of training.

A scorer asks an estimator for predictions, so it is handed a copy of the estimator as it is after the present iteration.
The copy need not predict: the raw scores of the rows that are judged are at hand, they grow with every tree. Only when a
scorer asks about other rows (a part of them, say) do the trees have to walk.

The rows appear as the model sees them: a matrix of floats, with categories as codes.
"""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.utils.class_weight import compute_class_weight

from dboost.booster import Booster
from dboost.errors import DataError, ParameterError
from dboost.metrics.metric import Metric, ScoredRows, find_metrics
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble
from dboost.session.row_selection import HELD_OUT, WATCHED, Draw, in_proportion
from dboost.session.target import Target
from dboost.training.callbacks import EarlyStopping
from dboost.training.validation_split import ValidationPlan
from dboost.trees.tree_task import HOLD_OUT, WATCH, derive_seed

#: "auto" stops early with more rows than this.
MANY_ROWS = 10_000
#: A scorer judges a sample of so many training rows.
SAMPLE_ROWS = 10_000


@dataclass
class EarlyStoppingPolicy:
    """Decides for one fit, and knows afterwards where the scores are.

    Attributes
    ----------
    estimator : DBoostRegressor or DBoostClassifier
    seed : int
        For the split.
    judge : str or None
        The evaluation set that the user gave to judge by.
    stops : bool
        Whether the fit may stop early.
    columns : dict
        Columns of the history that hold the training and the validation score.
    sign : float
        Scores are larger for better models, losses smaller.
    """

    estimator: Any
    seed: int
    judge: str | None
    stops: bool = False
    columns: dict[str, str] = field(default_factory=dict)
    sign: float = 1.0

    def scores(self, which: str, before: dict[str, float], ensemble: Ensemble) -> np.ndarray:
        """Scores ("train" or "validation") before the first tree and after each iteration; empty if there are none."""
        column = self.columns.get(which)
        if column is None or column not in ensemble.metrics:
            return np.empty(0)
        later = ensemble.metrics[column][: ensemble.n_iterations]
        return self.sign * np.array([before.get(column, np.nan), *later])

    def make_validation_plan(self, counts: Sequence[int], target: Target, whole: Callable[[], Ensemble]) -> ValidationPlan:
        """Called when the rows are counted, see `training.validation_split.Supervise`."""
        settings = self.estimator
        weight = _class_weight(counts, target, getattr(settings, "class_weight", None))
        n_rows = sum(counts)
        own_rule = settings.early_stopping_rounds is not None
        by_score = n_rows > MANY_ROWS if settings.early_stopping == "auto" else bool(settings.early_stopping)
        by_score = by_score and not own_rule
        self.stops = by_score or own_rule

        held_out = watched = None
        if by_score and self.judge is None and settings.validation_fraction is not None:
            held_out = _split(counts, target, settings.validation_fraction, derive_seed(self.seed, HOLD_OUT))
        validation = self.judge if held_out is None else HELD_OUT
        if settings.scoring == "loss":
            metric = find_metrics(None, target.loss)[0]
            self.sign = -1.0
            self.columns["train"] = "train_loss"
        elif by_score:
            from sklearn.metrics import check_scoring  # half a second, for those who need it

            metric = scorer_metric(settings, check_scoring(settings, settings.scoring), whole)
            self.columns["train"] = f"{WATCHED}_{SCORER_NAME}"
            left = counts if held_out is None else [n - own for n, own in zip(counts, held_out.sizes, strict=True)]
            seed = derive_seed(self.seed, WATCH)
            watched = Draw(seed, in_proportion(left, min(sum(left), SAMPLE_ROWS), seed))
        else:
            return ValidationPlan(weight)
        if validation is not None:
            self.columns["validation"] = f"{validation}_{metric.name}"
        stopping = None
        if by_score:
            column = self.columns.get("validation", self.columns["train"])
            stopping = EarlyStopping(
                column,
                settings.n_iter_no_change,
                larger_is_better=self.sign > 0,
                tolerance=settings.tol,
                # A score may be coarse: the earliest of many models of the same accuracy has hardly begun to learn.
                keep_latest=settings.scoring != "loss",
            )
        return ValidationPlan(weight, held_out, watched, (metric,), stopping)


def _class_weight(counts: Sequence[int], target: Target, class_weight: Any) -> np.ndarray | None:
    """Weights of the classes: float64[n_classes]; "balanced" counts the rows of positive weight."""
    if class_weight is None or target.classes is None:
        return None
    classes = np.array(target.classes, np.dtype(target.classes_dtype))
    if isinstance(class_weight, str) and class_weight == "balanced":
        if not all(counts):
            missing = target.classes[list(counts).index(0)]
            raise DataError(f"class_weight='balanced' wants rows of every class, but the target has none of class {missing!r}")
        return sum(counts) / (len(counts) * np.array(counts, np.float64))
    of_classes = compute_class_weight(class_weight, classes=classes, y=classes)
    if not (of_classes > 0).all():
        culprit = int(np.argmin(of_classes > 0))
        raise ParameterError(f"class_weight of class {target.classes[culprit]!r} is {of_classes[culprit]:g}, not positive")
    return of_classes


def _split(counts: Sequence[int], target: Target, size: Any, seed: int) -> Draw:
    """The rows to hold out: as many as scikit-learn would, of each class in proportion."""
    total = sum(counts)
    n = int(size) if isinstance(size, numbers.Integral) else math.ceil(size * total)
    if n >= total:
        raise ParameterError(f"validation_fraction={size!r} holds out {n} of {total} rows: none would be left to train on")
    if target.classes is not None:
        n_classes = sum(count > 0 for count in counts)
        if 1 in counts:
            alone = target.classes[list(counts).index(1)]
            raise DataError(
                f"rows of every class are held out for early stopping, but class {alone!r} has 1 row: give X_val and y_val, or "
                "early_stopping=False"
            )
        if min(n, total - n) < n_classes:
            raise ParameterError(
                f"validation_fraction={size!r} divides {total} rows into {total - n} to train on and {n} that are held out: "
                f"both must be at least the number of classes, {n_classes}"
            )
    return Draw(seed, in_proportion(counts, n, seed))


#: Of the metric, in the history.
SCORER_NAME = "score"


class _Present(Booster):
    """The model in training, for questions about one set of rows."""

    def __init__(self, ensemble: Ensemble, rows: ScoredRows, whole: Callable[[], Ensemble]) -> None:
        super().__init__(ensemble)
        self._rows = rows
        self._whole = whole

    def _through(self, X: Any, answer: Any, iteration_range: Any, n_threads: int | None, offset: Any = None) -> Any:
        if X is self._rows.block:
            raw = self._rows.raw.reshape(len(self._rows.target), -1)
        else:
            raw = FlatEnsemble(self._whole()).raw_scores(np.asarray(X), n_threads=n_threads)
        return answer.finish(raw)


class _Scoring:
    def __init__(self, estimator: Any, scorer: Callable[..., float], whole: Callable[[], Ensemble]) -> None:
        self._estimator = estimator
        self._scorer = scorer
        self._whole = whole
        self._outline: Ensemble | None = None

    def __call__(self, rows: ScoredRows) -> float:
        if self._outline is None:
            self._outline = replace(self._whole(), trees=())
        model = _Present(self._outline, rows, self._whole)
        estimator = copy.copy(self._estimator)
        vars(estimator).pop("feature_names_in_", None)  # a matrix has none
        estimator._take(model)
        y = rows.target if model.classes_ is None else model.classes_[rows.target.astype(np.int64)]
        weight = {} if rows.weight is None else {"sample_weight": rows.weight}
        return float(self._scorer(estimator, rows.block, y, **weight))


def scorer_metric(estimator: Any, scorer: Callable[..., float], whole: Callable[[], Ensemble]) -> Metric:
    """The metric "score".

    Parameters
    ----------
    estimator : DBoostRegressor or DBoostClassifier
    scorer : callable
        Called with an estimator, the rows, their targets, and `sample_weight` if there are weights; larger is better.
    whole : callable
        Returns the ensemble as far as it has come.
    """
    return Metric(SCORER_NAME, True, _Scoring(estimator, scorer, whole), _cannot_merge, float, wants_block=True)


def _cannot_merge(one: float, other: float) -> float:
    raise TypeError("a scorer judges all rows at once: its scores of parts cannot be merged")
