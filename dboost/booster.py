"""`Booster`: a trained model as users meet it.

It wraps an `Ensemble` (plain data) with everything one does with a model: predict in the kind of the data that came in, look
at the trees, save. A Booster never changes; it may be pickled, sent to workers, and asked by many threads at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from dboost.errors import ParameterError
from dboost.losses import Loss, from_dict
from dboost.model import storage
from dboost.model.ensemble import Ensemble
from dboost.model.flat import FlatEnsemble
from dboost.model.frame import to_frame
from dboost.schema import Feature
from dboost.sources import feature_block, predict_through


class Booster:
    """A trained model.

    Parameters
    ----------
    ensemble : Ensemble
    history : DataFrame, optional
        What the fit recorded per iteration; by default rebuilt from the metrics in the ensemble.
    timings : dict of str to float, optional
        Seconds of the fit by phase: "load", "bin", "train". Empty for a loaded model.
    """

    def __init__(
        self, ensemble: Ensemble, *, history: pd.DataFrame | None = None, timings: dict[str, float] | None = None
    ) -> None:
        self.ensemble = ensemble
        self.timings = dict(timings or {})
        if history is None:
            n = max((len(values) for values in ensemble.metrics.values()), default=0)
            history = pd.DataFrame({"iteration": np.arange(1, n + 1), **ensemble.metrics})
        self.history = history

    # What it is.

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features in the order of the model's columns."""
        return self.ensemble.features

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the features."""
        return np.array([feature.name for feature in self.ensemble.features], object)

    @property
    def n_features_in_(self) -> int:
        return len(self.ensemble.features)

    @cached_property
    def classes_(self) -> np.ndarray | None:
        """The classes in the order of `predict_proba`'s columns; None for regression."""
        if self.ensemble.classes is None:
            return None
        return np.array(self.ensemble.classes, np.dtype(self.ensemble.classes_dtype))

    @property
    def n_iter_(self) -> int:
        """Iterations in the model."""
        return self.ensemble.n_iterations

    @property
    def best_iteration(self) -> int | None:
        """How many iterations early stopping kept (1-based); None without it."""
        return self.ensemble.best_iteration

    @property
    def sources(self) -> tuple[dict[str, Any], ...]:
        """One record per fit: label, rows, first and last iteration, parameters, digest of the data's schema and counts."""
        return self.ensemble.sources

    @cached_property
    def loss(self) -> Loss:
        return from_dict(self.ensemble.loss)

    @cached_property
    def sha256(self) -> str:
        """Digest of what was learned: equal for equal models."""
        return storage.digest(self.ensemble)

    def to_frame(self) -> pd.DataFrame:
        """The trees as a table, one row per node."""
        return to_frame(self.ensemble)

    # What it predicts.

    def predict(self, X: Any, raw_score: bool = False, iteration_range: tuple[int, int] | None = None) -> Any:
        """Predictions in the kind of `X`: numpy → array, pandas → Series, dask → lazy.

        Parameters
        ----------
        X : data of any kind that `dboost.fit` takes
            Columns are picked by name (extra ones are ignored); an array must have the trained number of columns.
        raw_score : bool
            Raw scores instead of predictions or classes.
        iteration_range : (first, last), optional
            Only the trees of these iterations, the last not included.

        Raises
        ------
        DataError
            Naming missing columns, or both numbers of columns of an array.
        """
        bounds = self._iterations(iteration_range)
        if raw_score:
            k = self.ensemble.n_outputs
            names = None if k == 1 else list(self.ensemble.classes or range(k))
            return self._through(X, lambda block: _squeeze(self._raw(block, bounds)), names=names)
        dtype = np.dtype(np.float64) if self.classes_ is None else self.classes_.dtype
        return self._through(X, lambda block: self._answer(self._raw(block, bounds)), dtype=dtype)

    def predict_proba(self, X: Any, iteration_range: tuple[int, int] | None = None) -> Any:
        """Class probabilities (rows, classes), in the kind of `X`; frames have one column per class."""
        if self.ensemble.classes is None:
            raise ParameterError(f"a model with loss {self.loss.name!r} has no classes, so no probabilities")
        bounds = self._iterations(iteration_range)
        return self._through(
            X, lambda block: self._probabilities(self._raw(block, bounds)), names=list(self.ensemble.classes)
        )

    def staged_predict(self, X: Any, raw_score: bool = False) -> Iterator[Any]:
        """One prediction per iteration, each with one more iteration's trees than the last."""
        return self._staged(X, _squeeze if raw_score else self._answer)

    def staged_predict_proba(self, X: Any) -> Iterator[np.ndarray]:
        """Class probabilities after one iteration, after two, …."""
        if self.ensemble.classes is None:
            raise ParameterError(f"a model with loss {self.loss.name!r} has no classes, so no probabilities")
        return self._staged(X, self._probabilities)

    def apply(self, X: Any) -> Any:
        """The leaf that each row reaches in each tree: (rows, trees), int32, leaves numbered from left to right."""
        names = [f"tree_{i}" for i in range(len(self.ensemble.trees))]
        return self._through(X, self._flat.leaves, names=names, dtype=np.int32)

    # Where it is kept.

    def save(self, path: Any, *, history: bool = False) -> None:
        """Write the model to a file or URL, whole or not at all.

        Parameters
        ----------
        path : str or path
        history : bool
            Also write `history` (with seconds and the like, which the model file leaves out) as ``<path>.history.csv``.

        Raises
        ------
        DBoostError
            When it cannot be written, naming the path.
        """
        storage.save(self.ensemble, path)
        if history:
            storage.write(f"{path}.history.csv", self.history.to_csv(index=False).encode())

    # The rest.

    def __repr__(self) -> str:
        kind = f"{len(self.ensemble.classes)} classes" if self.ensemble.classes else "regression"
        return f"Booster({self.loss.name}, {kind}, {self.n_iter_} iterations, {len(self.features)} features)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Booster) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __reduce__(self) -> tuple[Callable[..., Booster], tuple[Any, ...]]:
        return _restore, (storage.dumps(self.ensemble), self.history, self.timings)

    @cached_property
    def _flat(self) -> FlatEnsemble:
        return FlatEnsemble(self.ensemble)

    def _iterations(self, wanted: tuple[int, int] | None) -> tuple[int, int] | None:
        if wanted is None:
            return None
        first, last = wanted
        if not 0 <= first <= last <= self.n_iter_:
            raise ParameterError(f"iteration_range={wanted!r} must lie within (0, {self.n_iter_})")
        return int(first), int(last)

    def _through(
        self,
        X: Any,
        function: Callable[[np.ndarray], np.ndarray],
        *,
        names: list[Any] | None = None,
        dtype: Any = np.float64,
    ) -> Any:
        return predict_through(
            X, function, features=self.features, named=self.ensemble.named, names=names, dtype=dtype
        )

    def _staged(self, X: Any, finish: Callable[[np.ndarray], np.ndarray]) -> Iterator[np.ndarray]:
        block = feature_block(X, self.features, self.ensemble.named)
        for raw in self._flat.staged_raw_scores(block):
            yield finish(raw)

    def _raw(self, block: np.ndarray, iterations: tuple[int, int] | None = None) -> np.ndarray:
        return self._flat.raw_scores(block, iterations)

    def _probabilities(self, raw: np.ndarray) -> np.ndarray:
        second = self.loss.inverse_link(raw[:, 0])
        return np.column_stack((1.0 - second, second))

    def _answer(self, raw: np.ndarray) -> np.ndarray:
        """Predictions from raw scores: classes (the first of two at a tie), or the inverse link."""
        if self.classes_ is None:
            return self.loss.inverse_link(raw[:, 0])
        return self.classes_[(raw[:, 0] > 0).astype(np.int64)]


def load(path: Any) -> Booster:
    """A model from a file or URL; reading never executes anything.

    Raises
    ------
    ModelFileError
        Damaged, cut short, or written by a newer version; the message names the file.
    """
    return Booster(storage.load(path))


def _squeeze(raw: np.ndarray) -> np.ndarray:
    return raw[:, 0] if raw.shape[1] == 1 else raw


def _restore(stored: bytes, history: pd.DataFrame, timings: dict[str, float]) -> Booster:
    return Booster(storage.loads(stored), history=history, timings=timings)
