"""What a caller hands in is what it was before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dboost.data import open_table
from dboost.metrics.metric import find_metrics
from dboost.params import make_parameters
from dboost.session.memory_budget import Budget
from dboost.session.row_selection import Draw
from dboost.session.target import read_target
from dboost.training.callbacks import EarlyStopping
from dboost.training.fit import FitRequest, load_into_files, load_into_memory
from dboost.training.plan import stopping_rule
from dboost.training.prepared_dataset import scan_table
from dboost.training.validation_split import ValidationPlan
from tests.fits import FEATURES, mixed_frame

FRAME = mixed_frame(400)


def test_a_rule_of_early_stopping_keeps_its_rounds() -> None:
    parameters = make_parameters({"arcbites": {"n_bites": 2, "early_stopping_rounds": 3}, "loss": "squared_error"})
    given = EarlyStopping("held_squared_error", 7, larger_is_better=False)
    with open_table(FRAME[[*FEATURES, "y"]], "y") as table:
        metrics = find_metrics(None, read_target(table, parameters).loss)
    found = stopping_rule(parameters, given, [], metrics)
    assert found is not None and found.rounds == 3
    assert found.rule == ["held_squared_error", 3, False, 0.0, False]
    assert given.rounds == 7


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_table_keeps_its_weights(in_files: bool, weighted: bool) -> None:
    class_weight, told = np.array([1.0, 2.0]), []

    def supervise(counts: Sequence[int], *_: Any) -> ValidationPlan:
        told.append((sum(counts), sum(n // 5 for n in counts)))
        return ValidationPlan(class_weight, Draw(1, tuple(n // 5 for n in counts)))

    budget = Budget(10**9) if in_files else None
    wanted = FitRequest(make_parameters({"max_iter": 2}), [], None, 1, supervise=supervise, budget=budget)
    with open_table(FRAME[[*FEATURES, "late", "w"]], "late", sample_weight="w" if weighted else None) as table:
        before, kept = table.weight, None if table.weight is None else table.weight.copy()
        if in_files:
            loaded = load_into_files(table, scan_table(table), wanted)
        else:
            table.gather_roles()
            loaded = load_into_memory(table, wanted)
        loaded.engine.close()
        assert table.weight is before and (kept is None or np.array_equal(table.weight, kept))
        ((n_rows, n_held_out),) = told
        assert loaded.prepared.n_rows == n_rows - n_held_out and n_held_out and loaded.prepared.weighted
    assert class_weight.tolist() == [1.0, 2.0]
