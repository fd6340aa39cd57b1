"""Exponential, logarithm and exact sums: as accurate as documented, for every valid input."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from dboost.exact import FINE, TOTAL_BITS, ExactSum, as_float, total, unit_for
from dboost.kernels import exp_log
from dboost.losses import gradient_pass
from dboost.losses.gradient_pass import BLOCK
from tests.helpers.compiled import compiled

add_exactly = compiled(gradient_pass.add_exactly)


@njit(error_model="numpy")
def exponentials(x, out):
    for i in range(x.size):
        out[i] = exp_log.exp32(x[i])


@njit(error_model="numpy")
def logarithms(z, out):
    for i in range(z.size):
        out[i] = exp_log.log1p32(z[i])


@njit(error_model="numpy")
def exponentials_64(x, out):
    for i in range(x.size):
        out[i] = exp_log.exp64(x[i])


@njit(error_model="numpy")
def logarithms_64(x, out):
    for i in range(x.size):
        out[i] = exp_log.log64(x[i])


def exp32(x: np.ndarray) -> np.ndarray:
    out = np.empty(len(x), np.float32)
    exponentials(x.astype(np.float32), out)
    return out


def log1p32(z: np.ndarray) -> np.ndarray:
    out = np.empty(len(z), np.float32)
    logarithms(z.astype(np.float32), out)
    return out


def dense(low: float, high: float) -> np.ndarray:
    """Two million numbers in a range, its ends and the smallest numbers around zero."""
    rng = np.random.default_rng(0)
    tiny = np.array([0.0, 1e-45, 1e-38, 1e-30, 1e-10, 1e-7])
    x = np.concatenate([rng.uniform(low, high, 2_000_000), [low, high], tiny, -tiny]).astype(np.float32)
    return x[(x >= np.float32(low)) & (x <= np.float32(high))]


def test_exponential() -> None:
    x = dense(-87, 87)
    expected = np.exp(x.astype(np.float64))
    assert (np.abs(exp32(x) / expected - 1)).max() < 2e-7
    assert exp32(np.zeros(1))[0] == 1.0


def test_exponential_beyond_its_range_is_that_of_the_end() -> None:
    ends = exp32(np.array([-87.0, 87.0]))
    assert np.array_equal(exp32(np.array([-88.0, 88.0])), ends)
    assert np.array_equal(exp32(np.array([-1e38, 1e38])), ends)
    assert np.array_equal(exp32(np.array([-np.inf, np.inf])), ends)


def test_logarithm() -> None:
    z = dense(0, 1)
    expected = np.log1p(z.astype(np.float64))
    error = np.abs(log1p32(z) - expected)
    assert (error <= 2.5e-7 * expected + 2e-45).all()  # half of the smallest float32 rounds to zero
    assert log1p32(np.zeros(1))[0] == 0.0


@given(values=st.lists(st.floats(0, 1e6), max_size=200), cut=st.integers(0, 200), largest=st.sampled_from([1e-3, 1.0, 1e6]))
def test_sums_are_exact_in_any_order(values: list[float], cut: int, largest: float) -> None:
    values = [value * largest / 1e6 for value in values]
    unit = unit_for(largest, 200)

    def summed(parts: list[list[float]]) -> tuple[float, float]:
        sums = np.zeros(2)
        for part in parts:
            terms, wholes = np.empty(BLOCK), np.empty(BLOCK)
            terms[: len(part)] = part
            add_exactly(terms, wholes, len(part), unit, sums)
        return tuple(sums.tolist())

    at_once = summed([values])
    assert summed([values[cut:], values[:cut]]) == at_once
    assert summed([[value] for value in reversed(values)]) == at_once
    merged = ExactSum.of(np.array(values), unit)
    assert (merged.coarse, merged.fine) == at_once
    exact = sum((Fraction(value) for value in values), Fraction(0))
    found = (Fraction(at_once[0]) + Fraction(at_once[1]) / Fraction(FINE)) / Fraction(unit)
    assert abs(found - exact) <= Fraction(len(values)) / Fraction(unit) / Fraction(FINE)


def test_what_is_too_large_for_an_exact_sum_is_cut_off() -> None:
    terms, wholes, sums = np.array([1.0, np.inf, np.nan, 1e300]), np.empty(4), np.zeros(2)
    add_exactly(terms, wholes, 4, 1.0, sums)
    assert sums[0] == pytest.approx(3 * 2.0**50 + 1)


def test_the_exponential_in_float64() -> None:
    rng = np.random.default_rng(0)
    ends = [0.0, -0.0, 1.0, -1.0, 0.5 * np.log(2), -700.0, 700.0]
    x = np.concatenate([rng.uniform(-700, 700, 20_000), rng.normal(size=20_000), rng.normal(size=100) * 1e-9, ends])
    found = np.empty_like(x)
    exponentials_64(x, found)
    assert found == pytest.approx(np.exp(x), rel=4e-16)
    beyond = np.array([1e6, -1e6, np.inf, -np.inf, np.nan])
    exponentials_64(beyond, found[:5])
    assert found[:4] == pytest.approx(np.exp([700.0, -700.0, 700.0, -700.0]), rel=4e-16)
    assert np.isnan(found[4])


def test_the_logarithm_in_float64() -> None:
    rng = np.random.default_rng(0)
    ends = [1.0, 2.0, 0.5, np.sqrt(0.5), np.sqrt(2.0), np.nextafter(1, 0), np.nextafter(1, 2), 1e-307, 1e308]
    x = np.concatenate(
        [np.exp(rng.uniform(-700, 700, 20_000)), np.exp(rng.normal(size=20_000)), 1 + rng.normal(size=100) / 1e9, ends]
    )
    found = np.empty_like(x)
    logarithms_64(x, found)
    assert found == pytest.approx(np.log(x), rel=5e-16, abs=0)
    logarithms_64(np.array([0.0, 5e-324]), found[:2])
    assert np.isfinite(found[:2]).all()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30), st.integers(0, 30))
def test_totals_know_no_rounding(values: list[float], cut: int) -> None:
    array = np.array(values)
    expected = sum(map(Fraction, values))
    whole = total(array)
    assert whole is not None
    assert Fraction(whole, 2**TOTAL_BITS) == expected
    parts = total(array[:cut]), total(array[cut:])
    assert parts[0] is not None and parts[1] is not None and parts[0] + parts[1] == whole
    if abs(expected) < 1e308:
        assert as_float(whole) == float(expected)
    assert total(np.array([1.0, np.inf])) is None
