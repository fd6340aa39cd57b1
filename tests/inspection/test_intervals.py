"""Conformal intervals: margins are order statistics, exact for any division of the rows; intervals cover as promised."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from copy import copy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost import DataError, InputTypeError, ModelFileError, ParameterError
from dboost.inspection import calibration
from dboost.inspection.calibration import RowScores, merged_here
from dboost.model import model_file
from dboost.model.margins import Calibration
from tests.helpers.examples import examples
from tests.helpers.real_data import AFTER_DEPARTURE, path

RNG = np.random.default_rng(11)
FEATURES = ["x", "town", "month"]


def made(n: int, seed: int) -> pd.DataFrame:
    """Rows whose noise depends on the town and the month."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"x": rng.normal(size=n), "town": rng.choice(["Gent", "Brugge", "Aalst"], n), "month": rng.integers(1, 4, n) * 1.0}
    )
    frame["route"] = rng.choice(["north", "south"], n)
    scale = frame["month"] * np.where(frame["town"] == "Gent", 2.0, 0.5)
    frame["y"] = frame["x"] * 2 + rng.normal(size=n) * scale
    frame["w"] = rng.integers(0, 4, n) * 1.0
    return frame


TRAIN, HELD_OUT, TEST = made(800, 0), made(900, 1), made(6000, 2)


@pytest.fixture(scope="module")
def trained() -> dboost.Booster:
    return dboost.fit(TRAIN, "y", features=FEATURES, max_iter=15)


@pytest.fixture
def model(trained: dboost.Booster) -> dboost.Booster:
    """The model, which a test may calibrate."""
    return fresh(trained)


def fresh(model: dboost.Booster) -> dboost.Booster:
    """A copy: `calibrate` changes the model that it is called for."""
    return copy(model)


def naive(distances: np.ndarray, coverage: float) -> float:
    """The ⌈(n + 1) · coverage⌉-th smallest of n distances."""
    return float(np.sort(distances)[math.ceil(Fraction(repr(coverage)) * (len(distances) + 1)) - 1])


def share_inside(intervals: Any, targets: pd.Series) -> float:
    bounds = np.asarray(intervals)
    return float(((bounds[:, 0] <= targets) & (targets <= bounds[:, 1])).mean())


# The margin.


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_the_margin_is_an_order_statistic(model: dboost.Booster, coverage: float) -> None:
    found = fresh(model).calibrate(HELD_OUT, "y", coverage=coverage)
    expected = naive(np.abs(HELD_OUT["y"] - model.predict(HELD_OUT)).to_numpy(), coverage)
    assert found.calibration == Calibration(coverage, len(HELD_OUT), expected)
    assert found.n_iter_ == model.n_iter_ and found.history.equals(model.history)
    low, high = np.asarray(found.predict_interval(HELD_OUT)).T
    np.testing.assert_array_equal(low, model.predict(HELD_OUT) - expected)
    np.testing.assert_array_equal(high, model.predict(HELD_OUT) + expected)
    assert share_inside(found.predict_interval(HELD_OUT), HELD_OUT["y"]) >= coverage


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=60), st.sampled_from([0.3, 0.5, 0.9, 0.95]),
    st.lists(st.integers(0, 60), max_size=4), st.booleans(), st.integers(0, 3),
)  # fmt: skip
@examples(100, deadline=None)
def test_any_division_gives_the_naive_margins(
    scores: list[float], coverage: float, cuts: list[int], weighted: bool, n_levels: int
) -> None:
    """A row of weight 2 counts like two rows, in groups too."""
    rng = np.random.default_rng(len(scores))
    score, n = np.array(scores), len(scores)
    weight = rng.integers(1, 3, n).astype(float) if weighted else np.ones(n)
    code = rng.integers(-1, 3, n)
    levels = ("c", "a", "b")
    parts = []
    for rows in np.split(np.arange(n), sorted(min(cut, n) for cut in cuts)):
        own = levels[::-1] if len(rows) % 2 else levels  # partitions number the levels in their own ways
        codes = np.array([-1 if c < 0 else own.index(levels[c]) for c in code[rows]], np.int64)
        parts.append(RowScores(score[rows], weight[rows] if weighted else None, codes, own))
    column = calibration.LevelColumn.of((), "town")
    with pytest.MonkeyPatch.context() as patch:
        warned: list[str] = []
        patch.setattr(calibration, "warn", warned.append)
        found = calibration.margins(merged_here(parts), coverage, column)
    repeated = np.repeat(score, weight.astype(int))
    assert found.margin == naive(repeated, coverage) and found.rows == n
    expected = {}
    for k, level in enumerate(levels):
        own = np.repeat(score[code == k], weight[code == k].astype(int))
        if math.ceil(Fraction(repr(coverage)) * (len(own) + 1)) <= len(own):
            expected[level] = naive(own, coverage)
    assert dict(zip(found.levels, found.margins, strict=True)) == expected and list(found.levels) == sorted(found.levels)
    assert bool(warned) == any(level not in expected for level in set(np.array(levels)[code[code >= 0]]))


