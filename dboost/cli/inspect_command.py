"""``dboost inspect``: print the content of a saved model as tables or as JSON, or write a report."""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

import dboost
from dboost._lazy_import import pd
from dboost.cli import output_paths
from dboost.display import metric_name, number
from dboost.errors import ModelFileError, ParameterError
from dboost.files.filesystem import filesystem_of, without_query
from dboost.params import Parameters

if TYPE_CHECKING:
    from dboost.booster import Booster
    from dboost.model.ensemble import Ensemble

#: Largest number of features in a table.
SHOWN = 50


_NUMBER = re.compile(r"[-−+\d.,e%–→± ]*|nan|-?inf")


def run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    booster = _load(arguments.model)
    # Names, levels and values are printed verbatim: "speed [km/h]" is not markup, ":smile:" not an emoji.
    console = Console(highlight=False, markup=False, emoji=False)
    frames: dict[str, pd.DataFrame] = {}
    if arguments.importance:
        frames["importance"] = _importance(booster)
    if arguments.dependence:
        frames["dependence"] = _dependence(booster, arguments)
    if arguments.drift:
        frames["drift"] = booster.drift(arguments.drift, arguments.target)
    if arguments.html:
        booster.report(arguments.html, arguments.data, arguments.target, arguments.weight, offset=arguments.offset)
        print(f"report in {arguments.html}", file=output_paths.summary_file(arguments.html))
    if arguments.json:
        content = {name: frame.to_dict("records") for name, frame in frames.items()} or _content(booster)
        print(json.dumps(_plain(content), allow_nan=False, indent=1))
        return
    printers = {"importance": _importance_table, "dependence": _dependence_table, "drift": _drift_table}
    for name, frame in frames.items():
        _print(console, printers[name](frame))
    if not frames and not arguments.html:
        ensemble = booster.ensemble
        _print(console, _outline(ensemble))
        _print_parameters(console, ensemble)
        for table in (_metrics(ensemble), _sources(ensemble), _features(ensemble)):
            _print(console, table)


def _print(console: Console, table: Table) -> None:
    """Print a table, unless it is empty. On a narrow terminal the texts are wrapped, not the numbers."""
    for column in table.columns:
        cells = list(map(str, column.cells))
        if cells and all(map(_NUMBER.fullmatch, cells)):
            column.min_width = max(map(len, cells))
    if table.row_count:
        console.print(table)


def _check(arguments: argparse.Namespace) -> None:
    """Raise a ParameterError for options that cannot work together or have no effect."""
    if arguments.html:
        output_paths.check(arguments.html, "--html")
        if arguments.html.endswith("/"):
            raise ParameterError(f"--html {arguments.html} is a folder: name a file")
        read = {"MODEL": arguments.model, "--data": arguments.data, "--drift": arguments.drift}
        output_paths.check_separate({"--html": arguments.html}, read)
    if arguments.json and arguments.html:
        raise ParameterError("--json prints, and --html writes a report: use one of them")
    if arguments.data and not (arguments.html or arguments.dependence):
        raise ParameterError("--data is used by --dependence and --html only")
    if arguments.target and not (arguments.drift or (arguments.data and arguments.html)):
        raise ParameterError("--target needs --drift, or --data and --html")
    for option in ("weight", "offset"):
        if getattr(arguments, option) and not arguments.data:
            raise ParameterError(f"--{option} is a column of --data: name that too")


def _load(path: str) -> Booster:
    """Load the model, with the history beside its file if there is one."""
    booster = dboost.load(path)
    beside = f"{without_query(path)}.history.csv"
    files, name = filesystem_of(beside)
    if files.isfile(name):
        with files.open(name, "rb") as file:
            return dboost.Booster(booster.ensemble, history=_history(file, beside))
    return booster


def _history(file: Any, name: str) -> pd.DataFrame:
    try:
        history = pd.read_csv(file)
        is_history = [*history.columns[:1]] == ["iteration"] and all(kind.kind in "iufb" for kind in history.dtypes)
    except ValueError:  # pandas' errors of reading, too
        is_history = False
    if not is_history:
        raise ModelFileError(f"{name} is not a history of a model: remove it, or write it again by save(…, history=True)")
    return history


