"""The trees of an iteration, one per class, share their rounds on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.dataframe as dd
import numpy as np
import pytest
from distributed import Client

import dboost
from dboost.trees.rounds_in_memory import BYTES_PER_ROW
from tests.helpers.clusters import a_table, last_events, lines_cluster
from tests.helpers.tune import Tune

FRAME = a_table(3000)[["a", "b", "c", "d", "e", "w"]].assign(
    grade=lambda frame: (np.abs(np.nan_to_num(frame["a"]) * 2 + frame["c"].fillna(0)) * 1.3).clip(0, 4).astype(int)
)
OPTIONS: dict[str, Any] = {"loss": "log_loss", "max_iter": 3, "max_leaf_nodes": 7, "progress": False, "sample_weight": "w"}
N_CLASSES = FRAME["grade"].nunique()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with lines_cluster(3) as client:
        yield client


def in_process(**options: Any) -> str:
    return dboost.fit(FRAME, "grade", **OPTIONS | options).sha256


def on_cluster(client: Client, **options: Any) -> tuple[str, list[int]]:
    """Return the digest of the model, and the number of rounds of each tree; 0 if it shared those of an earlier one."""
    booster = dboost.fit(dd.from_pandas(FRAME, npartitions=6), "grade", client=client, **OPTIONS | options)
    return booster.sha256, [event["n_rounds"] for event in last_events(client, "tree")]


def test_an_iteration_takes_the_rounds_of_its_deepest_tree(client: Client) -> None:
    assert N_CLASSES == 5
    found, rounds = on_cluster(client)
    assert found == in_process()
    assert len(rounds) == 3 * N_CLASSES
    assert [n > 0 for n in rounds] == 3 * [True, False, False, False, False]
    assert max(rounds) <= 7  # of a tree with 7 leaves


def test_trees_grow_one_after_the_other_where_the_memory_is_short(client: Client, tune: Tune) -> None:
    tune(tree_bytes=1)
    options = {"subsample": 0.5, "influence_trimming": 0.1, "max_features": 0.6}
    found, rounds = on_cluster(client, **options)
    assert found == in_process(**options) and all(rounds)
    # Groups have similar numbers of trees: 5 trees of at most 4 at a time are 3 and 2.
    n_rows = (FRAME["w"] > 0).sum() / 3  # of each worker, about
    tune(tree_bytes=int(4.5 * BYTES_PER_ROW * n_rows))
    options |= {"max_iter": 1, "max_bins": 8}
    found, rounds = on_cluster(client, **options)
    assert found == in_process(**options)
    assert [n > 0 for n in rounds] == [True, False, False, True, False]
