"""The records in the calls of sessions and their answers.

`BuildSpec` and the other records are frozen. All sessions of a fit receive equal records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dboost.data.columns.binning import Binning
from dboost.errors import ParameterError
from dboost.losses.terms import LossTerms
from dboost.metrics.metric import LossMagnitude
from dboost.rows.row_sample import Sample
from dboost.rows.shard_spec import ShardSpec
from dboost.session.memory import Budget
from dboost.session.target import Target
from dboost.session.warm_start import WarmStart
from dboost.trees.fit_trees import FitTree

if TYPE_CHECKING:
    from dboost.model.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class RowIdRanges:
    """The global ids of the rows of a table: their positions among all rows of positive weight. Every session has them."""

    ranges: dict[int, tuple[int, int]]  # of each partition: id of its first row, and number of its rows
    n_rows: int  # of the whole table

    @classmethod
    def of(cls, n_kept: Mapping[int, int]) -> RowIdRanges:
        """Number the rows of partitions one after the other. n_kept : rows of positive weight of each partition, in order."""
        ends = np.cumsum([0, *n_kept.values()]).tolist()
        return cls({i: (start, n) for start, (i, n) in zip(ends, n_kept.items(), strict=False)}, ends[-1])

    def start(self, partition: int) -> int:
        """Return the id of the first row of a partition."""
        return self.ranges[partition][0]

    def are_of(self, rows: np.ndarray, partitions: Sequence[int]) -> np.ndarray:
        """Return which rows (int64[n], global ids) belong to these partitions, as bool[n]."""
        numbers = np.array(sorted(self.ranges), np.int64)
        starts = np.array([self.start(number) for number in numbers.tolist()], np.int64)
        # If some partitions are empty, several start at the same id; the row belongs to the last of them.
        return np.isin(numbers[np.searchsorted(starts, rows, "right") - 1], np.array(partitions, np.int64))


@dataclass(frozen=True, eq=False)
class BuildSpec:
    """Parameters for building shards and evaluation sets from the rows of a session; equal in all sessions of a fit."""

    shard_spec: ShardSpec
    binning: Binning
    target: Target  # loss and classes; contains no rows
    baseline: np.ndarray  # float64[n_outputs]
    warm_start: WarmStart  # the model whose trees are included in the first scores
    #: Approximate upper bounds of the loss of a row and of the error of a prediction, see `training.target_stats.TargetStats`;
    #: for each of `BaseLoss.parts`.
    magnitudes: tuple[tuple[float, float], ...]
    id_ranges: RowIdRanges = RowIdRanges({}, 0)  # set by the sessions: they may train on rows that they have not read
    budget: Budget | None = None  # bytes that the fit may add to the memory of each process
    n_parts: int | None = None  # into which arcbites divide the rows, see `bites`; None without arcbites
    seed: int = 0  # seed of the division into arcbites, and of the samples of a forest
    #: Whether rows may be stored in files without a `memory_limit`; False if trees propose their own bins.
    may_stream: bool = False
    #: Leaves that a pass over files may open in a tree; None for as many as the memory allows.
    leaves_per_pass: int | None = None
    #: Trees that grow at the same time in a process, of the folds that share codes (`rows.shared_codes`); None if the session
    #: knows it (`Session.use_threads`).
    n_growing: int | None = None
    unit: float = 1.0  # of targets and raw scores in shards, see `training.target_stats.TargetStats`
    subsample: float = 1.0  # of the trees of a forest, see `trees.tree_means`
    needs_values: bool = False  # whether a metric needs the raw values of evaluation sets
    #: The model whose leaf values are estimated again: rows keep their raw values instead of codes, see `refit_rows`.
    refit_model: Ensemble | None = None

    def streaming_budget(self, n_rows: int, n_threads: int, *, n_there: int = 0, spare: Budget | None = None) -> Budget | None:
        """Return the memory limit that `n_rows` more rows exceed, so that they must be in files; None if they may be in memory.

        n_there : number of rows that the session has already.
        spare : limit of a fit without a `memory_limit`: the memory that the process may use anyway. Rows whose trees need more
        are in memory nevertheless, because no limit was promised.

        Raises
        ------
        ParameterError
            If rows must be streamed and the histograms of a tree exceed the `memory_limit`.
        """
        limit = self.budget or (spare if self.may_stream else None)
        if limit is None or limit.holds_rows(self.shard_spec, n_rows + n_there, n_threads):
            return None
        if self.n_parts is None:  # otherwise trees grow on a bite in memory
            try:
                limit.histograms(self.shard_spec, n_rows, n_threads)
            except ParameterError:
                if self.budget is not None:
                    raise
                return None
        return limit

    def sample_of(self, iteration: int) -> Sample | None:
        """Return the sample of the trees of a forest's iteration, counted from 1 over all fits; None for all rows."""
        stored = self.warm_start.parameters_of(iteration)
        subsample, seed = (self.subsample, self.seed) if stored is None else (stored["subsample"], stored["random_state"])
        return Sample.of(subsample, seed, iteration)

    def earlier_iterations(self) -> tuple[int, list[tuple[FitTree, ...]]]:
        """Return the number of the first iteration that the model of the fit has grown from the same rows, and the trees of it
        and those after it.

        Raises
        ------
        ParameterError
            If the bins of the rows are not those of the trees.
        """
        model, first = self.warm_start.model, self.warm_start.n_of_other_rows
        if model is None:
            return first + 1, []
        k = model.trees_per_iteration
        trees: list[FitTree] = []
        for t in range(first * k, len(model.trees)):
            tree = model.trees[t]
            leaf_values = tree.value[tree.feature < 0].T / self.unit
            fit_tree = FitTree.of_model(tree, self.binning, leaf_values, model.outputs_of(t).start)
            if fit_tree is None:
                raise ParameterError(
                    "the forest to continue was grown with other bins, so its out-of-bag predictions are unknown: leave "
                    "max_bins and random_state as they were"
                )
            trees.append(fit_tree)
        return first + 1, [tuple(trees[i : i + k]) for i in range(0, len(trees), k)]

    def in_unit(self, values: np.ndarray) -> np.ndarray:
        """Return targets or raw scores as shards have them."""
        return values if self.unit == 1.0 else values / self.unit

    def loss_magnitude(self, max_weight: float, n_rows: int) -> LossMagnitude:
        """Return the magnitudes from which metrics derive the units of their exact sums over `n_rows` rows."""
        return LossMagnitude.of(self.magnitudes, max_weight, n_rows)


