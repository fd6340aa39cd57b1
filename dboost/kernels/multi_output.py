"""Kernels of trees that have several values per leaf: derivatives along a direction, and sums of all outputs.

A tree of K outputs is grown by one gradient and one Hessian per row, those along a direction c in the space of the K raw
scores (`training.directions`). All sums are of integers, so they do not depend on how rows are divided.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import internal, kernel
from dboost.kernels.rows import ROUNDER64

I = np.int64  # noqa: E741

#: Rows are processed in blocks of this many, and so many outputs together.
BLOCK, TOGETHER = 1024, 8


@kernel
def project_gradients(rows, direction, of_classes, first_row, last_row, scratch, gradient, hessian, maxima):
    """Compute first and second derivatives along a direction, for rows first_row…last_row-1.

    rows : GradientRows of the outputs; direction : float32[n_outputs] c; gradient : (float32[n], the same memory as int32),
    which receives Σ_k c_k g_k; hessian : the same, of no rows if it is constant; scratch : float32[2, BLOCK]; maxima :
    int32[2], the bits of the largest |gradient| and Hessian, updated (a NaN is larger than all numbers).

    of_classes : whether the outputs are the scores of classes, with probabilities p. Then Σ_k g_k = 0, and g_k = p_k for all
    classes but that of the row. So the gradient is m = Σ_k (c_k - c_y) g_k and the Hessian, the variance of c under p, is
    Σ_k (c_k - c_y)² g_k - m². Otherwise outputs are independent, and the Hessian is Σ_k c_k² h_k.
    """
    of_outputs, hessians, weight = rows.gradient, rows.hessian, rows.weight
    split_gradient, gradient_bits = gradient
    split_hessian, hessian_bits = hessian
    is_weighted = weight.size > 0 and rows.repeat_count.size == 0
    own, square = scratch[0], scratch[1]
    n_outputs = of_outputs.shape[0]
    top_gradient, top_hessian = maxima[0], maxima[1]
    for first in range(first_row, last_row, BLOCK):
        last = first + BLOCK if first + BLOCK < last_row else last_row
        n = last - first
        s = split_gradient[first:last]
        for i in range(n):
            s[i] = np.float32(0)
        if of_classes:
            if rows.target.size > 0:
                for i in range(n):
                    own[i] = direction[I(rows.target[first + i])]
            elif rows.single_target.size > 0:
                for i in range(n):
                    own[i] = direction[I(rows.single_target[first + i])]
            else:
                for i in range(n):
                    own[i] = direction[I(rows.byte_target[first + i])]
            for i in range(n):
                square[i] = np.float32(0)
            for k in range(n_outputs):
                g, c = of_outputs[k, first:last], direction[k]
                for i in range(n):
                    apart = c - own[i]
                    term = apart * g[i]
                    s[i] += term
                    square[i] += apart * term
            if split_hessian.size > 0:
                h = split_hessian[first:last]
                for i in range(n):
                    own[i] = np.float32(1)
                if is_weighted:
                    for i in range(n):
                        own[i] = np.float32(weight[first + i])
                for i in range(n):
                    found = square[i] - s[i] * s[i] / own[i]
                    h[i] = found if found > np.float32(0) else np.float32(0)
        else:
            for k in range(n_outputs):
                g, c = of_outputs[k, first:last], direction[k]
                for i in range(n):
                    s[i] += c * g[i]
            if split_hessian.size > 0:
                h = split_hessian[first:last]
                for i in range(n):
                    h[i] = np.float32(0)
                for k in range(n_outputs):
                    of_output, c = hessians[k, first:last], direction[k]
                    for i in range(n):
                        h[i] += c * c * of_output[i]
        bits = gradient_bits[first:last]
        for i in range(n):
            magnitude = bits[i] & np.int32(0x7FFFFFFF)
            top_gradient = magnitude if magnitude > top_gradient else top_gradient
        if split_hessian.size > 0:
            bits = hessian_bits[first:last]
            for i in range(n):
                top_hessian = bits[i] if bits[i] > top_hessian else top_hessian
    maxima[0], maxima[1] = top_gradient, top_hessian


@kernel
def sum_products(gradient, along, weight, repeat_count, first, last, units, bounds, sums):
    """Add up the products of each output's gradient and the gradient along a direction, Σ_i g_ik s_i / w_i, over rows
    first…last-1.

    gradient : float32[n_outputs, n]; along : float32[n]; weight : float64[n] that gradients are multiplied by, empty for 1;
    repeat_count : uint8[n], how often a row counts, empty for once; units, bounds : float64[n_outputs], products are multiplied
    by a unit, clipped to ± a bound, and rounded; sums : float64[n_outputs], integers, added to.
    """
    for k in range(gradient.shape[0]):
        g, unit, largest = gradient[k], units[k], bounds[k]
        total = 0.0
        for i in range(first, last):
            product = np.float64(g[i]) * np.float64(along[i]) * unit
            if weight.size > 0 and repeat_count.size == 0:
                product /= weight[i]
            product = product if product < largest else largest
            product = product if product > -largest else -largest
            whole = (product + ROUNDER64) - ROUNDER64
            if repeat_count.size > 0:
                whole *= repeat_count[i]
            total += whole
        sums[k] += total


@kernel
def sum_outputs(leaf, gradient, hessian, repeat_count, rows, first, last, units, sums, counts):
    """Add up gradients and Hessians of all outputs by leaf, over rows first…last-1, or rows[first], …, rows[last-1].

    leaf : uint8 or int32[n]; gradient : float32[n_outputs, n]; hessian : the same, or float32[n_outputs, 0] for 1;
    repeat_count : as of `sum_products`; units : float64[2, n_outputs], the powers of two by which gradients and Hessians are
    multiplied before they are rounded; sums : float64[2, n_leaves, n_outputs], integers, added to: those of Hessians only if
    they are given; counts : int64[n_leaves], the numbers of rows, added to.

    Sums of several outputs in one leaf do not wait for each other; gradients of many outputs would be read from too many places
    at once.
    """
    n_outputs = gradient.shape[0]
    for begin in range(first, last, BLOCK):
        end = begin + BLOCK if begin + BLOCK < last else last
        for at in range(begin, end):
            i = rows[at] if rows.size > 0 else I(at)
            counts[leaf[i]] += I(repeat_count[i]) if repeat_count.size > 0 else I(1)
        for low in range(0, n_outputs, TOGETHER):
            high = low + TOGETHER if low + TOGETHER < n_outputs else n_outputs
            _sum_together(leaf, gradient, repeat_count, rows, begin, end, low, high, units[0], sums[0])
            if hessian.shape[1] > 0:
                _sum_together(leaf, hessian, repeat_count, rows, begin, end, low, high, units[1], sums[1])


@internal
def _sum_together(leaf, values, repeat_count, rows, begin, end, low, high, units, sums):
    """Add up the values of outputs low…high-1 (float32[n_outputs, n]), see `sum_outputs`."""
    for at in range(begin, end):
        i = rows[at] if rows.size > 0 else I(at)
        of_leaf = sums[leaf[i]]
        if repeat_count.size > 0:
            n = repeat_count[i]
            for k in range(low, high):
                of_leaf[k] += n * ((np.float64(values[k, i]) * units[k] + ROUNDER64) - ROUNDER64)
        else:
            for k in range(low, high):
                of_leaf[k] += (np.float64(values[k, i]) * units[k] + ROUNDER64) - ROUNDER64
