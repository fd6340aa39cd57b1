"""Bites: random subsets of the rows, of which one at a time is trained on.

The bite of a row is a hash of the seed and of the row's number among all training rows. Bites are therefore random subsets of
the whole data, however these are sorted, divided into partitions or spread over workers.

Between visits a bite is stored as its codes, targets and weights, which never change, and its scores *as of the last visit's
start*, with the number of iterations that these include. A visit starts by adding to the scores the iterations that have been
kept since; the working shard gets a copy of them. So nothing has to be written back at the end of a visit, whether its trees
are kept, cut back, or lost with a worker: the next visit adds what is in the model by then. Leaf values are added one by one in
the order of the trees, which gives exactly the sums that the model's prediction computes.

**Bites in files**, for data that do not fit in memory. Two block files (`storage.block_file`) hold all bites of a process:
``bites`` the fields that never change (codes in columns, target, weight, the row ids), which is sealed, and ``scores``
the raw scores as of each bite's last visit. A bite starts with a block of its own and has as many as it needs, so it is read,
and its scores are written, sequentially. Blocks are small enough that the buffers of all bites fit in memory while they are
filled in one pass over the table.

A bite may be visited in several *block ranges*, each of which becomes a shard of its own: so the threads of a worker train on
it in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from dboost.kernels.histograms import BinLayout
from dboost.shards.shard import BinnedColumns, Shard, TreeDelta, add_iterations, empty_binned_columns
from dboost.shards.shard_spec import ShardSpec
from dboost.storage.block_file import BLOCK_ROWS, BlockFile, Field
from dboost.trees.tree_task import BITES, derive_seed, hash_rows

#: Number of rows that are hashed at a time.
_ROWS_AT_A_TIME = 1 << 20

#: ``spread(work, n)`` calls ``work(first, last)`` for ranges that together are rows 0…n-1.
RunInRanges = Callable[[Callable[[int, int], None], int], object]


def bites_of(seed: int, n_bites: int, row_ids: np.ndarray) -> np.ndarray:
    """Return the bite of each row: int64[n] of 0…n_bites-1, from the global row ids (int64[n])."""
    # The upper half of the hash as a fraction of n_bites.
    return ((hash_rows(derive_seed(seed, BITES), row_ids) >> np.uint64(32)) * np.uint64(n_bites) >> np.uint64(32)).astype(
        np.int64
    )


def bite_sizes(seed: int, n_bites: int, n_rows: int, first: int = 0) -> np.ndarray:
    """Return the number of rows of each bite, for `n_rows` rows numbered from `first` on: int64[n_bites]."""
    sizes, last = np.zeros(n_bites, np.int64), first + n_rows
    for begin in range(first, last, _ROWS_AT_A_TIME):
        row_ids = np.arange(begin, min(begin + _ROWS_AT_A_TIME, last))
        sizes += np.bincount(bites_of(seed, n_bites, row_ids), minlength=n_bites)
    return sizes


class Bite(Protocol):
    """The rows of one bite between visits, in memory (`InMemoryBite`) or in files (`FileBite`)."""

    @property
    def n_rows(self) -> int: ...

    def with_current_scores(
        self, layout: BinLayout, iterations: Sequence[Sequence[TreeDelta]], spread: RunInRanges
    ) -> InMemoryBite:
        """Return a copy of the bite whose scores include all current trees, see `InMemoryBite.with_current_scores`."""


@dataclass(eq=False)
class InMemoryBite:
    """The rows of one bite, or one worker's part of them, between visits.

    Attributes
    ----------
    codes : BinnedColumns
    target : float64[n_rows]
    weight : float64[n_rows] or None
    raw : float64[n_rows] or float64[n_outputs, n_rows]
        Scores at the start of the last visit.
    row_ids : int64[n_rows]
        The global row ids.
    n_seen : int
        Iterations that these scores include.
    """

    codes: BinnedColumns
    target: np.ndarray
    weight: np.ndarray | None
    raw: np.ndarray
    row_ids: np.ndarray
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
        """Return a copy of the bite whose raw scores include all current trees; the caller may modify it.

        iterations : all iterations of the model; those of the last visit are still among them. keep : called with the scores if
        they have changed, instead of storing them in this record.
        """
        missed = iterations[self.n_seen :]
        if missed:
            spread(lambda first, last: add_iterations(self.codes, layout, missed, self.raw, first, last), self.n_rows)
            self.n_seen = len(iterations)
            if keep is not None:
                keep(self.raw)
        return replace(self, raw=self.raw.copy() if keep is None else self.raw)

    def shard(self, spec: ShardSpec, spread: RunInRanges) -> Shard:
        """Return a shard of these rows, which takes over their scores."""
        shard = Shard(self.codes, spec, self.target, self.weight, self.raw, row_ids=self.row_ids)
        spread(shard.fill_tiles, shard.n_rows)
        return shard

    def some_rows(self, rows: np.ndarray) -> InMemoryBite:
        """Return some of the rows (int64), in their current state."""
        codes = BinnedColumns(
            np.ascontiguousarray(self.codes.narrow[:, rows]), np.ascontiguousarray(self.codes.wide[:, rows]), self.codes.row_of
        )
        weight = None if self.weight is None else self.weight[rows]
        raw = np.ascontiguousarray(self.raw[..., rows])
        return InMemoryBite(codes, self.target[rows], weight, raw, self.row_ids[rows], self.n_seen)

    def divided(self, seed: int, n_bites: int) -> Iterator[tuple[np.ndarray, InMemoryBite]]:
        """Yield for each bite which of these rows belong to it (int64[...]), and a copy of them, which may be empty."""
        bites = bites_of(seed, n_bites, self.row_ids)
        order = np.argsort(bites, kind="stable")
        ends = np.cumsum(np.bincount(bites, minlength=n_bites))
        for first, last in zip((0, *ends[:-1]), ends, strict=True):
            yield order[first:last], self.some_rows(order[first:last])


def joined_bites(parts: Sequence[InMemoryBite]) -> InMemoryBite:
    """Join several parts of a bite, whose scores include the same iterations."""
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
        np.concatenate([part.row_ids for part in parts]),
        parts[0].n_seen,
    )


_LEAST_BLOCK_ROWS = 256
#: (k, n): the k-th of n ranges of the blocks of a bite.
BlockRange = tuple[int, int]
WHOLE: BlockRange = (0, 1)


class BiteFiles:
    """The files of all bites of one process.

    Parameters
    ----------
    folder : Path
        Folder in which they are made.
    layout : BinLayout
    n_outputs : int
    weighted : bool
    sizes : int64[n_bites]
        Rows of each bite.
    filling_bytes : int
        Memory for one block of every bite together, while they are filled.
    """

    def __init__(
        self, folder: Path, layout: BinLayout, n_outputs: int, weighted: bool, sizes: np.ndarray, *, filling_bytes: int
    ) -> None:
        self.sizes = sizes
        self._layout, self._n_outputs, self._filling_bytes = layout, n_outputs, filling_bytes
        codes = empty_binned_columns(layout, 0)
        wide = [Field("wide", "<u2", (len(codes.wide),))] if len(codes.wide) else []
        fields = [Field("narrow", "<u1", (len(codes.narrow),)), *wide, Field("target", "<f8"), Field("row_ids", "<i8")]
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

        pieces : (bite of each row, fields of these rows as in the files), until all rows have arrived.
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
        """Return the first block of a block range of a bite, and the one after its last, counted within the bite."""
        n, (k, of) = self.n_blocks(bite), share
        return n * k // of, n * (k + 1) // of

    def n_rows(self, bite: int, share: BlockRange = WHOLE) -> int:
        """Return the number of rows of a bite, or of a block range of it."""
        first, last = (min(block * self._block_rows, int(self.sizes[bite])) for block in self._bounds(bite, share))
        return last - first

    def _blocks_of(self, bite: int, share: BlockRange = WHOLE) -> Iterator[tuple[int, slice]]:
        """Yield the blocks of a block range of a bite, and the rows of the range in each."""
        n = self.n_rows(bite, share)
        first_block = int(self._first_block[bite]) + self._bounds(bite, share)[0]
        for k, first in enumerate(range(0, n, self._block_rows)):
            yield first_block + k, slice(first, min(first + self._block_rows, n))

    def read(self, bite: int, n_seen: int, share: BlockRange = WHOLE) -> InMemoryBite:
        """Read a bite, or a block range of it, into memory."""
        n = self.n_rows(bite, share)
        codes = empty_binned_columns(self._layout, n)
        found: dict[str, np.ndarray] = {"narrow": codes.narrow, "wide": codes.wide}
        found |= {name: np.empty(n) for name in ("target", *(["weight"] if self._weighted else []))}
        found["row_ids"] = np.empty(n, np.int64)
        found["raw"] = np.empty(n if self._n_outputs == 1 else (self._n_outputs, n))
        rows, scores = self._rows.buffer(), self._scores.buffer()
        for block, rows_here in self._blocks_of(bite, share):
            self._rows.read(block, rows)
            self._scores.read(block, scores)
            for name, values in self._views(block, rows, scores).items():
                found[name][..., rows_here] = values[..., : rows_here.stop - rows_here.start]
        return InMemoryBite(codes, found["target"], found.get("weight"), found["raw"], found["row_ids"], n_seen)

    def write_scores(self, bite: int, share: BlockRange, raw: np.ndarray) -> None:
        """Write the scores (float64[n_rows] or float64[n_outputs, n_rows]) of a block range at the start of a visit."""
        buffer = self._scores.buffer()
        for block, rows_here in self._blocks_of(bite, share):
            view = self._scores.views(buffer, block)["raw"]
            view[..., : rows_here.stop - rows_here.start] = raw[..., rows_here]
            self._scores.write(block, buffer)

    def some(self, folder: Path, sizes: np.ndarray, wanted: Callable[[np.ndarray], np.ndarray]) -> BiteFiles:
        """Make new files with some of the rows of each bite, in their current state.

        sizes : int64[n_bites], number of rows of each; wanted : returns which rows to take (bool[n]), given the
        global row ids.
        """
        found = BiteFiles(folder, self._layout, self._n_outputs, self._weighted, sizes, filling_bytes=self._filling_bytes)

        def pieces() -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
            rows, scores = self._rows.buffer(), self._scores.buffer()
            for bite in range(len(self.sizes)):
                for block, rows_here in self._blocks_of(bite):
                    self._rows.read(block, rows)
                    self._scores.read(block, scores)
                    n = rows_here.stop - rows_here.start
                    views = {name: values[..., :n] for name, values in self._views(block, rows, scores).items()}
                    some = np.flatnonzero(wanted(views["row_ids"]))
                    yield np.full(len(some), bite), {name: values[..., some] for name, values in views.items()}

        found.write(pieces())
        return found

    def close(self) -> None:
        """Remove the files."""
        self._rows.remove()
        self._scores.remove()


@dataclass(eq=False)
class FileBite:
    """One bite of the files, or a block range of it; see `InMemoryBite`."""

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
        """Return a copy of the bite whose scores include all current trees."""
        rows = self.files.read(self.bite, self.n_seen, self.share)
        found = rows.with_current_scores(layout, iterations, spread, partial(self.files.write_scores, self.bite, self.share))
        self.n_seen = rows.n_seen
        return found
