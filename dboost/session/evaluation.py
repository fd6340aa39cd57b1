"""Evaluation sets: rows that are encoded like the training rows, scored by each new tree, and evaluated by exact metrics.

An evaluation set has its own table, or it consists of rows that were chosen from the training table (`EvalRows`). It is in
memory (`InMemoryEvalSet`) or in files (`StreamedEvalSet`). `EvalSetBuilder` decides: all sets in memory together take at most
1/8 of a memory limit, and sets beyond that are streamed. Both kinds implement `session.protocol.EvalSet` and give the same
metrics to the last bit, because metrics are computed in chunks that merge exactly. (The area under the curve keeps all distinct
scores in memory until the last merge.)

**Files.** A streamed set has two block files (`storage.block_file`). ``eval-rows`` is sealed: codes in columns, target and
weight. ``eval-scores`` changes: the raw scores, and the saved raw scores. To add a tree or to compute a metric, the threads of
the team iterate over all blocks. Blocks are so short that the blocks of all threads fit into the memory for small sets.

**Workers.** On a cluster each session has `WorkerEvalSets`: its rows of all sets, and the number of trees in their scores.
Missing trees are added together at the next call. With arcbites the model is truncated after a visit
to a *mark*, a number of trees at which the scores were saved. Marks and truncations are no calls of their own. They are
arguments of the next `evaluate`, so rows that are loaded later and calls that are repeated need no special handling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from dboost.data import ReadOptions, Table, open_table
from dboost.data.table import kept_rows
from dboost.errors import DataError, InputTypeError, ParameterError
from dboost.kernels.histograms import BinLayout
from dboost.losses import Loss
from dboost.metrics.metric import LossMagnitude, MetricReduction, ScoredRows
from dboost.metrics.named import find_metrics
from dboost.model.ensemble import FlatEnsemble
from dboost.session.engines import Team
from dboost.session.memory import Budget, MemoryReservation
from dboost.session.partition_loader import BatchRows
from dboost.session.protocol import BuildSpec
from dboost.session.target import encode_chunk
from dboost.session.warm_start import add_block, matrix_of, row_matrix
from dboost.shards.block_store import BlockWriter
from dboost.shards.encode import encoded_pieces
from dboost.shards.shard import BinnedColumns, TreeDelta, add_grown_tree, empty_binned_columns
from dboost.shards.shard_spec import code_rows, rows_that_fit
from dboost.storage.block_file import BlockFile, Field
from dboost.storage.spool import PrivateDirectory
from dboost.trees.tree_task import GrownTree

_log = logging.getLogger("dboost")

#: Smallest number of rows of a block.
_LEAST_BLOCK_ROWS = 1024
#: Number of rows that are encoded at a time.
_PIECE_ROWS = 65_536


def named_sets(eval_set: Any) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """Yield (name, data, target, weight, offset) of each evaluation set; target None means the training target's column.

    `eval_set` is a frame, (X, y), (X, y, weight), (X, y, weight, offset), a dict of these by name, or a list of them.
    """
    if eval_set is None:
        return
    if isinstance(eval_set, dict):
        items = [(str(name), one) for name, one in eval_set.items()]
        if len(dict(items)) < len(items):
            raise ParameterError(f"names of evaluation sets must differ as text: {', '.join(map(repr, eval_set))}")
    elif isinstance(eval_set, list) and all(isinstance(one, tuple) or is_table(one) for one in eval_set):
        items = [("eval" if len(eval_set) == 1 else f"eval_{i}", one) for i, one in enumerate(eval_set)]
    else:
        items = [("eval", eval_set)]
    for name, one in items:
        if isinstance(one, tuple):
            if len(one) not in (2, 3, 4):
                raise InputTypeError(
                    f"evaluation set {name!r} must be (X, y), (X, y, weight) or (X, y, weight, offset), not {len(one)} things"
                )
            yield name, *one, *(None,) * (4 - len(one))
        else:
            yield name, one, None, None, None


def log_streamed_eval_set(name: str) -> None:
    """Log that a set, or some of its rows, exceed the memory limit."""
    _log.info("rows of evaluation set %r exceed the memory limit and are streamed from files", name)


def is_table(data: Any) -> bool:
    """Return whether an object has named columns; a list of such objects is no table itself."""
    return any(hasattr(type(data), name) for name in ("columns", "column_names", "__arrow_c_stream__"))


class InMemoryEvalSet:
    """One evaluation set in this process's memory.

    Parameters
    ----------
    name : str
    codes : BinnedColumns
    layout : BinLayout
    rows : ScoredRows
        Target, weight and loss; its raw scores are a view of `raw`.
    raw : float64[n_rows] or float64[n_outputs, n_rows]
        Initial raw scores; updated in place.
    team : Team
    """

    def __init__(
        self, name: str, codes: BinnedColumns, layout: BinLayout, rows: ScoredRows, raw: np.ndarray, team: Team
    ) -> None:
        self.name = name
        self._codes = codes
        self._layout = layout
        self._rows = rows
        self._raw = raw
        self._saved: np.ndarray | None = None
        self._team = team

    def add(self, grown: GrownTree, values: np.ndarray, output: int = 0) -> None:
        """Add a grown tree's leaf values (float64[n_leaves]) to the raw scores of its output."""
        n, p = len(self._rows.target), self._team.n_threads
        raw = self._raw if self._raw.ndim == 1 else self._raw[output]
        self._team.run(lambda t: add_grown_tree(self._codes, self._layout, grown, values, raw, n * t // p, n * (t + 1) // p))

    def evaluate(self, metrics: Sequence[MetricReduction]) -> dict[str, float]:
        """Return the current metrics as ``{"<set>_<metric>": value}``."""
        by_metric = zip(metrics, self.chunks(metrics), strict=True)
        return {f"{self.name}_{metric.name}": metric.finish(chunk) for metric, chunk in by_metric}

    def chunks(self, metrics: Sequence[MetricReduction]) -> list[Any]:
        """Return the current statistics of each metric, which `MetricReduction.merge` combines with those of other rows."""
        return [metric.chunk(self._rows) for metric in metrics]

    def save_state(self) -> None:
        """Save the current raw scores."""
        if self._saved is None:
            self._saved = np.empty_like(self._raw)
        self._saved[...] = self._raw

    def rollback(self) -> None:
        """Restore the raw scores that were saved last."""
        assert self._saved is not None
        self._raw[...] = self._saved

    def some(self, stays: np.ndarray) -> InMemoryEvalSet:
        """Return a set of some of the rows (bool[n_rows]) with their current and their saved scores."""
        kept, codes, seen = np.flatnonzero(stays), self._codes, self._rows
        raw = np.ascontiguousarray(self._raw[..., kept])
        rows = replace(
            seen,
            target=seen.target[kept],
            raw=raw.T,
            weight=None if seen.weight is None else seen.weight[kept],
            block=None if seen.block is None else seen.block[kept],
        )
        narrow, wide = (np.ascontiguousarray(array[:, kept]) for array in (codes.narrow, codes.wide))
        found = InMemoryEvalSet(self.name, BinnedColumns(narrow, wide, codes.row_of), self._layout, rows, raw, self._team)
        found._saved = None if self._saved is None else np.ascontiguousarray(self._saved[..., kept])
        return found

    def close(self) -> None:
        """Do nothing; the set has no files."""


class EvalSetBuilder:
    """Build the evaluation sets of one process: in memory, or in files if they exceed the memory budget for them.

    Parameters
    ----------
    team : Team
        Threads that work on a set together.
    root : Path, optional
        Folder for files; default: the one of `PrivateDirectory`.
    """

    def __init__(self, team: Team, root: Path | None = None) -> None:
        self._team, self._root = team, root
        self._reservation: MemoryReservation | None = None

    def from_data(
        self, name: str, data: Any, columns: tuple[Any, Any, Any], spec: BuildSpec, budget: Budget | None, *, with_block: bool
    ) -> InMemoryEvalSet | StreamedEvalSet:
        """Return an evaluation set from a table of its own, with targets encoded like the training target.

        columns : target, weight and offset, as names or values.

        Raises
        ------
        DataError, InputTypeError
            If the table is invalid; the message names the evaluation set.
        """
        target, weight, offset = columns
        like, options = spec.binning.features, ReadOptions(self._team.n_threads)
        if budget is not None:
            options = replace(budget.reading, limit=None)  # of the training rows
        try:
            with open_table(data, target, sample_weight=weight, offset=offset, like=like, options=options) as table:
                rows = EvalRows(table, lambda k: encode_chunk(table, k, spec.target))
                found = self.from_rows(name, rows, spec, budget, with_block=with_block)
        except (DataError, InputTypeError) as error:
            raise type(error)(f"evaluation set {name!r}: {error}") from error
        if isinstance(found, StreamedEvalSet):
            log_streamed_eval_set(name)
        return found

    def from_rows(
        self,
        name: str,
        rows: EvalRows,
        spec: BuildSpec,
        budget: Budget | None,
        *,
        size: LossMagnitude | None = None,
        with_block: bool = False,
    ) -> InMemoryEvalSet | StreamedEvalSet:
        """Return an evaluation set of rows of a table.

        size : magnitudes of the whole set if other sessions have further rows of it; default: those of these rows.
        with_block : whether a metric needs the raw values; the set is then in memory.
        """
        n_rows, max_weight, _ = rows.sizes()
        size = spec.loss_magnitude(max_weight, n_rows) if size is None else size
        loss, n_threads = spec.target.loss, self._team.n_threads
        if with_block or self._reserve(eval_set_bytes(spec.shard.layout, n_rows, len(spec.baseline)), budget):
            codes, scored, raw = load_eval_rows(rows, spec, size, n_threads, with_block=with_block)
            return InMemoryEvalSet(name, codes, spec.shard.layout, scored, raw, self._team)
        assert budget is not None
        files = EvalFiles.write(rows, spec, n_threads=n_threads, buffer_bytes=budget.retained, root=self._root)
        return StreamedEvalSet(name, files, loss, size, self._team)

    def _reserve(self, n_bytes: int, budget: Budget | None) -> bool:
        """Reserve `n_bytes` of the budget for evaluation sets; return False if less is left."""
        if budget is None:
            return True
        if self._reservation is None:
            self._reservation = MemoryReservation(budget.retained)
        return self._reservation.take(n_bytes)


def load_eval_rows(
    rows: EvalRows, spec: BuildSpec, size: LossMagnitude, n_threads: int, *, with_block: bool = False
) -> tuple[BinnedColumns, ScoredRows, np.ndarray]:
    """Load rows of an evaluation set into memory; return their bin codes, the record for metrics, and raw scores.

    with_block : whether a metric needs the raw values.
    """
    n, _, weighted = rows.sizes()
    codes, n_outputs = empty_binned_columns(spec.shard.layout, n), len(spec.baseline)
    raw = np.empty(n if n_outputs == 1 else (n_outputs, n))
    arrays = {"narrow": codes.narrow, "wide": codes.wide, "target": np.empty(n), "raw": raw}
    if weighted:
        arrays["weight"] = np.empty(n)
    at = 0
    for found in rows.pieces(spec, min(n, _PIECE_ROWS), n_threads):
        here = slice(at, at + len(found["target"]))
        for field, array in arrays.items():
            array[..., here] = found[field]
        at = here.stop
    block = row_matrix(rows.table, rows.positions()) if with_block else None
    return codes, ScoredRows(arrays["target"], raw.T, arrays.get("weight"), spec.target.loss, size, block=block), raw


def eval_set_bytes(layout: BinLayout, n_rows: int, n_outputs: int) -> int:
    """Return the bytes of an evaluation set in memory: codes, target, weight, scores and saved scores."""
    codes = empty_binned_columns(layout, 0)
    return n_rows * (len(codes.narrow) + 2 * len(codes.wide) + 16 * (1 + n_outputs))


@dataclass(frozen=True, eq=False)
class EvalRows:
    """Rows of a table that form an evaluation set.

    Attributes
    ----------
    table : Table
    target_of : callable
        Returns the encoded targets of all rows of a chunk, given its number: float64[n].
    rows : int64[n_rows] or None
        Positions of the chosen rows, ascending; None for all rows of positive weight.
    weight : float64[n_rows] or None
        Weights of the chosen rows, None for 1. Without chosen rows the table has the weights.
    """

    table: Table
    target_of: Callable[[int], np.ndarray]
    rows: np.ndarray | None = None
    weight: np.ndarray | None = None

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
        found = []
        for k, length in enumerate(self.table.lengths):
            weight = self.table.roles(k)[1] if length else None
            found.append(length if weight is None else int(np.count_nonzero(weight > 0)))
        return found

    def sizes(self) -> tuple[int, float, bool]:
        """Return the number of rows, their largest weight, and whether they have weights."""
        if self.rows is not None:
            max_weight = 1.0 if self.weight is None else float(self.weight.max(initial=0.0))
            return len(self.rows), max_weight, self.weight is not None
        max_weight, weighted = 0.0, False
        for k, length in enumerate(self.table.lengths):
            weight = self.table.roles(k)[1] if length else None
            if length:
                max_weight = max(max_weight, 1.0 if weight is None else float(weight.max()))
            weighted = weighted or weight is not None
        return sum(self.counts()), max_weight, weighted

    def pieces(self, spec: BuildSpec, piece_rows: int, n_threads: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the rows in pieces: codes (narrow, wide), target, weight (ones if the table has none) and raw scores."""
        baseline, warm_start = spec.baseline, spec.warm_start
        flat = None if warm_start.model is None else FlatEnsemble(warm_start.model)
        chunk, at = -1, 0
        for piece in encoded_pieces(
            self.table, spec.binning, spec.shard.layout, n_threads, piece_rows, allow_infinite=True, chosen=self.rows
        ):
            if piece.number != chunk:
                chunk, y = piece.number, self.target_of(piece.number)
            n = piece.codes.n_rows
            _, weight, offset = piece.roles
            if self.rows is not None:
                weight = None if self.weight is None else self.weight[at : at + n]
            raw = np.repeat(baseline[:, None], n, axis=1)
            raw += 0.0 if offset is None else offset
            if flat is not None:
                add_block(raw, flat, matrix_of(piece.chunk), (0, warm_start.n_before), n_threads)
            yield {
                "narrow": piece.codes.narrow,
                "wide": piece.codes.wide,
                "target": y[piece.rows],
                "weight": np.ones(n) if weight is None else weight,
                "raw": raw if len(baseline) > 1 else raw[0],
            }
            at += n


@dataclass(frozen=True, eq=False)
class EvalFiles:
    """The block files of a streamed evaluation set, in a private directory that `close` removes.

    Attributes
    ----------
    rows, scores : BlockFile
    layout : BinLayout
    max_weight : float
        Largest weight.
    """

    folder: PrivateDirectory
    rows: BlockFile
    scores: BlockFile
    layout: BinLayout
    max_weight: float

    @property
    def n_rows(self) -> int:
        return self.rows.n_rows

    @classmethod
    def write(
        cls, rows: EvalRows, spec: BuildSpec, *, n_threads: int, buffer_bytes: int, root: Path | None = None
    ) -> EvalFiles:
        """Write rows with their initial scores.

        buffer_bytes : memory for the blocks of all threads.
        root : parent of the files' folder; default: the one of `PrivateDirectory`.

        Raises
        ------
        DataError
            If a target is no class of the training target.
        StorageError
            If the files cannot be written.
        """
        n_rows, max_weight, weighted = rows.sizes()
        layout, baseline = spec.shard.layout, spec.baseline
        codes = empty_binned_columns(layout, 0)
        fields = [Field("narrow", "<u1", (len(codes.narrow),)), Field("target", "<f8")]
        fields += [Field("wide", "<u2", (len(codes.wide),))] if len(codes.wide) else []
        fields += [Field("weight", "<f8")] if weighted else []
        outputs = () if len(baseline) == 1 else (len(baseline),)
        scores = [Field("raw", "<f8", outputs), Field("marked", "<f8", outputs)]
        block_rows, row_bytes = rows_that_fit(fields, n_rows), sum(field.n_bytes(1) for field in (*fields, *scores))
        while block_rows > _LEAST_BLOCK_ROWS and n_threads * block_rows * row_bytes > buffer_bytes:
            block_rows //= 2
        folder = PrivateDirectory(root)
        try:
            files = [
                BlockFile(folder.path / "eval-rows", fields, n_rows, sealed=True, block_rows=block_rows),
                BlockFile(folder.path / "eval-scores", scores, n_rows, sealed=False, block_rows=block_rows),
            ]
            writer = BlockWriter(files)
            names = {field.name for field in (*fields, *scores)}
            for found in rows.pieces(spec, block_rows, n_threads):
                writer.append(len(found["target"]), {name: values for name, values in found.items() if name in names})
            writer.finish()
        except BaseException:
            folder.close()
            raise
        return cls(folder, files[0], files[1], layout, max_weight)

    def some(self, stays: np.ndarray) -> EvalFiles:
        """Write some of the rows (bool[n_rows]), with their current and saved scores, to new files beside these."""
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
            writer, buffers = BlockWriter((rows, scores)), [file.buffer() for file in files]
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
        return EvalFiles(folder, rows, scores, self.layout, self.max_weight)

    def close(self) -> None:
        """Remove the files."""
        for file in (self.rows, self.scores):
            file.close()
        self.folder.close()


class StreamedEvalSet:
    """One evaluation set in files; see `session.protocol.EvalSet`.

    Parameters
    ----------
    name : str
    files : EvalFiles
    loss : Loss
    size : LossMagnitude
    team : Team
    """

    def __init__(self, name: str, files: EvalFiles, loss: Loss, size: LossMagnitude, team: Team) -> None:
        self.name, self._files, self._loss, self._size, self._team = name, files, loss, size, team
        self._row_of = code_rows(files.layout)

    def _blocks_of(
        self, thread: int, *, rows: bool, reads: Sequence[str], writes: Sequence[str] = ()
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the requested fields of each block of one thread; write the fields `writes` back before the next block.

        The buffers exist only during the iteration: sets are evaluated one after another, so they never coexist.
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
            for found in self._blocks_of(thread, rows=True, reads=["raw"], writes=["raw"]):
                n = len(found["target"])
                codes = BinnedColumns(found["narrow"], found.get("wide", np.empty((0, n), np.uint16)), self._row_of)
                raw = found["raw"] if found["raw"].ndim == 1 else found["raw"][output]
                add_grown_tree(codes, self._files.layout, grown, values, raw, 0, n)

        self._team.run(work)

    def evaluate(self, metrics: Sequence[MetricReduction]) -> dict[str, float]:
        """Return the current metrics as ``{"<set>_<metric>": value}``."""
        by_metric = zip(metrics, self.chunks(metrics), strict=True)
        return {f"{self.name}_{metric.name}": metric.finish(chunk) for metric, chunk in by_metric}

    def chunks(self, metrics: Sequence[MetricReduction]) -> list[Any]:
        """Return the current statistics of each metric, which `MetricReduction.merge` combines with those of other rows."""

        def work(thread: int) -> list[Any] | None:
            chunks: list[Any] | None = None
            for found in self._blocks_of(thread, rows=True, reads=["raw"]):
                # Statistics of users' metrics may be views of the rows, and the next block overwrites the buffers.
                own = {name: found[name].copy("K") for name in ("target", "raw", "weight") if name in found}
                scored = ScoredRows(own["target"], own["raw"].T, own.get("weight"), self._loss, self._size)
                of_block = [metric.chunk(scored) for metric in metrics]
                chunks = of_block if chunks is None else _merged(metrics, chunks, of_block)
            return chunks

        of_threads = [chunks for chunks in self._team.run(work) if chunks is not None]
        return reduce(lambda a, b: _merged(metrics, a, b), of_threads)

    def save_state(self) -> None:
        """Save the current raw scores."""
        self._copy("raw", "marked")

    def rollback(self) -> None:
        """Restore the raw scores that were saved last."""
        self._copy("marked", "raw")

    def _copy(self, source: str, target: str) -> None:
        def work(thread: int) -> None:
            for found in self._blocks_of(thread, rows=False, reads=[source], writes=[target]):
                found[target][...] = found[source]

        self._team.run(work)

    def some(self, stays: np.ndarray) -> StreamedEvalSet:
        """Return a set of some of the rows (bool[n_rows]), and close this one."""
        files = self._files.some(stays)
        self.close()
        return StreamedEvalSet(self.name, files, self._loss, self._size, self._team)

    def close(self) -> None:
        """Remove the files."""
        self._files.close()


def _merged(metrics: Sequence[MetricReduction], a: list[Any], b: list[Any]) -> list[Any]:
    return [metric.merge(x, y) for metric, x, y in zip(metrics, a, b, strict=True)]


@dataclass(eq=False)
class WorkerEvalSet:
    """Rows of a batch in an evaluation set, with the number of trees in their scores.

    owned : partition and number of rows of each run of consecutive rows of one partition.
    n_marked : number of trees in the saved scores, -1 without any.
    n_cuts : how often the model had been truncated at the last call, -1 before the first.
    """

    eval_set: InMemoryEvalSet | StreamedEvalSet
    batch: str
    owned: list[tuple[int, int]]
    loss: Loss
    n_trees: int = 0
    n_marked: int = -1
    n_cuts: int = -1

    def follow(self, mark: int, n_cuts: int) -> None:
        """Restore the saved scores if the model was truncated to them."""
        if self.n_trees > mark and 0 <= self.n_cuts < n_cuts:
            assert self.n_marked == mark, "every cut goes back to a mark that was passed"
            self.eval_set.rollback()
            self.n_trees = mark
        self.n_cuts = n_cuts
        self.save_state(mark)

    @property
    def n_rows(self) -> int:
        return sum(n for _, n in self.owned)

    def keep(self, partitions: Sequence[int]) -> None:
        """Drop the rows of other partitions; at least one partition must remain."""
        stays = np.repeat([number in partitions for number, _ in self.owned], [n for _, n in self.owned])
        if not stays.all():
            self.eval_set = self.eval_set.some(stays)
            self.owned = [(number, n) for number, n in self.owned if number in partitions]

    def save_state(self, mark: int) -> None:
        """Save the scores if they include exactly `mark` trees."""
        if self.n_trees == mark != self.n_marked:
            self.eval_set.save_state()
            self.n_marked = mark


class WorkerEvalSets:
    """The rows of all evaluation sets in one session.

    Parameters
    ----------
    team : Team
    folder : Path or None
        Parent of the folders for files; None for the one of `PrivateDirectory`.
    spare : Budget or None
        Memory budget for fits without a `memory_limit`.
    """

    def __init__(self, team: Team, folder: Path | None, spare: Budget | None) -> None:
        self._builder, self._spare = EvalSetBuilder(team, folder), spare
        self._sets: dict[str, list[WorkerEvalSet]] = {}

    def add(
        self,
        batch: str,
        rows: BatchRows,
        name: str,
        spec: BuildSpec,
        size: LossMagnitude,
        *,
        with_block: bool = False,
        chosen: tuple[np.ndarray, np.ndarray | None] | None = None,
    ) -> None:
        """Add rows of a batch to a set: the chosen rows, or all rows of positive weight.

        with_block : whether a metric needs the raw values; these rows and their raw values are then in memory.
        chosen : positions of the chosen rows, and their weights or None.
        """
        eval_rows = EvalRows(rows.table, rows.target_of, *(chosen or ()))
        if not eval_rows.sizes()[0]:
            return
        if with_block:
            rows.gather()
        eval_set = self._builder.from_rows(name, eval_rows, spec, spec.budget or self._spare, size=size, with_block=with_block)
        loss = spec.target.loss
        owned = [(number, n) for number, n in zip(rows.table.numbers, eval_rows.counts(), strict=True) if n]
        self._sets.setdefault(name, []).append(WorkerEvalSet(eval_set, batch, owned, loss))

    def keep(self, batch: str, partitions: Sequence[int]) -> None:
        """Drop the rows of this batch's other partitions, which another session evaluates now."""
        for name, entries in self._sets.items():
            kept = []
            for entry in entries:
                if entry.batch == batch and not any(number in partitions for number, _ in entry.owned):
                    entry.eval_set.close()
                    continue
                if entry.batch == batch:
                    entry.keep(partitions)
                kept.append(entry)
            self._sets[name] = kept

    def evaluate(
        self, first: int, trees: Sequence[TreeDelta], metrics: dict[str, list[Any]], mark: int, n_cuts: int
    ) -> dict[str, tuple[int, list[list[Any]]]] | None:
        """See `WorkerSession.evaluate`."""
        for name in metrics:
            for entry in self._sets.get(name, ()):
                entry.follow(mark, n_cuts)
        if any(entry.n_trees < first for name in metrics for entry in self._sets.get(name, ())):
            return None
        found: dict[str, tuple[int, list[list[Any]]]] = {}
        for name, names in metrics.items():
            n_rows, chunks = 0, []
            for entry in self._sets.get(name, ()):
                for tree in trees[entry.n_trees - first :]:
                    entry.eval_set.add(tree.grown, tree.values, tree.output)
                    entry.n_trees += 1
                    entry.save_state(mark)
                n_rows += entry.n_rows
                chunks.append(entry.eval_set.chunks(find_metrics(names, entry.loss)))
            found[name] = n_rows, chunks
        return found

    def in_files(self, batch: str) -> int:
        """Return how many evaluation rows of a batch are in files."""
        every = (entry for entries in self._sets.values() for entry in entries)
        return sum(entry.n_rows for entry in every if entry.batch == batch and isinstance(entry.eval_set, StreamedEvalSet))

    def close(self) -> None:
        """Release memory and remove files."""
        for entries in self._sets.values():
            for entry in entries:
                entry.eval_set.close()
        self._sets = {}
