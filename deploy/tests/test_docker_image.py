"""The steps of the Dockerfile, executed in a clean folder without a container engine.

Paths of the image are below that folder; ``python`` is the interpreter that runs the tests.
"""

from __future__ import annotations

import faulthandler
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

import dboost
from dboost import kernels
from dboost.cli import warmup_command

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
IGNORED = ROOT / "deploy" / "docker" / "Dockerfile.dockerignore"
_VARIABLE = re.compile(r"\$\{(\w+)\}")

#: Fits that use most kernels, on a table with gaps, categories and weights; prints the models' digests.
FITS = """
import numpy as np, pandas as pd, dboost
rng = np.random.default_rng(0)
frame = pd.DataFrame(rng.normal(size=(3000, 4)), columns=list("abcd"))
frame["kind"] = rng.choice(list("xyz"), len(frame))
frame.loc[::7, "b"] = np.nan
for target in (frame["a"] + rng.normal(size=3000), frame["a"] > 0, frame["kind"].to_numpy()):
    booster = dboost.fit(frame[list("abcd")], target, max_iter=3, progress=False)
    booster.predict(frame)
    print(booster.sha256)
frame["d"] = np.arange(len(frame)) % 3
print(dboost.fit(frame, "a", sample_weight="d", loss="absolute_error", max_iter=3, progress=False).sha256)
from distributed import Client, LocalCluster
with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
    with Client(cluster) as client:
        print(dboost.fit(frame, "a", sample_weight="d", loss="huber", max_iter=3, client=client, progress=False).sha256)
"""
#: Fits with other kernels, among them those of larger tables.
MORE_FITS = """
import numpy as np, pandas as pd, dboost
rng = np.random.default_rng(0)
frame = pd.DataFrame(rng.standard_normal((60_000, 8)), columns=list("abcdefgh"))
frame["kind"] = rng.choice(list("xyz"), len(frame))
frame["town"] = rng.integers(0, 1000, len(frame)).astype(str)
frame["weight"] = rng.random(len(frame))
X, y = rng.standard_normal((60_000, 8), dtype=np.float32), rng.standard_normal(60_000)
for target in (y, y > 0, np.digitize(y, [-1, 1]).astype(str)):
    for depth in (None, 3):
        booster = dboost.fit(X, target, max_iter=2, max_depth=depth, growth="depth_wise" if depth else "best_first")
        booster.predict(X)
        booster.predictor()(X[0])
for features in (list("abcd"), ["a", "kind"], ["a", "town"]):
    dboost.fit(frame, "h", features=features, sample_weight="weight", eval_set=frame, max_iter=2).predict(frame)
import dask
import dask.dataframe as dd
from distributed import Client, LocalCluster
with LocalCluster(n_workers=2, threads_per_worker=2, processes=False, dashboard_address=None) as cluster, Client(cluster):
    lazy = dd.from_pandas(frame, npartitions=4)
    for values in (0, 8_000_000):  # rounds of all workers, and whole trees of one
        with dask.config.set({"dboost.single-worker-values": values, "dboost.session-per-host": False}):
            for target in ("a", "kind"):
                dboost.fit(lazy, target, features=list("bcdefgh"), eval_set=lazy, max_iter=2)
            dboost.fit(lazy, "h", features=["a", "kind", "town"], sample_weight="weight", loss="huber", max_iter=2)
"""


#: Imports what the commands need and prints the modules whose byte code is not in the image.
IMPORTED = """
import importlib, os, sys
for name in ("dboost.cli.train_command", "dboost.cli.predict_command", "distributed.cli.dask_scheduler",
             "distributed.cli.dask_worker", "dboost.cluster.scheduler.reducer", "dboost.cluster.worker.worker_plugin"):
    importlib.import_module(name)
found = [(name, getattr(module, "__cached__", None)) for name, module in sys.modules.items()]
print([name for name, path in found if path and not os.path.exists(path)])
"""


#: Appended to the command that compiles kernels: those of the losses that no fit here uses take minutes.
FEWER_LOSSES = """

_all_losses, _all_tables = losses, tables


def losses():
    return {name: _all_losses()[name] for name in ("absolute_error", "huber")}
"""
#: And those of the tables that `FITS` do not use.
TWO_TABLES = """


def tables():
    return {name: _all_tables()[name] for name in FOR_LOSSES}
"""
#: Between this command and other fits, in one process: the names of further kernels are printed.
FURTHER_KERNELS = """
from dboost.kernels.cache_files import KernelFiles
load = KernelFiles.load
def loading(files, key):
    print("further:", files.name_of(key))
    return load(files, key)
KernelFiles.load = loading
"""


