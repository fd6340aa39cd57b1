"""Rows that do not fit a memory limit: from an open table to files, and an engine that streams them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dboost.binning import Binning, propose_all, sample_rows
from dboost.engine.streamed import StreamedEngine
from dboost.model.ensemble import Ensemble
from dboost.model.flat import FlatEnsemble
from dboost.shard.blocks import Blocks, Traits, Writer
from dboost.shard.loading import sampled
from dboost.shard.writing import Piece, encoded_pieces, write_piece
from dboost.sources import Table
from dboost.sources.spool import PrivateDirectory
from dboost.training.boost import Prepared
from dboost.training.budget import Budget
from dboost.training.held_out import flat_scores
from dboost.training.replay import matrix_of


def traits_of(prepared: Prepared) -> Traits:
    """What the shards of a fit have in common."""
    return Traits(
        layout=prepared.layout,
        n_outputs=len(prepared.baseline),
        weighted=prepared.weighted,
        whole_weights=prepared.heaviest is not None,
        constant_hessian=prepared.constant_hessian,
        by_weight=prepared.by_weight,
        max_leaves=prepared.rule.max_leaves,
        n_planes=prepared.n_planes,
        coarse=prepared.start.loss_unit,
    )


def propose_within(
    table: Table, kept: np.ndarray | None, *, max_bins: int, seed: int, n_threads: int, budget: Budget
) -> Binning:
    """As `shard.loading.propose_binning`, from the sampled values of some columns at a time."""
    n_rows = table.n_rows if kept is None else len(kept)
    rows = sample_rows(n_rows, seed)
    if kept is not None:
        rows = kept[rows]
    weight = None if table.weight is None else table.weight[rows]
    numeric = [j for j, feature in enumerate(table.features) if not feature.is_categorical]
    edges: list[np.ndarray | None] = [None] * len(table.features)
    at_once = budget.columns_at_once(n_rows)
    for first in range(0, len(numeric), at_once):
        some = numeric[first : first + at_once]
        parts = [part for _, part in sampled(table, rows, some)]
        columns = [np.concatenate(column) if len(column) > 1 else column[0] for column in zip(*parts, strict=True)]
        for j, edge in zip(some, propose_all(columns, weight, max_bins, n_threads), strict=True):
            edges[j] = edge
    return Binning(table.features, tuple(edges))


def stream_table(
    table: Table,
    prepared: Prepared,
    kept: np.ndarray | None,
    y: np.ndarray,
    weight: np.ndarray | None,
    offset: np.ndarray | None,
    *,
    start_from: Ensemble | None,
    n_threads: int,
    budget: Budget,
) -> StreamedEngine:
    """Write the rows of a table, or those kept, to files; y, weight and offset are of these rows.

    Raises
    ------
    StorageError
        When the files cannot be written.
    ParameterError
        When the budget is too small for trees of that size.
    """
    traits = traits_of(prepared)
    histograms = budget.histograms(traits, n_threads)
    scores = starting_scores(prepared.baseline, start_from, offset, n_threads)
    folder = PrivateDirectory()
    try:
        blocks = Blocks.new(folder.path, "", traits, len(y))
        writer = Writer(blocks)
        pieces = encoded_pieces(table, prepared.binning, prepared.layout, kept, n_threads, blocks.state.block_rows)
        for piece in pieces:
            rows = slice(piece.first, piece.last)
            write_piece(writer, traits, piece, y[rows], None if weight is None else weight[rows], scores(piece))
        return StreamedEngine(
            writer.finish(),
            prepared.start.loss.terms(),
            n_threads=n_threads,
            histogram_bytes=histograms,
            release=folder.close,
        )
    except BaseException:
        folder.close()
        raise


def starting_scores(
    baseline: np.ndarray, start_from: Ensemble | None, offset: np.ndarray | None, n_threads: int
) -> Callable[[Piece], np.ndarray]:
    """Raw scores of pieces to start from: float64[n], or float64[n_outputs, n] where there are several outputs."""
    flat = None if start_from is None else FlatEnsemble(start_from)

    def scores(piece: Piece) -> np.ndarray:
        if flat is None:
            raw = flat_scores(baseline, piece.last - piece.first)
        else:
            found = flat.raw_scores(matrix_of(piece.chunk), n_threads=n_threads).T
            raw = np.ascontiguousarray(found[0] if len(found) == 1 else found)
        if offset is not None:
            raw += offset[piece.first : piece.last]
        return raw

    return scores
