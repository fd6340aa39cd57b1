"""Leaf values of a model, estimated anew from data that came later; the splits stay.

Trees are taken one after the other, as they were grown. The rows find their leaves by their values, gradients and Hessians
follow from the scores of the trees before, which have their new values already, and each leaf is given what the loss says it is
worth: a Newton step from exact sums, or a quantile of the rows' residuals. These are the very `LeafEstimator` of a fit, with
the parameters that the trees were grown with; so the data that a model was trained on give it its own values back.

The conversation is the same wherever the rows are: in this process, or on a cluster (`dboost.distributed.cluster_refit`). All
answers are exact sums, largest values and the like, so the values do not tell how rows were divided.

With ``decay`` a value is ``decay · old + (1 - decay) · new``; leaves that no row reaches keep what they had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol

import numpy as np

from dboost.data import Table
from dboost.errors import DataError, ParameterError
from dboost.losses import Loss
from dboost.metrics.exact_sum import unit_for
from dboost.model import model_file as storage
from dboost.model.ensemble import Ensemble, Tree
from dboost.params import Parameters, make_parameters
from dboost.session.leaf_refit_rows import Advance, LeafRefitRows
from dboost.session.reference_sample import draw_reference_sample, with_summary
from dboost.session.target import read_target
from dboost.session.warm_start import WarmStart, keywords_for, row_matrices, starting_scores
from dboost.shards.encode import kept_rows
from dboost.shards.statistics import leaf_totals
from dboost.training.initial_score import TargetStats, in_one_part, target_stats
from dboost.training.leaf_values import LeafEstimator
from dboost.training.loop import in_rows
from dboost.trees.tree_task import GradientStats, RowSubset


class RefitRowSource(Protocol):
    """All rows, wherever they are: what `LeafEstimator` asks of an engine, and in which iteration's leaves they are."""

    @property
    def n_rows(self) -> int: ...

    def turn_to(self, iteration: int) -> None: ...

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats: ...

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]: ...


def refit_leaves(
    model: Ensemble, table: Table, *, decay: float, source_name: str | None, own: Loss | None, n_threads: int
) -> Ensemble:
    """The model with the leaf values that the rows of a table suggest.

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
    parameters = parameters_of(model, own)
    target = read_target(table, parameters[0], model)
    kept = kept_rows(table.weight)
    y = target.values if kept is None else target.values[kept]
    weight = table.weight if kept is None or table.weight is None else table.weight[kept]
    raw = starting_scores(model.baseline, before_trees(model), table, kept, n_threads)
    start = target_stats(target.loss, in_one_part(y, weight, raw), continues=True)
    portrait = draw_reference_sample(table, target.values, kept, parameters[-1].random_state)
    rows = _RowsHere(
        LeafRefitRows(model, list(row_matrices(table, kept)), y, weight, raw, start.loss, start.loss_unit, n_threads),
        start.loss,
        len(y),
    )
    return with_summary(revalued(model, parameters, rows, start, decay=decay, source_name=source_name), portrait, n_threads)


def before_trees(model: Ensemble) -> WarmStart:
    """Where scores begin: with the model's baseline."""
    return WarmStart(replace(model, trees=()))


class _RowsHere:
    """The rows in this process."""

    def __init__(self, rows: LeafRefitRows, loss: Loss, n_rows: int) -> None:
        self.n_rows = n_rows
        self._rows, self._terms = rows, loss.terms()
        self._iteration, self._n_advanced = -1, 0

    def turn_to(self, iteration: int) -> None:
        self._iteration = iteration

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        self._terms = self._terms if terms is None else terms
        self._n_advanced += 1
        return self._rows.advance(self._n_advanced - 1, Advance(self._iteration, values, self._terms))

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [self._rows.ask(self._iteration, function, *arguments)]


def revalued(
    model: Ensemble,
    parameters: Sequence[Parameters],
    rows: RefitRowSource,
    start: TargetStats,
    *,
    decay: float,
    source_name: str | None,
) -> Ensemble:
    """The model with the leaf values that rows suggest.

    Parameters
    ----------
    model : Ensemble
    parameters : sequence of Parameters
        Of each iteration, see `parameters_of`.
    rows : Rows
    start : Start
        What is known of the rows' targets.
    decay, source_name
        As in `refit_leaves`.
    """
    k = model.n_outputs
    steps = {id(one): LeafEstimator(rows, start.loss, one, rows.n_rows, start.max_weight) for one in parameters}  # type: ignore[arg-type]
    extremes = steps[id(parameters[0])].advance(np.zeros((k, 1)))
    trees: list[Tree] = []
    for iteration, of_iteration in enumerate(parameters):
        rows.turn_to(iteration)
        values = []
        for output in range(k):
            tree = model.trees[iteration * k + output]
            sums = _sums(rows, extremes, tree.n_leaves, output)
            found = steps[id(of_iteration)].values(sums, RowSubset(None, 0, output))
            trees.append(_with_values(tree, found, sums.reached, decay))
            values.append(trees[-1].value[tree.feature < 0])
        following = parameters[min(iteration + 1, len(parameters) - 1)]
        extremes = steps[id(following)].advance(in_rows(values))
        if not np.isfinite(extremes.max_gradient).all():
            raise DataError(f"refit_leaves diverged in iteration {iteration + 1}: scores are no longer finite")
    note = {"label": source_name, "rows": rows.n_rows, "decay": decay}
    sources = tuple(source | {"refreshed": [*source.get("refreshed", []), note]} for source in model.sources)
    # What was measured was measured with the old values.
    refreshed = replace(model, trees=tuple(trees), sources=sources, metrics={}, best_iteration=None)
    storage.check(refreshed)
    return refreshed


def parameters_of(model: Ensemble, own: Loss | None) -> list[Parameters]:
    """What the trees of each iteration were grown with; records of one source are the same object.

    Raises
    ------
    ParameterError
        When the model has no trees, or leaves whose values do not follow from their rows alone.
    """
    found = [
        parameters
        for source in model.sources
        for parameters in [_parameters_of(model, source, own)]
        for _ in range(source["first_iteration"], source["last_iteration"] + 1)
    ]
    if not model.trees or len(found) != model.n_iterations:
        raise ParameterError("refit_leaves: the model has no trees, or does not tell how they were grown")
    return found


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


def _sums(rows: RefitRowSource, extremes: GradientStats, n_leaves: int, output: int) -> _Sums:
    units = [unit_for(float(largest[output]), rows.n_rows) for largest in (extremes.max_gradient, extremes.max_hessian)]
    totals = reduce(np.add, rows.ask(leaf_totals, output, n_leaves, *units))
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
