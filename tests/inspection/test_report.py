"""The report is one self-contained page with the model's numbers that fits a phone; the card fits a notebook."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import Booster
from dboost.display import as_read, numbers
from dboost.errors import DataError, ModelFileError, ParameterError
from dboost.inspection.plots import performance
from dboost.inspection.report.page import MAX_LEAVES, Figure, ReportContext, page
from dboost.inspection.row_functions import EvaluatedRows, ScoringRoles
from tests.helpers.fits import FEATURES, cut, mixed_frame
from tests.helpers.forests import random_ensemble

pytest.importorskip("matplotlib")
FRAME = mixed_frame(200)
#: Elements without an end tag.
VOID = {"meta", "br", "hr", "img", "link", "use"}


@cache
def booster(target: str) -> Booster:
    held_out = mixed_frame(100, seed=1)[[*FEATURES, target]]
    return dboost.fit(FRAME[[*FEATURES, target]], target, max_iter=4, max_leaf_nodes=5, eval_set=held_out)


@cache
def with_rows(target: str) -> str:
    return page(ReportContext(booster(target), FRAME, target))


class Reader(HTMLParser):
    """Checks that elements are nested, and collects ids, references and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            text = value or ""
            if name == "id":
                self.ids.append(text)
            if name in ("href", "xlink:href", "src", "srcset", "action", "poster"):
                self.addresses.append(text)
            self.references += re.findall(r"url\(#([^)]+)\)", text)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert not reader.open
    return reader


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("target", ["y", "late", "grade"])
def test_the_page_needs_nothing_else(target: str) -> None:
    reader = read(with_rows(target))
    assert not reader.tags & {"script", "link", "iframe", "img", "object"}
    local = [address.removeprefix("#") for address in reader.addresses if address.startswith("#")]
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in reader.addresses)
    assert len(reader.ids) == len(set(reader.ids))
    assert set(local) | set(reader.references) <= set(reader.ids)
    assert "@import" not in with_rows(target) and not re.search(r"url\((?!#)", with_rows(target))


@pytest.mark.parametrize("target", ["y", "late", "grade"])
def test_the_page_says_what_is_true(target: str) -> None:
    model, text = booster(target), read(with_rows(target)).text
    sections = "How it was trained|How good it is|What matters|How predictions depend on it|What acts together|The first tree"
    for said in sections.split("|"):
        assert said in text
    for said in (model.sha256, model.loss.name.replace("_", " "), "seconds in iterations", "held-out rows", *FEATURES[:3]):
        assert said in text
    kept = as_read("train_loss", model.ensemble.metrics["train_loss"][-1], model.loss.name)[1]
    assert numbers([kept])[0] in text
    assert "On 200 rows" in text
    if target == "y":
        error = np.abs(model.predict(FRAME) - FRAME["y"]).mean()
        assert numbers([error])[0] in text and "Residuals" in text
    else:
        accuracy = (model.predict(FRAME) == FRAME[target]).mean()
        assert numbers([accuracy])[0] in text and "Calibration" in text and "Lift" in text


@pytest.mark.slow
@pytest.mark.parametrize("target", ["y", "late"])
def test_weights_reach_what_is_said_of_rows(target: str) -> None:
    weight = np.random.default_rng(1).integers(0, 3, len(FRAME))
    repeated = FRAME.loc[FRAME.index.repeat(weight)].reset_index(drop=True)
    model = booster(target)
    text, expected, plain = (
        read(page(ReportContext(model, *rest))).text
        for rest in ((FRAME, target, ScoringRoles(weight)), (repeated, target), (FRAME, target))
    )
    assert "rows that were handed in for this report, weighted" in text

    def table(text: str, after: str, before: str) -> str:
        section = text[text.rindex(after) : text.rindex(before)]  # the first ones are in the contents
        return section.split("this report", 1)[-1].split(".", 1)[1][:120]

    assert table(text, "How good it is", "What matters") == table(expected, "How good it is", "What matters")
    assert table(text, "How good it is", "What matters") != table(plain, "How good it is", "What matters")
    if target == "late":
        drawn = [model.plot_lift(rows, target, sample_weight=w) for rows, w in ((FRAME, weight), (repeated, None))]
        curves = [max(ax.lines, key=lambda line: len(line.get_xdata())).get_xydata() for ax in drawn]
        at = np.linspace(0, 1, 7)
        assert np.interp(at, *curves[0].T) == pytest.approx(np.interp(at, *curves[1].T), abs=0.02)
        groups = model.plot_calibration(FRAME, target, sample_weight=weight, n_bins=4).lines[1].get_xydata()
        whole = model.plot_calibration(repeated, target, n_bins=4).lines[1].get_xydata()
        assert groups == pytest.approx(whole, abs=0.06)


