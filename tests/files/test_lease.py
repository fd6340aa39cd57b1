"""Leases: one run at a time, in a folder and in an object store; a killed run's lease is taken over."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import fsspec
import pytest

from dboost.errors import ModelFileError
from dboost.files import atomic_write
from dboost.files import lease as storage_lease
from dboost.files.lease import BusyError, Lease
from tests.helpers.clusters import ROOT
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


def lease_of(model: str, seconds: float) -> Lease:
    return Lease(f"{model}.lease.json", f"is training {model}", seconds)


def is_there(model: str) -> bool:
    try:
        atomic_write.read_whole(f"{model}.lease.json")
    except atomic_write.FileMissingError:
        return False
    return True


def abandoned(model: str, seconds: float = SHORT) -> Lease:
    """Return a lease whose process was killed: its file stays, and nothing renews it."""
    lease = lease_of(model, seconds)
    assert lease._create()
    return lease


def test_the_file_is_there_during_the_run_only(model: str) -> None:
    with lease_of(model, LONG):
        holder = json.loads(atomic_write.read_whole(f"{model}.lease.json"))
        assert holder["process"] > 0 and holder["host"] and holder["since"] <= holder["renewed"]
    assert not is_there(model)
    with pytest.raises(ZeroDivisionError), lease_of(model, LONG):
        _ = 1 / 0
    assert not is_there(model)


def test_a_second_run_ends_as_long_as_the_first_renews(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with lease_of(model, SHORT) as first:
        for _ in range(2):
            with pytest.raises(BusyError, match=r"another run \(host .*, process \d+, since .*\) is training .*: try again"):
                lease_of(model, LONG).__enter__()
        first.renew()
    assert f"waiting {SHORT} s for its next renewal" in capsys.readouterr().err
    with lease_of(model, SHORT):
        pass


@pytest.mark.parametrize(
    ("stored", "waits"),
    [({"seconds": LONG}, LONG), ({"seconds": 7}, 7), ({}, SHORT), ({"seconds": "60"}, SHORT), ({"seconds": True}, SHORT),
     ({"seconds": 1e300}, SHORT), ({"seconds": -1.0}, SHORT), ({"seconds": float("nan")}, SHORT)],
)  # fmt: skip
def test_the_duration_of_the_holder_decides(tmp_path: Path, stored: dict[str, object], waits: float) -> None:
    content = json.dumps(stored).encode()
    assert lease_of(str(tmp_path / "model.json"), SHORT)._duration(content) == waits


def test_a_live_lease_is_not_taken_over_by_a_run_of_a_shorter_duration(model: str) -> None:
    with lease_of(model, 9 * SHORT) as first:
        with pytest.raises(BusyError, match="another run"):
            lease_of(model, SHORT / 4).__enter__()
        first.renew()


def test_a_run_that_fails_after_it_lost_the_lease_says_so(model: str) -> None:
    """The other run has removed the files that the first one writes to."""
    with pytest.raises(BusyError, match="another run") as caught, lease_of(model, LONG) as lease:
        lease._ended.set()  # as if suspended: nothing renews it
        abandoned(f"{model}.other")
        atomic_write.write_whole(f"{model}.lease.json", atomic_write.read_whole(f"{model}.other.lease.json"))
        raise ModelFileError("no such folder")
    assert isinstance(caught.value.__cause__, ModelFileError)
    assert is_there(model), "the other run still holds it"
    with pytest.raises(BusyError, match="another run"), lease_of(f"{model}.gone", LONG):
        atomic_write.remove(f"{model}.gone.lease.json")
        raise ModelFileError("no such folder")
    with pytest.raises(ModelFileError, match="no such folder"), lease_of(f"{model}.own", LONG):
        raise ModelFileError("no such folder")
    for name in (model, f"{model}.other"):
        atomic_write.remove(f"{name}.lease.json")


def test_the_lease_of_a_killed_run_is_taken_over_once(model: str) -> None:
    killed = abandoned(model)
    began = time.monotonic()
    with lease_of(model, SHORT) as second:
        assert time.monotonic() - began >= SHORT
        second.renew()
        with pytest.raises(BusyError):  # it was only frozen
            killed.renew()
        assert is_there(model)


HOLD = """
import sys
from dboost.files.lease import Lease
with Lease(sys.argv[1], "is training", 60.0):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_killed_process_of_this_machine_is_followed_at_once(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, f"{model}.lease.json"], stdin=PIPE, stdout=PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        held = atomic_write.read_whole(f"{model}.lease.json")
        assert not storage_lease._is_dead(held)
        process.kill()
        deadline = time.monotonic() + 10
        while not storage_lease._is_dead(held):  # not waited for: a zombie has ended as well
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.kill()
        process.communicate()
    began = time.monotonic()
    with lease_of(model, LONG):
        assert time.monotonic() - began < LONG / 2
    assert "waiting" not in capsys.readouterr().err
    assert not is_there(model)


