"""Exact sums and quantiles of distributed numbers, the same for any division of the rows.

**Sums.** Each number is divided into two integers, a coarse one in units of 1 / unit and a fine one in units of 1 / (unit *
FINE). As long as the total stays below 2**53, float64 adds integers exactly, so sums over any division of the rows agree to the
last bit. `unit_for` chooses the unit; the rounding error is below 2**-50 of the largest number for a million rows. Numbers far
beyond the bound for which the unit was chosen, as where training diverges, are added as Python integers: exactly, too.

**Quantiles** are computed for many groups at once, in at most ten passes over the numbers. A quantile of level τ is the
smallest number v such that the numbers up to v have at least the share τ of the weight; if it is exactly that share, everything
from v to the next larger number minimises the pinball loss, and the midpoint of the two is taken. So an unweighted median
equals NumPy's, to the bit, and a row of weight 2 counts like two rows.

Numbers are neither sorted nor sent. The bits of a float64 can be mapped to an unsigned integer with the same order
(`kernels.quantile_keys`); its eight bytes are determined one after the other, from the highest. A pass adds up, for each group,
the weights of the numbers that share the bytes found so far by their next byte: 256 integers per group, which merge by
addition. The ninth pass finds the next larger numbers, for groups where a share is met exactly.

In a fit, the quantiles of one tree are near those of the tree before. So the numbers are first counted in buckets of equal
width around these (`Window`), and the few numbers in the buckets of the quantiles are collected: two passes. If the quantiles
are not there, or if too many numbers are equal or nearly so, the bytes decide.

Weights are added as integers, in a unit that leaves at least 61 - log2(rows) bits for the largest of them.

**Influence trimming** leaves rows out of a tree that together would hardly change it (section 4.5.1 of Friedman 2001). Rows are
ordered by their influence, and the least influential ones are left out, as many as have at most the share α of the total
influence. Nothing is sorted: the influence of the first row that is kept is a quantile of the influences, weighted by
themselves, and is determined by the digits of its bits (`find_cut`). The pass over the rows that computes the influences also
adds them up by the first digit (`GradientStats.influence`): exponent and three bits more. Two passes follow over the bits of
the few rows that have the digit found, ten bits in each. Rows of equal influence are kept or left out together, so that the
choice does not depend on their order.

These sums are exact. Numbers with the same exponent E are multiples of one power of two, so what is added up is their 24-bit
significands, as 64-bit integers (enough for 2**36 rows), and ``sum · 2**E`` are Python integers. (A number below the normal
ones, 2**-126, counts as if its exponent were smaller still: at most as much as that.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dboost.kernels import kernel, or_empty
from dboost.kernels.quantile_keys import FIRST_SHIFT, Buckets, find_buckets, select_keys

#: Fine units per coarse unit.
FINE = 2.0**26
#: Sums of integers in float64 are exact up to this.
EXACT_SUM = 2.0**53
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
    coarse: int | float = 0  # sum of the numbers times `unit`, each rounded to an integer; NaN if one is not finite
    fine: float = 0.0  # sum of what the rounding left, times `FINE`, each rounded to an integer

    @classmethod
    def of(cls, values: np.ndarray, unit: float, times: np.ndarray | None = None) -> ExactSum:
        """Sum a float64 array (the chunk step); with `times` (integers) each value is added that many times."""
        coarse: int | float = 0
        fine, sums, factors = 0.0, np.empty(3), or_empty(times, "float64")
        for first in range(0, len(values), _VALUES_AT_A_TIME):
            piece = slice(first, first + _VALUES_AT_A_TIME)
            numbers = values[piece]
            sum_in_units(numbers, factors[piece], unit, FINE, sums)
            whole, rest, largest = sums.tolist()
            fine += rest
            if largest * len(numbers) < EXACT_SUM and not math.isnan(whole):
                coarse = _plus(coarse, int(whole))
                continue
            integers = np.rint(numbers * unit)
            exact_sum = total(integers if times is None else integers * times[piece])
            coarse = _plus(coarse, math.nan if exact_sum is None else exact_sum >> TOTAL_BITS)
        return cls(unit, coarse, fine)

    def merge(self, other: ExactSum) -> ExactSum:
        assert self.unit == other.unit
        return ExactSum(self.unit, _plus(self.coarse, other.coarse), self.fine + other.fine)

    def finish(self) -> float:
        """Return the sum in the numbers' own units; NaN if one is not finite or the sum overflows."""
        try:
            return (float(self.coarse) + self.fine / FINE) / self.unit
        except OverflowError:
            return math.nan


