"""Clusters of other packages: Dask's SSHCluster, dask-jobqueue and Dask Gateway give the model of one process, faults included.

Hosts, queue and gateway are processes of this machine on loopback: an SSH server with keys of its own, commands that behave as
those of SLURM, and a gateway server with its backend for local processes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pytest
from distributed import Client

import dboost
from tests.helpers.clusters import ENVIRONMENT, ROOT, a_table, at

pytestmark = pytest.mark.slow

TABLE = a_table(4000)
OPTIONS: dict[str, Any] = {"max_iter": 30, "features": ["a", "b", "c", "e"], "progress": False}
#: What processes on another host need from this one: the code, and compiled kernels.
PASSED = {**ENVIRONMENT, **{name: os.environ[name] for name in ("NUMBA_CACHE_DIR",) if name in os.environ}}


@pytest.fixture(scope="module")
def expected() -> str:
    return dboost.fit(TABLE, "y", **OPTIONS).sha256


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(log.read_text(errors="replace")[-3000:])
        time.sleep(0.05)


def is_up(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
        return bool(reply.status == 200)
    return False


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def started(command: list[str], log: Path, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, which ends with the context."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **more)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def check_fits(client: Client, expected: str, lose: Callable[[dict[str, int]], None]) -> None:
    """Fit on a cluster of two workers, undisturbed and with a fault. lose : is called in a fit with the workers' processes."""
    client.wait_for_workers(2, timeout=120)
    frame = dd.from_pandas(TABLE, npartitions=4)
    assert dboost.fit(frame, "y", client=client, **OPTIONS).sha256 == expected
    before = client.run(os.getpid)
    disturbed = dboost.fit(frame, "y", client=client, callbacks=[at(10, lambda: lose(before))], **OPTIONS)
    assert disturbed.sha256 == expected
    deadline = time.monotonic() + 60
    while client.run(os.getpid, on_error="ignore") == before:
        assert time.monotonic() < deadline, "no worker was lost"
        time.sleep(0.2)


def kill_one(processes: dict[str, int]) -> None:
    os.kill(next(iter(processes.values())), signal.SIGKILL)


# --------------------------------------------------------------------------------------------------------------- SSHCluster


