"""Exact sums and quantiles of distributed numbers, the same for any division of the rows.

**Sums.** Each number is divided into two integers, a coarse one in units of 1 / unit and a fine one in units of 1 / (unit *
FINE). As long as the total stays below 2**53, float64 adds integers exactly, so sums over any division of the rows agree to the
last bit. `unit_for` chooses the unit; the rounding error is below 2**-50 of the largest number for a million rows.

**Quantiles** are computed for many groups at once, in at most ten passes over the numbers. A quantile of level τ is the
smallest number v such that the numbers up to v have at least the share τ of the weight; if it is exactly that share, everything
from v to the next larger number minimises the pinball loss, and the midpoint of the two is taken. So an unweighted median
equals NumPy's, to the bit, and a row of weight 2 counts like two rows.

Numbers are neither sorted nor sent. The bits of a float64 can be mapped to an unsigned integer with the same order
(`kernels.quantile_keys`); its eight bytes are determined one after the other, from the highest. A pass adds up, for each group,
the weights of the numbers that share the bytes found so far by their next byte: 256 integers per group, which merge by
addition. The ninth pass finds the next larger numbers, for groups where a share is met exactly. As soon as few numbers share
the bytes found, after two or three passes, these numbers are collected and the rest is computed from them.

Weights are added as integers, in a unit that leaves at least 61 - log2(rows) bits for the largest of them.

**Influence trimming** leaves rows out of a tree that together would hardly change it (section 4.5.1 of Friedman 2001). Rows are
ordered by their influence, and the least influential ones are left out, as many as have at most the share α of the total
influence. Nothing is sorted: the influence of the first row that is kept is a quantile of the influences, weighted by
themselves, and is determined by the digits of its bits (`find_cut`). The pass over the rows that computes the influences also
adds them up by the first digit (`GradientStats.influence`): exponent and three bits more. Two passes follow over the bits of
the few rows that have the digit found, ten bits in each; for rows in memory these are mostly known already
(`shards.shard.Near`). Rows of equal influence are kept or left out together, so that the choice does not depend on their order.

These sums are exact. Numbers with the same exponent E are multiples of one power of two, so what is added up is their 24-bit
significands, as 64-bit integers (enough for 2**36 rows), and ``sum · 2**E`` are Python integers. (A number below the normal
ones, 2**-126, counts as if its exponent were smaller still: at most as much as that.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dboost.kernels.quantile_keys import FIRST_SHIFT

#: Fine units per coarse unit.
FINE = 2.0**26
#: Temporary arrays are this long. (The sum of as many integers below 2**27 is exact in float64.)
_VALUES_AT_A_TIME = 2**18


def unit_for(bound: float, n_rows: int, *, spare_bits: int = 0) -> float:
    """Return the power of two by which numbers up to `bound` may be multiplied so that the sum of `n_rows` integers is exact.

    `spare_bits` allows for numbers that are larger than `bound` by that many bits.
    """
    bits = 51 - math.ceil(math.log2(max(n_rows, 2))) - spare_bits
    if not bound > 0 or not math.isfinite(bound):
        return 2.0**bits
    exponent = math.frexp(bound)[1]
    return 2.0 ** min(max(bits - exponent, -1000), 1000)


@dataclass(frozen=True)
class ExactSum:
    """A sum as two exact integers in units of 1 / unit; `merge` is exact, associative and commutative."""

    unit: float
    loss_unit: float = 0.0
    fine: float = 0.0

    @classmethod
    def of(cls, values: np.ndarray, unit: float, times: np.ndarray | None = None) -> ExactSum:
        """Sum a float64 array (the chunk step); with `times` (integers) each value is added that many times."""
        sums = [0.0, 0.0]
        for first in range(0, len(values), _VALUES_AT_A_TIME):
            piece = slice(first, first + _VALUES_AT_A_TIME)
            scaled = values[piece] * unit
            whole = np.rint(scaled)
            fine = np.rint((scaled - whole) * FINE)
            if times is not None:
                whole, fine = whole * times[piece], fine * times[piece]
            sums[0] += float(whole.sum())
            sums[1] += float(fine.sum())
        return cls(unit, *sums)

    def merge(self, other: ExactSum) -> ExactSum:
        assert self.unit == other.unit
        return ExactSum(self.unit, self.loss_unit + other.loss_unit, self.fine + other.fine)

    def finish(self) -> float:
        """Return the sum in the numbers' own units."""
        return (self.loss_unit + self.fine / FINE) / self.unit


