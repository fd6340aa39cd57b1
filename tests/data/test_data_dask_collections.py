"""Dask collections are read once, with little memory, and no files are left."""

from __future__ import annotations

import collections
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dboost.data import ReadOptions, open_table
from dboost.data.tables import dask_collections
from tests.helpers.table_forms import content

N_PARTS = 5


class Source:
    """Makes partitions and counts how often each is made."""

    def __init__(self) -> None:
        self.calls: collections.Counter[int] = collections.Counter()
        self.threads: set[int] = set()

    def part(self, i: int) -> pd.DataFrame:
        self.calls[i] += 1
        self.threads.add(threading.get_ident())
        a = np.arange(4) + 4 * i
        return pd.DataFrame({"a": a, "b": a * 0.5, "c": [f"level {v % 7}" for v in a], "y": a % 2})

    def matrix(self, i: int) -> np.ndarray:
        self.calls[i] += 1
        return np.arange(12.0).reshape(4, 3) + 12 * i

    def frame(self) -> dd.DataFrame:
        return dd.from_map(lambda i: self.part(i), range(N_PARTS), meta=Source().part(0).iloc[:0])

    def delayed_frame(self) -> dd.DataFrame:
        parts = [dask.delayed(self.part, pure=False)(i) for i in range(N_PARTS)]
        return dd.from_delayed(parts, meta=Source().part(0).iloc[:0], verify_meta=False)

    def array(self) -> da.Array:
        parts = [dask.delayed(self.matrix, pure=False)(i) for i in range(N_PARTS)]
        return da.concatenate([da.from_delayed(part, (4, 3), float) for part in parts])


ONCE = dict.fromkeys(range(N_PARTS), 1)


@pytest.mark.parametrize("make", [Source.frame, Source.delayed_frame])
@pytest.mark.parametrize("retain_bytes", [0, 10**9])
def test_each_partition_is_read_once(make: object, retain_bytes: int) -> None:
    source = Source()
    with open_table(make(source), "y", options=ReadOptions(retain_bytes=retain_bytes)) as table:
        for _ in range(2):
            assert content(table)["a"].tolist() == list(range(4 * N_PARTS))
        assert table.target.tolist() == [0, 1] * (2 * N_PARTS)
    assert source.calls == ONCE


@pytest.mark.parametrize("make", [Source.frame, Source.delayed_frame])
def test_collections_that_share_a_source_read_it_once(make: object) -> None:
    source = Source()
    frame = make(source)
    frame["d"] = frame["a"] * 2
    X, y, w, o = frame[["a", "c", "d"]], frame["y"] + 1, frame["b"].abs() + 1, frame["b"] - 1
    with open_table(X, y, sample_weight=w, offset=o) as table:
        got = content(table)
    assert got["d"].tolist() == [2 * i for i in range(4 * N_PARTS)]
    assert got["<target>"].tolist() == [1, 2] * (2 * N_PARTS)
    assert got["<offset>"].tolist() == [i * 0.5 - 1 for i in range(4 * N_PARTS)]
    assert got["<weight>"].tolist() == [i * 0.5 + 1 for i in range(4 * N_PARTS)]
    assert source.calls == ONCE


def test_arrays_that_share_a_source_read_it_once() -> None:
    source = Source()
    base = source.array()
    with open_table(base[:, :2] * 2, base[:, 2] + 1, sample_weight=base[:, :1] + 1) as table:
        got = content(table)
    assert got["f1"].tolist() == [2 * (3 * i + 1) for i in range(4 * N_PARTS)]
    assert got["<target>"].tolist() == [3 * i + 3 for i in range(4 * N_PARTS)]
    assert source.calls == ONCE


def test_an_array_beside_a_frame_shares_delayed_sources() -> None:
    source = Source()
    frame = source.delayed_frame()
    with open_table(frame[["a", "b"]], frame["y"].to_dask_array(optimize=False)) as table:
        assert content(table)["<target>"].tolist() == [0, 1] * (2 * N_PARTS)
    assert source.calls == ONCE


