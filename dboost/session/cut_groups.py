"""The groups of the rows of all sessions: a loss of groups needs each group whole, in one partition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from dboost.data.columns.roles import kept_rows
from dboost.data.tables.row_metadata import RowPlace
from dboost.errors import DataError
from dboost.rows.row_groups import ends_of
from dboost.session.table_rows import TableRows


class GroupRuns(NamedTuple):
    """Runs of consecutive rows of positive weight that have one group each."""

    partition: int  # -1 if the table has none
    keys: np.ndarray  # int64[n_runs], of their groups
    first: np.ndarray  # int64[n_runs], first row of each, within the partition


def group_runs(rows: TableRows) -> list[GroupRuns]:
    """Return the runs of each partition, or of the whole table if it has no partitions."""
    table, parts = rows.table, list[GroupRuns]()
    for k, number in enumerate(table.partition_ids):
        keys = table.draw_ids(k, 0)
        if not len(keys):
            continue
        kept = kept_rows(table.roles(k).weight)
        first = np.append(0, ends_of(keys)[:-1])
        keys, first = keys[first], first if kept is None else kept[first]
        if table.in_partitions:
            parts.append(GroupRuns(number, keys, first))
            continue
        continues = bool(parts) and parts[-1].keys[-1] == keys[0]  # the group that the chunk before ends with
        parts.append(GroupRuns(-1, keys[continues:], sum(table.lengths[:k]) + first[continues:]))
    return parts


def check_groups(answers: Sequence[list[GroupRuns]], loss_name: str) -> None:
    """Raise a DataError if a group has several runs. answers : of all sessions to `group_runs`."""
    parts = sorted(chain(*answers), key=lambda runs: runs.partition)
    keys, n_runs = np.unique(np.concatenate([runs.keys for runs in parts]), return_counts=True)
    divided = keys[n_runs > 1]
    if not len(divided):
        return
    key = divided[0]
    starts = [RowPlace(runs.partition, row) for runs in parts for row in runs.first[runs.keys == key].tolist()]
    raise DataError(
        f"loss={loss_name!r} needs the rows of a group one after the other, in one partition, but group {key} has some from "
        f"{starts[0]} on and others from {starts[1]} on ({len(divided)} such groups in all): sort the rows by group, and "
        "divide partitions between groups"
    )
