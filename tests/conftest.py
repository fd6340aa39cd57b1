"""What all tests share: how hypothesis searches, and a word where the real tables are missing."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# No deadline: the first example compiles a kernel. In continuous integration the examples are the same every time.
settings.register_profile("developer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("developer"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


def pytest_report_header(config: pytest.Config) -> str | None:
    from tests.helpers.real_data import FOLDER

    return None if FOLDER.exists() else "no real tables beside the checkout (../shared/data): their tests are skipped"


_internal_errors: list[str] = []


def pytest_internalerror(excrepr: object) -> None:
    _internal_errors.append(str(excrepr))


def pytest_unconfigure(config: pytest.Config) -> None:
    """What went wrong first in pytest itself, or in a process of its, is told last: what follows from it fills the screen."""
    if _internal_errors and not hasattr(config, "workerinput"):
        print("the first internal error:", *_internal_errors[0].splitlines()[-20:], sep="\n")


# A shell that starts the tests in the background makes them ignore ^C, and with them every process that they start. Tests
# that interrupt would then wait for ever; with Python's own handler they, and their children, hear it again.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
