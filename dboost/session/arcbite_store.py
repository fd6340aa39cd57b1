"""One worker's rows where they are divided into arcbites: those of all bites but the present one are at rest here.

Whose turn it is, is said by the client: the number of the turn, its bite, and the iterations that the model has kept. A turn
that has been taken is not taken again. Rows that come late, because another worker died, are told all of this at once.

A batch's bites are in memory, or where a limit says so in files (`bitten.py`). Which partition a row is of follows from its
number, so rows that another worker takes over are found without a record of their own.

A batch's rows divided into arcbites in files, for workers whose memory cannot hold them.

The table goes by once, piece by piece, and its rows go to the blocks of their bites (`shards.arcbite_rows`), in the worker's
local directory. A bite is entered in as many shares as there are threads, each of which becomes a shard in memory. What is in
the files of a bite are the scores that it was entered with, so a batch that comes late needs no more than the others have: it
catches up when its bite's turn comes, or at once where that is now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from dboost.session.batch_rows import StartingRows
from dboost.session.fused_engine import is_small
from dboost.session.protocol import BiteVisit, BuildSpec
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.arcbite_rows import Bite, BiteFiles, FileBite, InMemoryBite, bite_sizes, bites_of
from dboost.shards.shard_spec import code_fields, rows_that_fit
from dboost.storage.spool import PrivateDirectory

Iterations = Sequence[Sequence[TreeDelta]]
#: Tells of rows, by their global numbers (int64[n]), which are to stay (bool[n]).
SelectRows = Callable[[np.ndarray], np.ndarray]


class BiteStore(Protocol):
    """All bites of a batch's rows."""

    @property
    def n_rows(self) -> int: ...

    @property
    def rows_in_files(self) -> int: ...

    @property
    def bytes_read(self) -> int:
        """From files, so far."""

    def of(self, bite: int) -> Sequence[Bite]:
        """The rows of a bite, in as many parts as are trained on side by side."""

    def keep(self, partitions: Sequence[int], stays: SelectRows) -> None:
        """Let go of the rows of other partitions."""

    def close(self) -> None: ...


class InMemoryBiteStore:
    """The bites of rows in memory."""

    def __init__(self) -> None:
        self._bites: dict[int, list[InMemoryBite]] = {}
        self.rows_in_files = self.bytes_read = 0

    def add(self, rows: InMemoryBite, seed: int, n_bites: int) -> None:
        """Divide rows; those that were added before are other parts of the bites."""
        for bite, (_, of_bite) in enumerate(rows.divided(seed, n_bites)):
            if of_bite.n_rows:
                self._bites.setdefault(bite, []).append(of_bite)

    @property
    def n_rows(self) -> int:
        return sum(part.n_rows for parts in self._bites.values() for part in parts)

    def of(self, bite: int) -> Sequence[Bite]:
        """The parts of a bite."""
        return self._bites.get(bite, [])

    def keep(self, partitions: Sequence[int], stays: SelectRows) -> None:
        """Let go of the rows that are not to stay."""
        for bite, parts in self._bites.items():
            kept = (part.some_rows(np.flatnonzero(stays(part.numbers))) for part in parts)
            self._bites[bite] = [part for part in kept if part.n_rows]

    def close(self) -> None:
        """Nothing but memory to let go of."""
        self._bites = {}


