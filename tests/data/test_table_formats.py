"""Delta Lake and Iceberg tables: the rows of the current version, and the bits of plain Parquet files with the same rows."""

from __future__ import annotations

import builtins
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from distributed import Client

import dboost
from dboost.cli import main
from dboost.data.sources import iceberg_tables, parquet
from dboost.data.sources.paths import open_path, open_source
from dboost.data.sources.row_filter import RowFilter
from tests.helpers.object_store import served
from tests.helpers.tune import Tune

OPTIONS: dict[str, Any] = {"max_iter": 4, "max_leaf_nodes": 7, "min_samples_leaf": 3, "progress": False}


def rows(n: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=n),
            "count": pd.array(rng.integers(0, 2**40, n), dtype="Int64"),
            "town": rng.choice(["Ulm", "Aalen", "Zürich"], n),
            "flag": pd.array(rng.random(n) < 0.5, dtype="boolean"),
            "part": rng.integers(0, 3, n),
        }
    )
    frame["y"] = frame["a"] * 2 + frame["flag"].astype(float) + (frame["town"] == "Ulm") + frame["part"]
    frame.loc[frame.index % 11 == 3, ["count", "town", "flag"]] = None
    return frame


def in_order(data: Any) -> pd.DataFrame:
    """Return the rows of a table as dboost reads them, as a whole or by small parts, with pandas' types of `rows`."""
    frame, again = (
        lazy.compute().reset_index(drop=True) for lazy in (open_path(data), open_source(data, most_bytes=2000).lazy())
    )
    pd.testing.assert_frame_equal(again.astype(object), frame.astype(object))
    return pd.DataFrame({name: column.astype(rows(9)[name].dtype) for name, column in frame.items()})


@pytest.fixture
def delta(tmp_path: Path) -> Path:
    """A table of several versions, with partition columns, deleted rows, and a column that is new in the second file."""
    deltalake = pytest.importorskip("deltalake")
    path = tmp_path / "a table, ü"
    frame = rows()
    deltalake.write_deltalake(path, frame[:100].drop(columns="flag"), partition_by=["part", "town"])
    deltalake.write_deltalake(path, frame[100:], mode="append", schema_mode="merge")
    deltalake.DeltaTable(path).delete("count % 7 = 0")
    return path


def test_a_delta_table_is_its_current_version(delta: Path) -> None:
    import deltalake

    frame = rows()
    frame.loc[:99, "flag"] = None
    expected = frame[~(frame["count"] % 7 == 0).fillna(False)]
    pd.testing.assert_frame_equal(read := in_order(str(delta)), in_order(deltalake.DeltaTable(delta)))
    assert len(list(delta.rglob("part=*/*/*.parquet"))) > len(deltalake.DeltaTable(delta).file_uris())
    assert 0 < len(read) == len(expected) < len(frame)
    keys = ["a"]
    pd.testing.assert_frame_equal(
        read.sort_values(keys, ignore_index=True)[frame.columns], expected.sort_values(keys, ignore_index=True)
    )


def test_an_old_version_of_a_delta_table(delta: Path, tmp_path: Path) -> None:
    import deltalake

    old = deltalake.DeltaTable(delta, version=0)
    read = open_path(old).compute()
    assert len(read) == 100 and "flag" not in read
    lazy = open_path(deltalake.DeltaTable(delta))
    n_rows = len(lazy)
    deltalake.write_deltalake(delta, rows(50, seed=1), mode="append")
    assert len(lazy) == n_rows, "the version was fixed when the table was opened"
    assert len(open_path(str(delta))) == n_rows + 50


def test_large_files_are_read_by_row_groups(tmp_path: Path, tune: Tune) -> None:
    deltalake = pytest.importorskip("deltalake")
    frame = rows(1000).drop(columns="flag")
    properties = deltalake.WriterProperties(max_row_group_size=100)
    deltalake.write_deltalake(tmp_path / "t", frame, writer_properties=properties)
    assert open_path(tmp_path / "t").npartitions == 1
    delete(tmp_path / "t", [0, 99, 100, 555, 999])
    tune(small_file_bytes=0, partition_bytes=10_000)
    lazy = open_path(tmp_path / "t")
    assert 3 <= lazy.npartitions <= 10
    kept = frame.drop(index=[0, 99, 100, 555, 999])
    assert lazy["a"].compute().tolist() == kept["a"].tolist()
    divided = open_source(tmp_path / "t", most_bytes=500).lazy()
    assert divided.npartitions > 50, "row groups are divided"
    assert divided["a"].compute().tolist() == kept["a"].tolist()


