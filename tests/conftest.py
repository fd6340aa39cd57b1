"""Settings of hypothesis for all tests, and notes in the report of pytest."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import leftovers

if TYPE_CHECKING:
    from distributed import Client

    from tests.helpers.tune import Tune

# The tables of tests are small, and all workers are on one host: with the defaults, one worker would have all rows, and no
# test would see rounds of messages. `test_cluster_single_worker` and `test_host_trainers` test the defaults. Dask reads the
# variables when it is imported, here and in child processes.
os.environ.setdefault("DASK_DBOOST__SINGLE_WORKER_VALUES", "0")
os.environ.setdefault("DASK_DBOOST__SESSION_PER_HOST", "false")

# No deadline: the first example compiles a kernel. Continuous integration draws more examples (see
# `tests.helpers.examples` for tests with a number of their own), the same ones every time.
settings.register_profile("developer", deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("developer"), max_examples=15, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


def pytest_configure(config: pytest.Config) -> None:
    """Tests that compare what this process prints need not know whether it is the first one that uses a kernel."""
    from dboost import kernels
    from tests.helpers.cells import choose_turn

    # With Python's thresholds, garbage collections take a seventh of the time of the tests.
    gc.set_threshold(5000, 10, 20)
    kernels._NOTICE._is_printed = True
    leftovers.watch_folders()
    choose_turn()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before pytest leaves out what is slow, and deals the rest out to processes: none waits for a long test at the end."""
    from tests.helpers.cells import cells_of_other_turns, choose_turn, mark_slow_cells

    mark_slow_cells(items)
    others = cells_of_other_turns(items, choose_turn())
    config.hook.pytest_deselected(items=others)
    left = set(items).difference(others)
    items[:] = sorted(filter(left.__contains__, items), key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep modules and tests out of all garbage collections from now on."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def nothing_left_by_the_module() -> Iterator[None]:
    """Fail if a module leaves temporary files or threads of dboost, also those of its clusters in this process."""
    yield
    leftovers.check_nothing_left(lambda: leftovers.held_here() | leftovers.threads_of_workers())


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if a test leaves temporary files, threads or leases of dboost that were not there before."""
    before = leftovers.held_here()
    yield
    folder = request.node.funcargs.get("tmp_path")
    leftovers.check_nothing_left(lambda: leftovers.held_here() | leftovers.leases(folder), before)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Return the client of two workers of one thread each in this process."""
    from tests.helpers.clusters import threads_cluster

    with threads_cluster(2, 1) as client:
        yield client


@pytest.fixture
def tune() -> Iterator[Tune]:
    """Change fields of `dboost.tuning` until the end of a test: ``tune(block_rows=64)``."""
    from tests.helpers.tune import Tune

    with ExitStack() as contexts:
        yield Tune(contexts)


def pytest_report_header(config: pytest.Config) -> list[str]:
    from tests.helpers.cells import N_TURNS, choose_turn
    from tests.helpers.real_data import FOLDER
    from tests.suite.covering import SEED

    cells = [f"cells of tests/suite: SUITE_SEED={SEED}", f"turns of slow cells: TURN={choose_turn()} of {N_TURNS}"]
    skipped = "no real tables beside the checkout (../shared/data): their tests are skipped"
    return cells if FOLDER.exists() else [*cells, skipped]


_internal_errors: list[str] = []


def pytest_internalerror(excrepr: object) -> None:
    _internal_errors.append(str(excrepr))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print the first internal error of pytest or of one of its processes at the end, where later errors do not hide it."""
    if _internal_errors and not hasattr(config, "workerinput"):
        print("the first internal error:", *_internal_errors[0].splitlines()[-20:], sep="\n")


# A shell that starts the tests in the background makes them and their child processes ignore SIGINT. Tests that interrupt
# a process would then never end; with Python's own handler the signal has its usual effect.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
