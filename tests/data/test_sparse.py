"""Sparse tables: the models and predictions of the dense ones, without a dense copy."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import dboost
from dboost import DataError, DBoostClassifier, DBoostRegressor
from dboost.data import sparse
from dboost.data.sparse import SparseColumn, columns_of_matrix, packed, unpacked
from tests.helpers.clusters import threads_cluster

RNG = np.random.default_rng(0)
N = 500
DENSE = np.where(RNG.random((N, 12)) < 0.8, 0.0, RNG.normal(size=(N, 12)).round(1))
DENSE[3, 2] = np.nan
DENSE[:, 5] = DENSE[:, 5] != 0
Y = DENSE[:, 0] + 2 * DENSE[:, 1] + RNG.normal(size=N) / 10
OPTIONS: dict[str, Any] = {"max_iter": 5, "max_leaf_nodes": 7, "min_samples_leaf": 5}
FORMATS: list[Callable[[Any], Any]] = [
    sp.csr_matrix, sp.csc_matrix, sp.csr_array, sp.csc_array, sp.coo_matrix, sp.lil_matrix, sp.bsr_array, sp.dok_array
]  # fmt: skip


@pytest.fixture(scope="module")
def dense() -> dboost.Booster:
    return dboost.fit(DENSE, Y, **OPTIONS)


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_the_model_is_that_of_the_dense_table(make: Callable[[Any], Any], dense: dboost.Booster) -> None:
    rows = make(DENSE)
    assert dboost.fit(rows, Y, **OPTIONS).sha256 == dense.sha256
    assert dboost.fit(rows, Y, memory_limit="60MiB", **OPTIONS).sha256 == dense.sha256
    for method in ("predict", "apply", "shap_values"):
        np.testing.assert_array_equal(getattr(dense, method)(rows), getattr(dense, method)(DENSE))
    np.testing.assert_array_equal(dense.predict(rows, offset=Y), dense.predict(DENSE, offset=Y))
    np.testing.assert_array_equal(list(dense.staged_predict(rows)), list(dense.staged_predict(DENSE)))


def test_all_functions_that_take_a_table(dense: dboost.Booster) -> None:
    rows = sp.csr_matrix(DENSE)

    def same(call: Callable[[Any], Any]) -> None:
        assert call(rows) == call(DENSE)

    same(lambda X: dboost.fit(X, Y, start_from=dense, **OPTIONS).sha256)
    same(lambda X: dboost.fit(X, Y, categorical_features=[5], **OPTIONS).sha256)
    same(lambda X: dboost.fit(X, Y, sample_weight=np.arange(N) % 3, split_proposal="tree", **OPTIONS).sha256)
    same(lambda X: dboost.fit(X, Y, split_proposal="exact", **OPTIONS).sha256)
    same(lambda X: dboost.fit(X, Y, eval_set=(X, Y), **OPTIONS).history["eval_squared_error"].tolist())
    same(lambda X: dboost.cv(X, Y, folds=3, **OPTIONS).best_score)
    same(lambda X: dense.refit_leaves(X, Y).sha256)
    same(lambda X: dense.importance("permutation", data=X, target=Y).tolist())
    with dboost.prepare(rows, Y) as of_sparse, dboost.prepare(DENSE, Y) as of_dense:
        assert dboost.fit(of_sparse, **OPTIONS).sha256 == dboost.fit(of_dense, **OPTIONS).sha256


@pytest.mark.parametrize("chunks", [(120, 12), (170, 5), ((0, 300, 0, 200), 12)], ids=str)
def test_dask_arrays_of_sparse_blocks(chunks: Any, dense: dboost.Booster) -> None:
    rows = da.from_array(DENSE, chunks=chunks).map_blocks(sp.csr_matrix)
    assert dboost.fit(rows, Y, **OPTIONS).sha256 == dense.sha256
    assert dboost.fit(rows, Y, memory_limit="60MiB", **OPTIONS).sha256 == dense.sha256
    np.testing.assert_array_equal(np.asarray(dense.predict(rows)), dense.predict(DENSE))


def test_clusters(dense: dboost.Booster) -> None:
    rows = da.from_array(DENSE, chunks=(120, 12)).map_blocks(sp.csr_matrix)
    with threads_cluster() as client:
        assert dboost.fit(sp.csr_matrix(DENSE), Y, client=client, **OPTIONS).sha256 == dense.sha256
        for data in (rows, rows.persist()):
            assert dboost.fit(data, da.from_array(Y, chunks=120), client=client, **OPTIONS).sha256 == dense.sha256
        np.testing.assert_array_equal(dense.predict(rows).compute(), dense.predict(DENSE))


@pytest.mark.parametrize("fill", [0.0, np.nan, 1.0])
def test_sparse_columns_of_pandas(fill: float) -> None:
    frame = pd.DataFrame(DENSE, columns=[f"c{j}" for j in range(12)]).assign(flag=DENSE[:, 6] > 0, n=DENSE[:, 7].astype(int))
    frame["y"] = Y
    some = {f"c{j}": pd.SparseDtype(float, fill) for j in range(1, 12, 2)}
    rows = frame.astype(some | {"flag": pd.SparseDtype(bool, False), "n": pd.SparseDtype(int, 0)})
    booster = dboost.fit(frame, "y", **OPTIONS)
    assert dboost.fit(rows, "y", **OPTIONS).sha256 == booster.sha256
    pd.testing.assert_series_equal(booster.predict(rows), booster.predict(frame))
    assert dboost.fit(rows.assign(y=pd.arrays.SparseArray(Y, fill_value=0.0)), "y", **OPTIONS).sha256 == booster.sha256


def test_entries_of_one_place_are_added_up_in_order() -> None:
    values, places = np.array([0.1, 0.2, 0.7, 1e9, -1e9, np.nan]), np.array([3, 1, 3, 3, 3, 9])
    rows = sp.csc_matrix((values, places, np.array([0, 6] + [6] * 11)), shape=DENSE.shape)
    before = rows.indices.copy()
    for make in (lambda: rows, rows.tocsr):
        np.testing.assert_array_equal(columns_of_matrix(make())[0].to_array(), make().toarray()[:, 0])
    np.testing.assert_array_equal(rows.indices, before)
    assert rows.nnz == 6


def test_columns() -> None:
    column = columns_of_matrix(sp.csr_matrix(DENSE))[2]
    for some in (slice(2, 9), slice(None), slice(1, 400, 7), np.array([3, 4, 77]), DENSE[:, 0] == 0, slice(5, 5)):
        np.testing.assert_array_equal(column[some], DENSE[some, 2])
    empty = SparseColumn(np.empty(0, np.int32), np.empty(0), 4, 0.0)
    np.testing.assert_array_equal(empty[np.array([1, 3])], [0, 0])
    assert not empty.is_all_missing
    assert SparseColumn(np.empty(0, np.int32), np.empty(0), 4, np.nan).is_all_missing
    columns = [column, np.arange(N), column.some(slice(None))]
    arrays, fills = packed(columns)
    assert len(arrays) == 4
    for found, expected in zip(unpacked(arrays, fills, N), columns, strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_infinite_values_are_named() -> None:
    rows = sp.lil_matrix(DENSE)
    rows[7, 4] = np.inf
    with pytest.raises(DataError, match=r"column 'f4' holds an infinite value \(row 7\)"):
        dboost.fit(rows.tocsr(), Y, **OPTIONS)


def test_codes_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "memory_of_machine", lambda: 2**20)
    rows = sp.csr_matrix((2000, 1000))
    with pytest.raises(DataError, match=r"2,000 rows × 1,000 sparse columns take 0\.0 GiB.*give memory_limit"):
        dboost.fit(rows, np.arange(2000.0))


def test_no_dense_copy() -> None:
    n, p = 20_000, 1_000
    rows = sp.random(n, p, 0.01, format="csr", random_state=0)
    y = np.asarray(rows.sum(axis=1)).ravel()
    dboost.fit(rows[:2000], y[:2000], max_iter=1)
    tracemalloc.start()
    booster = dboost.fit(rows, y, max_iter=2, max_leaf_nodes=4, n_threads=1, memory_limit="60MiB")
    booster.predict(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * n * p / 2  # a dense copy has 160 MB; the codes have 20 MB


TEXTS = ["good film", "bad film", "good plot", "bad plot", "dull", "bright and good"] * 40
IS_GOOD = np.array(["good" in text for text in TEXTS])


@pytest.mark.parametrize(
    "vectorizer", [TfidfVectorizer(), HashingVectorizer(n_features=64)], ids=lambda one: type(one).__name__
)
def test_text_pipelines(vectorizer: Any) -> None:
    model = make_pipeline(vectorizer, DBoostClassifier(max_iter=20, early_stopping=False)).fit(TEXTS, IS_GOOD)
    assert model.score(TEXTS, IS_GOOD) == 1.0


def test_one_hot_pipelines() -> None:
    frame = pd.DataFrame({"town": RNG.choice(["Gent", "Brugge", "Aalst"], N), "size": DENSE[:, 0]})
    y = DENSE[:, 0] + (frame["town"] == "Gent")
    options: dict[str, Any] = {"random_state": 0, "early_stopping": False, **OPTIONS}
    model = make_pipeline(OneHotEncoder(), DBoostRegressor(**options)).fit(frame, y)
    dense = make_pipeline(OneHotEncoder(sparse_output=False), DBoostRegressor(**options)).fit(frame, y)
    np.testing.assert_array_equal(model.predict(frame), dense.predict(frame))
    columns = ColumnTransformer([("town", OneHotEncoder(), ["town"])], remainder="passthrough", sparse_threshold=1.0)
    assert sp.issparse(columns.fit_transform(frame))
    assert make_pipeline(columns, DBoostRegressor(**options)).fit(frame, y).score(frame, y) > 0.5
