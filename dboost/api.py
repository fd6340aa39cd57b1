"""`dboost.fit`: what users call.

`dboost.prepare`: reading and binning a data set once, for many fits.

Models that follow a stream: chunk after chunk of data, each a continuation of the model before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dboost.booster import Booster, as_booster
from dboost.data import open_table
from dboost.distributed.client import client_for
from dboost.errors import DataError, InputTypeError, ParameterError
from dboost.model import model_file as storage
from dboost.params import Parameters, make_parameters
from dboost.session.evaluation import named_sets
from dboost.session.memory_budget import Budget, parse_memory_limit, reading_within
from dboost.session.warm_start import WarmStart, check_options, checked_source_name, idle_in_refit, keywords_for, without_model
from dboost.training.callbacks import Callback
from dboost.training.checkpoint import checkpoint_in
from dboost.training.fit import FitResult, available_threads, fit_table, interruptible_reading
from dboost.training.fit import fit as fit_rows
from dboost.training.plan import FitRequest, checked_callbacks
from dboost.training.prepared_dataset import PreparedDataset, PreparedRows, propose_within, scan_table, write_binned
from dboost.training.prepared_folder import check_same, describe, is_prepared, open_folder, write_folder


def fit(
    data: Any,
    target: Any,
    *,
    sample_weight: Any = None,
    offset: Any = None,
    features: Sequence[str] | None = None,
    categorical_features: Any = "from_dtype",
    eval_set: Any = None,
    eval_metric: Any = None,
    client: Any = None,
    n_threads: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    memory_limit: int | str | None = None,
    start_from: Any = None,
    source_name: str | None = None,
    continue_bins: str = "new",
    continue_steps: str = "damped",
    refit_leaves: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    **parameters: Any,
) -> Booster:
    """Train a boosted model.

    Parameters
    ----------
    data : dask DataFrame or Array, pandas or polars frame, pyarrow Table, array (n, F), or path
        A path is a file, folder, glob or URL of Parquet or CSV, or a folder that `dboost.prepare` has written.
    target : str, or one value per row
        The target column's name, or the targets. Of prepared data the same name again, or None.
    sample_weight : str, or one value per row, optional
    offset : str, or one value per row, optional
        Where each row's raw score starts, beside the constant that is best for all: log exposure for loss="poisson", say.
        Predictions are those of an offset of 0 unless `Booster.predict` is told another.
    features : sequence of str, optional
        Columns to use; default: all but target and weight.
    categorical_features : "from_dtype", None, mask, indices or names
    eval_set : frame, (X, y), (X, y, weight), (X, y, weight, offset), dict or list of these, optional
        Held-out rows; judged after every iteration.
    eval_metric : str or sequence of str, optional
        By scikit-learn's names; default: the loss.
    client : distributed.Client, optional
        Train on its cluster (not with prepared data). Default: for Dask collections and paths the current client, if there is
        one; else in this process.
    n_threads : int, optional
        Threads of this process. Default: all processors it may use. Workers use as many threads as they have.
    callbacks : sequence of callable
        Called with an `Iteration` after every iteration; returning True stops the fit.
    progress : bool, optional
        True: a bar on a terminal, lines elsewhere; False: nothing; default: a bar if there is a terminal.
    memory_limit : int or str, optional
        What the fit may add to the memory of this process, or of each worker, in bytes or as "2GiB". Rows that do not fit go
        to temporary files and are streamed; the model is the same. Default: all rows stay in memory.
    start_from : Booster, path or URL, optional
        Go on from this model with data that came later: every row begins with the model's score, and `max_iter` counts the
        new iterations. The columns must be the model's, the loss too (the default means the model's own); categories and
        values that the model has never met are legal, and so is a target that lacks some classes.
    source_name : str, optional
        What these data are called in `Booster.sources`.
    continue_bins : "new" or "kept"
        With `start_from`: candidates for splits from the new data, or those of the model's last data.
    continue_steps : "damped" or "full"
        With `start_from`: shorter steps where the model has little to learn or the new data are few (see
        `dboost.training.plan`), or those of a first fit.
    refit_leaves : bool
        With `start_from`: add no trees but estimate the leaf values of the model's anew from these data, see
        `Booster.refit_leaves`, which has more options.
    checkpoint : path or URL, optional
        A folder in which the fit is written down as it goes on. The same call finds it there after the process was killed,
        and goes on to the very model that it would have become; a call with other data or parameters is refused.
    checkpoint_every : int
        Iterations between two times that it is written.
    **parameters
        See `dboost.params.Parameters`.

    Returns
    -------
    Booster

    Raises
    ------
    DataError, ParameterError, InputTypeError
        With the column, partition, rows or parameter at fault. All are `DBoostError`.
    FitInterrupted
        On ^C; a `KeyboardInterrupt` that says how far the fit came.
    """
    if not isinstance(refit_leaves, bool):
        raise ParameterError(f"refit_leaves={refit_leaves!r} must be True or False")
    if refit_leaves:
        options = {"sample_weight": sample_weight, "offset": offset, "source_name": source_name, "n_threads": n_threads}
        options["client"] = client
        idle = {
            "eval_set": eval_set,
            "eval_metric": eval_metric,
            "features": features,
            "categorical_features": categorical_features,
            "callbacks": callbacks,
            "progress": progress,
            "memory_limit": memory_limit,
            "continue_bins": continue_bins,
            "continue_steps": continue_steps,
            "checkpoint": checkpoint,
            "checkpoint_every": checkpoint_every,
        }
        of_trees = [name for name, value in parameters.items() if value is not None]
        return _refitted(start_from, data, target, options, [*of_trees, *idle_in_refit(idle)])
    own = None
    if start_from is None:
        warm_start = without_model(continue_bins, continue_steps)
    else:
        model = as_booster(start_from)
        warm_start, own = WarmStart.continuation(model.ensemble, continue_bins, continue_steps), model.custom_loss
        parameters = keywords_for(model.ensemble, parameters, own)
    checked = make_parameters(parameters)
    threads = available_threads(n_threads)
    limit = parse_memory_limit(memory_limit)
    budget = None if limit is None else Budget(limit)
    columns: dict[str, Any] = {
        "sample_weight": sample_weight,
        "offset": offset,
        "features": features,
        "categorical_features": categorical_features,
    }

    def request(parameters: Parameters, columns: tuple[Any, Any, Any]) -> FitRequest:
        return FitRequest(
            parameters,
            threads,
            eval_sets=tuple(named_sets(eval_set)),
            eval_metric=eval_metric,
            columns=columns,
            callbacks=checked_callbacks(callbacks),
            progress=progress,
            warm_start=warm_start,
            checkpoint=checkpoint_in(checkpoint, checkpoint_every),
            source_name=checked_source_name(source_name),
            budget=budget,
        )

    own = own if isinstance(checked.loss, str) else checked.loss
    if is_prepared(data):
        if client is not None:
            raise ParameterError("prepared data are trained on in this process: leave the client out")
        given = columns | {"target": target}
        given["categorical_features"] = None if categorical_features == "from_dtype" else categorical_features
        given = {name: value for name, value in given.items() if value is not None}
        if warm_start.model is not None:
            given |= {"start_from": storage.digest(warm_start.model), "continue_bins": continue_bins}
        fitted = _fit_prepared(data, given, parameters, request)
    else:
        asked = request(checked, (target, sample_weight, offset))
        reading = columns | warm_start.like
        with client_for(data, client) as cluster:
            if cluster is not None:
                from dboost.distributed.cluster_fit import fit_on_cluster, n_parts_of
                from dboost.distributed.read_tasks import ReadTasks

                n_parts = n_parts_of(cluster)
                fitted = fit_on_cluster(
                    cluster, asked, lambda: ReadTasks(data, target, n_parts=n_parts, budget=budget, **reading)
                )
            else:
                fitted = fit_table(asked, lambda: open_table(data, target, **reading, options=reading_within(budget, threads)))
    return Booster(fitted.ensemble, history=fitted.history, timings=fitted.timings, loss=own)


def _fit_prepared(
    path: Any,
    given: dict[str, Any],
    parameters: dict[str, Any],
    request: Callable[[Parameters, tuple[Any, Any, Any]], FitRequest],
) -> FitResult:
    """Train on a folder that `prepare` has written.

    Parameters
    ----------
    given, parameters : dict
        Keywords of the user, of those that shaped the data and of those that shape the learning.
    request : callable
        The request of the fit with these parameters and these names of target, weight and offset.
    """
    data = open_folder(path)
    try:
        check_same(data, given | {name: parameters[name] for name in ("max_bins",) if name in parameters})
        checked = make_parameters(parameters | {"max_bins": data.settings["max_bins"]})
        names = (data.settings[name] for name in ("target", "sample_weight", "offset"))
        target, weight, offset = (None if name is None or str(name).startswith("<") else name for name in names)
        asked = request(checked, (target, weight, offset))
    except BaseException:
        data.close()
        raise
    return fit_rows(asked, PreparedRows(data, asked))


def _refitted(start_from: Any, data: Any, target: Any, options: dict[str, Any], given: list[str]) -> Booster:
    """What `fit` does with ``refit_leaves=True``. given : keywords that have nothing to do with it."""
    if start_from is None:
        raise ParameterError("refit_leaves=True needs start_from, the model whose leaf values are estimated anew")
    if is_prepared(data):
        raise ParameterError(f"refit_leaves=True needs the values of the rows, but {data} holds prepared data: give the data")
    if given:
        raise ParameterError(f"{given[0]} has nothing to do with refit_leaves=True, which adds no trees")
    return as_booster(start_from).refit_leaves(data, target, **options)


def prepare(
    data: Any,
    target: Any,
    path: str | os.PathLike[str],
    *,
    sample_weight: Any = None,
    offset: Any = None,
    features: Sequence[str] | None = None,
    categorical_features: Any = "from_dtype",
    max_bins: int = 255,
    random_state: int = 0,
    start_from: Any = None,
    continue_bins: str = "new",
    memory_limit: int | str | None = None,
    n_threads: int | None = None,
) -> None:
    """Read a data set once, bin it, and keep the result in a folder that `dboost.fit` takes in place of the data.

    Parameters
    ----------
    data, target, sample_weight, offset, features, categorical_features, max_bins, random_state
        As in `dboost.fit`. A fit on the folder cannot choose others: it takes these, and refuses any that differ. (The seed of
        `random_state` decides which rows propose the split points; a fit's own seed decides the rest.)
    path : str or path
        The folder, in the file system of this machine. A prepared data set that is there is replaced, anything else is refused.
    start_from : Booster, path or URL, optional
        The model that fits on the folder will go on from (they are given it too, and no other): the rows' scores under it are
        kept with them, for they cannot be told from bins.
    continue_bins : "new" or "kept"
        With `start_from`: see `dboost.fit`.
    memory_limit : int or str, optional
        What may be added to the memory of this process meanwhile. Default: an eighth of a GiB waits in memory, at most.
    n_threads : int, optional

    Raises
    ------
    DataError, ParameterError, InputTypeError
        As `dboost.fit`, or when something else is at `path`.
    StorageError
        When the folder cannot be written; then nothing is left of it. It is a `DBoostError`.
    """
    parameters = make_parameters({"max_bins": max_bins, "random_state": random_state})
    threads = available_threads(n_threads)
    model = None if start_from is None else as_booster(start_from).ensemble
    warm_start = without_model(continue_bins) if model is None else WarmStart.continuation(model, continue_bins)
    limit = parse_memory_limit(memory_limit)
    budget = None if limit is None else Budget(limit)
    settings = {
        "target": target,
        "sample_weight": sample_weight,
        "offset": offset,
        "features": features,
        "categorical_features": categorical_features,
        "max_bins": max_bins,
    }
    if model is not None:
        settings |= {"start_from": storage.digest(model), "continue_bins": continue_bins}

    def write(folder: Path) -> PreparedDataset:
        with (
            interruptible_reading(),
            open_table(
                data,
                target,
                sample_weight=sample_weight,
                offset=offset,
                features=features,
                categorical_features=categorical_features,
                **warm_start.like,
                options=replace(reading_within(budget, threads), spool_roles=True),
            ) as table,
        ):
            census = scan_table(table)
            begun = warm_start.widened(table.features)
            if begun.keeps_bins:
                binning = begun.binning(table.features)
            else:
                binning = propose_within(
                    table,
                    census.n_kept,
                    max_bins=parameters.max_bins,
                    seed=parameters.random_state,
                    n_threads=threads,
                    budget=budget,
                )
            seed = parameters.random_state
            written = write_binned(table, census, binning, folder, warm_start=begun, seed=seed, n_threads=threads)
        written.settings = {name: describe(value) for name, value in settings.items()}
        return written

    write_folder(path, write)


#: What only a fit with `start_from` takes, with its defaults.
_CONTINUING = {"continue_bins": "new", "continue_steps": "damped"}


def continue_on(chunks: Iterable[Any], target: Any = None, *, start_from: Any = None, **keywords: Any) -> Iterator[Booster]:
    """Train on a sequence of chunks, each as it comes; a generator of models.

    Parameters
    ----------
    chunks : iterable
        Tables of any kind that `dboost.fit` takes; or pairs of a label and a table, which becomes the ``source_name``; or
        pairs (X, y). One chunk is asked for at a time, when the model of those before has been handed out.
    target : str, optional
        The target's column, unless chunks are pairs (X, y).
    start_from : Booster, path or URL, optional
        The model to begin with. Default: the first chunk trains one.
    **keywords
        As in `dboost.fit`, for every chunk; `max_iter` is what each of them adds.

    Yields
    ------
    Booster
        The model after each chunk; ``*_, last = continue_on(…)`` keeps the last one only.

    Raises
    ------
    DataError
        With the number of the chunk that cannot be used; the models before are good.
    InputTypeError
        When nobody says what the target is.
    """
    model = start_from
    for number, chunk in enumerate(chunks, 1):
        data, of_chunk, more = chunk, target, {}
        if isinstance(chunk, tuple) and len(chunk) == 2:
            if isinstance(chunk[0], str):
                data, more = chunk[1], {"source_name": chunk[0]}
            else:
                data, of_chunk = chunk
        if of_chunk is None:
            raise InputTypeError("continue_on wants a target, or chunks that are pairs (X, y)")
        given = keywords
        if model is None:  # how to continue matters from the second chunk on
            check_options(*(keywords.get(name, default) for name, default in _CONTINUING.items()))
            given = {name: value for name, value in keywords.items() if name not in _CONTINUING}
        try:
            model = fit(data, of_chunk, start_from=model, **given | more)
        except DataError as error:
            raise DataError(f"chunk {number}: {error}") from error
        yield model
