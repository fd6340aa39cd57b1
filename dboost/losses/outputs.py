"""The pass over rows for losses with several outputs, whose gradients depend on all raw scores of a row.

It does what `passes.advance` does, for arrays of shape [n_outputs, n_rows]: a loss is handed a block of rows with the raw
scores of all outputs, and overloads `passes.block_terms` for its own record type.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import uncounted
from dboost.kernels.ranks import add_influence
from dboost.losses.passes import BLOCK, add_exactly, block_terms

I = np.int64  # noqa: E741


@uncounted
def advance_outputs(
    loss, raw, leaf, values, target, weight, gradient, hessian, gradient_bits, hessian_bits,
    first_row, last_row, coarse, terms, scratch, sums, extremes, weigh, times, influence, expected,
    near, n_near,
):  # fmt: skip
    """Add leaf values to raw scores, then write gradients and Hessians and add up the loss, for rows first_row…last_row-1.

    raw : float64[n_outputs, n], updated; leaf : uint8 or int32 [n_outputs, n]; values : float64[n_outputs, n_leaves];
    gradient, hessian : float32[n_outputs, n], and gradient_bits, hessian_bits the same memory as int32; extremes :
    int32[2, n_outputs], receives the bits of each output's largest |gradient| and Hessian; influence :
    int64[n_outputs, LANES, N_DIGITS] or None; expected : int32[n_outputs], near : int32[n_outputs, ...] or None,
    n_near : int64[n_outputs]. All else as in `passes.advance`.
    """
    n_outputs = raw.shape[0]
    value, wholes = terms[0], terms[1]
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
            top_gradient, top_hessian = extremes[0, k], extremes[1, k]
            for i in range(n):
                magnitude = g_bits[i] & np.int32(0x7FFFFFFF)
                top_gradient = magnitude if magnitude > top_gradient else top_gradient
                top_hessian = h_bits[i] if h_bits[i] > top_hessian else top_hessian
            extremes[0, k], extremes[1, k] = top_gradient, top_hessian
            if influence is not None:
                if near is None:
                    add_influence(h_bits, times, first, influence[k], np.int32(-1), None, I(0))
                else:
                    n_near[k] = add_influence(h_bits, times, first, influence[k], expected[k], near[k], n_near[k])
        add_exactly(value, wholes, n, coarse, sums)
