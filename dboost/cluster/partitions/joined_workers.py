"""Partitions for workers that join during training.

Workers that joined, and workers without rows after loading, receive partitions, which they read from the source while training
continues. Between two trees the new shards apply the trees grown so far, and the previous owners drop these rows. The model
does not depend on the location of rows.
"""

from __future__ import annotations

import logging
import threading
import time

from dboost.cluster.client.connection import Connection
from dboost.cluster.partitions.partitioned_table import PartitionedTable, WorkerPartitions
from dboost.cluster.partitions.read_tasks import Receipt
from dboost.cluster.transport.messages import SessionRef
from dboost.config import liveness_timeout
from dboost.errors import DBoostError

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
        #: Address and identity of known workers; those without rows after loading are treated as workers that join, unless a
        #: session of their host has the rows of the host.
        self._known_workers = {
            worker for worker in connection.roster if worker[0] in with_rows or table.has_trainer_beside(worker[0])
        }
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
            owned = [(i, entry.ref) for entry in table.worker_partitions for i in entry.partition_ids]
            self._receipts, self._batch = [], table.new_batch()
            self._reader = threading.Thread(target=self._read, args=(joined, owned), name="dboost-join", daemon=True)
            self._reader.start()

    def _read(self, joined: set[tuple[str, str]], owned: list[tuple[int, SessionRef]]) -> None:
        """Read partitions on new workers, in a thread. After an error the rows stay with their owners.

        owned : partitions and the sessions that have them.
        """
        try:
            new = self._usable(joined)
            partition_ids = self._choose_partitions(new, owned)
            if partition_ids:
                receipts = self._table.source.read(self._connection, self._batch, partition_ids, self._table.plan(), new)
                self._table.check_again(receipts)
                self._receipts = receipts
        except Exception as error:
            self._give_up(error)

    def _usable(self, joined: set[tuple[str, str]]) -> list[str]:
        """Return the addresses of usable ones of these workers; log a warning for unusable ones.

        A worker that does not answer, because it is still starting or is stopped, will be asked again.
        """
        known = self._connection.refresh_workers()
        for worker in sorted(joined):
            address = worker[0]
            if known.unusable.get(address):
                _log.warning("%s; the fit goes on without it", known.unusable[address])
            elif address not in known.usable and address not in known.unusable:
                self._ask_again[worker] = time.monotonic() + liveness_timeout()
                self._known_workers.discard(worker)
        new = {address for address, _ in joined} & set(known.usable)
        return sorted(address for address in new if not self._table.has_trainer_beside(address))

    def _choose_partitions(self, new: list[str], owned: list[tuple[int, SessionRef]]) -> list[int]:
        """Choose partitions for the new workers, about their mean number of rows, large partitions first.

        The rows of a trainer are those of all workers of its host. No session is reduced to less than half of the mean of its
        workers.
        """
        rows: dict[SessionRef, int] = {}
        for i, owner in owned:
            rows[owner] = rows.get(owner, 0) + self._table.lengths[i]
        n_workers = {owner: len(self._table.workers_of(owner)) for owner in rows}
        even = sum(rows.values()) / (sum(n_workers.values()) + len(new)) if new else 0.0
        capacity = even * len(new)
        partition_ids: list[int] = []
        for i, owner in sorted(owned, key=lambda pair: (-self._table.lengths[pair[0]], pair[0])):
            length = self._table.lengths[i]
            if 0 < length <= capacity and rows[owner] - length >= 0.5 * even * n_workers[owner]:
                partition_ids.append(i)
                rows[owner] -= length
                capacity -= length
        return partition_ids

    def _reassign(self, receipts: list[Receipt]) -> None:
        if not receipts:
            return
        by_session: dict[SessionRef, list[int]] = {}
        for receipt in receipts:
            by_session.setdefault(receipt.ref, []).append(receipt.number)
        worker_partitions = [
            WorkerPartitions(self._batch, ref, tuple(sorted(partition_ids))) for ref, partition_ids in by_session.items()
        ]
        try:
            self._table.reassign(worker_partitions)
        except DBoostError as error:  # such as a full disk of a new worker
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._connection.has_ended:  # which cancels the tasks
            return
        _log.warning("workers that have joined get no rows: %s", error)
        self._connection.discard(self._batch)
