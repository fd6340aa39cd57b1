"""The user's settings of a fit, checked before any data are read."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from dboost.data import ReadOptions
from dboost.data.tables.eval_tables import eval_tables
from dboost.data.tables.reading import GivenTable
from dboost.errors import DataError, InputTypeError, ParameterError
from dboost.kernels.threads import available_threads
from dboost.losses import BaseLoss
from dboost.metrics.named import names_of
from dboost.model.ensemble import Ensemble
from dboost.params import EarlyStopping, Parameters, is_of_groups, make_parameters
from dboost.schema import Level
from dboost.session.memory import Budget, TreeNeeds, check_proposal
from dboost.session.row_samples import HELD_OUT, FoldRows
from dboost.session.target import Target
from dboost.session.warm_start import COLD_START, WarmStart, checked_source_name
from dboost.training.binned_data import DatasetDescription
from dboost.training.callbacks import Callback, RecordOf, rounds_of_rule
from dboost.training.checkpoint import Checkpoint, checkpoint_in
from dboost.training.history import check_columns
from dboost.training.learning_rates import LearningRates, schedule_of
from dboost.training.progress import Progress
from dboost.training.validation_rows import ValidationPlan
from dboost.trees.tree_task import GrowthPolicy

#: Called with the number of rows of positive weight (of each class, or one number for regression), the target (without rows),
#: and a function that returns the ensemble grown so far.
MakeValidationPlan = Callable[[Sequence[int], Target, Callable[[], Ensemble]], ValidationPlan]


@dataclass(frozen=True, eq=False)
class Fold:
    """A fold of a cross-validation."""

    rows: FoldRows
    pooled: RecordOf  # returns the record by which all folds are stopped early, instead of the fold's own
    past: tuple[dict[str, Any], ...] = ()  # records of the iterations of the model that is continued, if one is
    n_growing: int = 1  # trees of all folds that grow at the same time in this process
    #: Held while rows are loaded in this process, so that few folds load at the same time.
    loading: AbstractContextManager[Any] = field(default_factory=nullcontext)


@dataclass(frozen=True, eq=False)
class FitRequest:
    """The user's settings of a fit, before any data are read."""

    parameters: Parameters
    n_threads: int
    eval_sets: tuple[GivenTable, ...] = ()
    eval_metric: Any = None
    #: Roles of the training table as the user gave them, by name.
    roles: Mapping[str, Any] = field(default_factory=dict)
    callbacks: tuple[Callback, ...] = ()
    progress: Progress = field(default_factory=partial(Progress, False))
    make_validation_plan: MakeValidationPlan | None = None
    #: Share or number of the rows that `make_validation_plan` holds out for `dboost.fit`; None if it does not.
    validation_fraction: float | int | None = None
    warm_start: WarmStart = COLD_START
    checkpoint: Checkpoint | None = None
    source_name: str | None = None
    classes: tuple[Level, ...] | None = None  # all possible classes; default: those in the target
    budget: Budget | None = None  # memory that the fit may use in each process
    early_stopping: EarlyStopping | None = None  # beside `Parameters.early_stopping_rounds`, which are its rounds
    learning_rates: LearningRates | None = None  # of the iterations; default: `Parameters.learning_rate`
    workers: Any = None  # the workers of a cluster that may take part, see `cluster.client.worker_choice`
    keep_summary: bool = True  # whether the model contains counts, categories without use and a summary of the rows
    time_limit: float | None = None  # seconds from `began` after which no iteration begins
    fold: Fold | None = None  # the fold of a cross-validation that is fitted
    binned: DatasetDescription | None = None  # of rows that are binned already
    n_at_once: int = 1  # number of fits that run at the same time, of which this is one
    watch: Any = None  # the `fit.Watch` of a call with two fits; default: the fit has its own
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(
        cls,
        learning: dict[str, Any],
        *,
        n_threads: int | None = None,
        eval_set: Any = None,
        callbacks: Any = (),
        early_stopping: EarlyStopping | None = None,
        memory_limit: Any = None,
        time_limit: Any = None,
        checkpoint: Any = None,
        checkpoint_every: Any = 10,
        **settings: Any,
    ) -> FitRequest:
        """Return the request for keywords of `dboost.fit`, which it checks.

        Parameters
        ----------
        learning : dict
            Parameters of learning, by their canonical names.
        n_threads, eval_set, callbacks, early_stopping, memory_limit, time_limit, checkpoint, checkpoint_every
            As in `dboost.fit`.
        **settings
            Other fields; ``progress`` as in `dboost.fit`, default False.
        """
        learning = {**learning}  # the folds of a cross-validation have the same one
        if early_stopping is not None:
            learning |= rounds_of_rule(early_stopping, learning)
        learning_rates = schedule_of(learning)
        parameters, threads = make_parameters(learning), available_threads(n_threads)
        if memory_limit is not None:
            settings["budget"] = Budget.of(memory_limit, tree_needs(parameters, threads))
        if checkpoint is not None or not isinstance(checkpoint_every, int) or checkpoint_every != 10:  # 10.0 is an error
            settings["checkpoint"] = checkpoint_in(checkpoint, checkpoint_every)
        return cls(
            parameters,
            threads,
            eval_sets=() if eval_set is None else eval_tables(eval_set, settings["roles"]),
            callbacks=checked_callbacks(callbacks),
            early_stopping=early_stopping,
            learning_rates=learning_rates,
            time_limit=parse_time_limit(time_limit),
            progress=Progress(settings.pop("progress", False)),
            **settings,
        )

    @property
    def read_options(self) -> ReadOptions:
        """How a table is read in this process."""
        options = ReadOptions(self.n_threads) if self.budget is None else self.budget.read_options
        return replace(options, count=self.progress.count)

    def __post_init__(self) -> None:
        _check_early_stopping(self)
        checked_source_name(self.source_name)
        if self.eval_sets or self.eval_metric is not None:
            sets = [*([] if self.validation_fraction is None else [HELD_OUT]), *(eval_set.name for eval_set in self.eval_sets)]
            check_columns(sets, names_of(self.eval_metric, self.parameters.loss_name))
        if not isinstance(self.keep_summary, bool):
            raise ParameterError(f"keep_summary={self.keep_summary!r} must be True or False")
        if self.parameters.arcbites is not None and self.warm_start.model is not None and not self.warm_start.is_new_source:
            # The model does not contain the next bite and the iterations that were cut back.
            raise ParameterError("arcbites do not go together with a warm start: leave one of them out")
        if self.budget is not None:
            check_proposal(self.parameters)
        if self.parameters.is_forest and self.learning_rates is not None:
            raise ParameterError("learning_rate is for boosting: the trees of a forest are averaged, leave it out")