@kernel
def sum_in_units(values: np.ndarray, times: np.ndarray, unit: float, fine: float, sums: np.ndarray) -> None:
    """Sum numbers as integers: sums[0] is that of the numbers times `unit`, each rounded; sums[1] that of what the rounding
    left times `fine`, each rounded; sums[2] the largest of the former. The sums are exact below 2**53.

    values : float64[n]; times : float64[n], how often a number counts, empty for once; sums : float64[3], written.
    """
    coarse = rest = largest = 0.0
    for i in range(values.size):
        scaled = values[i] * unit
        whole = np.rint(scaled)
        left = np.rint((scaled - whole) * fine)
        if times.size > 0:
            whole, left = whole * times[i], left * times[i]
        coarse += whole
        rest += left
        largest = abs(whole) if abs(whole) > largest else largest
    sums[0], sums[1], sums[2] = coarse, rest, largest


def _plus(a: int | float, b: int | float) -> int | float:
    """Return the sum of two such sums."""
    return a + b if isinstance(a, int) and isinstance(b, int) else math.nan


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
    return math.nan if any(part is None for part in known) else as_float(sum(part for part in known if part is not None))


#: At most this many numbers are collected.
FEW = 65_536
#: Number of buckets of a window.
_LEAST_BUCKETS, _MOST_BUCKETS = 250, 2000
#: Windows that are tried, each a part of the one before.
_MOST_WINDOWS = 3

_SIGN, _LARGEST = np.uint64(1 << 63), ~np.uint64(0)


def exact_level(level: float) -> Fraction:
    """Return the level as the user wrote it: 0.9 is nine tenths, not the nearest float."""
    return Fraction(repr(level))


def rank_unit(max_weight: float, n_rows: int) -> float:
    """Return the factor of the weights with which their sum stays below 2**62."""
    return 2.0 ** (61 - math.ceil(math.log2(max(n_rows, 2))) - math.frexp(max_weight)[1])


