"""Workers that join while a fit runs, or that got nothing while it loaded, are given their share of the rows.

Moving rows means to read their partitions once more, on the newcomer, while training goes on; nothing is sent from worker to
worker. When they are there, between two trees, the new shards catch up with the trees grown so far, the old owners let go of
these rows, and the next tree is grown by one worker more. The model is a function of the rows, wherever they are.
"""

from __future__ import annotations

import threading

from dboost.cluster.connection import Connection
from dboost.cluster.source import Receipt
from dboost.cluster.table import ClusterTable, Share


class Newcomers:
    """Watches who is there, and moves partitions to those who have none.

    Parameters
    ----------
    connection : Connection
    table : ClusterTable
        The training data, built.
    """

    def __init__(self, connection: Connection, table: ClusterTable) -> None:
        self._connection = connection
        self._table = table
        self._met = set(table.workers)  # one that got nothing while loading is as good as new
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
        new = [address for address in self._connection.roster if address not in self._met]
        self._met.update(self._connection.roster)
        # Values that the user gave for all rows at once would have to travel again with every move.
        numbers = [] if self._table.source.whole else self._to_move(new)
        if numbers:
            self._reading = threading.Thread(target=self._read, args=(numbers, new), daemon=True)
            self._reading.start()

    def _to_move(self, new: list[str]) -> list[int]:
        """Partitions whose rows bring the newcomers close to an even share, from those who have most."""
        rows: dict[str, int] = {}
        for share in self._table.shares:
            rows[share.worker] = rows.get(share.worker, 0) + sum(self._table.lengths[i] for i in share.numbers)
        even = sum(rows.values()) / (len(rows) + len(new)) if new else 0.0
        room = even * len(new)
        numbers: list[int] = []
        owned = [(i, share.worker) for share in self._table.shares for i in share.numbers]
        for i, owner in sorted(owned, key=lambda pair: (-self._table.lengths[pair[0]], pair[0])):
            length = self._table.lengths[i]
            if 0 < length <= room and rows[owner] - length >= 0.5 * even:
                numbers.append(i)
                rows[owner] -= length
                room -= length
        return numbers

    def _read(self, numbers: list[int], workers: list[str]) -> None:
        """In a thread of its own. Whatever goes wrong here, the rows are where they were."""
        self._receipts = []
        try:
            batch = self._table.new_batch()
            self._receipts = self._table.source.read(self._connection, batch, numbers, self._table.plan(), workers)
            self._batch = batch
        except Exception:
            self._receipts = []

    def _take_over(self, receipts: list[Receipt]) -> None:
        if not receipts:
            return
        by_worker: dict[str, list[int]] = {}
        for receipt in receipts:
            by_worker.setdefault(receipt.worker, []).append(receipt.number)
        shares = [Share(self._batch, worker, tuple(sorted(numbers))) for worker, numbers in by_worker.items()]
        self._table.take_over(shares)
