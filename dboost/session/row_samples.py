"""Random samples of rows, independent of the partitioning: held-out rows and folds.

**An exact number of rows of each class.** Every row of positive weight has a hash of the seed and of its global row id. A
`Draw` of n rows of a class selects the n rows with the smallest hashes. (The hash is a bijection, so there are no ties.) Radix
selection finds the n-th smallest hash: in each round, all sessions count for each class how often each value of the next digit
occurs among the hashes that start with the digits found so far. The sums of these counts determine the next digit. A class is
finished when all hashes with the current prefix are selected, which takes about log(rows) / log(256) rounds. Sessions send
counts only: 256 per class and round, independent of the number of rows. (A threshold of the hashes would need no rounds, but
would hold out about as many rows: `validation_fraction=500` promises a number of rows, and a rare class its share.)

**Whole groups.** If rows have groups, every row has the hash of its group, and the groups with the smallest hashes are drawn
(`whole_groups`): about the same share of the rows, whatever their classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dboost.data import Table
from dboost.data.table import kept_rows
from dboost.errors import DataError
from dboost.trees.tree_task import hash_rows

#: Names of two evaluation sets: the validation rows, and the sample of training rows.
HELD_OUT, WATCHED = "validation", "train"
#: Maximal number of counts per round, for all classes together.
_MOST_COUNTS = 1 << 16
#: Number of rows that are hashed at a time.
_PIECE_ROWS = 1 << 17
_BITS = 64


@dataclass(frozen=True)
class Draw:
    """A request to draw rows."""

    seed: int  # seed of the hashes
    sizes: tuple[int, ...]  # number of rows to draw from each class, or one number without classes


@dataclass(frozen=True)
class DrawnRows:
    """The drawn rows: those whose hash is below the bound of their class (at most 2**64, which is above all hashes)."""

    seed: int
    bounds: tuple[int, ...]

    def selects(self, row_ids: np.ndarray, classes: np.ndarray | None = None) -> np.ndarray:
        """Return whether rows are drawn, given their numbers (int64[n], see `Table.draw_ids`): bool[n].

        classes : int64[n]; not used if one bound applies to all rows.
        """
        hashes = hash_rows(self.seed, row_ids)
        last = np.array([max(bound - 1, 0) for bound in self.bounds], np.uint64)
        some = np.array([bound > 0 for bound in self.bounds])
        if len(self.bounds) == 1:
            return (hashes <= last[0]) & some[0]
        assert classes is not None
        return (hashes <= last[classes]) & some[classes]


@dataclass(frozen=True, eq=False)
class DigitRequest:
    """A request of one round: count how often each value of a digit occurs."""

    seed: int
    shift: int  # position of the digit in the hashes, in bits
    n_bits: int  # length of the digit
    prefixes: np.ndarray  # uint64[n_classes]: higher digits of the hashes that are counted
    is_open: np.ndarray  # bool[n_classes]: classes that are counted
    without: DrawnRows | None = None  # rows that are not counted

    def count(self, row_ids: np.ndarray, classes: np.ndarray | None) -> np.ndarray:
        """Return the counts of some rows (arguments as in `DrawnRows.selects`): int64[n_classes, 2**n_bits]."""
        n_classes = len(self.prefixes)
        hashes = hash_rows(self.seed, row_ids)
        digits = (hashes >> np.uint64(self.shift)) & np.uint64((1 << self.n_bits) - 1)
        counted = np.ones(len(row_ids), bool) if self.without is None else ~self.without.selects(row_ids, classes)
        if self.shift + self.n_bits < _BITS:
            above = hashes >> np.uint64(self.shift + self.n_bits)
            counted &= above == (self.prefixes[0] if n_classes == 1 else self.prefixes[classes])
        cells = digits.astype(np.int64)
        if n_classes > 1:
            assert classes is not None
            counted &= self.is_open[classes]
            cells += classes << self.n_bits
        return np.bincount(cells[counted], minlength=n_classes << self.n_bits).reshape(n_classes, -1)


def find_bounds(
    draw: Draw, counts: Sequence[int], ask: Callable[[DigitRequest], np.ndarray], without: DrawnRows | None = None
) -> DrawnRows:
    """Find the bounds of a draw.

    Parameters
    ----------
    draw : Draw
    counts : sequence of int
        Number of available rows of each class, at least ``draw.sizes``.
    ask : callable
        Returns the sum of `DigitRequest.count` over all rows.
    without : DrawnRows, optional
        Rows that are not available.
    """
    wanted, available = list(draw.sizes), list(counts)
    n_classes = len(wanted)
    bounds = [0 if n == 0 else 1 << _BITS for n in wanted]
    is_open = np.array([0 < n < of for n, of in zip(wanted, available, strict=True)])
    prefixes = np.zeros(n_classes, np.uint64)
    n_bits = next(bits for bits in (8, 4, 2, 1) if n_classes << bits <= _MOST_COUNTS or bits == 1)
    shift = _BITS
    while is_open.any():
        shift -= n_bits
        found = ask(DigitRequest(draw.seed, shift, n_bits, prefixes.copy(), is_open.copy(), without))
        for k in np.flatnonzero(is_open).tolist():
            assert found[k].sum() == available[k], "each row is counted once"
            up_to = np.cumsum(found[k])
            digit = int(np.searchsorted(up_to, wanted[k]))
            available[k] = int(found[k, digit])
            wanted[k] -= int(up_to[digit]) - available[k]
            prefixes[k] = (int(prefixes[k]) << n_bits) | digit
            if available[k] == wanted[k]:
                bounds[k] = (int(prefixes[k]) + 1) << shift
                is_open[k] = False
    return DrawnRows(draw.seed, tuple(bounds))


def whole_groups(draw: Draw, counts: Sequence[int], other: Draw | None = None) -> DrawnRows:
    """Return the selection of whole groups with about as many rows as a draw, of all classes together.

    counts : number of available rows of each class; other : a draw of the other rows than these.
    """
    share = sum(draw.sizes) / max(sum(counts) - (0 if other is None else sum(other.sizes)), 1)
    return DrawnRows(draw.seed, (min(int(share * 2.0**_BITS), 1 << _BITS),))


def in_proportion(counts: Sequence[int], n: int, seed: int) -> tuple[int, ...]:
    """Divide n rows among classes with `counts` rows, in proportion, by the method of largest remainders.

    A hash determines the order of equal remainders. If n is at most ``sum(counts)``, no class gets more rows than it has.
    """
    total = sum(counts)
    quotients, remainders = zip(*(divmod(count * n, total) for count in counts), strict=True)
    order = np.lexsort((hash_rows(seed, np.arange(len(counts))), -np.array(remainders, object).astype(np.float64)))
    sizes = list(quotients)
    for k in order[: n - sum(quotients)].tolist():
        sizes[k] += 1
    return tuple(sizes)


#: The use of a row in a fold: left out, training, held out.
UNUSED, TRAIN, TEST = np.uint8(0), np.uint8(1), np.uint8(2)


@dataclass(frozen=True, eq=False)
class FoldRows:
    """The use of each row in a fold of a cross-validation.

    uses : uint8[n], of consecutive runs of rows; starts : int64[n_runs], global id of the first row of each run, ascending;
    ends : int64[n_runs], where each run ends in `uses`. Default: one run from row 0 on.
    """

    uses: np.ndarray
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    ends: np.ndarray | None = None

    def of_partitions(self, ranges: Sequence[tuple[int, int]]) -> FoldRows:
        """Return the uses of rows of some partitions only. ranges : global id of the first row, and number of rows."""
        filled = sorted(one for one in ranges if one[1])
        uses = [self.uses[start : start + n] for start, n in filled]
        return FoldRows(
            np.concatenate([np.empty(0, np.uint8), *uses]),
            np.array([start for start, _ in filled], np.int64),
            np.cumsum([n for _, n in filled], dtype=np.int64),
        )

    def of(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the uses of rows (int64[n], global ids): uint8[n]."""
        if self.ends is None:
            return self.uses[row_ids]
        begins = np.concatenate(([0], self.ends[:-1]))
        run = np.searchsorted(self.starts, row_ids, "right") - 1
        return self.uses[row_ids - self.starts[run] + begins[run]]


