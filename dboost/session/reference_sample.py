"""The reference sample: a few training rows from which the summary for drift detection is computed.

The rows are drawn by a hash of the seed and the global row id, as in `binning.sample_rows` but fewer. So the sample does not
depend on the partitioning. Its raw values, at most `VALUES` of them (16 MB), stay in memory until the last tree is grown. Then
the model scores the rows, and the `Summary` of values, scores and targets is stored in the model's record of the data source.

A fit that continues a model compares the reference sample of the new rows with the summary in the model before it grows the
first tree. If features or the target have drifted strongly, it warns, and the warning reports how the steps of new trees are
damped, and the option without damping. Drift of the scores alone causes no warning, because a model is more certain about rows
that it was trained on than about other rows. The fit does not choose the option itself: after a strong drift of the target,
full steps are better where the new level lasts and much worse where it does not, which nothing in the new rows tells.

**Why not counts by bin**, which need no sample: they have no scores, no targets of regression and no extremes, which
`Booster.drift` compares; a leaf refit has no bins; and histograms count rows only with some parameters
(`training.plan.precision_of`). Data that continue a model have other bins, which cut those of its summary: shares would be
interpolated, and of amounts that are often zero they are so wrong that equal populations seem to have drifted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dboost.data.columns.binning import sample_rows
from dboost.data.tables.table import values_in
from dboost.display import number
from dboost.errors import DriftWarning, warn
from dboost.model.data_summary import STRONG, Summary
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.params import Parameters
from dboost.schema import Feature
from dboost.session.table_rows import TableRows

#: Maximal number of rows of a sample, and of values.
ROWS, VALUES = 10_000, 2_000_000
#: Number of rows from which on a different category in each of them is no chance.
LEAST_IDS = 50
#: Maximal number of names in a warning.
_MOST_NAMES = 5


@dataclass(frozen=True, eq=False)
class ReferenceSample:
    """Values and targets of the rows of a reference sample."""

    values: np.ndarray  # float64[n, n_features]; codes in categorical columns, NaN for missing values
    target: np.ndarray  # float64[n]


def reference_size(n_features: int) -> int:
    """Return the number of rows of the reference sample of a large table, about."""
    return max(min(ROWS, VALUES // max(n_features, 1)), 1)


def reference_rows(n_rows: int, n_features: int, seed: int, first: int = 0, last: int | None = None) -> np.ndarray:
    """Return the global ids among first…last-1 that are in the sample of `n_rows` rows: int64[...], ascending."""
    return sample_rows(n_rows, seed, first, last, size=reference_size(n_features))


def reference_values(rows: TableRows, seed: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return values and targets of the rows of the reference sample, by partition."""
    table = rows.table
    drawn, _ = rows.drawn(partial(reference_rows, rows.id_ranges.n_rows, len(table.features), seed))
    sampled = values_in(table, rows.positions(drawn))
    return {table.partition_ids[k]: (values, rows.target_of(k)[..., drawn[k]]) for k, values in sampled}


def with_summary(model: Ensemble, sample: ReferenceSample | None, n_threads: int | None = 1) -> Ensemble:
    """Return the model with a summary of the sample in the record of its last source."""
    if sample is None or not model.sources:
        return model
    scores = _scores(model, sample.values, n_threads)
    n_classes = None if model.classes is None else len(model.classes)
    summary = Summary.of(model.features, sample.values, scores, sample.target, n_classes)
    *before, last = model.sources
    return replace(model, sources=(*before, last | {"summary": summary.to_dict()}))


