"""Cross-validation and tuning on a data set that stays on a cluster, beside separate fits and beside the peers' loops.

    python -m benchmarks.tuning [--rows 1000000] [--features 28] [--trees 60] [--folds 5] [--trials 50] [--trial-trees 20]
                                [--workers 2] [--rounds 3] [--quick] [--output FILE.json]

**Folds.** `dboost.prepare` and `dboost.cv` on a persisted frame, beside one fit for each fold on the frame's rows of the other
folds, with the held-out rows as evaluation set. Both have a new cluster in every round; the peak memory is that of a worker.

**Trials.** The same sequence of settings (learning rate and number of leaves) is fitted and evaluated on a second table. dboost
prepares the table once and has two fits at the same time. The loop over xgboost.dask makes its matrices once
("xgboost, matrix kept") or for every trial; lightgbm.dask has no such object. Seconds are those of a trial.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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


def folds(workload: Workload, n_folds: int, n_workers: int, n_rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return seconds and peak memory of both ways in every round, and of one fit."""
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
        model = lgb.DaskLGBMClassifier(
            client=client, n_estimators=trees, n_jobs=1, verbose=-1, learning_rate=rate, num_leaves=leaves
        )
        held_out = [(test.drop(columns="y"), test["y"])]
        model.fit(frame.drop(columns="y"), frame["y"], eval_set=held_out)


TRIALS: dict[str, Callable[..., None]] = {
    "dboost": trials_of_dboost,
    "xgboost": trials_of_xgboost,
    "xgboost, matrix kept": lambda *arguments: trials_of_xgboost(*arguments, keeps=True),
    "lightgbm": trials_of_lightgbm,
}


def trials(workload: Workload, n_trials: int, n_workers: int, n_rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the seconds of a trial of every engine in every round."""
    found: dict[str, list[float]] = {engine: [] for engine in TRIALS}
    for i in range(n_rounds):
        for engine in TRIALS if i % 2 == 0 else reversed(TRIALS):
            with cluster(n_workers) as client:
                frame = frame_of(client, workload, 4 * n_workers)
                test: Any = dd.from_pandas(frame.partitions[0].compute(), npartitions=n_workers).persist()
                wait(test)
                TRIALS[engine](client, frame, test, settings_of(2), 2)  # imports and compilation
                began = time.perf_counter()
                TRIALS[engine](client, frame, test, settings_of(n_trials), workload.trees)
                seconds = (time.perf_counter() - began) / n_trials
            found[engine].append(seconds)
            say(f"round {i + 1}/{n_rounds} {engine}: {seconds:.3f} s a trial")
    return found


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description="Measure cross-validation and tuning.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=28)
    parser.add_argument("--trees", type=int, default=60)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=50, help="0: none")
    parser.add_argument("--trial-rows", type=int, default=200_000)
    parser.add_argument("--trial-trees", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tiny table, to see that everything runs")
    parser.add_argument("--output", metavar="FILE.json")
    options = parser.parse_args(argv)
    if options.quick:
        options.rows, options.features, options.trees, options.rounds = 20_000, 12, 3, 1
        options.trials, options.trial_rows, options.trial_trees = min(options.trials, 3), 10_000, 3
    console = Console()
    console.print(peers.describe(peers.DISTRIBUTIONS))
    for warning in peers.warnings(peers.DISTRIBUTIONS):
        console.print(warning)
    of_folds = Workload("folds", options.rows, options.features, "binary", options.trees)
    found: dict[str, Any] = {"folds": folds(of_folds, options.folds, options.workers, options.rounds, console.print)}
    seconds, peak = ({way: of[what] for way, of in found["folds"].items()} for what in ("seconds", "peak_mib"))
    ratios = [one / other for one, other in zip(seconds["cv"], seconds["fits"], strict=True)]
    memory = max(peak["cv"]) / max(peak["one fit"])
    console.print(f"{options.folds} folds ÷ {options.folds} fits: {_spread(ratios)}; peak memory ÷ one fit: {memory:.2f}")
    if options.trials:
        of_trials = Workload("trials", options.trial_rows, options.features, "binary", options.trial_trees)
        found["trials"] = trials(of_trials, options.trials, options.workers, options.rounds, console.print)
        for engine, each in found["trials"].items():
            ratios = [theirs / ours for theirs, ours in zip(each, found["trials"]["dboost"], strict=True)]
            console.print(f"{engine}: {statistics.median(each):.3f} s a trial, × dboost {_spread(ratios)}")
    if options.output:
        Path(options.output).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


if __name__ == "__main__":
    main()
