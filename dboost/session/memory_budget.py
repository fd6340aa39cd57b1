"""What a fit may add to the memory of its process, and how that is divided.

``memory_limit`` is a promise about peaks, so it is divided beforehand among the things that exist at the same time:

    while the data are read     a partition at a time (it exists twice: as it came and as plain columns), chunks that wait
                                in memory for the next step, the sample that proposes split points
    while trees grow            the rows, or two rooms for a block of rows for each thread; histograms of open leaves; as
                                many blocks of rows as can stay, with a quarter of the limit left free

When the rows fit beside the histograms they stay in memory, and else they go to files (`shards.block_store`). Both ways lead to
the same model. Code that is loaded or compiled for the first time is not counted: that is a constant, of about 150 MiB in a
process that has done nothing yet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.data import ReadOptions
from dboost.data.binning import SAMPLE_ROWS
from dboost.errors import DataError, ParameterError
from dboost.params import Parameters
from dboost.shards.bin_layout import NARROW_BINS, plan_layout
from dboost.shards.shard_spec import ShardSpec

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_memory_limit(given: Any) -> int | None:
    """Bytes from a number or a text like "2GiB", "512 MB" or "1.5g"; None for none.

    Raises
    ------
    ParameterError
    """
    if given is None:
        return None
    wrong = ParameterError(f"memory_limit={given!r} must be a positive number of bytes or a size like '2GiB' or '512MB'")
    if isinstance(given, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", given.lower())
        if match is None or match[2] not in _UNITS:
            raise wrong
        n_bytes = int(float(match[1]) * _UNITS[match[2]])
    elif isinstance(given, bool) or not isinstance(given, int | float | np.integer) or not given < 2**60:
        raise wrong
    else:
        n_bytes = int(given)
    if n_bytes < 1:
        raise wrong
    return n_bytes


def format_bytes(n_bytes: float) -> str:
    """A number of bytes for a sentence."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}" if n_bytes < 1000 * size else f"{n_bytes / size:.0f} {unit}"
    return f"{n_bytes / 2**10:.0f} KiB"


