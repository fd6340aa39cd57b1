"""``dboost prepare``: read and bin a table once, for many runs of ``dboost train`` and ``dboost cv``."""

from __future__ import annotations

import argparse

import dboost
from dboost.cli import arguments as settings
from dboost.cli import output_paths
from dboost.cli.data_arguments import with_target

#: Why keywords of `dboost.prepare` cannot be set.
ELSEWHERE = {
    "data": "it is the first argument",
    "target": "use --target",
    "group": "use --group",
    "filter": "use --filter",
    "path": "use --output",
    "client": "a folder is written by one process",
    "workers": "a folder is written by one process",
    "progress": "use --quiet",
    "publish": "it keeps data on a cluster, not in a folder",
}


def run(arguments: argparse.Namespace) -> None:
    parameters = settings.keywords_in(arguments, dboost.prepare, ELSEWHERE)
    output_paths.check_writable(arguments.output, "--output")
    rows, progress = with_target(arguments, arguments.data), not arguments.quiet
    with dboost.prepare(rows, arguments.target, arguments.output, progress=progress, **parameters) as data:
        if not arguments.quiet:
            print(f"{data.n_rows:,} rows and {len(data.features)} features, prepared in {arguments.output}")
