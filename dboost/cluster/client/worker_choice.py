"""The workers that a fit may use: those to which it is confined (``workers=``), and that can run this version of dboost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from dboost.cluster.transport.messages import SILENT
from dboost.errors import DBoostError, InputTypeError, ParameterError, warn
from dboost.version import __version__


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


def version_error(address: str, record: WorkerRecord) -> DBoostError | None:
    """Return the error to raise if a worker cannot run this version of dboost; None for one that did not answer."""
    if record.version == SILENT:
        return None
    if record.reason is not None:
        return DBoostError(f"worker {address} cannot start dboost: {record.reason}")
    if record.version is None:
        return DBoostError(f"worker {address} has no dboost: install dboost {__version__} there")
    if record.version != __version__:
        return DBoostError(f"worker {address} has dboost {record.version}, this process {__version__}")
    return None


@dataclass(frozen=True)
class KnownWorkers:
    """The workers of a cluster, as its scheduler knew them at some time."""

    records: Mapping[str, WorkerRecord]  # by address
    n_fits: int  # that run on the cluster
    usable: list[str]  # addresses
    #: The reasons by address, empty for a worker that the user has not chosen. Workers that do not answer are in neither.
    unusable: dict[str, str]
    n_threads: dict[str, int]  # of the usable workers
    memory_limits: dict[str, int]  # bytes of the usable workers that are not paused, 0 for no limit

    @classmethod
    def of(cls, records: Mapping[str, WorkerRecord], n_fits: int, choice: WorkerChoice) -> KnownWorkers:
        """Return the workers of these records, for a fit that may use some of them."""
        usable: list[str] = []
        unusable: dict[str, str] = {}
        for address, record in records.items():
            if not choice.includes(address, record):
                unusable[address] = ""
            elif (error := version_error(address, record)) is not None:
                unusable[address] = str(error)
            elif record.version != SILENT:
                usable.append(address)
        n_threads = {address: records[address].n_threads for address in usable}
        memory_limits = {address: records[address].memory_limit for address in usable if records[address].is_running}
        return cls(records, n_fits, usable, unusable, n_threads, memory_limits)

    def check(self, choice: WorkerChoice) -> None:
        """Warn of workers that cannot be used; raise the error if the user named one, or if there are no others."""
        choice.check(self.records)
        chosen = {address: record for address, record in self.records.items() if choice.includes(address, record)}
        errors = {address: error for address in chosen if (error := version_error(address, chosen[address])) is not None}
        for address, error in errors.items():
            if choice.is_named(address, chosen[address]):
                raise error
        if errors and len(errors) == len(chosen):
            raise next(iter(errors.values()))
        for error in errors.values():
            warn(f"{error}; the fit leaves this worker out")

    def host_of(self, worker: str) -> str | None:
        """Return the name of a worker's host; None for a worker that is not known."""
        record = self.records.get(worker)
        return None if record is None else record.host

    def processors_of(self, worker: str) -> tuple[int, ...]:
        """Return the processors on which a worker's process may run; none for a worker that is not known."""
        record = self.records.get(worker)
        mask = 0 if record is None or record.processors is None else int(record.processors, 16)
        return tuple(processor for processor in range(mask.bit_length()) if mask >> processor & 1)
