"""Imported models of XGBoost and LightGBM predict what the originals do, and unsupported models are rejected."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import Booster
from dboost.errors import ModelFileError, ParameterError
from dboost.interop.from_xgboost import last_below
from dboost.model import model_file
from tests.helpers.fits import FEATURES, mixed_frame

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")

QUIET = {"nthread": 1, "verbosity": 0, "max_depth": 4, "max_cat_to_onehot": 2}


def table(seed: int = 0, n: int = 600) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return features with text as categories of ASCII, and the targets."""
    frame = mixed_frame(n, seed)
    X = frame[FEATURES].copy()
    X["town"] = pd.Categorical(
        frame["town"].replace({"Liège": "Luik"}), ["Oostende", "Aalst", "Gent", "Luik", "Mons", "Namur", "Brugge"]
    )
    X["kind"] = pd.Categorical(frame["kind"].cat.codes.where(lambda code: code >= 0) * 10.0 + 5.0)
    X["kind"] = X["kind"].cat.rename_categories({value: int(value) for value in X["kind"].cat.categories})
    y = frame[["y", "late"]].assign(positive=np.exp(frame["y"] / 4), grade=pd.Categorical(frame["grade"]).codes)
    return X, y


OBJECTIVES: dict[str, tuple[str, dict[str, Any]]] = {
    "reg:squarederror": ("y", {}),
    "reg:absoluteerror": ("y", {}),
    "reg:quantileerror": ("y", {"quantile_alpha": 0.8}),
    "reg:pseudohubererror": ("y", {"huber_slope": 0.7}),
    "count:poisson": ("positive", {}),
    "reg:gamma": ("positive", {}),
    "reg:tweedie": ("positive", {"tweedie_variance_power": 1.3}),
    "binary:logistic": ("late", {}),
    "multi:softprob": ("grade", {"num_class": 3}),
}


def answers(booster: Booster, X: Any) -> np.ndarray:
    if booster.classes_ is None:
        return np.asarray(booster.predict(X))
    found = np.asarray(booster.predict_proba(X))
    return found[:, 1] if found.shape[1] == 2 else found


