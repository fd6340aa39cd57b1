"""Every option of `dboost.fit` has its documented effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as reference

import dboost
from tests.helpers.fits import FEATURES, mixed_frame

FRAME, HELD_OUT = mixed_frame(800), mixed_frame(300, seed=1)
TARGETS = pytest.mark.parametrize("target", ["y", "late"])


def fit(target: str = "y", **changed: Any) -> dboost.Booster:
    usual: dict[str, Any] = {"features": FEATURES, "max_iter": 5, "learning_rate": 0.5}
    return dboost.fit(changed.pop("data", FRAME), target, **(usual | changed))


def splits_and_leaves(booster: dboost.Booster) -> tuple[pd.DataFrame, pd.DataFrame]:
    table = booster.to_frame()
    return table[table["feature"].notna()], table[table["feature"].isna()]


# Shape of trees and leaves.


@pytest.mark.fast_cells(5)
@TARGETS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("least", [1, 2, 30, 150])
def test_min_samples_leaf(target: str, weighted: bool, least: int) -> None:
    weight = {"sample_weight": "w"} if weighted else {}
    splits, leaves = splits_and_leaves(fit(target, min_samples_leaf=least, min_hessian=0.0, max_leaf_nodes=20, **weight))
    assert len(splits) > 0
    assert leaves["count"].min() >= least
    assert leaves["count"].min() < 2.5 * least + 5, "and not much more than that"
    n_rows = (FRAME["w"] > 0).sum() if weighted else len(FRAME)
    assert (leaves.groupby("iteration")["count"].sum() == n_rows).all()


@TARGETS
@pytest.mark.parametrize("least", [0.0, 5.0, 20.0])
def test_min_hessian(target: str, least: float) -> None:
    splits, leaves = splits_and_leaves(fit(target, min_hessian=least, min_samples_leaf=1, max_leaf_nodes=None))
    assert len(splits) > 0
    # Sums are of Hessians rounded to 1 / 32767 of the largest, half of that a row.
    slack = 0.0 if target == "y" else 0.5 * len(FRAME) * 0.25 / 32_767
    assert least - slack <= leaves["cover"].min() <= 2 * least + 1


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("growth", ["best_first", "depth_wise"])
@pytest.mark.parametrize("leaves", [None, 6])
def test_max_depth(depth: int, growth: str, leaves: int | None) -> None:
    booster = fit(max_depth=depth, growth=growth, max_leaf_nodes=leaves, min_samples_leaf=5)
    depths = [tree.depth for tree in booster.ensemble.trees]
    assert max(depths) == depth or (max(depths) < depth and leaves == 6)
    assert all(tree.n_leaves <= min(2**depth, leaves or 10**9) for tree in booster.ensemble.trees)


@pytest.mark.parametrize("n_leaves", [2, 3, 31, 70])
@pytest.mark.parametrize("growth", ["best_first", "depth_wise"])
def test_max_leaf_nodes(n_leaves: int, growth: str) -> None:
    booster = fit(max_leaf_nodes=n_leaves, min_samples_leaf=2, growth=growth)
    assert [tree.n_leaves for tree in booster.ensemble.trees] == [n_leaves] * 5


def test_no_limit_of_leaves() -> None:
    frame = pd.DataFrame({"x": np.arange(300.0), "y": np.random.default_rng(0).permutation(300) * 1.0})
    limits = {"min_samples_leaf": 1, "min_hessian": 0.0, "l2_regularization": 0.0, "features": ["x"]}
    booster = fit(data=frame, max_leaf_nodes=None, max_iter=1, learning_rate=1.0, **limits)
    assert booster.ensemble.trees[0].n_leaves == 255, "one leaf per bin"
    few = frame[:200]
    booster = fit(data=few, max_leaf_nodes=None, max_iter=1, learning_rate=1.0, **limits)
    assert booster.ensemble.trees[0].n_leaves == 200
    assert np.asarray(booster.predict(few)) == pytest.approx(few["y"].to_numpy(), abs=1e-5), "gradients are float32"


def test_growth_decides_which_leaf_is_split_next() -> None:
    """Steep on one side only: best-first continues there, depth-wise splits the flat side first."""
    x = np.repeat(np.arange(16.0), 30)
    steep = np.repeat([0, 0, 0, 0, 10, 40, 160, 640], 60)
    frame = pd.DataFrame({"x": x, "y": steep + x % 2})
    settings = {"data": frame, "features": ["x"], "max_leaf_nodes": 4, "max_iter": 1, "l2_regularization": 0.0}
    best, wide = (fit(growth=growth, **settings).ensemble.trees[0] for growth in ("best_first", "depth_wise"))
    assert best.n_leaves == wide.n_leaves == 4
    assert (best.depth, wide.depth) == (3, 2)
    assert best.gain.sum() > wide.gain.sum()


def gradients(target: str) -> tuple[np.ndarray, np.ndarray]:
    """Relative to all rows before the first tree."""
    y = FRAME[target].to_numpy(np.float64)
    if target == "y":
        return y.mean() - y, np.ones(len(y))
    return y.mean() - y, np.full(len(y), y.mean() * (1 - y.mean()))


@TARGETS
@pytest.mark.parametrize(
    "regularized",
    [
        {},
        {"l2_regularization": 0.0},
        {"l2_regularization": 50.0},
        {"l1_regularization": 3.0},
        {"max_delta_step": 0.2},
        {"l1_regularization": 2.0, "l2_regularization": 4.0, "max_delta_step": 0.3},
    ],
    ids=str,
)
def test_leaf_values(target: str, regularized: dict[str, float]) -> None:
    """-ν T_α(G) / (H + λ), bounded, from the rows that `apply` assigns to the leaf."""
    booster = fit(target, max_iter=1, max_leaf_nodes=9, **regularized)
    tree = booster.ensemble.trees[0]
    leaf = np.asarray(booster.apply(FRAME))[:, 0]
    g, h = (np.bincount(leaf, of) for of in gradients(target))
    alpha, lambda_ = regularized.get("l1_regularization", 0.0), regularized.get("l2_regularization", 1.0)
    bound = regularized.get("max_delta_step", np.inf)
    expected = 0.5 * np.clip(-np.sign(g) * np.maximum(np.abs(g) - alpha, 0) / (h + lambda_), -bound, bound)
    assert tree.value[tree.feature < 0] == pytest.approx(expected, rel=1e-6)
    assert np.array_equal(np.bincount(leaf), tree.count[tree.feature < 0])
    assert tree.cover[tree.feature < 0] == pytest.approx(h, rel=1e-6)
    if "max_delta_step" in regularized:
        assert np.abs(expected).max() == pytest.approx(0.5 * bound), "the bound is felt"


@TARGETS
@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_gains_are_what_splits_take_off_the_loss(target: str, alpha: float) -> None:
    booster = fit(target, max_iter=1, max_leaf_nodes=9, categorical_l2=0.0, l1_regularization=alpha)
    tree = booster.ensemble.trees[0]
    g, h = gradients(target)
    leaf = np.asarray(booster.apply(FRAME))[:, 0]

    def worth(rows: np.ndarray) -> float:
        return 0.5 * max(abs(g[rows].sum()) - alpha, 0.0) ** 2 / (h[rows].sum() + 1.0)

    total = sum(worth(leaf == k) for k in range(9)) - worth(np.ones(len(FRAME), bool))
    assert tree.gain.sum() == pytest.approx(total, rel=1e-3), "histograms are quantised"


@TARGETS
def test_penalties_of_leaves(target: str) -> None:
    """A split that gains less than γ (and the least gain) is not made; γ is subtracted from gains, the least gain is not."""
    free = fit(target, max_iter=1, max_leaf_nodes=60)
    gains = np.sort(splits_and_leaves(free)[0]["gain"])
    price = float(gains[len(gains) // 2])
    for name, taken_off in (("leaf_penalty", price), ("min_gain", 0.0)):
        splits, _ = splits_and_leaves(fit(target, max_iter=1, max_leaf_nodes=60, **{name: price}))
        assert 0 < len(splits) < len(gains)
        assert splits["gain"].min() >= price - taken_off - 1e-9
        root = free.to_frame()["gain"].iloc[0]
        assert splits["gain"].iloc[0] == pytest.approx(root - taken_off)
    both, _ = splits_and_leaves(fit(target, max_iter=1, max_leaf_nodes=60, leaf_penalty=price / 2, min_gain=price / 2))
    assert len(both) == len(splits)
    nothing = fit(target, leaf_penalty=1e9)
    assert nothing.n_iter_ == 5
    assert [tree.n_leaves for tree in nothing.ensemble.trees] == [1] * 5


@pytest.mark.parametrize("max_bins", [2, 3, 16, 255])
def test_max_bins(max_bins: int) -> None:
    edges = fit(max_bins=max_bins).ensemble.edges
    numeric = [e for e in edges if e is not None]
    assert max(map(len, numeric)) == max_bins - 1
    splits, _ = splits_and_leaves(fit(max_bins=max_bins, max_iter=20))
    thresholds = splits.groupby("feature")["threshold"].unique()
    for name, edge in zip(FEATURES, edges, strict=True):
        if edge is not None and name in thresholds:
            assert set(thresholds[name]) <= set(edge) | {np.inf}


def test_learning_rate_scales_steps() -> None:
    whole, tenth = (fit(max_iter=1, learning_rate=rate).ensemble.trees[0] for rate in (1.0, 0.1))
    assert whole.value == pytest.approx(10 * tenth.value, rel=1e-12)
    assert np.array_equal(whole.gain, tenth.gain)


# Categories.


def towns(n_levels: int = 40, n: int = 4000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    town = np.minimum(rng.geometric(0.08, n) - 1, n_levels - 1)
    effect = rng.normal(size=n_levels)
    return pd.DataFrame({"town": [f"t{t}" for t in town], "y": effect[town] + rng.normal(size=n) / 4})


def of_towns(**changed: Any) -> pd.DataFrame:
    free = {"categorical_smoothing": 0.0, "categorical_l2": 0.0, "min_category_hessian": 0.0, "min_samples_leaf": 1}
    return splits_and_leaves(fit(data=towns(), features=["town"], **(free | changed)))[0]


def test_max_category_group() -> None:
    assert of_towns()["categories"].map(len).max() > 3
    for most in (1, 3):
        assert of_towns(max_category_group=most)["categories"].map(len).max() == most


def test_min_category_hessian() -> None:
    """Rare categories go right, unless all are rare: a category with 2 % of the node's rows is not rare."""
    counts = towns()["town"].value_counts()
    root = of_towns(max_iter=1, min_category_hessian=60.0, max_leaf_nodes=2).iloc[0]
    assert counts[list(root["categories"])].min() >= 60
    free = of_towns(max_iter=1, max_leaf_nodes=2).iloc[0]
    assert counts[list(free["categories"])].min() < 60
    assert free["gain"] > root["gain"]


