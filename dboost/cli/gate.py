"""``--gate METRIC:MARGIN`` of ``dboost train``: a new model replaces the old one only if it is not worse on held-out rows.

The old model is the file at ``--output``, and the held-out rows are those of ``--eval``; without an old model there is nothing
to compare. The process of the command evaluates both models, by the same function of the same rows: the old one before the
training, so that a mistake in the option ends the command at once.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import dboost
from dboost.cli import HeldBackError
from dboost.data.tables.eval_tables import eval_tables, named_in_messages
from dboost.display import number
from dboost.errors import DataError, ParameterError, shown
from dboost.files.atomic_write import FileMissingError
from dboost.inspection.row_functions import EvaluatedRows

#: Roles of the rows that decide a metric.
_ROLES = ("sample_weight", "offset")


@dataclass(frozen=True)
class _Score:
    metric: str
    value: float
    larger_is_better: bool
    n_rows: int


class Gate:
    """What the new model has to reach.

    Parameters
    ----------
    arguments : argparse.Namespace
        Of the command; `gate` is its option.
    data : path or table
        The held-out rows.
    parameters : mapping
        Keywords of `dboost.fit`; its roles that are columns are those of the held-out rows, too.

    Raises
    ------
    ParameterError
        If the option is no metric with a margin, or the metric does not go with the old model.
    DataError
        If the held-out rows lack a column of the old model, or its metric is not defined on them.
    """

    def __init__(self, arguments: argparse.Namespace, data: Any, parameters: Mapping[str, Any]) -> None:
        self._metric, self._margin = parse_gate(arguments.gate)
        self._model, self._data, self._name = arguments.output, data, shown(arguments.eval)
        target = dboost.Dataset(arguments.data).target if arguments.target is None else arguments.target
        self._roles = {"target": target} | {role: parameters[role] for role in _ROLES if parameters.get(role) is not None}
        self._old: _Score | None = None
        with suppress(FileMissingError):
            self._old = self._score(dboost.load(self._model))
        if self._old is not None and math.isnan(self._old.value):
            raise DataError(f"--gate: {self._metric} is not defined on the rows of {self._name}, which may be of one class")

    def check(self, booster: dboost.Booster) -> str:
        """Compare a new model with the old one; return a text for the summary.

        Raises
        ------
        HeldBackError
            If the new model is worse than the old one by more than the margin.
        """
        new, old = self._score(booster), self._old
        if old is None:
            return f"; gate: {new.metric} {number(new.value)}, no model before"
        loss = old.value - new.value if new.larger_is_better else new.value - old.value
        if not loss <= self._margin:  # also if the metric of the new model is NaN
            model, margin = shown(self._model), f" (margin {number(self._margin)})" if self._margin else ""
            raise HeldBackError(
                f"the new model was held back: its {new.metric} on the {new.n_rows:,} rows of {self._name} is "
                f"{number(new.value)}, that of {model} {number(old.value)}{margin}; {model} is unchanged"
            )
        return f"; gate: {new.metric} {number(new.value)}, was {number(old.value)}"

    def _score(self, booster: dboost.Booster) -> _Score:
        (table,) = eval_tables(self._data, self._roles)
        roles = {role: column for role, column in table.roles.items() if role != "target"}
        with named_in_messages(self._name):
            rows = EvaluatedRows(booster.ensemble, table.data, table.roles["target"], **roles)
        try:
            metric, value = rows.metric(self._metric)
        except ParameterError as error:
            raise ParameterError(f"--gate: {error}") from error
        return _Score(metric.name, value, metric.larger_is_better, len(rows.raw))


def parse_gate(text: str) -> tuple[str, float]:
    """Return metric and margin of ``METRIC`` or ``METRIC:MARGIN``.

    Raises
    ------
    ParameterError
        If the margin is no number from 0 on.
    """
    metric, _, margin = text.partition(":")
    try:
        value = float(margin or 0)
    except ValueError:
        value = math.nan
    if not metric or not 0 <= value < math.inf:
        raise ParameterError(f"--gate {text}: give a metric and how much worse the new model may be, such as auc:0.002")
    return metric, value
