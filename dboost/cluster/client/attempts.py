"""Repeated losses of workers: when a fit gives up.

A call that loses a worker is repeated once the lost partitions have been read again. With preemptible machines that may happen
any number of times. But a call that itself kills its workers (a histogram that does not fit the memory, a custom loss that
crashes) would be repeated until no worker is left, and with nannies forever. So `Attempts` counts losses, and the fit fails
after `Tuning.losses_without_progress` of them. Progress is a complete iteration, or more loaded partitions than ever before.
"""

from __future__ import annotations

from dboost.cluster.transport.messages import LostWorkers
from dboost.errors import DBoostError
from dboost.tuning import tuning

#: Number of losses that an error message lists.
N_REPORTED_LOSSES = 3


class Attempts:
    """Counts losses of workers since the last progress of the fit."""

    def __init__(self) -> None:
        self._losses: list[tuple[str, str]] = []
        self._milestone = "it began"

    def reset(self, milestone: str) -> None:
        """Reset the count after progress. milestone : for messages, e.g. "iteration 17"."""
        self._losses = []
        self._milestone = milestone

    def note(self, call: str, lost: LostWorkers) -> None:
        """Count a call that lost workers.

        Raises
        ------
        DBoostError
            At the `Tuning.losses_without_progress`-th loss, naming calls and workers.
        """
        self._losses.append((call, str(lost)))
        if len(self._losses) >= tuning().losses_without_progress:
            raise DBoostError(
                f"workers were lost {len(self._losses)} times since {self._milestone}{self.summary()}; giving up, "
                "see the workers' logs (too little memory, or a crash in a loss or in code that reads data?)"
            ) from lost

    def summary(self) -> str:
        """Return the latest losses in parentheses, to be appended to a message; empty without losses."""
        if not self._losses:
            return ""
        listed = "; ".join(f"{workers} in {call!r}" for call, workers in self._losses[-N_REPORTED_LOSSES:])
        return f" (lost last: {listed})"
