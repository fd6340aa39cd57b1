"""Small fits with many options, whose models tests compare with those of other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dboost
from dboost.tuning import tuned

N_ROWS = 300
FITS: dict[str, dict[str, Any]] = {
    "squared_error": {},
    "weights_threads": {"sample_weight": True, "n_threads": 3},
    "whole_weights": {"sample_weight": "whole", "loss": "quantile", "quantile": 0.3},
    "small_leaves": {"min_samples_leaf": 1, "max_leaf_nodes": 250, "growth": "depth_wise"},
    "absolute_error": {"loss": "absolute_error", "sample_weight": True},
    "huber": {"loss": "huber"},
    "poisson": {"loss": "poisson", "sample_weight": True},
    "gamma": {"loss": "gamma"},
    "tweedie": {"loss": "tweedie", "min_samples_leaf": 3},
    "classes_2": {"target": 2, "subsample": 0.6, "max_features": 0.7, "n_threads": 2},
    "classes_3": {"target": 3, "max_delta_step": 0.3},
    "one_tree": {"target": 3, "multi_strategy": "multi_output_tree", "sample_weight": True},
    "exponential": {"target": 2, "loss": "exponential", "l1_regularization": 0.5},
    "trimmed": {"target": 2, "influence_trimming": 0.1},
    "monotonic": {"monotonic_cst": {"a": 1, "d": -1}},
    "interaction": {"interaction_cst": [["a", "c"], ["b", "d", "e"]]},
    "proposal_tree": {"target": 2, "split_proposal": "tree", "max_bins": 16},
    "proposal_node": {"target": 2, "split_proposal": "node", "max_bins": 16},
    "proposal_exact": {"split_proposal": "exact"},
    "line_search": {"loss": "absolute_error", "step": "line_search", "criterion": "gradient"},
    "streamed": {"memory_limit": "64MiB"},
    "streamed_classes": {"memory_limit": "64MiB", "target": 3, "min_samples_leaf": 2},
    "bites": {"arcbites": dboost.ArcBites(n_bites=2, trees_per_visit=2, visits=1)},
}


def table() -> pd.DataFrame:
    """Columns of several kinds, one with missing values and one with more levels than a byte has values."""
    rng = np.random.default_rng(3)
    data = pd.DataFrame(
        {
            "a": rng.normal(size=N_ROWS),
            "b": rng.normal(size=N_ROWS).astype(np.float32),
            "c": pd.Categorical(rng.choice(list("uvwxyz"), N_ROWS)),
            "d": rng.integers(0, 3, N_ROWS),
            "e": pd.Categorical.from_codes(np.arange(N_ROWS) * 7 % N_ROWS, [f"level {i}" for i in range(N_ROWS)]),
        }
    )
    data.loc[::7, "a"] = np.nan
    data.loc[::11, "c"] = None
    return data


def train(name: str, folder: Path) -> None:
    """Fit a model, save it, and return its predictions."""
    options, data = dict(FITS[name]), table()
    rng = np.random.default_rng(5)
    signal = data.b + data.a.fillna(0.5) + (data.c == "u") + 0.1 * rng.normal(size=N_ROWS)
    classes = options.pop("target", None)
    target = signal.abs() + 0.1 if classes is None else pd.qcut(signal, classes, labels=False).astype(str)
    if "sample_weight" in options:
        weight = rng.integers(1, 4, N_ROWS).astype(float)
        options["sample_weight"] = weight if options["sample_weight"] == "whole" else weight * 0.37
    with tuned(resident_rows=0, block_rows=64):  # memory limits are too small for the rows, and blocks are short
        model = dboost.fit(data, target, **({"max_iter": 3, "max_leaf_nodes": 6} | options))
    assert (model.history["bytes_read"] > 0).all() == ("memory_limit" in options)
    model.save(folder / f"{name}.dboost")
    np.save(folder / f"{name}.npy", np.asarray(model.predict(data)).astype("U32"))
    if name == "squared_error":
        np.save(folder / "shapley.npy", np.asarray(model.shap_values(data.head(20))))
