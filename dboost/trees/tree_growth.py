"""Tree growth in rounds: a generator that yields round requests and is sent round results.

The generator does no I/O and does not depend on where the rows are. A `RoundRequest` carries the splits that were chosen last
and the sibling pairs whose histograms are needed next, so a level of the tree costs one round trip. The driver of the generator
(`trees/tree_rounds.py`) has the request sent to all growers and their `RoundHistograms` added up, passes the sums and the
sibling pairs to a `SplitFinder`, and sends the best split of each node back as a `RoundResult`.

**Rounds in flight.** Several rounds may be under way at the same time: then growers add up the histograms of one while those of
the one before are merged and searched. The generator yields the rounds that begin now, none or several, and is sent the results
of one round, in the order in which they began.

**Speculation.** Strict best-first growth would need a round per split. Each request therefore splits several promising leaves
at once, and the generator replays best-first order over the results: it *commits* a split when that split is the best one
left and the best splits of its children are known. Splits that turn out not to be needed are dropped. The tree is the same
as with one leaf per round, but takes a number of rounds that is about logarithmic in the number of leaves.

Speculation is bounded: beyond `MOST_OPENED` speculative splits per leaf of the finished tree, a round splits only the leaf that
blocks growth. Growers can therefore store the node of each row in a small integer.

Of two children, growers add up only the one with fewer rows (or with the smaller Hessian where rows are not counted). The
histogram of the other one is the parent's minus that.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dboost.kernels import kernel
from dboost.kernels.histograms import BinLayout
from dboost.kernels.splits import FEATURE
from dboost.rows.shard_spec import MOST_OPENED
from dboost.trees.fit_trees import GrownTree
from dboost.trees.split_finder import SiblingPair, SplitInfo, mark_children, mark_root, new_feature_paths
from dboost.trees.tree_task import (
    DEPTH_WISE,
    NodeArrays,
    TreeTask,
    apply_split,
    init_root,
    new_node_arrays,
    select_leaf,
)

#: The leaves of a round that does not end the tree.
_NO_LEAVES = np.empty((0, 2), np.int64)


class RoundRequest(NamedTuple):
    """Apply these splits, then add up the histograms of these nodes: of the root, or of the small child of each pair.

    With `leaves`, end the tree: number the leaves and add up their gradients and Hessians exactly. Node numbers are those
    of this growth.

    splits : int64[n_splits, 4], each a node, a feature, and the numbers of the left and the right child.
    goes_left : uint8[n_splits, n_codes], whether the rows of a split's node with a bin code go left.
    nodes : int64[n_nodes]
    leaves : int64[n, 2], each a node and the number of its leaf. Rows whose node was split speculatively are in its
        descendants, all of which are listed.
    """

    splits: np.ndarray
    goes_left: np.ndarray
    nodes: np.ndarray
    leaves: np.ndarray = _NO_LEAVES

    @property
    def ends_tree(self) -> bool:
        """Whether this is the last round of the tree."""
        return len(self.leaves) > 0

    @property
    def is_first(self) -> bool:
        """Whether this is the first round of the tree, which adds up the root."""
        return len(self.nodes) == 1 and int(self.nodes[0]) == 0

    def __reduce__(self) -> tuple[Any, ...]:
        # Arrays of a few numbers as bytes, because pickle takes ten times as long for arrays.
        return _request_of, tuple(array.tobytes() for array in self)


def _request_of(splits: bytes, goes_left: bytes, nodes: bytes, leaves: bytes) -> RoundRequest:
    """Return the request that was pickled."""
    n = len(splits) // 32
    return RoundRequest(
        np.frombuffer(bytearray(splits), np.int64).reshape(n, 4),
        np.frombuffer(bytearray(goes_left), np.uint8).reshape(n, len(goes_left) // max(n, 1)),
        np.frombuffer(bytearray(nodes), np.int64),
        np.frombuffer(bytearray(leaves), np.int64).reshape(-1, 2),
    )


#: What the generator yields: a request to the growers, and the pairs whose best splits it needs.
Round = tuple[RoundRequest, tuple[SiblingPair, ...]]


@dataclass(frozen=True, eq=False)
class RoundHistograms:
    """The histograms and row counts of one round, of one grower or summed over several.

    All sums are integers, in the smallest type that holds them (see `compact`) or as float64.

    histograms : float64[n_nodes, n_channels, n_buckets]; n_rows : int64[n_splits, 2], rows that went left and right, or
    in the root's round its number of rows and 0; leaf_sums : float64[n_leaves, 2], integers in units of 1 / scales[2:], of no
    leaves without `leaves`.
    """

    histograms: np.ndarray
    n_rows: np.ndarray
    leaf_sums: np.ndarray = field(default_factory=lambda: np.empty((0, 2)))

    def merge(self, others: RoundHistograms) -> RoundHistograms:
        """Add the sums of two sets of growers: exact, associative and commutative.

        The result uses the memory of these histograms if it can; those of `others` are not changed.
        """
        histograms = _added(self.histograms, others.histograms)
        return RoundHistograms(histograms, self.n_rows + others.n_rows, self.leaf_sums + others.leaf_sums)

    def compact(self, buffer: np.ndarray) -> RoundHistograms:
        """Return the histograms for sending, as int32 where all sums fit: half the bytes.

        buffer : int32[...], which receives them unless they are int32 already; it must have room for all sums.
        """
        if self.histograms.dtype == np.int32:
            return self
        narrow = buffer[: self.histograms.size].reshape(self.histograms.shape)
        fits = _narrow(self.histograms.ravel(), narrow.ravel())
        return RoundHistograms(narrow if fits else self.histograms.copy(), self.n_rows, self.leaf_sums)

    def slice(self, buckets: slice) -> RoundHistograms:
        """Return a range of buckets, without row counts and leaf sums."""
        return RoundHistograms(self.histograms[:, :, buckets], np.empty((0, 2), np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        # The histograms as a buffer, which a line sends without a copy; see `RoundRequest.__reduce__` for the rest.
        histograms = np.ascontiguousarray(self.histograms)
        buffer: Any = histograms.ravel().view(np.uint8)
        dtype, shape = histograms.dtype.str, histograms.shape
        numbers = self.n_rows.tobytes(), self.leaf_sums.tobytes()
        return _histograms_of, (pickle.PickleBuffer(buffer), dtype, shape, *numbers)


def _histograms_of(buffer: Any, dtype: str, shape: tuple[int, ...], n_rows: bytes, leaf_sums: bytes) -> RoundHistograms:
    """Return the histograms that were pickled."""
    return RoundHistograms(
        np.frombuffer(buffer, dtype).reshape(shape),
        np.frombuffer(n_rows, np.int64).reshape(-1, 2),
        np.frombuffer(leaf_sums, np.float64).reshape(-1, 2),
    )


@dataclass(frozen=True, eq=False)
class RoundResult:
    """The result of a round over all rows: the best split of each node instead of its histogram."""

    splits: list[SplitInfo]
    n_rows: np.ndarray
    leaf_sums: np.ndarray


#: The best split of a node whose histogram has not been searched.
_UNKNOWN = SplitInfo(np.empty(0), np.empty(0), np.empty((0, 5)), -1.0, np.empty(0, np.uint8))


@dataclass(eq=False)
class _Node:
    """A node of the tree, committed or not."""

    number: int
    depth: int
    total: np.ndarray  # float64[5], as in `NodeArrays.total`
    split: SplitInfo = _UNKNOWN  # the best one
    n_rows: int = -1
    children: tuple[_Node, ...] = ()  # none, or the left and the right one
    path_hash: int = 0  # see `trees.split_finder`
    active: np.ndarray | None = None


def grow_tree(
    task: TreeTask, layout: BinLayout, n_rows: int, leaves_per_round: int, in_flight: int = 1
) -> Generator[tuple[Round, ...], RoundResult, GrownTree]:
    """Return the generator that grows a tree: it yields rounds, is sent results, and returns the tree.

    Parameters
    ----------
    task : TreeTask
    layout : BinLayout
    n_rows : int
        Rows of the fit.
    leaves_per_round : int
        Leaves split per round, at least 1.
    in_flight : int, default 1
        Most rounds that are under way at the same time. The tree does not depend on it.
    """
    return (yield from _TreeGrowth(task, layout, n_rows, leaves_per_round, in_flight).run())


class _TreeGrowth:
    def __init__(self, task: TreeTask, layout: BinLayout, n_rows: int, leaves_per_round: int, in_flight: int) -> None:
        self.task, self.layout, self.leaves_per_round, self.in_flight = task, layout, leaves_per_round, in_flight
        self.opened: deque[list[_Node]] = deque()  # nodes that the rounds under way split
        self.nodes: NodeArrays = new_node_arrays(task.policy.max_leaves)
        self.n_committed = 1
        self.n_numbers = 1
        self.committed: list[_Node] = []  # committed nodes, by their number in `nodes`
        self.n_rows = n_rows
        self.n_codes = int(layout.n_bins.max()) + 1

    def run(self) -> Generator[tuple[Round, ...], RoundResult, GrownTree]:
        result = yield ((self._request([], [0]), (SiblingPair(-1, 0, -1, None, self._open_root()),)),)
        split = result.splits[0]
        root = _Node(0, 0, split.total, split, n_rows=int(result.n_rows[0, 0]))
        _init_root(self.nodes, root.total)
        self.committed.append(root)
        self._note(0)
        final_splits: list[_Node] = []  # nodes whose children are leaves and need no histograms
        while True:
            blocking_leaf = self._commit(final_splits)
            if blocking_leaf is None:
                break
            self._note_result((yield self._begin_rounds(blocking_leaf)))
        leaf_of, labels = self._number_leaves()
        last: tuple[Round, ...] = ((self._request(final_splits, [], labels), ()),)
        while self.opened:  # rounds whose splits turned out not to be needed
            self._note_result((yield last))
            last = ()
        result = yield last
        for node, counts in zip(final_splits, result.n_rows, strict=True):
            self._count(node, counts)
        for number, node in enumerate(self.committed):
            if self.nodes.child[number] >= 0:
                self.nodes.missing_left[number] = node.split.goes_left[-1]
        counts, leaf_sums = np.array([node.n_rows for node in self.committed]), result.leaf_sums / self.task.scales[2:]
        is_categorical = self.layout.is_categorical
        return GrownTree.of(self.task, self.nodes, counts, leaf_of, leaf_sums, self._left_codes(), is_categorical)

    def _begin_rounds(self, blocking_leaf: _Node) -> tuple[Round, ...]:
        """Return the rounds that begin now, which divide the chosen leaves evenly."""
        n_rounds = self.in_flight - len(self.opened)
        chosen = self._choose(blocking_leaf, n_rounds * self.leaves_per_round)
        n_each = max(-(-len(chosen) // n_rounds), 1)
        rounds: list[Round] = []
        for first in range(0, len(chosen), n_each):
            opened = chosen[first : first + n_each]
            for node in opened:
                self._split(node)
            pairs = tuple(self._sibling_pair(node) for node in opened)
            rounds.append((self._request(opened, [pair.small for pair in pairs]), pairs))
            self.opened.append(opened)
        return tuple(rounds)

    def _note_result(self, result: RoundResult) -> None:
        """Store row counts and best splits of the nodes that the first of the rounds under way has opened."""
        for k, node in enumerate(self.opened.popleft()):
            self._count(node, result.n_rows[k])
            for child, split in zip(self._by_size(node), result.splits[2 * k : 2 * k + 2], strict=True):
                child.split = split

    def _request(self, split: Sequence[_Node], summed: Sequence[int], leaves: Sequence[tuple[int, int]] = ()) -> RoundRequest:
        """Return the request that splits some nodes and adds up others."""
        splits = np.empty((len(split), 4), np.int64)
        goes_left = np.zeros((len(split), self.n_codes), np.uint8)
        for k, node in enumerate(split):
            left, right = node.children
            splits[k] = node.number, node.split.best[FEATURE], left.number, right.number
            goes_left[k, : len(node.split.goes_left)] = node.split.goes_left
        return RoundRequest(splits, goes_left, np.array(summed, np.int64), np.array(leaves, np.int64).reshape(-1, 2))

    def _commit(self, final_splits: list[_Node]) -> _Node | None:
        """Replay best-first growth over the known splits; return the leaf that is to be split next, or None at the end.

        That leaf may have been split by a round that is under way.
        """
        policy, nodes = self.task.policy, self.nodes
        last = 2 * policy.max_leaves - 1
        while self.n_committed < last:
            number = int(_select_leaf(nodes, self.n_committed, policy))
            if number < 0:
                return None
            node = self.committed[number]
            is_final = self.n_committed + 2 >= last or node.depth + 1 >= policy.max_depth
            if not is_final and (not node.children or node.children[0].split is _UNKNOWN):
                return node
            if not node.children:
                self._split(node)
                final_splits.append(node)
            left = self.n_committed
            _apply_split(nodes, number, left, self.task.limits, self.task.direction)
            self.n_committed += 2
            self.committed += node.children
            if not is_final:
                self._note(left)
                self._note(left + 1)
        return None

    def _note(self, number: int) -> None:
        node = self.committed[number]
        self.nodes.best[number] = node.split.best
        self.nodes.gain[number] = node.split.gain

    def _choose(self, first: _Node, n_leaves: int) -> list[_Node]:
        """Return at most `n_leaves` leaves: the one that must be split, if no round has split it yet, and likely ones.

        Of all known splits that are not committed, some of them requested already, the likely ones come first in growth order:
        half as many again as there are splits left to commit. (Taking all of them would double the number of splits.) With
        several rounds under way only as many as are left: a round is then shorter, and the next one begins earlier.
        """
        policy = self.task.policy
        known: list[_Node] = []
        stack = [node for number, node in enumerate(self.committed) if self.nodes.child[number] < 0]
        while stack:
            node = stack.pop()
            stack += node.children
            if node is not first and node.split.gain > 0 and node.depth + 1 < policy.max_depth:
                known.append(node)
        by_depth = policy.order == DEPTH_WISE
        n_left = policy.max_leaves - (self.n_committed + 1) // 2
        n_likely = 3 * n_left // 2 if self.in_flight == 1 else n_left
        known.sort(key=lambda node: (node.depth if by_depth else 0, -node.split.gain, node.number))
        likely = [node for node in known[:n_likely] if not node.children]
        must = [] if first.children else [first]
        n_extra = min(n_leaves - len(must), MOST_OPENED * policy.max_leaves - self.n_numbers // 2)
        return [*must, *likely[: max(n_extra, 0)]]

    def _split(self, node: _Node) -> None:
        """Give the children of a node their numbers and sums."""
        children = enumerate(node.split.children, self.n_numbers)
        node.children = tuple(_Node(number, node.depth + 1, total) for number, total in children)
        self.n_numbers += 2

    def _by_size(self, node: _Node) -> tuple[_Node, _Node]:
        """Return the smaller child and the larger one."""
        left, right = node.children
        channel = 2 if self.task.limits.count_channel == 2 else 1
        return (left, right) if left.total[channel] <= right.total[channel] else (right, left)

    def _sibling_pair(self, node: _Node) -> SiblingPair:
        small, large = self._by_size(node)
        totals = np.empty((2, 5))
        totals[0], totals[1] = small.total, large.total
        return SiblingPair(node.number, small.number, large.number, totals, self._open_children(node))

    def _open_root(self) -> np.ndarray | None:
        """Return the features that the root may split by."""
        constraints = self.task.constraints
        if constraints is None:
            return None
        self.paths = new_feature_paths(constraints, 3)
        mark_root(constraints, self.task.allowed, self.paths)
        return self.paths.open.copy()

    def _open_children(self, node: _Node) -> np.ndarray | None:
        """Return the features that the children of a node may split by, those of the small child first."""
        constraints, children = self.task.constraints, node.children
        if constraints is None:
            return None
        if node.number > 0:
            self.paths.path_hash[0], self.paths.active[0] = node.path_hash, node.active
        else:
            mark_root(constraints, self.task.allowed, self.paths)
        mark_children(constraints, self.task.allowed, self.paths, int(node.split.best[FEATURE]))
        for k, child in enumerate(children):
            child.path_hash, child.active = self.paths.path_hash[1 + k], self.paths.active[1 + k].copy()
        return self.paths.open[:: 1 if self._by_size(node)[0] is children[0] else -1].copy()

    @staticmethod
    def _count(node: _Node, n_rows: np.ndarray) -> None:
        for child, n in zip(node.children, n_rows, strict=True):
            child.n_rows = int(n)

    def _number_leaves(self) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Number the leaves from left to right: by committed node, and for every node below them by the grower's number."""
        leaf_of = np.zeros(self.n_committed, np.int64)
        labels: list[tuple[int, int]] = []
        stack, n_leaves = [0], 0
        while stack:
            number = stack.pop()
            child = int(self.nodes.child[number])
            if child >= 0:
                stack += (child + 1, child)
                continue
            leaf_of[number] = n_leaves
            below = [self.committed[number]]
            while below:
                node = below.pop()
                if not node.children:
                    labels.append((node.number, n_leaves))
                else:
                    below += node.children
            n_leaves += 1
        return leaf_of, labels

    def _left_codes(self) -> np.ndarray:
        """Return the bin codes that go left, for categorical splits: uint8[n_nodes, n_codes]."""
        if not self.layout.is_categorical.any():
            return np.zeros((self.n_committed, 1), np.uint8)
        left_codes = np.zeros((self.n_committed, int(self.layout.n_bins.max()) + 1), np.uint8)
        for number, node in enumerate(self.committed):
            if self.nodes.child[number] >= 0:
                left_codes[number, : len(node.split.goes_left)] = node.split.goes_left
        return left_codes


