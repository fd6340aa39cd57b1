"""Kinds of columns that are easily confused: large integers, unused categories, columns without values, numbers as text."""

from __future__ import annotations

import datetime
import decimal
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from distributed import Client

import dboost
from dboost import DataError
from dboost.data.columns import binning
from dboost.data.columns.binning import propose
from tests.helpers.fits import cut

N = 800
pytestmark = pytest.mark.filterwarnings("ignore::dboost.DriftWarning")
rng = np.random.default_rng(0)
X = pd.DataFrame({"c": rng.choice(["low", "middle", "high"], N), "x": rng.normal(size=N)})
Y = X["x"] + 2.0 * (X["c"] == "low") + rng.normal(size=N) / 4
#: So small that rows are streamed.
LIMIT = 64 * 10**6
WITHIN: dict[str, Any] = {"max_iter": 4}


def fit(data: Any, target: Any = Y, **options: Any) -> dboost.Booster:
    return dboost.fit(data, target, **(WITHIN | options))


def comes_back(booster: dboost.Booster, folder: Path) -> bool:
    """Return whether files of both formats and a pickle restore the same model."""
    for name in ("model.json", "model.dboost"):
        booster.save(folder / name)
    return all(
        one == booster
        for one in (
            dboost.load(folder / "model.json"),
            dboost.load(folder / "model.dboost"),
            pickle.loads(pickle.dumps(booster)),
        )
    )


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize(("n_distinct", "dtype"), [(40, np.int64), (100, np.uint64), (N, np.int64), (N, np.uint64)])
def test_integers_that_floats_cannot_tell_apart_are_one_value(n_distinct: int, dtype: type, tmp_path: Path) -> None:
    first = 2**60 if dtype is np.int64 else 2**63 + 2**62
    ids = (first + 7 * (np.arange(N, dtype=np.uint64) % np.uint64(n_distinct))).astype(dtype)
    # Of 40 distinct integers about two floats remain, of 800 about forty.
    frame = pd.DataFrame({"id": ids, "x": X["x"], "y": Y + (ids.astype(float) > float(first)) * 3})
    booster = fit(frame, "y")
    edges = booster.ensemble.edges[0]
    assert edges is not None and len(edges) == len(np.unique(ids.astype(np.float64))) - 1
    assert fit(frame.assign(id=ids.astype(np.float64)), "y") == booster
    for proposal in ("global", "tree", "node", "exact"):
        assert comes_back(fit(frame, "y", split_proposal=proposal), tmp_path)
    np.testing.assert_array_equal(booster.predict(frame), booster.predict(frame.assign(id=ids.astype(np.float64))))


@pytest.mark.parametrize("max_bins", [5, 255])
@pytest.mark.parametrize("weighted", [False, True])
def test_split_points_of_large_integers_are_those_of_their_floats(max_bins: int, weighted: bool) -> None:
    for start in (-(2**63), 2**53 - 50, 2**62):
        values = start + rng.integers(0, 20_000, 5000)
        weight = rng.integers(1, 4, 5000).astype(np.float64) if weighted else None
        edges = propose(values, weight, max_bins)
        assert (np.diff(edges) > 0).all()
        np.testing.assert_array_equal(edges, propose(values.astype(np.float64), weight, max_bins))


@pytest.mark.parametrize(
    ("column", "declared"),
    [
        (pd.Categorical(rng.choice([1.0, 2.5, np.inf], N)), False),
        (pd.Categorical(rng.choice([1.0, 2.5, -np.inf], N)), False),
        (pd.Categorical([decimal.Decimal("Infinity" if i % 2 else "1") for i in range(N)]), False),
        (pd.Series(rng.choice([1.0, 2.5, np.inf], N), dtype=object), True),
        (rng.choice([1.0, 2.5, np.inf], N), True),
    ],
)
def test_infinite_categories_are_refused_by_name(column: Any, declared: bool) -> None:
    with pytest.raises(DataError, match=r"column 'c' .*infinite"):
        fit(X.assign(c=column), categorical_features=["c"] if declared else "from_dtype")


