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

A phase ends where the threads wait for each other (`_meet`). Phases share one record (`Growth`), which is passed by its address
(`kernels.records`), and what changes while a tree grows is in its arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import internal, kernel
from dboost.kernels.histograms import (
    BinLayout,
    HistogramRows,
    Histograms,
    Packing,
    add,
    add_records,
    flush,
    list_levels,
    subtract,
    subtract_levels,
)
from dboost.kernels.predict import MASK_LEAVES
from dboost.kernels.records import record
from dboost.kernels.rows import STRIPE, add_leaf, label_rows, quantise, quantise_marked, split_records
from dboost.kernels.simd import barrier, row_span
from dboost.kernels.split_search import SplitSearch, mark_codes, search_feature
from dboost.kernels.splits import FEATURE, SCORE, beats, clear_split
from dboost.trees.split_finder import FeaturePaths, extend_path, init_path, mark_allowed_features
from dboost.trees.tree_task import (
    FeatureConstraints,
    GrowthPolicy,
    NodeArrays,
    apply_split,
    init_root,
    may_be_split,
    select_leaf,
    set_best_split,
)

I = np.int64  # noqa: E741

#: Rows excluded from a tree are routed along with the others when they are at most one in this many rows and a few more (to
#: label all rows afterwards takes time before the first one), or when the tree is too large for masks.
EXCLUDED_FRACTION, FEW_EXCLUDED = 5, 4096


@record
class TreeRows(NamedTuple):
    """The rows of a shard, for one tree."""

    codes: HistogramRows
    narrow: np.ndarray  # uint8[n_narrow, n_rows]
    row_of: np.ndarray  # int64[n_features], see `rows.shard_spec.code_rows`
    gradient: np.ndarray  # float32[n_rows]
    hessian: np.ndarray  # float32[n_rows], empty when it is 1 for all rows
    sampled: np.ndarray  # int64[...]: rows that take part, ascending; empty for all
    marks: np.ndarray  # uint8[n_rows]: 1 for rows that take part; empty if all do
    leaf: np.ndarray  # uint8 or int32[n_rows], receives the leaf of each row


@record
class WholeTreeTask(NamedTuple):
    """How one tree is grown: the part of `trees.tree_task.TreeTask` that the kernel reads."""

    packing: Packing
    policy: GrowthPolicy
    scales: np.ndarray  # float64[4]: factors of gradients and Hessians before rounding, for histograms and for sums of leaves
    allowed: np.ndarray  # uint8[n_features]
    constraints: FeatureConstraints | None  # see `trees.split_finder`
    has_root: bool  # whether the first slot of the packed histograms holds the root's


@record
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


@record
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
    state: np.ndarray  # int64[STATE_SIZE]: what changes from phase to phase, see below


#: Fields of a thread's state: the numbers of nodes and of unused slots; the epoch of the barrier; which of the two rows of
#: `TeamBuffers.counts` is next; the first of the two newest nodes; of these the one whose rows are added up, and the one
#: that is the rest of the parent (-1 for the root, and at the end); whether excluded rows are routed along.
N_NODES, N_FREE, EPOCH, PARITY, LEFT, SMALL, LARGE, ROUTES_EXCLUDED = range(8)
STATE_SIZE = 8


@record
class Growth(NamedTuple):
    """The arguments of all phases. The branches of fields that are None are pruned (`kernels.pipeline`)."""

    thread: int
    rows: TreeRows
    layout: BinLayout
    task: WholeTreeTask
    team: TeamBuffers
    scratch: ThreadScratch
    nodes: NodeArrays  # this thread's copy
    paths: FeaturePaths | None  # with constraints
    search: SplitSearch
    #: Of open leaves, and behind them in narrow tables of what each thread has flushed.
    histograms: Histograms


