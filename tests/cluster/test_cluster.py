"""Fits on a cluster: rows divided in any way, tables of every kind, and what is refused."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dboost
from tests.helpers.clusters import a_table, last_events, threads_cluster
from tests.helpers.on_workers import Squares

FRAME = a_table(3000)
NUMBERS = FRAME[["a", "b", "c", "d"]].to_numpy()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster() as client:
        yield client


def in_process(data: Any, target: Any, **options: Any) -> dboost.Booster:
    return dboost.fit(data, target, progress=False, **{"max_iter": 8} | options)


def on_cluster(client: Client, data: Any, target: Any, **options: Any) -> dboost.Booster:
    return in_process(data, target, client=client, **options)


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("bytes_per_owner", [400_000, 10**9], ids=["some", "one owner"])
def test_histograms_that_never_come_together(client: Client, bytes_per_owner: int) -> None:
    """Scheduler and workers are in this process, so the test can set the limit of wide histograms. Some owners find none."""
    rare = {f"rare {i}": np.where(np.arange(len(FRAME)) % 15 == i, np.arange(len(FRAME)), 0.0) for i in range(9)}
    frame = FRAME[["w", "t", "a", "b", "c", "d", "e"]].assign(**rare)
    options: dict[str, Any] = {"sample_weight": "w", "max_leaf_nodes": 12, "min_samples_leaf": 100}
    with dask.config.set({"dboost.gather-bytes": "0B", "dboost.owner-bytes": bytes_per_owner}):
        booster = on_cluster(client, dd.from_pandas(frame, npartitions=5), "t", **options)
    assert booster.sha256 == in_process(frame, "t", **options).sha256
    owners = {event["owners"] for event in last_events(client, "tree")}
    assert {400_000: 2, 10**9: 1}[bytes_per_owner] in owners


def test_the_current_client_is_used_for_lazy_data_only(client: Client) -> None:
    lazy = dd.from_pandas(FRAME[["a", "y"]], npartitions=2)

    def n_begun() -> int:
        """Return the number of fits on the cluster; other events of a fit may arrive after its end."""
        return sum(event["action"] == "began" for _, event in client.get_events("dboost"))

    with client.as_current():
        before = n_begun()
        assert in_process(FRAME[["a", "y"]], "y").sha256 == in_process(lazy, "y").sha256
        assert n_begun() == before + 1
        with dask.config.set(scheduler="threads"):
            in_process(lazy, "y")
        assert n_begun() == before + 1, "a client that sets the number of threads gets it"


def test_callbacks_and_history(client: Client) -> None:
    seen = []

    def watch(iteration: dboost.Iteration) -> bool:
        seen.append(len(iteration.model().trees))
        return iteration.iteration == 4

    lazy = dd.from_pandas(FRAME[["a", "b", "y"]], npartitions=4)
    booster = on_cluster(client, lazy, "y", callbacks=watch)
    assert seen == [1, 2, 3, 4]
    assert booster.n_iter_ == 4
    spent = booster.history[["seconds_compute", "seconds_reduce", "seconds_wait"]].to_numpy()
    assert (spent >= 0).all()
    assert (spent.sum(axis=1) <= booster.history["seconds"] + 1e-3).all()
    assert set(booster.timings) == {"load", "bin", "train"}


def test_predictions_are_lazy_and_the_model_travels_once(client: Client) -> None:
    frame = FRAME[["a", "b", "e", "z"]]
    booster = in_process(frame, "z")
    lazy = dd.from_pandas(frame, npartitions=6)
    with client.as_current():
        for method in (booster.predict, booster.predict_proba):
            answer = method(lazy)
            assert dask.is_dask_collection(answer)
            assert np.array_equal(answer.compute().to_numpy(), method(frame).to_numpy())
    scattered = client.scatter(booster, broadcast=True)
    assert client.submit(lambda model: model.sha256, scattered).result() == booster.sha256


class Unfair(Squares):
    """A loss whose gradient is twice as large."""

    name = "unfair"

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 2 * (raw - y)


BAD: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "no rows": (lambda f: f[f.a > 1e9], "y", {}, "all 4 partitions are empty"),
    "a loss that is wrong": (lambda f: f, "y", {"loss": Unfair()}, "gradient of loss 'unfair' is not the derivative"),
    "unknown metric": (lambda f: f, "y", {"eval_metric": "roc_auc"}, "roc_auc"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(client: Client, what: str) -> None:
    change, target, options, message = BAD[what]
    lazy = change(dd.from_pandas(FRAME[["a", "b", "w", "y"]], npartitions=4))
    with pytest.raises(dboost.DBoostError, match=message):
        on_cluster(client, lazy, target, **options)


def test_a_partition_that_cannot_be_read_is_named(client: Client) -> None:
    def broken(frame: pd.DataFrame, partition_info: dict[str, Any] | None = None) -> pd.DataFrame:
        if partition_info and partition_info["number"] == 2:
            raise OSError("the disk is gone")
        return frame

    lazy = dd.from_pandas(FRAME[["a", "y"]], npartitions=4)
    with pytest.raises(dboost.DBoostError, match="partition 2 could not be read: OSError: the disk is gone"):
        on_cluster(client, lazy.map_partitions(broken, meta=lazy._meta), "y")
    mixed = dd.from_delayed(
        [dask.delayed(FRAME[["a", "y"]]), dask.delayed(FRAME[["a", "y"]].assign(a="text"))], verify_meta=False
    )
    with pytest.raises(dboost.DataError, match="'a' holds numbers in partition 0, but text or categories in partition 1"):
        on_cluster(client, mixed, "y")


class _OfAModule:
    """An object of a module that only this process has."""

    def __reduce__(self) -> Any:
        return importlib.import_module, ("only_here",)

    def __dask_tokenize__(self) -> str:
        return "of a module"


def test_a_module_that_the_cluster_lacks_is_named(client: Client) -> None:
    def loaded(frame: pd.DataFrame, _: Any) -> pd.DataFrame:
        return frame

    def imports(frame: pd.DataFrame) -> pd.DataFrame:
        if len(frame):
            importlib.import_module("only_here")
        return frame

    lazy = dd.from_pandas(FRAME[["a", "y"]], npartitions=2)
    for change in ((loaded, _OfAModule()), (imports,)):
        parts = lazy.map_partitions(*change, meta=lazy._meta)
        with pytest.raises(dboost.DBoostError, match=r"^partition \d could not be read: the cluster cannot import only_here: "):
            on_cluster(client, parts, "y")


@pytest.mark.parametrize("features", [None, ["a"]])
def test_only_a_column_that_is_missing_is_called_missing(client: Client, features: list[str] | None) -> None:
    parts = [FRAME[["a", "b", "y"]]] * 3

    def load(i: int, what: str) -> pd.DataFrame:
        if i == 2 and what == "their own mapping":
            {}["Brugge"]
        if i == 2 and what == "their own selection":
            parts[i][["c of theirs"]]
        return parts[i].drop(columns="a") if i == 2 and what == "no column" else parts[i]

    def attempt(what: str) -> None:
        lazy = dd.from_map(load, range(3), what=what, meta=parts[0].iloc[:0], enforce_metadata=False)
        on_cluster(client, lazy, "y", features=features)

    for what, message in (("their own mapping", "KeyError: 'Brugge'"), ("their own selection", "KeyError: .*c of theirs")):
        with pytest.raises(dboost.DBoostError, match=f"^partition 2 could not be read: {message}") as caught:
            attempt(what)
        assert isinstance(caught.value.__cause__, KeyError) and not isinstance(caught.value, dboost.DataError)
    with pytest.raises(dboost.DataError, match=r"^partition 2: there is no column 'a'$"):
        attempt("no column")


def test_evaluation_sets_are_named_in_errors(client: Client) -> None:
    lazy = dd.from_pandas(FRAME[["a", "t"]], npartitions=3)
    with pytest.raises(dboost.DataError, match=r"evaluation set 'held': .*'other'"):
        on_cluster(client, lazy, "t", eval_set={"held": lazy.assign(t="other")})


def test_partitions_of_other_tables_than_the_training_data_are_named(client: Client) -> None:
    """A partition has a number in each of them."""
    lazy = dd.from_pandas(FRAME[["a", "y"]], npartitions=3)

    def fails(part: pd.DataFrame) -> pd.DataFrame:
        raise OSError("the disk is gone")

    lost = lazy.map_partitions(fails, meta=lazy._meta)
    with pytest.raises(dboost.DBoostError, match="partition 0 of the evaluation set 'held' could not be read: OSError"):
        on_cluster(client, lazy, "y", eval_set={"held": lost})
    with pytest.raises(OSError, match="the disk is gone") as caught:
        dboost.fit(FRAME[["a", "y"]], "y", eval_set={"held": lost}, max_iter=2)
    assert caught.value.__notes__ == ["while partition 0 was read", "of evaluation set 'held'"]
    booster = dboost.fit(FRAME[["a", "y"]], "y", max_iter=2)
    with pytest.raises(dboost.DBoostError, match="partition 0 of the data to estimate leaf values from could not be read"):
        booster.refit_leaves(lost, "y", client=client)


def test_clients_that_will_not_do(client: Client) -> None:
    with pytest.raises(TypeError, match=r"distributed\.Client"):
        dboost.fit(FRAME[["a", "y"]], "y", client="tcp://somewhere:8786")

    async def ask() -> None:
        async with Client(client.scheduler.address, asynchronous=True, set_as_default=False) as other:
            dboost.fit(FRAME[["a", "y"]], "y", client=other)

    with pytest.raises(TypeError, match="asynchronous"):
        asyncio.run(ask())
