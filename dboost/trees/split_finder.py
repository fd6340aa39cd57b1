"""Split search: summed histograms in, the best split of each node out.

A `SplitFinder` searches the histograms of a range of features: all of them, or the range of one of several *feature owners*.
It stores the histogram of every leaf, because of two children only one is added up and the other is the parent minus that.
Its result (`BestSplits`) is a few numbers per node and merges over the owners: the best split of all features is the best one
of the ranges' best splits. The reducer therefore needs no histograms, and a large histogram never has to be in one process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dboost.kernels import internal, kernel
from dboost.kernels.histograms import BinLayout, PackedSums
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
    new_search_scratch,
    search_bounded,
    search_categorical,
    search_numeric,
    search_packed,
)
from dboost.trees.bin_proposal import new_proposal_buffers
from dboost.trees.nodes import child_stats, gain_of
from dboost.trees.tree_task import TreeTask


class SiblingPair(NamedTuple):
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


class PairArrays(NamedTuple):
    """The pairs of one search, and what is found for the small (0) and the large (1) child of each."""

    slots: np.ndarray  # int64[n_pairs, 2]: where their histograms are stored; -1 for a large child that does not exist
    totals: np.ndarray  # float64[n_pairs, 2, 5], as in `SiblingPair`
    allowed: np.ndarray  # uint8[n_pairs, 2, n_features]: the features that they may split by
    best: np.ndarray  # float64[n_pairs, 2, SPLIT_SIZE]; this and the others receive the results, see `SplitInfo`
    children: np.ndarray  # float64[n_pairs, 2, 2, 5]
    gains: np.ndarray  # float64[n_pairs, 2]
    goes_left: np.ndarray  # uint8[n_pairs, 2, n_codes]


class SplitInfo(NamedTuple):
    """The best split of a node.

    best : float64[SPLIT_SIZE] (see `kernels.splits`); total : float64[5]; children : float64[2, 5], the same of the left and
    the right child; gain : of the split, -1 if it is not worth a leaf; goes_left : uint8[n_codes], which bin codes of the split
    feature go left, the last of which is "missing".
    """

    best: np.ndarray
    total: np.ndarray
    children: np.ndarray
    gain: float
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
    n_rows : int, optional
        Number of rows over all shards. If their sums fit half a word, histograms of numeric features are stored and searched
        as packed prefix sums, in a quarter of the time.
    """

    def __init__(
        self,
        task: TreeTask,
        layout: BinLayout,
        first: int = 0,
        last: int | None = None,
        after: SplitFinder | None = None,
        n_rows: int | None = None,
    ) -> None:
        self._task, self._layout = task, layout
        self._first = first
        self._last = len(layout.n_bins) if last is None else last
        self.buckets = slice(int(layout.offset[self._first]), int(layout.offset[self._last]))
        n_codes = int(layout.n_bins.max()) + 1
        self._n_codes, self._scratch = n_codes, new_search_scratch(n_codes)
        self._proposal_buffers = None if task.node_bins is None else new_proposal_buffers(task.node_bins)
        #: Histograms of leaves, and the slot of each node.
        self._is_packed = (
            n_rows is not None
            and (self._first, self._last) == (0, len(layout.n_bins))
            and not layout.is_categorical.any()
            and can_stay_packed(task, n_rows, by_unit=False)
        )
        self._stored: np.ndarray = np.empty((0, 0, 0)) if after is None or self._is_packed else after._stored
        #: The same as packed prefix sums, and their counts.
        none = np.empty((0, 0), np.int64)
        self._packed_sums: np.ndarray = none if after is None or not self._is_packed else after._packed_sums
        self._packed_counts: np.ndarray = none if after is None or not self._is_packed else after._packed_counts
        self._slot_of: dict[int, int] = {}
        self._n_slots = 0
        self._allowed = np.empty((0, 2, len(task.allowed)), np.uint8)

    def find_best_splits(self, pairs: Sequence[SiblingPair], histograms: np.ndarray) -> BestSplits:
        """Return the best splits of the pairs' children: small, large, small, large, …

        histograms : float64[len(pairs), n_channels, n_buckets of these features], of the small children over all rows.
        """
        n = len(pairs)
        if n == 0:
            return []
        slots = np.full((n, 2), -1)  # the large child takes its parent's slot
        totals = np.zeros((n, 2, 5))
        if n > len(self._allowed):
            self._allowed = np.tile(self._task.allowed, (2 * n, 2, 1))
        allowed = self._allowed[:n]
        self._reserve(n, histograms.shape[1:])
        for k, pair in enumerate(pairs):
            if pair.open is not None:
                allowed[k] = pair.open
            slots[k, 0] = self._slot_of[pair.small] = self._n_slots
            self._n_slots += 1
            if pair.totals is None:
                totals[k, 0] = self._sum(histograms[k])
            else:
                slots[k, 1] = self._slot_of[pair.large] = self._slot_of.pop(pair.parent)
                totals[k] = pair.totals
        best, children = np.zeros((n, 2, SPLIT_SIZE)), np.empty((n, 2, 2, 5))
        gains, goes_left = np.empty((n, 2)), np.zeros((n, 2, self._n_codes), np.uint8)
        arrays = PairArrays(slots, totals, allowed, best, children, gains, goes_left)
        limits, direction = self._task.limits, self._task.direction
        if self._is_packed:
            packed = PackedSums(self._packed_sums, self._packed_counts)
            _search_packed_pairs(histograms, packed, arrays, self._layout, limits, direction, self._scratch)
        else:
            _search_pairs(
                histograms, self._stored, arrays, self._layout, (self._first, self._last), limits, direction,
                self._proposal_buffers, self._scratch,
            )  # fmt: skip
        n_codes = self._layout.n_bins + 1
        gain_of = gains.tolist()
        found = []
        for k, pair in enumerate(pairs):
            for side in range(2 if pair.large >= 0 else 1):
                split = best[k, side]
                n_marks = 0 if split[SCORE] == NO_SPLIT else n_codes[int(split[FEATURE])]
                marks = goes_left[k, side, :n_marks]
                found.append(SplitInfo(split, totals[k, side], children[k, side], gain_of[k][side], marks))
        return found

    def _reserve(self, n: int, shape: tuple[int, ...]) -> None:
        """Grow the buffer so that it holds the histograms of `n` more nodes."""
        if self._is_packed:
            self._packed_sums = self._grown(self._packed_sums, n, shape[1:])
            if self._task.limits.count_channel == 2:
                self._packed_counts = self._grown(self._packed_counts, n, shape[1:])
        else:
            self._stored = self._grown(self._stored, n, shape)

    def _grown(self, stored: np.ndarray, n: int, shape: tuple[int, ...]) -> np.ndarray:
        if self._n_slots + n <= len(stored) and stored.shape[1:] == shape:
            return stored
        larger = np.empty((max(2 * len(stored), self._n_slots + n), *shape), stored.dtype)
        if self._n_slots:
            larger[: self._n_slots] = stored[: self._n_slots]
        return larger

    def _sum(self, histogram: np.ndarray) -> np.ndarray:
        """Return a node's sums, which are those of the buckets of any one feature."""
        n_codes = int(self._layout.offset[self._first + 1] - self._layout.offset[self._first])
        total = np.array([0.0, 0.0, 0.0, -np.inf, np.inf])
        total[: len(histogram)] = histogram[:, :n_codes].sum(axis=1)
        if len(histogram) == 2:
            total[2] = total[1]
        return total


