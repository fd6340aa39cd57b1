"""Drift: data that differ from the training data are detected, and other data are not."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, ks_2samp

import dboost
from dboost import DataError, DriftWarning, ModelFileError, ParameterError
from dboost.model import data_summary, model_file
from dboost.model.data_summary import LEVELS, MOST_BINS, Distribution, LevelDistribution, NumberDistribution, Summary
from dboost.model.ensemble import FlatEnsemble
from dboost.session import reference_sample
from tests.helpers.examples import examples
from tests.helpers.fits import FEATURES, cut, mixed_frame, saved

OLD, NEW = mixed_frame(2000), mixed_frame(1000, seed=1)
STRANGE = NEW.assign(x=NEW["x"] + 1, town=NEW["town"].replace("Gent", "Arlon"), age=NEW["age"].where(NEW["age"] > 40))


@pytest.fixture(scope="module")
def model() -> dboost.Booster:
    return dboost.fit(OLD, "grade", features=FEATURES, max_iter=5, source_name="old")


# The statistics.


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8))
@examples(50, deadline=None)
def test_the_index_is_that_of_a_naive_twin(counts: list[tuple[int, int]]) -> None:
    used = [(p, q) for p, q in counts if p or q]
    n, m = sum(p for p, _ in used), sum(q for _, q in used)
    expected = 0.0
    if len(used) > 1 and n and m:
        for p, q in used:
            a, b = (p + 0.5) / (n + 0.5 * len(used)), (q + 0.5) / (m + 0.5 * len(used))
            expected += (b - a) * math.log(b / a)
    before, after = (np.array(column, np.int64) for column in zip(*counts, strict=True))
    assert data_summary.stability_index(before, after) == pytest.approx(expected, rel=1e-12)
    assert data_summary.stability_index(after, before) == pytest.approx(expected, rel=1e-12)


def test_chance_is_the_chi_square_quantile() -> None:
    for groups in (2, 5, 20, 100):
        before, after = np.full(groups, 50), np.full(groups, 7)
        expected = chi2.ppf(0.999, groups - 1) * (1 / before.sum() + 1 / after.sum())
        assert data_summary.chance(before, after) == pytest.approx(expected, rel=0.08 if groups == 2 else 0.02)


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("n", [20, 100, 1000])
@pytest.mark.parametrize("values", [5, 10**9])
def test_samples_of_one_population_do_not_drift(n: int, values: int) -> None:
    rng = np.random.default_rng(n)
    results = []
    for _ in range(200):
        before, after = rng.integers(0, values, 1500).astype(float), rng.integers(0, values, n).astype(float)
        for known in (NumberDistribution.of(before), LevelDistribution.of(before % 50, 50)):
            found = known.compare(known.tally(after if isinstance(known, NumberDistribution) else after % 50))
            results.append(found["drift"])
    assert "strong" not in results and results.count("moderate") <= 2


def test_the_distance_is_kolmogorovs_on_the_grid() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=3000), rng.normal(0.4, 1.2, size=2000)
    known = NumberDistribution.of(before)
    found = known.compare(known.tally(after))
    exact = ks_2samp(before, after).statistic
    assert exact - 1 / MOST_BINS < found["distance"] <= exact + 1e-12
    assert found["drift"] != "none"
    assert found["outside"] == ((after < before.min()) | (after > before.max())).mean()


def test_numbers_in_groups() -> None:
    known = NumberDistribution.of(np.array([1.0, 1.0, 2.0, np.nan, 3.0]))
    assert known.counts.tolist() == [2, 1, 1] and known.missing == 1 and (known.low, known.high) == (1.0, 3.0)
    assert known.tally(np.array([0.0, 1.4, 2.0, 9.0, np.nan, np.inf])).tolist() == [1, 1, 0, 1, 1, 2, 0]
    nothing = NumberDistribution.of(np.full(3, np.nan))
    assert nothing.compare(nothing.tally(np.full(30, np.nan)))["drift"] == "none"
    assert nothing.compare(nothing.tally(np.arange(300.0)))["drift"] == "strong", "values where there were none"


def test_values_outside_the_range_are_a_group() -> None:
    """As of a column that is constant in one batch and another constant in the next, such as the month."""
    constant = NumberDistribution.of(np.full(500, 4.0))
    for values, drift in ((4.0, "none"), (5.0, "strong"), (3.0, "strong")):
        found = constant.compare(constant.tally(np.full(400, values)))
        assert (found["drift"], found["outside"], found["distance"]) == (drift, float(values != 4.0), float(values != 4.0))


def test_levels_in_groups() -> None:
    rng = np.random.default_rng(1)
    codes = rng.zipf(1.3, 20_000) % 500.0
    known = LevelDistribution.of(codes, 500)
    assert len(known.codes) == LEVELS and known.counts.sum() == 20_000
    frequent = {
        int(code) for code, _ in sorted(zip(*np.unique(codes, return_counts=True), strict=True), key=lambda t: -t[1])[:90]
    }
    assert frequent <= set(known.codes.tolist())
    tally = known.tally(np.array([known.codes[3], 499.0, 500.0, 700.0, np.nan]))
    assert tally[3] == 1 and tally[LEVELS] == 1 - (499 in known.codes) and tally[-4:].tolist() == [1, 0, 0, 2]
    few = LevelDistribution.of(np.array([2.0, 2.0, np.nan]), 4)
    assert few.codes.tolist() == [2] and few.counts.tolist() == [2, 0]


@pytest.mark.parametrize("values", [np.arange(100.0) % 7, np.full(3, np.nan), np.array([1e300, -1e300, 5e-324])])
def test_a_distribution_survives_json(values: np.ndarray) -> None:
    for known in (NumberDistribution.of(values), LevelDistribution.of(np.abs(values) % 3, 3)):
        again = Distribution.from_dict(json.loads(json.dumps(known.to_dict(), allow_nan=False)))
        for one, other in zip(vars(known).values(), vars(again).values(), strict=True):
            np.testing.assert_array_equal(one, other)


# The model's summary.


def test_a_summary_is_of_all_rows_of_a_small_table(model: dboost.Booster) -> None:
    summary = reference_sample.summary_of(model.ensemble)
    assert summary is not None
    scores = np.asarray(model.predict(OLD, raw_score=True))
    for j, name in enumerate(FEATURES):
        of_feature = summary.features[j]
        assert of_feature.missing == OLD[name].isna().sum()
        assert of_feature.counts.sum() == OLD[name].notna().sum()
    for k in range(3):
        assert (summary.scores[k].low, summary.scores[k].high) == (scores[:, k].min(), scores[:, k].max())
    assert summary.target.counts[:-1].tolist() == OLD["grade"].value_counts().loc[model.classes_].tolist()
    assert "summary" not in model.sources[0]
    per_feature = len(model_file.dumps(model.ensemble)) / len(FEATURES)
    assert len(json.dumps(model.ensemble.sources[0]["summary"])) / (len(FEATURES) + 4) < 1000 < per_feature


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "target"),
    [("cluster", "grade"), ("bites", "y"), ("files with weights", "grade")],
)
def test_the_file_is_the_same_wherever_the_rows_are(
    target: str, kind: str, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reference_sample, "ROWS", 300)  # so that rows are sampled
    options: dict[str, Any] = {"features": FEATURES, "max_iter": 3}
    if kind == "bites":
        options |= {"arcbites": dboost.ArcBites(n_bites=3, trees_per_visit=1)}
    elif kind.endswith("weights"):
        options |= {"sample_weight": "w"}
    whole = dboost.fit(OLD, target, **options)
    summary = whole.ensemble.sources[0]["summary"]
    n = sum(summary["features"][0]["counts"]) + summary["features"][0]["missing"]
    assert 200 < n < 400
    lazy = cut(OLD, [20, 20, 900])
    if kind == "bites":
        assert saved(dboost.fit(lazy, target, n_threads=1, **options)) == saved(whole)
    elif kind == "cluster":
        assert saved(dboost.fit(lazy, target, client=client, **options)) == saved(whole)
    else:
        assert saved(dboost.fit(lazy, target, memory_limit=64 * 10**6, **options)) == saved(whole)
        roles = {"sample_weight": options.pop("sample_weight"), "features": options.pop("features")}
        dboost.prepare(lazy, target, tmp_path / "binned", **roles)
        assert saved(dboost.fit(tmp_path / "binned", target, **options)) == saved(whole)


def test_early_stopping_and_callbacks_summarise_what_is_kept() -> None:
    booster = dboost.fit(OLD, "late", features=FEATURES, max_iter=40, eval_set=NEW, early_stopping_rounds=2, learning_rate=0.9)
    assert booster.n_iter_ < len(booster.history)
    summary = reference_sample.summary_of(booster.ensemble)
    assert summary is not None
    scores = np.asarray(booster.predict(OLD, raw_score=True))
    assert (summary.scores[0].low, summary.scores[0].high) == (scores.min(), scores.max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sample_is_scored_in_the_float_type_of_the_table(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the fit and predictions for its table use the same compiled kernel."""
    scored, raw_scores = [], FlatEnsemble.raw_scores

    def note(self: FlatEnsemble, matrix: np.ndarray, *arguments: Any, **options: Any) -> np.ndarray:
        scored.append((matrix.dtype, raw_scores(self, matrix.astype(np.float64))))
        assert (scored[-1][1] == raw_scores(self, matrix)).all()
        return raw_scores(self, matrix, *arguments, **options)

    monkeypatch.setattr(FlatEnsemble, "raw_scores", note)
    table = np.random.default_rng(0).normal(0, 1, (400, 3)).astype(dtype)
    table[:50, 1], table[:20, 2] = np.nan, 1e300 if dtype == "float64" else 1e38
    booster = dboost.fit(table, table[:, 0], max_iter=5)
    booster.predict(table)
    assert [one for one, _ in scored] == [np.dtype(dtype)] * 2
    summary = reference_sample.summary_of(booster.ensemble)
    assert summary is not None
    assert (summary.scores[0].low, summary.scores[0].high) == (scored[0][1].min(), scored[0][1].max())


