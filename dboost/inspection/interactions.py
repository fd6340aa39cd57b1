"""Interactions between features: additivity of a set of features, and the H statistic of pairs.

If F(x) = F_z(x_z) + F_rest(x_rest), the features of z and the rest do not interact, and partial dependence recovers the two
terms (54); if F is their product, it recovers them up to a factor (55). So the correlation, over the rows, of F with the sum
and with the product of the two dependences measures how additive or multiplicative F is (section 8.1 of Friedman, 2001).

Friedman's H compares variances instead of correlating: for two features,

    H² = Σ_i [ F_jk(x_ij, x_ik) - F_j(x_ij) - F_k(x_ik) ]² / Σ_i F_jk(x_ij, x_ik)²,      all F centred over the rows.

Dependences are computed by weighted traversal of the trees, which needs one pass over the rows instead of one per row. With
sample weights, means and sums are weighted: centred values are multiplied by the square roots of the weights, so that a product
of two of them contains the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dboost._lazy_import import pd
from dboost.errors import DataError, ParameterError
from dboost.inspection.dependence import Traversal
from dboost.inspection.importance import importance
from dboost.inspection.row_functions import at_least_one, sample
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble

#: Number of features whose pairs are computed by default.
MOST_IMPORTANT = 10


def additivity(ensemble: Ensemble, features: Any, data: Any, max_rows: int, weight: Any = None) -> pd.Series | pd.DataFrame:
    """Return the additivity of features; `Booster.additivity` documents it."""
    chosen = ensemble.feature_positions(features)
    rest = [j for j in range(len(ensemble.features)) if j not in chosen]
    if not rest:
        raise ParameterError("these are all features of the model: there is no rest that they could act apart from")
    block, weight = _rows(data, ensemble, max_rows, weight)
    raw, traverse = FlatEnsemble(ensemble).raw_scores(block), Traversal(ensemble)
    part, other = traverse(chosen, block), traverse(rest, block)
    table = {}
    for k, name in enumerate(ensemble.output_names):
        left_over = _centred(raw[:, k] - part[:, k] - other[:, k], weight)
        table[name] = {
            "additive": _correlation(raw[:, k], part[:, k] + other[:, k], weight),
            "multiplicative": _correlation(raw[:, k], part[:, k] * other[:, k], weight),
            "h": _root_share(left_over, _centred(raw[:, k], weight)),
        }
    frame = pd.DataFrame(table).rename_axis(columns="class")
    return frame if ensemble.n_outputs > 1 else frame.iloc[:, 0].rename("additivity")


def interaction_strength(
    ensemble: Ensemble, data: Any, features: Sequence[Any] | None, max_rows: int, weight: Any = None
) -> pd.DataFrame:
    """Return the H statistic of pairs; `Booster.interaction_strength` documents it."""
    if features is None:
        features = list(importance(ensemble).index[:MOST_IMPORTANT])
    chosen = ensemble.feature_positions(features)
    if len(chosen) < 2:
        raise ParameterError("interactions are between features: name at least two")
    block, weight = _rows(data, ensemble, max_rows, weight)
    traverse = Traversal(ensemble)
    alone = {j: _centred(traverse([j], block), weight) for j in chosen}
    on_one_path = traverse.pairs
    names, rows = [feature.name for feature in ensemble.features], []
    for i, j in combinations(chosen, 2):
        # Features that share no path in any tree are additive, up to rounding.
        together = _centred(traverse([i, j], block), weight) if {i, j} in on_one_path else alone[i] + alone[j]
        left_over = together - alone[i] - alone[j] if {i, j} in on_one_path else np.zeros_like(together)
        for k, of_class in enumerate(ensemble.output_names):
            h = _root_share(left_over[:, k], together[:, k])
            rows.append({"feature_1": names[i], "feature_2": names[j], "class": of_class, "h": h})
    frame = pd.DataFrame(rows).sort_values("h", ascending=False, kind="stable", ignore_index=True)
    return frame if ensemble.n_outputs > 1 else frame.drop(columns="class")


def _rows(data: Any, ensemble: Ensemble, max_rows: int, weight: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """A sample of the rows and their weights."""
    block = sample(data, ensemble, at_least_one("max_rows", max_rows), weight)[1]
    if block.weight is not None and not block.weight.any():
        raise DataError("inspect: no row that is looked at has a weight above 0")
    return block.block, block.weight


def _centred(values: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Values [n] or [n, n_outputs] minus their mean, times the square roots of the weights."""
    if weight is None:
        return values - values.mean(axis=0)
    centred = values - np.average(values, axis=0, weights=weight)
    return centred * np.sqrt(weight).reshape(-1, *(1,) * (values.ndim - 1))


def _correlation(a: np.ndarray, b: np.ndarray, weight: np.ndarray | None) -> float:
    a, b = _centred(a, weight), _centred(b, weight)
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float("nan")


def _root_share(part: np.ndarray, whole: np.ndarray) -> float:
    total = float(whole @ whole)
    return float(np.sqrt(part @ part / total)) if total > 0 else float("nan")
