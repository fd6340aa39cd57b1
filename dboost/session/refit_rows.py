"""Rows whose leaf values are estimated again: training rows without codes, whose trees are given (see `training.leaf_refit`).

They are assigned to the leaves of an iteration's trees by their raw values. Everything else is as for other training rows: the
new leaf values are added to the scores, gradients and Hessians are recomputed, and statistics are those of a shard. Rows that
are built later, because a worker was lost, replay the leaf values so far.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dboost.data.chunk import plain
from dboost.data.table import kept_rows
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.session.batch_rows import BatchRows
from dboost.session.protocol import BuildSpec, ReplayState
from dboost.session.shard_runners import ShardRunner
from dboost.session.warm_start import row_matrices
from dboost.shards.shard_blocks import ShardBlocks
from dboost.shards.shard_spec import ShardSpec, plan_layout
from dboost.storage.row_store import RowStore


class RefitRunner(ShardRunner):
    """Rows in memory that are assigned to the leaves of given trees.

    Parameters
    ----------
    rows : ShardBlocks
        Without codes.
    matrices : list of float32 or float64 [n, n_features]
        The rows' values in consecutive blocks (see `session.warm_start.row_matrices`).
    batch, spec, past : as of `ShardRunner`
        `spec.given` is the model with the trees.
    n_threads : int
    """

    def __init__(
        self, rows: ShardBlocks, matrices: list[np.ndarray], batch: str, spec: BuildSpec, past: ReplayState, n_threads: int
    ) -> None:
        assert spec.given is not None
        self._flat, self._matrices, self._refit_threads = FlatEnsemble(spec.given), matrices, n_threads
        super().__init__(rows, batch, spec, past)

    def _replay(self, past: ReplayState) -> None:
        for iteration, values in enumerate(past.given_values):
            self.assign_leaves(iteration)
            self.advance_rows(past.terms, values)
        super()._replay(past)
        if past.given_iteration >= 0:
            self.assign_leaves(past.given_iteration)

    def assign_leaves(self, iteration: int) -> None:
        """Assign each row to its leaf in each tree of an iteration."""
        at = 0
        for matrix in self._matrices:
            leaves = self._flat.leaves(matrix, (iteration, iteration + 1), self._refit_threads)
            self.rows.shard.leaf[:, at : at + len(matrix)] = leaves.T
            at += len(matrix)

    def keep_only(self, numbers: Sequence[int]) -> RefitRunner | None:
        kept = self._spec.are_of(self.rows.row_ids(), numbers)
        rows = self.rows.subset(lambda _: kept)
        if rows is self.rows:
            return self
        self._release()
        if rows is None:
            return None
        ends = np.cumsum([len(matrix) for matrix in self._matrices])[:-1]
        matrices = [matrix[some] for matrix, some in zip(self._matrices, np.split(kept, ends), strict=True)]
        found = RefitRunner(rows, matrices, self.batch, self._spec, ReplayState(), self._refit_threads)
        found.applied = self.applied
        return found


def refit_runners(rows: BatchRows, batch: str, spec: BuildSpec, past: ReplayState) -> list[RefitRunner]:
    """Return a runner for the rows of positive weight of a batch, whose start scores have been computed; none without rows."""
    rows.gather()
    kept, weight, y = kept_rows(rows.table.weight), rows.table.weight, rows.y
    if kept is not None and weight is not None:
        y, weight = y[kept], weight[kept]
    if not len(y):
        return []
    assert rows.start_scores is not None
    fields = {"target": spec.in_unit(y), "raw": spec.in_unit(rows.start_scores)}
    if spec.shard.weighted:
        fields["weight"] = np.ones(len(y)) if weight is None else weight
    matrices = list(map(plain, row_matrices(rows.table, kept)))
    store = RowStore(spec.shard.groups(in_memory=True)[1:], [len(y)], arrays=fields)
    blocks = ShardBlocks(store, spec.shard, rows.ids(spec))
    return [RefitRunner(blocks, matrices, batch, spec, past, rows.n_threads)]


def refit_shard_spec(model: Ensemble, *, weighted: bool, constant_hessian: bool, loss_unit: float) -> ShardSpec:
    """Return the properties of shards without codes. constant_hessian : by the loss, see `Loss.constant_hessian`."""
    layout = plan_layout(np.ones(1, np.int64), np.zeros(1, bool))
    return ShardSpec(
        layout=layout,
        bin_layout=layout,
        n_outputs=model.n_outputs,
        weighted=weighted,
        integer_weights=False,
        constant_hessian=constant_hessian and not weighted,
        weights_as_hessian=False,
        max_leaves=max(tree.n_leaves for tree in model.trees),
        n_channels=2,
        loss_unit=loss_unit,
    )
