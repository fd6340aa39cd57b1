"""A data set that has been binned, in a folder: what every fit on it begins with, whatever its loss and its parameters.

    binned.json   what the features are and where they are cut, what the target is, how many rows there are, and the checksum of
                  every block; the last file to be written, so a folder without it is none
    codes         tiles and wide columns, see `shard.blocks`
    rows          target (numbers, or the codes of its levels), weight, offset; and where scores start if a model is continued
                  (and where they began, if that is resumed)
    portrait      raw values and targets of a few rows, from which models get their summary of the data

The files of blocks are sealed. Rows of weight zero are left out, for they shape nothing. Fits on the folder do not change it:
their targets in the terms of their loss, and all that changes while they run, lie elsewhere.

Writing one takes no more memory than a chunk, a sample of the rows and a block. A table is gone through three times: for its
targets and weights, for the sample that proposes the split points (some columns at a time), and for the codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from dboost.binning import Binning, propose_all, sample_rows
from dboost.model.flat import FlatEnsemble
from dboost.schema import Level
from dboost.shard.blocks import Writer, code_fields, rows_that_fit
from dboost.shard.layout import plan_layout
from dboost.shard.loading import kept_rows, sampled
from dboost.shard.store import BlockFile, Field
from dboost.shard.writing import encoded_pieces, tiles_of
from dboost.sources import CategoryColumn, Table
from dboost.training.budget import Budget
from dboost.training.origin import NOTHING, Origin
from dboost.training.portrait import Portrait, portrayed_rows, values_of
from dboost.training.replay import add_block, matrix_of
from dboost.training.target_survey import TargetSurvey, merge_surveys, survey_target


@dataclass(frozen=True, eq=False)
class Census:
    """What the targets and weights of a table tell before a feature is looked at.

    Attributes
    ----------
    n_kept : tuple of int
        Rows of positive weight in each chunk.
    target : TargetSurvey
    levels : tuple of levels or None
        All levels of a target of text or categories, in the order of their codes.
    weighted : bool
        Some weight is neither 0 nor 1.
    has_offset : bool
    """

    n_kept: tuple[int, ...]
    target: TargetSurvey
    levels: tuple[Level, ...] | None
    weighted: bool
    has_offset: bool

    @property
    def n_rows(self) -> int:
        return sum(self.n_kept)


def take_census(table: Table) -> Census:
    """Go through targets and weights of a table, chunk by chunk."""
    n_kept: list[int] = []
    told: list[TargetSurvey] = []
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
        one = survey_target(target, weight, str(table.target_dtype), table.target_is_bool)
        told = [reduce(merge_surveys, (*told, *([] if one is None else [one])))] if told or one is not None else []
    return Census(tuple(n_kept), told[0], levels, weighted, has_offset)


@dataclass(eq=False)
class BinnedData:
    """A data set in files; see the module.

    Attributes
    ----------
    named : bool
        Whether the features' names are the user's.
    binning : Binning
    target : TargetSurvey
    levels : tuple of levels or None
    codes, rows : BlockFile
    settings : dict
        Parameters that shaped it, by name.
    portrait : Portrait or None
        Some of the rows, their targets as they are in `rows`.
    """

    named: bool
    binning: Binning
    target: TargetSurvey
    levels: tuple[Level, ...] | None
    codes: BlockFile
    rows: BlockFile
    settings: dict[str, Any] = field(default_factory=dict)
    portrait: Portrait | None = None

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
    """As `shard.loading.propose_binning`, from the sampled values of some columns at a time."""
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
    census: Census,
    binning: Binning,
    folder: Path,
    *,
    origin: Origin = NOTHING,
    seed: int,
    n_threads: int,
) -> BinnedData:
    """Write the rows of a table to a folder that is there; seed : of the rows that are portrayed.

    Raises
    ------
    StorageError
        When the files cannot be written.
    DataError
        When a numeric feature holds an infinite value, naming column and row.
    """
    layout = plan_layout(binning.n_bins, binning.is_categorical)
    model = origin.model
    flat = None if model is None else FlatEnsemble(model)
    outputs = () if model is None or model.n_outputs == 1 else (model.n_outputs,)
    resumes = origin.is_new_source and origin.n_before > origin.n_earlier
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
        writer = Writer(list(files.values()))
        portrayed: list[tuple[np.ndarray, np.ndarray]] = []
        first = 0
        for piece in encoded_pieces(table, binning, layout, n_threads, block_rows):
            target, weight, offset = piece.roles
            values = target.codes if isinstance(target, CategoryColumn) else target
            assert values is not None
            rows = portrayed_rows(census.n_rows, len(table.features), seed, first, first + piece.codes.n_rows) - first
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
                scores = np.repeat(origin.baseline[:, None], len(matrix), axis=1)
                scores += 0.0 if offset is None else offset
                middle = origin.n_earlier if resumes else 0
                if resumes:
                    add_block(scores, flat, matrix, (0, middle), n_threads)
                    written["begun"] = scores.copy() if outputs else scores[0].copy()
                add_block(scores, flat, matrix, (middle, origin.n_before), n_threads)
                written["start"] = scores if outputs else scores[0]
            writer.append(piece.codes.n_rows, {name: values for name, values in written.items() if values is not None})
        writer.finish()
    except BaseException:
        for file in files.values():
            file.remove()
        raise
    portrait = Portrait(*(np.concatenate(parts) for parts in zip(*portrayed, strict=True)))
    return BinnedData(table.named, binning, census.target, census.levels, files["codes"], files["rows"], portrait=portrait)
