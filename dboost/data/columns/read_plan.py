"""Which columns of a table are read, and how.

A `ReadPlan` is made from the names of the columns, the user's `features` and `categorical_features`, and the features of an
existing model, before any row is read. It is plain data, and the same for every partition, in this process or on a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dboost.data.columns.binning import Binning
from dboost.data.columns.conversion import ColumnSpec, column_spec
from dboost.data.columns.labels import Names, array_names, items_of_labels, listed, may_name_columns, text_of
from dboost.data.columns.roles import ROLES
from dboost.errors import DataError, ParameterError, warn
from dboost.schema import Feature

#: What columns that number the rows are called: by pandas for CSV, by Arrow, by polars.
INDEX_NAMES = frozenset(("Unnamed: 0", "__index_level_0__", ""))
#: Number of rows by which these are recognized, whatever their partitions.
_MOST_NUMBERED = 1000


@dataclass(frozen=True)
class ReadPlan:
    """How to read a partition."""

    #: One for each feature.
    specs: tuple[ColumnSpec, ...]
    #: The column of each feature: a name in frames, a position in arrays.
    columns: tuple[str, ...] | tuple[int, ...]
    #: Features of a model whose categories are used.
    known: tuple[Feature, ...] | None = None
    #: Columns of the table by role (`Role.has_several`: a tuple of two or more); roles that are given separately, or not at
    #: all, are missing.
    roles: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    #: All column names if every other column is a feature; then a partition must not have further columns.
    all_names: tuple[str, ...] | None = None
    #: Whether unknown categories are added to those of the model; otherwise they are missing values.
    extend_categories: bool = False
    #: The partitions are `BinnedPartition` objects: their columns are codes of these bins.
    binning: Binning | None = None

    @property
    def closed(self) -> bool:
        """Whether no category can be added."""
        return self.known is not None and not self.extend_categories

    @property
    def named(self) -> bool:
        return not self.columns or isinstance(self.columns[0], str)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of all columns that are read, each once."""
        return tuple(dict.fromkeys([*map(str, self.columns), *columns_of_roles(self.roles)]))

    def labels(self, role: str) -> list[str]:
        """Return the names of the columns of a role that has several; of others none."""
        names = self.roles.get(role, role)
        return [] if isinstance(names, str) else [f"{role} {name!r}" for name in names]

    def label(self, role: str) -> str:
        """Return the name of a role for messages."""
        names = self.roles.get(role, role)
        return role if names == role else f"{role} {repr(names) if isinstance(names, str) else listed(names)}"


def columns_of_roles(roles: Mapping[str, str | tuple[str, ...]]) -> list[str]:
    """Return the names of all columns that are roles."""
    return [name for names in roles.values() for name in ([names] if isinstance(names, str) else names)]


def binned_plan(binning: Binning) -> ReadPlan:
    """Return how to read partitions that hold codes of these bins."""
    specs = tuple(ColumnSpec(feature.name, categorical=False) for feature in binning.features)
    return ReadPlan(specs, tuple(range(len(specs))), binning.features, binning=binning)


def make_read_plan(
    names: tuple[str, ...],
    named: bool,
    *,
    roles: dict[str, Any],
    features: Sequence[Any] | None = None,
    categorical_features: Any = "from_dtype",
    like: tuple[Feature, ...] | None = None,
    extend_categories: bool = False,
    column: Callable[[str], Iterable[Any]] = lambda name: (),
) -> ReadPlan:
    """Return how to read a table with columns `names`.

    Parameters
    ----------
    roles : dict
        Roles as the user gave them, by name. Text (or a column label) names a column; other values are given separately and
        are ignored here.
    features, categorical_features, like, extend_categories
        As in `open_table`.
    column : callable
        Returns the parts of a column by name, for columns that may number the rows. Default: nothing is known of them.

    Raises
    ------
    DataError
        If a column is missing, no feature is left, or a role other than a key names a feature of `like`.
    ParameterError
        If `features` or `categorical_features` do not match the table.
    """
    labels = Names.of(names) if named else None
    roles = {role: _role(role, value, labels) for role, value in roles.items()}
    table = _Columns(names, labels, {role: columns for role, columns in roles.items() if columns is not None})
    if like is not None:
        plan = _plan_like(table, like, features, categorical_features, extend_categories)
    elif features is not None:
        targets = columns_of_roles({"target": table.roles.get("target", ())})
        chosen = chosen_features(features, labels, targets)
        plan = _plan_of_features(table, chosen, categorical_features)
    else:
        plan = _plan_of_all(table, categorical_features, column)
    if labels is not None:
        labels.check_once([*map(str, plan.columns), *columns_of_roles(table.roles)])
    return plan


