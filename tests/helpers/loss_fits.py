"""A table with a target for every built-in loss, and fits with it."""

from __future__ import annotations

from typing import Any

import numpy as np

import dboost

rng = np.random.default_rng(0)
N = 1500
X = rng.normal(size=(N, 4))
SIGNAL = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] * (X[:, 2] > 0)
TARGET = {
    "squared_error": SIGNAL + rng.normal(size=N) / 2,
    "log_loss": (rng.random(N) < 1 / (1 + np.exp(-2 * SIGNAL))).astype(float),
    "poisson": rng.poisson(np.exp(SIGNAL)).astype(float),
    "gamma": rng.gamma(2.0, np.exp(SIGNAL) / 2),
    "tweedie": rng.poisson(np.exp(SIGNAL)) * rng.gamma(2.0, 0.5, N),
}
TARGET["exponential"] = TARGET["log_loss"]
TARGET |= dict.fromkeys(["absolute_error", "quantile", "huber", "expectile"], SIGNAL + rng.standard_t(2, size=N) / 2)
OPTIONS: dict[str, dict[str, Any]] = {"quantile": {"quantile": 0.7}, "expectile": {"expectile": 0.7}}


def fit(name: str, **settings: Any) -> dboost.Booster:
    return dboost.fit(X, TARGET[name], **{"loss": name, "max_iter": 10, "n_threads": 1, **OPTIONS.get(name, {}), **settings})
