"""The questions of this package as methods, which `dboost.booster.Booster` inherits."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost._lazy_import import late, pd
from dboost.data import feature_block
from dboost.data.frame import is_lazy, is_path
from dboost.errors import ParameterError
from dboost.model.ensemble import Ensemble

if TYPE_CHECKING:
    from dboost.inspection import dependence, diagnostics, drift, importance, permutation, shapley
else:  # who only trains and predicts need not wait for them
    dependence, diagnostics, drift, importance, permutation, shapley = late(
        "dboost.inspection", "dependence diagnostics drift importance permutation shapley"
    )


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

    def partial_dependence(
        self,
        features: Any,
        data: Any = None,
        kind: str = "average",
        *,
        grid: Any = None,
        scale: str = "raw",
        centred: bool = False,
        max_rows: int = 1000,
        sample_weight: Any = None,
        n_threads: int | None = None,
    ) -> pd.DataFrame:
        """How predictions depend on one or two features.

        Parameters
        ----------
        features : name or position, or two of them
        data : as in `predict`, optional
            Rows to average over. Without, the trees are traversed with the shares of their training rows.
        kind : "average", "individual" or "conditional"
            Partial dependence (51)–(53); one curve per row (50); or the mean prediction of the rows that have the value,
            or one nearest to it (56). The last two need data.
        grid : int, list of values, list of two lists, or dict by name, optional
            How many points a feature has at most (50, or 20 for each of two), or which ones. NaN and None mean missing.
        scale : "raw" or "prediction"
            Raw scores, or numbers and probabilities. Without data, the link is applied to the averaged raw scores.
        centred : bool
            Subtract from each curve its mean over the grid.
        max_rows : int
            Individual curves of so many rows at most, evenly spaced over the data.
        sample_weight : name of a column, or one number per row of data in memory, optional
            What rows count for in means over rows.
        n_threads : int, optional

        Returns
        -------
        DataFrame
            A column per feature ("feature x" for a feature called value, class, row or count), ``value``; ``class`` with K
            classes, ``row`` (position in the data) for individual curves, ``count`` of rows for conditional means, which
            are NaN where there is none. ``attrs["deciles"]`` has the deciles of numeric features, when there are data.

        Raises
        ------
        ParameterError
            Unknown feature, kind, scale or level; more than two features; rows that are needed and not given; weights of
            nothing.
        DataError
            As of `predict`; and for weights that are missing, infinite or negative.
        """
        return dependence.partial_dependence(
            self.ensemble, features, data, kind=kind, grid=grid, scale=scale, centred=centred, max_rows=max_rows,
            sample_weight=sample_weight, n_threads=n_threads,
        )  # fmt: skip

    def drift(self, data: Any, target: Any = None, source: int | str = -1) -> pd.DataFrame:
        """Whether other rows look like those that the model has learned from.

        Parameters
        ----------
        data : as in `predict`
            Counted partition by partition where they lie.
        target : str, or one value per row, optional
            Compare the targets too. For Dask collections and files the name of a column.
        source : int or str
            Which source's data to compare with: number in `sources`, or label. Default: the last.

        Returns
        -------
        DataFrame
            One row for each feature (``what`` "feature"), for the raw scores of each output ("score"; only where the source
            is the last, and the model as it was trained) and for the target ("target"), those that drifted most first:

            ``drift``
                "strong" where ``psi`` is at least 0.25 above ``chance``, "moderate" from 0.1 on, else "none".
            ``psi``
                The population stability index over some twenty groups of values (or the most frequent hundred levels), the
                missing being one more: the sum of (q - p) ln(q / p) over the shares before and now.
            ``chance``
                What the index of rows of the same population exceeds once in a thousand times. Few rows differ a lot.
            ``distance``
                Of numbers the largest difference of the distribution functions (Kolmogorov, Smirnov) at the groups' borders;
                of categories the share of rows that would have to change theirs. Missing values do not count.
            ``missing_before``, ``missing``
                Shares of missing values.
            ``outside``
                Of numbers: the share of rows below the least or above the greatest value of then.
            ``unseen``
                Of categories: the share of rows of levels that the model does not know.

            ``attrs`` has ``source``, ``rows_before`` and ``rows``. Of training data with more than 10,000 rows a sample of
            about as many is what is compared with.

        Raises
        ------
        ParameterError
            When the model keeps no summary (its file is of an earlier version, or it comes from elsewhere), or there is no
            such source.
        DataError
            As of `predict`.
        """
        return drift.drift(self.ensemble, data, target, source)

    def additivity(
        self, features: Any, data: Any, *, max_rows: int = 10_000, sample_weight: Any = None
    ) -> pd.Series | pd.DataFrame:
        """Whether some features act apart from the others: by adding to them, by multiplying them, or neither.

        Parameters
        ----------
        features : name or position, or several of them
            z, a proper subset of the features.
        data : as in `predict`
        max_rows : int
            Look at so many rows at most, evenly spaced over the data.
        sample_weight : as in `partial_dependence`, optional

        Returns
        -------
        Series, or with K classes DataFrame with a column per class
            ``additive``: correlation over the rows of the raw score F with F_z + F_rest (54); ``multiplicative``: with
            F_z · F_rest (55), where F_z and F_rest are the dependences on z and on all others; ``h``: Friedman's H of z
            against the rest, the root of the share of F's variance that the sum of the two leaves over. NaN where F does
            not vary.

        Raises
        ------
        ParameterError
            Unknown features, or all of them.
        DataError
            As of `predict`.
        """
        return diagnostics.additivity(self.ensemble, features, data, max_rows, sample_weight)

    def interaction_strength(
        self, data: Any, features: Any = None, *, max_rows: int = 500, sample_weight: Any = None
    ) -> pd.DataFrame:
        """How much of what pairs of features do, they do together: Friedman and Popescu's H (2008).

        Parameters
        ----------
        data : as in `predict`
        features : sequence of names or positions, optional
            All pairs of these. Default: the ten most important features.
        max_rows : int
            Look at so many rows at most, evenly spaced over the data.
        sample_weight : as in `partial_dependence`, optional

        Returns
        -------
        DataFrame
            ``feature_1``, ``feature_2``, ``h`` (0: they add up; 1: only the pair matters), ``class`` with K classes;
            strongest first. h is 0 where no tree asks about both, NaN where the pair's dependence does not vary.

        Raises
        ------
        ParameterError
            Unknown features, or fewer than two.
        DataError
            As of `predict`.
        """
        return diagnostics.interaction_strength(self.ensemble, data, features, max_rows, sample_weight)
