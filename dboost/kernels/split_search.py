"""The search of one feature, and the codes that its best split sends left: for every grower and form of histograms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import internal
from dboost.kernels.bins import ProposalBuffers, search_proposed
from dboost.kernels.records import record
from dboost.kernels.splits import (
    FEATURE,
    LEFT_H,
    MISSING_LEFT,
    SPLIT_BIN,
    SearchScratch,
    SplitParams,
    gather_levels,
    gather_packed_levels,
    mark_left_categories,
    search_bounded,
    search_categorical,
    search_numeric,
    search_packed,
)

I = np.int64  # noqa: E741


@record
class SplitSearch(NamedTuple):
    """How the splits of a tree are searched, with the scratch of one thread."""

    limits: SplitParams
    direction: np.ndarray | None  # int8[n_features], see `trees.tree_task.child_stats`; None without monotonic constraints
    proposal: ProposalBuffers | None  # if bins are proposed in every node
    scratch: SearchScratch


@internal
def search_feature(histograms, slot, at, layout, feature, total, search, best):
    """Improve `best` (a candidate split) by the best split of a feature.

    histograms : Histograms, of which that in `slot` is the node's; at : the feature's first bucket there; layout : BinLayout;
    total : float64[5], as in `trees.tree_task.NodeArrays`; search : SplitSearch.
    """
    n_bins = layout.n_bins[feature]
    if histograms.packed is not None:
        if histograms.packed.levels is not None:
            if layout.is_categorical[feature] != 0:
                n = gather_packed_levels(histograms.packed, slot, at, feature, search.scratch)
                search_categorical(n, feature, total, search.limits, search.scratch, best)
                return
        search_packed(histograms.packed, slot, at, n_bins, feature, total, search.limits, search.scratch, best)
    if histograms.by_channel is not None:
        sums = histograms.by_channel[slot]
        if layout.is_categorical[feature] != 0:
            n = gather_levels(sums, at, n_bins, search.limits, search.scratch)
            search_categorical(n, feature, total, search.limits, search.scratch, best)
            return
        if search.proposal is not None:
            search_proposed(
                sums, at, n_bins, feature, search.direction, total, search.limits, search.proposal, search.scratch, best
            )
            return
        if search.direction is not None:
            search_bounded(sums, at, n_bins, feature, search.direction[feature], total, search.limits, best)
            return
        search_numeric(sums, at, n_bins, feature, total, search.limits, search.scratch, best)


@internal
def mark_codes(histograms, slot, at, layout, best, total, search, goes_left):
    """Mark the bin codes of the feature of a split that go left; the last of them is "missing".

    histograms, slot, at, layout, total, search : as in `search_feature`; best : the split; goes_left : uint8[n_codes]. If no
    value is missing in the node, missing values follow the larger child at prediction.
    """
    feature, split_bin = I(best[FEATURE]), I(best[SPLIT_BIN])
    n_bins, is_categorical, missing_h, n = layout.n_bins[feature], layout.is_categorical[feature] != 0, 0.0, I(0)
    if histograms.packed is not None:
        if histograms.packed.levels is not None:
            if is_categorical:
                n = gather_packed_levels(histograms.packed, slot, at, feature, search.scratch)
        if not is_categorical:
            prefix = histograms.packed.sums[slot]
            missing_h = np.float64(np.int32(prefix[at + n_bins] - prefix[at + n_bins - 1]))
    if histograms.by_channel is not None:
        if is_categorical:
            n = gather_levels(histograms.by_channel[slot], at, n_bins, search.limits, search.scratch)
        missing_h = histograms.by_channel[slot, 1, at + n_bins]
    if is_categorical:
        if n > 0 and search.scratch.codes[n - 1] == n_bins:
            missing_h = search.scratch.sums[1, n - 1]
        mark_left_categories(n, n_bins, split_bin, total, search.limits, search.scratch, goes_left)
    if not is_categorical:
        for code in range(n_bins):
            goes_left[code] = code <= split_bin
        goes_left[n_bins] = I(best[MISSING_LEFT])
    if missing_h == 0.0:
        goes_left[n_bins] = 1 if best[LEFT_H] > total[1] - best[LEFT_H] else 0
