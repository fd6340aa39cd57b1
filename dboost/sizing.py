"""Workers, memory and minutes of a fit, from the size of the table: `dboost.plan`.

**Memory** is computed by the functions that the fit itself uses (`rows.shard_spec`, `session.memory`): the bytes of a
row, the histograms of a tree, the rule by which a worker keeps its rows in memory or streams them from files. While a worker
loads its partitions it holds at most `RETAIN_BYTES` of raw values (further chunks are in files), and each thread one partition,
as it was read and as plain columns. Up to `TRIM_BYTES` that were freed are still in the process (`session.memory`). All
columns are taken as numeric, with 255 bins: the most that a column of up to 255 values or categories takes. The fit is that of
the defaults: squared error, `ITERATIONS` iterations, 31 leaves.

**Hosts.** The unit is a host, not a worker: on each, one worker trains on the rows of all (`cluster.worker.host_trainers`), if
its memory has room for them. Then rounds are between hosts only. The plan of a client's cluster groups its workers by the rule
of the fits. Without a client, each worker is taken to have a host of its own.

**Minutes** follow the law of docs/scaling.md: cells of a host × levels × time of a cell, and a fixed number of rounds. The
constants below were measured on one shared machine of two cores, so minutes tell an order of magnitude, within a factor of
about three. Measure a fit of a hundredth of the rows before you depend on them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dboost.argument_types import Client, TableLike
from dboost.data.columns.labels import Names
from dboost.data.kinds.table_kinds import is_path, names_of_table
from dboost.data.sources.paths import open_source
from dboost.display import counted, duration, html_card
from dboost.errors import DataError, ParameterError
from dboost.kernels.threads import is_small
from dboost.losses.deviance import SquaredError
from dboost.params import Integer, Parameters, accepts_peer_names
from dboost.rows.shard_spec import ShardSpec, plan_layout
from dboost.session.encoded_rows import row_bytes
from dboost.session.memory import TRIM_BYTES, Budget, format_bytes, histogram_bytes, parse_memory_limit, resident_bytes
from dboost.session.partition_batch import RETAIN_BYTES
from dboost.tracebacks import short_traceback
from dboost.training.plan import precision_of
from dboost.trees.tree_task import ANY_ORDER, GrowthPolicy
from dboost.tuning import tuning

#: A worker's process that has imported and compiled everything: 284 to 400 MiB (docs/scaling.md, docs/out_of_core.md).
PROCESS_BYTES = 400 * 2**20
#: Dask's defaults: the fraction of a worker's memory at which it spills (a fit without `memory_limit` stays below), or pauses.
TARGET_FRACTION, PAUSE_FRACTION = 0.6, 0.8
#: Seconds of one thread to read a cell (a value) from Parquet and bin it: 2,000,000 × 28 float64 took 70 to 150 ns a cell.
LOAD_SECONDS = 100e-9
#: Seconds of one thread for a cell of a tree of 31 leaves: 2.3 to 2.7 ns on a quiet machine (docs/benchmarks.md), 5.8 ns on a
#: busy one. The time grows with 1 + ½ log₂(leaves).
CELL_SECONDS, CELL_LEAVES = 4e-9, 31
#: Two threads take 0.60 of the time of one (docs/benchmarks.md): an efficiency of 0.83, which is assumed for each doubling.
DOUBLING_EFFICIENCY = 0.83
#: Rounds of an iteration: 11 to grow a tree, 2 to complete it and to sum up leaves (docs/scaling.md).
ROUNDS = 13
#: Seconds of a round besides messages: search and selection in the scheduler, 14 ms in 11 rounds (docs/scaling.md).
ROUND_SECONDS = 1.3e-3
#: The cost model of docs/scaling.md: fan-in, latency of a link, processor time of a message, seconds to send and add a byte
#: (10 Gbit/s and 0.25 ns), and leaves whose histograms a round sends on average.
FAN_IN, LATENCY, MESSAGE_SECONDS, BYTE_SECONDS, LEAVES_PER_ROUND = 8, 0.1e-3, 30e-6, 0.8e-9 + 0.25e-9, 3
#: Wide histograms are reduced by feature: a worker receives about so many times its own.
RECEIVED_HISTOGRAMS = 1.5
#: Seconds to pack, send and join a byte of rows that a worker hands over: 40 to 57 ms for 21 MiB (docs/scaling.md).
HAND_OVER_SECONDS = 2.2e-9
#: Memory and threads of a worker, unless they are given.
WORKER_MEMORY, WORKER_THREADS = "16GiB", 4
#: Bytes that no fit needs.
_NO_LIMIT = 2**62
#: More columns are probably the number of rows.
MOST_COLUMNS = 1_000_000
#: Iterations of the planned fit, bytes of a raw value, and memory of a partition as Dask reads it: about as Dask recommends.
ITERATIONS, VALUE_BYTES, PARTITION_BYTES = 100, 8, 128 * 2**20
#: Why a plan takes no parameters.
DEFAULTS_ONLY = (
    f"the fit is that of the defaults, with {ITERATIONS} iterations. Memory hardly depends on other parameters, and the time "
    "grows with iterations and leaves"
)


@dataclass(frozen=True, repr=False)
class Plan:
    """What a fit takes; made by `dboost.plan`. Sizes are in bytes.

    Attributes
    ----------
    rows, columns, iterations, leaves : int
        The fit, with at most `leaves` leaves per tree.
    workers, threads : int
        Number of workers, and of threads of each (the largest number).
    trainers, trainer_threads : int
        Number of workers that train on rows, one for each host if its memory has room, and of threads of each of them.
    handed_over : int
        Binned rows that other workers send to the trainers of their hosts.
    memory : int
        Of the rows of all workers while trees grow.
    memory_added : int
        Largest amount that the fit adds to one worker's process: rows and histograms, or partitions that are read.
    memory_per_worker : int
        The `memory_limit` that a Dask worker needs so that its rows stay in memory; if it trains for its host, the rows of the
        host.
    in_memory : bool
        Whether rows stay in memory; otherwise they are streamed from files.
    disk_per_worker : int
        Temporary files of a worker: raw values until they are binned, or binned rows that are streamed.
    client_memory : int
        Of the sample from which split points are proposed.
    loading_minutes, training_minutes : float
        Estimates.
    """

    rows: int
    columns: int
    iterations: int
    leaves: int
    workers: int
    threads: int
    trainers: int
    trainer_threads: int
    handed_over: int
    memory: int
    memory_added: int
    memory_per_worker: int
    in_memory: bool
    disk_per_worker: int
    client_memory: int
    loading_minutes: float
    training_minutes: float

    @property
    def minutes(self) -> float:
        """Minutes of the whole fit, as an estimate."""
        return self.loading_minutes + self.training_minutes

    def _lines(self) -> list[tuple[str, str]]:
        lines = [("workers", f"{self.workers:,} × {counted(self.threads, 'thread')}")]
        if self.trainers < self.workers:
            received = f", {format_bytes(self.handed_over)} handed over" if self.handed_over else ""
            lines.append(("of them train", f"{self.trainers:,} × {counted(self.trainer_threads, 'thread')}{received}"))
        where = "rows stay in memory" if self.in_memory else "rows are streamed from files"
        return [
            *lines,
            ("memory of a worker", f"{format_bytes(self.memory_per_worker)} ({where})"),
            ("added by the fit", f"{format_bytes(self.memory_added)} per worker"),
            ("all rows, binned", format_bytes(self.memory)),
            ("temporary files", f"{format_bytes(self.disk_per_worker)} per worker"),
            ("added to the client", format_bytes(self.client_memory)),
            ("time, about", f"{duration(60 * self.minutes)} (loading {duration(60 * self.loading_minutes)})"),
        ]

    def _title(self) -> str:
        return f"{self.rows:,} rows × {self.columns:,} columns, {self.iterations:,} iterations of {self.leaves:,} leaves"

    def __repr__(self) -> str:
        return "\n".join([self._title(), *(f"  {name:<20} {value}" for name, value in self._lines())])

    def _repr_html_(self) -> str:
        return html_card(self._title(), self._lines())


@short_traceback
@accepts_peer_names(
    aliases={
        **dict.fromkeys(("n_rows", "num_rows", "n_samples", "data", "table"), "rows"),
        **dict.fromkeys(("n_columns", "num_columns", "n_features", "num_features", "target"), "columns"),
    }
)
def plan(
    rows: int | TableLike,
    columns: int | str | Sequence[str] | None = None,
    *,
    workers: int | None = None,
    worker_memory: int | str | None = None,
    worker_threads: int | None = None,
    client: Client | None = None,
    **unknown: Any,
) -> Plan:
    """Estimate the workers, memory and minutes that a fit needs, from the size of the table.

    Parameters
    ----------
    rows : int or table
        Number of rows of the training table; or the table itself, as of `dboost.fit`, also as a path, whose rows are counted:
        those of Parquet files by their footers.
    columns : int, str or list of str, optional
        Number of columns without the target. If `rows` is a table: the target, which is no feature; default: all columns are.
    workers : int, optional
        Number of workers, each on a host of its own. Default: the smallest number whose memory holds the rows. One worker also
        describes a fit in one process, to which the fit adds `Plan.memory_added`.
    worker_memory : int or str, optional
        Memory of a worker: bytes, or a size like "16GiB" (Dask's `memory_limit`), the default.
    worker_threads : int, optional
        Threads of a worker. Default: 4.
    client : distributed.Client, optional
        The plan is that of a fit on the workers of its cluster, with their hosts, threads and memory, in place of the three
        parameters above.
    **unknown
        Other parameters of a fit raise an error, because the plan is that of the defaults.

    Returns
    -------
    Plan
        Print it, or use its fields. It is that of 100 iterations of regression with the defaults of `dboost.fit`. Memory is
        computed from what dboost allocates; minutes are an order of magnitude, and those of streamed rows assume that the
        system's cache or a fast disk supplies the files.

    Raises
    ------
    ParameterError
        For invalid values, or if a tree's histograms do not fit the memory of a worker.
    InputTypeError
        For a `client` that is none.

    Examples
    --------
    >>> import dboost
    >>> plan = dboost.plan(1_000_000_000, 28, worker_memory="32GiB", worker_threads=8)
    >>> plan.workers
    7
    >>> dboost.plan("rides/", "fare")                               # doctest: +SKIP
    """
    if unknown:
        raise ParameterError(f"plan: unknown parameter {next(iter(unknown))!r}: {DEFAULTS_ONLY}")
    n_rows, n_columns = _size_of(rows, columns)
    spec = _spec(n_rows, n_columns)
    stated = {"workers": workers, "worker_memory": worker_memory, "worker_threads": worker_threads}
    stated = {name: value for name, value in stated.items() if value is not None}
    if client is not None:
        if stated:
            raise ParameterError(f"plan: leave out {' and '.join(stated)}, or client: the workers are those of its cluster")
        hosts = Counter(_hosts_of(client))
    else:
        for name in stated.keys() - {"worker_memory"}:
            Integer(1).checked(name, stated[name])
        n_threads = WORKER_THREADS if worker_threads is None else int(worker_threads)
        limit = parse_memory_limit(WORKER_MEMORY if worker_memory is None else worker_memory, "worker_memory")
        hosts = Counter([_Host((_Worker(n_threads, limit),), n_threads)])
    fit = _Fit(n_rows, spec, hosts)
    fit.check_trees()
    if client is None:
        (host,) = hosts
        fit = replace(fit, hosts=Counter({host: _fewest(fit) if workers is None else int(workers)}))
    return fit.plan()


def _size_of(rows: Any, columns: Any) -> tuple[int, int]:
    """Return the numbers of rows and columns that `plan` was given, or those of a table and its target."""
    if is_path(rows) or (hasattr(rows, "shape") and not isinstance(rows, np.generic)):
        return _size_of_table(rows, columns)
    if columns is None:
        raise ParameterError("columns is missing: plan(rows, columns), or plan(table, target)")
    for name, value in (("rows", rows), ("columns", columns)):
        Integer(1).checked(name, value)
    if columns > MOST_COLUMNS:
        raise ParameterError(f"columns={columns:,} is more than {MOST_COLUMNS:,}: give the rows first, plan(rows, columns)")
    return int(rows), int(columns)


def _size_of_table(table: Any, target: Any) -> tuple[int, int]:
    """Return the numbers of rows and features of a table. target : name, names or values; None if all columns are features."""
    if isinstance(target, int):
        raise ParameterError(f"plan(table, {target}): give the name of the target, or the numbers of rows and columns")
    if is_path(table):
        source = open_source(table)
        names: Names | None = source.names
        n_rows, n_columns = sum(map(len, source.partitions(()))), len(source.meta.columns)
    else:
        names, shape = names_of_table(table), table.shape
        n_rows = shape[0] if isinstance(shape[0], int) else len(table)  # of a lazy collection
        n_columns = int(shape[1]) if len(shape) > 1 else 1
    targets: list[Any] = []
    if names is not None and not hasattr(target, "shape"):  # values of a target are no column
        targets = [target] if isinstance(target, str) else list(target or ())
        for name in targets:
            if name not in names:
                raise DataError(f"target {name!r}: the data have no such column{names.hint(name)}")
    n_features = n_columns - len(targets)
    if not n_rows or n_features < 1:
        raise DataError(f"plan: the table has {n_rows:,} rows and {n_features:,} features")
    return n_rows, n_features


class _Worker(NamedTuple):
    n_threads: int
    memory_limit: int  # bytes, 0 if there is none

    @property
    def limit(self) -> int:
        return self.memory_limit or _NO_LIMIT

    @property
    def spare(self) -> Budget:
        """The memory that a worker may use before Dask spills."""
        return Budget(max(int(self.limit * TARGET_FRACTION) - PROCESS_BYTES, 1))


class _Host(NamedTuple):
    """Workers that hand their rows over to one of them if it has room."""

    workers: tuple[_Worker, ...]
    n_processors: int

    @property
    def n_threads(self) -> int:
        return sum(worker.n_threads for worker in self.workers)


class _Load(NamedTuple):
    """What a worker does in a fit."""

    worker: _Worker
    n_read: int  # rows
    n_trained: int  # rows that it trains on
    n_threads: int  # with which it trains

    @property
    def n_received(self) -> int:
        """Rows of other workers."""
        return max(self.n_trained - self.n_read, 0)


@dataclass(frozen=True, eq=False)
class _Fit:
    """A fit on workers of some hosts, with the number of equal hosts."""

    rows: int
    spec: ShardSpec
    hosts: Counter[_Host]

    @property
    def n_columns(self) -> int:
        return len(self.spec.layout.n_bins)

    @property
    def n_workers(self) -> int:
        return sum(len(host.workers) * n for host, n in self.hosts.items())

    @property
    def raw_row(self) -> int:
        """Bytes of a row's raw values."""
        return VALUE_BYTES * self.n_columns

    @property
    def sample_bytes(self) -> int:
        """The sample from which split points are proposed; the values exist twice."""
        sample = tuning().bin_sample_rows
        return 2 * 8 * min(self.rows, sample + sample // 8) * self.n_columns

    def loads(self) -> Counter[_Load]:
        """Return what workers do, with the number of equal ones."""
        single = self._single_host()
        if single is not None:
            worker, host = single
            hands_over = _has_session_per_host() and not is_small(self.rows, self.n_columns)
            n_threads = _threads_of_trainer(host, worker) if hands_over else worker.n_threads
            return Counter([_Load(worker, self.rows, self.rows, n_threads)])
        loads: Counter[_Load] = Counter()
        n_threads = sum(host.n_threads * n for host, n in self.hosts.items())
        for host, n in self.hosts.items():
            n_rows = -(-self.rows * host.n_threads // n_threads)
            read = [-(-n_rows * worker.n_threads // host.n_threads) for worker in host.workers]
            room = [min(worker.spare.most_rows(self.spec, host.n_processors), tuning().session_rows) for worker in host.workers]
            trainer = next((worker for worker, most in zip(host.workers, room, strict=True) if most >= n_rows), None)
            trained = list(read)
            if trainer is not None and all(most >= n_read for most, n_read in zip(room, read, strict=True)):
                trained = [n_rows if worker is trainer else 0 for worker in host.workers]
            for worker, n_read, n_trained in zip(host.workers, read, trained, strict=True):
                receives = n_trained > n_read
                n_own = _threads_of_trainer(host, worker) if receives else worker.n_threads
                loads[_Load(worker, n_read, n_trained, n_own)] += n
        return loads

    def _single_host(self) -> tuple[_Worker, _Host] | None:
        """Return the worker that gets all rows of a small table, and its host; None if the table is divided."""
        from dboost.cluster.partitions.rebalance import is_for_one_worker, is_held  # which imports Dask

        n_values, n_workers = self.rows * self.n_columns, self.n_workers
        for host in self.hosts:
            for worker in host.workers:
                if is_for_one_worker(n_values, 1, worker.n_threads, n_workers) and is_held(n_values, worker.memory_limit):
                    return worker, host
        return None

    def growing(self, load: _Load) -> int:
        """Return the bytes of a worker while trees grow."""
        return resident_bytes(self.spec, load.n_trained) + histogram_bytes(self.spec, load.n_threads) if load.n_trained else 0

    def loading(self, load: _Load) -> int:
        """Return the most bytes of a worker before trees grow: of reading, sampling, encoding, or receiving rows."""
        worker, raw = load.worker, load.n_read * self.raw_row
        # Each thread reads a partition, as far as there are so many, and a partition is never divided between workers.
        partition_bytes = min(PARTITION_BYTES, self.rows * self.raw_row) if raw else 0
        reading = 2 * min(worker.n_threads * partition_bytes, max(raw, partition_bytes))
        sampling = self.sample_bytes * load.n_read // self.rows
        encoding = load.n_read * (self.n_columns + 16)
        kept = min(raw, RETAIN_BYTES, worker.spare.retained) + load.n_read * 8 + min(raw, TRIM_BYTES)
        # A trainer holds what it has and has received, and these rows joined.
        receiving = 2 * load.n_trained * row_bytes(self.spec) if load.n_received else 0
        return max(kept + max(reading, sampling, encoding), receiving)

    def needed(self, load: _Load) -> int:
        """Return the memory limit with which a worker keeps its rows in memory, and is not paused."""
        return _limit_for(self.growing(load), self.loading(load))

    def check_trees(self) -> None:
        """Raise ParameterError if the histograms of a tree do not fit the memory of a worker."""
        for worker in {worker for host in self.hosts for worker in host.workers}:
            needed = _limit_for(histogram_bytes(self.spec, worker.n_threads), 0)
            if needed > worker.limit:
                raise ParameterError(
                    f"worker_memory of {format_bytes(worker.limit)} is too small for trees of {self.spec.max_leaves} leaves "
                    f"over {self.n_columns} columns with {worker.n_threads} threads: without any rows they take "
                    f"{format_bytes(needed)}"
                )

    def tree_seconds(self, trainers: Counter[_Load]) -> float:
        """Return the seconds of a tree: its cells, and the rounds between several trainers."""
        # Best-first and depth-wise trees of any size visit each row about once per level.
        leaves = (1 + math.log2(self.spec.max_leaves) / 2) / (1 + math.log2(CELL_LEAVES) / 2)
        cells = max(load.n_trained / _speed(load.n_threads) for load in trainers) * self.n_columns * CELL_SECONDS * leaves
        n_trainers = trainers.total()
        if n_trainers == 1:
            return cells
        n_messages = max(math.ceil(math.log(n_trainers, FAN_IN)), 1) * min(FAN_IN, n_trainers)
        histograms = LEAVES_PER_ROUND * self.spec.n_channels * 4 * int(self.spec.layout.offset[-1])
        messages = n_messages * 2 * (LATENCY / FAN_IN + MESSAGE_SECONDS) + RECEIVED_HISTOGRAMS * histograms * BYTE_SECONDS
        return cells + ROUNDS * (ROUND_SECONDS + messages)

    def plan(self) -> Plan:
        spec, loads = self.spec, self.loads()
        trainers = Counter({load: n for load, n in loads.items() if load.n_trained})
        needed = {load: self.needed(load) for load in loads}
        streams = {load: needed[load] > load.worker.limit for load in loads}
        raw_in_files = [max(load.n_read * self.raw_row - min(RETAIN_BYTES, load.worker.spare.retained), 0) for load in loads]
        binned_in_files = [load.n_trained * spec.bytes_per_row() if streams[load] else 0 for load in loads]
        sent = row_bytes(spec) - 8 * spec.n_outputs  # first raw scores are the same in all rows, and not sent
        reading = max(load.n_read / _speed(load.worker.n_threads) for load in loads) * self.n_columns * LOAD_SECONDS
        receiving = max(load.n_received for load in loads) * row_bytes(spec) * HAND_OVER_SECONDS
        return Plan(
            rows=self.rows,
            columns=self.n_columns,
            iterations=ITERATIONS,
            leaves=spec.max_leaves,
            workers=self.n_workers,
            threads=max(worker.n_threads for host in self.hosts for worker in host.workers),
            trainers=trainers.total(),
            trainer_threads=max(load.n_threads for load in trainers),
            handed_over=sent * sum(load.n_received * n for load, n in loads.items()),
            memory=resident_bytes(spec, self.rows),
            memory_added=max(
                load.worker.spare.limit if streams[load] else max(self.growing(load), self.loading(load)) for load in loads
            ),
            memory_per_worker=max(min(needed[load], load.worker.limit) for load in loads),
            in_memory=not any(streams.values()),
            disk_per_worker=max(map(sum, zip(raw_in_files, binned_in_files, strict=True))),
            client_memory=self.sample_bytes,
            loading_minutes=(reading + receiving) / 60,
            training_minutes=ITERATIONS * self.tree_seconds(trainers) / 60,
        )


def _limit_for(kept: int, passing: int) -> int:
    """Return the memory limit of a worker that keeps rows and trees of so many bytes, and needs others for a while."""
    # As `Budget.holds_rows`: a quarter of the budget stays free.
    keeps = (PROCESS_BYTES + kept / 0.75) / TARGET_FRACTION
    return math.ceil(max(keeps, (PROCESS_BYTES + passing) / PAUSE_FRACTION))


def _has_session_per_host() -> bool:
    from dboost.config import session_per_host  # which imports Dask

    return session_per_host()


def _threads_of_trainer(host: _Host, worker: _Worker) -> int:
    from dboost.cluster.worker.host_trainers import n_threads_of_trainer  # which imports Dask

    return n_threads_of_trainer(
        [worker_of_host.n_threads for worker_of_host in host.workers], host.n_processors, 1, worker.n_threads
    )


def _fewest(fit: _Fit) -> int:
    """Return the smallest number of hosts of one worker that keep the rows in memory."""
    ((worker,), _) = next(iter(fit.hosts))

    def is_enough(n_workers: int) -> bool:
        share = -(-fit.rows // n_workers)
        return fit.needed(_Load(worker, share, share, worker.n_threads)) <= worker.limit

    if not is_enough(fit.rows):
        raise ParameterError(
            f"worker_memory of {format_bytes(worker.limit)} is too small: {worker.n_threads} partitions of "
            f"{format_bytes(PARTITION_BYTES)}, one for each of worker_threads, exceed it"
        )
    return 1 + bisect_left(range(1, fit.rows), True, key=is_enough)


def _hosts_of(client: Any) -> list[_Host]:
    """Return the hosts of a client's cluster; ParameterError without workers."""
    from dboost.cluster.client.client import client_for
    from dboost.cluster.worker.host_trainers import places_of

    with client_for(None, client) as open_client:
        groups = places_of(open_client)
    if not groups:
        raise ParameterError("plan: the cluster of this client has no workers")
    if not _has_session_per_host():
        groups = [[place] for group in groups for place in group]
    return [
        _Host(tuple(_Worker(place.n_threads, place.memory_limit) for place in group), len(group[0].processors))
        for group in groups
    ]


def _speed(n_threads: int) -> float:
    """Return how many times as fast as one thread so many are."""
    return float(n_threads * DOUBLING_EFFICIENCY ** math.log2(n_threads))


def _spec(rows: int, columns: int) -> ShardSpec:
    """Return the layout of the rows, as `training.plan.make_plan` does it for numeric columns of as many bins as possible."""
    parameters, loss = Parameters(), SquaredError()
    layout = plan_layout(np.full(columns, min(parameters.max_bins, rows)), np.zeros(columns, bool))
    policy = GrowthPolicy.of(parameters, rows)
    return ShardSpec(
        layout,
        layout,
        policy.max_leaves,
        integer_weights=True,
        constant_hessian=loss.constant_hessian,
        n_channels=precision_of(parameters, loss.constant_hessian).n_channels,
        speculates=policy.order != ANY_ORDER,
    )
