"""Cross-validation and tuning on a data set that stays on a cluster, beside separate fits and beside the peers' loops.

    python -m benchmarks.tuning [--rows 1000000] [--features 28] [--iterations 60] [--folds 5] [--workers 2] [--rounds 3]
                                [--trials 50] [--trial-rows 200000] [--trial-iterations 20] [--engines dboost,xgboost,…]
                                [--quick] [--output FILE.json]

**Folds** (``--folds 0``: none). `dboost.prepare` and `dboost.cv` on a persisted frame, beside one fit for each fold on the
frame's rows of the other folds, with the held-out rows as evaluation set, and beside a single one of these fits for the memory.
Each has a new cluster in every round; the peak memory is that of a worker.

**Trials** (``--trials 0``: none). The same sequence of settings (learning rate and number of leaves) is fitted and evaluated on
a second table. dboost prepares the table once and has two fits at the same time. "xgboost, matrix kept" makes its
DaskQuantileDMatrix objects once, "xgboost" for every trial; lightgbm.dask has no such object. The fits of a peer follow one
another, because each of them occupies all workers. Seconds are those of a trial, with the preparation.

Ratios are those of the same round: median (smallest–largest). ``--output`` is written after every measurement.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
from distributed import Client, wait
from rich.console import Console

import dboost
from benchmarks import peers
from benchmarks.cluster import _peak_mib, cluster, frame_of
from benchmarks.workloads import Workload

FITS: dict[str, Any] = {"loss": "log_loss", "eval_metric": "log_loss", "progress": False}


def split(frame: Any, n_folds: int) -> Any:
    """Return the frame with a column of fold numbers, persisted."""

    def numbered(part: Any) -> Any:
        return part.assign(fold=np.arange(len(part)) % n_folds)

    found = frame.map_partitions(numbered).persist()
    wait(found)
    return found


def by_cv(client: Client, frame: Any, n_folds: int, trees: int) -> None:
    with dboost.prepare(frame.drop(columns="fold"), "y", client=client) as data:
        dboost.cv(data, folds=frame["fold"], max_iter=trees, **FITS)


def by_fits(client: Client, frame: Any, n_folds: int, trees: int) -> None:
    for fold in range(n_folds):
        held_out = frame["fold"] == fold
        rows, test = (frame[which].drop(columns="fold") for which in (~held_out, held_out))
        dboost.fit(rows, "y", client=client, eval_set=test, max_iter=trees, **FITS)


def folds(
    workload: Workload, options: argparse.Namespace, say: Callable[[str], None], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Return seconds and peak memory of both ways in every round, and of one fit. keep : called after every measurement."""
    n_folds, n_workers, n_rounds = options.folds, options.workers, options.rounds
    ways: dict[str, Callable[..., None]] = {"cv": by_cv, "fits": by_fits, "one fit": by_fits}
    found: dict[str, dict[str, list[float]]] = {way: {"seconds": [], "peak_mib": []} for way in ways}
    for i in range(n_rounds):
        for way in ways if i % 2 == 0 else reversed(ways):
            with cluster(n_workers) as client:
                frame = split(frame_of(client, workload, 4 * n_workers), n_folds)
                n = 1 if way == "one fit" else n_folds
                ways[way](client, frame, 2 if way == "cv" else 1, 2)  # imports and compilation
                began = time.perf_counter()
                ways[way](client, frame, n, workload.trees)
                seconds = time.perf_counter() - began
                peak = max(client.run(_peak_mib).values())
            found[way]["seconds"].append(seconds)
            found[way]["peak_mib"].append(peak)
            keep(found)
            say(f"round {i + 1}/{n_rounds} {way}: {seconds:.2f} s, {peak:.0f} MiB")
    return found


def settings_of(n_trials: int) -> list[tuple[float, int]]:
    """Return learning rate and number of leaves of each trial."""
    rng = np.random.default_rng(0)
    return [(float(0.3 * 10 ** -rng.random()), int(rng.integers(8, 64))) for _ in range(n_trials)]


def trials_of_dboost(client: Client, frame: Any, test: Any, trials: Sequence[tuple[float, int]], trees: int) -> None:
    with dboost.prepare(frame, "y", client=client) as data, ThreadPoolExecutor(2) as pool:

        def fit(trial: tuple[float, int]) -> Any:
            rate, leaves = trial
            return dboost.fit(data, eval_set=test, max_iter=trees, learning_rate=rate, max_leaf_nodes=leaves, **FITS)

        list(pool.map(fit, trials))


def trials_of_xgboost(
    client: Client, frame: Any, test: Any, trials: Sequence[tuple[float, int]], trees: int, *, keeps: bool = False
) -> None:
    import xgboost.dask as xdask

    def matrices() -> tuple[Any, Any]:
        data = xdask.DaskQuantileDMatrix(client, frame.drop(columns="y"), frame["y"])
        return data, xdask.DaskQuantileDMatrix(client, test.drop(columns="y"), test["y"], ref=data)

    kept = matrices() if keeps else None
    for rate, leaves in trials:
        data, held_out = matrices() if kept is None else kept
        options = {
            "objective": "binary:logistic", "tree_method": "hist", "nthread": 1, "eta": rate, "max_leaves": leaves,
            "grow_policy": "lossguide", "max_depth": 0,
        }  # fmt: skip
        xdask.train(client, options, data, num_boost_round=trees, evals=[(held_out, "test")], verbose_eval=False)


