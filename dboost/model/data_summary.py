"""Summary of the training data, and the drift of other data from it.

Each feature has a `Distribution`. For numbers it has about 20 bins between quantiles (a value as frequent as a bin has its
own one) with the number of rows in each, and the smallest and largest value. For categories it has the number of rows of the
most frequent levels, and of all others. Missing values are counted separately. The raw scores at the end of the fit, per
output, and the target have distributions too.

The counts are those of a sample of the rows that depends only on the seed and the rows' numbers (`session.reference_sample`),
so a summary is the same for any partitioning. It is stored in the record of its source (`Ensemble.sources`) as JSON types.
Other rows are counted in the same bins; counts are additive, so each partition is counted on the worker that holds it.

**Drift** is the distance of two samples, from the number of rows of each in the same bins. Two measures, from counts p before
and q after, both as shares:

* The *population stability index*, the sum over bins of (q - p) ln(q / p), is the symmetric relative entropy. By convention,
  below 0.1 there is no drift, and from 0.25 on it is strong. Half a row is added to every bin, so that a bin that is empty
  on one side contributes a large number, not an infinite one.
* The *distance*: for ordered bins the largest difference of the distribution functions at the bins' borders, which is the
  Kolmogorov-Smirnov statistic on a grid; for categories half the sum of the absolute differences, the share of rows that would
  have to change their category.

Samples of the same population differ too. With n and N rows in b bins the index is then about (1/n + 1/N) times a χ² variable
with b - 1 degrees of freedom. `chance` returns what it exceeds once in a thousand times; only the excess is drift.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.data.columns.binning import propose_sorted, without_missing
from dboost.errors import DataError, ModelFileError
from dboost.files.json_shape import Shape, Within, check_shape
from dboost.schema import MAX_LEVELS, Feature

#: Largest number of bins of numbers.
MOST_BINS = 20
#: Largest number of levels with a bin of their own.
LEVELS = 100
#: Further counts of other rows: missing values, values below and above the training range, unknown levels.
EXTRAS = 4


@dataclass(frozen=True, eq=False)
class Distribution(ABC):
    """Distribution of the values of one column, or of the scores of one output."""

    #: int64[b], number of rows of each bin.
    counts: np.ndarray
    #: Number of rows without a value.
    missing: int

    @abstractmethod
    def tally(self, values: np.ndarray) -> np.ndarray:
        """Count other values: int64[b + EXTRAS], rows per bin, missing values, values below and above the range, unknown
        levels.

        Values outside the range and unknown levels, which have codes from `n_levels` on, belong to no bin.
        """

    @abstractmethod
    def compare(self, tally: np.ndarray) -> dict[str, Any]:
        """Return statistics of the difference, see `Summary.compare`."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""

    @staticmethod
    def from_dict(stored: dict[str, Any]) -> Distribution:
        """Return the distribution in a result of `to_dict`; ValueError, TypeError or KeyError for other content."""
        is_of_numbers = "cuts" in stored
        check_shape(stored, _NUMBERS if is_of_numbers else _CATEGORIES, "it")
        borders = _ascending(stored["cuts"], float) if is_of_numbers else _ascending(stored["codes"], int)
        counts = np.array(stored["counts"], np.int64)
        if len(counts) != len(borders) + 1:
            raise ValueError("its counts do not fit")
        if is_of_numbers:
            low, high = (math.nan if end is None else float(end) for end in stored["range"])
            return NumberDistribution(counts, stored["missing"], borders, low, high)
        if len(borders) and borders[-1] >= stored["levels"]:
            raise ValueError("its codes are not those of its levels")
        return LevelDistribution(counts, stored["missing"], borders, stored["levels"])

    def _tallied(self, bins: np.ndarray, extras: Sequence[int]) -> np.ndarray:
        """Return the result of `tally`. bins : of values; extras : number of values that belong to none."""
        return np.append(np.bincount(bins, minlength=len(self.counts)), extras).astype(np.int64)

    def _compared(self, tally: np.ndarray, before: np.ndarray, after: np.ndarray, *, ordered: bool) -> dict[str, Any]:
        """Return the result of `compare`. before, after : rows by bin; values that belong to none are bins like others."""
        (missing, below, above, unknown), n = tally[-EXTRAS:], int(tally.sum())
        n_before = int(self.counts.sum()) + self.missing
        both = np.append(before, self.missing), np.append(after, missing)
        index, by_chance = stability_index(*both), chance(*both)
        return {
            "psi": index,
            "chance": by_chance,
            "distance": distance(before, after, ordered=ordered),
            "missing_before": self.missing / n_before if n_before else math.nan,
            "missing": int(missing) / n if n else math.nan,
            "outside": int(below + above) / n if n and ordered else math.nan,
            "unseen": int(unknown) / n if n and not ordered else math.nan,
            "drift": verdict(index - by_chance),
        }


