"""Split candidates: bins proposed once for the fit, for every tree, for every node, or one bin for each distinct value.

The parameter `split_proposal` chooses when candidates are proposed.

* **global**: once, as quantiles of a sample of the rows (`dboost.data.columns.binning`).
* **tree**: for every tree, as quantiles weighted by the Hessians of the rows that take part in it: more candidates where
  predictions are undecided.
* **node**: after every split, in each of the two children, weighted by the Hessians of its own rows: finer bins inside the
  node.
* **exact**: every distinct value is a candidate.

**Fine bins.** All four use one mechanism. Values are coded once, by *fine bins*: the bins themselves (global), one fine bin for
each distinct value (exact), or bins so fine that the others can be made of them (tree: as many as two bytes hold; node:
`FINE_BINS_PER_BIN` for each bin). A proposal is a map from fine bins to bins (`BinMerge`), i.e. the last fine bin of each bin.
It follows from the Hessian sums of the fine bins, which are integers and add up exactly, so it does not depend on how rows are
divided. Finished trees are expressed in fine bins: prediction, evaluation sets and rows that apply earlier trees do not need
the bins.

*Per tree* the Hessian sums are computed over all rows (`rows.statistics`), and rows are put into bins (one byte) before the
tree grows. *Per node* the histograms are those of the fine bins, the smaller child of a node is added up and the other is the
rest, and the search joins fine bins to bins on the way (`kernels.bins`): the memory and the time of
`FINE_BINS_PER_BIN` times as many bins.

**Rank errors.** A sample of n rows misses the rank of a feature's quantiles by at most sqrt(ln(2 / δ) / (2 n)) with probability
1 - δ (Dvoretzky, Kiefer, Wolfowitz; Massart), for all quantiles of the feature at once: 0.3 % for 200,000 rows at 95 %. Tables
with no more rows than the sample have no such error. Relative to the exact sums H of the fine bins, a proposed bin has at most
H / max_bins of the Hessian plus the share of its last fine bin; a fine bin of more than two bins' share is a bin of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dboost.kernels.bins import ProposalBuffers, propose_fine_bins
from dboost.kernels.histograms import BinLayout
from dboost.rows.shard import Shard

#: Fine bins per bin, with ``split_proposal="node"``: a node with one row in sixteen still has bins of its own width.
FINE_BINS_PER_BIN = 16


def new_proposal_buffers(n_bins: int) -> ProposalBuffers:
    """Return the buffers for searching nodes by bins of their own."""
    return ProposalBuffers(np.zeros(n_bins, np.int64), np.zeros((3, n_bins + 1)))


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
        n_fine_bins, n_bins = int(shard.layout.n_bins[feature]), int(shard.tree_layout.n_bins[feature])
        bins = np.append(np.minimum(bin_merge.bin_of(feature, n_fine_bins), n_bins - 1), n_bins).astype(np.uint8)
        np.take(bins, shard.codes.of(feature)[first:last], out=shard.tree_codes.of(feature)[first:last])
    shard.fill_tiles(first, last)
