"""Loss on the evaluation set over the seconds of training, on real tables, at equal settings.

    python -m benchmarks.curves --plot docs/pictures/curves.svg

Every library fits the same splits with the same settings, alternately; callbacks record when each iteration ended (binning is
included in the seconds, loading the table is not), and the loss after every few iterations is computed afterwards from the
library's own staged predictions, so that evaluation costs the fits nothing. A curve's seconds are medians over the seeds, its
losses means.

The same fits give the table of `benchmarks.accuracy`: scores on test rows over the seeds, and differences in pairs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import accuracy
from benchmarks.engines import ENGINES, USUAL, Settings
from benchmarks.race import scores
from tests.helpers.real_data import FOLDER, RealTable, load

#: Iterations on each table: a second or more for every library. (Seven trees make one of covtype's.)
TABLES = {"hflights": 100, "adult": 150, "covtype": 25}
POINTS = 20


@dataclass
class Curve:
    """A library's fits: seconds and losses at the same iterations, [n_seeds, n_points]; final scores by name."""

    iterations: list[int]
    seconds: list[list[float]] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=dict)

    @property
    def line(self) -> tuple[np.ndarray, np.ndarray]:
        """Return median seconds and mean losses."""
        return np.median(self.seconds, axis=0), np.mean(self.losses, axis=0)


def measure(table: RealTable, settings: Settings, seeds: Sequence[int], engines: Sequence[str]) -> dict[str, Curve]:
    """Fit every split with every library; the order is reversed from seed to seed."""
    stops = sorted({round(n) for n in np.linspace(1, settings.trees, min(POINTS, settings.trees))})
    found = {engine: Curve(stops) for engine in engines}
    few = table.take(np.arange(2000))
    for engine in engines:
        ENGINES[engine](few.X, few.y.to_numpy(), replace(settings, trees=2))
    for number, seed in enumerate(seeds):
        train, test = table.split(seed)
        y, y_test = train.y.to_numpy(), test.y.to_numpy()
        for engine in engines if number % 2 == 0 else reversed(engines):
            fit = ENGINES[engine](train.X, y, settings, watch=True)
            curve = found[engine]
            stages = [np.asarray(raw, np.float64) for raw in fit.staged(test.X, stops)]
            by_stage = [scores(y_test, raw, settings.loss, settings.n_classes) for raw in stages]
            curve.seconds.append([fit.marks[n - 1] for n in stops])
            curve.losses.append([by["log loss" if settings.n_classes else "RMSE"] for by in by_stage])
            for name, score in by_stage[-1].items():
                curve.scores.setdefault(name, []).append(score)
            print(f"{table.name} seed {seed} {engine}: {fit.marks[-1]:.2f} s", file=sys.stderr, flush=True)
    return found


def draw(name: str, found: dict[str, Curve]) -> Table:
    """Print the seconds until a loss is reached: that of the first library at a quarter, half and all of its iterations."""
    first, drawn = next(iter(found.values())), Table(title=f"{name}: seconds to the loss")
    reached = first.line[1]
    wanted = [float(np.minimum.accumulate(reached)[round(share * (len(reached) - 1))]) for share in (0.25, 0.5, 1.0)]
    drawn.add_column("")
    for loss in wanted:
        drawn.add_column(f"≤ {loss:.5f}", justify="right")
    drawn.add_column("all iterations", justify="right")
    for engine, curve in found.items():
        seconds, losses = curve.line
        times = [seconds_to(seconds, losses, loss) for loss in wanted]
        drawn.add_row(engine, *("never" if t is None else f"{t:.2f}" for t in times), f"{seconds[-1]:.2f}")
    return drawn


def seconds_to(seconds: np.ndarray, losses: np.ndarray, wanted: float) -> float | None:
    """Return when a loss was first reached, linearly between the points; None if never."""
    below = np.flatnonzero(losses <= wanted)
    if not len(below):
        return None
    k = int(below[0])
    if k == 0 or losses[k] == losses[k - 1]:
        return float(seconds[k])
    share = (losses[k - 1] - wanted) / (losses[k - 1] - losses[k])
    return float(seconds[k - 1] + share * (seconds[k] - seconds[k - 1]))


def plot(found: dict[str, dict[str, Curve]], path: Path) -> None:
    """Plot a panel for each table."""
    from dboost.inspection.plots import canvas

    with canvas.style():
        grid = canvas.new_axes(1, len(found), width=3.3 * len(found), height=3.0).ravel()
        for i, (ax, (name, curves)) in enumerate(zip(grid, found.items(), strict=True)):
            for k, (engine, curve) in enumerate(curves.items()):
                style = canvas.colour(k) | {"linestyle": canvas.DASHES[k % len(canvas.DASHES)]}
                ax.plot(*curve.line, label=engine, **style)
            last = [curve.line[1][-1] for curve in curves.values()]
            start = max(float(curve.line[1][len(curve.iterations) // 6]) for curve in curves.values())
            ax.set(xlabel="seconds of training", ylim=(min(last) - 0.05 * (start - min(last)), start))
            ax.set_xlim(left=0)
            if i == 0:
                ax.set_ylabel("held-out loss")
            if i == len(found) - 1:
                canvas.legend_beside(ax, "")
            ax.set_title(name)
            ax.grid()
        path.parent.mkdir(parents=True, exist_ok=True)
        grid[0].figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description="Held-out loss over seconds.")
    parser.add_argument("--tables", nargs="+", choices=accuracy.TABLES, default=list(TABLES))
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(USUAL))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trees", type=int, help="iterations; default: " + ", ".join(f"{k} {v}" for k, v in TABLES.items()))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, help="only so many rows of each table, for a quick look")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw the curves")
    options = parser.parse_args(argv)
    if not FOLDER.exists():
        parser.exit(2, "the real tables are not beside the checkout (../shared/data)\n")
    console, found = Console(width=140), {}
    for name in options.tables:
        table = load(name)
        table = replace(table, X=table.X.drop(columns=accuracy.TOO_MANY_LEVELS.get(name, [])))
        if options.rows:
            table = table.take(np.random.default_rng(0).permutation(len(table.X))[: options.rows])
        kind = ("log_loss", table.y.nunique()) if table.is_classification else ("squared_error", 0)
        settings = Settings(*kind, trees=options.trees or TABLES.get(name, 100), threads=options.threads)
        found[name] = measure(table, settings, range(options.seeds), options.engines)
        console.print(f"{name}: {len(table.X):,} × {table.X.shape[1]}, {options.seeds} splits, {settings.trees} iterations")
        console.print(draw(name, found[name]))
        by_score = {engine: {k: np.array(v) for k, v in curve.scores.items()} for engine, curve in found[name].items()}
        console.print(accuracy.draw(name, by_score))
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
