"""Bin codes that the fits of several folds share in one process.

A fold of a cross-validation trains on most rows, so five folds would have five copies of nearly the same codes. The folds of a
group share one copy. Its rows are ordered by *part* (`session.row_samples.FoldRows`): rows of a part have the same use in each
fold, so each fold trains on a few segments of consecutive rows. Scores and gradients are the fold's own, in the same order;
those of the rows that a fold does not train on are never written, so they take no memory. Targets and weights, which mostly do
not depend on the fold, are shared where they are the same (`SharedCodes.values`). The rows that a fold holds out are mostly one
part, whose codes are consecutive, too (`SharedCodes.first_of`).

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
from dboost.rows.encode import in_ranges
from dboost.rows.row_store import RowStore
from dboost.rows.shard import BinnedColumns, RowIds, RowSegments, spec_in_memory
from dboost.rows.shard_spec import ShardSpec


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
        Codes by columns and in tiles, see `ShardSpec.field_groups`.
    order : uint32[n_rows]
        Position of each row in the table.
    building : Lock
        Held while the other fields of a fold are made.
    """

    def __init__(self, codes: BinnedColumns, part: np.ndarray, spec: ShardSpec, n_growing: int, n_threads: int) -> None:
        by_part = np.argsort(part, kind="stable")
        self.order, self._part_ends = by_part.astype(np.uint32), np.cumsum(np.bincount(part)).tolist()
        for columns in (codes.narrow, codes.wide):
            for column in columns:
                column[:] = column[by_part]
        codes_by_name = {"narrow": codes.narrow, "wide": codes.wide}
        own_spec = spec_in_memory(codes_by_name, spec)
        self.fields = RowStore(own_spec.field_groups(in_memory=True)[:1], [codes.n_rows], arrays=codes_by_name).load()
        as_bytes, layout, row_of = self.fields["tiles"].view(np.uint8), own_spec.tree_layout, codes.row_of
        in_ranges(lambda *row_range: fill_tiles(codes.narrow, layout, row_of, *row_range, as_bytes), codes.n_rows, n_threads)
        self.building = Lock()
        #: Values of rows that folds share, by name, and whether those of a part are known, bool[n_parts].
        self._values: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._slots, self._free = BoundedSemaphore(n_growing), dict[Hashable, list[Any]]()
        self._lending = Lock()

    def segments(self, is_trained: np.ndarray, ids: RowIds) -> RowSegments:
        """Return the rows that a fold trains on.

        is_trained : whether it trains on the rows of a part, bool[n_parts]; ids : of these rows, in the order of the table.
        """
        joined: list[tuple[int, int]] = []
        for begin, end in self._rows_of(is_trained):
            joins = bool(joined) and joined[-1][1] == begin
            joined.append((joined.pop()[0] if joins else begin, end))
        return RowSegments(joined, self.order, ids)

    def _rows_of(self, parts: np.ndarray) -> list[tuple[int, int]]:
        """Return the first row and the last row + 1 of each of some parts (bool[n_parts]) with rows."""
        bounds = zip([0, *self._part_ends], self._part_ends, parts.tolist(), strict=False)
        return [(begin, end) for begin, end, is_one in bounds if is_one and begin < end]

    def values(self, name: str, fold_values: np.ndarray, is_trained: np.ndarray) -> np.ndarray:
        """Return an array with the values of a fold that all folds share, or `fold_values` if other folds have other values.

        fold_values : [..., n_rows], the values of the rows that the fold trains on, in the order of the rows.
        is_trained : whether it trains on the rows of a part, bool[n_parts]. Call it while `building` is held.
        """
        array, is_known = self._values.setdefault(name, (fold_values, is_trained.copy()))
        if array is fold_values:
            return fold_values
        known, new = self._rows_of(is_trained & is_known), self._rows_of(is_trained & ~is_known)
        if array.dtype != fold_values.dtype or array.shape != fold_values.shape:
            return fold_values
        if not all(np.array_equal(array[..., a:b].view(np.uint8), fold_values[..., a:b].view(np.uint8)) for a, b in known):
            return fold_values
        for a, b in new:
            array[..., a:b] = fold_values[..., a:b]
        is_known |= is_trained
        return array

    def first_of(self, positions: np.ndarray) -> int | None:
        """Return the first of the rows with these positions in the table (int64[n], ascending) if they are consecutive in this
        order, else None."""
        first = int(np.flatnonzero(self.order == positions[0])[0]) if len(positions) else 0
        return first if np.array_equal(self.order[first : first + len(positions)], positions) else None

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
        shared = _in_use.get(key)
        if shared is None:
            shared = _in_use[key] = make()
        return shared
