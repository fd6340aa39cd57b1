"""The gradients of a loss of groups depend on whole groups of rows, which no division of the rows may cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import losses
from dboost.errors import DataError, ParameterError
from dboost.rows.row_groups import block_sizes, ends_of, ends_of_parts, next_ends
from dboost.tuning import tuned
from tests.helpers import pair_loss
from tests.helpers.clusters import threads_cluster
from tests.helpers.fits import cut

RNG = np.random.default_rng(0)
SIZES = np.append(RNG.integers(1, 25, 90), 1500)  # the last group has more rows than a block of the gradient pass
ENDS = np.cumsum(SIZES)
N = int(ENDS[-1])
FRAME = pd.DataFrame(RNG.normal(size=(N, 3)), columns=list("abc")).assign(
    group=np.repeat(RNG.permutation(len(SIZES)) + 100, SIZES), w=RNG.integers(0, 3, N).astype(float)
)
FRAME["y"] = np.clip(np.round(FRAME["a"] + FRAME["b"] + RNG.normal(size=N)), 0, 4)
#: Numbers of whole groups after which the table is divided.
DIVISIONS = [[1], [90], [5, 5, 70], [*range(1, 91, 6)]]
OPTIONS: dict[str, dict[str, Any]] = {"all rows": {}, "whole groups drawn, weights": {"subsample": 0.5, "sample_weight": "w"}}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    before = losses.BUILT_IN
    pair_loss.register()
    yield
    losses.BUILT_IN = before


def fit(data: Any = FRAME, **options: Any) -> dboost.Booster:
    options = {"features": list("abc"), "loss": "pairs", "max_iter": 6, "max_leaf_nodes": 7, "random_state": 3} | options
    return dboost.fit(data, "y", group="group", progress=False, **options)


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    pair_loss.register()
    return {name: fit(n_threads=1, **options).sha256 for name, options in OPTIONS.items()}


def test_the_training_loss_is_that_of_pairs() -> None:
    booster = fit(max_iter=8)
    y, group = FRAME["y"].to_numpy(), FRAME["group"].to_numpy()
    after = [pair_loss.mean_loss(y, np.asarray(raw), group) for raw in booster.staged_predict(FRAME)]
    assert booster.history["train_loss"].to_numpy() == pytest.approx(after, rel=1e-9)
    assert after[-1] < 0.9 * pair_loss.mean_loss(y, np.zeros(N), group)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_threads_and_files_do_not_cut_groups(expected: dict[str, str], name: str, n_threads: int, is_streamed: bool) -> None:
    limit = {"resident_rows": 0, "block_rows": 64, "chunk_bytes": 3000} if is_streamed else {"small_cells": 1}
    with tuned(**limit):
        booster = fit(n_threads=n_threads, memory_limit="64MiB" if is_streamed else None, **OPTIONS[name])
    assert booster.sha256 == expected[name]
    assert ("bytes_read" in booster.history and booster.history["bytes_read"].max() > 0) == is_streamed


@pytest.mark.parametrize("is_streamed", [False, True])
def test_workers_do_not_cut_groups(expected: dict[str, str], is_streamed: bool) -> None:
    limit = {"resident_rows": 0, "block_rows": 64} if is_streamed else {}
    with threads_cluster(2, 2) as client, tuned(**limit):
        for groups in DIVISIONS[-1:] if is_streamed else DIVISIONS:
            data = cut(FRAME, ENDS[np.array(groups) - 1].tolist())
            for name, options in OPTIONS.items():
                options = options | {"client": client, "memory_limit": "64MiB" if is_streamed else None}
                booster = fit(data, **options)
                assert booster.sha256 == expected[name], (groups, name)
                assert set(booster.history["workers"]) == {2}


def test_groups_that_sessions_of_a_host_hand_over(expected: dict[str, str]) -> None:
    settings = {"dboost.session-per-host": True}
    with dask.config.set(settings), tuned(hand_over_bytes=1000), threads_cluster(2, 1) as client:
        booster = fit(cut(FRAME, ENDS[[20, 50, 70]].tolist()), client=client)
    assert booster.sha256 == expected["all rows"] and set(booster.history["workers"]) == {1}


SHUFFLED = FRAME.sample(frac=1.0, random_state=0, ignore_index=True)
CUT = int(ENDS[-2] + 7)  # in the last group


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (cut(FRAME, [int(ENDS[9]), CUT]), {}, DataError, f"group {FRAME['group'][CUT]} has some from row "
         f"{ENDS[-2] - ENDS[9]} of partition 1 on and others from row 0 of partition 2 on .1 such groups in all"),
        (SHUFFLED, {}, DataError, "needs the rows of a group one after the other.* from row [0-9]+ on and others from row"),
        (FRAME, {"group": None}, DataError, "loss='pairs' compares the rows of a group, but the rows have none: give group="),
        (FRAME, {"eval_set": FRAME}, ParameterError, "does not go together with evaluation sets"),
        (FRAME, {"arcbites": True}, ParameterError, "does not go together with arcbites"),
        (FRAME, {"offset": "w"}, ParameterError, "does not go together with an offset"),
        (FRAME, {"step": "line_search"}, ParameterError, "does not go together with step='line_search'"),
        (FRAME, {"influence_trimming": 0.1}, ParameterError, "influence_trimming"),
    ],
)  # fmt: skip
def test_what_is_refused(data: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dboost.fit(data, "y", **{"group": "group", "features": list("abc"), "loss": "pairs", "max_iter": 1} | options)


def test_a_model_is_not_continued() -> None:
    booster = fit(max_iter=1)
    for again in (lambda: fit(start_from=booster), lambda: booster.refit_leaves(FRAME, "y")):
        with pytest.raises(ParameterError, match="depends on"):
            again()


@pytest.mark.parametrize("most_rows", [1, 3, 4, 100])
def test_ends_of_groups(most_rows: int) -> None:
    keys = np.array([5, 5, 5, 2, 9, 9, 9, 9, 9, 1])
    ends = ends_of(keys)
    assert ends.tolist() == [3, 4, 9, 10]
    for parts in ([3], [1, 2, 6], [0, 10, 10], [*range(11)]):
        assert ends_of_parts(keys[a:b] for a, b in pairwise([0, *parts, 10])).tolist() == ends.tolist()
    assert next_ends(ends, np.array([0, 1, 3, 5, 9, 10])).tolist() == [0, 3, 3, 9, 9, 10]
    sizes = block_sizes(ends, most_rows)
    assert set(np.cumsum(sizes).tolist()) <= set(ends.tolist()) and sum(sizes) == 10
    assert {1: (3, 1, 5, 1), 3: (3, 1, 5, 1), 4: (4, 5, 1), 100: (10,)}[most_rows] == sizes
