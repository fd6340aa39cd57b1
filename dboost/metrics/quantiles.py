"""Exact quantiles of numbers that lie anywhere, of many groups at once, in a few passes over them: ten at most.

A quantile of level τ is the smallest number v such that the numbers up to v have at least the share τ of the weight; if it is
exactly that share, everything from v to the next larger number minimises the pinball loss, and the middle between the two is
taken. So an unweighted median is NumPy's, to the bit, and a row of weight 2 counts like the row twice.

Nothing is sorted and no number leaves its place. The bits of a float64 can be turned into an unsigned integer that orders alike
(`kernels.quantile_keys`); its eight bytes are found one after the other, from the highest. A pass adds up, for each group, the
weights of the numbers that share the bytes found so far by their next byte: 256 integers a group, which merge by addition. The
ninth pass looks for the next larger numbers, where a share is met exactly. As soon as few numbers are left that share the bytes
found, after two or three passes, they are told themselves and the rest is found among them.

Weights are added as integers, in a unit that leaves at least 61 - log2(rows) bits for the heaviest of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

#: Passes over the rows for one set of quantiles.
MOST_PASSES = 9

#: So many numbers are told at the most.
FEW = 16_384

_SIGN = np.uint64(1 << 63)


def exact_level(level: float) -> Fraction:
    """The level that the user wrote: 0.9 is nine tenths, not the float next to it."""
    return Fraction(repr(level))


def rank_unit(max_weight: float, n_rows: int) -> float:
    """What weights are multiplied by, so that the sum of them all is below 2**62."""
    return 2.0 ** (61 - math.ceil(math.log2(max(n_rows, 2))) - math.frexp(max_weight)[1])


def find_quantiles(
    count: Callable[[np.ndarray, np.uint64], np.ndarray],
    above: Callable[[np.ndarray], np.ndarray],
    level: Fraction,
    n_groups: int,
    collect: Callable[[np.ndarray, np.uint64], np.ndarray | None] | None = None,
    n_rows: int = 0,
) -> np.ndarray:
    """A quantile of each group: float64[n_groups], 0 for groups without numbers.

    Parameters
    ----------
    count : callable
        Given the keys' bytes found so far (uint64[n_groups]) and the bits below the next one, the weights of all numbers that
        share them, by their next byte: int64[n_groups, 256].
    above : callable
        Given keys (uint64[n_groups]), the smallest key of each group above its own (uint64[n_groups]).
    level : Fraction
        Between 0 and 1, both excluded.
    n_groups : int
    collect : callable, optional
        Given bytes found so far and the bits below them, all numbers that share them: uint64[n, 3], group, key and weight; or
        None if there are more than `FEW`. (What is found does not depend on it.)
    n_rows : int
        How many numbers there are, about: `collect` is asked when few may be left.
    """
    groups = np.arange(n_groups)
    prefix, below = np.zeros(n_groups, np.uint64), np.zeros(n_groups, np.int64)
    need, met, everything = np.zeros(n_groups, np.int64), np.zeros(n_groups, bool), 1.0
    for shift in range(56, -8, -8):
        reached = below[:, None] + count(prefix, np.uint64(shift)).cumsum(axis=1)
        if shift == 56:
            everything = max(float(reached[:, -1].sum()), 1.0)
            shares = [level * int(whole) for whole in reached[:, -1]]
            need = np.array([math.ceil(share) for share in shares], np.int64)
            met = np.array([share.denominator == 1 for share in shares])
        # The first byte with which the share is reached.
        byte = (reached < need[:, None]).sum(axis=1)
        below = np.where(byte > 0, reached[groups, byte - 1], below)
        prefix = (prefix << np.uint64(8)) | byte.astype(np.uint64)
        if collect is None or not 0 < shift < 56:
            continue
        left = float((reached[groups, byte] - below).sum()) / everything
        if left * n_rows <= FEW:
            told = collect(prefix, np.uint64(shift))
            if told is not None:
                return _among(told, below, need, met, above)
            collect = None  # many numbers of little weight: not asked again, or there would be no end of passes
    met &= (reached[groups, byte] == need) & (need > 0)
    found = from_keys(prefix)
    if met.any():
        found[met] = (found[met] + from_keys(above(prefix))[met]) / 2.0
    return np.where(need > 0, found, 0.0)


def _among(
    told: np.ndarray, below: np.ndarray, need: np.ndarray, met: np.ndarray, above: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The quantiles among the numbers told (uint64[n, 3]); `below` is the weight of each group's smaller ones."""
    group, key, weight = told[np.lexsort((told[:, 1], told[:, 0]))].T
    last = np.append((group[1:] != group[:-1]) | (key[1:] != key[:-1]), True)[: len(key)]
    running = weight.astype(np.int64).cumsum()[last]
    group, key = group[last].astype(np.int64), key[last]
    begin = np.searchsorted(group, np.arange(len(need)))
    reached = running - np.append(0, running)[begin][group] + below[group]
    # The first key of each group with which its share is reached; every group that holds numbers has one.
    at = np.flatnonzero(reached >= need[group])
    owner, first = np.unique(group[at], return_index=True)
    at = at[first]
    keys, following = np.zeros(len(need), np.uint64), np.zeros(len(need), np.uint64)
    keys[owner] = key[at]
    exact = np.zeros(len(need), bool)
    exact[owner] = met[owner] & (reached[at] == need[owner])
    exact &= need > 0
    followed = (at + 1 < len(key)) & (np.append(group, -1)[at + 1] == owner)
    following[owner[followed]] = key[at[followed] + 1]
    unknown = exact & (following == 0)
    if unknown.any():
        following[unknown] = above(keys)[unknown]
    found = from_keys(keys)
    found[exact] = (found[exact] + from_keys(following)[exact]) / 2.0
    return np.where(need > 0, found, 0.0)


def find_size(
    level: Fraction,
    count: Callable[..., np.ndarray],
    above: Callable[[np.ndarray], np.ndarray],
    collect: Callable[..., np.ndarray | None] | None = None,
    n_rows: int = 0,
) -> float:
    """A positive number to divide small from large sizes by: their quantile; the smallest that is not zero if that is; else 1.

    count, above, collect, n_rows : as in `find_quantiles`, for one group of numbers that are not negative.
    """
    found = float(find_quantiles(count, above, level, 1, collect, n_rows)[0])
    if found > 0:
        return found
    following = float(from_keys(above(np.array([_SIGN])))[0])
    return following if math.isfinite(following) else 1.0


def from_keys(keys: np.ndarray) -> np.ndarray:
    """The numbers that have these rank keys (uint64): float64."""
    return (keys ^ np.where(keys & _SIGN, _SIGN, ~np.uint64(0))).view(np.float64)
