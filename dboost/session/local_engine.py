"""The engine of a fit without a cluster: on bites, on rows in memory, or on rows that are streamed from files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dboost.session.batch_rows import StartingRows
from dboost.session.bites import ArcbitesEngine, BiteStore
from dboost.session.engines import FusedEngine, StreamedEngine
from dboost.session.protocol import BiteVisit, BuildSpec, Calls
from dboost.shards.encode import in_ranges
from dboost.shards.shard import RowIds, TreeDelta, check_rows_in_memory
from dboost.shards.shard_blocks import ShardBlocks
from dboost.shards.statistics import Statistic
from dboost.storage.row_store import RowStore
from dboost.trees.tree_task import GradientStats, GrownTree, GrowthPolicy, TreeTask

_log = logging.getLogger("dboost")


class LocalCalls:
    """Calls of an engine of this process; implements `Calls`."""

    def __init__(self, engine: FusedEngine | StreamedEngine | ArcbitesEngine) -> None:
        self._engine = engine

    def switch_bite(self, visit: BiteVisit, iterations: Sequence[Sequence[TreeDelta]], applied: int) -> None:
        assert isinstance(self._engine, ArcbitesEngine)
        self._engine.visit(visit.bite, iterations)

    def update_scores(self, number: int, values: np.ndarray, terms: tuple) -> GradientStats:
        return self._engine.advance(values, terms)

    def grow_trees(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        return self._engine.grow(tasks)

    def shard_statistics(self, statistic: Statistic, arguments: tuple[Any, ...]) -> list[Any]:
        return self._engine.map_shards(statistic, *arguments)

    def report(self) -> dict[str, float]:
        return self._engine.report()

    def close(self) -> None:
        self._engine.close()


def open_local_engine(
    rows: StartingRows,
    spec: BuildSpec,
    policy: GrowthPolicy,
    n_threads: int,
    gather: Callable[[], ShardBlocks],
    write: Callable[[], tuple[RowStore, RowIds]],
    root: Path | None = None,
) -> Calls:
    """Return the calls of the engine that trains on the rows.

    gather : returns the rows in memory, whose tiles are not filled; write : writes the rows to files. root : parent of the
    folder for bites in files.
    """
    n_rows, terms = sum(rows.owned.values()), spec.target.loss.terms()
    limit = spec.exceeded_limit(n_rows, n_threads)
    engine: FusedEngine | StreamedEngine | ArcbitesEngine
    if spec.n_bites is not None:
        bites = BiteStore(rows, spec, limit, n_threads=n_threads, root=root)
        engine = ArcbitesEngine(
            bites, spec.shard, terms, policy=policy, n_bites=spec.n_bites, n_together=spec.n_together, n_threads=n_threads
        )
    elif limit is None:
        check_rows_in_memory(n_rows)
        shard = gather().shard
        in_ranges(shard.fill_tiles, shard.n_rows, n_threads)
        engine = FusedEngine(shard, terms, policy=policy, n_threads=n_threads)
    else:
        memory = limit.histograms(spec.shard, n_rows, n_threads)
        store, ids = write()
        try:
            engine = StreamedEngine(
                store, spec.shard, ids, terms, n_threads=n_threads, histogram_bytes=memory, staying_bytes=memory - limit.reserve
            )
        except BaseException:
            store.close()
            raise
    if limit is not None:
        how = "streamed from" if spec.n_bites is None else "divided into bites in"
        _log.info("%d rows do not fit memory_limit=%s and are %s files", n_rows, limit, how)
    return LocalCalls(engine)
