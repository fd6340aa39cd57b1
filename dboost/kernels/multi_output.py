"""Kernels of trees that have several values per leaf: derivatives along a direction, and sums of all outputs.

A tree of K outputs is grown by one gradient and one Hessian per row, those along a direction c in the space of the K raw
scores (`training.directions`). All sums are of integers, so they do not depend on how rows are divided.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import internal, kernel
from dboost.kernels.rows import ROUNDER64, sum_integers

I = np.int64  # noqa: E741

#: Rows are processed in blocks of this many.
BLOCK = 1024
#: So many outputs are added up together.
TOGETHER = 4


@kernel
def project_gradients(rows, direction, of_classes, first_row, last_row, scratch, gradient, hessian, maxima):
    """Compute first and second derivatives along a direction, for rows first_row…last_row-1.

    rows : GradientRows of the outputs; direction : float32[n_outputs] c; gradient : (float32[n], the same memory as int32),
    which receives Σ_k c_k g_k; hessian : the same, of no rows if it is constant; scratch : float32[2, BLOCK]; maxima :
    int32[2], the bits of the largest |gradient| and Hessian, updated (a NaN is larger than all numbers).

    of_classes : whether the outputs are the scores of classes; otherwise they are independent.
    """
    split_gradient, gradient_bits = gradient
    split_hessian, hessian_bits = hessian
    top_gradient, top_hessian = maxima[0], maxima[1]
    for first in range(first_row, last_row, BLOCK):
        last = first + BLOCK if first + BLOCK < last_row else last_row
        s, h = split_gradient[first:last], split_hessian[first:last]
        for i in range(s.size):
            s[i] = np.float32(0)
        if of_classes:
            _project_classes(rows, direction, first, last, scratch, s, h)
        else:
            _project_outputs(rows, direction, first, last, s, h)
        bits = gradient_bits[first:last]
        for i in range(bits.size):
            magnitude = bits[i] & np.int32(0x7FFFFFFF)
            top_gradient = magnitude if magnitude > top_gradient else top_gradient
        bits = hessian_bits[first:last]
        for i in range(bits.size):
            top_hessian = bits[i] if bits[i] > top_hessian else top_hessian
    maxima[0], maxima[1] = top_gradient, top_hessian


@internal
def _project_classes(rows, direction, first, last, scratch, s, h):
    """Compute derivatives along a direction for a block of rows, if the outputs are scores of classes with probabilities p.

    Then Σ_k g_k = 0, and g_k = p_k for all classes but that of the row. So the gradient is m = Σ_k (c_k - c_y) g_k and the
    Hessian, the variance of c under p, is Σ_k (c_k - c_y)² g_k - m². s : float32[n], zeros; h : float32[n], or of no rows.
    """
    n, weight = last - first, rows.weight
    of_class, square = scratch[0], scratch[1]
    if rows.target.size > 0:
        for i in range(n):
            of_class[i] = direction[I(rows.target[first + i])]
    elif rows.single_target.size > 0:
        for i in range(n):
            of_class[i] = direction[I(rows.single_target[first + i])]
    else:
        for i in range(n):
            of_class[i] = direction[I(rows.byte_target[first + i])]
    for i in range(n):
        square[i] = np.float32(0)
    for k in range(rows.gradient.shape[0]):
        g, c = rows.gradient[k, first:last], direction[k]
        for i in range(n):
            apart = c - of_class[i]
            term = apart * g[i]
            s[i] += term
            square[i] += apart * term
    if h.size > 0:
        divisor = of_class  # the same memory
        for i in range(n):
            divisor[i] = np.float32(1)
        if weight.size > 0 and rows.repeat_count.size == 0:
            for i in range(n):
                divisor[i] = np.float32(weight[first + i])
        for i in range(n):
            variance = square[i] - s[i] * s[i] / divisor[i]
            h[i] = variance if variance > np.float32(0) else np.float32(0)


@internal
def _project_outputs(rows, direction, first, last, s, h):
    """Compute derivatives along a direction for a block of rows, if outputs are independent: Σ_k c_k g_k and Σ_k c_k² h_k.

    s : float32[n], zeros; h : float32[n], or of no rows.
    """
    n, n_outputs = last - first, rows.gradient.shape[0]
    for k in range(n_outputs):
        g, c = rows.gradient[k, first:last], direction[k]
        for i in range(n):
            s[i] += c * g[i]
    if h.size > 0:
        for i in range(n):
            h[i] = np.float32(0)
        for k in range(n_outputs):
            hessian, c = rows.hessian[k, first:last], direction[k]
            for i in range(n):
                h[i] += c * c * hessian[i]


@kernel
def sum_products(gradient, along, weight, repeat_count, first, last, limits, scratch, sums):
    """Add up the products of each output's gradient and the gradient along a direction, Σ_i g_ik s_i / w_i, over rows
    first…last-1.

    gradient : float32[n_outputs, n]; along : float32[n]; weight : float64[n] that gradients are multiplied by, empty for 1;
    repeat_count : uint8[n], how often a row counts, empty for once; limits : float64[2, n_outputs], products are multiplied by
    a unit, clipped to ± a bound, and rounded; scratch : float64[BLOCK]; sums : float64[n_outputs], integers, added to.
    """
    is_divided = weight.size > 0 and repeat_count.size == 0
    for begin in range(first, last, BLOCK):
        end = begin + BLOCK if begin + BLOCK < last else last
        n, s = end - begin, along[begin:end]
        for k in range(gradient.shape[0]):
            g, unit, largest = gradient[k, begin:end], limits[0, k], limits[1, k]
            for i in range(n):
                scratch[i] = np.float64(g[i]) * np.float64(s[i]) * unit
            if is_divided:
                for i in range(n):
                    scratch[i] /= weight[begin + i]
            for i in range(n):
                product = scratch[i]
                product = product if product < largest else largest
                product = product if product > -largest else -largest
                scratch[i] = (product + ROUNDER64) - ROUNDER64
            if repeat_count.size > 0:
                for i in range(n):
                    scratch[i] *= repeat_count[begin + i]
            sums[k] += sum_integers(scratch, n)


@kernel
def sum_outputs(leaf, gradient, hessian, repeat_count, rows, first, last, units, scratch, totals):
    """Add up gradients and Hessians of all outputs by leaf, over rows first…last-1, or rows[first], …, rows[last-1].

    leaf : uint8 or int32[n]; gradient : float32[n_outputs, n]; hessian : the same, or float32[n_outputs, 0] for 1;
    repeat_count : as of `sum_products`; units : float64[2, n_outputs], the powers of two by which gradients and Hessians are
    multiplied before they are rounded; scratch : float64[TOGETHER, BLOCK]; totals : (float64[2, n_parts, n_leaves, TOGETHER],
    int64[n_leaves]), added to: sums of integers, those of Hessians only if they are given, each part those of the next
    `TOGETHER` outputs; and the numbers of rows.

    Sums of several outputs in one leaf do not wait for each other, and blocks of gradients are rounded in loops that vectorise.
    """
    sums, counts = totals
    for begin in range(first, last, BLOCK):
        end = begin + BLOCK if begin + BLOCK < last else last
        for at in range(begin, end):
            i = rows[at] if rows.size > 0 else I(at)
            counts[leaf[i]] += I(repeat_count[i]) if repeat_count.size > 0 else I(1)
        _sum_block(leaf, gradient, repeat_count, rows, begin, end, units[0], scratch, sums[0])
        if hessian.shape[1] > 0:
            _sum_block(leaf, hessian, repeat_count, rows, begin, end, units[1], scratch, sums[1])


@internal
def _sum_block(leaf, values, repeat_count, rows, begin, end, units, scratch, sums):
    """Add up the values of all outputs (float32[n_outputs, n]) of a block of rows, see `sum_outputs`."""
    a, b, c, d = scratch[0], scratch[1], scratch[2], scratch[3]
    for part in range(len(sums)):
        of_part = sums[part]
        for k in range(TOGETHER):
            output = part * TOGETHER + k
            if output < len(values):
                _round_block(values[output], repeat_count, rows, begin, end, units[output], scratch[k])
            else:
                for j in range(end - begin):
                    scratch[k, j] = 0.0
        for at in range(begin, end):
            of_leaf, j = of_part[leaf[rows[at] if rows.size > 0 else I(at)]], at - begin
            of_a, of_b, of_c, of_d = of_leaf[0] + a[j], of_leaf[1] + b[j], of_leaf[2] + c[j], of_leaf[3] + d[j]
            of_leaf[0], of_leaf[1], of_leaf[2], of_leaf[3] = of_a, of_b, of_c, of_d


@internal
def _round_block(values, repeat_count, rows, begin, end, unit, rounded):
    """Write the values (float32[n]) of a block of rows in units, rounded and as often as the rows count, to rounded :
    float64[BLOCK]."""
    if rows.size > 0:
        for at in range(begin, end):
            rounded[at - begin] = (np.float64(values[rows[at]]) * unit + ROUNDER64) - ROUNDER64
    else:
        block = values[begin:end]
        for j in range(block.size):
            rounded[j] = (np.float64(block[j]) * unit + ROUNDER64) - ROUNDER64
    if repeat_count.size > 0:
        for at in range(begin, end):
            rounded[at - begin] *= repeat_count[rows[at] if rows.size > 0 else I(at)]
