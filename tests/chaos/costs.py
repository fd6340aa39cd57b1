"""The cost of a killed and of a stopped worker: the longest time between two iterations, compared with undisturbed fits.

``python -m tests.chaos --costs``. The goal: a kill in the middle of a fit costs at most 2 s plus reading the lost
partitions; a stopped worker at most twice `dboost.patience` plus 2 s. No times are asserted: the machine may be busy.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.cluster import Cluster, Setting, Slot
from tests.chaos.fits import Spec, fit, write_table
from tests.chaos.run import temporary_folder

SECONDS_TO_READ = 0.25
SPEC = Spec(
    60_000,
    20,
    9,
    0,
    options={"loss": "squared_error", "max_iter": 60, "max_leaf_nodes": 31, "n_threads": 2, "progress": False},
    slow=SECONDS_TO_READ,
)
AT, TIMES = 30, 3
#: A fit without an event for this many seconds is given up.
_MOST = 180.0


def measure(patience: float, folder: Path | None = None) -> int:
    """Print a table of costs; return 1 if a model differs."""
    home = temporary_folder() if folder is None else folder
    (home / "tables").mkdir(parents=True, exist_ok=True)
    write_table(SPEC, home / "tables")
    expected = fit(SPEC, home / "tables").file
    setting = Setting(3, False, True, 1, "2GiB", False, False, patience)
    faults: dict[str, Callable[[Slot], object] | None] = {
        "undisturbed": None,
        "killed": lambda slot: slot.kill(),
        "killed, and back at once": lambda slot: (slot.kill(), slot.start()),
        "stopped": lambda slot: slot.stop(),
    }
    rows, wrong = [], 0
    with Cluster(setting, home / f"costs-{time.time():.0f}", home / "tables") as cluster:
        _timed(cluster, None)  # imports and compilation
        for name, fault in faults.items():
            found = [_timed(cluster, fault) for _ in range(TIMES)]
            wrong += sum(model != expected for *_, model in found)
            rows.append((name, [whole for whole, *_ in found], [gap for _, gap, _ in found]))
    n_read = -(-SPEC.partitions // 3 // 2)
    print(f"dboost.patience: {patience:g} s; two workers read the third one's partitions in {n_read * SECONDS_TO_READ:.2f} s")
    print(f"{'':28}{'fit, median':>14}{'longest pause between two iterations':>40}")
    usual = statistics.median(rows[0][1])
    for name, whole, gaps in rows:
        more = f"({statistics.median(whole) - usual:+.2f})"
        listed = ", ".join(f"{gap:.2f}" for gap in sorted(gaps))
        print(f"{name:28}{statistics.median(whole):8.2f} s {more:>8}{listed:>32} s")
    print(f"other models than expected: {wrong}")
    if folder is None:
        shutil.rmtree(home, ignore_errors=True)
    return int(wrong > 0)


def _timed(cluster: Cluster, fault: Callable[[Slot], object] | None) -> tuple[float, float, str]:
    """Return the seconds of a fit, of its longest pause, and its model. All workers are present before and after it."""
    client, slot = cluster.client(0), cluster.slots[0]
    client.order("", SPEC)
    began, pauses, before = time.time(), [0.0], None
    while True:
        event = client.events.get(timeout=_MOST)
        if event["event"] == "iteration":
            pauses.append(0.0 if before is None else event["at"] - before)
            before = event["at"]
            if event["n"] == AT and fault is not None:
                fault(slot)
        elif event["event"] != "began":
            break
    seconds = time.time() - began
    model = event["outcome"]["file"] if event["event"] == "done" else f"{event['event']}: {event.get('text')}"
    if event["event"] != "done":
        print(model)
    if fault is not None:
        slot.kill()
        slot.start()
        until = time.monotonic() + 60
        while len(cluster.roster()) < 3 or slot.pid() is None:
            cluster.supervise()
            time.sleep(0.2)
            if time.monotonic() > until:
                raise RuntimeError("a worker does not come back")
    return seconds, max(pauses), model
