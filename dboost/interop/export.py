"""Parts that all export formats share: the form of the link, rows as numbers, thresholds in float32.

**Link.** A loss declares the form of its inverse link (`Link.form`): "identity", "exp", "sigmoid" of the raw score times a
factor, or "softmax". The declaration is compared with `Link.to_prediction` on some scores, so that a user-defined loss with
another link is refused instead of exported with a wrong one.

**Categories.** Other formats represent categories by whole numbers. Levels that are such numbers already (0, 1, 7, or truth
values) represent themselves; all other levels (text, fractions) are represented by their position in the feature's
`categories`. Missing values are NaN.

**Precision.** XGBoost and ONNX compare in float32. A float32 value represents all float64 values that round to it; so a
threshold t becomes the float32 nearest to it, of two the lower one. If x <= t, then also float32(x) <= float32(t), so rows at a
threshold stay on their side. If a model was trained on float32 values, each threshold is a float32 or lies half-way between
two, and every float32 row reaches the same leaves; else rows between a threshold and the float32 next to it may not. A value
beyond the range of float32 becomes an infinity and takes the path of an infinity: one float32 cannot represent values on both
sides of a threshold out there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dboost.data import predict_through
from dboost.errors import ParameterError
from dboost.losses import BaseLoss, Quantiles
from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import Feature


def to_matrix(ensemble: Ensemble, X: Any) -> Any:
    """Return rows as exported models read them; `Booster.to_matrix` documents it."""
    names = [feature.name for feature in ensemble.features]
    function = partial(as_numbers, features=ensemble.features)
    return predict_through(X, function, features=ensemble.features, named=ensemble.named, names=names, dtype=np.float64)


def response_of(loss: BaseLoss, n_outputs: int, to: str) -> tuple[str, float]:
    """Return the form of the inverse link ("identity", "exp", "sigmoid", "softmax") and the factor of the raw score.

    to : the format, for messages.

    Raises
    ------
    ParameterError
        If the loss has another link.
    """
    if isinstance(loss, Quantiles) and to == "XGBoost":
        return "identity", 1.0
    if isinstance(loss, Quantiles):
        raise ParameterError(f"dboost sorts the scores of several quantiles, which {to} does not: fit one level to export it")
    if to == "XGBoost" and loss.parts and len({(type(part), part.name) for part in loss.parts}) == 1:
        return response_of(loss.parts[0], 1, to)  # it applies the link of its objective to each target
    if loss.link.predicts_first:
        raise ParameterError(
            f"{to} has no models of loss={loss.name!r}, which predict a mean and a scale: fit the mean with "
            "loss='squared_error' to export it"
        )
    if loss.link.are_probabilities and n_outputs > 1 and to != "ONNX":
        raise ParameterError(f"{to} has no models whose raw scores are probabilities of several classes: export to ONNX")
    if loss.link.form not in ("identity", "exp", "sigmoid", "softmax"):
        raise ParameterError(f"loss {loss.name!r} declares the response {loss.link.form!r}, which is no form of inverse link")
    scores = np.stack([np.linspace(-3.0, 3.0, 25) * (k + 1) for k in range(n_outputs)])
    scaled = scores * loss.link.factor
    with np.errstate(all="ignore"):
        expected = {
            "identity": lambda: scaled,
            "exp": lambda: np.exp(scaled),
            "sigmoid": lambda: 1.0 / (1.0 + np.exp(-scaled)),
            "softmax": lambda: np.exp(scaled) / np.exp(scaled).sum(axis=0, keepdims=True),
        }[loss.link.form]()
        response = np.asarray(loss.link.to_prediction(scores), np.float64)
    if loss.parts and not np.array_equal(response, expected):
        raise ParameterError(
            f"a model of several targets is exported to {to} if its predictions are raw scores, which those of "
            f"{', '.join(dict.fromkeys(part.name for part in loss.parts))} are not: export a model of each target"
        )
    if response.shape != expected.shape or not np.allclose(response, expected, rtol=1e-9, atol=1e-12):
        raise ParameterError(
            f"a model of loss {loss.name!r} cannot be exported to {to}: its inverse_link is not the {loss.link.form!r} that "
            "its class declares; a class may declare response = 'identity', 'exp' or 'sigmoid', other links are not carried"
        )
    return loss.link.form, loss.link.factor


#: Whole numbers up to this one are exact in float32, and XGBoost and treelite accept them as categories.
MAX_NUMBER = 2**24 - 1


def numbers_of_levels(feature: Feature) -> np.ndarray:
    """Return the number that represents each level of a categorical feature: int64[n_levels], distinct."""
    levels = feature.categories or ()
    are_whole = all(not isinstance(level, str) and float(level).is_integer() and 0 <= level <= MAX_NUMBER for level in levels)
    if are_whole and len(set(levels)) == len(levels):
        return np.array([int(level) for level in levels], np.int64)
    return np.arange(len(levels), dtype=np.int64)


def as_numbers(block: np.ndarray, features: tuple[Feature, ...]) -> np.ndarray:
    """Replace the codes of levels in a block of `dboost.data.feature_block` by the numbers of the levels."""
    numbers = {j: numbers_of_levels(feature) for j, feature in enumerate(features) if feature.is_categorical}
    changed = {
        j: numbers_by_level
        for j, numbers_by_level in numbers.items()
        if not np.array_equal(numbers_by_level, np.arange(len(numbers_by_level)))
    }
    if changed:
        block = block.copy()
    for j, numbers_by_level in changed.items():
        codes = block[:, j]
        known = (codes >= 0) & (codes < len(numbers_by_level))
        codes[known] = numbers_by_level[codes[known].astype(np.int64)]
        codes[~known] = np.nan
    return block


def nearest_float32(thresholds: np.ndarray) -> np.ndarray:
    """Return the float32 nearest to each threshold; of two equally near the lower one (NaN stays NaN)."""
    thresholds = np.asarray(thresholds, np.float64)
    largest = np.finfo(np.float32).max
    with np.errstate(over="ignore", invalid="ignore"):
        # Beyond the range of float32, yet finite: infinity must go right.
        nearest = np.where(np.isposinf(thresholds), np.inf, np.minimum(thresholds, largest)).astype(np.float32)
        below = np.nextafter(nearest, np.float32(-np.inf))
        is_tie = (nearest > thresholds) & (thresholds - below.astype(np.float64) == nearest.astype(np.float64) - thresholds)
    return np.where(is_tie, below, nearest)


def away_from_missing(tree: Tree, node: int, feature: Feature) -> np.ndarray:
    """Return the numbers of the levels that a categorical split sends to the side without missing values: ascending int64.

    Missing values and unknown levels go to the other side.
    """
    goes_left = np.zeros(len(feature.categories or ()), bool)
    goes_left[tree.categories[node]] = True
    return np.sort(numbers_of_levels(feature)[goes_left != tree.missing_left[node]])


def with_baseline(ensemble: Ensemble) -> list[tuple[Tree | None, np.ndarray]]:
    """Return each tree with its nodes' values (float64[n_nodes], or [n_nodes, width]), those of the first iteration plus the
    baseline.

    Without trees, return (None, value) of one leaf per output. For formats that have no baseline, or one of less precision.
    """
    if not ensemble.trees:
        return [(None, np.array([constant])) for constant in ensemble.baseline]
    if ensemble.width > 1:
        return [(tree, tree.value if i else tree.value + ensemble.baseline) for i, tree in enumerate(ensemble.trees)]
    raised = [tree.value + constant for tree, constant in zip(ensemble.trees, ensemble.baseline, strict=False)]
    return [(tree, raised[i] if i < len(raised) else tree.value) for i, tree in enumerate(ensemble.trees)]
