"""Validation of an estimator's training: class weights, validation rows, scores and early stopping.

All of this depends on the number of rows per class, so it is decided after counting (see `training.validation_rows`). The
numbers of the rows determine which are held out: no rows are copied, and on a cluster they stay on their workers.

`scorer_metric` makes a metric of training from a scikit-learn scorer. A scorer calls an estimator's predictions, so it gets a
copy of the estimator after the current iteration. The copy uses the raw scores of the evaluated rows, which training updates
with every tree; only if a scorer predicts other rows (a subset, for example) are the trees evaluated. Rows are a matrix of
floats, with categories as codes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dboost.booster import Booster
from dboost.display import number
from dboost.errors import DataError, ParameterError
from dboost.metrics.metric import MetricReduction, ScoredRows
from dboost.metrics.named import find_metrics
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.params import FOREST
from dboost.rows.row_sample import HOLD_OUT, WATCH, derive_seed
from dboost.session.row_samples import HELD_OUT, WATCHED, Draw, in_proportion
from dboost.session.target import Target
from dboost.training.auto_iterations import Search, held_out_rows, n_held_out
from dboost.training.callbacks import StoppingRule
from dboost.training.validation_rows import ValidationPlan

#: "auto" means early stopping above this number of rows.
MANY_ROWS = 10_000
#: Defaults of `n_iter_no_change`, `tol` and `validation_fraction`.
DEFAULT_ROUNDS, DEFAULT_TOLERANCE, DEFAULT_FRACTION = 10, 1e-7, 0.1
#: Number of training rows in the sample for a scorer.
SAMPLE_ROWS = 10_000


@dataclass
class EarlyStoppingPolicy:
    """Early stopping of one fit: validation rows, metric and rule. `make_validation_plan` sets the fields with defaults."""

    #: DBoostRegressor or DBoostClassifier.
    estimator: Any
    #: Seed of the split.
    seed: int
    #: Name of the user's evaluation set for early stopping, or None.
    validation_set: str | None
    #: How an estimator with ``max_iter="auto"`` searches; else None.
    search: Search | None = None
    #: Whether the fit may stop early.
    stops: bool = False
    #: Columns of the history with the "train" and "validation" scores.
    columns: dict[str, str] = field(default_factory=dict)
    #: Factor that makes larger scores better: -1 for losses.
    sign: float = 1.0

    def scores(self, rows: str, before: dict[str, float], ensemble: Ensemble) -> np.ndarray:
        """Return scores ("train" or "validation") before the first tree and after each iteration; empty without scoring."""
        column = self.columns.get(rows)
        if column is None or column not in ensemble.metrics:
            return np.empty(0)
        kept = ensemble.n_iterations if ensemble.search is None else ensemble.best_iteration
        later = ensemble.metrics[column][:kept]
        return self.sign * np.array([before.get(column, np.nan), *later])

    @property
    def _rounds(self) -> int:
        settings = self.estimator
        if self.search is None:
            return int(settings.n_iter_no_change or DEFAULT_ROUNDS)
        rounds = None if settings.n_iter_no_change == DEFAULT_ROUNDS else settings.n_iter_no_change
        return int(settings.early_stopping_rounds or rounds or self.search.rounds)

    @property
    def _tolerance(self) -> float:
        """The change that counts as an improvement; with ``max_iter="auto"`` any, as in `dboost.fit`, unless `tol` is given."""
        tol = float(self.estimator.tol)
        return 0.0 if self.search is not None and tol == DEFAULT_TOLERANCE else tol

    @property
    def fraction(self) -> float | int | None:
        """The share or number of the rows that are held out; the default is that of ``max_iter="auto"``, if it searches."""
        given: float | int | None = self.estimator.validation_fraction
        return self.search.fraction if self.search is not None and given == DEFAULT_FRACTION else given

    def make_validation_plan(self, counts: Sequence[int], target: Target, assemble: Callable[[], Ensemble]) -> ValidationPlan:
        """Return the plan, given the numbers of rows per class; see `training.validation_rows`."""
        settings = self.estimator
        weight = _class_weight(counts, target, getattr(settings, "class_weight", None))
        n_rows = sum(counts)
        own_rule = settings.early_stopping_rounds is not None and self.search is None
        by_score = bool(settings.early_stopping)
        if settings.early_stopping == "auto":
            by_score = n_rows > MANY_ROWS and settings.boosting != FOREST and settings.n_iter_no_change is not None
        by_score = self.search is not None or (by_score and not own_rule)
        self.stops = by_score or own_rule

        held_out = watched = None
        if by_score and self.validation_set is None and self.fraction is not None:
            held_out = (_split if self.search is None else held_out_rows)(counts, target, self.fraction, self.seed)
        validation = self.validation_set if held_out is None else HELD_OUT
        if settings.scoring == "loss":
            metric = find_metrics(None, target.loss)[0]
            self.sign = -1.0
            self.columns["train"] = "train_loss"
        elif by_score:
            from sklearn.metrics import check_scoring  # takes 0.5 s to import

            metric = scorer_metric(settings, check_scoring(settings, settings.scoring), assemble)
            self.columns["train"] = f"{WATCHED}_{SCORER_NAME}"
            left = (
                counts if held_out is None else [n - n_held_out for n, n_held_out in zip(counts, held_out.sizes, strict=True)]
            )
            seed = derive_seed(self.seed, WATCH)
            watched = Draw(seed, in_proportion(left, min(sum(left), SAMPLE_ROWS), seed))
        else:
            return ValidationPlan(weight)
        if validation is not None:
            self.columns["validation"] = f"{validation}_{metric.name}"
        stopping = None
        if by_score:
            column = self.columns.get("validation", self.columns["train"])
            stopping = StoppingRule(
                column,
                self._rounds,
                larger_is_better=self.sign > 0,
                tolerance=self._tolerance,
                # Scores such as the accuracy have few values, and the first of many equal ones belongs to a weak model.
                keep_latest=settings.scoring != "loss",
            )
        return ValidationPlan(weight, held_out, watched, (metric,), stopping)


def _class_weight(counts: Sequence[int], target: Target, class_weight: Any) -> np.ndarray | None:
    """Weights of the classes, float64[n_classes], or None; "balanced" counts rows with positive weight."""
    if class_weight is not None and target.loss.parts:
        raise ParameterError("class_weight is for one target of classes: with several labels, give sample_weight")
    if class_weight is None or target.classes is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        if not all(counts):
            missing = target.classes[list(counts).index(0)]
            raise DataError(f"class_weight='balanced' needs rows of every class, but the target has none of class {missing!r}")
        return sum(counts) / (len(counts) * np.array(counts, np.float64))
    if not isinstance(class_weight, Mapping):
        raise ParameterError(f"class_weight={class_weight!r:.60} must be 'balanced', a dict of weights by class, or None")
    without = [label for label in target.classes if label not in class_weight]
    unknown = [key for key in class_weight if key not in target.classes]
    if without and unknown:
        labels = ", ".join(map(repr, target.classes))
        raise ParameterError(f"class_weight has a weight of {unknown[0]!r}, which is not one of the classes {labels}")
    try:
        weight_by_class = np.array([class_weight.get(label, 1.0) for label in target.classes], np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"class_weight must hold numbers: {error}") from None
    if not (weight_by_class > 0).all():
        culprit = int(np.argmin(weight_by_class > 0))
        raise ParameterError(
            f"class_weight of class {target.classes[culprit]!r} is {number(weight_by_class[culprit])}, not positive"
        )
    return weight_by_class


def _split(counts: Sequence[int], target: Target, size: Any, seed: int) -> Draw:
    """The rows to hold out: as many as in scikit-learn, stratified by class. seed : as of `held_out_rows`."""
    total, n = sum(counts), n_held_out(counts, size)
    if target.classes is not None:
        n_classes = sum(count > 0 for count in counts)
        if 1 in counts:
            single = target.classes[list(counts).index(1)]
            raise DataError(
                f"rows of every class are held out for early stopping, but class {single!r} has 1 row: give X_val and y_val, "
                "or early_stopping=False"
            )
        if min(n, total - n) < n_classes:
            raise ParameterError(
                f"validation_fraction={size!r} divides {total} rows into {total - n} to train on and {n} that are held out: "
                f"both must be at least the number of classes, {n_classes}"
            )
    seed = derive_seed(seed, HOLD_OUT)
    return Draw(seed, in_proportion(counts, n, seed))


#: Name of the metric in the history.
SCORER_NAME = "score"


class _CurrentModel(Booster):
    """The model after the current iteration, with known raw scores of the evaluated rows."""

    def __init__(self, ensemble: Ensemble, rows: ScoredRows, assemble: Callable[[], Ensemble]) -> None:
        super().__init__(ensemble)
        self._rows = rows
        self._assemble = assemble

    def _through(self, X: Any, form: Any, iteration_range: Any, n_threads: int | None, offset: Any = None) -> Any:
        if X is self._rows.block:
            raw = np.atleast_2d(self._rows.raw).T
        else:
            raw = FlatEnsemble(self._assemble()).raw_scores(np.asarray(X), n_threads=n_threads)
        return form.finish(raw)


class _Scoring:
    def __init__(self, estimator: Any, scorer: Callable[..., float], assemble: Callable[[], Ensemble]) -> None:
        self._estimator = estimator
        self._scorer = scorer
        self._assemble = assemble
        self._without_trees: Ensemble | None = None

    def __call__(self, rows: ScoredRows) -> float:
        if self._without_trees is None:
            self._without_trees = replace(self._assemble(), trees=())
        model = _CurrentModel(self._without_trees, rows, self._assemble)
        estimator = copy.copy(self._estimator)
        vars(estimator).pop("feature_names_in_", None)  # a matrix has none
        estimator._set_model(model)
        y = rows.target.T if model.classes_ is None else model.classes_[rows.target.astype(np.int64)]
        weight = {} if rows.weight is None else {"sample_weight": rows.weight}
        return float(self._scorer(estimator, rows.block, y, **weight))


def scorer_metric(estimator: Any, scorer: Callable[..., float], assemble: Callable[[], Ensemble]) -> MetricReduction:
    """Return a metric that calls a scorer.

    Parameters
    ----------
    estimator : DBoostRegressor or DBoostClassifier
    scorer : callable
        Takes an estimator, rows, targets, and `sample_weight` if there are weights; larger is better.
    assemble : callable
        Returns the ensemble after the current iteration.
    """
    return MetricReduction(SCORER_NAME, True, _Scoring(estimator, scorer, assemble), _cannot_merge, float, wants_block=True)


def _cannot_merge(first: float, second: float) -> float:
    raise TypeError("a scorer needs all rows at once: its scores of partitions cannot be merged")
