"""Bites: random subsets of the rows, of which one at a time is trained on while the others rest.

Which bite a row belongs to is a hash of the seed and the row's number among all rows that are trained on. So bites are random
subsets of the whole data, however these are sorted, cut into partitions or spread over workers.

A resting bite is its codes, targets and weights, which never change, and its scores *as they were when it was last entered*,
with the number of iterations that these had taken in. To enter a bite is to let its scores take in the iterations that have
been kept since; the working shard gets a copy of them. So there is nothing to be written back when a bite is left, whether
its trees are kept, cut back, or lost with a worker: the next visit catches up with what is in the model by then. Leaf values
are added one by one in the order of the trees, which gives the very sums that a model's prediction makes.

Bites at rest in files, for data that do not fit in memory.

Two block files (`storage.block_file`) hold all bites of a place: ``bites`` what never changes (codes in columns, target,
weight, the rows' numbers), which is sealed, and ``scores`` the raw scores that each bite was entered with last. A bite begins
with a block of its own and has as many as it takes, so it is read, and its scores are written, in one go from front to back.
Blocks are small enough that all bites together can be filled at the same time, while the table goes by once.

A bite may be entered in several *shares*, ranges of its blocks, each of which becomes a shard of its own: so threads of a
worker train on it side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from dboost.kernels.histograms import BinLayout
from dboost.shards.apply_trees import TreeDelta, add_iterations
from dboost.shards.shard import BinnedColumns, Shard, empty_binned_columns
from dboost.shards.shard_spec import ShardSpec
from dboost.storage.block_file import BLOCK_ROWS, BlockFile, Field
from dboost.trees.tree_task import BITES, derive_seed, hash_rows

#: Rows whose numbers are hashed at a time.
_ROWS_AT_A_TIME = 1 << 20

#: Calls ``work(first, last)`` for ranges that together are rows 0…n-1: ``spread(work, n)``.
RunInRanges = Callable[[Callable[[int, int], None], int], object]


def bites_of(seed: int, n_bites: int, numbers: np.ndarray) -> np.ndarray:
    """The bite of each row: int64[n] of 0…n_bites-1, from the rows' global numbers (int64[n])."""
    # The upper half of the hash as a fraction of n_bites.
    return ((hash_rows(derive_seed(seed, BITES), numbers) >> np.uint64(32)) * np.uint64(n_bites) >> np.uint64(32)).astype(
        np.int64
    )


def bite_sizes(seed: int, n_bites: int, n_rows: int, first: int = 0) -> np.ndarray:
    """How many of `n_rows` rows, numbered from `first` on, each bite has: int64[n_bites]."""
    sizes, last = np.zeros(n_bites, np.int64), first + n_rows
    for begin in range(first, last, _ROWS_AT_A_TIME):
        numbers = np.arange(begin, min(begin + _ROWS_AT_A_TIME, last))
        sizes += np.bincount(bites_of(seed, n_bites, numbers), minlength=n_bites)
    return sizes


class Bite(Protocol):
    """The rows of one bite between visits, in memory (`InMemoryBite`) or in files (`shards.arcbite_rows.Filed`)."""

    @property
    def n_rows(self) -> int: ...

    def with_current_scores(
        self, layout: BinLayout, iterations: Sequence[Sequence[TreeDelta]], spread: RunInRanges
    ) -> InMemoryBite:
        """These rows with the scores of the model, see `InMemoryBite.with_current_scores`."""


@dataclass(eq=False)
class InMemoryBite:
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

    codes: BinnedColumns
    target: np.ndarray
    weight: np.ndarray | None
    raw: np.ndarray
    numbers: np.ndarray
    n_seen: int = 0

    @property
    def n_rows(self) -> int:
        return len(self.target)

    def with_current_scores(
        self,
        layout: BinLayout,
        iterations: Sequence[Sequence[TreeDelta]],
        spread: RunInRanges,
        keep: Callable[[np.ndarray], object] | None = None,
    ) -> InMemoryBite:
        """These rows with the scores of the model, of which somebody else may make what he likes.

        iterations : all that the model has at present; those that were there when the bite was last entered still are.
        keep : takes note of the scores if they have changed, instead of this record.
        """
        missed = iterations[self.n_seen :]
        if missed:
            spread(lambda first, last: add_iterations(self.codes, layout, missed, self.raw, first, last), self.n_rows)
            self.n_seen = len(iterations)
            if keep is not None:
                keep(self.raw)
        return replace(self, raw=self.raw.copy() if keep is None else self.raw)

    def shard(self, spec: ShardSpec, spread: RunInRanges) -> Shard:
        """A shard of these rows, which takes their scores over."""
        shard = Shard(self.codes, spec, self.target, self.weight, self.raw, numbers=self.numbers)
        spread(shard.fill_tiles, shard.n_rows)
        return shard

    def some_rows(self, rows: np.ndarray) -> InMemoryBite:
        """Some of the rows (int64), in the state that they are in."""
        codes = BinnedColumns(
            np.ascontiguousarray(self.codes.narrow[:, rows]), np.ascontiguousarray(self.codes.wide[:, rows]), self.codes.row_of
        )
        weight = None if self.weight is None else self.weight[rows]
        raw = np.ascontiguousarray(self.raw[..., rows])
        return InMemoryBite(codes, self.target[rows], weight, raw, self.numbers[rows], self.n_seen)

    def divided(self, seed: int, n_bites: int) -> Iterator[tuple[np.ndarray, InMemoryBite]]:
        """Bite by bite which of these rows belong to it (int64[...]), and a copy of them, perhaps of none."""
        bites = bites_of(seed, n_bites, self.numbers)
        order = np.argsort(bites, kind="stable")
        ends = np.cumsum(np.bincount(bites, minlength=n_bites))
        for first, last in zip((0, *ends[:-1]), ends, strict=True):
            yield order[first:last], self.some_rows(order[first:last])


