"""Held-out rows of one worker, and where they stand.

They take in the trees that they are told of, late ones all at once. With arcbites the model is cut back now and then: the
scores return to the last *mark*, which was set when that many trees were in them. Marks and cuts are not calls of their own;
they are told along with the next trees, so that rows which come late, and calls that are repeated, need no special care.

Where memory is limited, what all sets together have of it is an eighth of the limit; rows beyond that are judged from files
(`session.evaluation`), which say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dboost.losses import Loss
from dboost.metrics.metric import LossMagnitude, find_metrics
from dboost.session.batch_rows import BatchRows
from dboost.session.build_spec import BuildSpec
from dboost.session.evaluation import EvalRows, EvalSetBuilder, InMemoryEvalSet, StreamedEvalSet
from dboost.session.memory_budget import Budget
from dboost.session.thread_team import Team
from dboost.shards.apply_trees import TreeDelta


@dataclass(eq=False)
class WorkerEvalSet:
    """Held-out rows of a batch, how many trees their scores have taken in, and how often the model was cut back before that.

    owned : partition and number of rows of each run of them.
    """

    held: InMemoryEvalSet | StreamedEvalSet
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
            self.held.rollback()
            self.n_trees = mark
        self.n_cuts = n_cuts
        self.save_state(mark)

    @property
    def n_rows(self) -> int:
        return sum(n for _, n in self.owned)

    def keep(self, partitions: Sequence[int]) -> None:
        """Let go of the rows of other partitions; some are to stay."""
        stays = np.repeat([number in partitions for number, _ in self.owned], [n for _, n in self.owned])
        if not stays.all():
            self.held = self.held.some(stays)
            self.owned = [(number, n) for number, n in self.owned if number in partitions]

    def save_state(self, mark: int) -> None:
        """Remember the scores if they are the ones to be marked."""
        if self.n_trees == mark != self.n_marked:
            self.held.save_state()
            self.n_marked = mark


class WorkerEvalSets:
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
        self._builder, self._spare = EvalSetBuilder(team, folder), spare
        self._sets: dict[str, list[WorkerEvalSet]] = {}

    def add(
        self,
        batch: str,
        rows: BatchRows,
        name: str,
        spec: BuildSpec,
        size: LossMagnitude,
        *,
        with_block: bool = False,
        chosen: tuple[np.ndarray, np.ndarray | None] | None = None,
    ) -> None:
        """Judge the rows of positive weight of a batch as part of a set, or some of them.

        with_block : whether some metric wants to see the values; these rows are in memory, and so are their raw values.
        chosen : (numbers of the rows, their weights or None)
        """
        judged = EvalRows(rows.table, rows.target_of, *(chosen or ()))
        if not judged.sizes()[0]:
            return
        if with_block:
            rows.gather()
        held = self._builder.from_rows(name, judged, spec, spec.budget or self._spare, size=size, with_block=with_block)
        loss = spec.target.loss
        owned = [(number, n) for number, n in zip(rows.table.numbers, judged.counts(), strict=True) if n]
        self._sets.setdefault(name, []).append(WorkerEvalSet(held, batch, owned, loss))

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

    def judge(
        self, first: int, trees: Sequence[TreeDelta], metrics: dict[str, list[str]], mark: int, n_cuts: int
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
                    judged.save_state(mark)
                n_rows += judged.n_rows
                chunks.append(judged.held.chunks(find_metrics(names, judged.loss)))
            found[name] = n_rows, chunks
        return found

    def in_files(self, batch: str) -> int:
        """How many rows of a batch are judged from files."""
        every = (judged for of_set in self._sets.values() for judged in of_set)
        return sum(one.n_rows for one in every if one.batch == batch and isinstance(one.held, StreamedEvalSet))

    def close(self) -> None:
        """Let go of rows and files."""
        for of_set in self._sets.values():
            for judged in of_set:
                judged.held.close()
        self._sets = {}
