"""Bites: random subsets of the rows, of which one at a time is trained on.

The bite of a row is a hash of the seed and of the row's number among all training rows. Bites are therefore random subsets of
the whole data, however these are sorted, divided into partitions or spread over workers. If rows belong to groups, it is a hash
of the group, so that a bite has whole groups.

Between visits a bite is a section of a `rows.row_store.RowStore`, in memory or in files: its codes, targets, weights and row
ids, which never change, and its scores *as of the last visit's start*, with the number of iterations that these include. A
visit starts by adding to the scores the iterations that have been kept since; the working shard gets a copy of them. So nothing
has to be written back at the end of a visit, whether its trees are kept, cut back, or lost with a worker: the next visit adds
what is in the model by then. Leaf values are added one by one in the order of the trees, which gives exactly the sums that the
model's prediction computes.

In files, blocks are small enough that the buffers of all sections fit in memory while they are filled in one pass over the
table. A bite of many rows has several sections, each of which becomes a shard of its own: so the threads of a worker train on
it in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dboost.data import RowRoles
from dboost.kernels.histograms import BinLayout
from dboost.rows.block_file import Field
from dboost.rows.encoded_store import EncodedStore, rows_in_memory
from dboost.rows.row_sample import BITES, derive_seed, hash_rows
from dboost.rows.row_store import FieldGroup, RowStore
from dboost.rows.shard import columns_among
from dboost.rows.shard_spec import ShardSpec
from dboost.trees.apply_trees import add_iterations
from dboost.trees.fit_trees import FitTree
from dboost.tuning import tuning

#: Number of rows that are hashed at a time.
_ROWS_AT_A_TIME = 1 << 20

#: ``spread(work, n)`` calls ``work(first, last)`` for ranges that together are rows 0…n-1.
RunInRanges = Callable[[Callable[[int, int], None], int], object]


def bites_of(seed: int, n_bites: int, row_ids: np.ndarray) -> np.ndarray:
    """Return the bite of each row: int64[n] of 0…n_bites-1, from the global row ids (int64[n])."""
    # The upper half of the hash as a fraction of n_bites.
    return ((hash_rows(derive_seed(seed, BITES), row_ids) >> np.uint64(32)) * np.uint64(n_bites) >> np.uint64(32)).astype(
        np.int64
    )


def sections_of(seed: int, n_bites: int, row_ids: np.ndarray, draw_id: np.ndarray | None = None) -> np.ndarray:
    """Return the section of each row: its bite. draw_id : what bites are drawn by, see `Table.draw_ids`; default: the row
    ids."""
    return bites_of(seed, n_bites, row_ids if draw_id is None else draw_id)


def bites_with_rows(roles: RowRoles, seed: int, n_bites: int) -> np.ndarray:
    """Return which bites have rows of the groups of some rows: bool[n_bites]."""
    assert roles.group is not None
    return np.bincount(bites_of(seed, n_bites, roles.group), minlength=n_bites) > 0


def bite_sizes(seed: int, n_bites: int, n_rows: int, first: int = 0) -> np.ndarray:
    """Return the number of rows of each section, for `n_rows` rows numbered from `first` on: int64[n_bites * n_parts]."""
    sizes, last = np.zeros(n_bites, np.int64), first + n_rows
    for begin in range(first, last, _ROWS_AT_A_TIME):
        row_ids = np.arange(begin, min(begin + _ROWS_AT_A_TIME, last))
        sizes += np.bincount(sections_of(seed, n_bites, row_ids), minlength=len(sizes))
    return sizes


def bite_fields(spec: ShardSpec) -> tuple[FieldGroup, FieldGroup]:
    """Return the fields of a store of bites, whose rows are scattered."""
    rows, scores = spec.start_groups()
    return rows._replace(name="bites", fields=[*rows.fields, Field("row_ids", "<i8")]), scores


def block_rows_of(groups: Sequence[FieldGroup], n_sections: int, n_bytes: int) -> int:
    """Return the rows of a block, so that a block of every section takes `n_bytes` of memory."""
    limits = tuning()
    per_row, rows = sum(field.n_bytes(1) for group in groups for field in group.fields), limits.least_bite_block_rows
    while 2 * rows <= limits.block_rows and 2 * rows * per_row * n_sections <= n_bytes:
        rows *= 2
    return rows


@dataclass(eq=False)
class Bite:
    """The rows of a bite in one section of a store, between visits."""

    store: RowStore
    section: int
    n_seen: int = 0  # iterations that the scores include

    @property
    def n_rows(self) -> int:
        return self.store.sizes[self.section]

    def current_rows(
        self, layout: BinLayout, iterations: Sequence[Sequence[FitTree]], spread: RunInRanges
    ) -> dict[str, np.ndarray]:
        """Return the rows by field, with raw scores that include all current trees and that the caller may modify.

        iterations : all iterations of the model; those of the last visit are still among them.
        """
        rows = self.store.load(self.section)
        missed = iterations[self.n_seen :]
        if missed:
            codes = columns_among(rows, layout)
            spread(lambda first, last: add_iterations(codes, layout, missed, rows["raw"], first, last), self.n_rows)
            self.store.save("raw", rows["raw"], self.section)
            self.n_seen = len(iterations)
        return rows if self.store.place is not None else rows | {"raw": rows["raw"].copy()}


def rows_of_bites(
    bites: Sequence[Bite], spec: ShardSpec, iterations: Sequence[Sequence[FitTree]], spread: RunInRanges
) -> EncodedStore:
    """Return the rows of some bites together, to train on."""
    parts = [bite.current_rows(spec.layout, iterations, spread) for bite in bites]
    rows = parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}
    del parts
    return rows_in_memory(rows, spec, spread=spread)