# `Booster.drift`.


def test_what_drifted_comes_first(model: dboost.Booster) -> None:
    found = model.drift(STRANGE, "grade", source="old")
    features = found[found["what"] == "feature"].set_index("name")
    assert set(features.index) == set(FEATURES)
    assert set(features.index[:3]) == {"x", "town", "age"} and (features["drift"].iloc[:3] == "strong").all()
    assert (features["drift"].iloc[3:] == "none").all()
    assert features.loc["town", "unseen"] == (STRANGE["town"] == "Arlon").mean()
    assert features.loc["age", "missing"] == STRANGE["age"].isna().mean()
    assert features.loc["age", "missing_before"] == OLD["age"].isna().mean()
    assert features.loc["x", "outside"] == ((STRANGE["x"] > OLD["x"].max()) | (STRANGE["x"] < OLD["x"].min())).mean()
    assert features["unseen"].isna().equals(features["outside"].notna())
    assert found["name"].tolist().count("target") == 1 and (found["what"] == "score").sum() == 3
    assert found.attrs == {"source": "old", "rows_before": 2000, "rows": 1000}
    excess = found["psi"] - found["chance"]
    assert excess.is_monotonic_decreasing
    assert (model.drift(NEW, NEW["grade"]).query("what != 'score'")["drift"] == "none").all()


