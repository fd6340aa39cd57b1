"""A fixed list of fits, to compare the models of two checkouts: ``python -m benchmarks.fixed_fits OUT.json``.

Every fit has fixed data, parameters and seed. The program writes SHA-256 digests of what each fit gives: predictions, the
table of the trees, the history, the digest of the model and the bytes of its files. With ``--against OLD.json`` it compares
them with those of an earlier run and exits with 1 if any differs. Two checkouts that differ in names and structure only must
give equal digests.

The digests may depend on the processor and on the versions of NumPy and Numba, since kernels are compiled for the machine. So
this is a tool that compares two checkouts on one machine, and not a test with fixed digests.

The file uses the public interface of dboost only, so the same file runs on older and on newer checkouts. To run it on another
checkout than its own, start it as a script, with that checkout in PYTHONPATH::

    PYTHONPATH=/path/to/checkout python /path/to/benchmarks/fixed_fits.py OUT.json --against OLD.json --from-folder DIR

``--folder DIR`` also writes there what a later version must be able to read: the files of the models, a prepared data set and
two half-finished checkpoints, with the digests of what this checkout makes of them. ``--from-folder DIR`` reads such a folder
of another checkout, without changing it, and compares. ``--only TEXT`` runs the fits whose names contain the text.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import math
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

if __name__ == "__main__" and sys.path[0] == str(Path(__file__).parent):
    # As a script: modules beside this one have names of the standard library, such as `profile`.
    sys.path.remove(sys.path[0])

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import llvmlite.binding
import numba
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

import dboost
from dboost.losses import Loss, register

# Data.

TOWNS = ["Gent", "Liège", "Mons", "Namur", "Oostende", "Brugge", "Aalst"]
FEATURES = ["x", "size", "age", "rooms", "town", "kind", "flag"]
NUMERIC = ["x", "size", "age", "rooms"]


def mixed_frame(n_rows: int, seed: int) -> pd.DataFrame:
    """Columns of many types with missing values, targets of all kinds, a weight and an offset."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(2, n_rows))
    town = rng.integers(len(TOWNS), size=n_rows)
    kind = rng.integers(-1, 3, n_rows)
    score = x + np.sin(3 * z) + 0.3 * town + kind % 2 + rng.normal(size=n_rows) / 2
    mean = np.exp(score / 4)
    count = rng.poisson(mean)
    return pd.DataFrame(
        {
            "x": x,
            "size": np.where(rng.random(n_rows) < 0.2, np.nan, z).astype(np.float32),
            "age": rng.integers(18, 90, n_rows),
            "rooms": np.where(rng.random(n_rows) < 0.1, np.nan, np.round(x + 3)),
            "town": pd.Series([None if rng.random() < 0.05 else TOWNS[t] for t in town], dtype=object),
            "kind": pd.Categorical.from_codes(kind, ["c", "b", "a", "never"]),
            "flag": rng.random(n_rows) < 0.5,
            "y": score,
            "tails": score + rng.standard_t(2, n_rows),
            "ties": np.round(score),
            "late": (score > np.median(score)).astype(np.int64),
            "yes": score > np.quantile(score, 0.8),
            "grade": np.array(["low", "middle", "high"], object)[np.digitize(score, np.quantile(score, [0.3, 0.8]))],
            "level": np.digitize(score, np.quantile(score, [0.1, 0.3, 0.5, 0.7, 0.9])),
            "count": count,
            "amount": rng.gamma(2.0, mean / 2.0) + 1e-3,
            "claim": np.where(count > 0, rng.gamma(2.0, np.maximum(count, 1) / 2.0), 0.0),
            "w": rng.integers(0, 4, n_rows).astype(np.float64),
            "v": rng.random(n_rows) + 0.1,
            "o": rng.normal(size=n_rows) / 3,
        }
    )


def cut(frame: pd.DataFrame, n_partitions: int = 5) -> dd.DataFrame:
    """A Dask frame with partitions of unequal length, one of them empty, each with categories of its own."""
    ends = [len(frame) * (k + 1) ** 2 // n_partitions**2 for k in range(n_partitions)]
    partitions = []
    for first, last in pairwise([0, *ends[:2], *ends[1:]]):
        partition = frame.iloc[first:last].copy()
        partition["kind"] = partition["kind"].cat.remove_unused_categories()
        partitions.append(partition)
    return dd.from_map(lambda partition: partition, partitions, meta=frame.iloc[:0])


FRAME, HELD_OUT = mixed_frame(1500, 0), mixed_frame(500, 1)
#: To continue with and to predict: a town that the first data lack, and values beyond theirs.
LATER = mixed_frame(900, 2)
LATER = LATER.assign(town=LATER["town"].replace("Gent", "Arlon"), x=LATER["x"] * 2, age=LATER["age"] + 10)
TO_PREDICT = pd.concat([HELD_OUT, LATER.iloc[:200].astype({"kind": HELD_OUT["kind"].dtype})], ignore_index=True)


@cache
def large_frame() -> pd.DataFrame:
    """Rows that do not fit the limits below."""
    return mixed_frame(16_000, 3)


@cache
def many_numbers() -> tuple[np.ndarray, np.ndarray]:
    """A matrix that is large enough for two threads, with missing values, and a target."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(15_000, 30)).astype(np.float32)
    y = X[:, 0] + np.sin(2 * X[:, 1]) * X[:, 2] + rng.normal(size=len(X)) / 3
    X[rng.random(X.shape) < 0.05] = np.nan
    return X, y


# Losses of the user's own.


class LogCosh(Loss):
    """A loss with a parameter."""

    name: ClassVar[str] = "fixed_fits_log_cosh"

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self.scale * np.log(np.cosh((raw - y) / self.scale))

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.tanh((raw - y) / self.scale)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (1 - np.tanh((raw - y) / self.scale) ** 2) / self.scale


class Counts(Loss):
    """A loss with a link."""

    name: ClassVar[str] = "fixed_fits_counts"

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.exp(raw) - y * raw

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.exp(raw) - y

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.exp(raw)

    def link(self, prediction: np.ndarray) -> np.ndarray:
        return np.log(prediction)

    def inverse_link(self, raw: np.ndarray) -> np.ndarray:
        return np.exp(raw)


# Digests.


def digest(*values: Any) -> str:
    """SHA-256 of arrays, frames, bytes, and of the texts of everything else."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, bytes):
            found.update(value)
        elif isinstance(value, pd.DataFrame):
            found.update(repr(list(value.columns)).encode())
            for name in value.columns:
                found.update(digest(value[name].to_numpy()).encode())
        elif isinstance(value, np.ndarray) and value.dtype != object:
            found.update(f"{value.dtype} {value.shape} ".encode())
            found.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, np.ndarray | list | tuple):
            found.update(repr([item.item() if isinstance(item, np.generic) else item for item in value]).encode())
        else:
            found.update(repr(value).encode())
        found.update(b"\0")
    return found.hexdigest()


