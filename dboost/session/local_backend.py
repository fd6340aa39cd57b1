"""The session of a fit in this process, called directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any, TypeVar, TypeVarTuple

import numpy as np

from dboost.data import Table
from dboost.data.columns.binning import propose_together
from dboost.data.tables.reading import GivenTable
from dboost.kernels.threads import team_for
from dboost.losses.gradient_stats import GradientStats
from dboost.losses.terms import LossTerms
from dboost.metrics.metric import MetricReduction
from dboost.rows.statistics import Statistic
from dboost.schema import Feature
from dboost.session.backend import log_rows_in_files
from dboost.session.evaluation_rows import log_streamed_eval_set
from dboost.session.fit_records import BuildSpec, Chosen, ReplayState, RowIdRanges, SelectedRows
from dboost.session.memory import trim_memory
from dboost.session.session import Session
from dboost.session.table_rows import TableRows
from dboost.session.target import TargetScan, scan_targets
from dboost.trees.fit_trees import GrownTree, TreesSoFar
from dboost.trees.tree_growth import Round
from dboost.trees.tree_rounds import GrowOrder, RoundSumsAndSplits, TreeRounds
from dboost.trees.tree_task import TreeTask

Answer = TypeVar("Answer")
Given = TypeVarTuple("Given")

#: All rows of a fit in this process are one batch.
BATCH = "training data"


class LocalBackend:
    """Implements `backend.Backend` by one session.

    Parameters
    ----------
    read_table : callable
        Reads the table.
    n_threads : int
    is_shared : bool, default False
        Whether other fits use the table, too; then the caller closes it, and its roles are in memory.
    """

    is_one_process = True
    unit_weights: bool
    named: bool
    roles: tuple[str, ...]
    n_kept: dict[int, int]
    spec: BuildSpec
    trees: TreesSoFar

    def __init__(self, read_table: Callable[[], Table], n_threads: int, *, is_shared: bool = False) -> None:
        self._read_table, self._n_threads, self._is_shared = read_table, n_threads, is_shared
        self._resources = ExitStack()  # released by `close`
        self._applied = -1  # number of the last `advance`
        self._n_iterations_sent = 0  # iterations that the session has received

    # The table.

    def load(self) -> tuple[Feature, ...]:
        table = self.table = self._read_table()
        self.session = Session(self._n_threads, team=team_for(table.n_rows, len(table.features), self._n_threads))
        self._resources.callback(self.session.close)
        self.session.adopt(BATCH, table, closes=not self._is_shared)
        self.named, self.roles = table.named, table.role_names
        n_kept, _, unit_weights = self.session.rows_of(BATCH).row_counts()
        self.set_trained(n_kept, unit_weights)
        return table.features

    def target_scans(self) -> list[TargetScan]:
        return scan_targets(self.table)

    def ask(self, question: Callable[[TableRows, *Given], Answer], *arguments: *Given) -> list[Answer]:
        return [question(self.session.rows_of(BATCH), *arguments)]

    def change(self, step: Callable[[TableRows, *Given], None], *arguments: *Given) -> None:
        step(self.session.rows_of(BATCH), *arguments)

    def complete(self) -> None:
        """Do nothing: changes are made at once."""

    def set_trained(self, n_kept: dict[int, int], unit_weights: bool) -> None:
        self.n_kept, self.unit_weights, self.id_ranges = n_kept, unit_weights, RowIdRanges.of(n_kept)
        self.change(TableRows.set_row_ids, self.id_ranges)

    def propose(self, seed: int, columns: tuple[int, int], max_bins: int) -> list[np.ndarray]:
        return propose_together(self.ask(TableRows.proposal_sample, seed, columns), max_bins, self._n_threads)

    @property
    def most_rows(self) -> int:
        return self.n_rows

    # Training.

    @property
    def n_rows(self) -> int:
        return sum(self.n_kept.values())

    def build(self, spec: BuildSpec, chosen: Chosen, trees: TreesSoFar) -> None:
        self.spec = spec = replace(spec, id_ranges=self.id_ranges)
        self.trees = trees
        for name, (n_rows, max_weight) in chosen.items():
            size = spec.loss_magnitude(max_weight, n_rows)
            if self.session.add_eval_rows(BATCH, name, spec, size, spec.needs_values, chosen=True):
                log_streamed_eval_set(name)
        n_in_files = self.session.build(BATCH, spec, ReplayState()).in_files
        if n_in_files:
            log_rows_in_files(n_in_files, spec)

    def load_eval_sets(self, chosen: Chosen, sets: Sequence[GivenTable]) -> None:
        for table in sets:
            self.session.eval_sets.add_table(table, self.spec, self.spec.budget, with_block=self.spec.needs_values)

    @property
    def eval_names(self) -> list[str]:
        return self.session.eval_sets.names

    def evaluate(self, metrics: Sequence[MetricReduction]) -> dict[str, float]:
        trees = self.trees
        return self.session.eval_sets.evaluate(trees.trees, metrics, trees.mark, trees.n_cuts)

    def advance(self, values: np.ndarray, terms: LossTerms) -> GradientStats:
        self._applied += 1
        self.trees.apply()
        stats: list[GradientStats] = []
        for rows in self.session.trained:
            stats.append(rows.advance(self._applied, values, terms))
        return reduce(GradientStats.merge, stats)

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        """Trees grow when they are requested; over files, some of them together."""
        trees = self.session.whole_trees(tasks)
        return map(self.trees.add, self._grow_in_rounds(tasks) if trees is None else trees)

    def _grow_in_rounds(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        spec, (n_leaves, trees_per_pass) = self.spec.shard_spec, self.session.pass_width(BATCH)
        for first in range(0, len(tasks), trees_per_pass):
            tasks_together = tuple(tasks[first : first + trees_per_pass])
            order = GrowOrder(tasks_together, spec.tree_layout, spec.is_identity_bin_map, self.n_rows, n_leaves)
            yield from self._rounds.grow(self._begin, order)

    @cached_property
    def _rounds(self) -> TreeRounds:
        rounds = TreeRounds(self._n_threads)
        self._resources.callback(rounds.close)
        return rounds

    def _begin(self, tasks: Sequence[TreeTask], rounds: Mapping[int, Round]) -> Callable[[], RoundSumsAndSplits]:
        """Begin a round of trees that grow in this process; see `trees.tree_rounds`."""
        session = self.session

        def run() -> RoundSumsAndSplits:
            if tasks:
                session.begin_trees(tasks)
            requests = {output: request for output, (request, _) in rounds.items()}
            session.begin_round(requests)
            return {output: session.sum_histograms(output, request) for output, request in requests.items()}, None

        return run

    def assign_leaves(self, iteration: int) -> None:
        self.session.assign_leaves(iteration)

    def statistics(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        return self.session.statistics(statistic, *arguments)

    def select(self, parts: Sequence[int]) -> None:
        self.trees.apply()
        selected = SelectedRows(tuple(parts), self._applied + 1, self.trees.n_iterations)
        self.session.select(selected, self.trees.iterations(self._n_iterations_sent), self._n_iterations_sent)
        self._n_iterations_sent = selected.n_iterations

    def report(self) -> dict[str, float]:
        return {"bytes_read": self.session.new_bytes_read()}

    def observers(self, loss_name: str, n_features: int) -> list[Callable[[Any], Any]]:
        return []

    def release(self) -> None:
        self.session.release_rows()
        if self._is_shared:
            trim_memory()  # several folds end at the same time, and describe their models

    def close(self) -> None:
        self._resources.close()
