"""What may become of a model: the methods of `Booster` that give another one.

`Booster`: a trained model as users meet it.

It wraps an `Ensemble` (plain data) with what one does with a model: predict, look at the trees, save. Answers are of
the kind that the question was: arrays for arrays, frames with the same index for frames, lazy Dask collections for
lazy ones. A Booster does not change; it may be pickled, sent to workers, and asked by many threads at a time.

Models that come from elsewhere: from our own files, and from XGBoost and LightGBM, to predict with and to continue.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np

from dboost import losses
from dboost._lazy_import import pd
from dboost.data import ReadOptions, feature_block, open_table, predict_through
from dboost.data.frame import is_lazy, is_path
from dboost.data.predict_io import like_input, predict_from
from dboost.distributed.client import client_for
from dboost.errors import InputTypeError, ParameterError
from dboost.inspection.plot_methods import Drawing
from dboost.interop.export import Exporting
from dboost.losses import Loss
from dboost.losses.decision_costs import cheapest, read_costs
from dboost.model import model_edits as succession
from dboost.model import model_file as storage
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble
from dboost.model.tree_table import to_frame
from dboost.schema import Feature, Level
from dboost.session.transport import LocalTable
from dboost.session.warm_start import checked_decay, checked_source_name
from dboost.storage import atomic_write as files
from dboost.training.fit import available_threads
from dboost.training.leaf_refit import refit_leaves


class Offspring:
    """A part of `Booster`."""

    ensemble: Ensemble
    _own_loss: Loss | None

    @property
    def sources(self) -> tuple[dict[str, Any], ...]:
        """One record per fit, in the order of their trees.

        ``label`` (the fit's `source_name`), ``rows``, ``first_iteration`` and ``last_iteration`` (from 1, both included; a
        source of no iterations ends before it begins), ``parameters``, and ``data_digest`` of schema and counts. Of fits that
        went on from a model also ``unexplained_loss`` (the model's loss on the new rows as a share of the best constant's;
        None where that predicts all of them) and ``steps``, what the new trees were grown with after damping.
        """
        return tuple({name: value for name, value in source.items() if name != "summary"} for source in self.ensemble.sources)

    @property
    def custom_loss(self) -> Loss | None:
        """The loss of the user's own that came with the model, if one did."""
        return self._own_loss

    def _instead(self, ensemble: Ensemble) -> Self:
        """The same for another ensemble."""
        return type(self)(ensemble, loss=self._own_loss)  # type: ignore[call-arg]

    def truncate(self, n_iterations: int) -> Self:
        """The model as it was after its first iterations.

        Parameters
        ----------
        n_iterations : int
            From 0 (the baseline alone) to `n_iter_`.

        Returns
        -------
        Booster
            This one stays what it is.

        Raises
        ------
        ParameterError
            When the model never had so many iterations.
        """
        return self._instead(succession.truncate(self.ensemble, n_iterations))

    def refit_leaves(
        self,
        data: Any,
        target: Any,
        *,
        sample_weight: Any = None,
        offset: Any = None,
        decay: float = 0.0,
        source_name: str | None = None,
        client: Any = None,
        n_threads: int | None = None,
    ) -> Self:
        """The model with leaf values estimated anew from other data; the splits stay.

        An alternative to adding trees (``dboost.fit(…, start_from=…)``), where what matters is the same but how much it
        matters has changed. See `dboost.training.refit_leaves`.

        Parameters
        ----------
        data, target, sample_weight, offset
            As in `dboost.fit`, with the model's columns. Levels that the model does not know count as missing.
        decay : float, 0 <= … < 1
            A leaf's value becomes ``decay · old + (1 - decay) · new``; leaves that no row reaches keep theirs.
        source_name : str, optional
            What the data are called in `sources`, where every source's record tells of them as "refreshed".
        client : distributed.Client, optional
            Where the rows are read and asked. Default: for Dask collections and paths the current client, if there is one; else
            this process. The values are the same.
        n_threads : int, optional

        Returns
        -------
        Booster

        Raises
        ------
        ParameterError
            For a model under monotonic constraints, or whose trees were added by another step than "leaf".
        DataError
            When columns or target do not fit the model.
        """
        decay, threads = checked_decay(decay), available_threads(n_threads)
        common: dict[str, Any] = {"decay": decay, "own": self._own_loss, "n_threads": threads}
        common["source_name"] = checked_source_name(source_name)
        reading: dict[str, Any] = {"sample_weight": sample_weight, "offset": offset, "like": self.ensemble.features}
        with client_for(data, client) as cluster:
            if cluster is not None:
                from dboost.distributed.cluster_fit import n_parts_of, refit_on_cluster
                from dboost.distributed.read_tasks import ReadTasks

                n_parts = n_parts_of(cluster)
                found = refit_on_cluster(
                    cluster, self.ensemble, lambda: ReadTasks(data, target, n_parts=n_parts, **reading), **common
                )
                return self._instead(found)
        table = LocalTable(lambda: open_table(data, target, options=ReadOptions(threads), **reading), threads, None)
        return self._instead(refit_leaves(self.ensemble, table, **common))

    def drop_source(self, source: int | str) -> Self:
        """The model without the trees that one fit's data gave it.

        Later trees were fitted to what the dropped ones had left over, so the result is a model that never existed in
        between: judge it before it is used. The baseline (of the first data) and the levels of categories stay, and metrics
        of later iterations, which were measured with the dropped trees, are forgotten.

        Parameters
        ----------
        source : int or str
            Number in `sources` (negative: from the end), or the label given as ``source_name``.

        Returns
        -------
        Booster

        Raises
        ------
        ParameterError
            When there is no such source, the label is not unique, or the source is the only one.
        """
        return self._instead(succession.drop_source(self.ensemble, source))


