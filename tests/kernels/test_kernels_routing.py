"""Coded rows routed through a grown tree reach the right leaves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dboost.kernels.rows import add_tree
from dboost.trees.tree_task import new_node_arrays
from tests.helpers.tables import CodedTable, tables


def random_tree(table: CodedTable, n_leaves: int, rng: np.random.Generator) -> tuple:
    """Return node arrays with random splits, and for each node the bin codes that go left."""
    nodes, n_nodes = new_node_arrays(n_leaves), 1
    left_codes = np.zeros((2 * n_leaves - 1, max(table.n_codes)), np.uint8)
    open_leaves = [0]
    while n_nodes < 2 * n_leaves - 1:
        node = open_leaves.pop(int(rng.integers(len(open_leaves))))
        feature = int(rng.integers(len(table.n_codes)))
        nodes.feature[node] = feature
        nodes.missing_left[node] = rng.integers(2)
        if table.layout.is_categorical[feature]:
            left_codes[node, : table.n_codes[feature] - 1] = rng.integers(2, size=table.n_codes[feature] - 1)
        else:
            nodes.split_bin[node] = rng.integers(table.n_codes[feature] - 1)
        nodes.child[node] = n_nodes
        open_leaves += [n_nodes, n_nodes + 1]
        n_nodes += 2
    return nodes, left_codes


def reached(table: CodedTable, nodes: tuple, left_codes: np.ndarray, row: int) -> int:
    node = 0
    while nodes.child[node] >= 0:
        feature = int(nodes.feature[node])
        code = int(table.codes[feature, row])
        if code == table.n_codes[feature] - 1:
            left = bool(nodes.missing_left[node])
        elif table.layout.is_categorical[feature]:
            left = bool(left_codes[node, code])
        else:
            left = code <= int(nodes.split_bin[node])
        node = int(nodes.child[node]) + (not left)
    return node


@given(table=tables(max_rows=60), n_leaves=st.integers(1, 12), seed=st.integers(0, 2**32), cut=st.integers(0, 60))
def test_rows_reach_their_leaves(table: CodedTable, n_leaves: int, seed: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, left_codes = random_tree(table, n_leaves, rng)
    value = rng.normal(size=2 * n_leaves - 1)
    codes = table.stored()
    before = rng.normal(size=table.n_rows)
    raw = before.copy()
    cut = min(cut, table.n_rows)
    for first, last in ((cut, table.n_rows), (0, cut)):
        add_tree(codes, table.layout, nodes, left_codes, value, first, last, raw)
    expected = [before[row] + value[reached(table, nodes, left_codes, row)] for row in range(table.n_rows)]
    assert raw.tolist() == expected
