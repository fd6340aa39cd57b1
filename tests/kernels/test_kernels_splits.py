"""The best split of a node, compared with every possible split."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from dboost.kernels import splits
from dboost.kernels.histograms import Histograms, Levels, PackedSums
from dboost.kernels.split_search import SplitSearch, mark_codes, search_feature
from dboost.kernels.splits import (
    FEATURE,
    LEFT_G,
    LEFT_H,
    LEFT_N,
    MISSING_LEFT,
    NO_SPLIT,
    SCORE,
    SPLIT_BIN,
    SPLIT_SIZE,
    SearchScratch,
    SplitParams,
    new_search_scratch,
)
from dboost.rows.shard_spec import plan_layout
from tests.helpers.compiled import compiled
from tests.helpers.naive import bounded as naive_bounded
from tests.helpers.naive import splits as naive
from tests.helpers.naive.histograms import Histogram

gather_levels = compiled(splits.gather_levels)
sort_levels = compiled(splits.sort_levels)
side_score = compiled(splits.side_score)


@njit(error_model="numpy")
def search(channels, offset, categorical, total, limits, scratch, best):
    """All features in the order given by `offset`: (feature, first bucket, number of bins)."""
    splits.clear_split(best)
    for k in range(len(offset)):
        feature, at, n_bins = offset[k]
        if categorical[feature]:
            n = splits.gather_levels(channels, at, n_bins, limits, scratch)
            splits.search_categorical(n, feature, total, limits, scratch, best)
        else:
            splits.search_numeric(channels, at, n_bins, feature, total, limits, scratch, best)


@njit(error_model="numpy")
def mark_left_categories(channels, at, n_levels, cut, total, limits, scratch, goes_left):
    n = splits.gather_levels(channels, at, n_levels, limits, scratch)
    splits.mark_left_categories(n, n_levels, cut, total, limits, scratch, goes_left)


def used_scratch(n_codes: int) -> SearchScratch:
    """Return scratch that holds what an earlier search may have left."""
    scratch = new_search_scratch(n_codes)
    scratch.sums[:], scratch.keys[:], scratch.order[:], scratch.codes[:] = np.nan, np.nan, -1, -1
    return scratch


def limits_of(**changed: float) -> SplitParams:
    usual = {
        "l2": 1.0, "l1": 0.0, "max_step": math.inf, "min_hessian": 0.0, "min_rows": 1.0, "count_channel": 2,
        "threshold": 0.0, "smoothing": 0.0, "category_l2": 0.0, "max_categories": 1000, "min_category_hessian": 0.0,
    }  # fmt: skip
    return SplitParams(**(usual | changed))  # type: ignore[arg-type]


LIMITS = st.builds(
    limits_of,
    l2=st.sampled_from([0.0, 1.0, 37.5]),
    l1=st.sampled_from([0.0, 0.0, 12.25]),
    max_step=st.sampled_from([math.inf, math.inf, 0.5, 3.0]),
    min_hessian=st.sampled_from([0.0, 4.0, 33.0]),
    min_rows=st.sampled_from([1.0, 2.0, 5.0]),
    count_channel=st.sampled_from([-1, 1, 2]),
    smoothing=st.sampled_from([0.0, 10.0]),
    category_l2=st.sampled_from([0.0, 10.0]),
    max_categories=st.sampled_from([1, 2, 1000]),
    min_category_hessian=st.sampled_from([0.0, 5.0]),
    noise=st.sampled_from([0.0, 1.0, 900.0]),
)


@st.composite
def nodes(draw: st.DrawFn) -> list[Histogram]:
    """Histograms of a node's features: the same rows spread differently over bins, the last of which is "missing"."""
    n_rows = draw(st.integers(1, 40))
    largest = draw(st.sampled_from([1, 3, 32_767]))  # small numbers make ties
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    g = rng.integers(-largest, largest + 1, n_rows).tolist()
    h = rng.integers(1, draw(st.sampled_from([1, 3, 32_767])) + 1, n_rows).tolist()
    histograms = []
    for n_bins in draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)):
        has_missing = draw(st.booleans())
        codes = rng.integers(n_bins + has_missing, size=n_rows)
        node = [(0, 0, 0)] * (n_bins + 1)
        for row, code in enumerate(codes.tolist()):
            node[code] = naive.added([node[code], (g[row], h[row], 1)])
        histograms.append(node)
    return histograms


