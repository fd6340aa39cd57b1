"""``dboost tune``: call `dboost.integrations.optuna.tune` with ranges from the command line, and print the best trials.

The study is kept in the file ``--output``; the same command continues it after it was stopped or killed. The last line printed
is the ``dboost train`` command that trains with the best parameters on all rows.

Values of ``--set`` are ranges, lists of choices, and values that stay the same in all trials. ``LOW..HIGH`` is a range, of
integers if both ends are integers; ``log:LOW..HIGH`` is one whose logarithm is searched evenly; ``A,B,C`` are choices.
Everything else, also in brackets or quotes, is a value as in the other commands.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from dboost.cli import arguments as settings
from dboost.cli import outputs
from dboost.cli.arguments import key_and_value, literal
from dboost.cli.cv_command import check_output
from dboost.cli.data_arguments import FOLD_KEYWORDS, fold_columns, fold_keywords, rows_of
from dboost.distributed.client import cluster_at
from dboost.errors import ParameterError
from dboost.inspection.plots import canvas
from dboost.inspection.plots.performance import plot_trials
from dboost.integrations.optuna import optuna, tune
from dboost.storage.atomic_write import write_whole

#: A choice: what Optuna can store.
Choice = bool | int | float | str | None


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, which are both integers or both floats."""

    low: int | float
    high: int | float
    log: bool = False


def divide(assignments: Iterable[str]) -> tuple[list[str], dict[str, Range | list[Choice]]]:
    """Return the assignments of single values, and what is searched; the last of equal keys wins.

    Raises
    ------
    ParameterError
        Naming the assignment.
    """
    last = {key_and_value(assignment)[0]: assignment for assignment in assignments}
    fixed: list[str] = []
    searched: dict[str, Range | list[Choice]] = {}
    for key, assignment in last.items():
        try:
            found = parse(key_and_value(assignment)[1])
        except ValueError as error:
            raise ParameterError(f"--set {assignment}: {error}") from None
        if found is None:
            fixed.append(assignment)
        else:
            searched[key] = found
    return fixed, searched


def parse(text: str) -> Range | list[Choice] | None:
    """Return a range or a list of choices; None for a single value.

    Raises
    ------
    ValueError
        For a range or a list that cannot be searched.

    Examples
    --------
    >>> parse("8..128"), parse("log:0.01..1"), parse("best_first,depth_wise"), parse("0.1")
    (Range(low=8, high=128, log=False), Range(low=0.01, high=1.0, log=True), ['best_first', 'depth_wise'], None)
    """
    text = text.strip()
    if text[:1] in ("[", "{", '"', "'"):
        return None
    log, _, rest = text.rpartition("log:")
    if ".." in rest or text.startswith("log:"):
        if log:
            raise ValueError("a range is LOW..HIGH or log:LOW..HIGH")
        return _range(rest, text.startswith("log:"))
    if "," not in text:
        return None
    choices = [literal(item) for item in text.split(",") if item.strip()]
    if len(choices) < 2 or len(choices) != len(text.split(",")):
        raise ValueError("a list of choices is A,B or longer, without empty places")
    for i, choice in enumerate(choices):
        if not isinstance(choice, bool | int | float | str | None):
            raise ValueError(f"a choice is a number or a word, not {choice!r}")
        if choice in choices[:i]:
            raise ValueError(f"{choice!r} is there twice")
    return choices


def _range(text: str, log: bool) -> Range:
    ends = re.fullmatch(r"(.+?)\.\.(.+)", text)
    numbers = [literal(end) for end in ends.groups()] if ends else []
    if not numbers or not all(_is_number(number) for number in numbers):
        raise ValueError("a range is LOW..HIGH or log:LOW..HIGH, with two numbers")
    low, high = numbers
    if not low < high:
        raise ValueError(f"{low} is not below {high}")
    if log and low <= 0:
        raise ValueError(f"{low} has no logarithm: the range must begin above 0")
    if isinstance(low, int) and isinstance(high, int):
        return Range(low, high, log)
    return Range(float(low), float(high), log)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


