"""Which rows are held out for validation, what classes weigh, and when to stop.

`dboost.fit` takes evaluation sets from the user. scikit-learn's estimators split off their validation rows and weigh their
classes themselves: they pass a function that gets the number of rows of each class and returns a `ValidationPlan`. The rows
follow from their ids by hashing (see `session.row_selection`), so the choice does not depend on how they are divided.

Arcbites that need a test set to tell when to leave a bite, and were given none, get an independent one: a tenth of the rows, at
most about 200,000. A warning tells the user.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.metrics.metric import Metric
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.session.row_selection import (
    DigitRequest,
    Draw,
    DrawnRows,
    RowAssignment,
    find_bounds,
)
from dboost.session.target import Target
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


def held_out_rows_of(n_rows: int, seed: int) -> DrawnRows:
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
