"""The race: rounds in which every library fits the same table, in alternating order.

The speed of one machine varies, so a library's time is hardly comparable between runs, but the ratio of two times of the same
round is. The order is reversed from round to round; ratios are computed within a round, and their median is reported with the
smallest and the largest. On a busy machine even ratios mislead: the threads of OpenMP wait for each other by spinning, and lose
whole time slices when another process uses a core.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.metrics import log_loss, roc_auc_score, root_mean_squared_error

from benchmarks import workloads
from benchmarks.engines import ENGINES, Settings, settings_of
from benchmarks.workloads import Table, Workload, load


@dataclass
class Result:
    """Results of one library: seconds per round, accuracy on the test rows, peak memory in MiB (None if not measured)."""

    binning: list[float] = field(default_factory=list)
    training: list[float] = field(default_factory=list)
    prediction: list[float] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    peak_memory: float | None = None


def race(workload: Workload, engines: Sequence[str], rounds: int, threads: int, say: Callable[[str], Any]) -> dict[str, Result]:
    """Time every engine in every round; accuracy is the same each time and is measured in the first."""
    table = load(workload)
    settings = settings_of(workload, threads)
    for engine in engines:
        _warm_up(engine, table, settings)
    results = {engine: Result() for engine in engines}
    for number in range(rounds):
        for engine in engines if number % 2 == 0 else reversed(engines):
            _run(ENGINES[engine], table, settings, results[engine])
            seconds = results[engine]
            say(f"{workload.name} round {number + 1}/{rounds} {engine}: {seconds.training[-1]:.2f} s")
    return results


def _warm_up(engine: str, table: Table, settings: Settings) -> None:
    """Compile kernels, start thread pools, import modules: costs that only the first fit of a process has.

    The table has more rows than fit packed histograms, because large tables have kernels of their own.
    """
    few = Settings(**{**asdict(settings), "trees": 2})
    ENGINES[engine](table.X[:70_000], table.y[:70_000], few).raw_score(table.X_test[:1000])


def _run(fit: Callable, table: Table, settings: Settings, result: Result) -> None:
    gc.collect()
    model = fit(table.X, table.y, settings)
    start = time.perf_counter()
    raw = np.asarray(model.raw_score(table.X_test), np.float64)
    result.prediction.append(time.perf_counter() - start)
    result.binning.append(model.binning)
    result.training.append(model.training)
    if not result.scores:
        result.scores = scores(table.y_test, raw, settings.loss, settings.n_classes)


def scores(y: np.ndarray, raw: np.ndarray, loss: str = "log_loss", n_classes: int = 2) -> dict[str, float]:
    """Return scores of raw predictions: AUC and log loss, or the (root) mean squared or the mean absolute error."""
    if n_classes > 2:
        return {"log loss": float(log_loss(y, softmax(raw, axis=1), labels=np.arange(n_classes)))}
    if not n_classes:
        error = {"MAE": float(np.abs(y - raw).mean())}
        return error if loss != "squared_error" else {"RMSE": float(root_mean_squared_error(y, raw))}
    probability = np.clip(1 / (1 + np.exp(-raw)), 1e-15, 1 - 1e-15)
    return {"AUC": float(roc_auc_score(y, raw)), "log loss": float(log_loss(y, probability))}


def losses_of_rows(y: np.ndarray, raw: np.ndarray, loss: str = "log_loss", n_classes: int = 2) -> np.ndarray:
    """Return the loss of each row: log loss, squared error, or absolute error for the other losses of real targets."""
    if n_classes > 2:
        probability = softmax(raw, axis=1)
        return -np.log(np.maximum(probability[np.arange(len(y)), y.astype(np.intp)], 1e-15))
    if not n_classes:
        return (raw - y) ** 2 if loss == "squared_error" else np.abs(raw - y)
    return np.logaddexp(0, np.where(y > 0, -raw, raw))


def spread(ratios: np.ndarray) -> str:
    """Return the median of the ratios of rounds, with the smallest and the largest."""
    return f"{np.median(ratios):.2f} ({ratios.min():.2f}–{ratios.max():.2f})"


def peak_memory(workload: Workload, engine: str, threads: int) -> float:
    """Return the peak resident memory in MiB of a new process that loads the float32 table and fits it once."""
    load(workload)  # makes it, if need be
    task = {"workload": asdict(workload), "folder": str(workloads.FOLDER), "engine": engine, "threads": threads}
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps(task)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"measuring the memory of {engine} on {workload.name} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])
