"""A small table on a cluster: one worker gets all rows and grows whole trees, and the model is that of one process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any

import dask
import dask.dataframe as dd
import pytest
from distributed import Client
from distributed.core import Status

import dboost
from dboost.cluster.partitions.rebalance import is_for_one_worker, is_held
from dboost.session.session import Session
from dboost.trees import tree_rounds
from tests.helpers.clusters import a_table, at, held_rows, threads_cluster

FRAME = a_table(3000)
DEFAULT = {"dboost.single-worker-values": 8_000_000}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster() as client:
        yield client


@pytest.fixture(autouse=True)
def by_default() -> Iterator[None]:
    with dask.config.set(DEFAULT):
        yield


@pytest.fixture
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit in rounds fails. The reducer is in this process."""
    monkeypatch.setattr(tree_rounds, "grow_tree", lambda *_: pytest.fail("a tree was grown in rounds"))


def fitted(data: Any, target: str, **options: Any) -> dboost.Booster:
    return dboost.fit(data, target, progress=False, **{"max_iter": 6} | options)


@pytest.mark.parametrize(
    ("n_values", "n_trees", "n_threads", "n_workers", "expected"),
    [
        (19_900_000, 1, 1, 2, True),
        (20_100_000, 1, 1, 2, False),
        (39_900_000, 1, 2, 2, True),
        (13_300_000, 1, 1, 3, True),
        (13_400_000, 1, 1, 3, False),
        (8_000_000, 1, 1, 1000, True),
        (8_100_000, 1, 1, 1000, False),
        (13_300_000, 3, 1, 2, True),
        (13_400_000, 3, 1, 2, False),
        (10_900_000, 10, 1, 2, True),
        (11_100_000, 10, 1, 2, False),
        (10**12, 1, 1, 1, True),  # there is no other worker
        (0, 1, 1, 2, False),
    ],
)
def test_tables_for_one_worker(n_values: int, n_trees: int, n_threads: int, n_workers: int, expected: bool) -> None:
    assert is_for_one_worker(n_values, n_trees, n_threads, n_workers) is expected
    with dask.config.set({"dboost.single-worker-values": 0}):
        assert not is_for_one_worker(n_values, n_trees, n_threads, n_workers)


@pytest.mark.parametrize(
    ("n_values", "n_workers", "n_at_once", "expected"),
    [
        (10**12, 2, 2, True),  # as many fits as workers: rounds save nothing
        (10**12, 6, 5, True),
        (16_000_000, 8, 3, False),  # as of one fit with fewer than three workers
        (14_000_000, 8, 3, True),
        (8_100_000, 1000, 5, False),
    ],
)
def test_fits_at_the_same_time(n_values: int, n_workers: int, n_at_once: int, expected: bool) -> None:
    assert is_for_one_worker(n_values, 1, 1, n_workers, n_at_once) is expected


@pytest.mark.usefixtures("no_rounds")
def test_folds_are_on_different_workers(client: Client) -> None:
    frame = FRAME[["a", "b", "e", "z"]]
    seen: list[dict[str, int]] = []

    def look(now: dboost.Iteration) -> None:
        if now.iteration == 3:
            seen.append(client.run(held_rows))

    options: dict[str, Any] = {"folds": 5, "max_iter": 6, "progress": False, "eval_metric": "roc_auc"}
    with dask.config.set({"dboost.single-worker-values": 1}):  # a single fit would be divided
        found = dboost.cv(dd.from_pandas(frame, npartitions=6), "z", client=client, callbacks=look, **options)
    expected = dboost.cv(frame, "z", **options)
    assert [booster.sha256 for booster in found.boosters] == [booster.sha256 for booster in expected.boosters]
    assert found.scores.equals(expected.scores)
    trained = 4 * len(frame) // 5
    assert sorted(seen[0].values()) == [trained, 2 * trained, 2 * trained]


def test_tables_that_a_worker_holds() -> None:
    assert is_held(1_000_000, 48_000_000) and is_held(10**12, 0)
    assert not is_held(1_000_000, 47_000_000)


@pytest.mark.slow
def test_several_classes_are_worth_more_workers(client: Client) -> None:
    """Their number is known only after loading: one worker gets all rows, and the others theirs while trees are grown."""
    frame = FRAME[["a", "b", "d", "t"]]
    lazy = dd.from_pandas(frame, npartitions=6)
    options: dict[str, Any] = {"max_iter": 40, "learning_rate": 0.05}
    n_classes = frame["t"].nunique()
    limit = 3 * 3000 * 0.6 / 2  # with three workers of two threads
    for values, n_workers in ((limit * 2 * n_classes / (n_classes + 1) + 1, {1}), (limit + 1, {1, 2, 3})):
        with dask.config.set({"dboost.single-worker-values": values}):
            booster = fitted(lazy, "t", client=client, **options)
        assert booster.sha256 == fitted(frame, "t", **options).sha256
        assert set(booster.history["workers"]) <= n_workers
        assert booster.history["workers"].iloc[-1] == max(n_workers)