def is_compared(column: str) -> bool:
    """Whether a column of the history is a function of data and parameters.

    Seconds are not, and `bytes_read` and `workers` depend on how the rows were kept.
    """
    return not column.startswith("seconds") and column not in ("bytes_read", "workers")


def digest_checkpoint(folder: Path) -> str:
    """SHA-256 of a checkpoint, without the seconds in its history, and so without the digest of ``state.json`` itself."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    del state["sha256"]
    state["history"] = [{name: value for name, value in row.items() if is_compared(name)} for row in state["history"]]
    trees = sorted(path for path in folder.iterdir() if path.name != "state.json")
    return digest(json.dumps(state), *(part for path in trees for part in (path.name, path.read_bytes())))


def digests_of(booster: dboost.Booster, rows: Any, folder: Path) -> dict[str, str]:
    """What is compared of a model.

    Parameters
    ----------
    booster : Booster
    rows : table in memory
        The rows to predict.
    folder : Path
        An existing folder, for the model's files.
    """
    predictions = {
        "raw": booster.predict(rows, raw_score=True, offset=False),
        "prediction": booster.predict(rows, offset=False),
        "leaves": booster.apply(rows),
    }
    if booster.classes_ is not None:
        predictions["probability"] = booster.predict_proba(rows, offset=False)
    derived = [name for name in booster.history if name.endswith("_rmse") and name not in booster.ensemble.metrics]
    history = booster.history.drop(columns=derived)
    found = {name: digest(np.asarray(value)) for name, value in predictions.items()}
    found["trees"] = digest(booster.to_frame())
    found["columns of the history"] = digest(list(history.columns))
    found["history"] = digest(history[[name for name in history.columns if is_compared(name)]])
    found["sha256"] = booster.sha256
    for name in ("model.json", "model.dboost"):
        booster.save(folder / name)
        found[name] = digest((folder / name).read_bytes())
    found["sources"] = digest(json.dumps(booster.sources, sort_keys=True, default=repr))
    if "bytes_read" in history:
        found["streamed"] = str(bool(history["bytes_read"].sum() > 0))
    return found


def digest_inspection(booster: dboost.Booster) -> str:
    """Digest of importance, Shapley values and partial dependence."""
    importance = [booster.importance(kind=kind) for kind in ("friedman", "gain", "cover", "count")]
    dependence = booster.partial_dependence(HELD_OUT, ["x"])
    return digest(
        *(part for series in importance for part in (list(series.index), series.to_numpy())),
        np.asarray(booster.shap_values(HELD_OUT.iloc[:100])),
        np.asarray(booster.expected_value),
        dependence,
    )


# The list of the fits.


@dataclass(frozen=True)
class Context:
    """Where a fit runs.

    folder : an empty folder of its own; client : of a cluster, or None for this process.
    """

    folder: Path
    client: Any = None

    def data(self, frame: pd.DataFrame) -> Any:
        """A frame as the fit is given it."""
        return frame if self.client is None else cut(frame)

    def fit(self, data: Any, target: Any, **options: Any) -> dboost.Booster:
        """`dboost.fit` with the defaults of this file, on the cluster if there is one."""
        defaults: dict[str, Any] = {"max_iter": 8, "max_leaf_nodes": 12, "progress": False, "n_threads": 1}
        if isinstance(target, str) and "start_from" not in options and isinstance(data, pd.DataFrame | dd.DataFrame):
            defaults["features"] = FEATURES
        if self.client is not None:
            defaults["client"] = self.client
        return dboost.fit(data, target, **(defaults | options))


@dataclass(frozen=True)
class Result:
    """A model, the rows to predict, and digests of other things."""

    booster: dboost.Booster
    rows: Any = field(default_factory=lambda: TO_PREDICT)
    more: dict[str, str] = field(default_factory=dict)


Fit = Callable[[Context], Result]
#: All fits by name, in the order in which they run.
FITS: dict[str, Fit] = {}
#: Those that also run on clusters.
ON_CLUSTERS: dict[str, Fit] = {}


def fixed_fit(name: str, *, on_cluster: bool = False) -> Callable[[Fit], Fit]:
    """Add a function to the list. on_cluster : whether it also runs on clusters."""

    def add(function: Fit) -> Fit:
        FITS[name] = function
        if on_cluster:
            ON_CLUSTERS[name] = function
        return function

    return add


#: Fits of `FRAME`: target and parameters.
SIMPLE: dict[str, tuple[str, dict[str, Any]]] = {
    # Losses.
    "loss squared_error": ("y", {}),
    "loss absolute_error": ("tails", {"loss": "absolute_error"}),
    "loss absolute_error weights": ("ties", {"loss": "absolute_error", "sample_weight": "v"}),
    "loss quantile 0.9": ("tails", {"loss": "quantile", "quantile": 0.9}),
    "loss quantile 0.25 weights": ("y", {"loss": "quantile", "quantile": 0.25, "sample_weight": "w"}),
    "loss huber": ("tails", {"loss": "huber"}),
    "loss huber 0.7 weights": ("tails", {"loss": "huber", "huber_alpha": 0.7, "sample_weight": "v"}),
    "loss poisson": ("count", {"loss": "poisson"}),
    "loss gamma": ("amount", {"loss": "gamma"}),
    "loss tweedie": ("claim", {"loss": "tweedie"}),
    "loss tweedie 1.2": ("claim", {"loss": "tweedie", "tweedie_power": 1.2, "sample_weight": "v"}),
    "loss log_loss": ("late", {"loss": "log_loss"}),
    "loss log_loss 3 classes": ("grade", {}),
    "loss log_loss 6 classes": ("level", {"loss": "log_loss", "max_iter": 5}),
    "loss exponential": ("late", {"loss": "exponential"}),
    "loss auto of truth values": ("yes", {}),
    "own loss with a parameter": ("tails", {"loss": LogCosh(0.7)}),
    "own loss with a link": ("count", {"loss": Counts(), "sample_weight": "v"}),
    "own loss, line search": ("tails", {"loss": LogCosh(), "step": "line_search"}),
    # Weights and offsets.
    "weights, integers": ("y", {"sample_weight": "w", "min_samples_leaf": 5}),
    "weights, fractions": ("late", {"sample_weight": "v"}),
    "weights, 3 classes": ("grade", {"sample_weight": "w"}),
    "offset, squared_error": ("y", {"offset": "o"}),
    "offset, log_loss and weights": ("late", {"offset": "o", "sample_weight": "v"}),
    "offset, poisson": ("count", {"loss": "poisson", "offset": "o", "sample_weight": "w"}),
    "offset, quantile": ("tails", {"loss": "quantile", "quantile": 0.6, "offset": "o"}),
    # Categories and missing values.
    "numbers only": ("y", {"features": NUMERIC, "categorical_features": None}),
    "numeric categories": ("y", {"categorical_features": ["rooms", "age", "town", "kind"], "min_category_hessian": 5.0}),
    "categorical parameters": (
        "late",
        {"categorical_smoothing": 1.0, "categorical_l2": 0.5, "max_category_group": 2, "min_category_hessian": 1.0},
    ),
    # Constraints.
    "monotonic": ("y", {"monotonic_cst": {"x": 1, "age": -1}}),
    "monotonic, log_loss, depth_wise": ("late", {"monotonic_cst": {"x": 1}, "growth": "depth_wise"}),
    "interactions, groups": ("y", {"interaction_cst": [["x", "size"], ["age", "town", "kind"]]}),
    "interactions, pairwise": ("late", {"interaction_cst": "pairwise"}),
    "interactions, none": ("y", {"interaction_cst": "no_interactions"}),
    "monotonic and interactions": ("y", {"monotonic_cst": {"x": 1}, "interaction_cst": [["x", "town"]], "max_features": 0.7}),
    # Split proposals.
    "proposal tree": ("late", {"split_proposal": "tree", "max_bins": 16}),
    "proposal tree, 3 classes": ("grade", {"split_proposal": "tree", "max_bins": 16}),
    "proposal node": ("y", {"split_proposal": "node", "max_bins": 16}),
    "proposal node, log_loss, weights": ("late", {"split_proposal": "node", "max_bins": 12, "sample_weight": "v"}),
    "proposal exact": ("y", {"split_proposal": "exact"}),
    "proposal exact, subsample": ("late", {"split_proposal": "exact", "subsample": 0.6}),
    # Criteria and steps.
    "gradient": ("y", {"criterion": "gradient"}),
    "gradient, log_loss": ("late", {"criterion": "gradient", "sample_weight": "w"}),
    "gradient, 3 classes": ("grade", {"criterion": "gradient"}),
    "gradient, TreeBoost": ("late", {"criterion": "gradient", "l2_regularization": 0.0, "min_hessian": 0.0}),
    "gradient, absolute_error": ("tails", {"criterion": "gradient", "loss": "absolute_error", "l2_regularization": 0.0}),
    "line search": ("late", {"step": "line_search"}),
    "line search, huber": ("tails", {"step": "line_search", "loss": "huber"}),
    "line search, absolute_error": ("tails", {"step": "line_search", "loss": "absolute_error"}),
    "line search, poisson": ("count", {"step": "line_search", "loss": "poisson", "offset": "o"}),
    "line search, 3 classes": ("grade", {"step": "line_search"}),
    "line search, gradient, exponential": ("late", {"step": "line_search", "criterion": "gradient", "loss": "exponential"}),
    "constant step": ("y", {"step": "constant"}),
    "constant step, gradient, log_loss": ("late", {"step": "constant", "criterion": "gradient", "learning_rate": 0.5}),
    # Growth.
    "depth_wise": ("y", {"growth": "depth_wise", "max_leaf_nodes": 20}),
    "depth_wise, max_depth": ("late", {"growth": "depth_wise", "max_depth": 3, "max_leaf_nodes": None}),
    "depth_wise, 3 classes": ("grade", {"growth": "depth_wise", "max_leaf_nodes": 9, "max_features": 0.6}),
    "max_depth": ("y", {"max_depth": 4, "max_leaf_nodes": None}),
    "no limit of leaves": ("y", {"max_leaf_nodes": None, "min_samples_leaf": 3, "max_iter": 4}),
    "stumps": ("late", {"max_leaf_nodes": 2, "max_iter": 20}),
    "no split": ("y", {"min_samples_leaf": 1000}),
    # Sampling and trimming.
    "subsample": ("y", {"subsample": 0.5, "random_state": 7}),
    "subsample, 3 classes, weights": ("grade", {"subsample": 0.7, "sample_weight": "w"}),
    "subsample, absolute_error": ("tails", {"subsample": 0.6, "loss": "absolute_error"}),
    "max_features": ("y", {"max_features": 0.4, "random_state": 3}),
    "subsample and max_features, depth_wise": ("late", {"subsample": 0.8, "max_features": 0.5, "growth": "depth_wise"}),
    "trimming": ("late", {"influence_trimming": 0.1, "learning_rate": 0.5}),
    "trimming, 3 classes": ("grade", {"influence_trimming": 0.1, "learning_rate": 0.5, "subsample": 0.8}),
    "trimming, gradient": ("late", {"influence_trimming": 0.2, "criterion": "gradient", "learning_rate": 0.5}),
    # Bins.
    "max_bins 2": ("y", {"max_bins": 2}),
    "max_bins 15": ("late", {"max_bins": 15}),
    "max_bins 64, 3 classes": ("grade", {"max_bins": 64}),
    # Regularization.
    "leaf_penalty": ("y", {"leaf_penalty": 5.0}),
    "min_gain": ("late", {"min_gain": 3.0}),
    "max_delta_step": ("late", {"max_delta_step": 0.3}),
    "l1 and l2": ("y", {"l1_regularization": 5.0, "l2_regularization": 0.3}),
    "all penalties": (
        "grade",
        {"l1_regularization": 0.5, "leaf_penalty": 0.5, "min_gain": 0.3, "max_delta_step": 0.8, "min_hessian": 3.0},
    ),
    "all penalties, depth_wise": (
        "y",
        {"l1_regularization": 2.0, "leaf_penalty": 1.0, "max_delta_step": 0.5, "growth": "depth_wise", "min_samples_leaf": 40},
    ),
    "no penalty": ("y", {"l2_regularization": 0.0, "min_hessian": 0.0, "min_samples_leaf": 1}),
    # Evaluation sets and early stopping.
    "early stopping": ("y", {"eval_set": HELD_OUT, "early_stopping_rounds": 2, "learning_rate": 0.9, "max_iter": 20}),
    "early stopping, several sets and metrics": (
        "late",
        {
            "eval_set": {"later": LATER, "held_out": HELD_OUT},
            "eval_metric": ["accuracy", "brier_score", "log_loss", "roc_auc"],
            "early_stopping_rounds": 3,
            "learning_rate": 0.8,
            "max_iter": 20,
        },
    ),
    "early stopping, 3 classes": (
        "grade",
        {
            "eval_set": {"held_out": HELD_OUT},
            "eval_metric": ["accuracy", "log_loss"],
            "early_stopping_rounds": 2,
            "learning_rate": 0.9,
            "max_iter": 15,
        },
    ),
    "evaluation, weights and offsets": (
        "count",
        {
            "loss": "poisson",
            "sample_weight": "v",
            "offset": "o",
            "eval_set": {"held_out": HELD_OUT, "later": LATER},
            "eval_metric": ["mean_poisson_deviance", "mean_absolute_error", "poisson"],
        },
    ),
    "evaluation, quantile": (
        "tails",
        {"loss": "quantile", "quantile": 0.8, "eval_set": HELD_OUT, "eval_metric": ["mean_pinball_loss", "mean_squared_error"]},
    ),
    "evaluation, gamma": ("amount", {"loss": "gamma", "eval_set": HELD_OUT, "eval_metric": ["mean_gamma_deviance", "gamma"]}),
    "evaluation, tweedie": ("claim", {"loss": "tweedie", "eval_set": HELD_OUT, "eval_metric": "mean_tweedie_deviance"}),
    "evaluation, exponential": ("late", {"loss": "exponential", "eval_set": HELD_OUT, "eval_metric": ["log_loss", "roc_auc"]}),
    # Arcbites.
    "arcbites": ("y", {"arcbites": dboost.ArcBites(n_bites=3, trees_per_visit=2, visits=2)}),
    "arcbites, cyclic": ("grade", {"arcbites": dboost.ArcBites(n_bites=2, trees_per_visit=2, visits=2, order="cyclic")}),
    "arcbites, adaptive": (
        "late",
        {"arcbites": dboost.ArcBites(n_bites=3, trees_per_visit=1, visits=3, order="adaptive"), "max_iter": 9},
    ),
    "arcbites, test set": (
        "late",
        {
            "arcbites": dboost.ArcBites(n_bites=3, visits=2, early_stopping_rounds=2),
            "eval_set": HELD_OUT,
            "learning_rate": 0.5,
            "max_iter": 20,
        },
    ),
    "arcbites, rows held out": (
        "y",
        {"arcbites": dboost.ArcBites(n_bites=2, visits=None, early_stopping_rounds=2), "learning_rate": 0.6, "max_iter": 15},
    ),
    "arcbites, parts": (
        "tails",
        {"arcbites": dboost.ArcBites(n_bites=2, trees_per_visit=2, visits=2, parts=2), "loss": "huber", "subsample": 0.8},
    ),
}

#: Of these, those that run on clusters too.
SIMPLE_ON_CLUSTERS = (
    "loss squared_error",
    "loss absolute_error weights",
    "loss huber",
    "loss log_loss 3 classes",
    "own loss with a parameter",
    "offset, poisson",
    "monotonic and interactions",
    "proposal tree",
    "proposal node, log_loss, weights",
    "proposal exact",
    "line search, 3 classes",
    "depth_wise, 3 classes",
    "subsample and max_features, depth_wise",
    "trimming, 3 classes",
    "all penalties",
    "early stopping, several sets and metrics",
    "arcbites, adaptive",
    "arcbites, rows held out",
)


def simple(target: str, options: Mapping[str, Any]) -> Fit:
    """The fit of `FRAME` with this target and these parameters."""
    return lambda context: Result(context.fit(context.data(FRAME), target, **options))


for _name, (_target, _options) in SIMPLE.items():
    fixed_fit(_name, on_cluster=_name in SIMPLE_ON_CLUSTERS)(simple(_target, _options))


# Kinds of data.

_MATRIX = FRAME[NUMERIC].to_numpy(np.float64)
_MATRIX_TO_PREDICT = TO_PREDICT[NUMERIC].to_numpy(np.float64)


@fixed_fit("data numpy, float32")
def _(context: Context) -> Result:
    X = _MATRIX.astype(np.float32)
    return Result(context.fit(X, FRAME["y"].to_numpy(), sample_weight=FRAME["w"].to_numpy()), _MATRIX_TO_PREDICT)


@fixed_fit("data numpy, categories by number")
def _(context: Context) -> Result:
    return Result(context.fit(_MATRIX, FRAME["grade"].to_numpy(), categorical_features=[3]), _MATRIX_TO_PREDICT)


@fixed_fit("data polars")
def _(context: Context) -> Result:
    return Result(context.fit(pl.from_pandas(FRAME), "late", features=FEATURES))


@fixed_fit("data arrow")
def _(context: Context) -> Result:
    return Result(context.fit(pa.Table.from_pandas(FRAME), "grade", features=FEATURES))


def wide_frame() -> pd.DataFrame:
    """More columns than a tile has, columns that share a byte, and a category with more levels than a byte has values."""
    rng = np.random.default_rng(5)
    frame = FRAME[[*FEATURES, "y"]].copy()
    for k in range(20):
        frame[f"n{k}"] = rng.normal(size=len(frame))
        frame[f"b{k}"] = rng.integers(0, 2, len(frame))
    frame["code"] = [f"code {k}" for k in rng.integers(0, 400, len(frame))]
    frame["y"] += (frame["code"].str[-1] == "3") * 2.0
    return frame


@fixed_fit("data many categories and columns")
def _(context: Context) -> Result:
    frame = wide_frame()
    return Result(context.fit(frame, "y", features=None, min_category_hessian=1.0), frame)


@fixed_fit("data extreme numbers")
def _(context: Context) -> Result:
    rng = np.random.default_rng(6)
    n_rows = 800
    X = rng.normal(size=(n_rows, 4))
    y = 1e9 + X[:, 0] + X[:, 1]
    X[:, 0] *= 1e300
    X[:, 1] *= 1e-300
    X[:, 2] = 1.0 + rng.integers(0, 4, n_rows) * 2.0**-52
    X[:, 3] = np.where(rng.random(n_rows) < 0.5, 0.0, -0.0)
    return Result(context.fit(X, y), X)


@fixed_fit("dask frame")
def _(context: Context) -> Result:
    booster = context.fit(cut(FRAME), "grade", eval_set=cut(HELD_OUT), sample_weight="w")
    predicted = booster.predict(cut(HELD_OUT)).compute(scheduler="sync")
    probability = booster.predict_proba(cut(HELD_OUT)).compute(scheduler="sync")
    return Result(booster, more={"dask": digest(predicted.to_numpy(), probability.to_numpy())})


@fixed_fit("dask frame, subsample")
def _(context: Context) -> Result:
    return Result(context.fit(cut(FRAME, 3), "late", subsample=0.6, max_features=0.5))


@fixed_fit("dask array")
def _(context: Context) -> Result:
    chunks = (400, 500, 600)
    X, y = da.from_array(_MATRIX, chunks=(chunks, 4)), da.from_array(FRAME["y"].to_numpy(), chunks=(chunks,))
    booster = context.fit(X, y, sample_weight=da.from_array(FRAME["v"].to_numpy(), chunks=(chunks,)))
    predicted = booster.predict(X, raw_score=True).compute(scheduler="sync")
    return Result(booster, _MATRIX_TO_PREDICT, {"dask": digest(predicted)})


@fixed_fit("two threads, squared_error")
def _(context: Context) -> Result:
    X, y = many_numbers()
    return Result(context.fit(X, y, n_threads=2, subsample=0.8), X[:500])


@fixed_fit("two threads, log_loss")
def _(context: Context) -> Result:
    X, y = many_numbers()
    return Result(context.fit(X, (y > 0).astype(np.int64), n_threads=2, max_features=0.5, influence_trimming=0.05), X[:500])


@fixed_fit("two threads, 3 classes, depth_wise")
def _(context: Context) -> Result:
    X, y = many_numbers()
    target = np.digitize(y, [-0.5, 0.5])
    return Result(context.fit(X, target, loss="log_loss", n_threads=2, growth="depth_wise", max_iter=4), X[:500])


@fixed_fit("two threads, absolute_error, arcbites")
def _(context: Context) -> Result:
    X, y = many_numbers()
    bites = dboost.ArcBites(n_bites=2, trees_per_visit=2, visits=2)
    return Result(context.fit(X, y, loss="absolute_error", n_threads=2, arcbites=bites), X[:500])


# Paths.


def write_files(frame: pd.DataFrame, folder: Path, kind: str) -> None:
    """Three files of unequal length; kind : "parquet" or "csv"."""
    folder.mkdir()
    for number, (first, last) in enumerate(pairwise([0, 100, 700, len(frame)])):
        piece, path = frame.iloc[first:last], folder / f"part-{number}.{kind}"
        if kind == "parquet":
            piece.to_parquet(path, index=False, row_group_size=1000)
        else:
            piece.to_csv(path, index=False)


@fixed_fit("paths parquet", on_cluster=True)
def _(context: Context) -> Result:
    write_files(FRAME, context.folder / "train", "parquet")
    write_files(HELD_OUT.assign(row=range(len(HELD_OUT))), context.folder / "held_out", "parquet")
    booster = context.fit(
        str(context.folder / "train" / "*.parquet"),
        "late",
        features=FEATURES,
        sample_weight="w",
        eval_set={"held_out": str(context.folder / "held_out")},
    )
    predicted = booster.predict(str(context.folder / "held_out"))
    scheduler = "sync" if context.client is None else context.client
    return Result(booster, more={"paths": digest(predicted.compute(scheduler=scheduler).to_numpy())})


@fixed_fit("paths csv")
def _(context: Context) -> Result:
    write_files(FRAME, context.folder / "train", "csv")
    return Result(context.fit(str(context.folder / "train"), "grade", features=FEATURES))


@fixed_fit("paths parquet, streamed")
def _(context: Context) -> Result:
    write_files(large_frame(), context.folder / "train", "parquet")
    options = {"max_bins": 31, "max_leaf_nodes": 8, "memory_limit": "250kB"}
    return Result(context.fit(str(context.folder / "train"), "y", features=NUMERIC, **options))


# A memory limit that the rows do not fit.

#: Small histograms, so that a small limit is enough.
STREAMED: dict[str, Any] = {"max_bins": 31, "max_leaf_nodes": 8, "memory_limit": "250kB", "max_iter": 6}
STREAMED_FITS: dict[str, tuple[str, dict[str, Any]]] = {
    "streamed squared_error": ("y", {}),
    "streamed log_loss, subsample, weights": ("late", {"sample_weight": "w", "subsample": 0.6}),
    "streamed 3 classes": ("grade", {"max_iter": 3, "max_leaf_nodes": 5, "max_bins": 15, "memory_limit": "600kB"}),
    "streamed absolute_error": ("tails", {"loss": "absolute_error"}),
    "streamed huber, weights": ("tails", {"loss": "huber", "sample_weight": "v"}),
    "streamed poisson, line search": ("count", {"loss": "poisson", "step": "line_search", "offset": "o"}),
    "streamed gradient, trimming": ("late", {"criterion": "gradient", "influence_trimming": 0.2}),
    "streamed depth_wise, constraints": (
        "y",
        {"growth": "depth_wise", "monotonic_cst": {"x": 1}, "interaction_cst": [["x", "size"], ["age", "town"]]},
    ),
    "streamed own loss": ("tails", {"loss": LogCosh(), "max_features": 0.6}),
    "streamed early stopping": (
        "late",
        {
            "eval_set": {"large": mixed_frame(4000, 7), "held_out": HELD_OUT},
            "eval_metric": ["roc_auc", "log_loss"],
            "early_stopping_rounds": 2,
            "learning_rate": 0.9,
            "max_iter": 12,
        },
    ),
    "streamed arcbites": ("y", {"arcbites": dboost.ArcBites(n_bites=16, trees_per_visit=1, visits=1)}),
    "streamed arcbites, number by the limit": ("late", {"arcbites": dboost.ArcBites(trees_per_visit=1, visits=1)}),
    "streamed arcbites, cyclic, 3 classes": (
        "grade",
        {"arcbites": dboost.ArcBites(n_bites=18, trees_per_visit=1, visits=1, order="cyclic"), "max_leaf_nodes": 5},
    ),
    "streamed arcbites, adaptive, test set": (
        "late",
        {
            "arcbites": dboost.ArcBites(n_bites=16, order="adaptive", visits=1, early_stopping_rounds=1),
            "eval_set": HELD_OUT,
            "learning_rate": 0.6,
            "max_iter": 10,
        },
    ),
}
STREAMED_ON_CLUSTERS = ("streamed log_loss, subsample, weights", "streamed arcbites", "streamed early stopping")


def streamed(target: str, options: Mapping[str, Any]) -> Fit:
    """The fit of the large frame with a limit that its rows do not fit."""
    return lambda context: Result(context.fit(context.data(large_frame()), target, **(STREAMED | options)))


for _name, (_target, _options) in STREAMED_FITS.items():
    fixed_fit(_name, on_cluster=_name in STREAMED_ON_CLUSTERS)(streamed(_target, _options))


# Prepared data.


def prepared(context: Context, target: str, frame: pd.DataFrame = FRAME, **options: Any) -> Path:
    """A prepared data set in a folder."""
    path = context.folder / "prepared"
    dboost.prepare(frame, target, path, **options)
    return path


@fixed_fit("prepared")
def _(context: Context) -> Result:
    path = prepared(context, "grade", features=FEATURES, sample_weight="w")
    return Result(context.fit(path, "grade", subsample=0.7))


@fixed_fit("prepared, streamed")
def _(context: Context) -> Result:
    path = prepared(context, "late", large_frame(), features=FEATURES, max_bins=31, memory_limit="600kB")
    return Result(context.fit(path, "late", **(STREAMED | {"max_bins": 31, "eval_set": HELD_OUT})))


@fixed_fit("prepared, arcbites")
def _(context: Context) -> Result:
    path = prepared(context, "y", large_frame(), features=FEATURES, offset="o", max_bins=31)
    bites = dboost.ArcBites(n_bites=16, trees_per_visit=1)
    return Result(context.fit(path, "y", **(STREAMED | {"arcbites": bites})))


@fixed_fit("prepared, continued")
def _(context: Context) -> Result:
    old = context.fit(FRAME, "late", source_name="old")
    path = prepared(context, "late", LATER, start_from=old, continue_bins="kept", sample_weight="v")
    return Result(context.fit(path, "late", start_from=old, continue_bins="kept", source_name="new"))


# Models that are continued or changed.


def continued(target: str, first: Mapping[str, Any], then: Mapping[str, Any]) -> Fit:
    """A fit of `FRAME`, continued with `LATER`."""

    def run(context: Context) -> Result:
        old = context.fit(context.data(FRAME), target, source_name="old", **first)
        data = context.data(LATER)
        return Result(context.fit(data, target, start_from=old, source_name="new", max_iter=5, **then))

    return run


CONTINUED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "continued": ("y", {}, {}),
    "continued, kept bins, full steps": ("late", {}, {"continue_bins": "kept", "continue_steps": "full"}),
    "continued, kept bins, 3 classes": ("grade", {}, {"continue_bins": "kept", "sample_weight": "w"}),
    "continued, full steps, absolute_error": ("tails", {"loss": "absolute_error"}, {"continue_steps": "full"}),
    "continued, early stopping": (
        "late",
        {"subsample": 0.8},
        {"eval_set": HELD_OUT, "early_stopping_rounds": 2, "learning_rate": 0.8, "offset": "o"},
    ),
    "continued, own loss": ("tails", {"loss": LogCosh(2.0)}, {"max_leaf_nodes": 6}),
}
for _name, (_target, _first, _then) in CONTINUED.items():
    fixed_fit(_name, on_cluster=_name == "continued, early stopping")(continued(_target, _first, _then))


@fixed_fit("continued from a file, streamed")
def _(context: Context) -> Result:
    context.fit(FRAME, "y").save(context.folder / "old.json")
    options = {name: value for name, value in STREAMED.items() if name != "max_iter"}
    return Result(context.fit(large_frame(), "y", start_from=context.folder / "old.json", max_iter=4, **options))


@fixed_fit("continued with chunks")
def _(context: Context) -> Result:
    chunks = [("a", FRAME[:500]), ("b", FRAME[500:]), ("c", LATER)]
    tables = [(label, chunk[[*FEATURES, "late"]]) for label, chunk in chunks]
    *_, booster = dboost.continue_on(tables, "late", max_iter=3, progress=False, n_threads=1)
    return Result(booster)


def refitted(target: str, first: Mapping[str, Any], how: Mapping[str, Any]) -> Fit:
    """A fit of `FRAME` whose leaf values are estimated anew from `LATER`."""

    def run(context: Context) -> Result:
        old = context.fit(context.data(FRAME), target, **first)
        client = {} if context.client is None else {"client": context.client}
        return Result(old.refit_leaves(context.data(LATER), target, n_threads=1, source_name="new", **how, **client))

    return run


REFITTED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "refit": ("y", {}, {}),
    "refit, 2 classes": ("late", {}, {}),
    "refit, decay, 3 classes": ("grade", {}, {"decay": 0.3, "sample_weight": "v"}),
    "refit, huber": ("tails", {"loss": "huber"}, {"decay": 0.5}),
    "refit, quantile": ("tails", {"loss": "quantile", "quantile": 0.7}, {"sample_weight": "w"}),
    "refit, poisson": ("count", {"loss": "poisson", "offset": "o"}, {"offset": "o"}),
}
for _name, (_target, _first, _then) in REFITTED.items():
    fixed_fit(_name, on_cluster=_name == "refit, decay, 3 classes")(refitted(_target, _first, _then))


@fixed_fit("truncated")
def _(context: Context) -> Result:
    return Result(context.fit(FRAME, "grade").truncate(3))


@fixed_fit("source dropped")
def _(context: Context) -> Result:
    old = context.fit(FRAME, "y", source_name="old")
    return Result(context.fit(LATER, "y", start_from=old, source_name="new").drop_source("old"))


@fixed_fit("imported from XGBoost's format")
def _(context: Context) -> Result:
    context.fit(FRAME, "late", features=NUMERIC).to_xgboost_json(context.folder / "xgboost.json")
    more = {"xgboost.json": digest((context.folder / "xgboost.json").read_bytes())}
    return Result(dboost.from_xgboost(context.folder / "xgboost.json"), TO_PREDICT[NUMERIC].astype(np.float32), more)


# Checkpoints.


class Stopped(BaseException):
    """Ends a fit as the death of its process would."""


def stop_at(*iterations: int) -> Callable[[dboost.Iteration], None]:
    """A callback that stops the fit the first time that it reaches each of these iterations."""
    left = set(iterations)

    def callback(now: dboost.Iteration) -> None:
        if now.iteration in left:
            left.remove(now.iteration)
            raise Stopped

    return callback


def fit_half(context: Context, data: Any, target: str, folder: Path, at: int, **options: Any) -> None:
    """Stop a fit with a checkpoint at an iteration."""
    with contextlib.suppress(Stopped):
        context.fit(data, target, checkpoint=folder, checkpoint_every=2, callbacks=[stop_at(at)], **options)
        raise AssertionError("the fit was not stopped")


CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "checkpoint": ("y", {"subsample": 0.6}),
    "checkpoint, early stopping": (
        "late",
        {"eval_set": {"held_out": HELD_OUT}, "early_stopping_rounds": 3, "learning_rate": 0.8, "max_iter": 15},
    ),
    "checkpoint, 3 classes, trimming": ("grade", {"influence_trimming": 0.1, "sample_weight": "w"}),
    "checkpoint, absolute_error": ("tails", {"loss": "absolute_error"}),
    "checkpoint, arcbites": ("y", {"arcbites": dboost.ArcBites(n_bites=4, trees_per_visit=2)}),
}


def resumed(target: str, options: Mapping[str, Any]) -> Fit:
    """A fit of `FRAME` that is stopped twice and resumed."""

    def run(context: Context) -> Result:
        folder, data = context.folder / "checkpoint", context.data(FRAME)
        half = []
        for at in (3, 6):
            fit_half(context, data, target, folder, at, **options)
            half.append(digest_checkpoint(folder))
        booster = context.fit(data, target, checkpoint=folder, checkpoint_every=2, **options)
        return Result(booster, more={"half": digest(*half), "checkpoint": digest_checkpoint(folder)})

    return run


for _name, (_target, _options) in CHECKPOINTS.items():
    fixed_fit(_name, on_cluster=_name == "checkpoint, early stopping")(resumed(_target, _options))


@fixed_fit("checkpoint, continued model")
def _(context: Context) -> Result:
    old, folder = context.fit(FRAME, "late"), context.folder / "checkpoint"
    fit_half(context, LATER, "late", folder, old.n_iter_ + 3, start_from=old)
    booster = context.fit(LATER, "late", start_from=old, checkpoint=folder, checkpoint_every=2)
    return Result(booster, more={"checkpoint": digest_checkpoint(folder)})


@fixed_fit("checkpoint, streamed then in memory")
def _(context: Context) -> Result:
    folder, options = context.folder / "checkpoint", {name: STREAMED[name] for name in ("max_bins", "max_leaf_nodes")}
    fit_half(context, large_frame(), "y", folder, 3, memory_limit="250kB", **options)
    return Result(context.fit(large_frame(), "y", checkpoint=folder, checkpoint_every=2, **options))


# Estimators.


def estimated(estimator: Any, more: Sequence[Any] = ()) -> Result:
    """What is compared of an estimator that has been fitted."""
    scores = np.asarray(estimator.train_score_), np.asarray(estimator.validation_score_)
    digests = {"scores": digest(*scores, estimator.n_iter_), "estimator": digest(estimator.predict(HELD_OUT[FEATURES]), *more)}
    return Result(estimator.booster_, more=digests)


_SETTINGS: dict[str, Any] = {"max_iter": 8, "max_leaf_nodes": 12, "n_threads": 1, "random_state": 1}


@fixed_fit("regressor, validation fraction", on_cluster=True)
def _(context: Context) -> Result:
    settings = _SETTINGS | {"max_iter": 15, "learning_rate": 0.8, "client": context.client}
    estimator = dboost.DBoostRegressor(early_stopping=True, validation_fraction=0.2, n_iter_no_change=2, **settings)
    return estimated(estimator.fit(context.data(FRAME)[FEATURES], context.data(FRAME)["y"]))


@fixed_fit("regressor, early stopping on the training score")
def _(context: Context) -> Result:
    settings = _SETTINGS | {"early_stopping": True, "validation_fraction": None, "scoring": "neg_mean_absolute_error"}
    return estimated(dboost.DBoostRegressor(**settings).fit(FRAME[FEATURES], FRAME["tails"], FRAME["v"]))


@fixed_fit("regressor, validation pair")
def _(context: Context) -> Result:
    settings = _SETTINGS | {"early_stopping": True, "n_iter_no_change": 2, "learning_rate": 0.9, "max_iter": 15}
    estimator = dboost.DBoostRegressor(loss="huber", **settings)
    return estimated(estimator.fit(FRAME[FEATURES], FRAME["tails"], X_val=HELD_OUT[FEATURES], y_val=HELD_OUT["tails"]))


@fixed_fit("classifier, balanced, validation fraction")
def _(context: Context) -> Result:
    settings = _SETTINGS | {"early_stopping": True, "n_iter_no_change": 2, "scoring": "accuracy", "max_iter": 15}
    estimator = dboost.DBoostClassifier(class_weight="balanced", validation_fraction=0.25, **settings)
    estimator.fit(FRAME[FEATURES], FRAME["grade"])
    return estimated(estimator, [estimator.decision_function(HELD_OUT[FEATURES])])


@fixed_fit("classifier, exponential, class weights")
def _(context: Context) -> Result:
    estimator = dboost.DBoostClassifier(loss="exponential", class_weight={False: 1.0, True: 2.5}, **_SETTINGS)
    return estimated(estimator.fit(FRAME[FEATURES], FRAME["yes"]))


@fixed_fit("warm start, regressor")
def _(context: Context) -> Result:
    estimator = dboost.DBoostRegressor(warm_start=True, **_SETTINGS | {"subsample": 0.7}).fit(FRAME[FEATURES], FRAME["y"])
    return estimated(estimator.set_params(max_iter=13, max_leaf_nodes=6).fit(FRAME[FEATURES], FRAME["y"]))


@fixed_fit("warm start, classifier, early stopping")
def _(context: Context) -> Result:
    settings = _SETTINGS | {"early_stopping": True, "n_iter_no_change": 3, "learning_rate": 0.5}
    estimator = dboost.DBoostClassifier(warm_start=True, **settings).fit(FRAME[FEATURES], FRAME["grade"])
    return estimated(estimator.set_params(max_iter=20).fit(FRAME[FEATURES], FRAME["grade"]))


@fixed_fit("partial_fit")
def _(context: Context) -> Result:
    estimator = dboost.DBoostClassifier(**_SETTINGS | {"max_iter": 3})
    for chunk in (FRAME[:700], FRAME[700:], LATER):
        estimator.partial_fit(chunk[FEATURES], chunk["grade"], classes=["high", "low", "middle"])
    return estimated(estimator)


# What a model tells.

INSPECTED = ("loss squared_error", "loss log_loss", "loss log_loss 3 classes", "numeric categories", "monotonic")


def inspected(target: str, options: Mapping[str, Any]) -> Fit:
    """A fit with its importance, Shapley values, partial dependence, decisions and stages."""

    def run(context: Context) -> Result:
        booster = context.fit(FRAME, target, **options)
        more = {"inspection": digest_inspection(booster)}
        more["stages"] = digest(*(np.asarray(stage) for stage in booster.staged_predict(HELD_OUT)))
        if booster.classes_ is not None:
            costs = np.arange(len(booster.classes_) ** 2).reshape(len(booster.classes_), -1) % 5
            more["decisions"] = digest(np.asarray(booster.decide(HELD_OUT, costs=costs)))
        return Result(booster, more=more)

    return run


for _name in INSPECTED:
    fixed_fit(f"inspected, {_name}")(inspected(*SIMPLE[_name]))


# Files of another checkout.

#: The prepared data set and the checkpoints that `--folder` writes: half of a fit each.
_PREPARED = "late"
_HALF: dict[str, tuple[str, dict[str, Any]]] = {name: CHECKPOINTS[name] for name in list(CHECKPOINTS)[:2]}


def file_name(name: str) -> str:
    """The name of a fit without what file names should not have."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)


