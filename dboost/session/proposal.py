"""Split candidates from a sample of rows that are in several sessions.

Candidates are quantiles of the values of all sampled rows (`data.columns.binning`). If several sessions have rows, some of them
are
*owners* of a range of the columns each: every session draws its rows, and sends each owner the values of its columns. An owner
proposes the candidates of its columns. So the owners sort the sample at the same time, and the coordinator receives the
candidates only.

The values of a column are joined in the order of the partitions (`binning.propose_together`), so the candidates do not depend
on sessions and owners.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from dboost.data.columns.binning import ColumnSamples
from dboost.session.fit_records import SessionRef


class ProposalOrder(NamedTuple):
    """How sessions propose split candidates together."""

    owners: tuple[SessionRef, ...]
    bounds: tuple[int, ...]  # the k-th owner has the columns bounds[k]…bounds[k + 1] - 1 of the sample
    n_sessions: int
    max_bins: int

    @classmethod
    def of(cls, refs: Sequence[SessionRef], n_owners: int, n_columns: int, max_bins: int) -> ProposalOrder:
        """Return an order that divides the columns equally among the first sessions."""
        n = max(min(n_owners, len(refs), n_columns), 1)
        return cls(tuple(refs[:n]), tuple(n_columns * k // n for k in range(n + 1)), len(refs), max_bins)


def divided(sample: ColumnSamples, bounds: Sequence[int]) -> list[ColumnSamples]:
    """Return the samples of ranges of the columns."""
    return [{i: (values[first:last], weight) for i, (values, weight) in sample.items()} for first, last in pairwise(bounds)]