@dataclass
class Stage:
    """The lines between two FROM lines."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def of(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]


def stages() -> tuple[dict[str, str], list[Stage]]:
    """Return the arguments before the first stage, and the stages."""
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text(encoding="utf-8"))
    general: dict[str, str] = {}
    found: list[Stage] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(" ")
        rest = " ".join(rest.split())
        if name == "FROM":
            found.append(Stage(rest))
        elif found:
            found[-1].steps.append((name, rest))
        else:
            assert name == "ARG"
            key, _, value = rest.partition("=")
            general[key] = value
    return general, found


def variables(stage: Stage) -> dict[str, str]:
    """Return the environment at the end of a stage, where PATH is that of this process."""
    known = {"PATH": os.environ["PATH"]}
    arguments: dict[str, str] = {}
    for name, rest in stage.steps:
        if name == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = value
            known[key] = value.strip('"')
        if name == "ENV":
            for key, quoted, bare in re.findall(r'(\w+)=(?:"([^"]*)"|(\S*))', rest):
                known[key] = _VARIABLE.sub(lambda match: {**arguments, **known}[match[1]], quoted or bare)
    return known


def test_the_image_is_small_and_runs_as_nobody() -> None:
    general, (build, final) = stages()
    assert (build.base, final.base) == ("${BASE} AS build", "${BASE}")
    assert re.fullmatch(r"python:3\.\d+-slim", general["BASE"]), "a plain name that a build argument may replace"
    assert final.of("USER") == ["65532:65532"]
    assert final.of("RUN") == []
    assert final.of("COPY") == ["--from=build /opt/dboost /opt/dboost"]
    same = ("NUMBA_CACHE_DIR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "PYTHONPYCACHEPREFIX")
    assert [variables(build)[name] for name in same] == [variables(final)[name] for name in same]
    assert all("--no-cache-dir" in step for step in build.of("RUN") if "pip install" in step)


def test_the_documented_image_is_the_one_of_the_manifests() -> None:
    commands = [(ROOT / "docs" / "deploy" / "image.md").read_text("utf-8"), DOCKERFILE.read_text("utf-8")]
    (tag,) = {tag for text in commands for tag in re.findall(r"docker build .* -t (\S+)", text)}
    # The folder of a user is writable for that user only; and the first process of a container ignores early signals.
    (run,) = re.findall(r"^docker run ((?:.*\\\n)*.*)$", commands[0], re.MULTILINE)
    assert '--user "$(id -u):$(id -g)"' in run and "--init" in run and f" {tag} " in run
    kubernetes = ROOT / "deploy" / "kubernetes"
    for file in kubernetes.rglob("kustomization.yaml"):
        for image in yaml.safe_load(file.read_text("utf-8")).get("images", []):
            assert f"{image['name']}:{image['newTag']}" == tag
    for line in (ROOT / "docs" / "deploy" / "kubernetes.md").read_text("utf-8").splitlines():
        if "kind load docker-image" in line:
            assert line.split("#")[0].split()[-1] == tag and tag in line.split("#")[1]
    assert tag == f"dboost:{dboost.__version__}"


def test_only_what_is_asked_for_is_installed() -> None:
    """pip installs what a -r line in a file of constraints names, as if it were required."""
    _, (build, _) = stages()
    made = "\n".join(step for step in build.of("RUN") if "> constraints.txt" in step)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "requirements", Path(folder) / "requirements")
        subprocess.run(["/bin/sh", "-ec", made], cwd=folder, check=True)
        lines = (Path(folder) / "constraints.txt").read_text().splitlines()
    (install,) = (step for step in build.of("RUN") if "pip install" in step)
    assert "-c constraints.txt" in install and "requirements/" not in install
    pins = [line for line in lines if line and not line.startswith("#")]
    assert {line.partition("==")[0] for line in pins} >= {"numpy", "s3fs", "distributed"}
    assert all(re.fullmatch(r"[\w.-]+==\S+( *;.*)?", line) for line in pins)
    assert len({line.partition("==")[0] for line in pins}) == len(pins)


def test_other_stores_are_build_arguments() -> None:
    _, (build, _) = stages()
    assert {"EXTRAS=s3", 'PACKAGES=""'} <= set(build.of("ARG"))
    (install,) = (step for step in build.of("RUN") if "pip install" in step)
    assert install.endswith('".[${EXTRAS}]" ${PACKAGES}')
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert {"s3", "gcs"} <= set(extras)


def test_what_is_copied_is_let_through() -> None:
    _, (build, _) = stages()
    rules = IGNORED.read_text(encoding="utf-8").split()
    assert rules[0] == "*", "everything else stays outside"
    let = [rule[1:] for rule in rules if rule.startswith("!")]
    copied = [name for step in build.of("COPY") for name in step.split()[:-1]]
    assert sorted(copied) == sorted(let)
    for name in copied:
        assert (ROOT / name).exists()
        assert fnmatch.filter(let, name)


@pytest.mark.slow
@pytest.mark.skipif(not kernels.KNOWN_NUMBA, reason="other versions of Numba have a cache of their own")
def test_the_command_compiles_the_kernels_of_other_fits() -> None:
    """The test of the image, which has a cache of its own, compiles fewer of them."""
    command = Path(warmup_command.__file__).read_text("utf-8") + FEWER_LOSSES + "\nrun(argparse.Namespace())\n"
    done = subprocess.run(
        [sys.executable, "-c", command + FURTHER_KERNELS + MORE_FITS], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert "warm after" in done.stdout and "further:" not in done.stdout, done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_the_steps_make_what_runs(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # every step has a deadline of its own
    _, (build, final) = stages()
    python = shutil.which(f"python{sys.version_info[0]}.{sys.version_info[1]}", path=sys.base_prefix + "/bin") or sys.executable
    (tmp_path / "opt").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(python)

    def here(text: str) -> str:
        return text.replace("/opt/dboost", f"{tmp_path}/opt/dboost")

    def environment(stage: Stage) -> dict[str, str]:
        """Return the environment at the end of a stage."""
        own = {key: here(value) for key, value in variables(stage).items()}
        own["PATH"] = own["PATH"].replace(os.environ["PATH"], f"{tmp_path}/bin:/usr/bin:/bin")
        passed = {
            key: os.environ[key]
            for key in os.environ
            if key.startswith(("PIP_", "SSL_", "REQUESTS_")) or "proxy" in key.lower()
        }
        return {**passed, "HOME": str(tmp_path), **own}

    work = tmp_path
    for k, (name, rest) in enumerate(build.steps):
        if name == "WORKDIR":
            work = tmp_path / rest.removeprefix("/")
            work.mkdir()
        elif name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(ROOT / source, work / target, ignore=ignored, dirs_exist_ok=True)
                else:
                    shutil.copy(ROOT / source, work / target)
                if source == "dboost":
                    with (work / target / "cli" / "warmup_command.py").open("a") as file:
                        file.write(FEWER_LOSSES + TWO_TABLES)
        elif name == "RUN" and "apt-get" not in rest:  # the step that installs strip
            so_far = environment(Stage(build.base, build.steps[:k]))
            done = subprocess.run(
                ["/bin/sh", "-ec", here(rest)], cwd=work, env=so_far, capture_output=True, text=True, timeout=1500
            )
            assert done.returncode == 0, f"{rest}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    # Everything that the second stage copies is read-only from here on.
    image = tmp_path / "opt" / "dboost"
    shutil.rmtree(tmp_path / "src")
    before = _all_files(image)
    seal: list[str] = []
    if os.geteuid() == 0:
        assert shutil.which("setpriv"), "root may write everywhere: run this as another user"
        seal = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        for path in [image, *image.rglob("*")]:
            os.chown(path, 65532, 65532, follow_symlinks=False)
    for path in [image, *image.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o555)
    home = tmp_path / "home"
    home.mkdir()

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        own = environment(final) | {"HOME": str(home), "TMPDIR": str(home)}
        return subprocess.run([*seal, *command], cwd=home, env=own, capture_output=True, text=True, timeout=300)

    try:
        assert run("touch", str(image / "new")).returncode != 0
        assert run("dboost", "--version").stdout.startswith("dboost ")
        for command in (("dask", "scheduler", "--version"), ("dask", "worker", "--version"), ("python", "-c", "import s3fs")):
            assert run(*command).returncode == 0
        imported = run("python", "-c", IMPORTED)
        assert imported.stdout.splitlines()[-1:] == ["[]"], f"no byte code of {imported.stdout}{imported.stderr}"
        fits = run("python", "-c", FITS)
        assert fits.returncode == 0, fits.stderr
        assert "compiling" not in fits.stderr
        # Kernels compiled for all processors of a level give the results of those for this one.
        beside = subprocess.run([sys.executable, "-c", FITS], cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert fits.stdout.splitlines() == beside.stdout.splitlines()
        assert _all_files(image) == before
        size = sum(path.stat().st_size for path in image.rglob("*") if path.is_file() and not path.is_symlink())
        print(f"{size / 2**20:.0f} MiB in {image.name}")
        assert size < 590 * 10**6, "700 MB with the usual base"
        assert run("python", "-c", "import matplotlib").returncode != 0, "nothing asks for it"
    finally:
        for path in [image, *image.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)


def _all_files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}
