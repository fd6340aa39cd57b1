"""Where a call of `dboost.fit` may run: `PLACES`, each a function that trains the model of a call, or raises its error.

The reference is `call` with plain tables in this process. Every place must give its model, to the last bit, or its error.
"""

from __future__ import annotations

import os
import signal
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import dask
from distributed import Client

import dboost
from dboost import Booster
from dboost.tuning import Tuning, tuned
from tests.helpers.clusters import impatient, lines_cluster


class Killed(BaseException):
    """Stands for a killed process."""


@dataclass(frozen=True)
class Call(ABC):
    """A call of `dboost.fit` with what its places need."""

    #: The model that is continued.
    earlier: Booster | None
    folder: Path
    client: Client | None = None
    #: Distinguishes the random choices of places.
    place: str = ""

    @abstractmethod
    def rows(self) -> dict[str, Any]:
        """Return data, target, sample_weight and offset."""

    @abstractmethod
    def keywords(self) -> dict[str, Any]:
        """Return all other keywords."""

    def train(self, **more: Any) -> Booster:
        """Call `dboost.fit`, with some keywords changed."""
        return dboost.fit(**self.rows(), **self.keywords() | more)

    @abstractmethod
    def rng(self, what: str) -> Random:
        """Return the random numbers of one choice of a place."""


def seeded(*what: Any) -> Random:
    return Random(zlib.crc32(" ".join(map(str, what)).encode()))


# The places.


def _threads(case: Call) -> Booster:
    return case.train(n_threads=1 + case.keywords().get("n_threads", 2) % 3)


def rows_in_files(block_rows: int | None = None) -> AbstractContextManager[Tuning]:
    """Make every memory limit too small for the rows, also for those of evaluation sets."""
    return tuned(resident_rows=0, retained_bytes=0, **{} if block_rows is None else {"block_rows": block_rows})


def small_things(block_rows: int = 32) -> AbstractContextManager[Tuning]:
    """Use several threads for small tables, and short blocks in files."""
    return tuned(small_cells=0, block_rows=block_rows, least_bite_block_rows=block_rows)


def _streamed(case: Call, **more: Any) -> Booster:
    with rows_in_files():
        return case.train(memory_limit="64MiB", **more)


def killing(case: Call, kill: Callable[[], None]) -> dict[str, Any]:
    """Return the keywords of a fit that writes checkpoints and is killed after an iteration."""
    before = 0 if case.earlier is None else case.earlier.n_iter_
    last = before + case.rng("killed").randint(1, max(min(4, case.keywords()["max_iter"]), 1))

    def callback(now: dboost.Iteration) -> None:
        if now.iteration == last:
            kill()

    return {"callbacks": [callback]}


def _killed(case: Call) -> Booster:
    keeping: dict[str, Any] = {"checkpoint": case.folder / "run", "checkpoint_every": case.rng("every").randint(1, 2)}

    def kill() -> None:
        raise Killed

    for _ in range(2):  # the second fit grows the iterations since the last checkpoint again, and is killed, too
        with suppress(Killed):
            case.train(**killing(case, kill), **keeping)
    return case.train(**keeping)


#: Keywords of `dboost.fit` that `dboost.prepare` takes, after which a fit must not repeat those that are not in the last line.
SHAPING = ("features", "categorical_features", "max_bins", "start_from", "continue_bins")


def prepared(case: Call, path: Path | None = None, how: dict[str, Any] | None = None, **more: Any) -> Booster:
    """Prepare the rows in a folder, temporary files or the memory of workers, and fit. how : further keywords of the fit."""
    keywords, rows = case.keywords(), case.rows()
    shaping = {name: keywords[name] for name in SHAPING if name in keywords}
    data = dboost.prepare(**rows, path=path, **shaping, random_state=keywords.get("random_state", 0), **more)
    kept = {name: value for name, value in keywords.items() if name not in ("features", "categorical_features")} | (how or {})
    with data:
        name = rows["target"] if isinstance(rows["target"], str) else None
        if path is None:
            return dboost.fit(data, name, **kept)
        return dboost.fit(dboost.Dataset(path) if "client" in kept else path, name, **kept)


def _prepared_anywhere(case: Call) -> Booster:
    return prepared(case, case.folder / "prepared" if case.rng("path").random() < 0.5 else None)


def _prepared_streamed(case: Call) -> Booster:
    with rows_in_files():
        return prepared(case, case.folder / "prepared", {"memory_limit": "64MiB"})


def _cluster(case: Call, **more: Any) -> Booster:
    return case.train(client=case.client, **more)


def _configured(run: Callable[[Call], Booster] = _cluster, **config: Any) -> Callable[[Call], Booster]:
    """Return a place with some keys of the configuration changed. Rows are handed over in several messages."""

    def configured(case: Call) -> Booster:
        keys = {f"dboost.{key.replace('_', '-')}": value for key, value in config.items()}
        with dask.config.set(keys), tuned(hand_over_bytes=9000):
            return run(case)

    return configured


def _cluster_streamed(case: Call) -> Booster:
    return _streamed(case, client=case.client)


def _cluster_prepared(case: Call) -> Booster:
    return prepared(case, client=case.client)


def _cluster_prepared_files(case: Call) -> Booster:
    """The workers write the data set, and read it again."""
    return prepared(case, case.folder / "prepared", {"client": case.client}, client=case.client)


def _published(case: Call) -> Booster:
    keywords = case.keywords()
    shaping = {name: keywords.pop(name) for name in ("features", "categorical_features") if name in keywords}
    shaping |= {"max_bins": keywords["max_bins"]} if "max_bins" in keywords else {}
    name = f"rows of {case.folder.name}"
    dboost.prepare(**case.rows(), **shaping, random_state=keywords.get("random_state", 0), client=case.client, publish=name)
    data = dboost.Dataset.published(name, case.client)
    try:
        return dboost.fit(data, **keywords)
    finally:
        data.unpublish()


