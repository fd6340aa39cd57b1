"""A fit that is killed at any moment resumes from its checkpoint and gives the same model, to the last bit."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest

import dboost
from dboost import DataError, ModelFileError, ParameterError
from dboost.files.lease import BusyError
from dboost.rows.statistics import random_numbers, row_fingerprint
from dboost.training import checkpoint
from dboost.trees.whole_trees import WholeTrees
from tests.helpers.clusters import Processes
from tests.helpers.fits import FEATURES, mixed_frame, saved
from tests.helpers.tables import make_table
from tests.helpers.tune import Tune

ROOT = Path(__file__).parents[2]
FRAME = mixed_frame(400)
HELD = mixed_frame(150, seed=1)


class Killed(BaseException):
    """Stands for a killed process."""


def fit(target: str = "late", frame: Any = FRAME, **options: Any) -> dboost.Booster:
    if "start_from" not in options:
        options = {"features": FEATURES} | options
    return dboost.fit(frame, target, **{"max_iter": 12} | options)


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.filterwarnings("ignore::dboost.DriftWarning")
def test_a_checkpoint_is_of_the_model_to_start_from(tmp_path: Path) -> None:
    target = "grade"
    old = fit(target, HELD, source_name="old")
    options: dict[str, Any] = {"start_from": old, "offset": "w", "eval_set": HELD, "early_stopping_rounds": 3}
    strange = FRAME.assign(town=FRAME["town"].replace("Gent", "Arlon"))
    fit(target, strange, source_name="new", checkpoint=tmp_path, max_iter=4, **options)
    with pytest.raises(ParameterError, match="the model to start from was"):
        fit(target, strange, checkpoint=tmp_path, **options | {"start_from": old.truncate(11)})


def test_rows_in_files_resume(tmp_path: Path, tune: Tune) -> None:
    frame = mixed_frame(3000)
    booster = None
    tune(block_rows=256)
    for n, limit, streams in ((5, None, False), (9, "64MB", True), (12, 10**10, False)):
        tune(resident_rows=0 if streams else len(frame))
        booster = fit("y", frame, max_iter=n, checkpoint=tmp_path, checkpoint_every=2, memory_limit=limit)
        assert (booster.history["bytes_read"].iloc[-1] > 0) == streams
    assert booster is not None and saved(booster) == saved(fit("y", frame))


def test_a_finished_fit_is_returned_and_can_be_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = fit(checkpoint=tmp_path)
    before = files_in(tmp_path)

    def never(*_: object) -> None:
        raise AssertionError("nothing is left to be grown")

    with monkeypatch.context() as patched:
        patched.setattr(WholeTrees, "grow_tree", never)
        assert fit(checkpoint=tmp_path) == once
    assert files_in(tmp_path) == before
    assert saved(fit(checkpoint=tmp_path, max_iter=17)) == saved(fit(max_iter=17))
    with pytest.raises(ParameterError, match="it has 17 iterations already, more than max_iter=12"):
        fit(checkpoint=tmp_path)


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_around_any_write(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the write of a file of trees and of the state that names it."""
    expected = saved(fit(subsample=0.7))
    write = checkpoint.write_whole
    for fatal in count():
        folder, calls = tmp_path / str(fatal), count()

        def sometimes(path: Any, data: bytes, calls: Iterator[int] = calls, fatal: int = fatal) -> None:
            number = next(calls)
            if number == fatal and moment == "before":
                raise Killed
            write(path, data)
            if number == fatal:
                raise Killed

        options: dict[str, Any] = {"subsample": 0.7, "checkpoint": folder, "checkpoint_every": 4}
        try:
            with monkeypatch.context() as patched:
                patched.setattr(checkpoint, "write_whole", sometimes)
                fit(**options)
        except Killed:
            assert saved(fit(**options)) == expected
        else:
            break
    assert fatal == 6, "three times trees and state"


def test_places(tmp_path: Path) -> None:
    expected = fit()
    name = uuid.uuid4().hex
    for place in (tmp_path / "a" / "b", f"file://{tmp_path}/c", f"memory://{name}/d/", str(tmp_path / "e/")):
        for n in (7, 12):
            booster = fit(checkpoint=place, max_iter=n)
        assert booster == expected
    assert {path.rpartition("/")[2] for path in fsspec.filesystem("memory").ls(f"/{name}/d", detail=False)} == {
        "state.json", "trees-000001-000007.json", "trees-000008-000012.json"
    }  # fmt: skip
    (tmp_path / "file").write_text("here")
    for place, why in ((tmp_path / "file", "File exists"), ("nothing://x/y", "nothing")):
        with pytest.raises(ModelFileError, match=f"cannot keep a checkpoint in .*{why}"):
            fit(checkpoint=place)


