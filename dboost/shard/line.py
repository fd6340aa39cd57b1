"""What a shard says about a step along a whole tree: questions for `Engine.ask`."""

from __future__ import annotations

import numpy as np

from dboost.growth.task import Part
from dboost.kernels.leaves import sum_by_leaf
from dboost.losses import Loss
from dboost.shard.merging import merged_by
from dboost.shard.shard import Shard
from dboost.statistics.exact import total


@merged_by(np.add)
def curvature_sums(shard: Shard, first: int, last: int, part: Part, n_leaves: int, unit: float) -> np.ndarray:
    """Sums of second derivatives by leaf, where trees were not grown by them: float64[n_leaves], integers."""
    sums = np.zeros(n_leaves)
    leaf = shard.for_tree(part.output)[2]
    assert shard.curvature is not None
    curvature = shard.curvature if shard.curvature.ndim == 1 else shard.curvature[part.output]
    sum_by_leaf(leaf, curvature, shard.times, *shard.places(part, first, last), unit, sums)
    return sums


@merged_by(np.add)
def leaf_totals(
    shard: Shard, first: int, last: int, output: int, n_leaves: int, gradient_unit: float, hessian_unit: float
) -> np.ndarray:
    """Sums of gradients and Hessians by leaf, and numbers of rows: float64[n_leaves, 3], integers in these units."""
    gradient, hessian, leaf = shard.for_tree(output)
    totals = np.zeros((3, n_leaves))
    totals[2] = np.bincount(leaf[first:last], minlength=n_leaves)
    sum_by_leaf(leaf, gradient, None, None, first, last, gradient_unit, totals[0])
    if hessian is None:
        totals[1] = totals[2] * hessian_unit
    else:
        sum_by_leaf(leaf, hessian, None, None, first, last, hessian_unit, totals[1])
    return totals.T


def line_slopes(
    shard: Shard, first: int, last: int, part: Part, loss: Loss, values: np.ndarray, at: float
) -> tuple[int | None, int | None]:
    """First and second derivative of the loss along a tree, at F + at · (what its leaves say), as exact totals.

    values : float64[n_leaves], of the tree grown last for this output.
    """
    chosen, begin, end = shard.places(part, first, last)
    rows = slice(begin, end) if chosen is None else chosen[begin:end]
    output = part.output
    direction, y = values[shard.for_tree(output)[2][rows]], shard.target[rows]
    with np.errstate(all="ignore"):
        if shard.raw.ndim == 1:
            raw = shard.raw[rows] + at * direction
            gradient, hessian = loss.gradient(y, raw), loss.hessian(y, raw)
        else:
            raw = shard.raw[:, rows].T.copy()
            raw[:, output] += at * direction
            gradient, hessian = loss.gradient(y, raw)[:, output], loss.hessian(y, raw)[:, output]
        if shard.weight is not None:
            gradient, hessian = gradient * shard.weight[rows], hessian * shard.weight[rows]
        return total(gradient * direction), total(hessian * direction * direction)
