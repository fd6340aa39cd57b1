"""Warnings and messages about what newcomers get wrong: text in numeric columns, names of columns and of other libraries."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import KFold

import dboost
from dboost.cli import main
from dboost.params.peer_names import MODULE
from tests.helpers.clusters import threads_cluster

RNG = np.random.default_rng(2)
FRAME = pd.DataFrame({"age": RNG.integers(18, 80, 400), "pay": RNG.gamma(3, 10, 400), "y": RNG.normal(size=400)})


def fit(data: Any, **options: Any) -> dboost.Booster:
    return dboost.fit(data, "y", max_iter=2, progress=False, **options)


def test_a_question_mark_in_a_column_of_numbers(tmp_path: Path) -> None:
    table = FRAME.astype({"age": object})
    table.loc[5, "age"] = "?"
    table.to_csv(tmp_path / "table.csv", index=False)
    with pytest.warns(UserWarning, match=r"column 'age' holds text.* of its \d\d categories are numbers, but not '\?'; conv"):
        fit(str(tmp_path / "table.csv"))
    with threads_cluster(2) as client, pytest.warns(UserWarning, match="column 'age' holds text"):
        fit(dd.read_csv(tmp_path / "table.csv", dtype={"age": object}), client=client)


def test_predictions_are_not_written_under_the_name_of_another_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(FRAME).save(tmp_path / "model.json")
    FRAME.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["predict", str(tmp_path / "model.json"), str(tmp_path / "rows.parquet"), "--output", "p.json"]))
    assert ended.value.code == 2 and "written as Parquet or CSV" in capsys.readouterr().err


@pytest.mark.parametrize("call", [dboost.fit, dboost.prepare, dboost.cv])
def test_the_target_before_the_data(call: Any) -> None:
    for table in (FRAME, dd.from_pandas(FRAME, npartitions=2), FRAME.to_numpy()):
        with pytest.raises(dboost.InputTypeError, match="the data come first and the target second"):
            call("y", table)


def test_a_waterfall_with_a_background() -> None:
    bare = fit(FRAME, keep_summary=False)
    ax = bare.plot_waterfall(FRAME, 3, background=FRAME.head(50))
    start = bare.predict(FRAME.head(50), raw_score=True).mean()
    assert ax.lines and any(np.isclose(line.get_xdata()[0], start) for line in ax.lines)


def test_warnings_name_the_line_of_the_caller() -> None:
    """As Python's own do: a line inside dboost says nothing about where the target was chosen."""
    few = FRAME.assign(y=RNG.integers(1, 5, 400))
    dates = FRAME.assign(day=[f"2026-01-{1 + k % 28:02d}" for k in range(400)])
    offsets = FRAME.assign(y=RNG.choice(list("abc"), 400), pay=1.0)
    first = fit(FRAME)
    for call, message in (
        (lambda: fit(few), "different integers"),
        (lambda: fit(FRAME.assign(y=1)), "is 1 in all rows"),
        (lambda: fit(dates), "look like dates"),
        (lambda: dboost.cv(dates, "y", folds=2, max_iter=2, progress=False), "look like dates"),
        (lambda: dboost.DBoostRegressor(max_iter=2).fit(dates.drop(columns="y"), dates["y"]), "look like dates"),
        (lambda: fit(offsets, offset="pay"), "offset has no effect"),
        (lambda: fit(FRAME, arcbites=dboost.ArcBites()), "no eval_set was given"),
        (lambda: fit(FRAME.assign(age=FRAME["age"] + 100), start_from=first), "have drifted"),
    ):
        with pytest.warns(UserWarning, match=message) as seen:
            call()
        assert [one.filename for one in seen if message in str(one.message)] == [__file__]


def test_numbers_beside_text_in_lists_of_rows_stay_numbers() -> None:
    """NumPy makes text of all values of such a list."""
    frame = pd.DataFrame({"f0": FRAME["pay"], "f1": np.where(FRAME["age"] > 50, "old", "young"), "f2": FRAME["age"] > 30})
    rows = frame.to_numpy(object).tolist()
    booster = dboost.fit(rows, FRAME["y"].tolist(), max_iter=3)
    assert [feature.is_categorical for feature in booster.features] == [False, True, False]
    np.testing.assert_array_equal(booster.predict(rows), booster.predict(frame.set_axis(range(3), axis=1).to_numpy(object)))
    np.testing.assert_array_equal(booster.predict(rows[:1]), booster.predict(rows)[:1])
    np.testing.assert_array_equal(booster.predict(tuple(map(tuple, rows))), booster.predict(rows))
    text = [["a", "x"], ["b", "y"]] * 40
    of_list = dboost.fit(text, [0.0, 1.0] * 40, max_iter=1)
    assert of_list.sha256 == dboost.fit(np.array(text), [0.0, 1.0] * 40, max_iter=1).sha256


