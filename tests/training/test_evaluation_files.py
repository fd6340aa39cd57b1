"""Evaluation sets that are large beside a memory limit are stored in files, with the results of sets in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

import dboost
from benchmarks.fixed_fits import wide_frame
from dboost.metrics import Metric
from dboost.session.evaluation_rows import SessionEvalSets
from tests.helpers.fits import NUMERIC, cut, mixed_frame, saved
from tests.helpers.tune import Tune

FEATURES = [*NUMERIC, "town"]
FRAME, OTHER = mixed_frame(400), mixed_frame(300, seed=1)


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hold the names of the sets that are evaluated from files."""
    names: list[str] = []

    def add(sets: SessionEvalSets, name: str, *arguments: Any, **options: Any) -> None:
        add_rows(sets, name, *arguments, **options)
        if sets.in_files(name=name):
            names.append(name)

    add_rows = SessionEvalSets.add
    monkeypatch.setattr(SessionEvalSets, "add", add)
    return names


@pytest.fixture
def made(in_files: list[str], tmp_path: Path, tune: Tune) -> Iterator[list[str]]:
    """Evaluation sets go to files, blocks are short, and temporary files go to a folder that is empty at the end."""
    tune(retained_bytes=0, block_rows=64)
    with dask.config.set({"temporary-directory": str(tmp_path / "temporary")}):
        yield in_files
    assert list((tmp_path / "temporary").iterdir()) == []


def same(target: str, sets: Any, **options: Any) -> dboost.Booster:
    """Train with and without a limit; assert that the models and the metrics of the sets are equal."""
    settings = {"features": FEATURES, "max_iter": 4, "random_state": 1, "progress": False} | options
    kept = dboost.fit(FRAME, target, eval_set=sets, **settings)
    filed = dboost.fit(FRAME, target, eval_set=sets, memory_limit="64MiB", **settings)
    assert saved(kept) == saved(filed)
    apart = ["seconds", "bytes_read"]
    pd.testing.assert_frame_equal(kept.history.drop(columns=apart), filed.history.drop(columns=apart))
    return filed


def gap_of_rows(y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> float:
    return float(np.average(np.abs(y - prediction.reshape(len(y), -1)[:, 0]), weights=weight))


#: Its statistic is views of the rows.
KEPT = Metric(
    "kept",
    lambda y, p, w: [y, p.T[::-1]],
    lambda a, b: a + b,
    lambda parts: math.fsum(value for part in parts for value in part.flat),
)


@pytest.mark.parametrize(
    ("target", "weight", "n_threads"), [("y", None, 1), ("y", "w", 2), ("late", "w", 1), ("late", None, 2), ("grade", "w", 2)]
)
def test_rows_that_a_metric_keeps_are_not_overwritten(made: list[str], target: str, weight: str | None, n_threads: int) -> None:
    filed = same(target, OTHER, sample_weight=weight, eval_metric=[gap_of_rows, KEPT], n_threads=n_threads)
    if target == "y":
        counted = OTHER if weight is None else OTHER[OTHER["w"] > 0]
        expected = math.fsum([*counted["y"], *filed.predict(counted)])
        assert filed.history["eval_kept"].iloc[-1] == pytest.approx(expected, rel=1e-12)
    assert made == ["eval"]


def test_what_is_wrong_with_a_set_is_said(made: list[str]) -> None:
    with pytest.raises(
        dboost.DataError, match="evaluation set 'eval': the target holds a class that the training target has not"
    ):
        dboost.fit(
            FRAME, "grade", eval_set=(OTHER[FEATURES], np.full(len(OTHER), "z")), features=FEATURES, memory_limit="64MiB"
        )
    assert made == []


def test_small_sets_stay_in_memory(in_files: list[str]) -> None:
    same("late", cut(OTHER, [150]))
    assert in_files == []


def test_a_column_has_more_categories_than_a_byte_counts(made: list[str]) -> None:
    rows = wide_frame()
    some, settings = rows[::2], {"min_category_hessian": 1.0, "max_iter": 4, "progress": False}
    for limit in (None, "64MiB"):
        booster = dboost.fit(rows, "y", eval_set=some, eval_metric="mean_squared_error", memory_limit=limit, **settings)
        assert booster.to_frame()["feature"].eq("code").any()
        expected = np.square(booster.predict(some) - some["y"]).mean()
        assert booster.history["eval_mean_squared_error"].iloc[-1] == pytest.approx(expected)
    assert made == ["eval"]