class SelectedRows(NamedTuple):
    """The rows that are trained on from now on: those of a bite, until the next one is selected."""

    parts: tuple[int, ...]  # of the rows, see `bites`
    n_advanced: int  # calls of `advance` before
    n_iterations: int  # that the fit had grown, and not cut back: the scores of the rows begin with these


class Advance(NamedTuple):
    """A call of `advance`."""

    number: int  # from 0
    terms: LossTerms  # of the loss


@dataclass(frozen=True, eq=False)
class ReplayState:
    """The training state that shards must replay if they are built after training has started."""

    advanced: Advance | None = None  # the last call
    iterations: tuple[tuple[FitTree, ...], ...] = ()  # the complete iterations
    pending: tuple[FitTree, ...] = ()  # trees of the current iteration, whose values are not added to the scores yet
    selected: SelectedRows | None = None  # None for all rows, and before the first bite is selected
    #: The new leaf values of the complete iterations of `BuildSpec.refit_model`, float64[n_outputs, n_leaves] each.
    refit_values: tuple[np.ndarray, ...] = ()
    refit_iteration: int = -1  # the iteration to whose leaves rows are assigned

    def since(self, selected: SelectedRows) -> ReplayState:
        """Return what has been trained since rows were selected, whose scores include all that was trained before."""
        is_new = self.advanced is None or self.advanced.number < selected.n_advanced
        iterations = self.iterations[selected.n_iterations :]
        return replace(self, advanced=None if is_new else self.advanced, iterations=iterations)


class RowPlaces(NamedTuple):
    """Where training rows are."""

    in_files: int  # rows of a batch in files
    most_in_memory: int  # rows that the session would keep in memory, of any batch, if its memory has a limit
    trees_per_pass: int = 1  # trees that may grow in the same passes over files


#: Number of rows and largest weight of the evaluation sets that are chosen from the training rows, by name.
Chosen = dict[str, tuple[int, float]]
