"""The pass over rows that depends on the loss: score update, gradient, Hessian and loss in one loop.

A built-in loss keeps its parameters in a `NamedTuple` of its own type and overloads `block_terms` for that type. Numba then
compiles `advance` for each loss that is used. `advance_outputs` does the same for losses with several outputs, whose gradients
depend on all raw scores of a row: its arrays have the shape [n_outputs, n_rows], and the loss gets a block of rows with the raw
scores of all outputs.

The loss is summed exactly: each row's loss is divided into a coarse and a fine integer (in units of 1 / loss_unit and
1 / (loss_unit * FINE)), whose float64 sums are exact in any order.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numba.extending import overload

from dboost.kernels import OVERLOAD, any_order, internal, uncounted
from dboost.kernels.quantile_keys import add_influence
from dboost.kernels.rows import ROUNDER64

#: Fine units per coarse unit; `metrics.exact_sum` uses the same number.
FINE = np.float64(2.0**26)
#: Rows are processed in blocks of this many.
BLOCK = 1024
#: A row's loss in coarse units is clipped to this, so that its integer stays exact.
LARGEST = np.float64(2.0**50)


def block_terms(loss, y, raw, gradient, hessian, value, scratch):
    """Compute gradients, Hessians and losses of a block of rows; each loss module overloads it for its own record type.

    y, raw : float64[n], n <= BLOCK; gradient, hessian : float32[n] (hessian None when constant) and value : float64[n] receive
    the results; scratch : float32[BLOCK]. Loops over one width of number vectorise; mixed ones do not.
    """
    # This runs only when kernels are interpreted: the overloads expect Numba's type of the record.
    kind = SimpleNamespace(instance_class=type(loss))
    arguments = loss, y, raw, gradient, hessian, value, scratch
    for choose in _OVERLOADS:
        terms = choose(kind, *arguments[1:])
        if terms is not None:
            return terms(*arguments)
    raise NotImplementedError(f"no overload for {type(loss).__name__}")


_OVERLOADS: list[Any] = []


def overloads_block_terms(choose):
    """Register a function that gives Numba the terms of a loss's record."""
    _OVERLOADS.append(choose)
    return overload(block_terms, jit_options=OVERLOAD)(choose)


@uncounted
def advance(
    loss, raw, leaf, values, target, weight, gradient, hessian, gradient_bits, hessian_bits,
    first_row, last_row, loss_unit, terms, scratch, sums, maxima, weigh, repeat_count, influence, expected,
    near, n_near,
):  # fmt: skip
    """Add leaf values to raw scores, then write gradients and Hessians and add up the loss, for rows first_row…last_row-1.

    loss : the loss's record; raw : float64[n], updated; leaf : uint8 or int32[n]; values : float64[n_leaves]; target :
    float64[n]; weight : float64[n] or None; gradient : float32[n]; hessian : float32[n] or None (constant); gradient_bits,
    hessian_bits : the same memory as int32, in which magnitudes order like numbers and maxima vectorise; terms : float64[2,
    BLOCK] and scratch : float32[BLOCK], scratch; sums : float64[2], added to: coarse and fine sums of the weighted loss; weigh
    : whether gradients and Hessians are multiplied by the weights too, not the loss alone; maxima : int32[2], receives the bits
    of the largest |gradient| and Hessian (a NaN is larger than all numbers); repeat_count : uint8[n], how often each row
    counts, or None (once); influence : int64[LANES, N_DIGITS] or None, added to: the sum of Hessians by the first digit of
    their bits; expected : int32[1], near : int32[...] or None, n_near : int64[1], updated: the rows that have a certain digit
    (see `kernels.quantile_keys.add_influence`).
    """
    top_gradient = top_hessian = np.int32(0)
    value, coarse = terms[0], terms[1]
    for first in range(first_row, last_row, BLOCK):
        last = first + BLOCK if first + BLOCK < last_row else last_row
        score, y, g, at = raw[first:last], target[first:last], gradient[first:last], leaf[first:last]
        for i in range(score.size):
            score[i] += values[at[i]]
        if hessian is None:
            block_terms(loss, y, score, g, hessian, value, scratch)
        else:
            block_terms(loss, y, score, g, hessian[first:last], value, scratch)
        if weight is not None:
            w = weight[first:last]
            for i in range(score.size):
                value[i] *= w[i]
            if weigh:
                for i in range(score.size):
                    g[i] *= np.float32(w[i])
                if hessian is not None:
                    h = hessian[first:last]
                    for i in range(score.size):
                        h[i] *= np.float32(w[i])
        bits = gradient_bits[first:last]
        for i in range(bits.size):
            magnitude = bits[i] & np.int32(0x7FFFFFFF)
            top_gradient = magnitude if magnitude > top_gradient else top_gradient
        if hessian_bits is not None:
            bits = hessian_bits[first:last]
            for i in range(bits.size):
                top_hessian = bits[i] if bits[i] > top_hessian else top_hessian
            if influence is not None:
                n_near[0] = add_influence(bits, repeat_count, first, influence, expected[0], near, n_near[0])
        add_exactly(value, coarse, score.size, loss_unit, sums)
    maxima[0] = top_gradient
    maxima[1] = top_hessian


