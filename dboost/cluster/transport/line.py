"""Lines: connections on which the calls of a fit travel, without an event loop.

A round over two workers takes 4 ms through Dask's messages, most of it in the event loops, in pickling and in copies; a
blocking socket takes a tenth of that. So Dask opens a connection from the scheduler to a worker as for any call, with the
same port, the same security and the same handshake (`open_line`, `accept_line`), and `_detach` takes its socket out of the
event loops of both ends. From then on only two threads use it: that of the fit in the scheduler, and one on the worker.

Other comms of Dask have no socket to give. Inside a process (inproc) a line is a pair of sockets, one for each end. Elsewhere
(websockets, UCX) each end has such a pair, and its event loop carries the bytes between one of the two and the comm (`_carry`).

A message has a fixed header, a content that is pickled by the caller, and buffers, which are sent as they are and received
into one buffer per line, which the next message reuses::

    number  u64     of the round; an answer has the number of its request
    kind    u8      method of a request, status of an answer
    n       u32     number of buffers
    size    u64     bytes that follow
    lengths u64[n + 1], content, buffers, each padded to a multiple of 16 bytes, so that arrays in them are aligned

`_detach` depends on private attributes of Tornado's streams. It is the only function that does.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed.comm import connect
from distributed.comm.inproc import InProc
from distributed.comm.tcp import TCP

from dboost.cluster.transport.messages import OK, UNKNOWN
from dboost.config import liveness_timeout

_HEADER = struct.Struct("<QBIQ")
#: Largest buffer for messages that is kept for the next one.
_KEPT_BYTES = 32 * 2**20
#: Messages up to this size are copied, so that one system call sends them.
_JOINED_BYTES = 64 * 1024
_ALIGNMENT = 16
#: Unlike `select`, `poll` waits for descriptors from 1,024 on; unlike `epoll`, it has no descriptor of its own.
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


@dataclass(frozen=True, eq=False)
class Message:
    """A received message. Content and buffers are valid until the next message of the line."""

    number: int
    kind: int
    content: memoryview
    buffers: list[memoryview]

    def unpack(self) -> Any:
        """Return the object that `packed` pickled; its arrays are views of the buffers."""
        return unpacked([self.content, *self.buffers])


def packed(answer: Any) -> tuple[bytes, list[memoryview]]:
    """Return content and buffers of an object; contiguous arrays in it become buffers."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(answer, 5, buffer_callback=buffers.append)
    return content, [buffer.raw() for buffer in buffers]


#: A pickled object: its content, and the arrays in it, see `packed`.
Pieces = Sequence[bytes | memoryview]


def pieces_of(message: Any) -> Pieces:
    """Return a message for another session."""
    content, buffers = packed(message)
    return [content, *buffers]


def unpacked(pieces: Pieces) -> Any:
    """Return the object that `packed` pickled; its arrays are views of the buffers."""
    content, *buffers = pieces
    return pickle.loads(content, buffers=buffers)


class LineClosed(OSError):
    """The other end closed the line, or the connection broke."""


