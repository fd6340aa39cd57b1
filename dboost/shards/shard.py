"""A shard: the rows of one thread or process, in memory, and the pass over them between two iterations.

It holds, for some rows of the table, the bin codes of every feature, the target, the weight, the raw score, and the state of
the current tree: gradients, Hessians, and the leaf of each row. Rows of weight zero are left out when a shard is built.

A model with one output has one raw score per row, and arrays of shape [n_rows]; one with K outputs (K classes) has K of them,
and arrays of shape [K, n_rows], so that the values of one output are contiguous for its tree.

**Advance.** Between two iterations, `advance_rows` adds the last trees to the scores and computes gradients and Hessians. It
returns the largest gradient and Hessian and exact sums of the loss, which merge over any division of the rows.

**Rows near the trimming threshold** (see `metrics.exact`). From tree to tree the threshold of influence trimming hardly
moves: mostly the influence of the first row that is kept has the same first digit again. So the pass that computes the
influences records the rows that have this digit, and the other digits are found among these few rows. If the threshold is
elsewhere, or too many rows are near it, all rows are read again: the threshold is the same.

**Statistics** that engines compute on every shard and merge: `Engine.map_shards` calls a function with a shard, a range of its
rows and arguments. `reduced_by` declares how two results are merged: exactly, and in any order (sums of integers, minima).
Where a process has many ranges of rows, their results are merged before they are sent; results of functions without a merge are
small and are sent as they are.

*Residuals.* `leaf_digits`, `leaf_keys`, `leaf_next` and `leaf_clipped` compute statistics of the residuals y - F by leaf of the
tree grown last, with the scores before that tree, over the rows that took part in it; `size_digits`, `size_buckets`,
`size_keys` and `size_next` those of |y - F| over all rows (see `metrics.exact`).

*Influence.* `influence_digits` adds up second derivatives by the digits of their bits (see `metrics.exact`).

*Line search.* `line_slopes` computes derivatives of the loss for a step along a whole tree.

*Fine bins.* `fine_bin_hessians` adds up Hessians by fine bin, and `merge_into_bins` puts the rows into the bins of a tree (see
`trees.bin_proposal`).

*Fingerprint.* `row_fingerprint` computes a few numbers that distinguish rows from other rows, however they are divided. Every
row has a random number of 64 bits that follows from its global number. The codes of each feature are added up, each times its
row's number, modulo 2**64; of target and weight the bits. Such a sum of products is a universal hash: two different columns
have the same sum with a probability of about 2**-63. And sums do not depend on the order, so they merge.

**Rows that did not take part in growing a tree.** Evaluation sets apply every tree as it is grown; rows that a worker received
late, because another worker died or because the worker has just joined, apply all trees at once. The trees are expressed in bin
codes here, not in values, and their leaf values are added in order: ``((baseline + v1) + v2) + …`` are the same sums as in
training, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dboost.errors import DataError
from dboost.kernels import or_empty
from dboost.kernels.bins import add_masses, fill_tiles
from dboost.kernels.histograms import BinLayout, HistogramRows
from dboost.kernels.predict import (
    BLOCK,
    MASK_LEAVES,
    N_PLANES,
    label_by_masks,
    label_by_tables,
    new_mask_splits,
    prepare_masks,
)
from dboost.kernels.quantile_keys import (
    FIRST_SHIFT,
    LANES,
    N_BUCKETS,
    N_DIGITS,
    Residuals,
    add_clipped,
    bucket_bounds,
    collect_buckets,
    count_buckets,
    count_digits,
    count_influence,
    count_near,
    next_keys,
)
from dboost.kernels.rows import add_tree, select_rows, sum_by_leaf
from dboost.losses import Loss
from dboost.losses.base import CustomTerms, call_custom
from dboost.losses.gradient_pass import (
    LARGEST,
    GradientRows,
    InfluencePass,
    PassScratch,
    PassTotals,
    update_all_gradients,
    update_gradients,
)
from dboost.metrics.exact import FEW, ExactSum, total
from dboost.shards.shard_spec import NARROW_BINS, SHARED_CODES, ShardSpec, code_rows, plan_layout, tile_shape
from dboost.trees.bin_proposal import BinMerge
from dboost.trees.tree_task import GradientStats, GrownTree, RowSubset, Sample, TreeRoutes, hash_rows


class BinnedColumns(NamedTuple):
    """The bin codes of a table: each feature is a row of `narrow` or of `wide` (see `shards.shard_spec.code_rows`)."""

    narrow: np.ndarray  # uint8[n_narrow, n_rows]
    wide: np.ndarray  # uint16[n_wide, n_rows]
    row_of: np.ndarray  # int64[n_features]: the row of a feature, -1 - row if it is one of `wide`

    @property
    def n_rows(self) -> int:
        return self.narrow.shape[1]

    def of(self, feature: int) -> np.ndarray:
        """Return the codes of one feature."""
        row = int(self.row_of[feature])
        return self.narrow[row] if row >= 0 else self.wide[-1 - row]

    def part(self, rows: slice) -> BinnedColumns:
        """Return some of the rows (views)."""
        return BinnedColumns(self.narrow[:, rows], self.wide[:, rows], self.row_of)


def empty_binned_columns(layout: BinLayout, n_rows: int) -> BinnedColumns:
    """Return uninitialised arrays for the codes of `n_rows` rows."""
    row_of = code_rows(layout)
    n_wide = int((layout.n_bins > NARROW_BINS).sum())
    n_narrow = len(layout.n_bins) - n_wide
    return BinnedColumns(np.empty((n_narrow, n_rows), np.uint8), np.empty((n_wide, n_rows), np.uint16), row_of)


#: Maximal number of rows of a shard in memory: row numbers have 32 bits while a tree grows (`kernels.histograms`).
MOST_ROWS = 2**32


def check_rows_in_memory(n_rows: int) -> None:
    """Raise DataError if one shard cannot number that many rows."""
    if n_rows > MOST_ROWS:
        raise DataError(
            f"{n_rows:,} rows in one part of the memory are more than the {MOST_ROWS:,} whose numbers fit 32 bits: set "
            "a memory_limit that they do not fit, so that they are streamed from files, or train on more workers"
        )


class Shard:
    """Rows in memory.

    Parameters
    ----------
    codes : BinnedColumns
    spec : ShardSpec
    target : float64[n_rows]
    weight : float64[n_rows] or None
    raw : float64[n_rows] or float64[n_outputs, n_rows]
        Initial raw scores; the shard owns and updates them.
    ranges : int64[n_ranges, 2], optional
        (global number of the first row, number of rows) of each run of consecutive rows; default: rows 0, 1, 2, …
    row_ids : int64[n_rows], optional
        Instead of ranges, each row's global id: for scattered rows.
    """

    _row_ids: np.ndarray | None = None
    #: Rows near the trimming threshold of the next trees; None for streamed blocks, whose rows are not kept.
    near: Near | None = None

    def __init__(
        self,
        codes: BinnedColumns,
        spec: ShardSpec,
        target: np.ndarray,
        weight: np.ndarray | None,
        raw: np.ndarray,
        *,
        ranges: np.ndarray | None = None,
        row_ids: np.ndarray | None = None,
    ) -> None:
        self.codes = codes
        self.spec = spec
        self.layout, self.bin_layout = spec.layout, spec.bin_layout
        #: For each feature, whether trees grow by the fine bins themselves: bool[n_features].
        self.is_identity_bin_map = self.bin_layout.n_bins == self.layout.n_bins
        if self.is_identity_bin_map.all():
            self.bins, self.bin_layout = codes, _closest_layout(codes, self.bin_layout)
        else:
            self.bins = _empty_bins(codes, self.bin_layout, self.is_identity_bin_map)
        self.target = target
        self.weight = weight
        self.repeat_count = weight.astype(np.uint8) if spec.integer_weights and weight is not None else None
        self.raw = raw
        n_rows = codes.n_rows
        self.n_rows = n_rows
        if row_ids is not None:
            self._row_ids = row_ids
        self._ranges = [(0, n_rows)] if ranges is None else [(int(first), int(n)) for first, n in ranges]
        self.gradient = np.empty(raw.shape, np.float32)
        self.hessian = None if spec.constant_hessian else np.empty(raw.shape, np.float32)
        self.loss_hessian = np.empty(raw.shape, np.float32) if spec.weights_as_hessian else None
        if spec.weights_as_hessian and self.hessian is not None:
            self.hessian[:] = weight
        self.leaf = np.zeros(raw.shape, np.uint8 if spec.max_leaves <= 256 else np.int32)
        self.tiles = _aligned_zeros(tile_shape(self.bin_layout, n_rows))
        self.near = Near(self.n_outputs)

    @property
    def n_outputs(self) -> int:
        return 1 if self.raw.ndim == 1 else len(self.raw)

    def some_rows(self, rows: np.ndarray) -> Shard:
        """Return a shard of some of the rows (int64), in their current state; its tiles must still be filled."""
        codes = BinnedColumns(
            np.ascontiguousarray(self.codes.narrow[:, rows]), np.ascontiguousarray(self.codes.wide[:, rows]), self.codes.row_of
        )
        shard = Shard(
            codes,
            self.spec,
            self.target[rows],
            None if self.weight is None else self.weight[rows],
            np.ascontiguousarray(self.raw[..., rows]),
            ranges=runs_of(self.row_ids(0, self.n_rows)[rows]) if self._row_ids is None else None,
            row_ids=None if self._row_ids is None else self._row_ids[rows],
        )
        shard.gradient[...] = self.gradient[..., rows]
        if self.hessian is not None and shard.hessian is not None:
            shard.hessian[...] = self.hessian[..., rows]
        if self.loss_hessian is not None and shard.loss_hessian is not None:
            shard.loss_hessian[...] = self.loss_hessian[..., rows]
        shard.leaf[...] = self.leaf[..., rows]
        return shard

    def sampled_rows(self, sample: Sample | None, least_influence: int = 0, output: int = 0) -> np.ndarray | None:
        """Return the rows of this shard that take part in a tree, ascending (int64); None for all. See `RowSubset`."""
        rows = None if sample is None else self._sampled(sample)
        if least_influence == 0:
            return rows
        stays = self.influence(output) >= least_influence
        return np.flatnonzero(stays) if rows is None else rows[stays[rows]]

    def _sampled(self, sample: Sample) -> np.ndarray:
        if self._row_ids is not None:
            return np.flatnonzero(hash_rows(sample.seed, self._row_ids) < np.uint64(sample.threshold))
        parts, at = [], 0
        for first, n in self._ranges:
            rows = np.empty(n, np.int64)
            k = select_rows(np.uint64(sample.seed), first, n, np.uint64(sample.threshold), rows)
            parts.append(rows[:k] + (at - first))
            at += n
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def columns(self) -> BinnedColumns:
        """Return the codes of all features by columns."""
        return self.codes

    def row_ids(self, first: int, last: int) -> np.ndarray:
        """Return the global row ids of rows first…last-1: int64[last - first]."""
        if self._row_ids is not None:
            return self._row_ids[first:last]
        parts, at = [np.empty(0, np.int64)], 0
        for begin, n in self._ranges:
            parts.append(np.arange(begin + max(first - at, 0), begin + min(last - at, n)))
            at += n
        return np.concatenate(parts)

    def sampled_range(self, part: RowSubset, first: int, last: int) -> tuple[np.ndarray | None, int, int]:
        """Return the rows that take part in a tree (or None for all), and the range of them within rows first…last-1."""
        rows = self.sampled_rows(*part)
        if rows is None:
            return None, first, last
        begin, end = np.searchsorted(rows, (first, last))
        return rows, int(begin), int(end)

    def influence(self, output: int) -> np.ndarray:
        """Return the influence of each row on the next tree of an output: its second derivative, as float32 bits
        (int32[n_rows])."""
        influence = self.hessian if self.loss_hessian is None else self.loss_hessian
        assert influence is not None
        return (influence if influence.ndim == 1 else influence[output]).view(np.int32)

    def output_arrays(self, output: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Return gradients, Hessians and leaves of one output, each [n_rows]."""
        if self.raw.ndim == 1:
            return self.gradient, self.hessian, self.leaf
        return self.gradient[output], None if self.hessian is None else self.hessian[output], self.leaf[output]

    @cached_property
    def histogram_rows(self) -> HistogramRows:
        """What the rows add to histograms."""
        return HistogramRows(self.tiles, self.bins.wide, or_empty(self.repeat_count, "uint8"))

    @cached_property
    def gradient_rows(self) -> GradientRows:
        """What `advance_rows` reads and writes."""
        hessian = or_empty(self.hessian if self.loss_hessian is None else self.loss_hessian, "float32")
        return GradientRows(
            self.raw,
            self.leaf,
            self.target,
            or_empty(self.weight, "float64"),
            or_empty(self.repeat_count, "uint8"),
            self.gradient,
            hessian,
            self.gradient.view(np.int32),
            hessian.view(np.int32),
        )

    def fill_tiles(self, first: int, last: int) -> None:
        """Copy the bins of rows first…last-1 into tiles, the histogram kernel's memory order."""
        as_bytes = self.tiles.view(np.uint8)
        fill_tiles(self.bins.narrow, self.bin_layout, self.bins.row_of, first, last, as_bytes)


