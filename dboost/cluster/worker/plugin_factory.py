"""Installation of the worker plugin, also on workers without dboost.

Importing Numba and the kernels takes seconds on a busy machine. It runs in a thread, because other processes take a worker with
a blocked event loop for dead. Until it ends, the worker answers pings that it is starting.

If dboost is not installed or cannot be started, the worker answers pings without a version; in the second case with the reason,
which the client reports.
"""

from __future__ import annotations

from typing import Any


class WorkerPluginFactory:
    """Pickles as a function that makes the worker plugin; a worker without dboost can unpickle it."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        def plugin() -> Any:  # nested, so that it is pickled by value
            import asyncio
            import logging
            from importlib import import_module

            from distributed.diagnostics.plugin import WorkerPlugin

            class Starter(WorkerPlugin):
                """Imports the worker plugin in a thread and registers it instead of itself."""

                async def setup(self, worker: Any) -> None:
                    reply = {"status": "OK", "version": None}
                    worker.handlers["dboost_ping"] = lambda: {"status": "OK", "starting": True}
                    try:
                        module = await asyncio.to_thread(import_module, "dboost.cluster.worker.worker_plugin")
                        worker_plugin = module.DBoostWorkerPlugin()
                        worker_plugin.setup(worker)
                    except Exception as error:  # an exception that is raised here would only reach the worker's log
                        missing = error.name if isinstance(error, ModuleNotFoundError) else None
                        if str(missing).partition(".")[0] != "dboost":
                            reply["reason"] = f"{type(error).__name__}: {error}"
                            logging.getLogger("distributed.worker").exception("dboost cannot be started")
                        worker.handlers["dboost_ping"] = lambda: reply
                        return
                    worker.plugins[worker_plugin.name] = worker_plugin

            return Starter()

        return plugin, ()
