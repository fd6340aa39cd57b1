"""The caller's objects are not modified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dboost.data import open_table
from dboost.losses import SquaredError
from dboost.metrics.named import find_metrics
from dboost.params import make_parameters
from dboost.session.local_backend import LocalBackend
from dboost.session.memory import Budget
from dboost.session.row_samples import Draw
from dboost.training.callbacks import StoppingRule
from dboost.training.fit import train
from dboost.training.request import FitRequest
from dboost.training.scores import stopping_rule
from dboost.training.validation_rows import ValidationPlan
from tests.helpers.fits import FEATURES, mixed_frame

FRAME = mixed_frame(400)


def test_a_rule_of_early_stopping_keeps_its_rounds() -> None:
    parameters = make_parameters({"arcbites": {"n_bites": 2, "early_stopping_rounds": 3}, "loss": "squared_error"})
    given = StoppingRule("held_squared_error", 7, larger_is_better=False)
    metrics = find_metrics(None, SquaredError())
    found = stopping_rule(parameters, given, [], metrics)
    assert found is not None and found.rounds == 3
    assert found.rule == ["held_squared_error", 3, False, 0.0, False]
    assert given.rounds == 7


@pytest.mark.parametrize("limit", [None, 10**9])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_table_keeps_its_weights(limit: int | None, weighted: bool) -> None:
    class_weight, counted = np.array([1.0, 2.0]), []

    def validation(counts: Sequence[int], *_: Any) -> ValidationPlan:
        counted.append((sum(counts), sum(n // 5 for n in counts)))
        return ValidationPlan(class_weight, Draw(1, tuple(n // 5 for n in counts)))

    budget = None if limit is None else Budget(limit)
    request = FitRequest(make_parameters({"max_iter": 2}), 1, make_validation_plan=validation, budget=budget)
    with open_table(FRAME[[*FEATURES, "late", "w"]], "late", sample_weight="w" if weighted else None) as table:
        before, kept = table.weight, None if table.weight is None else table.weight.copy()
        fitted = train(request, LocalBackend(lambda: table, 1))
        assert table.weight is before and (kept is None or np.array_equal(table.weight, kept))
        ((n_rows, n_held_out),) = counted
        assert fitted.ensemble.sources[0]["rows"] == n_rows - n_held_out and n_held_out
    assert class_weight.tolist() == [1.0, 2.0]
