"""Names and categories are displayed unchanged: in tables on the terminal, in plots and in the report."""

from __future__ import annotations

import html
import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import Booster
from dboost.cli import main
from dboost.inspection.report.page import ReportContext, page
from dboost.training.progress import Progress

#: Text that markup languages of terminals, plots and pages would interpret.
NUMBERS = ["speed [km/h]", "a[/b]", "$k$", "\\frac{$", 'id="x <b>&"', ":smile: $\\alpha$"]
KINDS = ["[red]_$q$_{", "x\\$y"]
LEVELS = ["[/i]", "<i>$$", "_$q$_{", "\\$"]
CLASSES = ["_no[b] $1", "yes[/y] $2$", "&amp; $\\x$"]
TARGETS = {"number $y$": 0, "[two] $t": 2, "three</title>": 3}


@cache
def fitted(target: str) -> tuple[Booster, pd.DataFrame]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.normal(size=400) for name in NUMBERS})
    for name in KINDS:
        frame[name] = rng.choice(LEVELS, len(frame))
    score = frame[NUMBERS].sum(axis=1) + 3 * (frame[KINDS[0]] == LEVELS[0]) + 3 * (frame[KINDS[1]] == LEVELS[1])
    classes = np.array(CLASSES, object)
    y = {0: score, 2: classes[1 * (score > 1)], 3: classes[np.digitize(score, [0, 3])]}[TARGETS[target]]
    frame = frame.assign(**{target: y})
    booster = dboost.fit(
        frame,
        target,
        max_iter=8,
        max_leaf_nodes=8,
        eval_set={"_eval$1$_{ [/e]": frame},
        source_name="s [/s] <b>",
        progress=False,
    )
    return booster, frame


def texts(figure: Any) -> list[str]:
    """Return the text of a figure, from an SVG drawn from it."""
    import matplotlib

    file = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg")
    return [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", file.getvalue())]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "mine"), [("number $y$", True), ("three</title>", False)])
def test_pictures_show_names_as_they_are(target: str, mine: bool) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    booster, frame = fitted(target)

    def shown(draw: Any, *arguments: Any, **options: Any) -> str:
        if mine:
            options["ax"] = figures.Figure().subplots()
        return "\n".join(texts(np.ravel(draw(*arguments, **options))[0].figure))

    everything = shown(booster.plot_importance) + shown(booster.plot_shap_summary, frame) + shown(booster.plot_waterfall, frame)
    for name in ("$k$", KINDS[0]):
        assert name in shown(booster.plot_shap_dependence, frame, name)
    for name in [*NUMBERS, *KINDS]:
        dependence = shown(booster.plot_partial_dependence, frame, name)
        assert name in dependence and f"Dependence on {name}" in dependence
        assert name in everything
        if TARGETS[target] == 3:
            assert "\u200b" + CLASSES[0] in dependence, "in the legend, though it begins with an underscore"
    levels = shown(booster.plot_partial_dependence, KINDS[0])
    assert all(level in levels for level in LEVELS)
    history = shown(booster.plot_history)
    assert "_eval$1$_{ [/e] rows" in history
    assert any(name in shown(booster.plot_tree) for name in [*NUMBERS, *KINDS])
    if TARGETS[target]:
        assert CLASSES[1] in shown(booster.plot_calibration, frame, target, output=CLASSES[1])
        assert CLASSES[1] in shown(booster.plot_lift, frame, target, output=CLASSES[1])
    else:
        assert target in shown(booster.plot_residuals, frame, target)
    if not mine:
        assert NUMBERS[0] in shown(booster.plot_partial_dependence, frame, [NUMBERS[0], NUMBERS[2]], grid=4)
        panels = shown(booster.plot_partial_dependence, frame, [NUMBERS[2], KINDS[0]], grid=4)
        assert "[red]_$q$_{: _$q$_{" in panels.replace("…", "") or "[red]_$q$_{" in panels


@pytest.mark.slow
def test_the_report_shows_names_as_they_are() -> None:
    pytest.importorskip("matplotlib")
    target = "three</title>"
    booster, frame = fitted(target)
    written = page(ReportContext(booster, frame, target))
    text = html.unescape(re.sub(r"<[^>]*>", "\n", written))
    for name in [*NUMBERS, *KINDS, "s [/s] <b>"]:
        assert f"\n{name}\n" in text
    labels = html.unescape(" ".join(re.findall(r'aria-label="([^"]*)"', written)))
    assert f"Dependence on {booster.importance().index[0]}" in labels and "\\$" not in labels.replace(KINDS[1], "").replace(
        LEVELS[3], ""
    )
    assert "<b>" not in written.replace("<b></b>", "") and "<i>" not in written and "</title>\n" not in written
    assert "\\$k" not in text


def test_the_card_shows_names_as_they_are() -> None:
    booster, _ = fitted("number $y$")
    first = booster.importance().index[0]
    assert html.escape(str(first)) in booster._repr_html_()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("target", ["number $y$", "three</title>"])
def test_inspect_shows_names_as_they_are(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    booster, frame = fitted(target)
    booster.save("model[1] :smile:.json")
    frame.to_parquet("rows[a].parquet")
    outline = said(capsys, "inspect", "model[1] :smile:.json")
    for name in [*NUMBERS, *KINDS, "s [/s] <b>", "_eval$1$_{ [/e]", *(CLASSES[: TARGETS[target]])]:
        assert name in outline
    importance = said(capsys, "inspect", "model[1] :smile:.json", "--importance")
    assert all(name in importance for name in [*NUMBERS, *KINDS])
    for name in ("speed [km/h]", "a[/b]"):
        assert f"Dependence on {name}" in said(capsys, "inspect", "model[1] :smile:.json", "--dependence", name)
    dependence = said(capsys, "inspect", "model[1] :smile:.json", "--dependence", f"{KINDS[0]},{NUMBERS[0]}")
    assert all(text in dependence for text in [*LEVELS, KINDS[0], NUMBERS[0]])
    frame.to_parquet("rows.parquet")
    drift = said(capsys, "inspect", "model[1] :smile:.json", "--drift", "rows.parquet")
    assert all(name in drift for name in [*NUMBERS, *KINDS])
    if TARGETS[target] == 0 and importlib.util.find_spec("matplotlib"):
        assert "report in r[x].html" in said(capsys, "inspect", "model[1] :smile:.json", "--html", "r[x].html")
    assert main(["inspect", "model[1] :smile:.json", "--dependence", "[/nothing]"]) == 2
    assert "'[/nothing]'" in capsys.readouterr().err


@pytest.mark.slow
def test_terminals_that_lack_a_letter_show_its_escape(tmp_path: Path) -> None:
    frame = pd.DataFrame({"größe": np.arange(40.0)})
    dboost.fit(frame, np.arange(40.0), max_iter=1, progress=False).save(tmp_path / "model.json")
    command = [sys.executable, "-m", "dboost", "inspect", str(tmp_path / "model.json")]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert b"gr\\xf6\\xdfe" in done.stdout


def test_the_bar_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    bar = Progress(True)
    bar.begin(1)
    bar.show({"iteration": 1, "rows_kept": 10, "seconds": 0.1, "[/e]_loss": 0.5}, {"[/e]_loss": 0.5}, 0.1)
    bar.close()
    assert "[/e]_loss 0.5" in terminal.getvalue()
