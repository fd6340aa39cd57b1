"""The choice of fast cells, and the turns of the others (`tests.helpers.cells`)."""

from __future__ import annotations

from itertools import product

import pytest

from tests.helpers.cells import N_TURNS, cells_of_other_turns, choose_turn, chosen, mark_slow_cells, turn_of


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


pytest_plugins = ["pytester"]

TURNS = [str(turn) for turn in range(1, N_TURNS + 1)]
TESTS = """
import pytest

@pytest.mark.fast_cells
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("a", range(7))
def test_cells(a, b): ...

@pytest.mark.slow
@pytest.mark.in_turns
@pytest.mark.parametrize("a", range(5))
def test_slow_cells(a): ...

@pytest.mark.slow
@pytest.mark.parametrize("a", range(2))
def test_slow(a): ...

def test_fast(): ...
"""


class _Collected:
    """The tests of a turn, and those that it leaves out."""

    def __init__(self, turn: str) -> None:
        self.turn = turn
        self.run: set[str] = set()
        self.slow_cells: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        mark_slow_cells(items)
        others = {item.nodeid for item in cells_of_other_turns(items, self.turn)}
        self.run = {item.nodeid for item in items} - others
        self.slow_cells = {item.nodeid for item in items if item.get_closest_marker("in_turns")}


def test_every_cell_has_a_turn_and_all_other_tests_are_in_each(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    turns = {turn: _Collected(turn) for turn in [*TURNS, "all"]}
    for collected in turns.values():
        pytester.inline_run("--collect-only", "-p", "no:cacheprovider", plugins=[collected])
    everything = turns["all"]
    assert len(everything.run) == 21 + 5 + 2 + 1 and len(everything.slow_cells) == 21 - 7 + 5
    dealt = [turns[turn].run & everything.slow_cells for turn in TURNS]
    assert set().union(*dealt) == everything.slow_cells and sum(map(len, dealt)) == len(everything.slow_cells), "each in one"
    assert all(turns[turn].run - everything.slow_cells == everything.run - everything.slow_cells for turn in TURNS)


@pytest.mark.parametrize("n_values", range(1, 13))
def test_turns_are_equal_and_have_every_value_of_long_tables(n_values: int) -> None:
    """A table of two parameters, of which the second has that many values; and tests with one slow cell each."""
    n_cells = n_values * N_TURNS * 10
    for turn in TURNS:
        values = {number % n_values for number in range(n_cells) if turn_of("test_table", number) == turn}
        assert values == set(range(n_values))
        assert sum(turn_of("test_table", number) == turn for number in range(n_cells)) == n_cells // N_TURNS
        assert 0.7 < sum(turn_of(f"test_{number}", 0) == turn for number in range(300)) / 300 * N_TURNS < 1.3


def test_a_week_has_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURN", raising=False)
    monkeypatch.setenv("CI", "true")
    assert choose_turn() in TURNS and N_TURNS <= 7
    monkeypatch.setenv("TURN", "0")
    with pytest.raises(pytest.UsageError, match=f"all, or a number from 1 to {N_TURNS}"):
        choose_turn()
