"""One session for each host: which session trains on the rows of the workers of a host, and how it gets them.

Workers of a host, as in a `LocalCluster` or on a node of a batch system, gain nothing from rounds of messages between them:
one process with as many threads is faster. So they read, sample, propose and encode a table together. Then all of them hand
their encoded rows over to one of them, the *trainer* (`choose_trainers`), and drop them. If all workers are on one host, the
trainer has all rows and grows whole trees; on several hosts rounds connect the trainers. The model does not depend on it.

**The rule.** Workers are on one host if they report the same name of it, so containers with names of their own are hosts of
their own, and if their processes may run on the same processors: jobs of a batch system that share a node, each with
processors of its own, keep a session each. A trainer is a worker whose memory has room for all rows of the group
(`SessionPlace`: what Dask leaves it until it spills, beside what the process used when the fit began). It uses as many threads
as the workers of its host have together, but no more than there are processors, and an equal share if there are several fits
on the cluster. Where no worker has room, each trains on its own rows, as without ``dboost.session-per-host``. The worker that
gets a small table before it is encoded (`cluster.partitions.rebalance.is_for_one_worker`) is a trainer, too: it uses the
threads of the others.

Rows that are not handed over:

* in a fit with a `memory_limit`, which every worker promises for the rows that it has read
* arcbites, whose stores may be in files
* rows whose leaf values are estimated again: they are not encoded
* those of folds that run at the same time: workers read them on the trainer in the first place, see below
* evaluation sets that are tables of their own

**Folds.** The folds of a cross-validation run at the same time, on rows that are binned already. One worker of each host reads
them, and trains with the threads of all (`trainers_of_folds`): Dask sends each partition there once, and the folds share the
codes (`rows.shared_codes`). On one host all folds are there; on several they take turns with the hosts, or are divided among
them if there are fewer folds than hosts (`cluster.partitions.rebalance`).

**Losses.** Partitions of a trainer that is lost are read again by other workers and handed over in the same way: to the trainer
of their host if it has room for them, even if it has read none of them, else to a new one. So if the host of the lost trainer
has other workers, one of them becomes its trainer, and no host has two. A worker that has handed its rows over has none to
lose. Workers that join beside a trainer get no rows (`cluster.partitions.joined_workers`).

**The hand-over** is one call to the sessions. Rows travel as slices of histograms do (`cluster.transport.peer_messages`), in
messages of about `Tuning.hand_over_bytes`; a session that waits for those of a lost one gives up in the same way. What was
received counts only once the client has said so (`Session.accept`), so a call that failed is repeated with other sessions.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from dboost.cluster.transport.line import pieces_of, unpacked
from dboost.cluster.transport.messages import OK, SessionRef, pack_round, unpack
from dboost.cluster.transport.peer_messages import JointCall
from dboost.kernels.threads import usable_processors
from dboost.rows.shard_spec import ShardSpec
from dboost.session.memory import Budget
from dboost.session.session import Session
from dboost.tuning import tuning

Worker = TypeVar("Worker", bound=Hashable)


class SessionPlace(NamedTuple):
    """What decides whether a session can train on the rows of other sessions of its host."""

    most_rows: int  # that it could have in memory, beside those that it has
    processors: tuple[int, ...]  # on which its process may run

    @classmethod
    def of(cls, spare: Budget | None, spec: ShardSpec, n_rows: int, processors: tuple[int, ...]) -> SessionPlace:
        """Return the place of a session that has `n_rows` rows. spare : `PartitionStats.spare`."""
        most = tuning().session_rows
        most = most if spare is None else min(spare.most_rows(spec, len(processors)), most)
        return cls(most - n_rows, processors)


class Member(NamedTuple):
    """A session whose rows may be handed over."""

    n_rows: int  # of the batch
    host: str | None  # None if it is not known
    place: SessionPlace
    has_read: bool = True  # false for a trainer that has read nothing of the batch
    n_kept: int = 0  # rows of positive weight


class HandOver(NamedTuple):
    """What a session does in a hand-over."""

    trainer: SessionRef
    n_messages: int  # messages that a session sends if it is not the trainer; 0 for a trainer that has read nothing
    n_threads: int  # of the trainer
    #: For the trainer: how many sessions send a first message, a second one, and so on.
    n_senders: tuple[int, ...] = ()
    n_rows: int = 0  # of positive weight that the trainer will have in one shard, so that it encodes its own into this


class HostWorkers(NamedTuple):
    """The usable workers of a cluster, as far as a hand-over depends on them."""

    n_threads: Mapping[str, int]  # by address
    hosts: Mapping[str, str | None]  # by address; None if it is not known
    trainers: frozenset[SessionRef]  # that train already
    n_fits: int  # that run on the cluster
    number: int  # of this fit among them


class HandOverPlan(NamedTuple):
    """Which session gets the rows of which, and what each does."""

    trainers: dict[SessionRef, SessionRef]  # of each session that takes part, the one that gets its rows; itself for trainers
    orders: dict[SessionRef, HandOver]


def plan_hand_over(members: Mapping[SessionRef, Member], workers: HostWorkers, row_bytes: int) -> HandOverPlan:
    """Choose the trainer of each host, and what its sessions send. row_bytes : of an encoded row."""
    trainers = choose_trainers(members, workers.number if workers.n_fits > 1 else 0, workers.trainers)
    return HandOverPlan(trainers, hand_overs(trainers, members, workers, row_bytes))


def by_host(places: Mapping[Worker, tuple[str | None, tuple[int, ...]]]) -> list[list[Worker]]:
    """Return the workers of each host, sorted, without those whose host is not known.

    places : name of the host, and the processors on which the worker's process may run.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[Worker]] = {}
    for worker, (host, processors) in sorted(places.items()):
        if host is not None:
            groups.setdefault((host, processors), []).append(worker)
    return list(groups.values())


