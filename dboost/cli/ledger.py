"""Ledger: the record of the files that a model was trained on, for ``dboost train --only-new``.

Data arrive as files, for example one partition per day. ``--only-new`` trains on those that the model at ``--output`` has not
been trained on, and does nothing without new files; so one command is the first fit, the nightly continuation, and the restart
after a crash. The model file is a function of rows, settings and seed, so the files are recorded in ``MODEL.ledger.json``.

What is new, and how files and tables are recognized, is decided by `new_rows`.

**No file is trained on twice or lost**, wherever the process is killed. No single step can write model and ledger together, so
the ledger is a write-ahead log:

1. *Next batch.* The files of the batch, the settings that decide its model, and the digest of the model that is continued are
   written as ``pending``. From now on the batch is fixed: later files belong to the next one, and a run with other settings is
   refused. So a restarted run has the same data and settings as the checkpoint of the batch, and gives the same model.
2. *Record the model.* After training, the digest of the new model is added to the pending batch; training is deterministic, so
   a restarted run gets the same digest.
3. The model is saved atomically.
4. *Commit.* The checkpoint is removed, and the batch is moved to ``settled``.

A restarted run compares the digest of the model file: it is either that of the continued model (train, from the checkpoint if
there is one), or the recorded one (commit). Any other file was written by another program, and is an error.

**Mistakes do not stay in the ledger.** A batch whose data or settings turn out to be invalid before anything is in its
checkpoint is withdrawn; ``--discard-batch`` discards any other unfinished one. A ledger of other data is an error if a model
exists (unless ``--moved-from`` names its folder: the files have moved), and is begun anew otherwise.

If rows of a table that the model has learned were deleted or changed since, the run is refused; with ``--retrain-if-changed``
the batch has all rows, and its model replaces the old one, with all earlier batches.

**One run at a time** has the ledger, from reading it to the last write: it holds the lease of the model
(`dboost.files.lease`), the file ``MODEL.lease.json``. The ledger renews the lease before each of its writes and deletions,
and so does each iteration that ends later than the lease's duration after the last renewal.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dboost
from dboost.cli.new_rows import FileBatch, open_new
from dboost.data.sources.added_files import AddedFiles
from dboost.data.sources.files import FilesBelow
from dboost.errors import DataError, ParameterError, shown
from dboost.files.atomic_write import FileMissingError, names_in, read_whole, remove, write_whole
from dboost.files.json_shape import ANY, OTHERS, Shape, Within, check_shape
from dboost.files.lease import Lease
from dboost.params import canonical
from dboost.training.checkpoint import STATE, first_difference, remove_checkpoint

_FORMAT, _VERSION = "dboost ledger", 3
#: Keywords of `dboost.fit` that do not decide the model, or are recorded otherwise.
_NOT_SETTINGS = {"callbacks", "checkpoint", "checkpoint_every", "client", "n_threads", "progress", "start_from", "workers"}


def model_settings(target: str | list[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides the model, beside the files and the continued model, as JSON types by name.

    parameters : keywords of `dboost.fit`. Aliases are replaced by what they stand for.
    """
    named = {"target": target} | canonical(parameters)
    ignored = _NOT_SETTINGS if named.get("arcbites") else _NOT_SETTINGS | {"memory_limit"}  # it decides the number of arcbites
    settings = {name: value for name, value in named.items() if name not in ignored}
    # Signatures of URLs are secret, and new ones are no other settings.
    plain: dict[str, Any] = _without_secrets(json.loads(json.dumps(settings, default=str)))
    return plain


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return shown(value) if isinstance(value, str) else value


def _defaults() -> dict[str, Any]:
    """Return the settings of `model_settings` that are not given."""
    keywords = inspect.signature(dboost.fit).parameters.values()
    return {keyword.name: keyword.default for keyword in keywords if keyword.default is not inspect.Parameter.empty}


