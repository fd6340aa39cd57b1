"""Arcbites in a session: stored bites, and the engine that trains on one of them at a time in this process.

A `BiteStore` has the rows of one batch, divided into bites: in memory, or in files if they exceed the memory limit. Which bite
a row belongs to is a hash of its global id. So the rows of a partition that moves to another worker are found without an index.

`SessionBites` has the stores of all batches and the current visit. The client sends the visit's number, its bite, and the
iterations of the truncated model. A repeated call for the same visit changes nothing. Rows that are loaded later, because
another worker died, receive the same record when they are built.

**Files.** `FileBiteStore` reads the table once, piece by piece, and appends each row to the blocks of its bite
(`shards.arcbite_rows`), in the worker's local directory. A visit reads a bite in several ranges of blocks, one per thread; each
becomes a shard in memory. The files contain the scores of a bite at the start of its last visit. A batch that is loaded later
therefore needs no special state: its scores are updated at the next visit of each bite, or at once for the current bite.

**In this process** `ArcbitesEngine` makes a fused engine for the bite of each visit. A visit first drops the shard and the
buffers of the previous visit and then builds those of its own bite. So the engine needs memory for the store and for one bite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dboost.session.engines import FusedEngine, is_small, team_for
from dboost.session.partition_loader import StartingRows
from dboost.session.protocol import BiteVisit, BuildSpec
from dboost.shards.arcbite_rows import Bite, BiteFiles, FileBite, InMemoryBite, bite_sizes, bites_of, joined_bites
from dboost.shards.shard import TreeDelta
from dboost.shards.shard_spec import ShardSpec, code_fields, rows_that_fit
from dboost.shards.statistics import Statistic
from dboost.storage.spool import PrivateDirectory
from dboost.trees.tree_task import GradientStats, GrownTree, GrowthPolicy, TreeTask

Iterations = Sequence[Sequence[TreeDelta]]
#: Maps global row ids (int64[n]) to whether the rows are kept (bool[n]).
SelectRows = Callable[[np.ndarray], np.ndarray]


class BiteStore(Protocol):
    """The rows of a batch, divided into bites. With `ArcBites.parts` > 1 a visit trains on several of them together."""

    @property
    def n_rows(self) -> int: ...

    @property
    def rows_in_files(self) -> int: ...

    @property
    def bytes_read(self) -> int:
        """Bytes read from files so far."""

    def of(self, bite: int) -> Sequence[Bite]:
        """Return the rows of a bite, one record for each shard that is built from them."""

    def keep(self, partitions: Sequence[int], stays: SelectRows) -> None:
        """Drop the rows of other partitions; `stays` returns False for their ids."""

    def close(self) -> None: ...


class InMemoryBiteStore:
    """Bites in memory."""

    def __init__(self) -> None:
        self._bites: dict[int, list[InMemoryBite]] = {}
        self.rows_in_files = self.bytes_read = 0

    def add(self, rows: InMemoryBite, seed: int, n_bites: int) -> None:
        """Divide rows into bites, as an additional record of each bite."""
        for bite, (_, of_bite) in enumerate(rows.divided(seed, n_bites)):
            if of_bite.n_rows:
                self._bites.setdefault(bite, []).append(of_bite)

    @property
    def n_rows(self) -> int:
        return sum(record.n_rows for records in self._bites.values() for record in records)

    def of(self, bite: int) -> Sequence[Bite]:
        """Return the records of a bite."""
        return self._bites.get(bite, [])

    def keep(self, partitions: Sequence[int], stays: SelectRows) -> None:
        """Drop the rows for which `stays` returns False."""
        for bite, records in self._bites.items():
            kept = (record.some_rows(np.flatnonzero(stays(record.row_ids))) for record in records)
            self._bites[bite] = [record for record in kept if record.n_rows]

    def close(self) -> None:
        """Release the memory."""
        self._bites = {}


@dataclass(eq=False)
class SessionBites:
    """The rows of all bites in a session, and the current visit."""

    visit: BiteVisit | None = None
    kept: list[Sequence[TreeDelta]] = field(default_factory=list)
    _stores: dict[str, BiteStore] = field(default_factory=dict)
    #: Bytes read from stores that are closed.
    _closed_bytes_read: int = 0

    def put(self, batch: str, store: BiteStore) -> list[Bite]:
        """Add a batch whose scores include no tree of this fit, and return its rows of the current bite."""
        self._stores[batch] = store
        return [] if self.visit is None else [rows for part in self.visit.bite for rows in store.of(part)]

    def take(self, visit: BiteVisit, first: int, iterations: Iterations) -> bool:
        """Set the current visit; return False if the session lacks iterations before number `first`.

        iterations : iterations of the truncated model from number `first` on.
        """
        if first > len(self.kept):
            return False
        self.kept[first:] = iterations
        self.visit = visit
        return True

    def present(self) -> list[tuple[str, Bite]]:
        """Return batch and rows of each record of the current bite."""
        if self.visit is None:
            return []
        visit = self.visit
        return [(batch, rows) for batch, store in self._stores.items() for part in visit.bite for rows in store.of(part)]

    def keep(self, batch: str, partitions: Sequence[int], stays: SelectRows) -> None:
        """Drop the rows of this batch's other partitions."""
        store = self._stores.get(batch)
        if store is None:
            return
        if partitions:
            store.keep(partitions, stays)
        else:
            self._closed_bytes_read += store.bytes_read
            self._stores.pop(batch).close()

    @property
    def n_rows(self) -> int:
        return sum(store.n_rows for store in self._stores.values())

    @property
    def bytes_read(self) -> int:
        """Bytes read from files so far."""
        return self._closed_bytes_read + sum(store.bytes_read for store in self._stores.values())

    def rows_in_files(self, batch: str) -> int:
        """Return how many rows of a batch are in files."""
        store = self._stores.get(batch)
        return 0 if store is None else store.rows_in_files

    def close(self) -> None:
        """Close all stores."""
        for store in self._stores.values():
            store.close()
        self._stores = {}


