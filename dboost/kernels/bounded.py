"""The best split of a node whose steps have bounds.

A monotonic constraint lets scores only rise (or fall) with a feature. So the left child of a split by that feature must not
step further than the right one, and nothing below may undo that: each node has a lowest and a highest step
(`growth.frontier.share`), and a side is worth what the best step within them takes off,

    score(G, H) = -(2 G w + (H + λ) w² + 2 α |w|),    w the step

which is less than without bounds, and may be less than nothing.
"""

from __future__ import annotations

from dboost.kernels import inlined, internal
from dboost.kernels.splits import CUT, FEATURE, LEFT_G, LEFT_H, LEFT_N, MISSING_LEFT, SCORE, beats


@inlined
def bounded_step(g, h, limits, l2, low, high):
    """The best step of a side between two bounds."""
    t = abs(g) - limits.l1
    t = t if t > 0.0 else 0.0
    d = h + l2
    step = t / d if d > 0.0 else 0.0
    step = step if step < limits.max_step else limits.max_step
    step = -step if g > 0.0 else step
    step = step if step > low else low
    return step if step < high else high


@inlined
def bounded_score(g, h, limits, l2, low, high):
    """What a side is worth whose step is kept between bounds: -(2 G w + (H + λ) w² + 2 α |w|)."""
    step = bounded_step(g, h, limits, l2, low, high)
    return -step * (2.0 * g + (h + l2) * step) - 2.0 * limits.l1 * abs(step)


@internal
def search_bounded(planes, at, n_bins, feature, way, total, limits, best):
    """`search_numeric` where steps have bounds, and where they may only rise (way 1) or fall (way -1) with the feature.

    One bin after the other: a tree under constraints costs more.
    """
    missing_h = planes[1, at + n_bins]
    plane = limits.count_plane
    min_hessian = limits.min_hessian if limits.min_hessian > 1.0 else 1.0
    low, high = total[3], total[4]
    for missing_left in range(2 if missing_h > 0.0 else 1):
        g = planes[0, at + n_bins] * missing_left
        h = missing_h * missing_left
        n = planes[plane, at + n_bins] * missing_left if plane >= 0 else 0.0
        for b in range(n_bins if missing_h > 0.0 and missing_left == 0 else n_bins - 1):
            g += planes[0, at + b]
            h += planes[1, at + b]
            n += planes[plane, at + b] if plane >= 0 else 0.0
            if h < min_hessian or total[1] - h < min_hessian:
                continue
            if plane >= 0 and (n < limits.min_rows or total[2] - n < limits.min_rows):
                continue
            left = bounded_step(g, h, limits, limits.l2, low, high)
            right = bounded_step(total[0] - g, total[1] - h, limits, limits.l2, low, high)
            if (right - left) * way < 0.0:
                continue
            score = bounded_score(g, h, limits, limits.l2, low, high)
            score += bounded_score(total[0] - g, total[1] - h, limits, limits.l2, low, high)
            if beats(score, feature, best):
                best[SCORE] = score
                best[FEATURE] = feature
                best[CUT] = b
                best[MISSING_LEFT] = missing_left
                best[LEFT_G] = g
                best[LEFT_H] = h
                best[LEFT_N] = n
