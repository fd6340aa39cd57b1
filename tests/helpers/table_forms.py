"""The same table in the forms in which users pass tables: frames and arrays of every library and layout, Dask, files.

`FORMS` are those of a table with names, `ARRAYS` those of an array of features. A form makes its table of the rows of a draw;
reading it must give these rows. `STREAMS` are streams of batches, and `PARTS` tables that are read part by part; each writes
the files that it needs. `content` reads a `Table` back, so that tests can compare forms.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from dboost.data import CategoryColumn, Column, Table
from tests.helpers.fits import cut


def borders(n: int, rng: Random) -> list[int]:
    """Return borders of up to six partitions, also empty ones."""
    return [0, *sorted(rng.randint(0, n) for _ in range(rng.randint(0, 5))), n]


def new_file(folder: Path, ending: str) -> Path:
    return folder / f"{sum(1 for _ in folder.iterdir())}{ending}"


# Tables with names.


def has_numbers_as_categories(frame: pd.DataFrame) -> bool:
    """Return whether categories are numbers or truth values, which many forms cannot tell from numbers."""
    dtypes = [dtype for dtype in frame.dtypes if isinstance(dtype, pd.CategoricalDtype)]
    return any(len(dtype.categories) and not _is_text(dtype.categories) for dtype in dtypes)


def _is_text(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def has_dictionaries(frame: pd.DataFrame) -> bool:
    return any(isinstance(dtype, pd.ArrowDtype) and pa.types.is_dictionary(dtype.pyarrow_dtype) for dtype in frame.dtypes)


def dense(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame without sparse columns, which Arrow does not have."""
    sparse = [name for name, dtype in frame.dtypes.items() if isinstance(dtype, pd.SparseDtype)]
    return frame.assign(**{name: frame[name].sparse.to_dense() for name in sparse}) if sparse else frame


def to_arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(dense(frame), preserve_index=False)


