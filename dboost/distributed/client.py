"""Selection of the Dask client. Does not import `distributed` unless it is needed, because that takes about 1 s."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dboost.data.partition import is_source
from dboost.errors import ParameterError


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
