"""Which cells of a table with several dimensions are tested, and which of them are fast: `cells`.

``SUITE_SEED=7`` draws others than usual, ``SUITE=all pytest -m ""`` runs every cell. The report's header has the seed.
Continuous integration runs the slow cells in turns (`tests.helpers.cells`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import pytest

from tests.helpers.cells import SLOW_CELL

SEED = int(os.environ.get("SUITE_SEED", "0"))

Cell = tuple[str, ...]
#: What a cell tests; the chosen cells together test all of it.
Marks = Callable[[Cell], set[Any]]


def combinations(*dimensions: tuple[int, ...]) -> Marks:
    """Return marks for every combination of values in some sets of dimensions: ``combinations((0,), (1, 2))``."""
    return lambda cell: {(numbers, tuple(cell[k] for k in numbers)) for numbers in dimensions}


def covering(square: Iterable[Cell], marks: Marks, before: Iterable[Cell] = ()) -> list[Cell]:
    """Return few cells that have all marks of the square. before : cells that are taken in any case."""
    drawn, found = list(square), list(before)
    Random(SEED).shuffle(drawn)
    left = {cell: marks(cell) for cell in drawn}
    known = set().union(*map(marks, found))
    for n_new in range(max(map(len, left.values())), 0, -1):
        for cell in drawn:
            if len(left[cell] - known) >= n_new:
                found.append(cell)
                known |= left[cell]
    return found


def cells(square: Sequence[Cell], fast: Marks, slow: Marks) -> list[Any]:
    """Return the cells as parameters of a test. fast, slow : what the fast cells test, and all of them."""
    quick = covering(square, fast)
    chosen = square if os.environ.get("SUITE") == "all" else covering(square, slow, quick)
    taken, order = set(quick), {cell: number for number, cell in enumerate(square)}
    return [
        pytest.param(*cell, id=" - ".join(cell), marks=() if cell in taken else SLOW_CELL)
        for cell in sorted(chosen, key=order.__getitem__)
    ]
