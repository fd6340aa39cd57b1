"""Counts of residuals, by the digits of their rank keys or in buckets, for exact quantiles (see `exact`).

Residuals are those of one output, or of all outputs of a tree with several values per leaf. Rows are divided into groups, and
each output has a group of its own for each: those of output 0 come first, then those of output 1.

The bits of a float64 become its *rank key*, an unsigned integer with the same order as the numbers, by flipping the sign bit of
non-negative numbers and all bits of negative ones. Both zeros have the same key.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import inlined, internal, kernel
from dboost.kernels.exp_log import to_bits
from dboost.kernels.rows import ROUNDER64

U = np.uint64
I = np.int64  # noqa: E741

_SIGN = U(1 << 63)
#: Rows that `count_influence` and `collect_buckets` test together.
BLOCK, BLOCK_ROWS = 64, 1024
#: Largest number of values of a digit of an influence; number of bits below the first digit.
N_DIGITS, FIRST_SHIFT = 2048, 20
#: Sums of each digit that `add_influence` keeps, a power of two.
LANES = 2


class Residuals(NamedTuple):
    """The residuals target - raw of some rows, divided into groups."""

    target: np.ndarray  # float64[n_columns, n]
    raw: np.ndarray  # float64[n_outputs, n]
    column: np.ndarray  # int64[n_outputs]: the column of the target that an output is of
    weight: np.ndarray  # float64[n], empty for 1 each
    group: np.ndarray  # uint8 or int32[n]: the group of a row, empty when there is only one
    absolute: bool  # whether |target - raw| is meant
    rows: np.ndarray  # int64[...]: those that count, empty for all
    first: int  # range of rows, or of positions in `rows`
    last: int


@inlined
def rank_key(number):
    """Return an unsigned integer with the same order as the numbers."""
    bits = to_bits(number + 0.0)
    return U(bits) ^ (U(bits >> I(63)) | _SIGN)


@inlined
def _residual(target, raw, absolute, i):
    """Return the residual of row i, or its absolute value."""
    residual = target[i] - raw[i]
    return abs(residual) if absolute else residual


@kernel
def count_digits(residuals, prefix, shift, unit, counts):
    """Add up the weights of residuals by group and by the next digit of their rank key.

    Only residuals whose higher digits are those of `prefix` count.

    residuals : Residuals; prefix : uint64[n_groups], of all outputs; shift : uint64, bits below the digit; unit : factor of
    the weights; counts : int64[n_groups, 256], added to. Each row adds at least 1.

    For the first two digits the prefix test is unpredictable, so it is branch-free; later it is almost always false and
    branches are cheap.
    """
    absolute, weight, group, rows = residuals.absolute, residuals.weight, residuals.group, residuals.rows
    n_outputs = residuals.raw.shape[0]
    n_groups = prefix.size // n_outputs
    predictable = shift < U(48)
    for k in range(n_outputs):
        target, raw, before = residuals.target[residuals.column[k]], residuals.raw[k], I(k * n_groups)
        for at in range(residuals.first, residuals.last):
            i = rows[at] if rows.size > 0 else I(at)
            key = rank_key(_residual(target, raw, absolute, i)) >> shift
            g = before + I(group[i]) if group.size > 0 else before
            shared = key >> U(8) == prefix[g]
            if predictable and not shared:
                continue
            w = I(shared)
            if weight.size > 0:
                w *= max(I(weight[i] * unit), I(1))
            counts[g, key & U(255)] += w


@internal
def _residual_block(residuals, k, first, size):
    """Write the residuals of output k of `size` rows from position `first` on. size : array of float64, receives them."""
    target, raw, rows = residuals.target[residuals.column[k]], residuals.raw[k], residuals.rows
    if rows.size > 0:
        for j in range(size.size):
            i = rows[first + j]
            size[j] = target[i] - raw[i]
    else:
        y, score = target[first : first + size.size], raw[first : first + size.size]
        for j in range(size.size):
            size[j] = y[j] - score[j]
    if residuals.absolute:
        for j in range(size.size):
            size[j] = abs(size[j])


@internal
def _is_uniform(values):
    """Return whether all values are equal."""
    n_other = 0
    for value in values:
        n_other += value != values[0]
    return n_other == 0


@inlined
def _bucket(residual, low, scale, last):
    """Return the number of the bucket of a residual, which does not decrease with it. last : float64, the last bucket."""
    at = (residual - low) * scale
    at = at if at > 0.0 else 0.0
    return np.int32(at if at < last else last)


class Buckets(NamedTuple):
    """Buckets of equal width, of each group."""

    low: np.ndarray  # float64[n_groups], of all outputs: lower bound of the first bucket, which smaller residuals are in, too
    scale: np.ndarray  # float64[n_groups]: 1 / width
    n: int  # number of buckets of a group; larger residuals are in the last one


class BlockScratch(NamedTuple):
    """Scratch of the kernels that process blocks of rows."""

    size: np.ndarray  # float64[BLOCK_ROWS]: residuals of a block of rows
    bucket: np.ndarray  # int32[BLOCK_ROWS]
    chosen: np.ndarray  # int64[BLOCK_ROWS + 1]: rows of the block
    counts: np.ndarray  # int32[largest number of groups * buckets of an output]


def new_block_scratch(n_counts: int = 0) -> BlockScratch:
    """Return scratch, for `count_buckets` with so many groups * buckets of an output."""
    size, bucket = np.empty(BLOCK_ROWS), np.empty(BLOCK_ROWS, np.int32)
    return BlockScratch(size, bucket, np.empty(BLOCK_ROWS + 1, np.int64), np.empty(n_counts, np.int32))


@kernel
def count_buckets(residuals, buckets, unit, counts, scratch):
    """Add up the weights of residuals by group and by bucket.

    residuals : Residuals; buckets : Buckets; unit : factor of the weights; counts : int64[n_groups, buckets.n], added to;
    scratch : BlockScratch. Each row adds at least 1.

    Blocks of rows are processed in loops that vectorise, followed by one that adds: six times as fast as row by row. Rows
    without weights are counted in 32 bits, one output after the other, so that the counts of all leaves fit in the first cache.
    """
    low, scale, last, n_outputs = buckets.low, buckets.scale, np.float64(buckets.n - 1), residuals.raw.shape[0]
    n_groups, n_buckets, flat = low.size // n_outputs, U(buckets.n), counts.reshape(counts.size)
    is_narrow = residuals.weight.size == 0 and residuals.last - residuals.first < I(2**31)
    for k in range(n_outputs):
        before = I(k * n_groups)
        lows, scales = low[before : before + n_groups], scale[before : before + n_groups]
        of_output = flat[before * buckets.n : (before + n_groups) * buckets.n]
        if is_narrow:
            narrow = scratch.counts[: of_output.size]
            for j in range(narrow.size):
                narrow[j] = np.int32(0)
        for first in range(residuals.first, residuals.last, BLOCK_ROWS):
            n = BLOCK_ROWS if first + BLOCK_ROWS < residuals.last else residuals.last - first
            at = scratch.bucket[:n]
            _find_buckets_of(residuals, k, first, lows, scales, last, scratch.size[:n], at)
            if is_narrow:
                _count_narrow(residuals, first, at, n_buckets, narrow)
            else:
                _count_weights(residuals, first, at, n_buckets, unit, of_output)
        if is_narrow:
            for j in range(narrow.size):
                of_output[j] += I(narrow[j])


@internal
def _find_buckets_of(residuals, k, first, lows, scales, last, size, at):
    """Write the buckets of output k of `size` rows from position `first` on. size : as of `_residual_block`; at : int32[...],
    receives them."""
    group, rows = residuals.group, residuals.rows
    _residual_block(residuals, k, first, size)
    if _is_uniform(lows) and _is_uniform(scales):
        for j in range(at.size):
            at[j] = _bucket(size[j], lows[0], scales[0], last)
    else:
        for j in range(at.size):
            g = I(group[rows[first + j] if rows.size > 0 else first + j]) if group.size > 0 else I(0)
            at[j] = _bucket(size[j], lows[g], scales[g], last)


@internal
def _count_narrow(residuals, first, at, n_buckets, counts):
    """Count rows from position `first` on by group and bucket. at : int32[...], the buckets; counts : int32[...], added to."""
    group, rows = residuals.group, residuals.rows
    if group.size > 0 and rows.size == 0:
        of_row = group[first : first + at.size]
        for j in range(at.size):
            counts[U(of_row[j]) * n_buckets + U(at[j])] += np.int32(1)
        return
    for j in range(at.size):
        g = group[rows[first + j] if rows.size > 0 else I(first + j)] if group.size > 0 else np.uint8(0)
        counts[U(g) * n_buckets + U(at[j])] += np.int32(1)


@internal
def _count_weights(residuals, first, at, n_buckets, unit, counts):
    """Add up weights (see `count_buckets`) of rows from position `first` on by group and bucket. counts : int64[...]."""
    weight, group, rows = residuals.weight, residuals.group, residuals.rows
    for j in range(at.size):
        i = rows[first + j] if rows.size > 0 else I(first + j)
        g = U(group[i]) if group.size > 0 else U(0)
        w = I(1)
        if weight.size > 0:
            w = max(I(weight[i] * unit), I(1))
        counts[g * n_buckets + U(at[j])] += w


@kernel
def collect_buckets(residuals, buckets, wanted, lowest, highest, unit, collected, scratch):
    """Collect the residuals of some adjacent buckets of each group; return how many there are.

    wanted : int64[n_groups, 2], the first and the last bucket; lowest, highest : float64[n_groups], between which all residuals
    of these buckets are, and few others; collected : uint64[capacity, 3], receives group, rank key and weight of as many as
    fit. All else as in `count_buckets`.

    Rows between the bounds are found without a branch, since writing the number of every row takes a third of the time of a
    test; of these, the ones in the buckets are kept.
    """
    weight, group, rows = residuals.weight, residuals.group, residuals.rows
    low, scale, last = buckets.low, buckets.scale, np.float64(buckets.n - 1)
    capacity, n_kept = len(collected), I(0)
    size, chosen, n_outputs = scratch.size, scratch.chosen, residuals.raw.shape[0]
    n_groups = low.size // n_outputs
    for first in range(residuals.first, residuals.last, BLOCK_ROWS):
        n = BLOCK_ROWS if first + BLOCK_ROWS < residuals.last else residuals.last - first
        of_block = size[:n]
        for k in range(n_outputs):
            before, n_near = I(k * n_groups), U(0)
            least, most = lowest[before : before + n_groups], highest[before : before + n_groups]
            _residual_block(residuals, k, first, of_block)
            if group.size > 0 and rows.size == 0:
                of_row = group[first : first + n]
                for j in range(n):
                    chosen[n_near] = j
                    g = of_row[j]
                    n_near += U((of_block[j] >= least[g]) & (of_block[j] <= most[g]))
            else:
                for j in range(n):
                    g = I(group[rows[first + j] if rows.size > 0 else first + j]) if group.size > 0 else I(0)
                    chosen[n_near] = j
                    n_near += U((of_block[j] >= least[g]) & (of_block[j] <= most[g]))
            for near in range(I(n_near)):
                j = chosen[near]
                i = rows[first + j] if rows.size > 0 else I(first + j)
                g = before + I(group[i]) if group.size > 0 else before
                at = _bucket(of_block[j], low[g], scale[g], last)
                if at < wanted[g, 0] or at > wanted[g, 1]:
                    continue
                if n_kept < capacity:
                    w = I(1)
                    if weight.size > 0:
                        w = max(I(weight[i] * unit), I(1))
                    collected[n_kept, 0], collected[n_kept, 1], collected[n_kept, 2] = U(g), rank_key(of_block[j]), U(w)
                n_kept += 1
    return n_kept


def bucket_bounds(buckets: Buckets, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `lowest` and `highest` for `collect_buckets`."""
    low, scale, n_buckets = buckets
    lowest, highest = low + (wanted[:, 0] - 0.001) / scale, low + (wanted[:, 1] + 1.001) / scale
    error = 1e-15 * (np.abs(low) + np.abs(lowest) + np.abs(highest))
    lowest, highest = lowest - error, highest + error
    lowest[wanted[:, 0] == 0], highest[wanted[:, 1] == n_buckets - 1] = -np.inf, np.inf
    return lowest, highest


