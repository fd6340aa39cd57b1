"""The signatures of the functions that train and of the estimators show every parameter, also to type checkers."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import dboost
from dboost.estimators.constructor import EstimatorParameters
from dboost.params import LearningParameters, Parameters
from dboost.params.peer_names import SHOWN_ALIASES

NAMES = {field.name for field in fields(Parameters)}


@pytest.mark.parametrize("function", [dboost.fit, dboost.cv])
def test_the_signature_shows_all_parameters(function: Any) -> None:
    shown = inspect.signature(function).parameters
    assert {one.kind for one in shown.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    assert set(LearningParameters.__annotations__) <= set(shown)
    assert {name: shown[name].default for name in NAMES} == {field.name: field.default for field in fields(Parameters)}


def test_type_checkers_see_all_parameters() -> None:
    of_fit = set(inspect.signature(dboost.fit).parameters)
    of_learning = set(LearningParameters.__annotations__)
    assert NAMES <= of_learning <= NAMES | set(SHOWN_ALIASES)
    assert set(SHOWN_ALIASES) <= of_fit
    of_estimators = set(inspect.signature(dboost.DBoostRegressor).parameters)
    assert of_estimators == set(EstimatorParameters.__annotations__) | {"loss"}
    assert set(inspect.signature(dboost.DBoostClassifier).parameters) == of_estimators | {"class_weight"}


def test_type_hints_resolve() -> None:
    assert get_type_hints(LearningParameters)["max_iter"] == int | str


@pytest.mark.parametrize("documented", [Parameters, dboost.DBoostClassifier, dboost.DBoostRegressor])
def test_docstrings_have_every_parameter(documented: Any) -> None:
    text = inspect.getdoc(documented) or ""
    listed = {name for line in text.splitlines() if line[:1] != " " for name in re.findall(r"\w+", line.partition(" : ")[0])}
    aliases = (set(SHOWN_ALIASES) - {"continue_steps"}) | {"n_threads"}
    shown = set(inspect.signature(documented).parameters)
    assert shown - aliases <= listed
    assert {name for name in shown & aliases if f"`{name}`" not in text} == set()


@pytest.mark.parametrize("Estimator", [dboost.DBoostClassifier, dboost.DBoostRegressor])
def test_an_unknown_argument_is_an_error(Estimator: Any) -> None:
    with pytest.raises(dboost.ParameterError, match="unknown parameter 'num_leafs'; did you mean num_leaf"):
        Estimator(num_leafs=3)
    with pytest.raises(TypeError, match="position"):
        Estimator("auto", 3)
