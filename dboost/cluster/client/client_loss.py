"""Errors and warnings that say why a client cannot be used: it is closed, its scheduler has ended or does not answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client
from distributed.core import Status
from distributed.utils import LoopRunner

from dboost.cluster.transport.event_loop import run_on
from dboost.config import liveness_timeout
from dboost.errors import DBoostError, is_out_of_descriptors, out_of_descriptors, warn


class ClientLost(DBoostError):
    """The client or its cluster was closed, or the connection to the scheduler was lost."""


def address_of(client: Client) -> str:
    """Return the address of a client's scheduler, also of a closed client."""
    if client.scheduler is not None:
        return str(client.scheduler.address)
    if client.cluster is not None:
        return str(client.cluster.scheduler_address)
    return str(client._start_arg)


def lost_client(client: Client, address: str) -> DBoostError | None:
    """Return the error to raise if a client cannot be used any more; None if it can. address : of its scheduler."""
    if client.cluster is not None and client.cluster.status in (Status.closing, Status.closed):
        return ClientLost(f"the cluster at {address} is closed: start another one, and give a client of it")
    if client.status in ("closing", "closed"):
        return ClientLost(
            f"the client of {address} is closed, by close() or by Dask because its scheduler ended: give another one, such as "
            f"distributed.Client({address!r})"
        )
    if _was_forked(client):
        return ClientLost(
            f"the client of {address} cannot be used in this process, which was forked from the one that made it (or the "
            "thread of its event loop has ended): make a client here, start processes by spawn instead of fork, or compute "
            'without a cluster in dask.config.set(scheduler="threads")'
        )
    if client.status == "connecting":
        return unreachable(address, None)
    return None


def _was_forked(client: Client) -> bool:
    """Return whether no thread of this process runs a client's event loop: a forked process has none of the other's threads."""
    loop: Any = client.loop
    _, runner = (0, None) if loop is None else LoopRunner._all_loops.get(loop, (0, None))
    thread = getattr(getattr(runner, "_loop_thread", None), "_thread", None)
    return isinstance(thread, threading.Thread) and not thread.is_alive()


def unreachable(address: str, error: BaseException | None) -> DBoostError:
    """Return the error to raise if a call does not reach the scheduler."""
    if is_out_of_descriptors(error):
        return out_of_descriptors("this process", f"call the scheduler at {address}")
    why = "" if error is None else f" ({error})"
    return ClientLost(
        f"the connection to the scheduler at {address} was lost{why}: start it again, and repeat the call with a new client; "
        "with checkpoint= a fit continues"
    )


@contextmanager
def reporting_loss(client: Client) -> Iterator[None]:
    """Within the context, report that the client or its cluster was closed, instead of the errors that follow from it.

    Raises
    ------
    ClientLost
    """
    address = address_of(client)
    lost = lost_client(client, address)
    if lost is not None and client.status != "connecting":  # it may be connected again in time
        raise lost
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        # Other errors of dboost name a cause of their own, in the data or the parameters.
        lost = lost_client(client, address) if type(error) is DBoostError or not isinstance(error, DBoostError) else None
        if lost is None:
            raise
        raise lost from error


class SchedulerWatch:
    """Warns of a scheduler that does not answer, although the connection is open: it is stopped, or the network is cut.

    A call waits until it answers: nothing else can end the call without losing the fit. A slow call is not silence, because
    the scheduler answers pings meanwhile.

    Parameters
    ----------
    client : distributed.Client
    address : str
        Of the scheduler.

    Attributes
    ----------
    is_silent : bool
        Whether the last ping had no answer.
    is_ending : bool
        Whether calls fail instead of waiting.
    """

    def __init__(self, client: Client, address: str) -> None:
        self._client, self._address = client, address
        self.is_silent = self.is_ending = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the client's event loop. `Client.sync` would wait forever if the client is closed meanwhile."""
        loop: Any = self._client.loop
        result = run_on(loop.asyncio_loop, work, self.note_wait)
        self.is_silent = False
        return result

    async def ping(self) -> None:
        scheduler: Any = self._client.scheduler
        await scheduler.echo(data="")

    def note_wait(self) -> None:
        """Ping the scheduler after `dboost.patience` without a reply to a call, and warn if it does not answer.

        Raises
        ------
        ClientLost
            If the client is closed; without an answer, if the fit is ending.
        """

        if self._client.status in ("closing", "closed"):
            raise lost_client(self._client, self._address) or unreachable(self._address, None)

        async def ping() -> None:
            await asyncio.wait_for(self.ping(), liveness_timeout())

        loop: Any = self._client.loop
        try:
            run_on(loop.asyncio_loop, ping())
            self.is_silent = False
        except TimeoutError as error:
            if self.is_ending:
                raise unreachable(self._address, error) from error
            if not self.is_silent:
                self.is_silent = True
                warn(
                    f"the scheduler at {self._address} has not answered for {2 * liveness_timeout():.0f} s: dboost waits until "
                    "it does; interrupt the call, close the client, or end the scheduler's process to stop waiting"
                )
        except OSError:
            pass  # the call itself fails
