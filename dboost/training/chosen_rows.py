"""Rows of a table in this process that are held out or watched, as a supervisor or the missing test set of arcbites wants it.

Held-out rows get weight zero, after which nobody reads their targets any more. Where these are in files they are encoded before
that, and the encoded ones wait in a file until the rows that are judged are in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from dboost.engine.team import Team
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.sources import Table
from dboost.sources.spool import Spool
from dboost.training.held_out import Judge, Yardstick
from dboost.training.held_out_files import ToJudge
from dboost.training.row_selection import Chosen, NumberedRows
from dboost.training.supervision import HELD_OUT, WATCHED, Supervise, Supervision
from dboost.training.target import Target, encode_chunk
from dboost.training.test_share import needs_test_set, share_of, tell


class Targets(Protocol):
    """The targets of a table's rows in the terms of the loss."""

    @property
    def target(self) -> Target:
        """What they mean; it may hold no rows."""

    def of_chunk(self, k: int) -> np.ndarray:
        """Those of a chunk by its number: float64[n]."""

    def keep(self) -> None:
        """Have them stay what they are when weights become zero."""


class TargetsInMemory:
    """Those of all rows. target : with its values."""

    def __init__(self, table: Table, target: Target) -> None:
        self.target = target
        self._starts = (0, *accumulate(table.lengths))

    def of_chunk(self, k: int) -> np.ndarray:
        return self.target.values[self._starts[k] : self._starts[k + 1]]

    def keep(self) -> None:
        pass


class TargetsInFiles:
    """Those of a table that are encoded chunk by chunk. target : holds no rows."""

    def __init__(self, table: Table, target: Target) -> None:
        self.target, self._table = target, table
        self._kept: Spool | None = None

    def of_chunk(self, k: int) -> np.ndarray:
        return encode_chunk(self._table, k, self.target) if self._kept is None else self._kept.get(k)[0]

    def keep(self) -> None:
        kept = Spool(0)
        try:
            for k, length in enumerate(self._table.lengths):
                if length:
                    kept.put(k, [encode_chunk(self._table, k, self.target)])
        except BaseException:
            kept.close()
            raise
        self._kept = kept

    def close(self) -> None:
        """Remove the file."""
        if self._kept is not None:
            self._kept.close()


def choose_rows(
    table: Table,
    targets: Targets,
    parameters: Parameters,
    sets: Sequence[Any],
    supervise: Supervise | None,
    so_far: Callable[[], Ensemble],
) -> tuple[Supervision, dict[str, Chosen]]:
    """Give the rows of a table the weights that they are trained with; which of them are judged, by name of the set."""
    plan = Supervision()
    if supervise is None and not needs_test_set(parameters, plan, sets):
        return plan, {}
    n_kept = [_n_kept(table, k) for k in range(table.n_chunks)]
    n_rows, classes = sum(n_kept), targets.target.classes
    starts = (0, *accumulate(n_kept))
    rows = NumberedRows(table, targets.of_chunk, starts, n_kept, None if classes is None else len(classes))
    counts = [n_rows] if classes is None else rows.class_counts().tolist()
    if supervise is not None:
        plan = supervise(counts, targets.target, so_far)
    is_alone = needs_test_set(parameters, plan, sets)
    assignment = plan.assign(counts, rows.digit_counts, share_of(n_rows, parameters.random_state) if is_alone else None)
    if assignment.held_out is not None:
        targets.keep()
    held_out, watched = rows.apply(assignment)
    if is_alone:
        assert held_out is not None
        tell(len(held_out[0]), n_rows)
    return plan, {name: rows for name, rows in ((HELD_OUT, held_out), (WATCHED, watched)) if rows is not None}


def _n_kept(table: Table, k: int) -> int:
    """Rows of positive weight of a chunk."""
    weight = table.roles(k)[1] if table.lengths[k] else None
    return table.lengths[k] if weight is None else int(np.count_nonzero(weight > 0))


def judge_chosen(
    yardstick: Yardstick, table: Table, targets: Targets, chosen: dict[str, Chosen]
) -> list[Callable[[Team], Judge]]:
    """What it takes to judge the chosen rows; they wait for the team that will share the work."""
    return [yardstick.rows(name, ToJudge(table, targets.of_chunk, *rows)) for name, rows in chosen.items()]
