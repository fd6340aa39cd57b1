"""Checkpoints: a fit that was killed goes on where it was, to the last bit, when the same call is made again.

A checkpoint is a folder (or a URL). Its trees lie in files of some iterations each, in the format of models, which are
written once and never touched again; ``state.json`` says which of them count, what was measured in each iteration, and what
fit this is. Every file appears whole or not at all, and the state is written after the trees that it names. So whenever the
fit is killed, the state that is there is that of a moment: the trees of a later moment are at worst not named, and will be
written again.

Whoever resumes must be the same fit of the same data. What the user asked for is compared by its names in the file, which never
change; what messages call it is in `training.checkpoint`. The data are compared
as learning sees them: of each feature the split points, the levels and a sum of all rows' codes, each times a random number
that belongs to the row (see `shards.statistics`); the sums are integers modulo 2**64, so they know nothing of partitions and
workers. Scores are not compared but recomputed, from the trees: then the loss and every metric of every evaluation set must
be, to the last bit, what was noted after the last iteration. What differs is named.

What a fit is, for its checkpoint: what was asked for, and the data as learning sees them, under names that never change.

Messages call the entries by words (`CALLED`), which may change: they are in no file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost._lazy_import import fsspec, is_a
from dboost.errors import DataError, ModelFileError, ParameterError
from dboost.model import model_file as storage
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.schema import Feature
from dboost.session.target import Target
from dboost.session.warm_start import WarmStart, check_continues
from dboost.storage import atomic_write as files
from dboost.training.build_model import appended, metrics_of

if TYPE_CHECKING:
    from dboost.training.loop import BoostingLoop
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from dboost.errors import DBoostError
from dboost.session.protocol import Engine
from dboost.shards.statistics import row_fingerprint

if TYPE_CHECKING:
    from dboost.training.loop import BoostingLoop


#: Of the format of `state.json`; a folder of a higher one is refused. Version 1 had the words of messages in place of names.
VERSION = 2
STATE = "state.json"
_HEAD = re.compile(rb'\{"format": "dboost checkpoint", "version": (\d{1,9}), "sha256": "([0-9a-f]{64})",\n')


@dataclass(frozen=True)
class State:
    """What `state.json` says.

    Attributes
    ----------
    identity : dict
        What the fit is, see `Checkpoint.check` and `Checkpoint.begin`.
    parts : list of dict
        Names of the files of trees in their order, with first and last iteration and digest.
    before : dict
        Losses and metrics before the fit's first iteration.
    history : list of dict
        One record per iteration of the fit.
    visits : dict or None
        Of arcbites: the ``bites`` visited so far, how many visits were ``in_vain`` of late, and what was measured when the next
        one ``began``. Then the history has records of iterations that were cut back, too.
    """

    identity: dict[str, Any]
    parts: list[dict[str, Any]]
    before: dict[str, float]
    history: list[dict[str, Any]]
    visits: dict[str, Any] | None = None


class Checkpoint:
    """The checkpoint of one fit.

    Parameters
    ----------
    place : path or URL of a folder
    every : int
        Iterations between two times that it is written.

    Raises
    ------
    ModelFileError
        When the place cannot be read or is none of ours.
    """

    def __init__(self, place: str | os.PathLike[str], every: int) -> None:
        self.place = os.fspath(place).rstrip("/")
        self._every = every
        self._make_folder()
        self._state = self._read()
        self._identity: dict[str, Any] = {}
        self._empty: Ensemble

    @property
    def history(self) -> list[dict[str, Any]]:
        """Records of the iterations that were found."""
        return [] if self._state is None else self._state.history

    @property
    def visits(self) -> dict[str, Any] | None:
        """Of arcbites: what was found of the visits so far, see `State`."""
        return None if self._state is None else self._state.visits

    @property
    def n_iterations(self) -> int:
        """How many iterations of this fit are written down, but for those that were cut back."""
        parts = [] if self._state is None else self._state.parts
        return sum(part["last_iteration"] - part["first_iteration"] + 1 for part in parts)

    def resume(
        self,
        warm_start: WarmStart,
        features: tuple[Feature, ...],
        target: Target,
        parameters: Parameters,
        asked: Mapping[str, Any],
    ) -> WarmStart:
        """Where the fit begins, now that it may have begun before.

        Parameters
        ----------
        warm_start : Origin
            Where it would begin without a checkpoint.
        features, target
            What the data hold.
        parameters : Parameters
            With more iterations than last time it goes on.
        asked : mapping
            What the user asked for, as JSON types by name.

        Raises
        ------
        ParameterError, DataError
            When it was another fit, naming what differs.
        ModelFileError
            When a file of the checkpoint is damaged.
        """
        self._identity = {"asked": plain(asked)}
        if self._state is None:
            return warm_start
        # Of a parameter that there was not yet the default was meant.
        defaults = {field.name: plain(field.default) for field in fields(Parameters) if field.name in self._identity["asked"]}
        differs = first_difference(defaults | self._state.identity["asked"], self._identity["asked"])
        if differs is not None:
            name, then, now = differs
            called = name if name == "loss" else CALLED.get(name, name)
            raise ParameterError(f"{self._refusal}: {called} was {then} then and is {now} now")
        n = len(self.history)
        if n > warm_start.last_iteration(parameters.max_iter) - warm_start.n_earlier:
            raise ParameterError(f"{self._refusal}: it has {n} iterations already, more than max_iter={parameters.max_iter}")
        own = self._model() if self._state.parts else None
        if own is None:  # all visits so far were in vain
            return warm_start
        try:
            check_continues(own, features, target)
        except DataError as error:
            raise DataError(f"{self._refusal}: {error}") from error
        base = own if warm_start.model is None else warm_start.model
        earlier = () if warm_start.model is None else base.trees
        metrics = base.metrics if self.visits else appended(base.metrics, warm_start.n_earlier, metrics_of(self.history), n)
        return warm_start.resumed(replace(base, trees=earlier + own.trees, metrics=metrics))

    def begin(self, training: BoostingLoop, empty: Ensemble, now: dict[str, float]) -> dict[str, float]:
        """Compare the data, when scores are where the checkpoint left them.

        Parameters
        ----------
        training : Training
        empty : Ensemble
            The fit's model without trees.
        now : dict
            Loss and metrics before the next iteration.

        Returns
        -------
        dict
            Loss and metrics before the fit's first iteration.

        Raises
        ------
        DataError
            When they are other data, naming what differs.
        ParameterError
            When another memory limit makes another number of arcbites.
        """
        self._identity["data"] = describe_data(training)
        self._empty = replace(empty, edges=(), parameters={}, metrics={}, sources=())
        state = self._state
        if state is None:
            self._state = State(self._identity, [], now, [])
            return now
        self._check_data(state.identity["data"], self._identity["data"])
        noted = state.visits["began"] if state.visits else state.history[-1] if state.history else state.before
        for name, value in sorted(now.items(), key=lambda item: item[0] != "train_loss"):
            if not same(value, noted.get(name)):
                whose = "the training data" if name == "train_loss" else "the evaluation sets"
                raise DataError(
                    f"{self._refusal}: {whose} are not the same, {name} is {value!r} where {noted.get(name)!r} was noted"
                )
        return state.before

    def _check_data(self, then: dict[str, Any], now: dict[str, Any]) -> None:
        """Refuse other data, and another number of bites."""
        then = in_names(then, now) if "the target" in then else then
        other = then.get("n_bites", now.get("n_bites"))
        if other != now.get("n_bites") and then["rows"] == now["rows"]:
            raise ParameterError(
                f"{self._refusal}: with the memory_limit of then there were {other} arcbites, now there are {now['n_bites']} "
                f"(give the same memory_limit, or n_bites={other})"
            )
        differs = first_difference({**then, "n_bites": other, "columns": None}, {"n_bites": None, **now, "columns": None})
        column = first_difference(then["columns"], now["columns"])
        if differs is not None and differs[0] == "rows":
            told = f"there were {differs[1]} rows then, there are {differs[2]} now"
        elif differs is not None and (differs[0] != "loss" or column is None):
            told = f"{CALLED.get(differs[0], differs[0])} differs"
        elif column is not None:
            told = f"column {column[0]!r} holds other values"
        else:
            return
        raise DataError(f"{self._refusal}: the data are not the same, {told}")

    def note(self, training: BoostingLoop) -> None:
        """After an iteration: write it down if it is time to."""
        if training.n_done - self._n_written(training) >= self._every:
            self.write(training)

    def write(self, training: BoostingLoop) -> None:
        """Write down all iterations that are done.

        Raises
        ------
        ModelFileError
            Naming the file that cannot be written; what was there before still counts.
        """
        state = self._state
        assert state is not None
        first, last = self._n_written(training), training.n_done
        if last == first:
            return
        records = [plain(record) for record in training.history[first - last :]]
        part = self._write_trees(training, first, last)
        self._write_state(State(self._identity, [*state.parts, part], state.before, [*state.history, *records]))

    def note_visit(self, training: BoostingLoop, past: dict[str, Any], began: dict[str, float]) -> None:
        """When a visit to an arcbite begins: write down what was before, if it is time to.

        past : ``bites`` and ``in_vain``, see `State`; began : loss and metrics at present.
        """
        state = self._state
        assert state is not None
        if len(training.history) - len(state.history) < self._every:
            return
        first, last = self._n_written(training), training.n_done
        parts = state.parts if first == last else [*state.parts, self._write_trees(training, first, last)]
        history = [*state.history, *(plain(record) for record in training.history[len(state.history) :])]
        self._write_state(State(self._identity, parts, state.before, history, plain(past | {"began": began})))

    def _write_trees(self, training: BoostingLoop, first: int, last: int) -> dict[str, Any]:
        name = f"trees-{first + 1:06d}-{last:06d}.json"
        content = storage.dumps(replace(self._empty, trees=training.trees(first, last)))
        files.write_whole(f"{self.place}/{name}", content)
        digest = hashlib.sha256(content).hexdigest()
        return {"name": name, "first_iteration": first + 1, "last_iteration": last, "sha256": digest}

    def _write_state(self, written: State) -> None:
        files.write_whole(f"{self.place}/{STATE}", _dumps(written))
        self._state = written

    def _n_written(self, training: BoostingLoop) -> int:
        assert self._state is not None
        return training.warm_start.n_earlier + self.n_iterations

    @property
    def _refusal(self) -> str:
        return f"the checkpoint in {self.place} is of another fit (choose another folder, or remove it)"

    def _make_folder(self) -> None:
        try:
            filesystem, folder = fsspec.url_to_fs(self.place)
            filesystem.makedirs(folder, exist_ok=True)
            if is_a(filesystem, "fsspec.implementations.local", "LocalFileSystem"):
                for entry in os.scandir(folder):  # drafts of a run that was killed while it wrote
                    if entry.name.startswith((f".{STATE}.", ".trees-")):
                        os.unlink(entry)
        except (OSError, ValueError, ImportError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ModelFileError(f"cannot keep a checkpoint in {self.place}: {reason}") from error

    def _read(self) -> State | None:
        name = f"{self.place}/{STATE}"
        try:
            data = files.read_whole(name)
        except files.FileMissingError:
            return None
        head = _HEAD.match(data)
        if head is None:
            raise ModelFileError(f"{name} is not the state of a checkpoint, or its first line is damaged")
        if int(head[1]) > VERSION:
            raise ModelFileError(
                f"{name} has format version {int(head[1])}, written by a newer dboost; this one knows {VERSION}"
            )
        content = data[head.end() :]
        if hashlib.sha256(content).hexdigest() != head[2].decode():
            raise ModelFileError(f"{name} is damaged, cut short or was edited: its content does not match its checksum")
        state = State(**json.loads(b"{" + content))
        if int(head[1]) < VERSION:
            names = {called: name for name, called in CALLED.items()}
            asked = {names.get(key, key): value for key, value in state.identity["asked"].items()}
            state = replace(state, identity=state.identity | {"asked": asked})
        return state

    def _model(self) -> Ensemble:
        """The fit's own trees, and what was measured."""
        assert self._state is not None
        pieces = []
        for part in self._state.parts:
            name = f"{self.place}/{part['name']}"
            data = files.read_whole(name)
            if hashlib.sha256(data).hexdigest() != part["sha256"]:
                raise ModelFileError(f"{name} is damaged or cut short: its content is not what {STATE} says")
            pieces.append(storage.loads(data, name))
        if not pieces:
            raise ModelFileError(f"{self.place}/{STATE} names no trees")
        return replace(pieces[-1], trees=tuple(tree for piece in pieces for tree in piece.trees))


