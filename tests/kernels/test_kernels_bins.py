"""From values to bin codes, and from bin codes to tiles: the kernels compared with naive implementations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dboost.data.columns.binning import padded_edges, round_down
from dboost.kernels.bins import encode_column, encode_matrix
from tests.helpers.naive import bins as naive
from tests.helpers.tables import CodedTable, make_table, tables

#: Special values of floats, and values that float32 cannot represent.
POOL = [-1e300, -2.5, -1e-320, -0.0, 0.0, 1e-50, 0.1, 1 / 3, 1.0, 16_777_217.0, 3e38, 1e39, 1e300]
EDGES = st.lists(st.sampled_from(POOL) | st.floats(-1e6, 1e6), max_size=254, unique=True).map(
    lambda values: np.unique(np.array(values, np.float64))
)
PRECISIONS = [np.float32, np.float64]


def around(edges: np.ndarray, dtype: type) -> np.ndarray:
    """Return the edges as numbers of a type, their neighbours on both sides, zero, and missing values."""
    with np.errstate(over="ignore"):
        at = edges.astype(dtype)
    largest = np.finfo(dtype).max
    at = np.clip(at, -largest, largest)
    below, above = np.nextafter(at, dtype(-largest)), np.nextafter(at, dtype(largest))
    return np.concatenate([at, below, above, np.array([0.0, np.nan, largest, -largest], dtype)])


@pytest.mark.parametrize("dtype", PRECISIONS)
@given(edges=EDGES)
@example(edges=np.array([]))
@example(edges=np.arange(254.0))
def test_codes_of_a_column(dtype: type, edges: np.ndarray) -> None:
    values = around(edges, dtype)
    codes = np.empty(len(values), np.uint8)
    padded = padded_edges([edges], np.dtype(dtype))[0]
    assert encode_column(values, padded, len(edges) + 1, codes) == -1
    # Numbers of either precision are compared with the edges unrounded.
    assert codes.tolist() == [naive.code(float(value), edges.tolist()) for value in values]


@given(edges=EDGES)
def test_rounding_down_is_to_the_next_number_below(edges: np.ndarray) -> None:
    rounded = round_down(edges, np.dtype(np.float32))
    assert rounded.dtype == np.float32
    assert (rounded.astype(np.float64) <= edges).all()
    with np.errstate(over="ignore"):
        assert (np.nextafter(rounded, np.float32(np.inf)).astype(np.float64) > edges).all()


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_codes_of_a_matrix(dtype: type) -> None:
    rng = np.random.default_rng(0)
    n, edges = 1000, [np.sort(rng.normal(size=size)) for size in (0, 1, 3, 4, 5, 253, 254)]
    values = rng.normal(size=(n, len(edges))).astype(dtype)
    values[rng.random(values.shape) < 0.1] = np.nan
    expected = [[naive.code(float(value), edge.tolist()) for value in values[:, j]] for j, edge in enumerate(edges)]
    n_bins = np.array([len(edge) + 1 for edge in edges])
    codes = np.full((len(edges), n), 77, np.uint8)
    for first, last in ((0, 300), (300, 301), (301, n)):  # in ranges, as several threads would
        assert encode_matrix(values, padded_edges(edges, np.dtype(dtype)), n_bins, codes, 0, first, last) == -1
    assert codes.tolist() == expected


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_infinite_values_are_found_where_they_are(dtype: type, infinite: float) -> None:
    values = np.zeros((700, 3), dtype)
    edges = padded_edges([np.array([0.5])] * 3, np.dtype(dtype))
    codes = np.empty((3, 700), np.uint8)
    values[600, 1] = infinite
    assert encode_matrix(values, edges, np.full(3, 2), codes, 0, 0, 700) == 600 * 3 + 1
    assert encode_matrix(values, edges, np.full(3, 2), codes, 0, 0, 600) == -1
    column = np.zeros(10, dtype)
    column[[4, 7]] = infinite
    assert encode_column(column, edges[0], 2, codes[0, :10]) == 4
    assert codes[0, :10].tolist() == [int(infinite > 0 and i in (4, 7)) for i in range(10)]


def assert_tiles_hold_the_codes(table: CodedTable) -> None:
    shard = table.shard(np.zeros(table.n_rows), None)
    in_bytes, layout = shard.tiles.view(np.uint8), shard.tree_layout
    for column in range(layout.n_tiled):
        expected = [naive.joint_code(table.codes[:, row], layout, column) for row in range(table.n_rows)]
        assert in_bytes[column // 32, :, column % 32].tolist() == expected
        assert max(expected) <= 255
    # Bytes of missing columns stay 0: the histogram kernel adds them up, too.
    used = (layout.n_tiled - 1) % 32 + 1 if layout.n_tiled else 0
    assert not in_bytes[-1, :, used:].any()


@given(table=tables(max_features=12, max_rows=40))
def test_tiles_hold_the_codes(table: CodedTable) -> None:
    assert_tiles_hold_the_codes(table)


def test_tiles_of_a_wide_table() -> None:
    assert_tiles_hold_the_codes(make_table([30] * 70 + [3] * 40 + [15, 300, 400], 1500))


def test_features_without_missing_values_need_fewer_columns() -> None:
    """Eight of two values share a byte, and five if values may be missing; histograms have the same buckets."""
    dummies = make_table([2] * 16, 50, missing=0.0)
    dummies.codes[:, 0], dummies.codes[:, 1] = 0, 1
    shard = dummies.shard(np.zeros(50), None)
    assert dummies.layout.n_tiled == 4 and shard.tree_layout.n_tiled == 2
    assert shard.tree_layout.offset.tolist() == dummies.layout.offset.tolist()
    dummies.codes[3, 20] = 2
    shard = dummies.shard(np.zeros(50), None)
    assert shard.tree_layout.n_codes.tolist() == [2, 2, 2, 3] + [2] * 12 and shard.tree_layout.n_tiled == 3
    assert_tiles_hold_the_codes(dummies)
    assert dummies.shard(np.zeros(50), None, rows=slice(0, 0)).tree_layout.n_tiled == 4


def test_tiles_are_filled_in_ranges() -> None:
    table = make_table([3, 3, 3, 40, 255], 1300)
    whole, parts = (table.shard(np.zeros(1300), None) for _ in range(2))
    parts.tiles[:] = 0
    for first, last in ((700, 1300), (0, 1), (1, 700)):
        parts.fill_tiles(first, last)
    assert np.array_equal(parts.tiles, whole.tiles)


def test_every_feature_has_a_place_of_its_own() -> None:
    layout = make_table([3] * 20 + [15, 16, 255, 256, 1], 5).layout
    assert sorted(layout.features.tolist()) == list(range(25))
    assert (np.diff(layout.offset) == layout.n_bins + 1).all()
    for column in range(layout.n_tiled):
        features = layout.features[layout.first[column] : layout.first[column + 1]]
        assert np.prod(layout.n_bins[features] + 1) <= 256
        assert sum(layout.n_bins[f] * layout.stride[f] for f in features) <= 255
    assert layout.n_tiled < 12, "features of few bins share columns"
    assert (np.diff(layout.start)[: layout.n_tiled] >= 256).all()
