"""Growing a tree by asking: a generator that yields questions and is sent merged answers.

It does no I/O and knows no engine. A question carries the splits decided last together with the leaves to add up next, so a
level of the tree costs one round trip. Whoever drives the generator (`engine/rounds.py` in this process, a reducer on a
cluster) must merge the answers of all shards, which is addition.

**Speculation.** Strict best-first growth would need a round per split. So each question opens several promising leaves at
once, and the best-first order is replayed afterwards over what is known: a split is *committed* when it is the best one
left and its children have been looked at. What was opened for nothing is dropped. The tree is the one that opening a single
leaf at a time would have given, in about log-many rounds.

Of two children only one is added up, the one with fewer rows (or the smaller Hessian where rows are not counted); the other
is its parent minus that.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from dboost.growth.frontier import Frontier, divide, new_frontier, note_best, pick, plant
from dboost.growth.task import GrownTree, TreeTask
from dboost.kernels import kernel
from dboost.kernels.histograms import Layout
from dboost.kernels.splits import (
    CUT,
    FEATURE,
    MISSING_LEFT,
    SPLIT_SIZE,
    forget,
    search_categorical,
    search_numeric,
    send_left,
)


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of `node` whose code of `feature` is marked in `goes_left` (uint8[n_codes]) move to `left`, others to `right`."""

    node: int
    feature: int
    goes_left: np.ndarray
    left: int
    right: int


@dataclass(frozen=True, eq=False)
class Question:
    """Make these splits, then add up these nodes; with `leaves`, end the tree: number the leaves and add them up exactly.

    Node numbers are the grower's own. leaves : {node: number of the leaf}; rows of a node that was split for nothing are
    in its descendants, all of which are listed.
    """

    splits: tuple[Split, ...] = ()
    build: tuple[int, ...] = ()
    leaves: dict[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """Sums over the shards.

    planes : float64[len(build), n_planes, n_buckets]; n_rows : int64[len(splits), 2], rows that went left and right;
    leaf_sums : float64[n_leaves, 2], integers in units of 1 / scales[2:] (with `leaves`).
    """

    planes: np.ndarray
    n_rows: np.ndarray
    leaf_sums: np.ndarray | None = None

    def merge(self, other: Answer) -> Answer:
        """Add two answers: exact, associative and commutative."""
        sums = None if self.leaf_sums is None or other.leaf_sums is None else self.leaf_sums + other.leaf_sums
        return Answer(self.planes + other.planes, self.n_rows + other.n_rows, sums)


@dataclass(eq=False)
class _Node:
    """A node that has been looked at, committed or not."""

    number: int
    depth: int
    total: np.ndarray  # float64[3]
    planes: np.ndarray | None = None
    best: np.ndarray | None = None
    gain: float = -1.0
    n_rows: int = -1
    children: tuple[_Node, _Node] | None = None
    goes_left: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))


def grow_tree(task: TreeTask, layout: Layout, n_rows: int, width: int) -> Generator[Question, Answer, GrownTree]:
    """The generator: yields questions, is sent answers, returns the tree.

    Parameters
    ----------
    task : TreeTask
    layout : Layout
    n_rows : int
        Rows over all shards.
    width : int
        Leaves opened per question, at least 1.
    """
    return (yield from _Grower(task, layout, n_rows, width).run())


