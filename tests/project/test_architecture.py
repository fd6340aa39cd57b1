"""The fit that docs/architecture.md shows is the one that runs."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dboost.training import fit
from dboost.training.loop import BoostingLoop

PAGE = Path(__file__).parents[2] / "docs/architecture.md"
FUNCTIONS = {
    "train": fit.train,
    "plan_fit": fit.plan_fit,
    "encode": fit.encode,
    "boost": fit.boost,
    "iterate": BoostingLoop.iterate,
}


def calls(tree: ast.AST) -> Iterator[str]:
    """Yield the names of called functions, in the order of the text."""
    found = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for function in sorted(found, key=lambda node: (node.end_lineno, node.end_col_offset)):
        if isinstance(function, ast.Name | ast.Attribute):
            yield function.id if isinstance(function, ast.Name) else function.attr


def shown() -> dict[str, list[str]]:
    """Return the calls of each function on the page."""
    (block,) = re.findall(r"```python\n(def train.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return {node.name: list(calls(node)) for node in ast.parse(block).body if isinstance(node, ast.FunctionDef)}


def test_the_page_shows_all_functions() -> None:
    assert list(shown()) == list(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_makes_the_calls_of_the_page_in_their_order(name: str) -> None:
    function: Callable[..., Any] = FUNCTIONS[name]
    made = calls(ast.parse(textwrap.dedent(inspect.getsource(function))))
    missing = [call for call in shown()[name] if call not in made]  # `in` reads on from the call before
    assert missing == []
