"""What both estimators do: from constructor arguments to a fit, and from a fit to predictions.

The learning is that of `dboost.fit`; with the same parameters and no early stopping the model is the same file. What
scikit-learn's habits add is decided here and in `watching`: seeds, the validation pair, warm starts, attributes.
"""

from __future__ import annotations

import copy
import numbers
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dboost.booster import Booster
from dboost.errors import DataError, InputTypeError, ParameterError
from dboost.estimators.watching import Watching
from dboost.params import make_parameters
from dboost.sources import Table, open_table
from dboost.sources.frame import is_lazy, is_path
from dboost.training.fit import available_threads, fit_table
from dboost.training.held_out import named_sets
from dboost.training.supervision import HELD_OUT, WATCHED

Range = tuple[int, int]

#: Constructor arguments that are not parameters of `dboost.fit`, or not passed on as they are.
_OWN = {
    "loss", "random_state", "features", "categorical_features", "eval_metric", "n_threads", "callbacks", "progress",
    "early_stopping", "scoring", "tol", "n_iter_no_change", "validation_fraction", "class_weight", "verbose", "warm_start",
}  # fmt: skip


class Seeds(NamedTuple):
    """Of the validation split and of the learning. A warm start keeps them, so that no row changes sides."""

    split: int
    learning: int