@kernel
def grow_whole_tree(growth):
    """Grow one tree. Return the number of nodes, or -1 when the team was aborted."""
    state = growth.scratch.state
    goes_on = _begin_root(growth)
    while goes_on:
        goes_on = _add_up_smaller_child(growth) and _reduce_sums(growth) and _search_children(growth) and _split_leaves(growth)
        if state[LARGE] < 0:
            break
    if not goes_on:
        return I(-1)
    _number_leaves(growth)
    return state[N_NODES]


@internal
def _meet(growth):
    """Wait for the other threads; return whether all of them go on."""
    state = growth.scratch.state
    state[EPOCH] = barrier(growth.team.control, I(growth.team.starts.size - 1), state[EPOCH])
    return state[EPOCH] >= 0


@internal
def _begin_root(growth):
    """Put all rows into the root: none have been routed yet, so they belong to its smaller "child"."""
    task, team = growth.task, growth.team
    scratch, state = growth.scratch, growth.scratch.state
    starts, n_slots = team.starts, scratch.free.size
    for k in range(n_slots):
        scratch.free[k] = n_slots - 1 - k
    for q in range(starts.size - 1):
        scratch.begin[0, q] = starts[q]
        scratch.end[0, q] = starts[q + 1]
    scratch.side[0] = 0
    scratch.slot[0] = scratch.free[n_slots - 1]
    state[N_NODES], state[N_FREE], state[EPOCH] = I(1), I(n_slots - 1), I(0)
    state[PARITY], state[LEFT], state[SMALL] = I(0), I(0), I(0)
    state[LARGE], state[ROUTES_EXCLUDED] = I(-1), I(0)
    _list_codes_of(growth, I(-1))
    team.n_rows[0] = starts[starts.size - 1]
    if growth.rows.marks.size > 0 and not _exclude_rows(growth):
        return False
    if task.constraints is not None:
        init_path(task.constraints, growth.paths)
        mark_allowed_features(task.constraints, task.allowed, growth.paths, I(0), I(0))
    return True


@internal
def _list_codes_of(growth, slot):
    """Add up, of categorical features, the codes that occur in the node in a slot; -1 for all codes."""
    if growth.histograms.packed is not None:
        if growth.histograms.packed.levels is not None:
            growth.histograms.packed.levels.listed[0] = slot


@internal
def _exclude_rows(growth):
    """Quantise the rows that take part, and put the others behind them.

    A few excluded rows are routed along with the others; many of them are assigned to leaves after the tree is grown.
    """
    thread, rows, task = growth.thread, growth.rows, growth.task
    team, scratch = growth.team, growth.scratch
    starts, state, records = team.starts, scratch.state, team.records
    n_threads = starts.size - 1
    n_rows = starts[n_threads]
    at, behind = starts[thread], starts[thread + 1] - 1
    for first in range(thread * STRIPE, n_rows, n_threads * STRIPE):
        last = first + STRIPE if first + STRIPE < n_rows else n_rows
        piece = records[1, starts[thread] : starts[thread] + last - first]
        at, behind = quantise_marked(
            rows.gradient, rows.hessian, rows.marks, task.scales, first, last, (at, behind), records[0], piece
        )  # fmt: skip
    scratch.excluded[0, 0], scratch.excluded[0, 1] = at, starts[thread + 1]
    team.counts[state[PARITY], thread] = at
    if not _meet(growth):
        return False
    n_kept = I(0)
    for q in range(n_threads):
        scratch.end[0, q] = team.counts[state[PARITY], q]
        n_kept += scratch.end[0, q] - starts[q]
    state[PARITY] = 1 - state[PARITY]
    team.n_rows[0] = n_kept
    has_masks = task.policy.max_leaves <= MASK_LEAVES and rows.codes.wide.shape[0] == 0
    state[ROUTES_EXCLUDED] = I(not has_masks or EXCLUDED_FRACTION * (n_rows - n_kept - FEW_EXCLUDED) <= n_rows)
    return True


