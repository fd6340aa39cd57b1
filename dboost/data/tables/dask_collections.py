"""Dask collections as a list of partitions, each computed exactly once, and lazy predictions.

Data and roles (target, weight, …) may be several collections with a common source. They become one graph, so that common tasks
are computed once: frames are arguments of one `map_partitions` before Dask optimizes it (the optimizer then reads the union of
the needed columns), arrays keep their unoptimized keys. One task per partition passes the pieces to a consumer, and the
scheduler drops them when the consumer returns. So one partition per thread is in memory.

The graph runs in this process without importing `distributed`. Partitions that are persisted on a cluster are fetched one by
one.

For lazy predictions of Dask collections and files the model, which may take many megabytes, is one key of the graph that the
tasks of all partitions depend on. It is pickled once, travels as bytes, in the compact form, and is restored once in each
process that predicts; the scheduler does not restore it. Only the columns that the model needs are read.

**Objects.** Dask makes text of every column of Python objects when a frame is created (``dataframe.convert-string``), also of
numbers, dates and lists. `with_objects` returns the frame in which only text has become text, so that the model, or the error,
is that of the same pandas frame. This holds as long as rows and columns are selected, joined or renamed; where the user's code
has computed with the text, it remains.

**Threads.** Dask keeps properties of expressions under locks that, before Python 3.12, all expressions of a class share, and
takes them in different orders: two threads that build expressions could wait for each other for ever. So every function of this
module that builds or optimizes expressions runs in one thread at a time; nothing is computed meanwhile.

Importing Dask takes 0.5 s, so this module and `data.sources.paths` are imported only for a collection or a path.
"""

from __future__ import annotations

import operator
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import dask.threaded
import numpy as np
import pandas as pd
from dask.bag import Bag
from dask.base import tokenize
from dask.core import flatten, get_dependencies, reverse_dict
from dask.dataframe._pyarrow import to_pyarrow_string
from dask.dataframe.dask_expr import _expr as dask_expr
from dask.dataframe.dask_expr._collection import new_collection
from dask.dataframe.dask_expr._concat import Concat
from dask.dataframe.dask_expr._repartition import Repartition
from dask.dataframe.dask_expr.io.io import FromGraph, FromPandas
from dask.highlevelgraph import MaterializedLayer

from dboost.config import building
from dboost.data.columns.conversion import holds_other_than_text
from dboost.data.columns.labels import Names, array_names
from dboost.data.columns.read_plan import columns_like
from dboost.data.columns.roles import ROLES
from dboost.data.kinds.frame import bad_shape
from dboost.data.kinds.predictor import Predictor
from dboost.data.kinds.table_kinds import is_path, library, predictions_like
from dboost.data.sources.row_filter import RowFilter
from dboost.errors import DataError, DBoostError, InputTypeError, ParameterError
from dboost.tracebacks import short_traceback

