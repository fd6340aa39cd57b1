"""The commands and the environment of the manifests, started as processes of this machine, with an S3 server on loopback.

Arguments, variables, parameter files, ports and probes are read from the manifests. Only what differs between a container and
a process is replaced: the scheduler's name, ports, and mounted folders.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest

pytest.importorskip("kubernetes_validate")

import dboost
from dboost.model import model_file
from deploy.tests.manifests import Manifest, overlay, pods, read, the
from tests.helpers.clusters import ROOT, a_table
from tests.helpers.object_store import SECRET, served

pytestmark = pytest.mark.slow

MANIFESTS = read(
    "shared/settings.yaml", "base/scheduler.yaml", "base/workers.yaml", "base/train.yaml", "overlays/nightly/nightly.yaml"
)
TABLE = a_table(3000)[["a", "b", "c", "e", "y"]]
_REFERENCE = re.compile(r"\$\((\w+)\)")


class Machine:
    """Containers as processes.

    secret : content of the Secret for the store; manifests : all of them; volumes : folders of volumes that containers share.
    """

    def __init__(
        self,
        folder: Path,
        secret: dict[str, str],
        manifests: Sequence[Manifest] = MANIFESTS,
        volumes: dict[str, Path] | None = None,
    ) -> None:
        self._folder, self._secret, self._manifests, self._volumes = folder, secret, manifests, volumes or {}
        self.ports = {"8786": _free_port(), "8787": _free_port()}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.logs: list[Path] = []

    def start(self, manifest: Manifest, which: str = "containers") -> tuple[subprocess.Popen[bytes], str]:
        """Start one container of a resource; return the process, and the URL of its startup probe if it has one."""
        ((_, pod),) = pods(manifest)
        (container,) = pod[which]
        name = f"{container['name']}-{len(self.logs)}"
        own = {str(port["containerPort"]): _free_port() for port in container.get("ports", [])}
        ports = own | self.ports  # all containers know the scheduler's variables
        places = {mount["mountPath"]: self._mount(name, mount, pod) for mount in container["volumeMounts"]}

        def here(text: str) -> str:
            text = text.replace("dboost-scheduler", "127.0.0.1")
            text = re.sub(r"\b(878\d)\b", lambda match: ports[match[1]], text)
            for place, folder in places.items():
                if text == place or text.startswith(f"{place}/"):
                    return f"{folder}{text.removeprefix(place)}"
            return text

        given: dict[str, str] = {}
        for source in container.get("envFrom", []):
            given |= self._secret if "secretRef" in source else self._data_of(source["configMapRef"])
        for variable in container.get("env", []):
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            given[variable["name"]] = name if field == "metadata.name" else variable["value"]
        given = {key: here(value) for key, value in given.items()}
        command = [_REFERENCE.sub(lambda match: given[match[1]], here(argument)) for argument in container["args"]]
        # Only what an image has: the interpreter and the caches. A slow worker must not be removed as dead.
        inherited = {key: os.environ[key] for key in ("NUMBA_CACHE_DIR", "LANG", "COVERAGE_PROCESS_START") if key in os.environ}
        inherited |= {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": os.environ["HOME"],
            "PYTHONPATH": str(ROOT),
        }
        patience = {"DASK_DBOOST__PATIENCE": "60s"}
        log = self._folder / f"{name}.log"
        self.logs.append(log)
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env={**inherited, **patience, **given}, stdout=file, stderr=subprocess.STDOUT, cwd=places["/tmp"]
            )
        self._processes.append(process)
        return process, self._probe(container, ports)

    def _data_of(self, reference: dict[str, Any]) -> dict[str, str]:
        data: dict[str, str] = the("ConfigMap", list(self._manifests), reference["name"])["data"]
        return data

    def _mount(self, name: str, mount: dict[str, Any], pod: dict[str, Any]) -> Path:
        if mount["name"] in self._volumes:
            return self._volumes[mount["name"]]
        folder = self._folder / name / mount["name"]
        folder.mkdir(parents=True)
        (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
        if "configMap" in volume:
            for file, content in self._data_of(volume["configMap"]).items():
                (folder / file).write_text(content)
        return folder

    @staticmethod
    def _probe(container: dict[str, Any], ports: dict[str, str]) -> str:
        if "startupProbe" not in container:
            return ""
        probe = container["startupProbe"]["httpGet"]
        (port,) = (port["containerPort"] for port in container["ports"] if port["name"] == probe["port"])
        return f"http://127.0.0.1:{ports[str(port)]}{probe['path']}"

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def said(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in self.logs)


def _free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def until(what: Callable[[], Any], process: subprocess.Popen[bytes], machine: Machine, seconds: float = 500) -> None:
    """Wait for a condition that a process will fulfill."""
    deadline = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, f"it ended with status {process.returncode}\n{machine.said()}"
        assert time.monotonic() < deadline, machine.said()
        time.sleep(0.05)


def answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
        return reply.status == 200
    return False


@contextlib.contextmanager
def cluster(machine: Machine, manifests: list[Manifest]) -> Iterator[str]:
    """Start a scheduler and a worker; yield the URL of the scheduler's probe."""
    try:
        scheduler, health = machine.start(the("Deployment", manifests, "scheduler"))
        until(lambda: answers(health), scheduler, machine)
        worker, its_health = machine.start(the("Deployment", manifests, "workers"))
        until(lambda: answers(its_health), worker, machine)
        yield health
    finally:
        machine.close()


