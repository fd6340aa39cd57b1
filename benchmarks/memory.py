"""Fits one table with one library and prints the peak memory of this process in MiB; started by `race.peak_memory`."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np

from benchmarks.engines import ENGINES, Settings


def main(task: str) -> None:
    wanted = json.loads(task)
    X, y = (np.load(Path(wanted["folder"]) / f"{name}.npy") for name in ("X", "y"))
    ENGINES[wanted["engine"]](X, y, Settings(**wanted["settings"]))
    print(peak())


def peak() -> float:
    """Peak resident memory of this process in MiB.

    Linux's `ru_maxrss` would be that of the parent too, if that was larger when it started this process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


if __name__ == "__main__":
    main(sys.argv[1])
