"""``python -m benchmarks.out_of_core [--quick] [--picture docs/pictures/out_of_core.svg] [--cluster]``

Training on tables larger than a memory limit, beside XGBoost. A table of 28 float32 columns and a 0/1 target is stored in
partitions on the disk. For 1, 2, 4 and 8 times 512 MiB of it, dboost with ``memory_limit="512MiB"``, and for the largest
XGBoost with an `ExtMemQuantileDMatrix`, each train in a process of their own, on the same files, with the same settings (full
levels down to depth 6, 256 bins). The growth of a process is limited: when its libraries are loaded and its kernels compiled (a
fit on a few rows), its address space is limited to its current size, plus the memory limit, plus a constant for stacks and
fragmentation. (XGBoost has no memory limit and maps its cache into its address space: it is only measured.)

Reported for each: the largest growth of its memory (not counting pages of mapped files), seconds before the first tree, seconds
and processor seconds per tree, bytes read per tree, and the time to read these at the bandwidth of the disk, which is measured
too.

With ``--memory 1GiB 2GiB …`` the largest table is also trained on in control groups of the Linux kernel (root only). They limit
all memory of a process: its own, its libraries' and the pages of the system's cache that it fills. Bytes that do not fit there
come from the disk. XGBoost needs four times the limit of the fit for itself; below that it is killed.

With ``--cluster`` the largest table goes to two Dask workers, each in a process that Dask monitors, with a memory limit of
640 MiB more than the fit's (a worker's libraries and kernels take 400 MiB, and Dask requires a fifth to be free); reported are
their peaks, and how often one of them was paused or killed.

The files are kept in ``benchmarks/data/out_of_core`` for the next run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dboost.session.memory import parse_memory_limit

FOLDER = Path(__file__).parent / "data" / "out_of_core"
FEATURES, TREES, DEPTH = 28, 5, 6
LIMIT, PART = 512 * 2**20, 64 * 2**20
#: Beyond the limit: stacks, reserves of allocators, late compilation.
SLACK = 384 * 2**20


def part(k: int, n_bytes: int) -> Path:
    """Return a partition's file: float32[rows, FEATURES + 1], the target in the last column; generated if it does not exist."""
    rows = n_bytes // (4 * (FEATURES + 1))
    path = FOLDER / f"{rows}-{k}.npy"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(k)
        table = rng.normal(size=(rows, FEATURES + 1)).astype(np.float32)
        score = table[:, 0] * table[:, 1] + np.sin(3 * table[:, 2]) + table[:, 3:10].sum(axis=1) / 2 + table[:, FEATURES]
        table[:, FEATURES] = score > 0
        with tempfile.NamedTemporaryFile(dir=FOLDER, delete=False) as file:
            np.save(file, table)
        os.replace(file.name, path)
    return path


def status(key: str) -> int:
    """Return a memory figure of this process in bytes: VmSize, VmHWM, RssAnon."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def enclose(limit: int) -> None:
    """Limit the growth of this process's address space to limit plus slack."""
    room = status("VmSize") + limit + SLACK
    resource.setrlimit(resource.RLIMIT_AS, (room, room))


class Watch:
    """Measures the largest growth of this process's own memory, sampled every 20 ms; start before the work."""

    def __init__(self) -> None:
        self._before = self._most = status("RssAnon")
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self._most = max(self._most, status("RssAnon"))

    def added(self) -> int:
        self._over.set()
        return self._most - self._before


SETTINGS: dict[str, Any] = {"loss": "log_loss", "max_depth": DEPTH, "max_leaf_nodes": None, "min_samples_leaf": 1}


def lazily(paths: list[str]) -> Any:
    """Return the partitions as Dask arrays: table and target."""
    import dask
    import dask.array as da

    shapes = [np.load(path, mmap_mode="r").shape for path in paths]
    blocks = [
        da.from_delayed(dask.delayed(np.load)(path), shape, np.float32) for path, shape in zip(paths, shapes, strict=True)
    ]
    table = da.concatenate(blocks)
    return table[:, :FEATURES], table[:, FEATURES]


