"""The session: everything that one process does for one fit.

A `Session` has batches, which become training rows and evaluation sets: a `PartitionBatch` while tasks read partitions, then
`TableRows`, then `TrainingRows`. On a worker its methods are called by messages, one at a time, in a thread of the fit; loading
tasks run concurrently. A fit without a cluster has a single session, which
`local_backend.LocalBackend` calls directly. Methods marked `remote` are those that messages call.

**Every call is idempotent.** When a worker dies during a step, the step is repeated in all surviving sessions. The same leaf
values cannot be added twice, because `advance_to` has the number of its iteration. A tree can be grown again, because growing
does not change the gradients.

**Rows are divided among threads**, a share of the shard for each. Each share has its own histograms, and the session returns
their sums. Rows that are loaded later, because another worker died, become further training rows with a shard of their own.

**Rows of a host.** Sessions of a host may hand their encoded rows over to one of them, see `hand_over`.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dboost.data import Table
from dboost.data.columns.binning import ColumnSamples, propose_together
from dboost.kernels.threads import Team, team_for
from dboost.losses.gradient_stats import GradientStats
from dboost.losses.terms import LossTerms
from dboost.metrics.metric import LossMagnitude
from dboost.model.ensemble import FlatEnsemble
from dboost.rows.shard import check_rows_in_memory
from dboost.rows.statistics import Statistic
from dboost.schema import Feature
from dboost.session.bites import Bites, BiteStore, Iterations
from dboost.session.encoded_rows import EncodedStore, joined_rows
from dboost.session.evaluation_rows import SessionEvalSets
from dboost.session.fit_records import BuildSpec, ReplayState, RowPlaces, SelectedRows
from dboost.session.hand_over import EncodedBatch, HandedRows
from dboost.session.memory import Budget, trim_memory
from dboost.session.partition_batch import Loading, MissingPartitions, PartitionStats
from dboost.session.refit_rows import rows_with_values
from dboost.session.starting_rows import StartingRows
from dboost.session.table_rows import TableRows
from dboost.session.training_rows import PassWidth, RefitLeaves, TrainingRows, no_leaves, streamed_rows
from dboost.trees.apply_trees import ConsecutiveCodes
from dboost.trees.fit_trees import FitTree, GrownTree
from dboost.trees.tree_growth import RoundHistograms, RoundRequest
from dboost.trees.tree_task import TreeTask
from dboost.tuning import tuning

Result = TypeVar("Result")
Method = TypeVar("Method", bound=Callable[..., Any])


class Remote(NamedTuple):
    """How a worker answers a call."""

    has_objects: bool = True  # whether the answer may have objects of the user, which `pack_round` does not know
    is_summed: bool = False  # whether answers are added up on their way, so that they are packed as arrays on each line
    frees_memory: bool = False  # of feature values


#: The methods of a session that messages may call.
SESSION_METHODS: dict[str, Remote] = {}


def remote(**how: bool) -> Callable[[Method], Method]:
    """Allow messages to call a method of a session. It must be idempotent: after a failure it is called again.

    how : fields of `Remote`.
    """

    def allow(method: Method) -> Method:
        SESSION_METHODS[method.__name__] = Remote(**how)
        return method

    return allow


class Session:
    """The session of one fit in one process.

    Parameters
    ----------
    n_threads : int
        Threads for this fit; `use_threads` changes the attribute.
    folder : Path, optional
        Folder for rows that exceed a memory limit; default: the folder of Dask's temporary files.
    spare : Budget, optional
        Memory that the worker may use before Dask pauses it; the budget of a fit without a `memory_limit`.
    team : Team, optional
        Threads that work on shards, one shard each, and on evaluation sets; closed with the session. Default: `n_threads`.

    Attributes
    ----------
    id : str
        Globally unique name.
    lock : Lock
        Held during a call.
    latest : int
        Largest round number that a call had.
    loading : Loading
        The batches that are read.
    trained : list of TrainingRows
        The training rows, of each batch that is built.
    bites : Bites or None
        All rows, of which some are trained on; None without arcbites.
    """

    def __init__(
        self, n_threads: int, folder: Path | None = None, spare: Budget | None = None, team: Team | None = None
    ) -> None:
        self.id = uuid.uuid4().hex
        self.lock = threading.Lock()
        self.latest = -1
        self.n_threads, self._folder, self._spare = n_threads, folder, spare
        self._given_team = team
        self._n_growing: int | None = None  # see `use_threads`
        self._resources = ExitStack()  # released by `close`
        # The rows of a batch: while they are read, as a table, perhaps encoded for another session, and for training.
        self.loading = Loading(spare)
        self._rows: dict[str, TableRows] = {}
        self._encoded: dict[str, EncodedBatch] = {}
        self._built: set[str] = set()
        self._spec: BuildSpec | None = None
        self.trained: list[TrainingRows] = []
        self.bites: Bites | None = None
        self._pass_widths: dict[str, PassWidth] = {}  # by batch, of rows in files
        self._closed_bytes_read = 0  # by training rows that are closed
        self._reported_bytes = 0
        self._narrow = np.empty(0, np.int32)  # receives the histograms of a round for sending

    @cached_property
    def _team(self) -> Team:
        return self._resources.enter_context(self._given_team or Team(self.n_threads))

    @cached_property
    def eval_sets(self) -> SessionEvalSets:
        """The evaluation sets."""
        sets = SessionEvalSets(self._team, self._folder)
        self._resources.callback(sets.close)
        return sets

    def close(self) -> None:
        """Release threads and memory, and remove files."""
        for batch in [*self._rows, *self.loading.names, *self._encoded]:  # a loading task may add one meanwhile
            self._close_batch(batch)
        self.release_rows()
        self._resources.close()

    def release_rows(self) -> None:
        """Release the training rows and the threads that work on them together; remove their files."""
        for rows in self.trained:
            rows.close()
        self.trained = []
        if self.bites is not None:
            self.bites.close()

    # Batches.

    def rows_of(self, batch: str) -> TableRows:
        """Return the rows of a batch; raise MissingPartitions without such a batch."""
        rows = self._rows.get(batch)
        if rows is None:
            raise MissingPartitions(batch)
        return rows

    def adopt(self, batch: str, table: Table, *, closes: bool = True) -> None:
        """Register a table that was read in this process as a batch. closes : whether to close it once its rows are encoded."""
        # `assign_rows` must not change the weights of the caller's table.
        reweighable = table if table.keeps_roles_apart else table.weighing(table.weight)
        self._rows[batch] = TableRows(reweighable, self.n_threads, table if closes else None)

    def _close_batch(self, batch: str) -> None:
        """Release the rows of a batch that are not built."""
        if batch in self._rows:
            self._rows.pop(batch).close()
        self.loading.close(batch)
        self._encoded.pop(batch, None)

    @remote()
    def attach(self, batch: str, role: str, values: dict[int, Any]) -> None:
        """Store a role of a batch's partitions, if the user passed one array for all rows."""
        self.loading.batch(batch).attach(role, values)

    @remote(frees_memory=True)
    def scan_partitions(self, batch: str, partition_ids: Sequence[int]) -> PartitionStats:
        """Return statistics of the listed partitions of a batch, and drop the others, which another session has loaded, too."""
        return replace(self.loading.batch(batch).scan_partitions(partition_ids), spare=self._spare)

    @remote()
    def set_features(self, batch: str, features: tuple[Feature, ...], named: bool) -> None:
        """Convert a batch to a table with these features."""
        if batch not in self._rows:
            origin = self.loading.batch(batch)
            self._rows[batch] = TableRows(origin.table(features, named), self.n_threads, origin, self._n_growing)

    @remote()
    def change(self, batch: str, step: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Change the rows of a batch: ``step(rows, *arguments)``."""
        step(self.rows_of(batch), *arguments)

    @remote()
    def ask(self, batch: str, question: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        """Return ``question(rows, *arguments)`` of the rows of a batch."""
        return question(self.rows_of(batch), *arguments)

    def draw_sample(
        self, batches: Sequence[str], seed: int, columns: tuple[int, int], bounds: Sequence[int], own_range: int | None
    ) -> tuple[list[ColumnSamples], ColumnSamples]:
        """Draw rows of some batches; return the ranges of their columns (empty for `own_range`), and range `own_range`."""
        sample: ColumnSamples = {}
        for batch in batches:
            sample |= self.rows_of(batch).proposal_sample(seed, columns)
        ranges = [
            {i: (values[first:last], weight) for i, (values, weight) in sample.items()} for first, last in pairwise(bounds)
        ]
        return [{} if k == own_range else part for k, part in enumerate(ranges)], {} if own_range is None else ranges[own_range]

    @remote()
    def propose(self, kept: ColumnSamples, received: Sequence[ColumnSamples], max_bins: int) -> list[np.ndarray]:
        """Return the split candidates of the own range of columns. received : from the other sessions."""
        return propose_together([kept, *received], max_bins, self.n_threads)

    # Rows of a host.

    def rows_to_hand_over(
        self, batch: str, spec: BuildSpec, n_messages: int, n_threads: int | None, room: int = 0
    ) -> list[HandedRows]:
        """Encode a batch that is not built yet; return its rows and evaluation rows in `n_messages` messages.

        n_messages : 0 for a session that receives the rows of the others, and has read none itself.
        n_threads : for the session that receives the rows of the others: the threads that it trains with. It returns none.
        room : for this session: number of rows that its codes have room for; 0 for its own.
        """
        self._spec = spec
        encoded = self._encoded.get(batch)
        if encoded is None:
            encoded = self._encode(batch, spec, n_messages, room) if n_messages else EncodedBatch(spec, (), [])
            self._encoded[batch] = encoded
        encoded.received = []
        if n_threads is not None:
            self.use_threads(n_threads)
            return []
        if encoded.handed_eval_rows is None:
            encoded.handed_eval_rows = self.eval_sets.hand_over(batch)
        return encoded.messages(n_messages)

    def _encode(self, batch: str, spec: BuildSpec, n_ranges: int, room: int) -> EncodedBatch:
        """Encode a batch, and release its raw values. n_ranges, room : see `TableRows.encoded`."""
        rows = self.rows_of(batch)
        rows.drop_target()
        encoded = EncodedBatch(spec, tuple(rows.table.partition_ids), list(rows.encoded(spec, n_ranges, room)))
        self._close_batch(batch)
        return encoded

    @remote()
    def receive(self, batch: str, messages: Sequence[HandedRows]) -> None:
        """Store what other sessions have sent, until `accept`."""
        if batch not in self._encoded:
            raise MissingPartitions(batch)
        self._encoded[batch].received += messages

    @remote()
    def accept(self, batch: str, partition_ids: Sequence[int]) -> None:
        """Add the rows that were received of these partitions to the own ones, and drop those of others."""
        if batch in self._encoded:  # the session may take part in none
            encoded = self._encoded[batch]
            for rows in encoded.accept(partition_ids):
                self.eval_sets.add_encoded(batch, rows, encoded.spec)

    @remote()
    def use_threads(self, n_threads: int, n_growing: int | None = None) -> None:
        """Work with another number of threads from now on. n_growing : trees of all folds that grow at the same time here."""
        self._n_growing = n_growing
        if n_threads != self.n_threads:
            self.n_threads = n_threads
            vars(self).pop("_team", None)
            if "eval_sets" in vars(self):
                self.eval_sets.use_team(self._team)

    # Shards.

    @remote(frees_memory=True)
    def build(self, batch: str, spec: BuildSpec, past: ReplayState) -> RowPlaces:
        """Build shards from a table, replay the trees so far, and drop the raw values; return where the rows are."""
        if batch not in self._built:
            self._spec = spec
            if batch in self._encoded:
                self._build_encoded(batch, spec, past)
            else:
                self._build_read(batch, spec, past)
            self._built.add(batch)
        return self.row_places(batch)

    def _build_encoded(self, batch: str, spec: BuildSpec, past: ReplayState) -> None:
        """Build a shard from the rows that sessions of a host have handed over."""
        encoded = self._encoded[batch]
        handed, encoded.handed_eval_rows = encoded.handed_eval_rows or [], None
        for rows in handed:  # to a session that was lost
            self.eval_sets.add_encoded(batch, rows, spec)
        n_kept = sum(part.n_rows for part in encoded.rows)
        check_rows_in_memory(n_kept)
        if n_kept:
            self._train_on(joined_rows(encoded.rows, spec, self.n_threads), batch, spec, past)
        self._close_batch(batch)

    def _build_read(self, batch: str, spec: BuildSpec, past: ReplayState) -> None:
        """Build training rows from a table that this session has read."""
        rows = self.rows_of(batch)
        rows.drop_target()
        limit = spec.streaming_budget(rows.n_kept, self.n_threads, n_there=self.n_rows, spare=self._spare)
        if spec.refit_model is not None:
            leaves = partial(_leaves_in, FlatEnsemble(spec.refit_model))
            for values in rows_with_values(rows, spec):
                self._train_on(values, batch, spec, past, leaves)
        elif spec.n_parts is not None:
            store = BiteStore(rows, spec, spec.n_parts, limit, n_threads=self.n_threads, root=self._folder)
            self.bites = self.bites or Bites()
            self.bites.stores[batch] = store
            if past.selected is not None:
                self.bites.note_iterations(past.iterations[: past.selected.n_iterations], 0)
                self._train_on_bites(self.bites, past.selected, past.since(past.selected))
        elif limit is not None:
            for earlier in self.trained:
                earlier.store.unload()
            streamed, self._pass_widths[batch] = streamed_rows(
                rows, batch, spec, past, root=self._folder, team=self._team, limit=limit, is_alone=not self.trained
            )
            self.trained += [] if streamed is None else [streamed]
        else:
            for earlier in self.trained:
                earlier.store.unload()
            check_rows_in_memory(rows.n_kept)
            encoded = rows.in_memory(spec)
            if encoded is not None:
                self._train_on(encoded, batch, spec, past)
        self._close_batch(batch)
        is_fold = rows.fold is not None
        del rows  # with the targets and weights of the table
        if is_fold:
            trim_memory()  # several folds are built at the same time

    def _train_on(
        self, rows: EncodedStore, batch: str, spec: BuildSpec, past: ReplayState, leaves: RefitLeaves = no_leaves
    ) -> None:
        """Train on rows in memory, too."""
        team = team_for(rows.store.n_rows, max(len(spec.binning.features), 1), self.n_threads)
        self.trained.append(TrainingRows(rows, batch, spec, past, team, leaves))

    def row_places(self, batch: str) -> RowPlaces:
        """Return where the training rows of a batch are."""
        in_files = sum(rows.n_rows for rows in self.trained if rows.batch == batch and rows.shard is None)
        if self.bites is not None:
            in_files += self.bites.rows_in_files(batch)
        spec, most = self._spec, tuning().session_rows
        budget = None if spec is None else spec.budget or self._spare
        if spec is not None and budget is not None:
            most = budget.most_rows(spec.shard_spec, self.n_threads)
        return RowPlaces(in_files, most, self.pass_width(batch).trees_per_pass)

    def pass_width(self, batch: str) -> PassWidth:
        """Return what a round over the rows of a batch may do: one leaf and one tree of rows in memory."""
        return self._pass_widths.get(batch, PassWidth(1, 1))

    @remote(frees_memory=True)
    def keep_only(self, batch: str, partition_ids: Sequence[int]) -> None:
        """Drop the rows of this batch's other partitions, which another session has now."""
        if batch in self.loading.names or batch in self._encoded:  # never built
            self._close_batch(batch)
        trained: list[TrainingRows] = []
        for rows in self.trained:
            n_bytes, kept = rows.bytes_read, rows.keep_only(partition_ids) if rows.batch == batch else rows
            if kept is not rows:
                self._closed_bytes_read += n_bytes
            trained += [] if kept is None else [kept]
        self.trained = trained
        self.eval_sets.keep_only(batch, partition_ids)
        if self.bites is not None:
            self.bites.keep_only(batch, partition_ids)

    # Arcbites.

    @remote()
    def select(self, selected: SelectedRows, iterations: Iterations, first: int) -> bool:
        """Train on other rows from now on; return False if the session lacks iterations before number `first`.

        iterations : of the fit from number `first` on.
        """
        self.bites = self.bites or Bites()
        if not self.bites.note_iterations(iterations, first):
            return False
        self._train_on_bites(self.bites, selected, ReplayState())
        return True

    def _train_on_bites(self, bites: Bites, selected: SelectedRows, past: ReplayState) -> None:
        """Train on the selected rows of each batch; those that are trained on already stay. past : since they were selected."""
        staying = bites.batches_on(selected)
        for rows in self.trained:
            if rows.batch not in staying:
                rows.close()
        self.trained = [rows for rows in self.trained if rows.batch in staying]
        for batch, spec, encoded in bites.load(selected):
            self._train_on(encoded, batch, spec, past)

    # Training.

    @remote(has_objects=False)
    def advance_to(self, number: int, values: np.ndarray, terms: LossTerms) -> tuple[GradientStats | None, float, int, int]:
        """Complete an iteration: add the leaf values of its trees to the scores, and recompute the gradients.

        number : of the call, from 0 before the first tree; terms : of the loss.

        Returns
        -------
        gradient statistics (None without rows), seconds, bytes read since the last call, number of training rows
            A repeated call returns the same statistics.
        """
        started = time.perf_counter()
        stats = [rows.advance(number, values, terms) for rows in self.trained]
        merged = reduce(GradientStats.merge, stats) if stats else None
        return merged, time.perf_counter() - started, self.new_bytes_read(), self._counted_rows()

    def new_bytes_read(self) -> int:
        """Return the bytes read from files since the last call."""
        before = self._reported_bytes
        self._reported_bytes = self._closed_bytes_read + sum(rows.bytes_read for rows in self.trained)
        if self.bites is not None:
            self._reported_bytes += self.bites.bytes_read
        return self._reported_bytes - before

    def whole_trees(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree] | None:
        """Grow whole trees, each when it is requested.

        None if the rows of the session are not one batch whose grower grows whole trees: then trees grow in rounds.
        """
        return self.trained[0].grower.whole_trees(tasks) if len(self.trained) == 1 else None

    @remote(has_objects=False)
    def grow_whole_trees(self, tasks: Sequence[TreeTask]) -> tuple[list[GrownTree], int, float] | None:
        """Grow trees in the session that has all rows; return them, the number of training rows, and the seconds.

        None as of `whole_trees`.
        """
        started = time.perf_counter()
        trees = self.whole_trees(tasks)
        if trees is None:
            return None
        return list(trees), self._counted_rows(), time.perf_counter() - started

    def begin_trees(self, tasks: Sequence[TreeTask]) -> None:
        """Begin trees that grow in rounds; they replace all earlier ones."""
        for rows in self.trained:
            rows.grower.begin(tasks)

    def begin_round(self, requests: Mapping[int, RoundRequest]) -> None:
        """Announce the requests of a round by output; `sum_histograms` answers them."""
        for rows in self.trained:
            rows.grower.begin_round(requests)

    def sum_histograms(self, output: int, request: RoundRequest) -> RoundHistograms:
        """Return the histograms of a round of one tree. They are valid until the next call; the session must have rows."""
        return reduce(RoundHistograms.merge, [rows.grower.sum_histograms(output, request) for rows in self.trained])

    @remote(is_summed=True)
    def round_histograms(
        self, tasks: Sequence[TreeTask], requests: dict[int, RoundRequest]
    ) -> tuple[dict[int, RoundHistograms], int, float]:
        """Return the histograms of a round by output, the number of training rows, and the seconds; none without rows.

        tasks : trees to start, which replace all earlier ones; empty to continue.
        """
        started = time.perf_counter()
        if tasks:
            self.begin_trees(tasks)
        self.begin_round(requests)
        results: dict[int, RoundHistograms] = {}
        free = self._narrow_for(requests) if self.trained else self._narrow
        for output, request in requests.items() if self.trained else ():
            results[output] = compact = self.sum_histograms(output, request).compact(free)
            free = free[compact.histograms.size :]
        return results, self._counted_rows(), time.perf_counter() - started

    def _narrow_for(self, requests: dict[int, RoundRequest]) -> np.ndarray:
        """Return a buffer for the histograms of a round as int32[...]."""
        spec = self.trained[0].shard_spec
        size = spec.n_channels * int(spec.tree_layout.offset[-1]) * sum(len(request.nodes) for request in requests.values())
        if size > self._narrow.size:
            self._narrow = np.empty(max(size, 2 * self._narrow.size), np.int32)
        return self._narrow

    @remote()
    def assign_leaves(self, iteration: int) -> None:
        """Assign rows to the leaves of the trees of an iteration of `BuildSpec.refit_model`."""
        for rows in self.trained:
            rows.assign_leaves(iteration)

    @remote()
    def statistics(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the statistic of ranges of rows."""
        return [result for rows in self.trained for result in rows.statistic(statistic, *arguments)]

    @property
    def n_rows(self) -> int:
        """Number of training rows of this session; with arcbites, of all bites."""
        return sum(rows.n_rows for rows in self.trained) if self.bites is None else self.bites.n_rows

    def _counted_rows(self) -> int:
        """Return `n_rows`, which the client compares with its own count.

        Raises
        ------
        MissingPartitions
            If the training rows are not all rows of the current bite.
        """
        if self.bites is not None and self.bites.n_selected != sum(rows.n_rows for rows in self.trained):
            raise MissingPartitions("rows of the present arcbite")
        return self.n_rows

    # Evaluation sets.

    @remote(frees_memory=True)
    def add_eval_rows(self, batch: str, name: str, spec: BuildSpec, size: LossMagnitude, with_block: bool, chosen: bool) -> int:
        """Add rows to an evaluation set: all rows of a batch, or those that were chosen for the set from a training table.

        Return how many evaluation rows of the batch are in files.
        """
        if chosen:
            rows = self.rows_of(batch)
            if rows.chosen and name in rows.chosen:  # otherwise a repeated call
                held_out = StartingRows(rows.table, rows.target_of, *rows.chosen.pop(name))
                self._evaluate_rows(batch, held_out, name, spec, size, with_block)
        elif batch not in self._built:
            rows = self.rows_of(batch)
            self._evaluate_rows(batch, StartingRows(rows.table, rows.target_of), name, spec, size, with_block)
            self._close_batch(batch)
            self._built.add(batch)
        return self.eval_sets.in_files(batch=batch)

    def codes_held_out(self, rows: TableRows, spec: BuildSpec, positions: np.ndarray | None) -> ConsecutiveCodes | None:
        """Return the codes of rows that a fold holds out, if they are among those that folds share in memory; else None."""
        limit = spec.streaming_budget(rows.n_kept, self.n_threads, n_there=self.n_rows, spare=self._spare)
        return None if positions is None or limit is not None else rows.codes_held_out(spec, positions)

    def _evaluate_rows(
        self, batch: str, rows: StartingRows, name: str, spec: BuildSpec, size: LossMagnitude, with_block: bool
    ) -> None:
        """Add some rows of a batch to an evaluation set."""
        if any(rows.counts()):
            if with_block:
                self.rows_of(batch).gather()
            shared = self.codes_held_out(self.rows_of(batch), spec, rows.rows)
            self.eval_sets.add(
                name, rows, spec, spec.budget or self._spare, size=size, with_block=with_block, batch=batch, shared=shared
            )

    @remote()
    def evaluate(
        self, first: int, trees: Sequence[FitTree], metrics: dict[str, list[Any]], mark: int, n_cuts: int
    ) -> dict[str, tuple[int, list[list[Any]]]] | None:
        """Return, by set, the number of rows and the statistics of the metrics after the given trees.

        Return None if the scores lack trees before number `first`.

        trees : trees from number `first` on.
        mark : number of trees to which the model was truncated last, or may be truncated next; -1 for never.
        n_cuts : how often the model has been truncated.
        """
        return self.eval_sets.statistics(first, trees, metrics, mark, n_cuts)


def _leaves_in(flat: FlatEnsemble, values: np.ndarray, iteration: int) -> np.ndarray:
    """Return the leaves of rows in the trees of an iteration: int32[n_trees, n]."""
    return flat.leaves(values, (iteration, iteration + 1), 1).T
