"""The number of iterations that held-out rows decide: ``max_iter="auto"``, ``validation_fraction=`` and ``refit=True``.

A small learning rate, as many iterations as still improve the predictions of rows that are not trained on, and the model of the
best iteration: the usual recipe of boosting, which leaves no number to tune (J. Friedman, "Greedy function approximation",
2001, section 5: the smaller the learning rate, the better, if the number of iterations follows). ``max_iter="auto"`` stands
for `MOST_ITERATIONS`, and for `RATE`, `ROUNDS` and `FRACTION` of the parameters that are not given.

The rows are held out by the hash of their number among all rows (whole groups, if rows have groups), an exact number of each
class. So they are the same for any partitioning.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.model.ensemble import Ensemble
from dboost.params import FOREST
from dboost.rows.row_sample import HOLD_OUT, derive_seed
from dboost.session.row_samples import Draw, in_proportion
from dboost.session.target import Target
from dboost.training.fit import FitResult
from dboost.training.request import FitRequest, MakeValidationPlan
from dboost.training.validation_rows import ValidationPlan

AUTO = "auto"
#: What ``max_iter="auto"`` stands for.
MOST_ITERATIONS, RATE, ROUNDS, FRACTION = 2000, 0.05, 50, 0.1
_OTHERWISE = "give the number of iterations and no early stopping, or an eval_set"


def is_auto(max_iter: Any) -> bool:
    """Whether a value of `max_iter` lets held-out rows decide."""
    return isinstance(max_iter, str) and max_iter == AUTO


def with_auto_iterations(learning: Mapping[str, Any], *, has_rule: bool) -> dict[str, Any]:
    """Return parameters of learning with what ``max_iter="auto"`` stands for; other values of `max_iter` change nothing.

    learning : parameters that are given, by name; has_rule : whether a rule of early stopping is given beside them.
    """
    if not is_auto(learning.get("max_iter")):
        return dict(learning)
    if learning.get("boosting") == FOREST:
        raise ParameterError(
            "max_iter='auto' is for boosting: more trees do not make a forest worse, so give their number, and "
            "early_stopping_rounds to stop when out-of-bag predictions do not improve"
        )
    rate, rounds = learning.get("learning_rate"), learning.get("early_stopping_rounds")
    n_rates = len(rate) if isinstance(rate, Sequence) and not isinstance(rate, str) else MOST_ITERATIONS
    settings = {**learning, "max_iter": min(n_rates, MOST_ITERATIONS), "learning_rate": RATE if rate is None else rate}
    return settings if has_rule else settings | {"early_stopping_rounds": ROUNDS if rounds is None else rounds}


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


def check_refit(refit: Any, request: FitRequest, *, stops: bool) -> None:
    """Raise a ParameterError if a fit cannot be repeated with the number of iterations that it kept.

    stops : whether it may stop early.
    """
    if not isinstance(refit, bool):
        raise ParameterError(f"refit={refit!r:.60} must be True or False")
    if not refit:
        return
    if not stops:
        raise ParameterError('refit=True needs early stopping, which finds the number of iterations: give max_iter="auto"')
    for name, value in (
        ("checkpoint", request.checkpoint),
        ("time_limit", request.time_limit),
        ("arcbites", request.parameters.arcbites),
    ):
        if value is not None:
            raise ParameterError(f"refit=True does not go together with {name}: leave one of them out")


def refitted(fit: Callable[[FitRequest], FitResult], request: FitRequest, first: FitResult) -> FitResult:
    """Return the result of a second fit: on all rows, with as many iterations as the first one has kept.

    The history is that of the first fit, whose validation rows have decided.

    Parameters
    ----------
    fit : callable
        Trains on the same rows.
    request : FitRequest
        Of the first fit.
    first : FitResult
        Of the first fit.
    """
    ensemble = first.ensemble
    n = ensemble.n_iterations - request.warm_start.n_earlier
    if n < 1:  # the model that was continued is the best
        return first
    make_plan = request.make_validation_plan

    def with_all_rows(*counted: Any) -> ValidationPlan:
        return ValidationPlan() if make_plan is None else ValidationPlan(make_plan(*counted).class_weight)

    later = fit(
        replace(
            request,
            parameters=replace(request.parameters, max_iter=n, early_stopping_rounds=None),
            early_stopping=None,
            make_validation_plan=None if make_plan is None else with_all_rows,
            validation_fraction=None,
        )
    )
    whole = replace(later.ensemble, metrics=ensemble.metrics, best_iteration=ensemble.best_iteration)
    return replace(later, ensemble=whole, history=first.history, before=first.before, ended_by=first.ended_by)
