"""The trees of an iteration, one per class, share their rounds on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.dataframe as dd
import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.cluster.training import cluster_backend
from tests.helpers.clusters import a_table, last_events, lines_cluster
from tests.helpers.examples import examples
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


@examples(6)
@given(
    together=st.integers(1, 5), subsample=st.sampled_from([1.0, 0.5]), trim=st.sampled_from([None, 0.1]),
    seed=st.integers(0, 3), columns=st.sampled_from([1.0, 0.6]),
)  # fmt: skip
def test_any_number_of_trees_may_grow_together(
    client: Client, together: int, subsample: float, trim: float | None, seed: int, columns: float
) -> None:
    options = {"subsample": subsample, "influence_trimming": trim, "random_state": seed, "max_features": columns}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_backend.ClusterBackend, "_trees_together", lambda calls, tasks: together)
        found, rounds = on_cluster(client, **options)
    assert found == in_process(**options)
    assert sum(n > 0 for n in rounds) == 3 * -(-N_CLASSES // together)


def test_trees_grow_one_after_the_other_where_the_memory_is_short(client: Client, tune: Tune) -> None:
    tune(tree_bytes=1)
    found, rounds = on_cluster(client)
    assert found == in_process() and all(rounds)
    # Groups have similar numbers of trees: 5 trees of at most 4 at a time are 3 and 2.
    n_rows = (FRAME["w"] > 0).sum() / 3  # of each worker, about
    tune(tree_bytes=int(4.5 * cluster_backend.BYTES_PER_ROW * n_rows))
    found, rounds = on_cluster(client, max_iter=1, max_bins=8)
    assert found == in_process(max_iter=1, max_bins=8)
    assert [n > 0 for n in rounds] == [True, False, False, True, False]
