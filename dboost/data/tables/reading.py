"""What is read of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dboost.data.columns.labels import with_named_targets
from dboost.data.columns.read_plan import ReadPlan
from dboost.data.columns.roles import ROLES
from dboost.data.kinds.table_kinds import is_source
from dboost.errors import InputTypeError, ParameterError


def given_roles(target: Any, others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the roles that the user gave, by name, in the order of `ROLES`."""
    given = {"target": target, **others}
    unknown = given.keys() - ROLES.keys()
    if unknown:
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    return {role: given[role] for role in ROLES if given.get(role) is not None}


def check_no_values(separate: Mapping[str, Any]) -> None:
    """Raise a ParameterError if a role is given as values, which cannot be filtered. separate : see `separate_roles`."""
    for role in separate:
        raise ParameterError(f"{role} must be the name of a column with filter, which selects rows of the data only")


def separate_roles(plan: ReadPlan, given: dict[str, Any]) -> dict[str, Any]:
    """Return the roles that are not columns of the table, by name."""
    return {role: value for role, value in given.items() if role not in plan.roles}


@dataclass(frozen=True, eq=False)
class GivenTable:
    """A table as a call names it, with its roles, before it is read.

    It is read in this process (`open_table.read_table`), or its fields are arguments of the tasks by which workers read it.
    """

    data: Any
    roles: Mapping[str, Any]  # as the user gave them, by the names of `ROLES`
    #: Keywords of `open_table` that choose the features: `features` and `categorical_features`.
    shaping: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        target = with_named_targets(self.roles["target"], self.data)
        object.__setattr__(self, "roles", {**self.roles, "target": target})
        shape: tuple[Any, ...] = getattr(target, "shape", ())
        if isinstance(self.data, str) and len(shape) == 2 and shape[1] > 1:
            raise InputTypeError(
                f"the data come first and the target second: (data, target); the target is a table, data={self.data!r}"
            )

    @property
    def reading(self) -> dict[str, Any]:
        """The keywords of `open_table` that describe the table."""
        return {**self.roles, **self.shaping}

    @property
    def is_source(self) -> bool:
        """Whether rows are still to be read, by a cluster if there is one."""
        return is_source(self.data)
