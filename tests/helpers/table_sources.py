"""Tables that are streams of batches, or parts that are read one by one: `STREAMS`, `PARTS`; each writes what it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.table_forms import to_arrow, write_csv


def table_of(frame: pd.DataFrame) -> pa.Table:
    return to_arrow(frame)


def files_of(frame: pd.DataFrame, folder: Path, n_files: int = 12, kind: str = "parquet") -> Path:
    """Write the rows to files whose natural order is not that of their names."""
    folder.mkdir()
    for k, some in enumerate(np.array_split(np.arange(len(frame)), n_files)):
        path = folder / f"part-{k}.{kind}"
        if kind == "csv":
            write_csv(frame.iloc[some], path)
        else:
            pq.write_table(table_of(frame.iloc[some]), path, row_group_size=100)
    return folder


def reader_of(frame: pd.DataFrame, _: Path) -> Any:
    return table_of(frame).to_reader(max_chunksize=300)


class Exporter:
    """An object that is nothing but an Arrow stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class _Table(Exporter):
    """A table of a library that is not known: its own readers return batches of its own."""

    def to_reader(self) -> Any:
        return iter([self])


def lazy_polars(frame: pd.DataFrame, _: Path) -> Any:
    return pytest.importorskip("polars").from_arrow(table_of(frame)).lazy()


def _scanned(frame: pd.DataFrame, folder: Path) -> Any:
    return pytest.importorskip("polars").scan_parquet(
        [folder / f"part-{k}.parquet" for k in range(len(list(files_of(frame, folder).iterdir())))]
    )


def _duckdb(frame: pd.DataFrame, _: Path) -> Any:
    return pytest.importorskip("duckdb").from_arrow(table_of(frame))


def _scanner(frame: pd.DataFrame, _: Path) -> Any:
    from pyarrow import dataset

    return dataset.dataset(table_of(frame)).scanner(batch_size=700)


STREAMS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "RecordBatchReader": reader_of,
    "__arrow_c_stream__": lambda frame, _: Exporter(table_of(frame)),
    "table of another library": lambda frame, _: _Table(table_of(frame)),
    "pyarrow scanner": _scanner,
    "polars LazyFrame": lazy_polars,
    "polars scan_parquet": _scanned,
    "DuckDB relation": _duckdb,
}


def _dataset(frame: pd.DataFrame, folder: Path) -> Any:
    from pyarrow import dataset

    n_files = len(list(files_of(frame, folder).iterdir()))
    return dataset.dataset([folder / f"part-{k}.parquet" for k in range(n_files)])


def _fragment(frame: pd.DataFrame, folder: Path) -> Any:
    files_of(frame, folder, n_files=1)
    from pyarrow import dataset

    return next(dataset.dataset(folder).get_fragments())


def _arrow_files(frame: pd.DataFrame, folder: Path) -> Any:
    from pyarrow import dataset, feather

    folder.mkdir()
    paths = [folder / f"part-{k}.arrow" for k in range(12)]
    for path, some in zip(paths, np.array_split(np.arange(len(frame)), 12), strict=True):
        feather.write_feather(table_of(frame.iloc[some]), path)
    return dataset.dataset(paths, format="feather")


def appended(frame: pd.DataFrame, append: Callable[[pa.Table], Any]) -> None:
    for some in np.array_split(np.arange(len(frame)), 5):
        append(table_of(frame.iloc[some]))


def _delta(frame: pd.DataFrame, folder: Path) -> Any:
    deltalake = pytest.importorskip("deltalake")
    appended(frame, lambda rows: deltalake.write_deltalake(folder, rows, mode="append"))
    return deltalake.DeltaTable(folder)


def _iceberg(frame: pd.DataFrame, folder: Path) -> Any:
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    folder.mkdir()
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/rows")
    catalog.create_namespace("a")
    table = catalog.create_table("a.rows", table_of(frame).schema)
    appended(frame, table.append)
    return table


PARTS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "Parquet folder": files_of,
    "pyarrow dataset": _dataset,
    "pyarrow fragment": _fragment,
    "pyarrow dataset of Arrow files": _arrow_files,
    "Delta": _delta,
    "Iceberg": _iceberg,
    "CSV folder": lambda frame, folder: files_of(frame, folder, kind="csv"),
}
SOURCES = STREAMS | PARTS
