"""Of the errors of several sessions or partitions that of the first row is raised, whichever arrives first."""

from __future__ import annotations

import functools
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.cluster.transport.line import Line, packed
from dboost.cluster.transport.line_calls import METHODS, STATUSES, LineCalls
from dboost.cluster.transport.messages import (
    FAILED,
    LOST,
    OK,
    LostWorkers,
    SessionRef,
    WorkerFailed,
    pack,
    pack_error,
    pack_round,
    unpack_error,
)
from dboost.cluster.transport.relay import Relay
from dboost.cluster.transport.session_tree import answers_of, for_all, tree_of
from dboost.errors import DataError
from dboost.session.session import Session
from dboost.session.table_rows import TableRows
from tests.helpers.clusters import Processes, lines_cluster, threads_cluster
from tests.helpers.examples import examples

N_ROWS = 600
OPTIONS: dict[str, Any] = {"max_iter": 2, "max_leaf_nodes": 3, "progress": False}


def table() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    rows = pd.DataFrame({"a": rng.normal(size=N_ROWS), "b": rng.normal(size=N_ROWS), "w": np.ones(N_ROWS)})
    return rows.assign(y=np.arange(N_ROWS) % 5 * 1.0, z=np.arange(N_ROWS) % 3)


NUMBERS, ODD, EVERY = np.arange(N_ROWS), np.arange(N_ROWS) % 2 == 1, np.ones(N_ROWS, bool)
#: Columns with the values that make rows invalid, and in which of the spoilt rows they are.
MISTAKES: dict[str, list[tuple[str, Any, np.ndarray]]] = {
    "negative target": [("y", -1.0 - NUMBERS, EVERY)],
    "infinite feature": [("b", np.inf, EVERY)],
    "infinite features": [("b", np.inf, ODD), ("a", np.inf, ~ODD)],
    "negative weight": [("w", -1.0, EVERY)],
    "negative weight and missing target": [("w", -1.0, ODD), ("y", np.nan, ~ODD)],
    "unknown classes": [("z", 10 + NUMBERS % 7, EVERY)],
    "fractions": [("z", 10 + NUMBERS / 8, EVERY)],
}


def spoilt(mistake: str, is_spoilt: np.ndarray) -> pd.DataFrame:
    """Return the table with a mistake in some rows."""
    rows = table()
    for column, values, where in MISTAKES[mistake]:
        rows[column] = np.where(is_spoilt & where, values, rows[column])
    return rows


@functools.cache
def earlier() -> dboost.Booster:
    return dboost.fit(table()[["a", "b", "w", "z"]], "z", loss="log_loss", **OPTIONS)


@st.composite
def invalid_tables(draw: Any) -> tuple[str, list[pd.DataFrame]]:
    """A mistake, and the partitions of a table with it in some rows."""
    mistake, is_spoilt = draw(st.sampled_from(sorted(MISTAKES))), np.zeros(N_ROWS, bool)
    is_spoilt[draw(st.lists(st.integers(0, N_ROWS - 1), min_size=1, max_size=6))] = True
    rows = spoilt(mistake, is_spoilt)
    bounds = sorted({0, N_ROWS, *draw(st.lists(st.integers(1, N_ROWS - 1), max_size=6))})
    return mistake, [rows[a:b] for a, b in itertools.pairwise(bounds)]


def lazy_table(parts: Sequence[pd.DataFrame]) -> Any:
    return dd.from_map(lambda i: parts[i], range(len(parts)), meta=parts[0].iloc[:0])


def error_of(mistake: str, parts: Sequence[pd.DataFrame], client: Client | None = None, **options: Any) -> str:
    """Return the error of a fit."""
    lazy = lazy_table(parts)
    classes = mistake in ("unknown classes", "fractions")
    lazy = lazy[["a", "b", "w", "z"]] if classes else lazy[["a", "b", "w", "y"]]
    how: dict[str, Any] = {"loss": "log_loss", "start_from": earlier()} if classes else {"loss": "tweedie"}
    if "weight" in mistake:
        how["sample_weight"] = "w"
    with pytest.raises(dboost.DBoostError) as caught:
        dboost.fit(lazy, "z" if classes else "y", client=client, **how, **OPTIONS, **options)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.fixture(scope="module")
def two() -> Iterator[Client]:
    with threads_cluster(2, 2) as client:
        yield client


