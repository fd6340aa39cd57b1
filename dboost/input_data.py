"""The data that a call names: `dboost.fit`, the estimators, `prepare` and `Booster.refit_leaves` all begin with `input_of`.

It returns a table (`TableInput`), which is read when a fit begins, in this process or on a cluster, or the rows of a
prepared data set (`PreparedInput`), which are trained on where they are. Callers use both in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dboost.cluster.client.client import client_for
from dboost.data import ReadOptions
from dboost.data.kinds.named_columns import copied_column
from dboost.data.kinds.table_kinds import is_stream
from dboost.data.sources.row_filter import RowFilter
from dboost.data.sources.stored_stream import columns_used, rereadable
from dboost.data.tables.read_table import read_table
from dboost.data.tables.reading import GivenTable
from dboost.dataset import Dataset
from dboost.errors import InputTypeError, ParameterError, warn
from dboost.model.ensemble import Ensemble
from dboost.prepared.dataset_files import is_prepared
from dboost.prepared.dataset_rows import BinnedRows
from dboost.prepared.dataset_settings import check_same, roles_of_fits
from dboost.prepared.prepare import binned_in_files, binned_in_memory, table_in_bins
from dboost.session.local_backend import LocalBackend
from dboost.session.memory import Budget
from dboost.training.fit import FitResult, interruptible_reading, train
from dboost.training.leaf_refit import refit_leaves
from dboost.training.request import FitRequest

if TYPE_CHECKING:
    from dboost.cluster.partitions.read_tasks import ReadTasks
    from dboost.cluster.training.cluster_dataset import ClusterRows


def input_of(
    data: Any,
    target: Any = ...,
    *,
    client: Any = None,
    workers: Any = None,
    features: Any = None,
    categorical_features: Any = "from_dtype",
    filter: Any = None,
    **roles: Any,
) -> TableInput | PreparedInput:
    """Return the rows of data of any kind; nothing is read yet.

    Parameters
    ----------
    data, target, client, workers, features, categorical_features, filter
        As in `dboost.fit`.
    **roles
        The other roles (`data.columns.roles`), such as ``sample_weight``.

    Raises
    ------
    InputTypeError
        If the target of a table is missing.
    ParameterError
        If a client or workers are given for data that only this process may train on.
    """
    if is_dataset(data):
        if filter is not None:
            raise ParameterError("filter belongs to dboost.prepare: the data set was prepared before")
        prepared = data if isinstance(data, Dataset) else Dataset(data)
        settings = roles | {"target": None if target is ... else target, "features": features}
        if not (isinstance(categorical_features, str) and categorical_features == "from_dtype"):
            settings["categorical_features"] = categorical_features
        return PreparedInput(prepared, {name: value for name, value in settings.items() if value is not None}, client, workers)
    if target is ...:
        raise InputTypeError("the target is missing: give the name of a column, or one value per row")
    row_filter = None if filter is None else RowFilter(filter)
    all_roles = {"target": target, **roles}
    return TableInput(data, all_roles, features, categorical_features, row_filter, client=client, workers=workers)


def warn_of_copies(table: TableInput | PreparedInput) -> None:
    """Warn of columns that are features by default, and whose values a role has, too: ``fit(frame, frame["y"])``."""
    # The class is asked, because a lazy frame of polars reads its source to name its columns.
    if isinstance(table, PreparedInput) or table.features is not None or not hasattr(type(table.data), "columns"):
        return
    for role, values in table.roles.items():
        name = copied_column(table.data, values)
        if name is not None:
            what = {"sample_weight": "weights", "offset": "offsets", "group": "groups"}.get(role, role)
            warn(
                f"the column {name!r} is a feature, though its values are given as {what}, too: leave it out of the data, or "
                "give features=[…], the columns to use"
            )


@dataclass(frozen=True, eq=False)
class TableInput(GivenTable):
    """A table of any kind, and where to train on it."""

    #: As the user gave them; without both, Dask collections and paths are read by the current client, if there is one.
    client: Any = None
    workers: Any = None

    def shaped(self, learning: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of learning."""
        return learning

    @contextmanager
    def for_two_fits(self, request: FitRequest) -> Iterator[Callable[[FitRequest], FitResult]]:
        """Yield a function that trains, to be called twice: the rows are read and binned once.

        A model that is continued on other data begins with scores of values, not of bins: then the rows are read twice, those
        of a stream from temporary files.

        request : of the first fit.
        """
        if request.warm_start.model is not None:
            used = partial(columns_used, self.features, self.roles.values(), self.row_filter)
            yield replace(self, data=rereadable(self.data, used)).fit
            return
        with self.place() as cluster:
            if cluster is not None:
                with closing(self.binned_on(cluster, request, {})) as rows:
                    yield rows.fit
            elif request.budget is None:
                with binned_in_memory(partial(read_table, self), request) as fit:
                    yield fit
            else:
                with binned_in_files(partial(read_table, self), request) as stored:
                    yield stored.fit

    def binned_on(self, cluster: Any, request: FitRequest, settings: dict[str, Any]) -> ClusterRows:
        """Read and bin the rows on a cluster. settings : see `prepared.dataset_rows.BinnedRows`."""
        from dboost.cluster.training.cluster_dataset import prepare_on_cluster, send_to_workers

        if is_stream(self.data):  # workers cannot read it
            with table_in_bins(partial(read_table, self), request) as binned:
                return send_to_workers(cluster, binned, request, settings)
        tasks = self.tasks(cluster, request.budget)
        with interruptible_reading():
            return prepare_on_cluster(cluster, tasks, request, settings)

    def fit(self, request: FitRequest) -> FitResult:
        """Train on the rows, where they are."""
        like = request.warm_start.like
        with self.place() as cluster:
            if cluster is None:
                read = partial(read_table, self, request.read_options, **like)
                return train(request, LocalBackend(read, request.n_threads))
            from dboost.cluster.training.cluster_fit import fit_on_cluster

            return fit_on_cluster(cluster, request, partial(self.tasks, cluster, request.budget, **like))

    def refit(self, model: Ensemble, **options: Any) -> Ensemble:
        """Return a model with leaf values estimated from the rows; options : of `training.leaf_refit.refit_leaves`."""
        n_threads, like = options["n_threads"], {"like": model.features}
        with self.place() as cluster:
            if cluster is None:
                backend = LocalBackend(partial(read_table, self, ReadOptions(n_threads), **like), n_threads)
                return refit_leaves(model, backend, **options)
            from dboost.cluster.training.cluster_fit import refit_on_cluster

            return refit_on_cluster(cluster, model, partial(self.tasks, cluster, None, **like), **options)

    def place(self) -> AbstractContextManager[Any]:
        """Return a context with the client of the cluster that reads the table; None for this process."""
        is_local = self.client is None and self.workers is None and not self.is_source
        return nullcontext() if is_local else client_for(self.data, self.client, self.workers)

    def tasks(self, cluster: Any, budget: Budget | None, **like: Any) -> ReadTasks:
        """Return the tasks that read the table on a cluster; like : of `plan_reading`."""
        from dboost.cluster.partitions.read_tasks import ReadTasks
        from dboost.cluster.training.cluster_fit import n_partitions_of

        n_partitions = 1 if self.is_source else n_partitions_of(cluster)
        return ReadTasks.of(self, n_partitions=n_partitions, budget=budget, client=cluster, **like)


