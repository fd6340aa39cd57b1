"""Workers hold rows in proportion to their threads, whichever worker read the partitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, futures_of
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.cluster.partitions.rebalance import plan_moves
from dboost.cluster.transport.messages import UNKNOWN
from dboost.cluster.worker.partition_mover import PartitionMover
from dboost.cluster.worker.worker_plugin import DBoostWorkerPlugin
from dboost.config import imbalance
from dboost.files.spool import Spool
from tests.helpers.clusters import a_table, held_rows, threads_cluster

FRAME = a_table(3000).assign(o=lambda frame: frame["a"].fillna(0) / 3)
OPTIONS: dict[str, Any] = {"max_iter": 3, "max_leaf_nodes": 6, "progress": False}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with no_stealing(), threads_cluster(3, 1) as client:
        yield client


def no_stealing() -> Any:
    """Switch off Dask's own balancing, which would reduce the imbalance that the tests need."""
    return dask.config.set({"distributed.scheduler.work-stealing": False})


def fit(client: Client | None, data: Any, target: Any, **options: Any) -> tuple[str, list[int]]:
    """Return the model's digest, and the rows of every worker in its first iteration."""
    rows: list[list[int]] = []

    def look(now: dboost.Iteration) -> None:
        rows.append(sorted(client.run(held_rows).values()) if client is not None else [])

    booster = dboost.fit(data, target, client=client, callbacks=look, **OPTIONS | options)
    return booster.sha256, rows[0]


def on_one_worker(client: Client, data: Any) -> Any:
    (one, *_) = client.nthreads()
    persisted = client.persist(data, workers=[one], allow_other_workers=True)
    for future in futures_of(persisted, client=client):
        assert future.exception() is None
    return persisted


READS: list[int] = []


def read(bounds: tuple[int, int]) -> pd.DataFrame:
    """Defined in this module, so that workers in this process use the list that the tests read."""
    READS.append(bounds[0])
    return FRAME[["a", "e", "y"]].iloc[slice(*bounds)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.one_of(st.integers(0, 9), st.integers(0, 1000))), max_size=40),
    st.lists(st.integers(1, 4), min_size=4, max_size=4),
    st.lists(st.integers(0, 300), max_size=4),
    st.sampled_from([1.0, 1.2, 1.5]),
)
def test_moves_make_the_fullest_less_full(
    partitions: list[tuple[int, int]], threads_of: list[int], held_of: list[int], limit: float
) -> None:
    names = "abcd"
    owners = {i: names[owner] for i, (owner, _) in enumerate(partitions)}
    rows = {i: n for i, (_, n) in enumerate(partitions)}
    threads = dict(zip(names, threads_of, strict=True))
    held = dict(zip(names, held_of, strict=False))
    moves = plan_moves(owners, rows, threads, held, limit)

    def fullness(owners: dict[int, str]) -> dict[str, float]:
        loads = Counter(held)
        for i, owner in owners.items():
            loads[owner] += rows[i]
        fair = sum(loads.values()) / sum(threads.values())
        return {name: loads[name] / threads[name] / fair if fair else 0.0 for name in names}

    before, after = fullness(owners), fullness(owners | moves)
    assert all(owners[i] != taker and rows[i] for i, taker in moves.items())
    if max(before.values()) <= limit - 1e-9:
        assert not moves
        return
    assert max(after.values()) <= max(before.values()) + 1e-9
    fullest, emptiest = max(after, key=lambda name: (after[name], name)), min(after, key=lambda name: (after[name], name))
    if max(after.values()) > 1.05 + 1e-9 and max(before.values()) > limit + 1e-9:
        for i, owner in (owners | moves).items():
            if owner == fullest and rows[i]:
                then = fullness(owners | moves | {i: emptiest})[emptiest]
                assert then >= after[fullest] - 1e-9, "one more move would have helped"


def test_workers_that_are_leaving_are_left_alone() -> None:
    assert plan_moves({0: "gone", 1: "a"}, {0: 50, 1: 5}, {"a": 1, "b": 1}, {"gone": 9}, 1.2) == {}
    assert plan_moves({}, {}, {"a": 1}, {}, 1.2) == {}


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("what", ["numbers", "all roles", "text as target", "an array", "roles given apart"])
def test_rows_on_one_worker_are_shared_out_before_training(client: Client, what: str) -> None:
    options: dict[str, Any] = {}
    data, target = FRAME[["a", "b", "y"]], "y"
    if what == "all roles":
        data, target, options = FRAME[["a", "e", "w", "o", "z"]], "z", {"sample_weight": "w", "offset": "o"}
    elif what == "text as target":
        data, target = FRAME[["b", "e", "t"]].assign(e=lambda frame: frame["e"].astype("category")), "t"
    lazy: Any = on_one_worker(client, dd.from_pandas(data, npartitions=13))
    if what == "an array":
        data, target = np.ascontiguousarray(FRAME[["a", "b", "c"]]), FRAME["y"].to_numpy()
        lazy = on_one_worker(client, da.from_array(data, chunks=(230, 3)))
    elif what == "roles given apart":
        data, target = FRAME[["a", "e"]], FRAME["y"].to_numpy()
        lazy = on_one_worker(client, dd.from_pandas(data, npartitions=13))
    expected, _ = fit(None, data, target, **options)
    digest, rows = fit(client, lazy, target, **options)
    assert digest == expected
    n_kept = int((FRAME["w"] > 0).sum()) if "sample_weight" in options else 3000
    assert sum(rows) == n_kept and rows[-1] <= 0.45 * n_kept


