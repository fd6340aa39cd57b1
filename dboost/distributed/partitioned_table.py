"""A table on the cluster: which worker has read which partitions, and how far they have come.

The partitions that one worker reads in one go are a *share*. All shares go through the same stages: read, surveyed, settled
(levels have their final codes), the target encoded, built (into shards or held-out rows). When workers are lost, their
partitions are read again elsewhere, and the new shares are brought to the stage of the others; so `ask` can be used as if
nothing ever happened. Only the number of attempts without progress is bounded (`attempts.py`).

A partition that is read again must be what it was: its number of rows and a fingerprint of its values are kept, and a source
that gives other rows the second time ends the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from dboost.config import imbalance
from dboost.data.read_plan import ReadPlan
from dboost.data.row_metadata import MetadataRows
from dboost.distributed.connection import Connection
from dboost.distributed.messages import LostWorkers
from dboost.distributed.read_tasks import ReadTasks, Receipt, rows_alone
from dboost.distributed.rebalance import plan_moves
from dboost.errors import DataError
from dboost.schema import Feature
from dboost.session.partition_loader import PartitionStats
from dboost.session.protocol import Session, SessionRef
from dboost.session.target import Target
from dboost.session.transport import ByPartitions

P = ParamSpec("P")
Result = TypeVar("Result")


@dataclass(eq=False)
class WorkerPartitions:
    """Partitions of one batch in one worker's session."""

    batch: str
    ref: SessionRef
    numbers: tuple[int, ...]
    survey: PartitionStats | None = None
    stage: int = 0


