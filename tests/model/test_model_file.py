"""Model files: complete or absent, the same for the same model, and validated before use."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dboost
from dboost.errors import DBoostError, ModelFileError
from dboost.files import local_write
from dboost.model import model_file
from dboost.model.ensemble import Ensemble
from dboost.schema import Feature
from tests.helpers.forests import BY_HAND, LEAF, SMALL, SPLIT, random_ensemble, same


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3), st.lists(st.floats(), max_size=4))
def test_every_bit_of_a_number_comes_back(values: list[float], losses: list[float]) -> None:
    tree = replace(
        random_ensemble(0, n_iterations=1, n_leaves=2).trees[0],
        value=np.array(values), gain=np.array([*values[:2], np.inf]), cover=np.abs(values),
    )  # fmt: skip
    ensemble = replace(SMALL, trees=(tree,), sources=(), metrics={"train_loss": tuple(losses)})
    back = model_file.loads(model_file.dumps(ensemble))
    assert back.trees[0].value.tobytes() == np.array(values).tobytes()
    # There is only one NaN: its sign and payload are not stored.
    assert same(back.metrics["train_loss"], tuple(losses))


@given(st.lists(st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())))
def test_levels_keep_their_type(levels: list[Any]) -> None:
    unique = tuple({(type(level), level): level for level in levels}.values())
    ensemble = replace(SMALL, features=(Feature("c", unique),), edges=(), trees=(), sources=())
    back = model_file.loads(model_file.dumps(ensemble)).features[0].categories
    assert back is not None
    assert [(type(level), level) for level in back] == [(type(level), level) for level in unique]


def test_names_of_any_script() -> None:
    names = ["Größe", "大きさ", 'quote " and \\', "line\nbreak", "\x00", "NaN", "🌳"]
    ensemble = replace(SMALL, features=tuple(map(Feature, names)), edges=(), trees=(), sources=())
    data = model_file.dumps(ensemble)
    assert "大きさ" in data.decode()
    assert [feature.name for feature in model_file.loads(data).features] == names


@pytest.mark.parametrize(
    ("ensemble", "text"), [(BY_HAND, "size"), (BY_HAND, "Bonn"), (random_ensemble(2, n_outputs=3), "class 0")]
)
def test_halves_of_surrogate_pairs_are_refused(ensemble: Ensemble, text: str) -> None:
    """Two halves in escapes are a character."""
    head, _, content = model_file.dumps(ensemble).decode().partition('",\n "loss"')
    for new in (r"\ud800", r"\udcff and more", r"\ude00\ud83d", r"\ud83d\ude00"):
        edited = f' "loss"{content}'.replace(f'"{text}"', f'"{new}"').encode()
        stored = f'{head[:-64]}{hashlib.sha256(edited).hexdigest()}",\n'.encode() + edited
        if new == r"\ud83d\ude00":
            assert "\U0001f600" in model_file.dumps(model_file.loads(stored)).decode()
        else:
            with pytest.raises(ModelFileError, match="half of a surrogate pair"):
                model_file.loads(stored)


@pytest.mark.parametrize("where", ["name", "category", "class"])
def test_a_fit_refuses_halves_of_surrogate_pairs(where: str) -> None:
    def column(*values: str) -> pd.Series:
        return pd.Series(values * 10, dtype=object)

    half = {place: "\udcff" if place == where else place for place in ("name", "category", "class")}
    rows = pd.DataFrame({0: np.arange(20.0), 1: column("a", half["category"]), 2: column("no", half["class"])})
    rows.columns = pd.Index([half["name"], "c", "y"], dtype=object)
    with pytest.raises(DBoostError, match="half of a surrogate pair"):
        dboost.fit(rows, "y", max_iter=1, progress=False)


def test_order_of_parameters_does_not_matter() -> None:
    turned = replace(SMALL, parameters=dict(reversed(SMALL.parameters.items())))
    assert list(turned.parameters) != list(SMALL.parameters)
    assert model_file.dumps(turned) == model_file.dumps(SMALL)


def test_metrics_keep_their_order() -> None:
    metrics = {"b": (1.0,), "a": (2.0,), "c": (3.0,)}
    assert list(model_file.loads(model_file.dumps(replace(SMALL, metrics=metrics))).metrics) == ["b", "a", "c"]


def test_numpy_scalars_are_numbers() -> None:
    ensemble = replace(SMALL, parameters={"a": np.int64(3), "b": np.float64(0.1), "c": np.bool_(True)})
    assert model_file.loads(model_file.dumps(ensemble)).parameters == {"a": 3, "b": 0.1, "c": True}
    for bad in (object(), float("nan"), {1, 2}):
        with pytest.raises(ModelFileError, match="cannot be stored"):
            model_file.dumps(replace(SMALL, parameters={"a": bad}))


def test_nodes_must_be_in_depth_first_order() -> None:
    tree = SMALL.trees[0]
    with pytest.raises(ModelFileError, match="tree 1: its nodes are not in depth-first order"):
        model_file.dumps(replace(SMALL, trees=(tree, replace(tree, right=tree.left))))


def test_the_digest_is_of_what_was_learned() -> None:
    assert model_file.digest(SMALL) == model_file.digest(random_ensemble(1, n_iterations=2, n_leaves=4))
    tree = SMALL.trees[0]
    nudged = tree.value.copy()
    nudged[-1] = np.nextafter(nudged[-1], np.inf)
    assert model_file.digest(replace(SMALL, trees=(replace(tree, value=nudged), *SMALL.trees[1:]))) != model_file.digest(SMALL)


def test_a_person_can_read_it() -> None:
    lines = model_file.dumps(SMALL).decode().splitlines()
    assert lines[:3] == ["{", ' "format": "dboost",', ' "version": 1,']
    assert '  {"name": "x0"},' in lines
    assert '  "learning_rate": 0.1,' in lines
    assert sum(line.startswith('  {"feature": [') for line in lines) == len(SMALL.trees)


@given(st.binary(max_size=200))
@example(b"\x1f\x8b")
@example(b"\x1f\x8b\x08" + bytes(20))
def test_anything_else_is_refused(data: bytes) -> None:
    known = "damaged or cut short" if data.startswith(b"\x1f\x8b") else "is not a dboost model"  # of gzip
    with pytest.raises(ModelFileError, match=known):
        model_file.loads(data)


def forged(change: Callable[[dict[str, Any]], Any], ensemble: Ensemble = BY_HAND) -> bytes:
    """A file with changed contents and a correct checksum."""
    *first, _, content = model_file.dumps(ensemble).split(b"\n", 4)
    entries = json.loads(b"{" + content)
    change(entries)
    content = json.dumps(entries)[1:].encode()
    digest = hashlib.sha256(content).hexdigest()
    return b"\n".join([*first, f' "sha256": "{digest}",'.encode(), content])


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that sets the item at the path to the last argument."""

    def change(entries: Any) -> None:
        *way, last, value = path
        for key in way:
            entries = entries[key]
        entries[last] = value

    return change


