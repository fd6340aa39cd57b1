"""The exchange of sampled values among workers, from which they propose split candidates; see `session.proposal`.

The reducer makes one call to every session. Each draws its rows, sends the owners their columns, and, if it is an owner itself,
waits for the columns of all others. There are as many owners as a sample has `config.owner_bytes`, but at most `config.fan_in`:
every session sends a message to each of them.

Values travel as slices of histograms do (`peer_messages`), and an owner that waits for a lost session gives up like the
owner of a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dboost.cluster.transport.line import pieces_of, unpacked
from dboost.cluster.transport.messages import OK, pack
from dboost.cluster.transport.peer_messages import Execute, Swap
from dboost.config import fan_in, owner_bytes
from dboost.session.fit_records import SessionRef, unpack
from dboost.session.proposal import ProposalOrder
from dboost.session.session import Session
from dboost.tuning import tuning


def choose_owners(refs: Sequence[SessionRef], n_rows: int, n_columns: int, max_bins: int) -> ProposalOrder:
    """Return which sessions propose the candidates of which columns. n_rows : of the table."""
    n_bytes = 8 * min(n_rows, tuning().bin_sample_rows) * n_columns
    return ProposalOrder.of(refs, min(-(-n_bytes // owner_bytes()), fan_in()), n_columns, max_bins)


def answer_proposal(
    ref: SessionRef,
    arguments: bytes | memoryview,
    execute: Execute,
    swap: Swap,
) -> tuple[str, Any]:
    """Answer the call of a session: with a status, and the packed candidates of the columns that it owns, or an error."""
    draw, order = unpack(arguments)
    position = order.owners.index(ref) if ref in order.owners else None
    status, answer = execute(Session.draw_sample.__name__, (*draw, order.bounds, position))
    if status != OK:
        return status, answer
    ranges, kept = answer
    # Each session begins with another owner, so that no link receives from all at the same time.
    n, first = len(order.owners), 0 if position is None else position + 1
    to_owners = {order.owners[k % n]: pieces_of(ranges[k % n]) for k in range(first, first + n) if k % n != position}
    status, answer = swap(0, to_owners, 0 if position is None else order.n_sessions - 1)
    if status != OK:
        return status, answer
    if position is None:
        return OK, pack([])
    return execute(Session.propose.__name__, (kept, [*map(unpacked, answer)], order.max_bins))
