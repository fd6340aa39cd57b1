"""Workers on separate hosts: network namespaces with a slow link each, one of which is cut.

Skipped where creating namespaces is not permitted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator

import dask.dataframe as dd
import pytest
from distributed import Client

import dboost
from tests.helpers.clusters import ENVIRONMENT, a_table, impatient

pytestmark = pytest.mark.slow

FRAME = a_table(4000)[["a", "b", "c", "e", "z"]]
N_HOSTS = 3
#: A network address range that only this test uses.
NET = "10.213.7"


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def quietly(*command: str) -> None:
    subprocess.run(command, check=False, capture_output=True)


class Hosts:
    """A bridge with namespaces attached, each with 100 Mbit/s and 5 ms of delay."""

    def __init__(self) -> None:
        self.name = f"db{os.getpid() % 100_000}"

    def __enter__(self) -> Hosts:
        run("ip", "link", "add", self.name, "type", "bridge")
        run("ip", "addr", "add", f"{NET}.1/24", "dev", self.name)
        run("ip", "link", "set", self.name, "up")
        for i in range(N_HOSTS):
            space, outer, inner = self.space(i), self.outer(i), f"{self.name}i{i}"
            run("ip", "netns", "add", space)
            run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            run("ip", "link", "set", outer, "master", self.name, "up")
            run("ip", "link", "set", inner, "netns", space)
            run("ip", "-n", space, "addr", "add", f"{NET}.{i + 2}/24", "dev", inner)
            run("ip", "-n", space, "link", "set", inner, "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
            # Without this queue in the kernel the link is merely fast.
            quietly("tc", "qdisc", "add", "dev", outer, "root", "netem", "delay", "5ms", "rate", "100mbit")
        return self

    def __exit__(self, *_: object) -> None:
        for i in range(N_HOSTS):
            quietly("ip", "netns", "del", self.space(i))
            quietly("ip", "link", "del", self.outer(i))
        quietly("ip", "link", "del", self.name)

    def space(self, i: int) -> str:
        return f"{self.name}n{i}"

    def outer(self, i: int) -> str:
        return f"{self.name}o{i}"

    def cut(self, i: int) -> None:
        """Cut the link: connections stay open, but nothing arrives any more."""
        run("ip", "link", "set", self.outer(i), "down")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    if not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("the commands ip and tc are not here")
    hosts = Hosts()
    try:
        hosts.__enter__()
    except subprocess.CalledProcessError as error:
        hosts.__exit__()
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.decode().strip()}")
    with contextlib.ExitStack() as stack:
        stack.push(hosts)
        yield hosts


@pytest.fixture
def client(hosts: Hosts) -> Iterator[Client]:
    environment = os.environ | ENVIRONMENT
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    address = f"tcp://{NET}.1:18786"
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--host",
        f"{NET}.1",
        "--port",
        "18786",
        "--no-dashboard",
    ]
    processes = [subprocess.Popen(command, **silent)]  # type: ignore[call-overload]
    for i in range(N_HOSTS):
        inside = ["ip", "netns", "exec", hosts.space(i), sys.executable, "-m", "distributed.cli.dask_worker", address]
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", f"{NET}.{i + 2}"]
        processes.append(subprocess.Popen([*inside, *options], **silent))  # type: ignore[call-overload]
    try:
        with Client(address, set_as_default=False, timeout="30s") as client:
            client.wait_for_workers(N_HOSTS, timeout=60)
            yield client
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def test_a_fit_over_slow_links_one_of_which_is_cut(hosts: Hosts, client: Client) -> None:
    options = {"max_iter": 20, "progress": False, "max_leaf_nodes": 8}
    expected = dboost.fit(FRAME, "z", **options).sha256
    lazy = dd.from_pandas(FRAME, npartitions=6)
    assert dboost.fit(lazy, "z", client=client, **options).sha256 == expected
    cut = threading.Event()

    def pull(now: dboost.Iteration) -> None:
        if now.iteration == 5 and not cut.is_set():
            cut.set()
            hosts.cut(1)

    with impatient(client):
        assert dboost.fit(lazy, "z", client=client, callbacks=pull, **options).sha256 == expected
    assert cut.is_set()
    assert len(client.scheduler_info(n_workers=-1)["workers"]) == N_HOSTS - 1