def finished(machine: Machine, manifest: Manifest, which: str = "containers") -> str:
    """Return the output of a container that ends well."""
    process, _ = machine.start(manifest, which)
    process.wait(timeout=600)
    assert process.returncode == 0, machine.said()
    return machine.logs[-1].read_text()


def test_the_laptop_overlay_trains_on_rows_of_its_own_over_encrypted_connections(tmp_path: Path) -> None:
    """With the component; the other test has connections without encryption."""
    faulthandler.cancel_dump_traceback_later()
    (tmp_path / "overlay").mkdir()
    manifests = overlay(tmp_path / "overlay", "overlays/laptop", components=["tls"])
    volumes = {"data": tmp_path / "volume", "tls": tmp_path / "secret"}
    for folder in volumes.values():
        folder.mkdir()
    # The certificate of the page.
    page = (ROOT / "docs" / "deploy" / "kubernetes.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ *(openssl req (?:.*\\\n)*.*)$", page, re.MULTILINE)
    assert shutil.which("openssl"), "the page uses it"
    subprocess.run(command + " && cp tls.crt ca.crt", shell=True, cwd=volumes["tls"], check=True, capture_output=True)
    machine = Machine(tmp_path, {}, manifests, volumes)
    job, rows = the("Job", manifests), volumes["data"] / "demo" / "train.parquet"
    with cluster(machine, manifests):
        finished(machine, job, "initContainers")
        assert "200 iterations" in finished(machine, job)
        before = rows.read_bytes()
        finished(machine, job, "initContainers")
        assert rows.read_bytes() == before, "the file was trained on under this name"
        assert "nothing new" in finished(machine, the("CronJob", manifests))
        logs = "".join(log.read_text() for log in machine.logs)
        assert "tls://" in logs and "tcp://" not in logs
        # Without a certificate the scheduler sends nothing.
        context = ssl.create_default_context(cafile=str(volumes["tls"] / "ca.crt"))
        context.check_hostname = False
        plain = socket.create_connection(("127.0.0.1", int(machine.ports["8786"])), timeout=30)
        with plain, pytest.raises(OSError), context.wrap_socket(plain) as connection:
            assert connection.recv(1) == b""
            raise ConnectionResetError
    assert {path.name for path in volumes["data"].iterdir()} == {"checkpoints", "demo", "model.json", "model.json.ledger.json"}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with served(tmp_path) as variables:
        secret = {name: value for name, value in variables.items() if name.startswith("AWS_")}
        machine = Machine(tmp_path, secret)
        try:
            yield machine
        finally:
            machine.close()


