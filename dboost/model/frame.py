"""The trees as a table: one row per node, for people and for queries."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dboost.model.ensemble import Ensemble

COLUMNS = (
    "iteration", "class", "node", "depth", "feature", "threshold", "categories", "missing_left", "left", "right",
    "gain", "cover", "count", "value",
)  # fmt: skip


def to_frame(ensemble: Ensemble) -> pd.DataFrame:
    """One row per node of every tree.

    `iteration` counts from 1; `class` is the class a tree belongs to with K classes, missing otherwise; `feature` is
    missing in leaves; `categories` holds the levels that go left at a categorical split; `left` and `right` are node
    numbers, missing in leaves.
    """
    names = np.array([feature.name for feature in ensemble.features], object)
    parts = []
    for t, tree in enumerate(ensemble.trees):
        k = ensemble.n_outputs
        is_split = tree.feature >= 0
        depth = np.zeros(tree.n_nodes, np.int64)
        for node in np.flatnonzero(is_split):
            depth[tree.left[node]] = depth[tree.right[node]] = depth[node] + 1
        levels = [
            None if codes is None else [ensemble.features[f].levels[c] for c in codes]  # type: ignore[index]
            for f, codes in zip(tree.feature, tree.categories, strict=True)
        ]
        parts.append(
            {
                "iteration": np.full(tree.n_nodes, t // k + 1),
                "class": [ensemble.classes[t % k] if k > 1 and ensemble.classes else None] * tree.n_nodes,
                "node": np.arange(tree.n_nodes),
                "depth": depth,
                "feature": np.where(is_split, names[np.maximum(tree.feature, 0)], None),
                "threshold": tree.threshold,
                "categories": levels,
                "missing_left": pd.array(np.where(is_split, tree.missing_left, False), "boolean"),
                "left": tree.left,
                "right": tree.right,
                "gain": tree.gain,
                "cover": tree.cover,
                "count": tree.count,
                "value": tree.value,
            }
        )
    if not parts:
        return pd.DataFrame(columns=list(COLUMNS))
    joined = {name: _join([part[name] for part in parts]) for name in COLUMNS}
    frame = pd.DataFrame(joined)
    leaf = frame["left"] < 0
    for name in ("left", "right"):
        frame[name] = frame[name].astype("Int64").mask(leaf)
    frame["missing_left"] = frame["missing_left"].mask(leaf)
    return frame


def _join(pieces: list) -> object:
    if isinstance(pieces[0], list):
        return pd.Series([value for piece in pieces for value in piece], dtype=object)
    if isinstance(pieces[0], np.ndarray):
        return np.concatenate(pieces)
    return pd.concat([pd.Series(piece) for piece in pieces], ignore_index=True)
