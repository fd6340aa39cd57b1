"""Selection of the Dask client, and of the workers to which a fit is confined (``workers=``). Does not import `distributed`
unless it is needed, because that takes about 1 s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any

from dboost.data.partition import is_source
from dboost.errors import InputTypeError, ParameterError


@contextmanager
def client_for(data: Any, given: Any = None, workers: Any = None) -> Iterator[Any]:
    """Yield the client to train with: the given one; for Dask collections and paths also the current one; else None.

    workers : the workers that may take part, which need a client.

    Raises
    ------
    InputTypeError
        For an asynchronous client, or an object that is not a client.
    ParameterError
        If there are workers but no client.
    """
    if given is None and not ("distributed" in sys.modules and is_source(data)):
        _check_no_workers(workers)
        yield None
        return
    from dboost.distributed.connection import current_client

    with current_client(given) as found:
        if found is None:
            _check_no_workers(workers)
        yield found


def _check_no_workers(workers: Any) -> None:
    if workers is not None:
        raise ParameterError(f"workers={workers!r:.60} needs a cluster: give its client")


@contextmanager
def cluster_at(scheduler: str | None, n_workers: int | None) -> Iterator[Any]:
    """Yield a client of the scheduler at an address, or of a temporary local cluster; None without either argument.

    Raises
    ------
    DBoostError
        When the scheduler cannot be reached.
    """
    if scheduler is None and n_workers is None:
        yield None
        return
    from dboost.distributed.connection import connected

    with connected(scheduler, n_workers) as client:
        yield client


@contextmanager
def small_cluster() -> Iterator[Any]:
    """Yield a client of a scheduler and two workers inside this process."""
    from dboost.distributed.connection import inside

    with inside() as client:
        yield client


@dataclass(frozen=True)
class WorkerRecord:
    """A worker as the scheduler knows it."""

    version: str | None  # of dboost, see `messages.WorkerVersion`
    reason: str | None
    name: str
    resources: Mapping[str, float]
    memory_limit: int  # bytes, 0 if there is none
    is_running: bool  # as opposed to paused, or about to leave


@dataclass(frozen=True)
class WorkerChoice:
    """Names or addresses of workers, or resources that a worker must have; neither: all workers."""

    names: tuple[str, ...] = ()
    resources: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, given: Any) -> WorkerChoice:
        """Return the choice for a value of ``workers=``.

        Raises
        ------
        InputTypeError, ParameterError
            For a value that is no choice of workers, or an empty one.
        """
        if given is None:
            return cls()
        if isinstance(given, Mapping):
            for name, amount in given.items():
                if isinstance(amount, bool) or not isinstance(amount, Real) or not float(amount) > 0:
                    raise ParameterError(f"workers: the amount of resource {name!r} must be a positive number, not {amount!r}")
            found = cls(resources=tuple((str(name), float(amount)) for name, amount in given.items()))
        else:
            items = [given] if isinstance(given, str | int) else given
            if not isinstance(items, Sequence | set | frozenset) or not all(isinstance(one, str | int) for one in items):
                raise InputTypeError(
                    f"workers={given!r:.60} must be addresses or names of workers, or a dict of resources such as {{'GPU': 1}}"
                )
            found = cls(names=tuple(str(one) for one in items))
        if not found:
            raise ParameterError("workers is empty: name at least one, or leave it out")
        return found

    def __bool__(self) -> bool:
        return bool(self.names or self.resources)

    def includes(self, address: str, record: WorkerRecord) -> bool:
        """Return whether the fit may use a worker."""
        if self.names:
            return self.is_named(address, record)
        return all(record.resources.get(name, 0.0) >= amount for name, amount in self.resources)

    def is_named(self, address: str, record: WorkerRecord) -> bool:
        """Return whether the user gave the worker's name or address."""
        return address in self.names or record.name in self.names

    def check(self, known: Mapping[str, WorkerRecord]) -> None:
        """Check that all names are those of workers, and that some worker has the resources.

        Raises
        ------
        ParameterError
        """
        for name in self.names:
            if not any(name in (address, record.name) for address, record in known.items()):
                there = ", ".join(f"{record.name} at {address}" for address, record in list(known.items())[:5])
                more = f" and {len(known) - 5} more" if len(known) > 5 else ""
                raise ParameterError(f"workers: there is no worker {name!r}; there are {there or 'none'}{more}")
        if self.resources and not any(self.includes(address, record) for address, record in known.items()):
            raise ParameterError(f"workers: no worker has the resources {dict(self.resources)}")

    def __str__(self) -> str:
        return ", ".join(self.names) if self.names else str(dict(self.resources))
