"""Every kind of fit gives the same model, history and predictions by every entrance: `CASES` × `WAYS`.

Where a fit runs is another question (`tests.test_conformance`). Here its rows are a table in memory.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import dboost
from dboost import Booster
from dboost.cli import main
from tests.helpers.fixed_calls import CASES, ROLES, Fixed, FixedCall, Result, assert_same, result_of
from tests.suite.covering import cells

pytestmark = [pytest.mark.filterwarnings("ignore::dboost.DriftWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]


@cache
def trained(name: str) -> Booster:
    fixed = CASES[name]
    return FixedCall(fixed.earlier, Path(), fixed=fixed).train()


@cache
def expected(name: str) -> Result:
    return result_of(trained(name), CASES[name])


def _loaded(name: str, file: Path) -> Booster:
    trained(name).save(file)
    return dboost.load(file)


def _last_of_chunks(name: str, folder: Path) -> Booster:
    call = FixedCall(CASES[name].earlier, folder, fixed=CASES[name])
    rows = call.rows()
    (model,) = dboost.continue_on([rows.pop("data")], **rows, **call.keywords())
    return model


def _by_command(name: str, folder: Path) -> Booster:
    call = FixedCall(CASES[name].earlier, folder, fixed=CASES[name])
    rows, keywords = call.rows(), call.keywords()
    argv = ["train", str(folder / "rows.parquet"), "--target", rows["target"], "--output", str(folder / "model.json")]
    argv.append("--quiet")
    rows["data"].to_parquet(folder / "rows.parquet")
    start = keywords.pop("start_from", None)
    if start is not None:
        start.save(folder / "start.json")
        argv += ["--start-from", str(folder / "start.json")]
    for option, value in {**keywords, **{role: rows[role] for role in ROLES if role in rows}}.items():
        argv += [] if option == "progress" else ["--set", f"{option}={'none' if value is None else json.dumps(value)}"]
    assert main(argv) == 0
    return dboost.load(folder / "model.json")


def _by_estimator(name: str, folder: Path) -> Booster:
    call = FixedCall(None, folder, fixed=CASES[name])
    rows, keywords = call.rows(), call.keywords()
    frame, features = rows["data"], keywords.pop("features")
    kind = dboost.DBoostClassifier if trained(name).classes_ is not None else dboost.DBoostRegressor
    roles = {role: frame[rows[role]] for role in ROLES if role in rows}
    keywords = {option: value for option, value in keywords.items() if option != "progress"}
    return (
        kind(random_state=keywords.pop("random_state", 0), **keywords)
        .fit(frame[features], frame[rows["target"]], **roles)
        .booster_
    )


def _is_text(fixed: Fixed) -> bool:
    """Return whether a command line can have the target and all options."""
    if "eval_set" in fixed.options or fixed.refits or not isinstance(fixed.target, str):
        return False
    try:
        return bool(json.dumps(dict(fixed.options)))
    except TypeError:
        return False


def _is_of_an_estimator(fixed: Fixed) -> bool:
    others = {"eval_set", "validation_fraction", "early_stopping_rounds", "eval_metric", "boosting", "features"}
    return fixed.first is None and not others & set(fixed.options)


class Way(NamedTuple):
    run: Callable[[str, Path], Booster]
    can: Callable[[Fixed], bool] = lambda fixed: True
    #: Whether the model is from a file, which has less of the history.
    is_read: bool = False


WAYS: dict[str, Way] = {
    "saved as JSON": Way(lambda name, folder: _loaded(name, folder / "model.json"), is_read=True),
    "saved compact": Way(lambda name, folder: _loaded(name, folder / "model.dboost"), is_read=True),
    "pickled": Way(lambda name, _: pickle.loads(pickle.dumps(trained(name)))),
    "continue_on": Way(_last_of_chunks, lambda fixed: not fixed.refits),
    "a command": Way(_by_command, _is_text, is_read=True),
    "an estimator": Way(_by_estimator, _is_of_an_estimator),
}
SQUARE = [(way, name) for way in WAYS for name, fixed in CASES.items() if WAYS[way].can(fixed)]


@pytest.mark.parametrize(
    ("way", "name"),
    cells(
        SQUARE,
        fast=lambda cell: {cell[0], *CASES[cell[1]].kinds},
        slow=lambda cell: {(cell[0], kind) for kind in ("any", *CASES[cell[1]].kinds)},
    ),
)
def test_the_model_is_that_of_a_fit(tmp_path: Path, way: str, name: str) -> None:
    found = result_of(WAYS[way].run(name, tmp_path), CASES[name])
    assert_same(found._replace(history=expected(name).history) if WAYS[way].is_read else found, expected(name))