def nested(levels: int) -> Any:
    """A list in a list in …"""
    return [nested(levels - 1)] if levels else []


def test_a_forgery_without_a_change_is_read() -> None:
    assert same(model_file.loads(forged(lambda entries: None)), BY_HAND)


@pytest.mark.fast_cells(27)
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (put("trees", {}), "trees is not a list"),
        (put("trees", 0, []), "tree 0: it is not a mapping"),
        (put("trees", 0, "feature", SPLIT, 2), "tree 0: feature holds 2"),
        (put("trees", 0, "feature", SPLIT, -2), "tree 0: feature holds -2"),
        (put("trees", 0, "feature", SPLIT, 1.0), "tree 0: feature holds 1.0"),
        (put("trees", 0, "feature", SPLIT, True), "tree 0: feature holds True"),
        (put("trees", 0, "feature", SPLIT, -1), "do not make one tree"),
        (put("trees", 0, "feature", LEAF, 0), "do not make one tree"),
        (put("trees", 0, "feature", []), "do not make one tree"),
        (put("trees", 0, "feature", [-1, -1]), "do not make one tree"),
        (put("trees", 0, "threshold", []), "threshold has 0 entries instead of 5"),
        (put("trees", 0, "threshold", SPLIT, None), "thresholds and features do not fit"),
        (put("trees", 0, "threshold", LEAF, 1.5), "thresholds and features do not fit"),
        (put("trees", 0, "threshold", SPLIT, "1.5"), "threshold holds '1.5'"),
        (put("trees", 0, "threshold", SPLIT, 1), "threshold holds 1"),
        (put("trees", 0, "threshold", SPLIT, [1.5]), "threshold holds"),
        (put("trees", 0, "categories", {}), "categories has other entries"),
        (put("trees", 0, "categories", "0", [3]), "categories of node 0 holds 3"),
        (put("trees", 0, "categories", "0", [-1]), "categories of node 0 holds -1"),
        (put("trees", 0, "categories", "0", [1, 0]), "tree 0: categories of node 0 are no ascending levels"),
        (put("trees", 0, "categories", "0", None), "categories of node 0 is not a list"),
        (put("trees", 0, "categories", str(LEAF), [0]), "categories has other entries"),
        (put("trees", 0, "missing_left", LEAF, 1), "a leaf sends missing values left"),
        (put("trees", 0, "missing_left", SPLIT, 2), "missing_left holds 2"),
        (put("trees", 0, "count", SPLIT, -1), "count holds -1"),
        (put("trees", 0, "count", SPLIT, 2**63), "count holds 9223372036854775808"),
        (put("trees", 0, "value", 6 * [0.5]), "value has 6 entries instead of 5"),
        (put("trees", 0, "left", [1]), "it has other entries"),
        (put("features", []), "there are edges for 2 of 0 features"),
        (put("features", 0, "name", 3), "the name of feature 0 is not a string"),
        (put("features", 0, "name", "town"), "two features have the same name"),
        (put("features", 0, "levels", []), "thresholds and features do not fit|edges and kind"),
        (put("features", 1, "levels", [None]), "no known type"),
        (put("features", 1, "levels", [1, 1]), "a level is there twice"),
        (put("features", 1, "levels", "abc"), "feature 'town' is not a list"),
        (put("features", 0, "kind", "numeric"), "feature 0 has other entries"),
        (put("edges", [None]), "edges for 1 of 2 features"),
        (put("edges", 0, None), "the edges and kind of 'size' do not fit"),
        (put("edges", 0, [1.0, 1.0]), "edges of 'size' do not ascend"),
        (put("baseline", []), "baseline"),
        (put("baseline", [None]), "baseline"),
        (put("baseline", [0.5, 0.5]), "several outputs but no classes"),
        (put("classes", ["a", "b", "c"]), "classes and baseline do not fit"),
        (put("classes_dtype", "no such type"), "is no type of classes"),
        (put("classes_dtype", "i4,("), "is no type of classes"),
        (put("classes_dtype", "U99999999"), "is no type of classes"),
        (put("loss", "n_classes", 10**12), "one of 1000000000000 classes"),
        (put("loss", "quantile", "0.5"), "the loss's quantile is not a number"),
        (put("sources", 0, "rows", "5"), "source 0.rows is '5', not an integer at least 0 or null"),
        (put("sources", 0, "first_iteration", 1.0), "source 0.first_iteration is 1.0, not an integer at least 1"),
        (put("sources", 0, "label", ["a"]), "source 0.label is a list, not text or null"),
        (put("sources", 0, "summary", []), "source 0.summary is a list, not a mapping"),
        (put("sources", 0, "offset", None), "source 0.offset is None, not text or true or false"),
        (put("sources", 0, "offset", False), "the offset of source 0 is neither a name nor true"),
        (put("loss", "name", "log_loss"), "the loss 'log_loss' and the classes do not fit"),
        (put("classes_dtype", 3), "classes_dtype is not a string"),
        (put("best_iteration", 1.5), "best_iteration"),
        (put("named", 1), "named is neither true nor false"),
        (put("loss", {}), "the loss has no name"),
        (put("metrics", "train_loss", 3.5), "metric 'train_loss' is not a list"),
        (put("sources", [1]), "source 0 is 1, not a mapping"),
        (put("parameters", None), "parameters is None, not a mapping"),
        (put("more", 1), "the content has other entries"),
        (put("trees", 0, "value", LEAF, None), "tree 0: a value is not finite"),
        (put("trees", 0, "value", 0, "Infinity"), "tree 0: a value is not finite"),
        (put("trees", 0, "cover", LEAF, -1.0), "tree 0: .* a cover is negative"),
        (put("trees", 0, "cover", LEAF, None), "tree 0: .* cover is no number"),
        (put("trees", 0, "gain", 0, None), "tree 0: .* a gain or cover is no number"),
        (put("edges", 0, [None]), "edges of 'size' do not ascend"),
        (put("best_iteration", 2), "best_iteration"),
        (put("metrics", "other", [1.0, 2.0]), "different numbers of iterations"),
        (put("sources", 0, "first_iteration", 0), "source 0.first_iteration is 0, not an integer at least 1"),
        (put("sources", 0, "last_iteration", 10**12), "the iterations of source 0, 1 to 1000000000000, do not fit"),
        (put("sources", 0, "rows", -5), "source 0.rows is -5"),
        (put("sources", 0, "parameters", []), "source 0.parameters is a list, not a mapping"),
        (put("sources", 0, "refreshed", "twice"), "source 0.refreshed is 'twice', not a list"),
        (put("sources", 0, "summary", {}), "source 0: the summary of the training data"),
        (lambda entries: entries["sources"][0].pop("last_iteration"), "source 0 has no entry 'last_iteration'"),
        (lambda entries: entries["sources"].append(entries["sources"][0]), "the iterations of source 1, 1 to 1, do not fit"),
        (put("parameters", "learning_rate", float("inf")), "Infinity is not JSON"),
        (put("parameters", "interaction_cst", nested(500)), "parameters.interaction_cst is a list, not JSON"),
        (lambda entries: entries.pop("edges"), "the content has other entries"),
    ],
)
def test_nonsense_with_a_right_checksum_is_refused(change: Callable[[dict[str, Any]], Any], complaint: str) -> None:
    with pytest.raises(ModelFileError, match=f"forged.json does not hold a valid model: .*({complaint})"):
        model_file.loads(forged(change), "forged.json")


