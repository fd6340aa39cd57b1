"""One session for each host: workers of a host hand their rows over to one of them, and the model is that of one process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dboost
from dboost.cluster.client.worker_choice import KnownWorkers
from dboost.cluster.partitions import partitioned_table, rebalance
from dboost.cluster.partitions.rebalance import values_held
from dboost.cluster.training import cluster_backend
from dboost.cluster.transport.messages import SessionRef
from dboost.cluster.worker import host_trainers, worker_plugin
from dboost.cluster.worker.host_trainers import (
    HandOver,
    HostWorkers,
    Member,
    SessionPlace,
    choose_trainers,
    plan_hand_over,
    trainers_of_folds,
)
from dboost.kernels import threads
from dboost.rows.shared_codes import SharedCodes
from dboost.session import table_rows
from dboost.session.memory import Budget
from tests.helpers.clusters import Processes, a_table, at, held_rows, impatient, lines_cluster, threads_cluster, until
from tests.helpers.faults import Fault, Faults
from tests.helpers.fits import cut
from tests.helpers.tune import Tune

#: In fast tests rounds travel on lines only.
pytestmark = pytest.mark.fast_cells(1)
FRAME = a_table(2400)
FRAME["g"] = FRAME.index // 7
COLUMNS = ["a", "b", "c", "e"]


@pytest.fixture(autouse=True)
def per_host() -> Iterator[None]:
    with dask.config.set({"dboost.session-per-host": True}):
        yield


@pytest.fixture(scope="module", params=["tcp", "inproc"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with lines_cluster(3) if request.param == "tcp" else threads_cluster(3, 2) as client:
        yield client


def fitted(data: Any, target: str = "y", **options: Any) -> dboost.Booster:
    return dboost.fit(data, target, progress=False, **{"max_iter": 5, "features": COLUMNS} | options)


def assert_one_session(booster: dboost.Booster, expected: dboost.Booster) -> None:
    assert booster.sha256 == expected.sha256
    assert set(booster.history["workers"]) == {1}


# The rule.

WORKERS = [SessionRef(f"tcp://{k}", f"s{k}") for k in range(5)]


def member(n_rows: int, host: str | None = "one", room: int = 10**6, cpus: int = 8, first: int = 0) -> Member:
    return Member(n_rows, host, SessionPlace(room, tuple(range(first, first + cpus))))


def test_a_trainer_for_each_host() -> None:
    a, b, c, d, e = WORKERS
    members = {a: member(10), b: member(20), c: member(30, "two"), d: member(40, "two"), e: member(50, None)}
    assert choose_trainers(members, 0) == {a: a, b: a, c: c, d: c}
    assert choose_trainers(members, 1) == {a: b, b: b, c: d, d: d}


def test_a_trainer_holds_all_rows_of_its_host() -> None:
    a, b, c, *_ = WORKERS
    members = {a: member(10, room=59), b: member(20, room=60), c: member(30, room=59)}
    assert choose_trainers(members, 0) == {a: b, b: b, c: b}
    assert choose_trainers(members | {b: member(20, room=59)}, 0) == {}
    assert choose_trainers(members | {c: member(30, room=29)}, 0) == {}, "it would encode its own rows to files"


def test_processes_on_other_processors_are_other_hosts() -> None:
    a, b, c, d, _ = WORKERS
    members = {a: member(10, cpus=2), b: member(10, cpus=2), c: member(10, cpus=2, first=2), d: member(10, cpus=2, first=2)}
    assert choose_trainers(members, 0) == {a: a, b: a, c: c, d: c}
    assert {order.n_threads for order in orders_of(members).values()} == {2}


def test_a_host_keeps_its_trainer() -> None:
    """Also one that has read nothing of these rows, but only while it has room for them."""
    a, b, c, d, e = WORKERS
    members = {a: member(10), b: member(20), c: member(0)._replace(has_read=False), d: member(40, "two"), e: member(5, "two")}
    assert choose_trainers(members, 1, {b}) == {a: b, b: b, d: e, e: e}
    assert choose_trainers(members, 0, {c, e}) == {a: c, b: c, c: c, d: e, e: e}
    full = members | {c: members[c]._replace(place=member(0, room=29).place)}
    assert choose_trainers(full, 0, {c, e}) == {a: a, b: a, d: e, e: e}
    alone = {a: member(10), c: members[c], d: member(0, "two")._replace(has_read=False)}
    assert choose_trainers(alone, 0, {c, d}) == {a: c, c: c}
    workers = HostWorkers({a.worker: 1, c.worker: 2}, {a.worker: "one", c.worker: "one"}, frozenset([c, d]), 1, 0)
    plan = plan_hand_over(alone, workers, 44)
    assert plan.trainers == {a: c, c: c}
    assert plan.orders == {a: HandOver(c, 1, 3), c: HandOver(c, 0, 3, (1,))}


def orders_of(
    members: dict[SessionRef, Member], n_threads: int = 1, more: int = 0, n_fits: int = 1
) -> dict[SessionRef, HandOver]:
    """Return the orders of members with so many threads each. more : workers of the host without rows."""
    threads_of = {ref.worker: n_threads for ref in members} | {f"idle {k}": n_threads for k in range(more)}
    workers = HostWorkers(threads_of, dict.fromkeys(threads_of, "one"), frozenset(), n_fits, 0)
    return plan_hand_over(members, workers, 44).orders


def test_threads_of_a_trainer() -> None:
    three = {ref: member(10) for ref in WORKERS[:3]}
    assert orders_of(three)[WORKERS[0]].n_threads == 3
    assert orders_of(three, 2)[WORKERS[0]].n_threads == 6
    assert orders_of(three, 4)[WORKERS[0]].n_threads == 8, "no more than processors"
    assert orders_of(three, 1, more=2)[WORKERS[0]].n_threads == 5
    assert orders_of(three, 2, n_fits=2)[WORKERS[0]].n_threads == 3
    assert orders_of(three, 2, n_fits=9)[WORKERS[0]].n_threads == 2, "at least its own"
    alone = {WORKERS[0]: member(10)}
    assert orders_of(alone) == {}
    assert orders_of(alone, more=1) == {WORKERS[0]: HandOver(WORKERS[0], 1, 2)}


def test_messages_of_many_rows(tune: Tune) -> None:
    tune(hand_over_bytes=440)
    members = {ref: member(n) for ref, n in zip(WORKERS, (5, 10, 21, 0, 11), strict=True)}
    orders = orders_of(members)
    assert [orders[ref].n_messages for ref in WORKERS] == [1, 1, 3, 1, 2]
    assert [orders[ref].n_senders for ref in WORKERS] == [(4, 2, 1), (), (), (), ()]


@pytest.mark.parametrize(
    ("roomy", "with_rows", "expected"),
    [
        ("abcdef", "", {"a": 3, "c": 2, "f": 1}),
        ("abcdef", "be", {"b": 3, "e": 3, "f": 1}),
        ("bcdef", "a", {"b": 3, "c": 2, "f": 1}),
        ("cdef", "", {"a": 1, "b": 3, "c": 2, "f": 1}),
        ("", "a", {"a": 1, "b": 3, "c": 1, "d": 1, "e": 3, "f": 1}),
    ],
)
def test_trainers_of_folds(roomy: str, with_rows: str, expected: dict[str, int]) -> None:
    """On hosts of three, two and one worker; the second one's trainer may run on two processors, that of f is not known."""
    n_threads = {"a": 1, "b": 3, "c": 1, "d": 1, "e": 3, "f": 1}
    one, two = ("one", (0, 1, 2)), ("two", (0, 1))
    places = {"a": one, "b": one, "c": two, "d": two, "e": two, "f": (None, ())}
    shares: dict[str, float] = {}

    def has_room(worker: str, share: float) -> bool:
        shares[worker] = share
        return worker in roomy

    assert trainers_of_folds(n_threads, places, has_room, with_rows) == expected
    assert shares == {"a": 0.4, "b": 0.4, "c": 0.5, "d": 0.5, "e": 0.5}


