"""Plots show the numbers of the tables, label their axes, and change no global state."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import Booster
from dboost.booster import booster_with
from dboost.errors import DBoostError, ParameterError
from tests.helpers.fits import FEATURES, mixed_frame
from tests.helpers.forests import random_ensemble

matplotlib = pytest.importorskip("matplotlib")
FRAME = mixed_frame(300)


@cache
def booster(target: str) -> Booster:
    settings = (
        {"eval_set": mixed_frame(200, seed=1)[[*FEATURES, target]], "early_stopping_rounds": 2} if target != "grade" else {}
    )
    return dboost.fit(FRAME[[*FEATURES, target]], target, max_iter=12, max_leaf_nodes=7, **settings)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """If another test imported pyplot, it keeps the figures of these tests."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def axes_of(drawn: Any) -> list[Any]:
    return list(np.ravel(drawn))


DRAW = {
    "importance": lambda b, t: b.plot_importance(),
    "per class": lambda b, t: b.plot_importance(per_class=t != "y") if t != "y" else b.plot_importance("gain", max_features=2),
    "numeric": lambda b, t: b.plot_partial_dependence(FRAME, "x", grid=[-1, 0, 1, np.nan]),
    "individual": lambda b, t: b.plot_partial_dependence(FRAME, "x", "individual", max_rows=20, scale="prediction"),
    "conditional": lambda b, t: b.plot_partial_dependence(FRAME, "rooms", "conditional", centered=True),
    "categorical": lambda b, t: b.plot_partial_dependence("town", grid=["Gent", "Mons", None]),
    "truth values": lambda b, t: b.plot_partial_dependence("flag"),
    "surface": lambda b, t: b.plot_partial_dependence(FRAME, ["x", "age"], grid=4),
    "panels": lambda b, t: b.plot_partial_dependence(["x", "town"]),
    "bars in panels": lambda b, t: b.plot_partial_dependence(["town", "kind"]),
    "history": lambda b, t: b.plot_history(),
    "tree": lambda b, t: b.plot_tree(),
    "last tree": lambda b, t: b.plot_tree(-1),
    "summary": lambda b, t: b.plot_shap_summary(FRAME, background=FRAME.iloc[:3]),
    "attribution": lambda b, t: b.plot_shap_dependence(FRAME, "size"),
    "levels": lambda b, t: b.plot_shap_dependence(FRAME, "town"),
    "waterfall": lambda b, t: b.plot_waterfall(FRAME, 5),
    "short waterfall": lambda b, t: b.plot_waterfall(FRAME, -1, max_features=3),
    "calibration": lambda b, t: b.plot_calibration(FRAME, t) if t != "y" else b.plot_residuals(FRAME, t),
    "coverage": lambda b, t: (
        b.calibrate(FRAME, t, by="town").plot_coverage(FRAME, t) if t == "y" else b.plot_calibration(FRAME, t)
    ),
    "lift": lambda b, t: b.plot_lift(FRAME, t) if t != "y" else b.plot_residuals(mixed_frame(4000), t),
}


#: Plots that differ for a model of numbers.
OF_NUMBERS = ("per class", "individual", "panels", "history", "waterfall", "calibration", "coverage", "lift")


@pytest.mark.fast_cells(8)
@pytest.mark.parametrize(("what", "target"), [*((what, "grade") for what in DRAW), *((what, "y") for what in OF_NUMBERS)])
def test_every_picture_is_drawn_and_says_what_it_shows(what: str, target: str) -> None:
    axes = axes_of(DRAW[what](booster(target), target))
    assert all(ax.get_title(loc="left") for ax in axes if "history" not in what) or axes[0].get_title(loc="left")
    figure = axes[0].figure
    if "tree" not in what:
        shown = [ax for ax in axes if ax.get_subplotspec().is_last_row()]
        assert all(ax.get_xlabel() for ax in shown)
    for kind in ("svg", "png"):
        file = BytesIO()
        figure.savefig(file, format=kind)
        assert len(file.getvalue()) > 3000
    # Nothing is drawn outside the figure.
    figure.canvas.draw()
    box = axes[0].get_tightbbox()
    assert box.x0 > -2 and box.y0 > -2 and box.x1 < figure.bbox.width + 2 and box.y1 < figure.bbox.height + 2