@pytest.mark.parametrize("scale", [None, 0.0, -1.0])
def test_a_normal_model_has_a_scale(scale: float | None) -> None:
    X = np.arange(60.0)[:, None]
    ensemble = dboost.fit(X, np.sin(X[:, 0]), loss="normal", max_iter=1, progress=False).ensemble
    assert model_file.loads(forged(lambda _: None, ensemble), "forged.json").loss == ensemble.loss
    with pytest.raises(ModelFileError, match="the loss's scale is not positive"):
        model_file.loads(forged(put("loss", "scale", scale), ensemble), "forged.json")


@pytest.mark.parametrize(
    ("dtype", "classes", "complaint"),
    [
        ("int8", [1, 300], "cannot hold the classes"),
        ("int64", ["1", "2"], "cannot hold the classes"),
        ("int64", [0.5, 1.5], "cannot hold the classes"),
        ("bool", ["a", "b"], "cannot hold the classes"),
        ("float16", [1, 100_000], "cannot hold the classes"),
        ("float64", [0, 0.0], "as float64, a class is there twice"),
        ("bool", [1, True], "as bool, a class is there twice"),
        ("(,)", ["a", "b"], "is no type of classes"),
        ("O,O", ["a", "b"], "is no type of classes"),
        ("<U1", ["abc", "abd"], "is no type of classes"),
        ("M8[s]", [1, 2], "is no type of classes"),
        (None, ["a", "b"], "classes but no classes_dtype"),
        ("object", ["a"], "but one class"),
    ],
)
def test_types_that_cannot_hold_the_classes_are_refused(dtype: Any, classes: list[Any], complaint: str) -> None:
    with pytest.raises(ModelFileError, match=complaint):
        model_file.loads(
            forged(lambda entries: entries.update(classes=classes, classes_dtype=dtype, loss={"name": "log_loss"}))
        )


