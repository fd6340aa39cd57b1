"""Exponential and logarithm as polynomials, in float32 and in float64, with the same bits on every processor.

The C library's versions differ between processors in the last bit, which would make models depend on the machine. These use
plain multiplications and additions, which every processor rounds alike, and loops over them vectorise.

**float64** is for losses whose terms differ by many orders of magnitude. Both functions reduce their argument to a short
interval by factoring out a power of two, which is an operation on the bits:

* exp(x) = 2^k exp(r) with |r| <= log(2) / 2, by the series to r^13 (the remainder is below 5e-18);
* log(x) = k log(2) + log(m) with m between sqrt(1/2) and sqrt(2), by log(m) = 2 atanh(t), t = (m - 1) / (m + 1), |t| < 0.172.

`exp` and `log` are the functions of NumPy for arrays: NumPy's own compute other bits on processors with registers of 512 bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from dboost.kernels import inlined, instruction, kernel
from dboost.kernels.simd import bits_to_float32

_ONE_32 = np.float32(1)
_LOG2_E_32 = np.float32(1.44269504)
# log(2) in two parts, so that k * log(2) is subtracted without losing digits (Cody and Waite).
_LOG_2_HIGH_32 = np.float32(0.693359375)
_LOG_2_LOW_32 = np.float32(-2.12194440e-4)
#: Adding and subtracting this rounds a float32 below 2**22 to the nearest integer.
ROUNDER = np.float32(12582912.0)
_LARGEST_32 = np.float32(87.0)

# exp(r) = 1 + r + r² p(r) on |r| <= log(2) / 2; relative error below 1e-7.
_E0_32, _E1_32, _E2_32 = np.float32(1.9876366e-4), np.float32(1.3981999e-3), np.float32(8.3333710e-3)
_E3_32, _E4_32, _E5_32 = np.float32(4.1665795e-2), np.float32(1.6666667e-1), np.float32(0.5)
# atanh(t) / t in powers of t², |t| <= 1/3
_A3_32, _A5_32, _A7_32 = np.float32(1 / 3), np.float32(1 / 5), np.float32(1 / 7)
_A9_32, _A11_32, _A13_32 = np.float32(1 / 9), np.float32(1 / 11), np.float32(1 / 13)


@inlined
def exp32(x):
    """Return exp(x) for a float32, clipped to [-87, 87]."""
    x = x if x > -_LARGEST_32 else -_LARGEST_32
    x = x if x < _LARGEST_32 else _LARGEST_32
    k = (x * _LOG2_E_32 + ROUNDER) - ROUNDER
    r = (x - k * _LOG_2_HIGH_32) - k * _LOG_2_LOW_32
    p = _E0_32 * r + _E1_32
    p = p * r + _E2_32
    p = p * r + _E3_32
    p = p * r + _E4_32
    p = p * r + _E5_32
    p = p * (r * r) + r + _ONE_32
    return p * bits_to_float32((np.int32(k) + np.int32(127)) << np.int32(23))


@inlined
def log1p32(z):
    """Return log(1 + z) for a float32 z in [0, 1], as 2 atanh(z / (2 + z))."""
    t = z / (z + np.float32(2))
    s = t * t
    p = _A13_32 * s + _A11_32
    p = p * s + _A9_32
    p = p * s + _A7_32
    p = p * s + _A5_32
    p = p * s + _A3_32
    p = p * s + _ONE_32
    return np.float32(2) * t * p


I = np.int64  # noqa: E741

_LOG2_E = 1.4426950408889634
# log(2) in two parts: multiples of the first by less than 2**11 are exact.
_LOG_2_HIGH, _LOG_2_LOW = 0.6931471803691238, 1.9082149292705877e-10
#: Adding and subtracting this rounds to the nearest integer.
_ROUNDER = 6755399441055744.0
#: exp is clipped beyond this, so that products of a few exponentials are still finite.
LARGEST = 700.0
_LEAST_NORMAL = 2.0**-1022
_SUBNORMAL_SCALE, _SUBNORMAL_LOG = 2.0**54, 54.0 * math.log(2.0)
_E = tuple(1.0 / math.factorial(n) for n in range(14))
_A = tuple(1.0 / (2 * n + 1) for n in range(11))
_E13, _E12, _E11, _E10, _E9, _E8, _E7, _E6, _E5, _E4, _E3 = _E[13:2:-1]
_A21, _A19, _A17, _A15, _A13, _A11, _A9, _A7, _A5, _A3 = _A[10:0:-1]


@instruction(lambda bits: np.int64(bits).view(np.float64))
def _to_float(typingctx, bits):
    """Return the float64 whose bits are those of an int64."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@instruction(lambda number: np.float64(number).view(np.int64))
