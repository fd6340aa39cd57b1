"""Prepared data sets that were forged, with right digests, are refused or fitted as what they are; nothing else happens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dboost
from dboost.kernels.histograms import TILE_COLUMNS
from dboost.prepared.dataset_checks import CodesCheck
from dboost.prepared.prepared_dataset import open_folder
from dboost.rows.block_file import StorageError
from dboost.rows.shard_spec import plan_layout
from dboost.schema import MAX_CLASSES
from tests.helpers import forged
from tests.helpers.fits import mixed_frame
from tests.helpers.forged import OPTIONS, Blocks, Parts

pytestmark = pytest.mark.filterwarnings("ignore:offset has no effect")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    forged.make(folder, sample_weight="w", offset="o")
    return folder


@pytest.mark.slow
def test_forged_data_sets_are_refused_or_fitted(base: Path) -> None:
    wrong, counts = forged.violations(base, 10, 26, timeout=300)
    assert not wrong, "\n".join(wrong)
    assert counts["error"] > 8 and counts["same"]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["grade", "y"])
def test_many_forged_data_sets_are_refused_or_fitted(target: str, tmp_path: Path) -> None:
    forged.make(tmp_path, target, sample_weight="w", offset="o")
    first = ["grade", "y"].index(target) * 10_000 + 100
    wrong, _ = forged.violations(tmp_path, first, first + 100, timeout=600)
    assert not wrong, "\n".join(wrong)


def tile(column: int, row: int, code: int) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda views: views["tiles"].view(np.uint8)[0].__setitem__((row, column), code)


@pytest.mark.fast_cells(9)
@pytest.mark.parametrize(
    ("file", "change", "complaint"),
    [
        (
            "codes",
            tile(1, 7, 255),
            r"codes is damaged: block 0: column '\w+' has the bin code 255, but codes go up to \d+; prepare",
        ),
        ("codes", tile(6, 7, 1), "codes in columns that do not exist"),
        ("codes", lambda views: views["wide"].__setitem__((0, 9), 301), "'many' has the bin code 301, but codes go up to 300"),
        ("rows", lambda views: views["target"].__setitem__(3, np.nan), "the target is not finite"),
        ("rows", lambda views: views["target"].__setitem__(3, 3.0), "the target has codes that are none of its 3 categories"),
        ("rows", lambda views: views["target"].__setitem__(3, 0.5), "the target has codes that are none of its 3 categories"),
        ("rows", lambda views: views["target"].__setitem__(slice(None), 1.0), "a category of the target does not occur"),
        ("rows", lambda views: views["weight"].__setitem__(3, -1.0), "sample_weight is negative in 1 row, first in row 3"),
        ("rows", lambda views: views["weight"].__setitem__(3, 0.0), "sample_weight is zero in 1 row"),
        ("rows", lambda views: views["weight"].__setitem__(slice(None), 1e-30), "sample_weight is 1e-30 at most"),
        ("rows", lambda views: views["offset"].__setitem__(3, np.inf), "offset contains infinity"),
        ("portrait", lambda views: views["values"].__setitem__((3, 3), 7.0), "'town' has codes in the reference sample"),
        ("portrait", lambda views: views["values"].__setitem__((3, 0), np.inf), "'x' is infinite in the reference sample"),
    ],
)
@pytest.mark.parametrize("limit", [None, forged.LIMIT])
def test_blocks_are_checked(
    base: Path, tmp_path: Path, file: str, change: Callable[[dict[str, np.ndarray]], None], complaint: str, limit: int | None
) -> None:
    folder = tmp_path / "blocks"
    shutil.copytree(base / "blocks", folder)
    of_folder = Blocks(folder)
    of_folder.change(file, change)
    of_folder.write()
    with pytest.raises(StorageError, match=f"{folder}.*{complaint}"):
        dboost.fit(folder, memory_limit=limit, **OPTIONS)


@pytest.mark.parametrize(
    ("n_values", "row", "forged_value", "complaint"),
    [
        (5, 3, 0.5, "the target has values that the description does not have"),
        (5, slice(None), 1.0, "a value of the target does not occur"),
        (MAX_CLASSES + 1, 3, 0.5, "the target has values that are no int64"),
    ],
)
def test_numbers_as_targets_are_checked(n_values: int, row: Any, forged_value: float, complaint: str, tmp_path: Path) -> None:
    values = np.arange(max(n_values, 100)) % n_values
    dboost.prepare(pd.DataFrame({"x": np.sqrt(values + 1.0), "y": values}), "y", tmp_path / "blocks")
    of_folder = Blocks(tmp_path / "blocks")
    of_folder.change("rows", lambda views: views["target"].__setitem__(row, forged_value))
    of_folder.write()
    with pytest.raises(StorageError, match=complaint):
        dboost.fit(tmp_path / "blocks", loss="squared_error", **OPTIONS)


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
        (-1, lambda one: one.slice(5), "the reference sample has 395 of 400 rows"),
    ],
)
def test_parts_are_checked(
    base: Path, tmp_path: Path, part: int, change: Callable[[pa.Table], pa.Table], complaint: str | None
) -> None:
    folder = tmp_path / "parts"
    shutil.copytree(base / "parts", folder)
    of_folder = Parts(folder)
    of_folder.change(part, change)
    of_folder.write()
    if complaint is None:
        assert dboost.fit(dboost.Dataset(folder), **OPTIONS).sha256 == forged.fitted(base / "parts", "fit").sha256
        return
    with pytest.raises(StorageError, match=f"{folder}/{of_folder.path(part).name} is damaged: .*{complaint}.*; prepare"):
        dboost.fit(dboost.Dataset(folder), **OPTIONS)


@pytest.mark.parametrize("compression", ["zstd", "gzip", "brotli", "lz4"])
def test_parts_with_a_compression_that_expands_far_are_refused(base: Path, tmp_path: Path, compression: str) -> None:
    folder = tmp_path / "parts"
    shutil.copytree(base / "parts", folder)
    of_folder = Parts(folder)
    of_folder.change(0, lambda one: one, compression=compression)
    of_folder.write()
    with pytest.raises(StorageError, match="its compression is not that of a data set"):
        dboost.fit(dboost.Dataset(folder), **OPTIONS)


def test_a_part_of_too_many_rows_is_refused_before_it_is_decoded(base: Path, tmp_path: Path) -> None:
    folder, n = tmp_path / "parts", 1_000_000
    shutil.copytree(base / "parts", folder)
    of_folder = Parts(folder)
    of_folder.change(0, lambda one: pa.table({name: pa.repeat(one.column(name)[0], n) for name in one.column_names}))
    of_folder.write()
    assert of_folder.path(0).stat().st_size < n
    pool = pa.default_memory_pool()
    before, made = pool.max_memory(), pool.bytes_allocated()
    with pytest.raises(StorageError, match="it has 1000000 rows, but 150 were promised"):
        dboost.fit(dboost.Dataset(folder), **OPTIONS)
    assert pool.max_memory() == before or pool.max_memory() < made + n


def of_two_targets(folder: Path) -> tuple[Blocks, Parts]:
    forged.make(folder, ["y", "x"], features=["size", "town", "many"])
    return Blocks(folder / "blocks"), Parts(folder / "parts")


def test_data_sets_of_two_targets(tmp_path: Path) -> None:
    of_two_targets(tmp_path)
    frame = mixed_frame(400)
    for name in ("blocks", "parts"):
        (description,) = {"binned.json", "dataset.json"} & {one.name for one in (tmp_path / name).iterdir()}
        assert json.loads((tmp_path / name / description).read_text())["version"] == 2
        data = dboost.Dataset(tmp_path / name)
        np.testing.assert_array_equal(data._rows().targets(), frame[["y", "x"]].to_numpy().T)
        assert dboost.fit(data, **OPTIONS).outputs.names == ["y", "x"]


@pytest.mark.parametrize(
    ("file", "change", "complaint"),
    [
        ("rows", lambda views: views["target"].__setitem__((1, 3), np.nan), "a target is not a number"),
        ("portrait", lambda views: views["target"].__setitem__((0, 3), np.nan), "a target is not a number"),
        ("", lambda target: target.__setitem__("n_columns", 3), "the field 'target' of rows has another shape or type"),
        ("", lambda target: target.__setitem__("n_columns", 1), "n_columns of the target is 1, not a number from 2"),
        ("", lambda target: target.pop("n_columns"), "there are 0 distinct targets"),
        (
            "",
            lambda target: target["distinct"].append(2.0),
            "of several targets more is described than their number and labels",
        ),
    ],
)
def test_blocks_of_two_targets_are_checked(tmp_path: Path, file: str, change: Callable[[Any], Any], complaint: str) -> None:
    of_folder, _ = of_two_targets(tmp_path)
    if file:
        of_folder.change(file, change)
    else:
        change(of_folder.content["target"])
    of_folder.write()
    with pytest.raises(StorageError, match=complaint):
        dboost.Dataset(of_folder.folder)._rows()


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
    _, of_folder = of_two_targets(tmp_path)
    of_folder.change(part, change)
    of_folder.write()
    with pytest.raises(StorageError, match=complaint):
        dboost.Dataset(of_folder.folder)._rows().targets()


@pytest.mark.parametrize("n_targets", [1, 3, 2**53, "2"])
def test_another_number_of_targets_is_refused(tmp_path: Path, n_targets: Any) -> None:
    _, of_folder = of_two_targets(tmp_path)
    of_folder.content["n_targets"] = n_targets
    of_folder.write()
    with pytest.raises(StorageError, match=r"n_targets is|it has the columns|it has 5 columns, but"):
        dboost.Dataset(of_folder.folder)


def test_scores_of_another_number_of_outputs_are_refused(tmp_path: Path) -> None:
    frame = mixed_frame(200)
    model = dboost.fit(frame, "grade", features=["x", "town"], max_iter=2)
    dboost.prepare(frame, "grade", tmp_path / "data", start_from=model)
    of_folder = Blocks(tmp_path / "data")
    fields = of_folder.content["files"]["rows"]["fields"]
    (start,) = (field for field in fields if field[0] == "start")
    start[2] = [4]
    with open(tmp_path / "data" / "rows", "ab") as file:
        file.write(bytes(8 * of_folder.content["block_rows"]))
    of_folder.change("rows", lambda views: None)
    of_folder.write()
    with pytest.raises(StorageError, match="its scores are not those of a model with 3 outputs"):
        dboost.fit(tmp_path / "data", "grade", start_from=model, max_iter=1)


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("n", [1, 2, 2047, 2048, 2049, 4097])
def test_codes_beyond_those_of_a_column_are_found_in_any_row(n: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(n)
    frame = pd.DataFrame({f"c{j}": rng.integers(0, rng.integers(2, 300), n) for j in range(TILE_COLUMNS + 40)})
    frame["town"] = pd.Categorical.from_codes(rng.integers(0, 299, n), [f"id{i}" for i in range(300)])
    dboost.prepare(frame.assign(y=np.arange(n) * 1.0), "y", tmp_path / "data").close()
    data = open_folder(tmp_path / "data")
    layout = plan_layout(data.binning.n_bins, data.binning.is_categorical)
    check, buffer = CodesCheck(data.binning), data.codes.buffer()
    for block in range(data.codes.n_blocks):
        data.codes.read(block, buffer)
        views = data.codes.views(buffer, block)
        assert check(block, views) is None
        tiles = views["tiles"].view(np.uint8)
        for _ in range(40):
            number, row, at = (int(rng.integers(size)) for size in tiles.shape)
            before, code, column = int(tiles[number, row, at]), int(rng.integers(256)), number * TILE_COLUMNS + at
            features = layout.features[layout.first[column] : layout.first[column + 1]] if column < layout.n_tiled else []
            n_codes = prod(int(data.binning.n_bins[feature]) + 1 for feature in features)
            tiles[number, row, at] = code
            assert (check(block, views) is not None) == (code >= n_codes)
            tiles[number, row, at] = before
        if "wide" in views:
            views["wide"][0, -1] = data.binning.n_bins[-1] + 1
            assert "'town' has the bin code" in str(check(block, views))
    data.close()