class _Columns(NamedTuple):
    """The columns of a table."""

    names: tuple[str, ...]
    labels: Names | None  # the names with the user's labels; None for an array
    roles: Mapping[str, str | tuple[str, ...]]  # names of the columns that are roles

    def without(self, taken: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in taken)


def _plan_like(
    table: _Columns,
    like: tuple[Feature, ...],
    features: Sequence[Any] | None,
    categorical_features: Any,
    extend_categories: bool,
) -> ReadPlan:
    """Return how to read the features of a model."""
    named, learned = table.labels is not None, {feature.name for feature in like}
    if features is not None:
        asked = set(chosen_features(features, table.labels))
        if asked != learned:
            listed_names = listed(sorted(asked - learned) or sorted(learned - asked))
            why = f"it was not trained on {listed_names}" if asked - learned else f"it was also trained on {listed_names}"
            raise ParameterError(f"features cannot be chosen again: the model keeps its own, and {why}: leave features out")
    if named:
        _check_roles(table.roles, like)
    # As in training, where `features` may name the column of a key.
    keys = set(columns_of_roles({role: columns for role, columns in table.roles.items() if ROLES[role].kind == "key"}))
    taken = set(columns_of_roles(table.roles)) - (keys & learned)
    columns = columns_like(table.names, named, like, without=taken)
    _check_kinds(categorical_features, columns if named else tuple(feature.name for feature in like), table.labels, like)
    specs = tuple(column_spec(feature, extend_categories=extend_categories) for feature in like)
    return ReadPlan(specs, columns, like, table.roles, extend_categories=extend_categories)


def _plan_of_features(table: _Columns, chosen: tuple[str, ...], categorical_features: Any) -> ReadPlan:
    """Return how to read features of a new model."""
    if not chosen:
        raise DataError("no features are left: every column of the data is target, weight or offset")
    labels = table.labels
    categorical = categorical_names(categorical_features, chosen if labels is None else labels.only(chosen), labels is not None)
    specs = tuple(ColumnSpec(name, None if categorical is None else name in categorical) for name in chosen)
    return ReadPlan(specs, tuple(range(len(chosen))) if labels is None else chosen, roles=table.roles)


def _plan_of_all(table: _Columns, categorical_features: Any, column: Callable[[str], Iterable[Any]]) -> ReadPlan:
    """Return how to read all columns that are no roles as features of a new model."""
    free = table.without(columns_of_roles(table.roles))
    if not INDEX_NAMES.isdisjoint(free):
        free = without_index(free, column)
    plan = _plan_of_features(table, free, categorical_features)
    return plan if table.labels is None else replace(plan, all_names=tuple(table.names))


def _check_roles(names_by_role: Mapping[str, str | tuple[str, ...]], like: tuple[Feature, ...]) -> None:
    """Raise a DataError if the target, the weights or the offsets are a feature of the model; a key may be one."""
    wanted = tuple(feature.name for feature in like)
    if wanted == array_names(len(wanted)):  # the columns may be selected by position
        return
    for role, names in names_by_role.items():
        for name in columns_of_roles({role: names}):
            if name in wanted and ROLES[role].kind != "key":
                raise DataError(f"{role}={name!r} is a feature of the model")


def _check_kinds(spec: Any, columns: tuple[Any, ...], labels: Names | None, like: tuple[Feature, ...]) -> None:
    """Raise a ParameterError if the declaration contradicts the model; all but the default declare every feature.

    columns : names of the features in the table.
    """
    categorical = categorical_names(spec, columns if labels is None else labels.only(columns), labels is not None)
    if categorical is None:
        return
    for name, feature in zip(columns, like, strict=True):
        is_declared = name in categorical
        if is_declared != feature.is_categorical:
            kinds = ("numeric", "categorical")
            raise ParameterError(
                f"categorical_features says that {feature.name!r} is {kinds[is_declared]}, but in the model it is "
                f"{kinds[not is_declared]}"
            )