def through_file(booster: Booster) -> Booster:
    """Save and load the model: what was imported can be saved and is valid."""
    return Booster(model_file.loads(model_file.dumps(booster.ensemble)))


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_xgboosts_objectives(objective: str, tmp_path: Path) -> None:
    target, more = OBJECTIVES[objective]
    X, y = table()
    theirs = xgboost.train(QUIET | {"objective": objective} | more, xgboost.DMatrix(X, y[target], enable_categorical=True), 8)
    new, _ = table(seed=1)
    expected = theirs.predict(xgboost.DMatrix(new, enable_categorical=True))
    ours = through_file(dboost.from_xgboost(theirs))
    np.testing.assert_allclose(answers(ours, new), expected, rtol=2e-5, atol=2e-6)
    assert ours.n_iter_ == 8 and len(ours.sources) == 1
    if objective == "reg:quantileerror":
        assert ours.ensemble.loss == {"name": "quantile", "quantile": 0.8}
    theirs.save_model(tmp_path / "model.json")
    theirs.save_model(tmp_path / "model.ubj")
    for name in ("model.json", "model.ubj"):
        assert dboost.from_xgboost(tmp_path / name) == ours


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
@pytest.mark.parametrize("levels", [[0.2, 0.8], [0.1, 0.5, 0.9]])
def test_several_quantiles_of_xgboost(strategy: str, levels: list[float], tmp_path: Path) -> None:
    """XGBoost's predictions, sorted; an export has them in the order of the levels."""
    X, y = table()
    plain, new = X[["x", "size", "age"]], table(seed=1)[0][["x", "size", "age"]]
    more = {"objective": "reg:quantileerror", "quantile_alpha": levels, "multi_strategy": strategy, "tree_method": "hist"}
    theirs = xgboost.train(QUIET | more, xgboost.DMatrix(plain, y["y"]), 8)
    expected = theirs.predict(xgboost.DMatrix(new))
    ours = through_file(dboost.from_xgboost(theirs))
    np.testing.assert_allclose(ours.predict(new), np.sort(expected, axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.predict(new, raw_score=True), expected, rtol=1e-5, atol=1e-5)
    assert list(ours.predict(new)) == list(map(str, levels))
    assert ours.ensemble.width == (1 if strategy == "one_output_per_tree" else len(levels))
    trained = dboost.fit(plain, y["y"], loss="quantile", quantile=levels, multi_strategy=strategy, max_iter=8, progress=False)
    for booster in (ours, trained):
        booster.to_xgboost_json(tmp_path / "model.json")
        loaded = xgboost.Booster(model_file=tmp_path / "model.json")
        found = loaded.predict(xgboost.DMatrix(new), validate_features=False)
        np.testing.assert_allclose(found, booster.predict(new, raw_score=True), rtol=1e-5, atol=1e-5)
        assert dboost.from_xgboost(loaded).loss.to_dict() == booster.loss.to_dict()


def test_xgboosts_other_boosters() -> None:
    X, y = table()
    rows, new = xgboost.DMatrix(X, y["y"], enable_categorical=True), table(seed=1)[0]
    for more in (
        {"booster": "dart", "rate_drop": 0.5, "one_drop": 1},
        {"num_parallel_tree": 3, "subsample": 0.5},
        {"tree_method": "exact"},
    ):
        plain = X[["x", "size", "age", "rooms"]]
        fitted = xgboost.DMatrix(plain, y["y"]) if "tree_method" in more else rows
        theirs = xgboost.train(QUIET | more, fitted, 6)
        asked = new[list(theirs.feature_names)]
        expected = theirs.predict(xgboost.DMatrix(asked, enable_categorical=True))
        np.testing.assert_allclose(dboost.from_xgboost(theirs).predict(asked), expected, rtol=2e-5, atol=2e-6)
    two = xgboost.train(
        QUIET | {"objective": "multi:softprob", "num_class": 2}, xgboost.DMatrix(X, y["late"], enable_categorical=True), 5
    )
    expected = two.predict(xgboost.DMatrix(new, enable_categorical=True))
    np.testing.assert_allclose(dboost.from_xgboost(two).predict_proba(new), expected, rtol=1e-4, atol=2e-6)
    estimator = xgboost.XGBRegressor(n_estimators=3, n_jobs=1).fit(plain, y["y"])
    np.testing.assert_allclose(dboost.from_xgboost(estimator).predict(plain), estimator.predict(plain), rtol=2e-5, atol=2e-6)


def test_dart_models_of_xgboost_3_4(tmp_path: Path) -> None:
    """They are of kind gbtree, with the weights of their trees in the model."""
    X, y = table()
    plain = X[["x", "size", "age", "rooms"]]
    more = {"booster": "dart", "rate_drop": 0.5, "one_drop": 1}
    theirs = xgboost.train(QUIET | more, xgboost.DMatrix(plain, y["y"]), 6)
    theirs.save_model(tmp_path / "dart.json")
    content = json.loads((tmp_path / "dart.json").read_text())
    kept = content["learner"]["gradient_booster"]
    if kept["name"] == "dart":  # of an older version
        kept = kept["gbtree"] | {"name": "gbtree", "model": kept["gbtree"]["model"] | {"weight_drop": kept["weight_drop"]}}
        content["learner"]["gradient_booster"] = kept
    assert min(kept["model"]["weight_drop"]) < 1.0
    (tmp_path / "dart.json").write_text(json.dumps(content))
    found = dboost.from_xgboost(tmp_path / "dart.json").predict(plain)
    np.testing.assert_allclose(found, theirs.predict(xgboost.DMatrix(plain)), rtol=2e-5, atol=2e-6)


@pytest.mark.fast_cells(10)
@pytest.mark.parametrize("base_score", [0.0, 0.2, 0.8, 1.0, 3.0])
@pytest.mark.parametrize("objective", [*OBJECTIVES, "binary:logitraw"])
def test_base_scores_of_xgboost(objective: str, base_score: float) -> None:
    target, more = OBJECTIVES.get(objective, ("late", {}))
    X, y = table()
    settings = QUIET | {"objective": objective, "base_score": base_score} | more
    try:
        theirs = xgboost.train(settings, xgboost.DMatrix(X, y[target], enable_categorical=True), 3)
    except xgboost.core.XGBoostError:
        assert (objective == "binary:logistic" and base_score == 3.0) or (objective == "reg:gamma" and base_score == 0.0)
        return
    if base_score == 0.0 and objective in ("count:poisson", "reg:tweedie"):  # log(0)
        with pytest.raises(ParameterError, match=r"base_score .*0E0.*, whose raw score is not a finite number"):
            dboost.from_xgboost(theirs)
        return
    expected = theirs.predict(xgboost.DMatrix(X, enable_categorical=True), output_margin=True)
    np.testing.assert_allclose(dboost.from_xgboost(theirs).predict(X, raw_score=True), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("target", ["y", "late", "grade"])
@pytest.mark.parametrize(
    "more",
    [{}, {"num_parallel_tree": 3, "subsample": 0.5}, {"booster": "dart", "rate_drop": 0.5}],
    ids=["plain", "forests", "dart"],
)
def test_early_stopped_estimators_of_xgboost(target: str, more: dict[str, Any], tmp_path: Path) -> None:
    (X, y), (new, of_new) = table(n=200), table(seed=1, n=200)
    kind = xgboost.XGBRegressor if target == "y" else xgboost.XGBClassifier
    settings = {"n_estimators": 60, "early_stopping_rounds": 3, "learning_rate": 1.0, "enable_categorical": True}
    theirs = kind(**settings, **QUIET | more).fit(X, y[target], eval_set=[(new, of_new[target])], verbose=False)
    booster = theirs.get_booster()
    assert theirs.best_iteration + 1 < booster.num_boosted_rounds()
    expected = theirs.predict(new, output_margin=True)
    assert not np.allclose(
        booster.predict(xgboost.DMatrix(new, enable_categorical=True), output_margin=True), expected, atol=1e-3
    )
    ours = dboost.from_xgboost(theirs)
    np.testing.assert_allclose(ours.predict(new, raw_score=True), expected, rtol=1e-4, atol=1e-5)
    theirs.save_model(tmp_path / "estimator.json")
    assert dboost.from_xgboost(tmp_path / "estimator.json") == ours
    booster.save_model(tmp_path / "booster.json")
    for whole in (booster, tmp_path / "booster.json"):  # a Booster predicts with all trees
        expected = booster.predict(xgboost.DMatrix(new, enable_categorical=True), output_margin=True)
        np.testing.assert_allclose(dboost.from_xgboost(whole).predict(new, raw_score=True), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keep_training_booster", [False, True])
def test_early_stopped_models_of_lightgbm(keep_training_booster: bool) -> None:
    (X, y), (new, of_new) = table(n=200), table(seed=1, n=200)
    rows = lightgbm.Dataset(X, y["y"])
    theirs = lightgbm.train(
        SMALL | {"learning_rate": 0.5}, rows, 60, valid_sets=[lightgbm.Dataset(new, of_new["y"], reference=rows)],
        callbacks=[lightgbm.early_stopping(3, verbose=False)], keep_training_booster=keep_training_booster,
    )  # fmt: skip
    assert 0 < theirs.best_iteration < 60
    np.testing.assert_allclose(dboost.from_lightgbm(theirs).predict(new), theirs.predict(new), rtol=1e-10)


def test_float64_rows_are_decided_as_xgboost_decides() -> None:
    """Rows at the values where rounding to float32 changes the side of a split."""
    bounds = np.array([0.1, 1.0, -1.0, 1 + 2.0**-23, 1e-45, 16_777_216.0, 3.4e38], np.float32)
    last = last_below(bounds)
    with np.errstate(over="ignore"):
        assert (last.astype(np.float32) < bounds).all()
        assert (np.nextafter(last, np.inf).astype(np.float32) >= bounds).all()
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(3000, 2)), 2)
    theirs = xgboost.train(QUIET | {"tree_method": "exact"}, xgboost.DMatrix(X, X[:, 0] - X[:, 1]), 10)
    splits = dboost.from_xgboost(theirs).to_frame()["threshold"].dropna().to_numpy()
    near = np.concatenate([splits, np.nextafter(splits, np.inf), np.nextafter(splits, -np.inf)])
    rows = rng.choice(near, (500, 2))
    np.testing.assert_allclose(
        dboost.from_xgboost(theirs).predict(rows), theirs.predict(xgboost.DMatrix(rows)), rtol=2e-5, atol=2e-6
    )


def test_our_exports_come_back(tmp_path: Path) -> None:
    X, y = table()
    beyond_ascii = X.assign(town=X["town"].cat.rename_categories({"Luik": "Liège"}))
    ours = dboost.fit(beyond_ascii, y["grade"], loss="log_loss", max_iter=5, min_samples_leaf=5)
    ours.to_xgboost_json(tmp_path / "model.json")
    with pytest.raises(ParameterError, match=r"categorical column 'town'.*levels="):
        dboost.from_xgboost(tmp_path / "model.json")
    ours = dboost.fit(X, y["grade"], loss="log_loss", max_iter=5, min_samples_leaf=5)
    ours.to_xgboost_json(tmp_path / "model.json")  # the levels of kind have gaps
    back = dboost.from_xgboost(tmp_path / "model.json")
    np.testing.assert_allclose(back.predict_proba(X), ours.predict_proba(X), rtol=1e-5)
    simple = X.assign(kind=X["kind"].cat.rename_categories([0, 1, 2]))
    ours = dboost.fit(simple, y["grade"], loss="log_loss", max_iter=5, min_samples_leaf=5)
    ours.to_xgboost_json(tmp_path / "model.json")
    back = dboost.from_xgboost(tmp_path / "model.json")
    np.testing.assert_allclose(back.predict_proba(simple), ours.predict_proba(simple), rtol=1e-5)
    assert back.features == ours.features


def test_levels_that_xgboost_did_not_keep(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(6, size=800), rng.normal(size=800)]).astype(float)
    rows = xgboost.DMatrix(X, X[:, 0] % 3 + X[:, 1], feature_types=["c", "q"], enable_categorical=True)
    theirs = xgboost.train(QUIET, rows, 5)
    with pytest.raises(ParameterError, match=r"categorical column 'f0'.*in the order of their codes, or their number"):
        dboost.from_xgboost(theirs)
    np.testing.assert_allclose(dboost.from_xgboost(theirs, {"f0": 6}).predict(X), theirs.predict(rows), rtol=2e-5, atol=2e-6)
    named = dboost.from_xgboost(theirs, {"f0": list("uvwxyz")})
    frame = pd.DataFrame({"f0": np.array(list("uvwxyz"), object)[X[:, 0].astype(int)], "f1": X[:, 1]})
    np.testing.assert_allclose(named.predict(frame), theirs.predict(rows), rtol=2e-5, atol=2e-6)
    for levels, complaint in (({"f0": 2}, "'f0' has 2 levels, but"), ({"f1": 3}, "'f1', which"), ({"f0": [1, 1]}, "different")):
        with pytest.raises(ParameterError, match=complaint):
            dboost.from_xgboost(theirs, levels)


