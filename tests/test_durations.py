"""What Dask's configuration says about waiting is understood, or refused before it matters."""

from __future__ import annotations

import dask
import pytest

from dboost.config import liveness_timeout, worker_timeout
from dboost.errors import ParameterError


@pytest.mark.parametrize(("given", "seconds"), [("1500ms", 1.5), ("2m", 120.0), (3, 3.0), ("0.5 s", 0.5)])
def test_durations(given: object, seconds: float) -> None:
    with dask.config.set({"dboost.patience": given, "dboost.worker-timeout": given}):
        assert liveness_timeout() == seconds
        assert worker_timeout() == seconds


@pytest.mark.parametrize("given", ["10min", "soon", "", None, [], "0s", "-3s"])
def test_what_is_no_duration(given: object) -> None:
    with dask.config.set({"dboost.worker-timeout": given}), pytest.raises(ParameterError, match=r"^dboost\.worker-timeout="):
        worker_timeout()
