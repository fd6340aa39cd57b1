"""Arcbites in a session: the rows of all bites, and the current visit.

A `BiteStore` has the rows of one batch, divided into bites (`session.arcbite_rows`): in memory, or in files in the worker's
local directory if they exceed the memory limit. It reads the table once, piece by piece, and appends each row to the section of
its bite. Which bite a row belongs to is a hash of its global id. So the rows of a partition that moves to another worker are
found without an index.

`SessionBites` has the stores of all batches and the current visit. The client sends the visit's number, its bite, and the
iterations of the truncated model. A repeated call for the same visit changes nothing. Rows that are loaded later, because
another worker died, receive the same record when they are built: their scores are updated at the next visit of each bite, or at
once for the current bite.

A session that has all rows of a fit trains on one shard per visit, with all of its threads. A visit first drops the shard and
the buffers of the previous visit and then builds those of its own bite. So a session needs memory for the store and for one
bite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dboost.rows.row_store import InFiles, RowRange, RowStore
from dboost.rows.shard_spec import code_fields, rows_that_fit
from dboost.session.arcbite_rows import (
    Bite,
    bite_fields,
    bite_sizes,
    block_rows_of,
    sections_of,
)
from dboost.session.fit_records import BiteVisit, BuildSpec
from dboost.session.memory import Budget
from dboost.session.table_rows import BatchRows, StartingPiece
from dboost.trees.fit_trees import FitTree

#: Number of rows that are encoded at a time, for bites in memory.
_PIECE_ROWS = 65_536
Iterations = Sequence[Sequence[FitTree]]


class BiteStore:
    """The rows of a batch, divided into bites. With `ArcBites.parts` > 1 a visit trains on several of them together.

    Parameters
    ----------
    rows : BatchRows
    spec : BuildSpec
        `n_bites` must be set.
    budget : Budget or None
        Memory limit that the rows exceed, so that they are in files; None for memory.
    n_threads : int
    root : Path, optional
        Parent of the files' folder; default: the one of `PrivateDirectory`.
    """

    def __init__(
        self,
        rows: BatchRows,
        spec: BuildSpec,
        budget: Budget | None,
        *,
        n_threads: int,
        root: Path | None = None,
    ) -> None:
        assert spec.n_bites is not None
        self._spec, self._n_bites = spec, spec.n_bites
        self._numbers = rows.numbers
        #: Number of rows of each partition.
        self._owned = rows.owned
        self._bytes_before = 0
        #: Number of rows of each partition in each section.
        self._counts = {number: self._sections_of(rows, number) for number in self._owned}
        groups, sizes = bite_fields(spec.shard), self._sizes()
        place, piece_rows = None, _PIECE_ROWS
        if budget is not None:
            place = InFiles(block_rows_of(groups, len(sizes), budget.limit // 4), root)
            piece_rows = rows_that_fit(code_fields(spec.shard.layout), self.n_rows)
        self._store = RowStore(groups, sizes, place)
        try:
            for piece in rows.pieces(spec, n_threads, min(piece_rows, max(self.n_rows, 1))):
                self._append(piece)
        except BaseException:
            self._store.close()
            raise
        self._bites = [Bite(self._store, section) for section in range(len(sizes))]

    def _append(self, piece: StartingPiece) -> None:
        """Add each row to the section of its bite."""
        row_ids = np.arange(piece.first, piece.first + piece.codes.n_rows)
        fields = piece.fields | {"narrow": piece.codes.narrow, "wide": piece.codes.wide, "row_ids": row_ids}
        sections = sections_of(self._spec.seed, self._n_bites, row_ids, piece.fields.get("draw_id"))
        counts = np.bincount(sections, minlength=len(self._store.sizes))
        if len(counts) <= 2**16:
            sections = sections.astype(np.uint16)  # sorted ten times as fast
        order = np.argsort(sections, kind="stable")
        ends = np.cumsum(counts)
        for section in np.flatnonzero(counts).tolist():
            n, end = int(counts[section]), int(ends[section])
            self._store.append(n, fields, order[end - n : end], section)

    def _sections_of(self, rows: BatchRows, number: int) -> np.ndarray:
        """Return the number of rows of a partition in each section."""
        spec, n, start = self._spec, self._owned[number], self._numbers.start(number)
        if not spec.shard.grouped:
            return bite_sizes(spec.seed, self._n_bites, n, start)
        row_ids, draw_ids = np.arange(start, start + n), rows.draw_ids(number, start)
        sections = sections_of(spec.seed, self._n_bites, row_ids, draw_ids)
        return np.bincount(sections, minlength=self._n_bites)

    def _sizes(self) -> list[int]:
        """Return the number of rows of each section."""
        none = np.zeros(self._n_bites, np.int64)
        return sum((self._counts[number] for number in self._owned), none).tolist()

    @property
    def n_rows(self) -> int:
        return sum(self._owned.values())

    @property
    def most_rows(self) -> int:
        """Number of rows of the largest stored bite."""
        return max(sum(bite.n_rows for bite in self.of(number)) for number in range(self._n_bites))

    @property
    def rows_in_files(self) -> int:
        return 0 if self._store.place is None else self.n_rows

    @property
    def bytes_read(self) -> int:
        """Bytes read from files so far."""
        return self._bytes_before + self._store.bytes_read

    def of(self, bite: int) -> list[Bite]:
        """Return the rows of a bite, one record for each shard that is built from them."""
        return [bite_rows for bite_rows in self._bites[bite : bite + 1] if bite_rows.n_rows]

    def keep_only(self, partitions: Sequence[int]) -> None:
        """Drop the rows of other partitions."""
        if set(self._owned) <= set(partitions):
            return
        self._owned = {number: n for number, n in self._owned.items() if number in partitions}
        before = self._store
        self._store = before.subset(self._sizes(), self._are_of(partitions))
        self._bytes_before += before.bytes_read
        before.close()
        self._bites = [replace(bite, store=self._store) for bite in self._bites]

    def _are_of(self, partitions: Sequence[int]) -> Callable[[RowRange], np.ndarray]:
        return lambda some: self._numbers.are_of(some.fields["row_ids"][some.first : some.last], partitions)

    def close(self) -> None:
        """Release the memory, and remove the files."""
        self._store.close()


@dataclass(eq=False)
class SessionBites:
    """The rows of all bites in a session, and the current visit."""

    visit: BiteVisit | None = None
    kept: list[Sequence[FitTree]] = field(default_factory=list)
    _stores: dict[str, BiteStore] = field(default_factory=dict)
    #: Bytes read from stores that are closed.
    _closed_bytes_read: int = 0

    def put(self, batch: str, store: BiteStore) -> dict[str, list[Bite]]:
        """Add a batch whose scores include no tree of this fit, and return its rows of the current bite, by batch."""
        self._stores[batch] = store
        return {name: bites for name, bites in self.present().items() if name == batch}

    def take(self, visit: BiteVisit, first: int, iterations: Iterations) -> bool:
        """Set the current visit; return False if the session lacks iterations before number `first`.

        iterations : iterations of the truncated model from number `first` on.
        """
        if first > len(self.kept):
            return False
        self.kept[first:] = iterations
        self.visit = visit
        return True

    def present(self) -> dict[str, list[Bite]]:
        """Return the records of the current bite by batch."""
        if self.visit is None:
            return {}
        parts = self.visit.bite
        return {batch: [bite_rows for part in parts for bite_rows in store.of(part)] for batch, store in self._stores.items()}

    def keep_only(self, batch: str, partitions: Sequence[int]) -> None:
        """Drop the rows of this batch's other partitions."""
        store = self._stores.get(batch)
        if store is None:
            return
        if partitions:
            store.keep_only(partitions)
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