def test_what_of_xgboost_is_refused(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).normal(size=(100, 2)), np.arange(100.0)

    def trained(target: Any = y, **settings: Any) -> Any:
        return xgboost.train(QUIET | settings, xgboost.DMatrix(X, target), 2)

    for model, complaint in (
        (trained(booster="gblinear"), "kind 'gblinear'"),
        (trained(objective="rank:pairwise"), "objective 'rank:pairwise'"),
        (trained(objective="reg:logistic", target=y / 100), "objective 'reg:logistic'"),
        (trained(objective="reg:quantileerror", quantile_alpha=[0.9, 0.1]), "2 quantiles, and .* ascending levels only"),
        (3, "expected a Booster"),
    ):
        with pytest.raises(ParameterError, match=complaint):
            dboost.from_xgboost(model)
    content = json.loads(trained().save_raw("json"))
    content["learner"]["gradient_booster"]["model"]["trees"][0]["left_children"][0] = 99
    cases: dict[str, bytes] = {
        "damaged.json": json.dumps(content).encode(), "none.json": b"{}", "text.json": b"tree", "cut.json": b'{"learner": ',
    }  # fmt: skip
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises((ModelFileError, ParameterError), match=name):
            dboost.from_xgboost(tmp_path / name)
    with pytest.raises(ModelFileError, match="there is no such file"):
        dboost.from_xgboost(tmp_path / "nothing.json")


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
@pytest.mark.parametrize("n_targets", [2, 3])
def test_models_of_several_targets(n_targets: int, strategy: str, tmp_path: Path) -> None:
    """XGBoost's are read, and it reads ours, whose links it has."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4)).astype(np.float32)
    X[::7, 1] = np.nan
    targets = np.column_stack([X[:, 0], X[:, 2] ** 2, X[:, 0] * X[:, 3]])[:, :n_targets]
    rows, path = xgboost.DMatrix(X), tmp_path / "model.json"
    for objective, of_theirs, loss in (
        ("reg:squarederror", targets, "squared_error"),
        ("reg:absoluteerror", targets, "absolute_error"),
        ("binary:logistic", (targets > 0.3) * 1.0, "log_loss"),
        ("count:poisson", np.abs(targets), "poisson"),
        ("reg:tweedie", np.abs(targets), "tweedie"),
    ):
        settings = QUIET | {"objective": objective, "multi_strategy": strategy}
        theirs = xgboost.train(settings, xgboost.DMatrix(X, of_theirs), 4)
        read = dboost.from_xgboost(theirs)
        predict = read.predict_proba if loss == "log_loss" else read.predict
        np.testing.assert_allclose(np.asarray(predict(X)), theirs.predict(rows), rtol=2e-5, atol=2e-6)
        ours = dboost.fit(X, of_theirs, loss=loss, max_iter=4, multi_strategy=strategy, progress=False)
        predict = ours.predict_proba if loss == "log_loss" else ours.predict
        ours.to_xgboost_json(path)
        np.testing.assert_allclose(xgboost.Booster(model_file=path).predict(rows), np.asarray(predict(X)), rtol=2e-5, atol=2e-6)
        again = dboost.from_xgboost(path)
        predict_again = again.predict_proba if loss == "log_loss" else again.predict
        np.testing.assert_allclose(np.asarray(predict_again(X)), np.asarray(predict(X)), rtol=2e-5, atol=2e-6)
        assert again.loss.name == loss and again.loss.n_outputs == n_targets
    longer = dboost.fit(X, of_theirs, start_from=read, max_iter=2, loss="tweedie", multi_strategy=strategy, progress=False)
    assert longer.n_iter_ == read.n_iter_ + 2


LIGHTGBMS: dict[str, tuple[str, dict[str, Any]]] = {
    "regression": ("y", {}),
    "regression_l1": ("y", {}),
    "quantile": ("y", {"alpha": 0.8}),
    "huber": ("y", {"alpha": 0.7}),
    "poisson": ("positive", {}),
    "gamma": ("positive", {}),
    "tweedie": ("positive", {"tweedie_variance_power": 1.3}),
    "binary": ("late", {"sigmoid": 1.7}),
    "multiclass": ("grade", {"num_class": 3}),
}
SMALL = {"verbose": -1, "num_threads": 1, "num_leaves": 9, "min_data_in_leaf": 5, "min_data_per_group": 5, "cat_smooth": 1.0}


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize("objective", LIGHTGBMS)
def test_lightgbms_objectives(objective: str, tmp_path: Path) -> None:
    target, more = LIGHTGBMS[objective]
    (X, y), (new, _) = table(), table(seed=1)
    theirs = lightgbm.train(SMALL | {"objective": objective} | more, lightgbm.Dataset(X, y[target]), 8)
    ours = through_file(dboost.from_lightgbm(theirs))
    np.testing.assert_allclose(answers(ours, new), theirs.predict(new), rtol=1e-10, atol=1e-12)
    assert (ours.to_frame()["count"] > 0).all()
    theirs.save_model(tmp_path / "model.txt")
    assert dboost.from_lightgbm(tmp_path / "model.txt") == ours


@pytest.mark.parametrize(
    "more",
    [
        {"boosting": "dart", "drop_rate": 0.5},
        {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
        {"use_missing": False},
        {"objective": "multiclass", "num_class": 2},
    ],
)
def test_lightgbms_other_boosters(more: dict[str, Any]) -> None:
    (X, y), (new, _) = table(), table(seed=1)
    theirs = lightgbm.train(SMALL | more, lightgbm.Dataset(X, y["late" if "num_class" in more else "y"]), 6)
    ours, expected = dboost.from_lightgbm(theirs), theirs.predict(new)
    np.testing.assert_allclose(ours.predict_proba(new) if "num_class" in more else ours.predict(new), expected, rtol=1e-10)


def test_categories_of_lightgbm_that_are_numbers() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.choice([3, 7, 20, 21], 800), rng.normal(size=800)]).astype(float)
    theirs = lightgbm.train(SMALL, lightgbm.Dataset(X, X[:, 0] % 3 + X[:, 1], categorical_feature=[0]), 5)
    ours = dboost.from_lightgbm(theirs)
    assert ours.features[0].categories == (3, 7, 20, 21) and not ours.ensemble.named
    X[::7, 0], X[1::7, 0] = np.nan, 5
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-10)
    frame = pd.DataFrame(
        {"a": pd.Categorical.from_codes(rng.integers(3, size=800), list("uvw")), "b": rng.integers(4, size=800)}
    )
    mixed = lightgbm.train(SMALL, lightgbm.Dataset(frame, frame["b"] % 2, categorical_feature=["a", "b"]), 3)
    with pytest.raises(ParameterError, match=r"2 categorical columns \(a, b\) but levels of 1"):
        dboost.from_lightgbm(mixed)
    np.testing.assert_allclose(dboost.from_lightgbm(mixed, {"b": 4}).predict(frame), mixed.predict(frame), rtol=1e-10)


def test_what_of_lightgbm_is_refused(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(300, 2))
    X[::3] = 0.0
    y = X[:, 0] + (X[:, 1] == 0)

    def trained(**settings: Any) -> Any:
        return lightgbm.train(SMALL | settings, lightgbm.Dataset(X, y, params=settings), 3)

    for model, complaint in (
        (trained(linear_tree=True), "linear models in its leaves"),
        (trained(reg_sqrt=True), "objective 'regression sqrt'"),
        (trained(objective="fair"), "objective 'fair'"),
        (trained(zero_as_missing=True), "zero_as_missing"),
        (None, "expected a Booster"),
    ):
        with pytest.raises(ParameterError, match=complaint):
            dboost.from_lightgbm(model)
    text = trained().model_to_string()
    for name, content in (("cut.txt", text[:800]), ("other.txt", "{}"), ("less.txt", text.replace("leaf_value=", "value="))):
        (tmp_path / name).write_text(content)
        with pytest.raises(ModelFileError, match=name):
            dboost.from_lightgbm(tmp_path / name)


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("target", ["y", "late", "grade"])
def test_boosting_goes_on_from_what_was_begun_elsewhere(library: str, target: str, tmp_path: Path) -> None:
    (X, y), (new, of_new) = table(), table(seed=1)
    if library == "xgboost":
        objective = {
            "y": {},
            "late": {"objective": "binary:logistic"},
            "grade": {"objective": "multi:softprob", "num_class": 3},
        }
        rows = xgboost.DMatrix(X, y[target], enable_categorical=True)
        first = dboost.from_xgboost(xgboost.train(QUIET | objective[target], rows, 4))
    else:
        objective = {"y": {}, "late": {"objective": "binary"}, "grade": {"objective": "multiclass", "num_class": 3}}
        first = dboost.from_lightgbm(lightgbm.train(SMALL | objective[target], lightgbm.Dataset(X, y[target]), 4))
    longer = dboost.fit(new, of_new[target], start_from=first, max_iter=6)
    assert longer.n_iter_ == first.n_iter_ + 6 and longer.sources[0]["label"].lower() == library
    raw = first.predict(new, raw_score=True)
    np.testing.assert_allclose(longer.predict(new, raw_score=True, iteration_range=(0, 4)), raw, rtol=1e-12)
    losses = longer.history["train_loss"].to_numpy()
    assert losses[-1] < losses[4]
    longer.save(tmp_path / "model.dboost")
    assert dboost.load(tmp_path / "model.dboost") == longer


def test_damaged_trees_of_xgboost_are_refused(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    rows = np.random.default_rng(0).normal(size=(300, 3))
    booster = xgboost.train({"max_depth": 3}, xgboost.DMatrix(rows, rows[:, 0] * rows[:, 1]), 2)
    whole = bytes(booster.save_raw("json"))
    for name, value in (("split_indices", -1), ("split_indices", 2**32), ("split_conditions", math.nan), ("right_children", 1)):
        content = json.loads(whole)
        content["learner"]["gradient_booster"]["model"]["trees"][0][name][0] = value
        (tmp_path / "m.json").write_text(json.dumps(content))
        with pytest.raises(dboost.DBoostError, match=r"damaged|read"):
            dboost.from_xgboost(tmp_path / "m.json")
    for change in ({"num_class": "1000000000"}, {"num_feature": "1000000000"}):
        content = json.loads(whole)
        content["learner"]["learner_model_param"] |= change
        (tmp_path / "m.json").write_text(json.dumps(content))
        with pytest.raises(dboost.DBoostError, match=r"m\.json is"):
            dboost.from_xgboost(tmp_path / "m.json")
