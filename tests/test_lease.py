"""The lease of a model: one run at a time, in a folder and in an object store; a killed run's lease is taken over."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from dboost.cli.ledger import BusyError, Lease
from dboost.errors import ModelFileError
from dboost.storage import atomic_write
from tests.helpers.object_store import served

#: Seconds of a lease that is to run out, and of one that is not.
SHORT, LONG = 0.6, 60.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("nowhere")):
        yield "s3://lake"


@pytest.fixture(params=["folder", "store"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    root = str(tmp_path) if request.param == "folder" else request.getfixturevalue("store")
    return f"{root}/{request.node.name.partition('[')[0]}.json"


def is_there(model: str) -> bool:
    try:
        atomic_write.read_whole(f"{model}.lease.json")
    except atomic_write.FileMissingError:
        return False
    return True


def abandoned(model: str, seconds: float = SHORT) -> Lease:
    """Return a lease whose process was killed: its file stays, and nothing renews it."""
    lease = Lease(model, seconds)
    assert lease._create()
    return lease


def test_the_file_is_there_during_the_run_only(model: str) -> None:
    with Lease(model, LONG):
        holder = json.loads(atomic_write.read_whole(f"{model}.lease.json"))
        assert holder["process"] > 0 and holder["host"] and holder["since"] <= holder["renewed"]
    assert not is_there(model)
    with pytest.raises(ZeroDivisionError), Lease(model, LONG):
        _ = 1 / 0
    assert not is_there(model)


def test_a_second_run_ends_as_long_as_the_first_renews(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Lease(model, SHORT) as first:
        for _ in range(2):
            with pytest.raises(BusyError, match=r"another run \(host .*, process \d+, since .*\) is training .*: try again"):
                Lease(model, LONG).__enter__()
        first.renew()
    assert "waiting 60 s for its next renewal" in capsys.readouterr().err
    with Lease(model, SHORT):
        pass


def test_a_run_that_fails_after_it_lost_the_lease_says_so(model: str) -> None:
    """The other run has removed the files that the first one writes to."""
    with pytest.raises(BusyError, match="another run") as caught, Lease(model, LONG) as lease:
        lease._ended.set()  # as if suspended: nothing renews it
        abandoned(f"{model}.other")
        atomic_write.write_whole(f"{model}.lease.json", atomic_write.read_whole(f"{model}.other.lease.json"))
        raise ModelFileError("no such folder")
    assert isinstance(caught.value.__cause__, ModelFileError)
    assert is_there(model), "the other run still holds it"
    with pytest.raises(BusyError, match="another run"), Lease(f"{model}.gone", LONG):
        atomic_write.remove(f"{model}.gone.lease.json")
        raise ModelFileError("no such folder")
    with pytest.raises(ModelFileError, match="no such folder"), Lease(f"{model}.own", LONG):
        raise ModelFileError("no such folder")


def test_the_lease_of_a_killed_run_is_taken_over_once(model: str) -> None:
    killed = abandoned(model)
    began = time.monotonic()
    with Lease(model, SHORT) as second:
        assert time.monotonic() - began >= SHORT
        second.renew()
        with pytest.raises(BusyError):  # it was only frozen
            killed.renew()
        assert is_there(model)


def test_of_runs_that_take_over_at_the_same_time_one_wins(model: str) -> None:
    abandoned(model)
    held: list[Lease] = []

    def renews(lease: Lease) -> bool:
        try:
            lease.renew()
        except BusyError:
            return False
        return True

    refused: list[BusyError] = []

    def run() -> None:
        try:
            held.append(Lease(model, SHORT).__enter__())
        except BusyError as error:
            refused.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len(held) + len(refused) == 4
        # A slow one may have taken it over from another, which notices that now.
        assert sum(map(renews, held)) == 1
    finally:
        for lease in held:
            lease.__exit__(None, None, None)
    assert not is_there(model)


def test_of_runs_that_begin_at_the_same_time_one_wins(model: str) -> None:
    leases = [Lease(model, LONG) for _ in range(8)]
    created: list[bool] = []
    threads = [threading.Thread(target=lambda lease=lease: created.append(lease._create())) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(created) == [False] * 7 + [True]
    atomic_write.remove(f"{model}.lease.json")


def test_a_released_lease_is_free_at_once(model: str) -> None:
    first = Lease(model, LONG).__enter__()
    timer = threading.Timer(0.3, first.__exit__, (None, None, None))
    timer.start()
    began = time.monotonic()
    with Lease(model, 3 * SHORT):
        assert time.monotonic() - began < 3 * SHORT
    timer.join()


def test_a_frozen_run_notices_that_its_lease_was_taken_over(tmp_path: Path) -> None:
    model = f"{tmp_path}/model.json"
    frozen = abandoned(model, seconds=SHORT)
    frozen.check()  # in time: nothing is read
    with Lease(model, SHORT):
        with pytest.raises(BusyError):
            frozen.check()
        frozen._thread.start()
        with pytest.raises(BusyError):
            frozen.check()
        frozen.__exit__(None, None, None)
        assert is_there(model), "it is not its own"


def test_a_run_that_is_suspended_within_a_renewal_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = abandoned(f"{tmp_path}/model.json", seconds=0.2)
    monkeypatch.setattr("dboost.cli.ledger.read_whole", lambda path: (time.sleep(0.3), atomic_write.read_whole(path))[1])
    with pytest.raises(BusyError):
        lease.renew()


def test_a_store_that_fails_for_a_moment_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lease(f"{tmp_path}/model.json", SHORT) as lease:
        with monkeypatch.context() as patch:

            def fail(path: str) -> bytes:
                raise ModelFileError("slow down")

            patch.setattr("dboost.cli.ledger.read_whole", fail)
            time.sleep(SHORT / 2)
            lease.check()
            time.sleep(SHORT)
            with pytest.raises(ModelFileError, match="slow down"):
                lease.check()
        lease.check()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_file_that_says_nothing_is_waited_for_as_well(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.json.lease.json").write_bytes(content)
    lease = Lease(f"{tmp_path}/model.json", SHORT)
    assert lease._called(content) == f"another run is training {tmp_path}/model.json"
    with lease:
        pass


@pytest.mark.parametrize("knows_mode", [True, False])
def test_a_store_without_conditional_writes(knows_mode: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")

    def with_mode(path: str, value: bytes, mode: str = "overwrite") -> None:
        type(memory).pipe_file(memory, path, value)

    def without_mode(path: str, value: bytes) -> None:
        type(memory).pipe_file(memory, path, value)

    monkeypatch.setattr(memory, "pipe_file", with_mode if knows_mode else without_mode)
    with Lease("memory://model.json", SHORT) as first:
        with pytest.raises(BusyError):
            Lease("memory://model.json", LONG).__enter__()
        # Two runs that begin at the same time may both create the file: the first one notices.
        monkeypatch.setattr(memory, "exists", lambda path: False)
        second = Lease("memory://model.json", LONG)
        assert second._create()
        with pytest.raises(BusyError):
            first.renew()
        second.renew()
    monkeypatch.undo()
    atomic_write.remove("memory://model.json.lease.json")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot write"):
        Lease(f"{tmp_path}/nowhere/model.json", LONG).__enter__()
