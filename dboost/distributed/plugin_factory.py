"""Installation of the worker plugin, also on workers without dboost.

Importing Numba and the kernels takes seconds on a busy machine. It runs in a thread, because other processes take a worker with
a blocked event loop for dead.
"""

from __future__ import annotations

from typing import Any


class WorkerPluginFactory:
    """Pickles as a function that makes the worker plugin; a worker without dboost can unpickle it and reports no version."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        def plugin() -> Any:  # nested, so that it is pickled by value
            import asyncio
            from importlib import import_module

            from distributed.diagnostics.plugin import WorkerPlugin

            class Starter(WorkerPlugin):
                """Imports the worker plugin in a thread and registers it instead of itself."""

                async def setup(self, worker: Any) -> None:
                    try:
                        module = await asyncio.to_thread(import_module, "dboost.distributed.worker_plugin")
                    except ImportError:
                        worker.handlers["dboost_ping"] = lambda: {"status": "OK", "version": None}
                        return
                    worker_plugin = module.DBoostWorkerPlugin()
                    worker.plugins[worker_plugin.name] = worker_plugin
                    worker_plugin.setup(worker)

            return Starter()

        return plugin, ()
