"""Real tables for tests and benchmarks, from the folder beside the checkout (``../shared/data``).

They are not part of the project: `load` skips the test if the table does not exist. For each table this module states which
column is the target, which columns must not be used (they are only known afterwards, or encode the target), and how to split:
a random 80 : 20 permutation, or the official test set of adult.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"

#: hflights: known only after departure, or identifiers.
AFTER_DEPARTURE = [
    "DepTime", "ArrTime", "ActualElapsedTime", "AirTime", "DepDelay", "TaxiIn", "TaxiOut",
    "Cancelled", "CancellationCode", "Diverted",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class RealTable:
    """Features and target of one table; `X` holds numbers and pandas categories, NaN where missing."""

    name: str
    X: pd.DataFrame
    y: pd.Series
    is_classification: bool

    def split(self, seed: int = 0, train_share: float = 0.8) -> tuple[RealTable, RealTable]:
        """Training and test rows: a permutation by ``numpy.random.default_rng(seed)``, cut at `train_share`."""
        order = np.random.default_rng(seed).permutation(len(self.X))
        cut = round(train_share * len(order))
        return self.take(order[:cut]), self.take(order[cut:])

    def take(self, rows: np.ndarray) -> RealTable:
        X, y = self.X.iloc[rows].reset_index(drop=True), self.y.iloc[rows].reset_index(drop=True)
        return RealTable(self.name, X, y, self.is_classification)

    @property
    def frame(self) -> pd.DataFrame:
        """Return features and target in one frame; the target's column is called ``target``."""
        return self.X.assign(target=self.y)


def path(name: str) -> Path:
    """Return the Parquet file of a table; skip the calling test if it does not exist."""
    file = FOLDER / name / f"{name}.parquet"
    if not file.exists():
        import pytest

        pytest.skip(f"no real table at ../shared/data/{name} beside the checkout")
    return file


def load(name: str) -> RealTable:
    """Return one of ``hflights`` (arrives over 15 minutes late?), ``adult`` (income), ``california`` (house value), ``covtype``
    (which of seven kinds of trees grow there) and ``elec2`` (does the price rise?).
    """
    known = {"hflights": _hflights, "adult": _adult, "california": _california, "covtype": _covtype, "elec2": _elec2}
    return known[name](pd.read_parquet(path(name)))


def _hflights(table: pd.DataFrame) -> RealTable:
    table = table[table["ArrDelay"].notna()]
    # The scheduled time of day in minutes: actual departure minus delay.
    actual = table["DepTime"] // 100 * 60 + table["DepTime"] % 100
    planned = (actual - table["DepDelay"]) % 1440
    X = table.drop(columns=[*AFTER_DEPARTURE, "ArrDelay"]).assign(sched_dep_min=planned)
    return _table("hflights", X, (table["ArrDelay"] > 15).astype(np.int64), True)


def _adult(table: pd.DataFrame) -> RealTable:
    y = (table["income"].astype(str).str.strip().str.rstrip(".") == ">50K").astype(np.int64)
    return _table("adult", table.drop(columns=["income", "fold"]), y, True)


def _california(table: pd.DataFrame) -> RealTable:
    target = "median_house_value"
    table = table[table[target].notna()]
    return _table("california", table.drop(columns=target), table[target].astype(np.float64), False)


def _covtype(table: pd.DataFrame) -> RealTable:
    return _table("covtype", table.drop(columns="Cover_Type"), table["Cover_Type"].astype(np.int64) - 1, True)


def _elec2(table: pd.DataFrame) -> RealTable:
    return _table("elec2", table.drop(columns="class"), table["class"].astype(np.int64), True)


def _table(name: str, X: pd.DataFrame, y: pd.Series, is_classification: bool) -> RealTable:
    X = X.reset_index(drop=True)
    for column in X.columns:
        is_number = pd.api.types.is_numeric_dtype(X[column])
        X[column] = X[column].astype(np.float64) if is_number else X[column].astype("category")
    return RealTable(name, X, y.reset_index(drop=True).rename("target"), is_classification)