def test_weights_that_compare_rows_have_no_scale(model: dboost.Booster) -> None:
    weights = np.random.default_rng(0).uniform(0.1, 1.0, len(HELD_OUT))
    one, other = (fresh(model).calibrate(HELD_OUT, "y", sample_weight=weights * factor) for factor in (1.0, 2.0**-20))
    assert one.calibration == other.calibration
    distance, n = np.abs(HELD_OUT["y"] - model.predict(HELD_OUT)).to_numpy(), len(HELD_OUT)
    order = np.argsort(distance)
    reached = np.cumsum(weights[order]) >= 0.9 * weights.sum() * (n + 1) / n
    assert one.calibration is not None and one.calibration.margin == distance[order][np.argmax(reached)]
    equal = fresh(model).calibrate(HELD_OUT, "y", sample_weight=np.full(n, 1 / n))
    assert equal.calibration == fresh(model).calibrate(HELD_OUT, "y").calibration


def test_rows_of_weight_zero_do_not_count(model: dboost.Booster) -> None:
    some = HELD_OUT[HELD_OUT["w"] > 0]
    repeated = some.loc[some.index.repeat(some["w"].astype(int))]
    weighted = fresh(model).calibrate(HELD_OUT, "y", sample_weight="w").calibration
    expected = fresh(model).calibrate(repeated, "y").calibration
    assert weighted is not None and expected is not None
    assert weighted.margin == expected.margin and weighted.rows == len(some)


@pytest.mark.parametrize(("coverage", "fewest"), [(0.9, 9), (0.95, 19), (0.5, 1), (0.99, 99)])
def test_too_few_rows_are_an_error_with_the_number(model: dboost.Booster, coverage: float, fewest: int) -> None:
    assert fresh(model).calibrate(HELD_OUT[:fewest], "y", coverage=coverage).calibration is not None
    if fewest > 1:
        with pytest.raises(DataError, match=rf"coverage={coverage} needs at least {fewest} rows .* have {fewest - 1}$"):
            fresh(model).calibrate(HELD_OUT[: fewest - 1], "y", coverage=coverage)


# By groups.


@pytest.mark.parametrize("by", ["town", "month", "route"])
def test_values_of_a_column_have_their_own_margins(model: dboost.Booster, by: str) -> None:
    found = fresh(model).calibrate(HELD_OUT, "y", by=by)
    margins = found.calibration
    assert margins is not None and margins.by == by
    distance = np.abs(HELD_OUT["y"] - model.predict(HELD_OUT))
    expected = {level: naive(distance[HELD_OUT[by] == level].to_numpy(), 0.9) for level in sorted(HELD_OUT[by].unique())}
    assert dict(zip(margins.levels, margins.margins, strict=True)) == expected
    intervals = found.predict_interval(TEST)
    for level, margin in expected.items():
        rows = TEST[by] == level
        np.testing.assert_allclose((intervals["upper"] - intervals["lower"])[rows], 2 * margin)
        assert share_inside(intervals[rows], TEST["y"][rows]) == pytest.approx(0.9, abs=0.035)