def trials_of_lightgbm(client: Client, frame: Any, test: Any, trials: Sequence[tuple[float, int]], trees: int) -> None:
    import lightgbm as lgb

    for rate, leaves in trials:
        model = lgb.DaskLGBMClassifier(client=client, n_estimators=trees, verbose=-1, learning_rate=rate, num_leaves=leaves)
        held_out = [(test.drop(columns="y"), test["y"])]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # two lines for each fit: of the threads, and that eval_set will have another name
            model.fit(frame.drop(columns="y"), frame["y"], eval_set=held_out)


TRIALS: dict[str, Callable[..., None]] = {
    "dboost": trials_of_dboost,
    "xgboost": trials_of_xgboost,
    "xgboost, matrix kept": lambda *arguments: trials_of_xgboost(*arguments, keeps=True),
    "lightgbm": trials_of_lightgbm,
}
#: The engines of ``--engines``.
SHORT = {"dboost": "dboost", "xgboost": "xgboost", "xgboost-kept": "xgboost, matrix kept", "lightgbm": "lightgbm"}


def trials(
    workload: Workload, options: argparse.Namespace, say: Callable[[str], None], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Return the seconds of a trial of every engine in every round. keep : called after every measurement."""
    n_trials, n_workers, n_rounds = options.trials, options.workers, options.rounds
    found: dict[str, list[float]] = {engine: [] for engine in options.engines}
    for i in range(n_rounds):
        for engine in options.engines if i % 2 == 0 else reversed(options.engines):
            with cluster(n_workers) as client:
                frame = frame_of(client, workload, 4 * n_workers)
                test: Any = dd.from_pandas(frame.partitions[0].compute(), npartitions=n_workers).persist()
                wait(test)
                TRIALS[engine](client, frame, test, settings_of(2), 2)  # imports and compilation
                began = time.perf_counter()
                TRIALS[engine](client, frame, test, settings_of(n_trials), workload.trees)
                seconds = (time.perf_counter() - began) / n_trials
            found[engine].append(seconds)
            keep(found)
            say(f"round {i + 1}/{n_rounds} {engine}: {seconds:.3f} s a trial")
    return found


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    options = _options(argv)
    console = Console(width=160)
    console.print(peers.describe(peers.DISTRIBUTIONS))
    for warning in peers.warnings(peers.DISTRIBUTIONS):
        console.print(warning)
    found: dict[str, Any] = {"options": vars(options), "peers": peers.describe(peers.DISTRIBUTIONS)}

    def keep(part: str, measured: dict[str, Any]) -> None:
        found[part] = measured
        if options.output:
            Path(options.output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    if options.folds:
        workload = Workload("folds", options.rows, options.features, "binary", options.iterations)
        of_folds = folds(workload, options, console.print, partial(keep, "folds"))
        ours, theirs, one = (of_folds[way] for way in ("cv", "fits", "one fit"))
        times, memory = ratios(ours["seconds"], theirs["seconds"]), ratios(ours["peak_mib"], one["peak_mib"])
        console.print(f"{options.folds} folds ÷ {options.folds} fits: seconds × {_spread(times)}")
        console.print(f"{options.folds} folds ÷ one fit: peak memory × {_spread(memory)}")
        keep("folds_ratios", {"seconds": times, "peak_mib": memory})
    if options.trials:
        workload = Workload("trials", options.trial_rows, options.features, "binary", options.trial_iterations)
        of_trials = trials(workload, options, console.print, partial(keep, "trials"))
        of_engines = {engine: ratios(each, of_trials["dboost"]) for engine, each in of_trials.items()}
        for engine, each in of_trials.items():
            how = "" if engine == "dboost" else f", × dboost {_spread(of_engines[engine])}"
            console.print(f"{engine}: {statistics.median(each):.3f} s a trial{how}")
        keep("trials_ratios", of_engines)
    return found


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    def engines(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in SHORT]:
            raise argparse.ArgumentTypeError(f"no engine {', '.join(unknown)}; there are {', '.join(SHORT)}")
        return ["dboost", *(SHORT[name] for name in chosen if name != "dboost")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description="Measure cross-validation and tuning.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the folds [%(default)s]")
    parser.add_argument("--features", type=int, default=28, help="[%(default)s]")
    parser.add_argument("--iterations", type=int, default=60, help="of the folds [%(default)s]")
    parser.add_argument("--folds", type=int, default=5, help="number of folds; 0: no folds [%(default)s]")
    parser.add_argument("--trials", type=int, default=50, help="number of trials; 0: no trials [%(default)s]")
    parser.add_argument("--trial-rows", type=int, default=200_000, help="[%(default)s]")
    parser.add_argument("--trial-iterations", type=int, default=20, help="[%(default)s]")
    parser.add_argument("--engines", type=engines, default=list(TRIALS), help=f"of the trials: {','.join(SHORT)} [all]")
    parser.add_argument("--workers", type=int, default=2, help="processes with one thread each [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--quick", action="store_true", help="tiny tables, to see that everything runs")
    parser.add_argument("--output", metavar="FILE.json", help="also write every measurement")
    options = parser.parse_args(argv)
    if options.folds == 1 or min(options.folds, options.trials) < 0 or options.rounds < 1:
        parser.error("--folds is 0 or at least 2, --trials at least 0, --rounds at least 1")
    if options.quick:
        options.rows, options.features, options.iterations, options.rounds = 20_000, 12, 3, 1
        options.trials, options.trial_rows, options.trial_iterations = min(options.trials, 3), 10_000, 3
    return options


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratios of each round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


if __name__ == "__main__":
    main()