def _odd_index(frame: pd.DataFrame, rng: Random, folder: Path) -> pd.DataFrame:
    n = len(frame)
    index: Any = rng.choice(
        [
            pd.Index([rng.randint(0, 3) for _ in range(n)]),
            pd.Index([f"row {i % 7}" for i in range(n)], name="y"),
            pd.MultiIndex.from_arrays([np.arange(n) // 2, np.arange(n) % 2]),
            pd.date_range("2020-02-28", periods=n)[::-1],
            pd.RangeIndex(n, 0, -1),
        ]
    )
    return frame.set_axis(index, axis=0)


def _relaid(frame: pd.DataFrame, rng: Random, folder: Path) -> pd.DataFrame:
    """Return the frame with columns of NumPy that are strided, big-endian, unaligned, or must not be written to."""
    columns = {name: frame[name] for name in frame}
    for name, column in columns.items():
        if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
            columns[name] = pd.Series(laid_out(column.to_numpy(), rng.choice(list(LAYOUTS))), copy=False)
    return pd.DataFrame(columns, copy=False)


def _nullable(frame: pd.DataFrame, rng: Random, folder: Path) -> pd.DataFrame:
    return frame.astype(
        {
            name: "boolean" if dtype.kind == "b" else str(dtype).replace("i", "I", 1).replace("uI", "UI").replace("f", "F")
            for name, dtype in frame.dtypes.items()
            if isinstance(dtype, np.dtype) and dtype.kind in "biuf" and dtype.itemsize * (dtype.kind == "f") != 2
        }
    )


def _arrow_backed(frame: pd.DataFrame, rng: Random, folder: Path) -> pd.DataFrame:
    table = to_arrow(frame)
    return pd.DataFrame({name: pd.Series(pd.arrays.ArrowExtensionArray(table[name])) for name in table.column_names})


def _objects(frame: pd.DataFrame, rng: Random, folder: Path) -> pd.DataFrame:
    return frame.astype({name: object for name, dtype in frame.dtypes.items() if not isinstance(dtype, pd.CategoricalDtype)})


def _chunked(frame: pd.DataFrame, rng: Random, folder: Path) -> pa.Table:
    """Return chunks that are slices of longer arrays, each with a dictionary of its own."""
    pieces, whole = [], to_arrow(frame)
    for a, b in pairwise(borders(len(frame), rng)):
        rows = frame.iloc[a:b]
        kinds = {name for name, dtype in frame.dtypes.items() if isinstance(dtype, pd.CategoricalDtype)}
        rows = rows.assign(**{name: rows[name].cat.remove_unused_categories() for name in kinds if rows[name].notna().any()})
        piece = to_arrow(rows) if b > a else whole.slice(a, 0)
        piece = piece.cast(whole.schema) if piece.schema != whole.schema and not _has_dictionary(whole) else piece
        longer = pa.concat_tables([piece, piece, piece]).combine_chunks() if len(piece) else piece
        pieces.append(longer.slice(len(piece), len(piece)))
    return pa.concat_tables(pieces, promote_options="permissive") if pieces else whole


def _has_dictionary(table: pa.Table) -> bool:
    return any(pa.types.is_dictionary(one) for one in table.schema.types)


def _views(frame: pd.DataFrame, rng: Random, folder: Path) -> pa.Table:
    """Return text as views, short text, or dictionaries."""
    table = to_arrow(frame)
    for j, one in enumerate(table.schema):
        if pa.types.is_large_string(one.type) or pa.types.is_string(one.type):
            kind = rng.choice([pa.string_view(), pa.string(), pa.dictionary(pa.int32(), pa.string())])
            table = table.set_column(j, one.name, table[j].combine_chunks().cast(pa.string()).cast(kind))
    return table


class Stream:
    """A table of a library unknown to dboost that implements the Arrow interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return self.table.__arrow_c_stream__(schema)


def _polars(frame: pd.DataFrame, rng: Random, folder: Path) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(to_arrow(frame)))


def _polars_categories(frame: pd.DataFrame, rng: Random, folder: Path) -> pl.DataFrame:
    table = _polars(frame, rng, folder)
    return table.with_columns(pl.col(pl.String).cast(pl.Categorical))


def _lazy(frame: pd.DataFrame, rng: Random, folder: Path) -> dd.DataFrame:
    return cut(frame, borders(len(frame), rng)[1:-1])


def _from_pandas(frame: pd.DataFrame, rng: Random, folder: Path) -> dd.DataFrame:
    return dd.from_pandas(frame, npartitions=rng.randint(1, 4), sort=False)


def _lazy_arrow(frame: pd.DataFrame, rng: Random, folder: Path) -> dd.DataFrame:
    backed = _arrow_backed(frame, rng, folder)
    pieces = [backed.iloc[a:b] for a, b in pairwise(borders(len(frame), rng))]
    return dd.from_map(lambda piece: piece, pieces, meta=backed.iloc[:0])


def _write_parquet(frame: pd.DataFrame, file: Path, rng: Random) -> None:
    table = to_arrow(frame)
    # Without pandas' notes on the types; pandas cannot read those of its own dictionaries of Arrow.
    if not has_numbers_as_categories(frame) and (has_dictionaries(frame) or rng.random() < 0.5):
        table = table.replace_schema_metadata(None)
    pq.write_table(table, file, row_group_size=rng.choice([50, 1000]))


def _parquet(frame: pd.DataFrame, rng: Random, folder: Path) -> Path:
    file = new_file(folder, ".parquet")
    _write_parquet(frame, file, rng)
    return file


def _parquet_folder(frame: pd.DataFrame, rng: Random, folder: Path, names: str = "part-{0:03d}.parquet") -> Path:
    place = new_file(folder, rng.choice(["", "date=2024-05-01"]))
    place.mkdir()
    for i, (a, b) in enumerate(pairwise(borders(len(frame), rng))):
        _write_parquet(frame.iloc[a:b], place / names.format(i, 99 - i), rng)
    return place


def runs_of(frame: pd.DataFrame) -> str | None:
    """Return the last feature if its rows are in the order of its categories, so that they may be keys of folders."""
    name = [name for name in frame.columns if name not in ("y", "z", "w", "o")][-1]
    values, is_category = frame[name].astype(object), isinstance(frame[name].dtype, pd.CategoricalDtype)
    is_key = set(map(type, values)) == ({int} if is_category else {str}) and "" not in set(values)
    return name if is_key and values.is_monotonic_increasing else None


def _parquet_keys(frame: pd.DataFrame, rng: Random, folder: Path) -> Path:
    """Return a folder with a folder for each value of the last feature."""
    key, place = runs_of(frame), new_file(folder, "")
    for value, rows in frame.groupby(key, sort=True, observed=True):
        below = place / f"{key}={value}"
        below.mkdir(parents=True)
        _write_parquet(rows.drop(columns=key), below / "part.parquet", rng)
    return place


def _parquet_list(frame: pd.DataFrame, rng: Random, folder: Path) -> list[str]:
    """Return files in another order than that of their names."""
    place = _parquet_folder(frame, rng, folder, "part-{1}.parquet")
    return sorted(map(str, place.iterdir()), reverse=True)


def write_csv(frame: pd.DataFrame, file: Path) -> None:
    narrow = [name for name, dtype in frame.dtypes.items() if str(dtype) in ("float16", "float32")]
    frame.astype(dict.fromkeys(narrow, np.float64)).to_csv(file, index=False)


def _csv(frame: pd.DataFrame, rng: Random, folder: Path) -> Path:
    file = new_file(folder, rng.choice([".csv", ".csv.gz"]))
    write_csv(frame, file)
    return file


def _csv_parts(frame: pd.DataFrame, rng: Random, folder: Path) -> list[str]:
    place = new_file(folder, "")
    place.mkdir()
    files = []
    for i, (a, b) in enumerate(pairwise(borders(len(frame), rng))):
        files.append(place / f"part-{i:03d}.csv")
        write_csv(frame.iloc[a:b], files[-1])
    return [str(file) for file in files]


def _csv_folder(frame: pd.DataFrame, rng: Random, folder: Path) -> str:
    place = Path(_csv_parts(frame, rng, folder)[0]).parent
    return rng.choice([str(place), f"{place}/*.csv"])


class Form(NamedTuple):
    make: Callable[[pd.DataFrame, Random, Path], Any]
    #: What it cannot hold as it is.
    lacks: tuple[str, ...] = ()
    #: "memory", "lazy" (of Dask), "path", or "list" of paths.
    where: str = "memory"


AS_NUMBERS, NO_ARROW, _NO_CSV = "numbers as categories", "complex numbers, or text among numbers", "what CSV does not have"
NO_KEYS = "a last feature that is no key of folders"
FORMS: dict[str, Form] = {
    "pandas": Form(lambda frame, rng, folder: frame),
    "pandas, odd index": Form(_odd_index),
    "pandas, other layouts": Form(_relaid),
    "pandas, nullable": Form(_nullable),
    "pandas, arrow": Form(_arrow_backed, (AS_NUMBERS, NO_ARROW)),
    "pandas, objects": Form(_objects, ("arrays of Arrow",)),
    "polars": Form(_polars, (AS_NUMBERS, NO_ARROW)),
    "polars, lazy": Form(lambda *given: _polars(*given).lazy(), (AS_NUMBERS, NO_ARROW)),
    "polars, categories": Form(_polars_categories, (AS_NUMBERS, NO_ARROW)),
    "arrow": Form(lambda frame, rng, folder: to_arrow(frame), (NO_ARROW,)),
    "arrow, chunks": Form(_chunked, (AS_NUMBERS, NO_ARROW)),
    "arrow, views": Form(_views, (NO_ARROW,)),
    "arrow, stream": Form(lambda frame, rng, folder: Stream(to_arrow(frame)), (NO_ARROW,)),
    "dask": Form(_lazy, where="lazy"),
    "dask, from pandas": Form(_from_pandas, ("objects that are not text",), "lazy"),
    "dask, arrow": Form(_lazy_arrow, (AS_NUMBERS, NO_ARROW), "lazy"),
    "parquet": Form(_parquet, (NO_ARROW,), "path"),
    "parquet, folder": Form(_parquet_folder, (AS_NUMBERS, NO_ARROW), "path"),
    "parquet, keys": Form(_parquet_keys, (NO_ARROW, NO_KEYS), "path"),
    "parquet, list": Form(_parquet_list, (AS_NUMBERS, NO_ARROW), "list"),
    "csv": Form(_csv, (AS_NUMBERS, NO_ARROW, _NO_CSV), "path"),
    "csv, folder": Form(_csv_folder, (AS_NUMBERS, NO_ARROW, _NO_CSV), "path"),
    "csv, list": Form(_csv_parts, (AS_NUMBERS, NO_ARROW, _NO_CSV), "list"),
}


def lacking(frame: pd.DataFrame) -> set[str]:
    """Return what some forms cannot hold and the frame has."""
    found = set() if runs_of(frame) else {NO_KEYS}
    if has_numbers_as_categories(frame):
        found.add(AS_NUMBERS)
    for name, dtype in frame.dtypes.items():
        if isinstance(dtype, pd.ArrowDtype):
            found.add("arrays of Arrow")
        if isinstance(dtype, pd.SparseDtype):
            continue
        if dtype.kind == "c":
            found.add(NO_ARROW)
        if dtype.kind in "mM" or isinstance(next(iter(frame[name]), None), datetime.date):
            found.add(_NO_CSV)
        values = frame[name].dropna()
        if (
            dtype.kind == "O"
            and not isinstance(dtype, pd.CategoricalDtype | pd.ArrowDtype | pd.StringDtype)
            and len(values)
            and not _is_text(values.unique())
        ):
            found.add("objects that are not text")  # Dask converts objects to text
            if len(set(map(type, values)) & {str, float}) == 2:
                found.add(NO_ARROW)
        if _is_text(values.unique()):
            if (values == "").any():
                found.add(_NO_CSV)
        elif values.map(type).eq(bool).all() and (len(values) < len(frame) or not len(values)):
            found.add(_NO_CSV)
    return found


def forms_of(found: set[str], *where: str) -> list[str]:
    """Return the forms that can hold frames that have this, in memory, lazy or as files."""
    return [name for name, form in FORMS.items() if form.where in where and not found & set(form.lacks)]


# Arrays of features.


def _in_other_order(array: np.ndarray) -> np.ndarray:
    return np.asfortranarray(array)


def _strided(array: np.ndarray) -> np.ndarray:
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def _backwards(array: np.ndarray) -> np.ndarray:
    return array[::-1].copy()[::-1]


def _unaligned(array: np.ndarray) -> np.ndarray:
    if array.dtype == object:
        return array
    raw = np.empty(array.nbytes + 1, np.uint8)
    found = raw[1:].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def _read_only(array: np.ndarray) -> np.ndarray:
    found = array.copy()
    found.setflags(write=False)
    return found


#: Arrangements of an array in memory.
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": np.array,
    "columns first": _in_other_order,
    "every second": _strided,
    "backwards": _backwards,
    "unaligned": _unaligned,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "read-only": _read_only,
}


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    return LAYOUTS[layout](array)


def _masked(array: np.ndarray) -> np.ndarray:
    missing = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
    return np.ma.MaskedArray(np.where(missing, array.dtype.type(7), array), missing)


def _mapped(array: np.ndarray, folder: Path) -> np.ndarray:
    if array.dtype == object:
        return array
    file = new_file(folder, ".bin")
    file.write_bytes(b"xyz" + np.ascontiguousarray(array).tobytes())
    return np.memmap(file, array.dtype, "r", offset=3, shape=array.shape)


def _dask_array(array: np.ndarray, rng: Random, across: bool = False) -> da.Array:
    rows = tuple(int(size) for size in np.diff(borders(len(array), rng)))
    columns = array.shape[1]
    chunks = (columns // 2, columns - columns // 2) if across and columns > 1 else (columns,)
    return da.from_array(laid_out(array, rng.choice([*LAYOUTS])), chunks=(rows, chunks))


def _frame(array: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(array, columns=[f"f{j}" for j in range(array.shape[1])])


def _sparse_frame(array: np.ndarray) -> pd.DataFrame:
    columns = [pd.arrays.SparseArray(column, fill_value=array.dtype.type(0)) for column in array.T]
    return pd.DataFrame(dict(zip([f"f{j}" for j in range(array.shape[1])], columns, strict=True)))


def _dask_sparse(array: np.ndarray, rng: Random) -> da.Array:
    rows = tuple(int(size) for size in np.diff(borders(len(array), rng)))
    return da.from_array(array, chunks=(rows, array.shape[1])).map_blocks(sp.csr_matrix)


class ArrayForm(NamedTuple):
    make: Callable[[np.ndarray, Random, Path], Any]
    where: str = "memory"
    #: Types that the form does not have.
    lacks: tuple[str, ...] = ()


ARRAYS: dict[str, ArrayForm] = {
    **{name: ArrayForm(lambda array, rng, folder, change=change: change(array)) for name, change in LAYOUTS.items()},
    "masked": ArrayForm(lambda array, rng, folder: _masked(array), lacks=("object",)),
    "mapped": ArrayForm(lambda array, rng, folder: _mapped(array, folder)),
    "lists": ArrayForm(lambda array, rng, folder: array.tolist()),
    "a frame": ArrayForm(lambda array, rng, folder: _frame(array)),
    "csr matrix": ArrayForm(lambda array, rng, folder: sp.csr_matrix(array), lacks=("object", "float16")),
    "csc array": ArrayForm(lambda array, rng, folder: sp.csc_array(array), lacks=("object", "float16")),
    "a sparse frame": ArrayForm(lambda array, rng, folder: _sparse_frame(array), lacks=("object", "float16")),
    "dask array of csr": ArrayForm(lambda array, rng, folder: _dask_sparse(array, rng), "lazy", ("object", "float16")),
    "a polars frame": ArrayForm(lambda array, rng, folder: pl.from_pandas(_frame(array))),
    "dask array": ArrayForm(lambda array, rng, folder: _dask_array(array, rng), "lazy"),
    "dask array, cut across": ArrayForm(lambda array, rng, folder: _dask_array(array, rng, True), "lazy"),
}


def arrays_of(dtype: str, *where: str) -> list[str]:
    """Return the forms of an array of this type, in memory or lazy."""
    return [name for name, form in ARRAYS.items() if form.where in where and dtype not in form.lacks]


def several(values: pd.DataFrame, rng: Random, *, named: bool) -> Any:
    """Return two targets as a table of any library, or without names as an array or a list of rows."""
    array = np.asarray(values.to_numpy())
    if named:
        return rng.choice([values, pl.from_pandas(values), pa.Table.from_pandas(values, preserve_index=False)])
    return rng.choice([array, np.asfortranarray(array), array.tolist()])


def vector(values: pd.Series, rng: Random) -> Any:
    """Return a target, weight or offset as a vector of any library."""
    array = np.asarray(values.to_numpy())
    with warnings.catch_warnings():
        kinds = [lambda: array, lambda: values, lambda: values.tolist(), lambda: values.to_frame()]
        if array.dtype.kind in "biuf":
            kinds += [lambda: laid_out(array, rng.choice([*LAYOUTS])), lambda: array[:, None], lambda: pl.Series(array)]
        else:
            kinds += [lambda: pa.array(values.tolist()), lambda: array.astype(object)]
        return rng.choice(kinds)()


def table_of(frame: pd.DataFrame) -> pa.Table:
    return to_arrow(frame)


def files_of(frame: pd.DataFrame, folder: Path, n_files: int = 12, kind: str = "parquet") -> Path:
    """Write the rows to files whose natural order is not that of their names."""
    folder.mkdir()
    for k, some in enumerate(np.array_split(np.arange(len(frame)), n_files)):
        path = folder / f"part-{k}.{kind}"
        if kind == "csv":
            write_csv(frame.iloc[some], path)
        else:
            pq.write_table(table_of(frame.iloc[some]), path, row_group_size=100)
    return folder


def reader_of(frame: pd.DataFrame, _: Path) -> Any:
    return table_of(frame).to_reader(max_chunksize=300)


class Exporter:
    """An object that is nothing but an Arrow stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class _Table(Exporter):
    """A table of a library that is not known: its own readers return batches of its own."""

    def to_reader(self) -> Any:
        return iter([self])


def lazy_polars(frame: pd.DataFrame, _: Path) -> Any:
    return pytest.importorskip("polars").from_arrow(table_of(frame)).lazy()


def _scanned(frame: pd.DataFrame, folder: Path) -> Any:
    return pytest.importorskip("polars").scan_parquet(
        [folder / f"part-{k}.parquet" for k in range(len(list(files_of(frame, folder).iterdir())))]
    )


def _duckdb(frame: pd.DataFrame, _: Path) -> Any:
    return pytest.importorskip("duckdb").from_arrow(table_of(frame))


def _scanner(frame: pd.DataFrame, _: Path) -> Any:
    from pyarrow import dataset

    return dataset.dataset(table_of(frame)).scanner(batch_size=700)


STREAMS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "RecordBatchReader": reader_of,
    "__arrow_c_stream__": lambda frame, _: Exporter(table_of(frame)),
    "table of another library": lambda frame, _: _Table(table_of(frame)),
    "pyarrow scanner": _scanner,
    "polars LazyFrame": lazy_polars,
    "polars scan_parquet": _scanned,
    "DuckDB relation": _duckdb,
}


def _dataset(frame: pd.DataFrame, folder: Path) -> Any:
    from pyarrow import dataset

    n_files = len(list(files_of(frame, folder).iterdir()))
    return dataset.dataset([folder / f"part-{k}.parquet" for k in range(n_files)])


def _fragment(frame: pd.DataFrame, folder: Path) -> Any:
    files_of(frame, folder, n_files=1)
    from pyarrow import dataset

    return next(dataset.dataset(folder).get_fragments())


def _arrow_files(frame: pd.DataFrame, folder: Path) -> Any:
    from pyarrow import dataset, feather

    folder.mkdir()
    paths = [folder / f"part-{k}.arrow" for k in range(12)]
    for path, some in zip(paths, np.array_split(np.arange(len(frame)), 12), strict=True):
        feather.write_feather(table_of(frame.iloc[some]), path)
    return dataset.dataset(paths, format="feather")


def appended(frame: pd.DataFrame, append: Callable[[pa.Table], Any]) -> None:
    for some in np.array_split(np.arange(len(frame)), 5):
        append(table_of(frame.iloc[some]))


def _delta(frame: pd.DataFrame, folder: Path) -> Any:
    deltalake = pytest.importorskip("deltalake")
    appended(frame, lambda rows: deltalake.write_deltalake(folder, rows, mode="append"))
    return deltalake.DeltaTable(folder)


def _iceberg(frame: pd.DataFrame, folder: Path) -> Any:
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    folder.mkdir()
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/rows")
    catalog.create_namespace("a")
    table = catalog.create_table("a.rows", table_of(frame).schema)
    appended(frame, table.append)
    return table


PARTS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "Parquet folder": files_of,
    "pyarrow dataset": _dataset,
    "pyarrow fragment": _fragment,
    "pyarrow dataset of Arrow files": _arrow_files,
    "Delta": _delta,
    "Iceberg": _iceberg,
    "CSV folder": lambda frame, folder: files_of(frame, folder, kind="csv"),
}
SOURCES = STREAMS | PARTS