def write_folder(folder: Path, models: Mapping[str, Path]) -> None:
    """Write what a later version must be able to read.

    Parameters
    ----------
    folder : Path
        An older one is replaced.
    models : mapping of str to Path
        Folders that hold ``model.json`` and ``model.dboost``, by the name of the fit.
    """
    for name in ("models", "prepared", "checkpoints"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "models").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    for name, source in models.items():
        for kind in ("json", "dboost"):
            shutil.copy(source / f"model.{kind}", folder / "models" / f"{file_name(name)}.{kind}")
    context = Context(folder)
    prepared(context, _PREPARED, features=FEATURES, sample_weight="w")
    for name, (target, options) in _HALF.items():
        fit_half(context, FRAME, target, folder / "checkpoints" / file_name(name), 5, **options)


def fits_of_folder(folder: Path) -> dict[str, Fit]:
    """What to do with the contents of such a folder; nothing in it is changed."""

    def load(path: Path) -> Fit:
        return lambda context: Result(dboost.load(path))

    def resume(path: Path, target: str, options: Mapping[str, Any]) -> Fit:
        def run(context: Context) -> Result:
            copied = shutil.copytree(path, context.folder / "checkpoint")
            booster = context.fit(FRAME, target, checkpoint=copied, checkpoint_every=2, **options)
            return Result(booster, more={"checkpoint": digest_checkpoint(copied)})

        return run

    def fit_prepared(context: Context) -> Result:
        return Result(context.fit(shutil.copytree(folder / "prepared", context.folder / "prepared"), _PREPARED))

    def continue_model(context: Context) -> Result:
        model = folder / "models" / f"{file_name('loss log_loss 3 classes')}.json"
        return Result(context.fit(LATER, "grade", start_from=model))

    def refit_model(context: Context) -> Result:
        model = dboost.load(folder / "models" / f"{file_name('loss huber')}.dboost")
        return Result(model.refit_leaves(LATER, "tails", n_threads=1))

    found = {f"loaded {path.name}": load(path) for path in sorted((folder / "models").iterdir())}
    found["loaded prepared data"] = fit_prepared
    for name, (target, options) in _HALF.items():
        found[f"loaded {name}"] = resume(folder / "checkpoints" / file_name(name), target, options)
    if (folder / "models" / f"{file_name('loss huber')}.dboost").exists():
        found |= {"loaded model, continued": continue_model, "loaded model, refitted": refit_model}
    return found


