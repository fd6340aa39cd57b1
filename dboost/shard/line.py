"""What a shard says about a step along a whole tree: questions for `Engine.ask`."""

from __future__ import annotations

import numpy as np

from dboost.kernels.leaves import sum_by_leaf
from dboost.losses import Loss
from dboost.shard.shard import Shard
from dboost.statistics.exact import total


def curvature_sums(shard: Shard, first: int, last: int, output: int, n_leaves: int, unit: float) -> np.ndarray:
    """Sums of second derivatives by leaf, where trees were not grown by them: float64[n_leaves], integers."""
    sums = np.zeros(n_leaves)
    leaf = shard.for_tree(output)[2]
    assert shard.curvature is not None
    curvature = shard.curvature if shard.curvature.ndim == 1 else shard.curvature[output]
    sum_by_leaf(leaf, curvature, shard.times, None, first, last, unit, sums)
    return sums


def line_slopes(
    shard: Shard, first: int, last: int, loss: Loss, output: int, values: np.ndarray, at: float
) -> tuple[int | None, int | None]:
    """First and second derivative of the loss along a tree, at F + at · (what its leaves say), as exact totals.

    values : float64[n_leaves], of the tree grown last for this output.
    """
    direction = values[shard.for_tree(output)[2][first:last]]
    y = shard.target[first:last]
    with np.errstate(all="ignore"):
        if shard.raw.ndim == 1:
            raw = shard.raw[first:last] + at * direction
            gradient, hessian = loss.gradient(y, raw), loss.hessian(y, raw)
        else:
            raw = shard.raw[:, first:last].T.copy()
            raw[:, output] += at * direction
            gradient, hessian = loss.gradient(y, raw)[:, output], loss.hessian(y, raw)[:, output]
        if shard.weight is not None:
            gradient, hessian = gradient * shard.weight[first:last], hessian * shard.weight[first:last]
        return total(gradient * direction), total(hessian * direction * direction)
