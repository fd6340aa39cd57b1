"""`cv`: cross-validation on a data set that is read and binned once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, NoReturn, Unpack

import numpy as np
import pandas as pd

from dboost.api import belongs_to_fit, prepare
from dboost.argument_types import (
    CategoricalFeatures,
    Client,
    ColumnLike,
    MetricLike,
    Predictions,
    RowFilterLike,
    TableLike,
    TargetLike,
)
from dboost.booster import Booster, intervals_of_folds, trained
from dboost.data import CategoryColumn, Column
from dboost.data.kinds.named_columns import with_named_constraints
from dboost.dataset import Dataset
from dboost.display import as_read, html_card, number, with_spread
from dboost.errors import InputTypeError, ParameterError
from dboost.inspection.calibration import calibrated_by_predictions
from dboost.inspection.cross_conformal import CrossScores, check_partition
from dboost.kernels.threads import available_threads
from dboost.metrics.named import names_of
from dboost.params import (
    EarlyStopping,
    LearningParameters,
    Parameters,
    accepts_names_of_intervals,
    accepts_peer_names,
    canonical,
    make_parameters,
    shows_parameters,
    with_seed,
)
from dboost.params.peer_names import OF_CROSS_VALIDATION, unknown_attribute
from dboost.prepared.dataset_files import is_prepared
from dboost.prepared.dataset_rows import BinnedRows
from dboost.session.memory import Budget, TreeNeeds, parse_memory_limit, trim_memory
from dboost.session.row_samples import FoldRows
from dboost.session.target import Target, choose_target, encode_column, scan_target
from dboost.tracebacks import short_traceback, short_tracebacks
from dboost.training.auto_iterations import IN_FIT, with_auto_iterations
from dboost.training.callbacks import Callback, StoppingRule, rounds_of_rule
from dboost.training.checkpoint import first_difference, plain
from dboost.training.fit import FitResult
from dboost.training.fold_columns import COLUMNS, DataOptions, with_values
from dboost.training.fold_rows import FoldDivision
from dboost.training.folds import (
    FoldScores,
    FoldState,
    MetricName,
    fit_folds,
    folds_at_once,
    mean_of,
    metric_names,
)
from dboost.training.learning_rates import schedule_of
from dboost.training.progress import Progress
from dboost.training.request import FitRequest, checked_callbacks, parse_time_limit, tree_needs


@short_tracebacks
@dataclass(frozen=True, eq=False)
class CVResult:
    """The result of `cv`.

    Attributes
    ----------
    scores : DataFrame
        Columns fold, iteration (from 1), metric and value: each metric of the held-out rows, and "train_loss".
    summary : DataFrame
        Columns iteration, metric, mean and std (of the folds, divided by their number).
    best_iteration : int
        Iteration with the best mean: of the metric that stops early, else of the last metric.
    best_score : float
        That mean.
    metric : str
        That metric.
    boosters : list of Booster
        The model of each fold; with early stopping, up to the best iteration.
    predictions : float64[n_rows] or float64[n_rows, n_classes]
        Predictions, or probabilities of the classes, of each row by the model that has not been trained on it, in row order.
        NaN for rows that no fold holds out and for rows of weight 0, the mean for rows that several folds hold out.
    n_iterations : int
        Number of iterations of each fold, also those after the best one.
    targets : float64[...]
        Of the rows of positive weight, which `calibrate` uses; empty for classes.
    weights : float64[n], or None
        Of these rows; None for weights of 1.
    held_out : list of (int64[...], float64[..., n_outputs])
        For each fold the positions of its held-out rows among those of positive weight, and their raw scores by its model,
        which intervals follow from; empty for classes.
    states, settings
        What ``cv(…, start_from=result)`` continues and compares; no part of the public API.
    """

    scores: pd.DataFrame
    summary: pd.DataFrame
    best_iteration: int
    best_score: float
    metric: str
    boosters: list[Booster]
    predictions: np.ndarray
    states: list[FoldState]  # for `start_from`
    settings: dict[str, Any]  # the parameters of learning and the metrics, as JSON
    targets: np.ndarray = field(default_factory=partial(np.empty, 0))
    weights: np.ndarray | None = None
    held_out: Sequence[tuple[np.ndarray, np.ndarray]] = ()

    def calibrate(self, booster: Booster, coverage: float = 0.9) -> Booster:
        """Set a model's margin for `Booster.predict_interval` by the held-out predictions, and return the model.

        All rows serve for training and for calibration: the margin is that of `Booster.calibrate` for the distances between the
        targets and the predictions of the models that have not been trained on them. It is put around the predictions of one
        model, which is trained on all rows with the same parameters. This is the interval that Barber, Candès, Ramdas and
        Tibshirani (2021) compare with their CV+: equally wide if the models of the folds predict like that of all rows. Their
        guarantee (a coverage of at least 2 · coverage - 1, in practice about the coverage) is proved for CV+, which needs all
        models for each prediction (`predict_interval` of this result); without assumptions on the learner it is not proved for
        this one.

        Parameters
        ----------
        booster : Booster
            Trained on all rows, with `best_iteration` iterations.
        coverage : float, default 0.9
            As in `Booster.calibrate`.

        Returns
        -------
        Booster

        Raises
        ------
        ParameterError
            If the model has other features or another loss than those of the folds, or predicts classes.

        Examples
        --------
        >>> result = dboost.cv(frame, "price", max_iter=300, early_stopping_rounds=20)           # doctest: +SKIP
        >>> booster = dboost.fit(frame, "price", max_iter=result.best_iteration)                 # doctest: +SKIP
        >>> result.calibrate(booster, coverage=0.9)                                              # doctest: +SKIP
        """
        fold_model, learned = self.boosters[0], booster.loss.learned
        losses = [{k: v for k, v in model.ensemble.loss.items() if k not in learned} for model in (fold_model, booster)]
        if booster.features != fold_model.features or losses[0] != losses[1]:
            raise ParameterError(
                "the model to calibrate has other features or another loss than those of the folds: fit it on the same rows"
            )
        booster.outputs.check_intervals()
        means = _held_out_means(len(self.targets), fold_model.outputs.interval_means, self.held_out)
        is_held_out = ~np.isnan(means.reshape(len(means), -1)).any(axis=1)
        weights = None if self.weights is None else self.weights[is_held_out]
        base = fold_model.outputs.interval_of_means(means[is_held_out])
        return booster.set_calibration(calibrated_by_predictions(self.targets[is_held_out], base, weights, coverage))

    @accepts_names_of_intervals
    def predict_interval(
        self,
        X: TableLike,
        coverage: float = 0.9,
        n_threads: int | None = None,
        *,
        offset: ColumnLike | None = None,
        filter: RowFilterLike | None = None,
    ) -> Predictions:
        """Predict an interval for each row from the models of all folds (CV+).

        The bounds are exact order statistics of what each fold's model predicts, minus and plus the distances between the
        targets and the predictions of the rows that this model has not been trained on (Barber, Candès, Ramdas and Tibshirani,
        2021). If new rows are exchangeable with these, the coverage is at least 2 · coverage - 1 up to √(2 / n_rows), and in
        practice about `coverage`, whatever the learner does; no row is set aside.

        Parameters
        ----------
        X : as in `Booster.predict`
        coverage : float, default 0.9
            Between 0 and 1, both excluded.
        n_threads, offset, filter
            As in `Booster.predict`.

        Returns
        -------
        Array, DataFrame or dask collection [n_rows, 2]
            The kind of X, with the columns ``lower`` and ``upper``. Where targets cannot be negative (poisson, gamma, tweedie),
            bounds are at least 0.

        Raises
        ------
        ParameterError
            If the models predict classes; if the folds do not hold out every row once.
        DataError
            If there are fewer rows than the coverage needs (9 for 0.9); as of `Booster.predict`.

        Examples
        --------
        >>> result = dboost.cv(frame, "price", folds=10, max_iter=300)                           # doctest: +SKIP
        >>> result.predict_interval(new_rows, coverage=0.9)                                      # doctest: +SKIP
        """
        return intervals_of_folds(self.boosters, self._cross_scores().selection(coverage), X, n_threads, offset, filter)

    def _cross_scores(self) -> CrossScores:
        self.boosters[0].outputs.check_intervals()
        check_partition([positions for positions, _ in self.held_out], len(self.targets))
        scores_of_folds = []
        for booster, (positions, raw) in zip(self.boosters, self.held_out, strict=True):
            scores_of_folds.append((positions, booster.outputs.interval_of(raw).scores(self.targets[positions])))
        return CrossScores.of(scores_of_folds, self.weights)

    @property
    def n_iterations(self) -> int:
        """Number of iterations of each fold, also those after the best one."""
        return len(self.states[0].history)

    def best_scores(self) -> dict[str, tuple[str, list[float]]]:
        """Return the scores of the folds in the best iteration as people read them: by metric, its name there and the values.

        The loss squared_error is read as RMSE.
        """
        loss = self.states[0].model.loss["name"]
        best = self.scores[self.scores["iteration"] == self.best_iteration].sort_values("fold")
        by_metric = best.groupby("metric", sort=False)["value"]
        read = {str(name): [as_read(str(name), float(value), loss) for value in values] for name, values in by_metric}
        return {name: (values[0][0], [value for _, value in values]) for name, values in read.items()}

    def __getattr__(self, name: str) -> Any:
        raise unknown_attribute(self, name, hints=OF_CROSS_VALIDATION)

    def __getitem__(self, key: Any) -> NoReturn:
        raise InputTypeError(f"a result of cv has no item {key!r:.60}: see best_score, and the frames summary and scores")

    def _repr_html_(self) -> str:
        scores = [
            (name, with_spread(float(np.mean(values)), float(np.std(values)))) for name, values in self.best_scores().values()
        ]
        title = f"dboost.CVResult: {len(self.boosters)} folds, best iteration {self.best_iteration} of {self.n_iterations}"
        return html_card(title, scores)

    def __repr__(self) -> str:
        name, values = self.best_scores()[self.metric]
        best = f"{name} {number(np.mean(values))} in iteration {self.best_iteration}"
        return f"<dboost.CVResult: {len(self.boosters)} folds, {best}>"


@short_traceback
@accepts_peer_names(belongs=belongs_to_fit)
@shows_parameters
def cv(
    data: TableLike,
    target: TargetLike = ...,
    *,
    folds: Any = None,
    group: ColumnLike | None = None,
    groups: ColumnLike | None = None,
    time: ColumnLike | None = None,
    repeats: int = 1,
    start_from: CVResult | None = None,
    sample_weight: ColumnLike | None = None,
    offset: ColumnLike | None = None,
    features: Sequence[str] | None = None,
    categorical_features: CategoricalFeatures = "from_dtype",
    filter: RowFilterLike | None = None,
    eval_metric: MetricLike | None = None,
    early_stopping: EarlyStopping | None = None,
    client: Client | None = None,
    n_threads: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    memory_limit: int | str | None = None,
    time_limit: float | str | None = None,
    **parameters: Unpack[LearningParameters],
) -> CVResult:
    """Cross-validate: train a model on all folds but one, and evaluate it on that one, for each fold.

    The rows are read and binned once, and all folds use the split points that all rows propose. A fold's model is the same, to
    the last bit, as that of a fit on the fold's rows with these split points.

    Parameters
    ----------
    data : dboost.Dataset, the path of its folder, or a table as in `dboost.fit`
        A table is prepared first (`dboost.prepare`).
    target : str, or one value per row
        Not needed for a `Dataset` and its folder.
    folds : int, splitter of scikit-learn, iterable of (train, test), or one value per row, optional
        Default: 5, or those of `start_from`.
        A number divides the rows at random (by `random_state`), each class evenly. Pairs hold positions or masks; a row that is
        in neither is left out. With one value per row, each value is a fold. Positions and values count the rows of the table
        (those that `filter` keeps), or of the `Dataset`, which has no rows of weight 0. For tables and paths `folds`, `groups`
        and `time` may be names of columns, which are then no features unless `features` names them.
    group : str, or one value per row, optional
        What rows belong together, as in `dboost.fit`: a number of folds and splitters do not divide the rows of a group, and
        samples of rows (`subsample`) take whole groups. A `Dataset` has the groups of `dboost.prepare`. Splitters get the
        groups as integers (whole numbers are themselves). Splitters divide the rows of positive weight.
    groups : str, or one value per row, optional
        The same for the folds only, under scikit-learn's name: splitters get these values.
    time : str, or one value per row, optional
        With a number of folds: divide the rows in the order of these values into one part more than there are folds; each fold
        trains on all parts before the one that it holds out. Rows of equal time are in the same part.
    repeats : int, default 1
        Divide the rows by a number of folds this many times, each time differently: there are folds × repeats models.
    start_from : CVResult, optional
        Continue the models of its folds on the same data, with `max_iter` more iterations and otherwise the same parameters,
        metrics and early stopping; other ones are refused. The result is that of one call with all iterations, to the last bit:
        scores, models and predictions, also if early stopping has kept fewer iterations than were grown. Only the seconds
        differ, the iteration in which a time limit or a callback ends, and `max_iter` in the parameters of the models of a
        result that has been stopped early, to which nothing is added.
    sample_weight, offset, features, categorical_features, filter, n_threads
        As in `dboost.fit`; for a `Dataset` those of `dboost.prepare` apply.
    eval_metric : str, callable, dboost.metrics.Metric, or sequence of these, optional
        Metrics of the held-out rows. Default: the loss.
    early_stopping : dboost.EarlyStopping, optional
        Stop all folds by the mean of a metric over the folds; `early_stopping_rounds` is the same for the last metric.
    client : distributed.Client, optional
        Train on its cluster; for a `Dataset`, that of its own rows is used. Default: as in `dboost.fit`.
    callbacks : sequence of callable, default ()
        Called after every iteration with an `Iteration` whose record holds the means over the folds, such as
        "validation_log_loss"; the result True stops all folds.
    progress : bool, optional
        As in `dboost.fit`; shows the means. Of more than 32 folds, 32 are fitted at the same time unless early stopping,
        callbacks or a time limit need the means of all after every iteration; then the number of finished folds is shown.
    memory_limit : int or str, optional
        Memory that all folds together may add to this process, or to each worker, beside the bin codes of the rows (a byte for
        most values), which stay in memory.
    time_limit : float or str, optional
        No iteration begins that would probably end later.
    **parameters
        Parameters of learning.

    Returns
    -------
    CVResult

    Raises
    ------
    DataError, ParameterError, InputTypeError
        As `dboost.fit`, and if the folds do not match the rows.
    FitInterrupted
        On ^C.

    Examples
    --------
    >>> result = dboost.cv(frame, "target", folds=5, eval_metric="auc", early_stopping_rounds=20)      # doctest: +SKIP
    >>> result.best_iteration, result.best_score                                                       # doctest: +SKIP
    """
    began, seconds = perf_counter(), parse_time_limit(time_limit)
    learning = with_seed(canonical({**parameters, "start_from": start_from}))
    earlier = learning.pop("start_from")
    learning = with_auto_iterations(with_named_constraints(learning, data), IN_FIT, has_rule=early_stopping is not None)
    if earlier is not None:
        if not isinstance(earlier, CVResult):
            raise InputTypeError(f"start_from must be a result of dboost.cv, not {type(earlier).__name__}")
        more = make_parameters({name: value for name, value in learning.items() if name == "max_iter"}).max_iter
        learning["max_iter"] = earlier.n_iterations + more
    settings = FoldSettings(
        learning, eval_metric, early_stopping, checked_callbacks(callbacks), progress,
        available_threads(n_threads), None if memory_limit is None else parse_memory_limit(memory_limit),
        math.inf if seconds is None else began + seconds,
    )  # fmt: skip
    options = DataOptions(sample_weight, offset, group, features, categorical_features, filter, client, memory_limit, n_threads)
    division = FoldDivision(folds, groups, time, repeats, [] if earlier is None else [state.rows for state in earlier.states])
    proposal = settings.parameters.split_proposal
    if proposal != "global":
        raise ParameterError(
            f"split_proposal={proposal!r} proposes split points for each tree or fit, but cv bins the rows once, for all "
            "folds: leave it out, or give an estimator with it to sklearn.model_selection.cross_validate"
        )
    try:
        settings.progress.phase("reading and binning")
        with folded(data, target, division, options, settings.parameters, settings.trees_of(division)) as rows:
            return cross_validate(rows, settings, earlier)
    finally:
        settings.progress.close()


@dataclass(frozen=True, eq=False)
class FoldedRows:
    """The rows of a data set with their folds, for several cross-validations."""

    data: Dataset
    rows: BinnedRows  # stay in memory as long as this object
    targets: Column
    folds: list[FoldRows]
    is_kept: np.ndarray | None = None  # of `FoldDivision`


@contextmanager
def folded(
    data: TableLike,
    target: TargetLike,
    division: FoldDivision,
    options: DataOptions,
    parameters: Parameters,
    trees: TreeNeeds | None = None,
) -> Iterator[FoldedRows]:
    """Yield rows with their folds; a data set that is made of a table is closed at the end.

    trees : what the fits on the folds need of the memory limit; None if that is not known yet.

    Raises
    ------
    ParameterError, InputTypeError
        If the target is missing, if a target or options are given that belong to the data set, or if the folds do not match
        the rows.
    """
    shaping = options.shaping
    if options.group is not None:
        if division.groups is not None:
            raise ParameterError("group and groups are two names of the same: leave groups out")
        if not division.can_keep_groups and not parameters.draws_rows:
            cause = "time" if division.time is not None else "folds that are given row by row"
            raise ParameterError(f"group has no effect with {cause} if no rows are drawn: leave it out, or give subsample")
    if not isinstance(data, Dataset) and is_prepared(data):
        data = Dataset(data)
        target = ... if isinstance(target, str | list) and target == data.target else target
    if isinstance(data, Dataset):
        settings = shaping | {"target": None if target is ... else target}
        if not data.is_temporary:
            settings.pop("client")  # `Dataset._rows` checks it
        settings["categorical_features"] = (
            None if settings["categorical_features"] == "from_dtype" else settings["categorical_features"]
        )
        for name, value in settings.items():
            if value is not None:
                raise ParameterError(f"{name} belongs to dboost.prepare: the data set was prepared before")
        for name in COLUMNS:
            if isinstance(column := getattr(division, name), str):
                raise ParameterError(f"{name}={column!r} names a column, but a data set has bins only: give one value per row")
        opened: AbstractContextManager[Dataset] = nullcontext(data)
    else:
        if target is ...:
            raise InputTypeError("the target is missing: give the name of a column, or one value per row")
        data, division, shaping["features"] = with_values(data, target, division, options)
        reading = {name: getattr(parameters, name) for name in ("max_bins", "random_state")}
        # With the needs of the folds: a limit that is far too small for them is refused before the data are read.
        limit = None if options.memory_limit is None else Budget.of(options.memory_limit, trees)
        reading |= {"memory_limit": limit, "n_threads": options.n_threads}
        opened = prepare(data, target, **shaping, **reading)
    with opened as prepared, prepared._rows(options.client).for_folds() as rows:
        targets = rows.targets()
        kind = target_of(targets, parameters, prepared.target)
        folds = division.divide(rows.n_rows, targets, kind, parameters.random_state, rows.groups())
        trim_memory()  # before the fits of the folds take theirs
        yield FoldedRows(prepared, rows, targets, folds, division.is_kept)


class FoldSettings:
    """The settings of the fits of a cross-validation.

    Parameters
    ----------
    learning : dict
        Parameters of learning by their canonical names.
    eval_metric, early_stopping
        As in `cv`.
    callbacks : tuple of callable
    progress : bool or None
        As in `cv`; the attribute is the `Progress`.
    n_threads : int
        Threads of this process for all folds together.
    limit : int or None
        Memory limit for all folds together.
    until : float
        Time (`time.perf_counter`) after which no iteration begins.
    """

    def __init__(
        self, learning: Mapping[str, Any], eval_metric: Any, early_stopping: EarlyStopping | None,
        callbacks: tuple[Callback, ...], progress: bool | None, n_threads: int, limit: int | None, until: float = math.inf,
    ) -> None:  # fmt: skip
        self.learning, checked = {**learning}, {**learning}
        if early_stopping is not None:
            checked |= rounds_of_rule(early_stopping, checked)
        if early_stopping is not None and early_stopping.eval_set not in (None, "validation"):
            raise ParameterError(f"early_stopping: cv has no evaluation set {early_stopping.eval_set!r}, only held-out rows")
        schedule_of(checked)
        self.parameters = make_parameters(checked)
        if "train_loss" in names_of(eval_metric, self.parameters.loss_name):
            raise ParameterError("a metric of cv may not be called 'train_loss', like the training loss in the scores")
        if self.parameters.arcbites is not None:
            raise ParameterError("cv does not take arcbites: each fold would visit other bites at the same time")
        self.eval_metric, self.early_stopping, self.callbacks = eval_metric, early_stopping, callbacks
        self.progress = Progress(progress)
        self.n_threads, self.limit, self.until = n_threads, limit, until

    @property
    def needs_means(self) -> bool:
        """Whether something depends on the means of the folds while they are fitted."""
        return bool(self.callbacks) or self.until < math.inf or self.parameters.stopping_rounds is not None

    def trees_of(self, division: FoldDivision) -> TreeNeeds:
        """Return what the fits on the folds need at least, before the data are read."""
        at_once = folds_at_once(division.least, self.needs_means)
        needs = tree_needs(self.parameters, max(self.n_threads // at_once, 1))
        return needs._replace(n_at_once=at_once)

    def parameters_on(self, data: Dataset) -> Parameters:
        """Return the parameters of learning with the number of bins of a data set."""
        if "max_bins" in self.learning and self.parameters.max_bins != data.max_bins:
            raise ParameterError(
                f"max_bins={self.parameters.max_bins} does not fit the data set, which has max_bins={data.max_bins}"
            )
        return replace(self.parameters, max_bins=data.max_bins)


def cross_validate(
    folded: FoldedRows, settings: FoldSettings, earlier: CVResult | None = None, *, predicts: bool = True
) -> CVResult:
    """Fit and evaluate a model on each fold.

    earlier : a result on the same folds that is continued; the settings have the number of all iterations. predicts : whether
    the result has predictions.
    """
    rows, folds, parameters = folded.rows, folded.folds, settings.parameters_on(folded.data)
    roles = folded.data._roles
    target = target_of(folded.targets, parameters, roles.get("target"))
    metrics = metric_names(settings.eval_metric, target)
    described = _described(parameters.with_loss(target.loss.name), metrics, settings.early_stopping)
    states = [] if earlier is None else earlier.states
    if earlier is not None:
        differs = first_difference(earlier.settings, described)
        if differs is not None:
            name, stored, current = differs
            raise ParameterError(f"start_from: {name} was {stored} in this result and is {current} now: repeat its parameters")
    needs_means = settings.needs_means
    at_once = folds_at_once(len(folds), needs_means)
    request_of = partial(
        FitRequest.of,
        settings.learning | {"max_bins": parameters.max_bins},
        eval_metric=settings.eval_metric,
        budget=None if settings.limit is None else Budget(max(settings.limit // at_once, 1), n_sharing=at_once),
        early_stopping=settings.early_stopping,
        n_at_once=at_once,
        roles=roles,
    )
    past = [state.history for state in states]
    means = FoldScores(
        len(folds),
        settings.callbacks,
        settings.progress,
        parameters.max_iter,
        settings.until,
        past,
        at_once,
        loss=target.loss.name,
    )
    fitted = fit_folds(rows.fit, folds, request_of, means, settings.n_threads, states)
    trim_memory()
    boosters = [trained(result, parameters) for result in fitted]
    scores, summary = _scores(fitted, metrics)
    best = _best(fitted, metrics, summary)
    states = [
        FoldState(fold, result.ensemble if result.whole is None else result.whole, tuple(result.history))
        for fold, result in zip(folds, fitted, strict=True)
    ]
    result = partial(CVResult, scores, summary, *best, boosters)
    if not predicts:
        return result(np.empty(0), states, described)
    held_out = rows.held_out_scores([booster.ensemble for booster in boosters], folds)
    predictions = _held_out_means(rows.n_rows, boosters[0].outputs.means, held_out)
    if folded.is_kept is not None:
        kept_predictions, predictions = predictions, np.full((len(folded.is_kept), *predictions.shape[1:]), np.nan)
        predictions[folded.is_kept] = kept_predictions
    if target.classes is not None:
        return result(predictions, states, described, weights=rows.weights())
    numbers = encode_column(folded.targets, target, lambda row: f"row {row} of those of positive weight")
    return result(predictions, states, described, numbers, rows.weights(), held_out)


def _described(parameters: Parameters, metrics: Sequence[MetricName], early_stopping: EarlyStopping | None) -> dict[str, Any]:
    """Return what a continued cross-validation must have in common with its beginning, as JSON."""
    learning = {name: value for name, value in parameters.to_dict().items() if name != "max_iter"}
    rule = None if early_stopping is None else asdict(early_stopping)
    described: dict[str, Any] = plain(learning | {"eval_metric": [metric.name for metric in metrics], "early_stopping": rule})
    return described


def target_of(targets: Column, parameters: Parameters, name: Any = None) -> Target:
    """Return the loss and the classes for the targets of a data set. name : of their column, if they are one."""
    dtype, is_bool = ("object", False) if isinstance(targets, CategoryColumn) else (str(targets.dtype), targets.dtype == bool)
    scan = scan_target(targets, None, dtype, is_bool)
    scans = [] if scan is None else [scan]  # a data set has rows
    if parameters.loss_name != "auto":
        return choose_target(scans, parameters, name)
    with warnings.catch_warnings():  # not safe with threads, so only where it is needed
        warnings.simplefilter("ignore")  # every fold warns
        return choose_target(scans, parameters, name)


def _scores(fitted: Sequence[FitResult], metrics: Sequence[MetricName]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the scores of each fold, and their means."""
    columns = [*((metric.column, metric.name) for metric in metrics), ("train_loss", "train_loss")]
    records = [
        (fold, record["iteration"], name, record[column])
        for fold, result in enumerate(fitted)
        for record in result.history
        for column, name in columns
    ]
    scores = pd.DataFrame(records, columns=["fold", "iteration", "metric", "value"])
    grouped = scores.groupby(["metric", "iteration"], sort=False)["value"]
    summary = pd.DataFrame({"mean": grouped.agg(mean_of), "std": grouped.std(ddof=0)}).reset_index()
    order = {name: number for number, (_, name) in enumerate(columns)}
    summary = summary.sort_values(
        ["iteration", "metric"], key=lambda column: column.map(order) if column.name == "metric" else column
    )
    return scores, summary[["iteration", "metric", "mean", "std"]].reset_index(drop=True)


