"""What a partition's task hands over: the table's piece, and those of the vectors that align with it.

This is all of reading that runs on a worker, so it is apart from what looks at collections: a worker need not import Dask's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def bundle(*pieces: Any) -> tuple[Any, ...]:
    """A partition, and the pieces of the vectors that there are."""
    return pieces


def in_place(pieces: tuple[Any, ...], filled: Sequence[bool]) -> tuple[Any, Any, Any, Any]:
    """The pieces of a bundle as (partition, target, weight, offset), None where a vector is not filled."""
    rest = iter(pieces[1:])
    target, weight, offset = (next(rest) if there else None for there in filled)
    return pieces[0], target, weight, offset
