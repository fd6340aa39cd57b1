"""Histograms: packed buckets and flushes compared with sums of Python integers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from dboost.kernels import histograms, or_empty
from dboost.kernels.histograms import (
    COLUMN_STRIDE,
    PAIR,
    TRIPLE,
    WEIGHED,
    Histograms,
    Levels,
    PackedSums,
    Packing,
)
from dboost.kernels.rows import STRIPE
from dboost.rows.shard_spec import plan_layout
from dboost.trees.steady_roots import add_changes, new_change_scratch
from tests.helpers.compiled import compiled
from tests.helpers.examples import examples
from tests.helpers.naive.histograms import histogram as naive_histogram
from tests.helpers.naive.rows import quantised, quantised_hessian, record
from tests.helpers.tables import CodedTable, make_table, tables

add_tile = compiled(histograms.add_tile)
add_wide = compiled(histograms.add_wide)

PACKINGS = pytest.mark.parametrize("packing", [PAIR, TRIPLE], ids=["pair", "triple"])


def random_sums(packing: Packing, n_rows: int, seed: int) -> tuple[list[int], list[int]]:
    """Quantised gradients and Hessians, including the extreme ones."""
    rng = np.random.default_rng(seed)
    g = rng.integers(-packing.max_gradient, packing.max_gradient + 1, n_rows)
    h = rng.integers(1, packing.max_hessian + 1, n_rows)
    extreme = rng.random(n_rows) < 0.2
    g[extreme] = rng.choice([-packing.max_gradient, packing.max_gradient], extreme.sum())
    h[extreme] = rng.choice([1, packing.max_hessian], extreme.sum())
    return g.tolist(), h.tolist()


def records_of(gradient: list[int], hessian: list[int], rows: list[int]) -> np.ndarray:
    return np.array([record(gradient[row], hessian[row], row) for row in rows], np.uint64)


def word(gradient: int, hessian: int, packing: Packing) -> int:
    """Return the word that a row adds to a packed bucket."""
    return (gradient << packing.high) + (hessian << packing.low) + packing.row


@pytest.mark.fast_cells(16)
@PACKINGS
@pytest.mark.parametrize("n_columns", range(1, 33))
def test_one_tile(packing: Packing, n_columns: int) -> None:
    rng = np.random.default_rng(n_columns)
    n_rows, rows = 50, [int(row) for row in rng.permutation(50)[:37]]
    codes = np.zeros((n_rows, 32), np.uint8)
    codes[:, :n_columns] = rng.integers(256, size=(n_rows, n_columns))
    words = 1 if n_columns <= 8 else 2 if n_columns <= 16 else 4
    tile = np.ascontiguousarray(codes[:, : 8 * words]).view(np.uint64)
    g, h = random_sums(packing, n_rows, n_columns)
    # The table's columns, the columns that pad their number to a multiple of four, and a guard.
    buckets = np.zeros(COLUMN_STRIDE * (n_columns + 4), np.int64)
    add_tile(tile, n_columns, records_of(g, h, rows), or_empty(None, "uint8"), buckets, packing)
    for column in range(n_columns):
        expected = [0] * COLUMN_STRIDE
        for row in rows:
            expected[codes[row, column]] += word(g[row], h[row], packing)
        start = column * COLUMN_STRIDE
        assert buckets[start : start + COLUMN_STRIDE].tolist() == expected
    rounded_up = COLUMN_STRIDE * (-(-n_columns // 4) * 4)
    assert not buckets[rounded_up:].any()


@PACKINGS
def test_one_wide_column(packing: Packing) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(700, size=90).astype(np.uint16)
    rows = [int(row) for row in rng.permutation(90)[:80]]
    g, h = random_sums(packing, 90, 1)
    buckets = np.zeros(701, np.int64)
    add_wide(codes, records_of(g, h, rows), or_empty(None, "uint8"), buckets, packing)
    expected = [0] * 701
    for row in rows:
        expected[codes[row]] += word(g[row], h[row], packing)
    assert buckets.tolist() == expected


@njit(error_model="numpy")
def sum_up(rows, records, layout, packing, columns, packed, into, scratch, pieces):
    """Do the work of an engine: clear, add range by range, flush the rest."""
    for k in range(packed.size):
        packed[k] = 0
    fill = np.int64(0), np.int64(0)
    for k in range(pieces.size - 1):
        piece = records[pieces[k] : pieces[k + 1]]
        fill = histograms.add_records(rows, piece, layout, packing, columns, packed, into, np.int64(0), fill, scratch)
    histograms.flush(layout, packing, columns, layout.start[columns[0]], packed, into, np.int64(0), fill[1] == 0, scratch)
    return fill[1]


def histogram_of(
    table: CodedTable,
    records: np.ndarray,
    packing: Packing,
    columns: tuple[int, int] | None = None,
    pieces: list[int] | None = None,
    repeat_count: np.ndarray | None = None,
) -> tuple[np.ndarray, int]:
    """Return the histogram of some columns from records, and the number of rows that were flushed meanwhile."""
    shard = table.shard(np.zeros(table.n_rows), None)
    layout = shard.tree_layout
    first, last = columns or (0, len(layout.first) - 1)
    histogram = np.full((2 if packing.row == 0 else 3, int(layout.offset[-1])), 12345.0)  # from the previous node
    packed = np.full(int(layout.start[last] - layout.start[first]), 99, np.int64)
    scratch = np.full(max(table.n_codes), 7, np.int64)
    rows = shard.histogram_rows._replace(repeat_count=or_empty(repeat_count, "uint8"))
    pieces = np.array([0, len(records)] if pieces is None else pieces)
    into = Histograms(histogram[None], None)
    flushed = sum_up(rows, records, layout, packing, (first, last), packed, into, scratch, pieces)
    return histogram, int(flushed)


def assert_histogram(
    histogram: np.ndarray,
    table: CodedTable,
    g: list[int],
    h: list[int],
    rows: list[int],
    features: list[int],
    repeat_count: list[int] | None = None,
) -> None:
    for feature in features:
        expected = naive_histogram(table.codes[feature].tolist(), table.n_codes[feature], g, h, rows, repeat_count)
        start = int(table.layout.offset[feature])
        for channel in range(len(histogram)):
            found = histogram[channel, start : start + len(expected)].tolist()
            assert found == [sums[channel] for sums in expected], (feature, channel)


@PACKINGS
@given(table=tables(max_features=10, max_rows=60), seed=st.integers(0, 2**32), share=st.floats(0, 1))
def test_histograms_of_any_layout(packing: Packing, table: CodedTable, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    rows = [int(row) for row in rng.permutation(table.n_rows)[: int(share * table.n_rows)]]
    g, h = random_sums(packing, table.n_rows, seed)
    histogram, _ = histogram_of(table, records_of(g, h, rows), packing)
    assert_histogram(histogram, table, g, h, rows, list(range(len(table.n_codes))))


@pytest.mark.parametrize("packing", [PAIR, TRIPLE, WEIGHED], ids=["pair", "triple", "weighed"])
@pytest.mark.parametrize("max_weight", [2, 3, 16, 255])
def test_rows_that_count_several_times(packing: Packing, max_weight: int) -> None:
    """Sums are those of a table that repeats the rows; no field overflows, because buckets are flushed more often."""
    max_weight = min(max_weight, packing.rows // 256)
    packing = packing._replace(rows=packing.rows // max_weight)
    n_rows = 2 * packing.rows + 3 if max_weight > 3 else 500
    table = make_table([5, 3, 3, 300], n_rows)
    g, h = random_sums(packing, n_rows, max_weight)
    repeat_count = np.random.default_rng(1).integers(1, max_weight + 1, n_rows).astype(np.uint8)
    repeat_count[::2] = max_weight
    histogram, _ = histogram_of(table, records_of(g, h, list(range(n_rows))), packing, repeat_count=repeat_count)
    assert_histogram(histogram, table, g, h, list(range(n_rows)), [0, 1, 2, 3], repeat_count.tolist())


@PACKINGS
def test_some_columns_only(packing: Packing) -> None:
    """Each unit of work (a tile, a two-byte column) fills its own part of the histogram and nothing else."""
    table = make_table([40] * 33 + [3] * 8 + [400, 500], 80)
    layout, rows = table.shard(np.zeros(80), None).tree_layout, list(range(80))
    g, h = random_sums(packing, 80, 5)
    n_columns = len(layout.first) - 1
    for first, last in ((0, 32), (32, layout.n_tiled), (layout.n_tiled, layout.n_tiled + 1), (n_columns - 1, n_columns)):
        histogram, _ = histogram_of(table, records_of(g, h, rows), packing, (first, last))
        features = layout.features[layout.first[first] : layout.first[last]].tolist()
        assert_histogram(histogram, table, g, h, rows, features)
        for other in set(range(len(table.n_codes))) - set(features):
            assert (histogram[:, layout.offset[other] : layout.offset[other + 1]] == 12345.0).all()


@njit(error_model="numpy")
def keep_packed(rows, records, layout, packing, packed, into, clear, scratch):
    """Add records to slot 1; slot 2 is that of a thread."""
    for k in range(packed.size):
        packed[k] = 0
    columns = np.int64(0), np.int64(layout.first.size - 1)
    fill = np.int64(0), np.int64(0)
    _, flushed = histograms.add_records(rows, records, layout, packing, columns, packed, into, np.int64(2), fill, scratch)
    histograms.flush(layout, packing, columns, np.int64(0), packed, into, np.int64(1), clear, scratch)
    if flushed:
        histograms.add(layout, columns, into, np.int64(1), np.int64(2))


@given(
    table=tables(max_features=10, max_rows=60),
    seed=st.integers(0, 2**32),
    cut=st.integers(0, 60),
    packing=st.sampled_from([PAIR, TRIPLE, TRIPLE._replace(rows=7), WEIGHED, WEIGHED._replace(rows=7)]),
)
def test_prefix_sums_of_packed_buckets(table: CodedTable, seed: int, cut: int, packing: Packing) -> None:
    """Add some rows, and then the others, as two threads would; with counts also sums that were flushed before."""
    g, h = random_sums(packing, table.n_rows, seed)
    shard = table.shard(np.zeros(table.n_rows), None)
    rows, layout = list(range(table.n_rows)), shard.tree_layout
    n_buckets = int(layout.offset[-1])
    words, packed_counts = np.full((3, n_buckets), 99), np.full((3, n_buckets), 77)
    packed, scratch = np.zeros(int(layout.start[-1]), np.int64), np.zeros(max(table.n_codes), np.int64)
    for part, clear in ((rows[:cut], True), (rows[cut:], False)):
        records = np.array(records_of(g, h, part), np.uint64)
        prefix = PackedSums(words, packed_counts if packing is not PAIR else np.empty((0, 0), np.int64))
        keep_packed(shard.histogram_rows, records, layout, packing, packed, Histograms(None, prefix), clear, scratch)
    for feature, codes in enumerate(table.codes.tolist()):
        sums = naive_histogram(codes, table.n_codes[feature], g, h, rows)
        of_feature = slice(layout.offset[feature], layout.offset[feature + 1])
        assert words[1, of_feature].tolist() == np.cumsum([(a << 32) + b for a, b, _ in sums]).tolist()
        if packing is not PAIR:
            assert packed_counts[1, of_feature].tolist() == np.cumsum([n for _, _, n in sums]).tolist()
    assert (words[0] == 99).all() and (packed_counts[0] == 77).all()


@njit(error_model="numpy")
def split_levels(rows, parent, child, layout, packing, packed, into):
    """Add the records of a node to slot 1, and those of one of its children to slot 0; then slot 1 is the other child."""
    columns, scratch = (np.int64(0), np.int64(layout.first.size - 1)), np.zeros(layout.n_bins.max() + 1, np.int64)
    for slot, records in ((np.int64(1), parent), (np.int64(0), child)):
        for k in range(packed.size):
            packed[k] = 0
        fill = np.int64(0), np.int64(0)
        _, flushed = histograms.add_records(rows, records, layout, packing, columns, packed, into, np.int64(2), fill, scratch)
        histograms.flush(layout, packing, columns, np.int64(0), packed, into, slot, True, scratch)
        if flushed:
            histograms.add(layout, columns, into, slot, np.int64(2))
        for feature in range(layout.n_bins.size):
            at = layout.offset[feature]
            if slot == 1:
                histograms.list_levels(into.packed, at, layout.n_bins[feature], feature, slot)
            else:
                histograms.subtract_levels(into.packed, at, feature, np.int64(1), np.int64(0))
        into.packed.levels.listed[0] = 1


@given(
    table=tables(max_features=6, max_rows=60),
    seed=st.integers(0, 2**32),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    packing=st.sampled_from([PAIR, TRIPLE, TRIPLE._replace(rows=7), WEIGHED]),
)
def test_levels_of_children(table: CodedTable, seed: int, share: float, packing: Packing) -> None:
    """Both children have the sums of the levels that occur in them, and list these."""
    rng = np.random.default_rng(seed)
    table = CodedTable(table.codes, plan_layout(table.layout.n_bins, np.ones(len(table.codes), bool)))
    g, h = random_sums(packing, table.n_rows, seed)
    node = np.flatnonzero(rng.random(table.n_rows) < 0.8)
    is_child = rng.random(len(node)) < share
    shard = table.shard(np.zeros(table.n_rows), None)
    layout = shard.tree_layout
    shape, n_buckets = (3, int(layout.offset[-1])), int(layout.offset[-1])
    counts = np.full(shape, 77) if packing.row else np.empty((0, 0), np.int64)
    levels = Levels(np.full(shape, 99, np.int32), np.zeros((3, len(table.codes)), np.int64), np.array([-1]))
    sums = PackedSums(np.full((3, n_buckets), 99), counts, levels)
    parent, child = (np.array(records_of(g, h, rows.tolist()), np.uint64) for rows in (node, node[is_child]))
    packed = np.zeros(int(layout.start[-1]), np.int64)
    split_levels(shard.histogram_rows, parent, child, layout, packing, packed, Histograms(None, sums))
    for slot, rows in ((0, node[is_child]), (1, node[~is_child])):
        for feature, codes in enumerate(table.codes.tolist()):
            expected = naive_histogram(codes, table.n_codes[feature], g, h, rows.tolist())
            first, occur = layout.offset[feature], [code for code, (_, _, n) in enumerate(expected) if n]
            assert levels.codes[slot, first : first + levels.n[slot, feature]].tolist() == occur
            at = first + np.arange(len(occur))
            assert sums.sums[slot, at].tolist() == [(expected[code][0] << 32) + expected[code][1] for code in occur]
            if packing.row:
                assert counts[slot, at].tolist() == [expected[code][2] for code in occur]


@pytest.mark.parametrize("packing", [PAIR, TRIPLE, WEIGHED], ids=["pair", "triple", "weighed"])
@given(
    table=tables(max_features=6, max_rows=60), seed=st.integers(0, 2**32), cut=st.floats(0, 1),
    share=st.sampled_from([0.0, 0.05, 1.0]), flush_after=st.sampled_from([7, 4096]),
)  # fmt: skip
@examples(20)
def test_a_histogram_follows_gradients_that_change(
    packing: Packing, table: CodedTable, seed: int, cut: float, share: float, flush_after: int
) -> None:
    """Add all rows once, then what some of them change, each time as two threads would."""
    rng, n, n_rows = np.random.default_rng(seed), table.n_rows, list(range(table.n_rows))
    with_hessian, n_channels = packing is TRIPLE, 2 if packing is PAIR else 3
    times = rng.integers(1, 4, n).astype(np.uint8) if packing is WEIGHED else None
    hessian = rng.random(n if with_hessian else 0).astype(np.float32)
    shard = table.shard(np.zeros(n), None, times=times)
    layout, scales = shard.tree_layout, np.array([packing.max_gradient, 8000.0])
    h = [quantised_hessian(one, 8000.0) for one in hessian] or [1] * n
    slopes = np.array([-1.0, 0.25, 0.0, 1.0], np.float32)
    gradient, known, sums = rng.choice(slopes, n), np.zeros(n, np.int16), np.zeros((n_channels, int(layout.offset[-1])))
    for number in range(4):
        packing = packing._replace(rows=flush_after, row=packing.row if number == 0 else 0)
        for part in pairwise([0, round(cut * n), n]):
            add_changes(
                shard.histogram_rows, gradient, hessian, scales, known, number == 0, part, (layout, packing),
                new_change_scratch(layout), Histograms(sums[None], None),
            )  # fmt: skip
        g = [quantised(one, packing.max_gradient) for one in gradient]
        assert known.tolist() == g
        assert_histogram(sums, table, g, h, n_rows, [*range(len(table.n_codes))], None if times is None else times.tolist())
        gradient = np.where(rng.random(n) < share, rng.choice(slopes, n), gradient)


def test_changes_of_more_rows_than_a_stripe() -> None:
    """Rows change at both ends of stripes and of the rows that are compared together."""
    n = 2 * STRIPE + 21
    table, rng = make_table([20, 3, 3, 300], n), np.random.default_rng(0)
    shard = table.shard(np.zeros(n), None)
    layout, gradient = shard.tree_layout, rng.choice([-1.0, 1.0], n).astype(np.float32)
    known, sums, scales = np.zeros(n, np.int16), np.zeros((2, int(layout.offset[-1]))), np.array([32_767.0, 1.0])
    of_rows, scratch, none = shard.histogram_rows, new_change_scratch(layout), or_empty(None, "float32")
    into = Histograms(sums[None], None)
    for number in range(3):
        add_changes(of_rows, gradient, none, scales, known, number == 0, (0, n), (layout, PAIR), scratch, into)
        g = [quantised(one, 32_767.0) for one in gradient]
        assert_histogram(sums, table, g, [1] * n, list(range(n)), [0, 1, 2, 3])
        gradient[[0, 15, 16, STRIPE - 1, STRIPE, 2 * STRIPE - 1, n - 1]] *= -1.0


@pytest.mark.fast_cells(6)
@PACKINGS
@pytest.mark.parametrize("sign", [-1, 1, 0])
@pytest.mark.parametrize("n_bins", [[1], [3, 3, 3], [300], [20, 2, 2]], ids=str)
def test_no_field_overflows(packing: Packing, sign: int, n_bins: list[int]) -> None:
    """Every row in one bucket with the largest gradient and Hessian, more rows than two flushes hold."""
    n_rows = 2 * packing.rows + 3
    table = make_table(n_bins, n_rows, missing=0.0)
    table.codes[:] = 0
    g = np.full(n_rows, sign or 1, np.int64) * packing.max_gradient
    if sign == 0:
        g[::2] *= -1
    h = np.full(n_rows, packing.max_hessian, np.int64)
    bits = ((g & 0xFFFF) << 16 | h).astype(np.uint64) << np.uint64(32)
    records = bits | np.arange(n_rows, dtype=np.uint64)
    histogram, flushed = histogram_of(table, records, packing)
    assert flushed == 1
    for feature in range(len(n_bins)):
        sums = histogram[:, table.layout.offset[feature]].tolist()
        assert sums == [int(g.sum()), int(h.sum()), n_rows][: len(histogram)]
        others = histogram[:, table.layout.offset[feature] + 1 : table.layout.offset[feature + 1]]
        assert not others.any()


@PACKINGS
@pytest.mark.parametrize("extra", [-1, 0, 1], ids=["one less", "exactly full", "one more"])
def test_flushes_come_when_fields_are_full(packing: Packing, extra: int) -> None:
    n_rows = packing.rows + extra
    table = make_table([5, 5, 300], n_rows)
    g, h = random_sums(packing, n_rows, 3)
    records = records_of(g, h, list(range(n_rows)))
    whole, flushed = histogram_of(table, records, packing)
    assert flushed == (extra > 0)
    assert_histogram(whole, table, g, h, list(range(n_rows)), [0, 1, 2])
    # In several ranges, as stripes consist of several threads' ranges; an empty range changes nothing.
    pieces = [0, 1, 1, 1000, n_rows]
    assert np.array_equal(histogram_of(table, records, packing, pieces=pieces)[0], whole)


def test_packings_hold_what_they_promise() -> None:
    for packing in (PAIR, TRIPLE, WEIGHED):
        sums = packing.rows * packing.max_gradient, packing.rows * packing.max_hessian
        assert sums[0] < 1 << (63 - packing.high)
        assert sums[1] <= packing.hessian_mask
        assert packing.hessian_mask << packing.low < 1 << packing.high
        assert packing.rows * packing.row <= packing.count_mask
        assert packing.count_mask < max(1 << packing.low, 1)
        assert packing.max_gradient < 1 << 15
        assert packing.max_hessian < 1 << 16
