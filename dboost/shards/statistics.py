"""Map-reduce functions over a shard: statistics that engines compute on every shard and merge.

`Engine.map_shards` calls a function with a shard, a range of its rows and arguments. `reduced_by` declares how two results are
merged: exactly, and in any order (sums of integers, minima). Where a process has many ranges of rows, their results are merged
before they are sent; results of functions without a merge are small and are sent as they are.

*Residuals.* `leaf_digits`, `leaf_keys`, `leaf_next` and `leaf_clipped` compute statistics of the residuals y - F by leaf of the
tree grown last, with the scores before that tree, over the rows that took part in it; `size_digits`, `size_keys` and
`size_next` those of |y - F| over all rows (see `metrics.quantiles`).

*Influence.* `influence_digits` adds up second derivatives by the digits of their bits (see `metrics.quantiles`).

*Line search.* `line_slopes` computes derivatives of the loss for a step along a whole tree.

*Fine bins.* `fine_bin_hessians` adds up Hessians by fine bin, and `merge_into_bins` puts the rows into the bins of a tree (see
`trees.bin_proposal`).

*Fingerprint.* `row_fingerprint` computes a few numbers that distinguish rows from other rows, however they are divided. Every
row has a random number of 64 bits that follows from its global number. The codes of each feature are added up, each times its
row's number, modulo 2**64; of target and weight the bits. Such a sum of products is a universal hash: two different columns
have the same sum with a probability of about 2**-63. And sums do not depend on the order, so they merge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dboost.kernels import or_empty
from dboost.kernels.quantile_keys import (
    FIRST_SHIFT,
    N_DIGITS,
    Residuals,
    add_clipped,
    collect_keys,
    count_digits,
    count_influence,
    count_near,
    next_keys,
)
from dboost.kernels.rows import sum_by_leaf
from dboost.kernels.split_candidates import add_masses
from dboost.losses import Loss
from dboost.metrics.exact_sum import total
from dboost.metrics.quantiles import FEW
from dboost.shards.shard import Shard
from dboost.trees.bin_proposal import BinMerge
from dboost.trees.tree_task import RowSubset

StatisticFunction = TypeVar("StatisticFunction", bound=Callable[..., Any])


def reduced_by(
    merge: Callable[[Any, Any], Any], is_short: Callable[..., bool] = lambda *_: False
) -> Callable[[StatisticFunction], StatisticFunction]:
    """Return a decorator that declares how two results are merged: exactly, and in any order.

    is_short : called with a function's arguments; returns whether computing takes less time than passing the work to another
    thread.
    """

    def note(function: StatisticFunction) -> StatisticFunction:
        function.merge = merge  # type: ignore[attr-defined]
        function.is_short = is_short  # type: ignore[attr-defined]
        return function

    return note


def _residuals_by_leaf(shard: Shard, subset: RowSubset, first: int, last: int) -> Residuals:
    """Return the residuals of the rows that take part in a tree, grouped by leaf."""
    rows, begin, end = shard.sampled_range(subset, first, last)
    weight = or_empty(shard.weight, "float64")
    return Residuals(shard.target, shard.raw, weight, shard.leaf, False, or_empty(rows, "int64"), begin, end)


def _residual_sizes(shard: Shard, first: int, last: int) -> Residuals:
    """Return the absolute residuals of rows first…last-1."""
    weight, ungrouped, all_rows = or_empty(shard.weight, "float64"), or_empty(None, "uint8"), or_empty(None, "int64")
    return Residuals(shard.target, shard.raw, weight, ungrouped, True, all_rows, first, last)


@reduced_by(np.add)
def leaf_digits(
    shard: Shard, first: int, last: int, subset: RowSubset, n_leaves: int, unit: float, prefix: np.ndarray, shift: np.uint64
) -> np.ndarray:
    """Return the weights of residuals by leaf and next byte of their rank keys: int64[n_leaves, 256], see `quantile_keys`."""
    counts = np.zeros((n_leaves, 256), np.int64)
    count_digits(_residuals_by_leaf(shard, subset, first, last), prefix, shift, unit, counts)
    return counts


def concatenated(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    """Return the residuals of both ranges of rows, in any order; None (too many) if either or both are too many."""
    if one is None or other is None or len(one) + len(other) > FEW:
        return None
    return np.concatenate((one, other))


@reduced_by(concatenated)
def leaf_keys(
    shard: Shard, first: int, last: int, subset: RowSubset, unit: float, prefix: np.ndarray, shift: np.uint64
) -> np.ndarray | None:
    """Return leaf, rank key and weight of residuals that share the bytes found so far: uint64[n, 3], or None if there are too
    many."""
    found = np.empty((FEW, 3), np.uint64)
    n = collect_keys(_residuals_by_leaf(shard, subset, first, last), prefix, shift, unit, found)
    return found[:n] if n <= FEW else None


@reduced_by(np.minimum)
def leaf_next(shard: Shard, first: int, last: int, subset: RowSubset, keys: np.ndarray) -> np.ndarray:
    """Return the smallest rank keys above these in each leaf: uint64[n_leaves]."""
    following = np.full(len(keys), ~np.uint64(0))
    next_keys(_residuals_by_leaf(shard, subset, first, last), keys, following)
    return following


@reduced_by(np.add)
def leaf_clipped(
    shard: Shard, first: int, last: int, subset: RowSubset, centre: np.ndarray, bound: float, unit: float, weight_unit: float
) -> np.ndarray:
    """Return sums by leaf of residuals relative to a centre and clipped, and of weights: float64[n_leaves, 2], integers."""
    sums = np.zeros((len(centre), 2))
    residuals = _residuals_by_leaf(shard, subset, first, last)
    add_clipped(residuals, or_empty(shard.repeat_count, "uint8"), centre, bound, unit, weight_unit, sums)
    return sums


@reduced_by(np.add)
def size_digits(shard: Shard, first: int, last: int, unit: float, prefix: np.ndarray, shift: np.uint64) -> np.ndarray:
    """Return the weights of all residuals by the next byte of the rank keys of |y - F|: int64[1, 256]."""
    counts = np.zeros((1, 256), np.int64)
    count_digits(_residual_sizes(shard, first, last), prefix, shift, unit, counts)
    return counts


@reduced_by(concatenated)
def size_keys(shard: Shard, first: int, last: int, unit: float, prefix: np.ndarray, shift: np.uint64) -> np.ndarray | None:
    """Return group 0, rank key and weight of all |y - F| that share the bytes found so far, as `leaf_keys`."""
    found = np.empty((FEW, 3), np.uint64)
    n = collect_keys(_residual_sizes(shard, first, last), prefix, shift, unit, found)
    return found[:n] if n <= FEW else None


@reduced_by(np.minimum)
def size_next(shard: Shard, first: int, last: int, keys: np.ndarray) -> np.ndarray:
    """Return the smallest rank key of an |y - F| above this one: uint64[1]."""
    following = np.full(1, ~np.uint64(0))
    next_keys(_residual_sizes(shard, first, last), keys, following)
    return following


def _near(shard: Shard, first: int, last: int, output: int, prefix: int, shift: int, width: int) -> np.ndarray | None:
    """Return the rows that `influence_digits` has to read, if they are known."""
    digit = prefix >> (FIRST_SHIFT - shift - width)
    return None if shard.near is None else shard.near.rows(first, last, output, digit)


@reduced_by(np.add, is_short=lambda *arguments: _near(*arguments) is not None)
def influence_digits(shard: Shard, first: int, last: int, output: int, prefix: int, shift: int, width: int) -> np.ndarray:
    """Return the influence by the next digit of its bits, of the rows that share the digits found so far: int64[N_DIGITS]."""
    sums = np.zeros(N_DIGITS, np.int64)
    influence, rows = shard.influence(output), _near(shard, first, last, output, prefix, shift, width)
    repeat_count = or_empty(shard.repeat_count, "uint8")
    if rows is None:
        count_influence(influence, repeat_count, first, last, prefix, shift, width, sums)
    else:
        count_near(influence, repeat_count, rows, prefix, shift, width, sums)
    if shard.near is not None:
        shard.near.expect(output, prefix >> (FIRST_SHIFT - shift - width))
    return sums


@reduced_by(np.add)
def loss_hessian_sums(shard: Shard, first: int, last: int, subset: RowSubset, n_leaves: int, unit: float) -> np.ndarray:
    """Return sums of second derivatives by leaf, for trees that were not grown by them: float64[n_leaves], integers."""
    sums = np.zeros(n_leaves)
    leaf = shard.output_arrays(subset.output)[2]
    assert shard.loss_hessian is not None
    loss_hessian = shard.loss_hessian if shard.loss_hessian.ndim == 1 else shard.loss_hessian[subset.output]
    rows, begin, end = shard.sampled_range(subset, first, last)
    repeat_count = or_empty(shard.repeat_count, "uint8")
    sum_by_leaf(leaf, loss_hessian, repeat_count, or_empty(rows, "int64"), begin, end, unit, sums)
    return sums


@reduced_by(np.add)
def leaf_totals(
    shard: Shard, first: int, last: int, output: int, n_leaves: int, gradient_unit: float, hessian_unit: float
) -> np.ndarray:
    """Return sums of gradients and Hessians by leaf, and numbers of rows: float64[n_leaves, 3], integers in these units."""
    gradient, hessian, leaf = shard.output_arrays(output)
    totals = np.zeros((3, n_leaves))
    totals[2] = np.bincount(leaf[first:last], minlength=n_leaves)
    once, all_rows = or_empty(None, "uint8"), or_empty(None, "int64")
    sum_by_leaf(leaf, gradient, once, all_rows, first, last, gradient_unit, totals[0])
    if hessian is None:
        totals[1] = totals[2] * hessian_unit
    else:
        sum_by_leaf(leaf, hessian, once, all_rows, first, last, hessian_unit, totals[1])
    return totals.T


def line_slopes(
    shard: Shard, first: int, last: int, subset: RowSubset, loss: Loss, values: np.ndarray, at: float
) -> tuple[int | None, int | None]:
    """Return the first and second derivative of the loss along a tree, at F + at · (leaf value), as exact totals.

    values : float64[n_leaves], of the tree grown last for this output.
    """
    chosen, begin, end = shard.sampled_range(subset, first, last)
    rows = slice(begin, end) if chosen is None else chosen[begin:end]
    output = subset.output
    direction, y = values[shard.output_arrays(output)[2][rows]], shard.target[rows]
    with np.errstate(all="ignore"):
        if shard.raw.ndim == 1:
            raw = shard.raw[rows] + at * direction
            gradient, hessian = loss.gradient(y, raw), loss.hessian(y, raw)
        else:
            raw = shard.raw[:, rows].T.copy()
            raw[:, output] += at * direction
            gradient, hessian = loss.gradient(y, raw)[:, output], loss.hessian(y, raw)[:, output]
        if shard.weight is not None:
            gradient, hessian = gradient * shard.weight[rows], hessian * shard.weight[rows]
        return total(gradient * direction), total(hessian * direction * direction)


@reduced_by(np.add)
def fine_bin_hessians(shard: Shard, first: int, last: int, subset: RowSubset, scale: float) -> np.ndarray:
    """Return the quantised Hessians of the rows that take part in a tree, by fine bin of each feature: int64[n_buckets].

    scale : factor of the Hessians before they are rounded. Features whose fine bins are their bins are left at 0.
    """
    offset, kept = shard.layout.offset, shard.is_identity_bin_map
    mass = np.zeros(int(offset[-1]), np.int64)
    hessian = or_empty(shard.output_arrays(subset.output)[1], "float32")
    repeat_count = or_empty(shard.repeat_count, "uint8")
    rows, begin, end = shard.sampled_range(subset, first, last)
    for feature in np.flatnonzero(~kept).tolist():
        of_feature = mass[offset[feature] : offset[feature + 1]]
        add_masses(shard.codes.of(feature), hessian, repeat_count, or_empty(rows, "int64"), begin, end, scale, of_feature)
    return mass


def merge_into_bins(shard: Shard, bin_merge: BinMerge, first: int, last: int) -> None:
    """Write the codes of a tree's bins for rows first…last-1."""
    for feature in np.flatnonzero(~shard.is_identity_bin_map).tolist():
        n_fine_bins, n_bins = int(shard.layout.n_bins[feature]), int(shard.bin_layout.n_bins[feature])
        bins = np.append(np.minimum(bin_merge.bin_of(feature, n_fine_bins), n_bins - 1), n_bins).astype(np.uint8)
        np.take(bins, shard.codes.of(feature)[first:last], out=shard.bins.of(feature)[first:last])
    shard.fill_tiles(first, last)


