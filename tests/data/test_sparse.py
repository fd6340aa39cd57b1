"""Sparse tables: the models and predictions of the dense ones, without a dense copy."""

from __future__ import annotations

import os
import signal
import tracemalloc
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from distributed import futures_of
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import dboost
from dboost import DataError, DBoostClassifier, DBoostRegressor
from dboost.data.columns import sparse
from dboost.data.columns.sparse import SparseColumn, columns_of_matrix, packed, unpacked
from tests.helpers.clusters import Processes, at, held_rows
from tests.helpers.tune import Tune

RNG = np.random.default_rng(0)
N = 500
DENSE = np.where(RNG.random((N, 12)) < 0.8, 0.0, RNG.normal(size=(N, 12)).round(1))
DENSE[3, 2] = np.nan
DENSE[:, 5] = DENSE[:, 5] != 0
Y = DENSE[:, 0] + 2 * DENSE[:, 1] + RNG.normal(size=N) / 10
OPTIONS: dict[str, Any] = {"max_iter": 5, "max_leaf_nodes": 7, "min_samples_leaf": 5}


@pytest.fixture(scope="module")
def dense() -> dboost.Booster:
    return dboost.fit(DENSE, Y, **OPTIONS)


def test_stages_and_explanations(dense: dboost.Booster, tune: Tune) -> None:
    tune(dense_block_bytes=70 * 8 * 12)  # blocks of 70 rows
    tune(staged_bytes=2 * 8 * N)  # two iterations at a time
    classes = dboost.fit(DENSE, np.digitize(Y, [-1, 1]), loss="log_loss", **OPTIONS)
    matrix = sp.csr_matrix(DENSE)
    parts = da.from_array(DENSE, chunks=(120, 12)).map_blocks(sp.csr_matrix)

    def same(call: Callable[[dboost.Booster, Any], Any], *tables: Any) -> None:
        for booster in (dense, classes):
            expected = call(booster, DENSE)
            for rows in tables or (matrix, parts):
                np.testing.assert_array_equal(np.asarray(call(booster, rows)), np.asarray(expected))

    same(lambda booster, X: list(booster.staged_predict(X, raw_score=True)), matrix)
    same(lambda booster, X: booster.partial_dependence(X, 1, sample_weight=np.arange(N) % 3), matrix)
    same(lambda booster, X: booster.shap_values(X, interactions=True, background=DENSE[:5]))
    same(lambda booster, X: [text.get_text() for text in booster.plot_waterfall(X, -3).texts])


@pytest.mark.slow
def test_interpretation_makes_no_dense_table() -> None:
    n, p = 20_000, 500
    rows = sp.random(n, p, 0.01, format="csr", random_state=0)
    y = np.asarray(rows[:, :40].sum(axis=1)).ravel()
    booster = dboost.fit(rows[:2000], y[:2000], max_iter=3, max_leaf_nodes=4, n_threads=1)
    calls: list[Callable[[Any], Any]] = [
        lambda rows: [len(stage) for stage in booster.staged_predict(rows)],
        lambda rows: booster.partial_dependence(rows, 3, grid=3),
        lambda rows: booster.partial_dependence(rows, 3, "conditional"),
        lambda rows: booster.interaction_strength(rows, [0, 3]),
        lambda rows: booster.plot_waterfall(rows, 7),
    ]
    for call in calls:
        call(rows[:100])  # compiled, and pyplot imported
        tracemalloc.start()
        call(rows)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * n * p / 2, call  # a dense copy has 80 MB


def test_processes_and_lost_partitions(dense: dboost.Booster) -> None:
    blocks = da.from_array(DENSE, chunks=(60, 12)).map_blocks(sp.csr_matrix)
    frame = pd.DataFrame(DENSE, columns=[f"f{j}" for j in range(12)])
    sparse = dd.from_pandas(frame.astype(pd.SparseDtype(float, 0.0)).assign(y=Y), npartitions=7)
    with Processes(2) as cluster:
        pids = cluster.pids()
        victim = min(pids)

        def fitted(data: Any, **options: Any) -> dboost.Booster:
            return dboost.fit(data, da.from_array(Y, chunks=60), client=cluster.client, **OPTIONS, **options)

        of_frame = dboost.fit(sparse, "y", client=cluster.client, **OPTIONS)
        assert of_frame.sha256 == dboost.fit(frame.assign(y=Y), "y", **OPTIONS).sha256
        persisted = cluster.client.persist(
            blocks, workers=[victim], allow_other_workers=True
        )  # so that rows move to the other worker
        assert all(future.exception() is None for future in futures_of(persisted, client=cluster.client))
        rows: list[list[int]] = []
        moved = fitted(persisted, callbacks=lambda now: rows.append(sorted(cluster.client.run(held_rows).values())))
        assert moved.sha256 == dense.sha256
        assert min(rows[0]) > 0
        kill = at(2, lambda: os.kill(pids[victim], signal.SIGKILL))
        booster = fitted(blocks, callbacks=kill)
        assert booster.sha256 == dense.sha256
        (lost,) = booster.history.attrs["lost_workers"]
        assert lost["worker"] == victim
        assert lost["rows"] > 0


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


def test_codes_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "memory_of_machine", lambda: 2**20)
    rows = sp.csr_matrix((2000, 1000))
    with pytest.raises(DataError, match=r"2,000 rows × 1,000 sparse columns take 0\.0 GiB.*give memory_limit"):
        dboost.fit(rows, np.arange(2000.0))


@pytest.mark.slow
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
