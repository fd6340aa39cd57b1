"""The benchmarks run and measure what they document; their tables are tiny here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
from packaging.version import Version

import dboost
from benchmarks import (
    accuracy,
    arcbites,
    cold_start,
    curves,
    fixed_fits,
    host_sessions,
    latency,
    limits,
    loading,
    overlap,
    page,
    passes,
    peers,
    profile,
    race,
    readme_pictures,
    real_workers,
    scaling,
    shap,
    trimming,
    tuning,
    workloads,
)
from benchmarks.__main__ import main
from benchmarks.engines import ENGINES, USUAL, Settings
from benchmarks.workloads import WORKLOADS
from dboost.trees.tree_task import TreeTask
from tests.helpers import real_data
from tests.helpers.tune import Tune
from tests.project.test_docs import cell


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(workloads, "FOLDER", tmp_path / "data")
    return tmp_path


def test_older_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"lightgbm": "4.10.0", "xgboost": "3.2.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(peers, "version", version)
    assert peers.describe(peers.DISTRIBUTIONS).endswith(", lightgbm 4.10.0, xgboost 3.2.0, sklearn not installed")
    (warning,) = peers.warnings(peers.DISTRIBUTIONS)
    assert f"xgboost 3.2.0 is older than {peers.pinned('xgboost')} of" in warning
    installed["xgboost"] = str(peers.pinned("xgboost"))
    assert peers.warnings(peers.DISTRIBUTIONS) == []


def test_the_pinned_peers_are_at_least_those_of_the_tests() -> None:
    text = (peers.REQUIREMENTS / "dev.txt").read_text() + (peers.REQUIREMENTS / "run.txt").read_text()
    for library, (name, *_) in peers.DISTRIBUTIONS.items():
        found = re.search(rf"^{name}==(\S+)$", text, re.MULTILINE)
        assert found and Version(found[1]) <= peers.pinned(library)


@pytest.mark.long
@pytest.mark.slow
def test_one_command_runs_the_lot(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    output, picture = folder / "report.json", folder / "race.svg"
    fit = 'dboost.fit(X, y, loss="log_loss", progress=False)'
    assert fit in cold_start.FIRST_FIT
    one_kernel = "from dboost.kernels.exp_log import exp; exp(X[0])"  # to compile all of a fit takes a minute
    monkeypatch.setattr(cold_start, "FIRST_FIT", cold_start.FIRST_FIT.replace(fit, one_kernel))
    options = ["--quick", "--threads", "1", "--no-memory", "--output", str(output)]
    main(["--workloads", "W1b,W5", "--engines", "dboost,xgboost", "--rounds", "2", *options, "--plot", str(picture)])
    rounds = [result["training"] for results in json.loads(output.read_text()).values() for result in results.values()]
    assert list(map(len, rounds)) == [2] * 4
    assert all(f">{text}</text>" in picture.read_text() for text in ("W1b", "W5", "xgboost", "limits"))
    capsys.readouterr()
    main(["--all", "--rounds", "1", *options])
    drawn, said = capsys.readouterr()
    assert peers.describe(peers.DISTRIBUTIONS) in drawn and all(text in said for text in peers.warnings(peers.DISTRIBUTIONS))
    assert all(f"│ {engine} " in drawn for engine in ENGINES)
    for heading in (*(f"{name}: " for name in WORKLOADS), "loading and binning", "leaves"):
        assert heading in drawn, heading
    # Every library learns from each table, and to a similar loss: the settings reached every one of them.
    report = json.loads(output.read_text())
    assert list(report) == list(WORKLOADS)
    for name, by_score in (("W1b", "AUC"), ("W5", "RMSE")):
        assert list(report[name]) == list(ENGINES)
        for result in report[name].values():
            assert all(len(result[phase]) == 1 and result[phase][0] > 0 for phase in ("binning", "training", "prediction"))
        scores = [report[name][engine]["scores"][by_score] for engine in USUAL]
        assert max(scores) - min(scores) < 0.02
        assert min(scores) > 0.7 if name == "W1b" else max(scores) < 1.03
    for name in [workload.name for workload in workloads.OTHERS]:
        results = {engine: report[name][engine] for engine in USUAL if engine in report[name]}
        assert ("sklearn" in results) == (name != "huber")
        score = next(iter(results["dboost"]["scores"]))
        found = [result["scores"][score] for result in results.values()]
        assert max(found) - min(found) < (0.1 if name in ("categories", "classes", "huber") else 0.03), name
        nothing = {"AUC": 0.5, "log loss": np.log(5), "MAE": 0.95}[score]
        assert (min(found) > nothing + 0.05) if score == "AUC" else (max(found) < nothing - 0.03), (name, found)
    assert np.isnan(workloads.load(WORKLOADS["missing"].quick()).X).mean() == pytest.approx(0.05, abs=0.01)
    assert (workloads.load(WORKLOADS["one-hot"].quick()).X.sum(axis=1) == 6).all()
    # Shapley values equal the others' up to float32.
    asked = {str(case) for case in shap.CASES}
    values = [row for row in cells(drawn) if row[0] in asked]
    assert [row[0] for row in values] == [str(case) for case in shap.CASES]
    assert [row[2] for row in values] == ["100", "100", "10", "100", "10"]
    assert all(float(row[-1]) < 1e-5 for row in values)
    # A process that compiles takes longer than one that finds what was compiled.
    first = cells(drawn.partition("The first fit of a process")[2])
    cold, cached = (float(row[-1]) for row in first if row[0].startswith("dboost"))
    assert cold > cached > 0


@pytest.mark.parametrize("name", ["W3", "W5"])
def test_a_table_is_made_once(folder: Path, name: str) -> None:
    workload = WORKLOADS[name].quick()
    table = workloads.load(workload)
    assert table.X.shape == (workload.rows, workload.features)
    assert table.X_test.shape == (workload.test_rows, workload.features)
    assert {array.dtype for array in (table.X, table.y, table.X_test, table.y_test)} == {np.dtype("float32")}
    assert (set(np.unique(table.y)) == {0, 1}) == (workload.n_classes == 2)
    kept = workloads.folder_of(workload) / "X.npy"
    np.save(kept, table.X + 1)
    assert (workloads.load(workload).X == table.X + 1).all()


@pytest.mark.slow
def test_peak_memory_is_that_of_the_process_alone() -> None:
    ballast = np.ones((300, 1024, 1024), np.uint8)  # this process used more memory than the measured one
    quick = WORKLOADS["W4"].quick()
    peak = race.peak_memory(quick, "lightgbm", 1)
    assert 50 < peak < ballast.nbytes / 2**20


def test_depth_and_leaves_reach_every_library() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 5), dtype=np.float32)
    y = (X @ np.arange(5)).astype(np.float32)
    for engine in ENGINES:
        stumps = ENGINES[engine](X, y, Settings("squared_error", 0, trees=1, max_leaves=2, threads=1)).raw_score(X)
        assert len(np.unique(np.round(stumps, 6))) == 2, engine
        deep = Settings("squared_error", 0, trees=1, growth="depth_wise", max_leaves=64, max_depth=2, threads=1)
        assert len(np.unique(np.round(ENGINES[engine](X, y, deep).raw_score(X), 6))) == 4, engine


@pytest.mark.slow
@pytest.mark.real_data
def test_accuracy_in_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    real_data.path("california")
    accuracy.main(["--tables", "california", "--seeds", "2", "--trees", "10", "--threads", "1"])
    drawn = capsys.readouterr().out
    assert all(engine in drawn for engine in ("dboost", "lightgbm", "xgboost", "sklearn"))
    assert "20,640 × 9" in drawn and "lightgbm − dboost: RMSE " in drawn
    accuracy.main(
        ["--tables", "california", "--seeds", "1", "--rows", "2000", "--trees", "2", "--engines", "dboost", "lightgbm"]
    )
    assert "2,000 × 9" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "tables"),
    [(["--trees", "5"], list(accuracy.GENERATED)), (["--defaults"], ["regression", "categories"])],
    ids=["equal settings", "defaults"],
)
def test_accuracy_on_generated_tables(
    how: list[str], tables: list[str], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "GENERATED", {k: replace(v, rows=600) for k, v in accuracy.GENERATED.items()})
    output = ["--output", str(folder / "losses.json")]
    accuracy.main(["--tables", *tables, "--seeds", "2", "--threads", "1", *how, *output])
    losses = json.loads((folder / "losses.json").read_text())
    assert list(losses) == tables and len(losses["categories"]["xgboost"]["log loss"]) == 2
    drawn = capsys.readouterr().out
    assert drawn.count("│ dboost ") == drawn.count("│ sklearn ") == len(tables)
    assert drawn.count("the best of the others, by ") == len(tables) and "1,200 × 28, 2 tables" in drawn


def test_a_verdict_compares_with_the_best_of_the_others() -> None:
    def found(*mine: float) -> accuracy.Found:
        losses = {"dboost": mine, "worse": (0.9, 0.9), "best": (0.5, 0.7)}
        return {engine: {"AUC": np.zeros(2), "log loss": np.array(values)} for engine, values in losses.items()}

    assert accuracy.verdict(found(0.4, 0.6)) == "log loss: ahead of best, the best of the others, by +0.1 ± 0"
    assert "behind best" in accuracy.verdict(found(0.6, 0.8)) and "level with best" in accuracy.verdict(found(0.6, 0.59))


def test_errors_over_the_test_rows() -> None:
    rng = np.random.default_rng(0)
    y, raw, other = rng.random(4000) < 0.3, rng.normal(size=4000), rng.normal(size=4000)
    classes, scores_of_classes = rng.integers(0, 3, 4000), rng.normal(size=(4000, 3))
    assert np.isclose(race.losses_of_rows(y, raw).mean(), race.scores(y, raw)["log loss"])
    of_classes = race.losses_of_rows(classes, scores_of_classes, n_classes=3)
    assert np.isclose(of_classes.mean(), race.scores(classes, scores_of_classes, n_classes=3)["log loss"])
    for loss, score in (("squared_error", "RMSE"), ("absolute_error", "MAE")):
        target = rng.normal(size=4000)
        pair = [race.losses_of_rows(target, scores, loss, 0) for scores in (raw, other)]
        assert np.isclose(pair[0].mean() ** (0.5 if score == "RMSE" else 1), race.scores(target, raw, loss, 0)[score])
        drawn = [rng.integers(0, 4000, 4000) for _ in range(400)]  # the bootstrap
        means = np.array([[of_rows[rows].mean() for of_rows in pair] for rows in drawn]) ** (0.5 if score == "RMSE" else 1)
        assert np.isclose(accuracy.error_over_rows(*pair, loss), (means[:, 1] - means[:, 0]).std(), rtol=0.15)


@pytest.mark.slow
def test_trimming(capsys: pytest.CaptureFixture[str]) -> None:
    trimming.main(["--rows", "4000", "--features", "6", "--trees", "12", "--threads", "1"])
    drawn = capsys.readouterr().out
    assert "11…12" in drawn and "100.0%" in drawn


@pytest.mark.slow
def test_passes_over_files_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    passes.main(["--rows", "20000", "--trees", "1", "--classes", "3", "--rate", "2000"])
    rows = [
        line.split() for line in capsys.readouterr().out.splitlines() if "all" in line or "cached" in line or "MB/s" in line
    ]
    alone, together, slow_alone, slow_together = rows
    assert [alone[1], together[1], slow_together[1]] == ["1", "all", "all"]
    assert float(together[3]) < 0.7 * float(alone[3]) and float(slow_alone[4]) == float(alone[3])
    assert len({row[-1] for row in rows}) == 1, "another model"


@pytest.mark.slow
def test_latency_is_compared_on_the_same_trees(capsys: pytest.CaptureFixture[str]) -> None:
    latency.main(["--quick", "--rows", "20", "--rounds", "1"])
    rows = [row for row in cells(capsys.readouterr().out) if len(row) == 5]
    assert [row[0] for row in rows] == ["regression"] * 3 + ["binary"] * 3
    assert all(float(row[2]) > 0 and float(row[4]) < 1e-9 for row in rows)


def cells(drawn: str) -> list[list[str]]:
    """Return the rows of the printed tables."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in drawn.splitlines() if "│" in line]


