"""``python -m benchmarks.out_of_core [--quick]``: training on tables larger than a memory limit, beside XGBoost.

A table of 28 float32 columns and a 0/1 target lies in partitions on the disk. For 1, 2, 4 and 8 times 512 MiB of it,
dboost with ``memory_limit="512MiB"`` and XGBoost with an `ExtMemQuantileDMatrix` each train in a process of their own,
on the same files, with the same settings (full levels down to depth 6, 256 bins). A process may not grow: when its
libraries are loaded and its kernels compiled (a fit on a few rows), its address space is limited to what it has, plus
the memory limit, plus a constant for stacks and fragmentation. What is told of each: how much its resident memory grew
at most, seconds before the first tree, seconds a tree, bytes read a tree, and how long these would take at the
bandwidth of the disk, which is measured by the way.

The files stay in ``benchmarks/data/out_of_core`` for the next time.
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
import time
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "data" / "out_of_core"
FEATURES, TREES, DEPTH = 28, 8, 6
LIMIT, PART = 512 * 2**20, 64 * 2**20
#: Beside the limit: stacks, allocators' reserves, code that is compiled for the first time after all.
SLACK = 384 * 2**20


def part(k: int, n_bytes: int) -> Path:
    """A partition's file: float32[rows, FEATURES + 1], the target in the last column; made when it is not there."""
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
    """Of this process, in bytes: VmSize, VmRSS, VmHWM."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def enclose(limit: int) -> int:
    """Let this process grow by no more than limit and slack; returns the memory that it has now."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    room = status("VmSize") + limit + SLACK
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    return status("VmRSS")


def train_dboost(files: list[str], limit: int, scratch: str) -> dict[str, Any]:
    import dask
    import dask.array as da

    import dboost

    def lazily(paths: list[str]) -> tuple[da.Array, da.Array]:
        shapes = [np.load(path, mmap_mode="r").shape for path in paths]
        blocks = [
            da.from_delayed(dask.delayed(np.load)(path), shape, np.float32) for path, shape in zip(paths, shapes, strict=True)
        ]
        table = da.concatenate(blocks)
        return table[:, :FEATURES], table[:, FEATURES]

    settings: dict[str, Any] = {"loss": "log_loss", "max_depth": DEPTH, "max_leaf_nodes": None, "min_samples_leaf": 1}
    small = np.random.default_rng(0).normal(size=(40_000, FEATURES)).astype(np.float32)
    with dask.config.set({"temporary-directory": scratch}):
        warm = da.from_array(small, chunks=(20_000, FEATURES))
        dboost.fit(warm, (warm[:, 0] > 0) * 1.0, max_iter=1, memory_limit=2**24, **settings)
        lazy = lazily(files)
        before = enclose(limit)
        began = time.perf_counter()
        booster = dboost.fit(*lazy, max_iter=TREES, memory_limit=limit, progress=False, **settings)
        whole = time.perf_counter() - began
    seconds = booster.history["seconds"].tolist()
    loss = float(booster.history["train_loss"].iloc[-1])
    return {
        "added": status("VmHWM") - before,
        "load": whole - sum(seconds),
        "tree": statistics.median(seconds),
        "read": int(statistics.median(booster.history["bytes_read"])),
        "loss": loss,
    }


def train_xgboost(files: list[str], limit: int, scratch: str) -> dict[str, Any]:
    import xgboost  # maps its cache into memory: what it reads is not told

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
    before, ends = enclose(limit), []

    class Watch(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            ends.append(time.perf_counter())
            return False

    began = time.perf_counter()
    data = xgboost.ExtMemQuantileDMatrix(Parts(files, f"{scratch}/cache"), max_bin=256)
    loaded, read = time.perf_counter(), _bytes_read()
    told: dict[str, Any] = {}
    xgboost.train(settings, data, TREES, callbacks=[Watch()], evals=[], evals_result=told)
    seconds = np.diff([loaded, *ends])
    return {
        "added": status("VmHWM") - before,
        "load": loaded - began,
        "tree": float(np.median(seconds)),
        "read": (_bytes_read() - read) // TREES,
    }


def _bytes_read() -> int:
    """What this process has asked files for, the system's cache included."""
    return int(next(line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar")).split()[1])


ENGINES = {"dboost": train_dboost, "xgboost": train_xgboost}


def bandwidth(files: list[str]) -> float:
    """Bytes a second of reading files that are not in the system's cache."""
    began, n = time.perf_counter(), 0
    for path in files[:8]:
        with open(path, "rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while block := file.read(2**22):
                n += len(block)
    return n / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.out_of_core", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a sixteenth of limit and data, to see that it works")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 2, 4, 8], help="how many times the limit")
    parser.add_argument("--output", metavar="FILE.json", help="also write the figures")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        engine, task = options.child
        print(json.dumps(ENGINES[engine](**json.loads(task))))
        return
    scale = 16 if options.quick else 1
    limit, size = LIMIT // scale, PART // scale
    figures: dict[str, Any] = {}
    files = [str(part(k, size)) for k in range(max(options.sizes) * limit // size)]
    disk = bandwidth(files)
    processors = len(os.sched_getaffinity(0))
    print(f"memory limit {limit >> 20} MiB, {disk / 2**20:.0f} MiB/s read from the disk, {processors} processors")
    print(f"{'engine':9}{'data':>6}{'MiB added':>11}{'load s':>9}{'s a tree':>10}{'MiB read a tree':>17}{'disk alone s':>14}")
    for times in options.sizes:
        for engine in options.engines:
            some = files[: times * limit // size]
            with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
                task = json.dumps({"files": some, "limit": limit, "scratch": scratch})
                child = subprocess.run(
                    [sys.executable, "-m", "benchmarks.out_of_core", "--child", engine, task],
                    capture_output=True,
                    text=True,
                    env=os.environ | {"MALLOC_ARENA_MAX": "2"},
                    check=False,
                )
            if child.returncode:
                last = child.stderr.strip().splitlines()[-1:] or ["no message"]
                print(f"{engine:9}{times:5}×  failed: {last[0][:100]}", flush=True)
                figures[f"{engine} {times}"] = {"failed": last[0]}
                continue
            found = json.loads(child.stdout.splitlines()[-1])
            figures[f"{engine} {times}"] = found
            print(
                f"{engine:9}{times:5}×{found['added'] / 2**20:11.0f}{found['load']:9.1f}{found['tree']:10.2f}"
                f"{found['read'] / 2**20:17.0f}{found['read'] / disk:14.2f}",
                flush=True,
            )
    for times in options.sizes:
        ours, theirs = figures.get(f"dboost {times}", {}), figures.get(f"xgboost {times}", {})
        if "tree" in ours and "tree" in theirs:
            seconds, memory = theirs["tree"] / ours["tree"], theirs["added"] / ours["added"]
            print(f"{times}×: XGBoost's seconds a tree are {seconds:.2f} times ours, its memory {memory:.2f} times")
    if options.output:
        Path(options.output).write_text(json.dumps({"limit": limit, "disk": disk, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