@dataclass(frozen=True)
class Budget:
    """A limit in bytes, and its parts."""

    limit: int

    def __str__(self) -> str:
        return format_bytes(self.limit)

    @property
    def retained(self) -> int:
        """Chunks that may wait in memory; later, held-out rows that may be judged there."""
        return self.limit // 8

    @property
    def chunk(self) -> int:
        """The largest chunk: it may exist twice, and half the limit is for other things."""
        return self.limit // 4

    @property
    def reserve(self) -> int:
        """What is left free while trees grow: evaluation sets may take half of it, and allocators waste some."""
        return self.limit // 4

    @property
    def sampled(self) -> int:
        """Sampled values at a time."""
        return self.limit // 4

    def columns_at_once(self, n_rows: int) -> int:
        """From how many columns at a time the sample is drawn: its values exist twice."""
        return int(max(self.sampled // (16 * min(n_rows, SAMPLE_ROWS + SAMPLE_ROWS // 8)), 1))

    def holds_rows(self, spec: ShardSpec, n_rows: int, n_threads: int) -> bool:
        """Whether the rows may stay in memory."""
        return resident_bytes(spec, n_rows) + histogram_bytes(spec, n_threads) + self.retained <= self.limit

    def holds_table(self, n_rows: int, n_bins: np.ndarray, n_outputs: int, parameters: Parameters, n_threads: int) -> bool:
        """The same before anything is known of bins but their largest numbers, for the worst of all losses."""
        leaves = parameters.max_leaf_nodes or max(n_rows // parameters.min_samples_leaf, 1)
        layout = plan_layout(n_bins, np.zeros(len(n_bins), bool))
        spec = ShardSpec(
            layout=layout,
            bin_layout=layout,
            n_outputs=n_outputs,
            weighted=True,
            integer_weights=True,
            constant_hessian=False,
            weights_as_hessian=parameters.criterion == "gradient",
            max_leaves=min(leaves, 1 << min(parameters.max_depth or 40, 40)),
            n_channels=3,
            loss_unit=1.0,
        )
        return self.holds_rows(spec, n_rows, n_threads)

    def histograms(self, spec: ShardSpec, n_rows: int, n_threads: int) -> int:
        """What is left for histograms beside the rooms of streamed rows.

        Raises
        ------
        ParameterError
            When that is too little for a tree.
        """
        rooms = n_threads * spec.room_bytes(n_rows)
        least = rooms + histogram_bytes(spec, n_threads)
        if least > self.limit:
            raise ParameterError(
                f"memory_limit of {format_bytes(self.limit)} is too small for trees of {spec.max_leaves} leaves over "
                f"{len(spec.layout.n_bins)} features: it would take {format_bytes(least)} with {n_threads} threads"
            )
        return self.limit - rooms


class MemoryReservation:
    """Counts what held-out rows take that are judged in memory, of the room that there is for all sets together."""

    def __init__(self, n_bytes: int) -> None:
        self._left = n_bytes

    def take(self, n_bytes: int) -> bool:
        """Whether there is so much room left, which is then taken."""
        if n_bytes > self._left:
            return False
        self._left -= n_bytes
        return True


#: Rows of one shard in memory: their numbers have 32 bits while a tree grows (`kernels.histograms`).
MOST_ROWS = 2**32


def check_rows_in_memory(n_rows: int) -> None:
    """Raise DataError when one shard cannot number so many rows."""
    if n_rows > MOST_ROWS:
        raise DataError(
            f"{n_rows:,} rows in one part of the memory are more than the {MOST_ROWS:,} whose numbers fit 32 bits: set "
            "a memory_limit that they do not fit, so that they are streamed from files, or train on more workers"
        )


def limit_that_streams(
    asked: Budget | None, spare: Budget | None, spec: ShardSpec, n_rows: int, n_there: int, n_threads: int
) -> Budget | None:
    """The limit that so many more rows do not fit, so that they have to be streamed; None where they may stay in memory.

    Where nobody has asked for a limit it is what the process may take anyway (`spare`). If that does not even hold a tree's
    histograms the rows stay in memory: nobody has promised anything.

    Raises
    ------
    ParameterError
        When the limit that was asked for does not hold a tree's histograms.
    """
    budget = asked or spare
    if budget is None or budget.holds_rows(spec, n_rows + n_there, n_threads):
        return None
    try:
        budget.histograms(spec, n_rows, n_threads)
    except ParameterError:
        if asked is not None:
            raise
        return None
    return budget


def resident_bytes(spec: ShardSpec, n_rows: int) -> int:
    """What rows take in memory: the fields of the files, their codes once more as columns, and two records."""
    n_narrow = int((spec.layout.n_bins <= NARROW_BINS).sum())
    return n_rows * (spec.bytes_per_row() + n_narrow + 16)


def histogram_bytes(spec: ShardSpec, n_threads: int) -> int:
    """Histograms of all leaves of a tree, and of one more that is being added up by each thread."""
    histogram_bytes = 8 * spec.n_channels * int(spec.layout.offset[-1])
    return histogram_bytes * (spec.max_leaves + 1 + n_threads) + n_threads * 8 * int(spec.layout.start[-1])


def check_proposal(budget: Budget | None, parameters: Parameters) -> None:
    """Refuse split proposals that want more than bins of one byte.

    Raises
    ------
    ParameterError
    """
    if budget is not None and parameters.split_proposal != "global":
        raise ParameterError(
            f"split_proposal={parameters.split_proposal!r} cannot keep a memory_limit: leave one of them out, or use 'global'"
        )


def reading_within(budget: Budget | None, n_threads: int) -> ReadOptions:
    """Return the options of `open_table`; with a budget it reads one partition at a time."""
    if budget is None:
        return ReadOptions(n_threads)
    return ReadOptions(1, budget.retained, budget.chunk, spool_roles=True)
