"""``python -m benchmarks.headline_pictures [FOLDER]``: draw the pictures of the first page (default folder: ``docs/pictures``).

``headline.svg``, ``field.svg``, ``memory.svg`` and ``hosts.svg`` show figures of the tables in ``docs``, so they are drawn
again when `benchmarks.page` has written new ones. ``killed_worker.svg`` shows a fit of this machine that loses a worker;
``--tables`` leaves it out.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.page import FIELD
from benchmarks.readme_pictures import write_dark
from dboost.inspection.plots import canvas

DOCS = Path(__file__).parent.parent / "docs"
sys.path.append(str(DOCS / "_ext"))

from headline import cell, headlines, tables  # noqa: E402

#: Engines whose names stand on the left of their points in the picture of libraries without tuning.
LABELLED_LEFT = ("dboost-auto", "lightgbm-stopping")
#: Iterations of the fit that loses a worker, and the one after which it does.
ITERATIONS, KILLED_AFTER = 40, 15


def headline_bars(docs: Path) -> dict[str, dict[str, float]]:
    """Return the bars of each panel of the headline: its title, and a value of each library."""
    names, page = headlines(docs), docs / "benchmarks.md"
    alone = float(names["training_seconds"])
    ratios = {"dboost": 1.0} | {
        library: float(cell(page, "W1a: 1M × 28", f"× {library}")) for library in ("LightGBM", "XGBoost", "scikit-learn")
    }
    shortest, longest = map(float, cell(page, "dboost", "seconds").split("–"))
    on_cluster = (shortest + longest) / 2
    return {
        "1M × 28, 100 trees, one machine: seconds": {library: alone * ratio for library, ratio in ratios.items()},
        "the same on two workers: seconds": {
            "dboost": on_cluster,
            "lightgbm.dask": on_cluster * float(names["cluster_lightgbm"]),
            "xgboost.dask": on_cluster * float(names["cluster_xgboost"]),
        },
        "4 GiB within 512 MiB: MiB of memory": {"dboost": float(names["memory"]), "XGBoost": float(names["memory_xgboost"])},
    }


def draw_headline(path: Path, bars: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a panel of bars for each comparison; shorter is better in all of them."""
    with canvas.style():
        heights = [len(values) for values in bars.values()]
        axes = canvas.new_axes(len(bars), 1, height=0.55 * len(bars) + 0.26 * sum(heights), height_ratios=heights)[:, 0]
        for ax, (title, values) in zip(axes, bars.items(), strict=True):
            colors = [canvas.BLUE if name == "dboost" else canvas.GREY for name in values]
            drawn = ax.barh(range(len(values)), list(values.values()), color=colors, height=0.62)
            texts = [f"{value:.0f}" if value > 100 else f"{value:.1f}" for value in values.values()]
            ax.bar_label(drawn, texts, padding=3, color=canvas.INK, fontsize=8.5)
            ax.set_yticks(range(len(values)), list(values))
            ax.set_xticks([])
            ax.spines["bottom"].set_visible(False)
            ax.margins(x=0.12)
            ax.invert_yaxis()
            ax.set_title(title, fontsize=9)
        _save(axes[0], path)