def test_unequal_partitions_are_read_once(client: Client) -> None:
    READS.clear()
    rng = np.random.default_rng(3)
    borders = [0, *sorted(rng.choice(np.arange(1, 3000), 11, replace=False).tolist()), 3000]
    lazy = dd.from_map(read, list(pairwise(borders)), meta=FRAME[["a", "e", "y"]].iloc[:0])
    digest, rows = fit(client, lazy, "y")
    assert sorted(READS) == borders[:-1]
    assert digest == fit(None, FRAME[["a", "e", "y"]], "y")[0]
    assert sum(rows) == 3000 and rows[-1] <= 1.2 * 1000 + 1


def test_persisted_partitions_stay_unless_that_is_gross(client: Client) -> None:
    one, two, three = client.nthreads()
    where = [one] * 5 + [two] * 4 + [three] * 3  # the fullest worker has 1.25 times its fraction
    parts = [
        client.submit(lambda k: FRAME[["a", "y"]].iloc[250 * k : 250 * (k + 1)], k, workers=[worker], pure=False)
        for k, worker in enumerate(where)
    ]
    lazy = dd.from_delayed(parts, meta=FRAME[["a", "y"]].iloc[:0], verify_meta=False)
    assert fit(client, lazy, "y")[1] == [750, 1000, 1250]
    with dask.config.set({"dboost.imbalance-persisted": 1.2}):
        assert fit(client, lazy, "y")[1] == [1000, 1000, 1000]
    for wrong in ("much", 0.5, None):
        with dask.config.set({"dboost.imbalance": wrong}), pytest.raises(dboost.ParameterError, match=r"dboost\.imbalance="):
            imbalance(False)


def test_a_worker_that_is_lost_while_rows_are_moved(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    give = PartitionMover.give

    async def first_fails(
        self: PartitionMover, fit: str, session: str, batch: str, partition: int, number: int
    ) -> dict[str, Any]:
        asked.append(partition)
        return {"status": UNKNOWN} if len(asked) == 4 else await give(self, fit, session, batch, partition, number)

    monkeypatch.setattr(PartitionMover, "give", first_fails)
    with no_stealing(), threads_cluster(3, 1) as other:
        data = FRAME[["a", "e", "y"]]
        digest, rows = fit(other, on_one_worker(other, dd.from_pandas(data, npartitions=13)), "y")
        assert digest == fit(None, data, "y")[0]
        assert sum(rows) == 3000 and rows[-1] <= 1350 and len(asked) > 4
        assert other.run(batches_left) == dict.fromkeys(other.run(batches_left), 0)


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_rows_are_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    silent: list[Any] = []
    ping = DBoostWorkerPlugin.ping

    async def falls_silent(
        self: PartitionMover, fit: str, session: str, batch: str, partition: int, number: int
    ) -> dict[str, Any]:
        silent.append(self._worker)
        await asyncio.sleep(3600)
        raise AssertionError

    async def says_nothing(self: DBoostWorkerPlugin) -> dict[str, str]:
        if self._worker in silent:
            await asyncio.sleep(3600)
        return ping(self)

    monkeypatch.setattr(PartitionMover, "give", falls_silent)
    monkeypatch.setattr(DBoostWorkerPlugin, "ping", says_nothing)
    with no_stealing(), dask.config.set({"dboost.patience": "2s"}), threads_cluster(2, 1) as client:
        data = FRAME[["a", "y"]]
        lazy = dd.from_pandas(data, npartitions=9)
        digest, rows = fit(client, on_one_worker(client, lazy), "y")
        assert digest == fit(None, data, "y")[0] and sum(rows) == 3000 and silent
        silent.clear()


def batches_left(dask_worker: Any = None) -> int:
    return sum(len(holding.loading.names) for holding in dask_worker.plugins["dboost"]._sessions.values())


def test_a_spool_forgets_what_was_moved(tmp_path: Any) -> None:
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        spool = Spool(80)
        for number in range(3):
            spool.put(number, [np.arange(10.0) + number])  # one in memory, two in files
        assert spool.directory is not None and len(list(spool.directory.glob("chunk-*"))) == 2
        spool.keep_only({2})
        assert len(list(spool.directory.glob("chunk-*"))) == 1
        spool.put(3, [np.zeros(10)])  # there is free memory again
        assert len(list(spool.directory.glob("chunk-*"))) == 1
        assert spool.get(2)[0][0] == 2.0
        spool.close()
