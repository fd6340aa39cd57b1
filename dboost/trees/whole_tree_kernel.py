"""A whole tree in one compiled call, for a shard in this process's memory.

Each thread of a team runs `grow_whole_tree`. It does the same as the generator in `trees/tree_growth.py` with one shard, with
the same kernels and the same node arrays, but without returning to Python between rounds: on small data the rounds would cost
more than the work. A test compares the two growers.

One iteration of its loop handles the root, or splits a leaf and searches its two children: route the rows left and right, add
up the histogram of the smaller child (the larger one is the parent minus that), and find the best splits of both.

How the threads divide the work:

* rows: each thread owns stripes of rows; it quantises them, keeps their records in its own part of the buffers, and splits them
  there;
* narrow tables (few tiles): each thread fills packed buckets from its own rows, then reduces and searches its own columns over
  the packed buckets of all threads;
* wide tables: each thread fills, reduces and searches its own tiles over all rows, which needs no reduction.

Every thread keeps its own copy of the node arrays and takes the same decisions from the same numbers, which costs less than
communication.

The loop is one long function on purpose: its steps share some forty arrays, and as functions they took a fifth more time to
compile on a new machine. What runs once for a tree, or only for trees that exclude rows, has functions of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import internal, kernel
from dboost.kernels.histograms import HistogramRows, Packing, add, add_records, flush, subtract
from dboost.kernels.rows import STRIPE, add_leaf, label_rows, quantise, quantise_above, split_records
from dboost.kernels.simd import barrier, row_span
from dboost.kernels.split_search import mark_codes, search_feature
from dboost.kernels.splits import FEATURE, SCORE, beats, clear_split
from dboost.trees.split_finder import extend_path, init_path, mark_allowed_features
from dboost.trees.tree_task import FeatureConstraints, GrowthPolicy, apply_split, init_root, select_leaf, set_best_split

I = np.int64  # noqa: E741

#: Rows excluded from a tree are routed along with the others when they are at most one in this many rows.
EXCLUDED_FRACTION = 5


class TreeRows(NamedTuple):
    """The rows of a shard, for one tree."""

    codes: HistogramRows
    narrow: np.ndarray  # uint8[n_narrow, n_rows]
    row_of: np.ndarray  # int64[n_features], see `rows.shard_spec.code_rows`
    gradient: np.ndarray  # float32[n_rows]
    hessian: np.ndarray  # float32[n_rows], empty when it is 1 for all rows
    sampled: np.ndarray  # int64[...]: rows that take part, ascending; empty for all
    influence: np.ndarray | None  # int32[n_rows]: rows take part whose influence is not below `WholeTreeTask.least_influence`
    leaf: np.ndarray  # uint8 or int32[n_rows], receives the leaf of each row


class WholeTreeTask(NamedTuple):
    """How one tree is grown: the part of `trees.tree_task.TreeTask` that the kernel reads."""

    packing: Packing
    policy: GrowthPolicy
    scales: np.ndarray  # float64[4]: factors of gradients and Hessians before rounding, for histograms and for sums of leaves
    allowed: np.ndarray  # uint8[n_features]
    least_influence: int
    constraints: FeatureConstraints | None  # see `trees.split_finder`
    has_root: bool  # whether the first slot of the packed histograms holds the root's


class TeamBuffers(NamedTuple):
    """Buffers that are visible to all P threads; they live as long as the fit."""

    control: np.ndarray  # int64[...]: see `kernels.simd`
    by_unit: bool  # whether threads divide units of columns instead of rows
    records: np.ndarray  # uint64[2, n_rows]
    starts: np.ndarray  # int64[P + 1]: range of each thread in the record buffers
    packed: np.ndarray  # int64[P, words]: packed buckets, of all columns, or of one unit when threads divide units
    flushed: np.ndarray  # int64[P]: whether a thread has flushed into its slot (narrow tables only)
    counts: np.ndarray  # int64[2, P]: where the right rows begin, for this split and for the previous one
    best: np.ndarray  # float64[P, 2, SPLIT_SIZE]: best splits of the two new leaves, by thread
    left_codes: np.ndarray  # uint8[n_nodes, n_codes]: bin codes of a categorical split that go left
    n_rows: np.ndarray  # int64[n_nodes]: exact number of rows
    leaf_of: np.ndarray  # int64[n_nodes]: number of the leaf from left to right
    units: np.ndarray  # int64[n_units + 1]: first column of each unit of work (a tile, or a wide column)


class ThreadScratch(NamedTuple):
    """One thread's scratch."""

    slot: np.ndarray  # int64[n_nodes]: slot of a leaf's histogram in the pool
    free: np.ndarray  # int64[n_slots]: unused slots
    begin: np.ndarray  # int64[n_nodes, P]: record range of each node, by thread
    end: np.ndarray  # int64[n_nodes, P]
    side: np.ndarray  # int64[n_nodes]: which record buffer
    excluded: np.ndarray  # int64[n_nodes, 2]: range of this thread's excluded rows, if they are routed along
    goes_left: np.ndarray  # uint8[n_codes]
    leaf_sums: np.ndarray  # float64[max_leaves, 2]
    stack: np.ndarray  # int64[max_leaves + 1]
    total: np.ndarray  # float64[3]


