"""Tree growth in rounds: a generator that yields round requests and is sent round results.

The generator does no I/O and does not depend on an engine. A `RoundRequest` carries the splits that were chosen last and the
sibling pairs whose histograms are needed next, so a level of the tree costs one round trip. The driver of the generator
(`trees/tree_rounds.py`) has the request sent to all shards and their `RoundHistograms` added up, passes the sums and the
sibling pairs to a `SplitFinder`, and sends the best split of each node back as a `RoundResult`.

**Rounds in flight.** Several rounds may be under way at the same time: then the shards add up the histograms of one while those
of the one before are merged and searched. The generator yields the rounds that begin now, none or several, and is sent the
results of one round, in the order in which they began.

**Speculation.** Strict best-first growth would need a round per split. Each request therefore splits several promising leaves
at once, and the grower afterwards replays best-first order over the results: it *commits* a split when that split is the best
one left and the best splits of its children are known. Splits that turn out not to be needed are dropped. The tree is the same
as with one leaf per round, but takes a number of rounds that is about logarithmic in the number of leaves.

Speculation is bounded: beyond `MOST_OPENED` speculative splits per leaf of the finished tree, a round splits only the leaf that
blocks growth. Shards can therefore store the node of each row in a small integer.

Of two children, shards add up only the one with fewer rows (or with the smaller Hessian where rows are not counted). The
histogram of the other one is the parent's minus that.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dboost.kernels import kernel
from dboost.kernels.histograms import BinLayout
from dboost.kernels.splits import FEATURE
from dboost.trees.split_finder import SiblingPair, SplitInfo, mark_children, mark_root, new_feature_paths
from dboost.trees.tree_task import (
    DEPTH_WISE,
    GrownTree,
    NodeArrays,
    TreeTask,
    apply_split,
    init_root,
    new_node_arrays,
    select_leaf,
)

#: Speculation stops after this many split leaves for each leaf of the finished tree.
MOST_OPENED = 4


class RoundRequest(NamedTuple):
    """Apply these splits, then add up the histograms of these nodes: of the root, or of the small child of each pair.

    With `leaves`, end the tree: number the leaves and add up their gradients and Hessians exactly. Node numbers are the
    grower's own.

    splits : int64[n_splits, 4], each a node, a feature, and the numbers of the left and the right child.
    goes_left : uint8[n_splits, n_codes], whether the rows of a split's node with a bin code go left.
    nodes : int64[n_nodes]
    leaves : int64[n, 2], each a node and the number of its leaf. Rows whose node was split speculatively are in its
        descendants, all of which are listed.
    """

    splits: np.ndarray
    goes_left: np.ndarray
    nodes: np.ndarray
    leaves: np.ndarray | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is the first round of the tree, which adds up the root."""
        return len(self.nodes) == 1 and int(self.nodes[0]) == 0

    def __reduce__(self) -> tuple[Any, ...]:
        # Arrays of a few numbers as bytes, because pickle takes ten times as long for arrays.
        leaves = None if self.leaves is None else self.leaves.tobytes()
        return _request_of, (self.splits.tobytes(), self.goes_left.tobytes(), self.nodes.tobytes(), leaves)


