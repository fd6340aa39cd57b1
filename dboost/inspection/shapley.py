"""Shapley values: how much each feature moved each prediction away from the expected one.

The values of a row add up to its raw score minus `expected_value`. There are two ways to replace a feature that is not yet
known:

- *path-dependent* (no background): by the training rows at each node, weighted by their Hessians. It needs no data and
  equals XGBoost's ``pred_contribs``.
- *interventional* (with a background): by the values of background rows, independent of the other features. It measures the
  effect of changing the feature, and is exactly 0 for a feature without splits.

Interaction values split a row's values further, into a symmetric matrix whose rows add up to the values: half of the pairwise
interactions off the diagonal, main effects on it. `dboost.kernels.shap` explains the method.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from dboost.data import feature_block, predict_through
from dboost.data.frame import is_lazy, is_path
from dboost.errors import MissingExtraError, ParameterError
from dboost.inspection.row_functions import lazy_pieces
from dboost.inspection.tree_paths import check_counts, lay_out, paths_of
from dboost.kernels.shap import Forest, attribute, attribute_paths, interact, interact_paths
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble, share_out


def expected_value(ensemble: Ensemble) -> np.ndarray:
    """Return the path-dependent raw score without any known feature: float64[n_outputs]."""
    check_counts(ensemble, "the expected value", "take the mean of predict(background, raw_score=True)")
    expected = np.array(ensemble.baseline, np.float64)
    for t, tree in enumerate(ensemble.trees):
        expected[t % ensemble.n_outputs] += sum(path.value * path.shares.prod() for path in paths_of(tree))
    return expected


class Shapley:
    """A function from rows to Shapley values.

    Parameters
    ----------
    ensemble : Ensemble
    background : float32 or float64 [n, n_features], optional
        Rows whose values replace unknown features. Default: the training rows at each node.
    interactions : bool
    n_threads : int, optional
    """

    def __init__(self, ensemble: Ensemble, background: np.ndarray | None, interactions: bool, n_threads: int | None) -> None:
        if background is None:
            check_counts(ensemble, "the path-dependent Shapley value", "give a background")
        self._ensemble, self._background, self._interactions = ensemble, background, interactions
        self._n_threads = n_threads

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_forest"}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row's values: (features,) or (features, features), and a last axis for several outputs."""
        p, k = len(self._ensemble.features), self._ensemble.n_outputs
        return (p,) * (2 if self._interactions else 1) + ((k,) if k > 1 else ())

    @cached_property
    def _forest(self) -> Forest:
        return lay_out(self._ensemble, self._background, pairs=self._interactions and self._background is None)

    def __call__(self, block: np.ndarray) -> np.ndarray:
        """Return the values of a block's rows: float64[n, *shape]."""
        matrix = np.ascontiguousarray(block, np.float32 if block.dtype == np.float32 else np.float64)
        values = self._run(attribute if self._background is None else attribute_paths, matrix, 1)
        if self._interactions:
            pairs = 0.5 * self._run(interact if self._background is None else interact_paths, matrix, 2)
            j = np.arange(pairs.shape[1])
            pairs[:, j, j] = values - pairs.sum(axis=2)
            values = pairs
        return values if self._ensemble.n_outputs > 1 else values[..., 0]

    def _run(self, kernel: Callable[..., None], matrix: np.ndarray, n_axes: int) -> np.ndarray:
        forest, k = self._forest, self._ensemble.n_outputs
        found = np.zeros((len(matrix), *(len(forest.columns),) * n_axes, k))
        if not len(forest.columns):
            return np.zeros((len(matrix), *(len(self._ensemble.features),) * n_axes, k))

        def work(start: int, stop: int) -> None:
            kernel(forest, matrix, (start, stop), found)

        share_out(work, len(matrix), 20 * max(len(forest.paths), len(forest.splits)), self._n_threads)
        if len(forest.columns) == len(self._ensemble.features):
            return found
        values = np.zeros((len(matrix), *(len(self._ensemble.features),) * n_axes, k))
        of_used_features: Any = (slice(None), *np.ix_(*(forest.columns,) * n_axes))
        values[of_used_features] = found
        return values


