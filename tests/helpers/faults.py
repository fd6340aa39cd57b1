"""Faults in the middle of fits on clusters of processes: what happens to which worker (`Fault`), and when (`Faults`).

A moment is a call of the fit: of a method of the sessions, of the reducer, or the arrival of a partition that was read. Faults
happen just before the call is sent, or some time after that. So a fit can be hit at each of its calls.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import dask
import pytest
from distributed.core import Status

from dboost.cluster.client.connection import Connection
from dboost.cluster.transport.messages import SessionRef
from dboost.session.session import Session
from dboost.tuning import tuned
from tests.helpers.clusters import Processes, forget_rows, held_fits, held_rows, scheduler_plugin, session_names, until
from tests.helpers.fits import cut
from tests.helpers.fixed_calls import CASES, FixedCall, Result, result_of
from tests.helpers.places import can_prepare_on_cluster, prepared, rows_in_files


class Setting(NamedTuple):
    """A configuration of a cluster, and how fits on it are called."""

    n_workers: int = 3
    #: Keys of the configuration.
    keys: Mapping[str, Any] = MappingProxyType({})
    #: Of `Processes`. With workers on another host than the scheduler, two rounds are under way at the same time.
    hosts: tuple[str, ...] = ()
    nanny: bool = False
    #: Whether the rows are in files; or in a data set that the workers prepare.
    in_files: bool = False
    is_prepared: bool = False


SETTINGS = {
    "lines": Setting(),
    "two rounds": Setting(hosts=("another",)),
    "relays": Setting(6, {"fan-in": 2}, hosts=("another",)),
    "slices": Setting(6, {"fan-in": 2, "gather-bytes": "0B", "owner-bytes": "1B"}),
    "one worker": Setting(2, {"single-worker-values": 8_000_000, "session-per-host": True}),
    "one session": Setting(3, {"session-per-host": True}),
    "nannies": Setting(nanny=True),
    "two hosts": Setting(4, {"session-per-host": True}, hosts=("one", "two")),
    "files": Setting(in_files=True),
    "prepared": Setting(is_prepared=True),
}


class Fault(NamedTuple):
    kind: str  # see `Faults.strike`; "killed" and "stopped" may have a step of `fail_in`: "killed in a round"
    call: str
    number: int = 0  # of such calls before
    delay: float = 0.0  # seconds
    victim: int = 0  # of the workers that are there, in the order of their addresses; -1 is the one with most rows

    def __str__(self) -> str:
        return f"{self.kind}, {self.call} {self.number}{f' + {self.delay} s' if self.delay else ''}"


class Faults:
    """Faults of the fits that run in a ``with`` block. After it, nothing of them is left on the cluster.

    calls : the calls of these fits, by name. joined : the addresses of workers that have joined as a fault.
    """

    _connection: Connection

    def __init__(self, cluster: Processes, faults: Sequence[Fault] = ()) -> None:
        self._cluster, self.waiting = cluster, list(faults)
        self.calls: Counter[str] = Counter()
        self.joined: set[str] = set()
        self._pids = cluster.pids()
        self._stopped: list[int] = []
        self._useless: list[subprocess.Popen[bytes]] = []
        self._paused: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()
        self._errors: list[BaseException] = []

    def __enter__(self) -> Faults:
        call, record = Connection._call, Connection.record_event

        def calling(connection: Connection, operation: str, **arguments: Any) -> Any:
            self._connection = connection
            self._see(arguments.get("method", operation))
            return call(connection, operation, **arguments)

        def recording(connection: Connection, action: str, **what: Any) -> None:
            if action == "reading":
                self._see(f"reading {what['table'].split()[0]}")
            record(connection, action, **what)

        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(Connection, "_call", calling)
        self._patch.setattr(Connection, "record_event", recording)
        self._tuned = tuned(event_seconds=0.0)
        self._tuned.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._tuned.__exit__(None, None, None)
        self._patch.undo()
        for thread in self._threads:
            thread.join()
        for pid in self._stopped:
            os.kill(pid, signal.SIGKILL)
        for process in self._useless:
            process.kill()
            process.wait()
        cluster = self._cluster
        until(lambda: cluster.nanny or cluster.addresses() == set(self._pids))
        cluster.client.run(_set_status, "running", on_error="ignore")
        nothing_is_held(cluster)
        if self._errors:
            raise self._errors[0]

    def _see(self, name: str) -> None:
        with self._lock:
            number = self.calls[name]
            self.calls[name] += 1
            due = [fault for fault in self.waiting if (fault.call, fault.number) == (name, number)]
            self.waiting = [fault for fault in self.waiting if fault not in due]
        for fault in due:
            if fault.delay:
                self._threads.append(threading.Thread(target=self._strike_later, args=(fault,)))
                self._threads[-1].start()
            else:
                self.strike(fault)

    def _strike_later(self, fault: Fault) -> None:
        time.sleep(fault.delay)
        try:
            self.strike(fault)
        except BaseException as error:
            self._errors.append(error)

    def strike(self, fault: Fault) -> None:
        """Carry out a fault. If only one worker is left that is not paused, another one joins before."""
        with self._lock:
            if fault.kind.startswith("joined"):
                self._newcomer(fault.kind)
                return
            if len(self._pids.keys() - self._paused) < 2:
                self._join()
            if fault.kind == "all killed":
                for worker in list(self._pids):
                    self._kill(worker)
                self._join()
            else:
                # Newcomers come last: a test expects that they get rows.
                workers = sorted(self._pids, key=lambda worker: (worker in self.joined, worker))
                if fault.victim < 0:
                    workers.sort(key=self._cluster.client.run(held_rows).get)
                worker = workers[fault.victim % len(workers)]
                kind, _, step = fault.kind.partition(" in ")
                if step:
                    self._arm(worker, step, signal.SIGSTOP if kind == "stopped" else signal.SIGKILL)
                    return
                {
                    "killed": self._kill,
                    "lost": self._lose,
                    "restarted": self._restart,
                    "stopped": self._stop,
                    "held up": self._hold_up,
                    "paused": self._pause,
                    "retired": self._retire,
                    "given up": self._give_up,
                    "without rows": self._lose_rows,
                }[fault.kind](worker)

    def _newcomer(self, kind: str) -> None:
        """A worker joins: `joined`, `joined late` (it does not answer at first), or with a kind of `SABOTAGE` after a colon."""
        if sabotage := kind.partition(": ")[2]:
            known = self._cluster.addresses()
            self._useless.append(self._cluster.sabotaged_worker(sabotage))
            until(lambda: len(self._cluster.addresses()) > len(known))
            return
        self.joined |= (joined := self._join())
        if kind == "joined late":
            self._threads.append(threading.Thread(target=self._hold_up, args=(*joined, 4.0)))
            self._threads[-1].start()

    def _kill(self, worker: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pids.pop(worker), signal.SIGKILL)

    def _arm(self, worker: str, step: str, what: signal.Signals) -> None:
        """Have a worker get a signal at its next step of a kind."""
        pid = self._pids.pop(worker)
        if what is signal.SIGSTOP:
            self._stopped.append(pid)
        self._cluster.client.run(fail_in, step, int(what), workers=[worker])

    def _lose(self, worker: str) -> None:
        """Kill a worker, and wait until the scheduler knows."""
        self._kill(worker)
        until(lambda: worker not in self._cluster.addresses())

    def _restart(self, worker: str) -> None:
        """Start another worker at the address."""
        self._lose(worker)
        self._paused.discard(worker)
        self._join("--worker-port", worker.rpartition(":")[2])

    def _stop(self, worker: str) -> None:
        self._stopped.append(self._pids.pop(worker))
        os.kill(self._stopped[-1], signal.SIGSTOP)

    def _pause(self, worker: str) -> None:
        self._cluster.client.run(_set_status, "paused", workers=[worker])
        self._paused.add(worker)

    def _hold_up(self, worker: str, seconds: float = 0.5) -> None:
        """Stop a worker, by default for less than the time after which it is given up."""
        pid = self._pids[worker]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    def _retire(self, worker: str) -> None:
        del self._pids[worker]
        self._cluster.client.retire_workers([worker])

    def _give_up(self, worker: str) -> None:
        """Give up the sessions of a worker, as if its connection were broken; it stays, and may receive its rows again."""
        for name in self._cluster.client.run(session_names, workers=[worker])[worker]:
            self._connection.abandon([SessionRef(worker, name)])

    def _lose_rows(self, worker: str) -> None:
        """Have a worker forget some rows, whatever the cause: every advance and the root of every tree count them."""
        self._cluster.client.run(forget_rows, workers=[worker])

    def _join(self, *arguments: str) -> set[str]:
        if self._cluster.nanny and not self._pids:
            return set()  # the nannies start all workers again
        before = self._cluster.addresses()
        process = self._cluster.add_worker(*arguments)
        until(lambda: bool(self._cluster.addresses() - before - set(self._pids)))
        joined = self._cluster.addresses() - before - set(self._pids)
        self._pids |= dict.fromkeys(joined, process.pid)
        return joined


def fail_in(step: str, what: int, dask_worker: Any = None) -> None:
    """For `Client.run`: the worker gets a signal at its next step of a kind.

    step : "a round" after the first one of a tree, which waits for the request of another round; "sending" of slices or of a
    sample to other workers; "a sum", which is sending slices that the worker has added up for its group.
    """
    plugin = dask_worker.plugins["dboost"]
    compute, send = Session.round_histograms, plugin._send_slices

    @wraps(compute)  # its name is that of the call
    def computing(session: Session, tasks: Any, requests: Any) -> Any:
        if not tasks:
            select.select([next(iter(plugin._lines))], [], [], 0.5)
            os.kill(os.getpid(), what)
        return compute(session, tasks, requests)

    def sending(fit: str, ref: Any, number: int, stage: int, slices: Any) -> None:
        if step == "sending" or stage == 1:
            os.kill(os.getpid(), what)
        send(fit, ref, number, stage, slices)

    if step == "a round":
        Session.round_histograms = computing  # type: ignore[method-assign]
    else:
        plugin._send_slices = sending


async def _set_status(status: str, dask_worker: Any = None) -> None:
    dask_worker.status = Status[status]


def files_of_fits(dask_worker: Any = None) -> list[str]:
    """For `Client.run`: the files of fits below a worker's directory."""
    return [str(path) for path in Path(dask_worker.local_directory).glob("dboost-*/*")]


