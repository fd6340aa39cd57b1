"""``dboost train``: the keywords of `dboost.fit` from the command line, a saved model at the end.

The model file is the one that the same call of `dboost.fit` would save. ``--history`` writes what is not in it because
it differs from run to run: seconds and bytes per iteration, beside the scores. With ``--only-new`` the same command begins a
model, continues it when more files have arrived, and does nothing when none have.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import dboost
from dboost._storage_errors import shown
from dboost.cli import arguments as settings
from dboost.cli import outputs
from dboost.cli.ledger import Ledger
from dboost.distributed.client import cluster_at
from dboost.errors import DataError, ParameterError


def run(arguments: argparse.Namespace) -> None:
    outputs.check(arguments.output, "--output")
    if arguments.history:
        outputs.check(arguments.history, "--history")
    parameters = settings.gather(arguments.params, arguments.set, settings.parameter_names())
    if arguments.arcbites:
        parameters.setdefault("arcbites", True)  # --set may have said more
    parameters |= _options(arguments)
    if parameters.get("refit_leaves"):
        del parameters["progress"]  # there are no iterations to show
    if arguments.only_new:
        _train_on_new(arguments, parameters)
    else:
        _train(arguments, arguments.data, parameters)


def _train(
    arguments: argparse.Namespace, data: Any, parameters: dict[str, Any], before_saving: Callable[[Any], None] | None = None
) -> None:
    try:
        with cluster_at(arguments.scheduler, arguments.workers) as client:
            booster = dboost.fit(data, arguments.target, client=client, **parameters)
    except KeyboardInterrupt as stop:  # fit says in it how far it came
        kept = "" if arguments.checkpoint else "; nothing was saved"
        raise KeyboardInterrupt(f"{str(stop) or 'interrupted'}{kept}") from stop
    if before_saving is not None:
        before_saving(booster)
    booster.save(arguments.output)
    if arguments.history:
        with outputs.whole(arguments.history) as file:
            booster.history.to_csv(file, index=False)
    if not arguments.quiet:
        print(_summary(booster, arguments.output))


def _train_on_new(arguments: argparse.Namespace, parameters: dict[str, Any]) -> None:
    """Begin the model, or continue it on the files that it has not seen; see `dboost.cli.ledger`."""
    if arguments.start_from:
        raise ParameterError("--only-new continues the model at --output: --start-from has no place beside it")
    checkpoint = parameters.get("checkpoint")
    ledger = Ledger(arguments.output, arguments.data, checkpoint)
    batch = ledger.open()
    if batch is None:
        if not ledger.seen:
            raise DataError(f"there is no file at {shown(arguments.data)}")
        print(f"nothing new at {shown(arguments.data)}: {shown(arguments.output)} has learned from all that is there")
        return
    if batch.base is not None:
        parameters["start_from"] = arguments.output
    if checkpoint is not None:
        parameters["checkpoint"] = ledger.checkpoint(batch)
    _train(arguments, ledger.urls(batch), parameters, lambda booster: ledger.promise(booster.sha256))
    ledger.settle()


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that have a name of their own, as keywords of `dboost.fit`; its defaults hold for those not given."""
    given = {
        "eval_set": arguments.eval,
        "start_from": arguments.start_from,
        "checkpoint": arguments.checkpoint,
        "memory_limit": arguments.memory_limit,
        "progress": not arguments.quiet,
    }
    return {name: value for name, value in given.items() if value is not None}


def _summary(booster: Any, path: str) -> str:
    history = booster.history
    # Of a model that was continued the history tells the new iterations, of which none may have been kept.
    last = history[history["iteration"] == booster.n_iter_].to_dict("records")
    scores = [f", {name} {last[0][name]:.5g}" for name in history.columns if last and name not in NOT_SCORES]
    stopped = f" (the best of {history['iteration'].max()})" if booster.best_iteration and len(history) else ""
    return f"{booster.n_iter_} iterations{stopped}{''.join(scores)}; saved as {path}"


#: Columns of the history that are no scores.
NOT_SCORES = {
    "iteration", "bite", "visit", "seconds", "rows_kept", "bytes_read", "workers", "seconds_compute", "seconds_reduce",
    "seconds_wait",
}  # fmt: skip