@kernel
def find_buckets(counts, needed, met, bounds):
    """Find the bucket of each group at which the weight of this bucket and those before it reaches `needed`.

    counts : int64[n_groups, n_buckets]; needed : int64[n_groups], at most the weight of the group; met : bool[n_groups],
    whether the next larger residual is looked for, too, if a bucket ends with exactly this weight: it is in the next bucket
    that is not empty. bounds : int64[n_groups, 5], receives this bucket, the one of the next residual (the same bucket if it is
    not looked for, or among many in the last one), the weight before the first of them, with it, and with the second.
    """
    last = I(counts.shape[1] - 1)
    for g in range(needed.size):
        of_group, need, bucket, below = counts[g], needed[g], I(0), I(0)
        while bucket < last and below + of_group[bucket] < need:
            below += of_group[bucket]
            bucket += 1
        upto = below + of_group[bucket]
        following, reached = bucket, upto
        if met[g] and upto == need:
            at = bucket + 1
            while at < last and of_group[at] == 0:
                at += 1
            if at < last or (at == last and 0 < I(8) * of_group[at] <= need):
                following, reached = at, upto + of_group[at]
        bounds[g, 0], bounds[g, 1], bounds[g, 2], bounds[g, 3], bounds[g, 4] = bucket, following, below, upto, reached


