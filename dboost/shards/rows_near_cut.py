"""The rows whose influence is near the expected trimming threshold of the next tree (see `metrics.influence_cut`).

From tree to tree the threshold hardly moves: mostly the influence of the first row that is kept has the same first digit again.
So the pass that computes the influences records the rows that have this digit, and the other digits are found among these few
rows. If the threshold is elsewhere, or too many rows are near it, all rows are read again: the threshold is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
