"""Structure: a package imports only from the packages of lower layers; no files import each other in a circle; file names
and public classes occur once; functions have few parameters.

`LAYERS` is the whole rule for packages. Packages of one layer do not import each other. A module belongs to the longest entry
that its name begins with: `data.columns`, then `data`. Every import counts, also one inside a function or for type checking
only. A package or top-level module that the table lacks fails the test.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "dboost"

#: From the lowest layer to the highest.
LAYERS: list[set[str]] = [
    {"display", "errors", "schema", "thread_limits", "tuning", "version", "_lazy_import"},
    {"config", "tracebacks"},
    {"files"},
    {"kernels"},
    {"exact"},
    {"losses"},
    {"params"},
    {"metrics"},
    {"argument_types", "data.columns"},
    {"data.kinds"},
    {"data.sources"},
    {"data.tables"},
    {"data.output"},
    {"data"},
    {"model"},
    {"rows"},
    {"trees"},
    {"session"},
    {"training"},
    {"prepared"},
    {"cluster.transport"},
    {"cluster.monitoring"},
    {"cluster.worker"},
    {"cluster.scheduler"},
    {"cluster.client"},
    {"cluster.partitions"},
    {"cluster.training"},
    {"cluster"},
    {"inspection", "interop", "sizing"},
    {"dataset"},
    {"input_data"},
    {"booster"},
    {"api"},
    {"cross_validation"},
    {"estimators"},
    {"integrations"},
    {"__init__"},  # `import dboost`: only the commands import it
    {"cli"},
    {"__main__"},
]
#: Imports that are forbidden although they lead to a lower layer.
FORBIDDEN: set[tuple[str, str]] = set()
#: The only packages that may import these libraries …
ONLY_IN = {"distributed": {"cluster"}, "matplotlib": {"inspection"}}
#: … and the libraries that are imported where they are needed, not when a module is imported.
LATE = {"matplotlib"}
#: More arguments than this belong in a record …
MOST_PARAMETERS = 10
#: … except in functions that users call with keywords.
PUBLIC = {"dboost.api.fit", "dboost.api.prepare", "dboost.cross_validation.cv"}
#: A file contains one idea; names like these say nothing about it.
NO_IDEA = {"utils", "util", "common", "helpers", "misc"}

LAYER_OF = {name: layer for layer, packages in enumerate(LAYERS) for name in packages}


parse = cache(ast.parse)


def teardown_module() -> None:
    parse.cache_clear()  # the garbage collections of later tests would go through a million nodes


@cache
def imports(module: str, source: str) -> list[tuple[int, str, bool]]:
    """Return all imports of a module as (line, absolute dotted name, at module level)."""
    tree, found = parse(source), []
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
                found.append((node.lineno, alias.name, at_top))
        elif isinstance(node, ast.ImportFrom):
            # `module` names packages with their __init__, so that one dot always leads to the folder of the file.
            folder = module.split(".")[: -node.level] if node.level else []
            start = ".".join([*folder, node.module] if node.module else folder)
            for alias in node.names:
                found.append((node.lineno, f"{start}.{alias.name}", at_top))
    return found


def package_of(name: str) -> str | None:
    """Return the longest entry of `LAYERS` that a dotted name of the package begins with; None if there is none."""
    parts = name.split(".")[1:]
    entries = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((entry for entry in entries if entry in LAYER_OF), None)


def violations(module: str, source: str) -> list[str]:
    """Return the violations of the layer rules in a module of the package, one sentence each."""
    own = package_of(module)
    if own is None:
        return [f"{module} is not in the table of layers"]
    found = []
    for line, name, at_top in imports(module, source):
        package = name.partition(".")[0]
        where = f"{module}:{line}"
        if package in ONLY_IN and own.partition(".")[0] not in ONLY_IN[package]:
            found.append(f"{where}: only {sorted(ONLY_IN[package])} may import {package}")
        if package in LATE and at_top:
            found.append(f"{where}: {package} is to be imported inside the function that needs it")
        if package != "dboost":
            continue
        target = package_of(name) or "__init__"
        if target == own:
            continue
        if LAYER_OF[target] >= LAYER_OF[own] or (own, target) in FORBIDDEN:
            found.append(f"{where}: {own} must not import {target} ({name})")
    return found


def modules() -> list[tuple[str, Path]]:
    files = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
    return [(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts), path) for path in files]


def test_packages_import_lower_layers_only() -> None:
    found = [line for module, path in modules() for line in violations(module, path.read_text(encoding="utf-8"))]
    assert found == []


def files_imported(module: str, source: str, files: set[str]) -> set[str]:
    """Return which of the files of the package a module imports; it may import itself."""
    found = set()
    for _, name, _ in imports(module, source):
        while name and not {name, f"{name}.__init__"} & files:  # the name of a function, class or constant
            name = name.rpartition(".")[0]
        found |= {name, f"{name}.__init__"} & files
    return found


def circles(imported: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of files that import each other, directly or through others, and files that import themselves."""
    reached = {file: set(others) for file, others in imported.items()}
    for via in imported:
        for others in reached.values():
            if via in others:
                others |= reached[via]
    found = {tuple(sorted({file} | {other for other in reached[file] if file in reached[other]})) for file in imported}
    return sorted(list(group) for group in found if len(group) > 1 or group[0] in imported[group[0]])


