"""Row kernels: quantising gradients, splitting the rows of a node, and sums by leaf.

A tree's rows are records (see `histograms.py`) in two buffers per thread. Splitting a node streams its records from one buffer
to the other, left rows from the front, right rows from the back, without a branch: a record is stored at both ends, and the
next one of the other side overwrites it there. The order of rows within a node does not matter, since all sums are exact.

Values are rounded to the nearest integer by adding and subtracting a constant so large that no fraction bits are left; that
vectorises on every processor and is exact in the range used here.

`add_tree` routes coded rows through a finished tree: rows that did not take part in growing it (evaluation sets, rows that
apply earlier trees). `add_leaves` computes the exact sums by leaf at the end of a tree, `sum_by_leaf` those of any other value.
`sum_squares` adds up what the noise of gradients follows from.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import any_order, inlined, internal, kernel
from dboost.kernels.exp_log import ROUNDER
from dboost.kernels.simd import span

U = np.uint64
I = np.int64  # noqa: E741

#: Rounds a float64 below 2**51 to the nearest integer.
ROUNDER64 = np.float64(6755399441055744.0)

#: Rows are assigned to threads in blocks of this many, so that sorted data keep all threads busy.
STRIPE = 4096


@internal
def quantise(gradient, hessian, rows, scales, first, last, records):
    """Write the records of rows first…last-1, or with `rows` (int64[...], empty for all) of rows[first], …, rows[last-1].

    scales : float64[>= 2]. The quantised gradient is round(gradient * scales[0]); the Hessian likewise with scales[1] but at
    least 1, so that a bucket is empty exactly when its Hessian sum is 0. With a constant Hessian (`hessian` is empty) it is 1.
    """
    g_scale, h_scale = np.float32(scales[0]), np.float32(scales[1])
    if rows.size > 0:
        for i in range(last - first):
            row = rows[first + i]
            g = np.int32((gradient[row] * g_scale + ROUNDER) - ROUNDER)
            h = np.int32(1)
            if hessian.size > 0:
                h = np.int32((hessian[row] * h_scale + ROUNDER) - ROUNDER)
                h = h if h > np.int32(1) else np.int32(1)
            records[i] = (U(np.uint32((g << np.int32(16)) | h)) << U(32)) | U(row)
        return
    g_of = span(gradient, first, last)
    if hessian.size == 0:
        for i in range(g_of.size):
            g = np.int32((g_of[i] * g_scale + ROUNDER) - ROUNDER)
            records[i] = (U(np.uint32((g << np.int32(16)) | np.int32(1))) << U(32)) | U(first + i)
    else:
        h_of = span(hessian, first, last)
        for i in range(g_of.size):
            g = np.int32((g_of[i] * g_scale + ROUNDER) - ROUNDER)
            h = np.int32((h_of[i] * h_scale + ROUNDER) - ROUNDER)
            h = h if h > np.int32(1) else np.int32(1)
            records[i] = (U(np.uint32((g << np.int32(16)) | h)) << U(32)) | U(first + i)


@internal
def quantise_marked(gradient, hessian, marks, scales, first, last, ends, target, spare):
    """Write the records of those of rows first…last-1 that are marked, and the numbers of the others.

    marks : uint8[n], 1 for marked rows, else 0; scales : see `quantise`; ends : (front, back); target : uint64[...], receives
    the records from position `front` upwards and the row numbers from position `back` downwards; spare : uint64[last - first],
    scratch. Return the new (front, back).

    Where most rows stay, all of them are quantised, which vectorises; where few do, only these.
    """
    stays = span(marks, first, last)
    n_stay = np.int32(0)
    for i in range(stays.size):
        n_stay += np.int32(stays[i])
    begin, above, below = ends[0], U(ends[0]), U(ends[1])
    if 4 * n_stay > last - first:
        quantise(gradient, hessian, target[:0], scales, first, last, spare)
        free = below - above
        for i in range(stays.size):
            record = spare[i]
            target[above] = record  # two stores, as in `split_records`
            target[above + free - U(i)] = record
            above += U(stays[i])
        return I(above), I(above + free) - stays.size
    for i in range(stays.size):
        target[below + (above - below) * U(stays[i])] = U(first + i)
        above += U(stays[i])
        below -= U(1) - U(stays[i])
    kept = target[begin : I(above)]
    quantise(gradient, hessian, kept, scales, 0, kept.size, kept)
    return I(above), I(below)


@kernel
def add_sizes(gradient, hessian, repeat_count, scales, sizes):
    """Add up what the sums of any rows lie between, once the rows are quantised (see `quantise`).

    gradient, hessian : float32[n]; repeat_count : uint8[n], how often each row counts, empty for once; sizes : int64[3]: the
    sums of the negative gradients, of the positive ones and of the Hessians are added.
    """
    g_scale, h_scale = np.float32(scales[0]), np.float32(scales[1])
    below = above = of_hessians = I(0)
    if repeat_count.size > 0:
        for i in range(gradient.size):
            times = I(repeat_count[i])
            g = I(np.int32((gradient[i] * g_scale + ROUNDER) - ROUNDER)) * times
            below += g if g < I(0) else I(0)
            above += g if g > I(0) else I(0)
            of_hessians += times if hessian.size == 0 else I(0)
        for i in range(hessian.size):
            h = np.int32((hessian[i] * h_scale + ROUNDER) - ROUNDER)
            of_hessians += I(h if h > np.int32(1) else np.int32(1)) * I(repeat_count[i])
    else:  # loops that vectorise
        for i in range(gradient.size):
            g = np.int32((gradient[i] * g_scale + ROUNDER) - ROUNDER)
            below += I(g if g < np.int32(0) else np.int32(0))
            above += I(g if g > np.int32(0) else np.int32(0))
        for i in range(hessian.size):
            h = np.int32((hessian[i] * h_scale + ROUNDER) - ROUNDER)
            of_hessians += I(h if h > np.int32(1) else np.int32(1))
        if hessian.size == 0:
            of_hessians = I(gradient.size)
    sizes[0] += below
    sizes[1] += above
    sizes[2] += of_hessians


@internal
def split_records(codes, goes_left, source, target):
    """Move records to the left child (front of `target`) or to the right child (back of it). Return how many went left.

    codes : uint8[n_rows] or uint16[n_rows]; goes_left : uint8[n_codes]; source, target : uint64[n].
    """
    n = source.size
    left, right = U(0), U(n) - U(1)
    for i in range(n):
        record = source[i]
        is_left = U(goes_left[codes[record & U(0xFFFFFFFF)]])
        # Two stores take less time than computing where one belongs.
        target[left] = record
        target[right] = record
        left += is_left
        right -= U(1) - is_left
    return I(left)


@internal
def label_rows(records, leaf, label):
    """Set leaf[row] = label for every record."""
    for i in range(records.size):
        leaf[records[i] & U(0xFFFFFFFF)] = label


@inlined
def _in_units(values, i, unit, repeat_count):
    """Return the value of row i as an integer in units of 1 / unit, as often as the row counts."""
    whole = (np.float64(values[i]) * unit + ROUNDER64) - ROUNDER64
    return whole * repeat_count[i] if repeat_count.size > 0 else whole


@internal
def add_leaf(records, gradient, hessian, repeat_count, gradient_unit, hessian_unit, sums, k):
    """Add the gradients and Hessians of records to the sums of leaf k. All else as in `add_leaves`, which takes longer: sums in
    memory wait for the last row of the same leaf, and here two rows are added at the same time.
    """
    n = records.size
    g = other_g = h = other_h = 0.0
    for at in range(0, n, 2):
        i = records[at] & U(0xFFFFFFFF)
        g += _in_units(gradient, i, gradient_unit, repeat_count)
        if hessian.size > 0:
            h += _in_units(hessian, i, hessian_unit, repeat_count)
        elif repeat_count.size > 0:
            h += hessian_unit * repeat_count[i]
        if at + 1 < n:
            i = records[at + 1] & U(0xFFFFFFFF)
            other_g += _in_units(gradient, i, gradient_unit, repeat_count)
            if hessian.size > 0:
                other_h += _in_units(hessian, i, hessian_unit, repeat_count)
            elif repeat_count.size > 0:
                other_h += hessian_unit * repeat_count[i]
    if hessian.size == 0 and repeat_count.size == 0:
        h = hessian_unit * n
    sums[k, 0] += g + other_g
    sums[k, 1] += h + other_h


@internal
def add_leaves(leaf, gradient, hessian, repeat_count, rows, first, last, gradient_unit, hessian_unit, sums):
    """Compute exact sums of gradients and Hessians by leaf over rows first…last-1 (or rows[first], …), finer than those of
    histograms.

    sums : float64[n_leaves, 2], integers in units of 1 / gradient_unit and 1 / hessian_unit (powers of two chosen so that the
    total stays below 2**53, which makes float64 addition exact). With a constant Hessian (empty) the second sum is a multiple
    of the number of rows. repeat_count : uint8[n_rows], how often each row counts; empty for once.
    """
    for at in range(first, last):
        i = I(at)
        if rows.size > 0:
            i = rows[at]
        k = leaf[i]
        g, h = (np.float64(gradient[i]) * gradient_unit + ROUNDER64) - ROUNDER64, hessian_unit
        if hessian.size > 0:
            h = (np.float64(hessian[i]) * hessian_unit + ROUNDER64) - ROUNDER64
        if repeat_count.size > 0:
            g *= repeat_count[i]
            h *= repeat_count[i]
        sums[k, 0] += g
        sums[k, 1] += h


@inlined
def splitmix(x):
    """Hash 64 bits (the finaliser of SplitMix64): equal inputs give equal, different inputs give independent bits."""
    x = (x ^ (x >> U(30))) * U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U(27))) * U(0x94D049BB133111EB)
    return x ^ (x >> U(31))


@kernel
def select_rows(seed, first_row, n_rows, threshold, chosen):
    """Write the numbers of the rows whose hash of (seed, global row number) is below `threshold`; return how many there are.

    chosen : int64[...] receives them in order; rows beyond its size are counted but not written.
    """
    k = 0
    for i in range(first_row, first_row + n_rows):
        h = splitmix(U(seed) + (U(i) + U(1)) * U(0x9E3779B97F4A7C15))
        if h < threshold:
            if k < chosen.size:
                chosen[k] = i
            k += 1
    return k


#: Rows that `add_tree` routes together.
ROUTED_TOGETHER = 16_384


@kernel
def mark_rows(seed, threshold, ids, first_id, marks):
    """Set marks of rows: 1 where the hash of `select_rows` is below `threshold`, else 0.

    ids : int64[n], the numbers of the rows; empty for first_id, first_id + 1, …; marks : uint8[n].
    """
    step = U(0x9E3779B97F4A7C15)
    if ids.size > 0:
        for i in range(marks.size):
            marks[i] = np.uint8(splitmix(U(seed) + (U(ids[i]) + U(1)) * step) < threshold)
        return
    x = U(seed) + (U(first_id) + U(1)) * step
    for i in range(marks.size):
        marks[i] = np.uint8(splitmix(x) < threshold)
        x += step  # a multiplication in each row would be a third of the time


@kernel
def add_tree(columns, layout, nodes, sets, value, first, last, raw, scratch):
    """Add to raw[i] the value of the leaf that row i reaches, for rows first…last-1.

    Rows are moved from node to node, as they are while a tree grows: no processor can predict the path of a row.

    columns : `rows.shard.BinnedColumns`; nodes : `trees.fit_trees.TreeNodes`; sets : the nodes with categorical splits and
    the codes that go left there, int32[n_sets] and uint8[n_sets, n_codes]; value : float64[n_leaves]; scratch :
    `trees.apply_trees.RoutingScratch`.
    """
    records, begin, end = scratch.records, scratch.begin, scratch.end
    goes_left, (set_nodes, left_codes) = scratch.goes_left, sets
    for start in range(first, last, ROUTED_TOGETHER):
        n = last - start if last - start < ROUTED_TOGETHER else I(ROUTED_TOGETHER)
        for i in range(n):
            records[0, i] = U(start + i)
        begin[0], end[0] = 0, n
        k = 0
        for node in range(nodes.child.size):
            child, side = I(nodes.child[node]), I(nodes.depth[node] & 1)
            source = records[side, begin[node] : end[node]]
            if child < 0:
                for i in range(source.size):
                    raw[source[i]] += value[nodes.leaf_of[node]]
                continue
            feature = nodes.feature[node]
            row, n_bins = columns.row_of[feature], layout.n_bins[feature]
            if k < set_nodes.size and set_nodes[k] == node:
                for code in range(n_bins):
                    goes_left[code] = left_codes[k, code]
                k += 1
            else:
                for code in range(n_bins):
                    goes_left[code] = code <= nodes.split_bin[node]
            goes_left[n_bins] = nodes.missing_left[node]
            target, n_left = records[1 - side, begin[node] : end[node]], I(0)
            if row >= 0:
                n_left = split_records(columns.narrow[row], goes_left, source, target)
            else:
                n_left = split_records(columns.wide[-1 - row], goes_left, source, target)
            begin[child], end[child] = begin[node], begin[node] + n_left
            begin[child + 1], end[child + 1] = begin[node] + n_left, end[node]


@any_order
def sum_integers(values, n):
    """Sum the first n integers that are held as float64: exact in any order, so it may be vectorised."""
    total = 0.0
    for i in range(n):
        total += values[i]
    return total


@kernel
def sum_by_leaf(leaf, values, repeat_count, rows, first, last, unit, sums):
    """Sum a value of each row by leaf, over rows first…last-1, or rows[first], …, rows[last-1].

    leaf : uint8 or int32[n]; values : float32[n]; repeat_count : uint8[n], how often a row counts, empty for once; unit : the
    power of two by which values are multiplied before they are rounded; sums : float64[n_leaves], integers, added to.
    """
    for at in range(first, last):
        i = rows[at] if rows.size > 0 else I(at)
        whole = (np.float64(values[i]) * unit + ROUNDER64) - ROUNDER64
        if repeat_count.size > 0:
            whole *= repeat_count[i]
        sums[leaf[i]] += whole


#: Sums of `sum_squares`: squares and Hessians, lanes (as of `quantile_keys.add_influence`), exponents of float32.
SQUARES_SHAPE = (2, 4, 256)
#: Its totals: an integer in words of 64 bits for each of the two. A square is below 2**572, and so is any sum of them.
TOTALS_SHAPE = (2, 10)


@kernel
def sum_squares(gradient, hessian, repeat_count, sums, totals):
    """Sum squared gradients, and Hessians, as integers, so that any division of the rows gives the same.

    gradient : float32[n] as int32 bits, which are rounded to 13 significant bits; hessian : likewise, not rounded, empty for 1
    each; repeat_count : uint8[n], how often a row counts, empty for once; sums : int64[SQUARES_SHAPE], scratch for the sums by
    the exponents of the numbers, which hold 2**29 rows, whatever the repeat counts; totals : uint64[TOTALS_SHAPE], receives the
    sums, lowest word first, in units of 2**-276 and 2**-149.
    """
    for kind in range(SQUARES_SHAPE[0]):
        for lane in range(SQUARES_SHAPE[1]):
            for exponent in range(SQUARES_SHAPE[2]):
                sums[kind, lane, exponent] = 0
    for i in range(gradient.size):
        times, lane = I(1), i & (SQUARES_SHAPE[1] - 1)
        if repeat_count.size > 0:
            times = I(repeat_count[i])
        exponent, significand = _exponent_and_significand(gradient[i])
        rounded = (significand + I(1 << 10)) >> I(11)
        sums[0, lane, exponent] += times * rounded * rounded
        exponent, significand = I(127), I(1 << 23)  # of the number 1
        if hessian.size > 0:
            exponent, significand = _exponent_and_significand(hessian[i])
        sums[1, lane, exponent] += times * significand
    for kind in range(TOTALS_SHAPE[0]):
        for word in range(TOTALS_SHAPE[1]):
            totals[kind, word] = 0
        for exponent in range(SQUARES_SHAPE[2]):
            number = sums[kind, 0, exponent] + sums[kind, 1, exponent] + sums[kind, 2, exponent] + sums[kind, 3, exponent]
            if number != 0:
                # Numbers below the normal ones, of exponent 0, have the unit of those of exponent 1.
                above = I(exponent - 1) if exponent > 0 else I(0)
                _add_shifted(U(number), above if kind == 1 else 2 * above, totals, kind)


@internal
def _add_shifted(number, shift, totals, row):
    """Add number * 2**shift to the integer in a row of `totals` (see `sum_squares`)."""
    word, bits = shift >> 6, U(shift & 63)
    carry = number << bits
    high = (number >> U(1)) >> (U(63) - bits)  # what does not fit the first word: no shift by 64 bits
    while carry != 0 or high != 0:
        before = totals[row, word]
        after = before + carry
        totals[row, word] = after
        carry, high = high + U(after < before), U(0)
        word += 1


@inlined
def _exponent_and_significand(bits):
    """Return the exponent of a float32 and its significand as an integer of 24 bits."""
    exponent, below = I((bits >> np.int32(23)) & np.int32(0xFF)), I(bits & np.int32(0x7FFFFF))
    return exponent, below | I(0x800000) if exponent > 0 else below