def found(histograms: list[Histogram], categorical: list[bool], limits: SplitParams, order: list[int]) -> np.ndarray:
    """Return the kernels' best split of features in a given order."""
    channels = np.array([sums for node in histograms for sums in node], np.float64).T.copy()
    starts = np.cumsum([0, *map(len, histograms)])
    offset = [(feature, int(starts[feature]), len(histograms[feature]) - 1) for feature in order]
    total = np.array(naive.added(histograms[0]), np.float64)
    if limits.count_channel == 1:
        total[2] = total[1]  # Hessians are counts
    n = max(map(len, histograms))
    best = np.full(SPLIT_SIZE, np.nan)
    search(channels, np.array(offset), np.array(categorical), total, limits, used_scratch(n), best)
    return best


def goes_left(histogram: Histogram, cut: int, limits: SplitParams) -> set[int]:
    channels = np.array(histogram, np.float64).T.copy()
    n = len(histogram)
    marked = np.full(n, 9, np.uint8)
    mark_left_categories(channels, 0, n - 1, cut, channels.sum(axis=1), limits, used_scratch(n), marked)
    assert set(marked.tolist()) <= {0, 1}
    return set(np.flatnonzero(marked).tolist())


def candidates(histograms: list[Histogram], categorical: list[bool], limits: SplitParams) -> list[naive.Candidate]:
    """Return all of them, in the order that decides ties."""
    every = []
    for feature, (histogram, is_categorical) in enumerate(zip(histograms, categorical, strict=True)):
        kind = naive.categorical_candidates if is_categorical else naive.numeric_candidates
        every += list(kind(histogram, feature, limits))
    return every


@given(histograms=nodes(), limits=LIMITS, data=st.data())
def test_the_best_of_all_splits(histograms: list[Histogram], limits: SplitParams, data: st.DataObject) -> None:
    n = len(histograms)
    categorical = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    order = data.draw(st.permutations(range(n)))
    best = found(histograms, categorical, limits, order)
    expected = naive.best(iter(candidates(histograms, categorical, limits)))
    if expected is None:
        assert best[SCORE] == NO_SPLIT
        return
    assert best[FEATURE] == expected.feature
    assert (best[SPLIT_BIN], best[MISSING_LEFT]) == (expected.cut, expected.missing_left)
    assert best[SCORE] == expected.score
    assert (best[LEFT_G], best[LEFT_H]) == expected.sums[:2]
    if limits.count_channel >= 0:
        assert best[LEFT_N] == expected.sums[limits.count_channel]
    if categorical[expected.feature]:
        assert goes_left(histograms[expected.feature], int(best[SPLIT_BIN]), limits) == expected.left


@given(histograms=nodes(), limits=LIMITS)
def test_scores_are_what_they_say(histograms: list[Histogram], limits: SplitParams) -> None:
    """In exact arithmetic no candidate is better than the one found by more than rounding."""
    best = found(histograms, [False] * len(histograms), limits, list(range(len(histograms))))
    every = candidates(histograms, [False] * len(histograms), limits)
    if not every:
        return
    total = naive.added(histograms[0])
    exact = [naive.exact_score(c.sums, naive.minus(total, c.sums), limits.l2, limits.l1, limits.max_step) for c in every]
    assert best[SCORE] == pytest.approx(float(max(exact)), rel=1e-12, abs=1e-12)


@njit(error_model="numpy")
def search_packed(packed, offset, total, limits, scratch, best):
    splits.clear_split(best)
    for k in range(len(offset)):
        feature, at, n_bins = offset[k]
        splits.search_packed(packed, 1, at, n_bins, feature, total, limits, scratch, best)


