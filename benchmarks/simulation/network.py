"""A simulated network: every message takes its latency, and its bytes occupy the links of both hosts.

A host has one link in each direction and one event loop. It sends messages one after the other, receives them one after the
other, and its loop spends some time on each message: these three queues are what saturates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

#: Bytes of a message beside its payload.
_ENVELOPE = 600


@dataclass(frozen=True)
class Network:
    """Properties of the network."""

    bandwidth: float = 10e9 / 8
    latency: float = 100e-6
    handling: float = 36e-6


@dataclass(eq=False)
class Host:
    """One end of messages; the times are when its loop and its links become free."""

    address: str
    loop_free: float = 0.0
    out_free: float = 0.0
    in_free: float = 0.0
    n_messages: int = 0
    handled: float = 0.0
    received: float = 0.0


@dataclass(eq=False)
class Wire:
    """Sends messages between hosts in simulated time."""

    network: Network
    hosts: dict[str, Host] = field(default_factory=dict)

    def host(self, address: str) -> Host:
        return self.hosts.setdefault(address, Host(address))

    async def handle(self, host: Host, seconds: float) -> None:
        """Spend the time of a host for a message."""
        now = asyncio.get_running_loop().time()
        host.loop_free = max(host.loop_free, now) + seconds
        host.n_messages += 1
        host.handled += seconds
        await asyncio.sleep(host.loop_free - now)

    async def carry(self, sender: Host, receiver: Host, content: Any) -> None:
        """Wait until a message of Dask has arrived and been handled."""
        await self.send(sender, receiver, _ENVELOPE + _size(content), self.network.handling)

    async def send(self, sender: Host, receiver: Host, size: float, handling: float) -> None:
        """Wait until some bytes have arrived; both ends spend `handling` seconds on them."""
        await self.handle(sender, handling)
        now = asyncio.get_running_loop().time()
        begin = max(now, sender.out_free)
        sender.out_free = begin + size / self.network.bandwidth
        there = max(begin + self.network.latency, receiver.in_free) + size / self.network.bandwidth
        receiver.in_free = there
        receiver.received += size
        await asyncio.sleep(there - now)
        await self.handle(receiver, handling)

    def rpc(self, sender: Host, receiver: Host, handlers: dict[str, Callable[..., Any]]) -> Line:
        return Line(self, sender, receiver, handlers)


class Line:
    """The result of `scheduler.rpc(address)` and `worker.rpc(address)`: each attribute calls a handler at the other end."""

    def __init__(self, wire: Wire, sender: Host, receiver: Host, handlers: dict[str, Callable[..., Any]]) -> None:
        self._wire, self._sender, self._receiver, self._handlers = wire, sender, receiver, handlers

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(reply: bool = True, **arguments: Any) -> Any:
            await self._wire.carry(self._sender, self._receiver, arguments)
            answer = self._handlers[name](**arguments)
            if asyncio.iscoroutine(answer):
                answer = await answer
            if not reply:
                return None
            await self._wire.carry(self._receiver, self._sender, answer)
            return answer

        return call


def _size(content: Any) -> int:
    """Return the bytes of a message's payload: those of its packed parts."""
    if isinstance(content, bytes):
        return len(content)
    if isinstance(content, dict):
        return sum(map(_size, content.values()))
    if isinstance(content, list | tuple):
        return sum(map(_size, content))
    return 16