#: Totals are multiples of 2**-TOTAL_BITS: the last bit of the smallest float64, with spare bits for its mantissa.
TOTAL_BITS = 1130


def total(values: np.ndarray) -> int | None:
    """Return the sum of float64 numbers of any size without rounding, as a multiple of 2**-TOTAL_BITS; None if one is not
    finite.

    Totals of parts are added as integers; `as_float` rounds the sum once. This is slower than `ExactSum`, but needs no bound of
    the numbers. Mantissas are divided into halves, which are added up exactly by exponent.
    """
    if not np.isfinite(values).all():
        return None
    result = 0
    for first in range(0, len(values), _VALUES_AT_A_TIME):
        mantissa, exponent = np.frexp(values[first : first + _VALUES_AT_A_TIME])
        whole = (mantissa * 2.0**53).astype(np.int64)
        lowest = int(exponent.min())
        shift_of = exponent - lowest
        for half, shift in ((whole >> 27, 27), (whole & (2**27 - 1), 0)):
            sums = np.bincount(shift_of, half)
            for k in np.flatnonzero(sums):
                result += int(sums[k]) << (lowest + int(k) - 53 + shift + TOTAL_BITS)
    return result


def as_float(total: int) -> float:
    """Return a total in the numbers' own units, correctly rounded."""
    try:
        return total / (1 << TOTAL_BITS)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def merged_float(totals: Iterable[int | None]) -> float:
    """Return the sum of the totals of all parts; NaN if one of them is not finite."""
    known = list(totals)
    return math.nan if any(one is None for one in known) else as_float(sum(one for one in known if one is not None))


#: At most this many numbers are collected.
FEW = 16_384

_SIGN = np.uint64(1 << 63)


def exact_level(level: float) -> Fraction:
    """Return the level as the user wrote it: 0.9 is nine tenths, not the nearest float."""
    return Fraction(repr(level))


def rank_unit(max_weight: float, n_rows: int) -> float:
    """Return the factor of the weights with which their sum stays below 2**62."""
    return 2.0 ** (61 - math.ceil(math.log2(max(n_rows, 2))) - math.frexp(max_weight)[1])


def find_quantiles(
    count: Callable[[np.ndarray, np.uint64], np.ndarray],
    above: Callable[[np.ndarray], np.ndarray],
    level: Fraction,
    n_groups: int,
    collect: Callable[[np.ndarray, np.uint64], np.ndarray | None] | None = None,
    n_rows: int = 0,
) -> np.ndarray:
    """Return a quantile of each group: float64[n_groups], 0 for groups without numbers.

    Parameters
    ----------
    count : callable
        Given the keys' bytes found so far (uint64[n_groups]) and the number of bits below the next one, return the weights of
        all numbers that share them, by their next byte: int64[n_groups, 256].
    above : callable
        Given keys (uint64[n_groups]), return the smallest key of each group above its own (uint64[n_groups]).
    level : Fraction
        Between 0 and 1, both excluded.
    n_groups : int
    collect : callable, optional
        Given the bytes found so far and the number of bits below them, return all numbers that share them: uint64[n, 3], group,
        key and weight; or None if there are more than `FEW`. The result does not depend on it.
    n_rows : int
        About how many numbers there are: `collect` is called when few may be left.
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
        # The first byte at which the share is reached.
        byte = (reached < need[:, None]).sum(axis=1)
        below = np.where(byte > 0, reached[groups, byte - 1], below)
        prefix = (prefix << np.uint64(8)) | byte.astype(np.uint64)
        if collect is None or not 0 < shift < 56:
            continue
        left = float((reached[groups, byte] - below).sum()) / everything
        if left * n_rows <= FEW:
            collected = collect(prefix, np.uint64(shift))
            if collected is not None:
                return _among(collected, below, need, met, above)
            collect = None  # many numbers of little weight: not called again, which bounds the number of passes
    met &= (reached[groups, byte] == need) & (need > 0)
    found = from_keys(prefix)
    if met.any():
        found[met] = (found[met] + from_keys(above(prefix))[met]) / 2.0
    return np.where(need > 0, found, 0.0)


def _among(
    collected: np.ndarray, below: np.ndarray, need: np.ndarray, met: np.ndarray, above: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the quantiles among the collected numbers (uint64[n, 3]); `below` is the weight of each group's smaller ones."""
    group, key, weight = collected[np.lexsort((collected[:, 1], collected[:, 0]))].T
    last = np.append((group[1:] != group[:-1]) | (key[1:] != key[:-1]), True)[: len(key)]
    running = weight.astype(np.int64).cumsum()[last]
    group, key = group[last].astype(np.int64), key[last]
    begin = np.searchsorted(group, np.arange(len(need)))
    reached = running - np.append(0, running)[begin][group] + below[group]
    # The first key of each group at which its share is reached; every group that holds numbers has one.
    at = np.flatnonzero(reached >= need[group])
    owner, first = np.unique(group[at], return_index=True)
    at = at[first]
    keys, next_key = np.zeros(len(need), np.uint64), np.zeros(len(need), np.uint64)
    keys[owner] = key[at]
    exact = np.zeros(len(need), bool)
    exact[owner] = met[owner] & (reached[at] == need[owner])
    exact &= need > 0
    followed = (at + 1 < len(key)) & (np.append(group, -1)[at + 1] == owner)
    next_key[owner[followed]] = key[at[followed] + 1]
    unknown = exact & (next_key == 0)
    if unknown.any():
        next_key[unknown] = above(keys)[unknown]
    found = from_keys(keys)
    found[exact] = (found[exact] + from_keys(next_key)[exact]) / 2.0
    return np.where(need > 0, found, 0.0)