#: Rows processed at a time, which bounds the scratch memory.
_ROWS_AT_A_TIME = 65_536


def row_fingerprint(shard: Shard, first: int, last: int) -> np.ndarray:
    """Return sums of target, weight and the codes of each feature over rows first…last-1: uint64[2 + n_features]."""
    n_features = len(shard.layout.n_bins)
    sums, codes = np.zeros(2 + n_features, np.uint64), shard.columns()
    for start in range(first, last, _ROWS_AT_A_TIME):
        rows = slice(start, min(start + _ROWS_AT_A_TIME, last))
        number = random_numbers(shard.row_ids(rows.start, rows.stop))
        sums[0] += (number * (shard.target[rows] + 0.0).view(np.uint64)).sum()
        if shard.weight is not None:
            sums[1] += (number * shard.weight[rows].view(np.uint64)).sum()
        for feature in range(n_features):
            sums[2 + feature] += (number * (codes.of(feature)[rows].astype(np.uint64) + np.uint64(1))).sum()
    return sums


row_fingerprint.reads_codes = True  # type: ignore[attr-defined]  # see `StreamedShard.map_ranges`


def random_numbers(rows: np.ndarray) -> np.ndarray:
    """Return the SplitMix64 hashes of row ids (int64[n]), made odd: uint64[n]."""
    x = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)
