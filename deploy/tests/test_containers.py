"""The image and the manifests on a container engine (make image-test): every fault ends in the model of an undisturbed fit.

The image is built from the Dockerfile. Scheduler, workers, jobs and the cron job are containers made from the rendered
manifests, under their network policy, with an S3 server beside them; see `deploy.tests.containers` and `deploy.tests.engine`.
Faults are those of a node or a network: signals, frozen processes, interfaces that are removed, pods that are replaced.

Durations are printed at the end. Those of a fault include the tries of a job that was interrupted, without the pauses that
Kubernetes makes between them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("kubernetes_validate")

import dboost
from dboost.model import model_file
from deploy.tests.containers import Bucket, Deployed, Pods
from deploy.tests.engine import GATEWAY, Engine, missing
from deploy.tests.manifests import Manifest, built, overlay, read, the
from deploy.tests.test_docker_image import DOCKERFILE, IGNORED, stages
from tests.helpers.clusters import ROOT, a_table
from tests.helpers.object_store import KEY_ID, SECRET

IMAGE = f"dboost:{dboost.__version__}"
PORT = 443  # of the store: the only one outside the cluster that the network policy permits
SCHEDULER, WORKERS, JOB = "dboost-scheduler-0", ("dboost-workers-0", "dboost-workers-1"), "dboost-train"
MODEL, LEDGER = "models/model.json", "models/model.json.ledger.json"
N_FILES, MAX_ITER = 8, 400
TABLE = a_table(100_000)[["a", "b", "c", "e", "y"]].assign(nothing=pd.Series(None, dtype="object"))

STORE = """
FROM {base}
COPY requirements requirements
RUN grep -hv "^-r" requirements/run.txt requirements/dev.txt > constraints.txt
RUN python -m venv /opt/store && /opt/store/bin/python -m pip install --no-cache-dir -q -c constraints.txt "moto[server,s3]"
CMD ["/opt/store/bin/moto_server", "-H", "0.0.0.0", "-p", "{port}"]
"""
#: The same dboost in another image, as after an update of the base.
REBUILT = "FROM {image}\nLABEL build=2\n"
#: Another version of dboost.
NEXT = r"""
FROM {image}
USER 0
RUN sed -i 's/^__version__ = .*/__version__ = "{version}"/' /opt/dboost/lib/python3*/site-packages/dboost/version.py
USER 65532:65532
"""


def parquet(frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    frame.to_parquet(file, index=False)
    return file.getvalue()


@dataclass
class Figures:
    """What is printed at the end."""

    lines: list[tuple[str, str]]
    #: Name of a fault, status of each try, seconds, digest of the model.
    faults: list[tuple[str, list[int], float, str]]


@pytest.fixture(scope="module")
def figures(request: pytest.FixtureRequest) -> Iterator[Figures]:
    found = Figures([], [])
    yield found
    lines = [f"{name:<58} {value}" for name, value in found.lines]
    if found.faults:
        lines.append(f"{'fault':<58} {'status':>8} {'seconds':>8} {'lost':>6}  sha256 of the model")
        normal = found.faults[0][2]
        for name, statuses, seconds, digest in found.faults:
            tries = ", ".join(map(str, statuses))
            lines.append(f"{name:<58} {tries:>8} {seconds:>8.1f} {seconds - normal:>6.1f}  {digest}")
    capture: Any = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        print("", *lines, sep="\n")


def reason_to_skip() -> str:
    if os.environ.get("IMAGE_TEST") != "1":
        return "building an image takes minutes: make image-test asks for it by IMAGE_TEST=1"
    lacks = missing() + ([] if shutil.which("kubectl") else ["the command kubectl"])
    return f"no container engine, for want of {', '.join(lacks)}" if lacks else ""


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(tmp_path_factory.mktemp("engine")) as started:
        yield started


@pytest.fixture(autouse=True)
def no_limit_of_pytest() -> None:
    faulthandler.cancel_dump_traceback_later()  # every step has a deadline of its own


@pytest.fixture(scope="module")
def base(engine: Engine, figures: Figures) -> str:
    faulthandler.cancel_dump_traceback_later()
    wanted = stages()[0]["BASE"]
    try:
        name, origin = engine.base(wanted)
    except LookupError as error:
        pytest.skip(f"no container engine, for want of {error}")
    figures.lines.append((f"base image ({origin})", f"{engine.size(name):.0f} MB"))
    return name


@pytest.fixture(scope="module")
def image(engine: Engine, base: str, figures: Figures) -> str:
    faulthandler.cancel_dump_traceback_later()
    places = ["--file", str(DOCKERFILE), "--ignorefile", str(IGNORED)]
    seconds = engine.build(IMAGE, *places, "--build-arg", f"BASE={base}")
    figures.lines.append(("image with base", f"{engine.size(IMAGE):.0f} MB, built or found in {seconds:.0f} s"))
    return IMAGE


def image_from(engine: Engine, image: str, tag: str, containerfile: str, **more: str) -> str:
    engine.build(tag, text=containerfile.format(image=image, **more))
    return tag


@pytest.fixture(scope="module")
def bucket(engine: Engine, base: str) -> Bucket:
    """The content of the bucket "lake", with the rows."""
    engine.build("dboost-store:test", text=STORE.format(base=base, port=PORT))
    address = engine.create("store", "dboost-store:test", [])
    engine.start("store")
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            engine.connect(address, PORT, 1).close()
            break
        assert time.monotonic() < deadline and engine.running("store"), engine.log("store")
        time.sleep(0.2)
    lake = Bucket(engine, address, PORT, "lake")
    lake.make()
    size = len(TABLE) // N_FILES
    for k in range(N_FILES):
        lake.put(f"rows/part-{k}.parquet", parquet(TABLE.iloc[size * k : size * (k + 1)]))
    return lake


def deployed(folder: Path, *components: str, **secrets: dict[str, str]) -> Deployed:
    """Return the nightly overlay as a user deploys it, with the store of these tests and fits that last for some seconds."""
    folder.mkdir()
    train = the("ConfigMap", read("shared/settings.yaml"), "parameters")["data"]["train.toml"]
    changes = {
        "dboost-places": {"AWS_ENDPOINT_URL": f"http://store:{PORT}", "AWS_DEFAULT_REGION": "us-east-1"},
        "dboost-parameters": {"train.toml": re.sub(r"max_iter = \d+", f"max_iter = {MAX_ITER}", train)},
    }
    patches = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data} for name, data in changes.items()
    ]
    manifests = overlay(folder, "overlays/nightly", components, patches)
    store = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
    return Deployed(manifests, {"dboost-store": store, **secrets})


class Cluster:
    """A deployment: scheduler, two workers, and its jobs."""

    def __init__(self, engine: Engine, bucket: Bucket, what: Deployed) -> None:
        self.engine, self.bucket, self.what = engine, bucket, what
        self.pods = Pods(engine, {"app.kubernetes.io/name": "dboost"})
        self.updated: dict[str, str] = {}  # another image, by container
        self._began: dict[str, float] = {}

    def of(self, name: str) -> Manifest:
        return the("Deployment", self.what.manifests, "scheduler" if name == SCHEDULER else "workers")

    def keep_up(self, *names: str) -> None:
        """Start anew what has ended, as Deployments do, and wait until it is ready."""
        started = [name for name in names or (SCHEDULER, *WORKERS) if not self._runs(name)]
        for name in started:
            self.pods.start(name, replace(self.what, image=self.updated.get(name, "")), self.of(name))
            if name == SCHEDULER:
                self.pods.wait_for_probe(name, self.of(name))
        for name in started:
            self.pods.wait_for_probe(name, self.of(name))

    def _runs(self, name: str) -> bool:
        return self.engine.has_container(name) and self.engine.running(name)

    def fresh(self) -> None:
        """Keep up the cluster without the other images, a model, a ledger and a checkpoint."""
        for name in self.updated:
            self.engine.stop(name, 30)
        self.updated = {}
        for job in (JOB, "nightly"):
            if self._runs(job):
                self.engine.kill(job)
        self.keep_up()
        for prefix in ("models/", "checkpoints/", "alone/", "predictions/", "other/"):
            self.bucket.remove(prefix)

    def close(self) -> None:
        for name in (JOB, *WORKERS, SCHEDULER):
            if self._runs(name):
                self.engine.kill(name)

    def start(self, name: str = JOB, kind: str = "Job", image: str = "", **more: Any) -> str:
        self._began[name] = time.monotonic()
        self.pods.start(name, replace(self.what, image=image), the(kind, self.what.manifests), **more)
        return name

    def finish(self, name: str = JOB) -> Outcome:
        status = self.engine.status(name)
        return Outcome(status, time.monotonic() - self._began[name], self.engine.log(name))

    def run(self, name: str = JOB, kind: str = "Job", **more: Any) -> Outcome:
        return self.finish(self.start(name, kind, **more))

    def until(self, iteration: int, name: str = JOB) -> int:
        """Wait until a job has finished an iteration; return the last one."""
        deadline = time.monotonic() + 300
        while (now := iterations(self.engine.log(name))[-1:] or [0])[0] < iteration:
            if time.monotonic() > deadline or not self._runs(name):
                raise RuntimeError(f"{name} did not reach iteration {iteration}\n{self.engine.log(name)[-3000:]}")
            time.sleep(0.05)
        return now[0]

    def digest(self, key: str = MODEL) -> str:
        content = self.bucket.get(key)
        return "none" if content is None else hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Outcome:
    status: int
    #: Since the start of its container.
    seconds: float
    log: str

    @property
    def message(self) -> str:
        return self.log.strip().splitlines()[-1]


def iterations(log: str) -> list[int]:
    return [int(found) for found in re.findall(r"^iteration (\d+)/", log, re.MULTILINE)]


@pytest.fixture(scope="module")
def cluster(engine: Engine, image: str, bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    faulthandler.cancel_dump_traceback_later()
    started = Cluster(engine, bucket, deployed(tmp_path_factory.mktemp("overlays") / "plain"))
    yield started
    started.close()


@dataclass(frozen=True)
class Reference:
    """The undisturbed fit."""

    booster: dboost.Booster
    digest: str
    outcome: Outcome


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, figures: Figures) -> Reference:
    """Fit without faults, once on the cluster and once in this process."""
    faulthandler.cancel_dump_traceback_later()
    cluster.fresh()
    first = cluster.run()
    assert first.status == 0, first.log
    digest = cluster.digest()
    cluster.fresh()
    outcome = cluster.run()
    assert outcome.status == 0 and cluster.digest() == digest, outcome.log
    booster = dboost.fit(TABLE, "y", progress=False, **parameters(cluster, "train"))
    assert digest == hashlib.sha256(model_file.dumps(booster.ensemble)).hexdigest(), "the image computes another model"
    figures.faults.append(("none", [0], outcome.seconds, digest))
    figures.faults.append(("none, first fit of new workers", [0], first.seconds, digest))
    return Reference(booster, digest, outcome)


def parameters(cluster: Cluster, job: str) -> dict[str, Any]:
    found = tomllib.loads(cluster.what.configuration("dboost-parameters")[f"{job}.toml"])
    return {name: value for name, value in found.items() if name != "checkpoint_every"}


@pytest.fixture
def same_model(cluster: Cluster, undisturbed: Reference, figures: Figures) -> Callable[..., None]:
    """Check the last of the tries of a job, and note the figures."""

    def check(fault: str, *tries: Outcome, key: str = MODEL) -> None:
        digest = cluster.digest(key)
        figures.faults.append((fault, [one.status for one in tries], sum(one.seconds for one in tries), digest))
        assert tries[-1].status == 0, tries[-1].log
        assert digest == undisturbed.digest
        assert not cluster.bucket.find("checkpoints/")
        assert not [name for name in cluster.bucket.find() if "lease" in name]

    return check


# ---------------------------------------------------------------------------------------------------------------- the image

POOR = (
    "--rm",
    "--network=none",
    "--read-only",
    "--read-only-tmpfs=false",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
)


def test_the_image_runs_as_nobody_without_rights(engine: Engine, image: str) -> None:
    check = (
        "test $(id -u):$(id -g) = 65532:65532; for f in /opt/dboost/x /x /tmp/x; do ! touch $f 2>&1; done; "
        "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; find /opt/dboost -perm -o=w ! -type l"
    )
    said = engine.podman("run", *POOR, image, "sh", "-ec", check).splitlines()
    rights = {name: int(value, 16) for name, _, value in (line.partition(":\t") for line in said if ":\t" in line)}
    assert rights == {"CapBnd": 0, "CapEff": 0, "NoNewPrivs": 1, "Seccomp": 2}
    assert [line for line in said if "touch:" in line and "Read-only file system" in line] == said[:3]
    assert len(said) == 7, "something in the image is writable for everybody"
    assert engine.podman("run", *POOR, image, "dboost", "--version").split()[1] == dboost.__version__


def test_the_image_is_small(engine: Engine, base: str, image: str) -> None:
    """At most 700 MB with a base of the size of python:3.12-slim."""
    assert engine.size(image) - engine.size(base) < 570


def test_the_image_knows_the_services_that_give_credentials(engine: Engine, image: str) -> None:
    """Not those of other services: their descriptions are removed."""
    script = """
