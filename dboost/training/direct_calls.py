"""Calls of the one session of a fit without a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dboost.session.calls import BiteVisit, BuildSpec
from dboost.session.worker_session import WorkerSession
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.statistics import Statistic
from dboost.trees.grower import Round
from dboost.trees.tree_rounds import GrowOrder, RoundSumsAndSplits, TreeRounds
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask

_log = logging.getLogger("dboost")


def log_rows_in_files(n_rows: int, spec: BuildSpec) -> None:
    """Log that rows are in files, if there are any."""
    if n_rows:
        how = "streamed from" if spec.n_bites is None else "divided into bites in"
        limit = "what Dask lets their workers have" if spec.budget is None else f"memory_limit={spec.budget}"
        _log.info("%d rows do not fit %s and are %s files", n_rows, limit, how)


class DirectCalls:
    """Calls a session of this process; implements `Calls`, and `RoundCalls` for rows in files.

    Objects are passed as they are. The session cannot be lost, so nothing is recorded for a replay.

    Parameters
    ----------
    session : WorkerSession
        With all rows of the fit. `close` releases its training rows.
    spec : BuildSpec
    """

    def __init__(self, session: WorkerSession, spec: BuildSpec) -> None:
        self._session, self._layout = session, spec.shard.bin_layout
        self._is_identity_bin_map = spec.shard.layout.n_bins == self._layout.n_bins
        self._bytes_read = 0

    @cached_property
    def _rounds(self) -> TreeRounds:
        return TreeRounds(self._session.n_threads)

    def switch_bite(self, visit: BiteVisit, iterations: Sequence[Sequence[TreeDelta]], applied: int) -> None:
        """See `Calls`."""
        self._session.switch_bite(visit, 0, iterations, applied)

    def update_scores(self, number: int, values: np.ndarray, terms: tuple) -> GradientStats:
        """See `Calls`."""
        stats, _, n_bytes, _ = self._session.update_scores(number, values, terms)
        self._bytes_read += n_bytes
        assert stats is not None
        return stats

    def grow_trees(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        """See `Calls`. Trees grow when they are requested; over files, some of them together."""
        trees = self._session.whole_trees(tasks)
        return self._grow_in_rounds(tasks) if trees is None else trees

    def _grow_in_rounds(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        n_leaves, n_trees = self._session.pass_width
        for first in range(0, len(tasks), n_trees):
            some = tuple(tasks[first : first + n_trees])
            order = GrowOrder(some, self._layout, self._is_identity_bin_map, self._session.n_rows, n_leaves)
            yield from self._rounds.grow_trees(self, order)

    def begin_round(self, tasks: Sequence[TreeTask], rounds: Mapping[int, Round]) -> Callable[[], RoundSumsAndSplits]:
        """See `RoundCalls`."""

        def run() -> RoundSumsAndSplits:
            if tasks:
                self._session.begin_trees(tasks)
            requests = {output: request for output, (request, _) in rounds.items()}
            self._session.begin_round(requests)
            return {output: self._session.sum_histograms(output, request) for output, request in requests.items()}, None

        return run

    def assign_leaves(self, iteration: int) -> None:
        """See `Calls`."""
        self._session.assign_leaves(iteration)

    def shard_statistics(self, statistic: Statistic, arguments: tuple[Any, ...]) -> list[Any]:
        """See `Calls`."""
        return self._session.shard_statistics(statistic, arguments)

    def report(self) -> dict[str, float]:
        """Return the bytes read from files since the last call."""
        n_bytes, self._bytes_read = self._bytes_read, 0
        return {"bytes_read": n_bytes}

    def close(self) -> None:
        """See `Calls`."""
        if "_rounds" in vars(self):
            self._rounds.close()
        self._session.release_rows()
