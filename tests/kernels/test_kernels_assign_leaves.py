"""The leaves of rows found by masks and by tables equal those found by traversal."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.shards.apply_trees import add_grown_tree, assign_leaves, leaves_of
from dboost.trees.tree_task import GrownTree, TreeRoutes, new_node_arrays
from tests.helpers.tables import make_table


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
    return GrownTree(nodes, n, n_leaves, np.zeros(n, np.int64), leaf_of, np.zeros((n_leaves, 2)), left_codes)


@pytest.mark.parametrize("bins", [[7, 40, 255], [7, 300, 20]], ids=["one byte", "two bytes"])
@given(n=st.integers(1, 70), n_leaves=st.integers(1, 40), seed=st.integers(0, 2**32), cut=st.integers(0, 70))
def test_labels_are_those_of_a_walk(bins: list[int], n: int, n_leaves: int, seed: int, cut: int) -> None:
    categorical = [True, False, False]
    table = make_table(bins, n, categorical=categorical, seed=seed % 1000)
    codes = table.stored()
    grown = a_tree(np.array(bins), np.array(categorical), n_leaves, seed)
    leaf = np.full(n, 255, np.uint8)
    find = assign_leaves(codes, table.layout, grown)
    find(leaf, min(cut, n), n)
    find(leaf, 0, min(cut, n))
    assert np.array_equal(leaf, leaves_of(codes, table.layout, grown))


@pytest.mark.parametrize("bins", [[7, 40, 255], [7, 300, 20]], ids=["one byte", "two bytes"])
@pytest.mark.parametrize("n_leaves", [2, 31, 40])
def test_trees_are_added_to_many_rows_as_to_few(bins: list[int], n_leaves: int) -> None:
    """Many rows are labelled first, by masks or tables; few follow the splits."""
    n, categorical = 11_000, [True, False, False]
    table = make_table(bins, n, categorical=categorical, seed=n_leaves)
    codes, rng = table.stored(), np.random.default_rng(n_leaves)
    grown = a_tree(np.array(bins), np.array(categorical), n_leaves, n_leaves)
    values, raw = rng.normal(size=n_leaves), rng.normal(size=n)
    many, few = raw.copy(), raw.copy()
    add_grown_tree(codes, table.layout, grown, values, many, 5, n)
    for first in range(5, n, 1000):
        add_grown_tree(codes, table.layout, grown, values, few, first, min(first + 1000, n))
    assert np.array_equal(many, few) and np.array_equal(many[:5], raw[:5])
    assert len(np.unique(many - raw)) >= n_leaves


@given(n_leaves=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_stored_routes_lead_to_the_same_leaves(n_leaves: int, seed: int) -> None:
    bins, categorical, n = [7, 40, 300], np.array([True, False, True]), 200
    table = make_table(bins, n, categorical=categorical.tolist(), seed=seed % 1000)
    codes, grown = table.stored(), a_tree(np.array(bins), categorical, n_leaves, seed)
    routes = pickle.loads(pickle.dumps(TreeRoutes.of(grown, categorical.astype(np.uint8))))
    assert np.array_equal(leaves_of(codes, table.layout, routes.restore()), leaves_of(codes, table.layout, grown))


def test_a_tree_of_many_categories_takes_little_memory() -> None:
    n_bins, categorical = np.array([5000, 5000, 200]), np.array([1, 0, 0], np.uint8)
    grown = a_tree(n_bins, categorical != 0, 31, 1)
    routes = TreeRoutes.of(grown, categorical)
    n_sets = int((grown.nodes.feature[grown.nodes.child >= 0] == 0).sum())
    assert 0 < n_sets < 30 and routes.sets.bits.nbytes == n_sets * 626
    assert routes.nodes.nbytes + routes.leaf_of.nbytes == 61 * 24
