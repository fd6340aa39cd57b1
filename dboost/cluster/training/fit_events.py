"""Events of a fit: the client logs them under Dask's topic "dboost", see `cluster/monitoring/fit_registry.py`.

The client does not wait for events: they travel with the next message to the scheduler, and failing to send one does not end
the fit.
"""

from __future__ import annotations

from dboost.cluster.client.connection import Connection
from dboost.cluster.monitoring.fit_registry import PHASES
from dboost.cluster.partitions.partitioned_table import PartitionedTable
from dboost.training.callbacks import Iteration
from dboost.training.history import metrics_of


class FitEvents:
    """A callback that logs every iteration, and tells the connection its number. table : the training data."""

    def __init__(self, connection: Connection, table: PartitionedTable) -> None:
        self._connection = connection
        self._table = table
        self._held: list[tuple[str, tuple[int, ...]]] = []

    def begin(self, loss: str, n_rows: int, n_features: int) -> None:
        """Log that loading has finished. loss : name of the loss."""
        self._connection.record_event("boosting", loss=loss, rows=n_rows, features=n_features)
        self._log_rows_of_workers()

    def __call__(self, now: Iteration) -> None:
        record = now.record
        self._connection.iteration = now.iteration
        scores = {name: float(value) for name, (value,) in metrics_of([record]).items()}
        phases = {phase: float(record[f"seconds_{phase}"]) for phase in PHASES}
        progress = {"iteration": now.iteration, "n_iterations": now.n_iterations, "rows": int(record["rows_kept"])}
        self._connection.record_event("iteration", **progress, seconds=float(record["seconds"]), scores=scores, **phases)
        self._log_rows_of_workers()

    def _log_rows_of_workers(self) -> None:
        """Log the number of rows of each worker if it has changed."""
        held = [(share.ref.worker, share.partition_ids) for share in self._table.worker_partitions]
        if held == self._held:
            return
        self._held = held
        n_kept = self._table.n_kept
        rows: dict[str, int] = {}
        for worker, partition_ids in held:
            rows[worker] = rows.get(worker, 0) + sum(n_kept.get(i, 0) for i in partition_ids)
        self._connection.record_event("holding", rows={worker: n for worker, n in sorted(rows.items()) if n})
