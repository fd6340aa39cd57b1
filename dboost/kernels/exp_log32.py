"""Exponential and logarithm as polynomials in float32.

The C library's versions differ between processors in the last bit, which would make models depend on the machine. These use
plain multiplications and additions, which every processor rounds alike, and loops over them vectorise.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import inlined
from dboost.kernels.simd import bits_to_float32

_ONE = np.float32(1)
_LOG2_E = np.float32(1.44269504)
# log(2) in two parts, so that k * log(2) is subtracted without losing digits (Cody and Waite).
_LOG_2_HIGH = np.float32(0.693359375)
_LOG_2_LOW = np.float32(-2.12194440e-4)
#: Adding and subtracting this rounds a float32 below 2**22 to the nearest integer.
ROUNDER = np.float32(12582912.0)
_LARGEST = np.float32(87.0)

# exp(r) = 1 + r + r² p(r) on |r| <= log(2) / 2; relative error below 1e-7.
_E0, _E1, _E2 = np.float32(1.9876366e-4), np.float32(1.3981999e-3), np.float32(8.3333710e-3)
_E3, _E4, _E5 = np.float32(4.1665795e-2), np.float32(1.6666667e-1), np.float32(0.5)
# atanh(t) / t in powers of t², |t| <= 1/3
_A3, _A5, _A7 = np.float32(1 / 3), np.float32(1 / 5), np.float32(1 / 7)
_A9, _A11, _A13 = np.float32(1 / 9), np.float32(1 / 11), np.float32(1 / 13)


@inlined
def exp32(x):
    """Return exp(x) for a float32, clipped to [-87, 87]."""
    x = x if x > -_LARGEST else -_LARGEST
    x = x if x < _LARGEST else _LARGEST
    k = (x * _LOG2_E + ROUNDER) - ROUNDER
    r = (x - k * _LOG_2_HIGH) - k * _LOG_2_LOW
    p = _E0 * r + _E1
    p = p * r + _E2
    p = p * r + _E3
    p = p * r + _E4
    p = p * r + _E5
    p = p * (r * r) + r + _ONE
    return p * bits_to_float32((np.int32(k) + np.int32(127)) << np.int32(23))


@inlined
def log1p32(z):
    """Return log(1 + z) for a float32 z in [0, 1], as 2 atanh(z / (2 + z))."""
    t = z / (z + np.float32(2))
    s = t * t
    p = _A13 * s + _A11
    p = p * s + _A9
    p = p * s + _A7
    p = p * s + _A5
    p = p * s + _A3
    p = p * s + _ONE
    return np.float32(2) * t * p
