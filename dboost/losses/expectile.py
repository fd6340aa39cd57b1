"""Expectiles: squared error that weighs errors above and below the prediction differently (Newey and Powell, 1987).

With u = y - F and w = τ where u > 0, else 1 - τ, the loss is w u²: gradient -2 w u, Hessian 2 w. The best constant is the
τ-expectile e of the targets: those below it have the share τ of the sum of all |y - e|. For τ = ½ the loss is squared error,
and e the mean. Unlike a quantile, it depends on how far targets are away; and as the second derivatives are those of the loss,
leaf values are Newton steps.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from dboost.losses.base import BaseLoss, InitialRows, Leaves, Start
from dboost.losses.gradient_pass import block_terms, overloads


class ExpectileTerms(NamedTuple):
    """The Hessian of a row whose target is above the score, and of one whose target is below it."""

    above: float
    below: float


@overloads(block_terms, ExpectileTerms)
def _block_terms(loss, y, raw, gradient, hessian, value, scratch):
    above, below = loss.above, loss.below
    for i in range(raw.size):
        difference = raw[i] - y[i]
        curvature = above if difference < 0.0 else below
        gradient[i] = np.float32(curvature * difference)
        hessian[i] = np.float32(curvature)
        value[i] = 0.5 * curvature * difference * difference


def _from_mean(rows: InitialRows) -> np.ndarray:
    return rows.search(np.array([0.0 if rows.has_offset else float(rows.means[0])]))


class Expectile(BaseLoss):
    """Asymmetric squared error; predictions estimate expectiles.

    Parameters
    ----------
    expectile : float
        The level τ, between 0 and 1, both excluded.
    """

    name = "expectile"
    options: ClassVar[tuple[str, ...]] = ("expectile",)
    start = Start(of_rows=_from_mean, magnitude=lambda _, spread: max(4.0 * spread * spread, 1e-200), scales=True)

    def __init__(self, expectile: float) -> None:
        self.level = expectile
        self.leaves = (Leaves(level=expectile),)

    def terms(self) -> ExpectileTerms:
        return ExpectileTerms(2.0 * self.level, 2.0 * (1.0 - self.level))

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "expectile": self.level}

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 0.5 * self.hessian(y, raw)[0] * (y - raw[0]) ** 2

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self.hessian(y, raw) * (raw - y)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        above, below = self.terms()
        return np.where(raw < y, above, below)
