"""``dboost warmup``: compile the kernels in advance.

Numba compiles a kernel at its first call with new types of arguments, and stores the result on disk (in ``NUMBA_CACHE_DIR``, if
that is set). The kernels and types of a fit depend on its table and loss, so this command fits and predicts small tables of
every kind with every loss, in this process and on a Dask cluster within this process, whose rounds use further kernels. When
it runs while a container image is built, no later process compiles.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dboost
from dboost.cluster.client.dask_clients import inside
from dboost.data.columns.binning import sample_rows
from dboost.errors import DBoostError
from dboost.kernels import cache_refusal
from dboost.kernels.checksum import checksum
from dboost.tuning import tuning

ROWS = 1_000
#: Weights that are multiplied with the gradients, and integer weights, which repeat rows.
FRACTIONS = np.linspace(0.5, 1.5, ROWS)
TIMES = (np.arange(ROWS) % 3).astype(np.float64)
#: Tables that are also used on a cluster; workers encode the others in the same way.
ON_CLUSTERS = ("columns of numbers", "categories", "categories of over 255 levels")
#: Tables that are fitted with every loss; the others with the default losses of the targets, one for each kind of Hessian.
FOR_LOSSES = ("columns of numbers", "categories")
#: Parameters that prevent packed histograms, so that small tables use the kernels of large ones.
UNPACKED = {"l1_regularization": 1e-9}
#: Rows for the kernels of many rows: trees added to an evaluation set (`trees.apply_trees`), sums of gradients that decide
#: whether histograms stay packed, roots of several trees (`trees.whole_trees`), and samples of rows.
MANY_ROWS = 65_537
#: The shortest training.
FEW: dict[str, Any] = {"max_iter": 2, "progress": False}


def run(arguments: argparse.Namespace) -> None:
    why = cache_refusal(checksum)
    if why is not None:
        raise DBoostError(f"there is nothing to do, since compiled kernels are not kept for later processes: {why}")
    start = time.perf_counter()
    # Kernels for many rows, and samples of large tables.
    sample_rows(tuning().bin_sample_rows + 1, 0)
    many = np.random.default_rng(0).standard_normal((MANY_ROWS, 2))
    dboost.fit(many, many[:, 0], eval_set=(many, many[:, 0]), **FEW)
    dboost.fit(many, np.arange(MANY_ROWS) % 3, loss="log_loss", subsample=0.5, **FEW)
    # Rows on both workers: one that has all of them uses the kernels of a fit without a cluster.
    keys = {"dboost.single-worker-values": 0, "dboost.session-per-host": False}
    with dask.config.set(keys), inside() as cluster:
        for name, data in tables().items():
            began = time.perf_counter()
            for client in (None, cluster) if name in ON_CLUSTERS else (None,):
                # On a cluster, fits with weights use no other kernels than those without.
                for weight in (None, FRACTIONS, TIMES) if client is None else (None,):
                    for target in targets().values():
                        _use(data, target, weight, client=client)
                        if name == "columns of numbers" and client is None:
                            _use(data, target, weight, **UNPACKED)
                    if name in FOR_LOSSES:
                        _use(data, targets()["three classes"], weight, client=client, multi_strategy="multi_output_tree")
                    for loss, (target, options) in losses().items() if name in FOR_LOSSES else ():
                        _use(data, target, weight, client=client, loss=loss, **options)
            print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
    print(f"warm after {time.perf_counter() - start:.1f} s")


def _use(data: Any, target: np.ndarray, weight: np.ndarray | None, **options: Any) -> None:
    """Fit and predict a table; with a client, the evaluation set is on the cluster too."""
    weights: Any = weight
    if isinstance(data, pd.DataFrame):  # columns have another memory layout than arrays
        frame: Any = data.assign(target=target, weight=FRACTIONS if weight is None else weight)
        features = [str(name) for name in data.columns]
        weights = None if weight is None else "weight"
        held_out: Any = frame
        if options.get("client"):
            held_out, frame = dd.from_pandas(frame, npartitions=1), dd.from_pandas(frame, npartitions=2)
        booster = dboost.fit(frame, "target", features=features, sample_weight=weights, eval_set=held_out, **FEW, **options)
    else:
        held_out = (data, target) if weight is None else (data, target, weight)
        booster = dboost.fit(data, target, sample_weight=weights, eval_set=held_out, **FEW, **options)
    booster.predict(data)
    booster.apply(data)
    if isinstance(data, np.ndarray):
        booster.predictor()(data[0])


def tables() -> dict[str, Any]:
    """Return tables with every kind of column, as arrays and frames."""
    rng = np.random.default_rng(0)
    double = rng.standard_normal((ROWS, 4))
    single = double.astype(np.float32)
    whole = rng.integers(0, 100, ROWS)
    columns = pd.DataFrame({"double": double[:, 0], "single": single[:, 0], "whole": whole, "flag": whole > 50})
    few, many = rng.choice(list("xyz"), ROWS), np.arange(ROWS) % 400
    return {
        "float64 matrix": double,
        "float32 matrix": single,
        "columns of numbers": columns,
        "categories": columns.assign(few=pd.Categorical(few)),
        "categories of over 255 levels": columns.assign(many=many.astype(str)),
    }


def targets() -> dict[str, np.ndarray]:
    """Return a target for every default loss."""
    number = np.random.default_rng(1).standard_normal(ROWS)
    return {"number": number, "two classes": number > 0, "three classes": np.digitize(number, [-0.5, 0.5]).astype(str)}


def losses() -> dict[str, tuple[np.ndarray, dict[str, Any]]]:
    """Return targets and options of the losses that are not a default."""
    amount = np.random.default_rng(2).gamma(2.0, size=ROWS)
    cases: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
        name: (amount, {}) for name in ("absolute_error", "huber", "normal", "poisson", "gamma", "tweedie")
    }
    levels = {"quantile": (amount, {"quantile": 0.9}), "expectile": (amount, {"expectile": 0.9})}
    cases |= levels | {"exponential": (amount > 1, {})}
    return cases | {"half_brier_score": (np.digitize(amount, [1.0, 2.0]), {"boosting": "forest"})}
