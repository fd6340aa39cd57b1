"""Small tables with columns of all kinds, and functions that partition and compare, for tests of complete fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import dask.dataframe as dd
import numpy as np
import pandas as pd

from dboost import Booster
from dboost.model import model_file

TOWNS = ["Gent", "Liège", "Mons", "Namur", "Oostende", "Brugge", "Aalst"]


def mixed_frame(n: int = 600, seed: int = 0) -> pd.DataFrame:
    """Numbers of several types with gaps, categories, text, truth values; targets of three kinds and a weight."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(2, n))
    town = rng.integers(len(TOWNS), size=n)
    kind = rng.integers(-1, 3, n)
    score = x + np.sin(3 * z) + 0.3 * town + kind % 2 + rng.normal(size=n) / 2
    size = np.where(rng.random(n) < 0.2, np.nan, z)
    return pd.DataFrame(
        {
            "x": x,
            "size": size.astype(np.float32),
            "age": rng.integers(18, 90, n),
            "rooms": np.where(rng.random(n) < 0.1, np.nan, np.round(x + 3)),
            "town": pd.Series([None if rng.random() < 0.05 else TOWNS[t] for t in town], dtype=object),
            "kind": pd.Categorical.from_codes(kind, ["c", "b", "a", "never"]),
            "flag": rng.random(n) < 0.5,
            "y": score,
            "late": (score > np.median(score)).astype(np.int64),
            "grade": np.array(["low", "middle", "high"], object)[np.digitize(score, np.quantile(score, [0.3, 0.8]))],
            "w": rng.integers(0, 4, n).astype(np.float64) / 2,
        }
    )


FEATURES = ["x", "size", "age", "rooms", "town", "kind", "flag"]
NUMERIC = ["x", "size", "age", "rooms"]
TARGETS = ["y", "late", "grade"]


def cut(frame: pd.DataFrame, at: Sequence[int]) -> dd.DataFrame:
    """Return a lazy frame with partition borders at these rows (equal ones make empty partitions), each with own categories."""
    borders = [0, *sorted(min(place, len(frame)) for place in at), len(frame)]
    pieces = []
    for a, b in pairwise(borders):
        piece = frame.iloc[a:b].copy()
        for name in piece.columns:
            if isinstance(piece[name].dtype, pd.CategoricalDtype):
                piece[name] = piece[name].cat.remove_unused_categories()
        pieces.append(piece)
    return dd.from_map(lambda piece: piece, pieces, meta=frame.iloc[:0])


def saved(booster: Booster, *, named: bool | None = None) -> bytes:
    """Return the bytes of the model's file without the name of its target, which may be given by its values; `named` overrides
    whether the columns had names."""
    ensemble = replace(booster.ensemble, target_name=None)
    return model_file.dumps(ensemble if named is None else replace(ensemble, named=named))


def rare_class_rows(n_classes: int, seed: int, n: int = 60_000) -> tuple[np.ndarray, np.ndarray]:
    """The last class has 0.01 % of the rows, the others are common; all depend weakly on the features."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    rare = rng.random(n) < 1 / (1 + np.exp(10.0 - 1.2 * X[:, 0] - X[:, 1]))
    common = np.zeros(n, int) if n_classes == 2 else (X[:, 2] + rng.normal(size=n) > 0).astype(int)
    return X, np.where(rare, n_classes - 1, common)