def checkpoint_in(place: Any, every: Any) -> Checkpoint | None:
    """The checkpoint that a user asks for, or none.

    Raises
    ------
    ParameterError, ModelFileError
        See `Checkpoint`.
    """
    if isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 1:
        raise ParameterError(f"checkpoint_every={every!r} must be a positive integer")
    if place is None:
        return None
    if not isinstance(place, str | os.PathLike):
        raise ParameterError(f"checkpoint={place!r} must be a folder or a URL")
    return Checkpoint(place, int(every))


def _dumps(state: State) -> bytes:
    told = {name: value for name, value in vars(state).items() if value is not None}
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in told.items()) + "\n}\n"
    content = text.encode()
    head = f'{{"format": "dboost checkpoint", "version": {VERSION}, "sha256": "{hashlib.sha256(content).hexdigest()}",\n'
    return head.encode() + content


#: What messages call the entries of `State.identity` that are not keywords of the user's.
CALLED = {
    "start_from": "the model to start from",
    "eval_set": "the names of the evaluation sets",
    "early_stopping": "the rule of early stopping",
    "target": "the target",
    "sample_weight": "the weight",
    "n_bites": "the number of arcbites",
    "order": "the order of columns",
    "loss": "the loss",
}


def describe_data(training: BoostingLoop) -> dict[str, Any]:
    """The data as learning sees them."""
    binning, loss = training.binning, training.loss
    sums = merged_fingerprint(training.engine, len(binning.features)) if training.code_sums is None else training.code_sums
    columns: dict[str, str] = {}
    for feature, edges, code_sum in zip(binning.features, binning.edges, sums[2:], strict=True):
        cut = [repr(level) for level in feature.levels or ()] if edges is None else [edge.hex() for edge in edges.tolist()]
        columns[feature.name] = hashlib.sha256(json.dumps([cut, code_sum]).encode()).hexdigest()
    # The weights first: what they change (split points, say) is not at fault.
    rows: dict[str, Any] = {"rows": training.engine.n_rows, "target": sums[0], "sample_weight": sums[1]}
    if training.parameters.arcbites is not None:
        rows["n_bites"] = training.parameters.arcbites.n_bites
    return rows | {"order": list(columns), "columns": columns, "loss": plain(loss.to_dict())}


def in_names(then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What the first version of the format noted of the data, as it is noted now.

    Columns were entries of their own, and the number of bites was noted only where the user had given it.
    """
    known = {name: then[called] for name, called in CALLED.items() if then.get(called) is not None}
    keys = {f"column {name!r}": name for name in now["columns"]}
    columns = {keys.get(key, key): value for key, value in then.items() if key.startswith("column ")}
    return {"rows": then["rows"], **known, "order": [keys.get(key, key) for key in known["order"]], "columns": columns}


def merged_fingerprint(engine: Engine, n_features: int) -> list[int]:
    """The sums of all rows: of target, weight, and the codes of each feature."""
    answers = engine.ask(row_fingerprint)
    total = reduce(np.add, answers, np.zeros(n_features + 2, np.uint64))
    return [int(number) for number in total]


def first_difference(then: dict[str, Any], now: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """The first thing that differs between two records: its name, and both values."""
    for name in [*then, *(name for name in now if name not in then)]:
        if not same(then.get(name), now.get(name)):
            return name, then.get(name), now.get(name)
    return None


def same(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)


def plain(value: Any) -> Any:
    """What comes back from JSON as it was."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise DBoostError(f"a checkpoint cannot note {value!r}")
