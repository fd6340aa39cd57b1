"""The best split of a node, from its histogram.

A split sends the sums (G, H) of its left rows one way and the rest the other. With λ (L2), α (L1, soft threshold T) and an
optional bound δ on a leaf's step, a side is worth

    score(G, H) = T(G)² / (H + λ)                      if |T(G)| / (H + λ) <= δ
                = δ (2 |T(G)| - δ (H + λ))             otherwise

and the gain of a split is ½ [score(left) + score(right) - score(node)] (minus the penalty per leaf). All sums are exact
integers held in float64; λ, α, δ and the limits come in the same units (`Limits`).

*Numeric features.* Prefix sums over the bins, once with missing values on the right and, if the node has any, once on the
left. Candidates are compared as the bit patterns of non-negative doubles, which order like integers: an integer maximum
vectorises. Ties go to the lower feature, then missing right, then the lower bin, so a tree is a function of the data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import inlined, internal

I = np.int64  # noqa: E741


class Limits(NamedTuple):
    """What a split must respect, in the units of the quantised sums of one tree."""

    l2: float
    l1: float
    max_step: float  # infinity when there is none
    min_hessian: float
    min_rows: float
    count_plane: int  # which plane counts rows; -1 when min_rows need not be looked at
    threshold: float  # how much score(left) + score(right) must exceed score(node)
    smoothing: float
    category_l2: float
    max_categories: int
    min_category_hessian: float
    is_bounded: int = 0  # whether steps have bounds (`total[3]` and `total[4]` of a node)


# Fields of a candidate split (float64[SPLIT_SIZE]).
SCORE, FEATURE, CUT, MISSING_LEFT, LEFT_G, LEFT_H, LEFT_N = range(7)
SPLIT_SIZE = 8
NO_SPLIT = -np.inf


@internal
def forget(best):
    """Empty a candidate: any split beats it."""
    best[SCORE] = NO_SPLIT
    best[FEATURE] = 1e18


@inlined
def side_score(g, h, l2, l1, max_step):
    """What one side is worth (see the module's text)."""
    t = abs(g) - l1
    t = t if t > 0.0 else 0.0
    d = h + l2
    step = t / d if d > 0.0 else 0.0
    step = step if step < max_step else max_step
    return step * (2.0 * t - step * d)


@internal
def _prefix(values, n, sums):
    """sums[b] = values[0] + … + values[b], in four chains so that additions overlap."""
    quarter = n >> 2
    a = b = c = d = 0.0
    for i in range(quarter):
        a += values[i]
        b += values[quarter + i]
        c += values[2 * quarter + i]
        d += values[3 * quarter + i]
        sums[i] = a
        sums[quarter + i] = b
        sums[2 * quarter + i] = c
        sums[3 * quarter + i] = d
    b += a
    c += b
    for i in range(quarter):
        sums[quarter + i] += a
        sums[2 * quarter + i] += b
        sums[3 * quarter + i] += c
    d += c
    for i in range(4 * quarter, n):
        d += values[i]
        sums[i] = d


@internal
def _scores(left_g, left_h, n, extra_g, extra_h, total, limits, min_hessian, scores):
    """Score of the split after each of n bins; NO_SPLIT where a side has too little Hessian."""
    l1, l2, max_step = limits.l1, limits.l2, limits.max_step
    total_g, total_h = total[0], total[1]
    if max_step == np.inf:
        for b in range(n):
            gl, hl = left_g[b] + extra_g, left_h[b] + extra_h
            gr, hr = total_g - gl, total_h - hl
            tl, tr = abs(gl) - l1, abs(gr) - l1
            tl, tr = tl if tl > 0.0 else 0.0, tr if tr > 0.0 else 0.0
            dl, dr = hl + l2, hr + l2
            score = (tl * tl * dr + tr * tr * dl) / (dl * dr)
            scores[b] = score if (hl >= min_hessian) & (hr >= min_hessian) else NO_SPLIT
    else:
        for b in range(n):
            gl, hl = left_g[b] + extra_g, left_h[b] + extra_h
            score = side_score(gl, hl, l2, l1, max_step) + side_score(total_g - gl, total_h - hl, l2, l1, max_step)
            scores[b] = score if (hl >= min_hessian) & (total_h - hl >= min_hessian) else NO_SPLIT


@internal
def _argmax(bits, n):
    """First position of the largest of n scores. Non-negative doubles order like their bits."""
    top = I(-1)
    for b in range(n):
        top = bits[b] if bits[b] > top else top
    return position(bits, n, top)


@internal
def position(values, n, wanted):
    """First position of a value among n; 0 when it is not there. A whole pass that vectorises beats half a one that stops."""
    found = I(n)
    for b in range(n):
        here = I(b) if values[b] == wanted else I(n)
        found = here if here < found else found
    return found if found < n else I(0)


@inlined
def beats(score, feature, best):
    return score > best[SCORE] or (score == best[SCORE] and feature < best[FEATURE])


@internal
def search_numeric(planes, at, n_bins, feature, total, limits, scratch, scratch_bits, best):
    """Improve `best` (a candidate split) by the best split of a numeric feature.

    planes : float64[n_planes, n_buckets]; total : float64[3] (G, H, N of the node);
    scratch : float64[4, >= n_bins + 1], and the same memory as int64.
    """
    missing_g, missing_h = planes[0, at + n_bins], planes[1, at + n_bins]
    # After the last bin a split can only separate the missing values.
    n = n_bins if missing_h > 0.0 else n_bins - 1
    plane = limits.count_plane
    left_g, left_h, left_n, scores = scratch[0], scratch[1], scratch[2], scratch[3]
    for p in range(2 if plane < 2 else 3):
        _prefix(planes[p, at : at + n], n, scratch[p])
    if plane == 1:
        left_n = left_h
    # Every row counts at least 1 in these units, so no side is empty.
    min_hessian = limits.min_hessian if limits.min_hessian > 1.0 else 1.0
    for missing_left in range(2 if missing_h > 0.0 else 1):
        if missing_left == 1:
            n = n_bins - 1
        if n < 1:
            return
        extra_g, extra_h = missing_g * missing_left, missing_h * missing_left
        extra_n = planes[plane, at + n_bins] * missing_left if plane >= 0 else 0.0
        _scores(left_g, left_h, n, extra_g, extra_h, total, limits, min_hessian, scores)
        if plane >= 0:
            for b in range(n):
                rows = left_n[b] + extra_n
                scores[b] = scores[b] if (rows >= limits.min_rows) & (total[2] - rows >= limits.min_rows) else NO_SPLIT
        b = _argmax(scratch_bits[3], n)
        if scores[b] >= 0.0 and beats(scores[b], feature, best):
            best[SCORE] = scores[b]
            best[FEATURE] = feature
            best[CUT] = b
            best[MISSING_LEFT] = missing_left
            best[LEFT_G] = left_g[b] + extra_g
            best[LEFT_H] = left_h[b] + extra_h
            best[LEFT_N] = left_n[b] + extra_n if plane >= 0 else 0.0
