"""The rows of a session during the re-estimation of leaf values (see `training.leaf_refit`).

They are one shard without features. It assigns the rows to the leaves of an iteration's trees, by their raw values, and
computes the statistics that `LeafEstimator` needs, as from any shard. When the new leaf values are known, they are added to the
scores, and gradients and Hessians are recomputed. The state of the rows is determined by the list of these steps. Rows that are
loaded later, because a worker was lost, replay the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dboost.losses import Loss
from dboost.losses.gradient_pass import new_pass_scratch
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.session.protocol import RefitStep
from dboost.shards.shard import Shard, advance_rows
from dboost.shards.shard_spec import ShardSpec, plan_layout
from dboost.shards.statistics import Statistic
from dboost.storage.row_store import RowStore
from dboost.trees.tree_task import GradientStats


class LeafRefitRows:
    """Rows whose leaf values are re-estimated.

    Parameters
    ----------
    model : Ensemble
    matrices : sequence of float32 or float64 [n, n_features]
        The rows' values in consecutive blocks (see `session.warm_start.row_matrices`).
    y : float64[n_rows]
    weight : float64[n_rows] or None
    raw : float64[n_outputs, n_rows]
        Scores before the first tree; updated in place.
    loss : Loss
    loss_unit : float
        Unit of exact loss sums.
    n_threads : int
    """

    def __init__(
        self,
        model: Ensemble,
        matrices: Sequence[np.ndarray],
        y: np.ndarray,
        weight: np.ndarray | None,
        raw: np.ndarray,
        loss: Loss,
        loss_unit: float,
        n_threads: int,
    ) -> None:
        weights = {} if weight is None else {"weight": weight}
        layout = plan_layout(np.ones(1, np.int64), np.zeros(1, bool))
        spec = ShardSpec(
            layout=layout,
            bin_layout=layout,
            n_outputs=model.n_outputs,
            weighted=weight is not None,
            integer_weights=False,
            constant_hessian=loss.constant_hessian and weight is None,
            weights_as_hessian=False,
            max_leaves=max(tree.n_leaves for tree in model.trees),
            n_channels=2,
            loss_unit=loss_unit,
        )
        store = RowStore(spec.groups(in_memory=True)[1:], [len(y)], arrays={"target": y, "raw": raw} | weights)
        self._shard = Shard(store.load(), spec)
        self._flat, self._matrices, self._n_threads = FlatEnsemble(model), matrices, n_threads
        self._loss_unit, self._scratch = loss_unit, new_pass_scratch()
        self._n_outputs, self._iteration = model.n_outputs, -1
        self._n_advanced = 0
        self._stats: GradientStats | None = None

    @property
    def n_rows(self) -> int:
        return len(self._shard.target)

    def _assign_leaves(self, iteration: int) -> None:
        """Assign each row to its leaf in each tree of an iteration; do nothing for iteration -1."""
        if iteration == self._iteration or iteration < 0:
            return
        at, which = 0, (iteration, iteration + 1)
        for matrix in self._matrices:
            leaves = self._flat.leaves(matrix, which, self._n_threads)
            for output in range(self._n_outputs):
                self._shard.output_arrays(output)[2][at : at + len(matrix)] = leaves[:, output]
            at += len(matrix)
        self._iteration = iteration

    def take_step(self, number: int, step: RefitStep) -> GradientStats:
        """Apply step `number` unless it has been applied; return the gradient statistics after it."""
        if number == self._n_advanced:
            self._assign_leaves(step.iteration)
            n = len(self._shard.target)
            self._stats = advance_rows(self._shard, step.terms, step.values, self._loss_unit, self._scratch, 0, n)
            self._n_advanced += 1
        assert number == self._n_advanced - 1 and self._stats is not None
        return self._stats

    def map_ranges(self, iteration: int, statistic: Statistic, *arguments: Any) -> Any:
        """Return a statistic of the rows, assigned to the leaves of an iteration's trees."""
        self._assign_leaves(iteration)
        return statistic.compute(self._shard, 0, len(self._shard.target), *arguments)
