"""What fits on binned data have in common: bins and reference sample, which are not proposed and drawn again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dboost.data import CategoryColumn, Column
from dboost.data.columns.binning import Binning
from dboost.errors import DataError, ParameterError
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.rows.block_file import StorageError
from dboost.session.reference_sample import ReferenceSample
from dboost.session.target import Target, encode_column


@dataclass(frozen=True, eq=False)
class DatasetDescription:
    """What all fits on a data set have in common."""

    binning: Binning
    named: bool  # whether the features' names are the user's
    sample: np.ndarray  # float64[n, n_features]: raw values of the reference sample; no rows without one
    sample_target: Column  # their targets, as they were given
    where: str | None = None  # the folder or URL of its files, if it was read from files
    proposal: str = "global"  # the `split_proposal` that has proposed the bins

    def reference(self, target: Target) -> ReferenceSample | None:
        """Return the reference sample with targets encoded for a loss."""
        if not len(self.sample):
            return None
        target_column = self.sample_target
        column = target_column if isinstance(target_column, CategoryColumn) else target_column.astype(np.float64)
        try:
            encoded = encode_column(column, target, lambda row: f"row {row} of those of positive weight")
            return ReferenceSample(self.sample, target.location(encoded))
        except DataError as error:  # the rows have been checked: the sample is not theirs
            if self.where is None:
                raise
            raise StorageError(f"{self.where} is damaged: its sample is not of its rows ({error})") from error


def refuse_other_proposals(parameters: Parameters, binned: DatasetDescription) -> None:
    """Raise a ParameterError if other split points would be proposed from values."""
    proposal = parameters.split_proposal
    if proposal != binned.proposal:
        raise ParameterError(
            f"split_proposal={proposal!r} proposes split points from the values, but these data were binned before: leave it "
            "out, or fit on the table itself"
        )


def check_thresholds(model: Ensemble, binning: Binning, caller: str = "start_from") -> None:
    """Raise a ParameterError if a threshold of a model is no edge of a bin, or a feature differs.

    Otherwise bins determine the leaf of a row, and a data set may continue the model or refit its leaves. Data that continue a
    model may have more categories, behind those of the model.

    caller : the function or keyword that needs this, for the message.
    """
    for number, (before, now) in enumerate(zip(model.features, binning.features, strict=False)):
        known, present = before.categories, now.categories
        if known is not None and present is not None and caller == "start_from":
            present = present[: len(known)]
        if (before.name, known) != (now.name, present):
            names = f"{before.name!r} in the model and {now.name!r} in the data"
            raise ParameterError(f"{caller}: feature {number} is not the same: {names}")
    if len(model.features) != len(binning.features):
        raise ParameterError(f"{caller}: the model has {len(model.features)} features, the data {len(binning.features)}")
    used: dict[int, list[float]] = {}
    for tree in model.trees:
        is_split = (tree.feature >= 0) & ~np.isinf(tree.threshold)  # infinity separates missing values from all others
        for feature, threshold in zip(tree.feature[is_split].tolist(), tree.threshold[is_split].tolist(), strict=True):
            used.setdefault(feature, []).append(threshold)
    for feature, thresholds in used.items():
        edges = binning.edges[feature]
        if edges is not None and not np.isin(thresholds, edges).all():
            instead = "give the table itself"
            if caller == "start_from":
                instead = "fit on the table itself, or give prepare(…, start_from=…, continue_bins='kept')"
            raise ParameterError(
                f"{caller}: the model splits {binning.features[feature].name!r} where the data set has no edge of a bin, so "
                f"bins do not tell the model's scores: {instead}"
            )
