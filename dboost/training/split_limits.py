"""Which limit keeps every tree of a fit from having a split.

The question arises only if the fit has grown no split at all. The roots of the next trees are then searched again with all
limits relaxed. If there is a split now, one limit after the other is set again, unless it excludes the splits: those that
remain relaxed are the ones to name. Each search takes a pass over the rows, and another one in which leaf values of zero are
added: that changes no score and leaves the calls in the state after an iteration.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost.display import number
from dboost.losses.gradient_stats import GradientStats
from dboost.training.target_stats import LEAST_SPREAD
from dboost.trees.fit_trees import GrownTree
from dboost.trees.tree_task import TreeTask

if TYPE_CHECKING:
    from dboost.training.loop import BoostingLoop

#: Gradients (float32) up to this size count as zero.
LEAST_MAXIMUM = 1e-30

#: Parameters that exclude splits, with the fields of `SplitParams` and their values without a limit.
_LIMITS: dict[str, dict[str, Any]] = {
    "min_samples_leaf": {"min_rows": 1.0},
    "min_hessian": {"min_hessian": 0.0},
    "min_gain": {"threshold": 0.0},
    "leaf_penalty": {"threshold": 0.0},
    "l1_regularization": {"l1": 0.0},
    "min_category_hessian": {"min_category_hessian": 0.0},
}


def no_split_reason(loop: BoostingLoop, gradients: GradientStats) -> str | None:
    """Return a sentence that names the limit; None if a constant fits the targets exactly.

    loop : has grown trees, none of which has a split; gradients : of the next trees.
    """
    parameters, learning = loop.parameters, loop.plan.learning
    if not (gradients.max_gradient > 0.0).any():
        start = loop.warm_start
        continues = start.n_earlier > 0 or (start.model is not None and not start.resumes)
        if continues or loop.plan.request.roles.get("offset") is not None or loop.target_stats.spread <= LEAST_SPREAD:
            return None
    tasks = loop.tasks.of(gradients, loop.n_done + 1)
    trees = _searched(loop, tasks)
    n_rows, hessians = trees[0].n_rows, float(trees[0].leaf_sums[:, 1].sum())
    sentence = f"no tree has a split, so the trees add the same number to all predictions: {{}} {n_rows} training rows"
    if not (gradients.max_gradient > LEAST_MAXIMUM).any():
        small = sentence.format("no gradient is above 1e-30, and smaller ones count as zero, in the")
        return f"{small}; multiply the weights or the targets by the same number"
    if tasks[0].policy.max_leaves == 1:
        named = ["min_samples_leaf"]
        if hessians < 2 * parameters.min_hessian:
            named.append("min_hessian")
    else:
        neutral = {"min_samples_leaf": 1}
        active = [name for name in _LIMITS if getattr(parameters, name) > neutral.get(name, 0)]
        if parameters.monotonic_cst is not None:
            active.append("monotonic_cst")
        if not _have_splits(loop, tasks, active):
            return sentence.format("no feature has different values that go with different targets in the")
        named = active
        for name in active:
            others = [active_name for active_name in named if active_name != name]
            if others and _have_splits(loop, tasks, others):
                named = others
    shown = " and ".join(
        name if name == "monotonic_cst" else f"{name}={getattr(learning, name)}".removesuffix(".0") for name in named
    )
    is_single = len(named) == 1
    sentence = sentence.format(f"{shown} {'allows' if is_single else 'allow'} none in the")
    if "min_hessian" in named:
        sentence += f", whose Hessians add up to {number(hessians / loop.target_stats.mean_weight, 3)}"
    remedy = (
        "relax the constraints"
        if named == ["monotonic_cst"]
        else f"give {'a smaller value' if is_single else 'smaller values'}"
    )
    return f"{sentence}; {remedy}, or more rows"


def _have_splits(loop: BoostingLoop, tasks: list[TreeTask], names: Collection[str]) -> bool:
    """Return whether one of the roots has a split when these parameters are no limit."""
    fields: dict[str, Any] = {}
    for name in names:
        fields |= _LIMITS.get(name, {})
    relaxed = [replace(task, limits=task.limits._replace(**fields)) for task in tasks]
    if "monotonic_cst" in names:
        relaxed = [
            replace(task, direction=None if direction is None else np.zeros_like(direction))
            for task in relaxed
            for direction in [task.direction]
        ]
    return any(grown.n_nodes > 1 for grown in _searched(loop, relaxed))


def _searched(loop: BoostingLoop, tasks: list[TreeTask]) -> list[GrownTree]:
    """Return trees with at most one split, and take them back."""
    stumps = [replace(task, policy=task.policy._replace(max_depth=1)) for task in tasks]
    n_trees = len(loop.trees)
    trees = list(loop.backend.grow(stumps))
    loop.leaf_estimator.advance(np.zeros((loop.loss.n_outputs, max(grown.n_leaves for grown in trees))))
    loop.trees.drop(n_trees)
    return trees