def _check_early_stopping(request: FitRequest) -> None:
    """Raise ParameterError for early stopping without an evaluation set and without held-out rows."""
    parameters = request.parameters
    holds_out = request.fold is not None or request.validation_fraction is not None
    holds_out = holds_out or (parameters.arcbites is not None and parameters.arcbites.is_watched) or parameters.has_out_of_bag
    if parameters.early_stopping_rounds is not None and not request.eval_sets and not holds_out:
        raise ParameterError("early_stopping_rounds needs an eval_set, or validation_fraction")


def tree_needs(parameters: Parameters, n_threads: int) -> TreeNeeds:
    """Return what decides the histograms of a fit on enough rows."""
    leaves = GrowthPolicy.of(parameters, 1 << 62).max_leaves
    return TreeNeeds(leaves, parameters.min_samples_leaf, parameters.max_bins, n_threads)


def parse_time_limit(limit: Any) -> float | None:
    """Return a time limit in seconds.

    Raises
    ------
    ParameterError
        If it is neither a positive number nor a duration.
    """
    if limit is None:
        return None
    seconds = limit
    if isinstance(limit, str):
        from dask.utils import parse_timedelta  # importing it takes time that most fits need not spend

        try:
            seconds = parse_timedelta(limit.replace("min", "m") if limit.strip().endswith("min") else limit)
        except (KeyError, ValueError):
            seconds = None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ParameterError(f'time_limit={limit!r} must be a positive number of seconds or a duration, such as "10min"')
    return float(seconds)


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return callbacks as a tuple; none for None.

    Raises
    ------
    InputTypeError
        For a callback that is not callable.
    """
    if callbacks is None:
        return ()
    checked = (callbacks,) if callable(callbacks) or not np.iterable(callbacks) else tuple(callbacks)
    for callback in checked:
        if not callable(callback):
            where = "; give early_stopping=dboost.EarlyStopping(…)" if isinstance(callback, EarlyStopping) else ""
            raise InputTypeError(f"a callback must be a function of an Iteration, not {type(callback).__name__}{where}")
        if not _takes_one_argument(callback):
            raise InputTypeError(
                "a callback is called with one argument, a dboost.Iteration, which "
                f"{getattr(callback, '__name__', type(callback).__name__)}{inspect.signature(callback)} does not take"
            )
    return checked


def _takes_one_argument(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # of a function whose signature is unknown
        return True
    return True


def check_group(parameters: Parameters) -> None:
    """Raise a ParameterError if nothing in a fit depends on groups of rows."""
    if not parameters.draws_rows and not is_of_groups(parameters.loss):
        raise ParameterError(
            "group has no effect on this fit, because no rows are drawn: give subsample or arcbites too, or give group to "
            "dboost.cv or dboost.prepare"
        )


def check_loss_of_groups(request: FitRequest, parameters: Parameters, loss: BaseLoss, roles: Sequence[str]) -> None:
    """Raise an error if rows have no groups, which the loss needs, or if losses of single rows would be needed.

    roles : of the training rows.
    """
    role = loss.targets.groups
    if role not in roles:
        raise DataError(f"loss={loss.name!r} compares the rows of a group, but the rows have none: give {role}=")
    uses = {
        "an offset": "offset" in roles,
        "a model to continue": request.warm_start.model is not None,
        "evaluation sets": bool(request.eval_sets) or request.make_validation_plan is not None,
        "folds": request.fold is not None,
        "arcbites": parameters.arcbites is not None,
        "step='line_search'": parameters.step == "line_search",
    }
    for use, is_used in uses.items():
        if is_used:
            raise ParameterError(f"loss={loss.name!r} depends on whole groups of rows, and does not go together with {use}")
