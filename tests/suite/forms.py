"""Forms of the table of a call, and how errors name its roles and rows: `FORMS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from tests.helpers.fits import cut
from tests.suite.mistakes import ROLES, ROW, Mistake

#: Where the table is cut; one partition is empty.
_BORDERS = [30, 30, 60]
_ROLES = {"y": "target", "k": "target", "w": "sample_weight", "o": "offset"}


def plain(answers: Any) -> np.ndarray:
    """Return answers of any library as an array."""
    answers = answers.compute() if hasattr(answers, "compute") else answers
    answers = answers.read_all() if isinstance(answers, pa.RecordBatchReader) else answers
    answers = answers.to_pandas() if isinstance(answers, pa.Table) else answers
    found = np.asarray(answers)
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


@dataclass(frozen=True)
class Form:
    """A way to pass a table.

    starts : first rows of the partitions that errors name; none for a table that has no partitions.
    """

    make: Callable[[pd.DataFrame, Path], Any]
    starts: tuple[int, ...] = ()
    #: Whether target, weight and offset are arrays beside the table.
    is_apart: bool = False
    is_file: bool = False

    def rows(self, mistake: Mistake, folder: Path) -> dict[str, Any]:
        """Return data, target and roles."""
        frame = mistake.frame
        if not self.is_apart:
            return {"data": self.make(frame, folder), "target": mistake.target} | mistake.roles
        roles = {role: frame[name].to_numpy() for role, name in mistake.roles.items()}
        features = list(mistake.options["features"])
        return {"data": self.make(frame[features], folder), "target": frame[mistake.target].to_numpy()} | roles

    def can(self, mistake: Mistake) -> bool:
        """Return whether the form can have a mistake."""
        return (
            mistake.in_csv
            if self.is_file and self is FORMS["CSV"]
            else not (self.is_apart and mistake.what in ("names", "choice"))
        )

    def names(self, starts: tuple[int, ...]) -> dict[str, str]:
        """Return the names of roles and rows in errors. starts : of partitions."""
        roles = {name: role if self.is_apart else f"{role} '{name}'" for name, role in _ROLES.items()}
        return roles | {"row": _place(ROW, starts), "first": _place(0, starts)}


def _place(row: int, starts: tuple[int, ...]) -> str:
    if not starts:
        return f"row {row}"
    partition = int(np.searchsorted(starts, row, "right")) - 1
    return f"row {row - starts[partition]} of partition {partition}"


def _new(folder: Path, ending: str) -> Path:
    return folder / f"{len(list(folder.iterdir()))}{ending}"


def _parquet(frame: pd.DataFrame, folder: Path) -> Path:
    path = _new(folder, ".parquet")
    frame.to_parquet(path)
    return path


def _csv(frame: pd.DataFrame, folder: Path) -> Path:
    path = _new(folder, ".csv")
    frame.to_csv(path, index=False)
    return path


def _arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


FORMS: dict[str, Form] = {
    "pandas": Form(lambda frame, _: frame),
    "arrays beside it": Form(lambda frame, _: frame, is_apart=True),
    "Arrow": Form(lambda frame, _: _arrow(frame)),
    "polars": Form(lambda frame, _: pl.from_pandas(frame)),
    "stream": Form(lambda frame, _: _arrow(frame).to_reader(20)),
    "Dask": Form(lambda frame, _: cut(frame, _BORDERS), starts=(0, 30, 30, 60)),
    "Parquet": Form(_parquet, starts=(0,), is_file=True),
    "CSV": Form(_csv, starts=(0,), is_file=True),
}
assert set(ROLES) < set(_ROLES.values())
