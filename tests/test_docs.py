"""The documentation: every Python block runs, page by page; names in the migration tables exist; the build has no warnings."""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import dboost
from dboost.params import Parameters

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: A comment above a block names a library that the tests' environment may lack.
NEEDS = re.compile(r"^% needs (\w+)\n\n\Z", re.MULTILINE)


def pages() -> list[Path]:
    return sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)


def named(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=str(path.relative_to(DOCS))) for path in paths]


@pytest.mark.parametrize("page", named([page for page in pages() if BLOCK.search(page.read_text(encoding="utf-8"))]))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(page, libraries=set())


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
    assert run_blocks(page, libraries={library}) > 0


def run_blocks(page: Path, libraries: set[str]) -> int:
    """Run the blocks of a page that need none but these libraries; return their number."""
    text = page.read_text(encoding="utf-8")
    n_run = 0
    # A module, so that classes defined on the page have one.
    names: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        needed = NEEDS.search(text[: block.start()])
        if needed is not None and needed[1] not in libraries:
            continue
        lines_above = text[: block.start(1)].count("\n")
        exec(compile("\n" * lines_above + block[1], str(page), "exec"), names)
        n_run += 1
    return n_run


def test_code_is_found_on_the_pages_that_teach() -> None:
    with_code = {str(page.relative_to(DOCS)) for page in pages() if BLOCK.search(page.read_text(encoding="utf-8"))}
    assert {
        "quickstart.md",
        "model_format.md",
        "guide/input_data.md",
        "guide/clusters.md",
        "guide/save_and_load.md",
    } <= with_code


@pytest.mark.parametrize("page", named(sorted((DOCS / "migration").glob("*_*.md"))))
def test_names_in_migration_tables_exist(page: Path) -> None:
    known = {field.name for field in fields(Parameters)} | set(inspect.signature(dboost.fit).parameters)
    known |= set(dboost.DBoostClassifier().get_params()) | {"eval_set"}
    rows = [line.split("|")[1:-1] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    unknown = []
    for _, ours, *_ in rows:
        unknown += [name for name in re.findall(r"`(\w+)", ours) if name not in known]
    assert unknown == []


@pytest.mark.parametrize("page", named(sorted((DOCS / "migration").glob("*_*.md"))))
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
    """Return the folder of the built pages; the build treats warnings as errors."""
    pytest.importorskip("pydata_sphinx_theme")
    folder = tmp_path_factory.mktemp("docs") / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": "0"})
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_documents_build_without_a_warning(html: Path) -> None:
    for page in html.rglob("*.html"):
        assert loads_from_elsewhere(page.read_text(encoding="utf-8")) == [], page


@pytest.mark.slow
def test_old_names_of_pages_lead_to_the_new_ones(html: Path) -> None:
    redirects = configuration()["redirects"]
    assert len(redirects) >= 8
    for old, new in redirects.items():
        text = (html / f"{old}.html").read_text(encoding="utf-8")
        (target,) = set(re.findall(r'(?:url=|href="|replace\(")([^"]+)"', text))
        assert (html / f"{old}.html").parent.joinpath(target).resolve() == (html / f"{new}.html").resolve()


def test_redirects_from_pages_and_to_nowhere_are_errors() -> None:
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        import redirects
    finally:
        sys.path.pop(0)
    redirects.check({"a", "b"}, {"old": "a"})
    for wrong in ({"a": "b"}, {"old": "c"}):
        with pytest.raises(Exception, match="redirects:"):
            redirects.check({"a", "b"}, wrong)


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
}


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


def loads_from_elsewhere(html: str) -> list[str]:
    """Return the URLs that a browser would load from other hosts by itself (not the targets of links)."""
    found = re.findall(r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=\"((?:https?:)?//[^\"]+)", html)
    found += re.findall(r"<link\b[^>]*\bhref=\"((?:https?:)?//[^\"]+)", html)
    return found + re.findall(r"@import[^;]*//[^;]+|url\([\"']?(?:https?:)?//[^)]+", html)


def test_what_would_be_loaded_is_seen() -> None:
    assert loads_from_elsewhere('<script src="https://a/b.js"></script><link rel="x" href="//c/d.css">') != []
    assert loads_from_elsewhere('<a href="https://a">a</a><script src="_static/a.js"></script>') == []
