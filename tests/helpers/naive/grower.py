"""A naive tree grower: every leaf stores its rows, every split is tried, one leaf is split at a time.

Gradients and Hessians are the quantised integers; sums are Python integers. Nothing is cached between leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dboost.data.columns.binning import Binning
from dboost.model.ensemble import Tree
from dboost.params import Parameters
from dboost.trees.tree_task import DEPTH_WISE, GrowthPolicy, TreeTask
from tests.helpers.naive import rows as naive_rows
from tests.helpers.naive import splits
from tests.helpers.naive.histograms import Histogram, histogram
from tests.helpers.tables import CodedTable


@dataclass(eq=False)
class Node:
    """A node: its rows, and if it is split, how."""

    rows: list[int]
    depth: int
    candidate: splits.Candidate | None = None
    gain: float = 0.0
    goes_left: set[int] = field(default_factory=set)
    missing_left: bool = False
    children: tuple[Node, Node] | None = None


@dataclass(eq=False)
class NaiveGrower:
    """Grows one tree from a coded table."""

    table: CodedTable
    task: TreeTask
    gradient: Sequence[float]
    hessian: Sequence[float] | None
    repeat_count: Sequence[int] | None = None
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        scale_g, scale_h = self.task.scales[:2].tolist()
        self.g = [naive_rows.quantised(g, scale_g) for g in self.gradient]
        n = self.table.n_rows
        self.h = [1] * n if self.hessian is None else [naive_rows.quantised_hessian(h, scale_h) for h in self.hessian]
        self.codes = self.table.codes.tolist()
        self.weight = [1] * n if self.repeat_count is None else self.repeat_count

    def grow(self, rows: list[int] | None = None) -> list[Node]:
        """All nodes, the k-th split's children at 2k + 1 and 2k + 2. rows : those to grow from; default: all."""
        policy = self.task.policy
        self.nodes = [self._looked_at(Node(list(range(self.table.n_rows)) if rows is None else rows, 0))]
        while len(self.nodes) < 2 * policy.max_leaves - 1:
            open_leaves = [
                node
                for node in self.nodes
                if node.children is None and node.candidate is not None and node.depth < policy.max_depth
            ]
            if not open_leaves:
                break
            self._split(min(open_leaves, key=lambda node: self._order(node, policy)))
        return self.nodes

    def leaf_of(self, node: Node, row: int) -> Node:
        """Where a row ends, whether it took part or not."""
        if node.children is None:
            return node
        assert node.candidate is not None
        feature = node.candidate.feature
        code = self.codes[feature][row]
        left = node.missing_left if code == self.table.n_codes[feature] - 1 else code in node.goes_left
        return self.leaf_of(node.children[0 if left else 1], row)

    def _order(self, node: Node, policy: GrowthPolicy) -> tuple[float, ...]:
        """What comes first is split first; `min` takes the older of equals."""
        return (node.depth, -node.gain) if policy.order == DEPTH_WISE else (-node.gain,)

    def _histogram(self, node: Node, feature: int) -> Histogram:
        return histogram(self.codes[feature], self.table.n_codes[feature], self.g, self.h, node.rows, self.repeat_count)

    def _looked_at(self, node: Node) -> Node:
        """Find the best split, and keep it if it gains enough."""
        limits, candidates = self.task.limits, []
        for feature in range(len(self.codes)):
            if self.task.allowed[feature]:
                is_categorical = self.table.layout.is_categorical[feature]
                search = splits.categorical_candidates if is_categorical else splits.numeric_candidates
                candidates += list(search(self._histogram(node, feature), feature, limits))
        best = splits.best(iter(candidates))
        total = tuple(sum(self.weight[row] * values[row] for row in node.rows) for values in (self.g, self.h))
        parent = splits.side_score(*total, limits.l2, limits.l1, limits.max_step)
        if best is not None and best.score - parent > max(limits.threshold, 1e-12 * parent):
            node.candidate, node.gain = best, best.score - parent
        return node

    def _split(self, node: Node) -> None:
        assert node.candidate is not None
        feature = node.candidate.feature
        missing = self.table.n_codes[feature] - 1
        goes_left = set(node.candidate.left) | ({missing} if node.candidate.missing_left else set())
        sides: tuple[list[int], list[int]] = [], []
        for row in node.rows:
            sides[self.codes[feature][row] not in goes_left].append(row)
        node.goes_left = goes_left - {missing}
        if any(self.codes[feature][row] == missing for row in node.rows):
            node.missing_left = missing in goes_left
        else:
            hessians = [sum(self.weight[row] * self.h[row] for row in side) for side in sides]
            node.missing_left = hessians[0] > hessians[1]
        left, right = (self._looked_at(Node(side, node.depth + 1)) for side in sides)
        node.children = left, right
        self.nodes += node.children


def leaves_of(root: Node) -> list[Node]:
    """Leaves from left to right."""
    if root.children is None:
        return [root]
    return leaves_of(root.children[0]) + leaves_of(root.children[1])


def to_tree(grower: NaiveGrower, binning: Binning, parameters: Parameters) -> Tree:
    """The finished tree, written down node by node in depth-first order."""
    order: list[Node] = []

    def visit(node: Node) -> None:
        order.append(node)
        for child in node.children or ():
            visit(child)

    visit(grower.nodes[0])
    number = {id(node): i for i, node in enumerate(order)}
    scale_g, scale_h, unit_g, unit_h = grower.task.scales.tolist()
    features, thresholds, categories, missing_left, lefts, rights, gains, covers, counts, values = ([] for _ in range(10))
    for node in order:
        weight = grower.weight
        g = sum(weight[row] * naive_rows.nearest(float(grower.gradient[row]) * unit_g) for row in node.rows) / unit_g
        h = float(sum(weight[row] for row in node.rows))
        if grower.hessian is not None:
            h = sum(weight[row] * naive_rows.nearest(float(grower.hessian[row]) * unit_h) for row in node.rows) / unit_h
        covers.append(h)
        counts.append(len(node.rows))
        values.append(leaf_value(g, h, parameters))
        if node.children is None:
            features.append(-1), thresholds.append(np.nan), categories.append(None), missing_left.append(False)
            lefts.append(-1), rights.append(-1), gains.append(0.0)
            continue
        assert node.candidate is not None
        feature = node.candidate.feature
        edges = binning.edges[feature]
        features.append(feature)
        categories.append(sorted(node.goes_left) if edges is None else None)
        cut = node.candidate.cut
        thresholds.append(np.nan if edges is None else edges[cut] if cut < len(edges) else np.inf)
        missing_left.append(node.missing_left)
        lefts.append(number[id(node.children[0])])
        rights.append(number[id(node.children[1])])
        gains.append(node.gain * (0.5 * scale_h / scale_g**2) - parameters.leaf_penalty)
    return Tree(
        np.array(features, np.int32),
        np.array(thresholds),
        tuple(None if codes is None else np.array(codes, np.int32) for codes in categories),
        np.array(missing_left, np.bool_),
        np.array(lefts, np.int32),
        np.array(rights, np.int32),
        np.array(gains),
        np.array(covers),
        np.array(counts, np.int64),
        np.array(values),
    )


def leaf_value(g: float, h: float, parameters: Parameters) -> float:
    """-ν T_α(G) / (H + λ), bounded."""
    alpha, bound = parameters.l1_regularization, parameters.max_delta_step
    t = np.sign(g) * max(abs(g) - alpha, 0.0)
    d = h + parameters.l2_regularization
    step = -t / d if d > 0 else 0.0
    if bound is not None:
        step = min(max(step, -bound), bound)
    return parameters.learning_rate * step