def test_a_task_above_several_partitions_runs_once() -> None:
    calls = []

    def load() -> pd.DataFrame:
        calls.append(1)
        return Source().part(0)

    whole = dask.delayed(load, pure=False)()
    parts = [dask.delayed(pd.DataFrame.head)(whole, n) for n in (1, 2, 4)]
    with open_table(dd.from_delayed(parts, meta=Source().part(0).iloc[:0], verify_meta=False), "y") as table:
        assert table.lengths == (1, 2, 4)
    assert len(calls) == 1


def test_in_the_calling_thread_if_so_configured() -> None:
    for scheduler in ("synchronous", "single-threaded", dask.get):
        source = Source()
        with dask.config.set(scheduler=scheduler):
            open_table(source.frame(), "y", options=ReadOptions(n_threads=3))
        assert source.threads == {threading.get_ident()}
    source = Source()
    with dask.config.set(scheduler="processes"):  # counts would be lost in another process
        open_table(source.frame(), "y", options=ReadOptions(n_threads=1))
    assert source.calls == ONCE
    assert threading.get_ident() not in source.threads


def test_only_needed_columns_are_asked_of_the_source() -> None:
    asked = set()

    def part(i: int, columns: list[str] | None = None) -> pd.DataFrame:
        asked.update(columns or ["everything"])
        return Source().part(i)[columns or slice(None)]

    frame = dd.from_map(part, range(2), meta=Source().part(0).iloc[:0])
    open_table(frame, "y", features=["a"], sample_weight="b")
    assert asked == {"a", "b", "y"}


def test_kept_chunks_do_not_keep_partitions_alive() -> None:
    """A column of a pandas block is a view of the whole block: keeping the view would keep all of it."""
    frame = pd.DataFrame(np.zeros((1000, 50)))
    table = open_table(dd.from_pandas(frame, npartitions=2, sort=False), np.zeros(1000), features=[0])
    (column,) = table.chunk(0).columns
    base = column if column.base is None else column.base
    assert base.nbytes <= 8 * 500


@pytest.mark.slow
def test_distributed_is_not_imported() -> None:
    script = """
        import sys
        import dask.dataframe as dd, pandas as pd
        import dboost.data
        frame = pd.DataFrame({"a": [1, 2], "y": [0, 1]})
        dboost.data.open_table(dd.from_pandas(frame, npartitions=2), "y")
        print("distributed" in sys.modules, "polars" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert done.stdout == "False False\n", done.stderr


@pytest.mark.parametrize("features", [None, ["a"]])
@pytest.mark.parametrize("kind", [KeyError, OSError, ZeroDivisionError])
def test_errors_of_the_loading_code_stay_what_they_are(features: list[str] | None, kind: type[Exception]) -> None:
    frame = pd.DataFrame({"a": np.arange(5.0), "b": 1.0, "y": np.arange(5.0)})

    def load(i: int) -> pd.DataFrame:
        if i == 2:
            raise kind("Brugge")
        return frame

    data = dd.from_map(load, range(4), meta=frame.iloc[:0], enforce_metadata=False)
    for options in ({}, {"scheduler": "sync"}):
        with dask.config.set(options), pytest.raises(kind, match="Brugge") as caught:
            open_table(data, "y", features=features)
        assert caught.value.__notes__ == ["while partition 2 was read"]


def test_an_error_that_all_partitions_share_names_none() -> None:
    def load() -> np.ndarray:
        raise OSError("the disk is gone")

    whole = da.from_delayed(dask.delayed(load)(), shape=(20, 2), dtype=np.float64)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        open_table(whole.rechunk((5, 2)), np.arange(20))
    assert not getattr(caught.value, "__notes__", [])


def test_one_thread_at_a_time_builds_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads could wait for each other's locks in Dask before Python 3.12."""
    frame = dd.from_pandas(pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, 1.0]}), npartitions=2)
    building, may_end, map_partitions = threading.Event(), threading.Event(), dd.map_partitions

    def slow(*arguments: Any, **keywords: Any) -> Any:
        building.set()
        assert may_end.wait(60)
        return map_partitions(*arguments, **keywords)

    monkeypatch.setattr(dd, "map_partitions", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(dask_collections.bundled, frame[["x"]], {"target": frame["y"]})
        assert building.wait(60)
        second = threads.submit(dask_collections.select, frame, ("x",))
        with pytest.raises(TimeoutError):
            second.result(0.2)
        may_end.set()
        assert len(first.result(60)[1]) == 2
        assert list(second.result(60).columns) == ["x"]
