"""Raw scores of rows under a model that exists already.

The model walks over the rows chunk by chunk, adding its trees in their order: ``((baseline + offset) + v1) + v2 + …``. These
are the very sums that training makes, so going on from here is the same, to the last bit, as never having stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dboost.errors import DataError
from dboost.losses import Loss
from dboost.model.ensemble import Ensemble
from dboost.model.flat import FlatEnsemble, Range
from dboost.schema import Feature
from dboost.sources import CategoryColumn, Chunk, Table
from dboost.training.origin import Origin
from dboost.training.target import Target


def blocks(table: Table, rows: np.ndarray | None) -> Iterator[np.ndarray]:
    """The table's rows, or some of them (int64, ascending), chunk by chunk as matrices that trees can walk over."""
    start = 0
    for i, length in enumerate(table.lengths):
        own = None
        if rows is not None:
            low, high = np.searchsorted(rows, (start, start + length))
            own = rows[low:high] - start
        for _, some, chunk in table.slices(i, own):
            yield matrix_of(chunk) if some is None else matrix_of(chunk)[some]
        start += length


def block_of(table: Table, rows: np.ndarray | None) -> np.ndarray:
    """The same as one matrix."""
    parts = list(blocks(table, rows))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def starting_scores(
    baseline: np.ndarray,
    origin: Origin,
    table: Table,
    rows: np.ndarray | None,
    n_threads: int,
    iterations: Range | None = None,
) -> np.ndarray:
    """Raw scores that some rows of a table, or all, begin with.

    Parameters
    ----------
    baseline : float64[n_outputs]
    origin : Origin
        With the model whose trees are added.
    table : Table
        Its offsets are added to the baseline.
    rows : int64[...], ascending, or None
    n_threads : int
    iterations : (first, last), optional
        Only those of the model's iterations.

    Returns
    -------
    float64[n], or float64[n_outputs, n] where there are several outputs
    """
    n = table.n_rows if rows is None else len(rows)
    scores = np.repeat(baseline[:, None], n, axis=1)
    if table.offset is not None:
        scores += table.offset if rows is None else table.offset[rows]
    add_trees(scores, origin, table, rows, n_threads, iterations)
    return scores[0] if len(baseline) == 1 else scores


def add_trees(
    scores: np.ndarray,
    origin: Origin,
    table: Table,
    rows: np.ndarray | None,
    n_threads: int,
    iterations: Range | None = None,
) -> None:
    """Add the trees of a model, or of some of its iterations, to raw scores (as `starting_scores` returns) in place."""
    first, last = iterations or (0, origin.n_before)
    if origin.model is None or first == last:
        return
    flat = FlatEnsemble(origin.model)
    scores = np.atleast_2d(scores)
    start = 0
    for block in blocks(table, rows):
        add_block(scores[:, start : start + len(block)], flat, block, (first, last), n_threads)
        start += len(block)


def add_block(scores: np.ndarray, flat: FlatEnsemble, block: np.ndarray, iterations: Range, n_threads: int) -> None:
    """The same for the rows of one matrix; scores : float64[n_outputs, n]."""
    of_rows = np.ascontiguousarray(scores.T)
    flat.add_to(of_rows, block, iterations, n_threads)
    scores[:] = of_rows.T


def check_continues(model: Ensemble, features: tuple[Feature, ...], target: Target) -> None:
    """Refuse to continue a model on data that it does not speak about.

    Raises
    ------
    DataError
        Naming the first feature or class that differs.
    """
    old, new = model.features, features
    if len(old) != len(new):
        raise DataError(f"the model to continue has {len(old)} features, the data have {len(new)}")
    for before, now in zip(old, new, strict=True):
        if before != now:
            what = "other levels than" if before.name == now.name else f"the place of {before.name!r} in"
            raise DataError(f"the data do not continue the model: column {now.name!r} has {what} the model")
    if model.classes != target.classes:
        raise DataError(f"the data do not continue the model: it knows the classes {model.classes}, they {target.classes}")
    check_loss(model, target.loss)


def check_loss(model: Ensemble, loss: Loss) -> None:
    """Refuse to continue a model with another loss than its own."""
    if not _same_loss(model, loss):
        told = [f"loss {one['name']!r}" + _options(one) for one in (model.loss, loss.to_dict())]
        raise DataError(f"the model to continue was trained with {told[0]}, not {told[1]}")


def _options(loss: dict[str, Any]) -> str:
    known = ", ".join(f"{name}={value!r}" for name, value in loss.items() if name != "name")
    return f" ({known})" if known else ""


def _same_loss(model: Ensemble, loss: Loss) -> bool:
    # The model may know more: what its first iteration found out.
    return model.loss == model.loss | loss.to_dict()


def matrix_of(chunk: Chunk) -> np.ndarray:
    """Numbers as they are, categories as codes, NaN where missing."""
    if chunk.matrix is not None:
        return chunk.matrix
    columns = [_numbers(column) if isinstance(column, CategoryColumn) else column for column in chunk.columns]
    matrix = np.empty((chunk.n_rows, len(columns)), np.result_type(np.float32, *(column.dtype for column in columns)))
    for j, column in enumerate(columns):
        matrix[:, j] = column
    return matrix


def _numbers(column: CategoryColumn) -> np.ndarray:
    codes = column.codes.astype(np.float32)
    codes[column.codes < 0] = np.nan
    return codes