class FileBiteStore:
    """Bites in files, which `close` removes.

    Parameters
    ----------
    rows : StartingRows
    spec : BuildSpec
        `n_bites` must be set.
    root : Path or None
        Parent of the files' folder; None for the one of `PrivateDirectory`.
    n_threads : int
    n_shares : int
        Number of ranges of blocks in which a bite is read: one for each shard.
    filling_bytes : int
        See `BiteFiles`.
    """

    def __init__(
        self, rows: StartingRows, spec: BuildSpec, root: Path | None, *, n_threads: int, n_ranges: int, filling_bytes: int
    ) -> None:
        assert spec.n_bites is not None
        self._spec, self._root, self._n_threads, self._n_ranges = spec, root, n_threads, n_ranges
        #: Number of rows of each partition.
        self._owned = rows.owned
        self._bytes_before = 0
        self._folder = PrivateDirectory(root)
        try:
            sizes, n_outputs = self._sizes(), len(spec.baseline)
            self._files = BiteFiles(
                self._folder.path, spec.shard.layout, n_outputs, spec.shard.weighted, sizes, filling_bytes=filling_bytes
            )
            self._files.write(self._pieces(rows))
        except BaseException:
            self._folder.close()
            raise
        self._ranges = {bite: self._block_ranges(bite, 0) for bite in np.flatnonzero(sizes).tolist()}

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
        piece_rows = rows_that_fit(code_fields(spec.shard.layout), self.n_rows)
        for piece in rows.pieces(spec, self._n_threads, piece_rows):
            codes, row_ids = piece.codes, np.arange(piece.first, piece.first + piece.codes.n_rows)
            fields = piece.fields | {"narrow": codes.narrow, "row_ids": row_ids}
            if len(codes.wide):
                fields["wide"] = codes.wide
            yield bites_of(spec.seed, spec.n_bites, row_ids), fields

    def _block_ranges(self, bite: int, n_seen: int) -> list[FileBite]:
        files = self._files
        small = is_small(files.n_rows(bite), len(self._spec.binning.features))
        n = 1 if small else min(self._n_ranges, files.n_blocks(bite))
        return [FileBite(files, bite, n_seen, (k, n)) for k in range(n)]

    @property
    def n_rows(self) -> int:
        return sum(self._owned.values())

    @property
    def rows_in_files(self) -> int:
        return self.n_rows

    @property
    def bytes_read(self) -> int:
        """Bytes read from files so far."""
        return self._bytes_before + self._files.bytes_read

    def of(self, bite: int) -> Sequence[Bite]:
        """Return the ranges of a bite."""
        return self._ranges.get(bite, [])

    def keep(self, partitions: Sequence[int], stays: SelectRows) -> None:
        """Write the rows of these partitions to new files, and remove the old ones."""
        if set(self._owned) <= set(partitions):
            return
        self._owned = {number: n for number, n in self._owned.items() if number in partitions}
        folder, sizes = PrivateDirectory(self._root), self._sizes()
        try:
            files = self._files.some(folder.path, sizes, stays)
        except BaseException:
            folder.close()
            raise
        seen = {bite: ranges[0].n_seen for bite, ranges in self._ranges.items()}
        self._bytes_before = self.bytes_read
        self.close()
        self._folder, self._files = folder, files
        self._ranges = {bite: self._block_ranges(bite, seen[bite]) for bite in np.flatnonzero(sizes).tolist()}

    def close(self) -> None:
        """Remove the files."""
        self._files.close()
        self._folder.close()