from botocore.session import get_session
from botocore.exceptions import UnknownServiceError
for name in ("s3", "sts", "sso", "sso-oidc"):
    get_session().create_client(name, region_name="us-east-1")
try:
    get_session().create_client("ec2", region_name="us-east-1")
except UnknownServiceError:
    print("as expected")
"""
    assert engine.podman("run", "--interactive", *POOR, image, "python", "-", text=script) == "as expected"


def test_the_documented_command_trains_and_predicts(engine: Engine, image: str, tmp_path: Path, figures: Figures) -> None:
    tmp_path.chmod(0o755)
    data = tmp_path / "data"
    data.mkdir()
    (data / "rides.parquet").write_bytes(parquet(TABLE.iloc[:10_000]))
    options = (*POOR, "--init", "--tmpfs", "/tmp", "-v", f"{data}:/data")
    command = ("dboost", "train", "/data/rides.parquet", "--target", "y", "--output", "/data/model.json")
    # The folder belongs to the user of this process: as another one the command fails before it trains.
    with pytest.raises(RuntimeError, match=r"dboost: .*/data/model\.json.*Permission denied") as refused:
        engine.podman("run", *options, image, *command)
    assert "iteration" not in str(refused.value)
    user = ("--user", f"{os.getuid()}:{os.getgid()}")
    began = time.monotonic()
    said = engine.podman("run", *options, *user, image, *command)
    figures.lines.append(("start of a container to a fitted model of 10,000 rows", f"{time.monotonic() - began:.1f} s"))
    assert "100 iterations" in said and "compiling" not in said
    predict = ("dboost", "predict", "/data/model.json", "/data/rides.parquet", "--output", "/data/predictions.parquet")
    engine.podman("run", *options, *user, image, *predict)
    assert len(pd.read_parquet(data / "predictions.parquet")) == 10_000


# -------------------------------------------------------------------------------------------------------- without a fault


def test_an_undisturbed_job(
    cluster: Cluster, undisturbed: Reference, same_model: Callable[..., None], figures: Figures
) -> None:
    cluster.fresh()
    cluster.start()
    slowest = dict.fromkeys((SCHEDULER, *WORKERS), 0.0)
    with ThreadPoolExecutor(1) as waiting:
        finished = waiting.submit(cluster.finish)
        while not finished.done():
            for name in slowest:
                seconds = cluster.pods.probe(name, cluster.of(name))
                assert seconds is not None, f"the probe of {name} has failed"
                slowest[name] = max(slowest[name], seconds)
            time.sleep(0.5)
    same_model("none, with probes", finished.result())
    assert sorted(cluster.bucket.find("models/")) == sorted([MODEL, LEDGER])
    logs = [cluster.engine.log(name) for name in (JOB, SCHEDULER, *WORKERS)]
    assert not any("compiling" in log or SECRET in log for log in logs)
    assert all(SECRET.encode() not in (cluster.bucket.get(key) or b"") for key in cluster.bucket.find())
    figures.lines.append(("slowest probe during a fit", f"{max(slowest.values()):.2f} s"))
    policy = the("NetworkPolicy", cluster.what.manifests, "dboost")["spec"]
    ports = {one["port"] for one in policy["ingress"][0]["ports"]}
    for name in (SCHEDULER, *WORKERS):
        assert listening(cluster.engine, name) <= ports
        used, limit = cluster.engine.peak_memory(name)
        figures.lines.append((f"memory of {name}", f"{used / 2**20:.0f} MiB of {limit / 2**20:.0f}"))


def listening(engine: Engine, name: str) -> set[int]:
    """Return the TCP ports of a container that other hosts can reach."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in engine.file_of(name, f"net/{table}").splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, port = local.split(":")
            if state == "0A" and not address.endswith("0100007F"):
                found.add(int(port, 16))
    return found


