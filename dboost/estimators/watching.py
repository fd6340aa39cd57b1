"""How an estimator watches its training: class weights, validation rows, scores, and when to stop.

All of this wants to know the rows, so it is decided when the table is open (see `training.supervision`): whatever kind of
table the user has, it is read once, and no rows are copied to be split off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.utils.class_weight import compute_class_weight

from dboost.errors import ParameterError
from dboost.estimators.scoring import NAME, scorer_metric
from dboost.model.ensemble import Ensemble
from dboost.sources import Table
from dboost.statistics.metrics import find_metrics
from dboost.training.monitor import EarlyStopping
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

    def supervise(self, table: Table, target: Target, whole: Callable[[], Ensemble]) -> Supervision:
        """Called with the open table, see `training.supervision.Supervise`."""
        settings = self.estimator
        weight = _with_class_weight(table, target, getattr(settings, "class_weight", None))
        rows = np.arange(table.n_rows) if weight is None else np.flatnonzero(weight > 0)
        own_rule = settings.early_stopping_rounds is not None
        by_score = len(rows) > MANY_ROWS if settings.early_stopping == "auto" else bool(settings.early_stopping)
        by_score = by_score and not own_rule
        self.stops = by_score or own_rule

        classes = target.values if target.classes is not None else None
        held_out = watched = None
        if by_score and self.judge is None and settings.validation_fraction is not None:
            rows, held_out = _split(rows, classes, settings.validation_fraction, self.seed)
        validation = self.judge if held_out is None else HELD_OUT
        if settings.scoring == "loss":
            metric = find_metrics(None, target.loss)[0]
            self.sign = -1.0
            self.columns["train"] = "train_loss"
        elif by_score:
            from sklearn.metrics import check_scoring  # half a second, for those who need it

            metric = scorer_metric(settings, check_scoring(settings, settings.scoring), whole)
            self.columns["train"] = f"{WATCHED}_{NAME}"
            watched = _sample(rows, classes, self.seed)
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


def _with_class_weight(table: Table, target: Target, class_weight: Any) -> np.ndarray | None:
    """Weights times those of the classes; "balanced" counts the rows of positive weight."""
    if class_weight is None or target.classes is None:
        return table.weight
    classes = np.array(target.classes, np.dtype(target.classes_dtype))
    codes = target.values.astype(np.int64)
    counted = codes if table.weight is None else codes[table.weight > 0]
    of_classes = compute_class_weight(class_weight, classes=classes, y=classes[counted])
    if not (of_classes > 0).all():
        culprit = int(np.argmin(of_classes > 0))
        raise ParameterError(f"class_weight of class {target.classes[culprit]!r} is {of_classes[culprit]:g}, not positive")
    of_rows = of_classes[codes]
    return of_rows if table.weight is None else of_rows * table.weight


def _split(rows: np.ndarray, classes: np.ndarray | None, size: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to hold out, the latter of each class in proportion; scikit-learn's own choice of rows."""
    from sklearn.model_selection import train_test_split

    stratify = None if classes is None else classes[rows]
    train, held_out = train_test_split(rows, test_size=size, stratify=stratify, random_state=seed)
    return np.sort(train), np.sort(held_out)


def _sample(rows: np.ndarray, classes: np.ndarray | None, seed: int) -> np.ndarray:
    if len(rows) <= SAMPLE_ROWS:
        return rows
    from sklearn.utils import resample

    stratify = None if classes is None else classes[rows]
    chosen = resample(rows, n_samples=SAMPLE_ROWS, replace=False, random_state=seed, stratify=stratify)
    return np.sort(chosen)