Range = tuple[int, int]


class _OutputForm(NamedTuple):
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
        """The trees as a table with one row per node; see `dboost.model.tree_table.to_frame` for the columns."""
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
        answer = _OutputForm(partial(self._cheapest, read_costs(costs, len(self.classes_))), None, self.classes_.dtype)
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

    def _raw_or_prediction(self, raw_score: bool) -> _OutputForm:
        if raw_score:
            return _OutputForm(_raw, self.ensemble.classes if self.ensemble.n_outputs > 1 else None)
        return _OutputForm(self._decisions, None, np.dtype(np.float64) if self.classes_ is None else self.classes_.dtype)

    def _probability(self) -> _OutputForm:
        if self.ensemble.classes is None:
            loss = self.ensemble.loss["name"]
            raise ParameterError(f"there are no probabilities: the model predicts numbers (loss {loss!r})")
        return _OutputForm(self._probabilities, self.ensemble.classes)

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

    def _through(self, X: Any, answer: _OutputForm, iteration_range: Any, n_threads: int | None, offset: Any = None) -> Any:
        iterations = self._iterations(iteration_range)
        ask = partial(self._finished, answer.finish, iterations=iterations, n_threads=_threads_for(X, n_threads))
        return self._ask(X, ask, answer.names, answer.dtype, offset)

    def _ask(self, X: Any, ask: Any, names: Sequence[Any] | None, dtype: Any, offset: Any = None) -> Any:
        about: dict[str, Any] = {"features": self.features, "named": self.ensemble.named, "names": names, "dtype": dtype}
        return predict_through(X, ask, **about) if offset is None else predict_from(X, offset, ask, **about)

    def _staged(self, X: Any, answer: _OutputForm, n_threads: int | None) -> Iterator[Any]:
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


def load(path: str | os.PathLike[str], loss: Loss | None = None) -> Booster:
    """Read a model from its file, in either form. Nothing in the file is run.

    Parameters
    ----------
    path : path or URL
    loss : Loss, optional
        The loss of your own that the model was trained with, if it is not registered (see `dboost.losses.register`).

    Raises
    ------
    ModelFileError
        Naming the file: it does not exist, is damaged or cut short, or was written by a newer dboost.
    ParameterError
        When the model was trained with another loss than the one given.
    """
    ensemble = storage.load(path)
    if loss is not None and loss.name != ensemble.loss["name"]:
        raise ParameterError(
            f"the model in {os.fspath(path)} was trained with loss {ensemble.loss['name']!r}, not {loss.name!r}"
        )
    return Booster(ensemble, loss=loss)


def from_xgboost(model: Any, levels: dict[str, Sequence[Level] | int] | None = None) -> Booster:
    """A model of XGBoost as a Booster that predicts the same.

    Trees and DART models of one target with the objectives reg:squarederror, reg:absoluteerror, reg:quantileerror,
    reg:pseudohubererror (continued as huber), count:poisson, reg:gamma, reg:tweedie, binary:logistic, binary:logitraw,
    multi:softprob and multi:softmax. Predictions agree to the rounding of XGBoost's float32 sums. Classes are the numbers
    0, 1, ….

    Parameters
    ----------
    model : xgboost.Booster, estimator of xgboost, or path or URL of a model file
        JSON is read without XGBoost; a binary file (UBJ) needs it installed.
    levels : dict of column names (f0, f1, … where there are none), optional
        The levels of categorical columns in the order of their codes, or their number if they are the codes themselves.
        Needed where the model does not keep them (before XGBoost 3.1, and for matrices).

    Raises
    ------
    ParameterError
        Naming what cannot be carried: other boosters, objectives or several targets; or the column whose levels are needed.
    ModelFileError
        Naming the file that is not there or not a model.
    """
    from dboost.interop import from_xgboost as xgboost_models

    return Booster(xgboost_models.from_xgboost(model, dict(levels or {})))


def from_lightgbm(model: Any, levels: dict[str, Sequence[Level] | int] | None = None) -> Booster:
    """A model of LightGBM as a Booster that predicts the same.

    Models of gbdt, dart, goss and rf with the objectives regression, regression_l1, quantile, huber, poisson, gamma, tweedie,
    binary and multiclass. Predictions agree to the rounding of float64. Classes are the numbers 0, 1, ….

    Parameters
    ----------
    model : lightgbm.Booster, estimator of lightgbm, or path or URL of a model file in text
    levels : dict of column names (f0, f1, … where there are none), optional
        The levels of categorical columns in the order of their codes, or their number if they are the codes themselves.
        Needed where some categorical columns were pandas categories and others numbers.

    Raises
    ------
    ParameterError
        Naming what cannot be carried: linear trees, other objectives, zeros as missing; or the columns whose levels are needed.
    ModelFileError
        Naming the file that is not there or not a model.
    """
    from dboost.interop import from_lightgbm as lightgbm_models

    return Booster(lightgbm_models.from_lightgbm(model, dict(levels or {})))


def as_booster(model: Any) -> Booster:
    """A model as it is, or from its file.

    Raises
    ------
    InputTypeError
        When it is neither.
    ModelFileError
        Naming the file that cannot be read.
    """
    if isinstance(model, Booster):
        return model
    if isinstance(model, str | os.PathLike):
        return load(model)
    raise InputTypeError(f"start_from must be a Booster, or the path or URL of its file, not {type(model).__name__}")
