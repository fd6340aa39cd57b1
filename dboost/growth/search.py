"""Looking for splits: merged histograms in, the best split of each node out.

A `Searcher` sees the histograms of a range of features, all of them or what one of several *feature owners* is sent, and
keeps the histogram of every leaf: of two children only one is added up, the other is its parent minus that. What it finds
(`Findings`) is a few numbers per node, and merges over the owners: the best split of all features is the best of the
ranges' best. So whoever decides needs no histograms, and a large one need never come together in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dboost.growth.proposal import new_room
from dboost.growth.task import TreeTask
from dboost.kernels import kernel
from dboost.kernels.bounded import search_bounded
from dboost.kernels.histograms import Layout
from dboost.kernels.levels import search_categorical, send_left
from dboost.kernels.proposals import search_cells
from dboost.kernels.splits import CUT, FEATURE, LEFT_H, MISSING_LEFT, NO_SPLIT, SCORE, SPLIT_SIZE, forget, search_numeric


@dataclass(frozen=True, eq=False)
class Opening:
    """A node whose children are to be looked at: `small` is added up, `large` is the parent minus that.

    totals : float64[2, 5], sums of gradients, Hessians and rows of the small and the large child, and the bounds of their
    steps. The root is the small child of nobody: parent = large = -1, and its totals are not known yet.
    open : uint8[2, n_features], what the small and the large child may split by; None for what the tree may.
    """

    parent: int
    small: int
    large: int
    totals: np.ndarray | None
    open: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """The best split of a node: best float64[SPLIT_SIZE] (see `kernels.splits`), total float64[5], and of the chosen
    feature, where its codes go (uint8[n_codes]), the last of which is "missing"."""

    best: np.ndarray
    total: np.ndarray
    goes_left: np.ndarray

    def merge(self, other: Found) -> Found:
        """The better of two features' splits; of equals, the one of the lower feature."""
        mine, others = (self.best[SCORE], -self.best[FEATURE]), (other.best[SCORE], -other.best[FEATURE])
        return self if mine >= others else other


Findings = list[Found]


def merge_findings(parts: Sequence[Findings]) -> Findings:
    """What several feature owners found about the same nodes, as one."""
    merged = parts[0]
    for part in parts[1:]:
        merged = [a.merge(b) for a, b in zip(merged, part, strict=True)]
    return merged


class Searcher:
    """Searches the splits of one tree over a range of features.

    Parameters
    ----------
    task : TreeTask
    layout : Layout
        Of all features.
    first, last : int
        Features first…last-1; default: all.
    """

    def __init__(self, task: TreeTask, layout: Layout, first: int = 0, last: int | None = None) -> None:
        self._task, self._layout = task, layout
        self._first = first
        self._last = len(layout.n_bins) if last is None else last
        self.buckets = slice(int(layout.offset[self._first]), int(layout.offset[self._last]))
        n_codes = int(layout.n_bins.max()) + 1
        self._scratch = np.empty((4, n_codes))
        self._room = None if task.node_bins is None else new_room(task.node_bins)
        self._keys, self._order = np.empty(n_codes), np.empty(n_codes, np.int64)
        self._planes: dict[int, np.ndarray] = {}

    def look(self, openings: Sequence[Opening], planes: np.ndarray) -> Findings:
        """The best splits of the openings' children: small, large, small, large, …

        planes : float64[len(openings), n_planes, n_buckets of these features], of the small children over all rows. They
        are kept: hand in an array of its own.
        """
        found: Findings = []
        for opening, small in zip(openings, planes, strict=True):
            allowed = (self._task.allowed,) * 2 if opening.open is None else opening.open
            if opening.totals is None:
                found.append(self._search(opening.small, small, self._sum(small), allowed[0]))
                continue
            large = self._planes.pop(opening.parent)
            large -= small
            found.append(self._search(opening.small, small, opening.totals[0], allowed[0]))
            found.append(self._search(opening.large, large, opening.totals[1], allowed[1]))
        return found

    def _sum(self, planes: np.ndarray) -> np.ndarray:
        """A node's sums, which are those of any one feature's buckets."""
        n_codes = int(self._layout.offset[self._first + 1] - self._layout.offset[self._first])
        total = np.array([0.0, 0.0, 0.0, -np.inf, np.inf])
        total[: len(planes)] = planes[:, :n_codes].sum(axis=1)
        if len(planes) == 2:
            total[2] = total[1]
        return total

    def _search(self, node: int, planes: np.ndarray, total: np.ndarray, allowed: np.ndarray) -> Found:
        best, layout, limits = np.empty(SPLIT_SIZE), self._layout, self._task.limits
        _search_node(
            planes, layout, self._first, self._last, total, limits, allowed, self._task.direction, self._room,
            self._scratch, self._scratch.view(np.int64), self._keys, self._order, best,
        )  # fmt: skip
        self._planes[node] = planes  # also where nothing is found here: another range of features may split the node
        if best[SCORE] == NO_SPLIT:
            return Found(best, total, np.empty(0, np.uint8))
        feature = int(best[FEATURE])
        n_bins, at = int(layout.n_bins[feature]), int(layout.offset[feature]) - self.buckets.start
        goes_left = np.zeros(n_bins + 1, np.uint8)
        if layout.is_categorical[feature]:
            _levels_left(planes, at, n_bins, int(best[CUT]), limits, self._keys, self._order, goes_left)
        else:
            goes_left[: int(best[CUT]) + 1] = 1
            goes_left[n_bins] = int(best[MISSING_LEFT])
        if planes[1, at + n_bins] == 0.0:
            # Nothing was missing here: at prediction, missing values follow the larger child.
            goes_left[n_bins] = best[LEFT_H] > total[1] - best[LEFT_H]
        return Found(best, total, goes_left)


@kernel
def _search_node(
    planes, layout, first, last, total, limits, allowed, direction, room, scratch, scratch_bits, keys, order, best
):  # fmt: skip
    """The best split of a node over some features, whose buckets begin at 0."""
    forget(best)
    base = layout.offset[first]
    for feature in range(first, last):
        if not allowed[feature]:
            continue
        at, n_bins = layout.offset[feature] - base, layout.n_bins[feature]
        if layout.is_categorical[feature] != 0:
            search_categorical(planes, at, n_bins, feature, total, limits, keys, order, best)
            continue
        if room is not None:
            search_cells(planes, at, n_bins, feature, direction, total, limits, room, scratch, scratch_bits, best)
        elif direction is not None:
            search_bounded(planes, at, n_bins, feature, direction[feature], total, limits, best)
        else:
            search_numeric(planes, at, n_bins, feature, total, limits, scratch, scratch_bits, best)


@kernel
def _levels_left(planes, at, n_levels, cut, limits, keys, order, goes_left):
    send_left(planes, at, n_levels, cut, limits, keys, order, goes_left)