@kernel
def grow_whole_tree(thread, rows, layout, task, team_buffers, thread_scratch, nodes, paths, search, histograms):
    """Grow one tree. Return the number of nodes, or -1 when the team was aborted.

    rows : TreeRows; layout : BinLayout; task : WholeTreeTask; team_buffers : TeamBuffers; thread_scratch : ThreadScratch;
    nodes : NodeArrays, this thread's copy; paths : `split_finder.FeaturePaths`, or None without constraints; search :
    SplitSearch, with this thread's scratch; histograms : Histograms of open leaves, and behind them in narrow tables of what
    each thread has flushed.
    The branches of arguments and fields that are None are pruned (`kernels.pipeline`).
    """
    codes, code_row, histogram_rows = rows.narrow, rows.row_of, rows.codes
    gradient, hessian, wide_codes = rows.gradient, rows.hessian, histogram_rows.wide
    sampled, influence = rows.sampled, rows.influence
    packing, policy = task.packing, task.policy
    scales, allowed = task.scales, task.allowed
    constraints, limits, direction = task.constraints, search.limits, search.direction
    slot, free, excluded = thread_scratch.slot, thread_scratch.free, thread_scratch.excluded
    begins, ends, side_of = thread_scratch.begin, thread_scratch.end, thread_scratch.side
    order, goes_left = search.scratch.order, thread_scratch.goes_left
    total, control, by_unit = thread_scratch.total, team_buffers.control, team_buffers.by_unit
    records, starts, all_packed = team_buffers.records, team_buffers.starts, team_buffers.packed
    counts, all_best, left_codes = team_buffers.counts, team_buffers.best, team_buffers.left_codes
    flushed_of, rows_of, units = team_buffers.flushed, team_buffers.n_rows, team_buffers.units
    offset, first_of, features = layout.offset, layout.first, layout.features
    start_of, is_category, bins_of = layout.start, layout.is_categorical, layout.n_bins
    total_of, gain_of = nodes.total, nodes.gain
    child_of, depth_of = nodes.child, nodes.depth
    missing_left_of, feature_of = nodes.missing_left, nodes.feature

    n_threads = starts.size - 1
    n_rows = starts[n_threads]
    n_columns = first_of.size - 1
    packed = all_packed[thread]
    n_free = free.size
    for k in range(n_free):
        free[k] = n_free - 1 - k
    last_node = 2 * policy.max_leaves - 1
    n_units = units.size - 1
    # Columns that this thread reduces and searches in a narrow table.
    my_first, my_last = n_columns * thread // n_threads, n_columns * (thread + 1) // n_threads
    my_columns = (my_first, my_last)
    epoch, parity = I(0), I(0)

    # The root: no rows have been routed yet, all of them belong to the smaller "child".
    n_nodes, left = I(1), I(0)
    small, large = I(0), I(-1)
    for q in range(n_threads):
        begins[0, q] = starts[q]
        ends[0, q] = starts[q + 1]
    side_of[0] = 0
    n_free -= 1
    slot[0] = free[n_free]
    rows_of[0] = n_rows
    # A few excluded rows are routed along with the others; many of them are assigned to leaves after the tree is grown.
    route_excluded = False
    if influence is not None:
        excluded[0, 0] = _quantise_kept(thread, rows, task, team_buffers)
        excluded[0, 1] = starts[thread + 1]
        counts[parity, thread] = excluded[0, 0]
        epoch = barrier(control, n_threads, epoch)
        if epoch < 0:
            return I(-1)
        n_kept = I(0)
        for q in range(n_threads):
            ends[0, q] = counts[parity, q]
            n_kept += ends[0, q] - starts[q]
        parity = 1 - parity
        rows_of[0] = n_kept
        route_excluded = EXCLUDED_FRACTION * (n_rows - n_kept) <= n_rows
    if constraints is not None:
        init_path(constraints, paths)
        mark_allowed_features(constraints, allowed, paths, I(0), I(0))

    while True:
        # The root's rows are quantised first; in a narrow table piece by piece, just before they are added up.
        quantised, is_known = large >= 0 or influence is not None, large < 0 and task.has_root
        if not quantised and (by_unit or is_known):
            at = starts[thread]
            for first in range(thread * STRIPE, n_rows, n_threads * STRIPE):
                last = first + STRIPE if first + STRIPE < n_rows else n_rows
                quantise(gradient, hessian, sampled, scales, first, last, row_span(records, 0, at, at + last - first))
                at += last - first
            epoch = barrier(control, n_threads, epoch)
            if epoch < 0:
                return I(-1)
            quantised = True

        # Add up the smaller child: one pass over this thread's rows for all columns, or over all rows for each of its units.
        side = side_of[small]
        n_passes = I(0) if is_known else n_units if by_unit else I(1)
        for unit in range(thread if by_unit else I(0), n_passes, n_threads if by_unit else I(1)):
            first_column = units[unit] if by_unit else I(0)
            last_column = units[unit + 1] if by_unit else I(n_columns)
            columns = (first_column, last_column)
            base = start_of[first_column]
            n_words = start_of[last_column] - base
            for k in range(n_words):
                packed[k] = 0
            # Packed buckets without counts never overflow (`TreeTask.can_stay_packed`).
            into = slot[small] if by_unit else free.size + thread
            pending, flushed = I(0), I(0)
            for q in range(I(0) if by_unit else thread, n_threads if by_unit else thread + 1):
                begin, end = begins[small, q], ends[small, q]
                first = thread * STRIPE
                step = I(n_rows) if quantised else I(STRIPE)
                for s in range(begin, end, step):
                    n = step if s + step < end else end - s
                    piece = row_span(records, side, s, s + n)
                    if not quantised:
                        quantise(gradient, hessian, sampled, scales, first, first + n, piece)
                        first += n_threads * STRIPE
                    pending, flushed = add_records(
                        histogram_rows, piece, layout, packing, columns, packed, histograms, into, (pending, flushed), order
                    )
            if not by_unit:
                flushed_of[thread] = flushed
                break
            flush(layout, packing, columns, base, packed, histograms, slot[small], flushed == 0, order)
        if not by_unit:
            epoch = barrier(control, n_threads, epoch)
            if epoch < 0:
                return I(-1)

        # Reduce over threads, subtract from the parent, search. The root's sums are known only after its reduction.
        clear_split(all_best[thread, 0])
        clear_split(all_best[thread, 1])
        if not (by_unit or is_known):
            for q in range(n_threads):
                flush(layout, packing, my_columns, I(0), all_packed[q], histograms, slot[small], q == 0, order)
                if flushed_of[q] != 0:
                    add(layout, my_columns, histograms, slot[small], free.size + q)
        if large < 0:
            epoch = barrier(control, n_threads, epoch)
            if epoch < 0:
                return I(-1)
            _sum_root(histograms, slot[small], offset[1], total)
            init_root(nodes, total)
        for unit in range(thread if by_unit else my_first, n_units if by_unit else my_last, n_threads if by_unit else I(1)):
            first_column = units[unit] if by_unit else I(unit)
            last_column = units[unit + 1] if by_unit else I(unit + 1)
            for k in range(first_of[first_column], first_of[last_column]):
                feature = features[k]
                start, stop = offset[feature], offset[feature + 1]
                if large >= 0:
                    subtract(histograms, slot[large], slot[small], start, stop)
                if not allowed[feature]:
                    continue
                for child in range(left, n_nodes):
                    if constraints is not None:
                        if paths.open[child - left, feature] == 0:
                            continue
                    best = all_best[thread, child - left]
                    search_feature(histograms, slot[child], start, layout, feature, total_of[child], search, best)
        epoch = barrier(control, n_threads, epoch)
        if epoch < 0:
            return I(-1)
        for child in range(left, n_nodes):
            # The best over threads: highest score, then lowest feature.
            chosen = I(0)
            for q in range(1, n_threads):
                best = all_best[q, child - left]
                if beats(best[SCORE], best[FEATURE], all_best[chosen, child - left]):
                    chosen = I(q)
            set_best_split(nodes, child, all_best[chosen, child - left], limits)
            if gain_of[child] <= 0.0:
                free[n_free] = slot[child]
                n_free += 1

        # Split leaves until there is one whose children need histograms. (`all_best` is written again only after the barrier
        # of the next split, when all threads have read it.)
        large = I(-1)
        while n_nodes < last_node and large < 0:
            node = select_leaf(nodes, n_nodes, policy)
            if node < 0:
                break
            left = n_nodes
            right = left + 1
            apply_split(nodes, node, n_nodes, limits, direction)
            n_nodes += 2
            feature = feature_of[node]
            n_bins, best, total_h = bins_of[feature], nodes.best[node], total_of[node, 1]
            mark_codes(histograms, slot[node], offset[feature], layout, best, total_h, search, goes_left)
            missing_left_of[node] = goes_left[n_bins]
            if histograms.by_channel is not None:
                if is_category[feature] != 0 and thread == 0:
                    for code in range(n_bins + 1):
                        left_codes[node, code] = goes_left[code]

            begin, end = begins[node, thread], ends[node, thread]
            side = side_of[node]
            source, target = row_span(records, side, begin, end), row_span(records, 1 - side, begin, end)
            row = code_row[feature]
            if row < 0:
                middle = begin + split_records(wide_codes[-1 - row], goes_left, source, target)
            else:
                middle = begin + split_records(codes[row], goes_left, source, target)
            counts[parity, thread] = middle
            epoch = barrier(control, n_threads, epoch)
            if epoch < 0:
                return I(-1)
            rows_left = rows_right = I(0)
            for q in range(n_threads):
                middle = counts[parity, q]
                begins[left, q], ends[left, q] = begins[node, q], middle
                begins[right, q], ends[right, q] = middle, ends[node, q]
                rows_left += middle - begins[node, q]
                rows_right += ends[node, q] - middle
            parity = 1 - parity
            side_of[left] = side_of[right] = 1 - side
            if influence is not None:
                if route_excluded:
                    _split_excluded(node, left, rows, records, side, row, goes_left, excluded)
            rows_of[left], rows_of[right] = rows_left, rows_right
            if n_nodes < last_node and depth_of[left] < policy.max_depth:
                small, large = (left, right) if rows_left <= rows_right else (right, left)
                slot[large] = slot[node]
                n_free -= 1
                slot[small] = free[n_free]
                if constraints is not None:
                    for side_of_split in range(2):
                        extend_path(constraints, paths, node, feature, left + side_of_split, side_of_split)
                        mark_allowed_features(constraints, allowed, paths, left + side_of_split, side_of_split)
            else:
                # The children can only be leaves: no histograms are needed and the parent's slot is free.
                free[n_free] = slot[node]
                n_free += 1
        if large < 0:
            break

    _finish_leaves(thread, rows, scales, team_buffers, thread_scratch, child_of, route_excluded)
    return n_nodes