class Boosting(BaseEstimator):
    """Base class of the estimators, which have constructors of their own: scikit-learn reads parameters from these."""

    early_stopping: Any
    early_stopping_rounds: Any
    scoring: Any
    random_state: Any
    features: Any
    client: Any
    _seeds: Seeds
    _before: dict[str, float]

    def _store(self, given: dict[str, Any]) -> None:
        """Keep the arguments of the constructor as they are."""
        for name in self._get_param_names():
            setattr(self, name, given[name])

    def _loss(self) -> str:
        """The loss to train with."""
        raise NotImplementedError

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        eval_set: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
    ) -> Any:
        """Train.

        Parameters
        ----------
        X : pandas or polars frame, pyarrow Table, array (n, F), dask DataFrame or Array
        y : one value per row
            Also a column (n, 1), or a Dask collection that aligns with X.
        sample_weight : one value per row, optional
        eval_set : (X, y), (X, y, weight), dict or list of these, optional
            Judged after every iteration by `eval_metric`. Without a validation pair, the last set decides when to stop.
        X_val, y_val, sample_weight_val : optional
            Validation data that decide when to stop, instead of a fraction of X.

        Returns
        -------
        self

        Raises
        ------
        DataError, ParameterError, InputTypeError
            With the column, partition, rows or parameter at fault. All are ValueError or TypeError.
        """
        settings = self.get_params(deep=False)
        self._check_settings()
        self._check_pair(X_val, y_val, sample_weight_val)
        if is_path(X) or isinstance(y, str):
            raise InputTypeError("an estimator wants X and y themselves; dboost.fit takes paths and names of columns")
        y, y_val = _column(y), _column(y_val)
        sets = {name: (data, target, weight) for name, data, target, weight in named_sets(eval_set)}
        if HELD_OUT in sets or WATCHED in sets:
            raise ParameterError(f"an evaluation set may not be called {HELD_OUT!r} or {WATCHED!r}: these are the estimator's")
        if X_val is not None:
            sets[HELD_OUT] = (X_val, y_val, sample_weight_val)
        model = self.booster_ if settings["warm_start"] and hasattr(self, "booster_") else None
        seeds = self._draw_seeds() if model is None else self._seeds
        parameters = make_parameters(
            {name: value for name, value in settings.items() if name not in _OWN}
            | {"loss": self._loss(), "random_state": seeds.learning}
        )
        if model is not None and parameters.max_iter <= model.n_iter_:
            if parameters.max_iter == model.n_iter_:
                return self
            raise ParameterError(
                f"max_iter={parameters.max_iter} must be larger than or equal to n_iter_={model.n_iter_} when warm_start==True"
            )
        threads = available_threads(settings["n_threads"])
        watching = Watching(self, seeds.split, judge=list(sets)[-1] if sets else None)

        def open_training() -> Table:
            _check_lengths(X, y, sample_weight)
            table = open_table(
                X,
                y,
                sample_weight=sample_weight,
                features=settings["features"],
                categorical_features=settings["categorical_features"],
                n_threads=threads,
            )
            try:
                self._note_features(X)
            except BaseException:
                table.close()
                raise
            return table

        fitted = fit_table(
            open_training,
            parameters,
            target_name=None,
            weight_name=None,
            eval_set=sets or None,
            eval_metric=settings["eval_metric"],
            n_threads=threads,
            callbacks=settings["callbacks"],
            progress=bool(settings["verbose"]) if settings["progress"] is None else settings["progress"],
            supervise=watching.supervise,
            start_from=None if model is None else model.ensemble,
        )
        before = fitted.before if model is None else self._before
        history = pd.DataFrame(fitted.history)
        if model is not None:
            history = pd.concat([model.history[model.history["iteration"] <= model.n_iter_], history], ignore_index=True)
        self._seeds, self._before = seeds, before
        self._take(Booster(fitted.ensemble, history=history, timings=fitted.timings))
        self.do_early_stopping_ = watching.stops
        self.train_score_ = watching.scores("train", before, fitted.ensemble)
        self.validation_score_ = watching.scores("validation", before, fitted.ensemble)
        return self

    def _take(self, booster: Booster) -> None:
        """Become the estimator of a model."""
        self.booster_ = booster
        self.n_iter_ = booster.n_iter_
        categorical = np.array([feature.is_categorical for feature in booster.features])
        self.is_categorical_ = categorical if categorical.any() else None

    def _draw_seeds(self) -> Seeds:
        """An integer seeds the learning as it is, so that `dboost.fit` with the same number learns the same."""
        drawn = int(check_random_state(self.random_state).randint(np.iinfo(np.uint32).max, dtype="u8"))
        given = isinstance(self.random_state, numbers.Integral)
        return Seeds(drawn, int(self.random_state) if given else drawn)

    def _check_settings(self) -> None:
        """Refuse values of the estimator's own arguments that make no sense."""
        for name, kinds, sense in (
            ("early_stopping", (bool, np.bool_), lambda v: True),
            ("warm_start", (bool, np.bool_), lambda v: True),
            ("tol", (numbers.Real,), lambda v: v >= 0),
            ("n_iter_no_change", (numbers.Integral,), lambda v: v >= 1),
            ("validation_fraction", (numbers.Real, type(None)), _is_part),
            ("verbose", (numbers.Integral, np.bool_), lambda v: v >= 0),
        ):
            value = getattr(self, name)
            fits = isinstance(value, kinds) and sense(value)
            if not (fits or (name == "early_stopping" and isinstance(value, str) and value == "auto")):
                raise ParameterError(f"{name}={value!r} makes no sense: {_SENSE[name]}")
        if not (self.scoring is None or isinstance(self.scoring, str) or callable(self.scoring)):
            raise ParameterError(f"scoring={self.scoring!r} makes no sense: 'loss', None, a scorer's name or a callable")
        if self.early_stopping_rounds is not None and self.early_stopping is True:
            raise ParameterError(
                "early_stopping_rounds and early_stopping=True are two rules to stop by: give one (the latter waits for "
                "n_iter_no_change iterations)"
            )

    def _check_pair(self, X_val: Any, y_val: Any, sample_weight_val: Any) -> None:
        if y_val is None and X_val is not None:
            raise ParameterError("X_val is provided, but y_val was not provided.")
        if X_val is None and y_val is not None:
            raise ParameterError("y_val is provided, but X_val was not provided.")
        if X_val is None and sample_weight_val is not None:
            raise ParameterError("sample_weight_val is provided, but X_val and y_val were not provided.")
        if X_val is not None and self.early_stopping is False:
            raise ParameterError(
                "X_val and y_val are passed to fit while at the same time early_stopping is False. When passing X_val and "
                "y_val to fit, early_stopping should be set to either 'auto' or True."
            )

    def _note_features(self, X: Any) -> None:
        """Set `n_features_in_`, and `feature_names_in_` where X has names."""
        if self.features is None:
            validate_data(self, _outline(X), reset=True, skip_check_array=True)
        else:
            self.feature_names_in_ = np.array([str(name) for name in self.features], object)
            self.n_features_in_ = len(self.feature_names_in_)

    def _check_features(self, X: Any) -> None:
        """Names must be those of the training data and in their order, unless there are more: then the model's are picked."""
        if is_path(X) or len(getattr(X, "shape", (0, 0))) != 2:
            return  # the model says what is wrong with it
        X = _outline(X)
        known = set(getattr(self, "feature_names_in_", ()))
        labels = X.column_names if hasattr(X, "column_names") else getattr(X, "columns", ())
        if known and known < set(map(str, labels)):
            return
        validate_data(self, X, reset=False, skip_check_array=True)

    def _ask(self, X: Any, method: str, **arguments: Any) -> Any:
        """What the model says; arrays for all data in memory, as users of scikit-learn expect."""
        check_is_fitted(self)
        self._check_features(X)
        answer = getattr(self.booster_, method)(X, **arguments)
        return answer if is_lazy(X) or is_path(X) else np.asarray(answer)

    def _ask_stages(self, X: Any, method: str, **arguments: Any) -> Iterator[Any]:
        check_is_fitted(self)
        self._check_features(X)
        for answer in getattr(self.booster_, method)(X, **arguments):
            yield answer if is_lazy(X) or is_path(X) else np.asarray(answer)

    def predict(self, X: Any, *, iteration_range: Range | None = None) -> Any:
        """Predict a number or a class for each row.

        Parameters
        ----------
        X : like the training data
        iteration_range : (first, last), optional
            Use only these iterations, counted from 0, the last one not included.

        Returns
        -------
        array (n,), or a lazy Dask collection for one
        """
        return self._ask(X, "predict", iteration_range=iteration_range)

    def staged_predict(self, X: Any) -> Iterator[Any]:
        """Yield what `predict` would give after one iteration, after two, and so on."""
        yield from self._ask_stages(X, "staged_predict")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        # A connection does not travel.
        return super().__getstate__() | {"client": None}

    def __sklearn_clone__(self) -> Any:
        # Clones share the client: it cannot be copied, and need not be.
        clone = super(Boosting, copy.copy(self)).__sklearn_clone__()
        clone.client = self.client
        return clone


