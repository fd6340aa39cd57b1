"""Arrays of any byte order, alignment and memory order: the same model, no kernel compiled for them, no copy of the table."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numba.core.dispatcher import Dispatcher

import dboost
from dboost.data.columns.chunk import Chunk, MatrixColumns
from dboost.data.columns.fingerprint import fingerprint
from tests.helpers.table_forms import LAYOUTS, laid_out

N, P = 600, 6


#: All hold the same numbers; those of X are float16 numbers, so that every float type represents them.
KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = LAYOUTS | {
    "big-endian, unaligned": lambda a: laid_out(a.astype(a.dtype.newbyteorder(">")), "unaligned"),
    "longdouble": lambda a: a.astype(np.longdouble),
    "float16": lambda a: a.astype(np.float16),
    "float32": lambda a: a.astype(np.float32),
    "float32, unaligned": lambda a: laid_out(a.astype(np.float32), "unaligned"),
}


def table(n: int = N, p: int = P) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(1).normal(size=(n, p)).astype(np.float16).astype(np.float64)
    X[::7, 1] = np.nan
    return X, np.nan_to_num(X[:, 1]) + X[:, 2] * X[:, 0] + X[:, 3]


def signatures() -> set[tuple[str, Any]]:
    """Return what has been compiled of all kernels of the process."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("dboost.")]
    kernels = {one for module in modules for one in vars(module).values() if isinstance(one, Dispatcher)}
    return {(one.py_func.__qualname__, signature) for one in kernels for signature in one.signatures}


OPTIONS: dict[str, Any] = {"max_iter": 3, "max_leaf_nodes": 5, "n_threads": 1, "loss": "squared_error"}


def use(X: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    """Use arrays for everything that a fit and a model read."""
    booster = dboost.fit(
        X, y, sample_weight=np.abs(y) + 0.5, offset=y, eval_set=(X, y, y * y + 1, y), keep_summary=True, **OPTIONS
    )
    more = dboost.fit(X, y, start_from=booster, **OPTIONS)
    return (
        booster.sha256,
        more.sha256,
        booster.history["eval_squared_error"].tolist(),
        booster.predict(X).tolist(),
        booster.apply(X).tolist(),
        booster.shap_values(X[:20]).tolist(),
        booster.drift(X)["psi"].tolist(),
    )


@cache
def use_aligned(dtype: type) -> tuple[Any, ...]:
    X, y = table()
    return use(X.astype(dtype), y)


@pytest.mark.fast_cells(6)
@pytest.mark.parametrize("kind", KINDS)
def test_all_layouts_are_one_model(kind: str) -> None:
    X, y = table()
    wanted = use_aligned(np.float32 if "float32" in kind or "float16" in kind else np.float64)
    compiled = signatures()
    found = use(KINDS[kind](X), KINDS[kind](y) if "float" not in kind else y)
    assert found == wanted
    assert signatures() == compiled, "nothing was compiled for these arrays"


def test_values_that_share_memory_and_buffers_of_arrow() -> None:
    X, y = table()
    wide, weight = np.broadcast_to(X[:, :1], (N, 3)), np.broadcast_to(np.float64(2.0), N)
    expected = dboost.fit(wide.copy(), y, sample_weight=weight.copy(), **OPTIONS)
    assert dboost.fit(wide, y, sample_weight=weight, **OPTIONS) == expected
    buffers = [pa.py_buffer(b"x" + column.tobytes()).slice(1) for column in X.T]
    unaligned = pa.table([pa.Array.from_buffers(pa.float64(), N, [None, buffer]) for buffer in buffers], [*"abcdef"])
    assert dboost.fit(unaligned, y, **OPTIONS) == dboost.fit(pd.DataFrame(X, columns=[*"abcdef"]), y, **OPTIONS)


def test_fingerprints_are_of_values() -> None:
    X = np.random.default_rng(4).normal(size=(50_000, 3))
    other = X.copy()
    other[49_999, 2] += 1e-9
    for values, changed in ((X, other), (X[:, 2], other[:, 2])):

        def of(one: np.ndarray) -> int:
            return fingerprint(Chunk(len(one), MatrixColumns(one), matrix=one) if one.ndim == 2 else Chunk(len(one), (one,)))

        for kind in LAYOUTS:
            assert of(KINDS[kind](values)) == of(values), kind
            assert of(KINDS[kind](changed)) != of(values), kind


@cache
def peak(kind: str, limit: str | None) -> float:
    """Return how many MiB a fit on 13 MB of rows allocates at most."""
    X, y = table(100_000, 16)
    X = np.nan_to_num(X)
    dboost.fit(X[:300], y[:300], **OPTIONS)
    values = X if kind == "aligned" else (X * 100).astype(np.int64) if kind == "int64" else KINDS[kind](X)
    gc.collect()
    tracemalloc.start()
    try:
        booster = dboost.fit(values, y, memory_limit=limit, **OPTIONS | {"max_iter": 1})
        if values.dtype == np.float64:  # predictions of other types convert the matrix as a whole
            booster.predict(values)
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        *((kind, None) for kind in ("unaligned", "columns first", "big-endian", "every second", "float16", "int64")),
        *((kind, "10MiB") for kind in ("unaligned", "every second", "int64")),
    ],
)
def test_the_table_is_not_copied(kind: str, limit: str | None) -> None:
    assert peak(kind, limit) < peak("aligned", limit) + 8, "blocks of rows are converted; a copy has 12.8"
