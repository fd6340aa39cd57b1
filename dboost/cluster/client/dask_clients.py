"""The Dask client of a call: the given one, that of the task that calls, the current one, or one of a new cluster."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import dask
from distributed import Client, LocalCluster, get_worker, worker_client
from distributed.security import Security
from distributed.worker import thread_state

from dboost.cluster.client.client_loss import SchedulerWatch, address_of, reporting_loss
from dboost.errors import DBoostError, InputTypeError
from dboost.kernels.threads import usable_processors
from dboost.tuning import tuning


@contextmanager
def current_client(requested: Any) -> Iterator[Client | None]:
    """Yield the given client, else that of the Dask task that calls, else the current one, else None.

    Raises
    ------
    InputTypeError
        For an asynchronous client, or an object that is not a client.
    ClientLost
        When the client or its cluster is closed, also in the meantime.
    """
    if requested is not None:
        with reporting_loss(checked(requested)):
            _wait_for_scheduler(requested)
            yield requested
        return
    if _in_task():
        with worker_client() as client:  # frees the worker's thread for other tasks, including those that read partitions
            yield client
        return
    if dask.config.get("scheduler", None) in (None, "dask.distributed", "distributed"):
        client = _default_client()
        with nullcontext() if client is None else reporting_loss(checked(client)):
            if client is not None:
                _wait_for_scheduler(client)
            yield client
        return
    yield None


def _wait_for_scheduler(client: Client) -> None:
    """Return when the scheduler answers; warn if that takes long. Calls that Dask makes for dboost wait without a word."""
    watch = SchedulerWatch(client, address_of(client))
    watch.run(watch.ping())


@contextmanager
def connected(scheduler: str | None, n_workers: int | None) -> Iterator[Client]:
    """Yield a client of a scheduler, or of a new local cluster; it is the current client until it is closed.

    Raises
    ------
    DBoostError
        When the scheduler cannot be reached.
    """
    if scheduler is not None:
        before = _default_client()
        try:
            client = Client(scheduler, timeout=tuning().connect_timeout)
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # of these the last two by Dask's settings of TLS
            half_made = _default_client()  # Dask closes it after errors of the network only
            if half_made is not None and half_made is not before:
                half_made.close()
            raise DBoostError(f"the scheduler at {scheduler} cannot be reached: {_reason(scheduler, error)}") from error
        with client:
            yield client
        return
    n_threads = math.ceil(len(usable_processors()) / (n_workers or 1))  # as LocalCluster divides them
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=n_threads, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def _default_client() -> Client | None:
    try:
        return Client.current()
    except ValueError:
        return None


def _reason(scheduler: str, error: Exception) -> str:
    """Return why a client has not connected. Dask names neither missing certificates nor missing files of them."""
    files = Security().get_tls_config_for_role("client")
    absent = [f"{key} = {file}" for key, file in files.items() if file and "\n" not in file and not os.path.exists(file)]
    if isinstance(error, FileNotFoundError) and absent:
        return f"there is no file of distributed.comm.tls in Dask's configuration at {', '.join(absent)}"
    if isinstance(error, TypeError) and scheduler.startswith("tls:"):
        return "TLS needs certificates: set distributed.comm.tls (ca-file, client.cert and client.key) in Dask's configuration"
    return str(error)


@contextmanager
def inside() -> Iterator[Client]:
    """Yield a client of a scheduler and two workers of one thread, all in this process and not reachable from outside."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, silence_logs=logging.ERROR
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def checked(client: Any) -> Client:
    if not isinstance(client, Client):
        raise InputTypeError(f"client must be a distributed.Client, not {type(client).__name__}")
    if client.asynchronous:
        raise InputTypeError(
            "this client is asynchronous: await dboost.fit_async(…) instead of calling dboost.fit, or make another client with "
            "Client(address)"
        )
    return client


def seceded() -> AbstractContextManager[Any]:
    """Return a context in which the Dask task that calls frees its thread of the worker; it does nothing outside a task.

    For every wait for other tasks, such as those that read partitions: else tasks that wait may occupy all threads. May be
    nested.
    """
    return worker_client() if _in_task() and hasattr(thread_state, "start_time") else nullcontext()


def _in_task() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True
