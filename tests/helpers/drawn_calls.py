"""Draws of `tests.helpers.combinations` as calls of `dboost.fit`, the command line and the estimators."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from distributed import Client

import dboost
from dboost import Booster, DBoostError
from dboost.booster import as_booster
from dboost.cli import main
from tests.helpers.clusters import ROOT
from tests.helpers.combinations import OWN, Draw, as_array, drawn
from tests.helpers.places import Call, Place, can_kill, killing, seeded, small_things
from tests.helpers.table_forms import ARRAYS, FORMS, arrays_of, forms_of, several, vector


class Refused(DBoostError):
    """An error of the command line, of which only the sentence and the status are known."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Case(Call):
    """A draw with what its places need."""

    draw: Draw = field(kw_only=True)
    #: Form of the table, see `tests.helpers.table_forms`; None for the plain one.
    form: str | None = None
    #: Whether target, weight and offset are given beside the table.
    apart: bool = False

    def rng(self, what: str) -> Random:
        return seeded(self.draw.seed, self.place, self.form, what)

    @property
    def where(self) -> str:
        if self.form is None:
            return "memory"
        return (FORMS if self.draw.array is None else ARRAYS)[self.form].where

    def given(self, frame: pd.DataFrame, what: str) -> dict[str, Any]:
        """Return data, target, sample_weight and offset. what : which table it is, for random choices."""
        draw, rng = self.draw, self.rng(what)
        columns: dict[str, Any] = {"target": draw.targets}
        columns |= {role: column for role, column in (("sample_weight", "w"), ("offset", "o")) if column in frame}
        if draw.array is not None:
            X = as_array(frame[draw.names], draw.array)
            data = X if self.form is None else ARRAYS[self.form].make(X, rng, self.folder)
            plain = self.form is None
            return {
                "data": data,
                **{
                    role: np.asarray(frame[name]) if plain else self.apart_from(frame[name], rng)
                    for role, name in columns.items()
                },
            }
        features = [name for name in draw.names if name in frame]
        table = frame if self.form is None else FORMS[self.form].make(frame, rng, self.folder)
        if not self.is_apart or "y" not in frame:
            return {"data": table, **columns}
        if self.where == "lazy":
            return {"data": table[features], **{role: table[name] for role, name in columns.items()}}
        table = frame[features] if self.form is None else FORMS[self.form].make(frame[features], rng, self.folder)
        return {"data": table, **{role: self.apart_from(frame[name], rng) for role, name in columns.items()}}

    def apart_from(self, role: pd.Series | pd.DataFrame, rng: Random) -> Any:
        """Return a role beside the features. Of an array, several targets have no names."""
        return several(role, rng, named=self.draw.array is None) if isinstance(role, pd.DataFrame) else vector(role, rng)

    @property
    def is_apart(self) -> bool:
        return self.apart and self.where in ("memory", "lazy")

    def features(self, frame: pd.DataFrame, what: str) -> Any:
        """Return only the data, for predictions."""
        return self.given(frame, what)["data"]

    def watched(self) -> dict[str, Any]:
        """Return the evaluation sets, in the form of the training data."""
        draw = self.draw
        if draw.watched is None:
            return {}
        sets: dict[str, Any] = {}
        for number in range(1 if draw.watched == "one" else 2):
            frame = draw.table(2 + number, 60)
            if draw.mistake == "evaluation set without a feature":
                frame = frame.drop(columns="c0")
            if draw.mistake == "evaluation set with text for numbers":
                frame = frame.assign(c0="text")
            given = self.given(frame, f"set {number}")
            tied = draw.array is not None or self.is_apart
            ordered = (given["data"], given["target"], given.get("sample_weight"), given.get("offset"))
            sets[f"set {number}"] = ordered if tied else given["data"]
        return {"eval_set": sets if draw.watched == "two" else sets["set 0"]}

    def keywords(self) -> dict[str, Any]:
        """Return all keywords but data and roles."""
        draw = self.draw
        keywords = {"progress": False} | self.watched() | draw.keywords()
        if draw.earlier is None:
            return keywords
        return {"start_from": self.earlier, "continue_bins": "kept" if "kept" in draw.earlier else "new"} | keywords

    def train(self, **more: Any) -> Booster:
        """Call `dboost.fit` or `Booster.refit_leaves` as drawn, with some keywords changed."""
        if not self.draw.refits:
            return super().train(**more)
        start = as_booster(more.pop("start_from", self.earlier))
        return start.refit_leaves(**self.rows(), **{"n_threads": self.draw.options.get("n_threads")} | more)

    def rows(self) -> dict[str, Any]:
        """Return data and roles of the rows to train on."""
        frame = self.draw.table()
        return self.given(frame if self.draw.mistake is None else self.draw.spoiled(frame), "training")