def test_only_a_process_of_this_machine_that_has_ended_counts_as_dead() -> None:
    own = lease_of("model.json", LONG)._holder
    if "machine" not in own:
        pytest.skip("the system does not tell when a process has started")

    def is_dead(**other: object) -> bool:
        return storage_lease._is_dead(json.dumps(own | other).encode())

    assert not is_dead()
    assert is_dead(started="1"), "another process has its number"
    assert is_dead(process=2**22 + 1) and is_dead(process=10**30)
    assert not is_dead(machine="another", process=2**22 + 1)
    for strange in ({"process": "1"}, {"process": -1}, {"process": 0}, {"process": None}, {"started": None}, {"machine": None}):
        assert not is_dead(**strange)
    for content in (b"", b"{", b"[]", b"1", b"\xff", b"null"):
        assert not storage_lease._is_dead(content)


def test_an_interrupted_wait_for_a_lease_leaves_nothing(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            Lease, "_create", lambda lease: (_ for _ in ()).throw(KeyboardInterrupt(lease._write(atomic_write.create_whole)))
        )
        with pytest.raises(KeyboardInterrupt):
            lease_of(model, LONG).__enter__()
    assert not is_there(model)


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
            held.append(lease_of(model, SHORT).__enter__())
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
    leases = [lease_of(model, LONG) for _ in range(8)]
    created: list[bool] = []
    threads = [threading.Thread(target=lambda lease=lease: created.append(lease._create())) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(created) == [False] * 7 + [True]
    atomic_write.remove(f"{model}.lease.json")


def test_a_released_lease_is_free_at_once(model: str) -> None:
    first = lease_of(model, LONG).__enter__()
    timer = threading.Timer(0.3, first.__exit__, (None, None, None))
    timer.start()
    began = time.monotonic()
    with lease_of(model, 20 * SHORT):
        assert time.monotonic() - began < 20 * SHORT
    timer.join()


def test_a_frozen_run_notices_that_its_lease_was_taken_over(tmp_path: Path) -> None:
    model = f"{tmp_path}/model.json"
    frozen = abandoned(model, seconds=SHORT)
    frozen.check()  # in time: nothing is read
    with lease_of(model, SHORT):
        with pytest.raises(BusyError):
            frozen.check()
        frozen._thread.start()
        with pytest.raises(BusyError):
            frozen.check()
        frozen.__exit__(None, None, None)
        assert is_there(model), "it is not its own"


def test_a_run_that_is_suspended_within_a_renewal_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = abandoned(f"{tmp_path}/model.json", seconds=0.2)
    monkeypatch.setattr("dboost.files.lease.read_whole", lambda path: (time.sleep(0.3), atomic_write.read_whole(path))[1])
    with pytest.raises(BusyError):
        lease.renew()
    (tmp_path / "model.json.lease.json").unlink()


def test_a_store_that_fails_for_a_moment_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lease_of(f"{tmp_path}/model.json", SHORT) as lease:
        with monkeypatch.context() as patch:

            def fail(path: str) -> bytes:
                raise ModelFileError("slow down")

            patch.setattr("dboost.files.lease.read_whole", fail)
            time.sleep(SHORT / 2)
            lease.check()
            time.sleep(SHORT)
            with pytest.raises(ModelFileError, match="slow down"):
                lease.check()
        lease.check()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_file_that_says_nothing_is_waited_for_as_well(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.json.lease.json").write_bytes(content)
    lease = lease_of(f"{tmp_path}/model.json", SHORT)
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
    with lease_of("memory://model.json", SHORT) as first:
        with pytest.raises(BusyError):
            lease_of("memory://model.json", LONG).__enter__()
        # Two runs that begin at the same time may both create the file: the first one notices.
        monkeypatch.setattr(memory, "exists", lambda path: False)
        second = lease_of("memory://model.json", LONG)
        assert second._create()
        with pytest.raises(BusyError):
            first.renew()
        second.renew()
    monkeypatch.undo()
    atomic_write.remove("memory://model.json.lease.json")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot write"):
        lease_of(f"{tmp_path}/nowhere/model.json", LONG).__enter__()