P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that builds or optimizes expressions of Dask: it runs in one thread at a time."""

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        with building:
            return function(*args, **keywords)

    return call


@one_at_a_time
def layout(data: Any) -> tuple[tuple[str, ...], bool]:
    """Return the column names of a Dask frame or array, and whether the data have them."""
    _check_held(data)
    if isinstance(data, dd.DataFrame):
        return Names(data.columns, data._meta.index.names), True
    if isinstance(data, dd.Series):
        raise bad_shape("Dask Series", "(n,)", "data.to_frame() makes it a table of one column")
    if isinstance(data, da.Array):
        if data.ndim != 2:
            raise bad_shape("array", data.shape)
        return array_names(data.shape[1]), False
    how = "data.to_dataframe()" if isinstance(data, Bag) else "dask.dataframe.from_delayed([data])"
    raise InputTypeError(
        f"cannot read a table from a Dask {type(data).__name__}: pass a Dask DataFrame or Array, such as {how}"
    )


def _check_held(collection: Any) -> None:
    """Raise a DBoostError if the collection depends on persisted partitions that no cluster holds any more.

    Dask computes partitions of lost workers again; it cancels those of a client that was closed or restarted.
    """
    if "distributed" not in sys.modules:
        return
    graphs: list[Any] = []
    if isinstance(collection, da.Array):
        graphs = [layer for layer in collection.dask.layers.values() if isinstance(layer, MaterializedLayer)]
    elif isinstance(collection, (dd.DataFrame, dd.Series)):
        graphs = [layer.operand("layer") for layer in collection.expr.find_operations(FromGraph)]
    futures = (value for graph in graphs for value in graph.values() if library(value) == "distributed")
    if any(getattr(future, "status", None) == "cancelled" for future in futures):
        raise DBoostError(
            "the data were persisted on a cluster that does not hold them any more: their client was closed or restarted; "
            "persist them again, or give them without persisting"
        )


@one_at_a_time
def known_length(data: Any) -> int | None:
    """Return the number of rows of a Dask collection; None if Dask does not know it."""
    n_rows = data.shape[0] if isinstance(data, da.Array) else None
    return n_rows if isinstance(n_rows, int) else None


@one_at_a_time
def whole_rows(array: da.Array) -> da.Array:
    """Return the array with all columns in one chunk."""
    return array if array.numblocks[1] == 1 else array.rechunk({1: -1})


#: Types of labels that can be compared with each other.
_SORTED = {str, int, tuple, pd.Timestamp}


@one_at_a_time
def select(frame: dd.DataFrame, names: tuple[str, ...]) -> dd.DataFrame:
    """Return the columns with these names (labels as text); the frame itself if these are all, or if Dask cannot select.

    Dask sorts labels when it selects columns, and pandas finds no missing ones.
    """
    present = Names(frame.columns)
    kinds = set(map(type, present.labels))
    if set(names) == set(present) or not (len(kinds) == 1 and kinds <= _SORTED):
        return frame
    label = dict(zip(present, present.labels, strict=True))
    return frame[[label[name] for name in names]]


@one_at_a_time
def filtered(frame: Any, row_filter: RowFilter, names: Sequence[str] | None = None) -> dd.DataFrame:
    """Return the rows that satisfy a predicate. names : the columns that are used besides; default all."""
    present, named = layout(frame)
    if not named:
        raise InputTypeError("filter names columns, and an array has none: select its rows instead")
    used = row_filter.columns(present)
    if names is not None:
        frame = select(frame, tuple(dict.fromkeys([*names, *used])))
    frame = with_objects(frame)  # which does not look behind a function of partitions
    return frame.map_partitions(row_filter.rows_of, meta=frame._meta, enforce_metadata=False)


#: Expressions whose first operand keeps the values of its columns.
_KEEP_VALUES = (
    dask_expr.AddPrefix,
    dask_expr.Assign,
    dask_expr.Drop,
    dask_expr.DropnaFrame,
    dask_expr.DropnaSeries,
    dask_expr.Filter,
    dask_expr.Head,
    dask_expr.Partitions,
    dask_expr.Projection,
    dask_expr.RenameFrame,
    dask_expr.RenameSeries,
    dask_expr.ResetIndex,
    dask_expr.Sample,
    dask_expr.Tail,
    dask_expr.ToFrame,
    Repartition,
)


@one_at_a_time
def with_objects(collection: Any) -> Any:
    """Return a Dask frame or Series without the text that Dask has made of other objects; other collections unchanged."""
    if not isinstance(collection, (dd.DataFrame, dd.Series)):
        return collection
    expression = _with_objects(collection.expr)
    return collection if expression is collection.expr else new_collection(expression)


def _with_objects(expr: Any) -> Any:
    if isinstance(expr, FromPandas) and expr.pyarrow_strings_enabled and _has_objects(expr.frame.head(0)):
        named = zip(expr._parameters, expr.operands, strict=True)
        return _TextToStrings(type(expr)(*(False if name == "pyarrow_strings_enabled" else value for name, value in named)))
    if type(expr) is dask_expr.ArrowStringConversion and _has_objects(expr.frame._meta):
        return _TextToStrings(expr.frame)
    if isinstance(expr, Repartition) and expr.operand("partition_size") is not None:  # it depends on the types
        return expr
    n_frames = len(expr.operands) if isinstance(expr, Concat) else int(isinstance(expr, _KEEP_VALUES))
    operands = [
        _with_objects(operand) if isinstance(operand, dask_expr.Expr) else operand for operand in expr.operands[:n_frames]
    ]
    if all(map(operator.is_, operands, expr.operands)):
        return expr
    return type(expr)(*operands, *expr.operands[n_frames:])


def _has_objects(meta: Any) -> bool:
    return any(dtype == np.dtype(object) for dtype in (meta.dtypes if meta.ndim == 2 else [meta.dtype]))


def _text_to_strings(part: Any) -> Any:
    """Convert columns of objects to Arrow's strings, as Dask does, unless they hold something else than text."""
    if part.ndim == 1:
        return part if holds_other_than_text(part) else to_pyarrow_string(part)
    kept = [j for j in range(part.shape[1]) if holds_other_than_text(part.iloc[:, j])]
    converted = to_pyarrow_string(part.drop(columns=part.columns[kept]))
    for j in kept:
        converted.insert(j, part.columns[j], part.iloc[:, j].array)
    return converted


