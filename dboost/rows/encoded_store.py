"""Encoded rows in a store, before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dboost.rows.block_file import Field
from dboost.rows.row_store import FieldGroup, RowStore
from dboost.rows.shard import RowIds, RowSegments, Shard, compacted, spec_in_memory
from dboost.rows.shard_spec import ShardSpec
from dboost.rows.shared_codes import SharedCodes


class EncodedStore(NamedTuple):
    """Encoded rows in a store, before training."""

    store: RowStore
    spec: ShardSpec
    ids: RowIds
    segments: RowSegments | None = None  # of the rows that are trained on; None for all
    shared: SharedCodes | None = None  # the codes, if other fits use them, too


def rows_in_memory(
    fields: Mapping[str, np.ndarray],
    spec: ShardSpec,
    ids: RowIds | None = None,
    segments: RowSegments | None = None,
    shared: SharedCodes | None = None,
    spread: Callable[..., Any] | None = None,
) -> EncodedStore:
    """Return rows in memory, in a store that takes over their arrays.

    fields : by name, see `ShardSpec.start_groups`, and perhaps tiles; scattered rows have "row_ids", too. spread : runs work in
    ranges of rows, default all at once.
    """
    spec = spec_in_memory(fields, spec)
    if spec.compacts_target:
        target = compacted(fields["target"])
        fields, spec = {**fields, "target": target}, replace(spec, target_type=target.dtype.str)
    groups = spec.field_groups(in_memory=True)
    if "row_ids" in fields:
        groups.append(FieldGroup("ids", [Field("row_ids", "<i8")], sealed=True))
    n_rows = fields["raw"].shape[1]
    store = RowStore(groups, [n_rows], arrays=fields)
    ids = RowIds(np.array([[0, n_rows]])) if ids is None else ids
    shard = Shard(store.load(), spec, ids, segments=segments)
    for name, values in spec.constant_state(fields.get("weight"), fields["raw"].shape).items():
        shard.fields[name][...] = values
    if spec.has_tree_bins:
        for feature in np.flatnonzero(shard.is_identity_bin_map).tolist():
            shard.bins.of(feature)[:] = shard.codes.of(feature)
    if "tiles" not in fields:
        if spread is None:
            shard.fill_tiles(0, n_rows)
        else:
            spread(shard.fill_tiles, n_rows)
    return EncodedStore(store, spec, ids, segments, shared)
