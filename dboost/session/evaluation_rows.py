"""Evaluation sets: rows that are encoded like the training rows, scored by each new tree, and evaluated by exact metrics.

An evaluation set has its own table, or it consists of rows that were chosen from the training table. Its codes, targets,
weights and raw scores are in a `rows.row_store.RowStore`, in memory or in files: all sets in memory together take at most 1/8
of a memory limit (`Budget.holds_set`), and sets beyond that are streamed. Both give the same metrics to the last bit, because
metrics are computed in chunks that merge exactly: one of a set in memory, one of each block of files. (The area under the curve
keeps all distinct scores in memory until the last merge.) To add trees or to compute a metric, the threads of the team share
the blocks, which are so short that the blocks of all threads fit into the memory for small sets.

**Sessions.** `SessionEvalSets` are the sets of one process. On a worker a set consists of the rows of each batch, and each part
counts the trees in its scores: missing trees are added together at the next call. With arcbites the model is truncated after a
visit to a *mark*, a number of trees at which the scores were saved. Marks and truncations are no calls of their own. They are
arguments of the next `evaluate`, so rows that are loaded later and calls that are repeated need no special handling.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dboost.data import ReadOptions
from dboost.data.tables.eval_tables import named_in_messages
from dboost.data.tables.read_table import read_table
from dboost.data.tables.reading import GivenTable
from dboost.kernels.histograms import BinLayout
from dboost.kernels.threads import Team
from dboost.metrics.metric import LossMagnitude, MetricReduction, ScoredRows
from dboost.metrics.named import find_metrics
from dboost.model.ensemble import averaged
from dboost.rows.block_file import Field
from dboost.rows.row_store import FieldGroup, InFiles, RowShares, RowStore
from dboost.rows.shard import BinnedColumns, compacted, empty_binned_columns
from dboost.rows.shard_spec import ShardSpec, code_rows, rows_that_fit, target_field
from dboost.session.fit_records import BuildSpec
from dboost.session.memory import Budget
from dboost.session.starting_rows import StartingRows
from dboost.session.target import encode_chunk
from dboost.session.warm_start import row_matrix
from dboost.trees.apply_trees import ConsecutiveCodes, add_trees
from dboost.trees.fit_trees import FitTree

_log = logging.getLogger("dboost")

#: Number of rows that are encoded at a time.
_PIECE_ROWS = 65_536


def log_streamed_eval_set(name: str) -> None:
    """Log that a set, or some of its rows, exceed the memory limit."""
    _log.info("rows of evaluation set %r exceed the memory limit and are streamed from files", name)


class EncodedEvalRows(NamedTuple):
    """Rows of a set for another session, before trees are added to their scores."""

    name: str
    fields: dict[str, np.ndarray]  # see `eval_fields`
    size: LossMagnitude
    owned: list[tuple[int, int]]
    block: np.ndarray | None


class EvaluationRows:
    """Rows of an evaluation set in this process.

    Parameters
    ----------
    store : RowStore
        Of the fields of `eval_fields`, filled.
    spec : BuildSpec
    size : LossMagnitude
        Of all rows of the set.
    team : Team
    block : float32 or float64 [n_rows, n_features], optional
        Raw values, if a metric needs them; the rows are in memory then.
    batch : str
    owned : list of (int, int)
        Partition and number of rows of each run of consecutive rows of one partition.
    shared : ConsecutiveCodes, optional
        The codes of the rows, if other fits use them, too; the store, which is in memory, has none then.

    Attributes
    ----------
    n_trees : int
        Number of trees in the raw scores.
    n_saved : int
        Number of trees in the saved scores, -1 without any.
    n_cuts : int
        How often the model had been truncated at the last call of `follow`, -1 before the first.
    """

    def __init__(
        self,
        store: RowStore,
        spec: BuildSpec,
        size: LossMagnitude,
        team: Team,
        *,
        block: np.ndarray | None = None,
        batch: str = "",
        owned: Sequence[tuple[int, int]] = (),
        shared: ConsecutiveCodes | None = None,
    ) -> None:
        self.shares, self.loss, self.batch, self.owned = RowShares(store, team), spec.target.loss, batch, owned
        self._layout, self._size, self._block, self._shared = spec.shard_spec.layout, size, block, shared
        self._row_of = code_rows(self._layout)
        self.n_trees, self.n_saved, self.n_cuts = 0, -1, -1
        #: Number of trees of each output that are averaged, besides those that `add` has added; None if trees are added up.
        self._n_before = n_before = _n_averaged(spec)
        self._width, self._unit = spec.shard_spec.width, spec.unit  # values per leaf, and unit of the values
        self._sums = "raw" if n_before is None else "tree_sum"

    @property
    def store(self) -> RowStore:
        return self.shares.store

    @property
    def n_rows(self) -> int:
        return self.store.n_rows

    def add(self, trees: Sequence[FitTree]) -> None:
        """Add trees to the raw scores, in one pass."""

        def add_to(fields: dict[str, np.ndarray], first: int, last: int, _: int) -> None:
            codes, offset = self._shared or (BinnedColumns(fields["narrow"], fields["wide"], self._row_of), 0)
            add_trees(codes, self._layout, trees, fields[self._sums], first, last, offset, self._unit)

        self.shares.map(add_to, lambda k: self.shares.walk(k, [*_CODES, self._sums], [self._sums]))
        self.n_trees += len(trees)

    def chunks(self, metrics: Sequence[MetricReduction]) -> list[Any]:
        """Return the current statistics of each metric, which `MetricReduction.merge` combines with those of other rows."""
        if self.store.place is None:  # at once, since a metric that is no exact sum may depend on the number of chunks
            scored = self._scored(self.store.load())
            return [metric.chunk(scored) for metric in metrics]

        names = ["target", *dict.fromkeys(("raw", self._sums)), "weight"]

        def chunks_of_blocks(k: int) -> Iterator[list[Any]]:
            for fields, *_ in self.shares.walk(k, names):
                # Statistics of users' metrics may be views of the rows, and the next block overwrites the buffers.
                scored = self._scored({name: fields[name].copy("K") for name in names if name in fields})
                yield [metric.chunk(scored) for metric in metrics]

        merge = partial(_merged, metrics)
        return reduce(merge, self.shares.run(lambda k: reduce(merge, chunks_of_blocks(k))))

    def _scored(self, fields: dict[str, np.ndarray]) -> ScoredRows:
        raw = fields["raw"]
        if self._n_before is not None:
            raw = averaged(raw, fields["tree_sum"], self._n_before + self.n_trees * self._width // len(raw))
        target = fields["target"].astype(np.float64, copy=False)
        return ScoredRows(target, raw, fields.get("weight"), self.loss, self._size, block=self._block)

    def save_state(self) -> None:
        """Save the current raw scores."""
        self._copy("raw", "saved")
        self.n_saved = self.n_trees

    def rollback(self) -> None:
        """Restore the raw scores that were saved last."""
        assert self.n_saved >= 0
        self._copy("saved", "raw")
        self.n_trees = self.n_saved

    def _copy(self, old: str, new: str) -> None:
        def copy(fields: dict[str, np.ndarray], first: int, last: int, _: int) -> None:
            fields[new][..., first:last] = fields[old][..., first:last]

        self.shares.map(copy, lambda k: self.shares.walk(k, [old], [new]))

    def catch_up(self, first: int, trees: Sequence[FitTree], mark: int, n_cuts: int) -> bool:
        """Add the trees that the scores lack; return False if they lack trees before number `first`.

        trees, mark, n_cuts : see `Session.evaluate`.
        """
        self._follow(mark, n_cuts)
        if self.n_trees < first:
            return False
        lacking, n_before_mark = trees[self.n_trees - first :], max(mark - self.n_trees, 0)
        for added in (lacking[:n_before_mark], lacking[n_before_mark:]):
            if added:
                self.add(added)
                self._save_at(mark)
        return True

    def _follow(self, mark: int, n_cuts: int) -> None:
        """Restore the saved scores if the model was truncated to them."""
        if self.n_trees > mark and 0 <= self.n_cuts < n_cuts:
            assert self.n_saved == mark, "every cut goes back to a mark that was passed"
            self.rollback()
        self.n_cuts = n_cuts
        self._save_at(mark)

    def _save_at(self, mark: int) -> None:
        """Save the scores if they include exactly `mark` trees."""
        if self.n_trees == mark != self.n_saved:
            self.save_state()

    def encoded(self, name: str) -> EncodedEvalRows:
        """Return the rows for another session; no tree may have been added."""
        assert self.n_trees == 0 and self.n_saved < 0
        self._own_codes()
        fields = {field: values for field, values in self.store.load().items() if field != "saved"}
        return EncodedEvalRows(name, fields, self._size, list(self.owned), self._block)

    def use_team(self, team: Team) -> None:
        """Have other threads work on the set."""
        self.shares = RowShares(self.store, team)

    def keep_only(self, partitions: Sequence[int]) -> None:
        """Drop the rows of other partitions; at least one partition must remain."""
        stays = np.repeat([number in partitions for number, _ in self.owned], [n for _, n in self.owned])
        if not stays.all():
            self._own_codes()
            before = self.shares
            self.shares = RowShares(before.subset(stays), before.team)
            before.store.close()
            self._block = None if self._block is None else self._block[stays]
            self.owned = [(number, n) for number, n in self.owned if number in partitions]

    def _own_codes(self) -> None:
        """Copy the codes that other fits use, too."""
        if self._shared is not None:
            rows, scores = self.store.groups
            narrow, wide, _ = self._shared.part(self.n_rows)
            codes = {"narrow": np.ascontiguousarray(narrow), "wide": np.ascontiguousarray(wide)}
            groups = [rows._replace(fields=[*_code_fields(self._layout), *rows.fields]), scores]
            store = RowStore(groups, [self.n_rows], arrays=self.store.load() | codes)
            self.shares, self._shared = RowShares(store, self.shares.team), None

    def close(self) -> None:
        """Release the memory, and remove the files."""
        self._shared = None
        self.store.close()


def _merged(metrics: Sequence[MetricReduction], a: list[Any], b: list[Any]) -> list[Any]:
    return [metric.merge(x, y) for metric, x, y in zip(metrics, a, b, strict=True)]


def _n_averaged(spec: BuildSpec) -> int | None:
    """Return the number of iterations of the model that is continued if trees are averaged, else None."""
    return spec.warm_start.n_before if spec.shard_spec.averages else None


_CODES = ("narrow", "wide")


def _code_fields(layout: BinLayout) -> list[Field]:
    codes = empty_binned_columns(layout, 0)
    return [Field("narrow", "<u1", (len(codes.narrow),)), Field("wide", "<u2", (len(codes.wide),))]


def eval_fields(
    shard: ShardSpec, weighted: bool, has_codes: bool = True, target_type: str = "<f8"
) -> tuple[FieldGroup, FieldGroup]:
    """Return the fields of an evaluation set.

    shard : of the training rows; has_codes : whether the set has its own codes. Held-out rows of folds that share codes have
    none, and no saved scores: `cv` does not take arcbites, so no model is truncated during a fit.
    """
    outputs = (shard.n_outputs,)
    rows = [target_field(shard.n_targets, target_type), *([Field("weight", "<f8")] if weighted else [])]
    if has_codes:
        narrow, wide = _code_fields(shard.layout)
        rows = [narrow, rows[0], wide, *rows[1:]]
    state = [Field("raw", "<f8", outputs)]
    if shard.averages or has_codes:
        state.append(Field("tree_sum" if shard.averages else "saved", "<f8", outputs))
    return FieldGroup("eval-rows", rows, sealed=True), FieldGroup("eval-scores", state, sealed=False)


class SessionEvalSets:
    """The evaluation sets of one process, or of a fit: `cluster.training.cluster_fit` derives those of which workers have some.

    Parameters
    ----------
    team : Team
        Threads that work on a set together.
    root : Path, optional
        Parent of the folders for files; default: the one of `PrivateDirectory`.

    Attributes
    ----------
    names : list of str
        Of all sets, in order.
    """

    def __init__(self, team: Team, root: Path | None = None) -> None:
        self._team, self._root = team, root
        self.names: list[str] = []
        self._parts: dict[str, list[EvaluationRows]] = {}
        self._n_bytes = 0  # of the sets in memory that a limit allows

    def add_table(self, eval_table: GivenTable, spec: BuildSpec, budget: Budget | None, *, with_block: bool) -> None:
        """Add a set that is a table of its own, with targets encoded like the training target.

        Raises
        ------
        DataError, InputTypeError
            If the table is invalid; the message names the evaluation set.
        """
        options = ReadOptions(self._team.n_threads)
        if budget is not None:
            options = replace(budget.read_options, limit=None)  # of the training rows
        with named_in_messages(eval_table.name), read_table(eval_table, options, like=spec.binning.features) as table:
            rows = StartingRows(table, lambda k: encode_chunk(table, k, spec.target))
            self.add(eval_table.name, rows, spec, budget, with_block=with_block)
        if self.in_files(name=eval_table.name):
            log_streamed_eval_set(eval_table.name)

    def add(
        self,
        name: str,
        rows: StartingRows,
        spec: BuildSpec,
        budget: Budget | None,
        *,
        size: LossMagnitude | None = None,
        with_block: bool = False,
        batch: str = "",
        shared: ConsecutiveCodes | None = None,
    ) -> None:
        """Add rows of a table to a set: in memory, or in files if they exceed the memory that the budget leaves for sets.

        size : magnitudes of the whole set if other sessions have further rows of it; default: those of these rows.
        with_block : whether a metric needs the raw values; the rows are in memory then.
        shared : the codes of the rows, if other fits have them in memory, too.
        """
        n_threads = self._team.n_threads
        counts, (max_weight, weighted) = rows.counts(), rows.weights()
        n_rows, groups = sum(counts), eval_fields(spec.shard_spec, weighted)
        place, piece_rows = None, min(n_rows, _PIECE_ROWS)
        if budget is not None and not with_block:
            row_bytes = sum(field.n_bytes(1) for group in eval_fields(spec.shard_spec, True) for field in group.fields)
            if budget.holds_set(self._n_bytes + n_rows * row_bytes):
                self._n_bytes += n_rows * row_bytes
            else:
                piece_rows = budget.block_rows_of_set(rows_that_fit(groups[0].fields, n_rows), row_bytes, n_threads)
                place = InFiles(piece_rows, self._root)
        shared = shared if place is None else None
        target_type = "<f8"
        if shared is not None and spec.shard_spec.compacts_target:
            target_type = compacted(rows.targets()).dtype.str
        if shared is not None:
            groups = eval_fields(spec.shard_spec, weighted, has_codes=False, target_type=target_type)
        store = RowStore(groups, [n_rows], place)
        try:
            without_codes = shared is not None and spec.warm_start.model is None
            for piece in rows.start_fields(spec) if without_codes else rows.evaluated(spec, n_threads, piece_rows):
                store.append(len(piece["weight"]), piece)
            block = row_matrix(rows.table, rows.positions()) if with_block else None
        except BaseException:
            store.close()
            raise
        size = spec.loss_magnitude(max_weight, n_rows) if size is None else size
        owned = [(number, n) for number, n in zip(rows.table.partition_ids, counts, strict=True) if n]
        part = EvaluationRows(store, spec, size, self._team, block=block, batch=batch, owned=owned, shared=shared)
        self._append(name, part)

    def _append(self, name: str, part: EvaluationRows) -> None:
        if name not in self._parts:
            self.names.append(name)
        self._parts.setdefault(name, []).append(part)

    def hand_over(self, batch: str) -> list[EncodedEvalRows]:
        """Return the rows of a batch for another session, before trees are added to their scores, and drop them."""
        encoded = [part.encoded(name) for name, parts in self._parts.items() for part in parts if part.batch == batch]
        self.keep_only(batch, ())
        return encoded

    def add_encoded(self, batch: str, rows: EncodedEvalRows, spec: BuildSpec) -> None:
        """Add rows that another session has encoded, in memory."""
        n_rows = sum(n for _, n in rows.owned)
        store = RowStore(eval_fields(spec.shard_spec, "weight" in rows.fields), [n_rows])
        store.append(n_rows, rows.fields)
        part = EvaluationRows(store, spec, rows.size, self._team, block=rows.block, batch=batch, owned=rows.owned)
        self._append(rows.name, part)

    def use_team(self, team: Team) -> None:
        """Have other threads work on the sets."""
        self._team = team
        for part in self._every:
            part.use_team(team)

    def evaluate(
        self, trees: Sequence[FitTree], metrics: Sequence[MetricReduction], mark: int, n_cuts: int
    ) -> dict[str, float]:
        """Return the metrics after the given trees as ``{"<set>_<metric>": value}``. mark, n_cuts : see `Session.evaluate`."""
        values: dict[str, float] = {}
        for part in self._every:
            part.catch_up(0, trees, mark, n_cuts)
        for name, parts in self._parts.items():
            chunks = reduce(partial(_merged, metrics), (part.chunks(metrics) for part in parts))
            for metric, chunk in zip(metrics, chunks, strict=True):
                values |= metric.values(name, chunk)
        return values

    @property
    def _every(self) -> list[EvaluationRows]:
        return [part for parts in self._parts.values() for part in parts]

    def statistics(
        self, first: int, trees: Sequence[FitTree], metrics: dict[str, list[Any]], mark: int, n_cuts: int
    ) -> dict[str, tuple[int, list[list[Any]]]] | None:
        """See `Session.evaluate`."""
        wanted = {name: self._parts.get(name, []) for name in metrics}
        if not all([part.catch_up(first, trees, mark, n_cuts) for parts in wanted.values() for part in parts]):
            return None
        statistics_of_sets: dict[str, tuple[int, list[list[Any]]]] = {}
        for name, parts in wanted.items():
            chunks = [part.chunks(find_metrics(metrics[name], part.loss)) for part in parts]
            statistics_of_sets[name] = sum(part.n_rows for part in parts), chunks
        return statistics_of_sets

    def keep_only(self, batch: str, partitions: Sequence[int]) -> None:
        """Drop the rows of this batch's other partitions, which another session evaluates now."""
        for name, parts in self._parts.items():
            kept = []
            for part in parts:
                if part.batch != batch or any(number in partitions for number, _ in part.owned):
                    kept.append(part)
                    if part.batch == batch:
                        part.keep_only(partitions)
                else:
                    part.close()
            self._parts[name] = kept

    def in_files(self, *, name: str | None = None, batch: str | None = None) -> int:
        """Return how many rows of a set or of a batch are in files."""
        parts = self._every if name is None else self._parts[name]
        return sum(part.n_rows for part in parts if part.store.place is not None and batch in (None, part.batch))

    def close(self) -> None:
        """Release memory and remove files."""
        for part in self._every:
            part.close()
        self._parts = {}
