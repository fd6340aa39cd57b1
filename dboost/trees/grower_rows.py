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
    """The training rows of a batch (`session.training_rows.TrainingRows`) as growers see them."""

    #: The fields of the rows, in memory or in files.
    store: RowStore
    #: The shares of the threads, and the team that works on them.
    shares: RowShares
    #: The rows, if they are in memory; None if they are in files.
    shard: Shard | None
    shard_spec: ShardSpec
    #: The codes that these rows share with those of other folds; None for rows of their own.
    shared: SharedCodes | None
    #: Most trees that grow in the same passes over files.
    trees_per_pass: int
    #: Functions ``find(leaf, first, last)`` that assign rows which a tree did not use to its leaves, and where they write. The
    #: next pass over all rows calls them.
    unrouted: list[tuple[Callable[[np.ndarray, int, int], None], np.ndarray]]

    def ranges(
        self, k: int, reads: Sequence[FieldRef] = (), writes: Sequence[FieldRef] = (), *, verify: bool = True
    ) -> Iterator[tuple[Shard, int, int]]:
        """Yield the rows of the k-th thread: shards, and the first and last row in each, with the fields that are read."""

    def route_excluded(self) -> None:
        """Assign the rows that earlier trees did not use to their leaves now, while bins are those of these trees."""

    def merge_bins(self, tasks: Sequence[TreeTask]) -> None:
        """Make the codes of rows in memory those that the trees are grown with."""
