"""Held-out rows that are large beside a memory limit: they are judged from files, block by block.

Two block files (`shard.store`) hold them: ``judged`` what never changes (codes in columns, target, weight), which is sealed,
and ``judged-scores`` the raw scores, and those that were marked last (see `Judge`). A tree is added, and a metric is worked
out, by a walk over all blocks, which the team's threads share. Metrics are told in chunks that merge exactly, so what comes
out is what rows in memory give, to the last bit. (The area under the curve keeps all distinct scores meanwhile.)

They may be all rows of a table, or some that were chosen from the one that is trained on (`ToJudge`); in one process and on the
workers of a cluster it is the same. Blocks are so small that those which threads have in memory fit where small sets would be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
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

#: Blocks do not get shorter than this.
_LEAST_ROWS = 1024


def judged_bytes(layout: Layout, n_rows: int, n_outputs: int) -> int:
    """What rows take that are judged in memory: codes, target, weight, scores and marked ones."""
    codes = empty_codes(layout, 0)
    return n_rows * (len(codes.narrow) + 2 * len(codes.wide) + 16 * (1 + n_outputs))


@dataclass(frozen=True, eq=False)
class ToJudge:
    """Rows of a table that are to be judged.

    Attributes
    ----------
    table : Table
    target_of : callable
        The targets of all rows of a chunk, by its number, in the terms of the loss: float64[n].
    rows : int64[n_rows] or None
        Those that were chosen, ascending; None for all of positive weight.
    weight : float64[n_rows] or None
        Of the chosen rows; those of the table otherwise.
    """

    table: Table
    target_of: Callable[[int], np.ndarray]
    rows: np.ndarray | None = None
    weight: np.ndarray | None = None

    def counts(self) -> list[int]:
        """How many there are in each chunk."""
        if self.rows is not None:
            return np.diff(np.searchsorted(self.rows, np.cumsum((0, *self.table.lengths)))).tolist()
        found = []
        for k, length in enumerate(self.table.lengths):
            weight = self.table.roles(k)[1] if length else None
            found.append(length if weight is None else int(np.count_nonzero(weight > 0)))
        return found

    def sizes(self) -> tuple[int, float, bool]:
        """How many they are, the largest weight, and whether there are weights."""
        if self.rows is not None:
            heaviest = 1.0 if self.weight is None else float(self.weight.max(initial=0.0))
            return len(self.rows), heaviest, self.weight is not None
        heaviest, weighted = 0.0, False
        for k, length in enumerate(self.table.lengths):
            weight = self.table.roles(k)[1] if length else None
            if length:
                heaviest = max(heaviest, 1.0 if weight is None else float(weight.max()))
            weighted = weighted or weight is not None
        return sum(self.counts()), heaviest, weighted

    def pieces(
        self, binning: Binning, layout: Layout, piece_rows: int, *, baseline: np.ndarray, origin: Origin, n_threads: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """The rows piece by piece: codes (narrow, wide), target, weight (ones where there is none) and raw scores.

        baseline : float64[n_outputs]
        """
        flat = None if origin.model is None else FlatEnsemble(origin.model)
        chunk, at = -1, 0
        for piece in encoded_pieces(self.table, binning, layout, n_threads, piece_rows, allow_infinite=True, chosen=self.rows):
            if piece.number != chunk:
                chunk, y = piece.number, self.target_of(piece.number)
            n = piece.codes.n_rows
            _, weight, offset = piece.roles
            if self.rows is not None:
                weight = None if self.weight is None else self.weight[at : at + n]
            raw = np.repeat(baseline[:, None], n, axis=1)
            raw += 0.0 if offset is None else offset
            if flat is not None:
                add_block(raw, flat, matrix_of(piece.chunk), (0, origin.n_before), n_threads)
            yield {
                "narrow": piece.codes.narrow,
                "wide": piece.codes.wide,
                "target": y[piece.rows],
                "weight": np.ones(n) if weight is None else weight,
                "raw": raw if len(baseline) > 1 else raw[0],
            }
            at += n


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
        judged: ToJudge,
        binning: Binning,
        layout: Layout,
        *,
        baseline: np.ndarray,
        origin: Origin,
        n_threads: int,
        room_bytes: int,
        root: Path | None = None,
    ) -> FiledRows:
        """Rows with the scores that they begin with.

        baseline : float64[n_outputs]; room_bytes : what the blocks may take that all threads have in memory;
        root : where the files' folder is made, default as of `PrivateDirectory`.

        Raises
        ------
        DataError
            For targets that the training target does not know.
        StorageError
            When the files cannot be written.
        """
        n_rows, heaviest, weighted = judged.sizes()
        codes = empty_codes(layout, 0)
        fields = [Field("narrow", "<u1", (len(codes.narrow),)), Field("target", "<f8")]
        fields += [Field("wide", "<u2", (len(codes.wide),))] if len(codes.wide) else []
        fields += [Field("weight", "<f8")] if weighted else []
        outputs = () if len(baseline) == 1 else (len(baseline),)
        scores = [Field("raw", "<f8", outputs), Field("marked", "<f8", outputs)]
        block_rows, row_bytes = rows_that_fit(fields, n_rows), sum(field.n_bytes(1) for field in (*fields, *scores))
        while block_rows > _LEAST_ROWS and n_threads * block_rows * row_bytes > room_bytes:
            block_rows //= 2
        folder = PrivateDirectory(root)
        try:
            files = [
                BlockFile(folder.path / "judged", fields, n_rows, sealed=True, block_rows=block_rows),
                BlockFile(folder.path / "judged-scores", scores, n_rows, sealed=False, block_rows=block_rows),
            ]
            writer = Writer(files)
            names = {field.name for field in (*fields, *scores)}
            for found in judged.pieces(binning, layout, block_rows, baseline=baseline, origin=origin, n_threads=n_threads):
                writer.append(len(found["target"]), {name: values for name, values in found.items() if name in names})
            writer.finish()
        except BaseException:
            folder.close()
            raise
        return cls(folder, files[0], files[1], layout, heaviest)

    def some(self, stays: np.ndarray) -> FiledRows:
        """New files with some of the rows (bool[n_rows]) in the state that they are in, beside these."""
        folder, files = PrivateDirectory(self.folder.path.parent), (self.rows, self.scores)
        n_rows, axes = int(stays.sum()), {field.name: len(field.before) for file in files for field in file.fields}
        try:
            rows, scores = (
                BlockFile(
                    folder.path / file.path.name,
                    file.fields,
                    n_rows,
                    sealed=file is self.rows,
                    block_rows=file.block_rows,
                )
                for file in files
            )
            writer, buffers = Writer((rows, scores)), [file.buffer() for file in files]
            for block in range(self.rows.n_blocks):
                views: dict[str, np.ndarray] = {}
                for file, buffer in zip(files, buffers, strict=True):
                    file.read(block, buffer)
                    views |= file.views(buffer, block)
                first = block * self.rows.block_rows
                some = np.flatnonzero(stays[first : first + self.rows.rows_of(block)])
                writer.append(len(some), {name: np.take(view, some, axis=axes[name]) for name, view in views.items()})
            writer.finish()
        except BaseException:
            folder.close()
            raise
        return FiledRows(folder, rows, scores, self.layout, self.heaviest)

    def close(self) -> None:
        """Remove the files."""
        for file in (self.rows, self.scores):
            file.close()
        self.folder.close()


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

    def _walk(
        self, thread: int, *, rows: bool, reads: Sequence[str], writes: Sequence[str] = ()
    ) -> Iterator[dict[str, np.ndarray]]:
        """The blocks of one thread, each with what is read of it; what is to be written goes to the file with the next step.

        Buffers last as long as the walk: sets are judged one after another, and need the room of one.
        """
        files, n = self._files, self._files.rows.n_blocks
        sealed, changing = files.rows.buffer() if rows else None, files.scores.buffer()
        for block in range(n * thread // self._team.n_threads, n * (thread + 1) // self._team.n_threads):
            files.scores.read(block, changing, reads)
            found = files.scores.views(changing, block)
            if sealed is not None:
                files.rows.read(block, sealed)
                found |= files.rows.views(sealed, block)
            yield found
            if writes:
                files.scores.write(block, changing, writes)

    def add(self, grown: GrownTree, values: np.ndarray, output: int = 0) -> None:
        """Add a grown tree's leaf values (float64[n_leaves]) to the raw scores of its output."""

        def work(thread: int) -> None:
            for found in self._walk(thread, rows=True, reads=["raw"], writes=["raw"]):
                n = len(found["target"])
                codes = Codes(found["narrow"], found.get("wide", np.empty((0, n), np.uint16)), self._row_of)
                raw = found["raw"] if found["raw"].ndim == 1 else found["raw"][output]
                add_grown(codes, self._files.layout, grown, values, raw, 0, n)

        self._team.run(work)

    def judge(self, metrics: Sequence[Metric]) -> dict[str, float]:
        """The metrics now, as ``{"<set>_<metric>": value}``."""
        told = zip(metrics, self.chunks(metrics), strict=True)
        return {f"{self.name}_{metric.name}": metric.finish(chunk) for metric, chunk in told}

    def chunks(self, metrics: Sequence[Metric]) -> list[Any]:
        """What each metric says of the rows now, to be merged with what it says of others."""

        def work(thread: int) -> list[Any] | None:
            chunks: list[Any] | None = None
            for found in self._walk(thread, rows=True, reads=["raw"]):
                seen = Rows(found["target"], found["raw"].T, found.get("weight"), self._loss, self._size)
                told = [metric.chunk(seen) for metric in metrics]
                chunks = told if chunks is None else _merged(metrics, chunks, told)
            return chunks

        told = [chunks for chunks in self._team.run(work) if chunks is not None]
        return reduce(lambda a, b: _merged(metrics, a, b), told)

    def mark(self) -> None:
        """Remember the present raw scores."""
        self._copy("raw", "marked")

    def rewind(self) -> None:
        """Forget the trees since the last mark."""
        self._copy("marked", "raw")

    def _copy(self, source: str, target: str) -> None:
        def work(thread: int) -> None:
            for found in self._walk(thread, rows=False, reads=[source], writes=[target]):
                found[target][...] = found[source]

        self._team.run(work)

    def some(self, stays: np.ndarray) -> FiledHeldOut:
        """Only some of the rows (bool[n_rows]) from now on; this object is of no use any more."""
        files = self._files.some(stays)
        self.close()
        return FiledHeldOut(self.name, files, self._loss, self._size, self._team)

    def close(self) -> None:
        """Remove the files."""
        self._files.close()


def _merged(metrics: Sequence[Metric], a: list[Any], b: list[Any]) -> list[Any]:
    return [metric.merge(x, y) for metric, x, y in zip(metrics, a, b, strict=True)]
