"""``dboost train``: call `dboost.fit` with the keywords of the command line and save the model.

The model file equals that of the same call of `dboost.fit`. ``--history`` also writes what differs from run to run: seconds and
bytes per iteration, beside the scores. With ``--only-new`` the same command trains a first model, continues it when more files
have arrived, and does nothing without new files.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import dboost
from dboost.cli import HeldBackError, output_paths
from dboost.cli import arguments as settings
from dboost.cli.data_arguments import check_target, with_target
from dboost.cli.gate import Gate
from dboost.cli.ledger import model_settings, open_ledger
from dboost.cluster.client.client import cluster_at
from dboost.data.columns.labels import listed
from dboost.data.sources.files import no_files_error
from dboost.display import as_read, number
from dboost.errors import DataError, InputTypeError, ParameterError, is_passing, shown
from dboost.files.atomic_write import write_whole
from dboost.files.path_text import path_text
from dboost.training.history import NOT_SCORES


def run(arguments: argparse.Namespace) -> None:
    parameters = settings.keywords_in(arguments, dboost.fit)
    if arguments.arcbites:
        parameters.setdefault("arcbites", True)  # --set may have given options
    parameters |= _options(arguments)
    for option, value in (
        ("--moved-from", arguments.moved_from),
        ("--discard-batch", arguments.discard_batch),
        ("--retrain-if-changed", arguments.retrain_if_changed),
    ):
        if value and not arguments.only_new:
            raise ParameterError(f"{option} needs --only-new")
    if arguments.gate is not None and arguments.eval is None:
        raise ParameterError("--gate needs --eval, the held-out rows on which the models are compared")
    arguments.output = _output(arguments, parameters)
    output_paths.check(arguments.output, "--output")
    if arguments.history:
        output_paths.check(arguments.history, "--history")
    output_paths.check_separate(
        {"--output": arguments.output, "--history": arguments.history}, {"DATA": arguments.data, "--eval": arguments.eval}
    )
    if check_target(arguments) and arguments.only_new:
        raise ParameterError(f"--only-new looks for new files of a table, and {arguments.data} holds prepared data")
    if arguments.only_new:
        _train_on_new(arguments, parameters)
    else:
        _train(arguments, arguments.data, parameters)


def _output(arguments: argparse.Namespace, parameters: dict[str, Any]) -> str:
    """Return the path of the model. Without ``--output`` an existing model is replaced only by its continuation."""
    if arguments.overwrite and arguments.only_new:
        raise ParameterError("--overwrite replaces the model, and --only-new continues it: leave one of them out")
    if arguments.output is not None:
        return str(arguments.output)
    default = settings.DEFAULT_MODEL
    bases = [str(parameters[name]) for name in ("start_from", "init_model") if name in parameters]
    continued = arguments.only_new or os.path.abspath(path_text(default)) in map(os.path.abspath, bases)
    return default if arguments.overwrite or continued else output_paths.not_existing(default, "--output")


def _train(
    arguments: argparse.Namespace, data: Any, parameters: dict[str, Any], before_saving: Callable[[Any], None] | None = None
) -> None:
    try:
        with cluster_at(arguments.scheduler, arguments.workers) as client:
            data = with_target(arguments, data, client)
            if "eval_set" in parameters:
                parameters["eval_set"] = with_target(arguments, parameters["eval_set"], client, of=" of the evaluation set")
            if arguments.drop:
                _keep_features(arguments, parameters)
            gate = None if arguments.gate is None else Gate(arguments, parameters["eval_set"], parameters)
            booster = dboost.fit(data, arguments.target, client=client, **parameters)
            compared = "" if gate is None else gate.check(booster)
    except KeyboardInterrupt as stop:  # its message has the number of iterations
        kept = "" if arguments.checkpoint else "; nothing was saved"
        raise KeyboardInterrupt(f"{str(stop) or 'interrupted'}{kept}") from stop
    if before_saving is not None:
        before_saving(booster)
    booster.save(arguments.output)
    if arguments.history:
        write_whole(arguments.history, booster.history.to_csv(index=False).encode())
    if not arguments.quiet:
        print(_summary(booster, arguments.output) + compared, file=output_paths.summary_file(arguments.output))


def _keep_features(arguments: argparse.Namespace, parameters: dict[str, Any]) -> None:
    """Leave the features to the model that is continued, if there is one: columns that are new in the data are none of them."""
    base = next((parameters[name] for name in ("start_from", "init_model") if parameters.get(name) is not None), None)
    if base is None:
        return
    learned = [name for name in arguments.drop if name in dboost.load(base).feature_names_in_]
    if learned:
        raise ParameterError(f"--drop: {shown(base)} was trained on {listed(learned)}, and a model keeps its features")
    del parameters["features"]


def _train_on_new(arguments: argparse.Namespace, parameters: dict[str, Any]) -> None:
    """Train a first model, or continue it on the new files; see `dboost.cli.ledger`."""
    model, data = arguments.output, arguments.data
    continued = [parameters.pop(name, None) for name in ("start_from", "init_model")]
    for start in continued:
        if start not in (None, model):
            raise ParameterError(f"--only-new continues the model at --output, and --start-from names another: {shown(start)}")
    checkpoint = parameters.get("checkpoint")
    asked = model_settings(arguments.target, parameters)
    with open_ledger(model, data, asked, checkpoint, arguments.moved_from) as ledger:
        if arguments.discard_batch:
            ledger.discard()
        if any(continued) and not ledger.files:
            raise DataError(f"there is no model at {shown(model)} yet: the first fit is the same command without --start-from")
        batch = ledger.next_batch(retrain=arguments.retrain_if_changed)
        if batch is None:
            if not ledger.files:
                raise no_files_error(data)
            print(f"nothing new at {shown(data)}: {shown(model)} has learned from all that is there")
            return
        if batch.base is not None and not batch.begins_anew:
            parameters["start_from"] = model
        if checkpoint is not None:
            parameters["checkpoint"] = ledger.checkpoint(batch)
        parameters["callbacks"] = ledger.lease.check
        try:
            _train(arguments, ledger.rows(batch), parameters, lambda booster: ledger.record_model(booster.sha256))
        except (DataError, ParameterError, InputTypeError) as error:
            if not is_passing(error):
                ledger.withdraw()
            raise
        except HeldBackError as held:
            ledger.discard()
            raise HeldBackError(f"{held}; the next run trains on its files again, with those that arrive until then") from held
        ledger.commit()


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Options with a name of their own as keywords of `dboost.fit`, without those that are not given."""
    options = {
        "eval_set": arguments.eval,
        "start_from": arguments.start_from,
        "checkpoint": arguments.checkpoint,
        "progress": not arguments.quiet,
    }
    return {name: value for name, value in options.items() if value is not None}


def _summary(booster: Any, path: str) -> str:
    history, search = booster.history, booster.ensemble.search
    last = history[history["iteration"] == (booster.n_iter_ if search is None else booster.best_iteration)].to_dict("records")
    values = last[0].items() if last else ()  # NaN: evaluated by an earlier fit only
    shown = [as_read(name, value, booster.loss.name) for name, value in values if name not in NOT_SCORES and value == value]
    scores = [f", {name} {number(value)}" for name, value in dict(shown).items()]
    stopped = f" (the best of {history['iteration'].max()})" if booster.best_iteration and len(history) else ""
    if search is not None:
        stopped = f" on all rows, after a search that was best in iteration {booster.best_iteration} of {len(history)}"
    return f"{booster.n_iter_} iterations{stopped}{''.join(scores)}; saved as {path}"
