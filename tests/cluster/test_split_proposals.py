"""Split candidates that workers propose together, from a sample whose columns they divide. The model is that of one process."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.cluster.transport.line import Message
from dboost.cluster.transport.line_calls import METHODS
from dboost.cluster.transport.messages import SessionRef
from dboost.cluster.transport.split_proposals import choose_owners, propose_splits
from dboost.cluster.worker.worker_plugin import DBoostWorkerPlugin
from dboost.session.session import Session
from tests.helpers.clusters import a_table, lines_cluster
from tests.helpers.tune import Tune

FRAME = a_table(1500)
OPTIONS: dict[str, Any] = {"max_iter": 3, "max_leaf_nodes": 7, "progress": False, "max_bins": 40}
#: Every worker has rows, and as many workers as there are columns are owners.
SHARED = {"dboost.single-worker-values": 0, "dboost.owner-bytes": 1}


@pytest.fixture
def proposals(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Return how many calls have proposed candidates of a number of columns."""
    found: Counter[int] = Counter()
    propose = Session.propose

    @wraps(propose)  # its name is that of the call
    def counting(self: Session, *arguments: Any) -> list[np.ndarray]:
        edges = propose(self, *arguments)
        found[len(edges)] += 1
        return edges

    monkeypatch.setattr(Session, "propose", counting)
    return found


@given(n=st.integers(1, 40), n_columns=st.integers(0, 50), n_rows=st.integers(1, 10**9), owner_bytes=st.integers(1, 10**9))
def test_every_column_has_one_owner(n: int, n_columns: int, n_rows: int, owner_bytes: int) -> None:
    refs = [SessionRef(f"tcp://10.0.0.{k}", str(k)) for k in range(n)]
    with dask.config.set({"dboost.owner-bytes": owner_bytes, "dboost.fan-in": 8}):
        order = choose_owners(refs, n_rows, n_columns, 255)
    assert (order.bounds[0], order.bounds[-1], order.n_sessions) == (0, n_columns, n)
    assert 1 <= len(order.owners) == len(order.bounds) - 1 <= min(n, 8)
    sizes = np.diff(order.bounds)
    assert sizes.max() - sizes.min() <= 1


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with dask.config.set(SHARED), lines_cluster(3) as client:
        yield client


@pytest.mark.parametrize("weight", [None, "w"])
def test_candidates_do_not_depend_on_who_proposes_them(client: Client, proposals: Counter[int], weight: str | None) -> None:
    """Rows with gaps, a categorical column, rows of weight 0, an empty partition."""
    expected = dboost.fit(FRAME, "y", sample_weight=weight, **OPTIONS).sha256
    parts = [FRAME[:700], FRAME[700:700], FRAME[700:710], FRAME[710:]]
    data = dd.concat([dd.from_pandas(part, npartitions=1) for part in parts])
    assert dboost.fit(data, "y", sample_weight=weight, client=client, **OPTIONS).sha256 == expected
    n_columns = 6 if weight is None else 5  # a to d and z, and w if it is a feature
    assert sum(size * n for size, n in proposals.items()) == n_columns and sum(proposals.values()) == 3
    with dask.config.set({"dboost.owner-bytes": "1MiB"}):
        assert dboost.fit(data, "y", sample_weight=weight, client=client, **OPTIONS).sha256 == expected
    assert proposals[n_columns] == 1


def test_a_range_of_columns_at_a_time(client: Client, proposals: Counter[int], tune: Tune) -> None:
    tune(sampled_bytes=4 * 16 * len(FRAME))
    booster = dboost.fit(dd.from_pandas(FRAME, npartitions=5), "y", client=client, **OPTIONS)
    assert proposals == {1: 4, 2: 1}  # four columns of three owners, then the other two
    assert booster.sha256 == dboost.fit(FRAME, "y", **OPTIONS).sha256


def test_fits_at_the_same_time_do_not_wait_for_each_others_threads(monkeypatch: pytest.MonkeyPatch, tune: Tune) -> None:
    """Both workers are owners in all fits, and the calls of the fits reach one of them in an order of their own."""
    tune(worker_threads=1)
    answer = DBoostWorkerPlugin.answer

    def delayed(self: DBoostWorkerPlugin, relay: Any, fit: str, session: str, message: Message) -> Any:
        if METHODS[message.kind] == propose_splits.__name__:
            time.sleep(random.uniform(0.0, 0.5))
        return answer(self, relay, fit, session, message)

    monkeypatch.setattr(DBoostWorkerPlugin, "answer", delayed)
    data, expected = dd.from_pandas(FRAME, npartitions=4), dboost.fit(FRAME, "y", **OPTIONS).sha256
    with (
        dask.config.set(SHARED),
        LocalCluster(n_workers=2, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        fits = [pool.submit(dboost.fit, data, "y", client=client, **OPTIONS) for _ in range(8)]
        assert {fit.result(timeout=300).sha256 for fit in fits} == {expected}
