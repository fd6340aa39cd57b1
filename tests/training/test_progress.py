"""The progress of a fit: its phases, a bar on terminals of any width and in notebooks, lines elsewhere."""

from __future__ import annotations

import re
import sys
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import main
from dboost.display import counted
from dboost.training.progress import Progress
from tests.helpers.clusters import threads_cluster

FRAME = pd.DataFrame({"a": np.arange(400.0), "y": np.arange(400.0) % 7 * 10_000})
METRICS = ["root_mean_squared_error", "mean_absolute_error"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def screens(self) -> list[str]:
        """Every state of the bar, without colors."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """To be called by the test: pytest replaces stderr after the fixtures."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return found


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What the output of a notebook's cell holds, one state after the other."""
    shown: list[dict[str, str]] = []

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw and display_id
        shown.append(bundle)
        return SimpleNamespace(update=lambda later, raw: shown.append(later))

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return shown


def test_count_and_time_stay_visible_on_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    dboost.fit(FRAME, "y", max_iter=30, eval_set=FRAME, eval_metric=METRICS)
    boosting = [line for line in terminal.screens if line.startswith("boosting")]
    assert boosting, terminal.getvalue()
    assert all(len(line.rstrip()) <= 80 for line in boosting)
    assert all(re.search(r" (1/30|\d+/30 (in )?([\d.]+ min )?[\d.]+ s)( left)?", line) for line in boosting if "eval_" in line)
    assert re.search(r" 30/30 in (\d+ min )?[\d.]+ s  eval_root_mean_squared_error [\d.,]+", boosting[-1])


def counts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, str]]:
    """Return the counts that fits show from now on."""
    shown: list[tuple[int, int, str]] = []
    real = Progress.count

    def count(self: Progress, *of: Any) -> None:
        shown.append(of)
        real(self, *of)

    monkeypatch.setattr(Progress, "count", count)
    return shown


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("place", ["threads", "a memory limit", "workers"])
def test_files_are_counted_in_bytes(ending: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({name: rng.normal(size=60_000) for name in ("a", "unused", "y")})
    for k in range(3):
        path, some = tmp_path / f"part-{k}.{ending}", rows[k::3]
        if ending == "csv":
            some.to_csv(path, index=False)
        else:
            some.to_parquet(path, index=False, row_group_size=5_000)
    shown = counts(monkeypatch)
    options: dict[str, Any] = {"max_iter": 1, "features": ["a"], "progress": False}
    if place == "workers":
        with threads_cluster(2, 1) as client:
            dboost.fit(tmp_path, "y", client=client, **options)
    else:
        dboost.fit(tmp_path, "y", memory_limit="64MiB" if place == "a memory limit" else None, **options)
    n_bytes = sum(file.stat().st_size for file in tmp_path.iterdir())
    mib = -(-n_bytes * (1 if ending == "csv" else 2 / 3) // 2**20)
    of_files = [one for one in shown if one[2] == "MiB"]
    assert [one[0] for one in of_files] == sorted(one[0] for one in of_files) and len(of_files) >= 3
    assert of_files[-1][0] == of_files[-1][1] and abs(of_files[-1][1] - mib) <= 1


@pytest.mark.parametrize(("unit", "shown"), [("MiB", "1200/1800 MiB"), ("partition", "1200/1800")])
def test_counts_are_shown_with_their_unit(unit: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    progress = Progress(None)
    progress.phase("reading the data")
    progress.count(1200, 1800, unit)
    progress.close()
    assert shown in terminal.screens[-1]
    assert (counted(1800, "MiB"), counted(2, "partition")) == ("1,800 MiB", "2 partitions")


def test_the_rate_is_that_of_the_iterations_after_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    """The first iteration compiles kernels."""
    progress = Progress(True)
    progress.begin(3)
    for iteration, n_rows, seconds in ((1, 500, 60.0), (2, 1000, 0.25), (3, 2000, 0.5)):
        progress.show({"iteration": iteration, "rows_kept": n_rows, "train_loss": 0.5}, {"train_loss": 0.5}, seconds)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert "rows/s" not in lines[0] and "4,000 rows/s" in lines[-1]


def test_partitions_of_a_dask_frame_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = counts(monkeypatch)
    dboost.fit(dd.from_pandas(FRAME, npartitions=4), "y", max_iter=1, progress=False)
    assert shown == [(k, 4, "partition") for k in (1, 2, 3, 4)]


def test_phases_before_the_first_iteration_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    dboost.fit(FRAME, "y", max_iter=2, eval_set=FRAME)
    text = "\n".join(terminal.screens)
    found = [text.index(phase) for phase in ("reading the data", "binning", "reading evaluation sets", "boosting")]
    assert found == sorted(found)
    before = len(terminal.getvalue())
    dboost.cv(FRAME, "y", max_iter=2, folds=2)
    assert "reading and binning" in terminal.getvalue()[before:]


def test_preparing_shows_its_phases_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = a_terminal(monkeypatch)
    dboost.prepare(FRAME, "y").close()
    text = "\n".join(terminal.screens)
    found = [text.index(phase) for phase in ("reading the data", "binning", "writing")]
    assert found == sorted(found)
    assert re.search(r"writing .* 400/400 in [\d.]+ s", terminal.screens[-1])
    before = len(terminal.getvalue())
    with threads_cluster(2, 1) as client:
        dboost.prepare(dd.from_pandas(FRAME, npartitions=4), "y", client=client).close()
    on_cluster = "".join(terminal.getvalue()[before:])
    assert "reading the data" in on_cluster and re.search(r"binning .*4/4 in", on_cluster)
    before = len(terminal.getvalue())
    dboost.prepare(FRAME, "y", progress=False).close()
    with pytest.raises(dboost.DataError, match="target"):
        dboost.prepare(FRAME.assign(y=np.nan), "y", progress=False)
    assert len(terminal.getvalue()) == before
    FRAME.to_parquet(tmp_path / "rows.parquet")
    command = ["prepare", str(tmp_path / "rows.parquet"), "--target", "y", "--output", str(tmp_path / "prepared")]
    assert not main(command)
    assert "binning" in terminal.getvalue()[before:] and capsys.readouterr().out.startswith("400 rows and 1 feature")
    before = len(terminal.getvalue())
    assert not main([*command, "--quiet"])
    assert len(terminal.getvalue()) == before and not capsys.readouterr().out


def test_lines_name_a_phase_that_takes_time(capsys: pytest.CaptureFixture[str]) -> None:
    def slow(rows: pd.DataFrame) -> pd.DataFrame:
        time.sleep(1.5)
        return rows

    lazy = dd.from_pandas(FRAME, npartitions=1).map_partitions(slow, meta=FRAME.iloc[:0])
    dboost.fit(lazy, "y", max_iter=1, progress=True)
    assert capsys.readouterr().err.splitlines()[0] == "reading the data"
    with pytest.raises(dboost.DataError, match="missing"):
        dboost.fit(FRAME, "missing", progress=True)
    assert capsys.readouterr().err == "", "an error of a quick phase is alone"


def test_the_bar_ends_with_a_fit_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    with pytest.raises(dboost.DataError, match="target"):
        dboost.fit(FRAME.assign(y=np.nan), "y")
    assert terminal.getvalue().endswith("\x1b[?25h"), "the cursor is shown again"


def test_a_notebook_has_a_bar(cells: list[dict[str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    dboost.fit(FRAME, "y", max_iter=5, eval_set={"<b>": FRAME})
    assert cells[0]["text/plain"].startswith("reading the data ")
    first, last = cells[0]["text/html"], cells[-1]["text/html"]
    assert "<progress " in first and "max=" not in first
    assert '<progress value="5" max="5"' in last and "5/5 in " in last and "&lt;b&gt;_rmse" in last
    assert capsys.readouterr().err == ""
    n = len(cells)
    dboost.fit(FRAME, "y", max_iter=2, progress=False)
    assert len(cells) == n


def test_damped_steps_are_shown_with_their_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """They change the learning rate and λ that the user may have given."""
    first = dboost.fit(FRAME, "y", max_iter=20, progress=False)
    booster = dboost.fit(FRAME, "y", max_iter=2, start_from=first, source_name="more", progress=True)
    used = booster.sources[-1]["steps"]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("steps are damped")]
    assert f"learning_rate {used['learning_rate']:.3g} instead of 0.1, l2_regularization 30 instead of 1, because" in line
    assert re.search(r"leaves [\d.]+ % of the loss of a constant on these; continue_steps='full'", line)
    dboost.fit(FRAME, "y", max_iter=2, start_from=first, progress=True, continue_steps="full")
    assert "damped" not in capsys.readouterr().err


def test_one_worker_is_singular_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with dask.config.set({"dboost.single-worker-values": 8_000_000}), threads_cluster(3, 1) as client:
        dboost.fit(dd.from_pandas(FRAME, npartitions=3), "y", max_iter=2, progress=True, client=client)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].endswith(", 1 worker")
    why = "the training data: a small table, so one of 3 workers gets all rows (dboost.single-worker-values)"
    assert why in lines


@pytest.mark.parametrize(
    ("n_workers", "rule", "message"),
    [
        (2, True, "1 of 2 workers trains: they share a host (dboost.session-per-host)"),
        (2, False, None),
        (1, True, None),
    ],
)
def test_workers_that_share_a_host_are_explained(
    n_workers: int, rule: bool, message: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"dboost.single-worker-values": 0, "dboost.session-per-host": rule}
    with dask.config.set(settings), threads_cluster(n_workers, 1) as client:
        dboost.fit(dd.from_pandas(FRAME, npartitions=4), "y", max_iter=2, progress=True, client=client)
    lines = [line for line in capsys.readouterr().err.splitlines() if "share a host" in line]
    assert lines == ([] if message is None else [message])


@pytest.mark.parametrize(
    ("start", "max_iter", "message"),
    [
        (0, 9, "resumes at iteration 7: FOLDER has 6 iterations of this fit"),
        (4, 9, "resumes at iteration 11: FOLDER has 6 iterations of this fit"),
        (0, 6, "all 6 iterations are done: FOLDER has 6 iterations of this fit"),
    ],
)
def test_a_fit_says_where_it_resumes(
    start: int, max_iter: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = dboost.fit(FRAME, "y", max_iter=start, source_name="base", progress=False) if start else None
    settings = {"checkpoint": tmp_path, "checkpoint_every": 3, "start_from": base, "progress": True}

    def stop(now: dboost.Iteration) -> None:
        if now.iteration == start + 7:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        dboost.fit(FRAME, "y", max_iter=9, callbacks=[stop], **settings)
    assert "iterations of this fit" not in capsys.readouterr().err
    dboost.fit(FRAME, "y", max_iter=max_iter, **settings)
    lines = [line for line in capsys.readouterr().err.splitlines() if "iterations of this fit" in line]
    assert lines == [message.replace("FOLDER", str(tmp_path))]
