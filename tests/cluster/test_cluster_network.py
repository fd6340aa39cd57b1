"""Workers on separate hosts: network namespaces with a slow link each, one of which is cut.

Skipped where creating namespaces is not permitted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import dask.dataframe as dd
import pytest
from distributed import Client

import dboost
from tests.helpers.clusters import ENVIRONMENT, a_table, impatient
from tests.helpers.hosts import Hosts, NoHosts

pytestmark = pytest.mark.slow

FRAME = a_table(4000)[["a", "b", "c", "e", "z"]]
N_HOSTS = 3


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    try:
        with Hosts(N_HOSTS, "100mbit") as hosts:
            yield hosts
    except NoHosts as reason:
        pytest.skip(str(reason))


@pytest.fixture
def client(hosts: Hosts) -> Iterator[Client]:
    environment = os.environ | ENVIRONMENT
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    address = f"tcp://{hosts.bridge_address}:18786"
    options = ["--host", hosts.bridge_address, "--port", "18786", "--no-dashboard"]
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", *options]
    processes = [subprocess.Popen(command, **silent)]  # type: ignore[call-overload]
    for i in range(N_HOSTS):
        inside = [*hosts.inside(i), sys.executable, "-m", "distributed.cli.dask_worker", address]
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", hosts.address(i)]
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
    assert len(client.nthreads()) == N_HOSTS - 1
