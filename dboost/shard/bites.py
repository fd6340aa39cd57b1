"""Bites: random subsets of the rows, of which one at a time is trained on while the others rest.

Which bite a row belongs to is a hash of the seed and the row's number among all rows that are trained on. So bites are random
subsets of the whole data, however these are sorted, cut into partitions or spread over workers.

A resting bite is its codes, targets and weights, which never change, and its scores *as they were when it was last entered*,
with the number of iterations that these had taken in. To enter a bite is to let its scores take in the iterations that have
been kept since; the working shard gets a copy of them. So there is nothing to be written back when a bite is left, whether
its trees are kept, cut back, or lost with a worker: the next visit catches up with what is in the model by then. Leaf values
are added one by one in the order of the trees, which gives the very sums that a model's prediction makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from dboost.growth.task import BITES, hashed, mixed
from dboost.kernels.histograms import Layout
from dboost.shard.catch_up import ValuedTree, take_in
from dboost.shard.shard import Codes, Shard

#: Rows whose numbers are hashed at a time.
_AT_A_TIME = 1 << 20

#: Calls ``work(first, last)`` for ranges that together are rows 0…n-1: ``spread(work, n)``.
Spread = Callable[[Callable[[int, int], None], int], object]


def bites_of(seed: int, n_bites: int, numbers: np.ndarray) -> np.ndarray:
    """The bite of each row: int64[n] of 0…n_bites-1, from the rows' global numbers (int64[n])."""
    # The upper half of the hash as a fraction of n_bites.
    return ((hashed(mixed(seed, BITES), numbers) >> np.uint64(32)) * np.uint64(n_bites) >> np.uint64(32)).astype(np.int64)


def bite_sizes(seed: int, n_bites: int, n_rows: int, first: int = 0) -> np.ndarray:
    """How many of `n_rows` rows, numbered from `first` on, each bite has: int64[n_bites]."""
    sizes, last = np.zeros(n_bites, np.int64), first + n_rows
    for begin in range(first, last, _AT_A_TIME):
        numbers = np.arange(begin, min(begin + _AT_A_TIME, last))
        sizes += np.bincount(bites_of(seed, n_bites, numbers), minlength=n_bites)
    return sizes


class Bite(Protocol):
    """The rows of one bite between visits, in memory (`Resting`) or in files (`shard.bite_files.Filed`)."""

    @property
    def n_rows(self) -> int: ...

    def caught_up(self, layout: Layout, iterations: Sequence[Sequence[ValuedTree]], spread: Spread) -> Resting:
        """These rows with the scores of the model, see `Resting.caught_up`."""


@dataclass(frozen=True, eq=False)
class Build:
    """What a shard of any bite is made with, see `Shard`."""

    layout: Layout
    bin_layout: Layout
    constant_hessian: bool
    max_leaves: int
    whole_weights: bool
    by_weight: bool


@dataclass(eq=False)
class Resting:
    """The rows of one bite, or one worker's part of them, between visits.

    Attributes
    ----------
    codes : Codes
    target : float64[n_rows]
    weight : float64[n_rows] or None
    raw : float64[n_rows] or float64[n_outputs, n_rows]
        Scores when the bite was last entered.
    numbers : int64[n_rows]
        The rows' global numbers.
    n_seen : int
        Iterations that are in these scores.
    """

    codes: Codes
    target: np.ndarray
    weight: np.ndarray | None
    raw: np.ndarray
    numbers: np.ndarray
    n_seen: int = 0

    @property
    def n_rows(self) -> int:
        return len(self.target)

    def caught_up(
        self,
        layout: Layout,
        iterations: Sequence[Sequence[ValuedTree]],
        spread: Spread,
        keep: Callable[[np.ndarray], object] | None = None,
    ) -> Resting:
        """These rows with the scores of the model, of which somebody else may make what he likes.

        iterations : all that the model has at present; those that were there when the bite was last entered still are.
        keep : takes note of the scores if they have changed, instead of this record.
        """
        missed = iterations[self.n_seen :]
        if missed:
            spread(lambda first, last: take_in(self.codes, layout, missed, self.raw, first, last), self.n_rows)
            self.n_seen = len(iterations)
            if keep is not None:
                keep(self.raw)
        return replace(self, raw=self.raw.copy() if keep is None else self.raw)

    def shard(self, build: Build, spread: Spread) -> Shard:
        """A shard of these rows, which takes their scores over."""
        shard = Shard(
            self.codes,
            build.layout,
            self.target,
            self.weight,
            self.raw,
            bin_layout=build.bin_layout,
            constant_hessian=build.constant_hessian,
            max_leaves=build.max_leaves,
            whole_weights=build.whole_weights,
            by_weight=build.by_weight,
            numbers=self.numbers,
        )
        spread(shard.fill_tiles, shard.n_rows)
        return shard

    def some_rows(self, rows: np.ndarray) -> Resting:
        """Some of the rows (int64), in the state that they are in."""
        codes = Codes(
            np.ascontiguousarray(self.codes.narrow[:, rows]), np.ascontiguousarray(self.codes.wide[:, rows]), self.codes.row_of
        )
        weight = None if self.weight is None else self.weight[rows]
        raw = np.ascontiguousarray(self.raw[..., rows])
        return Resting(codes, self.target[rows], weight, raw, self.numbers[rows], self.n_seen)

    def divided(self, seed: int, n_bites: int) -> Iterator[tuple[np.ndarray, Resting]]:
        """Bite by bite which of these rows belong to it (int64[...]), and a copy of them, perhaps of none."""
        bites = bites_of(seed, n_bites, self.numbers)
        order = np.argsort(bites, kind="stable")
        ends = np.cumsum(np.bincount(bites, minlength=n_bites))
        for first, last in zip((0, *ends[:-1]), ends, strict=True):
            yield order[first:last], self.some_rows(order[first:last])


def joined(parts: Sequence[Resting]) -> Resting:
    """The rows of several parts as one; they have seen the same iterations."""
    if len(parts) == 1:
        return parts[0]
    narrow = np.concatenate([part.codes.narrow for part in parts], axis=1)
    wide = np.concatenate([part.codes.wide for part in parts], axis=1)
    weights = [part.weight for part in parts if part.weight is not None]
    return Resting(
        Codes(narrow, wide, parts[0].codes.row_of),
        np.concatenate([part.target for part in parts]),
        np.concatenate(weights) if weights else None,
        np.concatenate([part.raw for part in parts], axis=-1),
        np.concatenate([part.numbers for part in parts]),
        parts[0].n_seen,
    )
