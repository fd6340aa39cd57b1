"""The record of sizes and counts: who sees a change, and until when."""

from __future__ import annotations

import dask.dataframe as dd
import pytest

import dboost
from dboost.tuning import Tuning, tuned, tuning
from tests.helpers.clusters import Processes, a_table


def test_a_change_ends_with_its_context() -> None:
    with tuned(block_rows=1), pytest.raises(RuntimeError, match="inside"), tuned(wave_bytes=2):
        assert tuning() == Tuning(block_rows=1, wave_bytes=2)
        raise RuntimeError("inside")
    assert tuning() == Tuning()
    with pytest.raises(TypeError, match="no_such_size"), tuned(no_such_size=1):
        pass


def test_workers_in_processes_use_the_record_of_the_client() -> None:
    """For each fit that of its client: the second fit streams rows, the third one does not."""
    table = dd.from_pandas(a_table(400)[["b", "y"]], npartitions=4)
    with Processes(2) as cluster:
        streamed = []
        for most_rows in (400, 0, 400):
            with tuned(resident_rows=most_rows):
                booster = dboost.fit(table, "y", client=cluster.client, memory_limit="64MiB", max_iter=2, progress=False)
            streamed.append(bool((booster.history["bytes_read"] > 0).all()))
    assert streamed == [False, True, False]