def test_the_screen_of_a_terminal() -> None:
    """A progress bar of two lines that is drawn twice leaves its last state; colors stay, other commands are ignored."""
    bar = "\x1b[?25lstep 1\r\nscore 9\r\x1b[2K\x1b[1A\x1b[2Kstep \x1b[32m2\x1b[0m\r\nscore 8\r\n\x1b[?25hdone\r\n"
    assert readme_pictures.screen(bar) == ["step \x1b[32m2\x1b[0m", "score 8", "done", ""]


@pytest.mark.parametrize("name", ["terminal", "summary"])
def test_pictures_of_the_readme_load_nothing(name: str) -> None:
    root = Path(readme_pictures.__file__).parent.parent
    picture = (root / "docs" / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert f"docs/pictures/{name}.svg" in (root / "README.md").read_text(encoding="utf-8")
    assert "@font-face" not in picture and "@import" not in picture and "url(http" not in picture


def test_the_badges_of_the_readme_are_true() -> None:
    root = Path(readme_pictures.__file__).parent.parent
    drawn = readme_pictures.badges()
    assert list(drawn) == ["badge_python.svg", "badge_license.svg", "badge_version.svg"]
    readme = (root / "README.md").read_text(encoding="utf-8")
    for name, svg in drawn.items():
        assert (root / "docs" / "pictures" / name).read_text(encoding="utf-8") == svg, "python -m benchmarks.readme_pictures"
        (shown,) = re.findall(rf"!\[([^\]]*)\]\(docs/pictures/{name}\)", readme)
        assert re.findall(r"[\d.]+\d", shown) == re.findall(r"[\d.]+\d", svg.split('aria-label="')[1].split('"')[0])
    tested = re.findall(
        r"^\| Python (3\.\d+) \| tested", (root / "docs" / "install.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert f"python: {' | '.join(tested)}" in drawn["badge_python.svg"]
    assert "license: BSD-3-Clause" in drawn["badge_license.svg"]
    assert "BSD 3-Clause" in (root / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.slow
def test_rounds_under_way_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = overlap.main(["--quick"]).values()
    assert list(found) == [1, 2] and found[1]["÷ one round"] == 1.0
    assert all(values["iteration ms"] > values["first decile ms"] > 0 for values in found.values())
    assert all(values["processor ms"] > 0 and values["idle share"] < 1 for values in found.values())
    assert [row[0] for row in cells(capsys.readouterr().out)] == ["1", "2"]


@pytest.mark.slow
def test_sessions_of_hosts_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = host_sessions.main(["--quick"]).values()
    assert list(found) == ["one process", "a session each", "one session"]
    for measures in found.values():
        # Processor time is added up at ticks of the clock: a few tiny iterations may have none.
        assert all(value >= 0 if name == "processor ms" else value > 0 for name in measures for value in measures[name])
        assert measures["whole s"] > measures["before s"]
    assert [row[0] for row in cells(capsys.readouterr().out)] == [
        "one process", "a session each", "÷ one process", "one session", "÷ one process",
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="the clocks of other processes")
def test_processor_time_includes_threads_that_have_ended() -> None:
    def work() -> None:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

    before, before_here = overlap.processor_ms([os.getpid()]), time.process_time()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    used, used_here = overlap.processor_ms([os.getpid()]) - before, time.process_time() - before_here
    assert 50.0 <= used <= 1000.0 * used_here + 1.0
    with pytest.raises(OSError, match="process"):
        overlap.processor_ms([2**22 + 1])


def test_ratios_of_measures_that_may_be_zero() -> None:
    assert host_sessions.ratio([(3.0, 2.0), (1.0, 0.0), (5.0, 2.0), (1.0, 2.0)]) == "1.50×"
    assert host_sessions.ratio([(0.0, 0.0)]) == "–"


@pytest.mark.slow
def test_scaling(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = folder / "scaling.svg"
    scaling.main(["--quick", "--trees", "3", "--sweeps", "threads,classes", "--plot", str(picture)])
    rows = cells(capsys.readouterr().out)
    varied = [*scaling.SWEEPS["threads"], *scaling.SWEEPS["classes"]]
    assert len(rows) == len(varied) and all(float(row[2]) > 0 for row in rows)
    # Every law goes through one of the measured points.
    assert [row[-1] for row in rows].count("1.00") >= 2
    assert picture.read_text().count('<g id="axes_') == 2


def test_the_laws_of_scaling() -> None:
    base = scaling.Size()
    assert scaling.Size(rows=2 * base.rows).cost() == pytest.approx(2 * base.cost())
    assert scaling.Size(columns=7).cost() == pytest.approx(base.cost() / 4)
    assert scaling.Size(leaves=64).cost() / scaling.Size(leaves=4).cost() == pytest.approx(4 / 2)
    assert scaling.Size(classes=10, threads=2, workers=5).cost() == pytest.approx(base.cost())
    measured = [scaling.Measured(scaling.Size(threads=p), 0.3 / p) for p in (1, 2)]
    assert scaling.law(measured, "threads") == pytest.approx([0.3, 0.15])
    measured = [scaling.Measured(size, size.rows / 1e6) for size in scaling.SWEEPS["rows"]]
    assert scaling.law(measured, "rows") == pytest.approx([size.rows / 1e6 for size in scaling.SWEEPS["rows"]])


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False], ids=["packed histograms", "histograms by channel"])
def test_a_profile_accounts_for_the_tree(
    packed: bool, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny table's histograms stay packed, those of the measured ones do not: both have kernels of their own."""
    if not packed:
        monkeypatch.setattr(TreeTask, "has_plain_gain", False)
    picture = folder / "profile.svg"
    profile.main(["--quick", "--workloads", "W1b", "--trees", "6", "--every", "3", "--plot", str(picture)])
    rows = {row[0]: row for row in cells(capsys.readouterr().out)}
    assert list(rows) == [*profile.PARTS, *profile.OTHERS, "a tree", "the one call", "loading and binning"]
    assert all(float(rows[part][1]) > 0 for part in ("histograms", "search", "a tree", "the one call"))
    assert sum(float(rows[part][1]) for part in (*profile.PARTS, *profile.OTHERS)) == pytest.approx(
        float(rows["a tree"][1]), abs=0.01
    )
    # The rows of the root, and after it at most half of each level's: six levels.
    n_rows, n_columns = 7_000, 28
    assert n_rows * n_columns <= float(rows["histograms"][3].split("M")[0]) * 1e6 <= 3.6 * n_rows * n_columns
    # The record of every row, 17 bytes, is moved once on each level but the last.
    assert float(rows["split rows"][3].split()[0]) * 1e6 <= 6 * 17.1 * n_rows
    assert "<svg" in picture.read_text()


def test_what_is_grown_again_by_pieces_is_the_same_tree(folder: Path) -> None:
    """Profiling a fit does not change its model."""
    table = workloads.load(WORKLOADS["W5"].quick())
    how = {"max_iter": 4, "n_threads": 1, "min_samples_leaf": 1, "progress": False}
    plain = dboost.fit(table.X, table.y, **how)
    clock = profile._Clock(1)
    with clock.running():
        watched = dboost.fit(table.X, table.y, callbacks=[clock.mark], **how)
    assert watched.sha256 == plain.sha256
    found = clock.finish(watched, table.X.size)
    assert found.n_looked == 4 and found.n_trees == 3 and found.loop > 0
    assert all(limit > 1e6 for limit in vars(limits.measure(5000, repeats=2)).values())


@pytest.mark.slow
def test_arcbites(folder: Path, capsys: pytest.CaptureFixture[str], tune: Tune) -> None:
    """Each way in this process; a limit is one that the rows do not fit."""
    tune(resident_rows=0)
    output = folder / "found.json"
    options = ["--quick", "--tables", "synthetic", "--rows", "4000", "--trees", "4", "--set", "max_leaf_nodes=8"]
    arcbites.main([*options, "--output", str(output), "--pictures", str(folder)])
    found = {one["way"]: one for one in json.loads(output.read_text())}
    assert list(found) == arcbites.SYNTHETIC_WAYS
    assert all(one["trees"] == len(one["curve"]["loss"]) == 4 and one["loss"] < 0.7 for one in found.values())
    read = [found[way]["bytes_read"] for way in arcbites.SYNTHETIC_WAYS]
    assert read[0] == read[1] == 0 < read[2] < read[3] < read[4], "one visit, four visits, several passes a tree"
    assert found["streamed"]["loss"] == found["all rows"]["loss"]
    assert len(cells(capsys.readouterr().out)) >= 5
    assert (folder / "arcbites_synthetic.svg").read_text().count('<g id="axes_') == 2
    arcbites.main([*options, "--ways", "streamed", "--minutes", "1e-6", "--output", str(output)])
    (stopped,) = json.loads(output.read_text())
    assert stopped["stopped"] and stopped["grown"] == 1
    assert "1*" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.real_data
def test_curves(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real_data.path("covtype")
    picture = folder / "curves.svg"
    options = ["--tables", "adult", "covtype", "--rows", "3000", "--seeds", "2", "--trees", "3", "--threads", "1"]
    curves.main([*options, "--plot", str(picture)])
    rows = [row for row in cells(capsys.readouterr().out) if row[0] in ENGINES]
    assert len(rows) == 4 * 4  # two tables of each of two data sets
    assert float(rows[0][4]) >= float(rows[0][3]) >= 0  # rounded to hundredths of a second
    assert picture.read_text().count('<g id="axes_') == 2


def test_when_a_loss_is_reached() -> None:
    seconds, losses = np.array([1.0, 2.0, 4.0]), np.array([0.9, 0.7, 0.5])
    found = [curves.seconds_to(seconds, losses, wanted) for wanted in (0.95, 0.9, 0.8, 0.5, 0.4)]
    assert found[:4] == pytest.approx([1.0, 1.0, 1.5, 4.0]) and found[4] is None


@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_stages_lead_to_the_whole_model(n_classes: int) -> None:
    """The staged predictions and the callbacks of every library agree with its number of iterations."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 4), dtype=np.float32)
    y = X[:, 0] + X[:, 1] ** 2
    y = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes)).astype(np.float32) if n_classes else y
    settings = Settings("log_loss" if n_classes else "squared_error", n_classes, trees=4, threads=1)
    for engine in ("dboost", "lightgbm", "xgboost", "sklearn"):
        fit = ENGINES[engine](X, y, settings, watch=True)
        stages = list(fit.staged(X, [1, 3, 4]))
        assert len(fit.marks) == 4 and np.diff(fit.marks, prepend=0.0).min() > 0
        assert np.allclose(stages[-1], fit.raw_score(X), atol=1e-6) and not np.allclose(stages[0], stages[1])


@pytest.mark.parametrize("given", ["--folds=1", "--trials=-1", "--rounds=0", "--engines=catboost"])
def test_tuning_refuses_what_it_cannot_measure(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tuning.main([given])
    assert given.partition("=")[0] in capsys.readouterr().err


@pytest.mark.slow
def test_tuning(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "found.json"
    options = ["--quick", "--workers", "1", "--folds", "2", "--trials", "1", "--engines", "dboost,xgboost-kept"]
    with tuning.cluster(1) as client:  # one for all measurements: to start one takes longer than they
        monkeypatch.setattr(tuning, "cluster", lambda n_workers: contextlib.nullcontext(client))
        found = tuning.main([*options, "--output", str(path)])
    assert json.loads(path.read_text()) == found
    for way in ("cv", "fits", "one fit"):
        assert len(found["folds"][way]["seconds"]) == 1 and min(found["folds"][way]["peak_mib"]) > 50
    seconds = found["folds"]["cv"]["seconds"][0] / found["folds"]["fits"]["seconds"][0]
    assert found["folds_ratios"]["seconds"] == [seconds]
    assert list(found["trials"]) == list(found["trials_ratios"]) == ["dboost", "xgboost, matrix kept"]
    said = capsys.readouterr().out
    assert f"2 folds ÷ 2 fits: seconds × {seconds:.2f}" in said and "xgboost, matrix kept: " in said


@pytest.mark.slow
def test_fixed_fits_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, kept = folder / "old.json", folder / "new.json", folder / "kept"
    only = ["--only", "truncated", "--only", "prepared, arcbites", "--only", "checkpoint, absolute_error"]
    assert fixed_fits.main([str(old), *only, "--folder", str(kept)]) == 0
    compared = [*only, "--only", "loaded", "--against", str(old), "--from-folder", str(kept)]
    assert fixed_fits.main([str(new), *compared]) == 0
    assert "3 fits and 9 of the folder, 0 different, 0 failed" in capsys.readouterr().out
    report = json.loads(old.read_text())
    report["fits"]["truncated"]["digests"]["raw"] = "other"
    del report["fits"]["prepared, arcbites"]
    old.write_text(json.dumps(report))
    assert fixed_fits.main([str(new), *compared]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["DIFFERENT  prepared, arcbites: only in the new run", "DIFFERENT  truncated: raw"]


def a_report() -> dict[str, page.Results]:
    """Return made-up reports of all workloads: the others take 2, 3, … times as long, in the last round a quarter more."""
    report: dict[str, page.Results] = {}
    for number, workload in enumerate(WORKLOADS.values()):
        report[workload.name] = {}
        for k, engine in enumerate(ENGINES):
            if engine == "sklearn" and workload.name == "huber":
                continue
            times = [2.0 * (k + 1), 2.0 * (k + 1), 2.0 * (k + 1) * (1.25 if k else 1.0)]
            phases = {phase: times for phase in ("training", "binning", "prediction")}
            report[workload.name][engine] = phases | {
                "scores": {"AUC": 0.5 + number / 100 + k / 1000},
                "peak_memory": 100.0 + k,
            }
    return report


def rows_of(text: str, table: str) -> dict[str, list[str]]:
    """Return the cells of the rows of a table of the page, by the first cell."""
    after = text.partition(f"% table: {table}\n")[2].lstrip("\n").partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in after]
    return {label: rest for label, *rest in cells}


def test_the_tables_of_the_page_are_written_from_the_reports(folder: Path) -> None:
    before = page.PAGE.read_text(encoding="utf-8")
    names = list(ENGINES)
    times = {
        engine: f"{k + 1}.0 ({k + 1}.0–{two})"
        for k, (engine, two) in enumerate(zip(names, page_numbers(len(names)), strict=True))
    }
    cluster = {"2000": {}, "1000000": {"dboost": {"seconds": [10.0, 12.0]}, "xgboost": {"seconds": [20.0, 18.0]}}}
    cluster["1000000"]["lightgbm"] = {"seconds": [30.0, 36.0]}
    for name, data in (("all.json", a_report()), ("cluster.json", cluster)):
        (folder / name).write_text(json.dumps(data))
    (folder / "page.md").write_text(before, encoding="utf-8")
    page.main([str(folder / "all.json"), "--cluster", str(folder / "cluster.json"), "--page", str(folder / "page.md")])
    text = (folder / "page.md").read_text(encoding="utf-8")
    training, others = rows_of(text, "training"), rows_of(text, "other shapes")
    assert [page.workload_of(label) for label in training] == [workload.name for workload in workloads.MAIN]
    assert [page.workload_of(label) for label in others] == [workload.name for workload in workloads.OTHERS]
    for label, cells in (training | others).items():
        expected = ["2.0", times["lightgbm"], times["lightgbm-quantised"], times["xgboost"], times["sklearn"]]
        assert cells[:4] == expected[:4]
        assert cells[4] == ("not available" if label.startswith("huber") else expected[4])
    memory = rows_of(text, "binning, prediction and memory")
    assert memory["W1a"] == [times["lightgbm"], times["xgboost"]] * 2 + [
        "100",
        *(f"{100 + names.index(n)}" for n in ("lightgbm", "xgboost")),
    ]
    accuracy_rows = rows_of(text, "accuracy")
    assert {page.workload_of(label) for label in accuracy_rows} == set(WORKLOADS) - {"leaves of 20"}
    assert accuracy_rows["W1b"][0] == "0.5100" and accuracy_rows["huber, mean absolute error"][3] == "not available"
    assert rows_of(text, "on a cluster")["xgboost.dask"] == ["18.0–20.0", "1.75 (1.50–2.00)"]
    assert rows_of(text, "on a cluster")["dboost"] == ["10.0–12.0", ""]
    summary = {label.partition("]")[0]: cells for label, cells in rows_of(text, "summary").items()}
    k = names.index("xgboost") + 1
    assert summary["[training"][2] == f"{k}.0–{k}.0×"
    assert summary["[peak memory"][0] == "100, 100"
    assert summary["[on a cluster"] == ["", "3.00×", "1.75×", ""]
    kept = {label.partition("]")[0]: cells for label, cells in rows_of(before, "summary").items()}
    assert summary["[Shapley values"] == kept["[Shapley values"]
    assert re.search(r"^Measured with Python 3\.\d+\.\d+, lightgbm .*, in 3 rounds\.$", text, re.MULTILINE)
    changed = [new for old, new in zip(before.split("\n"), text.split("\n"), strict=True) if old != new]
    assert all(line.startswith(("| ", "Measured with ")) for line in changed), "prose stays as it is"
    assert cell(folder / "page.md", "W1a: 1M × 28", "seconds") == "2.0", "the first page finds its figures"


def page_numbers(n: int) -> list[str]:
    """Return 1.25 times 1, 2, … with two digits, as the page shows the largest ratio."""
    return [page.two_digits(1.25 * (k + 1)) for k in range(n)]


def test_a_page_has_losses_in_pairs(folder: Path) -> None:
    engines = ("dboost", "lightgbm", "xgboost", "sklearn")
    losses = {engine: {"AUC": [0.9, 0.9], "log loss": [0.5 + 0.01 * k, 0.7 + 0.03 * k]} for k, engine in enumerate(engines)}
    auto = {
        engine: {
            "CPU s": [1.0 + k, 2.0 + 2 * k],
            accuracy.ROWS: [0.003 * k, 0.004 * k],
            "log loss": [0.5 + k / 100, 0.7 + k / 100],
        }
        for k, engine in enumerate(("dboost-auto", "dboost-refit", "dboost", "lightgbm", "xgboost", "catboost"))
    }
    files = {
        "--accuracy": {"adult": losses, "binary": losses},
        "--defaults": {"regression": losses},
        "--auto": {"covtype": auto},
    }
    (folder / "page.md").write_text(before := page.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    arguments = ["--page", str(folder / "page.md")]
    for option, data in files.items():
        (folder / f"{option[2:]}.json").write_text(json.dumps(data))
        arguments += [option, str(folder / f"{option[2:]}.json")]
    page.main(arguments)
    text = (folder / "page.md").read_text(encoding="utf-8")
    new = ["0.6000", "+0.0200 ± 0.0100", "+0.0400 ± 0.0200", "+0.0600 ± 0.0300"]
    equal, defaults = (rows_of(text, f"accuracy {how}") for how in ("in pairs", "at defaults"))
    assert equal["adult, log loss"] == equal["binary, log loss"] == defaults["regression, RMSE"] == new
    assert len(equal) == len(defaults) == len(accuracy.TABLES)
    without_tuning = rows_of(text, "without tuning")
    assert without_tuning["covtype, log loss"] == [
        "0.6000", "+0.0100 ± 0.0025", "+0.0200 ± 0.0050", "+0.0300 ± 0.0075", "+0.0400 ± 0.0100", "+0.0500 ± 0.0125",
        "1.5", "6.0",
    ]  # fmt: skip
    assert {page.workload_of(label) for label in without_tuning} <= set(accuracy.REAL)
    assert sum(old != new for old, new in zip(before.split("\n"), text.split("\n"), strict=True)) == 4


def test_figures_on_the_page_have_two_digits() -> None:
    assert [page.two_digits(x) for x in (0.0123, 0.394, 0.996, 1.0, 2.25, 9.96, 14.3, 394.2)] == [
        "0.012", "0.39", "1.0", "1.0", "2.2", "10", "14", "394",
    ]  # fmt: skip


def test_a_page_without_the_comments_is_refused() -> None:
    with pytest.raises(LookupError, match="no comment '% table: accuracy'"):
        page.written("# A page\n\n% table: training\n", {})
    with pytest.raises(LookupError, match="'W1a' has 1 cells beside the first one, not 5"):
        page.written("% table: training\n| W1a | 3.0 |", a_report())


def test_the_tables_of_other_pages_are_written_from_their_reports(folder: Path) -> None:
    one = {"added": 300 * 2**20, "load": 12.0, "tree": 1.5, "processor": 2.0, "read": 3 * 2**30}
    figures = {
        "dboost 1": one | {"read": 0}, "dboost 8": one, "xgboost 8": one | {"tree": 4.5}, "dboost in 2048 MiB 8": one,
        "xgboost in 2048 MiB 8": one | {"tree": 9.0}, "cluster in 2048 MiB 8": {"failed": "killed: out of memory"},
    }  # fmt: skip
    reports = {"files.json": {"limit": 2**29, "disk": 2.0**30, "figures": figures}}
    ways = {"all rows": 0.5, "streamed": 0.5, "arcbites, 1 tree a visit, grouped anew": 0.55, "arcbites, slowly": 0.49}
    reports["bites.json"] = [
        {"table": "hflights", "way": way, "loss": loss, "bytes_read": 100 if way == "streamed" else 25}
        for way, loss in ways.items()
    ]
    for name, report in reports.items():
        (folder / name).write_text(json.dumps(report))
    before = {}
    for name in ("benchmarks", "out_of_core", "arcbites"):
        before[name] = page.PAGE.with_name(f"{name}.md").read_text(encoding="utf-8")
        (folder / f"{name}.md").write_text(before[name], encoding="utf-8")
    options = ["--out-of-core", str(folder / "files.json"), "--arcbites", str(folder / "bites.json")]
    page.main([*options, "--page", str(folder / "benchmarks.md")])
    after = {name: (folder / f"{name}.md").read_text(encoding="utf-8") for name in before}
    assert after["benchmarks"] == before["benchmarks"]
    sizes, kept = rows_of(after["out_of_core"], "sizes"), rows_of(before["out_of_core"], "sizes")
    assert sizes["512 MiB"] == ["300 MiB", "12 s", "1.5 (2.0)", "0", ""]
    assert sizes["4 GiB"] == ["300 MiB", "12 s", "1.5 (2.0)", "3.0 GiB", "3.0 s"]
    assert sizes["4 GiB, XGBoost 3.4"] == ["300 MiB", "12 s", "4.5 (2.0)", "", ""]
    assert sizes["1 GiB"] == kept["1 GiB"], "not in the report"
    groups = rows_of(after["out_of_core"], "control groups")
    assert groups["2 GiB"] == ["1.5", "9.0", "6.0", "killed"]
    assert groups["no limit"] == ["1.5", "4.5", "3.0", ""]
    bites = rows_of(after["arcbites"], "a tenth in memory")
    assert bites["hflights, 15,700 rows per bite"] == ["0.5000", "0.5500 (+10.0 %)", "0.4900 (−2.0 %)", "25 %"]
    assert bites["adult, 3,400 rows per bite"] == rows_of(before["arcbites"], "a tenth in memory")["adult, 3,400 rows per bite"]


@pytest.mark.slow
@pytest.mark.parametrize("one_session", [False, True])
def test_real_workers_are_killed_and_counted(folder: Path, one_session: bool) -> None:
    """The model is that of one process, and the connections of a fit are closed after it."""
    output = folder / "real.json"
    real_workers.main(["--quick", "--output", str(output), *["--one-session"] * one_session])
    found = json.loads(output.read_text())
    assert [fit["identical"] for fit in found["fits"]] == [True, True]
    assert [fit["sessions at the end"] for fit in found["fits"]] == ([1, 1] if one_session else [4, 2])
    sockets = [seen["scheduler"]["sockets"] for seen in (found["before"], found["fits"][0]["in the middle"], found["after"])]
    assert sockets[1] > sockets[0] >= sockets[2]


@pytest.mark.slow
def test_loading_is_measured_beside_one_process() -> None:
    """Of many rows no sample comes to the client that grows with them, except that of the summary."""
    found = loading.main(["--quick", "--forms", "array,parquet"])
    for columns in found.values():
        assert columns["ratio"] > 0 and columns["processors, s"] > 0
        assert 1.0 < columns["MiB to the client"] < 3.0
