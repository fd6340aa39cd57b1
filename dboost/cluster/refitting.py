"""One worker's rows while leaf values are estimated anew; the client's side of the conversation is `cluster.refit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dboost.cluster.intake import Intake
from dboost.cluster.messages import MissingPartitions
from dboost.growth.task import Extremes
from dboost.losses import Loss
from dboost.model.ensemble import Ensemble
from dboost.shard.loading import kept_rows
from dboost.training.budget import Budget
from dboost.training.refit_rows import Advance, RefitRows
from dboost.training.replay import blocks


@dataclass(frozen=True, eq=False)
class RefitOrder:
    """What workers are told: the model, the loss as it has come to know the rows, and the unit of exact loss sums."""

    model: Ensemble
    loss: Loss
    coarse: float


class Refitting(Intake):
    """One worker's partitions while leaf values are estimated anew; methods are called by name, like those of `Intake`."""

    def __init__(self, n_threads: int, spare: Budget | None = None) -> None:
        super().__init__(n_threads, spare)
        self._refits: dict[str, RefitRows | None] = {}

    def refit_begin(self, batch: str, order: RefitOrder, past: list[Advance]) -> None:
        """Get the rows of a table ready, and let them go through what the others have been through."""
        if batch in self._refits:
            return
        of_batch = self._gathered(batch)
        table, y, weight = of_batch.table, of_batch.y, of_batch.table.weight
        kept = kept_rows(weight)
        if kept is not None and weight is not None:
            y, weight = y[kept], weight[kept]
        rows = None
        if len(y):
            raw, matrices = of_batch.begun, list(blocks(table, kept))
            assert raw is not None
            rows = RefitRows(order.model, matrices, y, weight, raw, order.loss, order.coarse, self._n_threads)
            for number, step in enumerate(past):
                rows.advance(number, step)
        self._refits[batch] = rows

    def refit_advance(self, batch: str, number: int, step: Advance) -> tuple[int, Extremes | None]:
        """The number of rows, and see `RefitRows.advance`; None where there are no rows."""
        rows = self._known_rows(batch)
        return (0, None) if rows is None else (rows.n_rows, rows.advance(number, step))

    def refit_ask(
        self, batch: str, iteration: int, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> tuple[int, Any]:
        """The number of rows, and see `RefitRows.ask`; None where there are no rows."""
        rows = self._known_rows(batch)
        return (0, None) if rows is None else (rows.n_rows, rows.ask(iteration, function, *arguments))

    def _known_rows(self, batch: str) -> RefitRows | None:
        if batch not in self._refits:
            raise MissingPartitions(batch)
        return self._refits[batch]
