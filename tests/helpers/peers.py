"""Raw scores of model files by XGBoost and LightGBM, each in a process of its own, because damaged files can end it.

Run as a module this is a server: it reads lines ``library rows model`` (the last two are paths), forks for each, and answers
with a line: ``scores PATH`` of an npy file, or ``refused``, or ``died`` if the library ended its process or took more than
`SECONDS`.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import numpy as np

SECONDS, MEMORY = 5, 4 << 30
ROOT = Path(__file__).parent.parent.parent


class Peers:
    """The server, within a ``with`` block. rows : float64[n, n_features], in `folder` for all models."""

    def __init__(self, folder: Path, rows: np.ndarray) -> None:
        self._rows = folder / "rows.npy"
        np.save(self._rows, rows)

    def __enter__(self) -> Peers:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.peers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment, cwd=ROOT,
        )  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def raw_scores(self, library: str, model: Path) -> np.ndarray | None:
        """Return the raw scores of the rows, or None if the library does not predict."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{library} {self._rows} {model}\n")
        self._process.stdin.flush()
        kind, *path = self._process.stdout.readline().split()
        assert kind in ("scores", "refused", "died"), kind
        return np.load(path[0]) if path else None


def _predict(library: str, rows: np.ndarray, model: str) -> np.ndarray:
    if library == "xgboost":
        import xgboost

        booster = xgboost.Booster({"nthread": 1}, model_file=model)
        types = booster.feature_types
        matrix = xgboost.DMatrix(
            rows, nthread=1, feature_names=booster.feature_names, feature_types=types, enable_categorical=True
        )
        return booster.predict(matrix, output_margin=True)
    import lightgbm

    return lightgbm.Booster(model_file=model).predict(rows, raw_score=True, num_threads=1)


def _serve() -> None:
    import lightgbm  # noqa: F401 (before the fork)
    import xgboost  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # LightGBM prints to stdout
    for line in sys.stdin:
        library, rows, model = line.split()
        child = os.fork()
        if not child:
            signal.alarm(SECONDS)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            try:
                np.save(f"{model}.npy", _predict(library, np.load(rows), model))
            except BaseException:
                os._exit(3)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print({0: f"scores {model}.npy", 3: "refused"}.get(status, "died"), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