def test_bars_are_the_importances() -> None:
    ax = booster("y").plot_importance(max_features=3)
    expected = booster("y").importance().iloc[:3]
    assert [bar.get_width() for bar in ax.patches][::-1] == pytest.approx(expected.tolist())
    assert [label.get_text() for label in ax.get_yticklabels()][::-1] == expected.index.tolist()
    assert "3 largest of 7" in ax.get_title(loc="left")


def test_lines_are_the_dependence_and_the_deciles_are_marked() -> None:
    table = booster("y").partial_dependence(FRAME, "x")
    ax = booster("y").plot_partial_dependence(FRAME, "x")
    line = max(ax.lines, key=lambda line: len(line.get_xdata()))
    assert np.array_equal(line.get_xdata(), table["x"]) and np.array_equal(line.get_ydata(), table["value"])
    marked = {line.get_xdata()[0] for line in ax.lines if len(line.get_xdata()) == 2}
    assert marked == set(table.attrs["deciles"]["x"])
    assert ax.get_xlabel() == "x" and ax.get_ylabel() == "prediction"
    levels = booster("late").partial_dependence("town")
    bars = booster("late").plot_partial_dependence("town")
    ends = [bar.get_x() + bar.get_width() for bar in bars.patches][::-1]
    assert ends == pytest.approx(sorted(levels["value"], reverse=True)) and bars.get_xlabel() == "log odds of 1"


def test_missing_values_are_shown() -> None:
    table = booster("y").partial_dependence(FRAME, "size", grid=[-1, 1, np.nan])
    ax = booster("y").plot_partial_dependence(FRAME, "size", grid=[-1, 1, np.nan])
    lines = {line.get_label(): set(line.get_ydata()) for line in ax.lines}
    assert lines["missing"] == {table["value"].iloc[2]} and "missing" in {one.get_text() for one in ax.get_legend().get_texts()}
    levels = booster("y").partial_dependence("town", grid=["Gent", None])
    bars = booster("y").plot_partial_dependence("town", grid=["Gent", None])
    assert sorted(bar.get_x() + bar.get_width() for bar in bars.patches) == pytest.approx(sorted(levels["value"]))


def test_surfaces_are_the_dependence() -> None:
    table = booster("y").partial_dependence(["x", "age"], grid=4)
    ax = booster("y").plot_partial_dependence(["x", "age"], grid=4)
    shown = np.asarray(ax.collections[0].get_array()).reshape(table["age"].nunique(), -1)
    assert shown.T.ravel() == pytest.approx(table["value"].to_numpy())


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("target", ["y", "grade"])
def test_panels_have_numbers_below_every_column_and_stand_evenly(target: str) -> None:
    axes = axes_of(booster(target).plot_partial_dependence(["x", "town"]))
    assert len(axes) == 7  # three in a row, and one alone in the last
    if target == "y":
        table = booster(target).partial_dependence(["x", "town"])
        by_town = {str(town): part["value"] for town, part in table.groupby("town")}
        assert len(by_town) == len(axes)
        for ax in axes:
            assert ax.lines[0].get_ydata() == pytest.approx(by_town[ax.get_title(loc="left").removeprefix("town = ")])
        shown = [
            ax.get_title(loc="left")[len("town = ") :]
            for ax in axes_of(booster(target).plot_partial_dependence(FRAME, ["x", "town"]))
        ]
        assert FRAME["town"].value_counts()[shown].is_monotonic_decreasing
    axes[0].figure.canvas.draw()
    numbered = [any(label.get_visible() and label.get_text() for label in ax.get_xticklabels()) for ax in axes]
    assert numbered == [False] * 4 + [True] * 3 and [bool(ax.get_xlabel()) for ax in axes] == numbered
    left = [ax.get_window_extent().x0 for ax in axes[:3]]
    assert left[2] - left[1] == pytest.approx(left[1] - left[0], rel=0.15)
    assert len(axes[0].figure.legends) == (target == "grade") and not any(ax.get_legend() for ax in axes)


