"""Content of the report and of the card: each section is a function from a `ReportContext` to what its template shows.

A section without content is None and is omitted from the page.

Plots are SVG elements of the page. Colors in matplotlib's SVG become variables of the page's style sheet, so that one drawing
serves light and dark color schemes. Ids get a prefix, so that drawings on one page do not use each other's definitions.

The model card has statements of the author, a summary of the training data, and caveats that the model implies; metrics and
parameters are other sections of the same page. The summary is the one that the model contains, of a sample of its
training rows (`model.data_summary`).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from html import escape
from io import StringIO
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from dask.utils import format_bytes
from jinja2 import Environment, PackageLoader, StrictUndefined

from dboost import display
from dboost._lazy_import import pd
from dboost.data.columns.labels import Names
from dboost.errors import InputTypeError, ParameterError
from dboost.files.atomic_write import write_whole
from dboost.inspection.importance import importance
from dboost.inspection.plots import canvas, effects, performance
from dboost.inspection.row_functions import NO_ROLES, Block, EvaluatedRows, ScoringRoles, rows_with_roles, sample
from dboost.inspection.shapley import has_counts
from dboost.model.data_summary import Distribution, LevelDistribution, NumberDistribution, Summary
from dboost.model.ensemble import Ensemble
from dboost.session.reference_sample import summary_of

#: Largest number of features in the table.
MAX_FEATURES = 100
#: A caveat is stated if a feature misses more than this share of its values …
MUCH_MISSING = 0.5
#: … if its splits have more than this percentage of the gain …
DOMINANT = 80.0
#: … or if a class has less than this share of the rows.
RARE = 0.05


def checked_card(card: Any) -> dict[str, str]:
    """Return the statements of the author.

    Raises
    ------
    InputTypeError
        If they are not texts by heading.
    """
    if not isinstance(card, Mapping) or not all(isinstance(text, str) for item in card.items() for text in item):
        raise InputTypeError("card must be texts by heading, such as {'Intended use': '…', 'Limitations': '…'}")
    return dict(card)


def content(ensemble: Ensemble, card: Mapping[str, str], *, is_evaluated: bool) -> dict[str, Any]:
    """Return the content of the section. is_evaluated : whether the page has metrics of rows that were given for it."""
    summary = summary_of(ensemble)
    return {
        "statements": [(heading, text.split("\n\n")) for heading, text in card.items()],
        "features": None if summary is None else features_table(ensemble, summary),
        "n_sampled": None if summary is None else _n_rows(summary.target),
        "n_omitted": max(len(ensemble.features) - MAX_FEATURES, 0),
        "caveats": caveats(ensemble, summary, is_evaluated=is_evaluated),
    }


def features_table(ensemble: Ensemble, summary: Summary) -> pd.DataFrame:
    """Return one row per feature: kind, share of missing values, smallest and largest value or number of categories."""
    rows = []
    for feature, known in zip(ensemble.features[:MAX_FEATURES], summary.features[:MAX_FEATURES], strict=True):
        kind = "numeric" if feature.categories is None else f"categorical, {len(feature.categories)} levels"
        missing = f"{100 * known.missing / max(_n_rows(known), 1):.1f} %"
        low, high = (known.low, known.high) if isinstance(known, NumberDistribution) else (math.nan, math.nan)
        rows.append({"feature": feature.name, "kind": kind, "missing": missing, "smallest": low, "largest": high})
    return pd.DataFrame(rows, columns=["feature", "kind", "missing", "smallest", "largest"])


def caveats(ensemble: Ensemble, summary: Summary | None, *, is_evaluated: bool) -> list[str]:
    """Return what a user of the model should know, one sentence each."""
    notes = []
    if not is_evaluated and not any(name != "train_loss" for name in ensemble.metrics):
        notes.append("All metrics are those of the training rows: the error on other rows is not known.")
    if ensemble.best_iteration is not None and not is_evaluated:
        notes.append("Early stopping selected the number of iterations by an evaluation set, whose metrics are optimistic.")
    if len(ensemble.sources) > 1:
        notes.append(
            f"The model was trained on {len(ensemble.sources)} data sets, one after another; the summary is of the last."
        )
    gain = importance(ensemble, "gain")
    if len(gain) > 1 and gain.sum() > 0 and 100 * gain.iloc[0] / gain.sum() > DOMINANT:
        share = 100 * gain.iloc[0] / gain.sum()
        notes.append(f"The feature {gain.index[0]} has {share:.0f} % of the gain: check that it is known before the target is.")
    if summary is None:
        return [*notes, "The model contains no summary of its training data."]
    for feature, known in zip(ensemble.features, summary.features, strict=True):
        if known.missing > MUCH_MISSING * _n_rows(known):
            notes.append(f"The feature {feature.name} is missing in {100 * known.missing / _n_rows(known):.0f} % of the rows.")
    if ensemble.classes is not None and isinstance(summary.target, LevelDistribution):
        shares = dict.fromkeys(range(len(ensemble.classes)), 0.0)
        for code, count in zip(summary.target.codes.tolist(), summary.target.counts.tolist(), strict=False):
            shares[code] = count / max(_n_rows(summary.target), 1)
        rare = [f"{ensemble.classes[code]} ({100 * share:.1f} %)" for code, share in shares.items() if share < RARE]
        if rare:
            notes.append(f"Few rows belong to the class {' and to the class '.join(rare)}: prefer metrics that consider it.")
    return [
        *notes,
        "The model file contains the summary below: quantiles, extremes and frequent categories of the training rows.",
    ]


def _n_rows(known: Distribution) -> int:
    return int(known.counts.sum()) + known.missing


#: Rows for dependence, Shapley values and interactions.
MAX_ROWS = 2000
#: Rows of the background of Shapley values, for a model without counts.
N_BACKGROUND = 100
#: Features with a plot of their dependence, features whose pairs are tested for interaction, classes with a calibration plot.
N_DEPENDENCE, N_INTERACTION, N_CLASSES = 6, 6, 4
#: Points of a plot of dependence; of a categorical feature, whose plot has a line for each, so many that it fits beside others.
N_POINTS, N_LEVELS = 40, 20
#: Rows of the table of drift.
N_DRIFT = 10
#: Largest number of leaves of a tree that is drawn: drawing takes time for each, as reading does.
MAX_LEAVES = 128
#: The strongest pair is plotted if its H statistic is at least this.
NOTABLE_INTERACTION = 0.1
#: Headings of the sections; those of `ALWAYS` say so if there is nothing to show, the others are omitted.
HEADINGS = {
    "model_card": "Model card", "training": "How it was trained", "quality": "How good it is",
    "drift": "Whether these rows look like the training rows", "importance": "What matters",
    "dependence": "How predictions depend on it", "first_tree": "The first tree", "details": "Details",
}  # fmt: skip
ALWAYS = {"training", "quality", "importance", "details"}
#: Features on the card.
N_CARD = 5


@dataclass(frozen=True, eq=False)
class ReportContext:
    """Input of the report: a `Booster` and optionally rows with their roles."""

    booster: Any
    data: Any
    target: Any
    roles: ScoringRoles = NO_ROLES
    #: Statements of the author by heading; None for a report without a model card.
    card: dict[str, str] | None = None
    #: A sample of the data, and the data with their target. They are read at once and not when they are needed: in Python 3.11
    #: one thread at a time computes a cached property, and those that wait, in tasks of a cluster, would occupy the threads
    #: that read the data.
    rows: Block | None = field(init=False)
    evaluated: EvaluatedRows | None = field(init=False)

    def __post_init__(self) -> None:
        rows = None if self.data is None else sample(self.data, self.ensemble, MAX_ROWS, self.roles)[1]
        object.__setattr__(self, "rows", rows)
        evaluated = None if self.target is None else EvaluatedRows(self.ensemble, self.data, self.target, *self.roles)
        object.__setattr__(self, "evaluated", evaluated)

    @property
    def ensemble(self) -> Ensemble:
        return self.booster.ensemble

    @cached_property
    def has_counts(self) -> bool:
        """Whether the model contains the numbers of training rows in its nodes."""
        return has_counts(self.ensemble)

    @property
    def target_name(self) -> str | None:
        """Name of the target's column, if the target was given by one: a model does not contain it."""
        return str(self.target) if Names(()).is_label(self.target) else None

    @cached_property
    def important(self) -> list[str]:
        """Features with splits, the most important first."""
        percent = importance(self.ensemble)
        return [str(name) for name in percent.index[percent > 0]]


