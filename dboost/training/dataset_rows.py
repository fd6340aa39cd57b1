"""The rows of a data set that stays in memory, for one fit: in this process, or on the workers of a cluster.

The rows are binned already (`data.binned_partition`), so the fit proposes no bins, and the reference sample is that of the data
set, which was drawn when the raw values were read. Everything else is as for any table (`training.fit.SessionRows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.data import CategoryColumn, Chunk, Column, ReadOptions, Table
from dboost.data.binned_partition import BinnedPartition, DecodedColumns
from dboost.data.binning import Binning
from dboost.data.chunk import CategoryIndex, apply
from dboost.data.table import open_binned
from dboost.errors import ParameterError
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble
from dboost.params import Parameters
from dboost.schema import Feature
from dboost.session.reference_sample import ReferenceSample
from dboost.session.row_selection import TEST, FoldRows
from dboost.session.target import Target, encode_values
from dboost.session.transport import LocalTable, SessionTable
from dboost.session.warm_start import WarmStart, matrix_of
from dboost.training.fit import FitResult, SessionRows, fit
from dboost.training.plan import FitRequest, RowsDescription


@dataclass(frozen=True, eq=False)
class DatasetDescription:
    """What all fits on a data set have in common."""

    binning: Binning
    named: bool  # whether the features' names are the user's
    sample: np.ndarray  # float64[n, n_features]: raw values of the reference sample
    sample_target: Column  # their targets, as they were given

    def reference(self, target: Target) -> ReferenceSample:
        """Return the reference sample with targets encoded for a loss."""
        column = self.sample_target
        if isinstance(column, CategoryColumn):
            return ReferenceSample(self.sample, encode_values(target, column.codes, column.categories))
        return ReferenceSample(self.sample, encode_values(target, column.astype(np.float64)))


class DatasetRows(SessionRows):
    """The rows of a data set, for one fit; implements `training.fit.TrainingRows`."""

    def __init__(self, table: SessionTable, request: FitRequest, data: DatasetDescription) -> None:
        super().__init__(table, request)
        self._data = data

    def load(self) -> tuple[Feature, ...]:
        refuse_other_proposals(self._request.parameters)
        model = self._request.warm_start.model
        if model is not None:
            check_thresholds(model, self._data.binning)
        return super().load()

    def learn_target(self) -> Target:
        self._target = super().learn_target()
        return self._target

    def propose_bins(self, warm_start: WarmStart, parameters: Parameters) -> Binning:
        return self._data.binning

    def describe(self, seed: int) -> RowsDescription:
        n_kept = self._table.n_kept
        return RowsDescription(
            sum(n_kept.values()), self._table.most_rows(), not self._table.unit_weights, self._data.named,
            self._data.reference(self._target),
        )  # fmt: skip


def refuse_other_proposals(parameters: Parameters) -> None:
    """Raise a ParameterError if split points would be proposed from values."""
    proposal = parameters.split_proposal
    if proposal != "global":
        raise ParameterError(f"split_proposal={proposal!r} wants to see the values, but these data were binned before")


def check_thresholds(model: Ensemble, binning: Binning) -> None:
    """Raise a ParameterError if bins do not tell the leaves of rows: a threshold of the model is no edge, or a code differs.

    The model may be continued on a data set only then.
    """
    for number, (of_model, of_data) in enumerate(zip(model.features, binning.features, strict=False)):
        if of_model != of_data:
            names = f"{of_model.name!r} in the model and {of_data.name!r} in the data"
            raise ParameterError(f"start_from: feature {number} is not the same: {names}")
    if len(model.features) != len(binning.features):
        raise ParameterError(f"start_from: the model has {len(model.features)} features, the data {len(binning.features)}")
    used: dict[int, list[float]] = {}
    for tree in model.trees:
        is_split = (tree.feature >= 0) & ~np.isinf(tree.threshold)  # infinity separates missing values from all others
        for feature, threshold in zip(tree.feature[is_split].tolist(), tree.threshold[is_split].tolist(), strict=True):
            used.setdefault(feature, []).append(threshold)
    for feature, thresholds in used.items():
        edges = binning.edges[feature]
        if edges is not None and not np.isin(thresholds, edges).all():
            raise ParameterError(
                f"start_from: the model splits {binning.features[feature].name!r} where the data set has no edge of a bin, so "
                "bins do not tell the model's scores: fit on the table itself, or give prepare(…, path=…, start_from=…)"
            )


class LocalRows:
    """The rows of a data set in this process; implements `training.folds.BinnedRows`.

    Parameters
    ----------
    data : DatasetDescription
    lengths : sequence of int
        Number of rows of each partition.
    partitions : callable
        Returns the partitions one after the other: those in memory, or those read from files.
    options : callable, optional
        Returns how a fit may use memory for partitions that are read, given its request. Default: they are in memory.
    """

    def __init__(
        self,
        data: DatasetDescription,
        lengths: Sequence[int],
        partitions: Callable[[], Iterable[BinnedPartition]],
        options: Callable[[FitRequest], ReadOptions] | None = None,
    ) -> None:
        self._data, self._lengths, self._partitions, self._options = data, lengths, partitions, options

    @property
    def n_rows(self) -> int:
        return sum(self._lengths)

    def fit(self, request: FitRequest) -> FitResult:
        return fit(request, DatasetRows(self._table(request), request, self._data))

    def refit(self, model: Ensemble, **options: Any) -> Ensemble:
        from dboost.training.leaf_refit import refit_leaves  # which imports this module

        request = FitRequest(Parameters(), options["n_threads"])
        return refit_leaves(model, self._table(request), data=self._data, **options)

    def _table(self, request: FitRequest) -> LocalTable:
        options = None if self._options is None else self._options(request)

        def opened() -> Table:
            return open_binned(self._partitions(), self._data.binning, self._data.named, options)

        return LocalTable(opened, request.n_threads, request.budget)

    def targets(self) -> Column:
        return joined_targets([partition.target for partition in self._partitions()])

    def held_out_scores(self, models: Sequence[Ensemble], folds: Sequence[FoldRows]) -> list[tuple[np.ndarray, np.ndarray]]:
        parts, first = [], 0
        for partition in self._partitions():
            uses = [fold.uses[first : first + partition.n_rows] for fold in folds]
            parts.append((first, scores_of_partition(partition, self._data.binning, models, uses)))
            first += partition.n_rows
        return joined_scores(parts)


#: For each fold: positions of the held-out rows in a partition, and their raw scores [n, n_outputs].
FoldScoresOfPartition = list[tuple[np.ndarray, np.ndarray]]


def scores_of_partition(
    partition: BinnedPartition, binning: Binning, models: Sequence[Ensemble], uses: Sequence[np.ndarray]
) -> FoldScoresOfPartition:
    """Return the raw scores of the held-out rows of each fold by the fold's model.

    uses : for each fold the uses of the partition's rows, see `session.row_selection.FoldRows`.
    """
    found = []
    columns = DecodedColumns(partition.codes, binning)
    for model, of_fold in zip(models, uses, strict=True):
        rows = np.flatnonzero(of_fold == TEST)
        raw = FlatEnsemble(model).raw_scores(matrix_of(Chunk(len(rows), columns.rows(rows))), n_threads=1)
        if partition.offset is not None:
            raw += partition.offset[rows, None]
        found.append((rows, raw))
    return found


def joined_scores(parts: Sequence[tuple[int, FoldScoresOfPartition]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Join the scores of partitions. parts : position of each partition's first row, and its scores."""
    return [
        (
            np.concatenate([first + scores[k][0] for first, scores in parts]),
            np.concatenate([scores[k][1] for _, scores in parts]),
        )
        for k in range(len(parts[0][1]))
    ]


def joined_targets(parts: Sequence[Column]) -> Column:
    """Join the targets of partitions, which may have different categories, sorted."""
    filled = [part for part in parts if len(part)]
    if not any(isinstance(part, CategoryColumn) for part in filled):
        return np.concatenate([part for part in filled if not isinstance(part, CategoryColumn)])
    index = CategoryIndex("target")
    codes = [apply(index.translate(part.categories), part.codes) for part in filled if isinstance(part, CategoryColumn)]
    categories, final = index.finish()
    return CategoryColumn(apply(final, np.concatenate(codes)), categories)
