"""Docstrings are true: the parameters, attributes and functions that they name exist, and they state what a function does."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dboost
from dboost.params.peer_names import SHOWN_ALIASES

PACKAGE = Path(__file__).parents[2] / "dboost"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Libraries of which files of the package have the names.
LIBRARIES = {"optuna", "shap"}
parsed = cache(ast.parse)


def teardown_module() -> None:
    parsed.cache_clear()  # the garbage collections of later tests would go through a million nodes


#: "name : meaning", at the beginning of a line or after another one, with several names or one.
_SHORT = re.compile(r"(?:^|[.;] )((?:\*{0,2}[A-Za-z_]\w*, )*\*{0,2}[A-Za-z_]\w*) : ", re.MULTILINE)
#: "Do the same", "Return the same of …", "Do the work of …": what that is depends on the docstring of another function.
_REFERS = re.compile(r"^\w+ the (same|work)\b|\bdo(es)? the (same|work of)\b|\bthe same of\b", re.IGNORECASE)
#: `module.name` or `package.module.name`, of the package or of others.
_REFERENCE = re.compile(r"(?<!`)`((?:\w+\.)+\w+)`(?!`)")


def documented(source: str) -> Iterator[tuple[Function | ast.ClassDef, str]]:
    """Yield the functions and classes of a file that have a docstring, and their docstrings."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, Function | ast.ClassDef) and (text := ast.get_docstring(node)):
            yield node, text


def sections(text: str) -> dict[str, str]:
    """Return the sections of a numpydoc docstring by their titles; "" is what precedes the first one."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", text, flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def listed(section: str) -> list[str]:
    """Return the names in a section of parameters or attributes."""
    heads = [line.partition(" : ")[0] for line in section.splitlines() if line and not line.startswith(" ")]
    return [name.strip("* \\") for head in heads for name in head.split(",") if "{" not in name]


def parameters_of(function: Function) -> set[str]:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {one.arg for one in named if one is not None}


def members_of(kind: ast.ClassDef) -> set[str]:
    """Return the fields, properties and attributes of a class."""
    found = set()
    for node in ast.walk(kind):
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            for target in (inner for outer in targets for inner in ast.walk(outer)):
                found |= {target.id} if isinstance(target, ast.Name) else set()
                found |= {target.attr} if isinstance(target, ast.Attribute) else set()
        elif isinstance(node, Function):
            found.add(node.name)
    return found


def unknown_names(source: str, inherited: dict[str, set[str]]) -> list[str]:
    """Return the names that docstrings describe and signatures lack. inherited : members of classes by name."""
    found = []
    for node, text in documented(source):
        by_title = sections(text)
        described = {name.strip("*") for names in _SHORT.findall(by_title[""]) for name in names.split(", ")}
        if isinstance(node, ast.ClassDef):
            init = [one for one in node.body if isinstance(one, Function) and one.name in ("__init__", "__new__")]
            members = members_of(node).union(*(inherited.get(getattr(base, "id", ""), set()) for base in node.bases))
            known = members.union(*map(parameters_of, init))
            described |= set(listed(by_title.get("Attributes", "")))
        else:
            known = parameters_of(node)
        described |= set(listed(by_title.get("Parameters", "")))
        found += [f"{node.name}: {name}" for name in sorted(described - known)]
    return found


def members_by_class() -> dict[str, set[str]]:
    """Return the members and the parameters of the constructor of all classes of the package."""
    kinds = [node for path in FILES for node in ast.walk(parsed(path.read_text("utf-8"))) if isinstance(node, ast.ClassDef)]
    inits = {kind.name: [one for one in kind.body if isinstance(one, Function) and one.name == "__init__"] for kind in kinds}
    return {kind.name: members_of(kind).union(*map(parameters_of, inits[kind.name])) for kind in kinds}


def test_docstrings_describe_parameters_and_attributes_that_exist() -> None:
    inherited = members_by_class()
    assert {str(path): names for path in FILES if (names := unknown_names(path.read_text("utf-8"), inherited))} == {}


def test_docstrings_state_what_a_function_does() -> None:
    found = [
        f"{path.name}: {node.name}: {text.splitlines()[0]}"
        for path in FILES
        for node, text in documented(path.read_text("utf-8"))
        if _REFERS.search(sections(text)[""])
    ]
    assert found == []


def defined_in(source: str) -> set[str]:
    """Return all names that a file defines: functions, classes, fields, parameters, variables and attributes."""
    found = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, Function | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


def lost_references(text: str, defined: dict[str, set[str]]) -> list[str]:
    """Return the references to files of the package that lead nowhere. defined : names by dotted name of the file."""
    found = []
    packages = {part for file in defined for part in file.split(".")} - LIBRARIES
    for reference in dict.fromkeys(_REFERENCE.findall(text)):
        parts = reference.removeprefix("dboost.").split(".")
        if parts[0] not in packages or parts[-1] == "py":
            continue
        starts = [(f".{'.'.join(parts[:k])}.", set(parts[k:])) for k in range(1, len(parts) + 1)]
        if not any(start in f".{file}." and names <= defined[file] for file in defined for start, names in starts):
            found.append(reference)
    return found


def test_references_in_docstrings_and_comments_lead_somewhere() -> None:
    texts = {path: path.read_text("utf-8") for path in FILES}
    defined = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): defined_in(text) for path, text in texts.items()}
    assert {path.name: lost for path, text in texts.items() if (lost := lost_references(text, defined))} == {}


@pytest.mark.parametrize("name", ["fit", "cv", "prepare", "plan", "DBoostClassifier", "DBoostRegressor"])
def test_help_describes_every_keyword(name: str) -> None:
    """``help()`` has an entry for each keyword of the signature, also for those of the tables of parameters."""
    function = getattr(dboost, name)
    keywords = [each.name for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]
    entries = listed(sections(inspect.getdoc(function) or "")["Parameters"])
    aliases = {*SHOWN_ALIASES} | ({"n_threads"} if "n_jobs" in entries else set())  # in the entry of what they stand for
    assert sorted(set(keywords) - {"loss"} - set(entries) - aliases) == []


def test_the_package_lists_public_names_only() -> None:
    assert all(hasattr(dboost, name) for name in dir(dboost))
    assert not {"Any", "annotations", "TYPE_CHECKING", "importlib"} & set(dir(dboost))
