"""Split search: summed histograms in, the best split of each node out.

A `SplitFinder` searches the histograms of a range of features: all of them, or the range of one of several *feature owners*.
It stores the histogram of every leaf, because of two children only one is added up and the other is the parent minus that.
Its result (`BestSplits`) is a few numbers per node. The best split of all features is the best one of the ranges' best splits.
The reducer therefore needs no histograms of the owners, and a large histogram never has to be in one process.

**Features that a node may split by** follow from interaction constraints and feature sampling.

*Groups.* Interaction constraints are groups of features: a node may split by the features of those groups that contain all
features above it. At the root all groups are active; below a split on f, those active groups that contain f.

*Samples.* With feature sampling a node may split by a random share of these features. The sample is decided by a hash of the
tree's seed and the node's path, i.e. the left and right turns from the root, so it does not depend on when or where the node is
searched. Features are taken one after the other with probability m / r, where m features are still wanted of the r that are
left (selection sampling).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dboost.kernels import internal, kernel
from dboost.kernels.histograms import BinLayout, Histograms, PackedSums, subtract
from dboost.kernels.records import record
from dboost.kernels.rows import splitmix
from dboost.kernels.split_search import SplitSearch, mark_codes, search_feature
from dboost.kernels.splits import FEATURE, NO_SPLIT, SCORE, SPLIT_SIZE, clear_split, new_search_scratch
from dboost.rows.bin_proposal import new_proposal_buffers
from dboost.trees.tree_task import FeatureConstraints, TreeTask, child_stats, gain_of

U = np.uint64


@record
class FeaturePaths(NamedTuple):
    """Path hash and active groups of each node of a growing tree."""

    path_hash: np.ndarray  # uint64[n_nodes]: hash of the path from the root
    active: np.ndarray  # uint8[n_nodes, n_groups]: groups that contain all features above
    open: np.ndarray  # uint8[2, n_features]: features that the two newest nodes may split by


def new_feature_paths(constraints: FeatureConstraints, n_nodes: int) -> FeaturePaths:
    n_groups, n_features = len(constraints.first_member) - 1, len(constraints.first_group) - 1
    return FeaturePaths(np.zeros(n_nodes, U), np.zeros((n_nodes, n_groups), np.uint8), np.zeros((2, n_features), np.uint8))


@internal
def init_path(constraints, paths):
    """Initialise the root: an empty path, all groups active."""
    paths.path_hash[0] = constraints.seed[0]
    for group in range(paths.active.shape[1]):
        paths.active[0, group] = 1


@internal
def extend_path(constraints, paths, node, feature, child, side):
    """Extend the path to a child (side 0: left, 1: right) of a node that is split by a feature."""
    paths.path_hash[child] = splitmix(paths.path_hash[node] + U(0x9E3779B97F4A7C15) * U(1 + side))
    for group in range(paths.active.shape[1]):
        paths.active[child, group] = 0
    for k in range(constraints.first_group[feature], constraints.first_group[feature + 1]):
        group = constraints.groups[k]
        paths.active[child, group] = paths.active[node, group]


@internal
def mark_allowed_features(constraints, allowed, paths, node, row):
    """Mark in ``paths.open[row]`` the features that a node may split by. allowed : uint8[n_features], those of the tree."""
    n_features, n_groups = allowed.size, paths.active.shape[1]
    for feature in range(n_features):
        paths.open[row, feature] = allowed[feature] if n_groups == 0 else 0
    for group in range(n_groups):
        if paths.active[node, group] != 0:
            for k in range(constraints.first_member[group], constraints.first_member[group + 1]):
                paths.open[row, constraints.members[k]] = allowed[constraints.members[k]]
    if constraints.share >= 1.0:
        return
    left = 0
    for feature in range(n_features):
        left += 1 if paths.open[row, feature] != 0 else 0
    wanted = int(np.ceil(constraints.share * left))
    for feature in range(n_features):
        if paths.open[row, feature] == 0:
            continue
        hashed = splitmix(paths.path_hash[node] + U(feature + 1) * U(0xD1B54A32D192ED03))
        if np.float64(hashed >> U(11)) * 2.0**-53 * left < wanted:
            wanted -= 1
        else:
            paths.open[row, feature] = 0
        left -= 1


# For the round-based grower, whose nodes have no fixed number: node 0 is the parent, 1 and 2 are its children.


@kernel
def mark_root(constraints, allowed, paths):
    init_path(constraints, paths)
    mark_allowed_features(constraints, allowed, paths, 0, 0)


@kernel
def mark_children(constraints, allowed, paths, feature):
    for side in range(2):
        extend_path(constraints, paths, 0, feature, 1 + side, side)
        mark_allowed_features(constraints, allowed, paths, 1 + side, side)


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


@record
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

    best : float64[SPLIT_SIZE] (see `kernels.splits`); total, children : float64[5] and float64[2, 5], sums of the node, and of
    its left and right child; gain : of the split, -1 if it is not worth a leaf; goes_left : uint8[n_codes], which bin codes of
    the split feature go left, the last of which is "missing".
    """

    best: np.ndarray
    total: np.ndarray
    children: np.ndarray
    gain: float
    goes_left: np.ndarray

    def __reduce__(self) -> tuple[Any, ...]:
        # As bytes, because pickle takes ten times as long for arrays.
        arrays = self.best, self.total, self.children, self.goes_left
        return _split_info_of, (float(self.gain), *(array.tobytes() for array in arrays))


