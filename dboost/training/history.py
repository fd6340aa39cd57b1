"""The history of a fit: one record per iteration, and its metrics as a model has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dboost.errors import ParameterError

#: The name of the training rows as predicted by the trees of a forest that did not draw them, see `trees.tree_means`.
OUT_OF_BAG = "oob"
#: Columns of the history that are neither losses nor metrics.
NOT_SCORES = frozenset((
    "iteration", "learning_rate", "bite", "visit", "seconds", "rows_kept", "bytes_read", "workers", "seconds_compute",
    "seconds_reduce", "seconds_wait",
))  # fmt: skip


def of_model(history: list[dict[str, Any]], last: int) -> list[dict[str, Any]]:
    """Return the last record of each iteration of the model; numbers of iterations that were cut back occur repeatedly."""
    latest = {record["iteration"]: record for record in history if record["iteration"] <= last}
    return [latest[iteration] for iteration in sorted(latest)]


def metrics_of(history: list[dict[str, Any]]) -> dict[str, tuple[float, ...]]:
    """Return the metrics of a history by name, one value per record."""
    names = [name for name in history[0] if name not in NOT_SCORES] if history else []
    return {name: tuple(record[name] for record in history) for name in names}


def appended(
    old: dict[str, tuple[float, ...]], n_old: int, new: dict[str, tuple[float, ...]], n_new: int
) -> dict[str, tuple[float, ...]]:
    """Return metrics by iteration, NaN where a metric was not evaluated."""
    nan = float("nan")
    return {
        name: (old.get(name, ()) + (nan,) * n_old)[:n_old] + new.get(name, (nan,) * n_new)
        for name in [*new, *(name for name in old if name not in new)]
    }


def check_columns(eval_sets: Sequence[str], metrics: Sequence[str]) -> None:
    """Raise ParameterError if a metric of an evaluation set and other values have the same column in the history."""
    taken = dict.fromkeys((*NOT_SCORES, "train_loss"), "a column that every history may have")
    for name in eval_sets:
        for metric in dict.fromkeys(metrics):  # one metric may be given twice
            column, values = f"{name}_{metric}", f"metric {metric!r} of evaluation set {name!r}"
            if column in taken:
                raise ParameterError(
                    f"{values} would be the column {column!r} of the history, which is {taken[column]}: "
                    "give the evaluation set or the metric another name"
                )
            taken[column] = values
