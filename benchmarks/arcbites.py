"""A tenth of the rows in memory: what arcbites cost in accuracy, and what they save in reading.

    python -m benchmarks.arcbites [--tables hflights covtype synthetic] [--rows 10000000] [--trees 300] [--minutes 10]
                                  [--quick] [--set NAME=VALUE …] [--output FILE.json] [--pictures FOLDER]

Each table is split into training rows, validation rows that decide when to stop (or when to end a visit), and test rows. It is
trained on in several ways, each in a process of its own, which has its own peak memory:

    all rows           everything in memory
    one bite           a tenth of the rows in memory, and no others
    streamed           everything, a tenth in memory (`memory_limit`), the rest read again for every tree
    streamed, timed    the same, stopped after the time of the slowest of the arcbites
    arcbites …         ten bites, one in memory, the others in files
    arcbites, slowly   one tree per visit with a tenth of the learning rate, until a third of the bytes of "streamed" are read
                       (at most SLOW_TREES times as many trees)

Reported for each way: the loss on the test rows and its excess over "all rows"; trees; seconds; bytes read from files while
training; peak memory above that of the process before the fit. With --pictures the loss on the validation rows is plotted
against bytes and against seconds.

The synthetic table has 10 million rows and 28 columns unless --rows is given; it is used with fewer ways, with 100 trees,
unless --ways and --trees are given, and for ten minutes (--minutes), including the time to generate it. When the time is over,
the fit under way, which is the streamed one, is stopped, and the number of its trees has a star. pandas needs up to 5 GiB of
memory in "all rows", and TMPDIR needs 4 GB of disk space.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks import workloads
from tests.helpers import real_data

N_BITES = 10
#: Ways to train by name: arcbites, or None for all rows at a time; and the part in memory.
WAYS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "all rows": (None, "all"),
    "one bite": (None, "one bite"),
    "arcbites, until the test set says stop": ({"visits": 3, "early_stopping_rounds": 10}, "files"),
    "arcbites, 20 trees a visit": ({"trees_per_visit": 20, "visits": None}, "files"),
    "arcbites, 5 trees a visit": ({"trees_per_visit": 5, "visits": None}, "files"),
    "arcbites, 1 tree a visit": ({"trees_per_visit": 1, "visits": None}, "files"),
    "arcbites, 1 tree a visit, grouped anew": ({"trees_per_visit": 1, "visits": None, "parts": 10}, "files"),
    "arcbites, adaptive": ({"trees_per_visit": 10, "visits": None, "order": "adaptive"}, "files"),
    "streamed": (None, "files"),
    "streamed, timed": (None, "files"),
    "arcbites, slowly": ({"trees_per_visit": 1, "visits": None, "parts": 10}, "files"),
}
#: Ways for the synthetic table, where each takes long; and the number of trees.
SYNTHETIC_WAYS = ["all rows", "one bite", "arcbites, 5 trees a visit", "arcbites, 1 tree a visit, grouped anew", "streamed"]
#: "slowly": the part of the learning rate, the most trees as a multiple of those of the other ways, and the part of the bytes.
SLOW_RATE, SLOW_TREES, SLOW_BYTES = 0.1, 20, 1 / 3
TREES, SYNTHETIC_TREES = 300, 100
SYNTHETIC_MINUTES = 10.0
#: Rows of a partition.
PART_ROWS = 20_000
#: Validation rows of the synthetic table, and as many test rows.
TEST_ROWS = 200_000


def make(name: str, folder: Path, rows: int, quick: bool) -> None:
    """Write training, validation and test rows as Parquet files; the target column is ``target``."""
    if name == "synthetic":
        n_test = min(rows // 5, TEST_ROWS)
        write(synthetic(rows, 1), folder / "train")
        for which, seed in (("decide", 2), ("judge", 3)):
            pd.concat(synthetic(n_test, seed)).to_parquet(folder / f"{which}.parquet", index=False)
        return
    if name == "covtype":
        frame = pd.read_parquet(real_data.path(name)).rename(columns={"Cover_Type": "target"})
    else:
        frame = real_data.load(name).frame
    frame = frame.iloc[np.random.default_rng(0).permutation(len(frame))].reset_index(drop=True)
    cut = round(0.7 * len(frame))
    half = (cut + len(frame)) // 2
    train, decide, judge = (frame[a:b].reset_index(drop=True) for a, b in ((0, cut), (cut, half), (half, len(frame))))
    if quick:
        train, decide, judge = train[:20_000], decide[:4_000], judge[:4_000]
    write([train], folder / "train")
    decide.to_parquet(folder / "decide.parquet")
    judge.to_parquet(folder / "judge.parquet")


def synthetic(rows: int, seed: int) -> Iterator[pd.DataFrame]:
    """Yield the blocks of the synthetic table."""
    for X, y in workloads.parts(rows, 28, seed):
        yield pd.DataFrame(X, columns=[f"f{j}" for j in range(28)]).assign(target=y.astype(np.int64))


def write(frames: Iterable[pd.DataFrame], folder: Path) -> None:
    """Write Parquet files of at most PART_ROWS rows."""
    folder.mkdir(parents=True)
    pieces = (frame[first : first + PART_ROWS] for frame in frames for first in range(0, len(frame), PART_ROWS))
    for i, piece in enumerate(pieces):
        piece.to_parquet(folder / f"{i:05d}.parquet", index=False)


def limit_for(folder: Path) -> int:
    """Return the bytes that a tenth of the rows take while they are trained on, plus a constant for histograms and chunks.

    A row takes its codes twice, target, scores, gradients, Hessians, a leaf, and two records; with K classes K times some of
    these.
    """
    files = sorted(folder.glob("*.parquet"))
    n_rows = sum(pq.ParquetFile(file).metadata.num_rows for file in files)
    first = pd.read_parquet(files[0])
    outputs = first["target"].nunique()
    outputs = 1 if outputs == 2 else outputs
    return int(1.2 * n_rows / N_BITES * (2 * (first.shape[1] - 1) + 40 + 17 * outputs)) + 12 * 2**20


def measure(
    folder: Path, way: str, trees: int, given: dict[str, Any], seconds: float, most_bytes: float = math.inf
) -> dict[str, Any]:
    """Train in one way, in this process. given : additional parameters; seconds, most_bytes : after which it is stopped."""
    import dboost
    from dboost.session.bites import parts_of

    bites, where = WAYS[way]
    options: dict[str, Any] = {"loss": "log_loss", "max_iter": trees, "progress": False} | given
    data: Any = str(folder / "train")
    if where != "files":
        data = pd.concat([pd.read_parquet(file) for file in sorted((folder / "train").glob("*.parquet"))], ignore_index=True)
    if where == "one bite":
        data = data[parts_of(0, N_BITES, np.arange(len(data))) == 0].reset_index(drop=True)
    if where == "files":
        options["memory_limit"] = limit_for(folder / "train")
    if bites is not None:
        options["arcbites"] = dboost.ArcBites(N_BITES, **bites)
    if bites is None or "trees_per_visit" in bites:
        options["early_stopping_rounds"] = 30
    if way.endswith("slowly"):
        rate = options.get("learning_rate", dboost.params.Parameters().learning_rate)
        options |= {"learning_rate": SLOW_RATE * rate, "max_iter": SLOW_TREES * trees, "early_stopping_rounds": 300}
    decide, judge = (pd.read_parquet(folder / f"{name}.parquet") for name in ("decide", "judge"))
    dboost.fit(decide[:2000], "target", loss="log_loss", max_iter=2, progress=False)  # compiles
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, used, read = time.perf_counter(), time.process_time(), 0

    def ends(iteration: dboost.Iteration) -> bool:
        nonlocal read
        read += iteration.record["bytes_read"]
        return time.perf_counter() - began >= seconds or read >= most_bytes

    booster = dboost.fit(data, "target", eval_set=decide, callbacks=ends, **options)
    took, processor = time.perf_counter() - began, time.process_time() - used
    history = booster.history.drop_duplicates("iteration", keep="last")
    history = history[history["iteration"] <= booster.n_iter_]
    spent = booster.history[["seconds", "bytes_read"]].cumsum().loc[history.index]
    probability = np.asarray(booster.predict_proba(judge))
    codes = np.searchsorted(booster.classes_, judge["target"])
    return {
        "way": way,
        "loss": float(-np.log(np.clip(probability[np.arange(len(judge)), codes], 1e-15, 1)).mean()),
        "trees": booster.n_iter_,
        "grown": len(booster.history),
        "stopped": took >= seconds,
        "seconds": took,
        "processor_seconds": processor,
        "bytes_read": int(booster.history["bytes_read"].sum()),
        "peak_bytes": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
        "limit": options.get("memory_limit"),
        "curve": {
            "bytes": spent["bytes_read"].tolist(),
            "seconds": spent["seconds"].tolist(),
            "loss": history["eval_log_loss"].tolist(),
        },
    }


def race(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all ways on one table, each in a process of its own."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="arcbites-") as made:
        folder, is_made, began = Path(made), name == "synthetic", time.perf_counter()
        minutes = arguments.minutes or (SYNTHETIC_MINUTES if is_made else math.inf)
        make(name, folder, arguments.rows, arguments.quick)
        trees = arguments.trees or (SYNTHETIC_TREES if is_made else TREES)
        for way in arguments.ways or (SYNTHETIC_WAYS if is_made else WAYS):
            # Equal time: that of the slowest arcbites.
            slowest = max((one["seconds"] for one in found if one["way"].startswith("arcbites")), default=math.inf)
            left = max(60 * minutes - (time.perf_counter() - began), 0.0)
            seconds = min(left, slowest) if way.endswith("timed") else left
            of_streamed = next((one["bytes_read"] for one in found if one["way"] == "streamed"), 0)
            most_bytes = SLOW_BYTES * of_streamed if way.endswith("slowly") and of_streamed else math.inf
            if arguments.quick:
                found.append({"table": name} | measure(folder, way, trees, dict(arguments.set), seconds, most_bytes))
                continue
            command = [sys.executable, "-m", "benchmarks.arcbites", "--one", str(folder), way, str(trees)]
            command += [json.dumps(dict(arguments.set)), str(seconds), str(most_bytes)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{name}, {way}: {done.stderr}")
            found.append({"table": name} | json.loads(done.stdout.splitlines()[-1]))
            print(f"{name}: {way}: loss {found[-1]['loss']:.5f}, {found[-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    return found


def draw_table(name: str, found: list[dict[str, Any]]) -> Table:
    """Return the results as a table for the terminal."""
    drawn = Table(title=name)
    for column in ("way", "log loss", "above all rows", "trees", "seconds", "read, MiB", "of streamed", "peak, MiB"):
        drawn.add_column(column, justify="left" if column == "way" else "right")
    by_way = {one["way"]: one for one in found}
    best, streamed = by_way.get("all rows"), by_way.get("streamed")
    for one in found:
        above = f"{100 * (one['loss'] / best['loss'] - 1):+.2f} %" if best else ""
        share = f"{100 * one['bytes_read'] / streamed['bytes_read']:.1f} %" if streamed and streamed["bytes_read"] else ""
        drawn.add_row(
            one["way"], f"{one['loss']:.5f}", above, f"{one['trees']}{'*' * one['stopped']}", f"{one['seconds']:.1f}",
            f"{one['bytes_read'] / 2**20:.0f}", share, f"{one['peak_bytes'] / 2**20:.0f}",
        )  # fmt: skip
    return drawn


def draw_pictures(name: str, found: list[dict[str, Any]], folder: Path) -> None:
    """Plot the loss against bytes read and against seconds, as SVG."""
    from dboost.inspection.plots import canvas

    folder.mkdir(parents=True, exist_ok=True)
    with canvas.style(), canvas.detached():
        left, right = canvas.new_axes(1, 2, width=11, height=4, sharey=True)[0]
        for k, one in enumerate(found):
            curve, style = one["curve"], {"label": one["way"], "linewidth": 1.2, **canvas.colour(k)}
            if one["bytes_read"]:
                left.plot(np.maximum(curve["bytes"], 1) / 2**20, curve["loss"], **style)
            right.plot(curve["seconds"], curve["loss"], **style)
        left.set(xlabel="MiB read", ylabel="log loss on the deciding rows", title=name)
        right.set_xlabel("seconds")
        for ax in (left, right):
            ax.semilogx()
            ax.grid()
        right.legend(fontsize="small")
        left.figure.savefig(folder / f"arcbites_{name}.svg", metadata={"Date": None})


def setting(text: str) -> tuple[str, float]:
    """Parse a parameter's name and value."""
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=["hflights", "covtype", "synthetic"])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), metavar="WAY")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the synthetic table")
    parser.add_argument("--trees", type=int, help=f"{TREES}, {SYNTHETIC_TREES} on the synthetic table")
    parser.add_argument(
        "--minutes", type=float, help=f"for each table; {SYNTHETIC_MINUTES:g} for the synthetic one, else no limit"
    )
    parser.add_argument("--set", nargs="+", type=setting, default=[], metavar="NAME=VALUE", help="numbers, for all ways alike")
    parser.add_argument("--quick", action="store_true", help="a few rows of each table, here, to see that it works")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.one:
        folder, way, trees, options, seconds, most_bytes = arguments.one
        found_one = measure(Path(folder), way, int(trees), json.loads(options), float(seconds), float(most_bytes))
        print(json.dumps(found_one))
        return
    if arguments.quick:
        arguments.rows = min(arguments.rows, 20_000)
    everything: list[dict[str, Any]] = []
    for name in arguments.tables:
        found = race(name, arguments)
        everything += found
        Console(width=max(Console().width, 110)).print(draw_table(name, found))
        if arguments.pictures:
            draw_pictures(name, found, arguments.pictures)
        if arguments.output:
            arguments.output.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
