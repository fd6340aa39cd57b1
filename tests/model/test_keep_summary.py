"""``keep_summary=False``: the model contains no values, categories or counts of the data beyond what predictions need."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost

SECRETS = ["anna", "boris", "carla"]


def frame(n: int = 3000, seed: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    town = rng.choice([f"town{i}" for i in range(8)], n)
    # Names are random and rare: a split that uses them needs more Hessian than they have.
    name = np.where(rng.random(n) < 0.002, rng.choice(SECRETS, n), "other")
    x = rng.normal(size=n)
    y = x + np.where(np.isin(town, ["town1", "town5"]), 1.0, -0.5) + rng.normal(size=n) / 10
    return pd.DataFrame({"x": np.where(rng.random(n) < 0.05, np.nan, x), "town": town, "name": name, "y": y})


def fit(data: Any, **more: Any) -> dboost.Booster:
    return dboost.fit(data, "y", max_iter=20, progress=False, **more)


def numbers_in(stored: Any) -> set[Any]:
    """All numbers in a JSON value."""
    if isinstance(stored, dict | list):
        return set().union(*map(numbers_in, stored.values() if isinstance(stored, dict) else stored))
    return {stored} if isinstance(stored, int | float) else set()


@pytest.mark.parametrize("loss", ["squared_error", "log_loss", "poisson"])
def test_predictions_are_the_same_and_nothing_else_is_stored(loss: str, tmp_path: Any) -> None:
    data = frame()
    data["y"] = {"squared_error": data["y"], "log_loss": data["y"] > 0, "poisson": np.floor(np.exp(data["y"]))}[loss]
    whole, bare = fit(data, loss=loss), fit(data, loss=loss, keep_summary=False)
    assert np.array_equal(whole.predict(data, raw_score=True), bare.predict(data, raw_score=True))
    unknown = data.assign(town="elsewhere", name="nobody")
    assert np.array_equal(whole.predict(unknown, raw_score=True), bare.predict(unknown, raw_score=True))
    bare.save(tmp_path / "m.json")
    stored = json.loads((tmp_path / "m.json").read_text())
    assert not any(tree["count"].count(0) != len(tree["count"]) for tree in stored["trees"])
    assert not any(any(tree["cover"]) for tree in stored["trees"])
    assert stored["edges"] == []
    assert all(source["rows"] is None and source["data_digest"] is None for source in stored["sources"])
    assert all("summary" not in source for source in stored["sources"])
    text = (tmp_path / "m.json").read_text()
    assert len(data) not in numbers_in(stored)
    assert not any(name in text for name in SECRETS)
    whole.save(tmp_path / "whole.json")
    assert all(name in (tmp_path / "whole.json").read_text() for name in SECRETS)
    assert dboost.load(tmp_path / "m.json") == bare
    bare.save(tmp_path / "m.dboost")
    assert dboost.load(tmp_path / "m.dboost") == bare


def test_what_needs_counts_is_refused() -> None:
    data = frame()
    bare = fit(data, keep_summary=False)
    for call in (
        lambda: bare.expected_value,
        lambda: bare.shap_values(data.head()),
        lambda: bare.partial_dependence("x"),
        lambda: bare.importance("cover"),
        lambda: bare.drift(data),
    ):
        with pytest.raises(dboost.ParameterError, match="keep_summary=False"):
            call()
    with pytest.raises(dboost.ParameterError, match="keep_summary=False"):
        bare.interaction_strength(data)
    with pytest.raises(dboost.ParameterError, match="split candidates"):
        fit(frame(seed=4), start_from=bare, continue_bins="kept")
    values = bare.shap_values(data.head(20), background=data.head(100))
    start = bare.predict(data.head(100), raw_score=True).mean()
    assert np.allclose(values.sum(axis=1) + start, bare.predict(data.head(20), raw_score=True))
    assert bare.importance().index[0] == fit(data).importance().index[0]
    assert len(bare.partial_dependence(data, "x")) > 3


def test_it_can_be_continued_and_leaves_refitted() -> None:
    data, later = frame(), frame(seed=5)
    bare, whole = fit(data, keep_summary=False), fit(data)
    both = [fit(later, start_from=model, keep_summary=False) for model in (bare, whole)]
    assert np.array_equal(both[0].predict(later), both[1].predict(later))
    assert all(source["rows"] is None for model in both for source in model.sources)
    assert bare.refit_leaves(later, "y").n_iter_ == 20
    partly = fit(later, start_from=bare)  # its first trees have no counts
    assert partly.sources[1]["rows"] == len(later)
    with pytest.raises(dboost.ParameterError, match="keep_summary=False"):
        partly.shap_values(later.head())
    with pytest.raises(dboost.ParameterError, match="keep_summary='no'"):
        fit(later, keep_summary="no")


@pytest.mark.slow
def test_report_and_pictures(tmp_path: Any) -> None:
    data = frame()
    bare = fit(data, keep_summary=False)
    bare.report(tmp_path / "alone.html")
    bare.report(tmp_path / "report.html", data, "y")
    assert "(0 rows)" not in (tmp_path / "report.html").read_text()
    assert "rows" not in " ".join(text.get_text() for text in bare.plot_tree(0).texts)


def test_a_warm_start_needs_the_summary() -> None:
    data = frame()
    with pytest.raises(dboost.ParameterError, match="keep_summary=False does not go together with warm_start"):
        dboost.DBoostRegressor(max_iter=1, keep_summary=False, warm_start=True).fit(data[["x"]], data["y"])
