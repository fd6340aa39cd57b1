"""Early stopping: which rows are held out, what is scored, when the fit stops, and what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state

import dboost
from dboost import DBoostClassifier, DBoostRegressor
from dboost.rows.row_sample import HOLD_OUT, derive_seed, hash_rows

BOTH = pytest.mark.parametrize("Estimator", [DBoostRegressor, DBoostClassifier])


def noisy(n: int = 600, seed: int = 0, *, n_classes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Few rows and much noise: a model that soon overfits."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    y = X[:, 0] + X[:, 1] ** 2 + rng.normal(scale=1.5, size=n)
    return X, y if n_classes is None else np.digitize(y, np.quantile(y, np.linspace(0, 1, n_classes + 1)[1:-1]))


def data_for(Estimator: Any) -> tuple[np.ndarray, np.ndarray]:
    return noisy(n_classes=None if Estimator is DBoostRegressor else 3)


def split(y: np.ndarray, size: float | int, seed: int, stratify: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to train on and to hold out: of each class as many as scikit-learn, those with the smallest hashes."""
    drawn = int(check_random_state(seed).randint(np.iinfo(np.uint32).max, dtype="u8"))
    classes = y if stratify else np.zeros(len(y), int)
    _, theirs = train_test_split(np.arange(len(y)), test_size=size, stratify=y if stratify else None, random_state=drawn)
    sizes = {label: np.count_nonzero(classes[theirs] == label) for label in np.unique(classes)}
    order = np.argsort(hash_rows(derive_seed(drawn, HOLD_OUT), np.arange(len(y))))
    held = np.sort(np.concatenate([order[classes[order] == label][:n] for label, n in sizes.items()]))
    return np.setdiff1d(np.arange(len(y)), held), held


@pytest.mark.fast_cells(3)
@BOTH
@pytest.mark.parametrize("size", [0.3, 120])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_split_is_the_same_as_giving_its_parts(Estimator: Any, size: float | int, weighted: bool) -> None:
    X, y = data_for(Estimator)
    weight = np.random.default_rng(1).random(len(y)) + 0.1 if weighted else None
    model = Estimator(early_stopping=True, validation_fraction=size, random_state=3).fit(X, y, weight)
    train, held = split(y, size, 3, Estimator is DBoostClassifier)
    given = Estimator(early_stopping=True, random_state=3).fit(
        X[train], y[train], None if weight is None else weight[train],
        X_val=X[held], y_val=y[held], sample_weight_val=None if weight is None else weight[held],
    )  # fmt: skip
    assert model.booster_.sha256 == given.booster_.sha256
    np.testing.assert_array_equal(model.validation_score_, given.validation_score_)
    np.testing.assert_array_equal(model.train_score_, given.train_score_)


@BOTH
def test_scores_are_those_of_the_model(Estimator: Any) -> None:
    X, y = data_for(Estimator)
    train, held = split(y, 0.25, 0, Estimator is DBoostClassifier)
    model = Estimator(early_stopping=True, validation_fraction=0.25, random_state=0).fit(X, y)

    def loss(rows: np.ndarray) -> list[float]:
        if Estimator is DBoostRegressor:
            return [0.5 * ((y[rows] - p) ** 2).mean() for p in model.staged_predict(X[rows])]
        return [log_loss(y[rows], p) for p in model.staged_predict_proba(X[rows])]

    assert model.do_early_stopping_ is True
    assert len(model.train_score_) == len(model.validation_score_) == model.n_iter_ + 1
    np.testing.assert_allclose(model.train_score_[1:], -np.array(loss(train)), rtol=1e-6)
    np.testing.assert_allclose(model.validation_score_[1:], -np.array(loss(held)), rtol=1e-9)
    base = model.booster_.ensemble.baseline
    if Estimator is DBoostRegressor:
        np.testing.assert_allclose(model.validation_score_[0], -0.5 * ((y[held] - base) ** 2).mean())
    else:
        np.testing.assert_allclose(model.validation_score_[0], -log_loss(y[held], np.tile(np.exp(base), (len(held), 1))))


