"""Coroutines of Dask's event loops, called from other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dboost.cluster.transport.messages import FitCancelled
from dboost.config import liveness_timeout

Result = TypeVar("Result")
#: Seconds between two checks whether the event loop still runs.
_LOOP_CHECK = 1.0


def run_on(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result], note_wait: Callable[[], None] | None = None
) -> Result:
    """Run a coroutine on an event loop from another thread, and return its result; FitCancelled when the loop has ended.

    note_wait : called after each `dboost.patience` without a result; an error that it raises ends the call.
    """
    future = asyncio.run_coroutine_threadsafe(work, loop)
    noted = time.monotonic()
    while True:
        try:
            return future.result(timeout=_LOOP_CHECK)
        except concurrent.futures.TimeoutError:
            if future.done():  # the coroutine itself has raised a TimeoutError
                raise
            if loop.is_closed() or not loop.is_running():
                raise FitCancelled from None
        if note_wait is not None and time.monotonic() - noted >= liveness_timeout():
            try:
                note_wait()
            except Exception:
                future.cancel()
                raise
            noted = time.monotonic()
