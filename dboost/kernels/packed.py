"""The best split of a node whose histogram stayed packed (small tables, see `histograms.accumulate`).

A feature's buckets come as prefix sums of words ``G << 32 | H``, and of counts: what is left of each cut, ready to be scored.
On ten thousand rows the search is most of the work, so it takes every short cut that changes no result: bins that leave too
little on a side are found by halving and not scored, and where a best bin is, is asked only when its score beats the best so
far.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import internal
from dboost.kernels.intrinsics import bits_to_float64, float64_to_bits
from dboost.kernels.splits import CUT, FEATURE, LEFT_G, LEFT_H, LEFT_N, MISSING_LEFT, SCORE, beats, position

I = np.int64  # noqa: E741
U = np.uint64

_SIGN = U(1 << 63)
_TWO_52 = U(0x4330000000000000)  # the bits of 2**52
_MOVED_TWO_52 = np.float64(2.0**52 + 2.0**31)


@internal
def _score_words(left, extra, total, l2, scores):
    """Score of the split after each bin as `_scores` has it, all of which are allowed. Returns the bits of the largest.

    left : int64[n], prefix sums of packed words ``G << 32 | H``, to all of which `extra` is added.

    A word's half is made a float64 by writing it into the fraction of 2**52 and subtracting that (for G, which is moved to
    be positive, 2**31 more): fewer instructions than a conversion, and every processor has vectors of them.
    """
    total_g, total_h = total[0], total[1]
    top = I(-1)
    moved = U(extra) + _SIGN
    for b in range(left.size):
        word = U(left[b]) + moved
        gl = bits_to_float64((word >> U(32)) | _TWO_52) - _MOVED_TWO_52
        hl = bits_to_float64((word & U(0xFFFFFFFF)) | _TWO_52) - np.float64(2.0**52)
        gr, hr = total_g - gl, total_h - hl
        dl, dr = hl + l2, hr + l2
        score = (gl * gl * dr + gr * gr * dl) / (dl * dr)
        scores[b] = score
        bits = float64_to_bits(score)
        top = bits if bits > top else top
    return top


@internal
def _first_with(words, first, last, extra, least):
    """First position from `first` on where a sum of Hessians or counts is at least an integer; `last` when there is none."""
    n = last - first
    while n > 0:
        half = (n + 1) >> 1
        below = (words[first + half - 1] + extra) & I(0xFFFFFFFF) < least
        first = first + half if below else first
        n = n - half if below else half - 1
    return first


@internal
def search_words(all_words, tallies, slot, at, n_bins, feature, total, limits, scratch, scratch_bits, best):
    """`search_numeric` for a histogram of packed prefix sums, in trees without an L1 penalty or a bound on steps.

    all_words : int64[n_slots, n_buckets], sums ``G << 32 | H``; tallies : the same for counts, or None: nobody asks for them
    then, or they are Hessians (`count_plane` is 1).
    """
    words = all_words[slot]
    scores, score_bits = scratch[3], scratch_bits[3]
    missing = words[at + n_bins] - words[at + n_bins - 1]
    has_missing = np.int32(missing) != 0
    min_hessian = limits.min_hessian if limits.min_hessian > 1.0 else 1.0
    if limits.count_plane == 1 and limits.min_rows > min_hessian:
        min_hessian = limits.min_rows
    least = I(np.ceil(min_hessian)) if min_hessian < 2.0**32 else I(1) << I(32)
    for missing_left in range(2 if has_missing else 1):
        extra = missing * missing_left
        # Hessians and counts grow from bin to bin, so the splits that leave enough on both sides are neighbours.
        last = at + n_bins if has_missing and missing_left == 0 else at + n_bins - 1
        first = _first_with(words, at, last, extra, least)
        last = _first_with(words, first, last, extra, I(total[1]) - least + 1)
        if tallies is not None:
            rows, fewest = tallies[slot], I(np.ceil(limits.min_rows))
            extra_rows = (rows[at + n_bins] - rows[at + n_bins - 1]) * missing_left
            first = _first_with(rows, first, last, extra_rows, fewest)
            last = _first_with(rows, first, last, extra_rows, I(total[2]) - fewest + 1)
        if first >= last:
            continue
        top = _score_words(words[first:last], extra, total, limits.l2, scores)
        # Most features are no better than the best so far: nobody asks where their best bin is.
        if top < float64_to_bits(best[SCORE]):
            continue
        b = position(score_bits, last - first, top)
        if beats(scores[b], feature, best):
            word = words[first + b] + extra
            best[SCORE] = scores[b]
            best[FEATURE] = feature
            best[CUT] = first - at + b
            best[MISSING_LEFT] = missing_left
            best[LEFT_G] = np.float64(np.int32(word >> I(32)))
            best[LEFT_H] = np.float64(np.int32(word))
            best[LEFT_N] = best[LEFT_H] if limits.count_plane == 1 else 0.0
            if tallies is not None:
                best[LEFT_N] = np.float64(rows[first + b] + extra_rows)
