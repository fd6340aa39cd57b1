"""Held-out rows that are large beside a memory limit: they are judged from files, block by block.

Two block files (`shard.store`) hold them: ``judged`` what never changes (codes in columns, target, weight), which is sealed,
and ``judged-scores`` the raw scores, and those that were marked last (see `Judge`). A tree is added, and a metric is worked
out, by a walk over all blocks, which the team's threads share. Metrics are told in chunks that merge exactly, so what comes
out is what rows in memory give, to the last bit. (The area under the curve keeps all distinct scores meanwhile.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dboost.binning import Binning
from dboost.engine.team import Team
from dboost.growth.task import GrownTree
from dboost.kernels.histograms import Layout
from dboost.losses import Loss
from dboost.model.flat import FlatEnsemble
from dboost.shard.blocks import Writer, rows_that_fit
from dboost.shard.catch_up import add_grown
from dboost.shard.layout import code_rows
from dboost.shard.shard import Codes, empty_codes
from dboost.shard.store import BlockFile, Field
from dboost.shard.writing import encoded_pieces
from dboost.sources import Table
from dboost.sources.spool import PrivateDirectory
from dboost.statistics.metrics import Metric, Rows, Size
from dboost.training.origin import Origin
from dboost.training.replay import add_block, matrix_of
from dboost.training.target import Target, encode_chunk


@dataclass(frozen=True, eq=False)
class FiledRows:
    """The files, in a private directory that goes with this record.

    Attributes
    ----------
    rows, scores : BlockFile
    layout : Layout
    heaviest : float
        The largest weight.
    """

    folder: PrivateDirectory
    rows: BlockFile
    scores: BlockFile
    layout: Layout
    heaviest: float

    @property
    def n_rows(self) -> int:
        return self.rows.n_rows

    @classmethod
    def write(
        cls,
        table: Table,
        target: Target,
        binning: Binning,
        layout: Layout,
        *,
        baseline: np.ndarray,
        origin: Origin,
        n_threads: int,
    ) -> FiledRows:
        """The rows of positive weight of a table, with the scores that they begin with.

        baseline : float64[n_outputs]

        Raises
        ------
        DataError
            For targets that the training target does not know.
        StorageError
            When the files cannot be written.
        """
        n_rows, heaviest, weighted = 0, 0.0, False
        for k, length in enumerate(table.lengths):
            weight = table.roles(k)[1] if length else None
            n_rows += length if weight is None else int(np.count_nonzero(weight > 0))
            if length:
                heaviest = max(heaviest, 1.0 if weight is None else float(weight.max()))
            weighted = weighted or weight is not None
        codes = empty_codes(layout, 0)
        fields = [Field("narrow", "<u1", (len(codes.narrow),)), Field("target", "<f8")]
        fields += [Field("wide", "<u2", (len(codes.wide),))] if len(codes.wide) else []
        fields += [Field("weight", "<f8")] if weighted else []
        outputs = () if len(baseline) == 1 else (len(baseline),)
        scores = [Field("raw", "<f8", outputs), Field("marked", "<f8", outputs)]
        block_rows = rows_that_fit(fields, n_rows)
        flat = None if origin.model is None else FlatEnsemble(origin.model)
        folder = PrivateDirectory()
        try:
            files = [
                BlockFile(folder.path / "judged", fields, n_rows, sealed=True, block_rows=block_rows),
                BlockFile(folder.path / "judged-scores", scores, n_rows, sealed=False, block_rows=block_rows),
            ]
            writer = Writer(files)
            chunk, at = -1, 0
            for piece in encoded_pieces(table, binning, layout, n_threads, block_rows, allow_infinite=True):
                if piece.number != chunk:
                    chunk, at = piece.number, 0
                    y, weight = encode_chunk(table, chunk, target), table.roles(chunk)[1]
                    y = y if weight is None else y[weight > 0]
                n = piece.codes.n_rows
                _, weight, offset = piece.roles
                raw = np.repeat(baseline[:, None], n, axis=1)
                raw += 0.0 if offset is None else offset
                if flat is not None:
                    add_block(raw, flat, matrix_of(piece.chunk), (0, origin.n_before), n_threads)
                found = {"narrow": piece.codes.narrow, "target": y[at : at + n], "raw": raw if outputs else raw[0]}
                if len(codes.wide):
                    found["wide"] = piece.codes.wide
                if weighted:
                    found["weight"] = np.ones(n) if weight is None else weight
                writer.append(n, found)
                at += n
            writer.finish()
        except BaseException:
            folder.close()
            raise
        return cls(folder, files[0], files[1], layout, heaviest)


class FiledHeldOut:
    """One evaluation set in files; a `Judge`.

    Parameters
    ----------
    name : str
    files : FiledRows
    loss : Loss
    size : Size
    team : Team
    """

    def __init__(self, name: str, files: FiledRows, loss: Loss, size: Size, team: Team) -> None:
        self.name, self._files, self._loss, self._size, self._team = name, files, loss, size, team
        self._row_of = code_rows(files.layout)
        self._buffers = [(files.rows.buffer(), files.scores.buffer()) for _ in range(team.n_threads)]

    def _walk(self, thread: int, *, rows: bool, reads: Sequence[str]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """The blocks of one thread, each with what is read of it."""
        files, n = self._files, self._files.rows.n_blocks
        sealed, changing = self._buffers[thread]
        for block in range(n * thread // self._team.n_threads, n * (thread + 1) // self._team.n_threads):
            if rows:
                files.rows.read(block, sealed)
            files.scores.read(block, changing, reads)
            yield block, files.rows.views(sealed, block) | files.scores.views(changing, block)

    def add(self, grown: GrownTree, values: np.ndarray, output: int = 0) -> None:
        """Add a grown tree's leaf values (float64[n_leaves]) to the raw scores of its output."""

        def work(thread: int) -> None:
            for block, found in self._walk(thread, rows=True, reads=["raw"]):
                n = len(found["target"])
                codes = Codes(found["narrow"], found.get("wide", np.empty((0, n), np.uint16)), self._row_of)
                raw = found["raw"] if found["raw"].ndim == 1 else found["raw"][output]
                add_grown(codes, self._files.layout, grown, values, raw, 0, n)
                self._files.scores.write(block, self._buffers[thread][1], ["raw"])

        self._team.run(work)

    def judge(self, metrics: Sequence[Metric]) -> dict[str, float]:
        """The metrics now, as ``{"<set>_<metric>": value}``."""

        def work(thread: int) -> list[Any] | None:
            chunks: list[Any] | None = None
            for _, found in self._walk(thread, rows=True, reads=["raw"]):
                seen = Rows(found["target"], found["raw"].T, found.get("weight"), self._loss, self._size)
                told = [metric.chunk(seen) for metric in metrics]
                chunks = told if chunks is None else _merged(metrics, chunks, told)
            return chunks

        told = [chunks for chunks in self._team.run(work) if chunks is not None]
        merged = reduce(lambda a, b: _merged(metrics, a, b), told)
        return {f"{self.name}_{metric.name}": metric.finish(chunk) for metric, chunk in zip(metrics, merged, strict=True)}

    def mark(self) -> None:
        """Remember the present raw scores."""
        self._copy("raw", "marked")

    def rewind(self) -> None:
        """Forget the trees since the last mark."""
        self._copy("marked", "raw")

    def _copy(self, source: str, target: str) -> None:
        def work(thread: int) -> None:
            for block, found in self._walk(thread, rows=False, reads=[source]):
                found[target][...] = found[source]
                self._files.scores.write(block, self._buffers[thread][1], [target])

        self._team.run(work)


def _merged(metrics: Sequence[Metric], a: list[Any], b: list[Any]) -> list[Any]:
    return [metric.merge(x, y) for metric, x, y in zip(metrics, a, b, strict=True)]
