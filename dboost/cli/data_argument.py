"""The arguments DATA and ``--target``: a table with a target, or a folder of ``dboost prepare``, which has one."""

from __future__ import annotations

import argparse
from typing import Any

import dboost
from dboost._storage_errors import shown
from dboost.errors import ParameterError
from dboost.training.prepared_folder import is_prepared


def check_target(arguments: argparse.Namespace) -> bool:
    """Return whether DATA is a prepared data set.

    Raises
    ------
    ParameterError
        If ``--target`` is missing, or is not the target of the prepared data set, or the latter is to be used on a cluster.
    """
    data, target = arguments.data, arguments.target
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
    """Return DATA as an argument of `dboost.cv`, and the keyword with its target, if it needs one; checks as `check_target`."""
    if check_target(arguments):
        return dboost.Dataset(arguments.data), {}
    return arguments.data, {"target": arguments.target}
