"""Predictions of streams (`data.sources.sources`), batch by batch: of the rows one batch is in memory at a time.

A `pyarrow.RecordBatchReader` gives a reader of predictions, which reads a batch when its predictions are requested. The column
is ``prediction``, or the columns are those of a frame of probabilities. Other streams give what the same rows in memory give:
the predictions of all rows, in the kind of the library that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from dboost._lazy_import import is_a, pa
from dboost.data.columns.read_plan import columns_like
from dboost.data.kinds.predictions_like import NAME
from dboost.data.kinds.predictor import Predictor
from dboost.data.kinds.table_kinds import predictions_like
from dboost.data.sources import Stream, stream_of
from dboost.data.sources.row_filter import RowFilter
from dboost.errors import DBoostError
from dboost.tuning import tuning


def stream_to_predict(data: Any, row_filter: RowFilter | None = None) -> Stream:
    """Return rows for which `is_stream` holds, in the batches that are predicted."""
    return stream_of(data, tuning().batch_bytes, row_filter)


def predict_stream(source: Stream, predictor: Predictor, at_end: Callable[[], None] | None) -> Any:
    """Return the predictions of a stream, see above.

    at_end : is called when all rows have been predicted, or None.

    Raises
    ------
    DataError
        If a column is missing or cannot be read; of a reader, when the batch is read.
    """
    try:
        columns = [str(name) for name in columns_like(source.names, True, predictor.features, predictor.named)]
    except DBoostError as error:
        raise type(error)(f"predict: {error}") from None
    if is_a(source.data, "pyarrow", "RecordBatchReader"):
        return _reader(source, columns, predictor, at_end)
    kind: Any = None
    results: list[np.ndarray] = []
    for partition in source.partitions(columns):
        kind = partition[:0] if kind is None else kind
        results.append(predictor.values(partition))
        del partition
    if at_end is not None:
        at_end()
    if kind is None:
        return predictions_like(predictor.of_no_rows, source.without_rows(), predictor.names)
    return predictions_like(np.concatenate(results), kind, predictor.names)


def _reader(source: Stream, columns: list[str], predictor: Predictor, at_end: Callable[[], None] | None) -> Any:
    def predicted() -> Iterator[Any]:
        for partition in source.partitions(columns):
            result = _batch(predictor.values(partition), predictor)
            del partition
            yield result
        if at_end is not None:
            at_end()

    batches = predicted()
    first = next(batches, None)
    if first is None:
        first = _batch(predictor.of_no_rows, predictor)
    schema = first.schema
    of_one_type = (batch if batch.schema == schema else batch.cast(schema) for batch in chain([first], batches))
    return pa.RecordBatchReader.from_batches(schema, of_one_type)


def _batch(values: np.ndarray, predictor: Predictor) -> Any:
    table = predictions_like(values, pa.table({}), predictor.names)
    if values.ndim == 1:
        is_text = not len(values) and values.dtype.kind in "OU"
        table = pa.table({NAME: table.cast(pa.string()) if is_text else table})
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)
