"""Numbers, counts and times as people read them; tables on narrow terminals."""

from __future__ import annotations

import math
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import main
from dboost.display import as_read, counted, cut, duration, number, numbers, with_spread

PACKAGE = Path(dboost.__file__).parent


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (46950.3, "46,950.3"), (53031.8123, "53,031.8"), (2011.0, "2011"), (9999.96, "9999.96"), (1e6, "1,000,000"),
        (123456789.4, "123,456,789"), (0.5, "0.5"), (-0.25, "-0.25"), (0.000123456789, "0.000123457"), (0.0, "0"),
        (1.5e-7, "1.5e-7"), (2e20, "2e20"), (math.nan, "nan"), (-math.inf, "-inf"), (np.float32(0.1), "0.1"),
        (99999999, "99,999,999"),
    ],
)  # fmt: skip
def test_numbers(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([24568.2, -1033.25, 400000.0], ["24,568", "-1,033", "400,000"]),
        ([0.002453, 9.359e-6, 0.0, -0.000001], ["0.002453", "0.000009", "0", "-0.000001"]),
        ([7.41e-8, -1.25e-9, 2e-7], ["0.74e-7", "-0.01e-7", "2.00e-7"]), ([3.2e18, 1e17], ["3.2e18", "0.1e18"]),
        ([931.42, 931.17], ["931.42", "931.17"]), ([100.0, 61.0, 5.0], ["100", "61", "5"]),
        ([6.007, -0.0128], ["6.01", "-0.01"]), ([0.25, 0.5], ["0.25", "0.50"]), ([1234.5], ["1,234"]), ([], []),
        ([math.nan, math.inf, 0.5], ["nan", "inf", "0.5"]), ([1e300, 1e-300], ["1e300", "0e300"]),
    ],
)  # fmt: skip
def test_numbers_beside_each_other_have_the_same_decimals(values: list[float], shown: list[str]) -> None:
    assert numbers(values) == shown


def test_numbers_of_fewer_digits() -> None:
    assert [number(value, 3) for value in (46950.3, 0.93938, 1234.5)] == ["46,950", "0.939", "1234"]


@pytest.mark.parametrize(
    ("mean", "spread", "shown"),
    [
        (53031.8, 780.0, "53,032 ± 780"), (0.93938, 0.0123, "0.93938 ± 0.012"), (12.0, 0.0, "12 ± 0"),
        (1.0, math.nan, "1 ± nan"),
        (53031.8, 12345.0, "53,032 ± 12,000"), (1e-9, 2e-10, "1e-9 ± 2e-10"), (5.0, 0.0996, "5.0000 ± 0.10"),
    ],
)  # fmt: skip
def test_means_and_their_spread(mean: float, spread: float, shown: str) -> None:
    assert with_spread(mean, spread) == shown


@pytest.mark.parametrize(
    ("column", "loss", "shown"),
    [
        ("eval_squared_error", "squared_error", "eval_rmse"), ("squared_error", "squared_error", "rmse"),
        ("train_loss", "squared_error", "train_rmse"), ("eval_squared_error of a", "squared_error", "eval_rmse of a"),
        ("eval_mean_squared_error", "squared_error", None), ("a_root_mean_squared_error", "squared_error", None),
        ("train_loss", "poisson", None), ("eval_poisson", "poisson", None), ("eval_squared_error", "poisson", None),
    ],
)  # fmt: skip
def test_squared_errors_are_read_by_their_root(column: str, loss: str, shown: str | None) -> None:
    """The loss is half the mean squared error."""
    assert as_read(column, 8.0, loss) == ((column, 8.0) if shown is None else (shown, 4.0))


def test_rmse_is_shown_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame({"a": np.arange(100.0), "y": np.arange(100.0) % 7})
    booster = dboost.fit(frame, "y", max_iter=2, eval_set=frame, progress=True)
    rmse = float(np.sqrt(np.mean((booster.predict(frame) - frame["y"]) ** 2)))
    history = booster.history.iloc[-1]
    assert history["eval_rmse"] == pytest.approx(rmse) == history["train_rmse"] == (2 * history["eval_squared_error"]) ** 0.5
    assert f"iteration 2/2: eval_rmse {number(rmse, 5)}" in capsys.readouterr().err
    assert "eval rmse" in booster._repr_html_()
    axes = booster.plot_history()
    assert axes.get_ylabel() == "rmse"
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(rmse)
    booster.report(tmp_path / "report.html", frame, "y")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "eval rmse" in page and "r2" in page and "eval squared error" not in page
    result = dboost.cv(frame, "y", folds=2, max_iter=2, progress=False)
    fold = [model.history.iloc[-1]["validation_rmse"] for model in result.boosters]
    assert f"rmse {number(np.mean(fold))} in iteration 2" in repr(result)
    booster.save(tmp_path / "model.json", history=True)
    frame.to_parquet(tmp_path / "rows.parquet")
    for argv in (
        ["inspect", "model.json"],
        ["train", "rows.parquet", "--target", "y", "--output", "b.json", "--set", "max_iter=2", "--eval", "rows.parquet"],
        ["cv", "rows.parquet", "--target", "y", "--set", "max_iter=2", "--folds", "2"],
    ):
        assert main([str(tmp_path / name) if name.endswith(("json", "parquet")) else name for name in argv]) == 0
        out, err = capsys.readouterr()
        assert "rmse" in out + err and "eval_squared_error" not in out + err


