"""What a caller may decide once the target is known: weights of classes, rows that are held out, and when to stop.

`dboost.fit` decides these beforehand. scikit-learn's estimators split off their validation rows and weigh their classes by
themselves; they hand in a function that is told how many rows there are, of each class, and returns a `Supervision`. Which rows
are meant follows from their numbers (see `row_selection`), so that nobody need see them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dboost.model.ensemble import Ensemble
from dboost.statistics.metrics import Metric
from dboost.training.monitor import EarlyStopping
from dboost.training.row_selection import Assignment, Digits, Draw, Drawn, settle
from dboost.training.target import Target

#: Name of the set of rows that are held out, and of the sample of training rows.
HELD_OUT, WATCHED = "validation", "train"


@dataclass(frozen=True, eq=False)
class Supervision:
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

    def assign(self, counts: Sequence[int], ask: Callable[[Digits], np.ndarray], test_share: Drawn | None = None) -> Assignment:
        """Find out which rows are meant. counts, ask : as of `settle`; test_share : rows to hold out if this holds out none."""
        held_out = test_share if self.held_out is None else settle(self.held_out, counts, ask)
        watched = None
        if self.watched is not None:
            left = counts if self.held_out is None else [n - own for n, own in zip(counts, self.held_out.sizes, strict=True)]
            watched = settle(self.watched, left, ask, held_out)
        return Assignment(self.class_weight, held_out, watched)


#: Called with the numbers of rows of positive weight (of each class, or one number), the target, which may hold no rows, and a
#: function that returns the ensemble as far as it has come.
Supervise = Callable[[Sequence[int], Target, Callable[[], Ensemble]], Supervision]
