"""Minimization of a convex function of one number.

`minimize_convex` is Newton's method with safeguards. The sign of the slope shows on which side of the point
the minimum lies, so two bounds enclose it; a Newton step beyond them is replaced by bisection. As long as one bound is missing,
the step is limited to a length that grows fourfold: the curvature of an exponential far from its minimum leads to steps in the
thousands. At a kink, where the curvature is zero, the method is bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable

#: Enough to bisect all floats between any two bounds.
_MOST_STEPS = 1100


def minimize_convex(slopes: Callable[[float], tuple[float, float]], start: float, tolerance: float = 0.0) -> float:
    """Return the minimizer of a convex function of one number, accurate to the last few bits.

    Parameters
    ----------
    slopes : callable
        Returns the first and the second derivative at a point. A first derivative of NaN means too far from `start`.
    start : float
    tolerance : float, default 0
        Relative error at which the search may end.

    Returns
    -------
    float
        The minimizer; a large number if the function has no minimum.
    """
    low, high, at, before = -math.inf, math.inf, start, start
    stride = 1.0 if abs(start) < 2.0**40 else abs(start)  # longer than the distance of two floats there
    for _ in range(_MOST_STEPS):
        slope, curvature = slopes(at)
        if math.isnan(slope):
            slope = at - before
        if slope == 0.0:
            return at
        low, high = (low, at) if slope > 0 else (at, high)
        step = -slope / curvature if curvature > 0 and math.isfinite(slope) else -math.copysign(math.inf, slope)
        if abs(step) > stride:
            step = math.copysign(stride, step)
            stride *= 4.0
        following = at + step
        if abs(following - at) <= tolerance * abs(following) or abs(following) > 1e300:
            return following if following != at and abs(following) <= 1e300 and low < following < high else at
        if not low < following < high:
            following = low + (high - low) / 2
            if not low < following < high or high - low <= tolerance * abs(following):
                return at
        before, at = at, following
    return at