def test_categorical_l2() -> None:
    free, held_back = (of_towns(categorical_l2=l2, max_iter=1)["gain"].iloc[0] for l2 in (0.0, 100.0))
    assert held_back < free
    frame = towns()
    g = (frame["y"].mean() - frame["y"]).groupby(frame["town"]).sum()
    h = frame["town"].value_counts()
    root = of_towns(categorical_l2=100.0, max_iter=1).iloc[0]
    side = list(root["categories"])
    other = h.index.difference(side)
    expected = sum(0.5 * g[s].sum() ** 2 / (h[s].sum() + 101.0) for s in (side, other))
    assert root["gain"] == pytest.approx(expected - 0.5 * g.sum() ** 2 / (h.sum() + 1), rel=1e-3)


def test_categorical_smoothing() -> None:
    """Categories are ordered by G / (H + smoothing): two rows of an extreme category come first only without smoothing."""
    town = np.repeat(["rare", "high", "low", "lower"], [2, 100, 50, 50])
    frame = pd.DataFrame({"town": town, "y": np.repeat([9.0, 1.0, -0.9, -1.0], [2, 100, 50, 50])})
    options = {"features": ["town"], "max_category_group": 1, "max_iter": 1, "max_leaf_nodes": 2, "min_samples_leaf": 1}
    options |= {"min_category_hessian": 0.0, "categorical_l2": 0.0}
    first = [fit(data=frame, categorical_smoothing=s, **options).to_frame()["categories"].iloc[0] for s in (0.0, 1000.0)]
    assert first == [("rare",), ("high",)]