@internal
def _quantise_kept(thread, rows, task, team_buffers):
    """Quantise this thread's rows: those that take part, and behind them the excluded ones; return where these begin."""
    records, starts = team_buffers.records, team_buffers.starts
    n_threads = starts.size - 1
    n_rows = starts[n_threads]
    kept, spare = records[0], records[1]
    at, behind = starts[thread], starts[thread + 1] - 1
    for first in range(thread * STRIPE, n_rows, n_threads * STRIPE):
        last = first + STRIPE if first + STRIPE < n_rows else n_rows
        piece = spare[starts[thread] : starts[thread] + last - first]
        at, behind = quantise_above(
            rows.gradient,
            rows.hessian,
            rows.influence,
            task.least_influence,
            task.scales,
            first,
            last,
            (at, behind),
            kept,
            piece,
        )
    return at


@internal
def _split_excluded(node, left, rows, records, side, row, goes_left, excluded):
    """Move this thread's excluded rows of a split node to its children, of which `left` is the left one."""
    begin, end = excluded[node, 0], excluded[node, 1]
    source, target = row_span(records, side, begin, end), row_span(records, 1 - side, begin, end)
    if row < 0:
        middle = begin + split_records(rows.codes.wide[-1 - row], goes_left, source, target)
    else:
        middle = begin + split_records(rows.narrow[row], goes_left, source, target)
    excluded[left, 0], excluded[left, 1] = begin, middle
    excluded[left + 1, 0], excluded[left + 1, 1] = middle, end