def test_a_continued_model_has_the_rmse_of_all_iterations() -> None:
    frame = pd.DataFrame({"a": np.arange(100.0), "y": np.arange(100.0) % 7})
    first = pickle.loads(pickle.dumps(dboost.fit(frame, "y", max_iter=2)))
    later = dboost.fit(frame, "y", max_iter=2, start_from=first)
    assert later.history["train_rmse"].notna().all() and len(later.history) == 4


def test_a_function_is_not_taken_for_the_loss() -> None:
    def weighted_squared_error(y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> float:
        return 1.0

    frame = pd.DataFrame({"a": np.arange(100.0), "y": np.arange(100.0) % 7})
    with pytest.raises(dboost.ParameterError, match=r"'weighted_squared_error'.* rename it"):
        dboost.fit(frame, "y", eval_set=frame, eval_metric=weighted_squared_error)
    history = dboost.fit(frame, "y", loss="huber", max_iter=1, eval_set=frame, eval_metric=weighted_squared_error).history
    assert history["eval_weighted_squared_error"].tolist() == [1.0]


def test_notebooks_show_data_sets_and_cross_validations() -> None:
    frame = pd.DataFrame({"<a>": np.arange(100.0), "kind": ["u", "v"] * 50, "y": np.arange(100.0) * 1000})
    with dboost.prepare(frame, "y") as data:
        html = data._repr_html_()
        assert "&lt;a&gt;, kind" in html and ">100</td>" in html and ">y</td>" in html and "<a>" not in html
    result = dboost.cv(frame, "y", folds=2, max_iter=3, eval_metric="rmse", progress=False)
    best = result.summary[result.summary["iteration"] == result.best_iteration].set_index("metric").loc[result.metric]
    assert with_spread(best["mean"], best["std"]) in result._repr_html_() and "2 folds" in result._repr_html_()


def test_counts_times_and_long_names() -> None:
    assert [counted(1, "worker"), counted(0, "row"), counted(20_000, "row")] == ["1 worker", "0 rows", "20,000 rows"]
    assert [duration(x) for x in (0.42, 12.3, 59.7, 185, 7800)] == ["0.4 s", "12 s", "1 min 00 s", "3 min 05 s", "2 h 10 min"]
    names = [f"average_of_the_last_thirty_days_{kind}" for kind in ("count", "amount")]
    assert len({cut(name) for name in names}) == 2 and all(len(cut(name)) == 24 for name in names)
    assert cut("short") == "short"


def test_no_other_format_of_numbers_is_in_the_package() -> None:
    """`:g` switches to exponents: 4.695e+04. Sizes in bytes have their own function; limits of parameters are constants."""
    own = {"display.py", "session/memory.py", "params/parameters.py"}
    others = ("losses/", "kernels/")  # messages about values that are wrong, whose digits matter
    found = [
        f"{name}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*"))
        if path.suffix in (".py", ".jinja") and (name := path.relative_to(PACKAGE).as_posix()) not in own
        for line in path.read_text(encoding="utf-8").splitlines()
        if not name.startswith(others) and re.search(r":,?(\.\d)?g\}|%\.\dg", line)
    ]
    assert found == []


@pytest.fixture
def model(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    long = "a_feature_with_a_long_name_such_as_the_average_of_the_last_thirty_days"
    frame = pd.DataFrame({long: rng.normal(size=300) * 1e6, "y": rng.normal(size=300) * 50_000})
    path = str(tmp_path / "model.json")
    dboost.fit(frame, "y", max_iter=3, eval_set=frame, progress=False).save(path)
    return path


@pytest.mark.parametrize("options", [(), ("--importance",), ("--dependence", "0")])
def test_narrow_tables_split_no_number(
    model: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if options[:1] == ("--dependence",):
        options = ("--dependence", dboost.load(model).feature_names_in_[0])
    shown = []
    for width in ("200", "48"):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["inspect", model, *options]) == 0
        shown.append(capsys.readouterr().out)
    wide, narrow = shown
    assert max(map(len, narrow.splitlines())) <= 48 < max(map(len, wide.splitlines()))
    cells = [cell.strip() for line in wide.splitlines() for cell in line.split("│")]
    numbers = {cell for cell in cells if re.fullmatch(r"-?[\d,.]+", cell) and len(cell) > 2}
    assert numbers and "e+" not in wide
    assert [one for one in numbers if one not in narrow] == []


@pytest.mark.slow
def test_the_log_is_shown_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    pd.DataFrame({"a": range(40), "y": ["u", "v"] * 20}).to_csv(path, index=False)
    command = ["train", str(path), "--target", "y", "--quiet", "--set", "max_iter=1", "--output", str(tmp_path / "m.json")]
    assert main(command) == 0 and "loss='auto'" not in capsys.readouterr().err
    verbose = subprocess.run([sys.executable, "-m", "dboost", *command, "-v"], capture_output=True, text=True, check=True)
    assert "loss='auto' is 'log_loss'" in verbose.stderr
