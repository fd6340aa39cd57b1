"""Split candidates that workers propose together, from sampled values that they send to each other.

Candidates are quantiles of the values of all sampled rows (`data.columns.binning`). Some sessions are *owners* of a range of
the columns each, and propose the candidates of these: they sort the sample at the same time, and the coordinator receives the
candidates only. The values of a column are joined in the order of the partitions (`binning.propose_together`), so the
candidates do not depend on sessions and owners.

The reducer makes one call to every session. Each draws its rows, sends the owners their columns, and, if it is an owner itself,
waits for the columns of all others. There are as many owners as a sample has `config.owner_bytes`, but at most `config.fan_in`:
every session sends a message to each of them.

Values travel as slices of histograms do (`peer_messages`), and an owner that waits for a lost session gives up like the
owner of a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dboost.cluster.transport.line import pieces_of, unpacked
from dboost.cluster.transport.messages import OK, SessionRef, pack, unpack
from dboost.cluster.transport.peer_messages import JointCall
from dboost.config import fan_in, owner_bytes
from dboost.session.session import Session
from dboost.tuning import tuning


class ProposalOrder(NamedTuple):
    """How sessions propose split candidates together."""

    owners: tuple[SessionRef, ...]
    bounds: tuple[int, ...]  # the k-th owner has the columns bounds[k]…bounds[k + 1] - 1 of the sample
    n_sessions: int
    max_bins: int


def choose_owners(refs: Sequence[SessionRef], n_rows: int, n_columns: int, max_bins: int) -> ProposalOrder:
    """Divide the columns equally among the first sessions, which own them. n_rows : of the table."""
    n_bytes = 8 * min(n_rows, tuning().bin_sample_rows) * n_columns
    n = max(min(-(-n_bytes // owner_bytes()), fan_in(), len(refs), n_columns), 1)
    return ProposalOrder(tuple(refs[:n]), tuple(n_columns * k // n for k in range(n + 1)), len(refs), max_bins)


def propose_splits(call: JointCall, arguments: bytes | memoryview) -> tuple[str, Any]:
    """Return, on a worker, a status, and the packed candidates of the columns that a session owns, or an error."""
    draw, order = unpack(arguments)
    position = order.owners.index(call.ref) if call.ref in order.owners else None
    status, answer = call.execute(Session.draw_sample, (*draw, order.bounds, position))
    if status != OK:
        return status, answer
    ranges, kept = answer
    # Each session begins with another owner, so that no link receives from all at the same time.
    n, first = len(order.owners), 0 if position is None else position + 1
    to_owners = {order.owners[k % n]: pieces_of(ranges[k % n]) for k in range(first, first + n) if k % n != position}
    status, answer = call.swap(0, to_owners, 0 if position is None else order.n_sessions - 1)
    if status != OK:
        return status, answer
    if position is None:
        return OK, pack([])
    return call.execute(Session.propose.__name__, (kept, [*map(unpacked, answer)], order.max_bins))
