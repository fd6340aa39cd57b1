"""Leaf refit: new leaf values for the trees of a model, estimated from other data; the splits are unchanged.

Trees are processed in the order in which they were grown. The rows are assigned to leaves by their feature values. Gradients
and Hessians follow from the scores of the previous trees with their new leaf values. Each leaf value is a Newton step from
exact sums, or a quantile of the rows' residuals, by the same `LeafEstimator` and with the same parameters as in the fit. So a
refit on the training data reproduces the model.

The rows are in this process or on a cluster. `Backend` advance them as in a fit, but assigns them to the leaves of the
model's trees instead of growing trees (`session.refit_rows`). Results of sessions are merged by exact sums and maxima, so leaf
values do not depend on the partitions.

With ``decay`` a leaf value is ``decay · old + (1 - decay) · new``; leaves without rows keep the old value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dboost.data.columns.binning import Binning
from dboost.errors import DataError, ParameterError
from dboost.exact import unit_for
from dboost.losses import Loss
from dboost.losses.gradient_stats import GradientStats
from dboost.model import model_file
from dboost.model.ensemble import Ensemble, Tree, rates_of, without_search
from dboost.params import Parameters, make_parameters
from dboost.rows.row_sample import RowSubset
from dboost.rows.statistics import leaf_totals
from dboost.session.backend import Backend
from dboost.session.fit_records import BuildSpec
from dboost.session.reference_sample import with_summary
from dboost.session.refit_rows import refit_shard_spec
from dboost.session.table_rows import TableRows
from dboost.session.target import Target
from dboost.session.warm_start import WarmStart, keywords_for
from dboost.training.binned_data import DatasetDescription
from dboost.training.fit import describe, interruptible_reading, learn_target, load
from dboost.training.leaf_values import LeafEstimator
from dboost.training.loop import in_rows
from dboost.training.request import FitRequest
from dboost.training.target_stats import TargetStats, in_units_of, of_roles, target_stats
from dboost.trees.fit_trees import TreesSoFar


def refit_leaves(
    model: Ensemble,
    backend: Backend,
    *,
    decay: float,
    source_name: str | None,
    custom_loss: Loss | Sequence[Loss] | None,
    n_threads: int,
    binned: DatasetDescription | None = None,
) -> Ensemble:
    """Return the model with leaf values estimated from the rows of a table.

    Parameters
    ----------
    model : Ensemble
    backend : Backend
        Closed at the end.
    decay : float, 0 <= … < 1
    source_name : str or None
        Label of the data in the model's sources.
    custom_loss : Loss or None
        The loss, if it is a custom one.
    n_threads : int
    binned : DatasetDescription, optional
        If the rows are binned already.

    Raises
    ------
    ParameterError
        When the model has no trees, or its leaf values depend on more than the rows of the leaf.
    DataError
        When the data do not match the model, or scores diverge.
    """
    if model.averages:
        raise ParameterError(
            "leaf values of a forest are means of the rows that its trees have drawn: fit a forest to the new rows, or "
            "continue this one with start_from"
        )
    parameters = parameters_of(model, custom_loss)
    start = WarmStart(replace(model, trees=()), is_new_source=True)  # raw scores start at the model's baseline
    loading = replace(parameters[0], early_stopping_rounds=None, arcbites=None)
    request = FitRequest(loading, n_threads, warm_start=start, binned=binned)
    try:
        with interruptible_reading():
            features = load(request, backend)
            target = learn_target(request, start, features, backend)
            if target.loss.targets.groups:
                raise ParameterError(
                    f"loss={target.loss.name!r} depends on groups of rows: its leaf values cannot be estimated again"
                )
            backend.change(TableRows.compute_start_scores, start)
            description = describe(request, parameters[-1], target, {}, backend)
            stats = target_stats(target.loss, partial(of_roles, backend), continues=True, sizes=description.sizes)
            spec = _spec_of(model, target, start, stats, weighted="sample_weight" in backend.roles)
            backend.build(spec, {}, TreesSoFar(spec.shard_spec.trees_per_iteration))
        model_refit = with_new_leaf_values(model, parameters, backend, stats, decay=decay, source_name=source_name)
    finally:
        backend.close()
    return with_summary(model_refit, description.reference, n_threads)


def _spec_of(model: Ensemble, target: Target, start: WarmStart, stats: TargetStats, *, weighted: bool) -> BuildSpec:
    """Return the specification of rows without codes."""
    loss = stats.loss.in_unit(stats.unit)
    shard_spec = refit_shard_spec(model, loss, weighted=weighted, loss_unit=stats.loss_unit)
    return BuildSpec(
        shard_spec=shard_spec,
        binning=Binning((), ()),
        target=target,
        baseline=model.baseline,
        warm_start=start,
        magnitudes=stats.magnitudes,
        unit=stats.unit,
        refit_model=model,
    )


def with_new_leaf_values(
    model: Ensemble,
    parameters: Sequence[Parameters],
    backend: Backend,
    start: TargetStats,
    *,
    decay: float,
    source_name: str | None,
) -> Ensemble:
    """Return the model with leaf values estimated from the rows of a backend.

    Parameters
    ----------
    model : Ensemble
    parameters : sequence of Parameters
        Of each iteration, see `parameters_of`.
    backend : Backend
    start : TargetStats
    decay, source_name
        As in `refit_leaves`.
    """
    n_outputs, k = model.n_outputs, model.trees_per_iteration
    loss, limits = start.loss.in_unit(start.unit), in_units_of(parameters[0], start)
    estimator = LeafEstimator(backend, loss, limits, backend.n_rows, start.max_weight, spreads=start.spreads)
    stats = estimator.advance(np.zeros((n_outputs, 1)))
    trees: list[Tree] = []
    for iteration, of_iteration in enumerate(parameters):
        estimator.use(in_units_of(of_iteration, start))
        backend.assign_leaves(iteration)
        values: list[np.ndarray] = []
        for t in range(iteration * k, (iteration + 1) * k):
            tree, outputs = model.trees[t], model.outputs_of(t)
            of_outputs = []
            for output in range(outputs.start, outputs.stop):
                leaf_sums, reached = _leaf_sums(backend, stats, tree.n_leaves, output)
                of_outputs.append(estimator.values(leaf_sums, RowSubset(None, 0, output)) * start.unit)
            trees.append(_with_values(tree, np.stack(of_outputs, axis=1), reached, decay))
            values += list(trees[-1].value[tree.feature < 0].reshape(-1, model.width).T / start.unit)
        stats = estimator.advance(in_rows(values))
        if not np.isfinite(stats.max_gradient).all():
            raise DataError(f"refit_leaves diverged in iteration {iteration + 1}: scores are no longer finite")
    note = {"label": source_name, "rows": backend.n_rows, "decay": decay}
    sources = tuple(without_search(source) | {"refreshed": [*source.get("refreshed", []), note]} for source in model.sources)
    # Metrics and best iteration were measured with the old leaf values.
    refreshed = replace(model, trees=tuple(trees), sources=sources, metrics={}, best_iteration=None, calibration=None)
    model_file.check(refreshed)
    return refreshed


def parameters_of(model: Ensemble, custom_loss: Loss | Sequence[Loss] | None) -> list[Parameters]:
    """Return the parameters of each iteration, with its learning rate; those of a source with one rate share one object.

    Raises
    ------
    ParameterError
        When the model has no trees, or its leaf values depend on more than the rows of the leaf.
    """
    of_iterations = []
    for source in model.sources:
        parameters = _parameters_of(model, source, custom_loss)
        rates = rates_of(source)
        by_rate = {rate: parameters if rate is None else replace(parameters, learning_rate=rate) for rate in set(rates)}
        of_iterations += [by_rate[rate] for rate in rates]
    if not model.trees or len(of_iterations) != model.n_iterations:
        raise ParameterError("refit_leaves: the model has no trees, or does not tell how they were grown")
    return of_iterations


def _parameters_of(model: Ensemble, source: dict[str, Any], custom_loss: Loss | Sequence[Loss] | None) -> Parameters:
    """Return the parameters of a source's trees, with damped steps."""
    stored = dict(source["parameters"]) | source.get("steps", {}) | {"loss": "auto"}
    parameters = make_parameters(keywords_for(model, stored, custom_loss))
    for name, default in (("monotonic_cst", None), ("step", "leaf")):
        value = getattr(parameters, name)
        if value != default:
            raise ParameterError(
                f"refit_leaves: leaf values of a model with {name}={value!r} do not follow from their rows alone"
            )
    # With either criterion, leaf values are Newton steps; of all rows of a leaf, none of which is trimmed.
    return replace(parameters, criterion="newton", influence_trimming=None)


