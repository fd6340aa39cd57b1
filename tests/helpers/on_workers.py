"""What tests run on workers, which import it: fits in tasks, slow partitions, a loss that fails."""

from __future__ import annotations

import sys
import time

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import get_client

import dboost
from dboost.losses import Loss


def table(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n, 4)), columns=list("abcd"))
    return frame.assign(y=frame["a"] + rng.normal(size=n))


def fit_of_a_frame() -> str:
    return dboost.fit(dd.from_pandas(table(), npartitions=3), "y", max_iter=2, client=get_client()).sha256


def fit_of_a_table() -> str:
    return dboost.fit(table(), "y", max_iter=2, client=get_client()).sha256


def fit_of_prepared_rows() -> str:
    with dboost.prepare(dd.from_pandas(table(), npartitions=3), "y") as data:
        return dboost.fit(data, max_iter=2).sha256


def fit_of_published_rows() -> str:
    with dboost.Dataset.published("rows of waits") as data:
        return dboost.fit(data, max_iter=2).sha256


def slow(seconds: float, part: pd.DataFrame) -> pd.DataFrame:
    time.sleep(seconds)
    return part


class TwoArgumentsError(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"combined {a} {b}")


class Failing(Loss):
    """Squared error that fails on workers."""

    name = "failing"

    def __init__(self, error: str) -> None:
        self.error = error

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 0.5 * (y - raw) ** 2

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        if self.error == "two arguments":
            raise TwoArgumentsError(1, 2)
        sys.exit(3)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.ones_like(raw)