def nothing_is_held(cluster: Processes) -> None:
    """Wait until neither scheduler nor workers hold anything of a fit, in memory or in files."""
    left: list[Any] = []

    def none() -> bool:
        client = cluster.client
        left[:] = [client.run_on_scheduler(scheduler_plugin)["fits"], client.run(held_fits), client.run(files_of_fits)]
        return not left[0] and not any(left[1].values()) and not any(left[2].values())

    try:
        until(none)
    except AssertionError:
        raise AssertionError(f"after a minute there is still {left}") from None


class StruckCall(FixedCall):
    """A fixed fit of rows in eight partitions."""

    def _given(self, frame: Any) -> Any:
        return cut(frame, [len(frame) * k // 8 for k in range(1, 8)]) if self.is_lazy else frame


class Struck:
    """A cluster of processes of one setting, on which fits are struck by faults."""

    def __init__(self, name: str) -> None:
        self.name, self.setting = name, SETTINGS[name]
        keys = self.setting.keys
        self._config = dask.config.set({f"dboost.{key}": value for key, value in keys.items()})
        environment = {f"DASK_DBOOST__{key.upper().replace('-', '_')}": str(value) for key, value in keys.items()}
        environment["DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE"] = "False"
        self._warm: dict[str, tuple[set[str], Counter[str]]] = {}
        self.cluster = Processes(
            self.setting.n_workers, nanny=self.setting.nanny, environment=environment, hosts=self.setting.hosts
        )

    def __enter__(self) -> Struck:
        return self

    def __exit__(self, *_: object) -> None:
        self._config.__exit__(None, None, None)
        self.cluster.__exit__()

    def fit(self, case: str, folder: Path, client: Any = None, seconds: float = 0.0) -> Result:
        """Return the result of a case on the cluster. seconds : between two iterations."""
        fixed = CASES[case]
        more: dict[str, Any] = {}
        if self.setting.in_files and fixed.is_global and not fixed.refits:
            more["memory_limit"] = "64MiB"
        if seconds and not fixed.refits:
            more["callbacks"] = [lambda now: time.sleep(seconds)]
        call = StruckCall(fixed.earlier, folder, client or self.cluster.client, fixed=fixed, is_lazy=True)
        with rows_in_files(256) if self.setting.in_files else nullcontext():
            if self.setting.is_prepared and can_prepare_on_cluster(fixed):
                return result_of(prepared(call, client=call.client, how=more), fixed)
            return result_of(call.train(client=call.client, **more), fixed)

    def warm(self, case: str, folder: Path) -> Counter[str]:
        """Have all workers again, train a case on them, and return its calls: a worker that compiles does not answer."""
        self.cluster.ensure_workers(self.setting.n_workers)
        workers = self.cluster.addresses()
        if case not in self._warm or self._warm[case][0] != workers:
            with Faults(self.cluster) as calm:
                self.fit(case, folder)
            self._warm[case] = workers, calm.calls
        return self._warm[case][1]


def here(case: str) -> Result:
    """Return the result of a case in the memory of this process."""
    fixed = CASES[case]
    return result_of(StruckCall(fixed.earlier, Path(), fixed=fixed).train(), fixed)
