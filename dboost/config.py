"""Settings of dboost in Dask's configuration.

``dboost.yaml`` lists the keys with their defaults. Importing this module registers the defaults with Dask, so it is imported
only where Dask is used.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import dask
import yaml
from dask.utils import parse_bytes, parse_timedelta

from dboost.errors import ParameterError

_DEFAULTS = yaml.safe_load(Path(__file__).with_name("dboost.yaml").read_text("utf-8"))
dask.config.update_defaults(_DEFAULTS)
#: Held while expressions of Dask are built (see `data.tables.dask_collections`), or while its configuration is changed for
#: that.
building = threading.RLock()
#: Seconds of the longest duration; some system calls refuse longer ones.
_LONGEST = 1e8


def liveness_timeout() -> float:
    """Seconds without an answer after which a worker is pinged, and after which the ping has failed."""
    return _positive_seconds("patience")


def worker_timeout() -> float:
    """Seconds to wait for a first worker, or for a new one when all are lost."""
    return _positive_seconds("worker-timeout")


def lease_seconds() -> float:
    """Seconds without a renewal after which another run may take over a model, a checkpoint or a folder."""
    return _positive_seconds("lease")


def gather_bytes() -> int:
    """Bytes of a round, over all workers, below which histograms are reduced in the scheduler's process."""
    return _whole(_number("gather-bytes", parse_bytes, lambda n: n >= 0, 'a size, such as "3MiB"'))


def owner_bytes() -> int:
    """Bytes of a round for each feature owner, where histograms are reduced by feature."""
    return _whole(_number("owner-bytes", parse_bytes, lambda n: n > 0, 'a size, such as "4MiB"'))


def fan_in() -> int:
    """Number of sessions from which a process collects answers in a round; more form a tree."""
    return _whole(_number("fan-in", float, lambda n: n >= 2 and (n == math.inf or n == int(n)), "a whole number from 2 on"))


def metric_rows() -> int:
    """Rows of an evaluation set that may come to the client for a metric that is a function of all rows."""
    return _whole(_number("metric-rows", float, lambda n: n >= 0, "a number of rows"))


def imbalance(persisted: bool) -> float:
    """How many times its fair share of the rows a worker may hold before partitions move."""
    key = "imbalance-persisted" if persisted else "imbalance"
    return _number(key, float, lambda ratio: ratio >= 1, "a number from 1 on")


def single_worker_values() -> int:
    """Values (rows times features) for each thread of a worker up to which a table is trained on by one worker."""
    return _whole(_number("single-worker-values", float, lambda n: n >= 0, "a number of values"))


def session_per_host() -> bool:
    """Whether the workers of a host hand their encoded rows over to one of them, see `cluster.worker.host_trainers`."""
    return _boolean("session-per-host")


def keep_freed_memory() -> bool:
    """Whether the C library of schedulers and workers keeps freed memory instead of returning it to the system."""
    return _boolean("keep-freed-memory")


def _boolean(key: str) -> bool:
    value = _get(key)
    if not isinstance(value, bool):
        raise ParameterError(f"dboost.{key}={value!r} in Dask's configuration is not true or false")
    return value


def _get(key: str) -> Any:
    # The default is repeated because leaving a ``dask.config.set`` block entered before this import removes the section.
    return dask.config.get(f"dboost.{key}", _DEFAULTS["dboost"][key])


def _positive_seconds(key: str) -> float:
    return _number(key, parse_timedelta, lambda seconds: 0 < seconds <= _LONGEST, 'a duration, such as "10s" or "2 minutes"')


def _whole(number: float) -> int:
    """Return a number as an integer; infinity, for no limit, as a large one."""
    return int(min(number, 2.0**62))


def _number(key: str, parse: Callable[[Any], float], is_valid: Callable[[float], bool], expected: str) -> float:
    """A number from the configuration.

    Raises
    ------
    ParameterError
        If the value cannot be parsed or is not valid.
    """
    value = _get(key)
    number = value if isinstance(value, float) else _parsed(parse, str(value))
    if number is None or not is_valid(number):
        raise ParameterError(f"dboost.{key}={value!r} in Dask's configuration is not {expected}")
    return number


@cache
def _parsed(parse: Callable[[Any], float], text: str) -> float | None:
    """The parsed text, or None. Cached because durations are read in every round and Dask parses slowly."""
    try:
        return float(parse(text))
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


_LARGE_GRAPH = "distributed.admin.large-graph-warning-threshold"
_lock = threading.Lock()
_n_without_warning = 0  # calls that are in `without_graph_warning` now, in all threads
_threshold: Any = None  # of the user, meanwhile; None if distributed, which warns, has not been imported


@contextmanager
def without_graph_warning() -> Iterator[None]:
    """Keep Dask from warning of large graphs meanwhile.

    The setting is one for all threads: the first call sets it and the last one restores it, as they may end in any order.
    """
    global _n_without_warning, _threshold
    with _lock:
        if not _n_without_warning:
            _threshold = dask.config.get(_LARGE_GRAPH, None)
            if _threshold is not None:  # a value would remain in place of the default that the import sets
                dask.config.set({_LARGE_GRAPH: 2**62})
        _n_without_warning += 1
    try:
        yield
    finally:
        with _lock:
            _n_without_warning -= 1
            if not _n_without_warning and _threshold is not None:
                dask.config.set({_LARGE_GRAPH: _threshold})
