"""Relays: with more sessions than `dboost.fan-in`, some collect the answers of others. The model is that of one process."""

from __future__ import annotations

import itertools
import socket
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.distributed import worker_plugin
from dboost.distributed.line import Line
from dboost.distributed.messages import FitCancelled
from dboost.distributed.worker_calls import Branch, Relay, RoundSums, tree_of
from dboost.losses import Loss
from dboost.session.calls import SessionRef
from dboost.session.calls import unpack as unpacked
from dboost.trees.grower import RoundHistograms
from tests.helpers.clusters import a_table, lines_cluster

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


def fit(client: Client, **options: Any) -> dboost.Booster:
    """Fit with as many partitions as there are workers or more, some of them empty."""
    bounds = [0, 0, 200, 201, 400, 700, 700, 900, 1000, 1300, 1500]
    data = dd.concat([dd.from_pandas(FRAME[a:b], npartitions=1) for a, b in itertools.pairwise(bounds)])
    return dboost.fit(data, client=client, **OPTIONS | options)


def branches_of(client: Client) -> set[int]:
    """Return how many sessions the reducer called in the rounds of the last fit."""
    events = [event for _, event in client.get_events("dboost")]
    last = [event["fit"] for event in events if event["action"] == "began"][-1]
    return {event["branches"] for event in events if event["action"] == "tree" and event["fit"] == last}


def test_a_relay_of_relays_and_an_evaluation_set() -> None:
    target, fan_in = "t", 2
    held_out = FRAME[::3].drop(columns=sorted({"y", "z", "t"} & set(FRAME) - {target}))
    table = FRAME.drop(columns=sorted({"y", "z", "t"} & set(FRAME) - {target}))
    here = dboost.fit(table, target, eval_set=held_out, **OPTIONS)
    with (
        dask.config.set({"dboost.fan-in": fan_in}),
        lines_cluster(7) as client,
    ):
        data = dd.from_pandas(table, npartitions=9)
        there = dboost.fit(data, target, eval_set=held_out, client=client, **OPTIONS)
        assert branches_of(client) == {fan_in}
    assert there.sha256 == here.sha256
    seconds = [column for column in there.history if "seconds" in column]
    shared = [column for column in there.history if column in here.history and column not in seconds]
    assert there.history[shared].equals(here.history[shared])


def test_relays_use_the_security_of_the_cluster() -> None:
    with (
        dask.config.set({"dboost.fan-in": 2}),
        lines_cluster(5, secure=True) as client,
    ):
        assert fit(client, target="y").sha256 == dboost.fit(FRAME, "y", **OPTIONS).sha256
        assert branches_of(client) == {2}


class FailsSomewhere(Loss):
    """Squared error, whose gradient fails on one range of rows once a tree has grown."""

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 0.5 * (raw - y) ** 2

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        if y.max() > 1e6 and len(np.unique(raw)) > 1:
            raise ValueError("no gradient today")
        return raw - y

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.ones_like(y)


def test_an_error_below_a_relay_names_its_worker() -> None:
    frame = FRAME.assign(z=np.where(np.arange(1500) == 1499, 1e7, FRAME["z"]))
    with (
        dask.config.set({"dboost.fan-in": 2}),
        lines_cluster(6) as client,
    ):
        data = client.persist(dd.from_pandas(frame, npartitions=6))
        with pytest.raises(dboost.DBoostError, match=r"worker tcp://.* failed: ValueError: no gradient today"):
            dboost.fit(data, "z", loss=FailsSomewhere(), client=client, **OPTIONS)
        assert fit(client, target="y").sha256 == dboost.fit(FRAME, "y", **OPTIONS).sha256


def test_a_connection_that_gives_no_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*arguments: Any) -> None:
        return None

    monkeypatch.setattr(worker_plugin, "open_worker_line", none)
    with (
        dask.config.set({"dboost.fan-in": 2}),
        lines_cluster(5) as client,
        pytest.raises(dboost.DBoostError, match=r"worker tcp://.* cannot open a line to tcp://"),
    ):
        fit(client, target="y")
