"""The documentation: every Python block runs, page by page; names in the migration tables exist; the build has no warnings."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import dboost
from dboost.cli import main
from dboost.params import Parameters

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.append(str(DOCS / "_ext"))

import dark_figures  # noqa: E402
import printed  # noqa: E402
from api_tables import members  # noqa: E402
from headline import cell, headlines  # noqa: E402
from page_head import CARD, GUIDE  # noqa: E402
from printed import BLOCK  # noqa: E402

with contextlib.suppress(ImportError):
    import optuna  # noqa: F401  (keeps the frames that import it first, as errors of libraries that it does not find)

#: Pages whose code takes longer than a few seconds: it starts clusters of processes, imports large libraries, or grows forests.
SLOW = {
    "guide/clusters.md",
    "guide/integrations.md",
    "guide/random_forests.md",
    "guide/tuning.md",
    "migration/lightgbm.md",
    "migration/scikit_learn.md",
    "notebooks/from_xgboost_dask.md",
    "notebooks/taxi_killed_worker.md",
    "notebooks/taxi_out_of_core.md",
}

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*_*.md"))


#: Pages with a table of names of another library.
MIGRATION = [DOCS / "migration" / f"{name}.md" for name in ("xgboost", "lightgbm", "catboost", "scikit_learn")]


def pages() -> list[Path]:
    return sorted(page for page in DOCS.rglob("*.md") if not {"_build", "_generated"} & set(page.parts))


def named(paths: list[Path], slow: Collection[str] = ()) -> list[object]:
    names = {path: path.relative_to(DOCS).as_posix() for path in paths}
    return [pytest.param(path, id=name, marks=[pytest.mark.slow] if name in slow else []) for path, name in names.items()]


@pytest.mark.parametrize(
    "page",
    named([page for page in pages() if page not in NOTEBOOKS and BLOCK.search(page.read_text(encoding="utf-8"))], SLOW),
)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed.run_here(page.read_text(encoding="utf-8"), str(page), tmp_path / "figure")


@pytest.fixture(scope="module")
def used_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that all notebooks have written in an earlier run."""
    folder = tmp_path_factory.mktemp("notebooks")
    with contextlib.chdir(folder):
        for page in NOTEBOOKS:
            text = page.read_text(encoding="utf-8")
            writing = [block for block in BLOCK.finditer(text) if "mkdir(" in block[1]]
            if writing:
                closing = "\n```python\nclient.close()\ncluster.close()\n```\n" if "LocalCluster(" in text else ""
                printed.run_here(text[: writing[-1].end()] + closing, str(page), folder / "figure")
    return folder


@pytest.mark.parametrize("page", named(NOTEBOOKS, SLOW))
def test_a_notebook_runs_again_and_beside_the_others(page: Path, used_folder: Path) -> None:
    with contextlib.chdir(used_folder):
        printed.run_here(page.read_text(encoding="utf-8"), str(page), used_folder / "figure")


