"""Split candidates of features, and the bins between them.

**Candidates.** The split candidates of a numeric feature are quantiles of a row sample. Whether a row is sampled depends only
on a hash of (seed, global row number), not on partitions; tables of up to `Tuning.bin_sample_rows` rows are not sampled. With
few distinct values every value gets a bin. With many, bins end at weighted quantiles by the inverted distribution function.
Values that outweigh a bin get their own bin, and the remaining bins are quantiles of the other values. Rows of weight zero are
ignored, and a row of weight two counts as two rows. A strictly monotonic transformation of a feature leaves the sampled rows
in their bins.

A candidate is the midpoint of the last value of its bin and the first one of the next bin, not one of these values: a value
that is rounded, to float32 or to some decimals, stays on its side. Values between two sampled ones may occur in the other rows.
If values lie on a grid, such as whole numbers or cents, the midpoint may be such a value: then the candidate is half a step of
the grid above it (`between`).

**Codes.** Bin b contains the values in (edge[b-1], edge[b]]; missing values have the code after the last bin. The categories of
a categorical feature are bins already.

The rank error of candidates from n sampled rows is at most 1.36 / sqrt(n) with 95 % probability. That is 0.3 % for the default
sample, less than the width of a bin, 1 / 255 (see `rows.bin_proposal`, also for bins that are proposed several times). If
every distinct value is a candidate, all rows are used instead of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dboost.errors import DataError
from dboost.kernels.bins import PADDED_EDGES
from dboost.kernels.rows import select_rows
from dboost.schema import Feature
from dboost.tuning import tuning

#: For fewer values, starting other threads takes longer than the work.
FEW = 400_000
#: Maximum number of bins with 16-bit codes, one code being "missing".
MAX_FINE_BINS = 65_535


@dataclass(frozen=True, eq=False)
class Binning:
    """The bin edges of each feature: `edges[f]` is ascending float64, or None for a categorical feature."""

    features: tuple[Feature, ...]
    edges: tuple[np.ndarray | None, ...]

    @cached_property
    def n_bins(self) -> np.ndarray:
        """Number of bins (or categories) of each feature without that for missing values: int64[n_features]."""
        counts = [
            len(feature.categories) if feature.categories is not None else len(edge) + 1  # type: ignore[arg-type]
            for feature, edge in zip(self.features, self.edges, strict=True)
        ]
        return np.array(counts, np.int64)

    @cached_property
    def is_categorical(self) -> np.ndarray:
        """bool[n_features]"""
        return np.array([feature.is_categorical for feature in self.features])

    def equals(self, other: Binning) -> bool:
        """Whether another binning has the same features and edges."""
        pairs = zip(self.edges, other.edges, strict=True)
        return self.features == other.features and all(
            mine is its if mine is None or its is None else np.array_equal(mine, its) for mine, its in pairs
        )


def sample_rows(n_rows: int, seed: int, first: int = 0, last: int | None = None, size: int | None = None) -> np.ndarray:
    """Return the sampled rows among first…last-1, ascending int64: a function of seed and row number.

    size : approximate number of sampled rows out of all `n_rows`; default `Tuning.bin_sample_rows`.
    """
    size = tuning().bin_sample_rows if size is None else size
    last = n_rows if last is None else last
    if n_rows <= size:
        return np.arange(first, last)
    most = size + size // 8 + 32
    chosen = np.empty(min(most, last - first), np.int64)
    threshold = np.uint64(int(size / n_rows * 2.0**64))
    n = select_rows(np.uint64(seed), first, last - first, threshold, chosen)
    return chosen[: min(n, len(chosen))]


def columns_at_once(n_rows: int, n_bytes: int | None) -> int:
    """Return the number of columns, at least 1, whose sampled values (which exist twice) fit in n_bytes; None: no limit."""
    n_bytes, size = tuning().sampled_bytes if n_bytes is None else n_bytes, tuning().bin_sample_rows
    return max(n_bytes // (16 * min(n_rows, size + size // 8) or 1), 1)


def propose(values: np.ndarray, weight: np.ndarray | None, max_bins: int) -> np.ndarray:
    """Return the split candidates of one numeric feature from sampled values (NaN for missing).

    Returns
    -------
    float64[n_edges], strictly ascending, at most max_bins - 1.
    """
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        # Integers beyond 2**53 that become the same float are one value: thresholds cannot distinguish them.
        values = values.astype(np.float64)
    if weight is None:
        return propose_sorted(without_missing(np.sort(values)), None, max_bins)
    order = np.argsort(values, kind="stable")
    ordered = without_missing(values[order])
    return propose_sorted(ordered, weight[order[: len(ordered)]], max_bins)


def without_missing(ordered: np.ndarray) -> np.ndarray:
    """Return sorted numbers without NaN, which are the last ones."""
    if not len(ordered) or ordered[-1] == ordered[-1]:
        return ordered
    return ordered[: np.searchsorted(ordered, ordered[-1])]


def propose_sorted(ordered: np.ndarray, weight: np.ndarray | None, max_bins: int) -> np.ndarray:
    """Return the result of `propose` for numbers that are ascending, without NaN. weight : of each."""
    last = _ends(ordered)
    distinct = ordered[last].astype(np.float64)
    distinct += 0.0  # -0.0 becomes 0.0: a sort leaves their order undefined
    if len(distinct) <= max_bins:
        return between(distinct)
    positions = quantiles_of_counts(last, max_bins) if weight is None else quantile_positions(np.cumsum(weight)[last], max_bins)
    return between(distinct, positions)


#: Differences that are multiples of the step to this fraction of it are on a grid: cents of a million differ by 0.01 ± 1e-10.
_GRID_TOLERANCE = 1e-3


def between(distinct: np.ndarray, positions: np.ndarray | None = None) -> np.ndarray:
    """Return a split candidate between each value and its upper neighbor; it is never rounded up to the upper one.

    The least difference of two neighbors is taken for the step of a grid; a midpoint on the grid is moved up by half a step.
    Between two float32 numbers the candidate is the nearest float32 if that is not near one of them: models of float32 features
    can then be exported without rounding thresholds.

    distinct : float64[n], ascending; positions : of the values below the candidates, default all but the last one.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # of huge numbers
        gaps = distinct[1:] - distinct[:-1]
        step = gaps.min(initial=np.inf)
        positions = np.arange(len(gaps)) if positions is None else positions
        lower, upper, gaps = distinct[positions], distinct[positions + 1], gaps[positions]
        middle = lower / 2 + upper / 2
        middle = np.where(middle >= upper, lower, np.maximum(middle, lower))
        steps, moved = gaps / step, middle + step / 2
        nearest = np.rint(steps)
        is_on_grid = (nearest % 2 == 0) & (np.abs(steps - nearest) < _GRID_TOLERANCE) & (middle < moved) & (moved < upper)
        edges = np.where(is_on_grid, moved, middle)
        single = edges.astype(np.float32).astype(np.float64)
        is_single = (lower.astype(np.float32) == lower) & (upper.astype(np.float32) == upper)
        return np.where(is_single, np.where(np.abs(single - edges) < gaps / 4, single, middle), edges)


