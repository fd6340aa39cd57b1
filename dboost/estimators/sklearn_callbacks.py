"""Callbacks of scikit-learn (`estimator.set_callbacks(...)`, with scikit-learn 1.9 or newer).

A fit is a task, and each of its iterations a subtask. `FitHooks` is a callback of dboost's own kind that calls the hooks of
scikit-learn's callbacks at the end of an iteration, and at the begin of the next one. If the fit stops early, the last subtask
is one that was never trained; it ends without data, as in scikit-learn's own estimators.
"""

from __future__ import annotations

import copy
from typing import Any

from dboost.booster import booster_with
from dboost.model.ensemble import Ensemble
from dboost.training.callbacks import Iteration

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9 has no callbacks

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Adds nothing."""

    def with_callbacks(method: Any) -> Any:
        """Return the method."""
        return method


class FitHooks:
    """Calls the hooks of a fit; an instance is a callback of `dboost.fit`.

    Parameters
    ----------
    estimator : DBoostRegressor or DBoostClassifier
    X, y, sample_weight
        As in the estimator's `fit`; the hooks get them.
    n_iterations : int
        The largest number of iterations that the fit may add.
    """

    def __init__(self, estimator: Any, X: Any, y: Any, sample_weight: Any, n_iterations: int) -> None:
        self._estimator, self._n_left = estimator, n_iterations
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._data: dict[str, Any] = {"X": X, "y": y, "metadata": metadata}
        self._task: Any = None
        self._fit: Any = None
        if hasattr(estimator, "_init_callback_context"):
            self._fit = estimator._init_callback_context(max_subtasks=n_iterations)
            self._fit.call_on_fit_task_begin(estimator=estimator, **self._data)
        if self.is_needed:
            self._begin_iteration(lambda: None)

    @property
    def is_needed(self) -> bool:
        """Whether the estimator has callbacks."""
        return self._fit is not None and hasattr(self._estimator, "_skl_callbacks")

    def __call__(self, iteration: Iteration) -> bool:
        """End the task of an iteration; return whether a callback stops the fit."""

        def fitted() -> dict[str, Any]:
            return self._attributes(iteration.model())

        stops = self._task.call_on_fit_task_end(estimator=self._estimator, **self._data, reconstruction_attributes=fitted)
        self._task = None
        if not stops:
            self._begin_iteration(fitted)
        return bool(stops)

    def close(self) -> None:
        """End the tasks of a fit that has succeeded."""
        if self._task is not None:
            self._task.call_on_fit_task_end(estimator=self._estimator)
        if self._fit is not None:
            self._fit.call_on_fit_task_end(estimator=self._estimator, **self._data, reconstruction_attributes=dict)

    def _begin_iteration(self, fitted: Any) -> None:
        if self._n_left > 0:
            self._n_left -= 1
            self._task = self._fit.subcontext(task_name="iteration")
            self._task.call_on_fit_task_begin(estimator=self._estimator, **self._data, reconstruction_attributes=fitted)

    def _attributes(self, ensemble: Ensemble) -> dict[str, Any]:
        """Return the attributes that a fit would have set with this model."""
        fitted = copy.copy(self._estimator)
        loss = fitted._loss()
        fitted._set_model(booster_with(ensemble, loss=None if isinstance(loss, str) else loss))
        return {name: value for name, value in vars(fitted).items() if name.endswith("_") and not name.startswith("_")}