class ReportTable(NamedTuple):
    """Content of an HTML table; columns of numbers are aligned right."""

    names: list[str]
    is_number: list[bool]
    rows: list[tuple[Any, ...]]


def write(
    booster: Any, path: str | os.PathLike[str], data: Any, target: Any, roles: ScoringRoles = NO_ROLES, card: Any = None
) -> None:
    """Write the report; `Booster.report` documents it."""
    needs = (("a target needs", target), ("weights need", roles.sample_weight), ("offsets need", roles.offset))
    for subject, value in needs:
        if value is not None and data is None:
            raise ParameterError(f"{subject} rows: pass data=… too")
    statements = None if card is None else checked_card(card)
    data = rows_with_roles(data, booster.ensemble, roles, target)
    write_whole(path, page(ReportContext(booster, data, target, roles, statements)).encode())


def page(context: ReportContext) -> str:
    """Return the report as HTML."""
    with canvas.detached():
        sections = {
            "summary": _summary(context),
            "model_card": _model_card(context),
            "training": _training(context),
            "quality": _quality(context),
            "drift": _drift(context),
            "importance": _importance(context),
            "dependence": _dependence(context),
            "first_tree": _first_tree(context),
            "details": _details(context),
        }
    return (
        _templates()
        .get_template("report.html.jinja")
        .render(
            title=_title(context),
            headings=HEADINGS,
            contents=[(name, heading) for name, heading in HEADINGS.items() if name in ALWAYS or sections[name]],
            **sections,
        )
    )


