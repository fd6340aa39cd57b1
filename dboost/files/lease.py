"""Leases: one run at a time writes a model, a checkpoint, a data set or a folder of predictions, on any storage.

All writers that need more than one step follow one rule:

* **Who may write.** A run holds a lease while it writes, and renews it before each step that others see: a replaced state, a
  deletion. So a run that has lost its lease neither replaces nor deletes files of the run that took over.
* **Which names are its own.** Every writer lists its names as a pattern. All others are left alone.
* **Deletion** is by exact names (`atomic_write.remove`, `atomic_write.remove_own`).

A lease is a file. Its record names the run, its host and its process; a run holds the file while it works and removes it at the
end. A thread rewrites the file three times in the lease's duration (`config.lease_seconds`), so the content of the file of a
live run changes. The record has the duration. Another run that finds the file watches it for this duration, by its own clock,
so neither the clocks of hosts nor their configurations need agree:

* The content changes: the other run is alive, and this one ends with a `BusyError`.
* The file disappears: the other run has ended, and this one creates the file.
* The content stays the same: the other run was killed, and this one takes over. If the record names a process of this machine
  that has ended, it takes over at once. Of two runs that do so at the same time, the file names the last one after a moment.

A file is created only if there is none (stores: a conditional put). A store that ignores the condition may give the lease to
two runs, and a run that was suspended for longer than the duration may have lost it. So every renewal first reads the file, and
a run that finds the record of another run, or no file, ends with a `BusyError` as well. A run that fails after it has lost the
lease (the other run has removed its files, for instance) ends with a `BusyError` too. Between the renewal and the step that
follows it, a run can still be suspended: stores and file systems have no operation that does both at once.
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
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from dboost.display import number
from dboost.errors import DBoostError, is_failure
from dboost.files.atomic_write import FileMissingError, create_whole, read_whole, remove, write_whole

#: How many times a file is read within a duration while it is watched.
_WATCHES = 30
#: Seconds of the longest duration that a file may name; a longer one is not a lease's.
_LONGEST = 1e8
#: Seconds after which, at most, the file names the last of the runs that take over at the same time.
_MOMENT = 0.5


class BusyError(DBoostError):
    """Another run has the lease; a later try may succeed."""


class Lease:
    """The right to write something, held within a ``with`` block.

    Parameters
    ----------
    path : str
        Path or URL of the lease's file.
    work : str
        What the holder is doing, for messages: "is training model.json".
    seconds : float, optional
        Duration after which an unchanged file counts as abandoned. Default: `config.lease_seconds`.

    Raises
    ------
    BusyError
        On entering, if another run has the lease.
    ModelFileError
        If the file cannot be written.
    """

    def __init__(self, path: str, work: str, seconds: float | None = None) -> None:
        self.path = path
        self._work, self._seconds = work, _configured_seconds() if seconds is None else seconds
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._run = uuid.uuid4().hex
        self._holder: dict[str, Any] = {"run": self._run, "host": socket.gethostname(), "process": os.getpid(), "since": now}
        self._holder["seconds"] = self._seconds
        if _machine() is not None:
            self._holder |= {"machine": _machine(), "started": _started(os.getpid())}
        self._renewed = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="dboost-lease", daemon=True)

    def __enter__(self) -> Lease:
        try:
            while not self._create() and not self._take_over():
                pass  # the file has disappeared
            self._thread.start()
        except DBoostError:
            raise
        except BaseException:  # interrupted
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        record = self._release()
        if record is not None and isinstance(error, DBoostError) and not isinstance(error, BusyError):
            raise self._busy(record) from error

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
            record = self._read()
            if not self._is_own(record):
                raise self._busy(record)
            self._write(write_whole)
            if self._renewed - began > self._seconds:  # suspended between reading and writing
                raise self._busy(record)

    def _release(self) -> bytes | None:
        """Remove the file if it is that of this run; return the content of another one, and nothing if there is no file."""
        try:
            record = self._read()
            if self._is_own(record):
                remove(self.path)
                return None
        except Exception as failed:  # the file counts as abandoned after its duration
            if not is_failure(failed):
                raise
            return None
        return record

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
            record = read_whole(self.path)
            if not _is_dead(record):
                self._watch(record)
            self._write(write_whole)
            time.sleep(min(self._seconds / _WATCHES, _MOMENT))
            now = read_whole(self.path)
        except FileMissingError:
            return False
        if not self._is_own(now):
            raise self._busy(now)
        return True

    def _watch(self, content: bytes) -> None:
        """Return when the content of the file has not changed for the duration, or when its process has ended."""
        seconds = self._duration(content)
        print(f"dboost: {self._called(content)}: waiting {number(seconds)} s for its next renewal", file=sys.stderr)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not _is_dead(content):
            time.sleep(min(seconds, self._seconds) / _WATCHES)
            now = read_whole(self.path)
            if now != content:
                raise self._busy(now)

    def _duration(self, content: bytes) -> float:
        """Return the duration of the lease that a file is of; that of this run if the file does not name one."""
        seconds: Any = _record_in(content).get("seconds")
        return float(seconds) if type(seconds) in (int, float) and 0 < seconds <= _LONGEST else self._seconds

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

    def _is_own(self, content: bytes) -> bool:
        return self._run.encode() in content

    def _busy(self, content: bytes) -> BusyError:
        return BusyError(f"{self._called(content)}: try again when that run has ended")

    def _called(self, content: bytes) -> str:
        """Describe the run that has the lease."""
        holder, whose = _record_in(content), ""
        if {"host", "process", "since"} <= holder.keys():
            whose = f" (host {holder['host']}, process {holder['process']}, since {holder['since']})"
        return f"another run{whose} {self._work}"


def _configured_seconds() -> float:
    from dboost.config import lease_seconds  # imports Dask

    return lease_seconds()


def _record_in(content: bytes) -> dict[str, Any]:
    """Return the record in the content of a file; empty if there is none."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_dead(content: bytes) -> bool:
    """Return whether the holder was a process of this machine that has ended; False if that is unknown."""
    machine, process, started = map(_record_in(content).get, ("machine", "process", "started"))
    if machine is None or machine != _machine() or type(started) is not str or type(process) is not int or process < 1:
        return False
    now = _started(process)
    if now is not None:
        return bool(now != started)
    try:  # processes of other users may be hidden
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False


@cache
def _machine() -> str | None:
    """Return what identifies the numbering of processes: the boot of the machine and the container; None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def _started(process: int) -> str | None:
    """Return when a process started, which tells it from others of its number; "" after its end, None if it is not found."""
    try:
        state, *others = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return "" if state in "ZX" else others[18]
