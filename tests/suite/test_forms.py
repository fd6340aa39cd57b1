"""The same table in every form gives the same models and answers at every entrance: `FORMS` × types × `ENTRANCES`.

A table with names has a column of each kind that its form can hold; an array has columns of numbers of one type. The reference
is the table as a frame of pandas, or the array as it is, in the memory of this process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.compute as pc
import pytest
import scipy.sparse as sp
from distributed import Client

import dboost
from dboost import Booster
from dboost.tuning import Tuning, tuned
from tests.helpers import table_forms
from tests.helpers.combinations import ARRAY_TYPES, COLUMNS, as_array
from tests.helpers.fits import saved
from tests.helpers.table_forms import (
    AS_NUMBERS,
    FORMS,
    NO_ARROW,
    NO_KEYS,
    PARTS,
    STREAMS,
    ArrayForm,
    Form,
    lacking,
    new_file,
    vector,
)
from tests.suite.covering import Cell, cells, combinations
from tests.suite.forms import plain

pytestmark = [pytest.mark.filterwarnings("ignore::dboost.DriftWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]
N_ROWS = 150
OPTIONS: dict[str, Any] = {"max_iter": 2, "max_leaf_nodes": 7, "min_samples_leaf": 3, "progress": False}
ROLES = {"target": "y", "sample_weight": "w", "offset": "o"}
#: The kind of the last column, which may be the key of folders.
KEY = "runs of words"
#: Columns of `COLUMNS` whose numbers make an array of any type.
NUMBERS = ("normal", "gaps", "ties", "float32", "int64", "uint8", "bool", "zeros of both signs", "one value rare")


_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
#: What tables of other libraries do not have, as `Form.lacks`, or kinds of columns.
LACKS: dict[str, tuple[str, ...]] = {
    "polars LazyFrame": (AS_NUMBERS,),
    "polars scan_parquet": (AS_NUMBERS,),
    "DuckDB relation": (AS_NUMBERS, "float16"),
    "pyarrow dataset": (AS_NUMBERS,),
    "pyarrow fragment": (AS_NUMBERS,),
    "Parquet folder": (AS_NUMBERS,),
    "Delta": (AS_NUMBERS, "float16", *_UNSIGNED, "missing text", "missing categories", "no categories"),
    "Iceberg": (AS_NUMBERS, "float16", *_UNSIGNED, "missing text", "missing categories", "no categories"),
    "CSV folder": FORMS["csv"].lacks,
}
TABLES: dict[str, Form] = FORMS | {
    name: Form(
        lambda frame, rng, folder, make=make: make(frame, new_file(folder, "")),
        (NO_ARROW, *LACKS.get(name, ())),
        "memory" if name in STREAMS else "path",
    )
    for name, make in (STREAMS | PARTS).items()
}


ARRAYS: dict[str, ArrayForm] = table_forms.ARRAYS | {
    "unaligned columns": ArrayForm(lambda array, *_: table_forms.laid_out(array.T, "unaligned").T),
    "fields of records": ArrayForm(lambda array, *_: _fields(array)),
    "long doubles": ArrayForm(lambda array, *_: array.astype(np.longdouble), lacks=tuple({*ARRAY_TYPES} - {"float64"})),
    **{
        name: ArrayForm(lambda array, *_, make=make: make(array), lacks=("object", "float16"))
        for name, make in (
            ("coo matrix", sp.coo_matrix),
            ("lil matrix", sp.lil_matrix),
            ("bsr array", sp.bsr_array),
            ("dok array", sp.dok_array),
        )
    },
    "dask array of csr, cut across": ArrayForm(
        lambda array, *_: da.from_array(array, chunks=((0, 70, 0, 80), 4)).map_blocks(sp.csr_matrix),
        "lazy",
        ("object", "float16"),
    ),
}


def _fields(array: np.ndarray) -> np.ndarray:
    records = np.empty(array.shape, [("before", "u1"), ("value", array.dtype)])
    records["value"] = array
    return records["value"]


@cache
def _column(kind: str, part: int) -> pd.Series:
    return pd.Series(COLUMNS[kind](np.random.default_rng([part, *map(ord, kind)]), N_ROWS))


@cache
def _kinds(lacks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of columns that a form can hold."""
    held = [kind for kind in COLUMNS if not ({kind} | lacking(_column(kind, 0).to_frame("c")) - {NO_KEYS}) & set(lacks)]
    return (*(kind for kind in held if kind != KEY), KEY)


