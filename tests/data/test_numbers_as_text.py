"""Text that is numbers or dates: which columns are reported, and that the code of the message converts them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from distributed import Client

import dboost
from dboost.cli import main
from dboost.data.columns.numbers_as_text import find
from dboost.schema import MAX_LEVELS
from tests.helpers.real_data import path as path_of

RNG = np.random.default_rng(7)
VALUES = np.unique(np.round(np.concatenate([RNG.lognormal(7, 3, 60), -RNG.lognormal(5, 2, 20)]), 2))
WHOLE = np.unique(np.trunc(VALUES)) + 0.0


def with_commas(v: float) -> str:
    return f"{v:,.2f}"


def in_thousands(v: float) -> str:
    return f"{v / 1e6:g}M" if v > 5e3 else f"{v / 1e3:g}K"


def with_points(v: float) -> str:
    return with_commas(v).translate(str.maketrans(",.", ".,"))


#: Values, and how they are written.
NUMBERS: dict[str, tuple[Any, Callable[[float], str]]] = {
    "thousands": (WHOLE, lambda v: f"{v:,.0f}"),
    "thousands and decimals": (VALUES, with_commas),
    "thousands of India": ([1234567, 99999, *range(500, 520)], lambda v: re.sub(r"(?<=\d)(?=(\d\d)*\d{3}$)", ",", f"{v:.0f}")),
    "percent": (VALUES, lambda v: f"{v:.2f} %"),
    "percent without a space": (VALUES, lambda v: f"{v:.2f}%"),
    "currency": (VALUES, lambda v: f"${with_commas(v)}"),
    "currency after the sign": (VALUES, lambda v: ("-" if v < 0 else "") + f"$ {with_commas(abs(v))}"),
    "currency of letters": (VALUES, lambda v: f"EUR {with_commas(v)}"),
    "currency after the number": (VALUES, lambda v: f"{with_points(v)} €"),
    "unit": (VALUES, lambda v: f"{v} kg"),
    "unit with a digit": (WHOLE, lambda v: f"{v:.0f} m2"),
    "unit of two words": (WHOLE, lambda v: f"{v:.0f} sq ft"),
    "unit in singular and plural": (range(1, 40), lambda v: "1 day" if v == 1 else f"{v:.0f} days"),
    "powers of a thousand": ([500, 1200, 3e3, 2.5e6, *np.arange(10) * 1e5], in_thousands),
    "decimal comma": (VALUES, lambda v: f"{v:.2f}".replace(".", ",")),
    "decimal comma and thousands": (VALUES, with_points),
    "parentheses": (VALUES, lambda v: with_commas(v) if v >= 0 else f"({with_commas(-v)})"),
    "parentheses and currency": (VALUES, lambda v: f"${with_commas(v)}" if v >= 0 else f"$({with_commas(-v)})"),
    "currency in parentheses": (VALUES, lambda v: f"${with_commas(v)}" if v >= 0 else f"(${with_commas(-v)})"),
    "minus after the number": (VALUES, lambda v: with_commas(v) if v >= 0 else f"{with_commas(-v)}-"),
    "scientific": (VALUES, lambda v: f"{v:.6e}"),
    "spaces": (VALUES, lambda v: with_commas(v).replace(",", " ")),
    "no-break spaces": (VALUES, lambda v: with_points(v).replace(".", "\u00a0")),
    "narrow no-break spaces": (VALUES, lambda v: with_points(v).replace(".", "\u202f")),
    "apostrophes": (VALUES, lambda v: with_commas(v).replace(",", "'")),
    "minus of Unicode": (VALUES, lambda v: with_commas(v).replace("-", "−")),
    "plain": (VALUES, lambda v: f"{v:.2f}"),
    "padded": (VALUES, lambda v: f"  {v:.2f} "),
}  # fmt: skip
DTYPES = ("object", "string", "category", "string[pyarrow]")


def levels_of(name: str) -> dict[str, float]:
    values, write = NUMBERS[name]
    return dict(sorted({write(v): float(v) for v in values}.items()))


def evaluated(code: str, frame: Any) -> np.ndarray:
    return np.asarray(eval(code, {"pandas": pandas, "frame": frame}), np.float64)


@pytest.mark.fast_cells(7)
@pytest.mark.parametrize("name", NUMBERS)
def test_the_code_of_the_message_converts_every_value(name: str) -> None:
    levels = levels_of(name)
    found = find(tuple(levels))
    assert found is not None and found.n_alike == found.n_levels == len(levels) and "but not" not in found.description
    expected = np.array(list(levels.values()))
    code = found.convert("frame['x']")
    for dtype in DTYPES:
        frame = pd.DataFrame({"x": pd.Series(list(levels), dtype=dtype)})
        np.testing.assert_allclose(evaluated(code, frame), expected, rtol=1e-6)
    gap = pd.DataFrame({"x": [next(iter(levels)), None]})
    np.testing.assert_allclose(evaluated(code, gap), [expected[0], np.nan], rtol=1e-6)
    lazy = dd.from_pandas(pd.DataFrame({"x": list(levels)}), npartitions=2)
    np.testing.assert_allclose(evaluated(code, lazy), expected, rtol=1e-6)


@pytest.mark.fast_cells(7)
@pytest.mark.parametrize("name", sorted(set(NUMBERS) - {"thousands of India", "powers of a thousand"}))
def test_other_values_become_missing(name: str) -> None:
    levels = levels_of(name) | {"?": np.nan, "n/a": np.nan, "call us": np.nan, "-": np.nan}
    found = find(tuple(levels))
    assert (
        found is not None
        and found.n_alike == found.n_levels - 4
        and "but not '?', 'n/a', 'call us' and others" in found.description
    )
    got = evaluated(found.convert("frame['x']"), pd.DataFrame({"x": list(levels)}))
    np.testing.assert_allclose(got, list(levels.values()), rtol=1e-6)


@pytest.mark.fast_cells(5)
@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("%Y-%m-%d", "look like dates, such as"),
        ("%Y-%m-%d %H:%M:%S", "look like dates, such as"),
        ("%Y-%m-%dT%H:%M:%SZ", "look like dates, such as"),
        ("%d/%m/%Y", "of the format '%d/%m/%Y', day first"),
        ("%m/%d/%Y", "of the format '%m/%d/%Y', month first"),
        ("%m/%d/%Y %I:%M %p", "of the format '%m/%d/%Y %I:%M %p', month first"),
        ("%d.%m.%Y", "of the format '%d.%m.%Y', day first"),
        ("%d/%m/%y", "day first"),
        ("%d-%b-%Y", "of the format '%d-%b-%Y', such as"),
        ("%B %d, %Y", "of the format '%B %d, %Y', such as"),
        ("%Y/%m/%d", "of the format"),
        ("%m/%Y", "of the format '%m/%Y', such as"),
        ("%H:%M", "look like times of the format '%H:%M', such as"),
    ],
)
def test_the_code_for_dates_gives_seconds(form: str, says: str) -> None:
    days = pd.date_range("2023-01-05 07:08", periods=90, freq="217h")
    levels = tuple(sorted(set(days.strftime(form))))
    start = pd.Timestamp("1900-01-01" if form == "%H:%M" else 0, tz="UTC")
    expected = (pd.to_datetime(list(levels), format=form, utc=True) - start).total_seconds()
    for others in ((), ("unknown",)):
        found = find((*levels, *others))
        assert found is not None and says in found.description and ("but not 'unknown'" in found.description) == bool(others)
        for dtype in DTYPES:
            frame = pd.DataFrame({"x": pd.Series([*levels, *others], dtype=dtype)})
            np.testing.assert_allclose(evaluated(found.convert("frame['x']"), frame), [*expected, *(np.nan for _ in others)])


def test_dates_in_which_day_and_month_cannot_be_told_apart() -> None:
    found = find(tuple(f"{a:02d}/{b:02d}/2024" for a in range(1, 13) for b in range(1, 13)))
    assert found is not None and "format '%d/%m/%Y', day first (or '%m/%d/%Y': no value decides), such as" in found.description


#: Text that is no number, or of which that cannot be told.
NAMES: dict[str, list[Any]] = {
    "postal codes": [f"{k:05d}" for k in range(60)],
    "postal codes of one width": [str(k) for k in range(20_000, 20_060)],
    "postal codes and another value": [*(str(k) for k in range(20_000, 20_060)), "unknown"],
    "postal codes of nine digits": [f"{k}-{k % 1000:04d}" for k in range(20_000, 20_060)],
    "postal codes in groups": [f"{k} 45" for k in range(100, 160)],
    "postal codes with letters": [f"{k} {a}{b}" for k in range(1000, 1020) for a in "AB" for b in "CD"],
    "letter and number": [f"A{k}" for k in range(60)],
    "number and letter": [f"{k}{c}" for k in range(30) for c in "ABC"],
    "weeks": [f"2024-W{k:02d}" for k in range(1, 53)],
    "seasons": [f"{k}/{(k + 1) % 100:02d}" for k in range(1990, 2024)],
    "versions": [f"1.{a}.{b}" for a in range(9) for b in range(9)],
    "versions of two numbers": ["3.1", *(f"3.{k}" for k in range(2, 12)), "3.10"],
    "phone numbers": [f"555 {k:03d} {k * 7 % 1000:03d}" for k in range(150, 250)],
    "phone numbers with a code": [f"(555) {k:03d}-{k * 7 % 10_000:04d}" for k in range(150, 250)],
    "phone numbers of a country": [f"+49 30 {k}" for k in range(123_456, 123_500)],
    "addresses": [f"192.168.{k}.{k * 7 % 256}" for k in range(100, 250)],
    "ranges": [f"{k}-{k + 5}" for k in range(0, 100, 5)],
    "open ranges": [f"{k}+" for k in range(30)],
    "ordinals": ["1st", "2nd", "3rd", *(f"{k}th" for k in range(4, 30))],
    "hexadecimal numbers": [f"0x{k:x}" for k in range(100)],
    "digests": [f"{k * 104_729:08x}" for k in range(100)],
    "units that differ": [f"{k} {unit}" for k in range(20) for unit in ("kg", "g")],
    "currencies that differ": [f"{mark}{k}" for k in range(20) for mark in "$€"],
    "scores": [f"{a}:{b}" for a in range(6) for b in range(6)],
    "fractions": [f"{k}/7" for k in range(30)],
    "coordinates": [f"{k}.5{c}" for k in range(30) for c in "NS"],
    "whole numbers": [str(k) for k in range(60)],
    "words": [f"town {k}" for k in range(60)],
    "half of them": [*map(str, range(20)), *(f"a{k}" for k in range(20))],
    "too few": [*map(str, range(8)), "?"],
    "yes and no": ["yes", "no"] * 10,
    "numbers": list(range(60)),
    "truth values": [True, False],
    "nothing": [],
}


@pytest.mark.fast_cells(9)
@pytest.mark.parametrize("name", NAMES)
def test_names_are_not_reported(name: str) -> None:
    assert find(tuple(sorted(set(NAMES[name])))) is None


def test_code_that_would_convert_other_values_wrongly_is_not_shown() -> None:
    """Without the commas, "1,2,3" among thousands would be 123."""
    assert find((*(f"{k},000" for k in range(1, 60)), "1,2,3")) is None


@pytest.mark.real_data
def test_real_tables_have_no_numbers_as_text() -> None:
    n_columns = 0
    for name in ("adult", "california", "covtype", "elec2", "hflights", "ltr_lightgbm", "marketing"):
        for _, column in pd.read_parquet(path_of(name)).select_dtypes(exclude="number").items():
            levels = tuple(sorted(level for level in column.dropna().unique() if isinstance(level, str)))
            n_columns += len(levels) > 1
            assert find(levels) is None, column.name
    assert n_columns > 20


N = 60
FRAME = pd.DataFrame(
    {
        "pay": [f"$1,{k:03d}" for k in range(N)],
        "day": [f"{1 + k % 28:02d}/{1 + k % 12:02d}/2024" for k in range(N)],
        "y": np.arange(N) * 1.0,
    }
)
SOURCES: dict[str, Callable[[Path], Any]] = {
    "objects": lambda _: FRAME.astype({"pay": object, "day": object}),
    "strings": lambda _: FRAME.astype({"pay": "string", "day": "string"}),
    "categories": lambda _: FRAME.astype({"pay": "category", "day": "category"}),
    "strings of Arrow": lambda _: FRAME.astype({"pay": "string[pyarrow]", "day": "string[pyarrow]"}),
    "Arrow": lambda _: pa.Table.from_pandas(FRAME),
    "polars": lambda _: pl.from_pandas(FRAME),
    "Dask": lambda _: dd.from_pandas(FRAME, npartitions=3),
    "CSV": lambda path: written(path / "rows.csv"),
    "Parquet": lambda path: written(path / "rows.parquet"),
}
MESSAGES = [
    r"column 'day' holds text and is categorical: \d+ of its \d+ categories look like dates of the format '%d/%m/%Y', day "
    r"first, such as '\d\d/\d\d/2024'; convert it if it is meant to be numeric, in pandas by "
    r"\(pandas.to_datetime\(frame\['day'\], .*",
    r"column 'pay' holds text and is categorical: 60 of its 60 categories look like numbers, such as '\$1,059'; convert it if "
    r"it is meant to be numeric, in pandas by frame\['pay'\].str.replace\('\[\$,\]', '', regex=True\).astype\(float\)",
]


def written(path: Path) -> str:
    FRAME.to_csv(path, index=False) if path.suffix == ".csv" else FRAME.to_parquet(path)
    return str(path)


@contextmanager
def warned(messages: list[str]) -> Iterator[None]:
    """Check that each message is issued once, and no other about text."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    found = sorted(str(one.message) for one in seen if "holds text" in str(one.message))
    assert len(found) == len(messages) and all(map(re.fullmatch, messages, found)), found


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_is_reported_once_for_each_column(source: str, tmp_path: Path) -> None:
    with warned(MESSAGES):
        dboost.fit(SOURCES[source](tmp_path), "y", max_iter=1, progress=False)


