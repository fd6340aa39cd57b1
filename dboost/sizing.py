"""Workers, memory and minutes of a fit, from the size of the table: `dboost.plan`.

**Memory** is computed by the functions that the fit itself uses (`rows.shard_spec`, `session.memory`): the bytes of a
row, the histograms of a tree, the rule by which a worker keeps its rows in memory or streams them from files. While a worker
loads its partitions it holds at most `RETAIN_BYTES` of raw values (further chunks are in files), and each thread one partition,
as it was read and as plain columns. Up to `TRIM_BYTES` that were freed are still in the process (`session.memory`). All
columns are taken as numeric, with 255 bins: the most that a column of up to 255 values or categories takes. The fit is that of
the defaults: squared error, `ITERATIONS` iterations, 31 leaves; docs/guide/sizing.md has what other settings change.

**Hosts.** The unit is a host, not a worker: on each, one worker trains on the rows of all (`cluster.worker.host_sessions`), if
its memory has room for them. Then rounds are between hosts only. The plan of a client's cluster groups its workers by the rule
of the fits. Without a client, each worker is taken to have a host of its own.

**Minutes** follow the law of docs/scaling.md: cells of a host × levels × time of a cell, and a fixed number of rounds. The
constants below were measured on one shared machine of two cores, so minutes tell an order of magnitude, within a factor of
about three. Measure a fit of a hundredth of the rows before you depend on them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dboost.display import html_card, number
from dboost.errors import ParameterError
from dboost.kernels.threads import is_small
from dboost.losses.deviance import SquaredError
from dboost.params import Parameters
from dboost.rows.shard_spec import ShardSpec, plan_layout
from dboost.session.encoded_rows import row_bytes
from dboost.session.memory import TRIM_BYTES, Budget, format_bytes, histogram_bytes, parse_memory_limit, resident_bytes
from dboost.session.partition_batch import RETAIN_BYTES
from dboost.training.plan import growth_policy_of, precision_of
from dboost.trees.tree_task import ANY_ORDER
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

_OF_TREE = "histograms take leaves × columns × bins × 16 bytes, and time grows with 1 + ½ log₂(leaves)"
_OF_ROW = "docs/guide/sizing.md has the bytes of a row"
#: Parameters of earlier versions, and what replaces them.
_REMOVED = {
    "minutes": "compare the minutes of plans with several numbers of workers",
    "max_iter": f"training_minutes are those of {ITERATIONS} iterations, and proportional to them",
    "loss": _OF_ROW, "n_classes": _OF_ROW, "weighted": _OF_ROW,
    "max_leaf_nodes": _OF_TREE, "max_depth": _OF_TREE, "max_bins": _OF_TREE, "min_samples_leaf": _OF_TREE,
    "value_bytes": f"values are taken to have {VALUE_BYTES} bytes",
    "partition_memory": f"partitions are taken to have {format_bytes(PARTITION_BYTES)}",
}  # fmt: skip


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
        """Minutes of the whole fit: an estimate."""
        return self.loading_minutes + self.training_minutes

    def _lines(self) -> list[tuple[str, str]]:
        where = "rows stay in memory" if self.in_memory else "rows are streamed from files"
        return [
            ("workers", f"{self.workers:,} × {self.threads} thread{'s' * (self.threads > 1)}"),
            *self._training_lines(),
            ("memory of a worker", f"{format_bytes(self.memory_per_worker)} ({where})"),
            ("added by the fit", f"{format_bytes(self.memory_added)} per worker"),
            ("all rows, binned", format_bytes(self.memory)),
            ("temporary files", f"{format_bytes(self.disk_per_worker)} per worker"),
            ("added to the client", format_bytes(self.client_memory)),
            ("time, about", f"{_duration(self.minutes)} (loading {_duration(self.loading_minutes)})"),
        ]

    def _training_lines(self) -> list[tuple[str, str]]:
        """Return a line on the workers that train, if others hand their rows over to them."""
        if self.trainers == self.workers:
            return []
        threads = f"{self.trainer_threads} thread{'s' * (self.trainer_threads > 1)}"
        received = f", {format_bytes(self.handed_over)} handed over" if self.handed_over else ""
        return [("of them train", f"{self.trainers:,} × {threads}{received}")]

    def _title(self) -> str:
        return f"{self.rows:,} rows × {self.columns:,} columns, {self.iterations:,} iterations of {self.leaves:,} leaves"

    def __repr__(self) -> str:
        return "\n".join([self._title(), *(f"  {name:<20} {value}" for name, value in self._lines())])

    def _repr_html_(self) -> str:
        return html_card(self._title(), self._lines())


def plan(
    rows: int,
    columns: int,
    *,
    workers: int | None = None,
    worker_memory: int | str | None = None,
    worker_threads: int | None = None,
    client: Any = None,
    **removed: Any,
) -> Plan:
    """Estimate the workers, memory and minutes that a fit needs, without any data.

    Parameters
    ----------
    rows, columns : int
        Size of the training table, without the target.
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
    **removed
        Parameters of earlier versions raise an error that states what replaces them.

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
    """
    for name in removed:
        if name in _REMOVED:
            raise ParameterError(f"plan: there is no parameter {name!r} any more: {_REMOVED[name]}")
        raise ParameterError(f"plan: unknown parameter {name!r}")
    if hasattr(rows, "shape") and not isinstance(rows, np.generic):
        raise ParameterError("plan takes numbers, not a table: dboost.plan(len(frame), n_features), without the target")
    for name, value in (("rows", rows), ("columns", columns)):
        _check_count(name, value)
    if columns > MOST_COLUMNS:
        raise ParameterError(f"columns={columns:,} is more than {MOST_COLUMNS:,}: give the rows first, plan(rows, columns)")
    spec = _spec(int(rows), int(columns))
    if client is not None:
        stated = {"workers": workers, "worker_memory": worker_memory, "worker_threads": worker_threads}
        if named := [name for name, value in stated.items() if value is not None]:
            raise ParameterError(f"plan: leave out {' and '.join(named)}, or client: the workers are those of its cluster")
        fit = _Fit(int(rows), spec, Counter(_hosts_of(client)))
        for host in fit.hosts:
            fit.check_trees(host)
        return fit.plan
    if workers is not None:
        _check_count("workers", workers)
    if worker_threads is not None:
        _check_count("worker_threads", worker_threads)
    n_threads = WORKER_THREADS if worker_threads is None else int(worker_threads)
    limit = parse_memory_limit(WORKER_MEMORY if worker_memory is None else worker_memory, "worker_memory")
    host = _Host((_Worker(n_threads, limit),), n_threads)
    _Fit(int(rows), spec, Counter({host: 1})).check_trees(host)
    n_workers = _fewest(int(rows), spec, host) if workers is None else int(workers)
    return _Fit(int(rows), spec, Counter({host: n_workers})).plan


@dataclass(frozen=True)
class _Worker:
    n_threads: int
    memory_limit: int  # bytes, 0 if there is none

    @property
    def limit(self) -> int:
        return self.memory_limit or _NO_LIMIT

    @property
    def spare(self) -> Budget:
        """The memory that a worker may use before Dask spills."""
        return Budget(max(int(self.limit * TARGET_FRACTION) - PROCESS_BYTES, 1))


@dataclass(frozen=True)
class _Host:
    """Workers that hand their rows over to one of them if it has room."""

    workers: tuple[_Worker, ...]
    n_processors: int

    @cached_property
    def n_threads(self) -> int:
        """Threads of all workers."""
        return sum(worker.n_threads for worker in self.workers)


@dataclass(frozen=True)
class _Load:
    """What a worker does in a fit."""

    worker: _Worker
    n_read: int  # rows
    n_trained: int  # rows that it trains on
    n_received: int  # rows of other workers among them
    n_threads: int  # with which it trains


@dataclass(frozen=True, eq=False)
class _Fit:
    """A fit on workers of some hosts, with the number of equal hosts."""

    rows: int
    spec: ShardSpec
    hosts: Counter[_Host]

    @cached_property
    def n_columns(self) -> int:
        return len(self.spec.layout.n_bins)

    @cached_property
    def n_workers(self) -> int:
        return sum(len(host.workers) * n for host, n in self.hosts.items())

    @cached_property
    def loads(self) -> Counter[_Load]:
        """What workers do, with the number of equal ones."""
        from dboost.config import session_per_host  # which imports Dask

        single = self._single_host()
        if single is not None:
            worker, host = single
            hands_over = session_per_host() and not is_small(self.rows, self.n_columns)
            n_threads = _threads_of_trainer(host, worker) if hands_over else worker.n_threads
            return Counter({_Load(worker, self.rows, self.rows, 0, n_threads): 1})
        loads_of_workers: Counter[_Load] = Counter()
        together = sum(host.n_threads * n for host, n in self.hosts.items())
        for host, n in self.hosts.items():
            n_rows = -(-self.rows * host.n_threads // together)
            read = [-(-n_rows * worker.n_threads // host.n_threads) for worker in host.workers]
            most = [min(worker.spare.most_rows(self.spec, host.n_processors), tuning().session_rows) for worker in host.workers]
            trainers = [k for k, room in enumerate(most) if room >= n_rows]
            hands_over = bool(trainers) and all(room >= n_own for room, n_own in zip(most, read, strict=True))
            for k, worker in enumerate(host.workers):
                if not hands_over:
                    load = _Load(worker, read[k], read[k], 0, worker.n_threads)
                elif k == trainers[0]:
                    load = _Load(worker, read[k], n_rows, n_rows - read[k], _threads_of_trainer(host, worker))
                else:
                    load = _Load(worker, read[k], 0, 0, worker.n_threads)
                loads_of_workers[load] += n
        return loads_of_workers

    def _single_host(self) -> tuple[_Worker, _Host] | None:
        """Return the worker that gets all rows of a small table, and its host; None if the table is divided."""
        from dboost.cluster.partitions.rebalance import is_for_one_worker, is_held  # which imports Dask

        n_values = self.rows * self.n_columns
        for host in self.hosts:
            for worker in host.workers:
                is_small = is_for_one_worker(n_values, 1, worker.n_threads, self.n_workers)
                if is_small and is_held(n_values, worker.memory_limit):
                    return worker, host
        return None

    @property
    def raw_row(self) -> int:
        """Bytes of a row's raw values."""
        return VALUE_BYTES * self.n_columns

    def training(self, n_rows: int, n_threads: int) -> int:
        """Return the bytes of a worker while trees grow."""
        return resident_bytes(self.spec, n_rows) + histogram_bytes(self.spec, n_threads) if n_rows else 0

    def loading(self, load: _Load) -> int:
        """Return the bytes of a worker until the raw values are released: the largest of reading, sampling and encoding."""
        worker, n_rows = load.worker, load.n_read
        raw = n_rows * self.raw_row
        metadata = n_rows * 8
        # Each thread reads a partition, as far as there are so many, and a partition is never divided between workers.
        partition_bytes = min(PARTITION_BYTES, self.rows * self.raw_row) if n_rows else 0
        reading = 2 * min(worker.n_threads * partition_bytes, max(raw, partition_bytes))
        sampling = self.sample_bytes * n_rows // self.rows
        encoding = n_rows * (self.n_columns + 16)
        freed = min(raw, TRIM_BYTES)
        return min(raw, RETAIN_BYTES, worker.spare.retained) + metadata + max(reading, sampling, encoding) + freed

    def receiving(self, load: _Load) -> int:
        """Return the bytes of a trainer until its rows are joined: what it has and has received, and the rows together."""
        return (2 * load.n_trained if load.n_received else 0) * row_bytes(self.spec)

    @property
    def sample_bytes(self) -> int:
        """The sample from which split points are proposed; the values exist twice."""
        sample = tuning().bin_sample_rows
        return 2 * 8 * min(self.rows, sample + sample // 8) * self.n_columns

    def needed(self, load: _Load) -> int:
        """Return the memory limit with which a worker keeps its rows in memory, and is not paused."""
        # As `Budget.holds_rows`: a quarter of the budget stays free.
        keeps = (PROCESS_BYTES + self.training(load.n_trained, load.n_threads) / 0.75) / TARGET_FRACTION
        return math.ceil(max(keeps, (PROCESS_BYTES + max(self.loading(load), self.receiving(load))) / PAUSE_FRACTION))

    def check_trees(self, host: _Host) -> None:
        """Raise ParameterError if the histograms of a tree do not fit the memory of a worker."""
        for worker in host.workers:
            keeps = PROCESS_BYTES + histogram_bytes(self.spec, worker.n_threads) / 0.75
            needed = math.ceil(max(keeps / TARGET_FRACTION, PROCESS_BYTES / PAUSE_FRACTION))
            if needed > worker.limit:
                raise ParameterError(
                    f"worker_memory of {format_bytes(worker.limit)} is too small for trees of {self.spec.max_leaves} leaves "
                    f"over {self.n_columns} columns with {worker.n_threads} threads: without any rows they take "
                    f"{format_bytes(needed)}"
                )

    def round_seconds(self, n_trainers: int) -> float:
        """Return the seconds of a round for messages and the scheduler's work."""
        spec = self.spec
        n_bytes = LEAVES_PER_ROUND * spec.n_channels * 4 * int(spec.layout.offset[-1])
        fan_in = min(FAN_IN, n_trainers)
        levels = max(math.ceil(math.log(n_trainers) / math.log(FAN_IN)), 1)
        messages = levels * (2 * LATENCY + fan_in * (2 * MESSAGE_SECONDS + n_bytes * BYTE_SECONDS))
        # Wide histograms are reduced by feature, in groups of workers.
        group = min(math.sqrt(n_trainers * FAN_IN / 2), n_trainers)
        calls = levels * (2 * LATENCY + 2 * fan_in * MESSAGE_SECONDS)
        slices = 3 * LATENCY + (2 * group + n_trainers / group) * MESSAGE_SECONDS
        slices += (1 + n_trainers / group**2) * n_bytes * BYTE_SECONDS
        return ROUND_SECONDS + min(messages, calls + slices)

    @property
    def plan(self) -> Plan:
        spec, columns, loads = self.spec, self.n_columns, self.loads
        trainers = Counter({load: n for load, n in loads.items() if load.n_trained})
        n_trainers = trainers.total()
        needed = {load: self.needed(load) for load in loads}
        in_memory = all(needed[load] <= load.worker.limit for load in loads)
        added = [
            max(self.training(load.n_trained, load.n_threads), self.loading(load), self.receiving(load))
            if needed[load] <= load.worker.limit
            else load.worker.spare.limit
            for load in loads
        ]
        disk = [
            max(load.n_read * self.raw_row - min(RETAIN_BYTES, load.worker.spare.retained), 0)
            + (0 if needed[load] <= load.worker.limit else load.n_trained * spec.bytes_per_row())
            for load in loads
        ]
        sent = row_bytes(spec) - 8 * spec.n_outputs  # first raw scores are the same in all rows, and not sent
        handed_over = sent * sum(load.n_received * n for load, n in loads.items())
        # Best-first and depth-wise trees of any size visit each row about once per level.
        leaves = (1 + math.log2(spec.max_leaves) / 2) / (1 + math.log2(CELL_LEAVES) / 2)
        of_tree = max(load.n_trained * columns * CELL_SECONDS * leaves / _speed(load.n_threads) for load in trainers)
        reading = max(load.n_read * columns * LOAD_SECONDS / _speed(load.worker.n_threads) for load in loads)
        receiving = max(load.n_received for load in loads) * row_bytes(spec) * HAND_OVER_SECONDS
        rounds = 0.0 if n_trainers == 1 else ROUNDS * self.round_seconds(n_trainers)
        return Plan(
            rows=self.rows,
            columns=columns,
            iterations=ITERATIONS,
            leaves=spec.max_leaves,
            workers=self.n_workers,
            threads=max(worker.n_threads for host in self.hosts for worker in host.workers),
            trainers=n_trainers,
            trainer_threads=max(load.n_threads for load in trainers),
            handed_over=handed_over,
            memory=resident_bytes(spec, self.rows),
            memory_added=max(added),
            memory_per_worker=max(min(needed[load], load.worker.limit) for load in loads),
            in_memory=in_memory,
            disk_per_worker=max(disk),
            client_memory=self.sample_bytes,
            loading_minutes=(reading + receiving) / 60,
            training_minutes=ITERATIONS * (of_tree + rounds) / 60,
        )


def _threads_of_trainer(host: _Host, worker: _Worker) -> int:
    from dboost.cluster.worker.host_sessions import n_threads_of_trainer  # which imports Dask

    return n_threads_of_trainer(
        [worker_of_host.n_threads for worker_of_host in host.workers], host.n_processors, 1, worker.n_threads
    )


def _fewest(rows: int, spec: ShardSpec, host: _Host) -> int:
    """Return the smallest number of hosts of one worker that keep the rows in memory."""
    (worker,) = host.workers
    fit = _Fit(rows, spec, Counter({host: 1}))

    def is_enough(n_workers: int) -> bool:
        share = -(-rows // n_workers)
        return fit.needed(_Load(worker, share, share, 0, worker.n_threads)) <= worker.limit

    low, high = 0, 1
    while not is_enough(high):
        low, high = high, 2 * high
        if low >= rows:
            raise ParameterError(
                f"worker_memory of {format_bytes(worker.limit)} is too small: {worker.n_threads} partitions of "
                f"{format_bytes(PARTITION_BYTES)}, one for each of worker_threads, exceed it"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _hosts_of(client: Any) -> Sequence[_Host]:
    """Return the hosts of a client's cluster; ParameterError without workers."""
    from dboost.cluster.client.client import client_for
    from dboost.cluster.worker.host_sessions import places_of
    from dboost.config import session_per_host

    with client_for(None, client) as open_client:
        groups = places_of(open_client)
    if not groups:
        raise ParameterError("plan: the cluster of this client has no workers")
    if not session_per_host():
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
    policy = growth_policy_of(parameters, rows)
    return ShardSpec(
        layout,
        layout,
        policy.max_leaves,
        integer_weights=True,
        constant_hessian=loss.constant_hessian,
        n_channels=precision_of(parameters, loss.constant_hessian).n_channels,
        speculates=policy.order != ANY_ORDER,
    )


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ParameterError(f"{name}={value!r} must be a positive whole number")


def _duration(minutes: float) -> str:
    """Return a duration as text, with two significant digits."""
    if minutes < 1:
        return f"{max(minutes * 60, 1):.0f} s"
    return f"{number(minutes, 2)} min" if minutes < 100 else f"{number(minutes / 60, 2)} h"
