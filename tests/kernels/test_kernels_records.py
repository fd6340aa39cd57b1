"""Records as arguments of kernels: those passed by address read as others do, and branches of fields that are None are not
compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from dboost.kernels import _as_compiled
from dboost.kernels.pipeline import KernelCompiler
from dboost.kernels.records import record


class Inner(NamedTuple):
    scale: np.ndarray | None
    shift: np.ndarray | None


class Outer(NamedTuple):
    values: np.ndarray
    weights: np.ndarray | None
    inner: Inner | None


@record
class InnerByAddress(Inner):
    pass


@record
class OuterByAddress(Outer):
    pass


def total(record: Outer, offset: float | None) -> float:
    """Use all that is not None. Every branch has code that Numba cannot compile for the other case."""
    values, weights, inner, shifts = record.values, record.weights, record.inner, None
    if inner is not None:
        shifts = inner.shift
    found = 0.0
    for i in range(values.size):
        value = values[i] if weights is None else values[i] * weights[i]
        if inner is not None:
            if record.inner.scale is not None and i > 0:
                value *= record.inner.scale[i]
            if inner.shift is None:
                value += shifts is None
            else:
                value += shifts[i]
        found += value if offset is None else value + offset
    return found


ARRAY = np.array([1.0, 2.0, 4.0])
CASES = [
    outer_class(ARRAY, weights, inner)
    for outer_class, inner_class in ((Outer, Inner), (OuterByAddress, InnerByAddress))
    for weights in (None, ARRAY)
    for inner in (None, *(inner_class(scale, shift) for scale in (None, ARRAY) for shift in (None, ARRAY)))
]


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("offset", [None, 0.5])
def test_fields_that_are_none_cost_no_code(offset: float | None) -> None:
    compiled = njit(pipeline_class=KernelCompiler)(total)
    for case in CASES:
        assert compiled(case, offset) == total(case, offset)


def test_numba_itself_compiles_them() -> None:
    """If this fails, Numba prunes the branches of fields, and the pass of `kernels.pipeline` is not needed any more."""
    with pytest.raises(TypingError):
        njit(total)(CASES[0], None)


def test_interpreted_kernels_get_the_numbers_of_compiled_ones() -> None:
    table = np.zeros(2, [("a", np.int64)])
    record = _as_compiled(Outer(table, None, Inner(np.uint8(3), 7)))  # type: ignore[arg-type]
    assert record.values.a.tolist() == [0, 0]
    assert isinstance(record.inner, Inner)
    assert isinstance(record.inner.shift, np.int64)
    assert isinstance(_as_compiled((1, 2.0))[1], np.float64)