@pytest.fixture
def host(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The arguments of a connection to this machine, by an SSH server that only accepts the key of this test."""
    pytest.importorskip("asyncssh")
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if server is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no SSH server: the programs sshd and ssh-keygen are not installed")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    port = free_port()
    lines = [
        f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {tmp_path}/host", f"AuthorizedKeysFile {tmp_path}/user.pub",
        f"PidFile {tmp_path}/pid", "StrictModes no", "UsePAM no", "PasswordAuthentication no",
    ]  # fmt: skip
    (tmp_path / "sshd_config").write_text("\n".join(lines) + "\n")
    separate = Path("/run/sshd")  # an empty folder, without which root cannot start the server
    made = os.geteuid() == 0 and not separate.exists()
    if made:
        separate.mkdir(mode=0o755)
    log = tmp_path / "sshd.log"
    try:
        with started([server, "-D", "-e", "-f", str(tmp_path / "sshd_config")], log) as process:
            wait_until(lambda: answers(port), process, log)
            key = (tmp_path / "host.pub").read_text()
            (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {key}")
            yield {
                "port": port, "client_keys": [str(tmp_path / "user")], "known_hosts": str(tmp_path / "known"), "config": None,
            }  # fmt: skip
    finally:
        if made:
            separate.rmdir()


def end(processes: set[int]) -> None:
    """Wait until processes have ended, and kill those that do not: no parent of them is left that would."""
    deadline = time.monotonic() + 10
    while (processes := {one for one in processes if Path(f"/proc/{one}").exists()}) and time.monotonic() < deadline:
        time.sleep(0.1)
    for one in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def test_ssh_cluster(host: dict[str, Any], expected: str) -> None:
    from distributed import SSHCluster

    def own_processes() -> tuple[int, int]:
        return os.getpid(), os.getppid()

    variables = " ".join(f"{name}={value}" for name, value in PASSED.items())  # SSH passes none by itself
    with (
        contextlib.ExitStack() as stack,
        SSHCluster(
            ["127.0.0.1"] * 3,
            connect_options=host,
            worker_options={"nthreads": 1},
            scheduler_options={"port": 0, "dashboard_address": ":0"},
            remote_python=f"{variables} {sys.executable}",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(2, timeout=120)
        stack.callback(end, {one for pair in client.run(own_processes).values() for one in pair})
        check_fits(client, expected, kill_one)


# ----------------------------------------------------------------------------------------------------------- dask-jobqueue

#: A job is a session of processes; the queue is a folder with the process id of each job.
COMMANDS = {
    "sbatch": """
        cp "$1" "{queue}/../$$.sh"
        setsid sh "{queue}/../$$.sh" > "{queue}/../$$.log" 2>&1 < /dev/null &
        echo $! > "{queue}/$$"
        echo "Submitted batch job $$"
    """,
    "scancel": """
        for job; do
            kill -s KILL -- "-$(cat "{queue}/$job")" && rm "{queue}/$job"
        done
    """,
}


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a queue whose commands are on the PATH; its jobs end with the test."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    pytest.importorskip("dask_jobqueue")
    signal.signal(signal.SIGINT, on_interrupt)  # importing it ends the process on ^C
    for name in ("sh", "setsid"):
        if shutil.which(name) is None:
            pytest.skip(f"no queue: the command {name} is not installed")
    folder, programs = tmp_path / "queue", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    for name, text in COMMANDS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text.format(queue=folder)}")
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    yield folder
    for job in folder.iterdir():
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.killpg(int(job.read_text()), signal.SIGKILL)


def test_batch_jobs(queue: Path, expected: str, tmp_path: Path) -> None:
    from dask_jobqueue import SLURMCluster

    with (
        SLURMCluster(
            cores=1, processes=1, memory="1GiB", walltime="01:00:00",
            local_directory=str(tmp_path), log_directory=str(tmp_path),
            job_script_prologue=[f"export {name}='{value}'" for name, value in PASSED.items()],
            worker_extra_args=["--lifetime", "50m", "--lifetime-stagger", "5m", "--host", "127.0.0.1", "--no-dashboard"],
            scheduler_options={"host": "127.0.0.1", "dashboard_address": ":0"},
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        cluster.adapt(minimum_jobs=2, maximum_jobs=2)

        def cancel(_: object) -> None:
            subprocess.run(["scancel", min(job.name for job in queue.iterdir())], check=True)

        check_fits(client, expected, cancel)
        client.wait_for_workers(2, timeout=120)
        assert len(list(queue.iterdir())) == 2, "a new job replaces the one that was cancelled"
    assert not list(queue.iterdir()), "the cluster ends its jobs"


# ------------------------------------------------------------------------------------------------------------ Dask Gateway


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[str]:
    """The address of a gateway server with the settings of the page, which starts clusters as processes of this user."""
    pytest.importorskip("dask_gateway")
    pytest.importorskip("dask_gateway_server")
    port = free_port()
    page = (ROOT / "docs" / "deploy" / "client.md").read_text(encoding="utf-8")
    settings = "".join(line for line in page.splitlines(keepends=True) if line.startswith("c."))
    assert ":8000" in settings
    settings = settings.replace(":8000", f":{port}") + (
        f"c.UnsafeLocalBackend.clusters_directory = {str(tmp_path)!r}\n"
        f"c.UnsafeLocalBackend.inherited_environment = {['PATH', 'HOME', *PASSED]}\n"
    )
    (tmp_path / "gateway.py").write_text(settings)
    environment = os.environ | PASSED | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    log = tmp_path / "gateway.log"
    command = [sys.executable, "-m", "dask_gateway_server", "-f", str(tmp_path / "gateway.py")]
    with started(command, log, env=environment, cwd=tmp_path) as process:
        wait_until(lambda: is_up(f"http://127.0.0.1:{port}/api/version"), process, log)
        yield f"http://127.0.0.1:{port}"


def test_dask_gateway(gateway: str, expected: str) -> None:
    from dask_gateway import Gateway

    with Gateway(gateway, auth="basic") as client_of_gateway, client_of_gateway.new_cluster() as cluster:
        cluster.scale(2)
        with cluster.get_client(set_as_default=False) as client:
            check_fits(client, expected, kill_one)
