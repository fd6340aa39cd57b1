"""Exact quantiles: NumPy's median to the bit, for any division of the rows; minima of the weighted pinball loss."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.exact import FEW, Window, exact_level, find_quantiles, find_size, from_keys, rank_unit
from dboost.kernels import or_empty
from dboost.kernels.quantile_keys import (
    BLOCK_ROWS,
    Buckets,
    Residuals,
    add_clipped,
    bucket_bounds,
    collect_buckets,
    count_buckets,
    count_digits,
    find_buckets,
    new_block_scratch,
    next_keys,
    select_keys,
)
from dboost.losses import Quantile
from dboost.rows.statistics import concatenated

FLOATS = st.floats(-1e300, 1e300) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 5e-324, -5e-324])


class Asked:
    """Rows in several shards that implement both callbacks, and count the calls."""

    def __init__(
        self,
        values: np.ndarray,
        weight: np.ndarray | None,
        group: np.ndarray | None,
        n_groups: int,
        cuts: list[int],
        sizes: bool,
    ) -> None:
        self.values, self.weight, self.group, self.n_groups, self.sizes = values, weight, group, n_groups, sizes
        self.ranges = list(pairwise([0, *sorted(min(c, len(values)) for c in cuts), len(values)]))
        self.unit = 1.0 if weight is None else rank_unit(float(weight.max()), len(values))
        self.n_passes, self.room = 0, FEW

    def residuals(self, first: int, last: int) -> Residuals:
        weight, group, all_rows = or_empty(self.weight, "float64"), or_empty(self.group, "uint8"), or_empty(None, "int64")
        target, raw = self.values[None], np.zeros((1, len(self.values)))
        return Residuals(target, raw, np.zeros(1, np.int64), weight, group, self.sizes, all_rows, first, last)

    def count(self, prefix: np.ndarray, shift: np.uint64) -> np.ndarray:
        self.n_passes += 1
        answers = []
        for first, last in self.ranges:
            answers.append(np.zeros((self.n_groups, 256), np.int64))
            count_digits(self.residuals(first, last), prefix, shift, self.unit, answers[-1])
        return reduce(np.add, answers)

    def count_buckets(self, buckets: Buckets) -> np.ndarray:
        """Count by a loop over the rows, and check that the kernel does the same."""
        self.n_passes += 1
        answers = []
        for first, last in self.ranges:
            answers.append(np.zeros((self.n_groups, buckets.n), np.int64))
            scratch = new_block_scratch(answers[-1].size)
            count_buckets(self.residuals(first, last), buckets, self.unit, answers[-1], scratch)
        expected = np.zeros((self.n_groups, buckets.n), np.int64)
        for g, k, w in zip(*self.buckets(buckets), strict=True):
            expected[g, k] += w
        np.testing.assert_array_equal(reduce(np.add, answers), expected)
        return expected

    def buckets(self, buckets: Buckets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return group, bucket and weight of each row."""
        group = np.zeros(len(self.values), np.int64) if self.group is None else self.group.astype(np.int64)
        low, scale, n_buckets = buckets
        size = np.abs(self.values) if self.sizes else self.values
        with np.errstate(over="ignore"):
            at = np.minimum(np.maximum((size - low[group]) * scale[group], 0.0), n_buckets - 1.0).astype(np.int64)
        weight = np.ones(len(size)) if self.weight is None else np.maximum(np.floor(self.weight * self.unit), 1.0)
        return group, at, weight.astype(np.int64)

    def collect(self, buckets: Buckets, wanted: np.ndarray) -> np.ndarray | None:
        self.n_passes += 1
        answers: list[np.ndarray | None] = []
        for first, last in self.ranges:
            found = np.empty((self.room, 3), np.uint64)
            n = collect_buckets(
                self.residuals(first, last),
                buckets,
                wanted,
                *bucket_bounds(buckets, wanted),
                self.unit,
                found,
                new_block_scratch(),
            )
            answers.append(found[:n] if n <= self.room else None)
        group, at, _ = self.buckets(buckets)
        there = int(((at >= wanted[group, 0]) & (at <= wanted[group, 1])).sum())
        collected = reduce(concatenated, answers)
        assert collected is None or len(collected) == there
        return collected

    def window(self, low: float, high: float) -> Window:
        return Window(low, high, self.count_buckets, self.collect, len(self.values))

    def above(self, keys: np.ndarray) -> np.ndarray:
        self.n_passes += 1
        answers = []
        for first, last in self.ranges:
            answers.append(np.full(self.n_groups, ~np.uint64(0)))
            next_keys(self.residuals(first, last), keys, answers[-1])
        return reduce(np.minimum, answers)