def _closest_layout(codes: BinnedColumns, layout: BinLayout) -> BinLayout:
    """Return the layout with the fewest columns for these rows: features without missing values need one code less.

    Dummy variables are the usual case: eight of them share a column, and five if values may be missing.
    """
    has_missing = np.ones(len(layout.n_bins), bool)
    for feature in np.flatnonzero(layout.n_bins <= SHARED_CODES).tolist():
        has_missing[feature] = codes.n_rows == 0 or bool(codes.of(feature).max() == layout.n_bins[feature])
    return layout if has_missing.all() else plan_layout(layout.n_bins, layout.is_categorical, has_missing)


def _empty_bins(codes: BinnedColumns, layout: BinLayout, keeps: np.ndarray) -> BinnedColumns:
    """Return arrays for the bins of a tree, to be filled for each tree; features whose bins are their fine bins are filled
    already."""
    bins = empty_binned_columns(layout, codes.n_rows)
    for feature in range(len(keeps)):
        bins.of(feature)[:] = codes.of(feature) if keeps[feature] else 0
    return bins


def runs_of(row_ids: np.ndarray) -> np.ndarray:
    """Return global row ids as runs of consecutive ones, (first, length): int64[n_runs, 2]."""
    if not len(row_ids):
        return np.empty((0, 2), np.int64)
    begins = np.flatnonzero(np.diff(row_ids, prepend=row_ids[0] - 2) != 1)
    return np.stack((row_ids[begins], np.diff(begins, append=len(row_ids))), axis=1)


