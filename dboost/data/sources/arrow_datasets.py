"""Datasets and fragments of pyarrow (`pyarrow.dataset`) as sources.

The rows are in the order of the dataset's fragments, which is that of `Dataset.files`. Parquet files are read as those of a
path (`parquet`): by row groups, with the types of the dataset's schema, through the dataset's file system; a column that a file
does not have is missing there, and columns that the partitioning takes from the names of folders are constant. Files of other
formats are read by Arrow, each as a whole. A filter of the dataset (`Dataset.filter`) is respected.

Datasets of tables in memory, and unions of datasets, are streams (`sources`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from dboost._lazy_import import is_a, pa, pd
from dboost.data.sources import Parts
from dboost.data.sources.files import DataFile, local_file, reading
from dboost.data.sources.parquet import ParquetPart, parts_of_files, read_in_order, read_part
from dboost.data.sources.row_filter import RowFilter
from dboost.errors import DataError


@dataclass(frozen=True, eq=False)
class _FragmentPart:
    """A file that Arrow reads."""

    fragment: Any

    def __dask_tokenize__(self) -> Any:
        return self.fragment.path, str(self.fragment.partition_expression)


def open_dataset(data: Any, most_bytes: int | None = None, row_filter: RowFilter | None = None) -> Parts:
    """Return the rows of a dataset of files, or of a fragment of one. Parameters as of `paths.open_source`."""
    from pyarrow import dataset

    is_fragment = is_a(data, "pyarrow.dataset", "FileFragment")
    schema = data.physical_schema if is_fragment else data.schema
    scan_filter = None if is_fragment else getattr(data, "_scan_options", {}).get("filter")  # Arrow shows it nowhere else
    if scan_filter is not None:  # Arrow refuses to list the fragments
        data = data.replace_schema(schema)
        data._scan_options = {}
    fragments = [data] if is_fragment else list(data.get_fragments())
    if not fragments:
        raise DataError("the dataset has no files")
    parts: list[Any] = []
    with reading(fragments[0].path):
        for fragment in fragments:
            if isinstance(fragment, dataset.ParquetFileFragment):
                groups = tuple(group.id for group in fragment.row_groups)
                constants = {
                    name: pa.array([value], schema.field(name).type)
                    for name, value in dataset.get_partition_keys(fragment.partition_expression).items()
                    if name in schema.names
                }
                file, files = _file_of(fragment)
                parts.append(ParquetPart(file, constants=constants, row_groups=groups, filesystem=files))
            else:
                parts.append(_FragmentPart(fragment))
        meta = _as_frame(schema.empty_table())
        filters = [RowFilter(scan_filter)] if scan_filter is not None else []
        if row_filter is not None:
            filters.append(row_filter)
        parts = parts_of_files(parts, schema, most_bytes, filters)
    in_order = None
    if most_bytes is not None and all(isinstance(part, ParquetPart) for part in parts):
        in_order = partial(read_in_order, names=schema.names, types=schema, most_bytes=most_bytes)
    source = Parts(meta, parts, partial(_read, schema=schema), "read-dataset", in_order)
    return source if scan_filter is None else source.filtered(RowFilter(scan_filter))


def _file_of(fragment: Any) -> tuple[DataFile, Any]:
    """Return the file of a fragment, and the file system that opens it; None for a file of this machine."""
    from pyarrow.fs import LocalFileSystem

    if isinstance(fragment.filesystem, LocalFileSystem):
        return local_file(fragment.path), None
    return DataFile(fragment.path, None, ""), fragment.filesystem


def _read(part: Any, *, schema: pa.Schema, columns: list[str] | None = None) -> pd.DataFrame:
    names = schema.names if columns is None else columns
    if isinstance(part, ParquetPart):
        return read_part(part, names=schema.names, types=schema, columns=names)
    with reading(part.fragment.path):
        table = part.fragment.to_table(schema=schema, columns=list(names), use_threads=False)
    return _as_frame(table) if names else pd.DataFrame(index=range(table.num_rows))


def _as_frame(table: pa.Table) -> pd.DataFrame:
    """Return a table as a frame of Arrow types with the index that pandas has stored.

    Of what pandas has stored, only the index is read: it writes types that it does not understand.
    """
    metadata = dict(table.schema.metadata or {})
    if b"pandas" in metadata:
        stored = json.loads(metadata[b"pandas"])
        stored["columns"] = [column for column in stored["columns"] if column["field_name"] in stored["index_columns"]]
        table = table.replace_schema_metadata(metadata | {b"pandas": json.dumps(stored)})
    return table.to_pandas(types_mapper=pd.ArrowDtype)
