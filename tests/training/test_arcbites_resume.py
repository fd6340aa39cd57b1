"""Arcbites continue from a model and from a checkpoint, with the same result to the last bit as an uninterrupted fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dboost
from dboost import ArcBites, DataError, ParameterError
from tests.helpers.fits import FEATURES, TARGETS, cut, mixed_frame, saved

pytestmark = pytest.mark.filterwarnings("ignore::dboost.DriftWarning")
FRAME, HELD, OLD = mixed_frame(1500), mixed_frame(300, seed=1), mixed_frame(400, seed=2)
#: So small that the bites are stored in files.
LIMIT = 64 * 10**6

WAYS: dict[str, ArcBites] = {
    "watched": ArcBites(n_bites=4, visits=None, early_stopping_rounds=2),
    "so many trees each": ArcBites(n_bites=3, trees_per_visit=2, visits=None),
    "the worst first": ArcBites(n_bites=3, visits=None, order="adaptive", early_stopping_rounds=1),
    "in other company": ArcBites(n_bites=3, trees_per_visit=2, visits=None, parts=2),
    "one after the other": ArcBites(n_bites=3, trees_per_visit=3, visits=2, order="cyclic"),
}


class Killed(BaseException):
    """Stands for a killed process."""


def fit(target: str, frame: Any = FRAME, **options: Any) -> dboost.Booster:
    if "start_from" not in options:
        options = {"features": FEATURES} | options
    common = {"max_iter": 16, "learning_rate": 0.5, "eval_set": {"held": HELD}}
    return dboost.fit(frame, target, **common | options)


def killed_until_done(target: str, moments: set[int], folder: Path, **options: Any) -> dboost.Booster:
    """Run fits that fail after the given numbers of iterations, one after the other, until one completes."""
    died = set()
    for _ in range(len(moments) + 1):
        n_grown = 0

        def kill(now: dboost.Iteration) -> None:
            nonlocal n_grown
            n_grown += 1
            if n_grown in moments - died:
                died.add(n_grown)
                raise Killed

        try:
            booster = fit(target, checkpoint=folder, checkpoint_every=1, callbacks=[kill], **options)
        except Killed:
            continue
        assert len(died) >= 2
        return booster
    raise AssertionError("the last fit died, too")


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize(("way", "target"), zip(WAYS, [*TARGETS, *TARGETS], strict=False))
def test_killed_fits_resume(way: str, target: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"arcbites": WAYS[way], "sample_weight": "w", "subsample": 0.8}
    whole = fit(target, **options)
    booster = killed_until_done(target, {3, 5, 6, 9}, tmp_path, **options)
    assert saved(booster) == saved(whole)
    measured = ["seconds", "bytes_read"]
    assert booster.history.drop(columns=measured).equals(whole.history.drop(columns=measured))
    assert saved(fit(target, checkpoint=tmp_path, **options)) == saved(whole), "once more"
    longer = fit(target, checkpoint=tmp_path, **options | {"max_iter": 20})
    assert saved(longer) == saved(fit(target, **options | {"max_iter": 20}))


def test_the_checkpoint_saves_work(tmp_path: Path) -> None:
    options: dict[str, Any] = {"arcbites": WAYS["so many trees each"], "checkpoint": tmp_path, "checkpoint_every": 1}
    fit("late", **options)
    seen: list[int] = []
    fit("late", callbacks=[lambda now: seen.append(now.iteration)], **options)
    assert seen == [15, 16], "only the last visit is done again"


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("target", TARGETS)
def test_bites_go_on_from_a_model(target: str, client: Client, tmp_path: Path) -> None:
    old = dboost.fit(OLD, target, features=FEATURES, max_iter=4, source_name="old")
    options: dict[str, Any] = {"start_from": old, "arcbites": WAYS["watched"], "offset": "w"}
    strange = FRAME.assign(town=FRAME["town"].replace("Gent", "Arlon"))
    whole = fit(target, strange, **options)
    first, second = whole.sources
    assert (first["label"], first["last_iteration"], second["first_iteration"]) == ("old", 4, 5)
    assert whole.n_iter_ == second["last_iteration"] >= 5
    assert saved(fit(target, cut(strange, [100, 700]), client=client, **options)) == saved(whole)
    limited = options | {"arcbites": ArcBites(n_bites=4, visits=None, early_stopping_rounds=2), "memory_limit": LIMIT}
    assert saved(fit(target, cut(strange, [100, 700]), **limited)) == saved(whole)
    kept = options | {"continue_bins": "kept"}
    dboost.prepare(strange, target, tmp_path / "data", start_from=old, offset="w", continue_bins="kept")
    assert saved(fit(target, tmp_path / "data", **kept | {"offset": None})) == saved(fit(target, strange, **kept))


def test_another_fit_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"arcbites": WAYS["so many trees each"], "checkpoint": tmp_path, "checkpoint_every": 1}
    fit("late", max_iter=8, **options)
    with pytest.raises(ParameterError, match="arcbites was"):
        fit("late", **options | {"arcbites": WAYS["one after the other"]})
    with pytest.raises(DataError, match="the training data are not the same, train_loss is"):
        fit("late", offset="w", eval_set={"held": HELD.assign(w=0.0)}, **options)
    with pytest.raises(ParameterError, match="it has 6 iterations already, more than max_iter=4"):
        fit("late", max_iter=4, **options)
