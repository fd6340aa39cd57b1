"""Damaged models of every kind are refused in one sentence, or predict what their content says.

Each mutant is a valid file with one or two entries changed and, for the own formats, a right digest. An accepted mutant is
compared: own models with a walk over the JSON, imported ones with the library that they come from.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import Booster
from dboost.cli import main
from dboost.errors import DataError, DBoostError, ModelFileError, ParameterError
from dboost.interop.ubjson import parse_ubjson
from dboost.model import model_file
from tests.helpers.peers import Peers

NAN = math.nan
HOSTILE: list[Any] = [
    -1, -2, 0, 1, 2, 7, 2**31, 2**63, 10**30, NAN, math.inf, -math.inf, -0.5, 1.5, 1e300, None, True, False, "", "x", "-1",
    "1e9", "nan", "0", "../x", [], {}, [[]], [0], {"a": 1},
]  # fmt: skip


def places(entries: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all items in nested lists and mappings."""
    inner = entries.items() if isinstance(entries, dict) else enumerate(entries) if isinstance(entries, list) else ()
    return [place for key, value in inner for place in [(*way, key), *places(value, (*way, key))]]


def mutant(entries: Any, rng: random.Random) -> Any:
    """Return a copy with one item changed; every entry of a table is as likely as another one, however long lists are."""
    entries = copy.deepcopy(entries)
    at, way = entries, []
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        way.append(rng.choice(list(keys)))
        below = at[way[-1]]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.1:
            break
        at = below
    how = rng.choice(["put", "put", "put", "swap", "remove", "twice"])
    if how == "put" or (how == "swap" and isinstance(at, dict)):
        at[way[-1]] = rng.choice(HOSTILE)
    elif how == "swap":
        other = rng.choice(list(keys))
        at[way[-1]], at[other] = at[other], at[way[-1]]
    elif how == "remove" or isinstance(at, dict):
        del at[way[-1]]
    else:
        at.insert(way[-1], at[way[-1]])
    return entries


@cache
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    data = pd.DataFrame(rng.normal(size=(200, 3)), columns=["a", "b", "c"])
    data.loc[::7, "b"] = np.nan
    data["d"] = pd.Categorical(rng.integers(0, 5, 200))
    return data.assign(y=(data["a"] * data["c"] + (data["d"] == 2) > 0).astype(int))


@cache
def rows() -> np.ndarray:
    """Rows for the peers: categories as codes."""
    data = frame()
    return np.column_stack([data["a"], data["b"], data["c"], data["d"].cat.codes.to_numpy(float)])


@cache
def own() -> dict[str, Any]:
    """The content of a model of three classes with everything that a fit writes."""
    classes = frame().assign(y=frame()["y"] + (frame()["a"] > 1))
    booster = dboost.fit(
        classes, "y", loss="log_loss", max_iter=3, max_leaf_nodes=4, max_bins=6, eval_set=classes, early_stopping_rounds=3,
        source_name="first", arcbites={"n_bites": 2, "trees_per_visit": 2}, progress=False,
    )  # fmt: skip
    return json.loads(b"{" + model_file.dumps(replace(booster.ensemble, target_name=None)).split(b"\n", 4)[4])


def in_json(entries: Any) -> bytes:
    content = json.dumps(entries)[1:].encode()
    return f'{{\n "format": "dboost",\n "version": 1,\n "sha256": "{hashlib.sha256(content).hexdigest()}",\n'.encode() + content


def in_arrays(entries: Any) -> bytes:
    """The header of the compact form is changed, its arrays are not."""
    whole = zlib.decompress(model_file.dumps_compact(model_file.loads(in_json(own()))).split(b"\n", 2)[2])
    text = json.dumps(entries | {"trees": len(own()["trees"])} if "trees" in entries else entries).encode()
    packed = zlib.compress(len(text).to_bytes(8, "little") + text + whole[8 + int.from_bytes(whole[:8], "little") :])
    return b"dboost arrays, version 1\n" + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed


def walked(content: dict[str, Any], matrix: np.ndarray) -> np.ndarray:
    """Raw scores by a walk over the JSON of a model: a split is followed by its left subtree, then by its right one."""
    k = len(content["baseline"])
    scores = np.tile(np.array(content["baseline"]), (len(matrix), 1))
    numbers = {"Infinity": math.inf, "-Infinity": -math.inf}
    for number, tree in enumerate(content["trees"]):
        for i, row in enumerate(matrix):
            node = 0
            while (feature := tree["feature"][node]) >= 0:
                value, threshold = row[feature], tree["threshold"][node]
                codes = tree["categories"].get(str(node))
                unknown = math.isnan(value) or (codes is not None and value >= len(content["features"][feature]["levels"]))
                if unknown:
                    left = bool(tree["missing_left"][node])
                else:
                    left = value <= numbers.get(threshold, threshold) if codes is None else int(value) in codes
                node += 1
                if not left:
                    missing = 1  # skip the left subtree
                    while missing:
                        missing += 1 if tree["feature"][node] >= 0 else -1
                        node += 1
            scores[i, number % k] += tree["value"][node]
    return scores


