"""The signature of `dboost.fit` shows every parameter."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_type_hints

import dboost
from dboost.params import ALIASES, LearningParameters, Parameters


def test_the_signature_shows_all_parameters() -> None:
    own = {name for name, one in inspect.signature(dboost.fit).parameters.items() if one.kind is one.KEYWORD_ONLY}
    learning = set(LearningParameters.__annotations__)
    assert learning.isdisjoint(own)
    assert learning | own >= {field.name for field in fields(Parameters)} | set(ALIASES)
    assert learning <= {field.name for field in fields(Parameters)} | set(ALIASES)
    assert "LearningParameters" in str(inspect.signature(dboost.fit))


def test_type_hints_resolve() -> None:
    assert get_type_hints(LearningParameters)["max_iter"] is int