@internal
def _quantise_root(growth):
    """Quantise this thread's rows."""
    thread, rows = growth.thread, growth.rows
    scales, team = growth.task.scales, growth.team
    at, n_threads = team.starts[thread], team.starts.size - 1
    n_rows = team.starts[n_threads]
    for first in range(thread * STRIPE, n_rows, n_threads * STRIPE):
        last = first + STRIPE if first + STRIPE < n_rows else n_rows
        piece = row_span(team.records, 0, at, at + last - first)
        quantise(rows.gradient, rows.hessian, rows.sampled, scales, first, last, piece)
        at += last - first


@internal
def _add_up_smaller_child(growth):
    """Add up the histogram of the smaller child; at the root quantise the rows."""
    team, is_root = growth.team, growth.scratch.state[LARGE] < 0
    is_known, quantises = is_root and growth.task.has_root, is_root and growth.rows.marks.size == 0
    if quantises and (team.by_unit or is_known):
        _quantise_root(growth)
        if not _meet(growth):
            return False
        quantises = False
    if is_known:
        return True
    if team.by_unit:
        _add_up_units(growth)
        return True
    _add_up_rows(growth, quantises)
    return _meet(growth)


@internal
def _add_up_units(growth):
    """Add up this thread's units of a wide table: one pass over all rows of the smaller child for each of them."""
    layout, packing = growth.layout, growth.task.packing
    team, scratch = growth.team, growth.scratch
    small, n_threads = scratch.state[SMALL], team.starts.size - 1
    slot, side = scratch.slot[small], scratch.side[small]
    packed, order = team.packed[growth.thread], growth.search.scratch.order
    for unit in range(growth.thread, team.units.size - 1, n_threads):
        columns = (team.units[unit], team.units[unit + 1])
        base = layout.start[columns[0]]
        for word in range(layout.start[columns[1]] - base):
            packed[word] = 0
        pending, flushed = I(0), I(0)
        for q in range(n_threads):
            records = row_span(team.records, side, scratch.begin[small, q], scratch.end[small, q])
            pending, flushed = add_records(
                growth.rows.codes, records, layout, packing, columns, packed, growth.histograms, slot, (pending, flushed), order
            )
        flush(layout, packing, columns, base, packed, growth.histograms, slot, flushed == 0, order)


@internal
def _add_up_rows(growth, quantises):
    """Add this thread's rows of the smaller child to its packed buckets of all columns of a narrow table.

    quantises : whether the rows are quantised first, piece by piece, just before they are added up.
    """
    thread, rows = growth.thread, growth.rows
    layout, task = growth.layout, growth.task
    team, scratch = growth.team, growth.scratch
    small, n_threads = scratch.state[SMALL], team.starts.size - 1
    n_columns, packed = I(layout.first.size - 1), team.packed[thread]
    for word in range(layout.start[n_columns]):
        packed[word] = 0
    # Packed buckets without counts never overflow (`TreeTask.can_stay_packed`), others are flushed into the thread's slot.
    slot, columns = scratch.free.size + thread, (I(0), n_columns)
    pending, flushed = I(0), I(0)
    first, end = thread * STRIPE, scratch.end[small, thread]
    step = I(STRIPE) if quantises else team.starts[n_threads]
    for at in range(scratch.begin[small, thread], end, step):
        n = step if at + step < end else end - at
        records = row_span(team.records, scratch.side[small], at, at + n)
        if quantises:
            quantise(rows.gradient, rows.hessian, rows.sampled, task.scales, first, first + n, records)
            first += n_threads * STRIPE
        pending, flushed = add_records(
            rows.codes, records, layout, task.packing, columns, packed, growth.histograms, slot, (pending, flushed),
            growth.search.scratch.order,
        )  # fmt: skip
    team.flushed[thread] = flushed