def quantiles(
    values: np.ndarray,
    level: float,
    *,
    weight: np.ndarray | None = None,
    group: np.ndarray | None = None,
    n_groups: int = 1,
    cuts: list[int] | None = None,
) -> np.ndarray:
    asked = Asked(values, weight, group, n_groups, cuts or [], False)
    found = find_quantiles(asked.count, asked.above, exact_level(level), n_groups)
    assert asked.n_passes <= 9
    # Wherever they are expected, and whether or not they can be collected, the result is the same to the bit.
    middle, size = float(np.median(found)), float(np.ptp(found)) + 1.0
    for room in (FEW, 3):
        for low, high in (
            (middle - size, middle + size),
            (middle, middle + 1e-3),
            (middle - 1e9, middle - 1e8),
            (-1e300, 1e301),
        ):
            asked.n_passes, asked.room = 0, room
            there = find_quantiles(asked.count, asked.above, exact_level(level), n_groups, asked.window(low, high))
            np.testing.assert_array_equal(there, found)
            assert asked.n_passes <= 13
    return found


def test_two_passes_find_quantiles_that_are_where_they_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values, group = rng.normal(size=20_001), rng.integers(3, size=20_001).astype(np.uint8)
    asked = Asked(values, None, group, 3, [7_000], False)
    expected = [np.median(values[group == g]) for g in range(3)]
    assert find_quantiles(asked.count, asked.above, Fraction(1, 2), 3, asked.window(-1.0, 1.0)).tolist() == expected
    assert asked.n_passes == 2
    # Buckets that hold too many numbers are divided.
    monkeypatch.setattr("dboost.exact.FEW", 60)
    asked.n_passes = 0
    assert find_quantiles(asked.count, asked.above, Fraction(1, 2), 3, asked.window(-9.0, 9.0)).tolist() == expected
    assert asked.n_passes == 3
    # A group of few numbers may have its quantile elsewhere.
    values[:20], group[:20], group[20:] = 100.0 + np.arange(20), 0, np.maximum(group[20:], 1)
    asked = Asked(values, None, group, 3, [7_000], False)
    expected = [np.median(values[group == g]) for g in range(3)]
    assert find_quantiles(asked.count, asked.above, Fraction(1, 2), 3, asked.window(-9.0, 9.0)).tolist() == expected
    assert asked.n_passes == 3


@pytest.mark.parametrize("weighted", [False, True])
def test_quantiles_among_many_zeros_take_few_passes(monkeypatch: pytest.MonkeyPatch, weighted: bool) -> None:
    """Residuals are 0 where predictions are exact: a bucket of zeros needs no collecting, nor passes over all digits."""
    rng = np.random.default_rng(0)
    n = 20_001
    values, group = rng.normal(size=n), rng.integers(4, size=n).astype(np.uint8)
    values[(rng.random(n) < 0.4) & (group != 3)] = 0.0
    values[::7] *= -1.0  # zeros of both signs
    asked = Asked(values, rng.integers(1, 4, n) * 1.0 if weighted else None, group, 4, [7_000], False)
    monkeypatch.setattr("dboost.exact.FEW", 100)
    monkeypatch.setattr("dboost.exact._LEAST_BUCKETS", 1000)  # as for many rows
    for level in (Fraction(1, 2), Fraction(1, 5), Fraction(9, 20)):
        expected = find_quantiles(asked.count, asked.above, level, 4)
        asked.n_passes = 0
        found = find_quantiles(asked.count, asked.above, level, 4, asked.window(-2.0, 2.0))
        assert found.tolist() == expected.tolist()
        assert (expected[:3] == 0.0).all() == (level != Fraction(1, 5)) and expected[3] != 0.0
        assert not np.signbit(found[found == 0.0]).any()
        assert asked.n_passes <= (2 if level == Fraction(1, 5) else 4)


