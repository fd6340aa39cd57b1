"""`dboost.plan`: its memory is compared with the layout and the memory of real fits, in a process and on workers."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from distributed import Client

import dboost
from dboost import sizing
from dboost.cli import main
from dboost.cluster.client.worker_choice import KnownWorkers
from dboost.cluster.worker import host_trainers
from dboost.kernels.threads import usable_processors
from dboost.params import Parameters
from dboost.rows.shard import Shard
from dboost.session.hand_over import HandedRows
from dboost.session.memory import histogram_bytes, parse_memory_limit, resident_bytes
from dboost.session.partition_batch import RETAIN_BYTES
from dboost.session.session import Session
from dboost.training.plan import precision_of
from dboost.trees.grower_rows import GrowerRows
from dboost.trees.whole_trees import WholeTrees
from tests.helpers.clusters import a_table, lines_cluster

ROOT = Path(__file__).parents[2]
MIB, GIB = 2**20, 2**30


def test_the_layout_is_that_of_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    shards: list[Shard] = []
    begin: Callable[..., None] = WholeTrees.__init__

    def capture(grower: WholeTrees, rows: GrowerRows, shard: Shard) -> None:
        shards.append(shard)
        begin(grower, rows, shard)

    monkeypatch.setattr(WholeTrees, "__init__", capture)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 11))
    dboost.fit(X, rng.normal(size=3000), max_iter=1, n_threads=2, progress=False)
    (shard,) = shards
    planned = sizing._spec(3000, 11)
    assert resident_bytes(planned, 3000) == resident_bytes(shard.spec, 3000)
    assert histogram_bytes(planned, 2) == histogram_bytes(shard.spec, 2)
    arrays = [shard.codes.narrow, shard.tiles, shard.fields["target"], shard.raw, shard.gradient, shard.leaf]
    allocated = sum(array.nbytes for array in arrays if array is not None)
    whole = dboost.plan(3000, 11, workers=1, worker_threads=2).memory
    assert allocated < whole < 1.5 * allocated


PROGRAM = """
    import sys, threading, time
    import numpy as np, pandas as pd
    import dboost
    def anonymous():
        line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024
    def table(n, seed):
        rng = np.random.default_rng(seed)
        frame = pd.DataFrame(rng.normal(size=(n, {columns})), columns=[f"c{{j}}" for j in range({columns})])
        return frame.assign(y=frame["c0"] + rng.normal(size=n))
    for k in range({parts}):
        table({rows} // {parts}, k).to_parquet(f"{{sys.argv[1]}}/{{k}}.parquet")
    dboost.fit(f"{{sys.argv[1]}}/0.parquet", "y", max_iter=1, n_threads=2)
    before = most = anonymous()
    def watch():
        global most
        while True:
            most = max(most, anonymous())
            time.sleep(0.005)
    threading.Thread(target=watch, daemon=True).start()
    dboost.fit(f"{{sys.argv[1]}}/*.parquet", "y", max_iter=3, n_threads=2)
    print(most - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("rows", "columns", "parts"), [(1_000_000, 20, 3), (150_000, 200, 2)])
def test_memory_of_a_fit_in_one_process(rows: int, columns: int, parts: int, tmp_path: Path) -> None:
    """Measured memory is between a quarter and 1.4 times the plan, which is that of Dask's partitions; files take less."""
    script = textwrap.dedent(PROGRAM).format(rows=rows, columns=columns, parts=parts)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    measured = int(done.stdout)
    plan = dboost.plan(rows, columns, workers=1, worker_threads=2, worker_memory="64GiB")
    assert plan.memory_added / 4 < measured < 1.4 * plan.memory_added, f"{measured / MIB:.0f} MiB, planned: {plan}"


def generated(number: int, rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=(rows, columns + 1))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("per_host", [False, True])
def test_workers_of_the_planned_memory_keep_their_rows_in_memory(tmp_path: Path, per_host: bool) -> None:
    """With less than half of it rows are streamed, or, instead of one worker for the host, each trains on its own rows."""
    import dask.array as da
    from distributed import LocalCluster

    rows, columns = 3_000_000 if per_host else 1_500_000, 20
    parts = rows // 100_000
    if per_host:
        plan = planned(rows, hosts_of(1, 1, n_processors=len(usable_processors())), columns)
    else:
        plan = dboost.plan(rows, columns, workers=2, worker_threads=1)
    assert plan.in_memory
    shape = (rows // parts, columns + 1)
    lazy = da.concatenate([da.from_delayed(dask.delayed(generated)(k, shape[0], columns), shape, float) for k in range(parts)])
    bytes_read, n_sessions = {}, {}
    for limit in (plan.memory_per_worker, plan.memory_per_worker * (60 if per_host else 48) // 100):
        with (
            dask.config.set({"temporary-directory": str(tmp_path), "dboost.session-per-host": per_host}),
            LocalCluster(
                n_workers=2, threads_per_worker=1, memory_limit=limit, dashboard_address=":0", local_directory=tmp_path
            ) as cluster,
            Client(cluster) as client,
        ):
            before = client.run(os.getpid)
            booster = dboost.fit(lazy[:, :columns], lazy[:, columns], max_iter=2, progress=False)
            assert client.run(os.getpid) == before, "Dask killed no worker"
            bytes_read[limit] = int(booster.history["bytes_read"].sum())
            n_sessions[limit] = int(booster.history["workers"].max())
            if per_host or limit == plan.memory_per_worker:  # the plan refuses the other limit, in which the rows do not fit
                assert n_sessions[limit] == dboost.plan(rows, columns, client=client).trainers
            happened = [str(event) for address in before for _, event in client.get_events(address)]
            assert not any("paused" in event for event in happened)
    enough, too_little = bytes_read.values()
    assert enough == 0, "rows stay in memory with the planned limit"
    if per_host:
        assert list(n_sessions.values()) == [1, 2]
    else:
        assert too_little > 0, "rows are streamed with less than half of it"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with lines_cluster(3) as client:
        yield client


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of the rows that trainers receive, message by message."""
    found: list[int] = []
    receive = Session.receive

    @wraps(receive)
    def count(session: Session, batch: str, messages: Sequence[HandedRows]) -> None:
        for message in messages:
            found.append(sum(values.nbytes for rows in message.rows for values in rows.fields.values()))
        receive(session, batch, messages)

    monkeypatch.setattr(Session, "receive", count)
    return found


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_a_plan_of_a_cluster_is_that_of_a_fit(
    client: Client, received: list[int], monkeypatch: pytest.MonkeyPatch, hosts: int
) -> None:
    """Sessions and threads are those of the plan; bytes that are handed over within a tenth, rounds within a half."""
    n_processors = len(usable_processors())
    names = dict(
        zip(sorted(client.nthreads()), ["a", "b", "c"] if hosts == 3 else ["a", "a", "a" if hosts == 1 else "b"], strict=True)
    )
    monkeypatch.setattr(KnownWorkers, "host_of", lambda _, worker: names[worker])
    place = host_trainers._place_of

    def place_of(dask_worker: Any = None) -> host_trainers.WorkerPlace:
        return place(dask_worker)._replace(host=names[dask_worker.address])

    monkeypatch.setattr(host_trainers, "_place_of", place_of)
    frame = a_table(6000)[["a", "b", "c", "y"]]
    parts = [dask.delayed(frame.iloc[k : k + 500]) for k in range(0, 6000, 500)]
    events: list[dict] = []
    with dask.config.set({"dboost.session-per-host": True}):
        plan = dboost.plan(6000, 3, client=client)
        booster = dboost.fit(dd.from_delayed(parts, meta=frame.iloc[:0]), "y", max_iter=3, client=client, progress=False)
        events += [event for _, event in client.get_events("dboost") if event["action"] == "tree"][-2:]
    assert (plan.workers, plan.threads, plan.trainers) == (3, 1, hosts)
    assert set(booster.history["workers"]) == {plan.trainers}
    assert plan.trainer_threads == {1: min(3, n_processors), 2: min(2, n_processors), 3: 1}[hosts]
    assert sum(received) == pytest.approx(plan.handed_over, rel=0.1, abs=0 if hosts == 3 else 3000)
    n_rounds = [event["n_rounds"] for event in events]
    assert all(n == 1 if hosts == 1 else sizing.ROUNDS / 2 <= n + 2 <= 1.5 * sizing.ROUNDS for n in n_rounds)
    with dask.config.set({"dboost.session-per-host": False}):
        assert dboost.plan(6000, 3, client=client).trainers == 3


def hosts_of(*workers: int, n_processors: int = 8, memory: str = "16GiB", copies: int = 1) -> Counter:
    """Return equal hosts of workers with these threads."""
    some = tuple(sizing._Worker(n, parse_memory_limit(memory, "memory")) for n in workers)
    return Counter({sizing._Host(some, n_processors): copies})


def planned(rows: int, hosts: Counter, columns: int = 28) -> dboost.Plan:
    with dask.config.set({"dboost.session-per-host": True, "dboost.single-worker-values": 8_000_000}):
        return sizing._Fit(rows, sizing._spec(rows, columns), hosts).plan()


def test_rounds_and_bytes_are_those_of_hosts() -> None:
    one, apart = planned(10**6, hosts_of(1, 1)), planned(10**6, hosts_of(1, copies=2))
    assert (one.workers, one.trainers, one.trainer_threads) == (2, 1, 2)
    assert (apart.workers, apart.trainers, apart.trainer_threads, apart.handed_over) == (2, 2, 1, 0)
    assert one.handed_over == 36 * 10**6 // 2, "first raw scores are not sent"
    assert one.training_minutes == planned(10**6, hosts_of(2)).training_minutes < apart.training_minutes
    assert one.loading_minutes > apart.loading_minutes, "rows are handed over"
    assert planned(10**8, hosts_of(2, 2, n_processors=3, memory="64GiB")).trainer_threads == 3
    together, apart = planned(10**7, hosts_of(1, 1)), planned(10**7, hosts_of(1, copies=2))
    assert together.memory_added > 1.5 * apart.memory_added, "it has the rows of both"
    assert together.memory_per_worker > 1.3 * apart.memory_per_worker
    four = planned(10**7, hosts_of(1, 1, copies=4))
    assert (four.workers, four.trainers) == (8, 4)
    assert "4 × 2 threads" in str(four) and "handed over" in str(four)
    assert "handed over" not in str(apart)


def test_a_host_without_room_for_its_rows_has_a_session_for_each_worker() -> None:
    rows, hosts = 10**8, hosts_of(2, 2, memory="16GiB")
    full = planned(rows, hosts)
    assert (full.trainers, full.trainer_threads, full.handed_over, full.in_memory) == (2, 2, 0, True)
    assert planned(rows, hosts_of(2, 2, memory="64GiB")).trainers == 1
    (host,) = hosts
    assert planned(host.workers[0].spare.most_rows(sizing._spec(rows, 28), 8), hosts).trainers == 1, "the rule of the fits"
    one = planned(10**5, hosts_of(1, 1))
    assert (one.trainers, one.trainer_threads, one.handed_over) == (1, 2, 0), "a small table is not handed over"
    assert planned(10**4, hosts_of(1, 1)).trainer_threads == 1


def test_a_client_is_in_place_of_the_workers(client: Client) -> None:
    with pytest.raises(dboost.ParameterError, match="plan: leave out workers and worker_memory, or client"):
        dboost.plan(10**6, 28, workers=3, worker_memory="3GiB", client=client)
    with pytest.raises(dboost.InputTypeError):
        dboost.plan(10**6, 28, client="tcp://127.0.0.1:8786")


def test_the_number_of_workers_is_the_smallest() -> None:
    plan = dboost.plan(10**9, 28, worker_memory="32GiB", worker_threads=8)
    assert plan.in_memory
    assert plan.workers == 7, "as in the docstring"
    assert plan.memory_per_worker <= 32 * GIB
    fewer = dboost.plan(10**9, 28, worker_memory="32GiB", worker_threads=8, workers=plan.workers - 1)
    assert not fewer.in_memory
    assert fewer.disk_per_worker > plan.disk_per_worker


def test_what_the_plan_depends_on() -> None:
    plain = dboost.plan(10**7, 50, workers=4)
    assert dboost.plan(10**7, 50, workers=8).memory == plain.memory
    assert dboost.plan(10**7, 50, workers=8).memory_per_worker < plain.memory_per_worker
    assert dboost.plan(10**7, 50, workers=4, worker_threads=8).training_minutes < plain.training_minutes
    assert dboost.plan(10**7, 100, workers=4).memory > 1.4 * plain.memory
    assert dboost.plan(10**6, 50, workers=1).memory_added > RETAIN_BYTES
    assert plain.client_memory == dboost.plan(10**8, 50, workers=4).client_memory
    assert dboost.plan(10**6, 10**6, worker_memory="900GiB").disk_per_worker > 0, "not more columns than there may be"


def test_the_bytes_of_a_row_are_those_of_the_guide() -> None:
    """The numbers of docs/guide/sizing.md, for 64 columns: as many for the binned columns and for the tiles."""
    assert dboost.plan(10**6, 64, workers=1).memory == (64 + 64 + 37) * 10**6
    plain = sizing._spec(10**6, 64)

    def more(**change: object) -> float:
        return (resident_bytes(replace(plain, **change), 10**6) - resident_bytes(plain, 10**6)) / 10**6

    varying = {"constant_hessian": False, "n_channels": precision_of(Parameters(), False).n_channels}
    assert more(**varying) == 4
    assert more(**varying, weighted=True, integer_weights=False) == 4 + 8
    assert more(**varying, n_outputs=5) == -13 + 5 * 17


def test_the_example_of_data_larger_than_memory() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guide" / "large.md").read_text(encoding="utf-8")
    (gigabytes,) = re.findall(r"ten numeric columns of\s+a hundred million rows take ([\d.]+) GB", page)
    assert float(gigabytes) == round(dboost.plan(10**8, 10).memory / 1e9, 1)


def test_a_plan_is_a_frozen_record_that_prints() -> None:
    plan = dboost.plan(10**8, 28, worker_memory="32GiB")
    text = str(plan)
    assert text.splitlines()[0] == "100,000,000 rows × 28 columns, 100 iterations of 31 leaves"
    assert f"{plan.workers} × 4 threads" in text and "rows stay in memory" in text
    assert "<table" in plan._repr_html_() and "100,000,000" in plan._repr_html_()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.workers = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"rows": 0}, "rows=0"),
        ({"columns": 2.5}, "columns=2.5"),
        ({"rows": 28, "columns": 10**9}, "columns=1,000,000,000 is more than 1,000,000: give the rows first"),
        ({"workers": True}, "workers=True"),
        ({"worker_thread": 2}, "plan: unknown parameter 'worker_thread'"),
        (
            {"max_iter": 200},
            "plan: unknown parameter 'max_iter': the fit is that of the defaults, with 100 iterations. Memory hardly",
        ),
        ({"worker_memory": "much"}, "worker_memory='much'"),
        ({"worker_memory": "100MiB"}, "too small for trees of 31 leaves"),
        ({"worker_memory": "750MiB", "rows": 10**9}, "one for each of worker_threads"),
    ],
)
def test_invalid_values_are_errors(arguments: dict, complaint: str) -> None:
    with pytest.raises(dboost.ParameterError, match=complaint):
        dboost.plan(**{"rows": 10**6, "columns": 10} | arguments)


def test_one_worker_has_a_small_table() -> None:
    with dask.config.set({"dboost.single-worker-values": 8_000_000}):
        small = dboost.plan(200_000, 28, workers=4, worker_memory="8GiB")
        assert small.training_minutes == dboost.plan(200_000, 28, workers=1, worker_memory="8GiB").training_minutes
        large = dboost.plan(10**7, 28, workers=4, worker_memory="8GiB")
        assert large.training_minutes < dboost.plan(10**7, 28, workers=1, worker_memory="8GiB").training_minutes


TABLE = pd.DataFrame({"a": range(300), "t": ["x", "y", "z"] * 100, "y": range(300)})
TABLES = {
    "pandas": lambda _: TABLE,
    "arrow": lambda _: pa.Table.from_pandas(TABLE),
    "dask": lambda _: dd.from_pandas(TABLE, npartitions=3),
    "Parquet": lambda folder: written(TABLE.to_parquet, folder / "a.parquet"),
    "CSV": lambda folder: written(partial(TABLE.to_csv, index=False), folder / "a.csv"),
    "folder": lambda folder: str(written(TABLE.to_parquet, folder / "a.parquet").parent),
}


def written(write: Callable[[Path], Any], path: Path) -> Path:
    write(path)
    return path


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_in_place_of_its_size(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = TABLES[kind](tmp_path)
    assert dboost.plan(table, "y") == dboost.plan(table, ["y"]) == dboost.plan(300, 2)
    assert dboost.plan(table) == dboost.plan(300, 3)
    assert dboost.plan(table, "y", workers=3) == dboost.plan(300, 2, workers=3)
    with pytest.raises(dboost.DataError, match="target 'yy': the data have no such column; did you mean 'y'"):
        dboost.plan(table, "yy")
    if isinstance(table, str | Path):
        assert main(["plan", str(table), "--target", "y", "--worker-memory", "8GiB"]) == 0
        assert capsys.readouterr().out == f"{dboost.plan(300, 2, worker_memory='8GiB')}\n"
        assert main(["plan", str(table), "--target", "yy"]) == 2


def test_an_array_in_place_of_its_size() -> None:
    X = np.zeros((30, 2))
    assert dboost.plan(X, np.zeros(30)) == dboost.plan(X) == dboost.plan(scipy.sparse.csr_array(X)) == dboost.plan(30, 2)
    assert dboost.plan(da.from_array(X, chunks=10)) == dboost.plan(30, 2)
    with pytest.raises(dboost.ParameterError, match="columns is missing"):
        dboost.plan(1000)
    with pytest.raises(dboost.ParameterError, match="give the name of the target"):
        dboost.plan(TABLE, 2)
    with pytest.raises(dboost.DataError, match="0 rows"):
        dboost.plan(X[:0])