@internal
def _reduce_sums(growth):
    """Add up the sums of all threads in a narrow table; of the root also its sums over all rows."""
    layout, task = growth.layout, growth.task
    team, scratch = growth.team, growth.scratch
    histograms, state = growth.histograms, growth.scratch.state
    is_root, slot, n_threads = state[LARGE] < 0, scratch.slot[state[SMALL]], team.starts.size - 1
    if not (team.by_unit or (is_root and task.has_root)):
        columns = _narrow_columns(growth)
        for q in range(n_threads):
            flush(layout, task.packing, columns, I(0), team.packed[q], histograms, slot, q == 0, growth.search.scratch.order)
            if team.flushed[q] != 0:
                add(layout, columns, histograms, slot, scratch.free.size + q)
    if is_root:
        if not _meet(growth):
            return False
        _sum_root(layout, histograms, slot, scratch.total)
        init_root(growth.nodes, scratch.total)
        if histograms.packed is not None:
            if histograms.packed.levels is not None:
                return _meet(growth)  # before a thread drops the codes of the first feature that do not occur
    return True


@internal
def _narrow_columns(growth):
    """Return the columns that this thread reduces and searches in a narrow table."""
    n_columns, n_threads = growth.layout.first.size - 1, growth.team.starts.size - 1
    return n_columns * growth.thread // n_threads, n_columns * (growth.thread + 1) // n_threads


@internal
def _sum_root(layout, histograms, slot, total):
    """Sum a histogram: every row is in exactly one bucket of each feature, so feature 0 gives the sums over all rows."""
    last = layout.offset[1] - 1
    if histograms.by_channel is not None:
        n_channels = histograms.by_channel.shape[1]
        for channel in range(n_channels):
            total[channel] = 0.0
            for b in range(last + 1):
                total[channel] += histograms.by_channel[slot, channel, b]
        if n_channels == 2:
            total[2] = total[1]
    if histograms.packed is not None:
        if histograms.packed.levels is not None:
            if layout.is_categorical[0] != 0:
                _sum_levels(histograms.packed, slot, last, total)
                return
        word = histograms.packed.sums[slot, last]
        total[0], total[1] = np.float64(word >> I(32)), np.float64(word & I(0xFFFFFFFF))
        total[2] = total[1]
        if histograms.packed.counts.size > 0:
            total[2] = np.float64(histograms.packed.counts[slot, last])


@internal
def _sum_levels(packed, slot, last, total):
    """Sum the buckets 0…last of a packed histogram."""
    total[0] = total[1] = total[2] = 0.0
    for b in range(last + 1):
        word = packed.sums[slot, b]
        total[0] += np.float64(word >> I(32))
        total[1] += np.float64(word & I(0xFFFFFFFF))
        if packed.counts.size > 0:
            total[2] += np.float64(packed.counts[slot, b])
    if packed.counts.size == 0:
        total[2] = total[1]


@internal
def _subtract(growth, feature, start, stop):
    """Subtract a feature of the smaller child from that of the parent; list the codes of a categorical one in both children."""
    histograms, slot = growth.histograms, growth.scratch.slot
    small, large = growth.scratch.state[SMALL], growth.scratch.state[LARGE]
    if histograms.packed is not None:
        if histograms.packed.levels is not None:
            if growth.layout.is_categorical[feature] != 0:
                if large >= 0:
                    subtract_levels(histograms.packed, start, feature, slot[large], slot[small])
                else:
                    list_levels(histograms.packed, start, growth.layout.n_bins[feature], feature, slot[small])
                return
    if large >= 0:
        subtract(histograms, slot[large], slot[small], start, stop)


