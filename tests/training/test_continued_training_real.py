"""Incremental training on real streams: no worse than retraining on everything, and better than a model that is not updated.

hflights by month (January to June first) and elec2 in ten chunks (one first), rows in the order of time. After each chunk every
model predicts the next one, which it has not seen. Every first model has 100 trees, and so has each retrained one; a
continuation adds 20. All other parameters are the defaults.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

import dboost
from tests.helpers.real_data import RealTable, load, path


def chunks_of(name: str) -> tuple[RealTable, list[np.ndarray], int]:
    """Return a table, the rows of its chunks, and the number of chunks for the first model."""
    if name == "elec2":
        frame = pd.read_parquet(path(name))
        table = RealTable(name, frame.drop(columns="class").astype(np.float64), frame["class"].astype(np.int64), True)
        return table, np.array_split(np.arange(len(frame)), 10), 1
    table = load(name)
    return table, [np.flatnonzero(table.X["Month"] == month) for month in range(1, 13)], 6


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("name", ["elec2", "hflights"])
def test_following_a_stream(name: str) -> None:
    path(name)
    table, chunks, n_first = chunks_of(name)

    def fit(rows: np.ndarray, **options: Any) -> dboost.Booster:
        part = table.take(rows)
        return dboost.fit(part.X, part.y, **{"loss": "log_loss", "max_iter": 100, "n_threads": 2, "progress": False} | options)

    static = continued = retrained = fit(np.concatenate(chunks[:n_first]))
    losses = []
    for last in range(n_first, len(chunks)):
        if last > n_first:
            continued = fit(chunks[last - 1], start_from=continued, max_iter=20)
            retrained = fit(np.concatenate(chunks[:last]))
        following = table.take(chunks[last])
        losses.append([log_loss(following.y, model.predict_proba(following.X)) for model in (static, continued, retrained)])
    of_static, of_continued, of_retrained = np.transpose(losses)
    assert of_continued.mean() <= 1.02 * of_retrained.mean()
    assert of_continued.mean() < of_static.mean()
    # Almost never worse than the model that is not updated; where the stream returns to old patterns, retraining is worse too.
    worse = of_continued / of_static - 1
    assert np.sort(worse)[-2] < 0.1 and worse.max() < 0.25
