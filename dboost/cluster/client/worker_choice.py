"""The workers to which a fit is confined (``workers=``), by name, address or resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from dboost.errors import InputTypeError, ParameterError


@dataclass(frozen=True)
class WorkerRecord:
    """A worker as the scheduler knows it."""

    version: str | None  # of dboost, see `cluster.transport.messages.WorkerVersion`
    reason: str | None
    host: str | None
    processors: str | None  # on which its process may run: bits of a hexadecimal number
    name: str
    resources: Mapping[str, float]
    n_threads: int
    memory_limit: int  # bytes, 0 if there is none
    is_running: bool  # as opposed to paused, or about to leave


@dataclass(frozen=True)
class WorkerChoice:
    """Names or addresses of workers, or resources that a worker must have; neither: all workers."""

    names: tuple[str, ...] = ()
    resources: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, workers: Any) -> WorkerChoice:
        """Return the choice for a value of ``workers=``.

        Raises
        ------
        InputTypeError, ParameterError
            For a value that is no choice of workers, or an empty one.
        """
        if workers is None:
            return cls()
        if isinstance(workers, Mapping):
            for name, amount in workers.items():
                if isinstance(amount, bool) or not isinstance(amount, Real) or not float(amount) > 0:
                    raise ParameterError(f"workers: the amount of resource {name!r} must be a positive number, not {amount!r}")
            choice = cls(resources=tuple((str(name), float(amount)) for name, amount in workers.items()))
        else:
            items = [workers] if isinstance(workers, str | int) else workers
            if not isinstance(items, Sequence | set | frozenset) or not all(isinstance(item, str | int) for item in items):
                raise InputTypeError(
                    f"workers={workers!r:.60} must be addresses or names of workers, or a dict of resources "
                    "such as {'GPU': 1}"
                )
            choice = cls(names=tuple(str(item) for item in items))
        if not choice:
            raise ParameterError("workers is empty: name at least one, or leave it out")
        return choice

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
                present = ", ".join(f"{record.name} at {address}" for address, record in list(known.items())[:5])
                more = f" and {len(known) - 5} more" if len(known) > 5 else ""
                raise ParameterError(f"workers: there is no worker {name!r}; there are {present or 'none'}{more}")
        if self.resources and not any(self.includes(address, record) for address, record in known.items()):
            raise ParameterError(f"workers: no worker has the resources {dict(self.resources)}")

    def __str__(self) -> str:
        return ", ".join(self.names) if self.names else str(dict(self.resources))
