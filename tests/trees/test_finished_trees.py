"""The trees of a model, made of many grown trees together, are those that a node-by-node counterpart makes of each."""

from __future__ import annotations

from dataclasses import fields, replace
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dboost.data.columns.binning import Binning
from dboost.losses import AbsoluteError, SquaredError
from dboost.losses.per_output import PerOutput
from dboost.model.ensemble import Tree
from dboost.params import Parameters
from dboost.schema import Feature
from dboost.trees import finished_trees as module
from dboost.trees.finished_trees import finished_trees
from dboost.trees.fit_trees import GrownTree
from tests.helpers.examples import examples
from tests.helpers.growth import a_tree
from tests.helpers.naive.finished_tree import finished_tree

BINNING = Binning(
    (Feature("a"), Feature("b", ("x", "y", "z")), Feature("c"), Feature("d", tuple(range(11)))),
    (np.array([0.5, 1.5, 7.0]), None, np.array([-1.0]), None),
)
#: Leaf values of the first follow from the sums of gradients, those of the second do not.
TWO = PerOutput((SquaredError(), AbsoluteError()), ("one", "two"))


def grown_tree(n_leaves: int, width: int, rate: float, output: int, seed: int) -> GrownTree:
    """Return a random tree; leaves have random sums, also without Hessians, and any values."""
    rng = np.random.default_rng(seed)
    tree = a_tree(BINNING.n_bins, BINNING.is_categorical, n_leaves, seed)
    n, nodes = tree.n_nodes, tree.nodes
    sums = np.stack([rng.normal(size=(width, n_leaves)), rng.integers(0, 4, (width, n_leaves)) / 2], axis=-1)
    values = rng.normal(size=(width, n_leaves))
    n_rows = np.zeros(n, np.int64)
    for node in range(n - 1, -1, -1):
        child = nodes.child[node]
        n_rows[node] = rng.integers(1, 9) if child < 0 else n_rows[child] + n_rows[child + 1]
    nodes.leaf_of[nodes.child >= 0] = 10_000  # meaningless in splits
    tree = replace(tree, output=output, gain=rng.normal(size=n), count=n_rows, gain_unit=0.25)
    tree.complete(values if width > 1 else values[0], rate, sums if width > 1 else sums[0])
    return tree


def assert_equal(found: Tree, expected: Tree) -> None:
    for column in fields(Tree):
        mine, its = getattr(found, column.name), getattr(expected, column.name)
        if column.name == "categories":
            assert [None if x is None else (x.dtype, x.tolist()) for x in mine] == [
                None if x is None else (x.dtype, x.tolist()) for x in its
            ]
            continue
        assert mine.dtype == its.dtype and mine.shape == its.shape, column.name
        assert mine.base is None, column.name
        np.testing.assert_array_equal(mine, its, column.name)


SHAPES = st.lists(st.tuples(st.integers(1, 12), st.sampled_from([0.1, 0.3]), st.integers(0, 2**20)), max_size=8)
PARAMETERS = st.builds(
    Parameters,
    leaf_penalty=st.sampled_from([0.0, 0.5]),
    l1_regularization=st.sampled_from([0.0, 0.25]),
    l2_regularization=st.sampled_from([0.0, 1.0]),
    max_delta_step=st.sampled_from([None, 0.2]),
)


@given(SHAPES, PARAMETERS, st.sampled_from([1, 2]), st.sampled_from([1, 20, 1 << 16]))
@examples(60)
def test_trees_that_are_finished_together_are_those_of_each(
    shapes: list[tuple[int, float, int]], parameters: Parameters, width: int, n_together: int
) -> None:
    grown = [
        grown_tree(n_leaves, width, rate, k % 2 if width == 1 else 0, seed) for k, (n_leaves, rate, seed) in enumerate(shapes)
    ]
    with patch.object(module, "_NODES_TOGETHER", n_together):
        found = finished_trees(grown, BINNING, parameters, TWO)
    assert len(found) == len(grown)
    for finished, tree in zip(found, grown, strict=True):
        assert_equal(finished, finished_tree(tree, BINNING, parameters, TWO))
