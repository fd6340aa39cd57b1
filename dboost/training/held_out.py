"""Held-out rows: encoded like the training rows, scored by each new tree, judged by exact metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dboost.binning import Binning
from dboost.engine.team import Team
from dboost.errors import DataError, InputTypeError
from dboost.growth.task import GrownTree
from dboost.kernels.histograms import Layout
from dboost.shard.catch_up import add_grown
from dboost.shard.loading import encode_table, kept_rows
from dboost.shard.shard import Codes
from dboost.sources import Table, open_table
from dboost.statistics.metrics import Metric, Rows, Size
from dboost.training.budget import Budget, reading_within
from dboost.training.held_out_files import FiledHeldOut, FiledRows
from dboost.training.origin import Origin
from dboost.training.replay import block_of, starting_scores
from dboost.training.target import Target, encode_like


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
        return {f"{self.name}_{metric.name}": metric.finish(metric.chunk(self._rows)) for metric in metrics}

    def mark(self) -> None:
        """Remember the present raw scores."""
        if self._marked is None:
            self._marked = np.empty_like(self._raw)
        self._marked[...] = self._raw

    def rewind(self) -> None:
        """Forget the trees since the last mark."""
        assert self._marked is not None
        self._raw[...] = self._marked


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
        What the fit may take: data sets that are large beside it are judged from files.
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
                if self.budget is not None and not self.with_block:
                    row_bytes = len(self.binning.features) + 16 * (1 + len(self.baseline))
                    if table.n_rows * row_bytes > self.budget.retained:
                        return self._in_files(name, table)
                table.gather_roles()
                y = encode_like(table, self.target)
                return self.rows(name, table, y, kept_rows(table.weight))
        except (DataError, InputTypeError) as error:
            raise type(error)(f"evaluation set {name!r}: {error}") from error

    def _in_files(self, name: str, table: Table) -> Callable[[Team], FiledHeldOut]:
        files = FiledRows.write(
            table,
            self.target,
            self.binning,
            self.layout,
            baseline=self.baseline,
            origin=self.origin,
            n_threads=self.n_threads,
        )
        size = Size(self.magnitude, self.spread, files.heaviest, files.n_rows)
        return lambda team: FiledHeldOut(name, files, self.target.loss, size, team)

    def rows(self, name: str, table: Table, y: np.ndarray, rows: np.ndarray | None) -> Callable[[Team], Judge]:
        """Some rows (int64, ascending) of a table with targets y, or all; waits for the team that will share the work."""
        codes = encode_table(table, self.binning, self.layout, rows, self.n_threads, allow_infinite=True)
        weight = table.weight
        if rows is not None:
            y, weight = y[rows], None if weight is None else weight[rows]
        n, heaviest = len(y), 1.0 if weight is None else float(weight.max())
        raw = starting_scores(self.baseline, self.origin, table, rows, self.n_threads)
        seen = Rows(
            y,
            raw.T,
            weight,
            self.target.loss,
            Size(self.magnitude, self.spread, heaviest, n),
            block=block_of(table, rows) if self.with_block else None,
        )
        return lambda team: HeldOut(name, codes, self.layout, seen, raw, team)
