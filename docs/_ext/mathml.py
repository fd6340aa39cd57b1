"""Show formulas as MathML, which browsers draw themselves, by the converter of Docutils.

Sphinx's own renderers load scripts from other hosts or need TeX. MathML needs neither: formulas are text of the page, in its
color and size, which can be selected, searched and read aloud.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def _inline(self: Any, node: nodes.Element) -> None:
    self.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.Element) -> None:
    self.body.append(f'<div class="math-line">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
