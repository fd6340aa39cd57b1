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

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from dboost.rows.row_sample import hash_rows

#: Names of two evaluation sets: the validation rows, and the sample of training rows.
HELD_OUT, WATCHED = "validation", "train"
#: Maximal number of counts per round, for all classes together.
_MOST_COUNTS = 1 << 16
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

    def selects(self, row_ids: np.ndarray, classes: np.ndarray | int = 0) -> np.ndarray:
        """Return whether rows are drawn, given their numbers (int64[n], see `Table.draw_ids`): bool[n].

        classes : int64[n], or one class of all rows; not used if one bound applies to all rows.
        """
        hashes = hash_rows(self.seed, row_ids)
        last = np.array([max(bound - 1, 0) for bound in self.bounds], np.uint64)
        is_drawn = np.array([bound > 0 for bound in self.bounds])
        bound = 0 if len(self.bounds) == 1 else classes
        return (hashes <= last[bound]) & is_drawn[bound]


@dataclass(frozen=True, eq=False)
class DigitRequest:
    """A request of one round: count how often each value of a digit occurs."""

    seed: int
    shift: int  # position of the digit in the hashes, in bits
    n_bits: int  # length of the digit
    prefixes: np.ndarray  # uint64[n_classes]: higher digits of the hashes that are counted
    is_open: np.ndarray  # bool[n_classes]: classes that are counted
    without: DrawnRows | None = None  # rows that are not counted

    def count(self, row_ids: np.ndarray, classes: np.ndarray | int) -> np.ndarray:
        """Return the counts of some rows (arguments as in `DrawnRows.selects`): int64[n_classes, 2**n_bits]."""
        n_classes = len(self.prefixes)
        classes = 0 if n_classes == 1 else classes
        hashes = hash_rows(self.seed, row_ids)
        digits = (hashes >> np.uint64(self.shift)) & np.uint64((1 << self.n_bits) - 1)
        counted = np.ones(len(row_ids), bool) if self.without is None else ~self.without.selects(row_ids, classes)
        if self.shift + self.n_bits < _BITS:
            above = hashes >> np.uint64(self.shift + self.n_bits)
            counted &= above == self.prefixes[classes]
        counted &= self.is_open[classes]
        cells = digits.astype(np.int64) + (classes << self.n_bits)
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
    is_open = np.array([0 < n < n_available for n, n_available in zip(wanted, available, strict=True)])
    prefixes = np.zeros(n_classes, np.uint64)
    n_bits = next(bits for bits in (8, 4, 2, 1) if n_classes << bits <= _MOST_COUNTS or bits == 1)
    shift = _BITS
    while is_open.any():
        shift -= n_bits
        digit_counts = ask(DigitRequest(draw.seed, shift, n_bits, prefixes.copy(), is_open.copy(), without))
        for k in np.flatnonzero(is_open).tolist():
            assert digit_counts[k].sum() == available[k], "each row is counted once"
            up_to = np.cumsum(digit_counts[k])
            digit = int(np.searchsorted(up_to, wanted[k]))
            available[k] = int(digit_counts[k, digit])
            wanted[k] -= int(up_to[digit]) - available[k]
            prefixes[k] = (int(prefixes[k]) << n_bits) | digit
            if available[k] == wanted[k]:
                bounds[k] = (int(prefixes[k]) + 1) << shift
                is_open[k] = False
    return DrawnRows(draw.seed, tuple(bounds))


def whole_groups(draw: Draw, counts: Sequence[int], earlier_draw: Draw | None = None) -> DrawnRows:
    """Return the selection of whole groups with about as many rows as a draw, of all classes together.

    counts : number of available rows of each class; earlier_draw : a draw of the other rows than these.
    """
    share = sum(draw.sizes) / max(sum(counts) - (0 if earlier_draw is None else sum(earlier_draw.sizes)), 1)
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


class PerRow:
    """An argument of `Backend.change` with a value for each row. A session on a worker receives those of its own rows."""

    def of_partitions(self, ranges: Sequence[tuple[int, int]]) -> Self:
        """Return the values of rows of some partitions only. ranges : global id of the first row, and number of rows."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class FoldRows(PerRow):
    """The use of each row in a fold of a cross-validation.

    uses : uint8[n], of consecutive runs of rows; starts : int64[n_runs], global id of the first row of each run, ascending;
    ends : int64[n_runs], where each run ends in `uses`. Default: one run from row 0 on.
    parts : uint8[n], the part of each row: rows of one part have the same use in each of the folds that share codes
    (`sharing_codes`); empty if the fold shares none. codes_id : unique name of the shared codes.
    """

    uses: np.ndarray
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    ends: np.ndarray | None = None
    parts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))
    codes_id: str = ""

    def of_partitions(self, ranges: Sequence[tuple[int, int]]) -> FoldRows:
        """Return the uses of rows of some partitions only. ranges : global id of the first row, and number of rows."""
        filled = sorted(id_range for id_range in ranges if id_range[1])

        def of_them(values: np.ndarray) -> np.ndarray:
            return np.concatenate([np.empty(0, np.uint8), *(values[start : start + n] for start, n in filled)])

        return FoldRows(
            of_them(self.uses),
            np.array([start for start, _ in filled], np.int64),
            np.cumsum([n for _, n in filled], dtype=np.int64),
            of_them(self.parts) if self.codes_id else self.parts,
            self.codes_id,
        )

    def at(self, first: int, n: int) -> slice:
        """Return where the n rows of one run from global id `first` on are in `uses` and `parts`."""
        if self.ends is not None:
            run = int(np.searchsorted(self.starts, first, "right")) - 1
            first += (int(self.ends[run - 1]) if run else 0) - int(self.starts[run])
        return slice(first, first + n)


#: Maximal number of parts of folds that share codes.
_MOST_PARTS = 256


def sharing_codes(folds: Sequence[FoldRows]) -> list[FoldRows]:
    """Return the folds with the codes that they share: of consecutive ones that divide the rows into few parts.

    Folds that hold out different rows have one part each. Repetitions divide the rows in another way, and share other codes.
    """
    sharing: list[FoldRows] = []
    first = 0
    while first < len(folds):
        parts, n_parts, n = np.zeros(len(folds[first].uses), np.uint8), 1, 0
        for fold in folds[first:]:
            both = parts.astype(np.uint16) * np.uint16(3) + fold.uses
            exists = np.bincount(both, minlength=3 * n_parts) > 0
            n_both = int(np.count_nonzero(exists))
            if n and n_both > min(n + 3, _MOST_PARTS):
                break
            parts, n_parts, n = (np.cumsum(exists) - 1).astype(np.uint8)[both], n_both, n + 1
        codes_id = uuid.uuid4().hex
        for fold in folds[first : first + n]:
            sharing.append(fold if n == 1 else replace(fold, parts=parts, codes_id=codes_id))
        first += n
    return sharing


@dataclass(frozen=True, eq=False)
class RowAssignment(PerRow):
    """The use of each row: training, validation or both, and the weights of classes."""

    class_weight: np.ndarray | None = None  # float64[n_classes], factors of the rows' weights
    held_out: DrawnRows | None = None  # validation rows, which are not trained on
    watched: DrawnRows | None = None  # rows that are both trained on and evaluated
    fold: FoldRows | None = None  # instead of `held_out`

    def of_partitions(self, ranges: Sequence[tuple[int, int]]) -> RowAssignment:
        return self if self.fold is None else replace(self, fold=self.fold.of_partitions(ranges))


#: Positions of chosen rows in their table (int64, ascending), and their weights or None.
ChosenRows = tuple[np.ndarray, np.ndarray | None]
