"""The roles of all rows of a table: their checks, and their storage in memory or in files.

They are checked when all rows have been read, so that an error message can contain the number of invalid values and the
position of the first. `RowMetadata` holds them in memory. `RowMetadataSpool` keeps them in files, by partition, for tables
whose metadata do not fit in memory; of all rows together it only needs the categories and the dtype of the target, the largest
weight, and the issues.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from dboost.data.columns.chunk import CategoryIndex
from dboost.data.columns.column import CategoryColumn, Column, apply
from dboost.data.columns.conversion import EXACT
from dboost.data.columns.read_plan import ReadPlan
from dboost.data.columns.roles import ROLES, RowRoles
from dboost.display import number
from dboost.errors import DataError
from dboost.files.spool import Spool
from dboost.schema import Level

#: What to do with a target of larger ones: as categories they are exact.
_REMEDY = "convert it to a column of categories or text if they are classes, to floats if they are amounts"
#: Lower bound of the largest weight. Gradients are float32, and those below 1e-30 count as zero.
LEAST_MAX_WEIGHT = 1e-25


@dataclass(frozen=True, eq=False)
class RowMetadata:
    """The roles of all rows; see `Table` for the attributes."""

    roles: RowRoles  # none if they are in files
    target_dtype: str | None
    target_is_bool: bool
    issues: tuple[DataIssue, ...] = ()
    max_weight: float = 1.0


#: Follows the number of a row in prepared data, which lack the rows of weight zero.
OF_POSITIVE_WEIGHT = " of those of positive weight"


@dataclass(frozen=True)
class MetadataRows:
    """The rows of a table by partition, to name the position of a row."""

    lengths: tuple[int, ...]
    in_partitions: bool
    #: Partition numbers; None if these are all partitions.
    partition_ids: tuple[int, ...] | None = None
    #: Number of the first of these rows, in a table without partitions.
    first: int = 0
    #: Follows the number of a row in a table without partitions: which rows are numbered.
    suffix: str = ""

    @cached_property
    def n_rows(self) -> int:
        return sum(self.lengths)

    def place(self, row: int) -> RowPlace:
        """Return the place of a row, given its number among all rows."""
        if not self.in_partitions:
            return RowPlace(-1, self.first + row, self.suffix)
        ends = list(accumulate(self.lengths))
        i = bisect_right(ends, row)
        return RowPlace(i if self.partition_ids is None else self.partition_ids[i], row - (ends[i] - self.lengths[i]))

    def of_partition(self, number: int) -> MetadataRows:
        """Return the rows of one partition."""
        k = number if self.partition_ids is None else self.partition_ids.index(number)
        return replace(self, lengths=(self.lengths[k],), partition_ids=(number,), first=self.first + sum(self.lengths[:k]))

    def flagged(self, role: str, subject: str, flags: np.ndarray, problem: str, remedy: str = "") -> list[DataIssue]:
        """Return an issue of a role if any row is flagged. subject : its name for messages."""
        if not flags.any():
            return []
        return [DataIssue(role, subject, problem, int(np.count_nonzero(flags)), self.place(int(np.argmax(flags))), remedy)]


class RowPlace(NamedTuple):
    """The place of a row in the user's data."""

    partition: int  # -1 if the table has none
    row: int  # within the partition
    suffix: str = ""  # see `MetadataRows`

    def __str__(self) -> str:
        return f"row {self.row}{self.suffix}" if self.partition < 0 else f"row {self.row} of partition {self.partition}"


@dataclass(frozen=True)
class DataIssue:
    """Invalid values of one kind in a column."""

    role: str
    subject: str  # its name for messages
    problem: str
    #: Number of rows.
    count: int
    #: Place of the first.
    first: RowPlace
    #: What to do, if that is not obvious.
    remedy: str = ""


def raise_for_issues(issues: Sequence[DataIssue]) -> None:
    """Raise a DataError for an issue of the first role that has some, summed over the parts of the table that report it."""
    if issues:
        order = list(ROLES)
        worst = min(
            issues, key=lambda issue: (order.index(issue.role), issue.problem, issue.subject)
        )  # not that of the first part
        label, problem = worst.subject, worst.problem
        same = [issue for issue in issues if (issue.subject, issue.problem) == (label, problem)]
        count, first = sum(issue.count for issue in same), min(issue.first for issue in same)
        rows = "1 row" if count == 1 else f"{count} rows"
        remedy = f": {worst.remedy}" if worst.remedy else ""
        raise DataError(f"{label} {problem} in {rows}, first in {first}{remedy}")