def used_columns(features: Sequence[Any] | None, like: Sequence[Feature] | None, roles: dict[str, Any]) -> set[str] | None:
    """Return the names of the columns that are read, as far as the user names them; None if all are read.

    Parameters as of `make_read_plan`.
    """
    chosen = features if like is None else [feature.name for feature in like]
    if chosen is None:
        return None
    named = [label for value in roles.values() for label in (value if may_name_columns(value) else [value])]
    return {text_of(label) for label in (*items_of_labels(chosen), *(label for label in named if Names(()).is_label(label)))}


def columns_like(
    names: tuple[str, ...],
    named: bool,
    like: tuple[Feature, ...],
    model_named: bool | None = None,
    without: Collection[str] = (),
) -> tuple[str, ...] | tuple[int, ...]:
    """Return the columns of a table that are the features of a model.

    Columns of frames are selected by name. Columns of arrays are selected by position, and so are those of frames if the model
    was trained on an array.

    Parameters
    ----------
    names, named
        The columns of the table, and whether the data have column names.
    like : tuple of Feature
    model_named : bool, optional
        Whether the model was trained on named columns. Default: whether its features have other names than f0, f1, ….
    without : collection of str
        Columns that are no features; default none.
    """
    known_names = Names.of(names) if named else None
    wanted = tuple(feature.name for feature in like)
    present = set(names).difference(without)
    absent = [name for name in wanted if name not in present]
    if model_named is None:
        model_named = not absent or wanted != array_names(len(wanted))
    if named and model_named:
        if absent:
            hint = "" if known_names is None else known_names.index_hint(absent[0])
            raise DataError(f"the data have no column {listed(absent)}, which the model needs{hint}")
        if known_names is not None:
            known_names.check_once(wanted)
        return wanted
    free = tuple(name for name in names if name not in without)
    if len(free) != len(wanted):
        raise DataError(f"X has {len(free)} features, but dboost is expecting {len(wanted)} features as input")
    if known_names is not None:
        known_names.check_once(free)
    return free if named else tuple(range(len(free)))


def categorical_names(spec: Any, names: tuple[str, ...], named: bool) -> frozenset[str] | None:
    """Return the names of the features that are declared categorical; None if the types of the columns decide.

    `spec` is ``"from_dtype"``, None, a mask, indices or names, with the meaning and the errors of scikit-learn's
    HistGradientBoosting.
    """
    if isinstance(spec, str):
        if spec != "from_dtype":
            raise ParameterError(f"categorical_features is {spec!r}: allowed are 'from_dtype', a mask, indices, names")
        return None
    if spec is None:
        return frozenset()
    if not isinstance(spec, Iterable) or np.ndim(spec if isinstance(spec, np.ndarray) else ()) == 0:
        raise _bad_kind(type(spec).__name__)
    values = items_of_labels(spec)
    if values and all(isinstance(value, bool | np.bool_) for value in values):
        if len(values) != len(names):
            raise ParameterError(
                "categorical_features set as a boolean mask must have shape (n_features,): "
                f"{len(values)} values for {len(names)} features"
            )
        return frozenset(name for name, is_categorical in zip(names, values, strict=True) if is_categorical)
    if values and all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values):
        if min(values) >= 0 and max(values) < len(names):
            return frozenset(names[position] for position in values)
        labelled = _labelled(values, names) if named else None
        if labelled is None:
            last = len(names) - 1
            raise ParameterError(
                f"categorical_features set as integer indices must be in [0, n_features - 1], that is [0, {last}]"
            )
        return labelled
    labelled = _labelled(values, names) if named or not values else None
    if labelled is None:
        raise _bad_labels(values, names, named)
    return labelled


def _labelled(values: Sequence[Any], names: tuple[str, ...]) -> frozenset[str] | None:
    """Return the names of features with these labels; None if one has none."""
    labels = Names.of(names)
    chosen = [labels.find(value) for value in values]
    return None if None in chosen else frozenset(name for name in chosen if name is not None)


#: Types of a single item of `categorical_features` that are more likely a mistake than a label that the table lacks.
_NO_LABELS = (float, np.floating, list, dict, np.ndarray)


