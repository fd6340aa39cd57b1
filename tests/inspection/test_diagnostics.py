"""Additive targets give no interactions, products do, and the H-statistic finds the interacting pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import Booster
from dboost.errors import DataError, ParameterError
from dboost.inspection.dependence import Traversal
from tests.helpers.fits import FEATURES, mixed_frame
from tests.helpers.forests import random_ensemble, random_rows


def every_combination(target: Any) -> tuple[np.ndarray, Booster]:
    X = np.array(np.meshgrid(*[np.arange(1.0, 7)] * 4)).reshape(4, -1).T
    return X, dboost.fit(X, target(X), max_iter=150, max_leaf_nodes=8, learning_rate=0.2, l2_regularization=0.0)


def test_sums_are_additive_and_products_multiplicative() -> None:
    X, adds = every_combination(lambda X: X[:, 0] ** 2 + 10 * np.sin(X[:, 1]) + 3 * X[:, 2])
    found = adds.additivity(X, ["f0", "f1"])
    assert found.index.tolist() == ["additive", "multiplicative", "h"]
    assert found["additive"] > 0.999 and found["h"] < 0.05 and found["multiplicative"] < 0.99
    X, multiplies = every_combination(lambda X: X[:, 0] * X[:, 1] * (1 + X[:, 2] ** 2))
    found = multiplies.additivity(X, "f0")
    assert found["multiplicative"] > 0.999 and found["additive"] < 0.95 and found["h"] > 0.2


def test_h_finds_the_pair() -> None:
    X, booster = every_combination(lambda X: X[:, 0] * X[:, 3] + X[:, 1] ** 2 + X[:, 2])
    found = booster.interaction_strength(X)
    assert found.columns.tolist() == ["feature_1", "feature_2", "h"] and len(found) == 6
    assert {found["feature_1"][0], found["feature_2"][0]} == {"f0", "f3"}
    assert found["h"][0] > 0.3 and found["h"][1] < 0.05


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_by_the_formulas(n_outputs: int) -> None:
    ensemble = random_ensemble(8, 3, 7, n_outputs, with_categories=False)
    booster = Booster(ensemble)
    rows = pd.DataFrame(random_rows(3, ensemble, 60), columns=booster.feature_names_in_)
    block, traverse = rows.to_numpy(), Traversal(ensemble)
    raw = np.asarray(booster.predict(rows, raw_score=True)).reshape(60, -1)
    parts = traverse([1, 2], block), traverse([0, 3, 4], block)
    table = pd.DataFrame(booster.additivity(rows, ["x1", "x2"]))
    pairs = booster.interaction_strength(rows, ["x0", "x4"])
    for k in range(n_outputs):
        a, b = parts[0][:, k], parts[1][:, k]
        assert table.iloc[0, k] == pytest.approx(np.corrcoef(raw[:, k], a + b)[0, 1])
        assert table.iloc[1, k] == pytest.approx(np.corrcoef(raw[:, k], a * b)[0, 1])
        left_over = raw[:, k] - a - b
        assert table.iloc[2, k] == pytest.approx(left_over.std() / raw[:, k].std())
        both, one, other = (traverse(z, block)[:, k] for z in ([0, 4], [0], [4]))
        h = (both - one - other).std() / both.std()
        of_class = pairs if n_outputs == 1 else pairs[pairs["class"] == f"class {k}"]
        assert of_class["h"].item() == pytest.approx(h)


def test_a_row_of_weight_two_is_the_row_twice() -> None:
    frame = mixed_frame(150)
    frame["w"] = np.random.default_rng(1).integers(0, 3, 150).astype(np.float64)
    booster = dboost.fit(frame[[*FEATURES, "grade"]], "grade", max_iter=3)
    repeated = frame.loc[frame.index.repeat(frame["w"].astype(int))]
    for ask in (
        # One pair, since pairs of equal strength may come in any order.
        lambda rows, **how: booster.interaction_strength(rows, ["x", "town"], **how).set_index("class")["h"].sort_index(),
        lambda rows, **how: booster.additivity(rows, ["town", "x"], **how),
    ):
        expected = ask(repeated)
        assert ask(frame, sample_weight="w").to_numpy() == pytest.approx(expected.to_numpy(), rel=1e-9)
        assert not np.allclose(ask(frame), expected)
    with pytest.raises(DataError, match="above 0"):
        booster.additivity(frame, "x", sample_weight=np.zeros(150))


def test_what_makes_no_sense_is_refused() -> None:
    booster = Booster(random_ensemble(0))
    rows = pd.DataFrame(np.zeros((3, 5)), columns=booster.feature_names_in_)
    with pytest.raises(ParameterError, match="all features"):
        booster.additivity(rows, range(5))
    with pytest.raises(ParameterError, match="at least two"):
        booster.interaction_strength(rows, ["x0"])
    with pytest.raises(ParameterError, match="max_rows"):
        booster.additivity(rows, "x0", max_rows=0)
    constant = dboost.fit(pd.DataFrame({"a": np.zeros(50), "b": np.ones(50), "y": np.arange(50.0)}), "y", max_iter=2)
    assert constant.additivity(pd.DataFrame({"a": [1.0, 2], "b": [1.0, 2]}), "a").isna().all()
