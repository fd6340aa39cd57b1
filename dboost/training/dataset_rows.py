"""The rows of a data set that stays in memory, for one fit: in this process, or on the workers of a cluster.

The rows are binned already (`data.binned_partition`), so the fit proposes no bins, and the reference sample is that of the data
set, which was drawn when the raw values were read. Everything else is as for any table (`training.fit.SessionRows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dboost.data import CategoryColumn, Column
from dboost.data.binned_partition import BinnedPartition
from dboost.data.binning import Binning
from dboost.data.chunk import CategoryIndex
from dboost.data.table import open_binned
from dboost.errors import ParameterError
from dboost.model.ensemble import Ensemble
from dboost.schema import Feature
from dboost.session.reference_sample import ReferenceSample
from dboost.session.target import Target, encode_values
from dboost.session.transport import LocalTable, SessionTable
from dboost.session.warm_start import WarmStart
from dboost.training.fit import FitResult, SessionRows, fit
from dboost.training.plan import FitRequest, RowsDescription
from dboost.params import Parameters


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


def fit_binned(request: FitRequest, data: DatasetDescription, partitions: Sequence[BinnedPartition]) -> FitResult:
    """Train in this process on partitions in memory."""
    table = LocalTable(
        lambda: open_binned(partitions, data.binning, data.named), request.n_threads, request.budget
    )
    return fit(request, DatasetRows(table, request, data))


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
            raise ParameterError(f"start_from: feature {number} of the model is {of_model.name!r}, of the data {of_data.name!r}")
    if len(model.features) != len(binning.features):
        raise ParameterError(f"start_from: the model has {len(model.features)} features, the data {len(binning.features)}")
    used: dict[int, list[float]] = {}
    for tree in model.trees:
        is_split = tree.feature >= 0
        for feature, threshold in zip(tree.feature[is_split].tolist(), tree.threshold[is_split].tolist(), strict=True):
            used.setdefault(feature, []).append(threshold)
    for feature, thresholds in used.items():
        edges = binning.edges[feature]
        if edges is not None and not np.isin(thresholds, edges).all():
            raise ParameterError(
                f"start_from: the model splits {binning.features[feature].name!r} where the data set has no edge of a bin, so "
                "bins do not tell the model's scores: fit on the table itself, or give prepare(…, path=…, start_from=…)"
            )
