"""What rows carry beside their features: target, weight, offset, group.

`RowRoles` holds them for some rows, and declares each role in one line; `ROLES` is the table of the declarations. Everything
that reads, stores, moves, checks and bins rows loops over this table, so a new role is one more line here.

A role's *kind* says how its column is read: "any" keeps the values in their own dtype or as categories, "number" makes float64
of them, and "key" makes an integer of each value (`keys_of`). A role has one column; one with `has_several` may have more, of
numbers: one array, float64[n_columns, n]. Several target columns come as far as the choice of the loss.

**Keys.** The key of a whole number is the number itself, also of a text that is one; that of another text is a hash of 64 bits.
So equal values have equal keys for every library, dtype, partition and worker, and no process needs a list of all values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any, Literal

import numpy as np

from dboost.data.columns.column import CategoryColumn, Column
from dboost.data.columns.sparse import SparseColumn, joined_sparse
from dboost.errors import DataError
from dboost.schema import Level

Kind = Literal["any", "number", "key"]
#: Flags of invalid rows, what is wrong with them, and the remedy if it is not obvious.
Flaw = tuple[np.ndarray, str, str]
_NAN, _INFINITE = "contains NaN", "contains infinity"
MISSING = "contains NaN (a missing value)"

#: The key of a missing value.
MISSING_KEY = -(2**63)
#: Text that is a whole number, as CSV files may have it.
_WHOLE = re.compile(r"\s*([+-]?\d+)(\.0*)?\s*", re.ASCII)


@dataclass(frozen=True)
class Role:
    """One role."""

    name: str  # keyword of `dboost.fit`
    field: str  # in `RowRoles` and in files
    kind: Kind
    check: Callable[[Any], list[Flaw]]  # the flaws of a column
    has_several: bool = False  # whether it may have several columns, of numbers: float64[n_columns, n]

    @property
    def dtype(self) -> np.dtype | None:
        """Of the array that is read; None for that of the values."""
        return {"any": None, "number": np.dtype(np.float64), "key": np.dtype(np.int64)}[self.kind]


def _check_target(target: Column) -> list[Flaw]:
    if isinstance(target, CategoryColumn):
        return [(target.codes < 0, MISSING, "")]
    if target.ndim == 2:  # what infinity means is up to the loss
        return [(np.any(np.isnan(target), axis=0), MISSING, "")]
    return [(np.isnan(target), MISSING, ""), (np.isinf(target), _INFINITE, "")]


def _check_weight(weight: np.ndarray) -> list[Flaw]:
    return [*_check_number(weight), (weight < 0, "is negative", "")]


def _check_number(values: np.ndarray) -> list[Flaw]:
    return [(np.isnan(values), _NAN, ""), (np.isinf(values), _INFINITE, "")]


def _check_key(keys: np.ndarray) -> list[Flaw]:
    return [(keys == MISSING_KEY, MISSING, "")]


def _role(name: str, kind: Kind, check: Callable[[Any], list[Flaw]], *, has_several: bool = False) -> dict[str, Any]:
    return {"name": name, "kind": kind, "check": check, "has_several": has_several}


@dataclass(frozen=True, eq=False)
class RowRoles:
    """The roles of some rows; those that they do not have are None."""

    target: Column | None = field(default=None, metadata=_role("target", "any", _check_target, has_several=True))
    weight: np.ndarray | None = field(default=None, metadata=_role("sample_weight", "number", _check_weight))  # float64[n]
    offset: np.ndarray | None = field(default=None, metadata=_role("offset", "number", _check_number))  # float64[n]

    group: np.ndarray | None = field(default=None, metadata=_role("group", "key", _check_key))  # int64[n]

    @classmethod
    def of(cls, columns: Mapping[str, Column | None]) -> RowRoles:
        """Return the roles with these columns, by the names of the roles."""
        return cls(**{ROLES[name].field: column for name, column in columns.items()})  # type: ignore[arg-type]

    def by_name(self) -> dict[str, Column]:
        """Return the columns that are there, by the names of the roles."""
        columns = {name: getattr(self, role.field) for name, role in ROLES.items()}
        return {name: column for name, column in columns.items() if column is not None}

    def rows(self, rows: slice | np.ndarray) -> RowRoles:
        """Return some of the rows; views if they are consecutive."""
        return RowRoles.of({name: rows_of(column, rows) for name, column in self.by_name().items()})

    @property
    def n_rows(self) -> int:
        """The number of targets."""
        return 0 if self.target is None else length_of(self.target)

    @property
    def given_target(self) -> Column:
        """The target of rows that have one."""
        assert self.target is not None
        return self.target

    @property
    def numeric_target(self) -> np.ndarray:
        """The target, which has been encoded: float64[n]."""
        assert isinstance(self.target, np.ndarray)
        return self.target

    @property
    def group_keys(self) -> np.ndarray:
        """The groups of rows that have some: int64[n]."""
        assert self.group is not None
        return self.group

    @property
    def nbytes(self) -> int:
        columns = self.by_name().values()
        return sum(column.codes.nbytes if isinstance(column, CategoryColumn) else column.nbytes for column in columns)

    @staticmethod
    def concatenated(parts: Sequence[RowRoles]) -> RowRoles:
        """Return the rows of all parts, which have the same roles; categories are those of the first part."""
        columns = [part.by_name() for part in parts]
        return RowRoles.of({name: joined([part[name] for part in columns]) for name in columns[0]} if columns else {})


#: The roles of rows that have none.
NO_ROLES = RowRoles()
#: The roles by their names.
ROLES: dict[str, Role] = {
    declared.metadata["name"]: Role(field=declared.name, **declared.metadata) for declared in fields(RowRoles)
}


def keys_of(column: Column, subject: str) -> np.ndarray:
    """Return the key of each value: int64[n].

    Raises
    ------
    DataError
        For fractions and infinity. subject : name of the column for messages.
    """
    if isinstance(column, CategoryColumn):
        return np.array([*(_key_of(level, subject) for level in column.categories), MISSING_KEY], np.int64)[column.codes]
    if column.dtype.kind != "f":
        return column.astype(np.uint64).view(np.int64) if column.dtype.kind == "u" else column.astype(np.int64)
    missing = np.isnan(column)
    values = np.where(missing, 0.0, column)
    if not ((values == np.rint(values)) & (np.abs(values) < 2.0**63)).all():
        raise _no_key(subject)
    return np.where(missing, MISSING_KEY, values.astype(np.int64))


def _no_key(subject: str) -> DataError:
    return DataError(f"{subject} holds fractions, or numbers of 2**63 or more: give whole numbers or text")


def _key_of(level: Level, subject: str) -> int:
    if isinstance(level, str):
        whole = _WHOLE.fullmatch(level)
        if whole is None:
            digest = blake2b(level.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            return int.from_bytes(digest, "little", signed=True)
        level = int(whole[1])
    if int(level) != level:
        raise _no_key(subject)
    return (int(level) + 2**63) % 2**64 - 2**63


def length_of(column: Column) -> int:
    """Return the number of rows of a column, or of several columns in one array."""
    return len(column.codes) if isinstance(column, CategoryColumn) else column.shape[-1]


def n_columns_of(column: Column) -> int:
    """Return the number of columns of a role."""
    return 1 if isinstance(column, CategoryColumn) or column.ndim == 1 else len(column)


def rows_of(column: Column, rows: slice | np.ndarray) -> Column:
    """Return some rows of a column, or of several columns in one array."""
    if isinstance(column, CategoryColumn):
        return CategoryColumn(column.codes[rows], column.categories)
    return column.some(rows) if isinstance(column, SparseColumn) else column[..., rows]


def joined(parts: Sequence[Column]) -> Column:
    """Concatenate parts of a column, all of them numbers or all with the same categories."""
    first = parts[0]
    if isinstance(first, CategoryColumn):
        codes = [part.codes for part in parts if isinstance(part, CategoryColumn)]
        return CategoryColumn(np.concatenate(codes), first.categories)
    if isinstance(first, SparseColumn):
        return joined_sparse(parts)
    return np.concatenate([part for part in parts if not isinstance(part, CategoryColumn)], axis=-1)


def kept_rows(weight: np.ndarray | None) -> np.ndarray | None:
    """Return the numbers of the rows of positive weight (int64), or None when these are all rows."""
    if weight is None or (weight > 0).all():
        return None
    return np.flatnonzero(weight > 0)