#: The digits of Z85 (rfc.zeromq.org/spec/32).
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def delete(table: Path, deleted: list[int]) -> None:
    """Delete rows of the first file in the log by a deletion vector, which deltalake reads but does not write."""
    pyroaring = pytest.importorskip("pyroaring")
    log = table / "_delta_log"
    entries = [json.loads(line) for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines()]
    add = next(entry["add"] for entry in entries if "add" in entry)
    vector = struct.pack("<iqi", 1681511377, 1, 0) + pyroaring.BitMap(deleted).serialize()
    words = struct.iter_unpack(">I", vector + b"\0" * (-len(vector) % 4))
    text = "".join(Z85[word // 85**k % 85] for (word,) in words for k in (4, 3, 2, 1, 0))
    descriptor = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(vector), "cardinality": len(deleted)}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    commit = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features},
        {"remove": {"path": add["path"], "deletionTimestamp": 0, "dataChange": True}},
        {"add": add | {"deletionVector": descriptor}},
    ]
    number = len(list(log.glob("*.json")))
    (log / f"{number:020}.json").write_text("".join(json.dumps(entry) + "\n" for entry in commit))


def test_deletion_vectors(tmp_path: Path, client: Client) -> None:
    deltalake = pytest.importorskip("deltalake")
    frame = rows(400).assign(town="u/ä %20")
    deltalake.write_deltalake(tmp_path / "a t", frame[:200], partition_by=["town"])
    deltalake.write_deltalake(tmp_path / "a t", frame[200:], mode="append", partition_by=["town"])
    delete(tmp_path / "a t", [0, 3, 199])
    read = in_order(tmp_path / "a t")
    assert len(read) == 397
    kept = frame.drop(index=[0, 3, 199])
    assert sorted(read["a"]) == sorted(kept["a"]) and set(read["town"]) == {"u/ä %20"}
    expected = dboost.fit(read, "y", **OPTIONS)
    assert dboost.fit(tmp_path / "a t", "y", client=client, **OPTIONS).sha256 == expected.sha256
    np.testing.assert_array_equal(expected.predict(tmp_path / "a t").compute(), expected.predict(read))


def set_in_log(table: Path, entry: dict[str, Any]) -> None:
    number = len(list((table / "_delta_log").glob("*.json")))
    (table / "_delta_log" / f"{number:020}.json").write_text(json.dumps(entry) + "\n")


def test_delta_tables_that_are_refused(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    frame = rows(20).drop(columns="flag")
    for name in ("mapped", "strange", "empty"):
        deltalake.write_deltalake(tmp_path / name, frame)
    log = tmp_path / "mapped" / "_delta_log"
    entries = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    metadata = next(entry["metaData"] for entry in entries if "metaData" in entry)
    schema = json.loads(metadata["schemaString"])
    for k, field in enumerate(schema["fields"]):
        field["metadata"] = {"delta.columnMapping.id": k + 1, "delta.columnMapping.physicalName": field["name"]}
    metadata["schemaString"] = json.dumps(schema)
    metadata["configuration"] = {"delta.columnMapping.mode": "name"}
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    entries = [protocol if "protocol" in entry else entry for entry in entries]
    (log / f"{0:020}.json").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    with pytest.raises(dboost.DataError, match=r"maps column names \(delta.columnMapping.mode=name\)"):
        open_path(tmp_path / "mapped")
    features = {"readerFeatures": ["rowsFromTheFuture"], "writerFeatures": ["rowsFromTheFuture"]}
    set_in_log(tmp_path / "strange", {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features})
    with pytest.raises(dboost.DataError, match="rowsFromTheFuture"):
        open_path(tmp_path / "strange")
    deltalake.DeltaTable(tmp_path / "empty").delete()
    with pytest.raises(dboost.DataError, match=r"the Delta table .*empty/? has no rows"):
        open_source(tmp_path / "empty")
    with pytest.raises(dboost.DataError, match=r"the Delta table .*empty/? has no rows"):
        open_source(deltalake.DeltaTable(tmp_path / "empty"))
    assert len(open_path(tmp_path / "empty")) == 0  # as of a file without rows: there is nothing to predict
    (tmp_path / "broken" / "_delta_log").mkdir(parents=True)
    with pytest.raises(dboost.DataError, match=r"cannot read the Delta table .*broken: "):
        open_path(tmp_path / "broken")


def test_files_of_a_table_are_not_read_without_its_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deltalake = pytest.importorskip("deltalake")
    lake = tmp_path / "lake"
    for name in ("one", "two"):
        deltalake.write_deltalake(lake / name, rows(20).drop(columns="flag"))
    for path in (lake, [str(lake / "one"), str(lake / "two")]):
        with pytest.raises(
            dboost.DataError, match=r"has the files of the Delta table .*(one|two), also those of older versions"
        ):
            dboost.fit(path, "y", **OPTIONS)
    model = str(tmp_path / "model.json")
    assert main(["train", str(lake), "--target", "y", "--output", model, "--only-new"]) != 0
    assert "also those of older versions: name its folder alone as the data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "library", "extra"), [("t", "deltalake", "delta"), ("t.metadata.json", "pyiceberg", "iceberg")]
)
def test_a_missing_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, library: str, extra: str
) -> None:
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    (tmp_path / "t.metadata.json").write_text("{}")
    for module in [module for module in sys.modules if module.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, module)
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        dboost.MissingExtraError, match=rf"{library} is not installed; .* pip install 'dboost\[{extra}\]'"
    ) as error:
        dboost.fit(str(tmp_path / name), "y", **OPTIONS)
    assert isinstance(error.value, ImportError)


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    found = sql.SqlCatalog("here", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"file://{warehouse}")
    found.create_namespace("lake")
    return found


