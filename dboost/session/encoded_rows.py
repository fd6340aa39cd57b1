"""Encoded rows of a session, which it trains on, or hands over to another session of its host.

Workers of a host need no rounds between each other if one of them trains on all rows of the host. They read, sample, propose
and encode in parallel; then each sends its encoded rows (about a byte a value) and its evaluation rows to one of them
(`distributed.host_sessions`). That session keeps what it has received until it is told which partitions it has
(`WorkerSession.accept`): what a call that failed has sent is dropped. The other sessions keep their encoded rows until they are
told to drop them, so the call can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dboost.session.evaluation import EncodedEvalRows
from dboost.shards.shard import RowIds
from dboost.shards.shard_blocks import ShardBlocks, rows_in_memory
from dboost.shards.shard_spec import ShardSpec


class EncodedRows(NamedTuple):
    """Rows of positive weight before training."""

    fields: dict[str, np.ndarray]  # by name, with the rows on the last axis; see `ShardSpec.start_groups`
    ids: np.ndarray  # int64[n_runs, 2], see `RowIds`

    @property
    def n_rows(self) -> int:
        return int(self.fields["raw"].shape[-1])


def row_bytes(spec: ShardSpec) -> int:
    """Return the bytes of an encoded row."""
    return sum(field.n_bytes(1) for group in spec.start_groups() for field in group.fields)


class HandedRows(NamedTuple):
    """What a session sends at a time of the rows of a batch."""

    partitions: tuple[int, ...]  # of the whole batch
    rows: EncodedRows | None  # None if no row has positive weight
    eval_rows: list[EncodedEvalRows]


def joined_shards(parts: list[EncodedRows], spec: ShardSpec, n_shards: int) -> Iterator[ShardBlocks]:
    """Join rows to shards of about the same number of rows; the list is emptied, and fields are released one by one.

    The tiles of the shards must still be filled.
    """
    groups: list[list[EncodedRows]] = [[] for _ in range(n_shards)]
    for part in sorted(parts, key=lambda part: part.n_rows, reverse=True):
        min(groups, key=lambda group: sum(other.n_rows for other in group)).append(part)
    parts.clear()
    for group in groups:
        if group:
            ids = RowIds(np.concatenate([part.ids for part in group]))
            yield rows_in_memory(_joined([part.fields for part in group]), spec, ids)
            group.clear()


def _joined(fields: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    if len(fields) == 1:
        return fields[0]
    return {name: np.concatenate([of_part.pop(name) for of_part in fields], axis=-1) for name in list(fields[0])}
