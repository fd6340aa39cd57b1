"""Rebalancing: moves of partitions so that workers hold rows in proportion to their threads.

**After loading** (`plan_moves`). Dask runs read tasks on workers with a free thread, or with the data. That balances the time
of reading, but often not the rows: with a few partitions per thread one worker easily has 1.5 times the rows of the others, and
every tree waits for it. Rows measure the load, because they have the same size in all partitions of a table.

The *fair load* of a worker is the number of rows times its fraction of all threads. No partition is moved while the fullest
worker has at most `dboost.imbalance` (default 1.2) times its fair load; for persisted collections, whose location is the user's
choice, at most `dboost.imbalance-persisted` (default 1.5) times. Otherwise each step moves a partition from the fullest to the
emptiest worker, the one that makes their loads most similar, until the fullest has at most 1.05 times its fair load or no move
reduces its load. A partition is never divided.

**Small tables** (`is_for_one_worker`) get a single worker, which grows whole trees, because the rounds of messages would take
longer than the work that they divide. A round takes the same time on any number of workers; what they save grows with their
number. Per value, a worker takes 1.2 times as long in rounds as for whole trees. With several classes an iteration has as many
times the work, but a round longer messages and more to search. So a smaller table may be worth more workers; the number of
classes is known only after loading, and the others then get rows as workers that join.

Fits that run at the same time, such as the folds of a cross-validation, share the workers. If there are as many fits as
workers, each grows its trees on one of them: no worker is idle, and there are no rounds. Then only the memory limits the size
of the table. Of the workers of a host, folds have one with the threads of all (`cluster.worker.host_trainers`).

Partitions also move to workers that join during training, see `cluster.partitions.joined_workers`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping

from dboost.config import single_worker_values

#: Multiple of the fair load of the fullest worker at which moves end.
_GOAL = 1.05


def plan_moves(
    owners: Mapping[int, str], rows: Mapping[int, int], threads: Mapping[str, int], held: Mapping[str, int], limit: float
) -> dict[int, str]:
    """Return the new owners of the partitions to move.

    Parameters
    ----------
    owners : {partition: worker}
        The partitions that may be moved.
    rows : {partition: number of rows}
    threads : {worker: number of threads}
        Of all workers, including those without rows.
    held : {worker: number of rows}
        Further rows of workers, which are not moved.
    limit : float
        See `config.imbalance`.

    Returns
    -------
    {partition: worker}
    """
    loads = {worker: held.get(worker, 0) for worker in threads}
    sizes: dict[str, list[tuple[int, int]]] = {worker: [] for worker in threads}
    for i, worker in owners.items():
        if worker not in threads:  # the worker is leaving
            continue
        loads[worker] += rows[i]
        insort(sizes[worker], (rows[i], i))
    total = sum(loads.values())
    if not total:
        return {}
    fair = {worker: total * n / sum(threads.values()) for worker, n in threads.items()}

    def fullness(worker: str) -> tuple[float, str]:
        return loads[worker] / fair[worker], worker

    moves: dict[int, str] = {}
    if max(map(fullness, threads))[0] <= limit:
        return moves
    while True:
        (most, giver), (least, taker) = max(map(fullness, threads)), min(map(fullness, threads))
        if most <= _GOAL:
            return moves
        even = (most - least) / (1 / fair[giver] + 1 / fair[taker])
        candidates = sizes[giver]
        k = bisect_left(candidates, (round(even), -1))
        nearest = [candidates[j] for j in (k - 1, k) if 0 <= j < len(candidates)]
        nearest = [candidate for candidate in nearest if candidate[0] and (loads[taker] + candidate[0]) / fair[taker] < most]
        if not nearest:
            return moves
        size, i = min(nearest, key=lambda candidate: abs(candidate[0] - even))
        candidates.remove((size, i))
        insort(sizes[taker], (size, i))
        loads[giver] -= size
        loads[taker] += size
        moves[i] = taker
        if owners[i] == taker:
            del moves[i]


#: Time for a value in rounds, in times of that for whole trees.
_ROUNDS_COST = 1.2
#: Bytes that a value of a table may take while it is loaded: as float64, as a copy, and as code.
_VALUE_BYTES = 24


def is_for_one_worker(n_values: int, n_trees: int, n_threads: int, n_workers: int, n_at_once: int = 1) -> bool:
    """Return whether a worker alone trains on a table as fast as all workers together do in rounds.

    n_values : rows times features; n_trees : of an iteration; n_threads : of the worker; n_at_once : number of fits that run at
    the same time.
    """
    # Fraction of the time that a fit's part of the workers saves, apart from the rounds.
    saved = max(1.0 - _ROUNDS_COST * n_at_once / n_workers, 0.0)
    # The rounds of one tree take as long as `single_worker_values` of work; half of this time grows with the number of trees.
    most = single_worker_values() * n_threads * (n_trees + 1) / 2
    return n_values > 0 and most > 0 and n_values * n_trees * saved <= most


#: Values of a table that take as many bytes as what each further fit on the same rows adds to a row: its target, scores,
#: gradients and evaluation rows. Such fits share the codes.
_OF_FOLD = 6


def values_held(n_rows: int, n_columns: int, n_sharing: int) -> int:
    """Return the values that a worker holds while so many fits at the same time use rows there, in terms of `is_held`."""
    return n_rows * n_columns + (n_rows * n_sharing * _OF_FOLD if n_sharing > 1 else 0)


def is_held(n_values: int, memory_limit: int) -> bool:
    """Return whether a worker can load a table. n_values : rows times features; memory_limit : its bytes, 0 for no limit."""
    return memory_limit == 0 or n_values * _VALUE_BYTES <= memory_limit // 2