@pytest.fixture
def iceberg(catalog: Any) -> Any:
    """A table of several snapshots with deleted rows, a renamed column, and one that the first file does not have."""
    arrow = pa.Table.from_pandas(rows(), preserve_index=False)
    first = arrow[:100].drop_columns(["flag"]).rename_columns({"a": "before"})
    table = catalog.create_table("lake.rows", first.schema)
    table.append(first)
    with table.update_schema() as update:
        update.rename_column("before", "a")
    with table.update_schema() as update:
        update.union_by_name(arrow.schema)
    table.append(arrow[100:])
    table.delete("part = 1")
    return table


def test_an_iceberg_table_is_its_current_snapshot(iceberg: Any, client: Client) -> None:
    frame = rows()
    frame.loc[:99, "flag"] = None
    expected = frame[frame["part"] != 1]
    read = in_order(iceberg)
    assert 0 < len(read) == len(expected) < len(frame)
    pd.testing.assert_frame_equal(
        read.sort_values("a", ignore_index=True)[frame.columns], expected.sort_values("a", ignore_index=True)
    )
    for other in (iceberg.scan(), iceberg.metadata_location):
        pd.testing.assert_frame_equal(in_order(other), read)
    expected = dboost.fit(read, "y", **OPTIONS)
    assert dboost.fit(iceberg, "y", client=client, **OPTIONS).sha256 == expected.sha256


def test_scans_of_an_iceberg_table(iceberg: Any) -> None:
    import pyiceberg

    some = open_path(iceberg.scan(row_filter="a > 0.5", selected_fields=("a", "y"))).compute()
    frame = rows()
    expected = frame[(frame["a"] > 0.5) & (frame["part"] != 1)]
    assert list(some) == ["a", "y"] and sorted(some["a"]) == sorted(expected["a"])
    first = iceberg.snapshots()[0].snapshot_id
    assert len(open_path(iceberg.scan(snapshot_id=first))) == 100
    lazy = open_path(iceberg)
    n_rows = len(lazy)
    iceberg.delete("part = 2")
    assert len(lazy) == n_rows, "the snapshot was fixed when the table was opened"
    with pytest.raises(dboost.DataError, match=r"the scan of the Iceberg table lake.rows has limit=3"):
        open_path(iceberg.scan(limit=3))
    with iceberg.update_schema() as update:
        update.rename_column("town", "city")
    with pytest.raises(dboost.DataError, match=r"more than memory_limit allows .* read as a whole, because .* another schema"):
        open_source(iceberg, most_bytes=10)
    iceberg.delete()
    with pytest.raises(dboost.DataError, match=r"the Iceberg table lake\.rows has no rows"):
        open_source(iceberg)
    assert len(open_path(iceberg)) == 0
    folder = iceberg.location().removeprefix("file://")
    with pytest.raises(dboost.DataError, match=r"has the files of the Iceberg table .*load it with pyiceberg"):
        open_path(folder)
    assert pyiceberg.__version__


def texts(frame: pd.DataFrame) -> list[list[str]]:
    """Return the values, without regard to whether text is a dictionary."""
    return [list(map(str, row)) for row in frame.itertuples(index=False)]


