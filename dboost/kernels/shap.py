"""Shapley values of trees, as an integral that a few points evaluate exactly.

A leaf with value v contributes v · Π_j o_j for a row: the product runs over the features on its path, and o_j is 1 when the row
satisfies all of the path's conditions on feature j, else 0. When feature j is unknown, o_j is replaced by z_j: the share of
training rows that satisfy them, or the value of o_j for a background row. A game in which features become known one after
another in random order therefore has the multilinear extension

    v(t) = v · Π_j ( (1 - t) z_j + t o_j ),       t the probability that a feature is known,

and feature j's Shapley value is (Owen, 1972) the integral of its part of the derivative,

    φ_j = v ∫_0^1 (o_j - z_j) Π_{i ≠ j} ( (1 - t) z_i + t o_i ) dt.

With m features on the path the integrand is a polynomial of degree m - 1, so Gauss-Legendre quadrature with ⌈m / 2⌉ points
gives its integral up to rounding: no recursion over subsets, no coefficients to extend and unwind, and no cancellation. The
product without feature j is the whole product P divided by j's factor f; since o is 0 or 1, (o - z) / f has two values,
-1 / (1 - t) and (1 - z) / ((1 - t) z + t), both of which are bounded. The interaction of two features (Grabisch and Roubens,
1999) is the same integral with two factors (o - z) / f, of degree m - 2.

**Edges.** All leaves of a tree can be evaluated at the same points, as many as the longest path needs. Then the leaves below an
edge share its factors: `attribute` and `interact` multiply the factors from the root to the leaves, edge by edge, and add up
the integrands P of the leaves on the way back. With w_e = (o - z) / f of the feature's part of the path that ends with edge e,
feature j's part is the sum of P · w_e over leaves, where e is the last edge on j above the leaf; that is the sum over all edges
on j of (w_e - w_a) times the sum of P below e, where a is the edge above e on the same feature (w_a = 0 if there is none).
For pairs, w of every other feature above the edge is one more factor. So the work grows with the number of edges, not with the
number of elements of all paths.

**Paths.** z of background rows differs from leaf to leaf, since equal decisions are merged for each path (see
`inspection.shapley`). `attribute_paths` and `interact_paths` evaluate each path by itself.

The kernels process 64 rows side by side: whether a row follows an edge is a number, 1.0 or 0.0, computed once per split (an
edge below another split on the same feature is only followed if that one is), and all else are multiplications and additions of
64 numbers. Rows are independent of each other, so neither blocks nor threads change a bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import inlined, kernel
from dboost.kernels.simd import LANES

U32 = np.uint32


class Forest(NamedTuple):
    """Trees as the kernels read them. Those of edges use `edges` and `others`, those of paths `paths` and `elements`.

    Edges 2 i and 2 i + 1 of a tree lead left and right from its i-th split; parents come before children. Number `n_edges`, one
    more than any edge of a tree, stands for "none": an edge that every row follows, with z = 1.

    Attributes
    ----------
    columns : int64[n_used]
        Columns of the matrix that splits test; "place" below is a position in this array.
    n_levels : int64[n_used]
        Numbers of categories of categorical columns, -1 for numeric ones.
    trees : (first_split, last_split, first_path, last_path, first_point, last_point) [n_trees]
    splits : (threshold, place, missing_left, word, above, above_share, into, first_other, last_other) [n_splits]
        For categorical splits, the position of the set of left-going codes in `sets`; the edge above on the same feature, and
        its z; the edge that leads to the split; a range of `others`.
    edges : (fraction, share, value) [2 n_splits]
        The fraction of training rows at the split that follow the edge; z, the product of these fractions of the feature on the
        path; the value of the leaf to which the edge leads, or 1.
    others : (edge, place, share) [...]
        For the pairs of a split's feature: the last edges of all other features above the split, and z.
    paths : (first, last, first_point, value) [n_paths]
        Elements; the first of the points for their number; the leaf's value, or a part of it.
    elements : (edge, place, share) [n_elements]
        The last edge of the path on the feature in that place, and z.
    sets : uint32[...]
        Bits of the codes that go left; the bit after the last code is for missing values.
    points : (t, weight) [...]
    n_edges : int64
        The largest number of edges of a tree.
    """

    columns: np.ndarray
    n_levels: np.ndarray
    trees: np.ndarray
    splits: np.ndarray
    edges: np.ndarray
    others: np.ndarray
    paths: np.ndarray
    elements: np.ndarray
    sets: np.ndarray
    points: np.ndarray
    n_edges: int


TREE = np.dtype(
    [(name, np.int64) for name in ("first_split", "last_split", "first_path", "last_path", "first_point", "last_point")]
)
SPLIT = np.dtype(
    [
        ("threshold", np.float64), ("place", np.int64), ("missing_left", np.int64), ("word", np.int64),
        ("above", np.int64), ("above_share", np.float64), ("into", np.int64),
        ("first_other", np.int64), ("last_other", np.int64),
    ]
)  # fmt: skip
EDGE = np.dtype([("fraction", np.float64), ("share", np.float64), ("value", np.float64)])
PATH = np.dtype([("first", np.int64), ("last", np.int64), ("first_point", np.int64), ("value", np.float64)])
ELEMENT = OTHER = np.dtype([("edge", np.int64), ("place", np.int64), ("share", np.float64)])
POINT = np.dtype([("t", np.float64), ("weight", np.float64)])


class Scratch(NamedTuple):
    """Numbers of `LANES` rows, side by side."""

    block: np.ndarray  # float64[n_used * LANES]: the values of the features
    followed: np.ndarray  # float64[(n_edges + 1) * LANES]: whether a row follows an edge; "none" is followed by all
    product: np.ndarray  # float64[(n_edges + 1) * LANES]: products of factors, by edge; paths use the first LANES
    part: np.ndarray  # float64[LANES]
    total: np.ndarray  # float64[n_outputs * n_used * LANES], or n_used² for pairs: the values of the rows


def new_scratch(forest: Forest, n_totals: int) -> Scratch:
    """Return scratch for one call. n_totals : number of values for each row."""
    n_edges, n_used = (forest.n_edges + 1) * LANES, len(forest.columns) * LANES
    return Scratch(np.zeros(n_used), np.ones(n_edges), np.zeros(n_edges), np.zeros(LANES), np.zeros(n_totals * LANES))


@kernel
def attribute(forest, matrix, rows, values, scratch):
    """Compute the Shapley values of some rows.

    Parameters
    ----------
    forest : Forest
    matrix : float32 or float64 [n, p], C-contiguous
    rows : (first, last)
    values : float64[n, n_used, n_outputs]
        Receives the values; tree t belongs to output t modulo n_outputs.
    scratch : Scratch
    """
    columns, n_levels, trees, splits, sets = forest.columns, forest.n_levels, forest.trees, forest.splits, forest.sets
    edges, points, n_edges = forest.edges, forest.points, forest.n_edges
    n_used, n_outputs = columns.size, values.shape[2]
    block, followed, product, total = scratch.block, scratch.followed, scratch.product, scratch.total
    for row in range(rows[0], rows[1], LANES):
        n_rows = min(LANES, rows[1] - row)
        _load(matrix, row, n_rows, columns, block)
        for i in range(total.size):
            total[i] = 0.0
        for t in range(trees.size):
            tree = trees[t]
            _follow(splits, tree.first_split, tree.last_split, n_levels, sets, block, followed)
            of_output = (t % n_outputs) * n_used
            for k in range(tree.first_point, tree.last_point):
                point = points[k]
                _descend(tree, splits, edges, point, n_edges, followed, product)
                for i in range(tree.last_split - 1, tree.first_split - 1, -1):
                    split = splits[i]
                    start = (of_output + split.place) * LANES
                    _ascend(
                        i - tree.first_split,
                        split,
                        edges[2 * i],
                        edges[2 * i + 1],
                        point,
                        followed,
                        product,
                        total[start : start + LANES],
                    )
        for r in range(n_rows):
            for j in range(n_used):
                for k in range(n_outputs):
                    values[row + r, j, k] = total[(k * n_used + j) * LANES + r]


@kernel
def interact(forest, matrix, rows, values, scratch):
    """Compute the Shapley interaction values of some rows, the full value for each pair.

    Parameters as of `attribute`, but values : float64[n, n_used, n_used, n_outputs], which receives the pairs; the diagonal is
    left at zero.
    """
    columns, n_levels, trees, splits, sets = forest.columns, forest.n_levels, forest.trees, forest.splits, forest.sets
    edges, others, points, n_edges = forest.edges, forest.others, forest.points, forest.n_edges
    n_used, n_outputs = columns.size, values.shape[3]
    block, followed, product, total, part = scratch.block, scratch.followed, scratch.product, scratch.total, scratch.part
    for row in range(rows[0], rows[1], LANES):
        n_rows = min(LANES, rows[1] - row)
        _load(matrix, row, n_rows, columns, block)
        for i in range(total.size):
            total[i] = 0.0
        for t in range(trees.size):
            tree = trees[t]
            _follow(splits, tree.first_split, tree.last_split, n_levels, sets, block, followed)
            of_output = (t % n_outputs) * n_used * n_used
            for k in range(tree.first_point, tree.last_point):
                point = points[k]
                unknown = -1.0 / (1.0 - point.t)
                _descend(tree, splits, edges, point, n_edges, followed, product)
                for i in range(tree.last_split - 1, tree.first_split - 1, -1):
                    split = splits[i]
                    for r in range(LANES):
                        part[r] = 0.0
                    _ascend(i - tree.first_split, split, edges[2 * i], edges[2 * i + 1], point, followed, product, part)
                    for e in range(split.first_other, split.last_other):
                        element = others[e]
                        more = _more(element.share, point.t)
                        o = followed[element.edge * LANES : element.edge * LANES + LANES]
                        low, high = min(split.place, element.place), max(split.place, element.place)
                        start = (of_output + low * n_used + high) * LANES
                        sums = total[start : start + LANES]
                        for r in range(LANES):
                            sums[r] += part[r] * (unknown + more * o[r])
        _write_pairs(total, n_used, n_outputs, row, n_rows, values)


@inlined
def _descend(tree, splits, edges, point, n_edges, followed, product):
    """Compute for every edge of a tree the weighted product of the factors down to it; at a leaf, times the leaf's value.

    The factor of a feature with several edges replaces that of the edge above: the quotient of both is the fraction of the
    split where a row does not follow the edge above.
    """
    t = point.t
    root = product[n_edges * LANES : n_edges * LANES + LANES]
    for r in range(LANES):
        root[r] = point.weight
    for i in range(tree.first_split, tree.last_split):
        split, left, right = splits[i], edges[2 * i], edges[2 * i + 1]
        inverse = 1.0 / ((1.0 - t) * split.above_share + t)
        left_base, right_base = left.value * left.fraction, right.value * right.fraction
        left_more = left.value * ((1.0 - t) * left.share * inverse - left.fraction)
        right_more = right.value * ((1.0 - t) * right.share * inverse - right.fraction)
        left_known, right_known = left.value * t * inverse, right.value * t * inverse
        edge = 2 * (i - tree.first_split) * LANES
        o_left, o_above = followed[edge : edge + LANES], followed[split.above * LANES : split.above * LANES + LANES]
        to_left, to_right = product[edge : edge + LANES], product[edge + LANES : edge + 2 * LANES]
        before = product[split.into * LANES : split.into * LANES + LANES]
        for r in range(LANES):
            p, above, o = before[r], o_above[r], o_left[r]
            to_left[r] = p * (left_base + left_more * above + left_known * o)
            to_right[r] = p * (right_base + right_more * above + right_known * (above - o))


@inlined
def _more(share, t):
    """Return w of a row that follows an edge minus w of one that does not."""
    return (1.0 - share) / ((1.0 - t) * share + t) + 1.0 / (1.0 - t)


@inlined
def _ascend(number, split, left, right, point, followed, product, sums):
    """Add a split's part of the integral to `sums`, and the products below it to that of the edge that leads to it.

    number : of the split in its tree, whose later splits have been processed.
    """
    t = point.t
    left_more, right_more, above_more = _more(left.share, t), _more(right.share, t), _more(split.above_share, t)
    edge = 2 * number * LANES
    o_left, o_above = followed[edge : edge + LANES], followed[split.above * LANES : split.above * LANES + LANES]
    of_left, of_right = product[edge : edge + LANES], product[edge + LANES : edge + 2 * LANES]
    into = product[split.into * LANES : split.into * LANES + LANES]
    for r in range(LANES):
        p, q, above, o = of_left[r], of_right[r], o_above[r], o_left[r]
        into[r] = p + q
        sums[r] += p * (left_more * o - above_more * above) + q * (right_more * (above - o) - above_more * above)


@kernel
def attribute_paths(forest, matrix, rows, values, scratch):
    """Compute the Shapley values of some rows path by path; parameters as of `attribute`."""
    columns, n_levels, trees, splits, sets = forest.columns, forest.n_levels, forest.trees, forest.splits, forest.sets
    paths, elements, points = forest.paths, forest.elements, forest.points
    n_used, n_outputs = columns.size, values.shape[2]
    block, followed, product, total = scratch.block, scratch.followed, scratch.product, scratch.total
    for row in range(rows[0], rows[1], LANES):
        n_rows = min(LANES, rows[1] - row)
        _load(matrix, row, n_rows, columns, block)
        for i in range(total.size):
            total[i] = 0.0
        for t in range(trees.size):
            tree = trees[t]
            _follow(splits, tree.first_split, tree.last_split, n_levels, sets, block, followed)
            of_output = (t % n_outputs) * n_used
            for p in range(tree.first_path, tree.last_path):
                path = paths[p]
                for k in range((path.last - path.first + 1) // 2):
                    point = points[path.first_point + k]
                    _multiply(path, point, elements, followed, product)
                    unknown = -1.0 / (1.0 - point.t)
                    for e in range(path.first, path.last):
                        element = elements[e]
                        z = element.share
                        more = (1.0 - z) / ((1.0 - point.t) * z + point.t) - unknown
                        o = followed[element.edge * LANES : element.edge * LANES + LANES]
                        start = (of_output + element.place) * LANES
                        sums = total[start : start + LANES]
                        for r in range(LANES):
                            sums[r] += product[r] * (unknown + more * o[r])
        for r in range(n_rows):
            for j in range(n_used):
                for k in range(n_outputs):
                    values[row + r, j, k] = total[(k * n_used + j) * LANES + r]


@kernel
def interact_paths(forest, matrix, rows, values, scratch):
    """Compute the Shapley interaction values of some rows path by path; parameters as of `interact`."""
    columns, n_levels, trees, splits, sets = forest.columns, forest.n_levels, forest.trees, forest.splits, forest.sets
    paths, elements, points = forest.paths, forest.elements, forest.points
    n_used, n_outputs = columns.size, values.shape[3]
    block, followed, product, total = scratch.block, scratch.followed, scratch.product, scratch.total
    first_factor = scratch.part
    for row in range(rows[0], rows[1], LANES):
        n_rows = min(LANES, rows[1] - row)
        _load(matrix, row, n_rows, columns, block)
        for i in range(total.size):
            total[i] = 0.0
        for t in range(trees.size):
            tree = trees[t]
            _follow(splits, tree.first_split, tree.last_split, n_levels, sets, block, followed)
            of_output = (t % n_outputs) * n_used * n_used
            for p in range(tree.first_path, tree.last_path):
                path = paths[p]
                for k in range((path.last - path.first + 1) // 2):
                    point = points[path.first_point + k]
                    _multiply(path, point, elements, followed, product)
                    unknown = -1.0 / (1.0 - point.t)
                    for e in range(path.first, path.last):
                        element = elements[e]
                        more = (1.0 - element.share) / ((1.0 - point.t) * element.share + point.t) - unknown
                        o = followed[element.edge * LANES : element.edge * LANES + LANES]
                        for r in range(LANES):
                            first_factor[r] = product[r] * (unknown + more * o[r])
                        for f in range(e + 1, path.last):
                            opposite = elements[f]
                            more = (1.0 - opposite.share) / ((1.0 - point.t) * opposite.share + point.t) - unknown
                            o = followed[opposite.edge * LANES : opposite.edge * LANES + LANES]
                            low, high = min(element.place, opposite.place), max(element.place, opposite.place)
                            start = (of_output + low * n_used + high) * LANES
                            sums = total[start : start + LANES]
                            for r in range(LANES):
                                sums[r] += first_factor[r] * (unknown + more * o[r])
        _write_pairs(total, n_used, n_outputs, row, n_rows, values)


@inlined
def _load(matrix, row, n_rows, columns, block):
    """Load the values of the rows, those of a column next to each other."""
    for r in range(n_rows):
        for j in range(columns.size):
            block[j * LANES + r] = matrix[row + r, columns[j]]


@inlined
def _follow(splits, first, last, n_levels, sets, block, followed):
    """Set for every edge of a tree 1.0 in the lanes whose rows follow it and all edges above on its feature, else 0.0."""
    for i in range(first, last):
        split = splits[i]
        x = block[split.place * LANES : split.place * LANES + LANES]
        edge = 2 * (i - first) * LANES
        left, right = followed[edge : edge + LANES], followed[edge + LANES : edge + 2 * LANES]
        limit = n_levels[split.place]
        if limit < 0:
            threshold, missing = split.threshold, np.float64(split.missing_left)
            for r in range(LANES):
                present = 1.0 if x[r] <= threshold else 0.0
                left[r] = missing if x[r] != x[r] else present
        else:
            for r in range(LANES):
                code = np.int64(x[r]) if (x[r] >= 0) & (x[r] < limit) else limit
                left[r] = np.float64((sets[split.word + (code >> 5)] >> U32(code & 31)) & U32(1))
        above = followed[split.above * LANES : split.above * LANES + LANES]
        for r in range(LANES):
            left[r] *= above[r]
            right[r] = above[r] - left[r]


@inlined
def _write_pairs(total, n_used, n_outputs, row, n_rows, values):
    """Write the sums of the pairs of a block of rows."""
    for r in range(n_rows):
        for i in range(n_used):
            for j in range(i + 1, n_used):
                for k in range(n_outputs):
                    value = total[((k * n_used + i) * n_used + j) * LANES + r]
                    values[row + r, i, j, k] = value
                    values[row + r, j, i, k] = value


@inlined
def _multiply(path, point, elements, followed, product):
    """Compute the weighted integrand of a path at one point, with all factors."""
    start = point.weight * path.value
    for r in range(LANES):
        product[r] = start
    for e in range(path.first, path.last):
        element = elements[e]
        base, t = (1.0 - point.t) * element.share, point.t
        o = followed[element.edge * LANES : element.edge * LANES + LANES]
        for r in range(LANES):
            product[r] *= base + t * o[r]
