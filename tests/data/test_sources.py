"""Sources that are read partition by partition: the same rows in the same order give the same model file."""

from __future__ import annotations

import contextlib
import io
import math
import os
import signal
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dboost
from dboost.cluster.partitions import read_tasks
from dboost.cluster.training import cluster_dataset
from dboost.data.columns.chunk import slice_rows
from dboost.data.kinds.table_kinds import is_stream
from dboost.data.sources import Parts, Stream, parquet, stream_of
from dboost.data.sources.paths import open_source
from dboost.data.sources.row_filter import RowFilter
from dboost.session.partition_batch import PartitionBatch
from tests.helpers.clusters import Processes, at, impatient
from tests.helpers.table_forms import PARTS, SOURCES, STREAMS, Exporter, files_of, lazy_polars, reader_of, table_of
from tests.helpers.tune import Tune

OPTIONS: dict[str, Any] = {"max_iter": 4, "max_leaf_nodes": 7, "min_samples_leaf": 3, "progress": False}
N_ROWS = 4000


def frame_of(n: int = N_ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"x{j}": rng.normal(size=n) for j in range(6)})
    frame["town"] = rng.choice(["Ulm", "Aalen", "Zürich"], n)
    frame["count"] = rng.integers(0, 99, n)
    frame.loc[frame.index % 11 == 3, ["x1", "town"]] = None
    frame["y"] = frame["x0"] * 2 + (frame["town"] == "Ulm") + frame["count"] / 50 + rng.normal(size=n) / 9
    return frame


@pytest.mark.parametrize("kind", STREAMS)
def test_streams_are_read_in_pieces_with_only_the_wanted_columns(kind: str, tmp_path: Path) -> None:
    frame = frame_of()
    data = STREAMS[kind](frame, tmp_path / "a")
    assert is_stream(data)
    most_bytes = 1 << 15
    source = stream_of(data, most_bytes)
    assert source.names == tuple(frame.columns)
    pieces = [pa.table(piece) for piece in source.partitions(["x3", "y"])]
    assert all(piece.column_names == ["x3", "y"] for piece in pieces)
    np.testing.assert_array_equal(np.concatenate([piece["y"].to_numpy() for piece in pieces]), frame["y"])
    if kind not in ("__arrow_c_stream__", "table of another library", "DuckDB relation"):  # which pass batches on
        assert max(piece.nbytes for piece in pieces) <= 2 * most_bytes


def test_small_batches_are_joined() -> None:
    source = stream_of(table_of(frame_of()).to_reader(max_chunksize=10))
    assert isinstance(source, Stream)
    assert [piece.num_rows for piece in source.partitions(["x0"])] == [N_ROWS]


