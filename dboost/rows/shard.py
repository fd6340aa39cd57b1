"""A shard: a block of training rows, and the pass over them between two iterations.

A `Shard` is a view of the fields of a block: the bin codes of every feature, the target, the weight, the raw scores, and the
state of the current tree: gradients, Hessians, and the leaf of each row. The arrays belong to a store of rows, in memory or in
files (`session.training_rows`); the same functions run on them wherever they are. Rows of weight zero are not stored.

A model with K outputs (K classes) has arrays of shape [K, n_rows], so that the values of one output are contiguous for its
tree.

**Segments.** Usually all rows of a shard are trained on, in the order of the table. Folds of a cross-validation share the
codes of their rows (`rows.shared_codes`), which are in another order, and a fold trains on a few segments of them
(`RowSegments`). All sums over rows are exact, so they do not depend on the order.

**Advance.** Between two iterations, `LossTerms.advance` adds the last trees to the scores of a `Shard.gradient_pass`, and
computes gradients and Hessians. It returns the largest gradient and Hessian and exact sums of the loss, which merge over any
division of the rows; with categorical features `Shard.noise` adds up sums by which categories are told from noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dboost.errors import DataError
from dboost.kernels import or_empty
from dboost.kernels.bins import fill_tiles
from dboost.kernels.histograms import BinLayout, HistogramRows
from dboost.kernels.rows import mark_rows
from dboost.losses.base import target_column
from dboost.losses.gradient_noise import GradientNoise, noise_of
from dboost.losses.gradient_pass import PassScratch
from dboost.losses.terms import GradientPass, LossRows, LossTerms
from dboost.rows.row_groups import ends_of, next_ends
from dboost.rows.row_sample import RowSubset, Sample
from dboost.rows.shard_spec import MOST_JOINT_CODES, NARROW_BINS, ShardSpec, code_rows, plan_layout, tile_shape
from dboost.tuning import tuning


class BinnedColumns(NamedTuple):
    """The bin codes of a table: each feature is a row of `narrow` or of `wide` (see `rows.shard_spec.code_rows`)."""

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

    def columns(self) -> tuple[np.ndarray, ...]:
        """Return the codes of every feature."""
        return tuple(map(self.of, range(len(self.row_of))))

    def part(self, rows: slice) -> BinnedColumns:
        """Return some of the rows (views)."""
        return BinnedColumns(self.narrow[:, rows], self.wide[:, rows], self.row_of)


def empty_binned_columns(layout: BinLayout, n_rows: int) -> BinnedColumns:
    """Return uninitialised arrays for the codes of `n_rows` rows."""
    row_of = code_rows(layout)
    n_wide = int((layout.n_bins > NARROW_BINS).sum())
    n_narrow = len(layout.n_bins) - n_wide
    return BinnedColumns(np.empty((n_narrow, n_rows), np.uint8), np.empty((n_wide, n_rows), np.uint16), row_of)


def columns_among(fields: Mapping[str, np.ndarray], layout: BinLayout, prefix: str = "") -> BinnedColumns:
    """Return the codes by columns among the fields of some rows, see `shard_spec.column_fields`."""
    narrow, wide = fields[f"{prefix}narrow"], fields.get(f"{prefix}wide")
    none = np.empty((0, narrow.shape[1]), np.uint16)
    return BinnedColumns(narrow, none if wide is None else wide, code_rows(layout))


def tiles_of(codes: BinnedColumns, layout: BinLayout) -> np.ndarray:
    """Return codes in the memory order of the histogram kernel: uint64[n_tiles, n_rows, words]."""
    tiles = np.zeros(tile_shape(layout, codes.n_rows), np.uint64)
    fill_tiles(codes.narrow, layout, codes.row_of, 0, codes.n_rows, tiles.view(np.uint8))
    return tiles


def codes_of(tiles: np.ndarray, wide: np.ndarray | None, layout: BinLayout) -> BinnedColumns:
    """Return the codes of some rows by columns, from tiles (uint64[n_tiles, n_rows, words]): the inverse of `tiles_of`."""
    codes = empty_binned_columns(layout, tiles.shape[1])
    as_bytes = tiles.view(np.uint8)
    for column in range(layout.n_tiled):
        joint = as_bytes[column // 32, :, column % 32]
        features = layout.features[layout.first[column] : layout.first[column + 1]].tolist()
        for feature in features:
            n_codes, stride = int(layout.n_codes[feature]), int(layout.stride[feature])
            codes.of(feature)[:] = joint if len(features) == 1 else joint // stride % n_codes
    if wide is not None:
        codes.wide[...] = wide
    return codes


#: Rows that are reordered or cast at a time.
_PIECE_ROWS = 1 << 16


def check_rows_in_memory(n_rows: int) -> None:
    """Raise DataError if one shard cannot number that many rows."""
    most = tuning().session_rows
    if n_rows > most:
        raise DataError(
            f"{n_rows:,} rows in one part of the memory are more than the {most:,} whose numbers fit 32 bits: set "
            "a memory_limit that they do not fit, so that they are streamed from files, or train on more workers"
        )


class RowIds:
    """Global ids of consecutive rows, as runs of consecutive ids.

    Parameters
    ----------
    runs : int64[n_runs, 2]
        First id and length of each run.
    """

    def __init__(self, runs: np.ndarray) -> None:
        self._runs, self._ends = runs, np.cumsum(runs[:, 1])

    def runs(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the runs (first id, length) of rows first…last-1."""
        id_runs = []
        for k in range(int(np.searchsorted(self._ends, first, "right")), len(self._ends)):
            begin = int(self._ends[k] - self._runs[k, 1])
            if begin >= last:
                break
            low, high = max(first, begin), min(last, int(self._ends[k]))
            id_runs.append((int(self._runs[k, 0]) + low - begin, high - low))
        return id_runs

    def of(self, first: int, last: int) -> np.ndarray:
        """Return the ids of rows first…last-1: int64[last - first]."""
        return np.concatenate([np.empty(0, np.int64), *(np.arange(a, a + n) for a, n in self.runs(first, last))])

    def at(self, rows: np.ndarray) -> np.ndarray:
        """Return the ids of some rows: int64[n]."""
        run = np.searchsorted(self._ends, rows, "right")
        return self._runs[run, 0] + rows - (self._ends - self._runs[:, 1])[run]


