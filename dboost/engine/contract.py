"""What training asks of an engine. Whoever answers this can train: one process here, a cluster elsewhere."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dboost.growth.task import Extremes, GrownTree, TreeTask


class Engine(Protocol):
    """Holds the training rows, wherever they lie."""

    @property
    def n_rows(self) -> int:
        """Rows of positive weight."""

    def advance(self, values: np.ndarray) -> Extremes:
        """Add the leaf values of the last tree of each output to the scores; then gradients, Hessians and the loss.

        values : float64[n_outputs, n_leaves], rows of trees with fewer leaves filled up.
        """

    def grow(self, task: TreeTask) -> GrownTree:
        """Grow a tree from the present gradients and Hessians of one output."""

    def close(self) -> None:
        """Let go of threads and buffers."""
