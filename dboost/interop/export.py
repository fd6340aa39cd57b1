"""What a `Booster` can do to be read by others.

What leads from a raw score to a prediction, in words that other formats know.

A loss *declares* the form of its inverse link (`Loss.response`): "identity", "exp", "sigmoid" of the raw score times a
factor, or "softmax". A declaration is not believed: it is compared with `Loss.inverse_link` on some scores, so that a loss of
the user's own with a link that no format knows is refused instead of being exported with the wrong one.

How a row becomes numbers that models in other formats read.

**Categories.** Other formats know categories by whole numbers. Levels that are such numbers already (0, 1, 7, or truth
values) stand for themselves; all other levels (text, fractions) are given by their position in the feature's `levels`.
Missing values are NaN.

**Precision.** XGBoost and ONNX compare in float32. A float32 value stands for all float64 values that round to it; so a
threshold t becomes the float32 nearest to it, and a tie the lower one. Where x <= t, then also float32(x) <= float32(t),
so that rows at a threshold (which is often a value of the data) stay on their side. Where a model was trained on float32
values, each threshold is one of these or lies half-way between two, and every float32 row goes where it goes with us; else
rows between a threshold and the float32 next to it may not.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost.data import predict_through
from dboost.losses import Loss
from dboost.model.ensemble import Ensemble
from dboost.storage import atomic_write as files

if TYPE_CHECKING:
    import treelite
from dboost.errors import ParameterError
from dboost.model.ensemble import Tree
from dboost.schema import Feature


class Exporting:
    """The part of `Booster` that writes formats of others."""

    ensemble: Ensemble

    if TYPE_CHECKING:

        @property
        def loss(self) -> Loss: ...

    def to_matrix(self, X: Any) -> Any:
        """The rows as exported models read them: numbers, NaN where missing.

        Levels of a categorical feature that are whole numbers from 0 to 16,777,215 (or truth values) stand for themselves;
        other levels are given by their position in the feature's `levels`. Levels that the model does not know are NaN.

        Parameters
        ----------
        X : as in `predict`

        Returns
        -------
        Array [n_rows, n_features] of float64 for arrays and lists; a frame for frames; lazy for Dask
            XGBoost and ONNX round it to float32.
        """
        features = self.ensemble.features
        names = [feature.name for feature in features]
        ask = partial(as_numbers, features=features)
        return predict_through(X, ask, features=features, named=self.ensemble.named, names=names, dtype=np.float64)

    def to_xgboost_json(self, path: str | os.PathLike[str]) -> None:
        """Write the model as XGBoost's JSON, to be read by ``xgboost.Booster(model_file=path)``.

        The rows that it takes are those of `to_matrix`. Thresholds, leaves and sums are float32 there, so predictions agree to
        float32 rounding; a float32 value stands for all float64 values that round to it. With the exponential loss the margin
        is twice our raw score.

        Parameters
        ----------
        path : path or URL

        Raises
        ------
        ParameterError
            When the loss is one of the user's own with a link that XGBoost does not know.
        ModelFileError
            When the file cannot be written.
        """
        from dboost.interop import to_xgboost as xgboost_json

        files.write_whole(path, xgboost_json.dumps(self.ensemble, self.loss))

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an ONNX graph, which onnxruntime runs.

        It has one input, ``features`` (float32 [rows, features], see `to_matrix`). Regressors have one output, ``prediction``
        (float32 [rows]); classifiers have ``label`` and then ``probabilities`` (float32 [rows, classes]). Sums are float64
        inside, so predictions agree to float32 rounding.

        Parameters
        ----------
        path : path or URL

        Raises
        ------
        DBoostError
            When onnx is not installed (``pip install 'dboost[export]'``).
        ParameterError
            When the loss is one of the user's own with a link that the format does not know.
        ModelFileError
            When the file cannot be written.
        """
        from dboost.interop import to_onnx as onnx_graph

        files.write_whole(path, onnx_graph.to_onnx(self.ensemble, self.loss).SerializeToString())

    def to_treelite(self) -> treelite.Model:
        """The model as a `treelite.Model`, to be compiled or served by what reads those.

        The rows that it takes are those of `to_matrix`. Thresholds and leaves are float64, as ours.

        Raises
        ------
        DBoostError
            When treelite is not installed (``pip install 'dboost[export]'``).
        ParameterError
            When the loss is one of the user's own with a link that treelite does not know.
        """
        from dboost.interop import to_treelite as treelite_model

        return treelite_model.to_treelite(self.ensemble, self.loss)