def _mark_runs(sample: Sample, runs: Sequence[tuple[int, int]], marks: np.ndarray) -> None:
    """Set the marks of rows (uint8[n], see `Shard.tree_marks`) that are runs of consecutive ids, see `RowIds.runs`."""
    at = 0
    for first_id, n in runs:
        mark_rows(*map(np.uint64, sample), or_empty(None, "int64"), first_id, marks[at : at + n])
        at += n


class RowSegments:
    """The rows of a shard that are trained on, as segments of consecutive rows.

    Parameters
    ----------
    segments : sequence of (int, int)
        First row of each segment, and its last row + 1; ascending.
    order : unsigned[n_rows]
        Position of each row of the shard among the same rows in the order of the table.
    ids : RowIds
        Of the rows that are trained on, in the order of the table.

    Attributes
    ----------
    n_rows : int
        Number of rows that are trained on.
    """

    def __init__(self, segments: Sequence[tuple[int, int]], order: np.ndarray, ids: RowIds) -> None:
        self._segments, self._order, self._ids = segments, order, ids
        self.n_rows = sum(last - first for first, last in segments)

    def share(self, k: int, n: int) -> list[tuple[int, int]]:
        """Return the k-th of n shares of about as many rows, as segments; at least one, which may be empty."""
        low, high, at = self.n_rows * k // n, self.n_rows * (k + 1) // n, 0
        row_ranges = []
        for first, last in self._segments:
            begin, end = max(low - at, 0), min(high - at, last - first)
            if begin < end:
                row_ranges.append((first + begin, first + end))
            at += last - first
        return row_ranges or [(0, 0)]

    def positions(self, into: np.ndarray | None = None) -> np.ndarray:
        """Return the rows, ascending: int64[n_rows]. into : int64[>= n_rows], receives them; default: a new array."""
        rows = np.empty(self.n_rows, np.int64) if into is None else into[: self.n_rows]
        rows[:] = 1
        at = end = 0
        for first, last in self._segments:
            rows[at] = first - end + (at > 0)
            at, end = at + last - first, last
        return np.cumsum(rows, out=rows)

    def in_order(self, fields: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield fields by name for all rows of the shard ([..., n]), one after the other: a single one is in memory twice.

        fields : of all rows, in the order of the table. Those of rows that are not trained on are 0 in the result.
        """
        for name, values in fields:
            ordered = np.zeros((*values.shape[:-1], len(self._order)), values.dtype)
            for first, last in self._segments:
                for low in range(first, last, _PIECE_ROWS):
                    rows = slice(low, min(low + _PIECE_ROWS, last))
                    ordered[..., rows] = values[..., self._order[rows]]
            del values
            yield name, ordered

    def row_ids(self, first: int, last: int) -> np.ndarray:
        """Return the global ids of rows first…last-1, which belong to one segment: int64[last - first]."""
        at = 0
        for begin, end in self._segments:
            if begin <= first <= last <= end:
                return self._ids.at(self._rank[at + first - begin : at + last - begin])
            at += end - begin
        raise AssertionError("the rows are not those of one segment")

    def mark(self, sample: Sample, marks: np.ndarray) -> None:
        """Set the marks of the rows that are trained on. marks : of all rows of the shard, see `Shard.tree_marks`."""
        in_order, at = np.empty(self.n_rows, np.uint8), 0
        _mark_runs(sample, self._ids.runs(0, self.n_rows), in_order)
        for first, last in self._segments:
            marks[first:last] = in_order[self._rank[at : at + last - first]]
            at += last - first

    @cached_property
    def _rank(self) -> np.ndarray:
        """Return the position of each row that is trained on among them in the order of the table: uint32[n_rows]."""
        is_trained = np.zeros(len(self._order), bool)
        for first, last in self._segments:
            is_trained[self._order[first:last]] = True
        rank = np.cumsum(is_trained, dtype=np.uint32)
        rank -= np.uint32(1)
        return np.concatenate([rank[self._order[first:last]] for first, last in self._segments])


class Shard:
    """A block of training rows, in memory or in a buffer: a view of its fields.

    Parameters
    ----------
    fields : dict
        Arrays by name, see `ShardSpec.field_groups`. Rows in memory have "narrow", one-byte codes by columns; scattered rows
        have "row_ids" (int64[n_rows]) instead of `ids`. Rows without codes have statistics only.
    spec : ShardSpec
    ids : RowIds, optional
        Default: the rows are numbered from 0.
    first : int, default 0
        The first row's position in `ids`.
    segments : RowSegments, optional
        The rows that are trained on, instead of `ids`, if the codes are shared with other folds. The state of other rows is
        undefined. Default: all rows.
    """

    def __init__(
        self,
        fields: Mapping[str, np.ndarray],
        spec: ShardSpec,
        ids: RowIds | None = None,
        first: int = 0,
        segments: RowSegments | None = None,
    ) -> None:
        self.fields, self.spec, self.segments = fields, spec, segments
        self.layout, self.tree_layout = spec.layout, spec.tree_layout
        self.weight, self.repeat_count = fields.get("weight"), fields.get("repeat_count")
        self.raw, self.gradient = fields["raw"], fields["gradient"]
        #: Of each output; those of one tree are the same memory.
        self.leaf = fields["leaf"] if spec.width == 1 else _same_for(spec.n_outputs, fields["leaf"][0])
        self.hessian, self.loss_hessian = fields.get("hessian"), fields.get("loss_hessian")
        self.draw_id = fields.get("draw_id")
        self.n_rows = self.raw.shape[1]
        self._ids = RowIds(np.array([[0, self.n_rows]])) if ids is None else ids
        self._first = first
        self._marked: tuple[Sample | None, np.ndarray] | None = None  # see `_marks`

    @property
    def n_outputs(self) -> int:
        return len(self.raw)

    def target(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Return the targets of some rows: float64[n], or [n_columns, n]."""
        return self.fields["target"][..., rows].astype(np.float64, copy=False)

    def target_of(self, output: int) -> np.ndarray:
        """Return the targets of one output, see `losses.base.Targets`: float64[n]."""
        column = self.spec.columns[output] if self.spec.columns else 0
        return target_column(self.fields["target"], column).astype(np.float64, copy=False)

    @property
    def n_trained(self) -> int:
        """Number of rows that are trained on."""
        return self.n_rows if self.segments is None else self.segments.n_rows

    def ranges(self, k: int = 0, n: int = 1) -> list[tuple[int, int]]:
        """Return the k-th of n shares of the rows that are trained on, as ranges: first row, and last row + 1."""
        if self.segments is not None:
            return self.segments.share(k, n)
        first, last = self.n_rows * k // n, self.n_rows * (k + 1) // n
        return [self._whole_groups(first, last) if self.spec.keeps_groups else (first, last)]

    def _whole_groups(self, first: int, last: int) -> tuple[int, int]:
        """Return a range of rows whose borders are moved to the next end of a group. Those of all rows stay."""
        if (first, last) == (0, self.n_rows):
            return first, last
        first, last = next_ends(self.group_ends, np.array([first, last])).tolist()
        return first, last

    @cached_property
    def group_ends(self) -> np.ndarray:
        """Last row + 1 of each group, if rows have groups: int64[n_groups], ascending."""
        return ends_of(self.fields["draw_id"])

    @property
    def tiles(self) -> np.ndarray:
        """Codes of the bins that trees grow by, in the histogram kernel's memory order."""
        return self.fields["tiles"]

    @cached_property
    def codes(self) -> BinnedColumns:
        """Codes by columns; of a block of a file they are computed from tiles, which must have been read."""
        if "narrow" in self.fields:
            return columns_among(self.fields, self.layout)
        return codes_of(self.tiles, self.fields.get("wide"), self.layout)

    @cached_property
    def tree_codes(self) -> BinnedColumns:
        """Codes, by columns, of the bins that trees grow by: `codes`, unless bins are proposed for each tree."""
        if not self.spec.has_tree_bins:
            return self.codes
        return columns_among(self.fields, self.tree_layout, "tree_")

    @property
    def wide_tree_codes(self) -> np.ndarray:
        """The two-byte columns of `tree_codes`, which are not in tiles: uint16[n_wide, n_rows]."""
        wide = self.fields.get("tree_wide" if self.spec.has_tree_bins else "wide")
        return np.empty((0, self.n_rows), np.uint16) if wide is None else wide

    def tree_marks(self, sample: Sample | None, least_influence: int = 0, output: int = 0) -> np.ndarray | None:
        """Return which rows take part in a tree, see `RowSubset`: uint8[n_rows], 1 for those that do, else 0. None if all rows
        that are trained on do.

        It is valid until the next call for another sample.
        """
        if sample is None and not least_influence:
            return None
        marks = self._marks(sample)
        return marks & (self.influence(output) >= least_influence) if least_influence else marks

    def _marks(self, sample: Sample | None) -> np.ndarray:
        """Return 1 for rows that are sampled and trained on, 0 for the others: uint8[n_rows].

        They are kept for the other trees of an iteration, and their memory for the next iteration.
        """
        if self._marked is not None and self._marked[0] == sample:
            return self._marked[1]
        marks = np.zeros(self.n_rows, np.uint8) if self._marked is None else self._marked[1]
        drawn_by = self.fields.get("draw_id", self.fields.get("row_ids"))
        if sample is None:
            for first, last in self.ranges():
                marks[first:last] = 1
        elif drawn_by is not None:
            for first, last in self.ranges():
                mark_rows(*map(np.uint64, sample), drawn_by[first:last], 0, marks[first:last])
        elif self.segments is not None:
            self.segments.mark(sample, marks)
        else:
            _mark_runs(sample, self._id_runs, marks)
        self._marked = sample, marks
        return marks

    @cached_property
    def _id_runs(self) -> list[tuple[int, int]]:
        return self._ids.runs(self._first, self._first + self.n_rows)

    def sampled_rows(self, sample: Sample | None, least_influence: int = 0, output: int = 0) -> np.ndarray | None:
        """Return the rows of this shard that take part in a tree, ascending (int64); None for all that are trained on. See
        `RowSubset`."""
        return self.sampled_range(RowSubset(sample, least_influence, output), 0, self.n_rows)[0]

    def row_ids(self, first: int, last: int) -> np.ndarray:
        """Return the global row ids of rows first…last-1, which are in one of the `ranges`: int64[last - first]."""
        if self.segments is not None:
            return self.segments.row_ids(first, last)
        row_ids = self.fields.get("row_ids")
        return self._ids.of(self._first + first, self._first + last) if row_ids is None else row_ids[first:last]

    def sampled_range(self, subset: RowSubset, first: int, last: int) -> tuple[np.ndarray | None, int, int]:
        """Return those of rows first…last-1 that take part in a tree (or None for all), and the range of them to use."""
        marks = self.tree_marks(*subset)
        if marks is None:
            return None, first, last
        rows = first + np.flatnonzero(marks[first:last].view(bool))
        return rows, 0, len(rows)

    def influence(self, output: int) -> np.ndarray:
        """Return the influence of each row on the next tree of an output: its second derivative, as float32 bits
        (int32[n_rows])."""
        influence = self.fields["hessian" if self.loss_hessian is None else "loss_hessian"]
        return influence[output].view(np.int32)

    def output_arrays(self, output: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Return gradients, Hessians and leaves of one output, each [n_rows]."""
        return self.gradient[output], None if self.hessian is None else self.hessian[output], self.leaf[output]

    def split_arrays(self, output: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Return what a tree grows by, see `output_arrays`; a tree of all outputs by the derivatives along a direction."""
        if self.spec.width == 1:
            return self.output_arrays(output)
        return self.fields["split_gradient"], self.fields.get("split_hessian"), self.fields["leaf"][0]

    @cached_property
    def histogram_rows(self) -> HistogramRows:
        """What the rows add to histograms."""
        return HistogramRows(self.tiles, self.wide_tree_codes, or_empty(self.repeat_count, "uint8"))

    @cached_property
    def loss_rows(self) -> LossRows:
        """What a `gradient_pass` reads and writes."""
        spec = self.spec
        return LossRows(
            self.raw,
            self.leaf,
            self.fields["target"],
            self.weight,
            self.repeat_count,
            self.gradient,
            self.hessian if self.loss_hessian is None else self.loss_hessian,
            self.fields.get("split_gradient"),
            None if spec.weights_as_hessian else self.fields.get("split_hessian"),
            self.group_ends if spec.keeps_groups else None,
        )

    def gradient_pass(self, values: np.ndarray, terms: LossTerms, scratch: PassScratch, first: int, last: int) -> GradientPass:
        """Return the pass that adds leaf values to the scores of rows first…last-1, and computes gradients, Hessians and loss.

        values : float64[n_outputs, n_leaves], leaf values of each output's last tree.
        """
        return GradientPass(self.loss_rows, values, self.spec.loss_unit, scratch, first, last, terms.counts_influence)

    def noise(self, first: int, last: int) -> tuple[GradientNoise, ...]:
        """Return what the noise of each tree's gradients follows from, of rows first…last-1."""
        return tuple([self._noise(tree, first, last) for tree in range(self.spec.trees_per_iteration)])

    def _noise(self, tree: int, first: int, last: int) -> GradientNoise:
        """Return what the noise of a tree's gradients follows from, of all rows, also those that a sample leaves out."""
        rows, (gradient, hessian, _) = slice(first, last), self.split_arrays(tree)
        changes = or_empty(hessian, "float32")[rows]
        if hessian is not None and self.spec.weights_as_hessian:  # the pass over a file does not read these Hessians
            changes = self.fields["weight"][rows].astype(np.float32)
        return noise_of(gradient[rows], changes, or_empty(self.repeat_count, "uint8")[rows])

    def fill_tiles(self, first: int, last: int) -> None:
        """Copy the `tree_codes` of rows first…last-1 into tiles, the histogram kernel's memory order."""
        as_bytes = self.tiles.view(np.uint8)
        fill_tiles(self.tree_codes.narrow, self.tree_layout, self.tree_codes.row_of, first, last, as_bytes)


def _same_for(n_outputs: int, leaf: np.ndarray) -> np.ndarray:
    """Return the leaves of rows ([n]) once for each output, in the same memory: [n_outputs, n]."""
    return np.lib.stride_tricks.as_strided(leaf, (n_outputs, len(leaf)), (0, *leaf.strides))


def spec_in_memory(fields: Mapping[str, np.ndarray], spec: ShardSpec) -> ShardSpec:
    """Return the specification of rows in memory with these fields, of which the tiles may have fewer columns."""
    return spec if spec.has_tree_bins else replace(spec, tree_layout=_closest_layout(fields["narrow"], spec.tree_layout))


def _closest_layout(narrow: np.ndarray, layout: BinLayout) -> BinLayout:
    """Return the layout with the fewest columns for these rows: features without missing values need one code less.

    Dummy variables are the usual case: eight of them share a column, and five if values may be missing.

    narrow : uint8[n_narrow, n_rows], their one-byte codes by columns.
    """
    has_missing, row_of = np.ones(len(layout.n_bins), bool), code_rows(layout)
    for feature in np.flatnonzero(layout.n_bins <= MOST_JOINT_CODES).tolist():
        has_missing[feature] = narrow.shape[1] == 0 or bool(narrow[row_of[feature]].max() == layout.n_bins[feature])
    return layout if has_missing.all() else plan_layout(layout.n_bins, layout.is_categorical, has_missing)


def runs_of(row_ids: np.ndarray) -> np.ndarray:
    """Return global row ids as runs of consecutive ones, (first, length): int64[n_runs, 2]."""
    if not len(row_ids):
        return np.empty((0, 2), np.int64)
    begins = np.flatnonzero(np.diff(row_ids, prepend=row_ids[0] - 2) != 1)
    return np.stack((row_ids[begins], np.diff(begins, append=len(row_ids))), axis=1)


def compacted(target: np.ndarray) -> np.ndarray:
    """Return targets as uint8 or float32 if that is exact, signs of zeros included."""
    if target.dtype != np.float64:
        return target
    for dtype in (np.uint8, np.float32):
        smaller = np.empty(target.shape, dtype)
        pieces = (np.s_[..., first : first + _PIECE_ROWS] for first in range(0, target.shape[-1], _PIECE_ROWS))
        if all(_cast(target[piece], smaller[piece]) for piece in pieces):
            return smaller
    return target


def _cast(values: np.ndarray, into: np.ndarray) -> bool:
    """Cast float64 values; return whether that is exact, signs of zeros included."""
    with np.errstate(all="ignore"):
        into[...] = values
    return bool((into.astype(np.float64).view(np.int64) == np.ascontiguousarray(values).view(np.int64)).all())
