"""Partitions that one worker has read: first as a batch whose levels are provisional, then as a table like any other.

What a worker sees of a table is only its own partitions. So a batch is *surveyed*: levels, kinds of columns, numbers of rows
and whatever is to be complained about go to the client, which unites the surveys and says what the features are; then the
batch becomes a `Table` in the final codes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dboost.cluster.messages import MissingPartitions
from dboost.schema import Feature, Level
from dboost.sources.chunk import CategoryColumn, Chunk, Column
from dboost.sources.levels import Dictionary
from dboost.sources.plan import Plan
from dboost.sources.reader import Piece, Reader
from dboost.sources.role_spool import RoleSpool
from dboost.sources.roles import Complaint, Roles, Rows
from dboost.sources.spool import Spool
from dboost.sources.table import Table
from dboost.training.target_survey import TargetSurvey, merge_surveys, survey_target


@dataclass(frozen=True, eq=False)
class Survey:
    """What one worker says of one batch.

    Attributes
    ----------
    lengths, n_kept, n_bytes : {partition: number}
        All rows, those of positive weight, and what the partition weighs.
    kinds : tuple of (bool, int) or None
        Per feature whether it is categorical, and the partition that says so; None where all values are missing.
    levels : tuple of tuple of levels
        Per feature.
    target : TargetSurvey or None
        None when there are no rows of positive weight.
    complaints : tuple of Complaint
    heaviest : float
        The largest weight.
    unit_weights : bool
        All weights are 1 (or 0).
    fingerprints : {partition: int}
        See `sources.partition_fingerprint`.
    """

    lengths: dict[int, int]
    n_kept: dict[int, int]
    n_bytes: dict[int, int]
    kinds: tuple[tuple[bool, int] | None, ...]
    levels: tuple[tuple[Level, ...], ...]
    target: TargetSurvey | None
    complaints: tuple[Complaint, ...]
    heaviest: float
    unit_weights: bool
    fingerprints: dict[int, int]


class Batch:
    """Partitions that are read one by one, from several threads.

    Parameters
    ----------
    plan : Plan
    retain_bytes : int
        What may stay in memory; the rest waits in files.
    most_bytes : int, optional
        Partitions whose columns may be larger are taken in slices that are not.
    spool_roles : bool
        Keep target, weight and offset in files.
    """

    def __init__(self, plan: Plan, retain_bytes: int, most_bytes: int | None = None, *, spool_roles: bool = False) -> None:
        self._plan = plan
        self._spool = Spool(retain_bytes, most_bytes)
        self._apart = RoleSpool() if spool_roles else None
        self._reader = Reader(plan, self._spool, self._apart, fingerprints=True)
        self._pieces: dict[int, Piece] = {}
        self._lock = threading.Lock()
        self._rows: Rows | None = None
        self._roles: Roles | None = None
        self._survey: Survey | None = None

    def take(self, i: int, bundle: tuple[Any, Any, Any, Any]) -> int:
        """Read partition `i`: the table, target, weight and offset. Returns its number of rows."""
        with self._lock:
            known = self._pieces.get(i)
        if known is None:  # Dask may run a task twice
            known = self._reader.take_partition(i, bundle)
            with self._lock:
                self._pieces[i] = known
        return known.n_rows

    def take_slice(self, i: int, chunk: Chunk, number: int) -> None:
        """Take in a slice of partition `i` as another worker has read it; they come in order."""
        one = self._reader.take_slice(i, chunk, number)
        with self._lock:
            self._pieces[i] = Piece((*(self._pieces[i].slices if number else ()), one))

    def n_bytes(self, i: int) -> int:
        """How large the columns of partition `i` are."""
        return self._spool.n_bytes(i)

    def give(self, i: int, number: int) -> tuple[Chunk, bool]:
        """A slice of partition `i`, for another worker, and whether there are more."""
        self._check([i])
        slices = self._pieces[i].slices
        return self._reader.chunk(i, slices[number], number), number + 1 < len(slices)

    def survey(self, numbers: Sequence[int]) -> Survey:
        """What these partitions, which are the ones that count, are made of. The others are forgotten."""
        if self._survey is not None:  # asked again
            return self._survey
        self._check(numbers)
        self._reader.keep(set(numbers))
        self._spool.keep(set(numbers))
        numbers = tuple(sorted(numbers))
        self._rows = rows = Rows(tuple(self._pieces[i].n_rows for i in numbers), True, numbers)
        if self._apart is None:
            roles = self._reader.finish_roles({}, rows)
        else:
            complaints, _ = self._reader.finish_spooled(rows)
            roles = Roles(None, self._apart.target_dtype, self._apart.target_is_bool, None, None, tuple(complaints))
        self._roles = roles
        self._reader.silence_levels({i: self._pieces[i] for i in numbers}, roles.weight)
        told = [_tell(roles, *part) for part in self._parts(rows, roles)]
        targets = [one for *_, one in told if one is not None]
        self._survey = Survey(
            lengths=dict(zip(numbers, rows.lengths, strict=True)),
            n_kept=dict(zip(numbers, (n for n, *_ in told), strict=True)),
            n_bytes={i: self._spool.n_bytes(i) for i in numbers},
            kinds=self._reader.kinds(),
            levels=self._reader.counted_levels(),
            target=reduce(merge_surveys, targets) if targets else None,
            complaints=roles.complaints,
            heaviest=max((heaviest for _, heaviest, *_ in told), default=1.0),
            unit_weights=all(is_unit for *_, is_unit, _ in told),
            fingerprints={i: self._pieces[i].fingerprint for i in numbers},
        )
        return self._survey

    def _check(self, numbers: Sequence[int]) -> None:
        with self._lock:
            missing = [i for i in numbers if i not in self._pieces]
        if missing:
            raise MissingPartitions(", ".join(map(str, missing)))

    def _parts(self, rows: Rows, roles: Roles) -> Iterator[tuple[int, Column | None, np.ndarray | None]]:
        """Rows, target and weight of each partition."""
        first = 0
        for i, n in zip(rows.numbers or (), rows.lengths, strict=True):
            if self._apart is not None:
                target, weight, _ = self._apart.get(i) if n else (None, None, None)
            else:
                here = slice(first, first + n)
                target = roles.target
                if isinstance(target, CategoryColumn):
                    target = CategoryColumn(target.codes[here], target.levels)
                elif target is not None:
                    target = target[here]
                weight = None if roles.weight is None else roles.weight[here]
            yield n, target, weight
            first += n

    def attach(self, role: str, values: dict[int, Any]) -> None:
        """Take in target, weight or offset of the partitions, where the user gave them for all rows at once."""
        for i, part in values.items():
            self._reader.attach(role, i, part)

    def table(self, features: tuple[Feature, ...], named: bool) -> Table:
        """The surveyed partitions as a table, with levels coded as `features` says."""
        assert self._rows is not None and self._roles is not None
        translations: list[np.ndarray | None] = []
        for feature, levels in zip(features, self._reader.levels(), strict=True):
            # A plan that knows the levels has coded them already.
            final = feature.levels is not None and not self._plan.closed
            translations.append(Dictionary(feature.name, feature.levels).translate(levels) if final else None)
        pieces = [self._pieces[i] for i in self._rows.numbers or ()]
        return Table(features, named, self._rows, self._roles, self._spool, pieces, translations, self._apart)

    def close(self) -> None:
        self._spool.close()
        if self._apart is not None:
            self._apart.close()


def _tell(
    roles: Roles, n: int, target: Column | None, weight: np.ndarray | None
) -> tuple[int, float, bool, TargetSurvey | None]:
    """Of one partition: rows of positive weight, the largest weight, whether all are 1 (or 0), and what its target is."""
    if not n:
        return 0, 0.0, True, None
    survey = survey_target(target, weight, str(roles.target_dtype), roles.target_is_bool)
    if weight is None:
        return n, 1.0, True, survey
    return int((weight > 0).sum()), float(weight.max()), bool(((weight == 1.0) | (weight == 0.0)).all()), survey
