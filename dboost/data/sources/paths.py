"""Parquet and CSV files, Delta Lake and Apache Iceberg tables by their paths, as sources.

See `data.sources.files` for the files of a path, and `data.sources.parquet`, `data.sources.csv_files` and
`data.sources.table_versions` for the formats. Columns of Parquet files and of table formats keep their Arrow types.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from dboost._lazy_import import is_a
from dboost.data.kinds.table_kinds import is_stored_table
from dboost.data.sources import Parts
from dboost.data.sources.arrow_datasets import open_dataset
from dboost.data.sources.csv_files import read_csv, text_columns
from dboost.data.sources.delta_tables import load_delta_folder
from dboost.data.sources.files import CSV, DELTA_LOG, ICEBERG, PARQUET, DataFile, existing_files, items_of, reading, shown_path
from dboost.data.sources.iceberg_tables import load_iceberg_metadata
from dboost.data.sources.parquet import open_parquet
from dboost.data.sources.row_filter import RowFilter
from dboost.data.sources.table_versions import open_table
from dboost.errors import DataError
from dboost.files.filesystem import filesystem_of, has_query
from dboost.schema import TEXT, Feature

if TYPE_CHECKING:
    import dask.dataframe as dd

_log = logging.getLogger("dboost")


def open_path(
    path: Any,
    like: Sequence[Feature] | None = None,
    columns: Collection[str] | None = None,
    row_filter: RowFilter | None = None,
) -> dd.DataFrame:
    """Return what `open_source` does as a lazy frame, which may have no rows."""
    return _opened(path, like, None, columns, row_filter).lazy()


def open_source(
    path: Any,
    like: Sequence[Feature] | None = None,
    most_bytes: int | None = None,
    columns: Collection[str] | None = None,
    row_filter: RowFilter | None = None,
) -> Parts:
    """Return the rows of a file, folder, glob, URL, or list of files, in the order of the file names.

    Parameters
    ----------
    path : path, URL, or list of them
        Also the folder of a Delta table, the metadata file of an Iceberg table, a `DeltaTable`, a table or scan of pyiceberg,
        files that were added to one of these, a dataset of pyarrow or a fragment of one.
    like : sequence of Feature, optional
        Features of a model. CSV columns that are text features are read as text, also if they contain only digits.
    most_bytes : int, optional
        Target size of a partition: larger row groups of Parquet files are divided, and blocks of CSV files are not longer (but
        at least `Tuning.least_csv_block_bytes`).
    columns : collection of str, optional
        Columns that are used. Parquet files may differ in other columns. Default: those of `like`, or all.
    row_filter : RowFilter, optional
        Leaves out rows, and does not read the row groups and files that have none that it keeps.

    Raises
    ------
    DataError
        If there is no file (which is also a FileNotFoundError), a folder has no data files, the files are neither Parquet nor
        CSV, Parquet files differ in a column that is used, or a table of files has none. The message names the path.
    """
    source = _opened(path, like, most_bytes, columns, row_filter)
    if not source.parts and row_filter is None:
        kind = "the Delta table " if is_a(path, "deltalake", "DeltaTable") or not is_stored_table(path) else ""
        raise DataError(f"{kind}{shown_path(path)} has no rows")
    return source


def _opened(
    path: Any,
    like: Sequence[Feature] | None,
    most_bytes: int | None,
    columns: Collection[str] | None,
    row_filter: RowFilter | None,
) -> Parts:
    """Return what `open_source` does; a table without rows has no parts."""
    with reading(path):
        table = _stored_table(path, most_bytes, row_filter)
        if table is None:
            root, parquet, text = _classified(path)
            if parquet:
                table = open_parquet(parquet, root, most_bytes, _used(columns, like), like, row_filter)
            else:
                table = read_csv(text, _text_of(like), most_bytes, _used(columns, like))
        return table if row_filter is None else table.filtered(row_filter)


def open_with_text(
    path: Any,
    like: Sequence[Feature] | None = None,
    most_bytes: int | None = None,
    n_threads: int | None = None,
    columns: Collection[str] | None = None,
    row_filter: RowFilter | None = None,
) -> Parts | None:
    """Return what `open_source` does, with all columns of CSV files as text that contain text in any block; None for others.

    Reads all files once.

    Parameters
    ----------
    path, like, most_bytes, columns, row_filter : as in `open_source`
    n_threads : int, optional
        Default: as `concurrent.futures` selects it.
    """
    with reading(path):
        text = [] if is_stored_table(path) or _table_path(path) else _classified(path)[2]
        if not text:
            return None
        text_names = text_columns(text, most_bytes, n_threads)
        _log.info(
            "columns of %s that contain text, and are read as text everywhere: %s",
            shown_path(path),
            ", ".join(sorted(text_names)),
        )
        again = read_csv(text, text_names | _text_of(like), most_bytes, _used(columns, like))
        return again if row_filter is None else again.filtered(row_filter)


def _used(columns: Collection[str] | None, like: Sequence[Feature] | None) -> Collection[str] | None:
    """Return the columns that are used, as far as they are known."""
    return [feature.name for feature in like] if columns is None and like is not None else columns


def _stored_table(path: Any, most_bytes: int | None, row_filter: RowFilter | None) -> Parts | None:
    """Return the rows of a Delta or Iceberg table or of a dataset; None if the path is none."""
    if is_a(path, "pyarrow.dataset", "Dataset", "Fragment"):
        return open_dataset(path, most_bytes, row_filter)
    table = path if is_stored_table(path) else load_table(path)
    return None if table is None else open_table(table, most_bytes, row_filter)


def load_table(path: Any) -> Any:
    """Return the `DeltaTable` in a folder, or pyiceberg's table by the path of its metadata file; None for other paths."""
    table = _table_path(path)
    if table is None:
        return None
    return load_iceberg_metadata(table) if table.endswith(ICEBERG) else load_delta_folder(table)


def _table_path(path: Any) -> str | None:
    """Return a path that is the folder of a Delta table, or the metadata file of an Iceberg table; else None."""
    items = items_of(path)
    if len(items) != 1 or has_query(items[0]):  # a URL with a query is that of one file
        return None
    fs, root = filesystem_of(items[0])
    return items[0] if root.endswith(ICEBERG) or fs.isdir(f"{root.rstrip('/')}/{DELTA_LOG}") else None


def _classified(path: Any) -> tuple[str, list[DataFile], list[DataFile]]:
    """Return the root (see `existing_files`), the Parquet and the CSV files of a path; one of the two lists is empty."""
    root, files = existing_files(path)
    parquet = [file for file in files if file.ending.endswith(PARQUET)]
    text = [file for file in files if file.ending.endswith(CSV)]
    if parquet and text:
        raise DataError(f"{shown_path(path)} holds both Parquet and CSV files: name one kind")
    if not (parquet or text):
        raise DataError(f"{shown_path(path)} is neither Parquet nor CSV: its name must end in .parquet, .csv or .csv.gz")
    return root, parquet, text


def _text_of(like: Sequence[Feature] | None) -> set[str]:
    """Return the names of a model's text features."""
    return {feature.name for feature in like or () if feature.legal_kinds == (TEXT,)}
