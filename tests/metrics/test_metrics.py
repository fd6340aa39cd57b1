"""Exact sums and metrics: the same for any division of the rows, and right."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from dboost.errors import ParameterError
from dboost.exact import FINE, ExactSum, unit_for
from dboost.losses import BaseLoss, LogLoss, SquaredError
from dboost.losses.classification import SoftmaxLogLoss
from dboost.metrics.metric import LossMagnitude, MetricReduction, ScoredRows
from dboost.metrics.named import ALIASES, find_metrics


@given(
    values=st.lists(st.floats(-1, 1), min_size=1, max_size=300),
    bound=st.sampled_from([1e-270, 1e-30, 1e-3, 1.0, 7.0, 1e10, 1e300]),
    cuts=st.lists(st.integers(0, 300), max_size=5),
    data=st.data(),
)
def test_exact_sums_merge_in_any_order(values: list[float], bound: float, cuts: list[int], data: st.DataObject) -> None:
    numbers = np.array(values) * bound
    unit = unit_for(bound, len(numbers))
    whole = ExactSum.of(numbers, unit)
    borders = [0, *sorted(min(cut, len(numbers)) for cut in cuts), len(numbers)]
    parts = [ExactSum.of(numbers[a:b], unit) for a, b in pairwise(borders)]
    shuffled = data.draw(st.permutations(parts))
    assert reduce(ExactSum.merge, shuffled) == whole
    assert reduce(lambda a, b: b.merge(a), shuffled) == whole
    exact = sum(map(Fraction, numbers.tolist()), Fraction(0))
    found = (Fraction(whole.coarse) + Fraction(whole.fine) / Fraction(FINE)) / Fraction(unit)
    assert abs(found - exact) <= Fraction(bound) * len(numbers) / 2**50
    assert whole.finish() == pytest.approx(float(exact), rel=1e-12, abs=bound * 1e-13)


@given(
    values=st.lists(st.floats(0, 1e250) | st.floats(0, 1), min_size=1, max_size=50),
    cuts=st.lists(st.integers(0, 50), max_size=5),
    repeats=st.integers(1, 3),
    data=st.data(),
)
def test_sums_far_beyond_their_bound_are_exact(values: list[float], cuts: list[int], repeats: int, data: st.DataObject) -> None:
    """Where training diverges, numbers grow beyond what their unit was chosen for."""
    numbers, unit = np.array(values), unit_for(1.0, 64)
    times = np.full(len(numbers), float(repeats))
    whole = ExactSum.of(numbers, unit, times)
    borders = [0, *sorted(min(cut, len(numbers)) for cut in cuts), len(numbers)]
    parts = [ExactSum.of(numbers[a:b], unit, times[a:b]) for a, b in pairwise(borders)]
    assert reduce(ExactSum.merge, data.draw(st.permutations(parts))) == whole
    exact = repeats * sum(map(Fraction, values), Fraction(0))
    assert whole.finish() == pytest.approx(float(exact), rel=1e-12, abs=1e-12)


def test_a_sum_with_a_number_that_is_not_finite_is_nan() -> None:
    for number in (math.inf, -math.inf, math.nan):
        with np.errstate(invalid="ignore"):
            whole = ExactSum.of(np.array([1.0, number, 1e300]), 1.0)
        assert math.isnan(whole.finish()) and math.isnan(whole.merge(ExactSum(1.0, 10**400)).finish())
    assert math.isnan(ExactSum(1.0, 10**400).finish())


@given(bound=st.floats(1e-290, 1e290), n=st.integers(1, 2**40), spare=st.integers(0, 10))
def test_the_unit_leaves_room_for_the_total(bound: float, n: int, spare: int) -> None:
    unit = Fraction(unit_for(bound, n, spare_bits=spare))
    assert unit.numerator == 1 or unit.denominator == 1, "a power of two"
    assert Fraction(bound) * unit * n * 2**spare <= 2**52
    if 1e-280 < bound < 1e280:
        assert Fraction(bound) * unit * n * 2**spare * 2**4 >= 2**51, "and none is wasted"


@pytest.mark.parametrize("bound", [0.0, np.nan, np.inf, -1.0])
def test_a_bound_that_is_none_gives_some_unit(bound: float) -> None:
    assert unit_for(bound, 1000) == 2.0 ** (51 - 10)


SKLEARN: dict[str, Callable[..., float]] = {
    "squared_error": lambda y, p, w: reference.mean_squared_error(y, p, sample_weight=w) / 2,
    "mean_squared_error": lambda y, p, w: reference.mean_squared_error(y, p, sample_weight=w),
    "root_mean_squared_error": lambda y, p, w: reference.root_mean_squared_error(y, p, sample_weight=w),
    "mean_absolute_error": lambda y, p, w: reference.mean_absolute_error(y, p, sample_weight=w),
    "log_loss": lambda y, p, w: reference.log_loss(y, p, sample_weight=w),
    "accuracy": lambda y, p, w: reference.accuracy_score(y, p > 0.5, sample_weight=w),
    "brier_score": lambda y, p, w: reference.brier_score_loss(y, p, sample_weight=w),
    "roc_auc": lambda y, p, w: reference.roc_auc_score(y, p, sample_weight=w),
    "mean_absolute_percentage_error": lambda y, p, w: reference.mean_absolute_percentage_error(y, p, sample_weight=w),
    "r2": lambda y, p, w: reference.r2_score(y, p, sample_weight=w),
    "average_precision": lambda y, p, w: reference.average_precision_score(y, p, sample_weight=w),
    "f1": lambda y, p, w: reference.f1_score(y, p > 0.5, sample_weight=w),
    "balanced_accuracy": lambda y, p, w: reference.balanced_accuracy_score(y, p > 0.5, sample_weight=w),
    "zero_one_loss": lambda y, p, w: reference.zero_one_loss(y, p > 0.5, sample_weight=w),
}
OF_LOSS: list[tuple[BaseLoss, list[str]]] = [
    (SquaredError(), ["squared_error", "mean_squared_error", "root_mean_squared_error", "mean_absolute_error"]),
    (LogLoss(), ["log_loss", "accuracy", "brier_score", "roc_auc"]),
    (SquaredError(), ["mean_absolute_percentage_error", "r2"]),
    (LogLoss(), ["average_precision", "f1", "balanced_accuracy", "zero_one_loss"]),
]
SINCE = {name for _, names in OF_LOSS[2:] for name in names}
CASES = pytest.mark.parametrize(
    ("loss", "name"), [(loss, name) for loss, names in OF_LOSS for name in names], ids=lambda v: v if isinstance(v, str) else ""
)


def rows(loss: BaseLoss, n: int, seed: int, scale: float = 1.0, *, weighted: bool = False, ties: bool = False) -> ScoredRows:
    rng = np.random.default_rng(seed)
    raw = rng.normal(size=(1, n)) * scale
    if ties:
        raw = np.round(raw)
    if loss.targets.are_classes:
        target = (rng.random(n) < loss.point(raw)).astype(np.float64)
        target[:2] = 0, 1
        magnitude = 64.0
    else:
        target = raw[0] + rng.normal(size=n) * scale
        magnitude = 0.5 * float(np.abs(target - target.mean()).max()) ** 2
    weight = rng.integers(1, 4, n) * rng.choice([0.1, 1.0], n) if weighted else None
    spread = float(np.abs(target - target.mean()).max())
    return ScoredRows(
        target, raw, weight, loss, LossMagnitude(magnitude, spread, 1.0 if weight is None else float(weight.max()), n)
    )


def part(whole: ScoredRows, first: int, last: int) -> ScoredRows:
    weight = None if whole.weight is None else whole.weight[first:last]
    return ScoredRows(whole.target[first:last], whole.raw[..., first:last], weight, whole.loss, whole.size)


def value(metric: MetricReduction, whole: ScoredRows, cuts: list[int]) -> float:
    borders = [0, *sorted(min(cut, len(whole.target)) for cut in cuts), len(whole.target)]
    parts = [metric.chunk(part(whole, a, b)) for a, b in pairwise(borders)]
    return metric.finish(reduce(metric.merge, parts))


@CASES
@given(
    n=st.integers(2, 200), seed=st.integers(0, 2**32), weighted=st.booleans(), cuts=st.lists(st.integers(0, 200), max_size=5)
)
def test_metrics_are_scikit_learns_for_any_division(
    loss: BaseLoss, name: str, n: int, seed: int, weighted: bool, cuts: list[int]
) -> None:
    whole = rows(loss, n, seed, weighted=weighted, ties=seed % 2 == 0)
    (metric,) = find_metrics(name, loss)
    expected = SKLEARN[name](whole.target, loss.point(whole.raw), whole.weight)
    found = value(metric, whole, [])
    assert metric.name == name
    assert found == pytest.approx(expected, rel=1e-12 if name in SINCE else 1e-9, abs=1e-12)
    assert value(metric, whole, cuts) == found


@pytest.mark.fast_cells(6)
@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e3, 1e8, 1e14])
@pytest.mark.parametrize("name", OF_LOSS[0][1])
def test_metrics_of_targets_of_any_scale(name: str, scale: float) -> None:
    whole = rows(SquaredError(), 5000, 0, scale)
    (metric,) = find_metrics(name, SquaredError())
    expected = SKLEARN[name](whole.target, whole.raw[0], None)
    assert value(metric, whole, []) == pytest.approx(expected, rel=1e-9)
    assert value(metric, whole, [1, 777, 3000]) == value(metric, whole, [])


def test_direction() -> None:
    for loss, names in OF_LOSS:
        for metric in find_metrics(names, loss):
            assert metric.greater_is_better == (
                metric.name in ("accuracy", "roc_auc", "average_precision", "f1", "balanced_accuracy", "r2")
            )


def test_the_area_under_the_curve_of_one_class_is_no_number() -> None:
    whole = rows(LogLoss(), 20, 0)
    whole.target[:] = 1.0
    (metric,) = find_metrics("roc_auc", LogLoss())
    assert np.isnan(value(metric, whole, [3]))


def test_names() -> None:
    assert [m.name for m in find_metrics(None, LogLoss())] == ["log_loss"]
    assert [m.name for m in find_metrics("roc_auc", LogLoss())] == ["roc_auc"]
    assert [m.name for m in find_metrics(("accuracy", "log_loss"), LogLoss())] == ["accuracy", "log_loss"]


@pytest.mark.parametrize(
    ("wanted", "loss", "message"),
    [
        ("area", LogLoss(), r"eval_metric 'area' does not go with loss 'log_loss'; choose from log_loss, accuracy"),
        ("roc_auc", SquaredError(), "'roc_auc' does not go with loss 'squared_error'; choose from squared_error, mean_sq"),
        (["accuracy", "mean_squared_error"], LogLoss(), "'mean_squared_error' does not go with loss 'log_loss'"),
        (3, SquaredError(), "eval_metric 3 does not go with"),
        ([None], SquaredError(), "eval_metric None"),
    ],
)
def test_unknown_metrics(wanted: object, loss: BaseLoss, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        find_metrics(wanted, loss)


OF_CLASSES: dict[str, Callable[..., float]] = {
    "roc_auc": lambda y, p, w: reference.roc_auc_score(y, p, sample_weight=w, multi_class="ovr", average="weighted"),
    "f1": lambda y, p, w: reference.f1_score(y, p.argmax(axis=1), sample_weight=w, average="macro"),
    "f1_macro": lambda y, p, w: reference.f1_score(y, p.argmax(axis=1), sample_weight=w, average="macro"),
    "f1_weighted": lambda y, p, w: reference.f1_score(y, p.argmax(axis=1), sample_weight=w, average="weighted"),
    "balanced_accuracy": lambda y, p, w: reference.balanced_accuracy_score(y, p.argmax(axis=1), sample_weight=w),
    "error": lambda y, p, w: reference.zero_one_loss(y, p.argmax(axis=1), sample_weight=w),
}


@pytest.mark.fast_cells(4)
@given(
    n=st.integers(3, 100), seed=st.integers(0, 2**32), weighted=st.booleans(), cuts=st.lists(st.integers(0, 100), max_size=4)
)
@pytest.mark.parametrize("name", ["log_loss", "accuracy", *OF_CLASSES])
def test_metrics_of_several_classes(name: str, n: int, seed: int, weighted: bool, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    loss = SoftmaxLogLoss(3)
    target = np.concatenate([[0, 1, 2], rng.integers(3, size=n)])[:n].astype(np.float64)
    raw = rng.normal(size=(3, n))
    weight = rng.random(n) + 0.1 if weighted else None
    whole = ScoredRows(target, raw, weight, loss, LossMagnitude(64.0, 1.0, 2.0, n))
    (metric,) = find_metrics(name, loss)
    if name in OF_CLASSES:
        expected = OF_CLASSES[name](target, loss.point(raw).T, weight)
    elif name == "log_loss":
        expected = reference.log_loss(target, loss.point(raw).T, sample_weight=weight, labels=[0, 1, 2])
    else:
        expected = reference.accuracy_score(target, raw.argmax(axis=0), sample_weight=weight)
    assert value(metric, whole, []) == pytest.approx(expected, rel=1e-9)
    assert value(metric, whole, cuts) == value(metric, whole, [])


@pytest.mark.parametrize("loss", [SquaredError(), LogLoss(), SoftmaxLogLoss(3)], ids=lambda loss: loss.name)
def test_short_names_are_other_names(loss: BaseLoss) -> None:
    of_two = {"average_precision", "brier_score"}
    for name, own in ALIASES.items():
        is_of_numbers = own == "r2" or own.startswith(("root_mean", "mean"))
        if is_of_numbers == loss.targets.are_classes or (loss.n_outputs == 3 and own in of_two):
            with pytest.raises(ParameterError, match=f"eval_metric '{name}' does not go with loss"):
                find_metrics(name, loss)
            continue
        (short,), (long,) = find_metrics(name, loss), find_metrics(ALIASES[name], loss)
        assert (short.name, short.spec) == (name, name)
        assert (short.chunk, short.merge, short.finish) == (long.chunk, long.merge, long.finish) or own == "log_loss"
        assert short.greater_is_better == long.greater_is_better


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e9])
def test_r2_of_targets_far_from_zero(mean: float) -> None:
    rng = np.random.default_rng(0)
    y = np.round(rng.normal(size=400), 6) + mean
    raw = y + rng.normal(size=400)
    whole = ScoredRows(y, raw[None], rng.random(400), SquaredError(), LossMagnitude(9.0, 9.0, 1.0, 400))
    (metric,) = find_metrics("r2", SquaredError())
    expected = reference.r2_score(y, raw, sample_weight=whole.weight)
    assert value(metric, whole, [3, 77]) == value(metric, whole, []) == pytest.approx(expected, rel=1e-9)
