"""Records, splits of records, exact sums, sampled rows: the kernels compared with naive implementations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.exact import unit_for
from dboost.kernels import or_empty
from dboost.kernels import rows as kernels
from dboost.kernels.histograms import PAIR, TRIPLE, Packing
from dboost.kernels.rows import add_sizes, mark_rows, select_rows
from dboost.losses.gradient_noise import noise_of
from dboost.training.tasks import _scale
from tests.helpers.compiled import compiled
from tests.helpers.naive import rows as naive

quantise = compiled(kernels.quantise)
split_records = compiled(kernels.split_records)
label_rows = compiled(kernels.label_rows)
add_leaves = compiled(kernels.add_leaves)
add_leaf = compiled(kernels.add_leaf)
quantise_marked = compiled(kernels.quantise_marked)

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("packing", [PAIR, TRIPLE], ids=["pair", "triple"])
@given(
    gradient=st.lists(FLOAT32, min_size=1, max_size=40),
    hessian=st.none() | st.lists(st.floats(0, 1e6, width=32), min_size=40, max_size=40),
    first=st.integers(0, 3),
)
def test_quantising(packing: Packing, gradient: list[float], hessian: list[float] | None, first: int) -> None:
    g = np.array(gradient, np.float32)
    h = None if hessian is None else np.array(hessian[: len(g)], np.float32)
    first = min(first, len(g) - 1)
    g_scale = _scale(packing.max_gradient, float(np.abs(g).max()))
    h_scale = 1.0 if h is None else _scale(packing.max_hessian, float(h.max()))
    records = np.zeros(len(g) - first, np.uint64)
    quantise(g, or_empty(h, "float32"), or_empty(None, "int64"), np.array([g_scale, h_scale]), first, len(g), records)
    for i, record in enumerate(records.tolist()):
        row = first + i
        expected_g = naive.quantised(g[row], g_scale)
        expected_h = 1 if h is None else naive.quantised_hessian(h[row], h_scale)
        assert naive.fields(record) == (expected_g, expected_h, row)
        assert record == naive.record(expected_g, expected_h, row)
        assert abs(expected_g) <= packing.max_gradient
        assert 1 <= expected_h <= packing.max_hessian


@pytest.mark.parametrize("packing", [PAIR, TRIPLE], ids=["pair", "triple"])
@pytest.mark.parametrize("maximum", [1e-29, 1e-3, 1.0, 3.0, 1e38])
def test_the_largest_gradient_becomes_the_largest_integer(packing: Packing, maximum: float) -> None:
    g = np.array([maximum, -maximum, maximum / 2, 0.0], np.float32)
    scale = _scale(packing.max_gradient, float(g[0]))
    records = np.zeros(4, np.uint64)
    quantise(g, or_empty(None, "float32"), or_empty(None, "int64"), np.array([scale, 1.0]), 0, 4, records)
    top = packing.max_gradient
    found = [naive.fields(r)[0] for r in records.tolist()]
    assert found == [top, -top, top // 2 if found[2] == top // 2 else top // 2 + 1, 0]  # a half may be rounded either way


@given(
    gradient=st.lists(FLOAT32, max_size=60), with_hessian=st.booleans(), with_times=st.booleans(), seed=st.integers(0, 2**32)
)
def test_sums_of_any_rows_lie_between_the_sizes(gradient: list[float], with_hessian: bool, with_times: bool, seed: int) -> None:
    rng, n = np.random.default_rng(seed), len(gradient)
    g = np.array(gradient, np.float32)
    h = rng.exponential(size=n).astype(np.float32) if with_hessian else None
    times = rng.integers(1, 256, n).astype(np.uint8) if with_times else None
    scales = np.array([_scale(32_767, float(np.abs(g).max(initial=0.0))), 1.0 if h is None else 1_000.0])
    sizes = np.array([-5, 6, 7])
    add_sizes(g, or_empty(h, "float32"), or_empty(times, "uint8"), scales, sizes)
    counts = [1] * n if times is None else times.tolist()
    gradients = [times * naive.quantised(one, scales[0]) for one, times in zip(g, counts, strict=True)]
    hessians = [1 if h is None else naive.quantised_hessian(one, scales[1]) for one in (g if h is None else h)]
    negative, positive = (sum(one for one in gradients if one * sign > 0) for sign in (-1, 1))
    assert sizes.tolist() == [negative - 5, positive + 6, sum(map(math.prod, zip(hessians, counts, strict=True))) + 7]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@given(
    n=st.integers(0, 50), n_codes=st.integers(1, 200), seed=st.integers(0, 2**32), share=st.sampled_from([0.0, 0.3, 0.5, 1.0])
)
def test_splitting_records(dtype: type, n: int, n_codes: int, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(n_codes, size=3 * n + 1).astype(dtype)
    goes_left = (rng.random(n_codes) < share).astype(np.uint8)
    rows = rng.permutation(3 * n + 1)[:n].astype(np.uint64)
    source = rows | (rng.integers(2**32, size=n).astype(np.uint64) << np.uint64(32))
    target = np.zeros(n, np.uint64)
    n_left = split_records(codes, goes_left, source, target)
    left = {r for r in source.tolist() if goes_left[codes[r & 0xFFFFFFFF]]}
    assert n_left == len(left)
    assert set(target[:n_left].tolist()) == left
    assert sorted(target.tolist()) == sorted(source.tolist())


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_labelling_rows(dtype: type) -> None:
    leaf = np.zeros(10, dtype)
    records = np.array([naive.record(-5, 3, row) for row in (2, 9, 4)], np.uint64)
    label_rows(records, leaf, 255)
    assert leaf.tolist() == [0, 0, 255, 0, 255, 0, 0, 0, 0, 255]


@given(
    gradient=st.lists(FLOAT32, min_size=1, max_size=60),
    with_hessian=st.booleans(),
    with_times=st.booleans(),
    seed=st.integers(0, 2**32),
    cut=st.integers(0, 60),
)
def test_adding_up_leaves(gradient: list[float], with_hessian: bool, with_times: bool, seed: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    g = np.array(gradient, np.float32)
    h = rng.exponential(size=len(g)).astype(np.float32) if with_hessian else None
    leaf = rng.integers(3, size=len(g)).astype(np.uint8)
    times = rng.integers(1, 256, len(g)).astype(np.uint8) if with_times else None
    weight = np.ones(len(g)) if times is None else times.astype(np.float64)
    n = int(weight.sum())
    units = (unit_for(float(np.abs(g).max()), n), 1.0 if h is None else unit_for(float(h.max()), n))
    expected = naive.leaf_sums(
        leaf.tolist(), g.tolist(), None if h is None else h.tolist(), units, 3, None if times is None else times.tolist()
    )
    at_once, in_parts = np.zeros((3, 2)), np.zeros((3, 2))
    optional = or_empty(h, "float32"), or_empty(times, "uint8"), or_empty(None, "int64")
    add_leaves(leaf, g, *optional, 0, len(g), *units, at_once)
    assert [tuple(map(int, sums)) for sums in at_once.tolist()] == expected
    for first, last in ((min(cut, len(g)), len(g)), (0, min(cut, len(g)))):
        add_leaves(leaf, g, *optional, first, last, *units, in_parts)
    assert np.array_equal(in_parts, at_once)
    # A row is rounded to half a unit as often as it is taken; the last half is that of the exact sum to a float64.
    for k in range(3):
        exact = math.fsum((g.astype(np.float64) * weight)[leaf == k].tolist())
        assert abs(at_once[k, 0] / units[0] - exact) <= (weight[leaf == k].sum() + 1) / 2 / units[0]


@given(
    seed=st.integers(0, 2**32), n=st.integers(1, 60), room=st.integers(0, 5), cut=st.integers(0, 60),
    stay=st.sampled_from([0.0, 0.1, 0.5, 1.0]), with_hessian=st.booleans(),
)  # fmt: skip
def test_quantising_marked_rows(seed: int, n: int, room: int, cut: int, stay: float, with_hessian: bool) -> None:
    rng = np.random.default_rng(seed)
    g, marks = rng.normal(size=n).astype(np.float32), (rng.random(n) < stay).astype(np.uint8)
    h = rng.random(n).astype(np.float32) if with_hessian else None
    target, spare = np.zeros(n + room, np.uint64), np.zeros(n, np.uint64)
    front, back, cut = 0, n + room - 1, min(cut, n)
    for first, last in ((cut, n), (0, cut)):
        front, back = quantise_marked(
            g, or_empty(h, "float32"), marks, np.array([100.0, 50.0]), first, last, (front, back), target,
            spare[: last - first],
        )  # fmt: skip
    rows = [*range(cut, n), *range(cut)]
    expected = [
        naive.record(naive.quantised(g[i], 100.0), 1 if h is None else naive.quantised_hessian(h[i], 50.0), i)
        for i in rows
        if marks[i]
    ]
    assert target[:front].tolist() == expected
    assert (target[back + 1 :] & np.uint64(0xFFFFFFFF)).tolist()[::-1] == [i for i in rows if not marks[i]]
    assert front + n + room - 1 - back == n


@pytest.mark.parametrize("with_hessian", [False, True])
@pytest.mark.parametrize("with_times", [False, True])
def test_adding_up_the_records_of_a_leaf(with_hessian: bool, with_times: bool) -> None:
    rng = np.random.default_rng(0)
    g = rng.normal(size=50).astype(np.float32)
    h = rng.random(50).astype(np.float32) if with_hessian else None
    times = rng.integers(1, 256, 50).astype(np.uint8) if with_times else None
    leaf, sums = rng.integers(2, size=50), np.zeros((3, 2))
    units = 2.0**20, 2.0**22
    expected = naive.leaf_sums(
        leaf.tolist(), g.tolist(), None if h is None else h.tolist(), units, 2, None if times is None else times.tolist()
    )
    for k in range(2):
        records = np.array([naive.record(-7, 3, row) for row in np.flatnonzero(leaf == k).tolist()], np.uint64)
        add_leaf(records, g, or_empty(h, "float32"), or_empty(times, "uint8"), *units, sums, k)
        assert tuple(map(int, sums[k])) == expected[k]
    assert not sums[2].any()


@given(seed=st.integers(0, 2**63), first=st.integers(0, 2**40), n=st.integers(0, 200), cut=st.integers(0, 200))
def test_chosen_rows_depend_on_seed_and_number_only(seed: int, first: int, n: int, cut: int) -> None:
    threshold = 2**63
    expected = [row for row in range(first, first + n) if naive.splitmix(seed, row) < threshold]
    chosen = np.empty(n, np.int64)
    count = select_rows(np.uint64(seed), first, n, np.uint64(threshold), chosen)
    assert chosen[:count].tolist() == expected
    cut = min(cut, n)
    parts = []
    for start, size in ((first, cut), (first + cut, n - cut)):
        count = select_rows(np.uint64(seed), start, size, np.uint64(threshold), chosen)
        parts += chosen[:count].tolist()
    assert parts == expected
    marks, numbers = np.full(n, 2, np.uint8), np.arange(first, first + n)
    for ids in (or_empty(None, "int64"), numbers):
        mark_rows(np.uint64(seed), np.uint64(threshold), ids, first, marks)
        assert marks.tolist() == [row in expected for row in numbers.tolist()]
    mark_rows(np.uint64(seed), np.uint64(threshold), numbers[::-1].copy(), 0, marks)
    assert (numbers[::-1][marks == 1][::-1]).tolist() == expected


def test_rows_beyond_the_room_are_counted_not_written() -> None:
    chosen = np.full(3, -1)
    assert select_rows(np.uint64(0), 10, 100, np.uint64(2**64 - 1), chosen) == 100
    assert chosen.tolist() == [10, 11, 12]


@given(
    rows=st.lists(st.tuples(FLOAT32, st.floats(0, width=32, allow_infinity=False), st.integers(0, 255)), max_size=40),
    with_hessian=st.booleans(),
    with_times=st.booleans(),
    cut=st.integers(0, 40),
)
def test_noise_is_summed_exactly(rows: list[tuple[float, float, int]], with_hessian: bool, with_times: bool, cut: int) -> None:
    gradient, hessian, times = (np.array([row[k] for row in rows], dtype) for k, dtype in enumerate(("f4", "f4", "u1")))
    hessian, times = hessian if with_hessian else hessian[:0], times if with_times else times[:0]
    found = noise_of(gradient[:cut], hessian[:cut], times[:cut]).merge(noise_of(gradient[cut:], hessian[cut:], times[cut:]))
    squares, hessians = naive.noise_sums(gradient, hessian if with_hessian else None, times.tolist() if with_times else None)
    assert found.squares == squares * 2**276 and found.hessians == hessians * 2**149
    if hessians > 0:
        assert found.ratio == float(squares / hessians)