def test_tables_that_are_none(tmp_path: Path) -> None:
    booster = fit(FRAME)
    prepared = dboost.prepare(FRAME, "y", tmp_path / "prepared", progress=False)
    row = FRAME.iloc[0]
    for call, error, message in (
        (lambda: booster.predict(row), dboost.DataError, r"frame\.iloc\[\[i\]\] selects one row as a table"),
        (lambda: booster.predict(row.to_dict()), dboost.InputTypeError, r"pass pandas\.DataFrame\(\[data\]\)"),
        (lambda: booster.predict(FRAME.to_dict("list")), dboost.InputTypeError, r"pass pandas\.DataFrame\(data\)"),
        (lambda: booster.predict(prepared), dboost.DataError, "prepared is a data set of dboost.prepare, .*: give the table"),
        (lambda: dboost.Dataset(FRAME), dboost.InputTypeError, "DataFrame is no path: dboost.prepare"),  # type: ignore[arg-type]
        (lambda: dboost.load(3), dboost.InputTypeError, "a path or URL must be text or a path, not int"),  # type: ignore[arg-type]
        (lambda: booster.save(None), dboost.InputTypeError, "not NoneType"),  # type: ignore[arg-type]
        (lambda: booster.importance("weight"), dboost.ParameterError, "'weight' is called 'count' here"),
        (lambda: fit(FRAME, callbacks=3), dboost.InputTypeError, "a callback must be a function of an Iteration, not int"),
        (lambda: fit(FRAME, start_from=3), dboost.InputTypeError, "must be a Booster, a fitted estimator of dboost"),
        (lambda: fit(FRAME, start_from=dboost.DBoostRegressor()), dboost.InputTypeError, "not DBoostRegressor"),
        (lambda: fit(FRAME, monotonic_cst={"agee": 1}), dboost.ParameterError, r"\['agee'\]\. Did you mean 'age'\?"),
        (lambda: fit(FRAME, categorical_features=["agee"]), dboost.ParameterError, "'agee' .*; did you mean 'age'"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_fit_continues_that_of_an_estimator() -> None:
    estimator = dboost.DBoostRegressor(max_iter=2, random_state=0).fit(FRAME[["age", "pay"]], FRAME["y"])
    assert fit(FRAME, start_from=estimator).sha256 == fit(FRAME, start_from=estimator.booster_).sha256


def test_names_of_other_libraries_in_the_package() -> None:
    for name, message in (
        ("train", r"call dboost\.fit\(data, target\)"),
        ("DMatrix", r"give the table itself to dboost\.fit"),
        ("XGBClassifier", "use DBoostClassifier$"),
        ("LGBMRegressor", "use DBoostRegressor$"),
        ("plot_importance", r"booster\.plot_importance$"),
        ("something", "no attribute 'something'$"),
    ):
        with pytest.raises(AttributeError, match=message):
            getattr(dboost, name)
    assert all(not hasattr(dboost, name) for name in MODULE)


def test_a_plan_is_read_as_it_is_shown() -> None:
    plan = dboost.plan(10**9, 100)
    assert repr(plan) == str(plan)
    assert "time, about" in repr(plan) and max(map(len, repr(plan).splitlines())) <= 80


@pytest.mark.parametrize("names", [["nope"], ["y", "nope"], ("age", "y"), np.array(["age", "nope"])])
def test_lists_that_are_no_names_of_columns(names: Any) -> None:
    with pytest.raises(dboost.DataError, match=r"target has \d rows, .*; if these are names of columns, give one"):
        dboost.fit(FRAME, names, max_iter=1, progress=False)


@pytest.mark.parametrize("features", [slice(0, 2), 3, len, pl.col("x")])
def test_features_that_are_no_list(features: Any) -> None:
    with pytest.raises(dboost.InputTypeError, match="features must be a list of names of columns, not"):
        dboost.fit(FRAME, "y", features=features, max_iter=1, progress=False)


def test_a_splitter_that_was_not_made() -> None:
    with pytest.raises(dboost.InputTypeError, match="must be a number, pairs"):
        dboost.cv(FRAME, "y", folds=KFold, max_iter=1)


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(dboost.InputTypeError, match="a path or URL is empty"):
        dboost.fit("", "y", max_iter=1)


@pytest.mark.parametrize(("distinct", "n", "warns"), [(60, 60, True), (59, 60, False), (40, 40, False)])
def test_a_column_of_ids_is_named(distinct: int, n: int, warns: bool) -> None:
    rng = np.random.default_rng(0)
    ids = [f"order {k % distinct}" for k in range(n)]
    frame = pd.DataFrame({"id": ids, "x": rng.normal(size=n), "y": rng.normal(size=n)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        booster = dboost.fit(frame, "y", max_iter=1, progress=False)
    messages = [str(warning.message) for warning in caught]
    assert any("feature 'id' has a different category in each row" in message for message in messages) == warns
    with warnings.catch_warnings():  # few new rows of an old model
        warnings.simplefilter("error", UserWarning)
        dboost.fit(frame, "y", max_iter=1, progress=False, start_from=booster)


@pytest.mark.parametrize("target", [["y"], np.array(["y"]), pd.Index(["y"])], ids=["list", "array", "Index"])
def test_the_name_of_the_target_in_a_list(target: Any, tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "rows.parquet")
    options: dict[str, Any] = {"max_iter": 3, "progress": False}
    booster = dboost.fit(FRAME, "y", **options)
    for data in (FRAME, tmp_path / "rows.parquet"):
        same = dboost.fit(data, target, eval_set=(data, target), **options)
        assert same.sha256 == dboost.fit(data, "y", eval_set=data, **options).sha256 and same.target_name == "y"
        assert dboost.cv(data, target, folds=2, **options).best_score == dboost.cv(data, "y", folds=2, **options).best_score
        assert dboost.prepare(data, target, progress=False).target == "y"
        assert booster.drift(data, target).equals(booster.drift(data, "y"))
        assert booster.refit_leaves(data, target) == booster.refit_leaves(data, "y")


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        ("rank:ndcg", r"ranking: predict the relevance \(loss='squared_error'\)"),
        ("LambdaRank", "sort the rows of a query"),
        ("survival:cox", "a row of each subject and period"),
        ("aft", "loss='poisson' with offset"),
        ("mape", "loss='absolute_error' with sample_weight=1/abs"),
        ("reg:squaredlogerror", r"target=numpy\.log1p"),
        ("fair", "loss='huber'"),
        ("focal", r"dboost\.losses\.Loss"),
        ("auc", "give it as eval_metric"),
    ],
)
def test_losses_that_are_not_built_have_a_way_around(loss: str, sentence: str) -> None:
    for call in (
        lambda: fit(FRAME, loss=loss),
        lambda: fit(FRAME, objective=loss),
        lambda: dboost.DBoostRegressor(loss=loss).fit(FRAME[["age", "pay"]], FRAME["y"]),
        lambda: dboost.cv(FRAME, "y", loss=loss, folds=2),
    ):
        with pytest.raises(dboost.ParameterError, match=f"^loss='{loss}': .*{sentence}"):
            call()


def copied(column: str, *, warns: bool = True, **rows: Any) -> Any:
    return pytest.param(rows, f"'{column}' is a feature, though" if warns else None, id=f"{column}, {[*rows]}, {warns}")


OWN, POLARS = {"data": FRAME, "target": "y"}, pl.from_pandas(FRAME)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        copied("y", data=FRAME, target=FRAME["y"]),
        copied("y", data=FRAME, target=FRAME[["y"]]),
        copied("y", data=POLARS, target=POLARS["y"]),
        copied("pay", **OWN, sample_weight=FRAME["pay"]),
        copied("pay", **OWN, offset=FRAME["pay"]),
        copied("age", **OWN, group=FRAME["age"]),
        copied("pay", **OWN, sample_weight=np.log1p(FRAME["pay"]), warns=False),
        copied("pay", **OWN, sample_weight="pay", warns=False),
        copied("pay", **OWN, sample_weight=FRAME["pay"], features=["age", "pay"], warns=False),
        copied("y", data=FRAME.drop(columns="y"), target=FRAME["y"], warns=False),
        copied("y", data=FRAME, target=FRAME["y"].rename("z"), warns=False),
    ],
)
@pytest.mark.parametrize("call", ["fit", "prepare", "cv", "estimator"])
def test_values_that_are_a_column_of_the_data_too(rows: dict[str, Any], message: str | None, call: str) -> None:
    """They would be a feature: of a target the model would learn nothing else."""
    options: dict[str, Any] = {"fit": {"max_iter": 1, "subsample": 0.5}, "prepare": {}, "cv": {"max_iter": 1, "folds": 2}}.get(
        call, {}
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if call != "estimator":
            getattr(dboost, call)(**rows, **options)
        elif rows.keys() == {"data", "target"}:
            dboost.DBoostRegressor(max_iter=1).fit(rows["data"], rows["target"])
        else:  # its roles have no names
            return
    messages = [str(each.message) for each in caught if "is a feature, though" in str(each.message)]
    assert len(messages) == (message is not None) and all(str(message) in text for text in messages)
