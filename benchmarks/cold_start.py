"""The cost of the first fit of a process: compilation, imports, fitting 10,000 rows.

Each figure is from a new process. The first one has an empty cache of compiled kernels and compiles all of them; the others
load them. The other libraries are compiled already, and pay for their imports only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.engines import USUAL

#: Program of the measured process: imports, fits, and prints the two times.
FIRST_FIT = """
import sys, time
import numpy as np
rng = np.random.default_rng(0)
X = rng.standard_normal((int(sys.argv[2]), 10), dtype=np.float32)
y = (X[:, 0] * X[:, 1] + rng.standard_normal(len(X)) > 0).astype(np.float32)
engine = sys.argv[1]
start = time.perf_counter()
if engine == "dboost":
    import dboost
    imported = time.perf_counter()
    dboost.fit(X, y, loss="log_loss", progress=False)
elif engine == "lightgbm":
    from lightgbm import LGBMClassifier
    imported = time.perf_counter()
    LGBMClassifier(verbose=-1).fit(X, y)
elif engine == "xgboost":
    from xgboost import XGBClassifier
    imported = time.perf_counter()
    XGBClassifier().fit(X, y)
else:
    from sklearn.ensemble import HistGradientBoostingClassifier
    imported = time.perf_counter()
    HistGradientBoostingClassifier(early_stopping=False).fit(X, y)
print(imported - start, time.perf_counter() - imported)
"""


def first_fit(engine: str, rows: int, cache: str) -> tuple[float, float, float]:
    """Return the seconds of a new process: in total, for the import, for the fit. Numba keeps compiled kernels in `cache`."""
    root = Path(__file__).parent.parent
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    command = [sys.executable, "-c", FIRST_FIT, engine, str(rows)]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    total = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"the first fit of {engine} failed:\n{done.stderr}")
    imported, fitted = map(float, done.stdout.split())
    return total, imported, fitted


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_start", description="Time the first fit.")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5, help="processes with compiled kernels; the median is shown")
    options = parser.parse_args(argv)
    table = Table(title=f"The first fit of a process, {options.rows:,} × 10 binary, seconds", title_justify="left")
    for column in ("", "whole process", "import", "fit"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    with tempfile.TemporaryDirectory() as cache:
        cold = first_fit("dboost", options.rows, cache)
        table.add_row("dboost, nothing compiled", *(f"{seconds:.2f}" for seconds in cold))
        for engine in USUAL:
            runs = [first_fit(engine, options.rows, cache) for _ in range(options.repeats)]
            table.add_row(engine, *(f"{seconds:.2f}" for seconds in np.median(runs, axis=0)))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
