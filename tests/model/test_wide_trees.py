"""Models whose trees have a value for each output: predictions, files, exports and interpretation equal the expanded form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.booster import Booster
from dboost.errors import ModelFileError, ParameterError
from dboost.model import model_file
from dboost.model.ensemble import Ensemble, Tree

RNG = np.random.default_rng(7)
N, K = 400, 3
FRAME = pd.DataFrame({"a": RNG.normal(size=N), "b": RNG.integers(0, 9, N).astype(float), "c": RNG.choice(list("xyz"), N)})
FRAME.loc[::17, "a"] = np.nan
Y = (FRAME["b"] % K).astype(int)


@pytest.fixture(scope="module")
def wide() -> Booster:
    """A model of three classes with four trees of three values per leaf."""
    fitted = dboost.fit(FRAME, Y, loss="log_loss", max_iter=4, max_leaf_nodes=6, min_samples_leaf=5).ensemble
    trees = tuple(replace(tree, value=RNG.normal(size=(tree.n_nodes, K))) for tree in fitted.trees[::K])
    sources = tuple({name: value for name, value in source.items() if name != "summary"} for source in fitted.sources)
    return Booster(replace(fitted, trees=trees, width=K, sources=sources))


def leaf_of(tree: Tree, row: pd.Series, model: Ensemble) -> int:
    """Return the leaf node that a row reaches, by the definition of a tree."""
    node = 0
    while tree.feature[node] >= 0:
        feature = model.features[tree.feature[node]]
        value = row[feature.name]
        if pd.isna(value):
            goes_left = bool(tree.missing_left[node])
        elif feature.categories is None:
            goes_left = value <= tree.threshold[node]
        else:
            goes_left = feature.categories.index(value) in tree.categories[node]
        node = int(tree.left[node] if goes_left else tree.right[node])
    return node


def test_raw_scores_are_sums_of_the_values_of_leaves(wide: Booster) -> None:
    model = wide.ensemble
    assert model.n_iterations == wide.n_iter_ == len(model.trees) == 4
    assert any(tree.n_leaves > 2 for tree in model.trees)
    raw = wide.predict(FRAME, raw_score=True)
    for i in range(0, N, 13):
        expected = np.array(model.baseline)
        for tree in model.trees:
            expected = expected + tree.value[leaf_of(tree, FRAME.iloc[i], model)]
        np.testing.assert_array_equal(raw.iloc[i], expected)


def test_the_expanded_model_is_the_same_function(wide: Booster) -> None:
    narrow = Booster(wide.ensemble.expanded())
    assert narrow.ensemble.width == 1
    assert narrow.n_iter_ == wide.n_iter_
    assert narrow.ensemble.expanded() is narrow.ensemble
    np.testing.assert_array_equal(wide.predict_proba(FRAME), narrow.predict_proba(FRAME))
    for range_ in ((0, 1), (2, 4)):
        np.testing.assert_array_equal(
            wide.predict(FRAME, True, iteration_range=range_), narrow.predict(FRAME, True, iteration_range=range_)
        )
    row = FRAME.iloc[3].to_dict()
    np.testing.assert_array_equal(wide.predictor("raw_score")(row), wide.predict(FRAME, raw_score=True).iloc[3])
    leaves, of_narrow = wide.apply(FRAME), narrow.apply(FRAME)
    assert list(leaves.columns) == [f"tree_{t}" for t in range(4)]
    for t in range(4):
        np.testing.assert_array_equal(leaves.iloc[:, t], of_narrow.iloc[:, K * t + 1])


def test_interpretation_counts_a_split_once(wide: Booster) -> None:
    n_splits = sum(int((tree.feature >= 0).sum()) for tree in wide.ensemble.trees)
    count = wide.importance("count")
    assert (count * count.attrs["unit"] / 100).sum() == pytest.approx(n_splits)
    gain, of_narrow = wide.importance("gain"), Booster(wide.ensemble.expanded()).importance("gain")
    assert gain.attrs["unit"] == pytest.approx(of_narrow.attrs["unit"])
    raw = np.asarray(wide.predict(FRAME, raw_score=True))
    np.testing.assert_allclose(wide.shap_values(FRAME).sum(axis=1) + wide.expected_value, raw, rtol=1e-9, atol=1e-9)
    at = FRAME["a"].iloc[1]
    found = wide.partial_dependence(FRAME, "a", grid=[at])["value"]
    replaced = np.asarray(wide.predict(FRAME.assign(a=at), raw_score=True)).mean(axis=0)
    np.testing.assert_allclose(found, replaced, rtol=1e-9)
    nodes = wide.to_frame()
    assert len(nodes) == K * sum(tree.n_nodes for tree in wide.ensemble.trees)
    np.testing.assert_array_equal(nodes["value"][: wide.ensemble.trees[0].n_nodes], wide.ensemble.trees[0].value[:, 0])


@pytest.mark.parametrize("form", ["json", "compact"])
def test_files_keep_every_bit(wide: Booster, form: str) -> None:
    write = model_file.dumps if form == "json" else model_file.dumps_compact
    again = model_file.loads(write(wide.ensemble))
    assert again.width == K
    assert write(again) == write(wide.ensemble)
    np.testing.assert_array_equal(Booster(again).predict(FRAME, True), wide.predict(FRAME, True))
    assert b"version 2" in write(wide.ensemble)[:40] or b'"version": 2' in write(wide.ensemble)[:40]
    narrow = write(wide.ensemble.expanded())
    assert b"version 1" in narrow[:40] or b'"version": 1' in narrow[:40]
    assert b'"width"' not in narrow


def test_the_schema_has_the_width(wide: Booster) -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator(model_file.schema())
    content = json.loads(model_file.dumps(wide.ensemble))
    validator.validate(content)
    assert content["width"] == K
    assert not validator.is_valid(content | {"width": 1})


def changed(model: Ensemble, **entries: object) -> bytes:
    """Return the file of a model with other entries, and a digest that fits."""
    content = json.loads(model_file.dumps(model)) | entries
    for name in ("format", "sha256"):
        content.pop(name)
    version = content.pop("version")
    text = json.dumps(content)[1:].encode()
    digest = model_file._sha256(text)
    return f'{{\n "format": "dboost",\n "version": {version},\n "sha256": "{digest}",\n'.encode() + text


def test_files_of_another_width_are_refused(wide: Booster) -> None:
    model = wide.ensemble
    assert model_file.loads(changed(model)).width == K
    for width, message in ((2, "width is neither"), ("3", "width is neither"), (1, "value has"), (0, "width is neither")):
        with pytest.raises(ModelFileError, match=message):
            model_file.loads(changed(model, width=width))
    with pytest.raises(ModelFileError, match="a model of version 2, written as version 1"):
        model_file.loads(changed(model, version=1))
    trees = json.loads(model_file.dumps(model))["trees"]
    trees[2]["value"][4] = None
    with pytest.raises(ModelFileError, match="tree 2: a value is not finite"):
        model_file.loads(changed(model, trees=trees))
    with pytest.raises(ModelFileError, match="values per leaf"):
        model_file.dumps(replace(model, width=1))


def test_a_continued_model_has_trees_of_all_outputs(wide: Booster) -> None:
    later = dboost.fit(FRAME, Y, loss="log_loss", start_from=wide, max_iter=2)
    assert later.ensemble.width == K
    assert later.n_iter_ == len(later.ensemble.trees) == 6
    first = later.truncate(4)
    np.testing.assert_array_equal(first.predict(FRAME, raw_score=True), wide.predict(FRAME, raw_score=True))
    assert wide.truncate(2).ensemble.trees == wide.ensemble.trees[:2]


def test_exports_of_categories_have_a_tree_for_each_output(tmp_path: Path) -> None:
    y = FRAME["c"].map({"x": 0, "y": 1, "z": 2})
    wide = dboost.fit(
        FRAME, y, loss="log_loss", multi_strategy="multi_output_tree", max_iter=4, min_samples_leaf=5, min_category_hessian=1
    )
    assert any(codes is not None for codes in wide.ensemble.trees[0].categories)
    wide.to_xgboost_json(tmp_path / "model.json")
    stored = json.loads((tmp_path / "model.json").read_text())["learner"]["gradient_booster"]["model"]
    assert stored["tree_info"] == [0, 1, 2] * 4
    again = dboost.from_xgboost(str(tmp_path / "model.json"), levels={"c": 3})
    np.testing.assert_allclose(again.predict_proba(wide.to_matrix(FRAME)), wide.predict_proba(FRAME), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_outputs", [2, 5])
def test_trees_of_xgboost_with_several_values_are_imported(n_outputs: int, tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    X = np.ascontiguousarray(FRAME[["a", "b"]], np.float32)
    y = (FRAME["b"] % n_outputs).astype(int)
    settings = {"objective": "multi:softprob", "num_class": n_outputs, "multi_strategy": "multi_output_tree", "max_depth": 3}
    theirs = xgboost.train(settings, xgboost.DMatrix(X, y), 5)
    expected = theirs.predict(xgboost.DMatrix(X))
    for name in ("model.json", "model.ubj"):
        theirs.save_model(tmp_path / name)
        ours = dboost.from_xgboost(str(tmp_path / name))
        assert ours.ensemble.width == (1 if n_outputs == 2 else n_outputs)
        assert ours.n_iter_ == 5
        np.testing.assert_allclose(ours.predict_proba(X), expected, rtol=1e-5, atol=1e-6)
    content = json.loads((tmp_path / "model.json").read_text())
    trees = content["learner"]["gradient_booster"]["model"]["trees"]
    leaf = trees[1]["left_children"].index(-1)
    for change, error in (
        ({"leaf_weights": trees[1]["leaf_weights"][:-1]}, ModelFileError),
        ({"right_children": [10**6 if i == leaf else one for i, one in enumerate(trees[1]["right_children"])]}, ModelFileError),
        ({"tree_param": trees[1]["tree_param"] | {"size_leaf_vector": "7"}}, ModelFileError),
        ({"leaf_weights": None}, ParameterError),
    ):
        damaged = json.loads(json.dumps(content))
        tree = damaged["learner"]["gradient_booster"]["model"]["trees"][1]
        tree.update(change)
        if tree["leaf_weights"] is None:
            del tree["leaf_weights"]
        (tmp_path / "damaged.json").write_text(json.dumps(damaged))
        with pytest.raises(error):
            dboost.from_xgboost(str(tmp_path / "damaged.json"))


def test_xgboost_reads_trees_of_several_values(tmp_path: Path) -> None:
    """Without categorical splits the file has one tree an iteration."""
    xgboost = pytest.importorskip("xgboost")
    X = FRAME[["a", "b"]]
    ours = dboost.fit(X, Y, loss="log_loss", max_iter=4, multi_strategy="multi_output_tree", min_samples_leaf=5)
    ours.to_xgboost_json(tmp_path / "model.json")
    theirs = xgboost.Booster(model_file=tmp_path / "model.json")
    assert theirs.num_boosted_rounds() == 4
    rows = xgboost.DMatrix(ours.to_matrix(X))
    for last in (1, 4):
        expected = ours.predict_proba(X, iteration_range=(0, last))
        np.testing.assert_allclose(theirs.predict(rows, iteration_range=(0, last)), expected, rtol=1e-5, atol=1e-6)
    again = dboost.from_xgboost(theirs)
    assert again.ensemble.width == K
    np.testing.assert_allclose(again.predict_proba(X), ours.predict_proba(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(again.ensemble.trees[0].cover, ours.ensemble.trees[0].cover, rtol=1e-5)
