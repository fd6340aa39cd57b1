"""Records, quantised gradients and exact sums, one row at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

MASK = (1 << 64) - 1


def nearest(value: float) -> int:
    """The nearest integer, of two the even one (as Python and IEEE 754 round)."""
    return round(float(value))


def quantised(gradient: float, scale: float) -> int:
    """A gradient in units of 1 / scale: the product is a float32."""
    return nearest(np.float32(gradient) * np.float32(scale))


def quantised_hessian(hessian: float, scale: float) -> int:
    """The same, but at least 1."""
    return max(quantised(hessian, scale), 1)


def record(gradient: int, hessian: int, row: int) -> int:
    """gradient (16 bits) | hessian (16 bits) | row number (32 bits)."""
    return ((gradient & 0xFFFF) << 48) | (hessian << 32) | row


def fields(record: int) -> tuple[int, int, int]:
    """(gradient, Hessian, row) of a record."""
    gradient = record >> 48
    return gradient - 0x10000 if gradient >= 0x8000 else gradient, (record >> 32) & 0xFFFF, record & 0xFFFFFFFF


def leaf_sums(
    leaf: Sequence[int],
    gradient: Sequence[float],
    hessian: Sequence[float] | None,
    units: tuple[float, float],
    n_leaves: int,
    times: Sequence[int] | None = None,
) -> list[tuple[int, int]]:
    """Integer sums of gradients and Hessians by leaf; a Hessian that is not there is 1. A row may count several times."""
    sums = [(0, 0)] * n_leaves
    for row, k in enumerate(leaf):
        g = nearest(float(gradient[row]) * units[0])
        h = nearest((1.0 if hessian is None else float(hessian[row])) * units[1])
        n = 1 if times is None else times[row]
        sums[k] = (sums[k][0] + n * g, sums[k][1] + n * h)
    return sums


def splitmix(seed: int, row: int) -> int:
    """The 64-bit hash of a row by SplitMix64: the (row + 1)-th state from the seed, then the finaliser."""
    x = (seed + (row + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def noise_sums(
    gradient: Sequence[float], hessian: Sequence[float] | None, times: Sequence[int] | None
) -> tuple[Fraction, Fraction]:
    """Sums of squared gradients (each of 13 significant bits, halves away from zero) and of Hessians."""
    squares, hessians = Fraction(0), Fraction(0)
    for row, g in enumerate(gradient):
        unit = Fraction(2) ** (max(math.frexp(g)[1], -125) - 13)
        rounded = math.floor(abs(Fraction(float(g))) / unit + Fraction(1, 2)) * unit
        n = 1 if times is None else times[row]
        squares += n * rounded**2
        hessians += n * (1 if hessian is None else Fraction(float(hessian[row])))
    return squares, hessians
