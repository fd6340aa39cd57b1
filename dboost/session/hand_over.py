"""The hand-over of encoded rows to one session of a host, which trains on them.

Workers of a host need no rounds between each other if one of them trains on all rows of the host. They read, sample, propose
and encode in parallel; then each sends its encoded rows (about a byte a value) and its evaluation rows to one of them
(`cluster.worker.host_trainers`). That session keeps what it has received until it is told which partitions it has
(`Session.accept`): what a call that failed has sent is dropped. The other sessions keep their encoded rows until they are
told to drop them, so the call can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dboost.session.encoded_rows import EncodedRows
from dboost.session.evaluation_rows import EncodedEvalRows
from dboost.session.fit_records import BuildSpec


class HandedRows(NamedTuple):
    """What a session sends at a time of the rows of a batch."""

    partitions: tuple[int, ...]  # of the whole batch
    rows: list[EncodedRows]  # none if no row has positive weight
    eval_rows: list[EncodedEvalRows]


@dataclass(eq=False)
class EncodedBatch:
    """The rows of a batch from the time when a session has encoded them until it trains on them or drops them."""

    spec: BuildSpec
    partitions: tuple[int, ...]  # that the session has encoded
    rows: list[EncodedRows]  # of these partitions, and of those that were accepted
    received: list[HandedRows] = field(default_factory=list)  # from other sessions, until `accept`
    #: Evaluation rows that were handed over: another session evaluates them, unless the batch is built here. None before that.
    handed_eval_rows: list[EncodedEvalRows] | None = None

    def messages(self, n: int) -> list[HandedRows]:
        """Return the rows for another session in n messages, the first one with the evaluation rows."""
        first, *others = [HandedRows(self.partitions, [part.alone() for part in self.rows[k::n]], []) for k in range(n)]
        return [first._replace(eval_rows=self.handed_eval_rows or []), *others]

    def accept(self, partition_ids: Sequence[int]) -> list[EncodedEvalRows]:
        """Add the rows that were received of these partitions to the own ones, and drop those of others.

        Return the evaluation rows among them.
        """
        messages, self.received = self.received, []
        accepted = [message for message in messages if set(message.partitions) <= set(partition_ids)]
        for message in accepted:
            self.rows += message.rows
        return [rows for message in accepted for rows in message.eval_rows]