# The program.


@dataclass
class Run:
    """Runs fits one after another and keeps their digests.

    folder : for temporary files, one folder for each fit; wanted : patterns of names; entries : by name, "digests" or
    "error", and "seconds".
    """

    folder: Path
    wanted: Sequence[str]
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[str, Path] = field(default_factory=dict)

    def wants(self, name: str) -> bool:
        return not self.wanted or any(fnmatch.fnmatchcase(name, f"*{text}*") for text in self.wanted)

    def select(self, fits: Mapping[str, Fit], prefix: str = "") -> dict[str, Fit]:
        """Those whose names are wanted."""
        return {prefix + name: fit for name, fit in fits.items() if self.wants(prefix + name)}

    def run(self, fits: Mapping[str, Fit], client: Any = None) -> None:
        """Run all of them; what fails is noted."""
        for name, fit in fits.items():
            folder = self.folder / file_name(name)
            (folder / "model").mkdir(parents=True)
            begin = time.perf_counter()
            try:
                result = fit(Context(folder, client))
                entry: dict[str, Any] = {"digests": digests_of(result.booster, result.rows, folder / "model") | result.more}
                if client is None and result.rows is TO_PREDICT:
                    self.models[name] = folder / "model"
            except Exception as error:
                traceback.print_exc()
                entry = {"error": f"{type(error).__name__}: {error}"}
            entry["seconds"] = round(time.perf_counter() - begin, 2)
            self.entries[name] = entry
            say(f"{entry['seconds']:6.2f} s  {name}{'  FAILED' if 'error' in entry else ''}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def cluster(n_workers: int) -> Iterator[Any]:
    """A client of workers that are processes of one thread each. They may compile for long on a busy machine."""
    with (
        dask.config.set({"dboost.patience": "120s", "dboost.worker-timeout": "180s"}),
        distributed.Client(
            n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=None, set_as_default=False
        ) as client,
    ):
        yield client


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line for each fit that differs, with the digests that do."""
    lines = []
    for name in [*new, *(name for name in old if name not in new)]:
        if name not in new or name not in old:
            lines.append(f"{name}: only in the {'old' if name in old else 'new'} run")
        elif "error" in old[name] or "error" in new[name]:
            if old[name].get("error") != new[name].get("error"):
                lines.append(f"{name}: old: {old[name].get('error', 'no error')}; new: {new[name].get('error', 'no error')}")
        else:
            before, after = old[name]["digests"], new[name]["digests"]
            wrong = [what for what in before if what in after and before[what] != after[what]]  # a checkout may lack some
            if wrong:
                lines.append(f"{name}: {', '.join(wrong)}")
    return lines


def compare_with_clusters(entries: Mapping[str, Any]) -> list[str]:
    """One line for each fit whose model on a cluster is not that of this process."""
    lines = []
    for name, entry in entries.items():
        prefix, _, plain = name.partition(": ")
        alone = entries.get(plain)
        if prefix.startswith("cluster") and alone and "digests" in entry and "digests" in alone:
            parts = ("sha256", "raw", "trees", "model.json")
            wrong = [what for what in parts if entry["digests"][what] != alone["digests"][what]]
            if wrong:
                lines.append(f"{name}: not as in this process: {', '.join(wrong)}")
    return lines


def environment() -> dict[str, str]:
    """What digests may depend on."""
    found = {module.__name__: module.__version__ for module in (np, pd, numba, dask)}
    return found | {"python": sys.version.split()[0], "processor": llvmlite.binding.get_host_cpu_name()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the fits, write their digests and compare them. Returns the exit status."""
    options = _options(argv)
    say(f"dboost {dboost.__version__} of {dboost.__file__}")
    begin = time.perf_counter()
    warnings.simplefilter("ignore", dboost.DriftWarning)
    for loss in (LogCosh, Counts):
        register(loss)
    lines: list[str] = []
    failed = 0
    with tempfile.TemporaryDirectory(prefix="fixed-fits-") as temporary:
        run = Run(Path(temporary), options.only or [])
        run.run(run.select(FITS))
        for n_workers in (1, 3):
            fits = run.select(ON_CLUSTERS, f"cluster of {n_workers}: ")
            if fits:
                with cluster(n_workers) as client:
                    run.run(fits, client)
        lines += compare_with_clusters(run.entries)
        if options.folder is not None:
            write_folder(options.folder, run.models)
            own = Run(run.folder / "own", [])
            own.run(fits_of_folder(options.folder))
            (options.folder / "expected.json").write_text(json.dumps(own.entries, indent=1) + "\n", encoding="utf-8")
            failed += sum("error" in entry for entry in own.entries.values())
        n_loaded = 0
        if options.from_folder is not None:
            loaded = Run(run.folder / "loaded", options.only or [])
            loaded.run(loaded.select(fits_of_folder(options.from_folder)))
            expected = json.loads((options.from_folder / "expected.json").read_text(encoding="utf-8"))
            expected = {name: entry for name, entry in expected.items() if loaded.wants(name)}
            lines += compare(expected, loaded.entries)
            failed += sum("error" in entry for entry in loaded.entries.values())
            n_loaded = len(loaded.entries)
    report = {"environment": environment(), "fits": run.entries}
    options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    failed += sum("error" in entry for entry in run.entries.values())
    if options.against is not None:
        old = json.loads(options.against.read_text(encoding="utf-8"))
        changed = [name for name, value in report["environment"].items() if old["environment"].get(name) != value]
        if changed:
            say(f"caution: the old run had another {', '.join(changed)}: digests may differ for that reason")
        lines += compare({name: entry for name, entry in old["fits"].items() if run.wants(name)}, run.entries)
    for line in lines:
        print(f"DIFFERENT  {line}")
    compared = "different" if options.against or options.from_folder else "different (nothing to compare with was given)"
    seconds = math.ceil(time.perf_counter() - begin)
    print(f"{len(run.entries)} fits and {n_loaded} of the folder, {len(lines)} {compared}, {failed} failed, {seconds} s")
    return int(bool(lines) or failed > 0)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fixed_fits", description="Digests of a fixed list of fits.")
    parser.add_argument("output", type=Path, metavar="OUT.json", help="where the digests are written")
    parser.add_argument("--against", type=Path, metavar="OLD.json", help="compare with the digests of an earlier run")
    parser.add_argument("--only", action="append", metavar="TEXT", help="fits whose names contain this text; may be repeated")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="also write models, prepared data and checkpoints there")
    parser.add_argument("--from-folder", type=Path, metavar="DIR", help="also read and compare those of another checkout")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
