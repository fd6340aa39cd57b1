"""`Dataset`: a table that `dboost.prepare` has read and binned, for many fits.

It is in a folder: of the user's (``path=``), or a temporary one that exists as long as the data set. `training` reads the files
(`prepared.prepared_dataset` describes their content), so such a data set is also a path: wherever dboost accepts the folder of
a prepared data set it accepts the object. Or it is in the memory of the workers of a cluster (``client=``), see
`cluster.training.cluster_dataset`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dboost import display
from dboost.cluster.client.client import client_for
from dboost.data import ReadOptions
from dboost.data.columns.binning import Binning
from dboost.data.columns.chunk import BinnedPartition
from dboost.data.columns.roles import RowRoles
from dboost.data.tables.open_table import open_binned
from dboost.errors import DataFileMissingError, InputTypeError, ParameterError, shown
from dboost.files.path_text import path_text
from dboost.files.spool import PrivateDirectory
from dboost.prepared.dataset_rows import DatasetDescription, LocalRows, StoredDataset, is_stored, read_description
from dboost.prepared.prepared_dataset import is_prepared, named_roles, open_folder, roles_of_fits
from dboost.schema import Feature
from dboost.session.memory import format_bytes
from dboost.training.folds import BinnedRows

#: Names of features in the display of a notebook.
_SHOWN = 12


class Dataset:
    """A table that was read and binned once; `dboost.fit` accepts it as data.

    `dboost.prepare` returns one. It is a context manager, and a path (``os.fspath(data)`` is its folder).

    Parameters
    ----------
    path : path or URL
        Folder that ``dboost.prepare(…, path=…)`` has written; a URL if the workers of a cluster have written it.

    Attributes
    ----------
    target : str, list of str, or None
        Name of the target column, or of each; None if the targets were given as values.
    n_rows : int
        Number of rows of positive weight.
    max_bins : int
        Largest number of bins of a numeric feature.
    has_names : bool
        Whether the features have names of their own; those of arrays are called f0, f1, ….

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
        if not isinstance(path, str | os.PathLike):
            raise InputTypeError(
                f"dboost.Dataset opens a folder, and {type(path).__name__} is no path: dboost.prepare(data, target) makes a "
                "data set of a table"
            )
        path = path_text(path)
        if is_prepared(path):
            with closing(open_folder(path)) as opened:
                n_bytes = sum(file.path.stat().st_size for file in (opened.codes, opened.rows))
                self._set(opened.binning, opened.n_rows, n_bytes, opened.named, opened.settings)
            self._path = Path(path)
        elif is_stored(path):
            self._stored = stored = read_description(path)
            self._set(stored.data.binning, sum(stored.lengths), stored.n_bytes, stored.data.named, stored.settings)
        elif "://" not in path and not os.path.exists(path):
            raise DataFileMissingError(f"there is no folder {path}")
        else:
            raise InputTypeError(f"{path} is not a folder that dboost.prepare has written")

    @classmethod
    def temporary(cls, directory: PrivateDirectory, path: Path) -> Self:
        """Return the data set in a folder inside a temporary directory, which is removed with it."""
        made = cls(path)
        made._temporary = directory
        return made

    @classmethod
    def on_cluster(cls, rows: Any, settings: dict[str, Any], stored: StoredDataset | None = None) -> Self:
        """Return a data set on a cluster.

        rows : `cluster.training.cluster_dataset.ClusterRows`; settings : of `prepare`; stored : the files of the rows, if any.
        """
        made = cls.__new__(cls)
        made._set(rows.data.binning, rows.n_rows, rows.n_bytes, rows.data.named, settings)
        made._cluster, made._stored = rows, stored
        return made

    def _set(self, binning: Binning, n_rows: int, n_bytes: int, has_names: bool, settings: dict[str, Any]) -> None:
        self._reading = threading.Lock()
        self._features, self.n_rows, self._n_bytes, self.has_names = binning.features, n_rows, n_bytes, has_names
        self._settings, self.max_bins = settings, int(settings["max_bins"])
        self.target: str | list[str] | None = named_roles(settings).get("target")
        self._roles = roles_of_fits(settings)

    @classmethod
    def published(cls, name: str, client: Any = None) -> Self:
        """Return a data set that a client of the cluster has published under a name (``prepare(…, publish=name)``).

        Parameters
        ----------
        name : str
        client : distributed.Client, optional
            Default: the current client.

        Raises
        ------
        InputTypeError
            If nothing of that name was published, or there is no client.
        """
        from dboost.cluster.training.cluster_dataset import published_rows

        return cls.on_cluster(*published_rows(name, client))

    _temporary: PrivateDirectory | None = None
    _path: Path | None = None  # of the folder that one process has written
    _closed = False
    _cluster: Any = None
    _stored: StoredDataset | None = None
    _opened: Any = None  # the rows of the stored files that a cluster has read
    _in_memory: weakref.ref[LocalRows] | None = None

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
            If the data set is closed, or on a cluster.
        """
        self._check_open()
        if self._path is not None:
            return self._path
        if self._stored is None:
            raise InputTypeError("the data set is on the workers of a cluster and has no folder")
        if "://" in self._stored.root:
            raise InputTypeError(f"the data set is at {shown(self._stored.root)}, not in a folder")
        return Path(self._stored.root)

    def unpublish(self) -> None:
        """Remove the name of a data set on a cluster: its rows stay only as long as a client holds the data set.

        Raises
        ------
        InputTypeError
            If it is not published.
        """
        self._check_open()
        if self._cluster is None or self._cluster.name is None:
            raise InputTypeError("the data set is not published")
        self._cluster.unpublish()

    @property
    def is_on_cluster(self) -> bool:
        """Whether the rows are on the workers of a cluster."""
        return self._cluster is not None

    def _check_open(self) -> None:
        if self._closed:
            raise InputTypeError("the data set is closed: prepare it again, or open its folder with dboost.Dataset(path)")

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    @property
    def settings(self) -> dict[str, Any]:
        """Parameters of `prepare`, by name; other objects than text and numbers as the names of their types."""
        self._check_open()
        if self._path is None:
            return dict(self._settings)
        with closing(open_folder(self.path)) as opened:
            return dict(opened.settings)

    @property
    def is_stored(self) -> bool:
        """Whether the workers of a cluster have written it to files, which any cluster and any process may read."""
        return self._stored is not None

    @property
    def is_in_one_process(self) -> bool:
        """Whether only one process may train on the rows: those of a folder that one process has written."""
        return self._cluster is None and self._stored is None

    @contextmanager
    def _rows_of_folds(self, client: Any) -> Iterator[BinnedRows]:
        """Yield the rows for fits that share codes: in this process those of the data set are in files; see `_rows`."""
        self._check_open()
        if not self.is_in_one_process:
            rows = self._rows(client)
            if isinstance(rows, LocalRows):
                yield rows
                return
            from dboost.cluster.client.connection import seceded

            with seceded():  # the threads of the folds wait for workers, and the caller for them
                yield rows
            return
        described, roles = self._description(), list[RowRoles]()

        def partitions() -> Iterator[BinnedPartition]:
            for partition in self._partitions():
                roles.append(partition.roles)
                yield partition

        with open_binned(partitions(), described.binning, described.named, ReadOptions(retain_bytes=0)) as table:
            # Not the folder again, which may be another one by then.
            stored = partial(map, lambda i, of_part: BinnedPartition(table.codes(i), of_part), range(len(roles)), roles)
            yield LocalRows(described, table.lengths, stored, table=table)

    def _rows(self, client: Any = None) -> BinnedRows:
        """Return the rows for several fits at the same time; they stay in memory as long as a caller holds them.

        client : for files of a cluster, to read them on its workers; default: the current client, else this process reads them.

        Raises
        ------
        InputTypeError
            If the data set was prepared for a model that is continued.
        ParameterError
            If the rows are on the workers of another cluster.
        """
        self._check_open()
        is_lost = self._cluster is not None and self._stored is not None and self._cluster.is_lost  # but the files are there
        if self._cluster is not None and not is_lost and (client is None or client is self._cluster.client):
            return self._cluster
        if self._cluster is not None and self._stored is None:
            raise ParameterError(f"the data set is {self._cluster.place}, and client is of another cluster: leave client out")
        if self._stored is not None:
            with client_for(self, client) as cluster:
                return self._stored_rows(self._stored, cluster)
        with self._reading:
            rows = None if self._in_memory is None else self._in_memory()
            if rows is None:
                described, in_memory = self._description(), list(self._partitions())
                rows = LocalRows(described, [one.n_rows for one in in_memory], lambda: in_memory)
                self._in_memory = weakref.ref(rows)
            return rows

    def _description(self) -> DatasetDescription:
        with closing(open_folder(self.path)) as opened:
            if opened.has("start"):
                raise InputTypeError("the data set was prepared to continue a model, so it is for that fit only")
            return opened.description

    def _partitions(self) -> Iterator[BinnedPartition]:
        """Read the partitions of the folder one after the other."""
        with closing(open_folder(self.path)) as opened:
            yield from opened.partitions()

    def _stored_rows(self, stored: StoredDataset, client: Any) -> BinnedRows:
        """Return the rows of files that workers have written; those that a cluster has read stay there."""
        if client is None:
            return LocalRows(stored.data, stored.lengths, stored.partitions, lambda request: request.reading)
        from dboost.cluster.training.cluster_dataset import ClusterRows

        with self._reading:
            if self._opened is None or self._opened.client is not client or self._opened.is_lost:
                self._opened = ClusterRows.stored(stored, client)
            return self._opened

    def close(self) -> None:
        """Release the data set. May be called repeatedly.

        A temporary folder is removed, one of the user's stays. Workers of a cluster release the rows, unless the data set is
        published.
        """
        self._closed = True
        for rows in (self._cluster, self._opened):
            if rows is not None:
                rows.close()
        if self._temporary is not None:
            self._temporary.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._temporary is not None:
            raise TypeError("a temporary data set cannot be pickled: prepare it with path=…")
        if self._stored is not None:
            return type(self), (self._stored.root,)
        if self._cluster is not None:
            raise TypeError("a data set on a cluster cannot be pickled: give it a name with publish=…")
        return type(self), (os.fspath(self.path),)

    def _repr_html_(self) -> str:
        names = [display.cut(feature.name, 32) for feature in self._features[:_SHOWN]]
        more = len(self._features) - len(names)
        targets = [self.target] if isinstance(self.target, str) else self.target or "–"
        facts = {
            "rows": f"{self.n_rows:,}", "features": ", ".join(names) + (f" and {more} more" if more else ""),
            "target": ", ".join(targets), "categorical": str(sum(one.categories is not None for one in self._features)),
            "bins": str(self.max_bins), "size": format_bytes(self._n_bytes), "place": self._place,
        }  # fmt: skip
        return display.html_card("dboost.Dataset", list(facts.items()))

    @property
    def _place(self) -> str:
        where = "temporary" if self._temporary is not None else str(self._path)
        where = where if self._stored is None else shown(self._stored.root)
        return "closed" if self._closed else where if self._cluster is None else self._cluster.place

    def __repr__(self) -> str:
        target = "" if self.target is None else f", target {self.target!r}"
        size = f"{self.n_rows:,} rows × {len(self._features)} features{target}, {format_bytes(self._n_bytes)}"
        return f"<dboost.Dataset: {size}, {self._place}>"
