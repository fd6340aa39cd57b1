"""Every fit gives the same model, history and predictions at every place, to the last bit: `CASES` × `PLACES`.

The reference is the case in the memory of this process, with one thread. The fast cells are chosen so that each place trains
each kind of case that it may treat in its own way (`Fixed.kinds`), and that each case is trained somewhere; with the slow cells
each place trains each kind of case. ``CONFORMANCE=all pytest -m "" tests/test_conformance.py`` runs the whole square, without
cases that are of the same kinds as another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import dask
import pandas as pd
import pytest
from distributed import Client

from tests.helpers.clusters import lines_cluster
from tests.helpers.fixed_calls import CASES, FixedCall, Result, assert_same, result_of
from tests.helpers.places import CHANGING_PLACES, CLUSTER_PLACES, PLACES, small_things

pytestmark = [pytest.mark.filterwarnings("ignore::dboost.DriftWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]

Proof = Callable[[pd.DataFrame, list[dict[str, Any]]], Any]
EVERYWHERE = PLACES | CLUSTER_PLACES | CHANGING_PLACES
#: Places of plain tables; at all others the rows are in partitions, of which one is empty.
PLAIN = ("saved start",)


def _cells(place: str) -> list[str]:
    """Return the cases that a place can train: in threads all of them, elsewhere one of each set of kinds."""
    able = [name for name, fixed in CASES.items() if EVERYWHERE[place].can(fixed)]
    return able if place == "threads" else list({frozenset(CASES[name].kinds): name for name in reversed(able)}.values())[::-1]


CELLS = {place: _cells(place) for place in EVERYWHERE}


#: What a session of a fit holds or computes.
IN_SESSIONS = {
    "sample_weight", "offset", "classes", "subsample", "influence_trimming", "quantiles", "loss=huber", "own loss", "eval_set",
    "continued", "arcbites", "step=line_search", "criterion=gradient", "validation_fraction", "statistic of all rows",
    "several targets", "one tree for all outputs", "forest", "forest, continued",
}  # fmt: skip
#: Calls of sessions beside those of every fit, and what the reducer does for all of them.
CALLS = {
    "classes",
    "refitted",
    "quantiles",
    "loss=huber",
    "statistic of all rows",
    "step=line_search",
    "split_proposal=tree",
    "split_proposal=exact",
    "arcbites",
    "one tree for all outputs",
    "forest",
}
#: What reading, storing and moving rows depends on.
ROWS = {"sample_weight", "offset", "classes", "several targets", "eval_set", "arcbites", "many columns"}
#: The kinds of cases that places treat in their own way.
OWN_CODE: dict[str, set[str]] = {
    "here": ROWS | {"continued", "refitted"},
    "threads": IN_SESSIONS | {"many columns", "split_proposal=tree", "split_proposal=node", "split_proposal=exact"},
    "streamed": IN_SESSIONS | {"many columns", "monotonic_cst", "growth=depth_wise", "max_features"},
    "killed": {
        "quantiles",
        "loss=huber",
        "learning_rate",
        "classes",
        "subsample",
        "influence_trimming",
        "early_stopping_rounds",
        "continued",
        "arcbites",
        "validation_fraction",
        "one tree for all outputs",
        "forest",
        "forest, continued",
    },
    "prepared": ROWS | {"continued", "forest, continued"},
    "prepared, streamed": ROWS | {"continued", "quantiles", "forest"},
    "saved start": {"continued", "one tree for all outputs"},
    "cluster": set().union(*(fixed.kinds for fixed in CASES.values())),
    "messages": CALLS,
    "relays": CALLS,
    "slices": CALLS | {"many columns", "split_proposal=node", "interaction_cst", "monotonic_cst"},
    "one worker": CALLS - {"refitted"} | {"eval_set", "influence_trimming", "subsample"},
    "one session": IN_SESSIONS | {"many columns", "split_proposal=tree", "split_proposal=node"},
    "cluster, streamed": IN_SESSIONS,
    "cluster, prepared": ROWS,
    "cluster, prepared in files": ROWS,
    "cluster, killed": {"eval_set", "continued", "one tree for all outputs", "forest"},
    "published": ROWS - {"arcbites"},
    "removed worker": IN_SESSIONS | {"split_proposal=tree", "early_stopping_rounds"},
}


def _chosen(of_place: Callable[[str], set[str]], found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return cells, by place and case, that with those found before have all these kinds of every place, and every case."""
    found = set(found)
    new = set(CASES) - {name for _, name in found}
    for place, names in CELLS.items():
        wanted = of_place(place) & set().union(*(CASES[name].kinds for name in names))
        missing = wanted.difference(*(CASES[name].kinds for where, name in found if where == place))
        while missing:
            best = max(names, key=lambda name: (len(CASES[name].kinds & missing), name in new))
            found.add((place, best))
            missing -= CASES[best].kinds
            new.discard(best)
    return found | {("threads", name) for name in new}


