"""The engine for rows in files: several streamed shards, one for each thread, asked at the same time.

It drives the grower's generator as `session.sharded_engine` does, but each question is a pass over the files. So it opens as
many nodes at once as the memory for their histograms allows. In what memory is left then, blocks stay.
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

#: Files smaller than this are in the system's cache in any case.
WORTH_KEEPING = 32 * 2**20


class StreamedEngine:
    """Trains on rows in files.

    Parameters
    ----------
    blocks : BlockStore
        Their files are removed in the end.
    loss_terms : NamedTuple
    n_threads : int
    histogram_bytes : int
        What the histograms of the nodes that are opened at once may take.
    staying_bytes : int
        What they and the blocks that stay in memory may take together.
    release : callable
        Called in the end, to let go of the folder that the files are in.
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
        self.width = opened_at_once(blocks, histogram_bytes, n_threads)
        staying = blocks_that_stay(blocks, staying_bytes, self.width, n_threads)
        self.shards = [
            StreamedShard(blocks, n * t // n_threads, n * (t + 1) // n_threads, n_staying=staying, halted=self._halted)
            for t in range(n_threads)
        ]
        self._searcher: SplitFinder | None = None
        self.n_questions = 0
        self._reported = 0

    def _halted(self) -> bool:
        return bool(self.team.control[ABORT])

    @property
    def n_rows(self) -> int:
        return self._blocks.n_rows

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        self._terms = self._terms if terms is None else terms
        told = self.team.run(lambda t: self.shards[t].advance(self._terms, values))
        return reduce(GradientStats.merge, [one for one in told if one is not None])

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Answers for blocks, or for each thread's where they can be added up."""
        return [one for told in self.team.run(lambda t: self.shards[t].ask(function, *arguments)) for one in told]

    def grow(self, task: TreeTask) -> GrownTree:
        for shard in self.shards:
            shard.begin(task)
        layout = self._blocks.spec.layout
        grower, searcher = grow_tree(task, layout, self.n_rows, self.width), SplitFinder(task, layout, after=self._searcher)
        self._searcher = searcher
        question: RoundRequest = next(grower)
        while True:
            self.n_questions += 1
            answer = reduce(lambda a, b: a.merge(b), self._answers(question))
            found = searcher.find_best_splits(question.pairs, answer.histograms)
            try:
                question = grower.send(RoundResult(found, answer.n_rows, answer.leaf_sums))
            except StopIteration as end:
                return end.value

    def _answers(self, question: RoundRequest) -> Sequence[Any]:
        return self.team.run(lambda t: self.shards[t].sum_histograms(question))

    def report(self) -> dict[str, float]:
        """Bytes read from files."""
        before, self._reported = self._reported, sum(shard.bytes_read for shard in self.shards)
        return {"bytes_read": self._reported - before}

    def close(self) -> None:
        self.team.close()
        for shard in self.shards:
            shard.close()
        self._blocks.close()
        self._release()


def opened_at_once(blocks: BlockStore, histogram_bytes: int, n_threads: int) -> int:
    """How many nodes may be opened at once: each thread has their packed buckets and planes; the sums of leaves are kept."""
    layout, spec = blocks.spec.layout, blocks.spec
    histogram_bytes = 8 * spec.n_channels * int(layout.offset[-1])
    kept = histogram_bytes * spec.max_leaves  # a lower bound: speculation keeps those of more
    each = n_threads * (histogram_bytes + 8 * int(layout.start[-1])) + histogram_bytes
    return int(min(max((histogram_bytes - kept) // each, 1), max(spec.max_leaves, 1)))


def blocks_that_stay(blocks: BlockStore, n_bytes: int, width: int, n_threads: int) -> int:
    """How many blocks of each thread may stay in memory, beside the histograms that `width` nodes at once make necessary."""
    layout, spec = blocks.spec.layout, blocks.spec
    if sum(file.stride * file.n_blocks for file in blocks.files) < WORTH_KEEPING:
        return 0
    histogram_bytes = 8 * spec.n_channels * int(layout.offset[-1])
    # The sums of all nodes that were ever opened, while they move to a larger room; what threads and their sum have of a pass.
    kept = 2 * histogram_bytes * spec.max_leaves * (MOST_OPENED if spec.speculates else 1)
    each = n_threads * (histogram_bytes + 8 * int(layout.start[-1])) + 2 * histogram_bytes
    spare = n_bytes - kept - width * each
    return max(spare, 0) // (n_threads * sum(file.stride for file in blocks.files))
