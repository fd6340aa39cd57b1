"""The grower is chosen by name: one in NumPy grows the same trees, in one process and on workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dboost
from dboost.trees.growers import GROWERS
from dboost.tuning import tuned
from tests.helpers import numpy_grower
from tests.helpers.clusters import Processes
from tests.helpers.fits import FEATURES, cut, mixed_frame

FITS: dict[str, dict[str, Any]] = {
    "numbers": {"target": "y"},
    "two classes, weights": {"target": "late", "weight": "w"},
    "classes, half of the rows": {"target": "grade", "subsample": 0.5},
    "one tree for all outputs": {"target": "grade", "multi_strategy": "multi_output_tree"},
    "bins of each tree": {"target": "y", "split_proposal": "tree"},
    "trimmed": {"target": "late", "influence_trimming": 0.1},
}
FRAME = mixed_frame()


def fit(target: str, data: Any = FRAME, **options: Any) -> dboost.Booster:
    return dboost.fit(data, target, features=FEATURES, max_iter=4, max_leaf_nodes=7, progress=False, **options)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    numpy_grower.register()
    yield
    del GROWERS[numpy_grower.NAME]


@pytest.mark.parametrize("name", FITS)
def test_a_grower_in_numpy_grows_the_same_trees(name: str) -> None:
    expected, before = fit(**FITS[name]), numpy_grower.n_grown()
    with tuned(grower=numpy_grower.NAME):
        assert fit(**FITS[name]).sha256 == expected.sha256
    assert numpy_grower.n_grown() > before


def test_workers_use_the_grower_that_the_client_names() -> None:
    with Processes(2) as cluster:
        cluster.client.run(numpy_grower.register)
        data = cut(FRAME, [150, 300, 420])
        with tuned(grower=numpy_grower.NAME):
            booster = fit("late", data, client=cluster.client)
        n_grown = cluster.client.run(numpy_grower.n_grown)
    assert booster.sha256 == fit("late", data).sha256
    assert len(n_grown) == 2 and all(n > 0 for n in n_grown.values())


def test_an_unknown_grower_is_an_error() -> None:
    with tuned(grower="abacus"), pytest.raises(dboost.ParameterError, match="unknown grower 'abacus'; known are cpu"):
        fit("y")
