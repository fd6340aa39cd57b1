"""Workers, memory and minutes of a fit, from the size of the table: `dboost.plan`.

**Memory** is computed by the functions that the fit itself uses (`shards.shard_spec`, `session.memory`): the bytes of a
row, the histograms of a tree, the rule by which a worker keeps its rows in memory or streams them from files. While a worker
loads its partitions it holds at most `RETAIN_BYTES` of raw values (further chunks are in files), and each thread one partition,
as it was read and as plain columns. Up to `TRIM_BYTES` that were freed are still in the process (`session.memory`). All
columns are taken as numeric, with 255 bins: the most that a column of up to 255 values or categories takes. The fit is that of
the defaults: squared error, `ITERATIONS` iterations, 31 leaves; docs/guide/sizing.md has what other settings change.

**Minutes** follow the law of docs/scaling.md: cells of a worker × levels × time of a cell, and a fixed number of rounds. The
constants below were measured on one shared machine of two cores, so minutes tell an order of magnitude, within a factor of
about three. Measure a fit of a hundredth of the rows before you depend on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.data.binning import SAMPLE_ROWS
from dboost.display import html_card, number
from dboost.errors import ParameterError
from dboost.losses.deviance import SquaredError
from dboost.params import Parameters
from dboost.session.memory import TRIM_BYTES, Budget, format_bytes, histogram_bytes, parse_memory_limit, resident_bytes
from dboost.session.partition_batch import RETAIN_BYTES
from dboost.shards.shard_spec import ShardSpec, plan_layout
from dboost.training.plan import growth_policy_of, precision_of
from dboost.trees.tree_task import ANY_ORDER

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
        Number of workers, and of threads of each.
    memory : int
        Of the rows of all workers while trees grow.
    memory_added : int
        Largest amount that the fit adds to one worker's process: rows and histograms, or partitions that are read.
    memory_per_worker : int
        The `memory_limit` that a Dask worker needs so that its rows stay in memory.
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
            ("memory of a worker", f"{format_bytes(self.memory_per_worker)} ({where})"),
            ("added by the fit", f"{format_bytes(self.memory_added)} per worker"),
            ("all rows, binned", format_bytes(self.memory)),
            ("temporary files", f"{format_bytes(self.disk_per_worker)} per worker"),
            ("added to the client", format_bytes(self.client_memory)),
            ("time, about", f"{_duration(self.minutes)} (loading {_duration(self.loading_minutes)})"),
        ]

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
    worker_memory: int | str = "16GiB",
    worker_threads: int = 4,
    **removed: Any,
) -> Plan:
    """Estimate the workers, memory and minutes that a fit needs, without any data.

    Parameters
    ----------
    rows, columns : int
        Size of the training table, without the target.
    workers : int, optional
        Number of workers. Default: the smallest number whose memory holds the rows. One worker also describes a fit in one
        process, to which the fit adds `Plan.memory_added`.
    worker_memory : int or str, default "16GiB"
        Memory of a worker: bytes, or a size like "16GiB" (Dask's `memory_limit`).
    worker_threads : int, default 4
        Threads of a worker.
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
        For invalid values, or if a tree's histograms do not fit `worker_memory`.

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
    for name, value in (("rows", rows), ("columns", columns), ("worker_threads", worker_threads)):
        _check_count(name, value)
    if columns > MOST_COLUMNS:
        raise ParameterError(f"columns={columns:,} is more than {MOST_COLUMNS:,}: give the rows first, plan(rows, columns)")
    if workers is not None:
        _check_count("workers", workers)
    fit = _Fit(
        rows=int(rows),
        spec=_spec(int(rows), int(columns)),
        threads=int(worker_threads),
        limit=0 if worker_memory is None else parse_memory_limit(worker_memory, "worker_memory"),
    )
    needed = fit.needed(0)
    if needed > fit.limit:
        raise ParameterError(
            f"worker_memory of {format_bytes(fit.limit)} is too small for trees of {fit.spec.max_leaves} leaves over {columns} "
            f"columns with {worker_threads} threads: without any rows they take {format_bytes(needed)}"
        )
    return fit.on(fit.fewest() if workers is None else int(workers))


@dataclass(frozen=True, eq=False)
class _Fit:
    """A fit on workers of a given size, of any number."""

    rows: int
    spec: ShardSpec
    threads: int
    limit: int  # of a worker's memory

    @property
    def raw_row(self) -> int:
        """Bytes of a row's raw values."""
        return VALUE_BYTES * len(self.spec.layout.n_bins)

    def training(self, n_rows: int) -> int:
        """Return the bytes of a worker while trees grow, for `n_rows` rows."""
        return resident_bytes(self.spec, n_rows) + histogram_bytes(self.spec, self.threads)

    def loading(self, n_rows: int) -> int:
        """Return the bytes of a worker until the raw values are released: the largest of reading, sampling and encoding."""
        raw = n_rows * self.raw_row
        metadata = n_rows * 8
        # Each thread reads a partition, as far as there are so many, and a partition is never divided between workers.
        one = min(PARTITION_BYTES, self.rows * self.raw_row) if n_rows else 0
        reading = 2 * min(self.threads * one, max(raw, one))
        sampling = self.sample_bytes * n_rows // self.rows
        encoding = n_rows * (len(self.spec.layout.n_bins) + 16)
        freed = min(raw, TRIM_BYTES)
        return min(raw, RETAIN_BYTES, self.spare.retained) + metadata + max(reading, sampling, encoding) + freed

    @property
    def sample_bytes(self) -> int:
        """The sample from which split points are proposed; the values exist twice."""
        return 2 * 8 * min(self.rows, SAMPLE_ROWS + SAMPLE_ROWS // 8) * len(self.spec.layout.n_bins)

    @property
    def spare(self) -> Budget:
        """The memory that a worker may use before Dask spills."""
        return Budget(max(int(self.limit * TARGET_FRACTION) - PROCESS_BYTES, 1))

    def needed(self, n_rows: int) -> int:
        """Return the memory limit with which a worker keeps that many rows in memory, and is not paused."""
        # As `Budget.holds_rows`: a quarter of the budget stays free.
        keeps = (PROCESS_BYTES + self.training(n_rows) / 0.75) / TARGET_FRACTION
        return math.ceil(max(keeps, (PROCESS_BYTES + self.loading(n_rows)) / PAUSE_FRACTION))

    def share(self, workers: int) -> int:
        return -(-self.rows // workers)

    def fewest(self) -> int:
        """Return the smallest number of workers that keep the rows in memory."""
        low, high = 0, 1
        while self.needed(self.share(high)) > self.limit:
            low, high = high, 2 * high
            if low >= self.rows:
                raise ParameterError(
                    f"worker_memory of {format_bytes(self.limit)} is too small: {self.threads} partitions of "
                    f"{format_bytes(PARTITION_BYTES)}, one for each of worker_threads, exceed it"
                )
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.needed(self.share(middle)) > self.limit else (low, middle)
        return high

    def round_seconds(self, workers: int) -> float:
        """Return the seconds of a round for messages and the scheduler's work; 0 in one process."""
        spec = self.spec
        n_bytes = LEAVES_PER_ROUND * spec.n_channels * 4 * int(spec.layout.offset[-1])
        fan_in = min(FAN_IN, workers)
        levels = max(math.ceil(math.log(workers) / math.log(FAN_IN)), 1)
        messages = levels * (2 * LATENCY + fan_in * (2 * MESSAGE_SECONDS + n_bytes * BYTE_SECONDS))
        # Wide histograms are reduced by feature, in groups of workers.
        group = min(math.sqrt(workers * FAN_IN / 2), workers)
        calls = levels * (2 * LATENCY + 2 * fan_in * MESSAGE_SECONDS)
        slices = 3 * LATENCY + (2 * group + workers / group) * MESSAGE_SECONDS
        slices += (1 + workers / group**2) * n_bytes * BYTE_SECONDS
        return ROUND_SECONDS + min(messages, calls + slices)

    def on(self, workers: int) -> Plan:
        """Return the plan for a number of workers."""
        from dboost.distributed.rebalance import is_for_one_worker, is_held  # which imports Dask

        spec, columns = self.spec, len(self.spec.layout.n_bins)
        # One worker trains on a small table, whatever the number of workers.
        n_values = self.rows * columns
        is_small = is_for_one_worker(n_values, 1, self.threads, workers) and is_held(n_values, self.limit)
        is_alone = workers == 1 or is_small
        share = self.rows if is_alone else self.share(workers)
        raw = share * self.raw_row
        needed = self.needed(share)
        in_memory = needed <= self.limit
        added = max(self.training(share), self.loading(share)) if in_memory else self.spare.limit
        spooled = max(raw - min(RETAIN_BYTES, self.spare.retained), 0)
        speed = self.threads * DOUBLING_EFFICIENCY ** math.log2(self.threads)
        # Best-first and depth-wise trees of any size visit each row about once per level.
        leaves = (1 + math.log2(spec.max_leaves) / 2) / (1 + math.log2(CELL_LEAVES) / 2)
        of_tree = share * columns * CELL_SECONDS * leaves / speed
        rounds = 0.0 if is_alone else ROUNDS * self.round_seconds(workers)
        return Plan(
            rows=self.rows,
            columns=columns,
            iterations=ITERATIONS,
            leaves=spec.max_leaves,
            workers=workers,
            threads=self.threads,
            memory=resident_bytes(spec, self.rows),
            memory_added=added,
            memory_per_worker=needed if in_memory else self.limit,
            in_memory=in_memory,
            disk_per_worker=spooled + (0 if in_memory else share * spec.bytes_per_row()),
            client_memory=self.sample_bytes,
            loading_minutes=share * columns * LOAD_SECONDS / speed / 60,
            training_minutes=ITERATIONS * (of_tree + rounds) / 60,
        )


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