class _Grower:
    def __init__(self, task: TreeTask, layout: Layout, n_rows: int, width: int) -> None:
        self.task, self.layout, self.width = task, layout, width
        self.frontier: Frontier = new_frontier(task.rule.max_leaves)
        self.n_committed = 1
        n_codes = int(layout.n_bins.max()) + 1
        self.scratch = np.empty((4, n_codes))
        self.keys, self.order = np.empty(n_codes), np.empty(n_codes, np.int64)
        self.n_numbers = 1
        self.nodes: list[_Node] = []  # committed ones, by frontier number
        self.n_rows = n_rows

    def run(self) -> Generator[Question, Answer, GrownTree]:
        answer = yield Question(build=(0,))
        planes = answer.planes[0]
        first = slice(int(self.layout.offset[0]), int(self.layout.offset[1]))
        total = np.zeros(3)
        total[: len(planes)] = planes[:, first].sum(axis=1)
        if len(planes) == 2:
            total[2] = total[1]
        root = _Node(0, 0, total, planes, n_rows=self.n_rows)
        _plant(self.frontier, total)
        self._look_at(root)
        self.nodes.append(root)
        self._note(0)
        late: list[Split] = []  # splits into leaves: nobody waits for their histograms
        while True:
            waiting = self._commit(late)
            if waiting is None:
                break
            opened = self._choose(waiting)
            splits = [self._split(node) for node in opened]
            small = [self._smaller(node) for node in opened]
            answer = yield Question(tuple(splits), tuple(node.number for node in small))
            for k, node in enumerate(opened):
                self._open(node, small[k], answer.planes[k], answer.n_rows[k])
        leaf_of, labels, n_leaves = self._number_leaves()
        answer = yield Question(tuple(late), (), labels)
        assert answer.leaf_sums is not None
        for split, (left, right) in zip(late, answer.n_rows, strict=True):
            node = next(n for n in self.nodes if n.number == split.node)
            self._count(node, int(left), int(right))
        self._direct_missing()
        n = self.n_committed
        left_codes = np.zeros((n, len(self.order) if self.layout.is_categorical.any() else 1), np.uint8)
        for number in range(n):
            node = self.nodes[number]
            if self.frontier.child[number] >= 0 and left_codes.shape[1] > 1:
                left_codes[number, : len(node.goes_left)] = node.goes_left
        return GrownTree(
            frontier=self.frontier,
            n_nodes=n,
            n_leaves=n_leaves,
            n_rows=np.array([node.n_rows for node in self.nodes]),
            leaf_of=leaf_of,
            leaf_sums=answer.leaf_sums / self.task.scales[2:],
            left_codes=left_codes,
        )

    def _commit(self, late: list[Split]) -> _Node | None:
        """Replay best-first growth as far as is known; returns the leaf that must be opened first, or None at the end."""
        rule, frontier = self.task.rule, self.frontier
        last = 2 * rule.max_leaves - 1
        while self.n_committed < last:
            number = int(_pick(frontier, self.n_committed, rule))
            if number < 0:
                return None
            node = self.nodes[number]
            is_final = self.n_committed + 2 >= last or node.depth + 1 >= rule.max_depth
            if node.children is None:
                if not is_final:
                    return node
                late.append(self._split(node))
            assert node.children is not None
            left = self.n_committed
            _divide(frontier, number, left)
            self.n_committed += 2
            self.nodes += node.children
            if not is_final:
                self._note(left)
                self._note(left + 1)
        return None

    def _note(self, number: int) -> None:
        best = self.nodes[number].best
        assert best is not None
        _note_best(self.frontier, number, best, self.task.limits)
        self.nodes[number].gain = float(self.frontier.gain[number])

    def _choose(self, first: _Node) -> list[_Node]:
        """The leaf that is needed, and the most promising others that may be opened with it."""
        rule = self.task.rule
        candidates: list[_Node] = []
        stack = list(self.nodes)
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            if node.number in seen:
                continue
            seen.add(node.number)
            if node.children is not None:
                stack += node.children
            elif node is not first and node.gain > 0 and node.depth + 1 < rule.max_depth and node.planes is not None:
                candidates.append(node)
        key = (lambda n: (n.depth, -n.gain, n.number)) if rule.order == 1 else (lambda n: (0, -n.gain, n.number))
        leaves_left = rule.max_leaves - (self.n_committed + 1) // 2
        return [first, *sorted(candidates, key=key)[: max(min(self.width, leaves_left) - 1, 0)]]

    def _split(self, node: _Node) -> Split:
        """Decide where a node's rows go, and give its children numbers and sums."""
        best, layout = node.best, self.layout
        assert best is not None and node.planes is not None
        feature = int(best[FEATURE])
        n_bins, at = int(layout.n_bins[feature]), int(layout.offset[feature])
        goes_left = np.zeros(n_bins + 1, np.uint8)
        if layout.is_categorical[feature]:
            _levels_left(node.planes, at, n_bins, int(best[CUT]), self.task.limits, self.keys, self.order, goes_left)
        else:
            goes_left[: int(best[CUT]) + 1] = 1
            goes_left[n_bins] = int(best[MISSING_LEFT])
        node.goes_left = goes_left
        left_total = best[4:7].copy()
        children = tuple(
            _Node(self.n_numbers + k, node.depth + 1, total) for k, total in enumerate((left_total, node.total - left_total))
        )
        self.n_numbers += 2
        node.children = (children[0], children[1])
        return Split(node.number, feature, goes_left, children[0].number, children[1].number)

    def _smaller(self, node: _Node) -> _Node:
        assert node.children is not None
        left, right = node.children
        plane = 2 if self.task.limits.count_plane == 2 else 1
        return left if left.total[plane] <= right.total[plane] else right

    def _open(self, node: _Node, small: _Node, planes: np.ndarray, counts: np.ndarray) -> None:
        """Take in an opened node's answer: both children's histograms, rows and best splits."""
        assert node.children is not None and node.planes is not None
        left, right = node.children
        large = right if small is left else left
        small.planes, large.planes = planes, node.planes - planes
        self._count(node, int(counts[0]), int(counts[1]))
        for child in (left, right):
            self._look_at(child)

    @staticmethod
    def _count(node: _Node, left: int, right: int) -> None:
        assert node.children is not None
        node.children[0].n_rows, node.children[1].n_rows = left, right

    def _look_at(self, node: _Node) -> None:
        """Search a node's best split, and what it would gain."""
        best = np.empty(SPLIT_SIZE)
        _search_node(
            node.planes, self.layout, node.total, self.task.limits, self.task.allowed,
            self.scratch, self.scratch.view(np.int64), self.keys, self.order, best,
        )  # fmt: skip
        node.best = best
        alone = new_frontier(1)
        alone.total[0] = node.total
        _note_best(alone, 0, best, self.task.limits)
        node.gain = float(alone.gain[0])

    def _number_leaves(self) -> tuple[np.ndarray, dict[int, int], int]:
        """Leaves from left to right: by frontier number, and for every opened node below them by the grower's number."""
        leaf_of = np.zeros(self.n_committed, np.int64)
        labels: dict[int, int] = {}
        stack, n_leaves = [0], 0
        while stack:
            number = stack.pop()
            child = int(self.frontier.child[number])
            if child >= 0:
                stack += (child + 1, child)
                continue
            leaf_of[number] = n_leaves
            below = [self.nodes[number]]
            while below:
                node = below.pop()
                if node.children is None:
                    labels[node.number] = n_leaves
                else:
                    below += node.children
            n_leaves += 1
        return leaf_of, labels, n_leaves

    def _direct_missing(self) -> None:
        """Where a node had no missing values, they follow the larger child; where its split is categorical, their bucket."""
        for number in range(self.n_committed):
            if self.frontier.child[number] < 0:
                continue
            node = self.nodes[number]
            assert node.planes is not None and node.children is not None
            feature = int(self.frontier.feature[number])
            n_bins = int(self.layout.n_bins[feature])
            if node.planes[1, self.layout.offset[feature] + n_bins] == 0.0:
                self.frontier.missing_left[number] = node.children[0].n_rows > node.children[1].n_rows
            else:
                self.frontier.missing_left[number] = node.goes_left[n_bins]


@kernel
def _search_node(planes, layout, total, limits, allowed, scratch, scratch_bits, keys, order, best):
    """The best split of a node over all features."""
    forget(best)
    for feature in range(layout.n_bins.size):
        if not allowed[feature]:
            continue
        at, n_bins = layout.offset[feature], layout.n_bins[feature]
        if layout.is_categorical[feature] != 0:
            search_categorical(planes, at, n_bins, feature, total, limits, keys, order, best)
        else:
            search_numeric(planes, at, n_bins, feature, total, limits, scratch, scratch_bits, best)


@kernel
def _levels_left(planes, at, n_levels, cut, limits, keys, order, goes_left):
    send_left(planes, at, n_levels, cut, limits, keys, order, goes_left)


# The frontier's functions as kernels that Python can call.


@kernel
def _plant(frontier, total):
    plant(frontier, total[0], total[1], total[2])


@kernel
def _note_best(frontier, node, best, limits):
    note_best(frontier, node, best, limits)


@kernel
def _pick(frontier, n_nodes, rule):
    return pick(frontier, n_nodes, rule)


@kernel
def _divide(frontier, node, n_nodes):
    divide(frontier, node, n_nodes)
