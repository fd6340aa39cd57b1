"""Losses of the user with several outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import ParameterError
from dboost.losses.custom import check_derivatives
from tests.helpers.outside_losses import NormalOfUser

RNG = np.random.default_rng(4)
N = 500
X = pd.DataFrame(RNG.normal(size=(N, 3)), columns=list("uvz"))
Y = (X["u"] + np.exp(X["v"] / 2) * RNG.normal(size=N)).to_numpy()
W = RNG.integers(1, 4, N).astype(float)
OPTIONS: dict[str, Any] = {"max_iter": 20, "max_leaf_nodes": 6, "progress": False, "n_threads": 1, "min_hessian": 0.1}


def test_mean_and_scale_are_learned() -> None:
    booster = dboost.fit(X, Y, loss=NormalOfUser(), eval_set=(X, Y), **OPTIONS)
    mean, log_scale = booster.ensemble.baseline
    assert (mean, log_scale) == (pytest.approx(Y.mean(), rel=1e-6), pytest.approx(np.log(Y.std()), rel=1e-6))
    found = booster.predict(X)
    assert list(found) == ["mean", "log_scale"]
    assert np.corrcoef(found["mean"], X["u"])[0, 1] > 0.9 and np.corrcoef(found["log_scale"], X["v"])[0, 1] > 0.8
    value = NormalOfUser().value(Y, found.to_numpy().T).mean()
    assert booster.history[["train_loss", "eval_NormalOfUser"]].iloc[-1].tolist() == pytest.approx([value] * 2, rel=1e-6)


def test_the_first_trees_follow_the_formula() -> None:
    """Newton steps of each output's own derivatives, with weights that count rows."""
    options = OPTIONS | {"max_iter": 1, "l2_regularization": 0.5, "learning_rate": 0.3}
    booster = dboost.fit(X, Y, loss=NormalOfUser(), sample_weight=W, **options)
    raw = np.repeat(booster.ensemble.baseline[:, None], N, axis=1)
    gradient, hessian = NormalOfUser().gradient(Y, raw), NormalOfUser().hessian(Y, raw)
    leaves = booster.apply(X)
    for k in range(2):
        tree, at = booster.ensemble.trees[k], np.asarray(leaves)[:, k]
        for leaf, value in enumerate(tree.value[tree.feature < 0]):
            rows = at == leaf
            step = -0.3 * (W * gradient[k])[rows].sum() / ((W * hessian[k])[rows].sum() + 0.5)
            assert value == pytest.approx(step, rel=1e-4, abs=1e-9)


def test_one_tree_for_both_outputs_and_a_line_search() -> None:
    for options in ({"multi_strategy": "multi_output_tree"}, {"step": "line_search", "learning_rate": 0.5}):
        history = dboost.fit(X, Y, loss=NormalOfUser(), **OPTIONS | options).history["train_loss"]
        assert history.iloc[-1] < history.iloc[0] - 0.05


class WrongScale(NormalOfUser):
    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return super().gradient(y, raw) * [[1.0], [2.0]]


class Negative(NormalOfUser):
    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return super().hessian(y, raw) * [[1.0], [-1.0]]

    exact_hessian = False


class Flat(NormalOfUser):
    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.ones(len(y))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (WrongScale(), "gradient of output 1 of loss 'WrongScale' is not the derivative of its value by the raw score: for y="),
        (Negative(), "hessian of output 1 of loss 'Negative' is -"),
        (Flat(), r"hessian of loss 'Flat' returned shape \(200,\) for 200 rows, not \(2, 200\)"),
    ],
)
def test_the_derivatives_of_every_output_are_checked(loss: NormalOfUser, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        dboost.fit(X, Y, loss=loss, **OPTIONS)
    assert check_derivatives(NormalOfUser(), Y) is None


def test_metrics_and_names() -> None:
    with pytest.raises(ParameterError, match="has several outputs, so its only metric with a name is 'NormalOfUser'"):
        dboost.fit(X, Y, loss=NormalOfUser(), eval_set=(X, Y), eval_metric="rmse", **OPTIONS)

    def bias(y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> float:
        assert (y.shape, prediction.shape) == ((N,), (N, 2))
        return float(np.abs((y - prediction[:, 0]).mean()))

    booster = dboost.fit(X, Y, loss=NormalOfUser(), eval_set=(X, Y), eval_metric=bias, **OPTIONS)
    assert booster.history["eval_bias"].iloc[-1] == pytest.approx(abs((Y - booster.predict(X)["mean"]).mean()), abs=1e-12)
    assert set(booster.to_frame()["output"]) == {"mean", "log_scale"}
    assert list(booster.importance(per_class=True)) == ["mean", "log_scale"]
    assert list(booster.partial_dependence(X, "u", grid=[0.0])["output"]) == ["mean", "log_scale"]
    with pytest.raises(dboost.DataError, match="the target has 2 columns, but loss='NormalOfUser' takes one"):
        dboost.fit(X, np.stack([Y, Y], axis=1), loss=NormalOfUser(), **OPTIONS)


def test_files_keep_the_names(tmp_path: Any) -> None:
    booster = dboost.fit(X, Y, loss=NormalOfUser(), **OPTIONS)
    booster.save(tmp_path / "model.json")
    again = dboost.load(tmp_path / "model.json")
    pd.testing.assert_frame_equal(again.predict(X), booster.predict(X))
    assert again.outputs.names == ["mean", "log_scale"]
    assert dboost.load(tmp_path / "model.json", loss=NormalOfUser()).outputs.loss.n_outputs == 2