class _TextToStrings(dask_expr.ArrowStringConversion):
    operation = staticmethod(_text_to_strings)


def compute(collection: Any) -> Any:
    """Compute one collection in this process."""
    _check_held(collection)
    with building:
        lazy = with_objects(collection)
        lazy = lazy.optimize() if isinstance(lazy, (dd.DataFrame, dd.Series)) else lazy
    return lazy.compute(scheduler=_scheduler())


def consume(
    data: Any, vectors: Mapping[str, Any], consumer: Callable[[int, Any, dict[str, Any]], Any], n_threads: int | None
) -> list[Any]:
    """Call ``consumer(i, partition, roles)`` for every partition, and return the results in order.

    Parameters
    ----------
    data : dask DataFrame or Array
    vectors : mapping
        Dask collections of roles, by name, aligned with `data`.
    consumer : callable
        Called from several threads at once.
    n_threads : int or None
        None for Dask's default.

    Raises
    ------
    DataError
        If the numbers of partitions differ. Errors of the consumer and of the user's tasks are re-raised with a note that
        names the partition. If several partitions fail, the error is that of the first one, not that of the fastest thread.
    """
    graph, bundles = bundled(data, vectors)
    for key, value in graph.items():
        if library(value) == "distributed":  # a future of a partition on a cluster: fetch it when needed
            graph[key] = (value.result,)
    calls = _Calls(consumer, roles_in(vectors))
    keys = [("dboost-read", i) for i in range(len(bundles))]
    graph.update({key: (calls.call, i, pieces) for i, (key, pieces) in enumerate(zip(keys, bundles, strict=True))})
    options = {} if n_threads is None else {"num_workers": n_threads}
    try:
        return list(_scheduler()(graph, keys, **options))
    except Exception as error:
        number = next((i for i, failure in calls.failed.items() if failure is error), None)
        if number is None:  # a task of the user has failed; tasks of earlier partitions might have, too
            number = _failed(error, graph, keys)
            if number is not None:
                with calls.lock:
                    number, error = min({**calls.failed, number: error}.items(), key=lambda failure: failure[0])
                    unread = {i: bundles[i] for i in range(number) if i not in calls.ended}
                number, error = _first_failure(graph, unread) or (number, error)
        if number is not None and not isinstance(error, DBoostError):  # dboost's own errors name it already
            error.add_note(f"while partition {number} was read")
        raise error


class _Calls:
    """Calls the consumer of `consume` from several threads, and raises its error for the first partition that fails."""

    def __init__(self, consumer: Callable[[int, Any, dict[str, Any]], Any], filled: Sequence[str]) -> None:
        self._consumer, self._filled = consumer, filled
        self.lock, self.ended = threading.Lock(), set[int]()
        self.failed: dict[int, Exception] = {}  # errors of the consumer, by partition

    def call(self, i: int, pieces: tuple[Any, ...]) -> Any:
        result = None
        with self.lock:
            is_needed = all(first > i for first in self.failed)
        try:
            result = self._consumer(i, *in_place(pieces, self._filled)) if is_needed else None
        except ParameterError:  # it concerns all partitions, so there is nothing to wait for
            raise
        except Exception as error:
            with self.lock:
                self.failed[i] = error
        with self.lock:
            self.ended.add(i)
            first = min(self.failed, default=None)
            if first is not None and self.ended.issuperset(range(first)):
                raise self.failed[first]
        return result


