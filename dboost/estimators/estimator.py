"""Base class of both estimators: from constructor arguments to a fit, and from a model to predictions.

An estimator trains with `dboost.fit`'s code; with the same parameters and without early stopping the model is the same file.
scikit-learn's conventions are added here and in `validation`: seeds, the validation pair, warm starts, attributes. Arguments
are checked before data are read, with the messages of scikit-learn where it has them.
"""

from __future__ import annotations

import copy
import inspect
import numbers
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dboost._lazy_import import is_a, pd
from dboost.booster import Booster, as_booster, trained
from dboost.data.columns.read_plan import chosen_features
from dboost.data.kinds.named_columns import with_named_constraints
from dboost.data.kinds.predictions_like import NAME
from dboost.data.kinds.table_kinds import is_dask, is_path, names_of_table, no_table
from dboost.data.output.predict_stream import stream_to_predict
from dboost.data.sources.sources import Stream
from dboost.dataset import Dataset
from dboost.errors import ParameterError, warn
from dboost.estimators.constructor import (
    EstimatorParameters,
    accepts_names_of_fits,
    accepts_names_of_targets,
    check_settings,
    constructor,
    is_count,
    is_own_name,
    parameters_of,
)
from dboost.estimators.fit_arguments import (
    as_targets,
    check_lengths,
    check_pair,
    check_roles,
    check_warm_start,
    evaluation_sets,
    has_unknown_names,
    outline,
    threads_of,
)
from dboost.estimators.model_access import ModelAccess
from dboost.estimators.sklearn_callbacks import CallbackSupportMixin, FitHooks, with_callbacks
from dboost.estimators.validation import EarlyStoppingPolicy
from dboost.input_data import input_of, warn_of_copies
from dboost.params import (
    FOREST,
    FOREST_DEFAULTS,
    Parameters,
    accepts_names_of_predictions,
    accepts_peer_names,
    canonical,
    serves_peer_names,
)
from dboost.params.peer_names import refused_attribute, with_our_names
from dboost.session.row_samples import HELD_OUT, WATCHED
from dboost.session.warm_start import WarmStart, check_options
from dboost.tracebacks import short_tracebacks
from dboost.training.auto_iterations import (
    BEFORE_FIT,
    MOST_ITERATIONS,
    RATE,
    Search,
    is_auto,
    search_of,
    with_auto_iterations,
)
from dboost.training.bag import check_bag
from dboost.training.callbacks import Callback
from dboost.training.fit import FitResult
from dboost.training.request import FitRequest
from dboost.training.two_fits import check_refit, fit_twice

Range = tuple[int, int]

#: Arguments that `input_of` and `FitRequest.of` take as they are.
_OF_ROWS = ("features", "categorical_features", "client", "workers")
_OF_FIT = (
    "n_threads", "eval_metric", "progress", "memory_limit", "time_limit", "checkpoint", "checkpoint_every", "source_name",
    "workers", "keep_summary",
)  # fmt: skip


class Seeds(NamedTuple):
    """Seeds of the validation split and of learning. A warm start keeps them, so that the validation rows stay the same."""

    split: int
    learning: int


class StartingModel(NamedTuple):
    """What a fit starts from."""

    warm_start: WarmStart
    model: Booster | None
    is_own: bool  # whether the model is the estimator's own

    def is_complete(self, max_iter: int) -> bool:
        """Return whether a fit on the same data has nothing to add.

        Raises
        ------
        ParameterError
            If the model has more than `max_iter` iterations.
        """
        if self.model is None or self.warm_start.is_new_source or max_iter > self.model.n_iter_:
            return False
        if max_iter < self.model.n_iter_:
            raise ParameterError(
                f"max_iter={max_iter} must be larger than or equal to n_iter_={self.model.n_iter_} when warm_start==True"
            )
        return True


