"""Leaf values estimated anew from rows on a cluster (see `training.refresh`).

Loading goes as for a fit: each worker reads partitions, is surveyed, and encodes the target. But nothing is binned, for the
splits are there already: the raw values stay, and rows find their leaves by them (`cluster.refitting`). The client leads the
conversation. Every call says which iteration is meant and how many advances came before, so repeating it does no harm; rows
that are read again because a worker was lost go through all advances so far before they answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from distributed import Client

from dboost.cluster.connection import Connection
from dboost.cluster.loading import check, portray, unite_features
from dboost.cluster.refitting import RefitOrder
from dboost.cluster.source import Source
from dboost.cluster.table import ClusterTable
from dboost.errors import DBoostError
from dboost.growth.task import Extremes
from dboost.losses import Loss
from dboost.model.ensemble import Ensemble
from dboost.training.boost import reading
from dboost.training.portrait import with_summary
from dboost.training.refit_rows import Advance
from dboost.training.refresh import before_trees, parameters_of, revalued
from dboost.training.replay import check_continues
from dboost.training.start import start_of
from dboost.training.target import continued, target_of


class _RowsThere:
    """The rows of all workers, see `training.refresh.Rows`."""

    def __init__(self, table: ClusterTable, order: RefitOrder) -> None:
        self.n_rows = sum(table.n_kept.values())
        self._table, self._terms = table, order.loss.terms()
        self._iteration = -1
        self._past: list[Advance] = []
        table.build("refit_begin", lambda: (order, self._past))

    def turn_to(self, iteration: int) -> None:
        self._iteration = iteration

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> Extremes:
        self._terms = self._terms if terms is None else terms
        step = Advance(self._iteration, values, self._terms)
        found = reduce(Extremes.merge, self._answers("refit_advance", len(self._past), step))
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


def refresh_on_cluster(
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
    """As `training.refresh.refresh`, from a table that the workers read."""
    parameters = parameters_of(model, own)
    with Connection(client) as connection:
        with reading():
            source = Source(
                data,
                target,
                sample_weight=sample_weight,
                offset=offset,
                like=model.features,
                n_parts=max(sum(client.nthreads().values()), 1),
            )
            table = ClusterTable(connection, "data to estimate leaf values from", source)
            table.load()
            check(table)
            known = unite_features(source.plan, table.surveys)
            table.settle(known)
            learned = target_of(model, parameters[0])
            continued(lambda: table.encode_target(learned))
            check_continues(model, known, learned)
            origin = before_trees(model)
            table.build("begin", lambda: (origin,))

            def ask(function: Callable[..., Any], *arguments: Any) -> list[Any]:
                return [answer for of_worker in table.ask("ask_rows", function, arguments) for answer in of_worker]

            start = start_of(learned.loss, ask, continues=True)
            portrait = portray(table, len(known), parameters[-1].random_state)
            rows = _RowsThere(table, RefitOrder(model, start.loss, start.loss_unit))
        found = revalued(model, parameters, rows, start, decay=decay, source_name=source_name)
    return with_summary(found, portrait, n_threads)