def earlier_model(draw: Draw, folder: Path) -> Booster:
    """Return a model of other rows, to start from."""
    plain = replace(draw, mistake=None)
    other = ("arcbites", "early_stopping_rounds", "early_stopping", "eval_metric", "memory_limit", "learning_rate")
    kept = {name: value for name, value in plain.keywords().items() if name not in other}
    roles = Case(None, folder, draw=plain).given(draw.table(1, max(draw.n_rows // 2, 10)), "earlier")
    return dboost.fit(**roles, **kept | {"max_iter": 2}, progress=False)


def plain(prediction: Any, client: Client | None = None) -> np.ndarray:
    """Return predictions of any kind as an array; a lazy one is computed on the cluster, if there is one."""
    found = prediction.compute(scheduler=client or "sync") if hasattr(prediction, "compute") else prediction
    found = found.to_pandas() if isinstance(found, pa.Table | pa.ChunkedArray | pa.Array) else found
    return np.asarray(found.to_numpy() if hasattr(found, "to_numpy") else found)


# Front ends, which are places too.


def _really_killed(case: Case) -> Booster:
    """Fit in another process that gets SIGKILL, and resume here."""
    folder = case.folder / "killed"
    folder.mkdir()
    code = f"from tests.helpers.drawn_calls import die; die({case.draw.number}, {str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return case.train(checkpoint=case.folder / "killed" / "run", checkpoint_every=1)


def die(number: int, folder: str) -> None:
    """Begin the fit of a draw with a checkpoint in a folder, and kill the process after an iteration."""
    draw = drawn(number)
    earlier = None if draw.earlier is None else earlier_model(draw, Path(folder))
    case = Case(earlier, Path(folder), draw=draw, place="really killed")
    keeping: dict[str, Any] = {"checkpoint": Path(folder) / "run", "checkpoint_every": 1}
    with small_things(), suppress(DBoostError):
        case.train(**killing(case, lambda: signal.raise_signal(signal.SIGKILL)), **keeping)


def command(*arguments: str) -> None:
    """Run the command line; raise `Refused` with its sentence if it fails."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        status = main(arguments)
    lines = [line.removeprefix("dboost: ") for line in said.getvalue().splitlines() if line.startswith("dboost: ")]
    if status:
        assert status in (1, 2) and lines, said.getvalue()
        raise Refused(lines[-1], status)


def _command_line(case: Case) -> Booster:
    keywords, rows = case.keywords(), case.rows()
    for role in ("sample_weight", "offset"):
        if rows.get(role) is not None:
            keywords[role] = rows[role]
    target = ",".join(np.atleast_1d(rows["target"]))
    arguments = [str(rows["data"]), "--target", target, "--output", str(case.folder / "model.dboost"), "--quiet"]
    keywords.pop("progress", None)
    if keywords.get("start_from") is not None:
        case.earlier.save(case.folder / "earlier.json")  # type: ignore[union-attr]
        arguments += ["--start-from", str(case.folder / "earlier.json")]
    keywords.pop("start_from", None)
    if "eval_set" in keywords:
        arguments += ["--eval", str(keywords.pop("eval_set"))]
    if "arcbites" in keywords and case.draw.arcbites is not None:
        keywords["arcbites"] = case.draw.arcbites
    for name, value in keywords.items():
        arguments += ["--set", f"{name}={'none' if value is None else json.dumps(value)}"]
    command("train", *arguments)
    return dboost.load(case.folder / "model.dboost")


def _estimator(case: Case) -> Booster:
    draw, keywords, rows = case.draw, case.keywords(), case.rows()
    loss = keywords.pop("loss", "auto")
    if loss != "auto":
        keywords["loss"] = loss
    watched = {"eval_set": keywords.pop("eval_set")} if "eval_set" in keywords else {}
    kind = dboost.DBoostClassifier if draw.is_class() else dboost.DBoostRegressor
    weights = {name: rows[name] for name in ("sample_weight", "offset") if rows.get(name) is not None}
    fitted = kind(**keywords).fit(rows["data"], rows["target"], **weights, **watched)
    X = case.features(draw.table(9, 70), "estimator")
    predictions = [plain(model.predict(X, offset=False)) for model in (fitted, fitted.booster_)]
    np.testing.assert_array_equal(*predictions, "predictions of the estimator")
    return fitted.booster_


def _can_command(draw: Draw) -> bool:
    given = draw.mistake if isinstance(draw.mistake, dict) else {}
    is_plain = not {"callbacks", "eval_set", "start_from", "progress", "source_name"} & set(given) and not (
        "memory_limit" in given or "n_estimators" in given or given.get("random_state") == -1
    )
    return (
        draw.loss not in OWN
        and draw.array is None
        and draw.watched != "two"
        and not draw.options.get("stopping")
        and draw.options.get("eval_metric") != "own"
        and is_plain
        and not draw.refits
    )


def _can_estimate(draw: Draw) -> bool:
    # It takes integers for numbers or classes, as its name says, adds the loss to other metrics, and has an early_stopping
    # of its own.
    is_clear = draw.loss != "auto" or (draw.is_class() and "zeros" not in draw.target)
    return draw.mistake is None and not draw.refits and is_clear and not {"eval_metric", "stopping"} & set(draw.options)


FRONT_ENDS: dict[str, Place] = {
    "command line": Place(_command_line, _can_command, ("path",), apart=False, warns=False),
    "estimator": Place(_estimator, _can_estimate, ("memory", "lazy"), apart=True, same_words=False),
}
#: These start a process.
SUBPROCESS_PLACES = {"really killed": Place(_really_killed, lambda draw: can_kill(draw) and draw.mistake is None, ("memory",))}


def routes(draw: Draw, places: dict[str, Place], n: int, rng: Random) -> list[tuple[str, str, bool]]:
    """Return up to n different places that can train the draw, each with a form of the table and whether roles are apart."""
    found: list[tuple[str, str, bool]] = []
    able = [name for name, place in places.items() if place.can(draw)]
    for name in rng.sample(able, min(n, len(able))):
        place = places[name]
        form = rng.choice(forms(draw, *place.where) or [""])
        apart = rng.random() < 0.4 if place.apart is None else place.apart
        if form:
            found.append((name, form, apart))
    return found


def forms(draw: Draw, *where: str) -> list[str]:
    """Return the forms that can hold all tables of the draw."""
    if draw.array is not None:
        return arrays_of(draw.array, *where)
    return forms_of(draw.lacks, *where)