def test_the_same_job_again_has_nothing_to_do(cluster: Cluster, undisturbed: Reference) -> None:
    cluster.fresh()
    assert cluster.run().status == 0
    before = cluster.digest(), cluster.digest(LEDGER)
    again = cluster.run()
    assert (again.status, "nothing new" in again.log) == (0, True), again.log
    assert before == (cluster.digest(), cluster.digest(LEDGER)) and before[0] == undisturbed.digest


def test_one_container_without_a_cluster(cluster: Cluster, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    train = ["dboost", "train", "$(DBOOST_DATA)", "--target", "$(DBOOST_TARGET)", "--params", "/etc/dboost/train.toml"]
    same_model(
        "none, one container", cluster.run(arguments=[*train, "--output", "s3://lake/alone/model.json"]), key="alone/model.json"
    )


def test_one_worker_has_the_rows_of_a_small_table(cluster: Cluster, same_model: Callable[..., None]) -> None:
    """As by default; the worker is killed, too."""
    by_default = {"DASK_DBOOST__SINGLE_WORKER_VALUES": "8000000"}
    cluster.fresh()
    same_model("none, rows on one worker", cluster.run(environment=by_default))
    cluster.fresh()
    cluster.start(environment=by_default)
    cluster.until(60)
    cluster.engine.kill(WORKERS[0])
    cluster.engine.kill(WORKERS[1])
    cluster.keep_up()
    same_model("rows on one worker, both killed and replaced", cluster.finish())


def test_predict_reads_the_files_of_the_fit(cluster: Cluster, undisturbed: Reference) -> None:
    """They have a column of text without values."""
    cluster.fresh()
    cluster.bucket.put(MODEL, model_file.dumps(undisturbed.booster.ensemble))
    predict = ["dboost", "predict", "$(DBOOST_MODEL)", "$(DBOOST_DATA)", "--output", "s3://lake/predictions/"]
    outcome = cluster.run(arguments=predict)
    assert outcome.status == 0, outcome.log
    files = [io.BytesIO(cluster.bucket.get(key) or b"") for key in sorted(cluster.bucket.find("predictions/"))]
    predicted = pd.concat([pd.read_parquet(file) for file in files])["prediction"]
    assert np.array_equal(predicted, undisturbed.booster.predict(TABLE))


def test_the_network_policy_shuts_others_out(cluster: Cluster) -> None:
    cluster.fresh()
    connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"

    def connects(name: str, address: str, port: int) -> bool:
        try:
            cluster.engine.within(name, sys.executable, "-c", connect, address, str(port))
        except RuntimeError as error:
            assert "timed out" in str(error) or "refused" in str(error), error
            return False
        return True

    scheduler, store = cluster.pods.address(SCHEDULER), cluster.engine.address("store")
    assert connects(WORKERS[0], scheduler, 8786) and connects(WORKERS[0], store, PORT)
    assert connects("store", store, PORT), "a container that is no pod of dboost"
    assert not connects("store", scheduler, 8786) and not connects("store", cluster.pods.address(WORKERS[0]), 8788)
    assert not connects(WORKERS[0], store, 9000) and not connects(WORKERS[0], GATEWAY, 22)


def test_certificates(cluster: Cluster, same_model: Callable[..., None], tmp_path: Path) -> None:
    """The component tls, with the certificate that the page makes."""
    page = (ROOT / "docs" / "deploy" / "kubernetes.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ *(openssl req (?:.*\\\n)*.*)$", page, re.MULTILINE)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True)
    certificate, key = ((tmp_path / name).read_text() for name in ("tls.crt", "tls.key"))
    secret = {"ca.crt": certificate, "tls.crt": certificate, "tls.key": key}
    cluster.fresh()
    cluster.close()
    encrypted = Cluster(cluster.engine, cluster.bucket, deployed(tmp_path / "overlay", "tls", **{"dboost-tls": secret}))
    try:
        encrypted.keep_up()
        same_model("none, with TLS", encrypted.run())
        logs = "".join(cluster.engine.log(name) for name in (SCHEDULER, *WORKERS, JOB))
        assert "tls://" in logs and "tcp://" not in logs
    finally:
        encrypted.close()


