"""How the worker's plugin reaches workers, also those that have no dboost.

Numba and the kernels take seconds to import on a busy machine. That happens in a thread: a worker whose event loop is blocked
for so long looks dead to others.
"""

from __future__ import annotations

from typing import Any


class WorkerPluginFactory:
    """Pickles as what makes the worker's plugin: a worker without dboost takes it too, and says that it has none."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        def plugin() -> Any:  # nested, so that it travels by value
            import asyncio
            from importlib import import_module

            from distributed.diagnostics.plugin import WorkerPlugin

            class Starter(WorkerPlugin):
                """Becomes the plugin proper when that has been imported."""

                async def setup(self, worker: Any) -> None:
                    try:
                        module = await asyncio.to_thread(import_module, "dboost.distributed.worker_plugin")
                    except ImportError:
                        worker.handlers["dboost_hello"] = lambda: {"status": "OK", "version": None}
                        return
                    proper = module.DBoostWorkerPlugin()
                    worker.plugins[proper.name] = proper
                    proper.setup(worker)

            return Starter()

        return plugin, ()