@kernel
def select_keys(collected, needed, begin, arranged, selected):
    """Select a rank key of each group: the smallest one such that the weight of the keys up to it reaches `needed`.

    collected : uint64[n, 3], group, rank key and weight; needed : int64[n_groups], 0 for groups that need none, at most the
    weight of the group; begin : int64[n_groups + 1], zeros, receives where a group begins; arranged : uint64[2, n], receives
    keys and weights by group; selected : uint64[n_groups, 2], receives the key, and the next larger one of the group if the
    weight is exactly `needed` (the largest number if there is none), else the same key.

    The range of a group's keys is halved until it is one key: the keys of adjacent numbers share their first bits, and sums of
    a few weights vectorise.
    """
    n_groups, largest = needed.size, ~U(0)
    for i in range(len(collected)):
        begin[collected[i, 0]] += 1
    total = I(0)
    for g in range(n_groups + 1):  # begin of the group behind it, for now
        total += begin[g]
        begin[g] = total
    for i in range(len(collected)):
        g = collected[i, 0]
        begin[g] -= 1
        arranged[0, begin[g]], arranged[1, begin[g]] = collected[i, 1], collected[i, 2]
    for g in range(n_groups):
        need = U(needed[g])
        keys, weights = arranged[0, begin[g] : begin[g + 1]], arranged[1, begin[g] : begin[g + 1]]
        if needed[g] <= 0 or keys.size == 0:
            continue
        low, high = largest, U(0)
        for i in range(keys.size):
            low, high = min(low, keys[i]), max(high, keys[i])
        while low < high:
            middle = low + ((high - low) >> U(1))
            if _weight_upto(keys, weights, middle) >= need:
                high = middle
            else:
                low = middle + U(1)
        following = low
        if _weight_upto(keys, weights, low) == need:
            following = largest
            for i in range(keys.size):
                following = min(following, keys[i] if keys[i] > low else largest)
        selected[g, 0], selected[g, 1] = low, following