@pytest.fixture(scope="module")
def five() -> Iterator[Client]:
    with lines_cluster(5) as client:
        yield client


@examples(12)
@given(found=invalid_tables(), how=st.sampled_from(["two", "five", "five, relays"]))
def test_errors_are_those_of_one_process(two: Client, five: Client, found: tuple[str, list[pd.DataFrame]], how: str) -> None:
    mistake, parts = found
    expected = error_of(mistake, parts)
    fan_in = 2 if how == "five, relays" else 64
    with dask.config.set({"dboost.single-worker-values": 0, "dboost.fan-in": fan_in}):
        assert error_of(mistake, parts, two if how == "two" else five) == expected


@pytest.mark.parametrize("mistake", ["negative target", "unknown classes"])
def test_a_slow_worker_is_waited_for(two: Client, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    """The session with the first partition is the last one to answer."""
    rows = spoilt(mistake, NUMBERS >= 2)
    parts = [rows[a : a + 100] for a in range(0, N_ROWS, 100)]
    expected = error_of(mistake, parts)
    encode, answered = TableRows.encode_targets, list[int]()

    @functools.wraps(encode)
    def slow(self: TableRows, target: Any) -> None:
        if 0 in self.table.partition_ids:
            time.sleep(1.0)
        answered.append(min(self.table.partition_ids))
        encode(self, target)

    monkeypatch.setattr(TableRows, "encode_targets", slow)
    with dask.config.set({"dboost.single-worker-values": 0}):
        assert error_of(mistake, parts, two) == expected
    assert answered[-1] == 0 and len(answered) == 2


@pytest.mark.parametrize("place", ["threads", "cluster"])
@pytest.mark.parametrize("what", ["source", "values"])
def test_the_first_partition_that_cannot_be_read_is_named(two: Client, place: str, what: str) -> None:
    """Later partitions fail at once, and earlier ones are slow."""
    rows = table()[["a", "b", "y"]]

    def part(i: int) -> pd.DataFrame:
        time.sleep(0.0 if i > 2 else 0.4)
        if i < 2:
            return rows[100 * i : 100 * i + 100]
        if what == "source":
            raise RuntimeError(f"no rows in {i}")
        return rows[100 * i : 100 * i + 100].assign(b=pd.Timestamp("2020-01-01"))

    lazy = dd.from_map(part, range(6), meta=rows.iloc[:0])
    client = two if place == "cluster" else None
    with pytest.raises(Exception) as caught:
        dboost.fit(lazy, "y", n_threads=None if client else 4, client=client, **OPTIONS)
    told = [str(caught.value), *getattr(caught.value, "__notes__", ())]
    assert any("partition 2" in one for one in told) and not any(f"partition {i}" in one for i in (3, 4, 5) for one in told), (
        told
    )
    assert what == "values" or "no rows in 2" in told[0]


@pytest.mark.slow
def test_a_worker_that_is_lost_while_it_is_waited_for(tmp_path: Path) -> None:
    """The other worker reads its rows, and the call is repeated until the errors of all rows are known."""
    rows = table()[["a", "b", "y"]].assign(y=lambda frame: -1.0 - frame["y"])
    parts = [rows[a : a + 100] for a in range(0, N_ROWS, 100)]
    expected = error_of("negative target", [part.assign(w=1.0) for part in parts])
    with Processes(2) as processes:
        processes.client.run(end_process_once, tmp_path / "ended")
        with dask.config.set({"dboost.single-worker-values": 0}):
            lazy = lazy_table(parts)
            with pytest.raises(DataError) as caught:
                dboost.fit(lazy, "y", loss="tweedie", client=processes.client, **OPTIONS)
        assert f"DataError: {caught.value}" == expected and (tmp_path / "ended").exists()


def end_process_once(flag: Path) -> None:
    """Have the process whose session has partition 0 end when it encodes the target, once."""
    encode = TableRows.encode_targets

    @functools.wraps(encode)
    def ending(self: TableRows, target: Any) -> None:
        if 0 in self.table.partition_ids and not flag.exists():
            flag.touch()
            time.sleep(1.0)
            os._exit(1)
        encode(self, target)

    TableRows.encode_targets = ending  # type: ignore[method-assign]


# Lines and relays, with sessions that answer as a test says.


class NoGuard:
    """A guard that never ends a call."""

    def __init__(self) -> None:
        self.receiver, self.sender = socket.socketpair()

    def fileno(self) -> int:
        return self.receiver.fileno()

    def clear(self) -> None:
        pass

    def check(self, refs: Sequence[SessionRef]) -> None:
        pass

    check_silent = check


class Sessions:
    """Sessions that answer a call after a pause, each with a status.

    answers : pause, and True, LOST, or the position of an error, by session.
    """

    def __init__(self, answers: Mapping[SessionRef, tuple[float, Any]]) -> None:
        self.answers = answers

    def open_lines(self, refs: Sequence[SessionRef]) -> dict[SessionRef, Line | BaseException]:
        found: dict[SessionRef, Line | BaseException] = {}
        for ref in refs:
            ours, theirs = map(Line, socket.socketpair())
            found[ref] = ours
            threading.Thread(target=self.serve, args=(ref, theirs), daemon=True).start()
        return found

    def serve(self, ref: SessionRef, line: Line) -> None:
        relay = Relay(line, ref, self.open_lines)
        try:
            while True:
                message = relay.receive()
                is_relayed = bool(message.buffers)
                execute = functools.partial(self.execute, ref)
                status, answer = relay.call(message, execute) if is_relayed else execute()
                line.send(message.number, STATUSES.index(status), *(packed(answer) if is_relayed else (answer, [])))
        except OSError:
            relay.close()

    def execute(self, ref: SessionRef) -> tuple[str, Any]:
        pause, answer = self.answers[ref]
        time.sleep(pause)
        if answer is True:
            return OK, pack(ref.worker)
        if answer == LOST:
            return LOST, pack_round([ref])
        return FAILED, pack_error(DataError(f"row {answer}").at(answer))


ANSWERS = st.tuples(
    st.sampled_from([0.0, 0.0, 0.02]),
    st.one_of(st.just(True), st.tuples(st.integers(0, 9), st.integers(0, 9)), st.tuples(st.integers(0, 9), st.integers(0, 9))),
)


@examples(40)
@given(drawn=st.lists(ANSWERS, min_size=1, max_size=9), fan_in=st.sampled_from([2, 3, 20]), lost=st.none() | st.integers(0, 8))
def test_lines_and_relays_pass_on_the_error_of_the_first_row(drawn: list[Any], fan_in: int, lost: int | None) -> None:
    refs = tuple(SessionRef(f"tcp://10.0.0.{k}", str(k)) for k in range(len(drawn)))
    answers = dict(zip(refs, drawn, strict=True))
    if lost is not None and lost < len(refs):
        answers[refs[lost]] = (0.02, LOST)
    sessions, calls, branches = Sessions(answers), LineCalls(NoGuard()), tree_of(refs, fan_in)
    calls.add(sessions.open_lines([branch.ref for branch in branches]))
    found: dict[SessionRef, bytes] = {}
    try:
        calls.send(1, METHODS.index(Session.ask.__name__), for_all(branches, b""))
        positions = [answer for _, answer in answers.values() if isinstance(answer, tuple)]
        if LOST in [answer for _, answer in answers.values()]:
            with pytest.raises(LostWorkers):
                calls.receive(1, branches, lambda ref, message: None)
        elif positions:
            with pytest.raises(WorkerFailed) as caught:
                calls.receive(1, branches, lambda ref, message: None)
            assert str(unpack_error(caught.value.error)) == f"row {min(positions)}"
            assert answers[next(ref for ref in refs if ref.worker == caught.value.address)][1] == min(positions)
        else:
            calls.receive(1, branches, lambda ref, message: found.update(answers_of(ref, message, branches)))
            assert set(found) == set(refs)
    finally:
        calls.close()


def test_an_error_of_no_row_is_raised_at_once() -> None:
    """Other sessions may wait for the one that failed, so nothing waits for their answers."""
    refs = tuple(SessionRef(f"tcp://10.0.0.{k}", str(k)) for k in range(3))
    sessions = Sessions({refs[0]: (60.0, True), refs[1]: (0.0, None), refs[2]: (60.0, (0, 0))})
    calls, branches = LineCalls(NoGuard()), tree_of(refs, 20)
    calls.add(sessions.open_lines(refs))
    began = time.monotonic()
    calls.send(1, METHODS.index(Session.ask.__name__), for_all(branches, b""))
    with pytest.raises(WorkerFailed):
        calls.receive(1, branches, lambda ref, message: None)
    assert time.monotonic() - began < 30
    calls.close()
