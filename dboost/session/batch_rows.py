"""Target, weight, offset and start scores of a batch's rows, before they become shards.

Without a memory limit these arrays are in memory, and `BatchRows.ranges` yields one range. With a limit, target, weight and
offset are in files like the columns (`data.row_metadata`). Arrays that are computed from them are stored in files as well, one
partition at a time: the encoded target, and the start scores, which are the raw scores by a model of other data. `gather` loads
everything into memory, for functions that need all rows together.

`starting_pieces` yields encoded rows with their first raw scores, piece by piece, for code that writes them to files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from dboost.data import Table
from dboost.model.forest import FlatEnsemble
from dboost.session.protocol import BuildSpec
from dboost.session.target import Target, encode_chunk, encode_like
from dboost.session.warm_start import WarmStart, add_block, matrix_of, starting_scores
from dboost.shards.encode import encoded_pieces, kept_rows
from dboost.shards.shard import BinnedColumns
from dboost.storage.spool import Spool

#: Target, weight, and offset or start scores of a range of rows.
MetadataTuple = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]


class BatchRows:
    """The rows of a batch in one session.

    Parameters
    ----------
    table : Table
    n_threads : int

    Attributes
    ----------
    y : float64[n_rows]
        Encoded targets of all rows; empty if they are in files.
    start_scores : float64[n_kept] or float64[n_outputs, n_kept], or None
        Raw scores of the rows of positive weight by a model of other data; None without such a model or if they are in files.
    """

    def __init__(self, table: Table, n_threads: int) -> None:
        self.table, self._n_threads = table, n_threads
        self.y = np.empty(0)
        self.start_scores: np.ndarray | None = None
        self._targets, self._scores = Spool(0), Spool(0)
        self._has_start_scores = False

    @property
    def n_kept(self) -> int:
        """Number of rows of positive weight."""
        return sum(self.kept_of(k) for k in range(self.table.n_chunks))

    def kept_of(self, k: int) -> int:
        """Return the number of rows of positive weight of chunk k."""
        weight = self.table.roles(k)[1] if self.table.lengths[k] else None
        return self.table.lengths[k] if weight is None else int(np.count_nonzero(weight > 0))

    @property
    def owned(self) -> dict[int, int]:
        """Number of rows of positive weight of each partition with such rows."""
        return {number: n for k, number in enumerate(self.table.numbers) if (n := self.kept_of(k))}

    def pieces(self, spec: BuildSpec, n_threads: int, piece_rows: int) -> Iterator[StartingPiece]:
        """See `StartingRows`."""
        return starting_pieces(self, spec, n_threads, piece_rows)

    def encode(self, target: Target) -> None:
        """Encode the target for the loss."""
        table = self.table
        if not table.keeps_roles_apart:
            counts = table.n_rows > 0 and (table.weight is None or bool((table.weight > 0).any()))
            self.y = encode_like(table, target) if counts else np.zeros(table.n_rows)
            return
        self._targets.close()
        self._targets = Spool(0)
        for k, length in enumerate(table.lengths):
            if length:
                self._targets.put(k, [encode_chunk(table, k, target)])

    def compute_start_scores(self, warm_start: WarmStart) -> None:
        """Compute the start scores of the rows of positive weight, by a model of other data. Idempotent."""
        if self._has_start_scores:
            return
        table, iterations = self.table, (0, warm_start.n_earlier)
        self._has_start_scores = True
        if not table.keeps_roles_apart:
            kept = kept_rows(table.weight)
            self.start_scores = starting_scores(warm_start.baseline, warm_start, table, kept, self._n_threads, iterations)
            return
        flat = None if warm_start.model is None else FlatEnsemble(warm_start.model)
        for k in range(table.n_chunks):
            n = self.kept_of(k)
            if n:
                _, weight, offset = table.roles(k)
                kept = kept_rows(weight)
                some = slice(None) if kept is None else kept
                scores = np.repeat(warm_start.baseline[:, None], n, axis=1)
                if offset is not None:
                    scores += offset[some]
                if flat is not None and warm_start.n_earlier:
                    at = 0
                    for _, positions, chunk in table.slices(k, kept):
                        matrix = matrix_of(chunk) if positions is None else matrix_of(chunk)[positions]
                        here = scores[:, at : at + len(matrix)].copy()
                        add_block(here, flat, matrix, iterations, self._n_threads)
                        scores[:, at : at + len(matrix)] = here
                        at += len(matrix)
                self._scores.put(k, [scores[0] if len(scores) == 1 else scores])

    def ranges(self) -> Iterator[MetadataTuple]:
        """Yield target, weight and offset (or start scores) of ranges that together are the rows of positive weight."""
        table = self.table
        if not table.keeps_roles_apart:
            weight, offset, y = table.weight, table.offset, self.y
            kept = kept_rows(weight)
            if kept is not None:
                y = y[kept]
                weight, offset = (values if values is None else values[kept] for values in (weight, offset))
            if len(y):
                yield y, weight, offset if self.start_scores is None else self.start_scores
            return
        for k in range(table.n_chunks):
            if self.kept_of(k):
                yield self.range_of(k)

    def target_of(self, k: int) -> np.ndarray:
        """Return the encoded targets of all rows of chunk k."""
        if self.table.keeps_roles_apart:
            return self._targets.get(k)[0]
        first = sum(self.table.lengths[:k])
        return self.y[first : first + self.table.lengths[k]]

    def range_of(self, k: int) -> MetadataTuple:
        """Return the same of chunk k, which must have rows of positive weight."""
        _, weight, offset = self.table.roles(k)
        kept = kept_rows(weight)
        some = slice(None) if kept is None else kept
        weight, offset = (values if values is None else values[some] for values in (weight, offset))
        if self.table.keeps_roles_apart:
            return self._targets.get(k)[0][some], weight, self._scores.get(k)[0] if self._has_start_scores else offset
        first = sum(self.table.lengths[:k])
        y = self.y[first : first + self.table.lengths[k]][some]
        if self.start_scores is not None:
            all_weights = self.table.weight
            before = first if all_weights is None else int(np.count_nonzero(all_weights[:first] > 0))
            offset = self.start_scores[..., before : before + len(y)]
        return y, weight, offset

    @property
    def has_start_scores(self) -> bool:
        """Whether start scores replace the offsets."""
        return self._has_start_scores

    def gather(self) -> None:
        """Load everything but the columns into memory."""
        table = self.table
        if not table.keeps_roles_apart:
            return
        filled = [k for k, length in enumerate(table.lengths) if length]
        some = [k for k in filled if self.kept_of(k)]
        if self._has_start_scores and some:
            self.start_scores = np.concatenate([self._scores.get(k)[0] for k in some], axis=-1)
        self.y = np.concatenate([np.empty(0), *(self._targets.get(k)[0] for k in filled)])
        table.gather_roles()
        self._targets.close()
        self._scores.close()

    def close(self) -> None:
        """Remove the files. The caller closes the table."""
        self._targets.close()
        self._scores.close()


class StartingRows(Protocol):
    """Rows that can be read piece by piece: encoded, with their first raw scores."""

    @property
    def owned(self) -> dict[int, int]:
        """Number of rows of positive weight of each partition with such rows."""

    def pieces(self, spec: BuildSpec, n_threads: int, piece_rows: int) -> Iterator[StartingPiece]:
        """Yield the rows of positive weight in pieces of about `piece_rows` rows."""


def global_row_ids(table: Table, starts: dict[int, int]) -> np.ndarray:
    """Return the global ids of a table's rows of positive weight: int64[n_kept]."""
    kept = kept_rows(table.weight)
    borders = np.cumsum((0, *table.lengths))
    if kept is not None:
        borders = np.searchsorted(kept, borders)
    row_ids = [starts[i] + np.arange(b - a) for i, (a, b) in zip(table.numbers, pairwise(borders.tolist()), strict=True)]
    return np.concatenate(row_ids) if row_ids else np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class StartingPiece:
    """Consecutive rows of positive weight of one partition."""

    first: int  # global id of the first row
    codes: BinnedColumns  # valid until the next piece
    fields: dict[str, np.ndarray]  # target, weight (if the fit has weights) and first raw scores, by name


