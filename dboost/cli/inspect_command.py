"""``dboost inspect``: print the content of a saved model as tables, or write a report."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
from rich.console import Console
from rich.table import Table

import dboost
from dboost._lazy_import import pd
from dboost.cli import outputs
from dboost.errors import ParameterError

if TYPE_CHECKING:
    from dboost.booster import Booster
    from dboost.model.ensemble import Ensemble

#: Largest number of features in a table.
SHOWN = 50


def run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    booster = _load(arguments.model)
    # Names, levels and values are printed verbatim: "speed [km/h]" is not markup, ":smile:" not an emoji.
    console = Console(highlight=False, markup=False, emoji=False)
    tables = [_importance(booster)] if arguments.importance else []
    if arguments.dependence:
        tables.append(_dependence(booster, arguments.dependence, arguments.data, arguments.weight))
    if arguments.drift:
        tables.append(_drift(booster, arguments.drift, arguments.target))
    if arguments.html:
        booster.report(arguments.html, arguments.data, arguments.target, arguments.weight)
        console.print(f"report in {arguments.html}", soft_wrap=True)
    ensemble = booster.ensemble
    if not tables and not arguments.html:
        tables = [_outline(ensemble), _parameters(ensemble), _metrics(ensemble), _sources(ensemble), _features(ensemble)]
    for table in tables:
        if table.row_count:
            console.print(table)


def _check(arguments: argparse.Namespace) -> None:
    """Raise a ParameterError for options that cannot work together or have no effect."""
    if arguments.html:
        outputs.check(arguments.html, "--html")
        if arguments.html.endswith("/"):
            raise ParameterError(f"--html {arguments.html} is a folder: name a file")
    if arguments.data and not (arguments.html or arguments.dependence):
        raise ParameterError("--data is looked at for --dependence and --html only")
    if arguments.target and not (arguments.drift or (arguments.data and arguments.html)):
        raise ParameterError("--target needs --drift, or --data and --html")
    if arguments.weight and not arguments.data:
        raise ParameterError("--weight is a column of --data: name that too")


def _load(path: str) -> Booster:
    """Load the model, with the history beside its file if there is one."""
    booster = dboost.load(path)
    beside = f"{path}.history.csv"
    files, name = fsspec.url_to_fs(beside)
    if files.isfile(name):
        with files.open(name, "rb") as file:
            return dboost.Booster(booster.ensemble, history=pd.read_csv(file))
    return booster


def _importance(booster: Booster) -> Table:
    importance, splits = booster.importance(), booster.importance("count")
    title = "Importance" if len(importance) <= SHOWN else f"Importance (the first {SHOWN} of {len(importance)} features)"
    table = _table(title, "", "relative", "splits")
    for name, value in importance.iloc[:SHOWN].items():
        table.add_row(str(name), f"{value:.1f}", f"{splits[name] * splits.attrs['unit'] / 100:.0f}")
    return table


def _dependence(booster: Booster, wanted: str, data: str | None, weight: str | None) -> Table:
    names = [wanted] if wanted in booster.feature_names_in_ else [name.strip() for name in wanted.split(",")]
    found = booster.partial_dependence(data, names, grid=20 if len(names) == 1 else 8, sample_weight=weight)
    table = _table(f"Dependence on {' and '.join(names)}", *map(str, found.columns))
    for row in found.itertuples(index=False):
        table.add_row(*(f"{value:.6g}" if isinstance(value, float) else str(value) for value in row))
    return table


def _drift(booster: Booster, data: str, target: str | None) -> Table:
    found = booster.drift(data, target)
    shown = found if len(found) <= SHOWN else found.iloc[:SHOWN]
    of = f"{len(shown)} of {len(found)}" if len(shown) < len(found) else str(len(found))
    title = f"Drift of {found.attrs['rows']:,} rows from the {found.attrs['rows_before']:,} it learned from last ({of})"
    table = _table(title, "", "drift", "psi", "chance", "distance", "missing", "new")
    for row in shown.itertuples(index=False):
        missing = f"{row.missing_before:.3f} → {row.missing:.3f}"
        new = row.outside if row.unseen != row.unseen else row.unseen  # fraction of new values, or of new levels
        numbers = (f"{value:.3f}" for value in (row.psi, row.chance, row.distance))
        table.add_row(row.name, row.drift, *numbers, missing, f"{new:.3f}")
    return table


def _outline(ensemble: Ensemble) -> Table:
    table = _table("Model", "", "")
    per_iteration = f" of {ensemble.n_outputs} trees each" if ensemble.n_outputs > 1 else ""
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
    table.add_row("first score", ", ".join(f"{score:.6g}" for score in ensemble.baseline))
    return table


def _parameters(ensemble: Ensemble) -> Table:
    table = _table("Parameters", "", "")
    for name, value in ensemble.parameters.items():
        table.add_row(name, json.dumps(value, ensure_ascii=False))
    return table


def _metrics(ensemble: Ensemble) -> Table:
    table = _table("Metrics", "", "first", "last kept", "last")
    kept = ensemble.best_iteration or ensemble.n_iterations
    for name, values in ensemble.metrics.items():
        if values:
            table.add_row(name, *(f"{values[i]:.6g}" for i in (0, min(kept, len(values)) - 1, -1)))
    return table


def _sources(ensemble: Ensemble) -> Table:
    first = ("label", "rows", "first_iteration", "last_iteration")
    found = [key for source in ensemble.sources for key in source if key not in (*first, "parameters", "summary")]
    keys = dict.fromkeys([*first, *found])
    table = _table("Learned from", *(key.replace("_", " ") for key in keys))
    for source in ensemble.sources:
        table.add_row(*(_shown(source[key]) if key in source else "" for key in keys))
    return table


def _features(ensemble: Ensemble) -> Table:
    of_splits = [tree.feature[tree.feature >= 0] for tree in ensemble.trees]
    splits = np.bincount(np.concatenate([np.empty(0, np.int64), *of_splits]), minlength=len(ensemble.features)).tolist()
    order = sorted(range(len(splits)), key=lambda j: -splits[j])
    title = "Features" if len(order) <= SHOWN else f"Features (the {SHOWN} with most splits, of {len(order)})"
    table = _table(title, "", "kind", "splits")
    for j in order[:SHOWN]:
        feature = ensemble.features[j]
        kind = "numeric" if feature.categories is None else f"categorical, {len(feature.categories)} levels"
        table.add_row(feature.name, kind, str(splits[j]))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=any(columns))
    for i, column in enumerate(columns):
        is_text = i == 0 or column in ("", "kind")
        table.add_column(column, overflow="fold", justify="left" if is_text else "right")
    return table


def _shown(value: Any) -> str:
    """Format a value: a loss as ``name (other keys)``, a digest by its first characters."""
    if isinstance(value, dict) and "name" in value:
        rest = ", ".join(f"{key} = {value[key]}" for key in value if key != "name")
        return f"{value['name']} ({rest})" if rest else str(value["name"])
    if isinstance(value, str):
        return value[:12] + "…" if len(value) == 64 else value
    return "–" if value is None else json.dumps(value, ensure_ascii=False)
