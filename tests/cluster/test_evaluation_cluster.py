"""Evaluation sets that are large beside the workers' memory limit are stored in files there, with the results of memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pytest
from distributed import Client

import dboost
from dboost.cluster.worker import worker_plugin
from tests.helpers.clusters import threads_cluster
from tests.helpers.fits import NUMERIC, cut, mixed_frame
from tests.helpers.tune import Tune

FEATURES = [*NUMERIC, "town"]
FRAME, OTHER = mixed_frame(400), mixed_frame(300, seed=1)
OPTIONS: dict[str, Any] = {"features": FEATURES, "max_iter": 3, "random_state": 1, "progress": False, "min_samples_leaf": 5}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster(2) as client:
        yield client


@pytest.fixture
def filing(client: Client, tune: Tune, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Evaluation sets go to files with short blocks. Asserts that the log mentions the files."""
    tune(retained_bytes=0, block_rows=64)
    caplog.set_level(logging.INFO, "dboost")
    yield
    assert any("rows of evaluation set" in record.getMessage() for record in caplog.get_records("call"))


def in_files(dask_worker: Any = None) -> int:
    """For `Client.run`: how many evaluation rows a worker has in files, in all its fits."""
    holdings = dask_worker.plugins["dboost"]._sessions.values()
    batches = [(holding, batch) for holding in holdings for batch in {*holding._built, *holding.loading.names}]
    return sum(holding.eval_sets.in_files(batch=batch) for holding, batch in batches)


def same(client: Client, target: str, sets: Any, n_filed: int, data: Any = None, **options: Any) -> dboost.Booster:
    """Train in memory, and with a limit on the cluster; assert that the models and the metrics of the sets are equal."""
    settings = OPTIONS | options
    here = dboost.fit(FRAME, target, eval_set=sets, **settings)
    counts: list[int] = []
    there = dboost.fit(
        cut(FRAME, [150, 150]),
        target,
        eval_set=sets,
        client=client,
        memory_limit="64MiB",
        callbacks=lambda now: counts.append(sum(client.run(in_files).values())),
        **settings,
    )
    assert there.sha256 == here.sha256
    kept = [column for column in here.history if not column.startswith("seconds") and column != "bytes_read"]
    pd.testing.assert_frame_equal(there.history[kept], here.history[kept], check_exact=True)
    assert set(counts) == {n_filed}
    return there


def test_without_a_limit_it_is_dasks(client: Client, filing: None) -> None:
    here = dboost.fit(FRAME, "late", eval_set=OTHER, **OPTIONS)
    counts: list[int] = []
    count = [lambda now: counts.append(sum(client.run(in_files).values()))]
    lazy = cut(FRAME, [200]), cut(OTHER, [100])
    there = dboost.fit(lazy[0], "late", eval_set=lazy[1], client=client, callbacks=count, **OPTIONS)
    assert there.sha256 == here.sha256
    assert set(counts) == {300}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_plugin, "_spare", lambda worker: None)
        dboost.fit(lazy[0], "late", eval_set=lazy[1], client=client, callbacks=count, **OPTIONS)
    assert counts[-1] == 0


def test_sets_share_the_room_that_there_is_in_memory(client: Client, tune: Tune) -> None:
    """A worker has memory for about a set and a half of them: the second one goes to files."""
    row_bytes = len(FEATURES) + 32
    tune(retained_bytes=160 * row_bytes, block_rows=64)
    lazy = dd.from_pandas(OTHER[:200], npartitions=2)
    same(client, "late", {"first": lazy, "second": lazy}, 200)


def test_a_metric_that_is_undefined_stops_no_fit_on_workers(client: Client) -> None:
    sets, options = OTHER[OTHER["late"] == OTHER["late"].max()], OPTIONS | {"loss": "log_loss", "max_iter": 5}
    for how in ({}, {"memory_limit": "64MiB"}):
        with pytest.warns(UserWarning, match="metric 'auc' of evaluation set 'eval' is nan in iteration 1") as caught:
            found = dboost.fit(
                cut(FRAME, [150, 150]), "late", eval_set=sets, eval_metric="auc", early_stopping_rounds=1, client=client,
                **options, **how,
            )  # fmt: skip
        assert sum("early stopping" in str(one.message) for one in caught) == 1
        assert found.n_iter_ == found.best_iteration == 5
