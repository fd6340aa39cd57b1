"""Every public function that takes rows reads a stream batch by batch, or says that it needs a table.

The stream is larger than `BOUND`, and can be read once only. Each of its batches has memory of its own, whose end is noticed,
so the test counts the bytes that are alive whenever another batch is read.
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from distributed import Client

import dboost
from dboost.data.tables import read_table
from tests.helpers.table_forms import STREAMS
from tests.helpers.tune import Tune

#: Batches of 1000 rows of 8 bytes × 6 columns.
N_ROWS, BATCH_ROWS, BATCH_BYTES = 40_000, 1000, 48_000
#: Bytes of a stream that may be in memory at the same time; sizes that dboost chooses are made a fraction of it.
BOUND = 8 * BATCH_BYTES
OPTIONS: dict[str, Any] = {"max_iter": 3, "max_leaf_nodes": 5, "progress": False}
COSTS = [[0, 5], [1, 0]]


def _frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(N_ROWS, 3)), columns=["a", "b", "c"])
    frame["y"] = frame["a"] + frame["b"] ** 2 + rng.normal(size=N_ROWS) / 9
    return frame.assign(k=(frame["y"] > 1).astype(float), w=rng.random(N_ROWS))


FRAME = _frame()
Y = FRAME["y"].to_numpy()


class Watched:
    """A stream of the rows of `FRAME` that counts the bytes of its batches that are alive."""

    def __init__(self) -> None:
        self.alive = self.most_alive = self.n_read = 0
        self.reader = pa.RecordBatchReader.from_batches(pa.Table.from_pandas(FRAME[:0]).schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for first in range(0, N_ROWS, BATCH_ROWS):
            values = np.ascontiguousarray(FRAME[first : first + BATCH_ROWS].to_numpy().T)
            weakref.finalize(values, self._end, values.nbytes)
            self.alive += values.nbytes
            self.most_alive = max(self.most_alive, self.alive)
            self.n_read += 1
            columns = [pa.Array.from_buffers(pa.float64(), BATCH_ROWS, [None, pa.py_buffer(column)]) for column in values]
            del values
            batch = pa.RecordBatch.from_arrays(columns, names=list(FRAME))
            del columns
            yield batch
            del batch

    def _end(self, n_bytes: int) -> None:
        self.alive -= n_bytes

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader.__arrow_c_stream__(requested_schema)


@pytest.fixture(scope="module")
def model() -> dboost.Booster:
    return dboost.fit(FRAME[:2000], "y", features=["a", "b", "c"], **OPTIONS).calibrate(FRAME[2000:3000], "y")


@pytest.fixture(scope="module")
def classifier() -> dboost.Booster:
    return dboost.fit(FRAME[:2000], "k", features=["a", "b", "c"], loss="log_loss", **OPTIONS)


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch, tune: Tune) -> None:
    size = 2 * BATCH_BYTES
    tune(batch_bytes=size, partition_bytes=size, stored_partition_bytes=size, stream_in_memory_bytes=size, wave_bytes=size)
    spool = read_table.Spool
    monkeypatch.setattr(read_table, "Spool", lambda retained, most=None: spool(min(retained, size), most))


FEATURES = {"features": ["a", "b", "c"]}
LIMIT = {"memory_limit": "1MiB"}
REFIT: dict[str, Any] = {"validation_fraction": 0.2, "early_stopping_rounds": 2, "refit": True}


def _read(found: Any) -> Any:
    """Read predictions to their end, without keeping them."""
    if isinstance(found, pa.RecordBatchReader):
        for _ in found:
            pass
    return found


#: What each entrance does with a stream: of functions and models of numbers and classes, by name of the function.
Call = Callable[..., Any]
FUNCTIONS: dict[str, Call] = {
    "fit": lambda X: dboost.fit(X, "y", **FEATURES, **OPTIONS),
    "fit, memory_limit": lambda X: dboost.fit(X, "y", **FEATURES, **LIMIT, **OPTIONS),
    "fit, values": lambda X: dboost.fit(X, Y, **FEATURES, **LIMIT, **OPTIONS),
    "fit, eval_set": lambda X: dboost.fit(FRAME[:2000], "y", eval_set=X, **FEATURES, **LIMIT, **OPTIONS),
    "fit, refit": lambda X: dboost.fit(X, "y", **REFIT, **FEATURES, **LIMIT, **OPTIONS),
    "prepare": lambda X: dboost.prepare(X, "y", **FEATURES).close(),
    "cv": lambda X: dboost.cv(X, "y", folds=2, **FEATURES, **LIMIT, **OPTIONS),
    "cv, columns": lambda X: dboost.cv(X, "y", groups="k", sample_weight="w", folds=2, **FEATURES, **LIMIT, **OPTIONS),
    "continue_on": lambda X: list(dboost.continue_on([X], "y", **FEATURES, **LIMIT, **OPTIONS)),
    "DBoostRegressor.fit": lambda X: dboost.DBoostRegressor(max_iter=3).fit(X, Y),
    "fit_async": lambda X: asyncio.run(dboost.fit_async(X, "y", **FEATURES, **LIMIT, **OPTIONS)),
}
ON_CLUSTER: dict[str, Call] = {
    "fit": lambda X, client: dboost.fit(X, "y", client=client, **FEATURES, **OPTIONS),
    "fit, refit": lambda X, client: dboost.fit(X, "y", client=client, **REFIT, **FEATURES, **OPTIONS),
    "fit, eval_set": lambda X, client: dboost.fit(FRAME[:2000], "y", eval_set=X, client=client, **FEATURES, **OPTIONS),
    "prepare": lambda X, client: dboost.prepare(X, "y", client=client, **FEATURES).close(),
    "cv": lambda X, client: dboost.cv(X, "y", folds=2, client=client, **FEATURES, **OPTIONS),
    "cv, columns": lambda X, client: dboost.cv(X, "y", groups="k", folds=2, client=client, **FEATURES, **OPTIONS),
}
METHODS: dict[str, Call] = {
    "predict": lambda model, X: _read(model.predict(X)),
    "predict, offset": lambda model, X: _read(model.predict(X, offset=Y)),
    "predict_distribution": lambda _, X: _read(
        dboost.fit(FRAME[:2000], "y", loss="normal", **FEATURES, **OPTIONS).predict_distribution(X)
    ),
    "predict_interval": lambda model, X: _read(model.predict_interval(X)),
    "apply": lambda model, X: _read(model.apply(X)),
    "to_matrix": lambda model, X: _read(model.to_matrix(X)),
    "staged_predict": lambda model, X: list(model.staged_predict(X)),
    "calibrate": lambda model, X: model[:].calibrate(X, "y"),
    "calibrate, values": lambda model, X: model[:].calibrate(X, Y, sample_weight=np.ones(N_ROWS)),
    "calibrate, by": lambda model, X: model[:].calibrate(X, "y", by="k"),
    "refit_leaves": lambda model, X: model.refit_leaves(X, "y"),
    "importance": lambda model, X: model.importance("permutation", X, "y", n_repeats=1),
    "shap_values": lambda model, X: _read(model.shap_values(X)),
    "shap_values, interactions": lambda model, X: model.shap_values(X, interactions=True),
    "shap_values, as_explanation": lambda model, X: model.shap_values(X, as_explanation=True),
    "shap_values, background": lambda model, X: model.shap_values(FRAME[:10], background=X),
    "partial_dependence": lambda model, X: model.partial_dependence(X, "a"),
    "partial_dependence, weight": lambda model, X: model.partial_dependence(X, "a", sample_weight="w", kind="conditional"),
    "drift": lambda model, X: model.drift(X, "y"),
    "additivity": lambda model, X: model.additivity(X, "a", max_rows=20),
    "interaction_strength": lambda model, X: model.interaction_strength(X, max_rows=20),
    "plot_importance": lambda model, X: model.plot_importance("permutation", data=X, target="y", n_repeats=1),
    "plot_partial_dependence": lambda model, X: model.plot_partial_dependence(X, "a"),
    "plot_shap_summary": lambda model, X: model.plot_shap_summary(X),
    "plot_shap_summary, background": lambda model, X: model.plot_shap_summary(FRAME[:10], background=X),
    "plot_shap_dependence": lambda model, X: model.plot_shap_dependence(X, "a"),
    "plot_waterfall": lambda model, X: model.plot_waterfall(X, N_ROWS - 1),
    "plot_residuals": lambda model, X: model.plot_residuals(X, "y"),
    "plot_coverage": lambda model, X: model.plot_coverage(X, "y"),
    "report": lambda model, X: model.report("report.html", X, "y"),
}
OF_CLASSES: dict[str, Call] = {
    "predict_proba": lambda model, X: _read(model.predict_proba(X)),
    "staged_predict_proba": lambda model, X: list(model.staged_predict_proba(X)),
    "decide": lambda model, X: _read(model.decide(X, COSTS)),
    "plot_calibration": lambda model, X: model.plot_calibration(X, "k"),
    "plot_lift": lambda model, X: model.plot_lift(X, "k"),
    "report": lambda model, X: model.report("report.html", X, "k", sample_weight="w"),
}
#: Those that need a table, which the error says before anything is read.
REFUSE = {
    "staged_predict", "staged_predict_proba", "shap_values, as_explanation", "shap_values, background",
    "plot_shap_summary, background",
}  # fmt: skip


def check(name: str, call: Callable[[Any], Any]) -> None:
    watched = Watched()
    if name in REFUSE:
        with pytest.raises((dboost.InputTypeError, dboost.ParameterError), match=r"a table in memory|rows in memory"):
            call(watched)
        assert watched.n_read <= 1
        return
    call(watched)
    assert watched.n_read == N_ROWS // BATCH_ROWS
    assert watched.most_alive <= BOUND


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    check(name, FUNCTIONS[name])


@pytest.mark.parametrize("name", ON_CLUSTER)
def test_functions_on_a_cluster(name: str, client: Client) -> None:
    check(name, lambda X: ON_CLUSTER[name](X, client))


def _named(calls: dict[str, Call]) -> list[Any]:
    """Return the names, of which long calls are slow tests."""
    return [pytest.param(name, marks=pytest.mark.slow) if name == "report" else name for name in calls]


@pytest.mark.parametrize("name", _named(METHODS))
def test_methods_of_models(name: str, model: dboost.Booster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(name, lambda X: METHODS[name](model, X))


@pytest.mark.parametrize("name", _named(OF_CLASSES))
def test_methods_of_models_of_classes(
    name: str, classifier: dboost.Booster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(name, lambda X: OF_CLASSES[name](classifier, X))


def test_no_entrance_is_forgotten() -> None:
    rows = {"X", "data", "chunks"}
    methods = {name for name, method in vars(dboost.Booster).items() if inspect.isfunction(method) and name[0] != "_"}
    of_rows = {name for name in methods if rows & inspect.signature(getattr(dboost.Booster, name)).parameters.keys()}
    covered = {name.partition(",")[0] for name in (*METHODS, *OF_CLASSES)}
    assert of_rows - {"set_calibration"} <= covered
    functions = {name for name in dboost.__all__ if inspect.isfunction(getattr(dboost, name))}
    of_rows = {name for name in functions if rows & inspect.signature(getattr(dboost, name)).parameters.keys()}
    assert of_rows <= {name.partition(",")[0] for name in FUNCTIONS}


def test_arguments_beside_a_stream_are_checked(model: dboost.Booster) -> None:
    with pytest.raises(dboost.InputTypeError, match="sample_weight must be the name of a column when the rows are a Dask"):
        model.partial_dependence(Watched(), "a", sample_weight=Y)
    with pytest.raises(dboost.InputTypeError, match="data come first and features second"):
        model.partial_dependence("a", Watched().reader)
    with pytest.raises(dboost.DataError, match="inspect: the data have no column 'z'"):
        model.partial_dependence(Watched(), "a", sample_weight="z")


@pytest.mark.parametrize("roles", [{}, {"sample_weight": "w", "offset": "c", "filter": pc.field("a") > 0}])
def test_a_second_fit_on_all_rows_of_a_stream(roles: dict[str, Any]) -> None:
    for target, features in (("y", ["a", "b"]), (["y", "b"], None)):
        given = {**REFIT, **roles, **OPTIONS, "features": features}
        if isinstance(target, list):
            given.pop("offset", None)
        assert dboost.fit(Watched(), target, **given) == dboost.fit(FRAME, target, **given)
    with pytest.raises(dboost.DataError, match=r"^the data have no column 'no', which was given as target"):
        dboost.fit(Watched(), "no", **REFIT, **OPTIONS)


@pytest.mark.parametrize("small_bytes", [0, 2**40])
def test_weights_are_columns_whatever_the_size(model: dboost.Booster, small_bytes: int, tune: Tune) -> None:
    tune(stream_in_memory_bytes=small_bytes)
    weight = np.ones(N_ROWS)
    calls: list[Call] = [
        lambda X: model.partial_dependence(X, "a", sample_weight=weight),
        lambda X: model.interaction_strength(X, sample_weight=weight),
        lambda X: model.report("report.html", X, "y", sample_weight=weight),
    ]
    for call in calls:
        watched = Watched()
        with pytest.raises(dboost.InputTypeError, match=r"sample_weight must be the name of a column"):
            call(watched)
        assert not watched.n_read


@pytest.mark.parametrize("small_bytes", [0, 2**40])
@pytest.mark.parametrize(
    "columns", [{"groups": "k"}, {"time": "c"}, {"groups": "k", "sample_weight": "w", "filter": pc.field("a") > 0}]
)
def test_columns_of_a_cross_validation(small_bytes: int, columns: dict[str, Any], tune: Tune) -> None:
    tune(stream_in_memory_bytes=small_bytes)
    for features in ({}, FEATURES):
        options = {"folds": 2, **features, **columns, **OPTIONS}
        found, expected = dboost.cv(Watched(), "y", **options), dboost.cv(FRAME, "y", **options)
        assert found.boosters == expected.boosters
        np.testing.assert_array_equal(found.predictions, expected.predictions)


def test_columns_that_a_stream_lacks() -> None:
    for wrong in ({"groups": "no"}, {"groups": "k", "features": ["no"]}):
        with pytest.raises((dboost.DataError, dboost.ParameterError), match=r"no column 'no', .*; the columns are 'a', 'b'"):
            dboost.cv(Watched(), "y", folds=2, **wrong, **OPTIONS)


def test_a_filter_that_keeps_nothing(model: dboost.Booster, client: Client) -> None:
    none = pc.field("a") > 99
    calls: list[Call] = [
        lambda X: dboost.fit(X, "y", filter=none, **OPTIONS),
        lambda X: dboost.fit(X, "y", filter=none, client=client, **OPTIONS),
        lambda X: dboost.cv(X, "y", groups="k", filter=none, **OPTIONS),
        lambda X: model[:].calibrate(X, "y", filter=none),
    ]
    for call in calls:
        with pytest.raises(dboost.DataError, match=r"no rows for which filter \(a > 99\) is true"):
            call(Watched())


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize("kind", STREAMS)
def test_estimators(kind: str, tmp_path: Path) -> None:
    rows = FRAME[["a", "b", "c"]][:2000]

    def stream(frame: pd.DataFrame = rows) -> Any:
        return STREAMS[kind](frame, tmp_path / str(len(list(tmp_path.iterdir()))))

    expected = dboost.DBoostRegressor(**OPTIONS, random_state=0, features=["b", "a"]).fit(rows, Y[:2000])
    found = dboost.DBoostRegressor(**OPTIONS, random_state=0, features=["b", "a"]).fit(stream(), Y[:2000])
    assert found.booster_ == expected.booster_
    assert (found.n_features_in_, found.feature_names_in_.tolist()) == (2, ["b", "a"])
    np.testing.assert_array_equal(np.asarray(found.predict(stream())), expected.predict(rows))
    every = dboost.DBoostRegressor(**OPTIONS).fit(stream(), Y[:2000])
    assert (every.n_features_in_, every.feature_names_in_.tolist()) == (3, ["a", "b", "c"])
    if kind.startswith(("polars", "DuckDB")):  # whose names are known before a row is read
        with pytest.raises(ValueError, match="feature names"):
            every.predict(stream(rows[["b", "a", "c"]]))


def test_advice_of_a_refusal(model: dboost.Booster) -> None:
    duckdb = pytest.importorskip("duckdb")
    relation = duckdb.from_arrow(pa.Table.from_pandas(FRAME[:9], preserve_index=False))
    with pytest.raises(dboost.InputTypeError, match=r"pass data\.to_arrow_table\(\)"):
        list(model.staged_predict(relation))
    assert relation.to_arrow_table().num_rows == 9


def _of_own_dictionaries() -> pa.Table:
    """Return rows whose batches have dictionaries of their own, as writers of Arrow make them from text."""
    schema = pa.schema([("a", pa.float64()), ("s", pa.dictionary(pa.int8(), pa.string())), ("y", pa.float64())])
    batches = []
    for k in range(10):
        some = FRAME[300 * k : 300 * (k + 1)]
        codes = pa.array(np.arange(300) % (k + 1), pa.int8())
        texts = pa.DictionaryArray.from_arrays(codes, pa.array([f"{k % 3} {j}" for j in range(k + 1)]))
        batches.append(pa.RecordBatch.from_arrays([pa.array(some["a"]), texts, pa.array(some["y"])], schema=schema))
    return pa.Table.from_batches(batches)


def test_dictionaries_of_batches_in_files(client: Client, tune: Tune) -> None:
    tune(stream_in_memory_bytes=0, stored_partition_bytes=6000)
    rows = _of_own_dictionaries()
    expected = dboost.fit(rows, "y", **OPTIONS)
    assert dboost.fit(rows.to_reader(), "y", client=client, **OPTIONS) == expected
    assert expected[:].calibrate(rows.to_reader(), "y").calibration == expected[:].calibrate(rows, "y").calibration
    found, in_memory = (dboost.cv(X, "y", groups="s", folds=2, features=["a"], **OPTIONS) for X in (rows.to_reader(), rows))
    assert found.boosters == in_memory.boosters


def test_an_error_in_the_middle_leaves_no_files(model: dboost.Booster, tmp_path: Path, tune: Tune) -> None:
    tune(stream_in_memory_bytes=0)
    table = pa.Table.from_pandas(FRAME, preserve_index=False)

    def batches() -> Iterator[pa.RecordBatch]:
        for k, batch in enumerate(table.to_batches(max_chunksize=BATCH_ROWS)):
            if k == 9:
                assert list(tmp_path.rglob("*.arrow"))
                raise OSError("the source is gone")
            yield batch

    with (
        dask.config.set({"temporary-directory": str(tmp_path)}),
        pytest.raises(OSError, match="the source is gone") as caught,
    ):
        model.partial_dependence(pa.RecordBatchReader.from_batches(table.schema, batches()), "a")
    assert not list(tmp_path.iterdir())
    assert caught.tb is not None  # which refers to what the function had