CHANGES: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ParameterError, r"learning_rate was 0\.1 then and is 0\.2 now", {"learning_rate": 0.2}),
    (ParameterError, "random_state was 0 then and is 1 now", {"random_state": 1}),
    (ParameterError, "max_depth was None then and is 3 now", {"max_depth": 3}),
    (ParameterError, "names of the evaluation sets was", {"eval_set": {"other": HELD}}),
    (DataError, "model has 7 features|7 features, the data have", {"features": FEATURES[:-1]}),
    (DataError, "column 'x' holds other values", {"frame": FRAME.assign(x=FRAME["x"].replace(FRAME["x"].max(), 0.0))}),
    (DataError, "other levels", {"frame": FRAME.assign(town=FRAME["town"].replace("Gent", "Arlon"))}),
    (DataError, "the target differs", {"frame": FRAME.assign(late=FRAME["late"].to_numpy()[::-1])}),
    (DataError, "there were 400 rows then, there are 399 now", {"frame": FRAME.iloc[1:]}),
    (DataError, "the target differs", {"frame": FRAME.iloc[::-1]}),
    (DataError, "the weight differs", {"sample_weight": np.linspace(1, 2, 400)}),
    (DataError, "the training data are not the same, train_loss is", {"offset": "w"}),
    (DataError, "the evaluation sets are not the same, held_log_loss is", {"eval_set": {"held": HELD.iloc[1:]}}),
]


@pytest.mark.fast_cells(5)
@pytest.mark.parametrize(("kind", "message", "change"), CHANGES, ids=[message for _, message, _ in CHANGES])
def test_another_fit_is_refused_by_what_differs(
    kind: type[Exception], message: str, change: dict[str, Any], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"eval_set": {"held": HELD}, "checkpoint": tmp_path, "max_iter": 3}
    fit(**options)
    before = files_in(tmp_path)
    with pytest.raises(kind, match=f"the checkpoint in .* is of another fit .*({message})"):
        fit(**options | {"max_iter": 5} | change)
    assert files_in(tmp_path) == before
    assert fit(**options | {"max_iter": 5}).n_iter_ == 5


