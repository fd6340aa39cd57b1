"""Rows of a table at the start of a fit: those that are trained on, or those of an evaluation set.

`StartingRows` yields encoded rows with their first raw scores (`warm_start.first_scores`, and the trees of the model that is
continued), piece by piece, for code that writes them to a store. A piece is a dictionary of fields: codes by columns, target,
raw scores, and those of weight and draw_id that the fit has. Codes are valid until the next piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dboost.data import Table
from dboost.data.columns.chunk import matrix_of
from dboost.data.columns.roles import kept_rows
from dboost.model.ensemble import FlatEnsemble
from dboost.rows.encode import encoded_pieces
from dboost.session.fit_records import BuildSpec
from dboost.session.warm_start import add_block, first_scores


@dataclass(frozen=True, eq=False)
class StartingRows:
    """Rows of a table.

    Attributes
    ----------
    table : Table
    target_of : callable
        Returns the encoded targets of all rows of a chunk, given its number: float64[n], or [n_columns, n].
    rows : int64[n_rows] or None
        Positions of the chosen rows, ascending; None for all rows of positive weight.
    weight : float64[n_rows] or None
        Weights of the chosen rows, None for 1. Without chosen rows the table has the weights.
    scores_of : callable, optional
        Returns the raw scores of the rows of positive weight of a chunk by a model of other data: float64[n_outputs, n].
    """

    table: Table
    target_of: Callable[[int], np.ndarray]
    rows: np.ndarray | None = None
    weight: np.ndarray | None = None
    scores_of: Callable[[int], np.ndarray] | None = None

    def positions(self) -> np.ndarray | None:
        """Return the rows' positions in the table (int64, ascending), None for all."""
        if self.rows is not None:
            return self.rows
        self.table.gather_roles()
        return kept_rows(self.table.weight)

    def counts(self) -> list[int]:
        """Return the number of these rows in each chunk."""
        if self.rows is not None:
            return np.diff(np.searchsorted(self.rows, np.cumsum((0, *self.table.lengths)))).tolist()
        return [self.table.n_kept(k) for k in range(self.table.n_chunks)]

    def weights(self) -> tuple[float, bool]:
        """Return the largest weight, and whether the rows have weights."""
        if self.rows is not None:
            return 1.0 if self.weight is None else float(self.weight.max(initial=0.0)), self.weight is not None
        max_weight, weighted = 0.0, False
        for k, length in enumerate(self.table.lengths):
            weight = self.table.roles(k).weight if length else None
            if length:
                max_weight = max(max_weight, 1.0 if weight is None else float(weight.max()))
            weighted = weighted or weight is not None
        return max_weight, weighted

    def trained(self, spec: BuildSpec, n_threads: int, piece_rows: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the rows that are trained on in pieces of at most `piece_rows` rows, in order, in the units of shards."""
        for fields in self._pieces(spec, n_threads, piece_rows, evaluates=False):
            yield fields | {name: spec.in_unit(fields[name]) for name in ("target", "raw")}

    def evaluated(self, spec: BuildSpec, n_threads: int, piece_rows: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the rows of an evaluation set in pieces, with the sums of the trees of a forest; the weight is always there."""
        return self._pieces(spec, n_threads, piece_rows, evaluates=True)

    def _pieces(self, spec: BuildSpec, n_threads: int, piece_rows: int, *, evaluates: bool) -> Iterator[dict[str, np.ndarray]]:
        warm_start, chunk, first, n_before = spec.warm_start, -1, 0, 0
        flat = None if warm_start.model is None else FlatEnsemble(warm_start.model)
        seen = (0 if self.scores_of is None else warm_start.n_earlier, warm_start.n_before)
        for piece in encoded_pieces(
            self.table, spec.binning, spec.shard_spec.layout, n_threads, piece_rows, allow_infinite=evaluates, chosen=self.rows
        ):
            n = piece.codes.n_rows
            if piece.number != chunk:
                chunk, first, target = piece.number, 0, self.target_of(piece.number)
                scores = None if self.scores_of is None else self.scores_of(chunk)
            fields = {"narrow": piece.codes.narrow, "wide": piece.codes.wide, "target": target[..., piece.rows]}
            if scores is None:
                raw = first_scores(spec.baseline, spec.target.loss.link.offset_outputs, piece.roles.offset, n)
            else:
                raw = scores[:, first : first + n].copy()
            if flat is not None:
                matrix = matrix_of(piece.chunk)
                add_block(raw, flat, matrix, seen, n_threads)
                if evaluates and spec.shard_spec.averages:
                    sums = np.zeros((n, len(raw)))
                    flat.add_to(sums, matrix, (0, warm_start.n_before), n_threads)
                    fields["tree_sum"] = sums.T
            fields["raw"] = raw
            if evaluates or spec.shard_spec.weighted:
                weight = piece.roles.weight if self.rows is None else self._weight(n_before, n)
                fields["weight"] = np.ones(n) if weight is None else weight
            if spec.shard_spec.has_draw_ids and not evaluates:
                fields["draw_id"] = piece.roles.group_keys
            yield fields
            first, n_before = first + n, n_before + n

    def _weight(self, first: int, n: int) -> np.ndarray | None:
        return None if self.weight is None else self.weight[first : first + n]

    def targets(self) -> np.ndarray:
        """Return the encoded targets of the rows: float64[n], or [n_columns, n]."""
        return np.concatenate([self.target_of(k)[..., rows] for k, rows in self._rows_of_chunks()], axis=-1)

    def _rows_of_chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of each chunk that has some of the rows, and their positions in it."""
        positions, begin, n_before = self.positions(), 0, 0
        positions = np.arange(self.table.n_rows) if positions is None else positions
        for k, (length, n) in enumerate(zip(self.table.lengths, self.counts(), strict=True)):
            if n:
                yield k, positions[n_before : n_before + n] - begin
            begin, n_before = begin + length, n_before + n

    def start_fields(self, spec: BuildSpec) -> Iterator[dict[str, np.ndarray]]:
        """Yield target, weight and raw scores of an evaluation set chunk by chunk, without codes. No model may be continued."""
        n_before = 0
        for k, rows in self._rows_of_chunks():
            n, offset, weight = len(rows), self.table.roles(k).offset, self._weight(n_before, len(rows))
            offset = None if offset is None else offset[rows]
            raw = first_scores(spec.baseline, spec.target.loss.link.offset_outputs, offset, n)
            yield {"target": self.target_of(k)[..., rows], "weight": np.ones(n) if weight is None else weight, "raw": raw}
            n_before += n
