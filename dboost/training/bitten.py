"""From rows to arcbites: how many, where they rest, and an engine that trains on one after the other.

Where the user does not say how many bites there are to be, a memory limit does: as many as it takes for one to fit, with
everything that training on it needs, and with five standard deviations to spare, for bites are drawn at random. This number
shapes the model, so it must not depend on the threads that happen to be there; it is part of the model's parameters.

Bites rest in memory where all rows fit, else in files, to which the binned data go block by block, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from dboost.arcbites import DEFAULT_BITES
from dboost.engine.bitten import BittenEngine
from dboost.errors import ParameterError
from dboost.shard.bite_files import BiteFiles, Filed
from dboost.shard.bites import Bite, Build, Resting, bite_sizes, bites_of
from dboost.shard.blocks import Traits
from dboost.shard.shard import Codes, empty_codes
from dboost.shard.writing import codes_of
from dboost.sources.spool import PrivateDirectory
from dboost.training.boost import Prepared
from dboost.training.budget import Budget, histogram_bytes, in_words, resident_bytes
from dboost.training.reopened import Answers, traits_of

#: The number of bites allows for the histograms of so many threads, however many there are.
_THREADS = 4


def settle_bites(prepared: Prepared, budget: Budget | None, most_rows: int | None = None) -> None:
    """Give the parameters of a fit with arcbites a number of bites.

    On a cluster it is the number of one process with the same limit, though the workers together could hold larger bites: so
    the model does not depend on how many they are, and each of them could go on alone. Who chooses the number may have more.

    most_rows : of the worker that has most; default: there is but this process.

    Raises
    ------
    ParameterError
        When there are more bites than rows, they do not fit the limit, or it is too small for any number of them.
    """
    arcbites, n_rows = prepared.parameters.arcbites, prepared.n_rows
    if arcbites is None:
        return
    n_bites = arcbites.n_bites
    if n_bites is None:
        n_bites = min(DEFAULT_BITES, n_rows) if budget is None else _bites_within(budget, traits_of(prepared), n_rows)
    elif budget is not None:
        _check_fits(budget, traits_of(prepared), n_rows if most_rows is None else most_rows, n_bites)
    if n_bites * arcbites.parts > n_rows:
        of = "" if arcbites.parts == 1 else f" of {arcbites.parts} parts each"
        raise ParameterError(f"arcbites: n_bites={n_bites}{of} is more than the {n_rows} rows that there are to train on")
    settled = replace(arcbites, n_bites=n_bites)
    prepared.parameters = replace(prepared.parameters, arcbites=settled)
    prepared.learning = replace(prepared.learning, arcbites=settled)


def _bites_within(budget: Budget, traits: Traits, n_rows: int) -> int:
    room = _room(budget, traits)
    n_bites = 1
    while bite_bytes(traits, n_rows, n_bites) > room:
        if n_bites >= n_rows // 2:
            raise ParameterError(
                f"memory_limit of {in_words(budget.limit)} is too small for trees of {traits.max_leaves} leaves over "
                f"{len(traits.layout.n_bins)} features, however small the bites"
            )
        n_bites += max(n_bites // 50, 1)
    return n_bites


def _room(budget: Budget, traits: Traits) -> int:
    """What a bite may take."""
    return budget.limit - budget.retained - histogram_bytes(traits, _THREADS)


def _check_fits(budget: Budget, traits: Traits, n_rows: int, n_bites: int) -> None:
    """Refuse bites that the user has made too large."""
    wanted, room = bite_bytes(traits, n_rows, n_bites), _room(budget, traits)
    if wanted > room:
        raise ParameterError(
            f"arcbites: with n_bites={n_bites} the {n_rows} rows of one place make bites that take {in_words(wanted)}, but "
            f"memory_limit of {in_words(budget.limit)} leaves {in_words(max(room, 0))} for one: let there be "
            f"{_bites_within(budget, traits, n_rows)} of them, or leave n_bites out"
        )


def bite_bytes(traits: Traits, n_rows: int, n_bites: int) -> int:
    """What the largest of so many bites of so many rows takes while it is trained on."""
    mean = n_rows / n_bites
    largest = min(n_rows, math.ceil(mean + 5 * math.sqrt(mean)))
    return resident_bytes(traits, largest) + 8 * largest


def bites_in_memory(
    prepared: Prepared, codes: Codes, y: np.ndarray, weight: np.ndarray | None, raw: np.ndarray, n_threads: int
) -> BittenEngine:
    """Divide rows in memory."""
    n_bites, seed = _division(prepared)
    rows = Resting(codes, y, weight, raw, np.arange(len(y)))
    return _engine(prepared, [bite for _, bite in rows.divided(seed, n_bites)], n_threads, int, None)


def bites_in_files(
    answers: Answers, prepared: Prepared, folder: PrivateDirectory, n_threads: int, budget: Budget
) -> BittenEngine:
    """Divide binned data, block by block, into files of their own, which go with the engine.

    Raises
    ------
    StorageError
        When the files cannot be written.
    """
    n_bites, seed = _division(prepared)
    data, layout = answers.data, prepared.layout
    sizes = bite_sizes(seed, n_bites, prepared.n_rows)
    n_outputs, filling = len(prepared.baseline), budget.limit // 4
    files = BiteFiles(folder.path, layout, n_outputs, prepared.weighted, sizes, filling_bytes=filling)

    def pieces() -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        buffer, first = data.codes.buffer(), 0
        for block, rows in enumerate(answers.starting(prepared)):
            n = len(rows["target"])
            data.codes.read(block, buffer)
            views, codes = data.codes.views(buffer, block), empty_codes(layout, n)
            codes_of(views["tiles"], views.get("wide"), layout, codes)
            numbers = np.arange(first, first + n)
            fields = rows | {"narrow": codes.narrow, "numbers": numbers} | ({"wide": codes.wide} if len(codes.wide) else {})
            yield bites_of(seed, n_bites, numbers), fields
            first += n

    files.write(pieces())

    def release() -> None:
        files.close()
        folder.close()

    return _engine(prepared, [Filed(files, bite) for bite in range(n_bites)], n_threads, lambda: files.bytes_read, release)


def _division(prepared: Prepared) -> tuple[int, int]:
    """How many parts of bites, and the seed by which rows are divided among them."""
    arcbites = prepared.parameters.arcbites
    assert arcbites is not None
    return arcbites.n_parts, prepared.parameters.random_state


def _engine(
    prepared: Prepared,
    bites: Sequence[Bite],
    n_threads: int,
    bytes_read: Callable[[], int],
    release: Callable[[], object] | None,
) -> BittenEngine:
    arcbites = prepared.parameters.arcbites
    assert arcbites is not None
    return BittenEngine(
        bites,
        Build(
            prepared.layout,
            prepared.bin_layout,
            constant_hessian=prepared.constant_hessian,
            max_leaves=prepared.rule.max_leaves,
            whole_weights=prepared.heaviest is not None,
            by_weight=prepared.by_weight,
        ),
        prepared.target.loss.terms(),
        rule=prepared.rule,
        n_planes=prepared.n_planes,
        coarse=prepared.start.loss_unit,
        n_threads=n_threads,
        n_together=arcbites.parts,
        bytes_read=bytes_read,
        release=release,
    )
