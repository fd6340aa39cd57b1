"""Arcbites in a session: random subsets of the rows, of which one at a time is trained on.

The rows are divided into *parts*; a bite is one part, or several of them (`ArcBites.parts`). The part of a row is a hash of the
seed and of the row's number among all training rows. Parts are therefore random subsets of the whole data, however these are
sorted, divided into partitions or spread over workers, and the rows of a partition that moves to another worker are found
without an index. If rows belong to groups, it is a hash of the group, so that a part has whole groups.

A `BiteStore` has the rows of one batch. It reads the table once, piece by piece, and appends each row to its part: a section of
a `rows.row_store.RowStore`, in memory or in files. A section has the codes, targets, weights and row ids of its rows, which
never change, and the scores *as of the start of the last visit*, with the number of iterations that these include. A visit
adds to the scores the iterations that have been kept since, and trains on a copy. So nothing has to be written back at the end
of a visit, whether its trees are kept, cut back, or lost with a worker: the next visit adds what is in the model by then. Leaf
values are added one by one in the order of the trees, which gives exactly the sums that the model's prediction computes.

A session has memory for one bite beside the stores: the rows of a visit are released before those of the next one are read. In
files, blocks are small enough that the buffers of all sections fit in memory while they are filled in one pass over the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from dboost.data import RowRoles
from dboost.rows.block_file import Field
from dboost.rows.encode import in_ranges
from dboost.rows.row_sample import BITES, derive_seed, hash_rows
from dboost.rows.row_store import FieldGroup, InFiles, RowRange, RowStore
from dboost.rows.shard import columns_among
from dboost.rows.shard_spec import ShardSpec, code_fields, rows_that_fit
from dboost.session.encoded_rows import EncodedStore, rows_in_memory
from dboost.session.fit_records import BuildSpec, SelectedRows
from dboost.session.memory import Budget
from dboost.session.table_rows import TableRows
from dboost.trees.apply_trees import add_trees
from dboost.trees.fit_trees import FitTree
from dboost.tuning import tuning

#: Number of rows that are hashed at a time.
_ROWS_AT_A_TIME = 1 << 20
#: Number of rows that are encoded at a time, for bites in memory.
_PIECE_ROWS = 65_536
Iterations = Sequence[Sequence[FitTree]]


def parts_of(seed: int, n_parts: int, row_ids: np.ndarray) -> np.ndarray:
    """Return the part of each row: int64[n] of 0…n_parts-1, from the global row ids, or the keys of groups (int64[n])."""
    # The upper half of the hash as a fraction of n_parts.
    return ((hash_rows(derive_seed(seed, BITES), row_ids) >> np.uint64(32)) * np.uint64(n_parts) >> np.uint64(32)).astype(
        np.int64
    )


def parts_with_rows(roles: RowRoles, seed: int, n_parts: int) -> np.ndarray:
    """Return which parts have rows of the groups of some rows: bool[n_parts]."""
    return np.bincount(parts_of(seed, n_parts, roles.group_keys), minlength=n_parts) > 0


def part_sizes(seed: int, n_parts: int, n_rows: int, first: int = 0) -> np.ndarray:
    """Return the number of rows of each part, for `n_rows` rows numbered from `first` on: int64[n_parts]."""
    sizes, last = np.zeros(n_parts, np.int64), first + n_rows
    for begin in range(first, last, _ROWS_AT_A_TIME):
        row_ids = np.arange(begin, min(begin + _ROWS_AT_A_TIME, last))
        sizes += np.bincount(parts_of(seed, n_parts, row_ids), minlength=n_parts)
    return sizes


class BiteStore:
    """The rows of a batch, divided into parts.

    Parameters
    ----------
    rows : TableRows
    spec : BuildSpec
    n_parts : int
        `BuildSpec.n_parts`.
    budget : Budget or None
        Memory limit that the rows exceed, so that they are in files; None for memory.
    n_threads : int
    root : Path, optional
        Parent of the files' folder; default: the one of `PrivateDirectory`.

    Attributes
    ----------
    spec : BuildSpec
    selected : SelectedRows or None
        The rows that are trained on; None before the first visit.
    """

    def __init__(
        self,
        rows: TableRows,
        spec: BuildSpec,
        n_parts: int,
        budget: Budget | None,
        *,
        n_threads: int,
        root: Path | None = None,
    ) -> None:
        self.spec, self._n_parts, self._n_threads = spec, n_parts, n_threads
        self._id_ranges = rows.id_ranges
        self.selected: SelectedRows | None = None
        #: Number of iterations of the fit that the scores of each part include.
        self._n_seen = [0] * n_parts
        self._bytes_before = 0
        #: Number of rows of each partition in each part.
        self._counts = {number: self._count(rows, number, n_kept) for number, n_kept in rows.owned.items()}
        groups, sizes = _fields(spec.shard_spec), self._sizes()
        place, piece_rows = None, _PIECE_ROWS
        if budget is not None:
            place = InFiles(_block_rows(groups, n_parts, budget.limit // 4), root)
            piece_rows = rows_that_fit(code_fields(spec.shard_spec.layout), sum(sizes))
        self._store = RowStore(groups, sizes, place)
        try:
            ids, first = rows.ids(), 0
            for fields in rows.starting.trained(spec, n_threads, min(piece_rows, max(sum(sizes), 1))):
                last = first + fields["raw"].shape[1]
                self._append(fields | {"row_ids": ids.of(first, last)})
                first = last
        except BaseException:
            self._store.close()
            raise

    def _append(self, fields: dict[str, np.ndarray]) -> None:
        """Add each row to its part."""
        parts = parts_of(self.spec.seed, self._n_parts, fields.get("draw_id", fields["row_ids"]))
        counts = np.bincount(parts, minlength=self._n_parts)
        if len(counts) <= 2**16:
            parts = parts.astype(np.uint16)  # sorted ten times as fast
        order = np.argsort(parts, kind="stable")
        ends = np.cumsum(counts)
        for part in np.flatnonzero(counts).tolist():
            n, end = int(counts[part]), int(ends[part])
            self._store.append(n, fields, order[end - n : end], part)

    def _count(self, rows: TableRows, number: int, n_rows: int) -> np.ndarray:
        """Return the number of rows of a partition in each part."""
        spec, start = self.spec, self._id_ranges.start(number)
        if not spec.shard_spec.has_draw_ids:
            return part_sizes(spec.seed, self._n_parts, n_rows, start)
        return np.bincount(parts_of(spec.seed, self._n_parts, rows.draw_ids(number, start)), minlength=self._n_parts)

    def _sizes(self) -> list[int]:
        """Return the number of rows of each part."""
        return sum(self._counts.values(), np.zeros(self._n_parts, np.int64)).tolist()

    @property
    def n_rows(self) -> int:
        return self._store.n_rows

    @property
    def n_selected(self) -> int:
        """Number of rows that are trained on."""
        return 0 if self.selected is None else sum(self._store.sizes[part] for part in self.selected.parts)

    @property
    def rows_in_files(self) -> int:
        return 0 if self._store.place is None else self.n_rows

    @property
    def bytes_read(self) -> int:
        """Bytes read from files so far."""
        return self._bytes_before + self._store.bytes_read

    def select(self, selected: SelectedRows, iterations: Iterations) -> EncodedStore | None:
        """Return the rows of a visit, with scores that include these iterations of the fit; None if there are none."""
        rows = [self.rows_of(part, iterations) for part in selected.parts if self._store.sizes[part]]
        self.selected = selected
        if not rows:
            return None
        fields = rows[0]
        if len(rows) > 1:
            fields = {name: np.concatenate([of_part[name] for of_part in rows], axis=-1) for name in fields}
        del rows
        return rows_in_memory(fields, self.spec.shard_spec, spread=self._spread)

    def rows_of(self, part: int, iterations: Iterations) -> dict[str, np.ndarray]:
        """Return the rows of a part by field, with raw scores that include these iterations and that the caller may modify.

        iterations : all of the model; those of the last visit of the part are still among them.
        """
        rows = self._store.load(part)
        missed = [*chain.from_iterable(iterations[self._n_seen[part] :])]
        if missed:
            layout, raw = self.spec.shard_spec.layout, rows["raw"]
            codes = columns_among(rows, layout)
            self._spread(lambda first, last: add_trees(codes, layout, missed, raw, first, last), raw.shape[1])
            self._store.save("raw", raw, part)
            self._n_seen[part] = len(iterations)
        return rows if self._store.place is not None else rows | {"raw": rows["raw"].copy()}

    def _spread(self, work: Callable[[int, int], None], n: int) -> None:
        in_ranges(work, n, self._n_threads)

    def keep_only(self, partitions: Sequence[int]) -> None:
        """Drop the rows of other partitions."""
        if set(self._counts) <= set(partitions):
            return
        self._counts = {number: counts for number, counts in self._counts.items() if number in partitions}
        before = self._store
        self._store = before.subset(self._sizes(), self._are_of(partitions))
        self._bytes_before += before.bytes_read
        before.close()

    def _are_of(self, partitions: Sequence[int]) -> Callable[[RowRange], np.ndarray]:
        return lambda block: self._id_ranges.are_of(block.fields["row_ids"][block.first : block.last], partitions)

    def close(self) -> None:
        """Release the memory, and remove the files."""
        self._store.close()


class Bites:
    """The rows of a session that are divided into bites, and the trees that their scores lack.

    Attributes
    ----------
    stores : dict
        A `BiteStore` of each batch; empty without arcbites.
    """

    def __init__(self) -> None:
        self.stores: dict[str, BiteStore] = {}
        self._iterations: list[Sequence[FitTree]] = []  # of the fit when its rows were selected last
        self._closed_bytes_read = 0

    @property
    def n_rows(self) -> int:
        return sum(store.n_rows for store in self.stores.values())

    @property
    def n_selected(self) -> int:
        """Number of rows that are trained on."""
        return sum(store.n_selected for store in self.stores.values())

    @property
    def bytes_read(self) -> int:
        """Bytes read from files so far."""
        return self._closed_bytes_read + sum(store.bytes_read for store in self.stores.values())

    def rows_in_files(self, batch: str) -> int:
        """Return the number of rows of a batch that are in files."""
        return self.stores[batch].rows_in_files if batch in self.stores else 0

    def note_iterations(self, iterations: Iterations, first: int) -> bool:
        """Note the iterations of the fit from number `first` on; return False if some before these are lacking."""
        if first > len(self._iterations):
            return False
        self._iterations[first:] = iterations
        return True

    def batches_on(self, selected: SelectedRows) -> set[str]:
        """Return the batches of which the selected rows are trained on already."""
        return {batch for batch, store in self.stores.items() if store.selected == selected}

    def load(self, selected: SelectedRows) -> Iterator[tuple[str, BuildSpec, EncodedStore]]:
        """Yield the selected rows of each other batch that has some."""
        current = self.batches_on(selected)
        for batch, store in self.stores.items():
            encoded = None if batch in current else store.select(selected, self._iterations)
            if encoded is not None:
                yield batch, store.spec, encoded

    def keep_only(self, batch: str, partition_ids: Sequence[int]) -> None:
        """Drop the rows of a batch's other partitions."""
        if batch not in self.stores:
            return
        if partition_ids:
            self.stores[batch].keep_only(partition_ids)
        else:
            store = self.stores.pop(batch)
            self._closed_bytes_read += store.bytes_read
            store.close()

    def close(self) -> None:
        """Release the memory, and remove the files."""
        for store in self.stores.values():
            store.close()
        self.stores = {}


def _fields(spec: ShardSpec) -> tuple[FieldGroup, FieldGroup]:
    """Return the fields of the rows, which are scattered."""
    rows, scores = spec.start_groups()
    return rows._replace(name="bites", fields=[*rows.fields, Field("row_ids", "<i8")]), scores


def _block_rows(groups: Sequence[FieldGroup], n_sections: int, n_bytes: int) -> int:
    """Return the rows of a block, so that a block of every section takes `n_bytes` of memory."""
    limits = tuning()
    per_row, rows = sum(field.n_bytes(1) for group in groups for field in group.fields), limits.least_bite_block_rows
    while 2 * rows <= limits.block_rows and 2 * rows * per_row * n_sections <= n_bytes:
        rows *= 2
    return rows
