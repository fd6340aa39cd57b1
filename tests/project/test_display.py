"""Numbers, counts and times as people read them; tables on narrow terminals."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import main
from dboost.display import counted, cut, duration, metric_name, number, with_spread

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


def test_the_loss_squared_error_is_shown_as_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is half the mean squared error: above an RMSE it looked wrong."""
    names = ["eval_squared_error", "squared_error", "eval_mean_squared_error", "a_root_mean_squared_error", "eval_poisson"]
    shown = ["eval_half_squared_error", "half_squared_error", *names[2:]]
    assert list(map(metric_name, names)) == shown
    frame = pd.DataFrame({"a": np.arange(100.0), "y": np.arange(100.0) % 7})
    metrics = ["squared_error", "root_mean_squared_error"]
    booster = dboost.fit(frame, "y", max_iter=2, eval_set=frame, eval_metric=metrics, progress=True)
    assert "eval_half_squared_error" in capsys.readouterr().err
    assert {"eval_squared_error", "eval_root_mean_squared_error"} <= set(booster.history)
    assert "eval half squared error" in booster._repr_html_()
    booster.report(tmp_path / "report.html")
    assert "eval half squared error" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "half_squared_error" in repr(dboost.cv(frame, "y", folds=2, max_iter=2, progress=False))


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
