"""Statistics of training rows, which sessions compute on ranges of their rows, and the caller merges.

`Backend.statistics` computes a `Statistic` of ranges that together cover all rows. Two results are merged exactly, and in any
order (sums of integers, minima). Where a process has many ranges of rows, their results are merged before they are sent;
results of statistics without a merge are small and are sent as they are.

*Residuals.* `leaf_digits`, `leaf_keys`, `leaf_next` and `leaf_clipped` compute statistics of the residuals y - F by leaf of the
tree grown last, with the scores before that tree, over the rows that took part in it (see `exact`).

*Statistics of a loss*, such as Huber's δ: `of_parts` passes all rows to functions of the loss (`losses.base.RowStatistic`).

*Influence.* `influence_digits` adds up second derivatives by the digits of their bits (see `exact`).

*Line search.* `line_slopes` computes derivatives of the loss for a step along a whole tree.

*Fine bins.* `fine_bin_hessians` adds up Hessians by fine bin (see `rows.bin_proposal`).

*Fingerprint.* `row_fingerprint` computes a few numbers that distinguish rows from other rows, however they are divided. Every
row has a random number of 64 bits that follows from its global number. The codes of each feature are added up, each times its
row's number, modulo 2**64; of target and weight the bits. Such a sum of products is a universal hash: two different columns
have the same sum with a probability of about 2**-63. And sums do not depend on the order, so they merge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dboost.exact import FEW, concatenated, total
from dboost.kernels import or_empty
from dboost.kernels.bins import add_masses
from dboost.kernels.multi_output import BLOCK, TOGETHER, sum_outputs, sum_products
from dboost.kernels.quantile_keys import (
    N_DIGITS,
    Buckets,
    Residuals,
    add_clipped,
    bucket_bounds,
    collect_buckets,
    count_buckets,
    count_digits,
    count_influence,
    new_block_scratch,
    next_keys,
)
from dboost.kernels.rows import sum_by_leaf
from dboost.losses import BaseLoss
from dboost.losses.base import PartOfRows
from dboost.rows.row_sample import RowSubset
from dboost.rows.shard import Shard


@dataclass(frozen=True, eq=False)
class Statistic:
    """A statistic of training rows. Its functions are defined at the top level of modules, because they are pickled."""

    #: Called with a shard, the first row, the last row + 1 and further arguments; must not change the shard.
    compute: Callable[..., Any]
    #: Returns the result for the rows of two results. None: the results of all ranges are needed.
    merge: Callable[[Any, Any], Any] | None = None
    reads_codes: bool = False  # whether the shard's bin codes are read, not only target, weight and the state of the rows

    def merged(self, results: Sequence[Any]) -> Any:
        """Return the result for the rows of all results, of which there is at least one."""
        assert self.merge is not None
        return reduce(self.merge, results)


def _residuals_by_leaf(shard: Shard, subset: RowSubset, outputs: range, first: int, last: int) -> Residuals:
    """Return the residuals of some outputs of the rows that take part in their tree, grouped by leaf."""
    rows, begin, end = shard.sampled_range(subset, first, last)
    weight, target, columns = or_empty(shard.weight, "float64"), shard.target(), slice(outputs.start, outputs.stop)
    column = np.array(shard.spec.columns or [0] * shard.n_outputs)[columns]
    return Residuals(
        target.reshape(-1, shard.n_rows), shard.raw[columns], column, weight, shard.leaf[outputs.start], False,
        or_empty(rows, "int64"), begin, end,
    )  # fmt: skip


def _of_part(shard: Shard, first: int, last: int, part: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns for rows first…last-1 with their present scores."""
    weight = None if shard.weight is None else shard.weight[first:last]
    return part(PartOfRows(shard.target(slice(first, last)), shard.raw[:, first:last], weight), *arguments)


def of_parts(merge: Callable[[Any, Any], Any]) -> Statistic:
    """Return the statistic whose first argument is the function that computes it, see `losses.base.AllRows.merged`."""
    return Statistic(_of_part, merge)


# Groups are the leaves for the first of the outputs, then for the next one, and so on.


def _leaf_digits(
    shard: Shard, first: int, last: int, subset: RowSubset, outputs: range, unit: float, prefix: np.ndarray, shift: np.uint64
) -> np.ndarray:
    """Return the weights of residuals by leaf and next byte of their rank keys: int64[n_groups, 256], see `quantile_keys`."""
    counts = np.zeros((len(prefix), 256), np.int64)
    count_digits(_residuals_by_leaf(shard, subset, outputs, first, last), prefix, shift, unit, counts)
    return counts


leaf_digits = Statistic(_leaf_digits, np.add)


