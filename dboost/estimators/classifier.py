"""`DBoostClassifier`: the estimator for classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags

from dboost.booster import Booster
from dboost.errors import ParameterError
from dboost.estimators.constructor import EstimatorParameters, accepts_names_of_fits, constructor, documented
from dboost.estimators.estimator import BaseGradientBoosting, Range
from dboost.estimators.fit_arguments import as_targets
from dboost.estimators.tags import add_tags_of_classes
from dboost.params import FOREST, accepts_names_of_predictions, accepts_peer_names, is_for_classes, serves_peer_names
from dboost.params.peer_names import no_loss
from dboost.tracebacks import short_tracebacks


@short_tracebacks
@documented
@serves_peer_names
class DBoostClassifier(ClassifierMixin, BaseGradientBoosting):
    """Gradient boosted trees for classification, as a scikit-learn estimator.

    Parameters
    ----------
    loss : str or dboost.losses.Loss
        "log_loss" (the same as "auto", the default), or "exponential" for two classes; of a forest "half_brier_score", which is
        "auto" there.
    class_weight : dict or "balanced", optional
        Weights of classes, which are multiplied with the rows' weights. "balanced": inversely proportional to the numbers of
        rows. Default: 1.
    {parameters}

    Attributes
    ----------
    {attributes}
    classes_ : array
        In the order of the columns of `predict_proba`; of several labels (a y of zeros and ones with a column for each) the
        numbers of the labels.

    Examples
    --------
    >>> from dboost import DBoostClassifier
    >>> model = DBoostClassifier(max_iter=200, early_stopping=True)
    >>> model.fit(X, y).predict(X)                                  # doctest: +SKIP
    """

    @accepts_peer_names
    @constructor
    def __init__(
        self,
        loss: Any = "auto",
        *,
        class_weight: Mapping[Any, float] | str | None = None,
        **parameters: Unpack[EstimatorParameters],
    ) -> None:
        super().__init__(loss, **parameters)
        self.class_weight = class_weight

    def _loss(self) -> Any:
        from dboost.losses import auto_loss  # imports compiled kernels, which constructing an estimator does not need

        if isinstance(self.loss, str) and self.loss == "auto":
            return auto_loss(True, of_forest=self.boosting == FOREST)
        if is_for_classes(self.loss):
            return self.loss
        raise ParameterError(
            f"loss={self.loss!r}: a classifier is trained with 'log_loss' (or 'auto', the same) or 'exponential', and a "
            f"forest with 'auto'{no_loss(self.loss)}"
        )

    @accepts_names_of_fits
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None, *, offset: Any = None) -> Any:
        """Continue the model with more data; the first call trains one.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in `fit`. New categories are accepted, and y may lack some classes.
        classes : sequence, optional
            All classes of this and later calls; for the first call (later ones may repeat it). Default: those in y.

        Returns
        -------
        self

        Notes
        -----
        Each call adds `max_iter` iterations, with smaller steps unless ``continue_steps="full"`` (see `dboost.fit`).
        """
        known = getattr(self, "classes_", None)
        if classes is not None and known is not None and sorted(map(str, classes)) != sorted(map(str, known)):
            raise ParameterError(f"classes={list(classes)!r}: the first call of partial_fit said {known.tolist()!r}")
        return self._partial_fit(X, as_targets(y), sample_weight, offset, classes)

    def _set_model(self, booster: Booster) -> None:
        super()._set_model(booster)
        self.classes_ = np.arange(self.n_outputs_) if booster.classes_ is None else booster.classes_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        add_tags_of_classes(tags, self)
        return tags

    @accepts_names_of_predictions
    def predict_proba(self, X: Any, *, iteration_range: Range | None = None, offset: Any = None) -> Any:
        """Predict the probabilities of the classes, in the order of `classes_`; parameters as of `predict`.

        Returns
        -------
        array (n, n_classes), or of labels (n, n_labels): the probability that each is 1; a lazy Dask collection for one
        """
        return self._predict_with(X, "predict_proba", iteration_range=iteration_range, offset=offset)

    @accepts_names_of_predictions
    def predict_log_proba(self, X: Any, *, iteration_range: Range | None = None, offset: Any = None) -> Any:
        """Return the logarithms of what `predict_proba` returns."""
        return np.log(self.predict_proba(X, iteration_range=iteration_range, offset=offset))

    @accepts_names_of_predictions
    def decision_function(self, X: Any, *, iteration_range: Range | None = None, offset: Any = None) -> Any:
        """Return raw scores; parameters as of `predict`.

        Those of a forest are probabilities, from which one half is subtracted where the sign decides: for two classes and for
        labels.

        Returns
        -------
        array (n,) of the second class's log odds for two classes, else (n, n_classes) or (n, n_labels), or a lazy Dask
        collection
        """
        arguments = {"iteration_range": iteration_range, "offset": offset}
        return self._from_even(self._predict_with(X, "predict", raw_score=True, **arguments))

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> float:
        """Return the accuracy of the predictions; parameters as of `fit` and `predict`."""
        from sklearn.metrics import accuracy_score  # takes 0.5 s to import

        return float(accuracy_score(y, self.predict(X, offset=offset), sample_weight=sample_weight))

    def _from_even(self, raw: Any) -> Any:
        """Return raw scores relative to those at which two classes are equally probable."""
        if self.boosting != FOREST:
            return raw
        loss = self.booster_.outputs.loss
        even = np.array([part.link.even_score for part in loss.parts or (loss,)])
        return raw - even if even.any() else raw

    @accepts_names_of_predictions
    def staged_predict_proba(self, X: Any, *, offset: Any = None) -> Iterator[Any]:
        """Yield what `predict_proba` gives after one iteration, after two, and so on."""
        yield from self._staged_predict_with(X, "staged_predict_proba", offset=offset)

    @accepts_names_of_predictions
    def staged_decision_function(self, X: Any, *, offset: Any = None) -> Iterator[Any]:
        """Yield what `decision_function` gives after one iteration, after two, and so on."""
        yield from map(self._from_even, self._staged_predict_with(X, "staged_predict", raw_score=True, offset=offset))
