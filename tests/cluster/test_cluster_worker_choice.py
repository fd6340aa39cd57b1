"""``workers=`` confines a fit to some workers, and `fit_async` trains with an asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dask.dataframe as dd
import pytest
from distributed import Client, LocalCluster

import dboost
from dboost.cluster.client.connection import Connection
from dboost.cluster.client.worker_choice import KnownWorkers, WorkerChoice
from tests.helpers.clusters import Processes, a_table, at, threads_cluster

OPTIONS: dict[str, Any] = {"max_iter": 6, "max_leaf_nodes": 8, "progress": False}
TABLE = a_table(4000)
TARGET = TABLE.columns[-1]


def lazily(n: int = 6) -> dd.DataFrame:
    return dd.from_pandas(TABLE, npartitions=n)


@pytest.fixture(scope="module")
def expected() -> str:
    return dboost.fit(TABLE, TARGET, **OPTIONS).sha256


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster(3, 1) as client:
        yield client


def workers_of(client: Client, seen: list[set[str]]) -> Any:
    """A callback that notes the workers with rows of the fit."""

    def look(_: Any) -> None:
        from tests.helpers.clusters import held_rows

        seen.append({address for address, n in client.run(held_rows, on_error="ignore").items() if n})

    return look


def test_only_chosen_workers_have_rows(client: Client, expected: str) -> None:
    addresses = sorted(client.nthreads())
    names = client.run(lambda dask_worker: str(dask_worker.name))
    for chosen in ([addresses[1]], addresses[:2], names[addresses[2]], [int(names[addresses[0]])]):
        seen: list[set[str]] = []
        model = dboost.fit(lazily(), TARGET, client=client, workers=chosen, callbacks=workers_of(client, seen), **OPTIONS)
        assert model.sha256 == expected
        wanted = {str(one) for one in ([chosen] if isinstance(chosen, str) else chosen)}
        allowed = {address for address in addresses if address in wanted or names[address] in wanted}
        assert seen and all(one == allowed for one in seen)


def test_persisted_rows_move_to_the_chosen_workers(client: Client, expected: str) -> None:
    address = sorted(client.nthreads())[0]
    data = client.persist(lazily())
    seen: list[set[str]] = []
    model = dboost.fit(data, TARGET, client=client, workers=[address], callbacks=workers_of(client, seen), **OPTIONS)
    assert model.sha256 == expected
    assert all(one == {address} for one in seen)


def test_resources(expected: str) -> None:
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        from distributed import Worker

        async def two() -> list[Worker]:
            address = cluster.scheduler_address
            return [await Worker(address, nthreads=1, resources=given) for given in ({"FAST": 2.0}, {})]

        workers = client.sync(two)
        seen: list[set[str]] = []
        model = dboost.fit(lazily(), TARGET, client=client, workers={"FAST": 1}, callbacks=workers_of(client, seen), **OPTIONS)
        assert model.sha256 == expected
        assert all(one == {workers[0].address} for one in seen)
        with pytest.raises(dboost.ParameterError, match="no worker has the resources"):
            dboost.fit(lazily(), TARGET, client=client, workers={"FAST": 3}, **OPTIONS)

        async def close() -> None:
            for worker in workers:
                await worker.close()

        client.sync(close)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nobody", "there is no worker 'nobody'; there are .* at "),
        ([], "workers is empty"),
        ({}, "workers is empty"),
        ({"GPU": 0}, "must be a positive number"),
        ({"GPU": True}, "must be a positive number"),
        (3.5, "must be addresses or names"),
        ([1.5], "must be addresses or names"),
    ],
)
def test_mistakes(client: Client, given: Any, message: str) -> None:
    with pytest.raises(dboost.DBoostError, match=message):
        dboost.fit(lazily(), TARGET, client=client, workers=given, **OPTIONS)


def test_no_cluster_no_workers() -> None:
    assert not WorkerChoice.of(None)
    with pytest.raises(dboost.ParameterError, match="needs a cluster"):
        dboost.fit(TABLE, TARGET, workers=["a"], **OPTIONS)


@pytest.mark.slow
def test_a_chosen_worker_is_killed(expected: str) -> None:
    with Processes(3) as processes:
        addresses = sorted(processes.addresses())
        chosen, pids = addresses[:2], processes.pids()
        seen: list[set[str]] = []

        def kill() -> None:
            import os
            import signal

            os.kill(pids[chosen[0]], signal.SIGKILL)

        look = workers_of(processes.client, seen)
        model = dboost.fit(lazily(), TARGET, client=processes.client, workers=chosen, callbacks=[at(2, kill), look], **OPTIONS)
        assert model.sha256 == expected
        assert seen[-1] == {chosen[1]}
        assert all(addresses[2] not in one for one in seen)


@pytest.mark.slow
@pytest.mark.parametrize("notices_late", [False, True], ids=["", "tasks are submitted to the lost worker"])
def test_all_chosen_workers_are_lost(notices_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with Processes(2, environment={"DASK_DBOOST__WORKER_TIMEOUT": "4s"}) as processes:
        import dask

        chosen = sorted(processes.addresses())[0]
        pid = processes.pids()[chosen]
        refresh, killed = Connection.refresh_workers, []

        def kill() -> None:
            import os
            import signal

            os.kill(pid, signal.SIGKILL)
            killed.append(chosen)

        def refresh_late(connection: Connection, *, recent: bool = False) -> KnownWorkers:
            """Return the lost worker once, as the scheduler does that has not noticed yet."""
            known = refresh(connection, recent=recent)
            return replace(known, usable=[killed.pop()], unusable={}) if killed and notices_late else known

        monkeypatch.setattr(Connection, "refresh_workers", refresh_late)
        with (
            dask.config.set({"dboost.worker-timeout": "4s", "dboost.patience": "5s"}),
            pytest.raises(dboost.DBoostError, match=r"no worker of workers=tcp.* has come for 4 s"),
        ):
            dboost.fit(lazily(), TARGET, client=processes.client, workers=chosen, callbacks=at(2, kill), **OPTIONS)


def test_an_asynchronous_client(expected: str) -> None:
    async def train() -> tuple[str, str]:
        async with (
            LocalCluster(n_workers=2, processes=False, dashboard_address=":0", asynchronous=True) as cluster,
            Client(cluster, asynchronous=True, set_as_default=False) as client,
        ):
            with pytest.raises(dboost.InputTypeError, match=r"await dboost\.fit_async"):
                dboost.fit(lazily(), TARGET, client=client, **OPTIONS)
            booster = await dboost.fit_async(lazily(), TARGET, client=client, **OPTIONS)
            alone = await dboost.fit_async(TABLE, TARGET, **OPTIONS)
            return booster.sha256, alone.sha256

    assert asyncio.run(train()) == (expected, expected)


def test_a_cancelled_fit_ends() -> None:
    iterations: list[int] = []

    async def train() -> None:
        fit = asyncio.create_task(
            dboost.fit_async(TABLE, TARGET, max_iter=100_000, callbacks=lambda now: iterations.append(now.iteration))
        )
        while len(iterations) < 3:
            await asyncio.sleep(0.01)
        fit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fit

    asyncio.run(train())  # waits for the thread, which would otherwise run for minutes
    assert len(iterations) < 50_000


def test_estimators_take_a_choice_of_workers(client: Client, expected: str) -> None:
    address = sorted(client.nthreads())[1]
    seen: list[set[str]] = []
    model = dboost.DBoostClassifier(
        client=client, workers=address, callbacks=workers_of(client, seen), early_stopping=False, random_state=0, **OPTIONS
    )
    features = TABLE.columns[:-1].tolist()
    model.fit(lazily()[features], lazily()[TARGET])
    assert seen and all(one == {address} for one in seen)
    assert (model.predict(TABLE[features]) == dboost.fit(TABLE, TARGET, **OPTIONS).predict(TABLE)).all()
    with pytest.raises(dboost.ParameterError, match="needs a cluster"):
        dboost.DBoostClassifier(workers=address, early_stopping=False, **OPTIONS).fit(TABLE[features], TABLE[TARGET])