def _scores(model: Ensemble, values: np.ndarray, n_threads: int | None) -> np.ndarray:
    """Return the raw scores of a sample: from float32 if it has these values, as its table probably has. Then predictions for
    the table use the same compiled kernel."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    is_exact = ((single == values) | (values != values)).all()
    return FlatEnsemble(model).raw_scores(single if is_exact else values, n_threads=n_threads)


def summary_of(model: Ensemble, source: int = -1) -> Summary | None:
    """Return the stored summary of a model's source, or None; it includes scores only for the last source."""
    if not model.sources or "summary" not in model.sources[source]:
        return None
    summary = Summary.from_dict(model.sources[source]["summary"], len(model.features), model.n_outputs)
    is_last = source in (-1, len(model.sources) - 1)
    return summary if is_last else replace(summary, scores=())


def warn_of_ids(features: Sequence[Feature], sample: ReferenceSample) -> None:
    """Warn of categorical features that have a different level in each row of the sample."""
    for feature, values in zip(features, sample.values.T, strict=False):  # a sample of no rows has no columns
        if feature.categories is not None and len(feature.categories) >= LEAST_IDS:
            present = values[~np.isnan(values)]
            if LEAST_IDS <= len(present) <= len(feature.categories) and len(np.unique(present)) == len(present):
                warn(
                    f"feature {feature.name!r} has a different category in each row, as ids have: trees learn nothing from it "
                    "about other rows; leave it out, with features=… or by dropping the column"
                )


def damped_steps(asked: Parameters, learning: Parameters) -> str:
    """Return how steps are damped, for messages; empty if they are not. asked, learning : see `warn_of_drift`."""
    pairs = ((name, getattr(learning, name), getattr(asked, name)) for name in ("learning_rate", "l2_regularization"))
    changed = [
        f"{name} {number(damped, 3)} instead of {number(value_given, 3)}"
        for name, damped, value_given in pairs
        if damped != value_given
    ]
    return f"steps are damped: {', '.join(changed)}" if changed else ""


def warn_of_damping(model: Ensemble, n_rows: int, asked: Parameters, learning: Parameters) -> None:
    """Warn if steps are damped though the rows that continue a model are at least twice those that it has learned from.

    Then the new rows alone may make a better model than one that hardly moves. model, asked, learning : see `warn_of_drift`.
    """
    known = [source["rows"] for source in model.sources if source.get("rows")]
    damped = damped_steps(asked, learning)
    if known and damped and n_rows >= 2 * sum(known):
        warn(
            f"{damped}, though the {n_rows:,} new rows are more than the {sum(known):,} that the model has learned from: "
            "continue_steps='full' uses full steps"
        )


def warn_of_drift(model: Ensemble, sample: ReferenceSample, asked: Parameters, learning: Parameters) -> None:
    """Warn if the rows that continue a model have drifted from those of the model's last source.

    Parameters
    ----------
    model : Ensemble
    sample : ReferenceSample
        The reference sample of the new rows.
    asked, learning : Parameters
        The user's parameters, and the parameters after damping.
    """
    summary = summary_of(model)
    if summary is None or not len(sample.values):
        return
    scores = _scores(model, sample.values, 1) if summary.scores else None
    tallies = summary.tally(sample.values, scores, sample.target)
    names = [repr(feature.name) for feature in model.features]
    records = summary.compare(tallies, names, ["the model's raw scores"] * model.n_outputs)
    drifted = [record for record in records if record["drift"] == "strong"]
    if all(record["what"] == "score" for record in drifted):
        return
    drifted.sort(key=lambda record: (record["what"] != "target", record["chance"] - record["psi"]))
    shown = ("the target" if record["what"] == "target" else record["name"] for record in drifted)
    unique = list(dict.fromkeys(shown))  # scores of several outputs have one entry
    rest = f" and {len(unique) - _MOST_NAMES} more" if len(unique) > _MOST_NAMES else ""
    listed = ", ".join(unique[:_MOST_NAMES]) + rest
    damped = damped_steps(asked, learning)
    steps = f"{damped}, and continue_steps='full' uses full steps" if damped else "steps are not damped"
    warn(
        f"the new data have drifted from those that the model learned from last (stability index above {STRONG}): {listed}; "
        f"{steps}. Booster.drift(data, target) tells more",
        DriftWarning,
    )
