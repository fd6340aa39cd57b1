"""`dboost.prepare`: reading and binning a data set once, for many fits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dboost.adopt import as_booster
from dboost.model import storage
from dboost.params import make_parameters
from dboost.sources import open_table
from dboost.training.binned import BinnedData, propose_within, take_census, write_binned
from dboost.training.boost import reading
from dboost.training.budget import Budget, parse_limit, reading_within
from dboost.training.fit import available_threads
from dboost.training.folder import describe, write_folder
from dboost.training.origin import Origin, without_model


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
    origin = without_model(continue_bins) if model is None else Origin.continuation(model, continue_bins)
    limit = parse_limit(memory_limit)
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

    def write(folder: Path) -> BinnedData:
        with (
            reading(),
            open_table(
                data,
                target,
                sample_weight=sample_weight,
                offset=offset,
                features=features,
                categorical_features=categorical_features,
                **origin.like,
                **(reading_within(budget, threads) | {"spool_roles": True}),
            ) as table,
        ):
            census = take_census(table)
            begun = origin.widened(table.features)
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
            written = write_binned(table, census, binning, folder, origin=begun, seed=seed, n_threads=threads)
        written.settings = {name: describe(value) for name, value in settings.items()}
        return written

    write_folder(path, write)
