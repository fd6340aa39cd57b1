"""Bin codes of prepared data sets in memory, which the fits of a process on the same data set share.

Trials of a study that run at the same time are such fits. Codes are most of their rows: each fit has targets, scores and
gradients of its own. The first fit reads the codes, later ones use its arrays, which are released with the last fit. Data sets
are the same if the checksums of their codes are, so a folder that was replaced meanwhile has codes of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from threading import Lock
from weakref import WeakValueDictionary

import numpy as np

from dboost.kernels.bins import fill_tiles
from dboost.rows.block_file import BlockFile
from dboost.rows.encode import in_ranges
from dboost.rows.row_store import FieldGroup, RowStore
from dboost.rows.shard import BinnedColumns, spec_in_memory
from dboost.rows.shard_spec import ShardSpec, code_rows, column_fields

_in_use: WeakValueDictionary[Hashable, np.ndarray] = WeakValueDictionary()
#: While codes are read, the lock of each process and data set: a forked process takes none that a thread of its parent holds.
_reading: WeakValueDictionary[Hashable, Lock] = WeakValueDictionary()


def codes_in_memory(
    file: BlockFile, read: Callable[[int], BinnedColumns], spec: ShardSpec, n_threads: int
) -> dict[str, np.ndarray]:
    """Return the codes of all rows by columns and in tiles (see `ShardSpec.groups`), which must not be changed.

    file : of the codes; read : returns those of a block.
    """
    assert file.checksums is not None
    of_file = str(file.path), file.checksums.tobytes()
    names = ["tiles", *(field.name for field in column_fields(spec.layout))]
    lock = _reading.setdefault((os.getpid(), of_file), Lock())
    with lock:
        known = {name: _in_use.get((of_file, name)) for name in names}
        found = {name: array for name, array in known.items() if array is not None}
        if len(found) < len(names):
            found = _read(file, read, spec, n_threads)
            _in_use.update({(of_file, name): array for name, array in found.items()})
        return found


def _read(file: BlockFile, read: Callable[[int], BinnedColumns], spec: ShardSpec, n_threads: int) -> dict[str, np.ndarray]:
    store = RowStore([FieldGroup("codes", column_fields(spec.layout), sealed=True)], [file.n_rows])
    for block in range(file.n_blocks):
        codes = read(block)
        store.append(codes.n_rows, {"narrow": codes.narrow, "wide": codes.wide})
    store.check_filled()
    columns = store.load()
    own = spec_in_memory(columns, spec)
    found = RowStore(own.groups(in_memory=True)[:1], [file.n_rows], arrays=columns).load()
    layout, row_of, as_bytes = own.bin_layout, code_rows(spec.layout), found["tiles"].view(np.uint8)
    in_ranges(lambda *of: fill_tiles(found["narrow"], layout, row_of, *of, as_bytes), file.n_rows, n_threads)
    return found
