"""Network traffic: rows of a table in memory are sent once; of rows on workers only statistics are sent."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from distributed import Client

import dboost
from dboost import DBoostClassifier, DBoostRegressor
from dboost.cluster.client import connection
from dboost.cluster.client.connection import Connection
from dboost.cluster.partitions import read_tasks
from dboost.cluster.transport.messages import AfterSteps, unpack
from dboost.session.session import Session
from tests.helpers.clusters import threads_cluster

N = 40_000
#: Calls whose results contain rows, but no more than the sample.
SAMPLES = {"described_rows"}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster(2, 4) as client:
        yield client


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of bytes that the client received, by method, or by the function that a method reads rows with."""
    found: Counter[str] = Counter()
    call = Connection._call

    def counting(self: Connection, operation: str, **arguments: Any) -> dict[str, Any]:
        reply = call(self, operation, **arguments)
        method = arguments.get("method", operation)
        if method == Session.ask.__name__:
            given = unpack(arguments["arguments"][0])
            _, question, _ = given.arguments if isinstance(given, AfterSteps) else given
            method = question.__name__
        found[method] += len(pickle.dumps(reply))
        return reply

    monkeypatch.setattr(Connection, "_call", counting)
    return found


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of what the client packed."""
    sizes: list[int] = []
    for module in (read_tasks, connection):
        pack = module.pack

        def counting(message: Any, pack: Any = pack) -> bytes:
            packed = pack(message)
            sizes.append(len(packed))
            return packed

        monkeypatch.setattr(module, "pack", counting)
    return sizes


CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "plain": (DBoostRegressor, {"early_stopping": False}),
    "both": (DBoostClassifier, {"early_stopping": True, "class_weight": "balanced"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_client_receives_no_more_of_more_rows(client: Client, received: Counter[str], case: str) -> None:
    kind, options = CASES[case]
    totals = []
    for n in (20_000, 200_000):
        values = np.random.default_rng(0).normal(size=(n, 2))
        score = values[:, 0] + values[:, 1] ** 2
        y = score if kind is DBoostRegressor else np.digitize(score, (-0.5, 1.0))
        X, weight = da.from_array(values, chunks=(n // 4, 2)), da.from_array(np.arange(n) % 3, chunks=n // 4)
        kind(client=client, max_iter=2, random_state=0, **options).fit(X, da.from_array(y, chunks=n // 4), weight)
        totals.append({method: size for method, size in received.items() if method not in SAMPLES})
        received.clear()
    few, many = totals
    assert {method: size for method, size in many.items() if size > 1.5 * few.get(method, 0) + 4096} == {}
    assert sum(many.values()) < 200_000, "not a byte for each row"


def test_a_load_takes_few_calls(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes two round trips, of client, scheduler and workers; changes of rows travel with the next call."""
    calls: list[str] = []
    call = Connection._call

    def counting(self: Connection, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation != "dboost_workers":  # whose reply is used for a second
            calls.append(arguments.get("method", operation))
        return call(self, operation, **arguments)

    monkeypatch.setattr(Connection, "_call", counting)
    frame = pd.DataFrame({"a": np.arange(4000) % 97, "y": np.arange(4000) % 2})
    alone = dboost.fit(frame, "y", max_iter=1, progress=False)
    booster = dboost.fit(dd.from_pandas(frame, npartitions=4), "y", max_iter=1, progress=False, client=client)
    assert booster.sha256 == alone.sha256
    reading = ["scan_partitions", "ask", "propose_splits", "ask", "build"]
    assert calls == ["dboost_open", *reading, "advance_to", "dboost_grow", "advance_to", "dboost_end"]


def wide() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(N, 3)), columns=["a", "b", "c"])
    frame["d"] = rng.choice(["alpha", "beta", "a longer name"], N)
    return frame.assign(e=frame["d"].astype("category"))