def joined_bites(parts: Sequence[InMemoryBite]) -> InMemoryBite:
    """The rows of several parts as one; they have seen the same iterations."""
    if len(parts) == 1:
        return parts[0]
    narrow = np.concatenate([part.codes.narrow for part in parts], axis=1)
    wide = np.concatenate([part.codes.wide for part in parts], axis=1)
    weights = [part.weight for part in parts if part.weight is not None]
    return InMemoryBite(
        BinnedColumns(narrow, wide, parts[0].codes.row_of),
        np.concatenate([part.target for part in parts]),
        np.concatenate(weights) if weights else None,
        np.concatenate([part.raw for part in parts], axis=-1),
        np.concatenate([part.numbers for part in parts]),
        parts[0].n_seen,
    )


_LEAST_BLOCK_ROWS = 256
#: Which of how many parts of a bite, by blocks.
BlockRange = tuple[int, int]
WHOLE: BlockRange = (0, 1)


class BiteFiles:
    """The files of all bites of one place.

    Parameters
    ----------
    folder : Path
        Where they are made.
    layout : Layout
    n_outputs : int
    weighted : bool
    sizes : int64[n_bites]
        Rows of each bite.
    filling_bytes : int
        What one block of every bite may take together, while they are filled.
    """

    def __init__(
        self, folder: Path, layout: BinLayout, n_outputs: int, weighted: bool, sizes: np.ndarray, *, filling_bytes: int
    ) -> None:
        self.sizes = sizes
        self._layout, self._n_outputs, self._filling_bytes = layout, n_outputs, filling_bytes
        codes = empty_binned_columns(layout, 0)
        wide = [Field("wide", "<u2", (len(codes.wide),))] if len(codes.wide) else []
        fields = [Field("narrow", "<u1", (len(codes.narrow),)), *wide, Field("target", "<f8"), Field("numbers", "<i8")]
        fields += [Field("weight", "<f8")] if weighted else []
        scores = [Field("raw", "<f8", () if n_outputs == 1 else (n_outputs,))]
        per_row = sum(field.n_bytes(1) for field in (*fields, *scores))
        rows = _LEAST_BLOCK_ROWS
        while 2 * rows <= BLOCK_ROWS and 2 * rows * per_row * len(sizes) <= filling_bytes:
            rows *= 2
        self._block_rows = rows
        n_blocks = -(-sizes // rows)
        self._first_block = np.concatenate(([0], np.cumsum(n_blocks)))
        n_rows = int(self._first_block[-1]) * rows
        self._rows = BlockFile(folder / "bites", fields, n_rows, sealed=True, block_rows=rows)
        self._scores = BlockFile(folder / "scores", scores, n_rows, sealed=False, block_rows=rows)
        self._weighted = weighted

    @property
    def bytes_read(self) -> int:
        return self._rows.bytes_read + self._scores.bytes_read

    def write(self, pieces: Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]) -> None:
        """Fill the files.

        pieces : (bite of each row, fields of these rows as in the files), until all rows have come.
        """
        filled = np.zeros(len(self.sizes), np.int64)
        buffers = [(self._rows.buffer(), self._scores.buffer()) for _ in self.sizes]
        for bites, fields in pieces:
            order = np.argsort(bites, kind="stable")
            ends = np.cumsum(np.bincount(bites, minlength=len(self.sizes)))
            for bite, (first, last) in enumerate(zip((0, *ends[:-1]), ends, strict=True)):
                while first < last:
                    at = int(filled[bite]) % self._block_rows
                    n = min(last - first, self._block_rows - at)
                    block = int(self._first_block[bite] + filled[bite] // self._block_rows)
                    views = self._views(block, *buffers[bite])
                    for name, values in fields.items():
                        views[name][..., at : at + n] = values[..., order[first : first + n]]
                    filled[bite] += n
                    first += n
                    if at + n == self._block_rows or filled[bite] == self.sizes[bite]:
                        self._rows.write(block, buffers[bite][0])
                        self._scores.write(block, buffers[bite][1])
        assert (filled == self.sizes).all(), "fewer rows than were promised"

    def _views(self, block: int, rows: np.ndarray, scores: np.ndarray) -> dict[str, np.ndarray]:
        return self._rows.views(rows, block) | self._scores.views(scores, block)

    def n_blocks(self, bite: int) -> int:
        return int(self._first_block[bite + 1] - self._first_block[bite])

    def _bounds(self, bite: int, share: BlockRange) -> tuple[int, int]:
        """The first block of a share of a bite, and the one after its last, counted within the bite."""
        n, (k, of) = self.n_blocks(bite), share
        return n * k // of, n * (k + 1) // of

    def n_rows(self, bite: int, share: BlockRange = WHOLE) -> int:
        """Rows of a bite, or of a share of it."""
        first, last = (min(block * self._block_rows, int(self.sizes[bite])) for block in self._bounds(bite, share))
        return last - first

    def _places(self, bite: int, share: BlockRange = WHOLE) -> Iterator[tuple[int, slice]]:
        """The blocks of a share of a bite, and which of its rows each holds."""
        n = self.n_rows(bite, share)
        first_block = int(self._first_block[bite]) + self._bounds(bite, share)[0]
        for k, first in enumerate(range(0, n, self._block_rows)):
            yield first_block + k, slice(first, min(first + self._block_rows, n))

    def read(self, bite: int, n_seen: int, share: BlockRange = WHOLE) -> InMemoryBite:
        """A bite, or a share of it, in memory."""
        n = self.n_rows(bite, share)
        codes = empty_binned_columns(self._layout, n)
        found: dict[str, np.ndarray] = {"narrow": codes.narrow, "wide": codes.wide}
        found |= {name: np.empty(n) for name in ("target", *(["weight"] if self._weighted else []))}
        found["numbers"] = np.empty(n, np.int64)
        found["raw"] = np.empty(n if self._n_outputs == 1 else (self._n_outputs, n))
        rows, scores = self._rows.buffer(), self._scores.buffer()
        for block, place in self._places(bite, share):
            self._rows.read(block, rows)
            self._scores.read(block, scores)
            for name, values in self._views(block, rows, scores).items():
                found[name][..., place] = values[..., : place.stop - place.start]
        return InMemoryBite(codes, found["target"], found.get("weight"), found["raw"], found["numbers"], n_seen)

    def write_scores(self, bite: int, share: BlockRange, raw: np.ndarray) -> None:
        """Keep the scores (float64[n_rows] or float64[n_outputs, n_rows]) that a share of a bite was entered with."""
        buffer = self._scores.buffer()
        for block, place in self._places(bite, share):
            view = self._scores.views(buffer, block)["raw"]
            view[..., : place.stop - place.start] = raw[..., place]
            self._scores.write(block, buffer)

    def some(self, folder: Path, sizes: np.ndarray, wanted: Callable[[np.ndarray], np.ndarray]) -> BiteFiles:
        """New files with some of the rows of each bite, in the state that they are in.

        sizes : int64[n_bites], how many of each; wanted : tells by their global numbers which rows (bool[n]).
        """
        found = BiteFiles(folder, self._layout, self._n_outputs, self._weighted, sizes, filling_bytes=self._filling_bytes)

        def pieces() -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
            rows, scores = self._rows.buffer(), self._scores.buffer()
            for bite in range(len(self.sizes)):
                for block, place in self._places(bite):
                    self._rows.read(block, rows)
                    self._scores.read(block, scores)
                    n = place.stop - place.start
                    views = {name: values[..., :n] for name, values in self._views(block, rows, scores).items()}
                    some = np.flatnonzero(wanted(views["numbers"]))
                    yield np.full(len(some), bite), {name: values[..., some] for name, values in views.items()}

        found.write(pieces())
        return found

    def close(self) -> None:
        """Remove the files."""
        self._rows.remove()
        self._scores.remove()


@dataclass(eq=False)
class FileBite:
    """One bite of the files, or a share of it; see `InMemoryBite`."""

    files: BiteFiles
    bite: int
    n_seen: int = 0
    share: BlockRange = WHOLE

    @property
    def n_rows(self) -> int:
        return self.files.n_rows(self.bite, self.share)

    def with_current_scores(
        self, layout: BinLayout, iterations: Sequence[Sequence[TreeDelta]], spread: RunInRanges
    ) -> InMemoryBite:
        """These rows with the scores of the model."""
        rows = self.files.read(self.bite, self.n_seen, self.share)
        found = rows.with_current_scores(layout, iterations, spread, partial(self.files.write_scores, self.bite, self.share))
        self.n_seen = rows.n_seen
        return found
