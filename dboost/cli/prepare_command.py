"""``dboost prepare``: read and bin a table once, for many runs of ``dboost train``, ``dboost cv`` and ``dboost tune``."""

from __future__ import annotations

import argparse

import dboost
from dboost.cli import arguments as settings

#: Why keywords of `dboost.prepare` cannot be set.
ELSEWHERE = {
    "data": "it is the first argument",
    "target": "use --target",
    "group": "use --group",
    "path": "use --output",
    "client": "a folder is written by one process",
    "workers": "a folder is written by one process",
    "publish": "it keeps data on a cluster, not in a folder",
}


def run(arguments: argparse.Namespace) -> None:
    known = settings.keywords(dboost.prepare, ELSEWHERE)
    parameters = settings.gather(arguments.params, arguments.set, known, ELSEWHERE)
    if arguments.group is not None:
        parameters["group"] = arguments.group
    if arguments.memory_limit is not None:
        parameters["memory_limit"] = arguments.memory_limit
    with dboost.prepare(arguments.data, arguments.target, arguments.output, **parameters) as data:
        print(f"{data.n_rows:,} rows and {len(data.features)} features, prepared in {arguments.output}")
