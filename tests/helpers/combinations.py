"""Random calls of `dboost.fit`: a small table, its roles and any combination of parameters.

A draw is a record of plain values, which its number determines, so a number repeats a failure. A draw's seed determines its
table. Most draws are valid calls; some contain a `mistake`, which must raise an error.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

import dboost
from dboost.losses import Loss
from tests.helpers.table_forms import lacking


class Smooth(Loss):
    """c² (|u| / c - log(1 + |u| / c)), a custom loss."""

    name = "smooth"

    def __init__(self, c: float = 1.0) -> None:
        self.c = c

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        u = np.abs(raw - y) / self.c
        return self.c**2 * (u - np.log1p(u))

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (raw - y) / (1 + np.abs(raw - y) / self.c)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.minimum(np.abs(raw - y) / self.c, 1e100)) ** 2


class Logistic(Loss):
    """The log loss of two classes, as a user may write it."""

    name = "logistic"
    is_classification = True

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, raw) - y * raw

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self.inverse_link(raw) - y

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self.inverse_link(raw) * (1 - self.inverse_link(raw))

    def link(self, prediction: np.ndarray) -> np.ndarray:
        return np.log(prediction / (1 - prediction))

    def inverse_link(self, raw: np.ndarray) -> np.ndarray:
        return 0.5 * (1 + np.tanh(raw / 2))


Made = Callable[[np.random.Generator, int], Any]


def _gaps(values: Any, rng: np.random.Generator, share: float = 0.3) -> pd.Series:
    series = pd.Series(values)
    return series.mask(rng.random(len(series)) < share)


def _cents(rng: np.random.Generator, n: int) -> list[Decimal]:
    return [Decimal(int(cents)).scaleb(-2) for cents in rng.integers(-300, 300, n)]


def _with_stranger(words: pd.Series, rng: np.random.Generator) -> pd.Series:
    """Return the column with a word among the others that they do not contain."""
    is_new = rng.random(len(words)) < 0.2
    if not isinstance(words.dtype, pd.CategoricalDtype):
        return words.mask(is_new, "a stranger")
    categories = ["a stranger", *words.cat.categories]
    return pd.Series(pd.Categorical(words.astype(object).mask(is_new, "a stranger"), categories, ordered=words.cat.ordered))


def as_array(frame: pd.DataFrame, dtype: str) -> np.ndarray:
    """Return columns of numbers as an array of a type that may be smaller."""
    columns = [frame[name] for name in frame]
    values = np.column_stack([np.asarray(column.to_numpy(np.float64, na_value=np.nan)) for column in columns])
    if dtype == "bool":
        return values > 0
    if dtype in ("float64", "object"):
        return values.astype(dtype)
    most = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    values = np.clip(values, float(most.min), float(most.max) if dtype != "int64" else 2.0**62)
    return (values if dtype.startswith("float") else np.nan_to_num(values)).astype(dtype)


def _words(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.choice(["pear", "apple", "fig", "é", "two words"], n).astype(object)


def own_metric(y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> float:
    """A metric as a user may write it."""
    return float(np.average(np.abs(np.nan_to_num(prediction.reshape(len(y), -1)[:, 0])), weights=weight))


NUMERIC: dict[str, Made] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "gaps": lambda rng, n: _gaps(rng.normal(size=n), rng),
    "ties": lambda rng, n: rng.integers(-2, 3, n) / 2,
    "constant": lambda rng, n: np.full(n, 3.5),
    "constant with gaps": lambda rng, n: _gaps(np.full(n, -1.0), rng, 0.5),
    "missing": lambda rng, n: np.full(n, np.nan),
    "huge": lambda rng, n: rng.normal(size=n) * 1e307,
    "tiny": lambda rng, n: rng.normal(size=n) * 1e-300,
    "denormal": lambda rng, n: rng.integers(-9, 9, n) * 5e-324,
    "all magnitudes": lambda rng, n: rng.normal(size=n) * 10.0 ** rng.integers(-320, 307, n),
    "neighbors": lambda rng, n: 1.0 + rng.integers(0, 4, n) * 2.0**-52,
    "zeros of both signs": lambda rng, n: np.where(rng.random(n) < 0.5, 0.0, -0.0),
    "float32": lambda rng, n: rng.normal(size=n).astype(np.float32),
    "int64": lambda rng, n: rng.integers(-(2**52), 2**52, n),
    "integers beyond 2**53": lambda rng, n: rng.integers(-(2**63), 2**63 - 1, n),
    "neighbors beyond 2**53": lambda rng, n: 2**60 + rng.integers(0, 300, n),
    "uint64": lambda rng, n: rng.integers(0, 2**64 - 1, n, dtype=np.uint64),
    "int8": lambda rng, n: rng.integers(-128, 128, n).astype(np.int8),
    "uint8": lambda rng, n: rng.integers(0, 5, n).astype(np.uint8),
    "nullable": lambda rng, n: _gaps(pd.Series(rng.integers(0, 9, n), dtype="Int64"), rng),
    "bool": lambda rng, n: rng.random(n) < 0.5,
    "float16": lambda rng, n: rng.normal(size=n).astype(np.float16),
    "float32 with gaps": lambda rng, n: _gaps(rng.normal(size=n).astype(np.float32), rng),
    "int16": lambda rng, n: rng.integers(-300, 300, n).astype(np.int16),
    "int32": lambda rng, n: rng.integers(-(2**31), 2**31 - 1, n).astype(np.int32),
    "uint16": lambda rng, n: rng.integers(0, 2**16 - 1, n).astype(np.uint16),
    "uint32": lambda rng, n: rng.integers(0, 2**32 - 1, n).astype(np.uint32),
    "one value rare": lambda rng, n: (np.arange(n) == n // 2).astype(np.float64),
    "nullable float": lambda rng, n: _gaps(pd.Series(rng.normal(size=n), dtype="Float64"), rng),
    "nullable bool": lambda rng, n: _gaps(pd.Series(rng.random(n) < 0.5, dtype="boolean"), rng),
    "nullable beyond 2**53": lambda rng, n: _gaps(pd.Series(2**60 + rng.integers(0, 300, n), dtype="Int64"), rng),
    "arrow integers": lambda rng, n: _gaps(pd.Series(rng.integers(0, 50, n), dtype="int32[pyarrow]"), rng),
    "arrow floats": lambda rng, n: _gaps(pd.Series(rng.normal(size=n), dtype="double[pyarrow]"), rng),
    "decimals": lambda rng, n: pd.Series(_cents(rng, n), dtype=pd.ArrowDtype(pa.decimal128(12, 2))),
    "decimal objects": lambda rng, n: np.array([*_cents(rng, n), None], object)[:-1],
    "objects": lambda rng, n: np.array([None, *rng.integers(-4, 5, n).tolist()], object)[1:],
    "objects with gaps": lambda rng, n: np.array([None, 1, -7, 2**40], object)[rng.integers(0, 4, n)],
    "sparse": lambda rng, n: pd.arrays.SparseArray(np.where(rng.random(n) < 0.7, 0.0, rng.normal(size=n)), fill_value=0.0),
}
CATEGORICAL: dict[str, Made] = {
    "text": lambda rng, n: rng.choice(["a", "b", "", "é", "long " * 9], n).astype(object),
    "text with gaps": lambda rng, n: _gaps(rng.choice(list("abcdefgh"), n).astype(object), rng),
    "a name for each row": lambda rng, n: np.array([f"name {i}" for i in rng.permutation(n)], object),
    "categories": lambda rng, n: pd.Categorical.from_codes(rng.integers(-1, 4, n), list("dcba")),
    "categories of numbers": lambda rng, n: pd.Categorical.from_codes(rng.integers(0, 3, n), [7, 2, 5]),
    "categories of floats": lambda rng, n: pd.Categorical.from_codes(rng.integers(-1, 3, n), [0.5, -1.0, 2.0]),
    "missing text": lambda rng, n: np.full(n, None, object),
    "missing categories": lambda rng, n: pd.Categorical.from_codes(np.full(n, -1), ["a", "b"]),
    "no categories": lambda rng, n: pd.Categorical([None] * n),
    "unused categories": lambda rng, n: pd.Categorical.from_codes(rng.integers(0, 2, n), [f"c{i}" for i in range(300)]),
    "ordered categories": lambda rng, n: pd.Categorical.from_codes(
        rng.integers(-1, 3, n), ["low", "mid", "high"], ordered=True
    ),
    "truth as categories": lambda rng, n: pd.Categorical.from_codes(rng.integers(-1, 2, n), [False, True]),
    "string": lambda rng, n: pd.Series(_words(rng, n), dtype="string[python]"),
    "arrow string": lambda rng, n: _gaps(pd.Series(_words(rng, n), dtype="string[pyarrow]"), rng),
    "large string": lambda rng, n: pd.Series(_words(rng, n), dtype=pd.ArrowDtype(pa.large_string())),
    "dictionary": lambda rng, n: _gaps(
        pd.Series(_words(rng, n), dtype=pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))), rng
    ),
    "text that looks like numbers": lambda rng, n: rng.choice(["1,234", "5 %", "$5.50", "12 kg", "31/12/2024"], n).astype(
        object
    ),
    "runs of numbers": lambda rng, n: pd.Categorical(np.sort(rng.integers(8, 12, n))),
    "runs of words": lambda rng, n: np.sort(_words(rng, n)),
    "one word rare": lambda rng, n: np.where(np.arange(n) == n // 2, "rare", "frequent").astype(object),
}
COLUMNS = NUMERIC | CATEGORICAL
#: Numeric columns that may be declared categorical.
CODES = ("ties", "int8", "uint8", "bool", "constant", "gaps", "missing", "neighbors beyond 2**53")
#: Columns of words, to which others may be added.
OPEN = ("text", "text with gaps", "string", "arrow string", "large string", "one word rare", "categories", "ordered categories")
#: Columns without a value take the kind of later data.
EMPTY = ("missing", "missing text", "missing categories", "no categories")


def _classes(rng: np.random.Generator, signal: np.ndarray, n_classes: int) -> np.ndarray:
    """Classes that depend on the signal; each of them occurs in the first rows."""
    codes = np.clip(np.floor((signal + rng.normal(size=len(signal)) + 2) * n_classes / 4), 0, n_classes - 1).astype(int)
    codes[:n_classes] = np.arange(n_classes)[: len(codes)]
    return codes


Target = Callable[[np.random.Generator, np.ndarray], Any]
NUMBERS: dict[str, Target] = {
    "numbers": lambda rng, s: s + rng.normal(size=len(s)),
    "whole numbers": lambda rng, s: np.rint(3 * s).astype(np.int64),
    "one number": lambda rng, s: np.full(len(s), 2.5),
    "heavy tails": lambda rng, s: s + rng.standard_cauchy(len(s)),
    "far from zero": lambda rng, s: 1e9 + s,
    "large numbers": lambda rng, s: 1e100 * s,
    "small numbers": lambda rng, s: 1e-100 * s,
    "extreme numbers": lambda rng, s: 1e305 * s,
    "float32 numbers": lambda rng, s: s.astype(np.float32),
}
COUNTS: dict[str, Target] = {
    "counts": lambda rng, s: rng.poisson(np.exp(s)),
    "counts, most zero": lambda rng, s: np.where(rng.random(len(s)) < 0.9, 0, rng.poisson(3, len(s)) + 1) + (s == s.max()),
}
AMOUNTS: dict[str, Target] = {
    "amounts": lambda rng, s: rng.gamma(2.0, np.exp(s)) + 1e-9,
    "large amounts": lambda rng, s: 1e12 * np.exp(3 * s),
    "small amounts": lambda rng, s: 1e-12 * np.exp(3 * s),
}
TWO_CLASSES: dict[str, Target] = {
    "zeros and ones": lambda rng, s: _classes(rng, s, 2),
    "zeros and ones as floats": lambda rng, s: _classes(rng, s, 2).astype(np.float64),
    "truth": lambda rng, s: _classes(rng, s, 2).astype(bool),
    "two words": lambda rng, s: np.array(["no", "yes"], object)[_classes(rng, s, 2)],
    "one of many": lambda rng, s: (np.arange(len(s)) == 1).astype(int),
    "separable": lambda rng, s: (s > np.sort(s)[len(s) // 2]).astype(int) | (np.arange(len(s)) == 0),
}
MANY_CLASSES: dict[str, Target] = {
    "three words": lambda rng, s: np.array(["low", "middle", "high"], object)[_classes(rng, s, 3)],
    "three categories": lambda rng, s: pd.Categorical.from_codes(_classes(rng, s, 3), ["c", "a", "b"]),
    "five numbers": lambda rng, s: _classes(rng, s, 5) * 10 - 20,
}
TARGETS = NUMBERS | COUNTS | AMOUNTS | TWO_CLASSES | MANY_CLASSES
_REAL = [*NUMBERS, *COUNTS, *AMOUNTS, "zeros and ones"]
SUITED: dict[str, list[str]] = {
    "auto": [*NUMBERS, *COUNTS, *AMOUNTS, *TWO_CLASSES, "three words", "three categories"],
    "squared_error": _REAL,
    "absolute_error": _REAL,
    "quantile": _REAL,
    "huber": _REAL,
    "expectile": _REAL,
    "normal": _REAL,
    "half_brier_score": [*TWO_CLASSES, *MANY_CLASSES],
    "smooth": _REAL,
    "poisson": [*COUNTS, *AMOUNTS, "zeros and ones"],
    "tweedie": [*COUNTS, *AMOUNTS, "zeros and ones"],
    "gamma": [*AMOUNTS],
    "log_loss": [*TWO_CLASSES, *MANY_CLASSES],
    "exponential": [*TWO_CLASSES],
    "logistic": [*TWO_CLASSES],
}
OWN: dict[str, Loss] = {"smooth": Smooth(0.5), "logistic": Logistic()}
#: Losses that a second target may have beside one of these, and their targets.
OF_SECOND = {name: SUITED[name] for name in ("squared_error", "absolute_error", "huber", "poisson", "gamma")}
#: Losses of one of several targets of numbers.
OF_SEVERAL = (*OF_SECOND, "quantile", "expectile", "tweedie")
_OF_CLASSES = ("log_loss", "exponential", "logistic", "half_brier_score")
#: Several levels in one model.
LEVELS = ([0.1, 0.5, 0.9], [0.01, 0.99], [0.2, 0.4, 0.5, 0.6, 0.8])
#: Parameters of boosting, which a forest refuses.
OF_STEPS = ("learning_rate", "criterion", "step", "max_delta_step", "influence_trimming")

WEIGHTS: dict[str, Made] = {
    "ones": lambda rng, n: np.ones(n),
    "counts": lambda rng, n: np.maximum(rng.integers(0, 4, n), np.arange(n) < 5),
    "mostly zero": lambda rng, n: np.where((rng.random(n) < 0.8) & (np.arange(n) >= 5), 0.0, 1.5),
    "any": lambda rng, n: rng.random(n) + 1e-3,
    "huge": lambda rng, n: rng.random(n) * 1e12 + 1,
    "tiny": lambda rng, n: rng.random(n) * 1e-12 + 1e-15,
    "next to nothing beside others": lambda rng, n: np.where((rng.random(n) < 0.3) & (np.arange(n) >= 5), 1e-300, 1.5),
    "very different": lambda rng, n: 10.0 ** rng.integers(-6, 7, n),
    "truth": lambda rng, n: (rng.random(n) < 0.6) | (np.arange(n) < 5),
}
OFFSETS: dict[str, Made] = {
    "any": lambda rng, n: rng.normal(size=n),
    "zero": lambda rng, n: np.zeros(n),
    "far": lambda rng, n: np.full(n, 5.0) + rng.normal(size=n),
    "whole": lambda rng, n: rng.integers(-2, 3, n),
    "extreme": lambda rng, n: np.where(rng.random(n) < 0.5, 1e305, 0.0),
}
#: Types of arrays of features; values that a type cannot hold are set to the nearest one, or missing ones to 0.
ARRAY_TYPES = ("float64", "float64", "float32", "float16", "int64", "int8", "uint16", "bool", "object")
#: How the columns are called; those of "f" are the names that dboost gives to the columns of an array.
LABELS = ("c", "f", "a column, ", "ß", "")
WRONG: list[dict[str, Any]] = [
    {"learning_rate": 0.0},
    {"learning_rate": float("nan")},
    {"max_iter": 0},
    {"max_leaf_nodes": 1},
    {"max_depth": 0},
    {"min_samples_leaf": 2.5},
    {"l2_regularization": -1.0},
    {"subsample": 0.0},
    {"subsample": 1.5},
    {"max_features": 0.0},
    {"max_bins": 256},
    {"growth": "wide"},
    {"step": "large"},
    {"split_proposal": "never"},
    {"criterion": "least"},
    {"random_state": -1},
    {"loss": "hinge"},
    {"n_estimators": 5},
    {"n_threads": 0},
    {"memory_limit": "much"},
    {"arcbites": {"n_bites": 0}},
    {"arcbites": {"bites": 2}},
    {"early_stopping_rounds": 0},
    {"early_stopping_rounds": 3, "eval_set": None},
    {"monotonic_cst": {"nowhere": 1}},
    {"monotonic_cst": {"c0": 2}},
    {"monotonic_cst": [0] * 20},
    {"interaction_cst": [["nowhere"]]},
    {"interaction_cst": [[99]]},
    {"interaction_cst": 5},
    {"eval_metric": "nothing"},
    {"features": ["c0", "nowhere"]},
    {"categorical_features": ["nowhere"]},
    {"continue_bins": "old"},
    {"continue_steps": "small"},
    {"continue_bins": "kept", "start_from": None},
    {"continue_steps": "full", "start_from": None},
    {"checkpoint_every": 0},
    {"source_name": 5},
    {"callbacks": ["print"]},
    {"start_from": "nowhere/model.json"},
]
MIXED = "a feature mixes numbers and text"
#: Mistakes whose messages depend on the form: a partition of a mixed column may hold text only, and libraries have their own
#: names of types.
WORDED_BY_FORM = (MIXED, "a feature is complex", "a feature is a date", "a feature is a duration", "a feature is a day")
#: Mistakes in the data.
BAD: tuple[str, ...] = (
    "target is missing once",
    "target is infinite once",
    "weight is negative once",
    "weight is missing once",
    "weight is infinite once",
    "weight is zero",
    "weight is next to nothing",
    "offset is infinite once",
    "offset is missing once",
    "a feature is infinite once",
    "a feature is a date",
    "a feature is a duration",
    "a feature is a day",
    "a feature is complex",
    MIXED,
    "a feature has an infinite category",
    "a feature is text, to the model it was numbers",
    "no rows",
    "no target",
    "evaluation set without a feature",
    "evaluation set with text for numbers",
)


@dataclass(frozen=True)
class Draw:
    """One call. columns, target, weight, offset : names of the builders above."""

    number: int
    n_rows: int
    seed: int
    columns: tuple[str, ...]
    loss: str
    target: str
    weight: str | None = None
    offset: str | None = None
    #: The type of the array of features; None if these are a table with names.
    array: str | None = None
    label: str = "c"
    options: dict[str, Any] = field(default_factory=dict)
    arcbites: dict[str, Any] | None = None
    watched: str | None = None
    #: Whether rows that the model has not seen have categories that it has not seen.
    strangers: bool = False
    earlier: str | None = None
    mistake: str | dict[str, Any] | None = None
    #: A second target, and its loss if it is another one.
    second: str | None = None
    second_loss: str | None = None

    @property
    def targets(self) -> str | list[str]:
        """The column of the target, or the columns of both."""
        return "y" if self.second is None else ["y", "z"]

    @property
    def n_numbers(self) -> int:
        """How many numbers are predicted for a row."""
        levels = self.options.get("quantile")
        return 2 if self.second is not None else len(levels) if isinstance(levels, list) else 1

    @property
    def names(self) -> list[str]:
        return [f"{self.label}{j}" for j in range(len(self.columns))]

    def keywords(self) -> dict[str, Any]:
        """The parameters of training; data, roles and evaluation sets are not among them."""
        keywords = dict(self.options)
        keywords["loss"] = OWN.get(self.loss, self.loss)
        if self.second_loss is not None:
            keywords["loss"] = [self.loss, self.second_loss]
        if keywords.get("eval_metric") == "own":
            keywords["eval_metric"] = own_metric
        if keywords.pop("stopping", False):
            keywords["early_stopping"] = dboost.EarlyStopping(1, min_delta=1e-3)
        if self.arcbites is not None:
            keywords["arcbites"] = dboost.ArcBites(**self.arcbites)
        if self.array is not None:
            if "monotonic_cst" in keywords:
                keywords["monotonic_cst"] = [keywords["monotonic_cst"].get(name, 0) for name in self.names]
            if "categorical_features" in keywords:
                keywords["categorical_features"] = [self.names.index(name) for name in keywords["categorical_features"]]
        if isinstance(self.mistake, dict):
            keywords |= self.mistake
        return keywords

    @property
    def refits(self) -> bool:
        return self.earlier == "refit_leaves"

    @property
    def is_global(self) -> bool:
        """Whether all trees have the same bins, without which rows can be neither streamed nor prepared."""
        return self.options.get("split_proposal", "global") == "global"

    def is_class(self) -> bool:
        """Whether the target is one of classes."""
        return self.loss in _OF_CLASSES or (
            self.loss == "auto" and self.target in {**TWO_CLASSES, **MANY_CLASSES} and self.target != "five numbers"
        )

    def table(self, part: int = 0, n_rows: int | None = None) -> pd.DataFrame:
        """Return the features, target y, weight w and offset o. part : 0 to train on, others are other rows."""
        n = self.n_rows if n_rows is None else n_rows
        if (part, n) not in self._tables:
            self._tables[part, n] = self._make(part, n)
        return self._tables[part, n].copy(deep=False)

    @cached_property
    def _tables(self) -> dict[tuple[int, int], pd.DataFrame]:
        return {}

    @cached_property
    def lacks(self) -> set[str]:
        """What its tables have and some forms cannot hold."""
        tables = [self.table(part, 60) for part in (1, 2, 3, 9)] + [self.table()]
        if self.mistake is not None:
            tables.append(self.spoiled(self.table()))
        return set().union(*map(lacking, tables))

    def _make(self, part: int, n: int) -> pd.DataFrame:
        rng = np.random.default_rng([self.seed, part])
        frame = pd.DataFrame({name: COLUMNS[kind](rng, n) for name, kind in zip(self.names, self.columns, strict=True)})
        signal = np.zeros(n)
        for name, kind in zip(self.names[:3], self.columns, strict=False):
            signal += pd.factorize(frame[name], sort=kind in NUMERIC)[0] % 7 / 7 - 0.4
        if part and self.strangers and self.array is None:
            for name, kind in zip(self.names, self.columns, strict=True):
                if kind in OPEN:
                    frame[name] = _with_stranger(frame[name], rng)
        if self.array is not None:
            frame = frame.assign(**dict(zip(self.names, as_array(frame, self.array).T, strict=True)))
        frame["y"] = TARGETS[self.target](rng, signal)
        if self.second is not None:
            frame["z"] = TARGETS[self.second](rng, -signal)
        if self.weight is not None:
            frame["w"] = WEIGHTS[self.weight](rng, n)
        if self.offset is not None:
            frame["o"] = OFFSETS[self.offset](rng, n)
        return frame

    def spoiled(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the training table with the mistake in it."""
        role, _, what = self.mistake.partition(" is ") if isinstance(self.mistake, str) else ("", "", "")
        row = self.seed % len(frame)
        column = {"target": "y", "weight": "w", "offset": "o", "a feature": "c0"}.get(role)
        if self.mistake == "no rows":
            return frame[:0]
        if self.mistake == "no target":  # roles of an array are no columns: all of them are missing
            return frame.drop(columns="y") if self.array is None else frame.assign(y=np.nan)
        if self.mistake == MIXED:
            return frame.assign(c0=np.array(["a", 1.5] * len(frame), object)[: len(frame)])
        if self.mistake == "a feature has an infinite category":
            return frame.assign(c0=pd.Categorical.from_codes(np.arange(len(frame)) % 2, [1.0, np.inf]))
        if self.mistake == "a feature is text, to the model it was numbers":
            return frame.assign(c0="text")
        if column is None:
            return frame
        if what == "a date":
            return frame.assign(c0=pd.Timestamp("2020-02-29"))
        if what == "a duration":
            return frame.assign(c0=pd.Timedelta(days=3))
        if what == "a day":
            return frame.assign(c0=np.array([datetime.date(2020, 2, 29)] * len(frame), object))
        if what == "complex":
            return frame.assign(c0=1j)
        if what in ("zero", "next to nothing"):
            return frame.assign(w=frame["w"] * (0.0 if what == "zero" else 1e-300))
        value = {"missing once": np.nan, "infinite once": np.inf, "negative once": -1.0}[what]
        numeric = column != "c0" and pd.api.types.is_numeric_dtype(frame[column])
        old = frame[column].to_numpy(np.float64, na_value=np.nan) if numeric else np.zeros(len(frame))
        return frame.assign(**{column: np.where(np.arange(len(frame)) == row, value, old)})


