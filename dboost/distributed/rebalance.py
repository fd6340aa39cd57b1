"""Rebalancing: moves of partitions so that workers hold rows in proportion to their threads.

**After loading** (`plan_moves`). Dask runs read tasks on workers with a free thread, or with the data. That balances the time
of reading, but often not the rows: with a few partitions per thread one worker easily has 1.5 times the rows of the others, and
every tree waits for it. Rows measure the load, because they have the same size in all partitions of a table.

The *fair load* of a worker is the number of rows times its fraction of all threads. No partition is moved while the fullest
worker has at most `dboost.imbalance` (default 1.2) times its fair load; for persisted collections, whose location is the user's
choice, at most `dboost.imbalance-persisted` (default 1.5) times. Otherwise each step moves a partition from the fullest to the
emptiest worker, the one that makes their loads most similar, until the fullest has at most 1.05 times its fair load or no move
reduces its load. A partition is never divided.

**Small tables** (`is_for_one_worker`) get a single worker, which grows whole trees, because the rounds of messages would take
longer than the work that they divide. A round takes the same time on any number of workers; what they save grows with their
number. Per value, a worker takes 1.2 times as long in rounds as for whole trees. With several classes an iteration has as many
times the work, but a round longer messages and more to search. So a smaller table may be worth more workers; the number of
classes is known only after loading, and the others then get rows as workers that join.

Fits that run at the same time, such as the folds of a cross-validation, share the workers. If there are as many fits as
workers, each grows its trees on one of them: no worker is idle, and there are no rounds. Then only the memory limits the size
of the table.

**During training** (`JoinedWorkers`). Workers that joined, and workers without rows after loading, receive partitions, which
they read from the source while training continues. Between two trees the new shards apply the trees grown so far, and the
previous owners drop these rows. The model does not depend on the location of rows.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dboost.config import liveness_timeout, single_worker_values
from dboost.distributed.read_tasks import Receipt
from dboost.errors import DBoostError
from dboost.session.protocol import SessionRef

if TYPE_CHECKING:
    from dboost.distributed.connection import Connection
    from dboost.distributed.partitioned_table import PartitionedTable


#: Multiple of the fair load of the fullest worker at which moves end.
_GOAL = 1.05


def plan_moves(
    owners: Mapping[int, str], rows: Mapping[int, int], threads: Mapping[str, int], held: Mapping[str, int], limit: float
) -> dict[int, str]:
    """Return the new owners of the partitions to move.

    Parameters
    ----------
    owners : {partition: worker}
        The partitions that may be moved.
    rows : {partition: number of rows}
    threads : {worker: number of threads}
        Of all workers, including those without rows.
    held : {worker: number of rows}
        Further rows of workers, which are not moved.
    limit : float
        See `config.imbalance`.

    Returns
    -------
    {partition: worker}
    """
    loads = {worker: held.get(worker, 0) for worker in threads}
    sizes: dict[str, list[tuple[int, int]]] = {worker: [] for worker in threads}
    for i, worker in owners.items():
        if worker not in threads:  # the worker is leaving
            continue
        loads[worker] += rows[i]
        insort(sizes[worker], (rows[i], i))
    total = sum(loads.values())
    if not total:
        return {}
    fair = {worker: total * n / sum(threads.values()) for worker, n in threads.items()}

    def fullness(worker: str) -> tuple[float, str]:
        return loads[worker] / fair[worker], worker

    moves: dict[int, str] = {}
    if max(map(fullness, threads))[0] <= limit:
        return moves
    while True:
        (most, giver), (least, taker) = max(map(fullness, threads)), min(map(fullness, threads))
        if most <= _GOAL:
            return moves
        even = (most - least) / (1 / fair[giver] + 1 / fair[taker])
        candidates = sizes[giver]
        k = bisect_left(candidates, (round(even), -1))
        nearest = [candidates[j] for j in (k - 1, k) if 0 <= j < len(candidates)]
        nearest = [one for one in nearest if one[0] and (loads[taker] + one[0]) / fair[taker] < most]
        if not nearest:
            return moves
        size, i = min(nearest, key=lambda one: abs(one[0] - even))
        candidates.remove((size, i))
        insort(sizes[taker], (size, i))
        loads[giver] -= size
        loads[taker] += size
        moves[i] = taker
        if owners[i] == taker:
            del moves[i]


#: Time for a value in rounds, in times of that for whole trees.
_ROUNDS_COST = 1.2
#: Bytes that a value of a table may take while it is loaded: as float64, as a copy, and as code.
_VALUE_BYTES = 24


def is_for_one_worker(n_values: int, n_trees: int, n_threads: int, n_workers: int, n_at_once: int = 1) -> bool:
    """Return whether a worker alone trains on a table as fast as all workers together do in rounds.

    n_values : rows times features; n_trees : of an iteration; n_threads : of the worker; n_at_once : number of fits that run at
    the same time.
    """
    # Fraction of the time that a fit's part of the workers saves, apart from the rounds.
    saved = max(1.0 - _ROUNDS_COST * n_at_once / n_workers, 0.0)
    # The rounds of one tree take as long as `single_worker_values` of work; half of this time grows with the number of trees.
    most = single_worker_values() * n_threads * (n_trees + 1) / 2
    return n_values > 0 and most > 0 and n_values * n_trees * saved <= most


def is_held(n_values: int, memory_limit: int) -> bool:
    """Return whether a worker can load a table. n_values : rows times features; memory_limit : its bytes, 0 for no limit."""
    return memory_limit == 0 or n_values * _VALUE_BYTES <= memory_limit // 2


_log = logging.getLogger("dboost")


class JoinedWorkers:
    """Moves partitions to workers that joined during training.

    Parameters
    ----------
    connection : Connection
    table : PartitionedTable
        The training data, as shards.
    """

    def __init__(self, connection: Connection, table: PartitionedTable) -> None:
        self._connection = connection
        self._table = table
        with_rows = {ref.worker for ref in table.sessions}
        #: Address and identity of known workers; those without rows after loading are treated as workers that join.
        self._known_workers = {(address, identity) for address, identity in connection.roster if address in with_rows}
        #: Workers that did not answer, and when to ask them again (`time.monotonic`).
        self._ask_again: dict[tuple[str, str], float] = {}
        self._reader: threading.Thread | None = None
        self._receipts: list[Receipt] = []

    def update(self) -> None:
        """Start to move partitions, or complete the moves of those that have been read; called between two trees."""
        if self._reader is not None:
            if self._reader.is_alive():
                return
            self._reader = None
            self._reassign(self._receipts)
            return
        now, table = time.monotonic(), self._table
        joined = {
            worker
            for worker in self._connection.roster
            if worker not in self._known_workers and self._ask_again.get(worker, now) <= now
        }
        self._known_workers |= joined
        with_rows = {ref.worker for ref in table.sessions}  # a restarted worker may have received rows already
        joined = {worker for worker in joined if worker[0] not in with_rows}
        # Arrays that the user gave for all rows would have to be sent again with every move.
        if joined and not table.source.whole and not table.has_single_worker:
            owned = [(i, entry.ref.worker) for entry in table.worker_partitions for i in entry.numbers]
            self._receipts, self._batch = [], table.new_batch()
            self._reader = threading.Thread(target=self._read, args=(joined, owned), daemon=True)
            self._reader.start()

    def _read(self, joined: set[tuple[str, str]], owned: list[tuple[int, str]]) -> None:
        """Read partitions on new workers, in a thread. After an error the rows stay with their owners.

        owned : partitions and their owners.
        """
        try:
            new = self._usable(joined)
            numbers = self._choose_partitions(new, owned)
            if numbers:
                receipts = self._table.source.read(self._connection, self._batch, numbers, self._table.plan(), new)
                self._table.check_again(receipts)
                self._receipts = receipts
        except Exception as error:
            self._give_up(error)

    def _usable(self, joined: set[tuple[str, str]]) -> list[str]:
        """Return the addresses of usable ones of these workers; log a warning for unusable ones.

        A worker that does not answer, because it is still starting or is stopped, will be asked again.
        """
        usable, others = self._connection.usable()
        for worker in sorted(joined):
            address = worker[0]
            if others.get(address):
                _log.warning("%s; the fit goes on without it", others[address])
            elif address not in usable and address not in others:
                self._ask_again[worker] = time.monotonic() + liveness_timeout()
                self._known_workers.discard(worker)
        return sorted({address for address, _ in joined} & set(usable))

    def _choose_partitions(self, new: list[str], owned: list[tuple[int, str]]) -> list[int]:
        """Choose partitions for the new workers, about their mean number of rows, large partitions first.

        No worker is reduced to less than half of the mean.
        """
        rows: dict[str, int] = {}
        for i, owner in owned:
            rows[owner] = rows.get(owner, 0) + self._table.lengths[i]
        even = sum(rows.values()) / (len(rows) + len(new)) if new else 0.0
        capacity = even * len(new)
        numbers: list[int] = []
        for i, owner in sorted(owned, key=lambda pair: (-self._table.lengths[pair[0]], pair[0])):
            length = self._table.lengths[i]
            if 0 < length <= capacity and rows[owner] - length >= 0.5 * even:
                numbers.append(i)
                rows[owner] -= length
                capacity -= length
        return numbers

    def _reassign(self, receipts: list[Receipt]) -> None:
        if not receipts:
            return
        by_session: dict[SessionRef, list[int]] = {}
        for receipt in receipts:
            by_session.setdefault(receipt.ref, []).append(receipt.number)
        from dboost.distributed.partitioned_table import WorkerPartitions  # which imports this module

        worker_partitions = [WorkerPartitions(self._batch, ref, tuple(sorted(numbers))) for ref, numbers in by_session.items()]
        try:
            self._table.reassign(worker_partitions)
        except DBoostError as error:  # such as a full disk of a new worker
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._connection.has_ended:  # which cancels the tasks
            return
        _log.warning("workers that have joined get no rows: %s", error)
        self._connection.discard(self._batch)
