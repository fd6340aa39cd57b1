"""The functions that train: `fit`, `prepare`, which reads and bins a data set once for many fits, and `continue_on`, which
trains on a sequence of chunks.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from typing import Any, Unpack

from dboost.argument_types import (
    CategoricalFeatures,
    Client,
    ColumnLike,
    EvaluationSets,
    MetricLike,
    ModelLike,
    RandomState,
    RowFilterLike,
    TableLike,
    TargetLike,
    WorkersLike,
)
from dboost.booster import Booster, as_booster, trained
from dboost.cluster.client.client import client_for
from dboost.data.columns.labels import CONSTRAINTS
from dboost.data.kinds.named_columns import columns_named, with_named_constraints
from dboost.data.kinds.table_kinds import is_path, is_stored_table, is_stream, names_of_table
from dboost.data.sources.row_filter import RowFilter
from dboost.data.tables.read_table import read_table
from dboost.dataset import Dataset
from dboost.errors import DataError, InputTypeError, ParameterError, warn
from dboost.files.path_text import path_text
from dboost.files.spool import PrivateDirectory
from dboost.input_data import TableInput, input_of, warn_of_copies
from dboost.params import EarlyStopping, LearningParameters, accepts_peer_names, canonical, shows_parameters, with_seed
from dboost.prepared.dataset_files import preparing
from dboost.prepared.dataset_settings import describe
from dboost.prepared.prepare import write_dataset
from dboost.session.memory import Budget
from dboost.session.warm_start import WarmStart, check_options, keywords_for, without_model
from dboost.tracebacks import short_traceback
from dboost.training.auto_iterations import BEFORE_FIT, RATE, search_of, validation_plan_maker, with_auto_iterations
from dboost.training.bag import check_bag
from dboost.training.callbacks import Callback
from dboost.training.request import FitRequest, check_group, checked_callbacks
from dboost.training.two_fits import check_refit, fit_twice


@short_traceback
@accepts_peer_names
@shows_parameters
def fit(
    data: TableLike,
    target: TargetLike = ...,
    *,
    sample_weight: ColumnLike | None = None,
    offset: ColumnLike | None = None,
    group: ColumnLike | None = None,
    features: Sequence[str] | None = None,
    categorical_features: CategoricalFeatures = "from_dtype",
    filter: RowFilterLike | None = None,
    eval_set: EvaluationSets | None = None,
    eval_metric: MetricLike | None = None,
    early_stopping: EarlyStopping | None = None,
    validation_fraction: float | None = None,
    refit: bool | None = None,
    bag: int = 1,
    client: Client | None = None,
    workers: WorkersLike | None = None,
    n_threads: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    memory_limit: int | str | None = None,
    time_limit: float | str | None = None,
    start_from: ModelLike | None = None,
    init_model: ModelLike | None = None,
    source_name: str | None = None,
    continue_bins: str = "new",
    continue_steps: str = "damped",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    keep_summary: bool = True,
    **parameters: Unpack[LearningParameters],
) -> Booster:
    """Train a boosted model.

    Parameters
    ----------
    data : dask DataFrame or Array, pandas or polars frame, pyarrow Table, array (n, F), path, or dboost.Dataset
        A path is a file, folder, glob or URL of Parquet or CSV, or a folder that `dboost.prepare` wrote or that has a Delta
        table. A `deltalake.DeltaTable`, and a table or scan of pyiceberg are accepted as well.
    target : str, or one value per row
        Name of the target column, or the targets. Not needed for prepared data.
    sample_weight : str, or one value per row, optional
        Name of the column of weights, or the weights. Default: 1.
    offset : str, or one value per row, optional
        Where each row's raw score starts, in addition to the best constant: for example log exposure with loss="poisson".
        `Booster.predict` uses an offset of 0 unless it is given another. Default: 0. With more than two classes it has no
        effect, with a warning: it would be added to the scores of all classes, which changes no probability.
    group : str, or one value per row, optional
        What rows belong together, such as a customer or a query: whole numbers or text; a text that is a whole number counts as
        this number. The rows of a group may lie anywhere. Samples of rows take whole groups: `subsample`, `arcbites` and the
        rows that these hold out; on a data set also the folds of `dboost.cv` and the validation rows of estimators. Without any
        of these it has no effect and is an error. Default: every row is drawn by itself.
    features : sequence of str, optional
        Columns to use. Default: all but target, weight, offset and group.
    categorical_features : "from_dtype", None, mask, indices or names, default "from_dtype"
        Which features are categorical. "from_dtype": columns of text and of categories.
    filter : str, list of tuples, pyarrow.compute.Expression or polars.Expr, optional
        Rows to use, such as ``"day < 9 and town in ('Ulm', 'Bonn')"``, ``[("day", "<", 9)]`` or
        ``pyarrow.compute.field("day") < 9``: those for which it is true. Its columns need not be features.
        Files and row groups without such rows are not read, as far as partitions and statistics tell. The target and the other
        roles must be columns of `data`; evaluation sets are not filtered. Default: all rows.
    eval_set : frame, (X, y), (X, y, weight), (X, y, weight, offset), dict or list of these, optional
        Evaluation sets; their metrics are computed after every iteration. A frame or a path has the columns of the training
        data, also those of weights, offsets and groups. Default: none.
    eval_metric : str, callable, dboost.metrics.Metric, or sequence of these, optional
        Metrics by scikit-learn's names or short ones ("rmse", "mae", "auc"). A callable ``f(y, prediction, weight) -> float``
        gets all rows of an evaluation set, sorted; its columns are described at `dboost.metrics.Metric`, which is merged over
        workers instead. Default: the loss.
    early_stopping : dboost.EarlyStopping, optional
        Stop by one metric of one evaluation set, with a least improvement. `early_stopping_rounds` is the same for the last
        metric of the last set. Default: none.
    validation_fraction : float or int, optional
        Share or number of the rows that are held out: they are the last evaluation set, "validation". A hash of a row's number
        decides, so they are the same for any partitioning; of classes an exact number of each, with `group` whole groups.
        Default: none; with ``max_iter="auto"`` and no `eval_set` 0.2, or 0.1 in one fit.
    refit : bool, optional
        Train once more at the end, on all rows, with as many iterations as early stopping has kept. The history and
        `Booster.best_iteration` are those of the fit that held rows out. Default: with ``max_iter="auto"`` where the Notes say
        so; False is one fit.
    bag : int, default 1
        With ``max_iter="auto"`` or `refit`: number of fits on all rows with different seeds, whose raw scores are averaged. A
        `subsample` or `max_features` below 1 makes them differ. They are one model, whose iterations are those of all fits in
        turn.
    client : distributed.Client, optional
        Train on its cluster (not with prepared data). Default: for Dask collections and paths the current client if there is
        one, else this process.
    workers : sequence of str, str, or dict of str to float, optional
        Addresses or names of the workers of the cluster that may take part, or resources that they must have, such as
        ``{"GPU": 1}``. A worker that has no dboost, or another version, is left out with a warning, or is an error if it was
        named here. Default: all workers.
    n_threads : int, optional
        Threads of this process. Default: all processors that it may use by its affinity and the quota of its container, at most
        OMP_NUM_THREADS, OMP_THREAD_LIMIT, NUMBA_NUM_THREADS or LOKY_MAX_CPU_COUNT, as they were when dboost was imported.
        Workers use their own number of threads.
    callbacks : sequence of callable, default ()
        Called with an `Iteration` after every iteration; the result True stops the fit.
    progress : bool, optional
        True: a progress bar on a terminal, lines elsewhere; False: nothing. Default: a bar on a terminal, else nothing.
    memory_limit : int or str, optional
        Memory that the fit may add to this process, or to each worker, in bytes or as "2GiB". Rows that do not fit are
        written to temporary files and streamed; the model is the same. Default: in this process all rows stay in memory; a
        worker streams what does not fit the memory that Dask permits.
    time_limit : float or str, optional
        Seconds, or a duration such as "10min", from the call: no iteration begins that would probably end later. The model has
        the iterations so far, at least one. Default: none.
    start_from : Booster, path or URL, optional
        Continue this model (warm start): every row starts with the model's score, and `max_iter` counts the new iterations.
        The columns and the loss must be those of the model (the default loss is the model's). New categories are accepted,
        and the target may lack some classes.
    init_model : Booster, path or URL, optional
        Alias of `start_from` (the name in LightGBM).
    source_name : str, optional
        Label of these data in `Booster.sources`.
    continue_bins : {"new", "kept"}, default "new"
        With `start_from`: split candidates from the new data, or those of the model's last data.
    continue_steps : {"damped", "full"}, default "damped"
        With `start_from`: smaller steps if the model has little left to learn or the new data are few (see
        `dboost.training.damped_steps`), or those of a first fit.
    checkpoint : path or URL, optional
        Folder of the fit's checkpoint. The same call resumes from it after the process was killed, and gives the same model
        as without the interruption; a call with other data or parameters, or while another process writes the checkpoint, is
        refused. Default: none.
    checkpoint_every : int, default 10
        Iterations between two checkpoints.
    keep_summary : bool, default True
        False: the model contains no value, category or count of the data, except the thresholds and categories that its splits
        need, the classes, and statistics that predictions need (baseline and leaf values). It gives the same predictions, but
        `drift`, path-dependent Shapley values, partial dependence without data and ``continue_bins="kept"`` are not possible.
    **parameters
        Parameters of learning. These names of other libraries are aliases: `grow_policy` of `growth`, and `leaf_estimation` of
        `step`; a parameter and its alias together are an error.

    Returns
    -------
    Booster

    Raises
    ------
    DataError, ParameterError, InputTypeError
        Naming the column, partition, rows or parameter. All are `DBoostError`.
    FitInterrupted
        On ^C; a `KeyboardInterrupt` with the number of completed iterations.

    Notes
    -----
    ``max_iter="auto"`` needs no tuning. It searches at a learning rate of 0.2, until the rows of `validation_fraction` have not
    improved for 25 iterations, and then trains on all rows at a rate of 0.07, with as many more iterations as the smaller rate
    and the additional rows need: n · 0.2 / 0.07 / (1 - 0.2), at most 2,000. Both fits draw a `subsample` of 0.8. The rows are
    read and binned once. `learning_rate` (that of all rows; the search has at least 0.2), `subsample`, `validation_fraction`
    and `early_stopping_rounds` (of the search) change that. With an `eval_set`, `start_from`, `checkpoint`, `time_limit`,
    `arcbites`, a schedule of learning rates or ``refit=False`` there is one fit: with a rate of 0.05, until the rows of
    `validation_fraction` (or the last `eval_set`) have not improved for 50 iterations. Give an `eval_set` of later rows if the
    model will predict later rows than it learns from: rows that are held out at random cannot tell how well it does.

    Examples
    --------
    >>> booster = dboost.fit(frame, "target", max_iter=200, eval_set=test)       # doctest: +SKIP
    >>> dboost.fit("s3://bucket/rows/", "target", client=client)                 # doctest: +SKIP
    >>> dboost.fit(new_rows, "target", start_from=booster)                       # doctest: +SKIP
    >>> dboost.fit(frame, "target", max_iter="auto")                             # doctest: +SKIP
    """
    began = time.perf_counter()
    learning = canonical({**parameters, "start_from": start_from, "init_model": init_model, "continue_steps": continue_steps})
    start_from, continue_steps = learning.pop("start_from"), learning.pop("continue_steps")
    holds_out_by_default, search, rate = False, None, learning.get("learning_rate")
    if isinstance(learning.get("max_iter"), str):
        holds_out_by_default = eval_set is None and validation_fraction is None
        needs = {"eval_set": eval_set, "start_from": start_from, "checkpoint": checkpoint, "time_limit": time_limit}
        search = search_of(learning, refit, **needs)
        validation_fraction = search.fraction if holds_out_by_default else validation_fraction
        learning = with_auto_iterations(learning, search, has_rule=early_stopping is not None)
    learning = with_seed(learning)
    if CONSTRAINTS & learning.keys():
        learning = with_named_constraints(learning, data)
    source = input_of(
        data,
        target,
        sample_weight=sample_weight,
        offset=offset,
        group=group,
        features=features,
        categorical_features=categorical_features,
        filter=filter,
        client=client,
        workers=workers,
    )
    model = None if start_from is None else as_booster(start_from)
    if model is None:
        warn_of_copies(source)
        warm_start = without_model(continue_bins, continue_steps)
    else:
        warm_start = WarmStart.continuation(model.ensemble, continue_bins, continue_steps)
        learning = keywords_for(model.ensemble, learning, model.custom_loss)
    make_validation_plan = None
    if validation_fraction is not None:
        make_validation_plan = validation_plan_maker(validation_fraction, learning, is_default=holds_out_by_default)
    request = FitRequest.of(
        source.shaped(learning),
        n_threads=n_threads,
        eval_set=eval_set,
        callbacks=callbacks,
        early_stopping=early_stopping,
        memory_limit=memory_limit,
        time_limit=time_limit,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        eval_metric=eval_metric,
        roles=source.roles,
        validation_fraction=validation_fraction,
        make_validation_plan=make_validation_plan,
        progress=progress,
        warm_start=warm_start,
        source_name=source_name,
        workers=workers,
        keep_summary=keep_summary,
        began=began,
    )
    if group is not None and validation_fraction is None:
        check_group(request.parameters)
    has_sets = eval_set is not None or validation_fraction is not None
    has_scores = has_sets or request.parameters.arcbites is not None or request.parameters.has_out_of_bag
    if eval_metric is not None and not has_scores:  # arcbites hold rows out
        warn("eval_metric has no effect without an eval_set")
    if refit is not None and refit is not False:
        check_refit(refit, request, stops=request.parameters.early_stopping_rounds is not None)
    searches = search is BEFORE_FIT
    if bag is True or bag != 1:
        check_bag(bag, request, has_second_fit=bool(refit) or searches)
    if refit or searches:
        fitted = fit_twice(
            source,
            request,
            rate=(RATE if rate is None else rate) if searches else None,
            fraction=validation_fraction or 0.0,
            bag=bag,
        )
    else:
        fitted = source.fit(request)
    return trained(fitted, request.parameters, model, source.data)


@short_traceback
async def fit_async(
    data: TableLike, target: TargetLike = ..., *, callbacks: Callback | Sequence[Callback] = (), **keywords: Any
) -> Booster:
    """Train a boosted model in a thread, for clients with ``asynchronous=True`` and other coroutines.

    Cancelling it ends the fit after the iteration that is running.

    Parameters
    ----------
    data, target, callbacks, **keywords
        As in `fit`. Callbacks are called in the thread.

    Returns
    -------
    Booster

    Raises
    ------
    DataError, ParameterError, InputTypeError
        As `fit`.

    Examples
    --------
    >>> async with Client(address, asynchronous=True) as client:                 # doctest: +SKIP
    ...     booster = await dboost.fit_async(frame, "target", client=client)
    """
    cancelled = threading.Event()

    def is_cancelled(_: Any) -> bool:
        return cancelled.is_set()

    try:
        return await asyncio.to_thread(fit, data, target, callbacks=(*checked_callbacks(callbacks), is_cancelled), **keywords)
    except asyncio.CancelledError:
        cancelled.set()
        raise


def belongs_to_fit(name: str) -> str | None:
    """Return that a keyword is one of `fit`, to follow its name in a message of another function; None if it is not."""
    return ": it is an argument of dboost.fit" if name in inspect.signature(fit).parameters else None


@short_traceback
@accepts_peer_names(belongs=belongs_to_fit)
def prepare(
    data: TableLike,
    target: TargetLike,
    path: str | os.PathLike[str] | None = None,
    *,
    sample_weight: ColumnLike | None = None,
    offset: ColumnLike | None = None,
    group: ColumnLike | None = None,
    features: Sequence[str] | None = None,
    categorical_features: CategoricalFeatures = "from_dtype",
    filter: RowFilterLike | None = None,
    max_bins: int = 255,
    random_state: RandomState = 0,
    start_from: ModelLike | None = None,
    init_model: ModelLike | None = None,
    continue_bins: str = "new",
    memory_limit: int | str | None = None,
    n_threads: int | None = None,
    client: Client | None = None,
    workers: WorkersLike | None = None,
    publish: str | None = None,
    progress: bool | None = None,
) -> Dataset:
    """Read a data set once and bin it, for many fits.

    Without a cluster the data set is in files. With a cluster it is in the memory of the workers, where each partition of the
    data was read; Dask spills it to disk if memory runs short, and reads the partitions of a lost worker again. Several fits
    may run on a data set at the same time.

    Parameters
    ----------
    data, target, sample_weight, offset, group, features, categorical_features, filter, max_bins, random_state
        As in `dboost.fit`. The groups are stored, for folds of `dboost.cv` and samples of any fit. A fit on the folder uses
        these and refuses other values. `random_state` is the seed of the sample of rows that proposes the split points; a fit's
        own seed applies to the rest.
    path : str or path, optional
        A folder, which stays. This process writes it, and `dboost.fit` also accepts its path; or with `client` the workers do,
        to a folder that all of them share or a URL of an object store, and any cluster and any process may open it again with
        ``dboost.Dataset(path)``. An existing prepared data set is replaced, other content is refused, and so is a call while
        another process writes the folder. Default: temporary files,
        removed when the data set is closed or garbage-collected; on a cluster, the memory of the workers.
    start_from : Booster, path or URL, optional
        A model that fits on the data set will continue: its features, categories and, with ``continue_bins="kept"``, its split
        points are those of the data set, so that the bins of a row determine its scores.
    init_model : Booster, path or URL, optional
        Alias of `start_from`.
    continue_bins : {"new", "kept"}, default "new"
        With `start_from`, "kept" is required.
    memory_limit : int or str, optional
        Memory that the call may add to this process. Default: at most 128 MiB of rows wait in memory.
    n_threads : int, optional
        Default: all processors that this process may use.
    client : distributed.Client, optional
        Prepare the data set on its workers. Default: for Dask collections and paths the current client if there is one and
        neither `path` nor `start_from` is given, else this process.
    workers : sequence of str, str, or dict of str to float, optional
        The workers of the cluster that may take part, also in fits on the data set; as in `dboost.fit`.
    publish : str, optional
        Keep the data set on the cluster under this name until `Dataset.unpublish`, also when this client leaves; other clients
        find it with ``dboost.Dataset.published(name)``.
    progress : bool, optional
        As in `dboost.fit`.

    Returns
    -------
    Dataset
        Also a context manager.

    Raises
    ------
    DataError, ParameterError, InputTypeError
        As `dboost.fit`, or if `path` has other content.
    StorageError
        If the folder cannot be written; it is removed then. It is a `DBoostError`.

    Examples
    --------
    >>> data = dboost.prepare("rows/*.parquet", "target")                        # doctest: +SKIP
    >>> boosters = [dboost.fit(data, learning_rate=rate) for rate in (0.1, 0.2)]     # doctest: +SKIP
    """
    path = None if path is None else path_text(path)
    start_from = canonical({"start_from": start_from, "init_model": init_model})["start_from"]
    model = None if start_from is None else as_booster(start_from).ensemble
    warm_start = without_model(continue_bins) if model is None else WarmStart.continuation(model, continue_bins)
    if model is not None and not warm_start.keeps_bins:
        raise ParameterError(
            "prepare(…, start_from=…) needs continue_bins='kept', the split points of the model: other bins do not tell which "
            "leaves of its trees the rows are in; or fit on the table itself with start_from"
        )
    shaping: dict[str, Any] = {"features": features, "categorical_features": categorical_features}
    roles = {"target": target, "sample_weight": sample_weight, "offset": offset} | ({} if group is None else {"group": group})
    row_filter = None if filter is None else RowFilter(filter)
    table = TableInput(data, roles, **shaping, row_filter=row_filter, client=client, workers=workers)
    if model is None:
        warn_of_copies(table)
    request = FitRequest.of(
        with_seed({"max_bins": max_bins, "random_state": random_state}),
        n_threads=n_threads,
        roles=table.roles,
        warm_start=warm_start,
        budget=None if memory_limit is None else Budget.of(memory_limit),  # without that of trees: none are grown
        workers=workers,
        progress=progress,
    )
    settings = _stored_settings(table, target, shaping | {"max_bins": max_bins}, row_filter)
    with closing(request.progress):
        return _prepared(table, request, settings, path, publish)


def _stored_settings(table: TableInput, target: Any, shaping: dict[str, Any], filter: RowFilter | None) -> dict[str, Any]:
    """Return what a data set stores of the keywords that it was prepared with. shaping : features and bins."""
    data = table.data
    names_of_role = partial(columns_named, data=data, is_read_later=is_path(data) or is_stream(data))
    settings: dict[str, Any] = {
        role: None if value is None else names_of_role(value) or f"<{type(value).__name__}>"
        for role, value in table.roles.items()
    }
    settings |= {name: describe(value) for name, value in shaping.items()}
    target_names = names_of_table(target) or ()
    if len(target_names) > 1:
        settings["target_names"] = [*target_names]
    if filter is not None:
        settings["filter"] = str(filter.predicate)
    return settings


def _prepared(
    table: TableInput, request: FitRequest, settings: dict[str, Any], path: str | None, publish: str | None
) -> Dataset:
    """Prepare a data set in this process or on a cluster. settings : see `BinnedRows`."""
    client, is_continued = table.client, request.warm_start.model is not None
    in_this_process = client is None and (path is not None or is_continued)
    with nullcontext() if in_this_process else client_for(table.data, client, table.workers) as cluster:
        if cluster is not None:
            if is_continued:
                raise ParameterError("start_from is for data sets of one process, not of a cluster: leave client or it out")
            return _prepared_on(cluster, table, request, settings, path, publish)
    if publish is not None or table.workers is not None:
        raise ParameterError(f"{'publish' if table.workers is None else 'workers'} needs a cluster: give its client")
    temporary = None
    if path is None:
        temporary = PrivateDirectory()
        path = str(temporary.path / "prepared")
    try:
        with preparing(path, by_workers=False) as lease:
            stored = write_dataset(path, lease, partial(read_table, table), request, settings)
        return Dataset.of(stored, stored, temporary)
    except BaseException:
        if temporary is not None:
            temporary.close()
        raise


def _prepared_on(
    client: Any, table: TableInput, request: FitRequest, settings: dict[str, Any], path: str | None, publish: str | None
) -> Dataset:
    """Prepare a data set on a cluster. settings : see `BinnedRows`."""
    from dboost.cluster.training.cluster_dataset import ClusterRows

    stored = None
    with nullcontext() if path is None else preparing(path, by_workers=True) as lease:
        rows = table.binned_on(client, request, settings)
        if path is not None and lease is not None:
            stored = rows.write(path, lease)
            rows.close()
            rows = ClusterRows.stored(stored, client, request.workers)  # partitions of lost workers are read from the files
    if publish is not None:
        rows.publish(publish)
    return Dataset.of(rows, stored)


#: Keywords that only a fit with `start_from` accepts, with their defaults.
_CONTINUING = {"continue_bins": "new", "continue_steps": "damped"}


@short_traceback
@accepts_peer_names
def continue_on(
    chunks: Iterable[TableLike], target: TargetLike | None = None, *, start_from: ModelLike | None = None, **keywords: Any
) -> Iterator[Booster]:
    """Train on a sequence of chunks, one after the other; a generator of models.

    Parameters
    ----------
    chunks : iterable
        Tables of any kind that `dboost.fit` accepts; or pairs of a label, which becomes the ``source_name``, and a table; or
        pairs (X, y). A chunk is requested after the model of the previous one has been yielded. Or a Delta table (its folder or
        URL, or a `deltalake.DeltaTable`) or a table of pyiceberg: one chunk with the rows that were added since the version
        that the model has learned, or none. The ``source_name`` in the model is the id and the version of the table.
    target : str, optional
        Name of the target column, unless chunks are pairs (X, y).
    start_from : Booster, path or URL, optional
        The first model; alias: `init_model`. Default: the first chunk trains one.
    **keywords
        As in `dboost.fit`, for every chunk; each of them adds `max_iter` iterations.

    Yields
    ------
    Booster
        The model after each chunk; ``*_, last = continue_on(…)`` keeps only the last one.

    Raises
    ------
    DataError
        Naming the number of the chunk that cannot be used; the previous models are valid. Or if rows of a table were deleted or
        changed since the version that the model has learned.
    ParameterError
        If the model has not learned from the table by `continue_on`, so that its version is unknown.
    InputTypeError
        Without a target, or if `chunks` is a path of something else than a table with versions.

    Examples
    --------
    >>> for booster in dboost.continue_on(monthly_frames, "target"):             # doctest: +SKIP
    ...     booster.save("model.json")
    """
    keywords = canonical(keywords | {"start_from": start_from})
    model = keywords.pop("start_from")
    if isinstance(chunks, Booster) or isinstance(target, Booster):
        raise InputTypeError("continue_on takes many tables; for one: dboost.fit(data, target, start_from=model)")
    if isinstance(chunks, str | os.PathLike) or is_stored_table(chunks):
        model = None if model is None else as_booster(model)
        chunks = _added_rows(chunks, model, keywords.get("source_name"))
    for number, chunk in enumerate(chunks, 1):
        data, chunk_target, more = chunk, target, {}
        if isinstance(chunk, tuple) and len(chunk) == 2:
            if isinstance(chunk[0], str):
                data, more = chunk[1], {"source_name": chunk[0]}
            else:
                data, chunk_target = chunk
        if chunk_target is None:
            raise InputTypeError("continue_on needs a target, or chunks that are pairs (X, y)")
        options = keywords
        if model is None:  # these keywords apply from the second chunk on
            check_options(*(keywords.get(name, default) for name, default in _CONTINUING.items()))
            options = {name: value for name, value in keywords.items() if name not in _CONTINUING}
        try:
            model = fit(data, chunk_target, start_from=model, **options | more)
        except DataError as error:
            raise DataError(f"chunk {number}: {error}") from error
        yield model


def _added_rows(table: Any, model: Booster | None, source_name: str | None) -> Iterator[Any]:
    """Yield the rows that were added to a table since the version that a model has learned, with their label."""
    from dboost.data.sources.files import shown_path, table_name
    from dboost.data.sources.paths import load_table
    from dboost.data.sources.table_versions import adapter_of, added_since, has_versions, label, learned_version

    shown = table
    table = load_table(table) if isinstance(table, str | os.PathLike) else table
    if not has_versions(table):
        raise InputTypeError(
            f"continue_on takes a sequence of tables, a Delta table, or an Iceberg table, and {shown_path(shown)} is none: "
            "give a list"
        )
    if source_name is not None:
        raise ParameterError("source_name is the version of the table here: leave it out")
    since = None
    if model is not None:
        since = learned_version(table, [source["label"] for source in model.sources])
        if since is None:
            present = label(table, adapter_of(table).version or 0)
            raise ParameterError(
                f"the model has no source that names a version of {table_name(table)}, so it is unknown which of its rows are "
                f"new: train the first model by continue_on, or with source_name={present!r}"
            )
    added = added_since(table, since)
    if added.files:
        yield label(table, added.version), added
