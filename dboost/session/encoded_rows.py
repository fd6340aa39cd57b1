"""Encoded rows of a session in memory, before it trains on them or hands them over to another session of its host.

Arrays are copied as little as possible: they are sent from where they were encoded, and used from where they were received. A
session that is to have one shard of all rows makes room in its codes before it encodes its own rows, and the others are copied
behind them. Scores that are the same in all rows are not sent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.rows.encode import in_ranges
from dboost.rows.encoded_store import EncodedStore, rows_in_memory
from dboost.rows.shard import RowIds
from dboost.rows.shard_spec import ShardSpec
from dboost.session.fit_records import BuildSpec


class EncodedRows(NamedTuple):
    """Rows of positive weight before training."""

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
    return rows_in_memory(fields, spec.shard, ids, spread=lambda work, n: in_ranges(work, n, n_threads))


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
