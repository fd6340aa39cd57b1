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

import numpy as np

from dboost.kernels.bins import ProposalBuffers
from dboost.rows.bin_merge import BinMerge
from dboost.trees.fit_trees import FitTree

#: Fine bins per bin, with ``split_proposal="node"``: a node with one row in sixteen still has bins of its own width.
FINE_BINS_PER_BIN = 16


def new_proposal_buffers(n_bins: int) -> ProposalBuffers:
    """Return the buffers for searching nodes by bins of their own."""
    return ProposalBuffers(np.zeros(n_bins, np.int64), np.zeros((3, n_bins + 1)))


def in_fine_bins(tree: FitTree, bin_merge: BinMerge | None, kept: np.ndarray) -> None:
    """Convert the splits of a tree from bins to fine bins, in place.

    kept : bool[n_features], features whose bins are their fine bins.
    """
    if bin_merge is None:
        return
    nodes = tree.nodes
    for node in np.flatnonzero(nodes.child >= 0):
        feature = nodes.feature[node]
        if not kept[feature]:
            # A split after the last bin separates the missing values, and so does one after the last fine bin.
            row = bin_merge.last[feature]
            nodes.split_bin[node] = row[min(nodes.split_bin[node], len(row) - 1)]
