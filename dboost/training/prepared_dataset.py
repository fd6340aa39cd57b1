"""A data set that has been binned, in a folder: what every fit on it begins with, whatever its loss and its parameters.

    binned.json   what the features are and where they are cut, what the target is, how many rows there are, and the checksum of
                  every block; the last file to be written, so a folder without it is none
    codes         tiles and wide columns, see `shards.block_store`
    rows          target (numbers, or the codes of its levels), weight, offset; and where scores start if a model is continued
                  (and where they began, if that is resumed)
    portrait      raw values and targets of a few rows, from which models get their summary of the data

The files of blocks are sealed. Rows of weight zero are left out, for they shape nothing. Fits on the folder do not change it:
their targets in the terms of their loss, and all that changes while they run, lie elsewhere.

Writing one takes no more memory than a chunk, a sample of the rows and a block. A table is gone through three times: for its
targets and weights, for the sample that proposes the split points (some columns at a time), and for the codes.

Binned data seen by one fit: targets in the terms of its loss, and rows as its engine wants them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dboost.data import CategoryColumn, Table
from dboost.data.binning import Binning, propose_all, sample_rows
from dboost.errors import ParameterError
from dboost.kernels.histograms import BinLayout
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble, Range
from dboost.params import Parameters
from dboost.schema import Feature, Level
from dboost.session.arcbite_store import BiteStore, FileBiteStore, InMemoryBiteStore
from dboost.session.arcbites_engine import ArcbitesEngine
from dboost.session.batch_rows import StartingPiece
from dboost.session.evaluation import EvalSet, EvalSetBuilder
from dboost.session.fused_engine import FusedEngine, choose_threads
from dboost.session.memory_budget import Budget, check_rows_in_memory
from dboost.session.partition_loader import scan_targets
from dboost.session.protocol import BuildSpec, Engine
from dboost.session.reference_sample import ReferenceSample, reference_rows, values_of
from dboost.session.streamed_engine import StreamedEngine
from dboost.session.target import Target, TargetScan, check_range, unknown_class
from dboost.session.thread_team import Team
from dboost.session.transport import NamedSet
from dboost.session.warm_start import COLD_START, WarmStart, add_block, matrix_of
from dboost.shards.arcbite_rows import InMemoryBite
from dboost.shards.bin_layout import plan_layout
from dboost.shards.block_store import BlockStore, BlockWriter
from dboost.shards.encode import codes_of, encoded_pieces, in_ranges, kept_rows, sampled, tiles_of
from dboost.shards.shard import BinnedColumns, Shard, empty_binned_columns
from dboost.shards.shard_spec import code_fields, rows_that_fit
from dboost.storage.block_file import BlockFile, Field
from dboost.storage.spool import PrivateDirectory, temporary_root
from dboost.training.callbacks import Callback
from dboost.training.plan import FitPlan, FitRequest, RowsDescription
from dboost.training.training_rows import Chosen, learn_target
from dboost.training.validation_split import ValidationPlan, needs_test_set


@dataclass(frozen=True, eq=False)
class TableScan:
    """What the targets and weights of a table tell before a feature is looked at.

    Attributes
    ----------
    n_kept : tuple of int
        Rows of positive weight in each chunk.
    target : TargetScan
    levels : tuple of levels or None
        All levels of a target of text or categories, in the order of their codes.
    weighted : bool
        Some weight is neither 0 nor 1.
    has_offset : bool
    """

    n_kept: tuple[int, ...]
    target: TargetScan
    levels: tuple[Level, ...] | None
    weighted: bool
    has_offset: bool

    @property
    def n_rows(self) -> int:
        return sum(self.n_kept)


def scan_table(table: Table) -> TableScan:
    """Go through targets and weights of a table, chunk by chunk."""
    n_kept: list[int] = []
    levels: tuple[Level, ...] | None = None
    weighted = has_offset = False
    for i, length in enumerate(table.lengths):
        if not length:
            n_kept.append(0)
            continue
        target, weight, offset = table.roles(i)
        n_kept.append(length if weight is None else int(np.count_nonzero(weight > 0)))
        if isinstance(target, CategoryColumn):
            levels = target.levels
        weighted = weighted or (weight is not None and not ((weight == 0.0) | (weight == 1.0)).all())
        has_offset = has_offset or offset is not None
    return TableScan(tuple(n_kept), scan_targets(table)[0], levels, weighted, has_offset)


@dataclass(eq=False)
class PreparedDataset:
    """A data set in files; see the module.

    Attributes
    ----------
    named : bool
        Whether the features' names are the user's.
    binning : Binning
    target : TargetScan
    levels : tuple of levels or None
    codes, rows : BlockFile
    settings : dict
        Parameters that shaped it, by name.
    portrait : ReferenceSample or None
        Some of the rows, their targets as they are in `rows`.
    """

    named: bool
    binning: Binning
    target: TargetScan
    levels: tuple[Level, ...] | None
    codes: BlockFile
    rows: BlockFile
    settings: dict[str, Any] = field(default_factory=dict)
    portrait: ReferenceSample | None = None

    @property
    def n_rows(self) -> int:
        return self.codes.n_rows

    def has(self, name: str) -> bool:
        """Whether the rows have a field: "weight", "offset" or "start"."""
        return any(one.name == name for one in self.rows.fields)

    def blocks_of_rows(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Target and so on, block by block; valid until the next one."""
        buffer = self.rows.buffer()
        for block in range(self.rows.n_blocks):
            self.rows.read(block, buffer)
            yield block, self.rows.views(buffer, block)

    def close(self) -> None:
        self.codes.close()
        self.rows.close()


