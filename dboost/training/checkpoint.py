"""Checkpoints: repeating the call of a fit that was killed resumes it, with a bit-identical model.

A checkpoint is a folder or a URL. Tree files hold some iterations each, in the format of models, and are never changed once
written. ``state.json`` lists the tree files, the history, and the identity of the fit. Every file is written atomically, and
the state after the trees that it lists. So ``state.json`` is always consistent; tree files newer than it are ignored and
rewritten.

Only the same fit on the same data can resume, otherwise an error names the first difference. The identity of a fit has two
parts, stored under names that never change (error messages use the words of `CALLED`, which are not stored):

* *Settings.* Parameters and other arguments of the user.
* *Data.* Of each feature the split points, the categories and a fingerprint, the sum of all rows' bin codes, each times a
  random number of the row (see `rows.statistics`). The sums are integers modulo 2**64, so they do not depend on partitions
  and workers.

**One run at a time** has a checkpoint: during the fit it holds the lease of the folder (`files.lease`), the file
``lease.json`` in it, and renews it before each write. So another run neither replaces its files nor removes their drafts, and
a fit of other data or settings does not begin in the same folder.

Raw scores are recomputed from the trees. The loss and every metric of every evaluation set must then be bit-identical to those
recorded after the last iteration.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from types import TracebackType
from typing import Any

import numpy as np

from dboost.data.columns.binning import Binning
from dboost.errors import DataError, DBoostError, ModelFileError, ParameterError, reason, shown
from dboost.files.atomic_write import FileMissingError, names_in, read_whole, remove, remove_own, try_writing, write_whole
from dboost.files.filesystem import filesystem_of
from dboost.files.json_shape import ANY, OTHERS, PLAIN, Shape, Within, check_shape
from dboost.files.lease import Lease
from dboost.files.path_text import path_text
from dboost.losses import BaseLoss
from dboost.model import model_file
from dboost.model.ensemble import Ensemble, Tree
from dboost.params import Parameters
from dboost.rows.shard_spec import ShardSpec
from dboost.rows.statistics import row_fingerprint
from dboost.schema import Feature
from dboost.session.backend import Backend
from dboost.session.target import Target
from dboost.session.warm_start import WarmStart, check_continues
from dboost.training.history import NOT_SCORES, appended, metrics_of

#: Version of the format of `state.json`; other versions are rejected.
VERSION = 2
STATE = "state.json"
_LEASE = "lease.json"
#: Names of the files of a checkpoint: of iterations, state and lease, and their drafts, which a killed process leaves.
_FILES = rf"(trees-\d{{6,}}-\d{{6,}}|{re.escape(STATE[:-5])}|{re.escape(_LEASE[:-5])})\.json"
_DRAFT = re.compile(rf"\.{_FILES}\.([0-9a-f]{{32}}|[0-9a-f]{{8}}\.part)")
_OWN = re.compile(rf"{_FILES}|{_DRAFT.pattern}")
_HEAD = re.compile(rb'\{"format": "dboost checkpoint", "version": (\d{1,9}), "sha256": "([0-9a-f]{64})",\n')

#: Returns the trees of the iterations first + 1, …, last.
TreesOf = Callable[[int, int], tuple[Tree, ...]]


@dataclass(frozen=True)
class State:
    """The content of `state.json`."""

    identity: dict[str, Any]  # settings and data of the fit, see `Checkpoint.resume` and `Checkpoint.begin`
    parts: list[dict[str, Any]]  # tree files in order: name, first and last iteration, SHA-256
    before: dict[str, float]  # loss and metrics before the fit's first iteration
    history: list[dict[str, Any]]  # one record per iteration of the fit; with arcbites also of those cut back
    #: With arcbites: the ``bites`` visited so far, ``in_vain``, the number of latest visits that did not improve the model, and
    #: ``began``, loss and metrics at the start of the next visit.
    visits: dict[str, Any] | None = None


class Checkpoint:
    """The checkpoint of one fit, which it has within a ``with`` block.

    Parameters
    ----------
    path : path or URL of a folder
    every : int
        Number of iterations between two writes.

    Raises
    ------
    BusyError
        On entering, if another run has the checkpoint.
    ModelFileError
        If the folder cannot be written; on entering, if its state is damaged or of another version.
    """

    def __init__(self, path: str | os.PathLike[str], every: int) -> None:
        self.path = path_text(path).rstrip("/")
        self._every = every
        self._make_folder()
        self._lease = Lease(f"{self.path}/{_LEASE}", f"is writing the checkpoint in {shown(self.path)}")
        self._state, self._exists = State({}, [], {}, []), False  # what the files hold, and whether there are any
        self._identity: dict[str, Any] = {}
        self._empty: Ensemble
        self._n_earlier = 0

    def __enter__(self) -> Checkpoint:
        self._lease.__enter__()
        try:
            for name in names_in(self.path):
                if _DRAFT.fullmatch(name):  # of a process that was killed while it wrote
                    remove(f"{self.path}/{name}")
            state = self._read()
            self._state, self._exists = state or self._state, state is not None
        except BaseException as error:
            self._lease.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lease.__exit__(kind, error, trace)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Records of the iterations in the checkpoint."""
        return self._state.history

    @property
    def visits(self) -> dict[str, Any] | None:
        """The visits to arcbites so far, see `State`."""
        return self._state.visits

    @property
    def n_iterations(self) -> int:
        """Number of iterations in the checkpoint, without those that were cut back."""
        return sum(part["last_iteration"] - part["first_iteration"] + 1 for part in self._state.parts)

    def resume(
        self,
        warm_start: WarmStart,
        features: tuple[Feature, ...],
        target: Target,
        parameters: Parameters,
        asked: Mapping[str, Any],
    ) -> WarmStart:
        """Return the warm start that continues after the iterations of the checkpoint.

        Parameters
        ----------
        warm_start : WarmStart
            The warm start of the fit without a checkpoint.
        features, target
            Those of the data.
        parameters : Parameters
            `max_iter` may be larger than in the fit that wrote the checkpoint.
        asked : mapping
            The user's settings, as JSON types by name.

        Raises
        ------
        ParameterError, DataError
            When the checkpoint belongs to another fit, naming the first difference.
        ModelFileError
            When a file of the checkpoint is damaged.
        """
        self._identity, self._n_earlier = {"asked": plain(asked)}, warm_start.n_earlier
        if not self._exists:
            return warm_start
        # A parameter that did not exist when the checkpoint was written had its default.
        defaults = {field.name: plain(field.default) for field in fields(Parameters) if field.name in self._identity["asked"]}
        differs = first_difference(defaults | self._state.identity["asked"], self._identity["asked"])
        if differs is not None:
            name, stored, current = differs
            label = name if name == "loss" else CALLED.get(name, name)
            raise ParameterError(f"{self._refusal}: {label} was {stored} then and is {current} now")
        n = len(self.history)
        if n > warm_start.last_iteration(parameters.max_iter) - warm_start.n_earlier:
            raise ParameterError(f"{self._refusal}: it has {n} iterations already, more than max_iter={parameters.max_iter}")
        if not self._state.parts:  # no visit so far improved the model
            return warm_start
        own_model = self._model(warm_start.n_earlier)
        try:
            check_continues(own_model, features, target)
        except DataError as error:
            raise DataError(f"{self._refusal}: {error}") from error
        base = own_model if warm_start.model is None else warm_start.model
        earlier = () if warm_start.model is None else base.trees
        metrics = base.metrics if self.visits else appended(base.own_metrics, warm_start.n_earlier, metrics_of(self.history), n)
        return warm_start.resumed(replace(base, trees=earlier + own_model.trees, metrics=metrics))

    def begin(self, data: dict[str, Any], empty: Ensemble, current: dict[str, float]) -> dict[str, float]:
        """Compare the data with those of the checkpoint, after the scores have been recomputed.

        Parameters
        ----------
        data : dict
            See `describe_data`.
        empty : Ensemble
            The fit's model without trees.
        current : dict
            Loss and metrics before the next iteration.

        Returns
        -------
        dict
            Loss and metrics before the fit's first iteration.

        Raises
        ------
        DataError
            When the data differ, naming the difference.
        ParameterError
            When another memory limit results in another number of arcbites.
        """
        self._identity["data"] = data
        self._empty = replace(empty, edges=(), parameters={}, metrics={}, sources=())
        if not self._exists:
            self._state = State(self._identity, [], current, [])
            return current
        state = self._state
        self._check_data(state.identity["data"], self._identity["data"])
        noted = state.visits["began"] if state.visits else state.history[-1] if state.history else state.before
        for name, value in sorted(current.items(), key=lambda item: item[0] != "train_loss"):
            if not same(value, noted.get(name)):
                whose = "the training data" if name == "train_loss" else "the evaluation sets"
                raise DataError(
                    f"{self._refusal}: {whose} are not the same, {name} is {value!r} where {noted.get(name)!r} was noted"
                )
        return state.before

    def _check_data(self, stored: dict[str, Any], current: dict[str, Any]) -> None:
        """Raise DataError for other data, ParameterError for another number of bites."""
        n_bites = stored.get("n_bites")
        if n_bites != current.get("n_bites") and stored["rows"] == current["rows"]:
            raise ParameterError(
                f"{self._refusal}: with the memory_limit of then there were {n_bites} arcbites, now there are "
                f"{current['n_bites']} (give the same memory_limit, or n_bites={n_bites})"
            )
        differs = first_difference({**stored, "columns": None}, {**current, "columns": None})
        column = first_difference(stored["columns"], current["columns"])
        if differs is not None and differs[0] == "rows":
            described = f"there were {differs[1]} rows then, there are {differs[2]} now"
        elif differs is not None and (differs[0] != "loss" or column is None):
            described = f"{CALLED.get(differs[0], differs[0])} differs"
        elif column is not None:
            described = f"column {column[0]!r} holds other values"
        else:
            return
        raise DataError(f"{self._refusal}: the data are not the same, {described}")

    def note(self, history: Sequence[dict[str, Any]], last: int, trees_of: TreesOf) -> None:
        """Write the checkpoint if at least `every` iterations are not in it yet; called after each iteration."""
        if last - self._n_written >= self._every:
            self.write(history, last, trees_of)

    def write(self, history: Sequence[dict[str, Any]], last: int, trees_of: TreesOf) -> None:
        """Write all complete iterations.

        Parameters
        ----------
        history : sequence of dict
            The records of the iterations of this fit.
        last : int
            The number of the last complete iteration.
        trees_of : callable
            Returns the trees of iterations first + 1, …, last.

        Raises
        ------
        ModelFileError
            Naming the file that cannot be written; the previous state remains valid.
        """
        state = self._state
        first = self._n_written
        if last == first:
            return
        records = [plain(record) for record in history[first - last :]]
        part = self._write_trees(first, last, trees_of)
        self._write_state(State(self._identity, [*state.parts, part], state.before, [*state.history, *records]))

    def note_visit(
        self,
        history: Sequence[dict[str, Any]],
        last: int,
        trees_of: TreesOf,
        past: dict[str, Any],
        began: dict[str, float],
    ) -> None:
        """Write the iterations before a visit to an arcbite, if at least `every` of them are not in the checkpoint yet.

        history, last, trees_of : as in `write`.
        past, began : ``bites`` and ``in_vain``, see `State`; current loss and metrics.
        """
        state = self._state
        if len(history) - len(state.history) < self._every:
            return
        first = self._n_written
        parts = state.parts if first == last else [*state.parts, self._write_trees(first, last, trees_of)]
        records = [*state.history, *(plain(record) for record in history[len(state.history) :])]
        self._write_state(State(self._identity, parts, state.before, records, plain(past | {"began": began})))

    def _write_trees(self, first: int, last: int, trees_of: TreesOf) -> dict[str, Any]:
        self._lease.renew()
        name = _name_of_trees(first + 1, last)
        content = model_file.dumps(replace(self._empty, trees=trees_of(first, last)))
        write_whole(f"{self.path}/{name}", content)
        digest = hashlib.sha256(content).hexdigest()
        return {"name": name, "first_iteration": first + 1, "last_iteration": last, "sha256": digest}

    def _write_state(self, written: State) -> None:
        self._lease.check()
        write_whole(f"{self.path}/{STATE}", _dumps(written))
        self._state = written

    @property
    def _n_written(self) -> int:
        """The number of the last iteration in the checkpoint."""
        return self._n_earlier + self.n_iterations

    @property
    def _refusal(self) -> str:
        return f"the checkpoint in {self.path} is of another fit (choose another folder, or remove it)"

    def _make_folder(self) -> None:
        try:
            filesystem, folder = filesystem_of(self.path)
            filesystem.makedirs(folder, exist_ok=True)
            try_writing(f"{self.path}/{STATE}")
        except (OSError, ValueError, ImportError) as error:
            raise ModelFileError(f"cannot keep a checkpoint in {self.path}: {reason(error)}") from error

    def _read(self) -> State | None:
        name = f"{self.path}/{STATE}"
        try:
            data = read_whole(name)
        except FileMissingError:
            return None
        head = _HEAD.match(data)
        if head is None:
            raise ModelFileError(f"{name} is not the state of a checkpoint, or its first line is damaged")
        if (version := int(head[1])) != VERSION:
            age = "a newer" if version > VERSION else "an older"
            raise ModelFileError(f"{name} has format version {version}, written by {age} dboost; this one knows {VERSION}")
        content = data[head.end() :]
        if hashlib.sha256(content).hexdigest() != head[2].decode():
            raise ModelFileError(f"{name} is damaged, cut short or was edited: its content does not match its checksum")
        try:
            state = _parsed(b"{" + content)
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{name} does not hold a valid state of a checkpoint: {error}") from error
        return state

    def _model(self, n_earlier: int) -> Ensemble:
        """Load the fit's own trees. n_earlier : number of iterations before them."""
        state, pieces = f"{self.path}/{STATE}", []
        if self._state.parts[0]["first_iteration"] != n_earlier + 1:
            raise ModelFileError(f"{state} is damaged: its trees do not begin with iteration {n_earlier + 1}")
        for part in self._state.parts:
            name = f"{self.path}/{part['name']}"
            data = read_whole(name)
            if hashlib.sha256(data).hexdigest() != part["sha256"]:
                raise ModelFileError(f"{name} is damaged or cut short: its content is not what {STATE} says")
            piece = model_file.loads(data, name)
            if piece.n_iterations != part["last_iteration"] - part["first_iteration"] + 1:
                raise ModelFileError(f"{name} has {piece.n_iterations} iterations, which is not what {STATE} says")
            pieces.append(piece)
            if len({model_file.digest(replace(stored_piece, trees=())) for stored_piece in (pieces[0], piece)}) > 1:
                raise ModelFileError(f"{name} is of another model than {self._state.parts[0]['name']} beside it")
        return replace(pieces[-1], trees=tuple(tree for piece in pieces for tree in piece.trees))


