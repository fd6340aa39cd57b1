"""Checks of prepared data sets that are read from files.

A digest protects a file against damage, not against forgery, and kernels index arrays by bin codes, codes of categories and
classes, which they do not compare with a length. So a data set is checked like a model file: the description first, then every
part, in the process that reads it, against what the description promises. Each function returns or raises what is wrong; the
caller names the file. The checks cost a maximum of each column of codes, and a few passes over the roles.

Memory that is allocated is bounded by the size of the files and by the number of rows that the description promises: numbers of
rows, types and lengths are compared before anything is decoded.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dboost._lazy_import import pa
from dboost.data import CategoryColumn, Column
from dboost.data.columns.binning import MAX_FINE_BINS, Binning
from dboost.data.columns.roles import ROLES, RowRoles
from dboost.data.tables.row_metadata import MetadataRows, check_exact, issues_of, raise_for_issues
from dboost.files.json_shape import parse_json
from dboost.model.model_file import parse_columns, parse_levels
from dboost.rows.block_file import StorageError
from dboost.rows.shard_spec import NARROW_BINS
from dboost.session.reference_sample import reference_size

Parsed = TypeVar("Parsed")
#: Errors of parsing content that has a right digest and a wrong structure.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError)
#: Columns that are decoded at a time: Arrow's decoder takes several times the memory of its result.
_COLUMNS_AT_ONCE = 16


def refuse(wrong: bool, problem: str) -> None:
    """Raise ValueError if something is wrong."""
    if wrong:
        raise ValueError(problem)


def content_text(content: Any) -> bytes:
    """Return the text of the content of a description, to which its checksum belongs."""
    return json.dumps(content, ensure_ascii=False, sort_keys=True).encode("utf-8", "backslashreplace")


def digest_of(content: bytes) -> str:
    """Return the checksum of a description or of a file."""
    return hashlib.sha256(content).hexdigest()


def parse_description(data: bytes, name: str, version: int, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
    """Return what `parse` makes of the content of a description. name : of its file; version : of the format.

    Raises
    ------
    StorageError
        If it is damaged, or has another version.
    """
    try:
        stored = parse_json(data)
        if stored["version"] > version:
            raise StorageError(f"{name} has format version {stored['version']}, this dboost reads versions up to {version}")
        if stored["version"] < version:
            raise StorageError(f"{name} has the format of an older dboost: prepare the data set again with dboost.prepare")
        if digest_of(content_text(stored["content"])) != stored["sha256"]:
            raise StorageError(f"{name} is damaged: its content does not match its checksum")
        return parse(stored["content"])
    except MALFORMED as error:
        raise StorageError(
            f"{name} is damaged or no description of prepared data: {error}; prepare the data set again"
        ) from error


def binning_content(binning: Binning, named: bool) -> dict[str, Any]:
    """Return the entries of a description that `parse_binning` reads. named : whether the features' names are the user's."""
    return {
        "named": named,
        "features": [{"name": feature.name, "levels": feature.categories} for feature in binning.features],
        "edges": [None if edges is None else edges.tolist() for edges in binning.edges],
    }


def count(value: Any, subject: str, least: int = 0, most: int = 2**53) -> int:
    """Return a number of rows or bytes."""
    refuse(
        type(value) is not int or not least <= value <= most,
        f"{subject} is {str(value)[:40]}, not a number from {least} to {most}",
    )
    return int(value)


def parse_binning(content: dict[str, Any]) -> Binning:
    """Return the bins in a description."""
    features = []
    for entries in content["features"]:
        refuse(set(entries) != {"name", "levels"}, "a feature has other entries than name and levels")
        features.append({name: value for name, value in entries.items() if value is not None})
    parsed, edges = parse_columns(features, content["edges"])
    refuse(not parsed or len(edges) != len(parsed), "there are no features, or no edges of bins")
    for feature, edge in zip(parsed, edges, strict=True):
        wrong = edge is not None and (len(edge) >= MAX_FINE_BINS or not np.isfinite(edge).all())
        refuse(wrong, f"edges of {feature.name!r} are not finite, or too many")
    refuse(type(content["named"]) is not bool, "named is neither true nor false")
    return Binning(parsed, edges)


def parse_settings(value: Any) -> dict[str, Any]:
    """Return the parameters of `dboost.prepare` in a description."""
    refuse(not isinstance(value, dict), "settings is not a mapping")
    refuse(not {"target", "sample_weight", "offset"} <= value.keys(), "settings lack a role")
    for name in ROLES:
        refuse(not isinstance(value.get(name), str | int | float | list | None), f"{name} in settings is no name")
    count(value["max_bins"], "max_bins in settings", 2, 255)
    return value


def parse_filled(names: Any) -> tuple[str, ...]:
    """Return the names of the roles of the rows in a description."""
    refuse(names != [role for role in ROLES if role in names] or "target" not in names, "filled are no roles with a target")
    return tuple(names)


def check_roles(roles: RowRoles) -> None:
    """Raise a DataError if something is wrong with the roles of rows of positive weight."""
    rows, target = MetadataRows((roles.n_rows,), False), roles.target
    issues = [issue for role, column in roles.by_name().items() for issue in issues_of(role, column, role, rows)]
    issues += check_exact(target, "target", "target", rows)
    if isinstance(target, CategoryColumn):
        issues += rows.flagged("target", "target", target.codes >= len(target.categories), "has a code of no category")
    if roles.weight is not None:
        issues += rows.flagged("sample_weight", "sample_weight", roles.weight == 0, "is zero")
    raise_for_issues(issues)


def check_sample(values: np.ndarray, binning: Binning, n_rows: int) -> None:
    """Raise ValueError if values (float64[n, n_features]) cannot be the reference sample of so many rows."""
    n, size = len(values), reference_size(len(binning.features))
    fits = n == n_rows if n_rows <= size else 1 <= n <= size + size // 8 + 32
    refuse(not fits, f"the reference sample has {n} of {n_rows} rows")
    for feature, column in zip(binning.features, values.T, strict=True):
        present = column[~np.isnan(column)]
        refuse(not np.isfinite(present).all(), f"{feature.name!r} is infinite in the reference sample")
        if feature.categories is not None:
            n_levels = len(feature.categories)
            are_codes = (present >= 0) & (present < n_levels) & (present == np.rint(present))
            problem = f"{feature.name!r} has codes in the reference sample that are none of its {n_levels} categories"
            refuse(not are_codes.all(), problem)


class PartPromise(NamedTuple):
    """What a description promises of all Parquet parts."""

    names: tuple[str, ...]  # of the features
    n_bins: np.ndarray  # of each feature
    filled: tuple[str, ...]  # the roles
    has_categories: bool  # whether the target has categories
    n_targets: int  # number of target columns


def decoded(
    content: bytes, n_rows: int | None, types: dict[str, str], has_categories: bool | None, n_targets: int
) -> tuple[dict[str, np.ndarray], Column]:
    """Return the columns of a Parquet file of a data set, and its target, or its targets (float64[n_targets, n]).

    n_rows : that it must have, compared before anything is decoded; None: any number.
    types : of the columns beside the target, by name, in their order.
    has_categories : whether the target has them; None: it may.

    Raises
    ------
    ValueError
        Saying what is wrong.
    """
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(content))
        n, schema = file.metadata.num_rows, file.schema_arrow
        refuse(n_targets > len(schema.names), f"it has {len(schema.names)} columns, but {n_targets} targets were promised")
        targets = target_names(n_targets)
        names = [*types, *targets]
        refuse(schema.names != names, f"it has the columns {', '.join(schema.names)[:200]}, not {', '.join(names)[:200]}")
        refuse(n_rows is not None and n != n_rows, f"it has {n} rows, but {n_rows} were promised")
        _check_chunks(content)
        for name, wanted in types.items():
            refuse(str(schema.field(name).type) != wanted, f"column {name} is of type {schema.field(name).type}, not {wanted}")
        target_type = schema.field(targets[0]).type
        levels = (schema.metadata or {}).get(b"categories")
        is_other = has_categories is not None and (levels is not None) != has_categories
        refuse(is_other and n > 0, "its target is of another kind than that of the sample")
        is_number = pa.types.is_boolean(target_type) or pa.types.is_integer(target_type) or pa.types.is_floating(target_type)
        if n_targets > 1:
            refuse(levels is not None, "one of several targets has categories")
            is_number = all(schema.field(name).type == pa.float64() for name in targets)
        refuse(not is_number if levels is None else target_type != pa.int32(), f"its target is of type {target_type}")
        categories = None if levels is None else parse_levels(parse_json(levels), "categories of the target")
        columns: dict[str, np.ndarray] = {}
        for first in range(0, len(names), _COLUMNS_AT_ONCE):
            table = file.read(names[first : first + _COLUMNS_AT_ONCE], use_threads=False)
            refuse(any(column.null_count for column in table.columns), "values are missing")
            columns |= {name: table.column(name).to_numpy() for name in table.column_names}
    except (*MALFORMED, OSError, MemoryError, pa.ArrowException) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error
    refuse(any(len(values) != n for values in columns.values()), "its columns differ in length")
    target_columns = [columns.pop(name) for name in targets]
    if n_targets > 1:
        return columns, np.stack(target_columns)
    return columns, target_columns[0] if categories is None else CategoryColumn(target_columns[0], categories)


def target_names(n_targets: int) -> list[str]:
    """Return the names of the target columns in a Parquet file of a data set."""
    return ["target"] if n_targets == 1 else [f"target{k}" for k in range(n_targets)]


#: Numbers of the fields of a footer that are read, and of the compressions of `pq.write_table`: none, and Snappy, which makes a
#: file at most some 20 times as large. A few bytes of another one may be a page of GiB.
_ROW_GROUPS, _CHUNKS, _N_ROWS, _METADATA, _COMPRESSION, _N_VALUES, _USUAL = 4, 1, 3, 3, 4, 5, (0, 1)


def _check_chunks(content: bytes) -> None:
    """Raise ValueError if a column of a Parquet file has another number of values than rows, or an unusual compression.

    pyarrow's records of columns are not used: making one from a damaged footer ends the process.
    """
    length = int.from_bytes(content[-8:-4], "little")
    footer, _ = _thrift(content[len(content) - 8 - length : len(content) - 8], 0, 12)
    for group in footer[_ROW_GROUPS]:
        for chunk in group[_CHUNKS]:
            described = chunk[_METADATA]
            refuse(described[_N_VALUES] != group[_N_ROWS], "its columns do not have as many values as rows")
            refuse(described[_COMPRESSION] not in _USUAL, "its compression is not that of a data set")


def _thrift(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """Return a value in Thrift's compact protocol, and the position behind it; a structure as a mapping of field numbers."""
    if kind == 12:
        fields: dict[int, Any] = {}
        number = 0
        while head := data[at]:
            at += 1
            number, at = (number + (head >> 4), at) if head >> 4 else _thrift(data, at, 6)
            if head & 15 in (1, 2):  # a truth value has no bytes of its own
                fields[number] = head & 15 == 1
            else:
                fields[number], at = _thrift(data, at, head & 15)
        return fields, at + 1
    if kind in (4, 5, 6):
        value, at = _varint(data, at)
        return value >> 1 ^ -(value & 1), at
    if kind == 8:
        size, at = _varint(data, at)
        return data[at : at + size], at + size
    if kind in (9, 10):
        size, item_type, at = data[at] >> 4, data[at] & 15, at + 1
        if size == 15:
            size, at = _varint(data, at)
        items = []
        for _ in range(size):
            item, at = _thrift(data, at, item_type)
            items.append(item)
        return items, at
    refuse(kind not in (1, 2, 3, 7), f"its footer has a value of the kind {kind}")
    return data[at], at + (8 if kind == 7 else 1)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at
        refuse(shift > 63, "its footer has a number that is too long")


def decode_part(content: bytes, n_rows: int, promise: PartPromise) -> tuple[tuple[np.ndarray, ...], RowRoles]:
    """Return codes and roles in the content of a part.

    Raises
    ------
    ValueError
        Saying what is wrong.
    """
    types = {f"b{j}": "uint8" if n <= NARROW_BINS else "uint16" for j, n in enumerate(promise.n_bins.tolist())}
    arrow_types = {"number": "double", "key": "int64"}
    others = {ROLES[role].field: arrow_types[ROLES[role].kind] for role in promise.filled if role != "target"}
    columns, target = decoded(content, n_rows, types | others, promise.has_categories, promise.n_targets)
    roles = RowRoles(target, **{name: columns.pop(name) for name in others})
    codes = tuple(columns.values())
    for name, column, last in zip(promise.names, codes, promise.n_bins.tolist(), strict=True):
        largest = int(column.max(initial=0))
        refuse(largest > last, f"column {name!r} has the bin code {largest}, but codes go up to {last}")
    check_roles(roles)
    return codes, roles
