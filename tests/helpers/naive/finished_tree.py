"""A grown tree as a tree of the model, node by node: the counterpart of `trees.finished_trees`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dboost.data.columns.binning import Binning
from dboost.losses import BaseLoss
from dboost.losses.base import Leaves
from dboost.model.ensemble import Tree
from dboost.params import Parameters
from dboost.trees.fit_trees import GrownTree
from dboost.trees.tree_task import follow_sums


def finished_tree(tree: GrownTree, binning: Binning, parameters: Parameters, loss: BaseLoss) -> Tree:
    """Return the tree of the model."""
    nodes = tree.nodes
    parameters = replace(parameters, learning_rate=tree.learning_rate)
    sums = tree.leaf_sums[None] if tree.leaf_sums.ndim == 2 else tree.leaf_sums  # [n_outputs, n_leaves, 2]
    own = tree.leaf_values[None] if tree.leaf_values.ndim == 1 else tree.leaf_values
    leaves = loss.leaves[tree.output : tree.output + len(sums)]
    n_codes = binning.n_bins
    left_codes = tree.left_codes
    rows: list[dict[str, object]] = []

    def newton_step(g: float, h: float) -> float:
        return -thresholded(g) / (h + parameters.l2_regularization) if h + parameters.l2_regularization > 0 else 0.0

    def thresholded(g: float) -> float:
        return math.copysign(max(abs(g) - parameters.l1_regularization, 0.0), g) if parameters.l1_regularization else g

    def score(of_output: np.ndarray) -> float:
        return -0.5 * newton_step(*of_output.tolist()) * thresholded(of_output[0])

    def leaf_value(of_output: np.ndarray, limits: Leaves) -> float:
        step = newton_step(*of_output.tolist()) * limits.step_factor
        if parameters.max_delta_step is not None:
            step = min(max(step, -parameters.max_delta_step), parameters.max_delta_step)
        return min(max(parameters.learning_rate * step, -limits.longest_step), limits.longest_step) * limits.score_unit

    def visit(node: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Append the rows of a node and of those below; return its number, its sums and its values, both by output."""
        number, child = len(rows), int(nodes.child[node])
        row: dict[str, object] = {
            "feature": -1, "threshold": math.nan, "categories": None, "missing_left": False, "left": -1, "right": -1,
            "gain": 0.0, "count": int(tree.count[node]),
        }  # fmt: skip
        rows.append(row)
        if child < 0:
            leaf = int(nodes.leaf_of[node])
            of_outputs, values = sums[:, leaf], own[:, leaf]
        else:
            row["left"], left_sums, left_values = visit(child)
            row["right"], right_sums, right_values = visit(child + 1)
            of_outputs = left_sums + right_sums
            n_left, n_right = int(tree.count[child]), int(tree.count[child + 1])
            values = np.empty(len(sums))
            for k, of_output in enumerate(leaves):
                mean = (left_values[k] * n_left + right_values[k] * n_right) / (n_left + n_right)
                values[k] = leaf_value(of_outputs[k], of_output) if follow_sums(parameters, of_output) else mean
            feature, split_bin = int(nodes.feature[node]), int(nodes.split_bin[node])
            edges = binning.edges[feature]
            row["feature"], row["missing_left"] = feature, bool(nodes.missing_left[node])
            if edges is None:
                row["categories"] = [code for code in range(n_codes[feature]) if left_codes[node, code]]
            else:
                row["threshold"] = edges[split_bin] if split_bin < len(edges) else math.inf
            gain = -tree.gain[node] * tree.gain_unit
            if tree.leaf_sums.ndim == 3:
                gain = 0.0
                for k in range(len(sums)):
                    gain += score(left_sums[k]) + score(right_sums[k]) - score(of_outputs[k])
            row["gain"] = gain - parameters.leaf_penalty
        row["cover"] = float(sum(of_outputs[:, 1].tolist())) / len(sums)
        row["value"] = values
        return number, of_outputs, values

    visit(0)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    values = np.array(columns["value"])
    return Tree(
        feature=np.array(columns["feature"], np.int32),
        threshold=np.array(columns["threshold"], np.float64),
        categories=tuple(None if codes is None else np.array(codes, np.int32) for codes in columns["categories"]),
        missing_left=np.array(columns["missing_left"], bool),
        left=np.array(columns["left"], np.int32),
        right=np.array(columns["right"], np.int32),
        gain=np.array(columns["gain"], np.float64),
        cover=np.array(columns["cover"], np.float64),
        count=np.array(columns["count"], np.int64),
        value=values[:, 0] if tree.leaf_values.ndim == 1 else values,
    )
