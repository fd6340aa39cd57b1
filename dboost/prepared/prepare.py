"""Binning a table in this process, for a data set in files or for the workers of a cluster.

It takes the memory of a chunk and a part. The table is read for targets and weights, for the sample that proposes the split
points (some columns at a time), as in every fit (`training.fit.propose_bins`), and for the bin codes.

`binned_in_memory` is for two fits of one call: the codes are those of a data set, but no files are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dboost.data import CategoryColumn, Column, Table
from dboost.data.columns.binning import Binning
from dboost.data.columns.chunk import BinnedPartition, matrix_of
from dboost.data.columns.column import without_unused
from dboost.data.columns.roles import ROLES, rows_of
from dboost.data.tables.read_table import open_binned
from dboost.files.lease import Lease
from dboost.files.spool import PrivateDirectory
from dboost.prepared.dataset_files import (
    PartFile,
    StoredDataset,
    complete,
    fit_in_memory,
    new_version,
    preparing,
    remove_version,
    write_part,
)
from dboost.prepared.dataset_rows import joined_targets
from dboost.rows.encode import encoded_pieces
from dboost.rows.shard_spec import NARROW_BINS, plan_layout
from dboost.session.local_backend import LocalBackend
from dboost.session.reference_sample import reference_rows
from dboost.session.target import check_categories, name_of_target
from dboost.training.binned_data import DatasetDescription
from dboost.training.fit import FitResult, interruptible_reading, propose_bins
from dboost.training.request import FitRequest
from dboost.tuning import tuning


@dataclass(frozen=True, eq=False)
class TableInBins:
    """A table with split points."""

    table: Table
    binning: Binning
    n_rows: int  # of positive weight
    filled: tuple[str, ...]  # roles of these rows
    seed: int  # of the reference sample
    n_threads: int

    @property
    def rows_of_part(self) -> int:
        """Most rows of a file."""
        row_bytes = int(np.where(self.binning.n_bins <= NARROW_BINS, 1, 2).sum()) + 8 * len(self.filled)
        return max(tuning().part_bytes // row_bytes, tuning().least_part_rows)

    def partitions(self, n_rows: int) -> Iterator[BinnedPartition]:
        """Yield the rows of positive weight in partitions of at most n_rows, with the sampled ones.

        They are in order; a partition is valid until the next one.
        """
        binning, first = self.binning, 0
        layout = plan_layout(binning.n_bins, binning.is_categorical)
        for piece in encoded_pieces(self.table, binning, layout, self.n_threads, n_rows):
            last = first + piece.codes.n_rows
            drawn = reference_rows(self.n_rows, len(binning.features), self.seed, first, last) - first
            roles = self.table.as_given(piece.roles)
            target = roles.given_target
            target = without_unused(target) if isinstance(target, CategoryColumn) else target
            roles = replace(roles, target=target, weight=roles.weight if "sample_weight" in self.filled else None)
            yield BinnedPartition(
                piece.codes.columns(), roles, (matrix_of(piece.chunk, drawn, np.float64), rows_of(target, drawn))
            )
            first = last


@contextmanager
def table_in_bins(read_table: Callable[..., Table], request: FitRequest) -> Iterator[TableInBins]:
    """Read a table in this process, and propose its split points.

    read_table : reads it, given options and keywords for the features of a model (`data.tables.read_table.read_table`).
    """
    options = replace(request.read_options, spool_roles=True)
    backend = LocalBackend(partial(read_table, options, **request.warm_start.like), request.n_threads)
    parameters, progress = request.parameters, request.progress
    with interruptible_reading(), closing(backend):
        progress.phase("reading the data")
        features = backend.load()
        check_categories(backend.target_scans(), name_of_target(request.roles["target"]))
        progress.phase("binning")
        binning = propose_bins(request, parameters, request.warm_start.widened(features), features, backend)
        filled = tuple(role for role in backend.roles if not (role == "sample_weight" and backend.unit_weights))
        progress.phase("writing")
        yield TableInBins(backend.table, binning, backend.n_rows, filled, parameters.random_state, request.n_threads)


@contextmanager
def binned_in_memory(read_table: Callable[..., Table], request: FitRequest) -> Iterator[Callable[[FitRequest], FitResult]]:
    """Read and bin a table; yield the function that trains on its rows, whose codes are in memory.

    read_table, request : see `table_in_bins`.
    """
    samples: list[tuple[np.ndarray, Column]] = []

    def copied(rows: TableInBins) -> Iterator[BinnedPartition]:
        for partition in rows.partitions(rows.n_rows):
            assert partition.sample is not None
            samples.append(partition.sample)
            yield BinnedPartition(tuple(codes.copy() for codes in partition.codes), partition.roles)

    with table_in_bins(read_table, request) as rows:
        binning, named = rows.binning, rows.table.named
        table = open_binned(copied(rows), binning, named)
    with table:
        yield partial(fit_in_memory, table, described(binning, named, samples, request))


@contextmanager
def binned_in_files(read_table: Callable[..., Table], request: FitRequest) -> Iterator[StoredDataset]:
    """Read and bin a table; yield its rows in temporary files, which do not count as memory. Arguments: see `table_in_bins`."""
    with closing(PrivateDirectory()) as folder:
        path = str(folder.path / "prepared")
        with preparing(path, by_workers=False) as lease:
            settings = dict.fromkeys(ROLES) | {"max_bins": request.parameters.max_bins}  # names are for users of a folder
            stored = write_dataset(path, lease, read_table, request, settings)
        yield stored


def described(
    binning: Binning, named: bool, samples: Sequence[tuple[np.ndarray, Column]], request: FitRequest
) -> DatasetDescription:
    """Return the description of a data set.

    samples : values and targets of the sampled rows of each partition; request : for which the bins were proposed.
    """
    values = np.concatenate([values for values, _ in samples])
    targets = joined_targets([target for _, target in samples])
    return DatasetDescription(binning, named, values, targets, proposal=request.parameters.split_proposal)


def write_dataset(
    root: str, lease: Lease, read_table: Callable[..., Table], request: FitRequest, settings: dict[str, Any]
) -> StoredDataset:
    """Read a table, and write its bins.

    Parameters
    ----------
    root : str
        A folder or URL.
    lease : Lease
        Of the folder, see `dataset_files.preparing`.
    read_table, request
        See `table_in_bins`.
    settings : dict
        The keywords of `dboost.prepare` that shape the data, as JSON.
    """
    version = new_version()
    parts: list[PartFile] = []
    samples: list[tuple[np.ndarray, Column]] = []
    try:
        with table_in_bins(read_table, request) as rows:
            n_done = 0
            for partition in rows.partitions(rows.rows_of_part):
                assert partition.sample is not None
                parts.append(write_part(root, version, partition, len(parts)))
                samples.append(partition.sample)
                n_done += partition.n_rows
                request.progress.count(n_done, rows.n_rows, "row")
            data = described(rows.binning, rows.table.named, samples, request)
            return complete(StoredDataset(root, data, settings, tuple(parts), rows.filled, False), version, lease)
    except BaseException:
        remove_version(root, version)
        raise
