"""`Dataset`: a table that `dboost.prepare` has read and binned, for many fits.

Its files are a folder of the user's (``path=``), or a temporary one that exists as long as the data set. `training` reads them
(`training.prepared_dataset` describes their content), so a data set is also a path: wherever dboost accepts the folder of a
prepared data set it accepts the object.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dboost.errors import DataFileMissingError, InputTypeError
from dboost.schema import Feature
from dboost.session.memory_budget import format_bytes
from dboost.storage.spool import PrivateDirectory
from dboost.training.prepared_folder import is_prepared, open_folder


class Dataset:
    """A table that was read and binned once; `dboost.fit` accepts it as data.

    `dboost.prepare` returns one. It is a context manager, and a path (``os.fspath(data)`` is its folder).

    Parameters
    ----------
    path : path
        Folder that ``dboost.prepare(…, path=…)`` has written.

    Attributes
    ----------
    target : str or None
        Name of the target column; None if the targets were given as values.
    n_rows : int
        Number of rows of positive weight.
    max_bins : int
        Largest number of bins of a numeric feature.

    Raises
    ------
    InputTypeError
        If the path has no prepared data set.
    DataFileMissingError
        If there is no such folder; it is a `DataError` and a `FileNotFoundError`.
    StorageError
        If the folder is damaged; it is a `DBoostError`.

    Examples
    --------
    >>> with dboost.prepare(frame, "price") as data:                                       # doctest: +SKIP
    ...     boosters = [dboost.fit(data, learning_rate=rate) for rate in (0.05, 0.1, 0.2)]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not is_prepared(path):
            if not os.path.exists(path):
                raise DataFileMissingError(f"there is no folder {os.fspath(path)}")
            raise InputTypeError(f"{os.fspath(path)} is not a folder that dboost.prepare has written")
        self._path, self._temporary, self._closed = Path(path), None, False
        opened = open_folder(self._path)
        try:
            self._features: tuple[Feature, ...] = opened.binning.features
            self.n_rows = opened.n_rows
            self.max_bins = int(opened.settings["max_bins"])
            target = opened.settings["target"]
            self.target: str | None = None if str(target).startswith("<") else str(target)
            self._n_bytes = sum(file.path.stat().st_size for file in (opened.codes, opened.rows))
        finally:
            opened.close()

    @classmethod
    def temporary(cls, directory: PrivateDirectory, path: Path) -> Self:
        """Return the data set in a folder inside a temporary directory, which is removed with it."""
        made = cls(path)
        made._temporary = directory
        return made

    _temporary: PrivateDirectory | None

    @property
    def features(self) -> tuple[Feature, ...]:
        """Names and categories of the features."""
        return self._features

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the features: object[n_features]."""
        return np.array([feature.name for feature in self._features], object)

    @property
    def path(self) -> Path:
        """The folder.

        Raises
        ------
        InputTypeError
            If the data set is closed.
        """
        if self._closed:
            raise InputTypeError("the data set is closed: prepare it again, or open its folder with dboost.Dataset(path)")
        return self._path

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def close(self) -> None:
        """Release the data set; a temporary folder is removed, one of the user's stays. May be called repeatedly."""
        self._closed = True
        if self._temporary is not None:
            self._temporary.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._temporary is not None:
            raise TypeError("a temporary data set cannot be pickled: prepare it with path=…")
        return type(self), (os.fspath(self.path),)

    def __repr__(self) -> str:
        where = "closed" if self._closed else "temporary" if self._temporary is not None else str(self._path)
        target = "" if self.target is None else f", target {self.target!r}"
        size = f"{self.n_rows:,} rows × {len(self._features)} features{target}, {format_bytes(self._n_bytes)}"
        return f"<dboost.Dataset: {size}, {where}>"