@cache
def _frame(kinds: tuple[str, ...], part: int = 0) -> pd.DataFrame:
    """Return features, and the roles."""
    frame = pd.DataFrame({kind: _column(kind, part) for kind in kinds})
    rng = np.random.default_rng(part)
    frame = frame.assign(w=rng.integers(1, 4, N_ROWS) / 2, o=rng.normal(size=N_ROWS))
    frame.insert(0, "y", frame[KEY].map(len) + _column("normal", part) if KEY in frame else _column("normal", part))
    return frame


@dataclass(frozen=True)
class Table:
    """Tables in a form. dtype : of an array; None for a table with names."""

    form: str | None
    dtype: str | None
    kinds: tuple[str, ...]
    folder: Path
    client: Client | None = None

    @property
    def features(self) -> list[str]:
        return list(self.kinds)

    @property
    def is_lazy(self) -> bool:
        """Whether it is an array of Dask, beside which values of rows must be of Dask, too."""
        return self.dtype is not None and self.form is not None and ARRAYS[self.form].where == "lazy"

    def _made(self, rows: pd.DataFrame, part: int) -> Any:
        rng = Random(f"{self.form} {self.dtype} {part}")
        if self.dtype is None:
            return rows if self.form is None else TABLES[self.form].make(rows, rng, self.folder)
        array = as_array(rows[self.features], self.dtype)
        return array if self.form is None else ARRAYS[self.form].make(array, rng, self.folder)

    def rows(self, part: int = 0, *, apart: bool = False) -> dict[str, Any]:
        """Return data and roles. part : which rows. apart : target, weight and offset are beside the features."""
        frame = _frame(self.kinds, part)
        if self.dtype is None and apart and self.form is not None and TABLES[self.form].where == "lazy":
            lazy = self._made(frame, part)
            return {"data": lazy[self.features]} | {role: lazy[name] for role, name in ROLES.items()}
        if self.dtype is None and not apart:
            return {"data": self._made(frame, part), **ROLES}
        rng = Random(f"{self.form} {self.dtype} roles")
        roles = {
            role: frame[name].to_numpy() if self.form is None else vector(frame[name], rng) for role, name in ROLES.items()
        }
        return {"data": self._made(frame[self.features], part), **roles}

    @property
    def shaping(self) -> dict[str, Any]:
        return {} if self.dtype is None else {"categorical_features": [NUMBERS.index("uint8")]}

    def fit(self, *, apart: bool = False, **more: Any) -> Booster:
        return dboost.fit(**self.rows(apart=apart) | OPTIONS | self.shaping | more)


def in_pieces() -> AbstractContextManager[Tuning]:
    """Have tables read in small pieces, and rows in files."""
    small = 16_384
    return tuned(
        resident_rows=0, retained_bytes=0, block_rows=64, chunk_bytes=small, partition_bytes=small, least_partition_rows=20,
        csv_block_bytes=small, least_csv_block_bytes=small, small_file_bytes=0, stream_in_memory_bytes=0, wave_bytes=2 * small,
        stored_partition_bytes=small, part_bytes=small, least_part_rows=20, batch_bytes=small, dense_block_bytes=small,
    )  # fmt: skip


@cache
def _model(dtype: str | None, kinds: tuple[str, ...]) -> Booster:
    return Table(None, dtype, kinds, Path()).fit()


def _in_files(table: Table, **more: Any) -> list[Any]:
    with in_pieces():
        return [table.fit(memory_limit="64MiB", **more)]


def _prepared(table: Table, **more: Any) -> list[Any]:
    with dboost.prepare(**table.rows(), **table.shaping, **more) as data:
        return [dboost.fit(data, **OPTIONS)]