def join_target(parts: dict[int, Column], categories: CategoryIndex | None) -> tuple[Column, str, bool]:
    """Join the target column from its partitions, and remove them from `parts`.

    Parameters
    ----------
    parts : dict
        Target by partition; categories as provisional codes.
    categories : CategoryIndex or None
        None if the target is numeric.

    Returns
    -------
    target : float64 array or CategoryColumn
    dtype : str
        NumPy dtype of the user's values.
    is_bool : bool
    """
    if categories is not None:
        levels, final = categories.finish()
        missing = {i: np.full(len(part), -1, np.int32) for i, part in parts.items() if isinstance(part, np.ndarray)}
        codes = {i: part.codes for i, part in parts.items() if isinstance(part, CategoryColumn)} | missing
        parts.clear()
        return CategoryColumn(apply(final, _drain(codes, np.dtype(np.int32))), levels), levels_dtype(levels), False
    for i, part in parts.items():
        if isinstance(part, CategoryColumn):
            parts[i] = np.full(len(part.codes), np.nan)
    dtype = np.result_type(*{part.dtype for part in parts.values() if isinstance(part, np.ndarray)})
    return _drain(parts, np.dtype(np.float64)), str(dtype), dtype.kind == "b"


def join_parts(parts: dict[int, Column]) -> np.ndarray:
    """Join a role other than the target from its partitions, and remove them from `parts`."""
    (dtype,) = {part.dtype for part in parts.values() if isinstance(part, np.ndarray)}
    return _drain(parts, dtype)


def _drain(parts: dict[int, Any], dtype: np.dtype) -> np.ndarray:
    if len(parts) == 1:
        return parts.popitem()[1].astype(dtype, copy=False)
    lengths = {i: part.shape[-1] for i, part in parts.items()}
    joined, start = np.empty((*next(iter(parts.values())).shape[:-1], sum(lengths.values())), dtype), 0
    for i in sorted(parts):
        joined[..., start : start + lengths[i]] = parts.pop(i)
        start += lengths[i]
    return joined


def result_dtype(dtypes: Iterable[str]) -> str:
    """Return the NumPy dtype that represents values of all dtypes."""
    return str(np.result_type(*{np.dtype(dtype) for dtype in dtypes}))


def levels_dtype(levels: tuple[Level, ...]) -> str:
    """Return the NumPy dtype of a column with these categories."""
    kinds = {type(level) for level in levels}
    if kinds == {int} and levels[-1] >= 2**63 and levels[0] >= 0:  # type: ignore[operator]  # sorted
        return "uint64"
    if len(kinds) == 1:
        return {str: "object", bool: "bool", int: "int64", float: "float64"}[kinds.pop()]
    return "float64" if kinds == {int, float} else "object"


def check_exact(target: Column | None, role: str, subject: str, rows: MetadataRows) -> list[DataIssue]:
    """Return issues for integers that floats cannot represent, in a partition of a role in its own dtype."""
    if not isinstance(target, np.ndarray) or target.dtype.kind not in "iu" or not len(target):
        return []
    if max(int(target.max()), -int(target.min())) < EXACT:
        return []
    problem = "holds integers of 2**53 or more, which floats cannot represent exactly,"
    return rows.flagged(role, subject, np.abs(target.astype(np.float64)) >= EXACT, problem, _REMEDY)


def issues_of(role: str, column: Column, subject: str, rows: MetadataRows, names: Sequence[str] = ()) -> list[DataIssue]:
    """Return the issues of a role. subject, names : its name for messages, and those of its columns if it has several."""
    parts = [(subject, column)]
    if isinstance(column, np.ndarray) and column.ndim == 2:
        each = names or [f"column {j} of {subject}" for j in range(len(column))]
        parts = [(label, column[j : j + 1]) for j, label in enumerate(each)]
    return [
        issue for label, values in parts for flaw in ROLES[role].check(values) for issue in rows.flagged(role, label, *flaw)
    ]