def _best(fitted: Sequence[FitResult], metrics: Sequence[MetricName], summary: pd.DataFrame) -> tuple[int, float, str]:
    """Return the best iteration, its mean score, and the metric."""
    rule: StoppingRule | None = fitted[0].early_stopping
    metric = (
        metrics[-1]
        if rule is None
        else next(metric_of_rule for metric_of_rule in metrics if metric_of_rule.column == rule.column)
    )
    means = summary.loc[summary["metric"] == metric.name].set_index("iteration")["mean"]
    if rule is not None:
        return rule.best_iteration, float(means[rule.best_iteration]), metric.name
    losses = (-means if metric.greater_is_better else means).fillna(np.inf)
    best = int(losses.idxmin() if np.isfinite(losses).any() else losses.index[-1])
    return best, float(means[best]), metric.name


def _held_out_means(
    n_rows: int, output: Callable[[np.ndarray], np.ndarray], held_out: Sequence[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray:
    """Return the mean output of each row's raw scores by the models that have not been trained on it; NaN without one."""
    shape = output(held_out[0][1][:1]).shape[1:]
    sums, times = np.zeros((n_rows, *shape)), np.zeros(n_rows, np.int64)
    for positions, raw in held_out:
        sums[positions] += output(raw)
        times[positions] += 1
    with np.errstate(invalid="ignore"):
        return sums / (times if sums.ndim == 1 else times[:, None])