@given(histograms=nodes(), limits=LIMITS, data=st.data())
def test_packed_prefix_sums_give_the_same_split(histograms: list[Histogram], limits: SplitParams, data: st.DataObject) -> None:
    limits = limits._replace(l1=0.0, max_step=math.inf)
    order = data.draw(st.permutations(range(len(histograms))))
    expected = found(histograms, [False] * len(histograms), limits, order)
    words = np.concatenate([np.cumsum([(g << 32) + h for g, h, _ in node]) for node in histograms])
    packed_counts = np.concatenate([np.cumsum([n for _, _, n in node]) for node in histograms])
    starts = np.cumsum([0, *map(len, histograms)])
    offset = np.array([(feature, starts[feature], len(histograms[feature]) - 1) for feature in order])
    total = np.array(naive.added(histograms[0]), np.float64)
    best = np.full(SPLIT_SIZE, np.nan)
    slots = np.stack([np.full_like(words, 99), words]), np.stack([np.full_like(words, 77), packed_counts])
    packed = PackedSums(slots[0], slots[1] if limits.count_channel == 2 else np.empty((0, 0), np.int64))
    search_packed(packed, offset, total, limits, used_scratch(max(map(len, histograms))), best)
    assert best[SCORE] == expected[SCORE]
    if expected[SCORE] != NO_SPLIT:
        assert best[: LEFT_N + (limits.count_channel > 0)].tolist() == expected[: LEFT_N + (limits.count_channel > 0)].tolist()


@njit(error_model="numpy")
def search_within(channels, at, n_bins, way, total, limits, best):
    splits.clear_split(best)
    splits.search_bounded(channels, at, n_bins, 0, way, total, limits, best)


@given(
    histograms=nodes(),
    limits=LIMITS,
    way=st.sampled_from([-1, 0, 1]),
    bounds=st.tuples(st.sampled_from([-math.inf, -0.5, 0.1]), st.sampled_from([math.inf, 0.2, 0.5])),
)
def test_steps_between_bounds(histograms: list[Histogram], limits: SplitParams, way: int, bounds: tuple[float, float]) -> None:
    limits = limits._replace(is_bounded=1)
    node = histograms[0]
    channels, total = np.array(node, np.float64).T.copy(), np.array([*naive.added(node), *bounds], np.float64)
    if limits.count_channel == 1:
        total[2] = total[1]
    best = np.full(SPLIT_SIZE, np.nan)
    search_within(channels, 0, len(node) - 1, way, total, limits, best)
    expected = naive.best(naive_bounded.bounded_candidates(node, 0, limits, way, *bounds))
    if expected is None:
        assert best[SCORE] == NO_SPLIT
        return
    assert best[SCORE] == pytest.approx(expected.score, rel=1e-12, abs=1e-9)
    assert (best[SPLIT_BIN], best[MISSING_LEFT]) == (expected.cut, expected.missing_left)
    assert (best[LEFT_G], best[LEFT_H]) == expected.sums[:2]


@given(histograms=nodes())
def test_prefixes_are_the_best_of_all_subsets(histograms: list[Histogram]) -> None:
    """Without smoothing and λ, the best prefix is the best subset (Fisher's theorem)."""
    limits = limits_of(l2=0.0, min_rows=0.0)
    histogram = histograms[0]
    if len([1 for sums in histogram if sums[1]]) > 8:
        histogram = [*histogram[:8], (0, 0, 0)]
    best = found([histogram], [True], limits, [0])
    subsets = list(naive.subset_candidates(histogram, 0, limits))
    if not subsets:
        assert best[SCORE] == NO_SPLIT
        return
    assert best[SCORE] == pytest.approx(max(c.score for c in subsets), rel=1e-12)


