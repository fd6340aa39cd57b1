"""Every kind of fit gives the same model, history and predictions by every entrance: `CASES` × `WAYS`.

Where a fit runs is another question (`tests.test_conformance`). Here its rows are a table in memory.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dboost
from dboost import Booster
from dboost.cli import main
from tests.helpers.fixed_calls import CASES, ROLES, Fixed, FixedCall, assert_same, result_of
from tests.suite.cases import expected, trained
from tests.suite.covering import cells

pytestmark = [pytest.mark.filterwarnings("ignore::dboost.DriftWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]


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
    argv += ["--group", rows.pop("group")] if "group" in rows else []
    for option, value in {**keywords, **{role: rows[role] for role in ROLES if role in rows}}.items():
        argv += [] if option == "progress" else ["--set", f"{option}={'none' if value is None else json.dumps(value)}"]
    assert main(argv) == 0
    return dboost.load(folder / "model.json")


def _by_estimator(name: str, folder: Path, **more: Any) -> Booster:
    call = FixedCall(None, folder, fixed=CASES[name])
    rows, keywords = call.rows(), call.keywords()
    frame, features = rows["data"], keywords.pop("features")
    kind = dboost.DBoostClassifier if trained(name).classes_ is not None else dboost.DBoostRegressor
    roles = {role: frame[rows[role]] for role in ROLES if role in rows}
    if "eval_set" in keywords:
        held_out = keywords.pop("eval_set")
        of_roles = (held_out[rows[role]] if role in rows else None for role in ("sample_weight", "offset"))
        roles["eval_set"] = (held_out[features], held_out[rows["target"]], *of_roles)
    keywords = {option: value for option, value in keywords.items() if option != "progress"}
    estimator = kind(random_state=keywords.pop("random_state", 0), **keywords, **more)
    for n in (keywords["max_iter"] // 2, keywords["max_iter"]) if more else (keywords["max_iter"],):
        estimator.set_params(max_iter=n).fit(frame[features], frame[rows["target"]], **roles)
    return estimator.booster_


def _by_warm_start(name: str, folder: Path) -> Booster:
    """Train half of the iterations, then all of them with the same estimator."""
    return _by_estimator(name, folder, warm_start=True)


def _is_text(fixed: Fixed) -> bool:
    """Return whether a command line can have the target and all options."""
    if "eval_set" in fixed.options or fixed.refits or not isinstance(fixed.target, str):
        return False
    try:
        return bool(json.dumps(dict(fixed.options)))
    except TypeError:
        return False


def _is_of_an_estimator(fixed: Fixed) -> bool:
    others = {"group", "validation_fraction", "early_stopping_rounds", "eval_metric", "boosting", "features"}
    return fixed.first is None and not others & set(fixed.options) and not isinstance(fixed.options.get("eval_set"), dict)


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
    "a warm start": Way(
        _by_warm_start, lambda fixed: _is_of_an_estimator(fixed) and not {"arcbites", "keep_summary"} & fixed.options.keys()
    ),
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
