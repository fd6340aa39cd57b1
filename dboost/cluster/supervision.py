"""Letting somebody in the client say what rows are for: weights by class, rows that are held out.

scikit-learn's estimators choose their validation rows from all rows, stratified by class. To choose the same ones whatever
the partitions, they see what they would see in one process: the target and the weights of all rows, two numbers a row, which
are fetched for that and nothing else. The features stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.cluster.loading import starts_of
from dboost.cluster.recipe import RowRoles
from dboost.cluster.table import ClusterTable
from dboost.errors import ParameterError
from dboost.schema import Feature
from dboost.training.supervision import HELD_OUT, WATCHED, Supervision
from dboost.training.target import Target
from dboost.training.test_share import held_out_rows, tell


@dataclass(eq=False)
class AllRows:
    """What a supervisor sees of a table on the cluster."""

    features: tuple[Feature, ...]
    weight: np.ndarray | None
    n_rows: int = 0


def all_rows(table: ClusterTable, features: tuple[Feature, ...], target: Target) -> tuple[Any, Target]:
    """All rows as a supervisor wants them, and their target."""
    told: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}
    for answer in table.ask("tell_rows"):
        told |= answer
    parts = [told[i] for i in sorted(told)]
    y = np.concatenate([part for part, _ in parts])
    weights = [weight for _, weight in parts if weight is not None]
    weight = np.concatenate(weights) if len(weights) == len(parts) else None
    return AllRows(features, weight, len(y)), Target(target.loss, y, target.classes, target.classes_dtype)


def refuse_scorers(plan: Supervision) -> None:
    """Scorers of scikit-learn want the rows themselves."""
    for metric in plan.metrics:
        if metric.wants_block:
            raise ParameterError(
                "scoring with a scorer wants all rows in one place, which a cluster has not; use scoring='loss', or eval_metric"
            )


def give_roles(table: ClusterTable, rows: Any, plan: Supervision) -> bool:
    """Tell the workers what rows are for. Returns whether all weights to train with are 1 (or 0)."""
    weight = plan.weight
    chosen = {name: part for name, part in ((HELD_OUT, plan.held_out), (WATCHED, plan.watched)) if part is not None}
    trained = np.ones(rows.n_rows, bool) if weight is None else weight > 0
    if plan.held_out is not None:
        trained[plan.held_out] = False
    roles, n_kept, start = {}, {}, 0
    for i in sorted(table.lengths):
        last = start + table.lengths[i]
        own = {name: part[np.searchsorted(part, start) : np.searchsorted(part, last)] - start for name, part in chosen.items()}
        roles[i] = RowRoles(None if weight is None else weight[start:last], own)
        n_kept[i] = int(trained[start:last].sum())
        start = last
    table.supervise(roles, n_kept)
    return weight is None or bool((weight[trained] == 1.0).all())


def chosen_by(plan: Supervision) -> dict[str, tuple[int, float]]:
    """The sets of rows that a supervisor has chosen to be judged: how many rows, and their largest weight."""
    chosen = {name: rows for name, rows in ((HELD_OUT, plan.held_out), (WATCHED, plan.watched)) if rows is not None}
    weight = plan.weight
    return {name: (len(rows), 1.0 if weight is None else float(weight[rows].max())) for name, rows in chosen.items()}


def hold_out_share(table: ClusterTable, seed: int) -> tuple[int, float]:
    """Hold out a share of the rows as a test set; their number and their largest weight.

    Which rows follows from their numbers, so no row need be seen for that.

    Raises
    ------
    ParameterError
        When there are too few rows to hold some out.
    """
    before = table.n_kept
    starts, n_rows = starts_of(before), sum(before.values())
    held_out = {i: int(held_out_rows(starts[i] + np.arange(n), seed, n_rows).sum()) for i, n in before.items()}
    n_held_out = sum(held_out.values())
    tell(n_held_out, n_rows)
    table.hold_out_share(starts, seed, n_rows, {i: n - held_out[i] for i, n in before.items()})
    return n_held_out, max(table.ask("heaviest_held_out"))
