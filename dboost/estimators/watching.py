"""How an estimator watches its training: class weights, validation rows, scores, and when to stop.

All of this depends on how many rows there are, of each class; so it is decided when they are counted (see
`training.supervision`). Which rows are held out follows from their numbers: no rows are copied to be split off, and on a
cluster they stay where they are.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.utils.class_weight import compute_class_weight

from dboost.errors import DataError, ParameterError
from dboost.estimators.scoring import NAME, scorer_metric
from dboost.growth.task import HOLD_OUT, WATCH, mixed
from dboost.model.ensemble import Ensemble
from dboost.statistics.metrics import find_metrics
from dboost.training.monitor import EarlyStopping
from dboost.training.row_selection import Draw, in_proportion
from dboost.training.supervision import HELD_OUT, WATCHED, Supervision
from dboost.training.target import Target

#: "auto" stops early with more rows than this.
MANY_ROWS = 10_000
#: A scorer judges a sample of so many training rows.
SAMPLE_ROWS = 10_000


@dataclass
class Watching:
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

    def supervise(self, counts: Sequence[int], target: Target, whole: Callable[[], Ensemble]) -> Supervision:
        """Called when the rows are counted, see `training.supervision.Supervise`."""
        settings = self.estimator
        weight = _class_weight(counts, target, getattr(settings, "class_weight", None))
        n_rows = sum(counts)
        own_rule = settings.early_stopping_rounds is not None
        by_score = n_rows > MANY_ROWS if settings.early_stopping == "auto" else bool(settings.early_stopping)
        by_score = by_score and not own_rule
        self.stops = by_score or own_rule

        held_out = watched = None
        if by_score and self.judge is None and settings.validation_fraction is not None:
            held_out = _split(counts, target, settings.validation_fraction, mixed(self.seed, HOLD_OUT))
        validation = self.judge if held_out is None else HELD_OUT
        if settings.scoring == "loss":
            metric = find_metrics(None, target.loss)[0]
            self.sign = -1.0
            self.columns["train"] = "train_loss"
        elif by_score:
            from sklearn.metrics import check_scoring  # half a second, for those who need it

            metric = scorer_metric(settings, check_scoring(settings, settings.scoring), whole)
            self.columns["train"] = f"{WATCHED}_{NAME}"
            left = counts if held_out is None else [n - own for n, own in zip(counts, held_out.sizes, strict=True)]
            seed = mixed(self.seed, WATCH)
            watched = Draw(seed, in_proportion(left, min(sum(left), SAMPLE_ROWS), seed))
        else:
            return Supervision(weight)
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
        return Supervision(weight, held_out, watched, (metric,), stopping)


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
