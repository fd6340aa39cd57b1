"""The best split of a node, from its histogram.

A split divides the node's sums into those of its left rows (G, H) and the rest. With λ (L2), α (L1, soft threshold T) and an
optional bound δ on a leaf's step, the score of a side is

    score(G, H) = T(G)² / (H + λ)                      if |T(G)| / (H + λ) <= δ
                = δ (2 |T(G)| - δ (H + λ))             otherwise

and the gain of a split is ½ [score(left) + score(right) - score(node)] (minus the penalty per leaf). All sums are exact
integers held in float64; λ, α, δ and the limits are in the same units (`SplitParams`). `side_score` is this formula; `_scores`
and `_score_packed` repeat it for many bins at once, and `bounded_score` is that of bounded steps.

**Numeric features** (`search_numeric`). Prefix sums over the bins give the left side of every split, once with missing values
on the right and, if the node has any, once on the left. Candidates are compared as the bit patterns of non-negative doubles,
which order like integers: an integer maximum vectorises. Ties go to the lower feature, then to missing values on the right,
then to the lower bin, so a tree is a function of the data.

**Packed histograms** (`search_packed`; small tables, see `histograms.accumulate`). A feature's buckets are stored as prefix
sums of words ``G << 32 | H``, and of counts: the left side of each split, ready to be scored. On ten thousand rows the search
is most of the work, so it takes every shortcut that does not change the result: bins that leave too little on a side are found
by bisection and not scored, and the position of a feature's best bin is looked up only if its score beats the best so far.

**Bounded steps** (`search_bounded`). A monotonic constraint lets scores only rise (or only fall) with a feature. So the left
child of a split by that feature must not step further than the right one, and no later split may undo that: each node has a
lowest and a highest step (`trees.tree_task.child_stats`), and the score of a side is that of the best step within them,

    score(G, H) = -(2 G w + (H + λ) w² + 2 α |w|),    w the step

which is less than without bounds, and may be negative.

**Categorical features** (`search_categorical`). Categories that occur (and "missing" as one of them) are sorted by
G / (H + smoothing); the best prefix of that order is the best of all subsets for squared error (Fisher 1958; Breiman et al.
1984, section 4.2.2).
Prefixes from both ends are tried, of at most `max_categories` categories. Rare categories stay on the right: those with less
Hessian than `min_category_hessian`, or than 2 % of the node if that is less (in a small node every category is rare).

That exception for small nodes holds only as far as the categories differ by more than noise. With v = Σ g² / Σ h over all
training rows, G_k - m H_k (m = G / H) has a variance of about v H_k if the K categories do not differ, and the moments of
DerSimonian and Laird (1986) estimate by how much they do:

    Q = Σ_k (G_k - m H_k)² / H_k,    τ² = (Q - (K - 1) v) / (H - Σ_k H_k² / H)

The mean gradient of a category varies by v / H_k from row noise and by τ² from category to category; a category with less
Hessian than ``NOISE_SHARE`` v / τ² (and than `min_category_hessian`) is rare.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import inlined, internal
from dboost.kernels.records import record
from dboost.kernels.simd import bits_to_float64, float64_to_bits, row_span, span

I = np.int64  # noqa: E741


@record
class SplitParams(NamedTuple):
    """Regularisation and limits of a split, in the units of the quantised sums of one tree."""

    l2: float
    l1: float
    max_step: float  # infinity for no bound
    min_hessian: float
    min_rows: float
    count_channel: int  # histogram channel that counts rows; -1 when min_rows need not be tested
    threshold: float  # score(left) + score(right) must exceed score(node) by more than this
    smoothing: float
    category_l2: float
    max_categories: int
    min_category_hessian: float
    is_bounded: int = 0  # 1 if steps are bounded (by `total[3]` and `total[4]` of a node)
    noise: float = 0.0  # Σ g² / Σ h of all rows; 0 for no limit on categories that follows from it


@record
class SearchScratch(NamedTuple):
    """Scratch for the search of a node."""

    sums: np.ndarray  # float64[4, n_codes]: prefix sums of the channels, and scores
    bits: np.ndarray  # int64[4, n_codes]: the same memory
    codes: np.ndarray  # int64[n_codes]: the categories that occur in a node, in ascending order; `sums` are theirs then
    keys: np.ndarray  # float64[n_codes]: what categories are sorted by
    order: np.ndarray  # int64[n_codes]: the sorted categories, as positions in `codes`


def new_search_scratch(n_codes: int) -> SearchScratch:
    """Return scratch for features of at most `n_codes` bin codes ("missing" is one of them)."""
    sums, codes, order = np.zeros((4, n_codes)), np.zeros(n_codes, np.int64), np.zeros(n_codes, np.int64)
    return SearchScratch(sums, sums.view(np.int64), codes, np.zeros(n_codes), order)


# Fields of a candidate split (float64[SPLIT_SIZE]).
SCORE, FEATURE, SPLIT_BIN, MISSING_LEFT, LEFT_G, LEFT_H, LEFT_N = range(7)
SPLIT_SIZE = 8
NO_SPLIT = -np.inf


@internal
def clear_split(best):
    """Reset a candidate: any split beats it."""
    best[SCORE] = NO_SPLIT
    best[FEATURE] = 1e18


@inlined
def side_score(g, h, l2, l1, max_step):
    """Return the score of one side (see the module's docstring)."""
    t = abs(g) - l1
    t = t if t > 0.0 else 0.0
    d = h + l2
    step = t / d if d > 0.0 else 0.0
    step = step if step < max_step else max_step
    return step * (2.0 * t - step * d)


@internal
def _prefix(values, n, sums):
    """Compute sums[b] = values[0] + … + values[b], in four chains so that additions overlap."""
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
def _scores(left_g, left_h, extra_g, extra_h, total, limits, scores):
    """Score the split after each of some bins, all of which leave enough Hessian on both sides."""
    l1, l2, max_step = limits.l1, limits.l2, limits.max_step
    total_g, total_h = total[0], total[1]
    if max_step == np.inf:
        for b in range(left_g.size):
            gl, hl = left_g[b] + extra_g, left_h[b] + extra_h
            gr, hr = total_g - gl, total_h - hl
            tl, tr = abs(gl) - l1, abs(gr) - l1
            tl, tr = tl if tl > 0.0 else 0.0, tr if tr > 0.0 else 0.0
            dl, dr = hl + l2, hr + l2
            scores[b] = (tl * tl * dr + tr * tr * dl) / (dl * dr)
    else:
        for b in range(left_g.size):
            gl, hl = left_g[b] + extra_g, left_h[b] + extra_h
            scores[b] = side_score(gl, hl, l2, l1, max_step) + side_score(total_g - gl, total_h - hl, l2, l1, max_step)


@internal
def _first_reaching(sums, first, last, extra, least):
    """Return the first position >= `first` where an ascending sum plus `extra` is at least `least`; `last` if there is none."""
    n = last - first
    while n > 0:
        half = (n + 1) >> 1
        is_below = sums[first + half - 1] + extra < least
        first = first + half if is_below else first
        n = n - half if is_below else half - 1
    return first


@internal
def _first_leaving(sums, first, last, extra, total, least):
    """Return the first position >= `first` where less than `least` is left of the total; `last` if there is none."""
    n = last - first
    while n > 0:
        half = (n + 1) >> 1
        is_enough = total - (sums[first + half - 1] + extra) >= least
        first = first + half if is_enough else first
        n = n - half if is_enough else half - 1
    return first


@internal
def _largest(bits, n):
    """Return the bits of the largest of n scores, -1 if none is positive or 0. Non-negative doubles order like their bits."""
    top = I(-1)
    for b in range(n):
        top = bits[b] if bits[b] > top else top
    return top


@internal
def position(values, n, wanted):
    """Return the first position of a value among n, or 0 when it is not there.

    A full pass that vectorises is faster than half a pass that stops.
    """
    first = I(n)
    for b in range(n):
        place = I(b) if values[b] == wanted else I(n)
        first = place if place < first else first
    return first if first < n else I(0)


@inlined
def beats(score, feature, best):
    return score > best[SCORE] or (score == best[SCORE] and feature < best[FEATURE])


@internal
def search_numeric(histogram, at, n_bins, feature, total, limits, scratch, best):
    """Improve `best` (a candidate split) by the best split of a numeric feature.

    histogram : float64[n_channels, n_buckets]; total : float64[5], as in `trees.tree_task.NodeArrays` (G, H, N of the
    node first); scratch : SearchScratch.
    """
    sums, score_bits = scratch.sums, scratch.bits[3]
    missing_g, missing_h = histogram[0, at + n_bins], histogram[1, at + n_bins]
    # After the last bin a split can only separate the missing values.
    n = n_bins if missing_h > 0.0 else n_bins - 1
    channel = limits.count_channel
    left_g, left_h, left_n, scores = sums[0], sums[1], sums[2], sums[3]
    for p in range(2 if channel < 2 else 3):
        _prefix(histogram[p, at : at + n], n, sums[p])
    if channel == 1:
        left_n = left_h
    # Every row has a Hessian of at least 1 in these units, so no side is empty.
    min_hessian = limits.min_hessian if limits.min_hessian > 1.0 else 1.0
    for missing_left in range(2 if missing_h > 0.0 else 1):
        if missing_left == 1:
            n = n_bins - 1
        if n < 1:
            return
        extra_g, extra_h = missing_g * missing_left, missing_h * missing_left
        extra_n = histogram[channel, at + n_bins] * missing_left if channel >= 0 else 0.0
        # Hessians and counts grow from bin to bin, so the splits that leave enough on both sides are a contiguous range.
        first = _first_reaching(left_h, I(0), n, extra_h, min_hessian)
        last = _first_leaving(left_h, first, n, extra_h, total[1], min_hessian)
        if channel >= 0:
            first = _first_reaching(left_n, first, last, extra_n, limits.min_rows)
            last = _first_leaving(left_n, first, last, extra_n, total[2], limits.min_rows)
        if first >= last:
            continue
        _scores(left_g[first:last], left_h[first:last], extra_g, extra_h, total, limits, scores)
        # Most features do not beat the best split so far: the position of their best bin is not needed.
        top = _largest(score_bits, last - first)
        if top < I(0) or top < float64_to_bits(best[SCORE]):
            continue
        k = position(score_bits, last - first, top)
        if beats(scores[k], feature, best):
            b = first + k
            best[SCORE] = scores[k]
            best[FEATURE] = feature
            best[SPLIT_BIN] = b
            best[MISSING_LEFT] = missing_left
            best[LEFT_G] = left_g[b] + extra_g
            best[LEFT_H] = left_h[b] + extra_h
            best[LEFT_N] = left_n[b] + extra_n if channel >= 0 else 0.0


U = np.uint64

_SIGN = U(1 << 63)
_TWO_52 = U(0x4330000000000000)  # the bits of 2**52
_SHIFTED_TWO_52 = np.float64(2.0**52 + 2.0**31)


@internal
def _score_packed(left, extra, total, l2, scores):
    """Score the split after each bin as `_scores` does, where all splits are allowed. Return the bits of the largest score.

    left : int64[n], prefix sums of packed words ``G << 32 | H``, to all of which `extra` is added.

    Half of a word is converted to float64 by writing it into the fraction of 2**52 and subtracting that (for G, which is
    shifted to be non-negative, 2**31 more): fewer instructions than a conversion, and available as vector instructions on every
    processor.
    """
    total_g, total_h = total[0], total[1]
    top = I(-1)
    offset = U(extra) + _SIGN
    for b in range(left.size):
        word = U(left[b]) + offset
        gl = bits_to_float64((word >> U(32)) | _TWO_52) - _SHIFTED_TWO_52
        hl = bits_to_float64((word & U(0xFFFFFFFF)) | _TWO_52) - np.float64(2.0**52)
        gr, hr = total_g - gl, total_h - hl
        dl, dr = hl + l2, hr + l2
        score = (gl * gl * dr + gr * gr * dl) / (dl * dr)
        scores[b] = score
        bits = float64_to_bits(score)
        top = bits if bits > top else top
    return top


@internal
def _first_with(sums, first, last, extra, least):
    """Return the first position >= `first` where a sum of Hessians or counts is at least an integer; `last` when there is
    none."""
    n = last - first
    while n > 0:
        half = (n + 1) >> 1
        below = (sums[first + half - 1] + extra) & I(0xFFFFFFFF) < least
        first = first + half if below else first
        n = n - half if below else half - 1
    return first


@internal
def search_packed(packed, slot, at, n_bins, feature, total, limits, scratch, best):
    """Find the best split of a numeric feature by packed prefix sums, in trees without an L1 penalty or a bound on steps.

    packed : `histograms.PackedSums`, without counts where these are not needed or are Hessians (`count_channel` is 1).
    """
    sums, all_counts = packed.sums[slot], packed.counts
    scores, score_bits = scratch.sums[3], scratch.bits[3]
    missing = sums[at + n_bins] - sums[at + n_bins - 1]
    has_missing = np.int32(missing) != 0
    min_hessian = limits.min_hessian if limits.min_hessian > 1.0 else 1.0
    if limits.count_channel == 1 and limits.min_rows > min_hessian:
        min_hessian = limits.min_rows
    least = I(np.ceil(min_hessian)) if min_hessian < 2.0**32 else I(1) << I(32)
    for missing_left in range(2 if has_missing else 1):
        extra = missing * missing_left
        # Hessians and counts grow from bin to bin, so the splits that leave enough on both sides are a contiguous range.
        last = at + n_bins if has_missing and missing_left == 0 else at + n_bins - 1
        first = _first_with(sums, at, last, extra, least)
        last = _first_with(sums, first, last, extra, I(total[1]) - least + 1)
        rows, extra_rows = sums, I(0)
        if all_counts.size > 0:
            rows, fewest = all_counts[slot], I(np.ceil(limits.min_rows))
            extra_rows = (rows[at + n_bins] - rows[at + n_bins - 1]) * missing_left
            first = _first_with(rows, first, last, extra_rows, fewest)
            last = _first_with(rows, first, last, extra_rows, I(total[2]) - fewest + 1)
        if first >= last:
            continue
        top = _score_packed(span(sums, first, last), extra, total, limits.l2, scores)
        # Most features do not beat the best split so far: the position of their best bin is not needed.
        if top < float64_to_bits(best[SCORE]):
            continue
        b = position(score_bits, last - first, top)
        if beats(scores[b], feature, best):
            word = sums[first + b] + extra
            best[SCORE] = scores[b]
            best[FEATURE] = feature
            best[SPLIT_BIN] = first - at + b
            best[MISSING_LEFT] = missing_left
            best[LEFT_G] = np.float64(np.int32(word >> I(32)))
            best[LEFT_H] = np.float64(word & I(0xFFFFFFFF))
            best[LEFT_N] = best[LEFT_H] if limits.count_channel == 1 else 0.0
            if all_counts.size > 0:
                best[LEFT_N] = np.float64(rows[first + b] + extra_rows)


@inlined
def bounded_step(g, h, limits, l2, low, high):
    """Return the best step of a side between two bounds."""
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
    """Return the score of a side whose step is bounded: -(2 G w + (H + λ) w² + 2 α |w|)."""
    step = bounded_step(g, h, limits, l2, low, high)
    return -step * (2.0 * g + (h + l2) * step) - 2.0 * limits.l1 * abs(step)


@internal
def search_bounded(histogram, at, n_bins, feature, way, total, limits, best):
    """Find the best split of a numeric feature with bounded steps, which may only rise (way 1) or fall (way -1) with it.

    Bins are scored one after the other, so a tree under constraints costs more.
    """
    missing_h = histogram[1, at + n_bins]
    channel = limits.count_channel
    min_hessian = limits.min_hessian if limits.min_hessian > 1.0 else 1.0
    low, high = total[3], total[4]
    for missing_left in range(2 if missing_h > 0.0 else 1):
        g = histogram[0, at + n_bins] * missing_left
        h = missing_h * missing_left
        n = histogram[channel, at + n_bins] * missing_left if channel >= 0 else 0.0
        for b in range(n_bins if missing_h > 0.0 and missing_left == 0 else n_bins - 1):
            g += histogram[0, at + b]
            h += histogram[1, at + b]
            n += histogram[channel, at + b] if channel >= 0 else 0.0
            if h < min_hessian or total[1] - h < min_hessian:
                continue
            if channel >= 0 and (n < limits.min_rows or total[2] - n < limits.min_rows):
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
                best[SPLIT_BIN] = b
                best[MISSING_LEFT] = missing_left
                best[LEFT_G] = g
                best[LEFT_H] = h
                best[LEFT_N] = n


#: A category with this share of its node's Hessian is never rare.
RARE_SHARE = 0.02
#: A category with less Hessian than this times v / τ² is rare (see the module's docstring).
NOISE_SHARE = 0.15


@internal
def gather_levels(histogram, at, n_categories, limits, scratch):
    """Gather the categories that occur in a node, with their sums, in the scratch of its search; return their number.

    histogram : float64[n_channels, n_buckets]. Bucket `n_categories` is "missing" and takes part like a category.
    """
    sums, codes, n = scratch.sums, scratch.codes, I(0)
    channel = limits.count_channel if limits.count_channel > 0 else 1
    for code in range(n_categories + 1):
        h = histogram[1, at + code]
        if h > 0.0:
            sums[0, n], sums[1, n], sums[2, n] = histogram[0, at + code], h, histogram[channel, at + code]
            codes[n] = code
            n += 1
    return n


@internal
def gather_packed_levels(packed, slot, at, feature, scratch):
    """Gather categories as `gather_levels` does, from a packed histogram."""
    sums, n = scratch.sums, packed.levels.n[slot, feature]
    words, codes = row_span(packed.sums, slot, at, at + n), row_span(packed.levels.codes, slot, at, at + n)
    for i in range(n):
        sums[0, i] = np.float64(np.int32(words[i] >> I(32)))
    for i in range(n):
        sums[1, i] = bits_to_float64((U(words[i]) & U(0xFFFFFFFF)) | _TWO_52) - np.float64(2.0**52)
    for i in range(n):
        scratch.codes[i] = codes[i]
    if packed.counts.size > 0:
        counts = row_span(packed.counts, slot, at, at + n)
        for i in range(n):
            sums[2, i] = np.float64(np.int32(counts[i]))
    else:
        for i in range(n):
            sums[2, i] = sums[1, i]
    return n


@internal
def _least_support(sums, n, total, limits):
    """Return the smallest Hessian of a category of a node that is not rare. total : the node's sums, as in `search_numeric`."""
    most = limits.min_category_hessian
    total_g, total_h = total[0], total[1]
    support = total_h * RARE_SHARE
    if not support < most:
        return most
    if not limits.noise > 0.0 or total_h == 0.0:
        return support
    mean = total_g / total_h
    spread, squares = 0.0, 0.0
    for k in range(n):
        h = sums[1, k]
        difference = sums[0, k] - mean * h
        spread += difference * difference / h
        squares += h * h
    excess = spread - (np.float64(n) - 1.0) * limits.noise
    if not excess > 0.0:
        return most
    reliable = NOISE_SHARE * limits.noise * (total_h - squares / total_h) / excess
    support = reliable if reliable > support else support
    return support if support < most else most


@internal
def sort_levels(n, total, limits, scratch):
    """Sort the categories that may go left by G / (H + smoothing); ties by code. Return their number.

    n : number of categories that were gathered, whose positions are sorted; total : the node's sums.
    """
    sums, keys, order, used = scratch.sums, scratch.keys, scratch.order, I(0)
    support = _least_support(sums, n, total, limits)
    for k in range(n):
        h = sums[1, k]
        if h >= support:
            keys[k] = sums[0, k] / (h + limits.smoothing)
            order[used] = k
            used += 1
    # Shell's sort: few categories are not rare, so most of it is insertion. Compares (key, code).
    gap = I(1)
    while 3 * gap < used:
        gap = 3 * gap + 1
    while gap > 0:
        for end in range(gap, used):
            moving, at = order[end], I(end)
            key = keys[moving]
            while at >= gap:
                before = order[at - gap]
                if keys[before] < key or (keys[before] == key and before < moving):
                    break
                order[at] = before
                at -= gap
            order[at] = moving
        gap = gap // 3
    return used


@internal
def search_categorical(n_gathered, feature, total, limits, scratch, best):
    """Improve `best` by the best prefix of the sorted categories, of those that were gathered.

    SPLIT_BIN is the length of the prefix, negative when it is taken from the upper end.
    """
    sums, order = scratch.sums, scratch.order
    used = sort_levels(n_gathered, total, limits, scratch)
    channel = limits.count_channel
    min_hessian = max(limits.min_hessian, 1.0)
    l2 = limits.l2 + limits.category_l2
    for direction in (1, -1):
        g = h = n = 0.0
        for length in range(1, (used if used < limits.max_categories else limits.max_categories) + 1):
            k = order[length - 1] if direction == 1 else order[used - length]
            g += sums[0, k]
            h += sums[1, k]
            if channel >= 0:
                n += sums[2, k]
            if h < min_hessian or (channel >= 0 and n < limits.min_rows):
                continue
            if total[1] - h < min_hessian or (channel >= 0 and total[2] - n < limits.min_rows):
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
                best[SPLIT_BIN] = length * direction
                best[LEFT_G] = g
                best[LEFT_H] = h
                best[LEFT_N] = n
                best[MISSING_LEFT] = 0.0


@internal
def mark_left_categories(n_gathered, n_categories, split_bin, total, limits, scratch, goes_left):
    """Mark the bin codes of a categorical feature that go left: goes_left[code] for its categories, and for "missing" after
    them.

    The split stores only the length of a prefix; the order is computed again from the categories that were gathered.
    """
    order, codes = scratch.order, scratch.codes
    used = sort_levels(n_gathered, total, limits, scratch)
    for code in range(n_categories + 1):
        goes_left[code] = 0
    for k in range(abs(split_bin)):
        goes_left[codes[order[k] if split_bin > 0 else order[used - 1 - k]]] = 1
