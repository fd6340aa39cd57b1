"""`partial_fit` of the estimators: models that are updated with a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dboost
from dboost import DBoostClassifier, DBoostRegressor, ParameterError
from tests.helpers.fits import FEATURES, mixed_frame

CHUNKS = [mixed_frame(300, seed) for seed in range(3)]


def test_each_call_goes_on() -> None:
    model = DBoostRegressor(max_iter=5, random_state=0)
    booster = None
    for k, chunk in enumerate(CHUNKS):
        model.partial_fit(chunk[FEATURES], chunk["y"])
        booster = dboost.fit(chunk[[*FEATURES, "y"]], "y", start_from=booster, max_iter=5)
        assert model.booster_ == booster
        assert (model.n_iter_, len(model.booster_.sources)) == (5 * (k + 1), k + 1)
        assert model.train_score_.shape == (model.n_iter_ + 1,) and np.isfinite(model.train_score_).all()
    model.fit(CHUNKS[0][FEATURES], CHUNKS[0]["y"])
    assert model.n_iter_ == 5, "fit begins anew"


@pytest.mark.parametrize("classes", [["high", "low", "middle"], ["low", "high"]])
def test_classes_may_come_later(classes: list[str]) -> None:
    frames = [chunk[chunk["grade"].isin(classes)] for chunk in CHUNKS]
    only = [frames[0][frames[0]["grade"] == "low"], *frames[1:]]
    model = DBoostClassifier(max_iter=60, random_state=0)
    for k, chunk in enumerate(only):
        model.partial_fit(chunk[FEATURES], chunk["grade"], classes=classes if k < 2 else None)
        assert model.classes_.tolist() == sorted(classes)
        proba = model.predict_proba(chunk[FEATURES])
        assert proba.shape == (len(chunk), len(classes)) and np.isfinite(proba).all() and (proba > 0).all()
    assert (model.predict(frames[2][FEATURES]) == frames[2]["grade"]).mean() > 0.6
    with pytest.raises(ParameterError, match="the first call of partial_fit said"):
        model.partial_fit(only[1][FEATURES], only[1]["grade"], classes=["low", "else"])
    with pytest.raises(ValueError, match="'else'"):
        model.partial_fit(only[1][FEATURES], ["else"] * len(only[1]))


def test_columns_must_be_the_same() -> None:
    model = DBoostRegressor(max_iter=2).partial_fit(CHUNKS[0][FEATURES], CHUNKS[0]["y"])
    with pytest.raises(ValueError, match="feature names"):
        model.partial_fit(CHUNKS[1][FEATURES[:-1]], CHUNKS[1]["y"])


def test_estimators_start_from_a_model(tmp_path: Path) -> None:
    X, y = CHUNKS[0][FEATURES], CHUNKS[0]["late"]
    old = DBoostClassifier(max_iter=4, random_state=0).fit(X, y).booster_
    old.save(tmp_path / "old.json")
    new = CHUNKS[1]
    expected = dboost.fit(new[[*FEATURES, "late"]], "late", start_from=old, max_iter=3, source_name="b")
    for start_from in (old, str(tmp_path / "old.json")):
        model = DBoostClassifier(max_iter=3, random_state=0, start_from=start_from, source_name="b")
        assert model.fit(new[FEATURES], new["late"]).booster_ == expected
        assert model.fit(new[FEATURES], new["late"]).n_iter_ == 7, "every fit starts from the same model"
    for wrong in ({"warm_start": True}, {"continue_bins": 1}, {"continue_steps": None}):
        with pytest.raises(ParameterError):
            DBoostClassifier(start_from=old, **wrong).fit(X, y)
    for name, value in (("start_from", old), ("checkpoint", str(tmp_path / "kept"))):
        with pytest.raises(ParameterError, match=f"{name} is for fit"):
            DBoostClassifier(**{name: value}).partial_fit(X, y)


def test_estimators_resume(tmp_path: Path) -> None:
    X, y = CHUNKS[0][FEATURES], CHUNKS[0]["late"]
    settings: dict[str, Any] = {"random_state": 3, "early_stopping": True, "n_iter_no_change": 4, "subsample": 0.8}
    whole = DBoostClassifier(max_iter=60, **settings).fit(X, y)
    for n in (3, 9, 60, 60):
        model = DBoostClassifier(max_iter=n, checkpoint=str(tmp_path), checkpoint_every=2, **settings).fit(X, y)
    assert model.booster_ == whole.booster_
    np.testing.assert_array_equal(model.validation_score_, whole.validation_score_)
    with pytest.raises(ParameterError, match="the rule of early stopping was"):
        DBoostClassifier(max_iter=60, checkpoint=str(tmp_path), **settings | {"n_iter_no_change": 5}).fit(X, y)


def test_a_stream() -> None:
    def stream() -> Any:
        for number, chunk in enumerate(CHUNKS):
            pulled.append(number)
            yield f"chunk {number}", chunk[[*FEATURES, "y"]]

    pulled: list[int] = []
    seen = []
    for booster in dboost.continue_on(stream(), "y", max_iter=4):
        seen.append(booster)
        assert len(pulled) == len(seen), "one chunk at a time"
    assert [booster.n_iter_ for booster in seen] == [4, 8, 12]
    assert [source["label"] for source in seen[-1].sources] == ["chunk 0", "chunk 1", "chunk 2"]
    frames = [chunk[[*FEATURES, "y"]] for chunk in CHUNKS[1:]]
    *_, last = dboost.continue_on(frames, "y", start_from=seen[0], max_iter=4)
    assert np.asarray(last.predict(CHUNKS[0])).tobytes() == np.asarray(seen[-1].predict(CHUNKS[0])).tobytes()
    assert [source["label"] for source in last.sources] == ["chunk 0", None, None]
    pairs = [(frame[FEATURES], frame["y"]) for frame in CHUNKS]
    assert [booster.n_iter_ for booster in dboost.continue_on(pairs, max_iter=2)] == [2, 4, 6]
    assert list(dboost.continue_on(iter([]), "y", start_from=None)) == []
    with pytest.raises(dboost.InputTypeError, match=r"continue_on needs a target, or chunks that are pairs \(X, y\)"):
        list(dboost.continue_on(frames))
    with pytest.raises(dboost.DataError, match=r"chunk 2: .*no column 'y'"):
        list(dboost.continue_on([frames[0], frames[1].drop(columns="y")], "y", max_iter=1))
