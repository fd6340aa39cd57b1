"""The cost of work on rows, measured on one thread, so that a worker with few real rows can be charged for many."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np

import dboost
from dboost.cluster.transport.line import Line
from dboost.cluster.transport.messages import pack_round, unpack
from dboost.kernels.histograms import BinLayout
from dboost.losses.gradient_stats import GradientStats
from dboost.rows.shard import Shard
from dboost.session.training_rows import TrainingRows
from dboost.trees.rounds_in_memory import RoundsInMemory
from dboost.trees.split_finder import BestSplits, SiblingPair, SplitFinder
from dboost.trees.tree_growth import RoundHistograms, RoundRequest
from dboost.trees.tree_task import TreeTask
from tests.helpers.sharded_engine import ShardedEngine


@dataclass(frozen=True)
class Costs:
    """Seconds of one thread: processor time, so that a busy machine measures about the same.

    Attributes
    ----------
    cell : float
        To add one row's value of one feature to a histogram.
    split : float
        To send one row to a child.
    begin, settle, advance : float
        Of a row: to quantise its gradient; to add it to its leaf's sums; to apply a tree and compute new gradients.
    pair : float
        To start and return the histogram of one sibling pair, independent of the rows.
    message, byte : float
        Of a message on a line, at either end, and of each of its bytes.
    add, search : float
        Of a byte of histograms that an owner of features adds up, and searches.
    """

    cell: float
    split: float
    begin: float
    settle: float
    advance: float
    pair: float
    message: float = 2e-5
    byte: float = 2e-10
    add: float = 3e-10
    search: float = 3e-9

    def of_round(
        self, rounds: RoundsInMemory, begins: bool, output: int, request: RoundRequest, many: float, columns: float = 1.0
    ) -> float:
        """Return the seconds of a round request to one tree, when each real row stands for `many`, and each column for some."""
        n_split, n_cells, n_pairs, n_settled = _work(rounds, output, request)
        fixed = n_pairs * self.pair * columns
        rows = n_split * self.split + n_cells * self.cell * columns + n_settled * self.settle
        return fixed + many * (rows + (rounds.shard.n_rows * self.begin if begins else 0.0))


def _work(rounds: RoundsInMemory, output: int, request: RoundRequest) -> tuple[int, int, int, int]:
    """Return the work of a request: rows to split, values to add up, histograms, rows of leaves. Call it after the request."""
    n_rows_of = np.diff(rounds.trees[output].ranges[:, 1:], axis=1)[:, 0]
    n_split, n_rows = int(n_rows_of[request.splits[:, 0]].sum()), int(n_rows_of[request.nodes].sum())
    n_settled = rounds.shard.n_rows if request.ends_tree else 0
    return n_split, n_rows * len(rounds.shard.layout.n_bins), len(request.nodes), n_settled


class _Clocked(RoundsInMemory):
    """A `RoundsInMemory` that handles the parts of a request in turn, and records the work and the seconds of each."""

    def __init__(self, rounds: RoundsInMemory) -> None:
        super().__init__(rounds.shard)
        self.begins: list[float] = []
        self.parts: list[tuple[float, ...]] = []

    def begin(self, tasks: Sequence[TreeTask], sampled: Sequence[np.ndarray | None]) -> None:
        began = time.process_time()
        super().begin(tasks, sampled)
        self.begins.append(time.process_time() - began)

    def sum_histograms(self, output: int, request: RoundRequest) -> RoundHistograms:
        nothing = RoundRequest(request.splits[:0], request.goes_left[:0], request.nodes[:0])
        moved = self._part(output, nothing._replace(splits=request.splits, goes_left=request.goes_left))
        added = self._part(output, nothing._replace(nodes=request.nodes))
        sums = np.empty((0, 2))
        if request.ends_tree:
            sums = self._part(output, nothing._replace(leaves=request.leaves)).leaf_sums
        return RoundHistograms(added.histograms, added.n_rows if request.is_first else moved.n_rows, sums)

    def _part(self, output: int, request: RoundRequest) -> RoundHistograms:
        began = time.process_time()
        histograms = super().sum_histograms(output, request)
        self.parts.append((*_work(self, output, request), time.process_time() - began))
        return histograms


class _ClockedFinder(SplitFinder):
    """A split finder like that of an owner of features, which records the seconds of a byte of histograms."""

    searched: ClassVar[list[float]] = []

    def __init__(self, task: TreeTask, layout: BinLayout, after: SplitFinder | None = None, n_rows: int | None = None) -> None:
        super().__init__(task, layout, after=after)

    def find_best_splits(self, pairs: Sequence[SiblingPair], histograms: np.ndarray) -> BestSplits:
        began = time.process_time()
        found = super().find_best_splits(pairs, histograms)
        if histograms.size:
            self.searched.append((time.process_time() - began) / (4 * histograms.size))
        return found


class _Clock(ShardedEngine):
    """Takes the place of a `WholeTrees`: grows trees in rounds with one thread, and is timed."""

    engines: ClassVar[list[_Clock]] = []

    def __init__(self, rows: TrainingRows, shard: Shard) -> None:
        super().__init__([shard])
        self.clocked = _Clocked(self._growers[0])
        self._growers = [self.clocked]
        self.engines.append(self)


_advance = TrainingRows.advance


def measure(n_rows: int = 400_000, n_features: int = 28) -> Costs:
    """Grow a few trees with one thread and compute the cost of each kind of work from the rounds by least squares."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    y = (X[:, 0] * X[:, 1] + X[:, 2] + rng.standard_normal(n_rows) > 0).astype(np.float64)
    _Clock.engines.clear()
    _ClockedFinder.searched.clear()
    advances: list[float] = []

    def advance(rows: TrainingRows, *arguments: Any) -> GradientStats:
        began = time.process_time()
        stats = _advance(rows, *arguments)
        advances.append(time.process_time() - began)
        return stats

    with (
        patch("dboost.trees.growers.WholeTrees", _Clock),
        patch.object(TrainingRows, "advance", advance),
        patch("dboost.trees.tree_rounds.SplitFinder", _ClockedFinder),
    ):
        dboost.fit(X, y, loss="log_loss", max_iter=8, min_samples_leaf=1, n_threads=1, progress=False)
    (clock,) = _Clock.engines
    parts = np.array(clock.clocked.parts[len(clock.clocked.parts) // 4 :])  # the first ones compile
    n_split, n_cells, n_pairs, n_settled, seconds = parts.T
    opened = n_pairs > 0
    of_pairs = np.stack((n_cells, n_pairs), axis=1)[opened] / seconds[opened, None]
    cell, pair = np.linalg.lstsq(of_pairs, np.ones(opened.sum()), rcond=None)[0]
    split = np.median((seconds / np.maximum(n_split, 1))[n_split > n_rows / 4])
    settle = np.median(seconds[n_settled > 0]) / n_rows
    begin, advance = (float(np.median(told)) / n_rows for told in (clock.clocked.begins, advances))
    search = np.median(_ClockedFinder.searched)
    return Costs(*map(float, (cell, split, begin, settle, advance, pair, *measure_line(), measure_add(), search)))


def measure_add(n_bytes: int = 400_000, n_times: int = 50) -> float:
    """Return the seconds of a byte of a received slice that is unpacked and added to another one."""
    histograms = np.ones((1, 2, n_bytes // 8), np.int32)
    packed = pack_round(RoundHistograms(histograms, np.empty((0, 2), np.int64)))
    seconds = []
    for _ in range(n_times):
        began = time.process_time()
        unpack(packed).merge(unpack(packed))
        seconds.append((time.process_time() - began) / (2 * n_bytes))
    return float(np.median(seconds))


def measure_line(n_messages: int = 300) -> tuple[float, float]:
    """Return the processor time of a message at one end of a line, and that of a byte.

    Each message answers one of the other end, as in a round: it wakes a thread that waits.
    """
    seconds = []
    sizes = (1000, 500_000)
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    for end in (here, there):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one, other = Line(here), Line(there)
    for size in sizes:
        content = [memoryview(bytes(size))]

        def answer(content: list[memoryview] = content) -> None:
            for _ in range(n_messages):
                one.send(one.receive().number, 0, b"", content)

        thread = threading.Thread(target=answer)
        thread.start()
        began = time.thread_time()
        for k in range(n_messages):
            other.send(k, 0, b"")
            other.receive()
        seconds.append((time.thread_time() - began) / n_messages)
        thread.join()
    one.close(), other.close()
    byte = max(seconds[1] - seconds[0], 0.0) / (sizes[1] - sizes[0])
    return seconds[0] / 2, byte
