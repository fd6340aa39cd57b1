"""Validation rows and class weights of estimators on a cluster equal those of one process, however the rows are stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost import DBoostClassifier, DBoostRegressor
from dboost.data import open_table
from dboost.session.fit_records import RowIdRanges
from dboost.session.row_assignment import class_counts
from dboost.session.table_rows import TableRows
from dboost.tuning import tuned
from tests.helpers.clusters import a_table, threads_cluster
from tests.helpers.examples import examples
from tests.helpers.fits import cut
from tests.helpers.tune import Tune

FRAME = a_table(700)
COLUMNS = ["a", "b", "e"]
KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "y": (DBoostRegressor, {}),
    "z": (DBoostClassifier, {}),
    "t": (DBoostClassifier, {"class_weight": "balanced"}),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster(3, 1) as client:
        yield client


@given(
    target=st.sampled_from(list(KINDS)),
    cuts=st.lists(st.integers(0, 700), max_size=6),
    weighted=st.booleans(),
    size=st.sampled_from([0.1, 0.37, 50, None]),
    seed=st.integers(0, 2**32 - 1),
    streams=st.booleans(),
)
@examples(8)
def test_however_the_rows_are_cut(
    client: Client, target: str, cuts: list[int], weighted: bool, size: Any, seed: int, streams: bool
) -> None:
    """In memory and in files, in one process and on workers; some partitions are empty or have no row of positive weight."""
    kind, options = KINDS[target]
    frame = FRAME.copy()
    frame.loc[frame.index < 60, "w"] = 0.0
    options = options | {"max_iter": 3, "early_stopping": True, "validation_fraction": size, "random_state": seed, "tol": 0.01}
    given_weight = {"sample_weight": frame["w"]} if weighted else {}
    alone = kind(**options).fit(frame[COLUMNS], frame[target], **given_weight)
    lazy = cut(frame, cuts)
    if weighted:
        given_weight = {"sample_weight": lazy["w"]}
    if streams:
        options["memory_limit"] = "64MiB"
    with tuned(resident_rows=0, retained_bytes=0, block_rows=128) if streams else nullcontext():
        together = kind(client=client, **options).fit(lazy[COLUMNS], lazy[target], **given_weight)
        with dask.config.set(scheduler="synchronous"):
            in_files = kind(**options).fit(lazy[COLUMNS], lazy[target], **given_weight)
    for model in (together, in_files):
        assert model.booster_.sha256 == alone.booster_.sha256
        assert np.array_equal(model.train_score_, alone.train_score_)
        assert np.array_equal(model.validation_score_, alone.validation_score_)
    assert bool(streams and (together.booster_.history["bytes_read"] > 0).all()) is streams


def test_a_partition_with_another_number_of_rows_is_named() -> None:
    with open_table(cut(FRAME, [300]), "y", sample_weight="w") as table:
        n_kept = [int((FRAME["w"][:300] > 0).sum()), int((FRAME["w"][300:] > 0).sum()) + 1]
        rows = TableRows(table, 1, table)
        rows.set_row_ids(RowIdRanges.of(dict(enumerate(n_kept))))
        with pytest.raises(dboost.DataError, match=rf"partition 1 has {n_kept[1] - 1} rows .* but had {n_kept[1]} when"):
            class_counts(rows, None)


def test_later_data_may_lack_classes_also_with_a_memory_limit(tune: Tune) -> None:
    """The classes of held-out rows in files must have the same numbers as the model's classes."""
    some = FRAME[FRAME["t"] != "low"]
    options: dict[str, Any] = {"max_iter": 3, "early_stopping": True, "random_state": 0}
    expected = DBoostClassifier(**options).fit(FRAME[COLUMNS], FRAME["t"]).partial_fit(some[COLUMNS], some["t"])
    tune(resident_rows=0)
    streamed = DBoostClassifier(memory_limit="64MiB", **options).fit(FRAME[COLUMNS], FRAME["t"])
    streamed.partial_fit(some[COLUMNS], some["t"])
    assert streamed.booster_.sha256 == expected.booster_.sha256
    assert np.array_equal(streamed.validation_score_, expected.validation_score_)
