"""``python -m tests.chaos``: see the package."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.chaos.run import Run, keep_going, temporary_folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Random fits, and processes that die.")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default 5)")
    parser.add_argument("--seed", type=int, help="what happens follows from it (default: the time)")
    parser.add_argument("--patience", type=float, default=4.0, help="dboost.patience in seconds (default 4)")
    parser.add_argument("--folder", type=Path, help="for tables and logs (default: a temporary one)")
    parser.add_argument("--only", type=int, metavar="JOB", help="carry out this job only")
    parser.add_argument("--times", type=int, default=1, help="with --only: so often (default 1)")
    parser.add_argument("--most", type=int, default=12, help="stop after so many violations (default 12)")
    parser.add_argument("--calm", action="store_true", help="nothing goes wrong: are the fits themselves right?")
    parser.add_argument("--costs", action="store_true", help="measure what a death and a stopped worker cost instead")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as for SIGINT: all processes are ended
    seed = int(time.time()) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    if given.costs:
        from tests.chaos.costs import measure

        return measure(given.patience, given.folder)
    if given.only is None:
        options = {"patience": given.patience, "calm": given.calm}
        return bool(keep_going(seed, given.minutes, folder=given.folder, most=given.most, **options).violations)
    home = temporary_folder() if given.folder is None else given.folder
    with Run(seed, home, patience=given.patience, calm=given.calm) as run:
        for _ in range(given.times):
            run.job(given.only)
        print(run.summary)
    if given.folder is None and not run.summary.violations:
        shutil.rmtree(home, ignore_errors=True)
    return bool(run.summary.violations)


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for an ended cluster would keep this process alive