def test_newer_and_missing_files_are_refused(tmp_path: Path) -> None:
    fit(checkpoint=tmp_path, max_iter=4, checkpoint_every=2)
    head, _, rest = (tmp_path / "state.json").read_bytes().partition(b'"version": 2')
    for version, age in ((1, "an older"), (3, "a newer")):
        (tmp_path / "state.json").write_bytes(head + b'"version": %d' % version + rest)
        with pytest.raises(ModelFileError, match=rf"state\.json has format version {version}, written by {age} dboost"):
            fit(checkpoint=tmp_path)
    (tmp_path / "state.json").write_bytes(head + b'"version": 2' + rest)
    (tmp_path / "trees-000001-000002.json").unlink()
    with pytest.raises(ModelFileError, match=r"trees-000001-000002\.json"):
        fit(checkpoint=tmp_path)


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the state in a file, with a right digest."""
    head, _, content = path.read_bytes().partition(b"\n")
    entries = json.loads(b"{" + content)
    change(entries)
    content = json.dumps(entries)[1:].encode()
    path.write_bytes(
        head[: head.index(b'"sha256"')] + f'"sha256": "{hashlib.sha256(content).hexdigest()}",\n'.encode() + content
    )


@pytest.mark.fast_cells(8)
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda state: state.pop("history"), "it has no entry 'history'"),
        (lambda state: state.update(other=1), "it has an unknown entry 'other'"),
        (lambda state: state.update(before=None), "it.before is None, not a mapping"),
        (lambda state: state["before"].pop("train_loss"), "it.before has no entry 'train_loss'"),
        (lambda state: state["identity"].pop("data"), "it.identity has no entry 'data'"),
        (lambda state: state["identity"].update(asked=[]), "it.identity.asked is a list, not a mapping"),
        (lambda state: state["identity"]["data"].update(rows=-1), r"it.identity.data.rows is -1, not an integer at least 1"),
        (lambda state: state["identity"]["data"].update(columns=3), "it.identity.data.columns is 3"),
        (lambda state: state["identity"]["data"]["columns"].update(x="0"), "it.identity.data.columns.x is '0'"),
        (lambda state: state["parts"][0].pop("sha256"), r"it.parts\[0\] has no entry 'sha256'"),
        (lambda state: state["parts"][0].update(name="../trees-000001-000002.json"), r"it.parts\[0\].name is '../"),
        (lambda state: state["parts"][0].update(last_iteration=10**12), "its trees trees-000001-000002.json do not follow"),
        (lambda state: state["parts"].reverse(), "its trees trees-000001-000002.json do not follow"),
        (lambda state: state["parts"].pop(), "its history is not that of its trees"),
        (lambda state: state["history"].pop(), "its history is not that of its trees"),
        (lambda state: state["history"][1].update(iteration=7), "its history is not that of its trees"),
        (lambda state: state["history"][0].update(train_loss="0.5"), r"it.history\[0\].train_loss is '0.5', not a number"),
        (lambda state: state["history"][2].update(more=0.5), "not the same in all iterations"),
        (lambda state: state.update(visits={}), "it.visits has no entry 'bites'"),
        (lambda state: state.update(visits={"bites": [], "in_vain": 0, "began": state["before"]}), "do not fit"),
        (lambda state: state["visits"]["bites"].append(0), "its history is not that of its visits"),
        (lambda state: state["history"][0].update(iteration=2), "its history is not that of its visits"),
    ],
)
def test_states_with_a_right_digest_and_wrong_content_are_refused(
    change: Callable[[dict[str, Any]], Any], complaint: str, tmp_path: Path
) -> None:
    bites = {"arcbites": dboost.ArcBites(n_bites=2, trees_per_visit=2)} if complaint.endswith("its visits") else {}
    fit(checkpoint=tmp_path, max_iter=4, checkpoint_every=2, **bites)
    rewritten(tmp_path / "state.json", change)
    with pytest.raises(ModelFileError, match=rf"state\.json does not hold a valid state of a checkpoint: .*{complaint}"):
        fit(checkpoint=tmp_path, max_iter=6, **bites)


def test_trees_that_are_not_those_of_the_state_are_refused(tmp_path: Path) -> None:
    def put_in_place(of: str, trees: bytes) -> None:
        fit(checkpoint=tmp_path / "own", max_iter=4, checkpoint_every=2)
        (tmp_path / "own" / of).write_bytes(trees)
        digest = hashlib.sha256(trees).hexdigest()
        rewritten(tmp_path / "own" / "state.json", lambda state: state["parts"][1].update(sha256=digest))

    second = "trees-000003-000004.json"
    fit(checkpoint=tmp_path / "other", max_iter=8, checkpoint_every=4)
    put_in_place(second, (tmp_path / "other" / "trees-000005-000008.json").read_bytes())
    with pytest.raises(ModelFileError, match=f"{second} has 4 iterations, which is not what state.json says"):
        fit(checkpoint=tmp_path / "own", max_iter=6)
    shutil.rmtree(tmp_path / "own")
    fit("grade", checkpoint=tmp_path / "classes", max_iter=4, checkpoint_every=2)
    put_in_place(second, (tmp_path / "classes" / second).read_bytes())
    with pytest.raises(ModelFileError, match=f"{second} is of another model than trees-000001-000002.json"):
        fit(checkpoint=tmp_path / "own", max_iter=6)


def test_parameters_that_there_were_not_yet_had_their_defaults(tmp_path: Path) -> None:
    fit(max_iter=3, checkpoint=tmp_path)
    content = (tmp_path / "state.json").read_bytes().partition(b"\n")[2].replace(b'"step": "leaf", ', b"")
    head = f'{{"format": "dboost checkpoint", "version": 2, "sha256": "{hashlib.sha256(content).hexdigest()}",\n'.encode()
    (tmp_path / "state.json").write_bytes(head + content)
    with pytest.raises(ParameterError, match="step was leaf then and is constant now"):
        fit(max_iter=5, checkpoint=tmp_path, step="constant")
    assert fit(max_iter=5, checkpoint=tmp_path).n_iter_ == 5


def test_interrupted_the_message_says_what_is_kept(tmp_path: Path) -> None:
    def interrupt(now: dboost.Iteration) -> None:
        if now.iteration == 7:
            raise KeyboardInterrupt

    with pytest.raises(dboost.FitInterrupted, match=r"interrupted after 7 of 12 .*; the checkpoint in .* holds 6 of this"):
        fit(checkpoint=tmp_path, checkpoint_every=3, callbacks=interrupt)
    assert fit(checkpoint=tmp_path) == fit()


def test_sums_of_rows_know_no_division() -> None:
    table = make_table([4, 255, 300], 1000)
    whole = table.shard(np.zeros(1000, np.float32), None)
    sums = row_fingerprint.compute(whole, 0, 1000)
    naive = [
        sum(int(n) * (int(code) + 1) for n, code in zip(random_numbers(np.arange(1000)), codes, strict=True)) % 2**64
        for codes in table.codes
    ]
    assert sums[2:].tolist() == naive
    pieces = [table.shard(np.zeros(1000, np.float32), None, rows=rows) for rows in (slice(0, 300), slice(300, 1000))]
    with np.errstate(over="ignore"):
        parts = (
            row_fingerprint.compute(pieces[0], 0, 120)
            + row_fingerprint.compute(pieces[0], 120, 300)
            + row_fingerprint.compute(pieces[1], 0, 700)
        )
    assert parts.tolist() == sums.tolist()


TRAIN = """
import sys, time
from distributed import Client
import dboost
from tests.helpers.fits import FEATURES, cut, mixed_frame
FRAME, HELD = mixed_frame(400), mixed_frame(150, seed=1)
def wait(now):
    print(now.iteration, flush=True)
    time.sleep(0.01 if now.iteration < 50 else 600)  # who kills it may be late
