"""Every invalid argument of `dboost.fit` raises an error whose one sentence names the column, the rows or the parameter."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dboost
from dboost.data import CategoryColumn
from dboost.errors import DataError, DBoostError, InputTypeError, ParameterError
from dboost.params import make_parameters
from dboost.session.target import choose_target, scan_target
from tests.helpers.fits import FEATURES, NUMERIC, mixed_frame

FRAME = mixed_frame(200)
X, Y = FRAME[NUMERIC].to_numpy(np.float64), FRAME["y"].to_numpy()
ROWS = np.arange(200)


def fit(data: Any = FRAME, target: Any = "y", **options: Any) -> dboost.Booster:
    options.setdefault("max_iter", 2)
    if data is FRAME:
        options.setdefault("features", FEATURES)
    return dboost.fit(data, target, **options)


def at(row: int, value: float, column: int | None = None) -> np.ndarray:
    """Return the targets, or the matrix, with one value changed."""
    changed = (Y if column is None else X).astype(np.float64)
    changed[row if column is None else (row, column)] = value
    return changed


DATA: list[tuple[Callable[[], Any], str]] = [
    # target
    (lambda: fit(FRAME, None), "the target y is None"),
    (lambda: fit(X, FRAME["grade"], sample_weight=FRAME["grade"] == "low"), r"one class only \('low'\)"),
    (lambda: fit(X, FRAME["grade"], loss="squared_error"), "needs a numeric target, but the target holds categories"),
    # features
    (lambda: fit(np.where(X > 1, np.inf, np.where(X < -1, -np.inf, X)), Y), r"holds an infinite value \(row \d+\)"),
    (
        lambda: fit(at(7, np.inf, 0), Y, sample_weight=np.where(ROWS < 5, 0.0, 1.0)),
        r"column 'f0' holds an infinite value \(row 7\)",
    ),
    (lambda: fit("nowhere/*.parquet"), "no file at nowhere/"),
    # evaluation sets
    (lambda: fit(X, Y, eval_set=(X[:, :3], Y)), "evaluation set 'eval': X has 3 features, but dboost is expecting 4"),
    (
        lambda: fit(eval_set={"may": FRAME, "june": FRAME.drop(columns="x")}),
        "evaluation set 'june': the data have no column 'x'",
    ),
    (lambda: fit(eval_set=FRAME.drop(columns="y")), "evaluation set 'eval': the data have no column 'y', .* target"),
    (lambda: fit(eval_set=FRAME[:0]), "evaluation set 'eval': the data have no rows"),
    (lambda: fit(sample_weight="w", eval_set=FRAME[["y", *FEATURES]]), "evaluation set 'eval': .* no column 'w'"),
    (lambda: fit(eval_set=(FRAME, "x")), "evaluation set 'eval': target='x' is a feature of the model"),
    (lambda: fit(eval_set=(FRAME, "y", "x")), "evaluation set 'eval': sample_weight='x' is a feature of the model"),
    (lambda: fit(target="grade", eval_set=FRAME.assign(grade="best")), "set 'eval': .* class .* has not: 'best'"),
    (lambda: fit(eval_set=FRAME.assign(y="much")), "evaluation set 'eval': the target holds categories or text"),
    (lambda: fit(eval_set=FRAME.assign(x="much")), "evaluation set 'eval': .*'x' holds text"),
    # prediction
    (lambda: fit().predict(FRAME.drop(columns="x")), "predict: the data have no column 'x', which the model"),
    (lambda: fit(X, Y).predict(X[:, :2]), "predict: X has 2 features, but dboost is expecting 4 features"),
]

PARAMETERS: list[tuple[Callable[[], Any], str]] = [
    (lambda: fit(n_estimator=5), "unknown parameter 'n_estimator'; did you mean n_estimators"),
    *(
        (lambda name=name: fit(loss=name), f"loss='{name}' must be one of .*; did you mean '{loss}'\\?")
        for loss, names in {
            "log_loss": "logloss Logloss binary:logistic binary multiclass multi:softprob log-loss",
            "squared_error": "reg:squarederror mse l2 RMSE squared",
            "absolute_error": "reg:absoluteerror mae l1 regression_l1",
            "huber": "reg:pseudohubererror hubber",
            "poisson": "count:poisson",
            "quantile": "reg:quantileerror",
            "normal": "RMSEWithUncertainty",
        }.items()
        for name in names.split()
    ),
    (lambda: fit(loss="nothing"), "or a dboost.losses.Loss of your own$"),
    (lambda: fit(loss="rank:ndcg"), "dboost has no losses for ranking: "),
    (lambda: fit(l2_regularization=float("nan")), "l2_regularization=nan must be a number of at least 0"),
    (lambda: fit(min_gain=float("inf")), "min_gain=inf must be a number"),
    (lambda: fit(early_stopping_rounds=5), "early_stopping_rounds needs an eval_set, or validation_fraction"),
    (lambda: fit(early_stopping_rounds=5, eval_set={}), "early_stopping_rounds needs an eval_set, or validation_fraction"),
    (lambda: fit(eval_set=FRAME, eval_metric="logloss"), "'logloss' does not go with loss 'squared_error'; choose from square"),
    (lambda: fit(target="late", eval_set=FRAME, eval_metric=["log_loss", "mrr"]), "'mrr' does not go with"),
    (lambda: fit(X, Y, eval_set=X), "evaluation set 'eval' is a table without a target: give"),
]  # fmt: skip

TYPES: list[tuple[Callable[[], Any], str]] = [
    (lambda: fit(eval_set=(X, Y, Y, Y, Y)), r"set 'eval' must be \(X, y\), .* or \(X, y, weight, offset\), not 5 things"),
    (lambda: fit(callbacks=["print"]), "a callback must be a function of an Iteration, not str"),
    (lambda: fit({"a": 1}, Y), "cannot read a table from dict"),
    (lambda: fit(eval_set=({"a": 1}, Y)), "evaluation set 'eval': cannot read a table from dict"),
]

MISTAKES = [
    *((DataError, *mistake) for mistake in DATA),
    *((ParameterError, *mistake) for mistake in PARAMETERS),
    *((InputTypeError, *mistake) for mistake in TYPES),
]


@pytest.mark.parametrize(("kind", "mistake", "message"), MISTAKES, ids=[message[:60] for *_, message in MISTAKES])
def test_mistakes(kind: type[Exception], mistake: Callable[[], Any], message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(kind, match=message) as caught:
            mistake()
    assert isinstance(caught.value, DBoostError)
    assert isinstance(caught.value, (ValueError, TypeError))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_target_is_asked_for() -> None:
    with pytest.raises(TypeError, match="target"):
        dboost.fit(FRAME)


FAR = np.where(ROWS % 2, 1e305, 0.0)
TOO_LARGE: list[tuple[str, np.ndarray, dict[str, Any]]] = [
    ("targets", np.abs(Y) * 1e39, {"loss": "poisson"}),
    ("targets", np.abs(Y) * 1e100, {"loss": "poisson"}),
    ("targets", np.abs(Y) * 1e100, {"loss": "poisson", "offset": Y}),
    ("targets times the weights", np.abs(Y) * 1e30, {"loss": "poisson", "sample_weight": 1e12 + ROWS}),
    ("weights", Y, {"sample_weight": 1e60 + ROWS, "loss": "absolute_error"}),
    ("weights", ROWS % 2, {"sample_weight": 1e60 + ROWS, "loss": "log_loss"}),
    ("offsets", np.abs(Y), {"offset": -FAR, "loss": "gamma"}),
    ("offsets or weights", np.abs(Y), {"offset": -FAR, "loss": "gamma", "sample_weight": 2.0 + ROWS}),
    (r"scores of the model to continue \(or offsets\)", np.abs(Y), {"offset": -FAR, "loss": "gamma", "start_from": "a model"}),
]


@pytest.mark.parametrize(("what", "target", "options"), TOO_LARGE)
@pytest.mark.filterwarnings("error", "ignore::dboost.DriftWarning")
def test_infinite_gradients_name_what_is_too_large(what: str, target: np.ndarray, options: dict[str, Any]) -> None:
    if "start_from" in options:
        options = options | {"start_from": fit(X, target, loss=options["loss"])}
    with pytest.raises(DBoostError, match=f"^the {what} are so large that gradients are infinite; scale them down$"):
        fit(X, target, **options)


@pytest.mark.parametrize("loss", ["absolute_error", "poisson", "gamma", "tweedie", "log_loss"])
def test_any_loss_of_the_model_to_continue_damps_steps(loss: str) -> None:
    """Offsets so large that the square of the loss is beyond the range of floats."""
    target = ROWS % 2 if loss == "log_loss" else np.abs(Y)
    old = fit(X, target, loss=loss)
    for sign in (1, -1):
        try:
            booster = fit(X, target, start_from=old, offset=sign * FAR)
        except DBoostError as error:
            assert "are so large that gradients are infinite" in str(error)
        else:
            assert np.isfinite(booster.predict(X, raw_score=True)).all()


def test_a_fit_that_diverges_says_so() -> None:
    with pytest.raises(DBoostError, match=r"training diverged in iteration \d+: .* a smaller learning_rate"):
        fit(X, Y, learning_rate=1e10, max_iter=50)


EXTREMES: dict[str, Callable[[], dboost.Booster]] = {
    "one row": lambda: fit(X[:1], Y[:1]),
    "two rows of two classes": lambda: fit(X[:2], [True, False]),
    "no values at all": lambda: fit(X * np.nan, Y),
    "nothing but constants": lambda: fit(X * 0, Y),
    "a constant target": lambda: fit(X, Y * 0 + 3.25),
    "more threads than rows": lambda: fit(X, Y, n_threads=300),
    "tiny targets": lambda: fit(X, Y * 1e-25),
    "denormal targets": lambda: fit(X, Y * 1e-310),
    "large targets": lambda: fit(X, Y * 1e30),
    "a class of next to no weight": lambda: fit(X, ROWS % 2, sample_weight=np.where(ROWS % 2, 1.0, 1e-20)),
    "three classes, two of next to no weight": lambda: fit(
        X, ROWS % 3, loss="log_loss", sample_weight=np.where(ROWS % 3 == 1, 1.0, 1e-20)
    ),
    "weights of all sizes": lambda: fit(X, Y, sample_weight=10.0 ** (ROWS % 30 - 15)),
    "infinite features in rows of weight zero": lambda: fit(at(7, np.inf, 2), Y, sample_weight=(ROWS != 7) * 1.0),
    "leaves of one row, nothing held back": lambda: fit(
        X, Y > 0, min_samples_leaf=1, min_hessian=0, l2_regularization=0, learning_rate=1.0, max_iter=100
    ),
    "unlimited trees": lambda: fit(X, Y, max_leaf_nodes=None, max_depth=10**6, min_samples_leaf=1),
    "limits larger than the table": lambda: fit(X, Y, max_leaf_nodes=10**9, min_samples_leaf=10**6),
    "65,535 levels": lambda: fit(pd.DataFrame({"c": np.arange(65_535).astype(str), "y": np.arange(65_535.0)})),
}


@pytest.mark.fast_cells(8)
@pytest.mark.parametrize("case", EXTREMES)
@pytest.mark.filterwarnings("error", "ignore:no tree has a split", "ignore:.*a different category in each row")
def test_extremes_are_no_mistakes(case: str) -> None:
    booster = EXTREMES[case]()
    assert np.isfinite(booster.ensemble.baseline).all()
    assert all(np.isfinite(tree.value).all() for tree in booster.ensemble.trees)
    assert np.isfinite(booster.history["train_loss"]).all()
    train_loss = booster.history["train_loss"].to_numpy()
    assert (np.diff(train_loss) <= 1e-6 * abs(train_loss[0])).all()


N_IDS = 20_000
IDS = pd.DataFrame({"x": np.arange(N_IDS) % 7, "who": [f"id {k}" for k in range(N_IDS)]})


@pytest.mark.slow
def test_identifiers_are_refused_after_the_first_rows() -> None:
    n = 1_000_000
    names = pa.array(np.arange(n)).cast(pa.string())
    for column in (names, names.to_pandas()):
        table = {"x": np.zeros(n), "who": column}
        data = pa.table(table) if column is names else pd.DataFrame(table)
        tracemalloc.start()
        try:
            with pytest.raises(DataError, match="target 'who' has more than 65,535 different values, too many for classes"):
                fit(data, "who")
            assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
        finally:
            tracemalloc.stop()


def test_as_many_classes_as_are_possible_are_accepted() -> None:
    for n, accepted in ((4096, True), (4097, False)):
        levels = tuple(f"{k:05}" for k in range(n))
        halves = [scan_target(CategoryColumn(half, levels), None, "object", False) for half in np.array_split(np.arange(n), 2)]
        with nullcontext() if accepted else pytest.raises(DataError, match="target has 4,097 different values"):
            assert choose_target([scan for scan in halves if scan is not None], make_parameters({})).classes == levels
    some = IDS.assign(w=(np.arange(N_IDS) % 10_000 == 5) * 1.0)  # classes of rows of weight zero do not count
    assert fit(some, "who", sample_weight="w").classes_.tolist() == ["id 10005", "id 5"]
    with pytest.raises(ParameterError, match="classes has 5,000 classes, but at most 4,096 are possible"):
        dboost.DBoostClassifier().partial_fit(X, FRAME["grade"], classes=[f"{k}" for k in range(5000)])
    with pytest.raises(DataError, match="sample_weight 'who' holds text or categories, numbers are needed"):
        fit(IDS.assign(y=1.0), sample_weight="who")


AMOUNTS = np.abs(Y)
EXTREME: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "targets": (1e200 * AMOUNTS, {}),
    "targets times weights": (1e305 * AMOUNTS, {"sample_weight": 1e12 * (AMOUNTS + 1)}),
    "targets of the evaluation set": (
        AMOUNTS,
        {"eval_set": (X, 1e200 * AMOUNTS), "eval_metric": ["mean_squared_error", "mean_absolute_error"]},
    ),
    "offsets": (AMOUNTS, {"offset": np.where(ROWS % 2, 1e307, 0.0)}),
    "steps": (AMOUNTS, {"learning_rate": 1e300, "eval_set": (X, AMOUNTS)}),
    "scores of the evaluation set": (AMOUNTS, {"offset": ROWS * 0.0, "eval_set": (X, AMOUNTS, None, ROWS - 1e10)}),
}


@pytest.mark.fast_cells(8)
@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "huber", "poisson", "tweedie"])
@pytest.mark.parametrize("what", EXTREME)
def test_numbers_too_large_for_floats_are_refused_or_harmless(what: str, loss: str, tmp_path: Path) -> None:
    """Neither a warning of NumPy nor an OverflowError of Python: a model with finite scores, or dboost's own error."""
    target, options = EXTREME[what]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            booster = fit(X, target, loss=loss, **options)
        except DBoostError as error:
            assert "are so large that" in str(error) or "training diverged in iteration" in str(error)
        else:
            assert np.isfinite(booster.predict(X, raw_score=True, offset=False)).all()
            booster.save(tmp_path / "model.json")
            assert dboost.load(tmp_path / "model.json") == booster
