"""The models of `CASES`, each trained once in a process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dboost import Booster
from tests.helpers.fixed_calls import CASES, FixedCall, Result, result_of


@cache
def trained(name: str) -> Booster:
    return FixedCall(CASES[name].earlier, Path(), fixed=CASES[name]).train()


@cache
def expected(name: str) -> Result:
    return result_of(trained(name), CASES[name])