def _evaluated(table: Table) -> list[Any]:
    """Train on some columns of the plain table; those of the set are as many as there are."""
    rows = table.rows(1)
    sets = rows["data"] if table.dtype is None else tuple(rows.values())
    options = {"features": table.features[::2]} if table.dtype is None else {}
    booster = replace(table, form=None).fit(eval_set=sets, **options)
    return [booster, booster.history.filter(like="eval").to_numpy()]


def _cross_validated(table: Table) -> list[Any]:
    found = dboost.cv(**table.rows(), **OPTIONS, **table.shaping, folds=2)
    return [*found.boosters, found.predictions]


def _two_targets(table: Table) -> list[Any]:
    rows = table.rows() | {"target": ["y", "o"]}
    del rows["offset"]
    return [dboost.fit(**rows, **OPTIONS), *_in_files(table, target=["y", "o"], offset=None)]


def _classes(table: Table) -> list[Any]:
    """Train on a target whose type decides the loss."""
    options = {"target": "bool", "features": [name for name in table.features if name != "bool"], "offset": None}
    return [table.fit(**options), *_in_files(table, **options)]


def _filter(form: str) -> Any:
    return Random(form).choice([pc.field("normal") > 0, pl.col("normal") > 0])


def _filtered(table: Table) -> list[Any]:
    if table.form is None:
        kept = table.rows()["data"].query("normal > 0")
        return 2 * [dboost.fit(kept, **ROLES, **OPTIONS)]
    return [table.fit(filter=_filter(table.form)), *_in_files(table, filter=_filter(table.form))]


def _predicted_filtered(table: Table) -> list[Any]:
    model, rows = _model(table.dtype, table.kinds), table.rows(1)["data"]
    if table.form is None:
        return [model.predict(rows.query("normal > 0")).to_numpy()]
    return [plain(model.predict(rows, filter=_filter(table.form)))]


def _predicted(table: Table) -> list[Any]:
    model = _model(table.dtype, table.kinds)
    answers = [
        model.predict(table.rows(1)["data"]),
        model.predict(table.rows(1)["data"], raw_score=True),
        model.apply(table.rows(1)["data"]),
        model.shap_values(table.rows(1)["data"]),
        model.drift(table.rows(1)["data"])["psi"],
    ]
    return [plain(answer) for answer in answers]


def _interpreted(table: Table) -> list[Any]:
    model, feature = _model(table.dtype, table.kinds), 0 if table.dtype is not None else table.kinds[0]
    kinds = ("average", "conditional", "individual")
    found = [
        *(model.partial_dependence(table.rows(1)["data"], feature, kind, max_rows=30).to_numpy() for kind in kinds),
        model.additivity(table.rows(1)["data"], feature, max_rows=30).to_numpy(),
        model.interaction_strength(table.rows(1)["data"], model.feature_names_in_[:3].tolist(), max_rows=30)["h"].to_numpy(),
    ]
    if not table.is_lazy:
        rows = [table.rows(1) for _ in range(2)]
        data, target, weight = (rows[0][name] for name in ("data", "target", "sample_weight"))
        found.append(model.importance("permutation", data, target, sample_weight=weight, n_repeats=1).to_numpy())
        by = KEY if table.dtype is None else f"f{NUMBERS.index('uint8')}"
        calibrated = model[:].calibrate(rows[1]["data"], rows[1]["target"], coverage=0.5, by=by)
        found += [calibrated.calibration, plain(calibrated.predict_interval(table.rows(1)["data"]))]
    return found


def _in_pieces(run: Callable[[Table], list[Any]]) -> Callable[[Table], list[Any]]:
    def run_in_pieces(table: Table) -> list[Any]:
        with in_pieces():
            return run(table)

    return run_in_pieces


@dataclass(frozen=True)
class Entrance:
    run: Callable[[Table], list[Any]]
    #: How the table is read.
    kind: str
    #: What may hold the table.
    where: tuple[str, ...] = ("memory", "lazy", "path", "list")
    #: Whether columns must have names.
    needs_names: bool = False


