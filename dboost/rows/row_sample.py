"""Random numbers that depend on a seed and row numbers only, and the rows that are sampled with them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Sample(NamedTuple):
    """The rows sampled for a tree: those whose hash of the seed and the global row number is below `threshold` (of 2**64)."""

    seed: int
    threshold: int

    @classmethod
    def of(cls, share: float, seed: int, iteration: int) -> Sample | None:
        """Return a sample of a share of the rows, a different one in every iteration; None for all rows."""
        if share >= 1.0:
            return None
        return cls(derive_seed(seed, _ROWS, iteration), int(share * 2.0**64))


#: Purposes of hashes: each has its own sequence of random numbers.
_ROWS, FEATURES, BITES, VISITS, HOLD_OUT, WATCH, DIRECTIONS, MEMBERS = 1, 2, 3, 4, 5, 6, 7, 8


def derive_seed(*numbers: int) -> int:
    """Hash several numbers to one of 64 bits (SplitMix64 over them)."""
    x = 0
    for number in numbers:
        x = (x + number + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return x


_MASK = (1 << 64) - 1


def hash_rows(seed: int, numbers: np.ndarray) -> np.ndarray:
    """Hash a seed and the global row numbers (int64[n]) to uint64[n]: the hashes of `kernels.rows.select_rows`."""
    x = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class RowSubset(NamedTuple):
    """The rows that take part in a tree: the sampled rows whose influence is not below a bound.

    sample : None for all rows; least_influence : bits of a float32, 0 for no bound; output : the output whose influence counts.
    """

    sample: Sample | None
    least_influence: int
    output: int
