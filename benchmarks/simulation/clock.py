"""An event loop with a simulated clock.

When no work is left before the next timer, the clock is set to it. Work that would run in a thread runs at once, and its result
is available after its simulated seconds: those of `charge`, or the measured ones, which are those of the processor: other
processes of a busy machine do not count.

A function that itself waits for the loop (`waits_for_loop`, the thread of a fit) runs in a real thread, in turns with the loop:
the loop stands still while the thread computes, and the thread waits in `run_on` while the loop runs its coroutine.
"""

from __future__ import annotations

import asyncio
import queue
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any


class _Skipping(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Polls for events without waiting, and returns how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise RuntimeError("the simulated cluster waits for something that will never happen")
            self.now += max(timeout, 0.0)
        return found


class _Thread:
    """A function that runs in a thread, in turns with a loop."""

    current = threading.local()

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._to_loop: queue.Queue[tuple[str, Any, float]] = queue.Queue()
        self._to_thread: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()
        self._function, self._arguments = function, arguments
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        _Thread.current.thread = self
        self._began = time.thread_time()
        try:
            self._put("result", self._function(*self._arguments))
        except BaseException as error:
            self._put("error", error)

    def _put(self, kind: str, what: Any) -> None:
        self._to_loop.put((kind, what, time.thread_time() - self._began))

    def next_step(self) -> tuple[str, Any, float]:
        """Wait until the thread has ended or needs the loop: "result", "error" or "coroutine", and which; and the seconds."""
        return self._to_loop.get()

    def resume(self, result: Any, error: BaseException | None) -> None:
        """Give the thread the result of its coroutine."""
        self._to_thread.put((result, error))

    def wait_for(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have the loop run a coroutine; called in the thread."""
        self._put("coroutine", work)
        result, error = self._to_thread.get()
        self._began = time.thread_time()
        if error is not None:
            raise error
        return result


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    """Take the place of `dboost.cluster.transport.event_loop.run_on` in a simulated cluster."""
    return _Thread.current.thread.wait_for(work)


class CountedLoop(asyncio.SelectorEventLoop):
    """The event loop of a simulated cluster.

    Attributes
    ----------
    charge : callable (executor, function, arguments, measured seconds) -> simulated seconds
    waits_for_loop : callable
        Whether functions of an executor call `run_on`.
    """

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)
        self._clock_resolution = 1e-9
        self.charge: Callable[[Any, Any, tuple[Any, ...], float], float] = lambda *told: told[-1]
        self.waits_for_loop: Callable[[Any], bool] = lambda executor: False
        self._tasks: set[asyncio.Task[None]] = set()

    def time(self) -> float:
        return self._skipping.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()
        if self.waits_for_loop(executor):
            self._run_in_turns(future, _Thread(func, args), executor, func, args)
            return future
        began = time.thread_time()
        try:
            result, error = func(*args), None
        except Exception as raised:
            result, error = None, raised
        seconds = self.charge(executor, func, args, time.thread_time() - began)

        def finish() -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.call_later(seconds, finish)
        return future

    def _run_in_turns(self, future: Any, thread: _Thread, executor: Any, func: Any, args: tuple[Any, ...]) -> None:
        """Let the thread run until it needs the loop or has ended, and charge the seconds."""
        kind, what, took = thread.next_step()
        seconds = self.charge(executor, func, args, took)

        async def run() -> None:
            try:
                result, error = await what, None
            except BaseException as raised:
                result, error = None, raised
            thread.resume(result, error)
            self._run_in_turns(future, thread, executor, func, args)

        def step() -> None:
            if kind == "coroutine":
                self._tasks.add(task := self.create_task(run()))
                task.add_done_callback(self._tasks.discard)
            elif not future.cancelled():
                if kind == "result":
                    future.set_result(what)
                else:
                    future.set_exception(what)

        self.call_later(seconds, step)
