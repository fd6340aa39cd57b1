"""Drift: how far other rows differ from the training rows.

The model holds a summary of its training rows (`dboost.model.data_summary`): bins of values with the number of rows in each.
Other rows are counted in the same bins, partition by partition on the workers that hold them; only counts are merged.
`Booster.drift` documents the statistics of each feature, of the raw scores and of the target.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial, reduce
from typing import Any

import numpy as np

from dboost._lazy_import import pd
from dboost.data import CategoryColumn, Table, open_table
from dboost.data.columns.chunk import matrix_of
from dboost.data.columns.roles import n_columns_of
from dboost.data.kinds.named_columns import column_named
from dboost.data.kinds.table_kinds import as_frame, in_parts
from dboost.errors import DataError, DBoostError, ParameterError
from dboost.inspection.row_functions import on_partitions
from dboost.model.data_summary import Summary
from dboost.model.ensemble import Ensemble, FlatEnsemble, number_of
from dboost.session.reference_sample import summary_of

Tallies = list[np.ndarray] | None
#: Rows that are counted at a time, and the bytes of their values.
_CHUNK_ROWS, _CHUNK_BYTES = 65_536, 64 * 2**20


def drift(ensemble: Ensemble, data: Any, target: Any = None, source: int | str = -1) -> pd.DataFrame:
    """Compare rows with the training rows; `Booster.drift` documents it."""
    number = number_of(ensemble, source) if ensemble.sources else 0
    summary = summary_of(ensemble, number)
    if summary is None:
        raise ParameterError(
            "the model keeps no summary of the data that it was trained on, so drift cannot be measured: it was trained with "
            "keep_summary=False, its file is of an earlier version, or it comes from elsewhere; "
            "continuing it on some data gives it one"
        )
    count = partial(_counted, FlatEnsemble(ensemble), ensemble, summary, target)
    tallies: Iterable[Tallies]
    if in_parts(data):
        column = None if target is None else column_named(target, data)
        if target is not None and column is None:
            raise ParameterError("drift: name the column of the target, where the data come in partitions")
        tallies = on_partitions(count, data, ensemble, *([] if column is None else [column]))
    else:
        tallies = [count(data)]
    counted = reduce(_added, tallies, None)
    if counted is None:
        raise DataError("drift: the data have no rows")
    names = [feature.name for feature in ensemble.features]
    outputs = ["score"] if ensemble.n_outputs == 1 else [f"score of {name}" for name in ensemble.outputs.names]
    frame = pd.DataFrame(summary.compare(counted, names, outputs))
    order = (frame["chance"] - frame["psi"]).sort_values(kind="stable").index
    first = ["what", "name", "drift"]
    frame = frame.loc[order, [*first, *(column for column in frame.columns if column not in first)]].reset_index(drop=True)
    record = ensemble.sources[number]
    frame.attrs = {"source": record["label"], "rows_before": record["rows"], "rows": int(counted[0].sum())}
    return frame


def _added(first: Tallies, second: Tallies) -> Tallies:
    if first is None or second is None:
        return second if first is None else first
    return [a + b for a, b in zip(first, second, strict=True)]


def _counted(
    flat: FlatEnsemble, ensemble: Ensemble, summary: Summary, target: Any, data: Any, part: int | None = None
) -> Tallies:
    """Return the tallies of the columns of a table; None without rows."""
    if not as_frame(data).n_rows:
        return None
    try:
        with open_table(data, target, like=ensemble.features, extend_categories=True, require_target=False) as table:
            return _of_table(flat, ensemble, summary, target, table)
    except DBoostError as error:
        where = "" if part is None else f"partition {part}: "
        raise type(error)(f"drift: {where}{error}") from None


def _of_table(flat: FlatEnsemble, ensemble: Ensemble, summary: Summary, target: Any, table: Table) -> list[np.ndarray]:
    truth = None if target is None else _target_of(table, ensemble)
    chunk = table.chunk(0)
    n_levels = np.array([np.inf if f.categories is None else len(f.categories) for f in ensemble.features])
    counted: list[list[np.ndarray]] = []
    together = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // (8 * len(ensemble.features))))
    for first in range(0, table.n_rows, together):
        rows = np.arange(first, min(first + together, table.n_rows))
        values = matrix_of(chunk, rows, np.float64)
        scores = None
        if summary.scores:  # the trees treat an unknown level as missing
            scores = flat.raw_scores(np.where(values >= n_levels, np.nan, values), n_threads=1)
        counted.append(summary.tally(values, scores, None if truth is None else truth[rows]))
    return [sum(parts[1:], parts[0]) for parts in zip(*counted, strict=True)]


def _target_of(table: Table, ensemble: Ensemble) -> np.ndarray:
    """Targets in the units of the summary, float64[n]; unknown classes get the code n_classes."""
    column, classes = table.target, ensemble.classes
    assert column is not None
    if n_columns_of(column) > 1:
        loss = ensemble.outputs.loss
        loss.targets.check_columns(loss.name, n_columns_of(column))
        return loss.targets.locations(column)  # type: ignore[arg-type]
    if classes is None:
        if isinstance(column, CategoryColumn):
            raise DataError("the target holds categories or text, the training target numbers")
        return column
    known = {level: float(code) for code, level in enumerate(classes)}
    if isinstance(column, CategoryColumn):
        return np.array([known.get(level, len(classes)) for level in column.categories], np.float64)[column.codes]
    values, codes = np.unique(column, return_inverse=True)
    return np.array([known.get(level, len(classes)) for level in values.tolist()], np.float64)[codes]
