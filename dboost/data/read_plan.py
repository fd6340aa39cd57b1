"""Which columns are read, and how.

A `ReadPlan` is made from the names of the columns, the user's `features` and `categorical_features`, and the features of an
existing model, before any row is read. It is plain data, and the same for every partition, in this process or on a worker.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.data.binning import Binning
from dboost.data.frame import array_names
from dboost.errors import DataError, ParameterError
from dboost.schema import Feature


@dataclass(frozen=True)
class ColumnSpec:
    """How to read a column."""

    name: str
    #: True: numbers are categories too. False: the column must be numeric. None: the type of the column decides.
    categorical: bool | None = None
    #: The categories are those of a model: the column may contain any number of unknown ones, also negative ones.
    known: bool = False
    #: Kinds of values that the column may contain, see `Feature.legal_kinds`; empty if any kind is legal.
    kinds: tuple[str, ...] = ()


def column_spec(feature: Feature, *, extend_categories: bool = False) -> ColumnSpec:
    """Return how to read the column of a known feature. extend_categories : whether new categories are added to it."""
    return ColumnSpec(
        feature.name,
        feature.is_categorical,
        known=not (extend_categories and feature.is_categorical),
        kinds=feature.legal_kinds,
    )


@dataclass(frozen=True)
class ReadPlan:
    """How to read a partition."""

    #: One for each feature.
    specs: tuple[ColumnSpec, ...]
    #: The column of each feature: a name in frames, a position in arrays.
    columns: tuple[str, ...] | tuple[int, ...]
    #: Features of a model whose categories are used.
    known: tuple[Feature, ...] | None = None
    #: Columns of the table that contain target, weight and offset; None if they are given separately or not at all.
    target: str | None = None
    weight: str | None = None
    offset: str | None = None
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
        extra = [name for name in (self.target, self.weight, self.offset) if name is not None]
        return tuple(dict.fromkeys([*map(str, self.columns), *extra]))


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
) -> ReadPlan:
    """Return how to read a table with columns `names`.

    Parameters
    ----------
    roles : dict
        ``target``, ``sample_weight`` and ``offset`` as the user gave them. Text (or a column label) names a column; other
        values are given separately and are ignored here.
    features, categorical_features, like, extend_categories
        As in `open_table`.

    Raises
    ------
    DataError
        If a column is missing, no feature is left, or a role names a feature of `like`.
    ParameterError
        If `features` or `categorical_features` do not match the table.
    """
    given = {role: _role(role, value, names, named) for role, value in roles.items()}
    taken = {name for name in given.values() if name is not None}
    free = tuple(name for name in names if name not in taken)
    columns: tuple[str, ...] | tuple[int, ...]
    if like is not None:
        if features is not None:
            raise ParameterError("features cannot be chosen again: the model's own are used")
        if named:
            _check_roles(given, like)
        columns = columns_like(free, named, like)
        found = names if named else tuple(feature.name for feature in like)
        _check_kinds(categorical_features, tuple(map(str, columns)) if named else found, named, like)
        specs = tuple(column_spec(feature, extend_categories=extend_categories) for feature in like)
    else:
        chosen = free if features is None else _chosen(features, names, named, given.get("target"))
        if not chosen:
            raise DataError("no features are left: every column of the data is target, weight or offset")
        columns = chosen if named else tuple(range(len(chosen)))
        declared = declared_categorical(categorical_features, chosen, named)
        specs = tuple(ColumnSpec(name, flag) for name, flag in zip(chosen, declared, strict=True))
    return ReadPlan(
        specs,
        columns,
        like,
        given.get("target"),
        given.get("sample_weight"),
        given.get("offset"),
        all_names=names if named and features is None and like is None else None,
        extend_categories=extend_categories,
    )


def _check_roles(given: dict[str, str | None], like: tuple[Feature, ...]) -> None:
    """Raise a DataError if the target, the weights or the offsets are a feature of the model."""
    wanted = tuple(feature.name for feature in like)
    if wanted == array_names(len(wanted)):  # the columns may be selected by position
        return
    for role, name in given.items():
        if name in wanted:
            raise DataError(f"{role}={name!r} is a feature of the model")


def _check_kinds(spec: Any, names: tuple[str, ...], named: bool, like: tuple[Feature, ...]) -> None:
    """Raise a ParameterError if the declaration contradicts the model; all but the default declare every feature."""
    if isinstance(spec, str) and spec == "from_dtype":
        return
    for flag, feature in zip(declared_categorical(spec, names, named), like, strict=True):
        if flag is not None and flag != feature.is_categorical:
            kinds = ("numeric", "categorical")
            raise ParameterError(
                f"categorical_features says that {feature.name!r} is {kinds[flag]}, but in the model it is {kinds[not flag]}"
            )


def used_columns(features: Sequence[Any] | None, like: Sequence[Feature] | None, roles: dict[str, Any]) -> set[str] | None:
    """Return the names of the columns that are read, as far as the user names them; None if all are read.

    Parameters as of `make_read_plan`.
    """
    chosen = features if like is None else [one.name for one in like]
    return None if chosen is None else {name for name in (*chosen, *roles.values()) if isinstance(name, str)}


def columns_like(
    names: tuple[str, ...], named: bool, like: tuple[Feature, ...], model_named: bool | None = None
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
    """
    wanted = tuple(feature.name for feature in like)
    present = set(names)
    absent = [name for name in wanted if name not in present]
    if model_named is None:
        model_named = not absent or wanted != array_names(len(wanted))
    if named and model_named:
        if absent:
            raise DataError(f"the data have no column {_list(absent)}, which the model was trained on")
        return wanted
    if len(names) != len(wanted):
        raise DataError(f"X has {len(names)} features, but dboost is expecting {len(wanted)} features as input")
    return names if named else tuple(range(len(names)))


