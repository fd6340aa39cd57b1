"""What the pass over rows between two iterations computes, by loss.

A fit sends every session the `LossTerms` of its loss, and the values of the last trees. The terms add the values to the scores
of some rows and compute their gradients, Hessians and loss: `LossTerms.advance`. There are five kinds:

* `KernelTerms`, of a loss with a compiled function (`losses.gradient_pass`);
* `GroupTerms`, of such a loss whose gradients depend on the other rows of a group;
* `CustomTerms` (`losses.custom`), whose functions are in NumPy;
* `PerOutputTerms` (`losses.per_output`), the terms of each output;
* `ProjectedTerms` (`losses.projection`), which also computes the derivatives along the direction of a tree of all outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dboost.kernels import or_empty
from dboost.kernels.quantile_keys import LANES, N_DIGITS
from dboost.losses.gradient_pass import (
    BLOCK,
    GradientRows,
    PassScratch,
    PassTotals,
    new_pass_scratch,
    update_gradients,
    update_groups,
)
from dboost.losses.gradient_stats import GradientStats


@dataclass(frozen=True, eq=False)
class LossRows:
    """What a loss reads and writes of the rows of a shard."""

    raw: np.ndarray  # float64[n_outputs, n], updated
    leaf: np.ndarray  # uint8 or int32[n_outputs, n]: leaf of the last tree
    target: np.ndarray  # float64, float32 or uint8[n], or [n_columns, n]
    weight: np.ndarray | None  # float64[n]; None for 1
    repeat_count: np.ndarray | None  # uint8[n]: how often each row counts; None: gradients are multiplied by the weights
    gradient: np.ndarray  # float32[n_outputs, n], written
    hessian: np.ndarray | None  # float32[n_outputs, n], written: second derivatives of the loss; None if they are 1
    split_gradient: np.ndarray | None = None  # float32[n], written: along the direction of a tree of all outputs
    split_hessian: np.ndarray | None = None  # float32[n], written; None if it is constant
    group_ends: np.ndarray | None = None  # int64[n_groups]: last row + 1 of each group, for a loss of groups

    @property
    def n_outputs(self) -> int:
        return len(self.raw)

    def targets(self, first: int, last: int) -> np.ndarray:
        """Return the targets of rows first…last-1: float64[n], or [n_columns, n]."""
        return self.target[..., first:last].astype(np.float64, copy=False)

    @cached_property
    def for_kernel(self) -> GradientRows:
        """The rows as `gradient_pass.update_gradients` takes them."""
        hessian = np.empty((self.n_outputs, 0), np.float32) if self.hessian is None else self.hessian
        wide, single, in_bytes = (
            self.target if self.target.dtype == dtype else or_empty(None, dtype) for dtype in ("float64", "float32", "uint8")
        )
        return GradientRows(
            self.raw,
            self.leaf,
            wide,
            single,
            in_bytes,
            or_empty(self.weight, "float64"),
            or_empty(self.repeat_count, "uint8"),
            self.gradient,
            hessian,
            self.gradient.view(np.int32),
            hessian.view(np.int32),
        )

    def of_output(self, output: int, column: int) -> LossRows:
        """Return the rows as those of one output with one target column: views."""
        known = self._of_outputs.get(output)
        if known is None:
            part = slice(output, output + 1)
            known = self._of_outputs[output] = replace(
                self,
                raw=self.raw[part],
                leaf=self.leaf[part],
                target=self.target if self.target.ndim == 1 else self.target[column],
                gradient=self.gradient[part],
                hessian=None if self.hessian is None else self.hessian[part],
            )
        return known

    @cached_property
    def _of_outputs(self) -> dict[int, LossRows]:
        return {}


class GradientPass(NamedTuple):
    """A pass over rows first…last-1."""

    rows: LossRows
    values: np.ndarray  # float64[n_outputs, n_leaves]: leaf values of each output's last tree, which are added to the scores
    loss_unit: float  # unit of the exact sums of the loss
    scratch: PassScratch
    first: int
    last: int
    counts_influence: bool  # see `LossTerms`

    def of_output(self, output: int, column: int) -> GradientPass:
        """Return the pass over the rows as those of one output with one target column."""
        return self._replace(rows=self.rows.of_output(output, column), values=self.values[output : output + 1])


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """What passes over rows need of a loss. It is sent to sessions with every pass, so it is small."""

    counts_influence: bool = False  # whether the pass adds up the influences of rows, see `GradientStats.influence`
    #: Whether the gradients of all outputs are those of the present scores already: only the direction of a tree is new.
    keeps_gradients: bool = False
    #: Whether derivatives along the direction of the next tree are computed, too.
    has_direction: ClassVar[bool] = False

    def advance(self, gradient_pass: GradientPass) -> GradientStats:
        """Add leaf values to the scores of rows, and compute their gradients, Hessians and loss."""
        raise NotImplementedError


@dataclass(frozen=True)
class KernelTerms(LossTerms):
    """A loss with a compiled function."""

    parameters: Any  # the `NamedTuple` for which the loss overloads `block_terms` or `output_terms`

    def advance(self, gradient_pass: GradientPass) -> GradientStats:
        rows, values, loss_unit, scratch, first, last, counts_influence = gradient_pass
        influence = np.zeros((rows.n_outputs, LANES, N_DIGITS), np.int64) if counts_influence else None
        totals = PassTotals(np.zeros(2), np.zeros((2, rows.n_outputs), np.int32))
        update_gradients(self.parameters, rows.for_kernel, values, first, last, loss_unit, scratch, totals, influence)
        by_digit = None if influence is None else influence.sum(axis=1)
        return _stats_of(rows, totals, by_digit)


@dataclass(frozen=True)
class GroupTerms(LossTerms):
    """A loss of groups with a compiled function. Passes are over whole groups."""

    parameters: Any  # see `KernelTerms`

    def advance(self, gradient_pass: GradientPass) -> GradientStats:
        rows, values, loss_unit, scratch, first, last, _ = gradient_pass
        assert rows.group_ends is not None
        ends = rows.group_ends[slice(*np.searchsorted(rows.group_ends, (first, last), "right"))]
        longest = int(np.diff(ends, prepend=first).max(initial=0))
        scratch = scratch if longest <= BLOCK else new_pass_scratch(longest)
        totals = PassTotals(np.zeros(2), np.zeros((2, rows.n_outputs), np.int32))
        update_groups(self.parameters, rows.for_kernel, values, first, ends, loss_unit, scratch, totals)
        return _stats_of(rows, totals, None)


def _stats_of(rows: LossRows, totals: PassTotals, by_digit: np.ndarray | None) -> GradientStats:
    maxima = totals.maxima.view(np.float32).astype(np.float64)
    if rows.hessian is None:
        maxima[1] = 1.0
    coarse, fine = totals.loss.tolist()
    return GradientStats(maxima[0], maxima[1], coarse, fine, by_digit)
