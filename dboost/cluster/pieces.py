"""A batch's rows piece by piece, as training begins with them: for those who write them to files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dboost.cluster.recipe import Recipe
from dboost.cluster.rows import BatchRows
from dboost.model.flat import FlatEnsemble
from dboost.shard.shard import Codes
from dboost.shard.writing import encoded_pieces
from dboost.training.replay import add_block, matrix_of


@dataclass(frozen=True, eq=False)
class StartingPiece:
    """Consecutive rows of positive weight of one partition.

    first : number of the first of them among all rows that are trained on; codes : valid until the next piece;
    fields : their target, weight (if weights count) and raw scores, by name.
    """

    first: int
    codes: Codes
    fields: dict[str, np.ndarray]


def starting_pieces(rows: BatchRows, recipe: Recipe, n_threads: int, piece_rows: int) -> Iterator[StartingPiece]:
    """The rows of positive weight, in pieces of at most `piece_rows` rows."""
    table, origin = rows.table, recipe.origin
    flat = None if origin.model is None else FlatEnsemble(origin.model)
    seen = (origin.n_earlier if rows.has_begun else 0, origin.n_before)
    chunk, at = -1, 0
    for piece in encoded_pieces(table, recipe.binning, recipe.layout, n_threads, piece_rows):
        n = piece.codes.n_rows
        if piece.number != chunk:
            chunk, at = piece.number, 0
            target, weight, offset = rows.part(chunk)
        here = slice(at, at + n)
        if rows.has_begun:
            assert offset is not None
            raw = np.atleast_2d(offset)[:, here].copy()
        else:
            raw = np.repeat(recipe.baseline[:, None], n, axis=1)
            raw += 0.0 if offset is None else offset[here]
        if flat is not None:
            add_block(raw, flat, matrix_of(piece.chunk), seen, n_threads)
        fields = {"target": target[here], "raw": raw[0] if len(raw) == 1 else raw}
        if recipe.weighted:
            fields["weight"] = np.ones(n) if weight is None else weight[here]
        yield StartingPiece(recipe.starts[table.numbers[chunk]] + at, piece.codes, fields)
        at += n
