"""Learning rates by a schedule, and set by callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost

RNG = np.random.default_rng(4)
FRAME = pd.DataFrame(RNG.normal(size=(400, 3)), columns=list("abc"))
FRAME["y"] = FRAME["a"] * 2 + FRAME["b"] * FRAME["c"] + RNG.normal(size=400)
OPTIONS: dict[str, Any] = {"max_leaf_nodes": 5, "min_samples_leaf": 5, "progress": False}
RATES = [0.5, 0.25, 0.1, 0.3]


def fit(**options: Any) -> dboost.Booster:
    return dboost.fit(FRAME, "y", **OPTIONS | options)


def rate_of(k: int) -> float:
    return RATES[k]


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize(
    "rates",
    [RATES, tuple(RATES), np.array(RATES), pd.Series(RATES), rate_of],
    ids=["list", "tuple", "array", "Series", "function"],
)
@pytest.mark.parametrize("step", ["leaf", "line_search"])
def test_each_iteration_has_its_rate(rates: Any, step: str) -> None:
    booster = fit(learning_rate=rates, max_iter=4, step=step)
    assert booster.history["learning_rate"].tolist() == RATES
    # The same by continuing a model with other rates, whose steps are not damped.
    by_hand = fit(learning_rate=RATES[0], max_iter=1, step=step)
    for rate in RATES[1:]:
        settings = {"continue_bins": "kept", "continue_steps": "full"}
        by_hand = fit(learning_rate=rate, max_iter=1, start_from=by_hand, step=step, **settings)
    assert np.allclose(booster.predict(FRAME), by_hand.predict(FRAME), rtol=1e-9)


def test_the_same_rate_everywhere_is_a_number() -> None:
    plain, scheduled = fit(learning_rate=0.2, max_iter=5), fit(learning_rate=lambda k: 0.2, max_iter=5)
    assert plain.sha256 == scheduled.sha256
    assert "learning_rate" not in plain.history


def test_inner_nodes_have_the_rate_of_their_tree() -> None:
    """Values of inner nodes are used by attributions: they add up to the prediction."""
    booster = fit(learning_rate=RATES, max_iter=4)
    table = booster.to_frame()
    first, last = (fit(learning_rate=rate, max_iter=1).to_frame() for rate in (RATES[0], 1.0))
    of_first = table[table["iteration"] == 1]
    assert np.allclose(of_first["value"], first["value"])
    assert np.allclose(of_first["value"], RATES[0] * last["value"])


def test_a_callback_sets_the_rate_of_the_following_iterations() -> None:
    def decay(now: dboost.Iteration) -> None:
        if now.iteration < 4:
            now.learning_rate = RATES[now.iteration]

    booster = fit(learning_rate=RATES[0], max_iter=5, callbacks=[decay])
    assert booster.history["learning_rate"].tolist() == [*RATES, RATES[-1]]
    assert booster.sha256 == fit(learning_rate=[*RATES, RATES[-1]], max_iter=5).sha256


def test_a_checkpoint_has_the_rates_of_its_iterations(tmp_path: Path) -> None:
    place = str(tmp_path / "state")
    fit(learning_rate=RATES[:2], max_iter=2, checkpoint=place)
    with pytest.raises(dboost.ParameterError, match="another learning_rate"):
        fit(learning_rate=[0.5, 0.3, 0.1, 0.1], max_iter=4, checkpoint=place)


def test_callbacks_cannot_set_what_has_no_effect() -> None:
    def shrink(now: dboost.Iteration) -> None:
        now.max_leaf_nodes = 3  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="max_leaf_nodes"):
        fit(max_iter=2, callbacks=[shrink])


def set_rate(now: dboost.Iteration) -> None:
    now.learning_rate = -1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learning_rate": [0.1, 0.2], "max_iter": 3}, "learning_rate has 2 values for max_iter=3"),
        ({"learning_rate": []}, "learning_rate has 0 values"),
        ({"learning_rate": [0.0] * 200}, "learning_rate of iteration 0 is 0.0"),
        ({"learning_rate": lambda k: 0.1 - 0.05 * k, "max_iter": 3}, "learning_rate of iteration 2 is 0.0"),
        ({"learning_rate": lambda k: "fast"}, "learning_rate of iteration 0 is 'fast'"),
        ({"learning_rate": "fast"}, "learning_rate='fast' must be a number"),
        ({"callbacks": [set_rate]}, "learning_rate that a callback has set in iteration 1 is -1.0"),
    ],
)
def test_what_is_no_rate_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(dboost.ParameterError, match=message):
        fit(**given)


def test_a_rate_that_a_checkpoint_would_forget_is_refused(tmp_path: Path) -> None:
    def halve(now: dboost.Iteration) -> None:
        now.learning_rate /= 2

    with pytest.raises(dboost.ParameterError, match="which a checkpoint does not keep"):
        fit(callbacks=[halve], checkpoint=str(tmp_path / "state"))