def test_ties_go_to_the_lowest_feature_then_missing_right_then_the_lowest_bin() -> None:
    node = [(-4, 2, 2), (0, 0, 0), (4, 2, 2), (0, 0, 0)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        best = found([node, node, node], [False] * 3, limits_of(), order)
        assert (best[FEATURE], best[SPLIT_BIN], best[MISSING_LEFT]) == (0, 0, 0)
    # Missing values alone on the right give the same gain as the last bin with them.
    node = [(-4, 2, 2), (0, 1, 1), (4, 2, 2)]
    best = found([node], [False], limits_of(), [0])
    assert (best[SPLIT_BIN], best[MISSING_LEFT]) == (0, 0)


def test_missing_values_go_where_the_loss_is_smaller() -> None:
    node = [(-10, 5, 5), (10, 5, 5), (-10, 5, 5)]
    best = found([node], [False], limits_of(), [0])
    assert (best[SPLIT_BIN], best[MISSING_LEFT], best[LEFT_G]) == (0, 1, -20)
    node = [(-10, 5, 5), (10, 5, 5), (10, 5, 5)]
    best = found([node], [False], limits_of(), [0])
    assert (best[SPLIT_BIN], best[MISSING_LEFT], best[LEFT_G]) == (0, 0, -10)
    node = [(0, 5, 5), (0, 5, 5), (10, 5, 5)]
    best = found([node], [False], limits_of(), [0])
    assert (best[SPLIT_BIN], best[MISSING_LEFT]) == (1, 0), "missing values alone on the right"


@pytest.mark.parametrize("l1", [0.0, 3.5])
@pytest.mark.parametrize("max_step", [math.inf, 0.25, 2.0])
@given(g=st.integers(-1000, 1000), h=st.integers(1, 1000), l2=st.sampled_from([0.0, 1.0, 10.0]))
def test_a_side_is_worth_what_its_step_takes_off(l1: float, max_step: float, g: int, h: int, l2: float) -> None:
    """The score is twice the largest decrease of -t w + ½ (h + λ) w² over steps 0 ≤ w ≤ δ."""
    t, d = max(abs(Fraction(g)) - Fraction(l1), Fraction(0)), Fraction(h) + Fraction(l2)
    steps = [t / d * k / 20 for k in range(41)] if max_step == math.inf else [Fraction(max_step) * k / 40 for k in range(41)]
    worth = side_score(float(g), float(h), l2, l1, max_step)
    falls = [float(2 * t * w - d * w * w) for w in steps]
    assert worth >= max(falls) - 1e-9
    assert worth == pytest.approx(float(naive.exact_score((g, h, 0), (0, 1, 0), l2, l1, max_step)))


@given(histograms=nodes(), limits=LIMITS)
def test_levels_are_sorted(histograms: list[Histogram], limits: SplitParams) -> None:
    for histogram in histograms:
        assert sorted_levels(histogram, limits) == naive.sorted_levels(histogram, limits)


def sorted_levels(histogram: Histogram, limits: SplitParams) -> list[int]:
    channels = np.array(histogram, np.float64).T.copy()
    scratch = used_scratch(len(histogram))
    n = gather_levels(channels, 0, len(histogram) - 1, limits, scratch)
    return scratch.codes[scratch.order[: sort_levels(n, channels.sum(axis=1), limits, scratch)]].tolist()


def used_levels(histogram: Histogram, limits: SplitParams) -> list[int]:
    return sorted(sorted_levels(histogram, limits))


def test_levels_of_small_nodes_have_to_differ_beyond_noise() -> None:
    """In a node of 170 each level of 10 has 2 % of it; whether it may go left depends on what levels and rows differ by."""
    limits = limits_of(min_category_hessian=20.0)
    alike = [(g * 10, 10, 10) for g in (-1, 1) * 5] + [(0, 70, 70)]  # Q = 100 of 11 levels
    assert used_levels(alike, limits) == list(range(11))
    assert used_levels(alike, limits._replace(noise=11.0)) == [10]
    assert used_levels(alike, limits._replace(noise=8.2)) == list(range(11))  # 0.15 * 8.2 * 135.3 / (100 - 82) = 9.2
    assert used_levels(alike, limits._replace(noise=8.5)) == [10]  # 0.15 * 8.5 * 135.3 / (100 - 85) = 11.5
    assert used_levels(alike, limits._replace(noise=11.0, min_category_hessian=0.0)) == list(range(11))
    large = [(g * 1000, 1000, 1000) for g in (-1, 1)] + [(0, 19, 19), (0, 20, 20)]
    assert used_levels(large, limits._replace(noise=1e6)) == [0, 1, 3]


def test_many_levels_are_sorted() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 255, 1000, 5000):
        histogram = [(int(g), int(h), 1) for g, h in zip(rng.integers(-50, 50, n), rng.integers(0, 5, n), strict=True)]
        limits = limits_of(smoothing=10.0)
        assert sorted_levels(histogram, limits) == naive.sorted_levels(histogram, limits)