def _bad_labels(values: Sequence[Any], names: tuple[str, ...], named: bool) -> ParameterError:
    """Return the error for items of `categorical_features` of which some are no labels of features."""
    if not all(isinstance(value, str) for value in values) and (not named or isinstance(values[0], _NO_LABELS)):
        array = np.asarray(values) if len(set(map(type, values))) == 1 else np.array(values, object)
        if array.ndim != 1 and not isinstance(values[0], tuple):
            return ParameterError(f"categorical_features has shape {array.shape}: one dimension is needed")
        plain = array.ndim == 1 and array.dtype.kind != "O"
        return _bad_kind(array.dtype.name if plain else ", ".join(sorted({type(value).__name__ for value in values})))
    if not named:
        return ParameterError(
            "categorical_features should be passed as an array of integers or as a boolean mask when the model is "
            "fitted on data without feature names."
        )
    labels = Names.of(names)
    wrong = next(value for value in values if labels.find(value) is None)
    return ParameterError(
        f"categorical_features has an item value {wrong!r} which is not a valid feature name of the training data"
        f"{labels.hint(wrong)}"
    )


def _bad_kind(kind: str) -> ParameterError:
    return ParameterError(f"categorical_features must be an array-like of bool, int or str, got: {kind}.")


def _role(role: str, value: Any, names: Names | None) -> str | tuple[str, ...] | None:
    """Return the columns that a role names, or None if its values are given separately. names : as of `chosen_features`."""
    if names is None:
        if not isinstance(value, str | int | np.integer) or isinstance(value, bool):
            return None
        raise DataError(f"{role} is {value!r}, but an array has no column names: pass the values themselves")
    if not names.is_label(value):
        if not may_name_columns(value) or len(value) > len(names) or any(names.find(label) != label for label in value):
            return None
        if not ROLES[role].has_several:
            raise DataError(f"{role} names {len(value)} columns, {listed(value)}, but a model has one: make one column of them")
        if len(set(value)) < len(value):
            raise DataError(f"{role} names a column twice: {listed(value)}")
        return tuple(value)
    name = names.find(value)
    if name is None:
        raise DataError(f"the data have no column {value!r}, which was given as {role}{names.hint(value)}")
    return name


def chosen_features(features: Any, names: Names | None, targets: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the columns that `features` asks for; those of a set in the order of the table.

    names : of the table; None for an array.
    """
    labels = items_of_labels(features)
    if names is None:
        raise ParameterError("features needs column names: select the columns of the array instead")
    name_of = {label: names.find(label) for label in labels}
    absent = [label for label, name in name_of.items() if name is None]
    if absent:
        raise DataError(f"the data have no column {listed(absent)}, which features asks for{names.hint(absent[0])}")
    chosen = tuple(name for name in map(name_of.get, labels) if name is not None)
    if isinstance(features, set | frozenset):  # which has no order
        chosen = tuple(name for name in names if name in chosen)
    if len(set(chosen)) < len(chosen):
        raise ParameterError("features names a column twice")
    for target in targets:
        if target in chosen:
            raise ParameterError(f"features holds the target, {target!r}")
    return chosen


def without_index(names: tuple[str, ...], column: Callable[[str], Iterable[Any]]) -> tuple[str, ...]:
    """Return the names of columns without the index of a frame that was written to a file; warn if there is one.

    column : returns the parts of a column, in order, which are read as far as needed.
    """
    indices = [name for name in names if name in INDEX_NAMES and _numbers_rows(_first_values(column(name)))]
    if not indices:
        return names
    warn(
        f"column {indices[0]!r} numbers the rows and is taken for the index of a frame that was written to a file, and is no "
        "feature: drop it, or name it in features=[…] if it is one"
    )
    return tuple(name for name in names if name not in indices)


def _first_values(parts: Iterable[Any]) -> list[Any]:
    values: list[Any] = []
    for part in parts:
        values += np.asarray(part[: _MOST_NUMBERED - len(values)]).tolist()
        if len(values) >= _MOST_NUMBERED:
            break
    return values


def _numbers_rows(values: list[Any]) -> bool:
    """Return whether values are different integers, or count from the same number in each file, or are different names."""
    if all(isinstance(value, str) for value in values):
        return len(set(values)) == len(values)
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return False
    follows = (later == value + 1 or later == values[0] for value, later in pairwise(values))
    return len(set(values)) == len(values) or (len(values) > 1 and values[1] == values[0] + 1 and all(follows))
