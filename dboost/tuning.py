"""Sizes, counts and names that decide how a result is computed, not which: only `bin_sample_rows` changes models.

Every field of `Tuning` is a trade-off between speed, memory and latency. Users need none of them: they set `memory_limit`,
`n_threads` and Dask's configuration (`dboost.config`, which imports Dask and is read by `DASK_DBOOST__…` variables). Tests and
experiments change the record with `tuned`, so that small tables take the path of large ones.

A process has one record, which all its threads see. A fit on a cluster sends the record of the client's process to its workers
with the plan of each table that they read (`for_workers`, `adopt`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

_UNLIMITED = 2**62


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Sizes, counts and names; see the module."""

    # Threads.

    #: Cells (rows times features) below which one thread is faster than two.
    small_cells: int = 400_000
    #: Products of rows and trees for each thread of a prediction; below this, starting the thread takes longer than its work.
    row_trees_per_thread: int = 100_000
    #: Folds of a cross-validation that are fitted at the same time: each one has a thread and rows in memory.
    folds_at_once: int = 32
    #: Threads of a worker for the calls of fits, i.e. fits whose calls run there at the same time.
    worker_threads: int = 16

    # Growing trees.

    #: Name of what grows trees, see `trees.growers`.
    grower: str = "cpu"

    # Rows in memory and in files.

    #: Most rows that one process trains on in memory: numbers of rows have 32 bits.
    session_rows: int = 2**32
    #: Most rows that stay in memory in a fit with a memory limit. No limit beside that one; 0 streams every table.
    resident_rows: int = _UNLIMITED
    #: Most bytes of chunks, later of evaluation sets, that stay in memory in a fit with a memory limit.
    retained_bytes: int = _UNLIMITED
    #: Most bytes of a chunk in a fit with a memory limit.
    chunk_bytes: int = _UNLIMITED
    #: Rows of a block of a file: enough that Python's overhead is negligible, few enough that codes stay in the cache.
    block_rows: int = 65_536
    #: Fewest rows of a block of arcbites, which are read one after another.
    least_bite_block_rows: int = 256
    #: Bytes of files below which no block is cached in memory: the page cache of the operating system has them.
    cached_file_bytes: int = 32 * 2**20
    #: Most blocks of a file that each thread keeps in memory between passes.
    cached_blocks: int = _UNLIMITED
    #: Most trees of an iteration that grow in the same passes over files.
    trees_per_pass: int = _UNLIMITED
    #: Values (rows times features) from which root histograms follow from those of the iteration before; below, sums are fast.
    steady_values: int = 2**20
    #: Bytes of gradients and histograms of trees that a worker without a memory limit grows at the same time.
    tree_bytes: int = 128 * 2**20
    #: Bytes of a message in which a session hands rows to the session of its host.
    hand_over_bytes: int = 64 * 2**20

    # Binning.

    #: Rows from which split points are proposed: the rank error is 0.3 % with probability 95 %.
    bin_sample_rows: int = 200_000
    #: Bytes of sampled values at a time, without a memory limit.
    sampled_bytes: int = 256 * 2**20

    # Reading.

    #: Bytes of a partition of Parquet files and of streams without a memory limit.
    partition_bytes: int = 128 * 2**20
    #: Fewest rows of a partition of a table in memory that is sent to workers.
    least_partition_rows: int = 5_000
    #: Bytes of a block of a CSV file, which is parsed by one thread.
    csv_block_bytes: int = 32 * 2**20
    #: Fewest bytes of such a block with a memory limit: each one is opened and parsed on its own.
    least_csv_block_bytes: int = 2**20
    #: Rows of a CSV file from which the types of its columns are guessed; later blocks may correct them.
    csv_sample_rows: int = 1000
    #: Bytes up to which a data file of Delta Lake or Iceberg is one partition, whose footer need not be read in advance.
    small_file_bytes: int = 16 * 2**20
    #: Bytes of a partition of a stream that is stored for several passes.
    stored_partition_bytes: int = 16 * 2**20
    #: Bytes up to which a stream is a table in memory, not in files.
    stream_in_memory_bytes: int = 64 * 2**20
    #: Bytes of partitions that are on their way to workers at the same time.
    wave_bytes: int = 128 * 2**20
    #: Bytes of a part of a data set that one process writes: with a memory limit, several exist while one is decoded.
    part_bytes: int = 2**20
    #: Fewest rows of such a part, whatever its bytes: each column of a part takes 0.1 ms to read.
    least_part_rows: int = 2**13
    #: Bytes of a batch of a stream that is predicted or explained.
    batch_bytes: int = 32 * 2**20

    # Prediction.

    #: Bytes of a dense block of rows of a sparse matrix.
    dense_block_bytes: int = 8 * 2**20
    #: Bytes of raw scores of all iterations that are computed in one pass over a sparse matrix.
    staged_bytes: int = 64 * 2**20
    #: Most leaves of a tree of which a table of bit masks is made.
    mask_leaves: int = 4_096
    #: Most 64-bit words of all such tables of a model.
    mask_words: int = 2**24

    # Clusters.

    #: Losses of workers without progress after which a fit fails.
    losses_without_progress: int = 10
    #: Seconds between two events with the number of partitions that have been read.
    event_seconds: float = 0.25
    #: Timeout of the connection to a scheduler, as Dask writes durations.
    connect_timeout: str = "20s"


_DEFAULT = Tuning()
_current = _DEFAULT
#: Whether `tuned` was ever used in this process, which then knows better than what clients send.
_is_tuned_here = False


def tuning() -> Tuning:
    """Return the record of this process. Read it once for a call or an object, not for each row."""
    return _current


@contextmanager
def tuned(**changes: Any) -> Iterator[Tuning]:
    """Change fields of the record within the context, in all threads of the process."""
    global _current, _is_tuned_here
    before, _is_tuned_here = _current, True
    _current = replace(before, **changes)
    try:
        yield _current
    finally:
        _current = before


def for_workers() -> Tuning | None:
    """Return what a client sends to workers: its record, None for that of all processes by default."""
    return None if _current == _DEFAULT else _current


def adopt(sent: Tuning | None) -> None:
    """Use the record of a client from now on: in a worker's process, not where `tuned` is used."""
    global _current
    if not _is_tuned_here:
        _current = sent or _DEFAULT
