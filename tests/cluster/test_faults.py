"""Workers are killed, stopped, paused, retired and restarted in the middle of fits; the model is that of one process.

Fault × moment × case × kind of cluster: `CELLS` are cells with code of their own, and others are drawn at random.
``FAULTS=500 FAULTS_FROM=0 pytest -m "" -s tests/cluster/test_faults.py -k drawn`` carries out other draws.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from distributed import Client

from tests.helpers.cells import SLOW_CELL
from tests.helpers.clusters import impatient
from tests.helpers.faults import SETTINGS, Fault, Faults, Struck, here
from tests.helpers.fixed_calls import CASES, Result, assert_same

pytestmark = [pytest.mark.filterwarnings("ignore::dboost.DriftWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]
expected = cache(here)


@pytest.fixture(scope="module")
def struck(request: pytest.FixtureRequest) -> Iterator[Struck]:
    with Struck(request.param) as started:
        yield started


ONE_TREE = "one tree, 6 classes, weights"
AUTO = "auto, 3 classes"
PLAIN, SETS, BITES = "weights, 3 classes", "early stopping, several sets and metrics", "arcbites, test set"
GROW = "dboost_grow"
#: By kind of cluster; those of `FAST` are not marked slow.
CELLS: dict[str, list[tuple[str, list[Fault]]]] = {
    "lines": [
        (PLAIN, [Fault("killed", GROW, 3, 0.004)]),
        # The restarted worker receives a partition of a lost neighbor before any call asks for the rows that it held.
        (PLAIN, [Fault("restarted", GROW, 2), Fault("lost", GROW, 2, victim=1), Fault("killed", "advance_to", 5)]),
        (BITES, [Fault("lost", "select", 0), Fault("killed", "evaluate", 9)]),
        (PLAIN, [Fault("killed", "scan_partitions"), Fault("lost", "build"), Fault("killed", GROW, 4, 0.015)]),
        (PLAIN, [Fault("stopped", "reading training", 2), Fault("stopped", GROW, 3)]),
        (PLAIN, [Fault("retired", GROW, 2), Fault("held up", GROW, 3), Fault("all killed", GROW, 4)]),
        (PLAIN, [Fault("paused", "reading training", 1), Fault("killed", "reading training", 5)]),
        (SETS, [Fault("lost", "ask", 1), Fault("killed", "evaluate", 4), Fault("joined", "evaluate", 6)]),
        (SETS, [Fault("restarted", "reading evaluation", 3), Fault("killed", "add_eval_rows", 1)]),
        ("arcbites, rows held out", [Fault("killed", "add_eval_rows"), Fault("lost", GROW, 7), Fault("joined", GROW, 8)]),
        ("refit, huber", [Fault("killed", "reading data", 4), Fault("lost", "assign_leaves", 3)]),
        ("line search, huber", [Fault("lost", "statistics", 40), Fault("killed", "advance_to", 5)]),
        ("proposal tree", [Fault("killed", "statistics", 1), Fault("lost", GROW, 3)]),
        # Of trees of several outputs, every second iteration has an `advance_to` for the direction, after statistics of it.
        (ONE_TREE, [Fault("killed", "advance_to", 4), Fault("lost", "statistics", 5)]),
        (ONE_TREE, [Fault("lost", "advance_to", 5), Fault("killed", GROW, 3, 0.004)]),
        (ONE_TREE, [Fault("killed", "statistics", 2), Fault("joined", "advance_to", 2)]),
        ("continued, early stopping", [Fault("killed", "reading evaluation", 4), Fault("lost", GROW, 3)]),
        # More losses than a fit without progress survives.
        (PLAIN, [Fault(kind, GROW, k) for k in range(1, 6) for kind in ("restarted", "given up")] + [Fault("lost", GROW, 6)]),
        ("held-out rows, 3 classes", [Fault("retired", GROW, 2), Fault("joined", GROW, 3)]),
        ("one tree, refitted", [Fault("lost", "statistics", 3), Fault("lost", "advance_to", 4)]),
        ("refit, 2 classes", [Fault("lost", "assign_leaves", 1), Fault("lost", "assign_leaves", 2)]),
        (PLAIN, [Fault("without rows", GROW, 2), Fault("without rows", GROW, 4)]),
        (PLAIN, [Fault("joined: no dboost", GROW, 1), Fault("joined: a failing plugin", GROW, 2), Fault("killed", GROW, 3)]),
        (PLAIN, [Fault("joined late", GROW, 1)]),
        (SETS, [Fault("killed", GROW, 3, 0.004), Fault("stopped", "evaluate", 6)]),
        # In the search and in the fit of all rows, which has other sessions.
        (AUTO, [Fault("killed", GROW, 4), Fault("restarted", GROW, 15)]),
        (AUTO, [Fault("killed", "reading training", 2), Fault("lost", "evaluate", 6), Fault("killed", "build", 2)]),
    ],
    "two rounds": [
        (PLAIN, [Fault("killed in a round", GROW, 1)]),
        (BITES, [Fault("killed in a round", GROW, 2), Fault("stopped in a round", GROW, 4)]),
    ],
    "relays": [  # of six sessions and two branches at each, the first is a relay, and the last is below one
        (PLAIN, [Fault("killed in a round", GROW, 1, victim=k) for k in (0, 1, -2)]),
        (PLAIN, [Fault("killed", GROW, 2, 0.004), Fault("killed", GROW, 3, 0.004, victim=4)]),
        (PLAIN, [Fault("stopped", GROW, 2), Fault("stopped", GROW, 5, victim=4)]),
    ],
    "slices": [
        (PLAIN, [Fault("killed", GROW, 2, 0.004), Fault("killed", GROW, 3, 0.004, victim=4)]),
        (PLAIN, [Fault("stopped", GROW, 2, 0.004, victim=3)]),
        (PLAIN, [Fault("killed in sending", "propose_splits"), Fault("killed in a sum", GROW, 1)]),
        (PLAIN, [Fault("stopped in a sum", GROW, 2)]),
    ],
    "one worker": [
        (SETS, [Fault("killed", "evaluate", 4, victim=-1), Fault("joined", GROW, 5), Fault("restarted", GROW, 8, victim=-1)]),
    ],
    "one session": [
        # The last one killed is the trainer.
        (PLAIN, [Fault("killed", GROW, 2), Fault("killed", GROW, 4, victim=-1), Fault("joined", "advance_to", 5)]),
        (PLAIN, [Fault("killed", "hand_over", 0, 0.002), Fault("lost", "hand_over", 1, victim=1)]),
        (PLAIN, [Fault("lost", "hand_over", 0), Fault("killed", "build", 0, victim=1), Fault("killed", "build", 1)]),
        (PLAIN, [Fault("stopped", "hand_over", 0)]),
        (SETS, [Fault("killed", "evaluate", 4, victim=-1), Fault("restarted", GROW, 8, victim=-1)]),
        ("held-out rows, 3 classes", [Fault("killed", "hand_over", 0), Fault("killed", "evaluate", 3, victim=-1)]),
        (AUTO, [Fault("killed", GROW, 4, victim=-1), Fault("killed", GROW, 15, victim=-1)]),
    ],
    "two hosts": [
        # One without rows, and then two trainers.
        (PLAIN, [Fault("killed", GROW, 1), Fault("killed", GROW, 3, victim=-1), Fault("killed", GROW, 5, victim=-1)]),
        ("held-out rows, 3 classes", [Fault("killed", GROW, 2, victim=-1)]),
    ],
    "prepared": [
        (PLAIN, [Fault("killed", "reading training", 2), Fault("lost", "dboost_open", 1), Fault("killed", GROW, 3)]),
        (SETS, [Fault("restarted", GROW, 2), Fault("killed", "evaluate", 6)]),
    ],
    "files": [
        (SETS, [Fault("killed", "evaluate", 4), Fault("joined", "evaluate", 6)]),
        (BITES, [Fault("lost", "select", 1), Fault("joined", GROW, 9)]),
        (ONE_TREE, [Fault("killed", "advance_to", 2), Fault("lost", "statistics", 3)]),
    ],
    "nannies": [(PLAIN, [Fault("killed", GROW, 2), Fault("killed", "advance_to", 4)])],
}  # fmt: skip
FAST = [("lines", k) for k in range(2)]
#: Seconds between iterations, in which newcomers get rows.
PAUSE = {"joined": 0.6, "joined late": 2.0}


@pytest.mark.parametrize(
    ("struck", "case", "faults"),
    [
        pytest.param(setting, *cell, id=f"{setting}-{k}", marks=() if (setting, k) in FAST else SLOW_CELL)
        for setting, cells in CELLS.items()
        for k, cell in enumerate(cells)
    ],
    indirect=["struck"],
)
def test_faults(struck: Struck, tmp_path: Path, case: str, faults: list[Fault]) -> None:
    struck.warm(case, tmp_path)
    with impatient(struck.cluster.client), Faults(struck.cluster, faults) as done:
        found = struck.fit(case, tmp_path, seconds=max(PAUSE.get(fault.kind, 0.0) for fault in faults))
    assert not done.waiting, "the fit has no such call"
    assert_same(found, expected(case))
    last = [event for _, event in struck.cluster.client.get_events("dboost")]
    last = last[max(k for k, event in enumerate(last) if event["action"] == "began") :]
    n_stopped = [fault.kind for fault in faults].count("stopped")
    n_removed = [event["action"] for event in last].count("removed")
    assert n_removed >= n_stopped, "it is not Dask that gives it up, after five minutes"
    holding = [event["rows"] for event in last if event["action"] == "holding"]
    if struck.name in ("one worker", "one session", "two hosts"):
        assert max(len(rows) for rows in holding) == (2 if struck.name == "two hosts" else 1)
    else:
        assert done.joined <= set().union(*holding), "a worker that joins is given rows"
    trees = [event for event in last if event["action"] == "tree"]
    if struck.name in ("relays", "slices"):
        groups = 0 if struck.name == "relays" else 2
        assert {(event["branches"], event["groups"]) for event in trees} == {(2, groups)}


N_DRAWS, FIRST = int(os.environ.get("FAULTS", len(SETTINGS))), int(os.environ.get("FAULTS_FROM", 0))
#: Continuous integration draws for clusters of one cell.
DRAWN = [setting for setting in SETTINGS if "FAULTS" in os.environ or len(CELLS[setting]) < 2]
KINDS = {
    "killed": 8, "lost": 3, "restarted": 4, "stopped": 3, "held up": 3, "paused": 2, "retired": 2, "joined": 2, "all killed": 1,
}  # fmt: skip


def drawn(chance: random.Random, calls: dict[str, int]) -> list[Fault]:
    """Draw one to four faults at any of the calls of a fit."""
    moments = sorted(set(calls) - {"dboost_open", "dboost_end"})
    kinds = chance.choices(list(KINDS), list(KINDS.values()), k=chance.choice([1, 1, 2, 2, 3, 4]))
    found = []
    for kind in kinds:
        call = chance.choice(moments)
        delay = chance.choice([0.0, 0.0, 0.002, 0.01, 0.3])
        found.append(Fault(kind, call, chance.randrange(calls[call]), delay, chance.randrange(6)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("struck", DRAWN, indirect=True)
def test_drawn_faults(struck: Struck, tmp_path: Path) -> None:
    """Draws of a case and its faults, which may be hit while another fit runs."""
    for draw in range(FIRST, FIRST + N_DRAWS):
        if draw % len(SETTINGS) != list(SETTINGS).index(struck.name):
            continue
        chance = random.Random(draw)
        case, other = chance.sample(sorted(CASES), 2)
        faults = drawn(chance, struck.warm(case, tmp_path))
        print(f"draw {draw}: {struck.name}, {case}: {'; '.join(map(str, faults))}", flush=True)

        def fit_beside(case: str = other) -> Result:
            with Client(struck.cluster.address, set_as_default=False) as client:
                return struck.fit(case, tmp_path, client)

        with impatient(struck.cluster.client), Faults(struck.cluster, faults), ThreadPoolExecutor() as pool:
            beside = pool.submit(fit_beside) if chance.random() < 0.3 else None
            found = struck.fit(case, tmp_path, seconds=chance.choice([0.0, 0.05]))
            if beside is not None:
                assert_same(beside.result(), expected(other))
        assert_same(found, expected(case))
