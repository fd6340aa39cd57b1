"""Configuration of the documentation (``make docs``). Neither the build nor the pages load anything from other hosts."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from docutils import nodes

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from headline import headlines  # noqa: E402

from dboost.version import __version__  # noqa: E402

project = "dboost"
author = "the dboost developers"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "mathml",
    "gallery",
    "dark_figures",
    "redirects",
    "printed",
    "parameter_table",
    "page_head",
    "api_tables",
]
exclude_patterns = ["_build", "_ext", "_generated"]

default_role = "py:obj"
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist", "substitution"]
myst_substitutions = headlines(HERE)
myst_heading_anchors = 3

autodoc_typehints = "none"
#: Optional libraries that the build does without.
autodoc_mock_imports = ["mlflow", "optuna"]
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "dboost"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["dboost.css"]
html_js_files = ["copy.js", "search.js"]
html_favicon = "_static/logo.svg"
#: Without it the script of the theme reports an error in the console of the browser.
html_context = {"default_mode": "auto"}
#: Pages without siblings need no sidebar.
html_sidebars: dict[str, list[str]] = {
    page: [] for page in ("index", "install", "quickstart", "gallery", "versioning", "changelog")
}
#: Old names of pages that have been renamed.
redirects = {
    "api/errors": "guide/errors",
    "api/estimators": "api/regressor",
    "api/losses": "api/loss",
    "guide/constraints": "guide/regularization_and_constraints",
    "guide/continued": "guide/incremental_training",
    "guide/data": "guide/input_data",
    "guide/saving": "guide/save_and_load",
    "guide/stopping": "guide/early_stopping",
    "inspection": "guide/model_interpretation",
    "performance": "benchmarks",
}
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "dboost", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg", "alt_text": ""},
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
}


def complete_contents(_: Any, page: str, source: list[str]) -> None:
    """Expand the patterns in tables of contents.

    Remove a pattern that matches no page (Sphinx would warn), and replace ``../*`` by all pages beside this file that no other
    table lists.
    """
    here = (HERE / page).parent
    lines: list[str] = []
    for line in source[0].split("\n"):
        if line == "../*":
            lines += [f"../{name}" for name in unlisted_pages()]
        elif not line.startswith("../") or "*" not in line or any(here.glob(line)):
            lines.append(line)
    source[0] = "\n".join(lines)


def unlisted_pages() -> list[str]:
    named = {line.rsplit("/", 1)[-1] for page in HERE.rglob("*.md") for line in page.read_text(encoding="utf-8").split("\n")}
    names = sorted(page.stem for page in HERE.glob("*.md") if page.stem != "index")
    return [name for name in names if not any(fnmatchcase(name, line) for line in named if line not in ("", "*"))]


def mark_long_names(_: Any, doctree: nodes.document, __: str) -> None:
    """Give code in the text the class ``long`` if a word of it may be wider than a phone: the style sheet lets it break."""
    for code in doctree.findall(nodes.literal):
        if max(map(len, code.astext().split()), default=0) > 30:
            code["classes"].append("long")


def setup(app: Any) -> None:
    app.connect("source-read", complete_contents)
    app.connect("doctree-resolved", mark_long_names)