def _aligned_zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Return zeros (uint64) aligned to a cache line: a row's codes never straddle two lines, which makes gathering a third
    faster."""
    n_bytes = 8 * int(np.prod(shape))
    memory = np.zeros(n_bytes + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    return memory[skip : skip + n_bytes].view(np.uint64).reshape(shape)


def advance_rows(
    shard: Shard, loss_terms: tuple, values: np.ndarray, loss_unit: float, scratch: PassScratch, first: int, last: int
) -> GradientStats:
    """Add leaf values to the scores of rows first…last-1, and compute their gradients, Hessians and loss.

    Parameters
    ----------
    shard : Shard
    loss_terms : NamedTuple
        The loss's record for kernels.
    values : float64[n_outputs, n_leaves]
        Leaf values of each output's last tree.
    loss_unit : float
        Unit of the exact loss sums.
    scratch : PassScratch
    first, last : int
    """
    if isinstance(loss_terms, CustomTerms):
        return _by_methods(shard, loss_terms.loss, values[0], loss_unit, first, last)
    rows, influence = shard.gradient_rows, None
    if getattr(loss_terms, "counts_influence", False):
        near = shard.near.buffer_for(first, last) if shard.near is not None else NOTHING_NEAR
        sums = np.zeros((shard.n_outputs, LANES, N_DIGITS), np.int64)
        influence = InfluencePass(sums, near.expected, near.rows, near.n)
    loss, maxima = np.zeros(2), np.zeros((2, shard.n_outputs), np.int32)
    if shard.raw.ndim == 1:
        totals = PassTotals(loss, maxima.ravel())
        update_gradients(loss_terms, rows, values[0], first, last, loss_unit, scratch, totals, influence)
    else:
        totals = PassTotals(loss, maxima)
        update_all_gradients(loss_terms, rows, values, first, last, loss_unit, scratch, totals, influence)
    max_gradient, max_hessian = maxima.view(np.float32).astype(np.float64)
    if shard.hessian is None and shard.loss_hessian is None:
        max_hessian = np.ones_like(max_hessian)
    by_digit = None if influence is None else influence.sums.sum(axis=1)
    return GradientStats(max_gradient, max_hessian, float(loss[0]), float(loss[1]), by_digit)


def _by_methods(shard: Shard, loss: Loss, values: np.ndarray, loss_unit: float, first: int, last: int) -> GradientStats:
    """Do the same with the methods of a custom loss."""
    raw, y = shard.raw[first:last], shard.target[first:last]
    kept = shard.hessian if shard.loss_hessian is None else shard.loss_hessian
    raw += values[shard.leaf[first:last]]
    with np.errstate(all="ignore"):
        value, gradient, hessian = (call_custom(loss, what, y, raw) for what in ("value", "gradient", "hessian"))
        if shard.weight is not None:
            weight = shard.weight[first:last]
            value = value * weight
            if shard.repeat_count is None:
                gradient, hessian = gradient * weight, hessian * weight
        shard.gradient[first:last] = gradient
        if kept is not None:
            kept[first:last] = np.maximum(hessian, 0.0)
        in_units = np.nan_to_num(np.clip(value * loss_unit, -LARGEST, LARGEST))
    loss_sum = ExactSum.of(in_units, 1.0)
    tops = [0.0 if of is None or first == last else np.abs(of[first:last]).max() for of in (shard.gradient, kept)]
    if kept is None:
        tops[1] = 1.0
    return GradientStats(np.array(tops[:1], np.float64), np.array(tops[1:], np.float64), loss_sum.loss_unit, loss_sum.fine)


#: Capacity: one row in this many.
_ROWS_PER_RECORDED_ROW = 8


@dataclass(frozen=True, eq=False)
class NearRows:
    """The recorded rows of one range."""

    expected: np.ndarray  # int32[n_outputs]: first digits
    n: np.ndarray  # int64[n_outputs]: number of rows that have them
    rows: np.ndarray | None  # int32[n_outputs, capacity]


#: For passes that do not record rows.
NOTHING_NEAR = NearRows(np.full(1, -1, np.int32), np.zeros(1, np.int64), None)


class Near:
    """The rows of a shard near the trimming thresholds of its outputs' next trees."""

    def __init__(self, n_outputs: int) -> None:
        self._expected = np.full(n_outputs, -1, np.int32)
        self._found: dict[tuple[int, int], NearRows] = {}

    def buffer_for(self, first: int, last: int) -> NearRows:
        """Return buffers to record rows first…last-1, whose influences are about to change."""
        for other in list(self._found):
            if other != (first, last) and other[0] < last and first < other[1]:
                self._found.pop(other, None)
        before = self._found.get((first, last))
        n_outputs = len(self._expected)
        rows = np.empty((n_outputs, (last - first) // _ROWS_PER_RECORDED_ROW + 1), np.int32) if before is None else before.rows
        found = NearRows(self._expected.copy(), np.zeros(n_outputs, np.int64), rows)
        self._found[first, last] = found
        return found

    def rows(self, first: int, last: int, output: int, digit: int) -> np.ndarray | None:
        """Return those of rows first…last-1 whose influence has this first digit, if they are known: int32[...]."""
        found = self._found.get((first, last))
        if found is None or found.expected[output] != digit:
            return None
        assert found.rows is not None
        n = int(found.n[output])
        return found.rows[output, :n] if n <= found.rows.shape[1] else None

    def expect(self, output: int, digit: int) -> None:
        """Record the rows that have this first digit from the next pass on."""
        self._expected[output] = digit


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


@reduced_by(np.add)
def leaf_buckets(
    shard: Shard, first: int, last: int, subset: RowSubset, n_leaves: int, unit: float, low: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Return the weights of residuals by leaf and bucket: int64[n_leaves, N_BUCKETS], see `quantile_keys.count_buckets`."""
    counts = np.zeros((n_leaves, N_BUCKETS), np.int64)
    count_buckets(_residuals_by_leaf(shard, subset, first, last), low, scale, unit, counts)
    return counts


@reduced_by(concatenated)
def leaf_keys(
    shard: Shard, first: int, last: int, subset: RowSubset, unit: float, low: np.ndarray, scale: np.ndarray, wanted: np.ndarray
) -> np.ndarray | None:
    """Return leaf, rank key and weight of the residuals in the wanted buckets: uint64[n, 3], or None if there are too many."""
    found = np.empty((FEW, 3), np.uint64)
    lowest, highest = bucket_bounds(low, scale, wanted)
    n = collect_buckets(_residuals_by_leaf(shard, subset, first, last), low, scale, wanted, lowest, highest, unit, found)
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


@reduced_by(np.add)
def size_buckets(shard: Shard, first: int, last: int, unit: float, low: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the weights of all |y - F| by bucket: int64[1, N_BUCKETS], as `leaf_buckets`."""
    counts = np.zeros((1, N_BUCKETS), np.int64)
    count_buckets(_residual_sizes(shard, first, last), low, scale, unit, counts)
    return counts


@reduced_by(concatenated)
def size_keys(
    shard: Shard, first: int, last: int, unit: float, low: np.ndarray, scale: np.ndarray, wanted: np.ndarray
) -> np.ndarray | None:
    """Return group 0, rank key and weight of all |y - F| in the wanted buckets, as `leaf_keys`."""
    found = np.empty((FEW, 3), np.uint64)
    lowest, highest = bucket_bounds(low, scale, wanted)
    n = collect_buckets(_residual_sizes(shard, first, last), low, scale, wanted, lowest, highest, unit, found)
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


#: Rows to which so many trees are applied before the next rows.
_BLOCK, _TREES = 16_384, 64


@dataclass(frozen=True, eq=False)
class TreeDelta:
    """A grown tree of one output, and what its leaves add to the scores: float64[n_leaves]."""

    routes: TreeRoutes
    values: np.ndarray
    output: int

    @property
    def grown(self) -> GrownTree:
        return self.routes.restore()


#: From this many rows on, labelling them with leaves is faster than following each to its leaf: with masks, and with tables for
#: each leaf of the tree. Below, preparing the labelling takes longer.
_ROWS_OF_MASKS, _ROWS_OF_TABLES = 4096, 256


def add_grown_tree(
    codes: BinnedColumns, layout: BinLayout, grown: GrownTree, values: np.ndarray, raw: np.ndarray, first: int, last: int
) -> None:
    """Add leaf values (float64[n_leaves]) to the raw scores (float64[n_rows]) of rows first…last-1."""
    least = _ROWS_OF_MASKS if grown.n_leaves <= MASK_LEAVES else _ROWS_OF_TABLES * grown.n_leaves
    find = leaf_finder(codes, layout, grown) if last - first >= least else None
    if find is None:
        # For splits, `leaf_of` holds values of an earlier, larger tree in the engine's buffer; they are never used.
        of_node = values.take(grown.leaf_of[: grown.n_nodes], mode="clip")
        add_tree(codes, layout, grown.nodes, grown.left_codes, of_node, first, last, raw)
        return
    leaf = np.empty(last, np.uint8 if grown.n_leaves <= 256 else np.int32)
    find(leaf, first, last)
    raw[first:last] += values[leaf[first:last]]


def add_iterations(
    codes: BinnedColumns, layout: BinLayout, iterations: Sequence[Sequence[TreeDelta]], raw: np.ndarray, first: int, last: int
) -> None:
    """Add whole iterations to the raw scores (float64[n_rows] or float64[n_outputs, n_rows]) of rows first…last-1.

    Block by block, so that a block's codes and scores stay in the cache while all trees are applied to it.
    """
    trees = [tree for of_iteration in iterations for tree in of_iteration]
    for at in range(0, len(trees), _TREES):
        some = [(tree.grown, tree.values, raw if raw.ndim == 1 else raw[tree.output]) for tree in trees[at : at + _TREES]]
        for begin in range(first, last, _BLOCK):
            end = min(begin + _BLOCK, last)
            for grown, values, of_output in some:
                add_grown_tree(codes, layout, grown, values, of_output, begin, end)


def leaf_finder(codes: BinnedColumns, layout: BinLayout, grown: GrownTree) -> Callable[[np.ndarray, int, int], None] | None:
    """Return a function that writes the leaves of rows first…last-1 into an array of leaf numbers.

    None if the tree tests codes of two bytes.
    """
    n, nodes = grown.n_nodes, grown.nodes
    if grown.n_leaves <= MASK_LEAVES:
        mask_splits = new_mask_splits()
        below, leaves = np.empty((2, n), np.int64)
        n_splits = prepare_masks(nodes, n, grown.leaf_of, grown.left_codes, layout, codes.row_of, below, leaves, mask_splits)
        if n_splits >= 0:
            return lambda leaf, first, last: label_by_masks(
                codes.narrow, mask_splits, n_splits, first, last, np.empty((N_PLANES + 1, BLOCK), np.uint8), leaf
            )
    child, feature = nodes.child[:n], nodes.feature[:n]
    splits = np.flatnonzero(child >= 0)
    step = codes.row_of[np.maximum(feature, 0)]
    if (step[splits] < 0).any():
        return None
    # Bytes if there are few nodes: then the table fits the fastest cache.
    follows = np.repeat(np.arange(n, dtype=np.uint8 if n <= 256 else np.int32)[:, None], 256, axis=1)
    for node in splits:
        f, left = int(feature[node]), np.zeros(256, bool)
        n_bins = int(layout.n_bins[f])
        if layout.is_categorical[f]:
            left[:n_bins] = grown.left_codes[node, :n_bins]
        else:
            left[: int(nodes.split_bin[node]) + 1] = True
        left[n_bins] = nodes.missing_left[node]
        follows[node] = child[node] + ~left
    depth = int(nodes.depth[:n].max())
    return lambda leaf, first, last: label_by_tables(
        codes.narrow, np.maximum(step, 0), follows, grown.leaf_of[:n], depth, first, last, leaf
    )


def assign_leaves(codes: BinnedColumns, layout: BinLayout, grown: GrownTree) -> Callable[[np.ndarray, int, int], None]:
    """Return `leaf_finder`, or for codes of two bytes a slower function that does the same."""

    def slowly(leaf: np.ndarray, first: int, last: int) -> None:
        reached, numbers = np.zeros(len(leaf)), np.arange(grown.n_leaves, dtype=np.float64)
        add_grown_tree(codes, layout, grown, numbers, reached, first, last)
        leaf[first:last] = reached[first:last]

    return leaf_finder(codes, layout, grown) or slowly


def leaves_of(codes: BinnedColumns, layout: BinLayout, grown: GrownTree) -> np.ndarray:
    """Return the leaf of each row: float64[n_rows], integers."""
    reached = np.zeros(codes.n_rows)
    add_grown_tree(codes, layout, grown, np.arange(grown.n_leaves, dtype=np.float64), reached, 0, codes.n_rows)
    return reached
