"""The type of the fixture `tune`, which changes `dboost.tuning` until the end of a test."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from dboost.tuning import tuned


class Tune:
    """Call it with fields of `Tuning`; later calls add to earlier ones."""

    def __init__(self, contexts: ExitStack) -> None:
        self._contexts = contexts

    def __call__(self, **changes: Any) -> None:
        self._contexts.enter_context(tuned(**changes))