def response_of(loss: Loss, n_outputs: int, to: str) -> tuple[str, float]:
    """Form of the inverse link ("identity", "exp", "sigmoid", "softmax") and the factor that comes first.

    to : the format, for messages.

    Raises
    ------
    ParameterError
        When the loss's link is none of these.
    """
    if loss.response not in ("identity", "exp", "sigmoid", "softmax"):
        raise ParameterError(f"loss {loss.name!r} declares the response {loss.response!r}, which is no form of inverse link")
    scores = np.linspace(-3.0, 3.0, 25)
    if n_outputs > 1:
        scores = np.column_stack([scores * (k + 1) for k in range(n_outputs)])
    scaled = scores * loss.response_factor
    with np.errstate(all="ignore"):
        expected = {
            "identity": lambda: scaled,
            "exp": lambda: np.exp(scaled),
            "sigmoid": lambda: 1.0 / (1.0 + np.exp(-scaled)),
            "softmax": lambda: np.exp(scaled) / np.exp(scaled).sum(axis=-1, keepdims=True),
        }[loss.response]()
        found = np.asarray(loss.inverse_link(scores), np.float64)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-9, atol=1e-12):
        raise ParameterError(
            f"a model of loss {loss.name!r} cannot be exported to {to}: its inverse_link is not the {loss.response!r} that its "
            "class declares; a class may declare response = 'identity', 'exp' or 'sigmoid', other links are not carried"
        )
    return loss.response, loss.response_factor


#: Whole numbers up to here are exact in float32, and XGBoost and treelite take them for categories.
MAX_NUMBER = 2**24 - 1


def numbers_of_levels(feature: Feature) -> np.ndarray:
    """The number that stands for each level of a categorical feature: int64[n_levels], all different."""
    levels = feature.levels or ()
    are_whole = all(not isinstance(level, str) and float(level).is_integer() and 0 <= level <= MAX_NUMBER for level in levels)
    if are_whole and len(set(levels)) == len(levels):
        return np.array([int(level) for level in levels], np.int64)
    return np.arange(len(levels), dtype=np.int64)


def as_numbers(block: np.ndarray, features: tuple[Feature, ...]) -> np.ndarray:
    """A block of `dboost.data.feature_block`, with the numbers of levels instead of their codes."""
    numbers = {j: numbers_of_levels(feature) for j, feature in enumerate(features) if feature.is_categorical}
    changed = {j: of_levels for j, of_levels in numbers.items() if not np.array_equal(of_levels, np.arange(len(of_levels)))}
    if changed:
        block = block.copy()
    for j, of_levels in changed.items():
        codes = block[:, j]
        known = (codes >= 0) & (codes < len(of_levels))
        codes[known] = of_levels[codes[known].astype(np.int64)]
        codes[~known] = np.nan
    return block


def nearest_float32(thresholds: np.ndarray) -> np.ndarray:
    """The float32 nearest to each threshold; of two equally near the lower one (NaN stays NaN)."""
    thresholds = np.asarray(thresholds, np.float64)
    largest = np.finfo(np.float32).max
    with np.errstate(over="ignore", invalid="ignore"):
        # Beyond the range of float32, yet finite: infinity must go right.
        found = np.where(np.isposinf(thresholds), np.inf, np.minimum(thresholds, largest)).astype(np.float32)
        below = np.nextafter(found, np.float32(-np.inf))
        is_tie = (found > thresholds) & (thresholds - below.astype(np.float64) == found.astype(np.float64) - thresholds)
    return np.where(is_tie, below, found)


def away_from_missing(tree: Tree, node: int, feature: Feature) -> np.ndarray:
    """Numbers of the levels that a categorical split sends where missing values do not go: ascending int64.

    All else (missing values, levels never seen) then goes the other way, which is how we mean it.
    """
    goes_left = np.zeros(len(feature.levels or ()), bool)
    goes_left[tree.categories[node]] = True
    return np.sort(numbers_of_levels(feature)[goes_left != tree.missing_left[node]])


def with_baseline(ensemble: Ensemble) -> list[tuple[Tree | None, np.ndarray]]:
    """Each tree with its nodes' values, the first iteration's raised by the baseline; lone leaves if there is no iteration.

    For formats that have no place for it, or one of less precision.
    """
    if not ensemble.trees:
        return [(None, np.array([constant])) for constant in ensemble.baseline]
    raised = [tree.value + constant for tree, constant in zip(ensemble.trees, ensemble.baseline, strict=False)]
    return [(tree, raised[i] if i < len(raised) else tree.value) for i, tree in enumerate(ensemble.trees)]
