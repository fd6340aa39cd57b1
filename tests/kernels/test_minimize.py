"""Scalar minimisation: near and far, with and without second derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.training.minimize import minimize_convex


def counted(slopes: Callable[[float], tuple[float, float]]) -> tuple[Callable[[float], tuple[float, float]], list[float]]:
    seen: list[float] = []

    def ask(at: float) -> tuple[float, float]:
        seen.append(at)
        return slopes(at)

    return ask, seen


@given(at=st.floats(-1e9, 1e9), bend=st.floats(1e-6, 1e6), start=st.floats(-1e3, 1e3))
def test_parabolas(at: float, bend: float, start: float) -> None:
    ask, seen = counted(lambda x: (bend * (x - at), bend))
    assert minimize_convex(ask, start) == pytest.approx(at, rel=1e-12, abs=1e-12)
    assert len(seen) < 40


@given(mean=st.floats(1e-100, 1e100))
def test_exponentials(mean: float) -> None:
    """μ = e^x: from afar, Newton's steps are too short or far too long."""

    def slopes(x: float) -> tuple[float, float]:
        e = math.exp(min(x, 709.0)) if x < 709 else math.nan
        return (e - mean if x < 709 else math.nan), e

    ask, seen = counted(slopes)
    assert minimize_convex(ask, 0.0) == pytest.approx(math.log(mean), rel=1e-9, abs=1e-12)
    assert len(seen) < 400


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
def test_kinks(points: list[float]) -> None:
    """A sum of absolute values: no curvature anywhere, and the minimum at a kink."""
    ask, seen = counted(lambda x: (float(np.sign(x - np.array(points)).sum()), 0.0))
    found = minimize_convex(ask, 0.0)

    def value(x: float) -> float:
        return float(np.abs(x - np.array(points)).sum())

    assert value(found) <= value(float(np.median(points))) * (1 + 1e-12) + 1e-9
    assert len(seen) < 1100


def test_a_function_that_falls_for_ever_is_left() -> None:
    assert minimize_convex(lambda x: (-1.0, 0.0), 0.0) > 1e290
