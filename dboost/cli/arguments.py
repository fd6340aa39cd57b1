"""The commands with their options, and training parameters from ``--set`` and ``--params``.

The module of a command is imported when the command runs, so that ``dboost --help`` responds at once.

``--set key=value`` reads the value as TOML (numbers, ``true``, ``"text"``, ``[1, 2]``), with three extensions: words need no
quotes (``--set loss=huber``), also in lists (``--set features=[age,income]``), ``none`` is Python's None, and JSON objects are
accepted. The keys are the keywords of `dboost.fit`; an unknown key is an error that suggests similar ones.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from dboost.errors import InputTypeError, ParameterError
from dboost.files.path_text import path_text
from dboost.params import Parameters
from dboost.params.peer_names import ALIASES, COMMANDS, explanation, with_our_names
from dboost.version import __version__

DATA = "Parquet or CSV: a file, a folder, a glob or a URL"
#: Output of ``dboost train`` without ``--output``.
DEFAULT_MODEL = "model.json"


#: What divides two assignments in one text.
_NEXT_KEY = re.compile(r",\s*(?=[A-Za-z_]\w*\s*=)")


class _OneValue(argparse.Action):
    """Store the value of an option; an option that is repeated is an error, where argparse would use its last value."""

    _is_given = False  # the parser is made for each command line

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if self._is_given:
            parser.error(f"{'/'.join(self.option_strings)} takes one value, but is given more than once")
        self._is_given = True
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with error messages of one line, whose options with a value may be given once."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.register("action", None, _OneValue)  # that of `add_argument` without action=

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"dboost: {message} (see {self.prog} --help)\n")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the arguments; ``run`` of the result is the function of the command. Exit with status 2 if they are invalid."""
    parser = Parser(prog="dboost", description="Gradient boosting on Dask.", allow_abbrev=False)
    parser.add_argument("-V", "--version", action="version", version=f"dboost {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for add in (_train, _predict, _inspect, _prepare, _cv, _plan, _demo, _warmup):
        command = add(commands)
        does = "show the log, too: what was decided, such as the loss, and where rows are"
        command.add_argument("-v", "--verbose", action="store_true", help=does)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        command.set_defaults(
            options={option: action.metavar for action in command._actions for option in action.option_strings}
        )
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-"):
        _check_options(parser, commands.choices, words[0], words[1:])
    arguments, others = parser.parse_known_args(words)
    if others:
        parser.error(_unrecognized(words[0], arguments, others))
    return arguments


def _unrecognized(name: str, arguments: argparse.Namespace, words: Sequence[str]) -> str:
    """Return the message for words after a command that are neither options nor their values."""
    from dboost.cli.unknown_words import bare_settings

    settings = bare_settings(words, partial(settable_by, name))
    if settings is not None:
        return settings
    advice = ""
    if name == "inspect" and len(words) == 1:
        advice = f"; rows are given by --data: write --html report.html --data {words[0]}, or --drift {words[0]}"
    elif name == "plan" and all(word.isdecimal() for word in (arguments.data, *words)):
        advice = f"; write {COMMANDS['rows']}"
    elif len(words) == 1 and getattr(arguments, "target", "") is None:
        advice = f"; write --target {words[0]}"
    return f"unrecognized arguments: {' '.join(words)}{advice}"


def _check_options(parser: Parser, commands: Mapping[str, argparse.ArgumentParser], name: str, words: Sequence[str]) -> None:
    """Exit for a command or options that do not exist, with what to write instead. words : after the command."""
    from dboost.cli.unknown_words import loose_settings, unknown_command, unknown_options

    if name not in commands:
        parser.error(unknown_command(name, list(commands)))
    settable = partial(settable_by, name)
    message = unknown_options(commands[name], words, settable, commands) or loose_settings(words, settable)
    if message is not None:
        commands[name].error(message)


def settable_by(name: str) -> tuple[list[str], dict[str, str]] | None:
    """Return the keywords that ``--set`` of a command takes, and why others cannot be set; None without ``--set``."""
    function = {"train": "fit", "cv": "cv", "prepare": "prepare"}.get(name)
    if function is None:
        return None
    elsewhere = getattr(importlib.import_module(f"dboost.cli.{name}_command"), "ELSEWHERE", ELSEWHERE)
    return keywords(getattr(importlib.import_module("dboost"), function), elsewhere), elsewhere


def _command(commands: argparse._SubParsersAction, name: str, does: str) -> argparse.ArgumentParser:
    """Add a command, whose module is imported when it runs."""

    def run(arguments: argparse.Namespace) -> None:
        importlib.import_module(f"dboost.cli.{name}_command").run(arguments)

    command: argparse.ArgumentParser = commands.add_parser(name, help=does, description=does, allow_abbrev=False)
    command.set_defaults(run=run, command=name)
    return command


def _train(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(commands, "train", "Train a model and save it.")
    _rows(command)
    command.add_argument(
        "--eval", metavar="DATA", type=_path, help="evaluation set: its metrics are computed after each iteration"
    )
    does = (
        "replace the model at --output only if the metric of the new one on the rows of --eval is not worse than that of the "
    )
    does += "old one by more than MARGIN, for example auc:0.002 [margin 0]; otherwise the exit status is 3"
    command.add_argument("--gate", metavar="METRIC:MARGIN", help=does)
    _keywords(command, "dboost.fit", "--set max_iter=500 --set loss=huber")
    where = f"where the model goes; replaces a file of this name [{DEFAULT_MODEL}, which is not replaced]"
    command.add_argument("--output", metavar="FILE", type=_path, help=where)
    command.add_argument("--overwrite", action="store_true", help=f"replace {DEFAULT_MODEL} without --output too")
    command.add_argument("--history", metavar="FILE.csv", type=_path, help="also write score and seconds of each iteration")
    command.add_argument(
        "--start-from", "--init-model", metavar="MODEL", type=_path, help="continue boosting this model on the data"
    )
    command.add_argument(
        "--only-new",
        action="store_true",
        help="train on the files that the model at --output has not seen, continuing it; nothing is done when there are none; "
        "of a Delta or Iceberg table: on the rows that were added since the last run",
    )
    moved = "with --only-new: the files that the model has seen in OLD are in DATA now"
    command.add_argument("--moved-from", metavar="OLD", type=_path, help=moved)
    discard = "with --only-new: give up an unfinished batch and its checkpoint, and begin with the files that are there"
    command.add_argument("--discard-batch", action="store_true", help=discard)
    retrain = "with --only-new: train a new model on all rows of the table if rows were deleted or changed; otherwise an error"
    command.add_argument("--retrain-if-changed", action="store_true", help=retrain)
    command.add_argument("--checkpoint", metavar="DIR", type=_path, help="save progress here; the same command resumes from it")
    command.add_argument("--memory-limit", metavar="SIZE", help="memory for the fit, in this process or each worker: 2GiB")
    bites = "boost on random subsets of the rows, one by one; for example --set arcbites={n_bites=20,trees_per_visit=1}"
    command.add_argument("--arcbites", action="store_true", help=bites)
    _cluster(command).add_argument("--workers", metavar="N", type=_positive, help="start N local workers")
    command.add_argument("--quiet", action="store_true", help="no progress bar and no summary")
    return command


def _predict(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(commands, "predict", "Predict rows and write the predictions to a Parquet or CSV file.")
    command.add_argument("model", metavar="MODEL", type=_path, help="file or URL of a saved model")
    command.add_argument("data", metavar="DATA", type=_path, help=DATA)
    command.add_argument(
        "--output",
        metavar="FILE",
        type=_path,
        required=True,
        help=".parquet or .csv, with a / at the end a folder of one Parquet file per partition, - for CSV on standard output; "
        "rows keep their order",
    )
    does = (
        "append the predictions to the Delta table in the folder --output, as one version; the table is made if there is none"
    )
    command.add_argument("--delta", action="store_true", help=does)
    does = "the column of DATA where raw scores start, as in the fit (log exposure, for example)"
    command.add_argument("--offset", metavar="COL", help=does)
    does = "write this column of DATA beside the predictions; may be repeated"
    command.add_argument("--id", metavar="COL", action="append", default=[], help=does)
    command.add_argument("--proba", action="store_true", help="one column of probabilities per class or label")
    command.add_argument(
        "--distribution", action="store_true", help="mean and scale (loc, scale) of each row, of a model of loss=normal"
    )
    command.add_argument("--interval", action="store_true", help="the bounds of intervals, of a model that was calibrated")
    _filter(command)
    _cluster(command)
    return command


def _inspect(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(commands, "inspect", "Show what a saved model is made of.")
    command.add_argument("model", metavar="MODEL", type=_path, help="file or URL of a saved model")
    command.add_argument("--importance", action="store_true", help="how much each feature matters")
    command.add_argument("--dependence", metavar="A,B", help="partial dependence on one or two features")
    command.add_argument("--drift", metavar="DATA", type=_path, help="whether these rows look like those it has learned from")
    command.add_argument("--json", action="store_true", help="print one JSON object instead of tables, without shortening")
    command.add_argument("--html", metavar="FILE", type=_path, help="write a report: one page that needs nothing else")
    command.add_argument("--data", metavar="DATA", type=_path, help="rows to look at for --dependence and --html")
    command.add_argument("--target", metavar="COL", type=target_text, help="the target of --data (for --html) or of --drift")
    command.add_argument("--weight", metavar="COL", help="what the rows of --data count for, in --dependence and --html")
    does = "the column of --data where raw scores start, in --dependence and --html"
    command.add_argument("--offset", metavar="COL", help=does)
    return command


def target_text(option: str) -> str | list[str]:
    """Return the target that an option names: a column, or several, whose names are joined by commas."""
    return option.split(",") if "," in option else option


def _prepare(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(commands, "prepare", "Read and bin a table once, for many fits.")
    command.add_argument("data", metavar="DATA", type=_path, help=DATA)
    command.add_argument(
        "--target", metavar="COL", type=target_text, required=True, help="the column to predict, or several: a,b"
    )
    _filter(command)
    _skip(command)
    _group(command)
    _drop(command)
    command.add_argument(
        "--output",
        metavar="FOLDER",
        type=_path,
        required=True,
        help="where the data go; prepared data that are there are replaced",
    )
    _keywords(command, "dboost.prepare", "--set sample_weight=w --set features=[age,income] --set max_bins=63")
    command.add_argument("--memory-limit", metavar="SIZE", help="memory that the command may use, for example 2GiB")
    command.add_argument("--quiet", action="store_true", help="no progress bar and no summary")
    return command


def _cv(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(commands, "cv", "Cross-validate: print the scores of held-out rows.")
    _rows(command)
    _folds(command)
    _keywords(command, "dboost.cv", "--set eval_metric=[auc,log_loss] --set early_stopping_rounds=20")
    command.add_argument("--output", metavar="FILE", type=_path, help="write all scores: .csv, .parquet or .json")
    command.add_argument(
        "--predictions", metavar="FILE", type=_path, help="write the predictions of held-out rows: .csv or .parquet"
    )
    command.add_argument("--memory-limit", metavar="SIZE", help="memory for all folds, in this process or each worker")
    _cluster(command).add_argument("--workers", metavar="N", type=_positive, help="start N local workers")
    command.add_argument("--quiet", action="store_true", help="no progress bar and no table, only the best score")
    return command


def _plan(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(commands, "plan", "Estimate the workers, memory and minutes that a fit needs.")
    command.add_argument("data", metavar="DATA", type=_path, help=f"{DATA}; its rows are counted")
    does = "the column to predict, or several: a,b; without it all columns are counted as features"
    command.add_argument("--target", metavar="COL", type=target_text, help=does)
    does = "number of workers, each on a host of its own; default: as many as hold the rows in memory"
    _cluster(command).add_argument("--workers", metavar="N", type=_positive, help=does)
    command.add_argument("--worker-memory", metavar="SIZE", help="memory of a worker [16GiB]")
    command.add_argument("--worker-threads", metavar="N", type=_positive, help="threads of a worker [4]")
    return command


def _demo(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(commands, "demo", "Train on real rows and show what comes out.")
    command.add_argument(
        "--output", metavar="DIR", type=_path, default="demo-output", help="where the results go [%(default)s]"
    )
    return command


def _warmup(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    does = "Compile the kernels now instead of in the first fit (cached for later processes)."
    return _command(commands, "warmup", does)


def _rows(command: argparse.ArgumentParser) -> None:
    """Add DATA and --target of a command that takes a table or a prepared data set; see `data_arguments`."""
    command.add_argument("data", metavar="DATA", type=_path, help=f"{DATA}; or a folder of dboost prepare")
    does = "the column to predict, or several: a,b; a folder of dboost prepare has one"
    command.add_argument("--target", metavar="COL", type=target_text, help=does)
    _filter(command)
    _skip(command)
    _group(command)
    _drop(command)


def _filter(command: argparse.ArgumentParser) -> None:
    does = (
        "use only these rows of DATA: comparisons of a column with a value, joined by 'and', for example \"age >= 18 and town "
    )
    does += "in ('Ulm', 'Bonn') and day is not null\""
    command.add_argument("--filter", metavar="TEXT", help=does)


def _skip(command: argparse.ArgumentParser) -> None:
    does = "leave out the rows without a target, and say how many these are; without this option they are an error"
    command.add_argument("--skip-missing-target", action="store_true", help=does)


def _drop(command: argparse.ArgumentParser) -> None:
    does = "a column of the table that is no feature; may be repeated"
    command.add_argument("--drop", metavar="COL", action="append", default=[], help=does)


def _group(command: argparse.ArgumentParser) -> None:
    does = "rows with the same value of this column belong together: samples of rows, and folds, take all or none of them"
    command.add_argument("--group", metavar="COL", help=does)


def _folds(command: argparse.ArgumentParser) -> None:
    """Add the options that divide the rows; see `data_arguments`."""
    does = "number of folds; column:NAME: each value of this column is a fold; ordered:N: N folds, each of which trains on the "
    does += "rows before those that it holds out [%(default)s]"
    command.add_argument("--folds", metavar="N", type=_fold_text, default=5, help=does)
    chosen = command.add_mutually_exclusive_group()
    chosen.add_argument("--groups", metavar="COL", help="like --group, for the folds only")
    does = "like ordered:N, in the order of this column; rows with the same value are not divided"
    chosen.add_argument("--time-column", metavar="COL", help=does)
    does = "divide the rows N times, each time differently [%(default)s]"
    chosen.add_argument("--repeats", metavar="N", type=_positive, default=1, help=does)


def _fold_text(text: str) -> int | str:
    """Check the text of ``--folds``."""
    kind, colon, value = text.partition(":")
    try:
        if not colon:
            return _positive(text)
        if (kind == "ordered" and _positive(value)) or (kind == "column" and value):
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not N, column:NAME or ordered:N")


def _keywords(command: argparse.ArgumentParser, function: str, example: str) -> None:
    """Add the options with the keywords of a function; the help lists those that set parameters of learning."""
    if function != "dboost.prepare":
        command.epilog = f"parameters of learning for --set: {', '.join(field.name for field in fields(Parameters))}"
    does = f"a keyword of {function}, for example {example}; may be repeated, the last wins"
    command.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help=does)
    command.add_argument(
        "--params", metavar="FILE.toml", type=_path, help=f"keywords of {function} from a file; --set overrides them"
    )


def _cluster(command: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    group = command.add_mutually_exclusive_group()
    group.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of this Dask scheduler")
    return group


def _path(text: str) -> str:
    try:
        return path_text(text)
    except InputTypeError as error:  # a TypeError, for which argparse would show the name of the function
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


_positive.__name__ = "whole number above 0"  # argparse calls a wrong value an "invalid <name>"


#: Keywords of `dboost.fit` that have an option of their own, or cannot be set from a command line.
ELSEWHERE = {
    "data": "it is the first argument",
    "target": "use --target",
    "group": "use --group",
    "filter": "use --filter",
    "eval_set": "use --eval",
    "client": "use --scheduler or --workers",
    "progress": "use --quiet",
    "callbacks": "functions can only be given in Python",
}


def literal(text: str) -> Any:
    """Return the Python value of a text.

    >>> literal("0.1"), literal("true"), literal("none"), literal("huber"), literal("[age, 3]")
    (0.1, True, None, 'huber', ['age', 3])
    """
    text = text.strip()
    if text.lower() in ("none", "null"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (_toml, json.loads, int, float):
        try:
            return read(text)
        except ValueError:
            continue
    if text.startswith("[") and text.endswith("]"):
        return [literal(item) for item in text[1:-1].split(",") if item.strip()]
    return text


def _toml(text: str) -> Any:
    table = tomllib.loads(f"value = {text}")
    value = table.pop("value")
    if table or not _is_plain(value):
        raise ValueError(text)
    return value


def _is_plain(value: Any) -> bool:
    """False for TOML's dates and times: no parameter has such a value, so 2011-01-31 is a text."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | bool)


def keywords(function: Callable[..., Any], elsewhere: Mapping[str, str]) -> list[str]:
    """Return the keywords of a function without those in `elsewhere`."""
    signature = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in signature if parameter.kind is parameter.KEYWORD_ONLY]
    return [name for name in names if name not in elsewhere]


def keywords_in(
    arguments: argparse.Namespace,
    function: Callable[..., Any],
    elsewhere: Mapping[str, str] = ELSEWHERE,
    assignments: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Return the keywords of a function in --params, --set (or these assignments), --group, --filter and --memory-limit."""
    known = keywords(function, elsewhere)
    parameters = gather(arguments.params, arguments.set if assignments is None else assignments, known, elsewhere)
    options = {name: getattr(arguments, name) for name in ("group", "memory_limit")}
    parameters |= {name: value for name, value in options.items() if value is not None}
    if arguments.filter is not None:
        from dboost.data.sources.row_filter import RowFilter  # needs more of the package than most commands

        parameters["filter"] = RowFilter(arguments.filter).predicate  # the same for texts that differ in spaces only
    if arguments.drop:
        from dboost.cli.data_arguments import features_left  # needs more of the package than most commands

        parameters["features"] = features_left(arguments, parameters)
    return parameters


def gather(
    file: str | None, assignments: Iterable[str], known: list[str], elsewhere: Mapping[str, str] = ELSEWHERE
) -> dict[str, Any]:
    """Return the parameters of a TOML file, overridden by ``key=value`` pairs (the last of equal keys wins).

    elsewhere : why other keys cannot be set.

    Raises
    ------
    ParameterError
        For a file that cannot be read, a pair without ``=``, or a key that is not in `known`.
    """
    parameters = _from_file(file) if file is not None else {}
    where = dict.fromkeys(parameters, f"in {file}")
    for assignment in assignments:
        key, value = key_and_value(assignment)
        first, *others = _NEXT_KEY.split(assignment)
        if not value.strip().startswith(("[", "{", '"', "'")) and any(_key_of(other) in known for other in others):
            raise ParameterError(f"--set takes one KEY=VALUE: write {' '.join(f'--set {each}' for each in (first, *others))}")
        parameters[key] = literal(value)
        where[key] = "in --set"
    for key in parameters:
        check_key(key, where[key], known, elsewhere)
    return with_our_names(parameters, known)


def _key_of(assignment: str) -> str:
    key = assignment.partition("=")[0].strip()
    return ALIASES.get(key, key)


def key_and_value(assignment: str) -> tuple[str, str]:
    """Split the value of ``--set``."""
    key, equals, value = assignment.partition("=")
    key = key.strip()
    if not (key and equals and value.strip()):
        raise ParameterError(f"--set takes key=value, not {assignment!r}")
    return key, value


def _from_file(file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(f"cannot read the parameter file {file}: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not text
        raise ParameterError(f"the parameter file {file} is not valid TOML: {error}") from error


def check_key(key: str, where: str, known: list[str], elsewhere: Mapping[str, str]) -> None:
    """Raise a ParameterError for an unknown key. where : it is, for the message; elsewhere : as of `gather`."""
    ours = ALIASES.get(key, key)
    if ours in known or key in known:
        return
    if ours in elsewhere:
        raise ParameterError(f"{key!r} cannot be set {where}: {elsewhere[ours]}")
    hint = explanation(key, known) or f"; there are: {', '.join(known)}"
    raise ParameterError(f"unknown parameter {key!r} {where}{hint}")