@dataclass(frozen=True, eq=False)
class NumberDistribution(Distribution):
    """Distribution of numbers."""

    #: float64[b - 1]; bin i has the values above cut i - 1 and not above cut i.
    cuts: np.ndarray
    #: Smallest and largest value; NaN without values.
    low: float
    high: float

    @classmethod
    def of(cls, values: np.ndarray) -> NumberDistribution:
        """Return the distribution of numbers (float64[n], NaN where missing)."""
        present = without_missing(np.sort(values))
        cuts = propose_sorted(present, None, MOST_BINS)
        ends = np.searchsorted(present, cuts, side="right")
        counts = np.concatenate((ends, (len(present),))) - np.concatenate(((0,), ends))
        low, high = (float(present[0]) + 0.0, float(present[-1]) + 0.0) if len(present) else (math.nan, math.nan)
        return cls(counts.astype(np.int64), len(values) - len(present), cuts, low, high)

    def tally(self, values: np.ndarray) -> np.ndarray:
        present = values[~np.isnan(values)]
        is_below, is_above = present < self.low, ~(present <= self.high)  # all are above if training had no value
        bins = np.searchsorted(self.cuts, present[~(is_below | is_above)], side="left")
        return self._tallied(bins, [len(values) - len(present), int(is_below.sum()), int(is_above.sum()), 0])

    def compare(self, tally: np.ndarray) -> dict[str, Any]:
        _, below, above, _ = tally[-EXTRAS:]
        before, after = np.concatenate(([0], self.counts, [0])), np.concatenate(([below], tally[:-EXTRAS], [above]))
        return self._compared(tally, before, after, ordered=True)

    def to_dict(self) -> dict[str, Any]:
        ends = [None if math.isnan(end) else end for end in (self.low, self.high)]
        return {"cuts": self.cuts.tolist(), "counts": self.counts.tolist(), "range": ends, "missing": self.missing}


@dataclass(frozen=True, eq=False)
class LevelDistribution(Distribution):
    """Distribution of the levels of a categorical column."""

    #: int64[b - 1], ascending codes of the bins; the last bin has all others.
    codes: np.ndarray
    n_levels: int

    @classmethod
    def of(cls, values: np.ndarray, n_levels: int) -> LevelDistribution:
        """Return the distribution of codes of categories (float64[n], NaN where missing)."""
        level_counts = np.bincount(np.where(np.isnan(values), n_levels, values).astype(np.int64), minlength=n_levels + 1)
        missing, level_counts = int(level_counts[-1]), level_counts[:-1]
        frequent = np.argsort(-level_counts, kind="stable")[:LEVELS]
        codes = np.sort(frequent[level_counts[frequent] > 0])
        counts = np.append(level_counts[codes], level_counts.sum() - level_counts[codes].sum())
        return cls(counts.astype(np.int64), missing, codes, n_levels)

    def tally(self, values: np.ndarray) -> np.ndarray:
        present = values[~np.isnan(values)]
        known = present[present < self.n_levels].astype(np.int64)
        bins = np.full(len(known), len(self.codes))
        if len(self.codes):
            at = np.minimum(np.searchsorted(self.codes, known), len(self.codes) - 1)
            bins = np.where(self.codes[at] == known, at, bins)
        return self._tallied(bins, [len(values) - len(present), 0, 0, len(present) - len(known)])

    def compare(self, tally: np.ndarray) -> dict[str, Any]:
        return self._compared(tally, np.append(self.counts, 0), np.append(tally[:-EXTRAS], tally[-1]), ordered=False)

    def to_dict(self) -> dict[str, Any]:
        return {
            "codes": self.codes.tolist(),
            "counts": self.counts.tolist(),
            "levels": self.n_levels,
            "missing": self.missing,
        }


def _ascending(values: list[Any], kind: type) -> np.ndarray:
    """Return a list of numbers that ascend as an array."""
    numbers = np.array(values, np.int64 if kind is int else np.float64)
    if np.isnan(numbers).any() or not (np.diff(numbers) > 0).all():
        raise ValueError("its borders do not ascend")
    return numbers


#: Sums of counts must fit int64.
_COUNT = Within(0, 2**53)
_NUMBERS: Shape = {"cuts": [float], "counts": [_COUNT], "range": [(float, None)], "missing": _COUNT}
_CATEGORIES: Shape = {"codes": [Within(0, MAX_LEVELS)], "counts": [_COUNT], "levels": Within(0, MAX_LEVELS), "missing": _COUNT}


