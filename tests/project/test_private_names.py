"""Structure of the tests: they use what users and other packages use, so that a module can be rewritten behind it.

A test in ``tests/trees`` is one of ``dboost.trees``, and of the modules of `ALSO`. Of other modules it neither reads a private
name nor replaces anything: sizes are set by `tune` (`dboost.tuning`); files, workers and clients have faults of their own.
`EXCEPTIONS` counts what is left: a number may fall, not rise.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dboost

TESTS, PACKAGE = Path(__file__).parents[1], Path(dboost.__file__).parent
#: Modules at the top of the package, by the folder of their tests.
ALSO = {
    "cluster": ("config", "tuning"),
    "data": ("input_data",),
    "kernels": ("exact",),
    "model": ("booster", "display"),
    "prepared": ("dataset",),
    "project": ("sizing", "_lazy_import"),
    "training": ("api", "cross_validation"),
}
#: Names that Python and libraries document although they begin with an underscore.
DOCUMENTED = {"_asdict", "_replace", "_fields", "_make", "_meta", "_repr_html_", "_repr_mimebundle_", "_exit"}
#: By file: reads, patches.
EXCEPTIONS: dict[str, tuple[int, int]] = {
    "cli/test_cli.py": (0, 1),
    "cli/test_ledger.py": (0, 6),
    "cluster/test_cluster_monitoring.py": (2, 0),
    "cluster/test_cluster_single_worker.py": (0, 2),
    "cluster/test_cluster_waits.py": (2, 1),
    "cluster/test_evaluation_cluster.py": (1, 0),
    "cluster/test_host_trainers.py": (2, 2),
    "cluster/test_moved_partitions.py": (0, 2),
    "cluster/test_order_of_errors.py": (0, 1),
    "cluster/test_split_proposals.py": (0, 1),
    "cluster/test_streamed_cluster.py": (0, 1),
    "conftest.py": (1, 1),
    "data/test_sources.py": (0, 4),
    "files/test_object_store.py": (2, 4),
    "helpers/clusters.py": (1, 0),
    "helpers/compiled.py": (2, 1),
    "helpers/faults.py": (3, 3),
    "helpers/leftovers.py": (2, 0),
    "helpers/sharded_engine.py": (1, 1),
    "inspection/test_dependence.py": (2, 0),
    "inspection/test_drift.py": (0, 2),
    "inspection/test_intervals.py": (1, 0),
    "interop/test_model_export.py": (1, 0),
    "kernels/test_kernel_cache.py": (2, 0),
    "kernels/test_kernels_rows.py": (1, 0),
    "kernels/test_predict_kernel.py": (4, 0),
    "losses/test_several_quantiles.py": (1, 0),
    "model/test_booster.py": (0, 1),
    "model/test_displayed_names.py": (0, 1),
    "model/test_model_file.py": (0, 1),
    "params/test_peer_names.py": (2, 0),
    "project/test_benchmarks.py": (1, 0),
    "project/test_docs_tables.py": (2, 0),
    "project/test_packaging.py": (1, 0),
    "project/test_sizing.py": (1, 4),
    "rows/test_shared_codes.py": (0, 4),
    "training/test_checkpoint.py": (0, 1),
    "training/test_fit_identity.py": (0, 1),
    "training/test_interrupt.py": (0, 2),
    "training/test_leaf_refit.py": (2, 1),
    "training/test_streamed.py": (1, 4),
    "training/test_streamed_faults.py": (0, 1),
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in DOCUMENTED


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return what the imported names of a file stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                start = alias.name.partition(".")[0]
                names[alias.asname or start] = alias.name if alias.asname else start
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    """Return what an expression like ``module.Class`` stands for; None if it does not begin with an imported name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Attribute):
        start = dotted(node.value, names)
        return None if start is None else f"{start}.{node.attr}"
    return names.get(node.id) if isinstance(node, ast.Name) else None


def uses(source: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield each private name that is read, and each name that is replaced: "read" or "patch", what it belongs to, the name."""
    tree = ast.parse(source)
    names = imported_names(tree)
    yield from (("read", name, name.rpartition(".")[2]) for name in names.values() if is_private(name.rpartition(".")[2]))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called == "setattr":
                named = dotted(node.args[1], {}) if len(node.args) > 2 else None
                yield "patch", dotted(node.args[0], names), named or ""
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and getattr(node.value, "id", "") not in ("self", "cls"):
            yield "read" if isinstance(node.ctx, ast.Load) else "patch", dotted(node.value, names), node.attr


@cache
def words_of(modules: tuple[str, ...]) -> set[str]:
    """Return all words in the sources of modules and packages."""
    paths = [path for name in modules for path in (*PACKAGE.glob(f"{name}.py"), *PACKAGE.glob(f"{name}/**/*.py"))]
    return set().union(*(re.findall(r"\w+", path.read_text("utf-8")) for path in paths))


def exceptions(path: Path) -> tuple[int, int]:
    """Return how many private names of other modules a file reads, and how many of their names it replaces."""
    own, counted = (path.parent.name, *ALSO.get(path.parent.name, ())), Counter[str]()
    for kind, owner, name in uses(path.read_text("utf-8")):
        if owner is None:  # an object: of a class of the own modules, if they have the name
            counted[kind] += name not in words_of(own)
        elif owner.partition(".")[0] == "dboost":
            counted[kind] += not any(f"{owner}.".startswith(f"dboost.{module}.") for module in own)
        else:  # a library or the system fails
            counted[kind] += kind == "read"
    return counted["read"], counted["patch"]


def test_private_names_of_other_modules_are_left_alone() -> None:
    found = {path.relative_to(TESTS).as_posix(): exceptions(path) for path in TESTS.rglob("*.py")}
    more = {
        name: (counts, EXCEPTIONS.get(name, (0, 0)))
        for name, counts in found.items()
        if any(n > most for n, most in zip(counts, EXCEPTIONS.get(name, (0, 0)), strict=True))
    }
    assert more == {}, "reads and patches, and as many as were there before"