@internal
def _search_children(growth):
    """Subtract the smaller child from the parent, and find the best splits of the two newest nodes."""
    thread, layout, task = growth.thread, growth.layout, growth.task
    team, scratch = growth.team, growth.scratch
    nodes, histograms, state = growth.nodes, growth.histograms, growth.scratch.state
    left = state[LEFT]
    n_threads, slot = team.starts.size - 1, scratch.slot
    clear_split(team.best[thread, 0])
    clear_split(team.best[thread, 1])
    first, last = _narrow_columns(growth)
    first, last = (thread, team.units.size - 1) if team.by_unit else (first, last)
    for unit in range(first, last, n_threads if team.by_unit else I(1)):
        first_column = team.units[unit] if team.by_unit else I(unit)
        last_column = team.units[unit + 1] if team.by_unit else I(unit + 1)
        for k in range(layout.first[first_column], layout.first[last_column]):
            feature = layout.features[k]
            start, stop = layout.offset[feature], layout.offset[feature + 1]
            _subtract(growth, feature, start, stop)
            if not task.allowed[feature]:
                continue
            for child in range(left, state[N_NODES]):
                if not may_be_split(nodes.total[child], growth.search.limits):
                    continue
                if task.constraints is not None:
                    if growth.paths.open[child - left, feature] == 0:
                        continue
                best = team.best[thread, child - left]
                search_feature(histograms, slot[child], start, layout, feature, nodes.total[child], growth.search, best)
    if not _meet(growth):
        return False
    for child in range(left, state[N_NODES]):
        # The best over threads: highest score, then lowest feature.
        chosen = I(0)
        for q in range(1, n_threads):
            best = team.best[q, child - left]
            if beats(best[SCORE], best[FEATURE], team.best[chosen, child - left]):
                chosen = I(q)
        set_best_split(nodes, child, team.best[chosen, child - left], growth.search.limits)
        if nodes.gain[child] <= 0.0:
            _release_slot(scratch, slot[child])
    return True


@internal
def _release_slot(scratch, slot):
    """Make a slot of the histograms unused."""
    scratch.free[scratch.state[N_FREE]] = slot
    scratch.state[N_FREE] += 1


@internal
def _split_leaves(growth):
    """Split leaves until there is one whose children need histograms; LARGE is -1 if there is none.

    (`best` is written again only after the barrier of the next split, when all threads have read it.)
    """
    task, scratch = growth.task, growth.scratch
    nodes, state = growth.nodes, growth.scratch.state
    last_node = 2 * task.policy.max_leaves - 1
    state[LARGE] = I(-1)
    while state[N_NODES] < last_node and state[LARGE] < 0:
        node = select_leaf(nodes, state[N_NODES], task.policy)
        if node < 0:
            break
        left = state[LEFT] = state[N_NODES]
        apply_split(nodes, node, left, growth.search.limits, growth.search.direction)
        state[N_NODES] += 2
        _mark_left(growth, node)
        if not _move_records(growth, node, left):
            return False
        limits, is_open = growth.search.limits, state[N_NODES] < last_node and nodes.depth[left] < task.policy.max_depth
        if is_open and (may_be_split(nodes.total[left], limits) or may_be_split(nodes.total[left + 1], limits)):
            _open_children(growth, node, left)
        else:
            # The children can only be leaves: no histograms are needed and the parent's slot is free.
            _release_slot(scratch, scratch.slot[node])
    return True


@internal
def _mark_left(growth, node):
    """Mark the codes of a split node that go left."""
    layout, scratch = growth.layout, growth.scratch
    nodes, left_codes = growth.nodes, growth.team.left_codes
    feature, goes_left = nodes.feature[node], scratch.goes_left
    at, n_bins = layout.offset[feature], layout.n_bins[feature]
    best, total = nodes.best[node], nodes.total[node]
    mark_codes(growth.histograms, scratch.slot[node], at, layout, best, total, growth.search, goes_left)
    nodes.missing_left[node] = goes_left[n_bins]
    if layout.is_categorical[feature] != 0 and growth.thread == 0:
        for code in range(n_bins + 1):
            left_codes[node, code] = goes_left[code]


