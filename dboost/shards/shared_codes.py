"""Bin codes that the fits of several folds share in one process.

A fold of a cross-validation trains on most rows, so five folds would have five copies of nearly the same codes. The folds of a
group share one copy. Its rows are ordered by *part* (`session.row_samples.FoldRows`): rows of a part have the same use in each
fold, so each fold trains on a few segments of consecutive rows. Targets, scores and gradients are the fold's own, in the same
order; those of the rows that a fold does not train on are never written, so they take no memory.

`shared_codes` returns the codes of a group in this process. The first fit that calls it makes them, and they are released with
the last fit that uses them.

**Buffers for growing trees.** While a tree grows, it needs 16 bytes for each row. The fits that share codes also share these
buffers: as many trees grow at the same time as there are threads for, each in buffers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from dboost.kernels.bins import fill_tiles
from dboost.shards.encode import in_ranges
from dboost.shards.shard import BinnedColumns, RowIds, RowSegments, spec_in_memory
from dboost.shards.shard_spec import ShardSpec
from dboost.storage.row_store import RowStore


class SharedCodes:
    """Bin codes of some rows, ordered by part.

    Parameters
    ----------
    codes : BinnedColumns
        In the order of the table; they are reordered in place.
    part : uint8[n_rows]
        Part of each row, in the order of the table.
    spec : ShardSpec
    n_growing : int
        Number of trees that may grow at the same time.
    n_threads : int
        Threads that fill the tiles.

    Attributes
    ----------
    fields : dict
        Codes by columns and in tiles, see `ShardSpec.groups`.
    order : uint32[n_rows]
        Position of each row in the table.
    building : Lock
        Held while the other fields of a fold are made.
    """

    def __init__(self, codes: BinnedColumns, part: np.ndarray, spec: ShardSpec, n_growing: int, n_threads: int) -> None:
        by_part = np.argsort(part, kind="stable")
        self.order, self._part_ends = by_part.astype(np.uint32), np.cumsum(np.bincount(part))
        for columns in (codes.narrow, codes.wide):
            for column in columns:
                column[:] = column[by_part]
        given = {"narrow": codes.narrow, "wide": codes.wide}
        own = spec_in_memory(given, spec)
        self.fields = RowStore(own.groups(in_memory=True)[:1], [codes.n_rows], arrays=given).load()
        as_bytes, layout, row_of = self.fields["tiles"].view(np.uint8), own.bin_layout, codes.row_of
        in_ranges(lambda *of: fill_tiles(codes.narrow, layout, row_of, *of, as_bytes), codes.n_rows, n_threads)
        self.building = Lock()
        self._slots, self._free = BoundedSemaphore(n_growing), dict[Hashable, list[Any]]()
        self._lending = Lock()

    def segments(self, is_trained: np.ndarray, ids: RowIds) -> RowSegments:
        """Return the rows that a fold trains on.

        is_trained : whether it trains on the rows of a part, bool[n_parts]; ids : of these rows, in the order of the table.
        """
        found: list[tuple[int, int]] = []
        begin = 0
        for part, end in enumerate(self._part_ends.tolist()):
            if is_trained[part] and end > begin:
                joins = bool(found) and found[-1][1] == begin
                found.append((found.pop()[0] if joins else begin, end))
            begin = end
        return RowSegments(found, self.order, ids)

    @contextmanager
    def buffers(self, shape: Hashable, make: Callable[[], Any]) -> Iterator[Any]:
        """Lend buffers for a growing tree; wait while too many trees grow.

        shape : what the sizes of the buffers follow from, which differs between folds of few and of many rows. Free buffers of
        another shape make room for new ones, which `make` returns.
        """
        with self._slots:
            lent = self._take(shape)
            lent = make() if lent is None else lent
            try:
                yield lent
            finally:
                with self._lending:
                    self._free.setdefault(shape, []).append(lent)

    def _take(self, shape: Hashable) -> Any:
        """Return free buffers of this shape; release others and return None if there are none."""
        with self._lending:
            for others in (self._free.get(shape), *self._free.values()):
                if others:
                    taken = others.pop()
                    return taken if others is self._free.get(shape) else None
        return None


_in_use: WeakValueDictionary[Hashable, SharedCodes] = WeakValueDictionary()
_making = Lock()


def shared_codes(key: Hashable, make: Callable[[], SharedCodes]) -> SharedCodes:
    """Return the codes of this key that some fit of this process uses; make them if there are none."""
    with _making:
        found = _in_use.get(key)
        if found is None:
            found = _in_use[key] = make()
        return found