def _first_failure(graph: dict[Any, Any], bundles: dict[int, Any]) -> tuple[int, Exception] | None:
    """Compute bundles by partition, one after the other; return the first one that fails, and its error."""
    for i, bundle in bundles.items():
        key = ("dboost-bundle", i)
        try:
            dask.get(graph | {key: bundle}, key)
        except Exception as error:
            return i, error
    return None


def _failed(error: Exception, graph: dict[Any, Any], keys: list[Any]) -> int | None:
    """Return the partition that was read when a task failed; None if unknown, or if several partitions need the task."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "execute_task")
    tasks = [key for key in (frame.f_locals.get("key") for frame in frames) if key in graph]
    if not tasks:
        return None
    failed = tasks[-1]
    dependents = reverse_dict({key: get_dependencies(graph, key) for key in graph})
    reached, waiting = {failed}, [failed]
    while waiting:
        new = dependents.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    numbers = [i for i, key in enumerate(keys) if key in reached]
    return numbers[0] if len(numbers) == 1 else None


def roles_in(roles: Collection[str]) -> tuple[str, ...]:
    """Return the names of given roles, in the order in which `bundled` passes them on."""
    return tuple(role for role in ROLES if role in roles)


@one_at_a_time
def bundled(data: Any, vectors: Mapping[str, Any]) -> tuple[dict[Any, Any], list[Any]]:
    """Return one graph for a collection and its aligned roles, and for each partition the key or task of all its pieces.

    Raises
    ------
    DataError
        If the numbers of partitions differ.
    """
    collections = [data, *(_match(vectors[role], data, role) for role in roles_in(vectors))]
    collections = list(map(with_objects, collections))
    graph: dict[Any, Any] = {}
    if all(isinstance(c, (dd.DataFrame, dd.Series)) for c in collections):
        meta = pd.Series(dtype=object)
        joined = dd.map_partitions(bundle, *collections, meta=meta, enforce_metadata=False).optimize()
        graph.update(joined.__dask_graph__())
        return graph, list(flatten(joined.__dask_keys__()))
    for collection in collections:
        graph.update(collection.__dask_graph__())
    columns = [list(flatten(collection.__dask_keys__())) for collection in collections]
    return graph, [(bundle, *keys) for keys in zip(*columns, strict=True)]


def _scheduler() -> Callable[..., Any]:
    """Return Dask's threaded scheduler, or the synchronous one if Dask is configured to use it."""
    configured = dask.config.get("scheduler", None)
    serial = configured is dask.get or (
        isinstance(configured, str) and configured.lower() in {"sync", "synchronous", "single-threaded"}
    )
    return dask.get if serial else dask.threaded.get


def _match(vector: Any, data: Any, role: str) -> Any:
    """Return a role with as many partitions as the data."""
    _check_held(vector)
    has_several = ROLES[role].has_several
    if isinstance(vector, dd.DataFrame) and len(vector.columns) != 1 and not (has_several and len(vector.columns)):
        raise DataError(f"{role} has {len(vector.columns)} columns, one is needed")
    if isinstance(vector, da.Array):
        if vector.ndim == 2 and (vector.shape[1] == 1 or has_several):
            vector = whole_rows(vector)
        elif vector.ndim != 1:
            raise DataError(f"{role} has shape {vector.shape}: one value per row is needed")
        if isinstance(data, da.Array) and _known(vector) and _known(data):
            if vector.shape[0] != data.shape[0]:
                raise DataError(f"{role} has {vector.shape[0]} rows, the data have {data.shape[0]}")
            vector = vector.rechunk({0: data.chunks[0]})
    elif not isinstance(vector, (dd.DataFrame, dd.Series)):
        raise InputTypeError(f"{role} cannot be a Dask {type(vector).__name__}")
    count, wanted = count_partitions(vector), count_partitions(data)
    if count != wanted:
        # Converting a frame to an array may join small files, the more of them the fewer columns are read.
        hint = ""
        if isinstance(vector, da.Array) and isinstance(data, dd.DataFrame):
            hint = "; to a Dask frame belongs a Dask Series"
        elif isinstance(vector, da.Array) and not (_known(vector) and _known(data)):
            hint = " (Dask joins small files): persist the frame of both first, or give the frame and the name of the column"
        raise DataError(f"{role} has {count} partitions, the data have {wanted}: they must align{hint}")
    return vector


