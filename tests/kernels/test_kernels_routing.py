"""Coded rows routed through a grown tree reach the right leaves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dboost.kernels.rows import add_tree
from dboost.trees.apply_trees import RoutingScratch
from dboost.trees.fit_trees import FitTree
from tests.helpers.growth import a_tree
from tests.helpers.tables import CodedTable, tables


def reached(table: CodedTable, tree: FitTree, row: int) -> int:
    nodes, left_codes, node = tree.nodes, tree.left_codes, 0
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
    tree = a_tree(table.layout.n_bins, table.layout.is_categorical != 0, n_leaves, seed)
    value = rng.normal(size=tree.n_leaves)
    codes = table.stored()
    before = rng.normal(size=table.n_rows)
    raw = before.copy()
    cut = min(cut, table.n_rows)
    for first, last in ((cut, table.n_rows), (0, cut)):
        sets, scratch = (tree.sets.nodes, tree.sets.goes_left()), RoutingScratch.of(last - first, tree.n_nodes)
        add_tree(codes, table.layout, tree.nodes, sets, value, first, last, raw, scratch)
    expected = [before[row] + value[tree.nodes.leaf_of[reached(table, tree, row)]] for row in range(table.n_rows)]
    assert raw.tolist() == expected