class ArcbitesEngine:
    """Train on one bite at a time. `visit` must be called before any other method.

    Parameters
    ----------
    store : BiteStore
        The rows of all bites, or of their parts if several form a bite (`ArcBites.parts`); closed with the engine.
    n_bites, n_together : int
        Number of bites (or parts) in the store, and how many of them a visit trains on together.
    spec : ShardSpec
    loss_terms, policy, n_threads
        As in `FusedEngine`.
    """

    def __init__(
        self,
        store: BiteStore,
        spec: ShardSpec,
        loss_terms: tuple,
        *,
        policy: GrowthPolicy,
        n_bites: int,
        n_together: int,
        n_threads: int,
    ) -> None:
        self._store, self._spec, self._terms, self._policy = store, spec, loss_terms, policy
        self._reported = 0
        sizes = [sum(record.n_rows for record in store.of(bite)) for bite in range(n_bites)]
        largest, n_features = n_together * max(sizes), len(spec.bin_layout.n_bins)
        self.team = team_for(largest, n_features, n_threads)
        self._engine: FusedEngine | None = None

    @property
    def n_rows(self) -> int:
        return self._store.n_rows

    def visit(self, bite: Sequence[int], iterations: Sequence[Sequence[TreeDelta]]) -> None:
        """Switch to the rows of a bite, with scores that include these iterations."""
        self._engine = None
        stored = [record for part in bite for record in self._store.of(part)]
        current = [record.with_current_scores(self._spec.layout, iterations, self._spread) for record in stored]
        joined = joined_bites(current)
        del current
        shard = joined.shard(self._spec, self._spread)
        self._engine = FusedEngine(shard, self._terms, policy=self._policy, team=self.team)

    def _spread(self, work: Callable[[int, int], None], n: int) -> None:
        p = self.team.n_threads
        self.team.run(lambda thread: work(n * thread // p, n * (thread + 1) // p))

    @property
    def _current(self) -> FusedEngine:
        assert self._engine is not None
        return self._engine

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        return self._current.advance(values, terms)

    def map_shards(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        return self._current.map_shards(statistic, *arguments)

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        return self._current.grow(tasks)

    def report(self) -> dict[str, float]:
        """Return the bytes read from files since the last call."""
        before, self._reported = self._reported, self._store.bytes_read
        return {"bytes_read": self._reported - before}

    def close(self) -> None:
        self.team.close()
        self._engine = None
        self._store.close()
