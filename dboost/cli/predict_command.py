"""``dboost predict``: write a Parquet or CSV file of predictions, with one partition in memory at a time.

Rows keep their order. The column is ``prediction``; with ``--proba`` there is one column per class instead,
``probability_<class>``; with ``--interval`` there are ``lower`` and ``upper``, with ``--distribution`` ``loc`` and ``scale``.
Columns of ``--id`` come before them. Raw scores start at the column of ``--offset``. With a ``/`` at the end the output is a
folder with one Parquet file per partition of the input; ``-`` is CSV on standard output, and then the summary is on standard
error. With ``--delta`` the rows are appended to a Delta table, as one version.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import dboost
from dboost.cli import output_paths
from dboost.cluster.client.client import cluster_at
from dboost.data.columns.labels import Names
from dboost.data.sources.files import DELTA_LOG, reading
from dboost.data.sources.paths import load_table, open_path
from dboost.data.sources.row_filter import RowFilter
from dboost.errors import MORE_ROOM, DataError, MissingExtraError, ParameterError, is_full, shown
from dboost.files.filesystem import filesystem_of, without_query

if TYPE_CHECKING:
    from dboost.booster import Booster


#: Endings of files that the output may have; a name without an ending is a Parquet file, too.
_ENDINGS = ("", ".parquet", ".pq", ".csv")


def run(arguments: argparse.Namespace) -> None:
    is_file = not (arguments.delta or arguments.output.endswith("/"))
    if is_file and PurePath(without_query(arguments.output)).suffix.lower() not in _ENDINGS:
        raise ParameterError(
            f"--output {arguments.output}: predictions are written as Parquet or CSV, so name it …parquet or …csv"
        )
    to_stdout = arguments.output == "-" and not arguments.delta
    if arguments.delta:
        _check_delta(arguments.output, arguments.data)
    elif not to_stdout:
        output_paths.check(arguments.output, "--output")
    output_paths.check_separate({"--output": arguments.output}, {"MODEL": arguments.model, "DATA": arguments.data})
    booster = _load(arguments.model, arguments.data)
    if arguments.proba and not (booster.classes_ is not None or booster.outputs.is_classification):
        raise ParameterError(f"--proba needs a model of classes or labels; {arguments.model} predicts numbers")
    if arguments.interval and arguments.proba:
        raise ParameterError("--interval is for numbers and --proba for classes: use one of them")
    if arguments.distribution and (arguments.interval or arguments.proba):
        raise ParameterError("--distribution, --interval and --proba are different predictions: use one of them")
    if arguments.distribution:
        booster.outputs.distribution()  # raises the error of a model without
    if arguments.interval and booster.calibration is None:
        raise ParameterError(
            f"--interval needs a model that Booster.calibrate has given margins; {arguments.model} was not calibrated"
        )
    methods = {"proba": "predict_proba", "interval": "predict_interval", "distribution": "predict_distribution"}
    method = next((methods[option] for option in methods if getattr(arguments, option)), "predict")
    predict = getattr(booster, method)
    with cluster_at(arguments.scheduler, None) as client:
        lazy = predict(arguments.data, filter=arguments.filter, offset=arguments.offset)
        prefix = "probability_" if arguments.proba else ""
        tables = predictions(booster, lazy, arguments.data, client, arguments.id, arguments.filter, prefix)
        if arguments.delta:
            rows = _append(tables, arguments.output)
        elif to_stdout:
            rows = _write(tables, sys.stdout.buffer, pyarrow.csv.CSVWriter)
        elif arguments.output.endswith("/"):
            rows = _write_folder(tables, arguments.output)
        else:
            writer = pyarrow.csv.CSVWriter if without_query(arguments.output).lower().endswith(".csv") else pq.ParquetWriter
            with output_paths.whole(arguments.output) as file:
                rows = _write(tables, file, writer)
    where = "on standard output" if to_stdout else f"in {arguments.output}"
    summary = sys.stderr if to_stdout else output_paths.summary_file(arguments.output)
    print(f"{rows:,} predictions {where}", file=summary)


def _load(model: str, data: str) -> Booster:
    try:
        return dboost.load(model)
    except dboost.ModelFileError as error:
        endings = [PurePath(without_query(path)).suffix.lower() for path in (model, data)]
        if endings[0] in _ENDINGS[1:] and endings[1] in (".json", ".gz"):
            raise ParameterError(f"the model comes first and the rows second: write dboost predict {data} {model}") from error
        raise


def predictions(
    booster: Booster,
    lazy: Any,
    data: str,
    client: Any = None,
    ids: Sequence[str] = (),
    row_filter: Any = None,
    prefix: str = "",
) -> Iterator[pa.Table]:
    """Yield one table per partition of the data, in order; a partition is read when its table is requested.

    lazy : the predictions of the data, a lazy frame or series. client : optional; the workers of its cluster read some
    partitions ahead. ids : columns of the data that come first. row_filter : of the predictions. prefix : of the names of their
    columns, if they have several.
    """
    # A partition without rows has no values that the type could follow from.
    is_frame = lazy.ndim == 2
    kind = pa.float64() if is_frame or booster.classes_ is None else pa.array(booster.classes_).type
    ids = [*dict.fromkeys(ids)]
    prediction_names = [f"{prefix}{label}" for label in lazy.columns] if is_frame else ["prediction"]
    for name in ids:
        if name in prediction_names:
            raise ParameterError(f"--id: the predictions have a column {name!r}, too; give the column of DATA another name")
    beside = _partitions(_columns(data, ids, booster, row_filter), client) if ids else repeat(dict)
    for i, (compute, compute_ids) in enumerate(zip(_partitions(lazy, client), beside, strict=False)):
        try:
            table, kept = compute(), compute_ids()
        except (DataError, OSError, ValueError) as error:  # readers of damaged files raise the last two
            raise DataError(f"{data}, partition {i}: {error}") from error
        columns = {name: _plain(pa.array(kept[name])) for name in ids}
        if is_frame:
            columns |= {name: pa.array(column, kind) for name, (_, column) in zip(prediction_names, table.items(), strict=True)}
        else:
            columns[prediction_names[0]] = pa.array(table, kind)
        yield pa.table(columns)


def _plain(column: Any) -> Any:
    """Return an Arrow array without categories, whose codes differ from partition to partition."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _columns(data: str, names: Sequence[str], booster: Booster, row_filter: Any) -> Any:
    """Return columns of the data, lazily."""
    frame = open_path(data, booster.features, row_filter=None if row_filter is None else RowFilter(row_filter))
    for name in names:
        if name not in frame.columns:
            raise DataError(f"--id: {data} has no column {name!r}{Names.of(list(frame.columns)).hint(name)}")
    return frame[list(names)]