def quantile_positions(cumulative: np.ndarray, max_bins: int) -> np.ndarray:
    """Return the positions of quantiles of a weighted distribution, with separate bins for heavy values.

    cumulative : float64[n], the total weight up to and including each of some ascending values. Returns int64[n_edges],
    strictly ascending: the last value of each bin but the last bin.
    """
    mass = light = cumulative.copy()
    mass[1:] -= cumulative[:-1]
    heavy, n_heavy, running = np.zeros(len(mass), bool), 0, cumulative
    while True:
        # A heavy value takes two split candidates; the others are quantiles of the remaining values.
        n_light = max_bins - 2 * n_heavy
        more = light > 2.0 * (light.sum() / max(n_light, 1))
        n_more = int(np.count_nonzero(more))
        if n_light <= 2 or not n_more or 2 * (n_heavy + n_more) > max_bins - 2:
            break
        heavy |= more
        n_heavy += n_more
        light = np.where(heavy, 0.0, mass)
        running = np.cumsum(light)
    wanted = running[-1] * np.arange(1, max(n_light, 1)) / max(n_light, 1)
    at = np.searchsorted(running, wanted, side="left")
    heavy_positions = np.flatnonzero(heavy)
    # No value is above the largest one: a candidate there moves to its neighbor.
    positions = np.sort(
        np.minimum(np.concatenate((at, heavy_positions, heavy_positions[heavy_positions > 0] - 1)), len(mass) - 2)
    )
    return positions[_ends(positions)][: max_bins - 1]


