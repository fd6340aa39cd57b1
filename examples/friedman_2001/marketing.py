"""The demographic data (section 9): household income in nine brackets from thirteen answers of a questionnaire.

The paper trains on two thirds of the households and reports the error on the rest at the number of trees that is best there.
Nine of the answers are nominal, and many are missing. The table (the columns of R's ``ElemStatLearn::marketing``) is not part
of the project: pass it as a Parquet file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dboost
from examples.friedman_2001.experiments import REGRESSION, TREEBOOST
from examples.friedman_2001.paper import LEAVES

TARGET = "Income"
ITERATIONS = 1000


def split(file: Path, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split into two thirds for training, and the rest."""
    frame = pd.read_parquet(file)
    order = np.random.default_rng(seed).permutation(len(frame))
    cut = len(order) * 2 // 3
    return frame.iloc[order[:cut]], frame.iloc[order[cut:]]


def fit(train: pd.DataFrame, test: pd.DataFrame, n_leaves: int, **settings: Any) -> dboost.Booster:
    # Brackets contain hundreds of households: a leaf with one household would be noise.
    settings = TREEBOOST | {"max_leaf_nodes": n_leaves, "min_samples_leaf": 10, "max_iter": ITERATIONS} | settings
    return dboost.fit(
        train, TARGET, eval_set=test, eval_metric="mean_absolute_error", early_stopping_rounds=200, n_threads=1,
        progress=False, **settings,
    )  # fmt: skip


def error(booster: dboost.Booster, train: pd.DataFrame, test: pd.DataFrame) -> float:
    """Return the mean absolute error over that of the median."""
    truth = test[TARGET].to_numpy(float)
    constant = np.abs(truth - np.median(train[TARGET])).mean()
    return float(np.abs(truth - booster.predict(test)).mean() / constant)


def errors(file: Path, seed: int = 0) -> dict[str, list[float]]:
    """Return errors by loss and by the number of leaves."""
    train, test = split(file, seed)
    return {
        name: [error(fit(train, test, n_leaves, **settings), train, test) for n_leaves in LEAVES]
        for name, settings in REGRESSION.items()
    }


def curves(file: Path, seed: int = 0) -> tuple[pd.Series, dict[str, pd.DataFrame]]:
    """Return relative importances, and partial dependence on the six most important features."""
    train, test = split(file, seed)
    booster = fit(train, test, 6, loss="huber")
    importance = booster.importance()
    return importance, {feature: booster.partial_dependence(train, [feature]) for feature in importance.index[:6]}
