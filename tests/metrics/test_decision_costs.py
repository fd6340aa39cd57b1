"""Decisions by costs: the class with the least expected cost, for every kind of table."""

from __future__ import annotations

import ast
import re
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import dboost

rng = np.random.default_rng(0)
X = rng.normal(size=(600, 3))
Y = np.array(["ash", "birch", "cedar"])[np.digitize(X[:, 0] + rng.normal(size=600) / 2, [-0.5, 0.5])]
THREE = dboost.fit(X, Y, max_iter=8)
TWO = dboost.fit(X, X[:, 0] + rng.normal(size=600) > 0, max_iter=8)


@given(arrays(np.float64, (3, 3), elements=st.floats(-5, 5)))
def test_the_cheapest_class(costs: np.ndarray) -> None:
    p = THREE.predict_proba(X[:40])
    expected = [min(range(3), key=lambda k: (sum(costs[k, j] * row[j] for j in range(3)), k)) for row in p]
    said = THREE.decide(X[:40], costs)
    of = {name: k for k, name in enumerate(THREE.classes_)}
    for row, (mine, best) in zip(p, zip(said, expected, strict=True), strict=True):
        assert costs[of[mine]] @ row == pytest.approx(costs[best] @ row, abs=1e-12)


def test_equal_costs_say_what_is_most_likely() -> None:
    assert np.array_equal(THREE.decide(X, 1 - np.eye(3)), THREE.predict(X))
    assert np.array_equal(TWO.decide(X, 1 - np.eye(2)), TWO.predict(X))
    assert TWO.decide(X, [[0, 1], [1, 0]]).dtype == bool


def test_a_costly_miss_lowers_the_bar() -> None:
    """A false negative costs nine times as much as a false positive: predict True from a probability of 0.1 on."""
    assert np.array_equal(TWO.decide(X, [[0, 9], [1, 0]]), TWO.predict_proba(X)[:, 1] > 0.1)


def test_the_kind_that_comes_in_goes_out() -> None:
    frame = pd.DataFrame(X, columns=list("abc"), index=np.arange(600) + 5)
    booster = dboost.fit(frame, Y, max_iter=3)
    costs = rng.random((3, 3))
    said = booster.decide(frame, costs)
    assert isinstance(said, pd.Series) and said.index.equals(frame.index)
    lazy = booster.decide(dd.from_pandas(frame, npartitions=3), costs)
    assert isinstance(lazy, dd.Series)
    assert lazy.compute().equals(said)
    assert not booster.decide(frame, costs, iteration_range=(0, 0)).nunique() > 1


def test_a_frame_of_costs_is_read_by_its_labels() -> None:
    labels = THREE.classes_.tolist()
    frame = pd.DataFrame(rng.random((3, 3)), index=labels, columns=labels)
    expected = THREE.decide(X, frame.to_numpy())
    np.testing.assert_array_equal(THREE.decide(X, frame), expected)
    np.testing.assert_array_equal(THREE.decide(X, frame.loc[labels[::-1], labels[1:] + labels[:1]]), expected)
    np.testing.assert_array_equal(THREE.decide(X, pd.DataFrame(frame.to_numpy())), expected)
    for wrong in (frame.rename(index={labels[0]: "other"}), frame.reset_index(drop=True)):
        with pytest.raises(dboost.ParameterError, match="a frame's rows and columns must be labelled by them"):
            THREE.decide(X, wrong)


def test_the_message_about_costs_has_an_example() -> None:
    for wrong, reason in (({"a": 1}, "not a dict"), ([[0, 1], [1, "x"]], "some are not"), (None, r"the shape is \(\)")):
        with pytest.raises(dboost.ParameterError, match=f"for each predicted class .* for example .*; {reason}") as error:
            THREE.decide(X, wrong)
        example = re.search(r"example (\[\[.*\]\]);", str(error.value))[1]
        np.testing.assert_array_equal(THREE.decide(X, ast.literal_eval(example)), THREE.predict(X))


@pytest.mark.parametrize(
    "costs", [np.ones((2, 2)), np.ones(3), [[0, 1, np.nan], [1, 0, 1], [1, 1, 0]], [[0, 1], [1]], "cheap", None, {"a": 1}]
)
def test_costs_that_are_refused(costs: Any) -> None:
    with pytest.raises(dboost.ParameterError, match="costs must be a matrix"):
        THREE.decide(X, costs)


def test_rows_and_costs_in_the_wrong_order() -> None:
    with pytest.raises(dboost.ParameterError, match=r"the frame has shape \(600, 3\); in decide the rows come first") as error:
        THREE.decide(np.eye(3), pd.DataFrame(X))
    assert len(str(error.value)) < 400, "the labels of all rows are no help"


def test_numbers_are_not_decided() -> None:
    with pytest.raises(dboost.ParameterError, match="the model predicts numbers"):
        dboost.fit(X, X[:, 0], max_iter=1).decide(X, np.eye(2))
