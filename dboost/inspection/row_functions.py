"""Rows of any data for interpretation: functions of rows, and rows with a known target.

A function is applied to a table in memory at once (block by block if it is sparse), to Dask collections partition by
partition, to streams batch by batch. Partitions are processed by Dask's scheduler (on the cluster if there is a client), and
only the function's result is returned. So statistics that are exact sums are the same for any partitioning, and a collection or
a stream may be larger than memory. A stream that is read twice is stored in temporary files (`rereadable_rows`).

Rows may have weights: the name of a column works for every kind of table, because the column is read as one more column of
the block; an array of values works for tables in memory only.

`EvaluatedRows` have a target and the model's raw scores: input of metrics, calibration, lift and residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dboost.cluster.client.client import client_for
from dboost.data import open_table
from dboost.data.columns.labels import may_name_columns
from dboost.data.columns.read_plan import columns_like
from dboost.data.kinds.named_columns import column_named, with_named_targets
from dboost.data.kinds.predictor import FeatureBlocks
from dboost.data.kinds.table_kinds import in_parts, is_path, is_stream
from dboost.data.sources import stream_of
from dboost.data.sources.stored_stream import rereadable
from dboost.errors import DataError, InputTypeError, ParameterError
from dboost.metrics.metric import LossMagnitude, ScoredRows
from dboost.metrics.named import find_metrics
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.schema import Feature
from dboost.session.target import Target, check_order_of_targets, encode_like
from dboost.session.warm_start import row_matrices
from dboost.tuning import tuning

T = TypeVar("T")
#: Number of a partition, and of the first row of a block in it.
Key = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Block:
    """Encoded rows (see `feature_block`) with their weights. Functions that take data also take a `Block`."""

    #: float32 or float64 [n, n_features].
    block: np.ndarray
    #: float64[n], or None.
    weight: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.block)

    def __getitem__(self, rows: Any) -> Block:
        return Block(self.block[rows], None if self.weight is None else self.weight[rows])


def over_blocks(data: Any, ensemble: Ensemble, function: Callable[[Key, Block], T], weight: Any = None) -> list[T]:
    """Return ``function(key, block)`` for every partition or batch that has rows, in order; of sparse ones for blocks of rows.

    Parameters
    ----------
    data : as in `Booster.predict`
    ensemble : Ensemble
        Its features are the columns of the block.
    function : callable
        Takes the number of the partition and that of the block's first row in it, and the block.
    weight : str, or one number per row of a table in memory, optional
        Weights of the rows.

    Raises
    ------
    DataError
        Naming the missing or unreadable column; for invalid weights; or if there are no rows.
    InputTypeError
        For an array of weights with a Dask collection, a path or a stream, or a name of a column with an array.
    """
    if in_parts(data):
        column = _column(weight, ensemble, data)
        others = () if column is None else (column,)
        features = *ensemble.features, *map(Feature, others)
        parts = on_partitions(partial(_applied, function, features, ensemble.named, column), data, ensemble, *others)
        found = [one for part in parts for one in part]
    else:
        found = [function((0, first), block) for first, block in _in_memory(data, ensemble, weight)[1] if len(block)]
    if not found:
        raise DataError("inspect: the data have no rows")
    return found


def sample(
    data: Any, ensemble: Ensemble, n_rows: int, weight: Any = None, columns: list[int] | None = None
) -> tuple[np.ndarray, Block]:
    """Return at most `n_rows` rows, evenly spaced over the whole data and hence the same for any partitioning.

    Parameters
    ----------
    data, ensemble, weight
        As of `over_blocks`.
    n_rows : int
    columns : list of int, optional
        Positions of the features that the block has. Default: all.

    Returns
    -------
    numbers : int64[n]
        Positions of the rows in the data.
    block : Block
    """
    return _some_rows(data, ensemble, lambda n: _spaced(n, n_rows), weight, columns)


def row_of(data: Any, ensemble: Ensemble, row: Any) -> np.ndarray:
    """Return a row as a block [1, n_features]. row : its position, negative from the end; ParameterError if there is none."""

    def position(n: int) -> np.ndarray:
        if isinstance(row, bool) or not isinstance(row, int | np.integer) or not -n <= row < n:
            raise ParameterError(f"there is no row {row!r}: X has {n} rows")
        return np.array([int(row) % n])

    return _some_rows(data, ensemble, position)[1].block


def _some_rows(
    data: Any, ensemble: Ensemble, choose: Callable[[int], np.ndarray], weight: Any = None, columns: list[int] | None = None
) -> tuple[np.ndarray, Block]:
    """Return the chosen rows, and their ascending positions, which follow from the number of all rows."""
    of_block: dict[Key, np.ndarray] = {}
    pick: Callable[[Key, Block], tuple[Key, int, Block]] = partial(
        _picked, of_block, slice(None) if columns is None else columns
    )
    data = weighted_rows(data, ensemble, weight)
    if in_parts(data):
        counted = over_blocks(data, ensemble, _length, weight)  # with the same columns, so that batches are the same
        numbers = choose(sum(length for _, length in counted))
        start = 0
        for key, length in counted:
            of_block[key] = _within(numbers, start, length)
            start += length
        found = over_blocks(data, ensemble, pick, weight)
        _check_same(dict(counted), {key: length for key, length, _ in found})
        picked = [block for *_, block in found]
    else:
        n, blocks = _in_memory(data, ensemble, weight)
        if not n:
            raise DataError("inspect: the data have no rows")
        numbers, picked = choose(n), []
        for first, block in blocks:
            of_block[0, first] = _within(numbers, first, len(block))
            picked.append(pick((0, first), block)[-1])
    weights = [one.weight for one in picked if one.weight is not None]
    return numbers, Block(np.concatenate([one.block for one in picked]), np.concatenate(weights) if weights else None)


def _check_same(counted: dict[Key, int], found: dict[Key, int]) -> None:
    """Check that rows that were read twice are as many as before. counted, found : the rows of each block, then and now.

    Raises
    ------
    DataError
        Naming the first partition of which that is not true.
    """
    if counted == found:
        return
    first = min(key[0] for key in counted.keys() | found.keys() if counted.get(key) != found.get(key))
    before, now = (sum(length for key, length in one.items() if key[0] == first) for one in (counted, found))
    raise DataError(
        f"inspect: partition {first} had {before} rows when rows were counted, and {now} when they were read: a source must "
        "give the same rows every time, and does not if files are replaced or a sample has no seed; persist the collection"
    )


def _within(numbers: np.ndarray, start: int, length: int) -> np.ndarray:
    """Return those of some ascending positions that lie in a block of rows, as positions in the block."""
    low, high = np.searchsorted(numbers, (start, start + length))
    return numbers[low:high] - start


def at_least_one(name: str, value: Any) -> int:
    """Return a parameter that counts something, or raise a `ParameterError` that names it."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ParameterError(f"{name}={value!r} must be an integer of at least 1")
    return int(value)