def draw_field(path: Path, docs: Path) -> None:
    """Draw how much more the loss of each library is than that of `max_iter="auto"`, by the time of its fit.

    A point is the median over the tables, a line reaches from the smallest to the largest of them.
    """
    rows = next(rows for header, *rows in tables(docs / "benchmarks.md") if header[-2:] == ["median", "× time"])
    with canvas.style():
        ax = canvas.new_axes(height=3.6, width=6.4)[0, 0]
        for label, *losses, median, times in rows:
            if not times:
                continue  # a row of seconds
            color = canvas.BLUE if FIELD[label].startswith("dboost") else canvas.GREY
            x, y = float(times), _signed_number(median or "0")
            if median:
                more = [_signed_number(loss.split()[0]) for loss in losses]
                ax.plot([x, x], [min(more), max(more)], color=canvas.FAINT, linewidth=3, zorder=0)
            ax.plot(x, y, "o", color=color, markersize=6)
            beside = {"xytext": (-7, 3), "ha": "right"} if FIELD[label] in LABELLED_LEFT else {"xytext": (7, 3)}
            name = label.replace("`", "").replace("… with ", "").replace(", early stopping", "*")
            ax.annotate(name, (x, y), textcoords="offset points", color=color, **beside)
        ax.set(xscale="log", xlabel='processor time of a fit ÷ that of max_iter="auto"', ylabel="% more loss")
        ax.set_xticks([0.2, 0.5, 1, 2, 5, 10, 20, 50], ["0.2", "0.5", "1", "2", "5", "10", "20", "50"])
        ax.set_yscale("symlog", linthresh=2)
        ax.set_yticks([-2, -1, 0, 1, 2, 5, 10, 20], ["−2", "−1", "0", "1", "2", "5", "10", "20"])
        ax.minorticks_off()
        ax.margins(x=0.12)
        ax.grid(axis="y")
        ax.set_title("Without tuning (*: early stopping): median and range of five tables")
        _save(ax, path)


def _signed_number(text: str) -> float:
    return float(text.replace("−", "-"))


def draw_memory(path: Path, docs: Path) -> None:
    """Draw the memory that a fit adds by the size of its table."""
    rows = next(rows for header, *rows in tables(docs / "out_of_core.md") if header[1].startswith("memory added"))
    ours = {row[0]: float(row[1].split()[0]) for row in rows if "XGBoost" not in row[0]}
    with canvas.style():
        ax = canvas.new_axes(height=2.6, width=4.2)[0, 0]
        sizes = [float(name.split()[0]) / (1024 if name.endswith("MiB") else 1) for name in ours]
        ax.plot(sizes, list(ours.values()), "o-", color=canvas.BLUE, label="dboost, limit 512 MiB")
        ax.plot(sizes[-1:], [float(headlines(docs)["memory_xgboost"])], "s", color=canvas.VERMILION, label="XGBoost")
        ax.set(xlabel="GiB of the table", ylabel="MiB of memory", ylim=(0, None))
        ax.grid(axis="y")
        ax.legend(loc="upper left")
        _save(ax, path)


def draw_hosts(path: Path, docs: Path) -> None:
    """Draw the seconds of a tree by the number of hosts."""
    simulated = [rows for header, *rows in tables(docs / "scaling.md") if header[:2] == ["hosts", "total"]]
    with canvas.style():
        ax = canvas.new_axes(height=2.6, width=4.2)[0, 0]
        for rows, n_features, color in zip(simulated, (28, 200, 2000), canvas.CYCLE, strict=False):
            hosts, seconds = ([float(row[k]) for row in rows] for k in range(2))
            ax.plot(hosts, seconds, "o-", color=color, markersize=4)
            above = {"xytext": (4, 4)} if n_features > 28 else {"xytext": (-4, -12), "ha": "right"}
            ax.annotate(f"{n_features:,} features", (hosts[1], seconds[1]), textcoords="offset points", color=color, **above)
        ax.set(xscale="log", yscale="log", xlabel="hosts", ylabel="seconds of a tree of 10⁸ rows")
        ax.set_xticks([2, 16, 128, 1000], ["2", "16", "128", "1000"])
        ax.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        ax.minorticks_off()
        ax.grid(axis="y")
        _save(ax, path)


def draw_tables(folder: Path) -> None:
    """Draw all pictures that show figures of the tables in ``docs``."""
    draw_headline(folder / "headline.svg", headline_bars(DOCS))
    write_dark(folder / "headline.svg")
    draw_field(folder / "field.svg", DOCS)
    draw_memory(folder / "memory.svg", DOCS)
    draw_hosts(folder / "hosts.svg", DOCS)


