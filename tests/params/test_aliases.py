"""Names of other libraries for parameters (`dboost.params.peer_names`): equal models, and errors for contradictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import DBoostRegressor, ParameterError
from dboost.cli import main
from dboost.params import canonical
from dboost.params.peer_names import SHOWN_ALIASES

pytestmark = pytest.mark.filterwarnings("ignore::dboost.DriftWarning")
RNG = np.random.default_rng(0)
X = pd.DataFrame({"a": RNG.normal(size=300), "b": RNG.normal(size=300)})
Y = X["a"] * X["b"] + RNG.normal(size=300) / 10
FRAME = X.assign(y=Y)
SMALL: dict[str, Any] = {"max_iter": 3, "max_leaf_nodes": 6, "n_threads": 1}


def fit(**options: Any) -> dboost.Booster:
    return dboost.fit(FRAME, "y", progress=False, **SMALL | options)


@pytest.fixture(scope="module")
def first() -> dboost.Booster:
    return fit()


def test_aliases_of_continued_training(first: dboost.Booster, tmp_path: Path) -> None:
    expected = fit(start_from=first).sha256
    assert fit(init_model=first).sha256 == expected
    assert fit(init_model=first, continue_steps="full").sha256 != expected
    with pytest.raises(ParameterError, match=r"init_model=.* and start_from=.* are the same parameter"):
        fit(init_model=first, start_from=first)
    with pytest.raises(ParameterError, match="continue_steps='small' must be"):
        fit(init_model=first, continue_steps="small")
    for keywords in ({"init_model": first}, {"start_from": first, "continue_steps": "damped"}):
        (model,) = dboost.continue_on([FRAME], "y", progress=False, **SMALL, **keywords)
        assert model.sha256 == expected
    with pytest.raises(ParameterError, match="are the same parameter"):
        list(dboost.continue_on([FRAME], "y", start_from=first, init_model=first))
    *_, model = dboost.continue_on([FRAME, FRAME], "y", progress=False, **SMALL)
    assert model.sha256 == expected
    kept: dict[str, Any] = {"init_model": first, "continue_bins": "kept"}
    dboost.prepare(FRAME, "y", tmp_path / "prepared", **kept)
    prepared = dboost.fit(tmp_path / "prepared", "y", progress=False, **kept, **SMALL)
    assert prepared.sha256 == expected
    with pytest.raises(ParameterError, match="are the same parameter"):
        dboost.prepare(FRAME, "y", tmp_path / "other", init_model=first, start_from=first)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"grow_policy": "leafwise"}, "growth='leafwise' must be one of 'best_first', 'depth_wise'"),
        ({"objective": "cross_entropy"}, "loss='cross_entropy' must be one of .*; did you mean 'log_loss'"),
        ({"leaf_estimation": "newton"}, "step='newton' must be one of"),
        ({"min_split_gain": 2}, "give min_gain: .* half of .* min_split_gain=2 is min_gain=1"),
        ({"grow_polcy": "lossguide"}, "unknown parameter 'grow_polcy'; did you mean grow_policy"),
    ],
)
def test_unknown_values(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        fit(**keywords)
    if "grow_polcy" not in keywords:
        with pytest.raises(ParameterError, match=message):
            DBoostRegressor(**keywords).fit(X, Y)


def test_estimators_continue_a_model_by_an_alias(first: dboost.Booster) -> None:
    options = SMALL | {"random_state": 0}
    expected = DBoostRegressor(start_from=first, **options).fit(X, Y).booster_.sha256
    assert DBoostRegressor(init_model=first, **options).fit(X, Y).booster_.sha256 == expected
    with pytest.raises(ParameterError, match="are the same parameter"):
        DBoostRegressor(start_from=first, init_model=first).fit(X, Y)
    with pytest.raises(ParameterError, match="init_model is for fit"):
        DBoostRegressor(init_model=first).partial_fit(X, Y)


def test_the_command_line_accepts_aliases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    FRAME.to_parquet("rows.parquet")
    train = ["train", "rows.parquet", "--target", "y", "--set", "max_iter=3", "--quiet"]
    assert main([*train, "--set", "grow_policy=depth_wise", "--output", "first.json"]) == 0
    assert dboost.load("first.json").sha256 == dboost.fit("rows.parquet", "y", max_iter=3, growth="depth_wise").sha256
    expected = dboost.fit("rows.parquet", "y", max_iter=3, start_from="first.json").sha256
    for number, more in enumerate((["--init-model", "first.json"], ["--set", "init_model=first.json"])):
        assert main([*train, *more, "--output", f"{number}.json"]) == 0
        assert dboost.load(f"{number}.json").sha256 == expected
    capsys.readouterr()
    assert main([*train, "--start-from", "first.json", "--set", "init_model=first.json", "--output", "no.json"]) == 2
    assert "are the same parameter: give one of them" in capsys.readouterr().err
    assert main([*train, "--only-new", "--set", "init_model=first.json", "--output", "no.json"]) == 2
    assert "--only-new continues the model at --output" in capsys.readouterr().err


def test_defaults_and_none_count_as_not_given() -> None:
    both = {"growth": "best_first", "grow_policy": "depth_wise"}
    assert canonical(both, {"growth": "best_first"}) == {"growth": "depth_wise"}
    assert canonical({"growth": "depth_wise"} | dict.fromkeys(SHOWN_ALIASES)) == {"growth": "depth_wise"}
    with pytest.raises(ParameterError, match="are the same parameter"):
        canonical(both)
