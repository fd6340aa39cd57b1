"""Validation rows and class weights that are chosen from the training data.

The scikit-learn estimators split off validation rows and compute class weights: they pass a function that receives the number
of rows of each class and returns a `ValidationPlan`; so does `dboost.fit` with ``validation_fraction=``. Rows are selected by a
hash of their ids (see `session.row_samples`), so the selection does not depend on the partitions.

Arcbites with early stopping but without an evaluation set get an independent test set: a tenth of the rows, at most about
200,000. A warning informs the user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dboost.errors import ParameterError, warn
from dboost.metrics.metric import MetricReduction
from dboost.rows.row_sample import HOLD_OUT, derive_seed
from dboost.session.row_samples import TRAIN, DigitRequest, Draw, DrawnRows, FoldRows, RowAssignment, find_bounds, whole_groups
from dboost.training.callbacks import StoppingRule


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
        self, counts: Sequence[int], ask: Callable[[DigitRequest], np.ndarray] | None, test_share: DrawnRows | None = None
    ) -> RowAssignment:
        """Select the rows.

        counts, ask : see `find_bounds`, ask is None to draw whole groups; test_share : rows to hold out if `held_out` is None.
        """
        if ask is None:
            held_out = test_share if self.held_out is None else whole_groups(self.held_out, counts)
            watched = None if self.watched is None else whole_groups(self.watched, counts, self.held_out)
            return RowAssignment(self.class_weight, held_out, watched, self.fold)
        held_out = test_share if self.held_out is None else find_bounds(self.held_out, counts, ask)
        watched = None
        if self.watched is not None:
            remaining = counts
            if self.held_out is not None:
                remaining = [n - n_held_out for n, n_held_out in zip(counts, self.held_out.sizes, strict=True)]
            watched = find_bounds(self.watched, remaining, ask, held_out)
        return RowAssignment(self.class_weight, held_out, watched, self.fold)


#: Fraction of the rows that is held out, and the approximate upper limit of their number.
TEST_SHARE, MOST_TEST_ROWS = 0.1, 200_000


def held_out_rows_of(n_rows: int, seed: int) -> DrawnRows:
    """Return the selection of the rows to hold out among `n_rows` rows of positive weight."""
    fraction = min(TEST_SHARE, MOST_TEST_ROWS / n_rows)
    return DrawnRows(derive_seed(seed, HOLD_OUT), (int(fraction * 2.0**64),))


def check_whole_groups(n_held_out: int, n_rows: int) -> None:
    """Raise a ParameterError if the groups are so few that none is held out, or that none is left to train on."""
    if not 0 < n_held_out < n_rows:
        raise ParameterError(
            f"the groups are too few to hold some of them out for validation: {n_held_out} of {n_rows} rows would be; give "
            "another validation_fraction or random_state, or an eval_set"
        )


def warn_held_out(n_held_out: int, n_rows: int) -> None:
    """Warn that rows are held out.

    Raises
    ------
    ParameterError
        When no row is held out, or no row is left to train on.
    """
    if not 0 < n_held_out < n_rows:
        raise ParameterError(
            f"arcbites need an evaluation set that ends their visits, and of {n_rows} rows none can be held out: give an "
            "eval_set, or trees_per_visit"
        )
    warn(f"no eval_set was given that ends the visits of bites: {n_held_out} of the {n_rows} rows are held out, not trained on")
