"""Optuna: pruning of trials while dboost trains.

>>> from dboost.integrations.optuna import PruningCallback                                          # doctest: +SKIP
>>> dboost.fit(frame, "y", eval_set=test, callbacks=[PruningCallback(trial, "eval_auc")])           # doctest: +SKIP
>>> dboost.cv(prepared, folds=5, callbacks=[PruningCallback(trial, "auc")])                         # doctest: +SKIP
"""

from __future__ import annotations

import math
from typing import Any

from dboost.display import as_read
from dboost.errors import InputTypeError, MissingExtraError, ParameterError
from dboost.losses.deviance import SquaredError
from dboost.tracebacks import short_tracebacks
from dboost.training.callbacks import Iteration
from dboost.training.history import NOT_SCORES

try:
    import optuna
except ImportError as error:
    raise MissingExtraError("optuna is not installed; it comes with the extra: pip install 'dboost[optuna]'") from error


@short_tracebacks
class PruningCallback:
    """A callback that reports a metric of every iteration to a trial, and ends the fit if the trial is to be pruned.

    Parameters
    ----------
    trial : optuna.trial.Trial
    metric : str
        A column of `Booster.history` such as "eval_roc_auc" or "train_loss"; "roc_auc" alone means that of an evaluation set
        without a name, and in `dboost.cv` the mean over the folds. The study's direction must be that of the metric, which is
        not known of a function without `dboost.metrics.Metric`.
    every : int, default 1
        Report each iteration whose number is a multiple of this.

    Raises
    ------
    optuna.TrialPruned
        From the fit, when the study's pruner decides so. Workers of a cluster release the rows of the fit.
    ParameterError
        From the fit, in its first iteration: there is no such metric, or the study minimizes a metric of which larger values
        are better, or the reverse: its pruner would end the best trials.

    Examples
    --------
    >>> def objective(trial):
    ...     rate = trial.suggest_float("learning_rate", 0.01, 0.3, log=True)
    ...     callback = PruningCallback(trial, "eval_log_loss")
    ...     booster = dboost.fit(train, "y", eval_set=test, learning_rate=rate, callbacks=[callback])
    ...     return booster.history["eval_log_loss"].min()
    """

    def __init__(self, trial: optuna.trial.BaseTrial, metric: str, every: int = 1) -> None:
        if not hasattr(trial, "should_prune"):
            raise InputTypeError(f"trial must be a trial of optuna, not {type(trial).__name__}")
        if not isinstance(metric, str):
            raise InputTypeError(f"metric must be the name of a metric, not {type(metric).__name__}")
        if not isinstance(every, int) or every < 1:
            raise ParameterError(f"every={every!r} must be a number of iterations, at least 1")
        self._trial, self._metric, self._every = trial, metric, every

    def __call__(self, iteration: Iteration) -> None:
        """Report the metric of an iteration; raise `optuna.TrialPruned` if the pruner decides so."""
        column, value = self._value(iteration.record)
        self._check_direction(column, iteration.greater_is_better.get(column))
        if iteration.iteration % self._every:
            return
        if math.isnan(value):  # the metrics of a search are not evaluated in the fit of all rows
            return
        self._trial.report(value, step=iteration.iteration)
        if self._trial.should_prune():
            raise optuna.TrialPruned(f"pruned after iteration {iteration.iteration}")

    def _check_direction(self, column: str, greater_is_better: bool | None) -> None:
        """Raise a ParameterError if the study prefers the worse values of a metric.

        greater_is_better : None if that is not known, of a function without it.
        """
        study = getattr(self._trial, "study", None)
        if greater_is_better is None or study is None or len(study.directions) > 1:
            return
        wanted = optuna.study.StudyDirection.MAXIMIZE if greater_is_better else optuna.study.StudyDirection.MINIMIZE
        comparison = "is larger" if greater_is_better else "is smaller"
        if study.direction != wanted:
            raise ParameterError(
                f"the study would prune the best trials: {column!r} is better when it {comparison}: "
                f"make the study with direction={wanted.name.lower()!r}"
            )

    def _value(self, record: dict[str, Any]) -> tuple[str, float]:
        """Return the column of the metric in a record, and its value; the root of squared errors by the name of the history."""
        scores = {name: value for name, value in record.items() if name not in NOT_SCORES}
        roots = {as_read(name, value, SquaredError.name)[0]: name for name, value in scores.items() if name != "train_loss"}
        for name in (self._metric, f"eval_{self._metric}", f"validation_{self._metric}"):
            if name in scores:
                return name, float(scores[name])
            if name in roots:
                return roots[name], float(as_read(roots[name], scores[roots[name]], SquaredError.name)[1])
        names = ", ".join(map(repr, dict.fromkeys((*roots, *scores))))
        raise ParameterError(f"there is no metric {self._metric!r}: give one of the columns {names}")
