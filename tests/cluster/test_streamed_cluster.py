"""Workers with a memory limit store their rows in files; the model is the same, also when workers die or join."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pytest
from distributed import Client

import dboost
from dboost.cluster.worker import worker_plugin
from dboost.data.sources.paths import open_source
from dboost.session.memory import Budget
from dboost.session.partition_batch import PartitionBatch
from tests.helpers.clusters import (
    Processes,
    a_table,
    held_rows,
    threads_cluster,
    until,
)
from tests.helpers.tune import Tune

FRAME = a_table(3000)
OPTIONS: dict[str, Any] = {"max_iter": 3, "progress": False, "max_leaf_nodes": 8, "features": ["a", "b", "c", "e"]}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster(2) as client:
        yield client


@pytest.fixture
def streaming(tune: Tune) -> None:
    """Stream everything in this process, until the end of the test."""
    tune(resident_rows=0, block_rows=128)


def lazily(n_partitions: int = 5) -> dd.DataFrame:
    return dd.from_pandas(FRAME, npartitions=n_partitions)


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("n_staying", [None, 1])
def test_blocks_that_stay_on_workers(client: Client, streaming: None, tune: Tune, n_staying: int | None) -> None:
    """Blocks for which a worker has memory are read once: here all, or one for each thread."""
    tune(cached_file_bytes=0, **{} if n_staying is None else {"cached_blocks": n_staying})
    settings = OPTIONS | {"sample_weight": "w", "subsample": 0.7}
    booster = dboost.fit(lazily(), "y", client=client, memory_limit="64MiB", **settings)
    assert booster.sha256 == dboost.fit(FRAME, "y", **settings).sha256
    read = booster.history["bytes_read"].iloc[1:]
    assert (read == 0).all() if n_staying is None else (read > 0).all()


def test_rows_that_fit_stay_in_memory(client: Client) -> None:
    booster = dboost.fit(lazily(), "y", client=client, memory_limit="1GiB", **OPTIONS)
    assert booster.sha256 == dboost.fit(FRAME, "y", **OPTIONS).sha256
    assert (booster.history["bytes_read"] == 0).all()


def test_without_a_limit_rows_keep_to_what_dask_lets_workers_have(
    client: Client, streaming: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    """A worker with a memory limit streams its rows; without a limit they stay in memory."""
    expected = dboost.fit(FRAME, "y", **OPTIONS).sha256
    with caplog.at_level("INFO", "dboost"):
        booster = dboost.fit(lazily(), "y", client=client, **OPTIONS)
    assert booster.sha256 == expected
    assert (booster.history["bytes_read"] > 0).all()
    assert "3000 rows do not fit what Dask lets their workers have and are streamed from files" in caplog.text
    for spare in (None, Budget(1000)):  # unlimited; not enough for a tree's histograms, which are allocated nevertheless
        monkeypatch.setattr(worker_plugin, "_spare", lambda worker, spare=spare: spare)
        booster = dboost.fit(lazily(), "y", client=client, **OPTIONS)
        assert booster.sha256 == expected
        assert (booster.history["bytes_read"] == 0).all()
    monkeypatch.undo()
    tune(resident_rows=0)
    booster = dboost.fit(lazily(), "y", client=client, split_proposal="tree", **OPTIONS)
    assert (booster.history["bytes_read"] == 0).all()


def test_what_lies_on_one_worker_moves_with_all_that_belongs_to_it(client: Client, streaming: None) -> None:
    """Target, weight and offset of a partition that moves to another worker move with it, from file to file."""
    frame = FRAME.fillna({"d": 0.0})
    one = min(client.nthreads())
    persisted = client.persist(dd.from_pandas(frame, npartitions=6), workers=[one])
    held: list[int] = []
    for target, options in (("t", {"sample_weight": "w"}), ("y", {"offset": "d"})):
        settings = OPTIONS | {"max_iter": 1} | options
        look = [lambda _: held.append(min(client.run(held_rows).values()))]
        there = dboost.fit(persisted, target, client=client, memory_limit="64MiB", callbacks=look, **settings)
        assert there.sha256 == dboost.fit(frame, target, **settings).sha256
        assert (there.history["bytes_read"] > 0).all()
    assert min(held) > 0


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize(("target", "options"), [("t", {"sample_weight": "w"}), ("y", {"offset": "d"})])
def test_partitions_larger_than_their_share(
    client: Client, streaming: None, monkeypatch: pytest.MonkeyPatch, tune: Tune, target: str, options: dict[str, Any]
) -> None:
    """They are read in slices, also those that move to another worker; a warm start reads slices too."""
    tune(chunk_bytes=4096)
    frame = FRAME.fillna({"d": 0.0})
    one = min(client.nthreads())
    persisted = client.persist(dd.from_pandas(frame, npartitions=6), workers=[one])
    given: list[int] = []
    give = PartitionBatch.give

    def counted(self: PartitionBatch, i: int, number: int) -> Any:
        given.append(number)
        return give(self, i, number)

    monkeypatch.setattr(PartitionBatch, "give", counted)
    settings = OPTIONS | {"max_iter": 1} | options
    old = dboost.fit(frame[:900], target, **settings)
    for start_from in (None, old):
        settings["features"] = OPTIONS["features"] if start_from is None else None
        for data in (persisted, dd.from_pandas(frame, npartitions=2)):
            there = dboost.fit(data, target, start_from=start_from, client=client, memory_limit="64MiB", **settings)
            assert there.sha256 == dboost.fit(frame, target, start_from=start_from, **settings).sha256
            assert there.history["bytes_read"].iloc[-1] > 0
    assert max(given) > 2


@pytest.mark.parametrize("of_file", [True, False], ids=["weights of the file", "weights beside it"])
def test_a_row_group_that_is_decoded_once(client: Client, streaming: None, tune: Tune, tmp_path: Path, of_file: bool) -> None:
    """One task reads all parts of a row group, unless roles come from another collection."""
    tune(chunk_bytes=2**16)
    FRAME.to_parquet(tmp_path / "rows.parquet", index=False)
    parts = open_source(tmp_path, most_bytes=2**16, columns=[*OPTIONS["features"], "y", *(["w"] if of_file else [])])
    n_parts = len(parts.parts)
    assert n_parts > 1 and parts.runs(range(n_parts)) == [[*range(n_parts)]]
    weight = "w" if of_file else dd.from_pandas(FRAME["w"], npartitions=n_parts)
    there = dboost.fit(tmp_path, "y", sample_weight=weight, client=client, memory_limit="64MiB", **OPTIONS)
    assert there.sha256 == dboost.fit(FRAME, "y", sample_weight="w", **OPTIONS).sha256


@pytest.fixture(scope="module")
def dying() -> Iterator[Processes]:
    """Workers that may be killed; each test starts with two."""
    with Processes(2, environment={"DASK_DBOOST__PATIENCE": "20s"}) as processes:
        yield processes


@pytest.mark.slow
def test_blocks_that_stay_are_written_when_a_worker_is_lost(dying: Processes, tune: Tune) -> None:
    """Their memory is needed for the rows of the other one."""
    client, options, held = dying.client, OPTIONS | {"max_iter": 12}, FRAME[:900]
    expected = dboost.fit(FRAME, "z", eval_set=held, **options)
    until(lambda: len(dying.pids()) == 2)  # the one that came in an earlier test, too
    tune(resident_rows=0, retained_bytes=0, block_rows=256, cached_file_bytes=0)
    dboost.fit(lazily(), "z", client=client, memory_limit="64MiB", **OPTIONS | {"max_iter": 1})
    victim = next(iter(dying.pids().values()))

    def replace(now: dboost.Iteration) -> None:
        if now.iteration == 3:
            os.kill(victim, signal.SIGKILL)
        if now.iteration == 7:
            dying.add_worker()
            client.wait_for_workers(2, timeout=60)

    sets = dd.from_pandas(held, npartitions=4)
    booster = dboost.fit(lazily(), "z", eval_set=sets, client=client, memory_limit="64MiB", callbacks=replace, **options)
    assert booster.sha256 == expected.sha256
    assert booster.history["eval_log_loss"].equals(expected.history["eval_log_loss"])
    read = booster.history["bytes_read"]
    assert (read.iloc[:2] == 0).all(), f"blocks have been read again: {read.tolist()}"
    assert read.iloc[4] > 0, f"blocks stay beside the rows of the lost worker: {read.tolist()}"
