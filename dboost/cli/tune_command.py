"""``dboost tune``: a study of Optuna whose trials are cross-validations on rows that are read and binned once.

The study is kept in the file ``--output``, an SQLite database of Optuna; the same command continues it after it was stopped or
killed. The last line printed is the ``dboost train`` command that trains with the best parameters on all rows.

Values of ``--set`` are ranges, lists of choices, and values that stay the same in all trials. ``LOW..HIGH`` is a range, of
integers if both ends are integers; ``log:LOW..HIGH`` is one whose logarithm is searched evenly; ``A,B,C`` are choices.
Everything else, also in brackets or quotes, is a value as in the other commands.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import dboost
from dboost.cli import arguments as settings
from dboost.cli import output_paths
from dboost.cli.arguments import key_and_value, literal
from dboost.cli.data_arguments import FOLD_KEYWORDS, fold_columns, fold_keywords, rows_of, with_target
from dboost.cluster.client.client import cluster_at
from dboost.cross_validation import DataOptions, FoldedRows, FoldOptions, FoldSettings, cross_validate, folded, target_of
from dboost.display import number
from dboost.errors import MORE_ROOM, DataError, ParameterError, is_full
from dboost.integrations.optuna import PruningCallback, optuna
from dboost.params import available_threads, canonical
from dboost.params.peer_names import SHOWN_ALIASES, with_our_names
from dboost.session.memory import parse_memory_limit
from dboost.training.auto_iterations import with_auto_iterations
from dboost.training.folds import metric_names
from dboost.training.plan import parse_time_limit

State = optuna.trial.TrialState

#: Attribute of a study: what its trials have in common.
SETTINGS = "dboost"

#: Why keywords of `dboost.cv` cannot be set.
ELSEWHERE = {
    **{name: why for name, why in settings.ELSEWHERE.items() if name != "eval_set"},
    **FOLD_KEYWORDS,
    "time_limit": "use --time-limit",
    "eval_metric": "use --metric",
    "early_stopping": "use early_stopping_rounds",
    "max_bins": "the data are binned once: give it to dboost prepare",
}


def run(arguments: argparse.Namespace) -> None:
    seconds = parse_time_limit(arguments.time_limit)
    until = math.inf if seconds is None else perf_counter() + seconds
    fixed, space = divide(arguments.set)
    known = settings.keywords(dboost.cv, ELSEWHERE)
    given = settings.keywords_in(arguments, dboost.cv, ELSEWHERE, fixed)
    for name in space:
        settings.check_key(name, space[name], "in --set", known, ELSEWHERE)
    space = with_our_names(space, known)  # --set overrides --params
    given = {name: value for name, value in with_auto_iterations(given, has_rule=False).items() if name not in space}
    if not space:
        raise ParameterError("nothing is searched: give a range, for example --set learning_rate=log:0.01..0.3")
    names = [SHOWN_ALIASES.get(name, (name,))[0] for name in (*space, *given)]
    if "loss" in names[: len(space)] and arguments.metric is None:
        raise ParameterError("the loss is searched, so it cannot be the metric: give one by --metric")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ParameterError(f"{twice} is given twice, by two of its names")
    path = _study_path(arguments.output)
    output_paths.check_separate({"--output": path}, {"DATA": arguments.data})
    limit = None if given.get("memory_limit") is None else parse_memory_limit(given["memory_limit"])
    learning = {name: value for name, value in given.items() if name not in DataOptions._fields}
    reading = {name: given.get(name) for name in DataOptions._fields}
    reading["categorical_features"] = given.get("categorical_features", "from_dtype")

    def settings_of(searched: dict[str, Any], *callbacks: Any) -> FoldSettings:
        threads = available_threads(given.get("n_threads"))
        return FoldSettings(canonical(learning | searched), arguments.metric, None, callbacks, False, threads, limit)

    def check_time(_: Any) -> None:
        if perf_counter() > until:
            raise TimeoutError

    parameters = settings_of({}).parameters
    data, target = rows_of(arguments)
    division = FoldOptions(**fold_keywords(arguments))
    with cluster_at(arguments.scheduler, arguments.workers) as client:
        data = with_target(arguments, data, client)
        options = DataOptions(**reading | {"client": client})
        with folded(data, target.get("target", ...), division, options, parameters) as rows:
            metrics = metric_names(arguments.metric, target_of(rows.targets, parameters))
            if len(metrics) != 1:
                raise ParameterError(f"--metric {arguments.metric} must be one metric: a trial has one score")
            same = {name: repr(value) for name, value in learning.items()} | {name: repr(one) for name, one in space.items()}
            same |= {"--metric": metrics[0].name, "--pruner": arguments.pruner, "DATA or folds": _digest(rows)}
            same |= {} if arguments.group is None else {"--group": arguments.group}
            same |= {} if arguments.filter is None else {"--filter": arguments.filter}
            study = _opened(path, same, _pruner(arguments.pruner, parameters.max_iter), metrics[0].greater_is_better)
            while (number := len(_ended(study))) < arguments.trials and perf_counter() < until:
                # A sampler for each trial: a study that was killed makes the same trials as an undisturbed one.
                seed = np.random.SeedSequence((parameters.random_state, number)).generate_state(1)[0]
                try:
                    study.sampler = optuna.samplers.TPESampler(seed=int(seed))
                    trial = study.ask(space)
                    pruning = PruningCallback(trial, metrics[0].column, max(parameters.max_iter // 100, 1))
                    _run_trial(study, trial, rows, settings_of(trial.params, check_time, pruning))
                    if not arguments.quiet:
                        print(_line(study, study.trials[trial.number]), file=sys.stderr, flush=True)
                except TimeoutError:
                    break
                except KeyboardInterrupt as stop:
                    for one in study.get_trials(states=(State.RUNNING,)):  # it has just begun, or ended
                        study.tell(one.number, state=State.FAIL)
                    message = f"the study was interrupted after {number} of {arguments.trials} trials"
                    raise KeyboardInterrupt(f"{message}; the same command continues it") from stop
            features = rows.data.feature_names_in_.tolist()
    ended = _ended(study)
    if not any(trial.state == State.COMPLETE for trial in ended):
        errors = [trial.user_attrs["error"] for trial in ended if "error" in trial.user_attrs]
        raise ParameterError(errors[-1] if errors else "no trial has ended: give a longer --time-limit")
    if not arguments.quiet:
        print(f"{len(ended)} trials, {_best(study)}; the study is in {path}")
    if fold_columns(arguments):  # which are no features
        given.setdefault("features", features)
    print(train_command(arguments, given, study.best_trial))


def _run_trial(study: optuna.Study, trial: optuna.Trial, rows: FoldedRows, with_settings: FoldSettings) -> None:
    """Cross-validate with the parameters of a trial, and tell the study how it ended."""
    try:
        result = cross_validate(rows, with_settings, predicts=False)
        if math.isnan(result.best_score):
            raise DataError(f"{result.metric} is not a number, with {trial.params}")
        trial.set_user_attr("best_iteration", result.best_iteration)
        study.tell(trial, result.best_score)
    except optuna.TrialPruned:
        study.tell(trial, state=State.PRUNED)
    except (DataError, ParameterError) as error:  # other parameters may work
        trial.set_user_attr("error", str(error))
        study.tell(trial, state=State.PRUNED)
    except BaseException:  # the next command repeats the trial
        study.tell(trial, state=State.FAIL)
        raise


def divide(assignments: Iterable[str]) -> tuple[list[str], dict[str, optuna.distributions.BaseDistribution]]:
    """Return the assignments of single values, and what is searched; the last of equal keys wins.

    Raises
    ------
    ParameterError
        Naming the assignment.
    """
    last = {key_and_value(assignment)[0]: assignment for assignment in assignments}
    fixed: list[str] = []
    space: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, assignment in last.items():
        try:
            found = distribution(key_and_value(assignment)[1])
        except ValueError as error:
            raise ParameterError(f"--set {assignment}: {error}") from None
        if found is None:
            fixed.append(assignment)
        else:
            space[key] = found
    return fixed, space


def distribution(text: str) -> optuna.distributions.BaseDistribution | None:
    """Return what a range or a list of choices means; None for a single value.

    Raises
    ------
    ValueError
        For a range or a list that cannot be searched.

    Examples
    --------
    >>> distribution("8..128"), distribution("best_first,depth_wise"), distribution("0.1")
    (IntDistribution(high=128, log=False, low=8, step=1), CategoricalDistribution(choices=('best_first', 'depth_wise')), None)
    """
    text = text.strip()
    if text[:1] in ("[", "{", '"', "'"):
        return None
    ends = text.removeprefix("log:")
    if ".." in ends or ends != text:
        numbers = [literal(end) for end in ends.split("..")]
        if len(numbers) != 2 or not all(type(number) in (int, float) for number in numbers):
            raise ValueError("a range is LOW..HIGH or log:LOW..HIGH, with two numbers")
        if not -math.inf < numbers[0] < numbers[1] < math.inf:
            raise ValueError(f"{numbers[0]} is not below {numbers[1]}")
        if ends != text and numbers[0] <= 0:
            raise ValueError(f"a range with log: begins above 0, not at {numbers[0]}")
        is_whole = all(isinstance(number, int) for number in numbers)
        kind: Any = optuna.distributions.IntDistribution if is_whole else optuna.distributions.FloatDistribution
        return kind(*numbers, log=ends != text)
    if "," not in text:
        return None
    choices = [literal(item) for item in text.split(",")]
    if "" in choices or len({*map(repr, choices)}) < len(choices):
        raise ValueError("a list of choices is A,B or longer, without empty places, each choice once")
    if not all(isinstance(choice, bool | int | float | str | None) for choice in choices):
        raise ValueError("a choice is a number or a word")
    return optuna.distributions.CategoricalDistribution(choices)


def _study_path(path: str) -> str:
    """Return the file of the study; a folder has it as ``study.db``."""
    if "://" in path:
        raise ParameterError(f"--output {path}: a study is kept in a local file")
    file = Path(path)
    if file.is_dir():
        return str(file / "study.db")
    if path.endswith("/") or not file.parent.is_dir():
        raise ParameterError(f"--output {path}: there is no folder {path if path.endswith('/') else file.parent}")
    return path


def _opened(path: str, same: dict[str, str], pruner: Any, is_maximized: bool) -> optuna.Study:
    """Create a study, or open that of an earlier command; a ParameterError if the file is none, or has other settings."""
    direction = "maximize" if is_maximized else "minimize"
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    is_new = not Path(path).exists()
    try:
        options = {"study_name": "dboost", "load_if_exists": True, "direction": direction, "pruner": pruner}
        study = optuna.create_study(storage=f"sqlite:///{path}", **options)
    except Exception as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        text += f": {MORE_ROOM}" if is_full(error) else ""
        if is_new:
            Path(path).unlink(missing_ok=True)
        raise ParameterError(f"--output {path} cannot be opened as a study: {text}") from error
    stored = study.user_attrs.get(SETTINGS, {})
    differing = [name for name in {**stored, **same} if stored.get(name) != same.get(name)]
    if differing and any("error" not in trial.user_attrs for trial in _ended(study)):
        raise ParameterError(f"{path} has a study with other settings ({', '.join(differing)}): name another file by --output")
    study.set_user_attr(SETTINGS, same)
    return study


def _pruner(name: str, max_iter: int) -> optuna.pruners.BasePruner:
    least = max(max_iter // 9, 1)
    if name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=least, reduction_factor=3)
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=least, max_resource=max_iter, reduction_factor=3)
    return optuna.pruners.MedianPruner(n_warmup_steps=max_iter // 5) if name == "median" else optuna.pruners.NopPruner()


def _digest(rows: FoldedRows) -> str:
    """Return what differs between other rows, features or folds."""
    targets: Any = rows.targets
    content = [
        repr((rows.data.feature_names_in_.tolist(), getattr(targets, "categories", None))).encode("utf-8", "backslashreplace")
    ]
    content += [getattr(targets, "codes", targets).tobytes()]
    return hashlib.sha256(b"".join([*content, *(fold.uses.tobytes() for fold in rows.folds)])).hexdigest()


def _ended(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that were not interrupted."""
    return study.get_trials(deepcopy=False, states=(State.COMPLETE, State.PRUNED))


