"""Which rows are held out, and what classes weigh, decided here and carried out on the workers.

The client counts the rows of each class and says how many of each are held out; the workers count digits of the rows' hashes
until it is known which (see `training.row_selection`). So counts travel, but no target and no weight of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from dboost.cluster.loading import starts_of
from dboost.cluster.table import ClusterTable, Share
from dboost.errors import DBoostError, ParameterError
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.training.row_selection import Digits
from dboost.training.supervision import HELD_OUT, Supervise, Supervision
from dboost.training.target import Target
from dboost.training.test_share import needs_test_set, share_of, tell


def supervised(
    table: ClusterTable,
    target: Target,
    parameters: Parameters,
    sets: Any,
    supervise: Supervise | None,
    so_far: Callable[[], Ensemble],
) -> tuple[Supervision, dict[str, tuple[int, float]], bool]:
    """Have the workers give rows the weights that they are trained with.

    Returns
    -------
    plan : Supervision
    judged : {name: (int, float)}
        The evaluation sets that were chosen from the rows: how many these are, and their largest weight.
    unit_weights : bool
        Whether all weights to train with are 1.

    Raises
    ------
    ParameterError
        When the plan has a scorer, or there are too few rows to hold some out.
    DataError
        When a partition has another number of rows than it had before.
    """
    plan = Supervision()
    if supervise is None and not needs_test_set(parameters, plan, sets):
        return plan, {}, all(survey.unit_weights for survey in table.surveys)
    before = table.n_kept
    starts, n_rows = starts_of(before), sum(before.values())
    n_classes = None if target.classes is None else len(target.classes)

    def numbered(share: Share) -> tuple[Any, ...]:
        return {i: (starts[i], before[i]) for i in share.numbers}, n_classes

    def added_up(method: str, *arguments: Any) -> np.ndarray:
        return reduce(np.add, table.ask_each(method, lambda share: (*numbered(share), *arguments)))

    def ask(digits: Digits) -> np.ndarray:
        return added_up("digit_counts", digits)

    counts = [n_rows] if n_classes is None else added_up("class_counts").tolist()
    if supervise is not None:
        plan = supervise(counts, target, so_far)
        _refuse_scorers(plan)
    is_alone = needs_test_set(parameters, plan, sets)
    assignment = plan.assign(counts, ask, share_of(n_rows, parameters.random_state) if is_alone else None)
    table.supervise(lambda share: (*numbered(share), assignment))
    told = table.ask("trained_rows")
    after = dict(sorted((i, n) for each, *_ in told for i, n in each.items()))
    n_held_out = n_rows - sum(after.values())
    if is_alone:
        tell(n_held_out, n_rows)
    elif after.keys() != before.keys() or n_held_out != (sum(plan.held_out.sizes) if plan.held_out is not None else 0):
        raise DBoostError(f"{n_held_out} of {n_rows} rows in {len(after)} of {len(before)} partitions were held out")
    table.take_in(after)
    judged = {} if assignment.held_out is None else {HELD_OUT: (n_held_out, max(heaviest for _, heaviest, _ in told))}
    return plan, judged, all(is_unit for *_, is_unit in told)


def _refuse_scorers(plan: Supervision) -> None:
    """Scorers of scikit-learn want the rows themselves."""
    for metric in plan.metrics:
        if metric.wants_block:
            raise ParameterError(
                "scoring with a scorer wants all rows in one place, which a cluster has not; use scoring='loss', or eval_metric"
            )