@pytest.mark.parametrize(
    ("page", "library"),
    [
        pytest.param(page, library, id=f"{page.relative_to(DOCS)}-{library}")
        for page in pages()
        for library in sorted(set(re.findall(r"^% needs (\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)))
    ],
)
def test_the_code_that_needs_a_library_runs(page: Path, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert len(printed.run_here(text, str(page), tmp_path / "figure")) == len(BLOCK.findall(text))


def test_the_first_page_gives_the_same_models_and_its_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "index.md"
    text = page.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    shown = [block["text"] for block in printed.run_here(text, str(page), tmp_path / "figure")]  # writes files
    assert [line for line in "".join(shown).splitlines() if "same model" in line] == ["the same model: True"] * 2
    commands = re.findall(r"^\$ dboost (.*)$", text, re.MULTILINE)
    assert [main(shlex.split(command)) for command in commands] == [0, 0, 0]
    assert {"model.json", "probabilities.parquet"} <= set(os.listdir(tmp_path))


def test_the_user_guide_has_a_card_for_each_of_its_pages() -> None:
    text = (DOCS / f"{GUIDE}.md").read_text(encoding="utf-8")
    contents = "\n".join(re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    listed = re.findall(r"^[\w./]+$", contents, re.MULTILINE)
    cards = CARD.findall(text)
    assert [page for _, page, _ in cards] == listed
    for title, page, _ in cards:
        assert (DOCS / "guide" / f"{page}.md").read_text(encoding="utf-8").startswith(f"# {title}\n"), page


def test_what_a_block_prints_and_draws_is_shown_below_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n```python\nx = 3\nprint('x is', x)\n```\n\nBetween.\n\n```python\nx += 1\n```\n\n"
        "```python\nimport pandas as pd\nprint(pd.DataFrame([['a' * 30] * 3]))\n```\n\n"
        "```python\nimport matplotlib.pyplot as plt\nplt.plot([x])\nplt.title('x')\nprint('```')\n```\n\n"
        "```text\nno code\n```\n"
    )
    blocks = printed.run(page, tmp_path / "results" / "page")
    *texts, frame, last = [block["text"] for block in blocks]
    assert [*texts, last] == ["x is 3\n", "", "```\n"]
    assert frame.count("a" * 30) == 3, "three columns that are wider than 80 characters"
    ((figure, alt),) = blocks[3]["figures"].items()
    assert alt == "Plot: x"
    assert "<svg" in (tmp_path / "results" / figure).read_text()
    shown = printed.with_output(page.read_text(), blocks, "results/page")
    assert (
        shown.index("print('x is', x)")
        < shown.index("\nx is 3\n")
        < shown.index("Between.")
        < shown.index(f"/results/{figure}")
    )
    assert "````{code-block} text\n:class: printed message\n\n```\n````" in shown
    assert shown.count(":class: printed message\n") == 2, "single lines may break"
    assert shown.count(":class: printed\n") == 1, "a frame may not"

    assert printed.run(page, tmp_path / "results" / "page") == blocks, "results of the same code are kept"
    page.write_text("\n```python\nprint(4)\n```\n")
    assert printed.run(page, tmp_path / "results" / "page")[0]["text"] == "4\n"
    page.write_text("\n```python\n1 / 0\n```\n")
    with pytest.raises(RuntimeError, match=r"page\.md.*line 3[\s\S]*ZeroDivisionError"):
        printed.run(page, tmp_path / "results" / "page")


def test_a_page_as_a_notebook_has_its_code_and_text() -> None:
    for page in NOTEBOOKS:
        text = page.read_text(encoding="utf-8")
        notebook = printed.as_notebook(text)
        code = ["".join(cell["source"]) + "\n" for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert code == BLOCK.findall(text) != []
        assert "".join(notebook["cells"][0]["source"]).startswith("# ")
        assert not any(cell.get("outputs") for cell in notebook["cells"])


@pytest.mark.parametrize("page", named(MIGRATION))
def test_names_in_migration_tables_exist(page: Path) -> None:
    known = set(inspect.signature(dboost.fit).parameters) | set(dboost.DBoostClassifier().get_params()) | {"eval_set"}
    rows = [line.split("|")[1:-1] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    unknown = []
    for _, ours, *_ in rows:
        unknown += [name for name in re.findall(r"`(\w+)", ours) if name not in known]
    assert unknown == []


@pytest.mark.parametrize("page", named(MIGRATION))
def test_defaults_in_migration_tables_are_true(page: Path) -> None:
    """Third column: it begins with dboost's default, if it names one."""
    estimator = dboost.DBoostClassifier().get_params()
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 3 or not re.fullmatch(r"`\w+`", cells[1]):
            continue
        name, stated = cells[1].strip("`"), re.match(r"(\d[\d.e-]*\d|\d|none\b)", cells[2])
        if stated:
            default = getattr(Parameters(), name) if hasattr(Parameters(), name) else estimator[name]
            assert default == (None if stated[0] == "none" else float(stated[0])), line


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built pages; the build treats warnings as errors. All tests that use it are `long`."""
    pytest.importorskip("pydata_sphinx_theme")
    folder = tmp_path_factory.mktemp("docs") / "html"
    # Other tests run the blocks of all pages.
    only = ["-D", "printed_only=(quickstart|index|notebooks/nightly_files)$"]
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", *only, str(DOCS), str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": "0"})
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.long
@pytest.mark.slow
def test_the_documents_build_without_a_warning(html: Path) -> None:
    quick_start = (html / "quickstart.html").read_text(encoding="utf-8")
    assert re.search(r'class="printed[\s\S]*&lt;Booster: log_loss, 2 classes, 50 iterations, 30 features&gt;', quick_start)
    assert 'data-default-mode="auto"' in quick_start, "otherwise the theme logs an error in the console"
    for page in html.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert loads_from_elsewhere(text) == [], page
        is_written = "bd-article" in text and page.stem not in ("search", "genindex", "py-modindex")
        assert not is_written or len(re.findall(r'<meta name="description" content="[^"]{15,}', text)) == 1, page


@pytest.mark.long
@pytest.mark.slow
def test_old_names_of_pages_lead_to_the_new_ones(html: Path) -> None:
    redirects = configuration()["redirects"]
    assert len(redirects) >= 8
    for old, new in redirects.items():
        text = (html / f"{old}.html").read_text(encoding="utf-8")
        (target,) = set(re.findall(r'(?:url=|href="|replace\(")([^"]+)"', text))
        assert (html / f"{old}.html").parent.joinpath(target).resolve() == (html / f"{new}.html").resolve()


def configuration() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "conf.py"))


#: What users type into the search box, and the page that they need.
TITLES = {
    "Incremental training": "guide/incremental_training",
    "Input data": "guide/input_data",
    "Save and load": "guide/save_and_load",
    "Monotonic and interaction constraints": "guide/regularization_and_constraints",
    "Regularization and constraints": "guide/regularization_and_constraints",
    "Troubleshooting": "guide/troubleshooting",
    "Model interpretation": "guide/model_interpretation",
    "Coiled, Dask Gateway and other clients": "deploy/client",
    "Deployment": "deploy/index",
    "Training on new files every night": "deploy/new_files",
    "Benchmarks": "benchmarks",
    "Evaluation sets larger than memory": "guide/evaluation_sets",
    "Errors": "guide/errors",
    "Parameters": "guide/parameters",
    "Metrics": "guide/metrics",
    "Tuning and cross-validation": "guide/tuning",
    "Imbalanced data": "guide/imbalanced_data",
    "Dask configuration": "guide/dask_configuration",
    "Serving and monitoring": "guide/serving_and_monitoring",
    "Security and privacy": "guide/security_and_privacy",
    "What dboost does not do, and what to use instead": "guide/limitations",
    "Glossary": "guide/glossary",
    "Quick start": "quickstart",
    "User guide": "guide/index",
    "Architecture": "architecture",
    "Install": "install",
    "Sizing a cluster": "guide/sizing",
    "Command line": "guide/cli",
    "Notebooks": "notebooks/index",
}
WORDS = {
    "feature importance": "guide/model_interpretation",
    "shap": "guide/model_interpretation",
    "partial dependence": "guide/model_interpretation",
    "early stopping": "guide/early_stopping",
    "overfitting": "guide/early_stopping",
    "callbacks": "guide/early_stopping",
    "hyperparameter": "guide/parameters",
    "hyperparameter tuning": "guide/tuning",
    "cross-validation": "guide/tuning",
    "grid search": "guide/tuning",
    "class weight": "guide/imbalanced_data",
    "class imbalance": "guide/imbalanced_data",
    "scale_pos_weight": "guide/imbalanced_data",
    "confusion matrix": "guide/imbalanced_data",
    "out of memory": "guide/large",
    "resume training": "guide/incremental_training",
    "warm start": "guide/incremental_training",
    "data drift": "guide/incremental_training",
    "save model": "guide/save_and_load",
    "onnx": "guide/save_and_load",
    "pickle": "guide/save_and_load",
    "missing values": "guide/categories",
    "categorical features": "guide/categories",
    "custom loss": "guide/losses",
    "quantile regression": "guide/losses",
    "eval_metric": "guide/metrics",
    "auc": "guide/metrics",
    "custom metric": "guide/metrics",
    "monotonic constraints": "guide/regularization_and_constraints",
    "gpu": "guide/limitations",
    "ranking": "guide/limitations",
    "sparse matrix": "guide/limitations",
    "survival": "guide/limitations",
    "dashboard": "guide/clusters",
    "prometheus": "guide/clusters",
    "timeouts": "guide/dask_configuration",
    "environment variables": "guide/dask_configuration",
    "latency": "guide/serving_and_monitoring",
    "privacy": "guide/security_and_privacy",
    "speed": "benchmarks",
    "reproducibility": "method/promises",
    "exceptions": "guide/errors",
    "slow": "guide/troubleshooting",
    "num_leaves": "guide/parameters",
    "min_child_weight": "guide/parameters",
    "n_jobs": "guide/parameters",
    "feature_importances_": "guide/model_interpretation",
    "permutation importance": "guide/model_interpretation",
    "shap values": "guide/model_interpretation",
    "fit_async": "guide/clusters",
    "how many workers": "guide/sizing",
    "retrain": "guide/incremental_training",
    "sample_weight": "guide/weights",
    "multiclass": "guide/losses",
    "mlflow": "guide/integrations",
    "optuna": "guide/integrations",
    "csv": "guide/input_data",
    "pip install": "install",
    "python versions": "install",
    "quickstart": "quickstart",
    "s3": "deploy/object_stores",
    "coiled": "deploy/client",
    "dask gateway": "deploy/client",
    "slurm": "deploy/slurm",
    "docker": "deploy/image",
    "kubernetes": "deploy/kubernetes",
    "deprecation": "versioning",
    "reproducible": "method/promises",
}


@pytest.mark.long
@pytest.mark.slow
def test_pages_are_found_by_their_titles_and_by_what_users_search_for(html: Path) -> None:
    text = (html / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    first = {query: found_by(query, index)[:1] for query in TITLES}
    assert first == {query: [page] for query, page in TITLES.items()}
    missing = {query: found_by(query, index)[:3] for query, page in WORDS.items() if page not in found_by(query, index)[:2]}
    assert missing == {}


def found_by(query: str, index: dict[str, Any]) -> list[str]:
    """Return the pages whose titles, headings or index entries contain the query, best first, as Sphinx's search ranks them."""
    wanted, scores = query.lower(), dict[str, int]()
    for weight, entries in ((15, index["alltitles"]), (100, index["indexentries"])):
        for entry, places in entries.items():
            if wanted in entry.lower() and len(wanted) >= len(entry) / 2:
                for number, *_ in places:
                    score = round(weight * len(wanted) / len(entry)) + (weight == 15 and index["titles"][number] == entry)
                    page = index["docnames"][number]
                    scores[page] = max(scores.get(page, 0), score)
    return sorted(scores, key=lambda page: -scores[page])


CLASSES = [getattr(dboost, name) for name in dboost.__all__ if inspect.isclass(getattr(dboost, name))]
CLASSES += [dboost.losses.Loss, dboost.losses.Targets, dboost.losses.Start, dboost.metrics.Metric, Parameters]


def test_the_index_of_the_api_lists_all_public_names() -> None:
    index = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   dboost\.([\w.]+)$", index, re.MULTILINE))
    assert set(dboost.__all__) - {"__version__"} <= listed
    described = " ".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md") if page.stem != "index")
    errors = {kind.__name__ for kind in CLASSES if issubclass(kind, BaseException)}
    names = {name for name in listed - errors if not name.startswith("integrations.")}
    assert {name for name in names if f":: dboost.{name}\n" not in described} == set()


def test_docstrings_of_public_attributes_do_not_begin_with_what_reads_as_a_type() -> None:
    """Napoleon takes "Names: of features" for a type "Names"."""
    for kind in CLASSES:
        for name in members(kind)["Attributes"]:
            first = (inspect.getdoc(inspect.getattr_static(kind, name)) or "").partition("\n")[0]
            assert ": " not in first, f"{kind.__name__}.{name}"


def test_the_figures_of_the_first_page_are_those_of_the_measurements() -> None:
    found = headlines(DOCS)
    front = (DOCS / "index.md").read_text(encoding="utf-8")
    assert set(found) == set(re.findall(r"\{\{ (\w+) \}\}", front))
    assert all(float(figure) > 1 for figure in found.values())
    assert float(found["memory"]) < float(found["memory_xgboost"])
    with pytest.raises(LookupError, match="no table with a row 'W9'"):
        cell(DOCS / "benchmarks.md", "W9", "seconds")


def loads_from_elsewhere(html: str) -> list[str]:
    """Return the URLs that a browser would load from other hosts by itself (not the targets of links)."""
    found = re.findall(r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=\"((?:https?:)?//[^\"]+)", html)
    found += re.findall(r"<link\b[^>]*\bhref=\"((?:https?:)?//[^\"]+)", html)
    return found + re.findall(r"@import[^;]*//[^;]+|url\([\"']?(?:https?:)?//[^)]+", html)


def test_figures_in_dark_color_schemes_have_no_light_colors() -> None:
    colors = dark_figures.dark_colors()
    assert {"#000000", "#1b1f24", "#0072b2", "#d55e00"} <= colors.keys()
    for path in sorted((DOCS / "pictures").glob("*.svg")):
        if not path.name.startswith(dark_figures.ALIKE):
            dark = dark_figures.darkened(path.read_text(encoding="utf-8"), colors)
            assert not [color for color in colors if color in dark.lower()], path.name
            assert "text { fill: #" in dark and 'style="fill: #ffffff"' not in dark
