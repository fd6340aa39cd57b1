"""``dboost train``: the keywords of `dboost.fit` from the command line, a saved model at the end.

The model file is the one that the same call of `dboost.fit` would save. ``--history`` writes what is not in it because
it differs from run to run: seconds and bytes per iteration, beside the scores.
"""

from __future__ import annotations

import argparse
from typing import Any

import dboost
from dboost.cli import outputs, settings
from dboost.cluster.choice import cluster_at


def run(arguments: argparse.Namespace) -> None:
    outputs.check(arguments.output, "--output")
    if arguments.history:
        outputs.check(arguments.history, "--history")
    parameters = settings.gather(arguments.params, arguments.set, settings.parameter_names())
    parameters |= _options(arguments)
    try:
        with cluster_at(arguments.scheduler, arguments.workers) as client:
            booster = dboost.fit(arguments.data, arguments.target, client=client, **parameters)
    except KeyboardInterrupt as stop:  # fit says in it how far it came
        raise KeyboardInterrupt(f"{str(stop) or 'interrupted'}; nothing was saved") from stop
    booster.save(arguments.output)
    if arguments.history:
        with outputs.whole(arguments.history) as file:
            booster.history.to_csv(file, index=False)
    if not arguments.quiet:
        print(_summary(booster, arguments.output))


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that have a name of their own, as keywords of `dboost.fit`; its defaults hold for those not given."""
    given = {
        "eval_set": arguments.eval,
        "start_from": arguments.start_from,
        "checkpoint": arguments.checkpoint,
        "memory_limit": arguments.memory_limit,
        "arcbites": arguments.arcbites or None,
        "progress": not arguments.quiet,
    }
    return {name: value for name, value in given.items() if value is not None}


def _summary(booster: Any, path: str) -> str:
    history = booster.history
    last = history.iloc[(booster.best_iteration or len(history)) - 1]
    scores = [f"{name} {last[name]:.5g}" for name in history.columns if name not in NOT_SCORES]
    stopped = f" (the best of {len(history)})" if booster.best_iteration else ""
    return f"{booster.n_iter_} iterations{stopped}, {', '.join(scores)}; saved as {path}"


#: Columns of the history that are no scores.
NOT_SCORES = {"iteration", "seconds", "rows_kept", "bytes_read", "seconds_compute", "seconds_reduce", "seconds_wait"}