@pytest.mark.parametrize("content", [b'"a": NaN}', b"[" * 100_000, b'"a": ' + b"[" * 100_000, b"\xff}", b"", b'"a": 1'])
def test_broken_json_with_a_right_checksum_is_refused(content: bytes) -> None:
    head = model_file.dumps(SMALL).split(b' "sha256"')[0]
    with pytest.raises(ModelFileError, match="does not hold a valid model"):
        model_file.loads(head + f' "sha256": "{hashlib.sha256(content).hexdigest()}",\n'.encode() + content)


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model_file.save(SMALL, path)
    assert path.read_bytes() == model_file.dumps(SMALL)
    assert same(model_file.load(str(path)), SMALL)
    other = random_ensemble(2)
    model_file.save(other, f"file://{path}")
    assert same(model_file.load(path), other)
    assert os.listdir(tmp_path) == ["model.json"]


def test_urls() -> None:
    url = "memory://models/a/model.json"
    model_file.save(SMALL, url)
    assert same(model_file.load(url), SMALL)
    assert fsspec.filesystem("memory").ls("/models/a", detail=False) == ["/models/a/model.json"]
    with pytest.raises(ModelFileError, match=r"cannot read memory://models/b.json: there is no such file"):
        model_file.load("memory://models/b.json")
    with pytest.raises(ModelFileError, match="nosuchscheme"):
        model_file.save(SMALL, "nosuchscheme://model.json")