def _in_memory(data: Any, ensemble: Ensemble, weight: Any) -> tuple[int, Iterable[tuple[int, Block]]]:
    """Return the number of rows of a table in memory, and its blocks with the positions of their first rows."""
    if isinstance(data, Block):
        return len(data), [(0, data)]
    column = _column(weight, ensemble, data)
    features = ensemble.features if column is None else (*ensemble.features, Feature(column))
    blocks = FeatureBlocks(data, features, ensemble.named, what="inspect")
    if column is not None or weight is None:
        return len(blocks), ((rows.start, _split(block, column)) for rows, block in blocks)
    weights = np.asarray(weight, np.float64)
    if weights.shape not in ((len(blocks),), (len(blocks), 1)):
        raise DataError(f"sample_weight has the shape {weights.shape}, but there are {len(blocks)} rows")
    values = _checked(weights.reshape(-1), "sample_weight")
    return len(blocks), ((rows.start, Block(block, values[rows])) for rows, block in blocks)


def _column(weight: Any, ensemble: Ensemble, data: Any) -> str | None:
    """The name of the column of weights, or None."""
    name = column_named(weight, data)
    if name is None:
        if weight is not None and in_parts(data):
            raise InputTypeError(
                "sample_weight must be the name of a column when the rows are a Dask collection, a path or a stream"
            )
        return None
    if not ensemble.named:
        raise InputTypeError(f"sample_weight={weight!r}: arrays have no names of columns, so give one number for each row")
    if name in {feature.name for feature in ensemble.features}:
        raise InputTypeError(f"sample_weight={weight!r} is a feature of the model")
    return name


def _split(matrix: np.ndarray, column: str | None) -> Block:
    """Split off the last column of a matrix as the weight, if there is a column of weights."""
    if column is None:
        return Block(matrix)
    weight = _checked(matrix[:, -1].astype(np.float64), f"sample_weight {column!r}")
    return Block(np.ascontiguousarray(matrix[:, :-1]), weight)


