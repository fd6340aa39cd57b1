"""Bin codes of values, and joint codes in tiles, one value at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dboost.kernels.histograms import BinLayout


def code(value: float, edges: Sequence[float]) -> int:
    """Return how many edges lie below the value; missing values come after the last bin."""
    if math.isnan(value):
        return len(edges) + 1
    return sum(edge < value for edge in edges)


def joint_code(codes: Sequence[int], layout: BinLayout, column: int) -> int:
    """Return the byte of a row in a tile column: the sum of code times stride over the column's features."""
    features = layout.features[layout.first[column] : layout.first[column + 1]].tolist()
    return sum(int(codes[feature]) * int(layout.stride[feature]) for feature in features)