@internal
def add_exactly(terms, coarse, n, loss_unit, sums):
    """Add n values to an exact sum (sums : float64[2], coarse and fine integers). Both arrays are overwritten."""
    for i in range(n):
        scaled = terms[i] * loss_unit
        scaled = scaled if scaled < LARGEST else LARGEST
        whole = (scaled + ROUNDER64) - ROUNDER64
        coarse[i] = whole
        terms[i] = ((scaled - whole) * FINE + ROUNDER64) - ROUNDER64
    sums[0] += _sum_integers(coarse, n)
    sums[1] += _sum_integers(terms, n)


@any_order
def _sum_integers(values, n):
    """Sum integers held as float64: exact in any order, so it may be vectorised."""
    total = 0.0
    for i in range(n):
        total += values[i]
    return total


I = np.int64  # noqa: E741


@uncounted
def advance_outputs(
    loss, raw, leaf, values, target, weight, gradient, hessian, gradient_bits, hessian_bits,
    first_row, last_row, loss_unit, terms, scratch, sums, maxima, weigh, repeat_count, influence, expected,
    near, n_near,
):  # fmt: skip
    """Add leaf values to raw scores, then write gradients and Hessians and add up the loss, for rows first_row…last_row-1.

    raw : float64[n_outputs, n], updated; leaf : uint8 or int32 [n_outputs, n]; values : float64[n_outputs, n_leaves];
    gradient, hessian : float32[n_outputs, n], and gradient_bits, hessian_bits the same memory as int32; maxima :
    int32[2, n_outputs], receives the bits of each output's largest |gradient| and Hessian; influence :
    int64[n_outputs, LANES, N_DIGITS] or None; expected : int32[n_outputs], near : int32[n_outputs, ...] or None,
    n_near : int64[n_outputs]. All else as in `advance`.
    """
    n_outputs = raw.shape[0]
    value, coarse = terms[0], terms[1]
    for first in range(first_row, last_row, BLOCK):
        last = first + BLOCK if first + BLOCK < last_row else last_row
        n = last - first
        for k in range(n_outputs):
            score, at, value_of = raw[k, first:last], leaf[k, first:last], values[k]
            for i in range(n):
                score[i] += value_of[at[i]]
        block_terms(
            loss, target[first:last], raw[:, first:last], gradient[:, first:last], hessian[:, first:last], value, scratch
        )
        if weight is not None:
            w = weight[first:last]
            for i in range(n):
                value[i] *= w[i]
            for k in range(n_outputs if weigh else 0):
                g, h = gradient[k, first:last], hessian[k, first:last]
                for i in range(n):
                    g[i] *= np.float32(w[i])
                    h[i] *= np.float32(w[i])
        for k in range(n_outputs):
            g_bits, h_bits = gradient_bits[k, first:last], hessian_bits[k, first:last]
            top_gradient, top_hessian = maxima[0, k], maxima[1, k]
            for i in range(n):
                magnitude = g_bits[i] & np.int32(0x7FFFFFFF)
                top_gradient = magnitude if magnitude > top_gradient else top_gradient
                top_hessian = h_bits[i] if h_bits[i] > top_hessian else top_hessian
            maxima[0, k], maxima[1, k] = top_gradient, top_hessian
            if influence is not None:
                if near is None:
                    add_influence(h_bits, repeat_count, first, influence[k], np.int32(-1), None, I(0))
                else:
                    n_near[k] = add_influence(h_bits, repeat_count, first, influence[k], expected[k], near[k], n_near[k])
        add_exactly(value, coarse, n, loss_unit, sums)
