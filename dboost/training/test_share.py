"""An independent test set for fits that need one and were given none.

A tenth of the rows, about 200,000 of them at most, is held out: those whose hash of the seed and their number among the rows of
positive weight is small. So they are a random sample of the whole data, and the same one however these are partitioned. The
user is told by a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from dboost.errors import ParameterError
from dboost.growth.task import HOLD_OUT, mixed
from dboost.params import Parameters
from dboost.training.row_selection import Drawn
from dboost.training.supervision import Supervision

#: The share of the rows that is held out, and about how many these may be.
TEST_SHARE, MOST_TEST_ROWS = 0.1, 200_000


def needs_test_set(parameters: Parameters, plan: Supervision, sets: Sequence[Any]) -> bool:
    """Whether there is to be a test set and nobody has given one."""
    arcbites = parameters.arcbites
    return arcbites is not None and arcbites.is_watched and not sets and plan.early_stopping is None


def share_of(n_rows: int, seed: int) -> Drawn:
    """The share of `n_rows` rows of positive weight that is held out."""
    share = min(TEST_SHARE, MOST_TEST_ROWS / n_rows)
    return Drawn(mixed(seed, HOLD_OUT), (int(share * 2.0**64),))


def tell(n_held_out: int, n_rows: int) -> None:
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
