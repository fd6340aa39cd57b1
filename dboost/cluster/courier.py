"""How the worker's plugin reaches workers, also those that have no dboost."""

from __future__ import annotations

from typing import Any


class Courier:
    """Pickles as what makes the worker's plugin: a worker without dboost takes it too, and simply has no plugin then."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        def plugin() -> Any:  # nested, so that it travels by value
            try:
                from dboost.cluster.holder import ShardHolder
            except ImportError:
                from distributed.diagnostics.plugin import WorkerPlugin

                return WorkerPlugin()
            return ShardHolder()

        return plugin, ()
