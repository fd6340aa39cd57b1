"""Order statistics of sums of a row's number and sorted numbers, without making all sums."""

from __future__ import annotations

from dboost.kernels import kernel


@kernel
def select_sums(base, unit, scores, starts, weight_before, rank, windows, pivots):
    """Find, for each row i, the smallest of the sums base[k, i] + unit[k, i] · scores[j], for all groups k and all scores j of
    a group, such that those up to it have at least the weight `rank`.

    base, unit : float64[n_groups, n_rows], unit is not negative; scores : float64[n], ascending within each group; starts :
    int64[n_groups + 1], where groups begin; weight_before : int64[n + 1], weight of the scores before each position; rank : at
    most the weight of all; windows : int64[3, n_groups], overwritten; pivots : float64[n_rows].

    In each step the middle of the widest window of positions is compared with all sums: a binary search in each group, as sums
    ascend in it. Then half of the window is left.
    """
    n_groups, n_rows = base.shape
    below, above, cut = windows[0], windows[1], windows[2]
    for i in range(n_rows):
        for k in range(n_groups):
            below[k], above[k] = starts[k], starts[k + 1]
        while True:
            widest = 0
            for k in range(1, n_groups):
                if above[k] - below[k] > above[widest] - below[widest]:
                    widest = k
            if above[widest] <= below[widest]:
                break
            middle = (below[widest] + above[widest]) // 2
            pivot = base[widest, i] + unit[widest, i] * scores[middle]
            weight = 0
            for k in range(n_groups):
                low, high = below[k], above[k]
                while low < high:
                    at = (low + high) // 2
                    if base[k, i] + unit[k, i] * scores[at] <= pivot:
                        low = at + 1
                    else:
                        high = at
                cut[k] = low
                weight += weight_before[low] - weight_before[starts[k]]
            if weight >= rank:
                pivots[i] = pivot
                for k in range(n_groups):
                    above[k] = cut[k]
                above[widest] = middle
            else:
                for k in range(n_groups):
                    below[k] = cut[k]
