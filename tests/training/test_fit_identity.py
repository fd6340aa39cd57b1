"""The model is a function of the data, the parameters and the seed: not of kinds of tables, partitions or threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dboost
from dboost.rows.shard import Shard
from dboost.session import training_rows
from tests.helpers.examples import examples
from tests.helpers.fits import FEATURES, TARGETS, cut, mixed_frame, saved
from tests.helpers.growth import EVERY_KERNEL
from tests.helpers.tune import Tune

FRAME, HELD_OUT = mixed_frame(), mixed_frame(250, seed=1)
SETTINGS: dict[str, Any] = {"max_iter": 6, "max_leaf_nodes": 8, "min_samples_leaf": 5}


@pytest.fixture(autouse=True)
def several_threads_for_small_tables(tune: Tune) -> None:
    tune(small_cells=0)


def fit(data: Any, target: Any, **changed: Any) -> dboost.Booster:
    return dboost.fit(data, target, **(SETTINGS | changed))


@pytest.mark.parametrize("target", TARGETS)
def test_the_order_of_levels_and_of_eval_sets_levels_does_not_matter(target: str) -> None:
    turned = FRAME.assign(kind=FRAME["kind"].cat.reorder_categories(["never", "a", "b", "c"]))
    assert saved(fit(turned, target, features=FEATURES)) == saved(fit(FRAME, target, features=FEATURES))


def test_many_rows_in_many_stripes() -> None:
    """Enough rows for several stripes per thread, and for flushes of packed buckets."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(70_000, 3)).astype(np.float32)
    y = X[:, 0] + np.abs(X[:, 1]) + rng.normal(size=70_000)
    for target in (y, y > 1):
        assert len({saved(fit(X, target, n_threads=n)) for n in (1, 2, 3)}) == 1


def test_losses_that_overflow_are_the_same_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    X, y, w = rng.normal(size=(400, 3)), rng.poisson(0.3, 400).astype(float), 10.0 ** rng.integers(-6, 7, 400)
    offset = np.where(rng.random(400) < 0.5, 1e305, 0.0)
    options = {"sample_weight": w, "offset": offset, "loss": "quantile", "quantile": 0.5}
    assert len({saved(fit(X, y, n_threads=n, **options)) for n in (1, 2, 3, 4)}) == 1


def test_wide_tables_whose_columns_are_shared_out() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 140))
    y = X[:, :20].sum(axis=1)
    assert len({saved(fit(X, y, n_threads=n)) for n in (1, 2, 3)}) == 1
    assert len({saved(fit(X, y > 0, n_threads=n)) for n in (1, 2, 3)}) == 1


# Weights.


def rows_of(booster: dboost.Booster) -> dict[str, Any]:
    """Return a model without its counts of rows."""
    e = booster.ensemble
    return {
        "baseline": e.baseline.tolist(),
        "classes": e.classes,
        "levels": [f.categories for f in e.features],
        "edges": [None if edges is None else edges.tolist() for edges in e.edges],
        "value": [tree.value.tolist() for tree in e.trees],
        "metrics": e.metrics,
    }


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_weight_zero_shape_nothing(target: str) -> None:
    """Rows of weight zero with values, categories and gaps that no other row has: the same file as without them."""
    strange = mixed_frame(80, seed=9).assign(
        x=1e6, size=np.float32(-1e6), age=1000, rooms=np.nan, town="nowhere", kind="odd", w=0.0
    )
    counted = FRAME[FRAME["w"] > 0].astype({"kind": object})
    both = pd.concat([strange[:40], counted, strange[40:]], ignore_index=True)
    settings = {"features": FEATURES, "sample_weight": "w"}
    with_them, without = fit(both, target, **settings), fit(counted, target, **settings)
    assert rows_of(with_them) == rows_of(without)
    assert saved(with_them) == saved(without)


def test_targets_of_weight_zero_shape_nothing() -> None:
    """Rows of weight zero determine neither the loss that "auto" selects nor the classes."""
    X, w = np.arange(60.0)[:, None], np.repeat([1.0, 0.0], [50, 10])
    for strange, y in ((7.5, np.arange(60) % 2.0), (2, np.arange(60) % 2), ("other", np.array(["no", "yes"] * 30, object))):
        with_them = y.copy()
        with_them[50:] = strange
        expected = fit(X[:50], y[:50], loss="auto")
        assert expected.loss.name == "log_loss"
        assert saved(fit(X, with_them, sample_weight=w)) == saved(expected)


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("min_samples_leaf", [1, 5])
def test_weights_of_one_are_no_weights(target: str, min_samples_leaf: int) -> None:
    expected = saved(fit(FRAME, target, features=FEATURES, min_samples_leaf=min_samples_leaf))
    ones = FRAME.assign(w=1.0)
    found = fit(ones, target, features=FEATURES, sample_weight="w", min_samples_leaf=min_samples_leaf)
    assert saved(found) == expected


