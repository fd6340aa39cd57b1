"""Validation rows, class weights and early stopping that are chosen from the training data.

`dboost.fit` takes evaluation sets from the user. The scikit-learn estimators split off validation rows and compute class
weights themselves: they pass a function that receives the number of rows of each class and returns a `ValidationPlan`. Rows are
selected by a hash of their ids (see `session.row_selection`), so the selection does not depend on the partitions.

Arcbites with early stopping but without an evaluation set get an independent test set: a tenth of the rows, at most about
200,000. A warning informs the user.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.metrics.metric import MetricReduction
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.session.row_selection import (
    TRAIN,
    DigitRequest,
    Draw,
    DrawnRows,
    FoldRows,
    RowAssignment,
    find_bounds,
)
from dboost.session.target import Target
from dboost.training.callbacks import StoppingRule
from dboost.trees.tree_task import HOLD_OUT, derive_seed


@dataclass(frozen=True, eq=False)
class ValidationPlan:
    """Class weights, validation rows, additional metrics and early stopping of a fit."""

    class_weight: np.ndarray | None = None  # float64[n_classes], factors of the row weights
    held_out: Draw | None = None  # rows of the evaluation set "validation", excluded from training
    watched: Draw | None = None  # training rows that also form the evaluation set "train"
    metrics: tuple[MetricReduction, ...] = ()  # evaluated in addition to those of `eval_metric`
    early_stopping: StoppingRule | None = None
    fold: FoldRows | None = None  # instead of `held_out`: these rows are given, and others may be left out

    @property
    def n_held_out(self) -> int:
        """Number of rows that are not trained on."""
        if self.fold is not None:
            return len(self.fold.uses) - int(np.count_nonzero(self.fold.uses == TRAIN))
        return sum(self.held_out.sizes) if self.held_out is not None else 0

    def assign(
        self, counts: Sequence[int], ask: Callable[[DigitRequest], np.ndarray], test_share: DrawnRows | None = None
    ) -> RowAssignment:
        """Select the rows.

        counts, ask : see `find_bounds`; test_share : rows to hold out if `held_out` is None.
        """
        held_out = test_share if self.held_out is None else find_bounds(self.held_out, counts, ask)
        watched = None
        if self.watched is not None:
            remaining = counts
            if self.held_out is not None:
                remaining = [n - own for n, own in zip(counts, self.held_out.sizes, strict=True)]
            watched = find_bounds(self.watched, remaining, ask, held_out)
        return RowAssignment(self.class_weight, held_out, watched, self.fold)


#: Called with the number of rows of positive weight (of each class, or one number for regression), the target (without rows),
#: and a function that returns the ensemble grown so far.
MakeValidationPlan = Callable[[Sequence[int], Target, Callable[[], Ensemble]], ValidationPlan]


#: Fraction of the rows that is held out, and the approximate upper limit of their number.
TEST_SHARE, MOST_TEST_ROWS = 0.1, 200_000


def needs_test_set(parameters: Parameters, plan: ValidationPlan, sets: Sequence[Any]) -> bool:
    """Whether arcbites need a test set and the user has given none."""
    arcbites = parameters.arcbites
    return arcbites is not None and arcbites.is_watched and not sets and plan.early_stopping is None


def held_out_rows_of(n_rows: int, seed: int) -> DrawnRows:
    """Return the selection of the rows to hold out among `n_rows` rows of positive weight."""
    fraction = min(TEST_SHARE, MOST_TEST_ROWS / n_rows)
    return DrawnRows(derive_seed(seed, HOLD_OUT), (int(fraction * 2.0**64),))


def warn_held_out(n_held_out: int, n_rows: int) -> None:
    """Warn that rows are held out.

    Raises
    ------
    ParameterError
        When no row is held out, or no row is left to train on.
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
