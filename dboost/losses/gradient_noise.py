"""The variance of gradients, v = Σ g² / Σ h of a tree, which decides what categories are rare in a node (see `kernels.splits`).

The pass that computes the gradients of some rows adds up both sums, so they need no further pass and no call of their own.
The scales of histograms follow from the largest gradient, which is known after the pass only: so numbers are added up by their
exponents, and the sums are Python integers, the same for any division of the rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels.rows import SQUARES_SHAPE, TOTALS_SHAPE, sum_squares


class GradientNoise(NamedTuple):
    """Exact sums of the gradients' squares and of the Hessians that a tree grows by."""

    squares: int  # in units of 2**-276: the square of the smallest float32 with 13 significant bits
    hessians: int  # in units of 2**-149: the smallest float32

    def merge(self, others: GradientNoise) -> GradientNoise:
        return GradientNoise(self.squares + others.squares, self.hessians + others.hessians)

    @property
    def ratio(self) -> float:
        """Σ g² / Σ h."""
        return self.squares / (max(self.hessians, 1) << 127)


def noise_of(gradient: np.ndarray, hessian: np.ndarray, repeat_count: np.ndarray) -> GradientNoise:
    """Return the sums of some rows.

    gradient : float32[n]; hessian : float32[n], empty for 1 each; repeat_count : uint8[n], how often each row counts, empty for
    once.
    """
    sums, totals = np.empty(SQUARES_SHAPE, np.int64), np.empty(TOTALS_SHAPE, "<u8")
    sum_squares(gradient.view(np.int32), hessian.view(np.int32), repeat_count, sums, totals)
    squares, hessians = totals
    return GradientNoise(int.from_bytes(squares.tobytes(), "little"), int.from_bytes(hessians.tobytes(), "little"))
