"""Held-out rows: encoded like the training rows, scored by each new tree, judged by exact metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dboost.engine.team import Team
from dboost.growth.task import GrownTree
from dboost.errors import InputTypeError
from dboost.kernels.histograms import Layout
from dboost.kernels.routing import add_tree
from dboost.losses import Loss
from dboost.shard.shard import Codes
from dboost.statistics.exact import unit_for
from dboost.statistics.metrics import Metric, Rows


def named_sets(eval_set: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """(name, data, target, weight) of each evaluation set; target None means the training target's column.

    `eval_set` is a frame, (X, y), (X, y, weight), a dict of these by name, or a list of them.
    """
    if eval_set is None:
        return
    if isinstance(eval_set, dict):
        items = [(str(name), one) for name, one in eval_set.items()]
    elif isinstance(eval_set, list) and eval_set and isinstance(eval_set[0], tuple):
        items = [("eval" if len(eval_set) == 1 else f"eval_{i}", one) for i, one in enumerate(eval_set)]
    else:
        items = [("eval", eval_set)]
    for name, one in items:
        if isinstance(one, tuple):
            if len(one) not in (2, 3):
                raise InputTypeError(f"evaluation set {name!r} must be (X, y) or (X, y, weight), not {len(one)} things")
            yield name, one[0], one[1], one[2] if len(one) == 3 else None
        else:
            yield name, one, None, None


class HeldOut:
    """One evaluation set in this process's memory.

    Parameters
    ----------
    name : str
    codes : Codes
    layout : Layout
    target : float64[n_rows]
    weight : float64[n_rows] or None
    raw : float64[n_rows]
        Raw scores to start from; updated.
    loss : Loss
    magnitude : float
        About how large a row's loss can be.
    team : Team
    """

    def __init__(
        self,
        name: str,
        codes: Codes,
        layout: Layout,
        target: np.ndarray,
        weight: np.ndarray | None,
        raw: np.ndarray,
        loss: Loss,
        magnitude: float,
        team: Team,
    ) -> None:
        self.name = name
        self._codes = codes
        self._layout = layout
        self._team = team
        heaviest = 1.0 if weight is None else float(weight.max())
        self._rows = Rows(
            target, raw, weight, loss,
            unit=unit_for(magnitude * heaviest, len(raw), spare_bits=10),
            weight_unit=unit_for(heaviest, len(raw)),
        )  # fmt: skip

    def add(self, grown: GrownTree, values: np.ndarray) -> None:
        """Add a grown tree's leaf values (float64[n_leaves]) to the raw scores."""
        n, p, frontier = len(self._rows.raw), self._team.n_threads, grown.frontier
        of_node = values[grown.leaf_of]

        def part(thread: int) -> None:
            add_tree(
                self._codes.narrow, self._codes.wide, self._codes.row_of, frontier.feature, frontier.cut,
                frontier.missing_left, frontier.child, self._layout.n_bins, grown.left_codes, self._layout.is_categorical,
                of_node, n * thread // p, n * (thread + 1) // p, self._rows.raw,
            )  # fmt: skip

        self._team.run(part)

    def judge(self, metrics: list[Metric]) -> dict[str, float]:
        """The metrics now, as ``{"<set>_<metric>": value}``."""
        return {f"{self.name}_{metric.name}": metric.finish(metric.chunk(self._rows)) for metric in metrics}
