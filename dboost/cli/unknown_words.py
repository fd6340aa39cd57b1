"""Commands and options that do not exist: what to write instead.

The tables are those of the names of other libraries (`params.peer_names`). Parameters of learning are no options, but values of
``--set``, which has the names of `dboost.fit`.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import takewhile
from typing import NamedTuple

from dboost.params import Parameters
from dboost.params.peer_names import ALIASES, COMMANDS, OPTIONS, explanation, our_value

Settable = tuple[list[str], dict[str, str]] | None
#: Commands that would search for parameters.
_SEARCHES = {"tune", "tuning", "optimize", "search", "hpo", "grid_search", "automl"}
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)


class _Unknown(NamedTuple):
    """An option that a command does not have, as it was written."""

    option: str
    value: str | None

    @property
    def key(self) -> str:
        """Its name as that of a keyword."""
        return self.option.lstrip("-").replace("-", "_")


def unknown_command(word: str, commands: Sequence[str]) -> str:
    """Return the message for a command that does not exist."""
    name = word.lower().replace("-", "_")
    if name in COMMANDS:
        study = "; studies of Optuna call dboost.cv in Python" if name in _SEARCHES else ""
        return f"there is no command {word}, write: {COMMANDS[name]}{study}"
    near = difflib.get_close_matches(name, commands, n=1)
    there_are = f"did you mean dboost {near[0]}?" if near else f"there are {', '.join(commands)}"
    return f"there is no command {word}; {there_are}"


def unknown_options(
    command: argparse.ArgumentParser,
    words: Sequence[str],
    settable: Callable[[], Settable],
    commands: Mapping[str, argparse.ArgumentParser],
) -> str | None:
    """Return the message for the options among the words after a command that it does not have; None without such options.

    settable : returns the keywords that ``--set`` takes, and why others cannot be set; commands : all commands by name.
    """
    known = set(command._option_string_actions)
    unknown = [word for word in _options(words) if word.option not in known]
    if not unknown:
        return None
    parameters = settable()
    settings = [_setting(word, parameters) for word in unknown]
    named = ", ".join(word.option for word in unknown)
    if None not in settings and not any(_listed(word, command) for word in unknown):
        return f"{named}: parameters are given by --set: write {' '.join(map(str, settings))}"
    word = unknown[0]
    return f"unknown option {word.option}{_explanation(word, command, parameters, commands)}"


def loose_settings(words: Sequence[str], settable: Callable[[], Settable]) -> str | None:
    """Return the message for words that follow ``--set`` and belong to another one, or to its key; None without such words."""
    for i, word in enumerate(words[:-2]):
        if word != "--set" or words[i + 1].startswith("-"):
            continue
        key, following = words[i + 1], words[i + 2]
        if "=" in key and "=" in following:
            loose = _settings(takewhile(_is_no_option, words[i + 2 :]), settable)
            if loose:
                return f"{' '.join(loose)}: repeat --set: write {' '.join(loose.values())}"
        elif "=" not in key and _is_no_option(following):
            return f"--set takes KEY=VALUE: write --set {shlex.quote(f'{key}={following}')}"
    return None


def bare_settings(words: Sequence[str], settable: Callable[[], Settable]) -> str | None:
    """Return the message for parameters among the words that no option takes; None without such words."""
    bare = _settings(words, settable)
    return f"{' '.join(bare)}: parameters are given by --set: write {' '.join(bare.values())}" if bare else None


def _is_no_option(word: str) -> bool:
    return not word.startswith("-")


def _settings(words: Iterable[str], settable: Callable[[], Settable]) -> dict[str, str]:
    """Return the ``--set`` for each word that is KEY=VALUE, where KEY is a parameter, by the word."""
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals and (setting := _setting(_Unknown(key, value), settable())) is not None:
            settings[word] = setting
    return settings


def _options(words: Sequence[str]) -> Iterator[_Unknown]:
    for i, word in enumerate(words):
        if word == "--":
            return
        if _OPTION.fullmatch(word):
            option, equals, value = word.partition("=")
            following = words[i + 1] if i + 1 < len(words) and not _OPTION.fullmatch(words[i + 1]) else None
            yield _Unknown(option, value if equals else following)


def _setting(word: _Unknown, parameters: Settable) -> str | None:
    """Return the ``--set`` for an option that is a parameter; None for others."""
    ours = ALIASES.get(word.key, word.key)
    if ours == "early_stopping":  # which is no value that can be written
        ours = "early_stopping_rounds"
    if parameters is None or ours not in parameters[0]:
        return None
    value = "true" if word.value is None else str(our_value(word.key, word.value))
    if "," in value and not value.startswith(("[", "{")):
        value = f"[{value}]"
    return f"--set {shlex.quote(f'{ours}={value}')}"


def _listed(word: _Unknown, command: argparse.ArgumentParser) -> str | None:
    """Return what an option of the table `OPTIONS` is called by a command."""
    arguments = [action.metavar for action in command._actions if not action.option_strings]
    for name in OPTIONS.get(word.key.lower(), "").split():
        if name in command._option_string_actions:
            return f"use {name}"
        if name in arguments:
            return f"{name} has no option before it: write {command.prog} {' '.join(map(str, arguments))}"
    return None


def _explanation(
    word: _Unknown,
    command: argparse.ArgumentParser,
    parameters: Settable,
    commands: Mapping[str, argparse.ArgumentParser],
) -> str:
    listed = _listed(word, command)
    if listed is not None:
        return f": {listed}"
    setting = _setting(word, parameters)
    if setting is not None:
        return f": write {setting}"
    ours = ALIASES.get(word.key, word.key)
    is_of_learning = ours in {field.name for field in fields(Parameters)}
    if command.prog.endswith(" plan") and (is_of_learning or word.option in ("--set", "--params")):
        from dboost.sizing import DEFAULTS_ONLY  # needs more of the package than most commands

        return f": {DEFAULTS_ONLY}"
    if parameters and ours in parameters[1]:
        return f": {parameters[1][ours]}"
    if is_of_learning:
        return ": it is a parameter of dboost train"
    line = COMMANDS.get(word.key.lower(), "")
    if line.startswith(command.prog) or word.option in line.split():
        return f": write {line}"
    owners = [other.prog for other in commands.values() if word.option in other._option_string_actions]
    if owners:
        return f": it is an option of {' and '.join([', '.join(owners[:-1]), owners[-1]] if owners[1:] else owners)}"
    if line:
        return f": write {line}"
    near = difflib.get_close_matches(word.option, command._option_string_actions, n=1, cutoff=0.8)
    if near:
        return f"; did you mean {near[0]}?"
    return explanation(word.key, parameters[0]).replace("did you mean ", "did you mean --set ") if parameters else ""
