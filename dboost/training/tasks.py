"""The tasks of the trees of an iteration: scales of gradients, limits of splits, samples, constraints and bins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dboost.exact import unit_for
from dboost.losses.gradient_stats import GradientStats
from dboost.rows.bin_proposal import BinMerge
from dboost.rows.row_sample import FEATURES, Sample, derive_seed
from dboost.rows.statistics import fine_bin_hessians
from dboost.session.backend import Backend
from dboost.training.leaf_values import LeafEstimator
from dboost.training.plan import FitPlan
from dboost.training.target_stats import in_units_of
from dboost.trees.tree_task import TreeTask, follow_sums, split_params_of


class Tasks:
    """Makes the tasks of a fit.

    Parameters
    ----------
    plan : FitPlan
    backend : Backend
    leaf_values : LeafEstimator
        Chooses the rows whose influence is trimmed.
    """

    def __init__(self, plan: FitPlan, backend: Backend, leaf_values: LeafEstimator) -> None:
        self._plan, self._backend, self._leaf_values = plan, backend, leaf_values
        self._leaves = plan.target.loss.in_unit(plan.stats.unit).leaves
        self._parameters = in_units_of(plan.learning, plan.stats)
        self._allowed = np.ones(len(plan.binning.features), np.uint8)

    def of(self, stats: GradientStats, iteration: int) -> list[TreeTask]:
        """Return the tasks of the trees of an iteration. stats : of the gradients that they are grown from."""
        tasks = [self._task(stats, iteration, output) for output in range(self._plan.shard_spec.trees_per_iteration)]
        return tasks if self._parameters.split_proposal == "global" else [self._with_bins(task) for task in tasks]

    def _with_bins(self, task: TreeTask) -> TreeTask:
        """Propose bins for the tree, or request them for each node, depending on `split_proposal`."""
        proposal = self._parameters.split_proposal
        if proposal == "node":
            return replace(task, node_bins=self._parameters.max_bins)
        fine_layout, tree_layout = self._plan.shard_spec.layout, self._plan.shard_spec.tree_layout
        if proposal != "tree" or (fine_layout.n_bins == tree_layout.n_bins).all():
            return task
        masses = self._backend.statistics(fine_bin_hessians, task.row_subset, float(task.scales[1]))
        return replace(task, bin_merge=BinMerge.propose(fine_bin_hessians.merged(masses), fine_layout, tree_layout))

    def _task(self, stats: GradientStats, iteration: int, output: int) -> TreeTask:
        plan, parameters, leaves = self._plan, self._parameters, self._leaves[output]
        packing, constant_hessian, constraints = plan.precision.packing, plan.shard_spec.constant_hessian, plan.constraints
        max_gradient, max_hessian = float(stats.max_gradient[output]), float(stats.max_hessian[output])
        if stats.max_split is not None:
            max_gradient, max_hessian = stats.max_split.tolist()
        if parameters.criterion == "gradient":
            max_hessian = plan.stats.max_weight  # trees are grown with weights in place of Hessians
        n = self._backend.n_rows if plan.max_weight is None else int(plan.stats.total_weight)
        scale_g, exact_g, scale_h, exact_h = _scale(packing.max_gradient, max_gradient), unit_for(max_gradient, n), 1.0, 1.0
        if not constant_hessian:
            scale_h, exact_h = _scale(packing.max_hessian, max_hessian), unit_for(max_hessian, n)
        scales = np.array([scale_g, scale_h, exact_g, exact_h])
        direction = plan.direction if leaves.is_monotonic else None
        max_step = parameters.max_delta_step if stats.max_split is None and follow_sums(parameters, leaves) else None
        split_params = split_params_of(
            parameters,
            plan.precision.count_channel,
            scales,
            None if max_step is None else max_step / leaves.step_factor,
            is_bounded=direction is not None,
            noise=0.0 if stats.noise is None else stats.noise[output].ratio,
        )
        sample = Sample.of(parameters.subsample, parameters.random_state, iteration)
        if constraints is not None:
            constraints = constraints._replace(
                seed=np.array([derive_seed(parameters.random_state, FEATURES, iteration, output)], np.uint64)
            )
        least_influence = self._leaf_values.least_influence(output)
        return TreeTask(
            split_params,
            packing,
            plan.policy,
            scales,
            self._allowed,
            output,
            sample,
            least_influence,
            constraints,
            direction,
        )


def _scale(largest: int, maximum: float) -> float:
    """Return the factor that maps `maximum` to the largest quantized value, rounded to float32."""
    return float(np.float32(largest / maximum)) if maximum > 1e-30 else 1.0