def test_unseen_and_missing_values_have_the_margin_of_all_rows(model: dboost.Booster) -> None:
    for by, unseen in (("town", "Ieper"), ("month", 12.0), ("month", np.inf), ("route", "east")):
        found = fresh(model).calibrate(HELD_OUT, "y", by=by)
        assert found.calibration is not None
        rows = TEST[:3].assign(**{by: [unseen, None, TEST[by][0]]})
        width = np.diff(found.predict_interval(rows), axis=1)[:, 0]
        expected = [found.calibration.margin] * 2 + [found.calibration.margins[found.calibration.levels.index(TEST[by][0])]]
        np.testing.assert_allclose(width, 2 * np.array(expected))


def test_values_with_too_few_rows_are_named(model: dboost.Booster) -> None:
    rare = HELD_OUT.assign(town=HELD_OUT["town"].where(np.arange(len(HELD_OUT)) > 4, "Brugge"))
    rare.loc[rare.index[:5], "route"] = "detour"
    with pytest.warns(UserWarning, match=r"by='route': 1 of 3 values have fewer than the 9 rows .*: 'detour'"):
        found = fresh(model).calibrate(rare, "y", by="route")
    assert found.calibration is not None and found.calibration.levels == ("north", "south")


def test_by_of_other_kinds(model: dboost.Booster) -> None:
    """Levels of every dtype are found again; NumPy arrays have features only."""
    n = len(HELD_OUT)
    kinds = {
        "int": np.arange(n) % 3,
        "bool": np.arange(n) % 2 > 0,
        "category": pd.Categorical(HELD_OUT["route"]),
        "more than a byte holds": np.arange(n) % 300,
    }
    for name, values in kinds.items():
        frame = HELD_OUT.assign(kind=values)
        found = fresh(model).calibrate(frame, "y", coverage=0.5, by="kind")
        assert found.calibration is not None and len(found.calibration.levels) == len(pd.unique(values)), name
        widths = pd.Series(np.diff(found.predict_interval(frame), axis=1)[:, 0]).round(9)
        assert (widths.groupby(np.asarray(values)).nunique() == 1).all() and widths.nunique() == len(pd.unique(values))
    X = HELD_OUT[["x", "month"]].to_numpy()
    of_array = dboost.fit(X, HELD_OUT["y"], max_iter=3)
    found = fresh(of_array).calibrate(X, HELD_OUT["y"], by="f1")
    assert found.calibration is not None and found.calibration.levels == (1.0, 2.0, 3.0)
    assert found.predict_interval(X).shape == (n, 2)
    with pytest.raises(ParameterError, match="no feature of the model, and arrays have no other columns"):
        fresh(of_array).calibrate(X, HELD_OUT["y"], by="town")


