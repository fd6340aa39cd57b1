"""The cost of work on rows, measured on one thread, so that a worker with few real rows can be charged for many."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

import dboost
from dboost.session.engines import Team
from dboost.shards.shard_grower import ShardGrower
from dboost.trees.grower import RoundHistograms, RoundRequest
from dboost.trees.tree_task import GradientStats, TreeTask
from tests.helpers.sharded_engine import ShardedEngine


@dataclass(frozen=True)
class Costs:
    """Seconds of one thread.

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
    """

    cell: float
    split: float
    begin: float
    settle: float
    advance: float
    pair: float

    def of_round(self, rounds: ShardGrower, begins: bool, request: RoundRequest, many: float) -> float:
        """Return the seconds of a round request, when each real row stands for `many`."""
        n_split, n_cells, n_pairs, n_settled = _work(rounds, request)
        fixed = n_pairs * self.pair
        rows = n_split * self.split + n_cells * self.cell + n_settled * self.settle
        return fixed + many * (rows + (rounds.shard.n_rows * self.begin if begins else 0.0))


def _work(rounds: ShardGrower, request: RoundRequest) -> tuple[int, int, int, int]:
    """Return the work of a request: rows to split, values to add up, histograms, rows of leaves. Call it after the request."""
    n_split = sum(_length(rounds, split.node) for split in request.splits)
    n_rows = sum(_length(rounds, pair.small) for pair in request.pairs)
    n_settled = 0 if request.leaves is None else rounds.shard.n_rows
    return n_split, n_rows * len(rounds.shard.layout.n_bins), len(request.pairs), n_settled


def _length(rounds: ShardGrower, node: int) -> int:
    _, begin, end = rounds._range_of[node]
    return end - begin


class _Clocked(ShardGrower):
    """A `ShardGrower` that handles the parts of a request one after the other, and records the work and the seconds of each."""

    def __init__(self, rounds: ShardGrower) -> None:
        super().__init__(rounds.shard)
        self.begins: list[float] = []
        self.parts: list[tuple[float, ...]] = []

    def begin(self, task: TreeTask) -> None:
        began = time.perf_counter()
        super().begin(task)
        self.begins.append(time.perf_counter() - began)

    def sum_histograms(self, request: RoundRequest) -> RoundHistograms:
        moved = self._part(RoundRequest(splits=request.splits))
        added = self._part(RoundRequest(pairs=request.pairs))
        sums = None if request.leaves is None else self._part(RoundRequest(leaves=request.leaves)).leaf_sums
        is_root = bool(request.pairs) and request.pairs[0].parent < 0
        return RoundHistograms(added.histograms, added.n_rows if is_root else moved.n_rows, sums)

    def _part(self, request: RoundRequest) -> RoundHistograms:
        began = time.perf_counter()
        histograms = super().sum_histograms(request)
        self.parts.append((*_work(self, request), time.perf_counter() - began))
        return histograms


class _Clock(ShardedEngine):
    """An engine of one shard and one thread that is timed."""

    def __init__(self, shard: Any, terms: tuple, *, policy: Any, n_threads: int) -> None:
        super().__init__([shard], terms)
        self.clocked = _Clocked(self._rounds[0])
        self._rounds = [self.clocked]
        self.team = Team(1, in_caller=True)
        self.advances: list[float] = []

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        began = time.perf_counter()
        stats = super().advance(values, terms)
        self.advances.append(time.perf_counter() - began)
        return stats


def measure(n_rows: int = 400_000, n_features: int = 28) -> Costs:
    """Grow a few trees with one thread and compute the cost of each kind of work from the rounds by least squares."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    y = (X[:, 0] * X[:, 1] + X[:, 2] + rng.standard_normal(n_rows) > 0).astype(np.float64)
    engines: list[_Clock] = []

    def engine(*arguments: Any, **settings: Any) -> _Clock:
        engines.append(_Clock(*arguments, **settings))
        return engines[-1]

    with patch("dboost.session.worker_session.FusedEngine", engine):
        dboost.fit(X, y, loss="log_loss", max_iter=8, min_samples_leaf=1, n_threads=1, progress=False)
    clock = engines[0]
    parts = np.array(clock.clocked.parts[len(clock.clocked.parts) // 4 :])  # the first ones compile
    n_split, n_cells, n_pairs, n_settled, seconds = parts.T
    opened = n_pairs > 0
    of_pairs = np.stack((n_cells, n_pairs), axis=1)[opened] / seconds[opened, None]
    cell, pair = np.linalg.lstsq(of_pairs, np.ones(opened.sum()), rcond=None)[0]
    split = np.median((seconds / np.maximum(n_split, 1))[n_split > n_rows / 4])
    settle = np.median(seconds[n_settled > 0]) / n_rows
    begin, advance = (float(np.median(told)) / n_rows for told in (clock.clocked.begins, clock.advances))
    return Costs(*map(float, (cell, split, begin, settle, advance, pair)))