@kernel
def _search_pairs(histograms, stored, pairs, layout, features, limits, direction, proposal, scratch):
    """Store the children's histograms in their slots of `stored`, and find their best splits over some features.

    pairs : PairArrays; features : (first, last). The small child's histogram is given; the large child's (if its slot is not
    -1) replaces that of their parent.
    """
    slots, totals, allowed = pairs.slots, pairs.totals, pairs.allowed
    best, children, gains, goes_left = pairs.best, pairs.children, pairs.gains, pairs.goes_left
    base = layout.offset[features[0]]
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
                node_histogram, layout, features, totals[k, side], limits, allowed[k, side], direction, proposal, scratch, split
            )
            gains[k, side] = -1.0
            if split[SCORE] == NO_SPLIT:
                continue
            total = totals[k, side]
            gains[k, side] = gain_of(total, split, limits)
            child_stats(total, split, limits, direction, children[k, side, 0], children[k, side, 1])
            feature = np.int64(split[FEATURE])
            n_bins, at = layout.n_bins[feature], layout.offset[feature] - base
            marks = goes_left[k, side]
            if layout.is_categorical[feature] != 0:
                mark_left_categories(node_histogram, at, n_bins, np.int64(split[SPLIT_BIN]), limits, scratch, marks)
            else:
                for code in range(np.int64(split[SPLIT_BIN]) + 1):
                    marks[code] = 1
                marks[n_bins] = np.uint8(split[MISSING_LEFT])
            if node_histogram[1, at + n_bins] == 0.0:
                # No value was missing here: at prediction, missing values follow the larger child.
                marks[n_bins] = 1 if split[LEFT_H] > total[1] - split[LEFT_H] else 0


