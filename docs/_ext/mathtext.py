"""Render formulas as inline SVG with matplotlib.

Sphinx's own renderers load scripts from other hosts or need TeX. Matplotlib's mathtext supports the part of TeX that the
documentation uses. Each formula becomes paths in an SVG that inherits the color and size of the surrounding text.
"""

from __future__ import annotations

import io
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

#: Font size of the drawn formulas in points, and the number of points shown as one ``em``: letters of the text are smaller.
SIZE, EM = 10.0, 8.8


def drawn(formula: str) -> str:
    """Return the formula as SVG with sizes in ``em``."""
    from matplotlib import rc_context
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import math_to_image

    file = io.StringIO()
    with rc_context({"mathtext.fontset": "stix", "svg.hashsalt": formula, "svg.fonttype": "path"}):
        depth = math_to_image(f"${formula}$", file, prop=FontProperties(size=SIZE), format="svg", color="#0a0b0c")
    text = file.getvalue().strip()
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="patch_1">.*?</g>', "", svg, flags=re.DOTALL).replace("#0a0b0c", "currentColor")
    width = float(re.findall(r'width="([\d.]+)pt"', svg)[0])
    style = f"width:{width / EM:.3f}em;vertical-align:{-depth / EM:.3f}em"
    # Ids must differ between the formulas of a page.
    prefix = f"m{abs(hash(formula)) % 10**8}-"
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
    label = formula.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    opening = f'<svg class="formula" role="img" aria-label="{label}" style="{style}"'
    return re.sub(r'<svg[^>]*?width="[\d.]+pt" height="[\d.]+pt"', lambda _: opening, svg, count=1)


def _inline(self: Any, node: nodes.Element) -> None:
    self.body.append(drawn(node.astext()))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.Element) -> None:
    for line in node.astext().split("\\\\"):
        self.body.append(f'<div class="math-line">{drawn(" ".join(line.split()))}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathtext", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
