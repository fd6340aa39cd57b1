"""Every loss on a cluster gives the model of one process, whatever statistics its leaf values need."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dboost
from dboost.losses import Loss
from tests.helpers.clusters import threads_cluster
from tests.helpers.fits import cut

rng = np.random.default_rng(0)
N = 900
X = rng.normal(size=(N, 3))
SIGNAL = np.sin(2 * X[:, 0]) + X[:, 1] / 2
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(
    number=SIGNAL + rng.standard_t(2, N) / 3,
    amount=rng.gamma(2.0, np.exp(SIGNAL)),
    late=(SIGNAL + rng.normal(size=N) > 0).astype(int),
    grade=np.digitize(SIGNAL + rng.normal(size=N), [-0.5, 0.5]).astype(str),
    w=rng.integers(0, 5, N) / 4,
    o=rng.normal(size=N) / 4,
)


class Fair(Loss):
    """c² (|u| / c - log(1 + |u| / c))"""

    name = "fair"

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.abs(raw - y) - np.log1p(np.abs(raw - y))

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (raw - y) / (1 + np.abs(raw - y))

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.abs(raw - y)) ** 2


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster() as client:
        yield client


@pytest.mark.parametrize(
    ("loss", "complaint"), [("gamma", "strictly positive y: the target is 0"), ("poisson", "non-negative y")]
)
def test_targets_that_are_refused_name_their_row(client: Client, loss: str, complaint: str) -> None:
    bad = FRAME.assign(amount=np.where(np.arange(N) == 650, 0.0 if loss == "gamma" else -1.0, FRAME["amount"]))
    with pytest.raises(dboost.DataError, match=f"{complaint}.* row 30 of partition 2"):
        dboost.fit(cut(bad, [300, 620]), "amount", loss=loss, features=["a"], client=client)


def test_a_loss_that_is_wrong_is_noticed(client: Client) -> None:
    class Unfair(Fair):
        def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
            return 2 * super().gradient(y, raw)

    with pytest.raises(dboost.ParameterError, match="gradient of loss 'Unfair' is not the derivative"):
        dboost.fit(cut(FRAME, [300]), "number", loss=Unfair(), features=["a"], client=client)
