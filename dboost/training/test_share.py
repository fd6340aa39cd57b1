"""An independent test set for fits that need one and were given none.

A tenth of the rows, about 200,000 of them at most, is held out: those whose hash of the seed and their number among the rows of
positive weight is small. So they are a random sample of the whole data, and the same one however these are partitioned. The
user is told by a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.growth.task import HOLD_OUT, hashed, mixed
from dboost.params import Parameters
from dboost.shard.loading import kept_rows
from dboost.training.supervision import Supervision

#: The share of the rows that is held out, and about how many these may be.
TEST_SHARE, MOST_TEST_ROWS = 0.1, 200_000


def needs_test_set(parameters: Parameters, plan: Supervision, sets: Sequence[Any]) -> bool:
    """Whether there is to be a test set and nobody has given one."""
    arcbites = parameters.arcbites
    return arcbites is not None and arcbites.is_watched and not sets and plan.early_stopping is None


def held_out_rows(numbers: np.ndarray, seed: int, n_rows: int) -> np.ndarray:
    """Whether rows (int64[n], numbers among the `n_rows` of positive weight) are held out: bool[n]."""
    share = min(TEST_SHARE, MOST_TEST_ROWS / n_rows)
    return hashed(mixed(seed, HOLD_OUT), numbers) < np.uint64(int(share * 2.0**64))


def hold_out_share(plan: Supervision, n_rows: int, seed: int) -> Supervision:
    """The same plan with rows held out, of all `n_rows` those of positive weight.

    Raises
    ------
    ParameterError
        When there are too few rows to hold some out.
    """
    kept = kept_rows(plan.weight)
    rows = np.arange(n_rows) if kept is None else kept
    chosen = held_out_rows(np.arange(len(rows)), seed, len(rows))
    tell(int(chosen.sum()), len(rows))
    return replace(plan, held_out=rows[chosen])


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
