"""Groups of rows: samples, folds and validation rows take all rows of a group or none, wherever the rows lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from distributed import Client
from sklearn.model_selection import GroupKFold

import dboost
from dboost import DataError, ParameterError
from dboost.cli import main
from dboost.data import open_table
from dboost.data.kinds.partition import role_column
from dboost.session.row_samples import TEST
from tests.helpers.fits import cut

RNG = np.random.default_rng(0)
N = 1_200
FEATURES = ["a", "b", "kind"]
OPTIONS: dict[str, Any] = {"max_iter": 4, "max_leaf_nodes": 6, "subsample": 0.5, "progress": False}


def a_frame() -> pd.DataFrame:
    frame = pd.DataFrame({name: RNG.integers(0, 12, N).astype(np.float64) for name in "ab"})
    frame["kind"] = RNG.choice(["one", "two", "three"], N)
    frame["g"] = RNG.integers(-5, 100, N)
    frame["text"] = [f"customer {g}" for g in frame["g"]]
    frame["w"] = RNG.integers(0, 3, N)
    frame["y"] = frame["a"] - frame["b"] * (frame["kind"] == "one") + RNG.normal(size=N)
    frame["z"] = frame["y"] > 1
    return frame


FRAME = a_frame()


def fitted(data: Any = FRAME, **options: Any) -> str:
    return dboost.fit(data, "y", features=FEATURES, **OPTIONS | options).sha256


@pytest.fixture
def expected() -> str:
    return fitted(group="g", sample_weight="w")


# Keys.


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([3, 1, 3, -2]),
        pd.Series([3.0, 1.0, 3.0, -2.0]),
        pd.Series(["3", "01", " 3.0", "-2"]),
        pd.Series(["3", "1", "3", "-2"], dtype="category"),
        pl.Series([3, 1, 3, -2]),
        pa.array(["3", "1", "3", "-2"]),
        np.array([3, 1, 3, -2], np.int8),
        [3, 1, 3, -2],
    ],
)
def test_keys_of_whole_numbers_are_the_numbers(values: Any) -> None:
    assert role_column(values, "group", None, 4).tolist() == [3, 1, 3, -2]


def test_keys_of_text_distinguish_it() -> None:
    names = [f"customer {i}" for i in range(100_000)]  # more than a categorical feature may have
    keys = role_column(names, "group", None, None)
    assert len(set(keys.tolist())) == len(names)
    assert role_column(pd.Series(names[::-1]).astype("category"), "group", None, None).tolist() == keys[::-1].tolist()


@pytest.mark.parametrize("values", [[0.5], [np.inf], [1e19], pd.Series([1.5], dtype="category")])
def test_fractions_are_no_keys(values: Any) -> None:
    with pytest.raises(DataError, match="group 'g' holds fractions, or numbers of 2"):
        role_column(values, "group", "g", None)


# Samples of rows.


def test_a_group_for_each_row_changes_nothing() -> None:
    """The key of row i is i, which is its number, too."""
    assert fitted(FRAME, group=np.arange(N)) == fitted(FRAME)


def test_a_group_counts_as_one_row() -> None:
    """Each row as a group of two rows is each row with a weight of two."""
    twice = FRAME.loc[np.repeat(np.arange(N), 2)].reset_index(drop=True)
    once = dboost.fit(FRAME, "y", features=FEATURES, sample_weight=np.full(N, 2), min_samples_leaf=1, **OPTIONS)
    found = dboost.fit(twice, "y", features=FEATURES, group=np.repeat(np.arange(N), 2), min_samples_leaf=1, **OPTIONS)
    np.testing.assert_array_equal(found.predict(FRAME), once.predict(FRAME))
    other = dboost.fit(twice, "y", features=FEATURES, min_samples_leaf=1, **OPTIONS)
    assert not np.array_equal(other.predict(FRAME), once.predict(FRAME))


def test_groups_are_columns_or_values(expected: str) -> None:
    assert fitted(group=FRAME["g"], sample_weight=FRAME["w"].to_numpy()) == expected
    assert fitted(FRAME.assign(g=FRAME["g"].astype(str)), group="g", sample_weight="w") == expected
    assert fitted(sample_weight="w") != expected
    every = dboost.fit(FRAME[[*FEATURES, "y", "g"]], "y", group="g", **OPTIONS)
    assert every.feature_names_in_.tolist() == FEATURES


BITES = [
    {"arcbites": dboost.ArcBites(n_bites=3, trees_per_visit=2), "subsample": 1.0, "max_iter": 6},
    {"arcbites": dboost.ArcBites(n_bites=4, trees_per_visit=1, parts=2), "subsample": 0.7, "max_iter": 5},
    pytest.param({"arcbites": dboost.ArcBites(n_bites=3), "subsample": 1.0, "max_iter": 6}, marks=pytest.mark.slow),
]


@pytest.mark.fast_cells(1)
@pytest.mark.filterwarnings("ignore:no eval_set was given")
@pytest.mark.parametrize("options", BITES)
def test_bites_have_whole_groups(options: dict[str, Any]) -> None:
    holds_out = options["arcbites"].trees_per_visit is None
    assert (fitted(group=np.arange(N), **options) == fitted(**options)) != holds_out  # then rows are numbered anew
    roles = {"group": "g", "sample_weight": "w"}
    expected = fitted(**roles, **options)
    assert fitted(sample_weight="w", **options) != expected
    if not holds_out:  # a prepared data set needs an evaluation set
        with dboost.prepare(FRAME, "y", features=FEATURES, **roles) as data:
            assert dboost.fit(data, **OPTIONS | options).sha256 == expected


def test_bites_without_groups_are_skipped() -> None:
    """Of 20 bites only a few have rows."""
    options = {"arcbites": dboost.ArcBites(n_bites=20, trees_per_visit=1), "subsample": 1.0, "max_iter": 8}
    group = np.arange(N) % 3
    assert fitted(group=group, **options) == fitted(cut(FRAME, [500]), group=group, **options)


def test_prepared_data_keep_their_groups(tmp_path: Path, expected: str) -> None:
    data = dboost.prepare(FRAME, "y", tmp_path / "data", features=FEATURES, group="g", sample_weight="w")
    assert data.settings["group"] == "g"
    assert dboost.fit(data, group="g", **OPTIONS).sha256 == expected
    with pytest.raises(ParameterError, match=r"group='text' does not fit the data: .* was prepared with group='g'"):
        dboost.fit(data, group="text", **OPTIONS)
    without = dboost.prepare(FRAME, "y", features=FEATURES, sample_weight="w")
    with pytest.raises(ParameterError, match="was prepared without group"):
        dboost.fit(without, group="g", **OPTIONS)


def test_a_checkpoint_is_of_its_groups(tmp_path: Path) -> None:
    def stop(iteration: Any) -> None:
        if iteration.iteration == 2:
            raise RuntimeError("stopped")

    options = OPTIONS | {"checkpoint": tmp_path, "checkpoint_every": 1, "max_iter": 6}
    with pytest.raises(RuntimeError, match="stopped"):
        dboost.fit(FRAME, "y", features=FEATURES, group="g", callbacks=[stop], **options)
    with pytest.raises(DataError, match="the data are not the same, group differs"):
        dboost.fit(FRAME, "y", features=FEATURES, group=FRAME["g"] // 2, **options)


# Folds and validation rows.


def uses_of(result: dboost.CVResult) -> list[np.ndarray]:
    return [one.rows.uses for one in result.states]


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("group", ["g", "text"])
@pytest.mark.parametrize("folds", [4, GroupKFold(4)])
def test_folds_keep_groups_together(group: str, folds: Any) -> None:
    options = OPTIONS | {"features": FEATURES, "folds": folds}
    result = dboost.cv(FRAME, "y", group=group, **options)
    for uses in uses_of(result):
        held = uses == TEST
        assert set(pd.Series(held).groupby(FRAME["g"]).nunique()) == {1}
    with dboost.prepare(FRAME, "y", features=FEATURES, group=group) as data:
        again = dboost.cv(data, **{name: value for name, value in options.items() if name != "features"})
    assert [one.sha256 for one in again.boosters] == [one.sha256 for one in result.boosters]


def test_groups_of_whole_numbers_have_the_same_folds_under_both_names() -> None:
    options = OPTIONS | {"features": FEATURES, "folds": 3, "subsample": 1.0}
    one, other = (dboost.cv(FRAME, "y", **options, **{name: "g"}) for name in ("group", "groups"))
    assert [fold.tolist() for fold in uses_of(one)] == [fold.tolist() for fold in uses_of(other)]
    assert [booster.sha256 for booster in one.boosters] == [booster.sha256 for booster in other.boosters]


@pytest.mark.parametrize("target", ["y", "z"])
def test_validation_rows_of_estimators_are_whole_groups(target: str) -> None:
    options = {"early_stopping": True, "validation_fraction": 0.3, "max_iter": 5, "random_state": 2}
    estimator: Any = (dboost.DBoostClassifier if target == "z" else dboost.DBoostRegressor)(**options)
    twice = pd.concat([FRAME, FRAME], ignore_index=True)
    names = {"features": FEATURES, "group": np.tile(np.arange(N), 2)}
    with dboost.prepare(twice, target, **names) as data:
        estimator.fit(data)
    n_held_out = 2 * N - int(estimator.booster_.sources[0]["rows"])
    assert 0.2 < n_held_out / (2 * N) < 0.4 and n_held_out % 2 == 0


def test_too_few_groups_for_validation() -> None:
    with (
        dboost.prepare(FRAME, "y", features=FEATURES, group=np.zeros(N, int)) as data,
        pytest.raises(ParameterError, match="the groups are too few to hold some of them out for validation"),
    ):
        dboost.DBoostRegressor(early_stopping=True, max_iter=5).fit(data)


# Errors.


def test_a_group_without_effect_is_an_error() -> None:
    with pytest.raises(ParameterError, match="group has no effect on this fit, because no rows are drawn"):
        fitted(group="g", subsample=1.0)
    with pytest.raises(ParameterError, match="group and groups are two names"):
        dboost.cv(FRAME, "y", group="g", groups="g")
    with pytest.raises(ParameterError, match="group has no effect with time if no rows are drawn"):
        dboost.cv(FRAME, "y", group="g", time="a")
    with (
        dboost.prepare(FRAME, "y", group="g") as data,
        pytest.raises(ParameterError, match=r"group belongs to dboost\.prepare"),
    ):
        dboost.cv(data, group="g")


def test_missing_groups_are_named() -> None:
    frame = FRAME.assign(text=FRAME["text"].where(FRAME.index != 17))
    with pytest.raises(DataError, match=r"group 'text' contains NaN \(a missing value\) in 1 row, first in row 17"):
        fitted(frame, group="text")
    with pytest.raises(DataError, match="first in row 7 of partition 1"):
        fitted(cut(frame, [10]), group="text")
    with pytest.raises(DataError, match="group has 3 rows, the data have 1200"):
        fitted(group=[1, 2, 3])


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize(
    ("form", "place"),
    [
        ("frame", "here"),
        ("collection", "workers"),
        ("path", "here"),
        ("frame and target", "workers"),
        ("path and target", "here"),
    ],
)  # fmt: skip
def test_evaluation_sets_have_the_groups_of_their_column(form: str, place: str, client: Client, tmp_path: Path) -> None:
    def given(frame: pd.DataFrame) -> Any:
        frame.to_parquet(tmp_path / "eval.parquet")
        forms = {"frame": frame, "collection": cut(frame, [10]), "path": tmp_path / "eval.parquet"}
        table = forms[form.partition(" ")[0]]
        return (table, "y") if form.endswith("target") else table

    options = {"group": "g", "client": client if place == "workers" else None, "max_iter": 2}
    without = FRAME.drop(columns="g")
    expected = fitted(eval_set=without, group=FRAME["g"].to_numpy(), max_iter=2)  # then sets have no group
    assert fitted(eval_set=given(FRAME), **options) == expected
    flawed = FRAME.assign(g=FRAME["g"].where(FRAME.index != 17))
    with pytest.raises(
        DataError, match=r"evaluation set 'eval': group 'g' contains NaN \(a missing value\) in 1 row, first in"
    ):
        fitted(eval_set=given(flawed), **options)
    if form == "frame and target":  # X of (X, y) may lack it
        assert fitted(eval_set=given(without), **options) == expected
    else:
        with pytest.raises(DataError, match=r"evaluation set 'eval': the data have no column 'g', which was given as group"):
            fitted(eval_set=given(without), **options)


def test_the_groups_of_an_evaluation_set_may_be_a_feature() -> None:
    options = OPTIONS | {"features": ["a", "g"], "group": "g", "max_iter": 2}
    booster = dboost.fit(FRAME, "y", eval_set=FRAME, **options)
    assert booster.feature_names_in_.tolist() == ["a", "g"]
    assert booster.sha256 == dboost.fit(FRAME, "y", eval_set=(FRAME[["a", "g"]].to_numpy(), FRAME["y"]), **options).sha256


def test_a_table_reads_groups_once_for_all_partitions() -> None:
    with open_table(cut(FRAME, [400, 401]), "y", group="text") as table:
        keys = np.concatenate([table.roles(i).group for i in range(table.n_chunks)])  # type: ignore[arg-type]
        np.testing.assert_array_equal(keys, role_column(FRAME["text"], "group", None, N))
        np.testing.assert_array_equal(np.concatenate([table.draw_ids(i, 0) for i in range(table.n_chunks)]), keys)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "rows.parquet")
    FRAME.to_parquet(path)
    settings = [f"--set={name}={value}" for name, value in OPTIONS.items() if name != "progress"]
    names = f"--set=features=[{','.join(FEATURES)}]"
    common = ["--target", "y", "--group", "g", names]
    main(["prepare", path, *common, "--output", str(tmp_path / "data")])
    assert dboost.Dataset(tmp_path / "data").settings["group"] == "g"
    main(["cv", path, *common, *settings, "--folds", "3", "--output", str(tmp_path / "scores.csv"), "--quiet"])
    expected = dboost.cv(FRAME, "y", group="g", features=FEATURES, folds=3, **OPTIONS).scores
    np.testing.assert_allclose(pd.read_csv(tmp_path / "scores.csv")["value"], expected["value"])
    assert main(["train", path, *common, "--set", "group=text", "--output", str(tmp_path / "model.json")]) != 0
    assert "use --group" in capsys.readouterr().err
