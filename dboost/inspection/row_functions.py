"""Rows of any data for interpretation: functions of rows, and rows with a known target.

A function is applied to a table in memory at once (block by block if it is sparse), to Dask collections partition by
partition, to streams batch by batch. Partitions are processed by Dask's scheduler (on the cluster if there is a client), and
only the function's result is returned. So statistics that are exact sums are the same for any partitioning, and a collection or
a stream may be larger than memory. A stream that is read twice is stored in temporary files (`rereadable_rows`).

Rows may have weights and offsets (`ScoringRoles`): the name of a column works for every kind of table, because the column is
read as one more column of the block; an array of values works for tables in memory only.

`EvaluatedRows` have a target and the model's raw scores: input of metrics, calibration, lift and residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

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
from dboost.metrics.metric import LossMagnitude, MetricReduction, ScoredRows
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
    """Encoded rows (see `feature_block`) with their weights and offsets. Functions that take data also take a `Block`."""

    #: float32 or float64 [n, n_features].
    block: np.ndarray
    #: float64[n], or None.
    weight: np.ndarray | None = None
    #: float64[n], or None.
    offset: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.block)

    def __getitem__(self, rows: Any) -> Block:
        return Block(self.block[rows], *(None if values is None else values[rows] for values in (self.weight, self.offset)))


class ScoringRoles(NamedTuple):
    """Numbers of rows beside their features, as users give them: names of columns, or one number per row of a table in memory;
    None for rows without."""

    sample_weight: Any = None
    offset: Any = None


#: Of rows that have none.
NO_ROLES = ScoringRoles()


def over_blocks(data: Any, ensemble: Ensemble, function: Callable[[Key, Block], T], roles: ScoringRoles = NO_ROLES) -> list[T]:
    """Return ``function(key, block)`` for every partition or batch that has rows, in order; of sparse ones for blocks of rows.

    Parameters
    ----------
    data : as in `Booster.predict`
    ensemble : Ensemble
        Its features are the columns of the block.
    function : callable
        Takes the number of the partition and that of the block's first row in it, and the block.
    roles : ScoringRoles, optional
        Weights and offsets of the rows.

    Raises
    ------
    DataError
        Naming the missing or unreadable column; for invalid weights or offsets; or if there are no rows.
    InputTypeError
        For arrays of weights or offsets with a Dask collection, a path or a stream, or a name of a column with an array.
    """
    if in_parts(data):
        columns = _columns(roles, ensemble, data)
        others = [*dict.fromkeys(column for column in columns if column is not None)]
        features = *ensemble.features, *map(Feature, others)
        parts = on_partitions(partial(_applied, function, features, ensemble.named, columns), data, ensemble, *others)
        results = [result for part in parts for result in part]
    else:
        results = [function((0, first), block) for first, block in _in_memory(data, ensemble, roles)[1] if len(block)]
    if not results:
        raise DataError("inspect: the data have no rows")
    return results


def sample(
    data: Any, ensemble: Ensemble, n_rows: int, roles: ScoringRoles = NO_ROLES, columns: list[int] | None = None
) -> tuple[np.ndarray, Block]:
    """Return at most `n_rows` rows, evenly spaced over the whole data and hence the same for any partitioning.

    Parameters
    ----------
    data, ensemble, roles
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
    return _some_rows(data, ensemble, lambda n: _spaced(n, n_rows), roles, columns)


def row_of(data: Any, ensemble: Ensemble, row: Any) -> np.ndarray:
    """Return a row as a block [1, n_features]. row : its position, negative from the end; ParameterError if there is none."""

    def position(n: int) -> np.ndarray:
        if isinstance(row, bool) or not isinstance(row, int | np.integer) or not -n <= row < n:
            raise ParameterError(f"there is no row {row!r}: X has {n} rows")
        return np.array([int(row) % n])

    return _some_rows(data, ensemble, position)[1].block


def _some_rows(
    data: Any,
    ensemble: Ensemble,
    choose: Callable[[int], np.ndarray],
    roles: ScoringRoles = NO_ROLES,
    columns: list[int] | None = None,
) -> tuple[np.ndarray, Block]:
    """Return the chosen rows, and their ascending positions, which follow from the number of all rows."""
    positions_by_block: dict[Key, np.ndarray] = {}
    pick: Callable[[Key, Block], tuple[Key, int, Block]] = partial(
        _picked, positions_by_block, slice(None) if columns is None else columns
    )
    data = rows_with_roles(data, ensemble, roles)
    if in_parts(data):
        counted = over_blocks(data, ensemble, _length, roles)  # with the same columns, so that batches are the same
        numbers = choose(sum(length for _, length in counted))
        start = 0
        for key, length in counted:
            positions_by_block[key] = _within(numbers, start, length)
            start += length
        chosen = over_blocks(data, ensemble, pick, roles)
        _check_same(dict(counted), {key: length for key, length, _ in chosen})
        picked = [block for *_, block in chosen]
    else:
        n, blocks = _in_memory(data, ensemble, roles)
        if not n:
            raise DataError("inspect: the data have no rows")
        numbers, picked = choose(n), []
        for first, block in blocks:
            positions_by_block[0, first] = _within(numbers, first, len(block))
            picked.append(pick((0, first), block)[-1])
    weights = [block.weight for block in picked if block.weight is not None]
    offsets = [block.offset for block in picked if block.offset is not None]
    beside = (np.concatenate(values) if values else None for values in (weights, offsets))
    return numbers, Block(np.concatenate([block.block for block in picked]), *beside)