@pytest.mark.parametrize(
    ("spec", "categorical"),
    [("from_dtype", {"town", "kind"}), (["town", "kind", "age"], {"town", "kind", "age"}), ([4, 5], {"town", "kind"})],
    ids=["from_dtype", "names", "indices"],
)
def test_categorical_features(spec: Any, categorical: set[str]) -> None:
    booster = fit(categorical_features=spec)
    assert {f.name for f in booster.features if f.is_categorical} == categorical


def test_features_are_those_that_were_chosen() -> None:
    booster = dboost.fit(FRAME, "y", features=["rooms", "x"], max_iter=3)
    assert booster.feature_names_in_.tolist() == ["rooms", "x"]
    everything = dboost.fit(FRAME, "y", sample_weight="w", max_iter=3)
    assert everything.feature_names_in_.tolist() == [*FEATURES, "late", "grade"]


# Losses.


def test_integer_classes_are_asked_for() -> None:
    X = np.arange(60.0)[:, None]
    booster = dboost.fit(X, np.repeat([3, 5, 9], 20), loss="log_loss", max_iter=3, min_samples_leaf=2)
    assert booster.classes_.tolist() == [3, 5, 9]
    assert booster.predict(X).tolist() == np.repeat([3, 5, 9], 20).tolist()
    assert dboost.fit(X, np.arange(60) % 2, loss="squared_error", max_iter=1).classes_ is None


