"""What a shard says of its residuals y - F, leaf by leaf: questions that `Engine.ask` carries to where the rows are.

The leaves are those of the tree grown last, the scores those before it, and the rows those that took part in it. All
answers are sums of integers (or minima), so they merge exactly.
"""

from __future__ import annotations

import numpy as np

from dboost.growth.task import Part
from dboost.kernels.ranks import (
    FIRST_SHIFT,
    N_DIGITS,
    add_clipped,
    collect_keys,
    count_digits,
    count_influence,
    count_near,
    next_keys,
)
from dboost.shard.merging import merged_by
from dboost.shard.shard import Shard
from dboost.statistics.quantiles import FEW


@merged_by(np.add)
def leaf_digits(
    shard: Shard, first: int, last: int, part: Part, n_leaves: int, unit: float, prefix: np.ndarray, shift: np.uint64
) -> np.ndarray:
    """Weights of residuals by leaf and by the next byte of their rank keys: int64[n_leaves, 256]; see `kernels.ranks`."""
    counts = np.zeros((n_leaves, 256), np.int64)
    count_digits(
        shard.target, shard.raw, shard.weight, shard.leaf, False, *shard.places(part, first, last), prefix, shift, unit, counts
    )
    return counts


def joined(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    """Residuals of two parts of the rows, in any order; None (too many) if there are too many of either or both."""
    if one is None or other is None or len(one) + len(other) > FEW:
        return None
    return np.concatenate((one, other))


@merged_by(joined)
def leaf_keys(
    shard: Shard, first: int, last: int, part: Part, unit: float, prefix: np.ndarray, shift: np.uint64
) -> np.ndarray | None:
    """Leaf, rank key and weight of residuals that share the bytes found so far: uint64[n, 3], or None if there are too many."""
    found = np.empty((FEW, 3), np.uint64)
    n = collect_keys(
        shard.target, shard.raw, shard.weight, shard.leaf, False, *shard.places(part, first, last), prefix, shift, unit, found
    )
    return found[:n] if n <= FEW else None


@merged_by(np.minimum)
def leaf_next(shard: Shard, first: int, last: int, part: Part, keys: np.ndarray) -> np.ndarray:
    """The smallest rank keys above these in each leaf: uint64[n_leaves]."""
    following = np.full(len(keys), ~np.uint64(0))
    next_keys(shard.target, shard.raw, shard.leaf, False, *shard.places(part, first, last), keys, following)
    return following


@merged_by(np.add)
def leaf_clipped(
    shard: Shard, first: int, last: int, part: Part, centre: np.ndarray, bound: float, unit: float, weight_unit: float
) -> np.ndarray:
    """Sums by leaf of residuals relative to a centre and clipped, and of weights: float64[n_leaves, 2], integers."""
    sums = np.zeros((len(centre), 2))
    add_clipped(
        shard.target,
        shard.raw,
        shard.weight,
        shard.times,
        shard.leaf,
        centre,
        bound,
        *shard.places(part, first, last),
        unit,
        weight_unit,
        sums,
    )
    return sums


@merged_by(np.add)
def size_digits(shard: Shard, first: int, last: int, unit: float, prefix: np.ndarray, shift: np.uint64) -> np.ndarray:
    """Weights of all residuals by the next byte of the rank keys of their sizes |y - F|: int64[1, 256]."""
    counts = np.zeros((1, 256), np.int64)
    count_digits(shard.target, shard.raw, shard.weight, None, True, None, first, last, prefix, shift, unit, counts)
    return counts


@merged_by(joined)
def size_keys(shard: Shard, first: int, last: int, unit: float, prefix: np.ndarray, shift: np.uint64) -> np.ndarray | None:
    """The same for the sizes of all residuals."""
    found = np.empty((FEW, 3), np.uint64)
    n = collect_keys(shard.target, shard.raw, shard.weight, None, True, None, first, last, prefix, shift, unit, found)
    return found[:n] if n <= FEW else None


@merged_by(np.minimum)
def size_next(shard: Shard, first: int, last: int, keys: np.ndarray) -> np.ndarray:
    """The smallest rank key of a residual's size above this one: uint64[1]."""
    following = np.full(1, ~np.uint64(0))
    next_keys(shard.target, shard.raw, None, True, None, first, last, keys, following)
    return following


def _near(shard: Shard, first: int, last: int, output: int, prefix: int, shift: int, width: int) -> np.ndarray | None:
    """The rows that `influence_digits` has to look at, where they are known."""
    digit = prefix >> (FIRST_SHIFT - shift - width)
    return None if shard.near is None else shard.near.rows(first, last, output, digit)


@merged_by(np.add, is_short=lambda *asked: _near(*asked) is not None)
def influence_digits(shard: Shard, first: int, last: int, output: int, prefix: int, shift: int, width: int) -> np.ndarray:
    """Influence by the next digit of its bits, of the rows that share the digits found so far: int64[N_DIGITS]."""
    sums = np.zeros(N_DIGITS, np.int64)
    influence, rows = shard.influence(output), _near(shard, first, last, output, prefix, shift, width)
    if rows is None:
        count_influence(influence, shard.times, first, last, prefix, shift, width, sums)
    else:
        count_near(influence, shard.times, rows, prefix, shift, width, sums)
    if shard.near is not None:
        shard.near.expect(output, prefix >> (FIRST_SHIFT - shift - width))
    return sums
