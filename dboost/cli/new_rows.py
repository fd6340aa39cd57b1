"""What is new for a model of ``dboost train --only-new``: files, or rows of a Delta or Iceberg table.

Both give the next batch, and check that what the model has learned is still there. **A file is recognized** by its name, and it
is the recorded one if it has the recorded size and *stamp* (`data.sources.files`): the tag of an object store, or the times of
the last changes. If times differ, the content decides, by its digest; so a file that was touched or copied stays the same file,
and one that was replaced by another of the same size is an error that names it.

**Tables** are recorded by their version: the batch has the files with the rows that were added since the version of the batch
before (`data.sources.table_versions`), and its own version, which a restarted run reads again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from dboost.data.sources.added_files import AddedFiles, ChangedRowsError
from dboost.data.sources.files import FilesBelow, digest_of, find_files, table_name
from dboost.data.sources.paths import load_table
from dboost.data.sources.table_versions import adapter_of, added_since
from dboost.errors import DataError, shown
from dboost.files.filesystem import filesystem_of


@dataclass(frozen=True)
class FileBatch:
    """Files of one fit."""

    #: Bytes by name.
    files: dict[str, int]
    #: Digest of the continued model; None for a first one.
    base: str | None
    #: What else decides the new model: target and keywords of `dboost.fit`, see `model_settings`.
    settings: dict[str, Any]
    #: Digest of the new model; None before the end of training.
    model: str | None = None
    #: Stamps of the files by name.
    stamps: dict[str, str] = field(default_factory=dict)
    #: SHA-256 of the files whose stamp is no tag, by name.
    digests: dict[str, str] = field(default_factory=dict)
    #: Id and version of the table whose rows are learned up to that version; None for files.
    table: str | None = None
    version: int | None = None
    #: Whether the model begins anew with all rows of the table, instead of continuing the one with the digest `base`.
    begins_anew: bool = False

    @property
    def name(self) -> str:
        """A name that is unique to these files, this continued model and these settings."""
        version = [] if self.version is None else [self.version, self.begins_anew]
        content = [self.base, sorted(self.files.items()), self.settings, *version]
        return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class NewFiles:
    """The files of a folder, glob or URL. model : its path, for messages."""

    def __init__(self, path: str, model: str) -> None:
        self._path, self._model = path, shown(model)
        self._data = find_files(path)

    @property
    def root(self) -> str:
        """The folder or URL that all files have in common."""
        return shown(self._data.root)

    def root_before(self, moved_from: str) -> str:
        """Return the root of the files before they were moved."""
        return shown(find_files(moved_from).root)

    def checked(self, batches: Sequence[FileBatch], is_moved: bool) -> list[FileBatch]:
        """Return batches that the model has learned with the present stamps of their files.

        Raises
        ------
        DataError
            Naming a file whose size or content has changed.
        """
        if any(batch.table for batch in batches):
            raise DataError(f"{self._model} has learned from a table, and {shown(self._path)} has files: name another --output")
        present, checked = self._data.sizes, []
        for name, size in ((name, size) for batch in batches for name, size in batch.files.items()):
            if present.get(name, size) != size:
                raise DataError(
                    f"{name} has {present[name]:,} bytes, and had {size:,} when {self._model} learned from it: "
                    f"give changed rows a name of their own"
                )
        for batch in batches:
            stamped, replaced = self._compared(batch, is_moved)
            if replaced is not None:
                raise DataError(
                    f"{replaced} has another content than when {self._model} learned from it: give changed rows a name "
                    f"of their own, and put back the file that was there, or remove it"
                )
            checked.append(stamped)
        return checked

    def next(
        self, learned: Sequence[FileBatch], base: str | None, settings: dict[str, Any], *, retrain: bool
    ) -> FileBatch | None:
        """Return the batch of the files that are in no other one; None without new files."""
        names = {name for batch in learned for name in batch.files}
        new = {name: size for name, size in self._data.sizes.items() if name not in names}
        return self._compared(FileBatch(new, base, settings))[0] if new else None

    def interrupted(self, batch: FileBatch, learned: Sequence[FileBatch], is_moved: bool) -> FileBatch:
        """Return the batch that is being trained with the present stamps of its files.

        Raises
        ------
        DataError
            Naming a file that is missing or has changed.
        """
        present = self._data.sizes
        for name, size in batch.files.items():
            if present.get(name) != size:
                change = "is gone" if name not in present else f"has {present[name]:,} bytes instead of {size:,}"
                raise DataError(
                    f"{name} {change}, and {self._model} is being trained on it: put it back, or start again with the "
                    f"present files, by --discard-batch"
                )
        stamped, replaced = self._compared(batch, is_moved)
        if replaced is not None:
            raise DataError(
                f"{replaced} has another content than when the training of {self._model} on it began: put it back, or "
                f"start again with the present files, by --discard-batch"
            )
        return stamped

    def trained(self, batch: FileBatch, is_moved: bool) -> FileBatch:
        """Return the batch after its training, with the present stamps of its files.

        Raises
        ------
        DataError
            Naming a file that was replaced meanwhile: it is unknown which of its contents the model has.
        """
        self._data = find_files(self._path)
        replaced = next((name for name, size in batch.files.items() if self._data.sizes.get(name, size) != size), None)
        if replaced is None:
            batch, replaced = self._compared(batch, is_moved)
        if replaced is not None:
            raise DataError(
                f"{replaced} was replaced while {self._model} was trained on it, which was not saved: start again, with "
                f"--discard-batch if there is a checkpoint, and write changed rows to new files"
            )
        return batch

    def rows(self, batch: FileBatch) -> FilesBelow:
        """Return the URLs of the files, in the order of their names, with the columns in the names of folders."""
        return FilesBelow((url for name, url in self._data.urls.items() if name in batch.files), self._data.root)

    def _compared(self, batch: FileBatch, is_moved: bool = False) -> tuple[FileBatch, str | None]:
        """Return a batch with the present stamps of its files, and the name of the first one that was replaced, if any."""
        stamps, digests = dict(batch.stamps), dict(batch.digests)
        for name in batch.files:
            file, noted = self._data.files.get(name), stamps.get(name)
            if file is None or (file.stamp and file.stamp == noted):
                continue
            digest = None if file.has_tag and name not in digests else digest_of(file)
            if noted is not None and file.has_tag and noted.startswith("tag ") and not is_moved:
                return batch, name
            if digests.get(name, digest) != digest:
                return batch, name
            stamps[name] = file.stamp
            if digest is not None:
                digests[name] = digest
        return replace(batch, stamps=stamps, digests=digests), None


class NewTableRows:
    """The rows of a Delta or Iceberg table. Methods are those of `NewFiles`; versions take the place of stamps."""

    def __init__(self, table: Any, model: str) -> None:
        self._table, self._model = table, shown(model)
        self._adapter = adapter_of(table)
        self._added: AddedFiles | None = None  # the rows of the batch

    @property
    def root(self) -> str:
        return shown(self._adapter.location)

    def root_before(self, moved_from: str) -> str:
        fs, name = filesystem_of(moved_from)  # the folder of a table that is not there any more, as its adapter writes it
        return shown(str(fs.unstrip_protocol(name)).rstrip("/"))

    def checked(self, batches: Sequence[FileBatch], is_moved: bool) -> list[FileBatch]:
        for batch in batches:
            self._check_table(batch)
        return list(batches)

    def _check_table(self, batch: FileBatch) -> None:
        if batch.table != self._adapter.id:
            source = "another table" if batch.table else "files"
            raise DataError(
                f"{self._model} has learned from {source} at {self._adapter.location}, not from {table_name(self._table)}: "
                "name another --output"
            )

    def next(
        self, learned: Sequence[FileBatch], base: str | None, settings: dict[str, Any], *, retrain: bool
    ) -> FileBatch | None:
        begins_anew = False
        try:
            added = added_since(self._table, _last_version(learned))
        except ChangedRowsError as error:
            if not retrain:
                raise DataError(
                    f"{error}; {self._model} cannot forget them: --retrain-if-changed trains a new model on all rows"
                ) from error
            begins_anew, added = True, added_since(self._table, None)
        self._added = added
        if not added.files:
            return None
        name, version = self._adapter.id, added.version
        return FileBatch(added.files, base, settings, table=name, version=version, begins_anew=begins_anew)

    def interrupted(self, batch: FileBatch, learned: Sequence[FileBatch], is_moved: bool) -> FileBatch:
        self._check_table(batch)
        if self._added is None:
            self._added = added_since(self._table, None if batch.begins_anew else _last_version(learned), batch.version)
        if self._added.files != batch.files:
            raise DataError(
                f"version {batch.version} of {table_name(self._table)} has other files than when the training of "
                f"{self._model} on it began: start again with the present files, by --discard-batch"
            )
        return batch

    def trained(self, batch: FileBatch, is_moved: bool) -> FileBatch:
        return batch  # the files of a version never change

    def rows(self, batch: FileBatch) -> AddedFiles | None:
        return self._added


def _last_version(learned: Sequence[FileBatch]) -> int | None:
    return learned[-1].version if learned else None


def open_new(path: str, model: str) -> NewFiles | NewTableRows:
    """Return what may be new at a path: that of files, of a Delta table, or of the metadata of an Iceberg table."""
    table = load_table(path)
    return NewFiles(path, model) if table is None else NewTableRows(table, model)