def remove_checkpoint(path: str) -> None:
    """Remove the files of a checkpoint, and its folder if nothing else is in it.

    Raises
    ------
    ModelFileError
        Naming the file.
    """
    remove_own(path, _OWN)


def checkpoint_in(path: Any, every: Any) -> Checkpoint | None:
    """Return the checkpoint in a folder; None without a folder.

    Raises
    ------
    ParameterError, ModelFileError
        See `Checkpoint`.
    """
    if isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 1:
        raise ParameterError(f"checkpoint_every={every!r} must be a positive integer")
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike):
        raise ParameterError(f"checkpoint={path!r} must be a folder or a URL")
    return Checkpoint(path, int(every))


def _dumps(state: State) -> bytes:
    described = {name: value for name, value in vars(state).items() if value is not None}
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in described.items()) + "\n}\n"
    content = text.encode()
    head = f'{{"format": "dboost checkpoint", "version": {VERSION}, "sha256": "{hashlib.sha256(content).hexdigest()}",\n'
    return head.encode() + content


#: Words of error messages for the entries of `State.identity` that are not keyword arguments.
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


_SHA256 = re.compile(r"[0-9a-f]{64}")
_SCORES: Shape = {"train_loss": float, OTHERS: float}
_DATA: Shape = {
    "rows": Within(1), "target": Within(0), "sample_weight": Within(0), "group?": Within(0), "n_bites?": Within(1),
    "order": [str], "columns": {OTHERS: _SHA256}, "loss": {"name": str, OTHERS: PLAIN},
}  # fmt: skip
#: The entries of `State`.
_STATE: Shape = {
    "identity": {"asked": {OTHERS: ANY}, "data": _DATA},
    "parts": [
        {
            "name": re.compile(r"trees-\d{6,}-\d{6,}\.json"), "first_iteration": Within(1), "last_iteration": Within(1),
            "sha256": _SHA256,
        }
    ],
    "before": _SCORES,
    "history": [
        {"iteration": Within(1), "visit?": Within(1), "bite?": Within(0), "train_loss": float, OTHERS: (float, None)}
    ],
    "visits?": {"bites": [Within(0)], "in_vain": Within(0), "began": _SCORES},
}  # fmt: skip


