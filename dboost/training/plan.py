"""The part that every fit shares, wherever its rows are: from a prepared engine to a finished ensemble.

A fit first finds out what there is to learn (`fit.py` from a table in this process, `dboost.distributed` from partitions on
many), which ends in a `FitPlan` record and an engine. From there on nothing depends on where the rows lie.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from dboost.data.binning import Binning
from dboost.data.frame import is_path
from dboost.errors import FitInterrupted, InputTypeError, ParameterError
from dboost.kernels.histograms import BinLayout
from dboost.metrics.metric import Metric
from dboost.model import model_file as storage
from dboost.model.ensemble import Ensemble
from dboost.params import DEFAULT_ROUNDS, Parameters
from dboost.session.evaluation import EvalSet
from dboost.session.protocol import Engine
from dboost.session.reference_sample import ReferenceSample, warn_of_drift, with_summary
from dboost.session.row_selection import HELD_OUT
from dboost.session.target import Target
from dboost.session.warm_start import WarmStart
from dboost.shards.bin_layout import plan_layout
from dboost.training.arcbites import run_arcbites
from dboost.training.build_model import assemble
from dboost.training.callbacks import Callback, EarlyStopping, Progress
from dboost.training.checkpoint import Checkpoint
from dboost.training.constraints import directions_of, groups_of
from dboost.training.initial_score import TargetStats
from dboost.training.loop import BoostingLoop, growth_policy_of, max_weight_of, precision_of
from dboost.training.shrinkage import with_damped_steps
from dboost.trees.bin_proposal import bins_of
from dboost.trees.feature_sampling import feature_constraints_of
from dboost.trees.nodes import GrowthPolicy


@dataclass
class FitResult:
    """What a fit gives.

    Attributes
    ----------
    ensemble : Ensemble
    history : list of dict
        One record per iteration of this fit.
    before : dict
        Losses and metrics before the first of them.
    early_stopping : EarlyStopping or None
        The rule by which the fit was stopped, or could have been.
    timings : dict
        Seconds by phase: "load", "bin", "train".
    """

    ensemble: Ensemble
    history: list[dict[str, Any]]
    before: dict[str, float] = field(default_factory=dict)
    early_stopping: EarlyStopping | None = None
    timings: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class FitPlan:
    """What is known before the first tree.

    Attributes
    ----------
    parameters : Parameters
        With the loss's own name.
    target : Target
        With the loss as it has come to know the rows.
    named : bool
        Whether the features' names are the user's.
    binning : Binning
    start : Start
    n_rows : int
        Rows to train on.
    weighted : bool
        False when all weights are 1.
    metrics : list of Metric
    stopping : EarlyStopping or None
    warm_start : Origin
        Where the fit begins.
    checkpoint : Checkpoint or None
        Where it is written down.
    source_name : str or None
        What the user calls the data.
    portrait : ReferenceSample or None
        Some of the rows, of which a summary is kept in the model.

    `learning` is what the trees are grown with: the parameters, damped where a model is continued.
    """

    parameters: Parameters
    target: Target
    named: bool
    binning: Binning
    start: TargetStats
    n_rows: int
    weighted: bool
    metrics: Sequence[Metric]
    stopping: EarlyStopping | None
    warm_start: WarmStart
    checkpoint: Checkpoint | None = None
    source_name: str | None = None
    portrait: ReferenceSample | None = None

    def __post_init__(self) -> None:
        self.target = replace(self.target, loss=self.start.loss)
        self.layout: BinLayout = plan_layout(self.binning.n_bins, self.binning.is_categorical)
        n_bins = bins_of(self.parameters, self.layout.n_bins, self.binning.is_categorical)
        #: Of the bins that trees grow by, see `trees.bin_proposal`.
        self.bin_layout: BinLayout = plan_layout(n_bins, self.binning.is_categorical)
        self.rule: GrowthPolicy = growth_policy_of(self.parameters, self.n_rows)
        features = self.binning.features
        self.direction = directions_of(self.parameters, features, self.target.loss)
        self.learning = self.parameters
        if self.warm_start.damps and self.start.unexplained is not None:
            self.learning = with_damped_steps(self.parameters, self.start.unexplained)
        self.choice = feature_constraints_of(self.parameters.max_features, groups_of(self.parameters, features), len(features))

    @property
    def notes(self) -> dict[str, Any]:
        """What the record of the source says besides counts and parameters."""
        notes: dict[str, Any] = {"label": self.source_name}
        if self.warm_start.is_new_source:
            share = self.start.unexplained
            notes["unexplained_loss"] = share if share is not None and math.isfinite(share) else None
            notes["steps"] = {name: getattr(self.learning, name) for name in ("learning_rate", "l2_regularization")}
        return notes

    @property
    def baseline(self) -> np.ndarray:
        """Where raw scores start: float64[n_outputs]."""
        return self.start.baseline if self.warm_start.model is None else self.warm_start.model.baseline

    @property
    def max_weight(self) -> int | None:
        """How often a row counts at most, see `trainer.max_weight_of`."""
        return max_weight_of(self.start, self.parameters, self.target.loss.constant_hessian or self.weights_as_hessian)

    @property
    def constant_hessian(self) -> bool:
        return (self.target.loss.constant_hessian or self.weights_as_hessian) and self.max_weight is not None

    @property
    def weights_as_hessian(self) -> bool:
        """Whether weights take the place of Hessians when trees are grown, and Hessians are needed as well."""
        return self.parameters.criterion == "gradient" and not self.target.loss.constant_hessian

    @property
    def is_identity_bin_map(self) -> np.ndarray:
        """Of each feature, whether trees grow by its cells themselves: bool[n_features]."""
        return self.layout.n_bins == self.bin_layout.n_bins

    @property
    def n_channels(self) -> int:
        return precision_of(self.parameters, self.constant_hessian, self.max_weight or 1).n_channels

    @property
    def empty(self) -> Ensemble:
        """The ensemble before its first tree."""
        target = self.target
        return Ensemble(
            features=self.binning.features,
            named=self.named,
            loss=target.loss.to_dict(),
            classes=target.classes,
            classes_dtype=target.classes_dtype,
            baseline=self.baseline,
            # Cells may be very many; what trees are cut by is in the trees.
            edges=self.binning.edges if self.parameters.split_proposal == "global" else (),
            parameters=self.parameters.to_dict(),
        )


def boost(
    prepared: FitPlan,
    engine: Engine,
    eval_sets: Sequence[EvalSet],
    *,
    callbacks: Sequence[Callback],
    progress: bool | None,
    clock: Clock,
    ensemble_so_far: list[Callable[[], Ensemble]],
) -> FitResult:
    """Run the boosting loop.

    ensemble_so_far : receives a function that returns the ensemble as far as it has come, also of an iteration under way.
    """
    start, warm_start, stopping, loss = prepared.start, prepared.warm_start, prepared.stopping, prepared.target.loss
    storage.check(prepared.empty)  # now rather than after hours of training
    training = BoostingLoop(
        engine=engine,
        binning=prepared.binning,
        parameters=prepared.learning,
        constant_hessian=prepared.constant_hessian,
        start=start,
        rule=prepared.rule,
        max_weight=prepared.max_weight,
        layouts=(prepared.layout, prepared.bin_layout),
        choice=prepared.choice,
        direction=prepared.direction,
        eval_sets=eval_sets,
        metrics=prepared.metrics,
        early_stopping=stopping,
        callbacks=callbacks,
        loss=loss,
        warm_start=warm_start,
        empty=prepared.empty,
        checkpoint=prepared.checkpoint,
    )
    if stopping is not None and warm_start.model is not None and not (warm_start.is_new_source or warm_start.resumes):
        stopping.resume(warm_start.model)
    collect = partial(assemble, prepared.empty, training, prepared.n_rows, warm_start, prepared.notes)
    ensemble_so_far.append(partial(collect, whole=True))
    bar = Progress(progress, training.n_iterations)
    if warm_start.is_new_source and warm_start.model is not None and prepared.portrait is not None and not warm_start.resumes:
        warn_of_drift(warm_start.model, prepared.portrait, prepared.parameters, prepared.learning)
    try:
        if prepared.parameters.arcbites is None:
            training.run(collect, bar)
        else:
            run_arcbites(training, prepared.parameters.arcbites, collect, bar)
    except KeyboardInterrupt as stopped:
        done, kept = training.n_done, ""
        if prepared.checkpoint is not None:
            kept = f"; the checkpoint in {prepared.checkpoint.place} holds {prepared.checkpoint.n_iterations} of this fit"
        model = with_summary(collect(), prepared.portrait) if done else None
        raise FitInterrupted(f"interrupted after {done} of {training.n_iterations} iterations{kept}", model, done) from stopped
    finally:
        bar.close()
        engine.close()
    clock.lap("train")
    all_here = prepared.checkpoint is None or prepared.parameters.arcbites is not None
    history = training.history if all_here or prepared.checkpoint is None else prepared.checkpoint.history
    ensemble = with_summary(collect(), prepared.portrait)
    # What could be saved but not be loaded is no model.
    storage.check(ensemble, n_known=0 if warm_start.model is None else len(warm_start.model.trees))
    return FitResult(ensemble, history, training.before, stopping, clock.seconds)


def requested(
    parameters: Parameters,
    warm_start: WarmStart,
    sets: Sequence[tuple[str, Any, Any, Any, Any]],
    metrics: Sequence[Metric],
    stopping: EarlyStopping | None,
) -> dict[str, Any]:
    """What a fit was asked for, for its checkpoint, by names that stay. How many iterations that is may change."""
    told = {name: value for name, value in parameters.to_dict().items() if name != "max_iter"}
    return told | {
        "start_from": None if warm_start.model is None else storage.digest(warm_start.model),
        "continue_bins": "kept" if warm_start.keeps_bins else "new",
        "continue_steps": "damped" if warm_start.damps else "full",
        "eval_set": [name for name, *_ in sets],
        "eval_metric": [metric.name for metric in metrics],
        "early_stopping": None if stopping is None else stopping.rule,
    }


def stopping_rule(
    parameters: Parameters,
    given: EarlyStopping | None,
    sets: Sequence[tuple[str, Any, Any, Any, Any]],
    metrics: Sequence[Metric],
) -> EarlyStopping | None:
    """The rule that was given, or by the last metric of the last evaluation set (of the rows held out where there is none).

    Raises
    ------
    ParameterError
        When arcbites would be judged by the rows that are trained on, which are others all the time.
    """
    arcbites, rounds = parameters.arcbites, rounds_of(parameters)
    if given is None:
        if rounds is None:
            return None
        column = f"{sets[-1][0] if sets else HELD_OUT}_{metrics[-1].name}"
        return EarlyStopping(column, rounds, larger_is_better=metrics[-1].larger_is_better)
    if arcbites is not None and given.column == "train_loss":
        raise ParameterError("arcbites cannot be stopped by the training loss, which is always another bite's: hold rows out")
    if arcbites is not None and arcbites.early_stopping_rounds is not None:
        return given.waiting(arcbites.early_stopping_rounds)
    return given


def rounds_of(parameters: Parameters) -> int | None:
    """Iterations without improvement to wait for; None when nobody waits."""
    arcbites = parameters.arcbites
    if arcbites is None or not arcbites.is_watched:
        return parameters.early_stopping_rounds
    return arcbites.early_stopping_rounds or parameters.early_stopping_rounds or DEFAULT_ROUNDS


def check_early_stopping(parameters: Parameters, sets: Sequence[Any]) -> None:
    """Refuse to stop early where there is nothing to judge by, and nothing will be held out."""
    holds_out = parameters.arcbites is not None and parameters.arcbites.is_watched
    if parameters.early_stopping_rounds is not None and not sets and not holds_out:
        raise ParameterError("early_stopping_rounds needs an eval_set to judge by")


def check_bites(parameters: Parameters, warm_start: WarmStart) -> None:
    """Refuse a warm start where arcbites stopped: which bite comes next, and what it has been cut back from, is in no model."""
    if parameters.arcbites is not None and warm_start.model is not None and not warm_start.is_new_source:
        raise ParameterError("arcbites do not go together with a warm start: leave one of them out")


def with_columns(
    sets: Sequence[tuple[str, Any, Any, Any, Any]], target_name: Any, weight_name: Any, offset_name: Any
) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """The same with the names of the columns that hold target, weight and offset, where a set is a table."""
    for name, data, target, weight, offset in sets:
        if target is None:
            if not isinstance(target_name, str):
                raise ParameterError(
                    f"evaluation set {name!r} is a table without a target: give (X, y), or name the target column in fit"
                )
            target = target_name
            weight = weight_name if isinstance(weight_name, str) and weight is None else weight
        if offset is None and offset_name is not None:
            if not (isinstance(offset_name, str) and (is_path(data) or hasattr(data, "columns"))):
                raise ParameterError(
                    f"evaluation set {name!r} has no offsets, but the training data have: give (X, y, weight, offset), with "
                    "None for no weight, or name a column of both in fit"
                )
            offset = offset_name
        yield name, data, target, weight, offset


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Callbacks as a tuple; a mistake is noticed before the first iteration, not after it."""
    found = (callbacks,) if callable(callbacks) else tuple(callbacks or ())
    for callback in found:
        if not callable(callback):
            raise InputTypeError(f"a callback must be a function of an Iteration, not {type(callback).__name__}")
    return found


@contextmanager
def interruptible_reading() -> Iterator[None]:
    """^C while data are read is a `FitInterrupted` as well."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise FitInterrupted("interrupted while reading the data, before the first iteration", None, 0) from stopped


class Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now
