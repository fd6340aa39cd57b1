"""Workers that join while a fit runs, or that got nothing while it loaded, are given their share of the rows.

Moving rows means to read their partitions once more, on the newcomer, while training goes on; nothing is sent from worker to
worker. When they are there, between two trees, the new shards catch up with the trees grown so far, the old owners let go of
these rows, and the next tree is grown by one worker more. The model is a function of the rows, wherever they are.
"""

from __future__ import annotations

import logging
import threading

from dboost.cluster.connection import Connection
from dboost.cluster.messages import SessionRef
from dboost.cluster.source import Receipt
from dboost.cluster.table import ClusterTable, Share
from dboost.errors import DataError

_log = logging.getLogger("dboost")


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
        shares = [Share(self._batch, ref, tuple(sorted(numbers))) for ref, numbers in by_session.items()]
        try:
            self._table.take_over(shares)
        except DataError as error:
            self._given_up(error)

    def _given_up(self, error: Exception) -> None:
        _log.warning("workers that have joined get no rows: %s", error)
        self._connection.discard(self._batch)