@pytest.mark.fast_cells(5)
@BOTH
@pytest.mark.parametrize("scoring", ["loss", None, "named", "callable"])
@pytest.mark.parametrize("size", [0.25, None])
def test_it_stops_and_keeps_the_best(Estimator: Any, scoring: str | None, size: float | None) -> None:
    X, y = data_for(Estimator)
    if scoring == "named":
        scoring = "neg_mean_absolute_error" if Estimator is DBoostRegressor else "roc_auc_ovr"
    scorer: Any = scoring
    if scoring == "callable":
        metric = mean_absolute_error if Estimator is DBoostRegressor else lambda a, b: 1 - accuracy_score(a, b)
        scorer = lambda model, X, y: -metric(y, model.predict(X))  # noqa: E731
    # The score of the training rows grows until they are fitted exactly, so `tol` requires a minimal improvement.
    tol = 1e-7 if size else 0.02
    model = Estimator(
        early_stopping=True, scoring=scorer, validation_fraction=size, n_iter_no_change=5, max_iter=300, tol=tol, random_state=0
    ).fit(X, y)  # fmt: skip
    history = model.booster_.history
    name = "validation" if size else "train"
    own = "loss" if size is None else model.booster_.loss.name
    column = -history[f"{name}_{own}"] if scoring == "loss" else history[f"{name}_score"]
    scores = column.to_numpy()
    assert 5 < len(scores) < 300
    # Of equal losses the earliest is the best iteration, of equal scores (which may be coarse) the latest.
    best = scores.argmax() + 1 if scoring == "loss" else len(scores) - scores[::-1].argmax()
    assert model.n_iter_ == model.booster_.n_iter_ == model.booster_.best_iteration == best
    kept = model.validation_score_ if size else model.train_score_
    np.testing.assert_array_equal(kept[1:], scores[: model.n_iter_])
    # None of the last five iterations improved, and before that there were no five in a row without improvement.
    marks = [0]
    for k in range(1, len(scores)):
        if scores[k] > scores[marks[-1]] + tol:
            marks.append(k)
    assert len(scores) - 1 - marks[-1] == 5
    assert max(np.diff(marks), default=0) <= 5


@pytest.mark.parametrize("scoring", [None, "accuracy", "neg_log_loss", "f1_macro"])
def test_scorers_see_what_the_finished_model_says(scoring: str | None) -> None:
    """Also for text classes, class weights and categories."""
    import pandas as pd
    from sklearn.metrics import check_scoring

    X, y = noisy(n_classes=3)
    frame = pd.DataFrame(X).add_prefix("x").assign(kind=pd.Categorical(np.where(X[:, 0] > 0, "up", "down")))
    labels = np.array(["a", "b", "c"])[y]
    weight = np.random.default_rng(2).random(len(y))
    model = DBoostClassifier(
        early_stopping=True, scoring=scoring, max_iter=6, tol=0, n_iter_no_change=6, class_weight={"a": 2.0}, random_state=1
    ).fit(frame, labels, weight)
    train, held = split(y, 0.1, 1, True)
    scorer, weight = check_scoring(model, scoring), weight * np.where(y == 0, 2.0, 1.0)
    for rows, scores in ((train, model.train_score_), (held, model.validation_score_)):
        np.testing.assert_allclose(
            scores[-1], scorer(model, frame.iloc[rows], labels[rows], sample_weight=weight[rows]), rtol=1e-12
        )


def test_a_scorer_may_ask_about_any_rows() -> None:
    """Scoring passes the rows as a matrix; for a subset or a changed copy the trees are evaluated."""
    X, y = noisy()
    seen = []

    def scorer(model: DBoostRegressor, rows: np.ndarray, targets: np.ndarray) -> float:
        whole, part = model.predict(rows), model.predict(rows[::2] + 0.0)
        np.testing.assert_array_equal(whole[::2], part)
        np.testing.assert_array_equal(np.sort(targets), np.sort(y[np.isin(y, targets)]))
        seen.append(rows.shape)
        return -float(np.abs(whole - targets).mean())

    model = DBoostRegressor(early_stopping=True, scoring=scorer, max_iter=4, n_iter_no_change=4, random_state=0).fit(X, y)
    assert seen == [(60, 5), (540, 5)] * 5
    assert np.isfinite(model.train_score_).all()


def test_training_rows_are_sampled_for_scorers() -> None:
    X = np.random.default_rng(0).normal(size=(21_000, 1))
    sizes = set()

    def scorer(model: DBoostClassifier, rows: np.ndarray, targets: np.ndarray) -> float:
        sizes.add((len(rows), int(targets.sum())))
        return model.score(rows, targets)

    y = (X[:, 0] > np.quantile(X[:, 0], 0.9)).astype(int)
    model = DBoostClassifier(scoring=scorer, max_iter=2, random_state=0).fit(X, y)
    assert model.do_early_stopping_
    assert sizes == {(2_100, 210), (10_000, 1_000)}


@pytest.mark.parametrize(("n", "stops"), [(10_000, False), (10_001, True)])
def test_auto_is_on_with_many_rows(n: int, stops: bool) -> None:
    X = np.arange(float(n))[:, None]
    model = DBoostRegressor(max_iter=8, n_iter_no_change=2, tol=1e9).fit(X, X[:, 0])
    assert model.do_early_stopping_ is stops
    assert len(model.booster_.history) == (3 if stops else 8)
    assert model.validation_score_.size == (model.n_iter_ + 1 if stops else 0)


