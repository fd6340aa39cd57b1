"""Show under each Python block of a page what it prints and draws.

When the documentation is built, the blocks of every page run in order, each page in a process and an empty folder of its own.
What a block prints is inserted below it, and so is each figure that it leaves open in pyplot (as SVG). A block that fails is a
warning, which fails the build. Results are kept in ``docs/_generated/printed`` until the code of the page changes; `make docs`
removes them. The configuration value ``printed_only``, a regular expression, limits this to some pages.

Pages in ``docs/notebooks`` are also offered as Jupyter notebooks, which are made from the text.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).parent.parent.parent
#: A block of code that begins at the left margin.
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: A comment above a block names a library that it needs; without the library the block does not run.
NEEDS = re.compile(r"^% needs (\w+)\n\n\Z", re.MULTILINE)
FOLDER, NOTEBOOKS = Path("_generated", "printed"), Path("_generated", "notebooks")
#: Characters of a line of a printed frame: as many as a page shows without scrolling.
WIDTH = 100
#: Seconds after which a page is given up.
PATIENCE = 900


def run_here(text: str, name: str, pictures: Path) -> list[dict[str, Any]]:
    """Run the blocks of a page in this process; return what each printed and the names of its figures.

    pictures : stem of the files of figures.
    """
    # A module, so that classes defined on the page have one.
    names: dict[str, object] = {"__name__": "__main__"}
    found = []
    for block in BLOCK.finditer(text):
        needed = NEEDS.search(text[: block.start()])
        if needed is not None and importlib.util.find_spec(needed[1]) is None:
            found.append({"text": "", "figures": {}})
            continue
        lines_above = text[: block.start(1)].count("\n")
        out = io.StringIO()
        with contextlib.redirect_stdout(out), pd.option_context("display.width", WIDTH, "display.max_columns", 20):
            exec(compile("\n" * lines_above + block[1], name, "exec"), names)
        found.append({"text": out.getvalue(), "figures": _save_figures(Path(f"{pictures}-{len(found)}"))})
    return found


def _save_figures(stem: Path) -> dict[str, str]:
    """Save the open figures; return a text about each by the name of its file."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None:
        return {}
    figures = {}
    for number in plt.get_fignums():
        figure, name = plt.figure(number), f"{stem.name}-{number}.svg"
        figure.savefig(stem.with_name(name), bbox_inches="tight", metadata={"Date": None})
        figures[name] = _described(figure)
    plt.close("all")
    return figures


def _described(figure: Any) -> str:
    """Return the titles of a figure's axes, or the labels of axes without a title, for readers who do not see it."""
    texts = []
    for axes in figure.axes:
        title = axes.get_title() or axes.get_title("left")
        labels = " over ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel())))
        texts.append(title or labels)
    return "Plot: " + "; ".join(" ".join(text.split()) for text in texts if text)


def run(page: Path, stem: Path) -> list[dict[str, Any]]:
    """Run the blocks of a page in a new process, or return the results of an earlier run of the same code.

    stem : of the files of results and figures.

    Raises
    ------
    RuntimeError
        If a block fails.
    """
    text = page.read_text(encoding="utf-8")
    digest = hashlib.sha256("".join(BLOCK.findall(text)).encode()).hexdigest()
    results = Path(f"{stem}.json")
    if results.exists():
        kept = json.loads(results.read_text(encoding="utf-8"))
        if kept["digest"] == digest:
            return kept["blocks"]
    stem.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), str(page.resolve()), str(stem.resolve())],
            cwd=folder, capture_output=True, text=True, timeout=PATIENCE,
            env=os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
        )  # fmt: skip
    if done.returncode:
        # Other threads and processes may have written to stderr after the block failed.
        raise RuntimeError(f"{page.name}: {(done.stdout or done.stderr).strip()[-2000:]}")
    blocks = json.loads(done.stdout)
    results.write_text(json.dumps({"digest": digest, "blocks": blocks}), encoding="utf-8")
    return blocks


