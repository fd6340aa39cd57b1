"""The house keeps its floors: a module imports only from the floors below its own.

The table is the whole rule. It is read from the bottom up; rooms on one floor do not know each other, and every import
counts, also one inside a function or for type checking only. A room that is new in the code but not in the table fails
the test, so the table cannot fall behind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dboost"

#: From the ground up.
FLOORS: list[set[str]] = [
    {"errors", "schema", "version", "late", "remote"},
    {"arcbites"},
    {"params"},
    {"kernels"},
    {"losses"},
    {"statistics"},
    {"binning"},
    {"model"},
    {"sources"},
    {"growth"},
    {"shard"},
    {"engine"},
    {"training"},
    {"cluster"},
    {"inspection", "exports", "imports"},
    {"offspring"},
    {"booster"},
    {"adopt"},
    {"api", "preparing"},
    {"stream"},
    {"estimators"},
    {"__init__"},  # what `import dboost` is: a floor that only the commands stand on
    {"demo"},
    {"cli"},
    {"__main__"},
]
#: Doors that stay shut although they lead down: how a tree grows must not depend on where the rows live.
SHUT = {("growth", "shard")}
#: The only rooms that may import these packages at all …
ONLY_IN = {"distributed": {"cluster"}, "matplotlib": {"inspection", "demo"}}
#: … and the packages that are imported when they are needed, not when the module is read.
LATE = {"matplotlib"}
#: One idea a file; a name like these says there was none.
NO_IDEA = {"utils", "util", "common", "helpers", "misc"}

FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def imports(module: str, source: str) -> Iterator[tuple[int, str, bool]]:
    """All imports of a module as (line, absolute dotted name, at module level)."""
    tree = ast.parse(source)
    inside_functions = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        at_top = id(node) not in inside_functions
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, at_top
        elif isinstance(node, ast.ImportFrom):
            # `module` names packages with their __init__, so that one dot always leads to the folder of the file.
            folder = module.split(".")[: -node.level] if node.level else []
            start = ".".join([*folder, node.module] if node.module else folder)
            for alias in node.names:
                yield node.lineno, f"{start}.{alias.name}", at_top


def violations(module: str, source: str) -> list[str]:
    """What is wrong with the imports of a module of the package, one sentence each."""
    room = module.split(".")[1]
    if room not in FLOOR_OF:
        return [f"{module}: the room {room!r} is not in the table of floors"]
    found = []
    for line, name, at_top in imports(module, source):
        package, _, rest = name.partition(".")
        where = f"{module}:{line}"
        if room not in ONLY_IN.get(package, {room}):
            found.append(f"{where}: only {sorted(ONLY_IN[package])} may import {package}")
        if package in LATE and at_top:
            found.append(f"{where}: {package} is to be imported inside the function that needs it")
        if package != "dboost":
            continue
        target = rest.split(".")[0]
        target = target if target in FLOOR_OF else "__init__"
        if target == room:
            continue
        if FLOOR_OF[target] >= FLOOR_OF[room] or (room, target) in SHUT:
            found.append(f"{where}: {room} must not import {target} ({name})")
    return found


def modules() -> list[tuple[str, Path]]:
    files = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
    return [(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts), path) for path in files]


@pytest.mark.parametrize(("module", "path"), modules(), ids=[module for module, _ in modules()])
def test_imports_lead_down(module: str, path: Path) -> None:
    assert violations(module, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(("module", "path"), modules(), ids=[module for module, _ in modules()])
def test_a_file_is_one_idea(module: str, path: Path) -> None:
    assert path.stem not in NO_IDEA, f"{module}: name it after what it is about"


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("dboost.kernels.bins", "import numpy as np\nfrom dboost.errors import DataError", ""),
        ("dboost.kernels.bins", "from dboost.model.tree import Tree", "kernels must not import model"),
        ("dboost.kernels.bins", "def f():\n    import dboost.model.tree", "kernels must not import model"),
        ("dboost.kernels.__init__", "from .bins import encode", ""),
        ("dboost.kernels.bins", "from ..model import tree", "kernels must not import model"),
        ("dboost.losses.huber", "from dboost import statistics", "losses must not import statistics"),
        ("dboost.growth.grower", "from dboost.shard.store import Store", "growth must not import shard"),
        ("dboost.training.trainer", "import dboost", "training must not import __init__"),
        ("dboost.training.trainer", "from distributed import Client", "only ['cluster'] may import distributed"),
        ("dboost.cluster.engine", "from distributed import Client", ""),
        ("dboost.demo", "def draw():\n    import matplotlib.pyplot", ""),
        ("dboost.demo", "import matplotlib.pyplot as plt", "inside the function"),
        ("dboost.cli.train", "def draw():\n    import matplotlib", "may import matplotlib"),
        ("dboost.attic", "", "not in the table"),
    ],
)
def test_the_reader_of_imports_sees(module: str, source: str, complaint: str) -> None:
    found = violations(module, source)
    assert len(found) == bool(complaint)
    assert complaint in "".join(found)