def card(ensemble: Ensemble) -> str:
    """Return a small summary as HTML for notebooks, without a style sheet that could change the notebook's own style."""
    kept = ensemble.best_iteration or ensemble.n_iterations
    percent = importance(ensemble)
    return (
        _templates()
        .get_template("card.html.jinja")
        .render(
            loss=str(ensemble.loss["name"]).replace("_", " "),
            kind=ensemble.outputs.kind,
            n_iterations=ensemble.n_iterations,
            n_features=len(ensemble.features),
            n_sources=len(ensemble.sources),
            metrics=[
                (name.replace("_", " "), value)
                for name, value in (
                    display.as_read(column, float(values[min(kept, len(values)) - 1]), str(ensemble.loss["name"]))
                    for column, values in ensemble.metrics.items()
                    if values
                )
            ],
            importance=[(display.cut(str(name)), value) for name, value in percent[percent > 0].head(N_CARD).items()],
        )
    )


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("dboost.inspection", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shown"] = shown
    environment.filters["cut"] = lambda name: display.cut(str(name), 28)
    return environment


def shown(value: Any) -> str:
    """Format a value of a table or a list."""
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}".replace("-", "−")
    if isinstance(value, float | np.floating):
        return _alike([float(value)])[0]
    return str(value)


def _alike(values: Sequence[float]) -> list[str]:
    """Format the numbers of a column that are compared with each other."""
    return [
        "–" if value != value else text.replace("-", "−") for value, text in zip(values, display.numbers(values), strict=True)
    ]


def _each(values: Sequence[float]) -> list[str]:
    """Format the numbers of a column that are not compared, such as different metrics."""
    return list(map(shown, values))


def _as_values(values: Sequence[float]) -> list[str]:
    """Format values of features: they may be years."""
    return ["–" if value != value else canvas.value(value) for value in values]