def _cluster_killed(case: Call) -> Booster:
    """Begin a fit on the cluster or in this process, kill it, and resume it in the other place."""
    keeping: dict[str, Any] = {"checkpoint": case.folder / "run", "checkpoint_every": 1}
    clients = [case.client, None]

    def kill() -> None:
        raise Killed

    with suppress(Killed):
        case.train(**killing(case, kill), **keeping, client=clients.pop(case.rng("begun").randrange(2)))
    return case.train(**keeping, client=clients[0])


def _lost_process(case: Call) -> Booster:
    """Lose a worker of a cluster of processes after an iteration."""
    assert case.client is not None
    client = case.client
    pids = list(client.run(os.getpid).values())
    with impatient(client):
        return case.train(**killing(case, lambda: os.kill(pids[0], signal.SIGKILL)), client=client)


async def _remove_worker(address: str, dask_scheduler: Any = None) -> None:
    await dask_scheduler.remove_worker(address, stimulus_id="test", close=True)


def _removed_worker(case: Call) -> Booster:
    """Lose a worker of a cluster of threads after the first iteration. The cluster is one of its own."""
    first = 1 if case.earlier is None else case.earlier.n_iter_ + 1
    with lines_cluster() as client:
        lost = min(client.nthreads())

        def callback(now: dboost.Iteration) -> None:
            if now.iteration == first:
                client.run_on_scheduler(_remove_worker, lost)

        return case.train(client=client, callbacks=[callback])


def _saved_start(case: Call) -> Booster:
    assert case.earlier is not None
    file = case.folder / case.rng("format").choice(["earlier.json", "earlier.dboost"])
    case.earlier.save(file)
    return case.train(start_from=file)


class Place(NamedTuple):
    run: Callable[[Any], Booster]
    #: Whether a call, as `combinations.Draw` or `conformance.Fixed` describe it, can be called there.
    can: Callable[[Any], bool] = lambda described: True
    #: What holds the rows; target and weights may be beside them except for files.
    where: tuple[str, ...] = ("memory", "lazy", "path", "list")
    #: Whether target, weight and offset must be beside the rows (True), must not be (False), or may be.
    apart: bool | None = None
    #: Whether errors are the same sentences, and whether warnings are issued as such.
    same_words: bool = True
    warns: bool = True


def _is_global(described: Any) -> bool:
    return described.is_global and not described.refits


def _can_stream(described: Any) -> bool:
    return _is_global(described) and described.mistake != {"memory_limit": "much"}


def _can_prepare(described: Any) -> bool:
    options, arcbites = getattr(described, "options", {}), described.arcbites
    searches = options.get("max_iter") == "auto" and options.get("refit") is not False
    holds_out = options.get("validation_fraction") is not None or options.get("max_iter") == "auto"
    holds_out &= not searches  # a data set's bins are of all rows, and so are those of two fits
    is_watched = isinstance(arcbites, dict) or (arcbites is not None and arcbites.is_watched)
    holds_out |= is_watched and "eval_set" not in options
    has_its_bins = described.earlier in (None, "start_from, kept bins")  # other bins do not tell the scores of a model
    return _is_global(described) and not holds_out and has_its_bins


def can_prepare_on_cluster(described: Any) -> bool:
    return _can_prepare(described) and described.earlier is None


def can_kill(described: Any) -> bool:
    given = described.mistake if isinstance(described.mistake, dict) else {}
    if getattr(described, "options", {}).get("max_iter") == "auto":  # with a checkpoint it is one fit
        return False
    return not described.refits and not {"checkpoint_every", "callbacks"} & set(given)


_LAZY = ("lazy", "path", "list")

PLACES: dict[str, Place] = {
    "here": Place(lambda case: case.train()),
    "threads": Place(_threads, lambda described: not isinstance(described.mistake, dict)),
    "streamed": Place(_streamed, _can_stream),
    "killed": Place(_killed, can_kill),
    "prepared": Place(_prepared_anywhere, _can_prepare),
    "prepared, streamed": Place(_prepared_streamed, lambda described: _can_stream(described) and _can_prepare(described)),
    "saved start": Place(
        _saved_start, lambda described: described.earlier is not None and not isinstance(described.mistake, dict)
    ),
}
#: Scheduler and workers are threads of this process; on lines if they are connected by TCP.
CLUSTER_PLACES: dict[str, Place] = {
    "cluster": Place(_cluster),
    "relays": Place(_configured(fan_in=2)),
    "slices": Place(_configured(fan_in=2, gather_bytes="0B", owner_bytes=1)),
    "one worker": Place(_configured(single_worker_values=8_000_000)),
    "one session": Place(_configured(session_per_host=True)),
    "cluster, streamed": Place(_cluster_streamed, _can_stream),
    "one session, prepared": Place(_configured(_cluster_prepared, session_per_host=True), can_prepare_on_cluster),
    "cluster, prepared in files": Place(_cluster_prepared_files, can_prepare_on_cluster),
    "cluster, killed": Place(_cluster_killed, can_kill),
}
#: These change the cluster.
CHANGING_PLACES = {"published": Place(_published, can_prepare_on_cluster), "removed worker": Place(_removed_worker, can_kill)}
#: These use a cluster of processes.
PROCESS_PLACES = {
    "workers": Place(_cluster, lambda described: True, _LAZY),
    "a lost worker": Place(_lost_process, lambda described: not described.refits and described.mistake is None, _LAZY),
}