def quantiles_of_counts(last: np.ndarray, max_bins: int) -> np.ndarray:
    """Return the positions of `quantile_positions` for rows without weights: int64[n_edges].

    last : int64[n], the position of the last row of each distinct value, ascending.
    """
    n_rows = int(last[-1]) + 1
    if n_rows - len(last) + 1 > 2.0 * (n_rows / max(max_bins, 1)):  # a value may be heavy
        return quantile_positions((last + 1).astype(np.float64), max_bins)
    wanted = np.ceil(float(n_rows) * np.arange(1, max(max_bins, 1)) / max(max_bins, 1)).astype(np.int64)
    positions = np.minimum(np.searchsorted(last, wanted - 1, side="left"), len(last) - 2)
    return positions[_ends(positions)]


def _ends(ordered: np.ndarray) -> np.ndarray:
    """Return the last position of each run of equal numbers, int64."""
    is_end = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_end[:-1])
    return is_end.nonzero()[0]


def propose_all(
    columns: Sequence[np.ndarray | None], weight: np.ndarray | None, max_bins: int, n_threads: int
) -> tuple[np.ndarray | None, ...]:
    """Return the split candidates of all features; None for columns that are None (categorical)."""
    if n_threads == 1 or sum(0 if column is None else len(column) for column in columns) < FEW:
        return tuple(None if column is None else propose(column, weight, max_bins) for column in columns)
    with ThreadPoolExecutor(n_threads) as pool:
        return tuple(pool.map(lambda column: None if column is None else propose(column, weight, max_bins), columns))


#: The sampled values of some numeric columns, and the weights of these rows (None: all are 1), by partition.
ColumnSamples = dict[int, tuple[list[np.ndarray], np.ndarray | None]]


def propose_together(samples: Sequence[ColumnSamples], max_bins: int, n_threads: int) -> list[np.ndarray]:
    """Return the split candidates of each column. samples : of the sessions, each of other partitions."""
    by_partition = {i: values for sample in samples for i, values in sample.items()}
    ordered = [by_partition[i] for i in sorted(by_partition)]
    weights = [weight for _, weight in ordered]
    known = [weight for weight in weights if weight is not None]
    weight = np.concatenate(known) if len(known) == len(weights) and known else None
    values = [partition_values for partition_values, _ in ordered]
    columns = [np.concatenate(column) if len(column) > 1 else column[0] for column in zip(*values, strict=True)]
    return [edges for edges in propose_all(columns, weight, max_bins, n_threads) if edges is not None]


def distinct_values(column: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the distinct finite values of a column united with known ones, ascending float64, at most MAX_FINE_BINS + 1."""
    values = np.unique(column[np.isfinite(column)]).astype(np.float64)
    values += 0.0  # -0.0 becomes 0.0
    return np.union1d(known, values)[: MAX_FINE_BINS + 1]


def exact_binning(features: tuple[Feature, ...], distinct: Sequence[np.ndarray]) -> Binning:
    """Return a binning with one bin for each distinct value.

    distinct : for each numeric feature the values that occur, ascending float64.

    Raises
    ------
    DataError
        If a column has too many distinct values.
    """
    remaining = iter(distinct)
    edges: list[np.ndarray | None] = []
    for feature in features:
        values = None if feature.is_categorical else next(remaining)
        if values is not None and len(values) > MAX_FINE_BINS:
            raise DataError(
                f"column {feature.name!r} has more than {MAX_FINE_BINS:,} distinct values, too many for "
                "split_proposal='exact'; 'node' proposes finer bins where they matter"
            )
        edges.append(None if values is None else between(values))
    return Binning(features, tuple(edges))


def padded_edges(edges: Sequence[np.ndarray | None], dtype: np.dtype) -> np.ndarray:
    """Return edges as an array for kernels: [n_features, 255], padded with infinity; float32 is rounded down.

    Rows of features with more edges are all infinity.
    """
    padded = np.full((len(edges), PADDED_EDGES), np.inf)
    for row, edge in zip(padded, edges, strict=True):
        if edge is not None and len(edge) < PADDED_EDGES:
            row[: len(edge)] = edge
    return round_down(padded, dtype)


def round_down(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return for each float64 value the largest number of a dtype that is not above it; NaN stays NaN."""
    with np.errstate(over="ignore"):
        rounded = values.astype(dtype)
        return np.where(rounded > values, np.nextafter(rounded, np.array(-np.inf, dtype)), rounded).astype(dtype)