def _importance(booster: Booster) -> pd.DataFrame:
    """Return relative importance and number of splits of each feature, largest first."""
    importance, splits = booster.importance(), booster.importance("count")
    numbers = [round(splits[name] * splits.attrs["unit"] / 100) for name in importance.index]
    return pd.DataFrame({"feature": importance.index, "relative": importance.to_numpy(), "splits": numbers})


def _importance_table(found: pd.DataFrame) -> Table:
    title = "Importance" if len(found) <= SHOWN else f"Importance (the first {SHOWN} of {len(found)} features)"
    table = _table(title, "", "relative", "splits")
    for row in found.iloc[:SHOWN].itertuples(index=False):
        table.add_row(str(row.feature), f"{row.relative:.1f}", str(row.splits))
    return table


def _dependence(booster: Booster, arguments: argparse.Namespace) -> pd.DataFrame:
    wanted = arguments.dependence
    names = [wanted] if wanted in booster.feature_names_in_ else [name.strip() for name in wanted.split(",")]
    roles = {"sample_weight": arguments.weight, "offset": arguments.offset}
    frame = booster.partial_dependence(arguments.data, names, grid=20 if len(names) == 1 else 8, **roles)
    frame.attrs["features"] = names
    return frame


def _dependence_table(found: pd.DataFrame) -> Table:
    table = _table(f"Dependence on {' and '.join(found.attrs['features'])}", *map(str, found.columns))
    for row in found.itertuples(index=False):
        table.add_row(*(number(value) if isinstance(value, float) else str(value) for value in row))
    return table


def _drift_table(found: pd.DataFrame) -> Table:
    shown = found if len(found) <= SHOWN else found.iloc[:SHOWN]
    extent = f"{len(shown)} of {len(found)}" if len(shown) < len(found) else str(len(found))
    title = f"Drift of {found.attrs['rows']:,} rows from the {found.attrs['rows_before']:,} it learned from last ({extent})"
    table = _table(title, "", "drift", "psi", "chance", "distance", "missing", "new")
    for row in shown.itertuples(index=False):
        missing = f"{row.missing_before:.3f} → {row.missing:.3f}"
        new = row.outside if row.unseen != row.unseen else row.unseen  # fraction of new values, or of new levels
        numbers = (f"{value:.3f}" for value in (row.psi, row.chance, row.distance))
        table.add_row(row.name, row.drift, *numbers, missing, f"{new:.3f}")
    return table


def _content(booster: Booster) -> dict[str, Any]:
    """Return what the tables without options show, as JSON types after `_plain`."""
    ensemble, leaves = booster.ensemble, [tree.n_leaves for tree in booster.ensemble.trees]
    return {
        "sha256": booster.sha256,
        "loss": ensemble.loss,
        "classes": ensemble.classes,
        "baseline": ensemble.baseline,
        "iterations": ensemble.n_iterations,
        "trees_per_iteration": ensemble.trees_per_iteration,
        "best_iteration": ensemble.best_iteration,
        "leaves_per_tree": {"min": min(leaves), "max": max(leaves), "mean": sum(leaves) / len(leaves)} if leaves else None,
        "depth": max((tree.depth for tree in ensemble.trees), default=None),
        "parameters": ensemble.parameters,
        "metrics": ensemble.metrics,
        "sources": booster.sources,
        "features": [
            {"name": feature.name, "levels": feature.categories, "splits": splits}
            for feature, splits in zip(ensemble.features, _splits(ensemble), strict=True)
        ],
    }


