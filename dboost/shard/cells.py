"""What a shard says of its cells, and how its rows get into the bins of a tree (see `growth.proposal`)."""

from __future__ import annotations

import numpy as np

from dboost.growth.proposal import Cells
from dboost.growth.task import Part
from dboost.kernels.proposals import add_masses
from dboost.shard.merging import merged_by
from dboost.shard.shard import Shard


@merged_by(np.add)
def cell_masses(shard: Shard, first: int, last: int, part: Part, scale: float) -> np.ndarray:
    """Quantised Hessians of the rows that take part in a tree, by cell of each feature: int64[n_buckets], a question.

    scale : what Hessians are multiplied by before they are rounded. Features whose cells are their bins are left at 0.
    """
    offset, kept = shard.layout.offset, shard.keeps_cells
    mass = np.zeros(int(offset[-1]), np.int64)
    hessian = shard.for_tree(part.output)[1]
    rows, begin, end = shard.places(part, first, last)
    for feature in np.flatnonzero(~kept).tolist():
        of_feature = mass[offset[feature] : offset[feature + 1]]
        add_masses(shard.codes.of(feature), hessian, shard.times, rows, begin, end, scale, of_feature)
    return mass


def put_into_bins(shard: Shard, cells: Cells, first: int, last: int) -> None:
    """Give rows first…last-1 the codes of a tree's bins."""
    for feature in np.flatnonzero(~shard.keeps_cells).tolist():
        n_cells, n_bins = int(shard.layout.n_bins[feature]), int(shard.bin_layout.n_bins[feature])
        bins = np.append(np.minimum(cells.bin_of(feature, n_cells), n_bins - 1), n_bins).astype(np.uint8)
        np.take(bins, shard.codes.of(feature)[first:last], out=shard.bins.of(feature)[first:last])
    shard.fill_tiles(first, last)
