"""Add to every documented class a table of its attributes and methods, with a line each and links to their descriptions.

Members that a class inherits from other libraries are left out.
"""

from __future__ import annotations

import inspect
import re
from functools import cached_property
from typing import Any

from sphinx.application import Sphinx

import dboost


def module_of(member: Any) -> str:
    """Return the name of the module that defines a method or a property; "" for other members."""
    for attribute in ("fget", "func"):
        member = getattr(member, attribute, None) or member
    return str(getattr(inspect.unwrap(member) if callable(member) else member, "__module__", None) or "")


def is_foreign(member: Any) -> bool:
    module = module_of(member)
    return module != "" and module.partition(".")[0] != dboost.__name__


def members(documented: type) -> dict[str, list[str]]:
    """Return the public attributes and methods of a class, in the order of the code."""
    listed: dict[str, list[str]] = {"Attributes": [], "Methods": []}
    for kind in documented.__mro__:
        for name in vars(kind):
            member = inspect.getattr_static(documented, name)
            is_property = isinstance(member, property | cached_property)
            if name.startswith("_") or is_foreign(member) or not (is_property or inspect.isroutine(member)):
                continue
            if inspect.getdoc(member) and not any(name in names for names in listed.values()):
                listed["Attributes" if is_property else "Methods"].append(name)
    return listed


def first_sentence(member: Any) -> str:
    """Return the first sentence of the docstring of a member."""
    paragraph = " ".join((inspect.getdoc(member) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]


def add_tables(_: Sphinx, what: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    if what != "class" or "members" not in options:
        return
    wanted = options["members"]  # a list of names, or a mark of all
    for title, names in members(documented).items():
        shown = [member for member in names if not isinstance(wanted, list) or member in wanted]
        if shown:
            lines += ["", f".. rubric:: {title}", "", ".. list-table::", "   :class: summary", ""]
            for member in shown:
                lines += [f"   * - :py:obj:`~{name}.{member}`", f"     - {first_sentence(getattr(documented, member))}"]
            lines.append("")


def leave_out(_: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out members that other libraries define."""
    return True if what == "class" and is_foreign(member) else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.setup_extension("sphinx.ext.autosummary")
    app.connect("autodoc-process-docstring", add_tables, priority=900)  # after napoleon
    app.connect("autodoc-skip-member", leave_out)
    return {"parallel_read_safe": True}
