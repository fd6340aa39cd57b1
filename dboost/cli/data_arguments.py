"""The arguments that name rows: DATA and ``--target``, and the options that divide the rows.

DATA is a table with a target, or a folder of ``dboost prepare``, which has one. ``dboost cv`` divides the
rows by --folds, --groups, --time-column and --repeats. The columns are not features. They are columns of the table: a prepared
data set has only the bins of its features. With --skip-missing-target the rows without a target are left out where they are
read; this reads the column of the target once more, to count them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

import dboost
from dboost._lazy_import import pd
from dboost.data.columns.labels import Names
from dboost.data.columns.roles import ROLES
from dboost.data.sources.paths import open_path, open_source, open_with_text
from dboost.data.sources.row_filter import RowFilter
from dboost.errors import DataError, ParameterError, shown
from dboost.prepared.dataset_files import is_prepared


def check_target(arguments: argparse.Namespace) -> bool:
    """Return whether DATA is a prepared data set.

    Raises
    ------
    ParameterError
        If ``--target`` is missing, or is not the target of the prepared data set, or the latter is to be used on a cluster.
    """
    data, target = arguments.data, arguments.target
    if is_prepared(data) and arguments.filter is not None:
        raise ParameterError(f"--filter: {data} holds prepared data, whose rows were chosen before: give it to prepare")
    if is_prepared(data) and arguments.skip_missing_target:
        raise ParameterError(f"--skip-missing-target: {data} holds prepared data, whose rows have a target: give it to prepare")
    if not is_prepared(data):
        if target is None:
            raise ParameterError(f"--target is missing: {shown(data)} is no folder that dboost prepare has written")
        return False
    if arguments.scheduler or arguments.workers:
        option = "--scheduler" if arguments.scheduler else "--workers"
        raise ParameterError(f"{option}: {data} holds prepared data, which are trained on in this process")
    known = dboost.Dataset(data).target
    if target not in (None, known):
        raise ParameterError(f"--target {target} is not that of the prepared data in {data}, which is {known}")
    return True


def rows_of(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return DATA as an argument of `dboost.cv`, and a keyword with its target, unless it is a prepared data set.

    Checks as `check_target`.
    """
    if check_target(arguments):
        if arguments.group is not None:
            raise ParameterError(f"--group: {arguments.data} holds prepared data, which have the groups of dboost prepare")
        return dboost.Dataset(arguments.data), {}
    return arguments.data, {"target": arguments.target}


def with_target(arguments: argparse.Namespace, data: Any, client: Any = None, *, of: str = "") -> Any:
    """Return the rows of a path that have a target: the path itself without --skip-missing-target, or if all rows have one.

    Prints how many rows are left out, unless --quiet is given. client : where the rows are read; of : a suffix of the sentence,
    if the data are not DATA, to which --filter belongs.
    """
    if not arguments.skip_missing_target:
        return data
    row_filter = None if arguments.filter is None or of else RowFilter(arguments.filter)
    source = open_with_text(data, row_filter=row_filter)  # of CSV files: every block has the same types then
    frame = (open_source(data, row_filter=row_filter) if source is None else source).lazy()
    targets = _names(arguments.target)
    if not {*targets} <= {*frame.columns}:
        return data  # reading it raises the error
    counts = frame[targets].map_partitions(_without_target, targets, meta=(None, np.int64)).sum()
    count = int(counts.compute() if client is None else client.compute(counts).result())
    if not count:
        return data
    if not arguments.quiet:
        print(f"{count:,} row{'' if count == 1 else 's'}{of} without a target {'was' if count == 1 else 'were'} left out")
    return frame.map_partitions(_rows_with_target, targets, meta=frame._meta)


def _names(target: str | list[str] | None) -> list[str]:
    """Return the names of the target's columns."""
    return [target] if isinstance(target, str) else target or []


def _is_missing(frame: pd.DataFrame, targets: list[str]) -> np.ndarray:
    """Return the rows without one of the targets: bool[n]."""
    missing = np.zeros(len(frame), bool)
    for column in (frame[target] for target in targets):
        missing |= column.isna().to_numpy(bool)
        missing |= (column != column).fillna(True).to_numpy(bool)  # Arrow's columns have NaN beside null
    return missing


def _without_target(frame: pd.DataFrame, targets: list[str]) -> pd.Series:
    return pd.Series([_is_missing(frame, targets).sum()])


def _rows_with_target(frame: pd.DataFrame, targets: list[str]) -> pd.DataFrame:
    return frame[~_is_missing(frame, targets)]


def features_left(arguments: argparse.Namespace, parameters: Mapping[str, Any]) -> list[str]:
    """Return all columns of DATA but those of --drop and those that are something else than a feature.

    parameters : keywords of the command.

    Raises
    ------
    ParameterError, DataError
        If DATA is a prepared data set, if `features` is given too, or for an unknown column.
    """
    if is_prepared(arguments.data):
        raise ParameterError(f"--drop: {arguments.data} holds prepared data, which have the features of dboost prepare")
    if parameters.get("features") is not None:
        raise ParameterError("--drop and features are two ways to choose columns: give one")
    columns = list(open_path(arguments.data, columns=()).columns)  # the fit checks those that it uses
    for name in arguments.drop:
        if name not in columns:
            raise DataError(f"--drop: {arguments.data} has no column {name!r}{Names.of(columns).hint(name)}")
    roles = {parameters[role] for role in ROLES if isinstance(parameters.get(role), str)}
    others = {
        *_names(arguments.target),
        *arguments.drop,
        *roles,
        *(fold_columns(arguments) if hasattr(arguments, "folds") else ()),
    }
    return [name for name in columns if name not in others]


#: Why keywords of `dboost.cv` cannot be set by ``--set``.
FOLD_KEYWORDS = {
    "folds": "use --folds",
    "groups": "use --groups",
    "time": "use --time-column",
    "repeats": "use --repeats",
    **dict.fromkeys(("start_from", "init_model"), "results of dboost.cv can only be continued in Python"),
}


def fold_keywords(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords of `dboost.cv` that divide the rows.

    Raises
    ------
    ParameterError
        If an option names a column of a prepared data set, or options contradict each other.
    """
    kind, _, value = str(arguments.folds).partition(":")
    for option, column in (
        ("--folds", value if kind == "column" else None),
        ("--groups", arguments.groups),
        ("--time-column", arguments.time_column),
    ):
        if column is not None and is_prepared(arguments.data):
            raise ParameterError(
                f"{option}: {arguments.data} holds prepared data, without the column {column!r}: give the table"
            )
    if value:
        for option, is_given in (
            ("--groups", arguments.groups is not None),
            ("--time-column", arguments.time_column is not None),
            ("--repeats", arguments.repeats > 1),
        ):
            if is_given:
                raise ParameterError(f"{option} needs a number of folds, not --folds {arguments.folds}")
    keywords = {"groups": arguments.groups, "time": arguments.time_column, "repeats": arguments.repeats}
    if kind == "ordered":
        from sklearn.model_selection import TimeSeriesSplit  # importing it takes time that most runs need not spend

        if int(value) < 2:
            raise ParameterError(f"--folds {arguments.folds}: at least two folds are needed")
        return keywords | {"folds": TimeSeriesSplit(int(value))}
    return keywords | {"folds": value if kind == "column" else arguments.folds}


def fold_columns(arguments: argparse.Namespace) -> list[str]:
    """Return the columns that divide the rows."""
    kind, _, value = str(arguments.folds).partition(":")
    named = (value if kind == "column" else None, arguments.groups, arguments.time_column)
    return [name for name in named if name is not None]