def use(booster: Booster) -> None:
    """Call what reads the entries of a model."""
    booster.history, booster.sources, repr(booster), booster._repr_html_(), booster.to_frame()
    booster.importance(), booster.expected_value, booster.classes_
    booster.truncate(min(1, booster.n_iter_)), booster.truncate(0)
    assert Booster(model_file.loads(model_file.dumps(booster.ensemble))) == booster
    assert copy.deepcopy(booster) == booster
    for call in (
        lambda: booster.drop_source(0), lambda: booster.drift(frame()), lambda: booster.shap_values(frame()[:3]),
        lambda: booster.loss, lambda: booster.refit_leaves(frame(), "y"),
    ):  # fmt: skip
        with contextlib.suppress(DBoostError):
            call()


@pytest.mark.parametrize("form", [in_json, in_arrays])
@pytest.mark.parametrize("n", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_own_models(n: int, form: Callable[[Any], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, matrix, found = random.Random(n), rows()[:40], Counter[str]()
    path = tmp_path / "model.json"
    for draw in range(n):
        entries = mutant(own(), rng)
        if rng.random() < 0.2:
            entries = mutant(entries, rng)
        path.write_bytes(form(entries))
        try:
            booster = dboost.load(path)
        except ModelFileError as error:
            assert str(path) in str(error), draw
            found["refused"] += 1
            if draw % 5 == 0:
                assert main(["inspect", str(path)]) == 2, draw
                printed = capsys.readouterr().err
                assert printed.startswith("dboost: ") and printed.count("\n") == 1, draw
            continue
        found["accepted"] += 1
        if form is in_json:
            np.testing.assert_allclose(booster._flat.raw_scores(matrix), walked(entries, matrix), rtol=1e-12, atol=1e-12)
        if draw % 5 == 0:
            use(booster)
            assert main(["inspect", str(path)]) == 0, (draw, capsys.readouterr().err)
            assert main(["inspect", "--json", str(path)]) == 0, draw
            capsys.readouterr()
    assert found["refused"] > n / 4 and found["accepted"] > n / 50, found


@pytest.mark.parametrize("kind", ["plain", "arcbites"])
@pytest.mark.parametrize("n", [25, pytest.param(200, marks=pytest.mark.slow)])
def test_checkpoints(n: int, kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "max_iter": 4, "max_leaf_nodes": 4, "max_bins": 6, "eval_set": frame(), "early_stopping_rounds": 3, "progress": False,
    }  # fmt: skip
    if kind == "arcbites":
        options["arcbites"] = {"n_bites": 2, "trees_per_visit": 1, "visits": 3}
    whole = dboost.fit(frame(), "y", **options)
    options |= {"checkpoint": tmp_path, "checkpoint_every": 1}
    dboost.fit(frame(), "y", callbacks=lambda now: now.iteration >= 3, **options)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    head, _, content = files["state.json"].partition(b"\n")
    state, rng, found = json.loads(b"{" + content), random.Random(n), Counter[str]()
    for draw in range(n):
        changed = mutant(state, rng)
        text = json.dumps(changed)[1:].encode()
        for path in tmp_path.iterdir():
            path.unlink()
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        digest = f'"sha256": "{hashlib.sha256(text).hexdigest()}",\n'.encode()
        (tmp_path / "state.json").write_bytes(head[: head.index(b'"sha256"')] + digest + text)
        try:
            resumed = dboost.fit(frame(), "y", **options)
        except (DataError, ModelFileError, ParameterError) as error:
            assert str(tmp_path) in str(error), draw
            found["refused"] += 1
            continue
        found["accepted"] += 1
        # Recorded metrics are the only entries that cannot be verified.
        assert resumed.ensemble.n_iterations <= 4 and state["identity"]["data"] == changed["identity"]["data"], draw
        if changed["history"] == state["history"] and changed["before"] == state["before"]:
            assert resumed == whole, draw
    assert found["refused"] > n / 2, found


def of_xgboost() -> Any:
    xgboost = pytest.importorskip("xgboost")
    data = frame()
    settings = {"max_depth": 3, "max_cat_to_onehot": 2, "objective": "binary:logistic", "nthread": 1}
    return xgboost.train(settings, xgboost.DMatrix(data[["a", "b", "c", "d"]], data["y"], enable_categorical=True), 3)


def of_lightgbm() -> str:
    lightgbm = pytest.importorskip("lightgbm")
    settings = {
        "num_leaves": 6, "verbose": -1, "objective": "binary", "num_threads": 1, "min_data_per_group": 5, "cat_smooth": 1.0,
        "min_data_in_leaf": 5,
    }  # fmt: skip
    data = lightgbm.Dataset(rows(), frame()["y"], categorical_feature=[3], params=settings)
    text = lightgbm.train(settings, data, 3).model_to_string()
    return re.sub("tree_sizes=.*\n", "", text)  # the optional lengths of the trees' text, by which LightGBM refuses any change


def of_text(text: str, rng: random.Random) -> str:
    """Return a text with a changed line: removed, repeated, cut, or with another value."""
    lines = text.split("\n")
    i = rng.choice([i for i, line in enumerate(lines) if "=" in line][:70])
    how = rng.choice(["remove", "repeat", "cut", "put", "put", "put", "put"])
    if how == "remove":
        del lines[i]
    elif how == "repeat":
        lines.insert(i, lines[i])
    elif how == "cut":
        lines[i] = " ".join(lines[i].split(" ")[:-1])
    else:
        name, _, values = lines[i].partition("=")
        words = values.split(" ")
        hostile = ["-1", "-9", "0", "1", "2", "3", "nan", "inf", "-inf", "1e30", "0.5", "99999999999", "2147483648", "x", ""]
        words[rng.randrange(len(words))] = rng.choice(hostile)
        lines[i] = f"{name}={' '.join(words)}"
    return "\n".join(lines)


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return data with a flipped bit, another byte, or without an end."""
    i = rng.randrange(len(data))
    how = rng.choice(["flip", "flip", "put", "cut"])
    if how == "cut":
        return data[:i]
    return (
        data[:i]
        + bytes([data[i] ^ (1 << rng.randrange(8)) if how == "flip" else rng.choice(b"\x00\xff[]{}iLSdD#$")])
        + data[i + 1 :]
    )


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    pytest.importorskip("xgboost")
    pytest.importorskip("lightgbm")
    with Peers(tmp_path_factory.mktemp("peers"), rows()) as found:
        yield found


def compare(peers: Peers, path: Path, whole: bytes, change: Callable[[random.Random], bytes], n: int) -> None:
    """Compare `n` mutants of an imported model with the library."""
    library, read = ("lightgbm", dboost.from_lightgbm) if path.suffix == ".txt" else ("xgboost", dboost.from_xgboost)
    found, rng, matrix = Counter[str](), random.Random(n), rows()
    path.write_bytes(whole)

    def ours() -> np.ndarray:
        booster = read(path)
        if rng.random() < 0.1:
            use(booster)
        if library == "lightgbm":  # the numbers in the rows are levels, which may have other positions
            return booster.predict(matrix, raw_score=True)
        return booster._flat.raw_scores(matrix).squeeze()

    original = ours()
    np.testing.assert_allclose(original, peers.raw_scores(library, path), rtol=1e-4, atol=1e-5)
    for draw in range(n):
        path.write_bytes(change(rng))
        try:
            scores = ours()
        except (ModelFileError, ParameterError) as error:
            assert "\n" not in str(error)
            found["refused"] += 1
            continue
        theirs = peers.raw_scores(library, path)
        found["accepted"] += 1
        # What the library refuses must be without influence.
        expected = original if theirs is None else theirs
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5, err_msg=f"{library} {draw}")
    assert found["refused"] > n / 10 and found["accepted"] > n / 20, found


@pytest.mark.parametrize("n", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_models_of_xgboost_in_json(n: int, peers: Peers, tmp_path: Path) -> None:
    whole = bytes(of_xgboost().save_raw("json"))
    content = json.loads(whole)
    compare(peers, tmp_path / "m.json", whole, lambda rng: json.dumps(mutant(content, rng)).encode(), n)


@pytest.mark.parametrize("n", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_models_of_xgboost_in_binary_form(n: int, peers: Peers, tmp_path: Path) -> None:
    whole = bytes(of_xgboost().save_raw("ubj"))
    compare(peers, tmp_path / "m.ubj", whole, lambda rng: of_bytes(whole, rng), n)


@pytest.mark.parametrize("n", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_models_of_lightgbm(n: int, peers: Peers, tmp_path: Path) -> None:
    text = of_lightgbm()
    compare(peers, tmp_path / "m.txt", text.encode(), lambda rng: of_text(text, rng).encode(), n)


def test_binary_form_of_xgboost_is_read_like_json() -> None:
    booster = of_xgboost()
    assert parse_ubjson(b"[$d#U\x02\x3f\x80\x00\x00\x3f\x00\x00\x00") == [1.0, 0.5]
    binary, text = parse_ubjson(bytes(booster.save_raw("ubj"))), json.loads(bytes(booster.save_raw("json")))
    assert places(binary) == places(text)
    for damaged in (
        b"",
        b"{",
        b"[",
        b"{U\x05ab",
        b"[$d#L\x7f" + b"\xff" * 7,
        b"[#l\xff\xff\xff\xff",
        b"q",
        b"[" * 1000,
        b"[]x",
    ):
        with pytest.raises(ValueError):
            parse_ubjson(damaged)