def _added(sums: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return ``sums + part``, in the memory of `sums` if that may be written to and holds them: as int32 or as float64."""
    sums = sums if sums.flags.writeable else sums.copy()
    if sums.dtype == part.dtype == np.int32:
        if _add_narrow(sums.ravel(), part.ravel()):
            return sums
        sums -= part  # what has wrapped around wraps back
    if sums.dtype == np.int32:
        sums = sums.astype(np.float64)
    sums += part
    return sums


@kernel
def _add_narrow(sums, part):
    """Add int32 numbers to int32 sums; return whether all sums fit. Those that do not wrap around."""
    wrapped = np.int32(0)
    for k in range(sums.size):  # without a branch, so that it vectorises
        old, new = sums[k], np.int32(sums[k] + part[k])
        wrapped = np.int32(wrapped | np.int32(np.int32(old ^ new) & np.int32(part[k] ^ new)))
        sums[k] = new
    return wrapped >= 0


@kernel
def _narrow(histograms, narrow):
    """Copy integers to int32; return whether all of them fit."""
    n_large = np.int64(0)
    for k in range(histograms.size):  # without a branch, so that it vectorises
        n_large += np.int64(abs(histograms[k]) >= 2147483648.0)
        narrow[k] = np.int32(histograms[k])
    return n_large == 0


# The functions of `trees.tree_task` as kernels that Python can call.


@kernel
def _init_root(nodes, total):
    init_root(nodes, total)


@kernel
def _select_leaf(nodes, n_nodes, policy):
    return select_leaf(nodes, n_nodes, policy)


@kernel
def _apply_split(nodes, node, n_nodes, limits, direction):
    apply_split(nodes, node, n_nodes, limits, direction)
