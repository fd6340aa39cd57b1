"""``dboost plan``: the workers, memory and minutes that a fit needs, by `dboost.plan`."""

from __future__ import annotations

import argparse

import dboost
from dboost.cluster.client.client import cluster_at


def run(arguments: argparse.Namespace) -> None:
    options = {name: getattr(arguments, name) for name in ("workers", "worker_memory", "worker_threads")}
    with cluster_at(arguments.scheduler, None) as client:
        print(dboost.plan(arguments.data, arguments.target, client=client, **options))
