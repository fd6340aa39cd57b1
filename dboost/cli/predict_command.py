"""``dboost predict``: write a Parquet or CSV file of predictions, with one partition in memory at a time.

Rows keep their order. The column is ``prediction``; with ``--proba`` there is one column per class instead,
``probability_<class>``. With a ``/`` at the end the output is a folder with one Parquet file per partition of the input.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import dboost
from dboost.cli import output_paths
from dboost.distributed.client import cluster_at
from dboost.errors import DataError, ParameterError

if TYPE_CHECKING:
    from dboost.booster import Booster


#: Endings of files of other formats, which the output must not have.
_OTHER_FORMATS = (".tsv", ".txt", ".json", ".xlsx", ".gz", ".zip")


def run(arguments: argparse.Namespace) -> None:
    if arguments.output.lower().endswith(_OTHER_FORMATS):
        raise ParameterError(
            f"--output {arguments.output}: predictions are written as Parquet or CSV, so name it …parquet or …csv"
        )
    output_paths.check(arguments.output, "--output")
    output_paths.check_separate({"--output": arguments.output}, {"MODEL": arguments.model, "DATA": arguments.data})
    booster = dboost.load(arguments.model)
    if arguments.proba and booster.classes_ is None:
        raise ParameterError(f"--proba needs a model of classes; {arguments.model} predicts numbers")
    with cluster_at(arguments.scheduler, None) as client:
        tables = predictions(booster, arguments.data, arguments.proba, client)
        if arguments.output.endswith("/"):
            rows = _write_folder(tables, arguments.output)
        else:
            rows = _write_file(tables, arguments.output)
    print(f"{rows:,} predictions in {arguments.output}")


def predictions(booster: Booster, data: str, proba: bool, client: Any = None) -> Iterator[pa.Table]:
    """Yield one table per partition of the data, in order; a partition is read when its table is requested.

    client : optional; the workers of its cluster read some partitions ahead.
    """
    lazy = booster.predict_proba(data) if proba else booster.predict(data)
    # A partition without rows has no values that the type could follow from.
    kind = pa.float64() if proba or booster.classes_ is None else pa.array(booster.classes_).type
    for i, compute in enumerate(_partitions(lazy, client)):
        try:
            table = compute()
        except (DataError, OSError, ValueError) as error:  # readers of damaged files raise the last two
            raise DataError(f"{data}, partition {i}: {error}") from error
        if proba:
            yield pa.table({f"probability_{label}": pa.array(column, kind) for label, column in table.items()})
        else:
            yield pa.table({"prediction": pa.array(table, kind)})


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


def _write_file(tables: Iterator[pa.Table], path: str) -> int:
    first = next(tables)
    rows = first.num_rows
    create = pyarrow.csv.CSVWriter if path.lower().endswith(".csv") else pq.ParquetWriter
    with output_paths.whole(path) as file, create(file, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
            rows += table.num_rows
    return rows


def _write_folder(tables: Iterator[pa.Table], path: str) -> int:
    rows = 0
    with output_paths.whole_folder(path) as create:
        for i, table in enumerate(tables):
            with create(f"part-{i:05d}.parquet") as file:
                pq.write_table(table, file)
            rows += table.num_rows
    return rows
