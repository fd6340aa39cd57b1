"""The model card of the report: statements of the author, a summary of the training data, and caveats that the model implies.

Metrics and parameters are other sections of the same page. The summary is the one that the model contains, of a sample of its
training rows (`model.data_summary`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dboost._lazy_import import pd
from dboost.errors import InputTypeError
from dboost.inspection.importance import importance
from dboost.model.data_summary import Distribution, Summary
from dboost.model.ensemble import Ensemble
from dboost.session.reference_sample import summary_of

#: Largest number of features in the table.
MAX_FEATURES = 100
#: A caveat is stated if a feature misses more than this share of its values …
MUCH_MISSING = 0.5
#: … if its splits have more than this percentage of the gain …
DOMINANT = 80.0
#: … or if a class has less than this share of the rows.
RARE = 0.05


def checked_card(card: Any) -> dict[str, str]:
    """Return the statements of the author.

    Raises
    ------
    InputTypeError
        If they are not texts by heading.
    """
    if not isinstance(card, Mapping) or not all(isinstance(text, str) for item in card.items() for text in item):
        raise InputTypeError("card must be texts by heading, such as {'Intended use': '…', 'Limitations': '…'}")
    return dict(card)


def content(ensemble: Ensemble, card: Mapping[str, str], *, is_evaluated: bool) -> dict[str, Any]:
    """Return the content of the section. is_evaluated : whether the page has metrics of rows that were given for it."""
    summary = summary_of(ensemble)
    return {
        "statements": [(heading, text.split("\n\n")) for heading, text in card.items()],
        "features": None if summary is None else features_table(ensemble, summary),
        "n_sampled": None if summary is None else _n_rows(summary.target),
        "n_omitted": max(len(ensemble.features) - MAX_FEATURES, 0),
        "caveats": caveats(ensemble, summary, is_evaluated=is_evaluated),
    }


def features_table(ensemble: Ensemble, summary: Summary) -> pd.DataFrame:
    """Return one row per feature: kind, share of missing values, smallest and largest value or number of categories."""
    rows = []
    for feature, known in zip(ensemble.features[:MAX_FEATURES], summary.features[:MAX_FEATURES], strict=True):
        kind = "numeric" if feature.categories is None else f"categorical, {len(feature.categories)} levels"
        missing = f"{100 * known.missing / max(_n_rows(known), 1):.1f} %"
        rows.append({"feature": feature.name, "kind": kind, "missing": missing, "smallest": known.low, "largest": known.high})
    return pd.DataFrame(rows, columns=["feature", "kind", "missing", "smallest", "largest"])


def caveats(ensemble: Ensemble, summary: Summary | None, *, is_evaluated: bool) -> list[str]:
    """Return what a user of the model should know, one sentence each."""
    found = []
    if not is_evaluated and not any(name != "train_loss" for name in ensemble.metrics):
        found.append("All metrics are those of the training rows: the error on other rows is not known.")
    if ensemble.best_iteration is not None and not is_evaluated:
        found.append("Early stopping selected the number of iterations by an evaluation set, whose metrics are optimistic.")
    if len(ensemble.sources) > 1:
        found.append(
            f"The model was trained on {len(ensemble.sources)} data sets, one after another; the summary is of the last."
        )
    gain = importance(ensemble, "gain")
    if len(gain) > 1 and gain.sum() > 0 and 100 * gain.iloc[0] / gain.sum() > DOMINANT:
        share = 100 * gain.iloc[0] / gain.sum()
        found.append(f"The feature {gain.index[0]} has {share:.0f} % of the gain: check that it is known before the target is.")
    if summary is None:
        return [*found, "The model contains no summary of its training data."]
    for feature, known in zip(ensemble.features, summary.features, strict=True):
        if known.missing > MUCH_MISSING * _n_rows(known):
            found.append(f"The feature {feature.name} is missing in {100 * known.missing / _n_rows(known):.0f} % of the rows.")
    if ensemble.classes is not None and summary.target.codes is not None:
        shares = dict.fromkeys(range(len(ensemble.classes)), 0.0)
        for code, count in zip(summary.target.codes.tolist(), summary.target.counts.tolist(), strict=False):
            shares[code] = count / max(_n_rows(summary.target), 1)
        rare = [f"{ensemble.classes[code]} ({100 * share:.1f} %)" for code, share in shares.items() if share < RARE]
        if rare:
            found.append(f"Few rows belong to the class {' and to the class '.join(rare)}: prefer metrics that consider it.")
    return [
        *found,
        "The model file contains the summary below: quantiles, extremes and frequent categories of the training rows.",
    ]


def _n_rows(known: Distribution) -> int:
    return int(known.counts.sum()) + known.missing
