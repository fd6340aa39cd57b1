"""Where features may be cut: bins for the whole fit, for a tree, for a node, or none but the values themselves.

`split_proposal` says when candidates are proposed.

* **global**: once, the quantiles of a sample of the rows (`dboost.data.binning`).
* **tree**: for every tree, as quantiles weighted by the Hessians of the rows that take part in it: more candidates where
  predictions are undecided.
* **node**: after every split, in each of the two children by the Hessians of its own rows: finer bins inside the node.
* **exact**: every distinct value is a candidate.

**BinMerge.** All of them are one thing. Values are coded once, by *cells*: the bins themselves (global), each distinct value
its own (exact), or bins so fine that the others can be made of them (tree: as many as two bytes hold; node: `FINE_BINS_PER_BIN`
for each bin). What is proposed anew is a map from cells to bins, i.e. the last cell of each bin. It follows from the cells'
Hessian sums, which are integers and add up exactly, so it does not depend on how rows are divided. Finished trees speak of
cells: prediction, held-out rows and rows that catch up need not know what the bins were.

*Per tree* the sums are asked of all rows (`shards.statistics`), and rows are put into bins (one byte) before the tree grows.
*Per node* histograms are those of the cells, a node's smaller child is added up and the other is the rest, and the search joins
cells to bins in passing (`kernels.split_candidates`): the memory and the time of `FINE_BINS_PER_BIN` times as many bins.

**Rank errors.** A sample of n rows, all features by themselves, misses a quantile's rank by at most sqrt(ln(2 / δ) / (2 n))
with probability 1 - δ (Dvoretzky, Kiefer, Wolfowitz; Massart): `rank_error` tells it, 0.3 % for 200,000 rows at 95 %. Tables of
so many rows are their own sample and have no such error. Against the cells' sums H, which are exact, a proposed bin has at
most H / max_bins of the Hessian, and the share of its last cell; a cell of more than two bins' share is a bin of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dboost.data.binning import MAX_FINE_BINS
from dboost.kernels.histograms import BinLayout
from dboost.kernels.split_candidates import ProposalBuffers, propose_fine_bins
from dboost.params import Parameters
from dboost.trees.tree_task import GrownTree

#: BinMerge for each bin, with ``split_proposal="node"``: a node of one row in sixteen still has bins of its own width.
FINE_BINS_PER_BIN = 16


def fine_bins_of(parameters: Parameters) -> int:
    """How many cells a numeric feature has at most."""
    return {
        "global": parameters.max_bins,
        "tree": MAX_FINE_BINS,
        "node": FINE_BINS_PER_BIN * parameters.max_bins,
        "exact": MAX_FINE_BINS,
    }[parameters.split_proposal]


def bins_of(parameters: Parameters, n_fine_bins: np.ndarray, is_categorical: np.ndarray) -> np.ndarray:
    """Of each feature, the bins that trees grow by: int64[n_features]; levels of categories are what they are."""
    if parameters.split_proposal != "tree":
        return n_fine_bins
    return np.where(is_categorical, n_fine_bins, np.minimum(n_fine_bins, parameters.max_bins))


def rank_error(n_rows: int, confidence: float = 0.95) -> float:
    """How far the rank of a proposed quantile, as a share of all rows, may be off when `n_rows` were sampled of many.

    Parameters
    ----------
    n_rows : int
        Rows of the sample.
    confidence : float
        The probability that all quantiles of a feature are at least as good.
    """
    return math.sqrt(math.log(2.0 / (1.0 - confidence)) / (2.0 * n_rows))


@dataclass(frozen=True, eq=False)
class BinMerge:
    """A tree's bins: the last cell of each, int64[n_features, n_bins]; unused places hold the last cell of all."""

    last: np.ndarray

    @classmethod
    def propose(cls, mass: np.ndarray, fine_bins: BinLayout, bins: BinLayout) -> BinMerge:
        """Bins of about equal mass.

        mass : int64[n_buckets], the Hessians' sums by cell; cells, bins : layouts of both. Levels of categories (and cells of
        features that have few) stay as they are.
        """
        # Features that keep their cells are not asked for; a categorical one may have very many.
        most = np.where(bins.n_bins == fine_bins.n_bins, 1, bins.n_bins)
        last = np.zeros((len(most), int(most.max())), np.int64)
        propose_fine_bins(mass.astype(np.float64), fine_bins.n_bins, most, last)
        return cls(last)

    def bin_of(self, feature: int, n_fine_bins: int) -> np.ndarray:
        """The bin of each cell: int64[n_cells]."""
        return np.searchsorted(self.last[feature], np.arange(n_fine_bins), side="left")


def new_proposal_buffers(n_bins: int) -> ProposalBuffers:
    """Scratch for searching nodes by bins of their own."""
    return ProposalBuffers(np.zeros(n_bins, np.int64), np.zeros((3, n_bins + 1)))


def in_fine_bins(grown: GrownTree, bin_merge: BinMerge | None, kept: np.ndarray) -> None:
    """Let a tree that was grown by bins speak of cells.

    kept : bool[n_features], features whose bins are their cells.
    """
    if bin_merge is None:
        return
    n, nodes = grown.n_nodes, grown.nodes
    for node in np.flatnonzero(nodes.child[:n] >= 0):
        feature = nodes.feature[node]
        if not kept[feature]:
            # A cut after the last bin separates the missing values, and one after the last cell does.
            row = bin_merge.last[feature]
            nodes.split_bin[node] = row[min(nodes.split_bin[node], len(row) - 1)]