def test_train_killed_and_resumed_then_continued_then_nothing_new(machine: Machine, tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # every step has a deadline of its own
    store = fsspec.filesystem("s3")
    places = the("ConfigMap", MANIFESTS, "places")["data"]
    parameters = {
        name.removesuffix(".toml"): tomllib.loads(text) | {"progress": False}
        for name, text in the("ConfigMap", MANIFESTS, "parameters")["data"].items()
    }
    job, nightly = the("Job", MANIFESTS), the("CronJob", MANIFESTS)

    def arrive(first: int, last: int, name: str) -> None:
        TABLE.iloc[first:last].to_parquet(places["DBOOST_DATA"] + name, index=False)

    def finish(manifest: Manifest) -> str:
        process, _ = machine.start(manifest)
        process.wait(timeout=600)
        assert process.returncode == 0, machine.said()
        return machine.logs[-1].read_text()

    def objects() -> dict[str, Any]:
        store.invalidate_cache()
        found = store.find("lake", detail=True)
        return {name: (one["ETag"], one["LastModified"]) for name, one in found.items()}

    def checkpoint_files() -> list[str]:
        return [name for name in objects() if f"s3://{name}".startswith(places["DBOOST_CHECKPOINT"])]

    def checkpointed() -> bool:  # the state is written after the trees that it lists
        return any(name.endswith("/state.json") for name in checkpoint_files())

    def model() -> bytes:
        store.invalidate_cache()
        return store.cat_file(places["DBOOST_MODEL"])

    scheduler, health = machine.start(the("Deployment", MANIFESTS, "scheduler"))
    until(lambda: answers(health), scheduler, machine)
    workers = [machine.start(the("Deployment", MANIFESTS, "workers")) for _ in range(2)]
    for worker, health in workers:
        until(lambda health=health: answers(health), worker, machine)

    for i in range(3):
        arrive(800 * i, 800 * i + 800, f"part-{i}.parquet")
    first = dboost.fit(TABLE.iloc[:2400], places["DBOOST_TARGET"], **_without_places(parameters["train"]))
    client, _ = machine.start(job)
    until(checkpointed, client, machine)
    client.send_signal(signal.SIGKILL)
    client.wait()
    assert places["DBOOST_MODEL"].removeprefix("s3://") not in objects()
    # While no fit runs, a worker's node is removed and another one is added; a file arrives for the next batch.
    workers[0][0].kill()
    worker, health = machine.start(the("Deployment", MANIFESTS, "workers"))
    until(lambda: answers(health), worker, machine)
    arrive(2400, 2700, "part-3.parquet")
    said = finish(job)
    assert f"iteration {parameters['train']['max_iter']}/" in said and "iteration 1/" not in said
    assert model() == model_file.dumps(first.ensemble)
    assert not checkpoint_files()

    arrive(2700, 3000, "part-4.parquet")
    second = dboost.fit(TABLE.iloc[2400:], places["DBOOST_TARGET"], start_from=first, **_without_places(parameters["nightly"]))
    client, _ = machine.start(nightly)
    until(lambda: "iteration" in machine.logs[-1].read_text() or client.poll() is not None, client, machine)
    client.send_signal(signal.SIGTERM)  # as before a node is removed
    client.wait(timeout=60)
    finish(nightly)
    assert model() == model_file.dumps(second.ensemble)

    before = objects()
    assert "nothing new" in finish(nightly)
    assert "nothing new" in finish(job)
    assert objects() == before
    assert all(SECRET not in log.read_text() for log in machine.logs)
    assert all(SECRET.encode() not in store.cat_file(name) for name in before)


def _without_places(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name != "checkpoint_every"}
