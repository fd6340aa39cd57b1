"""What a data set is: partitions of bin codes and roles, and what all fits on them have in common.

`BinnedRows` are the rows in files, which this process reads (`prepared.dataset_files`), or in the memory of the workers of a
cluster (`cluster.training.cluster_dataset`). A partition is a `data.columns.chunk.BinnedPartition`, which is read as a
partition of any other table. Its rows are binned already, so a fit proposes no bins, and the reference sample is that of the
data set, which was drawn when the raw values were read (`training.binned_data`). Everything else is as for any table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from dboost.data import CategoryColumn, Chunk, Column
from dboost.data.columns.binning import Binning
from dboost.data.columns.chunk import BinnedPartition, CategoryIndex, DecodedColumns, matrix_of
from dboost.data.columns.column import apply
from dboost.data.columns.roles import joined, length_of
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.session.row_samples import TEST, FoldRows
from dboost.training.binned_data import DatasetDescription, check_thresholds
from dboost.training.fit import FitResult
from dboost.training.request import FitRequest

#: For each fold: positions of the held-out rows in a partition, and their raw scores [n, n_outputs].
FoldScoresOfPartition = list[tuple[np.ndarray, np.ndarray]]


class BinnedRows(ABC):
    """The rows of a data set.

    Attributes
    ----------
    data : DatasetDescription
    settings : dict
        The keywords of `dboost.prepare` that shaped the rows, by name, as JSON.
    lengths : tuple of int
        Number of rows of each partition; all have a positive weight.
    filled : tuple of str
        The roles that the rows have.
    n_bytes : int
        Approximate size of the rows.
    """

    data: DatasetDescription
    settings: dict[str, Any]
    lengths: tuple[int, ...]
    filled: tuple[str, ...]

    @property
    @abstractmethod
    def n_bytes(self) -> int: ...

    @abstractmethod
    def fit(self, request: FitRequest) -> FitResult:
        """Train on the rows; may be called from several threads at the same time."""

    @abstractmethod
    def refit(self, model: Ensemble, **options: Any) -> Ensemble:
        """Return the model with leaf values estimated from the rows; options : of `training.leaf_refit.refit_leaves`."""

    @abstractmethod
    def map(self, function: Callable[..., Any], arguments: Sequence[Any] | None = None) -> list[Any]:
        """Return ``function(partition)`` of each partition, or ``function(partition, argument)`` with one argument each."""

    def for_folds(self) -> AbstractContextManager[BinnedRows]:
        """Return a context with the rows for several calls, and for several fits at the same time."""
        return nullcontext(self)

    @property
    def n_rows(self) -> int:
        return sum(self.lengths)

    def targets(self) -> Column:
        """Return the targets of all rows, as they were given."""
        return joined_targets(self.map(_target_of))

    def weights(self) -> np.ndarray | None:
        """Return the weight of each row: float64[n]; None if all are 1."""
        return self._role("sample_weight")

    def groups(self) -> np.ndarray | None:
        """Return the key of each row's group (int64[n]), see `data.columns.roles`; None if the rows have no groups."""
        return self._role("group")

    def _role(self, name: str) -> np.ndarray | None:
        return np.concatenate(self.map(partial(_role_of, name))) if name in self.filled else None

    def scores(self, model: Ensemble) -> np.ndarray:
        """Return the raw scores of all rows by a model: float64[n, n_outputs].

        Raises
        ------
        ParameterError
            If the bins do not determine them.
        """
        check_thresholds(model, self.data.binning, "calibrate")
        ((_, raw),) = self.held_out_scores([model], [FoldRows(np.full(self.n_rows, TEST))])
        return raw

    def held_out_scores(self, models: Sequence[Ensemble], folds: Sequence[FoldRows]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, for each fold, the positions of its held-out rows and their raw scores [n, n_outputs] by the fold's model."""
        starts = np.cumsum((0, *self.lengths)).tolist()
        uses = [[fold.uses[first : first + n] for fold in folds] for first, n in zip(starts, self.lengths, strict=False)]
        scores = self.map(partial(_scores_of, self.data.binning, list(models)), uses)
        return [
            (
                np.concatenate([first + scores_by_fold[k][0] for first, scores_by_fold in zip(starts, scores, strict=False)]),
                np.concatenate([scores_by_fold[k][1] for scores_by_fold in scores]),
            )
            for k in range(len(folds))
        ]


def _target_of(partition: BinnedPartition) -> Column:
    return partition.roles.given_target


def _role_of(name: str, partition: BinnedPartition) -> np.ndarray:
    return partition.roles.by_name()[name]  # type: ignore[return-value]


def _scores_of(
    binning: Binning, models: Sequence[Ensemble], partition: BinnedPartition, uses: Sequence[np.ndarray]
) -> FoldScoresOfPartition:
    """Return the raw scores of the held-out rows of each fold by the fold's model.

    uses : for each fold the uses of the partition's rows, see `session.row_samples.FoldRows`.
    """
    scores = []
    columns = DecodedColumns(partition.codes, binning)
    for model, fold_uses in zip(models, uses, strict=True):
        rows = np.flatnonzero(fold_uses == TEST)
        raw = FlatEnsemble(model).raw_scores(matrix_of(Chunk(len(rows), columns.rows(rows))), n_threads=1)
        if partition.roles.offset is not None:
            raw[:, model.outputs.offset_outputs] += partition.roles.offset[rows, None]
        scores.append((rows, raw))
    return scores


def joined_targets(parts: Sequence[Column]) -> Column:
    """Join the targets of partitions, which may have different categories, sorted."""
    filled = [part for part in parts if length_of(part)]
    if not any(isinstance(part, CategoryColumn) for part in filled):
        return joined(filled)
    index = CategoryIndex("target", is_target=True)
    codes = [apply(index.translate(part.categories), part.codes) for part in filled if isinstance(part, CategoryColumn)]
    categories, final = index.finish()
    return CategoryColumn(apply(final, np.concatenate(codes)), categories)
