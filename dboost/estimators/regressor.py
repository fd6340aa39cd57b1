"""`DBoostRegressor`: the estimator for numbers."""

from __future__ import annotations

from typing import Any

from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dboost.dataset import Dataset
from dboost.errors import ParameterError
from dboost.estimators.constructor import accepts_names_of_fits, accepts_names_of_targets, documented
from dboost.estimators.estimator import BaseGradientBoosting, Range
from dboost.estimators.fit_arguments import as_targets, threads_of
from dboost.estimators.tags import add_tags_of_numbers
from dboost.params import accepts_names_of_intervals, accepts_names_of_predictions, is_for_classes, serves_peer_names
from dboost.tracebacks import short_tracebacks


@short_tracebacks
@documented
@serves_peer_names
class DBoostRegressor(RegressorMixin, BaseGradientBoosting):
    """Gradient boosted trees for regression, as a scikit-learn estimator.

    Parameters
    ----------
    loss : str or dboost.losses.Loss
        "squared_error" (the same as "auto", the default), "absolute_error", "quantile", "huber", "expectile", "normal",
        "poisson", "gamma" or "tweedie". With several targets (a y of several columns) also a list of one for each.
    {parameters}

    Attributes
    ----------
    {attributes}

    Examples
    --------
    >>> from dboost import DBoostRegressor
    >>> model = DBoostRegressor(max_iter=200, early_stopping=True)
    >>> model.fit(X, y).predict(X)                                  # doctest: +SKIP
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        add_tags_of_numbers(tags, self)
        return tags

    @accepts_names_of_fits
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> Any:
        """Continue the model with more data; the first call trains one.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in `fit`. New categories are accepted.

        Returns
        -------
        self

        Notes
        -----
        Each call adds `max_iter` iterations, with smaller steps unless ``continue_steps="full"`` (see `dboost.fit`).
        """
        return self._partial_fit(X, as_targets(y), sample_weight, offset)

    @accepts_names_of_predictions
    def predict_distribution(self, X: Any, *, iteration_range: Range | None = None, offset: Any = None) -> Any:
        """Predict the normal distribution of each row's target, of a model of ``loss="normal"``; parameters as of `predict`.

        Returns
        -------
        array or frame (n, 2), or a lazy Dask collection, with the columns ``loc`` and ``scale``; see
        `Booster.predict_distribution`
        """
        return self._predict_with(X, "predict_distribution", iteration_range=iteration_range, offset=offset)

    @accepts_names_of_targets
    def calibrate(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        coverage: float = 0.9,
        by: str | None = None,
        offset: Any = None,
    ) -> Any:
        """Set the margin for `predict_interval` by rows that the model has not been trained on, see `Booster.calibrate`.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in `fit`, with the columns of the training data. A data set (`dboost.prepare`) has its own y, weights and
            offsets.
        coverage : float, default 0.9
            The share of new rows whose target is in their interval.
        by : str, optional
            A column each value of which gets a margin of its own. Default: one margin for all rows.

        Returns
        -------
        self

        Raises
        ------
        DataError, ParameterError, InputTypeError
            As `Booster.calibrate`.
        """
        check_is_fitted(self)
        if not isinstance(X, Dataset):
            self._check_features(X)
        self.booster_.calibrate(
            X,
            as_targets(y),
            coverage=coverage,
            by=by,
            sample_weight=sample_weight,
            offset=offset,
            client=self.client,
            n_threads=threads_of(self.n_jobs, self.n_threads),
        )
        return self

    @accepts_names_of_intervals
    def predict_interval(self, X: Any, *, offset: Any = None) -> Any:
        """Predict an interval for each row that contains the target with the probability given to `calibrate`.

        Parameters
        ----------
        X : like the training data, with the column `by` of the calibration
        offset : one number for each row, optional
            As in `predict`.

        Returns
        -------
        array (n, 2), or a lazy Dask collection, with the columns ``lower`` and ``upper``; see `Booster.predict_interval`

        Raises
        ------
        ParameterError
            If the model has not been calibrated.
        """
        return self._predict_with(X, "predict_interval", offset=offset)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> float:
        """Return R² of the predictions; parameters as of `fit` and `predict`.

        Raises
        ------
        ParameterError
            For a model of several quantiles.
        """
        if isinstance(self.quantile, list | tuple):
            raise ParameterError(
                f"score is of one prediction per row, and the model has {len(self.quantile)} quantiles: use "
                "sklearn.metrics.mean_pinball_loss for each column of predict"
            )
        from sklearn.metrics import r2_score  # takes 0.5 s to import

        return float(r2_score(y, self.predict(X, offset=offset), sample_weight=sample_weight))

    def _loss(self) -> Any:
        from dboost.losses import auto_loss  # imports compiled kernels, which constructing an estimator does not need

        if is_for_classes(self.loss):
            raise ParameterError(f"loss={getattr(self.loss, 'name', self.loss)!r} is for classes: use DBoostClassifier")
        return auto_loss(False) if isinstance(self.loss, str) and self.loss == "auto" else self.loss
