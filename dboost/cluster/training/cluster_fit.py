"""Fit and leaf refit on a cluster: the steps of a fit are those of `training.fit`, on `ClusterBackend`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed import Client

from dboost.cluster.client.connection import Connection
from dboost.cluster.client.worker_choice import WorkerChoice
from dboost.cluster.partitions.read_tasks import ReadTasks
from dboost.cluster.training.cluster_backend import ClusterBackend
from dboost.model.ensemble import Ensemble
from dboost.training.fit import FitResult, train
from dboost.training.leaf_refit import refit_leaves
from dboost.training.request import FitRequest


def fit_on_cluster(client: Client, request: FitRequest, make_tasks: Callable[[], ReadTasks]) -> FitResult:
    """Train on the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
    request : FitRequest
        Its `n_threads` applies to this process, its budget to each worker.
    make_tasks : callable
        Makes the tasks that read the training data.
    """
    with Connection(client, WorkerChoice.of(request.workers)) as connection:
        return train_on(connection, request, ClusterBackend(connection, make_tasks, request.n_threads))


def train_on(connection: Connection, request: FitRequest, backend: ClusterBackend) -> FitResult:
    """Train on rows of a cluster; the result has the lost workers."""
    connection.progress = request.progress
    result = train(request, backend)
    result.lost_workers = connection.losses
    return result


def refit_on_cluster(client: Client, model: Ensemble, make_tasks: Callable[[], ReadTasks], **options: Any) -> Ensemble:
    """Estimate leaf values from a table that the workers read; options : of `training.leaf_refit.refit_leaves`."""
    with Connection(client) as connection:
        backend = ClusterBackend(connection, make_tasks, options["n_threads"], "data to estimate leaf values from")
        return refit_leaves(model, backend, **options)


def n_partitions_of(client: Client) -> int:
    """Return the number of partitions for data in memory: one for each thread of the cluster."""
    return max(sum(client.nthreads().values()), 1)
