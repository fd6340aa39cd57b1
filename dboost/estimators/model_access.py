"""What estimators have of their model: scores, leaves and the file under the names of XGBoost, LightGBM and CatBoost, and the
methods of the Booster that mean the same for an estimator.

What a Booster returns as another Booster (`Booster.truncate`), or what an estimator has a parameter of that name for (`loss`),
is an attribute of `booster_` only, and the error for the name says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dboost.booster import Booster, load
from dboost.params import accepts_names_of_trees, serves_peer_names
from dboost.params.peer_names import AnswersGuesses, unknown_attribute
from dboost.tracebacks import short_tracebacks
from dboost.training.history import NOT_SCORES, OUT_OF_BAG

P = ParamSpec("P")
R = TypeVar("R")


def _of_model(method: Callable[Concatenate[Booster, P], R]) -> Callable[Concatenate[ModelAccess, P], R]:
    """Return a method of estimators that calls that of the model, with its signature and documentation."""

    @wraps(method)
    def call(self: ModelAccess, /, *args: P.args, **keywords: P.kwargs) -> R:
        return method(self.get_booster(), *args, **keywords)

    return call


def _property_of_model(name: str) -> property:
    """Return a property of estimators that is that of the model."""
    return property(lambda self: getattr(self.get_booster(), name), doc=getattr(Booster, name).__doc__)


@short_tracebacks
@serves_peer_names
class ModelAccess(metaclass=AnswersGuesses):
    """Base class of the estimators with these attributes and methods."""

    booster_: Booster
    #: Names of the evaluation sets of the last fit.
    _set_names: tuple[str, ...] = ()

    # What the model can do, as of `Booster`.

    save = _of_model(Booster.save)
    predictor = _of_model(Booster.predictor)
    decide = _of_model(Booster.decide)

    importance = _of_model(Booster.importance)
    shap_values = _of_model(Booster.shap_values)
    partial_dependence = _of_model(Booster.partial_dependence)
    additivity = _of_model(Booster.additivity)
    interaction_strength = _of_model(Booster.interaction_strength)
    drift = _of_model(Booster.drift)

    plot_importance = _of_model(Booster.plot_importance)
    plot_partial_dependence = _of_model(Booster.plot_partial_dependence)
    plot_history = _of_model(Booster.plot_history)
    plot_tree = _of_model(Booster.plot_tree)
    plot_shap_summary = _of_model(Booster.plot_shap_summary)
    plot_shap_dependence = _of_model(Booster.plot_shap_dependence)
    plot_waterfall = _of_model(Booster.plot_waterfall)
    plot_calibration = _of_model(Booster.plot_calibration)
    plot_lift = _of_model(Booster.plot_lift)
    plot_residuals = _of_model(Booster.plot_residuals)
    plot_coverage = _of_model(Booster.plot_coverage)
    report = _of_model(Booster.report)

    to_frame = _of_model(Booster.to_frame)
    to_matrix = _of_model(Booster.to_matrix)
    to_onnx = _of_model(Booster.to_onnx)
    to_treelite = _of_model(Booster.to_treelite)
    to_xgboost_json = _of_model(Booster.to_xgboost_json)

    history = _property_of_model("history")
    sources = _property_of_model("sources")
    sha256 = _property_of_model("sha256")
    best_iteration = _property_of_model("best_iteration")
    expected_value = _property_of_model("expected_value")
    calibration = _property_of_model("calibration")

    # What has another name or form than in `Booster`.

    def get_booster(self) -> Booster:
        """Return the model, `booster_`."""
        check_is_fitted(self)
        return self.booster_

    def save_model(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, as `Booster.save`; arguments of the constructor are not written, unlike by pickle."""
        self.get_booster().save(path)

    def load_model(self, path: str | os.PathLike[str]) -> Self:
        """Read the model from a file, as `dboost.load`, in place of a fit.

        Parameters
        ----------
        path : path or URL

        Returns
        -------
        self

        Raises
        ------
        ModelFileError
            Naming the file that cannot be read.
        ParameterError
            If the model is one for classes and the estimator is not, or the other way round.
        """
        loss = getattr(self, "loss", None)
        self._set_loaded(load(path, loss=None if isinstance(loss, str) else loss))
        return self

    def _set_loaded(self, booster: Booster) -> None:
        raise NotImplementedError

    @accepts_names_of_trees
    def apply(self, X: Any, *, iteration_range: tuple[int, int] | None = None) -> Any:
        """Return the leaf that each row reaches in each tree, as `Booster.apply`.

        Parameters
        ----------
        X : like the training data
        iteration_range : (first, last), optional
            Use only these iterations, counted from 0, without the last one. Default: all.

        Returns
        -------
        array int32 (n, n_trees), or a lazy Dask collection for one
        """
        return self._predict_with(X, "apply", iteration_range=iteration_range)

    def _predict_with(self, X: Any, method: str, **arguments: Any) -> Any:
        raise NotImplementedError

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each feature in the reduction of the loss by all splits, float64[n_features]."""
        return self.get_booster().feature_importances_

    @property
    def oob_score_(self) -> float:
        """Score of a forest on the training rows by the trees that did not draw them.

        R², or the accuracy of classes; of several targets the mean.

        Raises
        ------
        AttributeError
            If the model is no forest, its trees drew all rows, or `eval_metric` did not name this score.
        """
        booster = self.get_booster()
        name = f"{OUT_OF_BAG}_{'accuracy' if booster.outputs.is_classification else 'r2'}"
        if not booster.n_iter_ or name not in booster.ensemble.metrics:
            raise AttributeError(f"the model has no {name}: it is no forest, or it was not evaluated by this score")
        return booster.ensemble.metrics[name][booster.n_iter_ - 1]

    @property
    def best_iteration_(self) -> int | None:
        """Number of iterations that early stopping kept; None without early stopping."""
        return self.get_booster().best_iteration

    @property
    def evals_result_(self) -> dict[str, dict[str, list[float]]]:
        """Scores after each iteration, by evaluation set and metric; "train" has the training loss."""
        history, results = self.get_booster().history, dict[str, dict[str, list[float]]]()
        for column in history.columns:
            if column not in NOT_SCORES:
                name, metric = self._set_and_metric(column)
                results.setdefault(name, {})[metric] = history[column].tolist()
        return results

    @property
    def best_score_(self) -> dict[str, dict[str, float]]:
        """Scores of the model after the last of its iterations, by evaluation set and metric."""
        last = self.get_booster().history["iteration"].to_numpy().tolist()
        if not last:
            return {}
        row = len(last) - 1 - last[::-1].index(self.booster_.n_iter_)
        return {
            name: {metric: values[row] for metric, values in columns.items()} for name, columns in self.evals_result_.items()
        }

    def _set_and_metric(self, column: str) -> tuple[str, str]:
        """Return the evaluation set and the metric of a column of the history."""
        set_names = [name for name in self._set_names if column.startswith(f"{name}_")]
        name = max(set_names, key=len) if set_names else column.partition("_")[0]
        return name, column[len(name) + 1 :]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name, model=Booster)
