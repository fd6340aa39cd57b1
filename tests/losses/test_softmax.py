"""K-class log loss: the kernel's accuracy, and models of classes."""

from __future__ import annotations

import numpy as np
import pytest

import dboost
from dboost.exact import FINE
from dboost.losses import SoftmaxLogLoss
from dboost.losses.gradient_pass import new_pass_scratch
from dboost.rows.shard import Shard
from tests.helpers.tables import make_table, shard_of, spec_of


def blobs(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of four features around one centre for each class, some values missing."""
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=n)
    X = rng.normal(size=(n, 4)) + rng.normal(scale=1.5, size=(n_classes, 4))[y]
    X[rng.random(X.shape) < 0.05] = np.nan
    return X, y


def passed(
    raw: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None, loss_unit: float = 2.0**30
) -> tuple[Shard, np.ndarray, np.ndarray, float]:
    """A shard after one pass, with its largest gradients and Hessians and the sum of the losses."""
    table = make_table([3], raw.shape[1])
    spec = spec_of(table.layout, n_outputs=len(raw), weighted=weight is not None, loss_unit=loss_unit)
    shard = shard_of(table.stored(), spec, y, weight, raw.copy())
    loss = SoftmaxLogLoss(len(raw))
    terms = loss.pass_terms()
    stats = terms.advance(shard.gradient_pass(np.zeros((len(raw), 1)), terms, new_pass_scratch(), 0, shard.n_rows))
    total = (stats.coarse_loss + stats.fine_loss / FINE) / loss_unit
    return shard, stats.max_gradient, stats.max_hessian, total


@pytest.mark.parametrize("n_classes", [3, 5, 40])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0, 60.0])
def test_the_kernel_agrees_with_float64(n_classes: int, spread: float) -> None:
    rng = np.random.default_rng(1)
    raw = rng.normal(scale=spread, size=(n_classes, 3000)) + 100 * rng.normal(size=3000)
    y = rng.integers(n_classes, size=3000).astype(float)
    shard, max_gradient, max_hessian, total = passed(raw, y)
    loss = SoftmaxLogLoss(n_classes)
    np.testing.assert_allclose(shard.gradient, loss.gradient(y, raw), atol=1e-6)
    # Complements of probabilities keep their digits, so small Hessians are right too.
    e = np.exp(raw - raw.max(axis=0))
    complement = np.array([np.delete(e, k, axis=0).sum(axis=0) for k in range(n_classes)]) / e.sum(axis=0)
    expected = e / e.sum(axis=0) * complement
    assert shard.hessian is not None
    np.testing.assert_allclose(shard.hessian, expected, rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(total, loss.value(y, raw).sum(), rtol=1e-6)
    np.testing.assert_array_equal(max_gradient, np.abs(shard.gradient).max(axis=1))
    np.testing.assert_array_equal(max_hessian, shard.hessian.max(axis=1))


def test_more_classes_than_a_byte_counts() -> None:
    rng = np.random.default_rng(3)
    raw = rng.normal(size=(700, 40))
    y = rng.integers(700, size=40).astype(float)
    *_, total = passed(raw, y)
    np.testing.assert_allclose(total, SoftmaxLogLoss(700).value(y, raw).sum(), rtol=1e-6)


def test_a_model_of_classes(tmp_path) -> None:  # type: ignore[no-untyped-def]
    X, codes = blobs(2000, 5)
    y = np.array(["ash", "birch", "cedar", "dogwood", "elm"])[codes]
    booster = dboost.fit(X, y, max_iter=30, eval_set=(X[:100], y[:100]), eval_metric=["accuracy", "log_loss"])
    assert booster.ensemble.n_outputs == 5
    assert len(booster.ensemble.trees) == 150
    proba = booster.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert (booster.predict(X) == booster.classes_[proba.argmax(axis=1)]).all()
    assert (booster.predict(X) == y).mean() > 0.9
    # The scores of training equal the model's predictions.
    raw = booster.predict(X, raw_score=True)
    value = SoftmaxLogLoss(5).value(codes.astype(float), raw.T)
    np.testing.assert_allclose(booster.history["train_loss"].iloc[-1], value.mean(), rtol=1e-6)
    np.testing.assert_allclose(booster.history["eval_log_loss"].iloc[-1], value[:100].mean(), rtol=1e-12)
    assert booster.history["eval_accuracy"].iloc[-1] == (booster.predict(X[:100]) == y[:100]).mean()
    assert (np.diff(booster.history["train_loss"]) < 0).all()
    booster.save(tmp_path / "model")
    np.testing.assert_array_equal(dboost.load(tmp_path / "model").predict_proba(X), proba)


def test_the_first_leaves_follow_the_formula() -> None:
    """(K - 1) / K · Σ w r / (Σ w h + λ), times the learning rate."""
    rng = np.random.default_rng(5)
    X, y, w = np.repeat([0.0, 1.0], 60)[:, None], rng.integers(3, size=120), rng.random(120) + 0.5
    booster = dboost.fit(X, y, sample_weight=w, loss="log_loss", max_iter=1, learning_rate=0.3, l2_regularization=2.0)
    p = np.array([w[y == k].sum() for k in range(3)]) / w.sum()
    np.testing.assert_allclose(booster.ensemble.baseline, np.log(p), rtol=1e-14)
    raw = booster.predict(X, raw_score=True) - np.log(p)
    for side in (X[:, 0] == 0, X[:, 0] == 1):
        for k in range(3):
            residual, hessian = (w * ((y == k) - p[k]))[side].sum(), (w[side] * p[k] * (1 - p[k])).sum()
            np.testing.assert_allclose(raw[side, k], 0.3 * 2 / 3 * residual / (hessian + 2.0), rtol=1e-4)


def test_a_class_of_weight_zero_is_none() -> None:
    X, y = blobs(900, 3)
    weight = np.where(y == 1, 0.0, 1.0)
    without = y != 1
    assert (
        dboost.fit(X, y, loss="log_loss", sample_weight=weight, max_iter=5).sha256
        == dboost.fit(X[without], y[without], loss="log_loss", max_iter=5).sha256
    )