def test_values_that_folds_hold() -> None:
    assert values_held(1000, 28, 1) == 28_000
    assert values_held(1000, 28, 5) == 28_000 + 30_000, "they share the codes"


# Fits.


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("offset", [None, "w"])
def test_rows_are_sent_once_and_not_copied(client: Client, offset: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of two classes take a byte for each code and the target; scores are sent if they differ. The trainer trains on the
    memory that it has encoded its own rows into."""
    sent: list[int] = []
    encoded: list[Any] = []
    trained: list[Any] = []
    pieces_of, encode_table = host_trainers.pieces_of, table_rows.encode_table

    def noted(message: Any) -> Any:
        pieces = pieces_of(message)
        sent.append(sum(map(len, pieces)))
        return pieces

    def encode(*arguments: Any) -> Any:
        encoded.append(encode_table(*arguments))
        return encoded[-1]

    def look() -> None:
        for worker in client.cluster.workers.values():
            sessions = worker.plugins["dboost"]._sessions.values()
            trained.extend(rows.shard.codes.narrow for one in sessions for rows in one.trained)

    monkeypatch.setattr(host_trainers, "pieces_of", noted)
    monkeypatch.setattr(table_rows, "encode_table", encode)
    options = {"offset": offset, "callbacks": at(1, look)}
    there = fitted(cut(FRAME, [800, 1600]), "z", client=client, **options)
    assert there.sha256 == fitted(FRAME, "z", offset=offset).sha256
    n_given = sum(sorted([800, 800, 800])[:2])
    bytes_of_row = len(COLUMNS) + 1 + (0 if offset is None else 8)
    assert len(sent) == 2 and sum(sent) < n_given * bytes_of_row + 2 * 2000
    assert len(trained) == 1 and trained[0].shape[1] == len(FRAME)
    assert sum(np.shares_memory(trained[0], codes.narrow) for codes in encoded[:3]) == 1


def of_folds(dask_worker: Any = None) -> list[tuple[int, int, int | None]]:
    """Return rows, threads, and trees that may grow at the same time, of each session."""
    sessions = dask_worker.plugins["dboost"]._sessions.values()
    return [(one.n_rows, one.n_threads, one._n_growing) for one in sessions]


def folds_seen(client: Client, folds: int, **options: Any) -> list[list[tuple[int, int, int | None]]]:
    """Cross-validate, compare with one process, and return the sessions of each worker that has some in the middle."""
    seen: list[list[tuple[int, int, int | None]]] = []
    look = at(3, lambda: seen.extend(client.run(of_folds).values()))
    how: dict[str, Any] = {"max_iter": 5, "progress": False, "folds": folds, "eval_metric": "roc_auc", "features": COLUMNS}
    found = dboost.cv(cut(FRAME, [600, 1200, 1800]), "z", client=client, callbacks=look, **how, **options)
    expected = dboost.cv(FRAME, "z", **how)
    assert [one.sha256 for one in found.boosters] == [one.sha256 for one in expected.boosters]
    assert found.scores.equals(expected.scores) and found.predictions.tolist() == expected.predictions.tolist()
    return [one for one in seen if one]


def test_folds_are_trained_by_one_worker_with_the_threads_of_all(client: Client) -> None:
    own = max(client.nthreads().values())
    threads = max(min(sum(client.nthreads().values()), len(os.sched_getaffinity(0))), own)
    made: list[SharedCodes] = []

    def make(*arguments: Any) -> SharedCodes:
        made.append(SharedCodes(*arguments))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_rows, "SharedCodes", make)
        assert folds_seen(client, 4) == [[(1800, max(threads // 4, 1), threads)] * 4]
    assert len(made) == 2, "on the cluster, and in the cross-validation to compare with"
    with dask.config.set({"dboost.session-per-host": False}):
        assert len(folds_seen(client, 4)) == 3


def test_folds_take_turns_with_hosts(client: Client, two_hosts: Callable[[Client], list[str]]) -> None:
    two_hosts(client)
    with dask.config.set({"dboost.single-worker-values": 1}):
        assert sorted(map(len, folds_seen(client, 4))) == [2, 2]


def test_fewer_folds_than_hosts_are_divided_among_them(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    known = sorted(client.nthreads())
    monkeypatch.setattr(KnownWorkers, "host_of", lambda _, worker: f"host {known.index(worker)}")
    monkeypatch.setattr(rebalance, "_ROUNDS_COST", 1.0)
    with dask.config.set({"dboost.single-worker-values": 1}):
        assert sorted(map(len, folds_seen(client, 2))) == [2, 2, 2]


def test_folds_without_a_worker_that_has_room(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned_table, "is_held", lambda n_values, _: n_values < len(FRAME) * (len(COLUMNS) + 12))
    assert len(folds_seen(client, 3)) == 3


def rows_and_threads(dask_worker: Any = None) -> list[tuple[int, int, int]]:
    """Return rows, threads, and batches that are not built, of each session."""
    sessions = dask_worker.plugins["dboost"]._sessions.values()
    return [(one.n_rows, one.n_threads, len(one._rows) + len(one.loading.names) + len(one._encoded)) for one in sessions]


def threads_of(client: Client, frame: pd.DataFrame) -> list[int]:
    """Return the threads of the session with rows in the middle of a fit on a small table, for one worker."""
    seen: list[Any] = []
    look = at(2, lambda: seen.extend(client.run(rows_and_threads).values()))
    with dask.config.set({"dboost.single-worker-values": 8_000_000}):
        assert_one_session(
            fitted(cut(frame, [800, 1600]), client=client, callbacks=look, features=None), fitted(frame, features=None)
        )
    return [threads for sessions in seen for n_rows, threads, _ in sessions if n_rows]


def test_a_small_table_uses_the_threads_of_all_workers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    own, together = max(client.nthreads().values()), min(sum(client.nthreads().values()), len(os.sched_getaffinity(0)))
    frame = FRAME[[*COLUMNS, "y"]]
    assert threads_of(client, frame) == [own], "one thread is faster"
    for module in (cluster_backend, threads):
        monkeypatch.setattr(module, "is_small", lambda *_: False)
    assert threads_of(client, frame) == [max(own, together)]
    monkeypatch.setattr(KnownWorkers, "n_fits", property(lambda _: 9, lambda *_: None), raising=False)
    assert threads_of(client, frame) == [own], "they are shared with other fits"


def test_givers_keep_nothing(client: Client) -> None:
    seen: list[Any] = []
    fitted(cut(FRAME, [800, 1600]), client=client, callbacks=at(2, lambda: seen.extend(client.run(rows_and_threads).values())))
    held = sorted(one for sessions in seen for one in sessions)
    threads = min(sum(client.nthreads().values()), len(os.sched_getaffinity(0)))
    own = max(client.nthreads().values())
    assert held == [(0, own, 0), (0, own, 0), (len(FRAME), max(threads, own), 0)]


@pytest.mark.slow
@pytest.mark.parametrize("n_fits", [1, 2])
def test_trainers_of_fits_at_the_same_time_take_turns(client: Client, monkeypatch: pytest.MonkeyPatch, n_fits: int) -> None:
    used: set[str] = set()
    monkeypatch.setattr(KnownWorkers, "n_fits", property(lambda _: n_fits, lambda *_: None), raising=False)

    def look(_: dboost.Iteration) -> None:
        used.update(worker for worker, n in client.run(held_rows).items() if n)

    for _ in range(3):
        fitted(cut(FRAME, [800, 1600]), client=client, max_iter=1, callbacks=[look])
    assert len(used) == (1 if n_fits == 1 else 3), "a fit that is alone is where the kernels are loaded"


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("options", [{"memory_limit": "64MiB"}, {"arcbites": dboost.ArcBites(2, 2)}])
def test_fits_whose_rows_are_not_handed_over(client: Client, options: dict[str, Any]) -> None:
    there = fitted(cut(FRAME, [800, 1600]), client=client, **options)
    assert there.sha256 == fitted(FRAME, **options).sha256
    assert set(there.history["workers"]) == {3}


def test_a_worker_without_room_for_the_rows_of_the_others(client: Client, tune: Tune) -> None:
    expected = fitted(FRAME).sha256
    tune(session_rows=len(FRAME) - 1)
    there = fitted(cut(FRAME, [800, 1600]), client=client)
    assert there.sha256 == expected
    assert set(there.history["workers"]) == {3}


def test_workers_to_which_dask_leaves_no_memory(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_plugin, "_spare", lambda worker: Budget(1))
    there = fitted(cut(FRAME, [800, 1600]), client=client)
    assert there.sha256 == fitted(FRAME).sha256
    assert set(there.history["workers"]) == {3}


def test_rows_count_once_while_givers_still_have_them(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message by which a giver drops its rows may come late. It evaluates rows of another set meanwhile."""
    late: list[str] = []
    monkeypatch.setattr(worker_plugin, "_discard", lambda worker_session, batch: late.append(batch))

    def wait() -> None:
        deadline = time.monotonic() + 30.0
        while len(late) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    options: dict[str, Any] = {"validation_fraction": 0.3}
    sets = cut(FRAME, [900, 1700])
    there = fitted(cut(FRAME, [800, 1600]), client=client, eval_set=sets, callbacks=[at(5, wait)], **options)
    expected = fitted(FRAME, eval_set=FRAME, **options)
    assert_one_session(there, expected)
    scores = [name for name in expected.history if name.endswith("_squared_error")]
    assert sorted(scores) == ["eval_squared_error", "validation_squared_error"]
    assert there.history[scores].equals(expected.history[scores])
    assert late == ["training data/1"] * 2


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Client], list[str]]:
    """Have workers be on two hosts in turns, in the order of their addresses; return the names of their hosts."""

    def divide(client: Client) -> list[str]:
        known = sorted(client.nthreads())

        def host_of(_: KnownWorkers, worker: str) -> str | None:
            return f"host {known.index(worker) % 2}" if worker in known else "host 2"

        monkeypatch.setattr(KnownWorkers, "host_of", host_of)
        return [f"host {k % 2}" for k in range(len(known))]

    return divide


