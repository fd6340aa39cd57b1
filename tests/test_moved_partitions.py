"""Rows in files when some of a session's partitions move to another session: the rows of the other partitions stay.

Tests with clusters that lose workers are slow; here the same methods are called in this process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pytest

import dboost
from dboost.metrics.named import find_metrics
from dboost.session import evaluation, worker_session
from dboost.session.bites import BiteStore, FileBiteStore
from dboost.session.memory import Budget
from dboost.session.partition_loader import StartingRows
from dboost.session.protocol import BuildSpec
from dboost.shards import shard_spec
from dboost.shards.arcbite_rows import joined_bites
from tests.helpers.fits import NUMERIC, mixed_frame

FRAME, OTHER = mixed_frame(400), mixed_frame(300, seed=1)
OPTIONS: dict[str, Any] = {"features": NUMERIC, "max_iter": 4, "random_state": 1, "progress": False, "memory_limit": "64MiB"}


@pytest.fixture(autouse=True)
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "retained", 0)
    monkeypatch.setattr(Budget, "holds_rows", lambda *_: False)
    monkeypatch.setattr(shard_spec, "BLOCK_ROWS", 64)


def test_bites_keep_the_rows_of_some_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, n_compared = (0, 2), []

    def rows_of(store: BiteStore, bite: int, spec: BuildSpec) -> Any:
        return joined_bites([one.with_current_scores(spec.shard.layout, (), lambda *_: None) for one in store.of(bite)])

    class Compared(FileBiteStore):
        def __init__(self, rows: StartingRows, spec: BuildSpec, root: Path | None, **options: Any) -> None:
            super().__init__(rows, spec, root, **options)
            assert spec.n_bites is not None and spec.starts.keys() == set(range(5))
            moved = FileBiteStore(rows, spec, root, **options)
            moved.keep(range(5), lambda row_ids: spec.are_of(row_ids, range(5)))  # all of them: nothing is written
            moved.keep(kept, lambda row_ids: spec.are_of(row_ids, kept))
            for bite in range(spec.n_bites):
                before, after = rows_of(self, bite, spec), rows_of(moved, bite, spec)
                expected = before.some_rows(np.flatnonzero(spec.are_of(before.row_ids, kept)))
                for name in ("row_ids", "target", "weight", "raw"):
                    np.testing.assert_array_equal(getattr(after, name), getattr(expected, name))
                np.testing.assert_array_equal(after.codes.narrow, expected.codes.narrow)
                assert 0 < after.n_rows < before.n_rows
                n_compared.append(after.n_rows)
            assert moved.n_rows == sum(n_compared)
            moved.close()

    monkeypatch.setattr(worker_session, "FileBiteStore", Compared)
    data = dd.from_pandas(FRAME[[*NUMERIC, "y", "w"]], npartitions=5)
    dboost.fit(data, "y", sample_weight="w", arcbites=dboost.ArcBites(3, 2), **OPTIONS)
    assert len(n_compared) == 3


def test_evaluation_sets_keep_the_rows_of_some_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    stays, opened, values = np.arange(300) % 7 < 4, [], []

    class Noted(evaluation.StreamedEvalSet):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(self)

    def halve(now: dboost.Iteration) -> None:
        if now.iteration == 2:
            some = Noted("some", opened[0]._files.some(stays), *opened_with(opened[0]))
            values.append(some.evaluate(find_metrics("mean_absolute_error", some._loss))["some_mean_absolute_error"])
            some.close()

    def opened_with(one: evaluation.StreamedEvalSet) -> tuple[Any, ...]:
        return one._loss, one._size, one._team

    monkeypatch.setattr(evaluation, "StreamedEvalSet", Noted)
    options = OPTIONS | {"eval_metric": "mean_absolute_error"}
    dboost.fit(FRAME, "y", eval_set=OTHER, callbacks=[halve], **options)
    expected = dboost.fit(FRAME, "y", eval_set=OTHER[stays], **options).history["eval_mean_absolute_error"]
    assert values == [pytest.approx(expected.iloc[1], rel=1e-12)]
