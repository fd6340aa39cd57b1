"""Rows in files give the model of rows in memory, to the last bit, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dboost
from dboost.shard.blocks import Traits
from dboost.training.budget import Budget
from tests.fits import FEATURES, NUMERIC, cut, mixed_frame, saved

LIMIT = "64MiB"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every limit is too small for the rows, blocks are short, and temporary files go here."""
    monkeypatch.setattr(Budget, "holds_rows", lambda *_: False)
    monkeypatch.setattr(Traits, "block_rows", lambda *_: 64)
    with dask.config.set({"temporary-directory": str(tmp_path / "temporary")}):
        yield tmp_path / "temporary"


def both(frame: Any, target: Any, **settings: Any) -> tuple[dboost.Booster, dboost.Booster]:
    """The model of rows in memory, and of rows in files."""
    settings = {"max_iter": 4, "random_state": 3, "progress": False} | settings
    return dboost.fit(frame, target, **settings), dboost.fit(frame, target, memory_limit=LIMIT, **settings)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("y", {}),
    ("late", {}),
    ("grade", {"max_iter": 2}),
    ("y", {"sample_weight": "w", "min_samples_leaf": 1}),
    ("late", {"sample_weight": "w", "subsample": 0.6}),
    ("y", {"loss": "absolute_error"}),
    ("y", {"loss": "huber", "sample_weight": "w"}),
    ("y", {"loss": "quantile", "quantile": 0.9, "offset": "x"}),
    ("late", {"loss": "poisson", "step": "line_search"}),
    ("late", {"criterion": "gradient", "sample_weight": "w"}),
    ("grade", {"criterion": "gradient", "max_iter": 2}),
    ("late", {"influence_trimming": 0.2}),
    ("late", {"criterion": "gradient", "influence_trimming": 0.2}),
    ("grade", {"influence_trimming": 0.1, "subsample": 0.8, "max_iter": 2}),
    ("y", {"growth": "depth_wise", "max_leaf_nodes": 12}),
    ("y", {"max_depth": 3, "max_leaf_nodes": None, "max_features": 0.5}),
    ("y", {"max_leaf_nodes": None, "min_samples_leaf": 2, "max_iter": 2}),
    ("late", {"monotonic_cst": {"x": 1}, "interaction_cst": [["x", "size"], ["age", "town"]]}),
]


@pytest.mark.parametrize(("target", "options"), OPTIONS)
def test_the_model_is_that_of_rows_in_memory(folder: Path, target: str, options: dict[str, Any]) -> None:
    frame = mixed_frame(500)
    features = [name for name in FEATURES if name != options.get("offset")]
    kept, streamed = both(frame, target, features=features, **options)
    assert saved(kept) == saved(streamed)
    assert list(folder.iterdir()) == []


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(40, 400),
    at=st.lists(st.integers(0, 400), max_size=4),
    block=st.sampled_from([1, 16, 64, 1024]),
    n_threads=st.integers(1, 3),
)
def test_however_rows_are_divided(folder: Path, n: int, at: list[int], block: int, n_threads: int) -> None:
    frame = mixed_frame(n, seed=n)
    options = {"features": NUMERIC, "sample_weight": "w", "subsample": 0.7, "max_leaf_nodes": 6, "min_samples_leaf": 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Traits, "block_rows", lambda *_: block)
        kept = dboost.fit(frame, "y", max_iter=2, **options)
        streamed = dboost.fit(cut(frame, at), "y", max_iter=2, n_threads=n_threads, memory_limit=LIMIT, **options)
    assert saved(kept) == saved(streamed)


def test_many_columns_and_wide_ones(folder: Path) -> None:
    """More than one tile, columns that share a byte, and one of more than 255 levels."""
    rng = np.random.default_rng(0)
    frame = mixed_frame(700)
    for k in range(40):
        frame[f"n{k}"] = rng.normal(size=700)
    for k in range(10):
        frame[f"b{k}"] = rng.integers(0, 2, 700)
    frame["code"] = [f"level {k}" for k in rng.integers(0, 400, 700)]
    frame["y"] += (frame["code"].str[-1] == "3") * 2.0
    kept, streamed = both(frame.drop(columns=["late", "grade", "w"]), "y", min_category_hessian=1.0, max_leaf_nodes=20)
    assert saved(kept) == saved(streamed)
    assert kept.importance().index[0] == "code" or "code" in kept.importance()[kept.importance() > 0].index


def test_early_stopping_and_history(folder: Path) -> None:
    frame, other = mixed_frame(400), mixed_frame(200, seed=1)
    options = {"features": NUMERIC, "eval_set": other, "early_stopping_rounds": 2, "max_iter": 30, "learning_rate": 0.5}
    kept, streamed = both(frame, "late", **options)
    assert saved(kept) == saved(streamed)
    assert (kept.history["bytes_read"] == 0).all()
    assert (streamed.history["bytes_read"] > 400 * len(NUMERIC)).all()


def test_a_limit_that_holds_the_rows_leaves_them_in_memory() -> None:
    booster = dboost.fit(mixed_frame(300), "y", features=NUMERIC, max_iter=2, memory_limit="1GiB")
    assert (booster.history["bytes_read"] == 0).all()
