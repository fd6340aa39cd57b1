"""The engine for rows in files: one streamed shard per thread, and all threads process a request at the same time.

It runs the generator `trees.grower.grow_tree`, as the reducer of a cluster does, but each request is a pass over the files. So
it opens as many nodes per pass as the memory for their histograms allows. The remaining memory caches blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dboost.kernels.thread_barrier import ABORT
from dboost.session.thread_team import Team
from dboost.shards.block_store import BlockStore
from dboost.shards.streamed_shard import StreamedShard
from dboost.trees.grower import MOST_OPENED, RoundRequest, RoundResult, grow_tree
from dboost.trees.split_finder import SplitFinder
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask

#: Files smaller than this (bytes) are not cached here: the page cache of the operating system has them.
WORTH_KEEPING = 32 * 2**20


class StreamedEngine:
    """Train on rows in files.

    Parameters
    ----------
    blocks : BlockStore
        Its files are removed by `close`.
    loss_terms : NamedTuple
    n_threads : int
    histogram_bytes : int
        Memory for the histograms of the nodes that are opened together.
    staying_bytes : int
        Memory for these histograms and for cached blocks.
    release : callable
        Called by `close`, to remove the folder of the files.
    """

    def __init__(
        self,
        blocks: BlockStore,
        loss_terms: tuple,
        *,
        n_threads: int,
        histogram_bytes: int,
        staying_bytes: int = 0,
        release: Callable[[], None],
    ) -> None:
        n_threads = max(min(n_threads, blocks.n_blocks), 1)
        self._blocks, self._terms, self._release = blocks, loss_terms, release
        self.team = Team(n_threads)
        n = blocks.n_blocks
        self.width = nodes_per_pass(blocks, histogram_bytes, n_threads)
        staying = blocks_that_stay(blocks, staying_bytes, self.width, n_threads)
        self.shards = [
            StreamedShard(blocks, n * t // n_threads, n * (t + 1) // n_threads, n_staying=staying, halted=self._halted)
            for t in range(n_threads)
        ]
        self._split_finder: SplitFinder | None = None
        self._reported = 0

    def _halted(self) -> bool:
        return bool(self.team.control[ABORT])

    @property
    def n_rows(self) -> int:
        return self._blocks.n_rows

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        self._terms = self._terms if terms is None else terms
        results = self.team.run(lambda t: self.shards[t].advance(self._terms, values))
        return reduce(GradientStats.merge, [one for one in results if one is not None])

    def map_shards(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return one result per block, or one per thread if results can be summed."""
        return [one for results in self.team.run(lambda t: self.shards[t].map_shards(function, *arguments)) for one in results]

    def grow(self, task: TreeTask) -> GrownTree:
        for shard in self.shards:
            shard.begin(task)
        layout = self._blocks.spec.layout
        grower = grow_tree(task, layout, self.n_rows, self.width)
        split_finder = SplitFinder(task, layout, after=self._split_finder)
        self._split_finder = split_finder
        request: RoundRequest = next(grower)
        while True:
            merged = reduce(lambda a, b: a.merge(b), self._histograms(request))
            found = split_finder.find_best_splits(request.pairs, merged.histograms)
            try:
                request = grower.send(RoundResult(found, merged.n_rows, merged.leaf_sums))
            except StopIteration as end:
                return end.value

    def _histograms(self, request: RoundRequest) -> Sequence[Any]:
        return self.team.run(lambda t: self.shards[t].sum_histograms(request))

    def report(self) -> dict[str, float]:
        """Return the bytes read from files since the last call."""
        before, self._reported = self._reported, sum(shard.bytes_read for shard in self.shards)
        return {"bytes_read": self._reported - before}

    def close(self) -> None:
        self.team.close()
        for shard in self.shards:
            shard.close()
        self._blocks.close()
        self._release()


def nodes_per_pass(blocks: BlockStore, histogram_bytes: int, n_threads: int) -> int:
    """Return how many nodes may be opened in one pass.

    Each thread has packed buckets and a histogram for each of them, and the summed histograms of leaves are kept.
    """
    layout, spec = blocks.spec.layout, blocks.spec
    histogram_bytes = 8 * spec.n_channels * int(layout.offset[-1])
    kept = histogram_bytes * spec.max_leaves  # a lower bound: speculation keeps more histograms
    each = n_threads * (histogram_bytes + 8 * int(layout.start[-1])) + histogram_bytes
    return int(min(max((histogram_bytes - kept) // each, 1), max(spec.max_leaves, 1)))


def blocks_that_stay(blocks: BlockStore, n_bytes: int, width: int, n_threads: int) -> int:
    """Return how many blocks of each thread may stay in memory, in addition to the histograms of `width` nodes."""
    layout, spec = blocks.spec.layout, blocks.spec
    if sum(file.stride * file.n_blocks for file in blocks.files) < WORTH_KEEPING:
        return 0
    histogram_bytes = 8 * spec.n_channels * int(layout.offset[-1])
    # `kept`: summed histograms of all opened nodes, twice while the buffer grows. `each`: a node in one pass, threads and sum.
    kept = 2 * histogram_bytes * spec.max_leaves * (MOST_OPENED if spec.speculates else 1)
    each = n_threads * (histogram_bytes + 8 * int(layout.start[-1])) + 2 * histogram_bytes
    spare = n_bytes - kept - width * each
    return max(spare, 0) // (n_threads * sum(file.stride for file in blocks.files))
