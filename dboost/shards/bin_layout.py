"""The memory layout of bin codes: tiles of one-byte columns, joint codes for columns of few bins, wide columns for many.

A column of b bins (missing values count as one more) needs only log2(b) bits of its byte. Columns of few bins share a byte as a
joint code, as long as the product of their bins is at most 256: a one-hot table shrinks eightfold, and so does the time to add
it up. The histogram of each feature is computed from the joint one by summing over the others.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels.histograms import COLUMN_STRIDE, TILE_COLUMNS, BinLayout

#: Features of at most this many codes share a column.
_SHARED_CODES = 16
#: Value bins that fit in one byte beside "missing".
NARROW_BINS = 255


def plan_layout(n_bins: np.ndarray, is_categorical: np.ndarray) -> BinLayout:
    """Return the layout of a table.

    Parameters
    ----------
    n_bins : int64[n_features]
        Bins (or categories) of each feature, without the one for missing values.
    is_categorical : bool[n_features]
    """
    n_codes = np.asarray(n_bins, np.int64) + 1
    wide = [int(f) for f in np.flatnonzero(n_bins > NARROW_BINS)]
    shared = _share_columns([int(f) for f in np.flatnonzero(n_codes <= _SHARED_CODES)], n_codes)
    in_shared = {f for group in shared for f in group}
    alone = [[f] for f in range(len(n_codes)) if f not in in_shared and f not in set(wide)]
    tiled = alone + shared
    columns = tiled + [[f] for f in wide]

    stride = np.ones(len(n_codes), np.int64)
    repeats = np.ones(len(n_codes), np.int64)
    for group in shared:
        product = int(np.prod(n_codes[group]))
        step = 1
        for f in group:
            stride[f] = step
            step *= int(n_codes[f])
            repeats[f] = product // step
    words = [COLUMN_STRIDE] * len(tiled) + [int(n_codes[f]) + 8 for f in wide]
    if tiled:
        # The histogram kernel adds four columns at a time; those that do not exist need buckets too.
        words[len(tiled) - 1] += COLUMN_STRIDE * (-len(tiled) % 4)
    return BinLayout(
        offset=np.concatenate(([0], np.cumsum(n_codes))).astype(np.int64),
        n_bins=np.ascontiguousarray(n_bins, np.int64),
        stride=stride,
        repeats=repeats,
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
