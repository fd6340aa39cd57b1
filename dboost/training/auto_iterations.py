"""The number of iterations that held-out rows decide: ``max_iter="auto"``, ``validation_fraction=`` and ``refit=True``.

A small learning rate, and as many iterations as still improve the predictions of rows that are not trained on: the usual recipe
of boosting, which leaves no number to tune (J. Friedman, "Greedy function approximation", 2001, section 5: the smaller the
learning rate, the better, if the number of iterations follows).

**Two fits.** The rows that are held out are missed, and a search at a small rate is long. So ``max_iter="auto"`` searches at a
high rate, and then trains on all rows at a small one, see `training.two_fits`. Both draw new rows in every iteration
(J. Friedman, "Stochastic gradient boosting", 2002).

**One fit**, where the search would be in the way: with evaluation sets, a model that is continued, a checkpoint, a time limit,
arcbites, a schedule of learning rates, or ``refit=False``. It has the small rate and keeps the iterations up to the best one.

The rows are held out by the hash of their number among all rows (whole groups, if rows have groups), an exact number of each
class. So they are the same for any partitioning.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dboost.errors import ParameterError
from dboost.model.ensemble import Ensemble
from dboost.params import FOREST
from dboost.rows.row_sample import HOLD_OUT, derive_seed
from dboost.session.row_samples import Draw, in_proportion
from dboost.session.target import Target
from dboost.training.request import MakeValidationPlan
from dboost.training.validation_rows import ValidationPlan

AUTO = "auto"
#: With ``max_iter="auto"``: the largest number of iterations of each fit, the rate of the model, and the part of the rows that
#: each iteration draws.
MOST_ITERATIONS, RATE, SUBSAMPLE = 2000, 0.07, 0.8


class Search(NamedTuple):
    """How ``max_iter="auto"`` looks for the number of iterations, with what is not given."""

    learning_rate: float
    rounds: int  # iterations without improvement that end it
    fraction: float  # of the rows that are held out


#: On the way to a fit on all rows, and in the fit whose iterations are kept.
BEFORE_FIT, IN_FIT = Search(0.2, 25, 0.2), Search(0.05, 50, 0.1)
_OTHERWISE = "give the number of iterations and no early stopping, or an eval_set"


def is_auto(max_iter: Any) -> bool:
    """Whether a value of `max_iter` lets held-out rows decide."""
    return isinstance(max_iter, str) and max_iter == AUTO


def search_of(learning: Mapping[str, Any], refit: Any, **others: Any) -> Search:
    """Return how ``max_iter="auto"`` searches. others : what is given that needs one fit, None for what is not."""
    rate, needs = learning.get("learning_rate"), [learning.get("arcbites"), *others.values()]
    has_schedule = callable(rate) or (isinstance(rate, Iterable) and not isinstance(rate, str))
    return IN_FIT if refit is False or has_schedule or any(value is not None for value in needs) else BEFORE_FIT


def with_auto_iterations(learning: Mapping[str, Any], search: Search, *, has_rule: bool) -> dict[str, Any]:
    """Return parameters of learning of the search, if ``max_iter="auto"``; other values of `max_iter` change nothing.

    learning : parameters that are given, by name; has_rule : whether a rule of early stopping is given beside them.
    """
    if not is_auto(learning.get("max_iter")):
        return dict(learning)
    if learning.get("boosting") == FOREST:
        raise ParameterError(
            "max_iter='auto' is for boosting: more trees do not make a forest worse, so give their number, and "
            "early_stopping_rounds to stop when out-of-bag predictions do not improve"
        )
    rate, rounds, subsample = (learning.get(name) for name in ("learning_rate", "early_stopping_rounds", "subsample"))
    n_rates = len(rate) if isinstance(rate, Sequence) and not isinstance(rate, str) else MOST_ITERATIONS
    if rate is None or (search is BEFORE_FIT and _is_number(rate) and 0 < rate < search.learning_rate):
        rate = search.learning_rate
    settings = {
        **learning,
        "max_iter": min(n_rates, MOST_ITERATIONS),
        "learning_rate": rate,
        "subsample": SUBSAMPLE if subsample is None else subsample,
    }
    return settings if has_rule else settings | {"early_stopping_rounds": search.rounds if rounds is None else rounds}


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_share(value: Any) -> bool:
    """Whether a value is a share of the rows (above 0 and below 1), or a number of rows."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        return False
    return float(value) >= 1 if isinstance(value, numbers.Integral) else 0 < float(value) < 1


def n_held_out(counts: Sequence[int], size: float, keyword: str | None = None) -> int:
    """Return how many rows are held out.

    counts : number of rows of each class, or of all rows; size : see `is_share`; keyword : with its value, that asks for it, by
    default `validation_fraction`.

    Raises
    ------
    ParameterError
        If no row would be left to train on.
    """
    total = sum(counts)
    n = int(size) if isinstance(size, numbers.Integral) else math.ceil(size * total)
    if n >= total:
        keyword = keyword or f"validation_fraction={size!r}"
        rows = f"{total} row{'s' * (total != 1)}"
        raise ParameterError(f"{keyword} holds out {n} of {rows}: none would be left to train on; {_OTHERWISE}")
    return n


def validation_plan_maker(size: Any, learning: Mapping[str, Any], *, is_default: bool = False) -> MakeValidationPlan:
    """Return the function that plans the validation rows of a fit.

    At least one row of each class is trained on.

    Parameters
    ----------
    size : float or int
        Share or number of the rows.
    learning : mapping
        Parameters of learning, by name.
    is_default : bool, default False
        Whether ``max_iter="auto"`` asks for the rows, and not `validation_fraction`.

    Raises
    ------
    ParameterError
        If `size` is neither.
    """
    if not is_share(size):
        raise ParameterError(f"validation_fraction={size!r} must be a part of the rows below 1, or a number of rows")
    keyword = "max_iter='auto'" if is_default else f"validation_fraction={size!r}"
    return partial(_plan, size=size, seed=learning.get("random_state", 0), keyword=keyword)


def _plan(
    counts: Sequence[int], target: Target, _: Callable[[], Ensemble], *, size: float, seed: int, keyword: str
) -> ValidationPlan:
    return ValidationPlan(held_out=held_out_rows(counts, target, size, seed, keyword))


def held_out_rows(counts: Sequence[int], target: Target, size: float, seed: int, keyword: str | None = None) -> Draw:
    """Return the validation rows of a fit with this seed: at least one, and of each class at least one row is left to train on.

    counts, size, keyword : as of `n_held_out`.

    Raises
    ------
    ParameterError
        If no row can be held out, or none would be left.
    """
    seed = derive_seed(seed, HOLD_OUT)
    sizes = in_proportion(counts, n_held_out(counts, size, keyword), seed)
    if target.classes is not None:
        sizes = tuple(min(n, max(count - 1, 0)) for n, count in zip(sizes, counts, strict=True))
        largest = max(range(len(counts)), key=lambda code: counts[code])
        if not any(sizes) and counts[largest] > 1:  # the draw has met classes of one row only
            sizes = tuple(int(code == largest) for code in range(len(counts)))
        if not any(sizes):
            keyword = keyword or f"validation_fraction={size!r}"
            raise ParameterError(
                f"{keyword} holds rows out, but each class has one row, which is trained on ({sum(counts)} rows): {_OTHERWISE}"
            )
    return Draw(seed, sizes)