def _parsed(content: bytes) -> State:
    """Return the state in the content of `state.json`; ValueError or RecursionError if it is no valid one."""
    entries = json.loads(content)
    check_shape(entries, _STATE, "it")
    state = State(**entries)
    last = None
    for part in state.parts:
        first, before, last = part["first_iteration"], last, part["last_iteration"]
        if first > last or first != (first if before is None else before + 1) or part["name"] != _name_of_trees(first, last):
            raise ValueError(f"its trees {part['name']} do not follow the others")
    asks_bites = state.identity["asked"].get("arcbites") is not None
    if (state.visits is None) == asks_bites and (state.parts or state.history):
        raise ValueError("its visits and the parameter arcbites do not fit")
    if ("n_bites" in state.identity["data"]) != asks_bites:
        raise ValueError("its number of arcbites and the parameter arcbites do not fit")
    numbers = [record["iteration"] for record in state.history]
    first = state.parts[0]["first_iteration"] if state.parts else 1
    if state.visits is None and numbers != list(range(first, 1 + (last or 0))):
        raise ValueError("its history is not that of its trees")
    if state.visits is not None and set(state.visits["began"]) != set(state.before):
        raise ValueError("its visits have other metrics than the entry before")
    names = set(state.history[0]) - NOT_SCORES if state.history else set()  # a callback may have added some
    if any(set(record) - NOT_SCORES != names or not names >= set(state.before) for record in state.history):
        raise ValueError("its history has other metrics than the entry before, or not the same in all iterations")
    if state.visits is not None:
        of_visits = list(dict.fromkeys((record.get("visit"), record.get("bite")) for record in state.history))
        steps = zip(numbers, [first - 1, *numbers], strict=False)
        if of_visits != list(enumerate(state.visits["bites"], 1)) or any(now > before + 1 for now, before in steps):
            raise ValueError("its history is not that of its visits")
    return state