def _check_same(counted: dict[Key, int], read_now: dict[Key, int]) -> None:
    """Check that rows that were read twice are as many as before. counted, read_now : the rows of each block, then and now.

    Raises
    ------
    DataError
        Naming the first partition of which that is not true.
    """
    if counted == read_now:
        return
    first = min(key[0] for key in counted.keys() | read_now.keys() if counted.get(key) != read_now.get(key))
    before, now = (sum(length for key, length in counts.items() if key[0] == first) for counts in (counted, read_now))
    raise DataError(
        f"inspect: partition {first} had {before} rows when rows were counted, and {now} when they were read: a source must "
        "give the same rows every time, and does not if files are replaced or a sample has no seed; persist the collection"
    )


def _within(numbers: np.ndarray, start: int, length: int) -> np.ndarray:
    """Return those of some ascending positions that lie in a block of rows, as positions in the block."""
    low, high = np.searchsorted(numbers, (start, start + length))
    return numbers[low:high] - start


def _in_memory(data: Any, ensemble: Ensemble, roles: ScoringRoles) -> tuple[int, Iterable[tuple[int, Block]]]:
    """Return the number of rows of a table in memory, and its blocks with the positions of their first rows."""
    if isinstance(data, Block):
        return len(data), [(0, data)]
    columns = _columns(roles, ensemble, data)
    features = *ensemble.features, *(Feature(name) for name in dict.fromkeys(columns) if name is not None)
    blocks = FeatureBlocks(data, features, ensemble.named, subject="inspect")
    values = [
        _values_of(role, values, len(blocks)) if values is not None and column is None else None
        for role, values, column in zip(roles._fields, roles, columns, strict=True)
    ]
    return len(blocks), ((rows.start, _with_values(_split(block, columns), values, rows)) for rows, block in blocks)


def _values_of(role: str, column: Any, n_rows: int) -> np.ndarray:
    """Return the values of a role, one per row."""
    values = np.asarray(column, np.float64)
    if values.shape not in ((n_rows,), (n_rows, 1)):
        raise DataError(f"{role} has the shape {values.shape}, but there are {n_rows} rows")
    return _checked(values.reshape(-1), role, role)


def _with_values(block: Block, values: Sequence[np.ndarray | None], rows: slice) -> Block:
    """Return a block with values of roles that are no columns. rows : of the block in the table."""
    weight, offset = (None if role_values is None else role_values[rows] for role_values in values)
    return Block(block.block, block.weight if weight is None else weight, block.offset if offset is None else offset)


#: The name of the column of each role, None for a role that is no column; see `ScoringRoles`.
Columns = tuple[str | None, ...]


def _columns(roles: ScoringRoles, ensemble: Ensemble, data: Any) -> Columns:
    """Return the columns of the roles of rows."""
    return tuple(_column(role, values, ensemble, data) for role, values in zip(roles._fields, roles, strict=True))


def _column(role: str, column: Any, ensemble: Ensemble, data: Any) -> str | None:
    """Return the name of the column of a role, or None."""
    name = column_named(column, data)
    if name is None:
        if column is not None and in_parts(data):
            raise InputTypeError(f"{role} must be the name of a column when the rows are a Dask collection, a path or a stream")
        return None
    if not ensemble.named:
        raise InputTypeError(f"{role}={column!r}: arrays have no names of columns, so give one number for each row")
    if name in {feature.name for feature in ensemble.features}:
        raise InputTypeError(f"{role}={column!r} is a feature of the model")
    return name


def _split(matrix: np.ndarray, columns: Columns) -> Block:
    """Split the columns of roles off a matrix; they follow the features."""
    names = [*dict.fromkeys(name for name in columns if name is not None)]
    if not names:
        return Block(matrix)
    n = matrix.shape[1] - len(names)
    values = [
        None if name is None else _checked(matrix[:, n + names.index(name)].astype(np.float64), role, f"{role} {name!r}")
        for role, name in zip(ScoringRoles._fields, columns, strict=True)
    ]
    return Block(np.ascontiguousarray(matrix[:, :n]), *values)