@internal
def _weight_upto(keys, weights, key):
    """Return the sum of the weights of the keys up to this one."""
    total = U(0)
    for i in range(keys.size):
        total += weights[i] if keys[i] <= key else U(0)
    return total


@kernel
def next_keys(residuals, keys, following):
    """Find the smallest rank key above that of the group: following : uint64[n_groups], lowered; else as in `count_digits`."""
    absolute, group, rows, n_outputs = residuals.absolute, residuals.group, residuals.rows, residuals.raw.shape[0]
    n_groups = keys.size // n_outputs
    for k in range(n_outputs):
        target, raw, before = residuals.target[residuals.column[k]], residuals.raw[k], I(k * n_groups)
        for at in range(residuals.first, residuals.last):
            i = rows[at] if rows.size > 0 else I(at)
            key = rank_key(_residual(target, raw, absolute, i))
            g = before + I(group[i]) if group.size > 0 else before
            # keys < key < following as one test, which is nearly always false: differences below zero wrap around to large
            # numbers.
            if key - keys[g] - U(1) < following[g] - keys[g] - U(1):
                following[g] = key


@kernel
def add_clipped(residuals, repeat_count, centre, bounds, units, weight_unit, scratch, sums):
    """Add up, by group, residuals relative to the group's centre, clipped to ± the bound of their output; and weights.

    residuals : Residuals (not absolute); repeat_count : uint8[n], how often a row counts, instead of its weight, or empty;
    centre : float64[n_groups]; bounds : float64[n_outputs]; units : float64[n_outputs], weight_unit : powers of two by which
    terms and weights are multiplied before they are rounded; scratch : BlockScratch; sums : float64[n_groups, 2], integers,
    added to.
    """
    weight, group, rows, n_outputs = residuals.weight, residuals.group, residuals.rows, residuals.raw.shape[0]
    n_groups, rounded_unit = centre.size // n_outputs, (weight_unit + ROUNDER64) - ROUNDER64
    for k in range(n_outputs):
        bound, unit, centres = bounds[k], units[k], centre[k * n_groups : (k + 1) * n_groups]
        of_output = sums[k * n_groups : (k + 1) * n_groups]
        for first in range(residuals.first, residuals.last, BLOCK_ROWS):
            n = BLOCK_ROWS if first + BLOCK_ROWS < residuals.last else residuals.last - first
            terms = scratch.size[:n]
            _residual_block(residuals, k, first, terms)
            for j in range(n):
                g = group[rows[first + j] if rows.size > 0 else I(first + j)]
                term = terms[j] - centres[g]
                term = -bound if term < -bound else term
                terms[j] = bound if term > bound else term
            if repeat_count.size == 0 and weight.size == 0:
                for j in range(n):
                    terms[j] = (terms[j] * unit + ROUNDER64) - ROUNDER64
                for j in range(n):
                    g = group[rows[first + j] if rows.size > 0 else I(first + j)]
                    of_output[g, 0] += terms[j]
                    of_output[g, 1] += rounded_unit
                continue
            for j in range(n):
                i = rows[first + j] if rows.size > 0 else I(first + j)
                g = group[i]
                if repeat_count.size > 0:
                    of_output[g, 0] += repeat_count[i] * ((terms[j] * unit + ROUNDER64) - ROUNDER64)
                    of_output[g, 1] += repeat_count[i] * weight_unit
                else:
                    of_output[g, 0] += (weight[i] * terms[j] * unit + ROUNDER64) - ROUNDER64
                    of_output[g, 1] += (weight[i] * weight_unit + ROUNDER64) - ROUNDER64