def declared_categorical(spec: Any, names: tuple[str, ...], named: bool) -> tuple[bool | None, ...]:
    """Return for each feature whether it is categorical (True), numeric (False), or as its dtype determines (None).

    `spec` is ``"from_dtype"``, None, a mask, indices or names, with the meaning and the errors of scikit-learn's
    HistGradientBoosting.
    """
    n = len(names)
    if isinstance(spec, str):
        if spec != "from_dtype":
            raise ParameterError(f"categorical_features is {spec!r}: allowed are 'from_dtype', a mask, indices, names")
        return (None,) * n
    if spec is None:
        return (False,) * n
    values = np.asarray(spec)
    if values.size == 0:
        return (False,) * n
    if values.ndim != 1:
        raise ParameterError(f"categorical_features has shape {values.shape}: one dimension is needed")
    if values.dtype.kind == "O":
        kinds = {type(value).__name__ for value in values}
        if kinds <= {"bool", "bool_"}:
            values = values.astype(bool)
        elif kinds <= {"str", "str_"}:
            values = values.astype(str)
        elif not all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in values):
            raise _bad_kind(", ".join(sorted(kinds)))
        else:
            values = values.astype(np.int64)
    if values.dtype.kind == "b":
        if len(values) != n:
            raise ParameterError(
                "categorical_features set as a boolean mask must have shape (n_features,): "
                f"{len(values)} values for {n} features"
            )
        return tuple(map(bool, values))
    if values.dtype.kind in "iu":
        if values.min() < 0 or values.max() >= n:
            raise ParameterError(
                f"categorical_features set as integer indices must be in [0, n_features - 1], that is [0, {n - 1}]"
            )
        indices = set(values.tolist())
        return tuple(j in indices for j in range(n))
    if values.dtype.kind not in "UT":
        raise _bad_kind(values.dtype.name)
    if not named:
        raise ParameterError(
            "categorical_features should be passed as an array of integers or as a boolean mask when the model is "
            "fitted on data without feature names."
        )
    marked, present = set(map(str, values)), set(names)
    for name in values:
        if str(name) not in present:
            raise ParameterError(
                f"categorical_features has an item value {str(name)!r} which is not a valid feature name of the training data."
            )
    return tuple(name in marked for name in names)


def _bad_kind(kind: str) -> ParameterError:
    return ParameterError(f"categorical_features must be an array-like of bool, int or str, got: {kind}.")


def _role(role: str, value: Any, names: tuple[str, ...], named: bool) -> str | None:
    """Return the column that a role names, or None if its values are given separately."""
    if not isinstance(value, (str, int, np.integer)) or isinstance(value, bool):
        return None
    if not named:
        raise DataError(f"{role} is {value!r}, but an array has no column names: pass the values themselves")
    if str(value) not in names:
        raise DataError(f"the data have no column {str(value)!r}, which was given as {role}{_similar(str(value), names)}")
    return str(value)


def _similar(name: str, names: tuple[str, ...]) -> str:
    """Return a hint at columns with similar names, or at the first columns, to be appended to a message."""
    lower = {one.strip().lower(): one for one in names}
    near = difflib.get_close_matches(name.strip().lower(), lower, n=2)
    if near:
        return f"; did you mean {' or '.join(repr(lower[one]) for one in near)}?"
    return f"; the columns are {_list([_shortened(one) for one in names[:5]])}{', …' if len(names) > 5 else ''}"


def _shortened(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:29]}…"


def _chosen(features: Sequence[Any], names: tuple[str, ...], named: bool, target: str | None) -> tuple[str, ...]:
    if isinstance(features, str):
        raise ParameterError(f"features must be a list of column names, not the text {features!r}")
    if not named:
        raise ParameterError("features needs column names: select the columns of the array instead")
    chosen = tuple(map(str, features))
    present = set(names)
    absent = [name for name in chosen if name not in present]
    if absent:
        raise DataError(f"the data have no column {_list(absent)}, which features asks for{_similar(absent[0], names)}")
    if len(set(chosen)) < len(chosen):
        raise ParameterError("features names a column twice")
    if target in chosen:
        raise ParameterError(f"features holds the target, {target!r}")
    return chosen


def _list(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
