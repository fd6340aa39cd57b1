"""What the rows looked like that a model has learned from: enough of it to notice that later ones look different.

Of each feature a `Distribution` is kept. For numbers these are some twenty groups between quantiles (values that alone make up
a group have one to themselves), with the number of rows in each, and the smallest and the largest value. For categories it is
the number of rows of the most frequent levels, and of all others together. Rows without a value are counted by themselves. The
same is kept of the model's raw scores at the end of the fit, per output, and of the target.

The counts are those of a sample of the rows, which depends on the seed and the rows' numbers only (`session.reference_sample`),
so a summary is the same for any partitioning. It lies in the record of the source that it is about (`Ensemble.sources`), as
JSON types. Other rows are compared with it by counting them in the same groups; counts add up, so any number of partitions can
be counted where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.data.binning import propose
from dboost.errors import DataError, ModelFileError
from dboost.metrics import stability as drift
from dboost.schema import Feature

#: Groups of numbers at most.
GROUPS = 20
#: Levels that are counted by themselves.
LEVELS = 100
#: What is counted of other rows beside the groups: the missing, those outside the old range, those of unknown levels.
EXTRAS = 3


@dataclass(frozen=True, eq=False)
class Distribution:
    """How the values of one column, or the scores of one output, were distributed.

    Attributes
    ----------
    counts : int64[g]
        Rows of each group.
    missing : int
        Rows without a value.
    cuts : float64[g - 1] or None
        Of numbers: group i holds what is above cut i - 1 and not above cut i.
    low, high : float
        Of numbers: the smallest and the largest; NaN where there is none.
    codes : int64[g - 1] or None
        Of categories: those that the groups but the last are for, ascending; the last holds all others.
    n_levels : int
        Of categories: how many there were.
    """

    counts: np.ndarray
    missing: int
    cuts: np.ndarray | None = None
    low: float = math.nan
    high: float = math.nan
    codes: np.ndarray | None = None
    n_levels: int = 0

    @classmethod
    def of_numbers(cls, values: np.ndarray) -> Distribution:
        """From some values (float64[n], NaN where missing)."""
        present = np.sort(values[~np.isnan(values)])
        cuts = propose(present, None, GROUPS)
        counts = np.diff(np.searchsorted(present, cuts, side="right"), prepend=0, append=len(present))
        low, high = (float(present[0]) + 0.0, float(present[-1]) + 0.0) if len(present) else (math.nan, math.nan)
        return cls(counts.astype(np.int64), len(values) - len(present), cuts, low, high)

    @classmethod
    def of_codes(cls, values: np.ndarray, n_levels: int) -> Distribution:
        """From codes of categories (float64[n], NaN where missing)."""
        present = values[~np.isnan(values)].astype(np.int64)
        of_level = np.bincount(present, minlength=n_levels)
        frequent = np.argsort(-of_level, kind="stable")[:LEVELS]
        codes = np.sort(frequent[of_level[frequent] > 0])
        counts = np.append(of_level[codes], of_level.sum() - of_level[codes].sum())
        return cls(counts.astype(np.int64), len(values) - len(present), codes=codes, n_levels=n_levels)

    def tally(self, values: np.ndarray) -> np.ndarray:
        """Other values, counted: int64[g + EXTRAS], the rows of each group, the missing, those outside, those unknown.

        Unknown levels, which have codes beyond those of the model, are in no group.
        """
        present = values[~np.isnan(values)]
        outside = unknown = 0
        if self.cuts is not None:
            groups = np.searchsorted(self.cuts, present, side="left")
            outside = int(((present < self.low) | (present > self.high)).sum())
        else:
            assert self.codes is not None
            known = present[present < self.n_levels].astype(np.int64)
            unknown = len(present) - len(known)
            groups = np.full(len(known), len(self.codes))
            if len(self.codes):
                at = np.minimum(np.searchsorted(self.codes, known), len(self.codes) - 1)
                groups = np.where(self.codes[at] == known, at, groups)
        counts = np.bincount(groups, minlength=len(self.counts))
        return np.append(counts, [len(values) - len(present), outside, unknown]).astype(np.int64)

    def compare(self, tally: np.ndarray) -> dict[str, Any]:
        """What has changed, see `Summary.compare`."""
        after, (missing, outside, unknown), n = tally[:-EXTRAS], tally[-EXTRAS:], n_rows_of(tally)
        n_before = int(self.counts.sum()) + self.missing
        # Those without a value and those of unknown levels are groups like the others.
        both = [np.append(self.counts, [self.missing, 0]), np.append(after, [missing, unknown])]
        index, by_chance = drift.stability_index(*both), drift.chance(*both)
        ordered = self.cuts is not None
        sides = [self.counts, after] if ordered else [np.append(self.counts, 0), np.append(after, unknown)]
        return {
            "psi": index,
            "chance": by_chance,
            "distance": drift.distance(*sides, ordered=ordered),
            "missing_before": self.missing / n_before if n_before else math.nan,
            "missing": int(missing) / n if n else math.nan,
            "outside": int(outside) / n if n and ordered else math.nan,
            "unseen": int(unknown) / n if n and not ordered else math.nan,
            "drift": drift.verdict(index - by_chance),
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        if self.cuts is None:
            assert self.codes is not None
            return {
                "codes": self.codes.tolist(),
                "counts": self.counts.tolist(),
                "levels": self.n_levels,
                "missing": self.missing,
            }
        ends = [None if math.isnan(end) else end for end in (self.low, self.high)]
        return {"cuts": self.cuts.tolist(), "counts": self.counts.tolist(), "range": ends, "missing": self.missing}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Distribution:
        """From what `to_dict` gave. ValueError, TypeError or KeyError when it is something else."""
        counts, missing = _ascending(stored["counts"], int, strictly=None), int(stored["missing"])
        if "cuts" in stored:
            low, high = (math.nan if end is None else float(end) for end in stored["range"])
            cuts = _ascending(stored["cuts"], float, strictly=True)
            found = cls(counts, missing, cuts, low, high)
        else:
            found = cls(counts, missing, codes=_ascending(stored["codes"], int, strictly=True), n_levels=int(stored["levels"]))
        borders = found.cuts if found.cuts is not None else found.codes
        assert borders is not None
        if len(counts) != len(borders) + 1 or missing < 0 or (counts < 0).any():
            raise ValueError("its counts do not fit")
        return found


def n_rows_of(tally: np.ndarray) -> int:
    """How many rows were counted."""
    missing, _, unknown = tally[-EXTRAS:]
    return int(tally[:-EXTRAS].sum() + missing + unknown)


def _ascending(values: Any, kind: type, *, strictly: bool | None) -> np.ndarray:
    """A list of numbers as an array; strictly : whether they must ascend."""
    if not isinstance(values, list) or not all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        raise ValueError("it holds something else than numbers")
    found = np.array(values, np.int64 if kind is int else np.float64)
    if strictly and not (np.diff(found) > 0).all():
        raise ValueError("its borders do not ascend")
    return found


@dataclass(frozen=True, eq=False)
class Summary:
    """Of the rows that a source's trees were grown from.

    Attributes
    ----------
    features : tuple of Distribution
    scores : tuple of Distribution
        Of the raw scores at the end of the fit, one per output; none where the model has been changed since.
    target : Distribution
    """

    features: tuple[Distribution, ...]
    scores: tuple[Distribution, ...]
    target: Distribution

    @classmethod
    def of(
        cls, features: tuple[Feature, ...], values: np.ndarray, scores: np.ndarray, target: np.ndarray, n_classes: int | None
    ) -> Summary:
        """From some rows.

        Parameters
        ----------
        features : tuple of Feature
        values : float64[n, n_features]
            Codes in categorical columns, NaN where missing.
        scores : float64[n, n_outputs]
        target : float64[n]
            In the terms of the loss.
        n_classes : int or None
        """
        columns = [
            Distribution.of_numbers(column) if feature.levels is None else Distribution.of_codes(column, len(feature.levels))
            for feature, column in zip(features, values.T, strict=True)
        ]
        truth = Distribution.of_numbers(target) if n_classes is None else Distribution.of_codes(target, n_classes)
        return cls(tuple(columns), tuple(Distribution.of_numbers(score) for score in scores.T), truth)

    def tally(self, values: np.ndarray, scores: np.ndarray | None, target: np.ndarray | None) -> list[np.ndarray]:
        """Other rows, counted: one array for each feature, for each output's scores, and for the target if there is one."""
        pairs = [*zip(self.features, values.T, strict=True)]
        pairs += [] if scores is None else [*zip(self.scores, scores.T, strict=bool(self.scores))]
        pairs += [] if target is None else [(self.target, target)]
        return [distribution.tally(column) for distribution, column in pairs]

    def compare(self, tallies: Sequence[np.ndarray], names: Sequence[str], outputs: Sequence[str]) -> list[dict[str, Any]]:
        """A record for each column that was counted, with what `Booster.drift` says of it.

        names : of the features; outputs : of the scores.
        """
        known = [("feature", name, one) for name, one in zip(names, self.features, strict=True)]
        known += [("score", name, one) for name, one in zip(outputs, self.scores, strict=bool(self.scores))]
        known += [("target", "target", self.target)] if len(tallies) > len(known) else []
        return [
            {"what": what, "name": name} | one.compare(tally) for (what, name, one), tally in zip(known, tallies, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "features": [one.to_dict() for one in self.features],
            "scores": [one.to_dict() for one in self.scores],
            "target": self.target.to_dict(),
        }

    @classmethod
    def from_dict(cls, stored: Any, n_features: int, n_outputs: int) -> Summary:
        """From what `to_dict` gave.

        Raises
        ------
        DataError
            When it is no summary of a model of so many features and outputs.
        """
        try:
            features, scores = ([Distribution.from_dict(one) for one in stored[name]] for name in ("features", "scores"))
            target = Distribution.from_dict(stored["target"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ModelFileError(f"the summary of the training data in the model is no such thing: {error}") from error
        if len(features) != n_features or len(scores) not in (0, n_outputs):
            raise DataError("the summary of the training data in the model is of another model")
        return cls(tuple(features), tuple(scores), target)
