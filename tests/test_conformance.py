"""Every fit gives the same model, history and predictions at every place, to the last bit: `CASES` × `PLACES`.

The reference is the case in the memory of this process, with one thread. Cells are as few as cover pairs of a place and a kind
of case (`Fixed.kinds`): with the fast ones each place trains all `ROLES`, and each place of `THOROUGH` every kind; with the
slow ones every place trains every kind, and each case is trained somewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from distributed import Client

from tests.helpers.clusters import last_events, lines_cluster
from tests.helpers.fixed_calls import CASES, FixedCall, Result, assert_same, result_of
from tests.helpers.places import CHANGING_PLACES, CLUSTER_PLACES, PLACES, small_things
from tests.suite.covering import Cell, cells

pytestmark = [pytest.mark.filterwarnings("ignore::dboost.DriftWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]

Proof = Callable[[pd.DataFrame, list[dict[str, Any]]], Any]
EVERYWHERE = PLACES | CLUSTER_PLACES | CHANGING_PLACES
#: Places of plain tables; at all others the rows are in partitions, of which one is empty.
PLAIN = ("saved start",)


SQUARE = [(place, name) for place in EVERYWHERE for name, fixed in CASES.items() if EVERYWHERE[place].can(fixed)]
#: What rows, scores or trees of a fit may carry: each place, fast or slow, is tested with all of it.
ROLES = {
    "sample_weight", "offset", "classes", "several targets", "eval_set", "arcbites", "continued", "quantiles", "subsample",
    "one tree for all outputs", "forest",
}  # fmt: skip
#: The places that train every kind of case in the fast cells: in memory, in files, and on workers.
THOROUGH = ("threads", "streamed", "cluster")


def _fast(cell: Cell) -> set[Any]:
    place, name = cell
    return {(place, kind) for kind in CASES[name].kinds if place in THOROUGH or kind in ROLES}


def _slow(cell: Cell) -> set[Any]:
    """Every place trains every kind, and every case is trained somewhere."""
    place, name = cell
    return {name} | {(place, kind) for kind in CASES[name].kinds}


@cache
def expected(name: str) -> Result:
    fixed = CASES[name]
    return result_of(FixedCall(fixed.earlier, Path(), fixed=fixed).train(), fixed)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with lines_cluster() as client:
        yield client


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Use threads and short blocks for small tables."""
    with small_things(256):
        yield


def _rounds(branches: int, exchanged: bool = False) -> Proof:
    return lambda new, trees: {(event["branches"], event["groups"] > 1) for event in trees} == {(branches, exchanged)}


#: Conditions of the history and the trees' events that hold if the fit ran as the place says.
PROOFS: dict[str, Proof] = {
    "streamed": lambda new, trees: new["bytes_read"].sum() > 0,
    "prepared, streamed": lambda new, trees: new["bytes_read"].sum() > 0,
    "cluster": _rounds(3),
    "relays": _rounds(2),
    "slices": _rounds(2, True),
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


@pytest.mark.parametrize(("place", "name"), cells(SQUARE, _fast, _slow))
def test_the_model_is_that_of_one_process(client: Client, tmp_path: Path, place: str, name: str) -> None:
    fixed = CASES[name]
    there = FixedCall(fixed.earlier, tmp_path, client, place, fixed=fixed, is_lazy=place not in PLAIN)
    booster = EVERYWHERE[place].run(there)
    if place in PROOFS and not fixed.refits:
        new = booster.history.iloc[0 if fixed.earlier is None else fixed.earlier.n_iter_ :]
        assert PROOFS[place](new, last_events(client, "tree") if place in CLUSTER_PLACES else []), "the fit ran elsewhere"
    assert_same(result_of(booster, fixed), expected(name))
