"""Held-out rows of one worker, and where they stand.

They take in the trees that they are told of, late ones all at once. With arcbites the model is cut back now and then: the
scores return to the last *mark*, which was set when that many trees were in them. Marks and cuts are not calls of their own;
they are told along with the next trees, so that rows which come late, and calls that are repeated, need no special care.

Where memory is limited, what all sets together have of it is an eighth of the limit; rows beyond that are judged from files
(`training.held_out_files`), which say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dboost.cluster.recipe import Recipe
from dboost.cluster.rows import BatchRows
from dboost.engine.team import Team
from dboost.losses import Loss
from dboost.shard.catch_up import ValuedTree
from dboost.statistics.metrics import Size, find_metrics
from dboost.training.budget import Allowance, Budget
from dboost.training.held_out import HeldOut, in_memory
from dboost.training.held_out_files import FiledHeldOut, FiledRows, ToJudge, judged_bytes


@dataclass(eq=False)
class Judged:
    """Held-out rows of a batch, how many trees their scores have taken in, and how often the model was cut back before that.

    owned : partition and number of rows of each run of them.
    """

    held: HeldOut | FiledHeldOut
    batch: str
    owned: list[tuple[int, int]]
    loss: Loss
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

    @property
    def n_rows(self) -> int:
        return sum(n for _, n in self.owned)

    def keep(self, partitions: Sequence[int]) -> None:
        """Let go of the rows of other partitions; some are to stay."""
        stays = np.repeat([number in partitions for number, _ in self.owned], [n for _, n in self.owned])
        if not stays.all():
            self.held = self.held.some(stays)
            self.owned = [(number, n) for number, n in self.owned if number in partitions]

    def mark(self, mark: int) -> None:
        """Remember the scores if they are the ones to be marked."""
        if self.n_trees == mark != self.n_marked:
            self.held.mark()
            self.n_marked = mark


class JudgedSets:
    """The held-out rows of all evaluation sets.

    Parameters
    ----------
    team : Team
    folder : Path
        Where files are made.
    spare : Budget or None
        What the worker may take if nobody says.
    """

    def __init__(self, team: Team, folder: Path, spare: Budget | None) -> None:
        self._team, self._folder, self._spare = team, folder, spare
        self._sets: dict[str, list[Judged]] = {}
        self._allowance: Allowance | None = None

    def add(
        self,
        batch: str,
        rows: BatchRows,
        name: str,
        recipe: Recipe,
        size: Size,
        *,
        with_block: bool = False,
        chosen: tuple[np.ndarray, np.ndarray | None] | None = None,
    ) -> None:
        """Judge the rows of positive weight of a batch as part of a set, or some of them.

        with_block : whether some metric wants to see the values; these rows are in memory, and so are their raw values.
        chosen : (numbers of the rows, their weights or None)
        """
        if with_block:
            rows.gather()
        judged = ToJudge(rows.table, rows.target_of, *(chosen or ()))
        n_rows = judged.sizes()[0]
        if not n_rows:
            return
        loss, budget = recipe.target.loss, recipe.budget or self._spare
        held: HeldOut | FiledHeldOut
        if budget is None or with_block or self._holds(judged_bytes(recipe.layout, n_rows, len(recipe.baseline)), budget):
            seen = in_memory(
                judged,
                recipe.binning,
                recipe.layout,
                loss,
                size,
                with_block=with_block,
                baseline=recipe.baseline,
                origin=recipe.origin,
                n_threads=self._team.n_threads,
            )
            held = HeldOut(name, seen[0], recipe.layout, *seen[1:], self._team)
        else:
            files = FiledRows.write(
                judged,
                recipe.binning,
                recipe.layout,
                baseline=recipe.baseline,
                origin=recipe.origin,
                n_threads=self._team.n_threads,
                room_bytes=budget.retained,
                root=self._folder,
            )
            held = FiledHeldOut(name, files, loss, size, self._team)
        owned = [(number, n) for number, n in zip(rows.table.numbers, judged.counts(), strict=True) if n]
        self._sets.setdefault(name, []).append(Judged(held, batch, owned, loss))

    def keep(self, batch: str, partitions: Sequence[int]) -> None:
        """Let go of the rows of this batch's other partitions: somebody else judges them now."""
        for name, of_set in self._sets.items():
            kept = []
            for judged in of_set:
                if judged.batch == batch and not any(number in partitions for number, _ in judged.owned):
                    judged.held.close()
                    continue
                if judged.batch == batch:
                    judged.keep(partitions)
                kept.append(judged)
            self._sets[name] = kept

    def _holds(self, n_bytes: int, budget: Budget) -> bool:
        if self._allowance is None:
            self._allowance = Allowance(budget.retained)
        return self._allowance.take(n_bytes)

    def judge(
        self, first: int, trees: Sequence[ValuedTree], metrics: dict[str, list[str]], mark: int, n_cuts: int
    ) -> dict[str, tuple[int, list[list[Any]]]] | None:
        """See `Holding.judge`."""
        for name in metrics:
            for judged in self._sets.get(name, ()):
                judged.follow(mark, n_cuts)
        if any(judged.n_trees < first for name in metrics for judged in self._sets.get(name, ())):
            return None
        found: dict[str, tuple[int, list[list[Any]]]] = {}
        for name, names in metrics.items():
            n_rows, chunks = 0, []
            for judged in self._sets.get(name, ()):
                for tree in trees[judged.n_trees - first :]:
                    judged.held.add(tree.grown, tree.values, tree.output)
                    judged.n_trees += 1
                    judged.mark(mark)
                n_rows += judged.n_rows
                chunks.append(judged.held.chunks(find_metrics(names, judged.loss)))
            found[name] = n_rows, chunks
        return found

    def in_files(self, batch: str) -> int:
        """How many rows of a batch are judged from files."""
        every = (judged for of_set in self._sets.values() for judged in of_set)
        return sum(one.n_rows for one in every if one.batch == batch and isinstance(one.held, FiledHeldOut))

    def close(self) -> None:
        """Let go of rows and files."""
        for of_set in self._sets.values():
            for judged in of_set:
                judged.held.close()
        self._sets = {}
