"""Models and predictions do not depend on the instructions of the processor that NumPy and its BLAS choose their code by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy._core._multiarray_umath import __cpu_dispatch__ as dispatched

from dboost.kernels.exp_log import exp, log
from dboost.losses.classification import cheapest
from tests.helpers.clusters import ROOT

#: Fits whose results depend on functions of NumPy: links, metrics in NumPy, line searches, offsets, means of nodes.
FITS = """
import hashlib
import numpy as np, pandas as pd, dboost
rng = np.random.default_rng(0)
frame = pd.DataFrame(rng.normal(size=(2000, 4)), columns=list("abcd"))
frame["count"] = rng.poisson(np.abs(frame["a"]) + 0.1)
frame["amount"] = rng.gamma(2.0, np.abs(frame["b"]) + 0.1)
frame["kind"] = rng.choice(list("xyz"), len(frame))
frame["flag"] = frame["c"] + rng.normal(size=len(frame)) > 0
frame["d"] = frame["d"].abs()
for target, options in {
    "count": {"loss": "poisson", "step": "line_search", "offset": "c"},
    "amount": {"loss": "gamma", "eval_set": frame[::3]},
    "d": {"loss": "tweedie", "eval_set": frame[::3]},
    "kind": {"step": "line_search", "eval_set": frame[::3]},
    "flag": {"offset": "c", "eval_set": frame[::3]},
    "b": {"loss": "absolute_error", "sample_weight": "count"},
}.items():
    others = ["b", "d"] if target == "kind" else ["a", "kind"]
    booster = dboost.fit(frame, target, features=others, max_iter=3, progress=False, **options)
    print(target, booster.sha256, hashlib.sha256(booster.history.drop(columns="seconds").to_csv().encode()).hexdigest())
    values = booster.predict_proba(frame) if target in ("kind", "flag") else booster.predict(frame)
    print(target, hashlib.sha256(np.ascontiguousarray(values)).hexdigest())
"""


def printed(**changes: str) -> list[str]:
    """Return the lines that the fits print in a process with other environment variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    done = subprocess.run(
        [sys.executable, "-c", FITS], cwd=ROOT, env=kept | changes, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(not dispatched, reason="NumPy has one version of its code for this processor")
def test_other_instructions_give_the_same_bits() -> None:
    plain = printed(NPY_DISABLE_CPU_FEATURES=" ".join(dispatched), OPENBLAS_CORETYPE="Prescott")
    assert len(plain) == 12 and plain == printed()


#: A fit on two workers, one of which compiles for any processor and one for this one; which names the workers see, and digests.
FIT_ON_DIFFERENT_WORKERS = """
import os
import dask.array as da, numpy as np, dboost
from distributed import Client, Nanny, Scheduler, SpecCluster
if __name__ == "__main__":
    X = np.random.default_rng(0).standard_normal((4000, 6), dtype=np.float32)
    y = X[:, 0] * X[:, 1] + X[:, 2] > 0
    kinds = {"any": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, "this": {}}
    workers = {name: {"cls": Nanny, "options": {"nthreads": 1, "env": env}} for name, env in kinds.items()}
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": None}}
    with SpecCluster(workers=workers, scheduler=scheduler) as cluster, Client(cluster) as client:
        client.wait_for_workers(2)
        print(*sorted(client.run(lambda: os.environ.get("NUMBA_CPU_NAME", "this")).values()))
        data = da.from_array(X, chunks=(1000, 6)), da.from_array(y, chunks=1000)
        print(dboost.fit(*data, max_iter=3, client=client, progress=False).sha256)
    print(dboost.fit(X, y, max_iter=3, progress=False).sha256)
"""


@pytest.mark.slow
def test_workers_with_kernels_for_different_processors_train_the_same_model(tmp_path: Path) -> None:
    program = tmp_path / "fit.py"
    program.write_text(FIT_ON_DIFFERENT_WORKERS)
    done = subprocess.run(
        [sys.executable, str(program)], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    kinds, of_workers, alone = done.stdout.splitlines()
    assert kinds == "generic this" and of_workers == alone


@given(st.lists(st.floats(allow_subnormal=True), min_size=1, max_size=30))
def test_elementary_functions_beside_those_of_numpy(values: list[float]) -> None:
    given = np.array(values)
    with np.errstate(all="ignore"):
        for found, expected in ((exp(given), np.exp(given)), (log(given), np.log(given))):
            # The smallest numbers have fewer digits.
            np.testing.assert_allclose(found, expected, rtol=1e-15, atol=1e-307)
    assert exp(values[0]).shape == () and exp(given.reshape(-1, 1)).shape == (len(values), 1)


def test_costs_are_compared_as_sums_in_the_order_of_the_classes() -> None:
    rng = np.random.default_rng(0)
    probabilities, costs = rng.dirichlet(np.ones(4), 500), rng.uniform(size=(4, 4))
    expected = [
        min(range(4), key=lambda k, row=row: sum(cost * p for cost, p in zip(costs[k], row, strict=True)))
        for row in probabilities
    ]
    np.testing.assert_array_equal(cheapest(probabilities, costs), expected)
