"""Checks of prepared data sets that are read from files.

A digest protects a file against damage, not against forgery, and kernels index arrays by bin codes, codes of categories and
classes, which they do not compare with a length. So a folder is checked like a model file: the description first, then every
block and every part when it is read, against what the description promises. Each function returns or raises what is wrong; the
caller names the file.

Both formats use the same checks: blocks in one folder (`prepared.prepared_dataset`) when `rows.block_file.BlockFile` reads a
block for the first time, and Parquet parts (`prepared.dataset_rows`) in the process that reads them. The checks cost a maximum
of each column of codes, and a few passes over the roles.

Memory that is allocated is bounded by the size of the files and by the number of rows that the description promises: numbers of
rows, types and lengths are compared before anything is decoded.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dboost._lazy_import import pa
from dboost.data import CategoryColumn, Column
from dboost.data.columns.binning import MAX_FINE_BINS, Binning
from dboost.data.columns.roles import ROLES, RowRoles
from dboost.data.tables.row_metadata import (
    EXACT,
    MetadataRows,
    check_exact,
    check_max_weight,
    issues_of,
    raise_for_issues,
)
from dboost.errors import DataError
from dboost.kernels.histograms import TILE_COLUMNS
from dboost.model.model_file import parse_columns, parse_levels
from dboost.rows.block_file import Field, StorageError
from dboost.rows.shard_spec import NARROW_BINS, code_fields, plan_layout, target_field
from dboost.schema import Level
from dboost.session.reference_sample import reference_size
from dboost.session.target import MAX_CLASSES, TargetScan

Parsed = TypeVar("Parsed")
#: Errors of parsing content that has a right digest and a wrong structure.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError)
#: Fields of the roles beside the target, in their order in files.
STORED = tuple(role.field for role in ROLES.values() if role.name != "target")
#: Rows of codes whose maxima are computed at a time, so that they stay in the cache.
_PIECE_ROWS = 2048
#: NumPy's parser of dtype names accepts more than names, such as shapes.
_NUMBERS = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")


def refuse(wrong: bool, what: str) -> None:
    """Raise ValueError if something is wrong."""
    if wrong:
        raise ValueError(what)


def parse_json(data: bytes | str) -> Any:
    """Return the content of a file in JSON, without NaN and infinity, which are not JSON."""

    def constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(data, parse_constant=constant)


def content_text(content: Any) -> bytes:
    """Return the text of the content of a description, to which its checksum belongs."""
    return json.dumps(content, ensure_ascii=False, sort_keys=True).encode("utf-8", "backslashreplace")


def digest_of(content: bytes) -> str:
    """Return the checksum of a description or of a file."""
    return hashlib.sha256(content).hexdigest()


def parse_description(data: bytes, name: str, version: int, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
    """Return what `parse` makes of the content of a description. name : of its file; version : the newest one that is known.

    Raises
    ------
    StorageError
        If it is damaged, or was written by a newer version.
    """
    try:
        stored = parse_json(data)
        if stored["version"] > version:
            raise StorageError(f"{name} has format version {stored['version']}, this dboost reads versions up to {version}")
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


def count(value: Any, what: str, least: int = 0, most: int = 2**53) -> int:
    """Return a number of rows or bytes."""
    refuse(
        type(value) is not int or not least <= value <= most,
        f"{what} is {str(value)[:40]}, not a number from {least} to {most}",
    )
    return int(value)


def parse_binning(content: dict[str, Any]) -> Binning:
    """Return the bins in a description."""
    features = []
    for one in content["features"]:
        refuse(set(one) != {"name", "levels"}, "a feature has other entries than name and levels")
        features.append({name: value for name, value in one.items() if value is not None})
    found, edges = parse_columns(features, content["edges"])
    refuse(not found or len(edges) != len(found), "there are no features, or no edges of bins")
    for feature, edge in zip(found, edges, strict=True):
        wrong = edge is not None and (len(edge) >= MAX_FINE_BINS or not np.isfinite(edge).all())
        refuse(wrong, f"edges of {feature.name!r} are not finite, or too many")
    refuse(type(content["named"]) is not bool, "named is neither true nor false")
    return Binning(found, edges)


def parse_settings(value: Any) -> dict[str, Any]:
    """Return the parameters of `dboost.prepare` in a description."""
    refuse(not isinstance(value, dict), "settings is not a mapping")
    refuse(not {"target", "sample_weight", "offset"} <= value.keys(), "settings lack a role")
    for name in ROLES:
        refuse(not isinstance(value.get(name), str | int | float | list | None), f"{name} in settings is no name")
    count(value["max_bins"], "max_bins in settings", 2, 255)
    model = value.get("start_from")
    refuse(model is not None and (type(model) is not str or not re.fullmatch("[0-9a-f]{64}", model)), "start_from is no digest")
    return value


def parse_target(stored: dict[str, Any], levels: Any) -> tuple[TargetScan, tuple[Level, ...] | None]:
    """Return the statistics of the target in a description, and its categories."""
    entries = {"levels", "distinct", "too_many", "dtype", "is_bool"}
    refuse(set(stored) - {"n_columns"} != entries, f"target has other entries than {', '.join(sorted(entries))}")
    categories = None if levels is None else parse_levels(levels, "target_levels")
    occurring = None if stored["levels"] is None else parse_levels(stored["levels"], "levels of the target")
    distinct, dtype, is_bool, too_many = (stored[name] for name in ("distinct", "dtype", "is_bool", "too_many"))
    refuse((categories is None) != (occurring is None), "levels of the target and target_levels do not fit")
    refuse(type(is_bool) is not bool or type(too_many) is not bool, "is_bool or too_many of the target is no truth value")
    refuse(any(type(value) is not float for value in distinct), "distinct targets are no numbers")
    values = np.array(distinct, np.float64)
    if "n_columns" in stored:
        n_columns = count(stored["n_columns"], "n_columns of the target", 2)
        labels = distinct in ([], [0.0], [1.0], [0.0, 1.0])
        plain = categories is None and labels and not too_many and dtype == "float64" and not is_bool
        refuse(not plain, "of several targets more is described than their number and labels")
        return TargetScan(None, values, False, dtype, False, n_columns), None
    if categories is not None and occurring is not None:
        refuse(not occurring or not {*map(_typed, occurring)} <= {*map(_typed, categories)}, "a level of the target is unknown")
        refuse(bool(distinct) or too_many or is_bool or type(dtype) is not str, "target has both levels and numbers")
        return TargetScan(occurring, values, False, dtype, False), categories
    refuse(type(dtype) is not str or not _NUMBERS.fullmatch(dtype), f"the dtype of the target is {str(dtype)[:40]!r}")
    refuse(is_bool != (dtype == "bool"), "dtype and is_bool of the target do not fit")
    wrong = not len(values) or (len(values) != MAX_CLASSES if too_many else len(values) > MAX_CLASSES)
    refuse(wrong, f"there are {len(values)} distinct targets")
    ascends = bool((np.diff(values) > 0).all() and np.isfinite(values).all())
    refuse(not ascends or not _holds(dtype, values), f"distinct targets do not ascend, or are no {dtype}")
    return TargetScan(None, values, too_many, dtype, is_bool), None


def _typed(level: Level) -> tuple[type, Level]:
    return type(level), level


def _holds(dtype: str, values: np.ndarray) -> bool:
    """Whether numbers (float64) are those of a dtype, and exact."""
    if np.dtype(dtype).kind in "iu" and (np.abs(values) >= EXACT).any():
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        return bool((values.astype(dtype).astype(np.float64) == values).all())


def check_layout(fields: Mapping[str, Sequence[Field]], binning: Binning, n_targets: int, continues: bool) -> None:
    """Raise ValueError if the fields of block files are not those of data with these bins and so many target columns.

    continues : whether a model is continued.
    """
    target = target_field(n_targets)
    tiles = code_fields(plan_layout(binning.n_bins, binning.is_categorical))
    refuse(list(fields["codes"]) != tiles, "the fields of codes are not those of the bins")
    roles = [
        "target",
        *(name for name in (*STORED, "start") if any(one.name == name for one in fields["rows"])),
    ]
    names = [one.name for one in fields["rows"]]
    refuse(names != roles or ("start" in names) != continues, f"rows have fields {names}")
    dtypes = {role.field: role.stored_dtype for role in ROLES.values()}
    for one in fields["rows"]:
        outputs = one.before if one.name == "start" else ()
        is_several = len(outputs) == 1 and type(outputs[0]) is int and outputs[0] > 1
        is_plain = one.before == (target.before if one.name == "target" else ()) or is_several
        refuse(
            one.dtype != dtypes.get(one.name, "<f8") or not is_plain or one.after != (),
            f"the field {one.name!r} of rows has another shape or type",
        )
    if "portrait" in fields:
        wanted = [Field("values", "<f8", (), (len(binning.features),)), target]
        refuse(list(fields["portrait"]) != wanted, "the fields of the reference sample are not those of the features")


def parse_checksums(value: Any, n_blocks: int) -> np.ndarray:
    """Return the checksums of blocks (uint64[n_blocks]) in a description."""
    is_list = isinstance(value, list) and all(type(one) is str and re.fullmatch("[0-9a-f]{16}", one) for one in value)
    refuse(not is_list, "checksums are no digests")
    refuse(len(value) != n_blocks, f"there are {len(value)} checksums for {n_blocks} blocks")
    return np.array([int(digest, 16) for digest in value], np.uint64)


def check_sample_rows(n: int, n_rows: int, n_features: int) -> None:
    """Raise ValueError if a reference sample of n rows cannot be that of so many rows."""
    size = reference_size(n_features)
    fits = n == n_rows if n_rows <= size else 1 <= n <= size + size // 8 + 32
    refuse(not fits, f"the reference sample has {n} of {n_rows} rows")


class CodesCheck:
    """The largest code of each column, for blocks of codes."""

    def __init__(self, binning: Binning) -> None:
        self._layout = layout = plan_layout(binning.n_bins, binning.is_categorical)
        self._names = [feature.name for feature in binning.features]
        self._n_bins = binning.n_bins
        last = np.zeros(-(-max(layout.n_tiled, 1) // TILE_COLUMNS) * TILE_COLUMNS, np.int64)  # columns that do not exist are 0
        for column in range(layout.n_tiled):
            last[column] = np.prod(layout.n_codes[self._features(column)]) - 1
        self._last = last.reshape(-1, TILE_COLUMNS).astype(np.uint8)

    def __call__(self, block: int, views: dict[str, np.ndarray]) -> str | None:
        """Return what is wrong with a block."""
        for number, (tile, last) in enumerate(zip(views["tiles"].view(np.uint8), self._last, strict=True)):
            found = _largest(tile)
            over = np.flatnonzero(found > last[: len(found)])
            if len(over):
                at = int(over[0])
                return self._complaint(number * TILE_COLUMNS + at, int(found[at]), int(last[at]))
        if "wide" in views:
            largest = views["wide"].max(axis=1)
            n_bins = self._n_bins[self._n_bins > NARROW_BINS]
            over = np.flatnonzero(largest > n_bins)
            if len(over):
                return self._complaint(self._layout.n_tiled + int(over[0]), int(largest[over[0]]), int(n_bins[over[0]]))
        return None

    def _features(self, column: int) -> np.ndarray:
        return self._layout.features[self._layout.first[column] : self._layout.first[column + 1]]

    def _complaint(self, column: int, code: int, last: int) -> str:
        if column >= len(self._layout.first) - 1:
            return f"there are codes in columns that do not exist ({code})"
        names = ", ".join(repr(self._names[feature]) for feature in self._features(column).tolist())
        return _beyond(names, code, last)


def _beyond(name: str, code: int, last: int) -> str:
    return f"column {name} has the bin code {code}, but codes go up to {last}"


def _largest(codes: np.ndarray) -> np.ndarray:
    """Return the largest value of each column of a tile (uint8[n, width])."""
    found = codes[:_PIECE_ROWS]
    for first in range(_PIECE_ROWS, len(codes) - _PIECE_ROWS + 1, _PIECE_ROWS):
        found = np.maximum(found, codes[first : first + _PIECE_ROWS])
    rest = codes[len(codes) // _PIECE_ROWS * _PIECE_ROWS :] if len(codes) > _PIECE_ROWS else codes[:0]
    while len(found) > 1:  # halves are longer than rows, so that NumPy's loops are long
        half = len(found) // 2
        odd = found[2 * half :]
        found = np.maximum(found[:half], found[half : 2 * half])
        found[: len(odd)] = np.maximum(found[: len(odd)], odd)
    return np.maximum(found[0], rest.max(axis=0, initial=0))


class RolesCheck:
    """Roles and scores, for blocks of rows: valid numbers, and together the targets that are promised.

    Parameters
    ----------
    target : TargetScan
    categories : tuple or None
        Of the target.
    n_blocks : int
    """

    def __init__(self, target: TargetScan, categories: tuple[Level, ...] | None, n_blocks: int) -> None:
        self._target, self._categories, self._missing_blocks = target, categories, n_blocks
        self._max_weight = 0.0
        self._is_known = categories is not None or not target.too_many
        self._occurs = np.zeros(len(target.distinct) if categories is None else len(categories), bool)

    def __call__(self, block: int, views: dict[str, np.ndarray]) -> str | None:
        """Return what is wrong with a block."""
        roles = stored_roles(views)
        found = self.of_targets(roles.numbers) or roles_problem(roles)
        if found is None and "start" in views and not np.isfinite(views["start"]).all():
            found = "scores are not finite"
        self._max_weight = max(self._max_weight, 1.0 if roles.weight is None else float(roles.weight.max()))
        self._missing_blocks -= 1
        return found if found is not None or self._missing_blocks else self._at_the_end()

    def of_targets(self, target: np.ndarray) -> str | None:
        """Return what is wrong with stored targets (float64[n], or [n_columns, n])."""
        if self._target.n_columns > 1 and not len(self._target.distinct):  # what infinity means is up to the loss
            return "a target is not a number" if np.isnan(target).any() else None
        if not np.isfinite(target).all():
            return "the target is not finite"
        if self._categories is not None:
            codes = target.astype(np.int64)
            if (codes != target).any() or codes.min(initial=0) < 0 or codes.max(initial=-1) >= len(self._categories):
                return f"the target has codes that are none of its {len(self._categories)} categories"
            self._occurs[codes] = True
        elif self._is_known:
            distinct = self._target.distinct
            at = np.minimum(np.searchsorted(distinct, target), len(distinct) - 1)
            if (distinct[at] != target).any():
                return "the target has values that the description does not have"
            self._occurs[at] = True
        elif not _holds(self._target.dtype, target):
            return f"the target has values that are no {self._target.dtype}"
        return None

    def _at_the_end(self) -> str | None:
        """Return what is wrong with all blocks together."""
        if self._categories is not None:
            occurring = {_typed(level) for level, occurs in zip(self._categories, self._occurs, strict=True) if occurs}
            if occurring != {*map(_typed, self._target.categories or ())}:
                return "a category of the target does not occur"
        elif self._is_known and not self._occurs.all():
            return "a value of the target does not occur"
        try:
            check_max_weight(self._max_weight, "sample_weight")
        except DataError as error:
            return str(error)
        return None


def stored_roles(views: Mapping[str, np.ndarray]) -> RowRoles:
    """Return the roles among the fields of a block of rows."""
    return RowRoles(**{role.field: views[role.field] for role in ROLES.values() if role.field in views})


def roles_problem(roles: RowRoles) -> str | None:
    """Return what is wrong with the roles of rows of positive weight."""
    rows, target = MetadataRows((roles.n_rows,), False), roles.target
    issues = [issue for role, column in roles.by_name().items() for issue in issues_of(role, column, role, rows)]
    issues += check_exact(target, "target", "target", rows)
    if isinstance(target, CategoryColumn):
        issues += rows.flagged("target", "target", target.codes >= len(target.categories), "has a code of no category")
    if roles.weight is not None:
        issues += rows.flagged("sample_weight", "sample_weight", roles.weight == 0, "is zero")
    try:
        raise_for_issues(issues)
    except DataError as error:
        return str(error)
    return None


def sample_problem(values: np.ndarray, binning: Binning) -> str | None:
    """Return what is wrong with the values (float64[n, n_features]) of a reference sample."""
    for feature, column in zip(binning.features, values.T, strict=True):
        present = column[~np.isnan(column)]
        if not np.isfinite(present).all():
            return f"{feature.name!r} is infinite in the reference sample"
        n = len(feature.categories or ())
        if feature.is_categorical and not ((present >= 0) & (present < n) & (present == np.rint(present))).all():
            return f"{feature.name!r} has codes in the reference sample that are none of its {n} categories"
    return None


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
        metadata, schema = file.metadata, file.schema_arrow
        refuse(n_targets > len(schema.names), f"it has {len(schema.names)} columns, but {n_targets} targets were promised")
        targets = target_names(n_targets)
        names = [*types, *targets]
        refuse(schema.names != names, f"it has the columns {', '.join(schema.names)[:200]}, not {', '.join(names)[:200]}")
        refuse(
            n_rows is not None and metadata.num_rows != n_rows, f"it has {metadata.num_rows} rows, but {n_rows} were promised"
        )
        _check_chunks(content)
        for name, wanted in types.items():
            refuse(str(schema.field(name).type) != wanted, f"column {name} is of type {schema.field(name).type}, not {wanted}")
        of_target = schema.field(targets[0]).type
        levels = (schema.metadata or {}).get(b"categories")
        is_other = has_categories is not None and (levels is not None) != has_categories
        refuse(is_other and metadata.num_rows > 0, "its target is of another kind than that of the sample")
        is_number = pa.types.is_boolean(of_target) or pa.types.is_integer(of_target) or pa.types.is_floating(of_target)
        if n_targets > 1:
            refuse(levels is not None, "one of several targets has categories")
            is_number = all(schema.field(name).type == pa.float64() for name in targets)
        refuse(not is_number if levels is None else of_target != pa.int32(), f"its target is of type {of_target}")
        categories = None if levels is None else parse_levels(parse_json(levels), "categories of the target")
        table = file.read()
        refuse(any(table.column(name).null_count for name in names), "values are missing")
        columns = {name: table.column(name).to_numpy() for name in names}
    except (*MALFORMED, OSError, MemoryError, pa.ArrowException) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error
    refuse(any(len(values) != metadata.num_rows for values in columns.values()), "its columns differ in length")
    found = [columns.pop(name) for name in targets]
    if n_targets > 1:
        return columns, np.stack(found)
    return columns, found[0] if categories is None else CategoryColumn(found[0], categories)


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
        size, of_items, at = data[at] >> 4, data[at] & 15, at + 1
        if size == 15:
            size, at = _varint(data, at)
        items = []
        for _ in range(size):
            item, at = _thrift(data, at, of_items)
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
    of_kind = {"number": "double", "key": "int64"}
    others = {ROLES[role].field: of_kind[ROLES[role].kind] for role in promise.filled if role != "target"}
    columns, target = decoded(content, n_rows, types | others, promise.has_categories, promise.n_targets)
    roles = RowRoles(target, **{name: columns.pop(name) for name in others})
    codes = tuple(columns.values())
    for name, column, last in zip(promise.names, codes, promise.n_bins.tolist(), strict=True):
        largest = int(column.max(initial=0))
        refuse(largest > last, _beyond(repr(name), largest, last))
    problem = roles_problem(roles)
    refuse(problem is not None, problem or "")
    return codes, roles


#: Returns what is wrong with the fields of a block, see `rows.block_file.BlockFile`.
BlockCheck = Callable[[int, dict[str, np.ndarray]], str | None]