def _checked(weight: np.ndarray, what: str) -> np.ndarray:
    wrong = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if len(wrong):
        raise DataError(f"{what} is missing, infinite or negative in {len(wrong)} rows, first in row {wrong[0]}")
    return weight


def _spaced(n: int, wanted: int) -> np.ndarray:
    return np.arange(n) if n <= wanted else np.arange(wanted) * n // wanted


def _length(key: Key, block: Block) -> tuple[Key, int]:
    return key, len(block)


def _picked(of_block: dict[Key, np.ndarray], columns: list[int] | slice, key: Key, block: Block) -> tuple[Key, int, Block]:
    """Return key and length of a block, and its chosen rows; none of these if the block had more rows when counted."""
    chosen = of_block.get(key)
    if chosen is None or (len(chosen) and chosen[-1] >= len(block)):
        chosen = np.empty(0, np.int64)
    some = block[chosen]
    return key, len(block), Block(some.block[:, columns], some.weight)


def _applied(
    function: Callable[[Key, Block], T], features: tuple[Feature, ...], named: bool, weight: str | None, data: Any, part: int
) -> list[T]:
    """Return the results of a function for a partition's blocks with rows. weight : the last of the features, or None."""
    blocks = FeatureBlocks(data, features, named, what="inspect")
    return [function((part, rows.start), _split(block, weight)) for rows, block in blocks if len(block)]


def lazy_pieces(data: Any, ensemble: Ensemble, *others: str) -> tuple[list[Any], list[float]]:
    """Return the partitions of a Dask collection or of files as delayed tables, and their numbers of rows (NaN: unknown).

    others : columns to read besides the model's features.
    """
    import dask.array as da

    from dboost.data.sources.paths import open_path
    from dboost.data.tables import dask_collections

    if is_path(data):
        data = open_path(data, ensemble.features)
    data = dask_collections.with_objects(data)
    columns = columns_like(*dask_collections.layout(data), ensemble.features, ensemble.named)
    if isinstance(data, da.Array):
        return dask_collections.delayed(dask_collections.whole_rows(data)).ravel().tolist(), list(data.chunks[0])
    wanted = tuple(dict.fromkeys((*map(str, columns), *others)))
    absent = [name for name in others if name not in dask_collections.layout(data)[0]]
    if absent:
        raise DataError(f"the data have no column {absent[0]!r}")
    pieces = dask_collections.delayed(dask_collections.select(data, wanted) if ensemble.named else data)
    return pieces, [float("nan")] * len(pieces)


def on_partitions(task: Callable[[Any, int], T], data: Any, ensemble: Ensemble, *others: str) -> Iterable[T]:
    """Return ``task(table, i)`` of each partition i of a Dask collection, files or a stream. others : as of `lazy_pieces`."""
    if is_stream(data):
        return _on_batches(task, data, ensemble, others)
    import dask

    from dboost.config import without_graph_warning

    pieces, _ = lazy_pieces(data, ensemble, *others)
    shared = dask.delayed(task, pure=False, traverse=False)
    # The model is part of the graph, so that Dask can send it again when a worker is lost; users cannot make it smaller.
    with client_for(data), without_graph_warning():  # which reports a lost scheduler
        return list(dask.compute(*(dask.delayed(call)(shared, piece, i) for i, piece in enumerate(pieces))))


def _on_batches(task: Callable[[Any, int], T], data: Any, ensemble: Ensemble, others: Sequence[str]) -> Iterator[T]:
    """Yield ``task(table, i)`` of each batch i of a stream, of which one is in memory at a time."""
    source = stream_of(data, tuning().batch_bytes)
    for i, batch in enumerate(source.partitions(_columns_of(source.names, ensemble, others))):
        result = task(batch, i)
        del batch
        yield result


def _columns_of(names: Sequence[str], ensemble: Ensemble, others: Sequence[str]) -> list[str]:
    """Return the columns of a stream that are the model's features, and others."""
    absent = [name for name in others if name not in names]
    if absent:
        raise DataError(f"the data have no column {absent[0]!r}")
    features = columns_like(tuple(names), True, ensemble.features, ensemble.named, others)
    return list(dict.fromkeys((*map(str, features), *others)))


def rereadable_rows(data: Any, ensemble: Ensemble, *roles: Any) -> Any:
    """Return data that can be read more than once: streams are stored in temporary files, with the columns that are used.

    roles : of the rows, names of columns or values; None for those that the rows do not have.
    """

    def columns(names: Sequence[str]) -> list[str]:
        return _columns_of(names, ensemble, [name for role in roles for name in _named(role, data, names)])

    return rereadable(data, columns, "inspect")


