"""The engine of a fit without a cluster: on bites, on rows in memory, or on rows that are streamed from files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from dboost.session.bites import ArcbitesEngine, BiteStore
from dboost.session.engines import FusedEngine, StreamedEngine
from dboost.session.partition_loader import StartingRows
from dboost.session.protocol import BuildSpec, Engine
from dboost.shards.block_store import BlockStore
from dboost.shards.encode import in_ranges
from dboost.shards.shard import Shard, check_rows_in_memory
from dboost.trees.tree_task import GrowthPolicy

_log = logging.getLogger("dboost")


def open_local_engine(
    rows: StartingRows,
    spec: BuildSpec,
    policy: GrowthPolicy,
    n_threads: int,
    gather: Callable[[], Shard],
    write: Callable[[], BlockStore],
    root: Path | None = None,
) -> Engine:
    """Return the engine that trains on the rows.

    gather : returns the rows as a shard, whose tiles are not filled; write : writes the rows to files. root : parent of the
    folder for bites in files.
    """
    n_rows, terms = sum(rows.owned.values()), spec.target.loss.terms()
    limit = spec.exceeded_limit(n_rows, n_threads)
    engine: Engine
    if spec.n_bites is not None:
        store = BiteStore(rows, spec, limit, n_threads=n_threads, root=root)
        engine = ArcbitesEngine(
            store, spec.shard, terms, policy=policy, n_bites=spec.n_bites, n_together=spec.n_together, n_threads=n_threads
        )
    elif limit is None:
        check_rows_in_memory(n_rows)
        shard = gather()
        in_ranges(shard.fill_tiles, shard.n_rows, n_threads)
        return FusedEngine(shard, terms, policy=policy, n_threads=n_threads)
    else:
        memory = limit.histograms(spec.shard, n_rows, n_threads)
        blocks = write()
        try:
            engine = StreamedEngine(
                blocks, terms, n_threads=n_threads, histogram_bytes=memory, staying_bytes=memory - limit.reserve
            )
        except BaseException:
            blocks.close()
            raise
    if limit is not None:
        how = "streamed from" if spec.n_bites is None else "divided into bites in"
        _log.info("%d rows do not fit memory_limit=%s and are %s files", n_rows, limit, how)
    return engine