# Evaluation sets.

METRICS: dict[str, Any] = {
    "log_loss": reference.log_loss,
    "roc_auc": reference.roc_auc_score,
    "accuracy": lambda y, p: reference.accuracy_score(y, p > 0.5),
    "brier_score": reference.brier_score_loss,
    "squared_error": lambda y, p: reference.mean_squared_error(y, p) / 2,
    "mean_squared_error": reference.mean_squared_error,
    "root_mean_squared_error": reference.root_mean_squared_error,
    "mean_absolute_error": reference.mean_absolute_error,
}


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("late", ["log_loss", "roc_auc", "accuracy", "brier_score"]),
        ("y", ["squared_error", "mean_squared_error", "root_mean_squared_error", "mean_absolute_error"]),
    ],
)
def test_metrics_are_those_of_predictions(target: str, names: list[str]) -> None:
    booster = fit(target, eval_set={"a": HELD_OUT, "b": FRAME}, eval_metric=names, max_iter=8)
    history = booster.history
    kept = [f"{name}_{metric}" for name in "ab" for metric in names]
    columns = ["iteration", "seconds", "rows_kept", "bytes_read", *kept, "train_loss"]
    assert history.columns.tolist() == [*columns, *(name for name in history if name.endswith("rmse") and name not in kept)]
    for name, frame in (("a", HELD_OUT), ("b", FRAME)):
        for iteration in (1, 4, 8):
            options = {"iteration_range": (0, iteration)}
            if target == "late":
                p = np.asarray(booster.predict_proba(frame, **options))[:, 1]
            else:
                p = np.asarray(booster.predict(frame, **options))
            for metric in names:
                found = history[f"{name}_{metric}"].iloc[iteration - 1]
                assert found == pytest.approx(METRICS[metric](frame[target], p), rel=1e-9)
    own = history[f"b_{booster.loss.name}"]
    assert history["train_loss"].to_numpy() == pytest.approx(own.to_numpy(), rel=1e-5), "float32 in the pass over rows"
    assert (np.diff(history["train_loss"]) < 0).all()