def drawn(number: int) -> Draw:
    """Return the call of a number. About one in seven contains a mistake, or an invalid combination of parameters."""
    chooser = random.Random(number)

    def chance(percent: int) -> bool:
        return chooser.randint(0, 99) < percent

    def pick(values: Iterable[Any]) -> Any:
        return chooser.choice(list(values))

    def option(percent: int, name: str, *values: Any) -> None:
        if chance(percent):
            options[name] = pick(values)

    array = pick(ARRAY_TYPES) if chance(30) else None
    kinds = [*COLUMNS] if array is None else [*NUMERIC]
    columns = tuple(pick(kinds) for _ in range(chooser.randint(1, 8)))
    n_rows = chooser.randint(5, 60) if chance(20) else chooser.randint(60, 300)
    loss, careless = pick(SUITED), chance(7)
    target = pick(TARGETS if careless else SUITED[loss])
    weight = pick(WEIGHTS) if chance(40) else None
    offset = pick(OFFSETS) if chance(20) else None
    mistake = None if not chance(12) else pick(BAD) if chance(40) else pick(WRONG)
    earlier = pick(["start_from", "start_from, kept bins", "refit_leaves"]) if chance(18) else None
    if earlier == "refit_leaves" and isinstance(mistake, dict):
        earlier = "start_from"  # leaf refit has hardly a parameter
    watched = pick(["one", "two"]) if chance(35) else None
    if isinstance(mistake, str):
        if careless:  # of two mistakes, places may find another one first
            target = pick(SUITED[loss])
        # Rows of weight zero may hold anything in target and offset.
        weight = "any" if mistake.startswith("weight") else None
        offset = "any" if mistake.startswith("offset") else offset
        if mistake.startswith("a feature"):
            columns, array = ("normal", *columns[1:]), None
        if mistake == "a feature is text, to the model it was numbers":
            earlier = earlier or "start_from"
        if mistake.startswith("evaluation"):
            columns, array, watched, earlier = ("normal", *columns[1:]), None, "one", None
    label = "f" if array is not None else "c" if mistake is not None or chance(50) else pick(LABELS)
    names = [f"{label}{j}" for j in range(len(columns))]
    options: dict[str, Any] = {"max_iter": chooser.randint(1, 6), "random_state": chooser.randint(0, 9)}
    if loss == "quantile":
        options["quantile"] = pick([0.5, 0.9, 0.01, 0.999])
    if loss == "expectile":
        options["expectile"] = pick([0.5, 0.9, 0.01])
    if loss == "huber":
        option(50, "huber_alpha", 0.5, 0.99, 0.01)
    if loss == "tweedie":
        option(50, "tweedie_power", 1.1, 1.9)
    option(70, "min_samples_leaf", 1, 2, 5)
    option(50, "learning_rate", 1.0, 0.5, 1e-6, 1.5, [0.5, 0.1, 0.3, 0.2, 0.1, 0.05][: options["max_iter"]])
    option(2, "learning_rate", 1e100, 1e300)
    option(40, "max_leaf_nodes", 2, 3, 8, None)
    option(30, "max_depth", 1, 2, 5)
    option(30, "min_hessian", 0.0, 1e-3, 5.0)
    option(30, "l2_regularization", 0.0, 1e-9, 10.0)
    option(20, "l1_regularization", 0.5, 1e-3)
    option(15, "leaf_penalty", 0.1)
    option(15, "min_gain", 1e-3, 0.1)
    option(15, "max_delta_step", 0.5, 1e-3)
    option(25, "criterion", "gradient", "newton")
    option(30, "growth", "depth_wise", "best_first")
    option(25, "split_proposal", "tree", "node", "exact", "global")
    if options.get("split_proposal") != "exact":
        option(30, "max_bins", 2, 3, 16, 100)
    option(20, "subsample", 0.5, 0.8, 0.05, 0.001)
    option(20, "max_features", 0.5, 0.01)
    option(15, "categorical_smoothing", 0.0, 1.0)
    option(15, "categorical_l2", 0.0)
    option(15, "max_category_group", 1, 4)
    option(25, "min_category_hessian", 0.0, 1.0)
    option(30, "n_threads", 1, 2, 3)
    many = target in MANY_CLASSES
    if loss == "log_loss" or careless:
        option(25, "influence_trimming", 0.1, 0.5, 0.9)
    codes = [name for name, kind in zip(names, columns, strict=True) if kind in CODES]
    if codes and (array is None or array.startswith("float64")):
        text = [name for name, kind in zip(names, columns, strict=True) if kind in CATEGORICAL]
        option(20, "categorical_features", codes if careless else [*codes, *text])
    declared = options.get("categorical_features", ())
    ordered = [name for name, kind in zip(names, columns, strict=True) if kind in NUMERIC and name not in declared]
    if ordered and (not many or careless):
        option(25, "monotonic_cst", *({name: sign} for name in ordered for sign in (1, -1)), dict.fromkeys(ordered, 1))
    if "monotonic_cst" not in options or careless:
        option(20, "step", "line_search", "constant", "leaf")
    places = list(range(len(columns)))
    option(20, "interaction_cst", "pairwise", "no_interactions", [places[:2], places[1:3]], [places[::2]], [])
    arcbites: dict[str, Any] | None = None
    unwatched = {"early_stopping_rounds": 3, "eval_set": None}
    if n_rows >= 40 and mistake != unwatched and chance(12):
        arcbites = {"n_bites": pick([2, 3, 5]), "visits": pick([1, 2, None])}
        if chance(60):
            arcbites["trees_per_visit"] = pick([1, 2])
        if chance(50):
            arcbites |= pick([{"order": "cyclic"}, {"order": "adaptive"}, {"parts": 2}])
    if watched is not None:
        is_class = loss in (*_OF_CLASSES, "auto") and target in {**TWO_CLASSES, **MANY_CLASSES}
        of_classes = ["accuracy", ["log_loss"]] if many else ["roc_auc", "brier_score", ["accuracy", "brier_score"]]
        of_numbers = ["mean_absolute_error", "root_mean_squared_error", ["mean_squared_error"]]
        option(30, "eval_metric", "own", *(of_classes if is_class else of_numbers))
        option(60, "early_stopping_rounds", 1, 2)
        if "early_stopping_rounds" not in options:
            option(10, "stopping", True)
        if careless and options.get("eval_metric") == "own":  # which stops nothing: of two mistakes, places may find either
            del options["eval_metric"]
    if mistake in WORDED_BY_FORM:  # as a feature, text in a partition would break the rule of another parameter first
        options.pop("monotonic_cst", None)
    if not careless:
        if earlier == "start_from, kept bins":
            options.pop("split_proposal", None)
        if earlier == "refit_leaves":
            options.pop("monotonic_cst", None)
            options.pop("step", None)
    if options.get("split_proposal", "global") == "global" or careless:
        option(10, "memory_limit", "64MiB", 10**9)
    is_plain = mistake is None and not careless
    second = second_loss = None
    if loss == "quantile" and mistake is None and chance(50):
        options["quantile"] = pick(LEVELS)
    elif loss in OF_SEVERAL and mistake is None and chance(30):
        second_loss = None if chance(50) else pick(OF_SECOND)
        second = pick(SUITED[loss if second_loss is None else second_loss])
    if loss == "half_brier_score" or (loss in ("auto", "squared_error") and chance(25)):
        options["boosting"] = "forest"
        if is_plain:
            for name in OF_STEPS:
                options.pop(name, None)
            arcbites = None
            offset = offset if loss == "squared_error" else None
    elif (many or second is not None or isinstance(options.get("quantile"), list) or loss == "normal") and chance(50):
        options["multi_strategy"] = "multi_output_tree"
        if not careless:
            for name in ("influence_trimming", "step", "monotonic_cst"):
                options.pop(name, None)
    return Draw(
        number=number,
        n_rows=n_rows,
        seed=chooser.randint(0, 2**32),
        columns=columns,
        loss=loss,
        target=target,
        weight=weight,
        offset=offset,
        array=array,
        label=label,
        options=options,
        arcbites=arcbites,
        watched=watched,
        strangers=chance(40),
        earlier=earlier,
        mistake=mistake,
        second=second,
        second_loss=second_loss,
    )
