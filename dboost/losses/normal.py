"""Normal distributions: a mean and a scale for each row, by maximum likelihood.

A row has two raw scores, the mean m and the logarithm s of the scale σ. With z = (y - m) / σ the loss is the negative log
likelihood, s + ½ z² + ½ log 2π. Its derivatives are -z / σ and 1 / σ² by m, 1 - z² and 2 z² by s. Trees are grown by others:

    m   gradient -z / σ · σ, Hessian 1 / σ² · σ = 1 / σ      s   gradient 1 - z², Hessian 1 + z²

**Scale.** With the Hessian 2 z² the step of a leaf is ½ (1 - 1 / mean z²), which is far too long where z is small: the scale
falls to nothing, and the next target that is not there costs a lot. With 1 + z² it is

    (mean z² - 1) / (mean z² + 1) = tanh(½ log mean z²),

and ½ log mean z² is the step to the minimum: the step never passes it, and is at most 1. The natural gradient (NGBoost: Duan
et al. 2020) has the Hessian 2 instead, the expectation of both. Its steps towards smaller scales are half as long, those
towards larger ones have no bound.

**Mean.** With the exact derivatives rows count by their precision 1 / σ²: the mean of rows with a large scale is hardly
learned, which keeps their scale large. The natural gradient, -(y - m) and 1, has no weights; then the trees of the mean are
those of squared error, but a tree of both outputs does not see which errors are small beside their scale. The factor σ^(2 β)
of the exact derivatives with β = ½ is between both (Seitzer et al. 2022, "On the pitfalls of heteroscedastic uncertainty
estimation with probabilistic neural networks"), and its gradient, -z, has no unit.

Least loss on new rows over 400 iterations (learning rate 0.05, 15 leaves), with a tree per output and one tree for both, for
the prices of homes in California, and for delays of flights given that at departure:

    β                       0                ½                1
    California        0.344, 0.310     0.350, 0.328     0.352, 0.392
    delays            0.345, 0.356     0.331, 0.335     0.324, 0.307

With 2 in place of 1 + z² it was within 0.008 of these. The normal distribution with one scale has 0.544 and 0.347.

**Units.** Derivatives by the mean are those by m / u, with the unit u of the scale that all rows have at first
(`Leaves.score_unit`): so limits and penalties mean the same for targets in any unit, and a model of c · y has the scale c · σ.

**Bounds.** A likelihood has no upper bound where targets are equal. So scales are at least u / 2**20 (and at most u · 2**20, so
that nothing overflows); raw scores beyond count as the bound, and nothing draws them further away. If the targets of all rows
are equal, u is the distance of two floats of their size.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dboost.errors import DataError
from dboost.exact import total
from dboost.kernels.exp_log import LARGEST, exp, exp64, log
from dboost.losses.base import BaseLoss, InitialRows, Leaves, Link, PartOfRows, Start
from dboost.losses.gradient_pass import output_terms, overloads

#: ½ log 2π.
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
#: Logarithm of the largest ratio of a scale to that of all rows.
_RANGE = 20.0 * math.log(2.0)
#: The smallest ratio of the scale of all rows to the largest target.
_LEAST = 2.0**-52


class NormalTerms(NamedTuple):
    """The unit of the mean, and the bounds of the logarithm of the scale."""

    unit: float
    lowest: float
    highest: float


@overloads(output_terms, NormalTerms)
def _normal_terms(loss, y, raw, gradient, hessian, first, value, scratch):
    n, last = y.size, first + y.size
    unit, lowest, highest = loss.unit, loss.lowest, loss.highest
    mean, log_scale = raw[0, first:last], raw[1, first:last]
    mean_gradient, mean_hessian = gradient[0, first:last], hessian[0, first:last]
    scale_gradient, scale_hessian = gradient[1, first:last], hessian[1, first:last]
    for i in range(n):
        s = log_scale[i]
        s = lowest if s < lowest else s
        s = highest if s > highest else s
        precision = exp64(-s)
        z = (y[i] - mean[i]) * precision
        square = z * z
        slope = 1.0 - square
        slope = 0.0 if s == lowest and slope > 0.0 else slope
        slope = 0.0 if s == highest and slope < 0.0 else slope
        value[i] = s + 0.5 * square + _HALF_LOG_2_PI
        mean_gradient[i] = np.float32(-z)
        mean_hessian[i] = np.float32(unit * precision)
        scale_gradient[i] = np.float32(slope)
        scale_hessian[i] = np.float32(1.0 + square)


_Sums = tuple[int | None, int | None, float]


def _residual_sums(rows: PartOfRows) -> _Sums:
    """Return the sums of weighted residuals and of weights, and the largest target or residual."""
    with np.errstate(over="ignore", invalid="ignore"):
        residuals = rows.target - rows.raw[0]
        largest = max(float(np.abs(values).max(initial=0.0)) for values in (rows.target, residuals))
        return *_weighted_sums(residuals, rows.weight), largest


def _square_sums(rows: PartOfRows, mean: float, largest: float) -> _Sums:
    """Return the sums of weighted squares of the distances from the mean, divided by `largest`, and of weights."""
    with np.errstate(over="ignore", invalid="ignore"):
        return *_weighted_sums(((rows.target - rows.raw[0] - mean) / largest) ** 2, rows.weight), 0.0


def _weighted_sums(values: np.ndarray, weight: np.ndarray | None) -> tuple[int | None, int | None]:
    if weight is None:
        return total(values), total(np.ones(len(values)))
    return total(values * weight), total(weight)


def _merge_sums(a: _Sums, b: _Sums) -> _Sums:
    values, weights = (None if x is None or y is None else x + y for x, y in zip(a[:2], b[:2], strict=True))
    return values, weights, max(a[2], b[2])


def _quotient(a: int | None, b: int | None) -> float:
    try:
        if a is not None and b:
            return a / b
    except OverflowError:
        pass
    raise DataError("the targets (or their weights) are so large that their sum is infinite; scale them down")


def _mean_and_scale(rows: InitialRows) -> np.ndarray:
    sums, weights, largest = rows.rows.merged(_residual_sums, _merge_sums)
    mean = _quotient(sums, weights) if rows.has_offset else float(rows.means[0])
    largest = max(largest, abs(mean))
    squares, weights, _ = rows.rows.merged(_square_sums, _merge_sums, mean, largest or 1.0)
    spread = largest * math.sqrt(_quotient(squares, weights))
    return np.array([mean, float(log(max(spread, _LEAST * (largest or 1.0), 1e-290)))])


def _to_raw(prediction: np.ndarray) -> np.ndarray:
    """Return the raw scores of means and scales."""
    return np.stack([prediction[0], log(prediction[1])])


def _first(raw: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(raw[:, 0])


class Normal(BaseLoss):
    """Negative log likelihood of normal distributions; predictions are their means, see `Booster.predict_distribution`.

    Parameters
    ----------
    scale : float, optional
        The scale of all rows before the first tree, which is the unit of scales.
    """

    name = "normal"
    learned: ClassVar[tuple[str, ...]] = ("scale",)
    start = Start(of_rows=_mean_and_scale, least_magnitude=1024.0)  # as large as losses become where scales are small
    leaves = Leaves(), Leaves()
    exact_hessian = False

    def __init__(self, scale: float | None = None) -> None:
        self.scale = scale
        self.leaves = Leaves(score_unit=1.0 if scale is None else scale), Leaves(longest_step=4.0, is_monotonic=False)

    @property
    def link(self) -> Link:  # type: ignore[override]
        return Link(
            to_raw=_to_raw,
            to_prediction=self._distributions,
            finish=_first,
            output_names=("mean", "log_scale"),
            predicts_first=True,
            offset_outputs=slice(0, 1),
        )

    def __repr__(self) -> str:
        return f"<Loss: {self.name}>"

    @property
    def _bounds(self) -> tuple[float, float]:
        """Bounds of the logarithm of the scale."""
        if self.scale is None:
            return -LARGEST, LARGEST
        middle = float(log(self.scale))
        return max(middle - _RANGE, -LARGEST), min(middle + _RANGE, LARGEST)

    def terms(self) -> NormalTerms:
        return NormalTerms(1.0 if self.scale is None else self.scale, *self._bounds)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name} if self.scale is None else {"name": self.name, "scale": self.scale}

    def continued(self, stored: dict[str, Any]) -> BaseLoss:
        return Normal(stored["scale"])

    def started(self, baseline: np.ndarray) -> BaseLoss:
        return self if self.scale is not None else Normal(float(exp(baseline[1])))

    def comparable(self, losses: tuple[float, float], weight: float) -> tuple[float, float]:
        """Return the variance that has the model's loss as a constant one, in that of the constant model, and 1."""
        of_model, of_constant = losses
        return float(exp(min(max(2.0 * (of_model - of_constant) / weight, -LARGEST), LARGEST))), 1.0

    def _scaled(self, y: np.ndarray, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the logarithms of the scales, and the distances of targets from means in them."""
        s = np.clip(raw[1], *self._bounds)
        return s, (y - raw[0]) * exp(-s)

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        s, z = self._scaled(y, raw)
        return s + 0.5 * (z * z) + _HALF_LOG_2_PI

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return the derivatives by the raw scores. At the bounds of the scale those that lead beyond are 0."""
        s, z = self._scaled(y, raw)
        slope, (lowest, highest) = 1.0 - z * z, self._bounds
        is_held = ((s == lowest) & (slope > 0.0)) | ((s == highest) & (slope < 0.0))
        return np.stack([-z * exp(-s), np.where(is_held, 0.0, slope)])

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        s, z = self._scaled(y, raw)
        return np.stack([exp(-2.0 * s), 1.0 + z * z])

    def _distributions(self, raw: np.ndarray) -> np.ndarray:
        """Return means and scales."""
        return np.stack([raw[0], exp(np.clip(raw[1], *self._bounds))])