def test_every_kind_of_fit_reports_once_for_each_column(tmp_path: Path, client: Client) -> None:
    path = written(tmp_path / "rows.parquet")
    options: dict[str, Any] = {"max_iter": 1, "progress": False}
    with warned(MESSAGES):
        data = dboost.prepare(path, "y")
    with warned([]):
        dboost.fit(data, **options)
    data.close()
    with warned(MESSAGES):
        dboost.cv(path, "y", folds=2, **options)
    X, y = FRAME[["pay", "day"]], FRAME["y"]
    with warned(MESSAGES):
        model = dboost.DBoostRegressor(max_iter=1).fit(X, y, eval_set=(X, y))
    with warned([]):
        model.predict(X)
        dboost.fit(path, "y", start_from=model.booster_, **options)
    rows = dd.from_pandas(FRAME, npartitions=3)
    with warned(MESSAGES):
        dboost.fit(rows, "y", client=client, **options)
    with warned(MESSAGES):
        dboost.fit(path, "y", client=client, eval_set=rows, **options)
    with warned(MESSAGES):
        dboost.prepare(rows, "y", client=client).close()


def test_the_command_line_reports_each_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", written(tmp_path / "rows.csv"), "--target", "y", "--output", str(tmp_path / "model.json")]
    assert main([*command, "--set", "max_iter=1", "--quiet"]) == 0
    lines = sorted(line for line in capsys.readouterr().err.splitlines() if "holds text" in line)
    assert all(map(re.fullmatch, (f"dboost: {message}" for message in MESSAGES), lines)) and len(lines) == 2


