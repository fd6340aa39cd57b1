"""Root histograms of trees of losses with steady gradients, which follow from those of the trees before.

Where the loss is linear on both sides of the target, gradients change only where a score passes the target: in an iteration,
0.3 to 2 % of the rows of a median. So the root histogram of such a tree is that of the tree before, plus what these rows change
in it (`add_changes`). Fits of the absolute error and of quantiles take an eighth to a fifth less time, on tables of 28 columns
and 50,000 to 400,000 rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dboost.kernels import kernel, or_empty
from dboost.kernels.exp_log import ROUNDER
from dboost.kernels.histograms import BinLayout, Histograms, add_records, flush
from dboost.kernels.rows import STRIPE, quantise
from dboost.kernels.threads import Team
from dboost.rows.shard import Shard
from dboost.trees.tree_task import TreeTask

U = np.uint64
I = np.int64  # noqa: E741


@dataclass(eq=False)
class _Root:
    """The root histogram of the last tree of an output."""

    sums: np.ndarray  # float64[n_channels, n_buckets]
    known: np.ndarray  # int16[n_rows]: the quantised gradients in it
    hessian_scale: float  # of the Hessians in it


class SteadyRoots:
    """The root histograms of the last trees of a shard, whose rows all take part in every tree."""

    def __init__(self, shard: Shard, team: Team) -> None:
        self._shard, self._team = shard, team
        self._roots: dict[int, _Root] = {}  # by output

    def root(self, task: TreeTask) -> np.ndarray:
        """Return the root histogram of the next tree of an output: float64[n_channels, n_buckets]."""
        shard, layout = self._shard, self._shard.tree_layout
        gradient, hessian, _ = shard.output_arrays(task.output)
        # Without one that is half changed, should this be interrupted.
        before = self._roots.pop(task.output, None)
        is_first = before is None or before.hessian_scale != task.scales[1]
        if before is None or is_first:
            none = np.zeros((shard.spec.n_channels, int(layout.offset[-1])))
            before = _Root(none, np.zeros(shard.n_rows, np.int16), float(task.scales[1]))
        sums, known = before.sums, before.known
        added = layout, task.packing if is_first else task.packing._replace(row=0)
        hessians = or_empty(hessian, "float32")

        def work(thread: int) -> np.ndarray:
            scratch, changes, rows = new_change_scratch(layout), np.zeros_like(sums), shard.histogram_rows
            histograms = Histograms(changes[None], None)
            for part in shard.ranges(thread, self._team.n_threads):
                add_changes(rows, gradient, hessians, task.scales, known, is_first, part, added, scratch, histograms)
            return changes

        for changes in self._team.run(work):
            sums += changes
        self._roots[task.output] = before
        return sums


class ChangeScratch(NamedTuple):
    """Scratch of `add_changes`."""

    gradient: np.ndarray  # int16[STRIPE]
    records: np.ndarray  # uint64[2 * STRIPE]
    packed: np.ndarray  # int64[words]: packed buckets of all columns
    codes: np.ndarray  # int64[n_codes]


def new_change_scratch(layout: BinLayout) -> ChangeScratch:
    words, n_codes = int(layout.start[-1]), int(layout.n_bins.max()) + 1
    return ChangeScratch(
        np.empty(STRIPE, np.int16), np.empty(2 * STRIPE, np.uint64), np.empty(words, np.int64), np.empty(n_codes, np.int64)
    )


#: Rows that `add_changes` compares together.
_COMPARED = 16


@kernel
def add_changes(rows, gradient, hessian, scales, known, is_first, part, layout_and_packing, scratch, histograms):
    """Add to a histogram of all rows what the gradients of rows part[0]…part[1]-1 have changed since the last call.

    rows : HistogramRows; gradient, hessian, scales : as in `rows.quantise`, Hessians and their scale are those of the last
    call; known : int16[n_rows], the quantised gradients in the histogram, updated; is_first : whether the histogram has none of
    these rows, which are added then; layout_and_packing : (BinLayout, Packing), without counts unless `is_first`; scratch :
    ChangeScratch; histograms : Histograms, whose first slot is added to.

    A row that has changed is added with its new gradient, and with its old one's negative: the difference has 17 bits.
    """
    layout, packing = layout_and_packing
    g_scale, columns = np.float32(scales[0]), (I(0), I(layout.first.size - 1))
    records, packed = scratch.records, scratch.packed
    for k in range(packed.size):
        packed[k] = 0
    pending, flushed = I(0), I(1)
    for first in range(part[0], part[1], STRIPE):
        last = first + STRIPE if first + STRIPE < part[1] else part[1]
        slopes, now, before, n = gradient[first:last], scratch.gradient[: last - first], known[first:last], U(0)
        for i in range(now.size):
            now[i] = np.int32((slopes[i] * g_scale + ROUNDER) - ROUNDER)
        if is_first:
            n = U(now.size)
            quantise(gradient, hessian, records[:0], scales, first, last, records)
        else:
            for start in range(0, now.size, _COMPARED):
                stop, differs = now.size, np.int32(1)
                if start + _COMPARED <= now.size:
                    stop, differs = start + _COMPARED, np.int32(0)
                    for i in range(_COMPARED):  # of known length: one comparison of vectors
                        differs |= np.int32(now[U(start + i)]) ^ np.int32(before[U(start + i)])
                if differs == 0:
                    continue
                for i in range(start, stop):
                    new, old = np.int32(now[i]), np.int32(before[i])
                    records[n] = (U(np.uint32(new << np.int32(16))) << U(32)) | U(first + i)
                    records[n + U(1)] = (U(np.uint32(-old << np.int32(16))) << U(32)) | U(first + i)
                    n += U(2) * U(new != old)
        for i in range(now.size):
            before[i] = now[i]
        pending, flushed = add_records(
            rows, records[: I(n)], layout, packing, columns, packed, histograms, I(0), (pending, flushed), scratch.codes
        )
    flush(layout, packing, columns, I(0), packed, histograms, I(0), flushed == 0, scratch.codes)


def set_root(histograms: Histograms, root: np.ndarray, layout: BinLayout) -> None:
    """Write a root histogram (float64[n_channels, n_buckets]) into the first slot, which the root has."""
    if histograms.by_channel is not None:
        histograms.by_channel[0] = root
    if histograms.packed is not None:
        gradient, hessian = root[:2].astype(np.int64)
        histograms.packed.sums[0] = _packed_sums((gradient << 32) + hessian, layout)
        if histograms.packed.counts.size:
            histograms.packed.counts[0] = _packed_sums(root[2].astype(np.int64), layout)


def _packed_sums(buckets: np.ndarray, layout: BinLayout) -> np.ndarray:
    """Return the sums of the buckets of each numeric feature up to each of them, and the buckets of categorical ones."""
    sums, first = buckets.cumsum(), layout.offset[:-1]
    prefix = sums - np.repeat(sums[first] - buckets[first], np.diff(layout.offset))
    return np.where(np.repeat(layout.is_categorical, np.diff(layout.offset)), buckets, prefix)
