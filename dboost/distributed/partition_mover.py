"""Moves of partitions between workers, after reading and before they become shards; see `rebalance`.

The receiving worker fetches a partition over Dask's connections and stores it as if it had read it: plain columns with their
own categories, target, weight and offset; in several slices if a memory limit divided it. Packing and storing run in threads of
the worker plugin. The sender drops moved partitions when it receives the final list of its partitions
(`Session.scan_partitions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import count
from typing import Any

from distributed import Worker

from dboost.config import liveness_timeout
from dboost.distributed.messages import FAILED, LOST, OK, UNKNOWN, pack, pack_error
from dboost.session.protocol import MissingPartitions, SessionRef, unpack
from dboost.session.worker_session import WorkerSession


class PartitionMover:
    """Sends and fetches partitions on one worker.

    Parameters
    ----------
    worker : distributed.Worker
    plugin : DBoostWorkerPlugin
    pool : Executor
        Threads for packing and storing.
    """

    def __init__(self, worker: Worker, plugin: Any, pool: Executor) -> None:
        self._worker, self._plugin, self._pool = worker, plugin, pool
        worker.handlers.update({"dboost_give": self.give, "dboost_take": self.take})

    async def give(self, fit: str, session: str, batch: str, partition: int, number: int) -> dict[str, Any]:
        """Return a slice of a partition that this worker has read."""
        worker_session = self._plugin.known(fit, session)
        if worker_session is None:
            return {"status": UNKNOWN}
        content = await self._in_thread(_packed_slice, worker_session, batch, partition, number)
        return {"status": UNKNOWN} if content is None else {"status": OK, "content": content[0], "more": content[1]}

    async def take(
        self, fit: str, batch: str, plan: bytes, moves: Sequence[Sequence[Any]], lost: Sequence[str]
    ) -> dict[str, Any]:
        """Fetch partitions one after the other; the result is the session that received them.

        moves : (partition, old owner) pairs; plan : as packed for the read tasks; lost : names of lost sessions.
        """
        worker_session = self._plugin.worker_session(fit, lost)
        for partition, pair in moves:
            giver = SessionRef(*pair)
            for number in count():
                try:
                    reply = await self._fetch(giver, fit, batch, partition, number)
                except (TimeoutError, OSError):
                    return {"status": LOST, "sessions": [giver]}
                if reply is None or reply["status"] != OK:
                    return {"status": LOST, "sessions": [giver]}
                try:
                    await self._in_thread(_take_slice, worker_session, batch, partition, plan, reply["content"], number)
                except Exception as error:  # such as a partition that does not match those that are here
                    return {"status": FAILED, "error": pack_error(error)}
                if not reply["more"]:
                    break
        return {"status": OK, "result": pack(SessionRef(self._worker.address, worker_session.session))}

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

    async def _in_thread(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)


def _packed_slice(worker_session: WorkerSession, batch: str, partition: int, number: int) -> tuple[bytes, bool] | None:
    try:
        chunk, more = worker_session.give(batch, partition, number)
    except MissingPartitions:
        return None
    return pack(chunk), more


def _take_slice(worker_session: WorkerSession, batch: str, partition: int, plan: bytes, content: bytes, number: int) -> None:
    how, budget, whole = unpack(plan)
    worker_session.take_slice(batch, partition, how, unpack(content), number, budget, whole)
