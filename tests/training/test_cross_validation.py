"""`dboost.cv`: the folds, their models, the means by which they stop, and the predictions of held-out rows."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import GroupKFold, KFold, RepeatedKFold, StratifiedKFold, TimeSeriesSplit

import dboost
from dboost import DataError, DBoostError, EarlyStopping, FitInterrupted, InputTypeError, ParameterError
from dboost.losses import Loss
from dboost.session.row_samples import TEST, TRAIN
from dboost.training import folds as training_folds
from dboost.training.fold_rows import split_rows
from tests.helpers.clusters import ROOT
from tests.helpers.tune import Tune

RNG = np.random.default_rng(0)
N = 2_000


def a_frame() -> pd.DataFrame:
    """Few distinct values, so that every fold has them all and proposes the split points that all rows propose."""
    frame = pd.DataFrame({name: RNG.integers(0, 12, N).astype(np.float64) for name in "abc"})
    frame.loc[::13, "b"] = np.nan
    frame["kind"] = RNG.choice(["one", "two", "three"], N)
    frame["w"] = RNG.integers(1, 4, N)
    score = frame["a"] - np.nan_to_num(frame["b"]) * (frame["kind"] == "one") + RNG.normal(size=N)
    frame["y"], frame["z"] = score, score > 1
    frame["t"] = np.where(score > 4, "high", np.where(score < -1, "low", "middle"))
    return frame


FRAME = a_frame()
FEATURES = ["a", "b", "c", "kind"]
OPTIONS: dict[str, Any] = {"features": FEATURES, "max_iter": 12, "max_leaf_nodes": 8, "progress": False}


def trees(booster: dboost.Booster) -> pd.DataFrame:
    return booster.to_frame()


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize(
    ("target", "more"),
    [
        ("y", {"subsample": 0.7}),
        ("y", {"loss": "absolute_error", "subsample": 0.7}),
        ("y", {"boosting": "forest", "sample_weight": "w"}),
        ("z", {"influence_trimming": 0.2}),
        ("z", {"influence_trimming": 0.2, "subsample": 0.6, "sample_weight": "w"}),
        ("t", {"subsample": 0.7, "sample_weight": "w"}),
        ("t", {"group": "g", "subsample": 0.6}),
    ],
)
def test_a_fold_is_a_fit_on_its_rows(target: str, more: dict[str, Any]) -> None:
    frame = FRAME.assign(g=np.arange(N) // 5)
    splits = list(StratifiedKFold(3, shuffle=True, random_state=1).split(frame, frame["t"]))
    options = OPTIONS | more
    result = dboost.cv(frame, target, folds=splits, n_threads=3, **options)
    for fold, (train, test) in enumerate(splits):
        rows = frame.iloc[train].reset_index(drop=True)
        explicit = dboost.fit(rows, target, eval_set={"validation": frame.iloc[test]}, **options)
        booster = result.boosters[fold]
        pd.testing.assert_frame_equal(trees(booster), trees(explicit), check_exact=True)
        of_fold = result.scores[result.scores["fold"] == fold].set_index("metric")["value"]
        for name in set(of_fold.index) - {"train_loss"}:
            assert of_fold[name].tolist() == explicit.history[f"validation_{name}"].tolist()
        expected = explicit.predict(FRAME.iloc[test]) if target == "y" else explicit.predict_proba(FRAME.iloc[test])
        np.testing.assert_array_equal(result.predictions[test], np.asarray(expected))
    assert not np.isnan(result.predictions).any()


def test_the_summary_has_means_and_deviations_of_the_folds() -> None:
    result = dboost.cv(FRAME, "z", folds=4, eval_metric=["auc", "log_loss"], **OPTIONS)
    assert list(result.scores.columns) == ["fold", "iteration", "metric", "value"]
    assert len(result.scores) == 4 * 12 * 3
    table = result.scores.pivot_table(index=["iteration", "metric"], columns="fold", values="value")
    of = result.summary.set_index(["iteration", "metric"])
    np.testing.assert_allclose(of["mean"], table.mean(axis=1).loc[of.index], rtol=1e-15)
    np.testing.assert_allclose(of["std"], table.std(axis=1, ddof=0).loc[of.index], rtol=1e-9, atol=1e-15)
    losses = result.summary[result.summary["metric"] == "log_loss"]
    assert result.best_iteration == losses.loc[losses["mean"].idxmin(), "iteration"]
    assert result.best_score == losses["mean"].min() and result.metric == "log_loss"
    assert "log_loss" in repr(result) and "4 folds" in repr(result)
    assert all(booster.n_iter_ == 12 for booster in result.boosters)


def test_folds_stop_together_by_the_mean() -> None:
    options = OPTIONS | {"max_iter": 200, "learning_rate": 0.5, "eval_metric": ["auc", "log_loss"]}
    result = dboost.cv(FRAME, "z", folds=3, early_stopping_rounds=4, **options)
    means = result.summary[result.summary["metric"] == "log_loss"].set_index("iteration")["mean"]
    assert result.best_iteration == means.idxmin() and means.index[-1] == result.best_iteration + 4 < 200
    for booster in result.boosters:
        assert booster.n_iter_ == booster.best_iteration == result.best_iteration
    by_auc = dboost.cv(FRAME, "z", folds=3, early_stopping=EarlyStopping(4, "auc"), **options)
    means = by_auc.summary[by_auc.summary["metric"] == "auc"].set_index("iteration")["mean"]
    assert by_auc.best_iteration == means.idxmax() and by_auc.metric == "auc"
    with pytest.raises(ParameterError, match="no evaluation set 'other'"):
        dboost.cv(FRAME, "z", early_stopping=EarlyStopping(4, eval_set="other"), **options)
    with pytest.raises(ParameterError, match="'rmse' is none of the fit's metrics"):
        dboost.cv(FRAME, "z", early_stopping=EarlyStopping(4, "rmse"), **options)


def test_the_learning_rate_that_a_callback_sets_is_that_of_all_folds() -> None:
    def halve(now: dboost.Iteration) -> None:
        now.learning_rate = 0.2 if now.iteration == 1 else now.learning_rate / 2

    rates = [0.1, 0.2, 0.1, 0.05]
    how = OPTIONS | {"max_iter": 4, "folds": 3}
    halved = dboost.cv(FRAME, "y", callbacks=[halve], **how | {"learning_rate": 0.1})
    expected = dboost.cv(FRAME, "y", **how | {"learning_rate": rates})
    assert halved.scores.equals(expected.scores)
    np.testing.assert_array_equal(halved.predictions, expected.predictions)

    def negative(now: dboost.Iteration) -> None:
        now.learning_rate = -1.0

    with pytest.raises(dboost.ParameterError, match="learning_rate that a callback has set in iteration 1"):
        dboost.cv(FRAME, "y", callbacks=[negative], **how)


def test_callbacks_get_the_means_and_stop_all_folds() -> None:
    seen: list[dict[str, Any]] = []

    def callback(now: dboost.Iteration) -> bool:
        seen.append(now.record)
        return now.iteration == 5

    result = dboost.cv(FRAME, "y", folds=3, eval_metric="rmse", callbacks=[callback], **OPTIONS)
    means = result.summary[result.summary["metric"] == "rmse"]["mean"].tolist()
    assert [record["validation_rmse"] for record in seen] == means and len(means) == 5
    assert [record["iteration"] for record in seen] == [1, 2, 3, 4, 5]

    def fails(_: dboost.Iteration) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dboost.cv(FRAME, "y", callbacks=[fails], **OPTIONS)


@pytest.mark.slow
def test_a_time_limit_ends_all_folds_after_the_same_iteration() -> None:
    result = dboost.cv(FRAME, "y", folds=3, **OPTIONS | {"max_iter": 10**6, "time_limit": "1s"})
    (n,) = {booster.n_iter_ for booster in result.boosters}
    assert 0 < n < 10**6


@given(n_rows=st.integers(20, 300), n_folds=st.integers(2, 6), seed=st.integers(0, 99), n_classes=st.integers(1, 3))
def test_a_number_of_folds_divides_each_class_evenly(n_rows: int, n_folds: int, seed: int, n_classes: int) -> None:
    target = np.arange(n_rows) % n_classes
    folds = split_rows(n_folds, n_rows, lambda: target, is_classification=True, seed=seed)
    assert sum((fold.uses == TEST).astype(int) for fold in folds).tolist() == [1] * n_rows
    for fold in folds:
        assert set(np.unique(fold.uses)) == {TRAIN, TEST}
    for level in range(n_classes):
        counts = [int(np.count_nonzero((fold.uses == TEST) & (target == level))) for fold in folds]
        assert max(counts) - min(counts) <= 1
    again = split_rows(n_folds, n_rows, lambda: target, is_classification=True, seed=seed)
    assert all((one.uses == other.uses).all() for one, other in zip(folds, again, strict=True))


def test_groups_are_not_divided() -> None:
    groups = RNG.integers(0, 40, N)
    for folds in (5, GroupKFold(5)):
        result = dboost.cv(FRAME, "y", folds=folds, groups=groups, **OPTIONS)
        assert not np.isnan(result.predictions).any() and len(result.boosters) == 5
    found = split_rows(5, N, lambda: groups, groups=groups, is_classification=False, seed=0)
    for fold in found:
        assert not set(groups[fold.uses == TEST]) & set(groups[fold.uses == TRAIN])
    sizes = [int(np.count_nonzero(fold.uses == TEST)) for fold in found]
    assert max(sizes) - min(sizes) <= np.bincount(groups).max()


def test_folds_of_every_kind() -> None:
    ordered = dboost.cv(FRAME, "y", folds=TimeSeriesSplit(3), **OPTIONS)
    first = min(test[0] for _, test in TimeSeriesSplit(3).split(FRAME))
    assert np.isnan(ordered.predictions[:first]).all() and not np.isnan(ordered.predictions[first:]).any()

    repeated = dboost.cv(FRAME, "y", folds=RepeatedKFold(n_splits=2, n_repeats=2, random_state=0), **OPTIONS)
    assert len(repeated.boosters) == 4
    expected = np.zeros(N)
    for booster, (_, test) in zip(
        repeated.boosters, RepeatedKFold(n_splits=2, n_repeats=2, random_state=0).split(FRAME), strict=True
    ):
        expected[test] += booster.predict(FRAME.iloc[test]) / 2
    np.testing.assert_allclose(repeated.predictions, expected, rtol=1e-14)

    numbers = np.arange(N) % 3
    by_values = dboost.cv(FRAME, "y", folds=numbers, **OPTIONS)
    by_column = dboost.cv(FRAME.assign(part=numbers), "y", folds="part", **OPTIONS | {"features": [*FEATURES]})
    by_text = dboost.cv(FRAME, "y", folds=pd.Series(np.array(list("abc"), object)[numbers], dtype=object), **OPTIONS)
    masks = [(numbers != k, numbers == k) for k in range(3)]
    by_masks = dboost.cv(FRAME, "y", folds=iter(masks), **OPTIONS)
    by_series = dboost.cv(FRAME, "y", folds=pd.Series(masks), **OPTIONS)
    for other in (by_column, by_masks, by_series, by_text):
        assert [one.sha256 for one in other.boosters] == [one.sha256 for one in by_values.boosters]
    only = FRAME[[*FEATURES, "y"]].assign(part=numbers)
    all_features = dboost.cv(only, "y", folds="part", max_iter=2, progress=False)
    assert list(all_features.boosters[0].feature_names_in_) == FEATURES, "the column of folds is no feature"


def hashes(result: dboost.CVResult) -> list[str]:
    return [booster.sha256 for booster in result.boosters]


#: Times of 60 days in their order, as text or other values …
DAYS = pd.date_range("2023-11-20", periods=60)
ORDERED: dict[str, Any] = {
    "integers": np.array([f"{day}" for day in range(60)], object),
    "signed integers": pd.Series([f"{day}" for day in range(-30, 30)], dtype="string"),
    "decimals": np.array([f"{day / 4}" for day in range(60)]),
    "bytes": np.array([f"{day}".encode() for day in range(60)]),
    "dates of ISO": DAYS.strftime("%Y-%m-%d").to_numpy(),
    "times of ISO": (DAYS + pd.Timedelta("7h")).strftime("%Y-%m-%dT%H:%M:%S").to_numpy(),
    "times with zones": np.array([f"{day:%Y-%m-%d}T23:00:00{'+00:00' if k % 2 else '+09:00'}" for k, day in enumerate(DAYS)]),
    "weeks": np.array([f"2023-W{week:02d}-{day}" for week in range(1, 13) for day in range(1, 6)]),
    "year first": DAYS.strftime("%Y/%m/%d").to_numpy(),
    "compact": DAYS.strftime("%Y%m%d").to_numpy(),
    "quarters": np.array([f"{year}Q{quarter}" for year in range(1990, 2005) for quarter in range(1, 5)]),
    "ordered categories": pd.Series(
        pd.Categorical([f"week {k}" for k in range(60)], [f"week {k}" for k in range(60)], ordered=True)
    ),
    "periods": DAYS.to_period("D").to_numpy(),
    "dates of Python": np.array([day.date() for day in DAYS], object),
}
#: … and text whose order is not that of time, and what the message says.
UNORDERED: dict[str, tuple[Any, str]] = {
    "day first": (DAYS.strftime("%d/%m/%Y"), r"'%d/%m/%Y', day first.*in pandas by \(pandas.to_datetime\(.*format='%d/%m/%Y'"),
    "month first": (DAYS.strftime("%m/%d/%Y"), "'%m/%d/%Y', month first"),
    "names of months": (DAYS.strftime("%b %d %Y"), "format '%b %d %Y'.*in pandas by"),
    "points": (DAYS.strftime("%d.%m.%Y"), "'%d.%m.%Y', day first"),
    "weeks": ([f"week {k}" for k in range(60)], r"text such as 'week 0', whose order .* ordered=True"),
    "another encoding": ([f"{k} août".encode("latin-1") for k in range(60)], "text such as .*0 ao"),
    "quarter first": ([f"Q{k % 4 + 1} {1990 + k // 4}" for k in range(60)], "text such as 'Q1 1990'"),
    "short years": (pd.date_range("2023-11-20", periods=60, freq="MS").strftime("%Y-%m").str[2:], "text"),
    "of unequal length": ([f"2023/{k // 28 + 1}/{k % 28 + 1}" for k in range(60)], "holds text"),
    "dates and numbers": ([*DAYS.strftime("%Y-%m-%d")[:30], *map(str, range(30))], "holds text"),
    "two texts": ([*["31/12/2023"] * 30, *["01/01/2024"] * 30], "'%d/%m/%Y', day first"),
    "zones here only": ([f"{day:%Y-%m-%d}T00:00:00{'Z' * (day.day % 2)}" for day in DAYS], "holds text"),
}


@pytest.mark.parametrize("kind", ORDERED)
@pytest.mark.parametrize("is_column", [False, True])
def test_folds_in_time_are_ordered_as_the_time(kind: str, is_column: bool) -> None:
    times, rows = ORDERED[kind], RNG.permutation(60)
    frame = FRAME.iloc[:60].reset_index(drop=True)
    shuffled = times.iloc[rows].reset_index(drop=True) if isinstance(times, pd.Series) else times[rows]
    options = OPTIONS | {"max_iter": 2, "min_samples_leaf": 2}
    expected = dboost.cv(frame, "y", folds=4, time=rows, **options)
    given = frame.assign(day=shuffled) if is_column else frame
    result = dboost.cv(given, "y", folds=4, time="day" if is_column else shuffled, **options)
    assert hashes(result) == hashes(expected)


@pytest.mark.parametrize("kind", UNORDERED)
def test_text_that_is_not_ordered_as_the_time_is_refused(kind: str, tmp_path: Path) -> None:
    times, message = UNORDERED[kind]
    frame = FRAME.iloc[:60].assign(day=np.array(times, object))
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet")
    for data in (frame, tmp_path / "rows.csv", tmp_path / "rows.parquet"):
        with pytest.raises(DataError, match=f"column 'day', which was given as time.*{message}"):
            dboost.cv(data, "y", folds=4, time="day", max_iter=2)
    with pytest.raises(DataError, match=f"^time .*{message}"):
        dboost.cv(frame[["a", "y"]], "y", folds=4, time=frame["day"], max_iter=2)


def test_the_message_about_times_converts_them() -> None:
    frame = FRAME.iloc[:60].assign(day=DAYS.strftime("%d/%m/%Y").to_numpy())
    with pytest.raises(DataError) as error:
        dboost.cv(frame, "y", folds=4, time="day", max_iter=2)
    converted = frame.assign(day=eval(str(error.value).partition("in pandas by ")[2], {"pandas": pd, "frame": frame}))
    options = OPTIONS | {"max_iter": 2, "min_samples_leaf": 2}
    expected = dboost.cv(frame, "y", folds=4, time=np.arange(60), **options)
    assert hashes(dboost.cv(converted, "y", folds=4, time="day", **options)) == hashes(expected)


ROWS = np.arange(60)
HALVES = [(ROWS[:30], ROWS[30:]), (ROWS[30:], ROWS[:30])]
#: Targets of 60 rows, other keywords, the warning, and the number of models.
RARE: dict[str, tuple[Any, dict[str, Any], str, int]] = {
    "one row": (ROWS == 7, {}, r"class True has 1 row: fold \d trains on none and folds .* hold out none; give fewer folds", 5),
    "two rows": (ROWS % 30 == 7, {}, r"class True has 2 rows: folds \d, \d, \d hold out none", 5),
    "text": (np.where(ROWS == 7, "rare", np.where(ROWS % 2, "a", "b")), {}, "class 'rare' has 1 row: fold ", 5),
    "repeats": (ROWS == 7, {"repeats": 2, "folds": 3}, r"class True has 1 row: folds \d, \d train on none", 6),
    "pairs": (np.where(ROWS < 30, "a", "b"), {"folds": HALVES}, "class 'a' has 30 rows: fold 1 trains on none", 2),
    "time": (ROWS > 30, {"time": ROWS, "folds": 3}, "class True has 29 rows: folds 0, 1 train on none", 3),
    "groups": (ROWS > 29, {"groups": ROWS // 30, "folds": 2}, r"class True has 30 rows: fold \d trains on none", 2),
    "splitter": (ROWS > 29, {"folds": KFold(2)}, "class False has 30 rows: fold 0 trains on none", 2),
    "counts": (
        1.0 * (ROWS == 7),
        {"loss": "poisson"},
        r"fold \d of 5 is left out: all targets of the rows to train on are 0",
        4,
    ),
    "tweedie": (1.0 * (ROWS < 30), {"loss": "tweedie", "folds": HALVES}, "fold 1 of 2 is left out.*loss='tweedie' needs", 1),
    "stopping": (1.0 * (ROWS == 7), {"loss": "poisson", "early_stopping_rounds": 2}, "is left out.*numbered from 0", 4),
}


@pytest.mark.parametrize("kind", RARE)
def test_the_other_folds_go_on_where_one_lacks_a_class_or_a_count(kind: str) -> None:
    targets, options, message, n_models = RARE[kind]
    frame = FRAME.iloc[:60].assign(y=targets)
    with pytest.warns(UserWarning, match=message):
        result = dboost.cv(frame, "y", **OPTIONS | {"max_iter": 2} | options)
    assert len(result.boosters) == n_models and np.isfinite(result.best_score)
    if kind == "counts":
        assert np.isnan(result.predictions).sum() == 12, "those that the fold would have held out"
        with pytest.warns(UserWarning, match="is left out"):
            again = dboost.cv(frame, "y", **OPTIONS | {"max_iter": 2} | options, folds=5, start_from=result)
        assert len(again.boosters) == n_models


def test_no_fold_has_a_count() -> None:
    with pytest.raises(DataError, match="in every fold all targets of the rows to train on are 0, and loss='poisson'"):
        dboost.cv(FRAME.assign(y=0.0), "y", loss="poisson", **OPTIONS)


def test_parts_of_the_time_are_held_out_one_after_the_other() -> None:
    days = RNG.integers(0, 30, N)
    names = np.array([f"2024-01-{day + 1:02d}" for day in days])
    result = dboost.cv(FRAME, "y", folds=4, time=names, **OPTIONS)
    assert hashes(dboost.cv(FRAME.assign(day=days), "y", folds=4, time="day", **OPTIONS)) == hashes(result)
    found = split_rows(4, N, lambda: days, time=names, is_classification=False, seed=0)
    n_held = []
    for fold, booster in zip(found, result.boosters, strict=True):
        held, trained = days[fold.uses == TEST], days[fold.uses == TRAIN]
        assert trained.max() < held.min(), "rows of one day are not divided"
        assert (fold.uses != TRAIN)[days >= held.min()].all() and booster.n_iter_ == 12
        n_held.append(len(held))
    assert sum(n_held) == np.count_nonzero(~np.isnan(result.predictions)) and max(n_held) < 1.5 * N / 5
    rows = np.arange(N)
    by_row = split_rows(4, N, lambda: rows, time=rows, is_classification=False, seed=0)
    for fold, (train, test) in zip(by_row, TimeSeriesSplit(4).split(FRAME), strict=True):
        assert np.flatnonzero(fold.uses == TRAIN).tolist() == train.tolist()
        assert np.flatnonzero(fold.uses == TEST).tolist() == test.tolist()


def test_repeated_folds_divide_the_rows_differently() -> None:
    once = split_rows(3, N, lambda: FRAME["t"].to_numpy(), is_classification=True, seed=5)
    twice = split_rows(3, N, lambda: FRAME["t"].to_numpy(), repeats=2, is_classification=True, seed=5)
    assert [fold.uses.tolist() for fold in twice[:3]] == [fold.uses.tolist() for fold in once]
    assert sum((fold.uses == TEST).astype(int) for fold in twice[3:]).tolist() == [1] * N
    assert all((one.uses != other.uses).any() for one in twice[:3] for other in twice[3:])
    result = dboost.cv(FRAME, "z", folds=3, repeats=2, **OPTIONS)
    assert len(result.boosters) == 6 and not np.isnan(result.predictions).any()
    assert hashes(result)[:3] == hashes(dboost.cv(FRAME, "z", folds=3, **OPTIONS))


@pytest.mark.parametrize("sizes", [np.full(30, 20), np.arange(1, 31)])
def test_repeated_folds_of_groups(sizes: np.ndarray) -> None:
    groups = np.repeat(np.arange(30), sizes)
    n = len(groups)
    found = split_rows(3, n, lambda: groups, groups=groups, repeats=4, is_classification=False, seed=0)
    once = split_rows(3, n, lambda: groups, groups=groups, is_classification=False, seed=0)
    assert [fold.uses.tolist() for fold in found[:3]] == [fold.uses.tolist() for fold in once]
    divisions = [found[first : first + 3] for first in range(0, 12, 3)]
    for folds in divisions:
        assert sum((fold.uses == TEST).astype(int) for fold in folds).tolist() == [1] * n
        assert all(len(np.unique(fold.uses[groups == group])) == 1 for fold in folds for group in range(30))
        held = [int((fold.uses == TEST).sum()) for fold in folds]
        assert max(held) - min(held) <= sizes.max()
    assert len({tuple(sorted(fold.uses.tobytes() for fold in folds)) for folds in divisions}) == 4
    shops = FRAME.assign(shop=np.arange(N) % 17)
    result = dboost.cv(shops, "y", folds=3, repeats=2, groups="shop", **OPTIONS)
    assert len(result.boosters) == 6 and not np.isnan(result.predictions).any()


def test_columns_by_name_in_tables_of_every_kind(tmp_path: Path) -> None:
    shops = RNG.choice([f"shop {number}" for number in range(20)], N)
    weight = (np.arange(N) % 5 > 0).astype(np.float64)
    options = {"max_iter": 3, "max_leaf_nodes": 8, "progress": False, "folds": 3}
    expected = dboost.cv(FRAME[[*FEATURES, "y"]], "y", groups=shops, sample_weight=weight, **options)
    table = FRAME[[*FEATURES, "y"]].assign(shop=shops, v=weight)
    table.to_parquet(tmp_path / "rows.parquet", index=False)
    table.to_csv(tmp_path / "rows.csv", index=False)
    for data in (
        table,
        table.assign(shop=table["shop"].astype("category")),
        dd.from_pandas(table, npartitions=3),
        pa.Table.from_pandas(table),
        tmp_path / "rows.parquet",
        str(tmp_path / "rows.csv"),
    ):
        found = dboost.cv(data, "y", groups="shop", sample_weight="v", **options)
        assert hashes(found) == hashes(expected)
        assert list(found.boosters[0].feature_names_in_) == FEATURES, "the column of groups is no feature"
    by_values = dboost.cv(table, "y", groups="shop", sample_weight=weight, features=FEATURES, **options)
    assert hashes(by_values) == hashes(expected)
    named = dboost.cv(table, "y", groups="shop", sample_weight="v", features=[*FEATURES, "shop"], **options)
    assert "shop" in named.boosters[0].feature_names_in_
    by_shop = dboost.cv(table[shops < "shop 2"], "y", **options | {"folds": "shop", "features": FEATURES})
    assert len(by_shop.boosters) == len(set(shops[shops < "shop 2"])), "text names folds as well"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"repeats": 0}, "repeats=0 must be a number of at least 1"),
        ({"repeats": True}, "repeats=True must be"),
        ({"repeats": 2, "folds": GroupKFold(2)}, "repeats needs a number of folds, not GroupKFold"),
        ({"time": "a", "groups": "a"}, "groups do not go together with time"),
        ({"time": "a", "repeats": 2}, "repeats do not go together with time"),
        ({"time": "a", "folds": [(np.arange(9), np.arange(9, 20))]}, "time needs a number of folds, not list"),
        ({"time": "z", "folds": 5}, "folds=5 is too many for the 2 distinct values of time"),
        ({"time": "nothing"}, "no column 'nothing', which was given as time"),
        ({"groups": "b"}, "column 'b', which was given as groups, has missing values"),
        ({"time": np.arange(3)}, "time has shape"),
        ({"time": np.where(np.arange(N) == 5, np.nan, 1.0 * np.arange(N))}, f"time has missing values in 1 of {N} .* in row 5"),
        ({"time": np.array(["2024-01-01", "NaT"] * (N // 2), "datetime64[D]")}, f"time has missing values in {N // 2} of {N}"),
        ({"groups": np.where(np.arange(N) == 5, np.nan, 1.0)}, "groups has missing values in 1 of"),
    ],
)
def test_divisions_that_do_not_go_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises((ParameterError, DataError), match=message):
        dboost.cv(FRAME, "y", **given, **OPTIONS)


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        (1, "folds=1 must be at least 2"),
        (N + 1, "at most the number of rows"),
        ([], "there is no fold"),
        (pd.Series([], dtype=object), "there is no fold"),
        ([(np.arange(5), np.arange(5, 9)), (np.arange(5),)], "is no pair"),
        ([(np.arange(5), np.array([4, 9]))], "row 4 is both trained on and held out"),
        ([(np.arange(5), np.array([N]))], f"row {N} is not among the {N} rows"),
        ([(np.arange(5), np.array([-1]))], "row -1 is not among"),
        ([(np.arange(5), np.array([], np.int64))], "fold 0 has no row to hold out"),
        ([(np.zeros(N - 1, bool), np.zeros(N - 1, bool))], "shape"),
        (np.zeros(N, np.int64), "the same fold"),
        (np.zeros(N - 1, np.int64), f"the data have {N} rows of positive weight"),
        ("nothing", "no column 'nothing'"),
        (2.5, "must be a number, pairs"),
        ([(np.array([0.5]), np.array([1.0]))], "positions or by a mask"),
        (
            np.where(np.arange(N) > N - 3, np.nan, np.arange(N) % 3),
            f"folds has missing values in 2 of {N} rows .* in row {N - 2}:",
        ),
        (pd.Series(np.where(np.arange(N) == 7, None, "a"), dtype=object), "folds has missing values in 1 of .* in row 7: fill"),
        ([None, *["a", "b"] * (N // 2)][:N], "folds has missing values in 1 .* in row 0"),
    ],
)
def test_folds_that_do_not_match_the_rows(folds: Any, message: str) -> None:
    with pytest.raises((DataError, ParameterError, InputTypeError), match=message):
        dboost.cv(FRAME, "y", folds=folds, **OPTIONS)


def test_what_cv_does_not_take() -> None:
    with pytest.raises(InputTypeError, match="the target is missing"):
        dboost.cv(FRAME)
    with pytest.raises(ParameterError, match="folds=5 is more than the rows of any class: the largest has 2"):
        dboost.cv(FRAME.iloc[:6].assign(z=[*"aabbcc"]), "z", **OPTIONS)
    with pytest.raises(ParameterError, match="arcbites"):
        dboost.cv(FRAME, "y", arcbites=True, **OPTIONS)
    with pytest.raises(ParameterError, match="groups do not go together"):
        dboost.cv(FRAME, "y", folds=np.arange(N) % 2, groups=np.arange(N), **OPTIONS)
    with pytest.raises(ParameterError, match="groups has shape"):
        dboost.cv(FRAME, "y", groups=[1, 2], **OPTIONS)
    with pytest.raises(ParameterError, match="more than the 2 groups"):
        dboost.cv(FRAME, "y", groups=np.arange(N) % 2, **OPTIONS)
    with dboost.prepare(FRAME, "y", features=FEATURES, max_bins=30) as data:
        for given in ({"features": ["a"]}, {"sample_weight": "w"}, {"target": "z"}):
            with pytest.raises(ParameterError, match="belongs to dboost"):
                dboost.cv(data, **given)
        for name in ("folds", "groups", "time"):
            with pytest.raises(ParameterError, match=f"{name}='a' names a column, but a data set has bins only"):
                dboost.cv(data, **{name: "a"})
        with pytest.raises(ParameterError, match="max_bins=99 does not fit"):
            dboost.cv(data, max_bins=99)
        assert dboost.cv(data, max_iter=2, progress=False).boosters[0].n_iter_ == 2
        with pytest.raises(ParameterError, match=r"split_proposal='node' .* but these data were binned before: leave it out"):
            dboost.fit(data, max_iter=2, progress=False, split_proposal="node")
    for proposal in ("exact", "tree", "node"):
        with pytest.raises(ParameterError, match=f"split_proposal='{proposal}' .* but cv bins the rows once, for all folds"):
            dboost.cv(FRAME, "y", split_proposal=proposal, **OPTIONS)
    with pytest.raises(InputTypeError, match="closed"):
        dboost.cv(data)


def test_a_data_set_is_read_once_for_many() -> None:
    with dboost.prepare(FRAME, "t", features=FEATURES) as data:
        one, other = (dboost.cv(data, folds=3, max_iter=3, progress=False, learning_rate=rate) for rate in (0.1, 0.3))
    again = dboost.cv(FRAME, "t", folds=3, learning_rate=0.3, **OPTIONS | {"max_iter": 3, "max_leaf_nodes": 31})
    assert [booster.sha256 for booster in other.boosters] == [booster.sha256 for booster in again.boosters]
    assert one.best_score != other.best_score


def test_the_folder_of_a_data_set_is_taken_by_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    dboost.prepare(FRAME, "t", features=FEATURES, path=folder)
    options = {"folds": 2, "max_iter": 2, "progress": False}
    expected = hashes(dboost.cv(dboost.Dataset(folder), **options))
    assert hashes(dboost.cv(str(folder), **options)) == hashes(dboost.cv(folder, "t", **options)) == expected
    for more in ({"target": "z"}, {"target": FRAME["t"]}, {"sample_weight": "w"}):
        with pytest.raises(ParameterError, match="belongs to dboost"):
            dboost.cv(folder, **more, **options)
    assert dboost.fit(folder, "t", max_iter=1).n_iter_ == 1


def test_rows_of_weight_zero_are_in_no_fold(tmp_path: Path) -> None:
    """Pairs, values and predictions count the rows of the table, whatever its kind."""
    table = FRAME[[*FEATURES, "y"]].assign(v=(np.arange(N) % 4 > 0) * 1.0, shop=np.arange(N) % 17, fold=np.arange(N) // 700)
    kept = table["v"].to_numpy() > 0
    rows, options = table[kept].reset_index(drop=True), OPTIONS | {"max_iter": 4}
    table.to_parquet(tmp_path / "rows.parquet", index=False)
    numbers = np.cumsum(kept) - 1
    pairs = list(KFold(3).split(table))
    of_kept = [tuple(numbers[at[kept[at]]] for at in pair) for pair in pairs]
    masks = [tuple(np.isin(np.arange(N), at) for at in pair) for pair in pairs]
    for division, expected in (
        ({"folds": 3}, {"folds": 3}),
        ({"folds": pairs}, {"folds": of_kept}),
        ({"folds": masks}, {"folds": of_kept}),
        ({"folds": table["fold"].to_numpy()}, {"folds": rows["fold"].to_numpy()}),
        ({"folds": "fold"}, {"folds": rows["fold"].to_numpy()}),
        ({"folds": 3, "groups": table["shop"]}, {"folds": 3, "groups": rows["shop"]}),
        ({"folds": 3, "group": table["shop"]}, {"folds": 3, "groups": rows["shop"]}),
        ({"folds": 3, "time": table["shop"]}, {"folds": 3, "time": rows["shop"]}),
        ({"folds": GroupKFold(3), "groups": table["shop"]}, {"folds": GroupKFold(3), "groups": rows["shop"]}),
    ):
        reference = dboost.cv(rows, "y", **options, **expected)
        for data, weight in ((table, "v"), (table, table["v"]), (tmp_path / "rows.parquet", "v")):
            found = dboost.cv(data, "y", sample_weight=weight, **options, **division)
            assert hashes(found) == hashes(reference), division
            assert found.predictions.shape == (N,)
            assert np.isnan(found.predictions[~kept]).all()
            np.testing.assert_array_equal(found.predictions[kept], reference.predictions)
    names_missing = table.assign(shop=np.where(kept, table["shop"], np.nan))
    found = dboost.cv(names_missing, "y", folds=3, groups="shop", sample_weight="v", **options)
    assert hashes(found) == hashes(dboost.cv(rows, "y", folds=3, groups="shop", **options))
    for wrong, message in (
        ({"groups": rows["shop"]}, f"groups has shape .*, but the data have {N} rows: give one"),
        ({"groups": table["shop"].where(np.arange(N) != 2)}, f"missing values in 1 of {N} rows, first in row 2"),
        ({"folds": [(np.array([1, 2]), np.array([0, 4]))]}, "fold 0 has no row to hold out"),
    ):
        with pytest.raises(DBoostError, match=message):
            dboost.cv(table, "y", sample_weight="v", **options, **wrong)
    more = dboost.cv(table, "y", sample_weight="v", folds=pairs, **options)
    assert dboost.cv(table, "y", sample_weight="v", start_from=more, **options).predictions.shape == (N,)
    assert more.predict_interval(table, coverage=0.5).shape == (N, 2)


@pytest.mark.parametrize("happens", ["replaced", "deleted"])
@pytest.mark.parametrize("target", ["y", "t"])
def test_the_folder_is_read_once(target: str, happens: str, tmp_path: Path) -> None:
    """What happens to it while the folds are trained changes nothing."""
    folder = tmp_path / "data"
    rows = FRAME[[*FEATURES, target, "w"]].assign(shop=np.arange(N) % 17)
    roles = {"sample_weight": "w", "group": "shop"}
    data = dboost.prepare(rows, target, folder, **roles)
    options = {"folds": 3, "max_iter": 3, "progress": False}
    expected = dboost.cv(data, **options)

    def happen(now: Any) -> None:
        if now.iteration == 1:
            shutil.rmtree(folder)
            if happens == "replaced":
                dboost.prepare(rows[::-1], target, folder, **roles)

    found = dboost.cv(data, callbacks=[happen], **options)
    assert hashes(found) == hashes(expected)
    np.testing.assert_array_equal(found.predictions, expected.predictions)


def test_weights_that_are_none() -> None:
    with pytest.raises(DataError, match="sample_weight is not one value per row"):
        dboost.cv(FRAME, "y", sample_weight=[[1], [2, 3]], max_iter=1)


def test_splitters_get_several_targets() -> None:
    targets = FRAME[["y", "a"]].to_numpy()
    pairs = list(KFold(3).split(FRAME))
    found = dboost.cv(FRAME[["b", "c"]], targets, folds=KFold(3), max_iter=2, progress=False)
    assert hashes(found) == hashes(dboost.cv(FRAME[["b", "c"]], targets, folds=pairs, max_iter=2, progress=False))

    class Seen(KFold):
        def split(self, X: Any, y: Any = None, groups: Any = None) -> Any:
            np.testing.assert_array_equal(y, targets)
            return super().split(X, y, groups)

    assert hashes(dboost.cv(FRAME[["b", "c"]], targets, folds=Seen(3), max_iter=2, progress=False)) == hashes(found)


def test_offsets_are_part_of_the_predictions() -> None:
    offset = RNG.normal(size=N)
    result = dboost.cv(FRAME, "y", offset=offset, folds=np.arange(N) % 2, **OPTIONS)
    odd = np.arange(N) % 2 == 1
    expected = result.boosters[1].predict(FRAME[odd], offset=offset[odd])
    np.testing.assert_array_equal(result.predictions[odd], expected)


def assert_same(found: dboost.CVResult, expected: dboost.CVResult) -> None:
    """Check that everything but seconds is the same, to the last bit."""
    pd.testing.assert_frame_equal(found.scores, expected.scores, check_exact=True)
    pd.testing.assert_frame_equal(found.summary, expected.summary, check_exact=True)
    assert (found.best_iteration, found.best_score, found.metric) == (
        expected.best_iteration,
        expected.best_score,
        expected.metric,
    )
    assert hashes(found) == hashes(expected) and found.n_iterations == expected.n_iterations
    np.testing.assert_array_equal(found.predictions, expected.predictions)
    for one, other in zip(found.boosters, expected.boosters, strict=True):
        assert one.history.drop(columns="seconds").equals(other.history.drop(columns="seconds"))


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("target", ["y", "z", "t"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"eval_metric": ["log_loss", "auc"], "early_stopping_rounds": 3, "learning_rate": 0.9, "sample_weight": "w"},
        {"subsample": 0.6, "learning_rate": lambda k: 0.3 / (1 + k)},
        {"offset": "c", "folds": 2, "repeats": 2, "max_features": 0.5},
    ],
)
def test_a_continued_cross_validation_is_one_with_all_iterations(target: str, more: dict[str, Any]) -> None:
    if "eval_metric" in more and target != "z":
        more = more | {"eval_metric": ["mae", "rmse"] if target == "y" else ["accuracy", "log_loss"]}
    if "offset" in more and target == "t":
        more = {name: value for name, value in more.items() if name != "offset"}
    options = OPTIONS | {"folds": 3} | more
    expected = dboost.cv(FRAME, target, **options)
    division = {name: options.pop(name) for name in ("folds", "repeats") if name in options}
    found = dboost.cv(FRAME, target, **options | division | {"max_iter": 1})
    assert found.n_iterations == 1
    for n in (4, 7) if "early_stopping_rounds" in options else (4, 5, 2):
        found = pickle.loads(pickle.dumps(found)) if n != 4 and not callable(options.get("learning_rate")) else found
        before = found.n_iterations
        found = dboost.cv(FRAME, target, start_from=found, **options | {"max_iter": n})
        assert before <= found.n_iterations <= before + n
    assert_same(found, expected)
    if "early_stopping_rounds" in options and target != "y":
        assert found.n_iterations == found.best_iteration + 3 < 12, "early stopping has kept fewer iterations"
        again = dboost.cv(FRAME, target, start_from=found, **options)
        pd.testing.assert_frame_equal(again.scores, expected.scores, check_exact=True)
        np.testing.assert_array_equal(again.predictions, expected.predictions)


def test_a_continued_cross_validation_on_a_data_set() -> None:
    given: dict[str, Any] = {"max_leaf_nodes": 8, "eval_metric": "auc", "progress": False}
    seen: list[int] = []

    def stop(now: dboost.Iteration) -> bool:
        seen.append(now.iteration)
        return now.iteration == 3

    with dboost.prepare(FRAME, "z", features=FEATURES) as data:
        expected = dboost.cv(data, folds=3, max_iter=9, **given)
        stopped = dboost.cv(data, folds=3, max_iter=100, callbacks=[stop], **given)
        numbers = np.zeros(N, np.int64)
        for number, fold in enumerate(split_rows(3, N, lambda: FRAME["z"].to_numpy(), is_classification=True, seed=0)):
            numbers[fold.uses == TEST] = number
        for how in ({}, {"folds": 3}, {"folds": numbers}, {"n_threads": 1}, {"memory_limit": "200MiB"}):
            seen.clear()
            look = [lambda now: seen.append(now.iteration)]
            assert_same(dboost.cv(data, start_from=stopped, max_iter=6, callbacks=look, **how, **given), expected)
            assert seen == [4, 5, 6, 7, 8, 9]
        assert_same(dboost.cv(data, init_model=stopped, max_iter=6, **given), expected)  # type: ignore[call-arg]


def test_the_first_scores_of_a_continuation_are_not_read_twice_by_early_stopping() -> None:
    """The rule sees each earlier mean once: iterations without improvement before the continuation count."""
    options = OPTIONS | {"learning_rate": 0.9, "early_stopping_rounds": 5, "eval_metric": "log_loss", "folds": 3}
    expected = dboost.cv(FRAME, "z", **options | {"max_iter": 50})
    first = dboost.cv(FRAME, "z", **options | {"max_iter": expected.n_iterations - 1})
    assert first.n_iterations == expected.n_iterations - 1
    more = {"max_iter": 50 - first.n_iterations, "folds": None}
    assert_same(dboost.cv(FRAME, "z", start_from=first, **options | more), expected)


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"learning_rate": 0.2}, ParameterError, "learning_rate was 0.1 in this result and is 0.2 now"),
        ({"eval_metric": "mae"}, ParameterError, "eval_metric was"),
        ({"early_stopping_rounds": 3}, ParameterError, "early_stopping_rounds was None"),
        ({"learning_rate": [0.1] * 3 + [0.2] * 9}, ParameterError, "another cross-validation: iteration 1 had another"),
        ({"folds": 4}, ParameterError, "start_from is a result of other folds"),
        ({"folds": 3, "repeats": 2}, ParameterError, "start_from is a result of other folds"),
        ({"time": np.arange(N)}, ParameterError, "start_from is a result of other folds"),
        ({"start_from": 3}, InputTypeError, "start_from must be a result of dboost.cv, not int"),
        ({"data": FRAME.assign(y=-FRAME["y"])}, DataError, "start_from is a result of other data: .* was"),
        ({"data": FRAME.iloc[1:]}, DataError, f"result of {N} rows of positive weight, the data have {N - 1}"),
        ({"features": ["a", "b"]}, ParameterError, "start_from: the model has 4 features, the data 2"),
        ({"max_iter": -1}, ParameterError, "max_iter"),
    ],
)
def test_what_cannot_be_continued(change: dict[str, Any], error: type[Exception], message: str) -> None:
    options = OPTIONS | {"max_iter": 3}
    given = {"data": FRAME, "start_from": dboost.cv(FRAME, "y", folds=3, **options)} | options | change
    with pytest.raises(error, match=message):
        dboost.cv(given.pop("data"), "y", **given)


class Fails(Loss):
    """A loss that fails in the middle of a fit."""

    name = "fails"
    constant_hessian = True

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        if (raw != raw[0]).any():
            raise ZeroDivisionError("on purpose")
        return 0.5 * (y - raw) ** 2

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return raw - y

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.ones(len(y))


def test_an_error_in_one_fold_ends_all() -> None:
    with pytest.raises((DataError, dboost.DBoostError, ZeroDivisionError)) as caught:
        dboost.cv(FRAME, "y", loss=Fails(), **OPTIONS)
    assert "on purpose" in str(caught.value) + str(caught.value.__cause__)


INTERRUPTED = """
import os, signal, threading, numpy as np, dboost
def interrupt(now):
    if now.iteration == 3:
        os.kill(os.getpid(), signal.SIGINT)