class Line:
    """One end of a line. Only one thread may send, and only one may receive.

    Parameters
    ----------
    sock : socket.socket
        Connected; from now on non-blocking and owned by the line.
    received : bytes
        Bytes that were received before.
    """

    def __init__(self, sock: socket.socket, received: bytes = b"") -> None:
        sock.setblocking(False)
        self._socket = sock
        self._arriving = _Selector()  # of the thread that receives; made once, because every round waits
        self._arriving.register(sock, selectors.EVENT_READ)
        self._received = received
        self._header = bytearray(_HEADER.size)
        self._body = np.empty(0, np.uint8)
        self._view = memoryview(self._header)  # what is being received: the header, or the body
        self._n_received = 0
        self._in_header = True

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_received(self) -> bool:
        """Whether bytes have been taken from the socket that `poll` has not returned."""
        return bool(self._received) or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0)

    def send(
        self,
        number: int,
        kind: int,
        content: bytes | memoryview,
        buffers: Sequence[memoryview] = (),
        timeout: float | None = None,
    ) -> None:
        """Send a message.

        timeout : seconds without progress after which TimeoutError is raised; default: none.

        Raises
        ------
        OSError
            When the connection is broken, or at the timeout. The line cannot be used any more.
        """
        lengths = np.array([len(content), *(buffer.nbytes for buffer in buffers)], np.uint64)
        size = lengths.nbytes + _padding(lengths.nbytes) + sum(int(n) + _padding(int(n)) for n in lengths)
        parts: list[Any] = [_HEADER.pack(number, kind, len(buffers), size)]
        for part in (lengths.tobytes(), content, *buffers):
            n = part.nbytes if isinstance(part, memoryview) else len(part)
            parts += (part, bytes(_padding(n)))
        if size <= _JOINED_BYTES:
            self._send_all(b"".join(parts), timeout)
            return
        small = bytearray()
        for part in parts:
            if len(part) <= _JOINED_BYTES:
                small += part
                continue
            self._send_all(small, timeout)
            self._send_all(part, timeout)
            small = bytearray()
        self._send_all(small, timeout)

    def _send_all(self, content: Any, timeout: float | None) -> None:
        view = memoryview(content)
        at = 0
        while at < len(view):
            try:
                at += self._socket.send(view[at:])
            except (BlockingIOError, ssl.SSLWantWriteError):
                if not self._can_send(selectors.EVENT_WRITE, timeout):
                    raise TimeoutError("the other end of the line does not receive") from None
            except ssl.SSLWantReadError:  # TLS exchanges keys
                if not self._can_send(selectors.EVENT_READ, timeout):
                    raise TimeoutError("the other end of the line does not answer") from None

    def _can_send(self, event: int, timeout: float | None) -> bool:
        """Wait until the thread that sends can continue; return whether it can before the timeout."""
        with _Selector() as selector:
            selector.register(self._socket, event)
            return bool(selector.select(timeout))

    def poll(self) -> Message | None:
        """Receive what has arrived, without waiting; return the message if it is complete.

        Raises
        ------
        LineClosed
        """
        while True:
            while self._n_received < len(self._view):
                n = self._receive_into(self._view[self._n_received :])
                if n is None:
                    return None
                self._n_received += n
            if not self._in_header:
                return self._complete()
            number, kind, n_buffers, size = _HEADER.unpack(self._header)
            self._now = number, kind, n_buffers
            if size > len(self._body):
                self._body = np.empty(max(size, 2 * len(self._body)), np.uint8)
            self._in_header, self._n_received, self._view = False, 0, self._body.data[:size]

    def receive(self, patience: float | None = None, note_wait: Callable[[], None] = lambda: None) -> Message:
        """Wait for a message. note_wait : called after each `patience` (seconds) without one."""
        while True:
            message = self.poll()
            if message is not None:
                return message
            if not self._arriving.select(patience):
                note_wait()

    def give_up_memory(self) -> None:
        """Leave the memory of the last message to it, so that it stays valid."""
        self._body = np.empty(0, np.uint8)

    def _receive_into(self, view: memoryview) -> int | None:
        if self._received:
            n = min(len(view), len(self._received))
            view[:n], self._received = self._received[:n], self._received[n:]
            return n
        try:
            n = self._socket.recv_into(view)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except (OSError, ValueError) as error:  # a ValueError of a TLS socket that another thread has closed
            raise LineClosed(str(error)) from error
        if n == 0:
            raise LineClosed("the other end closed the line")
        return n

    def _complete(self) -> Message:
        number, kind, n_buffers = self._now
        body = self._view
        at = 8 * (n_buffers + 1)
        lengths = np.frombuffer(body[:at], np.uint64).tolist()
        at += _padding(at)
        pieces = []
        for n in lengths:
            pieces.append(body[at : at + n])
            at += n + _padding(n)
        self._in_header, self._n_received, self._view = True, 0, memoryview(self._header)
        if len(self._body) > _KEPT_BYTES:
            self._body = np.empty(0, np.uint8)  # the message has it
        return Message(number, kind, pieces[0], pieces[1:])

    def shut_down(self) -> None:
        """End the connection; a thread that waits at either end raises an error. May be called by any thread."""
        with contextlib.suppress(OSError):
            # Not `SSLSocket.shutdown`, which is not safe while another thread receives.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket; called by the thread that uses the line."""
        self._socket.close()


