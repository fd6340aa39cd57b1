"""The simulated cluster: its models equal those of one process, and its clock adds up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import dask
import numpy as np
import pytest

import dboost
from benchmarks.simulation.__main__ import frame, main
from benchmarks.simulation.clock import CountedLoop
from benchmarks.simulation.cluster import Simulated, fit
from benchmarks.simulation.costs import Costs
from benchmarks.simulation.network import Host, Network, Wire
from dboost.booster import booster_with
from dboost.params import make_parameters

COSTS = Costs(cell=1e-9, split=2e-9, begin=1e-9, settle=3e-9, advance=5e-9, pair=6e-5)


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize(("n_workers", "n_features"), [(3, 5), pytest.param(30, 5, marks=pytest.mark.slow), (11, 40)])
def test_the_model_is_that_of_one_process(n_workers: int, n_features: int) -> None:
    data = frame(n_workers, n_features)
    settings = {"max_iter": 3, "loss": "log_loss", "max_leaf_nodes": 15}
    simulated = Simulated(n_workers, Network(), COSTS)
    try:
        with dask.config.set({"dboost.gather-bytes": "2MiB"}):
            fitted = fit(simulated, data, "y", make_parameters(settings), n_rows=1e9)
    finally:
        simulated.close()
    here = dboost.fit(data, "y", progress=False, **settings)
    assert booster_with(fitted.ensemble, history=fitted.history, timings=fitted.timings).sha256 == here.sha256
    trees = [event for event in simulated.events if event["action"] == "tree"]
    owners = {event["owners"] for event in trees}
    assert {event["branches"] for event in trees} == {min(n_workers, 8)}
    assert owners == ({0} if n_features == 5 else {5})  # small histograms are gathered, large ones reduced by feature
    assert {event["groups"] for event in trees} == ({0} if n_features == 5 else {2})
    # The reducer adds up first answers while the slowest worker computes. Where two rounds are under way, the slowest workers
    # of both may compute at the same time.
    assert simulated.seconds > 0.9 * sum(simulated.computing.values()) > 0 and simulated.deciding > 0


def test_seconds_are_counted_not_waited_for() -> None:
    loop = CountedLoop()
    loop.charge = lambda executor, function, arguments, took: 3600.0

    async def work() -> int:
        await asyncio.sleep(86_400)
        return await loop.run_in_executor(None, int, "7")

    assert loop.run_until_complete(work()) == 7
    assert loop.time() == pytest.approx(90_000)
    loop.close()


def test_links_and_loops_are_queues() -> None:
    """Ten messages to one host: its link takes one after the other, whatever the senders."""
    wire = Wire(Network(bandwidth=1e6, latency=0.5, handling=0.0))
    loop = CountedLoop()
    there = Host("there")

    async def all_of_them() -> None:
        await asyncio.gather(*(wire.carry(Host(str(k)), there, b"x" * (10**6 - 600)) for k in range(10)))

    loop.run_until_complete(all_of_them())
    assert loop.time() == pytest.approx(10.5)
    loop.close()


def test_more_rows_take_longer_and_more_workers_less() -> None:
    def seconds(n_workers: int, n_rows: float) -> float:
        simulated = Simulated(n_workers, Network(), COSTS)
        try:
            parameters = make_parameters({"max_iter": 2, "loss": "log_loss"})
            fit(simulated, frame(n_workers, 4), "y", parameters, n_rows=n_rows)
            return simulated.seconds
        finally:
            simulated.close()

    few, many, shared = seconds(2, 1e9), seconds(2, 1e10), seconds(8, 1e10)
    assert 9 < many / few < 10.5
    assert 3.5 < many / shared < 4.2


@pytest.mark.slow
def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n% table: 6 features\n| workers |\n|---|\n| 7 |\n\n% table: 7 features\n| x |\n", encoding="utf-8"
    )
    found = main(["--quick", "--features", "6", "--trees", "1", "--page", str(page)])
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[:3] == ["# Title", "", "% table: 6 features"] and lines[-3:] == ["", "% table: 7 features", "| x |"]
    assert [line.split("|")[1].strip() for line in lines[3:-3]] == ["hosts", "---", "2", "9"]
    assert float(lines[5].split("|")[2]) == pytest.approx(found[0]["s a tree"], rel=0.06)
    assert [(one["workers"], one["rows"]) for one in found] == [(2, 1e8), (9, 1e8)]
    assert all(one["s a tree"] > 0.9 * one["computing"] > 0 and one["messages"] >= 0 for one in found)
    assert "Gbit/s" in capsys.readouterr().out
    assert np.isfinite([list(one.values()) for one in found]).all()


def test_columns_that_stand_for_many() -> None:
    """Of a table ten times as wide, cells cost ten times as much, and as many bytes are sent; the rounds are the same."""
    found = []
    for columns in (1.0, 10.0):
        simulated = Simulated(9, Network(), COSTS, columns=columns)
        try:
            fit(simulated, frame(9, 30), "y", make_parameters({"max_iter": 2, "loss": "log_loss"}), n_rows=1e9)
        finally:
            simulated.close()
        received = sum(host.received for host in simulated.wire.hosts.values())
        _, tree = (event for event in simulated.events if event["action"] == "tree")
        found.append((sum(simulated.computing.values()), received, tree["n_rounds"]))
    assert found[0][2] == found[1][2]
    assert 5 < found[1][0] / found[0][0] < 10 and 2 < found[1][1] / found[0][1] < 10