def test_the_best_iteration_is_marked() -> None:
    ax = axes_of(booster("late").plot_history())[0]
    best = booster("late").best_iteration
    assert any(list(line.get_xdata()) == [best, best] for line in ax.lines)
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"training rows", "held-out rows"}
    assert ax.get_ylabel() == "log loss" and ax.get_xlabel() == "iteration"


def test_waterfalls_lead_from_the_expected_score_to_the_rows() -> None:
    ax = booster("late").plot_waterfall(FRAME, 7, max_features=4)
    bars = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches]
    assert bars[0][0] == pytest.approx(booster("late").expected_value)
    assert bars[-1][1] == pytest.approx(booster("late").predict(FRAME.iloc[7:8], raw_score=True).iloc[0])
    assert len(bars) == 4 and all(a[1] == pytest.approx(b[0]) for a, b in pairwise(bars))


def test_calibration_and_lift_are_counted() -> None:
    probability, truth = booster("late").predict_proba(FRAME)[1].to_numpy(), FRAME["late"].to_numpy()
    ax = booster("late").plot_calibration(FRAME, "late", n_bins=3)
    groups = np.array_split(np.argsort(probability, kind="stable"), 3)
    points = ax.lines[1].get_xydata()
    assert points == pytest.approx(np.array([(probability[g].mean(), truth[g].mean()) for g in groups]))
    lift = booster("late").plot_lift(FRAME, "late")
    first = np.argsort(-probability, kind="stable")[:30]
    assert lift.lines[-1].get_ydata()[0] == pytest.approx(truth[first].sum() / truth.sum())


def test_drawing_on_axes_of_the_caller() -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert booster("y").plot_importance(ax=ax) is ax and ax.patches
    assert booster("y").plot_tree(ax=Figure().subplots()).texts
    with pytest.raises(ParameterError, match="leave ax out"):
        booster("y").plot_partial_dependence(["town", "x"], ax=ax)