def test_too_many_values(model: dboost.Booster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MOST_LEVELS", 2)
    assert fresh(model).calibrate(HELD_OUT, "y", by="route").calibration is not None
    with pytest.raises(ParameterError, match="by='town' has more than 2 values"):
        fresh(model).calibrate(HELD_OUT, "y", by="town")


# Kinds of data, and places.


@pytest.mark.slow
def test_workers_give_the_margin_of_one_process(model: dboost.Booster, client: Client) -> None:
    lazy = dd.from_pandas(HELD_OUT, npartitions=7)
    for by in (None, "town", "route"):
        expected = fresh(model).calibrate(HELD_OUT, "y", by=by).calibration
        assert fresh(model).calibrate(lazy, "y", by=by, client=client).calibration == expected
        assert fresh(model).calibrate(lazy, lazy["y"], by=by).calibration == expected


def test_dask_arrays_with_their_targets() -> None:
    X, y = HELD_OUT[["x", "month"]].to_numpy(), HELD_OUT["y"].to_numpy()
    model = dboost.fit(X, y, max_iter=5)
    expected = fresh(model).calibrate(X, y).calibration
    lazy = da.from_array(X, chunks=(250, 2))
    assert fresh(model).calibrate(lazy, da.from_array(y, chunks=250)).calibration == expected
    with pytest.raises(DataError, match="target has 1 partitions, the data have 4"):
        fresh(model).calibrate(lazy, da.from_array(y, chunks=-1))
    with pytest.raises(InputTypeError, match="target must be the name of a column, or a Dask collection"):
        fresh(model).calibrate(lazy, y)


def test_prepared_rows(client: Client, tmp_path: Path) -> None:
    for weight in (None, "w"):
        with dboost.prepare(HELD_OUT, "y", features=FEATURES, sample_weight=weight, path=tmp_path / str(weight)) as data:
            model = dboost.fit(data, max_iter=5)
            expected = fresh(model).calibrate(HELD_OUT, "y", sample_weight=weight).calibration
            assert fresh(model).calibrate(data).calibration == expected
            assert fresh(model).calibrate(data.path).calibration == expected
        lazy = dd.from_pandas(HELD_OUT, npartitions=4)
        with dboost.prepare(lazy, "y", features=FEATURES, sample_weight=weight, client=client) as on_workers:
            assert fresh(model).calibrate(on_workers).calibration == expected
    for name, value in (("by", "town"), ("target", "y"), ("sample_weight", "w")):
        with pytest.raises(ParameterError, match=f"{name} belongs to dboost.prepare or to a table"):
            fresh(model).calibrate(tmp_path / "w", **{name: value})
    with pytest.raises(ParameterError, match="calibrate: the model splits"):
        dboost.fit(made(300, 5), "y", features=FEATURES, max_iter=5).calibrate(tmp_path / "w")


def test_filter_and_offset(model: dboost.Booster) -> None:
    found = fresh(model).calibrate(HELD_OUT, "y", filter=pc.field("month") < 3)
    assert found.calibration == fresh(model).calibrate(HELD_OUT[HELD_OUT["month"] < 3], "y").calibration
    assert len(found.predict_interval(TEST, filter=pc.field("month") < 3)) == (TEST["month"] < 3).sum()
    counts = HELD_OUT.assign(y=RNG.poisson(np.exp(HELD_OUT["x"] / 2) * 3), exposure=np.log(3.0))
    poisson = dboost.fit(counts, "y", features=FEATURES, loss="poisson", offset="exposure", max_iter=10)
    for by in (None, "route", "town"):
        of_counts = fresh(poisson).calibrate(counts, "y", offset="exposure", by=by)
        bounds = of_counts.predict_interval(counts, offset="exposure")
        assert share_inside(bounds, counts["y"]) >= 0.9 and bounds["lower"].min() == 0.0
        middle = poisson.predict(counts, offset="exposure")
        assert ((bounds["lower"] <= middle) & (middle <= bounds["upper"])).all()
        values = of_counts.predict_interval(counts, offset=counts["exposure"].to_numpy())
        pd.testing.assert_frame_equal(values, bounds)


# Files and derived models.


def test_margins_are_part_of_the_model(model: dboost.Booster, tmp_path: Path) -> None:
    assert b'"version": 1,' in model_file.dumps(model.ensemble) and b"calibration" not in model_file.dumps(model.ensemble)
    for by in (None, "town", "month", "route"):
        found = fresh(model).calibrate(HELD_OUT, "y", by=by)
        for name in ("model.json", "model.dboost"):
            found.save(tmp_path / name)
            again = dboost.load(tmp_path / name)
            assert again == found != model and again.calibration == found.calibration
        assert b'"version": 3,' in model_file.dumps(found.ensemble)
        assert pickle.loads(pickle.dumps(found)).calibration == found.calibration
        model_file.check(found.ensemble)
    assert model_file.dumps(replace(found.ensemble, calibration=None)) == model_file.dumps(model.ensemble)


def test_the_model_itself_gets_the_margin_and_knows_its_target(trained: dboost.Booster, model: dboost.Booster) -> None:
    before = model.sha256
    assert model.calibrate(HELD_OUT) is model and model.target_name == "y"
    assert model.calibration == fresh(trained).calibrate(HELD_OUT, "y").calibration
    assert model.sha256 != before == trained.sha256 and trained.calibration is None
    assert len(model.predict_interval(TEST)) == len(TEST)
    again = pickle.loads(pickle.dumps(model))
    assert again == model and again.target_name == "y"
    assert again.calibrate(HELD_OUT).calibration == model.calibration
    with pytest.raises(InputTypeError, match="the target is missing"):
        dboost.fit(TRAIN[FEATURES], TRAIN["y"], max_iter=1).calibrate(HELD_OUT)


def test_models_that_predict_other_numbers_have_no_margins(model: dboost.Booster) -> None:
    found = fresh(model).calibrate(HELD_OUT, "y")
    assert found.truncate(model.n_iter_).calibration == found.calibration
    for other in (
        found[:3], found.refit_leaves(HELD_OUT, "y"), dboost.fit(HELD_OUT, "y", max_iter=2, start_from=found)
    ):  # fmt: skip
        assert other.calibration is None
    with pytest.raises(ParameterError, match=r"no margins for intervals: booster\.calibrate"):
        model.predict_interval(TEST)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coverage": 1.5}, "coverage is not between 0 and 1"),
        ({"rows": 0}, "rows"),
        ({"margin": "Infinity"}, "margin"),
        ({"levels": ["b", "a"]}, "levels are not sorted"),
        ({"margins": [1.0]}, "levels and margins do not fit"),
        ({"more": 1}, "more"),
        ({"by": None}, "by"),
    ],
)
def test_invalid_margins_in_files_are_refused(model: dboost.Booster, change: dict[str, Any], message: str) -> None:
    found = replace(model.ensemble, calibration=Calibration(0.9, 100, 1.0, "town", ("a", "b"), (1.0, 2.0)))
    content = json.loads(b"{" + model_file._content(found))
    assert model_file.parse_ensemble(content).calibration == found.calibration
    with pytest.raises(model_file.InvalidModel, match=message):
        model_file.parse_ensemble(content | {"calibration": content["calibration"] | change})


