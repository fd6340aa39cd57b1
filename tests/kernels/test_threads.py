"""How many threads a process uses: affinity, quotas of its control groups, and the limits that other libraries honour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import pytest

from dboost.cluster.client.client import cluster_at
from dboost.kernels.threads import available_threads, usable_processors
from dboost.thread_limits import THREAD_LIMITS

AFFINITY = len(usable_processors("/no such folder"))
#: Lines of mountinfo.
V2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup rw"
V2_HYBRID = "31 23 0:28 / /sys/fs/cgroup/unified rw shared:3 - cgroup2 cgroup rw"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"
V1_SETS = "33 31 0:30 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset"
V1_DOCKER = "32 31 0:29 /docker/f00 /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct"
G = "sys/fs/cgroup/"


def v1(quota: str, period: str = "100000", folder: str = "") -> dict[str, str]:
    names = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": period}
    return {f"{G}cpu,cpuacct/{folder}{name}": text for name, text in names.items()}


#: Groups of the process, mounts, files, and the number of processors; None without a limit.
CASES: dict[str, tuple[str, str, dict[str, str], int | None]] = {
    "v2 of a container": ("0::/", V2, {G + "cpu.max": "100000 100000\n"}, 1),
    "v2 without a limit": ("0::/", V2, {G + "cpu.max": "max 100000\n"}, None),
    "v2 of a fraction": ("0::/", V2, {G + "cpu.max": "50000 100000"}, 1),
    "v2 of three halves": ("0::/", V2, {G + "cpu.max": "150000 100000"}, 2),
    "v2 of many": ("0::/", V2, {G + "cpu.max": "6400000 100000"}, None),
    "v2 of the group": ("0::/job/step", V2, {G + "job/step/cpu.max": "1000 1000"}, 1),
    "v2 of a parent": ("0::/job/step", V2, {G + "job/cpu.max": "1000 1000", G + "job/step/cpu.max": "max 1000"}, 1),
    "v2 of a parent that allows less": ("0::/job/step", V2, {G + "job/cpu.max": "1 1", G + "job/step/cpu.max": "9 1"}, 1),
    "v2 of another group": ("0::/job", V2, {G + "other/cpu.max": "1 1"}, None),
    "v2 outside the namespace": ("0::/../../job", V2, {G + "cpu.max": "1 1"}, 1),
    "v1": ("4:cpu,cpuacct:/", V1, v1("100000"), 1),
    "v1 without a limit": ("4:cpu,cpuacct:/", V1, v1("-1"), None),
    "v1 of a parent": ("4:cpu,cpuacct:/job/step", V1, v1("50000", folder="job/") | v1("-1", folder="job/step/"), 1),
    "v1 of a container": ("4:cpu,cpuacct:/docker/f00", V1_DOCKER, v1("20000"), 1),
    "v1 of a group in it": ("4:cpu,cpuacct:/docker/f00/in", V1_DOCKER, v1("20000", folder="in/"), 1),
    "v1 beside v2": ("4:cpu,cpuacct:/\n2:cpuset:/\n0::/", f"{V1_SETS}\n{V2_HYBRID}\n{V1}", v1("100000"), 1),
    "v1 of other controllers": ("2:cpuset:/", V1_SETS, {G + "cpuset/cpu.cfs_quota_us": "1"}, None),
    "damaged": ("0::/", V2, {G + "cpu.max": "a few"}, None),
    "damaged mounts": ("0::/", "31 23\n" + V2, {G + "cpu.max": "1 1"}, None),
    "no period": ("0::/", V2, {G + "cpu.max": "1 0"}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_processors_are_limited_by_quotas_of_control_groups(case: str, tmp_path: Path) -> None:
    groups, mounts, files, expected = CASES[case]
    for name, text in ({"proc/self/cgroup": groups + "\n", "proc/self/mountinfo": mounts + "\n"} | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    n_processors = min(AFFINITY, AFFINITY if expected is None else expected)
    assert len(usable_processors(str(tmp_path))) == n_processors
    assert available_threads(-1, root=str(tmp_path), environment={}) == n_processors


@pytest.mark.parametrize(
    ("environment", "wanted", "expected"),
    [
        *[({name: "1"}, wanted, 1) for name in THREAD_LIMITS for wanted in (None, -1, -2)],
        ({"OMP_NUM_THREADS": "1,4"}, -1, 1),
        ({"OMP_NUM_THREADS": " 1 "}, None, 1),
        ({"OMP_NUM_THREADS": "1"}, 3, 3),
        ({"OMP_NUM_THREADS": "4096"}, None, AFFINITY),
        ({"OMP_NUM_THREADS": "4096", "NUMBA_NUM_THREADS": "1"}, None, 1),
        *[({"OMP_NUM_THREADS": text}, None, AFFINITY) for text in ("", "0", "-1", "many", "1.5")],
    ],
)
def test_the_environment_limits_threads(environment: dict[str, str], wanted: int | None, expected: int) -> None:
    assert available_threads(wanted, environment=environment) == expected


def test_limits_that_are_set_later_do_not_count() -> None:
    """`LocalCluster` sets OMP_NUM_THREADS=1 also in the process that starts it."""
    code = (
        f"import os, dboost; os.environ.update(dict.fromkeys({THREAD_LIMITS!r}, '1'));"
        "from dboost.kernels.threads import *; print(available_threads(None))"
    )
    environment = {key: value for key, value in os.environ.items() if key not in THREAD_LIMITS}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
    assert int(printed) == AFFINITY


def test_processes_of_joblib_share_the_processors() -> None:
    with joblib.parallel_config("loky", n_jobs=2, inner_max_num_threads=1):
        assert joblib.Parallel()(joblib.delayed(available_threads)(wanted) for wanted in (None, -1)) == [1, 1]


@pytest.mark.parametrize("n_workers", [1, AFFINITY + 1])
def test_workers_of_the_command_have_the_threads_that_dask_gives_them(n_workers: int) -> None:
    with cluster_at(None, n_workers) as client:
        threads: list[Any] = list(client.nthreads().values())
    assert threads == [-(-AFFINITY // n_workers)] * n_workers
