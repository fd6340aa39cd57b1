"""Which rows of a batch are trained on, held out or watched: functions of `TableRows` that count and assign rows.

A row has a global id, its position among all rows of positive weight of the table (`TableRows.id_ranges`), and a class. The
coordinator draws the rows (`row_samples`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dboost.data.columns.roles import kept_rows
from dboost.errors import DataError
from dboost.session.row_samples import HELD_OUT, TEST, TRAIN, WATCHED, ChosenRows, DigitRequest, FoldRows, RowAssignment
from dboost.session.table_rows import TableRows

#: Number of rows that are hashed at a time.
_PIECE_ROWS = 1 << 17


def class_counts(rows: TableRows, n_classes: int | None) -> np.ndarray:
    """Return the number of rows of positive weight in each class, or in total: int64[n_classes or 1].

    n_classes : None for regression.
    """
    counts = np.zeros(n_classes or 1, np.int64)
    for piece in _pieces(rows, n_classes):
        is_one_class = isinstance(piece.classes, int)
        counts += len(piece.rows) if is_one_class else np.bincount(piece.classes, minlength=len(counts))
    return counts


def digit_counts(rows: TableRows, n_classes: int | None, digits: DigitRequest) -> np.ndarray:
    """Return the counts of the values of a digit of the rows' hashes; see `DigitRequest.count`."""
    counts = np.zeros((len(digits.prefixes), 1 << digits.n_bits), np.int64)
    for piece in _pieces(rows, n_classes):
        counts += digits.count(piece.draw_ids, piece.classes)
    return counts


def assign_rows(rows: TableRows, n_classes: int | None, assignment: RowAssignment) -> None:
    """Set the training weights of the rows, 0 for validation rows, and store which rows are chosen. Idempotent.

    Weights of chosen rows include the class weights.
    """
    if rows.chosen is not None:
        return
    held_out, watched, fold = assignment.held_out, assignment.watched, assignment.fold
    if assignment.class_weight is None and held_out is None and watched is None and fold is None:
        rows.chosen = {}
        return
    table = rows.table
    weighted = assignment.class_weight is not None
    weighted = weighted or any(n and table.roles(k).weight is not None for k, n in enumerate(table.lengths))
    chosen_rows: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {HELD_OUT: [], WATCHED: []}

    def weights(k: int) -> np.ndarray:
        """Return the new weights of chunk k, and append its chosen rows to `found`."""
        weight = _weights(rows, k, assignment.class_weight)
        for piece in _pieces(rows, n_classes, k):
            positions_of_piece, drawn = piece.rows, (piece.draw_ids, piece.classes)
            uses = None if fold is None else fold.uses[fold.at(piece.first_id, len(positions_of_piece))]
            if uses is not None:
                held = uses == TEST
            else:
                held = np.zeros(len(positions_of_piece), bool) if held_out is None else held_out.selects(*drawn)
            seen = np.zeros(len(positions_of_piece), bool) if watched is None else watched.selects(*drawn) & ~held
            for name, positions in ((HELD_OUT, positions_of_piece[held]), (WATCHED, positions_of_piece[seen])):
                chosen_rows[name].append((piece.first + positions, weight[positions]))
            weight[positions_of_piece[held if uses is None else uses != TRAIN]] = 0.0
        return weight

    table.reweigh(weights)
    if fold is not None and fold.codes_id:
        rows.fold = _in_table_order(fold, [rows.id_ranges.ranges[number] for number in table.partition_ids])

    def joined(name: str) -> ChosenRows:
        positions, factors = zip((np.empty(0, np.int64), np.empty(0)), *chosen_rows[name], strict=True)
        return np.concatenate(positions), np.concatenate(factors) if weighted else None

    exist = {HELD_OUT: held_out is not None or fold is not None, WATCHED: watched is not None}
    rows.chosen = {name: joined(name) for name in chosen_rows if exist[name]}


def _in_table_order(fold: FoldRows, ranges: Sequence[tuple[int, int]]) -> FoldRows:
    """Return the uses and parts of consecutive rows. ranges : first global id and number of rows of each partition."""
    parts, row_ranges = fold.parts, [fold.at(*id_range) for id_range in ranges if id_range[1]]
    return FoldRows(
        np.concatenate([fold.uses[:0], *(fold.uses[rows] for rows in row_ranges)]),
        parts=np.concatenate([parts[:0], *(parts[rows] for rows in row_ranges)]),
        codes_id=fold.codes_id,
    )


def _weights(rows: TableRows, k: int, class_weight: np.ndarray | None) -> np.ndarray:
    """Return a copy of the weights of all rows of chunk k, times the weights of their classes."""
    weight = rows.table.roles(k).weight
    if class_weight is None:
        return np.ones(rows.table.lengths[k]) if weight is None else weight.copy()
    class_factor = class_weight[rows.target_of(k).astype(np.int64)]
    return class_factor if weight is None else class_factor * weight


class _Piece(NamedTuple):
    """Rows of positive weight of one chunk."""

    first: int  # position of the chunk's first row in the table
    rows: np.ndarray  # their positions in the chunk
    first_id: int  # global id of the first of them
    draw_ids: np.ndarray  # see `Table.draw_ids`
    classes: np.ndarray | int  # 0 for regression


def _pieces(rows: TableRows, n_classes: int | None, k: int | None = None) -> Iterator[_Piece]:
    """Yield the rows of positive weight (of chunk k only, if given) in pieces.

    Raises
    ------
    DataError
        If the number of rows of positive weight of a partition has changed since it was first read.
    """
    table, first = rows.table, 0
    for i, (number, length) in enumerate(zip(table.partition_ids, table.lengths, strict=True)):
        if length and k in (None, i):
            kept, (start, n_before) = kept_rows(table.roles(i).weight), rows.id_ranges.ranges[number]
            n = length if kept is None else len(kept)
            if n != n_before:
                raise DataError(
                    f"{table.partition_name(i)} has {n} rows of positive weight, but had {n_before} when it was "
                    "first read: the data have changed meanwhile"
                )
            targets = None if n_classes is None else rows.target_of(i)
            draw_ids = table.draw_ids(i, start)
            for low in range(0, n, _PIECE_ROWS):
                high = min(low + _PIECE_ROWS, n)
                positions = np.arange(low, high) if kept is None else kept[low:high]
                classes = 0 if targets is None else targets[positions].astype(np.int64)
                yield _Piece(first, positions, start + low, draw_ids[low:high], classes)
        first += length