def test_infinite_classes_are_refused() -> None:
    with pytest.raises(DataError, match="column 't' has an infinite category"):
        fit(X.assign(t=pd.Categorical(rng.choice([1.0, np.inf], N))), "t")


def test_infinite_categories_are_unknown_levels_of_a_model(tmp_path: Path) -> None:
    booster = fit(X.assign(c=pd.Categorical(rng.choice([1.0, 2.5], N))))
    assert comes_back(booster, tmp_path)
    strange, missing = X.assign(c=pd.Categorical([np.inf] * N)), X.assign(c=np.nan)
    np.testing.assert_array_equal(booster.predict(strange), booster.predict(missing))


MISSING: dict[str, Callable[[], Any]] = {
    "category": lambda: X.assign(c=pd.Categorical([None] * N)),
    "category with levels": lambda: X.assign(c=pd.Categorical([None] * N, categories=["low"])),
    "object": lambda: X.assign(c=pd.Series([None] * N, dtype=object)),
    "string": lambda: X.assign(c=pd.Series([None] * N, dtype="string[python]")),
    "arrow string": lambda: X.assign(c=pd.Series([None] * N, dtype="string[pyarrow]")),
    "arrow dictionary": lambda: X.assign(c=pd.Series([None] * N, dtype=pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string())))),
    "polars string": lambda: pl.DataFrame({"c": pl.Series([None] * N, dtype=pl.String), "x": X["x"].to_numpy()}),
    "polars category": lambda: pl.DataFrame({"c": pl.Series([None] * N, dtype=pl.Categorical), "x": X["x"].to_numpy()}),
    "polars enum": lambda: pl.DataFrame({"c": pl.Series([None] * N, dtype=pl.Enum(["a"])), "x": X["x"].to_numpy()}),
    "polars null": lambda: pl.DataFrame({"c": pl.Series([None] * N), "x": X["x"].to_numpy()}),
    "arrow": lambda: pa.table({"c": pa.array([None] * N, pa.string()), "x": X["x"]}),
    "arrow dictionary table": lambda: pa.table({"c": pa.array([None] * N, pa.string()).dictionary_encode(), "x": X["x"]}),
}


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("kind", MISSING)
def test_a_model_predicts_any_column_without_a_value(kind: str, tmp_path: Path) -> None:
    for categories in ("from_dtype", ["c"]):
        booster = fit(MISSING[kind](), categorical_features=categories)
        assert comes_back(booster, tmp_path)
        expected = booster.predict(X.assign(c=np.nan)).to_numpy()
        for other in MISSING:
            np.testing.assert_array_equal(np.asarray(booster.predict(MISSING[other]())), expected)