def _checked(values: np.ndarray, role: str, subject: str) -> np.ndarray:
    """Return the values of a role. subject : the role in messages."""
    is_weight = role == "sample_weight"
    wrong = np.flatnonzero(~np.isfinite(values) | (is_weight & (values < 0)))
    if len(wrong):
        kinds = "missing, infinite or negative" if is_weight else "missing or infinite"
        raise DataError(f"{subject} is {kinds} in {len(wrong)} rows, first in row {wrong[0]}")
    return values


def _spaced(n: int, wanted: int) -> np.ndarray:
    return np.arange(n) if n <= wanted else np.arange(wanted) * n // wanted


def _length(key: Key, block: Block) -> tuple[Key, int]:
    return key, len(block)


def _picked(of_block: dict[Key, np.ndarray], columns: list[int] | slice, key: Key, block: Block) -> tuple[Key, int, Block]:
    """Return key and length of a block, and its chosen rows; none of these if the block had more rows when counted."""
    chosen = of_block.get(key)
    if chosen is None or (len(chosen) and chosen[-1] >= len(block)):
        chosen = np.empty(0, np.int64)
    chosen_block = block[chosen]
    return key, len(block), replace(chosen_block, block=chosen_block.block[:, columns])


def _applied(
    function: Callable[[Key, Block], T], features: tuple[Feature, ...], named: bool, columns: Columns, data: Any, part: int
) -> list[T]:
    """Return the results of a function for a partition's blocks with rows. columns : of roles, the last of the features."""
    blocks = FeatureBlocks(data, features, named, subject="inspect")
    return [function((part, rows.start), _split(block, columns)) for rows, block in blocks if len(block)]


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


def rows_with_roles(data: Any, ensemble: Ensemble, roles: ScoringRoles, *others: Any) -> Any:
    """Return rows as `rereadable_rows` does, with roles as of `over_blocks`, and others.

    Values are refused as roles of a stream, also of a small one, which is kept in memory.
    """
    if is_stream(data):
        _columns(roles, ensemble, data)
    return rereadable_rows(data, ensemble, *roles, *others)


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
    data, target, sample_weight, offset : as in `dboost.fit`

    Attributes
    ----------
    target : float64[n]
        Numbers, or codes of classes.
    raw : float64[n, n_outputs]
    weight : float64[n] or None
    calibration : Calibration or None
        Of the model.
    """

    def __init__(self, ensemble: Ensemble, data: Any, target: Any, sample_weight: Any = None, offset: Any = None) -> None:
        self._outputs, self.calibration = ensemble.outputs, ensemble.calibration
        self._loss = self._outputs.loss
        check_order_of_targets(with_named_targets(target, data), self._loss)
        with open_table(data, target, sample_weight=sample_weight, offset=offset, like=ensemble.features) as table:
            known = Target(self._loss, ensemble.classes, ensemble.classes_dtype)
            self.target = encode_like(table, known)
            self.weight = table.weight
            flat = FlatEnsemble(ensemble)
            raw = np.concatenate([flat.raw_scores(block) for block in row_matrices(table, None)])
            self.raw = self._outputs.with_offset(raw, table.offset)

    @property
    def n_classes(self) -> int:
        """Number of the classes of a classifier."""
        return len(self._outputs.require_classes())

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

    def truth_and_prediction(self) -> tuple[np.ndarray, np.ndarray]:
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
        names = [*([] if self._loss.name == "squared_error" else [self._loss.name]), *_MORE_METRICS]  # RMSE is one of these
        rows, values = self._scored(), {}
        for name in names:
            try:
                metric = find_metrics(name, self._loss)[0]
            except ParameterError:
                continue
            values[name] = metric.finish(metric.chunk(rows))
        return values

    def metric(self, name: str) -> tuple[MetricReduction, float]:
        """Return a metric by its name, and its value.

        Raises
        ------
        ParameterError
            For a metric that does not go with the loss.
        """
        metric = find_metrics(name, self._loss)[0]
        return metric, metric.finish(metric.chunk(self._scored()))

    def _scored(self) -> ScoredRows:
        """Return the rows as metrics get them."""
        max_weight = 1.0 if self.weight is None else float(self.weight.max())
        n_rows, unknown = len(self.raw), LossMagnitude(1.0, 1.0, 1.0, 1)
        rows = ScoredRows(self.target, self.raw.T, self.weight, self._loss, unknown)
        magnitudes = [
            (
                float(np.abs(part.loss.value(part.target, part.raw)).max(initial=0.0)) or 1.0,
                max(1.0, float(np.abs(part.target - part.target.mean()).max())),
            )
            for part in rows.parts()
        ]
        return replace(rows, size=LossMagnitude.of(magnitudes, max_weight, n_rows))


_MORE_METRICS = ("accuracy", "roc_auc", "brier_score", "mean_absolute_error", "root_mean_squared_error", "r2_score")
