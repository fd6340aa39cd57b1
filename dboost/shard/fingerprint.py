"""A few numbers that tell rows from other rows, whoever holds them.

Every row has a random number of 64 bits that follows from its global number alone. Of each feature the codes are added up,
each times its row's number, modulo 2**64; of target and weight the bits. Such a sum of products is a universal hash: that two
different columns have the same sum has a chance of about 2**-63. And sums know no order, so they merge.
"""

from __future__ import annotations

import numpy as np

from dboost.shard.shard import Shard

#: Rows at a time, so that nothing but a little scratch memory is needed.
_STRETCH = 65_536


def fingerprint(shard: Shard, first: int, last: int) -> np.ndarray:
    """Of rows first…last-1: uint64[2 + n_features], sums of target, weight and the codes of each feature."""
    n_features = len(shard.layout.n_bins)
    sums, codes = np.zeros(2 + n_features, np.uint64), shard.columns()
    for start in range(first, last, _STRETCH):
        rows = slice(start, min(start + _STRETCH, last))
        number = random_numbers(shard.numbers(rows.start, rows.stop))
        sums[0] += (number * (shard.target[rows] + 0.0).view(np.uint64)).sum()
        if shard.weight is not None:
            sums[1] += (number * shard.weight[rows].view(np.uint64)).sum()
        for feature in range(n_features):
            sums[2 + feature] += (number * (codes.of(feature)[rows].astype(np.uint64) + np.uint64(1))).sum()
    return sums


fingerprint.reads_codes = True  # type: ignore[attr-defined]  # see `StreamedShard.ask`


def random_numbers(rows: np.ndarray) -> np.ndarray:
    """SplitMix64 of row numbers (int64[n]), odd: uint64[n]."""
    x = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)
