"""Rows that are selected by their hashes: an exact number of each class, found from counts."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from dboost import DataError, DBoostClassifier, DBoostRegressor, ParameterError
from dboost.rows.row_sample import hash_rows
from dboost.session.row_samples import DigitRequest, Draw, DrawnRows, find_bounds, in_proportion


def naive(seed: int, classes: np.ndarray, sizes: list[int], there: np.ndarray) -> np.ndarray:
    """Return the rows of each class with the smallest hashes, by sorting."""
    order = np.argsort(hash_rows(seed, np.arange(len(classes))))
    order = order[there[order]]
    drawn = np.zeros(len(classes), bool)
    for k, size in enumerate(sizes):
        drawn[order[classes[order] == k][:size]] = True
    return drawn


def found(draw: Draw, classes: np.ndarray, cuts: list[int], without: DrawnRows | None = None) -> tuple[DrawnRows, int]:
    """Return the rows selected from parts that are counted separately, and the number of rounds."""
    n, rounds = len(classes), 0
    ends = [0, *sorted(min(cut, n) for cut in cuts), n]
    numbers = np.arange(n)
    left = np.ones(n, bool) if without is None else ~without.selects(numbers, classes)

    def ask(digits: DigitRequest) -> np.ndarray:
        nonlocal rounds
        rounds += 1
        return sum(digits.count(numbers[a:b], classes[a:b]) for a, b in pairwise(ends))

    counts = np.bincount(classes[left], minlength=len(draw.sizes)).tolist()
    return find_bounds(draw, counts, ask, without), rounds


@given(data=st.data(), seed=st.integers(0, 2**64 - 1), n_classes=st.integers(1, 5), n=st.integers(1, 400))
def test_a_draw_is_the_smallest_hashes_of_each_class(data: st.DataObject, seed: int, n_classes: int, n: int) -> None:
    classes = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, n_classes, n)
    counts = np.bincount(classes, minlength=n_classes)
    cuts = data.draw(st.lists(st.integers(0, 400), max_size=5))
    sizes = [data.draw(st.integers(0, count)) for count in counts.tolist()]
    first, _ = found(Draw(seed, tuple(sizes)), classes, cuts)
    chosen = first.selects(np.arange(n), classes)
    assert np.array_equal(chosen, naive(seed, classes, sizes, np.ones(n, bool)))
    rest = [data.draw(st.integers(0, count)) for count in (counts - sizes).tolist()]
    second, _ = found(Draw(seed ^ 1, tuple(rest)), classes, cuts, first)
    again = second.selects(np.arange(n), classes) & ~chosen
    assert np.array_equal(again, naive(seed ^ 1, classes, rest, ~chosen))


def test_rounds_are_few_and_there_may_be_many_classes() -> None:
    classes = np.random.default_rng(0).integers(0, 3000, 100_000)
    counts = np.bincount(classes, minlength=3000)
    drawn, rounds = found(Draw(7, tuple((counts // 3).tolist())), classes, [])
    chosen = drawn.selects(np.arange(100_000), classes)
    assert np.array_equal(np.bincount(classes[chosen], minlength=3000), counts // 3)
    assert rounds <= 6, "digits of four bits, so that a round counts no more than 65,536 values"
    one = np.zeros(100_000, np.int64)
    drawn, rounds = found(Draw(7, (10_000,)), one, [])
    assert np.count_nonzero(drawn.selects(np.arange(100_000))) == 10_000
    assert rounds <= 4


@given(counts=st.lists(st.integers(0, 10**9), min_size=1, max_size=8).filter(any), share=st.fractions(0, 1))
def test_proportions_are_rounded_by_largest_remainders(counts: list[int], share: Fraction) -> None:
    n = int(share * sum(counts))
    sizes = in_proportion(counts, n, 3)
    exact = [Fraction(count * n, sum(counts)) for count in counts]
    assert sum(sizes) == n
    assert all(size <= count for size, count in zip(sizes, counts, strict=True))
    up = [whole % 1 for size, whole in zip(sizes, exact, strict=True) if size > whole]
    down = [whole % 1 for size, whole in zip(sizes, exact, strict=True) if size <= whole]
    assert all(abs(size - whole) < 1 for size, whole in zip(sizes, exact, strict=True))
    assert not up or not down or min(up) >= max(down)


def test_classes_are_held_out_like_scikit_learn_does() -> None:
    counts = [5000, 1234, 777, 31, 2]
    y = np.repeat(np.arange(5), counts)
    for n in (100, 704, 3001):
        _, held = train_test_split(y, test_size=n, stratify=y, random_state=0)
        assert in_proportion(counts, n, 0) == tuple(np.bincount(held, minlength=5).tolist())


def test_too_few_rows_to_hold_some_out() -> None:
    X, y = np.arange(40.0)[:, None], np.repeat([0, 1, 2, 3], 10)
    with pytest.raises(ParameterError, match=r"validation_fraction=40 holds out 40 of 40 rows: none would be left"):
        DBoostRegressor(early_stopping=True, validation_fraction=40).fit(X, y)
    with pytest.raises(ParameterError, match=r"into 37 to train on and 3 that are held out.* number of classes, 4"):
        DBoostClassifier(early_stopping=True, validation_fraction=3).fit(X, y)
    with pytest.raises(DataError, match=r"class 7 has 1 row: give X_val and y_val, or early_stopping=False"):
        DBoostClassifier(early_stopping=True).fit(np.arange(41.0)[:, None], np.append(y, 7))


def test_balanced_weights_want_rows_of_every_class() -> None:
    X, y = np.arange(40.0)[:, None], np.repeat([0, 1], 20)
    with pytest.raises(DataError, match=r"class_weight='balanced' needs rows of every class, .* none of class 2"):
        DBoostClassifier(class_weight="balanced", max_iter=2).partial_fit(X, y, classes=[0, 1, 2])