def test_old_versions_cannot_have_margins(model: dboost.Booster) -> None:
    data = model_file.dumps(fresh(model).calibrate(HELD_OUT, "y").ensemble)
    with pytest.raises(ModelFileError, match="it is a model of version 3, written as version 1"):
        model_file.loads(data.replace(b'"version": 3', b'"version": 1', 1))


def test_classes_have_no_intervals() -> None:
    model = dboost.fit(TRAIN, TRAIN["y"] > 0, features=FEATURES, max_iter=2)
    with pytest.raises(ParameterError, match="no intervals: the model predicts classes"):
        fresh(model).calibrate(HELD_OUT, HELD_OUT["y"] > 0)


def test_invalid_arguments(model: dboost.Booster) -> None:
    for coverage in (0, 1, 90, True, "0.9", None):
        with pytest.raises(ParameterError, match="must be a number between 0 and 1"):
            fresh(model).calibrate(HELD_OUT, "y", coverage=coverage)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match="must be the name of a column"):
        fresh(model).calibrate(HELD_OUT, "y", by=HELD_OUT["town"].to_numpy())
    with pytest.raises(DataError, match=r"partition 1: .*contains NaN"):
        lazy = dd.from_pandas(HELD_OUT.assign(y=HELD_OUT["y"].where(np.arange(len(HELD_OUT)) < 600)), npartitions=2)
        fresh(model).calibrate(lazy, "y")
    for data in (HELD_OUT, dd.from_pandas(HELD_OUT, npartitions=2)):
        with pytest.raises(DataError, match="no column 'rout'"):
            fresh(model).calibrate(data, "y", by="rout")
    with pytest.raises(DataError, match="route"):
        fresh(model).calibrate(HELD_OUT, "y", by="route").predict_interval(TEST.drop(columns="route"))


# From cross-validation.


def test_margins_of_held_out_predictions() -> None:
    frame = made(1500, 3)
    result = dboost.cv(frame, "y", features=FEATURES, folds=5, max_iter=15)
    model = dboost.fit(frame, "y", features=FEATURES, max_iter=15)
    found = result.calibrate(model, coverage=0.9)
    assert found.calibration == Calibration(0.9, 1500, naive(np.abs(frame["y"] - result.predictions).to_numpy(), 0.9))
    assert share_inside(found.predict_interval(TEST), TEST["y"]) == pytest.approx(0.9, abs=0.02)
    weighted = dboost.cv(frame, "y", features=FEATURES, sample_weight="w", folds=3, max_iter=3)
    some = frame[frame["w"] > 0]
    distance = np.abs(frame["y"] - weighted.predictions).to_numpy()[frame["w"] > 0]
    expected = naive(np.repeat(distance, some["w"].astype(int)), 0.8)
    calibrated = weighted.calibrate(model, coverage=0.8).calibration
    assert calibrated is not None and calibrated.margin == expected and calibrated.rows == len(some)
    by_time = dboost.cv(frame, "y", features=FEATURES, time=np.arange(1500), folds=4, max_iter=3)
    found_by_time = by_time.calibrate(model).calibration
    assert found_by_time is not None and found_by_time.rows == np.isfinite(by_time.predictions).sum() < 1500
    for other in (
        dboost.fit(frame, "y", features=["x"], max_iter=1),
        dboost.fit(frame, "y", features=FEATURES, loss="huber", max_iter=1),
    ):
        with pytest.raises(ParameterError, match="other features or another loss"):
            result.calibrate(other)


