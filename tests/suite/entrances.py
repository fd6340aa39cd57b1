"""Calls that train on, or are evaluated on, the table of a call: `ENTRANCES`."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from distributed import Client

import dboost
from dboost.cli import main
from tests.helpers.places import SHAPING, rows_in_files
from tests.suite.forms import Form
from tests.suite.mistakes import FRAME, OPTIONS, Mistake

#: What may be wrong with a table that is not trained on.
OF_ROWS = ("target", "weight", "offset", "range")
#: What precedes errors that the rows have because the model has another loss or other classes.
OTHERWISE = "(the data do not continue the model: )?"


class CommandFailed(Exception):
    """What a command has printed."""


@dataclass(frozen=True)
class Given:
    """A mistake in a form, with what entrances need."""

    mistake: Mistake
    form: Form
    folder: Path
    client: Client | None = None

    @property
    def rows(self) -> dict[str, Any]:
        return self.form.rows(self.mistake, self.folder)

    def fit(self, **more: Any) -> dboost.Booster:
        return dboost.fit(**self.rows, **self.mistake.keywords, **more)


@dataclass(frozen=True)
class Entrance:
    run: Callable[[Given], Any]
    #: What may be wrong; None for everything.
    only: tuple[str, ...] | None = None
    #: What precedes the sentence of an error in the data, and what follows it (regular expressions).
    prefix: str = ""
    suffix: str = ""
    #: Whether the form can be passed.
    takes: Callable[[Form], bool] = lambda form: True
    #: Whether the rows are in partitions, whatever the form; or are numbered as one table for the loss.
    cuts: bool = False
    joins: bool = False
    error: type[Exception] | None = None

    def can(self, mistake: Mistake, form: Form) -> bool:
        return self.takes(form) and form.can(mistake) and (self.only is None or mistake.what in self.only)


@cache
def earlier(loss: str) -> dboost.Booster:
    """Return a sound model."""
    return dboost.fit(FRAME, "k" if loss == "log_loss" else "y", loss=loss, **OPTIONS)


def _model(mistake: Mistake) -> dboost.Booster:
    return earlier("log_loss" if mistake.target == "k" else mistake.options.get("loss", "squared_error"))


def _in_files(given: Given, **more: Any) -> None:
    with rows_in_files():
        given.fit(memory_limit="64MiB", **more)


def _prepared(given: Given) -> None:
    keywords = given.mistake.keywords
    shaping = {name: keywords[name] for name in (*SHAPING, "random_state", "progress") if name in keywords}
    with dboost.prepare(**given.rows, **shaping) as data:
        dboost.fit(data, **{name: keywords[name] for name in keywords if name not in ("features", "categorical_features")})


def _evaluated(given: Given) -> None:
    """Train on sound rows."""
    rows, sound = given.rows, replace(given.mistake, frame=FRAME)
    evaluation_set = (rows["data"], rows["target"], rows.get("sample_weight"), rows.get("offset"))
    dboost.fit(FRAME, sound.target, **sound.roles, **sound.keywords, eval_set=[evaluation_set])


def _chunks(given: Given) -> None:
    rows = given.rows
    list(dboost.continue_on([rows.pop("data")], **rows, **given.mistake.keywords))


def _estimator(given: Given, method: str = "fit") -> None:
    mistake, rows = given.mistake, given.rows
    is_classifier = mistake.target == "k" or mistake.options.get("loss") == "log_loss"
    kind = dboost.DBoostClassifier if is_classifier else dboost.DBoostRegressor
    options = {name: value for name, value in mistake.keywords.items() if name not in ("features", "progress")}
    getattr(kind(**options), method)(rows.pop("data"), rows.pop("target"), **rows)


def _command(given: Given) -> None:
    mistake, printed = given.mistake, io.StringIO()
    argv = ["train", str(given.rows["data"]), "--target", mistake.target, "--output", str(given.folder / "model.json")]
    for name, value in mistake.options.items():
        argv += [] if name == "progress" else ["--set", f"{name}={'none' if value is None else json.dumps(value)}"]
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main(argv)
    raise CommandFailed(printed.getvalue().strip().splitlines()[-1])


ENTRANCES: dict[str, Entrance] = {
    "fit": Entrance(Given.fit),
    "fit, in files": Entrance(_in_files),
    "fit, continued": Entrance(
        lambda given: given.fit(start_from=_model(given.mistake)), (*OF_ROWS, "features", "names"), OTHERWISE
    ),
    "fit, on workers": Entrance(lambda given: given.fit(client=given.client), cuts=True),
    "fit, on workers in files": Entrance(lambda given: _in_files(given, client=given.client), cuts=True),
    "fit, as an evaluation set": Entrance(_evaluated, OF_ROWS, "evaluation set 'eval': "),
    "cv": Entrance(lambda given: dboost.cv(**given.rows, **given.mistake.keywords, folds=2), joins=True),
    "prepare": Entrance(_prepared, joins=True),
    "continue_on": Entrance(_chunks, prefix="chunk 1: "),
    "refit_leaves": Entrance(lambda given: _model(given.mistake).refit_leaves(**given.rows), (*OF_ROWS, "features"), OTHERWISE),
    "an estimator": Entrance(_estimator, (*OF_ROWS, "features", "loss", "parameter"), takes=lambda form: form.is_apart),
    "partial_fit": Entrance(
        partial(_estimator, method="partial_fit"), (*OF_ROWS, "features", "loss", "parameter"), takes=lambda form: form.is_apart
    ),
    "a command": Entrance(
        _command,
        prefix="dboost: ",
        suffix="(; --skip-missing-target .*)?",
        takes=lambda form: form.is_file,
        error=CommandFailed,
    ),
}
