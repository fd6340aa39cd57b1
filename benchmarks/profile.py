"""The time of the parts of a tree, beside the limits of the machine.

    python -m benchmarks.profile --workloads W1a,W4 --plot docs/pictures/profile.svg

A tree of an in-memory fit is one compiled call, whose parts cannot be timed without slowing it. But the engine for several
shards grows the same tree (tests compare the two) with the same kernels, called one by one: quantise, split, add up, search,
sum leaves. So a real fit runs in the in-memory engine, on one thread; some of its trees are grown a second time from the same
gradients, by the single kernels, each timed. The sum of the parts is compared with the time of the one call
(`pieces ÷ call`): if that is not about 1, the parts are only shares of the call's time.

Beside each part is its minimum work — values to be added, or bytes to be read and written, by the tree that was grown — and the
time that this takes at the limits of one core (`benchmarks.limits`). "Python" is the time between the calls: the seconds of the
fit's loop minus those of its engine; "questions" are the other statistics that the loop computes (medians of leaves). Seconds
are processor time, so other processes hardly matter; those of loading and binning are wall-clock time. The cost of calling a
kernel from Python is subtracted from the parts. (On small tables the one call also keeps histograms packed, which the single
kernels do not: there it is faster than its parts.)
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numba import njit
from rich.console import Console
from rich.table import Table

import dboost
from benchmarks.engines import settings_of
from benchmarks.limits import Limits, measure
from benchmarks.workloads import MAIN, WORKLOADS, Workload, load
from dboost.losses.gradient_pass import new_pass_scratch
from dboost.losses.terms import LossTerms
from dboost.session.training_rows import TrainingRows
from dboost.trees import rounds_in_memory, split_finder
from dboost.trees.fit_trees import GrownTree
from dboost.trees.tree_task import TreeTask
from dboost.trees.whole_trees import WholeTrees
from tests.helpers.sharded_engine import ShardedEngine

#: Parts of a tree, in their order.
PARTS = ("scores, gradients", "quantise", "histograms", "search", "split rows", "leaves")
#: Time outside the tree.
OTHERS = ("questions", "Python")
#: Rows are copied in a shard as codes and as tiles.
_COPIES = 2


@dataclass
class Profile:
    """Seconds and work of a fit.

    Attributes
    ----------
    seconds : dict
        Of the parts, added up over the profiled trees.
    cells, bytes : dict
        The minimum work of the parts: additions to buckets, bytes.
    n_looked : int
        Number of profiled trees, which were grown a second time by the single kernels.
    call : float
        Seconds of the one compiled call, over those trees.
    asked, loop : float
        Seconds of other statistics of the rows (medians of leaves, if a loss needs them), and of the loop between calls, over
        `n_trees` trees.
    binning : (float, float)
        Seconds of the fit's binning, and its bytes.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    cells: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    bytes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    n_looked: int = 0
    n_trees: int = 0
    call: float = 0.0
    asked: float = 0.0
    loop: float = 0.0
    binning: tuple[float, float] = (0.0, 0.0)

    def least(self, part: str, limits: Limits) -> float:
        """Return the minimum seconds of a part, over all profiled trees."""
        return self.cells[part] / limits.additions + self.bytes[part] / limits.bytes


