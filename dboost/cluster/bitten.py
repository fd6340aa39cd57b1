"""A batch's rows divided into arcbites in files, for workers whose memory cannot hold them.

The table goes by once, piece by piece, and its rows go to the blocks of their bites (`shard.bite_files`), in the worker's local
directory. A bite is entered in as many shares as there are threads, each of which becomes a shard in memory. What is in the
files of a bite are the scores that it was entered with, so a batch that comes late needs no more than the others have: it
catches up when its bite's turn comes, or at once where that is now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dboost.cluster.pieces import starting_pieces
from dboost.cluster.recipe import Recipe
from dboost.cluster.resting import Stays
from dboost.cluster.rows import BatchRows
from dboost.engine.in_process import is_small
from dboost.shard.bite_files import BiteFiles, Filed
from dboost.shard.bites import Bite, bite_sizes, bites_of
from dboost.shard.blocks import code_fields, rows_that_fit
from dboost.sources.spool import PrivateDirectory


class InFiles:
    """The bites of a batch in files, which go with this object.

    Parameters
    ----------
    rows : BatchRows
    recipe : Recipe
        With a number of bites.
    root : Path
        Where the files' folder is made.
    n_threads : int
    filling_bytes : int
        See `BiteFiles`.
    """

    def __init__(self, rows: BatchRows, recipe: Recipe, root: Path, *, n_threads: int, filling_bytes: int) -> None:
        assert recipe.n_bites is not None
        table = rows.table
        self._recipe, self._root, self._n_threads = recipe, root, n_threads
        #: Rows of each partition.
        self._owned = {number: n for k, number in enumerate(table.numbers) if (n := rows.kept_of(k))}
        self._bytes_before = 0
        self._folder = PrivateDirectory(root)
        try:
            sizes, n_outputs = self._sizes(), len(recipe.baseline)
            self._files = BiteFiles(
                self._folder.path, recipe.layout, n_outputs, recipe.weighted, sizes, filling_bytes=filling_bytes
            )
            self._files.write(self._pieces(rows))
        except BaseException:
            self._folder.close()
            raise
        self._parts = {bite: self._shares(bite, 0) for bite in np.flatnonzero(sizes).tolist()}

    def _sizes(self) -> np.ndarray:
        seed, n_bites = self._recipe.seed, self._recipe.n_bites
        assert n_bites is not None
        sizes = np.zeros(n_bites, np.int64)
        for number, n in self._owned.items():
            sizes += bite_sizes(seed, n_bites, n, self._recipe.starts[number])
        return sizes

    def _pieces(self, rows: BatchRows) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        recipe = self._recipe
        assert recipe.n_bites is not None
        piece_rows = rows_that_fit(code_fields(recipe.layout), self.n_rows)
        for piece in starting_pieces(rows, recipe, self._n_threads, piece_rows):
            codes, numbers = piece.codes, np.arange(piece.first, piece.first + piece.codes.n_rows)
            fields = piece.fields | {"narrow": codes.narrow, "numbers": numbers}
            if len(codes.wide):
                fields["wide"] = codes.wide
            yield bites_of(recipe.seed, recipe.n_bites, numbers), fields

    def _shares(self, bite: int, n_seen: int) -> list[Filed]:
        files = self._files
        small = is_small(files.n_rows(bite), len(self._recipe.features))
        n = 1 if small else min(self._n_threads, files.n_blocks(bite))
        return [Filed(files, bite, n_seen, (k, n)) for k in range(n)]

    @property
    def n_rows(self) -> int:
        return sum(self._owned.values())

    @property
    def rows_in_files(self) -> int:
        return self.n_rows

    @property
    def bytes_read(self) -> int:
        """So far."""
        return self._bytes_before + self._files.bytes_read

    def of(self, bite: int) -> Sequence[Bite]:
        """The shares of a bite."""
        return self._parts.get(bite, [])

    def keep(self, partitions: Sequence[int], stays: Stays) -> None:
        """Write the rows that are to stay to new files."""
        if set(self._owned) <= set(partitions):
            return
        self._owned = {number: n for number, n in self._owned.items() if number in partitions}
        folder, sizes = PrivateDirectory(self._root), self._sizes()
        try:
            files = self._files.some(folder.path, sizes, stays)
        except BaseException:
            folder.close()
            raise
        seen = {bite: parts[0].n_seen for bite, parts in self._parts.items()}
        self._bytes_before = self.bytes_read
        self.close()
        self._folder, self._files = folder, files
        self._parts = {bite: self._shares(bite, seen[bite]) for bite in np.flatnonzero(sizes).tolist()}

    def close(self) -> None:
        """Remove the files."""
        self._files.close()
        self._folder.close()
