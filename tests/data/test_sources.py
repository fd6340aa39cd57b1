"""Sources that are read partition by partition: the same rows in the same order give the same model file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dboost
from dboost.data.partition import is_stream
from dboost.data.sources import Parts, Stream, stream_of

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


def table_of(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def files_of(frame: pd.DataFrame, folder: Path, n_files: int = 12, kind: str = "parquet") -> Path:
    """Write the rows to files whose natural order is not that of their names."""
    folder.mkdir()
    for k, some in enumerate(np.array_split(np.arange(len(frame)), n_files)):
        path = folder / f"part-{k}.{kind}"
        if kind == "csv":
            frame.iloc[some].to_csv(path, index=False)
        else:
            frame.iloc[some].to_parquet(path, index=False, row_group_size=100)
    return folder


def _reader(frame: pd.DataFrame, _: Path) -> Any:
    return table_of(frame).to_reader(max_chunksize=300)


class _Exporter:
    """An object that is nothing but an Arrow stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def _polars(frame: pd.DataFrame, _: Path) -> Any:
    return pytest.importorskip("polars").from_arrow(table_of(frame)).lazy()


def _scanned(frame: pd.DataFrame, folder: Path) -> Any:
    return pytest.importorskip("polars").scan_parquet(
        [folder / f"part-{k}.parquet" for k in range(len(list(files_of(frame, folder).iterdir())))]
    )


def _duckdb(frame: pd.DataFrame, _: Path) -> Any:
    return pytest.importorskip("duckdb").from_arrow(table_of(frame))


def _scanner(frame: pd.DataFrame, _: Path) -> Any:
    from pyarrow import dataset

    return dataset.dataset(table_of(frame)).scanner(batch_size=700)


STREAMS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "RecordBatchReader": _reader,
    "__arrow_c_stream__": lambda frame, _: _Exporter(table_of(frame)),
    "pyarrow scanner": _scanner,
    "polars LazyFrame": _polars,
    "polars scan_parquet": _scanned,
    "DuckDB relation": _duckdb,
}


def _dataset(frame: pd.DataFrame, folder: Path) -> Any:
    from pyarrow import dataset

    n_files = len(list(files_of(frame, folder).iterdir()))
    return dataset.dataset([folder / f"part-{k}.parquet" for k in range(n_files)])


def _fragment(frame: pd.DataFrame, folder: Path) -> Any:
    files_of(frame, folder, n_files=1)
    from pyarrow import dataset

    return next(dataset.dataset(folder).get_fragments())


def _arrow_files(frame: pd.DataFrame, folder: Path) -> Any:
    from pyarrow import dataset, feather

    folder.mkdir()
    paths = [folder / f"part-{k}.arrow" for k in range(12)]
    for path, some in zip(paths, np.array_split(np.arange(len(frame)), 12), strict=True):
        feather.write_feather(table_of(frame.iloc[some]), path)
    return dataset.dataset(paths, format="feather")


def appended(frame: pd.DataFrame, append: Callable[[pa.Table], Any]) -> None:
    for some in np.array_split(np.arange(len(frame)), 5):
        append(table_of(frame.iloc[some]))


def _delta(frame: pd.DataFrame, folder: Path) -> Any:
    deltalake = pytest.importorskip("deltalake")
    appended(frame, lambda rows: deltalake.write_deltalake(folder, rows, mode="append"))
    return deltalake.DeltaTable(folder)


def _iceberg(frame: pd.DataFrame, folder: Path) -> Any:
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    folder.mkdir()
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/rows")
    catalog.create_namespace("a")
    table = catalog.create_table("a.rows", table_of(frame).schema)
    appended(frame, table.append)
    return table


PARTS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "Parquet folder": files_of,
    "pyarrow dataset": _dataset,
    "pyarrow fragment": _fragment,
    "pyarrow dataset of Arrow files": _arrow_files,
    "Delta": _delta,
    "Iceberg": _iceberg,
    "CSV folder": lambda frame, folder: files_of(frame, folder, kind="csv"),
}
SOURCES = STREAMS | PARTS


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("limit", [None, "1MiB"])
def test_the_same_rows_in_the_same_order_give_the_same_model(kind: str, limit: str | None, tmp_path: Path) -> None:
    frame = frame_of()
    expected = dboost.fit(frame, "y", **OPTIONS)
    found = dboost.fit(SOURCES[kind](frame, tmp_path / "a"), "y", memory_limit=limit, **OPTIONS)
    assert found.sha256 == expected.sha256
    names = ["town", "x0", "x4"]  # in another order
    expected = dboost.fit(frame, "y", features=names, **OPTIONS)
    found = dboost.fit(SOURCES[kind](frame, tmp_path / "b"), "y", features=names, memory_limit=limit, **OPTIONS)
    assert found.sha256 == expected.sha256


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
    if kind not in ("__arrow_c_stream__", "DuckDB relation"):  # these pass the batches of the table on
        assert max(piece.nbytes for piece in pieces) <= 2 * most_bytes


def test_small_batches_are_joined() -> None:
    source = stream_of(table_of(frame_of()).to_reader(max_chunksize=10))
    assert isinstance(source, Stream)
    assert [piece.num_rows for piece in source.partitions(["x0"])] == [N_ROWS]


@pytest.mark.parametrize("limit", [None, "1MiB"])
@pytest.mark.parametrize("kind", STREAMS)
def test_errors_name_the_column_and_the_row_of_the_stream(kind: str, limit: str | None, tmp_path: Path) -> None:
    frame = frame_of()
    frame.loc[[3456, 3500], "y"] = None
    with pytest.raises(dboost.DataError, match=r"'y' .* in 2 rows, first in row 3456$"):
        dboost.fit(STREAMS[kind](frame, tmp_path / "a"), "y", memory_limit=limit, **OPTIONS)
    frame = frame_of()
    frame.loc[3456, "x2"] = np.inf
    with pytest.raises(dboost.DataError, match=r"'x2' holds an infinite value \(row 3456\)"):
        dboost.fit(STREAMS[kind](frame, tmp_path / "b"), "y", memory_limit=limit, **OPTIONS)
    with pytest.raises(dboost.DataError, match="no column 'z'"):
        dboost.fit(STREAMS[kind](frame, tmp_path / "c"), "z", memory_limit=limit, **OPTIONS)


@pytest.mark.parametrize("limit", [None, "1MiB"])
def test_roles_of_streams(limit: str | None) -> None:
    frame = frame_of()
    target, weight = frame["y"].to_numpy(), np.arange(N_ROWS) % 3.0
    X = frame.drop(columns="y")
    expected = dboost.fit(X, target, sample_weight=weight, **OPTIONS)
    found = dboost.fit(table_of(X).to_reader(max_chunksize=300), target, sample_weight=weight, memory_limit=limit, **OPTIONS)
    assert found.sha256 == expected.sha256
    named = table_of(frame.assign(w=weight)).to_reader(max_chunksize=300)
    assert dboost.fit(named, "y", sample_weight="w", memory_limit=limit, **OPTIONS).sha256 == expected.sha256
    with pytest.raises(dboost.DataError, match="target has 7 rows, the data have 4000"):
        dboost.fit(table_of(X).to_reader(max_chunksize=300), target[:7], memory_limit=limit, **OPTIONS)


def test_a_reader_that_was_read_before() -> None:
    reader = table_of(frame_of()).to_reader()
    dboost.fit(reader, "y", **OPTIONS)
    with pytest.raises(dboost.DataError, match="no rows: a RecordBatchReader can be read only once"):
        dboost.fit(reader, "y", **OPTIONS)


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