@internal
def _search_node(histogram, layout, features, total, limits, allowed, direction, proposal, scratch, best):
    """Find the best split of a node over some features (first, last), whose buckets begin at 0."""
    clear_split(best)
    base = layout.offset[features[0]]
    for feature in range(features[0], features[1]):
        if not allowed[feature]:
            continue
        at, n_bins = layout.offset[feature] - base, layout.n_bins[feature]
        if layout.is_categorical[feature] != 0:
            search_categorical(histogram, at, n_bins, feature, total, limits, scratch, best)
            continue
        if proposal is not None:
            search_proposed(histogram, at, n_bins, feature, direction, total, limits, proposal, scratch, best)
        elif direction is not None:
            search_bounded(histogram, at, n_bins, feature, direction[feature], total, limits, best)
        else:
            search_numeric(histogram, at, n_bins, feature, total, limits, scratch, best)


@kernel
def _search_packed_pairs(histograms, packed, pairs, layout, limits, direction, scratch):
    """Do the work of `_search_pairs` for all features, with packed prefix sums (see `kernels.splits.search_packed`)."""
    packed_sums, packed_counts = packed.sums, packed.counts
    slots, totals, allowed = pairs.slots, pairs.totals, pairs.allowed
    best, children, gains, goes_left = pairs.best, pairs.children, pairs.gains, pairs.goes_left
    n_features = len(layout.n_bins)
    for k in range(len(histograms)):
        small, large = slots[k]
        for feature in range(n_features):
            start, stop = layout.offset[feature], layout.offset[feature + 1]
            g, h, sums = histograms[k, 0, start:stop], histograms[k, 1, start:stop], packed_sums[small, start:stop]
            running = np.int64(0)
            for b in range(sums.size):
                running += (np.int64(g[b]) << np.int64(32)) + np.int64(h[b])
                sums[b] = running
            if large >= 0:
                rest = packed_sums[large, start:stop]
                for b in range(sums.size):
                    rest[b] -= sums[b]
            if packed_counts.size > 0:
                n, counts = histograms[k, 2, start:stop], packed_counts[small, start:stop]
                running = np.int64(0)
                for b in range(counts.size):
                    running += np.int64(n[b])
                    counts[b] = running
                if large >= 0:
                    rest = packed_counts[large, start:stop]
                    for b in range(counts.size):
                        rest[b] -= counts[b]
        for side in range(2):
            slot = slots[k, side]
            if slot < 0:
                continue
            total, split = totals[k, side], best[k, side]
            clear_split(split)
            for feature in range(n_features):
                if allowed[k, side, feature]:
                    search_packed(
                        packed, slot, layout.offset[feature], layout.n_bins[feature], feature, total, limits, scratch, split
                    )
            gains[k, side] = -1.0
            if split[SCORE] == NO_SPLIT:
                continue
            gains[k, side] = gain_of(total, split, limits)
            child_stats(total, split, limits, direction, children[k, side, 0], children[k, side, 1])
            best_feature = np.int64(split[FEATURE])
            n_bins, at = layout.n_bins[best_feature], layout.offset[best_feature]
            marks = goes_left[k, side]
            for code in range(np.int64(split[SPLIT_BIN]) + 1):
                marks[code] = 1
            marks[n_bins] = np.uint8(split[MISSING_LEFT])
            if np.int32(packed_sums[slot, at + n_bins] - packed_sums[slot, at + n_bins - 1]) == 0:
                # No value was missing here: at prediction, missing values follow the larger child.
                marks[n_bins] = 1 if split[LEFT_H] > total[1] - split[LEFT_H] else 0


def can_stay_packed(task: TreeTask, n_rows: int, by_unit: bool) -> bool:
    """Return whether histograms of numeric features may stay packed.

    This requires that the halves of a word cannot overflow, and that the split gain has no L1 penalty, step limit or bounds.
    Buckets with counts overflow earlier; they are flushed to histograms by channel, which exist only if threads divide rows.
    """
    limits, packing = task.limits, task.packing
    most = packing.rows
    if limits.count_channel == 2 and not by_unit:
        most *= 2**31 // (packing.max_gradient * (packing.count_mask + 1) // 2)
    is_plain = limits.l1 == 0.0 and limits.max_step == math.inf and limits.is_bounded == 0
    return n_rows <= most and is_plain and task.node_bins is None
