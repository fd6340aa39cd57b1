"""Which features act apart, and which only together.

If F(x) = F_z(x_z) + F_rest(x_rest), the features of z and the rest do not interact, and partial dependence finds the two
parts (54); if F is their product, it finds them up to a factor (55). So the correlation, over the rows, of F with the
sum and with the product of the two dependences says how additive or multiplicative F is (§8.1 of the paper).

Friedman's H compares variances instead of correlating: for two features,

    H² = Σ_i [ F_jk(x_ij, x_ik) - F_j(x_ij) - F_k(x_ik) ]² / Σ_i F_jk(x_ij, x_ik)²,      all F centred over the rows.

Dependences are the trees' weighted traversal, which costs one pass over the rows instead of one per row. Where rows have
weights, means and sums are weighted: centred values are multiplied by the roots of the weights, so that products of two of
them have the weights in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dboost._lazy_import import pd
from dboost.errors import DataError, ParameterError
from dboost.inspection.dependence import Traversal
from dboost.inspection.feature_names import class_names, positions
from dboost.inspection.importance import importance
from dboost.inspection.row_functions import sample
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble

#: Features whose pairs are looked at when none are named.
MOST_IMPORTANT = 10


def additivity(ensemble: Ensemble, features: Any, data: Any, max_rows: int, weight: Any = None) -> pd.Series | pd.DataFrame:
    """See `dboost.inspection.inspection_methods.Inspection.additivity`."""
    chosen = positions(ensemble, features)
    rest = [j for j in range(len(ensemble.features)) if j not in chosen]
    if not rest:
        raise ParameterError("these are all features of the model: there is no rest that they could act apart from")
    block, weight = _rows(data, ensemble, max_rows, weight)
    raw, traverse = FlatEnsemble(ensemble).raw_scores(block), Traversal(ensemble)
    part, other = traverse(chosen, block), traverse(rest, block)
    table = {}
    for k, name in enumerate(class_names(ensemble)):
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
    """See `dboost.inspection.inspection_methods.Inspection.interaction_strength`."""
    if features is None:
        features = list(importance(ensemble).index[:MOST_IMPORTANT])
    chosen = positions(ensemble, features)
    if len(chosen) < 2:
        raise ParameterError("interactions are between features: name at least two")
    block, weight = _rows(data, ensemble, max_rows, weight)
    traverse = Traversal(ensemble)
    alone = {j: _centred(traverse([j], block), weight) for j in chosen}
    met = traverse.pairs
    names, rows = [feature.name for feature in ensemble.features], []
    for i, j in combinations(chosen, 2):
        # Features that no tree asks about on one path add up, to rounding.
        together = _centred(traverse([i, j], block), weight) if {i, j} in met else alone[i] + alone[j]
        left_over = together - alone[i] - alone[j] if {i, j} in met else np.zeros_like(together)
        for k, of_class in enumerate(class_names(ensemble)):
            h = _root_share(left_over[:, k], together[:, k])
            rows.append({"feature_1": names[i], "feature_2": names[j], "class": of_class, "h": h})
    frame = pd.DataFrame(rows).sort_values("h", ascending=False, kind="stable", ignore_index=True)
    return frame if ensemble.n_outputs > 1 else frame.drop(columns="class")


def _at_least_one(max_rows: int) -> int:
    if not isinstance(max_rows, int) or max_rows < 1:
        raise ParameterError(f"max_rows={max_rows!r} must be an integer of at least 1")
    return max_rows


def _rows(data: Any, ensemble: Ensemble, max_rows: int, weight: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """A sample of the rows, and what they count for."""
    block = sample(data, ensemble, _at_least_one(max_rows), weight)[1]
    if block.weight is not None and not block.weight.any():
        raise DataError("inspect: no row that is looked at has a weight above 0")
    return block.block, block.weight


def _centred(values: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Values [n] or [n, n_outputs] less their mean, times the roots of the weights."""
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
