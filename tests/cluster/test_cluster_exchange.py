"""Slices of wide histograms are added up in groups of sessions, then over the groups. The model is that of one process."""

from __future__ import annotations

import itertools
import math
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.cluster.transport.feature_exchange import (
    FeatureOwner,
    SliceExchange,
    SliceRound,
    choose_exchange,
    count_groups,
    count_levels,
    merge_splits,
    pack_splits,
    unpack_splits,
)
from dboost.cluster.transport.line import Line
from dboost.cluster.transport.messages import FitCancelled, LostWorkers, SessionRef, unpack
from dboost.cluster.transport.peer_messages import SLICE, Inbox, Peers
from dboost.cluster.transport.session_tree import tree_of
from dboost.kernels.splits import FEATURE, NO_SPLIT, SCORE
from dboost.session.session import Session
from dboost.trees.split_finder import SplitInfo
from tests.helpers.clusters import a_table, lines_cluster

FRAME = a_table(1500)
OPTIONS: dict[str, Any] = {"max_iter": 4, "max_leaf_nodes": 7, "progress": False}
#: All histograms are wide, and there are as many slices as sessions in a group.
EXCHANGE = {"dboost.fan-in": 2, "dboost.gather-bytes": "0B", "dboost.owner-bytes": 1}
#: Groups do not depend on the bins.
NO_LAYOUT: Any = None


def sessions(n: int) -> tuple[SessionRef, ...]:
    return tuple(SessionRef(f"tcp://10.0.0.{k}", str(k)) for k in range(n))


