"""Statistics of gradients and Hessians of all rows, which are merged exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dboost.losses.gradient_noise import GradientNoise


class GradientStats(NamedTuple):
    """Gradient statistics of a pass over all rows: exact, and the same for any division of the rows."""

    max_gradient: np.ndarray  # float64[n_outputs]
    max_hessian: np.ndarray  # float64[n_outputs]
    coarse_loss: float
    fine_loss: float
    #: With influence trimming, Hessian sums by their first digit: int64[n_outputs, N_DIGITS], see `exact`.
    influence: np.ndarray | None = None
    #: The largest gradient and Hessian along the direction of a tree of all outputs: float64[2].
    max_split: np.ndarray | None = None
    #: Of each tree, if features are categorical.
    noise: tuple[GradientNoise, ...] | None = None

    @classmethod
    def of_outputs(cls, outputs: Sequence[GradientStats]) -> GradientStats:
        """Return the statistics of all outputs of some rows; the loss is their sum."""
        influence = [output.influence for output in outputs if output.influence is not None]
        return cls(
            np.concatenate([output.max_gradient for output in outputs]),
            np.concatenate([output.max_hessian for output in outputs]),
            sum(output.coarse_loss for output in outputs),
            sum(output.fine_loss for output in outputs),
            np.concatenate(influence) if influence else None,
        )

    def merge(self, others: GradientStats) -> GradientStats:
        """Return the statistics of the rows of both: exact, associative and commutative."""
        noise = None
        if self.noise is not None and others.noise is not None:
            noise = tuple(map(GradientNoise.merge, self.noise, others.noise))
        return GradientStats(
            np.maximum(self.max_gradient, others.max_gradient),
            np.maximum(self.max_hessian, others.max_hessian),
            self.coarse_loss + others.coarse_loss,
            self.fine_loss + others.fine_loss,
            None if self.influence is None or others.influence is None else self.influence + others.influence,
            None if self.max_split is None or others.max_split is None else np.maximum(self.max_split, others.max_split),
            noise,
        )
