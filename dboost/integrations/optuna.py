"""Optuna: pruning of trials while dboost trains, and searches that read and bin the data once.

>>> from dboost.integrations.optuna import PruningCallback, tune               # doctest: +SKIP
>>> dboost.fit(frame, "y", eval_set=test, callbacks=[PruningCallback(trial, "eval_auc")])    # doctest: +SKIP
>>> study = tune(frame, {"learning_rate": FloatDistribution(0.01, 0.3, log=True)}, target="y")    # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from dboost.cross_validation import CVResult, DataOptions, FoldOptions, FoldSettings, cross_validate, folded, target_of
from dboost.data import CategoryColumn, Column
from dboost.errors import DataError, FitInterrupted, InputTypeError, MissingExtraError, ParameterError
from dboost.params import ALIASES, EarlyStopping, Parameters, canonical, make_parameters
from dboost.session.memory import parse_memory_limit
from dboost.training.callbacks import Callback, Iteration
from dboost.training.dataset_rows import LocalRows
from dboost.training.fit import available_threads
from dboost.training.folds import metric_names
from dboost.training.plan import parse_time_limit
from dboost.training.prepared_dataset import describe

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise MissingExtraError("optuna is not installed; it comes with the extra: pip install 'dboost[optuna]'") from error

#: Called after each trial with the study and the trial; the result True ends the study.
AfterTrial = Callable[[optuna.Study, FrozenTrial], Any]

#: Attributes of trials and of the study. A trial that repeats an interrupted one has the number of that one.
REPEATS, INTERRUPTED, ERROR, SETTINGS, FEATURES = "repeats", "interrupted", "error", "dboost", "features"
#: Attributes of the trials of successive halving: first place and number of trials of the bracket, and place of the trial; and
#: a `_Stage` for each stage that has ended.
BRACKET, STAGES = "bracket", "stages"


class PruningCallback:
    """A callback that reports a metric of every iteration to a trial, and ends the fit if the trial is to be pruned.

    Parameters
    ----------
    trial : optuna.trial.Trial
    metric : str
        A column of `Booster.history` such as "eval_roc_auc" or "train_loss"; "roc_auc" alone means that of an evaluation set
        without a name, and in `dboost.cv` the mean over the folds. The study's direction must be that of the metric.
    every : int, default 1
        Report each iteration whose number is a multiple of this.

    Raises
    ------
    optuna.TrialPruned
        From the fit, when the study's pruner decides so. Workers of a cluster release the rows of the fit.
    ParameterError
        From the fit, in its first iteration: there is no such metric.

    Examples
    --------
    >>> def objective(trial):
    ...     rate = trial.suggest_float("learning_rate", 0.01, 0.3, log=True)
    ...     callback = PruningCallback(trial, "eval_log_loss")
    ...     booster = dboost.fit(train, "y", eval_set=test, learning_rate=rate, callbacks=[callback])
    ...     return booster.history["eval_log_loss"].min()
    """

    def __init__(self, trial: optuna.trial.BaseTrial, metric: str, every: int = 1) -> None:
        if not hasattr(trial, "should_prune"):
            raise InputTypeError(f"trial must be a trial of optuna, not {type(trial).__name__}")
        if not isinstance(metric, str):
            raise InputTypeError(f"metric must be the name of a metric, not {type(metric).__name__}")
        if not isinstance(every, int) or every < 1:
            raise ParameterError(f"every={every!r} must be a number of iterations, at least 1")
        self._trial, self._metric, self._every = trial, metric, every

    def __call__(self, iteration: Iteration) -> None:
        """Report the metric of an iteration; raise `optuna.TrialPruned` if the pruner decides so."""
        column = self._column(iteration.record)
        if iteration.iteration % self._every:
            return
        self._trial.report(float(iteration.record[column]), step=iteration.iteration)
        if self._trial.should_prune():
            raise optuna.TrialPruned(f"pruned after iteration {iteration.iteration}")

    def _column(self, record: dict[str, Any]) -> str:
        """Return the column of the history that has the metric."""
        for name in (self._metric, f"eval_{self._metric}", f"validation_{self._metric}"):
            if name in record:
                return name
        raise ParameterError(f"there is no metric {self._metric!r}: give one of the columns {', '.join(map(repr, record))}")


def tune(
    data: Any,
    space: Mapping[str, optuna.distributions.BaseDistribution],
    *,
    target: Any = ...,
    trials: int = 50,
    time_limit: float | str | None = None,
    folds: Any = 5,
    groups: Any = None,
    time: Any = None,
    repeats: int = 1,
    metric: Any = None,
    at_once: int | None = None,
    storage: Any = None,
    halving: int | None = None,
    min_iterations: int | None = None,
    sampler: optuna.samplers.BaseSampler | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
    callbacks: Sequence[AfterTrial] = (),
    sample_weight: Any = None,
    offset: Any = None,
    features: Sequence[str] | None = None,
    categorical_features: Any = "from_dtype",
    client: Any = None,
    n_threads: int | None = None,
    memory_limit: int | str | None = None,
    **parameters: Any,
) -> optuna.Study:
    """Search for parameters by cross-validation, with pruning; read and bin the data once.

    The value of a trial is the best mean score over the folds (`CVResult.best_score`); all trials have the same folds. A trial
    that ends has the attributes (``user_attrs``) "best_iteration", "std" and "seconds".

    Parameters
    ----------
    data : dboost.Dataset, the path of its folder, or a table as in `dboost.fit`
    space : mapping of str to optuna.distributions.BaseDistribution
        What is searched: distributions by the names of parameters of learning.
    target : str, or one value per row
        Not needed for a `Dataset` and its folder.
    trials : int, default 50
        Trials of the study that have ended, pruned ones and those of earlier calls included.
    time_limit : float or str, optional
        Seconds, or a duration such as "1h", from the call: trials that run then are ended, and repeated by the next call.
    folds, groups, time, repeats
        As in `dboost.cv`.
    metric : str, callable or dboost.metrics.Metric, optional
        Metric of the held-out rows; the direction of the study follows from it. Default: the loss.
    at_once : int, optional
        Trials that run at the same time. Default: 2 on a cluster, 1 in this process.
    storage : path, URL or optuna.storages.BaseStorage, optional
        Keeps the study: a path of a file (Optuna's journal), or what `optuna.create_study` accepts. The same call continues the
        study, and repeats the trials that had not ended; with other data, folds or parameters it is refused. One process at a
        time may work on a study. Default: in memory.
    halving : int, optional
        Successive halving: trials get few iterations, the best 1/halving of them more, and so on up to `max_iter`; the others
        are pruned. A trial is continued from where it is, with the scores of a trial with all iterations. Trials come in
        brackets, so many together that one of them gets all iterations, and the sampler knows the earlier brackets only.
        Default: each trial has all iterations, unless the pruner ends it.
    min_iterations : int, optional
        With `halving`: the fewest iterations of a trial. Default: `max_iter` / halving², which makes brackets of halving²
        trials, with three stages.
    sampler : optuna.samplers.BaseSampler, optional
        Default: a `TPESampler` with a seed made from `random_state` and the number of the trial. So with one trial at once a
        study that is continued makes the same trials as an undisturbed one.
    pruner : optuna.pruners.BasePruner, optional
        It sees the mean of the metric of up to 100 iterations of each trial. Default: a `MedianPruner` that compares after 5
        trials, and of each trial after the first fifth of `max_iter`. Not with `halving`.
    callbacks : sequence of callable, default ()
        Called as ``callback(study, trial)`` after each trial that has ended; the result True ends the study.
    sample_weight, offset, features, categorical_features, client
        As in `dboost.fit`; for a `Dataset` those of `dboost.prepare` apply.
    n_threads : int, optional
        Threads of this process, for all trials together.
    memory_limit : int or str, optional
        Memory that all trials together may add to this process, or to each worker.
    **parameters
        Parameters of learning of all trials, and `early_stopping`, as in `dboost.cv`.

    Returns
    -------
    optuna.Study

    Raises
    ------
    DataError, ParameterError, InputTypeError
        As `dboost.cv`; also those of a trial. Its parameters are then not tried again when the study continues.
    FitInterrupted
        On ^C.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution, IntDistribution                          # doctest: +SKIP
    >>> space = {"learning_rate": FloatDistribution(0.01, 0.3, log=True), "max_leaf_nodes": IntDistribution(8, 128)}
    >>> study = tune(frame, space, target="y", trials=20, metric="auc", early_stopping_rounds=20)    # doctest: +SKIP
    >>> study.best_params, study.best_trial.user_attrs["best_iteration"]                             # doctest: +SKIP
    """
    seconds = parse_time_limit(time_limit)
    until = math.inf if seconds is None else perf_counter() + seconds
    _check_count("trials", trials)
    if at_once is not None:
        _check_count("at_once", at_once)
    stopping = parameters.pop("early_stopping", None)
    learning = canonical(parameters)
    searched = _checked_space(space, learning)
    stages = _stages(halving, min_iterations, learning.get("max_iter", Parameters().max_iter))
    if stages and pruner is not None:
        raise ParameterError("halving and pruner both end trials: give one of them")
    if stages and "max_iter" in searched:
        raise ParameterError("max_iter cannot be searched with halving, which gives trials different numbers of iterations")
    if "loss" in searched and metric is None:
        raise ParameterError("the loss is searched, so it cannot be the metric: give one as metric")
    threads, limit = available_threads(n_threads), None if memory_limit is None else parse_memory_limit(memory_limit)

    def settings_of(parameters: Mapping[str, Any], more: Sequence[Callback] = (), at_once: int = 1) -> FoldSettings:
        """Return the settings of one of the trials that run at the same time."""
        share = None if limit is None else max(limit // at_once, 1)
        of_trial = canonical(learning | dict(parameters))
        n_threads = max(threads // at_once, 1)
        return FoldSettings(of_trial, metric, stopping, tuple(more), False, n_threads, share, at_once=at_once)

    checked = settings_of({}).parameters
    options = DataOptions(sample_weight, offset, features, categorical_features, client, memory_limit, n_threads)
    with _opened(storage) as kept, folded(data, target, FoldOptions(folds, groups, time, repeats), options, checked) as rows:
        chosen = target_of(rows.targets, checked)
        found = metric_names(metric, chosen)
        if len(found) != 1:
            raise ParameterError(f"metric={metric!r} must be one metric: the study has one value per trial")
        if checked.loss_name == "auto" and "loss" not in searched:
            learning["loss"] = chosen.loss.name  # so that no fit has to choose, and to report its choice
        at_once = at_once or (1 if isinstance(rows.rows, LocalRows) else 2)
        iterations = int(getattr(searched.get("max_iter"), "high", checked.max_iter))
        if stages:
            pruner = optuna.pruners.NopPruner()
        pruner = pruner or optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=iterations // 5)
        same_in_all = (
            learning | {"early_stopping": stopping} | ({"halving": [stages.factor, *stages.iterations]} if stages else {})
        )
        settings = {
            "metric": found[0].name,
            "space": {name: optuna.distributions.distribution_to_json(one) for name, one in searched.items()},
            "parameters": {name: _described(value) for name, value in same_in_all.items()},
            "data": _digest([",".join(rows.data.feature_names_in_).encode(), _bytes_of(rows.targets)]),
            "folds": _digest([fold.uses.tobytes() for fold in rows.folds]),
        }
        direction = "maximize" if found[0].greater_is_better else "minimize"
        study = _study(kept, settings, direction=direction, pruner=pruner, sampler=sampler)
        study.set_user_attr(FEATURES, rows.data.feature_names_in_.tolist())

        def run(trial: optuna.Trial, check: Callable[[Iteration], None]) -> CVResult:
            pruning = PruningCallback(trial, found[0].column, max(iterations // 100, 1))
            return cross_validate(rows, settings_of(trial.params, [check, pruning], at_once), predicts=False)

        def grow(
            parameters: Mapping[str, Any], max_iter: int, earlier: CVResult | None, check: Callable[[Iteration], None]
        ) -> CVResult:
            return cross_validate(
                rows, settings_of({**parameters, "max_iter": max_iter}, [check], at_once), earlier, predicts=False
            )

        seed = None if sampler is not None else checked.random_state
        if stages:
            _Halving(study, searched, tuple(callbacks), seed, grow, stages).run_trials(trials, at_once, until)
        else:
            _Search(study, searched, tuple(callbacks), seed, run).run_trials(trials, at_once, until)
        return study


class _Ended(Exception):
    """Raised in a trial that is given up."""


@dataclass
class _Trials:
    """What asks a study for trials and tells it how they ended."""

    study: optuna.Study
    space: Mapping[str, optuna.distributions.BaseDistribution]
    callbacks: Sequence[AfterTrial]
    seed: int | None  # of the samplers; None for a sampler of the user

    def __post_init__(self) -> None:
        self._is_over = threading.Event()  # ends the fits
        self._is_stopped = False  # by a callback: no further trial begins

    def _ask(self, number: int) -> optuna.Trial:
        """Return the next trial. number : of trials that ended or run; the seed of the sampler is made from it."""
        if self.seed is not None:
            seed = int(np.random.SeedSequence((self.seed, number)).generate_state(1)[0])
            self.study.sampler = optuna.samplers.TPESampler(seed=seed)
        return self.study.ask(dict(self.space))

    def _check(self, _: Iteration) -> None:
        """End a trial when the study is over; a callback."""
        if self._is_over.is_set():
            raise _Ended

    def _call_back(self, number: int) -> None:
        """Call the callbacks after a trial has ended, which may end the study."""
        ended = self.study.get_trials(deepcopy=False)[number]
        self._is_stopped = any([bool(callback(self.study, ended)) for callback in self.callbacks]) or self._is_stopped

    def _complete(self, trial: optuna.Trial, score: float, best_iteration: int, std: float, seconds: float) -> None:
        for name, value in (("best_iteration", best_iteration), ("std", std), ("seconds", seconds)):
            trial.set_user_attr(name, value)
        self.study.tell(trial, score)

    def _fail(self, trial: optuna.Trial, error: BaseException, has_worked: bool) -> None:
        """Tell the study that a trial has failed. has_worked : whether another trial worked with the same settings."""
        if not isinstance(error, DataError | ParameterError | InputTypeError):
            self._give_up(trial)
            return
        if has_worked:  # the same parameters would fail again; else nothing works, and all settings may change
            trial.set_user_attr(ERROR, str(error))
        self.study.tell(trial, state=TrialState.FAIL)

    def _give_up(self, trial: optuna.Trial) -> None:
        """Mark a trial that is to be repeated."""
        trial.set_user_attr(INTERRUPTED, True)
        self.study.tell(trial, state=TrialState.FAIL)

    def _end_rest(self) -> None:
        """Mark trials that seem to run as failed: ^C came during ask or tell."""
        for other in self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            self.study.tell(other.number, state=TrialState.FAIL)


def _std_of(result: CVResult) -> float:
    """Return the standard deviation of the folds in the best iteration."""
    best = result.summary[result.summary["iteration"] == result.best_iteration].set_index("metric")
    return float(best.loc[result.metric, "std"])


def _check_score(result: CVResult, parameters: Mapping[str, Any]) -> None:
    if math.isnan(result.best_score):
        raise DataError(f"{result.metric} is not a number, with {dict(parameters)}")


@dataclass
class _Search(_Trials):
    """Trials that run at the same time."""

    run: Callable[[optuna.Trial, Callable[[Iteration], None]], CVResult]

    def run_trials(self, n_trials: int, at_once: int, until: float) -> None:
        """Run trials until the study has a number of them that have ended, or until a time (`time.perf_counter`)."""
        _repeat_unfinished(self.study, set(self.space))
        running: dict[Future[tuple[CVResult, float]], optuna.Trial] = {}
        n_ended = sum(map(_has_ended, self.study.get_trials(deepcopy=False)))
        with ThreadPoolExecutor(at_once, "dboost-trial") as pool:
            try:
                while True:
                    while len(running) < min(at_once, n_trials - n_ended) and perf_counter() < until and not self._is_stopped:
                        trial = self._ask(n_ended + len(running))
                        running[pool.submit(self._timed, trial)] = trial
                    if not running:
                        return
                    left = until - perf_counter()
                    done, _ = wait(running, None if left == math.inf else max(left, 0), FIRST_COMPLETED)
                    if not done:  # the time is over
                        return
                    for future in done:
                        trial = running.pop(future)
                        self._tell(trial, future)
                        n_ended += 1
                        self._call_back(trial.number)
            except KeyboardInterrupt as stopped:
                raise FitInterrupted(f"the study was interrupted after {n_ended} of {n_trials} trials", None, 0) from stopped
            finally:
                self._is_over.set()
                wait(running)
                for trial in running.values():
                    self._give_up(trial)
                self._end_rest()

    def _timed(self, trial: optuna.Trial) -> tuple[CVResult, float]:
        began = perf_counter()
        return self.run(trial, self._check), perf_counter() - began

    def _tell(self, trial: optuna.Trial, future: Future[tuple[CVResult, float]]) -> None:
        """Tell the study how a trial ended; raise the error of the trial."""
        try:
            result, seconds = future.result()
            _check_score(result, trial.params)
        except optuna.TrialPruned:
            self.study.tell(trial, state=TrialState.PRUNED)
        except BaseException as error:
            self._fail(trial, error, any(map(_has_ended, self.study.get_trials(deepcopy=False))))
            raise
        else:
            self._complete(trial, result.best_score, result.best_iteration, _std_of(result), seconds)


class _Stage(NamedTuple):
    """The result of a trial after the iterations of a stage of successive halving, as a study stores it."""

    score: float
    n_iterations: int  # fewer than those of the stage if the trial was stopped early
    best_iteration: int
    std: float
    seconds: float  # of all stages so far


@dataclass
class _Member:
    """A trial of a bracket."""

    trial: optuna.Trial | FrozenTrial  # frozen if an earlier call has told the study how it ended
    has_ended: bool
    stages: list[_Stage]
    result: CVResult | None = None  # of the last stage, without predictions; None after a call that was killed


@dataclass
class _Halving(_Trials):
    """Successive halving: trials in brackets, of which the best of each stage are continued to the next one.

    A trial has attributes with its bracket and with the results of its stages. So a study that was killed continues with the
    same decisions: only trials that go on to a further stage are fitted again, since their models are lost.
    """

    grow: Callable[[Mapping[str, Any], int, CVResult | None, Callable[[Iteration], None]], CVResult]
    stages: _Stages

    def run_trials(self, n_trials: int, at_once: int, until: float) -> None:
        """Run brackets until the study has a number of trials that have ended, or until a time (`time.perf_counter`)."""
        _repeat_unfinished(self.study, set(self.space))
        bracket: list[_Member] = []
        with ThreadPoolExecutor(at_once, "dboost-trial") as pool:
            try:
                while not self._is_stopped and self._fill(bracket, n_trials):
                    self._run_bracket(bracket, pool, until)
            except _Ended:  # the time is over
                pass
            except KeyboardInterrupt as stopped:
                n_ended = sum(map(_has_ended, self.study.get_trials(deepcopy=False)))
                raise FitInterrupted(f"the study was interrupted after {n_ended} of {n_trials} trials", None, 0) from stopped
            finally:
                for member in bracket:
                    if not member.has_ended and isinstance(member.trial, optuna.Trial):
                        self._give_up(member.trial)
                self._end_rest()

    def _fill(self, bracket: list[_Member], n_trials: int) -> bool:
        """Replace the trials of the bracket by those of the next one, or of one that has not ended; False if none is left."""
        bracket.clear()
        known = self.study.get_trials(deepcopy=False)
        valid = [one for one in known if BRACKET in one.user_attrs and (one.state != TrialState.FAIL or _has_ended(one))]
        first, size = max((one.user_attrs[BRACKET][:2] for one in valid), default=(0, 0))
        members = [one for one in valid if one.user_attrs[BRACKET][0] == first]
        if len(members) == size and all(map(_has_ended, members)):
            first += size
            size = min(self.stages.bracket_size, n_trials - sum(map(_has_ended, known)))
            members = []
        ended = {one.user_attrs[BRACKET][2]: one for one in members if _has_ended(one)}
        waiting = {one.user_attrs[BRACKET][2] for one in members} - ended.keys()
        places = {place: _Member(one, True, _stages_in(one)) for place, one in ended.items()}
        while len(places) < size:
            free = [place for place in range(first, first + size) if place not in places and place not in waiting]
            trial = self._ask(free[0] if free else first)  # trials that wait come first
            if BRACKET not in trial.user_attrs:
                trial.set_user_attr(BRACKET, (first, size, free[0]))
            place = trial.user_attrs[BRACKET][2]
            waiting.discard(place)
            places[place] = member = _Member(trial, False, _stages_in(trial))
            bracket.append(member)  # now, so that it is given up if asking for the next one fails
            for stage, n_iterations in zip(member.stages, self.stages.iterations, strict=False):
                trial.report(stage.score, n_iterations)
        bracket[:] = [places[place] for place in sorted(places)]
        return size > 0

    def _run_bracket(self, bracket: Sequence[_Member], pool: ThreadPoolExecutor, until: float) -> None:
        is_maximized = self.study.direction == optuna.study.StudyDirection.MAXIMIZE

        def loss(member: _Member) -> float:
            return math.inf if not member.stages else -member.stages[-1].score if is_maximized else member.stages[-1].score

        rivals = list(bracket)
        for number, n_iterations in enumerate(self.stages.iterations):
            is_last = number == len(self.stages.iterations) - 1
            missing = [member for member in rivals if not member.has_ended and len(member.stages) <= number]
            self._grow_all(missing, n_iterations, pool, until)
            for member in rivals:
                if not member.has_ended and (is_last or member.stages[number].n_iterations < n_iterations):
                    self._end(member, is_complete=True)
            if is_last:
                return
            kept = sorted(rivals, key=loss)[: max(len(rivals) // self.stages.factor, 1)]  # sorted is stable
            for member in rivals:
                if not member.has_ended and not any(member is one for one in kept):
                    self._end(member, is_complete=False)
            rivals = kept

    def _grow_all(self, members: Sequence[_Member], n_iterations: int, pool: ThreadPoolExecutor, until: float) -> None:
        """Grow the iterations of a stage; raise `_Ended` when the time is over."""
        running = {pool.submit(self._timed, member, n_iterations): member for member in members}
        try:
            while running:
                left = until - perf_counter()
                done, _ = wait(running, None if left == math.inf else max(left, 0), FIRST_COMPLETED)
                if not done:
                    raise _Ended
                for future in [one for one in running if one in done]:  # in the order of the trials
                    self._note(running.pop(future), future, n_iterations)
        finally:
            if running:
                self._is_over.set()
                for future in running:
                    future.cancel()
                wait(running)

    def _timed(self, member: _Member, n_iterations: int) -> tuple[CVResult, float]:
        began = perf_counter()
        return self.grow(member.trial.params, n_iterations, member.result, self._check), perf_counter() - began

    def _note(self, member: _Member, future: Future[tuple[CVResult, float]], n_iterations: int) -> None:
        """Store the result of a stage; raise the error of the trial."""
        trial = member.trial
        assert isinstance(trial, optuna.Trial)
        try:
            result, seconds = future.result()
            _check_score(result, trial.params)
        except BaseException as error:
            known = self.study.get_trials(deepcopy=False)
            self._fail(trial, error, any(_has_ended(one) or STAGES in one.user_attrs for one in known))
            member.has_ended = True
            raise
        seconds += member.stages[-1].seconds if member.stages else 0.0
        stage = _Stage(result.best_score, result.n_iterations, result.best_iteration, _std_of(result), seconds)
        member.stages.append(stage)
        trial.set_user_attr(STAGES, [list(one) for one in member.stages])
        trial.report(stage.score, n_iterations)
        member.result = replace(result, boosters=[], predictions=np.empty(0))

    def _end(self, member: _Member, *, is_complete: bool) -> None:
        """Tell the study how a trial ended, and release its models."""
        assert isinstance(member.trial, optuna.Trial)
        if is_complete:
            stage = member.stages[-1]
            self._complete(member.trial, stage.score, stage.best_iteration, stage.std, stage.seconds)
        else:
            self.study.tell(member.trial, state=TrialState.PRUNED)
        member.has_ended, member.result = True, None
        self._call_back(member.trial.number)


def _stages_in(trial: optuna.Trial | FrozenTrial) -> list[_Stage]:
    return [_Stage(*stage) for stage in trial.user_attrs.get(STAGES, ())]


class _Stages(NamedTuple):
    """The stages of successive halving."""

    factor: int
    iterations: tuple[int, ...]  # of each stage, in total

    @property
    def bracket_size(self) -> int:
        """Number of trials of which one reaches the last stage."""
        return int(self.factor ** (len(self.iterations) - 1))


def _stages(factor: Any, min_iterations: Any, max_iter: Any) -> _Stages | None:
    """Return the stages of successive halving; None without.

    Raises
    ------
    ParameterError
        If there are no two stages.
    """
    if factor is None:
        if min_iterations is not None:
            raise ParameterError(f"min_iterations={min_iterations!r} needs halving")
        return None
    if not isinstance(factor, int) or isinstance(factor, bool) or factor < 2:
        raise ParameterError(f"halving={factor!r} must be a number, at least 2")
    max_iter = make_parameters({"max_iter": max_iter}).max_iter
    if min_iterations is None:
        min_iterations = max(max_iter // factor**2, 1)
    _check_count("min_iterations", min_iterations)
    iterations = [max_iter]
    while iterations[0] // factor >= min_iterations:
        iterations.insert(0, iterations[0] // factor)
    if len(iterations) < 2:
        least = factor * min_iterations
        raise ParameterError(f"halving={factor} with min_iterations={min_iterations} needs a max_iter of at least {least}")
    return _Stages(factor, tuple(iterations))


def _has_ended(trial: FrozenTrial) -> bool:
    """Whether a trial counts: it is not waiting, running or to be repeated."""
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or ERROR in trial.user_attrs


def _is_unfinished(trial: FrozenTrial) -> bool:
    """Whether a trial of an earlier call is to be repeated."""
    return trial.state == TrialState.RUNNING or INTERRUPTED in trial.user_attrs


def _repeat_unfinished(study: optuna.Study, names: set[str]) -> None:
    """Enqueue the trials of earlier calls that have not ended, and mark those that seem to run as failed.

    A call that is killed in between does not lose or double a trial: a repetition knows the number of the first one. A trial
    that lacks some of the parameters (`names`) had not begun: it is asked for again, with the same seed of the sampler.
    """
    known = study.get_trials(deepcopy=False)
    repeated = {trial.user_attrs.get(REPEATS) for trial in known}
    for trial in known:
        if _is_unfinished(trial) and set(trial.params) == names and trial.number not in repeated:
            of_halving = {name: trial.user_attrs[name] for name in (BRACKET, STAGES) if name in trial.user_attrs}
            study.enqueue_trial(trial.params, user_attrs={REPEATS: trial.number} | of_halving)
        if trial.state == TrialState.RUNNING:
            study.tell(trial.number, state=TrialState.FAIL)


@contextmanager
def _opened(storage: Any) -> Iterator[tuple[Any, str]]:
    """Return a storage as an argument of Optuna, and its name for messages."""
    if isinstance(storage, str | os.PathLike) and "://" not in os.fspath(storage):
        with _opened_journal(os.fspath(storage)) as journal:
            yield journal, os.fspath(storage)
    elif storage is None or isinstance(storage, str | optuna.storages.BaseStorage):
        yield storage, storage if isinstance(storage, str) else "storage"
    else:
        raise InputTypeError(f"storage must be a path, a URL or a storage of optuna, not {type(storage).__name__}")


def _study(storage: tuple[Any, str], settings: dict[str, Any], **options: Any) -> optuna.Study:
    """Create a study, or open the one of an earlier call, which must have the same settings.

    storage : as of `_opened`; options : of `optuna.create_study`.
    """
    opened, name = storage
    try:
        study = optuna.create_study(storage=opened, study_name="dboost", load_if_exists=True, **options)
    except Exception as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise ParameterError(f"{name} cannot be opened as a study: {text}") from error
    _check_settings(study, settings, name)
    return study


class _NoLock(JournalFileOpenLock):
    """The lock of a journal that one process has for itself; threads have another lock."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


@contextmanager
def _opened_journal(path: str) -> Iterator[optuna.storages.BaseStorage]:
    """Open a file of Optuna's journal for this process only; the lock of a process that was killed is free.

    A journal has an entry per line. The last one may be incomplete, and is removed.
    """
    try:
        file = open(path, "a+b")  # noqa: SIM115
    except OSError as error:
        raise ParameterError(f"{path} cannot be written: {error.strerror}") from error
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ParameterError(f"another process works on the study in {path}") from None
        file.seek(0)
        content = file.read()
        if content and not content.startswith(_JOURNAL):
            raise ParameterError(f"{path} exists and is no study")
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
        try:
            yield JournalStorage(JournalFileBackend(path, None if fcntl is None else _NoLock(path)))
        finally:
            if os.fstat(file.fileno()).st_size == 0:  # no study was made
                with suppress(OSError):  # Windows removes no open file
                    os.unlink(path)


#: The first bytes of a journal.
_JOURNAL = b'{"op_code":'


def _check_settings(study: optuna.Study, settings: dict[str, Any], where: str) -> None:
    """Store the settings of a new study; raise a ParameterError if an older one has others."""
    given = json.loads(json.dumps(settings))
    stored = study.user_attrs.get(SETTINGS)
    known = study.get_trials(deepcopy=False)
    if stored is None or not any(_has_ended(trial) or _is_unfinished(trial) for trial in known):
        if stored is None and known:
            raise ParameterError(f"{where} has a study that dboost.integrations.optuna.tune has not made")
        study.set_user_attr(SETTINGS, given)
        return
    differing = []
    for key, value in given.items():
        if isinstance(value, dict):
            differing += [name for name in {**stored[key], **value} if stored[key].get(name) != value.get(name)]
        elif stored[key] != value:
            differing.append(key)
    if differing:
        names = ", ".join(dict.fromkeys(differing))
        raise ParameterError(f"{where} has a study with other settings ({names}): repeat those, or give another storage")


def _checked_space(
    space: Mapping[str, optuna.distributions.BaseDistribution], learning: Mapping[str, Any]
) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return the distributions, if they are of parameters that can be searched."""
    if not isinstance(space, Mapping) or not space:
        raise InputTypeError("space must be distributions of optuna by the names of parameters")
    known = {one.name for one in fields(Parameters)} - {"max_bins"}
    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for name, distribution in space.items():
        own = ALIASES.get(name, (name,))[0]
        if not isinstance(distribution, optuna.distributions.BaseDistribution):
            raise InputTypeError(f"space: {name!r} must have a distribution of optuna, not {distribution!r}")
        if own == "max_bins":
            raise ParameterError("max_bins cannot be searched: the data are binned once")
        if own not in known:
            raise ParameterError(f"space: there is no parameter {name!r}; there are {', '.join(sorted(known))}")
        if own in learning or any(ALIASES.get(other, (other,))[0] == own for other in found):
            raise ParameterError(f"{own} is given twice, as {name!r} in the space and elsewhere")
        found[name] = distribution
    return found


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ParameterError(f"{name}={value!r} must be a number, at least 1")


def _described(value: Any) -> Any:
    """Return a parameter as JSON; objects as their types."""
    if isinstance(value, Mapping):
        return {str(key): _described(one) for key, one in value.items()}
    return repr(value) if isinstance(value, EarlyStopping) else describe(value)


def _bytes_of(targets: Column) -> bytes:
    if isinstance(targets, CategoryColumn):
        return repr(targets.categories).encode("utf-8", "backslashreplace") + targets.codes.tobytes()
    return targets.tobytes()


def _digest(content: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(content)).hexdigest()
