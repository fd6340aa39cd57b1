"""The questions of this package as methods, which `dboost.booster.Booster` inherits."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from dboost.errors import ParameterError
from dboost.inspection import importance, permutation, shapley
from dboost.model.ensemble import Ensemble
from dboost.sources import feature_block
from dboost.sources.frame import is_lazy, is_path


class Inspection:
    """What can be asked of a trained model besides predictions."""

    ensemble: Ensemble

    def importance(self, kind: str = "friedman", per_class: bool = False, **how: Any) -> pd.Series | pd.DataFrame:
        """How much each feature matters, the most important one first and at 100.

        Parameters
        ----------
        kind : "friedman", "gain", "cover", "count" or "permutation"
            Root of the mean squared-error improvement, equations (44), (45) and (49) of the paper; what the splits took
            off the loss; Hessians of the rows that the splits looked at; number of splits; or what the predictions
            lose when the feature's values are permuted.
        per_class : bool
            A frame with one column per class, each with its own 100.
        **how
            For "permutation": `data` and `target`, and if wanted `sample_weight`, `metric`, `n_repeats`, `random_state`
            and `n_threads`; see `dboost.inspection.permutation.permutation_importance`.

        Returns
        -------
        Series by feature, or DataFrame features × classes
            ``attrs["unit"]`` is what 100 stands for.

        Raises
        ------
        ParameterError
            Unknown kind; classes of a model that has none, or by permutation; arguments that the kind does not take.
        """
        if kind == "permutation":
            if per_class:
                raise ParameterError("importance by permutation is that of the whole model: it has no per_class")
            if how.get("data") is None or how.get("target") is None:
                raise ParameterError("importance by permutation needs rows: pass data=… and target=…")
            return permutation.permutation_importance(self.ensemble, how.pop("data"), how.pop("target"), **how)
        if how:
            raise ParameterError(f"importance of kind {kind!r} takes no {next(iter(how))}")
        return importance.importance(self.ensemble, kind, per_class)

    @cached_property
    def expected_value(self) -> float | np.ndarray:
        """What the path-dependent Shapley values of a row start from, in raw scores: a float, or float64[n_classes].

        It is what the trees predict when no feature is known, by the Hessians of the training rows. With a background the
        start is the mean of ``predict(background, raw_score=True)``.
        """
        expected = shapley.expected_value(self.ensemble)
        return float(expected[0]) if len(expected) == 1 else expected

    def shap_values(self, X: Any, *, background: Any = None, interactions: bool = False, n_threads: int | None = None) -> Any:
        """How much each feature moved each prediction: exact Shapley values, in raw scores.

        Parameters
        ----------
        X : as in `predict`
        background : table in memory, optional
            Rows whose values stand in for features that are not yet known ("interventional"; 100 are plenty). Default: the
            trees' own training rows ("path-dependent"), which is what XGBoost's ``pred_contribs`` are.
        interactions : bool
            Split the values into what features do alone and in pairs.
        n_threads : int, optional
            Default: all processors for data in memory, one per partition for Dask.

        Returns
        -------
        array, DataFrame or dask collection [n_rows, n_features]
            The kind of X. With K classes an array [n_rows, n_features, n_classes], lazy for Dask; with interactions
            [n_rows, n_features, n_features] or [n_rows, n_features, n_features, n_classes], symmetric. The values of a row
            add up to its raw score minus `expected_value` (or minus the background's mean raw score).

        Raises
        ------
        DataError
            As of `predict`.
        ParameterError
            When the background is no table in memory or has no rows.
        """
        rows = None
        if background is not None:
            if is_path(background) or is_lazy(background):
                raise ParameterError("the background must be a table in memory: compute a sample of some hundred rows")
            rows = feature_block(background, self.ensemble.features, self.ensemble.named, what="background")
            if not len(rows):
                raise ParameterError("the background has no rows")
        if n_threads is None and (is_path(X) or is_lazy(X)):
            n_threads = 1
        function = shapley.Shapley(self.ensemble, rows, interactions, n_threads)
        return shapley.shapley_values(X, self.ensemble, function)
