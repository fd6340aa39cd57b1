"""A batch's rows before they are shards, seen part by part: targets in the terms of the loss, weights, offsets.

Without a memory limit there is one part, all rows in memory. With one, target, weight and offset wait in files like the columns
(`data.row_metadata`), and so does what is worked out of them, a partition at a time: the encoded target, and the scores that
a model of other data gives the rows. Whoever must see all rows at once brings them into memory (`gather`).

A batch's rows piece by piece, as training begins with them: for those who write them to files.
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

#: Target, weight and offset (or the scores that take its place) of some rows.
MetadataTuple = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]


class BatchRows:
    """The rows of a batch on one worker.

    Parameters
    ----------
    table : Table
    n_threads : int

    Attributes
    ----------
    y : float64[n_rows]
        Targets of all rows in the terms of the loss; empty where they are in files.
    begun : float64[n_kept] or float64[n_outputs, n_kept], or None
        Scores of a model that is continued, for rows of positive weight; None also where they are in files.
    """

    def __init__(self, table: Table, n_threads: int) -> None:
        self.table, self._n_threads = table, n_threads
        self.y = np.empty(0)
        self.begun: np.ndarray | None = None
        self._targets, self._scores = Spool(0), Spool(0)
        self._has_begun = False

    @property
    def n_kept(self) -> int:
        """Rows of positive weight."""
        return sum(self.kept_of(k) for k in range(self.table.n_chunks))

    def kept_of(self, k: int) -> int:
        """Rows of positive weight of chunk k."""
        weight = self.table.roles(k)[1] if self.table.lengths[k] else None
        return self.table.lengths[k] if weight is None else int(np.count_nonzero(weight > 0))

    @property
    def owned(self) -> dict[int, int]:
        """Rows of positive weight of each partition that has some."""
        return {number: n for k, number in enumerate(self.table.numbers) if (n := self.kept_of(k))}

    def pieces(self, spec: BuildSpec, n_threads: int, piece_rows: int) -> Iterator[StartingPiece]:
        """See `StartingRows`."""
        return starting_pieces(self, spec, n_threads, piece_rows)

    def encode(self, target: Target) -> None:
        """Work out the target in the terms of the loss."""
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

    def begin(self, warm_start: WarmStart) -> None:
        """Work out the scores that a model of other data gives the rows of positive weight; again is harmless."""
        if self._has_begun:
            return
        table, iterations = self.table, (0, warm_start.n_earlier)
        self._has_begun = True
        if not table.keeps_roles_apart:
            kept = kept_rows(table.weight)
            self.begun = starting_scores(warm_start.baseline, warm_start, table, kept, self._n_threads, iterations)
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
                    for _, own, chunk in table.slices(k, kept):
                        matrix = matrix_of(chunk) if own is None else matrix_of(chunk)[own]
                        here = scores[:, at : at + len(matrix)].copy()
                        add_block(here, flat, matrix, iterations, self._n_threads)
                        scores[:, at : at + len(matrix)] = here
                        at += len(matrix)
                self._scores.put(k, [scores[0] if len(scores) == 1 else scores])

    def parts(self) -> Iterator[MetadataTuple]:
        """The rows of positive weight: target, weight, offset. Scores of a model that is continued take the offset's place."""
        table = self.table
        if not table.keeps_roles_apart:
            weight, offset, y = table.weight, table.offset, self.y
            kept = kept_rows(weight)
            if kept is not None:
                y = y[kept]
                weight, offset = (values if values is None else values[kept] for values in (weight, offset))
            if len(y):
                yield y, weight, offset if self.begun is None else self.begun
            return
        for k in range(table.n_chunks):
            if self.kept_of(k):
                yield self.part(k)

    def target_of(self, k: int) -> np.ndarray:
        """Targets of all rows of chunk k."""
        if self.table.keeps_roles_apart:
            return self._targets.get(k)[0]
        first = sum(self.table.lengths[:k])
        return self.y[first : first + self.table.lengths[k]]

    def part(self, k: int) -> MetadataTuple:
        """The same of chunk k, of which some rows count."""
        _, weight, offset = self.table.roles(k)
        kept = kept_rows(weight)
        some = slice(None) if kept is None else kept
        weight, offset = (values if values is None else values[some] for values in (weight, offset))
        if self.table.keeps_roles_apart:
            return self._targets.get(k)[0][some], weight, self._scores.get(k)[0] if self._has_begun else offset
        first = sum(self.table.lengths[:k])
        y = self.y[first : first + self.table.lengths[k]][some]
        if self.begun is not None:
            all_weights = self.table.weight
            before = first if all_weights is None else int(np.count_nonzero(all_weights[:first] > 0))
            offset = self.begun[..., before : before + len(y)]
        return y, weight, offset

    @property
    def has_begun(self) -> bool:
        """Whether the last of a part are the scores of a model that is continued."""
        return self._has_begun

    def gather(self) -> None:
        """Bring everything into memory."""
        table = self.table
        if not table.keeps_roles_apart:
            return
        filled = [k for k, length in enumerate(table.lengths) if length]
        some = [k for k in filled if self.kept_of(k)]
        if self._has_begun and some:
            self.begun = np.concatenate([self._scores.get(k)[0] for k in some], axis=-1)
        self.y = np.concatenate([np.empty(0), *(self._targets.get(k)[0] for k in filled)])
        table.gather_roles()
        self._targets.close()
        self._scores.close()

    def close(self) -> None:
        """Remove files. The table is somebody else's."""
        self._targets.close()
        self._scores.close()


class StartingRows(Protocol):
    """Rows that can be read piece by piece, as training begins with them."""

    @property
    def owned(self) -> dict[int, int]:
        """Rows of positive weight of each partition that has some."""

    def pieces(self, spec: BuildSpec, n_threads: int, piece_rows: int) -> Iterator[StartingPiece]:
        """The rows of positive weight, in pieces of about `piece_rows` rows."""


def global_row_ids(table: Table, rows: np.ndarray, starts: dict[int, int]) -> np.ndarray:
    """Numbers of a table's rows of positive weight among those of all partitions: int64[len(rows)]."""
    borders = np.searchsorted(rows, np.cumsum((0, *table.lengths)))
    parts = [starts[i] + np.arange(b - a) for i, (a, b) in zip(table.numbers, pairwise(borders.tolist()), strict=True)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class StartingPiece:
    """Consecutive rows of positive weight of one partition.

    first : number of the first of them among all rows that are trained on; codes : valid until the next piece;
    fields : their target, weight (if weights count) and raw scores, by name.
    """

    first: int
    codes: BinnedColumns
    fields: dict[str, np.ndarray]


def starting_pieces(rows: BatchRows, spec: BuildSpec, n_threads: int, piece_rows: int) -> Iterator[StartingPiece]:
    """The rows of positive weight, in pieces of at most `piece_rows` rows."""
    table, warm_start = rows.table, spec.warm_start
    flat = None if warm_start.model is None else FlatEnsemble(warm_start.model)
    seen = (warm_start.n_earlier if rows.has_begun else 0, warm_start.n_before)
    chunk, at = -1, 0
    for piece in encoded_pieces(table, spec.binning, spec.layout, n_threads, piece_rows):
        n = piece.codes.n_rows
        if piece.number != chunk:
            chunk, at = piece.number, 0
            target, weight, offset = rows.part(chunk)
        here = slice(at, at + n)
        if rows.has_begun:
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
