"""Forged data sets: folders of `dboost.prepare` whose content is changed, with right digests, fitted in a child process.

``python -m tests.helpers.forged BASE FIRST LAST`` changes a copy of the folder BASE for each seed and fits it; it prints a line
of JSON before and after each fit, so that the parent finds the seed of a process that has died.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dboost
from dboost.data.columns.chunk import BinnedPartition
from dboost.prepared import dataset_files
from tests.helpers.fits import mixed_frame

ROOT = Path(__file__).parent.parent.parent
#: What may become of a forged data set: an error that names the folder, the model of the data that were not changed, or, if the
#: change makes other valid data, the model of as many rows.
REFUSED, EITHER, OTHER_DATA = ("error",), ("error", "same"), ("error", "same", "other")
OPTIONS: dict[str, Any] = {"max_iter": 2, "max_leaf_nodes": 5, "progress": False, "n_threads": 1}
#: So small that rows are streamed.
LIMIT = 64 * 10**6


def make(folder: Path, target: str | list[str] = "grade", **roles: Any) -> None:
    """Write a data set of 400 rows in four parts, one of which is empty."""
    frame = mixed_frame(400).assign(
        w=lambda rows: rows["w"] + 0.5,
        many=[f"id{i % 300}" for i in range(400)],
        only=np.arange(400) % 2,
        o=lambda rows: rows["x"] / 9,
    )
    features = ["x", "size", "rooms", "town", "kind", "flag", "many", "only"]
    dboost.prepare(frame, target, folder, **{"features": features, **roles}).close()
    stored, root, version = dataset_files.read_dataset(str(folder)), str(folder), dataset_files.new_version()
    (whole,) = stored.partitions()
    parts = [_part(whole, rows) for rows in (slice(0, 150), slice(150, 150), slice(150, 300), slice(300, 400))]
    with dataset_files.preparing(root, by_workers=False) as lease:
        files = tuple(dataset_files.write_part(root, version, part, i) for i, part in enumerate(parts))
        dataset_files.complete(replace(stored, parts=files), version, lease)


def _part(whole: BinnedPartition, rows: slice) -> BinnedPartition:
    return BinnedPartition(tuple(np.ascontiguousarray(codes[rows]) for codes in whole.codes), whole.roles.rows(rows))


class Parts:
    """The content of a data set, to be changed and written with right digests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.content = folder, json.loads((folder / "dataset.json").read_text("utf-8"))["content"]

    def write(self) -> None:
        text = json.dumps(self.content, ensure_ascii=False, sort_keys=True)
        checksum = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
        head = {"format": "forged", "version": dataset_files.VERSION, "sha256": checksum, "content": self.content}
        whole = json.dumps(head, ensure_ascii=False, sort_keys=True)
        (self.folder / "dataset.json").write_text(whole, "utf-8", errors="backslashreplace")

    def entry(self, i: int) -> list[Any]:
        """Return the entry of a part, or of the sample (-1): its name, its digest, ..."""
        entry: list[Any] = self.content["sample"] if i < 0 else self.content["parts"][i]
        return entry

    def path(self, i: int) -> Path:
        """Return the path of a part, or of the sample (-1)."""
        return self.folder / self.entry(i)[0]

    def change(self, i: int, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
        """Change the table of a part, or of the sample (-1)."""
        table = change(pq.read_table(self.path(i)))
        pq.write_table(table, self.path(i), **options)
        self.sign(i)

    def sign(self, i: int) -> None:
        self.entry(i)[1] = hashlib.sha256(self.path(i).read_bytes()).hexdigest()


#: Values that replace one in a description.
_VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 255, 2**31, 2**63, 10**30, 1.5, -0.0, 1e308, float("nan"), float("inf"), "", "..",
    "../codes", "x", "<f8", "|O", "(9,9)f8", [], [[]], [0], {}, {"name": "x"}, "\x1b[31m", "\ud800",
]  # fmt: skip
#: Entries of a description that other valid data may have.
_OF_DATA = {"features", "edges", "settings", "named", "parts", "sample", "by_workers"}


