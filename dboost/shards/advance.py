"""The pass over a shard's rows between two iterations: scores take in the last trees, then gradients and Hessians are computed.

It returns the largest gradient and Hessian and exact sums of the loss, which merge over any division of the rows.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels.quantile_keys import LANES, N_DIGITS
from dboost.losses import Loss
from dboost.losses.custom_loss import CustomTerms, call_custom
from dboost.losses.gradient_pass import BLOCK, LARGEST, advance, advance_outputs
from dboost.metrics.exact_sum import ExactSum
from dboost.shards.rows_near_cut import NOTHING_NEAR
from dboost.shards.shard import Shard
from dboost.trees.tree_task import GradientStats


class Scratch:
    """Scratch memory for one thread's block of rows."""

    def __init__(self) -> None:
        self.terms = np.empty((2, BLOCK))
        self.single = np.empty(BLOCK, np.float32)


def advance_rows(
    shard: Shard, loss_terms: tuple, values: np.ndarray, loss_unit: float, scratch: Scratch, first: int, last: int
) -> GradientStats:
    """Add leaf values to the scores of rows first…last-1, and compute their gradients, Hessians and loss.

    Parameters
    ----------
    shard : Shard
    loss_terms : NamedTuple
        The loss's record for kernels.
    values : float64[n_outputs, n_leaves]
        Leaf values of each output's last tree.
    loss_unit : float
        Unit of the exact loss sums.
    scratch : Scratch
    first, last : int
    """
    if isinstance(loss_terms, CustomTerms):
        return _by_methods(shard, loss_terms.loss, values[0], loss_unit, first, last)
    sums, top = np.zeros(2), np.zeros((2, shard.n_outputs), np.int32)
    gradient_bits = shard.gradient.view(np.int32)
    hessian = shard.hessian if shard.loss_hessian is None else shard.loss_hessian
    hessian_bits = None if hessian is None else hessian.view(np.int32)
    one = shard.raw.ndim == 1
    counts = getattr(loss_terms, "counts_influence", False)
    influence = np.zeros((shard.n_outputs, LANES, N_DIGITS), np.int64) if counts else None
    near = shard.near.buffer_for(first, last) if counts and shard.near is not None else NOTHING_NEAR
    (advance if one else advance_outputs)(
        loss_terms, shard.raw, shard.leaf, values[0] if one else values, shard.target, shard.weight, shard.gradient,
        hessian, gradient_bits, hessian_bits, first, last, loss_unit, scratch.terms, scratch.single, sums,
        top.ravel() if one else top, shard.repeat_count is None, shard.repeat_count,
        influence[0] if one and influence is not None else influence, near.expected,
        near.rows[0] if one and near.rows is not None else near.rows, near.n,
    )  # fmt: skip
    max_gradient, max_hessian = top.view(np.float32).astype(np.float64)
    if hessian is None:
        max_hessian = np.ones_like(max_hessian)
    by_digit = None if influence is None else influence.sum(axis=1)
    return GradientStats(max_gradient, max_hessian, float(sums[0]), float(sums[1]), by_digit)


def _by_methods(shard: Shard, loss: Loss, values: np.ndarray, loss_unit: float, first: int, last: int) -> GradientStats:
    """Do the same with the methods of a custom loss."""
    raw, y = shard.raw[first:last], shard.target[first:last]
    kept = shard.hessian if shard.loss_hessian is None else shard.loss_hessian
    raw += values[shard.leaf[first:last]]
    with np.errstate(all="ignore"):
        value, gradient, hessian = (call_custom(loss, what, y, raw) for what in ("value", "gradient", "hessian"))
        if shard.weight is not None:
            weight = shard.weight[first:last]
            value = value * weight
            if shard.repeat_count is None:
                gradient, hessian = gradient * weight, hessian * weight
        shard.gradient[first:last] = gradient
        if kept is not None:
            kept[first:last] = np.maximum(hessian, 0.0)
        in_units = np.nan_to_num(np.clip(value * loss_unit, -LARGEST, LARGEST))
    loss_sum = ExactSum.of(in_units, 1.0)
    tops = [0.0 if of is None or first == last else np.abs(of[first:last]).max() for of in (shard.gradient, kept)]
    if kept is None:
        tops[1] = 1.0
    return GradientStats(np.array(tops[:1], np.float64), np.array(tops[1:], np.float64), loss_sum.loss_unit, loss_sum.fine)