class WorkerPlace(NamedTuple):
    """Where a worker is, and what it may use."""

    host: str
    processors: tuple[int, ...]
    n_threads: int
    memory_limit: int  # bytes, 0 if there is none


def _place_of(dask_worker: Any = None) -> WorkerPlace:
    """For `Client.run`: return the place of a worker."""
    limit = int(dask_worker.memory_manager.memory_limit or 0)
    return WorkerPlace(socket.gethostname(), usable_processors(), dask_worker.state.nthreads, limit)


def places_of(client: Any) -> list[list[WorkerPlace]]:
    """Return the workers of each host of a client's cluster."""
    places: dict[str, WorkerPlace] = client.run(_place_of)
    groups = by_host({worker: (place.host, place.processors) for worker, place in places.items()})
    return [[places[worker] for worker in group] for group in groups]


def choose_trainers(
    members: Mapping[SessionRef, Member], turn: int, trainers: Collection[SessionRef] = ()
) -> dict[SessionRef, SessionRef]:
    """Return for each session that takes part the trainer that gets its rows; the trainers get their own.

    turn : number of a fit among others at the same time, which have different trainers if several have room; 0 for a fit that
    is alone: then the fits of a client have the same trainer, which has loaded its kernels.
    trainers : the sessions that are trainers already; they remain it while they have room.
    """
    trainer_of: dict[SessionRef, SessionRef] = {}
    for group in by_host({ref: (member.host, member.place.processors) for ref, member in members.items()}):
        readers = [ref for ref in group if members[ref].has_read]
        n_rows = sum(members[ref].n_rows for ref in readers)
        roomy = [ref for ref in group if members[ref].place.most_rows >= n_rows]
        candidates = [ref for ref in roomy if ref in trainers] or [ref for ref in roomy if ref in readers]
        if readers and candidates and all(members[ref].place.most_rows >= members[ref].n_rows for ref in readers):
            trainer = candidates[turn % len(candidates)]
            trainer_of |= dict.fromkeys([*readers, trainer], trainer)
    return trainer_of


