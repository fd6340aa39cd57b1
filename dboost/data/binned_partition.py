"""Rows as bin codes: the partitions of a data set that stays in memory.

A `BinnedPartition` holds the code of every value, and target, weight and offset as they were given. It is read like any other
partition (`data.frame.as_frame` knows it), with a plan that names the binning: the stored arrays are the codes, and `Table`
yields them as `DecodedColumns`. Encoding copies the codes. Code that needs values, such as the scores by an earlier model, gets
values that lie in the bins (`DecodedColumns`); trees whose thresholds are edges of these bins route them like the originals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from dboost.data.binning import Binning
from dboost.data.chunk import CategoryColumn, Column


@dataclass(frozen=True, eq=False)
class BinnedPartition:
    """Consecutive rows of a data set."""

    codes: tuple[np.ndarray, ...]  # for each feature uint8 or uint16 [n_rows]; missing values have the code after the last bin
    target: Column
    weight: np.ndarray | None = None  # float64[n_rows], positive
    offset: np.ndarray | None = None  # float64[n_rows]
    #: Raw values (float64[n, n_features]) and targets of those rows that are in the data set's reference sample.
    sample: tuple[np.ndarray, Column] | None = None

    @property
    def n_rows(self) -> int:
        return len(self.codes[0])

    @property
    def roles(self) -> tuple[Any, Any, Any]:
        """Target, weight and offset."""
        return self.target, self.weight, self.offset

    @property
    def n_bytes(self) -> int:
        target = self.target.codes if isinstance(self.target, CategoryColumn) else self.target
        return sum(array.nbytes for array in (*self.codes, target, self.weight, self.offset) if array is not None)

    def __sizeof__(self) -> int:  # Dask counts the memory of its data by it
        return 64 + self.n_bytes


class DecodedColumns(Sequence[Column]):
    """The columns of some rows, decoded one by one when they are asked for.

    A numeric value is the upper edge of its bin, in the last bin the next float above the last edge.

    Parameters
    ----------
    codes : sequence of uint8 or uint16 arrays [n_rows]
        One for each feature.
    binning : Binning
    """

    def __init__(self, codes: Sequence[np.ndarray], binning: Binning) -> None:
        self.codes, self.binning = tuple(codes), binning

    def rows(self, rows: slice | np.ndarray) -> DecodedColumns:
        """Return some of the rows."""
        return DecodedColumns([codes[rows] for codes in self.codes], self.binning)

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, j: int) -> Column: ...
    @overload
    def __getitem__(self, j: slice) -> tuple[Column, ...]: ...
    def __getitem__(self, j: int | slice) -> Column | tuple[Column, ...]:
        if isinstance(j, slice):
            return tuple(map(self._column, range(*j.indices(len(self)))))
        return self._column(j)

    def __iter__(self) -> Iterator[Column]:
        return map(self._column, range(len(self)))

    def _column(self, j: int) -> Column:
        codes, edges, categories = self.codes[j], self.binning.edges[j], self.binning.features[j].categories
        if categories is not None:
            found = codes.astype(np.int32)
            return CategoryColumn(np.where(found == len(categories), np.int32(-1), found), categories)
        assert edges is not None
        last = np.nextafter(edges[-1], np.inf) if len(edges) else 0.0
        return np.concatenate((edges, (last, np.nan)))[codes]