def with_output(text: str, blocks: Sequence[dict[str, Any]], stem: str) -> str:
    """Return a page with what its blocks printed below them. stem : of the figures, from the root of the documents."""
    results = iter(blocks)

    def shown(block: re.Match[str]) -> str:
        result = next(results)
        parts = [block[0]]
        printed = result["text"].rstrip()
        if printed.strip():
            fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", result["text"])), default=0))
            # A single line, or one longer than those of a frame, is a message or a list: it may break, a table must not.
            is_message = "\n" not in printed or max(map(len, printed.split("\n"))) > WIDTH
            kind = "printed message" if is_message else "printed"
            parts.append(f"{fence}{{code-block}} text\n:class: {kind}\n\n{printed}\n{fence}")
        folder = Path(stem).parent.as_posix()
        parts += [f"```{{image}} /{folder}/{name}\n:class: drawn\n:alt: {alt}\n```" for name, alt in result["figures"].items()]
        return "\n\n".join(parts)

    return BLOCK.sub(shown, text)


def as_notebook(text: str) -> dict[str, Any]:
    """Return a page as a Jupyter notebook without outputs (format 4.5)."""
    cells: list[dict[str, Any]] = []
    # The pattern has one group, so code and text alternate.
    for k, part in enumerate(BLOCK.split(text)):
        if part.strip():
            code = {"cell_type": "code", "execution_count": None, "outputs": []} if k % 2 else {"cell_type": "markdown"}
            source = part.strip("\n").splitlines(keepends=True)
            cells.append(code | {"id": f"cell-{k}", "metadata": {}, "source": source})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _is_notebook(docname: str) -> bool:
    return docname.startswith("notebooks/") and docname != "notebooks/index"


def prepare(app: Any, env: Any, docnames: list[str]) -> None:
    """Run the pages that are to be read, two at a time, and write the notebooks."""
    from sphinx.util import logging

    logger = logging.getLogger(__name__)
    source = Path(app.srcdir)
    pages = {name: Path(env.doc2path(name)) for name in docnames}
    only = re.compile(app.config.printed_only)  # by default it matches all
    to_run = [name for name, page in pages.items() if only.match(name) and BLOCK.search(page.read_text(encoding="utf-8"))]

    def one(name: str) -> list[dict[str, Any]]:
        try:
            return run(pages[name], source / FOLDER / name)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            logger.warning("%s", error, location=name)
            return []

    with ThreadPoolExecutor(2) as pool:
        app.printed = dict(zip(to_run, pool.map(one, to_run), strict=True))
    for name in filter(_is_notebook, docnames):
        file = source / NOTEBOOKS / f"{Path(name).name}.ipynb"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(as_notebook(pages[name].read_text(encoding="utf-8")), indent=1), encoding="utf-8")


def insert(app: Any, page: str, source: list[str]) -> None:
    blocks = app.printed.get(page)
    if blocks:
        source[0] = with_output(source[0], blocks, (FOLDER / page).as_posix())
    if _is_notebook(page):
        title, _, rest = source[0].partition("\n")
        file = (NOTEBOOKS / f"{Path(page).name}.ipynb").as_posix()
        source[0] = f"{title}\n\n{{download}}`Download as a Jupyter notebook </{file}>`\n{rest}"


def setup(app: Any) -> dict[str, Any]:
    app.printed = {}
    app.add_config_value("printed_only", "", "env", str)
    app.connect("env-before-read-docs", prepare)
    app.connect("source-read", insert)
    return {"parallel_read_safe": False}


if __name__ == "__main__":
    path = Path(sys.argv[1])
    try:
        shown = json.dumps(run_here(path.read_text(encoding="utf-8"), str(path), Path(sys.argv[2])))
    except Exception:
        print(traceback.format_exc())
        sys.exit(1)
    print(shown)