def _padding(n: int) -> int:
    return -n % _ALIGNMENT


#: Bytes that `_carry` passes on at a time.
_CARRIED_BYTES = 256 * 1024
#: Keeps the tasks of `_carry`: an event loop has only weak references.
_carriers: set[asyncio.Task[None]] = set()


async def open_line(address: str, request: dict[str, Any], connection_args: dict[str, Any]) -> tuple[str, Line | None]:
    """Ask a process for a line; return the status of its reply, and the line if the status is OK.

    Raises
    ------
    OSError
        When the process cannot be reached.
    """
    comm = await connect(address, timeout=liveness_timeout(), **connection_args)
    is_carried = False
    try:
        await comm.write(request)
        reply = await asyncio.wait_for(comm.read(), liveness_timeout())
        status = reply.get("status", UNKNOWN) if isinstance(reply, dict) else UNKNOWN
        if status != OK:
            return status, None
        if isinstance(comm, InProc):
            return status, reply["line"]
        if isinstance(comm, TCP):
            return status, _detach(comm)
        line, carrier = _carried(comm)
        _carriers.add(task := asyncio.create_task(carrier))
        task.add_done_callback(_carriers.discard)
        is_carried = True
        return status, line
    finally:
        if not is_carried:
            comm.abort()  # has no effect after `_detach`


async def accept_line(comm: Any, use: Callable[[Line], None]) -> None:
    """Answer a call that opens a line, on the event loop that received it; return when the comm is no longer needed.

    use : gets the line.
    """
    if isinstance(comm, InProc):
        here, there = socket.socketpair()
        await comm.write({"status": OK, "line": Line(there)})
        use(Line(here))
        return
    await comm.write({"status": OK})
    if not isinstance(comm, TCP):
        line, carrier = _carried(comm)
        use(line)
        await carrier
        return
    deadline = time.monotonic() + liveness_timeout()
    while comm.stream is not None and comm.stream.writing():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{comm.peer_address} does not receive the reply that opens a line")
        await asyncio.sleep(0.001)
    if comm.stream is not None:
        use(_detach(comm))


def _detach(comm: Any) -> Line:
    """Take the socket of a Dask comm out of the event loop; the comm is closed afterwards.

    Nothing may be waiting to be written. Must be called on the event loop of the comm.
    """
    stream = comm.stream
    stream.io_loop.remove_handler(stream.fileno())
    received = b"" if stream._user_read_buffer else bytes(stream._read_buffer[: stream._read_buffer_size])
    sock, stream.socket = stream.socket, None
    stream._state, stream._closed = None, True
    comm.stream, comm._closed = None, True
    comm._finalizer.detach()  # it would warn of a stream that was not closed
    return Line(sock, received)


def _carried(comm: Any) -> tuple[Line, Coroutine[Any, Any, None]]:
    """Return a line that a comm carries, and the coroutine that does so until either is closed."""
    here, there = socket.socketpair()
    there.setblocking(False)
    return Line(here), _carry(comm, there)


async def _carry(comm: Any, sock: socket.socket) -> None:
    """Pass bytes between a socket and a Dask comm until either is closed; then close both."""
    loop = asyncio.get_running_loop()

    async def send() -> None:
        while content := await loop.sock_recv(sock, _CARRIED_BYTES):
            await comm.write(content)

    async def receive() -> None:
        while True:
            await loop.sock_sendall(sock, await comm.read())

    ways = [asyncio.ensure_future(send()), asyncio.ensure_future(receive())]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        comm.abort()
        await asyncio.gather(*ways, return_exceptions=True)
        sock.close()