class Window(NamedTuple):
    """Where quantiles are expected, and the passes that count numbers in buckets of equal width. Results do not depend on it.

    low, high : the bounds, of all groups or of each (float64[n_groups]). weights : callable, given buckets, returns the weights
    by bucket, int64[n_groups, buckets.n]; numbers outside are in the first and the last one. collect : callable, given these
    and the first and the last of some buckets of each group (int64[n_groups, 2]), returns their numbers: uint64[n, 3], group,
    key and weight; or None if there are more than `FEW`. n_rows : about how many numbers there are.
    """

    low: float | np.ndarray
    high: float | np.ndarray
    weights: Callable[[Buckets], np.ndarray]
    collect: Callable[[Buckets, np.ndarray], np.ndarray | None]
    n_rows: int

    @property
    def n_buckets(self) -> int:
        """Number of buckets of a group: the more, the more numbers there are, but so few that the counts of a tree's leaves fit
        in the first cache of a processor, or nearly so. (Odd: powers of two would make the first buckets of all leaves compete
        for a few lines of it.)"""
        return min(max(self.n_rows // 2048, _LEAST_BUCKETS), _MOST_BUCKETS) | 1


def concatenated(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    """Return the residuals of both ranges of rows, in any order; None (too many) if either or both are too many."""
    if first is None or second is None or len(first) + len(second) > FEW:
        return None
    return np.concatenate((first, second))


#: Given the weight of each group (int64[n_groups]), returns ranks in it, 0 for groups without a quantile, and whether the
#: quantile is the middle of the number of that rank and the next one (bool[n_groups]).
Ranks = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def find_quantiles(
    count: Callable[[np.ndarray, np.uint64], np.ndarray],
    above: Callable[[np.ndarray], np.ndarray],
    level: Fraction | Ranks,
    n_groups: int,
    window: Window | None = None,
) -> np.ndarray:
    """Return a quantile of each group: float64[n_groups], 0 for groups without numbers.

    Parameters
    ----------
    count : callable
        Given the keys' bytes found so far (uint64[n_groups]) and the number of bits below the next one, return the weights of
        all numbers that share them, by their next byte: int64[n_groups, 256].
    above : callable
        Given keys (uint64[n_groups]), return the smallest key of each group above its own (uint64[n_groups]).
    level : Fraction or callable
        Between 0 and 1, both excluded; or what `_ranks` returns for it, a function of the weights of the groups.
    n_groups : int
    window : Window, optional
        It saves passes if the quantiles are in it.
    """
    if window is not None and n_groups:
        found_there = _in_window(window, count, above, level, n_groups)
        if found_there is not None:
            return found_there
    groups = np.arange(n_groups)
    prefix, below = np.zeros(n_groups, np.uint64), np.zeros(n_groups, np.int64)
    need, met = np.zeros(n_groups, np.int64), np.zeros(n_groups, bool)
    for shift in range(56, -8, -8):
        reached = below[:, None] + count(prefix, np.uint64(shift)).cumsum(axis=1)
        if shift == 56:
            need, met = _ranks(level, reached[:, -1])
        # The first byte at which the share is reached.
        byte = (reached < need[:, None]).sum(axis=1)
        below = np.where(byte > 0, reached[groups, byte - 1], below)
        prefix = (prefix << np.uint64(8)) | byte.astype(np.uint64)
    met &= (reached[groups, byte] == need) & (need > 0)
    quantiles = from_keys(prefix)
    if met.any():
        quantiles[met] = (quantiles[met] + from_keys(above(prefix))[met]) / 2.0
    return np.where(need > 0, quantiles, 0.0)


def _ranks(level: Fraction | Ranks, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight that the numbers up to each group's quantile must have (int64), and whether it is the exact share."""
    return (ranks_of([level], len(weights)) if isinstance(level, Fraction) else level)(weights)


def ranks_of(levels: Sequence[Fraction], n_groups: int) -> Ranks:
    """Return the ranks of n_groups groups with the first level, then of as many with the second one, and so on."""

    def ranks(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        largest = int(weights.max(initial=0))
        if all(largest * level.numerator < 2**63 > level.denominator for level in levels):  # fractions would be slow
            parts, whole = (np.array([getattr(level, name) for level in levels]) for name in ("numerator", "denominator"))
            needed, rest = np.divmod(weights.reshape(-1, n_groups) * parts[:, None], whole[:, None])
            return (needed + (rest > 0)).ravel(), (rest == 0).ravel()
        weighted_levels = zip(levels, weights.reshape(-1, n_groups).tolist(), strict=True)
        shares = [
            divmod(level.numerator * weight, level.denominator)
            for level, level_weights in weighted_levels
            for weight in level_weights
        ]
        return np.array([n + (rest > 0) for n, rest in shares], np.int64), np.array([rest == 0 for _, rest in shares])

    return ranks


def _in_window(
    window: Window,
    count: Callable[[np.ndarray, np.uint64], np.ndarray],
    above: Callable[[np.ndarray], np.ndarray],
    level: Fraction | Ranks,
    n_groups: int,
) -> np.ndarray | None:
    """Return the quantiles of all groups (see `find_quantiles`) if they are in the window; otherwise None.

    If the buckets hold too many numbers, each becomes (with its neighbors) the next window of its group; unless all of its
    numbers are 0, as residuals are where predictions are exact, or it is the first or the last one, which has no end.
    """
    groups, n_buckets, located = np.arange(n_groups), window.n_buckets, np.empty((n_groups, 5), np.int64)
    low = np.full(n_groups, window.low)
    scale = n_buckets / np.maximum(np.full(n_groups, window.high) - low, 1e-300)
    zeros: np.ndarray | None = None  # weight of each group's zeros
    for _ in range(_MOST_WINDOWS):
        if not (np.isfinite(low).all() and np.isfinite(scale).all()):
            return None
        buckets = Buckets(low, scale, n_buckets)
        weights = window.weights(buckets)
        group_weights = weights.sum(axis=1)
        need, met = _ranks(level, group_weights)
        find_buckets(weights, need, met, located)
        bucket, _, below, upto, reached = located.T
        ends, rest = met & (upto == need), reached - below
        most, is_zero = FEW * max(float(group_weights.sum()), 1.0) / window.n_rows, np.zeros(n_groups, bool)
        if float(rest.sum()) > most:
            bucket_weight = weights[groups, bucket]
            beside = weights[groups, bucket - 1] + weights[groups, np.minimum(bucket + 1, n_buckets - 1)]
            holds_zero = bucket == np.clip(-low * scale, 0, n_buckets - 1).astype(np.int64)
            is_zero = holds_zero & ~ends & (bucket_weight > 4 * beside)
            if is_zero.any():
                if zeros is None:
                    zeros = count(np.full(n_groups, _SIGN >> np.uint64(8)), np.uint64(0))[:, 0]
                is_zero &= bucket_weight == zeros
        if float(rest[~is_zero].sum()) <= most:
            wanted = np.where(is_zero[:, None], (n_buckets, -1), located[:, :2])
            collected = window.collect(buckets, wanted)
            if collected is None:
                return None
            return np.where(is_zero, 0.0, _among(collected, below, np.where(is_zero, 0, need), met, above))
        is_outside = (need > 0) & ~is_zero & ((bucket == 0) | (bucket == n_buckets - 1))
        if float(rest[is_outside].sum()) > most:
            return None
        low, scale = np.where(is_zero | is_outside, (low, scale), (low + (bucket - 1) / scale, scale * (n_buckets / 3)))
    return None


def _among(
    collected: np.ndarray, below: np.ndarray, need: np.ndarray, met: np.ndarray, above: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the quantiles among the collected numbers: float64[n_groups].

    Parameters
    ----------
    collected : uint64[n, 3]
        Group, rank key and weight of the numbers.
    below : int64[n_groups]
        Weight of each group's smaller numbers, which are not collected.
    need, met
        See `_ranks`.
    above : callable
        As in `find_quantiles`.
    """
    n_groups = len(need)
    neighbors = np.zeros((n_groups, 2), np.uint64)
    begin, arranged = np.zeros(n_groups + 1, np.int64), np.empty((2, len(collected)), np.uint64)
    select_keys(collected, np.where(need > 0, need - below, 0), begin, arranged, neighbors)
    keys, next_keys = neighbors.T
    # Where the share is met exactly, the quantile is the mean of this number and the next one of the group.
    exact = met & (need > 0) & (next_keys != keys)
    if (exact & (next_keys == _LARGEST)).any():
        next_keys = np.where(next_keys == _LARGEST, above(keys), next_keys)
    numbers = from_keys(keys)
    numbers[exact] = (numbers[exact] + from_keys(next_keys)[exact]) / 2.0
    return np.where(need > 0, numbers, 0.0)


def find_size(
    level: Fraction,
    count: Callable[..., np.ndarray],
    above: Callable[[np.ndarray], np.ndarray],
    window: Window | None = None,
) -> float:
    """Return a positive threshold between small and large sizes: their quantile; the smallest non-zero size if that is 0; else
    1.

    count, above, window : as in `find_quantiles`, for one group of non-negative numbers.
    """
    size = float(find_quantiles(count, above, level, 1, window)[0])
    if size > 0:
        return size
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
    exponent_sums = by_exponent.sum(axis=1)
    exponents = np.flatnonzero(exponent_sums)
    sums = [weight << exponent for exponent, weight in zip(exponents.tolist(), exponent_sums[exponents].tolist(), strict=True)]
    left = share.numerator * sum(sums) // share.denominator
    for exponent, weight in zip(exponents.tolist(), sums, strict=True):  # noqa: B007
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