def test_a_reader_that_was_read_before() -> None:
    reader = table_of(frame_of()).to_reader()
    dboost.fit(reader, "y", **OPTIONS)
    with pytest.raises(dboost.DataError, match="no rows: a RecordBatchReader can be read only once"):
        dboost.fit(reader, "y", **OPTIONS)


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("kind", [kind for kind in PARTS if kind != "CSV folder"])
def test_files_are_read_with_only_the_wanted_columns(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str]] = []
    partitions, read_part = Parts.partitions, Parts.lazy

    def seen_columns(self: Parts) -> Any:
        def seen(part: Any, columns: list[str] | None = None) -> Any:
            read.append(sorted(columns or self.names))
            return self.read(part, columns=columns)

        return seen

    monkeypatch.setattr(Parts, "lazy", lambda self: read_part(Parts(self.meta, self.parts, seen_columns(self), self.label)))
    monkeypatch.setattr(
        Parts, "partitions", lambda self, names: partitions(Parts(self.meta, self.parts, seen_columns(self), self.label), names)
    )
    data = PARTS[kind](frame_of(), tmp_path / "a")
    for limit in (None, "1MiB"):
        read.clear()
        booster = dboost.fit(data, "y", features=["x0", "town"], memory_limit=limit, **OPTIONS)
        assert len(read) >= (1 if kind == "pyarrow fragment" else 5)
        assert all(names == ["town", "x0", "y"] for names in read)
    read.clear()
    booster.predict(data).compute()
    assert read
    assert all(names == ["town", "x0"] for names in read)


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("kind", ["Parquet folder", "pyarrow dataset", "Delta"])
def test_a_row_group_that_is_larger_than_its_share_is_read_once(kind: str, tmp_path: Path) -> None:
    if not Path("/proc/self/io").exists():
        pytest.skip("counts the bytes that Linux says this process has read")

    def n_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    rng, n = np.random.default_rng(0), 600_000
    columns: dict[str, Any] = {f"x{j}": rng.normal(size=n) for j in range(5)}
    table = pa.table(columns | {"town": np.array(["Ulm", "Aalen", None])[rng.integers(0, 3, n)], "y": rng.normal(size=n)})
    path, wanted = tmp_path / "rows", ["town", "x3", "y"]
    data: Any = path
    if kind == "Delta":
        pytest.importorskip("deltalake").write_deltalake(path, table)
    else:
        path.mkdir()
        pq.write_table(table, path / "rows.parquet", row_group_size=n)
    (file,) = path.glob("*.parquet")
    group = pq.read_metadata(file).row_group(0)
    assert group.num_rows == n
    n_bytes = sum(group.column(j).total_compressed_size for j in range(7) if group.column(j).path_in_schema in wanted)
    if kind == "pyarrow dataset":
        data = ds.dataset(path)
    source = open_source(data, most_bytes=4 * 2**20, columns=wanted)
    assert len(source.parts) >= 3
    list(open_source(data, most_bytes=4 * 2**20, columns=wanted).partitions(["y"]))  # loads what is imported late
    before = n_read()
    pieces = list(source.partitions(wanted))
    assert n_read() - before <= 1.1 * n_bytes
    assert [len(piece) for piece in pieces] == [part.rows[1] - part.rows[0] for part in source.parts]
    found = pa.concat_tables([pa.Table.from_pandas(piece[["x3", "y"]], preserve_index=False) for piece in pieces])
    assert found.combine_chunks() == table.select(["x3", "y"]).combine_chunks()
    assert [town for piece in pieces for town in piece["town"].astype(object).fillna("")] == [
        town or "" for town in table["town"].to_pylist()
    ]
    for some in ([1, 2], [2, 1], [0, 2], [len(pieces) - 2, len(pieces) - 1]):  # those of a lost worker
        for k, piece in zip(some, source.only(some).partitions(wanted), strict=True):
            pd.testing.assert_frame_equal(piece, pieces[k])
    filtered = open_source(data, most_bytes=4 * 2**20, columns=wanted, row_filter=RowFilter(pc.field("x3") > 1))
    kept = np.concatenate([piece["y"] for piece in filtered.partitions(["y"])])
    np.testing.assert_array_equal(kept, columns_of(table, "y")[columns_of(table, "x3") > 1])


def columns_of(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy()


FILTERS: dict[str, Callable[[], Any]] = {
    "arrow": lambda: (pc.field("count") < 60) & (pc.field("town") != "Ulm"),
    "polars": lambda: (pl.col("count") < 60) & (pl.col("town") != "Ulm"),
}


def _in_memory(frame: pd.DataFrame, _: Path) -> Any:
    return frame


def _dask(frame: pd.DataFrame, _: Path) -> Any:
    import dask.dataframe as dd

    return dd.from_pandas(frame, npartitions=3)


OTHERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "pandas": _in_memory,
    "polars": lambda frame, _: pl.from_arrow(table_of(frame)),
    "pyarrow": lambda frame, _: table_of(frame),
    "Dask": _dask,
}


def is_kept(frame: pd.DataFrame) -> pd.Series:
    return (frame["count"] < 60) & (frame["town"] != "Ulm") & frame["town"].notna()


def test_filters_of_data_sets_and_cross_validation(tmp_path: Path) -> None:
    frame = frame_of()
    path, kept = files_of(frame, tmp_path / "a"), frame[is_kept(frame)]
    with dboost.prepare(kept, "y") as plain, dboost.prepare(path, "y", filter=FILTERS["arrow"]()) as data:
        assert dboost.fit(data, **OPTIONS).sha256 == dboost.fit(plain, **OPTIONS).sha256
        with pytest.raises(dboost.ParameterError, match=r"filter belongs to dboost.prepare"):
            dboost.fit(data, filter=FILTERS["arrow"](), **OPTIONS)
        with pytest.raises(dboost.ParameterError, match=r"filter belongs to dboost.prepare"):
            dboost.cv(data, filter=FILTERS["arrow"](), **OPTIONS)
    options = OPTIONS | {"groups": "town"}
    found = dboost.cv(path, "y", folds=2, filter=FILTERS["arrow"](), **options)
    pd.testing.assert_frame_equal(found.scores, dboost.cv(kept, "y", folds=2, **options).scores)


