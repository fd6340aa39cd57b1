"""The benchmarks run and measure what they document; their tables are tiny here."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from packaging.version import Version

import dboost
from benchmarks import (
    accuracy,
    arcbites,
    cold_start,
    defaults,
    fixed_fits,
    headline_pictures,
    latency,
    limits,
    loading,
    page,
    passes,
    peers,
    profile,
    race,
    readme_pictures,
    real_workers,
    shap,
    workloads,
)
from benchmarks.__main__ import main
from benchmarks.engines import ENGINES, USUAL, Settings
from benchmarks.workloads import WORKLOADS
from tests.helpers.tune import Tune
from tests.project.test_docs import cell

#: Libraries that are installed by hand for a benchmark.
NOT_OF_TESTS = ("catboost", "chimeraboost")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(workloads, "FOLDER", tmp_path / "data")
    return tmp_path


def test_the_pinned_peers_are_at_least_those_of_the_tests() -> None:
    text = (peers.REQUIREMENTS / "dev.txt").read_text() + (peers.REQUIREMENTS / "run.txt").read_text()
    for library, (name, *_) in peers.DISTRIBUTIONS.items():
        found = re.search(rf"^{name}==(\S+)$", text, re.MULTILINE)
        assert found and Version(found[1]) <= peers.pinned(library)


@pytest.mark.long
@pytest.mark.slow
def test_one_command_runs_the_lot(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every library learns from each table, and to a similar loss: the settings reached every one of them."""
    output, picture = folder / "report.json", folder / "race.svg"
    fit = 'dboost.fit(X, y, loss="log_loss", progress=False)'
    assert fit in cold_start.FIRST_FIT
    one_kernel = "from dboost.kernels.exp_log import exp; exp(X[0])"  # to compile all of a fit takes a minute
    monkeypatch.setattr(cold_start, "FIRST_FIT", cold_start.FIRST_FIT.replace(fit, one_kernel))
    options = ["--quick", "--threads", "1", "--no-memory", "--output", str(output)]
    main(["--all", "--rounds", "1", *options, "--plot", str(picture)])
    drawn, said = capsys.readouterr()
    assert peers.describe(peers.DISTRIBUTIONS) in drawn and all(text in said for text in peers.warnings(peers.DISTRIBUTIONS))
    assert all(f">{text}</text>" in picture.read_text() for text in ("W1b", "W5", "xgboost", "limits"))
    report = json.loads(output.read_text())
    assert list(report) == list(WORKLOADS)
    for name in ("W1b", "W5"):
        assert list(report[name]) == list(ENGINES)
        for result in report[name].values():
            assert all(len(result[phase]) == 1 and result[phase][0] > 0 for phase in ("binning", "training", "prediction"))
    nothing = {"AUC": 0.5, "log loss": np.log(5), "MAE": 0.95, "RMSE": 1.1}
    for name in ["W1b", "W5", *(workload.name for workload in workloads.OTHERS)]:
        results = [report[name][engine]["scores"] for engine in USUAL if engine in report[name]]
        assert len(results) == len(USUAL) - (name == "huber")
        score = next(iter(results[0]))
        values = [scores[score] for scores in results]
        assert max(values) - min(values) < (0.1 if name in ("categories", "classes", "huber") else 0.03), name
        assert (min(values) > nothing[score] + 0.05) if score == "AUC" else (max(values) < nothing[score] - 0.03), name
    # Shapley values equal the others' up to float32.
    values = [row for row in cells(drawn) if row[0] in set(map(str, shap.CASES))]
    assert len(values) == len(shap.CASES) and all(float(row[-1]) < 1e-5 for row in values)
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
@pytest.mark.parametrize(
    ("how", "tables"),
    [
        (["--trees", "5"], list(accuracy.GENERATED)),
        (
            ["--defaults", "--engines", *USUAL, *sorted(set(defaults.ENGINES) - {*USUAL, *NOT_OF_TESTS})],
            ["regression", "categories"],
        ),
    ],
    ids=["equal settings", "defaults"],
)
def test_accuracy_on_generated_tables(
    how: list[str], tables: list[str], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "MOST_ITERATIONS", 20)
    monkeypatch.setattr(accuracy, "GENERATED", {k: replace(v, rows=600) for k, v in accuracy.GENERATED.items()})
    output = ["--output", str(folder / "losses.json")]
    accuracy.main(["--tables", *tables, "--seeds", "2", "--threads", "1", *how, *output])
    losses = json.loads((folder / "losses.json").read_text())
    assert list(losses) == tables and len(losses["categories"]["xgboost"]["log loss"]) == 2
    drawn = capsys.readouterr().out
    assert drawn.count("│ dboost ") == drawn.count("│ sklearn ") == len(tables)
    assert drawn.count("the best of the others, by ") == len(tables) and "1,200 × 28, 2 tables" in drawn


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