def find_size(
    level: Fraction,
    count: Callable[..., np.ndarray],
    above: Callable[[np.ndarray], np.ndarray],
    collect: Callable[..., np.ndarray | None] | None = None,
    n_rows: int = 0,
) -> float:
    """Return a positive threshold between small and large sizes: their quantile; the smallest non-zero size if that is 0; else
    1.

    count, above, collect, n_rows : as in `find_quantiles`, for one group of non-negative numbers.
    """
    found = float(find_quantiles(count, above, level, 1, collect, n_rows)[0])
    if found > 0:
        return found
    next_key = float(from_keys(above(np.array([_SIGN])))[0])
    return next_key if math.isfinite(next_key) else 1.0


def from_keys(keys: np.ndarray) -> np.ndarray:
    """Return the numbers that have these rank keys (uint64): float64."""
    return (keys ^ np.where(keys & _SIGN, _SIGN, ~np.uint64(0))).view(np.float64)


#: Bits of the first digit below the exponent.
_BELOW_EXPONENT = 3
#: (bits below the digit, width) of the three digits: a non-negative float32 has 31 bits.
_DIGITS = ((FIRST_SHIFT, _BELOW_EXPONENT), (10, 10), (0, 10))


def find_cut(first: np.ndarray, count: Callable[[int, int, int], np.ndarray], share: Fraction) -> int:
    """Return the smallest influence that is kept, as the bits of a float32; 0 when all rows are kept.

    Parameters
    ----------
    first : int64[N_DIGITS]
        Sums of significands of all rows, by the first digit.
    count : callable
        Given the digits found so far, the number of bits below the next one and its width, return these sums for all rows that
        share the digits, by their next digit: int64[N_DIGITS].
    share : Fraction
        α, between 0 and 1, both excluded.
    """
    by_exponent = first.reshape(-1, 1 << _BELOW_EXPONENT)
    of_exponent = by_exponent.sum(axis=1)
    found = np.flatnonzero(of_exponent)
    sums = [weight << exponent for exponent, weight in zip(found.tolist(), of_exponent[found].tolist(), strict=True)]
    left = share.numerator * sum(sums) // share.denominator
    for exponent, weight in zip(found.tolist(), sums, strict=True):  # noqa: B007
        if weight > left:
            break
        left -= weight
    else:  # there are no rows
        return 0
    prefix, left, sums_of = exponent, left >> exponent, by_exponent[exponent]
    for shift, width in _DIGITS:
        reached = (sums_of if shift == FIRST_SHIFT else count(prefix, shift, width)).cumsum()
        digit = int(reached.searchsorted(left, "right"))
        left -= int(reached[digit - 1]) if digit else 0
        prefix = prefix << width | digit
    return prefix