def test_filters_skip_files_and_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = frame_of().assign(day=pd.array(np.arange(N_ROWS) // 100, "Int64"))
    frame.loc[350, "day"] = None
    read: list[tuple[str, Any]] = []
    read_part = parquet.read_part

    def seen(part: Any, **options: Any) -> Any:
        read.append((Path(part.file.url).name, part.row_groups))
        return read_part(part, **options)

    monkeypatch.setattr(parquet, "read_part", seen)
    path = files_of(frame, tmp_path / "a", n_files=4)
    for limit in (None, "1MiB"):
        read.clear()
        found = dboost.fit(path, "y", features=["x0"], filter=pc.field("day") >= 37, memory_limit=limit, **OPTIONS)
        assert {name for name, _ in read} == {"part-3.parquet"}
        assert sorted(k for _, groups in read for k in groups) == [7, 8, 9]
        kept = frame[frame["day"] >= 37]
        assert found.sha256 == dboost.fit(kept, "y", features=["x0"], **OPTIONS).sha256
    read.clear()
    dboost.fit(path, "y", features=["x0"], filter=(pc.field("day") == 3) | pc.field("day").is_null(), **OPTIONS)
    assert read == [("part-0.parquet", (3,))]
    read.clear()
    for limit in (None, "1MiB"):
        with pytest.raises(dboost.DataError, match=r"the data have no rows for which filter \(day > 99\) is true"):
            dboost.fit(path, "y", features=["x0"], filter=pc.field("day") > 99, memory_limit=limit, **OPTIONS)
    assert len(found.predict(path, filter=pc.field("day") > 99)) == 0
    assert not read


def test_not_a_number_is_not_skipped(tmp_path: Path) -> None:
    """Extremes of floats say nothing of NaN, for which a negated comparison is true."""
    table = pa.table({"x": pa.array([1.0, 2.0, np.nan, 3.0] * 100), "z": np.arange(400.0), "y": np.arange(400.0)})
    pq.write_table(table, tmp_path / "rows.parquet")
    predicate = ~(pc.field("x") < 5)
    found = dboost.fit(tmp_path / "rows.parquet", "y", features=["z"], filter=predicate, **OPTIONS)
    assert found.sources[0]["rows"] == 100
    assert found.sha256 == dboost.fit(table, "y", features=["z"], filter=predicate, **OPTIONS).sha256


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize(("language", "limit"), [("arrow", None), ("polars", "1MiB")])
@pytest.mark.parametrize("kind", ["Parquet folder", "pyarrow dataset", "Delta", "Delta, partitions"])
def test_filters_may_name_columns_that_files_lack(kind: str, limit: str | None, language: str, tmp_path: Path) -> None:
    frame = frame_of().assign(day=np.arange(N_ROWS) // 1000)
    path = tmp_path / "a"
    if kind == "Parquet folder":
        for day, rows in frame.groupby("day"):
            (path / f"day={day}").mkdir(parents=True)
            rows.drop(columns="day").to_parquet(path / f"day={day}" / "part.parquet", index=False)
    elif kind == "pyarrow dataset":
        path.mkdir()
        for day, rows in frame.groupby("day"):
            rows = rows.drop(columns="day") if day == 0 else rows
            rows.to_parquet(path / f"{day}.parquet", index=False)
    else:
        deltalake = pytest.importorskip("deltalake")
        for day, rows in frame.groupby("day"):
            by = ["day"] if kind == "Delta, partitions" else None
            rows = rows.drop(columns="day") if day == 0 and not by else rows
            merge = {"schema_mode": "merge"} if day and not by else {}
            deltalake.write_deltalake(path, pa.Table.from_pandas(rows), mode="append", partition_by=by, **merge)
    data = ds.dataset(path, schema=pa.Table.from_pandas(frame).schema) if kind == "pyarrow dataset" else path
    predicate = {"arrow": pc.field("day") >= 2, "polars": pl.col("day") >= 2}[language]
    names = ["x0", "x4"]
    expected = dboost.fit(frame[frame["day"] >= 2], "y", features=names, **OPTIONS)
    assert dboost.fit(data, "y", features=names, filter=predicate, memory_limit=limit, **OPTIONS).sha256 == expected.sha256
    kept = expected.predict(data, filter=predicate).compute()
    np.testing.assert_array_equal(kept, expected.predict(frame[frame["day"] >= 2]))


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize("limit", [None, "1MiB"])
@pytest.mark.parametrize("kind", ["pyarrow dataset", "pyarrow dataset of Arrow files", "in folders", "in memory"])
def test_filters_of_a_dataset_itself(kind: str, limit: str | None, tmp_path: Path) -> None:
    frame = frame_of().assign(day=np.arange(N_ROWS) // 1000)
    if kind == "in memory":
        data = ds.dataset(table_of(frame))
    elif kind == "in folders":
        folders = ds.partitioning(pa.schema([("day", pa.int64())]), flavor="hive")
        ds.write_dataset(table_of(frame), tmp_path / "a", format="parquet", partitioning=folders)
        data = ds.dataset(tmp_path / "a", partitioning=folders)
    else:
        data = SOURCES[kind](frame, tmp_path / "a")
    data = data.filter(pc.field("day") >= 1).filter(pc.field("count") < 60)
    kept = frame[(frame["day"] >= 1) & (frame["count"] < 60)]
    options = {"features": ["x0", "day"], **OPTIONS}
    expected = dboost.fit(kept, "y", eval_set=kept, **options)
    found = dboost.fit(data, "y", eval_set=data, memory_limit=limit, **options)
    assert found.sha256 == expected.sha256
    assert found.history.filter(like="eval").equals(expected.history.filter(like="eval"))
    predictions = expected.predict(data)
    predictions = predictions.compute() if hasattr(predictions, "compute") else predictions
    np.testing.assert_array_equal(np.asarray(predictions), expected.predict(kept))
    kept = kept[kept["town"] != "Ulm"].dropna(subset="town")
    found = dboost.fit(data, "y", filter=pc.field("town") != "Ulm", memory_limit=limit, **options)
    assert found.sha256 == dboost.fit(kept, "y", **options).sha256


def test_columns_in_the_names_of_folders_are_filtered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = frame_of()
    for day in range(4):
        (tmp_path / "a" / f"day={day}").mkdir(parents=True)
        frame[day::4].to_parquet(tmp_path / "a" / f"day={day}" / "part.parquet", index=False)
    read: list[str] = []
    read_part = parquet.read_part

    def seen(part: Any, **options: Any) -> Any:
        read.append(part.file.url)
        return read_part(part, **options)

    monkeypatch.setattr(parquet, "read_part", seen)
    found = dboost.fit(tmp_path / "a", "y", features=["x0"], filter=pc.field("day") == 2, **OPTIONS)
    assert found.sha256 == dboost.fit(frame[2::4], "y", features=["x0"], **OPTIONS).sha256
    assert [Path(one).parent.name for one in read] == ["day=2"]


@pytest.mark.parametrize("kind", ["pandas", "Dask", "Parquet folder", "CSV folder", "RecordBatchReader"])
def test_filters_that_cannot_be_used_are_refused(kind: str, tmp_path: Path) -> None:
    frame = frame_of()

    def fit(predicate: Any, target: Any = "y") -> Any:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return dboost.fit((SOURCES | OTHERS)[kind](frame, folder), target, filter=predicate, **OPTIONS)

    with pytest.raises(dboost.InputTypeError, match=r"filter must be a text, .*, not int"):
        fit(60)
    with pytest.raises(dboost.ParameterError, match=r"filter 'count <': a value is missing"):
        fit("count <")
    for tuples in ([], [("count", "<")], [("count", "~", 3)], ["count", "<", 60]):
        with pytest.raises(dboost.ParameterError, match=r"filter \[.*; it is a list of tuples, such as"):
            fit(tuples)
    for predicate in (pc.field("nothing") < 60, pl.col("nothing") < 60):
        with pytest.raises(dboost.DataError, match="no column 'nothing', which filter uses"):
            fit(predicate)
    with pytest.raises(dboost.DataError, match="filter"):
        fit(pc.field("town") < 60)
    with pytest.raises(dboost.ParameterError, match="target must be the name of a column with filter"):
        fit(pc.field("count") < 60, frame["y"].to_numpy())


@pytest.mark.parametrize("kind", ["pandas", "Parquet folder"])
@pytest.mark.parametrize(
    ("predicate", "same"),
    [
        ("count < 60 and town in ('Ulm', 'Gent')", (pc.field("count") < 60) & pc.field("town").isin(["Ulm", "Gent"])),
        (("count", "<", 60), pc.field("count") < 60),
        ([("count", "<", 60), ("town", "!=", "Ulm")], (pc.field("count") < 60) & (pc.field("town") != "Ulm")),
        ([[("count", "<", 20)], [("count", ">", 60)]], (pc.field("count") < 20) | (pc.field("count") > 60)),
    ],
)
def test_filters_that_are_texts_and_tuples(predicate: Any, same: Any, kind: str, tmp_path: Path) -> None:
    data, options = (SOURCES | OTHERS)[kind](frame_of(), tmp_path / "rows"), {"features": ["x0"], **OPTIONS}
    booster = dboost.fit(data, "y", filter=same, **options)
    assert dboost.fit(data, "y", filter=predicate, **options).sha256 == booster.sha256
    results = [dboost.cv(data, "y", filter=each, folds=2, **options) for each in (predicate, same)]
    np.testing.assert_array_equal(results[0].predictions, results[1].predictions)
    np.testing.assert_array_equal(booster.predict(data, filter=predicate), booster.predict(data, filter=same))
    prepared = [
        dboost.prepare(data, "y", tmp_path / name, filter=each, progress=False)
        for name, each in (("a", predicate), ("b", same))
    ]
    assert prepared[0].n_rows == prepared[1].n_rows


@pytest.mark.parametrize("kind", ["pandas", "Dask", "Parquet folder"])
def test_filters_that_look_at_other_rows_are_refused(kind: str, tmp_path: Path) -> None:
    """Their result would depend on the partitions."""
    frame, x = frame_of(), pl.col("x0")
    data = (SOURCES | OTHERS)[kind](frame, tmp_path / "rows")
    for predicate in (
        x > x.mean(),
        x.rank() > 9,
        x.shift(1) > 0,
        pl.col("town").is_first_distinct(),
        pl.int_range(pl.len()) > 9,
        x.sum().over("town") > 3,
    ):
        with pytest.raises(dboost.DataError, match="looks at other rows than the one that it selects"):
            dboost.fit(data, "y", features=["x0"], filter=predicate, **OPTIONS)
    for predicate in (x.is_null() | (x > 0), pl.col("town").str.contains("m"), pl.col("town").is_in(["Ulm"]), x.round(1) > 0):
        dboost.fit(data, "y", features=["x0"], filter=predicate, **OPTIONS)


def test_filters_need_the_names_of_columns() -> None:
    with pytest.raises(dboost.InputTypeError, match="filter names columns, and ndarray has none"):
        dboost.fit(np.zeros((9, 2)), np.zeros(9), filter=pc.field("f0") < 60)


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("kind", ["RecordBatchReader", "polars scan_parquet"])
def test_large_streams_are_sent_to_workers_in_waves(
    kind: str, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    frame = frame_of()
    sets = {"eval_set": {"same": frame}, "features": ["x0", "x1", "town"]}
    expected = dboost.fit(frame[is_kept(frame)], "y", **sets, **OPTIONS)
    tune(stored_partition_bytes=10_000, wave_bytes=30_000, stream_in_memory_bytes=20_000)
    sent = []
    submit = read_tasks.submit
    monkeypatch.setattr(
        read_tasks, "submit", lambda client, graph, keys, **how: sent.append(len(keys)) or submit(client, graph, keys, **how)
    )
    data = SOURCES[kind](frame, tmp_path / "a")
    sets["eval_set"] = {"same": SOURCES[kind](frame, tmp_path / "b")}
    found = dboost.fit(data, "y", filter=FILTERS["arrow"](), client=client, **sets, **OPTIONS)
    assert found.sha256 == expected.sha256
    scores = [name for name in expected.history if name.startswith("same_")]
    assert scores and found.history[scores].equals(expected.history[scores])
    assert len(sent) > 8 and max(sent) <= 8


@pytest.mark.slow
def test_a_stream_is_sent_again_after_a_worker_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tune: Tune) -> None:
    frame = frame_of(20_000)
    expected = dboost.fit(frame, "y", **OPTIONS | {"max_iter": 8})
    tune(stored_partition_bytes=100_000, stream_in_memory_bytes=200_000, wave_bytes=300_000)
    with Processes(3) as cluster, impatient(cluster.client):
        kill = at(3, lambda: os.kill(cluster.any_pid(), signal.SIGKILL))
        options = OPTIONS | {"max_iter": 8, "callbacks": [kill]}
        found = dboost.fit(reader_of(frame, tmp_path), "y", client=cluster.client, **options)
        assert len(cluster.addresses()) == 2
    assert found.sha256 == expected.sha256


@pytest.mark.slow
def test_workers_decode_a_row_group_that_is_larger_than_its_share_once(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, n = np.random.default_rng(0), 600_000
    table = pa.table({f"x{j}": rng.normal(size=n) for j in range(5)} | {"y": rng.normal(size=n)})
    path, wanted = tmp_path / "rows.parquet", ["x1", "x3", "y"]
    pq.write_table(table, path, row_group_size=n)
    group = pq.read_metadata(path).row_group(0)
    n_bytes = sum(
        group.column(j).total_compressed_size for j in range(group.num_columns) if group.column(j).path_in_schema in wanted
    )
    read: list[int] = []

    class Counted(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            found = super().read(size)
            read.append(len(found))
            return found

    @contextlib.contextmanager
    def opened(file: Any, *_: Any, **__: Any) -> Iterator[Any]:
        with Counted(file.url.removeprefix("file://")) as stream:
            yield stream

    monkeypatch.setattr(parquet, "_opened", opened)
    moved: list[int] = []
    take = PartitionBatch.add_slice
    monkeypatch.setattr(PartitionBatch, "add_slice", lambda self, i, *of: moved.append(i) or take(self, i, *of))
    found = dboost.fit(path, "y", features=["x1", "x3"], memory_limit="20MiB", client=client, **OPTIONS)
    assert len(open_source(path, most_bytes=5 * 2**20, columns=wanted).parts) >= 3
    assert sum(read) <= 1.1 * n_bytes
    assert moved  # to the worker that has not read the file
    assert found.sha256 == dboost.fit(table.to_pandas(), "y", features=["x1", "x3"], **OPTIONS).sha256
    read.clear()
    with dboost.prepare(path, "y", features=["x1", "x3"], memory_limit="20MiB", client=client) as prepared:
        assert sum(read) <= 1.1 * n_bytes
        assert found.sha256 == dboost.fit(prepared, **OPTIONS).sha256


@pytest.mark.slow
def test_ranges_of_a_row_group_are_read_again_after_a_worker_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = frame_of(200_000).drop(columns="town")
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=len(frame))
    options = OPTIONS | {"max_iter": 8, "memory_limit": "16MiB", "features": ["x0", "count"]}
    parts = open_source(tmp_path / "rows.parquet", most_bytes=2**20, columns=["x0", "count", "y"])
    assert [len(run) for run in parts.runs(range(len(parts.parts)))] == [1] * len(parts.parts)  # decoders do not fit
    parts = open_source(tmp_path / "rows.parquet", most_bytes=2**22, columns=["x0", "count", "y"])
    assert [len(run) for run in parts.runs(range(len(parts.parts)))] == [len(parts.parts)] != [1]
    assert [len(run) for run in parts.runs([1])] == [1]
    with Processes(3) as cluster, impatient(cluster.client):
        kill = at(3, lambda: os.kill(cluster.any_pid(), signal.SIGKILL))
        found = dboost.fit(tmp_path / "rows.parquet", "y", client=cluster.client, callbacks=[kill], **options)
        assert len(cluster.addresses()) == 2
    assert found.sha256 == dboost.fit(frame, "y", **options).sha256


@pytest.mark.slow
def test_prepared_ranges_of_a_row_group_are_read_again_after_a_worker_was_killed(tmp_path: Path) -> None:
    frame = frame_of(400_000).assign(c=np.where(np.arange(400_000) % 5 < 2, "no", "yes"))
    frame = frame.astype({"x0": "float32", "x1": "float32", "count": "int32"})
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=len(frame))
    features, weights = ["x0", "x1", "count", "town"], np.arange(len(frame)) % 3.0
    parts = open_source(tmp_path / "rows.parquet", most_bytes=2**22, columns=[*features, "c"])
    assert [len(run) for run in parts.runs(range(len(parts.parts)))] == [len(parts.parts)] != [1]
    sliced: list[int] = []
    for partition in parts.partitions(["x0"]):
        sliced.append(math.ceil(len(partition) / slice_rows(2**22, len(features))))
    assert max(sliced) > 1  # slices of a partition are joined
    with Processes(3) as cluster, impatient(cluster.client):
        options: dict[str, Any] = {"memory_limit": "16MiB", "client": cluster.client, "features": features}
        for target, weight in (("y", weights), ("c", None)):
            expected = dboost.fit(frame, target, features=features, sample_weight=weight, **OPTIONS)
            with dboost.prepare(tmp_path / "rows.parquet", target, sample_weight=weight, **options) as data:
                assert dboost.fit(data, **OPTIONS).sha256 == expected.sha256
                if target == "c":
                    os.kill(cluster.any_pid(), signal.SIGKILL)
                    assert dboost.fit(data, **OPTIONS).sha256 == expected.sha256


@pytest.mark.parametrize("kind", ["RecordBatchReader", "polars LazyFrame"])
def test_prepared_streams_are_sent_to_workers_in_waves(
    kind: str, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    frame = frame_of().assign(w=np.arange(N_ROWS) % 3.0, c=np.where(np.arange(N_ROWS) % 5 < 2, "no", "yes"))
    how = {"sample_weight": "w", "features": ["x0", "x1", "town"], "filter": FILTERS["arrow"]()}
    tune(wave_bytes=4_000, least_partition_rows=100)
    monkeypatch.setattr(cluster_dataset, "n_partitions_of", lambda _: 12)
    sent: list[int] = []
    submit = cluster_dataset.submit

    def seen(client: Client, graph: dict[Any, Any], keys: list[Any], **options: Any) -> Any:
        sent.append(sum(len(task[1]) for task in graph.values() if isinstance(task, tuple) and isinstance(task[1], bytes)))
        return submit(client, graph, keys, **options)

    monkeypatch.setattr(cluster_dataset, "submit", seen)
    for target in ("y", "c"):
        expected = dboost.fit(frame, target, **how, **OPTIONS)
        sent.clear()
        with dboost.prepare(SOURCES[kind](frame, tmp_path / target), target, client=client, **how) as data:
            assert sum(size > 0 for size in sent) > 2 and max(sent) < 8_000
            assert data.is_on_cluster and data.n_rows == (is_kept(frame) & (frame["w"] > 0)).sum()
            assert dboost.fit(data, **OPTIONS).sha256 == expected.sha256
    root = str(tmp_path / "prepared")
    with dboost.prepare(SOURCES[kind](frame, tmp_path / "again"), "c", root, client=client, **how) as data:
        assert dboost.fit(data, **OPTIONS).sha256 == expected.sha256
    assert dboost.fit(dboost.Dataset(root), **OPTIONS).sha256 == expected.sha256


def test_a_stream_without_rows_on_a_cluster(client: Client) -> None:
    with pytest.raises(dboost.DataError, match="the data have no rows: a RecordBatchReader can be read only once"):
        dboost.fit(reader_of(frame_of()[:0], Path()), "y", client=client, **OPTIONS)
    with pytest.raises(dboost.DataError, match="the data have no rows: a RecordBatchReader can be read only once"):
        dboost.prepare(reader_of(frame_of()[:0], Path()), "y", client=client)


def booster_of(frame: pd.DataFrame, target: str = "y", **options: Any) -> dboost.Booster:
    return dboost.fit(frame, target, features=["x0", "town", "x1"], **OPTIONS, **options)


@pytest.fixture
def small_batches(tune: Tune) -> None:
    tune(batch_bytes=10_000)


def test_a_reader_is_read_while_its_predictions_are(small_batches: None) -> None:
    frame = frame_of()
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for k, batch in enumerate(table_of(frame).to_batches(max_chunksize=500)):
            read.append(k)
            yield batch

    schema = table_of(frame).schema
    found = booster_of(frame).predict(pa.RecordBatchReader.from_batches(schema, batches()))
    assert len(read) == 1
    found.read_next_batch()
    found.read_next_batch()
    assert len(read) == 2
    assert len(found.read_all()) == 3000

    def broken() -> Iterator[pa.RecordBatch]:
        yield from table_of(frame).to_batches(max_chunksize=100)
        raise OSError("the line is cut")

    found = booster_of(frame).predict(pa.RecordBatchReader.from_batches(schema, broken()))
    n_rows = 0
    with pytest.raises(OSError, match="the line is cut"):
        for batch in found:
            n_rows += batch.num_rows
    assert n_rows >= 3500


def test_offsets_positions_and_no_rows_in_streams(small_batches: None) -> None:
    frame = frame_of().drop(columns="town")
    counts = frame.assign(y=np.exp(frame["x0"]), offset=0.5)
    booster = dboost.fit(counts, "y", loss="poisson", offset="offset", features=["x0", "x1"], **OPTIONS)
    expected = booster.predict(table_of(counts), offset="offset").to_pylist()
    found = booster.predict(reader_of(counts, Path()), offset="offset").read_all()
    assert found["prediction"].to_pylist() == expected
    assert booster.predict(Exporter(table_of(counts)), offset=np.full(len(counts), 0.5)).to_pylist() == expected
    each = np.linspace(0, 1, len(counts))
    expected = booster.predict(table_of(counts), offset=each).to_pylist()
    assert booster.predict(reader_of(counts, Path()), offset=each).read_all()["prediction"].to_pylist() == expected
    assert booster.predict(lazy_polars(counts, Path()), offset=each).to_list() == expected
    for wrong, message in ((each[:99], "there are at least"), (np.append(each, 0), "there are 4000 rows")):
        with pytest.raises(dboost.DataError, match=rf"offset has the shape \({len(wrong)},\), but {message}"):
            booster.predict(lazy_polars(counts, Path()), offset=wrong)
        with pytest.raises(dboost.DataError, match=rf"offset has the shape \({len(wrong)},\), but {message}"):
            booster.predict(reader_of(counts, Path()), offset=wrong).read_all()
    kept = counts[counts["count"] < 9]
    expected = booster.predict(table_of(kept), offset=each[: len(kept)]).to_pylist()
    found = booster.predict(reader_of(counts, Path()), offset=each[: len(kept)], filter=pc.field("count") < 9)
    assert found.read_all()["prediction"].to_pylist() == expected
    by_position = dboost.fit(frame[["x0", "x1"]].to_numpy(), frame["y"].to_numpy(), **OPTIONS)
    stream = Exporter(table_of(frame[["x0", "x1"]]))
    assert by_position.predict(stream).to_pylist() == by_position.predict(frame[["x0", "x1"]].to_numpy()).tolist()
    with pytest.raises(dboost.DataError, match="predict: the data have no column 'x1'"):
        booster.predict(reader_of(counts.drop(columns="x1"), Path()))
    empty = booster.predict(reader_of(counts[:0], Path()))
    assert empty.schema == pa.schema({"prediction": pa.float64()}) and len(empty.read_all()) == 0
    assert len(booster.predict(pl.from_arrow(table_of(counts[:0])).lazy())) == 0
    classes = dboost.fit(counts.assign(c=np.where(counts["x0"] > 0, "a", "b")), "c", features=["x0"], **OPTIONS)
    assert classes.predict(reader_of(counts[:0], Path())).schema == pa.schema({"prediction": pa.string()})
    assert classes.predict_proba(reader_of(counts[:0], Path())).schema.names == ["a", "b"]


@pytest.mark.parametrize("limit", [None, "200MB"])
def test_a_filter_of_numbers_takes_decimals_and_truth_values_of_other_files(limit: str | None, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    values = np.arange(60) % 3
    kinds = {
        pa.decimal128(22, 2): [Decimal(int(one)) for one in values], pa.int64(): values, pa.bool_(): values > 0,
        pa.float64(): values.astype(float),
    }  # fmt: skip
    rows = {"x": np.arange(60.0), "y": np.arange(60.0) ** 2}
    for i, (kind, column) in enumerate(kinds.items()):
        pq.write_table(pa.table({"k": pa.array(column, kind)} | rows), tmp_path / f"rows/{i}.parquet", row_group_size=20)
    expected = pd.concat([pd.DataFrame(rows)[values > 0]] * 4, ignore_index=True)
    of_kept = dboost.fit(expected, "y", max_iter=3)
    for predicate in (pc.field("k") > 0, pc.field("k") > 0.5, pc.field("k") >= Decimal("0.25")):
        assert dboost.fit(tmp_path / "rows", "y", features=["x"], filter=predicate, max_iter=3, memory_limit=limit) == of_kept
    with pytest.raises(dboost.DataError, match=r"filter \(k == \"a\"\)"):
        dboost.fit(tmp_path / "rows", "y", features=["x"], filter=pc.field("k") == "a", max_iter=3, memory_limit=limit)


@pytest.mark.parametrize("kind", ["file", "interface"])
def test_batches_whose_other_columns_are_not_read_do_not_stay_in_memory(kind: str, tmp_path: Path) -> None:
    n_batches, n_rows, n_columns = 40, 5000, 20
    columns = [np.arange(float(n_rows)) + j for j in range(n_columns - 1)]
    text = pa.array(["a", None, "b", "ccc"] * (n_rows // 4)).dictionary_encode()
    batch = pa.record_batch([*columns, text], names=[f"c{j}" for j in range(n_columns)])
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        for _ in range(n_batches):
            writer.write_batch(batch)
    with pa.OSFile(str(tmp_path / "rows.arrow")) as file:
        opened = pa.ipc.open_stream(file)
        data = opened if kind == "file" else Exporter(opened)
        before, largest, parts = pa.total_allocated_bytes(), 0, []
        for part in stream_of(data).partitions(["c3", "c19"]):
            largest = max(largest, pa.total_allocated_bytes() - before)
            parts.append(part)
    found = pa.concat_tables(parts)
    assert found["c3"].to_pylist() == columns[3].tolist() * n_batches
    assert found["c19"].to_pylist() == text.to_pylist() * n_batches
    assert found.nbytes < largest < 1.5 * found.nbytes + 2 * batch.nbytes < n_batches * batch.nbytes / 4
