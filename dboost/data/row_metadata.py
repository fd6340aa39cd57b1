"""Target, weight and offset of all rows.

The three columns that are no features are checked where all rows are known, so that a message can say how many values
are bad and where the first one is.

Target, weight and offset of tables so long that even these do not fit in memory: they wait in files, partition by partition.

What must be known of them all together is small: the levels of a target of categories, the type that holds the numbers of all
partitions, the largest weight, and what there is to complain about.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from dboost.data.categories import CategoryIndex, apply
from dboost.data.chunk import CategoryColumn, Column
from dboost.data.partition import ROLES
from dboost.data.read_plan import ReadPlan
from dboost.errors import DataError
from dboost.schema import Level
from dboost.storage.spool import Spool

#: Whole numbers below this size are exact as floats (and 2**53 + 1 would look like 2**53).
_EXACT = 2**53
#: The largest weight is this at least. Gradients are float32 numbers, of which those below 1e-30 count as nothing.
LEAST_MAX_WEIGHT = 1e-25


@dataclass(frozen=True, eq=False)
class RowMetadata:
    """What is known of each row besides its features; see `Table` for the attributes."""

    target: Column | None
    target_dtype: str | None
    target_is_bool: bool
    weight: np.ndarray | None
    offset: np.ndarray | None
    complaints: tuple[DataIssue, ...] = ()


@dataclass(frozen=True)
class MetadataRows:
    """How the rows of a table are spread, to say where a row is.

    numbers : of the partitions, where these are not all of them.
    """

    lengths: tuple[int, ...]
    in_partitions: bool
    numbers: tuple[int, ...] | None = None

    @property
    def n_rows(self) -> int:
        return sum(self.lengths)

    def place(self, row: int) -> tuple[int, int]:
        """Partition (-1 where there are none) and row in it."""
        if not self.in_partitions:
            return -1, row
        ends = list(accumulate(self.lengths))
        i = bisect_right(ends, row)
        return i if self.numbers is None else self.numbers[i], row - (ends[i] - self.lengths[i])

    def name(self, row: int) -> str:
        return _name(*self.place(row))

    def flagged(self, what: str, flags: np.ndarray, complaint: str) -> list[DataIssue]:
        """A complaint, if any row is flagged."""
        if not flags.any():
            return []
        return [DataIssue(what, complaint, int(np.count_nonzero(flags)), self.place(int(np.argmax(flags))))]


def _name(partition: int, row: int) -> str:
    return f"row {row}" if partition < 0 else f"row {row} of partition {partition}"


@dataclass(frozen=True)
class DataIssue:
    """Values that are refused: how many, and where the first one is (partition and row)."""

    what: str
    complaint: str
    count: int
    first: tuple[int, int]


def raise_for_issues(complaints: Sequence[DataIssue]) -> None:
    """Raise a DataError for the first kind of complaint, wherever the rows in question are.

    The same complaint may come from several parts of the table, each about its own rows.
    """
    for complaint in complaints:
        same = [c for c in complaints if (c.what, c.complaint) == (complaint.what, complaint.complaint)]
        count, first = sum(c.count for c in same), min(c.first for c in same)
        rows = "1 row" if count == 1 else f"{count} rows"
        raise DataError(f"{complaint.what} {complaint.complaint} in {rows}, first in {_name(*first)}")


def label(role: str, name: str | None) -> str:
    """A role as messages call it."""
    return role if name is None or name == role else f"{role} {name!r}"


def join_target(parts: dict[int, Column], dictionary: CategoryIndex) -> tuple[Column, str, bool]:
    """One target column from the parts of the partitions, which are let go on the way.

    Parameters
    ----------
    parts : dict
        By partition; categories as provisional codes of `dictionary`.
    dictionary : Dictionary
        Holds a level if and only if the target is categorical.

    Returns
    -------
    target : float64 array or CategoryColumn
    dtype : str
        NumPy dtype of the user's values.
    is_bool : bool
    """
    if len(dictionary):
        levels, final = dictionary.finish()
        silent = {i: np.full(len(part), -1, np.int32) for i, part in parts.items() if isinstance(part, np.ndarray)}
        codes = {i: part.codes for i, part in parts.items() if isinstance(part, CategoryColumn)} | silent
        parts.clear()
        return CategoryColumn(apply(final, _drain(codes, np.dtype(np.int32))), levels), levels_dtype(levels), False
    for i, part in parts.items():
        if isinstance(part, CategoryColumn):
            parts[i] = np.full(len(part.codes), np.nan)
    dtype = np.result_type(*{part.dtype for part in parts.values() if isinstance(part, np.ndarray)})
    return join_floats(parts), str(dtype), dtype.kind == "b"


def join_floats(parts: dict[int, Column]) -> np.ndarray:
    """One float64 array from the numeric parts of the partitions, which are let go on the way."""
    return _drain(parts, np.dtype(np.float64))


def _drain(parts: dict[int, Any], dtype: np.dtype) -> np.ndarray:
    if len(parts) == 1:
        return parts.popitem()[1].astype(dtype, copy=False)
    joined, start = np.empty(sum(map(len, parts.values())), dtype), 0
    for i in sorted(parts):
        part = parts.pop(i)
        joined[start : start + len(part)] = part
        start += len(part)
    return joined


def result_dtype(dtypes: Iterable[str]) -> str:
    """The NumPy dtype that holds values of all these."""
    return str(np.result_type(*{np.dtype(dtype) for dtype in dtypes}))


def levels_dtype(levels: tuple[Level, ...]) -> str:
    """The NumPy dtype of a column with these levels."""
    kinds = {type(level) for level in levels}
    if len(kinds) == 1:
        return {str: "object", bool: "bool", int: "int64", float: "float64"}[kinds.pop()]
    return "float64" if kinds == {int, float} else "object"


def check_target(target: Column, dtype: str, what: str, rows: MetadataRows) -> list[DataIssue]:
    """Missing, infinite and inexact targets."""
    if isinstance(target, CategoryColumn):
        return rows.flagged(what, target.codes < 0, "contains NaN (a missing value)")
    found = rows.flagged(what, np.isnan(target), "contains NaN (a missing value)")
    found += rows.flagged(what, np.isinf(target), "contains infinity")
    if dtype in ("int64", "uint64") and len(target) and max(target.max(), -target.min()) >= _EXACT:
        too_large = "holds integers of 2**53 or more, which floats cannot tell apart,"
        found += rows.flagged(what, np.abs(target) >= _EXACT, too_large)
    return found


def check_weight(weight: np.ndarray, what: str, rows: MetadataRows) -> list[DataIssue]:
    """Weights that are missing, infinite or negative."""
    return [
        *rows.flagged(what, np.isnan(weight), "contains NaN"),
        *rows.flagged(what, np.isinf(weight), "contains infinity"),
        *rows.flagged(what, weight < 0, "is negative"),
    ]


def check_max_weight(max_weight: float, what: str) -> None:
    """Refuse weights of which the largest is zero, or so small that gradients times it are nothing to float32 numbers.

    Raises
    ------
    DataError
    """
    if not max_weight > 0:
        raise DataError(f"{what} is zero in every row: nothing is left to learn from")
    if max_weight < LEAST_MAX_WEIGHT:
        raise DataError(
            f"{what} is {max_weight:g} at most in all rows, but at least one weight of {LEAST_MAX_WEIGHT:g} or more is needed: "
            "multiply all weights by the same number"
        )


def check_offset(offset: np.ndarray, what: str, rows: MetadataRows) -> list[DataIssue]:
    """Offsets that are missing or infinite."""
    return [
        *rows.flagged(what, np.isnan(offset), "contains NaN"),
        *rows.flagged(what, np.isinf(offset), "contains infinity"),
    ]


class RowMetadataSpool:
    """Keeps the roles of partitions. Safe to use from several threads.

    Attributes
    ----------
    target_dtype : str
        NumPy dtype of the user's target; "object" for text.
    target_is_bool : bool
    """

    def __init__(self) -> None:
        self._spool = Spool(0)
        self._dtypes: dict[tuple[str, int], np.dtype] = {}
        self._levels: tuple[Level, ...] | None = None
        self._final: np.ndarray | None = None
        self.target_dtype, self.target_is_bool = "float64", False

    def put(self, role: str, i: int, column: Column) -> None:
        """Keep a role of partition i instead of what was kept before; a target of categories in provisional codes."""
        array = column.codes if isinstance(column, CategoryColumn) else column
        self._dtypes[role, i] = np.dtype(object) if isinstance(column, CategoryColumn) else array.dtype
        self._spool.drop(_number(role, i))
        self._spool.put(_number(role, i), [np.ascontiguousarray(array)])

    def finish(self, dictionary: CategoryIndex) -> None:
        """Say what the target is, now that all partitions have come. dictionary : of its levels, if it has any."""
        if len(dictionary):
            self._levels, self._final = dictionary.finish()
            self.target_dtype = levels_dtype(self._levels)
        else:
            kinds = {str(dtype) for (role, _), dtype in self._dtypes.items() if role == "target" and dtype.kind != "O"}
            self.target_dtype = result_dtype(kinds) if kinds else "float64"
            self.target_is_bool = self.target_dtype == "bool"

    def check(self, plan: ReadPlan, rows: MetadataRows) -> tuple[list[DataIssue], float]:
        """What there is to complain about in the values of these partitions, and the largest weight."""
        complaints: list[DataIssue] = []
        max_weight = 0.0
        for k, length in enumerate(rows.lengths):
            if not length:
                continue
            i = k if rows.numbers is None else rows.numbers[k]
            here = MetadataRows((length,), True, (i,))
            target, weight, offset = self.get(i)
            if target is not None:
                complaints += check_target(target, self.target_dtype, label("target", plan.target), here)
            if weight is not None:
                complaints += check_weight(weight, label("sample_weight", plan.weight), here)
            if offset is not None:
                complaints += check_offset(offset, label("offset", plan.offset), here)
            max_weight = max(max_weight, 1.0 if weight is None else float(weight.max()))
        return complaints, max_weight

    def get(self, i: int) -> tuple[Column | None, np.ndarray | None, np.ndarray | None]:
        """Target, weight and offset of partition i."""
        found: list[Column | None] = []
        for role in ROLES:
            dtype = self._dtypes.get((role, i))
            if dtype is None:
                found.append(None)
                continue
            array = self._spool.get(_number(role, i))[0]
            if role == "target" and self._levels is not None:
                assert self._final is not None
                codes = apply(self._final, array) if dtype.kind == "O" else np.full(len(array), -1, np.int32)
                found.append(CategoryColumn(codes, self._levels))
            else:
                found.append(np.full(len(array), np.nan) if dtype.kind == "O" else array.astype(np.float64))
        target, weight, offset = found
        assert not isinstance(weight, CategoryColumn) and not isinstance(offset, CategoryColumn)
        return target, weight, offset

    def raw(self, role: str, i: int) -> Column | None:
        """A role of partition i as it was put: categories in provisional codes."""
        dtype = self._dtypes.get((role, i))
        if dtype is None:
            return None
        array = self._spool.get(_number(role, i))[0]
        return CategoryColumn(array, ()) if dtype.kind == "O" else array

    def keep(self, numbers: Collection[int]) -> None:
        """Forget partitions with other numbers."""
        self._spool.keep({_number(role, i) for role in ROLES for i in numbers})
        self._dtypes = {key: dtype for key, dtype in self._dtypes.items() if key[1] in numbers}

    def close(self) -> None:
        """Remove the files."""
        self._spool.close()


def _number(role: str, i: int) -> int:
    return len(ROLES) * i + ROLES.index(role)