def _leaf_buckets(
    shard: Shard, first: int, last: int, subset: RowSubset, outputs: range, unit: float, buckets: Buckets
) -> np.ndarray:
    """Return the weights of residuals by leaf and bucket: int64[n_groups, buckets.n], see `quantile_keys.count_buckets`."""
    counts = np.zeros((len(buckets.low), buckets.n), np.int64)
    scratch = new_block_scratch(counts.size // len(outputs))
    count_buckets(_residuals_by_leaf(shard, subset, outputs, first, last), buckets, unit, counts, scratch)
    return counts


leaf_buckets = Statistic(_leaf_buckets, np.add)


def _leaf_keys(
    shard: Shard,
    first: int,
    last: int,
    subset: RowSubset,
    outputs: range,
    unit: float,
    buckets: Buckets,
    wanted: np.ndarray,
) -> np.ndarray | None:
    """Return group, rank key and weight of the residuals in the wanted buckets: uint64[n, 3], or None if there are too many."""
    keys = np.empty((FEW, 3), np.uint64)
    lowest, highest = bucket_bounds(buckets, wanted)
    n = collect_buckets(
        _residuals_by_leaf(shard, subset, outputs, first, last),
        buckets,
        wanted,
        lowest,
        highest,
        unit,
        keys,
        new_block_scratch(),
    )
    return keys[:n] if n <= FEW else None


leaf_keys = Statistic(_leaf_keys, concatenated)


def _leaf_next(shard: Shard, first: int, last: int, subset: RowSubset, outputs: range, keys: np.ndarray) -> np.ndarray:
    """Return the smallest rank keys above these in each group: uint64[n_groups]."""
    following = np.full(len(keys), ~np.uint64(0))
    next_keys(_residuals_by_leaf(shard, subset, outputs, first, last), keys, following)
    return following


leaf_next = Statistic(_leaf_next, np.minimum)


def _leaf_clipped(
    shard: Shard,
    first: int,
    last: int,
    subset: RowSubset,
    outputs: range,
    centre: np.ndarray,
    bounds: np.ndarray,
    units: np.ndarray,
    weight_unit: float,
) -> np.ndarray:
    """Return sums by group of residuals relative to a centre and clipped, and of weights: float64[n_groups, 2], integers."""
    sums = np.zeros((len(centre), 2))
    residuals = _residuals_by_leaf(shard, subset, outputs, first, last)
    add_clipped(residuals, or_empty(shard.repeat_count, "uint8"), centre, bounds, units, weight_unit, new_block_scratch(), sums)
    return sums


leaf_clipped = Statistic(_leaf_clipped, np.add)


def _influence_digits(shard: Shard, first: int, last: int, output: int, prefix: int, shift: int, width: int) -> np.ndarray:
    """Return the influence by the next digit of its bits, of the rows that share the digits found so far: int64[N_DIGITS]."""
    sums = np.zeros(N_DIGITS, np.int64)
    repeat_count = or_empty(shard.repeat_count, "uint8")
    count_influence(shard.influence(output), repeat_count, first, last, prefix, shift, width, sums)
    return sums


influence_digits = Statistic(_influence_digits, np.add)


def _loss_hessian_sums(shard: Shard, first: int, last: int, subset: RowSubset, n_leaves: int, unit: float) -> np.ndarray:
    """Return sums of second derivatives by leaf, for trees that were not grown by them: float64[n_leaves], integers."""
    sums = np.zeros(n_leaves)
    leaf = shard.output_arrays(subset.output)[2]
    loss_hessian = shard.fields["loss_hessian"][subset.output]
    rows, begin, end = shard.sampled_range(subset, first, last)
    repeat_count = or_empty(shard.repeat_count, "uint8")
    sum_by_leaf(leaf, loss_hessian, repeat_count, or_empty(rows, "int64"), begin, end, unit, sums)
    return sums


loss_hessian_sums = Statistic(_loss_hessian_sums, np.add)


def _leaf_totals(
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


leaf_totals = Statistic(_leaf_totals, np.add)


def _output_totals(shard: Shard, first: int, last: int, subset: RowSubset, n_leaves: int, units: np.ndarray) -> np.ndarray:
    """Return sums of gradients and second derivatives of all outputs by leaf of the tree grown last, over the rows that took
    part in it: float64[n_outputs, n_leaves, 2], integers in these units (float64[n_outputs, 2])."""
    n, n_parts = shard.n_outputs, -(-shard.n_outputs // TOGETHER)
    sums, counts = np.zeros((2, n_parts, n_leaves, TOGETHER)), np.zeros(n_leaves, np.int64)
    rows, begin, end = shard.sampled_range(subset, first, last)
    gradient_rows, repeat_count = shard.loss_rows.for_kernel, or_empty(shard.repeat_count, "uint8")
    leaf, chosen, units = shard.split_arrays(0)[2], or_empty(rows, "int64"), units.T.copy()
    scratch = np.empty((TOGETHER, BLOCK))
    sum_outputs(
        leaf, gradient_rows.gradient, gradient_rows.hessian, repeat_count, chosen, begin, end, units, scratch, (sums, counts)
    )
    of_outputs = np.moveaxis(sums, 3, 2).reshape(2, -1, n_leaves)[:, :n]
    if not gradient_rows.hessian.size:
        of_outputs[1] = counts * units[1][:, None]
    return np.moveaxis(of_outputs, 0, 2).copy()


output_totals = Statistic(_output_totals, np.add)


def _gradient_products(shard: Shard, first: int, last: int, units: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Return the sums Σ_i g_ik s_i / w_i, see `sum_products`: float64[n_outputs], integers in these units."""
    sums = np.zeros(shard.n_outputs)
    weight, repeat_count = or_empty(shard.weight, "float64"), or_empty(shard.repeat_count, "uint8")
    along, limits, scratch = shard.split_arrays(0)[0], np.stack((units, bounds)), np.empty(BLOCK)
    sum_products(shard.gradient, along, weight, repeat_count, first, last, limits, scratch, sums)
    return sums


gradient_products = Statistic(_gradient_products, np.add)


def _line_slopes(
    shard: Shard, first: int, last: int, subset: RowSubset, loss: BaseLoss, values: np.ndarray, at: float
) -> tuple[int | None, int | None]:
    """Return the first and second derivative of the loss along a tree, at F + at · (leaf value), as exact totals.

    values : float64[n_leaves], of the tree grown last for this output.
    """
    chosen, begin, end = shard.sampled_range(subset, first, last)
    rows = slice(begin, end) if chosen is None else chosen[begin:end]
    output = subset.output
    direction, y = values[shard.output_arrays(output)[2][rows]], shard.target(rows)
    with np.errstate(all="ignore"):
        raw = shard.raw[:, rows].T.copy().T  # the outputs of a row one after the other, which decides how they are added up
        raw[output] += at * direction
        gradient, hessian = loss.slopes(output, y, raw)
        if shard.weight is not None:
            gradient, hessian = gradient * shard.weight[rows], hessian * shard.weight[rows]
        return total(gradient * direction), total(hessian * direction * direction)


line_slopes = Statistic(_line_slopes)


def _fine_bin_hessians(shard: Shard, first: int, last: int, subset: RowSubset, scale: float) -> np.ndarray:
    """Return the quantised Hessians of the rows that take part in a tree, by fine bin of each feature: int64[n_buckets].

    scale : factor of the Hessians before they are rounded. Features whose fine bins are their bins are left at 0.
    """
    offset, kept = shard.layout.offset, shard.spec.is_identity_bin_map
    mass = np.zeros(int(offset[-1]), np.int64)
    hessian = or_empty(shard.split_arrays(subset.output)[1], "float32")
    repeat_count = or_empty(shard.repeat_count, "uint8")
    rows, begin, end = shard.sampled_range(subset, first, last)
    for feature in np.flatnonzero(~kept).tolist():
        of_feature = mass[offset[feature] : offset[feature + 1]]
        add_masses(shard.codes.of(feature), hessian, repeat_count, or_empty(rows, "int64"), begin, end, scale, of_feature)
    return mass


fine_bin_hessians = Statistic(_fine_bin_hessians, np.add)


#: Rows processed at a time, which bounds the scratch memory.
_ROWS_AT_A_TIME = 65_536


@np.errstate(over="ignore")  # NumPy warns of sums of two numbers that exceed 2**64
def _row_fingerprint(shard: Shard, first: int, last: int) -> np.ndarray:
    """Return sums of target, weight, the codes of each feature, and groups if samples take whole ones, over rows
    first…last-1: uint64[2 + n_features] or uint64[3 + n_features]."""
    n_features = len(shard.layout.n_bins)
    sums, codes = np.zeros(2 + n_features + (shard.draw_id is not None), np.uint64), shard.codes
    for start in range(first, last, _ROWS_AT_A_TIME):
        rows = slice(start, min(start + _ROWS_AT_A_TIME, last))
        number = random_numbers(shard.row_ids(rows.start, rows.stop))
        for k, of_column in enumerate(np.atleast_2d(shard.target(rows) + 0.0)):
            sums[0] += (np.uint64(2 * k + 1) * number * of_column.view(np.uint64)).sum()
        if shard.weight is not None:
            sums[1] += (number * shard.weight[rows].view(np.uint64)).sum()
        for feature in range(n_features):
            sums[2 + feature] += (number * (codes.of(feature)[rows].astype(np.uint64) + np.uint64(1))).sum()
        if shard.draw_id is not None:
            sums[-1] += (number * shard.draw_id[rows].view(np.uint64)).sum()
    return sums


row_fingerprint = Statistic(_row_fingerprint, np.add, reads_codes=True)


def random_numbers(rows: np.ndarray) -> np.ndarray:
    """Return the SplitMix64 hashes of row ids (int64[n]), made odd: uint64[n]."""
    x = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)
