"""Write the figures of `docs/benchmarks.md`, `docs/out_of_core.md` and `docs/arcbites.md` from the reports of benchmarks.

    python -m benchmarks --all --output all.json
    python -m benchmarks.cluster --rows 1000000 --output cluster.json
    python -m benchmarks.accuracy --output equal.json
    python -m benchmarks.accuracy --defaults --rows 30000 --threads 1 --output auto.json \\
        --tables hflights adult elec2 covtype california --engines dboost-auto dboost-one-fit dboost lightgbm-stopping \\
        sklearn-stopping xgboost-stopping chimeraboost catboost
    python -m benchmarks.out_of_core --memory 900MiB 2GiB 3GiB --cluster --output files.json
    python -m benchmarks.arcbites --tables hflights covtype adult --output bites.json
    python -m benchmarks.page all.json --cluster cluster.json --accuracy equal.json --auto auto.json \\
        --out-of-core files.json --arcbites bites.json

On a page, a comment ``% table: NAME`` stands before each table that is written here. The first cells of its rows stay as they
are and say which workload a row is; the other cells are replaced. Rows whose workload is not in the reports, and rows of other
benchmarks, stay unchanged. ``% measured with`` stands before the line with the versions, those of the environment of this
command.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.accuracy import ROWS
from benchmarks.workloads import MAIN, OTHERS, WORKLOADS

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
#: First words of rows that are not the name of their workload.
NAMES = {"absolute error": "absolute", "five classes": "classes"}
#: The results of the engines of one workload.
Results = dict[str, dict[str, Any]]


def two_digits(value: float) -> str:
    """Return a positive number with two significant digits, and integers with all of theirs."""
    places = 1 - int(f"{value:.1e}".partition("e")[2])
    return f"{value:.{max(places, 0)}f}"


def ratio(phase: str, engine: str) -> Callable[[Results], str]:
    """Return the column of an engine's seconds ÷ those of dboost, in the same rounds: median, and range if it is wide."""

    def of(results: Results) -> str:
        if engine not in results:
            return "not available"
        ratios = np.array(results[engine][phase]) / np.array(results["dboost"][phase])
        middle, least, largest = map(two_digits, (np.median(ratios), ratios.min(), ratios.max()))
        return f"{middle} ({least}–{largest})" if ratios.max() > 1.1 * ratios.min() else middle

    return of


def seconds(results: Results) -> str:
    return two_digits(float(np.median(results["dboost"]["training"])))


def memory(engine: str) -> Callable[[Results], str]:
    def of(results: Results) -> str:
        mib = results.get(engine, {}).get("peak_memory")
        return "" if mib is None else f"{mib:.0f}"

    return of


def score(engine: str) -> Callable[[Results], str]:
    """Return the column of the first score of an engine: AUC, or the error."""
    return lambda results: f"{next(iter(results[engine]['scores'].values())):.4f}" if engine in results else "not available"


TRAINING = [seconds, *(ratio("training", engine) for engine in ("lightgbm", "lightgbm-quantised", "xgboost", "sklearn"))]
OTHER_PHASES = [ratio(phase, engine) for phase in ("binning", "prediction") for engine in ("lightgbm", "xgboost")]
TABLES = {
    "training": TRAINING,
    "other shapes": [*TRAINING, *OTHER_PHASES],
    "binning, prediction and memory": [*OTHER_PHASES, *map(memory, ("dboost", "lightgbm", "xgboost"))],
    "accuracy": [*map(score, ("dboost", "lightgbm", "xgboost", "sklearn"))],
}


def workload_of(label: str) -> str:
    """Return the name of the workload that the first cell of a row begins with."""
    name = re.split(r"[:,]", label)[0].strip()
    return NAMES.get(name, name)


