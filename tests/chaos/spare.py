"""A worker process that waits: ``python -m tests.chaos.spare`` with the arguments of ``dask worker``.

It has imported everything, so that a worker is back at its address within a fraction of a second, while its fit still loads. It
becomes a worker when it receives a line, and ends at the end of its input.
"""

from __future__ import annotations

import sys

from tests.chaos.inside import import_all


def main() -> None:
    import_all()
    from distributed.cli.dask_worker import main as work

    if sys.stdin.readline():
        work()


if __name__ == "__main__":
    main()