def n_threads_of_trainer(n_threads: Collection[int], n_processors: int, n_fits: int, n_own: int) -> int:
    """Return the threads of a trainer.

    n_threads : of the workers of its host; n_processors : of the host; n_fits : number of fits on the cluster; n_own : threads
    of the trainer's worker.
    """
    return max(min(sum(n_threads) // n_fits, n_processors), n_own)


def trainers_of_folds(
    n_threads: Mapping[str, int],
    places: Mapping[str, tuple[str | None, tuple[int, ...]]],
    has_room: Callable[[str, float], bool],
    with_rows: Collection[str] = (),
) -> dict[str, int]:
    """Return the workers on which folds at the same time are trained, and their threads: those of their hosts.

    n_threads : of the usable workers, by address; places : see `by_host`; has_room : whether a worker has room for a fraction
    of the rows; with_rows : workers that have rows of the fit, and are chosen again while they have room. If no worker of a
    host has room for its share, or the host is not known, each trains on its own rows.
    """
    trainers = dict(n_threads)
    for group in by_host(places):
        threads = [n_threads[worker] for worker in group]
        share = sum(threads) / sum(n_threads.values())
        roomy = [worker for worker in group if has_room(worker, share)]
        if roomy:
            trainer = next((worker for worker in roomy if worker in with_rows), roomy[0])
            for worker in group:
                del trainers[worker]
            trainers[trainer] = n_threads_of_trainer(threads, len(places[trainer][1]), 1, n_threads[trainer])
    return trainers


def hand_overs(
    trainers: Mapping[SessionRef, SessionRef], members: Mapping[SessionRef, Member], workers: HostWorkers, row_bytes: int
) -> dict[SessionRef, HandOver]:
    """Return what each session does, as far as there is something to do."""
    part_bytes, orders = tuning().hand_over_bytes, dict[SessionRef, HandOver]()
    for trainer in sorted(set(trainers.values())):
        group = [ref for ref in trainers if trainers[ref] == trainer]
        readers = [ref for ref in group if members[ref].has_read]
        host, place = members[trainer].host, members[trainer].place
        n_threads_of_host = [n for worker, n in workers.n_threads.items() if workers.hosts.get(worker) == host]
        n_threads_before = workers.n_threads.get(trainer.worker, 1)
        n_threads = n_threads_of_trainer(n_threads_of_host, len(place.processors), workers.n_fits, n_threads_before)
        if len(group) == 1 and n_threads == n_threads_before:
            continue
        n_messages = dict.fromkeys(group, 0)
        for ref in readers:
            n_messages[ref] = max(-(-members[ref].n_rows * row_bytes // part_bytes), 1)
        parts_sent = [n_messages[ref] for ref in group if ref != trainer]
        n_senders = tuple(sum(n > k for n in parts_sent) for k in range(max(parts_sent, default=0)))
        for ref in group:
            orders[ref] = HandOver(trainer, n_messages[ref], n_threads)
        n_rows = sum(members[ref].n_kept for ref in readers)
        orders[trainer] = HandOver(trainer, min(n_messages[trainer], 1), n_threads, n_senders, n_rows)
    return orders


def hand_over(call: JointCall, arguments: bytes | memoryview) -> tuple[str, Any]:
    """Send the rows of a session to its trainer, or receive those of the others; return, on a worker, a status, or an error."""
    batch, spec, order = unpack(arguments)
    is_trainer = order.trainer == call.ref
    n_threads = order.n_threads if is_trainer else None
    status, parts = call.execute(Session.rows_to_hand_over, (batch, spec, order.n_messages, n_threads, order.n_rows))
    if status != OK:
        return status, parts
    for k, n_senders in enumerate(order.n_senders if is_trainer else [0] * len(parts)):
        status, received = call.swap(k, {} if is_trainer else {order.trainer: pieces_of(parts[k])}, n_senders)
        if status == OK and is_trainer:
            status, received = call.execute(Session.receive.__name__, (batch, [*map(unpacked, received)]))
        if status != OK:
            return status, received
    return OK, pack_round(None)
