"""The adapter of Delta Lake tables (`deltalake`): files and their columns, versions, and commits; see `table_versions`.

The client reads the log. Partition values become columns, files without a column of the schema have missing values there, and
rows in deletion vectors are left out. Large files are read by row groups. The files themselves are opened by fsspec, so workers
do not need `deltalake`, and credentials of files come from the environment. Tables with mapped columns, and those that need an
unknown feature of the protocol, are refused.

Files are in the order in which they were added: by the version that added a file first, and within a version as its log lists
them. Files whose version has no log any more come first, by the time of their last change and their names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np

from dboost._lazy_import import pa, pd
from dboost.data.sources import Parts
from dboost.data.sources.added_files import AddedFiles, ChangedRowsError, Commit
from dboost.data.sources.files import DELTA_LOG, DataFile, natural_key, reading, table_name
from dboost.data.sources.parquet import ParquetPart, parts_of_files, read_in_order, read_part
from dboost.data.sources.row_filter import RowFilter
from dboost.errors import DataError, MissingExtraError, shown
from dboost.files.filesystem import filesystem_of

#: The log of a version of a Delta table, and how many are read at the same time.
_VERSION = re.compile(r"/(\d{20})\.json$")
_LOGS_AT_ONCE = 32
#: What names of partition columns begin with in the log.
_PARTITION = "partition."
#: Features of the Delta protocol that concern only the log, or that reading by the table's schema respects.
_DELTA_FEATURES = {
    "checkpointProtection",
    "columnMapping",  # refused if the table uses it
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}


def load_delta_folder(path: str) -> Any:
    """Return the `DeltaTable` in a folder, at its current version.

    Raises
    ------
    MissingExtraError
        If deltalake is not installed.
    """
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise MissingExtraError(
            f"{shown(path)} is a Delta table, and deltalake is not installed; it comes with the extra: "
            "pip install 'dboost[delta]'"
        ) from error
    try:
        return DeltaTable(path)
    except Exception as error:
        raise DataError(f"cannot read the Delta table {shown(path)}: {shown(str(error).splitlines()[0])}") from error


class DeltaAdapter:
    """What `table_versions` needs of a `DeltaTable`."""

    kind, version_word = "Delta", "version"

    def __init__(self, table: Any) -> None:
        self._table = table

    @property
    def id(self) -> str:
        """The id that the table keeps in all its versions."""
        return str(self._table.metadata().id)

    @property
    def location(self) -> str:
        return unquote(self._table.table_uri).rstrip("/")

    @property
    def version(self) -> int:
        return int(self._table.version())

    def at(self, version: int) -> Any:
        """Return the table as it was; DataError if the version is gone."""
        table = self._table
        with reading(table):
            if version == table.version():
                return table
            options = table._storage_options
            try:
                return type(table)(table.table_uri, version=version, storage_options=options)
            except Exception as error:  # deltalake has errors of its own
                raise DataError(f"version {version} of the Delta table {table_name(table)} cannot be read: {error}") from error

    def files(self, version: int) -> dict[str, int]:
        """Return the bytes of the files of a version by name, in order."""
        table = self.at(version)
        actions = pa.table(table.get_add_actions())
        names, sizes = map(unquote, actions["path"].to_pylist()), actions["size_bytes"].to_pylist()
        size_of, order = dict(zip(names, sizes, strict=True)), _order(table)
        return {name: size_of[name] for name in sorted(size_of, key=order.__getitem__)}

    def exists(self, name: str) -> bool:
        fs, path = filesystem_of(name if "://" in name else f"{self.location}/{name}")
        return bool(fs.exists(path))

    def commits(self, since: int, until: int) -> Iterator[Commit]:
        """Yield what the commits after a version have done to the files."""
        table = self._table
        if until < since:
            raise ChangedRowsError(f"{table_name(table)} is at version {until} now, before version {since}")
        expected = since + 1
        for version, lines in _logs(self.at(until), since):
            if version != expected:
                break
            expected += 1
            actions = [json.loads(line) for line in lines if line.strip()]
            adds = [action["add"] for action in actions if action.get("add")]
            removes = [action["remove"] for action in actions if action.get("remove")]
            information: dict[str, Any] = next((action["commitInfo"] for action in actions if action.get("commitInfo")), {})
            yield Commit(
                version,
                str(information.get("operation", "unknown operation")),
                {unquote(add["path"]): int(add["size"]) for add in adds if add["dataChange"]},
                [unquote(remove["path"]) for remove in removes if remove["dataChange"]],
                [unquote(remove["path"]) for remove in removes if not remove["dataChange"]],
            )
        if expected <= until:
            raise ChangedRowsError(
                f"the log of version {expected} of {table_name(table)} is gone, so it is unknown whether rows were deleted"
            )

    def parts(self, added: AddedFiles | None, most_bytes: int | None, row_filter: RowFilter | None) -> Parts:
        """Return the rows of the table, or of files that were added to it."""
        table = self._table if added is None else self.at(added.version)
        _check_delta(table)
        schema = pa.schema(table.schema().to_arrow())
        files = _delta_files(table, schema) if added is None else self._added_files(added, schema)
        parts = parts_of_files(files, schema, most_bytes, [] if row_filter is None else [row_filter])
        read = partial(read_part, names=schema.names, types=schema)
        in_order = partial(read_in_order, names=schema.names, types=schema, most_bytes=most_bytes) if most_bytes else None
        meta = schema.empty_table().to_pandas(types_mapper=pd.ArrowDtype)
        return Parts(meta, parts, read, "read-delta", in_order)

    def _added_files(self, added: AddedFiles, schema: pa.Schema) -> list[ParquetPart]:
        parts: dict[str, ParquetPart] = {}
        for version in set(added.member_of.values()):
            table = self.at(version)
            _check_delta(table)
            parts |= {name: part for name, part in _delta_parts(table, schema).items() if added.member_of.get(name) == version}
        return [parts[name] for name in added.files]


def _check_delta(table: Any) -> None:
    """Raise a DataError for a table whose files do not have the rows and columns of its schema in a known way."""
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise DataError(
            f"the Delta table {table_name(table)} maps column names (delta.columnMapping.mode={mode}), which dboost does not "
            "support: write it without, or pass its rows as a Dask or Arrow table"
        )
    unknown = set(table.protocol().reader_features or ()) - _DELTA_FEATURES
    if unknown:
        raise DataError(
            f"the Delta table {table_name(table)} needs features that dboost does not support: {', '.join(sorted(unknown))}"
        )


def _delta_files(table: Any, schema: pa.Schema) -> list[ParquetPart]:
    """Return the files of the table's version in the order in which they were added."""
    parts, order = _delta_parts(table, schema), _order(table)
    return [parts[name] for name in sorted(parts, key=order.__getitem__)]


