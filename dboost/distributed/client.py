"""Here, or on a cluster? Decided without importing `distributed`, which costs a second that most processes need not spend."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dboost.data.frame import is_lazy, is_path
from dboost.errors import InputTypeError


@contextmanager
def client_for(data: Any, given: Any = None) -> Iterator[Any]:
    """The client to train with: the one that is given; for Dask collections and paths also the current one; else None.

    Raises
    ------
    InputTypeError
        For an asynchronous client, or something that is none.
    """
    if given is None and not ("distributed" in sys.modules and (is_lazy(data) or is_path(data))):
        yield None
        return
    try:
        from dboost.distributed.connection import current_client
    except ImportError as error:
        raise InputTypeError(f"client={given!r} needs the package distributed: {error}") from error
    with current_client(given) as found:
        yield found


@contextmanager
def cluster_at(scheduler: str | None, n_workers: int | None) -> Iterator[Any]:
    """A client of a scheduler's address, or of a cluster of local workers that lives as long; None when neither is wanted.

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
    """A client of a scheduler and one worker inside this process; None where the package distributed is not installed."""
    try:
        from dboost.distributed.connection import inside
    except ImportError:
        yield None
        return
    with inside() as client:
        yield client
