"""Show each figure of a page twice: as it is drawn in light color schemes, and in the report's dark colors in dark ones.

The style sheet of the site shows one of the two. A dark figure has the same shapes as the light one; so colors of a color map,
which are images or no colors of the style, are those of its color bar.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

FOLDER = Path("_generated", "dark")
#: Beginnings of names of pictures that look the same in both color schemes.
ALIKE = ("badge_", "terminal", "logo")
#: Color of the pages in dark color schemes, and colors of matplotlib's own style.
PAPER, OTHERS = "#14181e", {"#000000": "--ink", "#808080": "--grey", "#cccccc": "--faint"}


def dark_colors() -> dict[str, str]:
    """Return the dark color of each color of the plots."""
    from dboost.inspection.report import page

    css = Path(page.__file__).with_name("report.css").read_text(encoding="utf-8")
    block = css[css.index("prefers-color-scheme: dark") :]
    dark = dict(re.findall(r"(--\w+): (#[0-9a-f]{6})", block[: block.index("}")])) | {"--paper": PAPER}
    return {color: dark[variable] for color, variable in (page.VARIABLES | OTHERS).items()}


def darkened(svg: str, colors: dict[str, str]) -> str:
    """Return an SVG picture in other colors and without a background. Texts without a color have the one of black."""
    svg = svg.replace('style="fill: #ffffff"', 'style="fill: none"')
    svg = re.sub("|".join(colors), lambda color: colors[color[0].lower()], svg, flags=re.IGNORECASE)
    style = f"<style>text {{ fill: {colors['#000000']} }}</style>"
    return re.sub(r"<svg[^>]*>", lambda head: head[0] + style, svg, count=1)


class DarkFigures(SphinxTransform):
    """Add the dark figure after each figure of a page."""

    default_priority = 500

    def apply(self, **keywords: Any) -> None:
        for image in [*self.document.findall(nodes.image)]:
            uri = image["uri"]
            path, file = self.env.relfn2path(uri, self.env.docname)
            if not uri.endswith(".svg") or Path(path).name.startswith(ALIKE) or not Path(file).exists():
                continue
            name = FOLDER / path.replace("/", "-")
            target = Path(self.app.srcdir) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(f".{os.getpid()}")  # pages are read by several processes
            part.write_text(darkened(Path(file).read_text(encoding="utf-8"), dark_colors()), encoding="utf-8")
            part.replace(target)
            self.env.note_dependency(path)
            dark = image.deepcopy()
            dark["uri"] = f"/{name.as_posix()}"
            dark["classes"] = [*image["classes"], "only-dark"]
            image["classes"] = [*image["classes"], "only-light"]
            image.parent.insert(image.parent.index(image) + 1, dark)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(DarkFigures)
    return {"parallel_read_safe": True}
