"""Write a small page under the old name of every renamed page, which sends browsers to the new one, anchors included.

``redirects`` in the configuration maps old names of pages to new ones, without suffixes.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ConfigError

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>This page has moved</title>
<link rel="canonical" href="{url}">
<script>location.replace("{url}" + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url={url}"></noscript>
</head>
<body><p>This page has moved: <a href="{url}">{url}</a></p></body>
</html>
"""


def check(pages: set[str], redirects: dict[str, str]) -> None:
    """Raise a ConfigError for an old name that is a page, and for a new name that is none."""
    for old, new in redirects.items():
        if old in pages:
            raise ConfigError(f"redirects: {old!r} is a page of its own")
        if new not in pages:
            raise ConfigError(f"redirects: {old!r} leads to {new!r}, which is no page")


def check_names(app: Sphinx, env: Any) -> None:
    check(set(env.found_docs), app.config.redirects)


def write(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    for old, new in app.config.redirects.items():
        file = Path(app.builder.get_outfilename(old))
        file.parent.mkdir(parents=True, exist_ok=True)
        url = html.escape(app.builder.get_relative_uri(old, new))
        file.write_text(PAGE.format(url=url), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("redirects", {}, "html", dict)
    app.connect("env-updated", check_names)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
