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
        """Add the last tree's leaf values to the scores, and work out gradients, Hessians and the loss."""

    def grow(self, task: TreeTask) -> GrownTree:
        """Grow a tree from the present gradients and Hessians."""

    def close(self) -> None:
        """Let go of threads and buffers."""
