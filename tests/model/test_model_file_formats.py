"""The compact form of model files, the schema of the JSON form, and files of earlier versions."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost import Booster
from dboost.errors import ModelFileError
from dboost.model import model_file
from dboost.model.ensemble import Ensemble
from dboost.model.margins import Calibration
from tests.helpers.fits import FEATURES, mixed_frame
from tests.helpers.forests import BY_HAND, SMALL, random_ensemble, same

FILES = Path(__file__).parents[1] / "files"
#: Entries that only some models have.
OPTIONAL = {"width", "calibration", "averages", "target"}
Dumps = Callable[[Ensemble], bytes]


#: Both formats, and the text before the number of the version.
FORMATS = pytest.mark.parametrize(
    ("dumps", "version"),
    [(model_file.dumps, b'"version": '), (model_file.dumps_compact, b"version ")],
    ids=["JSON", "compact"],
)


@FORMATS
@given(st.integers(0, 2**32), st.integers(0, 3), st.sampled_from([1, 2, 20, 40]), st.sampled_from([1, 3]), st.booleans())
def test_round_trip(
    dumps: Dumps, version: bytes, seed: int, n_iterations: int, n_leaves: int, n_outputs: int, with_categories: bool
) -> None:
    ensemble = random_ensemble(seed, n_iterations, n_leaves, n_outputs, with_categories)
    data = dumps(ensemble)
    back = model_file.loads(data)
    assert same(back, ensemble)
    assert dumps(back) == data and model_file.digest(back) == model_file.digest(ensemble)
    assert json.loads(model_file.dumps(ensemble))["sha256"] == model_file.digest(ensemble)


def test_the_name_decides_and_the_content_is_recognised(tmp_path: Path) -> None:
    frame = mixed_frame(300)
    booster = dboost.fit(frame[[*FEATURES, "grade"]], "grade", max_iter=20, min_samples_leaf=5)
    names = ("model.dboost", "model.json.gz", "model.dboost.gz")
    for place in (*(tmp_path / name for name in names), "memory://forms/model.dboost"):
        booster.save(place)
        again = dboost.load(place)
        assert again == booster and again.sha256 == booster.sha256
        assert np.array_equal(again.predict_proba(frame), booster.predict_proba(frame))
    booster.save(tmp_path / "model.json")
    for name in ("model.json", "model.dboost"):
        compressed = (tmp_path / f"{name}.gz").read_bytes()
        assert gzip.decompress(compressed) == (tmp_path / name).read_bytes()
        for damaged, complaint in (
            (compressed[:-9], "too early"),
            (compressed[:9], "too early"),
            (compressed + b"x", "more in"),
        ):
            with pytest.raises(ModelFileError, match=f"model.gz is damaged or cut short: .*{complaint}"):
                model_file.loads(damaged, "model.gz")
    assert len(compressed) < 2 * (tmp_path / "model.dboost").stat().st_size
    assert (tmp_path / "model.json").stat().st_size > 2.5 * (tmp_path / "model.dboost").stat().st_size
    (tmp_path / "model.dboost").rename(tmp_path / "renamed.json")
    assert dboost.load(tmp_path / "renamed.json") == booster


@FORMATS
def test_any_flipped_bit_any_cut_and_any_addition_is_noticed(dumps: Dumps, version: bytes) -> None:
    whole = dumps(replace(SMALL, trees=SMALL.trees[:1]))
    for position in range(len(whole)):
        for bit in (1, 4, 32, 128):
            damaged = bytearray(whole)
            damaged[position] ^= bit
            with pytest.raises(ModelFileError, match="some file"):
                model_file.loads(bytes(damaged), "some file")
        with pytest.raises(ModelFileError, match="some file"):
            model_file.loads(whole[:position], "some file")
    for position in range(len(whole) + 1):
        for more in (b"\n", b"x", b" ", whole):
            with pytest.raises(ModelFileError):
                model_file.loads(whole[:position] + more + whole[position:])


@FORMATS
def test_a_newer_format_is_refused(dumps: Dumps, version: bytes) -> None:
    newer = model_file.VERSION + 1
    data = dumps(SMALL).replace(version + b"1", version + b"%d" % newer, 1)
    with pytest.raises(ModelFileError, match=rf"model has format version {newer}.* newer dboost"):
        model_file.loads(data, "model")


def forged(content: bytes) -> bytes:
    """A file with changed contents and a correct checksum."""
    packed = zlib.compress(content)
    return b"dboost arrays, version 1\n" + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed


def contents() -> bytes:
    return zlib.decompress(model_file.dumps_compact(BY_HAND).split(b"\n", 2)[2])


def test_a_forgery_without_a_change_is_read() -> None:
    assert same(model_file.loads(forged(contents())), BY_HAND)


@given(st.data())
def test_whatever_is_forged_is_refused_or_valid(data: Any) -> None:
    """A changed byte with a correct checksum: an error, or a model that is saved and read like any other."""
    content = bytearray(contents())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        model = model_file.loads(forged(bytes(content)))
    except ModelFileError:
        return
    assert same(model_file.loads(model_file.dumps_compact(model)), model)
    rows = np.zeros((3, len(model.features)))
    assert Booster(model)._flat.raw_scores(rows).shape == (3, 1)


@given(st.integers(0, 600))
def test_what_is_cut_before_it_is_packed_is_refused(length: int) -> None:
    content = contents()
    with pytest.raises(ModelFileError):
        model_file.loads(forged(content[: min(length, len(content) - 1)]))
    with pytest.raises(ModelFileError, match="more in it"):
        model_file.loads(forged(content + b"x"))


@pytest.mark.parametrize("header", [{}, [], {"trees": -1}, {"trees": 10**12}, {"trees": 1, "features": 3}, {"trees": True}])
def test_headers_that_are_none(header: Any) -> None:
    text = json.dumps(header).encode()
    with pytest.raises(ModelFileError, match="does not hold a valid model"):
        model_file.loads(forged(len(text).to_bytes(8, "little") + text + b"\1\0\0\0" * 30))


def test_what_is_not_compressed_is_refused() -> None:
    data = b"no zlib"
    with pytest.raises(ModelFileError, match="cannot be decompressed"):
        model_file.loads(b"dboost arrays, version 1\n" + hashlib.sha256(data).hexdigest().encode() + b"\n" + data)


def test_a_bomb_is_refused_before_it_fills_the_memory() -> None:
    """A few kilobytes that would expand to 96 MiB: of a header, or of one-leaf trees."""
    text = json.dumps({"trees": 1 << 24}).encode()
    endless, many = (1 << 26).to_bytes(8, "little"), len(text).to_bytes(8, "little") + text
    for beginning, rest in ((endless, b" " * (1 << 20)), (many, b"\1" * (1 << 20))):
        compressor = zlib.compressobj(1)
        packed = compressor.compress(beginning) + b"".join(compressor.compress(rest) for _ in range(96)) + compressor.flush()
        bomb = b"dboost arrays, version 1\n" + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed
        assert len(bomb) < 1 << 20
        bombs = (bomb, gzip.compress(b" " * (96 << 20)))
        tracemalloc.start()
        try:
            for data in bombs:
                with pytest.raises(ModelFileError, match=r"bomb.dboost .*: .* decompress to more than"):
                    model_file.loads(data, "bomb.dboost")
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        finally:
            tracemalloc.stop()


def test_what_is_cut_or_lengthened_after_it_is_packed_is_refused() -> None:
    packed = zlib.compress(contents())
    for changed, complaint in ((packed[:-3], "ends too early"), (packed + b"x", "more in it than its compressed content")):
        digest = hashlib.sha256(changed).hexdigest().encode()
        with pytest.raises(ModelFileError, match=complaint):
            model_file.loads(b"dboost arrays, version 1\n" + digest + b"\n" + changed)


def test_models_that_hardly_take_room_are_written_so_that_they_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal trees of one leaf compress to a fortieth: more than a reader allows of a file that is not small."""
    leaf = random_ensemble(0, n_iterations=1, n_leaves=1).trees[0]
    model = replace(SMALL, trees=(leaf,) * 2000)
    compressed = model_file.dumps_compact(model)
    monkeypatch.setattr(model_file, "_SMALL", 50_000)
    with pytest.raises(ModelFileError, match="decompress to more than"):
        model_file.loads(compressed)
    data = model_file.dumps_compact(model)
    assert len(data) > 2000 * 40 > 10 * len(compressed)
    assert len(model_file.loads(data).trees) == 2000