@njit(error_model="numpy")
def search_and_mark(histograms, layout, total, search, best, goes_left):
    splits.clear_split(best)
    for feature in range(len(layout.n_bins)):
        search_feature(histograms, 0, layout.offset[feature], layout, feature, total, search, best)
    at = layout.offset[int(best[FEATURE])]
    mark_codes(histograms, 0, at, layout, best, total, search, goes_left)


@pytest.mark.parametrize("is_categorical", [False, True])
@pytest.mark.parametrize("n_missing", [0, 30])
@pytest.mark.parametrize("n_left", [20, 80])
def test_histograms_of_both_forms_give_the_same_split_and_codes(n_left: int, n_missing: int, is_categorical: bool) -> None:
    """Missing values go where they fit; if the node has none, they follow the larger child."""
    layout = plan_layout(np.array([4, 4]), np.full(2, is_categorical))
    # The first feature tells nothing, the second one splits after bin 1; missing values are like the right side.
    n = np.array([n_left / 2, n_left / 2, (100 - n_left) / 2, (100 - n_left) / 2, n_missing])
    signed = n * [7, 7, -7, -7, -7]
    counts = np.concatenate(([n.sum(), 0, 0, 0, 0], n))
    gradient = np.concatenate(([signed.sum(), 0, 0, 0, 0], signed))
    by_channel = np.stack((gradient, counts, counts))
    total = np.array([signed.sum(), n.sum(), n.sum(), -np.inf, np.inf])
    words = (gradient.astype(np.int64) << 32) + counts.astype(np.int64)
    prefix = np.concatenate((words[:5].cumsum(), words[5:].cumsum()))[None]
    rows = np.concatenate((counts[:5].cumsum(), counts[5:].cumsum())).astype(np.int64)[None]
    packed = PackedSums(prefix, rows)
    if is_categorical:
        occur = np.flatnonzero(counts[5:])
        codes = np.array([[0, 9, 9, 9, 9, *occur, *[9] * (5 - len(occur))]], np.int32)
        anything = np.where(counts > 0, 0, 12345)  # in buckets of levels that do not occur
        levels = Levels(codes, np.array([[1, len(occur)]]), np.array([-1]))
        packed = PackedSums((words + anything)[None], counts.astype(np.int64)[None] + anything, levels)
    forms = Histograms(by_channel[None], None), Histograms(None, packed)
    results = []
    for form in forms:
        best, goes_left = np.zeros(SPLIT_SIZE), np.full(5, 2, np.uint8)
        search_and_mark(form, layout, total, SplitSearch(limits_of(), None, None, used_scratch(5)), best, goes_left)
        results.append((best[: LEFT_N + 1].tolist(), goes_left.tolist()))
    assert results[0] == results[1]
    numeric, categorical = n_missing == 0 and n_left > 50, n_missing > 0 or n_left < 50
    assert results[0][1] == ([0, 0, 1, 1, categorical] if is_categorical else [1, 1, 0, 0, numeric])
