"""Arcbites: how a fit goes through data that do not fit in memory, one random subset after another.

A *bite* is a subset of the rows, drawn at random over the whole data, that does fit. Boosting starts at the current scores of
a bite's rows and goes on with them for some trees, or as long as an independent test set says that the combined model gets
better; then comes the next bite. (L. Breiman, "Pasting bites together for prediction in large data sets and on-line", 1997;
J. Friedman, "Greedy function approximation", 2001, section 10.)

This is the record of the user's choice; `training.visits` carries it out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

from dboost.errors import ParameterError

CYCLIC, RANDOM, ADAPTIVE = "cyclic", "random", "adaptive"
ORDERS = (RANDOM, CYCLIC, ADAPTIVE)
#: Bites where neither their number nor a limit of the memory is given.
DEFAULT_BITES = 10
#: Iterations without improvement after which a bite is left, where neither the record nor the fit says.
DEFAULT_ROUNDS = 10


@dataclass(frozen=True)
class ArcBites:
    """Sequential boosting on random subsets of the rows.

    Every row belongs to one bite, by a hash of the seed and its number among all rows; so the bites are random subsets of
    about the same size, whatever the partitions, and on a cluster every worker has a part of each. One bite at a time is in
    memory and trained on. When a bite is entered its rows' scores take in the trees that they have not seen.

    Without `trees_per_visit`, or with `early_stopping_rounds`, an independent test set decides when to leave a bite: after so
    many iterations in which its metric has not improved. The model is cut back to the best iteration so far, which may be
    the one that the bite began with, and the next bite goes on from there. The fit ends after all visits, after a whole
    cycle of bites without improvement, or when `max_iter` iterations have been grown, those cut back included.

    Parameters
    ----------
    n_bites : int >= 1 or None
        None: as many as it takes for one to fit in `memory_limit`; 10 without a limit.
    trees_per_visit : int >= 1 or None
        Iterations on a bite before the next one, at most. With this alone every visit grows so many, and no test set is
        needed.
    visits : int >= 1 or None
        How often each bite is visited (with order="adaptive", on average). None: until `max_iter`.
    order : "random", "cyclic" or "adaptive"
        Another random order in every cycle; the same order; or always the bite (other than the one just left) whose rows
        have the highest mean loss at present. To know that, adaptive order reads all bites before every visit.
    early_stopping_rounds : int >= 1 or None
        Iterations without improvement on the test set (the last metric of the last evaluation set) after which a bite is
        left. None, without `trees_per_visit`: the fit's own `early_stopping_rounds`, else 10.
    parts : int >= 1
        The rows are divided into so many parts for each bite, and in every cycle the parts are put together to bites in
        another way. With one part a row has the same company at every visit, and many cycles fit what is particular to it;
        with two or more they do so later. Not with order="adaptive", which knows bites by their loss.

    Raises
    ------
    ParameterError
    """

    n_bites: int | None = None
    trees_per_visit: int | None = None
    visits: int | None = 1
    order: str = RANDOM
    early_stopping_rounds: int | None = None
    parts: int = 1

    def __post_init__(self) -> None:
        for name in ("n_bites", "trees_per_visit", "visits", "early_stopping_rounds"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ParameterError(f"arcbites: {name}={value!r} must be an integer of at least 1 or None")
            object.__setattr__(self, name, int(value))
        if isinstance(self.parts, bool) or not isinstance(self.parts, Integral) or self.parts < 1:
            raise ParameterError(f"arcbites: parts={self.parts!r} must be an integer of at least 1")
        object.__setattr__(self, "parts", int(self.parts))
        if self.parts > 1 and self.order == ADAPTIVE:
            raise ParameterError(
                f"arcbites: parts={self.parts} makes other bites in every cycle, order='adaptive' wants the same"
            )
        if self.order not in ORDERS:
            raise ParameterError(f"arcbites: order={self.order!r} must be one of {', '.join(map(repr, ORDERS))}")

    @property
    def n_parts(self) -> int:
        """Parts of all bites together."""
        assert self.n_bites is not None
        return self.n_bites * self.parts

    @property
    def is_watched(self) -> bool:
        """Whether a test set decides when to leave a bite."""
        return self.trees_per_visit is None or self.early_stopping_rounds is not None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_arcbites(given: Any) -> ArcBites | None:
    """What a user may write for ``arcbites=``: a record, its fields as a dict, True for the defaults, False or None.

    Raises
    ------
    ParameterError
    """
    if given is None or isinstance(given, ArcBites):
        return given
    if isinstance(given, bool):
        return ArcBites() if given else None
    if isinstance(given, dict):
        unknown = sorted(set(given) - set(ArcBites.__dataclass_fields__))
        if unknown:
            known = ", ".join(ArcBites.__dataclass_fields__)
            raise ParameterError(f"arcbites: unknown field {unknown[0]!r}; there are: {known}")
        return ArcBites(**given)
    raise ParameterError(f"arcbites={given!r:.60} must be a dboost.ArcBites, a dict of its fields, True or None")
