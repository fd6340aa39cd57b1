"""Prepared data sets: binned data in a folder, for fits with any loss and any parameters, and the rows of a fit on them.

    binned.json   features, split points, target, number of rows, and the checksum of every block; written last, so a folder
                  without it is no prepared data set
    codes         tiles and wide columns, see `rows.shard`
    rows          the roles, targets as numbers or the codes of their categories; if a model is continued, the initial raw
                  scores (``start``)
    portrait      reference sample: feature values and targets of some rows, for the models' summary of the data

The block files have checksums. Rows of weight zero are left out, because they do not affect a model. Fits do not change the
folder: encoded targets and scores are written to other files.

Writing takes memory for a chunk and a block. The table is read for targets and weights, for the sample that proposes the split
points (some columns at a time), as in every fit (`training.fit.propose_bins`), and for the bin codes.

`PreparedRows` has the rows of one fit.

**Writing** is atomic. A new folder is written under a temporary name beside its final path, synced to disk and renamed. One run
at a time does so, which holds the lease (`files.lease`) ``.NAME.lease.json`` and removes what killed runs have left. An
existing folder is replaced only if it is a prepared data set. Not every system can exchange two folders atomically, so the old
one is first renamed to a backup name; if the process is killed between the two renames, readers open the backup.
``binned.json`` has a digest and contains a checksum for every block of the other files; both are verified when reading. Digests
protect against damage only, so the content is checked as well (`prepared.dataset_checks`).
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import numpy as np

from dboost.data import CategoryColumn, Chunk, Column, RowRoles, Table
from dboost.data.columns.binning import Binning
from dboost.data.columns.chunk import BinnedPartition, DecodedColumns, values_of
from dboost.data.columns.labels import Names, text_of
from dboost.data.columns.roles import ROLES, n_columns_of
from dboost.data.tables.row_metadata import OF_POSITIVE_WEIGHT
from dboost.errors import DataError, DBoostError, ModelFileError, ParameterError, reason, shown
from dboost.files.lease import Lease
from dboost.files.path_text import PREPARED, path_text
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.prepared.dataset_checks import (
    STORED,
    BlockCheck,
    CodesCheck,
    RolesCheck,
    binning_content,
    check_layout,
    check_sample_rows,
    content_text,
    count,
    digest_of,
    parse_binning,
    parse_checksums,
    parse_description,
    parse_settings,
    parse_target,
    refuse,
    sample_problem,
    stored_roles,
)
from dboost.prepared.prepared_codes import codes_in_memory
from dboost.rows.block_file import BlockFile, Field, StorageError
from dboost.rows.encode import encoded_pieces
from dboost.rows.encoded_store import EncodedStore, rows_in_memory
from dboost.rows.row_store import FieldGroup, InFiles, RowStore
from dboost.rows.shard import BinnedColumns, RowIds, codes_of, tiles_of
from dboost.rows.shard_spec import code_fields, column_fields, plan_layout, rows_that_fit, target_field
from dboost.schema import Feature, Level
from dboost.session.fit_records import BuildSpec, Chosen, ReplayState, RowNumbers, log_rows_in_files
from dboost.session.local_sessions import BATCH, LocalSessions
from dboost.session.reference_sample import ReferenceSample, reference_rows
from dboost.session.table_rows import BatchRows, StartingPiece
from dboost.session.target import Target, TargetScan, encode_column
from dboost.session.warm_start import COLD_START, WarmStart, add_block, matrix_of
from dboost.training.binned_data import DatasetDescription
from dboost.training.plan import FitRequest, ValidationPlan, needs_test_set
from dboost.trees.fit_trees import TreesSoFar
from dboost.tuning import Tuning


@dataclass(eq=False)
class PreparedDataset:
    """A prepared data set in files, see the module."""

    named: bool  # whether the features' names are the user's
    binning: Binning
    target: TargetScan
    categories: tuple[Level, ...] | None  # of the target
    codes: BlockFile
    rows: BlockFile
    settings: dict[str, Any] = field(default_factory=dict)  # parameters with which it was prepared, by name
    reference: ReferenceSample | None = None  # with targets as in `rows`

    @property
    def n_rows(self) -> int:
        return self.codes.n_rows

    def has(self, name: str) -> bool:
        """Whether the rows have a field, such as "weight" or "start"."""
        return any(one.name == name for one in self.rows.fields)

    def blocks_of_rows(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield the number and the fields of each block of `rows`; the arrays are valid until the next block."""
        buffer = self.rows.buffer()
        for block in range(self.rows.n_blocks):
            self.rows.read(block, buffer)
            yield block, self.rows.views(buffer, block)

    @property
    def description(self) -> DatasetDescription:
        """What fits on the rows have in common."""
        sample = self.reference
        if sample is None:
            return DatasetDescription(
                self.binning, self.named, np.empty((0, len(self.binning.features))), np.empty(0), has_scores=True
            )
        target = self.as_given(np.array(sample.target))
        return DatasetDescription(self.binning, self.named, np.array(sample.values), target, has_scores=True)

    def partitions(self, most_rows: int = Tuning.block_rows) -> Iterator[BinnedPartition]:
        """Read the rows one block at a time, and yield those of a block in partitions of at most `most_rows` rows."""
        for block, rows in self.blocks_of_rows():
            others = {name: rows[name].copy() for name in STORED if name in rows}
            columns, roles = self.codes_in(block).columns(), RowRoles(self.as_given(rows["target"]), **others)
            n_rows = len(columns[0])
            n_parts = -(-n_rows // most_rows)
            for part in range(n_parts):
                some = slice(n_rows * part // n_parts, n_rows * (part + 1) // n_parts)
                yield BinnedPartition(tuple(column[some] for column in columns), roles.rows(some))

    def codes_in(self, block: int) -> BinnedColumns:
        """Read the codes of a block."""
        buffer = self.codes.buffer()
        self.codes.read(block, buffer)
        views = self.codes.views(buffer, block)
        return codes_of(views["tiles"], views.get("wide"), plan_layout(self.binning.n_bins, self.binning.is_categorical))

    def as_given(self, stored: np.ndarray) -> Column:
        """Return stored targets (float64[n]) in the type that they were given in."""
        if self.categories is not None:
            return CategoryColumn(stored.astype(np.int32), self.categories)
        return stored.astype(bool if self.target.is_bool else np.dtype(self.target.dtype))

    def close(self) -> None:
        self.codes.close()
        self.rows.close()


def write_binned(
    source: LocalSessions,
    scan: TargetScan,
    binning: Binning,
    folder: Path,
    *,
    warm_start: WarmStart = COLD_START,
    seed: int,
    n_threads: int,
    count: Callable[[int, int, str], None] = lambda *_: None,
) -> PreparedDataset:
    """Write the rows of a table to an existing folder.

    scan : of its targets; seed : of the reference sample; count : shows how many rows are written, see `Progress.count`.

    Raises
    ------
    StorageError
        When the files cannot be written.
    DataError
        When a numeric feature holds an infinite value, naming column and row.
    """
    table, n_rows = source.table, sum(source.n_kept.values())
    stored_roles = [role for role in ROLES if role in source.roles and not (role == "sample_weight" and source.unit_weights)]
    layout = plan_layout(binning.n_bins, binning.is_categorical)
    model = warm_start.model
    flat = None if model is None else FlatEnsemble(model)
    others = [Field(ROLES[role].field, ROLES[role].stored_dtype) for role in stored_roles if role != "target"]
    fields = [target_field(scan.n_columns), *others]
    fields += [] if model is None else [_start_field(model)]
    tiles = code_fields(layout)
    block_rows = rows_that_fit(tiles, n_rows)
    groups = FieldGroup("codes", tiles, sealed=True), FieldGroup("rows", fields, sealed=True)
    store = RowStore(groups, [n_rows], InFiles(block_rows, None, folder))
    try:
        sampled_rows: list[tuple[np.ndarray, np.ndarray]] = []
        first = 0
        for piece in encoded_pieces(table, binning, layout, n_threads, block_rows):
            target, offset = piece.roles.target, piece.roles.offset
            values = target.codes if isinstance(target, CategoryColumn) else target
            categories = target.categories if isinstance(target, CategoryColumn) else None
            assert values is not None
            roles: dict[str, Any] = piece.roles.by_name() | {"target": values}
            rows = reference_rows(n_rows, len(table.features), seed, first, first + piece.codes.n_rows) - first
            sampled_rows.append((values_of(piece.chunk, rows), values[..., rows].astype(np.float64)))
            first += piece.codes.n_rows
            written: dict[str, np.ndarray | None] = {
                "tiles": tiles_of(piece.codes, layout),
                "wide": piece.codes.wide,
            } | {ROLES[role].field: roles[role] for role in stored_roles}
            if flat is not None:
                matrix = matrix_of(piece.chunk)
                scores = np.repeat(warm_start.baseline[:, None], len(matrix), axis=1)
                if offset is not None:
                    scores[warm_start.offset_outputs] += offset
                add_block(scores, flat, matrix, (0, warm_start.n_before), n_threads)
                written["start"] = scores if len(scores) > 1 else scores[0]
            store.append(piece.codes.n_rows, {name: values for name, values in written.items() if values is not None})
            count(first, n_rows, "row")
        store.check_filled()
    except BaseException:
        for file in store.files:
            file.remove()
        raise
    sampled, of_sample = zip(*sampled_rows, strict=True)
    reference = ReferenceSample(np.concatenate(sampled), np.concatenate(of_sample, axis=-1))
    codes, stored = store.files
    return PreparedDataset(table.named, binning, scan, categories, codes, stored, reference=reference)


def _start_field(model: Ensemble) -> Field:
    """Return the field of the scores of the model that is continued."""
    return Field("start", "<f8", () if model.n_outputs == 1 else (model.n_outputs,))


Answer = TypeVar("Answer")
Given = TypeVarTuple("Given")


class PreparedSessions(LocalSessions):
    """The session of a fit on a prepared folder: its rows are `PreparedRows`."""

    def __init__(self, data: PreparedDataset, request: FitRequest) -> None:
        super().__init__(_no_table, request.n_threads)
        self.rows = PreparedRows(data, request.n_threads)
        self.refuses_test_set = needs_test_set(request.parameters, ValidationPlan(), request.eval_sets)

    def load(self) -> tuple[Feature, ...]:
        data = self.rows.data
        self._resources.callback(data.close)
        if self.refuses_test_set:
            raise ParameterError("arcbites on prepared data need an evaluation set that ends their visits: give an eval_set")
        self.session = self.open_session(data.n_rows, len(data.binning.features))
        self.named, self.roles = data.named, tuple(name for name in ROLES if data.has(ROLES[name].field))
        self.set_trained({0: data.n_rows}, not data.has("weight"))
        return data.binning.features

    def target_scans(self) -> list[TargetScan]:
        return [self.rows.data.target]

    def ask(self, question: Callable[[BatchRows, *Given], Answer], *arguments: *Given) -> list[Answer]:
        """Ask the method of that name: `PreparedRows` are no `BatchRows`, but have the methods that a fit needs."""
        return [getattr(self.rows, question.__name__)(*arguments)]

    def change(self, step: Callable[[BatchRows, *Given], None], *arguments: *Given) -> None:
        getattr(self.rows, step.__name__)(*arguments)

    def build(self, spec: BuildSpec, chosen: Chosen, trees: TreesSoFar) -> None:
        self.spec = spec = replace(spec, numbers=self.numbers)
        self.trees = trees
        self.session.build_from(self.rows, BATCH, spec, ReplayState())
        log_rows_in_files(self.session.row_places(BATCH).in_files, spec)


def _no_table() -> Table:
    raise NotImplementedError


class PreparedRows:
    """The rows of a prepared data set, for one fit in this process.

    Implements `session.table_rows.StartingRows` for the session. Targets are encoded for the loss of the fit block by block.
    """

    numbers: RowNumbers

    def __init__(self, data: PreparedDataset, n_threads: int) -> None:
        self.data, self._n_threads, self._continues = data, n_threads, False

    def number(self, numbers: RowNumbers) -> None:
        self.numbers = numbers

    def encode(self, target: Target) -> None:
        self._target = target

    def compute_start_scores(self, warm_start: WarmStart) -> None:
        """Check the scores that the files contain."""
        self._continues, model = True, warm_start.model
        assert model is not None
        if any(one.name == "start" and one != _start_field(model) for one in self.data.rows.fields):
            raise StorageError(
                f"{self.data.rows.path} is damaged: its scores are not those of a model with {model.n_outputs} outputs; "
                "prepare the data set again"
            )

    def map_rows(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
        found = []
        for block, rows in self.data.blocks_of_rows():
            roles = replace(stored_roles(rows), target=self.encoded(rows["target"], block))
            if self._continues:
                roles = replace(roles, offset=rows["start"])
            found.append(function(roles, *arguments))
        return found

    def encoded(self, values: np.ndarray, block: int) -> np.ndarray:
        """Return targets encoded for the loss: float64[n]."""
        data, first = self.data, block * self.data.rows.block_rows
        column = values if data.categories is None else CategoryColumn(values.astype(np.int64), data.categories)
        those = OF_POSITIVE_WEIGHT if data.has("weight") else ""
        dtype, is_bool = data.target.dtype, data.target.is_bool
        return encode_column(column, self._target, lambda row: f"row {first + row}{those}", dtype=dtype, is_bool=is_bool)

    # For the session.

    @property
    def owned(self) -> dict[int, int]:
        """All rows form one partition."""
        return {0: self.data.n_rows}

    def draw_ids(self, number: int, start: int) -> np.ndarray:
        if not self.data.has("group"):
            return start + np.arange(self.data.n_rows)
        return np.concatenate([rows["group"].copy() for _, rows in self.data.blocks_of_rows()])

    @property
    def n_kept(self) -> int:
        """Number of rows."""
        return self.data.n_rows

    def in_memory(self, spec: BuildSpec) -> EncodedStore:
        data, of_codes = self.data, {field.name for field in column_fields(spec.shard.layout)}
        groups = [
            FieldGroup(name, [field for field in fields if field.name not in of_codes], sealed=sealed)
            for name, fields, sealed in spec.shard.start_groups()
        ]
        store = RowStore(groups, [data.n_rows])
        for fields in self._starting(spec):
            store.append(fields["raw"].shape[1], fields)
        store.check_filled()
        codes = codes_in_memory(data.codes, data.codes_in, spec.shard, self._n_threads)
        return rows_in_memory(store.load() | codes, spec.shard)

    def write(self, spec: BuildSpec, root: Path | None) -> tuple[RowStore, RowIds]:
        """Return a store that streams bin codes from the prepared folder; its own files are in a private directory."""
        data = self.data
        place, existing = InFiles(data.codes.block_rows, root), {"codes": data.codes}
        store = RowStore(spec.shard.groups(in_memory=False), [data.n_rows], place, existing)
        try:
            for fields in self._starting(spec):
                constant = spec.shard.constant_state(fields.get("weight"), fields["raw"].shape)
                store.append(fields["raw"].shape[1], fields | constant)
            store.check_filled()
            data.rows.close()
        except BaseException:
            store.close()
            raise
        return store, RowIds(np.array([[0, data.n_rows]], np.int64))

    def pieces(self, spec: BuildSpec, n_threads: int = 1, piece_rows: int = 0) -> Iterator[StartingPiece]:
        """Yield the rows block by block, with their bin codes."""
        first = 0
        for block, fields in enumerate(self._starting(spec)):
            yield StartingPiece(first, self.data.codes_in(block), fields)
            first += fields["raw"].shape[1]

    def _starting(self, spec: BuildSpec) -> Iterator[dict[str, np.ndarray]]:
        """Yield target, weight (if weighted) and initial raw scores of each block."""
        flat: FlatEnsemble | None = None
        start = spec.warm_start
        for block, rows in self.data.blocks_of_rows():
            n = rows["target"].shape[-1]
            if "start" in rows:
                raw = np.atleast_2d(rows["start"]).copy()
            else:
                raw = np.repeat(spec.baseline[:, None], n, axis=1)
                if "offset" in rows:
                    raw[spec.target.loss.link.offset_outputs] += rows["offset"]
            if start.model is not None and start.resumes:
                # The files lack the iterations that the fit has grown before it was interrupted.
                flat = FlatEnsemble(start.model) if flat is None else flat
                # Trees of these bins route the values in them equally.
                values = DecodedColumns(self.data.codes_in(block).columns(), self.data.binning)
                add_block(raw, flat, matrix_of(Chunk(n, values)), (start.n_earlier, start.n_before), 1)
            found = {"target": spec.in_unit(self.encoded(rows["target"], block)), "raw": spec.in_unit(raw)}
            if spec.shard.weighted:
                found["weight"] = rows["weight"]
            if spec.shard.grouped:
                found["draw_id"] = rows["group"]
            yield found


#: The newest version; folders with one target column have version 1, which older versions of dboost read.
VERSION = 2
_NAME = PREPARED


def is_prepared(path: Any) -> bool:
    """Whether a folder contains a prepared data set, which may be damaged."""
    return isinstance(path, str | os.PathLike) and (_readable_folder(Path(path_text(path))) / _NAME).is_file()


def _backup_of(folder: Path) -> Path:
    """Return the path of a folder's backup while it is being replaced."""
    return folder.with_name(f".{folder.name}-replaced")


def _readable_folder(folder: Path) -> Path:
    """Return the folder, or its backup if the process that replaced it was killed between the two renames."""
    return folder if os.path.exists(folder) or not os.path.isfile(_backup_of(folder) / _NAME) else _backup_of(folder)


def write_folder(path: str | os.PathLike[str], write: Callable[[Path], PreparedDataset]) -> None:
    """Create a folder with the files that `write` writes, atomically.

    Raises
    ------
    BusyError
        When another run writes the folder.
    DataError
        When the path exists and is no prepared data set.
    StorageError
        When the folder cannot be written.
    """
    final = Path(os.path.abspath(path_text(path)))
    if final.exists() and not is_prepared(final):
        raise DataError(f"{final} is there already and holds no prepared data: choose another path, or remove it")
    try:
        with Lease(f"{final.with_name(f'.{final.name}.lease.json')}", f"is preparing {final}") as lease:
            _write_new(final, write, lease)
    except ModelFileError as error:  # of the lease
        raise StorageError(f"cannot write {final}: {reason(error.__cause__ or error)}") from error


def _write_new(final: Path, write: Callable[[Path], PreparedDataset], lease: Lease) -> None:
    """Write a folder and put it in its place, for the run that has the lease."""
    draft = re.compile(rf"\.{re.escape(final.name)}\.[0-9a-f]{{32}}\.draft")
    new = final.with_name(f".{final.name}.{uuid.uuid4().hex}.draft")
    try:
        for name in os.listdir(final.parent):
            if draft.fullmatch(name):  # of a run that was killed
                shutil.rmtree(final.with_name(name), ignore_errors=True)
        new.mkdir(0o700)
        data = write(new)
        reference = _write_reference(new, data.reference)
        for file in (data.codes, data.rows, reference):
            file.sync()
        reference.close()
        data.close()
        content = content_text(_content(data, reference))
        version = 1 if data.target.n_columns == 1 else VERSION
        head = f'{{\n "format": "dboost-binned",\n "version": {version},\n "sha256": "{digest_of(content)}",\n "content": '
        with open(new / _NAME, "wb") as description:
            description.write(head.encode() + content + b"}\n")
            description.flush()
            os.fsync(description.fileno())
        lease.renew()
        _put_in_place(new, final)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        if isinstance(error, DBoostError):  # of the data, too
            raise
        raise StorageError(f"cannot write {final}: {reason(error)}") from error
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _put_in_place(new: Path, final: Path) -> None:
    """Rename the new folder to its final name; restore the previous folder if that fails."""
    backup = _backup_of(final)
    if final.exists():
        shutil.rmtree(backup, ignore_errors=True)  # left by a process that was killed before it removed the backup
        os.rename(final, backup)
    try:
        os.rename(new, final)
    except BaseException:
        if not final.exists() and backup.exists():
            os.rename(backup, final)
        raise
    shutil.rmtree(backup, ignore_errors=True)


def open_folder(path: str | os.PathLike[str]) -> PreparedDataset:
    """Open a folder written by `write_folder`. Its content is checked (`prepared.dataset_checks`), that of blocks when they are
    read.

    Raises
    ------
    StorageError
        When it is damaged, or was written by a newer version or on a machine with another byte order.
    """
    folder = _readable_folder(Path(path_text(path)))
    name = folder / _NAME
    try:
        content = name.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {shown(name)}: {reason(error)}") from error
    return parse_description(content, str(name), VERSION, partial(_opened, folder))


def check_same_model(data: PreparedDataset, given_value: Any) -> None:
    """Check that a fit continues the model for which the data were prepared. given_value : its digest, or None.

    Raises
    ------
    ParameterError
        If it does not.
    """
    folder = data.codes.path.parent
    prepared_with = data.settings.get("start_from")
    if prepared_with is not None and given_value is None:
        raise ParameterError(f"{folder} was prepared to continue a model (sha256 {prepared_with[:12]}…): give it as start_from")
    if prepared_with != given_value:
        how = "for a first fit" if prepared_with is None else f"to continue another model (sha256 {prepared_with[:12]}…)"
        raise ParameterError(
            f"{folder} was prepared {how}: bins cannot tell what scores the rows have under a model, so prepare the data with "
            "start_from=…"
        )


def check_same(settings: dict[str, Any], where: str, given: dict[str, Any]) -> None:
    """Check that given parameters equal those with which data were prepared.

    settings, given : values by name; where : name of the data set, for messages.

    Raises
    ------
    ParameterError
        Naming the parameter that differs.
    """
    for name, value in given.items():
        known, given_value = settings.get(name), describe(value)
        if str(given_value).startswith("<") or (isinstance(given_value, list) and str(known).startswith("<")):
            raise ParameterError(f"{where} holds prepared data with a {name} of their own: leave yours out")
        if given_value != known and text_of(value) != known:
            what = f"was prepared with {name}={known!r}" if known is not None else f"was prepared without {name}"
            raise ParameterError(f"{name}={given_value!r} does not fit the data: {where} {what}")


def named_roles(settings: dict[str, Any]) -> dict[str, str | list[str]]:
    """Return the names of the columns of roles, without those that were given as values."""
    names = {role: settings.get(role) for role in ROLES}
    found = {role: name for role, name in names.items() if name is not None and not str(name).startswith("<")}
    return {role: [*map(str, name)] if isinstance(name, list) else str(name) for role, name in found.items()}


def roles_of_fits(settings: dict[str, Any]) -> dict[str, str | list[str]]:
    """Return `named_roles`, with the names of several targets that were given as a table of their own."""
    names = settings.get("target_names")
    return named_roles(settings) | ({} if names is None else {"target": names})


def describe(value: Any) -> Any:
    """Convert a parameter to JSON types: names and numbers unchanged, other objects as the name of their type."""
    value = value.item() if isinstance(value, np.bool_ | np.number | np.str_) else value
    if isinstance(value, float) and not math.isfinite(value):  # a label; JSON has no such numbers
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [describe(one) for one in value]
    if Names(()).is_label(value):
        return text_of(value)
    return f"<{type(value).__name__}>"


def _write_reference(folder: Path, reference: ReferenceSample | None) -> BlockFile:
    """Write the reference sample, in one block."""
    assert reference is not None
    n, n_features = reference.values.shape
    fields = [Field("values", "<f8", (), (n_features,)), target_field(n_columns_of(reference.target))]
    store = RowStore([FieldGroup("portrait", fields, sealed=True)], [n], InFiles(n, None, folder))
    store.append(n, vars(reference))
    store.check_filled()
    return store.files[0]


def _read_reference(file: BlockFile) -> ReferenceSample:
    buffer = file.buffer()
    file.read(0, buffer)
    file.close()
    return ReferenceSample(**file.views(buffer, 0))


def _content(data: PreparedDataset, reference: BlockFile) -> dict[str, Any]:
    files = {}
    for name, file in (("codes", data.codes), ("rows", data.rows), ("portrait", reference)):
        assert file.checksums is not None
        files[name] = {
            "n_rows": file.n_rows,
            "fields": [[field.name, field.dtype, list(field.before), list(field.after)] for field in file.fields],
            "checksums": [f"{digest:016x}" for digest in file.checksums.tolist()],
        }
    target = data.target
    return binning_content(data.binning, data.named) | {
        "byte_order": sys.byteorder,
        "n_rows": data.n_rows,
        "block_rows": data.codes.block_rows,
        "target": {
            "levels": target.categories,
            "distinct": target.distinct.tolist(),
            "too_many": target.too_many,
            "dtype": target.dtype,
            "is_bool": target.is_bool,
            **({} if target.n_columns == 1 else {"n_columns": target.n_columns}),
        },
        "target_levels": data.categories,
        "settings": data.settings,
        "files": files,
    }


def _opened(folder: Path, content: dict[str, Any]) -> PreparedDataset:
    if content["byte_order"] != sys.byteorder:
        raise StorageError(f"{folder} was written on a machine whose bytes have another order ({content['byte_order']}-endian)")
    binning, settings = parse_binning(content), parse_settings(content["settings"])
    target, categories = parse_target(content["target"], content["target_levels"])
    n_rows, block_rows = count(content["n_rows"], "n_rows", 1), count(content["block_rows"], "block_rows", 1, Tuning.block_rows)
    stored = content["files"]
    refuse(set(stored) not in ({"codes", "rows"}, {"codes", "rows", "portrait"}), "it has other files than those of a data set")
    fields = {
        name: [Field(field, dtype, tuple(before), tuple(after)) for field, dtype, before, after in one["fields"]]
        for name, one in stored.items()
    }
    check_layout(fields, binning, target.n_columns, "start_from" in settings)
    sample_roles = RolesCheck(target, categories, 1)
    checks: dict[str, BlockCheck] = {
        "codes": CodesCheck(binning),
        "rows": RolesCheck(target, categories, -(-n_rows // block_rows)),
        "portrait": lambda block, views: sample_roles.of_targets(views["target"]) or sample_problem(views["values"], binning),
    }
    files: dict[str, BlockFile] = {}
    try:
        for name, one in stored.items():
            n = count(one.get("n_rows", n_rows), f"n_rows of {name}", 1)
            if name == "portrait":
                check_sample_rows(n, n_rows, len(binning.features))
            else:
                refuse(n != n_rows, f"{name} has {n} rows of {n_rows}")
            rows = n if name == "portrait" else block_rows
            checksums = parse_checksums(one["checksums"], -(-n // rows))
            files[name] = BlockFile(
                folder / name, fields[name], n, sealed=True, block_rows=rows, checksums=checksums, check=checks[name]
            )
        reference = _read_reference(files["portrait"]) if "portrait" in files else None  # older folders have none
    except BaseException:
        for file in files.values():
            file.close()
        raise
    return PreparedDataset(content["named"], binning, target, categories, files["codes"], files["rows"], settings, reference)
