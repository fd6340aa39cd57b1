"""Trees to grow in several ways: tables with gradients, parameters, and the growers that must agree on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import strategies as st

from dboost.data.columns.binning import Binning
from dboost.exact import unit_for
from dboost.losses import SquaredError
from dboost.model.ensemble import Tree
from dboost.params import Parameters
from dboost.rows.row_sample import Sample
from dboost.rows.shard import Shard
from dboost.rows.statistics import Statistic
from dboost.schema import Feature
from dboost.training.plan import precision_of
from dboost.trees.finished_trees import finished_trees
from dboost.trees.fit_trees import GrownTree
from dboost.trees.tree_task import (
    FeatureConstraints,
    GrowthPolicy,
    StepLimits,
    TreeTask,
    leaf_values,
    new_node_arrays,
    split_params_of,
)
from tests.helpers.naive.grower import NaiveGrower, leaves_of, to_tree
from tests.helpers.sharded_engine import ShardedEngine, WholeEngine
from tests.helpers.tables import CodedTable, tables

#: What a random tree needs of a task.
TASK = SimpleNamespace(direction=None, output=0, gain_unit=1.0)


def a_tree(n_bins: np.ndarray, categorical: np.ndarray, n_leaves: int, seed: int) -> GrownTree:
    """Return random splits in the order of growth; leaves are numbered from left to right."""
    rng = np.random.default_rng(seed)
    nodes = new_node_arrays(n_leaves)
    n = 2 * n_leaves - 1
    left_codes = rng.integers(2, size=(n, int(n_bins.max()) + 1)).astype(np.uint8)
    leaves, size = [0], 1
    while size < n:
        node = leaves.pop(int(rng.integers(len(leaves))))
        nodes.feature[node] = rng.integers(len(n_bins))
        nodes.split_bin[node] = rng.integers(n_bins[nodes.feature[node]])
        nodes.missing_left[node] = rng.integers(2)
        nodes.child[node] = size
        nodes.depth[size : size + 2] = nodes.depth[node] + 1
        leaves += [size, size + 1]
        size += 2
    leaf_of = np.zeros(n, np.int64)
    stack, k = [0], 0
    while stack:
        node = stack.pop()
        child = int(nodes.child[node])
        if child < 0:
            leaf_of[node], k = k, k + 1
        else:
            stack += [child + 1, child]
    counts, sums = np.zeros(n, np.int64), np.zeros((n_leaves, 2))
    return GrownTree.of(cast(TreeTask, TASK), nodes, counts, leaf_of, sums, left_codes, categorical.astype(np.uint8))


class Problem:
    """A table with gradients and Hessians, and the parameters to grow a tree by."""

    def __init__(
        self,
        table: CodedTable,
        parameters: Parameters,
        seed: int,
        *,
        with_hessian: bool,
        levels: int = 0,
        times: np.ndarray | None = None,
        sample: Sample | None = None,
        constraints: FeatureConstraints | None = None,
        direction: np.ndarray | None = None,
        trimmed: float = 0.0,
    ) -> None:
        self.table, self.parameters = table, parameters
        rng = np.random.default_rng(seed)
        # Gradients that depend on some of the features, with noise; few distinct values make ties.
        signal = sum(np.sin(table.codes[f] * (f + 1)) for f in range(min(3, len(table.codes))))
        gradient = signal + rng.normal(size=table.n_rows)
        if levels:
            gradient = np.round(gradient * levels / 4)
        self.gradient = gradient.astype(np.float32)
        self.hessian = None
        if with_hessian:
            self.hessian = (rng.integers(1, 4, table.n_rows) if levels else rng.random(table.n_rows)).astype(np.float32)
        self.repeat_count = times
        # The second derivatives of these rows are too small for them to be used.
        least = 0
        if trimmed and self.hessian is not None:
            least = int(np.sort(self.hessian)[int(trimmed * table.n_rows)].view(np.int32))
        self.rest = {"sample": sample, "constraints": constraints, "direction": direction, "least_influence": least}
        max_weight = 1 if times is None else int(times.max())
        self.precision = precision_of(parameters, not with_hessian, max_weight)
        self.policy = GrowthPolicy.of(parameters, table.n_rows)
        edges = (
            None if c else np.arange(n - 1) + 0.5 for n, c in zip(table.layout.n_bins, table.layout.is_categorical, strict=True)
        )
        features = tuple(
            Feature(f"f{j}", tuple(range(int(n))) if c else None)
            for j, (n, c) in enumerate(zip(table.layout.n_bins, table.layout.is_categorical, strict=True))
        )
        self.binning = Binning(features, tuple(edges))
        self.task = self._task()

    def _task(self) -> TreeTask:
        """Return the task as training would make it."""
        parameters, packing = self.parameters, self.precision.packing
        n_rows = self.table.n_rows
        n = n_rows if self.repeat_count is None else int(self.repeat_count.sum())
        max_g = float(np.abs(self.gradient).max())
        scale_g, scale_h, unit_h = float(np.float32(packing.max_gradient / (max_g or 1.0))), 1.0, 1.0
        if self.hessian is not None:
            max_h = float(self.hessian.max())
            scale_h, unit_h = float(np.float32(packing.max_hessian / max_h)), unit_for(max_h, n)
        scales = np.array([scale_g, scale_h, unit_for(max_g, n), unit_h])
        limits = split_params_of(
            parameters,
            self.precision.count_channel,
            scales,
            parameters.max_delta_step,
            is_bounded=self.rest["direction"] is not None,
        )
        if self.table.layout.is_categorical.any():
            squares = np.rint(self.gradient * np.float32(scale_g)).astype(np.int64) ** 2
            hessians = 1 if self.hessian is None else np.maximum(np.rint(self.hessian * np.float32(scale_h)), 1.0)
            limits = limits._replace(noise=float(squares.sum() / np.broadcast_to(hessians, n_rows).sum()))
        return TreeTask(limits, packing, self.policy, scales, np.ones(len(self.table.codes), np.uint8), **self.rest)

    @property
    def n_rows(self) -> int:
        return self.table.n_rows

    def finished(self, tree: GrownTree) -> Tree:
        values = leaf_values(tree.leaf_sums[None], self.parameters, StepLimits.of(SquaredError().leaves))[0]
        tree = replace(tree, output=self.task.output)
        tree.complete(values, self.parameters.learning_rate)
        return finished_trees([tree], self.binning, self.parameters, SquaredError())[0]

    @contextmanager
    def in_process(self, n_threads: int) -> Iterator[WholeEngine]:
        shard = self.table.shard(
            self.gradient,
            self.hessian,
            times=self.repeat_count,
            max_leaves=self.policy.max_leaves,
            n_channels=self.precision.n_channels,
        )
        engine = WholeEngine(shard, n_threads)
        assert engine.team.n_threads == n_threads
        try:
            yield engine
        finally:
            engine.close()

    def whole(self, n_threads: int) -> tuple[Tree, np.ndarray]:
        """Return the tree by the compiled grower, and the leaf of each row."""
        with self.in_process(n_threads) as engine:
            first = self.finished(next(engine.grow([self.task])))
            again = self.finished(next(engine.grow([self.task])))  # nothing is left from the previous tree
            assert_equal(again, first)
            return first, np.concatenate(engine.map_shards(Statistic(_leaves))).astype(np.int64)

    def shards(self, cuts: list[int]) -> list[Shard]:
        """Return the rows cut into shards."""
        borders = [0, *sorted(min(cut, self.n_rows) for cut in cuts), self.n_rows]
        return [
            self.table.shard(
                self.gradient,
                self.hessian,
                times=self.repeat_count,
                max_leaves=self.policy.max_leaves,
                n_channels=self.precision.n_channels,
                rows=slice(a, b),
            )
            for a, b in pairwise(borders)
        ]

    def by_rounds(self, cuts: list[int], width: int, in_flight: int = 1) -> tuple[Tree, np.ndarray, int]:
        """Return the tree grown over several shards, each row's leaf, and the number of rounds."""
        shards = self.shards(cuts)
        engine = ShardedEngine(shards, width=width, in_flight=in_flight)
        tree = self.finished(next(engine.grow([self.task])))
        n_requests = engine.n_requests
        assert_equal(self.finished(next(engine.grow([self.task]))), tree)
        return tree, np.concatenate([shard.leaf[0] for shard in shards]).astype(np.int64), n_requests

    def naive(self) -> tuple[Tree, np.ndarray]:
        grower = NaiveGrower(
            self.table,
            self.task,
            self.gradient.tolist(),
            None if self.hessian is None else self.hessian.tolist(),
            None if self.repeat_count is None else self.repeat_count.tolist(),
        )
        chosen = self.table.shard(self.gradient, self.hessian).sampled_rows(*self.task.row_subset)
        root = grower.grow(None if chosen is None else chosen.tolist())[0]
        leaf = np.full(self.n_rows, -1)
        for k, node in enumerate(leaves_of(root)):
            leaf[node.rows] = k
        for row in range(self.n_rows):
            if leaf[row] < 0:
                leaf[row] = leaves_of(root).index(grower.leaf_of(root, row))
        return to_tree(grower, self.binning, self.parameters), leaf


