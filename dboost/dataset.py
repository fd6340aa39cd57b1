"""`Dataset`: a table that `dboost.prepare` has read and binned, for many fits.

Its rows are in files (`prepared.dataset_files`): of the user's (``path=``), or temporary ones that exist as long as the data
set. A data set in a folder is also a path: wherever dboost accepts the folder of a prepared data set it accepts the object. Or
they are in the memory of the workers of a cluster (``client=``, `cluster.training.cluster_dataset`), which may have written
them to files, too.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dboost import display
from dboost.argument_types import Client
from dboost.cluster.client.client import client_for
from dboost.errors import DataFileMissingError, InputTypeError, ParameterError, shown
from dboost.files.path_text import path_text
from dboost.files.spool import PrivateDirectory
from dboost.prepared.dataset_files import StoredDataset, is_stored, read_dataset
from dboost.prepared.dataset_rows import BinnedRows
from dboost.prepared.dataset_settings import named_roles, roles_of_fits
from dboost.schema import Feature
from dboost.session.memory import format_bytes
from dboost.tracebacks import short_tracebacks

#: Names of features in the display of a notebook.
_SHOWN = 12


@short_tracebacks
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
        if is_stored(path):
            self._stored = stored = read_dataset(path)
            self._describe(stored)
        elif "://" not in path and not os.path.exists(path):
            raise DataFileMissingError(f"there is no folder {path}")
        else:
            raise InputTypeError(f"{path} is not a folder that dboost.prepare has written")

    @classmethod
    def of(cls, rows: BinnedRows, stored: StoredDataset | None = None, temporary: PrivateDirectory | None = None) -> Self:
        """Return a data set.

        rows : in files, or `cluster.training.cluster_dataset.ClusterRows`; stored : the files of the rows, if any.
        temporary : the directory of the files, which is removed with the data set.
        """
        made = cls.__new__(cls)
        made._describe(rows)
        made._cluster, made._stored, made._temporary = None if rows is stored else rows, stored, temporary
        return made

    def _describe(self, rows: BinnedRows) -> None:
        self._reading = threading.Lock()
        self._features, self.n_rows, self._n_bytes = rows.data.binning.features, rows.n_rows, rows.n_bytes
        self.has_names, self._settings, self.max_bins = rows.data.named, rows.settings, int(rows.settings["max_bins"])
        self.target: str | list[str] | None = named_roles(rows.settings).get("target")
        self._roles = roles_of_fits(rows.settings)

    @classmethod
    def published(cls, name: str, client: Client | None = None) -> Self:
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

        return cls.of(published_rows(name, client))

    _temporary: PrivateDirectory | None = None
    _closed = False
    _cluster: Any = None  # the rows in the memory of the cluster that has prepared them
    _stored: StoredDataset | None = None  # the rows in files
    _opened: Any = None  # those of the files that another cluster has read

    @property
    def features(self) -> tuple[Feature, ...]:
        """Names and categories of the features."""
        return self._features

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the features, an array of objects [n_features]."""
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
        return dict(self._settings)

    @property
    def is_temporary(self) -> bool:
        """Whether only this process may train on the rows, because they are in its temporary files."""
        return self._temporary is not None

    def _rows(self, client: Any = None) -> BinnedRows:
        """Return the rows for fits, where they are trained on.

        client : for rows in files, to read them on its workers. Default: the current client for files that workers have
        written; else this process reads them.

        Raises
        ------
        ParameterError
            If the rows are on the workers of another cluster.
        """
        self._check_open()
        held, stored = self._cluster, self._stored
        is_lost = held is not None and stored is not None and held.is_lost  # but the files are there
        if held is not None and not is_lost and (client is None or client is held.client):
            rows: BinnedRows = held
            return rows
        if stored is None:
            raise ParameterError(f"the data set is {held.place}, and client is of another cluster: leave client out")
        if client is None and not stored.by_workers:
            return stored
        with client_for(self, client) as cluster:
            return stored if cluster is None else self._read_by(cluster, stored)

    def _read_by(self, client: Any, stored: StoredDataset) -> BinnedRows:
        """Return the rows of the files in the memory of a cluster; they stay there for later fits."""
        from dboost.cluster.training.cluster_dataset import ClusterRows

        with self._reading:
            if self._opened is None or self._opened.client is not client or self._opened.is_lost:
                self._opened = ClusterRows.stored(stored, client)
            rows: BinnedRows = self._opened
            return rows

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
        if self._stored is None:
            raise TypeError("a data set on a cluster cannot be pickled: give it a name with publish=…")
        return type(self), (self._stored.root,)

    def _repr_html_(self) -> str:
        names = [display.cut(feature.name, 32) for feature in self._features[:_SHOWN]]
        more = len(self._features) - len(names)
        targets = [self.target] if isinstance(self.target, str) else self.target or "–"
        facts = {
            "rows": f"{self.n_rows:,}", "features": ", ".join(names) + (f" and {more} more" if more else ""),
            "target": ", ".join(targets), "categorical": str(sum(feature.categories is not None for feature in self._features)),
            "bins": str(self.max_bins), "size": format_bytes(self._n_bytes), "place": self._place,
        }  # fmt: skip
        return display.html_card("dboost.Dataset", list(facts.items()))

    @property
    def _name(self) -> str:
        """The folder, or what is known of the data set; for messages."""
        return repr(self) if self._stored is None or self._cluster is not None else shown(self._stored.root)

    @property
    def _place(self) -> str:
        if self._closed:
            return "closed"
        if self._cluster is not None or self._stored is None:
            return str(self._cluster.place)
        return "temporary" if self._temporary is not None else shown(self._stored.root)

    def __repr__(self) -> str:
        target = "" if self.target is None else f", target {self.target!r}"
        size = f"{self.n_rows:,} rows × {len(self._features)} features{target}, {format_bytes(self._n_bytes)}"
        return f"<dboost.Dataset: {size}, {self._place}>"