@inlined
def _weight_of(bits):
    """Return the significand of a float32 as an integer: 2**23 and the bits below the exponent."""
    return I(bits & np.int32(0x7FFFFF) | np.int32(0x800000))


@internal
def add_influence(influence, repeat_count, first, sums):
    """Add up non-negative numbers by the first digit of their bits.

    influence : float32[n] as int32 bits; repeat_count : uint8[...], how often the rows from `first` on count, empty for once;
    sums : int64[LANES, N_DIGITS], added to. Adjacent rows mostly share a digit, and adding twice in a row to the same sum waits
    for the first store: so adjacent rows go to different lanes.
    """
    for i in range(influence.size):
        bits = influence[i]
        weight = _weight_of(bits)
        if repeat_count.size > 0:
            weight *= I(repeat_count[first + i])
        digit = (bits >> np.int32(FIRST_SHIFT)) & np.int32(N_DIGITS - 1)
        sums[i & (LANES - 1), digit] += weight


@kernel
def count_influence(influence, repeat_count, first, last, prefix, shift, width, sums):
    """Add up non-negative numbers by the next digit of their bits, of those that share the digits found so far.

    influence : float32[n] as int32 bits, which order like the numbers; repeat_count : uint8[n], how often a row counts,
    empty for once; prefix, shift, width : the digits found so far, the number of bits below the next digit, and its own; sums :
    int64[N_DIGITS], added to.

    Few rows share the first digit: a block without any is skipped at the speed of one comparison.
    """
    above, low = np.int32(shift + width), (I(1) << width) - I(1)
    for start in range(first, last, BLOCK):
        block = influence[start : start + BLOCK if start + BLOCK < last else last]
        met = np.int32(0)
        for i in range(block.size):
            met += np.int32(block[i] >> above == np.int32(prefix))
        if met == 0:
            continue
        for i in range(block.size):
            if block[i] >> above == np.int32(prefix):
                weight = _weight_of(block[i])
                if repeat_count.size > 0:
                    weight *= I(repeat_count[start + i])
                sums[(I(block[i]) >> shift) & low] += weight
