"""What a caller may decide once the target is known: weights, rows that are held out, and when to stop.

`dboost.fit` decides these beforehand. scikit-learn's estimators split off their validation rows and weigh their classes by
themselves; they hand in a function that looks at the opened table and returns a `Supervision`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dboost.model.ensemble import Ensemble
from dboost.sources import Table
from dboost.statistics.metrics import Metric
from dboost.training.monitor import EarlyStopping
from dboost.training.target import Target

#: Name of the set of rows that are held out, and of the sample of training rows.
HELD_OUT, WATCHED = "validation", "train"


@dataclass(frozen=True, eq=False)
class Supervision:
    """How a fit is weighed and watched.

    Attributes
    ----------
    weight : float64[n_rows] or None
        Takes the place of the table's own weights.
    held_out : int64[...] or None
        Rows, ascending, that are judged as the evaluation set "validation" and not trained on.
    watched : int64[...] or None
        Rows, ascending, that are trained on and also judged, as the evaluation set "train".
    metrics : tuple of Metric
        Judged in addition to those of `eval_metric`.
    early_stopping : EarlyStopping or None
    """

    weight: np.ndarray | None
    held_out: np.ndarray | None = None
    watched: np.ndarray | None = None
    metrics: tuple[Metric, ...] = ()
    early_stopping: EarlyStopping | None = None


#: Called with the open table, the encoded target, and a function that returns the ensemble as far as it has come.
Supervise = Callable[[Table, Target, Callable[[], Ensemble]], Supervision]
