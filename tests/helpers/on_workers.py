"""What tests run on workers, which import it: slow partitions, losses of users."""

from __future__ import annotations

import sys
import time

import numpy as np
import pandas as pd

from dboost.losses import Loss


def table(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n, 4)), columns=list("abcd"))
    return frame.assign(y=frame["a"] + rng.normal(size=n))


def slow(seconds: float, part: pd.DataFrame) -> pd.DataFrame:
    time.sleep(seconds)
    return part


class TwoArgumentsError(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"combined {a} {b}")


class Squares(Loss):
    """Squared error as a loss of a user."""

    name = "my_squares"

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 0.5 * (y - raw) ** 2

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return raw - y

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.ones_like(raw)


class Failing(Squares):
    """A loss that fails on workers."""

    def __init__(self, error: str) -> None:
        self.error = error

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        if self.error == "two arguments":
            raise TwoArgumentsError(1, 2)
        sys.exit(3)