def change_description(rng: np.random.Generator, content: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Change an entry of a description; return what was changed, and what may become of it."""
    path: list[Any] = []
    parent: Any = content
    while True:
        keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
        key = keys[int(rng.integers(len(keys)))]
        path.append(key)
        if not isinstance(parent[key], dict | list) or not len(parent[key]) or rng.random() < 0.15:
            break
        parent = parent[key]
    how = str(rng.choice(["value", "value", "remove", "double", "add", "swap"]))
    old = parent[key]
    if how == "remove":
        del parent[key]
    elif how == "double" and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(old))
    elif how == "swap" and isinstance(parent, list) and len(parent) > 1:
        other = (key + 1) % len(parent)
        parent[key], parent[other] = parent[other], parent[key]
    elif how == "add" and type(old) in (int, float):
        parent[key] = old + int(rng.choice([-1, 1, 100]))
    else:
        how = "value"
        parent[key] = copy.deepcopy(_VALUES[int(rng.integers(len(_VALUES)))])
    what = f"{how} {'/'.join(map(str, path))}: {str(old)[:30]} -> {str(parent[key] if how in ('value', 'add') else '')[:30]!r}"
    return what, OTHER_DATA if path[0] in _OF_DATA else EITHER


def change_data(rng: np.random.Generator, folder: Path) -> tuple[str, tuple[str, ...]]:
    forged = Parts(folder)
    i, kind = int(rng.choice([0, 2, 3, -1])), int(rng.integers(9))
    table = pq.read_table(forged.path(i))
    names = [name for name in table.column_names if name != "target"]
    column = str(names[int(rng.integers(len(names)))])
    at, n = table.column_names.index(column), table.num_rows
    values = table.column(column).to_numpy().copy()
    if kind < 3:
        found = change_description(rng, forged.content)
    elif kind == 3:
        top = 0.5 if i < 0 else 255 if values.dtype == np.uint8 else 2**16 - 1 if values.dtype == np.uint16 else np.nan
        of_categories = forged.content["features"][at]["levels"] is not None if at < len(forged.content["features"]) else False
        is_valid = (i < 0 and not of_categories) or (values.dtype == np.uint8 and values.max() > 200)
        values[int(rng.integers(n))] = top
        forged.change(i, lambda one: one.set_column(at, column, pa.array(values)))
        found = f"{column} of part {i} beyond", OTHER_DATA if is_valid else REFUSED
    elif kind == 4:
        how = str(rng.choice(["fewer", "more", "none", "constant"]))
        rows = {"fewer": [*range(n - 1)], "more": [*range(n), 0], "none": [], "constant": [0] * 100_000}[how]
        forged.change(i, lambda one: one.take(pa.array(rows, pa.int64())))
        found = f"part {i} has {how} rows", REFUSED
    elif kind == 5:
        how = str(rng.choice(["wider", "text", "null", "renamed", "dropped", "added", "reordered", "list"]))
        changes: dict[str, Callable[[pa.Table], pa.Table]] = {
            "wider": lambda one: one.set_column(at, column, pa.array(values.astype(np.int64))),
            "text": lambda one: one.set_column(at, column, pa.array(values.astype(str))),
            "null": lambda one: one.set_column(at, column, pa.array(values, mask=np.arange(n) == 3)),
            "renamed": lambda one: one.rename_columns([name if name != column else "z" for name in one.column_names]),
            "dropped": lambda one: one.drop_columns(column),
            "added": lambda one: one.append_column("z", pa.array(values)),
            "reordered": lambda one: one.select(one.column_names[::-1]),
            "list": lambda one: one.set_column(at, column, pa.array([[value] for value in values.tolist()])),
        }
        forged.change(i, changes[how])
        found = f"{column} of part {i} is {how}", REFUSED
    elif kind == 6:
        how = str(rng.choice(["beyond", "text", "null", "number", "levels", "json"]))
        codes = table.column("target").to_numpy().copy()
        if how == "beyond":
            codes[3] = 99 if codes.dtype.kind == "i" else np.inf
        meta: dict[Any, Any] | None = table.schema.metadata
        if how in ("levels", "json"):
            meta = {"categories": '["a"]' if how == "levels" else "[["}
        replaced: Any = {"text": codes.astype(str), "null": None, "number": codes.astype(np.float64) + 0.5}.get(how, codes)
        array = pa.array(codes, mask=np.arange(n) == 3) if replaced is None else pa.array(replaced)

        def set_target(one: pa.Table) -> pa.Table:
            return one.set_column(len(one.column_names) - 1, "target", array).replace_schema_metadata(meta)

        forged.change(i, set_target)
        found = f"the target of part {i}: {how}", OTHER_DATA if how == "number" and meta is None else REFUSED
    elif kind == 7:
        raw = bytearray(forged.path(i).read_bytes())
        some = rng.integers(len(raw) - 2000 if rng.random() < 0.5 else 0, len(raw), size=2)
        for position in some.tolist():
            raw[position] = int(rng.integers(256))
        forged.path(i).write_bytes(bytes(raw))
        forged.sign(i)
        found = f"noise in part {i}", OTHER_DATA
    else:
        how = str(rng.choice(["absent", "empty", "folder", "pipe", "swapped", "zstd", "outside"]))
        path, other = forged.path(i), forged.path(0 if i != 0 else 3)
        if how == "swapped":
            mine, its = path.read_bytes(), other.read_bytes()
            path.write_bytes(its)
            other.write_bytes(mine)
            forged.sign(i)
            forged.sign(0 if i != 0 else 3)
        elif how == "zstd":
            forged.change(i, lambda one: one, compression="zstd")
        elif how == "outside":
            away = folder.parent / f"{folder.name}.parquet"
            away.write_bytes(path.read_bytes())
            forged.entry(i)[0] = f"../{away.name}"
        else:
            path.unlink()
            if how == "empty":
                path.write_bytes(b"")
                forged.sign(i)
            elif how == "folder":
                path.mkdir()
            elif how == "pipe":
                os.mkfifo(path)
        found = f"part {i} is {how}", OTHER_DATA if how == "swapped" else REFUSED
    forged.write()
    return found


def outcome(folder: Path, seed: int, same: dict[str, str]) -> str:
    """Fit a data set in one of several ways; return what became of it. same : digests of the models of the unchanged data."""
    how = ("fit", "streamed", "cv")[seed % 3]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = fitted(folder, how)
    except dboost.DBoostError as error:
        return "error" if str(folder) in str(error) else f"an error without the folder: {type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    rows = model.sources[-1]["rows"]
    if how != "cv" and rows != 400:
        return f"a model of {rows} rows"
    return "same" if model.sha256 == same[how] else "other"


def fitted(folder: Path, how: str) -> dboost.Booster:
    with dboost.Dataset(folder) as data:
        if how == "cv":
            return dboost.cv(data, folds=2, **OPTIONS).boosters[0]
        return dboost.fit(data, **OPTIONS, **({"memory_limit": LIMIT} if how == "streamed" else {}))


def run(base: Path, first: int, last: int) -> None:
    same = {how: fitted(base, how).sha256 for how in ("fit", "streamed", "cv")}
    for seed in range(first, last):
        folder = base.with_name(f"{base.name}-{seed}")
        shutil.copytree(base, folder)
        what, allowed = change_data(np.random.default_rng(seed), folder)
        print(json.dumps({"seed": seed, "what": what}), flush=True)
        found = outcome(folder, seed, same)
        print(json.dumps({"seed": seed, "what": what, "allowed": allowed, "found": found}), flush=True)
        shutil.rmtree(folder)


def violations(base: Path, first: int, last: int, timeout: float) -> tuple[list[str], dict[str, int]]:
    """Fit forged data sets in a child process; return what must not have happened, and how often each outcome has."""
    command = [sys.executable, "-m", "tests.helpers.forged", str(base), str(first), str(last)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    done = [line for line in lines if "found" in line]
    wrong = [json.dumps(line) for line in done if line["found"] not in line["allowed"]]
    if child.returncode or len(done) != last - first:
        wrong.append(f"the process has ended ({child.returncode}) after {lines[-1:]}: {child.stderr[-1500:]}")
    counts: dict[str, int] = {}
    for line in done:
        counts[line["found"]] = counts.get(line["found"], 0) + 1
    return wrong, counts


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
