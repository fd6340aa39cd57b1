"""From surveys to what is learned about: features, target, bins, where scores start.

In one process these follow from looking at all rows. Here each worker says what it has seen, and what it says merges: levels
are united and then sorted, complaints are added up, the sample of rows depends on global row numbers only. So the outcome is
that of one process, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from dboost.binning import Binning, distinct_values, exact_binning
from dboost.cluster.batch import Survey
from dboost.cluster.table import ClusterTable
from dboost.errors import DataError
from dboost.params import Parameters
from dboost.schema import Feature
from dboost.shard.loading import propose_from
from dboost.sources.levels import Dictionary
from dboost.sources.plan import Plan
from dboost.sources.reader import disagree
from dboost.sources.roles import check_heaviest, label, refuse
from dboost.training.portrait import Portrait
from dboost.training.target import Target
from dboost.training.target_survey import unite_targets


def check(table: ClusterTable) -> None:
    """Refuse what the surveys complain about, and a table without rows."""
    surveys, plan = table.surveys, table.source.plan
    if not sum(table.lengths.values()):
        raise DataError(f"the data have no rows: all {table.source.n_parts} partitions are empty")
    refuse([complaint for survey in surveys for complaint in survey.complaints])
    check_heaviest(max(survey.heaviest for survey in surveys), label("sample_weight", plan.weight))


def unite_features(plan: Plan, surveys: Sequence[Survey]) -> tuple[Feature, ...]:
    """The features, with the levels of all partitions.

    Raises
    ------
    DataError
        Naming a column that holds numbers in one partition and categories in another, with both, or too many levels.
    """
    if plan.known is not None and plan.closed:
        return plan.known
    features = []
    known = plan.known or (None,) * len(plan.rules)
    for j, rule in enumerate(plan.rules):
        told = (survey.kinds[j] for survey in surveys)
        kinds = sorted({kind for kind in told if kind is not None}, key=lambda kind: kind[1])
        for kind in kinds[1:]:
            if kind[0] != kinds[0][0]:
                raise disagree(rule.name, kinds[0], kind)
        of_model = known[j]
        dictionary = Dictionary(rule.name, None if of_model is None else of_model.levels, grows=plan.grows)
        for survey in surveys:
            dictionary.translate(survey.levels[j])
        categorical = rule.categorical or len(dictionary)
        features.append(Feature(rule.name, dictionary.finish()[0] if categorical else None))
    return tuple(features)


def unite_target(surveys: Sequence[Survey], parameters: Parameters) -> Target:
    """The loss, and the classes of all partitions; holds no rows. See `training.target_survey.unite_targets`."""
    return unite_targets([survey.target for survey in surveys if survey.target is not None], parameters)


def propose(
    table: ClusterTable,
    features: tuple[Feature, ...],
    *,
    max_bins: int,
    seed: int,
    n_threads: int,
    exact: bool = False,
) -> Binning:
    """Split points from a sample of the rows, the only ones that ever leave their worker.

    Where every distinct value is to be a candidate, each worker tells the distinct values of each feature instead.
    """
    if exact:
        told = table.ask_each("distinct", lambda share: ())
        return exact_binning(features, [reduce(distinct_values, of_feature) for of_feature in zip(*told, strict=True)])
    n_kept = table.n_kept
    starts = starts_of(n_kept)
    n_rows = sum(n_kept.values())
    parts: dict[int, Any] = {}
    of_share = {i: starts[i] for i in starts}
    for answer in table.ask_each("sample", lambda share: ({i: of_share[i] for i in share.numbers}, n_rows, seed)):
        parts |= answer
    ordered = [parts[i] for i in sorted(parts)]
    weights = [weight for _, weight in ordered]
    weight = None if any(one is None for one in weights) else np.concatenate(weights)
    return propose_from(features, [columns for columns, _ in ordered], weight, max_bins, n_threads)


def portray(table: ClusterTable, n_features: int, seed: int) -> Portrait:
    """The portrait of the rows, which leave their workers for it: raw values and targets."""
    n_kept = table.n_kept
    starts, n_rows = starts_of(n_kept), sum(n_kept.values())
    parts: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for answer in table.ask_each("portray", lambda share: ({i: starts[i] for i in share.numbers}, n_rows, seed)):
        parts |= answer
    ordered = [parts[i] for i in sorted(parts)]
    if not ordered:
        return Portrait(np.empty((0, n_features)), np.empty(0))
    return Portrait(*(np.concatenate(of) for of in zip(*ordered, strict=True)))


def starts_of(n_kept: dict[int, int]) -> dict[int, int]:
    """Number of each partition's first row among all rows of positive weight."""
    return dict(zip(n_kept, np.concatenate(([0], np.cumsum(list(n_kept.values())))).tolist(), strict=False))
