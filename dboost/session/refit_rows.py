"""Rows whose leaf values are estimated again: training rows without codes, whose trees are given (see `training.leaf_refit`).

They have their raw values as a field, by which they are assigned to the leaves of an iteration's trees. Everything else is as
for other training rows: the new leaf values are added to the scores, gradients and Hessians are recomputed, and statistics are
those of a shard. Rows that are built later, because a worker was lost, replay the leaf values so far.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dboost.data.columns.chunk import plain
from dboost.data.columns.roles import kept_rows
from dboost.data.tables.table import Table
from dboost.errors import DataError
from dboost.losses import BaseLoss
from dboost.model.ensemble import Ensemble
from dboost.rows.block_file import Field
from dboost.rows.row_store import FieldGroup, RowStore
from dboost.rows.shard import RowIds
from dboost.rows.shard_spec import ShardSpec, plan_layout
from dboost.session.encoded_rows import EncodedStore
from dboost.session.fit_records import BuildSpec
from dboost.session.table_rows import TableRows
from dboost.session.warm_start import chunk_matrices


def rows_with_values(rows: TableRows, spec: BuildSpec) -> Iterator[EncodedStore]:
    """Yield the rows of positive weight of each partition of a batch, whose start scores have been computed."""
    table = rows.table
    for k, number in enumerate(table.partition_ids):
        n = table.n_kept(k)
        if not n:
            continue
        roles, matrices = rows.range_of(k), list(chunk_matrices(table, k, kept_rows(table.roles(k).weight)))
        values = plain(matrices[0] if len(matrices) == 1 else np.concatenate(matrices))
        _check_finite(table, k, values)
        fields = {
            "target": spec.in_unit(roles.numeric_target),
            "raw": np.ascontiguousarray(spec.in_unit(rows.start_scores_of(k))),
            "values": values,
        }
        if spec.shard_spec.weighted:
            fields["weight"] = np.ones(n) if roles.weight is None else roles.weight
        group = FieldGroup("values", [Field("values", values.dtype.str, (), values.shape[1:])], sealed=True)
        store = RowStore([group, *spec.shard_spec.field_groups(in_memory=True)[1:]], [n], arrays=fields)
        yield EncodedStore(store, spec.shard_spec, RowIds(np.array([[rows.id_ranges.start(number), n]], np.int64)))


def _check_finite(table: Table, k: int, values: np.ndarray) -> None:
    """Raise a DataError, as a fit does, if a row of positive weight of chunk k has an infinite value."""
    is_infinite = np.isinf(values)
    if is_infinite.any():
        kept = kept_rows(table.roles(k).weight)
        row, feature = np.argwhere(is_infinite)[0].tolist()
        where = table.place(sum(table.lengths[:k]) + (row if kept is None else int(kept[row])))
        raise DataError(f"column {table.features[feature].name!r} holds an infinite value ({where})").at(where)


def refit_shard_spec(model: Ensemble, loss: BaseLoss, *, weighted: bool, loss_unit: float) -> ShardSpec:
    """Return the properties of shards without codes."""
    layout = plan_layout(np.ones(1, np.int64), np.zeros(1, bool))
    return ShardSpec(
        layout,
        layout,
        max(tree.n_leaves for tree in model.trees),
        n_outputs=model.n_outputs,
        width=model.width,
        n_targets=len(loss.targets.columns),
        columns=loss.targets.of_outputs,
        weighted=weighted,
        constant_hessian=loss.constant_hessian and not weighted,
        loss_unit=loss_unit,
    )