def test_columns_of_arrays_are_named_by_position() -> None:
    array = FRAME[["y", "pay"]].to_numpy(object)
    with pytest.warns(UserWarning, match="column 'f1' holds text.* in pandas by pandas.Series") as seen:
        dboost.fit(array, FRAME["y"], max_iter=1, progress=False)
    code = str(seen[0].message).split("in pandas by ")[1]
    got = eval(code, {"pandas": pandas, "array": array})
    np.testing.assert_array_equal(got, 1000.0 + np.arange(N))


MANY = pd.DataFrame({"pay": [f"{k:,}" for k in range(10**6, 10**6 + MAX_LEVELS + 1)], "y": 1.5})
ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "a weight": (lambda: fit(FRAME, sample_weight="pay"), "sample_weight 'pay' holds text or categories, numbers are needed"),
    "an offset given separately": (lambda: fit(FRAME, offset=FRAME["pay"]), "offset holds text or categories"),
    "a target of a regression": (lambda: fit(FRAME, "pay", loss="squared_error"), "needs a numeric target"),
    "a declared numeric column": (lambda: fit(FRAME, categorical_features=["day"]), "column 'pay' holds text or categories"),
    "a numeric column of a model": (
        lambda: fit(FRAME.assign(pay=1.5)[["pay", "y"]]).predict(FRAME[["pay"]]),
        "'pay' .* the feature is numeric in the model",
    ),
    "a column of many values": (lambda: fit(MANY), "column 'pay' has more than 65,535 categories"),
    "a target of many values": (lambda: fit(MANY.assign(x=1.0), "pay"), "target 'pay' has more than 65,535 different values"),
}


def fit(frame: pd.DataFrame, target: str = "y", **options: Any) -> dboost.Booster:
    return dboost.fit(frame, target, max_iter=1, progress=False, **options)


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("case", ERRORS)
@pytest.mark.filterwarnings("ignore:column 'day' holds text")
def test_errors_state_how_to_convert(case: str) -> None:
    call, message = ERRORS[case]
    with pytest.raises(dboost.DataError, match=message + ".*; its values look like numbers, such as") as raised:
        call()
    code = str(raised.value).split("convert it, in pandas by ")[1]
    frame = MANY if "many" in case else FRAME
    got = eval(code, {"pandas": pandas, "frame": frame, "offset": FRAME["pay"]})
    np.testing.assert_array_equal(got, np.arange(len(frame)) + (1e6 if frame is MANY else 1e3))


def test_a_target_that_is_taken_as_classes() -> None:
    rows = FRAME.assign(x=FRAME["y"])[["x", "pay"]]
    message = r"target holds text and is taken as 60 classes: give loss='log_loss' to say so; its values look like .*\['pay'\]"
    with pytest.warns(UserWarning, match=message):
        fit(rows, "pay")
    with warned([]):
        fit(rows, "pay", loss="log_loss")