def summary(report: dict[str, Results], cluster: dict[str, Any] | None) -> dict[str, list[str]]:
    """Return the cells of rows of the summary, by the text or target of their link: dboost, LightGBM, XGBoost, scikit-learn."""

    def span(names: Iterable[str], phase: str) -> list[str]:
        cells = [""]
        for engine in ("lightgbm", "xgboost", "sklearn"):
            found = [
                float(np.median(np.array(report[name][engine][phase]) / np.array(report[name]["dboost"][phase])))
                for name in names
                if engine in report[name]
            ]
            cells.append(f"{two_digits(min(found))}–{two_digits(max(found))}×" if found else "")
        return cells

    main, others = ([workload.name for workload in some if workload.name in report] for some in (MAIN, OTHERS))
    found = {}
    if main:
        found["training-two-threads"] = span(main, "training")
        found["binning"], found["prediction"] = ([*span(main, phase)[:3], ""] for phase in ("binning", "prediction"))
        sized = [name for name in ("W1a", "W3") if name in report]
        found["peak memory"] = [
            ", ".join(memory(engine)(report[name]) for name in sized) for engine in ("dboost", "lightgbm", "xgboost")
        ] + [""]
    if others:
        found["tables-of-other-shapes-two-threads"] = span(others, "training")
    if cluster is not None:
        rows = on_a_cluster(cluster)
        if rows.keys() >= {"lightgbm.dask", "xgboost.dask"}:
            found["on-a-cluster"] = ["", *(f"{rows[name][1].split()[0]}×" for name in ("lightgbm.dask", "xgboost.dask")), ""]
    return found


def on_a_cluster(found: dict[str, Any]) -> dict[str, list[str]]:
    """Return the cells of the table of the largest table on a cluster, by engine."""
    engines = found[max(found, key=int)]
    ours = np.array(engines["dboost"]["seconds"])
    rows = {}
    for engine, name in (("dboost", "dboost"), ("xgboost", "xgboost.dask"), ("lightgbm", "lightgbm.dask")):
        if engine in engines:
            times = np.array(engines[engine]["seconds"])
            ratios = times / ours
            middle = "" if engine == "dboost" else f"{np.median(ratios):.2f} ({ratios.min():.2f}–{ratios.max():.2f})"
            rows[name] = [f"{times.min():.1f}–{times.max():.1f}", middle]
    return rows


