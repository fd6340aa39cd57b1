"""`Booster.predictor` returns what `predict` returns for single rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost import losses
from dboost.booster import Booster, booster_with
from dboost.model.ensemble import Ensemble
from dboost.schema import Feature
from tests.helpers.examples import examples
from tests.helpers.forests import POOL, random_ensemble

OUTPUTS = ("prediction", "raw_score", "probability")
#: A loss of each kind, with the number of outputs.
LOSSES: list[tuple[dict[str, Any], int]] = [
    *(({"name": name}, 1) for name in ("squared_error", "absolute_error", "poisson", "gamma", "exponential", "log_loss")),
    ({"name": "quantile", "quantile": 0.9}, 1),
    ({"name": "huber", "huber_alpha": 0.9, "delta": 1.5}, 1),
    ({"name": "tweedie", "tweedie_power": 1.5}, 1),
    ({"name": "log_loss", "n_classes": 3}, 3),
]
TWO: dict[str, tuple[tuple[Any, ...], str]] = {
    "text": (("no", "yes"), "object"),
    "unicode": (("no", "yes"), "<U3"),
    "truth": ((False, True), "bool"),
    "numbers": ((3, 7), "int64"),
}


def by_predict(booster: Booster, output: str, X: Any, **options: Any) -> np.ndarray:
    if output == "probability":
        return np.asarray(booster.predict_proba(X, **options))
    return np.asarray(booster.predict(X, raw_score=output == "raw_score", **options))


def same(found: Any, expected: Any) -> None:
    """Equal bits, shape and type."""
    assert type(found) is type(expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype and np.shape(found) == np.shape(expected)
    if np.asarray(found).dtype == object:
        assert np.asarray(found).tolist() == np.asarray(expected).tolist()
    else:
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


def numeric(seed: int, n_outputs: int = 1, **options: Any) -> Ensemble:
    return random_ensemble(seed, n_outputs=n_outputs, with_categories=False, **options)


@examples(100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from(LOSSES),
    classes=st.sampled_from(sorted(TWO)),
    n_iterations=st.integers(0, 4),
    n_leaves=st.sampled_from([1, 2, 31, 65]),
    output=st.sampled_from(OUTPUTS),
    kind=st.sampled_from(["f8", "f4", "i4", "bool"]),
)
def test_rows_of_numbers(
    seed: int, loss: tuple[dict[str, Any], int], classes: str, n_iterations: int, n_leaves: int, output: str, kind: str
) -> None:
    stored, k = loss
    ensemble = replace(numeric(seed, k, n_iterations=n_iterations, n_leaves=n_leaves), loss=stored)
    if k == 1 and stored["name"] in ("log_loss", "exponential"):
        levels, dtype = TWO[classes]
        ensemble = replace(ensemble, classes=levels, classes_dtype=dtype)
    booster = Booster(ensemble)
    if output == "probability" and ensemble.classes is None:
        output = "prediction"
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore", invalid="ignore"):
        rows = np.where(rng.random((7, 5)) < 0.3, rng.choice(POOL, (7, 5)), rng.normal(size=(7, 5)))
        rows[rng.random((7, 5)) < 0.2] = np.nan
        rows = rows.astype(kind)
    predictor = booster.predictor(output)
    expected = by_predict(booster, output, rows)
    same(predictor(rows), expected)
    same(predictor(rows[:0]), expected[:0])
    for row, of_row in zip(rows, expected, strict=True):
        same(predictor(row), of_row)
        same(predictor(row.tolist()), by_predict(booster, output, np.array([row.tolist()]))[0])
    offset = rng.normal(size=7)
    expected = by_predict(booster, output, rows, offset=offset)
    same(predictor(rows, offset=offset), expected)
    same(predictor(rows[2], offset=offset[2]), expected[2])
    first, last = sorted(rng.integers(0, n_iterations + 1, 2).tolist())
    some = booster.predictor(output, iteration_range=(first, last))
    same(some(rows[0]), by_predict(booster, output, rows, iteration_range=(first, last))[0])


def value_of(rng: np.random.Generator, feature: Feature) -> Any:
    """A value of a feature's column, sometimes missing, unknown, of another type of its kind, or of a wrong kind."""
    dice = rng.random()
    if dice < 0.1:
        return [None, float("nan"), np.nan, np.float64("nan")][int(rng.integers(4))]
    if dice < 0.2:
        return ["nowhere", -3, 1.25, True, np.int64(2), np.float32(1.5), pd.NA, "a", 10**400, 2**64, np.bool_(False)][
            int(rng.integers(11))
        ]
    if feature.categories is None:
        return [float(rng.normal()), int(rng.integers(-3, 3)), np.float32(rng.normal()), np.int16(3)][int(rng.integers(4))]
    level = feature.categories[int(rng.integers(len(feature.categories)))]
    return [level, np.asarray(level)[()], float(level) if type(level) is int else level][int(rng.integers(3))]


def agree(found: Callable[[], Any], expected: Callable[[], Any]) -> None:
    """Both calls return the same, or raise the same error."""
    try:
        value = expected()
    except dboost.DBoostError as error:
        with pytest.raises(type(error)) as raised:
            found()
        assert str(raised.value) == str(error)
    else:
        same(found(), value)