def test_weighted_metrics() -> None:
    booster = fit("late", eval_set=HELD_OUT, eval_metric=["log_loss", "roc_auc"], sample_weight="w")
    p = np.asarray(booster.predict_proba(HELD_OUT))[:, 1]
    for name in ("log_loss", "roc_auc"):
        expected = METRICS[name](HELD_OUT["late"], p, sample_weight=HELD_OUT["w"])
        assert booster.history[f"eval_{name}"].iloc[-1] == pytest.approx(expected, rel=1e-9)
    p = np.asarray(booster.predict_proba(FRAME))[:, 1]
    expected = reference.log_loss(FRAME["late"], p, sample_weight=FRAME["w"])
    assert booster.history["train_loss"].iloc[-1] == pytest.approx(expected, rel=1e-5)


def test_forms_of_evaluation_sets() -> None:
    X, y, w = HELD_OUT[FEATURES], HELD_OUT["y"], HELD_OUT["w"]
    expected = fit(eval_set=HELD_OUT).history["eval_squared_error"].tolist()
    for form in ((X, y), (X, y.to_numpy()), (HELD_OUT, "y"), [(X, y)], {"eval": (X, y)}, {"eval": HELD_OUT}):
        assert fit(eval_set=form).history["eval_squared_error"].tolist() == expected
    two = fit(eval_set=[(X, y), (X, y, w)]).history
    assert two["eval_0_squared_error"].tolist() == expected
    assert two["eval_1_squared_error"].tolist() == fit(eval_set=(HELD_OUT, "y", "w")).history["eval_squared_error"].tolist()
    assert two["eval_1_squared_error"].tolist() != expected


def test_evaluation_sets_shape_nothing() -> None:
    plain, watched = fit(), fit(eval_set=HELD_OUT, eval_metric="mean_absolute_error")
    for a, b in zip(plain.ensemble.trees, watched.ensemble.trees, strict=True):
        assert a.value.tobytes() == b.value.tobytes()


# Early stopping.


def overfit(**changed: Any) -> dboost.Booster:
    settings = {"learning_rate": 1.0, "max_iter": 60, "min_samples_leaf": 1, "early_stopping_rounds": 4, "eval_set": HELD_OUT}
    return fit(**(settings | changed))


@TARGETS
def test_early_stopping_keeps_the_best_iteration(target: str) -> None:
    booster = overfit(target=target)
    scores = booster.history[f"eval_{booster.loss.name}"]
    best = int(scores.argmin()) + 1
    assert len(scores) == best + 4 < 60, "four more were tried"
    assert booster.best_iteration == booster.n_iter_ == len(booster.ensemble.trees) == best
    longer = fit(target, learning_rate=1.0, max_iter=best, min_samples_leaf=1)
    assert np.array_equal(longer.predict(HELD_OUT), booster.predict(HELD_OUT))
    assert len(booster.ensemble.metrics[f"eval_{booster.loss.name}"]) == len(scores), "the file shows them all"


def test_early_stopping_that_never_stops_keeps_the_best_all_the_same() -> None:
    booster = overfit(early_stopping_rounds=1000, max_iter=30)
    assert len(booster.history) == 30
    assert booster.best_iteration == booster.n_iter_ == int(booster.history["eval_squared_error"].argmin()) + 1 < 30