@dataclass(frozen=True, eq=False)
class RowAssignment:
    """The use of each row: training, validation or both, and the weights of classes."""

    class_weight: np.ndarray | None = None  # float64[n_classes], factors of the rows' weights
    held_out: DrawnRows | None = None  # validation rows, which are not trained on
    watched: DrawnRows | None = None  # rows that are both trained on and evaluated
    fold: FoldRows | None = None  # instead of `held_out`


#: Positions of chosen rows in their table (int64, ascending), and their weights or None.
ChosenRows = tuple[np.ndarray, np.ndarray | None]


class _Piece(NamedTuple):
    """Rows of positive weight of one chunk."""

    first: int  # position of the chunk's first row in the table
    rows: np.ndarray  # their positions in the chunk
    first_id: int  # global id of the first of them
    draw_ids: np.ndarray  # see `Table.draw_ids`
    classes: np.ndarray | None


class NumberedRows:
    """The rows of a table with their global ids (positions among all rows of positive weight) and their classes.

    Parameters
    ----------
    table : Table
    target_of : callable
        Returns the encoded targets of all rows of a chunk, given its number: float64[n].
    starts, n_kept : sequence of int
        For each chunk: global id of its first row of positive weight, and its number of such rows.
    n_classes : int or None
        None for regression.
    """

    def __init__(
        self,
        table: Table,
        target_of: Callable[[int], np.ndarray],
        starts: Sequence[int],
        n_kept: Sequence[int],
        n_classes: int | None,
    ) -> None:
        self._table, self._target_of, self._starts, self._n_kept = table, target_of, starts, n_kept
        self._n_classes = n_classes

    def class_counts(self) -> np.ndarray:
        """Return the number of rows of positive weight in each class, or in total: int64[n_classes or 1]."""
        found = np.zeros(self._n_classes or 1, np.int64)
        for piece in self._pieces():
            classes = piece.classes
            found += len(piece.rows) if classes is None else np.bincount(classes, minlength=len(found))
        return found

    def digit_counts(self, digits: DigitRequest) -> np.ndarray:
        """See `DigitRequest.count`."""
        found = np.zeros((len(digits.prefixes), 1 << digits.n_bits), np.int64)
        for piece in self._pieces():
            found += digits.count(piece.draw_ids, piece.classes)
        return found

    def apply(self, assignment: RowAssignment) -> tuple[ChosenRows | None, ChosenRows | None]:
        """Set the training weights of the table's rows, 0 for validation rows; return the validation rows and the watched rows.

        The returned weights include the class weights.
        """
        table, held_out, watched = self._table, assignment.held_out, assignment.watched
        fold = assignment.fold
        if assignment.class_weight is None and held_out is None and watched is None and fold is None:
            return None, None
        weighted = assignment.class_weight is not None
        weighted = weighted or any(n and table.roles(k).weight is not None for k, n in enumerate(table.lengths))
        found: dict[bool, list[tuple[np.ndarray, np.ndarray]]] = {True: [], False: []}

        def weights(k: int) -> np.ndarray:
            """Return the new weights of chunk k, and append its chosen rows to `found`."""
            weight = self._weights(k, assignment.class_weight)
            for piece in self._pieces(k):
                rows, drawn = piece.rows, (piece.draw_ids, piece.classes)
                uses = None if fold is None else fold.of(piece.first_id + np.arange(len(rows)))
                if uses is not None:
                    held = uses == TEST
                else:
                    held = np.zeros(len(rows), bool) if held_out is None else held_out.selects(*drawn)
                seen = np.zeros(len(rows), bool) if watched is None else watched.selects(*drawn) & ~held
                for is_held, own in ((True, rows[held]), (False, rows[seen])):
                    found[is_held].append((piece.first + own, weight[own]))
                weight[rows[held if uses is None else uses != TRAIN]] = 0.0
            return weight

        table.reweigh(weights)

        def joined(exists: bool, is_held: bool) -> ChosenRows | None:
            if not exists:
                return None
            positions, factors = zip((np.empty(0, np.int64), np.empty(0)), *found[is_held], strict=True)
            return np.concatenate(positions), np.concatenate(factors) if weighted else None

        return joined(held_out is not None or fold is not None, True), joined(watched is not None, False)

    def _weights(self, k: int, class_weight: np.ndarray | None) -> np.ndarray:
        """Return a copy of the weights of all rows of chunk k, times the weights of their classes."""
        weight = self._table.roles(k).weight
        if class_weight is None:
            return np.ones(self._table.lengths[k]) if weight is None else weight.copy()
        of_rows = class_weight[self._target_of(k).astype(np.int64)]
        return of_rows if weight is None else of_rows * weight

    def _pieces(self, k: int | None = None) -> Iterator[_Piece]:
        """Yield the rows of positive weight (of chunk k only, if given) in pieces.

        Raises
        ------
        DataError
            If the number of rows of positive weight of a partition has changed since it was first read.
        """
        table, first = self._table, 0
        for i, length in enumerate(table.lengths):
            if length and k in (None, i):
                rows = kept_rows(table.roles(i).weight)
                n = length if rows is None else len(rows)
                if n != self._n_kept[i]:
                    raise DataError(
                        f"{table.partition_name(i)} has {n} rows of positive weight, but had {self._n_kept[i]} when it was "
                        "first read: the data have changed meanwhile"
                    )
                classes = None if self._n_classes is None else self._target_of(i)
                draw_ids = table.draw_ids(i, self._starts[i])
                for low in range(0, n, _PIECE_ROWS):
                    high = min(low + _PIECE_ROWS, n)
                    some = np.arange(low, high) if rows is None else rows[low:high]
                    of = None if classes is None else classes[some].astype(np.int64)
                    yield _Piece(first, some, self._starts[i] + low, draw_ids[low:high], of)
            first += length
