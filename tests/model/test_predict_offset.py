"""Predictions with an offset equal those of training with it, for every kind of table."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dboost
from dboost import DBoostClassifier, DBoostRegressor
from dboost.cli import main
from dboost.errors import DataError, InputTypeError, ParameterError

rng = np.random.default_rng(0)
N = 800
FRAME = pd.DataFrame(rng.normal(size=(N, 3)), columns=["a", "b", "c"]).assign(
    exposure=rng.uniform(-1.0, 2.0, N), late=rng.random(N) < 0.4
)
FRAME["claims"] = rng.poisson(np.exp(FRAME.a / 2 + FRAME.exposure))
FEATURES = ["a", "b", "c"]
SETTINGS: dict[str, Any] = {"max_iter": 20, "progress": False}


@pytest.fixture(scope="module")
def booster() -> dboost.Booster:
    return dboost.fit(FRAME, "claims", loss="poisson", offset="exposure", features=FEATURES, **SETTINGS)


def test_predictions_are_those_of_training(booster: dboost.Booster) -> None:
    found = booster.predict(FRAME, offset="exposure")
    deviance = booster.loss.value(
        FRAME.claims.to_numpy(float), booster.predict(FRAME, raw_score=True, offset="exposure").to_numpy()[None]
    )
    assert booster.history.train_loss.iloc[-1] == pytest.approx(deviance.mean(), rel=1e-6)
    np.testing.assert_allclose(found, booster.predict(FRAME, offset=False) * np.exp(FRAME.exposure))
    assert found.mean() == pytest.approx(FRAME.claims.mean(), rel=0.05)
    X = FRAME[FEATURES].to_numpy()
    plain = dboost.fit(X, FRAME.claims, loss="poisson", offset=FRAME.exposure.to_numpy(), **SETTINGS)
    np.testing.assert_array_equal(plain.predict(X, offset=FRAME.exposure.tolist()), found)


def test_probabilities_and_classes() -> None:
    model = dboost.fit(FRAME, "late", offset="exposure", features=FEATURES, **SETTINGS)
    raw = model.predict(FRAME, raw_score=True, offset=False).to_numpy() + FRAME.exposure.to_numpy()
    found = model.predict_proba(FRAME, offset="exposure")
    np.testing.assert_allclose(found[True], 1 / (1 + np.exp(-raw)))
    np.testing.assert_array_equal(model.predict(FRAME, offset="exposure"), raw > 0)


def test_estimators_take_offsets(booster: dboost.Booster) -> None:
    X, offset = FRAME[FEATURES], FRAME.exposure
    model = DBoostRegressor(loss="poisson", max_iter=20, early_stopping=False, random_state=0)
    model.fit(X, FRAME.claims, offset=offset)
    np.testing.assert_array_equal(model.predict(X, offset=offset), booster.predict(FRAME, offset="exposure"))
    split = {"X_val": X[:200], "y_val": FRAME.claims[:200], "offset_val": offset[:200]}
    model = DBoostRegressor(loss="poisson", max_iter=20, early_stopping=True, random_state=0).fit(
        X[200:], FRAME.claims[200:], offset=offset[200:], **split
    )
    raw = model.booster_.predict(X[:200], raw_score=True, offset=offset[:200]).to_numpy()
    losses = model.booster_.loss.value(FRAME.claims[:200].to_numpy(float), raw[None])
    assert -model.validation_score_[-1] == pytest.approx(losses.mean(), rel=1e-6)
    classes = DBoostClassifier(max_iter=5, early_stopping=False).fit(X, FRAME.late, offset=offset)
    assert not np.allclose(classes.predict_proba(X, offset=offset), classes.predict_proba(X))


def test_rows_that_an_estimator_holds_out_keep_their_offsets() -> None:
    X = FRAME[FEATURES]
    model = DBoostRegressor(loss="poisson", max_iter=15, early_stopping=True, random_state=1, validation_fraction=0.3)
    model.fit(X, FRAME.claims, offset=FRAME.exposure)
    without = DBoostRegressor(loss="poisson", max_iter=15, early_stopping=True, random_state=1, validation_fraction=0.3)
    without.fit(X, FRAME.claims)
    assert model.validation_score_[-1] > without.validation_score_[-1]


def test_what_is_refused(booster: dboost.Booster) -> None:
    with pytest.raises(DataError, match=r"offset has the shape \(3,\), but there are 800 rows"):
        booster.predict(FRAME, offset=[1.0, 2.0, 3.0])
    with pytest.raises(DataError, match="offset 'exposure' is missing or infinite in 1 row, first in row 5"):
        booster.predict(FRAME.assign(exposure=FRAME.exposure.where(FRAME.index != 5)), offset="exposure")
    with pytest.raises(DataError, match="nothing"):
        booster.predict(FRAME, offset="nothing")
    with pytest.raises(InputTypeError, match="offset='a' is one of its features"):
        booster.predict(FRAME, offset="a")
    with pytest.raises(InputTypeError, match="offset must be the name of a column"):
        booster.predict(dd.from_pandas(FRAME, npartitions=2), offset=FRAME.exposure)
    X = FRAME[FEATURES].to_numpy()
    plain = dboost.fit(X, FRAME.claims, loss="poisson", max_iter=1, progress=False)
    for data in (X, da.from_array(X)):
        with pytest.raises(InputTypeError, match="no column of arrays"):
            plain.predict(data, offset="exposure")
    with pytest.raises(ParameterError, match="give both or none"):
        DBoostRegressor().fit(X, FRAME.claims, offset=FRAME.exposure, X_val=X, y_val=FRAME.claims)
    with pytest.raises(ParameterError, match="offset_val belongs to"):
        DBoostRegressor().fit(X, FRAME.claims, offset_val=FRAME.exposure)
    with pytest.raises(ParameterError, match="scoring must be 'loss'"):
        DBoostRegressor(scoring="r2").fit(X, FRAME.claims, offset=FRAME.exposure)


# Every function that scores rows takes offsets: the same number for all rows acts as another baseline.

SHIFT = 0.75
ROWS = FRAME.assign(shift=SHIFT, weight=np.arange(N) % 3)
COSTS = [[0, 1], [1, 0]]


def shifted(booster: dboost.Booster) -> dboost.Booster:
    return dboost.Booster(replace(booster.ensemble, baseline=booster.ensemble.baseline + SHIFT))


def drawn(ax: Any) -> list[Any]:
    """What a plot shows."""
    lines = [np.asarray(line.get_xydata()) for line in ax.lines]
    return [*lines, *(np.asarray(one.get_offsets()) for one in ax.collections)]


def page(booster: dboost.Booster, path: Path, *arguments: Any, **options: Any) -> str:
    booster.report(path, *arguments, **options)
    text = re.sub(r"d\d+-", "", path.read_text(encoding="utf-8"))
    text = re.sub(r"(\.\d{3})\d+", r"\1", text)  # sums are rounded in another order
    return re.sub(r"[0-9a-f]{64}|<path id=.*|#\w+|id=\"\w+\"", "", text)


def calibrated(booster: dboost.Booster, **offset: Any) -> dboost.Booster:
    return copy.copy(booster).calibrate(ROWS, "claims", **offset)


NUMBERS: dict[str, Callable[..., Any]] = {
    "predict": lambda b, path, **o: b.predict(ROWS, **o),
    "predict, raw": lambda b, path, **o: b.predict(ROWS, raw_score=True, **o),
    "staged": lambda b, path, **o: [*b.staged_predict(ROWS, **o)],
    "staged, lazy": lambda b, path, **o: [s.compute() for s in b.staged_predict(dd.from_pandas(ROWS, npartitions=2), **o)],
    "permutation": lambda b, path, **o: b.importance("permutation", ROWS, "claims", n_repeats=1, **o),
    "permutation, plot": lambda b, path, **o: [
        bar.get_width() for bar in b.plot_importance("permutation", ROWS, "claims", n_repeats=1, **o).patches
    ],
    "dependence": lambda b, path, **o: b.partial_dependence(ROWS, "a", scale="prediction", grid=5, **o),
    "dependence, lazy": lambda b, path, **o: b.partial_dependence(
        dd.from_pandas(ROWS, npartitions=2), "a", grid=5, sample_weight="weight", **o
    ),
    "dependence, rows": lambda b, path, **o: b.partial_dependence(
        ROWS, "a", "individual", scale="prediction", grid=5, max_rows=20, **o
    ),
    "dependence, conditional": lambda b, path, **o: b.partial_dependence(
        ROWS, "a", "conditional", scale="prediction", grid=5, **o
    ),
    "dependence, plot": lambda b, path, **o: drawn(b.plot_partial_dependence(ROWS, "a", scale="prediction", grid=5, **o)),
    "residuals": lambda b, path, **o: drawn(b.plot_residuals(ROWS, "claims", **o)),
    "report": lambda b, path, **o: page(b, path / "report.html", ROWS, "claims", **o),
    "calibrate": lambda b, path, **o: calibrated(b, **o).calibration.margin,
    "interval": lambda b, path, **o: calibrated(b, **o).predict_interval(ROWS, **o),
    "coverage": lambda b, path, **o: drawn(calibrated(b, **o).plot_coverage(ROWS, "claims", n_bins=4, **o)),
    "refit": lambda b, path, **o: b.refit_leaves(ROWS, "claims", **o).predict(ROWS, raw_score=True, **o),
}
CLASSES: dict[str, Callable[..., Any]] = {
    "probabilities": lambda b, path, **o: b.predict_proba(ROWS, **o),
    "decide": lambda b, path, **o: b.decide(ROWS, COSTS, **o),
    "staged": lambda b, path, **o: [*b.staged_predict_proba(ROWS, **o)],
    "permutation": lambda b, path, **o: b.importance("permutation", ROWS, "late", n_repeats=1, metric="log_loss", **o),
    "calibration": lambda b, path, **o: drawn(b.plot_calibration(ROWS, "late", **o)),
    "lift": lambda b, path, **o: drawn(b.plot_lift(ROWS, "late", **o)),
    "report": lambda b, path, **o: page(b, path / "report.html", ROWS, "late", **o),
}


def same(found: Any, expected: Any, atol: float = 0.0) -> None:
    if isinstance(found, str):
        assert found == expected
    elif isinstance(found, list):
        for one, other in zip(found, expected, strict=True):
            same(one, other, atol)
    elif isinstance(found, pd.DataFrame | pd.Series):
        (pd.testing.assert_frame_equal if found.ndim == 2 else pd.testing.assert_series_equal)(
            found, expected, check_dtype=False
        )
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=atol)


#: Every call; the columns of a lazy table are named, otherwise calls take the name of a column and its values in turn.
CALLS = [*(("claims", case) for case in NUMBERS), *(("late", case) for case in CLASSES)]


@pytest.mark.parametrize(
    ("target", "case", "form"),
    [(*call, "column" if number % 2 or "lazy" in call[1] else "values") for number, call in enumerate(CALLS)],
)
def test_every_function_that_scores_rows_takes_offsets(target: str, case: str, form: str, tmp_path: Path) -> None:
    loss = "poisson" if target == "claims" else "log_loss"
    options = SETTINGS | {"max_iter": 6, "keep_summary": case != "report"}  # drift compares scores without offsets
    booster = dboost.Booster(dboost.fit(FRAME, target, loss=loss, features=FEATURES, **options).ensemble)
    call = (NUMBERS if target == "claims" else CLASSES)[case]
    found = call(booster, tmp_path, offset="shift" if form == "column" else np.full(N, SHIFT))
    # Sums are rounded in another order, so a target at the end of its interval may be outside.
    same(found, call(shifted(booster), tmp_path), atol=0.01 if case == "coverage" else 0.0)
    if case not in ("dependence, lazy", "lift", "permutation, plot", "report"):  # some do not depend on the level of scores
        with pytest.raises(AssertionError):
            same(found, call(booster, tmp_path))


@pytest.mark.parametrize(("target", "case"), CALLS)
@pytest.mark.filterwarnings("error::UserWarning", "ignore:these are the rows that the model was trained on")
def test_every_function_that_scores_rows_remembers_the_column(target: str, case: str, tmp_path: Path) -> None:
    loss = "poisson" if target == "claims" else "log_loss"
    options = SETTINGS | {"max_iter": 6, "keep_summary": case != "report"}
    path = tmp_path / "model.json"
    dboost.fit(FRAME, target, loss=loss, features=FEATURES, offset="exposure", **options).save(path)
    booster = dboost.load(path)
    call = (NUMBERS if target == "claims" else CLASSES)[case]
    same(call(booster, tmp_path), call(booster, tmp_path, offset="exposure"))
    sources = ({name: value for name, value in booster.ensemble.sources[0].items() if name != "offset"},)
    forgetful = dboost.Booster(replace(booster.ensemble, sources=sources))
    if case != "report":  # which shows the name
        same(call(booster, tmp_path, offset=False), call(forgetful, tmp_path))


TABLES: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "pandas": lambda frame, path: frame,
    "polars": lambda frame, path: pl.from_pandas(frame),
    "lazy": lambda frame, path: pl.from_pandas(frame).lazy(),
    "reader": lambda frame, path: pa.Table.from_pandas(frame, preserve_index=False).to_reader(),
    "dask": lambda frame, path: dd.from_pandas(frame, npartitions=2),
    "parquet": lambda frame, path: (frame.to_parquet(path / "rows.parquet"), str(path / "rows.parquet"))[1],
    "csv": lambda frame, path: (frame.to_csv(path / "rows.csv", index=False), str(path / "rows.csv"))[1],
}


def of_values(data: Any = FRAME, **more: Any) -> dboost.Booster:
    return dboost.fit(data, "claims", loss="poisson", features=FEATURES, offset=FRAME.exposure, **SETTINGS, **more)


#: Models whose offset was a column, and values, and how they warn of rows without it.
WITHOUT = {
    "column": "trained with offset='exposure', a column that these rows do not have, so their raw scores start at 0: give",
    "values": "trained with an offset, and these rows have none, so their raw scores start at 0: give offset=…",
}


@pytest.fixture(scope="module")
def models(booster: dboost.Booster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dboost.Booster]:
    path = tmp_path_factory.mktemp("models") / "model.json"
    of_values().save(path)
    return {"column": booster, "values": dboost.load(path)}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("offset", WITHOUT)
def test_rows_without_an_offset(models: dict[str, dboost.Booster], offset: str, table: str, tmp_path: Path) -> None:
    """Rows with it are cells of the table of readers."""
    rows = FRAME[FEATURES] if offset == "column" else FRAME
    with pytest.warns(UserWarning, match=WITHOUT[offset]) as caught:
        predicted = models[offset].predict(TABLES[table](rows, tmp_path))
    assert caught[0].filename == __file__
    predicted = predicted.read_all()["prediction"] if hasattr(predicted, "read_all") else predicted
    without = np.asarray(predicted.compute() if hasattr(predicted, "compute") else predicted)
    np.testing.assert_array_equal(without, models[offset].predict(FRAME, offset=False))


@pytest.mark.parametrize("offset", WITHOUT)
def test_rows_of_a_predictor_have_the_remembered_offset(models: dict[str, dboost.Booster], offset: str) -> None:
    booster = models[offset]
    predictor, row = booster.predictor(), FRAME.iloc[3]
    with_offset = booster.predict(FRAME, offset="exposure")[3]
    assert predictor(row[FEATURES].to_list(), offset=row.exposure) == with_offset
    if offset == "column":
        assert predictor(row[[*FEATURES, "exposure"]].to_dict()) == with_offset
    rates = [predictor(row[FEATURES].to_dict(), offset=False), predictor(row[FEATURES].to_list(), offset=False)]
    for values in (row[FEATURES].to_dict(), row[FEATURES].to_numpy(float), row[FEATURES].to_list(), [*row[FEATURES], None][:3]):
        with pytest.warns(UserWarning, match=WITHOUT[offset]):
            rates.append(predictor(values))
    assert rates == [booster.predict(FRAME, offset=False)[3]] * 6


DERIVED: dict[str, Callable[[dboost.Booster], dboost.Booster]] = {
    "no trees": lambda model: model.truncate(0),
    "one tree": lambda model: model.truncate(1),
    "refitted": lambda model: model.refit_leaves(FRAME, "claims"),
    "continued": lambda model: dboost.fit(FRAME, "claims", offset="exposure", start_from=model, max_iter=2, progress=False),
    "of the second fit": lambda model: DERIVED["continued"](model).drop_source(0),
}


@pytest.mark.parametrize("derived", DERIVED)
def test_derived_models_remember_the_column(booster: dboost.Booster, derived: str, tmp_path: Path) -> None:
    DERIVED[derived](booster).save(tmp_path / "model.json")
    model = dboost.load(tmp_path / "model.json")
    raw = model.predict(FRAME, raw_score=True, offset=False) + FRAME.exposure
    np.testing.assert_array_equal(model.predict(FRAME, raw_score=True), raw)


def prepared(path: Path) -> dboost.Booster:
    with dboost.prepare(FRAME, "claims", features=FEATURES, offset=FRAME.exposure, path=path / "data") as data:
        return dboost.fit(data, loss="poisson", **SETTINGS)


#: How a model comes to values of an offset.
OF_VALUES: dict[str, Callable[[Path], dboost.Booster]] = {
    "fit": lambda path: of_values(),
    "classes": lambda path: dboost.fit(FRAME, "late", features=FEATURES, offset=FRAME.exposure, **SETTINGS),
    "estimator": lambda path: DBoostRegressor(max_iter=2).fit(FRAME[FEATURES], FRAME.claims, offset=FRAME.exposure).booster_,
    "prepared": prepared,
    "cv": lambda path: dboost.cv(FRAME, "late", features=FEATURES, offset=FRAME.exposure, folds=2, **SETTINGS).boosters[0],
    "Dask": lambda path: of_values(dd.from_pandas(FRAME, npartitions=2)),
    "in files": lambda path: of_values(memory_limit="64MiB"),
    "checkpoint": lambda path: of_values(checkpoint=path / "checkpoint"),
    "continued": lambda path: dboost.fit(
        FRAME, "claims", offset=FRAME.exposure, start_from=of_values(), max_iter=2, progress=False
    ),
    "refitted": lambda path: of_values().refit_leaves(FRAME, "claims", offset=FRAME.exposure),
    "no trees": lambda path: of_values().truncate(0),
}


@pytest.mark.parametrize("model", OF_VALUES)
@pytest.mark.filterwarnings("error::UserWarning")
def test_values_are_remembered_as_such(model: str, tmp_path: Path) -> None:
    OF_VALUES[model](tmp_path).save(tmp_path / "model.json")
    booster = dboost.load(tmp_path / "model.json")
    assert booster.sources[-1]["offset"] is True
    for offset in (FRAME.exposure, False):
        booster.predict(FRAME, offset=offset)
    with pytest.raises(UserWarning, match=WITHOUT["values"]):
        booster.predict(FRAME)


def test_offsets_without_effect_are_not_remembered() -> None:
    frame = FRAME.assign(kind=np.arange(N) % 3)
    with pytest.warns(UserWarning, match="offset has no effect"):
        classes = dboost.fit(frame, "kind", loss="log_loss", features=FEATURES, offset="exposure", max_iter=1, progress=False)
    assert "offset" not in classes.ensemble.sources[0]


@pytest.mark.parametrize(
    "method", ["predict", "staged_predict", "predict_proba", "decision_function", "staged_decision_function"]
)
def test_estimators_score_with_offsets(method: str) -> None:
    X, offset = FRAME[FEATURES], FRAME.exposure.to_numpy()
    model = DBoostClassifier(max_iter=4, early_stopping=False).fit(X, FRAME.late, offset=offset)
    raw = model.decision_function(X) + offset
    found = getattr(model, method)(X, offset=offset)
    found = [*found][-1] if method.startswith("staged") else found
    expected = (
        raw
        if "function" in method
        else raw > 0
        if "proba" not in method
        else np.c_[1 / (1 + np.exp(raw)), 1 / (1 + np.exp(-raw))]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert model.score(X, FRAME.late, offset=offset) == np.mean((raw > 0) == FRAME.late)
    more = DBoostRegressor(loss="poisson", max_iter=4, early_stopping=False)
    more.partial_fit(X, FRAME.claims, offset=offset).partial_fit(X, FRAME.claims, offset=offset)
    assert more.score(X, FRAME.claims, offset=offset) > more.score(X, FRAME.claims)


def test_the_command_takes_offsets(booster: dboost.Booster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, rows, output = str(tmp_path / "model.json"), str(tmp_path / "rows.parquet"), str(tmp_path / "out.parquet")
    booster.save(model)
    FRAME.to_parquet(rows)
    assert main(["predict", model, rows, "--output", output, "--offset", "exposure"]) == 0
    np.testing.assert_array_equal(pd.read_parquet(output)["prediction"], booster.predict(FRAME, offset="exposure"))
    capsys.readouterr()
    assert main(["inspect", model, "--dependence", "a", "--data", rows, "--offset", "exposure", "--json"]) == 0
    values = [row["value"] for row in json.loads(capsys.readouterr().out)["dependence"]]
    np.testing.assert_allclose(values, booster.partial_dependence(FRAME, "a", grid=20, offset="exposure")["value"])
    assert main(["inspect", model, "--dependence", "a", "--offset", "exposure"]) == 2


@pytest.mark.parametrize("command", ["predict", "train"])
@pytest.mark.parametrize("offset", [np.nan, np.inf, "much", None], ids=["missing", "infinite", "text", "no column"])
def test_a_command_with_bad_offsets_ends_with_2(
    command: str, offset: Any, booster: dboost.Booster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, rows = str(tmp_path / "model.json"), str(tmp_path / "rows.csv")
    output = tmp_path / ("out.csv" if command == "predict" else "out.json")
    booster.save(model)
    frame = FRAME.astype({"exposure": object})
    frame.loc[3, "exposure"] = offset
    (frame.drop(columns="exposure") if offset is None else frame).to_csv(rows, index=False)
    options = ["--target", "claims", "--set", "loss=poisson", "--set", "offset=exposure", "--quiet"]
    with_offset = [model, rows, "--offset", "exposure"] if command == "predict" else [rows, *options]
    assert main([command, *with_offset, "--output", str(output)]) == 2
    assert re.search(r"offset|exposure", capsys.readouterr().err.replace(str(tmp_path), ""))
    assert not output.exists()


@pytest.mark.parametrize(
    "method",
    ["apply", "shap_values", "additivity", "interaction_strength", "drift", "plot_shap_summary", "plot_waterfall", "to_matrix"],
)
def test_what_has_no_offset_says_so(booster: dboost.Booster, method: str) -> None:
    with pytest.raises(ParameterError, match="unknown parameter 'offset': it is about the trees"):
        getattr(booster, method)(FRAME, offset="exposure")


@pytest.mark.parametrize("target", ["late", "level"])
@pytest.mark.parametrize("method", ["predict", "predict_proba", "staged_predict", "plot_lift", "report"])
def test_probabilities_of_a_forest_have_no_offset(target: str, method: str, tmp_path: Path) -> None:
    frame = FRAME.assign(level=np.arange(N) % 3)
    forest = dboost.fit(
        frame, target, features=FEATURES, loss="half_brier_score", boosting="forest", max_iter=3, progress=False
    )
    arguments = {"plot_lift": (frame, target), "report": (tmp_path / "r.html", frame, target)}.get(method, (frame,))
    with pytest.raises(ParameterError, match="those of a forest of classes are probabilities"):
        [*getattr(forest, method)(*arguments, offset="exposure")]


@pytest.mark.parametrize("offset", [np.ones(3), "nothing", "a", np.full(N, np.nan)])
@pytest.mark.parametrize("method", ["staged_predict", "partial_dependence", "plot_residuals", "importance"])
def test_offsets_that_are_none(booster: dboost.Booster, method: str, offset: Any) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "staged_predict": (FRAME,), "partial_dependence": (FRAME, "b"), "plot_residuals": (FRAME, "claims"),
        "importance": ("permutation", FRAME, "claims"),
    }  # fmt: skip
    with pytest.raises((DataError, InputTypeError, ParameterError)):
        [*getattr(booster, method)(*arguments[method], offset=offset)]