ENTRANCES: dict[str, Entrance] = {
    "fit": Entrance(lambda table: [table.fit()], "fit"),
    "fit, in files": Entrance(_in_files, "files"),
    "fit, on workers": Entrance(lambda table: [table.fit(client=table.client)], "workers"),
    "fit, on workers in files": Entrance(lambda table: _in_files(table, client=table.client), "workers"),
    "fit, roles apart": Entrance(lambda table: [table.fit(apart=True)], "fit", ("memory", "lazy")),
    "fit, continued": Entrance(
        lambda table: [dboost.fit(**table.rows(1), **OPTIONS, start_from=_model(table.dtype, table.kinds))], "fit"
    ),
    "fit, exact splits": Entrance(lambda table: [table.fit(split_proposal="exact")], "fit"),
    "fit, as an evaluation set": Entrance(_evaluated, "fit"),
    "fit, two targets": Entrance(_two_targets, "targets", needs_names=True),
    "fit, classes": Entrance(_classes, "targets", ("path", "list"), needs_names=True),
    "fit, filtered": Entrance(_filtered, "filter", needs_names=True),
    "prepare": Entrance(_prepared, "prepare"),
    "prepare, on workers": Entrance(lambda table: _prepared(table, client=table.client), "prepare"),
    "cv": Entrance(_cross_validated, "prepare"),
    "refit_leaves": Entrance(lambda table: [_model(table.dtype, table.kinds).refit_leaves(**table.rows(1))], "fit"),
    "predictions": Entrance(_predicted, "predict"),
    "predictions, in pieces": Entrance(_in_pieces(_predicted), "predict"),
    "predictions, filtered": Entrance(_predicted_filtered, "predict filtered", needs_names=True),
    "interpretation": Entrance(_interpreted, "interpret"),
    "interpretation, in pieces": Entrance(_in_pieces(_interpreted), "interpret"),
}


@cache
def expected(dtype: str | None, kinds: tuple[str, ...], entrance: str) -> list[Any]:
    """Return the results of the plain table. On workers they are those of this process."""
    run = {
        "fit, in files": "fit", "fit, on workers": "fit", "fit, on workers in files": "fit", "prepare, on workers": "prepare",
        "predictions, in pieces": "predictions", "interpretation, in pieces": "interpretation",
    }.get(entrance, entrance)  # fmt: skip
    return ENTRANCES[run].run(Table(None, dtype, kinds, Path()))


_OF_NAMES = [
    (name, "names", entrance)
    for name, form in TABLES.items()
    for entrance in ENTRANCES
    if form.where in ENTRANCES[entrance].where
]
_OF_ARRAYS = [
    (name, dtype, entrance)
    for dtype in dict.fromkeys(ARRAY_TYPES)
    for name, form in ARRAYS.items()
    if dtype not in form.lacks
    for entrance in ENTRANCES
    if ARRAYS[name].where in ENTRANCES[entrance].where and not ENTRANCES[entrance].needs_names
]


def _marks(cell: Cell) -> set[Any]:
    """Every table with names is passed to every kind of entrance, every array of each kind of type to some, a type to all."""
    form, dtype, entrance = cell
    return {(dtype, entrance), (form, ENTRANCES[entrance].kind if dtype == "names" else dtype.strip("u0123456789"))}


@pytest.mark.parametrize(
    ("form", "dtype", "entrance"), cells([*_OF_NAMES, *_OF_ARRAYS], fast=combinations((0,), (1,), (2,)), slow=_marks)
)
def test_a_form_is_its_table(client: Client, tmp_path: Path, form: str, dtype: str, entrance: str) -> None:
    of_names = dtype == "names"
    kinds = _kinds(TABLES[form].lacks) if of_names else NUMBERS
    table = Table(form, None if of_names else dtype, kinds, tmp_path, client)
    results = ENTRANCES[entrance].run(table)
    for result, reference in zip(results, expected(table.dtype, kinds, entrance), strict=not table.is_lazy):
        if isinstance(result, Booster):
            named = None if of_names else False
            assert saved(result, named=named) == saved(reference, named=named)
        elif isinstance(result, np.ndarray):
            np.testing.assert_array_equal(result, reference)
        else:
            assert result == reference