def test_larger_tables_are_divided(client: Client) -> None:
    frame = FRAME[["a", "b", "e", "y"]]
    lazy = dd.from_pandas(frame, npartitions=6)
    expected = fitted(frame, "y").sha256
    for values, n_workers in ((2701, 1), (2699, 3), (0, 3)):  # 9,000 values, three workers of two threads
        with dask.config.set({"dboost.single-worker-values": values}):
            booster = fitted(lazy, "y", client=client)
        assert booster.sha256 == expected
        assert set(booster.history["workers"]) == {n_workers}
    limited = fitted(lazy, "y", client=client, memory_limit="250kB", max_leaf_nodes=4)
    assert limited.sha256 == fitted(frame, "y", max_leaf_nodes=4).sha256
    assert min(limited.history["workers"]) > 1, "one worker's limit is too low for all rows"


def batches(dask_worker: Any = None) -> int:
    """Return how many batches of raw rows a worker has in its fits."""
    return sum(len(session.loading.names) for session in dask_worker.plugins["dboost"]._sessions.values())


@pytest.mark.parametrize("limit", [None, "64MiB"])
def test_givers_keep_no_rows(client: Client, limit: str | None) -> None:
    """Workers that have given all their partitions away drop what they have read of the training and of the evaluation rows."""
    held: list[dict[str, int]] = []
    frame = dd.from_pandas(FRAME[["a", "b", "e", "y"]], npartitions=6)
    fitted(
        frame,
        "y",
        client=client,
        memory_limit=limit,
        eval_set=frame,
        callbacks=[at(1, lambda: held.append(client.run(batches)))],
    )
    assert len(held) == 1
    assert set(held[0].values()) == {0}, held


def test_errors_while_partitions_move_keep_their_kind(client: Client) -> None:
    """The partitions meet on one worker, which finds that they do not match."""
    first = FRAME[["a", "y"]]
    other = first.assign(a=first["a"].astype(str))
    mixed = dd.from_delayed([dask.delayed(first), dask.delayed(other)], meta=first.iloc[:0], verify_meta=False)
    with pytest.raises(dboost.DataError, match=r"'a' holds numbers in partition 0, but text or categories in partition 1"):
        fitted(mixed, "y", client=client)


def test_fits_take_turns_with_the_workers(client: Client) -> None:
    lazy, used = dd.from_pandas(FRAME[["a", "b", "z"]], npartitions=4), set()

    def look(_: dboost.Iteration) -> None:
        used.update(worker for worker, n in client.run(held_rows).items() if n)

    for _ in range(3):
        fitted(lazy, "z", client=client, max_iter=1, callbacks=[look])
    assert len(used) == 3


def test_a_paused_worker_gets_no_rows(client: Client) -> None:
    def pause(dask_worker: Any = None) -> None:
        dask_worker.memory_manager.memory_pause_fraction = False  # Dask does not let the worker go on
        dask_worker.status = Status.paused

    def resume(dask_worker: Any = None) -> None:
        dask_worker.status = Status.running

    paused, *others = client.nthreads()
    lazy, used = dd.from_pandas(FRAME[["a", "b", "z"]], npartitions=4), set()

    def look(_: dboost.Iteration) -> None:
        used.update(worker for worker, n in client.run(held_rows).items() if n)

    client.run(pause, workers=[paused])
    try:
        for _ in range(3):
            fitted(lazy, "z", client=client, max_iter=1, callbacks=[look])
    finally:
        client.run(resume, workers=[paused])
    assert used == set(others)


def test_rows_in_several_shards_are_grown_in_rounds(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """So they are where a worker has read the partitions of a lost one beside its own."""
    refusals: list[None] = []

    @wraps(Session.grow_whole_trees)
    def refuse(*_: object) -> None:
        refusals.append(None)

    monkeypatch.setattr(Session, "grow_whole_trees", refuse)
    frame = FRAME[["a", "b", "z"]]
    booster = fitted(dd.from_pandas(frame, npartitions=4), "z", client=client)
    assert booster.sha256 == fitted(frame, "z").sha256
    assert len(refusals) == 1, "it is not asked again"
