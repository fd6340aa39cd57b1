"""How the time of a tree grows with the size of the fit, beside linear laws.

    python -m benchmarks.scaling --plot docs/pictures/scaling.svg

One factor is varied at a time around a table of 200,000 rows and 28 columns, trees of 31 leaves, 255 bins, one output: rows,
columns, leaves, bins, classes, threads, and workers of a `LocalCluster`. Reported are the seconds of a tree (the median over
the trees of a fit except the first, so that neither compilation nor first touches of memory count) and the same per cell, a
cell being a value of the table.

The laws drawn beside them: a tree costs in proportion to rows, to columns and to outputs; threads and workers divide it; leaves
add to it as the levels of a balanced tree do, of whose rows at most half are added up, so 1 + log₂(leaves) ÷ 2 passes; bins
only cost the search, which is negligible beside many rows. Every law goes through one measured point: that of the base, or, for
rows, that of the most rows.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import dboost


@dataclass(frozen=True)
class Size:
    """The size of a fit. `workers` 0: in this process."""

    rows: int = 200_000
    columns: int = 28
    leaves: int = 31
    bins: int = 255
    classes: int = 2
    threads: int = 1
    workers: int = 0

    @property
    def outputs(self) -> int:
        return 1 if self.classes == 2 else self.classes

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    def cost(self) -> float:
        """Return the cost of a tree of each output by the laws, up to a factor."""
        passes = 1 + np.log2(self.leaves) / 2
        return self.cells * passes * self.outputs / (self.threads * max(self.workers, 1))

    def quick(self) -> Size:
        """Return a small version for tests."""
        return replace(self, rows=max(self.rows // 200, 500), columns=min(self.columns, 40), classes=min(self.classes, 5))


#: The factors, and their values.
SWEEPS: dict[str, tuple[Size, ...]] = {
    "rows": tuple(Size(rows=n) for n in (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)),
    "columns": tuple(Size(rows=50_000, columns=p) for p in (10, 28, 100, 300, 1000, 2000)),
    "leaves": tuple(Size(leaves=n) for n in (8, 16, 31, 64, 128, 255)),
    "bins": tuple(Size(bins=b) for b in (16, 32, 64, 128, 255)),
    "classes": tuple(Size(rows=100_000, classes=k) for k in (2, 3, 5, 10, 20)),
    "threads": tuple(Size(rows=1_000_000, threads=p) for p in (1, 2)),
    "workers": tuple(Size(workers=w) for w in (1, 2, 4)),
}


@dataclass(frozen=True)
class Measured:
    """Seconds of an iteration."""

    size: Size
    seconds: float

    @property
    def per_cell(self) -> float:
        """Nanoseconds of an output's tree per cell."""
        return 1e9 * self.seconds / (self.size.cells * self.size.outputs)


