"""The process of a client: ``python -m tests.chaos.client ADDRESS FOLDER``.

Reads lines of JSON, each with a fit to run, and prints lines of JSON that begin with ``@@``: iterations, and results of fits.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.fits import Spec, fit


def main(address: str, folder: str) -> None:
    faulthandler.register(signal.SIGUSR1, sys.stderr)
    from distributed import Client

    import dboost

    def tell(event: str, **what: Any) -> None:
        print("@@" + json.dumps({"event": event, "at": time.time(), **what}), flush=True)

    with Client(address, set_as_default=False, timeout="60s") as client:
        tell("ready")
        for line in sys.stdin:
            order = json.loads(line)
            job, spec = order["job"], Spec(**order["spec"])
            tell("began", job=job)
            try:
                outcome = fit(spec, Path(folder), client, lambda now, job=job: tell("iteration", job=job, n=now.iteration))
            except dboost.DBoostError as error:
                tell("error", job=job, type=type(error).__name__, text=str(error), trace=traceback.format_exc())
            except BaseException as error:
                tell("crash", job=job, type=type(error).__name__, text=str(error), trace=traceback.format_exc())
            else:
                tell("done", job=job, outcome=asdict(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
