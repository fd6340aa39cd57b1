"""One worker's rows where they are divided into arcbites: those of all bites but the present one are at rest here.

Whose turn it is, is said by the client: the number of the turn, its bite, and the iterations that the model has kept. A turn
that has been taken is not taken again. Rows that come late, because another worker died, are told all of this at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dboost.cluster.recipe import Turn
from dboost.shard.bites import Resting
from dboost.shard.catch_up import ValuedTree

Iterations = Sequence[Sequence[ValuedTree]]


@dataclass(eq=False)
class AtRest:
    """Some rows of one bite; `owned` says which of them are of which partition of which batch."""

    rows: Resting
    batch: str
    owned: np.ndarray  # int64[n_rows]


@dataclass(eq=False)
class RestingBites:
    """The rows of all bites, and whose turn it is."""

    turn: Turn | None = None
    kept: list[Sequence[ValuedTree]] = field(default_factory=list)
    _bites: dict[int, list[AtRest]] = field(default_factory=dict)

    def add(self, batch: str, owned: np.ndarray, rows: Resting, seed: int, n_bites: int) -> list[AtRest]:
        """Take in rows that begin with the scores of no tree. Returns those of the present bite."""
        present = []
        for bite, (places, of_bite) in enumerate(rows.divided(seed, n_bites)):
            if len(places):
                rest = AtRest(of_bite, batch, owned[places])
                self._bites.setdefault(bite, []).append(rest)
                if self.turn is not None and bite == self.turn.bite:
                    present.append(rest)
        return present

    def take(self, turn: Turn, first: int, iterations: Iterations) -> bool:
        """Note whose turn it is; False when iterations before number `first` are not known here.

        iterations : that the model has kept, from number `first` on.
        """
        if first > len(self.kept):
            return False
        self.kept[first:] = iterations
        self.turn = turn
        return True

    def present(self) -> list[AtRest]:
        """The rows of the bite whose turn it is."""
        return [] if self.turn is None else self._bites.get(self.turn.bite, [])

    def keep(self, batch: str, numbers: Sequence[int]) -> None:
        """Let go of the rows of this batch's other partitions."""
        for bite, rests in self._bites.items():
            self._bites[bite] = [one for rest in rests for one in _of(rest, batch, numbers)]

    @property
    def n_rows(self) -> int:
        return sum(rest.rows.n_rows for rests in self._bites.values() for rest in rests)


def _of(rest: AtRest, batch: str, numbers: Sequence[int]) -> Iterator[AtRest]:
    if rest.batch != batch:
        yield rest
        return
    rows = np.flatnonzero(np.isin(rest.owned, np.array(numbers, np.int64)))
    if len(rows) == rest.rows.n_rows:
        yield rest
    elif len(rows):
        yield AtRest(rest.rows.some_rows(rows), batch, rest.owned[rows])