def _table(frame: pd.DataFrame, write: Callable[[Sequence[float]], list[str]] = _alike) -> ReportTable:
    """Return a frame as the content of a table. write : formats a column of floats."""
    is_number = [bool(pd.api.types.is_numeric_dtype(column)) for _, column in frame.items()]
    columns = [
        write(column.tolist()) if pd.api.types.is_float_dtype(column) else column.tolist() for _, column in frame.items()
    ]
    return ReportTable([str(name) for name in frame.columns], is_number, list(zip(*columns, strict=True)))


def _halves(table: ReportTable) -> list[ReportTable]:
    """Return a table of at most three columns as two, which stand side by side on a wide page."""
    if len(table.names) > 3:
        return [table]
    middle = -(-len(table.rows) // 2)
    return [table._replace(rows=rows) for rows in (table.rows[:middle], table.rows[middle:]) if rows]


def _setting(value: Any) -> str:
    """Format a parameter, whose digits matter."""
    return display.number(value) if isinstance(value, float) else shown(value)


def _title(context: ReportContext) -> str:
    target_text = "" if context.target_name is None else f" of {context.target_name}"
    return f"A dboost model: {context.ensemble.outputs.kind}{target_text}"


def _summary(context: ReportContext) -> list[tuple[str, Any]]:
    ensemble = context.ensemble
    leaves = [tree.n_leaves for tree in ensemble.trees]
    options = ", ".join(f"{key} = {value}" for key, value in ensemble.loss.items() if key not in ("name", "n_classes"))
    facts: list[tuple[str, Any]] = [("loss", f"{ensemble.loss['name']}{f' ({options})' if options else ''}".replace("_", " "))]
    if ensemble.classes is not None:
        names = [str(name) for name in ensemble.classes]
        facts.append(("classes", ", ".join(names[:6]) + ("" if len(names) <= 6 else f" and {len(names) - 6} more")))
    n, n_used = len(ensemble.features), len(context.important)
    facts.append(("features", f"{n}, all used" if n_used == n else f"{n}, of which {n_used} used"))
    if ensemble.best_iteration is not None:
        facts.append(("best iteration" + " of the search" * (ensemble.search is not None), ensemble.best_iteration))
    n_rows = " + ".join(shown(source["rows"]) for source in ensemble.sources if "rows" in source)
    return [
        *facts,
        ("iterations", ensemble.n_iterations),
        ("leaves per tree", f"{np.mean(leaves):.1f} on average" if leaves else "–"),
        ("learned from", f"{n_rows} rows"),
    ]


def _model_card(context: ReportContext) -> dict[str, Any] | None:
    if context.card is None:
        return None
    card = content(context.ensemble, context.card, is_evaluated=context.target is not None)
    return card | {"features": None if card["features"] is None else _table(card["features"], _as_values)}


def _training(context: ReportContext) -> dict[str, Any]:
    booster, history = context.booster, context.booster.history
    facts: list[tuple[str, Any]] = []
    for column in history.columns:
        if column.startswith("seconds") and column not in context.ensemble.metrics:
            part = column.removeprefix("seconds").replace("_", " ").strip()
            facts.append((f"seconds, {part}" if part else "seconds in iterations", float(history[column].sum())))
    if "bytes_read" in history and history["bytes_read"].sum() > 0:
        facts.append(("read from disk", format_bytes(int(history["bytes_read"].sum()))))
    if "rows_kept" in history and len(history):
        facts.append(("rows in the last iteration", int(history["rows_kept"].iloc[-1])))
    facts += [(f"seconds to {phase.replace('_', ' ')}", float(value)) for phase, value in booster.timings.items()]
    metrics = _metrics(context.ensemble)
    return {
        "facts": facts,
        "figures": [embed(booster.plot_history())] if metrics else [],
        "metrics": metrics,
    }


def _metrics(ensemble: Ensemble) -> ReportTable | None:
    """First, kept and last value of each metric, or None without one."""
    kept = ensemble.best_iteration or ensemble.n_iterations
    rows = []
    for column, values in ensemble.metrics.items():
        known = [value for value in values if value == value]  # NaN before an evaluation set was first used
        if known:
            three = np.array([known[0], values[min(kept, len(values)) - 1], values[-1]])
            name, (first, last_kept, last) = display.as_read(column, three, str(ensemble.loss["name"]))
            rows.append((name.replace("_", " "), *_alike([first, last_kept, last])))
    return ReportTable(["metric", "first", "kept", "last"], [False, True, True, True], rows) if rows else None


def _quality(context: ReportContext) -> dict[str, Any] | None:
    rows = context.evaluated
    if rows is None:
        return None
    figures: list[Figure] = []
    classes = context.ensemble.classes
    if classes is None and context.ensemble.outputs.prediction_columns is None:
        figures.append(embed(performance.draw_residuals(rows, context.target, None)))
    elif classes is not None:
        figures.append(embed(performance.draw_confusion(rows, None)))
        labels = classes[-1:] if len(classes) == 2 else classes[:N_CLASSES]
        figures.append(embed(performance.draw_roc(rows, labels, None)))
        figures.append(embed(performance.draw_precision_recall(rows, labels, None)))
        for label in labels:
            figures.append(embed(performance.draw_calibration(rows, label, 10, None)))
            figures.append(embed(performance.draw_lift(rows, label, None)))
    metrics = pd.DataFrame([{"metric": name.replace("_", " "), "value": value} for name, value in rows.metrics().items()])
    return {
        "n_rows": len(rows.target),
        "is_weighted": rows.weight is not None,
        "metrics": _table(metrics, _each),
        "figures": figures,
    }


def _drift(context: ReportContext) -> dict[str, Any] | None:
    if context.data is None or summary_of(context.ensemble) is None:
        return None
    drift = context.booster.drift(context.data)
    frame = drift.head(N_DRIFT).drop(columns="what").rename(columns=lambda name: name.replace("_", " "))
    return {"n_rows": drift.attrs["rows"], "n_rows_before": drift.attrs["rows_before"], "table": _table(frame)}


def _importance(context: ReportContext) -> list[Figure]:
    booster = context.booster
    if not context.important:
        return []
    figures = [embed(booster.plot_importance(max_features=15))]
    if context.ensemble.classes is not None and context.ensemble.n_outputs > 1:
        figures.append(embed(booster.plot_importance(per_class=True, max_features=15)))
    if context.rows is not None:
        background = None if context.has_counts else sample(context.data, context.ensemble, N_BACKGROUND)[1]
        figures.append(embed(booster.plot_shap_summary(context.rows, background=background, max_features=12)))
    return figures


def _dependence(context: ReportContext) -> dict[str, Any] | None:
    booster, rows = context.booster, context.rows
    if not context.important or (rows is None and not context.has_counts):
        return None
    scale = "raw" if context.ensemble.classes is None or rows is None else "prediction"
    names = context.important[:N_DEPENDENCE]
    numeric = {feature.name for feature in context.ensemble.features if feature.categories is None}
    points = [N_POINTS if name in numeric else N_LEVELS for name in names]
    drawn = [booster.plot_partial_dependence(rows, name, scale=scale, grid=n) for name, n in zip(names, points, strict=True)]
    effects.share_values(drawn, [name in numeric for name in names])
    figures = list(map(embed, drawn))
    content: dict[str, Any] = {"figures": figures, "n_rows": None if rows is None else len(rows), "pairs": None}
    if rows is not None and context.has_counts and len(context.important) > 1:
        pairs = booster.interaction_strength(rows, context.important[:N_INTERACTION], max_rows=300)
        strongest = pairs.iloc[0]
        content["pairs"] = _halves(_table(pairs.head(8).rename(columns={"feature_1": "feature", "feature_2": "and", "h": "H"})))
        content["pair_figures"] = []
        if strongest["h"] >= NOTABLE_INTERACTION:
            pair = [strongest["feature_1"], strongest["feature_2"]]
            content["pair_figures"] = [embed(booster.plot_partial_dependence(features=pair, scale="raw"))]
    return content


def _first_tree(context: ReportContext) -> dict[str, Any] | None:
    trees = context.ensemble.trees
    if not trees or trees[0].n_leaves < 2:
        return None
    n_leaves = trees[0].n_leaves
    figures = [embed(context.booster.plot_tree(0), wide=n_leaves > 4)] if n_leaves <= MAX_LEAVES else []
    return {"n_leaves": n_leaves, "figures": figures}


def _details(context: ReportContext) -> dict[str, Any]:
    ensemble = context.ensemble
    parameters = pd.DataFrame(
        {"parameter": list(ensemble.parameters), "value": list(map(_setting, ensemble.parameters.values()))}
    )
    splits = importance(ensemble, "count")
    features = importance(ensemble).rename("importance").to_frame().assign(splits=splits * splits.attrs["unit"] / 100)
    levels = {feature.name: feature.categories for feature in ensemble.features}
    kinds = ["numeric" if (known := levels[name]) is None else f"categorical, {len(known)} levels" for name in features.index]
    features = features.assign(kind=kinds, splits=features["splits"].round().astype(int))
    sources = [{k: v for k, v in source.items() if not isinstance(v, dict)} for source in ensemble.sources]
    return {
        "parameters": _halves(_table(parameters)),
        "features": _table(features.reset_index()),
        "sources": _table(pd.DataFrame(sources), _each) if sources else None,
        "sha256": context.booster.sha256,
    }


#: Colors of the plots and the variables of the page's style sheet that replace them.
VARIABLES = {
    canvas.INK: "--ink", canvas.GREY: "--grey", canvas.FAINT: "--faint", "#ffffff": "--paper", canvas.BLUE: "--blue",
    canvas.VERMILION: "--vermilion", canvas.GREEN: "--green", canvas.PURPLE: "--purple", canvas.ORANGE: "--orange",
    canvas.SKY: "--sky",
}  # fmt: skip

#: Numbers of the drawings, for the prefixes of their ids.
_numbers = count()


class Figure(NamedTuple):
    """An SVG element, and whether it spans all columns of the page."""

    svg: str
    is_wide: bool


def embed(drawn: Any, *, wide: bool = False) -> Figure:
    """Convert a plot to an SVG element in the page's colors.

    Parameters
    ----------
    drawn : axes, or an array of them
        Their titles become the element's label for screen readers.
    wide : bool, default False
        Let the figure span all columns of the page, as figures with three columns of panels do.
    """
    axes = np.ravel(drawn)
    wide = wide or axes[0].get_subplotspec().get_gridspec().ncols > 2
    label = canvas.unescaped("; ".join(dict.fromkeys(ax.get_title(loc="left").replace("\n", " ") for ax in axes)))
    file = StringIO()
    with canvas.style():
        axes[0].figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Ids of images are digests of their content: equal images would have equal ids, which nothing refers to.
    svg = re.sub(r'(<image [^>]*?) id="[^"]*"', r"\1", svg)
    prefix = f"d{next(_numbers)}-"
    svg = re.sub(r"<[^>]*>", lambda tag: _adapted(tag[0], prefix), svg)  # text between tags stays as it is
    head, rest = svg.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    if wide:  # narrower pages scroll, so that its texts stay legible
        head += f' style="min-width: {80 * axes[0].figure.get_figwidth():.0f}px"'
    return Figure(f'{head} role="img" aria-label="{escape(label)}">{rest.strip()}', wide)


def _adapted(tag: str, prefix: str) -> str:
    """A tag with the page's color variables, its ids and references prefixed."""
    for color, variable in VARIABLES.items():
        tag = tag.replace(f": {color}", f": var({variable})")
    tag = re.sub(r'\bid="', f'id="{prefix}', tag)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", tag)