# Coverage.


def test_the_plot_shows_the_share_of_targets_within(model: dboost.Booster) -> None:
    pytest.importorskip("matplotlib")
    for by, label in ((None, "middle of the interval"), ("town", "width of the interval")):
        found = fresh(model).calibrate(HELD_OUT, "y", by=by)
        ax = found.plot_coverage(dd.from_pandas(TEST, npartitions=3), "y", n_bins=3)
        line = ax.lines[1]
        assert ax.get_xlabel().startswith(label) and len(line.get_xdata()) == 3
        assert np.mean(line.get_ydata()) == pytest.approx(share_inside(found.predict_interval(TEST), TEST["y"]), abs=1e-3)
        assert ax.lines[0].get_ydata()[0] == 0.9
    with pytest.raises(ParameterError, match="no margins"):
        model.plot_coverage(TEST, "y")


def real_rows(name: str) -> tuple[pd.DataFrame, str, str]:
    """Return a real table of numbers to predict, its target, and a column that divides it into two groups."""
    frame = pd.read_parquet(path(name))
    if name == "california":
        return frame.assign(north=frame["latitude"] > 36.5), "median_house_value", "north"
    if name == "elec2":
        return frame.drop(columns="class").assign(day=frame["period"].between(14, 40)), "nswprice", "day"
    if name == "adult":
        return frame.drop(columns=["fold", "income"]), "hours_per_week", "sex"
    flights = frame.drop(columns=AFTER_DEPARTURE).dropna(subset=["ArrDelay"]).sample(30_000, random_state=0)
    return flights.reset_index(drop=True), "ArrDelay", "Origin"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("california", {"loss": "squared_error"}),
        ("california", {"loss": "gamma"}),
        ("elec2", {"loss": "absolute_error"}),
        ("adult", {"loss": "quantile", "quantile": [0.05, 0.95]}),
        ("hflights", {"loss": "normal"}),
    ],
)
def test_coverage_of_real_rows(name: str, options: dict[str, Any]) -> None:
    """Of ten splits within one point of the wanted share, also of each group with `by`."""
    frame, target, by = real_rows(name)
    features = [column for column in frame if column not in (target, by)]
    shares, of_groups = [], []
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(len(frame))
        cuts = [int(0.4 * len(frame)), int(0.65 * len(frame))]
        train, held_out, test = (frame.iloc[rows] for rows in np.split(order, cuts))
        model = dboost.fit(train, target, features=features, max_iter=30, **options)
        found = fresh(model).calibrate(held_out, target, by=by).predict_interval(test)
        inside = (found["lower"] <= test[target]) & (test[target] <= found["upper"])
        shares.append(inside.mean())
        of_groups.append(inside.groupby(test[by], observed=True).mean())
    assert np.mean(shares) == pytest.approx(0.9, abs=0.01)
    assert pd.concat(of_groups, axis=1).mean(axis=1).to_numpy() == pytest.approx(np.full(2, 0.9), abs=0.01)


def test_estimators_and_predictors_give_the_same_intervals(model: dboost.Booster) -> None:
    features = list(model.feature_names_in_)
    estimator = dboost.DBoostRegressor(max_iter=10, random_state=0).fit(HELD_OUT[features], HELD_OUT["y"])
    with pytest.raises(ParameterError, match="the model has no margins for intervals"):
        estimator.predict_interval(TEST[features])
    same = fresh(estimator.booster_).calibrate(TEST[features], TEST["y"], coverage=0.8)
    assert estimator.calibrate(TEST[features], TEST["y"], coverage=0.8) is estimator
    found, expected = estimator.predict_interval(TEST[features]), same.predict_interval(TEST)
    assert isinstance(found, np.ndarray) and np.array_equal(found, expected)
    predictor = pickle.loads(pickle.dumps(same.predictor("interval")))
    for i in range(5):
        assert predictor(TEST[features].iloc[i].to_dict()).tolist() == expected.iloc[i].tolist()