def to_bits(typingctx, number):
    """Return the bits of a float64 as an int64."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@inlined
def exp64(x):
    """Return exp(x), with x clipped to [-LARGEST, LARGEST]; NaN stays NaN."""
    x = -LARGEST if x < -LARGEST else x
    x = LARGEST if x > LARGEST else x
    shifted = x * _LOG2_E + _ROUNDER
    k = shifted - _ROUNDER
    r = (x - k * _LOG_2_HIGH) - k * _LOG_2_LOW
    p = _E13 * r + _E12
    p = p * r + _E11
    p = p * r + _E10
    p = p * r + _E9
    p = p * r + _E8
    p = p * r + _E7
    p = p * r + _E6
    p = p * r + _E5
    p = p * r + _E4
    p = p * r + _E3
    p = p * r + 0.5
    p = p * (r * r) + r + 1.0
    # The last bits of the sum are k as an integer, without a conversion, which would not vectorise.
    return p * _to_float((to_bits(shifted) + I(1023)) << I(52))


@inlined
def log64(x):
    """Return log(x) for a normal positive x; a finite number for zero and subnormal numbers."""
    bits = to_bits(x)
    # Half a binary order is added, so that the mantissa is between sqrt(1/2) and sqrt(2).
    order = ((bits + I(0x00095F619980C433)) >> I(52)) - I(1023)
    m = _to_float(bits - (order << I(52)))
    # As above: an integer in the last bits of a large float needs no conversion.
    k = _to_float(I(0x4338000000000000) + order) - _ROUNDER
    t = (m - 1.0) / (m + 1.0)
    s = t * t
    p = _A21 * s + _A19
    p = p * s + _A17
    p = p * s + _A15
    p = p * s + _A13
    p = p * s + _A11
    p = p * s + _A9
    p = p * s + _A7
    p = p * s + _A5
    p = p * s + _A3
    p = p * s
    return k * _LOG_2_HIGH + (2.0 * t * p + (2.0 * t + k * _LOG_2_LOW))


@kernel
def _exp_each(values, powers):
    for i in range(values.size):
        x = values[i]
        # Beyond the range of exp64 as the square of the root: infinity or 0 in the end.
        root = exp64(0.5 * x)
        powers[i] = exp64(x) if abs(x) <= LARGEST else root * root


@kernel
def _log_each(values, logarithms):
    for i in range(values.size):
        x = values[i]
        scaled = log64(x * _SUBNORMAL_SCALE) - _SUBNORMAL_LOG
        at_zero = -np.inf if x == 0.0 else scaled
        finite = log64(x) if x >= _LEAST_NORMAL else at_zero
        logarithms[i] = finite if 0.0 <= x < np.inf else (np.inf if x > 0.0 else np.nan)


def exp(values: Any) -> Any:
    """Return exp(values), as float64 of the same shape: the same bits on every processor."""
    return _each(_exp_each, values)


def log(values: Any) -> Any:
    """Return log(values), as float64 of the same shape: the same bits on every processor; -inf for 0, NaN below."""
    return _each(_log_each, values)


def _each(kernel: Any, values: Any) -> Any:
    array = np.ascontiguousarray(values, np.float64)
    result = np.empty(array.shape)
    kernel(array.ravel(), result.ravel())
    return result if np.ndim(values) else result.reshape(())[()]
