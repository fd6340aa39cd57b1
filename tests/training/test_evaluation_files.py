"""Evaluation sets that are large beside a memory limit are stored in files, with the results of sets in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from benchmarks.fixed_fits import wide_frame
from dboost.metrics import Metric
from tests.helpers.fits import NUMERIC, cut, mixed_frame, saved
from tests.helpers.tune import Tune

FEATURES = [*NUMERIC, "town"]
FRAME, OTHER = mixed_frame(400), mixed_frame(300, seed=1)

STREAMED = "rows of evaluation set 'eval' exceed the memory limit and are streamed from files"


@pytest.fixture
def in_files(caplog: pytest.LogCaptureFixture, tune: Tune) -> Iterator[None]:
    """Evaluation sets go to files, blocks are short."""
    tune(retained_bytes=0, block_rows=64)
    caplog.set_level("INFO", "dboost")
    yield
    said = [record.getMessage() for record in caplog.get_records("call")]
    assert said.count(STREAMED) == 1


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
def test_rows_that_a_metric_keeps_are_not_overwritten(in_files: None, target: str, weight: str | None, n_threads: int) -> None:
    filed = same(target, OTHER, sample_weight=weight, eval_metric=[gap_of_rows, KEPT], n_threads=n_threads)
    if target == "y":
        counted = OTHER if weight is None else OTHER[OTHER["w"] > 0]
        expected = math.fsum([*counted["y"], *filed.predict(counted)])
        assert filed.history["eval_kept"].iloc[-1] == pytest.approx(expected, rel=1e-12)


def test_small_sets_stay_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dboost")
    same("late", cut(OTHER, [150]))
    assert STREAMED not in caplog.messages


def test_a_column_has_more_categories_than_a_byte_counts(in_files: None) -> None:
    rows = wide_frame()
    some, settings = rows[::2], {"min_category_hessian": 1.0, "max_iter": 4, "progress": False}
    for limit in (None, "64MiB"):
        booster = dboost.fit(rows, "y", eval_set=some, eval_metric="mean_squared_error", memory_limit=limit, **settings)
        assert booster.to_frame()["feature"].eq("code").any()
        expected = np.square(booster.predict(some) - some["y"]).mean()
        assert booster.history["eval_mean_squared_error"].iloc[-1] == pytest.approx(expected)
