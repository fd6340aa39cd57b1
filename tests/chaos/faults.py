"""Faults of a job and their times: a `Fault` is drawn from a seed, and a `FaultRunner` carries out those of a job.

killed          kill -9; restarted at the same address after `delay` seconds (not while the job runs: `delay` None)
stopped         SIGSTOP, and SIGCONT after `seconds`
stopped, killed the same, but killed at the end, and restarted
paused          as Dask pauses a worker that is out of memory; resumed after `seconds`
retired         by `Client.retire_workers`; restarted
joined          another worker joins, for the rest of the job
all killed      and all restarted at their addresses after `delay`
all paused      for `seconds`
client killed   a fit with a checkpoint is resumed by another client, one without ends
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.cluster import Cluster, Slot
from tests.chaos.fits import Spec

KINDS = {
    "killed": 8,
    "stopped": 4,
    "stopped, killed": 2,
    "paused": 2,
    "retired": 2,
    "joined": 2,
    "all killed": 1,
    "all paused": 0.7,
    "client killed": 0.7,
}


@dataclass(frozen=True)
class Fault:
    """A fault, its victim and its time.

    after : seconds after the fits began; iteration : of any fit; reading : once a table whose name begins so is being read
        (then `after` counts from there)
    victim : number of a slot among the present ones
    """

    kind: str
    victim: int
    after: float
    iteration: int | None = None
    reading: str | None = None
    seconds: float = 0.0
    delay: float | None = 0.0

    def __str__(self) -> str:
        when = f"{self.after:.2f} s after the start"
        if self.iteration is not None:
            when = f"{self.after:.2f} s after iteration {self.iteration}"
        if self.reading is not None:
            when = f"{self.after:.2f} s after the {self.reading} begins to be read"
        text = f"worker {self.victim} {self.kind}" if "all" not in self.kind and "client" not in self.kind else self.kind
        text += f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{text}, {when}, back after {self.delay} s"


def draw_faults(chance: random.Random, specs: Sequence[Spec], n_workers: int) -> list[Fault]:
    """None, one, or several."""
    n = chance.choices([0, 1, 2, 3, 4, 6], [1, 5, 3, 2, 1, 1])[0]
    faults = [_draw(chance, specs, n_workers) for _ in range(n)]
    if len(specs) > 1 and any(spec.evaluation in ("lazy", "path") for spec in specs) and chance.random() < 0.5:
        # A worker is back at its address while one of two fits reads its evaluation set.
        after = round(chance.uniform(0.0, 0.3), 3)
        faults.append(Fault("killed", chance.randrange(n_workers), after, reading="evaluation"))
    return sorted(faults, key=lambda fault: fault.after)


def _draw(chance: random.Random, specs: Sequence[Spec], n_workers: int) -> Fault:
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    seconds = 0.0
    if kind in ("stopped", "stopped, killed"):
        seconds = 0.5 * 60 ** chance.random()
    elif kind in ("paused", "all paused"):
        seconds = 0.5 * 16 ** chance.random()
        if kind == "all paused" and chance.random() < 0.2:
            seconds = 100.0  # longer than the timeout of any fit
    delay: float | None = chance.choice([0.0, 0.0, 0.0, chance.uniform(0.1, 5.0), None])
    if kind == "all killed":
        delay = chance.choice([0.0, chance.uniform(0.0, 4.0)])
    after, iteration, reading = chance.uniform(0.0, 3.0), None, None
    how = chance.random()
    lazy = any(spec.evaluation in ("lazy", "path") for spec in specs)
    if how < 0.3:
        iteration, after = chance.randint(1, 20), chance.uniform(0.0, 0.03)
    elif how < 0.45:
        reading, after = "training", chance.uniform(0.0, 1.0)
    elif how < 0.65 and lazy:
        reading, after = "evaluation", chance.uniform(0.0, 0.5)
    return Fault(kind, chance.randrange(n_workers), round(after, 3), iteration, reading, round(seconds, 2), delay)


class FaultRunner:
    """Carries out the faults of one job; `step` must be called continually.

    log : lines with the time of everything that was done.
    """

    def __init__(self, cluster: Cluster, faults: Sequence[Fault], kill_client: Callable[[], bool]) -> None:
        self._cluster, self._waiting, self._kill_client = cluster, list(faults), kill_client
        self._chores: list[tuple[float, Callable[[], Any]]] = []
        self._began = time.monotonic()
        self._seen: dict[str, float] = {}
        self._iterations: dict[int, float] = {}
        self._own = [slot for slot in cluster.slots if slot.wanted]
        self.joined: list[Slot] = []
        self.log: list[str] = []
        self.counts: Counter[str] = Counter()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def note(self, what: str) -> None:
        self.log.append(f"{self.elapsed:7.3f} s  {what}")

    def saw_iteration(self, n: int) -> None:
        self._iterations.setdefault(n, time.monotonic())

    def saw(self, event: dict[str, Any]) -> None:
        """Note an event of the topic "dboost"."""
        if event.get("action") == "reading":
            self._seen.setdefault(str(event.get("table")).split(" ")[0], time.monotonic())
        if event.get("action") in ("lost", "removed"):
            self.note(f"the scheduler says: worker {event.get('worker')} {event['action']} {event.get('reason', '')}")

    def step(self) -> None:
        """Carry out what is due."""
        now = time.monotonic()
        for chore in [chore for chore in self._chores if chore[0] <= now]:
            self._chores.remove(chore)
            chore[1]()
        for fault in [fault for fault in self._waiting if self._is_due(fault, now)]:
            self._waiting.remove(fault)
            done = self._do(fault)
            self.note(f"{fault.kind}: {done}")
            self.counts[fault.kind if "nothing" not in done else "not possible"] += 1
        for number in self._cluster.supervise():
            self.note(f"worker {number} had ended by itself and is started anew")

    def _is_due(self, fault: Fault, now: float) -> bool:
        start: float | None = self._began
        if fault.iteration is not None:
            start = self._iterations.get(fault.iteration)
        elif fault.reading is not None:
            start = self._seen.get(fault.reading)
        return start is not None and now >= start + fault.after

    def _in(self, seconds: float, chore: Callable[[], Any]) -> None:
        self._chores.append((time.monotonic() + seconds, chore))

    def _do(self, fault: Fault) -> str:
        slot = self._own[fault.victim % len(self._own)]
        others = sum(other.works for other in [*self._own, *self.joined] if other is not slot)
        one = fault.kind in ("killed", "stopped", "stopped, killed", "paused", "retired")
        if one and (others == 0 or not slot.works):
            return f"nothing: worker {slot.number} is the last one, or gone"
        pid = slot.pid()
        who = f"worker {slot.number} (pid {pid}, port {slot.port})"
        if fault.kind == "killed":
            slot.wanted = False
            slot.kill(whole=fault.delay is None)
            self._back(slot, fault.delay)
            return f"{who}, back after {fault.delay} s"
        if fault.kind in ("stopped", "stopped, killed"):
            slot.stop()
            self._in(fault.seconds, lambda: self._go_on(slot, pid, fault))
            return f"{who} for {fault.seconds} s"
        if fault.kind == "paused":
            slot.pause(True)
            self._in(fault.seconds, lambda: self._resume([slot]))
            return f"{who} for {fault.seconds} s"
        if fault.kind == "retired":
            self._cluster.later(lambda: self._retire(slot))
            return who
        if fault.kind == "joined":
            if len(self.joined) >= 2:
                return "nothing: two have come already"
            self.joined.append(self._cluster.add_slot())
            return f"worker {self.joined[-1].number} is started"
        if fault.kind == "all killed":
            for other in self._own:
                other.wanted = False
                other.kill()
                self._back(other, fault.delay)
            for other in self.joined:
                other.end()
            return f"back after {fault.delay} s"
        if fault.kind == "all paused":
            paused = [other for other in [*self._own, *self.joined] if other.works and other.pause(True)]
            self._in(fault.seconds, lambda: self._resume(paused))
            return f"for {fault.seconds} s"
        assert fault.kind == "client killed"
        return "a client" if self._kill_client() else "nothing: no client fits"

    def _back(self, slot: Slot, delay: float | None) -> None:
        """Restart a killed worker; a nanny does that by itself."""
        if self._cluster.setting.nanny and slot.process is not None and slot.process.runs:
            slot.wanted = True
        elif delay is not None:
            slot.wanted = False
            self._in(delay, lambda: self._start(slot))

    def _start(self, slot: Slot) -> None:
        if slot.process is None or not slot.process.runs:
            self.note(f"worker {slot.number} is started anew")
            slot.start()

    def _go_on(self, slot: Slot, pid: int | None, fault: Fault) -> None:
        if slot.stopped != pid:
            return  # another process, such as its nanny, has killed it
        if fault.kind == "stopped":
            self.note(f"worker {slot.number} is resumed")
            slot.go_on()
            return
        self.note(f"worker {slot.number} is killed while it is stopped")
        slot.wanted = False
        slot.kill()
        self._back(slot, fault.delay or 0.0)

    def _resume(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            if slot.paused:
                slot.pause(False)
                self.note(f"worker {slot.number} is resumed")

    def _retire(self, slot: Slot) -> None:
        address = self._cluster.address_of(slot)
        if address is not None:
            self._cluster.monitor.retire_workers([address])

    def settle(self) -> None:
        """After the job: resume all stopped workers, restart all lost ones, end those that joined."""
        self._waiting.clear()
        self._chores.clear()
        for slot in self.joined:
            slot.end()
        for slot in self._own:
            slot.go_on()
            if slot.paused:
                slot.pause(False)
            slot.wanted = True
            if slot.process is None or not slot.process.runs:
                slot.start()