@dataclass(frozen=True, eq=False)
class Summary:
    """Distributions of the training rows of one source."""

    features: tuple[Distribution, ...]
    #: Raw scores at the end of the fit, one per output; empty if the model has been edited since.
    scores: tuple[Distribution, ...]
    target: Distribution

    @classmethod
    def of(
        cls, features: tuple[Feature, ...], values: np.ndarray, scores: np.ndarray, target: np.ndarray, n_classes: int | None
    ) -> Summary:
        """Return the summary of rows.

        Parameters
        ----------
        features : tuple of Feature
        values : float64[n, n_features]
            Codes in categorical columns, NaN where missing.
        scores : float64[n, n_outputs]
        target : float64[n]
            In the units of the loss: numbers, or codes of classes.
        n_classes : int or None
        """
        columns = [*np.ascontiguousarray(values.T), *scores.T, target]
        level_numbers = [None if feature.categories is None else len(feature.categories) for feature in features]
        n_levels = [*level_numbers, *(None for _ in scores.T), n_classes]
        distributions = [
            NumberDistribution.of(column) if levels is None else LevelDistribution.of(column, levels)
            for column, levels in zip(columns, n_levels, strict=True)
        ]
        return cls(tuple(distributions[: len(features)]), tuple(distributions[len(features) : -1]), distributions[-1])

    def tally(self, values: np.ndarray, scores: np.ndarray | None, target: np.ndarray | None) -> list[np.ndarray]:
        """Count other rows: one array for each feature, for each output's scores, and for the target if there is one."""
        pairs = [*zip(self.features, values.T, strict=True)]
        pairs += [] if scores is None else [*zip(self.scores, scores.T, strict=bool(self.scores))]
        pairs += [] if target is None else [(self.target, target)]
        return [distribution.tally(column) for distribution, column in pairs]

    def compare(self, tallies: Sequence[np.ndarray], names: Sequence[str], outputs: Sequence[str]) -> list[dict[str, Any]]:
        """Return a record with the statistics of `Booster.drift` for each column that was counted.

        names : of the features; outputs : of the scores.
        """
        known = [("feature", name, distribution) for name, distribution in zip(names, self.features, strict=True)]
        known += [("score", name, distribution) for name, distribution in zip(outputs, self.scores, strict=bool(self.scores))]
        known += [("target", "target", self.target)] if len(tallies) > len(known) else []
        return [
            {"what": kind, "name": name} | distribution.compare(tally)
            for (kind, name, distribution), tally in zip(known, tallies, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return {
            "features": [feature.to_dict() for feature in self.features],
            "scores": [score.to_dict() for score in self.scores],
            "target": self.target.to_dict(),
        }

    @classmethod
    def from_dict(cls, stored: Any, n_features: int, n_outputs: int) -> Summary:
        """Return the summary in a result of `to_dict`.

        Raises
        ------
        ModelFileError
            If the content is not a summary.
        DataError
            If the summary has other numbers of features or outputs.
        """
        try:
            features, scores = (
                [Distribution.from_dict(stored_distribution) for stored_distribution in stored[name]]
                for name in ("features", "scores")
            )
            target = Distribution.from_dict(stored["target"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ModelFileError(f"the summary of the training data in the model is no such thing: {error}") from error
        if len(features) != n_features or len(scores) not in (0, n_outputs):
            raise DataError("the summary of the training data in the model is of another model")
        return cls(tuple(features), tuple(scores), target)


#: From this excess over chance on, drift is moderate …
MODERATE = 0.1
#: … and from this on it is strong: the data differ from the training data.
STRONG = 0.25

#: Quantile of the normal distribution that is exceeded once in a thousand times.
_ONE_IN_A_THOUSAND = 3.0902323061678132


def stability_index(before: np.ndarray, after: np.ndarray) -> float:
    """Return the population stability index of two count vectors (int64[b]); 0 for fewer than two bins, or no rows."""
    used = (before > 0) | (after > 0)
    before, after = before[used] + 0.5, after[used] + 0.5
    if len(before) < 2 or before.sum() == 0.5 * len(before) or after.sum() == 0.5 * len(after):
        return 0.0
    p, q = before / before.sum(), after / after.sum()
    return math.fsum((q - p) * np.log(q / p))


def chance(before: np.ndarray, after: np.ndarray) -> float:
    """Return what the index of two samples of one population exceeds once in a thousand times (χ² by Wilson and Hilferty)."""
    freedom = int(((before > 0) | (after > 0)).sum()) - 1
    n, n_before = int(after.sum()), int(before.sum())
    if freedom < 1 or not n or not n_before:
        return 0.0
    spread = 2.0 / (9.0 * freedom)
    quantile = freedom * (1.0 - spread + _ONE_IN_A_THOUSAND * math.sqrt(spread)) ** 3
    return quantile * (1.0 / n + 1.0 / n_before)


def distance(before: np.ndarray, after: np.ndarray, *, ordered: bool) -> float:
    """Return the Kolmogorov-Smirnov distance of ordered bins (counts, int64[b]), half the sum of absolute differences of
    others.

    NaN where one side has no rows.
    """
    if not before.sum() or not after.sum():
        return math.nan
    differences = after / after.sum() - before / before.sum()
    if ordered:
        return float(np.abs(np.cumsum(differences)).max())
    return math.fsum(np.abs(differences)) / 2


def verdict(excess: float) -> str:
    """Return "none", "moderate" or "strong". excess : the index minus what chance explains."""
    return "strong" if excess >= STRONG else "moderate" if excess >= MODERATE else "none"
