"""Leaf values of a model, estimated anew from data that came later; the splits stay.

Trees are taken one after the other, as they were grown. The rows find their leaves by their values, gradients and Hessians
follow from the scores of the trees before, which have their new values already, and each leaf is given what the loss says it
is worth: a Newton step from exact sums, or a quantile of the rows' residuals. These are the very `Steps` of a fit, with the
parameters that the trees were grown with; so the data that a model was trained on give it its own values back.

With ``decay`` a value is ``decay · old + (1 - decay) · new``; leaves that no row reaches keep what they had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from dboost.errors import DataError, ParameterError
from dboost.growth.task import Extremes, Part
from dboost.losses import Loss
from dboost.model.ensemble import Ensemble
from dboost.model.flat import FlatEnsemble
from dboost.model.tree import Tree
from dboost.params import Parameters, make_parameters
from dboost.shard.advance import Scratch, advance_rows
from dboost.shard.layout import plan_layout
from dboost.shard.line import leaf_totals
from dboost.shard.loading import kept_rows
from dboost.shard.shard import Shard, empty_codes
from dboost.sources import Table
from dboost.statistics.exact import unit_for
from dboost.training.origin import Origin, keywords_for
from dboost.training.replay import blocks, starting_scores
from dboost.training.start import in_one_part, start_of
from dboost.training.steps import Steps
from dboost.training.target import read_target
from dboost.training.trainer import in_rows


def refresh(
    model: Ensemble, table: Table, *, decay: float, source_name: str | None, own: Loss | None, n_threads: int
) -> Ensemble:
    """The model with the leaf values that these rows suggest.

    Parameters
    ----------
    model : Ensemble
    table : Table
        With the model's features and a target.
    decay : float, 0 <= … < 1
    source_name : str or None
    own : Loss or None
        The loss, where it is one of the user's.
    n_threads : int

    Raises
    ------
    ParameterError
        When the model has no trees, or leaves whose values do not follow from their rows alone.
    DataError
        When the data do not fit the model, or scores diverge.
    """
    made = [_parameters_of(model, source, own) for source in model.sources]
    of_iteration = [
        parameters
        for parameters, source in zip(made, model.sources, strict=True)
        for _ in range(source["first_iteration"], source["last_iteration"] + 1)
    ]
    if not model.trees or len(of_iteration) != model.n_iterations:
        raise ParameterError("refit_leaves: the model has no trees, or does not tell how they were grown")
    target = read_target(table, of_iteration[0], model)
    kept = kept_rows(table.weight)
    y = target.values if kept is None else target.values[kept]
    weight = table.weight if kept is None or table.weight is None else table.weight[kept]
    raw = starting_scores(model.baseline, Origin(replace(model, trees=())), table, kept, n_threads)
    start = start_of(target.loss, in_one_part(y, weight, raw), continues=True)
    rows = _Rows(start.loss, y, weight, raw, start.loss_unit, max(tree.n_leaves for tree in model.trees))
    steps = {id(one): Steps(rows, start.loss, one, len(y), start.heaviest) for one in made}  # type: ignore[arg-type]
    matrices, flat, k = list(blocks(table, kept)), FlatEnsemble(model), model.n_outputs
    extremes = steps[id(of_iteration[0])].advance(np.zeros((k, 1)))
    trees: list[Tree] = []
    for iteration, parameters in enumerate(of_iteration):
        leaves = np.concatenate([flat.leaves(matrix, (iteration, iteration + 1), n_threads) for matrix in matrices])
        values = []
        for output in range(k):
            tree = model.trees[iteration * k + output]
            rows.shard.for_tree(output)[2][:] = leaves[:, output]
            sums = rows.sums(extremes, tree.n_leaves, output)
            found = steps[id(parameters)].values(sums, Part(None, 0, output))
            trees.append(_with_values(tree, found, sums.reached, decay))
            values.append(trees[-1].value[tree.feature < 0])
        following = of_iteration[min(iteration + 1, len(of_iteration) - 1)]
        extremes = steps[id(following)].advance(in_rows(values))
        if not np.isfinite(extremes.max_gradient).all():
            raise DataError(f"refit_leaves diverged in iteration {iteration + 1}: scores are no longer finite")
    note = {"label": source_name, "rows": len(y), "decay": decay}
    sources = tuple(source | {"refreshed": [*source.get("refreshed", []), note]} for source in model.sources)
    # What was measured was measured with the old values.
    return replace(model, trees=tuple(trees), sources=sources, metrics={}, best_iteration=None)


def _parameters_of(model: Ensemble, source: dict[str, Any], own: Loss | None) -> Parameters:
    """What the trees of a source were grown with, damping included."""
    stored = dict(source["parameters"]) | source.get("steps", {}) | {"loss": "auto"}
    parameters = make_parameters(keywords_for(model, stored, own))
    for name, plain in (("monotonic_cst", None), ("step", "leaf")):
        value = getattr(parameters, name)
        if value != plain:
            raise ParameterError(
                f"refit_leaves: leaf values of a model with {name}={value!r} do not follow from their rows alone"
            )
    # Whatever trees were grown by, the values of leaves are Newton steps.
    return replace(parameters, criterion="newton")


@dataclass(frozen=True, eq=False)
class _Sums:
    """Of a tree's leaves: exact sums of gradients and Hessians (float64[n_leaves, 2]), and whether any row is there."""

    n_leaves: int
    leaf_sums: np.ndarray
    reached: np.ndarray


class _Rows:
    """The rows, as `Steps` wants to ask them: one shard without features."""

    def __init__(
        self, loss: Loss, y: np.ndarray, weight: np.ndarray | None, raw: np.ndarray, coarse: float, max_leaves: int
    ) -> None:
        layout = plan_layout(np.ones(1, np.int64), np.zeros(1, bool))
        constant = loss.constant_hessian and weight is None
        codes = empty_codes(layout, len(y))
        self.shard = Shard(codes, layout, y, weight, raw, constant_hessian=constant, max_leaves=max_leaves)
        self.n_rows = len(y)
        self._terms, self._coarse, self._scratch = loss.terms(), coarse, Scratch()

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> Extremes:
        self._terms = self._terms if terms is None else terms
        return advance_rows(self.shard, self._terms, values, self._coarse, self._scratch, 0, self.n_rows)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [function(self.shard, 0, self.n_rows, *arguments)]

    def sums(self, extremes: Extremes, n_leaves: int, output: int) -> _Sums:
        units = [unit_for(float(largest[output]), self.n_rows) for largest in (extremes.max_gradient, extremes.max_hessian)]
        totals = reduce(np.add, self.ask(leaf_totals, output, n_leaves, *units))
        return _Sums(n_leaves, totals[:, :2] / units, totals[:, 2] > 0)


def _with_values(tree: Tree, found: np.ndarray, reached: np.ndarray, decay: float) -> Tree:
    """The tree with other values in its leaves; splits hold the mean of theirs, by the rows that they were grown from."""
    value = tree.value.copy()
    is_leaf = tree.feature < 0
    old = value[is_leaf]
    value[is_leaf] = np.where(reached, decay * old + (1.0 - decay) * found if decay else found, old)
    for node in np.flatnonzero(~is_leaf)[::-1]:  # children have higher numbers
        both = [tree.left[node], tree.right[node]]
        counts = tree.count[both].astype(np.float64)
        value[node] = value[both] @ counts / counts.sum() if counts.sum() > 0 else value[both].mean()
    return replace(tree, value=value)
