"""Arguments of the estimators' constructor: names, defaults, checks and documentation.

There are three kinds. The parameters of learning are the fields of `dboost.params.Parameters`. Those of running a fit are
keywords of `dboost.fit`, with the defaults in its signature. The rest are the estimators' own (`OWN`). scikit-learn reads them
from the signature of the constructor, which the decorator `constructor` completes. `EstimatorParameters` has their names and
types for type checkers.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dboost.api import fit
from dboost.data.columns.roles import ROLES
from dboost.errors import ParameterError
from dboost.estimators.validation import DEFAULT_ROUNDS, DEFAULT_TOLERANCE
from dboost.params import TreeParameters, accepts_peer_names, documentation, entry, learning_keywords
from dboost.params.peer_names import MODEL_ALIASES, MODEL_HINTS
from dboost.training.auto_iterations import is_auto, is_share
from dboost.training.callbacks import Callback

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)


class EstimatorParameters(TreeParameters, total=False):
    """The keywords of the constructor of both estimators, for type checkers."""

    random_state: Any
    features: Any
    categorical_features: Any
    eval_metric: Any
    refit: bool | None
    bag: int
    client: Any
    workers: Any
    n_jobs: int | None
    n_threads: int | None
    callbacks: Callback | Sequence[Callback]
    progress: bool | None
    memory_limit: int | str | None
    time_limit: float | str | None
    start_from: Any
    init_model: Any
    source_name: str | None
    continue_bins: str
    continue_steps: str
    checkpoint: Any
    checkpoint_every: int
    keep_summary: bool
    warm_start: bool
    early_stopping: bool | str
    scoring: Any
    validation_fraction: float | int | None
    n_iter_no_change: int | None
    tol: float
    verbose: int


def is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def is_count(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not is_flag(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not is_flag(value)


class OwnParameter(NamedTuple):
    """An argument that `dboost.fit` does not have, or has with another meaning."""

    default: Any
    kind: str  # its values as numpydoc shows them
    meaning: str
    check: tuple[Callable[[Any], bool], str] | None = None  # and the accepted values for the message


OWN = {
    "n_jobs": OwnParameter(
        None,
        "int or None",
        "Threads of this process, as `n_threads` of `dboost.fit`. None or -1: all processors that it may use; -2: all but one. "
        "Alias: `n_threads`.",
    ),
    "warm_start": OwnParameter(
        False,
        "bool",
        "Let `fit` continue the model up to `max_iter` iterations in total. The validation rows stay the same; other arguments "
        "may change and apply to the new trees. Not with `arcbites` and not with `keep_summary=False`.",
        (is_flag, "True or False"),
    ),
    "early_stopping": OwnParameter(
        "auto",
        '"auto" or bool',
        "Stop if the score has not improved for `n_iter_no_change` iterations, and keep the iterations up to the best one (of "
        'equal scores the last one, of equal losses the first). "auto": with more than 10,000 rows. True excludes '
        "`early_stopping_rounds`, the rule of `dboost.fit`. With `arcbites` it ends the fit, or without `trees_per_visit` the "
        "visits of bites.",
        (lambda v: is_flag(v) or (isinstance(v, str) and v == "auto"), "'auto', True or False"),
    ),
    "scoring": OwnParameter(
        "loss",
        '"loss", None, name of a scorer, or callable',
        "The score of early stopping; None is the estimator's `score`. A callable is called with the estimator, rows as a "
        "matrix (categories as codes), targets, and `sample_weight` if there are weights.",
        (lambda v: v is None or isinstance(v, str) or callable(v), "'loss', None, a scorer's name or a callable"),
    ),
    "validation_fraction": OwnParameter(
        0.1,
        "float, int or None",
        "Fraction or number of the rows that are held out, unless `fit` gets validation data. None: score the training rows. "
        'With ``max_iter="auto"`` that of `dboost.fit` unless it is given (0.1 counts as not given).',
        (lambda v: v is None or is_share(v), "a part of the rows below 1, a number of rows, or None"),
    ),
    "n_iter_no_change": OwnParameter(
        DEFAULT_ROUNDS,
        "int >= 1 or None",
        'Iterations without improvement before training stops; with ``max_iter="auto"`` those of `dboost.fit` unless it is '
        'given. None: the default, and no early stopping with ``early_stopping="auto"``.',
        (lambda v: v is None or (is_count(v) and v >= 1), "an integer of at least 1, or None"),
    ),
    "tol": OwnParameter(
        DEFAULT_TOLERANCE,
        "float >= 0",
        'Smallest improvement of the best score that counts; with ``max_iter="auto"`` 0 unless it is given.',
        (lambda v: _is_number(v) and v >= 0, "a number of at least 0"),
    ),
    "verbose": OwnParameter(
        0,
        "int",
        "Show progress if above 0; `progress` overrides it.",
        (lambda v: is_flag(v) or is_count(v), "an integer"),
    ),
    "random_state": OwnParameter(
        None, "int, RandomState or None", "An integer is the seed of learning, as in `dboost.fit`; None draws one for each fit."
    ),
}

#: Modules of base classes that are not the user's.
_LIBRARIES = ("dboost.", "sklearn.")
#: Keywords of `dboost.fit` that belong to the rows of one fit.
_OF_ROWS = (*ROLES, "eval_set", "filter")


def _keywords() -> list[inspect.Parameter]:
    """Return the keywords of the constructor of both estimators."""
    learning_by_name = {keyword.name: keyword for keyword in learning_keywords()}
    fit_keywords = [
        parameter for parameter in inspect.signature(fit).parameters.values() if parameter.kind is parameter.KEYWORD_ONLY
    ]
    running = {parameter.name: parameter for parameter in fit_keywords if parameter.name not in (*learning_by_name, *_OF_ROWS)}
    types = EstimatorParameters.__annotations__
    own_keywords = {
        name: inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=types[name].__forward_arg__
        )
        for name, option in OWN.items()
    }
    return [keyword for keyword in (learning_by_name | running | own_keywords).values() if keyword.name != "loss"]


def constructor(function: Function) -> Function:
    """Decorate a constructor: its signature shows all keywords in place of ``**parameters``."""
    signature = inspect.signature(function)
    *first, _ = signature.parameters.values()
    function.__signature__ = signature.replace(parameters=[*first, *_keywords()])  # type: ignore[attr-defined]
    return function


@lru_cache(maxsize=64)
def parameters_of(cls: type) -> frozenset[str]:
    """Return the arguments of the constructors of a class and its base classes."""
    constructors = (vars(base)["__init__"] for base in cls.__mro__[:-1] if "__init__" in vars(base))
    return frozenset(name for function in constructors for name in [*inspect.signature(function).parameters][1:])


def is_own_name(cls: type, name: str) -> bool:
    """Return whether a class has an attribute of a name, or declares it, or a class of a user mentions it in a method."""
    return any(
        name in vars(base)
        or name in inspect.get_annotations(base)
        or (not base.__module__.startswith(_LIBRARIES) and name in _names_in_methods(base))
        for base in cls.__mro__[:-1]
    )


def _names_in_methods(cls: type) -> Iterator[str]:
    """Yield the names of attributes and variables that the methods of a class use."""
    for member in vars(cls).values():
        function: Any = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        yield from getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ())


def documented(estimator: Class) -> Class:
    """Decorate an estimator: insert into its docstring what both have in common."""
    if estimator.__doc__ is not None:  # `python -OO`
        entries = [entry(name, option.kind, option.default, option.meaning) for name, option in OWN.items()]
        parameters = "\n".join([documentation(without=("loss", *OWN)), _RUNNING, *entries])
        estimator.__doc__ = estimator.__doc__.replace("    {parameters}", parameters).replace("    {attributes}", _ATTRIBUTES)
    return estimator


def _place(name: str) -> str | None:
    """Return where a keyword belongs that `fit` does not have, to follow its name in a message."""
    if name not in {*EstimatorParameters.__annotations__, "loss", "class_weight"}:
        return None
    return f": it is an argument of the constructor, {name}=…, or of set_params"


#: Decorates the methods that train.
accepts_names_of_fits = partial(
    accepts_peer_names,
    hints={"group": "dboost.fit and dboost.prepare take groups, and fit takes their data set"},
    belongs=_place,
)
#: Decorates the other methods that take targets.
accepts_names_of_targets = partial(accepts_peer_names, aliases=MODEL_ALIASES, hints=MODEL_HINTS, belongs=_place)


_RUNNING = """\
    features, categorical_features, eval_metric, client, workers, callbacks, progress, memory_limit, time_limit, source_name, \
