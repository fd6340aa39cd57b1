"""What the growers of `trees.growers` use of the rows that they grow trees on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from dboost.rows.block_file import FieldRef
from dboost.rows.row_store import RowShares, RowStore
from dboost.rows.shard import Shard
from dboost.rows.shard_spec import ShardSpec
from dboost.rows.shared_codes import SharedCodes
from dboost.trees.tree_task import TreeTask


class GrowerRows(Protocol):
    """Training rows as growers see them; `session.training_rows.TrainingRows` describes the members."""

    store: RowStore
    shares: RowShares
    shard: Shard | None
    shard_spec: ShardSpec
    shared: SharedCodes | None
    trees_per_pass: int
    unrouted: list[tuple[Callable[[np.ndarray, int, int], None], np.ndarray]]

    def ranges(
        self, k: int, reads: Sequence[FieldRef] = (), writes: Sequence[FieldRef] = (), *, verify: bool = True
    ) -> Iterator[tuple[Shard, int, int]]: ...

    def route_excluded(self) -> None: ...

    def merge_bins(self, tasks: Sequence[TreeTask]) -> None: ...