def test_rounds_connect_the_trainers_of_hosts(client: Client, two_hosts: Callable[[Client], list[str]]) -> None:
    two_hosts(client)
    for target in ("y", "t"):
        there = fitted(cut(FRAME, [600, 1200, 1800]), target, client=client)
        assert there.sha256 == fitted(FRAME, target).sha256
        assert set(there.history["workers"]) == {2}


# Lost workers, and workers that join.


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(4) as processes:
        yield processes


def kill(processes: Processes, is_trainer: bool) -> None:
    held = processes.client.run(held_rows)
    worker = next(worker for worker, n in sorted(held.items()) if (n > 0) is is_trainer)
    os.kill(processes.pids()[worker], signal.SIGKILL)
    until(lambda: worker not in processes.addresses())


def workers_with_rows(client: Client) -> dict[str, int]:
    return {worker: n for worker, n in client.run(held_rows).items() if n}


@pytest.mark.parametrize(("n_killed", "room"), [(1, None), (2, None), (2, 2000)])
def test_hosts_keep_their_trainers_when_another_host_loses_one(
    processes: Processes, two_hosts: Callable[[Client], list[str]], tune: Tune, n_killed: int, room: int | None
) -> None:
    """The trainer of one host is killed, or all of its workers; the other worker of this host becomes its trainer.

    room : rows for which a worker of the other host has room, its own included.
    """
    expected = fitted(FRAME, "t", max_iter=6).sha256
    if room is not None:
        tune(session_rows=room)
    processes.ensure_workers(4)
    client = processes.client
    two_hosts(client)
    known = sorted(processes.addresses())
    first, second = set(known[::2]), set(known[1::2])
    seen: list[dict[str, int]] = []

    def look() -> None:
        seen.append(workers_with_rows(client))

    def strike() -> None:
        look()
        pids = processes.pids()
        victims = sorted(second, key=lambda worker: worker not in seen[0])[:n_killed]
        for worker in victims:
            os.kill(pids[worker], signal.SIGKILL)
        until(lambda: not processes.addresses() & set(victims))

    lazy = cut(FRAME, [150 * k for k in range(1, 16)])
    there = fitted(lazy, "t", client=client, max_iter=6, callbacks=[at(2, strike), at(5, look)])
    assert there.sha256 == expected
    before, after = seen
    assert [len(before.keys() & host) for host in (first, second)] == [1, 1]
    assert after.keys() & first == (before.keys() & first if room is None else first), "one trainer, the same"
    assert after.keys() & second == (second - before.keys() if n_killed == 1 else set())
    assert sum(after.values()) == sum(before.values())
    if n_killed == 1:  # three threads are left, two of them on the first host
        assert max(after.values()) < 0.8 * sum(after.values())