def test_rows_of_weight_zero_are_neither_trained_on_nor_held_out() -> None:
    X, y = noisy()
    weight = np.where(np.arange(600) % 3 == 0, 0.0, 1.0)
    settings: dict[str, Any] = {"early_stopping": True, "random_state": 0, "max_iter": 20}
    whole = DBoostRegressor(**settings).fit(X, y, weight)
    part = DBoostRegressor(**settings).fit(X[weight > 0], y[weight > 0])
    assert whole.booster_.sha256 == part.booster_.sha256


def test_a_pair_must_be_whole_and_wanted() -> None:
    X, y = noisy()
    with pytest.raises(ValueError, match="X_val is provided, but y_val was not provided"):
        DBoostRegressor().fit(X, y, X_val=X)
    with pytest.raises(ValueError, match="y_val is provided, but X_val was not provided"):
        DBoostRegressor().fit(X, y, y_val=y)
    with pytest.raises(ValueError, match="sample_weight_val is provided"):
        DBoostRegressor().fit(X, y, sample_weight_val=y)
    with pytest.raises(ValueError, match="X_val and y_val are passed to fit while at the same time"):
        DBoostRegressor(early_stopping=False).fit(X, y, X_val=X, y_val=y)
    with pytest.raises(ValueError, match="class"):
        DBoostClassifier().fit(X, y > 0, X_val=X, y_val=np.full(600, 2))
    with pytest.raises(ValueError, match="may not be called 'validation'"):
        DBoostRegressor().fit(X, y, eval_set={"validation": (X, y)})


def test_a_pair_is_scored_even_if_the_fit_does_not_stop() -> None:
    X, y = noisy()
    model = DBoostRegressor(max_iter=3).fit(X[:500], y[:500], X_val=X[500:], y_val=y[500:])
    assert model.do_early_stopping_ is False
    assert model.n_iter_ == 3
    np.testing.assert_allclose(model.validation_score_[-1], -0.5 * ((model.predict(X[500:]) - y[500:]) ** 2).mean())


def test_evaluation_sets_judge_too() -> None:
    X, y = noisy()
    sets = {"near": (X[400:500], y[400:500]), "far": (X[500:], y[500:])}
    model = DBoostRegressor(early_stopping=True, eval_metric="mean_absolute_error", random_state=0).fit(
        X[:400], y[:400], eval_set=sets
    )
    history = model.booster_.history
    assert {f"{name}_{metric}" for name in sets for metric in ("mean_absolute_error", "squared_error")} < set(history)
    assert not any(column.startswith("validation") for column in history)
    assert model.n_iter_ == history["far_squared_error"].argmin() + 1
    np.testing.assert_array_equal(model.validation_score_[1:], -history["far_squared_error"][: model.n_iter_])
    # A validation pair takes precedence.
    paired = clone(model).fit(X[:400], y[:400], eval_set=sets, X_val=X[400:500], y_val=y[400:500])
    assert paired.n_iter_ == paired.booster_.history["validation_squared_error"].argmin() + 1


def test_the_rule_of_fit() -> None:
    X, y = noisy()
    sets = (X[400:], y[400:])
    settings: dict[str, Any] = {"early_stopping_rounds": 4, "eval_metric": "mean_absolute_error", "random_state": 0}
    model = DBoostRegressor(**settings).fit(X[:400], y[:400], eval_set=sets)
    booster = dboost.fit(X[:400], y[:400], eval_set=sets, **settings)
    assert model.do_early_stopping_ is True
    assert model.n_iter_ == booster.n_iter_ == booster.history["eval_mean_absolute_error"].argmin() + 1
    np.testing.assert_array_equal(model.predict(X), booster.predict(X))
    with pytest.raises(ValueError, match="give one"):
        DBoostRegressor(early_stopping=True, **settings).fit(X[:400], y[:400], eval_set=sets)
    with pytest.raises(ValueError, match="eval_set"):
        DBoostRegressor(**settings).fit(X, y)


@pytest.mark.parametrize("class_weight", ["balanced", {0: 5.0, 2: 0.5}])
@pytest.mark.parametrize("weighted", [False, True])
def test_class_weights_are_weights(class_weight: Any, weighted: bool) -> None:
    X, y = noisy(n_classes=3)
    y = np.where((y == 1) & (np.arange(600) % 4 > 0), 0, y)
    weight = np.random.default_rng(0).integers(0, 3, size=600).astype(float) if weighted else None
    counted = np.ones(600, bool) if weight is None else weight > 0
    if class_weight == "balanced":
        by_class = counted.sum() / (3 * np.bincount(y[counted]))
    else:
        by_class = np.array([5.0, 1.0, 0.5])
    product = by_class[y] if weight is None else by_class[y] * weight
    model = DBoostClassifier(class_weight=class_weight, max_iter=5, random_state=0).fit(X, y, weight)
    by_hand = DBoostClassifier(max_iter=5, random_state=0).fit(X, y, product)
    assert model.booster_.sha256 == by_hand.booster_.sha256
