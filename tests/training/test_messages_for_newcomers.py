"""Warnings and messages about what newcomers get wrong: text in numeric columns, names of columns and of other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import main
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


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("Y", {}, "no column 'Y', which was given as target; did you mean 'y'"),
        ("price", {}, "no column 'price', which was given as target; the columns are 'age', 'pay' and 'y'|'age', 'pay', 'y'"),
        ("y", {"features": ["agee"]}, "no column 'agee', which features asks for; did you mean 'age'"),
        ("y", {"sample_weight": "pya"}, "given as sample_weight; did you mean 'pay'"),
    ],
)
def test_names_of_columns(target: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(dboost.DataError, match=message):
        dboost.fit(FRAME, target, max_iter=2, **options)


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


def test_warnings_name_the_line_of_the_caller(tmp_path: Path) -> None:
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
