"""``dboost warmup``: compile the kernels before they are needed.

Numba compiles a kernel when it first meets the types of its arguments, and keeps the result on disk (in
``NUMBA_CACHE_DIR``, if that is set). Which kernels and types a fit needs depends on the kind of table and loss, so this
command fits and predicts a tiny table of each kind. In the image of a container it saves every later process the wait.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

import dboost


def run(arguments: argparse.Namespace) -> None:
    start = time.perf_counter()
    for name, data, target, parameters in kinds():
        began = time.perf_counter()
        booster = dboost.fit(data, target, max_iter=3, progress=False, **parameters)
        booster.predict(data)
        print(f"{name}: {time.perf_counter() - began:.1f} s")
    print(f"warm after {time.perf_counter() - start:.1f} s")


def kinds() -> Iterator[tuple[str, Any, Any, dict[str, Any]]]:
    """Tables and targets such that together they meet every kernel: name, data, target, parameters."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((2_000, 4))
    number = matrix[:, 0] + rng.standard_normal(len(matrix))
    frame = pd.DataFrame(matrix, columns=list("abcd"))
    frame["b"] = frame["b"].where(frame["b"] > -1)
    frame["letter"] = pd.Categorical(rng.choice(list("xyz"), len(frame)))
    frame["class"] = np.where(number > 0, "above", "below")
    frame["weight"] = rng.random(len(frame))
    yield "numbers, regression", matrix, number, {}
    yield "numbers, two classes", matrix.astype(np.float32), (number > 0).astype(np.float64), {}
    yield "depth-wise trees", matrix, number, {"growth": "depth_wise", "max_depth": 3}
    yield "categories, missing values, weights", frame, "class", {"sample_weight": "weight", "eval_set": frame}
