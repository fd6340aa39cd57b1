"""The sum of the answers of a round. Sums of integers are exact, so the order in which answers arrive does not matter."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from dboost.cluster.transport.feature_exchange import PackedSplits, merge_splits
from dboost.cluster.transport.line import Message
from dboost.cluster.transport.messages import SessionRef
from dboost.trees.tree_growth import RoundHistograms


class RoundSums:
    """The sums of a round's answers.

    Attributes
    ----------
    trees : {output: RoundHistograms}
        Valid until the next round: they use the memory of an answer, which is that of a line or of a session.
    best : {output: PackedSplits}
        Merged over the owners of slices; empty if histograms are added up on the way.
    rows : {SessionRef: list of int}
        Numbers of training rows of a session and of those below it, in their order.
    compute : float
        Seconds of the slowest session.
    seconds : float
        Of adding up.
    """

    def __init__(self) -> None:
        self.trees: dict[int, RoundHistograms] = {}
        self.best: dict[int, PackedSplits] = {}
        self.rows: dict[SessionRef, list[int]] = {}
        self.compute = 0.0
        self.seconds = 0.0

    def add(self, ref: SessionRef, message: Message) -> None:
        """Add a packed answer, see `add_answer`."""
        began = time.perf_counter()
        self.add_answer(ref, *message.unpack())
        self.seconds += time.perf_counter() - began

    def add_answer(
        self,
        ref: SessionRef,
        answers: Mapping[int, RoundHistograms],
        n_rows: int | list[int],
        seconds: float,
        splits: Mapping[int, PackedSplits] = MappingProxyType({}),
    ) -> None:
        """Add an answer of `Session.round_histograms`, or the sum of several sessions' answers.

        answers : without histograms if their slices are exchanged (`feature_exchange`); then `splits` has the best splits of
        the features that a session searches. There are no answers without rows.
        """
        for output, answer in answers.items():
            self.trees[output] = self.trees[output].merge(answer) if output in self.trees else answer
        for output, best in splits.items():
            self.best[output] = merge_splits(self.best[output], best) if output in self.best else best
        self.rows[ref] = n_rows if isinstance(n_rows, list) else [n_rows]
        self.compute = max(self.compute, seconds)

    def merged(self, narrow: np.ndarray) -> dict[int, RoundHistograms]:
        """Return the histograms for sending. narrow : int32[...], with room for all of them (`RoundHistograms.compact`)."""
        merged: dict[int, RoundHistograms] = {}
        for output, tree in self.trees.items():
            merged[output] = tree.compact(narrow)
            narrow = narrow[tree.histograms.size :]
        return merged
