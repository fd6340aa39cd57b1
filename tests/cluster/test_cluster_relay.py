"""Relays: with more sessions than `dboost.fan-in`, some collect the answers of others. The model is that of one process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.cluster.scheduler.fit_calls import FitCalls
from dboost.cluster.training import cluster_backend
from dboost.cluster.transport.line import Line
from dboost.cluster.transport.line_calls import METHODS, STATUSES, Decode
from dboost.cluster.transport.messages import LOST, OK, FitCancelled, SessionRef, pack_round
from dboost.cluster.transport.messages import unpack as unpacked
from dboost.cluster.transport.relay import Relay
from dboost.cluster.transport.round_sums import RoundSums
from dboost.cluster.transport.session_tree import Arguments, Branch, buffers_of, tree_of
from dboost.trees.tree_growth import RoundHistograms
from tests.helpers.clusters import a_table, last_events, lines_cluster
from tests.helpers.on_workers import Squares

FRAME = a_table(1500)
OPTIONS: dict[str, Any] = {"max_iter": 4, "max_leaf_nodes": 7, "progress": False}


@given(n=st.integers(0, 300), fan_in=st.integers(2, 20))
def test_the_tree_has_every_session_once_and_no_wide_one(n: int, fan_in: int) -> None:
    refs = tuple(SessionRef(f"tcp://10.0.0.{k}", str(k)) for k in range(n))
    found: list[SessionRef] = []
    level, depth = list(tree_of(refs, fan_in)), 0
    while level:
        assert depth or len(level) == min(n, fan_in)
        depth += 1
        found += [branch.ref for branch in level]
        below: list[Branch] = []
        for branch in level:
            if branch.below:
                branches = tree_of(*unpacked(branch.passed_on))
                assert 0 < len(branches) <= fan_in
                assert set(branch.below) == {ref for one in branches for ref in (one.ref, *one.below)}
                below += branches
            else:
                assert not branch.passed_on
        level = below
    assert sorted(found) == sorted(refs)
    assert depth <= 1 + np.ceil(np.log(max(n, 1)) / np.log(fan_in))


@pytest.mark.parametrize("how", ["another call", "a closed line"])
def test_a_call_that_is_given_up_ends_the_waiting_of_its_exchange(how: str) -> None:
    reducer, here = (Line(end) for end in socket.socketpair())
    relay = Relay(here, SessionRef("tcp://10.0.0.1", "s"), lambda missing: {})
    relay.check_others(1)
    if how == "another call":
        reducer.send(2, 0, b"")
    else:
        reducer.close()
    with pytest.raises(FitCancelled):
        relay.check_others(1)
    relay.close()
    reducer.close()


class ARelay:
    """A relay between a reducer and one session below it; each end is a line of the test."""

    def __init__(self) -> None:
        self.reducer, here = (Line(end) for end in socket.socketpair())
        self.below, to_below = (Line(end) for end in socket.socketpair())
        ref = SessionRef("tcp://10.0.0.2", "t")
        self.here, self.ref = SessionRef("tcp://10.0.0.1", "s"), ref
        self.relay = Relay(here, self.here, lambda missing: dict.fromkeys(missing, to_below))
        self.branch = Branch(self.here, (ref,), pack_round(((ref,), 2)))
        self.executed: list[int] = []
        self.results: list[tuple[str, Any]] = []

    def request(self, number: int, *, follows: bool) -> None:
        self.reducer.send(number, METHODS.index("assign_leaves"), b"%d" % number, buffers_of(self.branch, follows))

    def serve(self, n: int) -> threading.Thread:
        """Answer n requests in a thread."""

        def run() -> None:
            for _ in range(n):
                message = self.relay.receive()
                assert bytes(message.content) == b"%d" % message.number

                def execute(number: int = message.number) -> tuple[str, Any]:
                    self.executed.append(number)
                    return OK, b"here %d" % number

                self.results.append(self.relay.call(message, execute))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def received(self) -> tuple[int, bytes]:
        message = self.below.receive(20.0, lambda: pytest.fail("no request has been passed on"))
        return message.number, bytes(message.content)

    def answer(self, number: int) -> None:
        self.below.send(number, STATUSES.index(OK), b"below %d" % number)

    def expected(self, number: int) -> tuple[str, Any]:
        return OK, {self.here: b"here %d" % number, self.ref: b"below %d" % number}

    def close(self) -> None:
        self.relay.close()
        self.reducer.close()
        self.below.close()


@pytest.fixture
def a_relay() -> Iterator[ARelay]:
    found = ARelay()
    yield found
    found.close()


def test_a_request_that_follows_is_passed_on_before_the_answers_of_the_call_before(a_relay: ARelay) -> None:
    serving = a_relay.serve(3)
    a_relay.request(5, follows=False)
    assert a_relay.received() == (5, b"5")
    a_relay.request(6, follows=True)
    assert a_relay.received() == (6, b"6")  # nothing has been answered
    a_relay.answer(5)
    a_relay.request(7, follows=True)
    assert a_relay.received() == (7, b"7")
    a_relay.answer(6)
    a_relay.answer(7)
    serving.join(20)
    assert a_relay.executed == [5, 6, 7]
    assert a_relay.results == [a_relay.expected(number) for number in (5, 6, 7)]
    assert a_relay.below.poll() is None  # each was passed on once


def test_a_request_that_follows_no_call_ends_the_calls_before(a_relay: ARelay) -> None:
    serving = a_relay.serve(2)
    a_relay.request(5, follows=False)
    a_relay.request(6, follows=True)
    assert [a_relay.received()[0] for _ in range(2)] == [5, 6]
    a_relay.request(9, follows=False)  # those before are never answered in time
    a_relay.answer(5)
    a_relay.answer(6)
    assert a_relay.received() == (9, b"9")
    a_relay.answer(9)
    serving.join(20)
    assert 6 not in a_relay.executed or a_relay.executed == [5, 6, 9]
    assert a_relay.results[-1] == a_relay.expected(9) and len(a_relay.results) == 2


def test_requests_that_arrive_during_a_call_are_received_in_order(a_relay: ARelay) -> None:
    for number in (5, 6, 7):
        a_relay.request(number, follows=number > 5)
    a_relay.relay.clear()  # as a call does that waits
    assert [a_relay.relay.receive().number for _ in range(3)] == [5, 6, 7]


def test_requests_that_wait_together_are_passed_on_in_order(a_relay: ARelay) -> None:
    """As after a call that was given up: the next one and its follower have arrived, and its branches are known."""
    serving = a_relay.serve(1)
    a_relay.request(4, follows=False)
    a_relay.answer(a_relay.received()[0])
    serving.join(20)
    for number in (5, 6):
        a_relay.request(number, follows=number > 5)
    a_relay.relay.clear()
    serving = a_relay.serve(2)
    assert [a_relay.received()[0] for _ in range(2)] == [5, 6]
    for number in (5, 6):
        a_relay.answer(number)
    serving.join(20)
    assert a_relay.results[1:] == [a_relay.expected(number) for number in (5, 6)]


def test_a_session_below_is_lost_while_two_calls_are_under_way(a_relay: ARelay) -> None:
    serving = a_relay.serve(2)
    a_relay.request(5, follows=False)
    a_relay.request(6, follows=True)
    assert [a_relay.received()[0] for _ in range(2)] == [5, 6]
    a_relay.answer(5)
    a_relay.below.close()
    serving.join(20)
    assert a_relay.results == [a_relay.expected(5), (LOST, [a_relay.ref])]


def test_sums_that_do_not_fit_32_bits_are_passed_on_as_they_are() -> None:
    sums = RoundSums()
    for worker in "ab":
        large, small = np.full((1, 2, 3), 2**31 - 1, np.int32), np.full((2, 2, 3), 7, np.int32)
        answers = {0: RoundHistograms(large, np.array([[3, 4]])), 1: RoundHistograms(small, np.array([[1, 0]]))}
        sums.add_answer(SessionRef(worker, worker), answers, [7], 0.5)
    assert (large == 2**31 - 1).all() and (small == 7).all()  # the answer that was added last
    merged = sums.merged(np.empty(18, np.int32))
    assert merged[0].histograms.dtype == np.float64 and (merged[0].histograms == 2**32 - 2).all()
    assert merged[1].histograms.dtype == np.int32 and (merged[1].histograms == 14).all()
    assert merged[0].n_rows.tolist() == [[6, 8]] and sums.rows == {SessionRef(worker, worker): [7] for worker in "ab"}


@pytest.mark.slow
def test_a_relay_of_relays_and_an_evaluation_set(monkeypatch: pytest.MonkeyPatch) -> None:
    target, fan_in = "t", 2
    held_out = FRAME[::3].drop(columns=sorted({"y", "z", "t"} & set(FRAME) - {target}))
    table = FRAME.drop(columns=sorted({"y", "z", "t"} & set(FRAME) - {target}))
    here = dboost.fit(table, target, eval_set=held_out, **OPTIONS)
    with dask.config.set({"dboost.fan-in": fan_in}), lines_cluster(7) as client:
        data = dd.from_pandas(table, npartitions=9)
        there = dboost.fit(data, target, eval_set=held_out, client=client, **OPTIONS)
        assert {event["branches"] for event in last_events(client, "tree")} == {fan_in}
        follow: list[bool] = []
        begin = FitCalls.begin

        def noted(
            calls: FitCalls, method: str, arguments: Mapping[Branch, Arguments], *, follows: bool = False
        ) -> Callable[[Decode], None]:
            follow.append(follows)
            return begin(calls, method, arguments, follows=follows)

        monkeypatch.setattr(FitCalls, "begin", noted)
        monkeypatch.setattr(cluster_backend, "rounds_in_flight", lambda scheduler, workers: 2)  # as if on other hosts
        overlapping = dboost.fit(data, target, eval_set=held_out, client=client, **OPTIONS)
        assert any(follow)
    assert overlapping.sha256 == here.sha256
    assert there.sha256 == here.sha256
    seconds = [column for column in there.history if "seconds" in column]
    shared = [column for column in there.history if column in here.history and column not in seconds]
    assert there.history[shared].equals(here.history[shared])


class FailsSomewhere(Squares):
    """Its gradient fails on one range of rows once a tree has grown."""

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        if y.max() > 1e6 and len(np.unique(raw)) > 1:
            raise ValueError("no gradient today")
        return super().gradient(y, raw)


def test_an_error_below_a_relay_names_its_worker() -> None:
    frame = FRAME.assign(z=np.where(np.arange(1500) == 1499, 1e7, FRAME["z"]))
    with dask.config.set({"dboost.fan-in": 2}), lines_cluster(6) as client:
        data = client.persist(dd.from_pandas(frame, npartitions=6))
        with pytest.raises(dboost.DBoostError, match=r"worker tcp://.* failed: ValueError: no gradient today"):
            dboost.fit(data, "z", loss=FailsSomewhere(), client=client, **OPTIONS)
        assert dboost.fit(dd.from_pandas(FRAME, npartitions=6), "y", client=client, **OPTIONS) == dboost.fit(
            FRAME, "y", **OPTIONS
        )