def test_targets_of_lazy_frames_and_arrays(model: dboost.Booster) -> None:
    expected = model.drift(STRANGE, "grade")
    lazy = cut(STRANGE, [3, 3, 600])
    assert model.drift(lazy, "grade").equals(expected)
    with pytest.raises(ParameterError, match="name the column"):
        model.drift(lazy, lazy["grade"])
    assert model.drift(STRANGE.iloc[:, ::-1]).equals(expected[expected["what"] != "target"].reset_index(drop=True))
    X = np.random.default_rng(0).normal(size=(500, 3))
    of_array = dboost.fit(X, X[:, 0], max_iter=2)
    moved = of_array.drift(X + np.array([0, 0, 3]))
    assert moved.loc[0, "name"] == "f2" and moved.loc[0, "drift"] == "strong"
    assert of_array.drift(X, X[:, 0]).query("what == 'target'")["psi"].item() == 0.0


def test_what_cannot_be_told(model: dboost.Booster) -> None:
    with pytest.raises(DataError, match=r"drift: .*no column 'x'"):
        model.drift(NEW.drop(columns="x"))
    with pytest.raises(DataError, match="no rows"):
        model.drift(NEW.iloc[:0])
    with pytest.raises(DataError, match=r"partition [12]: column 'x' holds text"):
        model.drift(cut(NEW.assign(x=NEW["x"].astype(str)), [0, 500]))
    with pytest.raises(DataError, match="no column 'nothing'"):
        model.drift(cut(NEW, [500]), "nothing")
    with pytest.raises(ParameterError, match="there is no source 1"):
        model.drift(NEW, source=1)
    with pytest.raises(ParameterError, match="0 sources of the model are called 'new'"):
        model.drift(NEW, source="new")
    early = dboost.load(Path(__file__).parents[1] / "files" / "model-1.json")
    with pytest.raises(ParameterError, match="keeps no summary"):
        early.drift(NEW)


def test_scores_are_compared_only_where_they_are_known(model: dboost.Booster) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DriftWarning)
        new = dboost.fit(STRANGE, "grade", start_from=model, max_iter=3, source_name="new")
    assert (new.drift(STRANGE)["what"] == "score").sum() == 3
    assert (new.drift(STRANGE).query("what == 'feature'")["psi"] == 0).all()
    assert new.drift(STRANGE).set_index("name").loc["town", "unseen"] == 0
    assert (new.drift(STRANGE, source="old")["what"] == "feature").all()
    assert new.drift(STRANGE, source=0).set_index("name").loc["town", "unseen"] > 0
    assert (new.truncate(7).drift(NEW)["what"] == "feature").all()
    assert (new.truncate(5).drift(NEW)["what"] == "score").sum() == 3
    assert (new.drop_source("old").drift(NEW)["what"] == "feature").all()