def _plain(value: Any) -> Any:
    """Convert to JSON types; numbers that JSON does not have become None if missing, else text."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _outline(ensemble: Ensemble) -> Table:
    table = _table("Model", "", "")
    per_iteration = f" of {ensemble.trees_per_iteration} trees each" if ensemble.trees_per_iteration > 1 else ""
    table.add_row("loss", _shown(ensemble.loss))
    if ensemble.classes is not None:
        table.add_row("classes", ", ".join(map(str, ensemble.classes)))
    table.add_row("features", str(len(ensemble.features)))
    kept = "" if ensemble.best_iteration is None else ", kept by early stopping"
    table.add_row("iterations", f"{ensemble.n_iterations}{per_iteration}{kept}")
    if ensemble.trees:
        leaves = [tree.n_leaves for tree in ensemble.trees]
        table.add_row("leaves per tree", f"{min(leaves)} to {max(leaves)}, {sum(leaves) / len(leaves):.1f} on average")
        table.add_row("depth", f"up to {max(tree.depth for tree in ensemble.trees)}")
    table.add_row("first score", ", ".join(number(score) for score in ensemble.baseline))
    return table


def _print_parameters(console: Console, ensemble: Ensemble) -> None:
    """Print a line ``name = value`` for each parameter, those that differ from the default first."""
    defaults = {field.name: field.default for field in fields(Parameters)}
    set_here = {name for name, value in ensemble.parameters.items() if value != defaults.get(name, MISSING)}
    suffix = " of the first fit" if len(ensemble.sources) > 1 else ""
    for title, names in (
        (f"Parameters{suffix} that differ from the default", [name for name in ensemble.parameters if name in set_here]),
        ("Parameters with their default", [name for name in ensemble.parameters if name not in set_here]),
    ):
        if names:
            console.print(title, style="bold")
        for name in names:
            console.print(f"  {name} = {ensemble.parameters[name]!r}", soft_wrap=True)


def _metrics(ensemble: Ensemble) -> Table:
    table = _table("Metrics", "", "first", "last kept", "last")
    kept = ensemble.best_iteration or ensemble.n_iterations
    for name, values in ensemble.metrics.items():
        if values:
            table.add_row(metric_name(name), *(number(values[i]) for i in (0, min(kept, len(values)) - 1, -1)))
    return table


def _sources(ensemble: Ensemble) -> Table:
    first = ("label", "rows", "first_iteration", "last_iteration")
    further = [key for source in ensemble.sources for key in source if key not in (*first, "parameters", "summary")]
    keys = dict.fromkeys(further)
    table = _table("Learned from", "label", "rows", "iterations", *(key.replace("_", " ") for key in keys))
    for source in ensemble.sources:
        rows = "–" if source.get("rows") is None else f"{source['rows']:,}"
        iterations = f"{source['first_iteration']} to {source['last_iteration']}"
        rest = (_shown(source[key]) if key in source else "" for key in keys)
        table.add_row(_shown(source.get("label")), rows, iterations, *rest)
    return table


def _features(ensemble: Ensemble) -> Table:
    splits = _splits(ensemble)
    order = sorted(range(len(splits)), key=lambda j: -splits[j])
    title = "Features" if len(order) <= SHOWN else f"Features (the {SHOWN} with most splits, of {len(order)})"
    table = _table(title, "", "kind", "splits")
    for j in order[:SHOWN]:
        feature = ensemble.features[j]
        kind = "numeric" if feature.categories is None else f"categorical, {len(feature.categories)} levels"
        table.add_row(feature.name, kind, str(splits[j]))
    return table


def _splits(ensemble: Ensemble) -> list[int]:
    """Return the number of splits by each feature."""
    of_trees = [tree.feature[tree.feature >= 0] for tree in ensemble.trees]
    counts = np.bincount(np.concatenate([np.empty(0, np.int64), *of_trees]), minlength=len(ensemble.features))
    return [int(count) for count in counts]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=any(columns))
    for i, column in enumerate(columns):
        is_text = i == 0 or column in ("", "kind")
        table.add_column(column, overflow="fold", justify="left" if is_text else "right")
    return table


def _shown(value: Any) -> str:
    """Format a value: a loss as ``name (other keys)``, other mappings as lines, a digest by its first characters."""
    if isinstance(value, dict):
        items = [f"{key} = {_shown(item)}" for key, item in value.items() if key != "name"]
        if "name" not in value:
            return "\n".join(items)
        return f"{value['name']} ({', '.join(items)})" if items else str(value["name"])
    if isinstance(value, str):
        return value[:12] + "…" if len(value) == 64 else value
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return "–" if value is None else number(value) if isinstance(value, float) else str(value)
