"""Growers: what grows trees on the rows of a batch, chosen by name.

A grower has two forms. In *rounds* it answers each `RoundRequest` by the `RoundHistograms` of its rows; which splits follow is
decided elsewhere (`trees.tree_rounds`), so rows of several batches and workers grow the same trees. A grower that also grows
*whole trees* is asked for them where one batch has all rows of the fit. All sums are exact, so a tree depends neither on the
form nor on the grower.

`GROWERS` is the only place where growers are chosen: by `Tuning.grower`, which a fit on a cluster sends to its workers. A new
one, e.g. for a device, is a class here or elsewhere and an entry in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import Generic, TypeVar

from dboost.errors import ParameterError
from dboost.rows.shard import Shard
from dboost.trees.fit_trees import GrownTree
from dboost.trees.grower_rows import GrowerRows
from dboost.trees.rounds_in_files import RoundsInFiles
from dboost.trees.rounds_in_memory import RoundsInMemory
from dboost.trees.tree_growth import RoundHistograms, RoundRequest
from dboost.trees.tree_task import TreeTask
from dboost.trees.whole_trees import WholeTrees
from dboost.tuning import tuning


class Grower:
    """Grows trees on the rows of a batch.

    Gradients and Hessians stay as they are. When a tree is finished, the fields ``leaf`` of its output have the leaf of every
    row, also of those that the tree was not grown on (now, or by `GrowerRows.unrouted`). Before `begin` and `whole_trees` use
    rows in memory, they call `GrowerRows.route_excluded`, then `GrowerRows.merge_bins`.
    """

    def whole_trees(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree] | None:
        """Return the whole trees of an iteration, which grow when they are requested; None if trees grow in rounds only."""
        return None

    def begin(self, tasks: Sequence[TreeTask]) -> None:
        """Begin trees of different outputs that grow in rounds; earlier trees are dropped."""
        raise NotImplementedError

    def begin_round(self, requests: Mapping[int, RoundRequest]) -> None:
        """Note the requests of a round by output, which `sum_histograms` is called for: a pass may serve several of them."""

    def sum_histograms(self, output: int, request: RoundRequest) -> RoundHistograms:
        """Return the histograms and row counts of a round of one tree, valid until the next round."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the buffers."""


Share = TypeVar("Share", RoundsInMemory, RoundsInFiles)


class CpuGrower(Grower, Generic[Share]):
    """Grows trees in rounds, in which each thread has a share of the rows.

    rows : TrainingRows
    """

    def __init__(self, rows: GrowerRows) -> None:
        self._rows = rows

    @cached_property
    def by_thread(self) -> list[Share]:
        """The share of each thread."""
        return [self._share(k) for k in range(self._rows.shares.n)]

    def _share(self, k: int) -> Share:
        raise NotImplementedError

    def sum_histograms(self, output: int, request: RoundRequest) -> RoundHistograms:
        by_thread = self.by_thread
        return reduce(RoundHistograms.merge, self._rows.shares.run(lambda k: by_thread[k].sum_histograms(output, request)))

    def close(self) -> None:
        for share in vars(self).pop("by_thread", ()):
            share.close()


class MemoryGrower(CpuGrower[RoundsInMemory]):
    """Grows trees of rows in memory: also whole trees, in one compiled call each.

    shard : Shard
        `TrainingRows.shard`.
    """

    def __init__(self, rows: GrowerRows, shard: Shard) -> None:
        super().__init__(rows)
        self._shard, self.whole = shard, WholeTrees(rows, shard)

    def whole_trees(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        return map(self.whole.grow_tree, tasks)

    def _share(self, k: int) -> RoundsInMemory:
        return RoundsInMemory(self._shard, k, self._rows.shares.n)

    def begin(self, tasks: Sequence[TreeTask]) -> None:
        rows, by_thread = self._rows, self.by_thread
        rows.route_excluded()
        marks = [self._shard.tree_marks(*task.row_subset) for task in tasks]
        rows.merge_bins(tasks)
        rows.shares.run(lambda k: by_thread[k].begin(tasks, marks))


class FileGrower(CpuGrower[RoundsInFiles]):
    """Grows trees of rows in files, each thread on a share of the blocks."""

    def _share(self, k: int) -> RoundsInFiles:
        return RoundsInFiles(self._rows, k)

    def begin(self, tasks: Sequence[TreeTask]) -> None:
        by_thread = self.by_thread
        self._rows.shares.run(lambda k: by_thread[k].begin(tasks))

    def begin_round(self, requests: Mapping[int, RoundRequest]) -> None:
        for share in self.by_thread:
            share.begin_round(requests)


def _on_cpu(rows: GrowerRows) -> Grower:
    return FileGrower(rows) if rows.shard is None else MemoryGrower(rows, rows.shard)


#: What makes the grower of training rows, by name.
GROWERS: dict[str, Callable[[GrowerRows], Grower]] = {"cpu": _on_cpu}


def new_grower(rows: GrowerRows) -> Grower:
    """Return the grower of training rows (`TrainingRows`) that `Tuning.grower` names."""
    name = tuning().grower
    if name not in GROWERS:
        raise ParameterError(f"unknown grower {name!r}; known are {', '.join(GROWERS)}")
    return GROWERS[name](rows)
