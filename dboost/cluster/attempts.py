"""How often a fit may lose workers without getting on.

A step that loses a worker is repeated, as soon as the lost rows have been read again. On machines that come and go that may
happen any number of times. But a step that *itself* ends its workers (a histogram that does not fit the memory, a loss of the
user's that crashes) would be repeated until no worker is left, and with nannies for ever. So losses are counted, and the count
starts again whenever the fit gets on: when an iteration is complete, or more partitions have been brought further than before.
"""

from __future__ import annotations

from dboost.cluster.messages import LostWorkers
from dboost.errors import DBoostError

#: Attempts in a row that may lose workers.
MOST_ATTEMPTS = 10
#: Losses that an error tells of.
_TOLD = 3


class Attempts:
    """Counts losses since the fit last got on."""

    def __init__(self) -> None:
        self._losses: list[tuple[str, str]] = []
        self._reached = "it began"

    def reset(self, reached: str) -> None:
        """The fit has got on. reached : what it has reached, as in "iteration 17"."""
        self._losses = []
        self._reached = reached

    def note(self, call: str, lost: LostWorkers) -> None:
        """Note that a call has lost workers.

        Raises
        ------
        DBoostError
            When that was once too often in a row, naming the calls and the workers.
        """
        self._losses.append((call, str(lost)))
        if len(self._losses) >= MOST_ATTEMPTS:
            raise DBoostError(
                f"workers were lost {len(self._losses)} times since {self._reached}{self.summary()}; giving up, "
                "see the workers' logs (too little memory, or a crash in a loss or in code that reads data?)"
            ) from lost

    def summary(self) -> str:
        """The latest losses, for messages that begin with something else; empty if there were none."""
        if not self._losses:
            return ""
        told = "; ".join(f"{workers} in {call!r}" for call, workers in self._losses[-_TOLD:])
        return f" (lost last: {told})"
