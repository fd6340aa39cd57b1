"""An event loop with a simulated clock.

When no work is left before the next timer, the clock is set to it. Work that would run in a thread runs at once, and its result
is available after its simulated seconds: those of `charge`, or the measured ones.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
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


class CountedLoop(asyncio.SelectorEventLoop):
    """The event loop of a simulated cluster.

    Attributes
    ----------
    charge : callable (executor, function, arguments, measured seconds) -> simulated seconds
    """

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)
        self._clock_resolution = 1e-9
        self.charge: Callable[[Any, Any, tuple[Any, ...], float], float] = lambda *told: told[-1]

    def time(self) -> float:
        return self._skipping.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()
        began = time.perf_counter()
        try:
            result, error = func(*args), None
        except Exception as raised:
            result, error = None, raised
        seconds = self.charge(executor, func, args, time.perf_counter() - began)

        def finish() -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.call_later(seconds, finish)
        return future
