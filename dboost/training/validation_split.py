"""What a caller may decide once the target is known: weights of classes, rows that are held out, and when to stop.

`dboost.fit` decides these beforehand. scikit-learn's estimators split off their validation rows and weigh their classes by
themselves; they hand in a function that is told how many rows there are, of each class, and returns a `ValidationPlan`. Which
rows are meant follows from their numbers (see `row_selection`), so that nobody need see them all.

An independent test set for fits that need one and were given none.

A tenth of the rows, about 200,000 of them at most, is held out: those whose hash of the seed and their number among the rows of
positive weight is small. So they are a random sample of the whole data, and the same one however these are partitioned. The
user is told by a warning.

Rows of a table in this process that are held out or watched, as a supervisor or the missing test set of arcbites wants it.

Held-out rows get weight zero, after which nobody reads their targets any more. Where these are in files they are encoded before
that, and the encoded ones wait in a file until the rows that are judged are in place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from dboost.data import Table
from dboost.errors import ParameterError
from dboost.metrics.metric import Metric
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.session.evaluation import EvalRows, EvalSet, EvalSetBuilder
from dboost.session.row_selection import (
    HELD_OUT,
    WATCHED,
    ChosenRows,
    DigitRequest,
    Draw,
    DrawnRows,
    NumberedRows,
    RowAssignment,
    find_bounds,
)
from dboost.session.target import Target, encode_chunk
from dboost.session.thread_team import Team
from dboost.storage.spool import Spool
from dboost.training.callbacks import EarlyStopping
from dboost.trees.tree_task import HOLD_OUT, derive_seed


@dataclass(frozen=True, eq=False)
class ValidationPlan:
    """How a fit is weighed and watched.

    Attributes
    ----------
    class_weight : float64[n_classes] or None
        By which the weights of rows are multiplied.
    held_out : Draw or None
        Rows that are judged as the evaluation set "validation" and not trained on.
    watched : Draw or None
        Rows that are trained on and also judged, as the evaluation set "train".
    metrics : tuple of Metric
        Judged in addition to those of `eval_metric`.
    early_stopping : EarlyStopping or None
    """

    class_weight: np.ndarray | None = None
    held_out: Draw | None = None
    watched: Draw | None = None
    metrics: tuple[Metric, ...] = ()
    early_stopping: EarlyStopping | None = None

    def assign(
        self, counts: Sequence[int], ask: Callable[[DigitRequest], np.ndarray], test_share: DrawnRows | None = None
    ) -> RowAssignment:
        """Find out which rows are meant. counts, ask : as of `find_bounds`; test_share : rows to hold out if this holds out
        none."""
        held_out = test_share if self.held_out is None else find_bounds(self.held_out, counts, ask)
        watched = None
        if self.watched is not None:
            left = counts if self.held_out is None else [n - own for n, own in zip(counts, self.held_out.sizes, strict=True)]
            watched = find_bounds(self.watched, left, ask, held_out)
        return RowAssignment(self.class_weight, held_out, watched)


#: Called with the numbers of rows of positive weight (of each class, or one number), the target, which may hold no rows, and a
#: function that returns the ensemble as far as it has come.
MakeValidationPlan = Callable[[Sequence[int], Target, Callable[[], Ensemble]], ValidationPlan]


#: The share of the rows that is held out, and about how many these may be.
TEST_SHARE, MOST_TEST_ROWS = 0.1, 200_000


def needs_test_set(parameters: Parameters, plan: ValidationPlan, sets: Sequence[Any]) -> bool:
    """Whether there is to be a test set and nobody has given one."""
    arcbites = parameters.arcbites
    return arcbites is not None and arcbites.is_watched and not sets and plan.early_stopping is None


def test_rows_of(n_rows: int, seed: int) -> DrawnRows:
    """The share of `n_rows` rows of positive weight that is held out."""
    share = min(TEST_SHARE, MOST_TEST_ROWS / n_rows)
    return DrawnRows(derive_seed(seed, HOLD_OUT), (int(share * 2.0**64),))


def warn_held_out(n_held_out: int, n_rows: int) -> None:
    """Tell the user that rows are held out.

    Raises
    ------
    ParameterError
        When it is none of them, or all.
    """
    if not 0 < n_held_out < n_rows:
        raise ParameterError(
            f"arcbites need a test set to tell when to leave a bite, and of {n_rows} rows none can be spared: give an "
            "eval_set, or trees_per_visit"
        )
    warnings.warn(
        f"no eval_set was given to tell when to leave a bite: {n_held_out} of the {n_rows} rows are held out for that, and not "
        "trained on",
        stacklevel=2,
    )


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
    make_validation_plan: MakeValidationPlan | None,
    ensemble_so_far: Callable[[], Ensemble],
) -> tuple[ValidationPlan, dict[str, ChosenRows]]:
    """Give the rows of a table the weights that they are trained with; which of them are judged, by name of the set."""
    plan = ValidationPlan()
    if make_validation_plan is None and not needs_test_set(parameters, plan, sets):
        return plan, {}
    n_kept = [_n_kept(table, k) for k in range(table.n_chunks)]
    n_rows, classes = sum(n_kept), targets.target.classes
    starts = (0, *accumulate(n_kept))
    rows = NumberedRows(table, targets.of_chunk, starts, n_kept, None if classes is None else len(classes))
    counts = [n_rows] if classes is None else rows.class_counts().tolist()
    if make_validation_plan is not None:
        plan = make_validation_plan(counts, targets.target, ensemble_so_far)
    is_alone = needs_test_set(parameters, plan, sets)
    assignment = plan.assign(counts, rows.digit_counts, test_rows_of(n_rows, parameters.random_state) if is_alone else None)
    if assignment.held_out is not None:
        targets.keep()
    held_out, watched = rows.apply(assignment)
    if is_alone:
        assert held_out is not None
        warn_held_out(len(held_out[0]), n_rows)
    return plan, {name: rows for name, rows in ((HELD_OUT, held_out), (WATCHED, watched)) if rows is not None}


def _n_kept(table: Table, k: int) -> int:
    """Rows of positive weight of a chunk."""
    weight = table.roles(k)[1] if table.lengths[k] else None
    return table.lengths[k] if weight is None else int(np.count_nonzero(weight > 0))


def eval_sets_of_chosen(
    eval_set_builder: EvalSetBuilder, table: Table, targets: Targets, chosen: dict[str, ChosenRows]
) -> list[Callable[[Team], EvalSet]]:
    """What it takes to judge the chosen rows; they wait for the team that will share the work."""
    return [eval_set_builder.rows(name, EvalRows(table, targets.of_chunk, *rows)) for name, rows in chosen.items()]
