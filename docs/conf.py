"""How the documents are built: ``make docs``. Nothing is loaded from elsewhere, neither then nor when they are read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

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
    "mathtext",
    "gallery",
]
exclude_patterns = ["_build", "_ext", "_generated"]

default_role = "py:obj"
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "dboost"
html_math_renderer = "mathtext"
html_static_path = ["_static"]
html_css_files = ["dboost.css"]
#: Pages without others beside them need no list of these.
html_sidebars: dict[str, list[str]] = {page: [] for page in ("index", "quickstart", "gallery", "changelog")}
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "dboost"},
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
}


def without_empty_globs(_: Any, page: str, source: list[str]) -> None:
    """Some tables of contents take in whatever lies in a place: there may be nothing yet, which is no mistake."""
    here = (HERE / page).parent
    lines = [line for line in source[0].split("\n") if not line.startswith("../") or "*" not in line or any(here.glob(line))]
    source[0] = "\n".join(lines)


def setup(app: Any) -> None:
    app.connect("source-read", without_empty_globs)
