"""Held-out rows: encoded like the training rows, scored by each new tree, judged by exact metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dboost.binning import Binning
from dboost.engine.team import Team
from dboost.errors import DataError, InputTypeError
from dboost.growth.task import GrownTree
from dboost.kernels.histograms import Layout
from dboost.losses import Loss
from dboost.shard.catch_up import add_grown
from dboost.shard.loading import encode_table, kept_rows
from dboost.shard.shard import Codes, empty_codes
from dboost.sources import Table, open_table
from dboost.statistics.metrics import Metric, Rows, Size
from dboost.training.budget import Allowance, Budget, reading_within
from dboost.training.held_out_files import FiledHeldOut, FiledRows, ToJudge, judged_bytes
from dboost.training.origin import Origin
from dboost.training.replay import block_of, starting_scores
from dboost.training.target import Target, encode_chunk, encode_like

_log = logging.getLogger("dboost")

#: Rows that are encoded at a time.
_PIECE_ROWS = 65_536


def named_sets(eval_set: Any) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """(name, data, target, weight, offset) of each evaluation set; target None means the training target's column.

    `eval_set` is a frame, (X, y), (X, y, weight), (X, y, weight, offset), a dict of these by name, or a list of them.
    """
    if eval_set is None:
        return
    if isinstance(eval_set, dict):
        items = [(str(name), one) for name, one in eval_set.items()]
    elif isinstance(eval_set, list) and all(isinstance(one, tuple) or _is_table(one) for one in eval_set):
        items = [("eval" if len(eval_set) == 1 else f"eval_{i}", one) for i, one in enumerate(eval_set)]
    else:
        items = [("eval", eval_set)]
    for name, one in items:
        if isinstance(one, tuple):
            if len(one) not in (2, 3, 4):
                raise InputTypeError(
                    f"evaluation set {name!r} must be (X, y), (X, y, weight) or (X, y, weight, offset), not {len(one)} things"
                )
            yield name, *one, *(None,) * (4 - len(one))
        else:
            yield name, one, None, None, None


def tell_judged_in_files(name: str) -> None:
    """Log that a set, or some of its rows, do not fit a memory limit."""
    _log.info("the rows of %r are many beside the memory limit and are judged from files", name)


def _is_table(data: Any) -> bool:
    """Whether something has named columns, so that a list of such is no table itself."""
    return hasattr(data, "columns") or hasattr(data, "column_names")


class Judge(Protocol):
    """An evaluation set, wherever its rows are."""

    @property
    def name(self) -> str: ...

    def add(self, grown: GrownTree, values: np.ndarray, output: int = 0) -> None:
        """Add a grown tree's leaf values (float64[n_leaves]) to the raw scores of its output."""

    def judge(self, metrics: Sequence[Metric]) -> dict[str, float]:
        """The metrics now, as ``{"<set>_<metric>": value}``."""

    def mark(self) -> None:
        """Remember the present raw scores."""

    def rewind(self) -> None:
        """Forget the trees since the last mark."""