def _leaf_sums(backend: Backend, stats: GradientStats, n_leaves: int, output: int) -> tuple[np.ndarray, np.ndarray]:
    """Return exact sums of gradients and Hessians by leaf (float64[n_leaves, 2]), and whether the leaf has rows."""
    units = [unit_for(float(largest[output]), backend.n_rows) for largest in (stats.max_gradient, stats.max_hessian)]
    totals = leaf_totals.merged(backend.statistics(leaf_totals, output, n_leaves, *units))
    return totals[:, :2] / units, totals[:, 2] > 0


def _with_values(tree: Tree, leaf_values: np.ndarray, reached: np.ndarray, decay: float) -> Tree:
    """Return the tree with new leaf values; a split's value is the mean of its children's, weighted by training rows.

    leaf_values : float64[n_leaves, width].
    """
    value = tree.value.reshape(tree.n_nodes, -1).copy()
    is_leaf = tree.feature < 0
    old = value[is_leaf]
    new = decay * old + (1.0 - decay) * leaf_values if decay else leaf_values
    value[is_leaf] = np.where(reached[:, None], new, old)
    for node in np.flatnonzero(~is_leaf)[::-1]:  # children have higher numbers
        both = [tree.left[node], tree.right[node]]
        counts = tree.count[both].astype(np.float64)
        weighted = (value[both] * counts[:, None]).sum(axis=0)
        value[node] = weighted / counts.sum() if counts.sum() > 0 else value[both].mean(axis=0)
    return replace(tree, value=value.reshape(tree.value.shape))