def test_a_loaded_model_without_rows_says_what_it_does_not_know(tmp_path: Path) -> None:
    booster("late").save(tmp_path / "model.json")
    dboost.load(tmp_path / "model.json").report(tmp_path / "report.html")
    text = read((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "holds no times" in text and "pass data and target" in text and "What acts together" not in text


def test_names_cannot_break_out_of_the_page() -> None:
    evil = "<script>alert('x')</script>&\""
    rows = pd.DataFrame({evil: ["</svg><b>", "ok"] * 50, "b": np.arange(100.0)}).assign(y=np.arange(100.0) % 2 * 3.0)
    model = dboost.fit(rows, "y", loss="squared_error", max_iter=2)
    for html in (page(ReportContext(model, rows, "y")), model._repr_html_()):
        reader = read(html)
        assert not reader.tags & {"script", "b"} or html.startswith("<div")
        assert "<script" not in html and "</svg><b>" not in html


@pytest.mark.slow
def test_dask_rows_and_a_model_without_splits(tmp_path: Path) -> None:
    booster("y").report(tmp_path / "lazy.html", cut(FRAME, [60, 60]), "y")
    lazy, whole = (tmp_path / "lazy.html").read_text(encoding="utf-8"), with_rows("y")

    def numbered_afresh(html: str) -> str:
        return re.sub(r"d\d+-", "d-", html)

    assert numbered_afresh(lazy) == numbered_afresh(whole)
    flat = dboost.fit(pd.DataFrame({"a": np.zeros(50), "y": np.arange(50.0)}), "y", max_iter=1)
    flat.report(tmp_path / "flat.html", pd.DataFrame({"a": [0.0]}))
    assert "no tree has a split" in (tmp_path / "flat.html").read_text(encoding="utf-8")
    read(flat._repr_html_())


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize(
    ("arguments", "error", "complaint"),
    [
        ({"target": "y"}, ParameterError, "data="),
        ({"sample_weight": "w"}, ParameterError, "data="),
        ({"data": FRAME, "target": "nothing"}, DataError, "nothing"),
        ({"data": FRAME.drop(columns="age")}, DataError, "age"),
        ({"path": "nowhere/report.html"}, ModelFileError, "there is no folder"),
    ],
)
def test_what_cannot_be_done_leaves_nothing_behind(
    arguments: dict[str, Any], error: type[Exception], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=complaint):
        booster("y").report(**({"path": "report.html"} | arguments))
    assert not list(tmp_path.iterdir())


def test_a_model_without_trees_is_one_too() -> None:
    empty = Booster(random_ensemble(0, n_iterations=0))
    assert "Nothing: no tree has a split" in page(ReportContext(empty, None, None))
    assert "0 iterations" in empty._repr_html_()
    rows = pd.DataFrame(np.zeros((3, 5)), columns=empty.feature_names_in_)
    assert np.asarray(empty.shap_values(rows)).tolist() == [[0.0] * 5] * 3
    assert empty.partial_dependence("x0")["value"].eq(empty.ensemble.baseline[0]).all()


def test_the_card_is_small_and_whole() -> None:
    html = booster("grade")._repr_html_()
    reader = read(html)
    assert len(html) < 4000 and not reader.tags & {"script", "style"}
    assert "4 iterations, 7 features" in reader.text and "3 classes" in reader.text
    assert booster("grade").importance().index[0] in reader.text


MEASURE = """<script>
document.body.style.width = "WIDTHpx";
document.documentElement.dataset.overflow = document.body.scrollWidth - WIDTH;
document.documentElement.dataset.drawn = [...document.querySelectorAll("svg")].filter(
  svg => svg.getBoundingClientRect().width > 200 && svg.getBoundingClientRect().height > 60).length;
document.documentElement.dataset.fetched = performance.getEntriesByType("resource").filter(
  entry => !entry.name.startsWith("data:")).length;
</script></body>"""


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("target", ["y", "grade"])
def test_a_real_browser_opens_it_at_phone_and_desktop_width(target: str, width: int, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    if browser is None:
        pytest.skip("no chromium to open the report with")
    html = with_rows(target)
    (tmp_path / "report.html").write_text(html.replace("</body>", MEASURE.replace("WIDTH", str(width))), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--window-size=1400,900"]
    shown = subprocess.run(
        [browser, *flags, "--dump-dom", (tmp_path / "report.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    found = {name: int(value) for name, value in re.findall(r'data-(overflow|drawn|fetched)="(-?\d+)"', shown)}
    assert found == {"overflow": 0, "drawn": html.count("<svg"), "fetched": 0}


def test_the_model_card_has_statements_data_and_caveats() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"leak": rng.normal(size=1000), "noise": rng.normal(size=1000), "town": rng.choice(["A&B", "C"], 1000)}
    )
    frame.loc[:600, "noise"] = np.nan
    target = np.where(frame["leak"] > 2, "rare", "usual")
    model = dboost.fit(frame, target, max_iter=3, progress=False)
    card = {"Intended use": "Rank <customers>.\n\nNot for credit.", "Authors": "The risk team"}
    content = read(page(ReportContext(model, None, None, card=card))).text
    for text in ("Model card", "Intended use", "Rank <customers>.", "Not for credit.", "Authors", "The risk team"):
        assert text in content
    assert "All metrics are those of the training rows" in content
    assert "The feature leak has" in content
    assert "The feature noise is missing in 60 % of the rows" in content
    assert f"class rare ({(target == 'rare').mean() * 100:.1f} %)" in content
    assert "Values of 1,000 sampled training rows." in content
    assert re.search(r"noise\s*numeric\s*60.1 %", content)
    assert re.search(r"town\s*categorical, 2 levels\s*0.0 %\s*–\s*–", content)
    assert "Model card" not in read(page(ReportContext(model, None, None))).text
    evaluated = read(page(ReportContext(model, frame, target, card={}))).text
    assert "All metrics are those of the training rows" not in evaluated
    continued = dboost.fit(frame, target, start_from=model.truncate(2), max_iter=1, eval_set=(frame, target), progress=False)
    content = read(page(ReportContext(continued, None, None, card={}))).text
    assert "The model was trained on 2 data sets" in content
    assert "All metrics" not in content


def test_a_card_is_texts_by_heading(tmp_path: Path) -> None:
    booster("y").report(tmp_path / "report.html", card={"Intended use": "Tests"})
    assert "<h3>Intended use</h3>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    for wrong in ("Intended use", {"Intended use": 1}, [("Intended use", "Tests")]):
        with pytest.raises(dboost.InputTypeError, match="card must be texts by heading"):
            booster("y").report(tmp_path / "other.html", card=wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "other.html").exists()


def test_the_page_has_contents_and_the_name_of_the_target() -> None:
    html = with_rows("grade")
    links = re.findall(r'<a href="#(\w+)">([^<]+)</a>', html)
    assert [name for name, _ in links] == re.findall(r'<section id="(\w+)">', html) and len(links) >= 6
    assert [f"<h2>{heading}</h2>" in html for _, heading in links] == [True] * len(links)
    assert "<h1>A dboost model: 3 classes of grade</h1>" in html
    assert "<h1>A dboost model: 3 classes</h1>" in page(ReportContext(booster("grade"), None, None))


def test_rows_with_classes_have_a_confusion_matrix_and_numbers_residuals() -> None:
    assert 'aria-label="Confusion (percent of the true class)"' in with_rows("grade")
    assert "Confusion" not in with_rows("y") and 'aria-label="Residuals"' in with_rows("y")
    model = booster("grade")
    names, share = EvaluatedRows(model.ensemble, FRAME, "grade").confusion()
    predicted = model.predict(FRAME[FEATURES])
    truth = FRAME["grade"].astype(str)
    for i, name in enumerate(names):
        for j, other in enumerate(names):
            expected = (predicted[(truth == str(name)).to_numpy()].astype(str) == str(other)).mean()
            assert share[i, j] == pytest.approx(expected)


def test_effects_are_compared_on_the_same_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def embed(drawn: Any, **how: Any) -> Figure:
        ax = np.ravel(drawn)[0]
        if ax.get_title(loc="left").startswith("Dependence on ") and " and " not in ax.get_title(loc="left"):
            limits.append(ax.get_ylim() if ax.get_xlabel() in FEATURES and ax.get_ylabel() not in FEATURES else ax.get_xlim())
        return Figure("", False)

    monkeypatch.setattr("dboost.inspection.report.page.embed", embed)
    page(ReportContext(booster("y"), FRAME, "y"))
    assert len(limits) > 2 and len(set(limits)) == 1


def test_a_tree_of_many_leaves_is_not_drawn_and_the_page_says_so() -> None:
    small, large = (Booster(random_ensemble(3, 1, n_leaves)) for n_leaves in (MAX_LEAVES, MAX_LEAVES + 1))
    assert small.ensemble.trees[0].n_leaves == MAX_LEAVES
    drawn, left_out = (page(ReportContext(one, None, None)) for one in (small, large))
    assert "Tree of iteration 1" in drawn and "too many for this page" not in drawn
    assert "Tree of iteration 1" not in left_out
    assert f"It has {MAX_LEAVES + 1} leaves, too many for this page; <code>booster.plot_tree(0)</code> draws it." in left_out


def test_long_names_are_cut_in_their_middle() -> None:
    names = [f"the_average_of_the_last_thirty_days_per_customer_{what}" for what in ("in_euros", "as_a_count")]
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=names).assign(y=range(200))
    html = page(ReportContext(dboost.fit(rows, "y", max_iter=2), rows, "y"))
    for name in names:
        assert f'title="{name}">the_average_of' in html and name[-10:] in html
        assert f">{name}<" not in html


def test_the_target_that_the_rows_have_is_used(tmp_path: Path) -> None:
    for path, rows in ((tmp_path / "with.html", FRAME), (tmp_path / "without.html", FRAME.drop(columns="late"))):
        booster("late").report(path, rows)
    curves = ("ROC curve of 1", "Precision and recall of 1", "Calibration", "Lift")
    texts = [(tmp_path / name).read_text(encoding="utf-8") for name in ("with.html", "without.html")]
    assert [[curve in text for curve in curves] for text in texts] == [[True] * 4, [False] * 4]


@pytest.mark.parametrize("weighted", [False, True])
def test_curves_have_the_areas_of_scikit_learn(weighted: bool) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    rng = np.random.default_rng(0)
    model, rows = booster("grade"), FRAME.assign(w=rng.integers(0, 3, len(FRAME)).astype(np.float64))
    evaluated = EvaluatedRows(model.ensemble, rows, "grade", "w" if weighted else None)
    probability = model.predict_proba(rows)
    names = ["high", "low"]
    for draw, score in ((performance.draw_roc, roc_auc_score), (performance.draw_precision_recall, average_precision_score)):
        legend = draw(evaluated, names, None).get_legend().get_texts()
        expected = [
            score(rows["grade"] == name, probability[name].round(12), sample_weight=rows["w"] if weighted else None)
            for name in names
        ]
        shown = [text.get_text() for text in legend]
        assert shown == [f"{name}: {text}" for name, text in zip(names, numbers(expected), strict=True)]
