"""Which files a model has learned from: the record beside it that ``dboost train --only-new`` keeps.

Data arrive as files: this morning's partition lies beside yesterday's. ``--only-new`` trains on those that the model at
``--output`` has not seen, and does nothing when there are none; so one command is the first fit, the nightly continuation,
and the same again after a crash. The model file itself must not know (it is a function of rows, parameters and seed), so the
names and sizes of files are kept in ``MODEL.ledger.json``.

**Nothing is trained twice or lost**, wherever the process is killed. There are two files to keep in step, and no step that
writes both, so the ledger says beforehand what is about to happen:

1. *Open.* The files of the batch, and the digest of the model that they are added to, are written as ``pending``. From now on
   the batch is fixed: files that arrive meanwhile wait for the next one, so that a run that is started again has the same
   data as its checkpoint.
2. *Promise.* When the new model is known, its digest is added to the pending batch; training is deterministic, so a run that
   trains again finds the same.
3. The model is saved, whole or not at all.
4. *Settle.* Its checkpoint is removed, and the batch joins the list of those that are in the model.

Whoever starts sees where the last run ended by the digest of the model that is there: the one that the batch was added to
(train it, a checkpoint helps), or the promised one (settle). Any other was put there by somebody else, and is an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import fsspec

import dboost
from dboost._storage_errors import shown
from dboost.data.paths import find_files
from dboost.errors import DataError, ParameterError
from dboost.storage.atomic_write import FileMissingError, read_whole, write_whole

_FORMAT, _VERSION = "dboost ledger", 1


@dataclass(frozen=True)
class Batch:
    """Files that are learned from together.

    Attributes
    ----------
    files : dict of str to int
        Bytes by name.
    base : str or None
        Digest of the model that they are added to; None for a first one.
    model : str or None
        Digest of the model with them; None as long as it is not known.
    """

    files: dict[str, int]
    base: str | None
    model: str | None = None

    @property
    def name(self) -> str:
        """A name that another batch, or the same one for another model, does not have."""
        return sha256(json.dumps([self.base, sorted(self.files.items())]).encode()).hexdigest()[:16]


class Ledger:
    """What the model at a path has learned from a folder, and what it is about to.

    Parameters
    ----------
    model : str
        Path or URL of the model.
    data : str
        Path, folder, glob or URL.
    checkpoint : str, optional
        Folder or URL in which every batch has a checkpoint of its own, removed when the batch is settled.

    Raises
    ------
    DataError
        When the ledger is about other data, or does not fit the model.
    """

    def __init__(self, model: str, data: str, checkpoint: str | None = None) -> None:
        self._checkpoint = checkpoint
        self.path = f"{model}.ledger.json"
        self._model = model
        self._data = find_files(data)
        self._settled, self._pending = self._read()
        digest = self._digest()
        if self._pending is not None and self._pending.model is not None and digest == self._pending.model:
            self.settle()
        self._base = digest
        self._check_model()

    @property
    def seen(self) -> dict[str, int]:
        """Bytes of the files that are in the model, by name."""
        return {name: size for batch in self._settled for name, size in batch.files.items()}

    def open(self) -> Batch | None:
        """The batch to train now: the one that was interrupted, else the files that are new; None when there are none.

        Raises
        ------
        DataError
            Naming a file that has another size than when it was learned, or is gone from a batch that was interrupted.
        """
        there = self._data.sizes
        for name, size in self.seen.items():
            if there.get(name, size) != size:
                raise DataError(
                    f"{name} has {there[name]:,} bytes, and had {size:,} when {shown(self._model)} learned from it: "
                    f"give changed rows a name of their own"
                )
        if self._pending is None:
            new = {name: size for name, size in there.items() if name not in self.seen}
            if not new:
                return None
            self._pending = Batch(new, self._base)
            self._write()
        for name, size in self._pending.files.items():
            if there.get(name) != size:
                what = "is gone" if name not in there else f"has {there[name]:,} bytes instead of {size:,}"
                raise DataError(
                    f"{name} {what}, and {shown(self._model)} is being trained on it: put it back, or remove "
                    f'"pending" from {shown(self.path)} to begin anew with what is there'
                )
        return self._pending

    def urls(self, batch: Batch) -> list[str]:
        """Where the files of a batch are, in the order of their names."""
        return [url for name, url in self._data.urls.items() if name in batch.files]

    def checkpoint(self, batch: Batch) -> str:
        """Where the progress of a batch is kept; that of another batch would be refused as one of other data."""
        return f"{str(self._checkpoint).rstrip('/')}/{batch.name}"

    def promise(self, digest: str) -> None:
        """Write down the model that is about to be saved."""
        assert self._pending is not None
        self._pending = replace(self._pending, model=digest)
        self._write()

    def settle(self) -> None:
        """The promised model is saved."""
        assert self._pending is not None
        if self._checkpoint is not None:
            _remove_folder(self.checkpoint(self._pending))
        self._settled = [*self._settled, self._pending]
        self._pending = None
        self._write()

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
        raise DataError(f"{model} is not the model that {ledger} tells of: restore that one, or remove both to begin anew")

    def _read(self) -> tuple[list[Batch], Batch | None]:
        try:
            content = json.loads(read_whole(self.path))
        except FileMissingError:
            return [], None
        except ValueError as error:
            raise _damaged(self.path, error) from error
        try:
            if content["format"] != _FORMAT or content["version"] != _VERSION:
                raise ValueError("it is no ledger of this version")
            settled, pending = [_batch(one) for one in content["settled"]], content["pending"]
            root = content["data"]
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(self.path, error) from error
        if root != shown(self._data.root):
            raise ParameterError(
                f"{shown(self._model)} has learned from {root}, not {shown(self._data.root)}: if the files have moved, change "
                f'"data" in {shown(self.path)}'
            )
        return settled, None if pending is None else _batch(pending)

    def _write(self) -> None:
        pending = None if self._pending is None else vars(self._pending)
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "data": shown(self._data.root),
            "settled": [vars(batch) for batch in self._settled],
            "pending": pending,
        }
        write_whole(self.path, json.dumps(content, indent=1).encode())


def _remove_folder(path: str) -> None:
    """Remove a folder, if it is there."""
    files, name = fsspec.url_to_fs(path)
    files.invalidate_cache()
    if files.exists(name):
        files.rm(name, recursive=True)


def _batch(found: dict[str, Any]) -> Batch:
    files, base, model = found["files"], found["base"], found["model"]
    if not (isinstance(files, dict) and all(isinstance(size, int) for size in files.values())):
        raise ValueError("its files are not names with sizes")
    return Batch(files, base, model)


def _damaged(path: str, error: Exception) -> DataError:
    return DataError(f"{shown(path)} is damaged: {error}")