@EVERY_KERNEL
@given(
    target=st.sampled_from(TARGETS),
    seed=st.integers(0, 2**32),
    n_rows=st.sampled_from([60, 300, 700]),
    max_weight=st.sampled_from([2, 3, 15]),
    options=st.fixed_dictionaries(
        {
            "max_leaf_nodes": st.sampled_from([4, 31, None]),
            "max_depth": st.sampled_from([3, 8]),
            "growth": st.sampled_from(["best_first", "depth_wise"]),
            "l2_regularization": st.sampled_from([0.0, 1.0]),
            "max_bins": st.sampled_from([16, 255]),
        }
    ),
)
@examples(25)
def test_a_row_of_whole_weight_is_so_many_rows(
    every_kernel: bool, target: str, seed: int, n_rows: int, max_weight: int, options: dict[str, Any]
) -> None:
    """The same splits and predictions, to the last bit; only the numbers of rows differ."""
    if not every_kernel:
        options = options | {"max_leaf_nodes": options["max_leaf_nodes"] or 100}
    frame = mixed_frame(n_rows, seed)
    weight = np.random.default_rng(seed).integers(0, max_weight + 1, n_rows)
    weight[:3] = 1, 2, max_weight
    assume(frame.loc[weight > 0, target].nunique() >= 3 - (target == "late"))
    repeated = frame.loc[np.repeat(np.arange(n_rows), weight)].reset_index(drop=True)
    common = {"features": FEATURES, "min_samples_leaf": 1, "max_iter": 30, **options}
    once = fit(frame.assign(w=weight.astype(float)), target, sample_weight="w", **common)
    often = fit(repeated, target, **common)
    for a, b in zip(once.ensemble.edges, often.ensemble.edges, strict=True):
        assert (a is None and b is None) or np.array_equal(a, b)
    assert once.ensemble.baseline.tobytes() == often.ensemble.baseline.tobytes()
    for a, b in zip(once.ensemble.trees, often.ensemble.trees, strict=True):
        assert a.feature.tolist() == b.feature.tolist()
        assert a.threshold.tobytes() == b.threshold.tobytes()
        assert a.cover == pytest.approx(b.cover, rel=1e-9)
    a, b = (np.asarray(model.predict(frame, raw_score=True)) for model in (once, often))
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("target", TARGETS)
def test_fractions_and_heavy_rows_are_weights_too(target: str) -> None:
    """Fractional or large weights: the same model except for rounding, and the same for any partitions."""
    X = np.random.default_rng(3).normal(size=(500, 2))
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(**{target: FRAME[target][:500]})
    frame["w"] = np.random.default_rng(4).integers(1, 4, 500) * 1.0
    common = {"min_samples_leaf": 1, "max_iter": 1, "max_leaf_nodes": 4, "learning_rate": 0.5}
    whole = fit(frame, target, sample_weight="w", min_hessian=1.0, l2_regularization=1.0, **common)
    for factor in (0.7, 1000.0):
        scaled = frame.assign(w=frame["w"] * factor)
        limits = {"min_hessian": factor, "l2_regularization": factor}
        found = fit(scaled, target, sample_weight="w", **limits, **common)
        a, b = (np.asarray(model.predict(frame, raw_score=True)) for model in (found, whole))
        assert np.abs(a - b).max() <= 1e-6 * np.abs(b).max()
        assert saved(fit(cut(scaled, [70, 300]), target, sample_weight="w", n_threads=3, **limits, **common)) == saved(found)


# Saving, loading, predicting.


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    """Return the shards of fits in memory."""
    shards: list[Shard] = []

    class Remembered(Shard):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            shards.append(self)

    monkeypatch.setattr(training_rows, "Shard", Remembered)
    return shards


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("weighted", [False, True])
def test_predictions_are_the_scores_of_training(target: str, weighted: bool, shards: list[Shard]) -> None:
    """To the last bit: the same thresholds, the same order of additions, the same side for missing values."""
    weight = {"sample_weight": "w"} if weighted else {}
    booster = fit(FRAME, target, features=FEATURES, max_iter=30, **weight)
    rows = FRAME[FRAME["w"] > 0] if weighted else FRAME
    found = np.asarray(booster.predict(rows, raw_score=True))
    assert found.tobytes() == np.ascontiguousarray(shards[0].raw.T).tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_predictions_of_arrays_are_the_scores_of_training(dtype: type, shards: list[Shard]) -> None:
    X = (np.random.default_rng(0).normal(size=(2000, 4)) * 100).astype(dtype)
    booster = fit(X, X.astype(float) @ [1.0, -1.0, 0.5, 0.0], max_iter=20)
    for rows in (X, X.astype(np.float64), pd.DataFrame(X)):
        assert np.asarray(booster.predict(rows, raw_score=True)).tobytes() == shards[0].raw.tobytes()


@pytest.mark.parametrize("target", TARGETS)
def test_scores_of_held_out_rows_are_those_of_the_finished_model(target: str) -> None:
    """Categories unseen in training, and gaps in columns that had none, go to the side that the model defines."""
    held_out = HELD_OUT.assign(town=HELD_OUT["town"].where(HELD_OUT["age"] > 30, "Oudenaarde"))
    held_out.loc[::7, "x"] = np.nan
    booster = fit(FRAME, target, features=FEATURES, eval_set=held_out, max_iter=25)
    loss = booster.loss
    raw = np.asarray(booster.predict(held_out, raw_score=True))
    y = held_out[target].to_numpy()
    if target != "y":
        y = np.searchsorted(booster.classes_, y).astype(np.float64)
    recorded = booster.history[f"eval_{loss.name}"].iloc[-1]
    assert recorded == pytest.approx(float(loss.value(y, np.atleast_2d(raw.T)).mean()), rel=1e-12)


# Random seeds.


def test_the_seed_matters_only_where_there_is_a_sample(tune: Tune) -> None:

    def learned(seed: int) -> dict[str, Any]:
        return rows_of(fit(FRAME, "y", features=FEATURES, random_state=seed, max_bins=20))

    assert learned(0) == learned(1)
    tune(bin_sample_rows=300)
    assert learned(0) == learned(0)
    assert learned(0) != learned(1)