def make(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Generate features (float32, at least 255 distinct values) and a target with a number of classes."""
    rng = np.random.default_rng(0)
    # Random integers take a quarter of the time of normal numbers; a table of ten million rows has 280 million.
    X = rng.integers(0, 60_000, (size.rows, size.columns), np.uint16).astype(np.float32)
    unit = X[:, :5] / 30_000 - 1
    score = unit[:, 0] * unit[:, 1] * 3 + np.sin(4 * unit[:, 2]) + np.abs(unit[:, 3]) + rng.standard_normal(size.rows)
    borders = np.quantile(score[:100_000], np.arange(1, size.classes) / size.classes)
    return X, np.digitize(score, borders)


def measure(size: Size, trees: int) -> Measured:
    """Return the median time of an iteration."""
    X, y = make(size)
    how: dict[str, Any] = {
        "loss": "log_loss", "max_leaf_nodes": size.leaves, "max_bins": size.bins, "min_samples_leaf": 1, "max_iter": trees,
        "progress": False,
    }  # fmt: skip
    if size.workers:
        return Measured(size, _on_cluster(X, y, size, how))
    few = slice(0, 2000)
    dboost.fit(X[few], y[few], n_threads=size.threads, **how | {"max_iter": 2})
    return Measured(size, _median(lambda mark: dboost.fit(X, y, n_threads=size.threads, callbacks=[mark], **how)))


def _median(fit: Callable[[Callable], Any]) -> float:
    marks: list[float] = []
    gc.collect()
    fit(lambda event: marks.append(time.perf_counter()))
    return float(np.median(np.diff(marks)))


def _on_cluster(X: np.ndarray, y: np.ndarray, size: Size, how: dict[str, Any]) -> float:
    import dask.array as da

    rows = -(-len(X) // (2 * size.workers))
    with _cluster(size.workers) as client:
        data, target = (client.persist(da.from_array(of, (rows, *of.shape[1:]))) for of in (X, y))
        dboost.fit(data, target, client=client, **how | {"max_iter": 2})
        return _median(lambda mark: dboost.fit(data, target, client=client, callbacks=[mark], **how))


@contextmanager
def _cluster(n_workers: int) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    with (
        # Otherwise one worker would have all rows.
        dask.config.set({"dboost.single-worker-values": 0, "dboost.session-per-host": False}),
        LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=None, memory_limit="1.5GiB") as cluster,
        Client(cluster) as client,
    ):
        yield client


def trees_for(size: Size) -> int:
    """Return the number of trees that fit into about three seconds."""
    expected = 8e-9 * size.cost() / 3 + 0.0005 * size.outputs
    return int(np.clip(3 / expected, 6, 60))


def law(points: Sequence[Measured], name: str) -> np.ndarray:
    """Return the seconds by the laws, through one point."""
    through = points[-1] if name == "rows" else next((p for p in points if _is_base(p.size, name)), points[0])
    return np.array([through.seconds * p.size.cost() / through.size.cost() for p in points])


def _is_base(size: Size, name: str) -> bool:
    return getattr(size, name) == getattr(Size(), name)


def draw(name: str, points: Sequence[Measured]) -> Table:
    table = Table(title=f"by {name}")
    for column in (name, "rows × columns", "ms an iteration", "ns per cell and output", "by the law, ms", "÷ law"):
        table.add_column(column, justify="right", no_wrap=True)
    for point, expected in zip(points, law(points, name), strict=True):
        table.add_row(
            f"{getattr(point.size, name):,}", f"{point.size.rows:,} × {point.size.columns:,}", f"{1000 * point.seconds:.2f}",
            f"{point.per_cell:.3f}", f"{1000 * expected:.2f}", f"{point.seconds / expected:.2f}",
        )  # fmt: skip
    return table


def plot(found: dict[str, list[Measured]], path: Path) -> None:
    """Plot a panel for each factor: seconds of an iteration, and the law as dashes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    from dboost.inspection.plots import canvas

    with canvas.style():
        n_columns = min(len(found), 4)
        n_rows = -(-len(found) // n_columns)
        grid = canvas.new_axes(n_rows, n_columns, width=2.5 * n_columns, height=2.4 * n_rows).ravel()
        for ax in grid[len(found) :]:
            ax.remove()
        for i, (ax, (name, points)) in enumerate(zip(grid, found.items(), strict=False)):
            x = [getattr(point.size, name) for point in points]
            ax.plot(x, 1000 * law(points, name), color=canvas.GREY, linewidth=1.0, linestyle=(0, (4, 2)), label="law")
            ax.plot(x, [1000 * point.seconds for point in points], "o-", color=canvas.BLUE, markersize=4, label="measured")
            ax.set(xscale="log", yscale="log", xlabel=name)
            if max(x) <= 300 or name == "columns":
                ax.set_xticks(x, [str(value) if value < 1000 else f"{value / 1000:g}k" for value in x])
                ax.minorticks_off()
            ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ax.yaxis.set_minor_locator(NullLocator())
            if i % n_columns == 0:
                ax.set_ylabel("ms an iteration")
            ax.set_title(f"by {name}")
            ax.grid()
            if i == 0:
                ax.legend(loc="upper left")
        path.parent.mkdir(parents=True, exist_ok=True)
        grid[0].figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description="Time of a tree over sizes.")
    parser.add_argument("--sweeps", default=",".join(SWEEPS), help=f"of {', '.join(SWEEPS)}")
    parser.add_argument("--trees", type=int, help="a fit; default: what fits into seconds")
    parser.add_argument("--quick", action="store_true", help="tiny tables, to see that everything runs")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw the curves")
    options = parser.parse_args(argv)
    console, found = Console(width=130), {}
    for name in options.sweeps.split(","):
        if name not in SWEEPS:
            parser.error(f"nothing to vary called {name}; there are {', '.join(SWEEPS)}")
        sizes = [size.quick() for size in SWEEPS[name]] if options.quick else SWEEPS[name]
        found[name] = []
        for size in sizes:
            found[name].append(measure(size, options.trees or (4 if options.quick else trees_for(size))))
            print(f"{name} {getattr(size, name)}: {1000 * found[name][-1].seconds:.1f} ms", file=sys.stderr, flush=True)
        console.print(draw(name, found[name]))
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