def test_files_of_version_1_keep_loading() -> None:
    """Written by the first version of the format: the meaning of their contents may never change."""
    of_json = (FILES / "model-1.json").read_bytes()
    of_arrays = base64.b64decode((FILES / "model-1.dboost.base64").read_text())
    expected = json.loads((FILES / "model-1.predictions.json").read_text())
    for data in (of_json, of_arrays):
        booster = Booster(model_file.loads(data))
        assert np.asarray(booster.predict_proba(pd.DataFrame(expected["rows"]))).tolist() == expected["probabilities"]
        assert booster.history["train_loss"].tolist() == expected["train_loss"]


def test_the_schema_says_what_is_written() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = model_file.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    frame = mixed_frame(200)
    fitted = dboost.fit(frame[[*FEATURES, "grade"]], "grade", max_iter=2, eval_set=frame, early_stopping_rounds=5)
    for ensemble in (SMALL, BY_HAND, random_ensemble(3, n_outputs=3), fitted.ensemble):
        content = json.loads(model_file.dumps(ensemble))
        validator.validate(content)
        assert set(schema["required"]) == set(content) - {"target"} == set(schema["properties"]) - OPTIONAL
    for margins in (Calibration(0.9, 20, 1.5), Calibration(0.9, 20, 1.5, "town", ("Gent", "Mons"), (1.0, 2.0))):
        validator.validate(json.loads(model_file.dumps(replace(SMALL, calibration=margins, target_name="y"))))
    for change in ({"version": 99}, {"more": 1}, {"baseline": []}, {"classes": [None]}, {"trees": [{}]}):
        assert not validator.is_valid(json.loads(model_file.dumps(BY_HAND)) | change), change
