"""Classes that are integers of 2**53 and more, such as identifiers: exact as categories, refused where they would be floats."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from distributed import Client

import dboost
from dboost.cli import main

N = 240
X = np.random.default_rng(3).normal(size=N)
CODES = np.digitize(X, [-0.5, 0.5])
#: Two of them are the same float.
SMALL = np.array([2**53, 2**53 + 1, 2**53 + 3])
LABELS = {
    "int64": SMALL,
    "negative": -SMALL[::-1],
    "int64 up to its maximum": np.array([2**63 - 3, 2**63 - 2, 2**63 - 1]),
    "uint64": SMALL.astype(np.uint64) + np.uint64(2**63),
}


def frame(y: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": X, "y": y})


def fit(data: Any, **options: Any) -> dboost.Booster:
    return dboost.fit(data, "y", max_iter=3, progress=False, min_samples_leaf=5, **options)


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("kind", LABELS)
def test_categories_of_large_integers_are_exact(kind: str, tmp_path: Path) -> None:
    labels = LABELS[kind]
    y = labels[CODES]
    table = frame(pd.Categorical(y))
    booster = fit(table)
    booster.save(tmp_path / "model.json")
    table.to_parquet(tmp_path / "rows.parquet")
    assert (
        main(["predict", *(str(tmp_path / one) for one in ("model.json", "rows.parquet")), "--output", f"{tmp_path}/p.csv"])
        == 0
    )
    assert (pd.read_csv(tmp_path / "p.csv").iloc[:, 0].to_numpy() == y).mean() > 0.9
    again = dboost.load(tmp_path / "model.json")
    estimator = dboost.DBoostClassifier(max_iter=3, min_samples_leaf=5).fit(table[["x"]], table["y"])
    with dboost.prepare(table, "y") as data:
        prepared = dboost.fit(data, max_iter=3, progress=False, min_samples_leaf=5)
    for model in (booster, again, estimator, prepared, fit(table, start_from=booster)):
        assert model.classes_ is not None and model.classes_.dtype == y.dtype and model.classes_.tolist() == labels.tolist()
        predicted = np.asarray(model.predict(table[["x"]]))
        assert predicted.dtype == y.dtype and (predicted == y).mean() > 0.9
    lazy = booster.predict_proba(dd.from_pandas(table, npartitions=2)).compute()
    assert list(lazy.columns) == labels.tolist()
    booster.to_xgboost_json(tmp_path / "xgb.json")


def in_parts(*ys: Any) -> Any:
    parts = [frame(y).iloc[i * 80 : (i + 1) * 80] for i, y in enumerate(ys)]
    return dd.from_map(lambda i: parts[i], range(len(parts)), meta=parts[0].iloc[:0])


Y = SMALL[CODES]
OBJECTS = np.array([int(y) for y in Y], object)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "int64": (lambda: frame(Y), "integers of 2\\*\\*53 or more.*: convert it to a column of categories or text if they are"),
    "uint64": (lambda: frame(Y.astype(np.uint64)), "integers of 2\\*\\*53 or more"),
    "Int64": (lambda: frame(pd.array(Y, dtype="Int64")), "integers of 2\\*\\*53 or more"),
    "objects": (lambda: frame(OBJECTS), "integers of 2\\*\\*53 or more"),
    "Arrow": (lambda: pa.table({"x": X, "y": Y}), "integers of 2\\*\\*53 or more"),
    "Int128": (lambda: pl.DataFrame({"x": X, "y": pl.Series(Y).cast(pl.Int128)}), "integers of 2\\*\\*53 or more"),
    "larger objects": (lambda: frame(OBJECTS + 2**70), "classes that are floats of 2\\*\\*53 or more"),
    "decimals": (lambda: frame([decimal.Decimal(int(y)) for y in Y]), "classes that are floats of 2\\*\\*53 or more"),
    "floats": (lambda: frame(Y.astype(float)), "classes that are floats of 2\\*\\*53 or more"),
    "signed and unsigned": (lambda: in_parts(CODES, Y.astype(np.uint64), Y), "in 160 rows, first in row 0 of partition 1"),
    "integers and floats": (lambda: in_parts(CODES, Y.astype(float), Y), "in 80 rows, first in row 0 of partition 2"),
    "categories of 70 bits": (lambda: frame(pd.Categorical(OBJECTS + 2**70)), "no type of NumPy holds all classes"),
    "signed and unsigned categories": (
        lambda: frame(pd.Categorical(np.array([-1, 0, 2**63 + 1], object)[CODES])),
        "no type of NumPy holds all classes of the target as numbers, such as -1 and 9223372036854775809: convert them to text",
    ),
}


@pytest.mark.fast_cells(7)
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("limit", [None, "64MiB"])
def test_classes_that_would_be_merged_are_refused(case: str, limit: str | None) -> None:
    make, message = REFUSED[case]
    with pytest.raises(dboost.DataError, match=message):
        fit(make(), loss="log_loss", memory_limit=limit)


def test_workers_refuse_classes_that_would_be_merged(client: Client) -> None:
    with pytest.raises(dboost.DataError, match="in 80 rows, first in row 0 of partition 2"):
        fit(in_parts(CODES, Y.astype(float), Y), loss="log_loss", client=client)


def test_floats_are_not_compared_with_large_classes() -> None:
    booster = fit(frame(pd.Categorical(Y)))
    floats = frame(Y.astype(float))
    for call in (
        lambda: fit(floats, start_from=booster),
        lambda: fit(frame(pd.Categorical(Y)), eval_set=floats),
        lambda: dboost.DBoostClassifier().partial_fit(frame(Y)[["x"]], Y.astype(float), classes=SMALL.tolist()),
    ):
        with pytest.raises(dboost.DataError, match="floats of 2\\*\\*53 or more: one float may stand for several integers"):
            call()
    with pytest.raises(dboost.ParameterError, match="one float may stand for several integers"):
        dboost.DBoostClassifier().partial_fit(frame(Y)[["x"]], CODES, classes=[0, 1, 2, 2.0**53])


def test_labels_of_text_are_the_remedy() -> None:
    booster = fit(frame(Y).astype({"y": str}))
    assert booster.classes_ is not None and booster.classes_.tolist() == [str(label) for label in SMALL]


def test_regression_on_large_numbers_takes_floats() -> None:
    with pytest.raises(dboost.DataError, match="to floats if they are amounts"):
        fit(frame(Y))
    assert fit(frame(Y.astype(float) * 1024)).classes_ is None