def starting_pieces(rows: BatchRows, spec: BuildSpec, n_threads: int, piece_rows: int) -> Iterator[StartingPiece]:
    """Yield the rows of positive weight in pieces of at most `piece_rows` rows."""
    table, warm_start = rows.table, spec.warm_start
    flat = None if warm_start.model is None else FlatEnsemble(warm_start.model)
    seen = (warm_start.n_earlier if rows.has_start_scores else 0, warm_start.n_before)
    chunk, at = -1, 0
    for piece in encoded_pieces(table, spec.binning, spec.layout, n_threads, piece_rows):
        n = piece.codes.n_rows
        if piece.number != chunk:
            chunk, at = piece.number, 0
            target, weight, offset = rows.range_of(chunk)
        here = slice(at, at + n)
        if rows.has_start_scores:
            assert offset is not None
            raw = np.atleast_2d(offset)[:, here].copy()
        else:
            raw = np.repeat(spec.baseline[:, None], n, axis=1)
            raw += 0.0 if offset is None else offset[here]
        if flat is not None:
            add_block(raw, flat, matrix_of(piece.chunk), seen, n_threads)
        fields = {"target": target[here], "raw": raw[0] if len(raw) == 1 else raw}
        if spec.shard.weighted:
            fields["weight"] = np.ones(n) if weight is None else weight[here]
        yield StartingPiece(spec.starts[table.numbers[chunk]] + at, piece.codes, fields)
        at += n
