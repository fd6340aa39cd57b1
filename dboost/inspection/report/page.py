"""The report: what the model is, how it was trained, how good it is, what matters and how.

Sections are functions from a `ReportContext` (the model, and rows if there are any) to HTML; a section that has nothing to say
is left out, and says so where a reader would look for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost._lazy_import import pd
from dboost.errors import ParameterError
from dboost.inspection.evaluated_rows import EvaluatedRows
from dboost.inspection.plots import canvas
from dboost.inspection.report import style as look
from dboost.inspection.row_functions import Block, sample
from dboost.session.reference_sample import summary_of
from dboost.storage import atomic_write as files

if TYPE_CHECKING:
    from dboost.inspection.plot_methods import Drawing

#: Rows that dependence, Shapley values and interactions are shown on.
ROWS = 2000
#: Features whose dependence is drawn, features that are searched for pairs, and classes that are judged one by one.
SHOWN, SEARCHED, CLASSES = 6, 6, 4
#: Rows of the table of drift.
SHOWN_DRIFT = 10
#: A pair that does less than this of its work together is not worth a picture.
NOTABLE = 0.1


@dataclass(frozen=True, eq=False)
class ReportContext:
    """What the report is about: a model and, if there are any, rows, what their target is, and what they count for."""

    booster: Drawing
    data: Any
    target: Any
    weight: Any = None

    @cached_property
    def rows(self) -> Block | None:
        """A sample of the data."""
        return None if self.data is None else sample(self.data, self.booster.ensemble, ROWS, self.weight)[1]

    @cached_property
    def truth(self) -> EvaluatedRows | None:
        return None if self.target is None else EvaluatedRows(self.booster.ensemble, self.data, self.target, self.weight)

    @cached_property
    def important(self) -> list[str]:
        """Features that any tree asks about, the most important first."""
        importance = self.booster.importance()
        return [str(name) for name in importance.index[importance > 0]]


def write(booster: Drawing, path: str | os.PathLike[str], data: Any, target: Any, weight: Any = None) -> None:
    """See `dboost.inspection.plot_methods.Drawing.report`."""
    for what, value in (("a target needs", target), ("weights need", weight)):
        if value is not None and data is None:
            raise ParameterError(f"{what} rows: pass data=… too")
    files.write_whole(path, page(ReportContext(booster, data, target, weight)).encode())


def page(subject: ReportContext) -> str:
    """The report as HTML."""
    sections: list[Callable[[ReportContext], str]] = [
        _head,
        _training,
        _quality,
        _drift,
        _importance,
        _dependence,
        _trees,
        _details,
    ]
    with canvas.aside():
        body = "\n".join(section(subject) for section in sections)
    title = escape(_title(subject))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{look.STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _title(subject: ReportContext) -> str:
    ensemble = subject.booster.ensemble
    kind = "regression" if ensemble.classes is None else f"classification, {len(ensemble.classes)} classes"
    return f"A dboost model: {kind}"


def _head(subject: ReportContext) -> str:
    ensemble = subject.booster.ensemble
    leaves = [tree.n_leaves for tree in ensemble.trees]
    rest = ", ".join(f"{key} = {value}" for key, value in ensemble.loss.items() if key not in ("name", "n_classes"))
    items: list[tuple[str, Any]] = [("loss", f"{ensemble.loss['name']}{f' ({rest})' if rest else ''}".replace("_", " "))]
    if ensemble.classes is not None:
        names = [str(name) for name in ensemble.classes]
        items.append(("classes", ", ".join(names[:6]) + ("" if len(names) <= 6 else f" and {len(names) - 6} more")))
    items += [
        ("features", _used(len(subject.important), len(ensemble.features))),
        ("iterations", ensemble.n_iterations),
        ("leaves per tree", f"{np.mean(leaves):.1f} on average" if leaves else "–"),
        ("learned from", " + ".join(look.words(source["rows"]) for source in ensemble.sources if "rows" in source) + " rows"),
    ]
    if ensemble.best_iteration is not None:
        items.insert(-2, ("best iteration", ensemble.best_iteration))
    return f"<header><h1>{escape(_title(subject))}</h1>{look.facts(items)}</header>"


_NO_TIMES = (
    "A model’s file holds no times: they are in <code>booster.history</code> of the process that trained it, and beside the "
    "file when it is saved with <code>history=True</code>."
)


def _used(n_used: int, n: int) -> str:
    return f"{n}, all used" if n_used == n else f"{n}, of which {n_used} used"


def _training(subject: ReportContext) -> str:
    booster = subject.booster
    history = booster.history
    known: list[tuple[str, Any]] = []
    seconds = [column for column in history.columns if column.startswith("seconds")]
    for column in seconds:
        what = column.removeprefix("seconds").replace("_", " ").strip()
        known.append((f"seconds, {what}" if what else "seconds in iterations", float(history[column].sum())))
    if "bytes_read" in history and history["bytes_read"].sum() > 0:
        known.append(("read from disk", look.megabytes(float(history["bytes_read"].sum()))))
    if "rows_kept" in history and len(history):
        known.append(("rows in the last iteration", int(history["rows_kept"].iloc[-1])))
    known += [
        (f"seconds to {phase.replace('_', ' ')}", float(value)) for phase, value in getattr(booster, "timings", {}).items()
    ]
    parts = ["<section><h2>How it was trained</h2>"]
    if known:
        parts.append(look.facts(known))
    else:
        parts.append(f'<p class="note">{_NO_TIMES}</p>')
    metrics = _metrics(subject)
    if len(metrics):
        parts.append(f'<div class="pictures">{look.picture(booster.plot_history())}</div>')
        parts.append(look.table(metrics))
    return "".join([*parts, "</section>"])


def _metrics(subject: ReportContext) -> pd.DataFrame:
    """First, kept and last value of each metric of the history."""
    ensemble = subject.booster.ensemble
    kept = ensemble.best_iteration or ensemble.n_iterations
    rows = []
    for name, values in ensemble.metrics.items():
        known = [value for value in values if value == value]  # what is watched now may not have been from the beginning
        if known:
            last = values[min(kept, len(values)) - 1]
            rows.append({"metric": name.replace("_", " "), "first": known[0], "kept": last, "last": values[-1]})
    return pd.DataFrame(rows)


def _quality(subject: ReportContext) -> str:
    truth, booster = subject.truth, subject.booster
    if truth is None:
        hint = "<p class=note>Nothing is known about rows beyond training: pass <code>data</code> and <code>target</code>.</p>"
        return f"<section><h2>How good it is</h2>{hint}</section>"
    from dboost.inspection.plots import quality

    found = pd.DataFrame([{"metric": name.replace("_", " "), "value": value} for name, value in truth.metrics().items()])
    pictures = []
    classes = booster.ensemble.classes
    if classes is None:
        name = subject.target if isinstance(subject.target, str) else "the target"
        pictures.append(look.picture(quality.draw_residuals(*truth.numbers(), name, None)))
    else:
        judged = classes[-1:] if len(classes) == 2 else classes[:CLASSES]
        for one in judged:
            is_one, probability, _ = truth.of_class(one)
            pictures.append(look.picture(quality.draw_calibration(is_one, probability, truth.weight, str(one), 10, None)))
            pictures.append(look.picture(quality.draw_lift(is_one, probability, truth.weight, str(one), None)))
    weighted = "" if truth.weight is None else ", weighted"
    rows = f"<p>On {len(truth.target):,} rows that were handed in for this report{weighted}.</p>"
    return f'<section><h2>How good it is</h2>{rows}{look.table(found)}<div class="pictures">{"".join(pictures)}</div></section>'


def _drift(subject: ReportContext) -> str:
    booster = subject.booster
    if subject.data is None or summary_of(booster.ensemble) is None:
        return ""
    found = booster.drift(subject.data)
    text = (
        f"How far {found.attrs['rows']:,} rows are from the {found.attrs['rows_before']:,} that the model learned from last: "
        "the population stability index, and what it may be by chance. From 0.1 above that drift is moderate, from 0.25 strong."
    )
    shown = found.head(SHOWN_DRIFT).drop(columns="what").rename(columns=lambda name: name.replace("_", " "))
    return f"<section><h2>Whether these rows look like those it knows</h2><p>{text}</p>{look.table(shown)}</section>"


def _importance(subject: ReportContext) -> str:
    booster = subject.booster
    if not subject.important:
        return "<section><h2>What matters</h2><p>Nothing: no tree has a split.</p></section>"
    pictures = [look.picture(booster.plot_importance(max_features=15))]
    if booster.ensemble.n_outputs > 1:
        pictures.append(look.picture(booster.plot_importance(per_class=True, max_features=15)))
    if subject.rows is not None:
        pictures.append(look.picture(booster.plot_shap_summary(subject.rows, max_features=12)))
    text = "<p>Friedman’s relative importance: the root of the mean squared-error improvement by a feature’s splits.</p>"
    return f'<section><h2>What matters</h2>{text}<div class="pictures">{"".join(pictures)}</div></section>'


def _dependence(subject: ReportContext) -> str:
    booster, rows = subject.booster, subject.rows
    if not subject.important:
        return ""
    scale = "raw" if booster.ensemble.classes is None or rows is None else "prediction"
    drawn = [
        look.picture(booster.plot_partial_dependence(name, rows, scale=scale, grid=40)) for name in subject.important[:SHOWN]
    ]
    how = (
        f"The mean prediction over {len(rows):,} rows when a feature is set to a value; short lines are its deciles."
        if rows is not None
        else "What the trees say of a feature’s value, the other features averaged over the training rows."
    )
    parts = [f'<p>{how}</p><div class="pictures">{"".join(drawn)}</div>']
    if rows is not None and len(subject.important) > 1:
        pairs = booster.interaction_strength(rows, subject.important[:SEARCHED], max_rows=300)
        parts.append("<h2>What acts together</h2><p>Friedman’s H: how much of what two features do, they only do together.</p>")
        parts.append(look.table(pairs.head(8).rename(columns={"feature_1": "feature", "feature_2": "and", "h": "H"})))
        top = pairs.iloc[0]
        if top["h"] >= NOTABLE:
            pair = [top["feature_1"], top["feature_2"]]
            drawn_pair = look.picture(booster.plot_partial_dependence(pair, scale="raw"))
            parts.append(f'<div class="pictures">{drawn_pair}</div>')
    return f"<section><h2>How predictions depend on it</h2>{''.join(parts)}</section>"


def _trees(subject: ReportContext) -> str:
    trees = subject.booster.ensemble.trees
    if not trees or trees[0].n_leaves < 2:
        return ""
    return (
        "<section><h2>The first tree</h2>"
        f'<div class="pictures">{look.picture(subject.booster.plot_tree(0), wide=trees[0].n_leaves > 4)}</div></section>'
    )


def _details(subject: ReportContext) -> str:
    ensemble = subject.booster.ensemble
    parameters = pd.DataFrame(
        {"parameter": list(ensemble.parameters), "value": [look.words(v) for v in ensemble.parameters.values()]}
    )
    splits = subject.booster.importance("count")
    every = subject.booster.importance().rename("importance").to_frame().assign(splits=splits * splits.attrs["unit"] / 100)
    every["kind"] = [_kind(ensemble.features, name) for name in every.index]
    every["splits"] = every["splits"].round().astype(int)
    parts = [
        f"<details><summary>Parameters</summary>{look.table(parameters)}</details>",
        f"<details><summary>All features</summary>{look.table(every.reset_index())}</details>",
    ]
    if ensemble.sources:
        shown = [{k: v for k, v in source.items() if not isinstance(v, dict)} for source in ensemble.sources]
        parts.append(f"<details><summary>Data it learned from</summary>{look.table(pd.DataFrame(shown))}</details>")
    digest = (
        f'<p class="note">Digest of what was learned: <code>{escape(str(getattr(subject.booster, "sha256", "–")))}</code></p>'
    )
    return f"<section><h2>Details</h2>{''.join(parts)}{digest}</section>"


def _kind(features: tuple[Any, ...], name: str) -> str:
    levels = next(feature.levels for feature in features if feature.name == name)
    return "numeric" if levels is None else f"categorical, {len(levels)} levels"
