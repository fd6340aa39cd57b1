"""Leaf values of a model, estimated anew from data that came later; the splits stay.

Trees are taken one after the other, as they were grown. The rows find their leaves by their values, gradients and Hessians
follow from the scores of the trees before, which have their new values already, and each leaf is given what the loss says it is
worth: a Newton step from exact sums, or a quantile of the rows' residuals. These are the very `LeafEstimator` of a fit, with
the parameters that the trees were grown with; so the data that a model was trained on give it its own values back.

The rows are in this process or on a cluster (`session.transport.SessionTable`). All
answers are exact sums, largest values and the like, so the values do not tell how rows were divided.

With ``decay`` a value is ``decay · old + (1 - decay) · new``; leaves that no row reaches keep what they had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from dboost.errors import DataError, DBoostError, ParameterError
from dboost.losses import Loss
from dboost.metrics.exact_sum import unit_for
from dboost.model import model_file as storage
from dboost.model.ensemble import Ensemble, Tree
from dboost.params import Parameters, make_parameters
from dboost.session.protocol import RefitOrder, RefitStep, Session
from dboost.session.reference_sample import with_summary
from dboost.session.transport import SessionTable
from dboost.session.warm_start import WarmStart, check_continues, keywords_for
from dboost.shards.statistics import leaf_totals
from dboost.training.fit import interruptible_reading
from dboost.training.initial_score import TargetStats, target_stats
from dboost.training.leaf_values import LeafEstimator
from dboost.training.loop import in_rows
from dboost.training.plan import FitRequest
from dboost.training.training_rows import SessionRows
from dboost.trees.tree_task import GradientStats, RowSubset


def refit_leaves(
    model: Ensemble, table: SessionTable, *, decay: float, source_name: str | None, own: Loss | None, n_threads: int
) -> Ensemble:
    """The model with the leaf values that the rows of a table suggest.

    Parameters
    ----------
    model : Ensemble
    table : SessionTable
        Closed in the end.
    decay : float, 0 <= … < 1
    source_name : str or None
    own : Loss or None
        The loss, where it is a custom one.
    n_threads : int

    Raises
    ------
    ParameterError
        When the model has no trees, or leaves whose values do not follow from their rows alone.
    DataError
        When the data do not fit the model, or scores diverge.
    """
    parameters = parameters_of(model, own)
    start = WarmStart(replace(model, trees=()), is_new_source=True)  # scores begin with the model's baseline
    loading = replace(parameters[0], early_stopping_rounds=None, arcbites=None)
    rows = SessionRows(table, FitRequest(loading, n_threads, warm_start=start))
    try:
        with interruptible_reading():
            features = rows.load()
            target = rows.learn_target()
            check_continues(model, features, target)
            rows.compute_start_scores(start)
            stats = target_stats(target.loss, rows.map_rows, continues=True)
            description = rows.describe(parameters[-1].random_state)
            refit = _RefitRows(table, RefitOrder(model, stats.loss, stats.loss_unit), description.n_rows)
        found = revalued(model, parameters, refit, stats, decay=decay, source_name=source_name)
    finally:
        rows.close()
    return with_summary(found, description.reference, n_threads)


class _RefitRows:
    """All rows, as `LeafEstimator` asks an engine, and the iteration in whose leaves they are.

    A call names its iteration and the number of steps before it, so repeating it does no harm; rows that are read again because
    a worker was lost replay all steps so far.
    """

    def __init__(self, table: SessionTable, order: RefitOrder, n_rows: int) -> None:
        self.n_rows = n_rows
        self._table, self._terms = table, order.loss.terms()
        self._iteration = -1
        self._past: list[RefitStep] = []
        table.apply(Session.refit_begin, lambda _: (order, self._past))

    def turn_to(self, iteration: int) -> None:
        """Find the leaf of each row in each tree of an iteration, when it is asked for."""
        self._iteration = iteration

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        self._terms = self._terms if terms is None else terms
        step = RefitStep(self._iteration, values, self._terms)
        found = reduce(GradientStats.merge, self._checked(self._table.ask(Session.refit_advance, len(self._past), step)))
        self._past.append(step)
        self._table.note_progress(f"advance {len(self._past)} of the leaf values")
        return found

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return self._checked(self._table.ask(Session.refit_ask, self._iteration, function, arguments))

    def _checked(self, found: Sequence[tuple[int, Any]]) -> list[Any]:
        """The results of sessions that have rows; all rows must be there."""
        n_rows = sum(n for n, _ in found)
        if n_rows != self.n_rows:
            raise DBoostError(f"workers hold {n_rows} of the {self.n_rows} rows of the data to estimate leaf values from")
        return [result for n, result in found if n]


def revalued(
    model: Ensemble,
    parameters: Sequence[Parameters],
    rows: _RefitRows,
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


def _sums(rows: _RefitRows, extremes: GradientStats, n_leaves: int, output: int) -> _Sums:
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