def propose_within(
    table: Table, n_kept: tuple[int, ...], *, max_bins: int, seed: int, n_threads: int, budget: Budget | None
) -> Binning:
    """As `shards.encode.propose_binning`, from the sampled values of some columns at a time."""
    n_rows = sum(n_kept)
    drawn: list[np.ndarray] = []
    weights: list[np.ndarray | None] = []
    first = start = 0
    for i, (length, n) in enumerate(zip(table.lengths, n_kept, strict=True)):
        rows = sample_rows(n_rows, seed, first, first + n) - first
        if len(rows):
            weight = table.roles(i)[1]
            kept = kept_rows(weight)
            rows = rows if kept is None else kept[rows]
            drawn.append(start + rows)
            weights.append(None if weight is None else weight[rows])
        first, start = first + n, start + length
    rows = np.concatenate(drawn)
    joined = [weight for weight in weights if weight is not None]
    weight = np.concatenate(joined) if joined else None
    numeric = [j for j, feature in enumerate(table.features) if not feature.is_categorical]
    edges: list[np.ndarray | None] = [None] * len(table.features)
    at_once = len(numeric) if budget is None else budget.columns_at_once(n_rows)
    for at in range(0, len(numeric), max(at_once, 1)):
        some = numeric[at : at + at_once]
        parts = [part for _, part in sampled(table, rows, some, n_threads)]
        columns = [np.concatenate(column) if len(column) > 1 else column[0] for column in zip(*parts, strict=True)]
        for j, edge in zip(some, propose_all(columns, weight, max_bins, n_threads), strict=True):
            edges[j] = edge
    return Binning(table.features, tuple(edges))