def in_pairs(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return the cells of one table of rows: dboost's mean loss, and how much more the others' is, with its standard error."""
    loss = list(found["dboost"])[-1]  # log loss behind AUC
    ours = np.array(found["dboost"][loss])
    scale = ".4f" if ours.mean() < 10 else ".0f"
    cells = [f"{ours.mean():{scale}}"]
    for engine in ("lightgbm", "xgboost", "sklearn"):
        more = np.array(found[engine][loss]) - ours
        cells.append(_signed(more.mean(), more.std(ddof=1) / len(more) ** 0.5, scale))
    return cells


#: Columns of the table of libraries without tuning, and the engines of its rows by their first cells.
FIELD_TABLES = ("hflights", "adult", "elec2", "covtype", "california")
FIELD = {
    '`max_iter="auto"`': "dboost-auto",
    "… with `refit=False`": "dboost-one-fit",
    "dboost, 100 iterations": "dboost",
    "LightGBM, early stopping": "lightgbm-stopping",
    "scikit-learn, early stopping": "sklearn-stopping",
    "XGBoost, early stopping": "xgboost-stopping",
    "ChimeraBoost": "chimeraboost",
    "CatBoost": "catboost",
}
#: First cell of the row of the processor seconds of the first engine.
FIELD_SECONDS = "… processor seconds"


def without_tuning(report: dict[str, dict[str, dict[str, list[float]]]], label: str) -> list[str] | None:
    """Return the cells of a row of the table of libraries without tuning, or None if a table has not been measured.

    Of `max_iter="auto"` the mean loss on each table, and in a row of their own the processor seconds. Of the others how much
    more their loss is in percent, with the standard error over the test rows; its median over the tables; and the median of the
    processor time as a multiple, over the splits and then over the tables.
    """
    engine = "dboost-auto" if label == FIELD_SECONDS else FIELD.get(label)
    if engine is None or any(engine not in report.get(name, {}) for name in FIELD_TABLES):
        return None
    cells, more, ratios = [], [], []
    for name in FIELD_TABLES:
        auto, other = report[name]["dboost-auto"], report[name][engine]
        loss = list(auto)[-1]  # log loss behind AUC
        mean, errors = np.mean(auto[loss]), np.array(other[ROWS])
        more.append(100 * (np.mean(other[loss]) / mean - 1))
        ratios.append(np.median(np.array(other["CPU s"]) / np.array(auto["CPU s"])))
        if label == FIELD_SECONDS:
            cells.append(two_digits(float(np.median(auto["CPU s"]))))
        elif engine == "dboost-auto":
            cells.append(f"{mean:.4f}" if mean < 10 else f"{mean:.0f}")
        else:
            cells.append(_signed(more[-1], 100 * np.sqrt((errors**2).sum()) / len(errors) / mean, ".1f"))
    if engine == "dboost-auto":
        return [*cells, "", "" if label == FIELD_SECONDS else "1"]
    return [*cells, f"{np.median(more):+.1f}".replace("-", "−"), two_digits(float(np.median(ratios)))]


def _signed(more: float, error: float, scale: str) -> str:
    return f"{more:+{scale}} ± {error:{scale}}".replace("-", "−")


#: Given the first cell of a row, returns the others; None if there are no new figures for the row.
CellsOf = Callable[[str], list[str] | None]


def filled(text: str, tables: Mapping[str, CellsOf]) -> str:
    """Return a page with new cells in its marked tables.

    Raises
    ------
    LookupError
        If the page has no comment of one of the tables, or a row has another number of cells.
    """
    lines, seen = text.split("\n"), set[str]()
    name = ""
    for i, line in enumerate(lines):
        if line.startswith("% table: "):
            name = line.removeprefix("% table: ")
            seen.add(name)
        elif name and not line and lines[i - 1].startswith("|"):
            name = ""
        elif name in tables and line.startswith("| "):
            cells = tables[name](_split(line)[0])
            if cells is not None:
                lines[i] = _row(line, cells)
    absent = tables.keys() - seen
    if absent:
        raise LookupError(f"the page has no comment '% table: {min(absent)}'")
    return "\n".join(lines)


def written(
    text: str,
    report: dict[str, Results],
    cluster: dict[str, Any] | None = None,
    versions: str = "",
    pairs: dict[str, dict[str, Any]] | None = None,
) -> str:
    """Return the text of the page of benchmarks with the figures of the reports."""

    def of_pairs(losses: dict[str, Any], label: str) -> list[str] | None:
        of_table = losses.get(label.partition(",")[0])
        return None if of_table is None else in_pairs(of_table)

    tables: dict[str, CellsOf] = {
        name: partial(_cells, name, report=report, cluster=cluster) for name in (*TABLES, "summary", "on a cluster")
    }
    for name, losses in (pairs or {}).items():
        tables[name] = partial(without_tuning, losses) if name == "without tuning" else partial(of_pairs, losses)
    text = filled(text, tables)
    if versions:
        rounds = "–".join(map(str, sorted({len(results["dboost"]["training"]) for results in report.values()})))
        text = re.sub(r"(?<=^% measured with\n).*", f"Measured with {versions}, in {rounds} rounds.", text, flags=re.MULTILINE)
    return text


def out_of_core(found: dict[str, Any]) -> dict[str, CellsOf]:
    """Return the tables of `docs/out_of_core.md` from the report of `benchmarks.out_of_core`."""
    figures, limit, disk = found["figures"], found["limit"] / 2**20, found["disk"]
    most = max(int(name.split()[-1]) for name in figures)

    def mib(label: str) -> float:
        size = re.match(r"(\d+) ([GM])iB", label)
        return 0.0 if size is None else float(size[1]) * (1024 if size[2] == "G" else 1)

    def of_size(label: str) -> list[str] | None:
        engine = "xgboost" if "XGBoost" in label else "dboost"
        one = figures.get(f"{engine} {mib(label) / limit:.0f}")
        if one is None or "tree" not in one:
            return None
        read = [f"{one['read'] / 2**30:.1f} GiB", f"{one['read'] / disk:.1f} s"] if one["read"] else ["0", ""]
        times = f"{two_digits(one['tree'])} ({two_digits(one['processor'])})"
        return [
            f"{one['added'] / 2**20:.0f} MiB",
            f"{two_digits(one['load'])} s",
            times,
            *(read if engine == "dboost" else ["", ""]),
        ]

    def of_group(label: str) -> list[str] | None:
        if not mib(label) and label != "no limit":
            return None
        group = "" if label == "no limit" else f" in {mib(label):.0f} MiB"
        by_engine = {engine: figures.get(f"{engine}{group} {most}", {}) for engine in ("dboost", "xgboost", "cluster")}
        trees = [two_digits(one["tree"]) if "tree" in one else "killed" if one else "" for one in by_engine.values()]
        ours, theirs = (by_engine[engine].get("tree") for engine in ("dboost", "xgboost"))
        return [*trees[:2], two_digits(theirs / ours) if ours and theirs else "", trees[2]]

    return {"sizes": of_size, "control groups": of_group}


def arcbites(found: list[dict[str, Any]]) -> dict[str, CellsOf]:
    """Return the table of `docs/arcbites.md` from the report of `benchmarks.arcbites`."""

    def cells(label: str) -> list[str] | None:
        of_table = {one["way"]: one for one in found if one["table"] == label.partition(",")[0]}
        if not of_table:
            return None
        best, read = of_table["all rows"]["loss"], of_table["streamed"]["bytes_read"]
        ways = [of_table[way] for way in ("arcbites, 1 tree a visit, grouped anew", "arcbites, slowly")]
        losses = [f"{one['loss']:.4f} ({100 * (one['loss'] / best - 1):+.1f} %)".replace("-", "−") for one in ways]
        return [f"{best:.4f}", *losses, f"{100 * ways[1]['bytes_read'] / read:.0f} %" if read else ""]

    return {"a tenth in memory": cells}


def _cells(table: str, label: str, *, report: dict[str, Results], cluster: dict[str, Any] | None) -> list[str] | None:
    """Return the cells of a row but the first one; None for rows without new figures."""
    if table == "summary":
        found = summary(report, cluster)
        anchor = re.search(r"\]\(#([\w-]+)\)", label)
        title = re.search(r"\[([^]]+)\]", label)
        return found.get(title[1] if title else "", found.get(anchor[1] if anchor else ""))
    if table == "on a cluster":
        return None if cluster is None else on_a_cluster(cluster).get(label)
    results = report.get(workload_of(label))
    return None if results is None or table not in TABLES else [column(results) for column in TABLES[table]]


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def _row(line: str, cells: list[str]) -> str:
    label, *old = _split(line)
    if len(old) != len(cells):
        raise LookupError(f"the row {label!r} has {len(old)} cells beside the first one, not {len(cells)}")
    return " ".join(["|", label, *(f"| {cell}" if cell else "|" for cell in cells), "|"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description="Write the figures of docs/benchmarks.md.")
    parser.add_argument("reports", nargs="*", type=Path, metavar="REPORT.json", help="of python -m benchmarks --output")
    parser.add_argument("--cluster", type=Path, metavar="FILE.json", help="of python -m benchmarks.cluster --output")
    parser.add_argument("--accuracy", type=Path, metavar="FILE.json", help="of python -m benchmarks.accuracy --output")
    parser.add_argument("--defaults", type=Path, metavar="FILE.json", help="of the same with --defaults")
    parser.add_argument("--auto", type=Path, metavar="FILE.json", help="of the same without tuning: the engines above")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--out-of-core", type=Path, metavar="FILE.json", help="of python -m benchmarks.out_of_core --output")
    parser.add_argument("--arcbites", type=Path, metavar="FILE.json", help="of python -m benchmarks.arcbites --output")
    options = parser.parse_args(argv)
    report: dict[str, Results] = {}
    for path in options.reports:
        report |= json.loads(path.read_text(encoding="utf-8"))
    unknown = set(report) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {min(unknown)}")
    cluster = None if options.cluster is None else json.loads(options.cluster.read_text(encoding="utf-8"))
    of_pairs = {
        "accuracy in pairs": options.accuracy, "accuracy at defaults": options.defaults, "without tuning": options.auto,
    }  # fmt: skip
    pairs = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in of_pairs.items() if path is not None}
    versions = peers.describe(peers.DISTRIBUTIONS) if report else ""
    text = written(options.page.read_text(encoding="utf-8"), report, cluster, versions, pairs)
    options.page.write_text(text, encoding="utf-8")
    for path, tables_of, name in ((options.out_of_core, out_of_core, "out_of_core"), (options.arcbites, arcbites, "arcbites")):
        if path is not None:
            other = options.page.with_name(f"{name}.md")
            tables = tables_of(json.loads(path.read_text(encoding="utf-8")))
            other.write_text(filled(other.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