@dataclass(eq=False)
class SessionBites:
    """The rows of all bites, and whose turn it is."""

    turn: BiteVisit | None = None
    kept: list[Sequence[TreeDelta]] = field(default_factory=list)
    _stores: dict[str, BiteStore] = field(default_factory=dict)
    #: What was read of bites that are no more.
    _bytes_of_gone: int = 0

    def put(self, batch: str, store: BiteStore) -> list[Bite]:
        """Take in a batch, whose scores are those of no tree. Returns its rows of the present bite."""
        self._stores[batch] = store
        return [] if self.turn is None else [rows for part in self.turn.bite for rows in store.of(part)]

    def take(self, turn: BiteVisit, first: int, iterations: Iterations) -> bool:
        """Note whose turn it is; False when iterations before number `first` are not known here.

        iterations : that the model has kept, from number `first` on.
        """
        if first > len(self.kept):
            return False
        self.kept[first:] = iterations
        self.turn = turn
        return True

    def present(self) -> list[tuple[str, Bite]]:
        """The rows of the bite whose turn it is, and which batch they are of."""
        if self.turn is None:
            return []
        turn = self.turn
        return [(batch, rows) for batch, store in self._stores.items() for part in turn.bite for rows in store.of(part)]

    def keep(self, batch: str, partitions: Sequence[int], stays: SelectRows) -> None:
        """Let go of the rows of this batch's other partitions."""
        store = self._stores.get(batch)
        if store is None:
            return
        if partitions:
            store.keep(partitions, stays)
        else:
            self._bytes_of_gone += store.bytes_read
            self._stores.pop(batch).close()

    @property
    def n_rows(self) -> int:
        return sum(store.n_rows for store in self._stores.values())

    @property
    def bytes_read(self) -> int:
        """From files, so far."""
        return self._bytes_of_gone + sum(store.bytes_read for store in self._stores.values())

    def rows_in_files(self, batch: str) -> int:
        """How many rows of a batch are in files."""
        store = self._stores.get(batch)
        return 0 if store is None else store.rows_in_files

    def close(self) -> None:
        """Let go of everything."""
        for store in self._stores.values():
            store.close()
        self._stores = {}


class FileBiteStore:
    """The bites of a batch in files, which go with this object.

    Parameters
    ----------
    rows : StartingRows
    spec : BuildSpec
        With a number of bites.
    root : Path
        Where the files' folder is made.
    n_threads : int
    n_shares : int
        In how many parts a bite is trained on.
    filling_bytes : int
        See `BiteFiles`.
    """

    def __init__(
        self, rows: StartingRows, spec: BuildSpec, root: Path, *, n_threads: int, n_shares: int, filling_bytes: int
    ) -> None:
        assert spec.n_bites is not None
        self._spec, self._root, self._n_threads, self._n_shares = spec, root, n_threads, n_shares
        #: Rows of each partition.
        self._owned = rows.owned
        self._bytes_before = 0
        self._folder = PrivateDirectory(root)
        try:
            sizes, n_outputs = self._sizes(), len(spec.baseline)
            self._files = BiteFiles(
                self._folder.path, spec.layout, n_outputs, spec.shard.weighted, sizes, filling_bytes=filling_bytes
            )
            self._files.write(self._pieces(rows))
        except BaseException:
            self._folder.close()
            raise
        self._parts = {bite: self._shares(bite, 0) for bite in np.flatnonzero(sizes).tolist()}

    def _sizes(self) -> np.ndarray:
        seed, n_bites = self._spec.seed, self._spec.n_bites
        assert n_bites is not None
        sizes = np.zeros(n_bites, np.int64)
        for number, n in self._owned.items():
            sizes += bite_sizes(seed, n_bites, n, self._spec.starts[number])
        return sizes

    def _pieces(self, rows: StartingRows) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        spec = self._spec
        assert spec.n_bites is not None
        piece_rows = rows_that_fit(code_fields(spec.layout), self.n_rows)
        for piece in rows.pieces(spec, self._n_threads, piece_rows):
            codes, numbers = piece.codes, np.arange(piece.first, piece.first + piece.codes.n_rows)
            fields = piece.fields | {"narrow": codes.narrow, "numbers": numbers}
            if len(codes.wide):
                fields["wide"] = codes.wide
            yield bites_of(spec.seed, spec.n_bites, numbers), fields

    def _shares(self, bite: int, n_seen: int) -> list[FileBite]:
        files = self._files
        small = is_small(files.n_rows(bite), len(self._spec.binning.features))
        n = 1 if small else min(self._n_shares, files.n_blocks(bite))
        return [FileBite(files, bite, n_seen, (k, n)) for k in range(n)]

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

    def keep(self, partitions: Sequence[int], stays: SelectRows) -> None:
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
