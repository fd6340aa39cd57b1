"""Fits whose models are the same bytes on every Python; prints a digest of each model file.

`tests.test_install` copies this file into an empty folder and runs it with the Python of a fresh environment, where neither
the tests nor the checkout can be imported. Values are made by integer arithmetic and division, which are the same everywhere.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import dboost

N_ROWS = 3_000


def column(seed: int) -> np.ndarray:
    """Return numbers in [0, 1) in a fixed disorder."""
    values = np.arange(1, N_ROWS + 1, dtype=np.uint64) * np.uint64(2_654_435_761 + 2 * seed)
    values ^= values >> np.uint64(15)
    return (values * np.uint64(2_246_822_519) % np.uint64(2**32)).astype(np.float64) / 2**32


def table() -> pd.DataFrame:
    """Return numbers, missing values, a category, a weight and two targets."""
    frame = pd.DataFrame({name: column(i) for i, name in enumerate("abc")})
    frame.loc[frame["c"] < 0.2, "b"] = np.nan
    frame["kind"] = np.array(["red", "green", "blue", "grey"])[(4 * column(3)).astype(int)]
    frame["weight"] = 0.5 + column(4)
    frame["number"] = frame["a"] * frame["c"] + (frame["kind"] == "red") + column(5)
    frame["class"] = (frame["number"] * 1.5).astype(int).clip(upper=2)
    return frame


FEATURES = ["a", "b", "c", "kind"]
FITS: dict[str, dict[str, Any]] = {
    "regression": {"target": "number", "sample_weight": "weight", "loss": "squared_error"},
    "classes": {"target": "class", "loss": "log_loss", "subsample": 0.7},
}
#: Kernels of workers are compiled by each of them at the same time, so one fit is enough.
ON_CLUSTER = "regression"
COMMON: dict[str, Any] = {"max_iter": 20, "progress": False}


def digest(booster: dboost.Booster, name: str) -> str:
    """Save the model, load it, and return the digest of the file."""
    path = Path(f"{name}.json")
    booster.save(path)
    again = dboost.load(path)
    assert again == booster
    rows = table()
    assert np.array_equal(np.asarray(again.predict(rows)), np.asarray(booster.predict(rows)))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    frame = table()
    digests: dict[str, str] = {}
    tables: dict[str, pd.DataFrame] = {}
    for name, options in FITS.items():
        others = [options[role] for role in ("target", "sample_weight") if role in options]
        tables[name] = frame[FEATURES + others]
        digests[name] = digest(dboost.fit(tables[name], **COMMON, **options), name)
        print(name, digests[name], flush=True)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        lazy = dd.from_pandas(tables[ON_CLUSTER], npartitions=5)
        booster = dboost.fit(lazy, client=client, **COMMON, **FITS[ON_CLUSTER])
    assert digest(booster, "on a cluster") == digests[ON_CLUSTER]
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}: {dboost.__file__}", file=sys.stderr)


if __name__ == "__main__":
    main()
