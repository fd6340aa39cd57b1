"""Which cells of a table with several dimensions are tested, and which of them are fast: `cells`.

``SUITE_SEED=7`` draws others than usual, ``SUITE=all pytest -m ""`` runs every cell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest

SEED = int(os.environ.get("SUITE_SEED", "0"))

Cell = tuple[str, ...]


def covering(square: Iterable[Cell], dimensions: Sequence[tuple[int, ...]], before: Iterable[Cell] = ()) -> list[Cell]:
    """Return few cells that have every combination of values that the square has in each of some sets of dimensions.

    before : cells that are taken in any case.
    """
    drawn, found = list(square), list(before)
    Random(SEED).shuffle(drawn)

    def combinations(cell: Cell) -> set[Any]:
        return {(numbers, tuple(cell[k] for k in numbers)) for numbers in dimensions}

    known = set().union(*map(combinations, found))
    for n_new in range(len(dimensions), 0, -1):
        for cell in drawn:
            if len(combinations(cell) - known) >= n_new:
                found.append(cell)
                known |= combinations(cell)
    return found


def cells(square: Sequence[Cell], fast: Sequence[tuple[int, ...]], slow: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return the cells as parameters of a test. fast, slow : sets of dimensions, see `covering`."""
    quick = covering(square, fast)
    chosen = square if os.environ.get("SUITE") == "all" else covering(square, slow, quick)
    taken, order = set(quick), {cell: number for number, cell in enumerate(square)}
    return [
        pytest.param(*cell, id=" - ".join(cell), marks=() if cell in taken else pytest.mark.slow)
        for cell in sorted(chosen, key=order.__getitem__)
    ]
