"""Bites at rest in files, for data that do not fit in memory.

Two block files (`shard.store`) hold all bites of a place: ``bites`` what never changes (codes in columns, target, weight, the
rows' numbers), which is sealed, and ``scores`` the raw scores that each bite was entered with last. A bite begins with a block
of its own and has as many as it takes, so it is read, and its scores are written, in one go from front to back. Blocks are
small enough that all bites together can be filled at the same time, while the table goes by once.

A bite may be entered in several *shares*, ranges of its blocks, each of which becomes a shard of its own: so threads of a
worker train on it side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dboost.kernels.histograms import Layout
from dboost.shard.bites import Resting, Spread
from dboost.shard.catch_up import ValuedTree
from dboost.shard.shard import empty_codes
from dboost.shard.store import BLOCK_ROWS, BlockFile, Field

_LEAST_BLOCK_ROWS = 256
#: Which of how many parts of a bite, by blocks.
Share = tuple[int, int]
WHOLE: Share = (0, 1)


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
        self, folder: Path, layout: Layout, n_outputs: int, weighted: bool, sizes: np.ndarray, *, filling_bytes: int
    ) -> None:
        self.sizes = sizes
        self._layout, self._n_outputs, self._filling_bytes = layout, n_outputs, filling_bytes
        codes = empty_codes(layout, 0)
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

    def _bounds(self, bite: int, share: Share) -> tuple[int, int]:
        """The first block of a share of a bite, and the one after its last, counted within the bite."""
        n, (k, of) = self.n_blocks(bite), share
        return n * k // of, n * (k + 1) // of

    def n_rows(self, bite: int, share: Share = WHOLE) -> int:
        """Rows of a bite, or of a share of it."""
        first, last = (min(block * self._block_rows, int(self.sizes[bite])) for block in self._bounds(bite, share))
        return last - first

    def _places(self, bite: int, share: Share = WHOLE) -> Iterator[tuple[int, slice]]:
        """The blocks of a share of a bite, and which of its rows each holds."""
        n = self.n_rows(bite, share)
        first_block = int(self._first_block[bite]) + self._bounds(bite, share)[0]
        for k, first in enumerate(range(0, n, self._block_rows)):
            yield first_block + k, slice(first, min(first + self._block_rows, n))

    def read(self, bite: int, n_seen: int, share: Share = WHOLE) -> Resting:
        """A bite, or a share of it, in memory."""
        n = self.n_rows(bite, share)
        codes = empty_codes(self._layout, n)
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
        return Resting(codes, found["target"], found.get("weight"), found["raw"], found["numbers"], n_seen)

    def write_scores(self, bite: int, share: Share, raw: np.ndarray) -> None:
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
class Filed:
    """One bite of the files, or a share of it; see `Resting`."""

    files: BiteFiles
    bite: int
    n_seen: int = 0
    share: Share = WHOLE

    @property
    def n_rows(self) -> int:
        return self.files.n_rows(self.bite, self.share)

    def caught_up(self, layout: Layout, iterations: Sequence[Sequence[ValuedTree]], spread: Spread) -> Resting:
        """These rows with the scores of the model."""
        rows = self.files.read(self.bite, self.n_seen, self.share)
        found = rows.caught_up(layout, iterations, spread, partial(self.files.write_scores, self.bite, self.share))
        self.n_seen = rows.n_seen
        return found