def write_binned(
    table: Table,
    census: TableScan,
    binning: Binning,
    folder: Path,
    *,
    warm_start: WarmStart = COLD_START,
    seed: int,
    n_threads: int,
) -> PreparedDataset:
    """Write the rows of a table to a folder that is there; seed : of the rows that are portrayed.

    Raises
    ------
    StorageError
        When the files cannot be written.
    DataError
        When a numeric feature holds an infinite value, naming column and row.
    """
    layout = plan_layout(binning.n_bins, binning.is_categorical)
    model = warm_start.model
    flat = None if model is None else FlatEnsemble(model)
    outputs = () if model is None or model.n_outputs == 1 else (model.n_outputs,)
    resumes = warm_start.is_new_source and warm_start.n_before > warm_start.n_earlier
    wanted = {
        "weight": (census.weighted, ()),
        "offset": (census.has_offset, ()),
        "begun": (resumes, outputs),
        "start": (flat is not None, outputs),
    }
    fields = [Field("target", "<f8"), *(Field(name, "<f8", shape) for name, (there, shape) in wanted.items() if there)]
    tiles = code_fields(layout)
    block_rows = rows_that_fit(tiles, census.n_rows)
    files: dict[str, BlockFile] = {}
    try:
        for name, of_file in (("codes", tiles), ("rows", fields)):
            files[name] = BlockFile(folder / name, of_file, census.n_rows, sealed=True, block_rows=block_rows)
        writer = BlockWriter(list(files.values()))
        portrayed: list[tuple[np.ndarray, np.ndarray]] = []
        first = 0
        for piece in encoded_pieces(table, binning, layout, n_threads, block_rows):
            target, weight, offset = piece.roles
            values = target.codes if isinstance(target, CategoryColumn) else target
            assert values is not None
            rows = reference_rows(census.n_rows, len(table.features), seed, first, first + piece.codes.n_rows) - first
            portrayed.append((values_of(piece.chunk, rows), values[rows].astype(np.float64)))
            first += piece.codes.n_rows
            written: dict[str, np.ndarray | None] = {
                "tiles": tiles_of(piece.codes, layout),
                "wide": piece.codes.wide if len(piece.codes.wide) else None,
                "target": values,
                "weight": weight if census.weighted else None,
                "offset": offset,
            }
            if flat is not None:
                matrix = matrix_of(piece.chunk)
                scores = np.repeat(warm_start.baseline[:, None], len(matrix), axis=1)
                scores += 0.0 if offset is None else offset
                middle = warm_start.n_earlier if resumes else 0
                if resumes:
                    add_block(scores, flat, matrix, (0, middle), n_threads)
                    written["begun"] = scores.copy() if outputs else scores[0].copy()
                add_block(scores, flat, matrix, (middle, warm_start.n_before), n_threads)
                written["start"] = scores if outputs else scores[0]
            writer.append(piece.codes.n_rows, {name: values for name, values in written.items() if values is not None})
        writer.finish()
    except BaseException:
        for file in files.values():
            file.remove()
        raise
    portrait = ReferenceSample(*(np.concatenate(parts) for parts in zip(*portrayed, strict=True)))
    return PreparedDataset(table.named, binning, census.target, census.levels, files["codes"], files["rows"], portrait=portrait)