def _partitions(lazy: Any, client: Any) -> Iterator[Callable[[], Any]]:
    """Yield a function per partition that returns its predictions."""
    if client is None:
        for i in range(lazy.npartitions):
            yield lazy.partitions[i].compute
        return
    ahead: deque[Any] = deque()
    for part in lazy.to_delayed():
        ahead.append(client.compute(part))
        if len(ahead) > 2 * sum(client.nthreads().values()):
            yield ahead.popleft().result
    while ahead:
        yield ahead.popleft().result


def _write(tables: Iterator[pa.Table], file: Any, create: Callable[..., Any]) -> int:
    first = next(tables)
    rows = first.num_rows
    with create(file, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table.cast(first.schema))
            rows += table.num_rows
    return rows


def _check_delta(output: str, data: str) -> None:
    """Raise an error if predictions cannot be appended to a Delta table at a path."""
    if output == "-":
        raise ParameterError("--delta appends to a table: name its folder by --output")
    with reading(output):
        files, folder = filesystem_of(output)
        names = output_paths.content_of(files, folder)
        if (files.exists(folder) and not files.isdir(folder)) or (
            names and not files.isdir(f"{folder.rstrip('/')}/{DELTA_LOG}")
        ):
            raise ParameterError(f"--output {shown(output)}: there is no Delta table, but {'files' if names else 'a file'}")
        if filesystem_of(data)[1].rstrip("/") == folder.rstrip("/"):
            raise ParameterError(f"--output {shown(output)} is also DATA, which predictions would be mixed with")
        if names:
            load_table(output)
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--delta needs deltalake; it comes with the extra: pip install 'dboost[delta]'") from error


def _append(tables: Iterator[pa.Table], path: str) -> int:
    """Append all rows to a Delta table as one version: if this fails, the table stays as it was.

    A new table of this machine is made beside its place, and renamed when it is complete: files of a killed run in the place
    could not be told from other Parquet files, so the next run would refuse it.
    """
    from deltalake import write_deltalake

    with output_paths.new_local_folder(path, DELTA_LOG) as place:
        return _written(write_deltalake, tables, path, place)


def _written(write: Callable[..., None], tables: Iterator[pa.Table], path: str, place: str) -> int:
    """Append rows to the Delta table at `place`; path : of messages."""
    first = next(tables)
    rows, failed = 0, []

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        try:
            for table in chain([first], tables):
                rows += table.num_rows
                yield from table.cast(first.schema).to_batches()
        except BaseException as error:  # deltalake raises an error of its own
            failed.append(error)
            raise

    try:
        write(place, pa.RecordBatchReader.from_batches(first.schema, batches()), mode="append")
    except Exception as error:
        if failed:
            raise failed[0] from None
        text = re.sub("\x1b\\[[0-9;]*m", "", str(error)).replace("↳", ":")  # of a terminal
        text = re.sub(r"\s+:", ":", " ".join(text.split())) or type(error).__name__
        text += f": {MORE_ROOM}" if is_full(error) else ""
        raise DataError(f"cannot append to the Delta table {shown(path)}: {shown(text)}") from error
    return rows


def _write_folder(tables: Iterator[pa.Table], path: str) -> int:
    rows = 0
    with output_paths.whole_folder(path) as create:
        for i, table in enumerate(tables):
            with create(f"part-{i:05d}.parquet") as file:
                pq.write_table(table, file)
            rows += table.num_rows
    return rows
