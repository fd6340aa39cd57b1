"""Which cells of a parametrised test are fast: the rule of all tests that are marked with `fast_cells`.

A test whose cells prove the same of many values, or of many combinations, is run as a whole in continuous integration; a
developer's run takes a part: ``@pytest.mark.fast_cells`` as few cells as have each value of each parameter once, and
``@pytest.mark.fast_cells(n)`` at most n. The other cells are marked as slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest


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
    """Mark as slow what `fast_cells`, of a test or of its file, leaves to continuous integration."""
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
                cell.add_marker(pytest.mark.slow)
