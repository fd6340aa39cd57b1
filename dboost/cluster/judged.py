"""Held-out rows of one worker, and where they stand.

They take in the trees that they are told of, late ones all at once. With arcbites the model is cut back now and then: the
scores return to the last *mark*, which was set when that many trees were in them. Marks and cuts are not calls of their own;
they are told along with the next trees, so that rows which come late, and calls that are repeated, need no special care.
"""

from __future__ import annotations

from dataclasses import dataclass

from dboost.statistics.metrics import Rows
from dboost.training.held_out import HeldOut


@dataclass(eq=False)
class Judged:
    """Held-out rows, how many trees their scores have taken in, and how often the model was cut back before that."""

    held: HeldOut
    rows: Rows
    n_trees: int = 0
    n_marked: int = -1
    n_cuts: int = -1

    def follow(self, mark: int, n_cuts: int) -> None:
        """Go back to the last mark if the model was cut back to it."""
        if self.n_trees > mark and 0 <= self.n_cuts < n_cuts:
            assert self.n_marked == mark, "every cut goes back to a mark that was passed"
            self.held.rewind()
            self.n_trees = mark
        self.n_cuts = n_cuts
        self.mark(mark)

    def mark(self, mark: int) -> None:
        """Remember the scores if they are the ones to be marked."""
        if self.n_trees == mark != self.n_marked:
            self.held.mark()
            self.n_marked = mark