def _split_info_of(gain: float, best: bytes, total: bytes, children: bytes, goes_left: bytes) -> SplitInfo:
    """Return the split that was pickled."""
    arrays = [np.frombuffer(bytearray(part)) for part in (best, total, children)]
    return SplitInfo(arrays[0], arrays[1], arrays[2].reshape(2, 5), gain, np.frombuffer(bytearray(goes_left), np.uint8))


BestSplits = list[SplitInfo]


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
        self._n_codes = int(layout.n_bins.max()) + 1
        proposal = None if task.node_bins is None else new_proposal_buffers(task.node_bins)
        self._search = SplitSearch(task.limits, task.direction, proposal, new_search_scratch(self._n_codes))
        self._is_packed = (
            n_rows is not None
            and (self._first, self._last) == (0, len(layout.n_bins))
            and not layout.is_categorical.any()
            and task.can_stay_packed(n_rows)
        )
        #: Histograms of leaves, and the slot of each node.
        self._stored: Histograms = _no_histograms(is_packed=self._is_packed)
        if after is not None and after._is_packed == self._is_packed:
            self._stored = after._stored
        self._slot_of: dict[int, int] = {}
        self._n_slots = 0
        self._allowed = np.empty((0, 2, len(task.allowed)), np.uint8)

    def find_best_splits(self, pairs: Sequence[SiblingPair], histograms: np.ndarray) -> BestSplits:
        """Return the best splits of the pairs' children: small, large, small, large, …

        histograms : int32 or float64[len(pairs), n_channels, n_buckets of these features], of the small children over all rows.
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
        if self._is_packed:
            histograms = histograms.astype(np.int32, copy=False)  # all sums fit
        _search_pairs(histograms, self._stored, arrays, self._layout, (self._first, self._last), self._search)
        n_codes = self._layout.n_bins + 1
        gain_of = gains.tolist()
        splits = []
        for k, pair in enumerate(pairs):
            for side in range(2 if pair.large >= 0 else 1):
                split = best[k, side]
                n_marks = 0 if split[SCORE] == NO_SPLIT else n_codes[int(split[FEATURE])]
                marks = goes_left[k, side, :n_marks]
                splits.append(SplitInfo(split, totals[k, side], children[k, side], gain_of[k][side], marks))
        return splits

    def _reserve(self, n: int, shape: tuple[int, ...]) -> None:
        """Grow the buffers so that they hold the histograms of `n` more nodes. shape : (n_channels, n_buckets)."""
        by_channel, packed = self._stored
        if by_channel is not None:
            by_channel = self._with_room(by_channel, n, shape)
        if packed is not None:
            counts = packed.counts
            if self._task.limits.count_channel == 2:
                counts = self._with_room(counts, n, shape[1:])
            packed = PackedSums(self._with_room(packed.sums, n, shape[1:]), counts)
        self._stored = Histograms(by_channel, packed)

    def _with_room(self, stored: np.ndarray, n: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return the histograms that are stored so far in an array with room for `n` more."""
        if self._n_slots + n <= len(stored) and stored.shape[1:] == shape:
            return stored
        larger = np.empty((max(2 * len(stored), self._n_slots + n), *shape), stored.dtype)
        if self._n_slots:
            larger[: self._n_slots] = stored[: self._n_slots]
        return larger

    def _sum(self, histogram: np.ndarray) -> np.ndarray:
        """Return a node's sums, which are those of the buckets of any one feature."""
        n_codes = int(self._layout.offset[self._first + 1] - self._layout.offset[self._first])
        gradient, hessian, *count = histogram[:, :n_codes].sum(axis=1).tolist()
        return np.array([gradient, hessian, count[0] if count else hessian, -np.inf, np.inf])