@given(n=st.integers(1, 1200), fan_in=st.integers(2, 40), data=st.data())
def test_every_slice_of_every_session_reaches_its_owner_once(n: int, fan_in: int, data: st.DataObject) -> None:
    n_groups = count_groups(n, fan_in)
    assert n_groups == 1 if n <= fan_in else 1 < n_groups <= n
    n_slices = data.draw(st.integers(1, n // n_groups))
    exchange = SliceExchange(sessions(n), n_groups, tuple(range(n_slices + 1)), NO_LAYOUT)
    groups = [exchange.group(number) for number in range(n_groups)]
    assert tuple(ref for group in groups for ref in group) == exchange.refs
    added: dict[tuple[SessionRef, int], list[int]] = {}
    for rank, ref in enumerate(exchange.refs):
        place, group = exchange.place(ref)
        assert group[place] == ref and group in groups
        for k in range(n_slices):
            added.setdefault((group[k], k), []).append(rank)
    owned: dict[tuple[SessionRef, int], list[int]] = {}
    for (ref, k), ranks in added.items():
        assert exchange.place(ref)[0] == k
        owned.setdefault((exchange.owner(k), k), []).extend(ranks)
    assert len(owned) == len({ref for ref, _ in owned}) == n_slices
    assert all(sorted(ranks) == list(range(n)) for ranks in owned.values())
    # Every session exchanges messages with a number of others that grows with the square root of all.
    assert max(n_groups, *map(len, groups)) <= max(fan_in, math.sqrt(n * fan_in / 2) + 2)


@given(n=st.integers(1, 1200), fan_in=st.integers(2, 40))
def test_levels_are_those_of_the_tree(n: int, fan_in: int) -> None:
    def depth(branches: Any) -> int:
        return max((1 + depth(tree_of(*unpack(branch.passed_on)) if branch.below else ()) for branch in branches), default=0)

    assert count_levels(n, fan_in) == depth(tree_of(sessions(n), fan_in))


def test_a_slice_has_about_the_same_number_of_buckets(client: Client) -> None:
    """The features of 16 bins and of 2 bins are divided by buckets, not by their number."""
    seen: list[SliceExchange | None] = []

    def choose(*arguments: Any) -> SliceExchange | None:
        seen.append(choose_exchange(*arguments))
        return seen[-1]

    rare = {f"rare {i}": (np.arange(len(FRAME)) % 15 == i).astype(float) for i in range(9)}
    frame = FRAME[["y", "a", "b", "c"]].assign(**rare)
    with dask.config.set(EXCHANGE), pytest.MonkeyPatch.context() as patched:
        patched.setattr("dboost.cluster.scheduler.reducer.choose_exchange", choose)
        booster = dboost.fit(dd.from_pandas(frame, npartitions=7), "y", client=client, **OPTIONS)
    assert booster.sha256 == dboost.fit(frame, "y", **OPTIONS).sha256
    assert {exchange.bounds for exchange in seen if exchange is not None} == {(0, 2, 12)}


@pytest.fixture(scope="module")
def client() -> Any:
    with dask.config.set({"dboost.single-worker-values": 0}), lines_cluster(7) as client:
        yield client


def test_sessions_without_rows_take_part(client: Client) -> None:
    bounds = [0, 0, 200, 201, 700, 700, 1500]
    data = dd.concat([dd.from_pandas(FRAME[a:b], npartitions=1) for a, b in itertools.pairwise(bounds)])
    with dask.config.set(EXCHANGE):
        assert dboost.fit(data, "y", client=client, **OPTIONS).sha256 == dboost.fit(FRAME, "y", **OPTIONS).sha256


def test_a_later_round_ends_the_waiting_of_an_earlier_one() -> None:
    inbox = Inbox()
    inbox.put("fit", 1, 0, "a", b"early")
    inbox.put("fit", 1, 1, "b", b"of another stage")
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(inbox.all_of, "fit", 1, 0, 2)
        other = pool.submit(inbox.all_of, "other fit", 1, 0, 1)
        while len(inbox._waits) < 2:
            time.sleep(0.001)
        inbox.begin("fit", 2)
        with pytest.raises(FitCancelled):
            waiting.result(10)
        inbox.put("other fit", 1, 0, "a", b"slice")
        assert other.result(10) == [b"slice"]
    inbox.put("fit", 2, 1, "a", b"one")
    inbox.put("fit", 2, 1, "a", b"one")  # the same again
    inbox.put("fit", 2, 1, "b", b"two")
    assert inbox.all_of("fit", 2, 1, 2) == [b"one", b"two"]
    assert not inbox._slices and not inbox._waits


def test_a_check_ends_the_waiting_for_slices() -> None:
    inbox, checks = Inbox(), iter([None, None, FitCancelled()])

    def check() -> None:
        error = next(checks)
        if error is not None:
            raise error

    inbox.put("fit", 1, 0, "a", b"one")
    with pytest.raises(FitCancelled):
        inbox.all_of("fit", 1, 0, 2, check)
    assert not list(checks)
    inbox.drop("fit")
    assert not inbox._slices and not inbox._waits


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("which", [0, 3, 6])
def test_an_error_of_one_session_ends_the_waiting_of_the_others(
    client: Client, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """Its slices never arrive. With two branches at each session, the first one is a relay, and the others are below one."""
    cut = FeatureOwner.cut_slices

    @wraps(cut)
    def fails(self: FeatureOwner, session: Session, message: SliceRound) -> Any:
        exchange, *answer = cut(self, session, message)
        if session.id == exchange.refs[which].session and not message.tasks:
            raise ValueError("no histograms today")
        return exchange, *answer

    data = dd.from_pandas(FRAME, npartitions=7)
    with dask.config.set(EXCHANGE | {"dboost.patience": "120s"}):
        with monkeypatch.context() as patched:
            patched.setattr(FeatureOwner, "cut_slices", fails)
            began = time.monotonic()
            with pytest.raises(dboost.DBoostError, match=r"worker tcp://.* failed: ValueError: no histograms today"):
                dboost.fit(data, "y", client=client, **OPTIONS)
            assert time.monotonic() - began < 60  # less than the liveness timeout
        assert dboost.fit(data, "y", client=client, **OPTIONS).sha256 == dboost.fit(FRAME, "y", **OPTIONS).sha256


def test_a_worker_that_cannot_be_reached_is_lost() -> None:
    here, there = socket.socketpair()
    ref, other = sessions(2)
    peers = Peers(lambda refs: {ref: Line(here)})
    peers.send(1, b"header", {ref: [b"slice"]})
    message = Line(there).receive()
    assert (message.number, message.kind, bytes(message.content), bytes(message.buffers[0])) == (1, SLICE, b"header", b"slice")
    there.close()
    with pytest.raises(LostWorkers) as lost:
        for number in range(2, 5):
            peers.send(number, b"header", {ref: [b"slice"]})
    assert lost.value.sessions == [ref]
    peers.close()
    assert here.fileno() == -1
    error = LostWorkers([other])
    with pytest.raises(LostWorkers) as lost:
        Peers(lambda refs: {other: error}).send(1, b"", {other: [b""]})
    assert lost.value is error


def split_of(score: float, feature: int) -> SplitInfo:
    total = np.array([1.0, 2.0, 3.0, -np.inf, np.inf])
    children, goes_left = np.arange(10.0).reshape(2, 5), np.array([1, 0, 1], np.uint8)
    return SplitInfo(np.array([score, feature, 2, 3, 4, 5, 6, 7.0]), total, children, score, goes_left)


def test_splits_are_merged_without_unpacking_them() -> None:
    assert (SCORE, FEATURE) == (0, 1)
    mine, others = (
        [split_of(5, 1), split_of(5, 9), split_of(NO_SPLIT, -1)],
        [split_of(6, 2), split_of(5, 2), split_of(NO_SPLIT, -1)],
    )
    for parts in ((mine, others), (others, mine)):
        merged = unpack_splits(merge_splits(*map(pack_splits, parts)))
        assert [int(split.best[FEATURE]) for split in merged] == [2, 2, -1]
        for found, expected in zip(merged, (others[0], others[1], mine[2]), strict=True):
            for field, value in zip(SplitInfo._fields, expected, strict=True):
                assert np.array_equal(getattr(found, field), value)
                assert (
                    np.asarray(getattr(found, field)).dtype == np.asarray(value, np.float64 if field == "gain" else None).dtype
                )
            found.best[0] = 0.0  # it may be written to
