"""`Booster`: a trained model as users meet it.

It wraps an `Ensemble` (plain data) with what one does with a model: predict, look at the trees, save. Answers are of
the kind that the question was: arrays for arrays, frames with the same index for frames, lazy Dask collections for
lazy ones. A Booster does not change; it may be pickled, sent to workers, and asked by many threads at a time.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from dboost import losses
from dboost.errors import ParameterError
from dboost.exports.exporting import Exporting
from dboost.inspection.drawing import Drawing
from dboost.late import pd
from dboost.losses.base import Loss
from dboost.losses.costs import cheapest, read_costs
from dboost.model import files, storage
from dboost.model.ensemble import Ensemble
from dboost.model.flat import FlatEnsemble
from dboost.model.frame import to_frame
from dboost.offspring import Offspring
from dboost.schema import Feature
from dboost.sources import feature_block, predict_through
from dboost.sources.frame import is_lazy, is_path
from dboost.sources.offset import predict_from
from dboost.sources.through import like_input

Range = tuple[int, int]


class _Answer(NamedTuple):
    """What is to be said of raw scores: how to get it from them, and what it looks like (see `predict_through`)."""

    finish: Callable[[np.ndarray], np.ndarray]
    names: tuple[Any, ...] | None = None
    dtype: np.dtype = np.dtype(np.float64)


class Booster(Drawing, Exporting, Offspring):
    """A trained model. Made by `dboost.fit` and `dboost.load`.

    Parameters
    ----------
    ensemble : Ensemble
        What was learned.
    history : DataFrame or list of dict, optional
        What the fit recorded, one row per iteration. Default: the metrics that the ensemble holds.
    timings : dict of str to float, optional
        Seconds of the fit by phase; empty for a loaded model.
    loss : Loss, optional
        The loss of the user's own that the model was trained with. Default: the one that the ensemble names.

    Attributes
    ----------
    ensemble : Ensemble
    history : DataFrame
        ``iteration`` (from 1, also those that early stopping dropped) and ``train_loss``, ``<eval set>_<metric>``; in
        the process of the fit also ``seconds``, ``rows_kept`` and ``bytes_read``; on a cluster ``workers`` (that hold
        rows); with arcbites ``bite`` and ``visit``, and what was cut back is followed by iterations with the same numbers.
    timings : dict of str to float
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        history: pd.DataFrame | list[dict[str, Any]] | None = None,
        timings: dict[str, float] | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.ensemble = ensemble
        self._history = history
        self._own_loss = loss
        self.timings = dict(timings or {})

    # What it is.

    @cached_property
    def history(self) -> pd.DataFrame:
        """What the fit recorded, or the metrics that the ensemble holds."""
        return _metrics(self.ensemble) if self._history is None else pd.DataFrame(self._history)

    @property
    def features(self) -> tuple[Feature, ...]:
        """Names and kinds of the features, with the levels of categorical ones."""
        return self.ensemble.features

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the features, as objects (f0, f1, … for a model trained on an array)."""
        return np.array([feature.name for feature in self.ensemble.features], object)

    @property
    def n_features_in_(self) -> int:
        """Number of features."""
        return len(self.ensemble.features)

    @cached_property
    def classes_(self) -> np.ndarray | None:
        """The classes in the order of the columns of `predict_proba` and in the target's dtype; None for regression."""
        if self.ensemble.classes is None:
            return None
        return np.array(self.ensemble.classes, np.dtype(self.ensemble.classes_dtype))

    @property
    def n_iter_(self) -> int:
        """Number of iterations in the model."""
        return self.ensemble.n_iterations

    @property
    def best_iteration(self) -> int | None:
        """How many iterations early stopping kept; None without early stopping."""
        return self.ensemble.best_iteration

    @cached_property
    def loss(self) -> Loss:
        """The loss that the model was trained with.

        Raises
        ------
        ParameterError
            When that was one of the user's own, and it is not known in this process; see `dboost.losses.register`.
        """
        return losses.from_dict(self.ensemble.loss) if self._own_loss is None else self._own_loss

    @cached_property
    def sha256(self) -> str:
        """Digest of what was learned, in hexadecimal; the one in the model's file."""
        return storage.digest(self.ensemble)

    def to_frame(self) -> pd.DataFrame:
        """The trees as a table with one row per node; see `dboost.model.frame.to_frame` for the columns."""
        return to_frame(self.ensemble)

    # What it predicts.

    def predict(
        self, X: Any, raw_score: bool = False, iteration_range: Range | None = None, n_threads: int | None = None, *,
        offset: Any = None,
    ) -> Any:  # fmt: skip
        """Predict a number or a class for each row.

        Parameters
        ----------
        X : pandas or polars frame, pyarrow Table, array, dask DataFrame or Array, or path
            Frames are read by column name and may have more columns; arrays must have as many as the training data.
        raw_score : bool
            Return the sum of the trees instead, before the loss's inverse link; with K classes, one column per class.
        iteration_range : (first, last), optional
            Use only these iterations, counted from 0, the last one not included.
        n_threads : int, optional
            Default: all processors for data in memory, one per partition for Dask.
        offset : str, or one number per row, optional
            Where raw scores start, as in `dboost.fit` (log exposure, say); added to the sum of the trees. A column's name, or
            for data in memory the values. Default: 0.

        Returns
        -------
        Array, Series or dask collection [n_rows], or [n_rows, n_classes] of raw scores
            float64, or the dtype of the classes. Of two classes equally likely the first one is predicted.

        Raises
        ------
        DataError
            Naming the missing or unreadable column, or both numbers of columns.
        ParameterError
            When the range is not one of the model's.
        """
        return self._through(X, self._raw_or_prediction(raw_score), iteration_range, n_threads, offset)

    def predict_proba(
        self, X: Any, iteration_range: Range | None = None, n_threads: int | None = None, *, offset: Any = None
    ) -> Any:
        """Probabilities of the classes, in the order of `classes_`; parameters and errors as of `predict`.

        Returns
        -------
        Array, DataFrame (with the classes as column names) or dask collection [n_rows, n_classes]

        Raises
        ------
        ParameterError
            When the model predicts numbers.
        """
        return self._through(X, self._probability(), iteration_range, n_threads, offset)

    def decide(self, X: Any, costs: Any, iteration_range: Range | None = None, n_threads: int | None = None) -> Any:
        """Choose the class that costs least on average, by the predicted probabilities.

        Parameters
        ----------
        X : as in `predict`
        costs : float[n_classes, n_classes]
            ``costs[k, j]`` is the cost of saying class k where the truth is class j, in the order of `classes_`.
        iteration_range, n_threads
            As in `predict`.

        Returns
        -------
        Classes in the kind that X is
            argmin over k of Σ_j costs[k, j] p_j; of classes that cost the same, the first.

        Raises
        ------
        ParameterError
            When the model predicts numbers, or `costs` is no matrix of finite numbers, one row and column for each class.
        """
        self._probability()  # refuses models of numbers
        assert self.classes_ is not None
        answer = _Answer(partial(self._cheapest, read_costs(costs, len(self.classes_))), None, self.classes_.dtype)
        return self._through(X, answer, iteration_range, n_threads)

    def staged_predict(self, X: Any, raw_score: bool = False, n_threads: int | None = None) -> Iterator[Any]:
        """Yield what `predict` would give after one iteration, after two, and so on.

        Data in memory are read once, and each stage adds the trees of one iteration to the stage before. For Dask the
        stages are lazy and independent of each other.
        """
        return self._staged(X, self._raw_or_prediction(raw_score), n_threads)

    def staged_predict_proba(self, X: Any, n_threads: int | None = None) -> Iterator[Any]:
        """Yield what `predict_proba` would give after one iteration, after two, and so on."""
        return self._staged(X, self._probability(), n_threads)

    def apply(self, X: Any, iteration_range: Range | None = None, n_threads: int | None = None) -> Any:
        """The leaf that each row reaches in each tree; parameters and errors as of `predict`.

        Returns
        -------
        Array, DataFrame (with columns tree_0, tree_1, …) or dask collection [n_rows, n_trees] of int32
            Leaves are numbered 0, 1, 2, … from left to right; with K classes an iteration has K columns, in class
            order.
        """
        iterations = self._iterations(iteration_range)
        first, last = (iteration * self.ensemble.n_outputs for iteration in iterations)
        ask = partial(self._leaves, iterations=iterations, n_threads=_threads_for(X, n_threads))
        return self._ask(X, ask, [f"tree_{t}" for t in range(first, last)], np.int32)

    # Where it is kept.

    def save(self, path: str | os.PathLike[str], history: bool = False) -> None:
        """Write the model to a file, whole or not at all, over an older one if there is one.

        Parameters
        ----------
        path : path or URL
            A name that ends in ".dboost" asks for the compact form, which takes a fraction of the room; else it is JSON.
        history : bool
            Also write the history, of which the model's file holds only the metrics, to ``<path>.history.csv``.

        Raises
        ------
        ModelFileError
            Naming the file, when it cannot be written.
        """
        storage.save(self.ensemble, path)
        if history:
            files.write_whole(f"{os.fspath(path)}.history.csv", self.history.to_csv(index=False).encode())

    def __reduce__(self) -> tuple[Callable[..., Booster], tuple[Any, ...]]:
        return _restore, (storage.dumps(self.ensemble), self.history, self.timings, self._own_loss)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__qualname__, self.sha256

    def __eq__(self, other: object) -> bool:
        return self.sha256 == other.sha256 if isinstance(other, Booster) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __repr__(self) -> str:
        kind = "regression" if self.ensemble.classes is None else f"{len(self.ensemble.classes)} classes"
        size = f"{self.n_iter_} iterations, {self.n_features_in_} features"
        return f"<Booster: {self.ensemble.loss['name']}, {kind}, {size}>"

    # How it is done.

    @cached_property
    def _flat(self) -> FlatEnsemble:
        return FlatEnsemble(self.ensemble)

    def _raw_or_prediction(self, raw_score: bool) -> _Answer:
        if raw_score:
            return _Answer(_raw, self.ensemble.classes if self.ensemble.n_outputs > 1 else None)
        return _Answer(self._decisions, None, np.dtype(np.float64) if self.classes_ is None else self.classes_.dtype)

    def _probability(self) -> _Answer:
        if self.ensemble.classes is None:
            loss = self.ensemble.loss["name"]
            raise ParameterError(f"there are no probabilities: the model predicts numbers (loss {loss!r})")
        return _Answer(self._probabilities, self.ensemble.classes)

    def _iterations(self, iteration_range: Range | None) -> Range:
        if iteration_range is None:
            return 0, self.n_iter_
        try:
            first, last = map(operator.index, iteration_range)
        except (TypeError, ValueError):
            raise ParameterError(f"iteration_range must be two integers, not {iteration_range!r}") from None
        if not 0 <= first <= last <= self.n_iter_:
            raise ParameterError(f"iteration_range {first, last} is not within the model's {self.n_iter_} iterations")
        return first, last

    def _through(self, X: Any, answer: _Answer, iteration_range: Any, n_threads: int | None, offset: Any = None) -> Any:
        iterations = self._iterations(iteration_range)
        ask = partial(self._finished, answer.finish, iterations=iterations, n_threads=_threads_for(X, n_threads))
        return self._ask(X, ask, answer.names, answer.dtype, offset)

    def _ask(self, X: Any, ask: Any, names: Sequence[Any] | None, dtype: Any, offset: Any = None) -> Any:
        about: dict[str, Any] = {"features": self.features, "named": self.ensemble.named, "names": names, "dtype": dtype}
        return predict_through(X, ask, **about) if offset is None else predict_from(X, offset, ask, **about)

    def _staged(self, X: Any, answer: _Answer, n_threads: int | None) -> Iterator[Any]:
        if is_path(X) or is_lazy(X):
            for iteration in range(self.n_iter_):
                yield self._through(X, answer, (0, iteration + 1), n_threads)
        else:
            block = feature_block(X, self.features, self.ensemble.named)
            for raw in self._flat.staged_raw_scores(block, n_threads):
                yield like_input(answer.finish(raw), X, answer.names)

    def _finished(
        self, finish: Callable[..., Any], block: np.ndarray, iterations: Range, n_threads: int | None, offset: Any = None
    ) -> np.ndarray:
        raw = self._flat.raw_scores(block, iterations, n_threads)
        return finish(raw if offset is None else raw + offset[:, None])

    def _leaves(self, block: np.ndarray, iterations: Range, n_threads: int | None) -> np.ndarray:
        return self._flat.leaves(block, iterations, n_threads)

    def _probabilities(self, raw: np.ndarray) -> np.ndarray:
        if self.ensemble.n_outputs > 1:
            return self.loss.inverse_link(raw)
        second = self.loss.inverse_link(raw[:, 0])
        return np.column_stack([1.0 - second, second])

    def _cheapest(self, costs: np.ndarray, raw: np.ndarray) -> np.ndarray:
        assert self.classes_ is not None
        return self.classes_[cheapest(self._probabilities(raw), costs)]

    def _decisions(self, raw: np.ndarray) -> np.ndarray:
        """Predictions that belong to raw scores."""
        if self.classes_ is None:
            return self.loss.inverse_link(raw[:, 0])
        return self.classes_[self._probabilities(raw).argmax(axis=1)]


def _restore(stored: bytes, history: pd.DataFrame, timings: dict[str, float], loss: Loss | None = None) -> Booster:
    return Booster(storage.loads(stored, "the pickled model"), history=history, timings=timings, loss=loss)


def _metrics(ensemble: Ensemble) -> pd.DataFrame:
    metrics = pd.DataFrame({name: list(values) for name, values in ensemble.metrics.items()})
    metrics.insert(0, "iteration", np.arange(1, len(metrics) + 1))
    return metrics


def _threads_for(X: Any, n_threads: int | None) -> int | None:
    """One thread a task where Dask runs the tasks side by side."""
    return 1 if n_threads is None and (is_path(X) or is_lazy(X)) else n_threads


def _raw(raw: np.ndarray) -> np.ndarray:
    return raw[:, 0] if raw.shape[1] == 1 else raw