def test_the_laptop_overlay(cluster: Cluster) -> None:
    """Without a store: rows, model and checkpoints are in a volume."""
    cluster.fresh()
    cluster.close()
    what = Deployed(list(built("overlays/laptop")))
    small = Cluster(cluster.engine, cluster.bucket, what)
    claim = cluster.engine.folder / "claims" / "dboost-data"
    try:
        small.keep_up()
        for which in ("initContainers", "containers"):
            outcome = small.run(which=which)
            assert outcome.status == 0, outcome.log
        assert "200 iterations" in outcome.log
        assert sorted(path.name for path in claim.iterdir()) == ["checkpoints", "demo", "model.json", "model.json.ledger.json"]
        assert "nothing new" in small.run("nightly", "CronJob").log
    finally:
        small.close()


# ------------------------------------------------------------------------------------------------------------ lost workers


def test_a_killed_worker_that_is_replaced(cluster: Cluster, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    cluster.start()
    cluster.until(60)
    cluster.engine.kill(WORKERS[1])
    cluster.keep_up()
    same_model("a worker killed and replaced", cluster.finish())


def replace_all(cluster: Cluster, image: str = "") -> None:
    """Replace one worker after the other, as the rolling update of the Deployment does."""
    grace = cluster.of(WORKERS[0])["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    for name in WORKERS:
        assert cluster.engine.stop(name, grace) == 0, cluster.engine.log(name)
        if image:
            cluster.updated[name] = image
        cluster.keep_up(name)


def test_a_rolling_replacement_of_all_workers(cluster: Cluster, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    cluster.start()
    cluster.until(20)
    replace_all(cluster)
    assert cluster.engine.running(JOB), "the fit was over too early"
    same_model("all workers replaced one by one", cluster.finish())


def test_a_rolling_update_to_another_image(cluster: Cluster, image: str, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    rebuilt = image_from(cluster.engine, image, "dboost:rebuilt", REBUILT)
    cluster.start()
    cluster.until(20)
    replace_all(cluster, rebuilt)
    assert cluster.engine.running(JOB), "the fit was over too early"
    same_model("all workers updated to another image", cluster.finish())
    images = {cluster.engine.inspect(name)["ImageName"] for name in WORKERS}
    assert images == {f"localhost/{rebuilt}"}


def test_a_frozen_worker(cluster: Cluster, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    cluster.start()
    cluster.until(60)
    cluster.engine.podman("pause", WORKERS[0])
    time.sleep(20)  # twice dboost.patience
    cluster.engine.podman("unpause", WORKERS[0])
    same_model("a worker frozen for 20 s", cluster.finish())


def test_a_worker_cut_off_from_the_network(cluster: Cluster, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    cluster.start()
    cluster.until(60)
    cluster.engine.disconnect(WORKERS[0])
    same_model("a worker cut off", cluster.finish())
    assert cluster.engine.status(WORKERS[0], minutes=6) == 0, "it ends by itself, for its Deployment to replace it"


def test_hosts_with_links_of_a_gigabit(cluster: Cluster, same_model: Callable[..., None]) -> None:
    def fit() -> str:
        cluster.close()
        cluster.fresh()
        job = cluster.start()
        for name in (SCHEDULER, *WORKERS, job):
            cluster.engine.limit_link(name, "1gbit")
        return job

    try:
        fit()
        same_model("none, links of 1 Gbit/s", cluster.finish())
        fit()
        cluster.until(60)
        cluster.engine.disconnect(WORKERS[0])
        same_model("a worker cut off, links of 1 Gbit/s", cluster.finish())
    finally:
        cluster.close()


# ------------------------------------------------------------------------------------------------ lost clients, schedulers


def test_a_killed_client(cluster: Cluster, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    cluster.start()
    cluster.until(60)
    cluster.engine.kill(JOB)
    killed = cluster.finish()
    assert cluster.digest() == "none" and cluster.bucket.find("checkpoints/")
    resumed = cluster.run()
    assert iterations(resumed.log)[0] > 50
    same_model("the client killed", killed, resumed)


def test_a_stopped_client(cluster: Cluster, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    cluster.start()
    cluster.until(60)
    cluster.engine.stop(JOB, 60)
    stopped = cluster.finish()
    assert stopped.status == 143, stopped.log
    found = re.search(r"interrupted after (\d+) of \d+ iterations; the checkpoint in s3://\S+ holds (\d+)", stopped.log)
    assert found, stopped.log
    resumed = cluster.run()
    assert int(found[2]) < iterations(resumed.log)[0] <= int(found[2]) + MAX_ITER // 20, "a twentieth is shown"
    same_model("the client stopped (SIGTERM)", stopped, resumed)


def test_a_killed_scheduler(cluster: Cluster, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    cluster.start()
    cluster.until(60)
    cluster.engine.kill(SCHEDULER)
    cluster.keep_up(SCHEDULER)
    failed = cluster.finish()
    assert failed.status == 1 and "connection to the scheduler was lost" in failed.log, failed.log
    for name in WORKERS:  # they end by themselves, and their Deployment starts them again
        assert cluster.engine.status(name, minutes=1) == 0
    cluster.keep_up()
    resumed = cluster.run()
    assert iterations(resumed.log)[0] > 50
    same_model("the scheduler killed", failed, resumed)


# ------------------------------------------------------------------------------------------------------- another version


@pytest.fixture(scope="module")
def next_image(engine: Engine, image: str) -> str:
    return image_from(engine, image, "dboost:next", NEXT, version=f"{dboost.__version__}.post1")


def test_a_worker_of_another_version_is_left_out(cluster: Cluster, next_image: str, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    cluster.start()
    cluster.until(20)
    cluster.engine.stop(WORKERS[0], 30)
    cluster.updated[WORKERS[0]] = next_image
    cluster.keep_up(WORKERS[0])
    assert cluster.engine.running(JOB), "the fit was over too early"
    same_model("a worker replaced by one of another version", cluster.finish())


def test_an_update_to_another_version(cluster: Cluster, next_image: str, same_model: Callable[..., None]) -> None:
    """Scheduler and workers are replaced under the job, which then has to be replaced, too."""
    cluster.fresh()
    cluster.start()
    cluster.until(60)
    cluster.updated = dict.fromkeys((SCHEDULER, *WORKERS), next_image)
    for name in (SCHEDULER, *WORKERS):
        cluster.engine.stop(name, 30)
    cluster.keep_up()
    lost = cluster.finish()
    assert lost.status == 1, lost.log
    refused = cluster.run()
    assert refused.status == 1 and dboost.__version__ in refused.message and "post1" in refused.message, refused.log
    resumed = cluster.run(image=next_image)
    assert iterations(resumed.log)[0] > 50
    same_model("scheduler, workers, then job of another version", lost, refused, resumed)


# ---------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("status", "environment", "secret", "message"),
    [
        pytest.param(2, {"DBOOST_TARGET": "fare"}, True, "no column 'fare'", id="target"),
        pytest.param(2, {"DBOOST_MODEL": "s3://pond/model.json"}, True, "s3://pond/model.json", id="bucket"),
        pytest.param(2, {"DBOOST_DATA": "s3://lake/nothing/"}, True, "s3://lake/nothing", id="folder"),
        pytest.param(2, {}, False, "no credentials", id="secret"),
        pytest.param(1, {"AWS_ENDPOINT_URL": f"http://{GATEWAY}:{PORT}"}, True, "s3://lake", id="store"),
        pytest.param(
            1,
            {"DBOOST_SCHEDULER": "tcp://dboost-nobody:8786", "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s"},
            True,
            "dboost-nobody:8786",
            id="scheduler",
        ),
    ],
)
def test_a_mistake_in_the_settings(
    cluster: Cluster, status: int, environment: dict[str, str], secret: bool, message: str
) -> None:
    """Status 2 is not tried again, 1 is."""
    cluster.fresh()
    outcome = cluster.run(environment=environment, secret=secret)
    assert outcome.status == status and "Traceback" not in outcome.log, outcome.log
    assert outcome.message.startswith("dboost: ") and message in outcome.message, outcome.log
    assert not cluster.bucket.find("models/") or status == 1


def test_settings_put_right_after_a_mistake(cluster: Cluster, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    cluster.bucket.put("other/part-0.parquet", parquet(pd.DataFrame({"a": [1.0, 2.0]})))
    wrong = cluster.run(environment={"DBOOST_DATA": "s3://lake/other/"})
    assert wrong.status == 2 and "no column 'y'" in wrong.message, wrong.log
    same_model("settings of another folder, then the right ones", wrong, cluster.run())


# ----------------------------------------------------------------------------------------------------------- the nightly job


@pytest.mark.parametrize("iteration", [1, 60])
def test_the_nightly_job_begins_during_the_first_fit(cluster: Cluster, same_model: Callable[..., None], iteration: int) -> None:
    cluster.fresh()
    often = {"DASK_DBOOST__LEASE": "3s"}  # the nightly job waits for the next renewal, which must come before the fit ends
    cluster.start(environment=often)
    cluster.until(iteration)
    nightly = cluster.run("nightly", "CronJob", environment=often)
    assert nightly.status == 1 and "another run" in nightly.message, nightly.log
    same_model(f"the nightly job at iteration {iteration} of the first fit", cluster.finish())


def test_the_nightly_job_instead_of_a_lost_first_fit(cluster: Cluster, same_model: Callable[..., None]) -> None:
    cluster.fresh()
    cluster.start()
    cluster.until(15)
    cluster.engine.kill(JOB)
    killed = cluster.finish()
    nightly = cluster.run("nightly", "CronJob")
    assert nightly.status == 2 and "there is no model" in nightly.message, nightly.log
    assert cluster.digest() == "none"
    resumed = cluster.run()
    assert iterations(resumed.log)[0] > 10
    same_model("the first fit killed, the nightly job refused", killed, resumed)


def test_new_files_at_night(cluster: Cluster, undisturbed: Reference) -> None:
    cluster.fresh()
    assert cluster.run().status == 0
    new = a_table(5000, seed=1)[list(TABLE.columns[:-1])].assign(nothing=pd.Series(None, dtype="object"))
    cluster.bucket.put("rows/part-new.parquet", parquet(new))
    try:
        outcome = cluster.run("nightly", "CronJob")
    finally:
        cluster.bucket.remove("rows/part-new")
    assert outcome.status == 0, outcome.log
    expected = dboost.fit(new, "y", start_from=undisturbed.booster, progress=False, **parameters(cluster, "nightly"))
    assert cluster.bucket.get(MODEL) == model_file.dumps(expected.ensemble)
    ledger = json.loads(cluster.bucket.get(LEDGER) or b"")
    assert [len(batch["files"]) for batch in ledger["settled"]] == [N_FILES, 1] and ledger["pending"] is None
