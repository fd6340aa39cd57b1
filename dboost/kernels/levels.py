"""The best split of a node by a categorical feature.

Levels (and "missing" as one of them) are sorted by G / (H + smoothing); the best prefix of that order is the best of all
subsets for squared error (Fisher 1958; Breiman et al. 1984, section 4.2.2). Prefixes from both ends
are tried, of at most `max_categories` levels. Rare levels stay on the right: those with less Hessian than
`min_category_hessian`, or than 2 % of the node if that is less (in a small node every level is rare).
"""

from __future__ import annotations

from dboost.kernels import internal
from dboost.kernels.bounded import bounded_score
from dboost.kernels.splits import CUT, FEATURE, LEFT_G, LEFT_H, LEFT_N, MISSING_LEFT, SCORE, beats, side_score

#: A level with this share of its node's Hessian is never rare.
RARE_SHARE = 0.02


@internal
def sort_levels(planes, at, n_levels, limits, keys, order):
    """Order of the levels that may go left, by G / (H + smoothing); ties by code. Returns their number.

    Bucket `n_levels` is "missing" and takes part like a level. keys : float64[n_levels + 1]; order : int64[n_levels + 1].
    """
    used = 0
    support = 0.0
    for code in range(n_levels + 1):
        support += planes[1, at + code]
    support *= RARE_SHARE
    support = support if support < limits.min_category_hessian else limits.min_category_hessian
    for code in range(n_levels + 1):
        h = planes[1, at + code]
        if h > 0.0 and h >= support:
            keys[code] = planes[0, at + code] / (h + limits.smoothing)
            order[used] = code
            used += 1
    # Heap sort: no recursion, no worst case, small to compile. `later` compares (key, code).
    for root in range(used // 2 - 1, -1, -1):
        _sift(order, keys, root, used)
    for end in range(used - 1, 0, -1):
        order[0], order[end] = order[end], order[0]
        _sift(order, keys, 0, end)
    return used


@internal
def _sift(order, keys, root, end):
    moving = order[root]
    key = keys[moving]
    while True:
        child = 2 * root + 1
        if child >= end:
            break
        if child + 1 < end:
            a, b = order[child], order[child + 1]
            if keys[b] > keys[a] or (keys[b] == keys[a] and b > a):
                child += 1
        c = order[child]
        if keys[c] > key or (keys[c] == key and c > moving):
            order[root] = c
            root = child
        else:
            break
    order[root] = moving


@internal
def search_categorical(planes, at, n_levels, feature, total, limits, keys, order, best):
    """Improve `best` by the best prefix of the sorted levels. CUT is the prefix's length, negative when from the upper end."""
    used = sort_levels(planes, at, n_levels, limits, keys, order)
    plane = limits.count_plane
    min_hessian = max(limits.min_hessian, 1.0)
    l2 = limits.l2 + limits.category_l2
    for direction in (1, -1):
        g = h = n = 0.0
        for length in range(1, (used if used < limits.max_categories else limits.max_categories) + 1):
            code = order[length - 1] if direction == 1 else order[used - length]
            g += planes[0, at + code]
            h += planes[1, at + code]
            if plane >= 0:
                n += planes[plane, at + code]
            if h < min_hessian or (plane >= 0 and n < limits.min_rows):
                continue
            if total[1] - h < min_hessian or (plane >= 0 and total[2] - n < limits.min_rows):
                break
            if limits.is_bounded != 0:
                score = bounded_score(g, h, limits, l2, total[3], total[4])
                score += bounded_score(total[0] - g, total[1] - h, limits, l2, total[3], total[4])
            else:
                score = side_score(g, h, l2, limits.l1, limits.max_step)
                score += side_score(total[0] - g, total[1] - h, l2, limits.l1, limits.max_step)
            if beats(score, feature, best):
                best[SCORE] = score
                best[FEATURE] = feature
                best[CUT] = length * direction
                best[LEFT_G] = g
                best[LEFT_H] = h
                best[LEFT_N] = n
                best[MISSING_LEFT] = 0.0


@internal
def send_left(planes, at, n_levels, cut, limits, keys, order, goes_left):
    """Write which codes of a categorical feature go left: goes_left[code] for its levels, and for "missing" after them.

    The split is described by the length of a prefix only; the order is found again from the node's histogram.
    """
    used = sort_levels(planes, at, n_levels, limits, keys, order)
    for code in range(n_levels + 1):
        goes_left[code] = 0
    for k in range(abs(cut)):
        goes_left[order[k] if cut > 0 else order[used - 1 - k]] = 1