def plain(column: Column) -> np.ndarray:
    """Return the values of a column: floats, or objects (None where missing) for categories."""
    if not isinstance(column, CategoryColumn):
        return column.astype(np.float64)
    assert column.codes.dtype == np.int32
    assert column.codes.size == 0 or (column.codes.min() >= -1 and column.codes.max() < len(column.categories))
    return np.array([*column.categories, None], dtype=object)[column.codes]


def content(table: Table) -> pd.DataFrame:
    """Return all features, target, weight and offset, chunk by chunk, in order."""
    parts = []
    for i in range(table.n_chunks):
        chunk = table.chunk(i)
        assert chunk.n_rows == table.lengths[i]
        values = {}
        for feature, column in zip(table.features, chunk.columns, strict=True):
            assert isinstance(column, CategoryColumn) == feature.is_categorical
            assert not isinstance(column, CategoryColumn) or column.categories == feature.categories
            values[feature.name] = plain(column)
        roles = chunk.roles
        extra = {"<target>": roles.target, "<weight>": roles.weight, "<offset>": roles.offset}
        values |= {name: plain(column) for name, column in extra.items() if column is not None}
        assert all(len(column) == chunk.n_rows for column in values.values())
        # Series of objects, because pandas would guess another type for text
        parts.append(pd.DataFrame({name: pd.Series(column, dtype=column.dtype) for name, column in values.items()}))
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True)