dboost.fit(cut(FRAME, [200]), "late", features=FEATURES, max_iter=60, subsample=0.7, eval_set={"held": HELD},
    early_stopping_rounds=50, callbacks=wait, checkpoint=sys.argv[1], checkpoint_every=2, progress=False,
    client=Client(sys.argv[2], set_as_default=False))
"""


def uninterrupted(**options: Any) -> bytes:
    return saved(fit(max_iter=60, subsample=0.7, eval_set={"held": HELD}, early_stopping_rounds=50, **options))


WAIT = """
import sys, time
import dboost
from tests.helpers.fits import FEATURES, mixed_frame
def wait(now):
    if now.iteration == 4:
        print(now.iteration, flush=True)
        time.sleep(600)
dboost.fit(mixed_frame(400), "late", features=FEATURES, max_iter=12, callbacks=wait, checkpoint=sys.argv[1], checkpoint_every=1,
    progress=False)
"""


@pytest.mark.slow
def test_two_processes_with_one_checkpoint(tmp_path: Path) -> None:
    """The second is refused, of the same fit and of another; after the first is killed, the next takes over at once."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DASK_DBOOST__LEASE": "3s"}
    first = subprocess.Popen([sys.executable, "-c", WAIT, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, env=environment)
    try:
        assert first.stdout is not None and first.stdout.readline() == b"4\n"
        (tmp_path / f".state.json.{uuid.uuid4().hex}").write_bytes(b"a draft of the first")
        for options in ({}, {"learning_rate": 0.3}):
            before = files_in(tmp_path)
            busy = rf"another run \(host .*, process {first.pid}, since .*\) is writing the checkpoint in .*: try again when"
            with pytest.raises(BusyError, match=busy):
                fit(checkpoint=tmp_path, checkpoint_every=1, **options)
            after = files_in(tmp_path)
            assert after | {"lease.json": b""} == before | {"lease.json": b""}, "the first is not disturbed"
    finally:
        first.kill()
        first.communicate()
    began = time.monotonic()
    seen: list[int] = []
    with dask.config.set({"dboost.lease": "60s"}):
        booster = fit(checkpoint=tmp_path, checkpoint_every=1, callbacks=lambda now: seen.append(now.iteration))
    assert time.monotonic() - began < 20 and min(seen) == 4
    assert saved(booster) == saved(fit())
    assert all(name == "state.json" or name.startswith("trees-") for name in files_in(tmp_path))


def test_a_fit_that_has_lost_its_checkpoint_ends_and_writes_nothing(tmp_path: Path) -> None:
    def lose(now: dboost.Iteration) -> None:
        if now.iteration == 3:
            record = json.loads((tmp_path / "lease.json").read_bytes())
            (tmp_path / "lease.json").write_text(json.dumps(record | {"run": "of another", "process": 1}))
            (tmp_path / "state.json").write_bytes(b"of another")

    with pytest.raises(BusyError, match=r"another run .* is writing the checkpoint in"):
        fit(checkpoint=tmp_path, checkpoint_every=1, callbacks=[lose])
    assert (tmp_path / "state.json").read_bytes() == b"of another" and (tmp_path / "lease.json").exists()
    assert not (tmp_path / "trees-000003-000003.json").exists()


def test_only_the_files_of_a_checkpoint_are_removed(tmp_path: Path) -> None:
    fit(checkpoint=tmp_path / "run[1]", max_iter=2)
    neighbours = [
        tmp_path / "run1" / "state.json",
        tmp_path / "run[1]" / "trees-of-mine.json",
        tmp_path / "run[1]x" / "state.json",
    ]
    for path in neighbours:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    checkpoint.remove_checkpoint(f"{tmp_path}/run[1]")
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(neighbours)
    neighbours[1].unlink()
    for _ in range(2):
        checkpoint.remove_checkpoint(f"{tmp_path}/run[1]/")
        assert not (tmp_path / "run[1]").exists()


FORKS = """
import os, random, signal, sys, time
import dboost
from tests.helpers.fits import FEATURES, mixed_frame
FRAME, HELD = mixed_frame(400), mixed_frame(150, seed=1)
options = dict(features=FEATURES, subsample=0.7, eval_set={"held": HELD}, early_stopping_rounds=50, progress=False, n_threads=1)
if sys.argv[3] == "arcbites":
    options["arcbites"] = dboost.ArcBites(n_bites=3, trees_per_visit=2, visits=None)
dboost.fit(FRAME, "late", max_iter=1, **options)
rng = random.Random(int(sys.argv[2]))
n_killed = n_tries = 0
while n_killed < 20:
    n_tries += 1
    folder = f"{sys.argv[1]}/{n_tries // 7}"
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        dboost.fit(FRAME, "late", max_iter=60, checkpoint=folder, checkpoint_every=1, **options)
        os._exit(0)
    time.sleep(rng.uniform(0.0, 0.4))
    os.kill(child, signal.SIGKILL)
    n_killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
for number in range(n_tries // 7 + 1):
    folder = f"{sys.argv[1]}/{number}"
    dboost.fit(FRAME, "late", max_iter=60, checkpoint=folder, checkpoint_every=1, **options).save(f"{folder}/model.json")
print("killed", n_killed, "of", n_tries)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all rows", "arcbites"])
def test_killed_at_twenty_random_moments(kind: str, tmp_path: Path) -> None:
    """Processes are forked from one that has imported and compiled everything: they are killed while they train and write."""
    seed = str(int.from_bytes(os.urandom(4), "big"))
    program = [sys.executable, "-c", FORKS, str(tmp_path), seed, kind]
    done = subprocess.run(program, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    assert "killed 20 of" in done.stdout
    models = {saved(dboost.load(path)) for path in tmp_path.glob("*/model.json")}
    bites = {"arcbites": dboost.ArcBites(n_bites=3, trees_per_visit=2, visits=None)} if kind == "arcbites" else {}
    assert models == {uninterrupted(**bites)}, f"seed {seed}"
    assert not [path for path in tmp_path.glob("*/.*")], "no draft stays behind"


@pytest.mark.slow
def test_client_worker_and_scheduler_are_killed(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s"}
    with Processes(2) as processes:
        for victims in (["client"], ["worker", "scheduler"]):
            command = [sys.executable, "-c", TRAIN, str(tmp_path), processes.address]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, env=environment)
            assert child.stdout is not None
            for victim in victims:
                assert all(child.stdout.readline() for _ in range(5))
                if victim == "worker":
                    os.kill(processes.any_pid(), signal.SIGKILL)
                else:
                    {"client": child, "scheduler": processes.scheduler}[victim].kill()
            child.communicate(timeout=180)
            assert child.returncode != 0
    seen: list[int] = []
    resumed = uninterrupted(checkpoint=tmp_path, checkpoint_every=2, callbacks=lambda now: seen.append(now.iteration))
    assert resumed == uninterrupted() and min(seen) > 8


def test_checkpoint_every_is_checked_without_a_checkpoint() -> None:
    X = np.arange(40.0).reshape(20, 2)
    with pytest.raises(ParameterError, match=r"checkpoint_every=10\.0 must be a positive integer"):
        dboost.fit(X, X[:, 0], max_iter=1, progress=False, checkpoint_every=10.0)
