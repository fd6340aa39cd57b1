"""Encoded rows of a session, before it trains on them or hands them over to another session of its host.

`EncodedRows` are parts of them, and an `EncodedStore` has all: what training begins with. `rows_in_memory` makes the fields of
training rows from those that were encoded.

Arrays are copied as little as possible: they are sent from where they were encoded, and used from where they were received. A
session that is to have one shard of all rows makes room in its codes before it encodes its own rows, and the others are copied
behind them. Scores that are the same in all rows are not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dboost.rows.block_file import Field
from dboost.rows.encode import in_ranges
from dboost.rows.row_store import FieldGroup, RowStore
from dboost.rows.shard import RowIds, RowSegments, Shard, compacted, spec_in_memory
from dboost.rows.shard_spec import ShardSpec
from dboost.rows.shared_codes import SharedCodes
from dboost.session.fit_records import BuildSpec


class EncodedStore(NamedTuple):
    """Encoded rows in a store, before training."""

    store: RowStore
    spec: ShardSpec
    ids: RowIds
    segments: RowSegments | None = None  # of the rows that are trained on; None for all
    shared: SharedCodes | None = None  # the codes, if other fits use them, too


class EncodedRows(NamedTuple):
    """Some encoded rows of positive weight, of which `joined_rows` makes a store."""

    #: By name, with the rows on the last axis; see `ShardSpec.start_groups`. Codes may have room for more rows behind these.
    #: There are no raw scores if they are `BuildSpec.baseline`; targets may have fewer bytes (`rows.shard.compacted`).
    fields: dict[str, np.ndarray]
    ids: np.ndarray  # int64[n_runs, 2], see `RowIds`

    @property
    def n_rows(self) -> int:
        return int(self.fields["target"].shape[-1])

    def alone(self) -> EncodedRows:
        """Return the rows without room for others."""
        return self._replace(fields={name: values[..., : self.n_rows] for name, values in self.fields.items()})


def row_bytes(spec: ShardSpec) -> int:
    """Return the bytes of an encoded row, at most."""
    return sum(field.n_bytes(1) for group in spec.start_groups() for field in group.fields)


def joined_rows(parts: list[EncodedRows], spec: BuildSpec, n_threads: int) -> EncodedStore:
    """Return rows together; the list is emptied, and fields are released one by one."""
    n_rows = sum(part.n_rows for part in parts)
    parts.sort(key=lambda part: part.fields["narrow"].shape[-1] != n_rows)  # first, if there is one with room for all
    ids, sizes = RowIds(np.concatenate([part.ids for part in parts])), [part.n_rows for part in parts]
    fields: dict[str, np.ndarray] = {}
    for name in {name: None for part in parts for name in part.fields}:
        values = [part.fields.pop(name, None) for part in parts]
        if name == "raw":
            values = [_baseline(spec, n) if array is None else array for array, n in zip(values, sizes, strict=True)]
        fields[name] = _joined([array for array in values if array is not None], sizes)
        del values
    if "raw" not in fields:
        fields["raw"] = _baseline(spec, n_rows)
    parts.clear()
    return rows_in_memory(fields, spec.shard_spec, ids, spread=lambda work, n: in_ranges(work, n, n_threads))


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
        for feature in np.flatnonzero(spec.is_identity_bin_map).tolist():
            shard.tree_codes.of(feature)[:] = shard.codes.of(feature)
    if "tiles" not in fields:
        if spread is None:
            shard.fill_tiles(0, n_rows)
        else:
            spread(shard.fill_tiles, n_rows)
    return EncodedStore(store, spec, ids, segments, shared)


def _joined(parts: list[np.ndarray], sizes: list[int]) -> np.ndarray:
    """Return arrays of so many rows together: in the first one, if it has room for exactly the others."""
    first, n_rows = parts[0], sum(sizes)
    if first.shape[-1] != n_rows:
        return np.concatenate([part[..., :n] for part, n in zip(parts, sizes, strict=True)], axis=-1)
    start = sizes[0]
    for part, n in zip(parts[1:], sizes[1:], strict=True):
        first[..., start : start + n] = part[..., :n]
        start += n
    return first


def _baseline(spec: BuildSpec, n_rows: int) -> np.ndarray:
    """Return the raw scores of rows without offsets and without a model that is continued."""
    return spec.in_unit(np.repeat(spec.baseline[:, None], n_rows, axis=1))
