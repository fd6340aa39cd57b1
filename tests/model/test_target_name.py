"""The name of the target in the file of a model: it survives, and is no part of what the model is."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.errors import ModelFileError
from dboost.model import model_file
from tests.helpers.forests import SMALL

NAMES = ["y", "", "größe 1", 'a "quoted" name', "back\\slash", "two\nlines", "😀", '"}\n', "x" * 3000]
DUMPS = pytest.mark.parametrize("dumps", [model_file.dumps, model_file.dumps_compact], ids=["JSON", "compact"])


def rows(n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n, 2)), columns=["a", "b"])
    return frame.assign(y=frame["a"] + frame["b"])


@DUMPS
@pytest.mark.parametrize("name", [*NAMES, None])
def test_the_name_survives_and_does_not_change_the_digest(dumps: object, name: str | None) -> None:
    ensemble = replace(SMALL, target_name=name)
    data = dumps(ensemble)  # type: ignore[operator]
    again = model_file.loads(data)
    assert again.target_name == name and dumps(again) == data  # type: ignore[operator]
    assert model_file.digest(again) == model_file.digest(SMALL)
    assert dumps(replace(again, target_name=None)) == dumps(SMALL)  # type: ignore[operator]
    if data.startswith(b"{"):
        content = json.loads(data)
        assert content["sha256"] == model_file.digest(SMALL) and content.get("target", {}).get("name") == name


@DUMPS
def test_damage_of_the_name_is_detected(dumps: object) -> None:
    data = dumps(replace(SMALL, target_name="größe"))  # type: ignore[operator]
    line = data[: data.index(model_file.digest(SMALL).encode()) if data.startswith(b"{") else data.index(b'"}\n') + 3]
    for position in range(len(line)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(ModelFileError):
            model_file.loads(bytes(damaged))
    start, end = line.index(b'{"name"'), line.rindex(b"}") + 1
    for name in (b'"\xff"', b'"a", "b"', b'"\\q"'):
        digest = hashlib.sha256(name).hexdigest().encode()
        with pytest.raises(ModelFileError, match="name of the target"):
            model_file.loads(data[:start] + b'{"name": %b, "sha256": "%b"}' % (name, digest) + data[end:])


def test_the_name_is_that_of_the_fit(tmp_path: Path) -> None:
    """Of its last fit, in all models that are derived from it."""
    frame = rows()
    X, y = frame[["a", "b"]], frame["y"]
    named = dboost.fit(frame, "y", max_iter=4)
    for path in (tmp_path / "model.json", tmp_path / "model.dboost", tmp_path / "model.json.gz"):
        named.save(path)
        assert dboost.load(path).target_name == "y"
    derived = [named, pickle.loads(pickle.dumps(named)), named.truncate(2), named.refit_leaves(frame, "y")]
    continued = dboost.fit(frame.rename(columns={"y": "z"}), "z", max_iter=2, start_from=named)
    assert [model.target_name for model in derived] == ["y"] * 4 and continued.target_name == "z"
    assert [model.target_name for model in dboost.cv(frame, "y", folds=3, max_iter=2).boosters] == ["y"] * 3
    values = dboost.fit(X, y, max_iter=4)
    assert values.target_name is None and values == named and values.sha256 == named.sha256
    assert dboost.fit(frame, "y", max_iter=4, keep_summary=False).target_name is None
    assert dboost.fit(frame.assign(z=y), ["y", "z"], max_iter=2).target_name is None
