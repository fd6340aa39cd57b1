"""A scheduler, workers and clients as processes; workers in *slots* that keep their address from one process to the next.

Nothing here waits for a process that may be stopped: signals are sent, and requests to the cluster have a time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from distributed import Client

from tests.chaos.fits import Spec
from tests.chaos.inside import PAUSE, RESUME

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Setting:
    """A cluster, drawn from a seed.

    streams : rows are in files wherever there is a memory limit; exchange : histograms are reduced by feature; relays : at most
    two workers answer the scheduler; lines : rounds travel on lines.
    """

    n_workers: int
    nanny: bool
    fixed_ports: bool
    threads: int
    memory_limit: str
    streams: bool
    exchange: bool
    relays: bool
    lines: bool
    patience: float

    @classmethod
    def draw(cls, chance: random.Random, patience: float) -> Setting:
        nanny = chance.random() < 0.4
        return cls(
            n_workers=chance.randint(3, 5),
            nanny=nanny,
            fixed_ports=not nanny or chance.random() < 0.5,
            threads=chance.choice([1, 1, 2]),
            memory_limit=chance.choice(["2GiB", "2GiB", "0"]),
            streams=chance.random() < 0.3,
            exchange=chance.random() < 0.3,
            relays=chance.random() < 0.5,
            lines=chance.random() < 0.8,
            patience=patience,
        )

    def environment(self) -> dict[str, str]:
        own = {
            "DASK_DBOOST__PATIENCE": f"{self.patience}s",
            "DASK_DBOOST__WORKER_TIMEOUT": "30s",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        own |= {"CHAOS_STREAM": "1"} if self.streams else {}
        own |= {"DASK_DBOOST__FAN_IN": "2"} if self.relays else {}
        own |= {"DASK_DBOOST__LINES": str(self.lines).lower()}
        return own | ({"DASK_DBOOST__GATHER_BYTES": "0B", "DASK_DBOOST__OWNER_BYTES": "1B"} if self.exchange else {})


class Process:
    """A process whose output goes to a file.

    talks : its standard output is read for events; hears : its standard input receives orders.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        folder: Path,
        environment: dict[str, str],
        *,
        talks: bool = False,
        hears: bool = False,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with open(self.log, "ab") as log:
            log.write(f"--- {name} starts at {time.time():.3f}: {' '.join(command)}\n".encode())
            log.flush()
            self.popen = subprocess.Popen(
                command,
                env=os.environ | environment,
                cwd=ROOT,
                stdin=subprocess.PIPE if hears else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self.popen.pid

    def order(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(line.encode() + b"\n")
        self.popen.stdin.flush()

    @property
    def runs(self) -> bool:
        return self.popen.poll() is None

    def family(self) -> list[int]:
        """Return this process and its child processes."""
        found = [self.pid]
        with contextlib.suppress(psutil.Error):
            found += [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        return found

    def end(self) -> None:
        """Kill it and its children, whatever state they are in."""
        for pid in self.family():
            send(pid, signal.SIGKILL)
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def send(pid: int, number: int) -> bool:
    """Send a signal; return whether the process exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class Slot:
    """A worker's port, folder and present process."""

    def __init__(self, cluster: Cluster, number: int, fixed: bool) -> None:
        self.number, self._cluster = number, cluster
        self.port = free_port() if fixed else 0
        self.folder = cluster.folder / f"slot-{number}"
        (self.folder / "tmp").mkdir(parents=True)
        self.process: Process | None = None
        self.spare: Process | None = None
        self.wanted = True
        self.stopped: int | None = None
        self.paused = False

    def start(self) -> None:
        """Start a worker; without a nanny a waiting spare process takes over at once."""
        self.wanted, self.stopped, self.paused = True, None, False
        if self._cluster.setting.nanny:
            self.process = self._process("distributed.cli.dask_worker")
            return
        if self.spare is None or not self.spare.runs:
            self.spare = self._process("tests.chaos.spare", "--no-nanny", hears=True)
        self.process = self.spare
        with contextlib.suppress(OSError):  # it has ended: `supervise` will notice
            self.process.order("work")
        self.spare = self._process("tests.chaos.spare", "--no-nanny", hears=True)

    def _process(self, module: str, *more: str, hears: bool = False) -> Process:
        setting = self._cluster.setting
        command = [
            *(sys.executable, "-m", module, self._cluster.address),
            *("--host", "127.0.0.1", "--worker-port", str(self.port), "--nthreads", str(setting.threads)),
            *("--memory-limit", setting.memory_limit, "--no-dashboard", "--preload", "tests.chaos.inside"),
            *("--local-directory", str(self.folder), "--death-timeout", "60", *more),
        ]
        environment = self._cluster.environment | {"TMPDIR": str(self.folder / "tmp")}
        return Process(f"worker-{self.number}", command, self._cluster.folder, environment, hears=hears)

    def end(self) -> None:
        """End the worker and its spare process."""
        self.wanted = False
        for process in (self.process, self.spare):
            if process is not None:
                process.end()
        self.spare = None

    def pid(self) -> int | None:
        """Return the id of Dask's worker process (with a nanny, its child), once it can receive signals."""
        if self.process is None or not self.process.runs:
            return None
        ready = [pid for pid in self.process.family() if (self._cluster.ready / f"ready-{pid}").exists()]
        return ready[-1] if ready else None

    @property
    def works(self) -> bool:
        return self.stopped is None and not self.paused and self.pid() is not None

    def stop(self) -> bool:
        pid = self.pid()
        if pid is None or self.stopped is not None:
            return False
        self.stopped = pid
        return send(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        if self.stopped is not None:
            send(self.stopped, signal.SIGCONT)
            self.stopped = None

    def pause(self, paused: bool) -> bool:
        pid = self.pid()
        if pid is None:
            return False
        self.paused = paused
        return send(pid, PAUSE if paused else RESUME)

    def kill(self, whole: bool = False) -> bool:
        """Kill the worker; whole : with its nanny."""
        self.stopped, self.paused = None, False
        if self.process is None or not self.process.runs:
            return False
        pid = self.pid()
        if whole or not self._cluster.setting.nanny:
            self.process.end()
            return True
        return pid is not None and send(pid, signal.SIGKILL)


class ClientProcess:
    """The process of a client; `events` are those that it prints."""

    def __init__(self, cluster: Cluster, number: int, tables: Path) -> None:
        command = [sys.executable, "-m", "tests.chaos.client", cluster.address, str(tables)]
        temporary = cluster.folder / f"client-{number}-tmp"
        temporary.mkdir(exist_ok=True)
        environment = cluster.environment | {"TMPDIR": str(temporary)}
        self.process = Process(f"client-{number}", command, cluster.folder, environment, talks=True, hears=True)
        self.number = number
        self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.popen.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self.process.popen.stdout:
                if line.startswith(b"@@"):
                    self.events.put(json.loads(line[2:]))
        self.events.put({"event": "gone"})

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        event = self.events.get(timeout=seconds)
        if event["event"] != "ready":
            raise RuntimeError(f"client {self.number} did not start: see {self.process.log}")

    def order(self, job: str, spec: Spec) -> None:
        self.process.order(json.dumps({"job": job, "spec": asdict(spec)}))


class Cluster:
    """Processes of one setting; use as a context manager, which ends them all."""

    def __init__(self, setting: Setting, folder: Path, tables: Path) -> None:
        self.setting, self.folder, self._tables = setting, folder, tables
        self.ready = folder / "ready"
        self.ready.mkdir(parents=True)
        self.environment = setting.environment() | {"CHAOS_READY": str(self.ready)}
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.slots: list[Slot] = []
        self.clients: dict[int, ClientProcess] = {}
        #: Events of Dask's topic "dboost".
        self.news: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.n_restarts = 0

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _start(self) -> None:
        port = self.address.rpartition(":")[2]
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port]
        command += ["--no-dashboard", "--preload", "tests.chaos.inside"]
        self.scheduler = Process("scheduler", command, self.folder, self.environment)
        for number in range(self.setting.n_workers):
            self.slots.append(Slot(self, number, self.setting.fixed_ports))
            self.slots[-1].start()
        self.monitor = Client(self.address, set_as_default=False, timeout="60s")
        self.monitor.subscribe_topic("dboost", lambda event: self.news.put(event[1]))
        for number in range(2):
            self.client(number)
        until = time.monotonic() + 180
        while len(self.roster()) < self.setting.n_workers:
            if time.monotonic() > until:
                raise RuntimeError(f"the workers do not start: see {self.folder}")
            self.supervise()
            time.sleep(0.2)

    def end(self) -> None:
        """End all processes."""
        with contextlib.suppress(Exception):
            self.monitor.close(timeout=2)
        for client in self.clients.values():
            client.process.end()
        for slot in self.slots:
            slot.end()
        if hasattr(self, "scheduler"):
            self.scheduler.end()

    def client(self, number: int) -> ClientProcess:
        """Return the client with this number, started if necessary (and then not yet ready)."""
        if number not in self.clients or not self.clients[number].process.runs:
            self.clients[number] = ClientProcess(self, number, self._tables)
            self.clients[number].wait_until_ready()
        return self.clients[number]

    def add_slot(self) -> Slot:
        slot = Slot(self, len(self.slots), self.setting.fixed_ports)
        self.slots.append(slot)
        slot.start()
        return slot

    def supervise(self) -> list[int]:
        """Restart workers whose process has ended by itself; return the numbers of their slots."""
        found = []
        for slot in self.slots:
            if slot.wanted and slot.process is not None and not slot.process.runs:
                slot.start()
                self.n_restarts += 1
                found.append(slot.number)
        return found

    def roster(self) -> list[str]:
        """Return the workers that the scheduler knows."""
        return list(self.within(10.0, lambda: self.monitor.run_on_scheduler(_workers)) or [])

    def address_of(self, slot: Slot) -> str | None:
        """Return the scheduler's address of a slot's worker."""
        return self.within(5.0, lambda: self.monitor.run_on_scheduler(_address_in, folder=str(slot.folder)))

    def within(self, seconds: float, ask: Callable[[], Any]) -> Any:
        """Return the result of a call, or None if it takes longer or fails."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.later(lambda: answers.put(ask()))
        try:
            return answers.get(timeout=seconds)
        except queue.Empty:
            return None

    def later(self, work: Callable[[], Any]) -> None:
        """Run a function in a thread, which may never end."""

        def carefully() -> None:
            with contextlib.suppress(Exception):
                work()

        threading.Thread(target=carefully, daemon=True).start()

    def print_stacks(self) -> None:
        """Make every process print its stacks into its log."""
        send(self.scheduler.pid, signal.SIGUSR1)
        for client in self.clients.values():
            send(client.process.pid, signal.SIGUSR1)
        for slot in self.slots:
            pid = slot.pid()
            if pid is not None:
                send(pid, signal.SIGCONT)
                send(pid, signal.SIGUSR1)

    def logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def peaks(self) -> dict[str, float]:
        """Return the largest resident memory so far of each process, in MiB."""
        pids = {"scheduler": self.scheduler.pid} | {f"client {n}": one.process.pid for n, one in self.clients.items()}
        pids |= {f"worker {slot.number}": pid for slot in self.slots if (pid := slot.pid()) is not None}
        found = {}
        for name, pid in pids.items():
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                found[name] = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
        return found


def free_port() -> int:
    """Return a port below the ephemeral ones, so that no connection takes it while its worker is away."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


def _workers(dask_scheduler: Any = None) -> list[str]:
    return list(dask_scheduler.workers)


def _address_in(folder: str, dask_scheduler: Any = None) -> str | None:
    found = [a for a, state in dask_scheduler.workers.items() if str(state.local_directory).startswith(folder + "/")]
    return found[-1] if found else None