refit, bag, continue_bins, continue_steps, checkpoint, checkpoint_every, keep_summary
        As in `dboost.fit`; the default of `progress` follows `verbose`.
    start_from : Booster, path or URL, optional
        As in `dboost.fit`; not with `warm_start`. Alias: `init_model`."""

_ATTRIBUTES = """\
    booster_ : Booster
        The model; without early stopping that of `dboost.fit` with the same parameters.
    n_outputs_ : int
        Number of predictions per row.
    n_iter_ : int
        Iterations in the model; `booster_.history` also has those that early stopping dropped.
    do_early_stopping_ : bool
    train_score_, validation_score_ : float64[n_iter_ + 1]
        Scores before the first tree and after each iteration, larger is better. Empty without scoring.
    feature_importances_ : float64[n_features]
        Reduction of the loss by the splits on each feature, in the order of the columns; the sum is 1, or 0 without splits.
    oob_score_ : float
        Of a forest: R², or the accuracy, of the predictions of the training rows by the trees that did not draw them.
        Of several targets their mean.
    is_categorical_ : bool[n_features] or None
    n_features_in_ : int
    feature_names_in_ : array of str
        Only if all columns of X have names of type str."""


def check_settings(estimator: Any) -> None:
    """Check the values of the estimator's own arguments.

    Raises
    ------
    ParameterError
        Naming the argument.
    """
    for name, option in OWN.items():
        value = getattr(estimator, name)
        if option.check is not None and not option.check[0](value):
            raise ParameterError(f"{name}={value!r} must be {option.check[1]}")
    if is_auto(estimator.max_iter):
        if estimator.early_stopping is False:
            raise ParameterError('max_iter="auto" stops early: leave early_stopping=False out, or give a number of iterations')
    elif estimator.early_stopping_rounds is not None and estimator.early_stopping is True:
        raise ParameterError(
            "early_stopping_rounds and early_stopping=True are two rules to stop by: give one (the latter waits for "
            "n_iter_no_change iterations)"
        )
