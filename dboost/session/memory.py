"""The memory that a fit may add to its process, its division, and memory that was freed.

``memory_limit`` bounds peak memory, so it is divided in advance among the objects that exist at the same time:

    while the data are read     one partition at a time (it exists twice: as it was read and as plain columns), chunks that
                                stay in memory until the next step, the sample from which split points are proposed
    while trees grow            the rows, or two buffers for a block of rows per thread; histograms of open leaves; as many
                                cached blocks as fit; in both cases a quarter of the limit is left free

**A limit that is far too small** is refused as early as it is certain, by one rule (`Budget.check_width`, `Budget.check_rows`):
before the data are read, if a tree over so many features cannot fit; after the first slice of them, if its values already
make histograms of more than `_FAR` times the limit; and exactly when all bins are known (`Budget.histograms`). Slices are
never smaller than `_LEAST_CHUNK`, so that reading does not take longer, the smaller the limit is.

Rows that fit beside the histograms stay in memory; otherwise they are stored in files (`session.training_rows`). Both give the
same model. Code that is loaded or compiled for the first time is not counted: it is a constant of about 150 MiB in a fresh
process.

**Freed memory while data are read.** Partitions are allocated and freed, and the C library keeps the freed memory: a worker
that had read 112 MiB in eight partitions kept another 112 MiB. Dask measures the size of the process and counts this as memory
in use. `trim_memory` calls glibc's ``malloc_trim``, after every `TRIM_BYTES` bytes read and when the raw values are dropped. A
call takes a few milliseconds.

**Freed memory while trees grow.** The opposite is better. Every round allocates and frees a few hundred KiB of histograms and
messages. If these were returned to the system each time, their pages would have to be cleared again.
``dboost.keep-freed-memory: true`` (default false) in the Dask configuration of a worker or scheduler, or
``DASK_DBOOST__KEEP_FREED_MEMORY`` in its environment, keeps up to `_KEPT` bytes of freed memory at the end of a heap. This
setting changes the allocator of the whole process permanently and replaces Dask's ``MALLOC_TRIM_THRESHOLD_``, so it is left to
the operator of the cluster.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dboost.data import ReadOptions
from dboost.errors import ParameterError
from dboost.params import Parameters
from dboost.rows.row_store import RowStore
from dboost.rows.shard_spec import MOST_OPENED, NARROW_BINS, ShardSpec, plan_layout
from dboost.trees.rounds_in_memory import BYTES_PER_ROW
from dboost.tuning import tuning

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_memory_limit(size: Any, name: str = "memory_limit") -> int:
    """Return bytes from a number or a text like "2GiB", "512 MB" or "1.5g". name : for the error.

    Raises
    ------
    ParameterError
        If the value is no positive size.
    """
    wrong = ParameterError(f"{name}={size!r} must be a positive number of bytes or a size like '2GiB' or '512MB'")
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", size.lower())
        if match is None or match[2] not in _UNITS:
            raise wrong
        n_bytes = int(float(match[1]) * _UNITS[match[2]])
    elif isinstance(size, bool) or not isinstance(size, int | float | np.integer) or not size < 2**60:
        raise wrong
    else:
        n_bytes = int(size)
    if not 1 <= n_bytes < 2**60:
        raise wrong
    return n_bytes


def format_bytes(n_bytes: float) -> str:
    """Return a number of bytes as text with a unit."""
    if n_bytes < 2**10:
        return f"{n_bytes:.0f} bytes"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}" if n_bytes < 1000 * size else f"{n_bytes / size:.0f} {unit}"
    return f"{n_bytes / 2**10:.0f} KiB"


#: Bytes of a slice of a partition, whatever the limit: smaller ones take longer to pass on than to read.
_LEAST_CHUNK = 2**18
#: Slices that a limit holds: one may exist twice, and half of the limit is for other objects.
_CHUNKS = 4
#: How many times the limit is exceeded by the histograms that the first slice makes, if it is refused.
_FAR = 2


class TreeNeeds(NamedTuple):
    """What decides the histograms of a fit before its data are read."""

    max_leaves: int  # as the parameters allow
    min_samples_leaf: int
    max_bins: int
    n_threads: int
    n_at_once: int = 1  # such fits at the same time, which divide the limit


@dataclass(frozen=True)
class Budget:
    """A limit in bytes, and its division."""

    limit: int
    #: Of the fit that reads its training data; None if no trees are grown on what is read.
    trees: TreeNeeds | None = None
    n_sharing: int = 1  # fits that the user's limit was divided among, of which this is one; for messages

    @classmethod
    def of(cls, memory_limit: Any, trees: TreeNeeds | None = None) -> Budget:
        """Return the budget for a value of ``memory_limit=``, see `parse_memory_limit`; a budget is returned as it is."""
        return memory_limit if isinstance(memory_limit, Budget) else cls(parse_memory_limit(memory_limit), trees)

    def on_threads(self, n_threads: int) -> Budget:
        """Return the budget of a process with this number of threads."""
        if self.trees is None:
            return self
        return replace(self, trees=self.trees._replace(n_threads=max(n_threads // self.trees.n_at_once, 1)))

    def check_width(self, n_features: int) -> None:
        """Raise ParameterError if a tree over so many features exceeds the limit, whatever their values.

        If no trees are grown: if slices of so many features exceed it by far.
        """
        if self.trees is not None:
            self._check(self.trees, np.full(n_features, self.trees.max_bins), np.ones(n_features, np.int64), 0, 1)
            return
        least = _CHUNKS * max(_LEAST_CHUNK, 8 * n_features)
        if least > _FAR * self.limit:
            raise ParameterError(
                f"memory_limit of {self} is too small to read and bin {n_features} features: it would take {_rounded_up(least)}"
            )

    def check_rows(self, n_values: np.ndarray, n_rows: int) -> None:
        """Raise ParameterError if histograms of the training rows exceed the limit by far.

        n_values : int64[n_features], number of values of each feature in the first `n_rows` rows.
        """
        if self.trees is not None:
            n_bins = np.minimum(n_values, self.trees.max_bins)
            self._check(self.trees, n_bins, n_bins, n_rows, _FAR)

    def _check(self, trees: TreeNeeds, n_bins: np.ndarray, least_bins: np.ndarray, n_rows: int, factor: int) -> None:
        """Raise ParameterError if `least_bins` make histograms of more than `factor` limits; it names what `n_bins` take."""
        n_leaves = max(min(trees.max_leaves, n_rows // trees.min_samples_leaf), 1)
        if trees.n_at_once * histogram_bytes(_spec_of(least_bins, n_leaves), trees.n_threads) > factor * self.limit:
            spec = _spec_of(n_bins, n_leaves if trees.max_leaves >= _UNBOUNDED_LEAVES else trees.max_leaves)
            least = trees.n_threads * spec.room_bytes(n_rows) + histogram_bytes(spec, trees.n_threads)
            raise _too_small(self.limit, spec, least, trees.n_threads, trees.n_at_once)

    def __str__(self) -> str:
        return format_bytes(self.limit)

    @property
    def read_options(self) -> ReadOptions:
        """Options of `read_table`: it reads one partition at a time."""
        return ReadOptions(1, self.retained, self.chunk, spool_roles=True, limit=self)

    @property
    def retained(self) -> int:
        """Bytes of chunks that may stay in memory; later, of evaluation sets in memory."""
        return min(self.limit // 8, tuning().retained_bytes)

    @property
    def chunk(self) -> int:
        """Largest chunk in bytes: it may exist twice, and half of the limit is for other objects."""
        return min(max(self.limit // _CHUNKS, _LEAST_CHUNK), tuning().chunk_bytes)

    @property
    def reserve(self) -> int:
        """Bytes left free while trees grow: for the last chunks, for evaluation sets (half), and for unused heap memory."""
        return self.limit // 4

    @property
    def sampled(self) -> int:
        """Bytes of sampled values at a time."""
        return self.limit // 4

    def holds_set(self, n_bytes: int) -> bool:
        """Return whether the rows of an evaluation set may stay in memory. n_bytes : of all sets there, with this one."""
        return n_bytes <= self.retained

    def block_rows_of_set(self, most: int, row_bytes: int, n_threads: int) -> int:
        """Return the rows of a block of an evaluation set in files: the blocks of all threads fit into the memory of sets."""
        n_rows = most
        while n_rows > _LEAST_BLOCK_ROWS and not self.holds_set(n_threads * n_rows * row_bytes):
            n_rows //= 2
        return n_rows

    def holds_rows(self, spec: ShardSpec, n_rows: int, n_threads: int) -> bool:
        """Return whether the rows may stay in memory; see `most_rows`."""
        return n_rows <= min(self.most_rows(spec, n_threads), tuning().resident_rows)

    def most_rows(self, spec: ShardSpec, n_threads: int) -> int:
        """Return how many rows may stay in memory, beside the chunks from which they are encoded."""
        return max(self.limit - self.reserve - histogram_bytes(spec, n_threads), 0) // resident_bytes(spec, 1)

    def histograms(self, spec: ShardSpec, n_rows: int, n_threads: int) -> int:
        """Return the bytes left for histograms beside the block buffers of streamed rows.

        Raises
        ------
        ParameterError
            If this is too little for a tree.
        """
        buffers = n_threads * spec.room_bytes(n_rows)
        least = buffers + histogram_bytes(spec, n_threads)
        if least > self.limit:
            raise _too_small(self.n_sharing * self.limit, spec, least, n_threads, self.n_sharing)
        return self.limit - buffers


#: Smallest number of rows of a block of an evaluation set.
_LEAST_BLOCK_ROWS = 1024
#: Leaves of trees that neither `max_leaf_nodes` nor `max_depth` bounds.
_UNBOUNDED_LEAVES = 2**20


def _spec_of(n_bins: np.ndarray, max_leaves: int) -> ShardSpec:
    """The properties of rows of which the histograms are smallest: one output, no weights, constant Hessians."""
    none = np.zeros(len(n_bins), bool)
    layout = plan_layout(n_bins, none, none)
    return ShardSpec(layout, layout, max_leaves)


def _too_small(limit: int, spec: ShardSpec, least: int, n_threads: int, n_fits: int = 1) -> ParameterError:
    """Return the error for a limit of some fits together. least : bytes that each of them needs."""
    fits = "" if n_fits == 1 else f" in each of {n_fits} fits at the same time"
    return ParameterError(
        f"memory_limit of {format_bytes(limit)} is too small for trees of {spec.max_leaves} leaves over "
        f"{len(spec.layout.n_bins)} features: it would take {_rounded_up(n_fits * least)} with {n_threads} "
        f"thread{'s' * (n_threads != 1)}{fits}"
    )


def _rounded_up(n_bytes: int) -> str:
    """Return a number of bytes as `format_bytes` does, but not less than it, so that it suffices as a limit."""
    unit = next((size for size in (2**30, 2**20, 2**10) if n_bytes >= size), 1)
    step = unit / (1 if unit <= 2**10 or n_bytes >= 100 * unit else 10 if n_bytes >= 10 * unit else 100)
    return format_bytes(math.ceil(n_bytes / step) * step)


def resident_bytes(spec: ShardSpec, n_rows: int) -> int:
    """Return the bytes of rows in memory: the fields of the files, their codes once more as columns, and two records."""
    n_narrow = int((spec.layout.n_bins <= NARROW_BINS).sum())
    return n_rows * (spec.bytes_per_row() + n_narrow + 16)


def histogram_bytes(spec: ShardSpec, n_threads: int) -> int:
    """Return the bytes of the histograms of all leaves of a tree, of one more, and of the partial sums of each thread."""
    return spec.node_bytes * (spec.max_leaves + 1 + n_threads) + n_threads * 8 * int(spec.layout.start[-1])


def check_proposal(parameters: Parameters) -> None:
    """Raise ParameterError, with a memory limit, if split proposals need fine bins, which do not fit one byte."""
    if parameters.split_proposal != "global":
        raise ParameterError(
            f"split_proposal={parameters.split_proposal!r} cannot keep a memory_limit: leave one of them out, or use 'global'"
        )


#: Bytes read between two calls of `malloc_trim`.
TRIM_BYTES = 64 * 2**20
#: Bytes of freed memory to keep at the end of a heap, and the size from which a freed array is returned to the system at once.
_KEPT, _LARGE = 64 * 2**20, 4 * 2**20
#: The parameters' numbers in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return None
    return trim


def trim_memory() -> None:
    """Return freed memory to the system; do nothing if the C library has no `malloc_trim`."""
    trim = _trim()
    if trim is not None:
        trim(0)


def keep_freed_memory() -> None:
    """Keep the memory that a round frees for the next round, if Dask's configuration enables it.

    Do nothing if the C library has no `mallopt`.

    Raises
    ------
    ParameterError
        If the configured value is neither true nor false.
    """
    from dboost import config  # imports Dask

    if not config.keep_freed_memory():
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        allocation = ctypes.CDLL(None).mallopt
        allocation(_M_TRIM_THRESHOLD, _KEPT)
        allocation(_M_MMAP_THRESHOLD, _LARGE)


class TrimCounter:
    """Call `trim_memory` after every `TRIM_BYTES` bytes read. Thread-safe."""

    def __init__(self) -> None:
        self._n_bytes = 0
        self._lock = threading.Lock()

    def add(self, n_bytes: int) -> None:
        with self._lock:
            self._n_bytes += n_bytes
            due = self._n_bytes >= TRIM_BYTES
            if due:
                self._n_bytes = 0
        if due:
            trim_memory()


def nodes_per_pass(spec: ShardSpec, n_bytes: int, n_threads: int) -> int:
    """Return how many nodes may be opened in one pass, with `n_bytes` of memory for histograms.

    Each thread has packed buckets and a histogram for each of them, and the summed histograms of leaves are kept.
    """
    kept = spec.node_bytes * spec.max_leaves  # a lower bound: speculation keeps more histograms
    each = n_threads * (spec.node_bytes + 8 * int(spec.layout.start[-1])) + spec.node_bytes
    return int(min(max((n_bytes - kept) // each, 1), max(spec.max_leaves, 1)))


def tree_bytes(spec: ShardSpec, width: int, n_threads: int) -> int:
    """Return the bytes of the histograms of a tree that grows over files, with `width` nodes opened in one pass."""
    # `kept`: summed histograms of all opened nodes, twice while the buffer grows. `each`: a node in one pass, threads and sum.
    kept = 2 * spec.node_bytes * spec.max_leaves * (MOST_OPENED if spec.speculates else 1)
    each = n_threads * (spec.node_bytes + 8 * int(spec.layout.start[-1])) + 2 * spec.node_bytes
    return kept + width * each


def most_trees_per_pass(spec: ShardSpec, n_bytes: int, width: int, n_threads: int) -> int:
    """Return how many trees of an iteration may grow in the same passes, with `n_bytes` of memory for histograms."""
    return min(max(n_bytes // tree_bytes(spec, width, n_threads), 1), spec.trees_per_iteration, tuning().trees_per_pass)


def trees_in_rounds(spec: ShardSpec, budget: Budget | None, n_rows: int, max_leaves: int) -> int:
    """Return how many trees of an iteration may share rounds.

    Each needs records of the rows in a session (`n_rows`, 0 for rows in files), and histograms in the reducer.
    """
    histograms = 2 * max_leaves * 16 * int(spec.tree_layout.offset[-1])
    limit = tuning().tree_bytes if budget is None else budget.limit // 16
    return max(limit // max(n_rows * BYTES_PER_ROW, histograms), 1)


def blocks_that_stay(store: RowStore, spec: ShardSpec, n_bytes: int, width: int, n_threads: int) -> int:
    """Return how many blocks of each thread may stay in memory, in addition to the histograms of `width` nodes."""
    limits = tuning()
    if sum(file.stride * file.n_blocks for file in store.files) < limits.cached_file_bytes:
        return 0
    spare = n_bytes - tree_bytes(spec, width, n_threads)
    return min(max(spare, 0) // (n_threads * sum(file.stride for file in store.files)), limits.cached_blocks)
