"""Lines: messages over sockets, and fits whose calls travel on them, over every kind of comm."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pytest
from distributed import Client
from distributed.comm import listen
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.cluster.scheduler.fit_calls import FitCalls
from dboost.cluster.transport import line, line_calls
from dboost.cluster.transport.line import Line, LineClosed, accept_line, open_line, packed
from dboost.cluster.transport.messages import OK, LostWorkers, SessionRef
from dboost.trees.tree_growth import RoundHistograms
from tests.helpers.clusters import Processes, a_table, hold_files, lines_cluster, release_files, until
from tests.helpers.examples import examples

FRAME = a_table(2000)
OPTIONS: dict[str, Any] = {"max_iter": 4, "max_leaf_nodes": 7, "progress": False}


@pytest.fixture
def lines() -> Iterator[tuple[Line, Line]]:
    one, other = (Line(end) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


@examples(60)
@given(
    contents=st.lists(st.tuples(st.binary(max_size=200), st.lists(st.integers(0, 1000), max_size=4)), min_size=1, max_size=6),
    piece=st.integers(1, 977),
)
def test_messages_arrive_whole_however_they_are_cut(contents: list[tuple[bytes, list[int]]], piece: int) -> None:
    """A reader that gets the bytes in pieces of any size finds the same messages, with aligned buffers."""
    sender, wire = socket.socketpair()
    feed, end = socket.socketpair()
    out, into = Line(sender), Line(end)
    with sender, wire, feed, end:
        found = []
        for number, (content, sizes) in enumerate(contents):
            buffers = [np.arange(size, dtype=np.float64) for size in sizes]
            out.send(number, number % 5, content, [memoryview(buffer).cast("B") for buffer in buffers])
            wire.setblocking(False)
            while True:
                try:
                    some = wire.recv(piece)
                except BlockingIOError:
                    break
                feed.sendall(some)
                message = into.poll()
                if message is not None:
                    found.append((message.number, message.kind, bytes(message.content)))
                    arrays = [np.frombuffer(buffer, np.float64) for buffer in message.buffers]
                    assert all(array.flags.aligned for array in arrays)
                    assert all(np.array_equal(a, b) for a, b in zip(arrays, buffers, strict=True))
        assert found == [(number, number % 5, content) for number, (content, _) in enumerate(contents)]


def test_arrays_travel_without_a_copy_in_the_pickle(lines: tuple[Line, Line]) -> None:
    one, other = lines
    histograms = np.arange(300_000, dtype=np.int32).reshape(3, 2, -1)
    content, buffers = packed((RoundHistograms(histograms, np.array([[1, 2]])), 5, 0.25))
    assert len(content) < 2000
    thread = threading.Thread(target=one.send, args=(7, 0, content, buffers))
    thread.start()
    message = other.receive()
    thread.join()
    answer, n_rows, seconds = message.unpack()
    assert (message.number, n_rows, seconds) == (7, 5, 0.25)
    assert (answer.histograms == histograms).all() and answer.histograms.dtype == np.int32
    assert np.shares_memory(answer.histograms, np.frombuffer(message.buffers[0], np.uint8))


def test_a_line_keeps_no_large_buffer(lines: tuple[Line, Line], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be idle until the end of the fit."""
    monkeypatch.setattr(line, "_KEPT_BYTES", 5000)
    here, there = lines
    for size, is_kept in ((4000, True), (8000, False), (100, True)):
        content = np.arange(size, dtype=np.uint8).tobytes()
        here.send(1, 2, content)
        message = there.receive()
        assert bytes(message.content) == content
        assert np.shares_memory(there._body, np.frombuffer(message.content, np.uint8)) is is_kept


def test_a_message_of_many_arrays(lines: tuple[Line, Line]) -> None:
    """Such as the sampled columns of many partitions."""
    here, there = lines
    arrays = [np.arange(k % 7) for k in range(600)]
    content, buffers = packed(arrays)
    here.send(1, 0, content, buffers)
    assert all(map(np.array_equal, there.receive().unpack(), arrays))


