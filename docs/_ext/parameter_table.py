"""Insert defaults and meanings into the tables on the page of the parameters: both are written in the code only.

A table whose first two columns are ``parameter`` and ``XGBoost`` gets two columns between these: the default in a signature,
and the first sentences of an entry in a docstring. Below the heading `OF_ESTIMATORS` they are those of `DBoostClassifier`,
elsewhere of `dboost.fit`. A parameter without one of them is an error.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from sphinx.application import Sphinx

import dboost
from dboost.params import Parameters

PAGE = "guide/parameters"
OF_ESTIMATORS = "Only of the estimators"
#: Further sentences are left out if the text would be longer.
LONGEST = 200


def meanings(documented: Any) -> dict[str, str]:
    """Return the first sentences of every parameter of a docstring, by name."""
    text = (inspect.getdoc(documented) or "").replace("\nAttributes\n---", "\nParameters\n---")
    section = text.split("\nParameters\n----------\n")[1]
    found = {}
    for names, entry in re.findall(r"^(\w[\w, ]*) : .*\n((?:    .*\n)+)", section, re.MULTILINE):
        text, *more = re.split(r'(?<=\.) (?=[A-Z"`])', " ".join(entry.split()))
        for sentence in more:
            if len(text) + len(sentence) > LONGEST:
                break
            text += f" {sentence}"
        found |= dict.fromkeys(names.split(", "), _in_markdown(text))
    return found


def _in_markdown(text: str) -> str:
    """Return a text of numpydoc for a cell of a table; values in quotes become code."""
    parts = re.split("(`.*?`)", text.replace("``", "`").replace("|", "\\|"))
    return "".join(part if part[:1] == "`" else re.sub(r'(\w+=)?"[^" ]+"', r"`\g<0>`", part) for part in parts)


def columns(name: str, of_estimators: bool) -> list[str]:
    """Return the default and the meaning of a parameter."""
    function = dboost.DBoostClassifier if of_estimators else dboost.fit
    described = meanings(dboost.DBoostClassifier) if of_estimators else meanings(dboost.fit) | meanings(Parameters)
    default = inspect.signature(function).parameters[name].default
    shown = "" if default in (..., inspect.Parameter.empty) else f'"{default}"' if isinstance(default, str) else repr(default)
    return [f"`{shown}`" if shown else "", described[name]]


def filled(text: str) -> str:
    """Return the text of the page with complete tables."""
    lines, heading, inside = [], "", False
    for line in text.splitlines():
        heading = line.lstrip("# ") if line.startswith("#") else heading
        cells = [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") else []
        if cells[:2] == ["parameter", "XGBoost"]:
            inside, more = True, ["default", "meaning"]
        elif not cells:
            inside = False
        elif inside:
            (name,) = re.findall(r"`(\w+)`", cells[0]) or [""]
            more = columns(name, heading == OF_ESTIMATORS) if name else ["---", "---"]
        lines.append(f"| {' | '.join([cells[0], *more, *cells[1:]])} |" if inside else line)
    return "\n".join(lines) + "\n"


def fill(_: Sphinx, page: str, source: list[str]) -> None:
    if page == PAGE:
        source[0] = filled(source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    return {"parallel_read_safe": True}
