"""Target, weight and offset of tables so long that even these do not fit in memory: they wait in files, partition by partition.

What must be known of them all together is small: the levels of a target of categories, the type that holds the numbers of all
partitions, the largest weight, and what there is to complain about.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from dboost.schema import Level
from dboost.sources.chunk import CategoryColumn, Column
from dboost.sources.levels import Dictionary, apply
from dboost.sources.partition import ROLES
from dboost.sources.plan import Plan
from dboost.sources.roles import (
    Complaint,
    Rows,
    check_offset,
    check_target,
    check_weight,
    label,
    levels_dtype,
    result_dtype,
)
from dboost.sources.spool import Spool


class RoleSpool:
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

    def finish(self, dictionary: Dictionary) -> None:
        """Say what the target is, now that all partitions have come. dictionary : of its levels, if it has any."""
        if len(dictionary):
            self._levels, self._final = dictionary.finish()
            self.target_dtype = levels_dtype(self._levels)
        else:
            kinds = {str(dtype) for (role, _), dtype in self._dtypes.items() if role == "target" and dtype.kind != "O"}
            self.target_dtype = result_dtype(kinds) if kinds else "float64"
            self.target_is_bool = self.target_dtype == "bool"

    def check(self, plan: Plan, rows: Rows) -> tuple[list[Complaint], float]:
        """What there is to complain about in the values of these partitions, and the largest weight."""
        complaints: list[Complaint] = []
        heaviest = 0.0
        for k, length in enumerate(rows.lengths):
            if not length:
                continue
            i = k if rows.numbers is None else rows.numbers[k]
            here = Rows((length,), True, (i,))
            target, weight, offset = self.get(i)
            if target is not None:
                complaints += check_target(target, self.target_dtype, label("target", plan.target), here)
            if weight is not None:
                complaints += check_weight(weight, label("sample_weight", plan.weight), here)
            if offset is not None:
                complaints += check_offset(offset, label("offset", plan.offset), here)
            heaviest = max(heaviest, 1.0 if weight is None else float(weight.max()))
        return complaints, heaviest

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
