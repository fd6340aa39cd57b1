"""Data sets on the workers of a cluster: fits on them are fits on their source, whatever happens to the workers."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dboost
from dboost import DataError, InputTypeError, ParameterError
from dboost.rows.block_file import StorageError
from tests.helpers.clusters import ROOT, Processes, a_table, at, held_fits, threads_cluster, until, wait_for_file
from tests.helpers.fits import FEATURES, NUMERIC, cut, mixed_frame
from tests.helpers.forged import Parts
from tests.helpers.object_store import served
from tests.helpers.tune import Tune

FRAME = mixed_frame(900)
#: So small that rows are streamed.
LIMIT = 64 * 10**6
OPTIONS: dict[str, Any] = {"max_iter": 6, "max_leaf_nodes": 8, "progress": False}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster() as found:
        yield found


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(2) as found:
        found.client.run(lambda: __import__("dboost.cluster.worker.worker_plugin"))
        yield found


def test_checkpoints_and_continued_models(client: Client, tmp_path: Path) -> None:
    test = mixed_frame(300, seed=1)
    with dboost.prepare(cut(FRAME, [300, 500]), "y", client=client, features=FEATURES) as data:
        expected = dboost.fit(FRAME, "y", features=FEATURES, **OPTIONS)
        found = dboost.fit(data, memory_limit="100MiB", checkpoint=str(tmp_path / "kept"), **OPTIONS)
        assert found.sha256 == expected.sha256
        first = dboost.fit(data, **OPTIONS)
        longer = dboost.fit(data, start_from=first, continue_steps="full", **OPTIONS)
        expected = dboost.fit(FRAME, "y", start_from=first, continue_steps="full", continue_bins="kept", **OPTIONS)
        np.testing.assert_array_equal(longer.predict(FRAME), expected.predict(FRAME))
        other = dboost.fit(test, "y", features=FEATURES, **OPTIONS)
        with pytest.raises(ParameterError, match="where the data set has no edge of a bin"):
            dboost.fit(data, start_from=other, **OPTIONS)


@pytest.mark.slow
def test_a_continued_cross_validation(client: Client) -> None:
    expected = dboost.cv(FRAME, "late", folds=3, features=FEATURES, **OPTIONS)
    with dboost.prepare(cut(FRAME, [300, 500]), "late", client=client, features=FEATURES) as data:
        first = dboost.cv(data, folds=3, **OPTIONS | {"max_iter": 2})
        found = dboost.cv(data, start_from=first, **OPTIONS | {"max_iter": 4})
    assert [one.sha256 for one in found.boosters] == [one.sha256 for one in expected.boosters]
    np.testing.assert_array_equal(found.predictions, expected.predictions)
    pd.testing.assert_frame_equal(found.scores, expected.scores, check_exact=True)


def test_estimators_and_leaf_refits(client: Client) -> None:
    rows = FRAME[[*FEATURES, "late"]]
    X, y = rows[FEATURES], rows["late"]
    options: dict[str, Any] = {"max_iter": 6, "random_state": 0, "early_stopping": True, "n_iter_no_change": 3}
    expected = dboost.DBoostClassifier(max_iter=6, early_stopping=False, random_state=0).fit(X, y)
    scores = []
    for of in ({}, {"client": client}):
        with dboost.prepare(rows, "late", **of) as data:
            found = dboost.DBoostClassifier(max_iter=6, early_stopping=False, random_state=0).fit(data)
            np.testing.assert_array_equal(found.predict_proba(X), expected.predict_proba(X))
            # Rows that are held out have taken part in the proposal of the data set's bins.
            scores.append(dboost.DBoostClassifier(**options).fit(data).validation_score_.tolist())
            assert scores[0] == scores[-1] and len(scores[0]) > 3
            assert list(found.feature_names_in_) == FEATURES and found.n_features_in_ == 7
            with pytest.raises(ParameterError, match="y belongs to"):
                dboost.DBoostClassifier().fit(data, y)
            with pytest.raises(ParameterError, match="max_bins=9 does not fit"):
                dboost.DBoostClassifier(max_bins=9).fit(data)
            with pytest.raises(ParameterError, match="features belongs to"):
                dboost.DBoostClassifier(features=["x"]).fit(data)
    with dboost.prepare(cut(rows, [300]), "late", client=client) as data:
        model = dboost.fit(data, loss="log_loss", **OPTIONS)
        refitted = model.refit_leaves(data)
        again = model.refit_leaves(rows, "late")
        np.testing.assert_array_equal(refitted.predict_proba(X), again.predict_proba(X))
        other = dboost.fit(mixed_frame(200, seed=5)[[*FEATURES, "late"]], "late", **OPTIONS)
        with pytest.raises(ParameterError, match=r"no edge of a bin|is not the same"):
            other.refit_leaves(data)


def test_what_does_not_fit(client: Client, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").touch()
    with pytest.raises(DataError, match="is there already and holds no prepared data"):
        dboost.prepare(FRAME, "y", tmp_path / "folder", client=client)
    with pytest.raises(ParameterError, match="start_from is for data sets of one process"):
        old = dboost.fit(FRAME, "y", features=FEATURES, **OPTIONS)
        dboost.prepare(FRAME, "y", client=client, start_from=old, continue_bins="kept")
    with pytest.raises(ParameterError, match="publish needs a cluster"):
        dboost.prepare(FRAME, "y", publish="rows")
    with pytest.raises(DataError, match=r"partition 1: column 'x' holds an infinite value \(row 3\)"):
        rows = FRAME.copy()
        rows.loc[403, "x"] = np.inf
        dboost.prepare(cut(rows, [400]), "y", client=client)
    with pytest.raises(DataError, match="no column 'nothing'"):
        dboost.prepare(cut(FRAME, [400]), "nothing", client=client)
    data = dboost.prepare(cut(FRAME, [400]), "y", client=client, features=FEATURES)
    with pytest.raises(ParameterError, match="max_bins=7 does not fit the data"):
        dboost.fit(data, max_bins=7)
    with pytest.raises(ParameterError, match="target='late' does not fit the data"):
        dboost.fit(data, "late")
    with pytest.raises(ParameterError, match="leave client and workers out"):
        dboost.fit(data, workers=["one"])
    with pytest.raises(ParameterError, match="split_proposal"):
        dboost.fit(data, split_proposal="exact")
    assert dboost.cv(data, client=client, folds=2, **OPTIONS).scores.equals(dboost.cv(data, folds=2, **OPTIONS).scores)
    with pytest.raises(InputTypeError, match="has no folder"):
        os.fspath(data)
    with pytest.raises(TypeError, match="publish="):
        pickle.dumps(data)
    data.close()
    data.close()
    with pytest.raises(InputTypeError, match="closed"):
        dboost.fit(data)
    assert "closed" in repr(data)


def test_a_data_set_of_a_continued_model_stays_in_this_process(client: Client, tmp_path: Path) -> None:
    rows = FRAME[[*FEATURES, "y"]]
    rows.to_parquet(tmp_path / "rows.parquet")
    first = dboost.fit(rows, "y", **OPTIONS)
    kept: dict[str, Any] = {"start_from": first, "continue_bins": "kept"}
    expected = dboost.fit(rows, "y", **kept, **OPTIONS)
    with client.as_current():
        for data in (str(tmp_path / "rows.parquet"), cut(rows, [400])):
            with dboost.prepare(data, "y", **kept) as found:
                assert not found.is_on_cluster
                longer = dboost.fit(found, **kept, **OPTIONS)
                np.testing.assert_array_equal(longer.predict(FRAME), expected.predict(FRAME))


def test_rows_on_another_cluster(client: Client, tmp_path: Path) -> None:
    expected = dboost.cv(FRAME, "y", folds=2, features=FEATURES, **OPTIONS)
    seen: list[int] = []
    with threads_cluster(1, 1) as other:

        def look(_: Any) -> None:
            seen.append(max(other.run(held_fits).values()))

        with dboost.prepare(cut(FRAME, [400]), "y", client=client, features=FEATURES) as data:
            model = dboost.fit(data, client=client, **OPTIONS)
            for call in (dboost.fit, model.refit_leaves, dboost.cv):
                with pytest.raises(ParameterError, match=r"data set is on .*, and client is of another cluster: leave"):
                    call(data, client=other)
        # Rows in files are read by the workers of the cluster that is given.
        with dboost.prepare(cut(FRAME, [400]), "y", tmp_path / "rows", client=client, features=FEATURES) as data:
            found = dboost.cv(data, folds=2, client=other, callbacks=[look], **OPTIONS)
            assert seen == [2] * 6 and set(client.run(held_fits).values()) == {0}
            assert dboost.fit(data, client=other, callbacks=[look], **OPTIONS) == model
            assert seen[6:] == [1] * 6
    assert [one.sha256 for one in found.boosters] == [one.sha256 for one in expected.boosters]


@pytest.mark.slow
def test_a_data_set_in_files_of_the_workers(client: Client, tmp_path: Path) -> None:
    target, root = "grade", "s3://lake/data"
    with served(tmp_path):
        expected = dboost.fit(FRAME, target, features=FEATURES, sample_weight="w", **OPTIONS)
        made = dboost.prepare(cut(FRAME, [300, 300, 600]), target, root, client=client, features=FEATURES, sample_weight="w")
        assert dboost.fit(made, **OPTIONS).sha256 == expected.sha256
        made.close()
        again = dboost.Dataset(root)
        assert not again.is_on_cluster and again.n_rows == made.n_rows and again.target == target and root in repr(again)
        for how in ({}, {"memory_limit": LIMIT}, {"client": client}):
            assert dboost.fit(again, **OPTIONS, **how).sha256 == expected.sha256, how
        one, other = (dboost.cv(again, folds=3, client=of, **OPTIONS) for of in (None, client))
        assert [booster.sha256 for booster in one.boosters] == [booster.sha256 for booster in other.boosters]
        assert pickle.loads(pickle.dumps(again)).n_rows == made.n_rows
        again.close()
        # It is replaced as a whole, and the old files are removed.
        files = names_in(root)
        assert len([name for name in files if name.startswith("part-")]) == 4
        dboost.prepare(cut(FRAME, [500]), "y", root, client=client, features=["x"]).close()
        assert len(names_in(root)) == 4 and len(set(names_in(root)) & set(files)) == 1
        assert dboost.fit(dboost.Dataset(root), **OPTIONS) == dboost.fit(FRAME, "y", features=["x"], **OPTIONS)


def test_a_loss_for_other_targets_is_refused_by_the_rows(client: Client, tmp_path: Path) -> None:
    """The reference sample has targets, too: it was said to be damaged."""
    rows = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0) - 3})
    for root in (None, tmp_path / "data"):
        with dboost.prepare(cut(rows, [8]), "y", root, client=client) as data:
            for of in (data, data if root is None else dboost.Dataset(root)):
                with pytest.raises(dboost.DataError, match=r"poisson.*the target is -3 in row 0 of partition 0$"):
                    dboost.fit(of, loss="poisson", client=client, **OPTIONS)


def names_in(root: str) -> list[str]:
    filesystem, folder = fsspec.url_to_fs(root)
    filesystem.invalidate_cache()
    return sorted(name.rpartition("/")[2] for name in filesystem.find(folder))


def test_damaged_parts_are_named_by_workers(client: Client, tmp_path: Path) -> None:
    root = tmp_path / "data"
    dboost.prepare(cut(FRAME, [400]), "y", root, client=client, features=FEATURES).close()
    part = sorted(root.glob("part-*"))[1]
    forged = Parts(root)
    forged.change(1, lambda table: table.slice(1))
    forged.write()
    promised = f"{part.name} is damaged: it has {FRAME.shape[0] - 401} rows, but {FRAME.shape[0] - 400} were promised"
    for how in ({}, {"client": client}):  # on workers, which read the parts, it is the same error
        with pytest.raises(dboost.DBoostError, match=promised):
            dboost.fit(dboost.Dataset(root), **OPTIONS, **how)
    part.unlink()
    with pytest.raises(StorageError, match=f"the file {part.name} is missing"):
        dboost.fit(dboost.Dataset(root), **OPTIONS)


def test_the_source_is_read_once(client: Client, tmp_path: Path) -> None:
    def read(i: int) -> pd.DataFrame:
        (tmp_path / f"{i}-{time.monotonic_ns()}").touch()
        return FRAME.iloc[i * 300 : i * 300 + 300]

    lazy = dd.from_map(read, range(3), meta=FRAME.iloc[:0])
    with dboost.prepare(lazy, "y", client=client, features=FEATURES) as data:
        dboost.cv(data, folds=3, **OPTIONS)
        dboost.fit(data, **OPTIONS)
    assert sorted(name.name[0] for name in tmp_path.iterdir()) == ["0", "1", "2"]


def keys_of(dask_worker: Any = None) -> list[str]:
    """For `Client.run`: the keys of the data that Dask holds on a worker."""
    return [str(key) for key in dask_worker.data]


def test_nothing_is_left_when_a_data_set_is_closed(client: Client) -> None:
    def keys() -> list[str]:
        found = {key for of_worker in client.run(keys_of).values() for key in of_worker if "dboost" in key}
        return sorted(found - before)

    before: set[str] = set()
    before = set(keys())
    data = dboost.prepare(cut(FRAME, [300, 600]), "y", client=client, features=FEATURES)
    until(lambda: len([key for key in keys() if "binned" in key]) == 3)
    until(lambda: not [key for key in keys() if "dboost-rows" in key])
    dboost.fit(data, **OPTIONS)
    data.close()
    until(lambda: not keys())


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("change", ["values", "target", "rows", "nothing"])
@pytest.mark.parametrize("how", ["a column", "an array", "slices"])
def test_a_source_that_has_changed_when_a_worker_is_lost_is_named(tune: Tune, tmp_path: Path, change: str, how: str) -> None:
    frame = mixed_frame(90)[[*FEATURES, "y", "w"]]

    def write(rows: pd.DataFrame) -> None:
        for i in range(3):
            rows.iloc[i * len(rows) // 3 : (i + 1) * len(rows) // 3].to_parquet(tmp_path / f"{i}.parquet")

    write(frame)
    options: dict[str, Any] = {"sample_weight": "w"} if how == "a column" else {"sample_weight": np.array(frame["w"])}
    if how == "slices":
        tune(chunk_bytes=8 * 15 * len(FEATURES))  # two slices of each partition
        options["memory_limit"] = "1GiB"
    else:
        options["memory_limit"] = None
    features = {"features": FEATURES}
    with threads_cluster(2, 1) as own:
        expected = dboost.fit(frame, "y", **OPTIONS, **options, **features).sha256
        lazy = dd.from_map(pd.read_parquet, [tmp_path / f"{i}.parquet" for i in range(3)])  # dboost compares paths itself
        with dboost.prepare(lazy, "y", client=own, **options, **features) as data:
            assert dboost.fit(data, **OPTIONS).sha256 == expected
            column = "y" if change == "target" else NUMERIC[0]
            changed = {"rows": frame.iloc[:80], "nothing": frame}.get(
                change, frame.assign(**{column: np.roll(frame[column], 1)})
            )
            write(changed)

            async def lose_one(dask_scheduler: Any) -> None:
                workers = {worker.address for task in dask_scheduler.tasks.values() for worker in task.who_has or ()}
                await dask_scheduler.remove_worker(min(workers), stimulus_id="a test", expected=True)

            own.run_on_scheduler(lose_one)
            if change == "nothing":
                assert dboost.fit(data, **OPTIONS).sha256 == expected
                return
            gave = r"\d+ rows where it had 30" if change == "rows" else "other values"
            with pytest.raises(DataError, match=rf"partition \d: it was read again because workers have left, and gave {gave}"):
                dboost.fit(data, **OPTIONS)
            with pytest.raises(DataError, match="prepare the data set again"):
                dboost.cv(data, folds=2, **OPTIONS)


def test_several_fits_at_once_and_one_that_is_given_up(client: Client) -> None:
    class Pruned(Exception):
        pass

    def prune(now: dboost.Iteration) -> None:
        if now.iteration == 3:
            raise Pruned

    with dboost.prepare(cut(FRAME, [200, 450, 700]), "y", client=client, features=FEATURES) as data:
        rates = [0.05, 0.1, 0.2, 0.3, 0.5]
        with ThreadPoolExecutor(6) as pool:
            given_up = pool.submit(dboost.fit, data, callbacks=[prune], **OPTIONS | {"max_iter": 10**6})
            found = list(pool.map(lambda rate: dboost.fit(data, learning_rate=rate, **OPTIONS).sha256, rates))
            with pytest.raises(Pruned):
                given_up.result()
        began = time.monotonic()
        until(lambda: set(client.run(held_fits).values()) == {0})
        assert time.monotonic() - began < 60
    assert found == [dboost.fit(FRAME, "y", features=FEATURES, learning_rate=rate, **OPTIONS).sha256 for rate in rates]


def kill_one(processes: Processes) -> None:
    """Kill a worker, and start another one when the scheduler has noticed."""
    n_workers = len(processes.addresses())
    os.kill(processes.any_pid(), signal.SIGKILL)
    until(lambda: len(processes.addresses()) < n_workers)
    processes.ensure_workers(n_workers)


LONG: dict[str, Any] = {"max_iter": 25, "max_leaf_nodes": 8, "progress": False}
ROWS = a_table(4000)[["a", "b", "c", "e", "z"]]


@pytest.mark.slow
def test_a_killed_worker_before_and_during_a_cross_validation(processes: Processes) -> None:
    processes.ensure_workers(2)
    expected = dboost.cv(ROWS, "z", folds=4, eval_metric="auc", **LONG)
    with dboost.prepare(dd.from_pandas(ROWS, npartitions=6, sort=False), "z", client=processes.client) as data:
        kill_one(processes)
        kill = at(7, lambda: kill_one(processes))
        found = dboost.cv(data, folds=4, eval_metric="auc", callbacks=[kill], **LONG)
    assert [one.sha256 for one in found.boosters] == [one.sha256 for one in expected.boosters]
    np.testing.assert_array_equal(found.predictions, expected.predictions)


@pytest.mark.slow
def test_tasks_on_partitions_end_when_the_chosen_workers_have_left(processes: Processes, tmp_path: Path) -> None:
    processes.ensure_workers(2)
    chosen, pid = next(iter(processes.pids().items()))
    rows = dd.from_pandas(ROWS, npartitions=2, sort=False)
    with dboost.prepare(rows, "z", client=processes.client, workers=[chosen]) as data:
        cluster: Any = data._rows()
        never = tmp_path / "never"
        with ThreadPoolExecutor(1) as pool, dask.config.set({"dboost.patience": "2s"}):
            tasks = pool.submit(cluster._map, partial(wait_for_file, never), [(), ()])
            try:
                until(lambda: tasks.done() or never.with_suffix(".begun").exists())
                assert not tasks.done(), tasks.result()
                os.kill(pid, signal.SIGKILL)
                with pytest.raises(dboost.DBoostError, match="workers that may compute the partitions of a data set have left"):
                    tasks.result(timeout=60)
            finally:  # so that the pool ends also if the tasks do not
                never.touch()
                if not tasks.done():
                    processes.client.close()
    processes.ensure_workers(2)


PUBLISHED = """
import sys, dask.dataframe as dd, dboost
from distributed import Client
from tests.helpers.clusters import a_table
rows = a_table(4000)[["a", "b", "c", "e", "z"]]
client = Client(sys.argv[1])
print(dboost.prepare(dd.from_pandas(rows, npartitions=4, sort=False), "z", client=client, publish="rows"))
"""


@pytest.mark.slow
def test_a_published_data_set_outlives_its_client(processes: Processes) -> None:
    processes.ensure_workers(2)
    done = subprocess.run(
        [sys.executable, "-c", PUBLISHED, processes.address], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0 and "as 'rows'" in done.stdout, done.stderr
    with pytest.raises(ParameterError, match="data set of that name"):
        dboost.prepare(ROWS, "z", client=processes.client, publish="rows")
    with pytest.raises(InputTypeError, match="no data set 'lines': there are 'rows'"):
        dboost.Dataset.published("lines", processes.client)
    data = dboost.Dataset.published("rows", processes.client)
    assert data.target == "z" and data.n_rows == 4000
    kill_one(processes)
    assert dboost.fit(data, **LONG).sha256 == dboost.fit(ROWS, "z", **LONG).sha256
    data.close()
    again = dboost.Dataset.published("rows", processes.client)
    assert dboost.fit(again, **LONG).sha256 == dboost.fit(ROWS, "z", **LONG).sha256
    again.unpublish()
    with pytest.raises(InputTypeError, match="not published"):
        again.unpublish()
    with pytest.raises(InputTypeError, match="nothing is published"):
        dboost.Dataset.published("rows", processes.client)
    again.close()
