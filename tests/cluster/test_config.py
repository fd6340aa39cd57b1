"""Settings in Dask's configuration: defaults, valid values, and errors that name the key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import dask
import pytest
import yaml

from dboost import config
from dboost.errors import ParameterError

READERS: dict[str, Callable[[], object]] = {
    "patience": config.liveness_timeout,
    "worker-timeout": config.worker_timeout,
    "lease": config.lease_seconds,
    "fan-in": config.fan_in,
    "gather-bytes": config.gather_bytes,
    "owner-bytes": config.owner_bytes,
    "single-worker-values": config.single_worker_values,
    "session-per-host": config.session_per_host,
    "imbalance": lambda: config.imbalance(persisted=False),
    "imbalance-persisted": lambda: config.imbalance(persisted=True),
    "metric-rows": config.metric_rows,
    "keep-freed-memory": config.keep_freed_memory,
}
DEFAULTS = [10.0, 60.0, 30.0, 8, 3 * 2**20, 2**20, 8_000_000, True, 1.2, 1.5, 10_000_000, False]


def test_every_key_has_a_default_and_a_reader() -> None:
    assert list(config._DEFAULTS["dboost"]) == list(READERS)
    with dask.config.set({"dboost": {}}):
        assert [read() for read in READERS.values()] == DEFAULTS


def test_defaults_do_not_replace_what_is_set() -> None:
    settings: dict[str, object] = {"dboost": {"worker_timeout": "5m"}}
    dask.config.update_defaults(config._DEFAULTS, config=settings, defaults=[])
    assert dask.config.get("dboost.worker-timeout", config=settings) == "5m"
    assert dask.config.get("dboost.gather-bytes", config=settings) == "3MiB"


@pytest.mark.parametrize(("given", "seconds"), [("1500ms", 1.5), ("2m", 120.0), (3, 3.0), ("0.5 s", 0.5)])
def test_durations(given: object, seconds: float) -> None:
    with dask.config.set({"dboost.patience": given, "dboost.worker-timeout": given}):
        assert config.liveness_timeout() == config.worker_timeout() == seconds


@pytest.mark.parametrize(("given", "n_bytes"), [("1kB", 1000), ("2 MiB", 2**21), (5, 5), ("1B", 1)])
def test_sizes(given: object, n_bytes: int) -> None:
    with dask.config.set({"dboost.gather-bytes": given, "dboost.owner-bytes": given}):
        assert config.gather_bytes() == config.owner_bytes() == n_bytes


@pytest.mark.fast_cells(12)
@pytest.mark.parametrize(
    ("key", "given"),
    [
        *(("worker-timeout", given) for given in ("10min", "soon", "", None, [], "0s", "-3s", float("inf"), "1e12s")),
        *(("gather-bytes", given) for given in ("much", None, [], "-3B")),
        *(("owner-bytes", given) for given in ("0B", True)),
        *((key, given) for key in ("single-worker-values", "metric-rows") for given in ("many", -1, None, "nan")),
        *(("fan-in", given) for given in (1, 0, "many", None)),
        *(("imbalance", given) for given in ("much", 0.5, None, "nan")),
        *((key, given) for key in ("keep-freed-memory", "session-per-host") for given in ("yes", 1, None)),
    ],
)
def test_invalid_values_are_refused_by_key(key: str, given: object) -> None:
    with dask.config.set({f"dboost.{key}": given}), pytest.raises(ParameterError, match=rf"^dboost\.{key}="):
        READERS[key]()


@pytest.mark.parametrize(
    ("key", "smallest"),
    [
        ("gather-bytes", 0), ("owner-bytes", 1), ("single-worker-values", 0), ("metric-rows", 0), ("fan-in", 2),
        ("imbalance", 1), ("imbalance-persisted", 1),
    ],
)  # fmt: skip
def test_the_smallest_values_are_valid(key: str, smallest: int) -> None:
    with dask.config.set({f"dboost.{key}": smallest}):
        assert READERS[key]() == smallest


@pytest.mark.parametrize("given", [float("inf"), "inf"])
@pytest.mark.parametrize("key", ["single-worker-values", "metric-rows", "fan-in"])
def test_infinity_is_no_limit(key: str, given: object) -> None:
    with dask.config.set({f"dboost.{key}": given}):
        found = READERS[key]()
    assert isinstance(found, int) and found > 10**18


def test_the_file_has_a_comment_for_each_key() -> None:
    text = config.Path(config.__file__).with_name("dboost.yaml").read_text()
    lines = text.splitlines()
    for key in yaml.safe_load(text)["dboost"]:
        position = next(k for k, line in enumerate(lines) if line.startswith(f"  {key}:"))
        assert lines[position - 1].startswith("  #")


def test_dask_warns_of_large_graphs_after_the_first_import_of_distributed() -> None:
    """A call that begins before the import leaves the default that the import sets, as Dask's client cannot read None."""
    code = """
import sys
import dask.dataframe as dd
import numpy as np
import pandas as pd
import dboost
rows = pd.DataFrame({"x": np.arange(60.0), "y": np.arange(60.0)})
lazy = dd.from_pandas(rows, npartitions=3)
booster = dboost.fit(rows, "y", max_iter=2)
assert "distributed" not in sys.modules
booster.calibrate(lazy, "y")  # Dask imports it meanwhile
booster.partial_dependence(lazy, "x", grid=3)
from distributed import Client
import dask
assert dask.config.get("distributed.admin.large-graph-warning-threshold") == "10MB"
with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None):
    assert lazy["x"].sum().compute() == 1770
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