def _known(array: da.Array) -> bool:
    return not any(size != size for size in array.chunks[0])


@one_at_a_time
def delayed(collection: Any) -> Any:
    """Return the partitions of a collection as an array or a list of delayed objects."""
    return collection.to_delayed()


@one_at_a_time
def count_partitions(collection: Any) -> int:
    """Return the number of partitions, or of blocks of rows."""
    return collection.numblocks[0] if isinstance(collection, da.Array) else collection.npartitions


def bundle(*pieces: Any) -> tuple[Any, ...]:
    """Return a partition and its pieces of the given roles as one tuple."""
    return pieces


def in_place(pieces: tuple[Any, ...], filled: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return the partition of a bundle, and its pieces of the given roles, by name."""
    return pieces[0], dict(zip(filled, pieces[1:], strict=True))


class PackedPredictor:
    """A predictor that travels as the bytes of its pickle, and is restored when it is needed.

    Parameters
    ----------
    pickled : bytes or None
        None for a predictor that cannot be pickled, which serves this process only.
    predictor : Predictor, optional
        The one in the bytes, where it is known.
    """

    def __init__(self, pickled: bytes | None, predictor: Predictor | None = None) -> None:
        self._pickled, self._predictor = pickled, predictor
        self._lock = threading.Lock()

    @classmethod
    def of(cls, predictor: Predictor) -> PackedPredictor:
        """Pack a predictor."""
        try:
            return cls(cloudpickle.dumps(predictor), predictor)
        except Exception:  # of an object of the user; only a cluster needs the bytes, and raises the error again
            return cls(None, predictor)

    def unpacked(self) -> Predictor:
        """Return the predictor, the same one in all threads."""
        with self._lock:
            if self._predictor is None:
                assert self._pickled is not None
                self._predictor = cloudpickle.loads(self._pickled)
            return self._predictor

    def __reduce__(self) -> tuple[type[PackedPredictor], tuple[bytes]]:
        return PackedPredictor, (cloudpickle.dumps(self._predictor) if self._pickled is None else self._pickled,)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + len(self._pickled or b"")


@one_at_a_time
def predict_lazily(data: Any, predictor: Predictor) -> Any:
    """Return a lazy collection of predictions with the partitions of `data`, a Dask frame or array, or a path."""
    if is_path(data):
        from dboost.data.sources.paths import open_path

        data = open_path(data, predictor.features)
    data = with_objects(data)
    columns = columns_like(*layout(data), predictor.features, predictor.named)
    packed = PackedPredictor.of(predictor)
    # Not a digest of the bytes: these grow by what a predictor computes when it is used first.
    task = dask.delayed(packed, name=f"dboost-model-{tokenize(predictor)}", traverse=False)
    if isinstance(data, da.Array):
        return _through_array(whole_rows(data), task, predictor)
    if predictor.named:
        data = select(data, tuple(map(str, columns)))
    meta = predictions_like(predictor.of_no_rows, data._meta.iloc[:0], predictor.names)
    return dd.map_partitions(_predict_frame, data, task, meta=meta, enforce_metadata=False)


def _through_array(data: da.Array, task: Any, predictor: Predictor) -> da.Array:
    if predictor.names is None:
        shape: dict[str, Any] = {"drop_axis": 1}
        meta = np.empty(0, predictor.dtype)
    else:
        shape = {"chunks": (data.chunks[0], (len(predictor.names),))}
        meta = np.empty((0, 0), predictor.dtype)
    return da.map_blocks(_predict_block, data, predictor=task, dtype=predictor.dtype, meta=meta, **shape)


@short_traceback
def _predict_block(block: Any, predictor: PackedPredictor) -> np.ndarray:
    return predictor.unpacked().promised(block)


@short_traceback
def _predict_frame(frame: pd.DataFrame, predictor: PackedPredictor) -> Any:
    unpacked = predictor.unpacked()
    return predictions_like(unpacked.promised(frame), frame, unpacked.names)
