"""What travels between client, scheduler and workers, and how.

Three parties speak: the client (`connection.py`), the reducer in the scheduler's process (`reducer.py`), and on every worker
the holder of shards (`holder.py`). Every message is one call: the name of a method, and its arguments pickled by us, so that
neither Dask's message format nor the scheduler, which does not deserialise, needs to know them. Every answer says "OK" in so
many words: a process that does not know the call answers with nothing at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distributed.protocol import pickle as dask_pickle

from dboost.session.protocol import SessionRef

#: Name of both plugins, and prefix of all calls and log topics.
NAME = "dboost"
#: How the keys of tasks begin that read a partition.
READING = "dboost-read-"
OK, LOST, FAILED, UNKNOWN, STALE = "OK", "lost", "failed", "unknown", "stale"
CANCELLED, SILENT = "cancelled", "silent"


class LostWorkers(Exception):
    """Some sessions are lost: their workers are gone, or no longer hold what they held; recovery decides what to do."""

    def __init__(self, sessions: Sequence[SessionRef]) -> None:
        super().__init__(", ".join(sorted({ref.worker for ref in sessions})))
        self.sessions = list(sessions)


class FitCancelled(Exception):
    """Somebody cancelled the fit."""


@dataclass(frozen=True)
class Timing:
    """Where the seconds of some rounds went: the slowest worker's own work, merging and deciding, and all the rest."""

    n_rounds: int = 0
    compute: float = 0.0
    reduce: float = 0.0
    wait: float = 0.0
    n_bytes: int = 0

    def __add__(self, other: Timing) -> Timing:
        return Timing(
            self.n_rounds + other.n_rounds,
            self.compute + other.compute,
            self.reduce + other.reduce,
            self.wait + other.wait,
            self.n_bytes + other.n_bytes,
        )


def pack(message: Any) -> bytes:
    """Whatever it is, also what a user defined in a script."""
    return dask_pickle.dumps(message)