def _request_of(splits: bytes, goes_left: bytes, nodes: bytes, leaves: bytes | None) -> RoundRequest:
    """Return the request that was pickled."""
    n = len(splits) // 32
    return RoundRequest(
        np.frombuffer(bytearray(splits), np.int64).reshape(n, 4),
        np.frombuffer(bytearray(goes_left), np.uint8).reshape(n, len(goes_left) // max(n, 1)),
        np.frombuffer(bytearray(nodes), np.int64),
        None if leaves is None else np.frombuffer(bytearray(leaves), np.int64).reshape(-1, 2),
    )


#: What the generator yields: a request to the shards, and the pairs whose best splits it needs.
Round = tuple[RoundRequest, tuple[SiblingPair, ...]]


@dataclass(frozen=True, eq=False)
class RoundHistograms:
    """The histograms and row counts of one round, of one shard or summed over several.

    All sums are integers, in the smallest type that holds them (see `compact`) or as float64.

    histograms : float64[n_nodes, n_channels, n_buckets]; n_rows : int64[n_splits, 2], rows that went left and right, or
    in the root's round its number of rows and 0; leaf_sums : float64[n_leaves, 2], integers in units of 1 / scales[2:] (with
    `leaves`).
    """

    histograms: np.ndarray
    n_rows: np.ndarray
    leaf_sums: np.ndarray | None = None

    def merge(self, other: RoundHistograms) -> RoundHistograms:
        """Add the sums of two sets of shards: exact, associative and commutative.

        The result uses the memory of these histograms if it can; those of `other` are not changed.
        """
        sums = None if self.leaf_sums is None or other.leaf_sums is None else self.leaf_sums + other.leaf_sums
        return RoundHistograms(_added(self.histograms, other.histograms), self.n_rows + other.n_rows, sums)

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
        sums = None if self.leaf_sums is None else self.leaf_sums.tobytes()
        return _histograms_of, (pickle.PickleBuffer(buffer), dtype, shape, self.n_rows.tobytes(), sums)


def _histograms_of(buffer: Any, dtype: str, shape: tuple[int, ...], n_rows: bytes, leaf_sums: bytes | None) -> RoundHistograms:
    """Return the histograms that were pickled."""
    return RoundHistograms(
        np.frombuffer(buffer, dtype).reshape(shape),
        np.frombuffer(n_rows, np.int64).reshape(-1, 2),
        None if leaf_sums is None else np.frombuffer(leaf_sums, np.float64).reshape(-1, 2),
    )


@dataclass(frozen=True, eq=False)
class RoundResult:
    """The result of a round over all shards: the best split of each node instead of its histogram."""

    found: list[SplitInfo]
    n_rows: np.ndarray
    leaf_sums: np.ndarray | None = None


@dataclass(eq=False)
class _Node:
    """A node of the tree, committed or not."""

    number: int
    depth: int
    total: np.ndarray  # float64[5], as in `NodeArrays.total`
    found: SplitInfo | None = None  # None until its histogram has been searched
    gain: float = -1.0
    n_rows: int = -1
    children: tuple[_Node, _Node] | None = None
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
        Rows over all shards.
    leaves_per_round : int
        Leaves split per round, at least 1.
    in_flight : int, default 1
        Most rounds that are under way at the same time. The tree does not depend on it.
    """
    return (yield from _Grower(task, layout, n_rows, leaves_per_round, in_flight).run())


class _Grower:
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
        root = _Node(0, 0, result.found[0].total, n_rows=int(result.n_rows[0, 0]))
        _init_root(self.nodes, root.total)
        self._look_at(root, result.found[0])
        self.committed.append(root)
        self._note(0)
        final_splits: list[_Node] = []  # nodes whose children are leaves and need no histograms
        while True:
            blocking_leaf = self._commit(final_splits)
            if blocking_leaf is None:
                break
            self._note_result((yield self._begin_rounds(blocking_leaf)))
        leaf_of, labels, n_leaves = self._number_leaves()
        last: tuple[Round, ...] = ((self._request(final_splits, [], labels), ()),)
        while self.opened:  # rounds whose splits turned out not to be needed
            self._note_result((yield last))
            last = ()
        result = yield last
        assert result.leaf_sums is not None
        for node, counts in zip(final_splits, result.n_rows, strict=True):
            self._count(node, counts)
        for number, node in enumerate(self.committed):
            if self.nodes.child[number] >= 0:
                assert node.found is not None
                self.nodes.missing_left[number] = node.found.goes_left[-1]
        return GrownTree(
            nodes=self.nodes,
            n_nodes=self.n_committed,
            n_leaves=n_leaves,
            n_rows=np.array([node.n_rows for node in self.committed]),
            leaf_of=leaf_of,
            leaf_sums=result.leaf_sums / self.task.scales[2:],
            left_codes=self._left_codes(),
        )

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
            for child, found in zip(self._by_size(node), result.found[2 * k : 2 * k + 2], strict=True):
                self._look_at(child, found)

    def _request(
        self, split: Sequence[_Node], summed: Sequence[int], leaves: Sequence[tuple[int, int]] | None = None
    ) -> RoundRequest:
        """Return the request that splits some nodes and adds up others."""
        splits = np.empty((len(split), 4), np.int64)
        goes_left = np.zeros((len(split), self.n_codes), np.uint8)
        for k, node in enumerate(split):
            found, children = node.found, node.children
            assert found is not None and children is not None
            splits[k] = node.number, found.best[FEATURE], children[0].number, children[1].number
            goes_left[k, : len(found.goes_left)] = found.goes_left
        return RoundRequest(
            splits, goes_left, np.array(summed, np.int64), None if leaves is None else np.array(leaves, np.int64)
        )

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
            if not is_final and (node.children is None or node.children[0].found is None):
                return node
            if node.children is None:
                self._split(node)
                final_splits.append(node)
            assert node.children is not None
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
        assert node.found is not None
        self.nodes.best[number] = node.found.best
        self.nodes.gain[number] = node.gain

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
            stack += node.children or ()
            if node is not first and node.gain > 0 and node.depth + 1 < policy.max_depth:
                known.append(node)
        key = (lambda n: (n.depth, -n.gain, n.number)) if policy.order == DEPTH_WISE else (lambda n: (0, -n.gain, n.number))
        n_left = policy.max_leaves - (self.n_committed + 1) // 2
        n_likely = 3 * n_left // 2 if self.in_flight == 1 else n_left
        likely = [node for node in sorted(known, key=key)[:n_likely] if node.children is None]
        must = [first] if first.children is None else []
        n_extra = min(n_leaves - len(must), MOST_OPENED * policy.max_leaves - self.n_numbers // 2)
        return [*must, *likely[: max(n_extra, 0)]]

    def _split(self, node: _Node) -> None:
        """Give the children of a node their numbers and sums."""
        assert node.found is not None
        left, right = (_Node(self.n_numbers + k, node.depth + 1, total) for k, total in enumerate(node.found.children))
        self.n_numbers += 2
        node.children = left, right

    def _by_size(self, node: _Node) -> tuple[_Node, _Node]:
        """Return the smaller child and the larger one."""
        assert node.children is not None
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
        assert node.found is not None and children is not None
        if node.number > 0:
            self.paths.path_hash[0], self.paths.active[0] = node.path_hash, node.active
        else:
            mark_root(constraints, self.task.allowed, self.paths)
        mark_children(constraints, self.task.allowed, self.paths, int(node.found.best[FEATURE]))
        for k, child in enumerate(children):
            child.path_hash, child.active = self.paths.path_hash[1 + k], self.paths.active[1 + k].copy()
        return self.paths.open[:: 1 if self._by_size(node)[0] is children[0] else -1].copy()

    @staticmethod
    def _count(node: _Node, n_rows: np.ndarray) -> None:
        assert node.children is not None
        for child, n in zip(node.children, n_rows, strict=True):
            child.n_rows = int(n)

    def _look_at(self, node: _Node, found: SplitInfo) -> None:
        """Store a node's best split and its gain."""
        node.found, node.gain = found, found.gain

    def _number_leaves(self) -> tuple[np.ndarray, list[tuple[int, int]], int]:
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
                if node.children is None:
                    labels.append((node.number, n_leaves))
                else:
                    below += node.children
            n_leaves += 1
        return leaf_of, labels, n_leaves

    def _left_codes(self) -> np.ndarray:
        """Return the bin codes that go left, for categorical splits: uint8[n_nodes, n_codes]."""
        if not self.layout.is_categorical.any():
            return np.zeros((self.n_committed, 1), np.uint8)
        left_codes = np.zeros((self.n_committed, int(self.layout.n_bins.max()) + 1), np.uint8)
        for number, node in enumerate(self.committed):
            if self.nodes.child[number] >= 0:
                assert node.found is not None
                left_codes[number, : len(node.found.goes_left)] = node.found.goes_left
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
