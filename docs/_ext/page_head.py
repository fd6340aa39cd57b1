"""Give every page a description for search engines and a title of its own, and every picture a text.

The description is the sentence of the page's card in the user guide, or its first paragraph, shortened to whole words. Two
pages of one title, and a picture without an alternative text, are warnings, which fail the build.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)
GUIDE = "guide/index"
CARD = re.compile(r"^:+\{grid-item-card\} (.*)\n:link: (.*)\n:link-type: doc\n(.*)$", re.MULTILINE)
#: Characters of a description that search engines show.
LONGEST = 160


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return a text on one line, cut after a word if it is too long."""
    text = " ".join(text.split())
    return text if len(text) <= longest else text[:longest].rpartition(" ")[0].rstrip(",;:.") + " …"


def card_texts(source: Path) -> dict[str, str]:
    """Return title and sentence of the cards of the user guide by the name of their page."""
    cards = CARD.findall((source / f"{GUIDE}.md").read_text(encoding="utf-8"))
    folder = PurePosixPath(GUIDE).parent
    return {re.sub(r"^[^/]+/\.\./", "", f"{folder / page}"): f"{title}: {text.replace('`', '')}" for title, page, text in cards}


def first_paragraph(page: nodes.Node) -> str:
    """Return the first paragraph of a page, or of the description of a class if it has no other, shortened."""
    for parent in (nodes.section, nodes.Element):
        for paragraph in page.findall(nodes.paragraph):
            if isinstance(paragraph.parent, parent) and len(paragraph.astext()) > 15:
                return shortened(paragraph.astext())
    return ""


def describe(app: Sphinx, page: str, _: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    if doctree is None:  # the page of the search, and others without a source
        return
    text = card_texts(Path(app.srcdir)).get(page) or first_paragraph(doctree) or context["title"]
    if 'name="description"' not in context["metatags"]:
        context["metatags"] += f'\n<meta name="description" content="{html.escape(text)}" />'


def check_pictures(_: Sphinx, doctree: nodes.document, page: str) -> None:
    for image in doctree.findall(nodes.image):
        if not image.get("alt", "").strip():
            logger.warning("the picture %s has no alternative text", image["uri"], location=page)


def check_titles(_: Sphinx, env: Any) -> None:
    pages = defaultdict(list)
    for page, title in env.titles.items():
        pages[title.astext()].append(page)
    for title, names in pages.items():
        if len(names) > 1:
            logger.warning("the pages %s have the same title: %s", " and ".join(sorted(names)), title)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", describe)
    app.connect("doctree-resolved", check_pictures)
    app.connect("env-updated", check_titles)
    return {"parallel_read_safe": True}