@pytest.mark.parametrize("name", ["terminal", *readme_pictures.TWICE, *(f"{name}_dark" for name in readme_pictures.TWICE)])
def test_pictures_of_the_readme_load_nothing(name: str) -> None:
    root = Path(readme_pictures.__file__).parent.parent
    picture = (root / "docs" / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert f"docs/pictures/{name}.svg" in (root / "README.md").read_text(encoding="utf-8")
    assert "@font-face" not in picture and "@import" not in picture and "url(http" not in picture
    if name.endswith("_dark"):
        light = root / "docs" / "pictures" / f"{name.removesuffix('_dark')}.svg"
        assert picture == readme_pictures.dark(light.read_text(encoding="utf-8")), "draw both files again"


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


def test_the_pictures_of_the_first_page_show_the_figures_of_the_tables(folder: Path) -> None:
    headline_pictures.draw_tables(folder)
    for picture in ("headline.svg", "field.svg", "memory.svg", "hosts.svg"):
        drawn, stored = (
            re.findall(r">([^<>]+)</text>", (place / picture).read_text(encoding="utf-8"))
            for place in (folder, headline_pictures.DOCS / "pictures")
        )
        assert len(drawn) > 5
        assert drawn == stored, "python -m benchmarks.headline_pictures --tables"


@pytest.mark.slow
def test_parts_of_a_profile_add_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile.main(["--quick", "--workloads", "W1b", "--trees", "6", "--every", "3", "--plot", str(folder / "profile.svg")])
    seconds = {row[0]: float(row[1]) for row in cells(capsys.readouterr().out) if row[1]}
    parts = sum(seconds[part] for part in (*profile.PARTS, *profile.OTHERS))
    assert parts == pytest.approx(seconds["a tree"], abs=0.01)
    assert "<svg" in (folder / "profile.svg").read_text()


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
def test_arcbites(folder: Path, tune: Tune) -> None:
    """Each way in this process; a limit is one that the rows do not fit."""
    tune(resident_rows=0)
    output = folder / "found.json"
    options = ["--quick", "--tables", "synthetic", "--rows", "4000", "--trees", "4", "--set", "max_leaf_nodes=8"]
    arcbites.main([*options, "--output", str(output), "--pictures", str(folder)])
    ways = {result["way"]: result for result in json.loads(output.read_text())}
    assert list(ways) == arcbites.SYNTHETIC_WAYS and ways["streamed"]["loss"] == ways["all rows"]["loss"]
    assert all(result["trees"] == len(result["curve"]["loss"]) == 4 and result["loss"] < 0.7 for result in ways.values())
    read = [result["bytes_read"] for result in ways.values()]
    assert read[0] == read[1] == 0 < read[2] < read[3] < read[4], "one visit, four visits, several passes a tree"


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


def test_the_tables_of_the_pages_are_written_from_the_reports(folder: Path) -> None:
    """Of all pages only the cells that the reports have change; prose stays as it is."""
    losses = {
        engine: {"AUC": [0.9, 0.9], "log loss": [0.5 + 0.01 * k, 0.7 + 0.03 * k]}
        for k, engine in enumerate(("dboost", "lightgbm", "xgboost", "sklearn"))
    }
    measured = {"added": 300 * 2**20, "load": 12.0, "tree": 1.5, "processor": 2.0, "read": 3 * 2**30}
    figures = {"dboost 8": measured, "xgboost 8": measured | {"tree": 4.5}}
    ways = {"all rows": 0.5, "streamed": 0.5, "arcbites, 1 tree a visit, grouped anew": 0.55, "arcbites, slowly": 0.49}
    bites = [{"table": "hflights", "way": way, "loss": loss, "bytes_read": 100} for way, loss in ways.items()]
    field = {
        table: {
            engine: {"CPU s": [2.0, 2.0 * k], "± over rows": [0.003, 0.004], "log loss": [0.5, 0.5 + 0.01 * (k - 1)]}
            for k, engine in enumerate(page.FIELD.values(), 1)
        }
        for table in page.FIELD_TABLES
    }
    seconds = {"dboost": [10.0, 12.0], "xgboost": [20.0, 18.0], "lightgbm": [30.0, 36.0]}
    cluster = {"2000": {}, "1000000": {engine: {"seconds": times} for engine, times in seconds.items()}}
    reports = {
        "all": a_report(), "cluster": cluster, "accuracy": {"adult": losses}, "defaults": {"regression": losses}, "auto": field,
        "out-of-core": {"limit": 2**29, "disk": 2.0**30, "figures": figures}, "arcbites": bites,
    }  # fmt: skip
    before, arguments = {}, []
    for name, report in reports.items():
        (folder / f"{name}.json").write_text(json.dumps(report))
        arguments += [str(folder / "all.json")] if name == "all" else [f"--{name}", str(folder / f"{name}.json")]
    for name in ("benchmarks", "out_of_core", "arcbites"):
        before[name] = page.PAGE.with_name(f"{name}.md").read_text(encoding="utf-8")
        (folder / f"{name}.md").write_text(before[name], encoding="utf-8")
    page.main([*arguments, "--page", str(folder / "benchmarks.md")])
    after = {name: (folder / f"{name}.md").read_text(encoding="utf-8") for name in before}
    for name, text in before.items():
        changed = [new for old, new in zip(text.split("\n"), after[name].split("\n"), strict=True) if old != new]
        assert changed and all(line.startswith(("| ", "Measured with ")) for line in changed), name
    text = after["benchmarks"]
    training, others = rows_of(text, "training"), rows_of(text, "other shapes")
    assert [page.workload_of(label) for label in training] == [workload.name for workload in workloads.MAIN]
    assert [page.workload_of(label) for label in others] == [workload.name for workload in workloads.OTHERS]
    for label, row in (training | others).items():
        assert row[:2] == ["2.0", "2.0 (2.0–2.5)"] and (row[4] == "not available") == label.startswith("huber")
    assert rows_of(text, "on a cluster")["xgboost.dask"] == ["18.0–20.0", "1.75 (1.50–2.00)"]
    assert rows_of(text, "accuracy in pairs")["adult, log loss"] == [
        "0.6000", "+0.0200 ± 0.0100", "+0.0400 ± 0.0200", "+0.0600 ± 0.0300",
    ]  # fmt: skip
    assert rows_of(text, "without tuning")['`max_iter="auto"`'] == [*["0.5000"] * 5, "", "1"]
    assert rows_of(text, "without tuning")["… processor seconds"] == [*["2.0"] * 5, "", ""]
    assert rows_of(text, "without tuning")["dboost, 100 iterations"] == [*["+2.0 ± 0.5"] * 5, "+2.0", "2.0"]
    assert rows_of(after["out_of_core"], "sizes")["4 GiB"] == ["300 MiB", "12 s", "1.5 (2.0)", "3.0 GiB", "3.0 s"]
    assert rows_of(after["arcbites"], "a tenth in memory")["hflights, 15,700 rows per bite"][2] == "0.4900 (−2.0 %)"
    assert cell(folder / "benchmarks.md", "W1a: 1M × 28", "seconds") == "2.0", "the first page finds its figures"


@pytest.mark.slow
def test_real_workers_are_killed_and_counted(folder: Path) -> None:
    """The model is that of one process, and the connections of a fit are closed after it."""
    output = folder / "real.json"
    real_workers.main(["--quick", "--output", str(output)])
    found = json.loads(output.read_text())
    assert [fit["identical"] for fit in found["fits"]] == [True, True]
    assert [fit["sessions at the end"] for fit in found["fits"]] == [4, 2]
    sockets = [seen["scheduler"]["sockets"] for seen in (found["before"], found["fits"][0]["in the middle"], found["after"])]
    assert sockets[1] > sockets[0] >= sockets[2]


@pytest.mark.slow
def test_loading_is_measured_beside_one_process() -> None:
    """Of many rows no sample comes to the client that grows with them, except that of the summary."""
    found = loading.main(["--quick", "--forms", "array,parquet"])
    for columns in found.values():
        assert columns["ratio"] > 0 and columns["processors, s"] > 0
        assert 1.0 < columns["MiB to the client"] < 3.0
