"""Whole fits on a Dask cluster, beside xgboost.dask and lightgbm.dask, and the cost of dboost's rounds.

    python -m benchmarks.cluster [--rows 2000 100000 1000000] [--trees 100] [--kind binary|classes|"ten classes"]
                                 [--workers 2] [--link 1gbit] [--per-worker] [--rounds 3] [--deaths 3]
                                 [--settings default|equal] [--quick] [--output FILE.json]

Scheduler and workers are separate processes on this machine, with one thread each; with ``--link`` each of them is in a network
namespace of its own whose link has this rate. With ``--per-worker``, and with ``--link``, whose namespaces stand for hosts,
every worker trains on its own rows; by default one of them trains on all rows (`dboost.session-per-host`). Every fit has a new
cluster, so that the workers' peak memory is that of the fit. A fit is timed from a persisted frame to a model in the client.
The engines alternate, and ratios are within a round. By default every library has its own settings; with "equal" all have the
same (31 leaves, at least one row a leaf, learning rate 0.1).

With several classes, an iteration has a tree for each of them.

The second part tells where the milliseconds of dboost's iterations go: computing on the workers, merging and split search in
the scheduler, messages, the rest in the client; beside the same fit in one process with as many threads. Also the number of
rounds per iteration, the bytes that are sent, and the processor time of the scheduler's process.

The last part kills a worker with SIGKILL in the middle of a fit, several times. The cost of a death is the length of the
iteration in which it happens, minus that of a usual one (detection, reading the worker's rows again, applying all trees to
them), and the whole time beside that of an undisturbed fit, which also includes having one worker fewer from then on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
from distributed import Client, wait
from rich.console import Console
from rich.table import Table

from benchmarks import workloads
from benchmarks.workloads import Workload
from tests.helpers.hosts import Hosts

Fit = Callable[[Client, Any, int, dict[str, Any]], Any]


#: Settings of each library, beside the number of trees.
EQUAL: dict[str, dict[str, Any]] = {
    "dboost": {"min_samples_leaf": 1},
    "xgboost": {
        "grow_policy": "lossguide", "max_leaves": 31, "max_depth": 0, "eta": 0.1, "max_bin": 255, "min_child_weight": 1.0,
        "lambda": 1.0,
    },
    "lightgbm": {
        "num_leaves": 31, "learning_rate": 0.1, "max_bin": 255, "min_child_samples": 1, "min_child_weight": 1.0,
        "reg_lambda": 1.0,
    },
}  # fmt: skip
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {"default": {"dboost": {}, "xgboost": {}, "lightgbm": {}}, "equal": EQUAL}


def settings_of(engine: str, settings: str, workload: Workload) -> dict[str, Any]:
    """Return the settings of a library for a workload. settings : a key of `SETTINGS`."""
    found = SETTINGS[settings][engine]
    if engine == "xgboost" and workload.n_classes > 2:
        found = found | {"objective": "multi:softprob", "num_class": workload.n_classes}
    return found


def fit_dboost(client: Client, frame: Any, trees: int, settings: dict[str, Any]) -> Any:
    import dboost

    return dboost.fit(frame, "y", client=client, max_iter=trees, loss="log_loss", progress=False, **settings)


def fit_xgboost(client: Client, frame: Any, trees: int, settings: dict[str, Any]) -> None:
    import xgboost.dask as xdask

    data = xdask.DaskQuantileDMatrix(client, frame.drop(columns="y"), frame["y"], max_bin=settings.get("max_bin", 256))
    options = {"objective": "binary:logistic", "tree_method": "hist", "nthread": 1} | settings
    xdask.train(client, options, data, num_boost_round=trees)


def fit_lightgbm(client: Client, frame: Any, trees: int, settings: dict[str, Any]) -> None:
    import lightgbm as lgb

    model = lgb.DaskLGBMClassifier(client=client, n_estimators=trees, n_jobs=1, verbose=-1, **settings)
    model.fit(frame.drop(columns="y"), frame["y"])


ENGINES: dict[str, Fit] = {"dboost": fit_dboost, "xgboost": fit_xgboost, "lightgbm": fit_lightgbm}


@contextmanager
def cluster(n_workers: int, link: str | None = None) -> Iterator[Client]:
    """A scheduler and single-threaded workers as processes.

    link : rate of the link of each process, for example "1gbit"; default: all processes use the loopback device.
    """
    with ExitStack() as stack:
        hosts = None
        if link is not None:
            hosts = stack.enter_context(Hosts(n_workers + 1, link))
            # The namespaces stand for hosts, but processes in them report the same name.
            stack.enter_context(dask.config.set({"dboost.session-per-host": False}))
        yield stack.enter_context(_processes(n_workers, hosts))


@contextmanager
def _processes(n_workers: int, hosts: Hosts | None) -> Iterator[Client]:
    def place(i: int) -> tuple[list[str], str]:
        """Return the command prefix and the address of a process."""
        return ([], "127.0.0.1") if hosts is None else (hosts.inside(i), hosts.address(i))

    inside, host = place(n_workers)
    processes = [_start(inside, "dask_scheduler", "--host", host, "--port", "0", "--no-dashboard")]
    try:
        address = _address(processes[0])
        for i in range(n_workers):
            inside, host = place(i)
            options = ["--host", host, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
            processes.append(_start(inside, "dask_worker", address, *options))
        with Client(address) as client:
            client.wait_for_workers(n_workers, timeout=120)
            yield client
    finally:
        # A worker whose peers have died may wait for them in the code of other libraries: kill it.
        for process in reversed(processes):
            process.kill()
            process.wait()


def _start(inside: Sequence[str], command: str, *arguments: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE if command == "dask_scheduler" else subprocess.DEVNULL
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    return subprocess.Popen(
        [*inside, sys.executable, "-m", f"distributed.cli.{command}", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=pipe,
        env=environment,
    )


def _address(scheduler: subprocess.Popen[bytes]) -> str:
    assert scheduler.stderr is not None
    for line in scheduler.stderr:
        if b"Scheduler at:" in line:
            threading.Thread(target=scheduler.stderr.read, daemon=True).start()
            return line.decode().split("Scheduler at:")[1].strip()
    raise RuntimeError("the scheduler did not start")


def _peak_mib() -> float:
    """Run on a worker: return its peak memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _cpu_seconds() -> float:
    return time.process_time()


