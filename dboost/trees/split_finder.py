"""Split search: summed histograms in, the best split of each node out.

A `SplitFinder` searches the histograms of a range of features: all of them, or the range of one of several *feature owners*.
It stores the histogram of every leaf, because of two children only one is added up and the other is the parent minus that.
Its result (`BestSplits`) is a few numbers per node and merges over the owners: the best split of all features is the best one
of the ranges' best splits. The reducer therefore needs no histograms, and a large histogram never has to be in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dboost.kernels import internal, kernel
from dboost.kernels.histograms import BinLayout
from dboost.kernels.split_candidates import search_proposed
from dboost.kernels.splits import (
    FEATURE,
    LEFT_H,
    MISSING_LEFT,
    NO_SPLIT,
    SCORE,
    SPLIT_BIN,
    SPLIT_SIZE,
    clear_split,
    mark_left_categories,
    search_bounded,
    search_categorical,
    search_numeric,
)
from dboost.trees.bin_proposal import new_proposal_buffers
from dboost.trees.tree_task import TreeTask


@dataclass(frozen=True, eq=False)
class SiblingPair:
    """A split node whose children need their best splits: `small` is added up, `large` is the parent minus that.

    totals : float64[2, 5], sums of gradients, Hessians and rows of the small and the large child, and the bounds of their
    steps. The root is passed as a small child without a parent: parent = large = -1, and its totals are not known yet. open :
    uint8[2, n_features], the features that the small and the large child may split by; None for all features of the tree.
    """

    parent: int
    small: int
    large: int
    totals: np.ndarray | None
    open: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class SplitInfo:
    """The best split of a node.

    best : float64[SPLIT_SIZE] (see `kernels.splits`); total : float64[5]; goes_left : uint8[n_codes], which bin codes of the
    split feature go left, the last of which is "missing".
    """

    best: np.ndarray
    total: np.ndarray
    goes_left: np.ndarray

    def merge(self, other: SplitInfo) -> SplitInfo:
        """Return the better of the splits of two features; of equal ones, that of the lower feature."""
        mine, others = (self.best[SCORE], -self.best[FEATURE]), (other.best[SCORE], -other.best[FEATURE])
        return self if mine >= others else other


BestSplits = list[SplitInfo]


def merge_best_splits(parts: Sequence[BestSplits]) -> BestSplits:
    """Merge the best splits that several feature owners found for the same nodes."""
    merged = parts[0]
    for part in parts[1:]:
        merged = [a.merge(b) for a, b in zip(merged, part, strict=True)]
    return merged


class SplitFinder:
    """Finds the best splits of one tree over a range of features.

    Parameters
    ----------
    task : TreeTask
    layout : BinLayout
        Of all features.
    first, last : int
        Features first…last-1; default: all.
    after : SplitFinder, optional
        The finder of an earlier tree that is no longer needed: its memory is reused.
    """

    def __init__(
        self, task: TreeTask, layout: BinLayout, first: int = 0, last: int | None = None, after: SplitFinder | None = None
    ) -> None:
        self._task, self._layout = task, layout
        self._first = first
        self._last = len(layout.n_bins) if last is None else last
        self.buckets = slice(int(layout.offset[self._first]), int(layout.offset[self._last]))
        n_codes = int(layout.n_bins.max()) + 1
        self._scratch = np.empty((4, n_codes))
        self._proposal_buffers = None if task.node_bins is None else new_proposal_buffers(task.node_bins)
        self._keys, self._order = np.empty(n_codes), np.empty(n_codes, np.int64)
        #: Histograms of leaves, and the slot of each node.
        self._stored: np.ndarray = np.empty((0, 0, 0)) if after is None else after._stored
        self._slot_of: dict[int, int] = {}
        self._n_slots = 0

    def find_best_splits(self, pairs: Sequence[SiblingPair], histograms: np.ndarray) -> BestSplits:
        """Return the best splits of the pairs' children: small, large, small, large, …

        histograms : float64[len(pairs), n_channels, n_buckets of these features], of the small children over all rows.
        """
        n = len(pairs)
        if n == 0:
            return []
        slots = np.full((n, 2), -1)  # the large child takes its parent's slot
        totals = np.zeros((n, 2, 5))
        allowed = np.empty((n, 2, len(self._task.allowed)), np.uint8)
        self._reserve(n, histograms.shape[1:])
        for k, pair in enumerate(pairs):
            allowed[k] = self._task.allowed if pair.open is None else pair.open
            slots[k, 0] = self._slot_of[pair.small] = self._n_slots
            self._n_slots += 1
            if pair.totals is None:
                totals[k, 0] = self._sum(histograms[k])
            else:
                slots[k, 1] = self._slot_of[pair.large] = self._slot_of.pop(pair.parent)
                totals[k] = pair.totals
        best, missing = np.empty((n, 2, SPLIT_SIZE)), np.zeros((n, 2))
        _search_pairs(
            histograms, self._stored, slots, self._layout, self._first, self._last, totals, self._task.limits, allowed,
            self._task.direction, self._proposal_buffers, self._scratch, self._scratch.view(np.int64), self._keys, self._order,
            best, missing,
        )  # fmt: skip
        return [
            self._split_info(best[k, side], totals[k, side], self._stored[slots[k, side]], missing[k, side])
            for k in range(n)
            for side in range(2)
            if slots[k, side] >= 0
        ]

    def _reserve(self, n: int, shape: tuple[int, ...]) -> None:
        """Grow the buffer so that it holds the histograms of `n` more nodes."""
        if self._n_slots + n > len(self._stored) or self._stored.shape[1:] != shape:
            stored = np.empty((max(2 * len(self._stored), self._n_slots + n), *shape))
            if self._n_slots:
                stored[: self._n_slots] = self._stored[: self._n_slots]
            self._stored = stored

    def _sum(self, histogram: np.ndarray) -> np.ndarray:
        """Return a node's sums, which are those of the buckets of any one feature."""
        n_codes = int(self._layout.offset[self._first + 1] - self._layout.offset[self._first])
        total = np.array([0.0, 0.0, 0.0, -np.inf, np.inf])
        total[: len(histogram)] = histogram[:, :n_codes].sum(axis=1)
        if len(histogram) == 2:
            total[2] = total[1]
        return total

    def _split_info(self, best: np.ndarray, total: np.ndarray, histogram: np.ndarray, missing: float) -> SplitInfo:
        """Return a node's best split with the bin codes that go left. missing : Hessian of its rows that miss the feature."""
        layout, limits = self._layout, self._task.limits
        if best[SCORE] == NO_SPLIT:
            return SplitInfo(best, total, np.empty(0, np.uint8))
        feature = int(best[FEATURE])
        n_bins, at = int(layout.n_bins[feature]), int(layout.offset[feature]) - self.buckets.start
        goes_left = np.zeros(n_bins + 1, np.uint8)
        if layout.is_categorical[feature]:
            _mark_left_categories(histogram, at, n_bins, int(best[SPLIT_BIN]), limits, self._keys, self._order, goes_left)
        else:
            goes_left[: int(best[SPLIT_BIN]) + 1] = 1
            goes_left[n_bins] = int(best[MISSING_LEFT])
        if missing == 0.0:
            # No value was missing here: at prediction, missing values follow the larger child.
            goes_left[n_bins] = best[LEFT_H] > total[1] - best[LEFT_H]
        return SplitInfo(best, total, goes_left)


