"""The sums of a round's answers: exact, so the order in which answers arrive does not matter."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from dboost.distributed.line import Message
from dboost.kernels import kernel
from dboost.session.protocol import SessionRef
from dboost.trees.grower import RoundHistograms
from dboost.trees.split_finder import BestSplits, merge_best_splits


class TreeSums:
    """The sums of a round's answers for one tree. buffer : for the histograms."""

    def __init__(self, buffer: np.ndarray) -> None:
        self.histograms = buffer
        self.n_rows = np.zeros((0, 2), np.int64)
        self.leaf_sums: np.ndarray | None = None
        self._is_empty = True

    def add(self, answer: RoundHistograms) -> None:
        """Add an answer; its arrays may be views of a buffer that the next message reuses."""
        if answer.histograms.size:
            _add_up(answer.histograms.ravel(), self.histograms.ravel(), self._is_empty)
        self.n_rows = answer.n_rows.copy() if self._is_empty else self.n_rows + answer.n_rows
        if answer.leaf_sums is not None:
            self.leaf_sums = answer.leaf_sums.copy() if self.leaf_sums is None else self.leaf_sums + answer.leaf_sums
        self._is_empty = False


class SumMemory:
    """Memory for the sums of a round, which the next round reuses."""

    def __init__(self) -> None:
        self._sums = np.empty(0)
        self._n_used = 0

    def reuse(self) -> None:
        """Begin a round: the arrays of the last one are no longer needed."""
        if self._n_used > self._sums.size:
            self._sums = np.empty(2 * self._n_used)
        self._n_used = 0

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array: float64[shape]."""
        first, self._n_used = self._n_used, self._n_used + math.prod(shape)
        return self._sums[first : self._n_used].reshape(shape) if self._n_used <= self._sums.size else np.empty(shape)


class RoundSums:
    """The sums of a round's answers. memory : which they use until the next round.

    Attributes
    ----------
    trees : {output: TreeSums}
    best : {output: BestSplits}
        Merged over the feature owners.
    rows : {SessionRef: list of int}
        Numbers of training rows of a session and of those below it, in their order.
    compute : float
        Seconds of the slowest session.
    seconds : float
        Of adding up.
    """

    def __init__(self, memory: SumMemory) -> None:
        memory.reuse()
        self._memory = memory
        self.trees: dict[int, TreeSums] = {}
        self.best: dict[int, BestSplits] = {}
        self.rows: dict[SessionRef, list[int]] = {}
        self.compute = 0.0
        self.seconds = 0.0

    def add(self, ref: SessionRef, message: Message) -> None:
        """Add an answer of `Session.round_histograms`, or the sum of several (`distributed.relay`)."""
        began = time.perf_counter()
        answers, n_rows, seconds = message.unpack()
        self.add_answer(ref, answers, n_rows if isinstance(n_rows, list) else [n_rows], seconds)
        self.seconds += time.perf_counter() - began

    def add_best(self, ref: SessionRef, message: Message) -> None:
        """Add an answer of the exchange among feature owners; see `add`."""
        began = time.perf_counter()
        answers, found, n_rows, seconds = message.unpack()
        self.add_answer(ref, answers, [n_rows], seconds)
        for output, best in found.items():
            self.best[output] = merge_best_splits([self.best[output], best]) if output in self.best else best
        self.seconds += time.perf_counter() - began

    def add_answer(self, ref: SessionRef, answers: Mapping[int, RoundHistograms], rows: list[int], seconds: float) -> None:
        """Add the histograms and the numbers of rows of a session and of those below it; there are none without rows."""
        for output, answer in answers.items():
            if output not in self.trees:
                self.trees[output] = TreeSums(self._memory.take(answer.histograms.shape))
            self.trees[output].add(answer)
        self.rows[ref] = rows
        self.compute = max(self.compute, seconds)

    def merged(self, narrow: np.ndarray) -> dict[int, RoundHistograms]:
        """Return the histograms for sending. narrow : int32[...], with room for all of them (`RoundHistograms.compact`)."""
        merged: dict[int, RoundHistograms] = {}
        for output, tree in self.trees.items():
            merged[output] = RoundHistograms(tree.histograms, tree.n_rows, tree.leaf_sums).compact(narrow)
            narrow = narrow[tree.histograms.size :]
        return merged


@kernel
def _add_up(part: Any, sums: Any, is_first: Any) -> None:
    """Add integers (int32 or float64) to float64 sums."""
    if is_first:
        for k in range(part.size):
            sums[k] = part[k]
    else:
        for k in range(part.size):
            sums[k] += part[k]