def test_a_message_that_is_given_its_memory_stays_valid(lines: tuple[Line, Line]) -> None:
    here, there = lines
    kept = []
    for value in range(3):
        here.send(value, 0, *packed(np.full(100, value)))
        message = there.receive()
        there.give_up_memory()
        kept.append(message)
    assert [message.unpack().tolist() for message in kept] == [[value] * 100 for value in range(3)]


def test_a_closed_end_is_noticed(lines: tuple[Line, Line]) -> None:
    one, other = lines
    one.send(1, 0, b"first")
    one.shut_down()
    assert bytes(other.receive().content) == b"first"
    with pytest.raises(LineClosed):
        other.receive()


def test_an_end_that_closes_in_the_middle_of_a_message_is_noticed() -> None:
    raw, end = socket.socketpair()
    line = Line(end)
    other = Line(socket.socketpair()[0])
    with raw:
        raw.sendall(b"\0" * 10)
        assert line.poll() is None
    with pytest.raises(LineClosed):
        line.receive()
    line.close()
    other.close()


def test_lines_to_other_workers_are_kept_when_one_is_lost(lines: tuple[Line, Line], monkeypatch: pytest.MonkeyPatch) -> None:
    lost, there = (SessionRef(f"tcp://10.0.0.{k}", "s") for k in (1, 2))

    async def open_worker_line(here: str, fit: str, ref: SessionRef, connection_args: dict[str, Any]) -> Line:
        if ref == lost:
            raise LostWorkers([ref])
        await asyncio.sleep(0.01)
        return lines[0]

    monkeypatch.setattr(line_calls, "open_worker_line", open_worker_line)
    opened = asyncio.run(line_calls.open_lines("here", "fit", [lost, there], {}))
    assert opened[there] is lines[0] and isinstance(opened[lost], LostWorkers)


def test_a_receiver_that_takes_nothing_is_given_up(lines: tuple[Line, Line]) -> None:
    with pytest.raises(TimeoutError, match="does not receive"):
        lines[0].send(1, 0, bytes(50_000_000), timeout=0.2)


def fit_on(client: Client, target: str = "z", **options: Any) -> dboost.Booster:
    return dboost.fit(dd.from_pandas(FRAME, npartitions=6), target, client=client, **OPTIONS | options)


@pytest.fixture(scope="module")
def expected() -> str:
    return dboost.fit(FRAME, "z", **OPTIONS).sha256


@pytest.mark.parametrize("protocol", ["inproc", "tls", "ws", pytest.param("wss", marks=pytest.mark.slow)])
def test_every_comm_of_dask_becomes_a_line(protocol: str, expected: str) -> None:
    """With relays, and slices that workers exchange. Afterwards no thread, socket or task of the lines is left."""
    settings = {"dboost.fan-in": 2, "dboost.gather-bytes": 0, "dboost.owner-bytes": 1}
    with dask.config.set(settings), lines_cluster(3, protocol) as client:
        assert fit_on(client).sha256 == expected
        # The connections of Dask still work, and a second fit has lines of its own.
        assert client.submit(sum, [1, 2]).result() == 3
        assert fit_on(client).sha256 == expected
        until(lambda: not line._carriers and "dboost-line" not in {thread.name for thread in threading.enumerate()})


async def _ends(protocol: str, comms: list[Any]) -> tuple[Any, list[Line], Line]:
    """Return a listener, the lines that it accepts, and a line to it."""
    accepted: list[Line] = []

    async def handle(comm: Any) -> None:
        comms.append(comm)
        await comm.read()
        await accept_line(comm, accepted.append)

    listener = await listen(f"{protocol}://" if protocol == "inproc" else f"{protocol}://127.0.0.1:0", handle)
    status, end = await open_line(listener.contact_address, {"op": "line"}, {})
    assert status == OK and end is not None
    while not accepted:
        await asyncio.sleep(0.01)
    return listener, accepted, end


