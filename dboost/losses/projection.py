"""Gradients along a direction, by which trees of several outputs are grown.

`ProjectedTerms` are the terms of a loss for such a fit: after the pass that computes the gradients of all outputs, `project`
adds up one gradient and one Hessian per row from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dboost.kernels import or_empty
from dboost.kernels.multi_output import BLOCK, project_gradients
from dboost.losses.gradient_pass import GradientRows
from dboost.losses.gradient_stats import GradientStats
from dboost.losses.terms import GradientPass, LossTerms


@dataclass(frozen=True, eq=False)
class ProjectedTerms(LossTerms):
    """The terms of a loss, and the direction of the next tree."""

    terms: LossTerms
    direction: np.ndarray  # float32[n_outputs]
    of_classes: bool  # see `BaseLoss.has_classes`
    has_direction: ClassVar[bool] = True

    def advance(self, gradient_pass: GradientPass) -> GradientStats:
        rows, first, last = gradient_pass.rows, gradient_pass.first, gradient_pass.last
        if self.keeps_gradients:
            none = np.zeros(rows.n_outputs)
            stats = GradientStats(none, none, 0.0, 0.0)
        else:
            stats = self.terms.advance(gradient_pass)
        gradient, hessian = or_empty(rows.split_gradient, "float32"), or_empty(rows.split_hessian, "float32")
        maxima = project(rows.for_kernel, self, gradient, hessian, first, last)
        if rows.split_hessian is None:
            maxima[1] = 1.0
        return stats._replace(max_split=maxima)


def project(
    rows: GradientRows, terms: ProjectedTerms, gradient: np.ndarray, hessian: np.ndarray, first: int, last: int
) -> np.ndarray:
    """Compute the derivatives along the direction of `terms` for rows first…last-1; return the largest ones: float64[2].

    gradient, hessian : float32[n], written; the latter is empty if it is constant.
    """
    if not terms.of_classes:  # then no target is read, and several targets have another type
        none = (or_empty(None, dtype) for dtype in ("float64", "float32", "uint8"))
        rows = rows._replace(**dict(zip(("target", "single_target", "byte_target"), none, strict=True)))
    maxima = np.zeros(2, np.int32)
    project_gradients(
        rows,
        terms.direction,
        terms.of_classes,
        first,
        last,
        np.empty((2, BLOCK), np.float32),
        (gradient, gradient.view(np.int32)),
        (hessian, hessian.view(np.int32)),
        maxima,
    )
    return maxima.view(np.float32).astype(np.float64)
