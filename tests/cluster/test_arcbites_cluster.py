"""Arcbites on a cluster: every bite is spread over the workers, and the model equals that of one process, to the last bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dboost
from dboost import ArcBites, DBoostRegressor
from dboost.tuning import tuned
from tests.helpers.clusters import a_table, threads_cluster
from tests.helpers.fits import cut
from tests.helpers.tune import Tune

FRAME = a_table(1500)
SETTINGS: dict[str, Any] = {"max_iter": 14, "max_leaf_nodes": 7, "progress": False, "learning_rate": 0.4}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster(2) as client:
        yield client


@pytest.fixture
def filing(tune: Tune) -> None:
    """No rows fit the limit, blocks are short, threads share every bite."""
    tune(resident_rows=0, least_bite_block_rows=32, block_rows=32, small_cells=0)


def fit(data: Any, target: str, **options: Any) -> dboost.Booster:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return dboost.fit(data, target, **(SETTINGS | options))


def test_the_limit_says_how_many_bites(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """The number of bites equals that of one process with the limit of one worker; the bites are in files."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 9, (60_000, 4)).astype(np.float32)
    frame = pd.DataFrame(values, columns=["a", "b", "c", "d"])
    frame["y"] = values[:, 0] * values[:, 1]
    options: dict[str, Any] = {"arcbites": ArcBites(trees_per_visit=1), "max_iter": 3, "memory_limit": "1MiB", "max_bins": 16}
    lazy = dd.from_pandas(frame, npartitions=24)
    here = fit(lazy, "y", **options)
    with caplog.at_level("INFO", "dboost"):
        there = fit(lazy, "y", client=client, **options)
    assert there.sha256 == here.sha256
    n_bites = here.ensemble.parameters["arcbites"]["n_bites"]
    assert n_bites > 3
    assert "60000 rows do not fit memory_limit=1 MiB and are divided into bites in files" in caplog.text
    assert (there.history["bytes_read"] > 0).all()
    few = options | {"arcbites": ArcBites(2, 1)}
    for where in (None, client):
        with pytest.raises(
            dboost.ParameterError, match=r"with n_bites=2 the .* rows of one process make bites that take .* MiB"
        ):
            fit(lazy, "y", client=where, **few)


def test_files_go_with_the_fit(client: Client, filing: None) -> None:
    """Files are removed also if the fit fails; test sets are in files as well, and are truncated there."""
    frame, held = FRAME[["a", "b", "e", "z"]].iloc[:1000], FRAME[["a", "b", "e", "z"]].iloc[1000:]
    options: dict[str, Any] = {
        "arcbites": ArcBites(3, early_stopping_rounds=2), "learning_rate": 0.9, "max_iter": 40, "memory_limit": "64MiB"
    }  # fmt: skip
    sets = {"one": cut(held, [100]), "two": cut(held[:400], [300])}
    expected = fit(frame, "z", **options | {"eval_set": {"one": held, "two": held[:400]}, "memory_limit": None})
    with tuned(retained_bytes=0):
        found = fit(cut(frame, [500]), "z", client=client, eval_set=sets, **options)
    assert found.sha256 == expected.sha256
    columns = ["one_log_loss", "two_log_loss"]
    pd.testing.assert_frame_equal(found.history[columns], expected.history[columns], check_exact=True)
    assert expected.n_iter_ < len(expected.history)

    def fail(now: dboost.Iteration) -> None:
        folders = client.run(lambda dask_worker: dask_worker.local_directory).values()
        assert any(list(Path(folder).glob("dboost-*/bites")) for folder in folders), "nothing was in files"
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        fit(cut(frame, [500]), "z", client=client, eval_set=sets, callbacks=fail, **options)


def test_what_is_continued_and_what_is_not(client: Client, filing: None) -> None:
    """Bites in files start with the scores of a model of other data; a fit cannot continue where arcbites stopped."""
    old = fit(FRAME[:500], "y", features=["a", "b", "e"], max_iter=2)
    options: dict[str, Any] = {"arcbites": ArcBites(3, 1), "max_iter": 4}
    here = fit(FRAME[500:], "y", start_from=old, **options)
    lazy = cut(FRAME[500:], [300])
    there = fit(lazy, "y", start_from=old, client=client, memory_limit="64MiB", **options)
    assert there.sha256 == here.sha256
    model = DBoostRegressor(client=client, warm_start=True, memory_limit="64MiB", random_state=0, **options)
    model.fit(lazy[["a", "b", "e"]], lazy["y"])
    with pytest.raises(dboost.ParameterError, match="arcbites do not go together with a warm start"):
        model.set_params(max_iter=6).fit(lazy[["a", "b", "e"]], lazy["y"])
