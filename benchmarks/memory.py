"""Fit one table with one library and print the peak memory of this process in MiB; started by `race.peak_memory`."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from benchmarks import workloads
from benchmarks.engines import ENGINES, settings_of
from benchmarks.workloads import Workload, read


def main(task: str) -> None:
    wanted = json.loads(task)
    workloads.FOLDER = Path(wanted["folder"])
    workload = Workload(**wanted["workload"])
    X, y = read(workload, "X"), read(workload, "y")
    ENGINES[wanted["engine"]](X, y, settings_of(workload, wanted["threads"]))
    print(peak())


def peak() -> float:
    """Return the peak resident memory of this process in MiB.

    Linux's `ru_maxrss` would be that of the parent, if that was larger when it started this process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


if __name__ == "__main__":
    main(sys.argv[1])