class PreparedTargets:
    """Targets, weights and offsets of binned data, block by block, for `start_of` and those like it.

    continues : whether a model of other data is continued; then its scores take the place of the offsets, and a class that it
    does not know is an error. missed : a model and those of its iterations (first, last) that no scores in the files hold yet;
    these are trees of the very bins, for a fit that resumes has grown them.
    """

    def __init__(
        self, data: PreparedDataset, target: Target, *, continues: bool = False, missed: tuple[Ensemble, Range] | None = None
    ) -> None:
        self.data, self._target, self._continues, self._missed = data, target, continues, missed
        self._code_of: np.ndarray | None = None
        if target.classes is not None and data.levels is not None:
            known = {level: code for code, level in enumerate(target.classes)}
            self._code_of = np.array([known.get(level, -1) for level in data.levels], np.float64)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """``function(y, weight, offset, *arguments)`` of every block."""
        offsets = ("begun", "start") if self._continues else ("offset",)
        return [
            function(
                self.encode(rows["target"], block),
                rows.get("weight"),
                next((rows[name] for name in offsets if name in rows), None),
                *arguments,
            )
            for block, rows in self.data.blocks_of_rows()
        ]

    def encode(self, values: np.ndarray, block: int) -> np.ndarray:
        """Targets in the terms of the loss: float64[n]."""
        classes = self._target.classes
        if self._code_of is not None:
            codes = self._code_of[values.astype(np.int64)]
            if (codes < 0).any():
                assert self.data.levels is not None
                raise unknown_class(self.data.levels[int(values[np.argmax(codes < 0)])])
            return codes
        if classes is not None:
            known = np.array(classes, np.float64)
            at = np.minimum(np.searchsorted(known, values), len(known) - 1)
            if (known[at] != values).any():
                raise unknown_class(float(values[np.argmax(known[at] != values)]))
            return at.astype(np.float64)
        first = block * self.data.rows.block_rows
        check_range(self._target.loss, values, lambda row: f"row {first + row} of those of positive weight")
        return values

    @property
    def portrait(self) -> ReferenceSample | None:
        """The portrait of the rows, with targets in the terms of the loss."""
        drawn = self.data.portrait
        return None if drawn is None else ReferenceSample(drawn.values, self.encode(drawn.target, 0))

    @property
    def owned(self) -> dict[int, int]:
        """See `session.batch_rows.StartingRows`: all rows are one partition."""
        return {0: self.data.n_rows}

    def pieces(self, spec: BuildSpec, n_threads: int = 1, piece_rows: int = 0) -> Iterator[StartingPiece]:
        """The rows block by block, with their bin codes."""
        data, first = self.data, 0
        buffer = data.codes.buffer()
        for block, fields in enumerate(self.starting(spec)):
            n = len(fields["target"])
            data.codes.read(block, buffer)
            views, codes = data.codes.views(buffer, block), empty_binned_columns(spec.layout, n)
            codes_of(views["tiles"], views.get("wide"), spec.layout, codes)
            yield StartingPiece(first, codes, fields)
            first += n

    def starting(self, spec: BuildSpec) -> Iterator[dict[str, np.ndarray]]:
        """Block by block: target, weight (if weighted) and first raw scores."""
        flat: FlatEnsemble | None = None
        for block, rows in self.data.blocks_of_rows():
            n = len(rows["target"])
            if "start" in rows:
                raw = np.array(rows["start"])
            else:
                raw = np.repeat(spec.baseline[:, None], n, axis=1)
                raw += rows.get("offset", 0.0)
                raw = raw[0] if len(raw) == 1 else raw
            if self._missed is not None:
                model, iterations = self._missed
                flat = FlatEnsemble(model) if flat is None else flat
                matrix = self._values(block, spec.layout)
                add_block(np.atleast_2d(raw), flat, matrix, iterations, 1)
            found = {"target": self.encode(rows["target"], block), "raw": raw}
            if spec.shard.weighted:
                found["weight"] = rows["weight"]
            yield found

    def _values(self, block: int, layout: BinLayout) -> np.ndarray:
        """Of each row a value of each of its bins: float64[n, n_features]. Trees of these bins cannot tell it from its own.

        Bin b ends with edge b, so that is one; any number above the last edge is one of the last bin.
        """
        data = self.data
        n = data.codes.rows_of(block)
        buffer, codes = data.codes.buffer(), empty_binned_columns(layout, n)
        data.codes.read(block, buffer)
        views = data.codes.views(buffer, block)
        codes_of(views["tiles"], views.get("wide"), layout, codes)
        values = np.empty((n, len(data.binning.edges)))
        for j, edges in enumerate(data.binning.edges):
            n_bins = int(data.binning.n_bins[j])
            if edges is None:
                of_code = np.arange(n_bins, dtype=np.float64)
            else:
                of_code = np.append(edges, np.nextafter(edges[-1], np.inf) if len(edges) else 0.0)
            values[:, j] = np.append(of_code, np.nan)[codes.of(j)]
        return values


