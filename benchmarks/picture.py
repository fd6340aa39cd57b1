"""The race as a picture: the time of every library relative to the limit of the processor.

The minimum time of a tree is computed by `benchmarks.profile`, for trees that dboost grows on the same table: additions to
buckets and bytes that must be moved, at the limits of one core, divided by the threads. It is drawn as the line at 1; each
library is drawn at its seconds per tree as a multiple of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.limits import measure
from benchmarks.profile import profile
from benchmarks.workloads import Workload

#: The minimum work for categories and their search has not been computed.
_UNKNOWN = {"categories"}


def least_of(workload: Workload, threads: int) -> float | None:
    """Return the minimum seconds of a tree of this workload, or None if unknown."""
    if workload.shape in _UNKNOWN:
        return None
    found = profile(workload, trees=9, every=4)
    limits = measure(workload.rows)
    parts = {*found.cells, *found.bytes}
    return sum(found.least(part, limits) for part in parts) / found.n_looked / threads


def plot(report: dict[str, dict], workloads: Sequence[Workload], least: dict[str, float | None], path: Path) -> None:
    """Plot a line of marks for each workload.

    report : workload → engine → {"training": seconds of each round, …}; least : workload → seconds of a tree.
    """
    from matplotlib.ticker import FuncFormatter, NullLocator

    from dboost.inspection.plots import canvas

    drawn = [workload for workload in workloads if least.get(workload.name)]
    engines = list(dict.fromkeys(engine for workload in drawn for engine in report[workload.name]))
    with canvas.style():
        ax = canvas.new_axes(height=1.3 + 0.36 * len(drawn), width=7.0)[0, 0]
        for k, engine in enumerate(engines):
            times = [
                np.median(report[workload.name][engine]["training"]) / workload.n_trees / (least[workload.name] or np.nan)
                if engine in report[workload.name]
                else np.nan
                for workload in drawn
            ]
            ax.plot(times, range(len(drawn)), "o", color=canvas.CYCLE[k % len(canvas.CYCLE)], markersize=6, label=engine)
        ax.axvline(1.0, color=canvas.INK, linewidth=1.6, label="limits")
        ax.set_yticks(range(len(drawn)), [workload.name for workload in drawn])
        ax.set(xscale="log", xlabel="seconds of a tree ÷ the least that its additions and bytes take")
        ax.set_xticks([1, 2, 3, 5, 10, 20, 30])
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.invert_yaxis()
        ax.set_title("Training beside the machine's limits")
        ax.grid(axis="x")
        ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0))
        path.parent.mkdir(parents=True, exist_ok=True)
        ax.figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
