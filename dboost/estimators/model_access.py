"""What estimators have under the names of XGBoost, LightGBM and CatBoost: the model, its scores, its leaves and its file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dboost.booster import Booster, load
from dboost.params import accepts_names_of_trees, serves_peer_names
from dboost.params.peer_names import unknown_attribute
from dboost.tracebacks import short_tracebacks
from dboost.training.history import NOT_SCORES, OUT_OF_BAG


@short_tracebacks
@serves_peer_names
class ModelAccess:
    """Base class of the estimators with these attributes and methods."""

    booster_: Booster
    #: Names of the evaluation sets of the last fit.
    _set_names: tuple[str, ...] = ()

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
            raise unknown_attribute(self, name)