class PreparedRows:
    """The rows of a prepared data set, for one fit in this process (see `training_rows.TrainingRows`)."""

    def __init__(self, data: PreparedDataset, request: FitRequest) -> None:
        self._data, self._request = data, request
        self._closing: list[Callable[[], object]] = [data.close]

    def load(self) -> tuple[Feature, ...]:
        proposal = self._request.parameters.split_proposal
        if proposal != "global":
            raise ParameterError(f"split_proposal={proposal!r} wants to see the values, but these data were binned before")
        return self._data.binning.features

    def learn_target(self) -> Target:
        self._target = learn_target(self._request, lambda: [self._data.target])
        return self._target

    def assign(self, target: Target, ensemble_so_far: Callable[[], Ensemble]) -> tuple[ValidationPlan, Chosen]:
        if needs_test_set(self._request.parameters, ValidationPlan(), self._request.eval_sets):
            raise ParameterError("arcbites on prepared data need a test set to tell when to leave a bite: give an eval_set")
        return ValidationPlan(), {}

    def propose_bins(self, warm_start: WarmStart, parameters: Parameters) -> Binning:
        missed = None
        if warm_start.model is not None and warm_start.resumes:
            missed = warm_start.model, (warm_start.n_earlier, warm_start.n_before)
        self._rows = PreparedTargets(self._data, self._target, continues=warm_start.is_new_source, missed=missed)
        return self._data.binning

    def compute_start_scores(self, warm_start: WarmStart) -> None:
        """They are in the files."""

    def map_rows(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return self._rows.ask(function, *arguments)

    def describe(self, seed: int) -> RowsDescription:
        data = self._data
        return RowsDescription(data.n_rows, data.n_rows, data.has("weight"), data.named, self._rows.portrait)

    def build(self, plan: FitPlan, chosen: Chosen) -> Engine:
        data, rows, budget, n_threads = self._data, self._rows, self._request.budget, self._request.n_threads
        self._spec = spec = plan.build_spec({0: 0})
        terms = spec.target.loss.terms()
        self._team = Team(choose_threads(data.n_rows, len(data.binning.features), n_threads))
        self._builder = EvalSetBuilder(self._team)
        self._closing.append(self._team.close)
        fits = budget is None or budget.holds_rows(spec.shard, data.n_rows, n_threads)
        if spec.n_bites is not None:
            store: BiteStore
            if fits:
                store = InMemoryBiteStore()
                codes, target, weight, raw = gather_pieces(rows, spec)
                store.add(InMemoryBite(codes, target, weight, raw, np.arange(data.n_rows)), spec.seed, spec.n_bites)
            else:
                assert budget is not None
                store = FileBiteStore(
                    rows, spec, temporary_root(), n_threads=n_threads, n_ranges=1, filling_bytes=budget.limit // 4
                )
            return ArcbitesEngine(
                store,
                spec.shard,
                terms,
                rule=plan.policy,
                n_bites=spec.n_bites,
                n_together=spec.n_together,
                n_threads=n_threads,
            )
        if fits:
            check_rows_in_memory(data.n_rows)
            codes, target, weight, raw = gather_pieces(rows, spec)
            shard = Shard(codes, spec.shard, target, weight, raw)
            in_ranges(shard.fill_tiles, shard.n_rows, n_threads)
            return FusedEngine(shard, terms, rule=plan.policy, n_threads=n_threads)
        assert budget is not None
        memory = budget.histograms(spec.shard, data.n_rows, n_threads)
        folder = PrivateDirectory()
        try:
            blocks = blocks_around(rows, spec, folder.path)
            data.rows.close()
            return StreamedEngine(
                blocks, terms, n_threads=n_threads, histogram_bytes=memory,
                staying_bytes=memory - budget.reserve, release=folder.close,
            )  # fmt: skip
        except BaseException:
            folder.close()
            raise

    def eval_sets(self, plan: FitPlan, chosen: Chosen, sets: Sequence[NamedSet]) -> list[EvalSet]:
        found: list[EvalSet] = []
        for name, data, target, weight, offset in sets:
            columns, budget = (target, weight, offset), self._request.budget
            found.append(self._builder.from_data(name, data, columns, self._spec, budget, with_block=plan.needs_values))
        return found

    def observers(self, plan: FitPlan) -> list[Callback]:
        return []

    def close(self) -> None:
        for close in self._closing:
            close()


def gather_pieces(rows: PreparedTargets, spec: BuildSpec) -> tuple[BinnedColumns, np.ndarray, np.ndarray | None, np.ndarray]:
    """All rows in memory: bin codes, target, weight and first raw scores."""
    n, n_outputs = rows.data.n_rows, len(spec.baseline)
    codes, target = empty_binned_columns(spec.layout, n), np.empty(n)
    raw = np.empty(n if n_outputs == 1 else (n_outputs, n))
    weight = np.empty(n) if spec.shard.weighted else None
    for piece in rows.pieces(spec):
        here = slice(piece.first, piece.first + piece.codes.n_rows)
        codes.narrow[:, here], codes.wide[:, here] = piece.codes.narrow, piece.codes.wide
        target[here], raw[..., here] = piece.fields["target"], piece.fields["raw"]
        if weight is not None:
            weight[here] = piece.fields["weight"]
    return codes, target, weight, raw


def blocks_around(rows: PreparedTargets, spec: BuildSpec, folder: Path) -> BlockStore:
    """The files of a fit that streams the bin codes from the prepared folder; its own files go to another folder."""
    blocks = BlockStore.around(folder, "fit-", spec.shard, rows.data.codes)
    writer = BlockWriter((blocks.rows, blocks.state))
    for fields in rows.starting(spec):
        writer.append(len(fields["target"]), fields | spec.shard.constant_state(fields.get("weight"), fields["raw"].shape))
    writer.finish()
    return blocks
