"""Proposing split points, and turning values into codes.

**Proposals.** The candidates of a numeric feature are quantiles of a row sample. Whether a row is in the sample depends on
a hash of (seed, global row number) only, never on partitions; tables of up to `SAMPLE_ROWS` rows are their own sample. With
few distinct values every one gets a bin, and the split points lie half-way between neighbours. With many, split points
are weighted quantiles by the inverted distribution function, i.e. values that occur: so a strictly monotone transformation
of a feature moves the split points along with the rows. Values that alone outweigh a bin get a bin of their own, and the
quantiles share what is left. Rows of weight zero take no part, and a row of weight two counts like two rows.

**Codes.** Bin b holds the values in (edge[b-1], edge[b]]; missing values have the code after the last bin. Levels of a
categorical feature are their own codes.

The rank error of a proposal from n sampled rows is at most 1.36 / sqrt(n) with 95 % probability, 0.3 % for the default sample:
below the width of a bin, 1 / 255 (see `trees.bin_proposal`, also for bins that are proposed more often than once). Where every
distinct value is to be a candidate, all rows are looked at, not a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dboost.errors import DataError
from dboost.kernels.bins import PADDED_EDGES
from dboost.kernels.rows import select_rows
from dboost.schema import Feature

#: Rows that quantiles are taken from.
SAMPLE_ROWS = 200_000
#: So few values take less time than handing them to other threads.
FEW = 400_000
#: Bins that two bytes can tell apart, beside "missing".
MAX_FINE_BINS = 65_535


@dataclass(frozen=True, eq=False)
class Binning:
    """Where each feature is cut: `edges[f]` ascending float64, None for a categorical feature."""

    features: tuple[Feature, ...]
    edges: tuple[np.ndarray | None, ...]

    @property
    def n_bins(self) -> np.ndarray:
        """Bins (or levels) of each feature without the one for missing values: int64[n_features]."""
        counts = [
            len(feature.levels) if feature.levels is not None else len(edge) + 1  # type: ignore[arg-type]
            for feature, edge in zip(self.features, self.edges, strict=True)
        ]
        return np.array(counts, np.int64)

    @property
    def is_categorical(self) -> np.ndarray:
        return np.array([feature.is_categorical for feature in self.features])


def sample_rows(n_rows: int, seed: int, first: int = 0, last: int | None = None, size: int | None = None) -> np.ndarray:
    """Numbers of the sampled rows, ascending (int64), out of first…last-1: a function of seed and row number.

    size : how many there are of all `n_rows`, about; default: `SAMPLE_ROWS`.
    """
    size = SAMPLE_ROWS if size is None else size
    last = n_rows if last is None else last
    if n_rows <= size:
        return np.arange(first, last)
    room = size + size // 8 + 32
    chosen = np.empty(min(room, last - first), np.int64)
    threshold = np.uint64(int(size / n_rows * 2.0**64))
    n = select_rows(np.uint64(seed), first, last - first, threshold, chosen)
    return chosen[: min(n, len(chosen))]


def propose(values: np.ndarray, weight: np.ndarray | None, max_bins: int) -> np.ndarray:
    """Split points of one numeric feature from sampled values (NaN for missing).

    Returns
    -------
    float64[n_edges], strictly ascending, at most max_bins - 1 of them.
    """
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        # Integers beyond 2**53 that become the same float are one value: thresholds and codes cannot tell them apart.
        values = values.astype(np.float64)
    present = values == values
    if not present.all():
        values = values[present]
        weight = None if weight is None else weight[present]
    if weight is None:
        ordered = np.sort(values)
        last = _ends(ordered)
        distinct, cumulative = ordered[last].astype(np.float64), (last + 1).astype(np.float64)
    else:
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        last = _ends(ordered)
        distinct, cumulative = ordered[last].astype(np.float64), np.cumsum(weight[order])[last]
    distinct += 0.0  # -0.0 becomes 0.0: which of the two a sort puts last is left to chance
    if len(distinct) <= max_bins:
        return midpoints(distinct)
    return quantiles(distinct, cumulative, max_bins)


def midpoints(distinct: np.ndarray) -> np.ndarray:
    """A split point between each two neighbours; never rounded up to the upper one."""
    lower, upper = distinct[:-1], distinct[1:]
    middle = lower / 2 + upper / 2
    return np.where(middle >= upper, lower, np.maximum(middle, lower))


def quantiles(distinct: np.ndarray, cumulative: np.ndarray, max_bins: int) -> np.ndarray:
    """Quantiles of a weighted distribution, heavy values in bins of their own.

    distinct, cumulative : float64[n], ascending values and the weight up to and including each.
    """
    mass = light = np.diff(cumulative, prepend=0.0)
    heavy, running = np.zeros(len(mass), bool), cumulative
    while True:
        # A heavy value costs two split points; what is left is shared by the others.
        n_light = max_bins - 2 * int(heavy.sum())
        more = light > 2.0 * (light.sum() / max(n_light, 1))
        if n_light <= 2 or not more.any() or 2 * int((heavy | more).sum()) > max_bins - 2:
            break
        heavy |= more
        light = np.where(heavy, 0.0, mass)
        running = np.cumsum(light)
    wanted = running[-1] * np.arange(1, max(n_light, 1)) / max(n_light, 1)
    at = np.searchsorted(running, wanted, side="left")
    own = np.flatnonzero(heavy)
    # Nothing lies above the largest value: a split point that falls on it moves to its neighbour.
    positions = np.sort(np.minimum(np.concatenate((at, own, own[own > 0] - 1)), len(distinct) - 2))
    return distinct[positions[_ends(positions)]][: max_bins - 1]


def _ends(ordered: np.ndarray) -> np.ndarray:
    """Where runs of equal numbers end: int64[...]."""
    return np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(ordered) else np.empty(0, np.int64)


def propose_all(
    columns: Sequence[np.ndarray | None], weight: np.ndarray | None, max_bins: int, n_threads: int
) -> tuple[np.ndarray | None, ...]:
    """Split points of all features; None where a column is None (categorical)."""
    if n_threads == 1 or sum(0 if column is None else len(column) for column in columns) < FEW:
        return tuple(None if column is None else propose(column, weight, max_bins) for column in columns)
    with ThreadPoolExecutor(n_threads) as pool:
        return tuple(pool.map(lambda column: None if column is None else propose(column, weight, max_bins), columns))


def distinct_values(column: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The distinct finite numbers of a column and those known before: float64[...], ascending; no more than are too many."""
    found = np.unique(column[np.isfinite(column)]).astype(np.float64)
    found += 0.0  # -0.0 becomes 0.0
    return np.union1d(known, found)[: MAX_FINE_BINS + 1]


def exact_binning(features: tuple[Feature, ...], distinct: Sequence[np.ndarray]) -> Binning:
    """A bin for each distinct value.

    distinct : of each numeric feature the values that occur, float64[...], ascending.

    Raises
    ------
    DataError
        Naming a column of too many values.
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
        edges.append(None if values is None else midpoints(values))
    return Binning(features, tuple(edges))


def padded_edges(edges: Sequence[np.ndarray | None], dtype: np.dtype) -> np.ndarray:
    """Edges as the kernels want them: [n_features, 255], padded with infinity; float32 ones rounded down (see kernels.bins).

    Of features that have more there are none.
    """
    padded = np.full((len(edges), PADDED_EDGES), np.inf, dtype)
    for row, edge in zip(padded, edges, strict=True):
        if edge is not None and len(edge) < PADDED_EDGES:
            row[: len(edge)] = round_down(edge, dtype)
    return padded


def round_down(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The largest numbers of a type that are not above the float64 values."""
    with np.errstate(over="ignore"):
        rounded = values.astype(dtype)
    return np.where(rounded > values, np.nextafter(rounded, np.array(-np.inf, dtype)), rounded).astype(dtype)
