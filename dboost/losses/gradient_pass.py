"""The pass over rows that depends on the loss: score update, gradient, Hessian and loss in one loop.

A built-in loss keeps its parameters in a named tuple of its own type (with an unused field if there are none, because Numba has
no type of empty ones) and overloads `block_terms` for that type, or, if its gradients depend on several raw scores of a row,
`output_terms`. Numba then compiles `update_gradients` for each loss that is used. Scores and gradients have the shape
[n_outputs, n_rows].

The gradients of a loss of groups depend on all rows of a group: for it a block is a group (`update_groups`).

The loss is summed exactly: each row's loss is divided into a coarse and a fine integer (in units of 1 / loss_unit and
1 / (loss_unit * FINE)), whose float64 sums are exact in any order.
"""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from dboost.kernels import OVERLOAD, internal, kernel
from dboost.kernels.quantile_keys import add_influence
from dboost.kernels.records import record
from dboost.kernels.rows import ROUNDER64, sum_integers
from dboost.kernels.simd import row_span, span

I = np.int64  # noqa: E741

#: Fine units per coarse unit; `exact` uses the same number.
FINE = np.float64(2.0**26)
#: Rows are processed in blocks of this many.
BLOCK = 1024
#: A row's loss in coarse units is clipped to this, so that its integer stays exact.
LARGEST = np.float64(2.0**50)


@record
class GradientRows(NamedTuple):
    """The rows of a shard, for the pass that computes gradients."""

    raw: np.ndarray  # float64[n_outputs, n], updated
    leaf: np.ndarray  # uint8 or int32[n_outputs, n]: leaf of the last tree
    #: float64[n]; empty if one of the next two, float32[n] and uint8[n], has the targets in fewer bytes.
    target: np.ndarray
    single_target: np.ndarray
    byte_target: np.ndarray
    weight: np.ndarray  # float64[n], empty for 1 each
    repeat_count: np.ndarray  # uint8[n]: how often each row counts; empty: gradients are multiplied by the weights
    gradient: np.ndarray  # float32[n_outputs, n], written
    hessian: np.ndarray  # float32[n_outputs, n], written; float32[n_outputs, 0] when it is constant
    #: The same memory as int32, in which magnitudes order like numbers and maxima vectorise.
    gradient_bits: np.ndarray
    hessian_bits: np.ndarray


@record
class PassScratch(NamedTuple):
    """Scratch of one thread."""

    terms: np.ndarray  # float64[3, BLOCK]: losses, their coarse parts, targets
    single: np.ndarray  # float32[BLOCK]


def new_pass_scratch(n_rows: int = BLOCK) -> PassScratch:
    """Return scratch for blocks of at most `n_rows` rows."""
    return PassScratch(np.empty((3, n_rows)), np.empty(n_rows, np.float32))


@record
class PassTotals(NamedTuple):
    """What a pass adds up."""

    loss: np.ndarray  # float64[2]: coarse and fine sums of the weighted loss, added to
    #: int32[2, n_outputs]: the bits of the largest |gradient| and Hessian of each output (a NaN is larger than all numbers),
    #: updated.
    maxima: np.ndarray


def block_terms(loss, y, raw, gradient, hessian, value, scratch):
    """Compute gradients, Hessians and losses of a block of rows; each loss module overloads it for its own record type.

    y, raw : float64[n], n <= BLOCK; gradient, hessian : float32[n] (hessian empty when constant) and value : float64[n] receive
    the results; scratch : float32[n] or longer. Of a loss of groups (`losses.base.Targets`) a block is a whole group of any
    size. Loops over one width of number vectorise; mixed ones do not.
    """
    return _interpreted(block_terms, loss, y, raw, gradient, hessian, value, scratch)


def output_terms(loss, y, raw, gradient, hessian, first, value, scratch):
    """Compute gradients, Hessians and losses of a block of rows for all outputs, see `block_terms`.

    raw : float64[n_outputs, n_rows]; gradient, hessian : float32[n_outputs, n_rows], of all rows: the block begins at row
    `first` (y and value begin at 0). A slice of one output's row is contiguous, so that loops over it vectorise; a row of a
    slice is not.
    """
    return _interpreted(output_terms, loss, y, raw, gradient, hessian, first, value, scratch)


def _interpreted(stub, loss, *arguments):
    """Run the overload for a loss's record. Kernels do so only when they are interpreted: overloads expect Numba's types."""
    kind = SimpleNamespace(instance_class=type(loss))
    for choose in _OVERLOADS[stub]:
        terms = choose(kind, *arguments)
        if terms is not None:
            return terms(loss, *arguments)
    raise NotImplementedError(f"no overload for {type(loss).__name__}")


_OVERLOADS: dict[Any, list[Any]] = {block_terms: [], output_terms: []}


def overloads(stub, kind):
    """Decorate the function that computes the terms of a loss. stub : block_terms or output_terms; kind : its record's type."""

    def decorate(terms):
        def choose(loss, *arguments):
            return terms if getattr(loss, "instance_class", None) is kind else None

        choose.__signature__ = signature(terms)  # type: ignore[attr-defined]  # Numba compares it with that of the terms
        _add_overload(stub, choose)
        return terms

    return decorate


