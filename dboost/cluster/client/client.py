"""Selection of the Dask client. Does not import `distributed` unless it is needed, because that takes about 1 s."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from dboost.data.kinds.table_kinds import is_source
from dboost.errors import ParameterError


@contextmanager
def client_for(data: Any, requested: Any = None, workers: Any = None) -> Iterator[Any]:
    """Yield the client to train with: the given one; for Dask collections and paths also the current one; else None.

    workers : the workers that may take part, which need a client.

    Raises
    ------
    InputTypeError
        For an asynchronous client, or an object that is not a client.
    ParameterError
        If there are workers but no client.
    """
    context: AbstractContextManager[Any] = nullcontext()
    if requested is not None or ("distributed" in sys.modules and is_source(data)):
        from dboost.cluster.client.dask_clients import current_client

        context = current_client(requested)
    with context as client:
        if client is None and workers is not None:
            raise ParameterError(f"workers={workers!r:.60} needs a cluster: give its client")
        yield client


def cluster_at(scheduler: str | None, n_workers: int | None) -> AbstractContextManager[Any]:
    """Return a client of the scheduler at an address, or of a temporary local cluster; None without either argument.

    Raises
    ------
    DBoostError
        When the scheduler cannot be reached.
    """
    if scheduler is None and n_workers is None:
        return nullcontext()
    from dboost.cluster.client.dask_clients import connected

    return connected(scheduler, n_workers)