class FailsHalfway:
    """A file on a disk that is full after one byte."""

    def __init__(self, arguments: tuple[Any, ...], fail: Callable[[], None]) -> None:
        self.file, self.fail = open(*arguments), fail  # noqa: SIM115 (closed by __exit__)

    def __enter__(self) -> FailsHalfway:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> None:
        self.file.write(data[:1])
        self.fail()


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_save_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    path = tmp_path / "model.json"
    model_file.save(SMALL, path)
    before = path.read_bytes()

    def fail(*arguments: Any) -> None:
        assert len(os.listdir(tmp_path)) == 2, "the draft lies beside the file"
        raise error

    if call == "write":
        monkeypatch.setattr(local_write, "open", lambda *arguments: FailsHalfway(arguments, fail), raising=False)
    else:
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(ModelFileError if isinstance(error, OSError) else KeyboardInterrupt) as caught:
        model_file.save(random_ensemble(2), path)
    monkeypatch.undo()
    assert isinstance(error, KeyboardInterrupt) or "model.json: No space left on device" in str(caught.value)
    assert os.listdir(tmp_path) == ["model.json"] and path.read_bytes() == before


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"there is no folder .*nowhere") as caught:
        model_file.save(SMALL, tmp_path / "nowhere" / "model.json")
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(ModelFileError, match="it is a folder"):
        model_file.save(SMALL, tmp_path)
    with pytest.raises(ModelFileError, match="there is no such file"):
        model_file.load(tmp_path / "model.json")
    with pytest.raises(ModelFileError, match="cannot read"):
        model_file.load(tmp_path)
    assert os.listdir(tmp_path) == []