@examples(300, deadline=None)
@given(seed=st.integers(0, 2**32), output=st.sampled_from(OUTPUTS), n_outputs=st.sampled_from([1, 3]))
def test_records_and_sequences_are_converted_as_tables_are(seed: int, output: str, n_outputs: int) -> None:
    booster = Booster(random_ensemble(seed, n_outputs=n_outputs))
    if n_outputs == 1 and output == "probability":
        output = "prediction"
    predictor = booster.predictor(output)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        values = [value_of(rng, feature) for feature in booster.features]
        record = dict(zip(booster.feature_names_in_.tolist(), values, strict=True))
        for given_record in (record, {"more": "x", **record}):
            agree(
                partial(predictor, given_record), lambda record=record: by_predict(booster, output, pd.DataFrame([record]))[0]
            )
        row = np.empty((1, len(values)), object)
        row[0] = values
        for given_row in (values, tuple(values), row[0]):
            agree(partial(predictor, given_row), lambda row=row: by_predict(booster, output, row)[0])


def test_a_loss_of_the_user() -> None:
    class Cubed(losses.Loss):
        name = "cubed"

        def inverse_link(self, raw: np.ndarray) -> np.ndarray:
            return raw**3

    booster = booster_with(replace(numeric(1), loss={"name": "cubed"}), loss=Cubed())
    row = np.arange(5.0)
    same(booster.predictor()(row), booster.predict(row[None])[0])


@pytest.mark.parametrize("kind", ["read-only", "strided", "unaligned", "big-endian", "masked"])
def test_any_layout_in_memory(kind: str) -> None:
    booster = Booster(numeric(3, n_leaves=31))
    row = np.random.default_rng(0).normal(size=5)
    expected = booster.predict(row[None])[0]
    if kind == "read-only":
        row.setflags(write=False)
    elif kind == "strided":
        row = np.repeat(row, 3)[::3]
    elif kind == "unaligned":
        row = np.frombuffer(b"x" + row.tobytes(), np.float64, offset=1)
    elif kind == "big-endian":
        row = row.astype(">f8")
    else:
        row = np.ma.array(row, mask=False)
    predictor = booster.predictor()
    compiled = len(predict_rows_signatures())
    same(predictor(row), expected)
    same(predictor(row[None]), np.array([expected]))
    assert len(predict_rows_signatures()) == compiled or not compiled, "no further variant of the kernel was compiled"


def predict_rows_signatures() -> list[Any]:
    from dboost.kernels.predict import predict_rows

    return list(getattr(predict_rows, "signatures", []))


@pytest.mark.parametrize("categorical", [False, True])
def test_masked_values_are_missing(categorical: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, (300, 2)).astype(float)
    booster = dboost.fit(X, X[:, 1] + 0.1 * X[:, 0], max_iter=4, categorical_features=[1] if categorical else None)
    rows = np.ma.masked_equal(X[:20], 2)
    assert rows.mask.any()
    expected = booster.predict(rows)
    assert not np.array_equal(expected, booster.predict(X[:20]))
    np.testing.assert_array_equal(booster.predictor()(rows), expected)
    np.testing.assert_array_equal([booster.predictor()(row) for row in rows], expected)


def test_threads_share_a_predictor() -> None:
    booster = Booster(numeric(4, n_outputs=3, n_leaves=31, n_iterations=20))
    predictor = booster.predictor("probability")
    rows = np.random.default_rng(0).normal(size=(400, 5))
    expected = booster.predict_proba(rows)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            np.testing.assert_array_equal(list(threads.map(predictor, rows)), expected)


def test_what_is_refused() -> None:
    numbers = Booster(numeric(1))
    several = (Booster(random_ensemble(seed, n_outputs=3)) for seed in range(100))
    classes = next(booster for booster in several if booster.features[1].legal_kinds[:1] == ("numbers",))
    with pytest.raises(dboost.ParameterError, match="output='proba' must be one of 'prediction', 'probability', 'raw_score'"):
        numbers.predictor("proba")
    with pytest.raises(dboost.ParameterError, match="there are no probabilities"):
        numbers.predictor("probability")
    with pytest.raises(dboost.ParameterError, match="iteration_range"):
        numbers.predictor(iteration_range=(0, 9))
    predictor, row = numbers.predictor(), np.zeros(5)
    for wrong in (np.zeros(4), [0.0] * 6, np.zeros((2, 4)), ()):
        with pytest.raises(dboost.DataError, match=r"X has \d features, but dboost is expecting 5|0 feature"):
            predictor(wrong)
    with pytest.raises(dboost.DataError, match="no column 'x3'"):
        predictor({f"x{j}": 1.0 for j in (0, 1, 2, 4)})
    for table in (pd.DataFrame([row]), pd.Series(row), "rows.parquet", 3.0, None):
        with pytest.raises(dboost.InputTypeError, match=r"not \w+: Booster.predict takes tables"):
            predictor(table)
    with pytest.raises(dboost.DataError, match="shape"):
        predictor(np.zeros((1, 1, 5)))
    with pytest.raises(dboost.DataError, match="offset has 2 values, but there are 1 rows"):
        predictor(row, offset=[1.0, 2.0])
    for given_row in (row, [pd.NA, 1.0, 1.0, 1.0, 1.0]):
        with pytest.raises(dboost.DataError, match="offset is missing or infinite"):
            predictor(given_row, offset=np.inf)
        with pytest.raises(dboost.InputTypeError, match="offset='exposure' must be a number"):
            predictor(given_row, offset="exposure")
    record: dict[str, Any] = dict.fromkeys(classes.feature_names_in_)
    with pytest.raises(dboost.DataError, match="column 'x1' holds text, but it held numbers in training"):
        classes.predictor()(record | {"x1": "text"})