def weighted_rows(data: Any, ensemble: Ensemble, weight: Any, *roles: Any) -> Any:
    """Return rows as `rereadable_rows` does, with weights as of `over_blocks`.

    Values are refused as weights of a stream, also of a small one, which is kept in memory.
    """
    if is_stream(data):
        _column(weight, ensemble, data)
    return rereadable_rows(data, ensemble, weight, *roles)


def _named(role: Any, data: Any, names: Sequence[str]) -> list[str]:
    """Return the columns of a stream that a role means; none for values."""
    name = column_named(role, data)
    if name is not None:
        return [name]
    return role if may_name_columns(role) and set(role) <= set(names) else []


def call(task: Callable[..., T], *arguments: Any) -> T:
    """Call a function that is an argument, so that it is one key of a graph and not a part of each of its tasks."""
    return task(*arguments)


class EvaluatedRows:
    """Targets, raw scores and weights of a table's rows.

    Parameters
    ----------
    ensemble : Ensemble
    data, target, sample_weight : as in `dboost.fit`

    Attributes
    ----------
    target : float64[n]
        Numbers, or codes of classes.
    raw : float64[n, n_outputs]
    weight : float64[n] or None
    calibration : Calibration or None
        Of the model.
    """

    def __init__(self, ensemble: Ensemble, data: Any, target: Any, sample_weight: Any = None) -> None:
        self._outputs, self.calibration = ensemble.outputs, ensemble.calibration
        self._loss = self._outputs.loss
        check_order_of_targets(with_named_targets(target, data), self._loss)
        with open_table(data, target, sample_weight=sample_weight, like=ensemble.features) as table:
            known = Target(self._loss, ensemble.classes, ensemble.classes_dtype)
            self.target = encode_like(table, known)
            self.weight = table.weight
            flat = FlatEnsemble(ensemble)
            self.raw = np.concatenate([flat.raw_scores(block) for block in row_matrices(table, None)])

    def of_class(self, wanted: Any = None) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return whether rows belong to a class (bool[n]), its predicted probability (float64[n]) and its name.

        Raises
        ------
        ParameterError
            For an unknown class or a regression model.
        """
        k, name = self._outputs.class_of(wanted)
        return self.target == k, self._outputs.probabilities(self.raw)[:, k], name

    def confusion(self) -> tuple[list[Any], np.ndarray]:
        """Return the names of the classes, and for each true class the share of its rows by predicted class: float64[K, K]."""
        names, weight = self._outputs.require_classes(), np.ones(len(self.target)) if self.weight is None else self.weight
        predicted = self._outputs.probabilities(self.raw).argmax(axis=1)
        counts = np.zeros((len(names), len(names)))
        np.add.at(counts, (self.target.astype(np.int64), predicted), weight)
        return list(names), counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Return targets and predictions of a regression model.

        Raises
        ------
        ParameterError
            For a model that predicts classes, or several numbers for each row.
        """
        if self._outputs.labels is not None:
            raise ParameterError("there are no residuals: the model predicts classes")
        columns = self._outputs.prediction_columns
        if columns is not None:
            raise ParameterError(f"there are no residuals: the model predicts {len(columns)} numbers for each row")
        return self.target, self._outputs.finish(self.raw)

    def metrics(self) -> dict[str, float]:
        """Return the metrics that apply to the loss, by name."""
        names = [self._loss.name, *_MORE_METRICS]
        max_weight = 1.0 if self.weight is None else float(self.weight.max())
        n_rows, unknown = len(self.raw), LossMagnitude(1.0, 1.0, 1.0, 1)
        rows = ScoredRows(self.target, self.raw.T, self.weight, self._loss, unknown)
        magnitudes = [
            (
                float(np.abs(one.loss.value(one.target, one.raw)).max(initial=0.0)) or 1.0,
                max(1.0, float(np.abs(one.target - one.target.mean()).max())),
            )
            for one in rows.parts()
        ]
        rows = replace(rows, size=LossMagnitude.of(magnitudes, max_weight, n_rows))
        found = {}
        for name in names:
            try:
                metric = find_metrics(name, self._loss)[0]
            except ParameterError:
                continue
            found[name] = metric.finish(metric.chunk(rows))
        return found


_MORE_METRICS = ("accuracy", "roc_auc", "brier_score", "mean_absolute_error", "root_mean_squared_error")