#: Number of trials in the table.
SHOWN = 10

#: Why keywords of `tune` cannot be set.
ELSEWHERE = {
    **{name: why for name, why in settings.ELSEWHERE.items() if name not in ("eval_set", "progress")},
    "space": "give ranges by --set",
    "trials": "use --trials",
    "time_limit": "use --time-limit",
    **FOLD_KEYWORDS,
    "metric": "use --metric",
    "eval_metric": "use --metric",
    "at_once": "use --at-once",
    "halving": "use --halving",
    "min_iterations": "use --min-iterations",
    "storage": "use --output",
    "sampler": "objects can only be given in Python",
    "pruner": "objects can only be given in Python",
    "max_bins": "the data are binned once: give it to dboost prepare",
}


def run(arguments: argparse.Namespace) -> None:
    known = settings.keywords(tune, ELSEWHERE)
    fixed, searched = divide(arguments.set)
    parameters = settings.gather(arguments.params, fixed, known, ELSEWHERE)
    for name in searched:
        settings.check_key(name, "in --set", known, ELSEWHERE)
        parameters.pop(name, None)  # of --params
    if not searched:
        raise ParameterError("nothing is searched: give a range, for example --set learning_rate=log:0.01..0.3")
    study_file = _study_file(arguments.output)
    if arguments.plot:
        check_output(arguments.plot, "--plot", (".svg", ".png", ".pdf"))
        canvas.style()  # matplotlib may be missing
    outputs.check_separate({"--output": study_file, "--plot": arguments.plot}, {"DATA": arguments.data})
    space = {name: _distribution(one) for name, one in searched.items()}
    options = parameters if arguments.memory_limit is None else parameters | {"memory_limit": arguments.memory_limit}
    data, target = rows_of(arguments)
    division = fold_keywords(arguments)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with cluster_at(arguments.scheduler, arguments.workers) as client:
        try:
            study = tune(
                data,
                space,
                trials=arguments.trials,
                time_limit=arguments.time_limit,
                metric=arguments.metric,
                at_once=arguments.at_once,
                halving=arguments.halving,
                min_iterations=arguments.min_iterations,
                storage=study_file,
                callbacks=() if arguments.quiet else (_print_trial,),
                client=client,
                **target,
                **division,
                **options,
            )
        except KeyboardInterrupt as stop:  # its message has the number of trials
            raise KeyboardInterrupt(f"{str(stop) or 'interrupted'}; the same command continues it") from stop
    metric = study.user_attrs["dboost"]["metric"]
    if arguments.plot:
        _draw(study, metric, arguments.plot)
    if not study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE]):
        raise ParameterError("no trial has ended: give a longer --time-limit")
    console = Console(highlight=False, markup=False, emoji=False)
    if not arguments.quiet:
        console.print(_table(study, metric))
        console.print(_counts(study, study_file), soft_wrap=True)
    if fold_columns(arguments):  # which are no features
        parameters.setdefault("features", study.user_attrs["features"])
    console.print(train_command(arguments, parameters, study.best_trial), soft_wrap=True)


def _study_file(path: str) -> str:
    """Return the file of the study; a folder has it as ``study.journal``."""
    if "://" in path:
        raise ParameterError(f"--output {path}: a study is kept in a local file")
    if Path(path).is_dir():
        return str(Path(path) / "study.journal")
    if path.endswith("/") or not Path(path).parent.is_dir():
        raise ParameterError(f"--output {path}: there is no folder {path if path.endswith('/') else Path(path).parent}")
    return path


def _distribution(searched: Range | list[Choice]) -> Any:
    if isinstance(searched, list):
        return optuna.distributions.CategoricalDistribution(searched)
    is_whole = isinstance(searched.low, int)
    kind: Any = optuna.distributions.IntDistribution if is_whole else optuna.distributions.FloatDistribution
    return kind(searched.low, searched.high, log=searched.log)


