"""Job after job: fits, faults, and checks at the end.

1. A fit gives the file, the history and the sources of a fit in one process, or an error of dboost that names the cause.
2. A fit without progress for `HANG` seconds hangs.
3. At the end, within `LEAK` seconds, neither scheduler nor workers hold anything of a fit, in memory or in files.
4. All workers are back.

A job that violates one of these is a `Violation`: parameters, faults and logs are printed, and the next job gets a new cluster.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.chaos.cluster import ClientProcess, Cluster, Setting
from tests.chaos.faults import Fault, FaultRunner, draw_faults
from tests.chaos.fits import Outcome, Spec, checkpoint_of, draw, fit, write_table
from tests.chaos.inside import held, known

HANG, LEAK, BACK = 90.0, 30.0, 60.0
#: Jobs on one cluster.
ROUND = 12
WARM_UP = Spec(
    *(5000, 5, 4, 0), target="z", options={"max_iter": 3, "n_threads": 2, "progress": False}, evaluation="lazy", weight=True
)
_NAMES_A_CAUSE = re.compile(r"worker|partition|scheduler|cannot be read|\.parquet|tcp://")
_INTERNAL = re.compile(
    r"(KeyError|AttributeError|AssertionError|TypeError|IndexError|ValueError|RuntimeError|UnboundLocalError|NameError|"
    r"StopIteration|BufferError|ZeroDivisionError|UnpicklingError|EOFError|InvalidStateError)\b"
)
_PRIVATE = re.compile(r"dboost-(\d+)-.+")


@dataclass
class Fitting:
    """One fit of a job."""

    name: str
    spec: Spec
    expected: Outcome
    client: ClientProcess
    began: float = 0.0
    seconds: float = 0.0
    iteration: int = 0
    attempts: int = 1
    progressed: float = 0.0
    result: str | None = None
    text: str = ""


@dataclass(frozen=True)
class Violation:
    job: int
    kind: str
    text: str
    report: Path

    def __str__(self) -> str:
        return f"job {self.job}: {self.kind}: {self.text}"


@dataclass
class Summary:
    """Counters of a run."""

    seed: int
    jobs: int = 0
    fits: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    restarts: int = 0
    litter: int = 0
    peak: dict[str, float] = field(default_factory=dict)
    slowest: float = 0.0

    def __str__(self) -> str:
        def table(title: str, counts: Counter[str]) -> list[str]:
            return [f"{title}:", *(f"  {n:6}  {name}" for name, n in counts.most_common())] if counts else []

        lines = [f"seed {self.seed}: {self.jobs} jobs, {self.fits.total()} fits, {self.faults.total()} faults"]
        lines += table("fits", self.fits) + table("kinds of fits", self.forms) + table("faults", self.faults)
        lines += table("errors that name a cause", self.errors)
        lines += [f"workers that ended by themselves and were started anew: {self.restarts}"]
        lines += [f"directories that killed workers left behind: {self.litter}", f"slowest fit: {self.slowest:.1f} s"]
        lines += ["largest processes: " + ", ".join(f"{name} {mib:.0f} MiB" for name, mib in sorted(self.peak.items()))]
        kinds = Counter(f"{one.kind}: {_plainly(one.text)}" for one in self.violations)
        lines += table("VIOLATIONS", kinds) + [f"  {one} ({one.report})" for one in self.violations]
        return "\n".join(lines)


class Run:
    """A run with one seed.

    Parameters
    ----------
    seed : int
    folder : Path
        For tables and logs.
    patience : float
        `dboost.patience` of the clusters, in seconds.
    n_specs : int
        How many kinds of fits there are.
    calm : bool
        Nothing goes wrong.
    """

    def __init__(self, seed: int, folder: Path, *, patience: float = 4.0, n_specs: int = 40, calm: bool = False) -> None:
        self.seed, self._patience, self._n_specs, self._calm = seed, patience, n_specs, calm
        self._folder, self._tables = folder, folder / "tables"
        self._tables.mkdir(parents=True, exist_ok=True)
        self._expected: dict[str, Outcome] = {}
        self._cluster: Cluster | None = None
        self._round: int | None = None
        self._n_clusters = 0
        self._warm: set[bool] = set()
        self._began = time.monotonic()
        self.summary = Summary(seed)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_cluster()

    def go(self, seconds: float, first: int = 0, most_violations: int = 12) -> Summary:
        """Run jobs from number `first` on, until the time is over."""
        until = time.monotonic() + seconds
        number = first
        while time.monotonic() < until and len(self.summary.violations) < most_violations:
            self.job(number)
            number += 1
        self._end_cluster()
        return self.summary

    def specs(self, number: int) -> list[Spec]:
        """Return the fits of a job."""
        chance = random.Random(f"{self.seed}/{number}/fits")
        chosen = chance.sample(range(self._n_specs), 2 if chance.random() < 0.3 else 1)
        return [draw(random.Random(f"{self.seed}/spec/{k}")) for k in chosen]

    def plan(self, number: int) -> tuple[Setting, list[Spec], list[Fault]]:
        """Return the cluster of a job, its fits and its faults: all follow from the seed."""
        setting = Setting.draw(random.Random(f"{self.seed}/round/{number // ROUND}"), self._patience)
        specs = self.specs(number)
        chance = random.Random(f"{self.seed}/{number}/faults")
        return setting, specs, [] if self._calm else draw_faults(chance, specs, setting.n_workers)

    def expect(self, spec: Spec, file: str | None = None) -> Outcome:
        """Return the expected result of a fit; file : a digest to expect instead of that of its file."""
        if spec.expects not in self._expected:
            write_table(spec, self._tables)
            found = fit(spec, self._tables)
            self._expected[spec.expects] = found if file is None else replace(found, file=file)
        return self._expected[spec.expects]

    def job(self, number: int) -> None:
        """Carry out one job."""
        setting, specs, faults = self.plan(number)
        expected = [self.expect(spec) for spec in specs]
        cluster = self._cluster_for(number, setting)
        self._say(f"job {number}: " + " | ".join(f"{spec.form} {spec.target} {spec.rows}×{spec.columns}" for spec in specs))
        _Job(self, number, cluster, specs, expected, faults).carry_out()
        self.summary.jobs += 1

    # Steps of a job.

    def _cluster_for(self, number: int, setting: Setting) -> Cluster:
        if self._cluster is None or self._round != number // ROUND:
            self._end_cluster()
            self._n_clusters += 1
            self._say(f"cluster {self._n_clusters}: {setting}")
            self._cluster = Cluster(setting, self._folder / f"cluster-{self._n_clusters}", self._tables).__enter__()
            self._round = number // ROUND
            self._warm_up(self._cluster)
        return self._cluster

    def _warm_up(self, cluster: Cluster) -> None:
        """Compile kernels that were never used on this machine, which takes so long that a fit would seem to hang."""
        if cluster.setting.streams in self._warm:
            return
        self._warm.add(cluster.setting.streams)
        write_table(WARM_UP, self._tables)
        client = cluster.client(0)
        client.order("warm-up", WARM_UP)
        while client.events.get(timeout=600)["event"] not in ("done", "error", "crash", "gone"):
            pass

    def _end_cluster(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            self.summary.restarts += cluster.n_restarts
            cluster.end()
            for slot in cluster.slots:
                shutil.rmtree(slot.folder, ignore_errors=True)

    def _say(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {line}", flush=True)

    def violation(self, kind: str, text: str, job: _Job) -> None:
        """Note a violation, print the available information, and end the cluster."""
        cluster = job.cluster
        if kind in ("hang", "leak", "workers missing"):
            cluster.print_stacks()
            time.sleep(2.0)
        report = self._folder / f"violation-{self.seed}-{job.number}.log"
        lines = [
            f"VIOLATION in job {job.number} of seed {self.seed}: {kind}: {text}",
            f"again: python -m tests.chaos --seed {self.seed} --only {job.number} --patience {self._patience:g}",
            f"cluster: {cluster.setting}",
            *(f"fit {one.name}: {one.spec}" for one in job.fittings),
            *(f"    {one.result}, iteration {one.iteration}, attempts {one.attempts}" for one in job.fittings),
            *(f"planned: {fault}" for fault in job.faults),
            *job.faults_runner.log,
        ]
        brief = "\n".join(lines)
        with open(report, "a") as file:
            print(brief, file=file)
            for one in job.fittings:
                print(f"\n##### fit {one.name}\n{one.text}", file=file)
            for log in cluster.logs():
                print(f"\n##### {log.name}\n" + _tail(log, 400_000), file=file)
        print("\n" + "=" * 100 + f"\n{brief}\n(logs: {report})\n" + "=" * 100, flush=True)
        self.summary.violations.append(Violation(job.number, kind, text.splitlines()[0][:300], report))
        self._end_cluster()


class _Job:
    """Run some fits at once, with their faults."""

    def __init__(
        self,
        run: Run,
        number: int,
        cluster: Cluster,
        specs: Sequence[Spec],
        expected: Sequence[Outcome],
        faults: Sequence[Fault],
    ) -> None:
        self.run, self.number, self.cluster, self.faults = run, number, cluster, faults
        clients = [cluster.client(k) for k in range(len(specs))]
        self.fittings = [
            Fitting(f"{number}.{k}", spec, of, client)
            for k, (spec, of, client) in enumerate(zip(specs, expected, clients, strict=True))
        ]
        self.faults_runner = FaultRunner(cluster, faults, self._kill_client)
        self._most_read: dict[tuple[str, str], int] = {}

    def carry_out(self) -> None:
        summary, faults_runner, n_before = self.run.summary, self.faults_runner, len(self.run.summary.violations)
        while not self.cluster.news.empty():
            self.cluster.news.get()
        for one in self.fittings:
            shutil.rmtree(checkpoint_of(one.spec, self.run._tables), ignore_errors=True)
            self._order(one)
        while any(one.result is None for one in self.fittings):
            self._step()
            if len(summary.violations) > n_before:
                return
        for one in self.fittings:
            summary.fits[str(one.result)] += 1
            kind = "arcbites" if "arcbites" in one.spec.options else one.spec.base or one.spec.form
            summary.forms[f"{kind}, {one.spec.options.get('loss', 'leaves')}"] += 1
            summary.slowest = max(summary.slowest, one.seconds)
        summary.faults.update(faults_runner.counts)
        faults_runner.note("all fits have ended")
        faults_runner.settle()
        self._recover()
        for name, mib in self.cluster.peaks().items():
            kind = name.split(" ")[0]
            summary.peak[kind] = max(summary.peak.get(kind, 0.0), mib)
        if len(summary.violations) == n_before:
            done = ", ".join(f"{one.result} in {one.seconds:.1f} s" for one in self.fittings)
            self.run._say(f"    {done}; faults: {dict(faults_runner.counts) or 'none'}")

    # While fits run.

    def _order(self, one: Fitting) -> None:
        one.progressed = time.monotonic()
        one.began = one.began or one.progressed
        one.client.order(one.name, one.spec)

    def _step(self) -> None:
        news = self.cluster.news
        while not news.empty():
            event = news.get()
            self.faults_runner.saw(event)
            self._see_reading(event)
        self.faults_runner.step()
        for one in self.fittings:
            while one.result is None and not one.client.events.empty():
                self._hear(one, one.client.events.get())
        now = time.monotonic()
        for one in self.fittings:
            if one.result is None and now - one.progressed > HANG:
                one.result = "hang"
                text = f"no progress for {HANG:.0f} s after iteration {one.iteration}"
                self.run.violation("hang", text, self)
                return
        time.sleep(0.01)

    def _see_reading(self, event: dict[str, Any]) -> None:
        """Before the first iteration, reading more partitions of a table than before counts as progress."""
        if event.get("action") != "reading":
            return
        table = str(event["fit"]), str(event["table"])
        if int(event["read"]) > self._most_read.get(table, -1):
            self._most_read[table] = int(event["read"])
            for one in self.fittings:
                if not one.iteration:
                    one.progressed = time.monotonic()

    def _hear(self, one: Fitting, event: dict[str, Any]) -> None:
        kind = event["event"]
        one.progressed = time.monotonic()
        one.seconds = one.progressed - one.began
        if kind == "iteration":
            if not one.iteration:
                self.faults_runner.note(f"fit {one.name}: first iteration")
            one.iteration = event["n"]
            self.faults_runner.saw_iteration(event["n"])
        elif kind == "done":
            self._compare(one, Outcome(**event["outcome"]))
        elif kind == "error":
            self._judge_error(one, event)
        elif kind == "crash":
            one.result, one.text = "crash", event["trace"]
            self.run.violation("crash", f"{event['type']}: {event['text']}", self)
        elif kind == "gone":
            one.result, one.text = "client gone", "its process ended"
            self.run.violation("client gone", f"the process of client {one.client.number} ended", self)

    def _compare(self, one: Fitting, found: Outcome) -> None:
        self.faults_runner.note(f"fit {one.name} is done")
        if found == one.expected:
            one.result = "identical"
            return
        one.result = "different"
        differs = [name for name in ("file", "history", "sources") if getattr(found, name) != getattr(one.expected, name)]
        one.text = f"expected {one.expected}, found {found}"
        self.run.violation("different model", f"{' and '.join(differs)} differ", self)

    def _judge_error(self, one: Fitting, event: dict[str, Any]) -> None:
        text = f"{event['type']}: {event['text']}"
        self.faults_runner.note(f"fit {one.name} raises {text}")
        one.result, one.text = "error", event["trace"]
        if not self.faults_runner.counts:
            self.run.violation("error without a fault", text, self)
        elif _INTERNAL.search(event["text"]):
            self.run.violation("internal error", text, self)
        elif not _NAMES_A_CAUSE.search(event["text"]):
            self.run.violation("error without a cause", text, self)
        else:
            self.run.summary.errors[_plainly(text)] += 1
            self.run._say(f"    error: {text}")

    def _kill_client(self) -> bool:
        """Kill a client. Another one resumes a fit with a checkpoint."""
        running = [one for one in self.fittings if one.result is None]
        if not running:
            return False
        one = next((one for one in running if one.spec.checkpoint), running[0])
        one.client.process.end()
        one.client = self.cluster.client(one.client.number)
        if one.spec.checkpoint:
            one.attempts += 1
            self.faults_runner.note(f"fit {one.name} is resumed from its checkpoint")
            self._order(one)
        else:
            one.result = "client killed"
        return True

    # After a job.

    def _recover(self) -> None:
        n_before = len(self.run.summary.violations)
        missing = self._missing(BACK)
        if missing:
            self.run.violation("workers missing", f"{missing} after {BACK:.0f} s", self)
            return
        began, left = time.monotonic(), ""
        while time.monotonic() - began < LEAK:
            left = self._left()
            if not left:
                break
            time.sleep(0.3)
            self.faults_runner.step()
        if left and len(self.run.summary.violations) == n_before:
            self.run.violation("leak", f"after {LEAK:.0f} s there is still {left}", self)
        self.run.summary.litter += sum(len(_private(slot.folder, alive=False)) for slot in self.cluster.slots)
        for slot in self.cluster.slots:
            for path in _private(slot.folder, alive=False):
                shutil.rmtree(path, ignore_errors=True)

    def _missing(self, seconds: float) -> str:
        """Return the workers that are not back; those that end by themselves meanwhile are restarted."""
        until = time.monotonic() + seconds
        while True:
            self.faults_runner.step()
            wanted = [slot for slot in self.cluster.slots if slot.wanted]
            roster = self.cluster.roster()
            if len(roster) == len(wanted) and all(slot.pid() is not None for slot in wanted):
                return ""
            if time.monotonic() > until:
                return f"{len(roster)} of {len(wanted)} workers are there: {', '.join(roster)}"
            time.sleep(0.2)

    def _left(self) -> str:
        """Describe what is still held of fits."""
        cluster = self.cluster
        found = cluster.within(10.0, lambda: cluster.monitor.run_on_scheduler(known))
        if found is None:
            return "no answer of the scheduler"
        if found["fits"] or found["tasks"]:
            return f"on the scheduler {found}"
        answers = cluster.within(10.0, lambda: cluster.monitor.run(held, on_error="return"))
        if answers is None:
            return "no answer of the workers"
        for address, answer in answers.items():
            if answer:
                return f"on worker {address}: {answer}"
        files = [path for slot in cluster.slots for path in _private(slot.folder, alive=True)]
        return "files: " + ", ".join(map(str, files)) if files else ""


def _private(folder: Path, *, alive: bool) -> list[Path]:
    """Return private directories of dboost under a worker's folder, of live and of lost processes."""
    found = []
    for parent, names, _ in os.walk(folder):
        for name in list(names):
            match = _PRIVATE.fullmatch(name)
            if match:
                names.remove(name)
                if Path(f"/proc/{match[1]}").exists() == alive:
                    found.append(Path(parent) / name)
    return found


def _plainly(text: str) -> str:
    """Return a message without the parts that differ every time."""
    text = re.sub(r"tcp://[\d.]+:\d+", "tcp://…", text.splitlines()[0])
    text = re.sub(r"/[\w./-]*/(?=[\w.-]+)", "…/", text)
    return re.sub(r"\b[0-9a-f]{12,}\b|\d+", "#", text)[:200]


def _tail(path: Path, n_bytes: int) -> str:
    with open(path, "rb") as file:
        file.seek(max(os.path.getsize(path) - n_bytes, 0))
        return file.read().decode(errors="replace")


def temporary_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="chaos-"))


def keep_going(seed: int, minutes: float, *, folder: Path | None = None, most: int = 12, **options: Any) -> Summary:
    """Run from the first job on; the folder is kept after a violation."""
    home = temporary_folder() if folder is None else folder
    with Run(seed, home, **options) as run:
        try:
            summary = run.go(60 * minutes, most_violations=most)
        finally:
            print(run.summary, file=sys.stderr if sys.exc_info()[0] else sys.stdout, flush=True)
    if folder is None and not summary.violations:
        shutil.rmtree(home, ignore_errors=True)
    return summary