def _delta_parts(table: Any, schema: pa.Schema) -> dict[str, ParquetPart]:
    """Return the files of the table's version by name."""
    actions = pa.table(table.get_add_actions(flatten=True))
    uris = table.file_uris()
    names = [unquote(path) for path in actions["path"].to_pylist()]
    if len(uris) != len(names) or not all(uri.endswith(name) for uri, name in zip(uris, names, strict=True)):
        raise DataError(f"the files of the Delta table {table_name(table)} are not those of its log")
    # Of a URI the folder of the table is quoted, and the path in it is not.
    folders = [uri.removesuffix(name) for uri, name in zip(uris, names, strict=True)]
    deleted = _deleted_rows(table, [folder + path for folder, path in zip(folders, actions["path"].to_pylist(), strict=True)])
    constants = [name for name in actions.column_names if name.startswith(_PARTITION)]
    parts: dict[str, ParquetPart] = {}
    for i, (folder, name) in enumerate(zip(folders, names, strict=True)):
        partition_values = {name.removeprefix(_PARTITION): actions[name][i].as_py() for name in constants}
        columns = {name: pa.array([value], schema.field(name).type) for name, value in partition_values.items()}
        file = DataFile(unquote(folder) + name, None, "")  # by the protocol a file never changes
        size = actions["size_bytes"][i].as_py()
        parts[name] = ParquetPart(file, constants=columns, deleted=deleted.get(i), n_bytes=size)
    return parts


def _deleted_rows(table: Any, paths: list[str]) -> dict[int, np.ndarray]:
    """Return the positions of the rows in deletion vectors, by the number of the file. paths : quoted, as in the log."""
    numbers = {_plain(path): i for i, path in enumerate(paths)}
    rows_of: dict[int, np.ndarray] = {}
    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    for path, kept in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True):
        number = numbers.get(_plain(path))
        if number is None or number in rows_of:
            raise DataError(
                f"a deletion vector of the Delta table {table_name(table)} belongs to an unknown file: {shown(path)}"
            )
        rows_of[number] = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
    return rows_of


def _plain(url: str) -> str:
    return url.removeprefix("file://")


def _order(table: Any) -> dict[str, tuple[Any, ...]]:
    """Return what the files of a Delta table are sorted by: the version that added a file first, and its position in the log.

    The log of old versions may be gone: their files come first, by their times and names.
    """
    added: dict[str, tuple[int, int]] = {}
    for version, lines in _logs(table):
        for k, line in enumerate(lines):
            add = json.loads(line).get("add") if b'"add"' in line else None
            if add is not None:
                added.setdefault(unquote(add["path"]), (version, k))
    actions = pa.table(table.get_add_actions())
    names, times = map(unquote, actions["path"].to_pylist()), actions["modification_time"].to_pylist()
    return {name: added.get(name) or (-1, time, natural_key(name)) for name, time in zip(names, times, strict=True)}


def _logs(table: Any, after: int = -1) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the versions of a Delta table after one, and up to that of the table, that have a log, with the lines of it."""
    fs, folder = filesystem_of(f"{unquote(table.table_uri).rstrip('/')}/{DELTA_LOG}")
    fs.invalidate_cache()
    logs = {int(match[1]): path for path in fs.ls(folder, detail=False) if (match := _VERSION.search(path))}
    wanted = sorted(version for version in logs if after < version <= table.version())
    with ThreadPoolExecutor(_LOGS_AT_ONCE) as threads:
        contents = threads.map(lambda version: fs.cat_file(logs[version]), wanted)
        for version, content in zip(wanted, contents, strict=True):
            yield version, content.splitlines()