CODES = X["c"].map({"low": 0, "middle": 1, "high": 2})
OF_TEXT: dict[str, tuple[Callable[[], Any], str]] = {
    "array": (lambda: np.column_stack([CODES, X["x"]]), "numbers"),
    "integers": (lambda: X.assign(c=CODES), "numbers"),
    "floats with gaps": (lambda: X.assign(c=CODES.where(CODES > 0)), "numbers"),
    "objects": (lambda: X.assign(c=CODES.astype(object)), "numbers"),
    "categories of numbers": (lambda: X.assign(c=pd.Categorical(CODES)), "numbers"),
    "truth values": (lambda: X.assign(c=CODES > 0), "truth values"),
    "some text among numbers": (lambda: X.assign(c=pd.Categorical([0, "low"] * (N // 2))), "numbers"),
    "dates": (lambda: X.assign(c=pd.Timestamp("2020-01-01")), "type datetime64"),
    "polars": (lambda: pl.from_pandas(X.assign(c=CODES)), "numbers"),
    "arrow": (lambda: pa.Table.from_pandas(X.assign(c=CODES)), "numbers"),
}


@pytest.fixture(scope="module")
def of_text() -> dboost.Booster:
    return fit(X)


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize("kind", OF_TEXT)
def test_a_column_of_another_kind_than_in_training_is_refused(kind: str, of_text: dboost.Booster, client: Client) -> None:
    make, held = OF_TEXT[kind]
    data, message = make(), f"column 'c' (has|holds) {held}.*, but it held text in training"
    attempts: list[Callable[[], Any]] = [
        lambda: of_text.predict(data),
        lambda: of_text.predict(data, offset=np.zeros(N)),
        lambda: of_text.refit_leaves(data, Y),
        lambda: fit(data, start_from=of_text),
        lambda: of_text.shap_values(data),
    ]
    if not isinstance(data, np.ndarray):
        attempts += [lambda: fit(X, eval_set=[(data, Y)])]
    # Dask converts columns of objects to text.
    if isinstance(data, pd.DataFrame) and data["c"].dtype != object and kind != "some text among numbers":
        lazy = dd.from_pandas(data.iloc[:200], npartitions=2)
        attempts += [
            lambda: of_text.predict(lazy).compute(),
            lambda: fit(lazy, Y[:200].to_numpy(), start_from=of_text, client=client),
            lambda: fit(cut(X, [100]), Y.to_numpy(), eval_set=[(data, Y)], client=client),
        ]
    for attempt in attempts:
        with pytest.raises(DataError, match=message):
            attempt()


def test_lazy_arrays_of_codes_are_refused(of_text: dboost.Booster) -> None:
    codes = da.from_array(np.column_stack([CODES, X["x"]]), chunks=(300, 2))
    with pytest.raises(DataError, match="column 'c' holds numbers, but it held text in training"):
        of_text.predict(codes).compute()


def test_levels_that_are_new_and_columns_without_values_are_legal(of_text: dboost.Booster) -> None:
    missing = of_text.predict(X.assign(c=None))
    for column in ("new", np.nan, pd.Categorical([1.0 if i < 0 else None for i in range(N)]), pd.NA, "1"):
        np.testing.assert_array_equal(of_text.predict(X.assign(c=column)), missing)
    parts = [X[:300].assign(c=np.nan), X[300:].assign(c="new")]
    lazy = dd.from_map(lambda i: parts[i], range(2), meta=X.iloc[:0])
    np.testing.assert_array_equal(of_text.predict(lazy).compute(), missing)
    grown = fit(X.assign(c="new"), start_from=of_text)
    assert grown.features[0].categories == ("high", "low", "middle", "new")


def test_models_of_numbers_want_numbers() -> None:
    categories = fit(X.assign(c=CODES), categorical_features=["c"])
    numeric = fit(X.assign(c=CODES))
    for column in (
        CODES,
        CODES.astype(float),
        pd.Categorical(CODES),
        CODES.astype("Int64"),
        CODES + 17,
        CODES - 1.5,
        CODES > 0,
    ):
        assert np.isfinite(categories.predict(X.assign(c=column))).all()
    with pytest.raises(DataError, match="column 'c' holds text, but it held numbers in training"):
        categories.predict(X)
    with pytest.raises(DataError, match=r"column 'c' holds text or categories.*the feature is numeric in the model"):
        numeric.predict(X)
    later = fit(X.assign(c=CODES + 3), categorical_features=["c"])
    assert np.isfinite(later.predict(X.assign(c=CODES))).all()
    with pytest.raises(DataError, match="column 'c' holds truth values, but it held numbers in training"):
        later.predict(X.assign(c=CODES > 0))


def test_truth_values_may_come_as_zero_and_one() -> None:
    flags = fit(X.assign(c=pd.Categorical(CODES > 0)))
    assert flags.features[0].categories == (False, True)
    expected = flags.predict(X.assign(c=CODES > 0))
    for column in ((CODES > 0).astype(int), (CODES > 0).astype(float), pd.Categorical((CODES > 0).astype(int))):
        np.testing.assert_array_equal(flags.predict(X.assign(c=column)), expected)
    gaps = (CODES > 0).where(CODES < 2)
    assert np.isfinite(flags.predict(X.assign(c=gaps.astype(float)))).all()
    with pytest.raises(DataError, match="column 'c' holds numbers, but it held truth values in training"):
        flags.predict(X.assign(c=CODES))


def test_text_of_digits_is_read_from_csv_as_the_model_knows_it(tmp_path: Path) -> None:
    codes = X["c"].map({"low": "01", "middle": "12", "high": "3x"})
    frame = X.assign(c=codes, y=Y)
    booster = fit(frame, "y")
    digits = frame[codes != "3x"]
    path = tmp_path / "digits.csv"
    digits.to_csv(path, index=False, float_format="%.17g")
    expected = booster.predict(digits).to_numpy()
    np.testing.assert_array_equal(booster.predict(path).compute(), expected)
    again = fit(digits, "y", start_from=booster)
    assert fit(path, "y", start_from=booster) == again
    assert again.features == booster.features


def test_no_fit_gives_a_model_that_its_file_cannot_hold(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binning, "between", lambda distinct, *_: np.zeros(len(distinct) - 1))
    frame = X.assign(x=np.round(X["x"]), y=Y)
    grown: list[int] = []

    def note(now: dboost.Iteration) -> None:
        grown.append(now.iteration)

    folder = tmp_path / "data"
    with pytest.raises(dboost.DBoostError, match="edges of 'x' do not ascend"):
        dboost.prepare(frame, "y", folder)
    for data, options in ((frame, {}), (frame, {"memory_limit": LIMIT}), (folder, {}), (frame, {"client": client})):
        expected = "is damaged or no description of prepared data" if data is folder else "the model cannot be stored"
        with pytest.raises(dboost.DBoostError, match=f"{expected}: edges of 'x' do not ascend"):
            fit(data, "y", callbacks=[note], **options)
    assert not grown, "that is known before the first iteration"


#: Numbers as floats, and the same as Python's objects of several types, which Dask takes for text.
FLOATS = pd.DataFrame({"a": rng.integers(0, 10_000, N) / 100, "b": rng.integers(0, 9, N) / 1.0, "c": X["c"]})
FLOATS = FLOATS.assign(y=(10 * Y).round() / 10, w=rng.integers(1, 5, N) / 4)
OBJECTS = FLOATS.assign(
    a=pd.Series([decimal.Decimal(repr(value)) for value in FLOATS["a"]], dtype=object),
    b=pd.Series([int(value) for value in FLOATS["b"]], dtype=object),
    y=pd.Series([decimal.Decimal(repr(value)) for value in FLOATS["y"]], dtype=object),
    w=pd.Series([Fraction(value) for value in FLOATS["w"]], dtype=object),
)


@pytest.fixture(scope="module")
def of_floats() -> dboost.Booster:
    return fit(FLOATS, "y", sample_weight="w")


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize(
    "make",
    [
        lambda: dd.from_pandas(OBJECTS, npartitions=3),
        lambda: dd.from_delayed([dask.delayed(OBJECTS.iloc[:300]), dask.delayed(OBJECTS.iloc[300:])]),
        lambda: dd.from_map(lambda k: OBJECTS.iloc[k : k + 400], [0, 400]),
        lambda: dd.concat(
            [dd.from_pandas(OBJECTS.iloc[:300], npartitions=2), dd.from_pandas(OBJECTS.iloc[300:], npartitions=1)]
        ),
        lambda: (
            dd.from_pandas(OBJECTS.assign(z=1), npartitions=3).assign(q=2).drop(columns=["z", "q"]).repartition(npartitions=2)
        ),
        lambda: (lazy := dd.from_pandas(OBJECTS.assign(k="u"), npartitions=3))[lazy["k"] == "u"].drop(columns="k"),
    ],
)
def test_objects_of_lazy_frames_give_the_model_of_floats(make: Callable[[], Any], of_floats: dboost.Booster) -> None:
    data = make()
    assert fit(data, "y", sample_weight="w") == of_floats
    np.testing.assert_array_equal(of_floats.predict(data).compute(), of_floats.predict(FLOATS))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", 1, 2.5], "column 'c' mixes text with float, int: make it one or the other"),
        ([("a", 1), ("b", 2), ("a", 2)], "column 'c' holds tuple"),
        ([[1], [1, 2], []], "column 'c' holds list"),
        ([datetime.date(2026, 1, 1), datetime.date(2026, 2, 1), None], "column 'c' has type date"),
        ([{"a": 1}, {"a": 2}, None], "column 'c' holds dict"),
    ],
)
def test_objects_that_dask_has_made_text_of_are_refused(values: list[Any], message: str, client: Client) -> None:
    """As in a pandas frame, whose objects Dask shows as strings."""
    frame = pd.DataFrame({"c": pd.Series([*values] * 10, dtype=object), "y": np.arange(30.0)})
    lazy = dd.from_pandas(frame, npartitions=2)
    for call in (lambda: fit(frame, "y"), lambda: fit(lazy, "y"), lambda: fit(lazy, "y", client=client)):
        with pytest.raises(DataError, match=message):
            call()
    assert fit(lazy.assign(c=lazy["c"].astype(str) + "!"), "y").features[0].is_categorical


@pytest.mark.parametrize(
    "values", [[0, 1, 2], [2**60, 2**60 + 1, 2**60 + 2], [0.5, 1.5, 2.5], ["a", "b", "c"], [False, True, True]]
)
def test_an_extension_array_is_the_column_that_it_is_the_values_of(values: list[Any]) -> None:
    """Categories of `Series.values` are classes, as those of the Series are."""
    y = pd.Series(values * 20, dtype="category")
    X = np.arange(60.0)[:, None]
    of_series = fit(X, y)
    assert of_series.classes_ is not None
    assert of_series.classes_.tolist() == sorted(set(values))
    assert fit(X, y.values) == of_series
    assert fit(X, y.values, eval_set=(X, y.values)) == fit(X, y, eval_set=(X, y))
    weight = pd.array([1, 2, 3] * 20, dtype="Int64")
    assert fit(X, y, sample_weight=weight) == fit(X, y, sample_weight=weight.astype(float))


def test_text_that_the_users_code_made_of_numbers_is_text() -> None:
    lazy = dd.from_pandas(OBJECTS, npartitions=2)
    as_text = lazy.assign(b=lazy["b"].astype(str) + "x")
    assert fit(as_text, "y", features=["b"]).features[0].categories == tuple(f"{k}x" for k in range(9))


TWINS = [pd.DataFrame({"c": pd.Categorical(levels * 20), "y": np.arange(60.0)}) for levels in ([0, 1, 2], ["0", "1", "x"])]


def test_numbers_and_the_same_numbers_as_text_are_categories_with_a_warning(client: Client) -> None:
    parts = dd.from_map(lambda i: TWINS[i], [0, 1], meta=TWINS[0])
    where = r"column 'c' has both numbers and text as categories \(numbers in partition 0, text in partition 1\), and 0 and '0'"
    for options in ({}, {"client": client}):
        with pytest.warns(UserWarning, match=where):
            booster = dboost.fit(parts, "y", max_iter=1, **options)
        assert booster.ensemble.features[0].categories == (0, 1, 2, "0", "1", "x")
    both = pd.DataFrame({"c": pd.Categorical([0, 1, 2, "0", "1", "x"] * 20), "y": np.arange(120.0)})
    with pytest.warns(
        UserWarning, match="column 'c' has both numbers and text as categories, and 0 and '0' are different ones"
    ):
        dboost.fit(both, "y", max_iter=1)


def test_numbers_beside_other_text_are_categories_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    frame = pd.DataFrame({"c": pd.Categorical([0, 1, "other"] * 40), "y": np.arange(120.0)})
    dboost.fit(frame, "y", max_iter=1)
    assert not [one for one in recwarn if "categories" in str(one.message)]
