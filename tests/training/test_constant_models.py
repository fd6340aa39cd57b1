"""Fits whose trees could have no split: weights that sum to one, targets of any scale, and the warning that names the limit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dboost
from dboost.losses import by_name
from dboost.params import Parameters
from dboost.session.target import EncodedRoles
from dboost.training.target_stats import in_units_of, target_stats

RNG = np.random.default_rng(0)
N = 600
X = RNG.normal(size=(N, 3))
FRAME = pd.DataFrame(X, columns=list("abc"))
Y = X[:, 0] + 0.5 * (X[:, 1] > 0) + 0.1 * RNG.normal(size=N)
LABEL = (Y > 0).astype(int)
FEW: dict[str, Any] = {"max_iter": 5, "max_leaf_nodes": 6, "progress": False}


def fit(y: Any, weight: Any = None, **options: Any) -> dboost.Booster:
    return dboost.fit(FRAME, y, sample_weight=weight, **FEW | options)


# Weights.


@pytest.mark.parametrize(("y", "loss"), [(Y, "squared_error"), (LABEL, "log_loss"), (np.exp(Y), "poisson")])
def test_the_scale_of_small_weights_has_no_effect(y: Any, loss: str) -> None:
    weight = RNG.uniform(0.1, 1.0, N)
    models = [fit(y, weight * factor, loss=loss, min_hessian=5.0, min_gain=0.01) for factor in (1.0, 2.0**-10, 2.0**-30)]
    for other in models[1:]:
        assert np.array_equal(models[0].predict(FRAME), other.predict(FRAME))
    assert np.ptp(models[0].predict(FRAME)) > 0.1


@pytest.mark.parametrize(
    ("weight", "mean"),
    [(np.full(N, 1.0 - 2.0**-40), 1.0), (np.where(LABEL, 0.7, 0.3), None), (np.full(N, 3.0), 1.0), (np.full(N, 0.25), 0.25)],
)
def test_the_mean_weight_is_at_most_one_and_not_below_it_by_rounding(weight: np.ndarray, mean: float | None) -> None:
    stats = target_stats(by_name("squared_error"), lambda function, *arguments: [function(EncodedRoles(Y, weight), *arguments)])
    assert stats.mean_weight == pytest.approx(weight.mean() if mean is None else mean, rel=1e-15 if mean is None else 0)
    assert (in_units_of(Parameters(), stats) == Parameters()) == (stats.mean_weight == 1.0)


def test_refitted_leaves_have_the_same_units() -> None:
    weight = np.full(N, 1.0 / N)
    model = fit(Y)
    refitted = model.refit_leaves(FRAME, -Y, sample_weight=weight)
    np.testing.assert_allclose(refitted.predict(FRAME), model.refit_leaves(FRAME, -Y).predict(FRAME), rtol=0, atol=1e-6)
    assert np.ptp(refitted.predict(FRAME)) > 0.1


# Targets of any scale.


@pytest.mark.fast_cells(8)
@pytest.mark.parametrize("exponent", [-700, -103, 103, 600])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "huber"},
        {"loss": "absolute_error"},
        {"loss": "quantile", "quantile": 0.7},
        {"loss": "expectile", "expectile": 0.8},
        {"loss": "huber", "weight": RNG.uniform(0.5, 2.0, N)},
        {"max_delta_step": 0.5, "l1_regularization": 3.0, "min_gain": 0.5, "leaf_penalty": 0.1},
        {"step": "line_search"},
        {"step": "constant", "criterion": "gradient"},
        {"monotonic_cst": {"a": 1}, "memory_limit": "64MiB"},
        {"offset": X[:, 2]},
        {"arcbites": {"n_bites": 2, "trees_per_visit": 2}},
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else str(value),
)
def test_the_scale_of_the_target_is_that_of_the_model(options: dict[str, Any], exponent: int) -> None:
    if abs(exponent) > 500 and {"min_gain", "offset"} & options.keys():
        exponent = exponent // 2  # the gains must be floats; sums of offsets have another unit
    scale = 2.0**exponent
    scaled = options | {
        name: options[name] * scale for name in ("max_delta_step", "l1_regularization", "offset") if name in options
    }
    scaled |= {name: options[name] * scale * scale for name in ("min_gain", "leaf_penalty") if name in options}
    usual, other = fit(Y, **options), fit(Y * scale, **scaled)
    if "offset" in options and exponent > 0:  # the search for the first score takes other steps
        np.testing.assert_allclose(other.predict(FRAME), usual.predict(FRAME) * scale, rtol=1e-9, atol=1e-9 * scale)
    else:
        assert np.array_equal(other.predict(FRAME), usual.predict(FRAME) * scale)
    assert np.ptp(usual.predict(FRAME)) > 0.1
    np.testing.assert_allclose(other.importance(), usual.importance(), rtol=1e-12)


@pytest.mark.parametrize(("loss", "scale"), [("squared_error", 1e-300), ("huber", 1e-300), ("squared_error", 1e305)])
def test_targets_near_the_ends_of_the_floats_are_learned(loss: str, scale: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        booster = fit(Y * scale, loss=loss, max_iter=15, eval_set=(FRAME, Y * scale), eval_metric="mean_absolute_error")
    assert np.corrcoef(booster.predict(FRAME) / scale, Y)[0, 1] > 0.85
    errors = booster.history["eval_mean_absolute_error"].to_numpy() / scale
    assert errors[-1] < 0.75 * errors[0]


def test_models_of_every_scale_are_continued_refitted_and_resumed(tmp_path: Any) -> None:
    scale = 2.0**-300
    models = []
    for factor in (1.0, scale):
        first = fit(Y * factor)
        second = fit(-Y * factor, start_from=first)
        refitted = first.refit_leaves(FRAME, -Y * factor, decay=0.25)
        folder = tmp_path / str(factor)
        fit(Y * factor, max_iter=3, checkpoint=folder)
        resumed = fit(Y * factor, checkpoint=folder)
        assert resumed.sha256 == first.sha256
        predictions = [booster.predict(FRAME) / factor for booster in (first, second, refitted)]
        models.append([*predictions, second.sources[1]["unexplained_loss"]])
    for usual, other in zip(*models, strict=True):
        assert np.array_equal(usual, other)


# The warning.


SMALL = FRAME[:39]


@pytest.mark.parametrize(
    ("rows", "y", "options", "message"),
    [
        (39, Y, {}, "min_samples_leaf=20 allows none in the 39 training rows; give a smaller value"),
        (
            N,
            LABEL,
            {"min_hessian": 200.0},
            r"min_hessian=200 allows none in the 600 training rows, whose Hessians add up to 1\d\d;",
        ),
        (N, 1e-4 * np.exp(Y), {"loss": "poisson"}, r"min_hessian=1 allows none in .* add up to 0\.1"),
        (N, Y, {"min_gain": 1e6}, "min_gain=1000000 allows none in the 600 training rows; give a smaller value"),
        (N, Y, {"leaf_penalty": 1e6}, "leaf_penalty=1000000 allows none"),
        (N, Y, {"l1_regularization": 1e6}, "l1_regularization=1000000 allows none"),
        (N, Y, {"min_samples_leaf": 301}, "min_samples_leaf=301 allows none"),
        (
            N,
            Y,
            {"min_samples_leaf": 250, "min_gain": 1e6},
            "min_samples_leaf=250 and min_gain=1000000 allow|min_gain=1000000 allows",
        ),
        (39, LABEL, {"min_hessian": 50.0}, "min_samples_leaf=20 and min_hessian=50 allow none in the 39 training rows, whose"),
    ],
)
def test_the_limit_of_every_tree_is_named(rows: int, y: Any, options: dict[str, Any], message: str) -> None:
    with pytest.warns(UserWarning, match="no tree has a split, .*" + message) as caught:
        dboost.fit(FRAME[:rows], y[:rows], **FEW | options)
    assert sum("no tree" in str(one.message) for one in caught) == 1


def test_a_rare_value_and_constant_features_are_named() -> None:
    rare = pd.DataFrame({"a": (np.arange(N) < 7).astype(float), "b": 1.0})
    with pytest.warns(UserWarning, match="min_samples_leaf=20 allows none in the 600"):
        dboost.fit(rare, Y, **FEW)
    with pytest.warns(UserWarning, match="no feature has different values that go with different targets in the 600"):
        dboost.fit(rare[["b"]], Y, **FEW)
    with pytest.warns(UserWarning, match="monotonic_cst allows none"):
        dboost.fit(FRAME[["a"]], -X[:, 0], monotonic_cst={"a": 1}, **FEW)
    category = pd.DataFrame({"c": pd.Categorical(np.where(np.arange(N) < 8, "rare", "usual"))})
    with pytest.warns(UserWarning, match="min_samples_leaf=20 allows none"):
        dboost.fit(category, Y, **FEW)


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (1e-100 * np.arange(1.0, 201.0), {"loss": "poisson"}, "no gradient is above 1e-30"),
        (1e-34 * np.arange(1.0, 201.0), {"loss": "poisson", "min_hessian": 0.0}, "no gradient is above 1e-30"),
        (np.arange(200.0), {"min_samples_leaf": 150}, "min_samples_leaf=150 allows none"),
        (np.full(200, 3.25), {}, None),
    ],
)
def test_a_resumed_fit_tells_what_an_undisturbed_one_tells(
    y: Any, options: dict[str, Any], message: str | None, tmp_path: Any
) -> None:
    def stop(now: dboost.Iteration) -> None:
        if now.iteration == 2:
            raise RuntimeError("stopped")

    def resumed() -> dboost.Booster:
        options_of_both = {"max_iter": 4, "progress": False, "checkpoint": tmp_path / "c", "checkpoint_every": 1} | options
        with pytest.raises(RuntimeError, match="stopped"):
            dboost.fit(rows, y, callbacks=[stop], **options_of_both)
        return dboost.fit(rows, y, **options_of_both)

    rows = np.arange(200.0)[:, None]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = resumed()
    told = [str(one.message) for one in caught if "no tree" in str(one.message)]
    assert [message in one for one in told] == ([] if message is None else [True])
    assert found.n_iter_ == 4


def test_offsets_that_fit_exactly_give_no_warning() -> None:
    y = np.arange(200.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dboost.fit(y[:, None], y, offset=y, max_iter=2, progress=False)


def test_a_model_that_needs_no_split_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dboost.fit(FRAME, np.full(N, 3.25), **FEW)
        fit(Y)


def test_the_warning_comes_from_workers_and_files(client: Client, tmp_path: Any) -> None:
    import dask.dataframe as dd

    table = FRAME.assign(y=LABEL)
    frame = dd.from_map(lambda part: part, [table[:250], table[250:]])
    for options in ({"client": client}, {"client": client, "memory_limit": "64MiB"}):
        with pytest.warns(UserWarning, match="min_hessian=200 allows none in the 600 training rows") as caught:
            dboost.fit(frame, "y", min_hessian=200.0, loss="log_loss", **FEW | options)
        assert sum("no tree" in str(one.message) for one in caught) == 1
    with pytest.warns(UserWarning, match="min_hessian=200 allows none"):
        dboost.fit(table, "y", min_hessian=200.0, loss="log_loss", checkpoint=tmp_path / "c", **FEW)
    with pytest.warns(UserWarning, match="min_hessian=200 allows none"):
        dboost.fit(table, "y", min_hessian=200.0, loss="log_loss", arcbites={"n_bites": 2, "trees_per_visit": 1}, **FEW)
    with pytest.warns(UserWarning, match="min_hessian=200 allows none"):
        dboost.DBoostClassifier(max_iter=3, min_hessian=200.0).fit(X, LABEL)


def test_a_cross_validation_warns_once() -> None:
    with pytest.warns(UserWarning, match="folds 0, 1, 2: no tree has a split, .*min_samples_leaf=20 allows none") as caught:
        dboost.cv(SMALL.assign(y=Y[:39]), "y", folds=3, **FEW)
    assert sum("no tree" in str(one.message) for one in caught) == 1


def test_a_fit_that_continues_a_model_names_the_limit_of_its_own_trees() -> None:
    first = fit(Y)
    with pytest.warns(UserWarning, match="no tree has a split, .*min_samples_leaf=20 allows none in the 39"):
        dboost.fit(SMALL, Y[:39], start_from=first, **FEW)


@pytest.mark.parametrize(
    "options", [{"subsample": 0.5}, {"split_proposal": "tree"}, {"split_proposal": "node"}, {"step": "line_search"}]
)
def test_the_search_for_the_limit_does_not_change_the_model(options: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="min_gain=1000000000 allows none"):
        booster = fit(Y, min_gain=1e9, **options)
    assert booster.n_iter_ == 5 and np.ptp(booster.predict(FRAME)) == 0


@pytest.mark.parametrize("loss", ["squared_error", "huber"])
@pytest.mark.parametrize("value", [-8e304, 1e306, 1e-300, 5.0])
def test_a_constant_target_of_any_size_is_predicted(loss: str, value: float) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("ignore", UserWarning)
        booster = dboost.fit(X, np.full(60, value), loss=loss, max_iter=2)
    np.testing.assert_allclose(booster.predict(X), value, rtol=1e-9)


@pytest.mark.parametrize("options", [{"multi_strategy": "multi_output_tree"}, {"boosting": "forest"}])
@pytest.mark.parametrize("target", ["classes", "targets"])
@pytest.mark.parametrize("limit", [{"subsample": 0.001}, {"min_samples_leaf": 20}])
def test_one_tree_of_several_outputs_without_a_split(options: dict[str, Any], target: str, limit: dict[str, float]) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(17, 2))
    y = rng.choice(["a", "b", "c"], 17) if target == "classes" else X + 1
    with pytest.warns(UserWarning, match="no tree has a split"):
        booster = dboost.fit(X, y, max_iter=2, progress=False, **options, **limit)
    assert (booster.to_frame()["depth"] == 0).all()


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_scores_and_targets_whose_squares_are_not_finite_cause_no_warning_of_numpy() -> None:
    rows = pd.DataFrame({"x": np.arange(40.0), "y": np.arange(40.0) % 7, "far": 0.0})
    options: dict[str, Any] = {"max_iter": 2, "progress": False, "min_samples_leaf": 1}
    booster = dboost.fit(rows, "y", offset="far", eval_set=rows.assign(far=1e200), eval_metric="r2", **options)
    assert booster.history["eval_r2"].isna().all()
    targets = np.column_stack([rows["y"] * 1e-90, rows["y"] * 1e70])
    with pytest.raises(dboost.DBoostError, match="so large that gradients are infinite; scale them down"):
        dboost.fit(rows[["x"]], targets, loss="huber", multi_strategy="multi_output_tree", **options)