def shap_values(ensemble: Ensemble, data: Any, background: Any, interactions: bool, n_threads: int | None) -> Any:
    """Return the Shapley values of a table of any kind; `Booster.shap_values` documents them.

    One value per feature comes as a frame for frames; everything else is an array with one more axis, lazy for Dask.
    """
    rows = None
    if background is not None:
        if is_path(background) or is_lazy(background):
            raise ParameterError("the background must be a table in memory: compute a sample of some hundred rows")
        rows = feature_block(background, ensemble.features, ensemble.named, what="background")
        if not len(rows):
            raise ParameterError("the background has no rows")
    if n_threads is None and (is_path(data) or is_lazy(data)):
        n_threads = 1
    function = Shapley(ensemble, rows, interactions, n_threads)
    if len(function.shape) == 1:
        names = [feature.name for feature in ensemble.features]
        return predict_through(data, function, features=ensemble.features, named=ensemble.named, names=names)
    if is_path(data) or is_lazy(data):
        return _lazy_array(data, ensemble, function)
    return function(feature_block(data, ensemble.features, ensemble.named))


def explanation(ensemble: Ensemble, data: Any, background: Any, interactions: bool, n_threads: int | None) -> Any:
    """Return the Shapley values of a table in memory as a `shap.Explanation`, for the plots of that library.

    Its `data` are numbers, with categories as codes; `display_data` has the categories.

    Raises
    ------
    MissingExtraError
        If shap is not installed.
    ParameterError
        For Dask collections and paths.
    """
    try:
        import shap
    except ImportError as error:
        raise MissingExtraError("shap.Explanation needs the library shap: pip install shap") from error
    if is_path(data) or is_lazy(data):
        raise ParameterError("as_explanation=True needs rows in memory: compute them, or a sample of them")
    values = np.asarray(shap_values(ensemble, data, background, interactions, n_threads))
    block = np.asarray(feature_block(data, ensemble.features, ensemble.named), np.float64)
    if background is None:
        base = expected_value(ensemble)
    else:
        rows = feature_block(background, ensemble.features, ensemble.named, what="background")
        base = FlatEnsemble(ensemble).raw_scores(rows).mean(axis=0)
    one_output = ensemble.n_outputs == 1
    return shap.Explanation(
        values=values,
        base_values=np.repeat(base[None, :], len(block), axis=0)[:, 0 if one_output else slice(None)],
        data=block,
        display_data=_displayed(block, ensemble) if any(feature.is_categorical for feature in ensemble.features) else None,
        feature_names=[feature.name for feature in ensemble.features],
        output_names=None if one_output else [str(name) for name in ensemble.output_names],
    )


def _displayed(block: np.ndarray, ensemble: Ensemble) -> np.ndarray:
    """Return a block with categories instead of codes, None for missing and unknown ones: object[n, n_features]."""
    shown = block.astype(object)
    for j, feature in enumerate(ensemble.features):
        if feature.categories is not None:
            levels = dict(enumerate(feature.categories))
            shown[:, j] = [levels.get(code) for code in block[:, j].tolist()]
    return shown


def _lazy_array(data: Any, ensemble: Ensemble, function: Shapley) -> Any:
    """A Dask array [n_rows, …] with the data's chunks (of unknown length if Dask does not know them)."""
    import dask
    import dask.array as da

    pieces, lengths = lazy_pieces(data, ensemble)
    task = dask.delayed(_Values(function, ensemble), pure=False, traverse=False)
    parts = [
        da.from_delayed(dask.delayed(_call)(task, piece), (length, *function.shape), np.float64)
        for piece, length in zip(pieces, lengths, strict=True)
    ]
    return da.concatenate(parts, allow_unknown_chunksizes=True)


class _Values:
    def __init__(self, function: Shapley, ensemble: Ensemble) -> None:
        self._function, self._features, self._named = function, ensemble.features, ensemble.named

    def __call__(self, piece: Any) -> np.ndarray:
        block = feature_block(piece, self._features, self._named)
        return self._function(block) if len(block) else np.empty((0, *self._function.shape))


def _call(task: _Values, piece: Any) -> np.ndarray:
    return task(piece)
