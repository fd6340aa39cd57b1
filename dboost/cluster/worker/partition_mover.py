"""Moves of partitions between workers, after reading and before they become shards (see `cluster.partitions.rebalance`).

The receiving worker fetches a partition over Dask's connections and stores it as if it had read it: plain columns with their
own categories, target, weight and offset; in several slices if a memory limit divided it. The sender drops moved partitions
when it receives the final list of its partitions (`Session.scan_partitions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import suppress
from itertools import count
from typing import Any

from distributed import Worker

from dboost.cluster.transport.event_loop import run_on
from dboost.cluster.transport.messages import LOST, OK, UNKNOWN, LostWorkers, SessionRef, pack, pack_round, unpack
from dboost.cluster.transport.peer_messages import JointCall
from dboost.config import liveness_timeout
from dboost.data import Chunk
from dboost.session.partition_batch import MissingPartitions
from dboost.session.session import Session
from dboost.tuning import adopt


class PartitionMover:
    """Sends and fetches partitions on one worker.

    Parameters
    ----------
    worker : distributed.Worker
    plugin : DBoostWorkerPlugin
    pool : Executor
        Threads for packing.
    """

    def __init__(self, worker: Worker, plugin: Any, pool: Executor) -> None:
        self._worker, self._plugin, self._pool = worker, plugin, pool
        self._loop = asyncio.get_running_loop()
        #: Sessions of other workers that could not be reached, or no longer had a partition.
        self._gone: set[SessionRef] = set()
        worker.handlers["dboost_give"] = self.give

    async def give(self, fit: str, session: str, batch: str, partition: int, number: int) -> dict[str, Any]:
        """Return a slice of a partition that this worker has read."""
        owner = SessionRef(self._worker.address, session)

        def packed_slice() -> dict[str, Any]:
            answer = self._slice(owner, fit, batch, partition, number)
            return {"status": UNKNOWN} if answer is None else {"status": OK, "content": pack(answer[0]), "more": answer[1]}

        return await self._loop.run_in_executor(self._pool, packed_slice)

    def take_partitions(self, call: JointCall, arguments: bytes | memoryview) -> tuple[str, Any]:
        """Fetch partitions one after the other for a session; return the status, and the packed answer or error.

        arguments : packed batch, (partition, old owner) pairs, and plan as packed for the read tasks.
        """
        batch, moves, plan = unpack(arguments)
        try:
            for partition, giver in moves:
                for number, chunk in enumerate(self._slices(giver, call.fit, batch, partition)):
                    status, answer = call.execute(_take_slice, (batch, partition, plan, chunk, number))
                    if status != OK:  # such as for a partition that does not match those that are here
                        return status, answer
        except LostWorkers as lost:
            return LOST, pack_round(lost.sessions)
        return OK, pack_round(None)

    def slices(self, owner: SessionRef, fit: str, batch: str, partition: int) -> list[Chunk] | None:
        """Return the slices of a partition that a session of any worker has read; None if it is gone. Called in tasks."""
        try:
            return list(self._slices(owner, fit, batch, partition))
        except LostWorkers:
            return None

    def _slices(self, owner: SessionRef, fit: str, batch: str, partition: int) -> Iterator[Chunk]:
        """Yield the slices of a partition that a session of any worker has read.

        Raises
        ------
        LostWorkers
            When it is gone.
        """
        get = self._slice if owner.worker == self._worker.address else self._fetched
        for number in count():
            answer = get(owner, fit, batch, partition, number)
            if answer is None:
                raise LostWorkers([owner])
            chunk, more = answer
            yield chunk
            if not more:
                return

    def _slice(self, owner: SessionRef, fit: str, batch: str, partition: int, number: int) -> tuple[Chunk, bool] | None:
        """Return a slice that a session of this worker has read, and whether there are more; None if it is gone."""
        session = self._plugin.known(fit, owner.session)
        try:
            return None if session is None else session.loading.batch(batch).give(partition, number)
        except MissingPartitions:
            return None

    def _fetched(self, owner: SessionRef, fit: str, batch: str, partition: int, number: int) -> tuple[Chunk, bool] | None:
        """Return what `_slice` does, of a session of another worker."""
        reply = None
        if owner not in self._gone:
            with suppress(TimeoutError, OSError):
                reply = run_on(self._loop, self._fetch(owner, fit, batch, partition, number))
        if reply is None or reply["status"] != OK:
            self._gone.add(owner)
            return None
        return unpack(reply["content"]), reply["more"]

    async def _fetch(self, giver: SessionRef, fit: str, batch: str, partition: int, number: int) -> Any:
        """Return the sender's reply. While there is none, ping the sender: it may hang although its connection is open."""
        rpc = self._worker.rpc(giver.worker)
        reply = rpc.dboost_give(fit=fit, session=giver.session, batch=batch, partition=partition, number=number)
        call = asyncio.ensure_future(reply)
        try:
            while not (await asyncio.wait({call}, timeout=liveness_timeout()))[0]:
                await asyncio.wait_for(rpc.dboost_ping(), liveness_timeout())
            return call.result()
        finally:
            call.cancel()


def _take_slice(session: Session, batch: str, partition: int, plan: bytes, chunk: Chunk, number: int) -> None:
    how, budget, whole, sizes = unpack(plan)
    adopt(sizes)
    session.loading.open(batch, how, budget, whole, session.n_threads).add_slice(partition, chunk, number)