try:
    X = np.random.default_rng(0).normal(size=(2000, 3))
    dboost.cv(X, X[:, 0], max_iter=10**6, callbacks=[interrupt], progress=False)
except KeyboardInterrupt as error:
    print(type(error).__name__, error, threading.active_count())
"""


@pytest.mark.slow
def test_many_folds_in_a_bounded_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, tune: Tune, capfd: pytest.CaptureFixture[str]
) -> None:
    together = dboost.cv(FRAME, "z", folds=7, **OPTIONS)
    tune(folds_at_once=2)
    most, fit = [0], training_folds.Fold

    def counting(*arguments: Any, **options: Any) -> Any:
        most.append(sum(thread.name.startswith("dboost-fold") for thread in threading.enumerate()))
        return fit(*arguments, **options)

    monkeypatch.setattr(training_folds, "Fold", counting)
    for options in (OPTIONS, OPTIONS | {"memory_limit": "200MiB", "progress": True}):
        found = dboost.cv(FRAME, "z", folds=7, **options)
        assert max(most) == 2
        pd.testing.assert_frame_equal(found.scores, together.scores)
        np.testing.assert_array_equal(found.predictions, together.predictions)
        assert [one.sha256 for one in found.boosters] == [one.sha256 for one in together.boosters]
    assert "fold 7/7: " in capfd.readouterr().err
    more = dboost.cv(FRAME, "z", start_from=found, **OPTIONS)
    tune(folds_at_once=32)
    assert more.scores.equals(dboost.cv(FRAME, "z", start_from=together, **OPTIONS).scores)
    stopped = dboost.cv(FRAME, "z", folds=7, early_stopping_rounds=1, **OPTIONS)
    tune(folds_at_once=2)
    assert dboost.cv(FRAME, "z", folds=7, early_stopping_rounds=1, **OPTIONS).scores.equals(stopped.scores)
    assert max(most) == 7  # they wait for each other


def test_an_error_in_one_of_many_folds(monkeypatch: pytest.MonkeyPatch, tune: Tune) -> None:
    tune(folds_at_once=2)
    begun, fit = [], training_folds.Fold

    def failing(*arguments: Any, **_: Any) -> Any:
        begun.append(arguments)
        if len(begun) == 3:
            raise DataError("this fold")
        return fit(*arguments)

    monkeypatch.setattr(training_folds, "Fold", failing)
    with pytest.raises(DataError, match="this fold"):
        dboost.cv(FRAME, "y", folds=20, **OPTIONS)
    assert len(begun) <= 5  # the others do not begin


@pytest.mark.parametrize("n_allowed", [0, 3])
def test_threads_that_the_system_does_not_start(monkeypatch: pytest.MonkeyPatch, n_allowed: int) -> None:
    start, started = threading.Thread.start, []

    def refusing(thread: threading.Thread) -> None:
        if thread.name.startswith("dboost-fold"):
            if len(started) == n_allowed:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    with pytest.raises(DBoostError, match="7 folds are fitted at the same time, and the system starts no more threads"):
        dboost.cv(FRAME, "y", folds=7, early_stopping_rounds=2, **OPTIONS)
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.slow
def test_an_interrupt_ends_all_folds() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.stdout.startswith(f"{FitInterrupted.__name__} cross-validation was interrupted after"), done
    assert done.stdout.split()[-1] == "1", "a thread of a fold still runs"


def test_five_folds_hold_the_codes_once_and_little_beside_their_scores_and_gradients() -> None:
    n = 200_000
    x = np.random.default_rng(0).standard_normal((n, 4), dtype=np.float32)
    y, options = (x[:, 0] > 0) * 1.0, {"loss": "log_loss", "max_iter": 2, "progress": False, "n_threads": 2}
    dboost.cv(x, y, **options)  # compile
    tracemalloc.start(1)
    try:
        dboost.cv(x, y, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Of each row: 17 bytes in each fold, 16 to score it where it is held out, 16 in each of two trees that grow, codes, target.
    assert peak / n < 210
