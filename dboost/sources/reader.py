"""Collects the chunks of a table while its partitions are read.

Partitions arrive in any order, from several threads. Each is reduced at once to what is kept of it: its arrays (in
the spool), its pieces of target, weight and offset, and whatever it adds to the levels of the columns. A column that
holds numbers in one partition and categories in another stops the reading then and there.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from dboost.errors import DataError, DBoostError
from dboost.schema import Feature
from dboost.sources.chunk import CategoryColumn, Chunk, Column
from dboost.sources.levels import Dictionary, apply
from dboost.sources.partition import read_partition, role_column
from dboost.sources.plan import Plan
from dboost.sources.roles import Roles, Rows, check_offset, check_target, check_weight, join_target, label
from dboost.sources.spool import Spool

_C = TypeVar("_C", np.ndarray | None, Column | None)


@dataclass(frozen=True, eq=False)
class Piece:
    """What is kept of one partition, besides its arrays in the spool.

    Attributes
    ----------
    n_rows : int
    is_matrix : bool
        The arrays are one, a matrix of all columns.
    is_code : tuple of bool
        Per feature, whether its array holds provisional codes.
    target : Column or None
        With provisional codes, if with codes.
    weight, offset : float64[n_rows] or None
    """

    n_rows: int
    is_matrix: bool
    is_code: tuple[bool, ...]
    target: Column | None
    weight: np.ndarray | None
    offset: np.ndarray | None


class Reader:
    """Turns partitions into pieces, and at the end says what the table is made of."""

    def __init__(self, plan: Plan, spool: Spool) -> None:
        self._plan = plan
        self._spool = spool
        known = plan.known or (None,) * len(plan.rules)
        self._dictionaries = [
            Dictionary(rule.name, None if feature is None else feature.levels)
            for rule, feature in zip(plan.rules, known, strict=True)
        ]
        self._target_dictionary = Dictionary(plan.target or "target")
        self._seen: dict[str, tuple[bool, int]] = {}
        self._lock = threading.Lock()

    def take_partition(self, i: int, data: tuple[Any, Any, Any, Any]) -> Piece:
        """Read a partition that nobody else holds: partition, target, weight, offset. Thread-safe."""
        try:
            chunk = read_partition(data[0], self._plan, data[1:])
            arrays, piece = self._translate(i, chunk)
        except DBoostError as error:
            raise type(error)(f"partition {i}: {error}") from None
        self._spool.put(i, arrays)
        return replace(piece, target=_own(piece.target), weight=_own(piece.weight), offset=_own(piece.offset))

    def take_whole(self, data: Any) -> Piece:
        """Read a table that the user holds in memory; nothing is copied that need not be."""
        arrays, piece = self._translate(0, read_partition(data, self._plan))
        self._spool.hold(0, arrays)
        return piece

    def _translate(self, i: int, chunk: Chunk) -> tuple[list[np.ndarray], Piece]:
        arrays, is_code = [], []
        for rule, dictionary, column in zip(self._plan.rules, self._dictionaries, chunk.columns, strict=True):
            array = self._unite(column, dictionary, rule.name, i)
            arrays.append(array)
            is_code.append(isinstance(column, CategoryColumn))
        if chunk.matrix is not None:
            arrays = [chunk.matrix]
        target = None if chunk.target is None else self._target(chunk.target, i)
        flags = tuple(is_code)
        return arrays, Piece(chunk.n_rows, chunk.matrix is not None, flags, target, chunk.weight, chunk.offset)

    def _target(self, column: Column, i: int) -> Column:
        array = self._unite(column, self._target_dictionary, self._plan.target or "target", i)
        return CategoryColumn(array, ()) if isinstance(column, CategoryColumn) else array

    def _unite(self, column: Column, dictionary: Dictionary, name: str, i: int) -> np.ndarray:
        """Note what kind of column this is, and bring its codes to those of the whole table."""
        categorical = isinstance(column, CategoryColumn)
        silent = not column.levels if isinstance(column, CategoryColumn) else _all_missing(column)
        if not silent:
            with self._lock:
                before, where = self._seen.setdefault(name, (categorical, i))
            if before != categorical:
                numbers, text = (where, i) if categorical else (i, where)
                raise DataError(
                    f"column {name!r} holds numbers in partition {numbers}, but text or categories in partition {text}"
                )
        if not isinstance(column, CategoryColumn):
            return column
        with self._lock:
            codes = dictionary.translate(column.levels)
        return apply(codes, column.codes)

    def finish_features(self) -> tuple[tuple[Feature, ...], list[np.ndarray | None]]:
        """The features, and per feature how provisional codes become final ones (None: they are final)."""
        if self._plan.known is not None:
            return self._plan.known, [None] * len(self._plan.known)
        features: list[Feature] = []
        translations: list[np.ndarray | None] = []
        for rule, dictionary in zip(self._plan.rules, self._dictionaries, strict=True):
            if not (rule.categorical or len(dictionary)):
                features.append(Feature(rule.name))
                translations.append(None)
                continue
            levels, final = dictionary.finish()
            features.append(Feature(rule.name, levels))
            translations.append(None if np.array_equal(final, np.arange(len(final))) else final)
        return tuple(features), translations

    def finish_roles(self, pieces: list[Piece], whole: dict[str, Any], rows: Rows) -> Roles:
        """Target, weight and offset of all rows, checked.

        Parameters
        ----------
        pieces : list of Piece
        whole : dict
            By role, the values of all rows where they did not come with the partitions.
        rows : Rows
        """
        full = [piece for piece in pieces if piece.n_rows]
        targets = [piece.target for piece in full if piece.target is not None]
        if "target" in whole:
            targets = [self._target(role_column(whole["target"], "target", None, sum(rows.lengths)), 0)]
        target, dtype, is_bool = None, None, False
        if targets:
            target, dtype, is_bool = join_target(targets, self._target_dictionary)
            check_target(target, dtype, label("target", self._plan.target), rows)
        weights = [piece.weight for piece in full if piece.weight is not None]
        weight = _join("sample_weight", weights, whole, rows)
        if weight is not None:
            check_weight(weight, label("sample_weight", self._plan.weight), rows)
        offset = _join("offset", [piece.offset for piece in full if piece.offset is not None], whole, rows)
        if offset is not None:
            check_offset(offset, label("offset", self._plan.offset), rows)
        return Roles(target, dtype, is_bool, weight, offset)


def _join(role: str, parts: list[np.ndarray], whole: dict[str, Any], rows: Rows) -> np.ndarray | None:
    """The floats of all rows, from the partitions or given as a whole."""
    if role in whole:
        column = role_column(whole[role], role, None, sum(rows.lengths))
        assert isinstance(column, np.ndarray)
        return column
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _all_missing(values: np.ndarray) -> bool:
    if not len(values):
        return True
    return values.dtype.kind == "f" and bool(np.isnan(values[0])) and bool(np.isnan(values).all())


def _own(column: _C) -> _C:
    """A copy if the column is a view, which would keep its partition alive."""
    return column.copy() if isinstance(column, np.ndarray) and column.base is not None else column
