"""Which partitions are to be moved after loading, so that workers hold rows in proportion to their threads.

Dask reads partitions wherever a thread is free, or where they lie; in time that comes out even, in rows often not: with a few
partitions for each thread one worker easily holds half as much again as the others, and every tree waits for it. All columns of
a table are as wide in each partition, so rows stand for bytes.

The rule: nothing is moved while the fullest worker holds no more than `dboost.imbalance` (1.2) times its fair share. Partitions
of a persisted collection lie where somebody has put them; they are moved only beyond `dboost.imbalance-persisted` (1.5). What
is moved goes from the fullest worker to the emptiest, the partition that comes closest to making the two even, until the
fullest is within 5 % of its share or no such move makes it less full. A partition is never divided.

Workers that join while a fit runs, or that got nothing while it loaded, are given their share of the rows.

Moving rows means to read their partitions once more, on the newcomer, while training goes on; nothing is sent from worker to
worker. When they are there, between two trees, the new shards catch up with the trees grown so far, the old owners let go of
these rows, and the next tree is grown by one worker more. The model is a function of the rows, wherever they are.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dboost.distributed.read_tasks import Receipt
from dboost.errors import DataError
from dboost.session.protocol import SessionRef

if TYPE_CHECKING:
    from dboost.distributed.connection import Connection
    from dboost.distributed.partitioned_table import PartitionedTable


#: How close to a fair share is close enough, once something is moved.
_GOAL = 1.05


def plan_moves(
    owners: Mapping[int, str], rows: Mapping[int, int], threads: Mapping[str, int], held: Mapping[str, int], limit: float
) -> dict[int, str]:
    """New owners of some partitions.

    Parameters
    ----------
    owners : {partition: worker}
        Those that may be moved.
    rows : {partition: number of rows}
    threads : {worker: number of threads}
        Of all workers, those without rows too.
    held : {worker: rows}
        What workers hold besides, which stays.
    limit : float
        See `config.imbalance`.

    Returns
    -------
    {partition: worker}
    """
    loads = {worker: held.get(worker, 0) for worker in threads}
    sizes: dict[str, list[tuple[int, int]]] = {worker: [] for worker in threads}
    for i, worker in owners.items():
        if worker not in threads:  # it is leaving
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
        near = [candidates[j] for j in (k - 1, k) if 0 <= j < len(candidates)]
        near = [one for one in near if one[0] and (loads[taker] + one[0]) / fair[taker] < most]
        if not near:
            return moves
        size, i = min(near, key=lambda one: abs(one[0] - even))
        candidates.remove((size, i))
        insort(sizes[taker], (size, i))
        loads[giver] -= size
        loads[taker] += size
        moves[i] = taker
        if owners[i] == taker:
            del moves[i]


_log = logging.getLogger("dboost")


class JoinedWorkers:
    """Watches who is there, and moves partitions to those who have none.

    Parameters
    ----------
    connection : Connection
    table : PartitionedTable
        The training data, built.
    """

    def __init__(self, connection: Connection, table: PartitionedTable) -> None:
        self._connection = connection
        self._table = table
        holders = {ref.worker for ref in table.sessions}
        #: Address and identity; a worker that got nothing while loading is as good as new.
        self._met = {(address, identity) for address, identity in connection.roster if address in holders}
        self._reading: threading.Thread | None = None
        self._receipts: list[Receipt] = []

    def welcome(self) -> None:
        """Between two trees: begin to move partitions, or take over those that have been read."""
        if self._reading is not None:
            if self._reading.is_alive():
                return
            self._reading = None
            self._take_over(self._receipts)
            return
        joined = {address for address, identity in self._connection.roster if (address, identity) not in self._met}
        self._met.update(self._connection.roster)
        holders = {ref.worker for ref in self._table.sessions}  # one that was restarted has been given rows already
        new = sorted(joined - holders) and self._usable(joined - holders)
        # Values that the user gave for all rows at once would have to travel again with every move.
        numbers = [] if self._table.source.whole else self._to_move(new)
        if numbers:
            self._reading = threading.Thread(target=self._read, args=(numbers, new), daemon=True)
            self._reading.start()

    def _usable(self, joined: set[str]) -> list[str]:
        """Those that can take part; of the others the log tells, and the fit goes on without them."""
        usable, others = self._connection.usable()
        for address in sorted(joined & others.keys()):
            _log.warning("%s; the fit goes on without it", others[address])
        return sorted(joined & set(usable))

    def _to_move(self, new: list[str]) -> list[int]:
        """Partitions whose rows bring the newcomers close to an even share, from those who have most."""
        rows: dict[str, int] = {}
        for share in self._table.shares:
            rows[share.ref.worker] = rows.get(share.ref.worker, 0) + sum(self._table.lengths[i] for i in share.numbers)
        even = sum(rows.values()) / (len(rows) + len(new)) if new else 0.0
        room = even * len(new)
        numbers: list[int] = []
        owned = [(i, share.ref.worker) for share in self._table.shares for i in share.numbers]
        for i, owner in sorted(owned, key=lambda pair: (-self._table.lengths[pair[0]], pair[0])):
            length = self._table.lengths[i]
            if 0 < length <= room and rows[owner] - length >= 0.5 * even:
                numbers.append(i)
                rows[owner] -= length
                room -= length
        return numbers

    def _read(self, numbers: list[int], workers: list[str]) -> None:
        """In a thread of its own. Whatever goes wrong here, the rows are where they were."""
        self._receipts, self._batch = [], self._table.new_batch()
        try:
            receipts = self._table.source.read(self._connection, self._batch, numbers, self._table.plan(), workers)
            self._table.check_again(receipts)
            self._receipts = receipts
        except Exception as error:
            self._given_up(error)

    def _take_over(self, receipts: list[Receipt]) -> None:
        if not receipts:
            return
        by_session: dict[SessionRef, list[int]] = {}
        for receipt in receipts:
            by_session.setdefault(receipt.ref, []).append(receipt.number)
        from dboost.distributed.partitioned_table import WorkerPartitions  # which imports this module

        shares = [WorkerPartitions(self._batch, ref, tuple(sorted(numbers))) for ref, numbers in by_session.items()]
        try:
            self._table.reassign(shares)
        except DataError as error:
            self._given_up(error)

    def _given_up(self, error: Exception) -> None:
        _log.warning("workers that have joined get no rows: %s", error)
        self._connection.discard(self._batch)
