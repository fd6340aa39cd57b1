"""The number of arcbites.

Without `n_bites`, a memory limit determines it: the largest bite and the memory for training on it must fit the limit. Bites
are random subsets of the rows, so their size is taken as mean + 5 standard deviations. The number affects the model, so it must
not depend on the number of threads; it is one of the model's parameters.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dboost.errors import ParameterError
from dboost.params import DEFAULT_BITES, ArcBites
from dboost.rows.shard_spec import ShardSpec
from dboost.session.memory import Budget, format_bytes, histogram_bytes, resident_bytes

#: Number of threads that is assumed for the memory of histograms, so that the number of bites does not depend on it.
_THREADS = 4


def with_bite_count(arcbites: ArcBites, spec: ShardSpec, budget: Budget | None, n_rows: int, most_rows: int) -> ArcBites:
    """Return the arcbites with `n_bites` set.

    The default is the number for a single process with the same memory limit. On a cluster larger bites would fit, but the
    model would depend on the number of workers, and a single remaining worker could not continue. A given `n_bites` is checked
    against the process with most rows.

    most_rows : number of rows of the process that has most.

    Raises
    ------
    ParameterError
        When there are more bites than rows, or the bites (of any number, if none is given) do not fit the memory limit.
    """
    n_bites = arcbites.n_bites
    if n_bites is None:
        n_bites = min(DEFAULT_BITES, n_rows) if budget is None else _bites_within(budget, spec, n_rows)
    elif budget is not None:
        _check_fits(budget, spec, most_rows, n_bites)
    if n_bites * arcbites.parts > n_rows:
        parts = "" if arcbites.parts == 1 else f" of {arcbites.parts} parts each"
        raise ParameterError(f"arcbites: n_bites={n_bites}{parts} is more than the {n_rows} rows that there are to train on")
    return replace(arcbites, n_bites=n_bites)


def _bites_within(budget: Budget, spec: ShardSpec, n_rows: int) -> int:
    available = _bytes_for_bite(budget, spec)
    n_bites = 1
    while bite_bytes(spec, n_rows, n_bites) > available:
        if n_bites >= n_rows // 2:
            raise ParameterError(
                f"memory_limit of {format_bytes(budget.limit)} is too small for trees of {spec.max_leaves} leaves over "
                f"{len(spec.layout.n_bins)} features, however small the bites"
            )
        n_bites += max(n_bites // 50, 1)
    return n_bites


def _bytes_for_bite(budget: Budget, spec: ShardSpec) -> int:
    """Return the bytes available to a bite."""
    return budget.limit - budget.retained - histogram_bytes(spec, _THREADS)


def _check_fits(budget: Budget, spec: ShardSpec, n_rows: int, n_bites: int) -> None:
    """Raise ParameterError if bites of the given number do not fit the memory limit."""
    needed, available = bite_bytes(spec, n_rows, n_bites), _bytes_for_bite(budget, spec)
    if needed > available:
        raise ParameterError(
            f"arcbites: with n_bites={n_bites} the {n_rows} rows of one process make bites that take {format_bytes(needed)}, "
            f"but memory_limit of {format_bytes(budget.limit)} leaves {format_bytes(max(available, 0))} for one: let there be "
            f"{_bites_within(budget, spec, n_rows)} of them, or leave n_bites out"
        )


def bite_bytes(spec: ShardSpec, n_rows: int, n_bites: int) -> int:
    """Return the bytes of the largest of `n_bites` bites of `n_rows` rows during training."""
    mean = n_rows / n_bites
    largest = min(n_rows, math.ceil(mean + 5 * math.sqrt(mean)))
    return resident_bytes(spec, largest) + 8 * largest