def test_files_do_not_import_each_other_in_a_circle() -> None:
    files = {module for module, _ in modules()}
    assert circles({module: files_imported(module, path.read_text("utf-8"), files) for module, path in modules()}) == []


def test_files_are_named_after_what_they_are_about() -> None:
    assert [module for module, path in modules() if path.stem in NO_IDEA] == []


def test_file_names_occur_once() -> None:
    """A file name that occurs in several packages makes tracebacks and editor tabs ambiguous."""
    names = Counter(path.name for _, path in modules() if path.name not in ("__init__.py", "__main__.py"))
    assert sum(count > 1 for count in names.values()) <= 4, [name for name, count in names.items() if count > 1]


def test_class_names_occur_once() -> None:
    """A name has one meaning; names with an underscore are those of one file."""
    kinds = (
        node for _, path in modules() for node in ast.walk(parse(path.read_text("utf-8"))) if isinstance(node, ast.ClassDef)
    )
    names = Counter(kind.name for kind in kinds if not kind.name.startswith("_"))
    assert [name for name, count in names.items() if count > 1] == []


def parameter_counts(module: str, source: str) -> dict[str, int]:
    """Return the number of parameters of all functions and methods of a module, apart from `self` and `cls`."""
    found = {}

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                given = child.args
                named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                is_bound = isinstance(node, ast.ClassDef) and bool(named) and named[0].arg in ("self", "cls")
                found[f"{name}.{child.name}"] = len(named) - is_bound + bool(given.vararg) + bool(given.kwarg)
            visit(child, f"{name}.{child.name}" if hasattr(child, "name") else name)

    visit(parse(source), module)
    return found


def test_functions_have_few_parameters() -> None:
    counts = {name: n for module, path in modules() for name, n in parameter_counts(module, path.read_text("utf-8")).items()}
    assert {name for name, n in counts.items() if n > MOST_PARAMETERS} == PUBLIC


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("dboost.kernels.bins", "import numpy as np\nfrom dboost.errors import DataError", ""),
        ("dboost.kernels.bins", "from dboost.model.ensemble import Tree", "kernels must not import model"),
        ("dboost.kernels.bins", "def f():\n    import dboost.model.ensemble", "kernels must not import model"),
        ("dboost.kernels.__init__", "from .bins import encode", ""),
        ("dboost.kernels.bins", "from ..model import tree", "kernels must not import model"),
        ("dboost.losses.huber", "from dboost import metrics", "losses must not import metrics"),
        ("dboost.rows.shard", "from dboost.trees.tree_growth import Round", "rows must not import trees"),
        ("dboost.data.columns.chunk", "from dboost.data.tables.table import Table", "must not import data.tables"),
        ("dboost.data.columns.chunk", "from dboost.data import Table", "data.columns must not import data "),
        ("dboost.training.loop", "import dboost", "training must not import __init__"),
        ("dboost.training.loop", "from distributed import Client", "only ['cluster'] may import distributed"),
        ("dboost.cluster.training.cluster_fit", "from distributed import Client", ""),
        ("dboost.inspection.plots", "def draw():\n    import matplotlib.pyplot", ""),
        ("dboost.inspection.plots", "import matplotlib.pyplot as plt", "inside the function"),
        ("dboost.cli.train_command", "def draw():\n    import matplotlib", "may import matplotlib"),
        ("dboost.attic", "", "not in the table"),
    ],
)
def test_the_reader_of_imports_sees(module: str, source: str, complaint: str) -> None:
    found = violations(module, source)
    assert len(found) == bool(complaint)
    assert complaint in "".join(found)