@pytest.mark.parametrize("seed", range(20))
def test_buckets_at_which_a_share_is_reached(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_groups, n_buckets = 40, int(rng.integers(3, 30))
    counts = rng.integers(0, 4, (n_groups, n_buckets)) * (rng.random((n_groups, n_buckets)) < 0.5)
    counts[:, 0] += 40 * (rng.random(n_groups) < 0.3)
    needed = np.where(counts.sum(axis=1) > 0, rng.integers(1, np.maximum(counts.sum(axis=1), 1) + 1), 0)
    met, found = rng.random(n_groups) < 0.8, np.empty((n_groups, 5), np.int64)
    find_buckets(counts, needed, met, found)
    for of_group, need, is_met, (bucket, following, below, upto, reached) in zip(counts, needed, met, found, strict=True):
        sums = of_group.cumsum()
        assert bucket == np.flatnonzero(sums >= need)[0]
        assert (below, upto) == (sums[bucket] - of_group[bucket], sums[bucket])
        larger = np.flatnonzero(sums > need)
        if is_met and upto == need and len(larger) and (larger[0] < n_buckets - 1 or 8 * of_group[-1] <= need):
            bucket = larger[0]
        assert (following, reached) == (bucket, sums[bucket])


@pytest.mark.parametrize("seed", range(20))
def test_keys_are_selected_by_weight(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, n_groups = int(rng.integers(0, 300)), 9
    keys = rng.integers(0, 2**64, 40, np.uint64) if seed % 2 else np.uint64(1 << 63) + rng.integers(0, 30, 40).astype(np.uint64)
    collected = np.column_stack(
        [rng.integers(n_groups - 1, size=n).astype(np.uint64), rng.choice(keys, n), rng.integers(1, 5, n).astype(np.uint64)]
    )
    of_groups = [collected[collected[:, 0] == g][:, 1:] for g in range(n_groups)]
    totals = np.array([of_group[:, 1].sum() for of_group in of_groups]).astype(np.int64)
    needed = np.where(totals > 0, rng.integers(0, totals + 1), 0)
    found = np.zeros((n_groups, 2), np.uint64)
    select_keys(collected, needed, np.zeros(n_groups + 1, np.int64), np.empty((2, n), np.uint64), found)
    for of_group, need, (key, following) in zip(of_groups, needed, found, strict=True):
        if need == 0:
            assert key == following == 0
            continue
        candidates = np.unique(of_group[:, 0]).tolist()
        reached = [int(of_group[of_group[:, 0] <= one, 1].sum()) for one in candidates]
        at = next(k for k, weight in enumerate(reached) if weight >= need)
        larger = [*candidates[at + 1 :], 2**64 - 1][0] if reached[at] == need else candidates[at]
        assert (int(key), int(following)) == (candidates[at], larger)


def test_windows_of_fits_do_not_change_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(3000, 3))
    y = X[:, 0] + rng.standard_t(2, 3000)
    for options in ({"loss": "absolute_error"}, {"loss": "quantile", "quantile": 0.9}, {"loss": "huber"}):
        for weight in (None, rng.integers(1, 4, 3000), rng.exponential(size=3000)):
            fits = []
            for n_windows in (0, 3):
                monkeypatch.setattr("dboost.exact._MOST_WINDOWS", n_windows)
                fits.append(dboost.fit(X, y, sample_weight=weight, max_iter=15, progress=False, **options).sha256)
            assert fits[0] == fits[1]


@given(st.lists(FLOATS, min_size=1, max_size=60), st.lists(st.integers(0, 60), max_size=9))
def test_medians_are_numpys_to_the_bit(values: list[float], cuts: list[int]) -> None:
    array = np.array(values)
    assert quantiles(array, 0.5, cuts=cuts)[0] == np.median(array)


@given(
    n=st.integers(1, 300), n_groups=st.integers(1, 31), seed=st.integers(0, 2**32),
    cuts=st.lists(st.integers(0, 300), max_size=9), distinct=st.sampled_from([2, 10, 10**9]),
)  # fmt: skip
def test_medians_of_leaves(n: int, n_groups: int, seed: int, cuts: list[int], distinct: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(-distinct, distinct, n) / 7
    group = rng.integers(n_groups, size=n).astype(np.uint8)
    found = quantiles(values, 0.5, group=group, n_groups=n_groups, cuts=cuts)
    for g in range(n_groups):
        assert found[g] == (np.median(values[group == g]) if (group == g).any() else 0.0)


@given(
    n=st.integers(1, 40), level=st.sampled_from([0.05, 0.3, 0.5, 0.9]), seed=st.integers(0, 2**32), whole=st.booleans(),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)  # fmt: skip
def test_weighted_quantiles_minimise_the_pinball_loss(n: int, level: float, seed: int, whole: bool, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    values = np.round(rng.normal(size=n) * 5, 1)
    weight = rng.integers(1, 4, n).astype(float) if whole else rng.exponential(size=n) * 10.0 ** rng.integers(-3, 4, n)
    found = quantiles(values, level, weight=weight, cuts=cuts)[0]
    loss = Quantile(level)

    def total(at: float) -> float:
        return float(loss.value(values, np.full((1, n), at)) @ weight)

    assert total(found) <= min(map(total, values)) * (1 + 1e-9) + 1e-12
    if whole:
        repeated = np.repeat(values, weight.astype(int))
        assert found == quantiles(repeated, level)[0]
        if level == 0.5:
            assert found == np.median(repeated)


def test_a_share_that_is_met_exactly_takes_the_middle() -> None:
    ten = np.arange(10.0)
    assert quantiles(ten, 0.9)[0] == 8.5, "nine tenths, though the float 0.9 is larger than that"
    assert quantiles(ten, 0.91)[0] == 9.0
    assert quantiles(ten, 0.3)[0] == 2.5
    assert exact_level(0.9) == Fraction(9, 10)


def test_a_light_row_still_counts() -> None:
    values, weight = np.array([1.0, 2.0, 3.0]), np.array([1.0, 1e-300, 1.0])
    assert quantiles(values, 0.5, weight=weight)[0] == 2.0


@given(st.lists(FLOATS, min_size=1, max_size=30, unique=True))
def test_keys_order_like_numbers(values: list[float]) -> None:
    array = np.array(values)
    keys = [
        int(np.nonzero(Asked(array[i : i + 1], None, None, 1, [], False).count(np.zeros(1, np.uint64), np.uint64(56))[0])[0][0])
        for i in np.argsort(array)
    ]
    assert keys == sorted(keys)


@pytest.mark.parametrize(("sizes", "expected"), [([3.0, 1.0, 2.0], 2.0), ([0.0, 0.0, 0.0, 5.0, 7.0], 5.0), ([0.0, -0.0], 1.0)])
def test_a_size_to_divide_by_is_positive(sizes: list[float], expected: float) -> None:
    asked = Asked(-np.array(sizes), None, None, 1, [1], True)
    assert find_size(Fraction(1, 2), asked.count, asked.above) == expected


def test_keys_come_back() -> None:
    for number in (0.0, 1.5, -2.5, 1e300, -1e-300, np.inf):
        bits = np.array([number + 0.0]).view(np.uint64)[0]
        key = ~bits if bits >> np.uint64(63) else bits | np.uint64(1 << 63)
        assert from_keys(np.array([key]))[0] == number


rng = np.random.default_rng(0)
N = 1001
SIDE = (rng.random(N) < 0.4).astype(float)[:, None]
Y = 5 * SIDE[:, 0] + rng.standard_t(2, N)
WEIGHT = rng.integers(1, 4, N).astype(float)


def one_tree(loss: str, weight: np.ndarray | None = None, **settings: float) -> tuple[float, float, float]:
    """Return the baseline and the steps of the two leaves of a single tree, without shrinkage."""
    booster = dboost.fit(SIDE, Y, loss=loss, sample_weight=weight, learning_rate=1.0, max_iter=1, **settings)
    left, right = booster.predict(np.array([[0.0], [1.0]]))
    baseline = float(booster.ensemble.baseline[0])
    values = booster.ensemble.trees[0].value
    assert (left, right) == (baseline + values[1], baseline + values[2])
    return baseline, float(values[1]), float(values[2])


@pytest.mark.parametrize("weighted", [False, True])
def test_leaves_of_absolute_error_are_medians(weighted: bool) -> None:
    copies = WEIGHT.astype(int) if weighted else np.ones(N, int)
    y, side = np.repeat(Y, copies), np.repeat(SIDE[:, 0], copies)
    baseline, left, right = one_tree("absolute_error", WEIGHT if weighted else None)
    assert baseline == np.median(y)
    assert left == np.median((y - baseline)[side == 0])
    assert right == np.median((y - baseline)[side == 1])


@pytest.mark.parametrize("level", [0.1, 0.75])
def test_leaves_of_quantiles_minimise(level: float) -> None:
    baseline, left, right = one_tree("quantile", quantile=level)
    loss = Quantile(level)

    def total(rows: np.ndarray, start: np.ndarray | float, at: float) -> float:
        return float(loss.value(Y[rows], start + np.full((1, rows.sum()), at)).sum())

    everywhere = np.ones(N, bool)
    for rows, start, found in (
        (everywhere, 0.0, baseline), (SIDE[:, 0] == 0, baseline, left), (SIDE[:, 0] == 1, baseline, right),
    ):  # fmt: skip
        best = min(total(rows, start, at) for at in Y[rows] - start)
        assert total(rows, start, found) <= best * (1 + 1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_leaves_of_huber_take_one_step_from_the_median(weighted: bool) -> None:
    copies = WEIGHT.astype(int) if weighted else np.ones(N, int)
    y, side = np.repeat(Y, copies), np.repeat(SIDE[:, 0], copies)
    baseline, left, right = one_tree("huber", WEIGHT if weighted else None, huber_alpha=0.8)
    assert baseline == np.median(y)
    u = y - baseline
    delta = quantiles(np.abs(u), 0.8)[0]
    for rows, found in ((side == 0, left), (side == 1, right)):
        centre = np.median(u[rows])
        step = centre + np.clip(u[rows] - centre, -delta, delta).mean()
        assert found == pytest.approx(step, rel=1e-12)


def test_delta_is_chosen_anew_but_losses_are_compared_by_the_first() -> None:
    booster = dboost.fit(SIDE, Y, loss="huber", max_iter=20, eval_set=(SIDE, Y))
    delta = booster.ensemble.loss["delta"]
    assert delta == quantiles(np.abs(Y - np.median(Y)), 0.9)[0]
    size = np.abs(Y - booster.predict(SIDE))
    value = np.where(size <= delta, size**2 / 2, delta * (size - delta / 2)).mean()
    assert booster.history["train_loss"].iloc[-1] == pytest.approx(value)
    assert booster.history["eval_huber"].iloc[-1] == pytest.approx(value)
    assert dboost.DBoostRegressor(loss="huber", max_iter=3, warm_start=True).fit(SIDE, Y).set_params(max_iter=5).fit(SIDE, Y)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("some_rows", [False, True])
@pytest.mark.parametrize("n_buckets", [256, 1024])
def test_several_outputs_are_each_alone(weighted: bool, some_rows: bool, n_buckets: int) -> None:
    """The kernels with the scores of all outputs do what they do for one output after the other."""
    rng, n, n_groups = np.random.default_rng(5), 2500, 3
    target, raw = np.round(rng.normal(size=(2, n)), 2), np.round(rng.normal(size=(4, n)), 2)
    column, group = np.array([0, 1, 1, 0]), rng.integers(n_groups, size=n).astype(np.uint8)
    weight = rng.random(n) + 0.5 if weighted else np.empty(0)
    rows = np.flatnonzero(rng.random(n) < 0.6) if some_rows else np.empty(0, np.int64)
    first, last = 7, (len(rows) if some_rows else n) - 9
    unit = 2.0**20 if weighted else 1.0
    low, scale = rng.normal(size=(2, 4 * n_groups)) * 0.1 - [[2.0], [-250.0]]
    low[:n_groups], scale[:n_groups] = -3.0, 100.0
    wanted = np.sort(rng.integers(n_buckets // 10, n_buckets * 9 // 10, (4 * n_groups, 2)), axis=1)
    bounds, centre = bucket_bounds(Buckets(low, scale, n_buckets), wanted), rng.normal(size=4 * n_groups)
    limits, units = rng.random(4), 2.0 ** np.array([30, 31, 32, 33])

    def answers(outputs: slice) -> list[np.ndarray]:
        k, at = len(raw[outputs]), slice(outputs.start * n_groups, outputs.stop * n_groups)
        residuals = Residuals(target, raw[outputs], column[outputs], weight, group, False, rows, first, last)
        digits, buckets = np.zeros((k * n_groups, 256), np.int64), np.zeros((k * n_groups, n_buckets), np.int64)
        keys, found = np.full(k * n_groups, ~np.uint64(0)), np.empty((9 * n, 3), np.uint64)
        sums = np.zeros((k * n_groups, 2))
        count_digits(residuals, np.zeros(k * n_groups, np.uint64), np.uint64(56), unit, digits)
        of_outputs = Buckets(low[at], scale[at], n_buckets)
        count_buckets(residuals, of_outputs, unit, buckets, new_block_scratch(n_groups * n_buckets))
        of = of_outputs, wanted[at], *(one[at] for one in bounds)
        found = found[: collect_buckets(residuals, *of, unit, found, new_block_scratch())]
        found[:, 0] += np.uint64(at.start)
        next_keys(residuals, np.full(k * n_groups, np.uint64(1 << 63)), keys)
        once = np.empty(0, np.uint8)
        add_clipped(residuals, once, centre[at], limits[outputs], units[outputs], 2.0**20, new_block_scratch(), sums)
        assert digits.sum() >= k * (last - first)
        assert len(found) > 0
        return [digits, buckets, found[np.lexsort(found.T)], keys, sums]

    alone = [np.concatenate(of) for of in zip(*(answers(slice(k, k + 1)) for k in range(4)), strict=True)]
    alone[2] = alone[2][np.lexsort(alone[2].T)]
    for one, all_together in zip(alone, answers(slice(0, 4)), strict=True):
        np.testing.assert_array_equal(all_together, one)


@pytest.mark.parametrize("some_rows", [False, True], ids=["all rows", "some rows"])
@pytest.mark.parametrize("weights", ["none", "repeat counts", "fractions"])
def test_sums_of_clipped_residuals(weights: str, some_rows: bool) -> None:
    """Of more rows than a block has, from a row that begins none."""
    rng = np.random.default_rng(0)
    n, n_groups, bounds, units = 2 * BLOCK_ROWS + 300, 5, np.array([0.5, 1.5]), 2.0 ** np.array([30, 20])
    target, raw, centre = rng.normal(size=(1, n)), rng.normal(size=(2, n)), rng.normal(size=2 * n_groups)
    group = rng.integers(n_groups, size=n).astype(np.uint8)
    once, weight = np.empty(0, np.uint8), np.empty(0)
    times = np.ones(n)
    if weights == "repeat counts":
        once = rng.integers(1, 9, n).astype(np.uint8)
        times = weight = once.astype(np.float64)
    if weights == "fractions":
        times = weight = rng.random(n)
    rows = np.flatnonzero(rng.random(n) < 0.7) if some_rows else np.empty(0, np.int64)
    first, last = 7, (len(rows) if some_rows else n) - 9
    residuals = Residuals(target, raw, np.zeros(2, np.int64), weight, group, False, rows, first, last)
    sums = np.full((2 * n_groups, 2), 3.0)
    add_clipped(residuals, once, centre, bounds, units, 2.0**30, new_block_scratch(), sums)
    expected = np.full((2 * n_groups, 2), 3.0)
    for i in rows[first:last] if some_rows else range(first, last):
        for output in range(2):
            g = output * n_groups + group[i]
            term = min(max(target[0, i] - raw[output, i] - centre[g], -bounds[output]), bounds[output])
            whole = times[i] * round(term * units[output])
            expected[g, 0] += round(times[i] * term * units[output]) if weights == "fractions" else whole
            expected[g, 1] += round(times[i] * 2.0**30)
    assert sums.tolist() == expected.tolist()