_SENSE = {
    "early_stopping": "'auto', True or False",
    "warm_start": "True or False",
    "tol": "a number of at least 0",
    "n_iter_no_change": "an integer of at least 1",
    "validation_fraction": "a part of the rows between 0 and 1, a number of rows, or None",
    "verbose": "an integer of at least 0",
}


def _is_part(value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return value is None
    return int(value) >= 1 if isinstance(value, numbers.Integral) else 0 < value < 1


def _column(y: Any) -> Any:
    """Targets, with scikit-learn's warning when they are a table of one column."""
    if len(getattr(y, "shape", ())) == 2 and y.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,), for "
            "example using ravel().",
            DataConversionWarning,
            stacklevel=3,
        )
    return y


def _check_lengths(X: Any, y: Any, sample_weight: Any) -> None:
    """Say in scikit-learn's words that data in memory have different numbers of rows."""
    n, n_targets, n_weights = map(_n_rows, (X, y, sample_weight))
    if n is not None and n_targets is not None and n != n_targets:
        raise DataError(f"Found input variables with inconsistent numbers of samples: {[n, n_targets]}")
    if n is not None and n_weights is not None and n != n_weights:
        raise DataError(f"sample_weight.shape == ({n_weights},), expected ({n},)!")


def _n_rows(data: Any) -> int | None:
    """None where that is not known at once, or there are no data."""
    if isinstance(data, list | tuple):
        return len(data)
    shape = () if is_lazy(data) else getattr(data, "shape", ())
    return shape[0] if shape else None


def _outline(X: Any) -> Any:
    """What tells a table's columns; of a Dask frame the empty frame that stands for its partitions."""
    return X._meta if is_lazy(X) and hasattr(X, "columns") else X
