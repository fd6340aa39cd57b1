"""Bins of a tree, as joined fine bins (see `trees.bin_proposal`), and the codes of rows in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dboost.kernels.bins import propose_fine_bins
from dboost.kernels.histograms import BinLayout
from dboost.rows.shard import Shard


@dataclass(frozen=True, eq=False)
class BinMerge:
    """A tree's bins: the last fine bin of each, int64[n_features, n_bins]; unused entries hold the feature's last fine bin."""

    last: np.ndarray

    @classmethod
    def propose(cls, mass: np.ndarray, fine_bins: BinLayout, bins: BinLayout) -> BinMerge:
        """Propose bins of about equal mass.

        mass : int64[n_buckets], the Hessian sums by fine bin; fine_bins, bins : layouts of both. Categories (and fine bins of
        features that have few) stay as they are.
        """
        # Features that keep their fine bins need no proposal; a categorical one may have very many.
        most = np.where(bins.n_bins == fine_bins.n_bins, 1, bins.n_bins)
        last = np.zeros((len(most), int(most.max())), np.int64)
        propose_fine_bins(mass.astype(np.float64), fine_bins.n_bins, most, last)
        return cls(last)

    def bin_of(self, feature: int, n_fine_bins: int) -> np.ndarray:
        """Return the bin of each fine bin: int64[n_fine_bins]."""
        return np.searchsorted(self.last[feature], np.arange(n_fine_bins), side="left")


def merge_into_bins(bin_merge: BinMerge, shard: Shard, first: int, last: int) -> None:
    """Write the codes of a tree's bins for rows first…last-1."""
    for feature in np.flatnonzero(~shard.spec.is_identity_bin_map).tolist():
        n_fine_bins, n_bins = int(shard.layout.n_bins[feature]), int(shard.bin_layout.n_bins[feature])
        bins = np.append(np.minimum(bin_merge.bin_of(feature, n_fine_bins), n_bins - 1), n_bins).astype(np.uint8)
        np.take(bins, shard.codes.of(feature)[first:last], out=shard.bins.of(feature)[first:last])
    shard.fill_tiles(first, last)