class _Clock:
    """Times the kernels of the engines, and records their work."""

    def __init__(self, every: int) -> None:
        self.profile, self._every = Profile(), every
        self._pieces: ShardedEngine | None = None
        self._terms = LossTerms()  # of the last pass over rows
        self._elsewhere = 0.0
        self._n_grown = 0
        self._asked = 0.0
        self._marks: list[tuple[float, float, float]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Return a context in which fits are profiled."""
        grow, advance, statistic = WholeTrees.grow_tree, TrainingRows.advance, TrainingRows.statistic

        def clocked_grow(engine: WholeTrees, task: TreeTask) -> GrownTree:
            start = time.process_time()
            grown = grow(engine, task)
            done = time.process_time()
            self._n_grown += 1
            if self._n_grown % self._every == 0:
                self.profile.call += done - start
                self._look(engine, task)
            self._elsewhere += time.process_time() - start
            return grown

        def clocked_advance(rows: TrainingRows, number: int, values: np.ndarray, terms: LossTerms) -> Any:
            start = time.process_time()
            self._terms = terms
            stats = advance(rows, number, values, terms)
            self._elsewhere += time.process_time() - start
            return stats

        def clocked_statistic(rows: TrainingRows, *arguments: Any) -> Any:
            start = time.process_time()
            answers = statistic(rows, *arguments)
            self._asked += time.process_time() - start
            return answers

        with (
            patch.object(WholeTrees, "grow_tree", clocked_grow),
            patch.multiple(TrainingRows, advance=clocked_advance, statistic=clocked_statistic),
        ):
            yield

    def mark(self, _: object) -> None:
        """A callback: an iteration has ended."""
        self._marks.append((time.process_time(), self._elsewhere, self._asked))

    def finish(self, booster: dboost.Booster, n_cells: int) -> Profile:
        seconds, engine, asked = np.subtract(self._marks[-1], self._marks[0])
        n_outputs = booster.ensemble.n_outputs
        self.profile.n_trees = (len(self._marks) - 1) * n_outputs
        self.profile.asked, self.profile.loop = asked, seconds - engine - asked
        self.profile.binning = (booster.timings["load"] + booster.timings["bin"], n_cells * (4.0 + _COPIES))
        return self.profile

    def _look(self, engine: WholeTrees, task: TreeTask) -> None:
        """Grow the tree again by the single kernels, and pass over the rows once more with zero leaf values."""
        shard, profile = engine.shard, self.profile
        n, of_row = shard.n_rows, 4 if shard.hessian is None else 8
        if self._pieces is None:
            self._pieces = ShardedEngine([shard], width=1)
            next(self._pieces.grow([task]))  # kernels that are not in the cache are compiled before they are timed
        names = {
            (rounds_in_memory, "_quantise"): ("quantise", lambda *_: (0, n * (of_row + 8))),
            # A record is read and written, a code is read.
            (rounds_in_memory, "_split"): (
                "split rows", lambda narrow, wide, row_of, records, ranges, splits, *_: (0, 17 * _length(ranges, splits[:, 0])),
            ),
            (rounds_in_memory, "_add_up"): (
                "histograms",
                lambda rows, records, ranges, nodes, *_: (_length(ranges, nodes) * len(shard.tree_layout.n_bins), 0),
            ),
            (rounds_in_memory, "_label"): (
                "leaves",
                lambda records, ranges, leaves, *_: (0, 9 * _length(ranges, leaves[:, 0])),
            ),
            (rounds_in_memory, "_sum_leaves"): ("leaves", lambda *_: (0, n * (of_row + 1))),
            # The small children's histograms are read and kept, their siblings' (all but the root's) read and written.
            (split_finder, "_search_pairs"): (
                "search", lambda summed, stored, pairs, *_: (0, 16 * summed[0].size * int((pairs.slots >= 0).sum())),
            ),
        }  # fmt: skip
        with ExitStack() as patches:
            for (module, name), how in names.items():
                patches.enter_context(patch.object(module, name, self._clocked(getattr(module, name), *how)))
            next(self._pieces.grow([task]))
        nothing = np.zeros((shard.n_outputs, int(shard.leaf.max()) + 1))
        raw = shard.raw.copy()
        start = time.process_time()
        self._terms.advance(shard.gradient_pass(nothing, self._terms, new_pass_scratch(), 0, shard.n_rows))
        # One pass serves the trees of all outputs.
        profile.seconds["scores, gradients"] += (time.process_time() - start) / shard.n_outputs
        shard.raw[...] = raw
        # A score is read and written, gradient (and Hessian) written, target and leaf read.
        profile.bytes["scores, gradients"] += n * (16 + of_row + 1 + 8 / shard.n_outputs)
        profile.n_looked += 1

    def _clocked(self, function: Callable, part: str, work: Callable) -> Callable:
        def call(*arguments: Any) -> Any:
            cells, size = work(*arguments)
            self.profile.cells[part] += cells
            self.profile.bytes[part] += size
            start = time.process_time()
            _nothing(*arguments)
            called = time.process_time()
            found = function(*arguments)
            self.profile.seconds[part] += max(time.process_time() - called - (called - start), 0.0)
            return found

        return call


def _length(ranges: np.ndarray, nodes: np.ndarray) -> int:
    """Return the number of records of some nodes; see `rounds_in_memory.GrowingTree.ranges`."""
    return int((ranges[nodes, 2] - ranges[nodes, 1]).sum())


@njit
def _nothing(*arguments):  # type: ignore[no-untyped-def]
    """Return the cost of calling a kernel from Python and of reading the clock."""


def profile(workload: Workload, trees: int, every: int) -> Profile:
    """Fit a workload on one thread and profile every n-th tree."""
    table = load(workload)
    settings = settings_of(workload, 1)
    how: dict[str, Any] = {
        "loss": settings.loss, "learning_rate": settings.learning_rate * settings.by_classes, "growth": settings.growth,
        "max_leaf_nodes": settings.max_leaves, "max_depth": settings.max_depth, "min_samples_leaf": 1, "n_threads": 1,
        "progress": False,
    }  # fmt: skip
    dboost.fit(table.X[:2000], table.y[:2000], max_iter=2, **how)
    with _Clock(1).running():
        dboost.fit(table.X[:2000], table.y[:2000], max_iter=2, **how)  # compiles the pieces
    clock = _Clock(every)
    with clock.running():
        booster = dboost.fit(table.X, table.y, max_iter=trees, callbacks=[clock.mark], **how)
    return clock.finish(booster, table.X.size)


@dataclass(frozen=True)
class Row:
    """One line of the table, in seconds per tree (binning: per fit)."""

    part: str
    seconds: float
    share: float | None = None
    work: str = ""
    limit: float | None = None


def rows_of(found: Profile, limits: Limits) -> list[Row]:
    """Return the profile as the rows of the table."""
    per_tree = 1 / max(found.n_looked, 1)
    asked, python = (seconds / max(found.n_trees, 1) for seconds in (found.asked, found.loop))
    whole = sum(found.seconds.values()) * per_tree + asked + python
    lines = []
    for part in PARTS:
        seconds, limit = found.seconds[part] * per_tree, found.least(part, limits) * per_tree
        cells, size = found.cells[part] * per_tree, found.bytes[part] * per_tree
        work = f"{cells / 1e6:.3g}M additions" if cells else f"{size / 1e6:.3g} MB"
        lines.append(Row(part, seconds, seconds / whole, work, limit))
    lines += [Row("questions", asked, asked / whole), Row("Python", python, python / whole)]
    least = sum(row.limit for row in lines if row.limit is not None)
    lines.append(Row("a tree", whole, 1.0, "", least))
    pieces = sum(found.seconds[part] for part in PARTS if part != "scores, gradients") * per_tree
    call = found.call * per_tree
    lines.append(Row("the one call", call, None, f"pieces ÷ call: {pieces / call:.2f}"))
    seconds, size = found.binning
    lines.append(Row("loading and binning", seconds, None, f"{size / 1e6:.3g} MB", size / limits.bytes))
    return lines


def draw(workload: Workload, lines: Sequence[Row], limits: Limits) -> Table:
    title = f"{workload}; one thread; limits: {limits.additions / 1e9:.2f} G additions/s, {limits.bytes / 1e9:.1f} GB/s"
    drawn = Table(title=title)
    for column in ("part", "ms", "share", "must do", "at least ms", "× limit"):
        drawn.add_column(column, justify="left" if column in ("part", "must do") else "right", no_wrap=True)
    for row in lines:
        drawn.add_row(
            row.part, f"{1000 * row.seconds:.3f}", "" if row.share is None else f"{row.share:.0%}", row.work,
            *(("", "") if row.limit is None else (f"{1000 * row.limit:.3f}", f"{row.seconds / row.limit:.1f}")),
        )  # fmt: skip
    return drawn


def plot(found: dict[str, list[Row]], path: Path) -> None:
    """Plot a bar of the parts' shares for each workload, and a mark at the sum of the minimum times."""
    from dboost.inspection.plots import canvas

    with canvas.style():
        ax = canvas.new_axes(height=1.3 + 0.42 * len(found), width=7.0)[0, 0]
        for y, lines in enumerate(found.values()):
            whole = next(row for row in lines if row.part == "a tree")
            left = 0.0
            for k, part in enumerate((*PARTS, *OTHERS)):
                share = next(row for row in lines if row.part == part).share or 0.0
                colour = {"Python": canvas.FAINT, "questions": canvas.GREY}.get(part) or canvas.CYCLE[k % len(canvas.CYCLE)]
                ax.barh(y, 100 * share, left=left, height=0.6, color=colour, label=part if y == 0 else None)
                left += 100 * share
            least = 100 * (whole.limit or 0.0) / whole.seconds
            ax.plot([least, least], [y - 0.4, y + 0.4], color=canvas.INK, linewidth=1.6, label="limits" if y == 0 else None)
            canvas.note(ax, f"{1000 * whole.seconds:.3g} ms", (100, y), (4, 0), color=canvas.GREY)
        ax.set_yticks(range(len(found)), list(found))
        ax.set(xlabel="percent of a tree's time, one thread", xlim=(0, 100))
        ax.invert_yaxis()
        ax.set_title("Where the time of a tree goes")
        canvas.bars(ax)
        ax.legend(loc="upper left", bbox_to_anchor=(1.1, 1.0))
        path.parent.mkdir(parents=True, exist_ok=True)
        ax.figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description="Where the time of a tree goes.")
    names = [workload.name for workload in MAIN]
    parser.add_argument("--workloads", default=",".join(names), help=f"of {', '.join(WORKLOADS)}; without categories")
    parser.add_argument("--trees", type=int, default=12)
    parser.add_argument("--every", type=int, default=4, help="every so manieth tree is grown again, piece by piece")
    parser.add_argument("--quick", action="store_true", help="tiny tables, to see that everything runs")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw the shares")
    options = parser.parse_args(argv)
    console, found = Console(width=150), {}
    for name in options.workloads.split(","):
        if name not in WORKLOADS:
            parser.error(f"no workload {name}; there are {', '.join(WORKLOADS)}")
        workload = WORKLOADS[name].quick() if options.quick else WORKLOADS[name]
        print(f"{workload} …", file=sys.stderr, flush=True)
        limits = measure(workload.rows)
        found[name] = rows_of(profile(workload, options.trees, options.every), limits)
        console.print(draw(workload, found[name], limits))
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
