"""The calls of a session, and the table whose sessions are called.

Everything that happens to rows is a method of `Session`: one session does the work of one process for one fit. A `SessionTable`
calls methods of all sessions with rows of a table and returns their results, which the coordinator merges
(`training.fit.SessionRows`). A fit in this process has one session, which `training.fit.LocalTable` calls directly. On a
cluster the calls are messages to workers, which may be lost and replaced (`distributed.partitioned_table`). A message names a
method of `Session`, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from dboost.data.binning import Sample
from dboost.data.eval_tables import EvalTable
from dboost.metrics.metric import LossMagnitude
from dboost.schema import Feature
from dboost.session.batch_rows import BatchRows
from dboost.session.calls import (
    BiteVisit,
    BuildSpec,
    Calls,
    Chosen,
    FeatureSearch,
    PartitionStats,
    ReplayState,
    RowPlaces,
)
from dboost.session.encoded_rows import HandedRows
from dboost.session.evaluation import SessionEvalSets
from dboost.session.target import TargetScan
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.statistics import Statistic
from dboost.trees.grower import RoundHistograms, RoundRequest
from dboost.trees.split_finder import PackedSplits
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask

Result = TypeVar("Result")
#: Returns the function that a session calls with the rows of a batch (see `batch_rows`), given the partitions of the batch.
ByPartitions = Callable[[Sequence[int]], Callable[[BatchRows], Result]]


def name_of(function: Callable[[BatchRows], Any]) -> str:
    """Return the name of a function of rows, for messages."""
    named: Any = function.func if isinstance(function, partial) else function
    return str(named.__name__)


class Session(Protocol):
    """The work of one process for one fit. Every method is idempotent: after a failure it is called again and returns the same.

    A *batch* is a table, or those partitions of a table that a session has read together.
    """

    # Tables, before shards are built from them.

    def attach(self, batch: str, role: str, values: dict[int, Any], /) -> None:
        """Store a role of partitions, if the user passed one array for all rows."""

    def scan_partitions(self, batch: str, numbers: Sequence[int], /) -> PartitionStats:
        """Return statistics of the listed partitions of a batch, and drop the others."""

    def set_features(self, batch: str, features: tuple[Feature, ...], named: bool, /) -> None:
        """Convert a batch to a table with these features."""

    def apply(self, batch: str, step: Callable[[BatchRows], None], /) -> None:
        """Change the rows of a batch. step : an idempotent function of a module, or a `partial` of one."""

    def read(self, batch: str, function: Callable[[BatchRows], Result], /) -> Result:
        """Return the result of a function of the rows of a batch; it is a function of a module, or a `partial` of one."""

    def draw_sample(
        self, draws: Sequence[tuple[str, Callable[[BatchRows], Sample]]], bounds: Sequence[int], own: int | None, /
    ) -> tuple[list[Sample], Sample]:
        """Draw rows of some batches; return the ranges of their columns for other sessions, and range `own`.

        A message calls it with a `ProposalOrder` instead of the range, and is answered with the split candidates of the columns
        that the session owns (`distributed.sample_exchange`).
        """

    def propose(self, kept: Sample, received: Sequence[Sample], max_bins: int, /) -> list[np.ndarray]:
        """Return the split candidates of the own range of columns. received : from the other sessions."""

    # Rows of a host.

    def use_threads(self, n_threads: int, n_growing: int | None = None, /) -> None:
        """Work with another number of threads from now on.

        n_growing : trees of all folds that grow at the same time in this process.
        """

    def hand_over(self, batch: str, spec: BuildSpec, n_parts: int, n_threads: int | None, n_rows: int, /) -> list[HandedRows]:
        """Encode a batch that is not built yet; return its rows and evaluation rows in `n_parts` messages.

        A message calls it with a `HandOver` instead of the numbers, and is answered when the rows have been sent or received
        (`distributed.host_sessions`).
        """

    def receive(self, batch: str, messages: Sequence[HandedRows], /) -> None:
        """Store what other sessions have sent, until `accept`."""

    def accept(self, batch: str, numbers: Sequence[int], /) -> None:
        """Add the rows that were received of these partitions to the own ones, and drop those of others."""

    # Shards and evaluation sets.

    def build(self, batch: str, spec: BuildSpec, past: ReplayState, /) -> RowPlaces:
        """Build shards from a table, and replay the trees so far; return where the rows are."""

    def hold_out(self, batch: str, name: str, spec: BuildSpec, size: LossMagnitude, with_block: bool, chosen: bool, /) -> int:
        """Add rows to an evaluation set: all rows of a batch, or those that were chosen for the set from a training table.

        Return how many evaluation rows of the batch are in files.
        """

    def keep_only(self, batch: str, numbers: Sequence[int], /) -> None:
        """Drop the rows of all other partitions of a batch."""

    # Training.

    def switch_bite(self, visit: BiteVisit, first: int, iterations: Sequence[Sequence[TreeDelta]], applied: int, /) -> bool:
        """Switch to a bite; return False if the session lacks iterations before number `first`."""

    def update_scores(
        self, iteration: int, values: np.ndarray, terms: tuple, /
    ) -> tuple[GradientStats | None, float, int, int]:
        """Add leaf values to the scores; return gradient statistics, seconds, bytes read and the number of training rows."""

    def grow_trees(self, tasks: Sequence[TreeTask], /) -> tuple[list[GrownTree], int, float] | None:
        """Grow trees in the session that has all rows; return them, the number of training rows, and the seconds.

        None if its rows are not one shard in memory: then trees are grown in rounds.
        """

    def round_histograms(
        self, tasks: Sequence[TreeTask], requests: dict[int, RoundRequest], /
    ) -> tuple[dict[int, RoundHistograms], int, float]:
        """Return the histograms of a round by output, the number of training rows, and the seconds.

        tasks : trees to start, which replace all earlier ones; empty to continue.
        requests : by the output of the tree.
        """

    def histogram_slices(
        self, requests: dict[int, RoundRequest], search: FeatureSearch, /
    ) -> tuple[dict[int, RoundHistograms], list[bytes], int, float]:
        """Return the row counts of a round by output, and its histograms as packed slices.

        The last items are the number of training rows, and the seconds.
        """

    def add_slices(self, slices: Sequence[bytes], /) -> tuple[bytes, float]:
        """Return the packed sum of slices of the same features, and the seconds."""

    def search_slices(self, k: int, slices: Sequence[bytes], /) -> tuple[dict[int, PackedSplits], float]:
        """Return the best splits of the features of slice `k` by output, and the seconds. slices : they are added up."""

    def assign_leaves(self, iteration: int, /) -> None:
        """Assign rows to the leaves of the trees of an iteration of `BuildSpec.given`, instead of growing trees."""

    def shard_statistics(self, statistic: Statistic, arguments: tuple[Any, ...], /) -> list[Any]:
        """Return the statistic of every shard."""

    def evaluate(
        self, first: int, trees: Sequence[TreeDelta], metrics: dict[str, list[Any]], mark: int, n_cuts: int, /
    ) -> dict[str, tuple[int, list[list[Any]]]] | None:
        """Return rows and metric statistics of each evaluation set after these trees; None if earlier trees are missing."""


#: Names of a session's methods. A message may call no others.
SESSION_METHODS = frozenset(name for name in vars(Session) if not name.startswith("_"))


class SessionTable(Protocol):
    """A table of a fit whose rows are in sessions."""

    def load(self) -> tuple[Feature, ...]:
        """Read and validate the table, and return its features. Must be called before any other method."""

    @property
    def named(self) -> bool:
        """Whether the data have column names."""

    @property
    def n_kept(self) -> dict[int, int]:
        """Number of rows of positive weight of each partition, in order."""

    @property
    def unit_weights(self) -> bool:
        """Whether all weights are 1 (or 0)."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles that the rows have."""

    def target_scans(self) -> list[TargetScan]:
        """Return the target scans of all partitions."""

    def read(self, function: ByPartitions[Result]) -> list[Result]:
        """Return the result of a function of the rows of each session."""

    def propose(self, draw: ByPartitions[Sample], n_columns: int, max_bins: int) -> list[np.ndarray]:
        """Return the split candidates of columns. draw : returns the sampled values of a session."""

    def apply(self, step: ByPartitions[None]) -> None:
        """Change the rows in all sessions before their next call, and in sessions that read partitions again later."""

    def complete(self) -> None:
        """Make the changes of `apply` now, so that their errors are raised here."""

    def note_assigned(self, n_kept: dict[int, int], unit_weights: bool) -> None:
        """Store the number of training rows of each partition, and whether all weights are 1."""

    def most_rows(self) -> int:
        """Return the number of rows of positive weight in the session with the most rows."""

    def refuse_values(self, name: str) -> None:
        """Raise ParameterError if a metric that needs the raw values of all rows cannot be computed."""

    def open_calls(self, spec: BuildSpec) -> Calls:
        """Build the shards, and return the calls that train on them."""

    def eval_sets(self, spec: BuildSpec, chosen: Chosen, sets: Sequence[EvalTable], *, with_block: bool) -> SessionEvalSets:
        """Return the evaluation sets: those of chosen rows (number and largest weight by name), then the given ones."""

    def hold_out_chosen(self, spec: BuildSpec, chosen: Chosen, *, with_block: bool) -> None:
        """Build evaluation sets from the chosen rows; must be called before the shards are built."""

    def observers(self, loss_name: str, n_rows: int, n_features: int) -> list[Callable[[Any], Any]]:
        """Return callbacks that report the progress of the fit to the cluster."""

    def close(self) -> None:
        """Release threads, memory and files."""
