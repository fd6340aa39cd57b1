"""A portrait of the training rows: a few of them, which stand for all when the model is asked later what it has seen.

They are drawn by a hash of the seed and the row's number, as the rows are that propose split points (`binning.sample_rows`),
but fewer; so the portrait is the same wherever the rows lie. Their raw values wait, some megabytes at most, until the last
tree is grown. Then the model scores them, and what is kept is the `Summary` of values, scores and targets, in the record of the
source.

Where a model is continued, the portrait of the new rows is held against the summary in the model before the first tree. If
features have drifted strongly, the user is warned, and told how the new trees are damped. Scores alone are no reason: of rows
that a model was trained on it is surer than of any others.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dboost.data import CategoryColumn, Chunk, Table
from dboost.data.binning import sample_rows
from dboost.errors import DriftWarning
from dboost.metrics.stability import STRONG
from dboost.model.data_summary import Summary
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble
from dboost.params import Parameters

#: Rows of a portrait at most, and values.
ROWS, VALUES = 10_000, 2_000_000
#: Names that a warning tells.
_TOLD = 5


@dataclass(frozen=True, eq=False)
class ReferenceSample:
    """Some rows.

    Attributes
    ----------
    values : float64[n, n_features]
        Codes in categorical columns, NaN where missing.
    target : float64[n]
    """

    values: np.ndarray
    target: np.ndarray


def reference_rows(n_rows: int, n_features: int, seed: int, first: int = 0, last: int | None = None) -> np.ndarray:
    """Numbers of the rows of a portrait, of first…last-1, out of `n_rows` rows of positive weight: int64[...], ascending."""
    return sample_rows(n_rows, seed, first, last, size=max(min(ROWS, VALUES // max(n_features, 1)), 1))


def values_of(chunk: Chunk, rows: np.ndarray) -> np.ndarray:
    """Some rows of a chunk as numbers: float64[n, n_features]."""
    values = np.empty((len(rows), len(chunk.columns)))
    for j, column in enumerate(chunk.columns):
        if isinstance(column, CategoryColumn):
            codes = column.codes[rows]
            values[:, j] = np.where(codes < 0, np.nan, codes)
        else:
            values[:, j] = column[rows]
    return values


def values_in(table: Table, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The number of each chunk that has some of the rows (int64, ascending), and their values."""
    start = 0
    for i, length in enumerate(table.lengths):
        low, high = np.searchsorted(rows, (start, start + length))
        if low < high:
            found = [values_of(chunk, some) for _, some, chunk in table.slices(i, rows[low:high] - start) if some is not None]
            yield i, np.concatenate(found)
        start += length


def draw_reference_sample(table: Table, target: np.ndarray, kept: np.ndarray | None, seed: int) -> ReferenceSample:
    """Draw the portrait of a table's rows of positive weight.

    target : float64[n_rows], of all rows; kept : numbers of those of positive weight, or None where these are all.
    """
    rows = reference_rows(table.n_rows if kept is None else len(kept), len(table.features), seed)
    rows = rows if kept is None else kept[rows]
    return ReferenceSample(np.concatenate([values for _, values in values_in(table, rows)]), target[rows])


def with_summary(model: Ensemble, portrait: ReferenceSample | None, n_threads: int | None = 1) -> Ensemble:
    """The model with a summary of the rows in the record of its last source."""
    if portrait is None or not model.sources:
        return model
    scores = FlatEnsemble(model).raw_scores(portrait.values, n_threads=n_threads)
    n_classes = None if model.classes is None else len(model.classes)
    summary = Summary.of(model.features, portrait.values, scores, portrait.target, n_classes)
    *before, last = model.sources
    return replace(model, sources=(*before, last | {"summary": summary.to_dict()}))


def summary_of(model: Ensemble, source: int = -1) -> Summary | None:
    """The summary of the data of one of a model's sources, where it has one; of scores only if no other source came after."""
    if not model.sources or "summary" not in model.sources[source]:
        return None
    summary = Summary.from_dict(model.sources[source]["summary"], len(model.features), model.n_outputs)
    is_last = source in (-1, len(model.sources) - 1)
    return summary if is_last else replace(summary, scores=())


def warn_of_drift(model: Ensemble, portrait: ReferenceSample, asked: Parameters, learning: Parameters) -> None:
    """Warn when the rows that a model is to go on with look different from those that it has learned from last.

    Parameters
    ----------
    model : Ensemble
    portrait : ReferenceSample
        Of the new rows.
    asked, learning : Parameters
        What the user asked for, and what that has become by damping.
    """
    summary = summary_of(model)
    if summary is None or not len(portrait.values):
        return
    scores = FlatEnsemble(model).raw_scores(portrait.values, n_threads=1) if summary.scores else None
    tallies = summary.tally(portrait.values, scores, None)
    names = [repr(feature.name) for feature in model.features]
    records = summary.compare(tallies, names, ["the model's raw scores"] * model.n_outputs)
    drifted = sorted((one for one in records if one["drift"] == "strong"), key=lambda one: one["chance"] - one["psi"])
    if not any(one["what"] == "feature" for one in drifted):
        return
    told = dict.fromkeys(one["name"] for one in drifted)  # the scores of several outputs once
    listed = ", ".join(list(told)[:_TOLD]) + (f" and {len(told) - _TOLD} more" if len(told) > _TOLD else "")
    if (learning.learning_rate, learning.l2_regularization) == (asked.learning_rate, asked.l2_regularization):
        steps = "steps are not damped"
    else:
        steps = (
            f"steps are damped: learning_rate {learning.learning_rate:.3g} instead of {asked.learning_rate:.3g}, "
            f"l2_regularization {learning.l2_regularization:.3g}"
        )
    warnings.warn(
        f"the new data have drifted from those that the model learned from last (stability index above {STRONG}): {listed}; "
        f"{steps}. Booster.drift(data) tells more",
        DriftWarning,
        stacklevel=_depth(),
    )


def _depth() -> int:
    """How many frames up the code is that called dboost."""
    import inspect

    package, frame, depth = os.path.dirname(os.path.dirname(os.path.abspath(__file__))), inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(package + os.sep):
        frame, depth = frame.f_back, depth + 1
    return depth