# The warning.


def continued(data: Any, model: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dboost.fit(data, "grade", start_from=model, max_iter=1, **options)
    warned = [one for one in caught if issubclass(one.category, DriftWarning)]
    assert all(one.filename == __file__ for one in warned), "it points to the user's line"
    return [str(one.message) for one in warned]


def test_drifted_data_are_warned_of_once(model: dboost.Booster, client: Client) -> None:
    (message,) = continued(STRANGE, model)
    with pytest.warns(DriftWarning) as caught:
        dboost.DBoostClassifier(start_from=model, max_iter=1).fit(STRANGE.drop(columns="grade"), STRANGE["grade"])
    assert [one.filename for one in caught] == [__file__]
    assert all(name in message for name in ("'x'", "'town'", "'age'")) and "'size'" not in message
    assert "learning_rate 0.0" in message and "l2_regularization 30" in message
    assert continued(cut(STRANGE, [500]), model, client=client) == [message]
    assert continued(cut(STRANGE, [500]), model, memory_limit=64 * 10**6) == [message]
    assert "steps are not damped" in continued(STRANGE, model, continue_steps="full")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", DriftWarning)
        with pytest.raises(DriftWarning):
            dboost.fit(STRANGE, "grade", start_from=model, max_iter=1)
        warnings.simplefilter("ignore", DriftWarning)
        dboost.fit(STRANGE, "grade", start_from=model, max_iter=1)


#: Targets before and after: base rates of two and three classes, numbers, counts.
RATES = np.random.default_rng(5).random((2, 2000))
MOVED = {
    "base rate": ("log_loss", RATES[0] < 0.157, RATES[1] < 0.459),
    "classes": ("log_loss", np.digitize(RATES[0], [0.2, 0.4]), np.digitize(RATES[1], [0.5, 0.8])),
    "numbers": ("squared_error", RATES[0], RATES[1] + 0.5),
    "counts": ("poisson", np.floor(3 * RATES[0]), np.floor(6 * RATES[1])),
}


@pytest.mark.parametrize("case", MOVED)
def test_a_target_that_has_moved_is_named_with_the_option(case: str) -> None:
    loss, before, after = MOVED[case]
    X = np.random.default_rng(6).normal(size=(4000, 2))
    first = dboost.fit(X[:2000], before, loss=loss, max_iter=20)
    with pytest.warns(DriftWarning, match="the target.*steps are damped.* continue_steps='full'") as caught:
        dboost.fit(X[2000:], after, start_from=first, max_iter=1)
    assert "'f0'" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DriftWarning)
        dboost.fit(X[2000:], before, start_from=first, max_iter=1)


@pytest.mark.parametrize("n", [10, 60, 1000])
def test_data_of_the_same_kind_are_not_warned_of(model: dboost.Booster, n: int) -> None:
    assert continued(NEW.iloc[:n], model) == []
    X = np.random.default_rng(2).normal(size=(400 + n, 5))
    sure = dboost.fit(X[:400], X[:400, 0] > 0, max_iter=60, min_samples_leaf=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DriftWarning)
        dboost.fit(X[400:], X[400:, 0] > 0, start_from=sure, max_iter=1)


# The model file.


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s.pop("features"),
        lambda s: s["features"].pop(),
        lambda s: s["scores"].append(s["scores"][0]),
        lambda s: s["features"][0]["counts"].append(1),
        lambda s: s["features"][0].update(cuts=s["features"][0]["cuts"][::-1]),
        lambda s: s["features"][0].update(counts=[-1] * len(s["features"][0]["counts"])),
        lambda s: s["target"].update(codes="no"),
        lambda s: s["target"].update(levels=None),
        lambda s: s.update(features=3),
    ],
)
def test_a_forged_summary_is_refused(model: dboost.Booster, damage: Any) -> None:
    stored = json.loads(json.dumps(model.ensemble.sources[0]["summary"]))
    damage(stored)
    with pytest.raises((ModelFileError, DataError), match="summary of the training data"):
        Summary.from_dict(stored, len(FEATURES), 3)


def test_the_schema_knows_it(model: dboost.Booster) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    stored = json.loads(model_file.dumps(model.ensemble))
    jsonschema.validate(stored, model_file.schema())
    del stored["sources"][0]["summary"]["target"]["codes"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(stored, model_file.schema())