def test_without_early_stopping_everything_is_kept() -> None:
    booster = overfit(early_stopping_rounds=None, max_iter=20)
    assert (booster.n_iter_, booster.best_iteration) == (20, None)


# Callbacks and progress.


def test_callbacks_are_told_and_may_stop() -> None:
    iterations: list[dboost.Iteration] = []
    models: list[dboost.Booster] = []

    def callback(iteration: dboost.Iteration) -> bool:
        iterations.append(iteration)
        models.append(dboost.Booster(iteration.model()))
        return iteration.iteration == 3

    booster = fit(callbacks=[callback, lambda iteration: None], eval_set=HELD_OUT)
    assert [i.iteration for i in iterations] == [1, 2, 3]
    assert all(i.n_iterations == 5 for i in iterations)
    assert booster.n_iter_ == 3
    assert booster.best_iteration is None
    for column in ("eval_squared_error", "eval_rmse", "train_rmse"):
        assert [i.record[column] for i in iterations] == booster.history[column].tolist()
    with pytest.raises(KeyError, match="'rmse': the scores are 'eval_rmse', 'train_rmse'"):
        iterations[0].record["rmse"]
    for k, model in enumerate(models, 1):
        assert model.n_iter_ == k
        assert np.array_equal(model.predict(HELD_OUT), booster.predict(HELD_OUT, iteration_range=(0, k)))
    plain = fit(max_iter=3, eval_set=HELD_OUT)
    assert np.array_equal(plain.predict(FRAME), booster.predict(FRAME))


def test_a_callback_that_stops_with_early_stopping_leaves_the_best() -> None:
    booster = overfit(callbacks=[lambda i: i.iteration == 8], early_stopping_rounds=1000)
    assert len(booster.history) == 8
    assert booster.n_iter_ == int(booster.history["eval_squared_error"].argmin()) + 1


def test_an_error_in_a_callback_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        fit(callbacks=[lambda iteration: 1 // 0])


def test_progress_lines_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    fit(max_iter=1)  # kernels are compiled by now, and the message was printed
    capfd.readouterr()
    fit(progress=True, max_iter=40, eval_set=HELD_OUT, eval_metric=["squared_error", "mean_absolute_error"])
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert out == ""
    lines = [line for line in lines if line not in ("reading the data", "binning", "reading evaluation sets")]  # if slow
    assert len(lines) == 21
    assert lines[0].startswith("iteration 1/40: eval_rmse ") and "rows/s" not in lines[0]
    assert ", eval_mean_absolute_error " in lines[0]
    assert [line.split(":")[0] for line in lines[1:]] == [f"iteration {i}/40" for i in range(2, 41, 2)]
    fit(progress=True, max_iter=2)
    assert "iteration 1/2: train_rmse " in capfd.readouterr().err
    for quiet in (False, None):
        fit(progress=quiet)
        assert capfd.readouterr() == ("", "")


def test_history_without_evaluation_sets() -> None:
    booster = fit()
    columns = ["iteration", "seconds", "rows_kept", "bytes_read", "train_loss", "train_rmse"]
    assert booster.history.columns.tolist() == columns
    assert booster.history["iteration"].tolist() == [1, 2, 3, 4, 5]
    assert (booster.history["rows_kept"] == len(FRAME)).all()
    assert (booster.history["seconds"] > 0).all()
    weighted = fit(sample_weight="w")
    assert (weighted.history["rows_kept"] == (FRAME["w"] > 0).sum()).all()
    assert set(booster.timings) == {"load", "bin", "train"}


def test_sources_say_where_trees_came_from() -> None:
    booster = overfit()
    (source,) = booster.sources
    assert source["rows"] == len(FRAME)
    assert (source["first_iteration"], source["last_iteration"]) == (1, booster.n_iter_)
    assert source["parameters"]["learning_rate"] == 1.0
    assert source["parameters"] == booster.ensemble.parameters