def test_large_files_of_an_iceberg_table_are_read_by_row_groups(
    catalog: Any, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    from pyiceberg import types as pyiceberg_types

    arrow = pa.Table.from_pandas(rows(900).drop(columns="flag"), preserve_index=False)
    table = catalog.create_table("lake.large", arrow.schema, properties={"write.parquet.row-group-limit": "100"})
    table.append(arrow[:450])
    table.append(arrow[450:])
    expected = open_path(table).compute()
    assert len(open_source(table).parts) == 2
    tune(small_file_bytes=0, partition_bytes=12_000)
    monkeypatch.setattr(parquet, "filesystem_of", lambda url: pytest.fail(f"{url}: the catalog has the credentials"))
    by_groups, divided = open_source(table), open_source(table, most_bytes=1000)
    assert 4 <= len(by_groups.parts) <= 10 and len(divided.parts) > 30
    for source in (by_groups, divided):
        assert texts(source.lazy().compute()) == texts(expected)
        assert list(source.lazy()[["y"]].compute()) == ["y"]
    in_order = pd.concat(divided.partitions(["town", "y"]), ignore_index=True)
    assert texts(in_order) == texts(expected[["town", "y"]])
    # A column that the files do not have is missing; a renamed one, and one of the same name, are read by pyiceberg.
    with table.update_schema() as update:
        update.add_column("more", pyiceberg_types.LongType())
    more = open_source(table, most_bytes=1000)
    assert len(more.parts) > 30 and more.lazy()["more"].compute().isna().all()
    with table.update_schema() as update:
        update.delete_column("a")
    with table.update_schema() as update:
        update.add_column("a", pyiceberg_types.DoubleType())
    again = open_source(table, most_bytes=100_000)
    assert len(again.parts) == 2 and again.lazy()["a"].compute().isna().all()


def test_a_filter_leaves_out_files_of_an_iceberg_table(catalog: Any) -> None:
    arrow = pa.Table.from_pandas(rows(300).drop(columns="flag"), preserve_index=False)
    days = [arrow.append_column("day", pa.array([day] * 300)) for day in range(5)]
    table = catalog.create_table("lake.days", days[0].schema)
    for day in days:
        table.append(day)
    read: list[str] = []
    real = iceberg_tables.read_footers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iceberg_tables, "read_footers", lambda files, **how: read.extend(files) or real(files, **how))
        for predicate, n_files in ((pc.field("day") >= 3, 2), (pc.field("day").isin([1]), 1), (pc.field("day") > 9, 0)):
            read.clear()
            found = open_source(table, row_filter=RowFilter(predicate))
            assert len(read) == n_files == len(found.parts)
            assert len(found.lazy()) == 300 * n_files
    expected = dboost.fit(pa.concat_tables(days[3:]), "y", **OPTIONS)
    assert dboost.fit(table, "y", filter=pc.field("day") >= 3, **OPTIONS).sha256 == expected.sha256
    missing = open_source(table, row_filter=RowFilter(pc.field("count").is_null() & (pc.field("day") == 0)))
    assert len(missing.lazy()) == rows(300)["count"].isna().sum()


def test_delete_files_of_an_iceberg_table(iceberg: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg reads position deletes but does not write them."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.table import DataScan, FileScanTask

    tasks = list(iceberg.scan().plan_files())
    where = tasks[0].file.file_path
    before = open_path(iceberg).compute()
    deletes = tmp_path / "deletes.parquet"
    pd.DataFrame({"file_path": [where] * 2, "pos": [0, 5]}).to_parquet(deletes, index=False)
    deleted = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=f"file://{deletes}", file_format=FileFormat.PARQUET, partition={},
        record_count=2, file_size_in_bytes=deletes.stat().st_size,
    )  # fmt: skip
    with_deletes = [FileScanTask(tasks[0].file, {deleted}, tasks[0].residual), *tasks[1:]]
    monkeypatch.setattr(DataScan, "plan_files", lambda self: with_deletes)
    after = open_path(iceberg).compute()
    first = tasks[0].file.record_count
    at = 0 if sorted(task.file.file_path for task in tasks)[0] == where else len(before) - first
    gone = before["a"].iloc[[at, at + 5]]
    assert sorted(after["a"]) == sorted(set(before["a"]) - set(gone)) and len(after) == len(before) - 2


@pytest.mark.slow
def test_a_delta_table_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deltalake = pytest.importorskip("deltalake")
    with served(tmp_path):
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        deltalake.write_deltalake("s3://lake/a table", rows().drop(columns="flag"), partition_by=["town"])
        read = open_path("s3://lake/a table").compute().reset_index(drop=True)
        booster = dboost.fit("s3://lake/a table", "y", **OPTIONS)
        assert len(booster.predict("s3://lake/a table")) == 300
    assert booster.sha256 == dboost.fit(read, "y", **OPTIONS).sha256