@contextmanager
def open_ledger(
    model: str, data: str, settings: dict[str, Any], checkpoint: str | None = None, moved_from: str | None = None
) -> Iterator[Ledger]:
    """Open the ledger of a model for this run alone; see `Ledger` and `Lease` for arguments and errors."""
    with Lease(f"{model}.lease.json", f"is training {shown(model)}") as lease:
        yield Ledger(model, data, settings, checkpoint, moved_from, lease)


class Ledger:
    """The batches of files in a model, or of rows of a table, and the pending one.

    Parameters
    ----------
    model : str
        Path or URL of the model.
    data : str
        Path, folder, glob or URL; also of a Delta table, or of the metadata of an Iceberg table.
    settings : dict
        Those of the next batch, see `model_settings`.
    checkpoint : str or None
        Folder or URL in which every batch has a checkpoint, removed when the batch is committed.
    moved_from : str or None
        Where the files of the ledger were before they moved to `data`.
    lease : Lease
        Renewed before each write.

    Raises
    ------
    DataError
        If the ledger belongs to other data, or does not match the model.
    """

    def __init__(
        self,
        model: str,
        data: str,
        settings: dict[str, Any],
        checkpoint: str | None,
        moved_from: str | None,
        lease: Lease,
    ) -> None:
        self._model, self._settings, self._checkpoint = model, settings, checkpoint
        self.path, self.lease = f"{model}.ledger.json", lease
        self._source = open_new(data, model)
        self._moved_from = None if moved_from is None else self._source.root_before(moved_from)
        self._is_moved = False
        self._base = self._digest()
        self._settled, self._pending = self._read()
        if self._pending is not None and self._pending.model is not None and self._base == self._pending.model:
            self.commit()
        self._check_model()

    @property
    def files(self) -> dict[str, int]:
        """Bytes of the files in the model, by name."""
        return {name: size for batch in self._settled for name, size in batch.files.items()}

    def next_batch(self, *, retrain: bool = False) -> FileBatch | None:
        """Return the batch to train now: the interrupted one, else the new files; None without new files.

        retrain : whether the batch has all rows of a table if rows that the model has learned were deleted or changed.

        Raises
        ------
        DataError
            Naming a file whose size or content has changed, or a missing file of the interrupted batch; or the version of a
            table that deleted or changed rows.
        ParameterError
            Naming a setting that differs from that of the interrupted batch.
        """
        settled = self._source.checked(self._settled, self._is_moved)
        if self._is_moved or settled != self._settled:
            self._settled = settled
            self._write()
        if self._pending is None:
            self._pending = self._source.next(self._settled, self._base, self._settings, retrain=retrain)
            if self._pending is None:
                return None
            self._write()
        self._check_settings(self._pending)
        self._pending = self._source.interrupted(self._pending, self._settled, self._is_moved)
        return self._pending

    def rows(self, batch: FileBatch) -> FilesBelow | AddedFiles | None:
        """Return the data of a batch, for `dboost.fit`."""
        return self._source.rows(batch)

    def checkpoint(self, batch: FileBatch) -> str:
        """Return the folder of a batch's checkpoint; a checkpoint of another batch would be refused."""
        return f"{str(self._checkpoint).rstrip('/')}/{batch.name}"

    def record_model(self, digest: str) -> None:
        """Write the digest of the model that will be saved next.

        Raises
        ------
        DataError
            Naming a file that was replaced during the training: it is unknown which of its contents the model has.
        """
        batch = self._source.trained(self._unfinished, self._is_moved)
        self._pending = replace(batch, model=digest)
        self._write()

    @property
    def _unfinished(self) -> FileBatch:
        """The pending batch, which exists from `next_batch` to `commit`."""
        assert self._pending is not None
        return self._pending

    def commit(self) -> None:
        """Move the pending batch to the settled ones, after its model has been saved."""
        batch = self._unfinished
        self._remove_checkpoint()
        self._settled = [*([] if batch.begins_anew else self._settled), batch]
        self._pending = None
        self._write()

    def withdraw(self) -> None:
        """Drop the pending batch after an error of its data or settings, unless its checkpoint contains iterations."""
        if self._checkpoint is not None and STATE in names_in(self.checkpoint(self._unfinished)):
            return
        self.discard()

    def discard(self) -> None:
        """Drop the pending batch, if there is one, with its checkpoint."""
        if self._pending is None:
            return
        self._remove_checkpoint()
        self._pending = None
        if self._settled:
            self._write()
        else:
            self.lease.renew()
            remove(self.path)

    def _remove_checkpoint(self) -> None:
        """Remove the checkpoint of the pending batch, unless another run has taken over: then it is that of the other run."""
        self.lease.renew()
        if self._checkpoint is not None:
            remove_checkpoint(self.checkpoint(self._unfinished))

    def _digest(self) -> str | None:
        try:
            return dboost.load(self._model).sha256
        except FileMissingError:
            return None

    def _check_model(self) -> None:
        expected = self._pending.base if self._pending else self._settled[-1].model if self._settled else None
        if self._base == expected:
            return
        model, ledger = shown(self._model), shown(self.path)
        if self._base is None:
            raise DataError(f"{ledger} says what {model} has learned from, but the model is gone: restore it, or remove both")
        if expected is None and self._pending is None:
            raise DataError(
                f"{model} exists, but not {ledger} with what it has learned from: --only-new continues models that it began"
            )
        raise DataError(f"{model} is not the model that {ledger} records: restore that one, or remove both to start again")

    def _check_settings(self, pending: FileBatch) -> None:
        defaults = _defaults()
        differs = first_difference(defaults | pending.settings, defaults | self._settings)
        if differs is not None:
            name, recorded, present = differs
            files = f"{len(pending.files):,} file{'s' * (len(pending.files) != 1)}"
            raise ParameterError(
                f"{shown(self._model)} is being trained on {files} with {name}={recorded!r}, not {present!r}: "
                f"finish that by the same command as before, or start again with --discard-batch"
            )

    def _read(self) -> tuple[list[FileBatch], FileBatch | None]:
        try:
            content = json.loads(read_whole(self.path))
            check_shape(content, _LEDGER, "it")
        except FileMissingError:
            if self._moved_from is not None:
                raise ParameterError(
                    f"--moved-from {self._moved_from}: no model has learned from it, since there is no {shown(self.path)}: "
                    "leave it out for a first fit, or name the model by --output"
                ) from None
            return [], None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{shown(self.path)} is damaged: {error}") from error
        settled = [FileBatch(**record) for record in content["settled"]]
        pending = None if content["pending"] is None else FileBatch(**content["pending"])
        root = content["data"]
        if root != self._source.root:
            if not settled and self._base is None:
                return [], None
            if root != self._moved_from:
                origin = "" if self._moved_from is None else f" or {self._moved_from}"
                raise ParameterError(
                    f"{shown(self._model)} has learned from {root}, not {self._source.root}{origin}: if its files have "
                    f"moved there, add --moved-from {shlex.quote(root)}"
                )
            self._is_moved = True
        return settled, pending

    def _write(self) -> None:
        pending = None if self._pending is None else vars(self._pending)
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "data": self._source.root,
            "settled": [vars(batch) for batch in self._settled],
            "pending": pending,
        }
        self.lease.renew()
        write_whole(self.path, json.dumps(content, indent=1).encode())


#: What a ledger may hold.
_BATCH: Shape = {
    "files": {OTHERS: Within(0)}, "base": (str, None), "model": (str, None), "settings": {OTHERS: ANY},
    "stamps?": {OTHERS: str}, "digests?": {OTHERS: str},
    "table?": (str, None), "version?": (Within(0), None), "begins_anew?": bool,
}  # fmt: skip
_LEDGER: Shape = {
    "format": re.compile(_FORMAT), "version": Within(_VERSION, _VERSION), "data": str, "settled": [_BATCH],
    "pending": (_BATCH, None),
}  # fmt: skip
