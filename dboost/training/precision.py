"""What follows from parameters and rows before the first tree: the policy of growth, and the precision of histograms."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dboost.kernels.histograms import PAIR, TRIPLE, WEIGHED, Packing
from dboost.params import Parameters
from dboost.training.initial_score import TargetStats
from dboost.trees.nodes import ANY_ORDER, BEST_FIRST, DEPTH_WISE, GrowthPolicy

_UNLIMITED_DEPTH = 1 << 30


def growth_policy_of(parameters: Parameters, n_rows: int) -> GrowthPolicy:
    """The rule of growth; without limits, the number of leaves is bounded by depth and rows."""
    depth = parameters.max_depth or _UNLIMITED_DEPTH
    by_depth = 1 << min(depth, 40)
    by_rows = max(n_rows // parameters.min_samples_leaf, 1)
    leaves = min(parameters.max_leaf_nodes or by_depth, by_depth, by_rows)
    if parameters.max_leaf_nodes is None or parameters.max_leaf_nodes >= min(by_depth, by_rows):
        return GrowthPolicy(leaves, depth, ANY_ORDER)
    return GrowthPolicy(leaves, depth, BEST_FIRST if parameters.growth == "best_first" else DEPTH_WISE)


@dataclass(frozen=True)
class Precision:
    """How many planes a histogram has, how its buckets are packed, and which plane counts rows."""

    packing: Packing
    n_channels: int
    count_channel: int


def precision_of(parameters: Parameters, constant_hessian: bool, max_weight: int = 1) -> Precision:
    """Counts are kept only when somebody looks at them, and not separately when Hessians are counts.

    max_weight : how often a row counts at most, where weights are whole numbers.
    """
    if parameters.min_samples_leaf <= 1:
        found = Precision(PAIR, 2, -1)
    elif not constant_hessian:
        found = Precision(TRIPLE, 3, 2)
    else:
        found = Precision(PAIR, 2, 1) if max_weight == 1 else Precision(WEIGHED, 3, 2)
    return replace(found, packing=found.packing._replace(rows=found.packing.rows // max_weight))


def max_weight_of(start: TargetStats, parameters: Parameters, constant_hessian: bool) -> int | None:
    """How often a row counts at most, when all weights are whole numbers; else None.

    Packed buckets are flushed the more often the heavier a row may be. Where that would cost more than adding up the rows,
    weights are treated like fractions.
    """
    if not start.integer_weights or start.max_weight > 255:
        return None
    rows = precision_of(parameters, constant_hessian, int(start.max_weight)).packing.rows
    return int(start.max_weight) if rows >= 256 else None