def check_max_weight(max_weight: float, subject: str) -> None:
    """Raise a DataError if the largest weight is zero, or so small that weighted gradients vanish in float32."""
    if not max_weight > 0:
        raise DataError(f"{subject} is zero in every row: nothing is left to learn from")
    if max_weight < LEAST_MAX_WEIGHT:
        raise DataError(
            f"{subject} is {number(max_weight)} at most in all rows, but at least one weight of {number(LEAST_MAX_WEIGHT)} or "
            "more is needed: multiply all weights by the same number"
        )


class RowMetadataSpool:
    """The roles of partitions in files. Thread-safe."""

    def __init__(self) -> None:
        #: NumPy dtype of the user's target; "object" for text. Set by `finish`.
        self.target_dtype = "float64"
        self.target_is_bool = False
        self._spool = Spool(0)
        self._dtypes: dict[tuple[str, int], np.dtype] = {}
        #: The levels of a categorical target, and the final code of each provisional one. Set by `finish`.
        self._levels: tuple[tuple[Level, ...], np.ndarray] | None = None

    def put(self, role: str, i: int, column: Column) -> None:
        """Store or replace a role of partition i; a categorical target in provisional codes."""
        array = column.codes if isinstance(column, CategoryColumn) else column
        self._dtypes[role, i] = np.dtype(object) if isinstance(column, CategoryColumn) else array.dtype
        self._spool.drop(_number(role, i))
        self._spool.put(_number(role, i), [np.ascontiguousarray(array)])

    def finish(self, categories: CategoryIndex | None) -> None:
        """Determine the dtype of the target after the last partition. categories : of the target; None if it is numeric."""
        if categories is not None:
            self._levels = categories.finish()
            self.target_dtype = levels_dtype(self._levels[0])
        else:
            kinds = {str(dtype) for (role, _), dtype in self._dtypes.items() if role == "target" and dtype.kind != "O"}
            self.target_dtype = result_dtype(kinds) if kinds else "float64"
            self.target_is_bool = self.target_dtype == "bool"

    def check(self, plan: ReadPlan, rows: MetadataRows) -> tuple[list[DataIssue], float]:
        """Return the issues in these partitions, and the largest weight."""
        issues: list[DataIssue] = []
        max_weight = 0.0
        for k, length in enumerate(rows.lengths):
            if not length:
                continue
            i = k if rows.partition_ids is None else rows.partition_ids[k]
            partition_rows = rows.of_partition(i)
            roles = self.get(i)
            for role, column in roles.by_name().items():
                issues += issues_of(role, column, plan.label(role), partition_rows, plan.labels(role))
                if self._dtypes[role, i].kind in "iu":
                    issues += check_exact(self.raw(role, i), role, plan.label(role), partition_rows)
            max_weight = max(max_weight, 1.0 if roles.weight is None else float(roles.weight.max()))
        return issues, max_weight

    def get(self, i: int) -> RowRoles:
        """Return the roles of partition i."""
        return RowRoles.of({role: self._get(role, i, self._dtypes[role, i]) for role in ROLES if (role, i) in self._dtypes})

    def _get(self, role: str, i: int, dtype: np.dtype) -> Column:
        array = self._spool.get(_number(role, i))[0]
        if role == "target" and self._levels is not None:
            levels, final = self._levels
            return CategoryColumn(apply(final, array) if dtype.kind == "O" else np.full(len(array), -1, np.int32), levels)
        if dtype.kind == "O":
            return np.full(len(array), np.nan)
        return array.astype(np.float64, copy=False) if ROLES[role].dtype is None else array

    def raw(self, role: str, i: int) -> Column | None:
        """Return a role of partition i as it was stored: categories in provisional codes."""
        dtype = self._dtypes.get((role, i))
        if dtype is None:
            return None
        array = self._spool.get(_number(role, i))[0]
        return CategoryColumn(array, ()) if dtype.kind == "O" else array

    def keep_only(self, partition_ids: Collection[int]) -> None:
        """Drop other partitions."""
        self._spool.keep_only({_number(role, i) for role in ROLES for i in partition_ids})
        self._dtypes = {key: dtype for key, dtype in self._dtypes.items() if key[1] in partition_ids}

    def close(self) -> None:
        """Remove the files."""
        self._spool.close()


def _number(role: str, i: int) -> int:
    return len(ROLES) * i + list(ROLES).index(role)
