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
from dboost.display import as_read, number, numbers
from dboost.errors import ModelFileError, ParameterError
from dboost.files.filesystem import filesystem_of, without_query
from dboost.params import Parameters

if TYPE_CHECKING:
    from dboost.booster import Booster

#: Largest number of rows in a table.
SHOWN = 50
_NUMBER = re.compile(r"[-−+\d.,e%–→± ]*|nan|-?inf")


def run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    booster = _load(arguments.model)
    frames: dict[str, pd.DataFrame] = {}  # by their keys in JSON
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
    # Names, levels and values are printed verbatim: "speed [km/h]" is not markup, ":smile:" not an emoji.
    console = Console(highlight=False, markup=False, emoji=False)
    for name, frame in frames.items():
        _print(console, *_PRINTED[name](frame))
    if not frames and not arguments.html:
        _print_model(console, _content(booster))


def _print(console: Console, title: str, frame: pd.DataFrame) -> None:
    """Print the first rows of a table, unless it is empty. On a narrow terminal the texts are wrapped, not the numbers."""
    if frame.empty:
        return
    console.print(title, style="bold")  # not as the title of the table, which may be narrower
    table = Table(show_header=any(frame.columns))
    for i, (name, values) in enumerate(frame.iloc[:SHOWN].items()):
        cells = list(map(_shown, values))
        is_text = i == 0 or not all(map(_NUMBER.fullmatch, cells))
        width = None if is_text else max(map(len, cells))
        table.add_column(str(name), overflow="fold", justify="left" if is_text else "right", min_width=width)
    for row in frame.iloc[:SHOWN].itertuples(index=False):
        table.add_row(*map(_shown, row))
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
    from dboost.booster import booster_with

    booster = dboost.load(path)
    beside = f"{without_query(path)}.history.csv"
    files, name = filesystem_of(beside)
    if files.isfile(name):
        with files.open(name, "rb") as file:
            return booster_with(booster.ensemble, history=_history(file, beside).to_dict("records"))
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


def _printed_importance(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    cells = frame.assign(relative=frame["relative"].map("{:.1f}".format)).rename(columns={"feature": ""})
    return "Importance" + _extent(len(frame)), cells


def _extent(n: int) -> str:
    return "" if n <= SHOWN else f" (the first {SHOWN} of {n} features)"


def _dependence(booster: Booster, arguments: argparse.Namespace) -> pd.DataFrame:
    wanted = arguments.dependence
    names = [wanted] if wanted in booster.feature_names_in_ else [name.strip() for name in wanted.split(",")]
    roles = {"sample_weight": arguments.weight, "offset": arguments.offset}
    frame = booster.partial_dependence(arguments.data, names, grid=20 if len(names) == 1 else 8, **roles)
    frame.attrs["features"] = names
    return frame


def _printed_dependence(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    return f"Dependence on {' and '.join(frame.attrs['features'])}", frame.assign(value=numbers(frame["value"]))


def _printed_drift(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    rows, before = frame.attrs["rows"], frame.attrs["rows_before"]
    fractions = frame.assign(new=frame["unseen"].fillna(frame["outside"]))  # of new levels, or of values outside the range
    names = ["psi", "chance", "distance", "missing_before", "missing", "new"]
    text = fractions[names].map("{:.3f}".format)
    text["missing"] = text.pop("missing_before") + " → " + text["missing"]
    cells = pd.concat([frame[["name", "drift"]].rename(columns={"name": ""}), text], axis=1)
    return f"Drift of {rows:,} rows from the {before:,} it learned from last{_extent(len(frame))}", cells


#: Title and cells of a frame by its key in JSON.
_PRINTED = {"importance": _printed_importance, "dependence": _printed_dependence, "drift": _printed_drift}


def _content(booster: Booster) -> dict[str, Any]:
    """Return what is printed without options, as JSON types after `_plain`."""
    ensemble, leaves = booster.ensemble, [tree.n_leaves for tree in booster.ensemble.trees]
    features = np.concatenate([np.empty(0, np.int64), *(tree.feature[tree.feature >= 0] for tree in ensemble.trees)])
    splits = np.bincount(features, minlength=len(ensemble.features))
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
            {"name": feature.name, "levels": feature.categories, "splits": int(n)}
            for feature, n in zip(ensemble.features, splits, strict=True)
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


def _print_model(console: Console, content: dict[str, Any]) -> None:
    """Print the content of a model: an outline, parameters, metrics, sources and features."""
    trees = content["trees_per_iteration"]
    per_iteration = f" of {trees} trees each" if trees > 1 else ""
    by_search = any("search" in source for source in content["sources"])
    kept = "" if content["best_iteration"] is None else ", found by a search" if by_search else ", kept by early stopping"
    outline = {
        "loss": content["loss"],
        "classes": content["classes"],
        "features": len(content["features"]),
        "iterations": f"{content['iterations']}{per_iteration}{kept}",
    }
    if content["leaves_per_tree"]:
        outline["leaves per tree"] = "{min} to {max}, {mean:.1f} on average".format(**content["leaves_per_tree"])
        outline["depth"] = f"up to {content['depth']}"
    outline["first score"] = list(content["baseline"])
    lines = [(name, value) for name, value in outline.items() if value is not None]
    _print(console, "Model", pd.DataFrame(lines, columns=["", ""]))
    _print_parameters(console, content["parameters"], " of the first fit" if len(content["sources"]) > 1 else "")
    last = (content["best_iteration"] or content["iterations"]) - 1
    metrics = []
    for column, values in content["metrics"].items():
        if values:
            three = np.array([values[0], values[min(last, len(values) - 1)], values[-1]])
            name, shown = as_read(column, three, content["loss"]["name"])
            metrics.append((name, *shown))
    _print(console, "Metrics", pd.DataFrame(metrics, columns=["", "first", "last kept", "last"]))
    _print(console, "Learned from", pd.DataFrame(map(_source_cells, content["sources"]), dtype=object).fillna(""))
    features = sorted(content["features"], key=lambda feature: -feature["splits"])
    kinds = ["numeric" if each["levels"] is None else f"categorical, {len(each['levels'])} levels" for each in features]
    columns = {"": [each["name"] for each in features], "kind": kinds, "splits": [each["splits"] for each in features]}
    title = "Features" if len(features) <= SHOWN else f"Features (the {SHOWN} with most splits, of {len(features)})"
    _print(console, title, pd.DataFrame(columns))


def _source_cells(source: dict[str, Any]) -> dict[str, str]:
    """Return the columns of a source that are printed."""
    cells = {
        "label": _shown(source.get("label")),
        "rows": "–" if source.get("rows") is None else f"{source['rows']:,}",
        "iterations": f"{source['first_iteration']} to {source['last_iteration']}",
    }
    others = source.keys() - {"label", "rows", "first_iteration", "last_iteration", "parameters", "summary"}
    return cells | {name.replace("_", " "): _shown(source[name]) for name in source if name in others}


def _print_parameters(console: Console, parameters: dict[str, Any], suffix: str) -> None:
    """Print a line ``name = value`` for each parameter, those that differ from the default first."""
    defaults = {field.name: field.default for field in fields(Parameters)}
    changed = [name for name, value in parameters.items() if value != defaults.get(name, MISSING)]
    for title, names in (
        (f"Parameters{suffix} that differ from the default", changed),
        ("Parameters with their default", [name for name in parameters if name not in changed]),
    ):
        if names:
            console.print(title, style="bold")
        for name in names:
            console.print(f"  {name} = {parameters[name]!r}", soft_wrap=True)


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