def test_a_host_keeps_its_rows_when_another_loses_its_trainer_before_it_builds(
    processes: Processes, two_hosts: Callable[[Client], list[str]]
) -> None:
    processes.ensure_workers(4)
    two_hosts(processes.client)
    lazy = cut(FRAME, [150 * k for k in range(1, 16)])
    with impatient(processes.client), Faults(processes, [Fault("killed", "build")]) as done:
        there = fitted(lazy, "t", client=processes.client)
    assert there.sha256 == fitted(FRAME, "t").sha256
    assert done.calls["hand_over"] == 2, "the second time only of partitions that were read again"


def test_a_killed_trainer_of_folds(processes: Processes) -> None:
    processes.ensure_workers(4)
    seen: list[list[int]] = []
    look = lambda: seen.append(sorted(n for n in processes.client.run(held_rows).values() if n))  # noqa: E731
    actions = [at(2, lambda: kill(processes, False)), at({3, 7}, look), at(4, lambda: kill(processes, True))]
    options: dict[str, Any] = {"folds": 3, "max_iter": 8, "progress": False}
    with dboost.prepare(cut(FRAME, [600, 1200, 1800]), "t", client=processes.client, features=COLUMNS) as data:
        found = dboost.cv(data, callbacks=actions, **options)
    expected = dboost.cv(FRAME, "t", features=COLUMNS, **options)
    assert [one.sha256 for one in found.boosters] == [one.sha256 for one in expected.boosters]
    assert found.scores.equals(expected.scores)
    assert seen == [[4800], [4800]], "another worker has all folds again"


def test_workers_that_join_on_another_host(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """They get rows, and hand them over. (Those beside a trainer get none, see `test_faults`.)"""
    processes.ensure_workers(4)
    first, joined = processes.addresses(), threading.Event()
    monkeypatch.setattr(KnownWorkers, "host_of", lambda _, worker: "one" if worker in first else "two")

    def join() -> None:
        for _ in range(2):
            processes.add_worker()
        until(lambda: len(processes.addresses()) > len(first) + 1)
        joined.set()

    n_waits = 10

    def wait(now: dboost.Iteration) -> None:
        nonlocal n_waits
        if now.iteration > 3 and n_waits:
            threading.Event().wait(0.1)
            n_waits -= now.record["workers"] == 2

    options: dict[str, Any] = {"max_iter": 60, "learning_rate": 0.03}
    lazy = cut(FRAME, [200 * k for k in range(1, 12)])
    there = fitted(lazy, "t", client=processes.client, callbacks=[at(3, join), wait], **options)
    assert joined.is_set()
    assert there.sha256 == fitted(FRAME, "t", **options).sha256
    assert there.history["workers"].iloc[0] == 1 and there.history["workers"].iloc[-1] == 2