@kernel
def _search_pairs(
    histograms, stored, slots, layout, first, last, totals, limits, allowed, direction, proposal, scratch, scratch_bits, keys,
    order, best, missing,
):  # fmt: skip
    """Store the children's histograms in `slots` of `stored`, and find their best splits over some features.

    The small child's histogram is given; the large child's (if its slot is not -1) replaces that of their parent.
    """
    base = layout.offset[first]
    for k in range(len(histograms)):
        small, large = slots[k]
        for p in range(histograms.shape[1]):
            given, kept = histograms[k, p], stored[small, p]
            for b in range(given.size):
                kept[b] = given[b]
            if large >= 0:
                rest = stored[large, p]
                for b in range(given.size):
                    rest[b] -= given[b]
        for side in range(2):
            if slots[k, side] < 0:
                continue
            node_histogram, split = stored[slots[k, side]], best[k, side]
            _search_node(
                node_histogram, layout, first, last, totals[k, side], limits, allowed[k, side], direction, proposal,
                scratch, scratch_bits, keys, order, split,
            )  # fmt: skip
            if split[SCORE] != NO_SPLIT:
                feature = np.int64(split[FEATURE])
                missing[k, side] = node_histogram[1, layout.offset[feature] - base + layout.n_bins[feature]]


@internal
def _search_node(
    histogram, layout, first, last, total, limits, allowed, direction, proposal, scratch, scratch_bits, keys, order, best
):  # fmt: skip
    """Find the best split of a node over some features, whose buckets begin at 0."""
    clear_split(best)
    base = layout.offset[first]
    for feature in range(first, last):
        if not allowed[feature]:
            continue
        at, n_bins = layout.offset[feature] - base, layout.n_bins[feature]
        if layout.is_categorical[feature] != 0:
            search_categorical(histogram, at, n_bins, feature, total, limits, keys, order, best)
            continue
        if proposal is not None:
            search_proposed(histogram, at, n_bins, feature, direction, total, limits, proposal, scratch, scratch_bits, best)
        elif direction is not None:
            search_bounded(histogram, at, n_bins, feature, direction[feature], total, limits, best)
        else:
            search_numeric(histogram, at, n_bins, feature, total, limits, scratch, scratch_bits, best)


@kernel
def _mark_left_categories(histogram, at, n_categories, split_bin, limits, keys, order, goes_left):
    mark_left_categories(histogram, at, n_categories, split_bin, limits, keys, order, goes_left)
