"""The rounds of trees: the only driver of `trees.tree_growth.grow_tree`.

`grow_tree` is a generator that decides which splits to apply and which histograms it needs next. `TreeRounds` passes its
requests to all growers of a fit (`BeginRound`), searches the summed histograms, and returns the best splits to the generator.
Where the growers are, and how requests reach them, is up to the implementation of `BeginRound`: that of this process is called
with objects, those of workers by messages.

The trees of an iteration (one for each output) may share rounds: one call has the requests of all of them.

**Rounds in flight.** Where growers are in other processes, they would idle while histograms are merged and searched here, and
this process while they compute. So `GrowOrder.n_in_flight` rounds may be under way at the same time. They end in the order in
which they began. One tree then splits fewer leaves in each of its rounds; which ones is speculation (`trees.tree_growth`).
Several trees are independent, so they are divided among the rounds. Trees do not depend on the number of rounds under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dboost.kernels.histograms import BinLayout
from dboost.kernels.threads import available_threads
from dboost.trees.fit_trees import GrownTree
from dboost.trees.split_finder import BestSplits, SplitFinder
from dboost.trees.tree_growth import Round, RoundHistograms, RoundResult, grow_tree
from dboost.trees.tree_task import TreeTask


@dataclass(frozen=True)
class GrowOrder:
    """Trees that share rounds."""

    tasks: tuple[TreeTask, ...]  # of different outputs
    layout: BinLayout  # of the bins that trees are grown with
    #: bool[n_features]: whether these are the fine bins that finished trees refer to.
    is_identity_bin_map: np.ndarray
    n_rows: int  # of the fit
    n_leaves_per_round: int  # leaves that the rounds which are under way at the same time split in each tree
    n_in_flight: int = 1  # most rounds that are under way at the same time


#: The summed histograms and row counts of all growers by output, and the best splits, or None if the caller has to search.
RoundSumsAndSplits = tuple[Mapping[int, RoundHistograms], Mapping[int, BestSplits] | None]


#: ``begin_round(tasks, rounds)`` begins a round of all growers of a fit, and returns the function that waits for its results.
#: That is called once, and in the order in which rounds began; results are valid until the next such call. tasks : trees to
#: start, which replace all earlier ones; empty to continue. rounds : {output: (RoundRequest, tuple of SiblingPair)}.
BeginRound = Callable[[Sequence[TreeTask], Mapping[int, Round]], Callable[[], RoundSumsAndSplits]]


class TreeRounds:
    """Grows the trees of a fit in rounds. Keeps the memory of histograms from one tree to the next.

    Trees that share rounds are searched in parallel, because the rows wait meanwhile.

    n_threads : number of threads that search; default: as in `kernels.threads.available_threads`.
    """

    def __init__(self, n_threads: int | None = None) -> None:
        self._n_threads = available_threads(n_threads)
        self._split_finders: list[SplitFinder] = []
        self._threads: ThreadPoolExecutor | None = None

    def grow(self, begin_round: BeginRound, order: GrowOrder) -> list[GrownTree]:
        """Grow the trees of an order, in the order of its tasks; their splits refer to fine bins."""
        tasks, layout, in_flight = order.tasks, order.layout, order.n_in_flight
        n_groups = min(in_flight, len(tasks))  # of trees that share rounds
        in_flight_of_tree = in_flight if n_groups == 1 else 1
        n_leaves = -(-order.n_leaves_per_round // in_flight_of_tree)
        growths = {task.output: grow_tree(task, layout, order.n_rows, n_leaves, in_flight_of_tree) for task in tasks}
        finders = self._new_finders(order)
        grown: dict[int, GrownTree] = {}
        under_way: deque[tuple[Mapping[int, Round], Callable[[], RoundSumsAndSplits]]] = deque()
        new_tasks = tasks  # passed with the first request

        def begin(begun: Mapping[int, tuple[Round, ...]]) -> None:
            """Begin the rounds that the growths of a group of trees have yielded."""
            nonlocal new_tasks
            for k in range(max(map(len, begun.values()), default=0)):
                rounds = {output: rounds[k] for output, rounds in begun.items() if k < len(rounds)}
                under_way.append((rounds, begin_round(new_tasks, rounds)))
                new_tasks = ()

        outputs = [task.output for task in tasks]
        for group in range(n_groups):
            begin({output: next(growths[output]) for output in outputs[group::n_groups]})
        while under_way:
            rounds, wait = under_way.popleft()
            sums, best = wait()
            best_splits = self._find_best_splits(finders, rounds, sums) if best is None else [best[output] for output in rounds]
            begun: dict[int, tuple[Round, ...]] = {}
            for output, splits in zip(rounds, best_splits, strict=True):
                histograms = sums[output]
                try:
                    begun[output] = growths[output].send(RoundResult(splits, histograms.n_rows, histograms.leaf_sums))
                except StopIteration as end:
                    grown[output] = end.value
            begin(begun)
        for task in tasks:
            grown[task.output].use_fine_bins(task.bin_merge, order.is_identity_bin_map)
        return [grown[task.output] for task in tasks]

    def close(self) -> None:
        """Release the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _find_best_splits(
        self, finders: Mapping[int, SplitFinder], rounds: Mapping[int, Round], sums: Mapping[int, RoundHistograms]
    ) -> Iterable[BestSplits]:
        """Return the best splits of the nodes of a round, tree by tree.

        The splits of the first trees are available while others are searched, so their growths can continue.
        """

        def search(output: int) -> BestSplits:
            return finders[output].find_best_splits(rounds[output][1], sums[output].histograms)

        if len(rounds) == 1 or self._n_threads == 1:
            return map(search, rounds)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(min(len(finders), self._n_threads), "dboost-search")
        return self._threads.map(search, rounds)

    def _new_finders(self, order: GrowOrder) -> dict[int, SplitFinder]:
        """Return a split finder for each tree, with the memory of earlier ones."""
        free: list[SplitFinder | None] = [*self._split_finders, *[None] * len(order.tasks)]
        self._split_finders = [
            SplitFinder(task, order.layout, after=earlier, n_rows=order.n_rows)
            for task, earlier in zip(order.tasks, free, strict=False)
        ]
        return {task.output: finder for task, finder in zip(order.tasks, self._split_finders, strict=True)}