@internal
def _move_records(growth, node, left):
    """Move the records of a split node to its children."""
    thread, team = growth.thread, growth.team
    scratch, state = growth.scratch, growth.scratch.state
    begins, ends = scratch.begin, scratch.end
    right, counts = left + 1, team.counts[state[PARITY]]
    counts[thread] = _split_range(growth, node, begins[node, thread], ends[node, thread])
    if not _meet(growth):
        return False
    rows_left = rows_right = I(0)
    for q in range(team.starts.size - 1):
        middle = counts[q]
        begins[left, q], ends[left, q] = begins[node, q], middle
        begins[right, q], ends[right, q] = middle, ends[node, q]
        rows_left += middle - begins[node, q]
        rows_right += ends[node, q] - middle
    state[PARITY] = 1 - state[PARITY]
    scratch.side[left] = scratch.side[right] = 1 - scratch.side[node]
    team.n_rows[left], team.n_rows[right] = rows_left, rows_right
    if state[ROUTES_EXCLUDED] != 0:
        excluded = scratch.excluded
        middle = _split_range(growth, node, excluded[node, 0], excluded[node, 1])
        excluded[left, 0], excluded[left, 1] = excluded[node, 0], middle
        excluded[right, 0], excluded[right, 1] = middle, excluded[node, 1]
    return True


@internal
def _split_range(growth, node, begin, end):
    """Move records begin…end-1 to the other buffer, left ones first; return where the right ones begin."""
    rows, scratch, side = growth.rows, growth.scratch, growth.scratch.side[node]
    row = rows.row_of[growth.nodes.feature[node]]
    source, target = row_span(growth.team.records, side, begin, end), row_span(growth.team.records, 1 - side, begin, end)
    if row < 0:
        return begin + split_records(rows.codes.wide[-1 - row], scratch.goes_left, source, target)
    return begin + split_records(rows.narrow[row], scratch.goes_left, source, target)


@internal
def _open_children(growth, node, left):
    """Give slots to the children of a split node: the smaller one a new one, the larger one its parent's."""
    task, scratch = growth.task, growth.scratch
    state, n_rows = growth.scratch.state, growth.team.n_rows
    right = left + 1
    small, large = (left, right) if n_rows[left] <= n_rows[right] else (right, left)
    scratch.slot[large] = scratch.slot[node]
    state[N_FREE] -= 1
    scratch.slot[small] = scratch.free[state[N_FREE]]
    state[SMALL], state[LARGE] = small, large
    _list_codes_of(growth, scratch.slot[node])
    if task.constraints is not None:
        for side in range(2):
            extend_path(task.constraints, growth.paths, node, growth.nodes.feature[node], left + side, side)
            mark_allowed_features(task.constraints, task.allowed, growth.paths, left + side, side)


@internal
def _number_leaves(growth):
    """Number the leaves from left to right, write the leaf of each of this thread's rows, and add up its leaves."""
    thread, rows, team = growth.thread, growth.rows, growth.team
    scratch, scales = growth.scratch, growth.task.scales
    stack, leaf_sums = scratch.stack, scratch.leaf_sums
    # If excluded rows are assigned to leaves afterwards, so are all others.
    routes_excluded = scratch.state[ROUTES_EXCLUDED] != 0
    labels_rows = routes_excluded or rows.marks.size == 0
    stack[0] = 0
    height, n_leaves = I(1), I(0)
    while height > 0:
        height -= 1
        node = stack[height]
        child = growth.nodes.child[node]
        if child >= 0:
            stack[height] = child + 1
            stack[height + 1] = child
            height += 2
            continue
        team.leaf_of[node] = n_leaves
        side = scratch.side[node]
        records = row_span(team.records, side, scratch.begin[node, thread], scratch.end[node, thread])
        if labels_rows:
            label_rows(records, rows.leaf, n_leaves)
        leaf_sums[n_leaves, 0] = leaf_sums[n_leaves, 1] = 0.0
        add_leaf(records, rows.gradient, rows.hessian, rows.codes.repeat_count, scales[2], scales[3], leaf_sums, n_leaves)
        if routes_excluded:
            excluded = scratch.excluded
            label_rows(row_span(team.records, side, excluded[node, 0], excluded[node, 1]), rows.leaf, n_leaves)
        n_leaves += 1
