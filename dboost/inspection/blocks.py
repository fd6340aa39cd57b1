"""A function of rows, applied to data of any kind: to a table in memory at once, to Dask collections part by part.

The parts of a collection are worked on where Dask works (on a cluster, when there is a client), and only what the
function returns comes back. So statistics made of exact sums are the same for any partitioning, and no collection is
too large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dboost.errors import DataError
from dboost.model.ensemble import Ensemble
from dboost.sources import feature_block
from dboost.sources.frame import is_lazy, is_path

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Block:
    """Rows that are a block already (see `feature_block`), in the place of data."""

    block: np.ndarray


def over_blocks(data: Any, ensemble: Ensemble, function: Callable[[int, np.ndarray], T]) -> list[T]:
    """``function(i, block)`` for every part of the data that has rows, in order.

    Parameters
    ----------
    data : any table that the model predicts from
    ensemble : Ensemble
        Its features say which columns become the block (see `feature_block`).
    function : callable
        Takes the part's number and its rows as float32 or float64 [n, n_features].

    Raises
    ------
    DataError
        Naming the missing or unreadable column; or when there are no rows at all.
    """
    if is_path(data) or is_lazy(data):
        parts = _lazily(data, ensemble, _Task(function, ensemble))
    else:
        block = block_of(data, ensemble)
        parts = [[function(0, block)] if len(block) else []]
    found = [part[0] for part in parts if part]
    if not found:
        raise DataError("inspect: the data have no rows")
    return found


def sample(data: Any, ensemble: Ensemble, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """At most so many rows, evenly spaced over the whole data and hence the same for any partitioning.

    Returns
    -------
    numbers : int64[n]
        Which rows of the data they are.
    block : float32 or float64 [n, n_features]
    """
    if not (is_path(data) or is_lazy(data)):
        block = block_of(data, ensemble)
        if not len(block):
            raise DataError("inspect: the data have no rows")
        numbers = _spaced(len(block), n_rows)
        return numbers, block[numbers]
    lengths = dict(over_blocks(data, ensemble, _length))
    numbers = _spaced(sum(lengths.values()), n_rows)
    start, of_part = 0, {}
    for part, length in lengths.items():
        of_part[part] = numbers[(numbers >= start) & (numbers < start + length)] - start
        start += length
    return numbers, np.concatenate(over_blocks(data, ensemble, _Pick(of_part)))


def block_of(data: Any, ensemble: Ensemble) -> np.ndarray:
    """A table in memory as a block."""
    if isinstance(data, Block):
        return data.block
    return feature_block(data, ensemble.features, ensemble.named, what="inspect")


def _spaced(n: int, wanted: int) -> np.ndarray:
    return np.arange(n) if n <= wanted else np.arange(wanted) * n // wanted


def _length(part: int, block: np.ndarray) -> tuple[int, int]:
    return part, len(block)


class _Pick:
    def __init__(self, of_part: dict[int, np.ndarray]) -> None:
        self._of_part = of_part

    def __call__(self, part: int, block: np.ndarray) -> np.ndarray:
        return block[self._of_part[part]]


class _Task:
    """What a part's task needs besides the part: one key of the graph, however many parts there are."""

    def __init__(self, function: Callable[[int, np.ndarray], Any], ensemble: Ensemble) -> None:
        self._function, self._features, self._named = function, ensemble.features, ensemble.named

    def __call__(self, data: Any, part: int) -> list[Any]:
        block = feature_block(data, self._features, self._named, what="inspect")
        return [self._function(part, block)] if len(block) else []


def lazy_pieces(data: Any, ensemble: Ensemble, *others: str) -> tuple[list[Any], list[float]]:
    """The parts of a Dask collection or of files as delayed tables with the model's columns, and their rows (NaN: unknown).

    others : further columns that are needed.
    """
    import dask.array as da

    from dboost.sources import lazy
    from dboost.sources.paths import open_path
    from dboost.sources.plan import columns_like

    if is_path(data):
        data = open_path(data)
    columns = columns_like(*lazy.layout(data), ensemble.features, ensemble.named)
    if isinstance(data, da.Array):
        return lazy.whole_rows(data).to_delayed().ravel().tolist(), list(data.chunks[0])
    wanted = tuple(dict.fromkeys((*map(str, columns), *others)))
    absent = [name for name in others if name not in lazy.layout(data)[0]]
    if absent:
        raise DataError(f"the data have no column {absent[0]!r}")
    pieces = (lazy.select(data, wanted) if ensemble.named else data).to_delayed()
    return pieces, [float("nan")] * len(pieces)


def _lazily(data: Any, ensemble: Ensemble, task: _Task) -> list[Any]:
    import dask

    pieces, _ = lazy_pieces(data, ensemble)
    shared = dask.delayed(task, pure=False, traverse=False)
    return list(dask.compute(*(dask.delayed(_call)(shared, piece, i) for i, piece in enumerate(pieces))))


def _call(task: _Task, piece: Any, part: int) -> list[Any]:
    return task(piece, part)