def changed(field: str, values: Any) -> Ensemble:
    """SMALL with another array in its second tree; values : a function of the old array."""
    tree = SMALL.trees[1]
    return replace(
        SMALL, trees=(SMALL.trees[0], replace(tree, **{field: values(getattr(tree, field).copy())}), *SMALL.trees[2:])
    )


def set_at(index: int, value: Any) -> Any:
    def change(values: np.ndarray) -> np.ndarray:
        values[index] = value
        return values

    return change


def test_models_that_come_back_pass_the_check() -> None:
    for seed in range(20):
        ensemble = random_ensemble(seed, n_iterations=3, n_leaves=1 + seed)
        model_file.check(ensemble)
        model_file.check(replace(ensemble, trees=(), sources=()))
        assert model_file.dumps(model_file.loads(model_file.dumps(ensemble))) == model_file.dumps(ensemble)


@pytest.mark.parametrize(
    ("ensemble", "message"),
    [
        (replace(SMALL, edges=tuple(None if e is None else np.array([1.0, 1.0]) for e in SMALL.edges)), "do not ascend"),
        (replace(SMALL, edges=(None,) * len(SMALL.features)), "the edges and kind of .* do not fit"),
        (replace(SMALL, baseline=np.array([np.nan])), "baseline"),
        (replace(SMALL, features=(Feature("c", (1.0, np.inf)), *SMALL.features[1:])), "Out of range"),
        (replace(SMALL, features=(Feature("c", ("a", "a")), *SMALL.features[1:]), edges=()), "a level is there twice"),
        (replace(SMALL, parameters={"a": float("nan")}), "Out of range"),
        (changed("feature", set_at(0, 99)), "tree 1: feature is not within"),
        (changed("feature", set_at(-1, 0)), "do not make one tree"),
        (changed("threshold", set_at(-1, 1.0)), "tree 1: thresholds and features do not fit"),
        (changed("missing_left", set_at(-1, True)), "tree 1: a leaf sends missing values left"),
        (changed("count", set_at(0, -1)), "tree 1: count is negative"),
        (changed("right", set_at(0, 1)), "tree 1: its nodes are not in depth-first order"),
        (changed("value", lambda values: values[:-1]), "differ in length"),
        (changed("value", set_at(0, np.nan)), "tree 1: a value is not finite"),
        (changed("cover", set_at(-1, np.nan)), "tree 1: .* cover is no number"),
        (changed("cover", set_at(-1, -0.5)), "tree 1: .* a cover is negative"),
        (changed("gain", set_at(0, np.nan)), "tree 1: .* a gain or cover is no number"),
        (
            replace(
                SMALL, trees=(SMALL.trees[0], replace(SMALL.trees[0], categories=(np.array([0]),) * SMALL.trees[0].n_nodes))
            ),
            "categories",
        ),
    ],
)
def test_models_that_would_not_come_back_fail_the_check(ensemble: Ensemble, message: str) -> None:
    with pytest.raises(ModelFileError, match=f"cannot be stored: .*{message}"):
        model_file.check(ensemble)


def test_sets_of_levels_are_checked() -> None:
    ensemble = next(
        e
        for e in (random_ensemble(s, n_iterations=4, n_leaves=8) for s in range(50))
        if any(codes is not None for tree in e.trees for codes in tree.categories)
    )
    number, tree = next((i, t) for i, t in enumerate(ensemble.trees) if any(codes is not None for codes in t.categories))
    for bad in ([0, 0], [1, 0], [-1], [10**6]):
        wrong = tuple(None if codes is None else np.array(bad, np.int32) for codes in tree.categories)
        trees = (*ensemble.trees[:number], replace(tree, categories=wrong), *ensemble.trees[number + 1 :])
        with pytest.raises(ModelFileError, match=f"tree {number}: categories of node [0-9]+ are no ascending levels"):
            model_file.check(replace(ensemble, trees=trees))
        model_file.check(replace(ensemble, trees=trees), n_known=number + 1)