class HeldOut:
    """One evaluation set in this process's memory.

    Parameters
    ----------
    name : str
    codes : Codes
    layout : Layout
    rows : Rows
        Target, weight and loss; its raw scores are a view of `raw`.
    raw : float64[n_rows] or float64[n_outputs, n_rows]
        Raw scores to start from; updated.
    team : Team
    """

    def __init__(self, name: str, codes: Codes, layout: Layout, rows: Rows, raw: np.ndarray, team: Team) -> None:
        self.name = name
        self._codes = codes
        self._layout = layout
        self._rows = rows
        self._raw = raw
        self._marked: np.ndarray | None = None
        self._team = team

    def add(self, grown: GrownTree, values: np.ndarray, output: int = 0) -> None:
        """Add a grown tree's leaf values (float64[n_leaves]) to the raw scores of its output."""
        n, p = len(self._rows.target), self._team.n_threads
        raw = self._raw if self._raw.ndim == 1 else self._raw[output]
        self._team.run(lambda t: add_grown(self._codes, self._layout, grown, values, raw, n * t // p, n * (t + 1) // p))

    def judge(self, metrics: Sequence[Metric]) -> dict[str, float]:
        """The metrics now, as ``{"<set>_<metric>": value}``."""
        told = zip(metrics, self.chunks(metrics), strict=True)
        return {f"{self.name}_{metric.name}": metric.finish(chunk) for metric, chunk in told}

    def chunks(self, metrics: Sequence[Metric]) -> list[Any]:
        """What each metric says of the rows now, to be merged with what it says of others."""
        return [metric.chunk(self._rows) for metric in metrics]

    def mark(self) -> None:
        """Remember the present raw scores."""
        if self._marked is None:
            self._marked = np.empty_like(self._raw)
        self._marked[...] = self._raw

    def rewind(self) -> None:
        """Forget the trees since the last mark."""
        assert self._marked is not None
        self._raw[...] = self._marked

    def some(self, stays: np.ndarray) -> HeldOut:
        """Some of the rows (bool[n_rows]) in the state that they are in."""
        kept, codes, seen = np.flatnonzero(stays), self._codes, self._rows
        raw = np.ascontiguousarray(self._raw[..., kept])
        rows = replace(
            seen,
            target=seen.target[kept],
            raw=raw.T,
            weight=None if seen.weight is None else seen.weight[kept],
            block=None if seen.block is None else seen.block[kept],
        )
        narrow, wide = (np.ascontiguousarray(part[:, kept]) for part in (codes.narrow, codes.wide))
        found = HeldOut(self.name, Codes(narrow, wide, codes.row_of), self._layout, rows, raw, self._team)
        found._marked = None if self._marked is None else np.ascontiguousarray(self._marked[..., kept])
        return found

    def close(self) -> None:
        """Nothing but memory to let go of."""


@dataclass(frozen=True, eq=False)
class Yardstick:
    """What it takes to judge rows: the training target's terms, the bins, where scores start.

    Attributes
    ----------
    target : Target
    binning : Binning
    layout : Layout
    baseline : float64[n_outputs]
    magnitude, spread : float
        About how large a row's loss can be, and a prediction's error.
    origin : Origin
        Whose trees the scores begin with.
    with_block : bool
        Whether some metric wants to see the rows.
    n_threads : int
    budget : Budget or None
        What the fit may take: sets that are large beside it are judged from files.
    allowance : Allowance or None
        What is left for those in memory.
    """

    target: Target
    binning: Binning
    layout: Layout
    baseline: np.ndarray
    magnitude: float
    spread: float
    origin: Origin
    with_block: bool
    n_threads: int
    budget: Budget | None = None
    allowance: Allowance | None = None

    def data(
        self, name: str, data: Any, target_column: Any, weight_column: Any, offset_column: Any = None
    ) -> Callable[[Team], Judge]:
        """A data set of its own, in the terms of the training data."""
        try:
            with open_table(
                data,
                target_column,
                sample_weight=weight_column,
                offset=offset_column,
                like=self.binning.features,
                **reading_within(self.budget, self.n_threads),
            ) as table:
                if not self._holds(table.n_rows):
                    return self._in_files(name, ToJudge(table, lambda k: encode_chunk(table, k, self.target)))
                table.gather_roles()
                y = encode_like(table, self.target)
                return self._in_memory(name, table, y, kept_rows(table.weight))
        except (DataError, InputTypeError) as error:
            raise type(error)(f"evaluation set {name!r}: {error}") from error

    def _holds(self, n_rows: int) -> bool:
        """Whether so many rows more may be judged in memory."""
        if self.allowance is None or self.with_block:
            return True
        return self.allowance.take(judged_bytes(self.layout, n_rows, len(self.baseline)))

    def _in_files(self, name: str, judged: ToJudge) -> Callable[[Team], FiledHeldOut]:
        assert self.budget is not None
        tell_judged_in_files(name)
        files = FiledRows.write(
            judged,
            self.binning,
            self.layout,
            baseline=self.baseline,
            origin=self.origin,
            n_threads=self.n_threads,
            room_bytes=self.budget.retained,
        )
        size = Size(self.magnitude, self.spread, files.heaviest, files.n_rows)
        return lambda team: FiledHeldOut(name, files, self.target.loss, size, team)

    def rows(self, name: str, judged: ToJudge) -> Callable[[Team], Judge]:
        """Some rows of a table that is trained on; waits for the team that will share the work."""
        n_rows, heaviest, _ = judged.sizes()
        if not self._holds(n_rows):
            return self._in_files(name, judged)
        size = Size(self.magnitude, self.spread, heaviest, n_rows)
        held = in_memory(
            judged,
            self.binning,
            self.layout,
            self.target.loss,
            size,
            with_block=self.with_block,
            baseline=self.baseline,
            origin=self.origin,
            n_threads=self.n_threads,
        )
        return lambda team: HeldOut(name, held[0], self.layout, *held[1:], team)

    def _in_memory(self, name: str, table: Table, y: np.ndarray, kept: np.ndarray | None) -> Callable[[Team], Judge]:
        codes = encode_table(table, self.binning, self.layout, kept, self.n_threads, allow_infinite=True)
        weight = table.weight
        if kept is not None:
            y, weight = y[kept], None if weight is None else weight[kept]
        n, heaviest = len(y), 1.0 if weight is None else float(weight.max())
        raw = starting_scores(self.baseline, self.origin, table, kept, self.n_threads)
        seen = Rows(
            y,
            raw.T,
            weight,
            self.target.loss,
            Size(self.magnitude, self.spread, heaviest, n),
            block=block_of(table, kept) if self.with_block else None,
        )
        return lambda team: HeldOut(name, codes, self.layout, seen, raw, team)


def in_memory(
    judged: ToJudge,
    binning: Binning,
    layout: Layout,
    loss: Loss,
    size: Size,
    *,
    baseline: np.ndarray,
    origin: Origin,
    n_threads: int,
    with_block: bool = False,
) -> tuple[Codes, Rows, np.ndarray]:
    """Rows to be judged as `HeldOut` has them: codes, what metrics see, raw scores.

    with_block : whether some metric wants to see the rows.
    """
    n, _, weighted = judged.sizes()
    codes, n_outputs = empty_codes(layout, n), len(baseline)
    raw = np.empty(n if n_outputs == 1 else (n_outputs, n))
    rooms = {"narrow": codes.narrow, "wide": codes.wide, "target": np.empty(n), "raw": raw}
    if weighted:
        rooms["weight"] = np.empty(n)
    at = 0
    for found in judged.pieces(binning, layout, min(n, _PIECE_ROWS), baseline=baseline, origin=origin, n_threads=n_threads):
        here = slice(at, at + len(found["target"]))
        for field, room in rooms.items():
            room[..., here] = found[field]
        at = here.stop
    block = None
    if with_block:
        block = block_of(judged.table, kept_rows(judged.table.weight) if judged.rows is None else judged.rows)
    return codes, Rows(rooms["target"], raw.T, rooms.get("weight"), loss, size, block=block), raw
