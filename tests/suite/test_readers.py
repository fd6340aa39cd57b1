"""Every model gives the same answers to every reader of the same rows: `CASES` × `OUTPUTS` × `READERS`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dboost import Booster
from dboost.cli import main
from tests.helpers.fits import cut
from tests.helpers.fixed_calls import CASES, Fixed
from tests.suite.cases import trained
from tests.suite.covering import cells
from tests.suite.forms import plain

pytestmark = [
    pytest.mark.filterwarnings(action)
    for action in (
        "ignore::dboost.DriftWarning", "ignore::UserWarning", "error:.*a column that these rows do not have:UserWarning",
    )
]  # fmt: skip
N_ROWS = 60
#: Kinds of cases that a model does not show.
OF_TRAINING = {"own metrics", "eval_set", "early_stopping_rounds", "sample_weight", "validation_fraction"}
#: What may be asked of rows: the call, and the option of the command line.
OUTPUTS: dict[str, tuple[Callable[..., Any], str | None]] = {
    "prediction": (Booster.predict, ""),
    "raw_score": (lambda model, rows, **how: model.predict(rows, raw_score=True, **how), None),
    "probability": (Booster.predict_proba, "--proba"),
    "distribution": (Booster.predict_distribution, "--distribution"),
    "leaves": (Booster.apply, None),
}


def asked(model: Booster, output: str, rows: Any, **how: Any) -> np.ndarray:
    return plain(OUTPUTS[output][0](model, rows, **how))


def _arrow(rows: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(rows, preserve_index=False)


def _written(rows: pd.DataFrame, folder: Path, ending: str) -> Path:
    path = folder / f"rows.{ending}"
    if ending == "csv":
        rows.astype({name: float for name in rows if rows[name].dtype == np.float32}).to_csv(path, index=False)
    else:
        rows.to_parquet(path)
    return path


def _by_command(model: Booster, output: str, rows: pd.DataFrame, folder: Path) -> np.ndarray:
    model.save(folder / "model.json")
    option = OUTPUTS[output][1]
    files = [str(folder / "model.json"), str(_written(rows, folder, "parquet"))]
    assert main(["predict", *files, *([option] if option else []), "--output", str(folder / "answers.parquet")]) == 0
    return plain(pd.read_parquet(folder / "answers.parquet"))


def _row_by_row(model: Booster, output: str, rows: pd.DataFrame, _: Path) -> np.ndarray:
    predictor = pickle.loads(pickle.dumps(model.predictor(output)))
    names = [*model.feature_names_in_, *filter(None, [model.ensemble.offset])]
    records = rows[names].astype(object).where(rows.notna(), None).to_dict("records")
    return np.array([predictor(record) for record in records])


def _stages(model: Booster, output: str, rows: pd.DataFrame, _: Path) -> np.ndarray:
    """Return the last stage if every one gives the answers of its iterations."""
    staged = model.staged_predict_proba if output == "probability" else model.staged_predict
    stages = [plain(stage) for stage in (staged(rows, raw_score=True) if output == "raw_score" else staged(rows))]
    for n, stage in enumerate(stages, 1):
        np.testing.assert_array_equal(stage, asked(model, output, rows, iteration_range=(0, n)))
    return stages[-1]


def _turned(model: Booster, output: str, rows: pd.DataFrame, _: Path) -> np.ndarray:
    """Ask with rows and columns in another order, and with other columns."""
    order = np.random.default_rng(0).permutation(len(rows))
    found = asked(model, output, rows.iloc[order][list(rows)[::-1]].assign(more="text"))
    return found[np.argsort(order)]


def _cut_short(model: Booster, output: str, rows: pd.DataFrame, _: Path) -> np.ndarray:
    """Return the answers of all iterations if a shortened model gives those of its iterations.

    The name of the offset is that of the last source, which a shortened model may not have.
    """
    plainly = {} if output == "leaves" else {"offset": False}
    for n in range(model.n_iter_):
        found = asked(model.truncate(n), output, rows, **plainly)
        np.testing.assert_array_equal(found, asked(model, output, rows, iteration_range=(0, n), **plainly))
    return asked(model, output, rows, iteration_range=(0, model.n_iter_))


class Reader(NamedTuple):
    run: Callable[[Booster, str, pd.DataFrame, Path], np.ndarray]
    can: Callable[[str, Fixed], bool] = lambda output, fixed: True


def _table(make: Callable[[pd.DataFrame, Path], Any]) -> Reader:
    return Reader(lambda model, output, rows, folder: asked(model, output, make(rows, folder)))


READERS: dict[str, Reader] = {
    "Arrow": _table(lambda rows, _: _arrow(rows)),
    "polars": _table(lambda rows, _: pl.from_pandas(rows)),
    "stream": _table(lambda rows, _: _arrow(rows).to_reader(7)),
    "Dask": _table(lambda rows, _: cut(rows, [0, 20, 20, 45])),
    "Parquet": _table(lambda rows, folder: _written(rows, folder, "parquet")),
    "CSV": _table(lambda rows, folder: _written(rows, folder, "csv")),
    "no rows and the rest": Reader(
        lambda model, output, rows, _: np.concatenate([asked(model, output, rows[:0]), asked(model, output, rows)])
    ),
    "threads": Reader(lambda model, output, rows, _: asked(model, output, rows, n_threads=3)),
    "turned": Reader(_turned),
    "row by row": Reader(_row_by_row, lambda output, _: output != "leaves"),
    "stages": Reader(_stages, lambda output, _: output in ("prediction", "raw_score", "probability")),
    "cut short": Reader(_cut_short),
    "a command": Reader(_by_command, lambda output, fixed: OUTPUTS[output][1] is not None and "own loss" not in fixed.kinds),
}


def outputs_of(fixed: Fixed) -> list[str]:
    found = ["prediction", "raw_score", "leaves"]
    if set(np.atleast_1d(fixed.target)) <= {"late", "grade", "level", "yes", "large", "evening"}:
        found.append("probability")
    return [*found, "distribution"] if "loss=normal" in fixed.kinds else found


SQUARE = [
    (reader, output, name)
    for reader in READERS
    for name, fixed in CASES.items()
    for output in outputs_of(fixed)
    if READERS[reader].can(output, fixed)
]


@pytest.mark.parametrize(
    ("reader", "output", "name"),
    cells(
        SQUARE,
        fast=lambda cell: {cell[:2], *CASES[cell[2]].kinds - OF_TRAINING},
        slow=lambda cell: {(cell[:2], kind) for kind in {"any", *CASES[cell[2]].kinds} - OF_TRAINING},
    ),
)
def test_answers_are_those_of_a_frame(tmp_path: Path, reader: str, output: str, name: str) -> None:
    model, rows = trained(name), CASES[name].frame[:N_ROWS]
    np.testing.assert_array_equal(READERS[reader].run(model, output, rows, tmp_path), asked(model, output, rows))
