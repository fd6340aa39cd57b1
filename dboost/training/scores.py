"""The metrics of a fit, its rule of early stopping, and the scores in its history: losses and metrics of training rows and
evaluation sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Any

from dboost.display import as_read
from dboost.errors import DataError, DBoostError, ParameterError, warn
from dboost.exact import EXACT_SUM, FINE
from dboost.losses.gradient_stats import GradientStats
from dboost.metrics.metric import LossMagnitude, MetricReduction
from dboost.metrics.named import ALIASES, find_metrics
from dboost.params import EarlyStopping, Parameters
from dboost.session.backend import Backend
from dboost.session.row_samples import HELD_OUT
from dboost.session.target import Target
from dboost.training.callbacks import StoppingRule
from dboost.training.history import OUT_OF_BAG
from dboost.training.plan import FitPlan
from dboost.training.request import FitRequest
from dboost.trees.tree_means import metric_chunks


def stopping_rule(
    parameters: Parameters,
    of_estimator: StoppingRule | None,
    request: FitRequest,
    metrics: Sequence[MetricReduction],
) -> StoppingRule | None:
    """Return the rule of an estimator, else one for the last metric of the last evaluation set (without one, of held-out rows).

    Raises
    ------
    ParameterError
        When arcbites would be stopped by the training loss, whose rows change with each visit; for an unknown metric or
        evaluation set.
    """
    arcbites, rounds = parameters.arcbites, parameters.stopping_rounds
    if of_estimator is None:
        if rounds is None:
            return None
        asked = EarlyStopping(rounds) if request.early_stopping is None else request.early_stopping
        names = [OUT_OF_BAG] if parameters.has_out_of_bag else []
        names += [eval_set.name for eval_set in request.eval_sets]
        if request.validation_fraction is not None or not names:
            names.append(HELD_OUT)
        eval_set = names[-1] if asked.eval_set is None else asked.eval_set
        if eval_set not in names:
            raise ParameterError(f"early_stopping: there is no evaluation set {eval_set!r}, but {', '.join(map(repr, names))}")
        known = {metric.name: metric for metric in metrics}
        by_name = known | {ALIASES.get(name, name): metric for name, metric in known.items()}
        metric = metrics[-1] if asked.metric is None else by_name.get(ALIASES.get(asked.metric, asked.metric))
        if metric is None:
            raise ParameterError(
                f"early_stopping: {asked.metric!r} is none of the fit's metrics, which are {', '.join(known)}: name it in "
                "eval_metric, too"
            )
        column = f"{eval_set}_{metric.name}"
        return StoppingRule(
            column,
            rounds,
            larger_is_better=metric.larger_is_better,
            tolerance=asked.min_delta,
            pooled=None if request.fold is None else request.fold.pooled,
        )
    if arcbites is not None and of_estimator.column == "train_loss":
        raise ParameterError("arcbites cannot be stopped by the training loss, which is always another bite's: hold rows out")
    if arcbites is not None and arcbites.early_stopping_rounds is not None:
        return of_estimator.with_rounds(arcbites.early_stopping_rounds)
    return of_estimator


def with_estimator_metrics(
    metrics: Sequence[MetricReduction], of_estimator: Sequence[MetricReduction]
) -> list[MetricReduction]:
    """Return the user's metrics, and those of an estimator that are not among them.

    Raises
    ------
    ParameterError
        If a function of the user has the name of a metric of the estimator.
    """
    known = {metric.name: metric for metric in metrics}
    for metric in of_estimator:
        if metric.name in known and known[metric.name].spec != metric.spec:
            raise ParameterError(
                f"eval_metric: a function is called {metric.name!r}, like the metric that the estimator computes: give it "
                "another name"
            )
    return [*metrics, *(metric for metric in of_estimator if metric.name not in known)]


class Scores:
    """Losses and metrics of a fit.

    Attributes
    ----------
    total_weight : float
        Of the current training rows.
    """

    def __init__(self, plan: FitPlan, backend: Backend) -> None:
        self._plan, self._backend = plan, backend
        self.total_weight = plan.stats.total_weight
        self._has_warned = plan.request.fold is not None  # `folds.FoldScores` warns once for all folds

    @property
    def named(self) -> dict[str, tuple[str, str]]:
        """Evaluation set and metric of each column of metrics."""
        names = self._backend.eval_names if self._plan.has_eval_sets else []
        return {f"{name}_{metric.name}": (name, metric.name) for name in names for metric in self._plan.metrics}

    @cached_property
    def greater_is_better(self) -> dict[str, bool]:
        """Of each column of scores whether larger values are better; without those of which that is not known."""
        metrics = {name: self._plan.metrics for name in (self._backend.eval_names if self._plan.has_eval_sets else [])}
        if self._plan.learning.has_out_of_bag:
            metrics[OUT_OF_BAG] = self._of_out_of_bag
        known = [
            (column, metric.greater_is_better)
            for name, of_set in metrics.items()
            for metric in of_set
            for column in metric.columns(name)
        ]
        return {"train_loss": False} | {column: rises for column, rises in known if rises is not None}

    @cached_property
    def _of_out_of_bag(self) -> tuple[MetricReduction, ...]:
        """The metrics of the out-of-bag predictions of a forest."""
        loss = self._plan.target.loss
        metrics = [metric for metric in self._plan.metrics if not (metric.wants_block or metric.wants_rows)]
        metrics += find_metrics(None, loss)
        if self._plan.request.eval_metric is None:
            metrics = [*find_metrics(_score_of(self._plan.target), loss), *metrics]
        return tuple({metric.name: metric for metric in metrics}.values())

    def shown(self, record: dict[str, Any]) -> dict[str, float]:
        """Return what the progress display shows of an iteration."""
        loss = self._plan.target.loss.name
        return dict(as_read(name, record[name], loss) for name in [*self.named] or ["train_loss"])

    def now(self, stats: GradientStats, n_done: int) -> dict[str, float]:
        """Return the metrics, and the loss of the current training rows."""
        return self.evaluate() | self.of_training(stats, n_done)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the evaluation sets."""
        return self._backend.evaluate(list(self._plan.metrics)) if self._plan.has_eval_sets else {}

    def of_training(self, stats: GradientStats, iteration: int) -> dict[str, float]:
        """Return the mean loss of the training rows; of a forest also metrics of their out-of-bag predictions."""
        if not self._plan.learning.is_forest or iteration == self._plan.warm_start.n_of_other_rows:  # no tree of these rows
            return {"train_loss": self.loss_of(stats, iteration)}
        plan, metrics = self._plan, self._of_out_of_bag
        size = LossMagnitude.of(plan.stats.magnitudes, plan.stats.max_weight, plan.n_rows)
        specs = [metric.on_workers for metric in metrics]
        results = self._backend.statistics(metric_chunks, specs, plan.target.loss, size, plan.stats.unit)
        columns = {column: math.nan for metric in metrics for column in metric.columns(OUT_OF_BAG)}
        if any(n for n, _ in results):
            for metric, *chunks in zip(metrics, *(chunks for n, chunks in results if n), strict=True):
                columns |= metric.values(OUT_OF_BAG, reduce(metric.merge, chunks))
        of_loss = {"train_loss": columns[f"{OUT_OF_BAG}_{plan.target.loss.name}"]}
        return columns | of_loss if plan.learning.has_out_of_bag else of_loss

    def loss_of(self, stats: GradientStats, iteration: int) -> float:
        """Return the mean loss of the current training rows."""
        largest = [*stats.max_gradient.tolist(), *stats.max_hessian.tolist()]
        largest += [] if stats.max_split is None else stats.max_split.tolist()
        if not all(map(math.isfinite, largest)):
            if iteration == self._plan.warm_start.n_earlier:
                raise DBoostError(f"the {self._plan.stats.too_large} are so large that gradients are infinite; scale them down")
            raise diverged(iteration)
        # Losses that overflow are clipped row by row; sums of many of them are not exact and would depend on threads.
        coarse = min(max(stats.coarse_loss, -EXACT_SUM), EXACT_SUM)
        loss = (coarse + stats.fine_loss / FINE) / self._plan.stats.loss_unit / self.total_weight
        return loss * self._plan.stats.unit * self._plan.stats.unit / max(len(self._plan.target.loss.parts), 1)

    def check_defined(self, iteration: int, record: dict[str, Any]) -> None:
        """Warn once if the metric of early stopping is undefined; raise a DataError if arcbites depend on it.

        The metric before the first iteration is not checked: a correlation, say, is undefined only as long as predictions are
        constant.
        """
        stopping, arcbites = self._plan.stopping, self._plan.learning.arcbites
        if self._has_warned or stopping is None or math.isfinite(record[stopping.column]):
            return
        self._has_warned = True
        column = stopping.column
        if column in self.named:
            set_name, metric = self.named[column]
            column = f"metric {metric!r} of evaluation set {set_name!r}"
        column = f"{column} is {record[stopping.column]} in iteration {iteration}"
        if arcbites is not None and arcbites.is_watched and not stopping.has_begun:
            raise DataError(f"{column}, so it does not tell arcbites when to leave a bite: {_OTHER_METRIC}")
        if stopping.has_begun:
            warn(f"{column}, which early stopping counts as no improvement: {_OTHER_METRIC}")
        else:
            warn(f"{column}, and early stopping does not begin as long as it is undefined: {_OTHER_METRIC}")


def _score_of(target: Target) -> tuple[str, ...]:
    """Return the score of out-of-bag predictions beside their loss; none if some targets are numbers and some labels."""
    if any(part.targets.are_classes for part in target.loss.parts) and not target.is_classification:
        return ()
    return ("accuracy",) if target.is_classification else ("r2",)


_OTHER_METRIC = (
    "give another metric, or an evaluation set for which it is defined (with rows of every class, or targets that differ)"
)


def diverged(iteration: int) -> DBoostError:
    return DBoostError(
        f"training diverged in iteration {iteration}: scores are no longer finite; a smaller learning_rate, more "
        "l2_regularization or a max_delta_step will help"
    )