@dataclass(frozen=True, eq=False)
class PreparedInput:
    """The rows of a data set, which are trained on where they are.

    Attributes
    ----------
    data : Dataset
    keywords : dict
        The values that the user gave of the keywords that belong to `dboost.prepare`.
    client, workers
        As the user gave them.
    """

    data: Dataset
    keywords: dict[str, Any]
    client: Any = None
    workers: Any = None

    def __post_init__(self) -> None:
        if self.data.is_temporary and not (self.client is None and self.workers is None):
            raise ParameterError(
                "a temporary data set is trained on in this process: leave client and workers out, or prepare it with path=…"
            )

    @property
    def roles(self) -> Mapping[str, Any]:
        """The names of the columns of the roles, by the names of the roles."""
        return roles_of_fits(self.data.settings)

    def shaped(self, learning: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of learning with those that were decided when the data were prepared.

        Raises
        ------
        ParameterError
            If they are not the same.
        """
        self._check(self.keywords | {name: value for name, value in learning.items() if name == "max_bins"})
        return learning | {"max_bins": self.data.max_bins}

    @contextmanager
    def for_two_fits(self, _: FitRequest) -> Iterator[Callable[[FitRequest], FitResult]]:
        """Yield a function that trains, to be called twice."""
        yield self._rows().fit

    def fit(self, request: FitRequest) -> FitResult:
        """Train on the rows."""
        return self._rows().fit(request)

    def refit(self, model: Ensemble, **options: Any) -> Ensemble:
        """See `TableInput.refit`."""
        self._check(self.keywords)
        return self._rows().refit(model, **options)

    def _rows(self) -> BinnedRows:
        rows = self.data._rows(self.client)
        if self.workers is not None or self.client not in (None, getattr(rows, "client", None)):
            raise ParameterError("a data set on a cluster is trained on where it is: leave client and workers out")
        return rows

    def _check(self, settings: dict[str, Any]) -> None:
        check_same(self.data.settings, self.data._name, settings)


def is_dataset(data: Any) -> bool:
    """Whether data are a `Dataset`, or the path of one."""
    return isinstance(data, Dataset) or (isinstance(data, str | os.PathLike) and is_prepared(data))
