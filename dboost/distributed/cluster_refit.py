"""Leaf values estimated anew from rows on a cluster (see `training.leaf_refit`).

Loading goes as for a fit: each worker reads partitions, is surveyed, and encodes the target. But nothing is binned, for the
splits are there already: the raw values stay, and rows find their leaves by them (`session.worker_session`). The client leads
the conversation. Every call says which iteration is meant and how many advances came before, so repeating it does no harm; rows
that are read again because a worker was lost go through all advances so far before they answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from distributed import Client

from dboost.distributed.cluster_fit import check_partitions, draw_reference_sample, merge_features
from dboost.distributed.connection import Connection
from dboost.distributed.partitioned_table import PartitionedTable
from dboost.distributed.read_tasks import ReadTasks
from dboost.errors import DBoostError
from dboost.losses import Loss
from dboost.model.ensemble import Ensemble
from dboost.session.leaf_refit_rows import Advance
from dboost.session.reference_sample import with_summary
from dboost.session.target import continued, target_of
from dboost.session.warm_start import check_continues
from dboost.session.worker_session import RefitOrder
from dboost.training.initial_score import target_stats
from dboost.training.leaf_refit import before_trees, parameters_of, revalued
from dboost.training.plan import interruptible_reading
from dboost.trees.tree_task import GradientStats


class _RowsThere:
    """The rows of all workers, see `training.leaf_refit.Rows`."""

    def __init__(self, table: PartitionedTable, order: RefitOrder) -> None:
        self.n_rows = sum(table.n_kept.values())
        self._table, self._terms = table, order.loss.terms()
        self._iteration = -1
        self._past: list[Advance] = []
        table.build("refit_begin", lambda: (order, self._past))

    def turn_to(self, iteration: int) -> None:
        self._iteration = iteration

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        self._terms = self._terms if terms is None else terms
        step = Advance(self._iteration, values, self._terms)
        found = reduce(GradientStats.merge, self._answers("refit_advance", len(self._past), step))
        self._past.append(step)
        self._table.connection.attempts.reset(f"advance {len(self._past)} of the leaf values")
        return found

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return self._answers("refit_ask", self._iteration, function, arguments)

    def _answers(self, method: str, *arguments: Any) -> list[Any]:
        told = self._table.ask(method, *arguments)
        n_rows = sum(n for n, _ in told)
        if n_rows != self.n_rows:
            raise DBoostError(f"workers hold {n_rows} of the {self.n_rows} rows of the {self._table.name}")
        return [answer for n, answer in told if n]


def refit_leaves_on_cluster(
    client: Client,
    model: Ensemble,
    data: Any,
    target: Any,
    *,
    sample_weight: Any,
    offset: Any,
    decay: float,
    source_name: str | None,
    own: Loss | None,
    n_threads: int,
) -> Ensemble:
    """As `training.leaf_refit.refresh`, from a table that the workers read."""
    parameters = parameters_of(model, own)
    with Connection(client) as connection:
        with interruptible_reading():
            source = ReadTasks(
                data,
                target,
                sample_weight=sample_weight,
                offset=offset,
                like=model.features,
                n_parts=max(sum(client.nthreads().values()), 1),
            )
            table = PartitionedTable(connection, "data to estimate leaf values from", source)
            table.load()
            check_partitions(table)
            known = merge_features(source.plan, table.surveys)
            table.set_features(known)
            learned = target_of(model, parameters[0])
            continued(lambda: table.encode_target(learned))
            check_continues(model, known, learned)
            warm_start = before_trees(model)
            table.build("begin", lambda: (warm_start,))

            def ask(function: Callable[..., Any], *arguments: Any) -> list[Any]:
                return [answer for of_worker in table.ask("ask_rows", function, arguments) for answer in of_worker]

            start = target_stats(learned.loss, ask, continues=True)
            portrait = draw_reference_sample(table, len(known), parameters[-1].random_state)
            rows = _RowsThere(table, RefitOrder(model, start.loss, start.loss_unit))
        found = revalued(model, parameters, rows, start, decay=decay, source_name=source_name)
    return with_summary(found, portrait, n_threads)