def train_dboost(files: list[str], limit: int, scratch: str) -> dict[str, Any]:
    import dask
    import dask.array as da

    import dboost

    small = np.random.default_rng(0).normal(size=(40_000, FEATURES)).astype(np.float32)
    with dask.config.set({"temporary-directory": scratch}):
        warm = da.from_array(small, chunks=(20_000, FEATURES))
        dboost.fit(warm, (warm[:, 0] > 0) * 1.0, max_iter=1, memory_limit=2**24, **SETTINGS)
        lazy = lazily(files)
        enclose(limit)
        ends: list[float] = []
        watch, began = Watch(), time.perf_counter()
        booster = dboost.fit(
            *lazy,
            max_iter=TREES,
            memory_limit=limit,
            progress=False,
            callbacks=[lambda _: ends.append(time.process_time())],
            **SETTINGS,
        )
        whole = time.perf_counter() - began
    seconds = booster.history["seconds"].tolist()
    loss = float(booster.history["train_loss"].iloc[-1])
    return {
        "added": watch.added(),
        "load": whole - sum(seconds),
        "tree": statistics.median(seconds),
        "processor": float(np.median(np.diff(ends))),
        "read": int(statistics.median(booster.history["bytes_read"])),
        "loss": loss,
    }


def train_xgboost(files: list[str], limit: int, scratch: str) -> dict[str, Any]:
    import xgboost  # maps its cache into memory: the bytes read are unknown

    class Parts(xgboost.DataIter):
        def __init__(self, paths: list[Any], prefix: str) -> None:
            self._paths, self._at = paths, 0
            super().__init__(cache_prefix=prefix)

        def next(self, input_data: Any) -> bool:
            if self._at == len(self._paths):
                return False
            table = self._paths[self._at]
            table = np.load(table) if isinstance(table, str) else table
            input_data(data=table[:, :FEATURES], label=table[:, FEATURES])
            self._at += 1
            return True

        def reset(self) -> None:
            self._at = 0

    settings = {
        "objective": "binary:logistic", "max_depth": DEPTH, "max_bin": 256, "eta": 0.1, "lambda": 1.0, "min_child_weight": 1.0,
        "tree_method": "hist", "nthread": len(os.sched_getaffinity(0)),
    }  # fmt: skip
    small = np.random.default_rng(0).normal(size=(2_000, FEATURES + 1)).astype(np.float32)
    small[:, FEATURES] = small[:, 0] > 0
    warm = xgboost.ExtMemQuantileDMatrix(Parts([small], f"{scratch}/warm"), max_bin=256)
    xgboost.train(settings, warm, 1)
    ends: list[float] = []
    used: list[float] = []

    class Ends(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            ends.append(time.perf_counter())
            used.append(time.process_time())
            return False

    watch, began = Watch(), time.perf_counter()
    data = xgboost.ExtMemQuantileDMatrix(Parts(files, f"{scratch}/cache"), max_bin=256)
    loaded = time.perf_counter()
    xgboost.train(settings, data, TREES, callbacks=[Ends()])
    return {
        "added": watch.added(),
        "load": loaded - began,
        "tree": float(np.median(np.diff([loaded, *ends]))),
        "processor": float(np.median(np.diff(used))),
        "read": None,
    }


def train_on_cluster(files: list[str], limit: int, scratch: str) -> dict[str, Any]:
    """Train on two workers that Dask monitors; also report Dask's interventions."""
    import dask
    from distributed import Client, LocalCluster

    import dboost

    of_worker = limit + 640 * 2**20
    with (
        dask.config.set({"temporary-directory": scratch}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=of_worker, dashboard_address=":0", local_directory=scratch
        ) as cluster,
        Client(cluster) as client,
    ):
        before, began = client.run(os.getpid), time.perf_counter()
        booster = dboost.fit(*lazily(files), max_iter=TREES, memory_limit=limit, progress=False, **SETTINGS)
        whole, seconds = time.perf_counter() - began, booster.history["seconds"].tolist()
        happened = [str(event) for address in before for _, event in client.get_events(address)]
        return {
            "worker_limit": of_worker,
            "peaks": list(client.run(status, "VmHWM").values()),
            "paused": sum("paused" in event for event in happened),
            "killed": len(set(before.items()) - set(client.run(os.getpid).items())),
            "load": whole - sum(seconds),
            "tree": statistics.median(seconds),
            "sha256": booster.sha256,
        }


ENGINES = {"dboost": train_dboost, "xgboost": train_xgboost, "cluster": train_on_cluster}


def bandwidth(files: list[str]) -> float:
    """Return the bytes per second of reading files that are not in the system's cache."""
    began, n = time.perf_counter(), 0
    for path in files[:8]:
        with open(path, "rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while block := file.read(2**22):
                n += len(block)
    return n / (time.perf_counter() - began)


@contextmanager
def control_group(limit: int) -> Iterator[Path]:
    """Make a group of processes whose memory is limited together, with their part of the page cache; yield its folder."""
    root = Path("/sys/fs/cgroup/memory") if Path("/sys/fs/cgroup/memory").is_dir() else Path("/sys/fs/cgroup")
    folder = root / f"dboost-benchmark-{os.getpid()}"
    name = "memory.limit_in_bytes" if root.name == "memory" else "memory.max"
    try:
        folder.mkdir()
        (folder / name).write_text(str(limit))
    except OSError as error:
        raise SystemExit(f"cannot limit memory by a control group: {error}") from error
    try:
        yield folder
    finally:
        for _ in range(100):  # ended processes leave it a moment later
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def run(engine: str, files: list[str], limit: int, memory: int | None = None) -> dict[str, Any]:
    """Train once, in a process of its own; return the results, or why it failed. memory : of its control group."""
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER))
        enter = None
        if memory is not None:
            procs = stack.enter_context(control_group(memory)) / "cgroup.procs"
            enter = partial(procs.write_text, "0")  # 0: the process that writes
        child = subprocess.run(
            preexec_fn=enter,
            args=[sys.executable, "-m", "benchmarks.out_of_core", "--child", engine],
            input=json.dumps({"files": files, "limit": limit, "scratch": scratch}),
            capture_output=True,
            text=True,
            env=os.environ | {"MALLOC_ARENA_MAX": "2"},
            check=False,
        )
    if child.returncode == -9:
        return {"failed": "killed: out of memory"}
    if child.returncode:
        return {"failed": (child.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(child.stdout.splitlines()[-1])


def draw(found: dict[str, Any], path: Path) -> None:
    """Plot memory, and seconds and bytes per tree, against the size of the data."""
    from dboost.inspection.plots import canvas

    limit, figures = found["limit"], found["figures"]
    sizes = sorted(times for engine, times in figures if engine == "dboost" and "tree" in figures[engine, times])
    ours = [figures["dboost", times] for times in sizes]
    with canvas.style(), canvas.detached():
        axes = canvas.new_axes(1, 3, width=11, height=3.4)[0]
        for axis, key, unit, label in (
            (axes[0], "added", 2**20, "MiB added at most"),
            (axes[1], "tree", 1, "seconds a tree"),
            (axes[2], "read", 2**30, "GiB read a tree"),
        ):
            axis.plot(sizes, [one[key] / unit for one in ours], "o-", color=canvas.BLUE, label="dboost")
            theirs = [(t, one[key]) for (engine, t), one in figures.items() if engine == "xgboost" and one.get(key) is not None]
            if theirs:
                values = [value / unit for _, value in theirs]
                axis.plot([t for t, _ in theirs], values, "s", color=canvas.VERMILION, label="XGBoost")
            axis.set(xlabel="data, as a multiple of the limit", ylabel=label, ylim=(0, None), xticks=sizes)
            axis.grid(axis="y")
        axes[0].axhline(limit / 2**20, color=canvas.GREY, linestyle=":", label="limit")
        axes[1].plot(sizes, [one["read"] / found["disk"] for one in ours], ":", color=canvas.GREY, label="disk alone")
        for axis in axes[:2]:
            axis.legend(fontsize="small")
        path.parent.mkdir(parents=True, exist_ok=True)
        axes[0].figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.out_of_core", description=__doc__.split("\n")[2])
    parser.add_argument("--quick", action="store_true", help="a sixteenth of limit and data, to see that it works")
    parser.add_argument("--engines", nargs="+", choices=("dboost", "xgboost"), default=["dboost", "xgboost"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 2, 4, 8], help="how many times the limit")
    parser.add_argument(
        "--xgboost-sizes", nargs="+", type=int, metavar="SIZE", help="the same for XGBoost; default: the largest"
    )
    parser.add_argument("--cluster", action="store_true", help="also the largest table on two Dask workers")
    parser.add_argument(
        "--memory", nargs="+", type=parse_memory_limit, default=[], metavar="SIZE", help="also in control groups of this size"
    )
    parser.add_argument("--output", metavar="FILE.json", type=Path, help="also write the figures")
    parser.add_argument("--picture", metavar="FILE.svg", type=Path, help="also draw them")
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(ENGINES[options.child](**json.load(sys.stdin))))
        return
    scale = 16 if options.quick else 1
    limit, size = LIMIT // scale, PART // scale
    figures: dict[tuple[str, int], dict[str, Any]] = {}
    of_xgboost = options.xgboost_sizes or [max(options.sizes)]
    files = [str(part(k, size)) for k in range(max(options.sizes + of_xgboost) * limit // size)]
    disk = bandwidth(files)
    print(f"memory limit {limit >> 20} MiB, {disk / 2**20:.0f} MiB/s read from the disk, {os.cpu_count()} processors")
    columns = ("data", 6), ("MiB added", 11), ("load s", 9), ("s a tree", 10), ("processor s", 13), ("MiB read", 10)
    print(" " * 9 + "".join(name.rjust(width) for name, width in (*columns, ("disk alone s", 14))))
    for engine, times in [(e, t) for t in sorted({*options.sizes, *of_xgboost}) for e in options.engines]:
        if times not in (of_xgboost if engine == "xgboost" else options.sizes):
            continue
        found = figures[engine, times] = run(engine, files[: times * limit // size], limit)
        if "failed" in found:
            print(f"{engine:9}{times:5}×  failed: {found['failed'][:100]}", flush=True)
            continue
        read = "" if found["read"] is None else f"{found['read'] / 2**20:10.0f}{found['read'] / disk:14.2f}"
        print(
            f"{engine:9}{times:5}×{found['added'] / 2**20:11.0f}{found['load']:9.1f}{found['tree']:10.2f}"
            f"{found['processor']:13.2f}{read}",
            flush=True,
        )
    for times in options.sizes:
        ours, theirs = figures.get(("dboost", times), {}), figures.get(("xgboost", times), {})
        if "tree" in ours and "tree" in theirs:
            ratios = {key: theirs[key] / ours[key] for key in ("tree", "processor", "added")}
            print(
                f"{times}×: XGBoost takes {ratios['tree']:.2f} times our seconds a tree, {ratios['processor']:.2f} times our "
                f"processors' seconds and {ratios['added']:.2f} times our memory"
            )
    most = max(options.sizes)
    for memory in options.memory:
        engines = [*options.engines, *["cluster"] * options.cluster]
        there = {engine: run(engine, files[: most * limit // size], limit, memory) for engine in engines}
        for engine, found in there.items():
            figures[f"{engine} in {memory >> 20} MiB", most] = found
            line = (
                found["failed"][:100] if "failed" in found else f"{found['load']:.1f} s to load, {found['tree']:.2f} s a tree"
            )
            print(f"{engine} {most}× in a group of {memory >> 20} MiB: {line}", flush=True)
        if all("tree" in there.get(engine, {}) for engine in ("dboost", "xgboost")):
            print(f"  XGBoost takes {there['xgboost']['tree'] / there['dboost']['tree']:.2f} times our seconds a tree")
    if options.cluster:
        found = figures["cluster", max(options.sizes)] = run("cluster", files[: max(options.sizes) * limit // size], limit)
        if "failed" in found:
            print(f"two workers: failed: {found['failed'][:100]}")
        else:
            peaks = " and ".join(str(peak >> 20) for peak in found["peaks"])
            print(
                f"two workers of {found['worker_limit'] >> 20} MiB: peaks of {peaks} MiB, paused {found['paused']} times, "
                f"killed {found['killed']} times; {found['load']:.1f} s to load, {found['tree']:.2f} s a tree"
            )
    everything = {"limit": limit, "disk": disk, "figures": figures}
    if options.picture:
        draw(everything, options.picture)
    if options.output:
        everything["figures"] = {f"{engine} {times}": one for (engine, times), one in figures.items()}
        options.output.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