def test_pyplot_shows_pictures_but_not_those_of_a_report(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    ax = booster("y").plot_importance()
    assert len(plt.get_fignums()) == len(before) + 1
    plt.close(ax.figure)
    booster("y").report(tmp_path / "report.html")
    assert plt.get_fignums() == before


@pytest.mark.parametrize(
    ("draw", "complaint"),
    [
        (lambda b: b.plot_tree(99), "no tree 99"),
        (lambda b: b.plot_importance(max_features=0), "max_features"),
        (lambda b: b.plot_partial_dependence(FRAME, ["x", "age"], "individual"), "one feature"),
        (lambda b: b.plot_calibration(FRAME, "y"), "predicts numbers"),
        (lambda b: b.plot_waterfall(FRAME, 300), "no row 300"),
        (lambda b: b.plot_shap_summary(FRAME, output="high"), "'high'"),
        (lambda b: b.plot_importance(kind="gain", data=1), "no data"),
    ],
)
def test_what_makes_no_sense_is_refused(draw: Any, complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        draw(booster("y"))


def test_no_residuals_of_classes_and_no_history_of_nothing() -> None:
    with pytest.raises(ParameterError, match="predicts classes"):
        booster("late").plot_residuals(FRAME, "late")
    with pytest.raises(DBoostError, match="no history"):
        booster_with(random_ensemble(0), history=[]).plot_history()


def test_matplotlib_is_loaded_when_something_is_drawn_and_missed_politely() -> None:
    code = """
import sys, dboost
from tests.helpers.forests import random_ensemble
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None
try:
    dboost.Booster(random_ensemble(0)).plot_importance()
except dboost.DBoostError as error:
    assert "dboost[plots]" in str(error)
else:
    raise SystemExit("drawn without matplotlib")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_figures_of_the_user_are_shown_after_a_plot(tmp_path: Path) -> None:
    """The backend of notebooks turns the interactive mode on when it is loaded, and shows figures in that mode only."""
    (tmp_path / "notebook_backend.py").write_text(
        "import matplotlib\nfrom matplotlib.backends.backend_agg import *\nmatplotlib.interactive(True)\n"
    )
    code = """
import matplotlib, matplotlib.pyplot
import dboost
from tests.helpers.forests import random_ensemble
dboost.Booster(random_ensemble(0)).plot_importance()
assert matplotlib.is_interactive()
assert matplotlib.rcParams["axes.spines.top"]
"""
    environment = os.environ | {
        "MPLBACKEND": "module://notebook_backend",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize("levels", ["abcd", (1.5, 2.5, 3.5, 4.5)], ids=["text", "numbers"])
def test_categories_are_in_the_order_of_their_effect(levels: Any) -> None:
    a, b, c, d = levels
    rows = pd.DataFrame({"town": [c, a, b, d] * 60, "x": np.arange(240.0)})
    effect = rows["town"].map({a: 20_000, b: -30_000, c: 0, d: 70_000})
    model = dboost.fit(rows.assign(y=effect + rows["x"]), "y", max_iter=5, categorical_features=["town"])
    for ax in (model.plot_partial_dependence(rows, "town"), model.plot_shap_dependence(rows, "town")):
        assert [label.get_text() for label in ax.get_yticklabels()] == [str(level) for level in (b, c, a, d)]
        ax.figure.draw_without_rendering()
        assert any("," in label.get_text() for label in ax.get_xticklabels()), "numbers as everywhere: 20,000"
    assert {str(b), str(d)} <= {text.get_text() for text in model.plot_shap_summary(rows).texts}


def test_waterfalls_have_whole_names_and_values() -> None:
    rows = pd.DataFrame({"town": ["Frankfurt am Main", "Cottbus"] * 60, "amount": np.arange(120) * 1000.25})
    model = dboost.fit(rows.assign(y=rows["amount"] * (rows["town"] == "Cottbus")), "y", max_iter=5)
    labels = [label.get_text() for label in model.plot_waterfall(rows, 118).get_yticklabels()]
    assert sorted(labels) == ["amount = 118,030", "town = Frankfurt am Main"]


def test_of_many_classes_the_first_ones_are_drawn_and_their_number_is_said() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(600, 2)), columns=["a", "b"])
    booster = dboost.fit(frame, [f"class {k:02d}" for k in rng.integers(15, size=600)], max_iter=2, loss="log_loss")
    kinds = pd.DataFrame({"kind": rng.choice(["x", "y"], 600)})
    of_kinds = dboost.fit(kinds, [f"class {k:02d}" for k in rng.integers(15, size=600)], max_iter=2, loss="log_loss")
    for ax in (
        booster.plot_partial_dependence(frame, "a", grid=3),
        booster.plot_importance(per_class=True),
        of_kinds.plot_partial_dependence(kinds, "kind"),
    ):
        legend = ax.get_legend()
        assert "first 12 of 15" in legend.get_title().get_text()
        assert [text.get_text() for text in legend.get_texts()] == [f"class {k:02d}" for k in range(12)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of a legend that leaves no room for the axes
            ax.figure.canvas.draw()
    panels = np.ravel(booster.plot_partial_dependence(features=["a", "b"], grid=3))
    assert len(panels) == 12
    assert "the first 12 of 15 classes" in panels[0].figure.get_suptitle()
