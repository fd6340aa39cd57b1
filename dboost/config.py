"""How long is waited for others; both may be set in Dask's configuration, for the client and for the scheduler.

``dboost.liveness_timeout`` (10 s): after so long without an answer a worker is pinged, and after as long again it is given up.
``dboost.worker-timeout`` (60 s): so long a client waits for a first worker, or for another one when all are gone. In an
environment these are ``DASK_DBOOST__PATIENCE`` and ``DASK_DBOOST__WORKER_TIMEOUT``.
"""

from __future__ import annotations

from functools import cache

import dask
from dask.utils import parse_timedelta

from dboost.errors import ParameterError


def liveness_timeout() -> float:
    """Seconds of silence after which a worker is pinged, and after which a ping has failed."""
    return _seconds("dboost.patience", "10s")


def worker_timeout() -> float:
    """Seconds to wait for a first worker, or for another one when all are gone."""
    return _seconds("dboost.worker-timeout", "60s")


def _seconds(key: str, default: str) -> float:
    """A duration from Dask's configuration.

    Raises
    ------
    ParameterError
        When it is none.
    """
    given = dask.config.get(key, default)
    seconds = given if isinstance(given, float) else _parsed(str(given))
    if not seconds > 0:
        raise ParameterError(f'{key}={given!r} in Dask\'s configuration is not a duration, such as "10s" or "2 minutes"')
    return seconds


@cache
def _parsed(text: str) -> float:
    """Seconds, or -1. Durations are asked for in every round, and Dask takes its time to read one."""
    try:
        return float(parse_timedelta(text))
    except (AttributeError, LookupError, TypeError, ValueError):
        return -1.0