def _name_of_trees(first: int, last: int) -> str:
    """Return the name of the file with the trees of some iterations, counted from 1, both included."""
    return f"trees-{first:06d}-{last:06d}.json"


def describe_data(binning: Binning, loss: BaseLoss, n_rows: int, n_bites: int | None, sums: Sequence[int]) -> dict[str, Any]:
    """Return the identity of the data: number of rows, fingerprints, split points, categories and the loss.

    n_bites : number of arcbites, None without them; sums : see `merged_fingerprint`.
    """
    columns: dict[str, str] = {}
    n_features = len(binning.features)
    for feature, edges, code_sum in zip(binning.features, binning.edges, sums[2 : 2 + n_features], strict=True):
        cut = [repr(level) for level in feature.categories or ()] if edges is None else [edge.hex() for edge in edges.tolist()]
        columns[feature.name] = hashlib.sha256(json.dumps([cut, code_sum]).encode()).hexdigest()
    # The weights come first, because they change other entries (e.g. split points), which the error should not name.
    rows: dict[str, Any] = {"rows": n_rows, "target": sums[0], "sample_weight": sums[1]}
    if n_bites is not None:
        rows["n_bites"] = n_bites
    if len(sums) > 2 + n_features:
        rows["group"] = sums[-1]
    return rows | {"order": list(columns), "columns": columns, "loss": plain(loss.to_dict())}


def merged_fingerprint(backend: Backend, spec: ShardSpec) -> list[int]:
    """Return the fingerprints over all rows, see `rows.statistics.row_fingerprint`."""
    none = np.zeros(2 + len(spec.layout.n_bins) + spec.has_draw_ids, np.uint64)
    return [int(number) for number in reduce(np.add, backend.statistics(row_fingerprint), none)]


def first_difference(stored: dict[str, Any], current: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """Return name and both values of the first entry that differs; None if the records are equal."""
    for name in [*stored, *(name for name in current if name not in stored)]:
        if not same(stored.get(name), current.get(name)):
            return name, stored.get(name), current.get(name)
    return None


def same(stored: Any, current: Any) -> bool:
    return stored == current or (stored != stored and current != current)


def plain(value: Any) -> Any:
    """Convert a value to types that JSON stores without change.

    Raises
    ------
    DBoostError
        For other types.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise DBoostError(f"a checkpoint cannot note {value!r}")
