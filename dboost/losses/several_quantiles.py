"""Several quantiles of one target, whose predictions never cross.

`Quantiles` is the mean of the pinball losses of its levels, each of which is an output with its own raw score. Scores of a row
may cross, for instance where few rows are; predictions do not, because they are the sorted scores (Chernozhukov, Fernández-Val
and Galichon, 2010). Sorting never raises the loss, for any target y: with u⁺ = max(u, 0),

    Σ_k ρ_k(y - q_k) = Σ_k τ_k (y - q_k) + Σ_k (q_k - y)⁺.

The second sum does not depend on the order of the scores q. The first one is smallest if the q ascend with the τ
(rearrangement inequality). Metrics are those of predictions, so of sorted scores; `train_loss` is that of the scores as they
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dboost.exact import exact_level, find_quantiles, rank_unit, ranks_of
from dboost.losses.base import BaseLoss, InitialRows, Link, PartOfRows, Start, Targets
from dboost.losses.per_output import PerOutput
from dboost.losses.quantile_losses import Quantile, next_residuals, residual_digits


class Quantiles(PerOutput):
    """The mean of the pinball losses of several levels of one target.

    Parameters
    ----------
    levels : sequence of float
        Ascending, between 0 and 1, both excluded.
    """

    def __init__(self, levels: Sequence[float]) -> None:
        self.levels = tuple(levels)
        names = tuple(repr(float(level)) for level in self.levels)
        super().__init__([Quantile(level) for level in self.levels], names, ("target",), (0,) * len(names))

    def with_parts(self, parts: Sequence[BaseLoss]) -> Quantiles:
        return Quantiles([part.leaves[0].level for part in parts])

    @property
    def targets(self) -> Targets:  # type: ignore[override]
        return Targets(of_outputs=self.columns)

    @property
    def start(self) -> Start:  # type: ignore[override]
        return Start(of_rows=self._quantiles_of_rows)

    def _quantiles_of_rows(self, rows: InitialRows) -> np.ndarray:
        unit = rank_unit(rows.rows.max_weight, rows.rows.n_rows)
        return find_quantiles(
            lambda *digits: rows.rows.merged(_digits_of_levels, np.add, unit, *digits),
            lambda keys: rows.rows.merged(_next_of_levels, np.minimum, keys),
            ranks_of(list(map(exact_level, self.levels)), 1),
            self.n_outputs,
        )

    @property
    def link(self) -> Link:  # type: ignore[override]
        return Link(to_prediction=_sorted, ordered=_sorted, output_names=self.output_names)


def quantile_loss(quantile: float | Sequence[float]) -> BaseLoss:
    """Return the loss of one level, or of several."""
    return Quantile(quantile) if isinstance(quantile, float | int) else Quantiles(quantile)


def _sorted(raw: np.ndarray) -> np.ndarray:
    return np.sort(raw, axis=0)


# Before the first tree a row has the same score at all levels, so those that share the digits found so far share a pass.


def _digits_of_levels(rows: PartOfRows, unit: float, prefix: np.ndarray, shift: np.uint64) -> np.ndarray:
    """Return `residual_digits` of the initial scores for all levels: int64[n_levels, 256]."""
    alone, (different, of_level) = rows.of_output(0, 0), np.unique(prefix, return_inverse=True)
    return np.concatenate([residual_digits(alone, False, unit, part, shift) for part in different.reshape(-1, 1)])[of_level]


def _next_of_levels(rows: PartOfRows, keys: np.ndarray) -> np.ndarray:
    """Return `next_residuals` of the initial scores for all levels: uint64[n_levels]."""
    alone = rows.of_output(0, 0)
    return np.concatenate([next_residuals(alone, False, part) for part in keys.reshape(-1, 1)])


def joined_losses(parts: Sequence[BaseLoss], names: Sequence[str], targets: Any, columns: Any) -> PerOutput:
    """Return the loss that consists of these, see `PerOutput`."""
    levels = [part.leaves[0].level for part in parts]
    are_levels = targets is not None and len(targets) == 1 and all(isinstance(part, Quantile) for part in parts)
    joined = PerOutput(parts, names, targets, columns)
    if are_levels and levels == sorted(set(levels)) and Quantiles(levels).to_dict() == joined.to_dict():
        return Quantiles(levels)
    return joined