def write_trips(folder: Path, months: int = 8, n: int = 50_000) -> None:
    """Write synthetic taxi trips, a file for each month."""
    for month in range(1, months + 1):
        rng = np.random.default_rng(month)
        trips = pd.DataFrame({"hour": rng.integers(0, 24, n), "weekday": rng.integers(0, 7, n), "km": rng.gamma(2.0, 1.5, n)})
        rush = np.where((trips["weekday"] < 5) & trips["hour"].isin((8, 9, 17, 18)), 1.7, 1.0)
        trips["minutes"] = 3 + 2.6 * trips["km"] * rush * rng.lognormal(0, 0.15, n)
        trips.to_parquet(folder / f"2025-{month:02d}.parquet")


def fit_with_a_loss(folder: Path) -> tuple[Any, Any]:
    """Return two models of the trips: of a cluster of two workers that loses one, and of this process.

    Raises
    ------
    RuntimeError
        If they differ.
    """
    import dask
    from distributed import Client, LocalCluster

    import dboost

    settings: dict[str, Any] = {"loss": "gamma", "max_iter": ITERATIONS, "learning_rate": 0.08, "progress": False}
    divided = {"dboost.single-worker-values": 0, "dboost.session-per-host": False}
    workers = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    with dask.config.set(divided), workers, Client(workers) as client:
        victim = next(iter(client.run(os.getpid).values()))

        def kill(iteration: dboost.Iteration) -> None:
            if iteration.iteration == KILLED_AFTER:
                os.kill(victim, signal.SIGKILL)

        killed = dboost.fit(f"{folder}/*.parquet", "minutes", callbacks=[kill], **settings)
    undisturbed = dboost.fit(f"{folder}/*.parquet", "minutes", **settings)
    if killed.sha256 != undisturbed.sha256:
        raise RuntimeError("the model of the fit that lost a worker differs")
    return killed, undisturbed


def draw_killed_worker(path: Path) -> None:
    """Draw the seconds of the iterations of a fit that loses a worker, and its loss beside that of an undisturbed fit."""
    with tempfile.TemporaryDirectory() as folder:
        write_trips(Path(folder))
        killed, undisturbed = fit_with_a_loss(Path(folder))
    history, other = killed.history, undisturbed.history
    with canvas.style():
        above, below = canvas.new_axes(2, 1, height=3.6, sharex=True)[:, 0]
        slow = history["iteration"] == KILLED_AFTER + 1
        above.bar(history["iteration"], history["seconds"], color=np.where(slow, canvas.VERMILION, canvas.BLUE))
        above.axvline(KILLED_AFTER + 0.5, color=canvas.VERMILION, linestyle="--", linewidth=1.2)
        top = history["seconds"].max()
        above.annotate(
            "a worker is killed:\nthe other one reads its rows again",
            (KILLED_AFTER + 2, 0.95 * top),
            color=canvas.VERMILION,
            va="top",
        )
        above.set_title("Seconds of an iteration")
        below.plot(other["iteration"], other["train_loss"], color=canvas.SKY, linewidth=5, label="undisturbed")
        below.plot(history["iteration"], history["train_loss"], color=canvas.INK, linewidth=1.2, label="with a killed worker")
        below.axvline(KILLED_AFTER + 0.5, color=canvas.VERMILION, linestyle="--", linewidth=1.2)
        below.legend(title=f"both models: SHA-256 {killed.sha256[:12]}…", alignment="left")
        below.set_title("Training loss")
        below.set_xlabel("iteration")
        for ax in (above, below):
            ax.grid(axis="y")
        _save(above, path)


def _save(ax: Any, path: Path) -> None:
    ax.figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.headline_pictures", description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DOCS / "pictures")
    parser.add_argument("--tables", action="store_true", help="draw the figures of tables only, without a fit")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    draw_tables(folder)
    if not options.tables:
        draw_killed_worker(folder / "killed_worker.svg")


if __name__ == "__main__":
    main()
