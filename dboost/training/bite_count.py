"""How many arcbites there are, where the user does not say.

With a memory limit there are as many as it takes for one bite to fit the limit together with everything that training on it
needs, and with five standard deviations to spare, because bites are random subsets of the rows. The number shapes the model,
so it must not depend on the number of threads; it is one of the model's parameters.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dboost.errors import ParameterError
from dboost.params import DEFAULT_BITES, ArcBites
from dboost.session.memory_budget import Budget, format_bytes, histogram_bytes, resident_bytes
from dboost.shards.shard_spec import ShardSpec

#: The number of bites allows for the histograms of so many threads, however many there are.
_THREADS = 4


def with_bite_count(
    arcbites: ArcBites | None, spec: ShardSpec, budget: Budget | None, n_rows: int, most_rows: int
) -> ArcBites | None:
    """The same arcbites with a number of bites.

    On a cluster it is the number of one process with the same limit, though the workers together could hold larger bites: so
    the model does not depend on how many they are, and each of them could go on alone. Who chooses the number may have more.

    most_rows : rows of the process that has most.

    Raises
    ------
    ParameterError
        When there are more bites than rows, they do not fit the limit, or it is too small for any number of them.
    """
    if arcbites is None:
        return None
    n_bites = arcbites.n_bites
    if n_bites is None:
        n_bites = min(DEFAULT_BITES, n_rows) if budget is None else _bites_within(budget, spec, n_rows)
    elif budget is not None:
        _check_fits(budget, spec, most_rows, n_bites)
    if n_bites * arcbites.parts > n_rows:
        of = "" if arcbites.parts == 1 else f" of {arcbites.parts} parts each"
        raise ParameterError(f"arcbites: n_bites={n_bites}{of} is more than the {n_rows} rows that there are to train on")
    return replace(arcbites, n_bites=n_bites)


def _bites_within(budget: Budget, spec: ShardSpec, n_rows: int) -> int:
    room = _bytes_for_bite(budget, spec)
    n_bites = 1
    while bite_bytes(spec, n_rows, n_bites) > room:
        if n_bites >= n_rows // 2:
            raise ParameterError(
                f"memory_limit of {format_bytes(budget.limit)} is too small for trees of {spec.max_leaves} leaves over "
                f"{len(spec.layout.n_bins)} features, however small the bites"
            )
        n_bites += max(n_bites // 50, 1)
    return n_bites


def _bytes_for_bite(budget: Budget, spec: ShardSpec) -> int:
    """What a bite may take."""
    return budget.limit - budget.retained - histogram_bytes(spec, _THREADS)


def _check_fits(budget: Budget, spec: ShardSpec, n_rows: int, n_bites: int) -> None:
    """Refuse bites that the user has made too large."""
    wanted, room = bite_bytes(spec, n_rows, n_bites), _bytes_for_bite(budget, spec)
    if wanted > room:
        raise ParameterError(
            f"arcbites: with n_bites={n_bites} the {n_rows} rows of one place make bites that take {format_bytes(wanted)}, but "
            f"memory_limit of {format_bytes(budget.limit)} leaves {format_bytes(max(room, 0))} for one: let there be "
            f"{_bites_within(budget, spec, n_rows)} of them, or leave n_bites out"
        )


def bite_bytes(spec: ShardSpec, n_rows: int, n_bites: int) -> int:
    """What the largest of so many bites of so many rows takes while it is trained on."""
    mean = n_rows / n_bites
    largest = min(n_rows, math.ceil(mean + 5 * math.sqrt(mean)))
    return resident_bytes(spec, largest) + 8 * largest
