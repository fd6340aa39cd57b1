"""Every loss on a cluster gives the model of one process, whatever statistics its leaf values need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dboost
from dboost.losses import Loss
from tests.helpers.clusters import threads_cluster
from tests.helpers.fits import cut, saved

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


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "absolute_error": ("number", {"loss": "absolute_error"}),
    "quantile": ("number", {"loss": "quantile", "quantile": 0.9}),
    "huber": ("number", {"loss": "huber"}),
    "gamma": ("amount", {"loss": "gamma"}),
    "tweedie": ("amount", {"loss": "tweedie", "tweedie_power": 1.7}),
    "exponential": ("late", {"loss": "exponential"}),
    "own": ("number", {"loss": Fair()}),
    "TreeBoost": ("late", {"loss": "log_loss", "criterion": "gradient", "l2_regularization": 0.0}),
    "TreeBoost of classes": ("grade", {"criterion": "gradient"}),
    "trimmed": ("grade", {"influence_trimming": 0.2, "learning_rate": 0.5}),
    "sampled medians": ("number", {"loss": "absolute_error", "subsample": 0.6}),
    "sampled TreeBoost": ("late", {"loss": "log_loss", "criterion": "gradient", "subsample": 0.6}),
    "Algorithm 1": ("number", {"loss": "huber", "criterion": "gradient", "step": "line_search"}),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster() as client:
        yield client


#: With weights and offsets; the other pairs are slow tests.
WEIGHTED = ("quantile", "gamma", "own", "TreeBoost of classes")
SLOW = ("sampled medians", "sampled TreeBoost")


@pytest.mark.parametrize(
    ("case", "roles"),
    [
        pytest.param(case, roles, id=f"{case}, {name}", marks=() if is_fast else pytest.mark.slow)
        for case in CASES
        for name, roles, is_fast in (
            ("plain", {}, case not in SLOW),
            ("weight and offset", {"sample_weight": "w", "offset": "o"}, case in WEIGHTED),
        )
    ],
)
def test_the_model_is_that_of_one_process(client: Client, case: str, roles: dict[str, str]) -> None:
    target, options = CASES[case]
    common: dict[str, Any] = {"features": ["a", "b", "c"], "max_iter": 4, "max_leaf_nodes": 6, **options, **roles}
    alone = dboost.fit(FRAME, target, eval_set=FRAME[:90], **common)
    together = dboost.fit(
        cut(FRAME, [1, 1, 300, 620]), target, eval_set=dd.from_pandas(FRAME[:90], npartitions=2), client=client, **common
    )
    assert saved(together) == saved(alone)
    assert np.array_equal(together.predict(FRAME), alone.predict(FRAME))


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
