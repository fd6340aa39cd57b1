"""Mistakes in what users pass, each with its one sentence: `MISTAKES`.

A mistake spoils a sound call (`FRAME`, `OPTIONS`). Its sentence is the same whatever the table is and whatever is called; only
the names of roles and the places of rows are those of the form of the table. In a sentence ``{row}`` is the place of `ROW`,
``{first}`` that of the first row, and ``{y}``, ``{k}``, ``{w}``, ``{o}`` are the names of target, classes, weight and offset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dboost.errors import DataError, DBoostError, InputTypeError, ParameterError

N_ROWS = 90
#: The row that is spoilt.
ROW = 70
_RNG = np.random.default_rng(5)
_NUMBERS = np.arange(N_ROWS)
FRAME = pd.DataFrame(
    {
        "a": _RNG.normal(size=N_ROWS),
        "b": _NUMBERS % 7 * 1.5,
        "town": np.array(["Gent", "Mons", "Namur"], object)[_NUMBERS % 3],
        "w": 0.5 + _NUMBERS % 4,
        "o": _RNG.normal(size=N_ROWS) / 4,
        "y": _RNG.gamma(2.0, size=N_ROWS),
        "k": np.array(["no", "yes"], object)[_NUMBERS % 5 // 3],
    }
)
OPTIONS: dict[str, Any] = {"features": ["a", "b", "town"], "max_iter": 1, "max_leaf_nodes": 3, "progress": False}
ROLES = ("sample_weight", "offset")


@dataclass(frozen=True)
class Mistake:
    """A table, the name of the target and keywords of `dboost.fit` that are wrong, and the error."""

    sentence: str
    frame: pd.DataFrame = field(default_factory=lambda: FRAME)
    target: str = "y"
    options: Mapping[str, Any] = field(default_factory=lambda: OPTIONS)
    error: type[DBoostError] = DataError
    #: What is wrong: "target", "weight", "offset", "features"; "loss" for a target, "range" of a loss for one value; "names" of
    #: columns, "choice" of features, or a "parameter".
    what: str = "parameter"
    #: Whether the type of a column is wrong, which is said of a partition.
    is_of_column: bool = False
    #: Whether a CSV file has the mistake, too.
    in_csv: bool = True

    @property
    def roles(self) -> dict[str, str]:
        return {role: self.options[role] for role in ROLES if role in self.options}

    @property
    def keywords(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name not in ROLES}

    def pattern(self, names: Mapping[str, str]) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: re.escape(names[found[1]]), self.sentence)


def _values(column: str, value: Any, sentence: str, target: str = "y", rows: Any = ROW, **options: Any) -> Mistake:
    """Return a mistake in rows of one column. options : with a loss that does not have the value."""
    values = FRAME[column].astype(object if column == "k" else np.float64)
    values.iloc[rows] = value
    what = {"y": "target", "k": "target", "w": "weight", "o": "offset"}.get(column, "features")
    what = "range" if "loss" in options else what
    roles = {"weight": {"sample_weight": "w"}, "offset": {"offset": "o"}}.get(what, {})
    return Mistake(sentence, FRAME.assign(**{column: values}), target, OPTIONS | roles | options, what=what)


def _column(what: str, sentence: str, target: str = "y", *, options: dict[str, Any] | None = None, **columns: Any) -> Mistake:
    """Return a mistake in all values of a column."""
    is_date = any(isinstance(column, pd.DatetimeIndex) for column in columns.values())
    return Mistake(
        sentence, FRAME.assign(**columns), target, OPTIONS | (options or {}), what=what, is_of_column=True, in_csv=not is_date
    )


def _names(sentence: str, target: str = "y", error: type[DBoostError] = DataError, **options: Any) -> Mistake:
    return Mistake(sentence, target=target, options=OPTIONS | options, error=error, what="names")


def _choice(sentence: str, error: type[DBoostError], features: Any) -> Mistake:
    return Mistake(sentence, options=OPTIONS | {"features": features}, error=error, what="choice")


def _parameter(sentence: str, **options: Any) -> Mistake:
    return Mistake(sentence, options=OPTIONS | options, error=ParameterError)


def _identifiers(count: str, make: Callable[[np.ndarray], Any], **options: Any) -> Mistake:
    """Return a target of so many different values that no model of classes can have them."""
    many = pd.concat([FRAME] * 56, ignore_index=True)
    values = make(np.arange(len(many)))
    sentence = rf"{{k}} has {count} different values, too many for classes \(at most 4,096\)(;|:|,).*"
    return Mistake(sentence, many.assign(k=values), "k", OPTIONS | options, what="loss")


_DATES = pd.date_range("2020", periods=N_ROWS)
_MISSING = r"contains NaN \(a missing value\) in"
MISTAKES: dict[str, Mistake] = {
    "target, NaN": _values("y", np.nan, rf"{{y}} {_MISSING} 1 row, first in {{row}}"),
    "target, NaN everywhere": _values("y", np.nan, rf"{{y}} {_MISSING} 90 rows, first in {{first}}", rows=slice(None)),
    "target, infinity": _values("y", np.inf, "{y} contains infinity in 1 row, first in {row}"),
    "target, minus infinity": _values("y", -np.inf, "{y} contains infinity in 1 row, first in {row}"),
    "target, no class": _values("k", None, rf"{{k}} {_MISSING} 1 row, first in {{row}}", "k"),
    "target, negative": _values(
        "y", -1.0, r"loss='poisson' requires non-negative y and sum\(y\) > 0: the target is -1 in {row}", loss="poisson"
    ),
    "target, zero": _values("y", 0.0, r"loss='gamma' requires .*: the target is 0 in {row}", loss="gamma"),
    "target, large integers": _column(
        "target", r"{y} holds integers of 2\*\*53 or more, .* in 90 rows, first in {first}: .*", y=_NUMBERS + 2**53
    ),
    "target, dates": _column("target", "{y} has type (datetime|timestamp).* makes a class of each date.*", y=_DATES),
    "weight, NaN": _values("w", np.nan, "{w} contains NaN in 1 row, first in {row}"),
    "weight, infinity": _values("w", np.inf, "{w} contains infinity in 1 row, first in {row}"),
    "weight, negative": _values("w", -1.0, "{w} is negative in 1 row, first in {row}"),
    "weight, zero": _values("w", 0.0, "{w} is zero in every row: nothing is left to learn from", rows=slice(None)),
    "weight, next to nothing": _values(
        "w",
        1e-300,
        "{w} is 1e-300 at most in all rows, but at least one weight of 1e-25 or more is needed: .*",
        rows=slice(None),
    ),
    "weight, text": _column(
        "weight", "{w} holds text or categories, numbers are needed", options={"sample_weight": "w"}, w="much"
    ),
    "offset, NaN": _values("o", np.nan, "{o} contains NaN in 1 row, first in {row}"),
    "offset, infinity": _values("o", -np.inf, "{o} contains infinity in 1 row, first in {row}"),
    "offset, text": _column("offset", "{o} holds text or categories, numbers are needed", options={"offset": "o"}, o="much"),
    "feature, infinity": _values("a", np.inf, r"column 'a' holds an infinite value \({row}\)"),
    "feature, minus infinity": _values("a", -np.inf, r"column 'a' holds an infinite value \({row}\)"),
    "feature, dates": _column("features", "column 'a' has type (datetime|timestamp).*: derive numbers from it, .*", a=_DATES),
    "feature, text": _column(
        "choice",
        "column '(a|town)' holds text or categories, which cannot be made numeric: declare it in categorical_features, .*",
        options={"categorical_features": None},
        a="much",
    ),
    "class, one": _column(
        "loss", r"the target has one class only \('no'\); a classifier needs at least two classes", "k", k="no"
    ),
    "class, one number": _column(
        "loss", r"the target has one class only \(0\); a classifier needs .*", options={"loss": "log_loss"}, y=0
    ),
    "class, fractions": _column(
        "loss", "Unknown label type: continuous. A classifier wants classes, .*", options={"loss": "log_loss"}
    ),
    "class, too many": _identifiers("5,040", lambda numbers: [f"id {k}" for k in numbers]),
    "class, too many categories": _identifiers("5,040", lambda numbers: pd.Categorical([f"id {k}" for k in numbers])),
    "class, too many numbers": _identifiers("more than 4,096", lambda numbers: numbers, loss="log_loss"),
    "no target": _names("the data have no column 'z', which was given as target; the columns are 'a', 'b', .*", "z"),
    "no weight": _names(
        "the data have no column 'ww', which was given as sample_weight; did you mean 'w'.", sample_weight="ww"
    ),
    "no offset": _names("the data have no column 'oo', which was given as offset; did you mean 'o'.", offset="oo"),
    "no category": _names(
        "categorical_features has an item value 'bb' which is not a valid feature name .*; did you mean 'b'.",
        error=ParameterError,
        categorical_features=["bb", "town"],
    ),
    "features, unknown": _choice("the data have no column 'bb', which features asks for; did you mean 'b'.", DataError, ["bb"]),
    "features, twice": _choice("features names a column twice", ParameterError, ["a", "a"]),
    "features, the target": _choice("features holds the target, 'y'", ParameterError, ["a", "y"]),
    "features, text": _choice("features must be a list of names of columns, not 'abc'", InputTypeError, "abc"),
    "features, none": _choice("no features are left: every column of the data is target, weight or offset", DataError, []),
    "unknown parameter": _parameter(
        "unknown parameter 'learning_rat'(?: in --set)?; did you mean learning_rate.", learning_rat=0.1
    ),
    "constraint of no feature": _parameter(
        r"monotonic_cst contains 1 unexpected feature names: \['q'\]. The columns are 'a', 'b', 'town'", monotonic_cst={"q": 1}
    ),
}
#: Values that parameters cannot have, and what they must be.
_VALUES: list[tuple[str, list[Any], str]] = [
    ("growth", ["wide"], "one of 'best_first', 'depth_wise'"),
    ("criterion", ["friedman"], "one of 'newton', 'gradient'"),
    ("step", ["half"], "one of 'leaf', 'line_search', 'constant'"),
    ("split_proposal", ["often"], "one of 'global', 'tree', 'node', 'exact'"),
    ("multi_strategy", ["one"], "one of 'one_output_per_tree', 'multi_output_tree'"),
    ("boosting", ["rf"], "one of 'gbdt', 'forest'; a random forest is 'forest'"),
    ("subsample", [0.0, 1.5, "half", True], "a number greater than 0 and at most 1"),
    ("max_features", [0.0, 2], "a number greater than 0 and at most 1"),
    ("influence_trimming", [1.0], "a number greater than 0 and less than 1 or None"),
    ("max_bins", [1, 256], "an integer between 2 and 255"),
    ("max_iter", [0, 2.5, True], "an integer of at least 1"),
    ("max_leaf_nodes", [1], "an integer of at least 2 or None"),
    ("max_depth", [0], "an integer of at least 1 or None"),
    ("min_samples_leaf", [0], "an integer of at least 1"),
    ("min_hessian", [-1], "a number of at least 0"),
    ("l1_regularization", ["much"], "a number of at least 0"),
    ("leaf_penalty", [-0.1], "a number of at least 0"),
    ("max_delta_step", [0], "a number greater than 0 or None"),
    ("learning_rate", [0.0, -1.0], "a number greater than 0"),
    ("categorical_smoothing", [-1], "a number of at least 0"),
    ("categorical_l2", [-1], "a number of at least 0"),
    ("max_category_group", [0], "an integer of at least 1"),
    ("min_category_hessian", [-1], "a number of at least 0"),
    ("early_stopping_rounds", [0], "an integer of at least 1 or None"),
    ("random_state", [-1, 2**70], r"(None, )?an integer between 0 and \d+.*"),
    ("n_threads", [0, 1.5], "an integer other than 0, or None"),
]
MISTAKES |= {
    f"{name}={value!r}": _parameter(f"{name}={value!r} must be {must}", **{name: value})
    for name, values, must in _VALUES
    for value in values
}