@dataclass(eq=False)
class PartitionedTable:
    """One table of a fit.

    Attributes
    ----------
    shares : list of Share
    lengths : {partition: number of rows}
    stages : list of functions
        What was done to all shares so far, and has to be done to new ones.
    fingerprints : {partition: int}
    """

    connection: Connection
    name: str
    source: ReadTasks
    shares: list[WorkerPartitions] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)
    stages: list[Callable[[list[WorkerPartitions]], object]] = field(default_factory=list)
    fingerprints: dict[int, int] = field(default_factory=dict)
    _chosen: dict[int, int] | None = None
    _known: tuple[Feature, ...] | None = None
    _n_batches: int = 0
    #: The furthest that loading has come: partitions times stages.
    _best: int = 0

    # Stages.

    def load(self) -> None:
        """Read and survey all partitions."""
        if self.source.whole:
            self.stages.append(self._attach)
        self._stage(self._survey)

    def set_features(self, features: tuple[Feature, ...]) -> None:
        """Give levels their final codes."""
        self._known = features
        self._stage(lambda shares: self._tell(shares, Session.set_features, features, self.source.named))

    def encode_target(self, target: Target) -> None:
        """Work out the target's values in the terms of the training target."""
        self._stage(lambda shares: self._tell(shares, Session.encode_target, target))

    def apply(self, method: Callable[..., None], arguments: ByPartitions) -> None:
        """Call a method in all sessions now, and in those that read partitions again later."""
        self._stage(lambda shares: self._answers(shares, method, arguments))

    def take_in(self, n_kept: dict[int, int]) -> None:
        """Note how many rows of each partition are trained on, now that it is said what they are for."""
        self._chosen = n_kept

    def build(self, method: Callable[..., None], arguments: Callable[[], tuple[Any, ...]]) -> None:
        """Turn rows into what they are needed for. arguments : asked for anew for shares that come later."""
        self._stage(lambda shares: self._tell(shares, method, *arguments()))

    # What is known.

    @property
    def sessions(self) -> list[SessionRef]:
        """Sessions that hold partitions with rows."""
        return sorted({share.ref for share in self.shares if any(self.lengths[i] for i in share.numbers)})

    @property
    def surveys(self) -> list[PartitionStats]:
        """What all shares say of themselves, in the order of their first partitions."""
        return [share.survey for share in sorted(self.shares, key=lambda s: s.numbers) if share.survey is not None]

    @property
    def n_kept(self) -> dict[int, int]:
        """Rows of positive weight of each partition, in order."""
        if self._chosen is not None:
            return self._chosen
        found = {i: n for survey in self.surveys for i, n in survey.n_kept.items()}
        return dict(sorted(found.items()))

    def rows_of_sessions(self) -> dict[SessionRef, int]:
        """How many rows of positive weight each session has."""
        kept, found = self.n_kept, dict[SessionRef, int]()
        for share in self.shares:
            found[share.ref] = found.get(share.ref, 0) + sum(kept[i] for i in share.numbers)
        return found

    def where(self, row: int) -> str:
        """Where a row of the whole table is, for messages."""
        numbers = sorted(self.lengths)
        return MetadataRows(tuple(self.lengths[i] for i in numbers), True).name(row)

    def ask(self, method: Callable[Concatenate[Session, str, P], Result], *arguments: P.args, **none: P.kwargs) -> list[Result]:
        """The results of a method in all sessions, in no particular order."""
        return self.ask_each(method, lambda numbers: arguments)

    def ask_each(self, method: Callable[..., Result], arguments: ByPartitions) -> list[Result]:
        """The same, with arguments that depend on a session's partitions."""
        while True:
            self.repair()
            try:
                return [answer for _, answer in self._answers(self.shares, method, arguments)]
            except LostWorkers as lost:
                self.connection.attempts.note(method.__name__, lost)
                self.forget(lost.sessions)

    # Loss and repair.

    def forget(self, refs: Iterable[SessionRef]) -> None:
        """These sessions are lost, and with them their shares."""
        gone = set(refs)
        self.shares = [share for share in self.shares if share.ref not in gone]

    def repair(self) -> bool:
        """Read the partitions that nobody has, and bring all shares to the same stage. Returns whether there was anything."""
        repaired = False
        while True:
            held = {i for share in self.shares for i in share.numbers}
            missing = [i for i in range(self.source.n_parts) if i not in held]
            late = [share for share in self.shares if share.stage < len(self.stages)]
            if not missing and not late:
                return repaired
            repaired = True
            try:
                if missing:
                    late += self._read(missing)
                self._bring(late)
            except LostWorkers as lost:
                self.forget(lost.sessions)
                came = sum(len(share.numbers) * (1 + share.stage) for share in self.shares)
                if came > self._best:
                    self._best = came
                    self.connection.attempts.reset(f"more partitions of the {self.name} than before were ready")
                self.connection.attempts.note(f"loading the {self.name}", lost)

    def reassign(self, shares: list[WorkerPartitions]) -> None:
        """Let new shares have the partitions that others hold; those let go of them.

        When workers are lost meanwhile, the new shares come to nothing, or the lost ones' partitions are missing for a while;
        no row is ever held twice.
        """
        try:
            self._bring(shares)
        except LostWorkers as lost:
            self.forget(lost.sessions)
            self._keep([share for share in shares if share.ref not in lost.sessions], set())
            return
        moved = {i for share in shares for i in share.numbers}
        givers = [share for share in self.shares if moved & set(share.numbers)]
        self.shares += shares
        for giver in givers:
            self._keep([giver], set(giver.numbers) - moved)
        self.shares = [share for share in self.shares if share.numbers]

    def _keep(self, givers: list[WorkerPartitions], numbers: set[int]) -> None:
        """Have shares let go of all their partitions but these."""
        for share in givers:
            share.numbers = tuple(sorted(numbers))
            try:
                self._answers([share], Session.keep, lambda numbers: (numbers,))
            except LostWorkers as lost:  # with all their rows, and that is as good
                self.forget(lost.sessions)

    def _stage(self, work: Callable[[list[WorkerPartitions]], object]) -> None:
        self.stages.append(work)
        self.repair()

    def _bring(self, late: list[WorkerPartitions]) -> None:
        for number, stage in enumerate(self.stages):
            due = [share for share in late if share.stage == number]
            if due:
                stage(due)
                for share in due:
                    share.stage = number + 1

    def _read(self, numbers: list[int]) -> list[WorkerPartitions]:
        batch = self.new_batch()
        receipts = self.source.read(self.connection, batch, numbers, self.plan())
        self.check_again(receipts)
        self.lengths |= {receipt.number: receipt.n_rows for receipt in receipts}
        by_session: dict[SessionRef, list[int]] = {}
        for i, ref in self._balanced(batch, {receipt.number: receipt.ref for receipt in receipts}).items():
            by_session.setdefault(ref, []).append(i)
        shares = [WorkerPartitions(batch, ref, tuple(sorted(mine))) for ref, mine in by_session.items()]
        self.shares += shares
        return shares

    def check_again(self, receipts: Iterable[Receipt]) -> None:
        """Refuse partitions that have another number of rows than when they were read before."""
        for receipt in receipts:
            before = self.lengths.get(receipt.number, receipt.n_rows)
            if receipt.n_rows != before:
                raise self._changed(receipt.number, f"{receipt.n_rows} rows where it had {before}")

    def _changed(self, i: int, what: str) -> DataError:
        return DataError(
            f"partition {i} of the {self.name} was read again because workers have left or joined, and gave {what}: a source "
            "must give the same rows every time (no sample without a seed, no query without an order, no files that change)"
        )

    def _balanced(self, batch: str, owners: dict[int, SessionRef]) -> dict[int, SessionRef]:
        """Who has which partition of a batch that was just read, after some have been moved to even the workers out."""
        held: dict[str, int] = {}
        for share in self.shares:
            held[share.ref.worker] = held.get(share.ref.worker, 0) + sum(self.lengths[i] for i in share.numbers)
        usable = set(self.connection.usable()[0])
        threads = {worker: n for worker, n in self.connection.client.nthreads().items() if worker in usable}
        addresses = {i: ref.worker for i, ref in owners.items()}
        moves = plan_moves(addresses, self.lengths, threads, held, imbalance(self.source.is_persisted)) if threads else {}
        calls: dict[str, list[tuple[int, SessionRef]]] = {}
        for i, taker in moves.items():
            calls.setdefault(taker, []).append((i, owners[i]))
        if not calls:
            return owners
        try:
            takers = self.connection.move(batch, self.source.packed(self.plan()), calls)
        except LostWorkers:  # in the middle of it: the whole batch is read again, under another name
            self.connection.sweep()  # one that was silent must not be given the same partitions again
            self.connection.discard(batch)
            raise
        sessions = {ref.worker: ref for ref in takers}
        return owners | {i: sessions[taker] for i, taker in moves.items()}

    def new_batch(self) -> str:
        """A name that no other batch of this fit has."""
        self._n_batches += 1
        return f"{self.name}/{self._n_batches}"

    def plan(self) -> ReadPlan:
        """How to read: as the user says, or with the levels that are known by now."""
        return (
            self.source.plan if self._known is None else replace(self.source.plan, known=self._known, extend_categories=False)
        )

    def _attach(self, shares: list[WorkerPartitions]) -> None:
        """Send target, weight and offset that the user gave for all rows at once."""
        numbers = sorted(self.lengths)
        ends = np.cumsum([self.lengths[i] for i in numbers])
        for role, values in self.source.whole.items():
            n = len(values)
            if n != ends[-1]:
                raise DataError(f"{role} has {n} rows, the data have {ends[-1]}")
            slices = {i: slice(int(end) - self.lengths[i], int(end)) for i, end in zip(numbers, ends, strict=True)}

            def parts(numbers: Sequence[int], values: Any = values, slices: dict[int, slice] = slices, role: str = role) -> Any:
                filled = [i for i in numbers if self.lengths[i]]
                found = values.iloc if hasattr(values, "iloc") else values
                return role, {i: rows_alone(found[slices[i]]) for i in filled}

            self._answers(shares, Session.attach, parts)

    def _survey(self, shares: list[WorkerPartitions]) -> None:
        for share, survey in self._answers(shares, Session.survey, lambda numbers: (numbers,)):
            share.survey = survey
            for i, fingerprint in survey.fingerprints.items():
                if self.fingerprints.setdefault(i, fingerprint) != fingerprint:
                    raise self._changed(i, "other values")

    def _tell(self, shares: list[WorkerPartitions], method: Callable[..., None], *arguments: Any) -> None:
        self._answers(shares, method, lambda numbers: arguments)

    def _answers(
        self, shares: list[WorkerPartitions], method: Callable[..., Any], arguments: ByPartitions
    ) -> list[tuple[WorkerPartitions, Any]]:
        """One call per batch, because a session may hold shares of several."""
        found = []
        for batch in sorted({share.batch for share in shares}):
            of_session = {share.ref: share for share in shares if share.batch == batch}
            calls = {ref: (batch, *arguments(share.numbers)) for ref, share in of_session.items()}
            answers = self.connection.ask_each(calls, method)
            found += [(of_session[ref], answer) for ref, answer in answers.items()]
        return found