@short_tracebacks
@serves_peer_names
class BaseGradientBoosting(ModelAccess, CallbackSupportMixin, BaseEstimator):
    """Base class of the estimators, with the arguments that both have."""

    early_stopping: Any
    max_iter: Any
    random_state: Any
    source_name: Any
    n_jobs: Any
    n_threads: Any
    warm_start: Any
    features: Any
    monotonic_cst: Any
    client: Any
    feature_names_in_: Any
    _seeds: Seeds
    _before: dict[str, float]

    @accepts_peer_names
    @constructor
    def __init__(self, loss: Any = "auto", **parameters: Unpack[EstimatorParameters]) -> None:
        bound = inspect.signature(BaseGradientBoosting.__init__).bind(self, loss, **parameters)
        bound.apply_defaults()
        for name, value in list(bound.arguments.items())[1:]:  # without self
            setattr(self, name, value)

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            """Refuse a new attribute that is meant as a parameter, but is none."""
            cls = type(self)
            is_new = name not in parameters_of(cls) and name not in self.__dict__
            if is_new and not (name.startswith("_") or name.endswith("_") or is_own_name(cls, name)):
                error = refused_attribute(name, parameters_of(cls))
                if error is not None:
                    raise error
            super().__setattr__(name, value)

    def set_params(self, **params: Any) -> Any:
        """Set arguments of the constructor; raise a ValueError for unknown ones."""
        known = {*inspect.signature(type(self).__init__).parameters} - {"self"}
        ours = {name: value for name, value in params.items() if "__" in name}
        return super().set_params(**ours, **with_our_names({name: params[name] for name in params.keys() - ours}, known))

    def _loss(self) -> Any:
        """Return the loss to train with."""
        raise NotImplementedError

    @with_callbacks
    @accepts_names_of_fits
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        eval_set: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
        offset_val: Any = None,
    ) -> Any:
        """Train a model.

        Parameters
        ----------
        X : pandas or polars frame, pyarrow Table, array (n, F), dask DataFrame or Array, or dboost.Dataset
            A data set (`dboost.prepare`) has target, weights and offsets, and takes none here.
        y : one value per row
            Also a column (n, 1), or a Dask collection that aligns with X.
        sample_weight : one value per row, optional
        offset : one value per row, optional
            Where raw scores start, as in `dboost.fit`; evaluation sets and the validation pair need offsets then, too.
        eval_set : (X, y), (X, y, weight), (X, y, weight, offset), dict or list of these, optional
            Evaluated after every iteration by `eval_metric`. Without a validation pair, the last set is the validation set.
        X_val, y_val, sample_weight_val, offset_val : optional
            Validation data for early stopping, instead of a fraction of X.

        Returns
        -------
        self

        Raises
        ------
        DataError, ParameterError, InputTypeError
            Naming the column, partition, rows or parameter. All are ValueError or TypeError.
        """
        validation = (X_val, as_targets(y_val), sample_weight_val, offset_val)
        hooks = FitHooks(self, X, y, sample_weight, self._n_new_iterations())
        targets = as_targets(y)
        self._train(X, targets, sample_weight, offset, eval_set, validation, hooks=[hooks] if hooks.is_needed else ())
        hooks.close()
        return self

    def _n_new_iterations(self) -> int:
        """The largest number of iterations that `fit` may add; 0 also for an invalid one, which `fit` refuses."""
        if is_auto(self.max_iter):
            return MOST_ITERATIONS
        if not is_count(self.max_iter):
            return 0
        before = self.booster_.n_iter_ if self.warm_start and hasattr(self, "booster_") else 0
        return max(self.max_iter - before, 0)

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, offset: Any, classes: Any = None) -> Any:
        """Continue the estimator's model; the first call trains one."""
        for name in ("checkpoint", "start_from", "init_model"):
            if self.get_params(deep=False)[name] is not None:
                raise ParameterError(f"{name} is for fit: partial_fit continues the estimator's own model")
        model = getattr(self, "booster_", None)
        if model is not None:
            self._check_features(X)
        return self._train(X, y, sample_weight, offset, continued=model, classes=classes)

    def _train(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        offset: Any = None,
        eval_set: Any = None,
        validation: tuple[Any, Any, Any, Any] = (None, None, None, None),
        *,
        continued: Booster | None = None,
        classes: Any = None,
        hooks: Sequence[Callback] = (),
    ) -> Any:
        """Train a model; X, y, sample_weight, offset and eval_set are those of `fit`.

        validation : X_val, y_val, sample_weight_val and offset_val of `fit`; continued : the model of `partial_fit`; classes :
        all classes, by default those of y; hooks : callbacks after those of the user.
        """
        began = time.perf_counter()
        settings = self._settings(X)
        check_pair(self.early_stopping, *validation[:3])
        roles = {"sample_weight": sample_weight, "offset": offset}
        check_roles(X, y, **roles)
        sets = evaluation_sets(eval_set, validation, offset)
        if offset is not None and settings["scoring"] != "loss":
            raise ParameterError("scorers do not take offsets: with an offset, scoring must be 'loss'")
        start = self._start(settings, continued)
        seeds = self._seeds if start.is_own and hasattr(self, "_seeds") else self._draw_seeds()
        search = self._search(settings, sets, start)
        policy = self._policy(settings, seeds, list(sets), search)
        learning = self._learning(settings, X, search) | {"random_state": seeds.learning}
        source = input_of(X, ... if isinstance(X, Dataset) else y, **{name: settings[name] for name in _OF_ROWS}, **roles)
        request = FitRequest.of(
            source.shaped(learning),
            **{name: settings[name] for name in _OF_FIT},
            eval_set=sets or None,
            callbacks=settings["callbacks"],
            roles=source.roles,
            make_validation_plan=policy.make_validation_plan,
            warm_start=start.warm_start,
            classes=None if classes is None else tuple(np.unique(np.asarray(classes)).tolist()),
            began=began,
        )
        if start.is_complete(request.parameters.max_iter):
            return self
        if start.model is None:
            warn_of_copies(source)
        stops = search is not None or self.early_stopping is not False or settings["early_stopping_rounds"] is not None
        check_refit(settings["refit"], request, stops=stops)
        check_bag(settings["bag"], request, has_second_fit=bool(settings["refit"]) or search is BEFORE_FIT)
        check_warm_start(settings)
        check_lengths(X, y, sample_weight)
        self._set_features(X)
        if settings["refit"] or search is BEFORE_FIT:
            given = self._rate(settings)
            fitted = fit_twice(
                source,
                request,
                rate=None if search is not BEFORE_FIT else RATE if given is None else given,
                fraction=policy.fraction or 0.0,
                bag=settings["bag"],
                first_callbacks=hooks,
                stops=lambda: policy.stops,
            )
        else:
            fitted = source.fit(replace(request, callbacks=(*request.callbacks, *hooks)))
        is_scored = sets or policy.stops or request.parameters.has_out_of_bag
        if settings["eval_metric"] is not None and not is_scored:
            warn("eval_metric has no effect without an eval_set and without early stopping")
        self._keep(fitted, trained(fitted, request.parameters, start.model, X), start, policy)
        self._seeds, self._set_names = seeds, (*sets, HELD_OUT, WATCHED)
        if has_unknown_names(X):
            self._set_features_of(self.booster_)
        return self

    def _search(self, settings: dict[str, Any], sets: Mapping[str, Any], start: StartingModel) -> Search | None:
        """Return how ``max_iter="auto"`` searches; None for a number of iterations."""
        if not is_auto(settings["max_iter"]):
            return None
        continues = settings["warm_start"] or start.model is not None
        needs = {name: settings[name] for name in ("checkpoint", "time_limit")} | {"sets": sets or None}
        return search_of(settings, settings["refit"], **needs, continues=continues or None)

    def _policy(
        self, settings: dict[str, Any], seeds: Seeds, sets: Sequence[str], search: Search | None
    ) -> EarlyStoppingPolicy:
        """Return the rules of early stopping and validation rows. sets : names of the evaluation sets."""
        if search is not None and not sets and settings["validation_fraction"] is None:
            raise ParameterError('max_iter="auto" needs validation rows: give validation_fraction, X_val or eval_set')
        split = seeds.split if search is None else seeds.learning  # as in `dboost.fit`
        return EarlyStoppingPolicy(self, split, validation_set=sets[-1] if sets else None, search=search)

    def _rate(self, settings: dict[str, Any]) -> Any:
        """Return the learning rate; None for the default, which counts as not given with ``max_iter="auto"``."""
        rate = settings["learning_rate"]
        return None if rate == Parameters.learning_rate else rate

    def _learning(self, settings: dict[str, Any], X: Any, search: Search | None) -> dict[str, Any]:
        """Return the parameters of learning other than the seed, with those that ``max_iter="auto"`` or a forest decides."""
        defaults = {field.name: field.default for field in fields(Parameters)}
        learning = {name: settings[name] for name in defaults}
        if settings["boosting"] == FOREST:  # a default of boosting counts as not given
            learning = {n: value for n, value in learning.items() if n not in FOREST_DEFAULTS or value != defaults[n]}
        if search is not None:
            subsample = None if settings["subsample"] == defaults["subsample"] else settings["subsample"]
            given = {"learning_rate": self._rate(settings), "subsample": subsample, "early_stopping_rounds": None}
            learning = with_auto_iterations(learning | given, search, has_rule=True)
        return with_named_constraints(learning | {"loss": self._loss()}, X)

    def _keep(self, fitted: FitResult, model: Booster, start: StartingModel, policy: EarlyStoppingPolicy) -> None:
        """Set the model and its scores."""
        if start.model is None:
            before = fitted.before
        else:  # the scores before the first tree are unknown for the model of `start_from`
            before = getattr(self, "_before", {}) if start.is_own else {}
        self._set_model(model)
        self._before = before
        self.do_early_stopping_ = policy.stops
        self.train_score_ = policy.scores("train", before, fitted.ensemble)
        self.validation_score_ = policy.scores("validation", before, fitted.ensemble)

    def _settings(self, X: Any) -> dict[str, Any]:
        """Return the arguments of the constructor for a fit on X: checked, without aliases."""
        constructor = inspect.signature(type(self).__init__).parameters
        defaults = {name: parameter.default for name, parameter in constructor.items()}
        settings = canonical(self.get_params(deep=False), defaults)
        settings["n_threads"] = threads_of(settings.pop("n_jobs"), settings["n_threads"])
        check_settings(self)
        if settings["progress"] is None:
            settings["progress"] = settings["verbose"] > 0
        if isinstance(X, Dataset):
            for name in ("features", "categorical_features"):
                if not np.array_equal(settings[name], defaults[name]):
                    raise ParameterError(f"{name} belongs to dboost.prepare: the data set has its own")
            if settings["max_bins"] not in (defaults["max_bins"], X.max_bins):
                raise ParameterError(
                    f"max_bins={settings['max_bins']} does not fit the data set, which has max_bins={X.max_bins}"
                )
            settings["max_bins"] = X.max_bins
        return settings

    def _start(self, settings: dict[str, Any], continued: Booster | None) -> StartingModel:
        """Return what a fit starts from."""
        options = settings["continue_bins"], settings["continue_steps"]
        start_from = settings["start_from"]
        if start_from is not None and settings["warm_start"]:
            raise ParameterError("start_from and warm_start=True name two models to continue: give one")
        if continued is not None or start_from is not None:
            model = as_booster(start_from) if continued is None else continued
            return StartingModel(WarmStart.continuation(model.ensemble, *options), model, continued is not None)
        check_options(*options)
        if settings["warm_start"] and hasattr(self, "booster_"):
            return StartingModel(WarmStart.same_data(self.booster_.ensemble), self.booster_, True)
        return StartingModel(WarmStart.same_data(None), None, False)

    @accepts_names_of_targets
    def refit_leaves(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        decay: float = 0.0,
        source_name: str | None = None,
    ) -> Any:
        """Estimate the leaf values of the model again from other data; the splits stay.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in `fit`, with the columns of the training data.
        decay : float, default 0.0
            From 0 to below 1: the weight of the old leaf values.
        source_name : str, optional
            Label of the data in `Booster.sources`. Default: that of the constructor.

        Returns
        -------
        self

        Raises
        ------
        DataError, ParameterError, InputTypeError
            As `Booster.refit_leaves`.
        """
        check_is_fitted(self)
        if not isinstance(X, Dataset):
            check_roles(X, y)
            check_lengths(X, y, sample_weight)
            self._check_features(X)
        refitted = self.booster_.refit_leaves(
            X,
            as_targets(y),
            sample_weight=sample_weight,
            offset=offset,
            decay=decay,
            source_name=self.source_name if source_name is None else source_name,
            client=self.client,
            n_threads=threads_of(self.n_jobs, self.n_threads),
        )
        self._set_model(refitted)
        self._before, self.do_early_stopping_ = {}, False
        self.train_score_, self.validation_score_ = np.empty(0), np.empty(0)
        return self

    def _set_model(self, booster: Booster) -> None:
        """Set the attributes that depend on the model."""
        self.booster_ = booster
        self.n_iter_ = booster.n_iter_
        self.n_outputs_ = len(booster.outputs.prediction_columns or (None,))
        categorical = np.array([feature.is_categorical for feature in booster.features])
        self.is_categorical_ = categorical if categorical.any() else None

    def _set_loaded(self, booster: Booster) -> None:
        is_for_classes = isinstance(self, ClassifierMixin)
        if booster.outputs.is_classification != is_for_classes:
            raise ParameterError(
                f"the model is one for {'numbers' if is_for_classes else 'classes'}: "
                f"load it into a {'DBoostRegressor' if is_for_classes else 'DBoostClassifier'}"
            )
        self._set_features_of(booster)
        self._set_model(booster)
        self._before, self.do_early_stopping_ = {}, False
        self.train_score_, self.validation_score_ = np.empty(0), np.empty(0)

    def _draw_seeds(self) -> Seeds:
        """Draw seeds from `random_state`; an integer is the seed of learning, as in `dboost.fit`."""
        try:
            generator = check_random_state(self.random_state)
        except ValueError as error:
            raise ParameterError(
                f"random_state={self.random_state!r} must be None, an integer between 0 and {2**32 - 1}, or a numpy RandomState"
            ) from error
        drawn = int(generator.randint(np.iinfo(np.uint32).max, dtype="u8"))
        is_given = isinstance(self.random_state, numbers.Integral)
        return Seeds(drawn, int(self.random_state) if is_given else drawn)

    def _set_features_of(self, booster: Booster) -> None:
        """Set `n_features_in_` and `feature_names_in_` to those of a model."""
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self.n_features_in_ = booster.n_features_in_
        if booster.ensemble.named:
            self.feature_names_in_ = booster.feature_names_in_

    def _set_features(self, X: Any) -> None:
        """Set `n_features_in_`, and `feature_names_in_` if X has names; not of a stream without known names."""
        if has_unknown_names(X):
            return
        if isinstance(X, Dataset):
            self.n_features_in_ = len(X.features)
            if X.has_names:
                self.feature_names_in_ = X.feature_names_in_
            return
        if self.features is None:
            names = names_of_table(X)
            if names is not None:
                names.check_once(names)  # scikit-learn raises the error of another library
            validate_data(self, outline(X, names), reset=True, skip_check_array=True)
        else:
            chosen = chosen_features(self.features, names_of_table(X))
            self.feature_names_in_, self.n_features_in_ = np.array(chosen, object), len(chosen)
        if isinstance(self.monotonic_cst, Mapping) and names_of_table(X) is None:
            raise ParameterError(
                f"{type(self).__name__} was not fitted on data with feature names. "
                "Pass monotonic_cst as an integer array instead."
            )

    def _check_features(self, X: Any) -> None:
        """Check the columns of X as scikit-learn does: the features in the order of the training data.

        Further columns are ignored. With `features` the columns are selected by name, in any order; those of files always are.
        """
        names = X.names if isinstance(X, Stream) else names_of_table(X)
        is_other = not is_a(X, "dask.array", "Array") if is_dask(X) else no_table(X) is not None
        is_unknown = has_unknown_names(X) or (names is None and is_other)
        if is_path(X) or is_unknown or len(getattr(X, "shape", (0, 0))) != 2:
            return  # the model raises an error
        if names is None or not self.booster_.ensemble.named:
            validate_data(self, outline(X, names), reset=False, skip_check_array=True)
            return
        known = self.booster_.feature_names_in_
        features = list(dict.fromkeys(names))  # the model raises an error if a feature occurs twice
        if set(known) <= set(features):
            if self.features is not None:
                return
            features = [name for name in features if name in set(known)]
        by_text = BaseEstimator()  # scikit-learn itself compares the names only if all labels are text
        by_text.feature_names_in_ = known
        validate_data(by_text, pd.DataFrame(columns=features), reset=False, skip_check_array=True)

    def _predict_with(self, X: Any, method: str, **arguments: Any) -> Any:
        """Call a method of the model; return arrays for all data in memory, as scikit-learn does."""
        check_is_fitted(self)
        X = stream_to_predict(X) if has_unknown_names(X) else X
        self._check_features(X)
        prediction = getattr(self.booster_, method)(X, **arguments)
        if is_a(prediction, "pyarrow", "RecordBatchReader"):  # of a stream that can be read once only
            prediction = prediction.read_all().to_pandas()
            prediction = prediction[NAME] if list(prediction) == [NAME] else prediction
        return prediction if is_dask(X) or is_path(X) else np.asarray(prediction)

    def _staged_predict_with(self, X: Any, method: str, **arguments: Any) -> Iterator[Any]:
        check_is_fitted(self)
        self._check_features(X)
        for prediction in getattr(self.booster_, method)(X, **arguments):
            yield prediction if is_dask(X) or is_path(X) else np.asarray(prediction)

    @accepts_names_of_predictions
    def predict(self, X: Any, *, iteration_range: Range | None = None, offset: Any = None) -> Any:
        """Predict a number or a class for each row.

        Parameters
        ----------
        X : like the training data
        iteration_range : (first, last), optional
            Use only these iterations, counted from 0, without the last one. Default: all.
        offset : str, or one number per row, optional
            As in `Booster.predict`.

        Returns
        -------
        array (n,), or a lazy Dask collection for one
        """
        return self._predict_with(X, "predict", iteration_range=iteration_range, offset=offset)

    @accepts_names_of_predictions
    def staged_predict(self, X: Any, *, offset: Any = None) -> Iterator[Any]:
        """Yield what `predict` gives after one iteration, after two, and so on."""
        yield from self._staged_predict_with(X, "staged_predict", offset=offset)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        # A connection cannot be pickled.
        return super().__getstate__() | {"client": None}

    def __sklearn_clone__(self) -> Any:
        # Clones share the client, which cannot be copied.
        clone = super(BaseGradientBoosting, copy.copy(self)).__sklearn_clone__()
        clone.client = self.client
        return clone