def _print_trial(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    """Print a line on the terminal for a trial that has ended; a callback."""
    metric = study.user_attrs["dboost"]["metric"]
    if trial.state == optuna.trial.TrialState.COMPLETE:
        attrs = trial.user_attrs
        score = f"{metric} {trial.value:.6g} ± {attrs['std']:.2g}"
        how = f"{score} in iteration {attrs['best_iteration']}, {attrs['seconds']:.1f} s"
    else:
        how = f"pruned after iteration {trial.last_step}"
    done = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
    best = f"; best {study.best_value:.6g} of trial {study.best_trial.number}" if done else ""
    print(f"trial {trial.number}: {how}{best}", file=sys.stderr, flush=True)


def _table(study: optuna.Study, metric: str) -> Table:
    """Return the best trials, the best first."""
    done = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
    is_maximized = study.direction == optuna.study.StudyDirection.MAXIMIZE
    best = sorted(done, key=lambda trial: trial.values[0], reverse=is_maximized)[:SHOWN]
    title = f"The best {len(best)} of {len(done)} trials" if len(best) < len(done) else "Trials"
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("trial", metric, "± std", "iteration", *best[0].params):
        table.add_column(name, justify="right", overflow="fold")
    for trial in best:
        attrs = trial.user_attrs
        values = (f"{value:.4g}" if isinstance(value, float) else as_set(value) for value in trial.params.values())
        table.add_row(str(trial.number), f"{trial.value:.6g}", f"{attrs['std']:.2g}", str(attrs["best_iteration"]), *values)
    return table


def _counts(study: optuna.Study, path: str) -> str:
    names = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed or repeated", "WAITING": "waiting"}
    states = [trial.state.name for trial in study.get_trials(deepcopy=False)]
    counts = ", ".join(f"{states.count(state)} {text}" for state, text in names.items() if state in states)
    return f"{len(states)} trials: {counts}; the study is in {path}"


def _draw(study: optuna.Study, metric: str, path: str) -> None:
    rows = [
        (trial.number, trial.value, trial.state == optuna.trial.TrialState.PRUNED)
        for trial in study.get_trials(deepcopy=False)
        if trial.value is not None and math.isfinite(trial.value)
    ]
    table = pd.DataFrame(rows, columns=["number", "value", "is_pruned"]).astype({"is_pruned": bool})
    ending = Path(path).suffix[1:].lower()
    date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
    buffer = io.BytesIO()
    with canvas.style(), canvas.detached():
        axes = plot_trials(table, metric, study.direction == optuna.study.StudyDirection.MAXIMIZE)
        axes.figure.savefig(buffer, format=ending, metadata=date)
    write_whole(path, buffer.getvalue())


def train_command(arguments: argparse.Namespace, fixed: dict[str, Any], best: optuna.trial.FrozenTrial) -> str:
    """Return the command that trains with the parameters of a trial, for as many iterations as were best."""
    command = ["dboost", "train", arguments.data]
    if arguments.target is not None:
        command += ["--target", arguments.target]
    for_all_rows = {"max_iter": best.user_attrs["best_iteration"]}
    stopping = ("early_stopping_rounds",)  # there is no evaluation set
    for name, value in (fixed | best.params | for_all_rows).items():
        if name not in stopping:
            command += ["--set", f"{name}={as_set(value)}"]
    for option in ("memory_limit", "scheduler", "workers"):
        value = getattr(arguments, option)
        if value is not None:
            command += ["--" + option.replace("_", "-"), str(value)]
    return shlex.join(command)


def as_set(value: Any) -> str:
    """Return the text that `--set` reads as a value."""
    if value is None:
        return "none"
    if isinstance(value, str) and settings.literal(value) == value:
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
