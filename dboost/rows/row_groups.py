"""Groups of rows: runs of consecutive rows whose keys are equal.

The gradients of a loss of groups (`losses.base.Targets`) depend on whole groups, so ranges and blocks of rows end between
groups.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def ends_of(keys: np.ndarray) -> np.ndarray:
    """Return the last row + 1 of each group, given the key of each row (int64[n]): int64[n_groups], ascending."""
    return np.append(np.flatnonzero(np.diff(keys)) + 1, len(keys)) if len(keys) else np.empty(0, np.int64)


def ends_of_parts(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return `ends_of` the keys of rows that come in parts. A group may have rows in consecutive parts."""
    ends, n_rows, last_key = [np.empty(0, np.int64)], 0, None
    for keys in parts:
        if len(keys):
            if last_key == keys[0]:
                ends[-1] = ends[-1][:-1]
            ends.append(ends_of(keys) + n_rows)
            n_rows, last_key = n_rows + len(keys), keys[-1]
    return np.concatenate(ends)


def next_ends(ends: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the first end of a group from each row number on, 0 for row 0: int64[n]. ends : see `ends_of`."""
    return np.where(rows > 0, ends[np.searchsorted(ends, rows)], 0) if len(ends) else rows


def block_sizes(ends: np.ndarray, most_rows: int) -> tuple[int, ...]:
    """Return the sizes of blocks of whole groups: each of at most so many rows, or a single group. ends : see `ends_of`."""
    sizes, first, k = [], 0, 0
    while k < len(ends):
        k = max(int(np.searchsorted(ends, first + most_rows, "right")), k + 1)
        sizes.append(int(ends[k - 1]) - first)
        first += sizes[-1]
    return tuple(sizes)
