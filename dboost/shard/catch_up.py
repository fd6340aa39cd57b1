"""Bringing rows up to date with trees that were grown without them.

Held-out rows take in every tree as it is grown; rows that a worker was given late, because another one died or because it
has just joined, take in all of them at once. The trees speak in codes here, not in values, and their leaf values are added
in their order: ``((baseline + v1) + v2) + …`` are the very sums that training makes, to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dboost.growth.task import GrownTree
from dboost.kernels.histograms import Layout
from dboost.kernels.routing import add_tree
from dboost.shard.shard import Codes


@dataclass(frozen=True, eq=False)
class ValuedTree:
    """A grown tree of one output, and what its leaves add to the scores: float64[n_leaves]."""

    grown: GrownTree
    values: np.ndarray
    output: int


def add_grown(
    codes: Codes, layout: Layout, grown: GrownTree, values: np.ndarray, raw: np.ndarray, first: int, last: int
) -> None:
    """Add leaf values (float64[n_leaves]) to the raw scores (float64[n_rows]) of rows first…last-1."""
    frontier = grown.frontier
    # Of splits the engine's buffer says what they were in an earlier, larger tree; nobody asks for their values.
    of_node = values.take(grown.leaf_of[: grown.n_nodes], mode="clip")
    add_tree(
        codes.narrow, codes.wide, codes.row_of, frontier.feature, frontier.cut, frontier.missing_left, frontier.child,
        layout.n_bins, grown.left_codes, layout.is_categorical, of_node, first, last, raw,
    )  # fmt: skip


def leaves_of(codes: Codes, layout: Layout, grown: GrownTree) -> np.ndarray:
    """The leaf that each row reaches: float64[n_rows], whole numbers."""
    reached = np.zeros(codes.n_rows)
    add_grown(codes, layout, grown, np.arange(grown.n_leaves, dtype=np.float64), reached, 0, codes.n_rows)
    return reached