def _line(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> str:
    """Return what is printed for a trial that has ended."""
    if trial.state == State.COMPLETE:
        how = f"{number(trial.value)} in iteration {trial.user_attrs['best_iteration']}"
    else:
        how = trial.user_attrs.get("error", f"pruned after iteration {trial.last_step}")
    has_best = any(one.state == State.COMPLETE for one in _ended(study))
    return f"trial {trial.number}: {how}{f'; {_best(study)}' if has_best else ''}"


def _best(study: optuna.Study) -> str:
    return f"best {study.user_attrs[SETTINGS]['--metric']} {number(study.best_value)} of trial {study.best_trial.number}"


def train_command(arguments: argparse.Namespace, fixed: dict[str, Any], best: optuna.trial.FrozenTrial) -> str:
    """Return the command that trains with the parameters of a trial, for as many iterations as were best."""
    command = ["dboost", "train", arguments.data]
    parameters = fixed | best.params | {"max_iter": best.user_attrs["best_iteration"]}
    if arguments.target is not None:
        command += ["--target", arguments.target if isinstance(arguments.target, str) else ",".join(arguments.target)]
    if arguments.group is not None and canonical(parameters).get("subsample", 1.0) < 1:  # otherwise only folds need it
        command += ["--group", arguments.group]
    for name, value in parameters.items():
        if name not in ("early_stopping_rounds", "filter", "group", "memory_limit"):  # no evaluation set; options of their own
            command += ["--set", f"{name}={as_set(value)}"]
    for option in ("filter", "memory_limit", "scheduler", "workers"):
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
