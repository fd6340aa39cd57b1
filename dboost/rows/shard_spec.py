"""What all shards of a fit have in common: the memory layout of bin codes, weights, Hessians, precision.

`ShardSpec` is one frozen record, for rows in memory and in files. It follows from the parameters and from statistics of the
training rows (see `training.plan.FitPlan`), so it is the same on every worker.

**Layout.** Bin codes are stored as tiles of one-byte columns, joint codes for columns of few bins, and wide columns for many. A
column of b bins (missing values count as one more) needs only log2(b) bits of its byte. Columns of few bins share a byte as a
joint code, as long as the product of their bins is at most 256: a one-hot table shrinks eightfold, and so does the time to add
it up. The histogram of each feature is computed from the joint one by summing over the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dboost.kernels.histograms import COLUMN_STRIDE, TILE_COLUMNS, BinLayout
from dboost.losses.terms import LossTerms
from dboost.rows.block_file import Field
from dboost.rows.row_store import FieldGroup
from dboost.tuning import tuning

#: A block of a wide table has fewer rows, so that it does not exceed this size.
_BLOCK_BYTES = 4 * 2**20
#: There are at least this many blocks, as long as each has at least this many rows.
_LEAST_BLOCKS, _LEAST_ROWS = 16, 1024
#: Speculative splits of a growing tree for each leaf of the final tree, see `trees.tree_growth`.
MOST_OPENED = 4


@dataclass(frozen=True, eq=False)
class ShardSpec:
    """The properties of a shard, apart from its rows."""

    layout: BinLayout  # of the bins that rows are encoded by and that finished trees refer to
    tree_layout: BinLayout  # of the bins that trees grow by: `layout`, unless bins are proposed for each tree
    max_leaves: int
    n_outputs: int = 1
    width: int = 1  # values per leaf: 1, or n_outputs, then one tree grows by gradients along a direction
    n_targets: int = 1  # number of target columns, see `losses.base.Targets`
    columns: tuple[int, ...] = ()  # the target column of each output of a loss with parts, see `losses.base.Targets`
    weighted: bool = False  # False when all weights are 1
    #: The weights are integers of at most 255: each row counts that many times, with the gradient of a single such row.
    #: Otherwise weights are multiplied into gradients and Hessians.
    integer_weights: bool = False
    constant_hessian: bool = True  # the Hessian is 1 for every row (by the loss, and without fractional weights)
    weights_as_hessian: bool = False  # trees grow with weights instead of Hessians, which are stored as `loss_hessian`
    #: Whether most rows have the gradient of the iteration before, see `trees.steady_roots`.
    steady_gradients: bool = False
    n_channels: int = 2  # of histograms: 2 (gradients and Hessians) or 3 (and counts)
    loss_unit: float = 1.0  # unit of the exact sums of the loss
    #: Whether rows in memory have their targets in fewer than 8 bytes if that changes no number; then nothing but
    #: `losses.gradient_pass` reads the targets of all rows in every iteration.
    compacts_target: bool = False
    target_type: str = "<f8"  # of rows in memory
    #: Whether samples of rows take whole groups, or gradients need them, so that rows have a `draw_id`.
    has_draw_ids: bool = False
    #: Whether the gradients of a row depend on its whole group: then ranges and blocks of rows end between groups.
    keeps_groups: bool = False
    averages: bool = False  # whether trees are averaged, not added up: rows have sums of their own, see `trees.tree_means`
    speculates: bool = True  # whether nodes may be split that are not part of the finished tree

    @property
    def leaf_type(self) -> str:
        """The type of a streamed row's slot while a tree grows: each leaf, and each speculative split, has one."""
        return leaf_type_for(self.max_leaves * (1 + MOST_OPENED if self.speculates else 1))

    @property
    def trees_per_iteration(self) -> int:
        return self.n_outputs // self.width

    @property
    def has_repeat_count(self) -> bool:
        """Whether rows have a repeat count, see `integer_weights`."""
        return self.integer_weights and self.weighted

    @property
    def has_tree_bins(self) -> bool:
        """Whether trees grow by bins of their own, which are proposed for each tree from the bins of `layout`."""
        return self.tree_layout is not self.layout and bool((self.tree_layout.n_bins != self.layout.n_bins).any())

    @cached_property
    def is_identity_bin_map(self) -> np.ndarray:
        """For each feature, whether trees grow by the fine bins themselves: bool[n_features]."""
        return self.tree_layout.n_bins == self.layout.n_bins

    @property
    def node_bytes(self) -> int:
        """Bytes of the histograms of a node: a float64 for each channel of each fine bin."""
        return 8 * self.n_channels * int(self.layout.offset[-1])

    def field_groups(self, *, in_memory: bool) -> list[FieldGroup]:
        """Return the fields of training rows; in memory these have their codes by columns, too."""
        codes = code_fields(self.layout)
        if in_memory:
            codes = [*column_fields(self.layout), *code_fields(self.tree_layout)[:1]]
            codes += column_fields(self.tree_layout, "tree_") if self.has_tree_bins else []
        return [
            FieldGroup("codes", codes, sealed=True),
            FieldGroup("rows", self._row_fields(self.target_type if in_memory else "<f8"), sealed=True),
            FieldGroup("state", self._state_fields(in_memory), sealed=False),
        ]

    def start_groups(self) -> list[FieldGroup]:
        """Return the fields of rows before training, from which the others follow."""
        draw_id = [Field("draw_id", "<i8")] if self.has_draw_ids else []
        return [
            FieldGroup("rows", [*column_fields(self.layout), *self._row_fields(), *draw_id], sealed=True),
            FieldGroup("scores", [Field("raw", "<f8", (self.n_outputs,))], sealed=False),
        ]

    def _row_fields(self, target_type: str = "<f8") -> list[Field]:
        return [target_field(self.n_targets, target_type), *([Field("weight", "<f8")] if self.weighted else [])]

    def _state_fields(self, in_memory: bool) -> list[Field]:
        """Return the fields in the order in which they are read together: growth reads those in the middle, score updates
        all."""
        outputs = (self.n_outputs,)
        leaf = Field("leaf", leaf_type_for(self.max_leaves) if in_memory else self.leaf_type, (self.trees_per_iteration,))
        fields = [Field("raw", "<f8", outputs), leaf, Field("gradient", "<f4", outputs)]
        if self.width > 1:
            fields.insert(1, fields.pop())
            fields.append(Field("split_gradient", "<f4"))
        if not self.constant_hessian and self.width > 1:
            fields.append(Field("split_hessian", "<f4"))
        if not self.constant_hessian and (self.width == 1 or not self.weights_as_hessian):
            fields.append(Field("hessian", "<f4", outputs))
        if self.has_repeat_count:
            fields.append(Field("repeat_count", "<u1"))
        if self.weights_as_hessian:
            fields.append(Field("loss_hessian", "<f4", outputs))
        if self.has_draw_ids:
            fields.append(Field("draw_id", "<i8"))
        return [*fields, *self.sum_fields()]

    def sum_fields(self) -> list[Field]:
        """Return the sums of the trees of a forest by row, and their number."""
        return [Field("tree_sum", "<f8", (self.n_outputs,)), Field("n_summed", "<i4")] if self.averages else []

    def constant_state(self, weight: np.ndarray | None, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return the fields of the state that follow from the weights (float64[n]) and stay constant; shape : of raw scores."""
        fields: dict[str, np.ndarray] = {}
        if weight is not None and self.has_repeat_count:
            fields["repeat_count"] = weight.astype(np.uint8)
        if weight is not None and self.weights_as_hessian and not self.constant_hessian:
            row_hessian = weight.astype(np.float32)
            fields |= {"split_hessian": row_hessian} if self.width > 1 else {"hessian": np.broadcast_to(row_hessian, shape)}
        return fields

    def advance_fields(self, terms: LossTerms) -> tuple[list[str], list[str]]:
        """Return the fields of rows in files that `Shard.gradient_pass` reads and writes. terms : of the loss."""
        reads, writes = ["target", "raw", "leaf"], ["raw", "gradient"]
        of_outputs = "loss_hessian" if self.weights_as_hessian else "hessian"
        has_hessian = self.weights_as_hessian or not self.constant_hessian
        if has_hessian:
            writes.append(of_outputs)
        if self.width > 1:
            split = ["split_gradient", *(["split_hessian"] if has_hessian and not self.weights_as_hessian else [])]
            if terms.keeps_gradients:
                reads, writes = ["target", "gradient", *([of_outputs] if has_hessian else [])], []
            writes += split
        if self.has_repeat_count:
            reads.append("repeat_count")
        if self.keeps_groups:
            reads.append("draw_id")
        return reads, writes

    def bytes_per_row(self) -> int:
        """Return the bytes of a row in the files."""
        return sum(field.n_bytes(1) for group in self.field_groups(in_memory=False) for field in group.fields)

    def room_bytes(self, n_rows: int) -> int:
        """Return the memory that a thread needs to stream blocks: two block buffers, and records."""
        return rows_that_fit(code_fields(self.layout), n_rows) * (2 * self.bytes_per_row() + 16)


def target_field(n_columns: int, dtype: str = "<f8") -> Field:
    """Return the field of the target."""
    return Field("target", dtype, () if n_columns == 1 else (n_columns,))


def leaf_type_for(n: int) -> str:
    """Return the type of numbers 0…n-1 of leaves or slots."""
    return "<u1" if n <= 256 else "<i4"


def column_fields(layout: BinLayout, prefix: str = "") -> list[Field]:
    """Return the fields of bin codes by columns."""
    n_wide = int((layout.n_bins > NARROW_BINS).sum())
    narrow = Field(f"{prefix}narrow", "<u1", (len(layout.n_bins) - n_wide,))
    return [narrow, *([Field(f"{prefix}wide", "<u2", (n_wide,))] if n_wide else [])]


def code_fields(layout: BinLayout) -> list[Field]:
    """Return the fields of a file of bin codes."""
    n_tiles, _, words = tile_shape(layout, 0)
    n_wide = int((layout.n_bins > NARROW_BINS).sum())
    return [Field("tiles", "<u8", (n_tiles,), (words,)), *([Field("wide", "<u2", (n_wide,))] if n_wide else [])]


def rows_that_fit(codes: Sequence[Field], n_rows: int) -> int:
    """Return the rows of a block with these codes, a power of two: fewer for wide tables, and for tables of few rows."""
    rows, width = tuning().block_rows, sum(field.n_bytes(1) for field in codes)
    while rows > _LEAST_ROWS and (rows * width > _BLOCK_BYTES or rows * _LEAST_BLOCKS > n_rows):
        rows //= 2
    return rows


#: Features of at most this many codes share a column, as joint codes.
MOST_JOINT_CODES = 16
#: Value bins that fit in one byte beside "missing".
NARROW_BINS = 255


def plan_layout(n_bins: np.ndarray, is_categorical: np.ndarray, has_missing: np.ndarray | None = None) -> BinLayout:
    """Return the layout of a table.

    Parameters
    ----------
    n_bins : int64[n_features]
        Bins (or categories) of each feature, without the one for missing values.
    is_categorical : bool[n_features]
    has_missing : bool[n_features], optional
        Whether values are missing; more of the features without them fit in one column. Histograms do not depend on it.
    """
    n_buckets = np.asarray(n_bins, np.int64) + 1
    n_codes = n_buckets if has_missing is None else n_buckets - ~np.asarray(has_missing, bool)
    wide = [int(f) for f in np.flatnonzero(n_bins > NARROW_BINS)]
    shared = _share_columns([int(f) for f in np.flatnonzero(n_codes <= MOST_JOINT_CODES)], n_codes)
    in_shared = {f for group in shared for f in group}
    alone = [[f] for f in range(len(n_codes)) if f not in in_shared and f not in set(wide)]
    tiled = alone + shared
    columns = tiled + [[f] for f in wide]

    stride = np.ones(len(n_codes), np.int64)
    for group in shared:
        step = 1
        for f in group:
            stride[f] = step
            step *= int(n_codes[f])
    words = [COLUMN_STRIDE] * len(tiled) + [int(n_buckets[f]) + 8 for f in wide]
    if tiled:
        # The histogram kernel adds four columns at a time; those that do not exist need buckets too.
        words[len(tiled) - 1] += COLUMN_STRIDE * (-len(tiled) % 4)
    return BinLayout(
        offset=np.concatenate(([0], np.cumsum(n_buckets))).astype(np.int64),
        n_bins=np.ascontiguousarray(n_bins, np.int64),
        n_codes=np.ascontiguousarray(n_codes, np.int64),
        stride=stride,
        first=np.concatenate(([0], np.cumsum([len(c) for c in columns]))).astype(np.int64),
        features=np.array([f for c in columns for f in c], np.int64),
        start=np.concatenate(([0], np.cumsum(words))).astype(np.int64),
        n_tiled=len(tiled),
        is_categorical=np.ascontiguousarray(is_categorical, np.uint8),
    )


def _share_columns(features: list[int], n_codes: np.ndarray) -> list[list[int]]:
    """Group features whose numbers of codes multiply to at most 256, smallest first; groups of one are dropped."""
    groups: list[list[int]] = []
    product = 257
    for f in sorted(features, key=lambda f: (n_codes[f], f)):
        if product * n_codes[f] > 256:
            groups.append([])
            product = 1
        groups[-1].append(f)
        product *= int(n_codes[f])
    return [group for group in groups if len(group) > 1]


def code_rows(layout: BinLayout) -> np.ndarray:
    """Return the position of each feature's own codes: row of the one-byte codes, or -1 - row of the two-byte ones
    (int64[n_features])."""
    rows = np.empty(len(layout.n_bins), np.int64)
    wide = layout.n_bins > NARROW_BINS
    rows[~wide] = np.arange(int((~wide).sum()))
    # Wide columns are in feature order, like the columns behind the tiled ones.
    rows[wide] = -1 - np.arange(int(wide.sum()))
    return rows


def tile_shape(layout: BinLayout, n_rows: int) -> tuple[int, int, int]:
    """Return the shape of the tiles in 64-bit words: narrower than 32 columns when one tile holds all of them."""
    n_tiles = (layout.n_tiled + TILE_COLUMNS - 1) // TILE_COLUMNS
    if n_tiles == 1:
        words = 1 if layout.n_tiled <= 8 else 2 if layout.n_tiled <= 16 else 4
    else:
        words = 4
    return max(n_tiles, 1), n_rows, words