def tables() -> dict[str, Any]:
    frame = wide()
    numbers = frame[["a", "b", "c"]].to_numpy()
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    levels = pd.MultiIndex.from_arrays([[f"row {i}" for i in range(N)], np.arange(N)])
    return {
        "numpy": numbers,
        "columns": np.asfortranarray(numbers),
        "every other row": np.repeat(numbers, 2, axis=0)[::2],
        "masked": np.ma.masked_array(numbers, numbers > 1.5),
        "pandas": frame,
        "pandas with Arrow's columns": arrow.to_pandas(types_mapper=pd.ArrowDtype),
        "pandas with a long index": frame.set_index(levels),
        "polars": pl.from_arrow(arrow),
        "part of a polars frame": pl.from_arrow(pa.concat_tables([arrow] * 3)).slice(N, N),
        "arrow": arrow,
        "arrow in batches": pa.Table.from_batches(arrow.to_batches(max_chunksize=999)),
        "arrow batch": pa.RecordBatch.from_pandas(frame, preserve_index=False),
        "part of an arrow table": pa.concat_tables([arrow] * 3).slice(N, N),
    }


def own_size(data: Any) -> int:
    if isinstance(data, np.ndarray):
        return data.nbytes + (np.ma.getmaskarray(data).nbytes if np.ma.isMaskedArray(data) else 0)
    # Text and category codes take at most what Arrow or polars, whichever needs more, uses for them.
    return pl.from_arrow(pa.Table.from_pandas(wide(), preserve_index=False)).estimated_size() + 12 * N


@pytest.mark.fast_cells(6)
@pytest.mark.parametrize("kind", tables())
def test_rows_in_memory_travel_once(client: Client, sent: list[int], kind: str) -> None:
    data, y = tables()[kind], wide()["a"].to_numpy() ** 2
    target: Any = pa.chunked_array([y]) if kind in ("pandas", "arrow") else pd.Series(y, index=np.arange(N)[::-1])
    alone = dboost.fit(data, target, max_iter=2, progress=False)
    sent.clear()
    together = dboost.fit(data, target, max_iter=2, progress=False, client=client)
    assert together.sha256 == alone.sha256
    assert 8 * N < sum(sent) < 1.05 * (own_size(data) + 8 * N) + 100_000


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_columns_that_are_not_read_stay(client: Client, sent: list[int], kind: str) -> None:
    data, y = tables()[kind], wide()["b"].to_numpy()
    alone = dboost.fit(data, y, features=["c", "a"], max_iter=2, progress=False)
    sent.clear()
    together = dboost.fit(data, y, features=["c", "a"], max_iter=2, progress=False, client=client)
    assert together.sha256 == alone.sha256
    assert 24 * N < sum(sent) < 1.05 * 24 * N + 100_000


def test_a_lazy_polars_frame_is_collected_once(client: Client) -> None:
    seen = []

    def look(frame: pl.DataFrame) -> pl.DataFrame:
        seen.append(frame.height)
        return frame

    lazy = pl.from_pandas(wide()).lazy().map_batches(look)
    booster = dboost.fit(lazy, "a", max_iter=2, progress=False, client=client)
    assert seen.count(N) == 1
    assert booster.sha256 == dboost.fit(wide(), "a", max_iter=2, progress=False).sha256


def test_tasks_hold_their_own_rows_only(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the packed pieces are sent: no task contains the whole table beside its piece."""
    from distributed.protocol import pickle as dask_pickle

    sizes: list[int] = []
    get = client.get

    def counting(graph: dict[Any, Any], *arguments: Any, **options: Any) -> Any:
        sizes.extend(len(dask_pickle.dumps(task)) for task in graph.values())
        return get(graph, *arguments, **options)

    monkeypatch.setattr(client, "get", counting)
    data = tables()["arrow"]
    dboost.fit(data, "a", max_iter=2, progress=False, client=client)
    assert len(sizes) >= 8
    assert sum(sizes) < 1.05 * data.nbytes + 200_000
    assert max(sizes) < data.nbytes / 4


def test_data_in_workers_stay_there(client: Client, sent: list[int]) -> None:
    dboost.fit(dd.from_pandas(wide(), npartitions=4), "a", max_iter=2, progress=False, client=client)
    assert sum(sent) < 200_000