FAST = _chosen(lambda place: OWN_CODE[place], set())
SQUARE = {(place, name) for place, names in CELLS.items() for name in names}
CHOSEN = SQUARE if os.environ.get("CONFORMANCE") == "all" else _chosen(lambda place: OWN_CODE["cluster"], FAST)


@cache
def expected(name: str) -> Result:
    fixed = CASES[name]
    return result_of(FixedCall(fixed.earlier, Path(), fixed=fixed).train(), fixed)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with lines_cluster() as client:
        yield client


@pytest.fixture(autouse=True)
def small(tmp_path: Path) -> Iterator[None]:
    """Use threads and short blocks for small tables; no temporary file is left."""
    folder = tmp_path / "temporary"
    with small_things(256), dask.config.set({"temporary-directory": str(folder)}):
        yield
    assert not folder.exists() or list(folder.glob("dboost*")) == []


def last_trees(client: Client) -> list[dict[str, Any]]:
    """Return the events of the trees of the last fit."""
    events = [event for _, event in client.get_events("dboost")]
    last = [event["fit"] for event in events if event["action"] == "began"][-1]
    return [event for event in events if event["action"] == "tree" and event["fit"] == last]


def _rounds(lines: bool, branches: int, exchanged: bool = False) -> Proof:
    return lambda new, trees: (
        {(event["lines"], event["branches"], event["groups"] > 1) for event in trees} == {(lines, branches, exchanged)}
    )


#: Conditions of the history and the trees' events that hold if the fit ran as the place says.
PROOFS: dict[str, Proof] = {
    "streamed": lambda new, trees: new["bytes_read"].sum() > 0,
    "prepared, streamed": lambda new, trees: new["bytes_read"].sum() > 0,
    "cluster": _rounds(True, 3),
    "messages": _rounds(False, 3),
    "relays": _rounds(True, 2),
    "slices": _rounds(True, 2, True),
    # A bite of several parts is several shards: its trees grow in rounds on one worker, too.
    "one worker": lambda new, trees: (
        set(new["workers"]) == {1} and ("bite" in new or max(event["n_rounds"] for event in trees) == 1)
    ),
    # Arcbites are not handed over.
    "one session": lambda new, trees: (
        "bite" in new or (set(new["workers"]) == {1} and max(event["n_rounds"] for event in trees) == 1)
    ),
    "cluster, streamed": lambda new, trees: new["bytes_read"].sum() > 0,
    "removed worker": lambda new, trees: new["workers"].min() < new["workers"].max() == 3,
}


@pytest.mark.parametrize(
    ("place", "name"),
    [
        pytest.param(place, name, marks=() if (place, name) in FAST else pytest.mark.slow)
        for place, names in CELLS.items()
        for name in names
        if (place, name) in CHOSEN
    ],
)
def test_the_model_is_that_of_one_process(client: Client, tmp_path: Path, place: str, name: str) -> None:
    fixed = CASES[name]
    there = FixedCall(fixed.earlier, tmp_path, client, place, fixed=fixed, is_lazy=place not in PLAIN)
    booster = EVERYWHERE[place].run(there)
    if place in PROOFS and not fixed.refits:
        new = booster.history.iloc[0 if fixed.earlier is None else fixed.earlier.n_iter_ :]
        assert PROOFS[place](new, last_trees(client) if place in CLUSTER_PLACES else []), "the fit ran elsewhere"
    assert_same(result_of(booster, fixed), expected(name))
