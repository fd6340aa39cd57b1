"""One worker's rows where they are divided into arcbites: those of all bites but the present one are at rest here.

Whose turn it is, is said by the client: the number of the turn, its bite, and the iterations that the model has kept. A turn
that has been taken is not taken again. Rows that come late, because another worker died, are told all of this at once.

A batch's bites are in memory, or where a limit says so in files (`bitten.py`). Which partition a row is of follows from its
number, so rows that another worker takes over are found without a record of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dboost.cluster.recipe import Turn
from dboost.shard.bites import Bite, Resting
from dboost.shard.catch_up import ValuedTree

Iterations = Sequence[Sequence[ValuedTree]]
#: Tells of rows, by their global numbers (int64[n]), which are to stay (bool[n]).
Stays = Callable[[np.ndarray], np.ndarray]


class Store(Protocol):
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

    def keep(self, partitions: Sequence[int], stays: Stays) -> None:
        """Let go of the rows of other partitions."""

    def close(self) -> None: ...


class InMemory:
    """The bites of rows in memory."""

    def __init__(self) -> None:
        self._bites: dict[int, list[Resting]] = {}
        self.rows_in_files = self.bytes_read = 0

    def add(self, rows: Resting, seed: int, n_bites: int) -> None:
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

    def keep(self, partitions: Sequence[int], stays: Stays) -> None:
        """Let go of the rows that are not to stay."""
        for bite, parts in self._bites.items():
            kept = (part.some_rows(np.flatnonzero(stays(part.numbers))) for part in parts)
            self._bites[bite] = [part for part in kept if part.n_rows]

    def close(self) -> None:
        """Nothing but memory to let go of."""
        self._bites = {}


@dataclass(eq=False)
class RestingBites:
    """The rows of all bites, and whose turn it is."""

    turn: Turn | None = None
    kept: list[Sequence[ValuedTree]] = field(default_factory=list)
    _stores: dict[str, Store] = field(default_factory=dict)
    #: What was read of bites that are no more.
    _bytes_of_gone: int = 0

    def put(self, batch: str, store: Store) -> list[Bite]:
        """Take in a batch, whose scores are those of no tree. Returns its rows of the present bite."""
        self._stores[batch] = store
        return [] if self.turn is None else [rows for part in self.turn.bite for rows in store.of(part)]

    def take(self, turn: Turn, first: int, iterations: Iterations) -> bool:
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

    def keep(self, batch: str, partitions: Sequence[int], stays: Stays) -> None:
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
