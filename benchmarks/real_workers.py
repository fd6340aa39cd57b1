"""A fit on many real worker processes of this machine, two of which are killed: the same model, and what the processes use.

    python -m benchmarks.real_workers [--workers 64] [--rows 100] [--trees 10] [--kills 2] [--one-session] [--quick]
        [--output FILE.json]

Scheduler and workers are forked from one process that has imported everything and loaded the kernels (`simulation.warm`), so
that a worker needs little memory of its own, and little time to start. Dask's profiler is off, and what else wakes an idle
worker many times a second is made rare (`ENVIRONMENT`): otherwise a hundred idle workers occupy two processors. The table is
small (`--rows` rows for each worker), so nearly all processor time is that of messages. All workers take part in every round
(`dboost.single-worker-values: 0`, `dboost.session-per-host: false`). With `--one-session` all of them hand their rows over to
one (`dboost.session-per-host: true`), as by default.

Workers start in groups of `STEP`, while the system has `LEAST_FREE` bytes of memory left. The first fit is undisturbed. In the
second one, `--kills` workers are killed with SIGKILL, one after the other, those with most rows first. The saved models are
compared with that of one process, byte by byte. For the scheduler (whose process has the reducer), the client and the workers
the table has memory, threads, descriptors and sockets before the first fit, in the middle of it, and after both fits; further
the processor time of a round, beside the same cluster in the simulation (`benchmarks.simulation`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client
from rich.console import Console
from rich.table import Table

import dboost
from benchmarks.simulation.__main__ import simulate
from benchmarks.simulation.costs import measure
from benchmarks.simulation.network import Network
from tests.helpers.clusters import Processes, held_rows, preload

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__MONITOR_INTERVAL": "10s",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "10s",
}
#: Workers that start together, and bytes of memory that stay available.
STEP, LEAST_FREE = 16, 6 * 2**30
OPTIONS: dict[str, Any] = {"loss": "log_loss", "min_samples_leaf": 1, "progress": False}


class Usage(NamedTuple):
    """What a process uses."""

    resident: float  # MiB
    own: float  # MiB that it does not share with other processes
    threads: int
    descriptors: int
    sockets: int
    seconds: float  # of the processor


def usage(pid: int) -> Usage:
    """Return what a process uses, from /proc."""
    folder = Path("/proc") / str(pid)
    fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    rollup = [line.split() for line in (folder / "smaps_rollup").read_text().splitlines()[1:]]
    own = sum(int(line[1]) for line in rollup if line[0].startswith("Private_"))
    links = []
    for link in (folder / "fd").iterdir():
        try:
            links.append(os.readlink(link))
        except OSError:  # closed meanwhile
            continue
    ticks = (folder / "stat").read_text().rpartition(")")[2].split()
    return Usage(
        int(fields["VmRSS"].split()[0]) / 1024,
        own / 1024,
        int(fields["Threads"]),
        len(links),
        sum(link.startswith("socket:") for link in links),
        (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"),
    )


def table_of(n_rows: int, n_features: int = 28) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    score = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + np.abs(X[:, 3])
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(n_features)]).assign(
        y=(score + rng.standard_normal(n_rows) > 0.7).astype(np.int64)
    )


class Watch:
    """A callback that looks at the processes after the first iteration and the last one, and kills workers in the middle.

    pids : of the workers, by address; others : of other processes, by name.
    """

    def __init__(self, client: Client, pids: dict[str, int], others: dict[str, int], trees: int, kills: int) -> None:
        self._client, self._pids, self._others, self._trees = client, pids, others, trees
        self._kills = range(trees // 2, trees // 2 + kills)
        self.seen: list[dict[str, dict[str, float]]] = []
        self.seconds: list[float] = []

    def __call__(self, now: dboost.Iteration) -> None:
        self.seconds.append(float(now.record["seconds"]))
        print(f"iteration {now.iteration}: {self.seconds[-1]:.2f} s, {now.record['workers']} workers", flush=True)
        if now.iteration in (1, self._trees):
            self.seen.append(usages(self._pids, self._others))
        if now.iteration in self._kills:
            held = self._client.run(held_rows)
            os.kill(self._pids[max(sorted(held), key=held.__getitem__)], signal.SIGKILL)

    def cpu(self, process: str) -> float:
        """Return the processor seconds of a process from the second iteration on."""
        first, last = (seen[process]["seconds"] for seen in self.seen)
        return last - first


def usages(pids: dict[str, int], others: dict[str, int]) -> dict[str, Any]:
    """Return the usage of the scheduler and the client, and the median and the largest of the workers."""
    found = {name: usage(pid)._asdict() for name, pid in others.items()}
    workers = [usage(pid) for pid in pids.values() if Path(f"/proc/{pid}/fd").exists()]
    found["worker, median"] = Usage(*(statistics.median(of) for of in zip(*workers, strict=True)))._asdict()
    found["worker, most"] = Usage(*(max(of) for of in zip(*workers, strict=True)))._asdict()
    found["all workers"] = Usage(*(sum(of) for of in zip(*workers, strict=True)))._asdict()
    return found


def available() -> int:
    """Return the bytes of memory that the system can give to new processes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return 1024 * int(fields["MemAvailable"].split()[0])