def frame_of(client: Client, workload: Workload, n_partitions: int) -> Any:
    """Return the workload's table, persisted on the workers."""
    table = workloads.load(workload)
    features = pd.DataFrame(table.X, columns=[f"x{j}" for j in range(table.X.shape[1])])
    frame = dd.from_pandas(features.assign(y=table.y), npartitions=n_partitions)
    persisted = client.persist(frame)
    wait(persisted)
    return persisted


def race(
    workload: Workload,
    engines: Sequence[str],
    *,
    settings: str,
    workers: int,
    link: str | None = None,
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return seconds and peak memory of every engine in every round."""
    found: dict[str, Any] = {engine: {"seconds": [], "peak_mib": []} for engine in engines}
    for i in range(rounds):
        for engine in engines if i % 2 == 0 else reversed(engines):
            with cluster(workers, link) as client:
                frame = frame_of(client, workload, 2 * workers)
                options = settings_of(engine, settings, workload)
                ENGINES[engine](client, frame, 2, options)  # imports and compilation
                began = time.perf_counter()
                ENGINES[engine](client, frame, workload.trees, options)
                seconds = time.perf_counter() - began
                peak = max(client.run(_peak_mib).values())
            found[engine]["seconds"].append(seconds)
            found[engine]["peak_mib"].append(peak)
            say(f"round {i + 1}/{rounds} {engine}: {seconds:.2f} s, {peak:.0f} MiB")
    return found


def rounds_of(workload: Workload, *, settings: str, workers: int, link: str | None = None) -> dict[str, float]:
    """Return where the time of one dboost fit goes: medians per iteration, and means per round."""
    import dboost

    ours = SETTINGS[settings]["dboost"]
    with cluster(workers, link) as client:
        frame = frame_of(client, workload, 2 * workers)
        fit_dboost(client, frame, 2, ours)
        before = client.run_on_scheduler(_cpu_seconds)
        began = time.perf_counter()
        booster = fit_dboost(client, frame, workload.trees, ours)
        whole = time.perf_counter() - began
        cpu = client.run_on_scheduler(_cpu_seconds) - before
        trees = [event for _, event in client.get_events("dboost") if event["action"] == "tree"][-workload.n_trees :]
    table = workloads.load(workload)
    here = {"max_iter": workload.trees, "loss": "log_loss", "progress": False, "n_threads": workers} | ours
    dboost.fit(table.X, table.y, **here | {"max_iter": 2})
    began = time.perf_counter()
    alone = dboost.fit(table.X, table.y, **here)
    whole_alone = time.perf_counter() - began
    parts = booster.history[["seconds", "seconds_compute", "seconds_reduce", "seconds_wait"]].iloc[1:]
    rest = parts["seconds"] - parts.iloc[:, 1:].sum(axis=1)
    milliseconds = dict(zip(("iteration", "computing", "merging and search", "messages"), 1000 * parts.median(), strict=True))
    n_rounds = sum(tree["n_rounds"] for tree in trees)
    return {
        **{f"{name} ms": value for name, value in milliseconds.items()},
        "client ms": 1000 * rest.median(),
        "iteration in one process ms": 1000 * alone.history["seconds"].iloc[1:].median(),
        "whole fit ÷ one process": whole / whole_alone,
        "rounds an iteration": n_rounds / workload.trees,
        **{f"{part} ms a round": 1000 * sum(tree[part] for tree in trees) / n_rounds for part in ("compute", "reduce", "wait")},
        "scheduler CPU ms a round": 1000 * cpu / n_rounds,
        "MiB an iteration": sum(tree["n_bytes"] for tree in trees) / workload.trees / 2**20,
    }


def deaths_of(workload: Workload, *, settings: str, workers: int, link: str | None = None, deaths: int) -> dict[str, float]:
    """Measure the cost of killing a worker in the middle of a fit; each fit has a new cluster."""
    undisturbed, lost, whole = [], [], []
    for victim in (False, True) * deaths:
        with cluster(workers, link) as client:
            frame = frame_of(client, workload, 2 * workers)
            fit_dboost(client, frame, 2, SETTINGS[settings]["dboost"])
            seconds, lengths = _fit_with_a_death(client, frame, workload.trees, SETTINGS[settings]["dboost"], kill=victim)
            if not victim:
                undisturbed.append(seconds)
                continue
            whole.append(seconds)
            lost.append(max(lengths) - statistics.median(lengths))
    usual = statistics.median(undisturbed)
    return {
        "seconds lost at a death": statistics.median(lost),
        "seconds lost at a death, at most": max(lost),
        "whole time with a death, beyond an undisturbed fit": statistics.median(whole) - usual,
    }


def _fit_with_a_death(
    client: Client, frame: Any, trees: int, settings: dict[str, Any], *, kill: bool
) -> tuple[float, list[float]]:
    """Return the seconds of a fit and of its iterations; optionally kill the first worker in the middle."""
    victim = min(client.run(os.getpid).values())
    ends: list[float] = []

    def look(now: Any) -> None:
        ends.append(time.perf_counter())
        if kill and now.iteration == max(trees // 2, 1):
            os.kill(victim, signal.SIGKILL)

    began = time.perf_counter()
    fit_dboost(client, frame, trees, settings | {"callbacks": [look]})
    seconds = time.perf_counter() - began
    return seconds, [after - before for before, after in pairwise(ends)]


def _table_of(found: dict[str, Any], engines: Sequence[str], workload: Workload, n_workers: int) -> Table:
    table = Table(
        title=f"{workload.rows:,} × {workload.features} {workload.kind}, {workload.trees} iterations, "
        f"{n_workers} workers of one thread"
    )
    for column in ("", "seconds", "× dboost", "peak MiB a worker"):
        table.add_column(column, justify="left" if not column else "right")
    for engine in engines:
        pairs = zip(found[engine]["seconds"], found.get("dboost", found[engine])["seconds"], strict=True)
        ratios = [theirs / ours for theirs, ours in pairs]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        seconds = f"{statistics.median(found[engine]['seconds']):.2f}"
        table.add_row(engine, seconds, "" if engine == "dboost" else spread, f"{max(found[engine]['peak_mib']):.0f}")
    return table


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description="Compare whole fits on a Dask cluster.")
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000, 100_000, 1_000_000])
    parser.add_argument("--features", type=int, default=28)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--kind", choices=["binary", *workloads.CUTS], default="binary", help="of the target")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--link", metavar="1gbit", help="rate of the link of each process; default: all use the loopback device"
    )
    parser.add_argument("--per-worker", action="store_true", help="every worker trains on its own rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", choices=sorted(SETTINGS), default="default", help="each library's own, or equal ones")
    parser.add_argument("--engines", default="dboost,xgboost,lightgbm", help="separated by commas")
    parser.add_argument("--deaths", type=int, default=3, help="fits of the largest table in which a worker is killed; 0: none")
    parser.add_argument("--quick", action="store_true", help="a tiny table, to see that everything runs")
    parser.add_argument("--output", metavar="FILE.json")
    options = parser.parse_args(argv)
    if options.quick:
        options.rows, options.features, options.trees, options.rounds = [20_000], 12, 5, 1
        options.deaths = min(options.deaths, 1)
    engines = options.engines.split(",")
    console = Console()
    found: dict[str, Any] = {}
    if options.per_worker:
        dask.config.set({"dboost.session-per-host": False})
    for n_rows in options.rows:
        workload = Workload("cluster", n_rows, options.features, options.kind, options.trees)
        where = {"settings": options.settings, "workers": options.workers, "link": options.link}
        of_size = race(workload, engines, **where, rounds=options.rounds, say=lambda text: console.print(text))
        console.print(_table_of(of_size, engines, workload, options.workers))
        if "dboost" in engines:
            of_size["rounds"] = rounds_of(workload, **where)
        if "dboost" in engines and options.deaths and options.workers > 1 and n_rows == max(options.rows):
            of_size["deaths"] = deaths_of(workload, **where, deaths=options.deaths)
        for name, value in (of_size.get("rounds", {}) | of_size.get("deaths", {})).items():
            console.print(f"{name}: {value:.2f}")
        found[str(n_rows)] = of_size
    if options.output:
        Path(options.output).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
