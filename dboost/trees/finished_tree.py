"""From a grown tree to a `Tree`: leaf values, depth-first numbering, thresholds instead of bins."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dboost.data.binning import Binning
from dboost.losses import Loss
from dboost.model.ensemble import Tree
from dboost.params import Parameters
from dboost.trees.tree_task import GrownTree


def newton_steps(sums: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Return the Newton step of each leaf, -T_α(G) / (H + λ): float64[n].

    sums : float64[n, 2], exact sums of gradients and Hessians. Where H + λ is 0 the step is 0.
    """
    g, h = sums[:, 0], sums[:, 1] + parameters.l2_regularization
    if parameters.l1_regularization:
        g = np.sign(g) * np.maximum(np.abs(g) - parameters.l1_regularization, 0.0)
    return np.divide(-g, h, out=np.zeros(len(g)), where=h > 0)


def leaf_values(sums: np.ndarray, parameters: Parameters, loss: Loss) -> np.ndarray:
    """Return what each leaf adds to the raw score: -ν T_α(G) / (H + λ), bounded by the largest step.

    sums : as in `newton_steps`; loss : its `step_factor` and `longest_step` apply.
    """
    step = newton_steps(sums, parameters)
    if loss.step_factor != 1.0:
        step *= loss.step_factor
    return bounded(step, parameters, loss)


def follow_sums(parameters: Parameters, loss: Loss) -> bool:
    """Return whether leaf values are Newton steps of the same sums that the tree was grown by."""
    by_sums = loss.constant_hessian or parameters.criterion == "newton"
    return by_sums and parameters.step == "leaf" and loss.leaf_statistic == "newton"


def bounded(step: np.ndarray, parameters: Parameters, loss: Loss) -> np.ndarray:
    """Return the steps times the learning rate, clipped to the largest step allowed."""
    if parameters.max_delta_step is not None:
        step = np.clip(step, -parameters.max_delta_step, parameters.max_delta_step)
    with np.errstate(over="ignore"):  # the next pass over the rows reports scores that are not finite
        return np.clip(parameters.learning_rate * step, -loss.longest_step, loss.longest_step)


def within_bounds(values: np.ndarray, grown: GrownTree, unit: float) -> None:
    """Clip leaf values (float64[n_leaves]) to the bounds of a constrained tree, which are in units of `unit`."""
    leaves = np.flatnonzero(grown.nodes.child[: grown.n_nodes] < 0)
    at, bounds = grown.leaf_of[leaves], grown.nodes.total[leaves, 3:] * unit
    values[at] = np.clip(values[at], bounds[:, 0], bounds[:, 1])


@dataclass(frozen=True, eq=False)
class TreeSnapshot:
    """Copies of the parts of a grown tree that the model needs; `to_tree` turns them into a `Tree` on demand."""

    feature: np.ndarray
    split_bin: np.ndarray
    missing_left: np.ndarray
    child: np.ndarray
    gain: np.ndarray
    n_rows: np.ndarray
    leaf_of: np.ndarray
    sums: np.ndarray
    left_codes: np.ndarray | None
    values: np.ndarray
    gain_unit: float
    learning_rate: float

    @classmethod
    def of(cls, grown: GrownTree, values: np.ndarray, gain_unit: float, learning_rate: float) -> TreeSnapshot:
        """Copy what the model needs of a grown tree.

        values : float64[n_leaves], what leaves add to the scores; gain_unit : factor from a score of quantised sums to units of
        the loss; learning_rate : that of the iteration.
        """
        n, nodes = grown.n_nodes, grown.nodes
        has_codes = grown.left_codes.shape[1] > 1
        return cls(
            feature=nodes.feature[:n].copy(),
            split_bin=nodes.split_bin[:n].copy(),
            missing_left=nodes.missing_left[:n].copy(),
            child=nodes.child[:n].copy(),
            gain=nodes.gain[:n].copy(),
            n_rows=grown.n_rows[:n].copy(),
            leaf_of=grown.leaf_of[:n].copy(),
            sums=grown.leaf_sums,
            left_codes=grown.left_codes[:n].copy() if has_codes else None,
            values=values,
            gain_unit=gain_unit,
            learning_rate=learning_rate,
        )

    def to_tree(self, binning: Binning, parameters: Parameters, loss: Loss) -> Tree:
        """Return the finished tree."""
        if parameters.learning_rate != self.learning_rate:
            parameters = replace(parameters, learning_rate=self.learning_rate)
        n = len(self.feature)
        order = np.empty(n, np.int64)  # depth-first position -> growth number
        stack, filled = [0], 0
        child = self.child.tolist()
        while stack:
            node = stack.pop()
            order[filled] = node
            filled += 1
            if child[node] >= 0:
                stack += (child[node] + 1, child[node])
        position = np.empty(n, np.int64)
        position[order] = np.arange(n)
        is_split = self.child >= 0

        # Children have higher numbers than their parents. Node by node, floats are faster in lists than in arrays.
        gradient, hessian = ([0.0] * n for _ in range(2))
        of_leaf, leaf_of = self.sums.tolist(), self.leaf_of.tolist()
        for node in range(n - 1, -1, -1):
            left = child[node]
            if left < 0:
                gradient[node], hessian[node] = of_leaf[leaf_of[node]]
            else:
                gradient[node] = gradient[left] + gradient[left + 1]
                hessian[node] = hessian[left] + hessian[left + 1]
        sums = np.array((gradient, hessian)).T

        threshold = [math.nan] * n
        categories: list[np.ndarray | None] = [None] * n
        feature, split_bins = self.feature.tolist(), self.split_bin.tolist()
        n_bins = binning.n_bins
        for node in range(n):
            if child[node] < 0:
                continue
            edges = binning.edges[feature[node]]
            if edges is None:
                assert self.left_codes is not None
                levels = self.left_codes[node, : n_bins[feature[node]]]
                categories[node] = np.flatnonzero(levels).astype(np.int32)
            else:
                # A split after the last bin separates missing values only.
                threshold[node] = edges[split_bins[node]] if split_bins[node] < len(edges) else math.inf
        left = np.where(is_split, position[self.child], -1)
        right = np.where(is_split, position[np.where(is_split, self.child + 1, 0)], -1)
        gain = np.where(is_split, -self.gain * self.gain_unit - parameters.leaf_penalty, 0.0)
        return Tree(
            feature=np.where(is_split, self.feature, -1)[order].astype(np.int32),
            threshold=np.array(threshold, np.float64)[order],
            categories=tuple(categories[node] for node in order),
            missing_left=(is_split & (self.missing_left != 0))[order],
            left=left[order].astype(np.int32),
            right=right[order].astype(np.int32),
            gain=gain[order],
            cover=sums[order, 1],
            count=self.n_rows[order],
            value=self._values(sums, parameters, loss)[order],
        )

    def _values(self, sums: np.ndarray, parameters: Parameters, loss: Loss) -> np.ndarray:
        """Return the values of all nodes in growth order. Inner nodes get the value by their sums, or the mean over their
        rows."""
        values = leaf_values(sums, parameters, loss)
        is_leaf = self.child < 0
        values[is_leaf] = self.values[self.leaf_of[is_leaf]]
        if not follow_sums(parameters, loss):
            for node in np.flatnonzero(~is_leaf)[::-1]:
                both = slice(self.child[node], self.child[node] + 2)
                values[node] = values[both] @ self.n_rows[both] / self.n_rows[both].sum()
        return values