def _add_overload(stub, choose):
    """Have kernels call what a function returns for the types of the arguments, if that is not None, as `stub`."""
    _OVERLOADS[stub].append(choose)
    overload(stub, jit_options=OVERLOAD)(choose)


def _choose_for_only_output(loss, y, raw, gradient, hessian, first, value, scratch):
    arguments = y, raw, gradient, hessian, value, scratch
    if any(choose(loss, *arguments) is not None for choose in _OVERLOADS[block_terms]):

        def terms(loss, y, raw, gradient, hessian, first, value, scratch):
            last = first + y.size
            of_raw, of_gradient = row_span(raw, 0, first, last), row_span(gradient, 0, first, last)
            block_terms(loss, y, of_raw, of_gradient, hessian[0, first:last], value, scratch)

        return terms


_add_overload(output_terms, _choose_for_only_output)


@internal
def add_exactly(terms, coarse, n, loss_unit, sums):
    """Add n values to an exact sum (sums : float64[2], coarse and fine integers). Both arrays are overwritten."""
    for i in range(n):
        scaled = terms[i] * loss_unit
        scaled = scaled if scaled < LARGEST else LARGEST
        whole = (scaled + ROUNDER64) - ROUNDER64
        coarse[i] = whole
        terms[i] = ((scaled - whole) * FINE + ROUNDER64) - ROUNDER64
    sums[0] += sum_integers(coarse, n)
    sums[1] += sum_integers(terms, n)


@internal
def _update_block(loss, rows, values, first, last, loss_unit, scratch, totals, influence):
    """Add leaf values to raw scores, then write gradients and Hessians and add up the loss, for the rows of one block."""
    raw, leaf, weight = rows.raw, rows.leaf, rows.weight
    target, single_target, byte_target = rows.target, rows.single_target, rows.byte_target
    gradient, hessian, maxima = rows.gradient, rows.hessian, totals.maxima
    gradient_bits, hessian_bits = rows.gradient_bits, rows.hessian_bits
    n_outputs = raw.shape[0]
    value, coarse, targets = scratch.terms[0], scratch.terms[1], scratch.terms[2]
    n = last - first
    n_hessians = n if hessian.shape[1] > 0 else 0
    for k in range(n_outputs):
        score, at, value_of = row_span(raw, k, first, last), row_span(leaf, k, first, last), values[k]
        for i in range(n):
            score[i] += value_of[at[i]]
    # Here the type of the targets is tested, not where the kernel is compiled: that would be once for each type.
    y = span(targets, 0, n)
    if target.size > 0:
        y = span(target, first, last)
    elif single_target.size > 0:
        of_rows = span(single_target, first, last)
        for i in range(n):
            y[i] = of_rows[i]
    else:
        bytes_of_rows = span(byte_target, first, last)
        for i in range(n):
            y[i] = bytes_of_rows[i]
    output_terms(loss, y, raw, gradient, hessian, first, value, scratch.single)
    if weight.size > 0:
        w = span(weight, first, last)
        for i in range(n):
            value[i] *= w[i]
        if rows.repeat_count.size == 0:
            for k in range(n_outputs):
                g, h = row_span(gradient, k, first, last), row_span(hessian, k, first, first + n_hessians)
                for i in range(n):
                    g[i] *= np.float32(w[i])
                for i in range(h.size):
                    h[i] *= np.float32(w[i])
    for k in range(n_outputs):
        g_bits, h_bits = row_span(gradient_bits, k, first, last), row_span(hessian_bits, k, first, first + n_hessians)
        top_gradient, top_hessian = I(maxima[0, k]), maxima[1, k]
        for i in range(n):
            magnitude = g_bits[i] & np.int32(0x7FFFFFFF)
            top_gradient = magnitude if magnitude > top_gradient else top_gradient
        for i in range(h_bits.size):
            top_hessian = h_bits[i] if h_bits[i] > top_hessian else top_hessian
        maxima[0, k], maxima[1, k] = top_gradient, top_hessian
        if influence is not None:
            add_influence(h_bits, rows.repeat_count, first, influence[k])
    add_exactly(value, coarse, n, loss_unit, totals.loss)


@kernel
def update_gradients(loss, rows, values, first_row, last_row, loss_unit, scratch, totals, influence):
    """Add leaf values to raw scores, then write gradients and Hessians and add up the loss, for rows first_row…last_row-1.

    loss : the loss's record; rows : GradientRows; values : float64[n_outputs, n_leaves]; scratch : PassScratch; totals :
    PassTotals; influence : int64[n_outputs, LANES, N_DIGITS], see `quantile_keys.add_influence`, or None.
    """
    for first in range(first_row, last_row, BLOCK):
        last = first + BLOCK if first + BLOCK < last_row else last_row
        _update_block(loss, rows, values, first, last, loss_unit, scratch, totals, influence)


@kernel
def update_groups(loss, rows, values, first_row, ends, loss_unit, scratch, totals):
    """Do as `update_gradients` for whole groups of rows, each of which is a block.

    ends : int64[n_groups], last row + 1 of each group, ascending; the first group begins at `first_row`. scratch : for the rows
    of the largest group.
    """
    first = I(first_row)
    for k in range(ends.size):
        _update_block(loss, rows, values, first, ends[k], loss_unit, scratch, totals, None)
        first = ends[k]