def test_predictors_refuse_intervals_that_they_do_not_know(model: dboost.Booster) -> None:
    with pytest.raises(ParameterError, match="the model has no margins for intervals"):
        fresh(model).predictor("interval")
    with pytest.raises(ParameterError, match="margins are those of all iterations: leave iteration_range out"):
        fresh(model).calibrate(HELD_OUT, "y").predictor("interval", (0, 1))
    with pytest.raises(ParameterError, match="the margins of the model depend on the column 'route', which predictor"):
        fresh(model).calibrate(HELD_OUT, "y", by="route").predictor("interval")


def test_rows_of_training_are_recognized(tmp_path: Path) -> None:
    """Their residuals are too small."""
    rows = TRAIN[["x", "y"]]
    path = str(tmp_path / "rows.parquet")
    rows.to_parquet(path)
    with dboost.prepare(rows, "y") as prepared:
        for data in (rows, dd.from_pandas(rows, npartitions=2), path, prepared):
            target = {} if data is prepared else {"target": "y"}
            trained = dboost.fit(data, **target, max_iter=2, progress=False)
            with pytest.warns(UserWarning, match="these are the rows that the model was trained on"):
                trained.calibrate(data, **target)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        dboost.fit(TRAIN, "y", features=["x"], sample_weight="w", max_iter=2).calibrate(
            TRAIN, "y", sample_weight=(TRAIN["w"] == 0) * 1.0
        )


#: Rows to train on, and the same rows in other forms to calibrate with, each with the target.
AGAIN: dict[str, Any] = {
    "frame": lambda folder: (TRAIN.copy(), "y"),
    "other order": lambda folder: (TRAIN.sample(frac=1, random_state=0), "y"),
    "frame and values": lambda folder: (TRAIN[FEATURES], TRAIN["y"].to_numpy()),
    "Dask": lambda folder: (dd.from_pandas(TRAIN, npartitions=3), "y"),
    "file": lambda folder: (TRAIN.to_parquet(folder / "rows.parquet") or folder / "rows.parquet", "y"),
    "data set": lambda folder: (dboost.prepare(TRAIN, "y", features=FEATURES, progress=False), None),
}
LOSSES: list[dict[str, Any]] = [
    {},
    {"loss": "absolute_error", "subsample": 0.5},
    {"loss": "quantile", "quantile": [0.1, 0.9]},
    {"loss": "normal"},
    {"eval_set": HELD_OUT, "early_stopping_rounds": 2, "max_iter": 50},
]


@pytest.mark.parametrize("form", AGAIN)
@pytest.mark.parametrize("options", LOSSES, ids=lambda options: options.get("loss", "_".join(options)) or "squared_error")
def test_the_training_rows_are_recognized_in_any_form(options: dict[str, Any], form: str, tmp_path: Path) -> None:
    data, target = AGAIN[form](tmp_path)
    booster = dboost.fit(TRAIN, "y", features=FEATURES, **{"max_iter": 5, **options})
    booster.save(tmp_path / "model.json")
    for model in (booster, dboost.load(tmp_path / "model.json")):
        with pytest.warns(UserWarning, match="these are the rows that the model was trained on"):
            model.calibrate(data, target)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.calibrate(HELD_OUT[:800], "y")
            model.calibrate(TRAIN[:400], "y")


def test_the_training_rows_are_recognized_with_weights() -> None:
    options: dict[str, Any] = {"sample_weight": "w", "max_iter": 5}
    first = dboost.fit(HELD_OUT, "y", features=FEATURES, **options)
    booster = dboost.fit(TRAIN, "y", start_from=first, continue_steps="full", **options)
    with pytest.warns(UserWarning, match="these are the rows that the model was trained on") as seen:
        booster.calibrate(TRAIN.copy(), "y", sample_weight="w")
    assert len(seen) == 1
