"""``python -m benchmarks``: the race over the chosen workloads, and its table.

With ``--all`` everything that one process of one machine can measure: all workloads and engines, the profile of the kernels,
Shapley values, the first fit. (Clusters and tables larger than memory: `benchmarks.cluster`, `benchmarks.out_of_core`.)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import cold_start, peers, picture, profile, shap
from benchmarks.engines import ENGINES, USUAL, can_fit
from benchmarks.race import Result, peak_memory, race, spread
from benchmarks.workloads import MAIN, OTHERS, WORKLOADS, Workload


def main(argv: Sequence[str] | None = None) -> None:
    options = _options(argv)
    console = Console(width=160)
    load = os.getloadavg()[0]
    if load > 0.5:
        _progress(f"caution: the machine is busy (load {load:.1f}), times and even ratios will mislead")
    libraries = [library for library in peers.DISTRIBUTIONS if any(engine.startswith(library) for engine in options.engines)]
    for text in peers.warnings(libraries):
        _progress(text)
    first = options.engines[0]
    console.print(peers.describe(libraries))
    console.print(f"×: seconds ÷ {first}'s seconds of the same round, median over rounds (smallest–largest)")
    report = {}
    for name in options.workloads:
        workload = WORKLOADS[name].quick() if options.quick else WORKLOADS[name]
        engines = [engine for engine in options.engines if can_fit(engine, workload.loss)]
        results = race(workload, engines, options.rounds, options.threads, say=_progress)
        if options.memory:
            for engine in engines:
                results[engine].peak_memory = peak_memory(workload, engine, options.threads)
        console.print(f"{workload}; threads: {options.threads}, rounds: {options.rounds}")
        console.print(draw(workload, results))
        report[name] = {engine: asdict(result) for engine, result in results.items()}
        if options.output:
            Path(options.output).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        drawn = [workload.name for workload in MAIN if workload.name in options.workloads] or options.workloads
        raced = [WORKLOADS[name].quick() if options.quick else WORKLOADS[name] for name in drawn]
        least = {workload.name: picture.least_of(workload, options.threads) for workload in raced}
        picture.plot(report, raced, least, options.plot)
    if len(options.workloads) == len(WORKLOADS):
        quick = ["--quick"] if options.quick else []
        profile.main(quick)
        shap.main(["--threads", str(options.threads), *quick, *(["--rows", "100"] if options.quick else [])])
        cold_start.main(["--repeats", "1"] if options.quick else [])


def draw(workload: Workload, results: dict[str, Result]) -> Table:
    """Print one workload's results; times are relative to the first engine."""
    first = next(iter(results.values()))
    table = Table()
    table.add_column(workload.name, no_wrap=True)
    for phase in ("training", "binning", "prediction"):
        table.add_column(f"{phase} s", justify="right")
        table.add_column("×", justify="right", no_wrap=True)
    table.add_column("peak MiB", justify="right")
    for score in first.scores:
        table.add_column(score, justify="right")
    for engine, result in results.items():
        cells = []
        for phase in ("training", "binning", "prediction"):
            mine, theirs = np.array(getattr(result, phase)), np.array(getattr(first, phase))
            cells += [f"{np.median(mine):.3f}", "" if result is first else spread(mine / theirs)]
        cells.append("" if result.peak_memory is None else f"{result.peak_memory:.0f}")
        table.add_row(engine, *cells, *(f"{score:.5f}" for score in result.scores.values()))
    return table


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    def names(known: dict, what: str) -> object:
        def read(text: str) -> list[str]:
            chosen = text.split(",")
            if unknown := [name for name in chosen if name not in known]:
                raise argparse.ArgumentTypeError(f"no {what} {', '.join(unknown)}; there are {', '.join(known)}")
            return chosen

        return read

    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare training speed and memory.")
    chosen = parser.add_mutually_exclusive_group()
    main = [workload.name for workload in MAIN]
    others = [workload.name for workload in OTHERS]
    chosen.add_argument("--workloads", type=names(WORKLOADS, "workload"), default=main, metavar="W1a,W4,…")
    chosen.add_argument(
        "--others", dest="workloads", action="store_const", const=others, help=f"those of other shapes: {', '.join(others)}"
    )
    chosen.add_argument(
        "--all", dest="workloads", action="store_const", const=main + others,
        help="all of them, every engine, the kernels' profile, Shapley values and the first fit",
    )  # fmt: skip
    parser.add_argument("--engines", type=names(ENGINES, "engine"), metavar="dboost,xgboost,…")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="tiny tables, to see that everything runs")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="do not measure peak memory")
    parser.add_argument("--output", metavar="FILE.json", help="also write every measurement")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="also draw training (of the main workloads, if any) beside the limits"
    )
    options = parser.parse_args(argv)
    if options.engines is None:
        options.engines = list(ENGINES if len(options.workloads) == len(WORKLOADS) else USUAL)
    return options


if __name__ == "__main__":
    main()
