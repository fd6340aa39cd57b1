"""A data set on the workers of a cluster: read and binned once, for many fits.

`prepare_on_cluster` reads the partitions as a fit does, to find the features and the split points, and then makes a task for
each partition that returns it as a `data.columns.chunk.BinnedPartition`. Dask holds the results: it spills them to disk when
a worker runs short of memory, and computes those of a lost worker again from their source. While the split points are found it
also holds the raw partitions, so the source is read once. Of files that are read within a memory limit the sessions hold them,
in files, and the tasks take them from there: one task can read several ranges of a row group then
(`cluster.partitions.read_tasks`). A task compares the fingerprint of its partition with that of the first reading: a source
that has changed meanwhile is an error, also for fits much later and for those of other clients.

Workers cannot read a stream: the client bins it, and `send_to_workers` sends them the bins, some at a time.

A fit on the data set reads the binned partitions (`BinnedTasks`) instead of the source. Everything else, such as balancing,
recovery and workers that join, is as for any table. Several fits may run at the same time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from distributed import Client, Future

from dboost.cluster.client.client_loss import address_of, reporting_loss
from dboost.cluster.client.connection import Connection
from dboost.cluster.client.dask_clients import current_client, seceded
from dboost.cluster.client.worker_choice import WorkerChoice
from dboost.cluster.partitions.read_tasks import PartitionTasks, ReadTasks, finished, rows_alone, submit
from dboost.cluster.training.cluster_backend import ClusterBackend
from dboost.cluster.training.cluster_fit import n_partitions_of, train_on
from dboost.cluster.transport.messages import pack, unpack
from dboost.cluster.worker.worker_plugin import running, slices_of
from dboost.data import Chunk, Column, RowRoles
from dboost.data.columns.chunk import BinnedPartition, matrix_of, slice_rows
from dboost.data.columns.column import CategoryColumn
from dboost.data.columns.fingerprint import fingerprint, joined_fingerprint
from dboost.data.columns.read_plan import ReadPlan, binned_plan
from dboost.data.columns.roles import ROLES, n_columns_of, rows_of
from dboost.data.kinds.frame import some_values
from dboost.data.kinds.partition import read_slices, role_column
from dboost.data.tables.dask_collections import in_place
from dboost.data.tables.reader import ColumnUnifier
from dboost.data.tables.reading import Reading
from dboost.errors import DataError, DBoostError, InputTypeError, ParameterError
from dboost.files.lease import Lease
from dboost.model.ensemble import Ensemble
from dboost.prepared.dataset_files import (
    PartFile,
    StoredDataset,
    complete,
    new_version,
    read_part,
    remove_version,
    write_part,
)
from dboost.prepared.dataset_rows import BinnedRows
from dboost.prepared.prepare import TableInBins, described
from dboost.rows.encode import bin_chunk
from dboost.rows.shard_spec import NARROW_BINS
from dboost.session.memory import Budget
from dboost.session.reference_sample import reference_rows
from dboost.session.target import check_categories, name_of_target
from dboost.session.warm_start import COLD_START
from dboost.training.binned_data import DatasetDescription, check_thresholds
from dboost.training.fit import FitResult, propose_bins
from dboost.training.leaf_refit import refit_leaves
from dboost.training.request import FitRequest
from dboost.tuning import tuning


class BinnedTasks(ReadTasks):
    """The tasks that read a data set: they pass on partitions that are on the workers.

    Parameters
    ----------
    data : DatasetDescription
    futures : sequence of Future
        Of the `BinnedPartition` objects.
    filled : tuple of str
        The roles that the data set has.
    budget : Budget or None
        Memory limit of each worker.
    n_rows : int
    """

    def __init__(
        self, data: DatasetDescription, futures: Sequence[Future], filled: tuple[str, ...], budget: Budget | None, n_rows: int
    ) -> None:
        reading = Reading(None, "dask", binned_plan(data.binning), data.named, {})
        graph: dict[Any, Any] = {future.key: future for future in futures}
        bundles = [(_bundle_of, future.key) for future in futures]
        super().__init__(reading, PartitionTasks(graph, bundles, filled, n_rows), budget)


@dataclass(eq=False)
class ClusterRows(BinnedRows):
    """The rows of a data set on a cluster."""

    client: Client
    data: DatasetDescription
    settings: dict[str, Any]
    futures: list[Future]
    lengths: tuple[int, ...]  # rows of positive weight of each partition
    filled: tuple[str, ...]
    workers: Any = None
    name: str | None = None  # under which it is published

    @property
    def is_lost(self) -> bool:
        """Whether the cluster does not hold the rows any more, because the client was closed or restarted."""
        return any(future.cancelled() for future in self.futures)

    @property
    def n_bytes(self) -> int:
        """Approximate size of the rows."""
        widths = np.where(self.data.binning.n_bins < NARROW_BINS, 1, 2).sum()
        n_roles = len(self.filled) - 1 + n_columns_of(self.data.sample_target)
        return self.n_rows * int(widths + 8 * n_roles)

    @property
    def place(self) -> str:
        """The name or the address of the cluster, for messages."""
        return f"on {address_of(self.client)}" + (f" as {self.name!r}" if self.name is not None else "")

    def fit(self, request: FitRequest) -> FitResult:
        if request.fold is not None:  # workers load folds at the same time
            request = replace(request, fold=replace(request.fold, loading=nullcontext()))
        with Connection(self.client, WorkerChoice.of(self.workers)) as connection:
            backend = self._backend(connection, request.budget, request.n_threads, request.n_at_once)
            return train_on(connection, replace(request, binned=self.data), backend)

    def refit(self, model: Ensemble, **options: Any) -> Ensemble:
        check_thresholds(model, self.data.binning, "refit_leaves")
        with Connection(self.client, WorkerChoice.of(self.workers)) as connection:
            backend = self._backend(connection, None, options["n_threads"])
            return refit_leaves(model, backend, binned=self.data, **options)

    def _backend(self, connection: Connection, budget: Budget | None, n_threads: int, n_at_once: int = 1) -> ClusterBackend:
        def make_tasks() -> BinnedTasks:
            return BinnedTasks(self.data, self.futures, self.filled, budget, self.n_rows)

        return ClusterBackend(connection, make_tasks, n_threads, n_at_once=n_at_once)

    @contextmanager
    def for_folds(self) -> Iterator[ClusterRows]:
        with seceded():  # the threads of the folds wait for workers, and the caller for them
            yield self

    def map(self, function: Callable[..., Any], arguments: Sequence[Any] | None = None) -> list[Any]:
        return self._map(function, [() for _ in self.futures] if arguments is None else [(argument,) for argument in arguments])

    def _map(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, at_once: bool = False) -> list[Any]:
        """Return ``function(partition, *arguments)`` of each partition. No task still runs when an error is raised.

        at_once : see `finished`.
        """
        graph: dict[Any, Any] = {future.key: future for future in self.futures}
        with Connection(self.client, WorkerChoice.of(self.workers)) as connection:
            keys = [f"dboost-map-{connection.fit}-{i}" for i in range(len(self.futures))]
            packed = pack(function)
            for key, future, partition_arguments in zip(keys, self.futures, arguments, strict=True):
                graph[key] = (_call, connection.fit, packed, pack(partition_arguments), future.key)
            restricted = _restricted(connection)
            futures = submit(self.client, graph, keys, **restricted)
            return finished(connection, futures, "partitions of a data set", restricted.get("workers", ()), at_once=at_once)

    def publish(self, name: str) -> None:
        """Keep the rows on the cluster under a name, also when this client has left.

        Raises
        ------
        ParameterError
            If the name is taken.
        """
        fields = ("data", "settings", "futures", "lengths", "filled", "workers")
        try:
            with reporting_loss(self.client):
                self.client.publish_dataset({field: getattr(self, field) for field in fields}, name=_PREFIX + name)
        except KeyError:
            raise ParameterError(f"publish={name!r}: the cluster has a data set of that name already") from None
        self.name = name

    def write(self, root: str, lease: Lease) -> StoredDataset:
        """Write the rows to a folder that all workers share, or to an object store, replacing an older data set."""
        version = new_version()
        try:
            write = partial(_write_part, root, version)
            parts = tuple(self._map(write, [(i,) for i in range(len(self.futures))], at_once=True))
            return complete(StoredDataset(root, self.data, self.settings, parts, self.filled, True), version, lease)
        except BaseException:  # no worker writes any more
            remove_version(root, version)
            raise

    @classmethod
    def stored(cls, stored: StoredDataset, client: Client, workers: Any = None) -> Self:
        """Have the workers read the files of a data set."""
        token = uuid.uuid4().hex
        keys = [f"dboost-binned-{token}-{i}" for i in range(len(stored.parts))]
        shared = f"dboost-promise-{token}"
        graph: dict[Any, Any] = {shared: (_identity, pack(stored.promise))}
        for key, part in zip(keys, stored.parts, strict=True):
            graph[key] = (_read_part, shared, stored.root, tuple(part))
        with Connection(client, WorkerChoice.of(workers)) as connection:
            futures = submit(client, graph, keys, **_restricted(connection))
        return cls(client, stored.data, stored.settings, futures, stored.lengths, stored.filled, workers)

    def unpublish(self) -> None:
        """Remove the name; the partitions stay as long as a client holds them."""
        if self.name is not None:
            with reporting_loss(self.client):
                self.client.unpublish_dataset(_PREFIX + self.name)
            self.name = None

    def close(self) -> None:
        """Release the partitions; those of a published data set stay on the cluster."""
        for future in self.futures:
            future.release()
        self.futures = []


#: Prefix of the names of published data sets.
_PREFIX = "dboost-"


def published_rows(name: str, client: Client | None) -> ClusterRows:
    """Return the published rows of that name.

    Raises
    ------
    InputTypeError
        If there are none, or no client.
    """
    with current_client(client) as cluster:
        if cluster is None:
            raise InputTypeError(f"the published data set {name!r} is on a cluster: give its client")
        try:
            fields = dict(cluster.get_dataset(_PREFIX + name))  # the scheduler's own record if it is in this process
        except KeyError:
            names = [key.removeprefix(_PREFIX) for key in cluster.list_datasets() if str(key).startswith(_PREFIX)]
            known = f"there are {', '.join(map(repr, names))}" if names else "nothing is published"
            raise InputTypeError(f"the cluster has no data set {name!r}: {known}") from None
    return ClusterRows(cluster, **fields, name=name)


def prepare_on_cluster(client: Client, tasks: ReadTasks, request: FitRequest, settings: dict[str, Any]) -> ClusterRows:
    """Read a table on the workers, and bin it.

    tasks : read the table; request : of a fit, with the parameters that shape the bins; settings : see `BinnedRows`.
    """
    parameters = request.parameters
    with Connection(client, WorkerChoice.of(request.workers)) as connection:
        connection.progress = request.progress
        request.progress.phase("reading the data")
        restricted = _restricted(connection)
        raw, held = (tasks, []) if tasks.parts is not None else _held(client, tasks, restricted)
        futures: list[Future] = []
        try:
            backend = ClusterBackend(connection, lambda: raw, request.n_threads)
            features = backend.load()
            n_targets = check_categories(backend.target_scans(), name_of_target(request.roles.get("target"))).n_columns
            partitions = backend.training
            raw = partitions.source  # read again, perhaps, with columns as text
            request.progress.phase("binning")
            binning = propose_bins(request, parameters, COLD_START, features, backend)
            n_kept, n_rows, ranges = backend.n_kept, backend.n_rows, partitions.id_ranges.ranges
            plan = replace(raw.plan, known=features, extend_categories=False)
            has = raw.roles
            ends = np.cumsum([0, *(partitions.lengths[i] for i in range(raw.n_partitions))]).tolist()
            token = uuid.uuid4().hex
            keys = [f"dboost-binned-{token}-{i}" for i in range(raw.n_partitions)]
            shared = f"dboost-bins-{token}"
            most_rows = None if request.budget is None else slice_rows(request.budget.chunk, len(features))
            common = plan, binning, n_rows, parameters.random_state, raw.filled, has, n_targets, most_rows
            graph: dict[Any, Any] = {} if raw.parts is not None else raw.graph
            graph = graph | {shared: (_identity, pack(common))}
            owners = {
                i: (entry.ref, connection.fit, entry.batch)
                for entry in partitions.worker_partitions
                for i in entry.partition_ids
            }
            for i, key in enumerate(keys):
                roles_of_partition = {
                    role: rows_alone(some_values(values, ends[i], ends[i + 1])) for role, values in raw.whole.items()
                }
                known = *ranges[i], partitions.lengths[i], partitions.fingerprints[i]
                if raw.parts is not None:
                    graph[key] = (_bin_read, shared, i, known, pack(roles_of_partition), pack((owners[i], raw.parts.only([i]))))
                else:
                    graph[key] = (_bin_part, shared, i, known, pack(roles_of_partition), raw.bundles[i])
            futures += submit(client, graph, keys, **restricted)
            sample_tasks = {f"dboost-sample-{token}-{i}": (_sample_of, key) for i, key in enumerate(keys)}
            held_keys: dict[Any, Any] = {future.key: future for future in futures}
            parts = submit(client, held_keys | sample_tasks, list(sample_tasks), **restricted)
            samples = finished(connection, parts, "binned partitions", restricted.get("workers", ()))
        except BaseException:
            for future in futures:
                future.release()
            raise
        finally:
            for future in held:  # Dask computes them again if it has to
                future.release()
    data = described(binning, backend.named, [sample for i, sample in enumerate(samples) if n_kept[i]], request)
    return ClusterRows(client, data, settings, futures, tuple(n_kept[i] for i in range(len(keys))), has, request.workers)


def send_to_workers(client: Client, rows: TableInBins, request: FitRequest, settings: dict[str, Any]) -> ClusterRows:
    """Bin a table that this process has read, and have workers hold the rows. settings : see `BinnedRows`.

    At most `Tuning.wave_bytes` of them are in the memory of this process at a time. The scheduler keeps the bins, one byte a
    value, so that Dask can send those of a lost worker again.
    """
    most_rows = min(max(-(-rows.n_rows // n_partitions_of(client)), tuning().least_partition_rows), tuning().block_rows)
    samples: list[tuple[np.ndarray, Column]] = []
    lengths: list[int] = []
    futures: list[Future] = []
    with Connection(client, WorkerChoice.of(request.workers)) as connection:
        connection.progress = request.progress
        restricted = _restricted(connection)
        try:
            for wave in _waves(rows.partitions(most_rows), samples):
                sent = submit(client, wave, list(wave), **restricted)
                futures += sent
                n_rows = {f"dboost-length-{future.key}": (_length_of, future.key) for future in sent}
                held: dict[Any, Any] = {future.key: future for future in sent}
                counted = submit(client, held | n_rows, list(n_rows), **restricted)
                lengths += finished(connection, counted, "binned partitions", restricted.get("workers", ()))
        except BaseException:
            for future in futures:
                future.release()
            raise
    data = described(rows.binning, rows.table.named, samples, request)
    return ClusterRows(client, data, settings, futures, tuple(lengths), rows.filled, request.workers)


def _waves(partitions: Iterable[BinnedPartition], samples: list[tuple[np.ndarray, Column]]) -> Iterator[dict[Any, Any]]:
    """Yield the tasks of partitions that are sent at the same time, by key; add the sampled rows to `samples`."""
    wave: dict[Any, Any] = {}
    n_bytes, token = 0, uuid.uuid4().hex
    for i, partition in enumerate(partitions):
        if wave and n_bytes + partition.n_bytes > tuning().wave_bytes:
            yield wave
            wave, n_bytes = {}, 0
        assert partition.sample is not None
        samples.append(partition.sample)
        wave[f"dboost-binned-{token}-{i}"] = (unpack, pack(replace(partition, sample=None)))
        n_bytes += partition.n_bytes
        del partition
    yield wave


def _length_of(partition: BinnedPartition) -> int:
    return partition.n_rows


#: From the first reading of a partition: global id of the first row of positive weight, number of such rows and of all rows,
#: fingerprint.
_Known = tuple[int, int, int, int]
#: Returns a partition in one chunk and its fingerprint, given the plan, the separate roles, and the rows of a slice.
_Read = Callable[[ReadPlan, tuple[str, ...], int | None], tuple[Chunk, int]]


def _bin_part(shared: bytes, i: int, known: _Known, separate_roles: bytes, bundle: tuple[Any, ...]) -> BinnedPartition:
    """Bin a partition, in a task."""
    return _binned(
        shared,
        i,
        known,
        separate_roles,
        lambda plan, filled, most_rows: _read_again(*in_place(bundle, filled), plan, most_rows),
    )


def _bin_read(shared: bytes, i: int, known: _Known, separate_roles: bytes, source: bytes) -> BinnedPartition:
    """Bin a partition that a session has read, in a task. It is read again if the session is gone.

    source : pickled: where the partition is (session, fit, batch), and a `Parts` of it.
    """
    (owner, fit, batch), parts = unpack(source)

    def read(plan: ReadPlan, filled: tuple[str, ...], most_rows: int | None) -> tuple[Chunk, int]:
        slices = slices_of(owner, fit, batch, i)
        if slices is None:
            (data,) = parts.partitions(plan.needed)
            return _read_again(data, {}, plan, most_rows)
        return _joined_slices(slices, plan), joined_fingerprint([chunk.fingerprint or 0 for chunk in slices])

    return _binned(shared, i, known, separate_roles, read)


def _joined_slices(slices: list[Chunk], plan: ReadPlan) -> Chunk:
    """Return the slices of a partition as one chunk."""
    first = slices[0]
    assert first.matrix is None  # rows of files have none
    if len(slices) == 1:
        return first
    columns: list[Column] = []
    for j, spec in enumerate(plan.specs):
        unifier = ColumnUnifier(spec.name)
        values = np.concatenate([unifier.add(chunk.columns[j], 0) for chunk in slices])
        is_code = isinstance(first.columns[j], CategoryColumn)
        columns.append(CategoryColumn(values, unifier.categories.categories()) if is_code else values)
    return Chunk(sum(chunk.n_rows for chunk in slices), columns, first.roles)


def _binned(shared: bytes, i: int, known: _Known, separate_roles: bytes, read: _Read) -> BinnedPartition:
    """Return a partition in bins. read : reads it."""
    plan, binning, n_rows, seed, filled, has, n_targets, most_rows = unpack(shared)
    start, n_kept, length, first_fingerprint = known
    try:
        chunk, found_fingerprint = read(plan, filled, most_rows)
        if (chunk.n_rows, found_fingerprint) != (length, first_fingerprint):
            values = "other values" if chunk.n_rows == length else f"{chunk.n_rows} rows where it had {length}"
            raise DataError(
                f"it was read again because workers have left, and gave {values}: prepare the data set again, from a source "
                "with the same rows every time (no sample without a seed, no query without an order, no files that change)"
            )
        if not chunk.n_rows:  # roles of an empty partition are not read
            roles = RowRoles.of({role: np.empty(0, ROLES[role].dtype) for role in has})
            roles = roles if n_targets == 1 else replace(roles, target=np.empty((n_targets, 0)))
        else:
            separate = {role: role_column(values, role, None, length) for role, values in unpack(separate_roles).items()}
            roles = RowRoles.of(chunk.roles.by_name() | separate)
        chunk = replace(chunk, roles=roles)
        binned, coded, kept = bin_chunk(chunk, binning)
    except DBoostError as error:
        raise type(error)(f"partition {i}: {error}") from None
    assert binned.n_rows == n_kept
    drawn = reference_rows(n_rows, len(binning.features), seed, start, start + n_kept) - start
    return replace(binned, sample=(matrix_of(coded, kept[drawn], np.float64), rows_of(binned.roles.given_target, drawn)))


def _read_again(data: Any, roles: dict[str, Any], plan: ReadPlan, most_rows: int | None) -> tuple[Chunk, int]:
    """Return a partition in one chunk, and the fingerprint that a session with slices of `most_rows` rows has of it.

    Roles that the user gave for all rows are in neither.
    """
    parts = list(read_slices(data, plan, roles, most_rows))
    (chunk,) = parts if len(parts) == 1 else read_slices(data, plan, roles)
    return chunk, joined_fingerprint([fingerprint(part) for part in parts])


def _sample_of(partition: BinnedPartition) -> tuple[np.ndarray, Column]:
    assert partition.sample is not None
    return partition.sample


def _held(client: Client, tasks: ReadTasks, restricted: dict[str, Any]) -> tuple[ReadTasks, list[Future]]:
    """Return tasks that read partitions which Dask holds, so that they are read from their source once."""
    token = uuid.uuid4().hex
    keys = [f"dboost-rows-{token}-{i}" for i in range(tasks.n_partitions)]
    graph = dict(tasks.graph) | {key: (_identity, bundle) for key, bundle in zip(keys, tasks.bundles, strict=True)}
    futures = submit(client, graph, keys, **restricted)
    return tasks.over({future.key: future for future in futures}, keys), futures


def _restricted(connection: Connection) -> dict[str, Any]:
    """Return keywords that confine tasks to the usable workers, if some are not."""
    known = connection.refresh_workers(recent=True)
    usable = known.usable or connection.wait_for_usable()
    return {"workers": usable, "allow_other_workers": False} if known.unusable or connection.is_confined else {}


def _identity(value: Any) -> Any:
    return value


def _bundle_of(partition: BinnedPartition) -> tuple[Any, ...]:
    """Return a partition with its roles."""
    return partition, *partition.given_roles.values()


def _call(fit: str, function: bytes, arguments: bytes, partition: BinnedPartition) -> Any:
    with running(fit):
        return unpack(function)(partition, *unpack(arguments))


def _read_part(promise: bytes, root: str, part: tuple[Any, ...]) -> BinnedPartition:
    return read_part(root, PartFile(*part), unpack(promise))


def _write_part(root: str, version: str, partition: BinnedPartition, i: int) -> PartFile:
    return write_part(root, version, partition, i)
