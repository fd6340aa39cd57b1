"""The leaves of rows found by masks and by tables equal those found by traversal."""

from __future__ import annotations

import pickle
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.trees.apply_trees import add_grown_tree, assign_leaves, leaves_of
from dboost.trees.fit_trees import GrownTree
from dboost.trees.tree_task import TreeTask, new_node_arrays
from tests.helpers.growth import TASK, a_tree
from tests.helpers.tables import make_table


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
    for some, n_outputs in ((slice(2005, n), 1), (slice(2005, n), 3), (slice(2005, 3000), 1)):  # codes among those of more rows
        expected = np.tile(raw, (n_outputs, 1))
        found = expected[:, some].copy()
        of_outputs = rng.normal(size=(n_outputs, n_leaves))
        if n_outputs == 1:
            add_grown_tree(codes, table.layout, grown, of_outputs[0], found[0], 3, found.shape[1], 2005)
            add_grown_tree(codes, table.layout, grown, of_outputs[0], expected[0], 2008, some.stop)
        else:
            add_grown_tree(codes, table.layout, grown, of_outputs, found, 3, found.shape[1], 2005)
            add_grown_tree(codes, table.layout, grown, of_outputs, expected, 2008, some.stop)
        assert np.array_equal(found, expected[:, some])


@given(n_leaves=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_a_tree_that_is_sent_leads_to_the_same_leaves(n_leaves: int, seed: int) -> None:
    bins, categorical, n = [7, 40, 300], np.array([True, False, True]), 200
    table = make_table(bins, n, categorical=categorical.tolist(), seed=seed % 1000)
    codes, grown = table.stored(), a_tree(np.array(bins), categorical, n_leaves, seed)
    sent = pickle.loads(pickle.dumps(grown.for_sessions()))
    assert np.array_equal(leaves_of(codes, table.layout, sent), leaves_of(codes, table.layout, grown))


@given(n_leaves=st.integers(1, 40), n_codes=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_nodes_and_sets_are_copied_from_longer_buffers(n_leaves: int, n_codes: int, seed: int) -> None:
    rng, n = np.random.default_rng(seed), 2 * n_leaves - 1
    nodes, is_categorical = new_node_arrays(n_leaves + 2), np.array([1, 0, 1], np.uint8)
    split = rng.permutation(n)[: n_leaves - 1]
    columns = nodes.feature, nodes.split_bin, nodes.missing_left, nodes.child, nodes.depth, rng.integers(9, size=n + 4)
    for column in columns[:5]:
        column[split] = rng.integers(3, size=len(split))
    left_codes = rng.integers(2, size=(n + 4, n_codes)).astype(np.uint8)
    counts, sums = np.zeros(n, np.int64), np.zeros((n_leaves, 2))
    tree = GrownTree.of(cast(TreeTask, TASK), nodes, counts, columns[5], sums, left_codes, is_categorical)
    assert tree.node_fields.dtype == np.int32 and np.array_equal(tree.node_fields, [column[:n] for column in columns])
    has_set = (nodes.child[:n] >= 0) & (is_categorical[nodes.feature[:n]] == 1)
    assert np.array_equal(tree.left_codes, left_codes[:n] * has_set[:, None])
    assert tree.sets.nodes.base is None and tree.sets.bits.base is None


def test_a_tree_of_many_categories_takes_little_memory() -> None:
    grown = a_tree(np.array([5000, 5000, 200]), np.array([True, False, False]), 31, 1)
    n_sets = int((grown.nodes.feature[grown.nodes.child >= 0] == 0).sum())
    assert 0 < n_sets < 30 and grown.sets.bits.nbytes == n_sets * 626
    assert grown.node_fields.nbytes == 61 * 24