def start(cluster: Processes, n_workers: int) -> None:
    """Start workers in groups until there are so many; raise MemoryError if the system would have too little memory left."""
    for n in range(STEP, n_workers + STEP, STEP):
        if available() < LEAST_FREE:
            raise MemoryError(f"{len(cluster.addresses())} workers leave {available() / 2**30:.1f} GiB of memory")
        cluster.ensure_workers(min(n, n_workers))


def saved(booster: dboost.Booster, folder: str) -> bytes:
    """Return the bytes of a model's file."""
    path = Path(folder) / "model.json"
    booster.save(path)
    return path.read_bytes()


def run(n_workers: int, n_rows: int, trees: int, kills: int, one_session: bool = False) -> dict[str, Any]:
    """Fit twice on a new cluster; return usages, seconds and whether the models are those of one process."""
    frame = table_of(n_rows * n_workers)
    data = dd.from_pandas(frame, npartitions=n_workers)
    options = OPTIONS | {"max_iter": trees}
    preload("benchmarks.simulation.warm")
    with (
        dask.config.set({"dboost.single-worker-values": 0, "dboost.session-per-host": one_session}),
        Processes(1, environment=ENVIRONMENT) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        expected = saved(dboost.fit(frame, "y", **options), folder)
        began = time.perf_counter()
        start(cluster, n_workers)
        found: dict[str, Any] = {
            "workers": n_workers,
            "one session": one_session,
            "seconds until all have connected": time.perf_counter() - began,
        }
        print(f"{n_workers} workers after {found['seconds until all have connected']:.1f} s", flush=True)
        client, pids = cluster.client, cluster.pids()
        others = {"scheduler": client.run_on_scheduler(os.getpid), "client": os.getpid()}
        found["before"] = usages(pids, others)
        time.sleep(2.0)
        idle = usages(pids, others)["all workers"]["seconds"] - found["before"]["all workers"]["seconds"]
        found["an idle worker, CPU ms a second"] = 1000 * idle / 2.0 / n_workers
        fits = []
        for n_killed in (0, kills):
            watch = Watch(client, pids, others, trees, n_killed)
            began = time.perf_counter()
            booster = dboost.fit(data, "y", client=client, callbacks=watch, **options)
            events = [event for _, event in client.get_events("dboost") if event["action"] == "tree"][1 - trees :]
            n_rounds = sum(event["n_rounds"] for event in events)
            fits.append({
                "seconds": time.perf_counter() - began,
                "seconds of an iteration": statistics.median(watch.seconds[1:]),
                "identical": saved(booster, folder) == expected,
                "sessions": int(booster.history["workers"].max()),
                "sessions at the end": int(booster.history["workers"].iloc[-1]),
                "rounds of a tree": n_rounds / (trees - 1),
                "owners": max(event["owners"] for event in events),
                "scheduler, CPU ms a round": 1000 * watch.cpu("scheduler") / max(n_rounds, 1),
                "a worker, CPU ms a round": 1000 * watch.cpu("all workers") / max(n_rounds, 1) / n_workers,
                "in the middle": watch.seen[0],
            })  # fmt: skip
        found["fits"] = fits
        time.sleep(1.0)  # connections of the ended fits are closed by then
        found["after"] = usages(pids, others)
    return found


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_workers", description="A fit on many worker processes.")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--rows", type=int, default=100, help="of each worker")
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--one-session", action="store_true", help="all workers hand their rows over to one")
    parser.add_argument("--quick", action="store_true", help="few workers, to see that everything runs")
    parser.add_argument("--output", metavar="FILE.json")
    options = parser.parse_args(argv)
    if options.quick:
        options.workers, options.trees = 4, 6
    found = run(options.workers, options.rows, options.trees, options.kills, options.one_session)
    console = Console(width=120)
    table = Table(title=f"{options.workers} worker processes, load {os.getloadavg()[0]:.1f}")
    for column in ("when", "process", *Usage._fields):
        table.add_column(column, justify="left" if column in ("when", "process") else "right")
    for when, seen in (
        ("before", found["before"]), ("in the middle", found["fits"][0]["in the middle"]), ("after", found["after"])
    ):  # fmt: skip
        for process, used in seen.items():
            table.add_row(when, process, *(f"{value:.0f}" if value >= 10 else f"{value:.3g}" for value in used.values()))
    console.print(table)
    for name in ("seconds until all have connected", "an idle worker, CPU ms a second"):
        console.print(f"{name}: {found[name]:.1f}")
    for fit in found["fits"]:
        console.print({name: value for name, value in fit.items() if name != "in the middle"})
    costs = measure(20_000, 28)
    simulated = simulate(options.workers, options.rows * options.workers, 28, 2, Network(), costs)
    console.print("simulated", {name: round(value, 6) for name, value in simulated.items()}, costs)
    found["simulated"] = simulated
    if options.output:
        Path(options.output).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
