"""The choice of fast cells (`tests.helpers.cells`)."""

from __future__ import annotations

from itertools import product

import pytest

from tests.helpers.cells import chosen


def test_each_value_of_each_parameter_is_in_a_fast_cell() -> None:
    cells = [{"a": a, "b": b, "c": c} for a, b, c in product(range(2), range(5), range(3))]
    found = [cells[number] for number in chosen(cells, None)]
    assert {value for cell in found for value in cell.items()} == {value for cell in cells for value in cell.items()}
    assert len(found) == 5, "as many as the longest list has"


@pytest.mark.parametrize(("n_most", "expected"), [(4, [0, 3, 6, 9]), (12, list(range(12))), (100, list(range(12)))])
def test_cells_of_one_parameter_lie_at_equal_distances(n_most: int, expected: list[int]) -> None:
    assert chosen([{"a": a} for a in range(12)], n_most) == expected


def test_no_more_cells_than_asked_for() -> None:
    cells = [{"a": a, "b": b} for a, b in product(range(19), range(3))]
    found = [cells[number] for number in chosen(cells, 3)]
    assert {cell["b"] for cell in found} == {0, 1, 2} and len({cell["a"] for cell in found}) == 3
