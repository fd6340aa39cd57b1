"""Prepared data sets that were forged, with right digests, are refused or fitted as what they are; nothing else happens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dboost
from dboost import DataError
from dboost.prepared.dataset_files import VERSION
from dboost.rows.block_file import StorageError
from tests.helpers import forged
from tests.helpers.fits import mixed_frame
from tests.helpers.forged import OPTIONS, Parts

pytestmark = pytest.mark.filterwarnings("ignore:offset has no effect")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "data"
    forged.make(folder, sample_weight="w", offset="o")
    return folder


@pytest.mark.slow
def test_forged_data_sets_are_refused_or_fitted(base: Path) -> None:
    wrong, counts = forged.violations(base, 10, 26, timeout=300)
    assert not wrong, "\n".join(wrong)
    assert counts["error"] > 8 and counts["same"]


@pytest.mark.slow
@pytest.mark.in_turns
@pytest.mark.parametrize("target", ["grade", "y"])
def test_many_forged_data_sets_are_refused_or_fitted(target: str, tmp_path: Path) -> None:
    forged.make(tmp_path / "data", target, sample_weight="w", offset="o")
    first = ["grade", "y"].index(target) * 10_000 + 100
    wrong, _ = forged.violations(tmp_path / "data", first, first + 100, timeout=600)
    assert not wrong, "\n".join(wrong)


def replaced(table: pa.Table, name: str, row: int, value: float) -> pa.Table:
    """Return a table with another value."""
    values = table.column(name).to_numpy().copy()
    values[row] = value
    return table.set_column(table.column_names.index(name), name, pa.array(values))


@pytest.mark.fast_cells(9)
@pytest.mark.parametrize("limit", [None, forged.LIMIT])
@pytest.mark.parametrize(
    ("part", "change", "complaint"),
    [
        (0, lambda one: one.slice(1), "it has 149 rows, but 150 were promised"),
        (2, lambda one: one.slice(0, 0), "it has 0 rows, but 150 were promised"),
        (1, lambda one: pa.concat_tables([one, one.schema.empty_table()]).cast(one.schema), None),
        (0, lambda one: one.drop_columns("b3"), "it has the columns"),
        (0, lambda one: one.set_column(1, "b1", pa.array(np.full(150, 4, np.int64))), "column b1 is of type int64, not uint8"),
        (0, lambda one: one.set_column(3, "b3", pa.array(np.full(150, 8, np.uint8))), "'town' has the bin code 8"),
        (0, lambda one: one.set_column(3, "b3", pa.nulls(150, pa.uint8())), "values are missing"),
        (0, lambda one: replaced(one, "b6", 3, 301), "'many' has the bin code 301, but codes go up to 300"),
        (0, lambda one: replaced(one, "target", 3, 7), "target has a code of no category in 1 row, first in row 3"),
        (0, lambda one: replaced(one, "weight", 3, -1.0), "sample_weight is negative in 1 row, first in row 3"),
        (0, lambda one: replaced(one, "weight", 3, 0.0), "sample_weight is zero in 1 row"),
        (0, lambda one: replaced(one, "offset", 3, np.inf), "offset contains infinity"),
        (-1, lambda one: one.slice(5), "the reference sample has 395 of 400 rows"),
        (-1, lambda one: replaced(one, "v3", 3, 7.0), "'town' has codes in the reference sample"),
        (-1, lambda one: replaced(one, "v0", 3, np.inf), "'x' is infinite in the reference sample"),
    ],
)
def test_parts_are_checked(
    base: Path, tmp_path: Path, part: int, change: Callable[[pa.Table], pa.Table], complaint: str | None, limit: int | None
) -> None:
    folder = tmp_path / "parts"
    shutil.copytree(base, folder)
    of_folder = Parts(folder)
    of_folder.change(part, change)
    of_folder.write()
    if complaint is None:
        assert dboost.fit(dboost.Dataset(folder), **OPTIONS).sha256 == forged.fitted(base, "fit").sha256
        return
    with pytest.raises(StorageError, match=f"{folder}/{of_folder.path(part).name} is damaged: .*{complaint}.*; prepare"):
        dboost.fit(dboost.Dataset(folder), memory_limit=limit, **OPTIONS)


@pytest.mark.parametrize("compression", ["zstd", "gzip", "brotli", "lz4"])
def test_parts_with_a_compression_that_expands_far_are_refused(base: Path, tmp_path: Path, compression: str) -> None:
    folder = tmp_path / "parts"
    shutil.copytree(base, folder)
    of_folder = Parts(folder)
    of_folder.change(0, lambda one: one, compression=compression)
    of_folder.write()
    with pytest.raises(StorageError, match="its compression is not that of a data set"):
        dboost.fit(dboost.Dataset(folder), **OPTIONS)


def test_a_part_of_too_many_rows_is_refused_before_it_is_decoded(base: Path, tmp_path: Path) -> None:
    folder, n = tmp_path / "parts", 1_000_000
    shutil.copytree(base, folder)
    of_folder = Parts(folder)
    of_folder.change(0, lambda one: pa.table({name: pa.repeat(one.column(name)[0], n) for name in one.column_names}))
    of_folder.write()
    assert of_folder.path(0).stat().st_size < n
    pool = pa.default_memory_pool()
    before, made = pool.max_memory(), pool.bytes_allocated()
    with pytest.raises(StorageError, match="it has 1000000 rows, but 150 were promised"):
        dboost.fit(dboost.Dataset(folder), **OPTIONS)
    assert pool.max_memory() == before or pool.max_memory() < made + n


def of_two_targets(folder: Path) -> Parts:
    forged.make(folder, ["y", "x"], features=["size", "town", "many"])
    return Parts(folder)


def test_data_sets_of_two_targets(tmp_path: Path) -> None:
    of_two_targets(tmp_path / "data")
    data = dboost.Dataset(tmp_path / "data")
    np.testing.assert_array_equal(data._rows().targets(), mixed_frame(400)[["y", "x"]].to_numpy().T)
    assert dboost.fit(data, **OPTIONS).outputs.names == ["y", "x"]


@pytest.mark.parametrize(
    ("part", "change", "complaint"),
    [
        (0, lambda one: one.drop_columns("target1"), "it has the columns"),
        (0, lambda one: one.set_column(4, "target1", pa.array(np.arange(150))), "its target is of type double"),
        (-1, lambda one: one.set_column(4, "target1", pa.nulls(400, pa.float64())), "values are missing"),
        (0, lambda one: one.set_column(4, "target1", pa.array(np.full(150, np.nan))), "target contains NaN"),
        (0, lambda one: one.replace_schema_metadata({"categories": '["a"]'}), "its target is of another kind"),
    ],
)
def test_parts_of_two_targets_are_checked(
    tmp_path: Path, part: int, change: Callable[[pa.Table], pa.Table], complaint: str
) -> None:
    of_folder = of_two_targets(tmp_path / "data")
    of_folder.change(part, change)
    of_folder.write()
    with pytest.raises(StorageError, match=complaint):
        dboost.Dataset(of_folder.folder)._rows().targets()


@pytest.mark.parametrize(
    ("entry", "value", "complaint"),
    [
        *(("n_targets", n, "n_targets is|it has the columns|it has 5 columns, but") for n in (1, 3, 2**53, "2")),
        *(("sample", [name, ""], f"'{name}' is not the name of a sample") for name in ("sample-a.parquet", "0123456789ab")),
    ],
)
def test_other_descriptions_are_refused(tmp_path: Path, entry: str, value: Any, complaint: str) -> None:
    of_folder = of_two_targets(tmp_path / "data")
    of_folder.content[entry] = value
    of_folder.write()
    with pytest.raises(StorageError, match=complaint):
        dboost.Dataset(of_folder.folder)


def test_sets_in_another_format_are_refused(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(base, folder)
    text = (folder / "dataset.json").read_text()
    for version, complaint in ((2, "older dboost"), (9, "format version 9")):
        (folder / "dataset.json").write_text(text.replace(f'"version": {VERSION}', f'"version": {version}'))
        for call in (dboost.Dataset, lambda path: dboost.fit(path, **OPTIONS)):
            with pytest.raises(StorageError, match=f"{folder}.*{complaint}"):
                call(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    with pytest.raises(DataError, match="other is there already and holds no prepared data"):
        dboost.prepare(mixed_frame(50), "y", tmp_path / "other")