def _no_histograms(*, is_packed: bool) -> Histograms:
    """Return histograms of no slots."""
    none = np.empty((0, 0), np.int64)
    return Histograms(None, PackedSums(none, none)) if is_packed else Histograms(np.empty((0, 0, 0)), None)


@kernel
def _search_pairs(summed, histograms, pairs, layout, features, search):
    """Store the histograms of children, and find their best splits over some features.

    summed : int32 or float64[n_pairs, n_channels, n_buckets], of the small children; histograms : Histograms by slot; pairs :
    PairArrays; features : (first, last); search : SplitSearch.
    """
    slots, totals, allowed = pairs.slots, pairs.totals, pairs.allowed
    best, children, gains = pairs.best, pairs.children, pairs.gains
    base = layout.offset[features[0]]
    for k in range(len(slots)):
        _store_pair(summed[k], histograms, slots[k, 0], slots[k, 1], layout)
        for side in range(2):
            slot, total, split = slots[k, side], totals[k, side], best[k, side]
            if slot < 0:
                continue
            clear_split(split)
            for feature in range(features[0], features[1]):
                if allowed[k, side, feature]:
                    search_feature(histograms, slot, layout.offset[feature] - base, layout, feature, total, search, split)
            gains[k, side] = -1.0
            if split[SCORE] == NO_SPLIT:
                continue
            gains[k, side] = gain_of(total, split, search.limits)
            child_stats(total, split, search.limits, search.direction, children[k, side, 0], children[k, side, 1])
            at = layout.offset[np.int64(split[FEATURE])] - base
            mark_codes(histograms, slot, at, layout, split, total, search, pairs.goes_left[k, side])


@internal
def _store_pair(summed, histograms, small, large, layout):
    """Store the histogram of a small child in its slot; make that of its parent, in the slot of the large child (-1 for none),
    the large child's."""
    if histograms.by_channel is not None:
        for channel in range(summed.shape[0]):
            sums, stored = summed[channel], histograms.by_channel[small, channel]
            for b in range(sums.size):
                stored[b] = sums[b]
    if histograms.packed is not None:
        for feature in range(len(layout.n_bins)):
            start, stop = layout.offset[feature], layout.offset[feature + 1]
            _store_packed(summed[:, start:stop], histograms.packed, small, start)
    if large >= 0:
        subtract(histograms, large, small, np.int64(0), np.int64(summed.shape[1]))


@internal
def _store_packed(summed, packed, slot, start):
    """Store the sums of a feature (int32[n_channels, n]), whose first bucket is `start`, as prefix sums."""
    running, n_rows = np.int64(0), np.int64(0)
    for b in range(summed.shape[1]):
        running += (np.int64(summed[0, b]) << np.int64(32)) + np.int64(summed[1, b])
        packed.sums[slot, start + b] = running
    if packed.counts.size > 0:
        for b in range(summed.shape[1]):
            n_rows += np.int64(summed[2, b])
            packed.counts[slot, start + b] = n_rows
