"""Texts of plots do not overlap and lie within the figure, and numbers are written alike, also of awkward data."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import Booster
from dboost.inspection.plots import canvas, performance
from dboost.inspection.row_functions import EvaluatedRows

matplotlib = pytest.importorskip("matplotlib")

LONG = "average_of_the_last_thirty_days_of_transactions_of_the_customer"
#: Scales of the target.
SCALES = {"huge": 1e9, "plain": 1.0, "tiny": 1e-8}


@cache
def frame(n: int = 500, seed: int = 0) -> pd.DataFrame:
    """Long names, 40 categories, signs of formulas, and features that are tiny, huge or negative; targets of several kinds."""
    rng = np.random.default_rng(seed)
    level, plan = rng.integers(0, 40, n), rng.integers(0, 3, n)
    tiny, huge, negative = rng.normal(size=n) * 1e-7, rng.lognormal(20, 2, n), -rng.gamma(2, 300, n)
    score = 4 * np.tanh(1e7 * tiny) + np.log(huge) + negative / 300 + level / 8 + plan + rng.normal(0, 0.5, n)
    levels = np.array([f"Category number {i:02d} of the northern region" if i % 3 else f"c{i}" for i in range(40)])
    plans = np.array(["<none>", "_gold", "a plan with a $long$ name"])
    return pd.DataFrame(
        {
            LONG: tiny, "huge": huge, "negative": np.where(rng.random(n) < 0.1, np.nan, negative), "level": levels[level],
            "$plan$": plans[plan], "score": score, "yes": np.where(score > np.median(score), "x, good customer & more", "no"),
            "grade": np.array(["the lowest grade", "3.5", "high"])[np.digitize(score, np.quantile(score, [0.3, 0.8]))],
            "rating": np.array([f"{LONG} {i:02d}" for i in range(14)])[rng.permutation(n) % 14],
        }
    )  # fmt: skip


FEATURES = [LONG, "huge", "negative", "level", "$plan$"]


@cache
def booster(target: str) -> Booster:
    """A model of a column, or of the score in another scale."""
    column = "score" if target in SCALES else target
    train, held_out = (data[[*FEATURES, column]].copy() for data in (frame(), frame(300, 1)))
    for data in (train, held_out):
        if target in SCALES:
            data["score"] *= SCALES[target]
    settings = {"eval_metric": ["rmse", "mae"]} if target in SCALES else {}
    return dboost.fit(train, column, max_iter=15, max_leaf_nodes=8, eval_set=held_out, progress=False, **settings)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


ROWS = frame(300, 2)[FEATURES]
DRAW: dict[str, Any] = {
    "importance": lambda b: b.plot_importance(),
    "history": lambda b: b.plot_history(),
    "tree": lambda b: b.plot_tree(),
    "summary": lambda b: b.plot_shap_summary(ROWS),
    "shapley of tiny numbers": lambda b: b.plot_shap_dependence(ROWS, LONG),
    "shapley of huge numbers": lambda b: b.plot_shap_dependence(ROWS, "huge"),
    "shapley of 40 categories": lambda b: b.plot_shap_dependence(ROWS, "level"),
    "waterfall": lambda b: b.plot_waterfall(ROWS, 5),
    "dependence on tiny numbers": lambda b: b.plot_partial_dependence(ROWS, LONG),
    "dependence on huge numbers": lambda b: b.plot_partial_dependence(ROWS, "huge", centered=True),
    "dependence on 40 categories": lambda b: b.plot_partial_dependence(ROWS, "level"),
    "predicted by category": lambda b: b.plot_partial_dependence(ROWS, "$plan$", scale="prediction"),
    "two numbers": lambda b: b.plot_partial_dependence(ROWS, ["huge", "negative"], grid=6),
    "number and category": lambda b: b.plot_partial_dependence(ROWS, ["huge", "level"]),
    "two categories": lambda b: b.plot_partial_dependence(ROWS, ["level", "$plan$"]),
    "rows on tiny numbers": lambda b: b.plot_partial_dependence(ROWS, LONG, "individual", max_rows=9),
    "long number and category": lambda b: b.plot_partial_dependence(ROWS, [LONG, "$plan$"]),
}
#: No ASCII minus, no exponent of a program, no signed zero, no long row of digits.
WRONG = re.compile(r"^-|\de[+-]?\d|^[−-]0(\.0*)?$|\d{5}|\d,\d{3},\d{3},")


@pytest.mark.fast_cells(8)
@pytest.mark.parametrize("target", [*SCALES, "yes", "grade", "rating"])
@pytest.mark.parametrize("plot", DRAW)
def test_texts_do_not_overlap_and_numbers_are_written_alike(plot: str, target: str) -> None:
    axes = np.ravel(DRAW[plot](booster(target)))
    figure = axes[0].figure
    figure.draw_without_rendering()
    texts = [text for text in texts_of(figure) if text.get_text() and text.get_visible()]
    boxes = [matplotlib.text.Text.get_window_extent(text) for text in texts]  # without the line to an annotation
    overlapping = [
        (a.get_text(), b.get_text())
        for (a, box), (b, other) in combinations(zip(texts, boxes, strict=True), 2)
        if min(box.x1, other.x1) - max(box.x0, other.x0) > 1 and min(box.y1, other.y1) - max(box.y0, other.y0) > 2
    ]
    assert overlapping == []
    outside = [
        text.get_text()
        for text, box in zip(texts, boxes, strict=True)
        if box.x0 < -1 or box.x1 > figure.bbox.x1 + 1 or box.y0 < -1 or box.y1 > figure.bbox.y1 + 1
    ]
    assert outside == []
    assert [text.get_text() for text in texts if WRONG.search(text.get_text())] == []


@pytest.mark.parametrize("target", ["yes", "grade", "rating"])
def test_names_of_classes_beside_confusion_matrices_stay_different(target: str) -> None:
    ax = performance.draw_confusion(EvaluatedRows(booster(target).ensemble, frame(300, 2), target), None)
    ax.figure.draw_without_rendering()
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert len(set(names)) == len(names) == len(ax.get_yticklabels())
    boxes = [text.get_window_extent() for text in texts_of(ax.figure) if text.get_text()]
    for box, other in combinations(boxes, 2):
        assert min(box.x1, other.x1) - max(box.x0, other.x0) <= 1 or min(box.y1, other.y1) - max(box.y0, other.y0) <= 2
    assert all(box.x0 >= -1 and box.y0 >= -1 for box in boxes)


def texts_of(figure: Any) -> Iterator[Any]:
    """The texts that are drawn; ticks outside the limits of an axis have labels that are not."""
    yield from figure.texts
    for ax in figure.axes:
        yield from (child for child in ax.get_children() if isinstance(child, matplotlib.text.Text))
        for legend in filter(None, [ax.get_legend()]):
            yield from (legend.get_title(), *legend.get_texts())
        for axis in (ax.xaxis, ax.yaxis) if ax.axison else ():
            yield axis.label
            low, high = sorted(axis.get_view_interval())
            slack = 1e-9 * (high - low)
            drawn = [tick for tick in axis.get_major_ticks() if low - slack <= tick.get_loc() <= high + slack]
            yield from (label for tick in drawn for label in (tick.label1, tick.label2))


def test_colors_of_low_and_high_values_are_equally_light() -> None:
    from matplotlib.colors import to_rgb

    linear = [[x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(c)] for c in canvas.LOW_TO_HIGH]
    luminance = np.array(linear) @ [0.2126, 0.7152, 0.0722]
    assert luminance == pytest.approx(luminance.mean(), rel=0.1)
    assert luminance[0] == pytest.approx(luminance[-1], rel=0.05)


@pytest.mark.parametrize(
    ("draw", "subjects"),
    [
        (lambda b, **how: b.plot_shap_summary(ROWS, **how), ("P(x, good customer & more)", "the prediction")),
        (lambda b, **how: b.plot_shap_dependence(ROWS, "huge", **how), ("P(x, good customer & more)", "the prediction")),
    ],
)
def test_titles_name_the_class(draw: Any, subjects: tuple[str, str]) -> None:
    assert draw(booster("yes")).get_title(loc="left").replace("\n", " ").endswith(subjects[0])
    assert draw(booster("plain")).get_title(loc="left").endswith(subjects[1])
    often = booster("grade").predict(ROWS).mode().iloc[0]
    assert f"P({often}), one of 3 classes" in draw(booster("grade")).get_title(loc="left")
    for name in ("high", "the lowest grade"):
        assert draw(booster("grade"), output=name).get_title(loc="left").endswith(f"P({name})")


def test_waterfalls_lead_to_the_prediction() -> None:
    probability = 100 * booster("yes").predict_proba(ROWS)["x, good customer & more"].iloc[5]
    title = booster("grade").plot_waterfall(ROWS, 5).get_title(loc="left")
    predicted = booster("grade").predict_proba(ROWS).iloc[5]
    assert title.startswith(f"P({predicted.idxmax()}) = ") and f"{100 * predicted.max():.1f} %" in title
    first, last = re.findall(r"([\d.]+) %", booster("yes").plot_waterfall(ROWS, 5).get_title(loc="left"))
    assert float(last) == pytest.approx(probability, abs=0.1) and len(first.partition(".")[2]) == len(last.partition(".")[2])


@pytest.mark.parametrize(
    ("values", "answers"),
    [
        ([1.0, 2.0, 3.0, 4.0], {"≤ 2.5", "> 2.5"}),
        ([1.0, 2.0, 3.0, np.nan], {"≤ 2.5", "> 2.5 or missing"}),
        (["a", "b", "c", "d"], {"a, b", "c, d"}),
        ([LONG, LONG, "d", None], {"average_of_…e_customer", "d or missing"}),
        ([*"abcdefgh"], {"a and 2 more", "others"}),
        ([*(f"{LONG} {i}" for i in range(3)), None, *"defgh"], {"3 categories or missing", "others"}),
    ],
)
def test_branches_of_trees_have_the_values_that_follow_them(values: list[Any], answers: set[str]) -> None:
    """Missing values are named only where training rows missed the feature."""
    rows = pd.DataFrame(
        {"a": values * 30, "y": np.repeat([0.0, 1.0], [len(values) - 5, 5] if len(values) > 4 else 2).tolist() * 30}
    )
    ax = dboost.fit(rows, "y", max_iter=1, max_leaf_nodes=2).plot_tree()
    assert answers <= {text.get_text() for text in ax.texts}


def test_names_of_categories_that_differ_in_the_middle_stay_different() -> None:
    ax = booster("plain").plot_partial_dependence(ROWS, "level")
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert len(set(labels)) == len(labels) == ROWS["level"].nunique()


def test_means_of_categories_are_ticks_with_names() -> None:
    rows = pd.DataFrame({"town": list("cabd") * 60, "x": np.arange(240.0)})
    effect = rows["town"].map({"a": 20_000, "b": -30_000, "c": 0, "d": 70_000})
    model = dboost.fit(rows.assign(y=effect + rows["x"]), "y", max_iter=5)
    ax = model.plot_shap_summary(rows)
    values = model.shap_values(rows)["town"].groupby(rows["town"]).mean()
    named = {text.get_text(): text.xy[0] for text in ax.texts}
    assert {"b", "d"} <= set(named) and all(named[name] == pytest.approx(values[name]) for name in named)


def test_dots_of_few_rows_are_on_the_lines_of_their_categories() -> None:
    """Also those of missing values; of many categories the most frequent ones are drawn, and the title says so."""
    towns = [None, *(f"town {i:02d}" for i in range(50) for _ in range(1 + i % 7))] * 3
    rows = pd.DataFrame({"town": towns, "x": np.arange(float(len(towns)))})
    model = dboost.fit(rows, rows["town"].isna() * 1000.0 + rows["x"], max_iter=5)
    ax = model.plot_shap_dependence(rows[::-1], "town")
    assert len(ax.get_yticklabels()) == 40 and "the 40 most frequent of 51" in ax.get_title(loc="left").replace("\n", " ")
    few = rows.drop_duplicates("town").head(8)
    ax = model.plot_shap_dependence(few, "town")
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[-1] == "missing" and "most frequent" not in ax.get_title(loc="left")
    drawn = [line.get_ydata() for line in ax.lines if line.get_marker() == "o"]
    assert np.concatenate(drawn).tolist() == list(range(8))


def test_two_categories_are_a_table_of_their_dependence() -> None:
    table = booster("plain").partial_dependence(ROWS, ["level", "$plan$"])
    ax = booster("plain").plot_partial_dependence(ROWS, ["level", "$plan$"])
    drawn = np.asarray(ax.images[0].get_array())
    assert drawn.shape == (20, 3) and sorted(drawn.ravel()) == pytest.approx(sorted(table["value"]))
    assert len(ax.texts) == 60 and "20 most frequent of 40" in ax.get_title(loc="left").replace("\n", " ")
    ax = booster("plain").plot_partial_dependence(ROWS, ["level", "$plan$"], grid=[["c0", "c3"], ["_gold"]])
    assert "most frequent" not in ax.get_title(loc="left"), "the user chose them"


#: Plots on axes of the caller.
ON_AXES: dict[str, Any] = {
    "importance": lambda b, ax: b.plot_importance(ax=ax),
    "history": lambda b, ax: b.plot_history(ax=ax),
    "tree": lambda b, ax: b.plot_tree(ax=ax),
    "summary": lambda b, ax: b.plot_shap_summary(ROWS, ax=ax),
    "waterfall": lambda b, ax: b.plot_waterfall(ROWS, 5, ax=ax),
    "two categories": lambda b, ax: b.plot_partial_dependence(ROWS, ["level", "$plan$"], ax=ax),
    "lift": lambda b, ax: b.plot_lift(frame(300, 2), "yes", ax=ax),
}


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("plot", ON_AXES)
def test_texts_on_dark_axes_are_light(plot: str) -> None:
    from matplotlib import style
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    with style.context("dark_background"):
        ax = Figure(figsize=(7, 5)).subplots()
        before = dict(matplotlib.rcParams) | {"backend": None}
        ON_AXES[plot](booster("yes"), ax)
        assert dict(matplotlib.rcParams) | {"backend": None} == before
    dark = [text.get_text() for text in texts_of(ax.figure) if text.get_text() and sum(to_rgb(text.get_color())) < 1.0]
    assert dark == []


def test_ticks_that_are_not_shown_do_not_change_the_others() -> None:
    rows = pd.DataFrame({"a": np.linspace(0, 9000, 300)})
    ax = dboost.fit(rows, rows["a"] / 100, max_iter=5).plot_partial_dependence(rows, "a")
    ax.set_xlim(-10, 9300)
    ax.figure.draw_without_rendering()
    assert "8000" in [label.get_text() for label in ax.get_xticklabels()]
