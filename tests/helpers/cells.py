"""Which cells of a parametrised test are fast, and on which days continuous integration runs the others.

Of a test whose cells prove the same of many values, or of many combinations, a developer's run takes a part:
``@pytest.mark.fast_cells`` as few cells as have each value of each parameter once, and ``@pytest.mark.fast_cells(n)`` at most
n. The other cells are marked with `SLOW_CELL`: they are slow, and continuous integration deals them to `N_TURNS` turns, of
which it runs one a day, so that it runs each cell several times a week. ``TURN=2`` runs another turn than that of the day, and
``TURN=all``, the default outside continuous integration, every cell. Slow tests without this mark are in every turn.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from random import Random

import pytest

#: As few turns as leave continuous integration a fifth of its 25 minutes.
N_TURNS = 3
SLOW_CELL = (pytest.mark.slow, pytest.mark.in_turns)


def choose_turn() -> str:
    """Return the turn of this run, and set it for processes that pytest starts, which may begin on another day."""
    today = str(date.today().toordinal() % N_TURNS + 1) if os.environ.get("CI") else "all"
    turn = os.environ.setdefault("TURN", today)
    if turn not in ("all", *map(str, range(1, N_TURNS + 1))):
        raise pytest.UsageError(f"TURN={turn} is no turn: say all, or a number from 1 to {N_TURNS}")
    return turn


def turn_of(test: str, number: int) -> str:
    """Return the turn of a cell, from its number among the slow cells of a test.

    Neighbors are alike and take equally long, so the next `N_TURNS` cells are always in different turns. The order is drawn
    each time: otherwise, cells at a distance of `N_TURNS`, which often share the value of a parameter, would share a turn, and
    the first turn would have all tests with one slow cell.
    """
    order = Random(f"{test} {number // N_TURNS}").sample(range(1, N_TURNS + 1), N_TURNS)
    return str(order[number % N_TURNS])


def cells_of_other_turns(items: Iterable[pytest.Item], turn: str) -> list[pytest.Item]:
    """Return the slow cells that this turn leaves out."""
    n_cells: dict[str, int] = defaultdict(int)
    others = []
    for item in items:
        if turn != "all" and item.get_closest_marker("in_turns"):
            test = item.nodeid.partition("[")[0]
            if turn_of(test, n_cells[test]) != turn:
                others.append(item)
            n_cells[test] += 1
    return others


def chosen(cells: list[dict[str, int]], n_most: int | None) -> list[int]:
    """Return the numbers of the fast cells, in the order in which they are chosen.

    The next cell is the one with the most values that no chosen cell has; of several, one of those that lie at equal distances
    in the list, where neighbours are alike.

    cells : of each, a number for its value of each parameter. n_most : None for as many as there are new values.
    """
    n_most = len(cells) if n_most is None else n_most
    step = -(-len(cells) // n_most)
    left = sorted(range(len(cells)), key=lambda cell: (cell % step > 0, cell))
    missing = {value for cell in cells for value in cell.items()}
    found: list[int] = []
    while missing and len(found) < n_most:
        best = max(left, key=lambda cell: len(missing & cells[cell].items()))
        found.append(best)
        left.remove(best)
        missing -= cells[best].items()
    return found


def mark_slow_cells(items: Iterable[pytest.Item]) -> None:
    """Mark the cells that `fast_cells`, of a test or of its file, leaves to continuous integration."""
    of_tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec") or item.get_closest_marker("slow"):
            continue
        if item.get_closest_marker("fast_cells"):
            of_tests[item.nodeid.removesuffix(f"[{item.callspec.id}]")].append(item)
    for cells in of_tests.values():
        (n_most,) = cells[0].get_closest_marker("fast_cells").args or (None,)  # type: ignore[union-attr]
        # The cells share the values of their parameters; pytest's own numbers of these are others in each cell.
        fast = set(chosen([{name: id(value) for name, value in cell.callspec.params.items()} for cell in cells], n_most))
        for number, cell in enumerate(cells):
            if number not in fast:
                for mark in SLOW_CELL:
                    cell.add_marker(mark)