@pytest.mark.parametrize("protocol", ["inproc", "tcp", "ws"])
@pytest.mark.parametrize("ending", ["shut down", "closed", "comm aborted"])
def test_a_line_over_any_comm_ends_at_both_ends(protocol: str, ending: str) -> None:
    async def check() -> None:
        comms: list[Any] = []
        listener, accepted, end = await _ends(protocol, comms)
        other, content = accepted[0], np.random.default_rng(0).bytes(3_000_000)
        receiving = asyncio.create_task(asyncio.to_thread(other.receive))
        await asyncio.to_thread(end.send, 1, 2, content)
        message = await receiving
        assert (message.number, message.kind, bytes(message.content)) == (1, 2, content)
        if ending == "comm aborted" and protocol == "ws":
            comms[0].abort()
        elif ending == "shut down":
            other.shut_down()
        else:
            other.close()
        with pytest.raises(LineClosed):
            await asyncio.to_thread(end.receive)
        end.close()
        while line._carriers:
            await asyncio.sleep(0.01)
        listener.stop()

    asyncio.run(asyncio.wait_for(check(), 30))


def count_rounds() -> None:
    """In the scheduler: note, whenever a call begins, how many are under way then."""
    FitCalls.under_way = []  # type: ignore[attr-defined]
    n_now = 0
    begin = FitCalls.begin

    def counted(calls: FitCalls, method: str, arguments: Any, *, follows: bool = False) -> Any:
        nonlocal n_now
        assert follows == (n_now > 0)
        wait = begin(calls, method, arguments, follows=follows)
        n_now += 1
        FitCalls.under_way.append(n_now)  # type: ignore[attr-defined]

        def ended(decode: Any) -> None:
            nonlocal n_now
            try:
                wait(decode)
            except LostWorkers:
                n_now = 0  # all calls are abandoned
                raise
            n_now -= 1

        return ended

    FitCalls.begin = counted  # type: ignore[method-assign]


def counted_rounds() -> list[int]:
    return list(FitCalls.under_way)  # type: ignore[attr-defined]


def test_rounds_overlap_where_the_scheduler_has_a_host_of_its_own() -> None:
    """Hosts are compared by their names: the client may know the scheduler by another address than the workers."""
    with Processes(2) as cluster:
        cluster.client.run_on_scheduler(count_rounds)
        under_way = []
        for host in (None, "another"):
            if host is not None:
                cluster.client.run(call_host, host)
                cluster.client.run_on_scheduler(forget_replies)
            dboost.fit(dd.from_pandas(FRAME, npartitions=6), "y", client=cluster.client, **OPTIONS | {"max_leaf_nodes": 31})
            under_way.append(max(cluster.client.run_on_scheduler(counted_rounds)))
    assert under_way == [1, 2]


def call_host(name: str) -> None:
    """Give this process another name of its host."""
    socket.gethostname = lambda: name


def forget_replies(dask_scheduler: Any) -> None:
    """In the scheduler: ping all workers again before the next fit."""
    dask_scheduler.plugins["dboost"]._versions.clear()


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process has more open files than `select` can wait for."""
    hold_files(1100)
    yield
    release_files()


@pytest.mark.slow
def test_processes_with_many_open_files_train(expected: str, many_files: None) -> None:
    """Descriptors from 1,024 on, in the client, the scheduler and the workers; with relays and with slices of histograms."""
    keys = {"FAN_IN": "2", "GATHER_BYTES": "0", "OWNER_BYTES": "1000"}
    with Processes(6, environment={f"DASK_DBOOST__{key}": value for key, value in keys.items()}) as cluster:
        cluster.client.run(hold_files, 1100)
        cluster.client.run_on_scheduler(hold_files, 1100)
        booster = fit_on(cluster.client)
        assert booster.sha256 == expected


@pytest.mark.parametrize(
    ("which", "told"),
    [
        pytest.param("worker", "worker tcp://.* has too many open files", marks=pytest.mark.slow),
        pytest.param("scheduler", "too many open files", marks=pytest.mark.slow),
    ],
)
def test_the_limit_of_open_files_is_named(which: str, told: str) -> None:
    """The process that may open no more files is the reason of the failure, not a lost worker or scheduler."""
    with Processes(2) as cluster:
        fit_on(cluster.client)
        run = cluster.client.run if which == "worker" else cluster.client.run_on_scheduler
        run(hold_files, 10, 0)
        with pytest.raises(dboost.DBoostError, match=f"{told}.*RLIMIT_NOFILE.*ulimit -n"):
            fit_on(cluster.client)
