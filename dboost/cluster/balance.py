"""Which partitions are to be moved after loading, so that workers hold rows in proportion to their threads.

Dask reads partitions wherever a thread is free, or where they lie; in time that comes out even, in rows often not: with a few
partitions for each thread one worker easily holds half as much again as the others, and every tree waits for it. All columns of
a table are as wide in each partition, so rows stand for bytes.

The rule: nothing is moved while the fullest worker holds no more than `dboost.imbalance` (1.2) times its fair share. Partitions
of a persisted collection lie where somebody has put them; they are moved only beyond `dboost.imbalance-persisted` (1.5). What
is moved goes from the fullest worker to the emptiest, the partition that comes closest to making the two even, until the
fullest is within 5 % of its share or no such move makes it less full. A partition is never divided.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping

import dask

from dboost.errors import ParameterError

#: How close to a fair share is close enough, once something is moved.
_GOAL = 1.05


def tolerance(persisted: bool) -> float:
    """How many times its fair share a worker may hold before something is moved.

    Raises
    ------
    ParameterError
        When the configuration says something else than a number from 1 on.
    """
    key, default = ("dboost.imbalance-persisted", 1.5) if persisted else ("dboost.imbalance", 1.2)
    given = dask.config.get(key, default)
    try:
        found = float(given)
    except (TypeError, ValueError):
        found = 0.0
    if not found >= 1.0:
        raise ParameterError(f"{key}={given!r} in Dask's configuration is not a number from 1 on")
    return found


def plan_moves(
    owners: Mapping[int, str], rows: Mapping[int, int], threads: Mapping[str, int], held: Mapping[str, int], limit: float
) -> dict[int, str]:
    """New owners of some partitions.

    Parameters
    ----------
    owners : {partition: worker}
        Those that may be moved.
    rows : {partition: number of rows}
    threads : {worker: number of threads}
        Of all workers, those without rows too.
    held : {worker: rows}
        What workers hold besides, which stays.
    limit : float
        See `tolerance`.

    Returns
    -------
    {partition: worker}
    """
    loads = {worker: held.get(worker, 0) for worker in threads}
    sizes: dict[str, list[tuple[int, int]]] = {worker: [] for worker in threads}
    for i, worker in owners.items():
        if worker not in threads:  # it is leaving
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
        near = [candidates[j] for j in (k - 1, k) if 0 <= j < len(candidates)]
        near = [one for one in near if one[0] and (loads[taker] + one[0]) / fair[taker] < most]
        if not near:
            return moves
        size, i = min(near, key=lambda one: abs(one[0] - even))
        candidates.remove((size, i))
        insort(sizes[taker], (size, i))
        loads[giver] -= size
        loads[taker] += size
        moves[i] = taker
        if owners[i] == taker:
            del moves[i]