@internal
def _sum_root(histograms, slot, n_buckets, total):
    """Write the sums over all rows to `total`: every row is in exactly one of the first feature's buckets."""
    if histograms.by_channel is not None:
        n_channels = histograms.by_channel.shape[1]
        for channel in range(n_channels):
            total[channel] = 0.0
            for b in range(n_buckets):
                total[channel] += histograms.by_channel[slot, channel, b]
        if n_channels == 2:
            total[2] = total[1]
    if histograms.packed is not None:
        word = histograms.packed.sums[slot, n_buckets - 1]
        total[0], total[1] = np.float64(word >> I(32)), np.float64(word & I(0xFFFFFFFF))
        total[2] = total[1]
        if histograms.packed.counts.size > 0:
            total[2] = np.float64(histograms.packed.counts[slot, n_buckets - 1])


@internal
def _finish_leaves(thread, rows, scales, team_buffers, thread_scratch, child_of, route_excluded):
    """Number the leaves from left to right, write the leaf of each of this thread's rows, and add up its leaves."""
    records, leaf_of = team_buffers.records, team_buffers.leaf_of
    begins, ends, side_of = thread_scratch.begin, thread_scratch.end, thread_scratch.side
    excluded, leaf_sums, stack = thread_scratch.excluded, thread_scratch.leaf_sums, thread_scratch.stack
    stack[0] = 0
    height, n_leaves = I(1), I(0)
    while height > 0:
        height -= 1
        node = stack[height]
        child = child_of[node]
        if child >= 0:
            stack[height] = child + 1
            stack[height + 1] = child
            height += 2
        else:
            leaf_of[node] = n_leaves
            mine = row_span(records, side_of[node], begins[node, thread], ends[node, thread])
            label_rows(mine, rows.leaf, n_leaves)
            leaf_sums[n_leaves, 0] = leaf_sums[n_leaves, 1] = 0.0
            add_leaf(mine, rows.gradient, rows.hessian, rows.codes.repeat_count, scales[2], scales[3], leaf_sums, n_leaves)
            if rows.influence is not None:
                if route_excluded:
                    mine = row_span(records, side_of[node], excluded[node, 0], excluded[node, 1])
                    label_rows(mine, rows.leaf, n_leaves)
            n_leaves += 1
