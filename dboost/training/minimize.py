"""The lowest point of a convex function of one number, from its slopes.

Newton's method with a belt and braces. The slope's sign says on which side of the point the minimum lies, so two bounds
close in on it; a Newton step that leaves them is replaced by the middle between them. While there is no bound on one side,
a step is no longer than a stride that grows fourfold: the curvature of an exponential far from its minimum suggests steps
of thousands. Where the function has a kink (no curvature at all), what remains is bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable

#: Enough to bisect all floats between any two bounds.
_MOST_STEPS = 1100


def minimize_convex(slopes: Callable[[float], tuple[float, float]], start: float, tolerance: float = 0.0) -> float:
    """Where a convex function is least, to the last few bits.

    Parameters
    ----------
    slopes : callable
        Returns the first and the second derivative at a point. A first one that is NaN means too far from `start`.
    start : float
    tolerance : float
        The relative error that will do.

    Returns
    -------
    float
        A point beyond which nothing is gained. Where the function falls without end, a point far out.
    """
    low, high, stride, at, before = -math.inf, math.inf, 1.0, start, start
    for _ in range(_MOST_STEPS):
        slope, bend = slopes(at)
        if math.isnan(slope):
            slope = at - before
        if slope == 0.0:
            return at
        low, high = (low, at) if slope > 0 else (at, high)
        step = -slope / bend if bend > 0 and math.isfinite(slope) else -math.copysign(math.inf, slope)
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
