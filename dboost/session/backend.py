"""The backend of a fit: where its rows are, and who trains on them.

The steps of a fit (`training.fit`) call it, from the first statistic to the last tree. `local_backend.LocalBackend` calls the
session of this process, `cluster.training.cluster_backend.ClusterBackend` the sessions of workers, which may be lost and
replaced. Nothing else in a fit asks where the rows are.

**Questions and changes.** Until the rows are encoded, a fit asks functions of them: ``backend.ask(class_counts, 3)`` returns
the answer of each session. A function is a method of `TableRows` or a function in the module of its subject, and is
pickled by its name. A change is such a function without an answer, ``backend.change(TableRows.encode_targets, target)``. It
must be idempotent, and is made again on rows that are read again. All sessions receive the same arguments, except for values of
each row (`row_samples.PerRow`).

**Training.** `build` encodes the rows. Then each iteration calls `grow` and `advance`; quantiles, trimming and
evaluation sets ask for more (`statistics`, `evaluate`). Results are sums of integers, maxima and minima, so they do not depend
on the sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, TypeVarTuple

import numpy as np

from dboost.data.tables.reading import GivenTable
from dboost.losses.gradient_stats import GradientStats
from dboost.losses.terms import LossTerms
from dboost.metrics.metric import MetricReduction
from dboost.rows.statistics import Statistic
from dboost.schema import Feature
from dboost.session.fit_records import BuildSpec, Chosen
from dboost.session.table_rows import TableRows
from dboost.session.target import TargetScan
from dboost.trees.fit_trees import GrownTree, TreesSoFar
from dboost.trees.tree_task import TreeTask

Answer = TypeVar("Answer")
Given = TypeVarTuple("Given")


class Backend(Protocol):
    """The rows of a fit, in the sessions of one or more processes."""

    # The table.

    @property
    def is_one_process(self) -> bool:
        """Whether all rows are in this process, so that metrics of their raw values can be computed."""

    @property
    def named(self) -> bool:
        """Whether the data have column names."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles that the rows have."""

    @property
    def n_kept(self) -> dict[int, int]:
        """Number of rows of positive weight of each partition, in order."""

    @property
    def unit_weights(self) -> bool:
        """Whether all weights are 1 (or 0)."""

    def load(self) -> tuple[Feature, ...]:
        """Read and validate the table, number its rows, and return its features. Must be called before any other method."""

    def target_scans(self) -> list[TargetScan]:
        """Return the target scans of all partitions."""

    def ask(self, question: Callable[[TableRows, *Given], Answer], *arguments: *Given) -> list[Answer]:
        """Return ``question(rows, *arguments)`` of the rows of each session."""

    def change(self, step: Callable[[TableRows, *Given], None], *arguments: *Given) -> None:
        """Change the rows in all sessions before their next call, and in sessions that read partitions again later."""

    def complete(self) -> None:
        """Make the changes now, so that their errors are raised here."""

    def set_trained(self, n_kept: dict[int, int], unit_weights: bool) -> None:
        """Set which rows are trained on, and number them: rows of each partition, and whether all weights are 1."""

    def propose(self, seed: int, columns: tuple[int, int], max_bins: int) -> list[np.ndarray]:
        """Return the split candidates of numeric columns from a sample of the rows (`TableRows.proposal_sample`)."""

    @property
    def most_rows(self) -> int:
        """Number of rows of positive weight in the session with the most rows."""

    # Training.

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight; with arcbites, of all bites."""

    def build(self, spec: BuildSpec, chosen: Chosen, trees: TreesSoFar) -> None:
        """Encode the rows, those chosen for evaluation sets first (number and largest weight by name).

        trees : to which `grow` adds, and which rows that are read again replay.
        """

    def load_eval_sets(self, chosen: Chosen, sets: Sequence[GivenTable]) -> None:
        """Load evaluation sets; those of chosen rows come first."""

    @property
    def eval_names(self) -> list[str]:
        """Names of the evaluation sets, in order."""

    def advance(self, values: np.ndarray, terms: LossTerms) -> GradientStats:
        """Add leaf values (float64[n_outputs, n_leaves]) of the last trees to the scores; compute gradients, Hessians and loss.

        terms : of the loss.
        """

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        """Grow a tree for each task, of different outputs, and add it to the trees of the fit."""

    def assign_leaves(self, iteration: int) -> None:
        """Assign rows to the leaves of the trees of an iteration of `BuildSpec.refit_model`, instead of growing trees."""

    def statistics(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the statistic of ranges of rows that together are all training rows."""

    def evaluate(self, metrics: Sequence[MetricReduction]) -> dict[str, float]:
        """Return the metrics of the evaluation sets with all trees, as ``{"<set>_<metric>": value}``."""

    def select(self, parts: Sequence[int]) -> None:
        """Train on some parts of the rows from now on (`BuildSpec.n_parts`), whose scores include all trees then."""

    def report(self) -> dict[str, float]:
        """Return statistics of the time since the last call, such as bytes read, for the history."""

    def observers(self, loss_name: str, n_features: int) -> list[Callable[[Any], Any]]:
        """Return callbacks that report the progress of the fit to the cluster."""

    def release(self) -> None:
        """Release the training rows, and threads."""

    def close(self) -> None:
        """Release threads, memory and files."""


def log_rows_in_files(n_rows: int, spec: BuildSpec) -> None:
    """Log how many training rows are in files."""
    how = "streamed from" if spec.n_parts is None else "divided into bites in"
    limit = "what Dask lets their workers have" if spec.budget is None else f"memory_limit={spec.budget}"
    logging.getLogger("dboost").info("%d rows do not fit %s and are %s files", n_rows, limit, how)