def _leaves(shard: Shard, first: int, last: int) -> np.ndarray:
    """Return the leaf of each row; called by `Engine.map_shards`."""
    return shard.leaf[0, first:last]


def assert_equal(found: Tree, expected: Tree) -> None:
    """Assert that all arrays are equal, to the last bit."""
    for field in fields(Tree):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "categories":
            plain = [[None if codes is None else codes.tolist() for codes in tree] for tree in (a, b)]
            assert plain[0] == plain[1], field.name
        else:
            assert a.dtype == b.dtype, field.name
            assert a.tobytes() == b.tobytes(), (field.name, a, b)


#: Every combination of the kernel's optional arguments is compiled on its own, which takes seconds: the fast tests use the
#: combinations that most fits use (fewer than 257 leaves, packed histograms with counts).
EVERY_KERNEL = pytest.mark.parametrize(
    "every_kernel", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["usual kernels", "every kernel"]
)
#: Numeric one-byte columns only, or all kinds of columns: each has a kernel of its own.
PLAIN = tables(wide=False, categorical=False)


def tree_parameters(every_kernel: bool) -> st.SearchStrategy[Parameters]:
    """Draw parameters of a tree; with `every_kernel` also those that most fits do not use."""
    more: dict[str, st.SearchStrategy[Any]] = {
        "max_leaf_nodes": st.sampled_from([2, 3, 8, 31]),
        "min_samples_leaf": st.sampled_from([2, 5, 20]),
    }
    if every_kernel:
        more = {
            "max_leaf_nodes": st.sampled_from([None, 2, 3, 8, 31]),
            "min_samples_leaf": st.sampled_from([1, 2, 5, 20]),
            "l1_regularization": st.sampled_from([0.0, 0.0, 2.0]),
            "max_delta_step": st.sampled_from([None, None, 0.3]),
        }
    return st.builds(
        Parameters,
        max_depth=st.sampled_from([None, None, 1, 3]),
        min_hessian=st.sampled_from([0.0, 1.0, 5.0]),
        l2_regularization=st.sampled_from([0.0, 1.0, 10.0]),
        leaf_penalty=st.sampled_from([0.0, 0.0, 0.5]),
        min_gain=st.sampled_from([0.0, 0.0, 0.25]),
        growth=st.sampled_from(["best_first", "depth_wise"]),
        categorical_smoothing=st.sampled_from([0.0, 10.0]),
        categorical_l2=st.sampled_from([0.0, 10.0]),
        max_category_group=st.sampled_from([1, 32]),
        min_category_hessian=st.sampled_from([0.0, 1.0, 3.0]),
        **more,
    )
