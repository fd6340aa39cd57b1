"""`DBoostClassifier`: the estimator for classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sklearn.base import ClassifierMixin

from dboost.booster import Booster
from dboost.errors import ParameterError
from dboost.estimators.estimator import BaseGradientBoosting, Range, as_targets
from dboost.training.callbacks import Callback


class DBoostClassifier(ClassifierMixin, BaseGradientBoosting):
    """Gradient boosted trees for classification, as a scikit-learn estimator.

    Parameters
    ----------
    loss : str or dboost.losses.Loss
        "log_loss" (the same as "auto", the default), or "exponential" for two classes.
    learning_rate, max_iter, max_leaf_nodes, max_depth, min_samples_leaf, min_hessian, l2_regularization, l1_regularization, \
    leaf_penalty, min_gain, max_delta_step, criterion, step, growth, split_proposal, max_bins, categorical_smoothing, \
    categorical_l2, max_category_group, min_category_hessian, subsample, influence_trimming, max_features, monotonic_cst, \
    interaction_cst
        Parameters of the trees, see `dboost.params.Parameters`; `learning_rate` may be a schedule as in
        `dboost.fit`. None for `max_leaf_nodes` or `max_depth` means no limit.
    grow_policy, min_split_gain, leaf_estimation, init_model : optional
        Aliases of `growth` ("lossguide" or "depthwise"), `min_gain`, `step` and `start_from`. An alias replaces the default; it
        is an error beside another value of the parameter. Default: None, not used.
    start_from, source_name, continue_bins, continue_steps, refit_leaves, checkpoint, checkpoint_every
        As in `dboost.fit`. `start_from` and `warm_start` exclude each other. With `refit_leaves`, `fit` and `partial_fit`
        add no trees but estimate the leaf values of that model (or in `partial_fit` of the estimator's own model) again.
    memory_limit, time_limit, workers, keep_summary
        As in `dboost.fit`.
    quantile, huber_alpha, tweedie_power
        Parameters of losses for regression; only their defaults are accepted.
    class_weight : dict or "balanced", optional
        Weights of classes, which are multiplied with the rows' weights. "balanced": inversely proportional to the numbers of
        rows. Default: 1.
    features, categorical_features, eval_metric, client, callbacks
        As in `dboost.fit`.
    n_jobs : int, optional
        Threads of this process, as `n_threads` of `dboost.fit`. None or -1: all processors that it may use; -2: all but one.
    n_threads : int, optional
        Alias of `n_jobs`.
    arcbites : dboost.ArcBites, True or None
        As in `dboost.fit`; early stopping, if it is on, ends the fit, or without `trees_per_visit` the visits of bites. Not
        with a warm start.
    warm_start : bool, default False
        Let `fit` continue the model up to `max_iter` iterations in total. The validation rows stay the same; other arguments
        may change and apply to the new trees.
    early_stopping : "auto" or bool, default "auto"
        Stop if the score has not improved for `n_iter_no_change` iterations, and keep the iterations up to the best one
        (of equal scores the last one, of equal losses the first). "auto": with more than 10,000 rows.
    scoring : "loss", None, name of a scorer, or callable, default "loss"
        The score of early stopping; None is the estimator's `score`. A callable is called with the estimator, rows as a
        matrix (categories as codes), targets, and `sample_weight` if there are weights.
    validation_fraction : float, int or None, default 0.1
        Fraction or number of the rows that are held out, unless `fit` gets validation data. None: score the training rows.
    n_iter_no_change : int, default 10
        Iterations without improvement before training stops.
    tol : float, default 1e-7
        Smallest improvement of the best score that counts.
    early_stopping_rounds : int, optional
        Use the early stopping of `dboost.fit` instead: by the last metric of the last evaluation set.
    progress : bool, optional
        As in `dboost.fit`. Default: as `verbose`.
    verbose : int, default 0
        Show progress unless 0.
    random_state : int, RandomState or None, default None
        An integer is the seed of learning, as in `dboost.fit`.

    Attributes
    ----------
    booster_ : Booster
        The model; without early stopping that of `dboost.fit` with the same parameters.
    n_iter_ : int
        Iterations in the model; `booster_.history` also has those that early stopping dropped.
    do_early_stopping_ : bool
    train_score_, validation_score_ : float64[n_iter_ + 1]
        Scores before the first tree and after each iteration, larger is better. Empty without scoring.
    feature_importances_ : float64[n_features]
        Reduction of the loss by the splits on each feature, in the order of the columns; the sum is 1, or 0 without splits.
    is_categorical_ : bool[n_features] or None
    n_features_in_ : int
    feature_names_in_ : array of str
        Only if all columns of X have names of type str.
    classes_ : array
        In the order of the columns of `predict_proba`.

    Examples
    --------
    >>> from dboost import DBoostClassifier
    >>> model = DBoostClassifier(max_iter=200, early_stopping=True)
    >>> model.fit(X, y).predict(X)                                  # doctest: +SKIP
    """

    def __init__(
        self,
        loss: Any = "auto",
        *,
        quantile: float | None = None,
        huber_alpha: float = 0.9,
        tweedie_power: float = 1.5,
        class_weight: Mapping[Any, float] | str | None = None,
        learning_rate: Any = 0.1,
        max_iter: int = 100,
        max_leaf_nodes: int | None = 31,
        max_depth: int | None = None,
        min_samples_leaf: int = 20,
        min_hessian: float = 1.0,
        l2_regularization: float = 1.0,
        l1_regularization: float = 0.0,
        leaf_penalty: float = 0.0,
        min_gain: float = 0.0,
        min_split_gain: float | None = None,
        max_delta_step: float | None = None,
        growth: str = "best_first",
        grow_policy: str | None = None,
        criterion: str = "newton",
        step: str = "leaf",
        leaf_estimation: str | None = None,
        split_proposal: str = "global",
        max_bins: int = 255,
        subsample: float = 1.0,
        max_features: float = 1.0,
        influence_trimming: float | None = None,
        features: Any = None,
        categorical_features: Any = "from_dtype",
        categorical_smoothing: float = 10.0,
        categorical_l2: float = 3.0,
        max_category_group: int = 32,
        min_category_hessian: float = 20.0,
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
        warm_start: bool = False,
        early_stopping: bool | str = "auto",
        scoring: Any = "loss",
        validation_fraction: float | int | None = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-7,
        eval_metric: Any = None,
        early_stopping_rounds: int | None = None,
        start_from: Any = None,
        init_model: Any = None,
        source_name: str | None = None,
        continue_bins: str = "new",
        continue_steps: str = "damped",
        refit_leaves: bool = False,
        checkpoint: Any = None,
        checkpoint_every: int = 10,
        memory_limit: Any = None,
        time_limit: float | str | None = None,
        workers: Any = None,
        keep_summary: bool = True,
        arcbites: Any = None,
        client: Any = None,
        n_jobs: int | None = None,
        n_threads: int | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self._store(locals())

    def _loss(self) -> Any:
        if getattr(self.loss, "is_classification", False):
            return self.loss
        if not (isinstance(self.loss, str) and self.loss in ("auto", "log_loss", "exponential")):
            raise ParameterError(
                f"loss={self.loss!r}: a classifier is trained with 'log_loss' (or 'auto', the same) or 'exponential'"
            )
        return "log_loss" if self.loss == "auto" else self.loss

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None) -> Any:
        """Continue the model with more data; the first call trains one.

        Parameters
        ----------
        X, y, sample_weight
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
        return self._partial_fit(X, as_targets(y), sample_weight, classes)

    def _set_model(self, booster: Booster) -> None:
        super()._set_model(booster)
        self.classes_ = booster.classes_

    def predict_proba(self, X: Any, *, iteration_range: Range | None = None, offset: Any = None) -> Any:
        """Predict the probabilities of the classes, in the order of `classes_`; parameters as of `predict`.

        Returns
        -------
        array (n, n_classes), or a lazy Dask collection for one
        """
        return self._predict_with(X, "predict_proba", iteration_range=iteration_range, offset=offset)

    def decision_function(self, X: Any, *, iteration_range: Range | None = None) -> Any:
        """Return raw scores; parameters as of `predict`.

        Returns
        -------
        array (n,) of the second class's log odds for two classes, else (n, n_classes), or a lazy Dask collection
        """
        return self._predict_with(X, "predict", raw_score=True, iteration_range=iteration_range)

    def staged_predict_proba(self, X: Any) -> Iterator[Any]:
        """Yield what `predict_proba` gives after one iteration, after two, and so on."""
        yield from self._staged_predict_with(X, "staged_predict_proba")

    def staged_decision_function(self, X: Any) -> Iterator[Any]:
        """Yield what `decision_function` gives after one iteration, after two, and so on."""
        yield from self._staged_predict_with(X, "staged_predict", raw_score=True)
