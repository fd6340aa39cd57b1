"""Partitions that have been read go from one worker to another, before they become shards; see `balance.py`.

The worker that is to have a partition asks for it, over Dask's own connections, and takes it in as if it had read it: plain
columns with levels of their own, target, weight and offset, slice by slice where a memory limit cut it into several. Packing
and taking in are done in threads of the holder's. The old owner forgets what is no longer its own when it is told which
partitions count (`Intake.survey`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import count
from typing import Any

from distributed import Worker

from dboost.config import liveness_timeout
from dboost.distributed.messages import LOST, OK, UNKNOWN, pack
from dboost.session.protocol import MissingPartitions, SessionRef, unpack
from dboost.session.worker_session import WorkerSession


class PartitionMover:
    """Gives and takes, on one worker.

    Parameters
    ----------
    worker : distributed.Worker
    holder : ShardHolder
    pool : Executor
    """

    def __init__(self, worker: Worker, holder: Any, pool: Executor) -> None:
        self._worker, self._holder, self._pool = worker, holder, pool
        worker.handlers.update({"dboost_give": self.give, "dboost_take": self.take})

    async def give(self, fit: str, session: str, batch: str, partition: int, number: int) -> dict[str, Any]:
        """A slice of a partition that was read here."""
        holding = self._holder.known(fit, session)
        if holding is None:
            return {"status": UNKNOWN}
        content = await self._in_thread(_packed, holding, batch, partition, number)
        return {"status": UNKNOWN} if content is None else {"status": OK, "content": content[0], "more": content[1]}

    async def take(
        self, fit: str, batch: str, plan: bytes, moves: Sequence[Sequence[Any]], lost: Sequence[str]
    ) -> dict[str, Any]:
        """Fetch partitions, one after the other; the result is the session that has them now.

        moves : (partition, old owner) pairs; plan : as loading tasks get it; lost : sessions that the client has given up.
        """
        holding = self._holder.holding(fit, lost)
        for partition, pair in moves:
            giver = SessionRef(*pair)
            for number in count():
                try:
                    reply = await self._asked(giver, fit, batch, partition, number)
                except (TimeoutError, OSError):
                    return {"status": LOST, "sessions": [giver]}
                if reply is None or reply["status"] != OK:
                    return {"status": LOST, "sessions": [giver]}
                await self._in_thread(_taken_in, holding, batch, partition, plan, reply["content"], number)
                if not reply["more"]:
                    break
        return {"status": OK, "result": pack(SessionRef(self._worker.address, holding.session))}

    async def _asked(self, giver: SessionRef, fit: str, batch: str, partition: int, number: int) -> Any:
        """The giver's answer. One that says nothing is pinged: it may be stopped, and its connection open all the same."""
        line = self._worker.rpc(giver.worker)
        question = line.dboost_give(fit=fit, session=giver.session, batch=batch, partition=partition, number=number)
        call = asyncio.ensure_future(question)
        try:
            while not (await asyncio.wait({call}, timeout=liveness_timeout()))[0]:
                await asyncio.wait_for(line.dboost_hello(), liveness_timeout())
            return call.result()
        finally:
            call.cancel()

    async def _in_thread(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)


def _packed(holding: WorkerSession, batch: str, partition: int, number: int) -> tuple[bytes, bool] | None:
    try:
        chunk, more = holding.give(batch, partition, number)
    except MissingPartitions:
        return None
    return pack(chunk), more


def _taken_in(holding: WorkerSession, batch: str, partition: int, plan: bytes, content: bytes, number: int) -> None:
    how, budget, whole = unpack(plan)
    holding.take_slice(batch, partition, how, unpack(content), number, budget, whole)
