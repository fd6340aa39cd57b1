"""The influence of a shard's rows on the next tree: their second derivatives, (26) in the paper."""

from __future__ import annotations

import numpy as np

from dboost.kernels.ranks import count_influence
from dboost.shard.shard import Shard


def influence_bits(shard: Shard, output: int) -> np.ndarray:
    """The influence of each row on the next tree of an output, as the bits of a float32: int32[n_rows]."""
    influence = shard.hessian if shard.curvature is None else shard.curvature
    assert influence is not None
    return (influence if influence.ndim == 1 else influence[output]).view(np.int32)


def influence_digits(shard: Shard, first: int, last: int, output: int, unit: float, prefix: int, shift: int) -> np.ndarray:
    """Influence by the next byte of its bits, of the rows that share the bytes found so far: int64[256]."""
    sums = np.zeros(256, np.int64)
    count_influence(influence_bits(shard, output), shard.times, first, last, prefix, shift, unit, sums)
    return sums
