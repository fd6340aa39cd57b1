"""Lease: keeps two runs of ``dboost train --only-new`` for one model apart, on any storage.

A run holds the file ``MODEL.lease.json`` while it works and removes it at the end. A thread rewrites the file three times in
the lease's duration (`config.lease_seconds`), so the content of the file of a live run changes. Another run that finds the file
watches it for the duration, by its own clock, so the clocks of hosts need not agree:

* The content changes: the other run is alive, and this one ends with a `BusyError`.
* The file disappears: the other run has ended, and this one creates the file.
* The content stays the same: the other run was killed, and this one takes over. Of two runs that do so at the same time, the
  file names the last one after a moment.

A file is created only if there is none (stores: a conditional put). A store that ignores the condition may give the lease to
two runs, and a run that was suspended for longer than the duration may have lost it. So every renewal first reads the file, and
a run that finds the record of another run, or no file, ends with a `BusyError` as well. The ledger renews the lease
before each of its writes, and so does each iteration that ends later than the duration after the last renewal. A run that fails
after it has lost the lease (the other run has removed its checkpoint, for instance) ends with a `BusyError` too.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from dboost._storage_errors import is_failure, shown
from dboost.errors import DBoostError
from dboost.storage.atomic_write import FileMissingError, create_whole, read_whole, remove, write_whole

#: How many times a file is read within a duration while it is watched.
_WATCHES = 30


class BusyError(DBoostError):
    """Another run has the lease; a later try may succeed."""


class Lease:
    """The right to train a model, held within a ``with`` block.

    Parameters
    ----------
    model : str
        Path or URL of the model; the file of the lease is beside it.
    seconds : float
        Duration after which an unchanged file counts as abandoned.

    Raises
    ------
    BusyError
        On entering, if another run has the lease.
    ModelFileError
        If the file cannot be written.
    """

    def __init__(self, model: str, seconds: float) -> None:
        self.path = f"{model}.lease.json"
        self._model, self._seconds = model, seconds
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._run = uuid.uuid4().hex
        self._holder = {"run": self._run, "host": socket.gethostname(), "process": os.getpid(), "since": now}
        self._renewed = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="dboost-lease", daemon=True)

    def __enter__(self) -> Lease:
        while not self._create() and not self._take_over():
            pass  # the file has disappeared
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        try:
            found = self._read()
            if self._is_own(found):
                remove(self.path)
                return
        except Exception as failed:  # the file counts as abandoned after its duration
            if not is_failure(failed):
                raise
            return
        if isinstance(error, DBoostError) and not isinstance(error, BusyError):
            raise self._busy(found) from error

    def check(self, *_: Any) -> None:
        """Renew the lease if that is overdue; a callback of `dboost.fit`."""
        if time.monotonic() - self._renewed > self._seconds:
            self.renew()

    def renew(self) -> None:
        """Write the file again.

        Raises
        ------
        BusyError
            If another run has taken over.
        ModelFileError
            If the file cannot be read or written.
        """
        with self._lock:
            began = time.monotonic()
            found = self._read()
            if not self._is_own(found):
                raise self._busy(found)
            self._write(write_whole)
            if self._renewed - began > self._seconds:  # suspended between reading and writing
                raise self._busy(found)

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / 3):
            try:
                self.renew()
            except BusyError:
                self._renewed = -math.inf  # the next check raises the error
                return
            except DBoostError:  # there are two more tries before the next check raises the error
                continue

    def _create(self) -> bool:
        try:
            self._write(create_whole)
        except FileExistsError:
            return False
        return True

    def _take_over(self) -> bool:
        """Take over an abandoned lease; return False if its file has disappeared."""
        try:
            found = read_whole(self.path)
            print(f"dboost: {self._called(found)}: waiting {self._seconds:g} s for its next renewal", file=sys.stderr)
            deadline = time.monotonic() + self._seconds
            while time.monotonic() < deadline:
                time.sleep(self._seconds / _WATCHES)
                now = read_whole(self.path)
                if now != found:
                    raise self._busy(now)
            self._write(write_whole)
            time.sleep(self._seconds / _WATCHES)
            now = read_whole(self.path)
        except FileMissingError:
            return False
        if not self._is_own(now):
            raise self._busy(now)
        return True

    def _read(self) -> bytes:
        """Return the content of the file; nothing if there is no file."""
        try:
            return read_whole(self.path)
        except FileMissingError:
            return b""

    def _write(self, write: Callable[[str, bytes], None]) -> None:
        # The time makes each content different from the one before.
        record = self._holder | {"renewed": datetime.now(UTC).isoformat(timespec="microseconds")}
        write(self.path, json.dumps(record, indent=1).encode())
        self._renewed = time.monotonic()

    def _is_own(self, found: bytes) -> bool:
        return self._run.encode() in found

    def _busy(self, found: bytes) -> BusyError:
        return BusyError(f"{self._called(found)}: try again when that run has ended")

    def _called(self, found: bytes) -> str:
        """Describe the run that has the lease."""
        try:
            holder = json.loads(found)
            whose = f" (host {holder['host']}, process {holder['process']}, since {holder['since']})"
        except (LookupError, TypeError, ValueError):
            whose = ""
        return f"another run{whose} is training {shown(self._model)}"
